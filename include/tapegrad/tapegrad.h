/* Tapegrad: an autograd tensor runtime with an explicit tape. A program includes this header.
 *
 * It includes the headers for contexts, tensors, tapes, the ops (ops.h), backward, recomputation, asynchronous
 * operations (work.h) and structs of options (fields.h). Include every other header by its own name.
 *
 * Errors are sticky. A call that fails records its error in the context. It returns an error status, or an inert object
 * where it would return an object, unless its comment says otherwise. An inert object is never NULL; calls on it do
 * nothing and return an error status or another inert object, and it may be freed. If the error has been cleared, a
 * call with an inert tensor records TG_ERR_HANDLE. Some functions return NULL where others return an inert object;
 * their comments say so. The functions that take an object of such a type accept NULL, its free function included.
 *
 * After an error, every call on the context does nothing and returns what a failed call returns, until tg_ctx_clear.
 * Only these still work: tg_ctx_status, tg_ctx_message and tg_ctx_clear; the functions that free, drop or release;
 * tg_tape_reset; those that return a property, such as tg_ndim; those that set a mode of a tape, such as
 * tg_tape_set_grad_mode; and those that close what was opened (tg_scope_close, tg_rng_join, tg_key_close). So a program
 * may check once, at the end, with tg_ctx_status, which reports the first error.
 *
 * A call uses the context that it is given. If it takes none, it uses the context of its tape or, if it takes no tape,
 * that of its first object or tensor that is not NULL. An op whose tape is NULL fails, and records the error in the
 * context of its first tensor. If it has no tensor, as in tg_full(NULL, ...), no context can record the error. The op
 * then returns an inert tensor, and the next call that gets this tensor and has a context records an error there.
 *
 * Ownership:
 * - What a *_new function returns is released by the *_free function of its type, such as tg_comm_free or
 *   tg_module_free, and what a *_open function returns is released by its *_close, unless its comment says otherwise. A
 *   parameter (tg_param_new) is a tensor, and is released by tg_drop.
 * - What tg_keep returns is released by tg_drop.
 * - Nothing else needs to be released, unless its comment says so. A tensor created on a context lives until
 *   tg_ctx_free, or until tg_drop if the program calls it earlier. A tensor that an op returns lives until its tape is
 *   reset or freed, or until tg_release if the program calls it earlier.
 *
 * Threads: only one thread at a time may use a context and the objects made on it. Different contexts are independent.
 * The few functions that may be called from any thread, such as tg_drop_later, say so.
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
