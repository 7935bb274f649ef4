/* im2col copies the windows of x [n, c, h, w] to columns [n, c kh kw, windows]; col2im adds columns to the elements of
 * x. Each is the gradient of the other, so the same functions serve both, and derivatives of any order. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/common/windows.h"

typedef struct columns_params {
    tg_windows w;
    bool back;                /* true: col2im; false: im2col */
    tg_shape size;            /* col2im: height and width of the result */
    int64_t input[2], out[2]; /* sizes of the images, and numbers of windows, along h and w */
} columns_params;

extern const tg_op tg_op_im2col, tg_op_col2im;

static const columns_params *params(const tg_call *c) { return c->params; }

static int64_t area(const int64_t *size) { return size[0] * size[1]; }

static tg_status columns_infer(tg_call *c) {
    columns_params *p = c->params;
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_windows_infer(c, &p->w, 0, p->input, p->out));
    TG_TRY(tg_call_role(c, 0, 0, 0));
    TG_TRY(tg_call_linear(c, 1));
    int64_t rows, places;
    if (__builtin_mul_overflow(p->w.size[0], p->w.size[1], &rows) || __builtin_mul_overflow(x->shape[1], rows, &rows))
        return tg_call_fail(c, TG_ERR_SHAPE, "the size of a column overflows 64 bits");
    if (__builtin_mul_overflow(p->out[0], p->out[1], &places))
        return tg_call_fail(c, TG_ERR_SHAPE, "%lld x %lld windows fit into x and its padding; their number overflows "
                            "64 bits", (long long)p->out[0], (long long)p->out[1]);
    return tg_call_out(c, 0, (tg_dtype)x->dtype, 3, (const int64_t[]){x->shape[0], rows, places});
}

static tg_status images_infer(tg_call *c) {
    columns_params *p = c->params;
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_float(c, 0));
    if (p->size.ndim != 2 || p->size.dim[0] < 0 || p->size.dim[1] < 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "size must be the height and the width of the result, 0 or more");
    for (int d = 0; d < 2; d++) p->input[d] = p->size.dim[d];
    TG_TRY(tg_windows_fit(c, &p->w, p->input, p->out));
    int64_t window, places;
    bool overflows = __builtin_mul_overflow(p->w.size[0], p->w.size[1], &window) ||
                     __builtin_mul_overflow(p->out[0], p->out[1], &places);
    if (overflows || x->ndim != 3 || x->shape[1] % window || x->shape[2] != places)
        return tg_call_fail(
            c, TG_ERR_SHAPE, "x must be [n, c * h * w, windows]; windows are %lld x %lld, and %lld x %lld of them fit",
            (long long)p->w.size[0], (long long)p->w.size[1], (long long)p->out[0], (long long)p->out[1]);
    TG_TRY(tg_call_role(c, 0, 0, 0));
    TG_TRY(tg_call_linear(c, 1));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, 4,
                       (const int64_t[]){x->shape[0], x->shape[1] / window, p->input[0], p->input[1]});
}

/* Views row-major columns as [n, c, kh, kw, windows along h, windows along w]. */
static tg_array windows_of(const tg_call *c, const tg_tensor *cols, tg_extent *e) {
    const columns_params *p = params(c);
    const int64_t shape[] = {cols->shape[0], cols->shape[1] / area(p->w.size), p->w.size[0], p->w.size[1], p->out[0],
                             p->out[1]};
    memcpy(e->shape, shape, sizeof shape);
    tg_row_major(6, shape, e->stride);
    return tg_array_at(tg_array_of(cols), 0, 6, e->shape, e->stride);
}

/* cols (+)= the windows of x. */
static tg_status gather(tg_call *c, const tg_tensor *cols, tg_tensor *x, bool add) {
    const tg_tensor *to = add ? tg_call_temp(c, (tg_dtype)cols->dtype, 3, cols->shape) : cols;
    tg_extent e;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_windows_gather(c, &params(c)->w, windows_of(c, to, &e), tg_array_of(x)));
    return add ? tg_op_map(c, TG_FN_id, cols, TG_T1(to), 1, 0, 0, true) : TG_OK;
}

/* Adds each element of the columns to the element of x from which tg_windows_gather would copy it. If add is false, x
 * is set to 0 first. 16-bit sums of overlapping windows run in float32. */
static tg_status scatter(tg_call *c, const tg_tensor *x, tg_tensor *cols, bool add) {
    const tg_windows *w = &params(c)->w;
    bool wide = tg_windows_overlap(w) && tg_dtype_size((tg_dtype)x->dtype) == 2;
    const tg_tensor *to = wide ? tg_call_temp(c, TG_F32, x->ndim, x->shape) : x;
    tg_extent e;
    TG_TRY(tg_op_dense(c, &cols));
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (wide || !add) TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(to), 0));
    TG_TRY(tg_windows_scatter(c, w, tg_array_of(to), windows_of(c, cols, &e)));
    return wide ? tg_op_map(c, TG_FN_id, x, TG_T1(to), 1, 0, 0, add) : TG_OK;
}

