/* Max pooling. A plane is the h x w elements of one channel of one image. The elements of a window are numbered from 0.
 * Forward compares element 0 of all windows with the greatest so far, then element 1 of all windows, and so on, and
 * keeps the number of the greatest. A table, `index`, gives the position in a plane of each element of each window. The
 * table is the same for all planes.
 *
 * Elements of a window that lie in the padding are not compared. For such an element the table has the position of the
 * nearest element of the window that lies in x. This position is used only for element 0, which remains the greatest if
 * no element of the window is greater than -infinity. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/common/windows.h"
#include "ops/max_pool.h"

typedef struct max_pool_params {
    tg_windows w;
    bool positions; /* the op returns the positions of the results instead of the results */
    int64_t input[2], out[2];
} max_pool_params;

enum { AT }; /* private saved buffer: the position of each result in its plane of x, [n, c, windows of both dims] */

static const max_pool_params *params(const tg_call *c) { return c->params; }

static tg_status max_pool_infer(tg_call *c) {
    max_pool_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t shape[4], elements, windows;
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_windows_infer_pool(c, &p->w, p->input, p->out));
    if (__builtin_mul_overflow(p->w.size[0], p->w.size[1], &elements) ||
        __builtin_mul_overflow(p->out[0], p->out[1], &windows))
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "windows are %lld x %lld, and %lld x %lld of them fit into x and its padding; the number "
                            "of elements of a window, or that of windows, overflows 64 bits",
                            (long long)p->w.size[0], (long long)p->w.size[1], (long long)p->out[0],
                            (long long)p->out[1]);
    TG_TRY(tg_call_role(c, 0, 0, 0));
    TG_TRY(tg_call_role(c, 0, 1, 1));
    int ndim = tg_windows_shape(&p->w, x->shape[0], x->shape[1], p->out, shape);
    if (p->positions) return tg_call_out(c, 0, TG_I64, ndim, shape);
    TG_TRY(tg_call_save(c, AT, TG_I64, 3, (const int64_t[]){x->shape[0], x->shape[1], windows}));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, ndim, shape);
}

/* Returns a contiguous tensor viewed in another shape with as many elements. */
static tg_array as(const tg_tensor *x, int ndim, const int64_t *shape, tg_extent *e) {
    memcpy(e->shape, shape, (size_t)ndim * sizeof *shape);
    tg_row_major(ndim, shape, e->stride);
    return tg_array_at(tg_array_of(x), 0, ndim, e->shape, e->stride);
}

static int64_t area(const int64_t *size) { return size[0] * size[1]; }

/* Makes *at [size, windows], float64: the position along dim d of element k of each window, which is start + apart k.
 * If the element lies in the padding, the nearest k whose element lies in x is used instead. The bounds of k are
 * rounded from quotients that are half a position away from x's ends, so that rounding errors do not matter. */
static tg_status positions_along(tg_call *c, int d, tg_tensor **at) {
    const max_pool_params *p = params(c);
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const double apart = (double)p->w.apart[d], last = (double)p->input[d] - 1;
    const int64_t size = p->w.size[d], out = p->out[d];
    tg_tensor *start = tg_call_temp(c, TG_F64, 1, &out), *bound = tg_call_temp(c, TG_F64, 1, &out),
              *k = tg_call_temp(c, TG_F64, 2, (const int64_t[]){size, 1});
    tg_tensor *y = *at = tg_call_temp(c, TG_F64, 2, (const int64_t[]){size, out});
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->iota(c->ctx, tg_array_of(start), (double)-p->w.pad[d], (double)p->w.step[d]));
    TG_TRY(ops->iota(c->ctx, tg_array_of(k), 0, 1));
    TG_TRY(tg_op_map(c, TG_FN_affine, bound, TG_T1(start), 1, -1 / apart, -0.5 / apart, false));
    TG_TRY(tg_op_map(c, TG_FN_ceil, bound, TG_T1(bound), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_maximum, y, TG_T2(k, bound), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_affine, bound, TG_T1(start), 1, -1 / apart, (last + 0.5) / apart, false));
    TG_TRY(tg_op_map(c, TG_FN_floor, bound, TG_T1(bound), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_minimum, y, TG_T2(y, bound), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_linear_sum, y, TG_T2(y, start), 2, apart, 1, false);
}

