/* A tape: what is recorded, scopes, and named scratch memory. */
#ifndef TAPEGRAD_TAPE_H
#define TAPEGRAD_TAPE_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tape ---- */

TG_API tg_tape *tg_tape_new(tg_ctx *ctx); /* never NULL: one that could not be made refuses every op */
TG_API void tg_tape_free(tg_tape *t);     /* a freed tape is refused, until a later tg_tape_new uses its memory */
/* Ends every handle and node of the tape and keeps the memory for the next step. */
TG_API void tg_tape_reset(tg_tape *t);
TG_API tg_ctx *tg_tape_ctx(tg_tape *t);
/* Both return what was set before. Training (default) or evaluation: dropout reads it. Grad (default) or no-grad:
 * results are still owned by the tape, but nothing is kept for backward. */
TG_API bool tg_tape_set_training(tg_tape *t, bool on);
TG_API bool tg_tape_set_grad_mode(tg_tape *t, bool on);
TG_API bool tg_is_training(const tg_tape *t);
TG_API bool tg_is_grad_on(const tg_tape *t);

/* A leaf of this tape on x's bytes, where x is a result of this or another tape, or of the context. It needs a gradient
 * where x does, or by tg_set_requires_grad; the gradient is this tape's: read it by tg_grad_of until the next reset. */
TG_API tg_tensor *tg_tape_input(tg_tape *t, tg_tensor *x);

/* Discards at close what was made since open, but for what a node saved and for the outputs. Scopes nest; each open has
 * its close, also where either fails. name (copied, may be NULL) is part of the path in call sites and reports. */
TG_API tg_status tg_scope_open(tg_tape *t, const char *name);
TG_API tg_status tg_scope_close(tg_tape *t, tg_tensor *const *outputs, int n);
/* A tape-owned tensor, contents undefined, on bytes that stay with the context under (name, dtype) when its last
 * reference goes, and only grow. Asking again waits for the works that still use them; while a lease is open on the
 * same tape, alive and not discarded, it is TG_ERR_STATE, naming both. What another tape holds, as the one outside a
 * recomputation, is let alone: the lease is then an instance of its own. tg_memory_report counts them all. */
TG_API tg_tensor *tg_lease(tg_tape *t, const char *name, tg_dtype dtype, tg_shape shape);
TG_API void tg_tape_set_timing(tg_tape *t, bool on); /* measure nodes from now on */

/* ---- Functions of tensors ---- */

/* Records on t; in[] and out[] are the caller's arrays. The same type serves gradcheck.h. */
typedef tg_status (*tg_fn)(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);

/* ---- Saved tensors ---- */

/* How what nodes save for backward is kept meanwhile: on the host, in fewer bits. x is one-dimensional: all elements of
 * what a storage holds, whatever shapes its tensors have. */
typedef struct tg_packer {
    size_t size;
    /* Keeps what unpack will need and sets *packed to it: x's bytes are then given back. NULL, as it is: x stays. May
     * record no-grad ops on t; tg_keep keeps a result. */
    tg_status (*pack)(void *user, tg_tape *t, tg_tensor *x, void **packed);
    /* Writes x, which may be in flight when it returns. Called when somebody reads the bytes, mostly backward; what it
     * gives is what they read. */
    tg_status (*unpack)(void *user, void *packed, tg_tensor *x);
    /* Backward has passed the last node that saved x, x is kept (tg_keep), or the tape is reset. */
    void (*drop)(void *user, void *packed);
    void *user; /* must be there until the tape is reset */
} tg_packer;

#define TG_PACKER(...) (&(tg_packer){.size = sizeof(tg_packer), __VA_ARGS__})

/* From now on tg_scope_close packs what was made since open, a node saved, and is no output. NULL: it stays, as ever.
 * Tapes of recomputations keep theirs. Not within a captured step. A callback that fails is TG_ERR_CALLBACK. */
TG_API tg_status tg_tape_pack(tg_tape *t, const tg_packer *p);
/* Packs a result now, behind its last use in forward, where no scope does. Nothing happens where no node has saved it,
 * or its tape has no packer. */
TG_API tg_status tg_pack(tg_tensor *x);

#ifdef __cplusplus
}
#endif

#endif
