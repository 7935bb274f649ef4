/* Initial values of parameters, for layers that take a tg_init. */
#ifndef TG_INIT_H
#define TG_INIT_H

#include "nn/module.h"

/* Copies the caller's init to *o and checks it for a parameter of this dtype. Messages begin with `who`. */
tg_status tg_init_read(tg_ctx *ctx, tg_dtype dtype, const tg_init *given, tg_init *o, const char *who);
bool tg_init_draws(const tg_init *o); /* whether the kind takes random numbers */
/* Fills x, a contiguous floating-point tensor of the context, as o says, which tg_init_read has checked. */
tg_status tg_init_fill(tg_tensor *x, const tg_init *o, const char *who, const void *site);

#endif
