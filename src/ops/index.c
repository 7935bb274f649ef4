/* Ops that read, add or write at positions given by a tensor of indices: gather, scatter_add, scatter, index_select and
 * embedding. The gradient of a read is added at the same positions, in row-major order. */
#include "placement/grid.h"
#include "ops/common/derive.h"
#include "ops/common/op.h"

/* Samples of indices that need more than TG_S_INDEX can express. */
#define INDEX_I32(n_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .hi = (n_), .dtype = TG_I32}
#define INDEX_IN(lo_, hi_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .lo = (lo_), .hi = (hi_)}
#define INDEX_AS(layout_, n_, ...) \
    {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .hi = (n_), .layout = (layout_)}

typedef struct index_params {
    int dim;
} index_params;

/* Returns the element at a position, counted in row-major order. The host must be able to read the bytes. */
static int64_t index_at(tg_array index, int64_t position) {
    int64_t at = 0;
    for (int d = index.ndim - 1; d >= 0; d--) {
        at += position % index.shape[d] * index.stride[d];
        position /= index.shape[d];
    }
    return index.dtype == TG_I64 ? ((const int64_t *)index.data)[at] : ((const int32_t *)index.data)[at];
}

/* The message quotes the index if the host can read it, and otherwise only its position. */
tg_status tg_op_bad_index(tg_call *c, int64_t bad, tg_array index, int64_t size) {
    if (TG_LIKELY(!bad) || !c->ctx->host) return tg_op_bad(c, bad, "the indices");
    int64_t found = index_at(index, bad - 1);
    return tg_call_fail(c, TG_ERR_DATA, "index %lld is out of range; it must be from 0 to %lld", (long long)found,
                        (long long)size - 1);
}

/* Call the device's slot, and report an index that is out of range. */
static tg_status take(tg_call *c, tg_array out, tg_array src, tg_array index, int dim) {
    int64_t bad = 0;
    TG_TRY(tg_ctx_ops(c->ctx)->take(c->ctx, out, src, index, dim, &bad));
    return tg_op_bad_index(c, bad, index, src.shape[dim]);
}

static tg_status put_add(tg_call *c, tg_array dst, tg_array src, tg_array index, int dim) {
    int64_t bad = 0;
    TG_TRY(tg_ctx_ops(c->ctx)->put_add(c->ctx, dst, src, index, dim, &bad));
    return tg_op_bad_index(c, bad, index, dst.shape[dim]);
}

/* Checks that the index has as many dims as x, and is no larger than x in each dim other than `dim`. */
static tg_status need_inside(tg_call *c, const tg_tensor *index, int dim) {
    const tg_tensor *x = c->input[0];
    if (index->ndim != x->ndim)
        return tg_call_fail(c, TG_ERR_SHAPE, "index has %s; it must have %d, as input 0 does",
                            tg_count(index->ndim, "dim").text, x->ndim);
    for (int d = 0; d < x->ndim; d++)
        if (d != dim && index->shape[d] > x->shape[d])
            return tg_call_fail(c, TG_ERR_SHAPE, "index has size %lld in dim %d; it must be at most %lld, the size of "
                                "input 0", (long long)index->shape[d], d, (long long)x->shape[d]);
    return TG_OK;
}

/* States that each dim other than `dim` may be sharded (tg_call_role), if the index has the same size there as x. Along
 * `dim` the op may reach any element of x. */
static tg_status declare_free(tg_call *c, int dim) {
    const tg_tensor *x = c->input[0], *index = c->input[1];
    for (int d = 0; tg_call_places(c) && d < x->ndim; d++)
        if (d != dim && index->shape[d] == x->shape[d])
            for (int i = 0; i < c->n_in; i++) TG_TRY(tg_call_role(c, i, d, d));
    return TG_OK;
}

/* ---- gather ---- */

