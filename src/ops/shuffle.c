/* Ops that move elements between channels and places of images, composed of reshape and permute: pixel_shuffle,
 * pixel_unshuffle and channel_shuffle. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct shuffle_params {
    int64_t n; /* factor of the sizes, or number of groups */
} shuffle_params;

/* Checks that x has 3 to `most` dims, and that the argument n, which messages call `what`, is in range. `layout` is the
 * shape of x, for messages. */
static tg_status check(tg_tape *t, const tg_tensor *x, const char *what, int64_t n, const char *layout, int most) {
    if (x->ndim < 3 || x->ndim > most)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "x has %s; it must be %s with 3 to %d dims", tg_count(x->ndim, "dim").text,
                       layout, most);
    if (n < 1 || n > INT32_MAX)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s is %lld; it must be 1 or more, and below 2^31", what, (long long)n);
    return TG_OK;
}

static tg_status refuse_division(tg_tape *t, const tg_tensor *x, int d, int64_t by) {
    return tg_fail(t->ctx, TG_ERR_SHAPE, "dim %d has %s, which %lld does not divide", d,
                   tg_count(x->shape[d], "element").text, (long long)by);
}

static tg_status refuse_overflow(tg_tape *t, int64_t factor) {
    return tg_fail(t->ctx, TG_ERR_SHAPE, "factor is %lld, with which a size of the result overflows 64 bits",
                   (long long)factor);
}

/* Reshapes x to `leading` dims of x, which are kept, and the n sizes. */
static tg_tensor *reshape_last(tg_tape *t, tg_tensor *x, int leading, int n, const int64_t *sizes) {
    tg_shape shape = {.ndim = leading + n};
    for (int d = 0; d < leading; d++) shape.dim[d] = tg_dim(x, d);
    memcpy(shape.dim + leading, sizes, (size_t)n * sizeof *sizes);
    return tg_reshape(t, x, shape);
}

/* Permutes the last n dims of x, as order says in numbers from 0 to n - 1. */
static tg_tensor *permute_last(tg_tape *t, tg_tensor *x, int n, const int *order) {
    tg_dims all = {.n = tg_ndim(x)};
    for (int d = 0; d < all.n; d++) all.dim[d] = d < all.n - n ? d : all.n - n + order[d - (all.n - n)];
    return tg_permute(t, x, all);
}

static tg_status pixel_shuffle_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                       const void *site) {
    const int64_t r = ((const shuffle_params *)params)->n;
    tg_tensor *x = in[0];
    int at = x->ndim - 3;
    (void)site;
    TG_TRY(check(t, x, "factor", r, "[.., c, h, w]", TG_MAX_DIMS - 2));
    const int64_t c = x->shape[at], h = x->shape[at + 1], w = x->shape[at + 2];
    int64_t height, width;
    if (c % (r * r)) return refuse_division(t, x, at, r * r);
    if (__builtin_mul_overflow(h, r, &height) || __builtin_mul_overflow(w, r, &width)) return refuse_overflow(t, r);
    tg_tensor *y = reshape_last(t, x, at, 5, (const int64_t[]){c / (r * r), r, r, h, w});
    y = permute_last(t, y, 5, (const int[]){0, 3, 1, 4, 2});
    out[0] = reshape_last(t, y, at, 3, (const int64_t[]){c / (r * r), height, width});
    return t->ctx->run.status;
}

static tg_status pixel_unshuffle_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                         const void *site) {
    const int64_t r = ((const shuffle_params *)params)->n;
    tg_tensor *x = in[0];
    int at = x->ndim - 3;
    (void)site;
    TG_TRY(check(t, x, "factor", r, "[.., c, h, w]", TG_MAX_DIMS - 2));
    const int64_t c = x->shape[at], h = x->shape[at + 1] / r, w = x->shape[at + 2] / r;
    for (int d = at + 1; d < at + 3; d++)
        if (x->shape[d] % r) return refuse_division(t, x, d, r);
    int64_t channels;
    if (__builtin_mul_overflow(c, r * r, &channels)) return refuse_overflow(t, r);
    tg_tensor *y = reshape_last(t, x, at, 5, (const int64_t[]){c, h, r, w, r});
    y = permute_last(t, y, 5, (const int[]){0, 2, 4, 1, 3});
    out[0] = reshape_last(t, y, at, 3, (const int64_t[]){channels, h, w});
    return t->ctx->run.status;
}

static tg_status channel_shuffle_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                         const void *site) {
    const int64_t groups = ((const shuffle_params *)params)->n;
    tg_tensor *x = in[0];
    (void)site;
    TG_TRY(check(t, x, "groups", groups, "[n, c, ..]", TG_MAX_DIMS - 1));
    if (x->shape[1] % groups) return refuse_division(t, x, 1, groups);
    tg_shape shape = tg_shape_kept(x),
             split = {.ndim = x->ndim + 1, .dim = {x->shape[0], groups, x->shape[1] / groups}};
    memcpy(split.dim + 3, shape.dim + 2, (size_t)(x->ndim - 2) * sizeof *split.dim);
    out[0] = tg_reshape(t, tg_transpose(t, tg_reshape(t, x, split), 1, 2), shape);
    return t->ctx->run.status;
}

