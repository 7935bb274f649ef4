/* The CPU's take, put_add and put slots. Adjacent elements that share one index form a run, which is copied or added
 * as a whole. In an embedding, for example, a run is a row. Runs that differ only in their place along dim form a
 * group. */
#include "base/dtype.h"
#include "base/runtime.h"
#include "kernels/cpu/map.h"
#include "kernels/cpu/required.h"
#include "kernels/elements.h"
#include "kernels/order.h"
#include "kernels/scalar.h"

enum {
    PARALLEL_FROM = 65536, /* least number of elements of array a (take_plan) for which several threads are used */
    UNIT = 16384,          /* number of elements of a unit of take */
    RUN_BLOCK = 256,       /* number of elements of every run that a unit of put handles; at most BUFFER */
    BUFFER = 512           /* number of elements that are converted at a time */
};

/* One call of a slot. a is the array that has the index's shape: the output of take, the source of put. b is the array
 * that is indexed along dim: the source of take, the output of put. */
typedef struct take_plan {
    const tg_map_kernels *kernels; /* of the type in which values are converted and added */
    tg_dtype compute;
    tg_dtype to, from; /* take and put: the kernels' dtypes of the array that is written and of the other one */
    tg_array a, b, index;
    int dim;
    bool put, add;
    int ndim;                    /* number of leading dims, without those of the run */
    int64_t positions;           /* number of runs */
    int64_t run, a_step, b_step; /* elements of a run, and the steps between them */
    int64_t per_unit;            /* of a parallel unit: number of runs (take), of elements of every run (put), or of
                                    blocks (rounds_once) */
    int64_t blocks;              /* rounds_once: number of blocks of RUN_BLOCK elements of the runs of all groups */
    int64_t *links;              /* rounds_once: memory for the links of a group (link_runs), for each unit */
    int64_t bad;                 /* atomic: 1 + the first position whose index is out of range; 0: none */
} take_plan;

static int64_t index_at(const take_plan *t, int64_t offset) {
    return t->index.dtype == TG_I32 ? ((const int32_t *)t->index.data)[offset]
                                    : ((const int64_t *)t->index.data)[offset];
}

