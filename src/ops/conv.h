/* What convolutions (conv.c) and transposed ones (conv_transpose.c) share: the gradient for its input of one is the
 * other. */
#ifndef TG_CONV_H
#define TG_CONV_H

#include "ops/common/windows.h"

enum { TG_CONV_X, TG_CONV_W, TG_CONV_Y }; /* the tensors of y = conv(x, w) */

typedef struct tg_conv_params {
    tg_windows w;
    int64_t groups, input[2]; /* input: height and width of x */
    int64_t more[2];          /* transposed: elements at the end of h and w of x that no window need reach */
    int result;               /* which tensor the op computes; the other two are its inputs, in their order */
} tg_conv_params;

/* Records the transposed convolution of x with w, without bias: the gradient for its input of a convolution with w,
 * where x is the gradient of the result. p->result is TG_CONV_X. */
tg_tensor *tg_conv_transposed(tg_tape *t, tg_tensor *x, tg_tensor *w, const tg_conv_params *p);
/* The infer function of this op, whose inputs are w and y, that is x of the transposed convolution. Checks all
 * arguments, and sets the sizes of the windows and of x. */
tg_status tg_conv_transposed_infer(tg_call *c);
/* The infer function of the ops that compute x or w, whose shapes are checked. */
tg_status tg_conv_other_infer(tg_call *c);

#endif
