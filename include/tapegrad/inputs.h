/* Leaves that a tape owns: data of one step. Unlike tensors that a context owns, they end with the tape's results.
 * tapegrad.h includes this header. */
#ifndef TAPEGRAD_INPUTS_H
#define TAPEGRAD_INPUTS_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* These functions do what tg_from_host, tg_randn and tg_uniform (tensor.h) do, with the same values, placements and
 * errors, but the tape owns the tensor. With an open key (tg_key_open) the random numbers are those of the tape's
 * micro-batch (tg_tape_key). The tensor ends when the tape is reset or, once the program has released the tensor
 * (tg_release), as soon as no node needs it. If it was made in a scope, closing the scope releases its bytes
 * (tg_scope_close), as it does those of results. The leaf requires no gradient until tg_set_requires_grad. On error the
 * functions return an inert tensor. */
TG_API tg_tensor *tg_input(tg_tape *t, tg_dtype dtype, tg_shape shape, const void *data);
TG_API tg_tensor *tg_tape_randn(tg_tape *t, tg_dtype dtype, tg_shape shape, double std);
TG_API tg_tensor *tg_tape_uniform(tg_tape *t, tg_dtype dtype, tg_shape shape, double lo, double hi);

#ifdef __cplusplus
}
#endif

#endif
