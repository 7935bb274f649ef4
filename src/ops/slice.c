/* slice and select view a part of input 0; their backward writes the gradient to that part, and 0 to the rest.
 * slice_scatter and select_scatter replace such a part by another tensor. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

/* The output is a part of input 0. Writes g to that part of the gradient and 0 to the rest, or adds g to that part.
 * `gone` is a bit mask of the dims that the output lacks. */
static tg_status part_backward(tg_call *c, int dim, int64_t start, int64_t n, int64_t step, uint32_t gone) {
    tg_extent part, whole;
    tg_array g = tg_array_of(c->gout[0]);
    const tg_tensor *x = c->gin[0];
    TG_TRY(tg_op_zero(c, 0));
    tg_array to = tg_array_slice(tg_array_of(x), dim, start, n, step, &part);
    return tg_op_copy(c, to, tg_array_keep(g, x->ndim, gone, &whole), tg_adds(c, 0));
}

typedef struct slice_params {
    int dim;
    int64_t start, stop, step;
} slice_params;

/* Checks the params, makes start and stop count from the front, and sets e to the layout of the slice of x. */
static tg_status find_slice(tg_call *c, tg_extent *e) {
    slice_params *p = c->params;
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    int64_t size = x->shape[p->dim], start = p->start, stop = p->stop == INT64_MAX ? size : p->stop;
    if (p->step < 1) return tg_call_fail(c, TG_ERR_ARGUMENT, "step is %lld; it must be 1 or more", (long long)p->step);
    if (start < 0) start += size;
    if (stop < 0) stop += size;
    if (start < 0 || stop < start || stop > size)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "start %lld and stop %lld do not fit dim %d of size %lld; both must be within the size "
                            "(counted from the end if negative) and stop must not be less than start",
                            (long long)p->start, (long long)p->stop, p->dim, (long long)size);
    p->start = start;
    p->stop = stop;
    memcpy(e->shape, x->shape, x->ndim * sizeof *x->shape);
    memcpy(e->stride, x->stride, x->ndim * sizeof *x->stride);
    e->shape[p->dim] = stop == start ? 0 : (stop - start - 1) / p->step + 1;
    /* With fewer than two elements the step has no effect. It is set to 1, because the stride computed from a large
     * step could overflow. The jvp records the op again with these values. */
    if (e->shape[p->dim] < 2) {
        p->step = 1;
        p->stop = start + e->shape[p->dim];
    }
    e->stride[p->dim] *= p->step;
    return TG_OK;
}

static tg_status slice_infer(tg_call *c) {
    slice_params *p = c->params;
    const tg_tensor *x = c->input[0];
    tg_extent e;
    TG_TRY(find_slice(c, &e));
    for (int d = 0; d < x->ndim; d++) /* a dim that the slice cuts must not be sharded */
        if (d != p->dim || e.shape[d] == x->shape[d]) TG_TRY(tg_call_role(c, 0, d, d));
    return tg_call_view(c, 0, p->start * x->stride[p->dim], x->ndim, e.shape, e.stride);
}

static tg_status slice_backward(tg_call *c) {
    const slice_params *p = c->params;
    return part_backward(c, p->dim, p->start, c->gout[0]->shape[p->dim], p->step, 0);
}

static tg_tensor *slice_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const slice_params *p = tg_node_params(n);
    return tg_spread(t, g, p->dim, p->start, p->step, tg_node_in(n)[0]->shape[p->dim]);
}

TG_VJP(slice_vjp, slice_back(t, n, g))

static const tg_sample slice_samples[] = {
    {.note = "rows", .params = &(const slice_params){0, 1, 3, 1}, .n_in = 1, .input = {TG_S(4, 3)}},
    {.note = "step", .params = &(const slice_params){1, 0, 5, 2}, .n_in = 1, .input = {TG_S(2, 5)}},
    {.note = "from the end", .params = &(const slice_params){-1, -3, -1, 1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "to the end", .params = &(const slice_params){1, 1, INT64_MAX, 3}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5, 2)}},
    {.note = "expanded", .params = &(const slice_params){1, 1, 2, 7}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "size 1", .params = &(const slice_params){0, 0, 1, 1}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "step beyond the end", .params = &(const slice_params){0, 1, 4, 3}, .n_in = 1, .input = {TG_S(4, 2)}},
    {.note = "nothing", .params = &(const slice_params){0, 2, 2, 1}, .n_in = 1, .input = {TG_S(3, 2)}},
    {.note = "empty", .params = &(const slice_params){0, 0, 0, 1}, .n_in = 1, .input = {TG_S(0, 2)}},
    {.note = "step 0", .params = &(const slice_params){0, 0, 2, 0}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "past the end", .params = &(const slice_params){0, 0, 4, 1}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "stop before start", .params = &(const slice_params){0, 2, 1, 1}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const slice_params){1, 0, 1024, 2}, .n_in = 1, .input = {TG_S(1024, 1024)},
     .bench = true},
};

