/* Window geometry of convolutions and pools; see windows.h. */
#include "ops/common/windows.h"

/* Returns the name of an option that is set for a dim which windows of `dims` dims do not have. Returns NULL if no
 * option is. The defaults of stride and dilation are 1. */
static const char *unused_dim(int dims, const int64_t *step, const int64_t *pad, const int64_t *apart) {
    static const char *const names[][3] = {
        [1] = {"stride[1]", "padding[1]", "dilation[1]"}, [2] = {"stride[2]", "padding[2]", "dilation[2]"}};
    for (int k = dims; k < TG_LEN(names); k++) {
        if (step[k] < 0 || step[k] > 1) return names[k][0];
        if (pad[k]) return names[k][1];
        if (apart[k] < 0 || apart[k] > 1) return names[k][2];
    }
    return NULL;
}

tg_windows tg_windows_of(int dims, const int64_t *size, const int64_t *step, const int64_t *pad, const int64_t *apart) {
    tg_windows w = {.dims = dims, .size = {1, 1}, .step = {1, 1}, .apart = {1, 1}};
    for (int d = 2 - dims, k = 0; d < 2; d++, k++) {
        w.size[d] = size[k];
        w.step[d] = step[k];
        w.pad[d] = pad[k];
        w.apart[d] = apart[k];
    }
    w.unused = unused_dim(dims, step, pad, apart);
    return w;
}

tg_windows tg_windows_of_pool(int dims, const int64_t *size, const tg_pool_opts *o) {
    int64_t step[3];
    for (int k = 0; k < 3; k++) step[k] = o->stride[k] != TG_AUTO ? o->stride[k] : k < dims ? size[k] : 1;
    tg_windows w = tg_windows_of(dims, size, step, o->padding, o->dilation);
    w.ceil = o->ceil_mode;
    w.given = o->size;
    w.known = sizeof *o;
    return w;
}

/* Checks the options of dim d, and computes how many windows fit along it into `in` elements and the padding. With
 * w->ceil, one more window is counted if elements are left over and it starts in x or in the padding before x. If no
 * window fits, this is the first one, which must reach less than a stride beyond the padding. */
static tg_status count_windows(tg_call *c, const tg_windows *w, int d, int64_t in, int64_t *out) {
    int64_t extent, padded;
    if (w->size[d] < 1 || w->step[d] < 1 || w->apart[d] < 1 || w->pad[d] < 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "window size is %lld, stride %lld, dilation %lld and padding %lld; the first three must "
                            "be 1 or more and padding 0 or more", (long long)w->size[d], (long long)w->step[d],
                            (long long)w->apart[d], (long long)w->pad[d]);
    if (__builtin_mul_overflow(w->size[d] - 1, w->apart[d], &extent) || __builtin_add_overflow(extent, 1, &extent) ||
        __builtin_add_overflow(w->pad[d], w->pad[d], &padded) || __builtin_add_overflow(padded, in, &padded))
        return tg_call_fail(c, TG_ERR_SHAPE, "the size of a window, or of x with its padding, overflows 64 bits");
    bool beyond = w->ceil && extent > padded && extent - padded < w->step[d]; /* the first window reaches beyond */
    if (extent > padded && !beyond)
        return tg_call_fail(c, TG_ERR_SHAPE, "a window spans %s, but x with its padding has %lld",
                            tg_count(extent, "element").text, (long long)padded);
    *out = beyond ? 1 : (padded - extent) / w->step[d] + 1;
    if (w->ceil && !beyond && (padded - extent) % w->step[d] && (in + w->pad[d] - 1) / w->step[d] >= *out) ++*out;
    return TG_OK;
}

tg_status tg_windows_check_options(tg_call *c, const tg_windows *w) {
    TG_TRY(tg_size_check(c->ctx, w->given, w->known, "the options"));
    if (!w->unused) return TG_OK;
    return tg_call_fail(c, TG_ERR_ARGUMENT, "option %s is set, but this op does not use it; leave it at its default",
                        w->unused);
}

tg_status tg_windows_fit(tg_call *c, const tg_windows *w, const int64_t in[2], int64_t out[2]) {
    TG_TRY(tg_windows_check_options(c, w));
    for (int d = 0; d < 2; d++) TG_TRY(count_windows(c, w, d, in[d], &out[d]));
    return TG_OK;
}

