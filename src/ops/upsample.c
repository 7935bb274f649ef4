/* Resizing of the last dims of x [n, c, ..], by the nearest element or by linear interpolation between two neighbors.
 * The ops are composed: the dims are resized one after another, from the last to the first.
 *
 * Positions are computed as PyTorch computes them: in float32, or in float64 for the interpolation of float64. They
 * differ where PyTorch ignores a given scale, as it does if the size of a dim stays the same. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

enum { SPATIAL = 3 }; /* the most dims that are resized */

typedef struct upsample_params {
    tg_shape size;
    double scale[SPATIAL];
    bool align;
    size_t given; /* size of the caller's options struct */
} upsample_params;

static tg_status check(tg_tape *t, const upsample_params *p, const tg_tensor *x) {
    int k = (int)p->size.ndim;
    TG_TRY(tg_size_check(t->ctx, p->given, sizeof(tg_upsample_opts), "the options"));
    if (p->size.ndim < 1 || p->size.ndim > SPATIAL || x->ndim != k + 2)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "size has %s and x has %s; expected 1 to %d numbers, and x [n, c, ..] with a dim after c for "
                       "each",
                       tg_count(p->size.ndim, "number").text, tg_count(x->ndim, "dim").text, SPATIAL);
    if (!tg_is_float(x->dtype))
        return tg_fail(t->ctx, TG_ERR_DTYPE, "x is %s; expected a float dtype", tg_dtype_name((tg_dtype)x->dtype));
    for (int d = 0; d < SPATIAL; d++) {
        double s = p->scale[d];
        if (s != TG_AUTO && !(d < k && s > 0 && s < INFINITY))
            return tg_fail(t->ctx, TG_ERR_ARGUMENT, "scale%d is %g; it must be %s", d, s,
                           d < k ? "above 0 and finite, or TG_AUTO" : "TG_AUTO, as size has no number for that dim");
        if (s != TG_AUTO && p->align)
            return tg_fail(t->ctx, TG_ERR_ARGUMENT, "scale%d is %g, but align_corners is set; it must be TG_AUTO then",
                           d, s);
        if (d < k && (p->size.dim[d] < 1 || x->shape[d + 2] < 1))
            return tg_fail(t->ctx, TG_ERR_SHAPE, "size[%d] is %lld, for a dim of %s; both must be 1 or more", d,
                           (long long)p->size.dim[d], tg_count(x->shape[d + 2], "element").text);
    }
    return TG_OK;
}

/* Returns how far apart in x the positions of neighboring elements of the result are, along dim d + 2, where x has n
 * elements. */
static double step_of(const upsample_params *p, int d, int64_t n) {
    double out = (double)p->size.dim[d], in = (double)n;
    if (p->align) return out > 1 ? (in - 1) / (out - 1) : 0;
    return p->scale[d] != TG_AUTO ? 1 / p->scale[d] : in / out;
}

/* Returns the numbers 0 to n - 1. */
static tg_tensor *count(tg_tape *t, tg_dtype dtype, int64_t n) { return tg_arange(t, dtype, 0, (double)n, 1); }

/* Returns the positions `at` as indices from 0 to n - 1. They are clamped after the cast, because a float32 may
 * round n - 1 to n. */
static tg_tensor *indices(tg_tape *t, tg_tensor *at, int64_t n) {
    return tg_clamp(t, tg_cast(t, at, TG_I64), 0, (double)(n - 1));
}

/* ---- Nearest ---- */

/* Returns x with each element along dim repeated `times` times. */
static tg_tensor *repeat_elements(tg_tape *t, tg_tensor *x, int dim, int64_t times) {
    tg_shape shape = tg_shape_kept(x), wide = {.ndim = shape.ndim + 1};
    for (int d = 0; d <= shape.ndim; d++) wide.dim[d] = d == dim + 1 ? times : shape.dim[d - (d > dim)];
    shape.dim[dim] *= times;
    return tg_reshape(t, tg_expand(t, tg_unsqueeze(t, x, dim + 1), wide), shape);
}

/* Takes element floor(i step) for element i of the result. If the result has 2, 4, 8, .. times as many elements and the
 * step is the reciprocal, elements are repeated, which needs no index. For a factor such as 41 the step is rounded, and
 * floor(41 step) is 0 in place of 1, as it is in PyTorch. */
static tg_tensor *nearest_along(tg_tape *t, const upsample_params *p, int d, tg_tensor *x) {
    int64_t n = tg_dim(x, d + 2), out = p->size.dim[d];
    float step = (float)step_of(p, d, n);
    if (step == 1 && out == n) return x;
    int64_t times = out / n;
    if (out % n == 0 && (times & (times - 1)) == 0 && step == 1 / (float)times)
        return repeat_elements(t, x, d + 2, times);
    tg_tensor *at = tg_floor(t, tg_scale(t, count(t, TG_F32, out), step));
    return tg_index_select(t, x, d + 2, indices(t, at, n));
}

/* ---- Linear ---- */

/* Returns w, a weight for each element of the result along dim d + 2, with dims of size 1 after it. So w belongs to
 * that dim, and broadcasts along the others. */