static const tg_field slice_fields[] = {
    TG_ARG(slice_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG(slice_params, start, INT64, "Position of the first element; a negative number counts from the end."),
    TG_ARG(slice_params, stop, INT64,
           "Position before which the elements lie; the greatest integer means the size of dim."),
    TG_ARG(slice_params, step, INT64, "Distance between elements, 1 or more."),
};

const tg_op tg_op_slice = {
    .size = sizeof(tg_op), .name = "slice", .formula = "x[.., start:stop:step, ..]", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(slice_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true, .moves = true,
    .infer = slice_infer, .backward = slice_backward, .vjp = slice_vjp, .jvp = tg_jvp_linear, TG_FIELDS(slice_fields),
    .preset = &(const slice_params){.stop = INT64_MAX, .step = 1}, TG_SAMPLES(slice_samples)};

/* Returns a view of the elements start, start + step, .. before stop along dim. Negative start and stop count from the
 * end; INT64_MAX as stop is the end. Positions outside the dim are refused, not clamped. */
tg_tensor *tg_slice(tg_tape *t, tg_tensor *x, int dim, int64_t start, int64_t stop, int64_t step) {
    return TG_RECORD(t, tg_op_slice, (&(slice_params){dim, start, stop, step}), x);
}

typedef struct select_params {
    int dim;
    int64_t index;
} select_params;

static tg_status select_infer(tg_call *c) {
    select_params *p = c->params;
    const tg_tensor *x = c->input[0];
    tg_extent e;
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    int64_t size = x->shape[p->dim], index = p->index < 0 ? p->index + size : p->index;
    if (index < 0 || index >= size)
        return tg_call_fail(c, TG_ERR_SHAPE, "index %lld is out of range for dim %d of size %lld", (long long)p->index,
                            p->dim, (long long)size);
    p->index = index;
    for (int d = 0; d + 1 < x->ndim; d++) {
        int from = d + (d >= p->dim);
        e.shape[d] = x->shape[from];
        e.stride[d] = x->stride[from];
        TG_TRY(tg_call_role(c, 0, from, d));
    }
    return tg_call_view(c, 0, index * x->stride[p->dim], x->ndim - 1, e.shape, e.stride);
}

static tg_status select_backward(tg_call *c) {
    const select_params *p = c->params;
    return part_backward(c, p->dim, p->index, 1, 1, 1u << p->dim);
}

static tg_tensor *select_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const select_params *p = tg_node_params(n);
    return tg_spread(t, tg_unsqueeze(t, g, p->dim), p->dim, p->index, 1, tg_node_in(n)[0]->shape[p->dim]);
}

TG_VJP(select_vjp, select_back(t, n, g))

static const tg_sample select_samples[] = {
    {.note = "row", .params = &(const select_params){0, 1}, .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "last column", .params = &(const select_params){-1, -1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4)}},
    {.note = "middle", .params = &(const select_params){1, 2}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3,
                                                                                            4)}},
    {.note = "expanded", .params = &(const select_params){1, 0}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3,
                                                                                              4)}},
    {.note = "to a scalar", .params = &(const select_params){0, 0}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const select_params){0, 1}, .n_in = 1, .input = {TG_S(2, 0)}},
    {.note = "past the end", .params = &(const select_params){0, 3}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "of nothing", .params = &(const select_params){0, 0}, .n_in = 1,
     .input = {TG_S(0, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const select_params){1, 5}, .n_in = 1, .input = {TG_S(1024, 16, 64)}, .bench = true},
};

