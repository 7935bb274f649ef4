/* Shared by tests of captured modules: the module of mixer.h, captured with two slots, on the device that
 * TG_TEST_DEVICE names. */
#ifndef TG_TEST_CAPTURED_MIXER_H
#define TG_TEST_CAPTURED_MIXER_H

#include <tapegrad/capture.h>

#include "mixer.h"

enum { SLOTS = 2 };

/* Returns whether the device records graphs. */
static inline bool records(void) { return !test_on_host(); }

static inline tg_module *captured_of(tg_module *m) {
    return tg_captured_new(m, (tg_shape[]){TG_SHAPE(N, C), TG_SHAPE(C)}, (tg_dtype[]){TG_F64, TG_F64}, 2, SLOTS);
}

#endif
