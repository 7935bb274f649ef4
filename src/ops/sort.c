/* Ordering elements along a dim: sort, topk, argsort and median. They return elements and, as int64, their original
 * positions, to which the gradients go; argsort returns the positions alone. */
#include "ops/common/derive.h"
#include "ops/common/reduce.h"

enum { VALUES, POSITIONS, OUTPUTS };

typedef struct sort_params {
    int dim;
    int64_t k;    /* of topk: the number of elements */
    bool falling; /* of sort, topk and argsort: descending order */
    bool keepdim; /* of median */
} sort_params;

static const sort_params *params_of(const tg_call *c) { return c->params; }

/* Fails if the device has no slot sort, because sorting cannot be composed of the other slots. */
static tg_status need_sort(tg_call *c) {
    if (tg_ctx_ops(c->ctx)->sort) return TG_OK;
    return tg_call_fail(c, TG_ERR_UNSUPPORTED, "device %s has no sort", tg_ctx_ops(c->ctx)->name);
}

static tg_status order_infer(tg_call *c, int64_t k) {
    const tg_tensor *x = c->input[0];
    int dim = params_of(c)->dim;
    int64_t shape[TG_MAX_DIMS];
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[dim] = k;
    c->dims = 1u << dim;
    TG_TRY(need_sort(c));
    TG_TRY(tg_call_out(c, VALUES, (tg_dtype)x->dtype, x->ndim, shape));
    return tg_call_out(c, POSITIONS, TG_I64, x->ndim, shape);
}

static tg_status order_run(tg_call *c, const tg_tensor *values, const tg_tensor *positions, bool falling) {
    int dim = params_of(c)->dim;
    tg_extent ex, ey, ep;
    if (values->numel == 0) return TG_OK;
    tg_array x = tg_array_last(tg_array_of(c->input[0]), dim, &ex), y = tg_array_last(tg_array_of(values), dim, &ey);
    return tg_ctx_ops(c->ctx)->sort(c->ctx, y, tg_array_last(tg_array_of(positions), dim, &ep), x, falling);
}

static tg_status order_forward(tg_call *c) {
    return order_run(c, c->out[VALUES], c->out[POSITIONS], params_of(c)->falling);
}

/* Returns the array of r, an output or its gradient. If a median has removed the dim, the array has it, with size 1. */
static tg_array with_dim(const tg_call *c, const tg_tensor *r, tg_extent *e) {
    int ndim = c->input[0]->ndim;
    return r->ndim == ndim ? tg_array_of(r) : tg_array_keep(tg_array_of(r), ndim, 1u << params_of(c)->dim, e);
}

/* Adds each gradient at the original position of its element. No position occurs twice. */
static tg_status order_backward(tg_call *c) {
    tg_extent eg, ep;
    tg_array g = with_dim(c, c->gout[VALUES], &eg), positions = with_dim(c, c->out[POSITIONS], &ep);
    TG_TRY(tg_op_zero(c, 0));
    return tg_ctx_ops(c->ctx)->put_add(c->ctx, tg_array_of(c->gin[0]), g, positions, params_of(c)->dim, NULL);
}

/* Records r with the dim restored that a median has removed. Returns r itself if no dim was removed. */
static tg_tensor *unsqueezed(tg_tape *t, const tg_node *n, tg_tensor *r) {
    bool went = tg_node_out(n)[POSITIONS]->ndim < tg_node_in(n)[0]->ndim;
    return went ? tg_unsqueeze(t, r, ((const sort_params *)tg_node_params(n))->dim) : r;
}

static tg_status order_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    int dim = ((const sort_params *)tg_node_params(n))->dim;
    tg_tensor *positions = unsqueezed(t, n, tg_node_out(n)[POSITIONS]);
    if (!gout[VALUES]) return TG_OK;
    gin[0] = tg_scatter_add(t, tg_zeros_like(t, tg_node_in(n)[0]), dim, positions, unsqueezed(t, n, gout[VALUES]));
    return TG_OK;
}

static tg_status order_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    int dim = ((const sort_params *)tg_node_params(n))->dim;
    tg_tensor *positions = tg_node_out(n)[POSITIONS], *d;
    if (!din[0]) return TG_OK;
    d = tg_gather(t, din[0], dim, unsqueezed(t, n, positions));
    dout[VALUES] = positions->ndim < tg_node_in(n)[0]->ndim ? tg_squeeze(t, d, dim) : d;
    return TG_OK;
}

static tg_tensor *record(tg_tape *t, const tg_op *op, const sort_params *p, tg_tensor *x, tg_tensor **index,
                         const void *site) {
    tg_tensor *out[OUTPUTS];
    tg_apply(t, op, p, &x, 1, out, OUTPUTS, NULL, NULL, site);
    if (index) *index = out[POSITIONS];
    return out[VALUES];
}

