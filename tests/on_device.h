/* The device of a test: the one that TG_TEST_DEVICE names, or the CPU. Tests reach raw device memory only through the
 * functions here, because the host must not touch a GPU's. */
#ifndef TG_TEST_ON_DEVICE_H
#define TG_TEST_ON_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>

static inline const char *test_device(void) { return getenv("TG_TEST_DEVICE"); }

static inline bool test_on_host(void) { return !test_device() || !strcmp(test_device(), "cpu"); }

static inline void *bytes_of(const tg_tensor *x) { return tg_array_of(x).data; }

static inline tg_status peek(tg_ctx *ctx, void *to, const void *from, size_t bytes) {
    return tg_ctx_ops(ctx)->copy(ctx, to, from, bytes, TG_COPY_TO_HOST);
}

static inline tg_status poke(tg_ctx *ctx, void *to, const void *from, size_t bytes) {
    return tg_ctx_ops(ctx)->copy(ctx, to, from, bytes, TG_COPY_FROM_HOST);
}

/* Float64 arrays of an op that the host runs: on the CPU the tensors' own memory, elsewhere copies. release writes
 * copies back that were changed. */
typedef struct reached {
    tg_ctx *ctx;
    int n;
    struct {
        double *on_device, *data, *was;
        size_t bytes;
    } of[12];
} reached;

/* Returns x's elements in host memory: on the CPU themselves, else a copy of their span. Strides are not negative. */
static inline double *reach(reached *r, const tg_tensor *x) {
    tg_array a = tg_array_of(x);
    size_t span = 1;
    int64_t n = 1;
    if (tg_ctx_ops(r->ctx)->host) return a.data;
    for (int i = 0; i < r->n; i++)
        if (r->of[i].on_device == a.data) return r->of[i].data;
    for (int d = 0; d < a.ndim; d++) {
        span += (size_t)((a.shape[d] - 1) * a.stride[d]);
        n *= a.shape[d];
    }
    size_t held = span < (size_t)n ? (size_t)n : span; /* more than exists if an op ignores strides of 0 */
    double *data = calloc(2 * held, sizeof *data);
    peek(r->ctx, data, a.data, span * sizeof *data);
    memcpy(data + held, data, span * sizeof *data);
    r->of[r->n].on_device = a.data;
    r->of[r->n].data = data;
    r->of[r->n].was = data + held;
    r->of[r->n++].bytes = span * sizeof *data;
    return data;
}

static inline tg_status release(reached *r) {
    tg_status s = TG_OK;
    for (int i = 0; i < r->n; i++) {
        if (memcmp(r->of[i].data, r->of[i].was, r->of[i].bytes) != 0 && s == TG_OK)
            s = poke(r->ctx, r->of[i].on_device, r->of[i].data, r->of[i].bytes);
        free(r->of[i].data);
    }
    r->n = 0;
    return s;
}

#endif