/* Makes *index [kh kw, windows]: the position in a plane of x of each element of each window. */
static tg_status make_index(tg_call *c, tg_tensor **index) {
    const max_pool_params *p = params(c);
    const int64_t *k = p->w.size, *out = p->out, whole[] = {k[0], k[1], out[0], out[1]};
    tg_tensor *rows, *cols;
    TG_TRY(positions_along(c, 0, &rows));
    TG_TRY(positions_along(c, 1, &cols));
    *index = tg_call_temp(c, TG_I64, 2, (const int64_t[]){area(k), area(out)});
    tg_tensor *to = tg_call_temp(c, TG_F64, 4, whole);
    rows = tg_call_view_of(c, rows, 0, 4, (const int64_t[]){k[0], 1, out[0], 1}, (const int64_t[]){out[0], 0, 1, 0});
    cols = tg_call_view_of(c, cols, 0, 4, (const int64_t[]){1, k[1], 1, out[1]}, (const int64_t[]){0, out[1], 0, 1});
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_linear_sum, to, TG_T2(rows, cols), 2, (double)p->input[1], 1, false));
    tg_extent e;
    return tg_op_copy(c, as(*index, 4, whole, &e), tg_array_of(to), false);
}

/* Returns how many planes are processed together: so few that the greatest elements so far stay in the cache while the
 * next ones are compared with them. The number depends on the shape and dtype alone. */
static int64_t chunk_planes(const max_pool_params *p, int64_t planes, tg_dtype dtype) {
    enum { BYTES = 1 << 18 };
    int64_t fit = BYTES / (area(p->out) * (int64_t)tg_dtype_size(dtype) + 1);
    return fit < 1 ? 1 : fit < planes ? fit : planes;
}

/* For each window of a chunk: the greatest element so far (best), its number in the window (which), and, in each
 * comparison, whether best stays and whether it is NaN. These four are floats, because kernels are fastest with floats.
 * `at` is `which` as an integer. */
typedef struct maxima {
    tg_tensor *best, *which, *stays, *is_nan, *at;
} maxima;

/* Returns a float dtype that represents the number of every element of a window exactly. */
static tg_dtype number_dtype(const max_pool_params *p) { return area(p->w.size) > 1 << 24 ? TG_F64 : TG_F32; }

static tg_status make_maxima(tg_call *c, int64_t chunk, maxima *r) {
    const int64_t shape[] = {chunk, area(params(c)->out)};
    r->best = tg_call_temp(c, (tg_dtype)c->input[0]->dtype, 2, shape);
    r->which = tg_call_temp(c, number_dtype(params(c)), 2, shape);
    r->stays = tg_call_temp(c, TG_F32, 2, shape);
    r->is_nan = tg_call_temp(c, TG_F32, 2, shape);
    r->at = tg_call_temp(c, TG_I64, 2, shape);
    return c->ctx->run.status;
}

/* Compares element (i, j) of the windows with the greatest so far, in windows whose element (i, j) lies in x. k is a
 * scalar: the number of the element. The first of equal elements stays, and so does NaN. */
static tg_status compare(tg_call *c, const maxima *r, tg_array x, int64_t i, int64_t j, const tg_tensor *k) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const int64_t *out = params(c)->out, four[] = {x.shape[0], 1, out[0], out[1]};
    const tg_tensor *of[] = {r->best, r->which, r->stays, r->is_nan};
    enum { BEST, WHICH, STAYS, IS_NAN };
    tg_window_part at[TG_LEN(of)];
    tg_extent whole[TG_LEN(of)];
    int64_t none[4];
    for (int d = 0; d < TG_LEN(of); d++)
        if (!tg_windows_part(&params(c)->w, i, j, x, as(of[d], 4, four, &whole[d]), &at[d])) return TG_OK;
    tg_array best = at[BEST].y, which = at[WHICH].y, stays = at[STAYS].y, is_nan = at[IS_NAN].y, new = at[BEST].x;
    const double p[2] = {0};
    TG_TRY(ops->apply(c->ctx, TG_FN_le, stays, (const tg_array[]){new, best}, 2, p, false));
    TG_TRY(ops->apply(c->ctx, TG_FN_ne, is_nan, (const tg_array[]){best, best}, 2, p, false));
    TG_TRY(ops->apply(c->ctx, TG_FN_logical_or, stays, (const tg_array[]){stays, is_nan}, 2, p, false));
    TG_TRY(ops->apply(c->ctx, TG_FN_where, best, (const tg_array[]){stays, best, new}, 3, p, false));
    tg_array number = tg_array_expand(tg_array_of(k), 4, which.shape, none);
    return ops->apply(c->ctx, TG_FN_where, which, (const tg_array[]){stays, which, number}, 3, p, false);
}