#define BY(dim_, ...) &(const sort_params){.dim = (dim_), __VA_ARGS__}
#define ORDER_SAMPLES(...)                                                                                             \
    {.note = "rows", .params = BY(-1, __VA_ARGS__), .n_in = 1, .input = {TG_S(3, 5)}},                                 \
    {.note = "first dim", .params = BY(0, __VA_ARGS__), .n_in = 1, .input = {TG_S(6, 3)}},                             \
    {.note = "middle dim", .params = BY(1, __VA_ARGS__), .n_in = 1, .input = {TG_S(2, 5, 3)}},                         \
    {.note = "transposed", .params = BY(-1, __VA_ARGS__), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 4,     \
                                                                                       3)}},                           \
    {.note = "strided", .params = BY(-2, __VA_ARGS__), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},        \
    {.note = "expanded", .params = BY(1, __VA_ARGS__), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},       \
    {.note = "integers, ties", .params = BY(1, __VA_ARGS__), .n_in = 1, .input = {TG_S_INDEX(3, 2, 9)}},               \
    {.note = "bools", .params = BY(0, __VA_ARGS__), .n_in = 1, .input = {TG_S_BOOL(7)}},                               \
    {.note = "no rows", .params = BY(1, __VA_ARGS__), .n_in = 1, .input = {TG_S(0, 4)}},                               \
    {.note = "long rows", .params = BY(1, __VA_ARGS__), .n_in = 1, .input = {TG_S(2, 100)}},                           \
    {.note = "no such dim", .params = BY(2, __VA_ARGS__), .n_in = 1, .input = {TG_S(2, 3)}, .refused = TG_ERR_SHAPE},  \
    {.note = "scalar", .params = BY(0, __VA_ARGS__), .n_in = 1, .input = {TG_S_SCALAR}, .refused = TG_ERR_SHAPE},      \
    {.note = "big", .params = BY(-1, __VA_ARGS__), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true}

/* ---- sort ---- */

static tg_status sort_infer(tg_call *c) {
    sort_params *p = c->params;
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    return order_infer(c, c->input[0]->shape[p->dim]);
}

