/* Average pooling into a given number of windows. Along a dim with n elements and m windows, window i has the elements
 * from floor(i n / m) to ceil((i + 1) n / m) - 1, as in PyTorch, so windows may overlap.
 *
 * Let g be the greatest common divisor of n and m. The windows i, i + m / g, i + 2 m / g, .. have the same size, and
 * their starts are n / g elements apart. Such a class of windows does not overlap itself, and is one strided view of x.
 * So one call of a kernel computes a whole class. The gradient of pooling spreads the windows' gradients over x, and
 * the gradient of spreading is pooling. So the same functions serve both. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

enum { SPATIAL = 3 }; /* the most dims that are pooled */

typedef struct adaptive_params {
    tg_shape size;          /* the numbers of windows along the dims from 2 on */
    bool back;              /* true: the op spreads windows over x; false: it pools x */
    int64_t input[SPATIAL]; /* sizes of x along these dims */
} adaptive_params;

static const adaptive_params *params(const tg_call *c) { return c->params; }

static tg_status check_sizes(tg_call *c) {
    adaptive_params *p = c->params;
    const tg_tensor *x = c->input[0];
    if (p->size.ndim < 1 || p->size.ndim > SPATIAL || x->ndim != p->size.ndim + 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "size has %s; x must be [n, c, ..] with as many dims after c, 1 to %d",
                            tg_count(p->size.ndim, "number").text, SPATIAL);
    for (int d = 0; d < p->size.ndim; d++) {
        p->input[d] = x->shape[d + 2];
        if (p->size.dim[d] < 0 || p->size.dim[d] > INT32_MAX || (p->size.dim[d] && !p->input[d]))
            return tg_call_fail(c, TG_ERR_SHAPE,
                                "size[%d] is %lld, for a dim of %s; it must be 0 or more and below "
                                "2^31, and each window needs an element",
                                d, (long long)p->size.dim[d], tg_count(p->input[d], "element").text);
    }
    return TG_OK;
}

static tg_status adaptive_infer(tg_call *c) {
    adaptive_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t shape[2 + SPATIAL] = {x->shape[0], x->shape[1]};
    TG_TRY(tg_need_float(c, 0));
    if (!p->back) TG_TRY(check_sizes(c));
    TG_TRY(tg_call_role(c, 0, 0, 0));
    TG_TRY(tg_call_role(c, 0, 1, 1));
    TG_TRY(tg_call_linear(c, 1));
    memcpy(shape + 2, p->back ? p->input : p->size.dim, (size_t)p->size.ndim * sizeof *shape);
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

/* The windows along one dim: `times` periods of n elements and m windows each. */
typedef struct period {
    int64_t times, n, m;
} period;

/* Returns the periods of m windows over n elements. Their number is the greatest common divisor of n and m, which
 * Euclid's algorithm finds. All members are 0 if n and m are. */
static period period_of(int64_t n, int64_t m) {
    int64_t a = n, b = m;
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return (period){a, a ? n / a : 0, a ? m / a : 0};
}

/* Return the start and the end of window i: floor(i n / m) and ceil((i + 1) n / m). n is split into m times the
 * quotient n / m and the remainder n % m, so that no product overflows: i and the remainder are below 2^31. */
static int64_t start_of(period p, int64_t i) { return i * (p.n / p.m) + i * (p.n % p.m) / p.m; }
static int64_t end_of(period p, int64_t i) { return (i + 1) * (p.n / p.m) + ((i + 1) * (p.n % p.m) + p.m - 1) / p.m; }

/* One class of windows: x as [n, c, periods.., elements of a window..], and y with the same dims, where those of the
 * elements have size 1 and stride 0. */
typedef struct window_class {
    tg_array x, y;
    double count; /* elements of a window */
    tg_extent ex, ey;
} window_class;

/* Selects class `number`. The number has a digit for each dim, to base by[d].m: the window within a period. */
static void class_of(const adaptive_params *p, const period *by, int64_t number, tg_array x, tg_array y,
                     window_class *to) {
    int k = (int)p->size.ndim, ndim = 2 + 2 * k;
    int64_t at_x = 0, at_y = 0;
    to->count = 1;
    for (int d = 0; d < 2; d++) {
        to->ex.shape[d] = to->ey.shape[d] = x.shape[d];
        to->ex.stride[d] = x.stride[d];
        to->ey.stride[d] = y.stride[d];
    }
    for (int d = k - 1; d >= 0; d--) {
        int64_t i = number % by[d].m, start = start_of(by[d], i), size = end_of(by[d], i) - start;
        number /= by[d].m;
        at_x += start * x.stride[2 + d];
        at_y += i * y.stride[2 + d];
        to->count *= (double)size;
        to->ex.shape[2 + d] = to->ey.shape[2 + d] = by[d].times;
        to->ex.stride[2 + d] = by[d].n * x.stride[2 + d];
        to->ey.stride[2 + d] = by[d].m * y.stride[2 + d];
        to->ex.shape[2 + k + d] = size;
        to->ex.stride[2 + k + d] = x.stride[2 + d];
        to->ey.shape[2 + k + d] = 1;
        to->ey.stride[2 + k + d] = 0;
    }
    to->x = tg_array_at(x, at_x, ndim, to->ex.shape, to->ex.stride);
    to->y = tg_array_at(y, at_y, ndim, to->ey.shape, to->ey.stride);
}

/* Fills by[] with the periods of the dims, and returns the number of classes. */
static int64_t classes(const adaptive_params *p, period *by) {
    int64_t n = 1;
    for (int d = 0; d < p->size.ndim; d++) {
        by[d] = period_of(p->input[d], p->size.dim[d]);
        n *= by[d].m;
    }
    return n;
}

/* y (+)= the mean of x in each window. */
static tg_status means(tg_call *c, const tg_tensor *y, const tg_tensor *x, bool add) {
    period by[SPATIAL];
    window_class w;
    int64_t n = y->numel ? classes(params(c), by) : 0;
    for (int64_t i = 0; i < n; i++) {
        class_of(params(c), by, i, tg_array_of(x), tg_array_of(y), &w);
        TG_TRY(tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, w.y, w.x, 1 / w.count, add));
    }
    return TG_OK;
}

