/* embedding: the rows of a table that ids name. The gradient of the table is added row by row, in the order of the
 * ids. */
#include "ops/common/derive.h"
#include "ops/common/indexed.h"
#include "ops/common/op.h"

static tg_status embedding_infer(tg_call *c) {
    const tg_tensor *table = c->input[0], *ids = c->input[1];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_index(c, 1));
    if (table->ndim != 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "table has %s; it must be [v, h]", tg_count(table->ndim, "dim").text);
    if (ids->ndim == TG_MAX_DIMS) return tg_call_fail(c, TG_ERR_SHAPE, "ids already have %d dims, the most that are "
                                                      "allowed; the result has one more", TG_MAX_DIMS);
    if (ids->ndim) memcpy(shape, ids->shape, ids->ndim * sizeof *shape);
    shape[ids->ndim] = table->shape[1];
    TG_TRY(tg_call_role(c, 0, 1, ids->ndim));
    TG_TRY(tg_call_free(c, 1, 0));
    return tg_call_out(c, 0, (tg_dtype)table->dtype, ids->ndim + 1, shape);
}

/* Sets *out to x in the shape e->shape of ndim dims: a view, or a copy if the strides of x do not allow one. */
static tg_status in_shape(tg_call *c, const tg_tensor *x, int ndim, tg_extent *e, tg_array *out) {
    *out = tg_array_of(x);
    if (tg_array_reshape(out, ndim, e->shape, e->stride)) return TG_OK;
    tg_tensor *copy = tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_copy(c, tg_array_of(copy), *out, false));
    *out = tg_array_of(copy);
    tg_array_reshape(out, ndim, e->shape, e->stride);
    return TG_OK;
}

/* Sets *out to the n ids as [n, h], repeated along h. */
static tg_status ids_of(tg_call *c, int64_t h, tg_extent *e, tg_array *out) {
    *e = (tg_extent){.shape = {c->input[1]->numel}};
    TG_TRY(in_shape(c, c->input[1], 1, e, out));
    *out = tg_array_keep(*out, 2, 2, e);
    e->shape[1] = h;
    *out = tg_array_expand(*out, 2, e->shape, e->stride);
    return TG_OK;
}

static tg_status embedding_forward(tg_call *c) {
    int64_t h = c->input[0]->shape[1];
    tg_extent y = {.shape = {c->input[1]->numel, h}}, index;
    tg_array to, ids;
    TG_TRY(in_shape(c, c->out[0], 2, &y, &to));
    TG_TRY(ids_of(c, h, &index, &ids));
    return tg_op_take(c, to, tg_array_of(c->input[0]), ids, 0);
}

/* Adds g to the rows of the gradient that belong to the ids. If gin_mode says to overwrite the gradient, all rows are
 * set to 0 first. */
static tg_status embedding_backward(tg_call *c) {
    int64_t h = c->gin[0]->shape[1];
    tg_extent g = {.shape = {c->input[1]->numel, h}}, index;
    tg_array from, ids;
    TG_TRY(tg_op_zero(c, 0));
    TG_TRY(in_shape(c, c->gout[0], 2, &g, &from));
    TG_TRY(ids_of(c, h, &index, &ids));
    return tg_op_put_add(c, tg_array_of(c->gin[0]), from, ids, 0);
}

static tg_tensor *embedding_gradient(tg_tape *t, const tg_node *n, tg_tensor *g) {
    tg_tensor *table = tg_node_in(n)[0], *ids = tg_node_in(n)[1];
    int64_t h = table->shape[1];
    tg_tensor *index = tg_expand(t, tg_reshape(t, ids, TG_SHAPE(ids->numel, 1)), TG_SHAPE(ids->numel, h));
    return tg_scatter_add(t, tg_zeros_like(t, table), 0, index, tg_reshape(t, g, TG_SHAPE(ids->numel, h)));
}

TG_VJP(embedding_vjp, embedding_gradient(t, n, g))

static const tg_sample embedding_samples[] = {
    {.note = "ids of two dims", .n_in = 2, .input = {TG_S(7, 3), TG_S_INDEX(7, 2, 4)}},
    {.note = "some twice", .n_in = 2, .input = {TG_S(3, 4), TG_S_INDEX(3, 8)}},
    {.note = "ids transposed", .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 2), TG_S_INDEX_AS(TG_SAMPLE_TRANSPOSED, 5, 3, 2)}},
    {.note = "table strided, int32", .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 5, 2), TG_S_INDEX_I32(5, 4)}},
    {.note = "one id", .n_in = 2, .input = {TG_S(4, 3), {.kind = TG_SAMPLE_INDEX, .hi = 4}}},
    {.note = "size 1", .n_in = 2, .input = {TG_S(1, 1), TG_S_INDEX(1, 1)}},
    {.note = "no ids", .n_in = 2, .input = {TG_S(4, 3), TG_S_INDEX(4, 0)}},
    {.note = "table of three dims", .n_in = 2, .input = {TG_S(4, 3, 2), TG_S_INDEX(4, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "ids not whole", .n_in = 2, .input = {TG_S(4, 3), TG_S(2)}, .refused = TG_ERR_DTYPE},
    {.note = "out of vocabulary", .n_in = 2,
     .input = {TG_S(4, 3), TG_S_INDEX_IN(4, 9, 2)}, .refused = TG_ERR_DATA},
    {.note = "big", .n_in = 2, .input = {TG_S(50257, 64), TG_S_INDEX(50257, 8, 256)}, .bench = true},
};

const tg_op tg_op_embedding = {
    .size = sizeof(tg_op), .name = "embedding", .formula = "y[.., :] = table[ids[..], :]", .inputs = "table ids",
    .n_in = 2, .n_out = 1, .saves_in = 2, .family = TG_FAMILY_TAKE, .sums_f32 = true, .infer = embedding_infer,
    .forward = embedding_forward, .backward = embedding_backward, .vjp = embedding_vjp, .jvp = tg_jvp_linear,
    TG_SAMPLES(embedding_samples)};

/* Returns the rows of table [v, h] that ids [..] name: [.., h]. An id outside [0, v) is a data error. */
tg_tensor *tg_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids) {
    return TG_RECORD(t, tg_op_embedding, NULL, table, ids);
}