static tg_tensor *weights_along(tg_tape *t, tg_tensor *w, const tg_tensor *x, int d) {
    tg_shape shape = {.ndim = x->ndim - d - 2};
    for (int k = 0; k < shape.ndim; k++) shape.dim[k] = k ? 1 : tg_dim(w, 0);
    return tg_reshape(t, w, shape);
}

/* Element i of the result is interpolated between the two neighbors of its position in x: i step if corners are
 * aligned, else (i + 1/2) step - 1/2, clamped to [0, n - 1]. */
static tg_tensor *linear_along(tg_tape *t, const upsample_params *p, int d, tg_tensor *x) {
    int64_t n = tg_dim(x, d + 2), out = p->size.dim[d];
    double step = step_of(p, d, n);
    if (step == 1 && out == n) return x;
    tg_tensor *at = count(t, (tg_dtype)x->dtype, out);
    at = p->align ? tg_scale(t, at, step) : tg_add_scalar(t, tg_scale(t, tg_add_scalar(t, at, 0.5), step), -0.5);
    at = tg_clamp(t, at, 0, (double)(n - 1));
    tg_tensor *before = tg_floor(t, at), *after = tg_add_scalar(t, before, 1);
    tg_tensor *weight = weights_along(t, tg_sub(t, at, before), x, d);
    return tg_lerp(t, tg_index_select(t, x, d + 2, indices(t, before, n)),
                   tg_index_select(t, x, d + 2, indices(t, after, n)), weight);
}

typedef tg_tensor *(*along_fn)(tg_tape *t, const upsample_params *p, int d, tg_tensor *x);

/* The result is never x itself, so that it can be dropped like any result. */
static tg_tensor *resize(tg_tape *t, const upsample_params *p, tg_tensor *x, along_fn along) {
    tg_tensor *y = x;
    for (int d = (int)p->size.ndim - 1; d >= 0 && tg_is_alive(y); d--) y = along(t, p, d, y);
    return y == x ? tg_slice(t, x, 0, 0, INT64_MAX, 1) : y;
}

static tg_status upsample_nearest_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                          const void *site) {
    const upsample_params *p = params;
    (void)site;
    TG_TRY(check(t, p, in[0]));
    if (p->align) return tg_fail(t->ctx, TG_ERR_ARGUMENT, "align_corners is set, but only upsample_linear uses it");
    out[0] = resize(t, p, in[0], nearest_along);
    return t->ctx->run.status;
}

static tg_status upsample_linear_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                         const void *site) {
    const upsample_params *p = params;
    (void)site;
    TG_TRY(check(t, p, in[0]));
    tg_tensor *y = resize(t, p, tg_wide(t, in[0]), linear_along);
    out[0] = y->dtype == in[0]->dtype ? y : tg_cast(t, y, (tg_dtype)in[0]->dtype);
    return t->ctx->run.status;
}

#define UP_(align_, s0_, s1_, s2_, ...)                                                                                \
    &(const upsample_params) {                                                                                         \
        .size = TG_S_SHAPE(__VA_ARGS__), .scale = {s0_, s1_, s2_}, .align = (align_),                                  \
        .given = sizeof(tg_upsample_opts)                                                                              \
    }
#define UP(...) UP_(false, TG_AUTO, TG_AUTO, TG_AUTO, __VA_ARGS__)
#define SAMPLES_OF_BOTH                                                                                                \
    {.note = "twice as large", .params = UP(4, 6), .n_in = 1, .input = {TG_S(2, 2, 2, 3)}},                            \
        {.note = "by fractions, one larger and one smaller",                                                           \
         .params = UP(5, 3),                                                                                           \
         .n_in = 1,                                                                                                    \
         .input = {TG_S(1, 2, 3, 4)}},                                                                                 \
        {.note = "lines", .params = UP(7), .n_in = 1, .input = {TG_S(2, 3, 3)}},                                       \
        {.note = "volumes", .params = UP(4, 3, 1), .n_in = 1, .input = {TG_S(1, 2, 2, 2, 3)}},                         \
        {.note = "given scales",                                                                                       \
         .params = UP_(false, 1.7, 2.2, TG_AUTO, 5, 6),                                                                \
         .n_in = 1,                                                                                                    \
         .input = {TG_S(2, 1, 3, 3)}},                                                                                 \
        {.note = "as large", .params = UP(3, 4), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 3, 4)}},     \
        {.note = "strided", .params = UP(6), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 2, 4)}},               \
        {.note = "expanded", .params = UP(3), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 2, 2)}},             \
        {.note = "of one element", .params = UP(3, 2), .n_in = 1, .input = {TG_S(1, 1, 1, 1)}},                        \
        {.note = "empty batch", .params = UP(4), .n_in = 1, .input = {TG_S(0, 2, 2)}},                                 \
        {.note = "to nothing", .params = UP(0), .n_in = 1, .input = {TG_S(1, 2, 2)}, .refused = TG_ERR_SHAPE},         \
        {.note = "of nothing", .params = UP(2), .n_in = 1, .input = {TG_S(1, 2, 0)}, .refused = TG_ERR_SHAPE},         \
        {.note = "too few dims", .params = UP(2, 2), .n_in = 1, .input = {TG_S(2, 3, 3)}, .refused = TG_ERR_SHAPE},    \
        {.note = "negative scale",                                                                                     \
         .params = UP_(false, -2, TG_AUTO, TG_AUTO, 4),                                                                \
         .n_in = 1,                                                                                                    \
         .input = {TG_S(1, 1, 2)},                                                                                     \
         .refused = TG_ERR_ARGUMENT},                                                                                  \
        {.note = "a scale too many",                                                                                   \
         .params = UP_(false, 2, 2, TG_AUTO, 4),                                                                       \
         .n_in = 1,                                                                                                    \
         .input = {TG_S(1, 1, 2)},                                                                                     \
         .refused = TG_ERR_ARGUMENT},                                                                                  \
        {.note = "integers", .params = UP(2), .n_in = 1, .input = {TG_S_INDEX(9, 1, 1, 4)}, .refused = TG_ERR_DTYPE},  \
    {                                                                                                                  \
        .note = "a decoder's", .params = UP(128, 128), .n_in = 1, .input = {TG_S(4, 64, 64, 64)}, .bench = true        \
    }