static const tg_sample sort_samples[] = {
    ORDER_SAMPLES(.falling = false),
    {.note = "falling", .params = BY(1, .falling = true), .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "falling, ties", .params = BY(0, .falling = true), .n_in = 1, .input = {TG_S_INDEX(3, 40, 2)}},
    {.note = "size 1", .params = BY(0, .falling = false), .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty rows", .params = BY(1, .falling = false), .n_in = 1, .input = {TG_S(3, 0)}},
};

static const tg_field sort_fields[] = {
    TG_ARG(sort_params, dim, INT, "Dim of x; a negative number counts from the end."),
    TG_ARG_AS(sort_params, falling, "descending", BOOL, "Descending order."),
};

const tg_op tg_op_sort = {
    .size = sizeof(tg_op), .name = "sort", .formula = "x in order along a dim, and the original positions",
    .inputs = "x", .outputs = "y index", .n_in = 1, .n_out = OUTPUTS, .params_size = sizeof(sort_params),
    .saves_out = 1u << POSITIONS, .family = TG_FAMILY_SOFTMAX, .sums_f32 = true, .infer = sort_infer,
    .forward = order_forward, .backward = order_backward, .vjp = order_vjp, .jvp = order_jvp, TG_FIELDS(sort_fields),
    .preset = BY(-1, .falling = false), TG_SAMPLES(sort_samples)};

/* Returns x sorted along dim, in ascending order or, if descending is true, in descending order. If index is not NULL,
 * *index receives the original position of each element as int64. Equal elements keep their order, and NaN is greater
 * than any number. Fails with TG_ERR_UNSUPPORTED on a device that has no sort. */
tg_tensor *tg_sort(tg_tape *t, tg_tensor *x, int dim, bool descending, tg_tensor **index) {
    return record(t, &tg_op_sort, BY(dim, .falling = descending), x, index, TG_SITE);
}

/* ---- topk ---- */

static tg_status topk_infer(tg_call *c) {
    sort_params *p = c->params;
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    int64_t n = c->input[0]->shape[p->dim];
    if (p->k < 0) return tg_call_fail(c, TG_ERR_ARGUMENT, "k is %lld; it must be 0 or more", (long long)p->k);
    if (p->k > n)
        return tg_call_fail(c, TG_ERR_SHAPE, "k is %lld; it must be at most %lld, the size of dim %d", (long long)p->k,
                            (long long)n, p->dim);
    return order_infer(c, p->k);
}

static const tg_sample topk_samples[] = {
    ORDER_SAMPLES(.k = 2, .falling = true),
    {.note = "the smallest", .params = BY(1, .k = 3), .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "few of many", .params = BY(1, .k = 5, .falling = true), .n_in = 1, .input = {TG_S(2, 200)}},
    {.note = "few of many ties", .params = BY(1, .k = 12), .n_in = 1, .input = {TG_S_INDEX(5, 2, 200)}},
    {.note = "all", .params = BY(0, .k = 4, .falling = true), .n_in = 1, .input = {TG_S(4, 2)}},
    {.note = "none", .params = BY(0, .k = 0), .n_in = 1, .input = {TG_S(4, 2)}},
    {.note = "size 1", .params = BY(0, .k = 1), .n_in = 1, .input = {TG_S(1)}},
    {.note = "k too large", .params = BY(0, .k = 4), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "negative k", .params = BY(0, .k = -1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
};

static const tg_field topk_fields[] = {
    TG_ARG(sort_params, k, INT64, "Number of elements.", .required = true),
    TG_ARG(sort_params, dim, INT, "Dim of x; a negative number counts from the end."),
    TG_ARG_AS(sort_params, falling, "largest", BOOL, "The largest elements instead of the smallest."),
};

const tg_op tg_op_topk = {
    .size = sizeof(tg_op), .name = "topk", .formula = "the k greatest of x along a dim, and their positions",
    .inputs = "x", .outputs = "y index", .n_in = 1, .n_out = OUTPUTS, .params_size = sizeof(sort_params),
    .saves_out = 1u << POSITIONS, .family = TG_FAMILY_SOFTMAX, .sums_f32 = true, .infer = topk_infer,
    .forward = order_forward, .backward = order_backward, .vjp = order_vjp, .jvp = order_jvp, TG_FIELDS(topk_fields),
    .preset = BY(-1, .falling = true), TG_SAMPLES(topk_samples)};

/* Returns the k greatest elements along dim in descending order or, if largest is false, the k smallest in ascending
 * order. If index is not NULL, *index receives their original positions as int64. Equal elements are taken in their
 * order, and NaN is greater than any number. Fails with TG_ERR_UNSUPPORTED on a device that has no sort. */
tg_tensor *tg_topk(tg_tape *t, tg_tensor *x, int64_t k, int dim, bool largest, tg_tensor **index) {
    return record(t, &tg_op_topk, BY(dim, .k = k, .falling = largest), x, index, TG_SITE);
}

/* ---- argsort ---- */

static tg_status argsort_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                 const void *site) {
    const sort_params *p = params;
    (void)site;
    tg_sort(t, in[0], p->dim, p->falling, out);
    return t->ctx->run.status;
}

static const tg_sample argsort_samples[] = {
    {.note = "ties", .params = BY(1, .falling = false), .n_in = 1, .input = {TG_S_INDEX(5, 3, 20)}},
    {.note = "descending", .params = BY(-1, .falling = true), .n_in = 1, .input = {TG_S(3, 7)}},
    {.note = "columns", .params = BY(0, .falling = false), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 3)}},
    {.note = "strided", .params = BY(1, .falling = false), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "empty", .params = BY(1, .falling = false), .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "no such dim", .params = BY(2, .falling = false), .n_in = 1, .input = {TG_S(3, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = BY(-1, .falling = false), .n_in = 1, .input = {TG_S(256, 1024)}, .bench = true},
};

const tg_op tg_op_argsort = {
    .size = sizeof(tg_op), .name = "argsort", .formula = "the positions of the sorted elements of x along a dim",
    .inputs = "x", .n_in = 1, .n_out = 1, .params_size = sizeof(sort_params), .compose = argsort_compose,
    TG_FIELDS(sort_fields), .preset = BY(-1, .falling = false), TG_SAMPLES(argsort_samples)};

/* Returns the index of tg_sort. */
tg_tensor *tg_argsort(tg_tape *t, tg_tensor *x, int dim, bool descending) {
    return TG_RECORD(t, tg_op_argsort, BY(dim, .falling = descending), x);
}

/* ---- median ---- */

static tg_status median_infer(tg_call *c) {
    sort_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    c->dims = 1u << p->dim;
    int n = tg_reduce_shape(x, c->dims, p->keepdim, shape);
    TG_TRY(need_sort(c));
    TG_TRY(tg_call_out(c, VALUES, (tg_dtype)x->dtype, n, shape));
    TG_TRY(tg_call_out(c, POSITIONS, TG_I64, n, shape));
    if (c->out[VALUES]->numel == 0 || x->shape[p->dim] > 0) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "dim %d has no elements, so there is no median", p->dim);
}

/* out = f(in...), for arrays of x's shape with size 1 in the dim. */
static tg_status map(tg_call *c, tg_formula f, tg_array out, const tg_array *in, int n) {
    return tg_ctx_ops(c->ctx)->apply(c->ctx, f, out, in, n, (const double[2]){0}, false);
}

/* If there is a NaN along the dim, makes the first NaN the median. It is what TG_MAX and TG_ARGMAX find, because there
 * NaN wins over any number. */
static tg_status prefer_nan(tg_call *c, tg_array y, tg_array positions) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_array x = tg_array_of(c->input[0]);
    tg_array nan = tg_array_of(tg_call_temp(c, TG_BOOL, y.ndim, y.shape));
    tg_array most = tg_array_of(tg_call_temp(c, (tg_dtype)y.dtype, y.ndim, y.shape));
    tg_array first = tg_array_of(tg_call_temp(c, TG_I64, y.ndim, y.shape));
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->reduce(c->ctx, TG_MAX, most, x, 1, false));
    TG_TRY(ops->reduce(c->ctx, TG_ARGMAX, first, x, 1, false));
    TG_TRY(map(c, TG_FN_ne, nan, (const tg_array[]){most, most}, 2));
    TG_TRY(map(c, TG_FN_where, y, (const tg_array[]){nan, most, y}, 3));
    return map(c, TG_FN_where, positions, (const tg_array[]){nan, first, positions}, 3);
}