/* Fills at [n, windows] with the positions of the greatest elements in the n planes of x [n, 1, h, w]. k is a temporary
 * scalar. */
static tg_status find(tg_call *c, tg_array x, tg_array at, const tg_tensor *index, const maxima *r,
                      const tg_tensor *k) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const max_pool_params *p = params(c);
    const tg_window_reach rows = tg_windows_reach(&p->w, 0, p->input[0], p->out[0]);
    const tg_window_reach columns = tg_windows_reach(&p->w, 1, p->input[1], p->out[1]);
    const int64_t windows = index->shape[1], n = at.shape[0], three[] = {n, index->shape[0], windows},
                  one[] = {n, 1, windows}, plane[] = {0, windows, 1},
                  at_stride[] = {at.stride[0], windows, at.stride[1]};
    tg_extent e;
    TG_TRY(ops->fill(c->ctx, tg_array_of(r->best), -INFINITY));
    TG_TRY(ops->fill(c->ctx, tg_array_of(r->which), 0));
    for (int64_t i = rows.first; i < rows.end; i++)
        for (int64_t j = columns.first; j < columns.end; j++) {
            TG_TRY(ops->fill(c->ctx, tg_array_of(k), (double)(i * p->w.size[1] + j)));
            TG_TRY(compare(c, r, x, i, j, k));
        }
    TG_TRY(tg_op_map(c, TG_FN_id, r->at, TG_T1(r->which), 1, 0, 0, false));
    return ops->take(c->ctx, tg_array_at(at, 0, 3, one, at_stride), tg_array_at(tg_array_of(index), 0, 3, three, plane),
                     as(r->at, 3, one, &e), 1, NULL);
}

static tg_status max_pool_forward(tg_call *c) {
    const max_pool_params *p = params(c);
    tg_tensor *x = c->input[0], *index;
    if (c->out[0]->numel == 0) return TG_OK;
    int64_t planes = x->shape[0] * x->shape[1], windows = area(p->out);
    TG_TRY(tg_op_dense(c, &x));
    TG_TRY(make_index(c, &index));
    int64_t chunk = chunk_planes(p, planes, (tg_dtype)x->dtype);
    maxima r;
    TG_TRY(make_maxima(c, chunk, &r));
    const tg_tensor *k = tg_call_temp(c, number_dtype(p), 0, p->input);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_extent e[6];
    tg_array all = as(x, 2, (const int64_t[]){planes, area(p->input)}, &e[0]),
             at = as(p->positions ? c->out[0] : c->saved[AT], 2, (const int64_t[]){planes, windows}, &e[1]),
             y = as(c->out[0], 2, (const int64_t[]){planes, windows}, &e[2]),
             images = as(x, 4, (const int64_t[]){planes, 1, p->input[0], p->input[1]}, &e[3]);
    for (int64_t i = 0; i < planes; i += chunk) {
        int64_t n = planes - i < chunk ? planes - i : chunk;
        TG_TRY(find(c, tg_array_slice(images, 0, i, n, 1, &e[4]), tg_array_slice(at, 0, i, n, 1, &e[5]), index, &r, k));
    }
    return p->positions ? TG_OK : tg_ctx_ops(c->ctx)->take(c->ctx, y, all, at, 1, NULL);
}

