/* Transposed convolution in three dims. The planes of w become channels: one transposed convolution in two dims gives,
 * for each plane of x, the planes of the result that it adds to. col2im adds these along d. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

typedef struct volume_params {
    int64_t step[3], pad[3], apart[3], more[3], groups; /* of d, h and w */
    size_t given;                                       /* size of the caller's options struct */
} volume_params;

static tg_status check(tg_tape *t, const volume_params *p, const tg_tensor *x, const tg_tensor *w) {
    TG_TRY(tg_size_check(t->ctx, p->given, sizeof(tg_conv_opts), "the options"));
    if (x->ndim != 5 || w->ndim != 5)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "x has %s and w %s; x must be [n, c, d, h, w] and w [c, o / groups, kd, kh, kw]",
                       tg_count(x->ndim, "dim").text, tg_count(w->ndim, "dim").text);
    if (p->groups < 1)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "groups is %lld; it must be 1 or more", (long long)p->groups);
    if (w->shape[0] != x->shape[1] || x->shape[1] % p->groups)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "x has %s, w is for %lld, and groups is %lld; the first two must be equal, and groups must "
                       "divide them",
                       tg_count(x->shape[1], "channel").text, (long long)w->shape[0], (long long)p->groups);
    int64_t channels;
    if (__builtin_mul_overflow(w->shape[1], p->groups, &channels))
        return tg_fail(t->ctx, TG_ERR_SHAPE, "%s of w for each of %lld groups overflow 64 bits",
                       tg_count(w->shape[1], "output channel").text, (long long)p->groups);
    return TG_OK;
}

/* Returns the size of the result along d before padding is removed and output_padding added. Returns 0 after recording
 * an error: the arguments for d are checked as the convolution in two dims checks those for h and w. */
static int64_t depth_of(tg_tape *t, const volume_params *p, int64_t d, int64_t kd) {
    int64_t step = p->step[0], apart = p->apart[0], pad = p->pad[0], more = p->more[0], size, extent, twice;
    if (d < 1 || kd < 1 || step < 1 || apart < 1 || pad < 0 || more < 0 || (more >= step && more >= apart)) {
        tg_fail(t->ctx, TG_ERR_ARGUMENT,
                "x has %lld and w %lld elements along d, stride is %lld, dilation %lld, padding %lld and "
                "output_padding %lld; the first four must be 1 or more, padding 0 or more, and output_padding "
                "0 or more and less than the stride or the dilation",
                (long long)d, (long long)kd, (long long)step, (long long)apart, (long long)pad, (long long)more);
        return 0;
    }
    if (__builtin_mul_overflow(d - 1, step, &size) || __builtin_mul_overflow(kd - 1, apart, &extent) ||
        __builtin_add_overflow(size, extent, &size) || __builtin_add_overflow(size, 1 + more, &size) ||
        __builtin_mul_overflow(pad, 2, &twice) || size <= twice) {
        tg_fail(t->ctx, TG_ERR_SHAPE,
                "the result has no elements along d, or their number overflows 64 bits; padding removes %lld at each "
                "end", (long long)pad);
        return 0;
    }
    return size - more;
}

/* Adds planes [n, d, o, kd, h, w] along d to [n, o, size, h, w]. */
static tg_tensor *add_planes(tg_tape *t, const volume_params *p, tg_tensor *y, int64_t size) {
    int64_t n = tg_dim(y, 0), d = tg_dim(y, 1), o = tg_dim(y, 2), kd = tg_dim(y, 3), h = tg_dim(y, 4), w = tg_dim(y, 5);
    tg_tensor *columns = tg_reshape(t, tg_permute(t, y, TG_DIMS(0, 2, 4, 5, 3, 1)), TG_SHAPE(n, o * h * w * kd, d));
    y = tg_col2im(t, columns, TG_SHAPE(size, 1), kd, 1,
                  TG_CONV(.stride = {p->step[0], 1, 1}, .dilation = {p->apart[0], 1, 1}));
    return tg_permute(t, tg_reshape(t, y, TG_SHAPE(n, o, h, w, size)), TG_DIMS(0, 1, 4, 2, 3));
}

