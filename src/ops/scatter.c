/* scatter_add and scatter: add or write elements along a dim at positions that a tensor of indices gives for each of
 * them. */
#include "placement/grid.h"
#include "ops/common/derive.h"
#include "ops/common/indexed.h"
#include "ops/common/op.h"

/* ---- scatter_add ---- */

static tg_status scatter_add_infer(tg_call *c) {
    int *dim = &((tg_index_params *)c->params)->dim;
    const tg_tensor *index = c->input[1], *src = c->input[2];
    TG_TRY(tg_need_number(c, 0));
    TG_TRY(tg_need_index(c, 1));
    TG_TRY(tg_need_same_dtype(c, 0, 2));
    TG_TRY(tg_need_dim(c, 0, dim));
    TG_TRY(tg_index_inside(c, index, *dim));
    if (!tg_same_shape(src, index))
        return tg_call_fail(c, TG_ERR_SHAPE, "index and src have different shapes; they must be equal");
    if (!tg_needs(c, 2)) c->saves_in = 0;
    TG_TRY(tg_index_free(c, *dim));
    TG_TRY(tg_call_linear(c, 5)); /* jointly linear in x and src */
    return tg_infer_same(c);
}

static tg_status scatter_add_forward(tg_call *c) {
    int dim = ((const tg_index_params *)c->params)->dim;
    tg_extent e;
    tg_array y = tg_array_of(c->out[0]);
    TG_TRY(tg_op_copy(c, y, tg_array_of(c->input[0]), false));
    y = tg_array_narrow(y, c->input[1]->shape, dim, &e);
    return tg_op_put_add(c, y, tg_array_of(c->input[2]), tg_array_of(c->input[1]), dim);
}

static tg_status scatter_add_backward(tg_call *c) {
    int dim = ((const tg_index_params *)c->params)->dim;
    tg_tensor *g = c->gout[0], *read = c->gin[2];
    tg_extent e;
    TG_TRY(tg_op_sum_to(c, 0, g, 1));
    if (!read) return TG_OK;
    if (tg_adds(c, 2)) read = tg_call_temp(c, (tg_dtype)g->dtype, read->ndim, read->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_array from = tg_array_narrow(tg_array_of(g), c->input[1]->shape, dim, &e);
    TG_TRY(tg_op_take(c, tg_array_of(read), from, tg_array_of(c->input[1]), dim));
    return tg_adds(c, 2) ? tg_op_sum_to(c, 2, read, 1) : TG_OK;
}

static tg_status scatter_add_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    int dim = ((const tg_index_params *)tg_node_params(n))->dim;
    gin[0] = gout[0];
    if (tg_node_needs_grad(n, 2)) gin[2] = tg_gather(t, gout[0], dim, tg_node_in(n)[1]);
    return TG_OK;
}

