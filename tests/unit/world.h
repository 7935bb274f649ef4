/* Shared by tests of tapes: a float64 context in check mode with one tape, made and ended by each test, on the device
 * that TG_TEST_DEVICE names. */
#ifndef TG_TEST_WORLD_H
#define TG_TEST_WORLD_H

#include <string.h>

#include <tapegrad/tapegrad.h>

#include "check_main.h"
#include "on_device.h"

#define ck_status(s)                                                                                                   \
    ck_assert_msg(tg_ctx_status(ctx) == (s), "%s: %s", tg_status_name(tg_ctx_status(ctx)), tg_ctx_message(ctx))
#define ck_says(text) ck_assert_msg(strstr(tg_ctx_message(ctx), text), "\"%s\" in: %s", text, tg_ctx_message(ctx))

static tg_ctx *ctx;
static tg_tape *t;

static inline void begin(void) {
    ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 5, .threads = 1, .dtype = TG_F64, .check = true));
    t = tg_tape_new(ctx);
}

static inline void end(void) {
    ck_status(TG_OK);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

static inline tg_tensor *leaf_of(tg_shape shape, const double *v) {
    tg_tensor *x = tg_from_host(ctx, TG_F64, shape, v);
    tg_set_requires_grad(x, true);
    return x;
}

static inline tg_tensor *leaf(double v) { return leaf_of(TG_SHAPE(), &v); }

static inline double grad(tg_tensor *x) { return tg_item(tg_grad_of(x)); }

#endif
