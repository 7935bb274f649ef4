/* The CPU's take, put_add and put slots. Adjacent elements that share one index form a run, which is copied or added
 * as a whole. In an embedding, for example, a run is a row. */
#include "base/dtype.h"
#include "base/runtime.h"
#include "kernels/cpu/map.h"
#include "kernels/cpu/required.h"
#include "kernels/elements.h"
#include "kernels/scalar.h"

enum {
    PARALLEL_FROM = 65536, /* least number of elements of array a (take_plan) for which several threads are used */
    UNIT = 16384,          /* number of elements of a unit of take */
    RUN_BLOCK = 256,       /* number of elements of every run that a unit of put handles */
    BUFFER = 512           /* number of elements that are converted at a time */
};

/* One call of a slot. a is the array that has the index's shape: the output of take, the source of put. b is the array
 * that is indexed along dim: the source of take, the output of put. */
typedef struct take_plan {
    const tg_map_kernels *kernels; /* of the type in which values are converted and added */
    tg_dtype compute;
    tg_array a, b, index;
    int dim;
    bool put, add;
    int ndim;                    /* number of leading dims, without those of the run */
    int64_t positions;           /* number of runs */
    int64_t run, a_step, b_step; /* elements of a run, and the steps between them */
    int64_t per_unit;            /* of a parallel unit: number of runs (take), or of elements of every run (put) */
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
            t->kernels->load(buf, element(from, from_at + j * from_step), from->dtype, from_step, m);
            t->kernels->store(element(to, to_at + j * to_step), to->dtype, to_step, m, buf);
        }
    }
}

/* Adds n elements of a run from array a to array b, starting at these offsets. */
static void add_run(const take_plan *t, int64_t a, int64_t b, int64_t n) {
    double src[BUFFER], dst[BUFFER];
    bool direct_a = t->a.dtype == t->compute && t->a_step == 1, direct_b = t->b.dtype == t->compute && t->b_step == 1;
    for (int64_t j = 0; j < n; j += BUFFER) {
        int64_t m = n - j < BUFFER ? n - j : BUFFER;
        char *from = element(&t->a, a + j * t->a_step), *to = element(&t->b, b + j * t->b_step);
        const void *in[TG_MAP_INPUTS] = {direct_a ? from : (char *)src};
        if (!direct_a) t->kernels->load(src, from, t->a.dtype, t->a_step, m);
        if (!direct_b) t->kernels->load(dst, to, t->b.dtype, t->b_step, m);
        t->kernels->row[TG_FN_id](m, direct_b ? to : (char *)dst, in, 0, 0, true);
        if (!direct_b) t->kernels->store(to, t->b.dtype, t->b_step, m, dst);
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

/* Returns the type in which values are converted and added. */
static tg_dtype compute_type(tg_dtype a, tg_dtype b) {
    if (a == TG_F64 || b == TG_F64) return TG_F64;
    return tg_is_real(a) || tg_is_real(b) ? TG_F32 : TG_I64;
}

static tg_status run_plan(tg_ctx *ctx, take_plan *t, int64_t *bad) {
    tg_move_as_bytes(&t->a, &t->b);
    t->compute = compute_type(t->a.dtype, t->b.dtype);
    t->kernels = tg_map_kernels_of(ctx, t->compute);
    choose_run(t);
    t->per_unit = t->put ? RUN_BLOCK : t->run < UNIT ? UNIT / t->run : 1;
    int64_t count = t->put ? t->run : t->positions, units = (count + t->per_unit - 1) / t->per_unit;
    tg_range_fn body = t->put ? put_columns : take_runs;
    if (t->a.numel >= PARALLEL_FROM)
        tg_parallel_run(ctx, units, body, t);
    else
        body(t, 0, units);
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
