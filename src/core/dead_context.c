/* The context that stands for a missing one. */
#include "core/context.h"

/* It can be const, because tg_fail does not write to a context that has an error. */
const tg_ctx tg_dead_ctx = {
    .run = {.status = TG_ERR_MEMORY, .dead = true, .message = "tg_ctx_new: no memory for the context"},
    .inert = {.ctx = (tg_ctx *)&tg_dead_ctx},
};