tg_status tg_windows_infer(tg_call *c, const tg_windows *w, int i, int64_t in[2], int64_t out[2]) {
    const tg_tensor *x = c->input[i];
    TG_TRY(tg_windows_check_options(c, w));
    if (x->ndim != w->dims + 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "x must be %s", w->dims == 1 ? "[n, c, l]" : "[n, c, h, w]");
    for (int d = 0; d < 2; d++) in[d] = d < 2 - w->dims ? 1 : x->shape[d + w->dims];
    return tg_windows_fit(c, w, in, out);
}

int tg_windows_shape(const tg_windows *w, int64_t n, int64_t channels, const int64_t size[2], int64_t *shape) {
    shape[0] = n;
    shape[1] = channels;
    for (int d = 0; d < w->dims; d++) shape[2 + d] = size[2 - w->dims + d];
    return 2 + w->dims;
}

tg_array tg_windows_inside(tg_array x, tg_extent *e) {
    if (x.ndim == 4) return x;
    for (int d = 0, from = 0; d < 4; d++) {
        e->shape[d] = d == 2 ? 1 : x.shape[from];
        e->stride[d] = d == 2 ? 0 : x.stride[from++];
    }
    return tg_array_at(x, 0, 4, e->shape, e->stride);
}

bool tg_windows_overlap(const tg_windows *w) {
    for (int d = 0; d < 2; d++)
        if (w->size[d] > 1 && (w->apart[d] > 1 || w->size[d] > w->step[d])) return true;
    return false;
}

/* ---- Parts ---- */

/* The windows along one dim that have their element k in x, not in the padding. */
typedef struct run {
    int64_t first, n; /* the windows [first, first + n) */
    int64_t at;       /* position in x of element k of window `first`; those of the next windows are one step apart */
} run;

/* Returns the run of element k of the windows along dim d. x has `in` elements there, and there are `out` windows. */
static run run_of(const tg_windows *w, int d, int64_t k, int64_t in, int64_t out) {
    int64_t shift = k * w->apart[d] - w->pad[d], step = w->step[d];
    run r = {.first = shift < 0 ? (-shift - 1) / step + 1 : 0}; /* -shift / step, rounded up without overflow */
    int64_t end = shift < in ? (in - 1 - shift) / step + 1 : 0;
    if (end > out) end = out;
    if (end > r.first) r.n = end - r.first;
    if (!r.n) r.first = 0;
    r.at = r.first * step + shift;
    return r;
}

tg_window_reach tg_windows_reach(const tg_windows *w, int d, int64_t in, int64_t out) {
    int64_t before = w->pad[d] - (out - 1) * w->step[d], last = (w->pad[d] + in - 1) / w->apart[d];
    return (tg_window_reach){.first = before > 0 ? (before - 1) / w->apart[d] + 1 : 0,
                             .end = last < w->size[d] ? last + 1 : w->size[d]};
}

/* Selects the runs r along the last two dims of a. If step is given, a is x, and its elements that belong to the runs
 * are selected; they are step apart. If step is NULL, these dims count windows, and the windows of the runs are
 * selected. */
static tg_array cut(tg_array a, const run r[2], const int64_t *step, tg_extent *e) {
    int64_t offset = 0;
    memcpy(e->shape, a.shape, a.ndim * sizeof *a.shape);
    memcpy(e->stride, a.stride, a.ndim * sizeof *a.stride);
    for (int d = 0, at = a.ndim - 2; d < 2; d++, at++) {
        offset += (step ? r[d].at : r[d].first) * a.stride[at];
        e->shape[at] = r[d].n;
        if (step && r[d].n > 1) e->stride[at] *= step[d]; /* the stride of a dim of size 1 is never used */
    }
    return tg_array_at(a, offset, a.ndim, e->shape, e->stride);
}

/* Computes the runs r of element (i, j) along both dims. Returns false if no window has that element in x. */
static bool runs_of(const tg_windows *w, int64_t i, int64_t j, tg_array x, tg_array y, run r[2]) {
    r[0] = run_of(w, 0, i, x.shape[x.ndim - 2], y.shape[y.ndim - 2]);
    r[1] = run_of(w, 1, j, x.shape[x.ndim - 1], y.shape[y.ndim - 1]);
    return r[0].n && r[1].n;
}

bool tg_windows_part(const tg_windows *w, int64_t i, int64_t j, tg_array x, tg_array y, tg_window_part *part) {
    run r[2];
    if (!runs_of(w, i, j, x, y, r)) return false;
    part->x = cut(x, r, w->step, &part->ex);
    part->y = cut(y, r, NULL, &part->ey);
    return true;
}

/* Zeroes y except at the windows of the runs r: the rows above and below them, and the columns left and right of
 * them. */
