/* index_select: the slices of a tensor along a dim that a vector of indices lists. */
#include "ops/common/derive.h"
#include "ops/common/indexed.h"
#include "ops/common/op.h"

static tg_status index_select_infer(tg_call *c) {
    int *dim = &((tg_index_params *)c->params)->dim;
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_index(c, 1));
    TG_TRY(tg_need_dim(c, 0, dim));
    if (c->input[1]->ndim != 1)
        return tg_call_fail(c, TG_ERR_SHAPE, "index has %s; it must be a vector", tg_count(c->input[1]->ndim,
                                                                                           "dim").text);
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[*dim] = c->input[1]->shape[0];
    /* output dim `dim` comes from dim 0 of the index, the other dims come from x */
    for (int d = 0; d < x->ndim; d++) TG_TRY(tg_call_role(c, d == *dim, d == *dim ? 0 : d, d));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

/* Views the index in y's shape, repeated along the dims other than dim. */
static tg_array spread_index(const tg_call *c, tg_array y, int dim, tg_extent *e) {
    uint32_t others = ((1u << y.ndim) - 1) & ~(1u << dim);
    tg_array index = tg_array_keep(tg_array_of(c->input[1]), y.ndim, others, e);
    return tg_array_expand(index, y.ndim, y.shape, e->stride);
}

static tg_status index_select_forward(tg_call *c) {
    int dim = ((const tg_index_params *)c->params)->dim;
    tg_extent e;
    tg_array y = tg_array_of(c->out[0]);
    return tg_op_take(c, y, tg_array_of(c->input[0]), spread_index(c, y, dim, &e), dim);
}

static tg_status index_select_backward(tg_call *c) {
    int dim = ((const tg_index_params *)c->params)->dim;
    tg_extent e;
    tg_array g = tg_array_of(c->gout[0]);
    TG_TRY(tg_op_zero(c, 0));
    return tg_op_put_add(c, tg_array_of(c->gin[0]), g, spread_index(c, g, dim, &e), dim);
}

static tg_tensor *index_like(tg_tape *t, const tg_node *n, const tg_tensor *g) {
    int dim = ((const tg_index_params *)tg_node_params(n))->dim;
    tg_shape shape = {.ndim = g->ndim};
    for (int d = 0; d < g->ndim; d++) shape.dim[d] = d == dim ? g->shape[d] : 1;
    return tg_expand(t, tg_reshape(t, tg_node_in(n)[1], shape), tg_shape_of(g));
}

TG_VJP(index_select_vjp, tg_index_put_gradient(t, n, g, index_like(t, n, g)))

static const tg_sample index_select_samples[] = {
    {.note = "rows, some twice", .params = &(const tg_index_params){0}, .n_in = 2, .input = {TG_S(3, 4), TG_S_INDEX(3,
                                                                                                                 7)}},
    {.note = "columns", .params = &(const tg_index_params){-1}, .n_in = 2, .input = {TG_S(3, 5), TG_S_INDEX(5, 2)}},
    {.note = "transposed, middle", .params = &(const tg_index_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_INDEX(3, 5)}},
    {.note = "strided", .params = &(const tg_index_params){0}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 4, 3), TG_S_INDEX_AS(TG_SAMPLE_STRIDED, 4, 3)}},
    {.note = "expanded", .params = &(const tg_index_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S_INDEX(4, 3)}},
    {.note = "size 1", .params = &(const tg_index_params){0}, .n_in = 2, .input = {TG_S(1), TG_S_INDEX(1, 1)}},
    {.note = "nothing", .params = &(const tg_index_params){0}, .n_in = 2, .input = {TG_S(3, 2), TG_S_INDEX(3, 0)}},
    {.note = "index of two dims", .params = &(const tg_index_params){0}, .n_in = 2, .input = {TG_S(3), TG_S_INDEX(3, 2,
                                                                                                               2)},
     .refused = TG_ERR_SHAPE},
    {.note = "out of range", .params = &(const tg_index_params){0}, .n_in = 2,
     .input = {TG_S(3, 2), TG_S_INDEX_IN(3, 9, 2)}, .refused = TG_ERR_DATA},
    {.note = "big", .params = &(const tg_index_params){0}, .n_in = 2,
     .input = {TG_S(4096, 256), TG_S_INDEX(4096, 4096)}, .bench = true},
};

const tg_op tg_op_index_select = {
    .size = sizeof(tg_op), .name = "index_select", .formula = "y[.., i, ..] = x[.., index[i], ..]", .inputs = "x index",
    .n_in = 2, .n_out = 1, .params_size = sizeof(tg_index_params), .saves_in = 2, .family = TG_FAMILY_TAKE,
    .sums_f32 = true, .moves = true, .infer = index_select_infer, .forward = index_select_forward,
    .backward = index_select_backward, .vjp = index_select_vjp, .jvp = tg_jvp_linear, TG_FIELDS(tg_index_fields),
    TG_SAMPLES(index_select_samples)};

/* Returns the slices of x along dim that index [n] lists. */
tg_tensor *tg_index_select(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index) {
    return TG_RECORD(t, tg_op_index_select, &(tg_index_params){dim}, x, index);
}
