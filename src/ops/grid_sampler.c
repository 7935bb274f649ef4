/* grid_sampler_2d: reads images at places between their elements. The op is composed: positions and weights come from
 * the grid, and each of the neighbors of a place is gathered and multiplied by its weight. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

typedef struct grid_params {
    tg_grid_mode mode;
    tg_grid_padding padding;
    bool align;
    size_t given; /* size of the caller's options struct */
} grid_params;

static tg_status check(tg_tape *t, const grid_params *p, const tg_tensor *x, const tg_tensor *grid) {
    TG_TRY(tg_size_check(t->ctx, p->given, sizeof(tg_grid_opts), "the options"));
    if (p->mode > TG_GRID_BICUBIC || p->padding > TG_GRID_REFLECTION)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "mode is %d and padding %d; they must be values of tg_grid_mode and tg_grid_padding",
                       (int)p->mode, (int)p->padding);
    if (!tg_is_float(x->dtype) || x->dtype != grid->dtype)
        return tg_fail(t->ctx, TG_ERR_DTYPE, "x is %s and grid %s; expected one float dtype",
                       tg_dtype_name((tg_dtype)x->dtype), tg_dtype_name((tg_dtype)grid->dtype));
    if (x->ndim != 4 || grid->ndim != 4 || grid->shape[0] != x->shape[0] || grid->shape[3] != 2 || x->shape[2] < 1 ||
        x->shape[3] < 1)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "x must be [n, c, h, w] and grid [n, i, j, 2], with the same n, and h and w 1 or more");
    return TG_OK;
}

/* Mirrors positions at lo and hi until they lie between them. */
static tg_tensor *reflect(tg_tape *t, tg_tensor *at, double lo, double hi) {
    if (lo == hi) return tg_scale(t, at, 0);
    tg_tensor *span = tg_number_like(t, at, hi - lo), *away = tg_abs(t, tg_add_scalar(t, at, -lo));
    tg_tensor *rest = tg_fmod(t, away, span), *turns = tg_floor(t, tg_div(t, tg_detach(t, away), span));
    tg_tensor *odd = tg_above(t, tg_fmod(t, turns, tg_number_like(t, at, 2)), 0.5);
    return tg_add_scalar(t, tg_where(t, odd, tg_sub(t, span, rest), rest), lo);
}

/* Returns the positions along a dim of n elements, which the grid gives as -1 to 1. */
static tg_tensor *positions(tg_tape *t, const grid_params *p, tg_tensor *grid, int dim, int64_t n) {
    double size = (double)n, scale = (p->align ? size - 1 : size) / 2;
    tg_tensor *at = tg_wide(t, tg_select(t, grid, -1, dim));
    return tg_add_scalar(t, tg_scale(t, tg_add_scalar(t, at, 1), scale), p->align ? 0 : -0.5);
}

/* Replaces each position outside of 0 to n - 1 by the position from which the padding takes its element. */
static tg_tensor *padded(tg_tape *t, const grid_params *p, tg_tensor *at, int64_t n) {
    double size = (double)n;
    if (p->padding == TG_GRID_ZEROS) return at;
    if (p->padding == TG_GRID_REFLECTION)
        at = p->align ? reflect(t, at, 0, size - 1) : reflect(t, at, -0.5, size - 0.5);
    return tg_clamp(t, at, 0, size - 1);
}

/* Returns whether positions lie in 0 to n - 1. NaN does not. */
static tg_tensor *inside(tg_tape *t, tg_tensor *at, int64_t n) {
    tg_tensor *low = tg_ge(t, at, tg_number_like(t, at, 0)),
              *high = tg_le(t, at, tg_number_like(t, at, (double)(n - 1)));
    return tg_where(t, low, high, low);
}

/* Returns the elements of x [n, c, h, w] at whole positions, each times its weight (NULL: 1), and 0 outside of x. The
 * positions in a plane are computed as integers, because float32 cannot represent all of them from 2^24 on. */
