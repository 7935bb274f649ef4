/* Ops that reorder or repeat elements: flip, roll, repeat and unfold. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

#define LIST(...) {.n = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .dim = {__VA_ARGS__}}

/* States that every dim except those in mask may be sharded (tg_call_role). */
static tg_status declare_free(tg_call *c, uint32_t mask) {
    for (int d = 0; d < c->input[0]->ndim; d++)
        if (!(mask >> d & 1)) TG_TRY(tg_call_role(c, 0, d, d));
    return TG_OK;
}

/* ---- flip ---- */

typedef struct flip_params {
    tg_dims dims;
    uint32_t mask; /* bit mask of dims, filled by infer */
} flip_params;

static tg_status flip_infer(tg_call *c) {
    flip_params *p = c->params;
    TG_TRY(tg_need_dims(c, 0, p->dims, &p->mask));
    TG_TRY(declare_free(c, p->mask));
    return tg_infer_same(c);
}

/* Reads the source backward and writes the destination forward, because kernels choose their loop order by the strides
 * of the destination. */
static tg_status flip_copy(tg_call *c, const tg_tensor *to, const tg_tensor *from, bool add) {
    uint32_t mask = ((const flip_params *)c->params)->mask;
    int64_t stride[TG_MAX_DIMS], offset = 0;
    for (int d = 0; d < from->ndim; d++) {
        bool reversed = mask >> d & 1 && from->shape[d] > 1;
        stride[d] = reversed ? -from->stride[d] : from->stride[d];
        if (reversed) offset += (from->shape[d] - 1) * from->stride[d];
    }
    if (from->numel == 0) return TG_OK;
    return tg_op_copy(c, tg_array_of(to), tg_array_at(tg_array_of(from), offset, from->ndim, from->shape, stride), add);
}

static tg_status flip_forward(tg_call *c) { return flip_copy(c, c->out[0], c->input[0], false); }

static tg_status flip_backward(tg_call *c) { return flip_copy(c, c->gin[0], c->gout[0], tg_adds(c, 0)); }

TG_VJP(flip_vjp, tg_flip(t, g, ((const flip_params *)tg_node_params(n))->dims))

