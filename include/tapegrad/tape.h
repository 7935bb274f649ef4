/* Tapes. A tape records ops so that backward can run through them, and owns the results of the ops until it is reset.
 * This header also has scopes, named scratch buffers, and the packing of saved tensors. tapegrad.h includes this
 * header. */
#ifndef TAPEGRAD_TAPE_H
#define TAPEGRAD_TAPE_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tape ---- */

/* Creates a tape. Never returns NULL: if ctx is NULL or has an error, or on failure, the tape is inert (tapegrad.h),
 * and ops on it fail. */
TG_API tg_tape *tg_tape_new(tg_ctx *ctx);
/* Frees a tape and ends its handles. Later calls with the tape fail with TG_ERR_HANDLE. Once another tg_tape_new has
 * reused the memory of the tape, such calls act on the new tape. Does nothing if t is NULL, inert or freed. While a
 * callback or a backward of the tape runs, frees nothing and records TG_ERR_STATE in the context. */
TG_API void tg_tape_free(tg_tape *t);
/* Ends every handle, node and open scope of the tape, and keeps the memory for the next step. After one reset the
 * library still recognizes an ended handle. After two resets it may read an ended handle as another tensor (tensor.h).
 * Settings of the tape, such as its modes and its packer, stay. Does nothing if t is NULL, inert or freed.
 *
 * Errors are recorded in the context. While a callback or a backward of the tape runs, the call ends nothing and fails
 * with TG_ERR_STATE. On device "cuda" a reset reports an error that kernels have found in data (TG_ERR_DATA). */
TG_API void tg_tape_reset(tg_tape *t);
/* Releases, as tg_release does, each result and leaf of the tape that the program does not hold (tg_hold). A released
 * tensor ends once no node needs it, and a node once all its results have ended. The call also releases tensors for
 * which tg_release cannot be called: those that layers and recomputed functions made on the tape for themselves.
 *
 * The call is for programs that hold (tg_hold) every handle that they will still use, as bindings do. It takes time in
 * proportion to the number of the tape's handles, so call it, for example, whenever that number has doubled since the
 * last call. Does nothing if t is NULL, inert or freed, or while a callback or a backward of the tape runs. */
TG_API void tg_tape_collect(tg_tape *t);
/* Returns the context of the tape; NULL if t is NULL. */
TG_API tg_ctx *tg_tape_ctx(tg_tape *t);
/* Returns a number for the tape and its current step. Each reset of the tape changes the number. No other step and no
 * other tape of the context ever has the same number. Returns 0 if t is NULL, inert or freed. */
TG_API uint64_t tg_tape_epoch(const tg_tape *t);
/* Sets the number of the micro-batch that the tape records. A reset of the tape sets it to 0, as it is at first. Ops
 * that draw by key (tg_key_open) draw different random numbers in each micro-batch of a step. A program whose step has
 * several micro-batches calls this function before it records each of them. */
TG_API tg_status tg_tape_key(tg_tape *t, uint64_t micro);
/* Set a mode of the tape and return its previous value. If t is NULL, they return false. Training mode is true by
 * default. False means evaluation mode, in which dropout drops nothing and tg_batch_norm uses running statistics. Grad
 * mode is true by default. False means no-grad mode, in which the tape still owns results but keeps nothing for
 * backward. While the forward of an op runs, the tape is in no-grad mode, and tg_tape_set_grad_mode does nothing. */
TG_API bool tg_tape_set_training(tg_tape *t, bool on);
TG_API bool tg_tape_set_grad_mode(tg_tape *t, bool on);
TG_API bool tg_is_training(const tg_tape *t); /* Returns the training mode; false if t is NULL. */
TG_API bool tg_is_grad_on(const tg_tape *t);  /* Returns the grad mode; false if t is NULL. */

/* Returns a leaf of this tape that shares the bytes of x. x may belong to this tape, another tape or the context. The
 * leaf requires a gradient if x does; tg_set_requires_grad changes that. The gradient of the leaf belongs to this tape:
 * read it with tg_grad_of before the next reset. On error returns an inert tensor. */
TG_API tg_tensor *tg_tape_input(tg_tape *t, tg_tensor *x);

/* Open and close a scope. Closing a scope releases, as tg_discard does, the bytes of the tape's tensors that were made
 * in it, except:
 * - those of the n outputs, of which none may be NULL; the array may be NULL if n is 0;
 * - those that a node saved for backward;
 * - those of tensors that were kept (tg_keep) or are pinned (tg_pin).
 *
 * Scopes nest. Each open needs one close, even if the open failed. A close that fails has closed the scope
 * nevertheless. A close without an open fails with TG_ERR_STATE. name is copied and may be NULL. Error messages and
 * reports name the scopes around a call, such as "layer.attention" for a scope "attention" within a scope "layer". */
