/* Helpers for tests of ops and layers on thread ranks: float64 contexts, values by global index, comparisons. */
#ifndef TG_ON_RANKS_H
#define TG_ON_RANKS_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tapegrad/mappings.h>
#include <tapegrad/ops.h>

#include "check_main.h"
#include "device_ranks.h"

/* Fails a rank by returning an error, so that the other ranks are not left waiting. */
#define EXPECT(ctx, truth)                                                                                             \
    do {                                                                                                               \
        if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);                                                    \
        if (!(truth)) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #truth);               \
    } while (0)
#define RUN(expr)                                                                                                      \
    do {                                                                                                               \
        tg_status run_ = (expr);                                                                                       \
        if (run_ != TG_OK) return run_;                                                                                \
    } while (0)
/* Checks that a call fails with the code and a message that contains the text, and clears the error. */
#define REFUSED(ctx, code, says, call)                                                                                 \
    do {                                                                                                               \
        if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);                                                    \
        (void)(call);                                                                                                  \
        tg_status got_ = tg_ctx_status(ctx);                                                                           \
        bool said_ = strstr(tg_ctx_message(ctx), says) != NULL;                                                        \
        char text_[700];                                                                                               \
        snprintf(text_, sizeof text_, "%s", tg_ctx_message(ctx));                                                      \
        tg_ctx_clear(ctx);                                                                                             \
        if (got_ != (code) || !said_)                                                                                  \
            return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s:%d: %s gave %s \"%s\", expected %s \"%s\"", __FILE__,         \
                               __LINE__, #call, tg_status_name(got_), text_, tg_status_name(code), says);              \
    } while (0)

static inline void on_ranks(int n, tg_rank_fn fn, void *arg) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60);
    tg_status s =
        run_ranks(n, fn, arg, TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%d ranks: %s: %s", n, tg_status_name(s), message);
}

/* Memory that is taken from now on contains NaN, so that elements that are never written are found. */
static inline tg_tape *tape_on_nans(tg_ctx *ctx) {
    tg_tape *t = tg_tape_new(ctx);
    tg_full(t, TG_F64, TG_SHAPE(1 << 16), NAN);
    tg_tape_reset(t);
    return t;
}

/* Value of element i of tensor number k. */
static inline double at(int k, int64_t i) { return sin((double)(i + 1) * (0.7 + 0.13 * k) + k); }

static inline tg_tensor *made(tg_ctx *ctx, int k, tg_shape shape) {
    double v[8192];
    int64_t n = 1;
    for (int d = 0; d < shape.ndim; d++) n *= shape.dim[d];
    for (int64_t i = 0; i < n && i < 8192; i++) v[i] = at(k, i);
    return tg_from_host(ctx, TG_F64, shape, v);
}

/* Makes part r of n along dim d of tensor number k, whose global shape is given. */
static inline tg_tensor *part(tg_ctx *ctx, int k, tg_shape shape, int d, int r, int n) {
    double v[8192];
    int64_t outer = 1, inner = 1, rows = shape.dim[d] / n, at_v = 0;
    for (int i = 0; i < d; i++) outer *= shape.dim[i];
    for (int i = d + 1; i < shape.ndim; i++) inner *= shape.dim[i];
    for (int64_t o = 0; o < outer; o++)
        for (int64_t j = r * rows * inner; j < (r + 1) * rows * inner; j++)
            v[at_v++] = at(k, o * shape.dim[d] * inner + j);
    shape.dim[d] = rows;
    return tg_from_host(ctx, TG_F64, shape, v);
}

/* Returns the largest difference of x from `whole`, or from its part r of n along d (d < 0: all of it). NaN if an
 * element is NaN, or on an error. */
static inline double off(tg_tensor *x, tg_tensor *whole, int d, int r, int n) {
    double a[8192], b[8192], most = 0;
    tg_shape s = tg_shape_of(whole);
    int64_t outer = 1, inner = 1, rows = d < 0 ? tg_numel(whole) : s.dim[d] / n, size = d < 0 ? rows : s.dim[d];
    for (int i = 0; i < d; i++) outer *= s.dim[i];
    for (int i = d + 1; d >= 0 && i < s.ndim; i++) inner *= s.dim[i];
    if (d < 0) r = 0;
    if (tg_numel(x) != outer * rows * inner || tg_read_f64(x, a, tg_numel(x)) != TG_OK ||
        tg_read_f64(whole, b, tg_numel(whole)) != TG_OK)
        return NAN;
    for (int64_t o = 0, i = 0; o < outer; o++)
        for (int64_t j = r * rows * inner; j < (r + 1) * rows * inner; j++)
            most = larger_or_nan(most, fabs(a[i++] - b[o * size * inner + j]));
    return most;
}

/* Returns the largest absolute value of x, which has at most 4,096 elements. */
static inline double largest(tg_tensor *x) {
    double v[4096], most = 0;
    tg_read_f64(x, v, tg_numel(x));
    for (int64_t i = 0; i < tg_numel(x); i++) most = larger_or_nan(most, fabs(v[i]));
    return most;
}

/* Resets the tape after a step, and notes in *allocations how often memory of the host was taken so far. Fails if a
 * step after the third one has taken some. */
static inline tg_status end_steady_step(tg_tape *t, int step, int64_t *allocations) {
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_memory_info m = TG_MEMORY_INFO();
    tg_tape_reset(t);
    tg_memory_query(ctx, &m);
    EXPECT(ctx, step < 3 || m.host_allocations == *allocations);
    *allocations = m.host_allocations;
    return TG_OK;
}

static inline tg_tensor *grad_leaf(tg_tensor *x) {
    tg_set_requires_grad(x, true);
    return x;
}

#endif
