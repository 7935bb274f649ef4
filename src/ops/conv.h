/* What convolutions (conv.c) and transposed convolutions (conv_transpose.c) share. The gradient of either with respect
 * to its input is computed as the other. */
#ifndef TG_CONV_H
#define TG_CONV_H

#include <tapegrad/ops.h>

#include "ops/common/windows.h"

enum { TG_CONV_X, TG_CONV_W, TG_CONV_Y }; /* the tensors of y = conv(x, w) */

typedef struct tg_conv_params {
    tg_windows w;
    int64_t groups, input[2]; /* input: height and width of x */
    int64_t more[2];          /* transposed: output_padding, elements at the end of h and w of x */
    int result;               /* which tensor the op computes; the other two are its inputs, in their order */
} tg_conv_params;

/* Returns the params of an op of 1 or 2 dims from the caller's options. result is TG_CONV_Y for a convolution, which
 * uses no output_padding, or TG_CONV_X for a transposed one. */
tg_conv_params tg_conv_params_of(int dims, const tg_conv_opts *given, int result);

/* Records the transposed convolution of x with w, without bias. This is the gradient with respect to its input of a
 * convolution with w whose result has the gradient x. p->result is TG_CONV_X. */
tg_tensor *tg_conv_transposed(tg_tape *t, tg_tensor *x, tg_tensor *w, const tg_conv_params *p);
/* The infer function of this op. Its inputs are w and y of the convolution; y is the argument x of
 * tg_conv_transposed. Checks all arguments, and sets the sizes of the windows and of the result. */
tg_status tg_conv_transposed_infer(tg_call *c);
/* The infer function of the ops that compute x or w of a convolution. The caller has checked the shapes. */
tg_status tg_conv_other_infer(tg_call *c);

#endif
