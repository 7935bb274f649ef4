/* Transposed convolutions. A transposed convolution is the gradient of a convolution with respect to its input, as an
 * op of its own. It is composed of the op that computes that gradient (conv.c) and the addition of the bias. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/conv.h"

/* Sets p->input[d], the size of the result along dim d, for an argument x that has n elements there. */
static tg_status transposed_size(tg_call *c, int d, int64_t n) {
    tg_conv_params *p = c->params;
    int64_t step = p->w.step[d], apart = p->w.apart[d], pad = p->w.pad[d], size, extent, twice;
    if (p->w.size[d] < 1 || step < 1 || apart < 1 || pad < 0 || p->more[d] < 0 || p->more[d] >= step)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "window size is %lld, stride %lld, dilation %lld, padding %lld and "
                            "output_padding %lld; the first three must be 1 or more, padding 0 or more, and "
                            "output_padding 0 or more and less than the stride or the dilation",
                            (long long)p->w.size[d], (long long)step, (long long)apart, (long long)pad,
                            (long long)p->more[d]);
    if (n < 1 || __builtin_mul_overflow(n - 1, step, &size) ||
        __builtin_mul_overflow(p->w.size[d] - 1, apart, &extent) || __builtin_mul_overflow(pad, 2, &twice) ||
        __builtin_add_overflow(size, extent, &size) || __builtin_add_overflow(size, p->more[d] + 1, &size) ||
        size <= twice)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "the result has no elements along a dim, or their number overflows 64 "
                            "bits; x has %s there and padding removes %lld at each end",
                            tg_count(n, "element").text, (long long)pad);
    p->input[d] = size - twice;
    return TG_OK;
}

tg_status tg_conv_transposed_infer(tg_call *c) {
    tg_conv_params *p = c->params;
    const tg_tensor *w = c->input[0], *y = c->input[1];
    TG_TRY(tg_windows_check_options(c, &p->w));
    TG_TRY(tg_need_float(c, 1));
    if (p->groups < 1)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "groups is %lld; it must be 1 or more", (long long)p->groups);
    if (y->ndim != p->w.dims + 2 || w->ndim != y->ndim || w->shape[0] != y->shape[1] || w->shape[0] % p->groups)
        return tg_call_fail(c, TG_ERR_SHAPE, "x must be %s, with a c that groups divides",
                            p->w.dims == 1 ? "[n, c, l] and w [c, o / groups, k]"
                                           : "[n, c, h, w] and w [c, o / groups, kh, kw]");
    int64_t channels;
    if (__builtin_mul_overflow(w->shape[1], p->groups, &channels))
        return tg_call_fail(c, TG_ERR_SHAPE, "%s of w for each of %lld groups overflow 64 bits",
                            tg_count(w->shape[1], "output channel").text, (long long)p->groups);
    for (int d = 0; d < 2; d++) {
        bool has = d >= 2 - p->w.dims;
        if (has) p->w.size[d] = w->shape[d + p->w.dims];
        TG_TRY(transposed_size(c, d, has ? y->shape[d + p->w.dims] : 1));
    }
    return tg_conv_other_infer(c);
}

/* Returns whether output_padding is valid and, along some dim, as large as the stride or larger. The dilation of such a
 * dim is larger still. Returns false if a padding is negative, which transposed_size reports. */
static bool passes_stride(const tg_conv_params *p) {
    bool passes = false;
    for (int d = 0; d < 2; d++) {
        if (p->more[d] < 0 || p->w.pad[d] < 0 || (p->more[d] >= p->w.step[d] && p->more[d] >= p->w.apart[d]))
            return false;
        passes |= p->more[d] >= p->w.step[d];
    }
    return passes;
}

/* Records the transposed convolution without bias. If output_padding is as large as a stride, a convolution of the
 * result would have more windows than x has elements. Then the result is computed without padding and output_padding,
 * and is cut or padded to the right size. */
static tg_tensor *transposed(tg_tape *t, tg_tensor *x, tg_tensor *w, const tg_conv_params *p) {
    if (!passes_stride(p)) return tg_conv_transposed(t, x, w, p);
    tg_conv_params whole = *p;
    int64_t pad[4];
    int n = 0;
    for (int d = 1; d >= 2 - p->w.dims; d--) {
        pad[n++] = -p->w.pad[d];
        pad[n++] = p->more[d] - p->w.pad[d];
        whole.w.pad[d] = whole.more[d] = 0;
    }
    return tg_constant_pad(t, tg_conv_transposed(t, x, w, &whole), pad, n, 0);
}

