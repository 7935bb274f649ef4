/* Functions by which a device queries the context that it was opened for. */
#include "base/runtime.h"

const tg_device_ops *tg_ctx_ops(const tg_ctx *ctx) { return ctx ? tg_runtime_of(ctx)->ops : NULL; }

void *tg_ctx_device_state(const tg_ctx *ctx) { return ctx ? tg_runtime_of(ctx)->device_state : NULL; }