#define FLIP(...) &(const flip_params){.dims = LIST(__VA_ARGS__)}
static const tg_sample flip_samples[] = {
    {.note = "columns", .params = FLIP(1), .n_in = 1, .input = {TG_S(2, 5)}},
    {.note = "both dims", .params = &(const flip_params){.dims = {.n = -1}}, .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "outer two", .params = FLIP(0, -2), .n_in = 1, .input = {TG_S(2, 3, 4)}},
    {.note = "outer and inner, of long rows", .params = FLIP(2, 0), .n_in = 1, .input = {TG_S(3, 2, 37)}},
    {.note = "transposed", .params = FLIP(0), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 9, 11)}},
    {.note = "strided", .params = FLIP(1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 18)}},
    {.note = "expanded", .params = FLIP(0, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "no dims: as it is", .params = &(const flip_params){.dims = {.n = 0}}, .n_in = 1, .input = {TG_S(3)}},
    {.note = "integers", .params = FLIP(0), .n_in = 1, .input = {TG_S_INDEX(9, 21)}},
    {.note = "size 1", .params = FLIP(0), .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = FLIP(1), .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "a dim twice", .params = FLIP(0, -2), .n_in = 1, .input = {TG_S(3, 5)}, .refused = TG_ERR_SHAPE},
    {.note = "no such dim", .params = FLIP(1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = FLIP(1), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};
#undef FLIP

static const tg_field flip_fields[] = {
    TG_ARG(flip_params, dims, DIMS, "The dims whose order is reversed.", .required = true),
};

const tg_op tg_op_flip = {
    .size = sizeof(tg_op), .name = "flip", .formula = "x backwards along dims", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(flip_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true, .moves = true, .infer = flip_infer,
    .forward = flip_forward, .backward = flip_backward, .vjp = flip_vjp, .jvp = tg_jvp_linear, TG_FIELDS(flip_fields),
    TG_SAMPLES(flip_samples)};

/* Returns a copy of x with the order of its elements reversed along each of dims. */
tg_tensor *tg_flip(tg_tape *t, tg_tensor *x, tg_dims dims) {
    return TG_RECORD(t, tg_op_flip, &(flip_params){.dims = dims}, x);
}

/* ---- roll ---- */

typedef struct roll_params {
    int dim;
    int64_t shift; /* infer reduces it to [0, size) */
} roll_params;

static tg_status roll_infer(tg_call *c) {
    roll_params *p = c->params;
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    int64_t n = c->input[0]->shape[p->dim];
    p->shift = n ? p->shift % n : 0;
    if (p->shift < 0) p->shift += n;
    TG_TRY(declare_free(c, 1u << p->dim));
    return tg_infer_same(c);
}

/* Along dim, which has n elements: copies the last `shift` elements of `from` to the front of `to`, and the others
 * after them. */
static tg_status roll_copy(tg_call *c, const tg_tensor *to, const tg_tensor *from, int64_t shift, bool add) {
    int dim = ((const roll_params *)c->params)->dim;
    int64_t n = from->shape[dim];
    tg_array x = tg_array_of(from), y = tg_array_of(to);
    tg_extent a, b;
    TG_TRY(tg_op_copy(c, tg_array_slice(y, dim, shift, n - shift, 1, &b), tg_array_slice(x, dim, 0, n - shift, 1, &a),
                      add));
    if (shift == 0) return TG_OK;
    return tg_op_copy(c, tg_array_slice(y, dim, 0, shift, 1, &b), tg_array_slice(x, dim, n - shift, shift, 1, &a), add);
}

static tg_status roll_forward(tg_call *c) {
    return roll_copy(c, c->out[0], c->input[0], ((const roll_params *)c->params)->shift, false);
}

static tg_status roll_backward(tg_call *c) {
    const roll_params *p = c->params;
    int64_t back = p->shift ? c->out[0]->shape[p->dim] - p->shift : 0;
    return roll_copy(c, c->gin[0], c->gout[0], back, tg_adds(c, 0));
}

static tg_tensor *roll_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const roll_params *p = tg_node_params(n);
    return tg_roll(t, g, -p->shift, p->dim);
}

TG_VJP(roll_vjp, roll_back(t, n, g))

static const tg_sample roll_samples[] = {
    {.note = "columns", .params = &(const roll_params){1, 2}, .n_in = 1, .input = {TG_S(2, 5)}},
    {.note = "rows, backwards", .params = &(const roll_params){0, -1}, .n_in = 1, .input = {TG_S(4, 3)}},
    {.note = "more than once around", .params = &(const roll_params){-1, 17}, .n_in = 1, .input = {TG_S(2, 3, 5)}},
    {.note = "all the way: as it is", .params = &(const roll_params){0, -6}, .n_in = 1, .input = {TG_S(3, 2)}},
    {.note = "transposed", .params = &(const roll_params){0, 1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .params = &(const roll_params){1, 3}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "expanded", .params = &(const roll_params){1, 1}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "integers", .params = &(const roll_params){0, 1}, .n_in = 1, .input = {TG_S_INDEX(9, 5)}},
    {.note = "size 1", .params = &(const roll_params){0, 5}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const roll_params){0, 1}, .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "least shift", .params = &(const roll_params){0, INT64_MIN}, .n_in = 1, .input = {TG_S(3)}},
    {.note = "no such dim", .params = &(const roll_params){1, 1}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "scalar", .params = &(const roll_params){0, 1}, .n_in = 1, .input = {TG_S_SCALAR},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const roll_params){1, 100}, .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field roll_fields[] = {
    TG_ARG(roll_params, shift, INT64, "By how many positions elements move toward the end.", .required = true),
    TG_ARG(roll_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
};

const tg_op tg_op_roll = {
    .size = sizeof(tg_op), .name = "roll", .formula = "y[.., (i + shift) mod n, ..] = x[.., i, ..]", .inputs = "x",
    .n_in = 1, .n_out = 1, .params_size = sizeof(roll_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .infer = roll_infer, .forward = roll_forward, .backward = roll_backward, .vjp = roll_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(roll_fields), TG_SAMPLES(roll_samples)};

/* Returns x shifted by `shift` places along dim, toward the end if shift is positive. Elements that leave at one end
 * enter at the other. */
tg_tensor *tg_roll(tg_tape *t, tg_tensor *x, int64_t shift, int dim) {
    return TG_RECORD(t, tg_op_roll, (&(roll_params){dim, shift}), x);
}

/* ---- repeat ---- */

typedef struct repeat_params {
    int dim;
    int64_t times;
} repeat_params;

static tg_status repeat_infer(tg_call *c) {
    repeat_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    if (x->ndim == TG_MAX_DIMS) return tg_call_fail(c, TG_ERR_SHAPE, "x already has %d dims, the most that are "
                                                    "allowed; repeat needs one more internally", TG_MAX_DIMS);
    if (p->times < 0) return tg_call_fail(c, TG_ERR_ARGUMENT, "times is %lld; it must be 0 or more",
                                          (long long)p->times);
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    if (__builtin_mul_overflow(shape[p->dim], p->times, &shape[p->dim]))
        return tg_call_fail(c, TG_ERR_SHAPE, "the new size of dim %d overflows 64 bits", p->dim);
    TG_TRY(declare_free(c, 1u << p->dim));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

/* Views y, the result or its gradient, with dim split into two: [times, size of x]. */
static tg_array split_repeats(const tg_call *c, const tg_tensor *y, tg_extent *e) {
    const repeat_params *p = c->params;
    int64_t n = c->input[0]->shape[p->dim];
    for (int d = 0; d <= y->ndim; d++) {
        int from = d - (d > p->dim);
        e->shape[d] = d == p->dim ? p->times : d == p->dim + 1 ? n : y->shape[from];
        e->stride[d] = d == p->dim ? n * y->stride[from] : y->stride[from];
    }
    return tg_array_at(tg_array_of(y), 0, y->ndim + 1, e->shape, e->stride);
}

/* Views x, or its gradient, with a dim of size 1 inserted before dim, which broadcasts against split_repeats. */
static tg_array with_repeat_dim(const tg_call *c, const tg_tensor *x, tg_extent *e) {
    return tg_array_keep(tg_array_of(x), x->ndim + 1, 1u << ((const repeat_params *)c->params)->dim, e);
}

static tg_status repeat_forward(tg_call *c) {
    tg_extent e, one;
    int64_t stride[TG_MAX_DIMS];
    tg_array y = split_repeats(c, c->out[0], &e);
    return tg_op_copy(c, y, tg_array_expand(with_repeat_dim(c, c->input[0], &one), y.ndim, y.shape, stride), false);
}

static tg_status repeat_backward(tg_call *c) {
    tg_extent e, one;
    tg_array g = split_repeats(c, c->gout[0], &e);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, with_repeat_dim(c, c->gin[0], &one), g, 1, tg_adds(c, 0));
}

static tg_tensor *repeat_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const repeat_params *p = tg_node_params(n);
    const tg_tensor *x = tg_node_in(n)[0];
    tg_shape shape = {.ndim = x->ndim + 1};
    for (int d = 0; d < shape.ndim; d++)
        shape.dim[d] = d == p->dim ? p->times : x->shape[d - (d > p->dim)];
    return tg_sum(t, tg_reshape(t, g, shape), TG_DIMS(p->dim), false);
}

TG_VJP(repeat_vjp, repeat_back(t, n, g))

static const tg_sample repeat_samples[] = {
    {.note = "rows", .params = &(const repeat_params){0, 3}, .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "columns", .params = &(const repeat_params){-1, 2}, .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "middle", .params = &(const repeat_params){1, 4}, .n_in = 1, .input = {TG_S(2, 3, 2)}},
    {.note = "transposed", .params = &(const repeat_params){1, 2}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .params = &(const repeat_params){0, 2}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "expanded", .params = &(const repeat_params){0, 2}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3,
                                                                                              4)}},
    {.note = "once", .params = &(const repeat_params){0, 1}, .n_in = 1, .input = {TG_S(3, 2)}},
    {.note = "integers", .params = &(const repeat_params){0, 3}, .n_in = 1, .input = {TG_S_INDEX(9, 2)}},
    {.note = "size 1", .params = &(const repeat_params){0, 5}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "never", .params = &(const repeat_params){0, 0}, .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "empty", .params = &(const repeat_params){1, 3}, .n_in = 1, .input = {TG_S(2, 0)}},
    {.note = "less than never", .params = &(const repeat_params){0, -1}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "overflow", .params = &(const repeat_params){0, INT64_MAX}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "too many dims", .params = &(const repeat_params){0, 2}, .n_in = 1, .input = {TG_S(1, 1, 1, 1, 1, 1, 1,
                                                                                                2)},
     .refused = TG_ERR_SHAPE},
    {.note = "scalar", .params = &(const repeat_params){0, 2}, .n_in = 1, .input = {TG_S_SCALAR},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const repeat_params){1, 4}, .n_in = 1, .input = {TG_S(1024, 256)}, .bench = true},
};

static const tg_field repeat_fields[] = {
    TG_ARG(repeat_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG(repeat_params, times, INT64, "Number of copies.", .required = true),
};

const tg_op tg_op_repeat = {
    .size = sizeof(tg_op), .name = "repeat", .formula = "x several times, one after another along a dim", .inputs = "x",
    .n_in = 1, .n_out = 1, .params_size = sizeof(repeat_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .infer = repeat_infer, .forward = repeat_forward, .backward = repeat_backward, .vjp = repeat_vjp,
    .jvp = tg_jvp_linear, TG_FIELDS(repeat_fields), TG_SAMPLES(repeat_samples)};

/* Returns x repeated `times` times (0 or more) along dim: [.., times n, ..]. x has at most TG_MAX_DIMS - 1 dims. */
tg_tensor *tg_repeat(tg_tape *t, tg_tensor *x, int dim, int64_t times) {
    return TG_RECORD(t, tg_op_repeat, (&(repeat_params){dim, times}), x);
}

/* ---- unfold ---- */

typedef struct unfold_params {
    int dim;
    int64_t size, step;
} unfold_params;

static tg_status unfold_infer(tg_call *c) {
    unfold_params *p = c->params;
    const tg_tensor *x = c->input[0];
    tg_extent e;
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    int64_t n = x->shape[p->dim];
    if (x->ndim == TG_MAX_DIMS) return tg_call_fail(c, TG_ERR_SHAPE, "x already has %d dims, the most that are "
                                                    "allowed; unfold adds one", TG_MAX_DIMS);
    if (p->size < 1 || p->step < 1)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "size is %lld and step is %lld; both must be 1 or more",
                            (long long)p->size, (long long)p->step);
    if (p->size > n)
        return tg_call_fail(c, TG_ERR_SHAPE, "size is %lld, but dim %d has only %lld elements; a window must fit into "
                            "the dim", (long long)p->size, p->dim, (long long)n);
    memcpy(e.shape, x->shape, x->ndim * sizeof *x->shape);
    memcpy(e.stride, x->stride, x->ndim * sizeof *x->stride);
    e.shape[p->dim] = (n - p->size) / p->step + 1;
    /* With one window the step has no effect, but the stride computed from it could overflow. So a step of n replaces
     * it. That leaves one window, also if a derivative records the op again with these params. */
    if (e.shape[p->dim] == 1) p->step = n;
    e.stride[p->dim] *= p->step;
    e.shape[x->ndim] = p->size;
    e.stride[x->ndim] = x->stride[p->dim];
    TG_TRY(declare_free(c, 1u << p->dim));
    return tg_call_view(c, 0, 0, x->ndim + 1, e.shape, e.stride);
}

/* Adds the windows' gradients to the gradient of x in pieces. A piece has elements [j, j + step) of all windows. Within
 * a piece no element of x occurs twice, so one call of slot apply adds it. Pieces are added in the order of j. If
 * windows overlap, 16-bit gradients are summed in float32. */
static tg_status unfold_backward(tg_call *c) {
    const unfold_params *p = c->params;
    const tg_tensor *g = c->gout[0], *x = c->gin[0];
    int last = g->ndim - 1;
    tg_extent e, piece;
    bool wide = p->size > p->step && tg_dtype_size((tg_dtype)x->dtype) == 2;
    const tg_tensor *sum = wide ? tg_call_temp(c, TG_F32, x->ndim, x->shape) : x;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (wide || !tg_adds(c, 0)) TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(sum), 0));
    if (g->numel == 0) return TG_OK;
    memcpy(e.stride, sum->stride, (size_t)last * sizeof *e.stride);
    e.stride[p->dim] *= p->step;
    e.stride[last] = sum->stride[p->dim];
    for (int64_t j = 0; j < p->size; j += p->step) {
        int64_t n = p->size - j < p->step ? p->size - j : p->step;
        tg_array from = tg_array_slice(tg_array_of(g), last, j, n, 1, &piece);
        tg_array to = tg_array_at(tg_array_of(sum), j * sum->stride[p->dim], g->ndim, from.shape, e.stride);
        TG_TRY(tg_op_copy(c, to, from, true));
    }
    return wide ? tg_op_map(c, TG_FN_id, x, TG_T1(sum), 1, 0, 0, tg_adds(c, 0)) : TG_OK;
}