TG_API tg_status tg_scope_open(tg_tape *t, const char *name);
TG_API tg_status tg_scope_close(tg_tape *t, tg_tensor *const *outputs, int n);
/* Leases a named scratch buffer: returns a tensor on it, with undefined contents, or an inert tensor on error. name
 * must not be NULL or empty (TG_ERR_ARGUMENT). TG_DTYPE_DEFAULT means the context's default dtype. The tape owns the
 * tensor. The lease is open until the bytes of the tensor are released, for example by tg_discard, by tg_release, by
 * the close of the scope in which the lease was made, or by a reset of the tape.
 *
 * The context usually has one buffer for each name and dtype, which it keeps when a lease ends and reuses for the next
 * lease of that name and dtype. A buffer grows but never shrinks. If a work (work.h) still reads the buffer, later
 * operations of the device wait for it or, where that is not possible, tg_lease waits.
 *
 * If a lease of that name and dtype is still open on the same tape, the call fails with TG_ERR_STATE; the message
 * names both callers. If the open lease is on another tape, as on the outer tape of a recomputation, or if a tensor of
 * tg_keep still holds the bytes, the call leases another buffer. tg_memory_report lists all buffers. */
TG_API tg_tensor *tg_lease(tg_tape *t, const char *name, tg_dtype dtype, tg_shape shape);
/* Sets whether later nodes are timed; off by default. tg_tape_dump (explain.h) shows the times. */
TG_API void tg_tape_set_timing(tg_tape *t, bool on);

/* ---- Functions of tensors ---- */

/* A function of the program that records ops on t. It reads n_in tensors from in[], writes n_out results to out[], and
 * returns TG_OK, or another status on failure. The library owns both arrays, which are valid during the call. state is
 * the pointer that was passed with the function. recompute.h and gradcheck.h take such functions. */
typedef tg_status (*tg_fn)(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);

/* ---- Packing of saved tensors ---- */

/* A packer: callbacks that store saved tensors in another form until backward needs them, for example on the host or in
 * fewer bits. The x of a callback is a one-dimensional tensor of all elements of a storage, and is valid only during
 * the callback. A storage is the memory that a tensor and its views, of any shapes, share. */
typedef struct tg_pack_ops {
    size_t size;
    /* Stores what unpack will need, and sets *packed to it. *packed is NULL at the call. If pack leaves it NULL, or
     * keeps x itself (tg_keep), x is not packed. Otherwise the library releases the bytes of x afterwards. pack may
     * record ops on t, which is in no-grad mode, and may keep their results with tg_keep. Required. */
    tg_status (*pack)(void *user, tg_tape *t, tg_tensor *x, void **packed);
    /* Fills x again from packed. x may still be in flight (work.h) when unpack returns. The library calls unpack when
     * the bytes are read again, mostly by backward. It may do so several times, because a backward with retain releases
     * the bytes again. If unpack returns an error and the context has none, the call that reads the bytes fails with
     * TG_ERR_CALLBACK. Required. */
    tg_status (*unpack)(void *user, void *packed, tg_tensor *x);
    /* Frees packed. The library calls drop once for each *packed that is not NULL, when unpack will not be called for
     * it any more: for example when backward has passed the last node that saved the storage, when the storage is
     * freed, or when the program keeps one of its tensors (tg_keep), and at the latest when the tape is reset or freed.
     * A reset or free calls unpack first if another tape still uses the storage. May be NULL. */
    void (*drop)(void *user, void *packed);
    void *user; /* must stay valid while the packer is set, and after that until the tape is reset or freed */
} tg_pack_ops;

#define TG_PACK_OPS_DEFAULTS .size = sizeof(tg_pack_ops)
#define TG_PACK_OPS(...) (&(tg_pack_ops){TG_PACK_OPS_DEFAULTS, __VA_ARGS__})

/* Sets the tape's packer; p is copied. From now on tg_scope_close packs each tensor that was made in the scope and that
 * a node saved, except outputs of the scope, tensors that were kept (tg_keep) and leases (tg_lease). p NULL means no
 * packer, which is the default: saved tensors stay as they are. What an earlier packer has packed is still unpacked by
 * that packer. A recomputation runs on a tape of its own, which has no packer. On device "meta" nothing is packed.
 * Within a captured step, packing fails with TG_ERR_UNSUPPORTED. If pack returns an error and the context has none, the
 * call that packs fails with TG_ERR_CALLBACK. */
TG_API tg_status tg_tape_pack(tg_tape *t, const tg_pack_ops *p);
/* Packs x now, without a scope. Call it after the last use of x in forward. Does nothing if no node has saved x, if x
 * was kept (tg_keep), is a lease (tg_lease) or belongs to the context, or if the tape of x has no packer. */
TG_API tg_status tg_pack(tg_tensor *x);

#ifdef __cplusplus
}
#endif

#endif