static tg_status max_pool_backward(tg_call *c) {
    const max_pool_params *p = params(c);
    const tg_tensor *x = c->gin[0];
    tg_tensor *g = c->gout[0];
    tg_extent e[3];
    TG_TRY(tg_op_dense(c, &g));
    TG_TRY(tg_op_zero(c, 0));
    if (g->numel == 0) return TG_OK;
    const int64_t planes = x->shape[0] * x->shape[1], flat[] = {planes, area(p->input)},
                  some[] = {planes, area(p->out)};
    return tg_ctx_ops(c->ctx)->put_add(c->ctx, as(x, 2, flat, &e[0]), as(g, 2, some, &e[1]),
                                       as(c->saved[AT], 2, some, &e[2]), 1, NULL);
}

/* ---- The same computation as recorded ops ---- */

/* Returns the positions that the node saved as a tensor of the tape, with the placement of the result. */
static tg_tensor *saved_positions(tg_tape *t, const tg_node *n) {
    return tg_node_kept_tensor(t, n, AT, tg_node_out(n)[0]->place);
}

static tg_tensor *planes(tg_tape *t, tg_tensor *x) {
    if (!tg_is_alive(x)) return x; /* inert after an error */
    return tg_reshape(t, x, TG_SHAPE(x->shape[0], x->shape[1], -1));
}

static tg_tensor *max_pool_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const tg_tensor *x = tg_node_in(n)[0];
    if (x->numel == 0) return tg_zeros_like(t, x);
    tg_tensor *none = planes(t, tg_zeros_like(t, x));
    return tg_reshape(t, tg_scatter_add(t, none, 2, saved_positions(t, n), planes(t, g)), tg_shape_kept(x));
}

TG_VJP(max_pool_vjp, max_pool_back(t, n, g))

static tg_status max_pool_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    const tg_tensor *y = tg_node_out(n)[0];
    if (y->numel == 0)
        dout[0] = tg_zero_tangent(t, y);
    else
        dout[0] = tg_reshape(t, tg_gather(t, planes(t, din[0]), 2, saved_positions(t, n)), tg_shape_kept(y));
    return TG_OK;
}

static int64_t max_pool_flops(const tg_node *n) {
    const max_pool_params *p = tg_node_params(n);
    return tg_flops(tg_flops(tg_numel(tg_node_output(n, 0)), p->w.size[0]), p->w.size[1]);
}

/* The op that returns the positions. */
static const tg_op max_pool_positions = {
    .size = sizeof(tg_op), .name = "max_pool_positions", .formula = "where x is greatest in each window", .n_in = 1,
    .n_out = 1, .params_size = sizeof(max_pool_params), .family = TG_FAMILY_CUSTOM, .infer = max_pool_infer,
    .forward = max_pool_forward, .flops = max_pool_flops};

tg_tensor *tg_max_pool_positions(tg_tape *t, tg_tensor *x, const tg_windows *w) {
    return TG_RECORD(t, max_pool_positions, (&(max_pool_params){.w = *w, .positions = true}), x);
}

#define POOL_(dims_, h_, w_, ...) \
    &(const max_pool_params) { .w = TG_WINDOWS(dims_, .size = {h_, w_}, __VA_ARGS__) }
#define POOL1(k_, step_, pad_, apart_) POOL_(1, 1, k_, .step = {1, step_}, .pad = {0, pad_}, .apart = {1, apart_})
#define POOL2(h_, w_, sh_, sw_, ph_, pw_, ah_, aw_) \
    POOL_(2, h_, w_, .step = {sh_, sw_}, .pad = {ph_, pw_}, .apart = {ah_, aw_})