static tg_status columns_forward(tg_call *c) {
    return (params(c)->back ? scatter : gather)(c, c->out[0], c->input[0], false);
}

static tg_status columns_backward(tg_call *c) {
    return (params(c)->back ? gather : scatter)(c, c->gin[0], c->gout[0], tg_adds(c, 0));
}

/* Records the other op with the same windows. */
static tg_tensor *columns_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    columns_params p = *(const columns_params *)tg_node_params(n);
    p.back = !p.back;
    p.size = (tg_shape){2, {p.input[0], p.input[1]}};
    return tg_record(t, p.back ? &tg_op_col2im : &tg_op_im2col, &p, &g, 1, TG_SITE);
}

TG_VJP(columns_vjp, columns_back(t, n, g))

#define COLUMNS_(back_, oh_, ow_, h_, w_, ...)                                                                         \
    &(const columns_params) {                                                                                          \
        .w = TG_WINDOWS(2, .size = {h_, w_}, __VA_ARGS__), .back = back_, .size = { 2, {oh_, ow_} }                    \
    }
#define PLAIN                         .step = {1, 1}, .apart = {1, 1}
#define IM2COL(h_, w_, ...)           COLUMNS_(false, 0, 0, h_, w_, __VA_ARGS__)
#define COL2IM(oh_, ow_, h_, w_, ...) COLUMNS_(true, oh_, ow_, h_, w_, __VA_ARGS__)
static const tg_sample im2col_samples[] = {
    {.note = "2 x 3", .params = IM2COL(2, 3, PLAIN), .n_in = 1, .input = {TG_S(2, 2, 3, 4)}},
    {.note = "strides, padding, dilation",
     .params = IM2COL(2, 2, .step = {2, 1}, .pad = {1, 2}, .apart = {1, 2}),
     .n_in = 1,
     .input = {TG_S(1, 2, 4, 3)}},
    {.note = "patches",
     .params = IM2COL(2, 2, .step = {2, 2}, .apart = {1, 1}),
     .n_in = 1,
     .input = {TG_S(2, 3, 4, 4)}},
    {.note = "transposed",
     .params = IM2COL(2, 1, PLAIN),
     .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 3, 2)}},
    {.note = "strided", .params = IM2COL(2, 2, PLAIN), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 3, 3)}},
    {.note = "expanded", .params = IM2COL(2, 2, PLAIN), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 1, 3, 3)}},
    {.note = "empty batch", .params = IM2COL(2, 2, PLAIN), .n_in = 1, .input = {TG_S(0, 2, 3, 3)}},
    {.note = "too large",
     .params = IM2COL(5, 2, PLAIN),
     .n_in = 1,
     .input = {TG_S(1, 2, 3, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "too few dims",
     .params = IM2COL(2, 2, PLAIN),
     .n_in = 1,
     .input = {TG_S(2, 3, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "integers",
     .params = IM2COL(2, 2, PLAIN),
     .n_in = 1,
     .input = {TG_S_INDEX(9, 1, 1, 3, 3)},
     .refused = TG_ERR_DTYPE},
    /* The product of the numbers of windows along h and w is 2^64 + 1. */
    {.note = "windows that cannot be counted",
     .params = IM2COL(1, 1, .step = {1, 1}, .pad = {137088, 33640210655360}, .apart = {1, 1}),
     .n_in = 1,
     .input = {TG_S(1, 1, 1, 1)},
     .refused = TG_ERR_SHAPE},
    {.note = "big",
     .params = IM2COL(3, 3, .step = {1, 1}, .pad = {1, 1}, .apart = {1, 1}),
     .n_in = 1,
     .input = {TG_S(8, 32, 56, 56)},
     .bench = true},
};
static const tg_sample col2im_samples[] = {
    {.note = "2 x 3", .params = COL2IM(3, 4, 2, 3, PLAIN), .n_in = 1, .input = {TG_S(2, 12, 4)}},
    {.note = "strides, padding, dilation",
     .params = COL2IM(4, 3, 2, 2, .step = {2, 1}, .pad = {1, 2}, .apart = {1, 2}),
     .n_in = 1,
     .input = {TG_S(1, 8, 15)}},
    {.note = "patches",
     .params = COL2IM(4, 4, 2, 2, .step = {2, 2}, .apart = {1, 1}),
     .n_in = 1,
     .input = {TG_S(2, 4, 4)}},
    {.note = "transposed",
     .params = COL2IM(3, 2, 2, 1, PLAIN),
     .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 4, 4)}},
    {.note = "strided", .params = COL2IM(3, 3, 2, 2, PLAIN), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 1, 4, 4)}},
    {.note = "empty batch", .params = COL2IM(3, 3, 2, 2, PLAIN), .n_in = 1, .input = {TG_S(0, 4, 4)}},
    {.note = "other windows",
     .params = COL2IM(3, 3, 2, 2, PLAIN),
     .n_in = 1,
     .input = {TG_S(1, 4, 5)},
     .refused = TG_ERR_SHAPE},
    {.note = "other channels",
     .params = COL2IM(3, 3, 2, 2, PLAIN),
     .n_in = 1,
     .input = {TG_S(1, 3, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "windows of nothing",
     .params = COL2IM(3, 3, 0, 2, PLAIN),
     .n_in = 1,
     .input = {TG_S(1, 4, 4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "big",
     .params = COL2IM(56, 56, 3, 3, .step = {1, 1}, .pad = {1, 1}, .apart = {1, 1}),
     .n_in = 1,
     .input = {TG_S(8, 288, 3136)},
     .bench = true},
};

#define WINDOW_FIELDS                                                                                                  \
    TG_ARG_AS(columns_params, w.size[0], "h", INT64, "Number of rows of a window.", .required = true),                 \
        TG_ARG_AS(columns_params, w.size[1], "w", INT64, "Number of columns of a window.", .required = true),          \
        TG_ARG_ARRAY(columns_params, w.step, "stride", INT64, 2, "Distances between the starts of windows."),          \
        TG_ARG_ARRAY(columns_params, w.pad, "padding", INT64, 2, "Numbers of zeros that are added at each end."),      \
        TG_ARG_ARRAY(columns_params, w.apart, "dilation", INT64, 2, "Distances between the elements of a window.")
static const tg_field im2col_fields[] = {WINDOW_FIELDS};
static const tg_field col2im_fields[] = {
    TG_ARG(columns_params, size, SHAPE, "Height and width of the result.", .required = true), WINDOW_FIELDS};

#define COLUMNS(name_, formula_, infer_, fields_, preset_, samples_)                                                   \
    const tg_op tg_op_##name_ = {.size = sizeof(tg_op),                                                                \
                                 .name = #name_,                                                                       \
                                 .formula = formula_,                                                                  \
                                 .inputs = "x",                                                                        \
                                 .n_in = 1,                                                                            \
                                 .n_out = 1,                                                                           \
                                 .params_size = sizeof(columns_params),                                                \
                                 .family = TG_FAMILY_CUSTOM,                                                           \
                                 .sums_f32 = true,                                                                     \
                                 .infer = infer_,                                                                      \
                                 .forward = columns_forward,                                                           \
                                 .backward = columns_backward,                                                         \
                                 .vjp = columns_vjp,                                                                   \
                                 .jvp = tg_jvp_linear,                                                                 \
                                 TG_FIELDS(fields_),                                                                   \
                                 .preset = preset_,                                                                    \
                                 TG_SAMPLES(samples_)}

COLUMNS(im2col, "the windows of x as columns", columns_infer, im2col_fields, IM2COL(1, 1, PLAIN), im2col_samples);
COLUMNS(col2im, "images of size: the sums of columns x at their windows", images_infer, col2im_fields,
        COL2IM(0, 0, 1, 1, PLAIN), col2im_samples);

static columns_params params_of(bool back, int64_t h, int64_t w, const tg_conv_opts *given) {
    tg_conv_opts o;
    tg_op_options(&o, &tg_conv_opts_struct, given);
    columns_params p = {.w = tg_windows_of(2, (const int64_t[]){h, w}, o.stride, o.padding, o.dilation), .back = back};
    p.w.given = o.size;
    p.w.known = sizeof o;
    if (o.groups != 1) p.w.unused = "groups";
    for (int d = 0; d < 3; d++)
        if (o.output_padding[d]) p.w.unused = "output_padding";
    return p;
}

/* Returns the elements of each h x w window of the images x as a column: [n, c h w, windows]. */
tg_tensor *tg_im2col(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_conv_opts *opts) {
    columns_params p = params_of(false, h, w, opts);
    return TG_RECORD(t, tg_op_im2col, &p, x);
}

/* Returns images [n, c, size..]. Each of their elements is the sum of those elements of the columns x
 * [n, c h w, windows] to which tg_im2col would copy it. */
tg_tensor *tg_col2im(tg_tape *t, tg_tensor *x, tg_shape size, int64_t h, int64_t w, const tg_conv_opts *opts) {
    columns_params p = params_of(true, h, w, opts);
    p.size = size;
    return TG_RECORD(t, tg_op_col2im, &p, x);
}