/* Returns the planes [n, d, o, kd, h, w] that each plane of x adds to the result. */
static tg_tensor *planes(tg_tape *t, const volume_params *p, tg_tensor *x, tg_tensor *w) {
    const int64_t *s = x->shape, *k = w->shape;
    tg_tensor *images = tg_reshape(t, tg_transpose(t, x, 1, 2), TG_SHAPE(s[0] * s[2], s[1], s[3], s[4]));
    tg_tensor *taps = tg_reshape(t, w, TG_SHAPE(k[0], k[1] * k[2], k[3], k[4]));
    tg_tensor *y = tg_conv_transpose2d(
        t, images, taps, NULL,
        TG_CONV(.stride = {p->step[1], p->step[2], 1}, .padding = {p->pad[1], p->pad[2]},
                .dilation = {p->apart[1], p->apart[2], 1}, .output_padding = {p->more[1], p->more[2]},
                .groups = p->groups));
    if (!tg_is_alive(y)) return y;
    return tg_reshape(t, y, TG_SHAPE(s[0], s[2], k[1] * p->groups, k[2], y->shape[2], y->shape[3]));
}

static tg_status compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out, const void *site) {
    const volume_params *p = params;
    tg_tensor *x = in[0], *w = in[1], *b = in[2];
    (void)site;
    TG_TRY(check(t, p, x, w));
    int64_t size = depth_of(t, p, x->shape[2], w->shape[2]);
    if (!size) return t->ctx->run.status;
    int64_t o = w->shape[1] * p->groups;
    if (b && (b->ndim != 1 || b->shape[0] != o))
        return tg_fail(t->ctx, TG_ERR_SHAPE, "b must be a vector of %s, one for each output channel",
                       tg_count(o, "element").text);
    tg_tensor *wide = tg_wide(t, x), *taps = tg_wide(t, w);
    if (!tg_is_alive(wide) || !tg_is_alive(taps)) return t->ctx->run.status;
    tg_tensor *y = planes(t, p, wide, taps);
    if (!tg_is_alive(y)) return t->ctx->run.status;
    const int64_t pad[] = {0, 0, 0, 0, -p->pad[0], p->more[0] - p->pad[0]};
    y = tg_constant_pad(t, add_planes(t, p, y, size), pad, TG_LEN(pad), 0);
    if (b) y = tg_add(t, y, tg_reshape(t, tg_wide(t, b), TG_SHAPE(o, 1, 1, 1)));
    out[0] = y->dtype == x->dtype ? y : tg_cast(t, y, (tg_dtype)x->dtype);
    return t->ctx->run.status;
}

#define VOLUME(step_, pad_, apart_, more_, groups_)                                                                    \
    &(const volume_params) {                                                                                           \
        .step = {step_, step_, 1}, .pad = {pad_, 0, pad_}, .apart = {apart_, 1, apart_}, .more = {more_, more_, 0},    \
        .groups = groups_, .given = sizeof(tg_conv_opts)                                                               \
    }
#define SAMPLE(note_, params_, ...) {.note = note_, .params = params_, .n_in = 3, .input = {__VA_ARGS__}}
#define REFUSED(note_, status_, params_, ...) \
    {.note = note_, .params = params_, .n_in = 3, .input = {__VA_ARGS__}, .refused = status_}