/* Records the gradient of x: adds g at the indices along dim that the windows' elements have in x. */
static tg_tensor *unfold_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const unfold_params *p = tg_node_params(n);
    const tg_tensor *x = tg_node_in(n)[0];
    int64_t windows = g->shape[p->dim];
    tg_dims order = {.n = g->ndim};
    for (int d = 0; d < g->ndim; d++) order.dim[d] = d <= p->dim ? d : d == p->dim + 1 ? g->ndim - 1 : d - 1;
    tg_shape line = tg_shape_kept(x), at = {.ndim = x->ndim};
    for (int d = 0; d < x->ndim; d++) at.dim[d] = 1;
    line.dim[p->dim] = at.dim[p->dim] = windows * p->size;
    tg_tensor *first = tg_arange(t, TG_I64, 0, (double)(windows * p->step), (double)p->step);
    tg_tensor *index = tg_add(t, tg_unsqueeze(t, first, 1), tg_arange(t, TG_I64, 0, (double)p->size, 1));
    return tg_scatter_add(t, tg_zeros_like(t, x), p->dim, tg_expand(t, tg_reshape(t, index, at), line),
                          tg_reshape(t, tg_permute(t, g, order), line));
}

TG_VJP(unfold_vjp, unfold_back(t, n, g))

static const tg_sample unfold_samples[] = {
    {.note = "overlapping", .params = &(const unfold_params){0, 3, 1}, .n_in = 1, .input = {TG_S(7)}},
    {.note = "middle, overlapping, not to the end", .params = &(const unfold_params){1, 3, 2}, .n_in = 1,
     .input = {TG_S(2, 8, 3)}},
    {.note = "side by side", .params = &(const unfold_params){-1, 2, 2}, .n_in = 1, .input = {TG_S(3, 7)}},
    {.note = "apart", .params = &(const unfold_params){0, 2, 3}, .n_in = 1, .input = {TG_S(9, 2)}},
    {.note = "transposed", .params = &(const unfold_params){0, 2, 1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3)}},
    {.note = "strided", .params = &(const unfold_params){1, 4, 1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 6)}},
    {.note = "expanded", .params = &(const unfold_params){1, 2, 1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "one window, a step past the end", .params = &(const unfold_params){0, 2, INT64_MAX}, .n_in = 1,
     .input = {TG_S(5, 2)}},
    {.note = "integers", .params = &(const unfold_params){0, 2, 1}, .n_in = 1, .input = {TG_S_INDEX(9, 5)}},
    {.note = "size 1", .params = &(const unfold_params){0, 1, 1}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const unfold_params){1, 2, 1}, .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "too large", .params = &(const unfold_params){0, 4, 1}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "step 0", .params = &(const unfold_params){0, 2, 0}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "of nothing", .params = &(const unfold_params){0, 0, 1}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "too many dims", .params = &(const unfold_params){7, 1, 1}, .n_in = 1,
     .input = {TG_S(1, 1, 1, 1, 1, 1, 1, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "scalar", .params = &(const unfold_params){0, 1, 1}, .n_in = 1, .input = {TG_S_SCALAR},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const unfold_params){1, 8, 4}, .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field unfold_fields[] = {
    TG_ARG(unfold_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG(unfold_params, size, INT64, "Number of elements of a window.", .required = true),
    TG_ARG(unfold_params, step, INT64, "Distance between the starts of windows.", .required = true),
};

const tg_op tg_op_unfold = {
    .size = sizeof(tg_op), .name = "unfold", .formula = "y[.., i, .., j] = x[.., i step + j, ..]", .inputs = "x",
    .n_in = 1, .n_out = 1, .params_size = sizeof(unfold_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .infer = unfold_infer, .backward = unfold_backward, .vjp = unfold_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(unfold_fields), TG_SAMPLES(unfold_samples)};

/* Returns a view of the windows of `size` elements along dim. Their starts are `step` apart, and only those that fit
 * are included: [.., (n - size) / step + 1, .., size]. */
tg_tensor *tg_unfold(tg_tape *t, tg_tensor *x, int dim, int64_t size, int64_t step) {
    return TG_RECORD(t, tg_op_unfold, (&(unfold_params){dim, size, step}), x);
}
