/* Convolution in three dims. The planes of each window become channels: x [n, c, d, h, w] is rearranged to
 * [n windows, c kd, h, w], one image for each window along d, and w to [o, c / groups kd, kh, kw]. One convolution in
 * two dims does the rest. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

typedef struct conv3d_params {
    int64_t step[3], pad[3], apart[3], groups; /* of d, h and w */
    size_t given;                              /* size of the caller's options struct */
    bool more;                                 /* output_padding is set */
} conv3d_params;

static tg_status check(tg_tape *t, const conv3d_params *p, const tg_tensor *x, const tg_tensor *w) {
    int64_t extent, padded;
    TG_TRY(tg_size_check(t->ctx, p->given, sizeof(tg_conv_opts), "the options"));
    if (p->more)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "option output_padding is set, but this op does not use it; leave it "
                       "at its default");
    if (x->ndim != 5 || w->ndim != 5)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "x has %s and w %s; x must be [n, c, d, h, w] and w [o, c / groups, kd, "
                       "kh, kw]",
                       tg_count(x->ndim, "dim").text, tg_count(w->ndim, "dim").text);
    if (p->groups < 1 || p->step[0] < 1 || p->apart[0] < 1 || p->pad[0] < 0)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "groups is %lld, stride %lld, dilation %lld and padding %lld; the "
                       "first three must be 1 or more and padding 0 or more",
                       (long long)p->groups, (long long)p->step[0], (long long)p->apart[0], (long long)p->pad[0]);
    if (x->shape[1] % p->groups || w->shape[1] != x->shape[1] / p->groups)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "w has %s per group; it must have those of x, %lld, divided by %s",
                       tg_count(w->shape[1], "channel").text, (long long)x->shape[1],
                       tg_count(p->groups, "group").text);
    bool overflows = __builtin_mul_overflow(w->shape[2] - 1, p->apart[0], &extent) ||
                     __builtin_mul_overflow(p->pad[0], 2, &padded) ||
                     __builtin_add_overflow(padded, x->shape[2], &padded);
    if (w->shape[2] < 1 || overflows || extent >= padded)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "a window has %s along d, which do not fit into the %lld of x and its "
                       "padding of %lld",
                       tg_count(w->shape[2], "element").text, (long long)x->shape[2], (long long)p->pad[0]);
    return TG_OK;
}

/* Returns x [n, c, d, h, w] as [n, windows, c, kd, h, w]. */
static tg_tensor *windows_along_d(tg_tape *t, const conv3d_params *p, tg_tensor *x, int64_t kd) {
    if (p->pad[0]) x = tg_pad(t, x, 2, p->pad[0], p->pad[0], 0);
    tg_tensor *y = tg_unfold(t, x, 2, (kd - 1) * p->apart[0] + 1, p->step[0]);
    return tg_permute(t, tg_slice(t, y, 5, 0, INT64_MAX, p->apart[0]), TG_DIMS(0, 2, 1, 5, 3, 4));
}

static tg_status compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out, const void *site) {
    const conv3d_params *p = params;
    tg_tensor *x = in[0], *w = in[1];
    (void)site;
    TG_TRY(check(t, p, x, w));
    const int64_t *k = w->shape;
    tg_tensor *images = windows_along_d(t, p, x, k[2]);
    if (!tg_is_alive(images)) return t->ctx->run.status;
    int64_t n = images->shape[0], windows = images->shape[1];
    images = tg_reshape(t, images, TG_SHAPE(n * windows, x->shape[1] * k[2], x->shape[3], x->shape[4]));
    tg_tensor *taps = tg_reshape(t, w, TG_SHAPE(k[0], k[1] * k[2], k[3], k[4]));
    tg_tensor *y = tg_conv2d(t, images, taps, in[2],
                             TG_CONV(.stride = {p->step[1], p->step[2], 1}, .padding = {p->pad[1], p->pad[2]},
                                     .dilation = {p->apart[1], p->apart[2], 1}, .groups = p->groups));
    if (!tg_is_alive(y)) return t->ctx->run.status;
    y = tg_reshape(t, y, TG_SHAPE(n, windows, k[0], y->shape[2], y->shape[3]));
    out[0] = tg_transpose(t, y, 1, 2);
    return t->ctx->run.status;
}

#define CONV3(step_, pad_, apart_, groups_)                                                                            \
    &(const conv3d_params) {                                                                                           \
        .step = {step_, step_, 1}, .pad = {pad_, 0, pad_}, .apart = {apart_, 1, apart_}, .groups = groups_,            \
        .given = sizeof(tg_conv_opts)                                                                                  \
    }
#define SAMPLE(note_, params_, ...)                                                                                    \
    {                                                                                                                  \
        .note = note_, .params = params_, .n_in = 3, .input = { __VA_ARGS__ }                                          \
    }
#define REFUSED(note_, status_, params_, ...)                                                                          \
    { .note = note_, .params = params_, .n_in = 3, .input = {__VA_ARGS__}, .refused = status_ }