static const tg_sample scatter_add_samples[] = {
    {.note = "columns", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4), TG_S(3, 4)}},
    {.note = "rows, not all columns", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(4, 5), TG_S_INDEX(4, 6, 2), TG_S(6, 2)}},
    {.note = "all at one place", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(4), TG_S_INDEX(1, 9), TG_S(9)}},
    {.note = "transposed, strided", .params = &(const tg_index_params){-1}, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_INDEX(5, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "expanded", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4), TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "size 1", .params = &(const tg_index_params){0}, .n_in = 3, .input = {TG_S(1), TG_S_INDEX(1, 1), TG_S(1)}},
    {.note = "nothing", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 0), TG_S(3, 0)}},
    {.note = "src of another shape", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX(3, 2), TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "out of range", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX_IN(3, 9, 2), TG_S(2)}, .refused = TG_ERR_DATA},
    {.note = "big", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(1024, 1024), TG_S_INDEX(1024, 1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_scatter_add = {
    .size = sizeof(tg_op), .name = "scatter_add", .formula = "y = x; y[.., index[.., i, ..], ..] += src[.., i, ..]",
    .inputs = "x index src", .n_in = 3, .n_out = 1, .params_size = sizeof(tg_index_params), .saves_in = 2, .passes = 1,
    .family = TG_FAMILY_CUSTOM, .infer = scatter_add_infer, .forward = scatter_add_forward,
    .backward = scatter_add_backward, .vjp = scatter_add_vjp, .jvp = tg_jvp_linear, TG_FIELDS(tg_index_fields),
    TG_SAMPLES(scatter_add_samples)};

/* Returns x with src added along dim at the positions in index. Several additions to one element run in row-major
 * order. */
tg_tensor *tg_scatter_add(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src) {
    return TG_RECORD(t, tg_op_scatter_add, &(tg_index_params){dim}, x, index, src);
}

/* ---- scatter ---- */

static tg_status scatter_infer(tg_call *c) {
    int *dim = &((tg_index_params *)c->params)->dim;
    const tg_tensor *index = c->input[1], *src = c->input[2];
    TG_TRY(tg_need_index(c, 1));
    TG_TRY(tg_need_same_dtype(c, 0, 2));
    TG_TRY(tg_need_dim(c, 0, dim));
    TG_TRY(tg_index_inside(c, index, *dim));
    if (!tg_same_shape(src, index)) return tg_call_fail(c, TG_ERR_SHAPE, "index and src have different shapes; they "
                                                        "must be equal");
    TG_TRY(tg_index_free(c, *dim));
    TG_TRY(tg_call_linear(c, 5)); /* jointly linear in x and src */
    return tg_infer_same(c);
}

static tg_status scatter_forward(tg_call *c) {
    int dim = ((const tg_index_params *)c->params)->dim;
    int64_t bad = 0;
    tg_extent e;
    tg_array y = tg_array_of(c->out[0]), index = tg_array_of(c->input[1]);
    TG_TRY(tg_op_copy(c, y, tg_array_of(c->input[0]), false));
    y = tg_array_narrow(y, c->input[1]->shape, dim, &e);
    TG_TRY(tg_op_put(c, y, tg_array_of(c->input[2]), index, dim, &bad));
    return tg_op_bad_index(c, bad, index, y.shape[dim]);
}

/* Gives x its gradient: g, and 0 where forward overwrote an element of x. */
static tg_status scatter_back_to_x(tg_call *c, int dim) {
    tg_tensor *g = c->gout[0], *rest = tg_call_temp(c, (tg_dtype)g->dtype, g->ndim, g->shape);
    tg_tensor *zero = tg_call_temp(c, (tg_dtype)g->dtype, 0, NULL);
    int64_t stride[TG_MAX_DIMS];
    tg_extent e;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(zero), 0));
    TG_TRY(tg_op_copy(c, tg_array_of(rest), tg_array_of(g), false));
    tg_array to = tg_array_narrow(tg_array_of(rest), c->input[1]->shape, dim, &e);
    tg_array zeros = tg_array_expand(tg_array_of(zero), g->ndim, c->input[1]->shape, stride);
    TG_TRY(tg_op_put(c, to, zeros, tg_array_of(c->input[1]), dim, NULL));
    return tg_call_pass(c, 0, rest);
}

/* Sets *out to the numbers 0, 1, .. along dim, viewed in the index's shape. e is memory for its layout. */
static tg_status number_places(tg_call *c, int dim, tg_extent *e, tg_array *out) {
    const tg_tensor *index = c->input[1], *numbers = tg_call_temp(c, TG_I64, 1, &index->shape[dim]);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    memset(e->stride, 0, sizeof e->stride);
    memcpy(e->shape, index->shape, index->ndim * sizeof *index->shape);
    e->stride[dim] = 1;
    *out = tg_array_at(tg_array_of(numbers), 0, index->ndim, e->shape, e->stride);
    return tg_ctx_ops(c->ctx)->iota(c->ctx, tg_array_of(numbers), 0, 1);
}

/* Gives src its gradient. An element of src gets the element of g to which its index points, or 0 if a later element of
 * src overwrote it there. */
static tg_status scatter_back_to_src(tg_call *c, int dim) {
    const tg_tensor *x = c->input[0], *index = c->input[1], *g = c->gout[0];
    tg_tensor *last = tg_call_temp(c, TG_I64, x->ndim, x->shape);
    tg_tensor *stays = tg_call_temp(c, TG_I64, index->ndim, index->shape);
    tg_tensor *read = tg_call_temp(c, (tg_dtype)g->dtype, index->ndim, index->shape);
    tg_extent e, ee, ge;
    tg_array numbers, at = tg_array_of(index), from = tg_array_narrow(tg_array_of(g), index->shape, dim, &ge);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(number_places(c, dim, &e, &numbers));
    tg_array there = tg_array_narrow(tg_array_of(last), index->shape, dim, &ee);
    TG_TRY(tg_op_find_last(c, tg_array_of(stays), there, numbers, at, dim));
    TG_TRY(tg_ctx_ops(c->ctx)->take(c->ctx, tg_array_of(read), from, at, dim, NULL));
    const tg_tensor *to = tg_call_gin(c, 2);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    return tg_op_map(c, TG_FN_where_da, to, TG_T2(stays, read), 2, 0, 0, tg_adds(c, 2));
}

static tg_status scatter_backward(tg_call *c) {
    int dim = ((const tg_index_params *)c->params)->dim;
    if (c->gin_mode[0]) TG_TRY(scatter_back_to_x(c, dim));
    return c->gin_mode[2] ? scatter_back_to_src(c, dim) : TG_OK;
}

/* Gives y the placement of x on axes where x is sharded or opaque, and INVARIANT on the others, because y was made from
 * numbers that are the same on all ranks. Returns y. */