static tg_status gather_infer(tg_call *c) {
    int *dim = &((index_params *)c->params)->dim;
    const tg_tensor *x = c->input[0], *index = c->input[1];
    TG_TRY(tg_need_index(c, 1));
    TG_TRY(tg_need_dim(c, 0, dim));
    TG_TRY(need_inside(c, index, *dim));
    TG_TRY(declare_free(c, *dim));
    TG_TRY(tg_call_role(c, 1, *dim, *dim));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, index->ndim, index->shape);
}

static tg_status gather_forward(tg_call *c) {
    int dim = ((const index_params *)c->params)->dim;
    tg_extent e;
    tg_array x = tg_array_narrow(tg_array_of(c->input[0]), c->input[1]->shape, dim, &e);
    return take(c, tg_array_of(c->out[0]), x, tg_array_of(c->input[1]), dim);
}

static tg_status gather_backward(tg_call *c) {
    int dim = ((const index_params *)c->params)->dim;
    tg_extent e;
    TG_TRY(tg_op_zero(c, 0));
    tg_array gx = tg_array_narrow(tg_array_of(c->gin[0]), c->input[1]->shape, dim, &e);
    return put_add(c, gx, tg_array_of(c->gout[0]), tg_array_of(c->input[1]), dim);
}

/* Returns the gradient of x: zeros with g added at the index. */
static tg_tensor *put_gradient(tg_tape *t, const tg_node *n, tg_tensor *g, tg_tensor *index) {
    tg_tensor *x = tg_node_in(n)[0];
    return tg_scatter_add(t, tg_zeros_like(t, x), ((const index_params *)tg_node_params(n))->dim, index, g);
}

TG_VJP(gather_vjp, put_gradient(t, n, g, tg_node_in(n)[1]))

static const tg_sample gather_samples[] = {
    {.note = "columns", .params = &(const index_params){1}, .n_in = 2, .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4)}},
    {.note = "rows, not all columns", .params = &(const index_params){0}, .n_in = 2,
     .input = {TG_S(4, 5), TG_S_INDEX(4, 6, 2)}},
    {.note = "transposed", .params = &(const index_params){-1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), INDEX_AS(TG_SAMPLE_TRANSPOSED, 5, 3, 2)}},
    {.note = "strided, middle", .params = &(const index_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S_INDEX(3, 2, 5, 3)}},
    {.note = "expanded, int32", .params = &(const index_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5), INDEX_I32(5, 3, 2)}},
    {.note = "size 1", .params = &(const index_params){0}, .n_in = 2, .input = {TG_S(1), TG_S_INDEX(1, 1)}},
    {.note = "nothing", .params = &(const index_params){1}, .n_in = 2, .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 0)}},
    {.note = "index not whole", .params = &(const index_params){0}, .n_in = 2,
     .input = {TG_S(3), TG_S(3)}, .refused = TG_ERR_DTYPE},
    {.note = "index larger", .params = &(const index_params){1}, .n_in = 2, .input = {TG_S(3, 5), TG_S_INDEX(5, 4, 2)},
     .refused = TG_ERR_SHAPE},
    {.note = "out of range", .params = &(const index_params){0}, .n_in = 2,
     .input = {TG_S(3), INDEX_IN(3, 9, 2)}, .refused = TG_ERR_DATA},
    {.note = "negative", .params = &(const index_params){0}, .n_in = 2,
     .input = {TG_S(3), INDEX_IN(-3, 0, 2)}, .refused = TG_ERR_DATA},
    {.note = "big", .params = &(const index_params){1}, .n_in = 2,
     .input = {TG_S(1024, 1024), TG_S_INDEX(1024, 1024, 1024)}, .bench = true},
};

