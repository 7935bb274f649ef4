/* Pools in three dims, and the pools that also return the positions of the maxima. Maxima and means can be taken over
 * the planes of a window first, and then along d, so pools in three dims are composed of two pools in two dims. Of
 * equal elements the first in row-major order is chosen: the first pool chooses the first one of each plane, and the
 * second pool the first plane that has one. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/max_pool.h"

enum { D, H, W, DIMS };

typedef struct pool_params {
    int64_t size[DIMS], step[DIMS], pad[DIMS], apart[DIMS]; /* those of D are not used by pools in two dims */
    bool ceil, exclude;
    int64_t divisor;
    size_t given;       /* size of the caller's options struct */
    const char *unused; /* name of an option that is set although the op does not use it, or NULL */
} pool_params;

/* Returns the options of the pool of planes, or of the pool along d. */
static tg_pool_opts options_of(const pool_params *p, bool along_d) {
    tg_pool_opts o = *TG_POOL(.ceil_mode = p->ceil, .exclude_padding = p->exclude);
    for (int k = 0; k < 2; k++) {
        if (along_d && k) continue; /* one column, at its defaults */
        int d = along_d ? D : H + k;
        o.stride[k] = p->step[d] == TG_AUTO ? p->size[d] : p->step[d];
        o.padding[k] = p->pad[d];
        o.dilation[k] = p->apart[d];
    }
    if (p->divisor != TG_AUTO) o.divisor = along_d ? p->divisor : 1;
    return o;
}

static tg_status check(tg_tape *t, const pool_params *p, const tg_tensor *x, int dims) {
    TG_TRY(tg_size_check(t->ctx, p->given, sizeof(tg_pool_opts), "the options"));
    if (x->ndim == dims + 2) return TG_OK;
    return tg_fail(t->ctx, TG_ERR_SHAPE, "x has %s; it must be %s", tg_count(x->ndim, "dim").text,
                   dims == 2 ? "[n, c, h, w]" : "[n, c, d, h, w]");
}

/* Reshapes x [n, c, d, h, w] to [n, c d, h, w], so that each plane is a channel. */
static tg_tensor *planes_as_channels(tg_tape *t, tg_tensor *x) {
    if (!tg_is_alive(x)) return x; /* inert after an error */
    const int64_t *n = x->shape;
    return tg_reshape(t, x, TG_SHAPE(n[0], n[1] * n[2], n[3], n[4]));
}

/* Reshapes y, the result of a pool of planes_as_channels(x), to [n, c, d, places of a plane]. */
static tg_tensor *places_in_columns(tg_tape *t, tg_tensor *y, const tg_tensor *x) {
    return tg_reshape(t, y, TG_SHAPE(x->shape[0], x->shape[1], x->shape[2], tg_dim(y, 2) * tg_dim(y, 3)));
}

typedef tg_tensor *(*pool_fn)(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts);

/* Pools the planes of x [n, c, d, h, w], then along d. */
static tg_tensor *pool_twice(tg_tape *t, const pool_params *p, tg_tensor *x, pool_fn pool) {
    const tg_pool_opts plane = options_of(p, false), along = options_of(p, true);
    tg_tensor *y = pool(t, planes_as_channels(t, x), p->size[H], p->size[W], &plane);
    if (!tg_is_alive(y)) return y;
    int64_t h = y->shape[2], w = y->shape[3];
    y = pool(t, places_in_columns(t, y, x), p->size[D], 1, &along);
    return tg_reshape(t, y, TG_SHAPE(x->shape[0], x->shape[1], tg_dim(y, 2), h, w));
}

static tg_status max_pool3d_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                    const void *site) {
    (void)site;
    TG_TRY(check(t, params, in[0], 3));
    out[0] = pool_twice(t, params, in[0], tg_max_pool2d);
    return t->ctx->run.status;
}

/* 16-bit means are rounded once, at the end. */
static tg_status avg_pool3d_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                    const void *site) {
    tg_tensor *x = in[0];
    (void)site;
    TG_TRY(check(t, params, x, 3));
    tg_tensor *y = pool_twice(t, params, tg_is_float(x->dtype) ? tg_wide(t, x) : x, tg_avg_pool2d);
    out[0] = y->dtype == x->dtype ? y : tg_cast(t, y, (tg_dtype)x->dtype);
    return t->ctx->run.status;
}

/* ---- With positions ---- */

static tg_tensor *positions(tg_tape *t, const pool_params *p, tg_tensor *x, bool along_d) {
    const tg_pool_opts o = options_of(p, along_d);
    const int64_t size[] = {along_d ? p->size[D] : p->size[H], along_d ? 1 : p->size[W]};
    tg_windows w = tg_windows_of_pool(2, size, &o);
    w.unused = p->exclude ? "exclude_padding" : p->divisor != TG_AUTO ? "divisor" : p->unused;
    return tg_max_pool_positions(t, x, &w);
}

