/* Tapes. A tape records ops so that backward can run through them, and owns the results of the ops until it is reset.
 * This header also has scopes, named scratch buffers, and the packing of saved tensors. tapegrad.h includes it. */
#ifndef TAPEGRAD_TAPE_H
#define TAPEGRAD_TAPE_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tape ---- */

/* Creates a tape. Never returns NULL. If creation fails, ops on the tape fail. */
TG_API tg_tape *tg_tape_new(tg_ctx *ctx);
/* Frees a tape and ends its handles. Later calls with the tape fail, until another tg_tape_new reuses its memory. While
 * a callback of the tape runs, tg_tape_free fails with TG_ERR_STATE and frees nothing. */
TG_API void tg_tape_free(tg_tape *t);
/* Ends every handle and node of the tape, and keeps the memory for the next step. After one reset the library still
 * recognizes an ended handle. After two resets it may read an ended handle as another tensor (tensor.h). While a
 * callback of the tape runs, tg_tape_reset fails with TG_ERR_STATE and ends nothing. */
TG_API void tg_tape_reset(tg_tape *t);
/* Ends every result and leaf of the tape that is not held (tg_hold) and that no node needs, and every node whose
 * results are not held and that no other node needs: what tg_release does for one tensor. For programs that hold every
 * handle that they keep, as bindings do; it also ends what layers made for themselves. It takes time in proportion to
 * the number of the tape's handles, so call it when that has doubled, for example. While a callback of the tape runs,
 * does nothing. t may be NULL. */
TG_API void tg_tape_collect(tg_tape *t);
/* Returns the context of the tape; NULL if t is NULL. */
TG_API tg_ctx *tg_tape_ctx(tg_tape *t);
/* Returns a number for the tape and its current step. Each reset of the tape changes the number, and no other tape of
 * the context ever has the same one. Returns 0 if t is NULL or freed. */
TG_API uint64_t tg_tape_epoch(const tg_tape *t);
/* Sets the number of the micro-batch that the tape records. A reset of the tape sets it to 0, as it is at first. Ops
 * that draw by key (tg_key_open) draw other numbers for each micro-batch of a step. A program whose step has several
 * micro-batches calls this function before it records each of them. */
TG_API tg_status tg_tape_key(tg_tape *t, uint64_t micro);
/* Set a mode of the tape and return its previous value. Training mode is true by default; false means evaluation, in
 * which tg_dropout and tg_batch_norm behave differently. Grad mode is true by default; false means no-grad mode, in
 * which the tape still owns results but keeps nothing for backward. */
TG_API bool tg_tape_set_training(tg_tape *t, bool on);
TG_API bool tg_tape_set_grad_mode(tg_tape *t, bool on);
TG_API bool tg_is_training(const tg_tape *t); /* Returns the training mode; false if t is NULL. */
TG_API bool tg_is_grad_on(const tg_tape *t);  /* Returns the grad mode; false if t is NULL. */

/* Returns a leaf of this tape that shares the bytes of x. x may belong to this tape, another tape or the context. The
 * leaf requires a gradient if x does; tg_set_requires_grad changes that. The gradient of the leaf belongs to this tape:
 * read it with tg_grad_of before the next reset. */
TG_API tg_tensor *tg_tape_input(tg_tape *t, tg_tensor *x);

/* Open and close a scope. Closing a scope releases the bytes of all tensors that were made in it, except the n outputs
 * and tensors that a node saved for backward. Scopes nest. Each open needs one close, even if either fails. A close
 * without an open fails with TG_ERR_STATE. name is copied and may be NULL. Call sites and reports show the name as part
 * of a path. */
TG_API tg_status tg_scope_open(tg_tape *t, const char *name);
TG_API tg_status tg_scope_close(tg_tape *t, tg_tensor *const *outputs, int n);
/* Leases a named scratch buffer: returns a tensor on it, with undefined contents. The tape owns the tensor. The lease
 * is open until the tensor is discarded or the tape is reset. TG_DTYPE_DEFAULT means the context's default dtype.
 *
 * The context has one buffer for each name and dtype. It keeps the buffer when a lease ends, and reuses the buffer for
 * the next lease of that name and dtype. A buffer grows but never shrinks. A new lease waits for works that still use
 * the buffer.
 *
 * If a lease of that name and dtype is still open on the same tape, the call fails with TG_ERR_STATE; the message names
 * both callers. If the open lease is on another tape, as on the outer tape of a recomputation, the call leases a second
 * buffer. tg_memory_report lists all buffers.
 */
TG_API tg_tensor *tg_lease(tg_tape *t, const char *name, tg_dtype dtype, tg_shape shape);
/* Sets whether later nodes are timed; off by default. tg_tape_dump (explain.h) shows the times. */
TG_API void tg_tape_set_timing(tg_tape *t, bool on);

/* ---- Functions of tensors ---- */

/* A function that records ops on t. It reads n_in tensors from in[], and writes n_out results to out[]. The caller owns
 * both arrays, and passes state. recompute.h and gradcheck.h take such functions. */
typedef tg_status (*tg_fn)(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);

/* ---- Packing of saved tensors ---- */

/* A packer: callbacks that store saved tensors in another form until backward needs them, for example on the host or in
 * fewer bits. x of the callbacks is a one-dimensional tensor of all elements of a storage, which is the memory that a
 * tensor and its views share. The tensors on that storage may have any shapes. */
typedef struct tg_pack_ops {
    size_t size;
    /* Stores what unpack will need, and sets *packed to it. *packed is NULL at the call. If pack leaves it NULL, x is
     * not packed. Otherwise the library releases the bytes of x afterwards. pack may record ops on t, which is in
     * no-grad mode, and may keep a result with tg_keep. */
    tg_status (*pack)(void *user, tg_tape *t, tg_tensor *x, void **packed);
    /* Fills x again from packed. x may still be in flight (work.h) when unpack returns. The library calls unpack when
     * the bytes are read again, mostly by backward. */
    tg_status (*unpack)(void *user, void *packed, tg_tensor *x);
    /* Frees packed. The library calls drop when backward has passed the last node that saved x, when x is kept
     * (tg_keep), or when the tape is reset. May be NULL. */
    void (*drop)(void *user, void *packed);
    void *user; /* must stay valid until the tape is reset */
} tg_pack_ops;

#define TG_PACK_OPS_DEFAULTS .size = sizeof(tg_pack_ops)
#define TG_PACK_OPS(...) (&(tg_pack_ops){TG_PACK_OPS_DEFAULTS, __VA_ARGS__})

/* Sets the tape's packer; p is copied. From now on tg_scope_close packs each tensor that was made in the scope and that
 * a node saved, except outputs of the scope. p NULL, the default, means that saved tensors stay as they are. The tapes
 * of recomputations are not affected. Within a captured step, packing fails with TG_ERR_UNSUPPORTED. If a pack callback
 * fails, the call that packs fails with TG_ERR_CALLBACK. */
TG_API tg_status tg_tape_pack(tg_tape *t, const tg_pack_ops *p);
/* Packs x now, without a scope. Call it after the last use of x in forward. Does nothing if no node has saved x, or
 * if the tape of x has no packer. */
TG_API tg_status tg_pack(tg_tensor *x);

#ifdef __cplusplus
}
#endif

#endif
