/* What the constructors of layers share. `who` is the public constructor, with which error messages begin. */
#ifndef TG_LAYER_H
#define TG_LAYER_H

#include "nn/module.h"

/* Return whether a number is valid; if not, record TG_ERR_ARGUMENT. They also return false if the context is NULL or
 * has an error. */
bool tg_layer_positive(tg_ctx *ctx, const char *who, const char *name, int64_t size); /* 1 or more */
bool tg_layer_finite(tg_ctx *ctx, const char *who, const char *name, double x);       /* finite, and 0 or more */
/* Returns a new vector of n elements of the default dtype that all have the value. The result of a call that fails is
 * inert or has other values; tg_layer_add drops it. */
tg_tensor *tg_layer_vector(tg_ctx *ctx, const char *name, int64_t n, double value);
/* Adds the parameter to the module; on error drops it. */
void tg_layer_add(tg_module *m, const char *name, tg_tensor *param);
/* Returns m. After an error frees m, which may be NULL, and returns an inert module instead. */
tg_module *tg_layer_checked(tg_module *m);

#endif