static const tg_field index_fields[] = {
    TG_ARG(index_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
};

const tg_op tg_op_gather = {
    .size = sizeof(tg_op), .name = "gather", .formula = "y[.., i, ..] = x[.., index[.., i, ..], ..]",
    .inputs = "x index", .n_in = 2, .n_out = 1, .params_size = sizeof(index_params), .saves_in = 2,
    .family = TG_FAMILY_TAKE, .sums_f32 = true, .moves = true, .infer = gather_infer, .forward = gather_forward,
    .backward = gather_backward, .vjp = gather_vjp, .jvp = tg_jvp_linear, TG_FIELDS(index_fields),
    TG_SAMPLES(gather_samples)};

/* Reads x along dim at the positions in index. index has as many dims as x, and is no larger than x in the dims other
 * than dim. The result has the index's shape. */
tg_tensor *tg_gather(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index) {
    return TG_RECORD(t, tg_op_gather, &(index_params){dim}, x, index);
}

/* ---- scatter_add ---- */

static tg_status scatter_add_infer(tg_call *c) {
    int *dim = &((index_params *)c->params)->dim;
    const tg_tensor *index = c->input[1], *src = c->input[2];
    TG_TRY(tg_need_number(c, 0));
    TG_TRY(tg_need_index(c, 1));
    TG_TRY(tg_need_same_dtype(c, 0, 2));
    TG_TRY(tg_need_dim(c, 0, dim));
    TG_TRY(need_inside(c, index, *dim));
    if (src->ndim != index->ndim || memcmp(src->shape, index->shape, src->ndim * sizeof *src->shape) != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "index and src have different shapes; they must be equal");
    if (!tg_needs(c, 2)) c->saves_in = 0;
    TG_TRY(declare_free(c, *dim));
    TG_TRY(tg_call_linear(c, 5)); /* jointly linear in x and src */
    return tg_infer_same(c);
}

static tg_status scatter_add_forward(tg_call *c) {
    int dim = ((const index_params *)c->params)->dim;
    tg_extent e;
    tg_array y = tg_array_of(c->out[0]);
    TG_TRY(tg_op_copy(c, y, tg_array_of(c->input[0]), false));
    y = tg_array_narrow(y, c->input[1]->shape, dim, &e);
    return put_add(c, y, tg_array_of(c->input[2]), tg_array_of(c->input[1]), dim);
}

static tg_status scatter_add_backward(tg_call *c) {
    int dim = ((const index_params *)c->params)->dim;
    tg_tensor *g = c->gout[0], *read = c->gin[2];
    tg_extent e;
    TG_TRY(tg_op_sum_to(c, 0, g, 1));
    if (!read) return TG_OK;
    if (tg_adds(c, 2)) read = tg_call_temp(c, (tg_dtype)g->dtype, read->ndim, read->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_array from = tg_array_narrow(tg_array_of(g), c->input[1]->shape, dim, &e);
    TG_TRY(take(c, tg_array_of(read), from, tg_array_of(c->input[1]), dim));
    return tg_adds(c, 2) ? tg_op_sum_to(c, 2, read, 1) : TG_OK;
}

static tg_status scatter_add_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    int dim = ((const index_params *)tg_node_params(n))->dim;
    gin[0] = gout[0];
    if (tg_node_needs_grad(n, 2)) gin[2] = tg_gather(t, gout[0], dim, tg_node_in(n)[1]);
    return TG_OK;
}

static const tg_sample scatter_add_samples[] = {
    {.note = "columns", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4), TG_S(3, 4)}},
    {.note = "rows, not all columns", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(4, 5), TG_S_INDEX(4, 6, 2), TG_S(6, 2)}},
    {.note = "all at one place", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(4), TG_S_INDEX(1, 9), TG_S(9)}},
    {.note = "transposed, strided", .params = &(const index_params){-1}, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_INDEX(5, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "expanded", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4), TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "size 1", .params = &(const index_params){0}, .n_in = 3, .input = {TG_S(1), TG_S_INDEX(1, 1), TG_S(1)}},
    {.note = "nothing", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 0), TG_S(3, 0)}},
    {.note = "src of another shape", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX(3, 2), TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "out of range", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(3), INDEX_IN(3, 9, 2), TG_S(2)}, .refused = TG_ERR_DATA},
    {.note = "big", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(1024, 1024), TG_S_INDEX(1024, 1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_scatter_add = {
    .size = sizeof(tg_op), .name = "scatter_add", .formula = "y = x; y[.., index[.., i, ..], ..] += src[.., i, ..]",
    .inputs = "x index src", .n_in = 3, .n_out = 1, .params_size = sizeof(index_params), .saves_in = 2, .passes = 1,
    .family = TG_FAMILY_CUSTOM, .infer = scatter_add_infer, .forward = scatter_add_forward,
    .backward = scatter_add_backward, .vjp = scatter_add_vjp, .jvp = tg_jvp_linear, TG_FIELDS(index_fields),
    TG_SAMPLES(scatter_add_samples)};

/* Returns x with src added along dim at the positions in index. Several additions to one element run in row-major
 * order. */
tg_tensor *tg_scatter_add(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src) {
    return TG_RECORD(t, tg_op_scatter_add, &(index_params){dim}, x, index, src);
}

/* ---- scatter ---- */

static tg_status scatter_infer(tg_call *c) {
    int *dim = &((index_params *)c->params)->dim;
    const tg_tensor *index = c->input[1], *src = c->input[2];
    TG_TRY(tg_need_index(c, 1));
    TG_TRY(tg_need_same_dtype(c, 0, 2));
    TG_TRY(tg_need_dim(c, 0, dim));
    TG_TRY(need_inside(c, index, *dim));
    if (!tg_same_shape(src, index)) return tg_call_fail(c, TG_ERR_SHAPE, "index and src have different shapes; they "
                                                        "must be equal");
    TG_TRY(declare_free(c, *dim));
    TG_TRY(tg_call_linear(c, 5)); /* jointly linear in x and src */
    return tg_infer_same(c);
}

static tg_status scatter_forward(tg_call *c) {
    int dim = ((const index_params *)c->params)->dim;
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
 * src overwrote it there. To find the overwritten elements, scatters the numbers 0, 1, .. of the positions along dim by
 * the same index, and gathers them back: an element that does not get its own number back was overwritten. */
static tg_status scatter_back_to_src(tg_call *c, int dim) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const tg_tensor *x = c->input[0], *index = c->input[1], *g = c->gout[0];
    tg_tensor *last = tg_call_temp(c, TG_I64, x->ndim, x->shape);
    tg_tensor *stays = tg_call_temp(c, TG_I64, index->ndim, index->shape);
    tg_tensor *read = tg_call_temp(c, (tg_dtype)g->dtype, index->ndim, index->shape);
    tg_extent e, ee, ge;
    tg_array numbers, at = tg_array_of(index), from = tg_array_narrow(tg_array_of(g), index->shape, dim, &ge);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(number_places(c, dim, &e, &numbers));
    tg_array there = tg_array_narrow(tg_array_of(last), index->shape, dim, &ee);
    TG_TRY(tg_op_put(c, there, numbers, at, dim, NULL));
    TG_TRY(ops->take(c->ctx, tg_array_of(stays), there, at, dim, NULL));
    const tg_array both[] = {tg_array_of(stays), numbers};
    TG_TRY(ops->apply(c->ctx, TG_FN_eq, tg_array_of(stays), both, 2, (const double[2]){0}, false));
    TG_TRY(ops->take(c->ctx, tg_array_of(read), from, at, dim, NULL));
    const tg_tensor *to = tg_call_gin(c, 2);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    return tg_op_map(c, TG_FN_where_da, to, TG_T2(stays, read), 2, 0, 0, tg_adds(c, 2));
}

static tg_status scatter_backward(tg_call *c) {
    int dim = ((const index_params *)c->params)->dim;
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
    int dim = ((const index_params *)tg_node_params(n))->dim;
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
    {.note = "columns", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 4), TG_S(3, 4)}},
    {.note = "rows, not all columns", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(4, 5), TG_S_INDEX(4, 6, 2), TG_S(6, 2)}},
    {.note = "all at one place: the last", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(4), TG_S_INDEX(1, 9), TG_S(9)}},
    {.note = "many at few places", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(2, 4, 3), TG_S_INDEX(4, 2, 50, 3), TG_S(2, 50, 3)}},
    {.note = "transposed, strided", .params = &(const index_params){-1}, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_INDEX(5, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "expanded, int32", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), INDEX_I32(5, 3, 4), TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "frozen x", .params = &(const index_params){0}, .n_in = 3,
     .input = {{.shape = TG_S_SHAPE(4), .frozen = true}, TG_S_INDEX(4, 5), TG_S(5)}},
    {.note = "frozen src", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(4), TG_S_INDEX(4, 5), {.shape = TG_S_SHAPE(5), .frozen = true}}},
    {.note = "bools", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S_BOOL(4), TG_S_INDEX(4, 5), TG_S_BOOL(5)}},
    {.note = "size 1", .params = &(const index_params){0}, .n_in = 3, .input = {TG_S(1), TG_S_INDEX(1, 1), TG_S(1)}},
    {.note = "nothing", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(3, 5), TG_S_INDEX(5, 3, 0), TG_S(3, 0)}},
    {.note = "src of another shape", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX(3, 2), TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "src of another dtype", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(3), TG_S_INDEX(3, 2), TG_S_INDEX(3, 2)}, .refused = TG_ERR_DTYPE},
    {.note = "out of range", .params = &(const index_params){0}, .n_in = 3,
     .input = {TG_S(3), INDEX_IN(3, 9, 2), TG_S(2)}, .refused = TG_ERR_DATA},
    {.note = "big", .params = &(const index_params){1}, .n_in = 3,
     .input = {TG_S(1024, 1024), TG_S_INDEX(1024, 1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_scatter = {
    .size = sizeof(tg_op), .name = "scatter", .formula = "y = x; y[.., index[.., i, ..], ..] = src[.., i, ..]",
    .inputs = "x index src", .n_in = 3, .n_out = 1, .params_size = sizeof(index_params), .saves_in = 2, .passes = 1,
    .family = TG_FAMILY_CUSTOM, .infer = scatter_infer, .forward = scatter_forward, .backward = scatter_backward,
    .vjp = scatter_vjp, .jvp = tg_jvp_linear, TG_FIELDS(index_fields), TG_SAMPLES(scatter_samples)};

/* Returns x with src written along dim at the positions in index. If several values go to one element, the last in
 * row-major order remains and gets the gradient. */
tg_tensor *tg_scatter(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src) {
    return TG_RECORD(t, tg_op_scatter, &(index_params){dim}, x, index, src);
}

/* ---- index_select ---- */

static tg_status index_select_infer(tg_call *c) {
    int *dim = &((index_params *)c->params)->dim;
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
    int dim = ((const index_params *)c->params)->dim;
    tg_extent e;
    tg_array y = tg_array_of(c->out[0]);
    return take(c, y, tg_array_of(c->input[0]), spread_index(c, y, dim, &e), dim);
}

static tg_status index_select_backward(tg_call *c) {
    int dim = ((const index_params *)c->params)->dim;
    tg_extent e;
    tg_array g = tg_array_of(c->gout[0]);
    TG_TRY(tg_op_zero(c, 0));
    return put_add(c, tg_array_of(c->gin[0]), g, spread_index(c, g, dim, &e), dim);
}

static tg_tensor *index_like(tg_tape *t, const tg_node *n, const tg_tensor *g) {
    int dim = ((const index_params *)tg_node_params(n))->dim;
    tg_shape shape = {.ndim = g->ndim};
    for (int d = 0; d < g->ndim; d++) shape.dim[d] = d == dim ? g->shape[d] : 1;
    return tg_expand(t, tg_reshape(t, tg_node_in(n)[1], shape), tg_shape_of(g));
}

TG_VJP(index_select_vjp, put_gradient(t, n, g, index_like(t, n, g)))

static const tg_sample index_select_samples[] = {
    {.note = "rows, some twice", .params = &(const index_params){0}, .n_in = 2, .input = {TG_S(3, 4), TG_S_INDEX(3,
                                                                                                                 7)}},
    {.note = "columns", .params = &(const index_params){-1}, .n_in = 2, .input = {TG_S(3, 5), TG_S_INDEX(5, 2)}},
    {.note = "transposed, middle", .params = &(const index_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_INDEX(3, 5)}},
    {.note = "strided", .params = &(const index_params){0}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 4, 3), INDEX_AS(TG_SAMPLE_STRIDED, 4, 3)}},
    {.note = "expanded", .params = &(const index_params){1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S_INDEX(4, 3)}},
    {.note = "size 1", .params = &(const index_params){0}, .n_in = 2, .input = {TG_S(1), TG_S_INDEX(1, 1)}},
    {.note = "nothing", .params = &(const index_params){0}, .n_in = 2, .input = {TG_S(3, 2), TG_S_INDEX(3, 0)}},
    {.note = "index of two dims", .params = &(const index_params){0}, .n_in = 2, .input = {TG_S(3), TG_S_INDEX(3, 2,
                                                                                                               2)},
     .refused = TG_ERR_SHAPE},
    {.note = "out of range", .params = &(const index_params){0}, .n_in = 2,
     .input = {TG_S(3, 2), INDEX_IN(3, 9, 2)}, .refused = TG_ERR_DATA},
    {.note = "big", .params = &(const index_params){0}, .n_in = 2,
     .input = {TG_S(4096, 256), TG_S_INDEX(4096, 4096)}, .bench = true},
};

const tg_op tg_op_index_select = {
    .size = sizeof(tg_op), .name = "index_select", .formula = "y[.., i, ..] = x[.., index[i], ..]", .inputs = "x index",
    .n_in = 2, .n_out = 1, .params_size = sizeof(index_params), .saves_in = 2, .family = TG_FAMILY_TAKE,
    .sums_f32 = true, .moves = true, .infer = index_select_infer, .forward = index_select_forward,
    .backward = index_select_backward, .vjp = index_select_vjp, .jvp = tg_jvp_linear, TG_FIELDS(index_fields),
    TG_SAMPLES(index_select_samples)};

/* Returns the slices of x along dim that index [n] lists. */
tg_tensor *tg_index_select(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index) {
    return TG_RECORD(t, tg_op_index_select, &(index_params){dim}, x, index);
}

/* ---- embedding ---- */

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
    return take(c, to, tg_array_of(c->input[0]), ids, 0);
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
    return put_add(c, tg_array_of(c->gin[0]), from, ids, 0);
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
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 2), INDEX_AS(TG_SAMPLE_TRANSPOSED, 5, 3, 2)}},
    {.note = "table strided, int32", .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 5, 2), INDEX_I32(5, 4)}},
    {.note = "one id", .n_in = 2, .input = {TG_S(4, 3), {.kind = TG_SAMPLE_INDEX, .hi = 4}}},
    {.note = "size 1", .n_in = 2, .input = {TG_S(1, 1), TG_S_INDEX(1, 1)}},
    {.note = "no ids", .n_in = 2, .input = {TG_S(4, 3), TG_S_INDEX(4, 0)}},
    {.note = "table of three dims", .n_in = 2, .input = {TG_S(4, 3, 2), TG_S_INDEX(4, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "ids not whole", .n_in = 2, .input = {TG_S(4, 3), TG_S(2)}, .refused = TG_ERR_DTYPE},
    {.note = "out of vocabulary", .n_in = 2,
     .input = {TG_S(4, 3), INDEX_IN(4, 9, 2)}, .refused = TG_ERR_DATA},
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