static tg_tensor *neighbors(tg_tape *t, tg_tensor *x, tg_tensor *row, tg_tensor *column, tg_tensor *weight) {
    int64_t n = x->shape[0], c = x->shape[1], h = x->shape[2], w = x->shape[3], i = tg_dim(row, 1), j = tg_dim(row, 2);
    tg_tensor *rows = inside(t, row, h), *in = tg_where(t, rows, inside(t, column, w), rows);
    tg_tensor *out = tg_eq(t, in, tg_full(t, TG_BOOL, TG_SHAPE(), 0));
    tg_tensor *down = tg_cast(t, tg_masked_fill(t, row, out, 0), TG_I64),
              *right = tg_cast(t, tg_masked_fill(t, column, out, 0), TG_I64);
    tg_tensor *at = tg_add(t, tg_mul(t, down, tg_number_like(t, down, (double)w)), right);
    at = tg_expand(t, tg_reshape(t, at, TG_SHAPE(n, 1, i * j)), TG_SHAPE(n, c, i * j));
    tg_tensor *y = tg_gather(t, tg_reshape(t, x, TG_SHAPE(n, c, h * w)), 2, at);
    y = tg_reshape(t, y, TG_SHAPE(n, c, i, j));
    if (weight) y = tg_mul(t, y, tg_unsqueeze(t, weight, 1));
    return tg_masked_fill(t, y, tg_unsqueeze(t, out, 1), 0);
}

/* Adds the four neighbors, whose weights are the areas of the opposite rectangles. */
static tg_tensor *bilinear(tg_tape *t, tg_tensor *x, tg_tensor *row, tg_tensor *column) {
    tg_tensor *top = tg_floor(t, tg_detach(t, row)), *left = tg_floor(t, tg_detach(t, column)), *y = NULL;
    tg_tensor *down = tg_sub(t, row, top), *right = tg_sub(t, column, left);
    for (int k = 0; k < 4; k++) {
        tg_tensor *at_row = k & 2 ? tg_add_scalar(t, top, 1) : top,
                  *at_column = k & 1 ? tg_add_scalar(t, left, 1) : left;
        tg_tensor *weight = tg_mul(t, k & 2 ? down : tg_one_minus(t, down), k & 1 ? right : tg_one_minus(t, right));
        tg_tensor *part = neighbors(t, x, at_row, at_column, weight);
        y = y ? tg_add(t, y, part) : part;
    }
    return y;
}

/* Returns ((c[0] x + c[1]) x + c[2]) x + c[3]. */
static tg_tensor *cubic(tg_tape *t, tg_tensor *x, const double *c) {
    tg_tensor *y = tg_add_scalar(t, tg_scale(t, x, c[0]), c[1]);
    for (int k = 2; k < 4; k++) y = tg_add_scalar(t, tg_mul(t, y, x), c[k]);
    return y;
}

/* Stores the weights of the four neighbors along a dim, for a position that is `after` the second of them. They are
 * those of cubic convolution (R. Keys, IEEE Trans. ASSP 29, 1981) with a = -3/4: one polynomial for distances below 1,
 * and one for distances of 1 to 2. */
static void cubic_weights(tg_tape *t, tg_tensor *after, tg_tensor **weight) {
    static const double near[] = {1.25, -2.25, 0, 1}, far[] = {-0.75, 3.75, -6, 3};
    tg_tensor *before = tg_one_minus(t, after);
    weight[0] = cubic(t, tg_add_scalar(t, after, 1), far);
    weight[1] = cubic(t, after, near);
    weight[2] = cubic(t, before, near);
    weight[3] = cubic(t, tg_add_scalar(t, before, 1), far);
}

