/* The parts from which mappings build their infer functions, and the functions that record mappings. */
#include "parallel/mappings/mapping.h"

const tg_field tg_mapping_fields[2] = {
    TG_ARG_AS(tg_mapping_params, dim, "d", INT, "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG_AS(tg_mapping_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
};

const tg_placement tg_at_i = {.kind = TG_INVARIANT}, tg_at_r = {.kind = TG_REPLICATED}, tg_at_p = {.kind = TG_PARTIAL},
                   tg_at_v = {.kind = TG_VARYING, .layout = TG_OPAQUE};

tg_status tg_mapping_check(tg_call *c) {
    const tg_comm *comm = tg_mapping_of(c)->comm;
    if (!comm) return tg_call_fail(c, TG_ERR_ARGUMENT, "the communicator is NULL");
    if (tg_comm_ctx(comm) == c->ctx) return TG_OK;
    return tg_call_fail(c, TG_ERR_ARGUMENT, "the communicator is of another context, or its constructor failed");
}

tg_status tg_mapping_like(tg_call *c) {
    TG_TRY(tg_mapping_check(c));
    return tg_infer_same(c);
}

tg_status tg_mapping_view(tg_call *c) {
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_mapping_check(c));
    return tg_call_view(c, 0, 0, x->ndim, x->shape, x->stride);
}

/* ---- Sizes ---- */

tg_status tg_mapping_row_counts(tg_call *c, const int64_t **rows, int given, int64_t row_elements,
                                const int64_t **counts) {
    int n = tg_comm_size(tg_mapping_of(c)->comm);
    if (given && given != n)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "the rows of %s are given, expected those of all %d ranks",
                            tg_count(given, "rank").text, n);
    int64_t *copy = tg_tape_alloc(c->tape, 2 * (size_t)n * sizeof *copy);
    if (!copy) return c->ctx->run.status;
    for (int r = 0; r < n; r++) {
        copy[r] = (*rows)[r];
        if (copy[r] < 0)
            return tg_call_fail(c, TG_ERR_ARGUMENT, "the number of rows of rank %d is %lld, expected 0 or more", r,
                                (long long)copy[r]);
        if (__builtin_mul_overflow(copy[r], row_elements, &copy[n + r]))
            return tg_call_fail(c, TG_ERR_ARGUMENT,
                                "the number of rows of rank %d is %lld, too many for 64 bits with %s per row", r,
                                (long long)copy[r], tg_count(row_elements, "element").text);
    }
    *rows = copy;
    *counts = copy + n;
    return TG_OK;
}

/* Returns the sum of the rows of n ranks; -1 if it overflows. */
static int64_t sum_of_rows(const int64_t *rows, int n) {
    int64_t sum = 0;
    for (int r = 0; r < n; r++)
        if (__builtin_add_overflow(sum, rows[r], &sum)) return -1;
    return sum;
}

/* Checks the splits, and sets p->counts. The size of dim 0 of x must be their sum if x is the whole tensor, else this
 * rank's split. */
static tg_status check_splits(tg_call *c, bool whole) {
    tg_mapping_params *p = tg_mapping_of(c);
    const tg_tensor *x = c->input[0];
    if (p->dim != 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "splits are given for dim %d, but only dim 0 can have uneven parts",
                            p->dim);
    if (tg_placement_chunks(p->shard) != 1)
        return tg_call_fail(c, TG_ERR_PLACEMENT,
                            "x is a strided or zigzag shard (%s per rank), so a rank's rows are not contiguous in the "
                            "whole tensor; splits need a contiguous shard: leave splits NULL",
                            tg_count(tg_placement_chunks(p->shard), "chunk").text);
    int64_t row_elements = 1, n = tg_comm_size(p->comm);
    for (int d = 1; d < x->ndim; d++) row_elements *= x->shape[d];
    TG_TRY(tg_mapping_row_counts(c, &p->splits, p->n_splits, row_elements, &p->counts));
    int64_t want = whole ? sum_of_rows(p->splits, (int)n) : p->splits[tg_comm_rank(p->comm)];
    if (x->shape[0] == want) return TG_OK;
    if (want < 0) return tg_call_fail(c, TG_ERR_SHAPE, "the sum of the splits is too large for 64 bits");
    return tg_call_fail(c, TG_ERR_SHAPE, "dim 0 has %s, expected %lld, %s", tg_count(x->shape[0], "row").text,
                        (long long)want, whole ? "the sum of the splits" : "this rank's split");
}

/* Checks that dim p->dim of x can be divided into equal parts: over the ranks if x is the whole tensor, and into the
 * chunks of a shard. */