static const tg_sample conv3d_samples[] = {
    SAMPLE("2 x 3 x 2", CONV3(1, 0, 1, 1), TG_S(2, 2, 3, 3, 2), TG_S(3, 2, 2, 3, 2), TG_S(3)),
    SAMPLE("strides, padding, no bias", CONV3(2, 1, 1, 1), TG_S(1, 2, 3, 3, 2), TG_S(2, 2, 3, 2, 2), TG_S_ABSENT),
    SAMPLE("dilations", CONV3(1, 1, 2, 1), TG_S(1, 2, 3, 2, 3), TG_S(2, 2, 2, 1, 2), TG_S(2)),
    SAMPLE("groups", CONV3(1, 0, 1, 2), TG_S(1, 4, 2, 2, 2), TG_S(4, 2, 2, 1, 2), TG_S(4)),
    SAMPLE("single elements", CONV3(1, 0, 1, 1), TG_S(2, 2, 2, 1, 2), TG_S(3, 2, 1, 1, 1), TG_S(3)),
    SAMPLE("transposed", CONV3(1, 0, 1, 1), TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 2, 3, 2),
           TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 2, 2, 2), TG_S_AS(TG_SAMPLE_STRIDED, 2)),
    SAMPLE("empty batch", CONV3(1, 0, 1, 1), TG_S(0, 2, 2, 2, 2), TG_S(2, 2, 2, 2, 2), TG_S(2)),
    REFUSED("too few dims", TG_ERR_SHAPE, CONV3(1, 0, 1, 1), TG_S(1, 2, 2, 2), TG_S(2, 2, 2, 2), TG_S(2)),
    REFUSED("channels differ", TG_ERR_SHAPE, CONV3(1, 0, 1, 1), TG_S(1, 2, 2, 2, 2), TG_S(2, 3, 2, 2, 2), TG_S(2)),
    REFUSED("too deep", TG_ERR_SHAPE, CONV3(1, 0, 1, 1), TG_S(1, 1, 2, 2, 2), TG_S(1, 1, 3, 1, 1), TG_S(1)),
    REFUSED("overflow", TG_ERR_SHAPE, CONV3(1, 0, INT64_MAX, 1), TG_S(1, 1, 4, 2, 2), TG_S(1, 1, 4, 1, 1), TG_S(1)),
    REFUSED("no groups", TG_ERR_ARGUMENT, CONV3(1, 0, 1, 0), TG_S(1, 1, 2, 2, 2), TG_S(1, 1, 2, 2, 2), TG_S(1)),
    REFUSED("b of another size", TG_ERR_SHAPE, CONV3(1, 0, 1, 1), TG_S(1, 1, 2, 2, 2), TG_S(2, 1, 2, 2, 2), TG_S(1)),
    {.note = "video",
     .params = CONV3(1, 1, 1, 1),
     .n_in = 3,
     .input = {TG_S(2, 32, 8, 28, 28), TG_S(32, 32, 3, 3, 3), TG_S(32)},
     .bench = true},
};
#undef SAMPLE
#undef REFUSED

static const tg_field conv3d_fields[] = {
    TG_ARG_ARRAY(conv3d_params, step, "stride", INT64, 3, "Distances between the starts of windows."),
    TG_ARG_ARRAY(conv3d_params, pad, "padding", INT64, 3, "Numbers of zeros that are added at each end."),
    TG_ARG_ARRAY(conv3d_params, apart, "dilation", INT64, 3, "Distances between the elements of a window."),
    TG_ARG(conv3d_params, groups, INT64, "Number of groups of channels that are convolved separately."),
};

const tg_op tg_op_conv3d = {.size = sizeof(tg_op),
                            .name = "conv3d",
                            .formula = "sums of windows of x times w, + b",
                            .inputs = "x w b",
                            .n_in = 3,
                            .n_out = 1,
                            .params_size = sizeof(conv3d_params),
                            .optional = 1u << 2,
                            .compose = compose,
                            TG_FIELDS(conv3d_fields),
                            .preset = CONV3(1, 0, 1, 1),
                            TG_SAMPLES(conv3d_samples)};

/* Convolves x [n, c, d, h, w] with w [o, c / groups, kd, kh, kw], as tg_conv2d does in two dims. The result has the
 * windows along d outside of the channels in memory. */
tg_tensor *tg_conv3d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts) {
    tg_conv_opts o;
    tg_op_options(&o, &tg_conv_opts_struct, opts);
    conv3d_params p = {.groups = o.groups, .given = o.size};
    memcpy(p.step, o.stride, sizeof p.step);
    memcpy(p.pad, o.padding, sizeof p.pad);
    memcpy(p.apart, o.dilation, sizeof p.apart);
    for (int d = 0; d < 3; d++) p.more |= o.output_padding[d] != 0;
    return TG_RECORD(t, tg_op_conv3d, &p, x, w, b);
}