/* Adds the 4 x 4 neighbors. The padding applies to the position of each neighbor, not to the given position. */
static tg_tensor *bicubic(tg_tape *t, const grid_params *p, tg_tensor *x, tg_tensor *row, tg_tensor *column) {
    tg_tensor *top = tg_floor(t, tg_detach(t, row)), *left = tg_floor(t, tg_detach(t, column)), *y = NULL;
    tg_tensor *down[4], *right[4];
    cubic_weights(t, tg_sub(t, row, top), down);
    cubic_weights(t, tg_sub(t, column, left), right);
    for (int k = 0; k < 16; k++) {
        tg_tensor *at_row = padded(t, p, tg_add_scalar(t, top, k / 4 - 1), x->shape[2]),
                  *at_column = padded(t, p, tg_add_scalar(t, left, k % 4 - 1), x->shape[3]);
        tg_tensor *part = neighbors(t, x, at_row, at_column, tg_mul(t, down[k / 4], right[k % 4]));
        y = y ? tg_add(t, y, part) : part;
    }
    return y;
}

static tg_tensor *sampled(tg_tape *t, const grid_params *p, tg_tensor *x, tg_tensor *grid) {
    if (p->mode == TG_GRID_NEAREST) grid = tg_detach(t, grid);
    tg_tensor *row = positions(t, p, grid, 1, x->shape[2]), *column = positions(t, p, grid, 0, x->shape[3]);
    if (p->mode == TG_GRID_BICUBIC) return bicubic(t, p, x, row, column);
    row = padded(t, p, row, x->shape[2]), column = padded(t, p, column, x->shape[3]);
    return p->mode == TG_GRID_BILINEAR ? bilinear(t, x, row, column)
                                       : neighbors(t, x, tg_round(t, row), tg_round(t, column), NULL);
}

static tg_status grid_sampler_2d_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                         const void *site) {
    const grid_params *p = params;
    (void)site;
    TG_TRY(check(t, p, in[0], in[1]));
    tg_tensor *x = tg_wide(t, in[0]);
    if (!tg_is_alive(x)) return t->ctx->run.status;
    tg_tensor *y = sampled(t, p, x, in[1]);
    out[0] = y->dtype == in[0]->dtype ? y : tg_cast(t, y, (tg_dtype)in[0]->dtype);
    return t->ctx->run.status;
}

