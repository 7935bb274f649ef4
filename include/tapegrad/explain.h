/* Seeing what happened: words about a tape, for people. */
#ifndef TAPEGRAD_EXPLAIN_H
#define TAPEGRAD_EXPLAIN_H

#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why x has the gradient that it has when root is differentiated: that it is there, how large and through which ops it
 * came; that it is zero, and which op, nearest to root, made it so, with the range of that op's input; that it is NaN
 * or infinite, and where it became so; or that there is none, and where the way from x to root ends. root may have any
 * shape: it is seeded with ones. Runs a backward of its own, which accumulates nowhere and consumes nothing; what the
 * nodes saved must be there. Writes at most n bytes of text, 0 at the end, and returns how many the whole has; 0 after
 * an error, which is recorded: a tensor that is dead, of another context or tape. */
TG_API size_t tg_explain_grad(tg_tape *t, tg_tensor *root, tg_tensor *x, char *buf, size_t n);

#ifdef __cplusplus
}
#endif

#endif
