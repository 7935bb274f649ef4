/* Check mode: compares tensors whose placement says that they are the same on every rank of an axis. The ranks exchange
 * hashes of the bytes.
 *
 * Ranks of a tensor- or context-parallel group record the same ops. So on those axes a leaf is compared at its first
 * use, results of ops when they are computed, and a seed and the result of a hook when backward gets them. One
 * data-parallel rank may use parameters that another one does not, so on the data-parallel axes tg_grads_finalize
 * compares the parameters. */
#include "base/hash.h"
#include "base/host_memory.h"

#include <stdio.h>

#include <tapegrad/comm.h>

#include "comm/comm.h"
#include "kernels/scalar.h"
#include "placement/rule.h"
#include "tape/call.h"

static const uint32_t data_axes = 1u << TG_DP | 1u << TG_EDP; /* the data-parallel axes */

/* Returns the axes of the grid on which p (the placements of x or of its gradient) says that every rank has the same
 * bytes. If x was placed on the expert grid, these are among the axes that x was placed on. Otherwise they are among
 * the axes of the dense grid, without pp. */
static uint32_t equal_axes(const tg_tensor *x, const tg_placements *p) {
    uint32_t placed = x->ext ? x->ext->placed : 0;
    uint32_t axes = placed & TG_EXPERT_AXES ? placed : tg_grid_axes(x->ctx) & ~(TG_EXPERT_AXES | 1u << TG_PP);
    return axes & tg_grid_axes(x->ctx) & ~(p ? p->varying | p->partial : 0);
}

uint32_t tg_placement_claimed(const tg_tensor *x) { return equal_axes(x, x->place); }

/* Sets *bytes to the address of the bytes of x. If the host cannot read the device's memory, copies the bytes to host
 * memory at *copy, which the caller must free; else sets *copy to NULL. Check mode may be as slow as such copies
 * are. */
static tg_status host_bytes(const tg_tensor *x, const unsigned char **bytes, void **copy) {
    tg_ctx *ctx = x->ctx;
    *copy = NULL;
    TG_TRY(tg_storage_need(x->storage, x));
    size_t n = (size_t)x->numel * tg_dtype_size((tg_dtype)x->dtype);
    *bytes = tg_data(x);
    if (ctx->host || !n) return TG_OK;
    *bytes = *copy = tg_host_alloc(ctx, n);
    if (!*copy) return ctx->run.status;
    tg_status s = ctx->run.ops->copy(ctx, *copy, tg_data(x), n, TG_COPY_TO_HOST);
    if (s == TG_OK) return TG_OK;
    tg_host_free(ctx, *copy, n);
    *copy = NULL;
    return s;
}

tg_status tg_placement_hash(const tg_tensor *x, int64_t *out) {
    size_t n = (size_t)x->numel * tg_dtype_size((tg_dtype)x->dtype);
    const unsigned char *bytes;
    void *copy;
    TG_TRY(host_bytes(x, &bytes, &copy));
    *out = (int64_t)tg_hash_bytes(TG_HASH_START, bytes, n);
    tg_host_free(x->ctx, copy, n);
    return TG_OK;
}

/* ---- Comparing numbers ---- */

/* Gathers n numbers of every rank, in one collective. gathered has space for n numbers of each rank. */
static tg_status gather(tg_ctx *ctx, tg_comm *comm, const int64_t *mine, int64_t n, int64_t *gathered) {
    int64_t all = n * tg_comm_size(comm);
    tg_tensor *src = tg_temp_empty(ctx, TG_I64, 1, &n, TG_MEM_TEMPORARY);
    tg_tensor *dst = src ? tg_temp_empty(ctx, TG_I64, 1, &all, TG_MEM_TEMPORARY) : NULL;
    tg_status s = ctx->run.status;
    if (dst) {
        s = ctx->run.ops->copy(ctx, tg_data(src), mine, (size_t)n * sizeof *mine, TG_COPY_FROM_HOST);
        if (s == TG_OK && !tg_comm_all_gather(comm, dst, src)) s = ctx->run.status;
        if (s == TG_OK) s = tg_storage_need(dst->storage, dst);
        size_t bytes = (size_t)all * sizeof *gathered;
        if (s == TG_OK) s = ctx->run.ops->copy(ctx, gathered, tg_data(dst), bytes, TG_COPY_TO_HOST);
    }
    tg_temp_free(src);
    tg_temp_free(dst);
    return s;
}