static const tg_sample max_pool1d_samples[] = {
    {.note = "side by side", .params = POOL1(2, 2, 0, 1), .n_in = 1, .input = {TG_S(2, 3, 6)}},
    {.note = "overlapping, padded", .params = POOL1(3, 1, 1, 1), .n_in = 1, .input = {TG_S(2, 2, 5)}},
    {.note = "apart, not to the end", .params = POOL1(2, 3, 0, 1), .n_in = 1, .input = {TG_S(2, 2, 7)}},
    {.note = "dilated, padded", .params = POOL1(4, 1, 2, 3), .n_in = 1, .input = {TG_S(2, 2, 8)}},
    {.note = "transposed", .params = POOL1(2, 1, 0, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4)}},
    {.note = "equal images", .params = POOL1(2, 1, 1, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 2, 4)}},
    {.note = "one element", .params = POOL1(1, 1, 0, 1), .n_in = 1, .input = {TG_S(1, 1, 1)}},
    {.note = "empty batch", .params = POOL1(2, 2, 0, 1), .n_in = 1, .input = {TG_S(0, 2, 4)}},
    {.note = "too much padding", .params = POOL1(3, 1, 2, 1), .n_in = 1, .input = {TG_S(1, 1, 4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "padding alone", .params = POOL1(2, 1, 1, 3), .n_in = 1, .input = {TG_S(1, 1, 2)},
     .refused = TG_ERR_SHAPE},
    {.note = "too few dims", .params = POOL1(2, 2, 0, 1), .n_in = 1, .input = {TG_S(3, 6)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = POOL1(4, 2, 0, 1), .n_in = 1, .input = {TG_S(32, 64, 1024)}, .bench = true},
};

static const tg_sample max_pool2d_samples[] = {
    {.note = "side by side", .params = POOL2(2, 2, 2, 2, 0, 0, 1, 1), .n_in = 1, .input = {TG_S(2, 2, 4, 6)}},
    {.note = "overlapping, padded", .params = POOL2(3, 2, 1, 1, 1, 1, 1, 1), .n_in = 1, .input = {TG_S(2, 2, 4, 3)}},
    {.note = "dilated, padded", .params = POOL2(2, 3, 1, 2, 1, 1, 2, 2), .n_in = 1, .input = {TG_S(2, 2, 4, 7)}},
    {.note = "beyond the end",
     .params = POOL_(2, 2, 3, .step = {2, 3}, .pad = {0, 1}, .apart = {1, 1}, .ceil = true), .n_in = 1,
     .input = {TG_S(2, 2, 3, 6)}},
    {.note = "dilated, beyond the end",
     .params = POOL_(2, 2, 2, .step = {2, 2}, .pad = {1, 0}, .apart = {2, 3}, .ceil = true), .n_in = 1,
     .input = {TG_S(1, 2, 4, 5)}},
    {.note = "several chunks", .params = POOL2(2, 2, 1, 1, 1, 1, 1, 1), .n_in = 1, .input = {TG_S(1400, 4, 1, 2)},
     .kinked = true, .slow = true},
    {.note = "transposed", .params = POOL2(2, 2, 1, 2, 0, 0, 1, 1), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 3, 4)}},
    {.note = "strided", .params = POOL2(2, 2, 1, 1, 1, 0, 1, 1), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 1, 2, 3, 4)}},
    {.note = "one window", .params = POOL2(3, 4, 3, 4, 0, 0, 1, 1), .n_in = 1, .input = {TG_S(2, 2, 3, 4)}},
    {.note = "no channels", .params = POOL2(2, 2, 2, 2, 0, 0, 1, 1), .n_in = 1, .input = {TG_S(2, 0, 4, 4)}},
    {.note = "too large", .params = POOL2(2, 5, 1, 1, 0, 0, 1, 1), .n_in = 1, .input = {TG_S(1, 1, 4, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "windows of nothing", .params = POOL2(0, 2, 1, 1, 0, 0, 1, 1), .n_in = 1, .input = {TG_S(1, 1, 4, 4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "overflow", .params = POOL2(2, 2, 1, 1, 0, 0, INT64_MAX, 1), .n_in = 1, .input = {TG_S(1, 1, 4, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = POOL2(2, 2, 2, 2, 0, 0, 1, 1), .n_in = 1,
     .input = {TG_S_INDEX(9, 1, 1, 4, 4)}, .refused = TG_ERR_DTYPE},
    {.note = "32 images of 64 channels", .params = POOL2(3, 3, 2, 2, 1, 1, 1, 1), .n_in = 1,
     .input = {TG_S(32, 64, 56, 56)}, .bench = true},
};

static const tg_field max_pool1d_fields[] = {
    TG_ARG_AS(max_pool_params, w.size[1], "k", INT64, "Number of elements of a window.", .required = true),
    TG_ARG_AS(max_pool_params, w.step[1], "stride", INT64, "Distance between the starts of windows; -1 means k."),
    TG_ARG_AS(max_pool_params, w.pad[1], "padding", INT64, "Number of elements that are added at each end."),
    TG_ARG_AS(max_pool_params, w.apart[1], "dilation", INT64, "Distance between the elements of a window."),
    TG_ARG_AS(max_pool_params, w.ceil, "ceil_mode", BOOL, "Keeps a window that reaches beyond the padding after x."),
};
static const tg_field max_pool2d_fields[] = {
    TG_ARG_AS(max_pool_params, w.size[0], "h", INT64, "Number of rows of a window.", .required = true),
    TG_ARG_AS(max_pool_params, w.size[1], "w", INT64, "Number of columns of a window.", .required = true),
    TG_ARG_ARRAY(max_pool_params, w.step, "stride", INT64, 2,
                 "Distances between the starts of windows; -1 means the size of the window."),
    TG_ARG_ARRAY(max_pool_params, w.pad, "padding", INT64, 2, "Numbers of elements that are added at each end."),
    TG_ARG_ARRAY(max_pool_params, w.apart, "dilation", INT64, 2, "Distances between the elements of a window."),
    TG_ARG_AS(max_pool_params, w.ceil, "ceil_mode", BOOL, "Keeps a window that reaches beyond the padding after x."),
};
static const max_pool_params max_pool1d_preset = {
    .w = TG_WINDOWS(1, .size = {1, 1}, .step = {1, TG_AUTO}, .apart = {1, 1})};
static const max_pool_params max_pool2d_preset = {
    .w = TG_WINDOWS(2, .size = {1, 1}, .step = {TG_AUTO, TG_AUTO}, .apart = {1, 1})};

#define MAX_POOL(name_)                                                                                        \
    const tg_op tg_op_##name_ = {                                                                              \
        .size = sizeof(tg_op), .name = #name_, .formula = "the greatest of x in each window", .inputs = "x",   \
        .n_in = 1, .n_out = 1, .params_size = sizeof(max_pool_params), .family = TG_FAMILY_CUSTOM,             \
        .sums_f32 = true, .infer = max_pool_infer, .forward = max_pool_forward, .backward = max_pool_backward, \
        .vjp = max_pool_vjp, .jvp = max_pool_jvp, .flops = max_pool_flops, TG_FIELDS(name_##_fields),          \
        .preset = &name_##_preset, TG_SAMPLES(name_##_samples)}

MAX_POOL(max_pool1d);
MAX_POOL(max_pool2d);

static max_pool_params params_of(int dims, const int64_t *size, const tg_pool_opts *given) {
    tg_pool_opts o;
    tg_op_options(&o, &tg_pool_opts_struct, given);
    max_pool_params p = {.w = tg_windows_of_pool(dims, size, &o)};
    if (o.exclude_padding) p.w.unused = "exclude_padding";
    if (o.divisor != TG_AUTO) p.w.unused = "divisor";
    return p;
}

/* Returns the greatest of every window of k elements of x [n, c, l]: [n, c, windows]. Windows start `stride` elements
 * apart, where TG_AUTO means k, and their elements are `dilation` apart. Windows that do not fit into x and its padding
 * are left out, except with ceil_mode: if elements are left over after the windows that fit, the next window is used
 * too, provided that it starts before the end of x. Padding is never selected. The gradient goes to the first of equal
 * elements, and NaN is greater than any number. The op saves one index per window. */
tg_tensor *tg_max_pool1d(tg_tape *t, tg_tensor *x, int64_t k, const tg_pool_opts *opts) {
    max_pool_params p = params_of(1, &k, opts);
    return TG_RECORD(t, tg_op_max_pool1d, &p, x);
}

/* The same for windows of h x w elements of x [n, c, h, w]. */
tg_tensor *tg_max_pool2d(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts) {
    max_pool_params p = params_of(2, (const int64_t[]){h, w}, opts);
    return TG_RECORD(t, tg_op_max_pool2d, &p, x);
}
