/* Average pooling. The gradient of pooling spreads the windows' gradients over x, and the gradient of spreading is
 * pooling again. So the same functions serve both, and derivatives of any order. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/common/windows.h"

typedef struct avg_pool_params {
    tg_windows w;
    bool exclude;  /* padding is not counted in the mean; without effect if there is a divisor */
    bool back;     /* true: the op spreads windows over x; false: it pools x */
    int64_t divisor; /* of the windows' sums; TG_AUTO: the number of elements of each window */
    int64_t input[2]; /* sizes h and w of x */
} avg_pool_params;

static const avg_pool_params *params(const tg_call *c) { return c->params; }

static tg_status avg_pool_infer(tg_call *c) {
    avg_pool_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t out[2], shape[4];
    TG_TRY(tg_need_float(c, 0));
    if (p->w.apart[0] != 1 || p->w.apart[1] != 1)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "dilation is set, but average pooling has none; leave it at 1");
    if (p->divisor == 0) return tg_call_fail(c, TG_ERR_ARGUMENT, "divisor is 0; it must be another number, or TG_AUTO");
    if (!p->back) TG_TRY(tg_windows_infer_pool(c, &p->w, p->input, out));
    TG_TRY(tg_call_role(c, 0, 0, 0));
    TG_TRY(tg_call_role(c, 0, 1, 1));
    TG_TRY(tg_call_linear(c, 1));
    int ndim = tg_windows_shape(&p->w, x->shape[0], x->shape[1], p->back ? p->input : out, shape);
    return tg_call_out(c, 0, (tg_dtype)x->dtype, ndim, shape);
}

/* Reads the numbers of windows along h and w from the shape of y [n, c, windows ..]. */
static void window_counts(const avg_pool_params *p, const tg_tensor *y, int64_t out[2]) {
    out[0] = p->w.dims == 1 ? 1 : y->shape[2];
    out[1] = y->shape[y->ndim - 1];
}

/* Fills n with the numbers of elements of the windows along dim d: those in x, or those in x and its padding. */
static tg_status count_along(tg_call *c, int d, const tg_tensor *n) {
    const avg_pool_params *p = params(c);
    tg_windows padded = p->w;
    padded.pad[d] = 0;
    return p->exclude ? tg_windows_count(c, &p->w, d, p->input[d], n)
                      : tg_windows_count(c, &padded, d, p->input[d] + 2 * p->w.pad[d], n);
}

/* Sets *n to the divisor of the windows' sums: a scalar, or one number for each window if their sizes differ. */
static tg_status divisors(tg_call *c, tg_dtype dtype, const tg_tensor *y, tg_tensor **n) {
    const avg_pool_params *p = params(c);
    bool differ = p->divisor == TG_AUTO && (p->exclude || p->w.ceil);
    double one = p->divisor == TG_AUTO ? (double)p->w.size[0] * (double)p->w.size[1] : (double)p->divisor;
    int64_t out[2];
    window_counts(p, y, out);
    *n = tg_call_temp(c, dtype, differ ? p->w.dims : 0, out + 2 - p->w.dims);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (!differ) return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(*n), one);
    tg_tensor *along[2];
    for (int d = 0; d < 2; d++) {
        along[d] = tg_call_temp(c, dtype, 1, &out[d]);
        if (!tg_ok(c->ctx)) return c->ctx->run.status;
        TG_TRY(count_along(c, d, along[d]));
    }
    tg_tensor *rows = tg_call_view_of(c, along[0], 0, p->w.dims, (const int64_t[]){out[0], 1}, (const int64_t[]){1, 0});
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    return tg_op_map(c, TG_FN_mul, *n, TG_T2(rows, along[1]), 2, 0, 0, false);
}

/* For each element (i, j) of a window: adds this element of all windows of x to y or, if back is true, adds y to this
 * element of all windows of x. */
static tg_status sum_windows(tg_call *c, const tg_tensor *x, const tg_tensor *y, bool back) {
    const tg_windows *w = &params(c)->w;
    tg_extent ex, ey;
    tg_array ax = tg_windows_inside(tg_array_of(x), &ex), ay = tg_windows_inside(tg_array_of(y), &ey);
    const tg_window_reach rows = tg_windows_reach(w, 0, ax.shape[2], ay.shape[2]);
    const tg_window_reach columns = tg_windows_reach(w, 1, ax.shape[3], ay.shape[3]);
    for (int64_t i = rows.first; i < rows.end && y->numel; i++)
        for (int64_t j = columns.first; j < columns.end; j++) {
            tg_window_part part;
            if (!tg_windows_part(w, i, j, ax, ay, &part)) continue;
            TG_TRY(back ? tg_op_copy(c, part.x, part.y, true) : tg_op_copy(c, part.y, part.x, true));
        }
    return TG_OK;
}