static const tg_sample nearest_samples[] = {
    SAMPLES_OF_BOTH,
    {.note = "aligned corners",
     .params = UP_(true, TG_AUTO, TG_AUTO, TG_AUTO, 4),
     .n_in = 1,
     .input = {TG_S(1, 1, 2)},
     .refused = TG_ERR_ARGUMENT},
};
static const tg_sample linear_samples[] = {
    SAMPLES_OF_BOTH,
    {.note = "aligned corners and a scale",
     .params = UP_(true, 2, TG_AUTO, TG_AUTO, 4),
     .n_in = 1,
     .input = {TG_S(1, 1, 2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "aligned corners",
     .params = UP_(true, TG_AUTO, TG_AUTO, TG_AUTO, 5, 1),
     .n_in = 1,
     .input = {TG_S(2, 2, 3, 2)}},
};

#define SCALE_FIELD(d_, name_, dim_)                                                                                   \
    TG_ARG_AS(upsample_params, scale[d_], name_, DOUBLE,                                                               \
              "Factor from x to the result along dim " dim_ "; -1 means the ratio of the sizes.")
#define UP_FIELDS                                                                                                      \
    TG_ARG(upsample_params, size, SHAPE, "Sizes of the dims after n and c.", .required = true),                        \
        SCALE_FIELD(0, "scale0", "2"), SCALE_FIELD(1, "scale1", "3"), SCALE_FIELD(2, "scale2", "4")
static const tg_field nearest_fields[] = {UP_FIELDS};
static const tg_field linear_fields[] = {
    UP_FIELDS, TG_ARG_AS(upsample_params, align, "align_corners", BOOL,
                         "The first and last elements of the result lie at those of x.")};
static const upsample_params preset = {.scale = {TG_AUTO, TG_AUTO, TG_AUTO}, .given = sizeof(tg_upsample_opts)};

#define UPSAMPLE(name_, formula_, fields_, samples_)                                                                   \
    const tg_op tg_op_##name_ = {.size = sizeof(tg_op),                                                                \
                                 .name = #name_,                                                                       \
                                 .formula = formula_,                                                                  \
                                 .inputs = "x",                                                                        \
                                 .n_in = 1,                                                                            \
                                 .n_out = 1,                                                                           \
                                 .params_size = sizeof(upsample_params),                                               \
                                 .compose = name_##_compose,                                                           \
                                 TG_FIELDS(fields_),                                                                   \
                                 .preset = &preset,                                                                    \
                                 TG_SAMPLES(samples_)}

UPSAMPLE(upsample_nearest, "x resized to size, by the nearest elements", nearest_fields, nearest_samples);
UPSAMPLE(upsample_linear, "x resized to size, by linear interpolation along each dim", linear_fields, linear_samples);

static upsample_params params_of(tg_shape size, const tg_upsample_opts *given) {
    tg_upsample_opts o;
    tg_op_options(&o, &tg_upsample_opts_struct, given);
    return (upsample_params){
        .size = size, .scale = {o.scale0, o.scale1, o.scale2}, .align = o.align_corners, .given = o.size};
}

/* Resizes the dims of x [n, c, ..] after c to size: [n, c, size..]. Element i along a dim is element floor(i / scale)
 * of x, at most the last one. The default of scale is the size in the result, divided by the size in x. The quotient is
 * computed in float32. */
tg_tensor *tg_upsample_nearest(tg_tape *t, tg_tensor *x, tg_shape size, const tg_upsample_opts *opts) {
    upsample_params p = params_of(size, opts);
    return TG_RECORD(t, tg_op_upsample_nearest, &p, x);
}

/* Resizes the same dims by linear interpolation, which for images is bilinear (linear_along). */
tg_tensor *tg_upsample_linear(tg_tape *t, tg_tensor *x, tg_shape size, const tg_upsample_opts *opts) {
    upsample_params p = params_of(size, opts);
    return TG_RECORD(t, tg_op_upsample_linear, &p, x);
}