/* Compares n numbers of every rank with those of rank 0, in one collective. Sets *wrong to -1 if all are equal.
 * Otherwise sets it to (rank * n + i), where rank is the first rank that differs and i is its first different number.
 * If first and other are not NULL, sets them to number i of rank 0 and of that rank. If the communicator moves no data
 * (tg_comm_plan_new), *wrong is -1. */
static tg_status find_other(tg_ctx *ctx, tg_comm *comm, const int64_t *mine, int64_t n, int64_t *wrong, int64_t *first,
                            int64_t *other) {
    int64_t all = n * tg_comm_size(comm);
    *wrong = -1;
    if (comm->ops->silent) return TG_OK;
    int64_t *gathered = tg_host_alloc(ctx, (size_t)all * sizeof *gathered);
    if (!gathered) return ctx->run.status;
    tg_status s = gather(ctx, comm, mine, n, gathered);
    for (int64_t i = 0; s == TG_OK && i < all && *wrong < 0; i++) {
        if (gathered[i] == gathered[i % n]) continue;
        *wrong = i;
        if (first) *first = gathered[i % n];
        if (other) *other = gathered[i];
    }
    tg_host_free(ctx, gathered, (size_t)all * sizeof *gathered);
    return s;
}

tg_status tg_placement_compare_number(tg_ctx *ctx, tg_comm *comm, int64_t mine, int *rank, int64_t *first,
                                      int64_t *other) {
    int64_t wrong;
    TG_TRY(find_other(ctx, comm, &mine, 1, &wrong, first, other));
    *rank = (int)wrong;
    return TG_OK;
}

/* ---- The first element that differs ---- */

/* Finds the first element of x that is not the same on all ranks. x must have such an element. The ranks halve the
 * range in which the element lies, by comparing the hashes of the first half, until one element is left. So they send
 * only hashes. */
static tg_status first_different(const tg_tensor *x, tg_comm *comm, const unsigned char *bytes, int64_t *element) {
    size_t size = tg_dtype_size((tg_dtype)x->dtype);
    int64_t from = 0, to = x->numel;
    while (to - from > 1) {
        int64_t mid = from + (to - from) / 2, wrong;
        int64_t mine =
            (int64_t)tg_hash_bytes(TG_HASH_START, bytes + (size_t)from * size, (size_t)(mid - from) * size);
        TG_TRY(find_other(x->ctx, comm, &mine, 1, &wrong, NULL, NULL));
        *(wrong < 0 ? &from : &to) = mid;
    }
    *element = from;
    return TG_OK;
}

/* Sets *value to element i of x, converted to float64. */
static tg_status value_of(tg_tensor *x, int64_t i, double *value) {
    tg_ctx *ctx = x->ctx;
    const double none[2] = {0, 0};
    const int64_t one = 1;
    tg_tensor *to = tg_temp_empty(ctx, TG_F64, 1, &one, TG_MEM_TEMPORARY);
    if (!to) return ctx->run.status;
    tg_array in = tg_array_of(to), out = in;
    in.data = (char *)tg_data(x) + (size_t)i * tg_dtype_size((tg_dtype)x->dtype);
    in.dtype = (tg_dtype)x->dtype;
    tg_status s = ctx->run.ops->apply(ctx, TG_FN_id, out, &in, 1, none, false);
    if (s == TG_OK) s = ctx->run.ops->copy(ctx, value, out.data, sizeof *value, TG_COPY_TO_HOST);
    tg_temp_free(to);
    return s;
}

/* Writes how x differs, such as "element 3 is 1 on rank 0 and 2 on rank 1", and sets *rank to that other rank.
 * Collective. */