/* y (+)= the mean of x in each window. */
static tg_status means(tg_call *c, const tg_tensor *y, const tg_tensor *x, bool add) {
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)x->dtype);
    const tg_tensor *sum = add || y->dtype != wide ? tg_call_temp(c, wide, y->ndim, y->shape) : y;
    tg_tensor *n;
    TG_TRY(divisors(c, wide, y, &n));
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(sum), 0));
    TG_TRY(sum_windows(c, x, sum, false));
    return tg_op_map(c, TG_FN_div, y, TG_T2(sum, n), 2, 0, 0, add);
}

/* Each element of x (+)= the sum of y / divisor over the windows that contain the element. */
static tg_status spread(tg_call *c, const tg_tensor *x, const tg_tensor *y, bool add) {
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)y->dtype);
    tg_tensor *share = tg_call_temp(c, wide, y->ndim, y->shape), *n;
    bool sums = tg_windows_overlap(&params(c)->w) && tg_dtype_size((tg_dtype)x->dtype) == 2;
    const tg_tensor *to = sums ? tg_call_temp(c, wide, x->ndim, x->shape) : x;
    TG_TRY(divisors(c, wide, y, &n));
    TG_TRY(tg_op_map(c, TG_FN_div, share, TG_T2(y, n), 2, 0, 0, false));
    if (sums || !add) TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(to), 0));
    TG_TRY(sum_windows(c, to, share, true));
    return sums ? tg_op_map(c, TG_FN_id, x, TG_T1(to), 1, 0, 0, add) : TG_OK;
}

static tg_status avg_pool_forward(tg_call *c) {
    return (params(c)->back ? spread : means)(c, c->out[0], c->input[0], false);
}

static tg_status avg_pool_backward(tg_call *c) {
    return (params(c)->back ? means : spread)(c, c->gin[0], c->gout[0], tg_adds(c, 0));
}

/* ---- Derivatives as recorded ops ---- */

static tg_status avg_pool_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);

/* The op that is recorded as the derivative. It pools or spreads, as its params say. */
static const tg_op avg_pool_derivative = {
    .size = sizeof(tg_op), .name = "avg_pool_back", .formula = "the derivative of avg_pool", .n_in = 1, .n_out = 1,
    .params_size = sizeof(avg_pool_params), .family = TG_FAMILY_CUSTOM, .sums_f32 = true, .infer = avg_pool_infer,
    .forward = avg_pool_forward, .backward = avg_pool_backward, .vjp = avg_pool_vjp, .jvp = tg_jvp_linear};

static tg_status avg_pool_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    avg_pool_params p = *(const avg_pool_params *)tg_node_params(n);
    p.back = !p.back;
    gin[0] = TG_RECORD(t, avg_pool_derivative, &p, gout[0]);
    return TG_OK;
}

static int64_t avg_pool_flops(const tg_node *n) {
    const avg_pool_params *p = tg_node_params(n);
    return tg_flops(tg_flops(tg_numel(tg_node_output(n, 0)), p->w.size[0]), p->w.size[1]);
}

#define POOL_(dims_, h_, w_, exclude_, ...) \
    &(const avg_pool_params) { \
        .w = TG_WINDOWS(dims_, .size = {h_, w_}, __VA_ARGS__), .exclude = exclude_, .divisor = TG_AUTO \
    }
#define POOL1(k_, step_, pad_, exclude_) \
    POOL_(1, 1, k_, exclude_, .step = {1, step_}, .pad = {0, pad_}, .apart = {1, 1})
#define POOL2(h_, w_, exclude_, sh_, sw_, ph_, pw_) \
    POOL_(2, h_, w_, exclude_, .step = {sh_, sw_}, .pad = {ph_, pw_}, .apart = {1, 1})
/* Windows of 2 x 3 elements whose strides are their sizes. */
#define POOL_MORE(exclude_, divisor_)                                                                            \
    &(const avg_pool_params) {                                                                                   \
        .w = TG_WINDOWS(2, .size = {2, 3}, .step = {2, 3}, .pad = {0, 1}, .apart = {1, 1}, .ceil = true),        \
        .exclude = exclude_, .divisor = divisor_                                                                 \
    }