/* Each element of x (+)= the sum of y / count over the windows that contain the element. With one class the windows
 * cover x without overlap. Otherwise the classes are added one by one, 16-bit gradients in float32. */
static tg_status spread(tg_call *c, const tg_tensor *x, const tg_tensor *y, bool add) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    period by[SPATIAL];
    window_class w;
    int64_t n = classes(params(c), by);
    bool wide = n > 1 && tg_dtype_size((tg_dtype)x->dtype) == 2;
    const tg_tensor *to = wide ? tg_call_temp(c, TG_F32, x->ndim, x->shape) : x;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (n != 1 && (wide || !add)) TG_TRY(ops->fill(c->ctx, tg_array_of(to), 0));
    for (int64_t i = 0; i < n && y->numel; i++) {
        int64_t stride[TG_MAX_DIMS];
        class_of(params(c), by, i, tg_array_of(to), tg_array_of(y), &w);
        tg_array share = tg_array_expand(w.y, w.x.ndim, w.x.shape, stride);
        TG_TRY(ops->apply(c->ctx, TG_FN_affine, w.x, &share, 1, (const double[2]){1 / w.count, 0}, add || n > 1));
    }
    return wide ? tg_op_map(c, TG_FN_id, x, TG_T1(to), 1, 0, 0, add) : TG_OK;
}

static tg_status adaptive_forward(tg_call *c) {
    return (params(c)->back ? spread : means)(c, c->out[0], c->input[0], false);
}

static tg_status adaptive_backward(tg_call *c) {
    return (params(c)->back ? means : spread)(c, c->gin[0], c->gout[0], tg_adds(c, 0));
}

/* Counts an addition for each element of x. */
static int64_t adaptive_flops(const tg_node *n) { return tg_numel(tg_node_input(n, 0)); }

/* ---- Derivatives as recorded ops ---- */

static tg_status adaptive_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);