static tg_status describe_difference(tg_tensor *x, tg_comm *comm, int *rank, char *text, size_t n) {
    size_t size = tg_dtype_size((tg_dtype)x->dtype);
    const unsigned char *bytes;
    int64_t element = 0, wrong, pair[2] = {0, 0};
    double value = 0, other = 0;
    void *copy;
    TG_TRY(find_other(x->ctx, comm, &x->numel, 1, &wrong, &pair[0], &pair[1]));
    if (wrong >= 0) {
        *rank = (int)wrong;
        snprintf(text, n, "it has %s on rank 0 and %lld on rank %d", tg_count(pair[0], "element").text,
                 (long long)pair[1], *rank);
        return TG_OK;
    }
    TG_TRY(host_bytes(x, &bytes, &copy));
    tg_status s = first_different(x, comm, bytes, &element);
    int64_t mine = x->numel ? (int64_t)tg_hash_bytes(TG_HASH_START, bytes + (size_t)element * size, size) : 0;
    tg_host_free(x->ctx, copy, (size_t)x->numel * size);
    if (s == TG_OK) s = value_of(x, element, &value);
    if (s == TG_OK) s = find_other(x->ctx, comm, &mine, 1, &wrong, NULL, NULL);
    TG_TRY(s);
    *rank = wrong < 0 ? 0 : (int)wrong;
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (find_other(x->ctx, comm, &bits, 1, &wrong, &pair[0], &pair[1]) != TG_OK) return x->ctx->run.status;
    memcpy(&value, &pair[0], sizeof value);
    memcpy(&other, &pair[1], sizeof other);
    if (wrong == *rank)
        snprintf(text, n, "element %lld is %.9g on rank 0 and %.9g on rank %d", (long long)element, value, other,
                 *rank);
    else
        snprintf(text, n, "element %lld is not the same", (long long)element);
    return TG_OK;
}

/* Fails because the bytes of x differ between ranks of the axis, and says where. Collective. */
static tg_status differs(tg_tensor *x, tg_axis axis) {
    char what[160], is[24], element[128];
    int rank;
    TG_TRY(describe_difference(x, tg_grid_of(x->ctx)->comm[axis], &rank, element, sizeof element));
    tg_describe(x, what, sizeof what);
    tg_placement_name(tg_place_on(x, axis), is, sizeof is);
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s is %s on axis %s, but its bytes differ between ranks 0 and %d: %s; declare its true placement "
                   "(tg_place), or make it equal (tg_broadcast_data)",
                   what, is, tg_axis_name(axis), rank, element);
}

/* ---- Comparing tensors ---- */

tg_status tg_placement_compare_hashes(tg_tensor *const *x, const int64_t *mine, int64_t n, tg_axis axis) {
    tg_ctx *ctx = x[0]->ctx;
    int64_t wrong;
    TG_TRY(find_other(ctx, tg_grid_of(ctx)->comm[axis], mine, n, &wrong, NULL, NULL));
    return wrong < 0 ? TG_OK : differs(x[wrong % n], axis);
}

bool tg_placement_comparable(const tg_tensor *x) { return !x->ctx->meta && x->flags & TG_F_CONTIGUOUS; }

tg_status tg_placement_compare(tg_tensor *x) {
    uint32_t axes = tg_placement_claimed(x) & ~data_axes;
    x->flags |= TG_F_COMPARED;
    if (!axes || !tg_placement_comparable(x)) return TG_OK;
    int64_t mine;
    TG_TRY(tg_placement_hash(x, &mine));
    for (int a = 0; a < TG_MAX_AXES; a++)
        if (axes >> a & 1) TG_TRY(tg_placement_compare_hashes(&x, &mine, 1, (tg_axis)a));
    return TG_OK;
}

/* Compares g, a gradient of x, on the axes on which a gradient of x is the same on every rank. */
static tg_status compare_gradient(const tg_tensor *x, tg_tensor *g, const char *what, const char *remedy) {
    const tg_placements *dual = tg_placement_of_gradient(x, false);
    uint32_t axes = equal_axes(x, dual) & ~data_axes;
    if (!axes || !tg_placement_comparable(g)) return x->ctx->run.status;
    int64_t mine, wrong;
    TG_TRY(tg_placement_hash(g, &mine));
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!(axes >> a & 1)) continue;
        tg_comm *comm = tg_grid_of(x->ctx)->comm[a];
        char of[160], is[24], element[128];
        int rank;
        TG_TRY(find_other(x->ctx, comm, &mine, 1, &wrong, NULL, NULL));
        if (wrong < 0) continue;
        TG_TRY(describe_difference(g, comm, &rank, element, sizeof element));
        tg_describe(x, of, sizeof of);
        tg_placement_name(dual ? dual->at[a] : (tg_placement){.kind = TG_INVARIANT}, is, sizeof is);
        return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                       "%s: the gradient of %s is %s on axis %s, but the bytes differ between ranks 0 and %d: %s; %s",
                       what, of, is, tg_axis_name((tg_axis)a), rank, element, remedy);
    }
    return TG_OK;
}