tg_tensor *tg_take_positions(tg_tape *t, tg_tensor *x, tg_tensor *at) {
    if (!tg_is_alive(x)) return x;
    if (!tg_is_alive(at)) return at;
    int64_t n = x->shape[0], c = x->shape[1], all = 1, some = 1;
    for (int d = 2; d < x->ndim; d++) all *= x->shape[d];
    for (int d = 2; d < at->ndim; d++) some *= at->shape[d];
    tg_tensor *y = tg_gather(t, tg_reshape(t, x, TG_SHAPE(n, c, all)), 2, tg_reshape(t, at, TG_SHAPE(n, c, some)));
    return tg_reshape(t, y, tg_shape_kept(at));
}

/* Finds the maxima of planes, then the planes along d that have the greatest of them. */
static tg_tensor *positions_in_volumes(tg_tape *t, const pool_params *p, tg_tensor *x) {
    int64_t d = x->shape[2], plane = x->shape[3] * x->shape[4];
    tg_tensor *values = planes_as_channels(t, tg_detach(t, x)), *in_plane = positions(t, p, values, false);
    if (!tg_is_alive(in_plane)) return in_plane;
    int64_t h = in_plane->shape[2], w = in_plane->shape[3];
    tg_tensor *best = places_in_columns(t, tg_take_positions(t, values, in_plane), x),
              *at = positions(t, p, best, true);
    if (!tg_is_alive(at)) return at;
    tg_tensor *starts = tg_arange(t, TG_I64, 0, (double)(d * plane), (double)plane);
    tg_tensor *in_volume = tg_add(t, places_in_columns(t, in_plane, x), tg_reshape(t, starts, TG_SHAPE(d, 1)));
    return tg_reshape(t, tg_take_positions(t, in_volume, at), TG_SHAPE(x->shape[0], x->shape[1], at->shape[2], h, w));
}

static tg_status max_pool2d_with_indices_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                                 const void *site) {
    (void)site;
    TG_TRY(check(t, params, in[0], 2));
    out[1] = positions(t, params, in[0], false);
    out[0] = tg_take_positions(t, in[0], out[1]);
    return t->ctx->run.status;
}

static tg_status max_pool3d_with_indices_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                                 const void *site) {
    (void)site;
    TG_TRY(check(t, params, in[0], 3));
    out[1] = positions_in_volumes(t, params, in[0]);
    out[0] = tg_take_positions(t, in[0], out[1]);
    return t->ctx->run.status;
}

/* ---- Samples ---- */

#define POOL_(d_, h_, w_, ...)                                                                                         \
    &(const pool_params) {                                                                                             \
        .size = {d_, h_, w_}, .step = {TG_AUTO, TG_AUTO, TG_AUTO}, .apart = {1, 1, 1}, .divisor = TG_AUTO,             \
        .given = sizeof(tg_pool_opts), __VA_ARGS__                                                                     \
    }
#define ONE(...) .n_in = 1, .input = {__VA_ARGS__}
#define VOLUME_SAMPLES                                                                                                 \
    {.note = "side by side", .params = POOL_(2, 2, 2, ), ONE(TG_S(2, 2, 2, 4, 4))},                                    \
        {.note = "overlapping, padded",                                                                                \
         .params = POOL_(3, 2, 2, .step = {1, 1, 2}, .pad = {1, 1, 0}),                                                \
         ONE(TG_S(1, 2, 3, 2, 4))},                                                                                    \
        {.note = "beyond the end", .params = POOL_(2, 2, 3, .ceil = true), ONE(TG_S(1, 2, 3, 3, 4))},                  \
        {.note = "transposed",                                                                                         \
         .params = POOL_(2, 1, 2, .step = {1, 1, 1}),                                                                  \
         ONE(TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 3, 2, 3))},                                                           \
        {.note = "strided", .params = POOL_(1, 2, 2, ), ONE(TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 2, 2, 4))},               \
        {.note = "empty batch", .params = POOL_(2, 2, 2, ), ONE(TG_S(0, 2, 2, 2, 2))},                                 \
        {.note = "too few dims", .params = POOL_(2, 2, 2, ), ONE(TG_S(2, 2, 2, 2)), .refused = TG_ERR_SHAPE},          \
        {.note = "too deep", .params = POOL_(3, 2, 2, ), ONE(TG_S(1, 1, 2, 2, 2)), .refused = TG_ERR_SHAPE},           \
        {.note = "too much padding",                                                                                   \
         .params = POOL_(2, 2, 2, .pad = {2, 0, 0}),                                                                   \
         ONE(TG_S(1, 1, 2, 2, 2)),                                                                                     \
         .refused = TG_ERR_ARGUMENT},                                                                                  \
        {.note = "integers", .params = POOL_(2, 2, 2, ), ONE(TG_S_INDEX(9, 1, 1, 2, 2, 2)), .refused = TG_ERR_DTYPE},  \
    {                                                                                                                  \
        .note = "video", .params = POOL_(2, 2, 2, ), ONE(TG_S(4, 32, 16, 28, 28)), .bench = true                       \
    }