static tg_status clear_around(tg_call *c, tg_array y, const run r[2]) {
    int64_t h = y.shape[y.ndim - 2], w = y.shape[y.ndim - 1], below = r[0].first + r[0].n, right = r[1].first + r[1].n;
    const run border[][2] = {{{0, r[0].first, 0}, {0, w, 0}},
                             {{below, h - below, 0}, {0, w, 0}},
                             {r[0], {0, r[1].first, 0}},
                             {r[0], {right, w - right, 0}}};
    tg_extent e;
    for (int k = 0; k < TG_LEN(border); k++)
        if (border[k][0].n && border[k][1].n)
            TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, cut(y, border[k], NULL, &e), 0));
    return TG_OK;
}

/* Returns element (i, j) of every window in cols, as [n, c, windows, windows]. */
static tg_array element_of(tg_array cols, int64_t i, int64_t j, tg_extent *e) {
    for (int d = 0; d < 4; d++) {
        e->shape[d] = cols.shape[d + (d < 2 ? 0 : 2)];
        e->stride[d] = cols.stride[d + (d < 2 ? 0 : 2)];
    }
    return tg_array_at(cols, i * cols.stride[2] + j * cols.stride[3], 4, e->shape, e->stride);
}

tg_status tg_windows_gather(tg_call *c, const tg_windows *w, tg_array cols, tg_array x) {
    for (int64_t k = 0; k < w->size[0] * w->size[1] && cols.numel; k++) {
        int64_t i = k / w->size[1], j = k % w->size[1];
        tg_extent e, ex, ey;
        run r[2];
        tg_array y = element_of(cols, i, j, &e);
        if (!runs_of(w, i, j, x, y, r)) {
            TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, y, 0));
            continue;
        }
        TG_TRY(tg_op_copy(c, cut(y, r, NULL, &ey), cut(x, r, w->step, &ex), false));
        TG_TRY(clear_around(c, y, r));
    }
    return TG_OK;
}

tg_status tg_windows_scatter(tg_call *c, const tg_windows *w, tg_array x, tg_array cols) {
    for (int64_t k = 0; k < w->size[0] * w->size[1] && cols.numel; k++) {
        int64_t i = k / w->size[1], j = k % w->size[1];
        tg_extent e;
        tg_window_part part;
        if (tg_windows_part(w, i, j, x, element_of(cols, i, j, &e), &part))
            TG_TRY(tg_op_copy(c, part.x, part.y, true));
    }
    return TG_OK;
}

/* ---- Pools ---- */

/* Returns the position in x of the first element of window o along dim d that does not lie in the padding before x. It
 * may lie in the padding after x. */
static int64_t first_element(const tg_windows *w, int d, int64_t o) {
    int64_t at = o * w->step[d] - w->pad[d];
    return at >= 0 ? at : (w->apart[d] - -at % w->apart[d]) % w->apart[d];
}

tg_status tg_windows_infer_pool(tg_call *c, tg_windows *w, int64_t in[2], int64_t out[2]) {
    for (int d = 0; d < 2; d++)
        if (w->step[d] == TG_AUTO) w->step[d] = w->size[d];
    TG_TRY(tg_windows_infer(c, w, 0, in, out));
    for (int d = 0; d < 2; d++) {
        if (w->pad[d] > w->size[d] / 2)
            return tg_call_fail(c, TG_ERR_ARGUMENT,
                                "padding is %lld for windows of %s; it must be at most half of the window",
                                (long long)w->pad[d], tg_count(w->size[d], "element").text);
        /* If x is at least as long as the distance between neighboring elements of a window, every window has an
         * element in x, so the loop is not needed. */
        for (int64_t o = 0; in[d] < w->apart[d] && o < out[d]; o++)
            if (first_element(w, d, o) >= in[d])
                return tg_call_fail(c, TG_ERR_SHAPE, "window %lld has no element of x, only padding", (long long)o);
    }
    return TG_OK;
}

tg_status tg_windows_count(tg_call *c, const tg_windows *w, int d, int64_t in, const tg_tensor *n) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const tg_window_reach reach = tg_windows_reach(w, d, in, n->shape[0]);
    TG_TRY(ops->fill(c->ctx, tg_array_of(n), 0));
    for (int64_t k = reach.first; k < reach.end; k++) {
        run r = run_of(w, d, k, in, n->shape[0]);
        tg_extent e;
        tg_array some = tg_array_slice(tg_array_of(n), 0, r.first, r.n, 1, &e);
        if (r.n) TG_TRY(ops->apply(c->ctx, TG_FN_affine, some, &some, 1, (const double[2]){1, 1}, false));
    }
    return TG_OK;
}