static const tg_field select_fields[] = {
    TG_ARG(select_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG(select_params, index, INT64, "Position along dim; a negative number counts from the end.", .required = true),
};

const tg_op tg_op_select = {
    .size = sizeof(tg_op), .name = "select", .formula = "x[.., index, ..]", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(select_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true, .moves = true,
    .infer = select_infer, .backward = select_backward, .vjp = select_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(select_fields), TG_SAMPLES(select_samples)};

/* Returns a view of the elements at `index` along dim; dim is removed. A negative index counts from the end. */
tg_tensor *tg_select(tg_tape *t, tg_tensor *x, int dim, int64_t index) {
    return TG_RECORD(t, tg_op_select, (&(select_params){dim, index}), x);
}

/* ---- slice_scatter, select_scatter ---- */

static tg_status slice_scatter_infer(tg_call *c) {
    const tg_tensor *x = c->input[0], *src = c->input[1];
    tg_extent e;
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    TG_TRY(find_slice(c, &e));
    if (src->ndim != x->ndim || (x->ndim && memcmp(src->shape, e.shape, x->ndim * sizeof *src->shape) != 0))
        return tg_call_fail(c, TG_ERR_SHAPE, "src does not have the shape of the slice, whose size is %lld in dim %d",
                            (long long)e.shape[((const slice_params *)c->params)->dim],
                            ((const slice_params *)c->params)->dim);
    TG_TRY(tg_call_linear(c, 3)); /* jointly linear in x and src */
    return tg_infer_same(c);
}

/* Views the slice of a tensor of x's shape. */
static tg_array slice_of(const tg_call *c, const tg_tensor *x, tg_extent *e) {
    const slice_params *p = c->params;
    return tg_array_slice(tg_array_of(x), p->dim, p->start, c->input[1]->shape[p->dim], p->step, e);
}

static tg_status slice_scatter_forward(tg_call *c) {
    tg_extent e;
    TG_TRY(tg_op_copy(c, tg_array_of(c->out[0]), tg_array_of(c->input[0]), false));
    return tg_op_copy(c, slice_of(c, c->out[0], &e), tg_array_of(c->input[1]), false);
}

static tg_status slice_scatter_backward(tg_call *c) {
    const slice_params *p = c->params;
    tg_tensor *g = c->gout[0];
    tg_extent e;
    if (c->gin_mode[0]) {
        tg_tensor *rest = tg_call_temp(c, (tg_dtype)g->dtype, g->ndim, g->shape);
        if (!tg_ok(c->ctx)) return c->ctx->run.status;
        TG_TRY(tg_op_copy(c, tg_array_of(rest), tg_array_of(g), false));
        TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, slice_of(c, rest, &e), 0));
        TG_TRY(tg_call_pass(c, 0, rest));
    }
    tg_array part = slice_of(c, g, &e);
    return tg_op_pass_view(c, 1, g, p->start * g->stride[p->dim], part.ndim, part.shape, part.stride);
}

static tg_status slice_scatter_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    const slice_params *p = tg_node_params(n);
    tg_tensor *g = gout[0], *src = tg_node_in(n)[1];
    if (tg_node_needs_grad(n, 0))
        gin[0] = tg_slice_scatter(t, g, tg_zeros_like(t, src), p->dim, p->start, p->stop, p->step);
    if (tg_node_needs_grad(n, 1)) gin[1] = tg_slice(t, g, p->dim, p->start, p->stop, p->step);
    return TG_OK;
}