/* The op that is recorded as the derivative. It pools or spreads, as its params say. */
static const tg_op adaptive_derivative = {.size = sizeof(tg_op),
                                          .name = "adaptive_avg_pool_back",
                                          .formula = "the derivative of adaptive_avg_pool",
                                          .n_in = 1,
                                          .n_out = 1,
                                          .params_size = sizeof(adaptive_params),
                                          .family = TG_FAMILY_CUSTOM,
                                          .sums_f32 = true,
                                          .infer = adaptive_infer,
                                          .forward = adaptive_forward,
                                          .backward = adaptive_backward,
                                          .vjp = adaptive_vjp,
                                          .jvp = tg_jvp_linear};

static tg_status adaptive_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    adaptive_params p = *(const adaptive_params *)tg_node_params(n);
    p.back = !p.back;
    gin[0] = TG_RECORD(t, adaptive_derivative, &p, gout[0]);
    return TG_OK;
}

#define TO(...)                                                                                                        \
    &(const adaptive_params) { .size = TG_S_SHAPE(__VA_ARGS__) }
static const tg_sample adaptive_samples[] = {
    {.note = "windows of one size", .params = TO(3, 2), .n_in = 1, .input = {TG_S(2, 2, 6, 4)}},
    {.note = "overlapping", .params = TO(3, 4), .n_in = 1, .input = {TG_S(2, 2, 7, 5)}},
    {.note = "several periods", .params = TO(6), .n_in = 1, .input = {TG_S(2, 3, 8)}},
    {.note = "more windows than elements", .params = TO(7), .n_in = 1, .input = {TG_S(1, 2, 3)}},
    {.note = "volumes", .params = TO(2, 3, 2), .n_in = 1, .input = {TG_S(1, 2, 3, 4, 2)}},
    {.note = "means of planes", .params = TO(1, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 3, 5)}},
    {.note = "strided", .params = TO(2, 3), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 3, 4)}},
    {.note = "expanded", .params = TO(2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 2, 5)}},
    {.note = "no windows", .params = TO(0), .n_in = 1, .input = {TG_S(2, 2, 3)}},
    {.note = "empty batch", .params = TO(2, 2), .n_in = 1, .input = {TG_S(0, 2, 3, 3)}},
    {.note = "windows of nothing", .params = TO(2), .n_in = 1, .input = {TG_S(2, 2, 0)}, .refused = TG_ERR_SHAPE},
    {.note = "negative", .params = TO(2, -1), .n_in = 1, .input = {TG_S(2, 2, 3, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "too few dims", .params = TO(2, 2), .n_in = 1, .input = {TG_S(2, 3, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = TO(2), .n_in = 1, .input = {TG_S_INDEX(9, 1, 1, 4)}, .refused = TG_ERR_DTYPE},
    {.note = "ResNet's last", .params = TO(1, 1), .n_in = 1, .input = {TG_S(32, 512, 7, 7)}, .bench = true},
    {.note = "VGG's last", .params = TO(7, 7), .n_in = 1, .input = {TG_S(32, 512, 12, 12)}, .bench = true},
};
#undef TO

static const tg_field adaptive_fields[] = {
    TG_ARG(adaptive_params, size, SHAPE, "Numbers of windows along the dims after n and c.", .required = true),
};

const tg_op tg_op_adaptive_avg_pool = {.size = sizeof(tg_op),
                                       .name = "adaptive_avg_pool",
                                       .formula = "the mean of x in each of size windows",
                                       .inputs = "x",
                                       .n_in = 1,
                                       .n_out = 1,
                                       .params_size = sizeof(adaptive_params),
                                       .family = TG_FAMILY_CUSTOM,
                                       .sums_f32 = true,
                                       .infer = adaptive_infer,
                                       .forward = adaptive_forward,
                                       .backward = adaptive_backward,
                                       .vjp = adaptive_vjp,
                                       .jvp = tg_jvp_linear,
                                       .flops = adaptive_flops,
                                       TG_FIELDS(adaptive_fields),
                                       TG_SAMPLES(adaptive_samples)};

/* Returns the mean of x [n, c, ..] in each of size.dim[d] windows along dim 2 + d: [n, c, size..]. 16-bit sums run in
 * float32. */
tg_tensor *tg_adaptive_avg_pool(tg_tape *t, tg_tensor *x, tg_shape size) {
    return TG_RECORD(t, tg_op_adaptive_avg_pool, &(adaptive_params){.size = size}, x);
}