static const tg_sample max3_samples[] = {
    VOLUME_SAMPLES,
    {.note = "dilated", .params = POOL_(2, 2, 1, .step = {1, 1, 1}, .apart = {2, 1, 2}), ONE(TG_S(1, 2, 4, 2, 2))},
    {.note = "padding left out",
     .params = POOL_(2, 2, 2, .exclude = true),
     ONE(TG_S(1, 1, 2, 2, 2)),
     .refused = TG_ERR_ARGUMENT},
};
static const tg_sample avg3_samples[] = {
    VOLUME_SAMPLES,
    {.note = "padding left out",
     .params = POOL_(2, 2, 3, .step = {1, 2, 2}, .pad = {1, 1, 1}, .exclude = true),
     ONE(TG_S(1, 2, 3, 2, 4))},
    {.note = "another divisor", .params = POOL_(2, 2, 2, .divisor = 3), ONE(TG_S(1, 2, 2, 2, 2))},
    {.note = "dilated",
     .params = POOL_(2, 2, 1, .apart = {2, 1, 1}),
     ONE(TG_S(1, 2, 4, 2, 2)),
     .refused = TG_ERR_ARGUMENT},
};
static const tg_sample max2_samples[] = {
    {.note = "side by side", .params = POOL_(0, 2, 2, ), ONE(TG_S(2, 2, 4, 6))},
    {.note = "overlapping, padded",
     .params = POOL_(0, 3, 2, .step = {1, 1, 1}, .pad = {0, 1, 1}),
     ONE(TG_S(2, 2, 4, 3))},
    {.note = "beyond the end", .params = POOL_(0, 2, 3, .ceil = true), ONE(TG_S(1, 2, 3, 4))},
    {.note = "dilated", .params = POOL_(0, 2, 2, .step = {1, 1, 1}, .apart = {1, 2, 1}), ONE(TG_S(1, 2, 4, 3))},
    {.note = "transposed", .params = POOL_(0, 2, 2, ), ONE(TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 3, 4))},
    {.note = "empty batch", .params = POOL_(0, 2, 2, ), ONE(TG_S(0, 2, 2, 2))},
    {.note = "too few dims", .params = POOL_(0, 2, 2, ), ONE(TG_S(2, 2, 2)), .refused = TG_ERR_SHAPE},
    {.note = "too large", .params = POOL_(0, 2, 5, ), ONE(TG_S(1, 1, 4, 4)), .refused = TG_ERR_SHAPE},
    {.note = "another divisor",
     .params = POOL_(0, 2, 2, .divisor = 3),
     ONE(TG_S(1, 1, 4, 4)),
     .refused = TG_ERR_ARGUMENT},
    {.note = "32 images of 64 channels",
     .params = POOL_(0, 3, 3, .step = {1, 2, 2}, .pad = {0, 1, 1}),
     ONE(TG_S(32, 64, 56, 56)),
     .bench = true},
};

/* ---- The ops ---- */

#define SIZE_FIELD(d_, name_, what_)                                                                                   \
    TG_ARG_AS(pool_params, size[d_], name_, INT64, "Number of " what_ " of a window.", .required = true)
#define ARRAY_FIELD(member_, d_, n_, name_, doc_)                                                                      \
    TG_ARG_ARRAY(pool_params, member_[d_], name_, INT64, n_, doc_, .bytes = (n_) * sizeof(int64_t))
#define WINDOW_FIELDS(d_, n_)                                                                                          \
    ARRAY_FIELD(step, d_, n_, "stride", "Distances between the starts of windows; -1 means the size of the window."),  \
        ARRAY_FIELD(pad, d_, n_, "padding", "Numbers of elements that are added at each end."),                        \
        TG_ARG_AS(pool_params, ceil, "ceil_mode", BOOL, "Keeps a window that reaches beyond the padding after x.")
#define APART_FIELD(d_, n_) ARRAY_FIELD(apart, d_, n_, "dilation", "Distances between the elements of a window.")
static const tg_field max2_fields[] = {SIZE_FIELD(H, "h", "rows"), SIZE_FIELD(W, "w", "columns"), WINDOW_FIELDS(H, 2),
                                       APART_FIELD(H, 2)};
static const tg_field max3_fields[] = {SIZE_FIELD(D, "d", "planes"), SIZE_FIELD(H, "h", "rows"),
                                       SIZE_FIELD(W, "w", "columns"), WINDOW_FIELDS(D, 3), APART_FIELD(D, 3)};