static const tg_sample volume_samples[] = {
    SAMPLE("2 x 3 x 2", VOLUME(1, 0, 1, 0, 1), TG_S(2, 2, 2, 2, 3), TG_S(2, 3, 2, 3, 2), TG_S(3)),
    SAMPLE("twice as large, no bias", VOLUME(2, 1, 1, 1, 1), TG_S(1, 2, 2, 2, 3), TG_S(2, 2, 3, 2, 3), TG_S_ABSENT),
    SAMPLE("dilations", VOLUME(1, 1, 2, 0, 1), TG_S(1, 2, 3, 2, 3), TG_S(2, 2, 2, 1, 2), TG_S(2)),
    SAMPLE("dilated, more than a stride",
           (&(const volume_params){.step = {1, 1, 1}, .pad = {2, 0, 0}, .apart = {4, 1, 1}, .more = {3, 0, 0},
                                   .groups = 1, .given = sizeof(tg_conv_opts)}),
           TG_S(1, 2, 2, 1, 2), TG_S(2, 2, 2, 1, 2), TG_S(2)),
    SAMPLE("groups", VOLUME(2, 0, 1, 0, 2), TG_S(1, 4, 2, 2, 2), TG_S(4, 3, 2, 1, 2), TG_S(6)),
    SAMPLE("single elements", VOLUME(1, 0, 1, 0, 1), TG_S(2, 2, 2, 1, 2), TG_S(2, 3, 1, 1, 1), TG_S(3)),
    SAMPLE("transposed", VOLUME(1, 0, 1, 0, 1), TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 2, 3, 2),
           TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 2, 2, 2), TG_S_AS(TG_SAMPLE_STRIDED, 2)),
    SAMPLE("empty batch", VOLUME(1, 0, 1, 0, 1), TG_S(0, 2, 2, 2, 2), TG_S(2, 2, 2, 2, 2), TG_S(2)),
    REFUSED("too few dims", TG_ERR_SHAPE, VOLUME(1, 0, 1, 0, 1), TG_S(1, 2, 2, 2), TG_S(2, 2, 2, 2), TG_S(2)),
    REFUSED("channels differ", TG_ERR_SHAPE, VOLUME(1, 0, 1, 0, 1), TG_S(1, 2, 2, 2, 2), TG_S(3, 2, 2, 2, 2), TG_S(2)),
    REFUSED("all removed", TG_ERR_SHAPE, VOLUME(1, 2, 1, 0, 1), TG_S(1, 1, 2, 2, 2), TG_S(1, 1, 3, 1, 1), TG_S(1)),
    REFUSED("more than a stride", TG_ERR_ARGUMENT, VOLUME(2, 0, 1, 2, 1), TG_S(1, 1, 2, 2, 2), TG_S(1, 1, 2, 2, 2),
            TG_S(1)),
    REFUSED("groups of nothing that overflow", TG_ERR_SHAPE, VOLUME(1, 0, 1, 0, INT64_C(1) << 62), TG_S(1, 0, 2, 2, 2),
            TG_S(0, 4, 2, 2, 2), TG_S_ABSENT),
    REFUSED("b of another size", TG_ERR_SHAPE, VOLUME(1, 0, 1, 0, 1), TG_S(1, 1, 2, 2, 2), TG_S(1, 2, 2, 2, 2),
            TG_S(1)),
    {.note = "a decoder's", .params = VOLUME(2, 0, 1, 0, 1), .n_in = 3,
     .input = {TG_S(2, 32, 8, 14, 14), TG_S(32, 16, 2, 2, 2), TG_S(16)}, .bench = true},
};
#undef SAMPLE
#undef REFUSED

static const tg_field volume_fields[] = {
    TG_ARG_ARRAY(volume_params, step, "stride", INT64, 3, "Distances between the starts of windows."),
    TG_ARG_ARRAY(volume_params, pad, "padding", INT64, 3, "Numbers of elements that are removed at each end."),
    TG_ARG_ARRAY(volume_params, apart, "dilation", INT64, 3, "Distances between the elements of a window."),
    TG_ARG(volume_params, groups, INT64, "Number of groups of channels that are convolved separately."),
    TG_ARG_ARRAY(volume_params, more, "output_padding", INT64, 3,
                 "Elements more at the ends, less than the stride or the dilation."),
};

const tg_op tg_op_conv_transpose3d = {
    .size = sizeof(tg_op), .name = "conv_transpose3d", .formula = "windows of y: sums of x times w, + b",
    .inputs = "x w b", .n_in = 3, .n_out = 1, .params_size = sizeof(volume_params), .optional = 1u << 2,
    .compose = compose, TG_FIELDS(volume_fields), .preset = VOLUME(1, 0, 1, 0, 1), TG_SAMPLES(volume_samples)};

/* Returns the transposed convolution of x [n, c, d, h, w] with w [c, o / groups, kd, kh, kw], plus b, as
 * tg_conv_transpose2d does in two dims. 16-bit sums run in float32. */
tg_tensor *tg_conv_transpose3d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts) {
    tg_conv_opts o;
    tg_op_options(&o, &tg_conv_opts_struct, opts);
    volume_params p = {.groups = o.groups, .given = o.size};
    memcpy(p.step, o.stride, sizeof p.step);
    memcpy(p.pad, o.padding, sizeof p.pad);
    memcpy(p.apart, o.dilation, sizeof p.apart);
    memcpy(p.more, o.output_padding, sizeof p.more);
    return TG_RECORD(t, tg_op_conv_transpose3d, &p, x, w, b);
}
