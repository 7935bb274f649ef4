/* The end of a call of one of the program's own functions: a hook, an observer, a packer and so on. */
#ifndef TG_CALLBACK_H
#define TG_CALLBACK_H

#include "base/runtime.h"

/* Returns TG_OK if a callback has returned s = TG_OK and has recorded no error. If it has recorded one (tg_ctx_fail),
 * keeps it, and appends " (in WHAT)" to its message. Otherwise fails with TG_ERR_CALLBACK: "WHAT failed with S". The
 * format and what follows give WHAT, such as "the observer at op add". */
tg_status tg_callback_end(tg_ctx *ctx, tg_status s, const char *format, ...) TG_PRINTF(3, 4);

#endif
