/* Tapegrad: an autograd tensor runtime with an explicit tape.
 *
 * Umbrella header: status, dtypes, context, tensors, tape, backward, recomputation, random streams.
 * The ops are in ops.h, which this header includes at its end.
 *
 * Errors are sticky. A failed call records the first error in its context (given no tape, in that of the first tensor;
 * given neither, as by tg_full(NULL, ...), nowhere: whoever takes what it returns refuses it) and returns an inert
 * tensor; every later call on that context does nothing until tg_ctx_clear, but for free, drop, reset, status, message
 * and clear. Check once, at the end: tg_ctx_status.
 *
 * Ownership in three words: what *_new returns is released by *_free; what tg_keep returns is released by tg_drop;
 * all else is borrowed. A tensor made on a context lives until tg_drop or tg_ctx_free; a tensor made by an op lives
 * until its tape is reset.
 *
 * Threads: a context and everything made on it is used by one thread at a time. Different contexts are independent.
 */
#ifndef TAPEGRAD_H
#define TAPEGRAD_H

#include <tapegrad/backward.h>
#include <tapegrad/context.h>
#include <tapegrad/ops.h>
#include <tapegrad/recompute.h>
#include <tapegrad/tape.h>
#include <tapegrad/tensor.h>
#include <tapegrad/types.h>
#include <tapegrad/work.h>

#endif