static tg_tensor *placed_like(tg_tape *t, tg_tensor *y, const tg_tensor *x) {
    tg_placement at[TG_MAX_AXES] = {{0}};
    if (!tg_is_alive(y) || !tg_grid_axes(t->ctx)) return y;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        tg_placement p = tg_place_on(x, (tg_axis)a);
        if (p.kind == TG_VARYING) at[a] = p;
    }
    y->place = tg_place_intern(t->ctx, at);
    return y;
}

/* Returns zeros of src's shape with the placement of g. If g is PARTIAL, the zeros must be too, because scatter is
 * jointly linear in x and src (tg_call_linear). */
static tg_tensor *zeros_placed_like(tg_tape *t, tg_tensor *src, const tg_tensor *g) {
    tg_tensor *y = tg_zeros_like(t, src);
    if (tg_is_alive(y) && tg_grid_axes(t->ctx)) y->place = tg_place_of(g);
    return y;
}

static tg_status scatter_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    int dim = ((const tg_index_params *)tg_node_params(n))->dim;
    tg_tensor *x = tg_node_in(n)[0], *index = tg_node_in(n)[1], *g = gout[0];
    tg_shape shape = tg_shape_of(index), along = {.ndim = index->ndim};
    for (int d = 0; d < along.ndim; d++) along.dim[d] = d == dim ? index->shape[d] : 1;
    if (tg_node_needs_grad(n, 0)) gin[0] = tg_scatter(t, g, dim, index, zeros_placed_like(t, tg_node_in(n)[2], g));
    if (!tg_node_needs_grad(n, 2)) return TG_OK;
    tg_tensor *numbers = tg_reshape(t, tg_arange(t, TG_I64, 0, (double)index->shape[dim], 1), along);
    numbers = placed_like(t, tg_expand(t, numbers, shape), index);
    tg_tensor *none = placed_like(t, tg_full(t, TG_I64, tg_shape_kept(x), 0), x);
    tg_tensor *last = tg_scatter(t, none, dim, index, numbers);
    tg_tensor *lost = tg_ne(t, tg_gather(t, last, dim, index), numbers);
    gin[2] = tg_masked_fill(t, tg_gather(t, g, dim, index), lost, 0); /* must be linear in g, which may be PARTIAL */
    return TG_OK;
}

static const tg_sample scatter_samples[] = {
    {.note = "columns", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4), TG_S(3, 4)}},
    {.note = "rows, not all columns", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(4, 5), TG_S_INDEX(4, 6, 2), TG_S(6, 2)}},
    {.note = "all at one place: the last", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(4), TG_S_INDEX(1, 9), TG_S(9)}},
    {.note = "many at few places", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(2, 4, 3), TG_S_INDEX(4, 2, 50, 3), TG_S(2, 50, 3)}},
    {.note = "transposed, strided", .params = &(const tg_index_params){-1}, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_INDEX(5, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "expanded, int32", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX_I32(5, 3, 4), TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "frozen x", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {{.shape = TG_S_SHAPE(4), .frozen = true}, TG_S_INDEX(4, 5), TG_S(5)}},
    {.note = "frozen src", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(4), TG_S_INDEX(4, 5), {.shape = TG_S_SHAPE(5), .frozen = true}}},
    {.note = "bools", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S_BOOL(4), TG_S_INDEX(4, 5), TG_S_BOOL(5)}},
    {.note = "size 1", .params = &(const tg_index_params){0}, .n_in = 3, .input = {TG_S(1), TG_S_INDEX(1, 1), TG_S(1)}},
    {.note = "nothing", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 0), TG_S(3, 0)}},
    {.note = "src of another shape", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX(3, 2), TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "src of another dtype", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX(3, 2), TG_S_INDEX(3, 2)}, .refused = TG_ERR_DTYPE},
    {.note = "out of range", .params = &(const tg_index_params){0}, .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX_IN(3, 9, 2), TG_S(2)}, .refused = TG_ERR_DATA},
    {.note = "big", .params = &(const tg_index_params){1}, .n_in = 3,
     .input = {TG_S(1024, 1024), TG_S_INDEX(1024, 1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_scatter = {
    .size = sizeof(tg_op), .name = "scatter", .formula = "y = x; y[.., index[.., i, ..], ..] = src[.., i, ..]",
    .inputs = "x index src", .n_in = 3, .n_out = 1, .params_size = sizeof(tg_index_params), .saves_in = 2, .passes = 1,
    .family = TG_FAMILY_CUSTOM, .infer = scatter_infer, .forward = scatter_forward, .backward = scatter_backward,
    .vjp = scatter_vjp, .jvp = tg_jvp_linear, TG_FIELDS(tg_index_fields), TG_SAMPLES(scatter_samples)};

/* Returns x with src written along dim at the positions in index. If several values go to one element, the last in
 * row-major order remains and gets the gradient. */
tg_tensor *tg_scatter(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src) {
    return TG_RECORD(t, tg_op_scatter, &(tg_index_params){dim}, x, index, src);
}