static tg_status compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out, const void *site) {
    const tg_conv_params *p = params;
    tg_tensor *y = transposed(t, in[0], in[1], p), *b = in[2];
    (void)site;
    if (!b || !tg_is_alive(y)) {
        out[0] = y;
        return t->ctx->run.status;
    }
    if (b->ndim != 1 || b->shape[0] != y->shape[1])
        return tg_fail(t->ctx, TG_ERR_SHAPE, "b must be a vector of %s, one for each output channel",
                       tg_count(y->shape[1], "element").text);
    tg_shape shape = {.ndim = p->w.dims + 1, .dim = {b->shape[0], 1, 1}};
    out[0] = tg_add(t, y, tg_reshape(t, b, shape));
    return t->ctx->run.status;
}

#define TRANSPOSE_(dims_, groups_, mh_, mw_, ...)                                                                      \
    &(const tg_conv_params) {                                                                                          \
        .w = TG_WINDOWS(dims_, .size = {1, 1}, __VA_ARGS__), .groups = groups_, .more = {mh_, mw_},                    \
        .result = TG_CONV_X                                                                                            \
    }
#define TRANSPOSE1(step_, pad_, apart_, groups_, more_)                                                                \
    TRANSPOSE_(1, groups_, 0, more_, .step = {1, step_}, .pad = {0, pad_}, .apart = {1, apart_})
#define TRANSPOSE2(sh_, sw_, ph_, pw_, ah_, aw_, groups_, mh_, mw_)                                                    \
    TRANSPOSE_(2, groups_, mh_, mw_, .step = {sh_, sw_}, .pad = {ph_, pw_}, .apart = {ah_, aw_})
#define SAMPLE(note_, params_, ...)                                                                                    \
    {                                                                                                                  \
        .note = note_, .params = params_, .n_in = 3, .input = { __VA_ARGS__ }                                          \
    }
#define REFUSED(note_, status_, params_, ...)                                                                          \
    { .note = note_, .params = params_, .n_in = 3, .input = {__VA_ARGS__}, .refused = status_ }

static const tg_sample transpose1d_samples[] = {
    SAMPLE("three taps", TRANSPOSE1(1, 0, 1, 1, 0), TG_S(2, 3, 4), TG_S(3, 2, 3), TG_S(2)),
    SAMPLE("twice as long", TRANSPOSE1(2, 1, 1, 1, 1), TG_S(2, 2, 3), TG_S(2, 3, 3), TG_S(3)),
    SAMPLE("dilated, no bias", TRANSPOSE1(3, 1, 2, 1, 2), TG_S(1, 2, 3), TG_S(2, 2, 2), TG_S_ABSENT),
    SAMPLE("groups", TRANSPOSE1(2, 0, 1, 2, 0), TG_S(2, 4, 2), TG_S(4, 3, 2), TG_S(6)),
    SAMPLE("transposed", TRANSPOSE1(1, 1, 1, 1, 0), TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4),
           TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 2, 3), TG_S_AS(TG_SAMPLE_STRIDED, 2)),
    SAMPLE("equal lines", TRANSPOSE1(2, 0, 1, 1, 0), TG_S_AS(TG_SAMPLE_EXPANDED, 2, 2, 3), TG_S(2, 2, 2), TG_S(2)),
    SAMPLE("one of all", TRANSPOSE1(1, 0, 1, 1, 0), TG_S(1, 1, 1), TG_S(1, 1, 1), TG_S(1)),
    SAMPLE("empty batch", TRANSPOSE1(2, 0, 1, 1, 0), TG_S(0, 2, 3), TG_S(2, 2, 2), TG_S(2)),
    REFUSED("all removed", TG_ERR_SHAPE, TRANSPOSE1(1, 2, 1, 1, 0), TG_S(1, 1, 2), TG_S(1, 1, 3), TG_S(1)),
    REFUSED("of no elements", TG_ERR_SHAPE, TRANSPOSE1(1, 0, 1, 1, 0), TG_S(1, 1, 0), TG_S(1, 1, 3), TG_S(1)),
    REFUSED("overflow", TG_ERR_SHAPE, TRANSPOSE1(INT64_MAX, 0, 1, 1, 0), TG_S(1, 1, 3), TG_S(1, 1, 3), TG_S(1)),
    {.note = "a vocoder's",
     .params = TRANSPOSE1(2, 1, 1, 1, 0),
     .n_in = 3,
     .input = {TG_S(4, 128, 1024), TG_S(128, 64, 4), TG_S(64)},
     .bench = true},
};