#define AT(mode_, padding_, align_)                                                                                    \
    &(const grid_params) { TG_GRID_##mode_, TG_GRID_##padding_, align_, sizeof(tg_grid_opts) }
#define PAIR(...) .n_in = 2, .input = {__VA_ARGS__}
/* Grids whose positions lie mostly inside the images, and grids that reach far outside. */
#define NEAR(...) TG_S_IN(-1.2, 1.2, __VA_ARGS__)
#define FAR(...)  TG_S_IN(-3.5, 3.5, __VA_ARGS__)
static const tg_sample grid_samples[] = {
    {.note = "zeros outside", .params = AT(BILINEAR, ZEROS, false), PAIR(TG_S(2, 2, 4, 3), NEAR(2, 3, 2, 2))},
    {.note = "aligned corners", .params = AT(BILINEAR, ZEROS, true), PAIR(TG_S(1, 2, 3, 4), NEAR(1, 2, 3, 2))},
    {.note = "the border repeated",
     .params = AT(BILINEAR, BORDER, false),
     PAIR(TG_S(1, 2, 3, 4), FAR(1, 2, 3, 2)),
     .kinked = true},
    {.note = "mirrored",
     .params = AT(BILINEAR, REFLECTION, false),
     PAIR(TG_S(1, 1, 3, 4), FAR(1, 2, 3, 2)),
     .kinked = true},
    {.note = "mirrored, aligned corners",
     .params = AT(BILINEAR, REFLECTION, true),
     PAIR(TG_S(1, 1, 4, 3), FAR(1, 2, 3, 2)),
     .kinked = true},
    {.note = "one element, mirrored",
     .params = AT(BILINEAR, REFLECTION, true),
     PAIR(TG_S(1, 1, 1, 1), FAR(1, 2, 1, 2))},
    {.note = "nearest",
     .params = AT(NEAREST, ZEROS, false),
     PAIR(TG_S(2, 2, 4, 3), {.shape = TG_S_SHAPE(2, 3, 2, 2), .lo = -1.2, .hi = 1.2, .frozen = true})},
    {.note = "cubic", .params = AT(BICUBIC, ZEROS, false), PAIR(TG_S(2, 2, 4, 3), NEAR(2, 3, 2, 2))},
    {.note = "cubic, the border repeated",
     .params = AT(BICUBIC, BORDER, true),
     PAIR(TG_S(1, 2, 3, 4), FAR(1, 2, 3, 2))},
    {.note = "cubic, mirrored",
     .params = AT(BICUBIC, REFLECTION, false),
     PAIR(TG_S(1, 1, 4, 3), FAR(1, 2, 3, 2))},
    {.note = "transposed",
     .params = AT(BILINEAR, ZEROS, false),
     PAIR(TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 2, 3, 3), NEAR(1, 2, 2, 2))},
    {.note = "empty batch", .params = AT(BILINEAR, ZEROS, false), PAIR(TG_S(0, 2, 3, 3), NEAR(0, 2, 2, 2))},
    {.note = "places with three numbers",
     .params = AT(BILINEAR, ZEROS, false),
     PAIR(TG_S(1, 2, 3, 3), NEAR(1, 2, 2, 3)),
     .refused = TG_ERR_SHAPE},
    {.note = "another batch",
     .params = AT(BILINEAR, ZEROS, false),
     PAIR(TG_S(1, 2, 3, 3), NEAR(2, 2, 2, 2)),
     .refused = TG_ERR_SHAPE},
    {.note = "no such mode",
     .params = &(const grid_params){.mode = (tg_grid_mode)7, .given = sizeof(tg_grid_opts)},
     PAIR(TG_S(1, 1, 2, 2), NEAR(1, 2, 2, 2)),
     .refused = TG_ERR_ARGUMENT},
    {.note = "integers",
     .params = AT(BILINEAR, ZEROS, false),
     PAIR(TG_S_INDEX(9, 1, 1, 2, 2), TG_S_INDEX(1, 1, 1, 1, 2)),
     .refused = TG_ERR_DTYPE},
    {.note = "images",
     .params = AT(BILINEAR, ZEROS, false),
     PAIR(TG_S(4, 32, 64, 64), NEAR(4, 64, 64, 2)),
     .bench = true},
};

static const tg_field grid_fields[] = {
    TG_ARG(grid_params, mode, ENUM, "Bilinear or bicubic interpolation, or the nearest element.", .of = "tg_grid_mode"),
    TG_ARG(grid_params, padding, ENUM, "Elements outside x: zeros, those at the border, or those of x mirrored.",
           .of = "tg_grid_padding"),
    TG_ARG_AS(grid_params, align, "align_corners", BOOL, "-1 and 1 are the middles of the first and the last element."),
};

const tg_op tg_op_grid_sampler_2d = {.size = sizeof(tg_op),
                                     .name = "grid_sampler_2d",
                                     .formula = "images x at the places of grid",
                                     .inputs = "x grid",
                                     .n_in = 2,
                                     .n_out = 1,
                                     .params_size = sizeof(grid_params),
                                     .compose = grid_sampler_2d_compose,
                                     TG_FIELDS(grid_fields),
                                     .preset = AT(BILINEAR, ZEROS, false),
                                     TG_SAMPLES(grid_samples)};

/* Returns the images x [n, c, h, w] at the places of grid [n, i, j, 2]: [n, c, i, j]. 16-bit sums run in float32. */
tg_tensor *tg_grid_sampler_2d(tg_tape *t, tg_tensor *x, tg_tensor *grid, const tg_grid_opts *opts) {
    tg_grid_opts o;
    tg_op_options(&o, &tg_grid_opts_struct, opts);
    return TG_RECORD(t, tg_op_grid_sampler_2d, (&(grid_params){o.mode, o.padding, o.align_corners, o.size}), x, grid);
}
