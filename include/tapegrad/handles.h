/* How long handles and bytes last, for bindings of languages with a garbage collector and for programs that keep
 * pointers. tapegrad.h includes this header. docs/embedding.md shows how a binding uses these functions.
 *
 * A program that resets its tapes does not need this header. It calls tg_keep for a result that must outlive the reset,
 * and tg_drop for a tensor of the context that it does not need any more (tensor.h). The calls of this header are for
 * these cases:
 * - a tape is not reset, and its results are given back one by one: tg_release;
 * - a handle may be used after its tensor has ended, as an object of another language does: tg_hold and tg_unhold, and
 *   tg_drop_later where the end is noticed on another thread;
 * - the program keeps a pointer to the bytes, or writes through one: tg_pin, tg_unpin and tg_touch;
 * - the bytes move into other memory, or may not be written: tg_rehome and tg_set_read_only. */
#ifndef TAPEGRAD_HANDLES_H
#define TAPEGRAD_HANDLES_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles ---- */

/* Adds a hold to a handle. While a handle is held, its memory is used for no other tensor. So when the tensor has
 * ended, every call that is given the handle recognizes it as ended, however long ago that was. A hold keeps no bytes
 * of the tensor, and does not keep the tensor from ending. Holds are counted. Returns false, and adds none, if x is
 * NULL, inert, or an ended handle that is not held. */
TG_API bool tg_hold(tg_tensor *x);
/* Removes a hold. If the handle has ended, the program may not use it after its last hold is removed. Does nothing for
 * NULL, inert handles and handles that are not held. */
TG_API void tg_unhold(tg_tensor *x);
/* Says that the program does not use x any more. x is a result that a call returned to the program, or a leaf that the
 * program made on a tape. The handle and its bytes end as soon as no node needs them: at once if no node was recorded,
 * otherwise when all results that depend on x have been released too. The nodes of these results then end as well. The
 * memory of what has ended is used again, so a program that releases what it made need not reset its tape. Until a
 * released handle ends, it may still be read. Gradients are the same with and without releases.
 *
 * Never fails. Ends a tensor of the context as tg_drop does, but while nodes use it, its handle may be read too. Does
 * nothing for NULL, inert and ended handles. If it is called in a callback of the tape or while a backward runs, the
 * release happens at a later call on the context, as for tg_drop_later, after that has returned. Do not release a
 * handle that a callback was given or has returned. Tensors that a layer or a recomputed function made on the tape for
 * itself stay, with the nodes that made them, until tg_tape_collect or a reset of the tape. */
TG_API void tg_release(tg_tensor *x);
/* Asks for a release (tg_release) of the tensor of r and for the removal of one hold. Both happen at a later call on
 * ctx: usually at the next one that records an op, creates a tensor, resets a tape or frees the context. May be called
 * from any thread, such as that of a finalizer; it waits for nothing and cannot fail. The caller must hold the tensor
 * (tg_hold), and must have taken r while the tensor was alive (tg_ref_of). Does nothing if ctx is NULL or r is empty.
 * ctx must not have been freed. */
TG_API void tg_drop_later(tg_ctx *ctx, tg_ref r);
/* Returns the tape that x belongs to; NULL if x belongs to the context, is NULL, inert or ended. */
TG_API tg_tape *tg_tape_of(const tg_tensor *x);

/* ---- Bytes ---- */

/* Pins the bytes of x: until tg_unpin they stay at their address, even if the handle ends, and are not discarded,
 * converted to another dtype or used for another tensor. So the pointer of tg_host_data stays valid. Ops may still
 * write the bytes. Pins are counted. Returns the storage, which is the argument of tg_unpin, or NULL on error. Fails
 * with TG_ERR_DISCARDED if the bytes are lost, and with TG_ERR_UNSUPPORTED in a captured step. tg_ctx_free ends all
 * pins. */
TG_API tg_storage *tg_pin(tg_tensor *x);
/* Asks for the removal of one pin of s, which tg_pin has returned. It happens at a later call on the context, as for
 * tg_drop_later. May be called from any thread, but not after tg_ctx_free. s may be NULL. */
TG_API void tg_unpin(tg_storage *s);
/* Moves the bytes of x into view: copies the values there, and frees the memory that x had. The handle x stays valid
 * and keeps its shape, in row-major order. From then on it shares its bytes with view. Both tensors must belong to the
 * context (TG_ERR_STATE). view must have as many elements as x (TG_ERR_SHAPE) and its dtype (TG_ERR_DTYPE), be
 * contiguous, and share no bytes with x (TG_ERR_STATE). The call fails with TG_ERR_STATE if something relies on the
 * bytes of x: a node, an optimizer, a captured step, a work, a pin or another handle. In a captured step it fails with
 * TG_ERR_UNSUPPORTED. */
TG_API tg_status tg_rehome(tg_tensor *x, tg_tensor *view);
/* Says that the program has written bytes of x through a pointer. A node that saved them reports the write in backward
 * (TG_ERR_VERSION), as it does after an in-place op. On several ranks the values of x then count as the caller's, as
 * after tg_write. Fails with TG_ERR_UNSUPPORTED in a captured step. */
TG_API tg_status tg_touch(tg_tensor *x);
/* Sets whether the bytes that x shares with its views are read-only, as the memory of a mapped file may be. The default
 * is false, except for memory that was imported as read-only (dlpack.h) and for parameters that a tg_flat divides
 * (flat.h). Calls and ops that would write read-only bytes fail with TG_ERR_STATE. */
TG_API tg_status tg_set_read_only(tg_tensor *x, bool on);

#ifdef __cplusplus
}
#endif

#endif
