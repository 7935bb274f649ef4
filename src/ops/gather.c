/* gather: reads elements along a dim at positions that a tensor of indices gives for each of them. Its gradient is
 * added at the same positions, in row-major order. */
#include "ops/common/derive.h"
#include "ops/common/indexed.h"
#include "ops/common/op.h"

static tg_status gather_infer(tg_call *c) {
    int *dim = &((tg_index_params *)c->params)->dim;
    const tg_tensor *x = c->input[0], *index = c->input[1];
    TG_TRY(tg_need_index(c, 1));
    TG_TRY(tg_need_dim(c, 0, dim));
    TG_TRY(tg_index_inside(c, index, *dim));
    TG_TRY(tg_index_free(c, *dim));
    TG_TRY(tg_call_role(c, 1, *dim, *dim));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, index->ndim, index->shape);
}

static tg_status gather_forward(tg_call *c) {
    int dim = ((const tg_index_params *)c->params)->dim;
    tg_extent e;
    tg_array x = tg_array_narrow(tg_array_of(c->input[0]), c->input[1]->shape, dim, &e);
    return tg_op_take(c, tg_array_of(c->out[0]), x, tg_array_of(c->input[1]), dim);
}

static tg_status gather_backward(tg_call *c) {
    int dim = ((const tg_index_params *)c->params)->dim;
    tg_extent e;
    TG_TRY(tg_op_zero(c, 0));
    tg_array gx = tg_array_narrow(tg_array_of(c->gin[0]), c->input[1]->shape, dim, &e);
    return tg_op_put_add(c, gx, tg_array_of(c->gout[0]), tg_array_of(c->input[1]), dim);
}

TG_VJP(gather_vjp, tg_index_put_gradient(t, n, g, tg_node_in(n)[1]))

static const tg_sample gather_samples[] = {
    {.note = "columns", .params = &(const tg_index_params){1}, .n_in = 2, .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4)}},
    {.note = "rows, not all columns", .params = &(const tg_index_params){0}, .n_in = 2,
     .input = {TG_S(4, 5), TG_S_INDEX(4, 6, 2)}},
    {.note = "transposed", .params = &(const tg_index_params){-1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_INDEX_AS(TG_SAMPLE_TRANSPOSED, 5, 3, 2)}},
    {.note = "strided, middle", .params = &(const tg_index_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S_INDEX(3, 2, 5, 3)}},
    {.note = "expanded, int32", .params = &(const tg_index_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5), TG_S_INDEX_I32(5, 3, 2)}},
    {.note = "size 1", .params = &(const tg_index_params){0}, .n_in = 2, .input = {TG_S(1), TG_S_INDEX(1, 1)}},
    {.note = "nothing", .params = &(const tg_index_params){1}, .n_in = 2, .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 0)}},
    {.note = "index not whole", .params = &(const tg_index_params){0}, .n_in = 2,
     .input = {TG_S(3), TG_S(3)}, .refused = TG_ERR_DTYPE},
    {.note = "index larger", .params = &(const tg_index_params){1}, .n_in = 2,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 4, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "out of range", .params = &(const tg_index_params){0}, .n_in = 2,
     .input = {TG_S(3), TG_S_INDEX_IN(3, 9, 2)}, .refused = TG_ERR_DATA},
    {.note = "negative", .params = &(const tg_index_params){0}, .n_in = 2,
     .input = {TG_S(3), TG_S_INDEX_IN(-3, 0, 2)}, .refused = TG_ERR_DATA},
    {.note = "big", .params = &(const tg_index_params){1}, .n_in = 2,
     .input = {TG_S(1024, 1024), TG_S_INDEX(1024, 1024, 1024)}, .bench = true},
};

const tg_op tg_op_gather = {
    .size = sizeof(tg_op), .name = "gather", .formula = "y[.., i, ..] = x[.., index[.., i, ..], ..]",
    .inputs = "x index", .n_in = 2, .n_out = 1, .params_size = sizeof(tg_index_params), .saves_in = 2,
    .family = TG_FAMILY_TAKE, .sums_f32 = true, .moves = true, .infer = gather_infer, .forward = gather_forward,
    .backward = gather_backward, .vjp = gather_vjp, .jvp = tg_jvp_linear, TG_FIELDS(tg_index_fields),
    TG_SAMPLES(gather_samples)};

/* Reads x along dim at the positions in index. index has as many dims as x, and is no larger than x in the dims other
 * than dim. The result has the index's shape. */
tg_tensor *tg_gather(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index) {
    return TG_RECORD(t, tg_op_gather, &(tg_index_params){dim}, x, index);
}