/* Records in t->bad that the index at this position is out of range, unless an earlier position is recorded. */
static void note_bad(take_plan *t, int64_t position) {
    int64_t seen = __atomic_load_n(&t->bad, __ATOMIC_RELAXED);
    while ((seen == 0 || position + 1 < seen) &&
           !__atomic_compare_exchange_n(&t->bad, &seen, position + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

/* Finds the offsets of run r in both arrays, in elements. Returns false if its index is out of range. */
static bool find_run(take_plan *t, int64_t r, int64_t *a, int64_t *b) {
    int64_t position = r * t->run, at_index = 0, in_dim = 0;
    *a = *b = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t i = r % t->a.shape[d];
        r /= t->a.shape[d];
        *a += i * t->a.stride[d];
        at_index += i * t->index.stride[d];
        if (d != t->dim) *b += i * t->b.stride[d];
    }
    in_dim = index_at(t, at_index);
    if (in_dim < 0 || in_dim >= t->b.shape[t->dim]) {
        note_bad(t, position);
        return false;
    }
    *b += in_dim * t->b.stride[t->dim];
    return true;
}

/* Returns the address of the element at this offset. */
static char *element(const tg_array *x, int64_t offset) {
    return (char *)x->data + offset * (int64_t)tg_dtype_size(x->dtype);
}

static void copy_one(char *dst, const char *src, size_t size) {
    switch (size) {
    case 1:
        memcpy(dst, src, 1);
        break;
    case 2:
        memcpy(dst, src, 2);
        break;
    case 4:
        memcpy(dst, src, 4);
        break;
    default:
        memcpy(dst, src, 8);
    }
}

/* Copies n elements of a run: for take from array b to array a, and for put from a to b. The arguments a and b are the
 * offsets of the elements in these arrays. */
static void copy_run(const take_plan *t, int64_t a, int64_t b, int64_t n) {
    const tg_array *to = t->put ? &t->b : &t->a, *from = t->put ? &t->a : &t->b;
    int64_t to_step = t->put ? t->b_step : t->a_step, from_step = t->put ? t->a_step : t->b_step;
    int64_t to_at = t->put ? b : a, from_at = t->put ? a : b;
    size_t size = tg_dtype_size(to->dtype);
    if (to->dtype == from->dtype && n == 1) {
        copy_one(element(to, to_at), element(from, from_at), size);
    } else if (to->dtype == from->dtype && to_step == 1 && from_step == 1) {
        memcpy(element(to, to_at), element(from, from_at), (size_t)n * size);
    } else {
        double buf[BUFFER];
        for (int64_t j = 0; j < n; j += BUFFER) {
            int64_t m = n - j < BUFFER ? n - j : BUFFER;
            t->kernels->load(buf, element(from, from_at + j * from_step), t->from, from_step, m);
            t->kernels->store(element(to, to_at + j * to_step), t->to, to_step, m, buf);
        }
    }
}

/* Adds to the n values in `sum`, at most BUFFER, the elements of a run of array a from offset `a` on. */
static void add_values(const take_plan *t, int64_t a, int64_t n, void *sum) {
    double src[BUFFER];
    char *from = element(&t->a, a);
    bool direct = t->a.dtype == t->compute && t->a_step == 1;
    const void *in[TG_MAP_INPUTS] = {direct ? from : (char *)src};
    if (!direct) t->kernels->load(src, from, t->a.dtype, t->a_step, n);
    t->kernels->row[TG_FN_id](n, sum, in, 0, 0, true);
}

/* Adds n elements of a run from array a to array b, starting at these offsets. */
static void add_run(const take_plan *t, int64_t a, int64_t b, int64_t n) {
    double dst[BUFFER];
    bool direct = t->b.dtype == t->compute && t->b_step == 1;
    for (int64_t j = 0; j < n; j += BUFFER) {
        int64_t m = n - j < BUFFER ? n - j : BUFFER;
        char *to = element(&t->b, b + j * t->b_step);
        if (!direct) t->kernels->load(dst, to, t->b.dtype, t->b_step, m);
        add_values(t, a + j * t->a_step, m, direct ? to : (char *)dst);
        if (!direct) t->kernels->store(to, t->b.dtype, t->b_step, m, dst);
    }
}

static void take_runs(void *plan, int64_t begin, int64_t end) {
    take_plan *t = plan;
    int64_t last = end * t->per_unit < t->positions ? end * t->per_unit : t->positions, a, b;
    for (int64_t r = begin * t->per_unit; r < last; r++)
        if (find_run(t, r, &a, &b)) copy_run(t, a, b, t->run);
}

/* Puts or adds the elements of units [begin, end) of every run, run by run. A unit is per_unit elements of every run.
 * So sums follow the order of src, and no two units write the same element. */
static void put_columns(void *plan, int64_t begin, int64_t end) {
    take_plan *t = plan;
    int64_t first = begin * t->per_unit, last = end * t->per_unit < t->run ? end * t->per_unit : t->run, a, b;
    for (int64_t r = 0; r < t->positions; r++)
        if (find_run(t, r, &a, &b))
            (t->add ? add_run : copy_run)(t, a + first * t->a_step, b + first * t->b_step, last - first);
}

/* ---- Sums in the compute type, rounded once ---- */

/* The first run of a group: its offsets in the arrays, and its number. Successive runs of the group have numbers `step`
 * apart. */
typedef struct run_group {
    int64_t a, b, index, run, step;
} run_group;

static run_group find_group(const take_plan *t, int64_t group) {
    run_group g = {.step = 1};
    int64_t runs = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t n = t->a.shape[d], i = d == t->dim ? 0 : group % n;
        if (d == t->dim)
            g.step = runs;
        else
            group /= n;
        g.a += i * t->a.stride[d];
        g.b += i * t->b.stride[d];
        g.index += i * t->index.stride[d];
        g.run += i * runs;
        runs *= n;
    }
    return g;
}

/* Returns the index of the group's run m, or -1 if it is out of range. */
static int64_t chosen_by(take_plan *t, const run_group *g, int64_t m) {
    int64_t i = index_at(t, g->index + m * t->index.stride[t->dim]);
    if (i >= 0 && i < t->b.shape[t->dim]) return i;
    note_bad(t, (g->run + m * g->step) * t->run);
    return -1;
}

/* Makes a list of the group's runs for each index. first[i] is 1 + the number in the group of the first run with index
 * i, or 0 if there is none. next[m] is the same for the first run after run m that has the index of run m. All of
 * `first` must be 0. */
static void link_runs(take_plan *t, const run_group *g, int64_t *first, int64_t *next) {
    for (int64_t m = t->a.shape[t->dim] - 1; m >= 0; m--) {
        int64_t i = chosen_by(t, g, m);
        if (i < 0) continue;
        next[m] = first[i];
        first[i] = m + 1;
    }
}

/* Adds n elements of the group's runs, from element j on, list by list. Sets all of `first` to 0. */
static void add_linked(take_plan *t, const run_group *g, int64_t j, int64_t n, int64_t *first, const int64_t *next) {
    double sum[BUFFER];
    int64_t a = g->a + j * t->a_step, b = g->b + j * t->b_step;
    for (int64_t m = 0; m < t->a.shape[t->dim]; m++) {
        int64_t i = chosen_by(t, g, m);
        if (i < 0 || !first[i]) continue;
        char *to = element(&t->b, b + i * t->b.stride[t->dim]);
        t->kernels->load(sum, to, t->b.dtype, t->b_step, n);
        for (int64_t at = first[i]; at; at = next[at - 1]) add_values(t, a + (at - 1) * t->a.stride[t->dim], n, sum);
        t->kernels->store(to, t->b.dtype, t->b_step, n, sum);
        first[i] = 0;
    }
}

static void add_blocks(void *plan, int64_t begin, int64_t end) {
    take_plan *t = plan;
    int64_t extent = t->b.shape[t->dim], per_group = (t->run + RUN_BLOCK - 1) / RUN_BLOCK;
    for (int64_t u = begin; u < end; u++) {
        int64_t *first = t->links + u * (extent + t->a.shape[t->dim]), *next = first + extent;
        memset(first, 0, (size_t)extent * sizeof *first);
        for (int64_t k = u * t->per_unit; k < (u + 1) * t->per_unit && k < t->blocks; k++) {
            run_group g = find_group(t, k / per_group);
            int64_t j = k % per_group * RUN_BLOCK;
            link_runs(t, &g, first, next);
            add_linked(t, &g, j, t->run - j < RUN_BLOCK ? t->run - j : RUN_BLOCK, first, next);
        }
    }
}

/* Returns whether sums must be kept in the compute type until all their terms are added: where array b could not hold
 * them, and a sum may have several terms. */
static bool rounds_once(const take_plan *t) {
    return t->add && tg_is_real(t->b.dtype) && t->b.dtype != t->compute && t->a.shape[t->dim] > 1;
}

static tg_status run_blocks(tg_ctx *ctx, take_plan *t, bool parallel) {
    int64_t along = t->a.shape[t->dim], most = parallel ? tg_runtime_of(ctx)->threads : 1;
    t->blocks = t->positions / along * ((t->run + RUN_BLOCK - 1) / RUN_BLOCK);
    int64_t units = t->blocks < most ? t->blocks : most;
    t->per_unit = (t->blocks + units - 1) / units;
    t->links = tg_workspace(ctx, TG_WS_PUT, (size_t)(units * (t->b.shape[t->dim] + along)) * sizeof *t->links);
    if (!t->links) return TG_ERR_MEMORY;
    if (parallel)
        tg_parallel_run(ctx, units, add_blocks, t);
    else
        add_blocks(t, 0, units);
    return TG_OK;
}

/* ---- The slots ---- */

/* Forms the run from the trailing dims along which the index is constant and both arrays advance by a constant step. */
static void choose_run(take_plan *t) {
    int d = t->ndim = t->a.ndim;
    t->run = t->a_step = t->b_step = 1;
    for (; d - 1 > t->dim; d--) {
        int64_t n = t->a.shape[d - 1], a = t->a.stride[d - 1], b = t->b.stride[d - 1];
        if (n != 1 && t->index.stride[d - 1] != 0) break;
        if (n != 1 && t->run != 1 && (a != t->a_step * t->run || b != t->b_step * t->run)) break;
        if (n != 1 && t->run == 1) {
            t->a_step = a;
            t->b_step = b;
        }
        t->run *= n;
    }
    t->ndim = d;
    t->positions = 1;
    for (int k = 0; k < d; k++) t->positions *= t->a.shape[k];
}

/* Returns the type in which values are added. */
static tg_dtype sum_type(tg_dtype a, tg_dtype b) {
    if (a == TG_F64 || b == TG_F64) return TG_F64;
    return tg_is_real(a) || tg_is_real(b) ? TG_F32 : TG_I64;
}

/* Chooses the types of the kernels. Values that are not added are converted as slot apply does. */
static void choose_types(tg_ctx *ctx, take_plan *t) {
    const tg_array *to = t->put ? &t->b : &t->a, *from = t->put ? &t->a : &t->b;
    int dtype[2];
    t->compute = t->add ? sum_type(t->a.dtype, t->b.dtype) : tg_map_type(TG_FN_id, to, from, 1, false);
    tg_operand_dtypes(TG_FN_id, t->compute, to, from, 1, dtype);
    t->to = (tg_dtype)dtype[0];
    t->from = (tg_dtype)dtype[1];
    t->kernels = tg_map_kernels_of(ctx, t->compute);
}

static void run_units(tg_ctx *ctx, take_plan *t, bool parallel) {
    t->per_unit = t->put ? RUN_BLOCK : t->run < UNIT ? UNIT / t->run : 1;
    int64_t count = t->put ? t->run : t->positions, units = (count + t->per_unit - 1) / t->per_unit;
    tg_range_fn body = t->put ? put_columns : take_runs;
    if (parallel)
        tg_parallel_run(ctx, units, body, t);
    else
        body(t, 0, units);
}

static tg_status run_plan(tg_ctx *ctx, take_plan *t, int64_t *bad) {
    tg_move_as_bytes(&t->a, &t->b);
    choose_types(ctx, t);
    choose_run(t);
    bool parallel = t->a.numel >= PARALLEL_FROM;
    if (rounds_once(t))
        TG_TRY(run_blocks(ctx, t, parallel));
    else
        run_units(ctx, t, parallel);
    if (t->bad && bad && !*bad) *bad = t->bad;
    return TG_OK;
}

tg_status tg_cpu_take(tg_ctx *ctx, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad) {
    if (out.numel == 0) return TG_OK;
    take_plan t = {.a = out, .b = src, .index = index, .dim = dim};
    return run_plan(ctx, &t, bad);
}

tg_status tg_cpu_put_add(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    if (src.numel == 0) return TG_OK;
    take_plan t = {.a = src, .b = dst, .index = index, .dim = dim, .put = true, .add = true};
    return run_plan(ctx, &t, bad);
}

tg_status tg_cpu_put(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    if (src.numel == 0) return TG_OK;
    take_plan t = {.a = src, .b = dst, .index = index, .dim = dim, .put = true};
    return run_plan(ctx, &t, bad);
}