static tg_status median_forward(tg_call *c) {
    const tg_tensor *x = c->input[0];
    int dim = params_of(c)->dim;
    int64_t shape[TG_MAX_DIMS], half = (x->shape[dim] + 1) / 2;
    tg_extent ey, ep, e;
    if (c->out[VALUES]->numel == 0) return TG_OK;
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[dim] = half;
    tg_tensor *low = tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, shape), *at = tg_call_temp(c, TG_I64, x->ndim, shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(order_run(c, low, at, false));
    tg_array y = with_dim(c, c->out[VALUES], &ey), positions = with_dim(c, c->out[POSITIONS], &ep);
    TG_TRY(tg_op_copy(c, y, tg_array_slice(tg_array_of(low), dim, half - 1, 1, 1, &e), false));
    TG_TRY(tg_op_copy(c, positions, tg_array_slice(tg_array_of(at), dim, half - 1, 1, 1, &e), false));
    return tg_is_float((tg_dtype)x->dtype) ? prefer_nan(c, y, positions) : TG_OK;
}

static const tg_sample median_samples[] = {
    ORDER_SAMPLES(.keepdim = false),
    {.note = "kept", .params = BY(0, .keepdim = true), .n_in = 1, .input = {TG_S(4, 3)}},
    {.note = "of a vector", .params = BY(0, .keepdim = false), .n_in = 1, .input = {TG_S(8)}},
    {.note = "size 1", .params = BY(0, .keepdim = false), .n_in = 1, .input = {TG_S(1)}},
    {.note = "no elements", .params = BY(1, .keepdim = false), .n_in = 1, .input = {TG_S(3, 0)},
     .refused = TG_ERR_SHAPE},
};

static const tg_field median_fields[] = {
    TG_ARG(sort_params, dim, INT, "Dim of x; a negative number counts from the end."),
    TG_ARG(sort_params, keepdim, BOOL, "Dim stays, with size 1."),
};

const tg_op tg_op_median = {
    .size = sizeof(tg_op), .name = "median", .formula = "the lower median of x along a dim, and its position",
    .inputs = "x",
    .outputs = "y index", .n_in = 1, .n_out = OUTPUTS, .params_size = sizeof(sort_params), .saves_out = 1u << POSITIONS,
    .family = TG_FAMILY_REDUCE, .sums_f32 = true, .infer = median_infer, .forward = median_forward,
    .backward = order_backward, .vjp = order_vjp, .jvp = order_jvp, TG_FIELDS(median_fields),
    .preset = BY(-1, .keepdim = false), TG_SAMPLES(median_samples)};

/* Returns the median along dim: the middle element in ascending order, or the lower of the two middle ones if the
 * number of elements is even. If there is a NaN, returns the first NaN. If index is not NULL, *index receives the
 * position as int64; among equal elements, it is the position of the one that a stable sort puts in the middle. The
 * gradient goes to that one element. Fails with TG_ERR_UNSUPPORTED on a device that has no sort. */
tg_tensor *tg_median(tg_tape *t, tg_tensor *x, int dim, bool keepdim, tg_tensor **index) {
    return record(t, &tg_op_median, BY(dim, .keepdim = keepdim), x, index, TG_SITE);
}