static const tg_sample transpose2d_samples[] = {
    SAMPLE("3 x 2", TRANSPOSE2(1, 1, 0, 0, 1, 1, 1, 0, 0), TG_S(2, 2, 2, 3), TG_S(2, 3, 3, 2), TG_S(3)),
    SAMPLE("twice as large", TRANSPOSE2(2, 2, 1, 1, 1, 1, 1, 1, 1), TG_S(1, 2, 2, 3), TG_S(2, 2, 3, 3), TG_S(2)),
    SAMPLE("other strides, no bias", TRANSPOSE2(2, 3, 1, 0, 1, 1, 1, 0, 2), TG_S(1, 2, 3, 2), TG_S(2, 2, 2, 2),
           TG_S_ABSENT),
    SAMPLE("dilations", TRANSPOSE2(1, 2, 1, 1, 2, 3, 1, 0, 1), TG_S(1, 2, 2, 2), TG_S(2, 2, 2, 2), TG_S(2)),
    SAMPLE("groups", TRANSPOSE2(2, 1, 0, 1, 1, 1, 2, 1, 0), TG_S(2, 4, 2, 2), TG_S(4, 2, 2, 3), TG_S(4)),
    SAMPLE("dilated, more than a stride", TRANSPOSE2(1, 2, 2, 0, 4, 1, 1, 3, 1), TG_S(1, 2, 2, 2), TG_S(2, 2, 2, 2),
           TG_S(2)),
    SAMPLE("1 x 1: x itself", TRANSPOSE2(1, 1, 0, 0, 1, 1, 1, 0, 0), TG_S(2, 3, 2, 2), TG_S(3, 2, 1, 1), TG_S(2)),
    SAMPLE("strided", TRANSPOSE2(2, 2, 0, 0, 1, 1, 1, 0, 0), TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 2, 2),
           TG_S_AS(TG_SAMPLE_STRIDED, 2, 2, 2, 2), TG_S(2)),
    REFUSED("channels differ", TG_ERR_SHAPE, TRANSPOSE2(1, 1, 0, 0, 1, 1, 1, 0, 0), TG_S(1, 2, 2, 2), TG_S(3, 2, 2, 2),
            TG_S(2)),
    REFUSED("uneven groups", TG_ERR_SHAPE, TRANSPOSE2(1, 1, 0, 0, 1, 1, 2, 0, 0), TG_S(1, 3, 2, 2), TG_S(3, 2, 2, 2),
            TG_S(4)),
    REFUSED("no groups", TG_ERR_ARGUMENT, TRANSPOSE2(1, 1, 0, 0, 1, 1, 0, 0, 0), TG_S(1, 2, 2, 2), TG_S(2, 2, 2, 2),
            TG_S(2)),
    REFUSED("more than a stride", TG_ERR_ARGUMENT, TRANSPOSE2(2, 2, 0, 0, 1, 1, 1, 2, 0), TG_S(1, 2, 2, 2),
            TG_S(2, 2, 2, 2), TG_S(2)),
    REFUSED("groups of nothing that overflow", TG_ERR_SHAPE, TRANSPOSE2(1, 1, 0, 0, 1, 1, INT64_C(1) << 62, 0, 0),
            TG_S(1, 0, 2, 2), TG_S(0, 4, 2, 2), TG_S_ABSENT),
    REFUSED("b of another size", TG_ERR_SHAPE, TRANSPOSE2(1, 1, 0, 0, 1, 1, 1, 0, 0), TG_S(1, 2, 2, 2),
            TG_S(2, 2, 2, 2), TG_S(1)),
    REFUSED("too few dims", TG_ERR_SHAPE, TRANSPOSE2(1, 1, 0, 0, 1, 1, 1, 0, 0), TG_S(2, 2, 2), TG_S(2, 2, 2, 2),
            TG_S(2)),
    REFUSED("integers", TG_ERR_DTYPE, TRANSPOSE2(1, 1, 0, 0, 1, 1, 1, 0, 0), TG_S_INDEX(9, 1, 2, 2, 2),
            TG_S_INDEX(9, 2, 2, 2, 2), TG_S_ABSENT),
    {.note = "a decoder's",
     .params = TRANSPOSE2(2, 2, 1, 1, 1, 1, 1, 0, 0),
     .n_in = 3,
     .input = {TG_S(8, 128, 16, 16), TG_S(128, 64, 4, 4), TG_S(64)},
     .bench = true},
};