tg_status tg_placement_compare_root(tg_tensor *root, tg_tensor *seed, const char *who) {
    tg_ctx *ctx = root->ctx;
    if (!ctx->check || !tg_grid_axes(ctx) || !tg_grid_of(ctx)->owner) return TG_OK;
    if (!root->tape && !(root->flags & TG_F_COMPARED)) TG_TRY(tg_placement_compare(root));
    char what[64];
    snprintf(what, sizeof what, "%s: a seed", who);
    return seed ? compare_gradient(root, seed, what, "give every rank of the axis the same seed") : TG_OK;
}

tg_status tg_placement_compare_hooked(const tg_tensor *x, tg_tensor *g) {
    if (!x->ctx->check || !tg_grid_axes(x->ctx) || !tg_grid_of(x->ctx)->owner) return TG_OK;
    return compare_gradient(x, g, "a gradient hook's result",
                            "return the same gradient on every rank of the axis, or sum the ranks' results before");
}

/* ---- Results of ops ---- */

enum { MAX_COMPARED = 16 }; /* greatest number of tensors of a call that are compared */

/* Lists the inputs and then the outputs of a call that are results of ops, and that by their placement are equal on
 * every rank of the axis. Leaves out leaves of the context, which have been compared at their first use. Returns the
 * length of the list. */
static int equal_results(const tg_call *c, int axis, tg_tensor *x[MAX_COMPARED]) {
    int n = 0;
    for (int i = 0; i < c->n_in + c->n_out && n < MAX_COMPARED; i++) {
        tg_tensor *one = i < c->n_in ? c->input[i] : c->out[i - c->n_in];
        if (!one || !one->tape || !tg_placement_comparable(one) || one->flags & TG_F_PARTIAL) continue;
        if (tg_placement_claimed(one) >> axis & 1) x[n++] = one;
    }
    return n;
}

enum { MAX_NUMBERS = 64 }; /* greatest number of numbers of a call that are compared */

/* A number among the params of an op, at one index of an array or of a single field. */
typedef struct param_number {
    const tg_field *field;
    int index;
} param_number;

/* Reads the number at `at` as 64 bits: those of a real, or the value of an integer. Returns false for a field that
 * holds something else, such as a pointer. */
static bool read_number(const tg_field *f, const char *at, int64_t *bits) {
    int i;
    switch (f->kind) {
    case TG_FIELD_BOOL: *bits = *(const bool *)(const void *)at; return true;
    case TG_FIELD_INT:
    case TG_FIELD_ENUM:
    case TG_FIELD_DTYPE: memcpy(&i, at, sizeof i); *bits = i; return true;
    case TG_FIELD_INT64:
    case TG_FIELD_UINT64:
    case TG_FIELD_SIZE:
    case TG_FIELD_DOUBLE: memcpy(bits, at, sizeof *bits); return true;
    default: return false;
    }
}

/* Lists the numbers of the call's params. Returns how many there are. */
static int list_numbers(const tg_call *c, param_number of[MAX_NUMBERS], int64_t bits[MAX_NUMBERS]) {
    int n = 0;
    for (int i = 0; c->params && i < c->op->n_fields; i++) {
        const tg_field *f = &c->op->fields[i];
        for (int k = 0; k < f->count && n < MAX_NUMBERS; k++) {
            const char *at = (const char *)c->params + f->offset + (size_t)k * (f->bytes / (size_t)f->count);
            if (read_number(f, at, &bits[n])) of[n++] = (param_number){f, k};
        }
    }
    return n;
}

static const char *number_text(const tg_field *f, int64_t bits, char *text, size_t n) {
    double v;
    memcpy(&v, &bits, sizeof v);
    if (f->kind == TG_FIELD_DOUBLE)
        snprintf(text, n, "%.9g", v);
    else
        snprintf(text, n, "%lld", (long long)bits);
    return text;
}

/* Finds the first number of the op's params that is not the same on all ranks. Writes its name and both values to text,
 * such as " (start is 2 on rank 0, 3 on rank 1)"; "" if there is no such number. Collective. */