static const tg_sample avg_pool1d_samples[] = {
    {.note = "side by side", .params = POOL1(2, 2, 0, false), .n_in = 1, .input = {TG_S(2, 3, 6)}},
    {.note = "overlapping, padded", .params = POOL1(3, 1, 1, false), .n_in = 1, .input = {TG_S(2, 2, 5)}},
    {.note = "padding left out", .params = POOL1(3, 2, 1, true), .n_in = 1, .input = {TG_S(2, 2, 6)}},
    {.note = "apart, not to the end", .params = POOL1(2, 3, 0, false), .n_in = 1, .input = {TG_S(2, 2, 7)}},
    {.note = "transposed", .params = POOL1(2, 1, 0, false), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3,
                                                                                         4)}},
    {.note = "expanded", .params = POOL1(2, 1, 1, true), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 2, 4)}},
    {.note = "one element", .params = POOL1(1, 1, 0, false), .n_in = 1, .input = {TG_S(1, 1, 1)}},
    {.note = "empty batch", .params = POOL1(2, 2, 0, true), .n_in = 1, .input = {TG_S(0, 2, 4)}},
    {.note = "windows that are padding but for x", .params = POOL1(INT64_C(1) << 62, 1, INT64_C(1) << 61, true),
     .n_in = 1, .input = {TG_S(2, 2, 3)}},
    {.note = "too much padding", .params = POOL1(3, 1, 2, false), .n_in = 1, .input = {TG_S(1, 1, 4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "too few dims", .params = POOL1(2, 2, 0, false), .n_in = 1, .input = {TG_S(3, 6)},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = POOL1(4, 2, 0, false), .n_in = 1, .input = {TG_S(32, 64, 1024)}, .bench = true},
};

static const tg_sample avg_pool2d_samples[] = {
    {.note = "side by side", .params = POOL2(2, 2, false, 2, 2, 0, 0), .n_in = 1, .input = {TG_S(2, 2, 4, 6)}},
    {.note = "overlapping, padded", .params = POOL2(3, 2, false, 1, 1, 1, 1), .n_in = 1, .input = {TG_S(2, 2, 4, 3)}},
    {.note = "padding left out", .params = POOL2(3, 3, true, 2, 1, 1, 1), .n_in = 1, .input = {TG_S(2, 2, 4, 3)}},
    {.note = "other strides", .params = POOL2(1, 2, false, 2, 3, 0, 1), .n_in = 1, .input = {TG_S(1, 2, 3, 5)}},
    {.note = "transposed", .params = POOL2(2, 2, false, 1, 2, 0, 0), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 3, 4)}},
    {.note = "strided", .params = POOL2(2, 2, true, 1, 1, 1, 0), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 3, 4)}},
    {.note = "beyond the end", .params = POOL_MORE(false, TG_AUTO), .n_in = 1, .input = {TG_S(2, 2, 3, 6)}},
    {.note = "beyond the end, padding left out", .params = POOL_MORE(true, TG_AUTO), .n_in = 1,
     .input = {TG_S(1, 2, 5, 3)}},
    {.note = "beyond the end of one element", .params = POOL_MORE(false, TG_AUTO), .n_in = 1,
     .input = {TG_S(1, 2, 1, 1)}},
    {.note = "another divisor", .params = POOL_MORE(false, -3), .n_in = 1, .input = {TG_S(1, 2, 4, 5)}},
    {.note = "divided by 0", .params = POOL_MORE(false, 0), .n_in = 1, .input = {TG_S(1, 2, 4, 5)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "one window", .params = POOL2(3, 4, false, 3, 4, 0, 0), .n_in = 1, .input = {TG_S(2, 2, 3, 4)}},
    {.note = "no channels", .params = POOL2(2, 2, false, 2, 2, 0, 0), .n_in = 1, .input = {TG_S(2, 0, 4, 4)}},
    {.note = "rows that are padding but for x",
     .params = POOL2(INT64_C(1) << 40, 3, true, 1, 2, INT64_C(1) << 39, 1), .n_in = 1, .input = {TG_S(1, 2, 3, 4)}},
    {.note = "too large", .params = POOL2(2, 5, false, 1, 1, 0, 0), .n_in = 1, .input = {TG_S(1, 1, 4, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "padding alone", .params = POOL2(2, 2, false, 1, 1, 1, 0), .n_in = 1, .input = {TG_S(1, 1, 0, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "windows of nothing", .params = POOL2(0, 2, false, 1, 1, 0, 0), .n_in = 1, .input = {TG_S(1, 1, 4, 4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = POOL2(2, 2, false, 2, 2, 0, 0), .n_in = 1,
     .input = {TG_S_INDEX(9, 1, 1, 4, 4)}, .refused = TG_ERR_DTYPE},
    {.note = "32 images of 64 channels", .params = POOL2(3, 3, false, 2, 2, 1, 1), .n_in = 1,
     .input = {TG_S(32, 64, 56, 56)}, .bench = true},
};

static const tg_field avg_pool1d_fields[] = {
    TG_ARG_AS(avg_pool_params, w.size[1], "k", INT64, "Number of elements of a window.", .required = true),
    TG_ARG_AS(avg_pool_params, w.step[1], "stride", INT64, "Distance between the starts of windows; -1 means k."),
    TG_ARG_AS(avg_pool_params, w.pad[1], "padding", INT64, "Number of elements that are added at each end."),
    TG_ARG_AS(avg_pool_params, exclude, "exclude_padding", BOOL,
              "Divides by the number of elements of x in the window."),
    TG_ARG_AS(avg_pool_params, w.ceil, "ceil_mode", BOOL, "Keeps a window that reaches beyond the padding after x."),
    TG_ARG(avg_pool_params, divisor, INT64, "Divides by this number; -1 means the number of elements of the window."),
};
static const tg_field avg_pool2d_fields[] = {
    TG_ARG_AS(avg_pool_params, w.size[0], "h", INT64, "Number of rows of a window.", .required = true),
    TG_ARG_AS(avg_pool_params, w.size[1], "w", INT64, "Number of columns of a window.", .required = true),
    TG_ARG_ARRAY(avg_pool_params, w.step, "stride", INT64, 2,
                 "Distances between the starts of windows; -1 means the size of the window."),
    TG_ARG_ARRAY(avg_pool_params, w.pad, "padding", INT64, 2, "Numbers of elements that are added at each end."),
    TG_ARG_AS(avg_pool_params, exclude, "exclude_padding", BOOL,
              "Divides by the number of elements of x in the window."),
    TG_ARG_AS(avg_pool_params, w.ceil, "ceil_mode", BOOL, "Keeps a window that reaches beyond the padding after x."),
    TG_ARG(avg_pool_params, divisor, INT64, "Divides by this number; -1 means the number of elements of the window."),
};
static const avg_pool_params avg_pool1d_preset = {
    .w = TG_WINDOWS(1, .size = {1, 1}, .step = {1, TG_AUTO}, .apart = {1, 1}), .divisor = TG_AUTO};
static const avg_pool_params avg_pool2d_preset = {
    .w = TG_WINDOWS(2, .size = {1, 1}, .step = {TG_AUTO, TG_AUTO}, .apart = {1, 1}), .divisor = TG_AUTO};

#define AVG_POOL(name_)                                                                                          \
    const tg_op tg_op_##name_ = {                                                                                \
        .size = sizeof(tg_op), .name = #name_, .formula = "the mean of x in each window", .inputs = "x",         \
        .n_in = 1, .n_out = 1, .params_size = sizeof(avg_pool_params), .family = TG_FAMILY_CUSTOM,               \
        .sums_f32 = true, .infer = avg_pool_infer, .forward = avg_pool_forward, .backward = avg_pool_backward,   \
        .vjp = avg_pool_vjp, .jvp = tg_jvp_linear, .flops = avg_pool_flops, TG_FIELDS(name_##_fields),           \
        .preset = &name_##_preset, TG_SAMPLES(name_##_samples)}

AVG_POOL(avg_pool1d);
AVG_POOL(avg_pool2d);

static avg_pool_params params_of(int dims, const int64_t *size, const tg_pool_opts *given) {
    tg_pool_opts o;
    tg_op_options(&o, &tg_pool_opts_struct, given);
    return (avg_pool_params){
        .w = tg_windows_of_pool(dims, size, &o), .exclude = o.exclude_padding, .divisor = o.divisor};
}

/* Returns the mean of every window of k elements of x [n, c, l]: [n, c, windows]. Windows start `stride` elements
 * apart; a stride of TG_AUTO means k. Windows that do not fit into x and its padding are left out unless ceil_mode is
 * set. Padding is zeros, which count as elements unless exclude_padding is set. If a divisor is given, the sum is
 * divided by it instead of by the number of elements. There is no dilation. 16-bit sums run in float32. */
tg_tensor *tg_avg_pool1d(tg_tape *t, tg_tensor *x, int64_t k, const tg_pool_opts *opts) {
    avg_pool_params p = params_of(1, &k, opts);
    return TG_RECORD(t, tg_op_avg_pool1d, &p, x);
}

/* The same for windows of h x w elements of x [n, c, h, w]. */
tg_tensor *tg_avg_pool2d(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts) {
    avg_pool_params p = params_of(2, (const int64_t[]){h, w}, opts);
    return TG_RECORD(t, tg_op_avg_pool2d, &p, x);
}