static const tg_sample slice_scatter_samples[] = {
    {.note = "rows", .params = &(const slice_params){0, 1, 3, 1}, .n_in = 2, .input = {TG_S(4, 3), TG_S(2, 3)}},
    {.note = "step", .params = &(const slice_params){1, 0, 5, 2}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 5), TG_S(2, 3)}},
    {.note = "from the end", .params = &(const slice_params){-1, -3, INT64_MAX, 1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5), TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 3)}},
    {.note = "expanded", .params = &(const slice_params){1, 1, 3, 1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5), TG_S_AS(TG_SAMPLE_EXPANDED, 3, 2)}},
    {.note = "all", .params = &(const slice_params){0, 0, INT64_MAX, 1}, .n_in = 2, .input = {TG_S(1), TG_S(1)}},
    {.note = "nothing", .params = &(const slice_params){0, 2, 2, 1}, .n_in = 2, .input = {TG_S(3, 2), TG_S(0, 2)}},
    {.note = "bools", .params = &(const slice_params){0, 0, 2, 1}, .n_in = 2, .input = {TG_S_BOOL(3), TG_S_BOOL(2)}},
    {.note = "src too long", .params = &(const slice_params){0, 0, 2, 1}, .n_in = 2, .input = {TG_S(3), TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "past the end", .params = &(const slice_params){0, 0, 4, 1}, .n_in = 2, .input = {TG_S(3), TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "other dtypes", .params = &(const slice_params){0, 0, 2, 1}, .n_in = 2,
     .input = {TG_S(3), TG_S_INDEX(3, 2)}, .refused = TG_ERR_DTYPE},
    {.note = "big", .params = &(const slice_params){1, 0, 512, 1}, .n_in = 2,
     .input = {TG_S(1024, 1024), TG_S(1024, 512)}, .bench = true},
};

const tg_op tg_op_slice_scatter = {
    .size = sizeof(tg_op), .name = "slice_scatter", .formula = "x with src in place of x[.., start:stop:step, ..]",
    .inputs = "x src", .n_in = 2, .n_out = 1, .params_size = sizeof(slice_params), .passes = 3,
    .family = TG_FAMILY_CUSTOM, .infer = slice_scatter_infer, .forward = slice_scatter_forward,
    .backward = slice_scatter_backward, .vjp = slice_scatter_vjp, .jvp = tg_jvp_linear, TG_FIELDS(slice_fields),
    .preset = &(const slice_params){.stop = INT64_MAX, .step = 1}, TG_SAMPLES(slice_scatter_samples)};

/* Returns a copy of x in which src replaces the elements that tg_slice would return. */
tg_tensor *tg_slice_scatter(tg_tape *t, tg_tensor *x, tg_tensor *src, int dim, int64_t start, int64_t stop,
                            int64_t step) {
    return TG_RECORD(t, tg_op_slice_scatter, (&(slice_params){dim, start, stop, step}), x, src);
}

static tg_status select_scatter_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                        const void *site) {
    const select_params *p = params;
    const tg_tensor *x = in[0];
    int dim = p->dim < 0 ? p->dim + x->ndim : p->dim;
    bool found = dim >= 0 && dim < x->ndim && in[1]->ndim == x->ndim - 1;
    int64_t size = found ? x->shape[dim] : 0, i = p->index < 0 ? p->index + size : p->index;
    (void)site;
    if (i < 0 || i >= size)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "select_scatter: dim %d and index %lld do not select a part of x with the "
                       "dims of src", p->dim, (long long)p->index);
    out[0] = tg_slice_scatter(t, in[0], tg_unsqueeze(t, in[1], dim), dim, i, i + 1, 1);
    return t->ctx->run.status;
}

static const tg_sample select_scatter_samples[] = {
    {.note = "row", .params = &(const select_params){0, 1}, .n_in = 2, .input = {TG_S(3, 4), TG_S(4)}},
    {.note = "last column", .params = &(const select_params){-1, -1}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S(3)}},
    {.note = "middle", .params = &(const select_params){1, 2}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S(2, 4)}},
    {.note = "a scalar", .params = &(const select_params){0, 0}, .n_in = 2, .input = {TG_S(1), TG_S_SCALAR}},
    {.note = "past the end", .params = &(const select_params){0, 3}, .n_in = 2, .input = {TG_S(3), TG_S_SCALAR},
     .refused = TG_ERR_SHAPE},
    {.note = "before the start", .params = &(const select_params){0, -4}, .n_in = 2,
     .input = {TG_S(3), TG_S_SCALAR}, .refused = TG_ERR_SHAPE},
    {.note = "no such dim", .params = &(const select_params){2, 0}, .n_in = 2, .input = {TG_S(3, 2), TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const select_params){1, 5}, .n_in = 2, .input = {TG_S(1024, 16, 64), TG_S(1024, 64)},
     .bench = true},
};

const tg_op tg_op_select_scatter = {
    .size = sizeof(tg_op), .name = "select_scatter", .formula = "x with src in place of x[.., index, ..]",
    .inputs = "x src", .n_in = 2, .n_out = 1, .params_size = sizeof(select_params),
    .compose = select_scatter_compose, TG_FIELDS(select_fields), TG_SAMPLES(select_scatter_samples)};

/* Returns a copy of x in which src replaces the elements that tg_select would return. */
tg_tensor *tg_select_scatter(tg_tape *t, tg_tensor *x, tg_tensor *src, int dim, int64_t index) {
    return TG_RECORD(t, tg_op_select_scatter, (&(select_params){dim, index}), x, src);
}
