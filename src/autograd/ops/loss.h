/* What cross_entropy and linear_cross_entropy share: options, targets, and the way from a loss a row to the result. */
#ifndef TG_LOSS_H
#define TG_LOSS_H

#include "autograd/ops/op.h"

typedef tg_cross_entropy_opts tg_loss_params;

enum { TG_LOSS_LSE, TG_LOSS_COUNT }; /* private saved buffers: [rows], and the rows not ignored */

/* Options of a sample. */
#define TG_LOSS_OPTS(ignore_, smoothing_, reduction_)                     \
    &(const tg_loss_params) {                                             \
        sizeof(tg_loss_params), ignore_, smoothing_, TG_LOSS_##reduction_ \
    }

/* The caller's options with ignore_index resolved. */
tg_loss_params tg_loss_params_of(const tg_cross_entropy_opts *opts);

/* Checks the options and the target (the last input) of x [.., n] over so many classes; declares result and buffers. */
tg_status tg_loss_infer(tg_call *c, int64_t classes);

/* Where the loss of every row goes: the result itself, or a temporary that tg_loss_reduce sums. */
tg_status tg_loss_buffer(tg_call *c, tg_tensor **loss);
/* Loss and log-sum-exp of rows [first, first + logits.shape[0]) of the call. */
tg_status tg_loss_forward(tg_call *c, tg_array logits, const tg_tensor *target, const tg_tensor *loss, int64_t first);
tg_status tg_loss_reduce(tg_call *c, const tg_tensor *target, const tg_tensor *loss);

/* The gradient of every row's loss: one number (no dims) for all, or [rows]. */
tg_status tg_loss_row_grads(tg_call *c, tg_tensor **g);
/* glogits (+)= the gradient of rows [first, ..); it may be the logits' own memory. */
tg_status tg_loss_backward(tg_call *c, tg_array glogits, tg_array logits, const tg_tensor *target, const tg_tensor *g,
                           int64_t first, bool add);

/* An array of a contiguous block of memory; e holds its layout. */
tg_array tg_rows_array(void *data, tg_dtype dtype, int64_t rows, int64_t n, tg_extent *e);

#endif