static tg_status check_parts(tg_call *c, bool whole) {
    tg_mapping_params *p = tg_mapping_of(c);
    int64_t size = c->input[0]->shape[p->dim], n = whole ? tg_comm_size(p->comm) : 1, k = tg_placement_chunks(p->shard);
    if (k < 1)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "the strided shard has %s, expected 1 or more",
                            tg_count(k, "chunk").text);
    if (size % n)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "dim %d has size %lld, expected a multiple of the %lld ranks of group \"%s\"", p->dim,
                            (long long)size, (long long)n, tg_comm_name(p->comm));
    if (size / n % k == 0) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "dim %d has size %lld, expected a multiple of %lld, the number of chunks",
                        p->dim, (long long)size, (long long)(n * k));
}

/* Checks the params of a mapping that cuts or joins, and fills in their defaults. whole: input 0 is the whole
 * tensor. */
static tg_status complete_params(tg_call *c, bool whole) {
    tg_mapping_params *p = tg_mapping_of(c);
    TG_TRY(tg_mapping_check(c));
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    if (p->shard.layout == TG_OPAQUE) p->shard.layout = TG_CONTIGUOUS;
    p->shard.kind = TG_VARYING;
    p->shard.dim = (int8_t)p->dim;
    return p->splits ? check_splits(c, whole) : check_parts(c, whole);
}

/* Declares output 0, in the buffer that params->buffer names if that is not NULL. Clears params->buffer, because the
 * node does not need the name later. */
static tg_status declare_output(tg_call *c, const int64_t *shape) {
    tg_mapping_params *p = tg_mapping_of(c);
    const tg_tensor *x = c->input[0];
    tg_shape s = {.ndim = x->ndim};
    if (!p->buffer) return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
    memcpy(s.dim, shape, x->ndim * sizeof *shape);
    tg_tensor *y = tg_lease(c->tape, p->buffer, (tg_dtype)x->dtype, s);
    p->buffer = NULL;
    if (!tg_is_alive(y)) return tg_ctx_status(c->ctx);
    c->out[0] = y;
    return TG_OK;
}

tg_status tg_mapping_cut(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(complete_params(c, true));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[p->dim] = p->splits ? p->splits[tg_comm_rank(p->comm)] : shape[p->dim] / tg_comm_size(p->comm);
    return declare_output(c, shape);
}

tg_status tg_mapping_join(tg_call *c) {
    tg_mapping_params *p = tg_mapping_of(c);
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_mapping_check(c));
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    if (p->shard.layout == TG_OPAQUE) p->shard = tg_mapping_input_placement(c);
    TG_TRY(complete_params(c, false));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    int64_t n = tg_comm_size(p->comm);
    if (p->splits)
        shape[0] = sum_of_rows(p->splits, (int)n);
    else if (__builtin_mul_overflow(shape[p->dim], n, &shape[p->dim]))
        shape[p->dim] = -1;
    c->dims = 1u << p->dim;
    return declare_output(c, shape);
}

/* ---- Placements ---- */

tg_placement tg_mapping_input_placement(const tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    tg_axis axis = tg_comm_axis(p->comm);
    tg_placement shard = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (int8_t)p->dim};
    if ((unsigned)axis >= TG_MAX_AXES) return shard;
    tg_placement is = tg_place_on(c->input[0], axis);
    return is.kind == TG_VARYING && (is.layout == TG_OPAQUE || is.dim == p->dim) ? is : shard;
}

tg_placement tg_mapping_part_placement(const tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    return p->splits ? tg_at_v : p->shard;
}

tg_status tg_mapping_convert(tg_call *c, tg_placement from, tg_placement to, const char *remedy) {
    return tg_call_convert(c, 0, from, 0, to, tg_mapping_of(c)->comm, remedy);
}

/* ---- Recording ---- */

tg_tensor *tg_mapping_record(tg_tape *t, const tg_op *op, const tg_mapping_params *p, tg_tensor *x, const void *site) {
    bool alone = t && p->comm && tg_comm_size(p->comm) == 1 && tg_comm_ctx(p->comm) == t->ctx;
    if (alone && tg_may_return(t, x)) return x;
    return tg_record(t, op, p, &x, 1, site);
}

tg_status tg_mapping_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin, const tg_op *op,
                         const tg_mapping_params *p) {
    tg_tensor *g = gout[0];
    gin[0] = tg_record(t, op, p ? p : tg_node_params_of(n), &g, 1, n->site);
    return t->ctx->run.status;
}
