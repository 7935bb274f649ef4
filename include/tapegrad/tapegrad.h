/* Tapegrad: an autograd tensor runtime with an explicit tape. A program includes this header.
 *
 * It includes the headers for status codes, dtypes, contexts, random streams, tensors, tapes, backward, recomputation,
 * asynchronous works and the ops (ops.h).
 *
 * Errors are sticky. A failed call records its error in the context and returns an inert tensor. From then on every
 * call on that context does nothing, until tg_ctx_clear; only free, drop, reset, status, message and clear still work.
 * An inert object is never NULL; a call on it does nothing, and it may be freed. A function that makes another kind of
 * object returns NULL instead if its comment says so; the calls on that object, and its free function, accept NULL. So
 * a program may check once, at the end, with tg_ctx_status, which reports the first error. A call without a tape uses
 * the context of its first tensor. A call that has neither a tape nor a tensor, such as tg_full(NULL, ...), fails too,
 * but has no context that could record its error. It returns an inert tensor, and the next call that gets this tensor
 * and has a context records the error there.
 *
 * Ownership:
 * - what a *_new function returns is released by the *_free function of its type, such as tg_comm_free or
 *   tg_module_free, and what a *_open function returns by its *_close; a parameter (tg_param_new) is a tensor, and is
 *   released by tg_drop;
 * - what tg_keep returns is released by tg_drop;
 * - nothing else needs to be released. A tensor created on a context lives until tg_ctx_free, or until tg_drop if the
 *   program calls it earlier. A tensor that an op returns lives until its tape is reset.
 *
 * Threads: only one thread at a time may use a context and the objects made on it. Different contexts are independent.
 */
#ifndef TAPEGRAD_H
#define TAPEGRAD_H

#include <tapegrad/backward.h>
#include <tapegrad/context.h>
#include <tapegrad/fields.h>
#include <tapegrad/handles.h>
#include <tapegrad/inputs.h>
#include <tapegrad/ops.h>
#include <tapegrad/print.h>
#include <tapegrad/recompute.h>
#include <tapegrad/source.h>
#include <tapegrad/tape.h>
#include <tapegrad/tensor.h>
#include <tapegrad/types.h>
#include <tapegrad/work.h>

#endif