static const tg_field transpose1d_fields[] = {
    TG_ARG_AS(tg_conv_params, w.step[1], "stride", INT64, "Distance between the starts of windows."),
    TG_ARG_AS(tg_conv_params, w.pad[1], "padding", INT64, "Number of elements that are removed at each end."),
    TG_ARG_AS(tg_conv_params, w.apart[1], "dilation", INT64, "Distance between the elements of a window."),
    TG_ARG(tg_conv_params, groups, INT64, "Number of groups of channels that are convolved separately."),
    TG_ARG_AS(tg_conv_params, more[1], "output_padding", INT64,
              "Elements more at the end, less than the stride or the dilation."),
};
static const tg_field transpose2d_fields[] = {
    TG_ARG_ARRAY(tg_conv_params, w.step, "stride", INT64, 2, "Distances between the starts of windows."),
    TG_ARG_ARRAY(tg_conv_params, w.pad, "padding", INT64, 2, "Numbers of elements that are removed at each end."),
    TG_ARG_ARRAY(tg_conv_params, w.apart, "dilation", INT64, 2, "Distances between the elements of a window."),
    TG_ARG(tg_conv_params, groups, INT64, "Number of groups of channels that are convolved separately."),
    TG_ARG_ARRAY(tg_conv_params, more, "output_padding", INT64, 2,
                 "Elements more at the ends, less than the stride or the dilation."),
};

#define CONV_TRANSPOSE(name_, preset_, fields_, samples_)                                                              \
    const tg_op tg_op_##name_ = {.size = sizeof(tg_op),                                                                \
                                 .name = #name_,                                                                       \
                                 .formula = "windows of y: sums of x times w, + b",                                    \
                                 .inputs = "x w b",                                                                    \
                                 .n_in = 3,                                                                            \
                                 .n_out = 1,                                                                           \
                                 .params_size = sizeof(tg_conv_params),                                                \
                                 .optional = 1u << 2,                                                                  \
                                 .compose = compose,                                                                   \
                                 TG_FIELDS(fields_),                                                                   \
                                 .preset = preset_,                                                                    \
                                 TG_SAMPLES(samples_)}

CONV_TRANSPOSE(conv_transpose1d, TRANSPOSE1(1, 0, 1, 1, 0), transpose1d_fields, transpose1d_samples);
CONV_TRANSPOSE(conv_transpose2d, TRANSPOSE2(1, 1, 0, 0, 1, 1, 1, 0, 0), transpose2d_fields, transpose2d_samples);

/* Returns the gradient of a convolution with w [c, o / groups, k] with respect to its input, where x [n, c, l] is the
 * gradient of the convolution's result, plus b [o] (or NULL): [n, o, m], with
 * m = (l - 1) stride - 2 padding + dilation (k - 1) + 1 + output_padding. */
tg_tensor *tg_conv_transpose1d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts) {
    tg_conv_params p = tg_conv_params_of(1, opts, TG_CONV_X);
    return TG_RECORD(t, tg_op_conv_transpose1d, &p, x, w, b);
}

/* The same for images: x [n, c, h, w], w [c, o / groups, kh, kw]. */
tg_tensor *tg_conv_transpose2d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts) {
    tg_conv_params p = tg_conv_params_of(2, opts, TG_CONV_X);
    return TG_RECORD(t, tg_op_conv_transpose2d, &p, x, w, b);
}