static tg_status describe_numbers(const tg_call *c, tg_comm *comm, char *text, size_t size) {
    param_number of[MAX_NUMBERS];
    int64_t bits[MAX_NUMBERS], wrong, first, other;
    char one[40], two[40], index[16] = "";
    int n = list_numbers(c, of, bits);
    *text = 0;
    if (!n) return TG_OK;
    TG_TRY(find_other(c->ctx, comm, bits, n, &wrong, &first, &other));
    if (wrong < 0) return TG_OK;
    const param_number *p = &of[wrong % n];
    if (p->field->count > 1) snprintf(index, sizeof index, "[%d]", p->index);
    snprintf(text, size, " (%s%s is %s on rank 0, %s on rank %lld)", p->field->name, index,
             number_text(p->field, first, one, sizeof one), number_text(p->field, other, two, sizeof two),
             (long long)(wrong / n));
    return TG_OK;
}

/* Fails because x, an input or result of c, is not the same on all ranks of the axis, and says why. Collective. */
static tg_status results_differ(tg_call *c, tg_tensor *x, int axis) {
    tg_comm *comm = tg_grid_of(c->ctx)->comm[axis];
    char what[160], is[24], element[128], numbers[160];
    bool result = false;
    int rank;
    for (int i = 0; i < c->n_out; i++) result |= c->out[i] == x;
    TG_TRY(describe_difference(x, comm, &rank, element, sizeof element));
    TG_TRY(describe_numbers(c, comm, numbers, sizeof numbers));
    tg_describe(x, what, sizeof what);
    tg_placement_name(tg_place_on(x, (tg_axis)axis), is, sizeof is);
    if (!result)
        return tg_call_fail(c, TG_ERR_PLACEMENT,
                            "its input %s is %s on axis %s, but its bytes differ between ranks 0 and %d: %s; give the "
                            "ops that made it the same numbers on every rank, or declare the true placement of what it "
                            "was made from (tg_place, tg_assume_placement)",
                            what, is, tg_axis_name((tg_axis)axis), rank, element);
    return tg_call_fail(c, TG_ERR_PLACEMENT,
                        "its result %s is %s on axis %s, but its bytes differ between ranks 0 and %d: %s. Its inputs "
                        "are the same, so the ranks gave it different numbers%s, or drew from streams with different "
                        "seeds; give every rank the same numbers, or pass them as a tensor that is V",
                        what, is, tg_axis_name((tg_axis)axis), rank, element, numbers);
}

/* Returns false for ops that convert placements or whose outputs infer has placed, collectives, ops that write into
 * inputs, and ops of a backward or a derivative. Ops that record no node (among them the ops inside an op's forward)
 * are left out too, because one rank may use them alone. On a grid with axes of experts nothing is compared, because
 * results do not say on which grid they are. */
bool tg_placement_compares_results(const tg_call *c) {
    const tg_call_impl *im = c->internal;
    const tg_tape *t = c->tape;
    if (!c->ctx->check || !tg_grid_of(c->ctx)->owner || c->ctx->run.recording) return false;
    if (tg_grid_axes(c->ctx) & TG_EXPERT_AXES) return false;
    if (im->placed || (im->rules && im->rules->n_conversions)) return false;
    if (c->op->collective || c->op->inplace || c->op->writes) return false;
    return c->needs && !t->in_backward && !t->derives && !t->grad_graph && !t->tangents && !t->again;
}

tg_status tg_placement_compare_results(tg_call *c) {
    tg_tensor *x[MAX_COMPARED];
    int64_t mine[MAX_COMPARED], wrong;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!(tg_grid_axes(c->ctx) & ~data_axes & 1u << a)) continue;
        int n = equal_results(c, a, x);
        for (int i = 0; i < n; i++) TG_TRY(tg_placement_hash(x[i], &mine[i]));
        if (!n) continue;
        TG_TRY(find_other(c->ctx, tg_grid_of(c->ctx)->comm[a], mine, n, &wrong, NULL, NULL));
        if (wrong >= 0) return results_differ(c, x[wrong % n], a);
    }
    return TG_OK;
}

/* ---- A communicator without a grid ---- */

tg_status tg_placement_compare_over(tg_tensor *x, tg_comm *c, const char *who) {
    char what[160];
    int64_t wrong;
    if (!tg_placement_comparable(x)) return TG_OK;
    int64_t mine;
    TG_TRY(tg_placement_hash(x, &mine));
    TG_TRY(find_other(x->ctx, c, &mine, 1, &wrong, NULL, NULL));
    if (wrong < 0) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s: the bytes of %s differ between ranks 0 and %d of \"%s\", so ranks would get parts of each "
                   "other's tensors; distribute a tensor that is the same on all of them",
                   who, what, (int)wrong, tg_comm_name(c));
}