static const tg_field avg3_fields[] = {
    SIZE_FIELD(D, "d", "planes"),
    SIZE_FIELD(H, "h", "rows"),
    SIZE_FIELD(W, "w", "columns"),
    WINDOW_FIELDS(D, 3),
    TG_ARG_AS(pool_params, exclude, "exclude_padding", BOOL, "Divides by the number of elements of x in the window."),
    TG_ARG(pool_params, divisor, INT64, "Divides by this number; -1 means the number of elements of the window.")};

#define POOL(name_, formula_, depth_, outputs_, n_out_, compose_, fields_, samples_)                                   \
    const tg_op tg_op_##name_ = {.size = sizeof(tg_op),                                                                \
                                 .name = #name_,                                                                       \
                                 .formula = formula_,                                                                  \
                                 .inputs = "x",                                                                        \
                                 .outputs = outputs_,                                                                  \
                                 .n_in = 1,                                                                            \
                                 .n_out = n_out_,                                                                      \
                                 .params_size = sizeof(pool_params),                                                   \
                                 .compose = compose_,                                                                  \
                                 TG_FIELDS(fields_),                                                                   \
                                 .preset = POOL_(depth_, 1, 1, ),                                                      \
                                 TG_SAMPLES(samples_)}

POOL(max_pool3d, "the greatest of x in each window", 1, NULL, 1, max_pool3d_compose, max3_fields, max3_samples);
POOL(avg_pool3d, "the mean of x in each window", 1, NULL, 1, avg_pool3d_compose, avg3_fields, avg3_samples);
POOL(max_pool2d_with_indices, "the greatest of x in each window, and its position", 0, "y index", 2,
     max_pool2d_with_indices_compose, max2_fields, max2_samples);
POOL(max_pool3d_with_indices, "the greatest of x in each window, and its position", 1, "y index", 2,
     max_pool3d_with_indices_compose, max3_fields, max3_samples);

/* The first elements of the arrays in `given` are those of d in three dims, and those of h in two dims. */
static pool_params params_of(int dims, int64_t d, int64_t h, int64_t w, const tg_pool_opts *given) {
    tg_pool_opts o;
    tg_op_options(&o, &tg_pool_opts_struct, given);
    pool_params p = {
        .size = {d, h, w}, .ceil = o.ceil_mode, .exclude = o.exclude_padding, .divisor = o.divisor, .given = o.size};
    for (int k = 0, at = DIMS - dims; k < dims; k++, at++) {
        p.step[at] = o.stride[k];
        p.pad[at] = o.padding[k];
        p.apart[at] = o.dilation[k];
    }
    if (dims == 2) p.unused = tg_windows_of_pool(2, p.size + H, &o).unused;
    return p;
}

/* Returns the maximum of every window of d planes of h x w elements of x [n, c, d, h, w], as tg_max_pool2d does. */
tg_tensor *tg_max_pool3d(tg_tape *t, tg_tensor *x, int64_t d, int64_t h, int64_t w, const tg_pool_opts *opts) {
    pool_params p = params_of(3, d, h, w, opts);
    return TG_RECORD(t, tg_op_max_pool3d, &p, x);
}

/* Returns the mean of each of these windows, as tg_avg_pool2d does. */
tg_tensor *tg_avg_pool3d(tg_tape *t, tg_tensor *x, int64_t d, int64_t h, int64_t w, const tg_pool_opts *opts) {
    pool_params p = params_of(3, d, h, w, opts);
    return TG_RECORD(t, tg_op_avg_pool3d, &p, x);
}

static tg_tensor *record_both(tg_tape *t, const tg_op *op, const pool_params *p, tg_tensor *x, tg_tensor **index,
                              const void *site) {
    tg_tensor *out[2] = {NULL, NULL};
    tg_apply(t, op, p, &x, 1, out, 2, NULL, NULL, site);
    if (index) *index = out[1];
    return out[0];
}

/* Return what tg_max_pool2d and tg_max_pool3d return. If index is not NULL, *index receives the positions of
 * the maxima in the channels of x. */
tg_tensor *tg_max_pool2d_with_indices(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts,
                                      tg_tensor **index) {
    pool_params p = params_of(2, 0, h, w, opts);
    return record_both(t, &tg_op_max_pool2d_with_indices, &p, x, index, TG_SITE);
}
tg_tensor *tg_max_pool3d_with_indices(tg_tape *t, tg_tensor *x, int64_t d, int64_t h, int64_t w,
                                      const tg_pool_opts *opts, tg_tensor **index) {
    pool_params p = params_of(3, d, h, w, opts);
    return record_both(t, &tg_op_max_pool3d_with_indices, &p, x, index, TG_SITE);
}