#define BY(n_)                                                                                                         \
    &(const shuffle_params) { n_ }
#define COMMON_SAMPLES                                                                                                 \
    {.note = "images", .params = BY(2), .n_in = 1, .input = {TG_S(2, 4, 2, 4)}},                                       \
        {.note = "transposed", .params = BY(2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 8, 2, 4)}},      \
        {.note = "strided", .params = BY(2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 1, 4, 4, 2)}},            \
        {.note = "expanded", .params = BY(2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 4, 2, 2)}},          \
        {.note = "by 1", .params = BY(1), .n_in = 1, .input = {TG_S(1, 3, 2, 2)}},                                     \
        {.note = "integers", .params = BY(2), .n_in = 1, .input = {TG_S_INDEX(9, 1, 4, 2, 2)}},                        \
        {.note = "empty batch", .params = BY(2), .n_in = 1, .input = {TG_S(0, 4, 2, 2)}},                              \
        {.note = "by 0", .params = BY(0), .n_in = 1, .input = {TG_S(1, 4, 2, 2)}, .refused = TG_ERR_ARGUMENT},         \
        {.note = "too few dims", .params = BY(2), .n_in = 1, .input = {TG_S(4, 4)}, .refused = TG_ERR_SHAPE},          \
        {.note = "uneven", .params = BY(3), .n_in = 1, .input = {TG_S(1, 4, 4, 4)}, .refused = TG_ERR_SHAPE}, {        \
        .note = "big", .params = BY(2), .n_in = 1, .input = {TG_S(8, 64, 64, 64)}, .bench = true                       \
    }

static const tg_sample pixel_samples[] = {
    COMMON_SAMPLES,
    {.note = "one image", .params = BY(2), .n_in = 1, .input = {TG_S(4, 4, 2)}},
    {.note = "stacks of images", .params = BY(2), .n_in = 1, .input = {TG_S(2, 1, 4, 2, 2)}},
};
static const tg_sample channel_samples[] = {
    COMMON_SAMPLES, {.note = "lines, three groups", .params = BY(3), .n_in = 1, .input = {TG_S(2, 6, 2)}}};

static const tg_field shuffle_fields[] = {
    TG_ARG_AS(shuffle_params, n, "factor", INT64, "Factor of the height and the width.", .required = true)};
static const tg_field unshuffle_fields[] = {
    TG_ARG_AS(shuffle_params, n, "factor", INT64, "Divisor of the height and the width.", .required = true)};
static const tg_field channel_fields[] = {
    TG_ARG_AS(shuffle_params, n, "groups", INT64, "Number of groups of channels.", .required = true)};

#define SHUFFLE(name_, formula_, fields_, samples_)                                                                    \
    const tg_op tg_op_##name_ = {.size = sizeof(tg_op),                                                                \
                                 .name = #name_,                                                                       \
                                 .formula = formula_,                                                                  \
                                 .inputs = "x",                                                                        \
                                 .n_in = 1,                                                                            \
                                 .n_out = 1,                                                                           \
                                 .params_size = sizeof(shuffle_params),                                                \
                                 .compose = name_##_compose,                                                           \
                                 TG_FIELDS(fields_),                                                                   \
                                 TG_SAMPLES(samples_)}

SHUFFLE(pixel_shuffle, "y[.., c, h r + i, w r + j] = x[.., (c r + i) r + j, h, w]", shuffle_fields, pixel_samples);
SHUFFLE(pixel_unshuffle, "y[.., (c r + i) r + j, h, w] = x[.., c, h r + i, w r + j]", unshuffle_fields, pixel_samples);
SHUFFLE(channel_shuffle, "the channels of each group dealt out over all groups", channel_fields, channel_samples);

/* Makes images larger: the elements of factor^2 channels at one place become factor x factor neighboring elements of
 * one channel. x [.., c factor^2, h, w] -> [.., c, h factor, w factor]. */
tg_tensor *tg_pixel_shuffle(tg_tape *t, tg_tensor *x, int64_t factor) {
    return TG_RECORD(t, tg_op_pixel_shuffle, &(shuffle_params){factor}, x);
}

/* The reverse of tg_pixel_shuffle: x [.., c, h factor, w factor] -> [.., c factor^2, h, w]. */
tg_tensor *tg_pixel_unshuffle(tg_tape *t, tg_tensor *x, int64_t factor) {
    return TG_RECORD(t, tg_op_pixel_unshuffle, &(shuffle_params){factor}, x);
}

/* Channel j of group i of x [n, c, ..] becomes channel j * groups + i. */
tg_tensor *tg_channel_shuffle(tg_tape *t, tg_tensor *x, int64_t groups) {
    return TG_RECORD(t, tg_op_channel_shuffle, &(shuffle_params){groups}, x);
}
