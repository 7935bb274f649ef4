/* A tape: it records ops so that backward can run through them, and owns their results until it is reset. Also scopes,
 * named scratch buffers, and the packing of saved tensors. tapegrad.h includes this header. */
#ifndef TAPEGRAD_TAPE_H
#define TAPEGRAD_TAPE_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tape ---- */

/* Creates a tape. Never returns NULL: if creation fails, every op refuses the tape. */
TG_API tg_tape *tg_tape_new(tg_ctx *ctx);
/* Frees a tape and ends its handles. The tape is refused afterwards, until a later tg_tape_new reuses its memory. Fails
 * with TG_ERR_STATE, and frees nothing, while a callback of the tape runs. */
TG_API void tg_tape_free(tg_tape *t);
/* Ends every handle and node of the tape, and keeps the memory for the next step. A stale handle is recognized after
 * one reset; after two resets it may be read as another tensor (tensor.h). Fails like tg_tape_free. */
TG_API void tg_tape_reset(tg_tape *t);
/* Returns the context of the tape; NULL for NULL. */
TG_API tg_ctx *tg_tape_ctx(tg_tape *t);
/* Set a mode of the tape and return its previous value. Training: true (default) or false for evaluation; dropout
 * depends on it. Grad mode: true (default) or false; in no-grad mode the tape still owns results, but keeps nothing for
 * backward. */
TG_API bool tg_tape_set_training(tg_tape *t, bool on);
TG_API bool tg_tape_set_grad_mode(tg_tape *t, bool on);
TG_API bool tg_is_training(const tg_tape *t); /* Return the two modes; false for NULL. */
TG_API bool tg_is_grad_on(const tg_tape *t);

/* Returns a leaf of this tape that shares the bytes of x. x may belong to this tape, another tape or the context. The
 * leaf requires a gradient if x does, or after tg_set_requires_grad. Its gradient belongs to this tape: read it with
 * tg_grad_of before the next reset. */
TG_API tg_tensor *tg_tape_input(tg_tape *t, tg_tensor *x);

/* Open and close a scope. Closing releases the bytes of all tensors made since the scope was opened, except the n
 * outputs and those that a node saved for backward. Scopes nest. Each open needs one close, even if either fails; a
 * close without an open fails with TG_ERR_STATE. name is copied and may be NULL; call sites and reports show it as part
 * of a path. */
TG_API tg_status tg_scope_open(tg_tape *t, const char *name);
TG_API tg_status tg_scope_close(tg_tape *t, tg_tensor *const *outputs, int n);
/* Leases a named scratch buffer: returns a tensor of the tape with undefined contents. TG_DTYPE_DEFAULT: the default
 * dtype.
 *
 * The context keeps the buffer under (name, dtype) after its last reference has ended, and reuses it for the next lease
 * of that name. A buffer grows but never shrinks. A new lease waits for works that still use the buffer. If a lease of
 * the name is still open on the same tape (alive and not discarded), the call fails with TG_ERR_STATE, and the message
 * names both. If another tape holds the buffer, as the outer tape does during a recomputation, the lease gets a second
 * buffer. tg_memory_report lists all of them.
 */
TG_API tg_tensor *tg_lease(tg_tape *t, const char *name, tg_dtype dtype, tg_shape shape);
/* Sets whether the nodes that run from now on are timed; off by default. tg_tape_dump (explain.h) shows the times. */
TG_API void tg_tape_set_timing(tg_tape *t, bool on);

/* ---- Functions of tensors ---- */

/* A function that records ops on t. It reads n_in tensors from in[] and writes n_out results to out[]; the caller owns
 * both arrays. state is the caller's. gradcheck.h uses the same type. */
typedef tg_status (*tg_fn)(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);

/* ---- Saved tensors ---- */

/* Callbacks that store saved tensors in another form until backward needs them, for example on the host or in fewer
 * bits. Each callback gets x as a one-dimensional tensor of all elements of a storage, whatever the shapes of the
 * tensors on it. */
typedef struct tg_pack_ops {
    size_t size;
    /* Stores what unpack will need, and sets *packed to it; then the bytes of x are released. If *packed stays NULL, as
     * it is at the call, x is left as it is. May record no-grad ops on t, and keep a result with tg_keep. */
    tg_status (*pack)(void *user, tg_tape *t, tg_tensor *x, void **packed);
    /* Fills x again; x may still be in flight when this returns. Called when the bytes are read again, mostly by
     * backward. */
    tg_status (*unpack)(void *user, void *packed, tg_tensor *x);
    /* Ends packed. Called when backward has passed the last node that saved x, when x is kept (tg_keep), or when the
     * tape is reset. May be NULL. */
    void (*drop)(void *user, void *packed);
    void *user; /* must stay valid until the tape is reset */
} tg_pack_ops;

#define TG_PACK_OPS(...) (&(tg_pack_ops){.size = sizeof(tg_pack_ops), __VA_ARGS__})

/* Sets the tape's packer; p is copied. From now on tg_scope_close packs each tensor that was made in the scope, that a
 * node saved, and that is not an output. p NULL: saved tensors stay as they are (default). The tapes of recomputations
 * are not affected. Within a captured step, packing fails with TG_ERR_STATE. A pack callback that fails makes the call
 * that packs fail with TG_ERR_CALLBACK. */
TG_API tg_status tg_tape_pack(tg_tape *t, const tg_pack_ops *p);
/* Packs x now, where no scope does. Call it after the last use of x in forward. Does nothing if no node has saved x, or
 * if the tape of x has no packer. */
TG_API tg_status tg_pack(tg_tensor *x);

#ifdef __cplusplus
}
#endif

#endif
