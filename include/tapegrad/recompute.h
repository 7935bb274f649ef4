/* Recomputation (activation checkpointing): a function runs in forward, but the tensors that its ops save for backward
 * are not kept, and the function runs again in backward. This saves memory and costs time. tapegrad.h includes this
 * header. */
#ifndef TAPEGRAD_RECOMPUTE_H
#define TAPEGRAD_RECOMPUTE_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_recompute_opts {
    size_t size;
    const char *name; /* name in error messages; copied; NULL means "recompute", or "replay" with tg_replay_run */
    bool keep_rng;    /* the second run continues the random streams instead of restoring them */
    /* Frees state when the node ends, at the latest when the tape is reset. If the call records no node, or fails, it
     * calls destroy before it returns. destroy is not called if state is NULL. If destroy is NULL, the caller frees
     * state. */
    void (*destroy)(void *state);
    /* If set, each rank of this communicator keeps only its part of the elements of in[0], and backward gathers the
     * parts again. NULL means that each rank keeps all of in[0]. in[0] is divided only if it was made on this tape (by
     * an op, or as in inputs.h), if it is contiguous and no part of a larger tensor, and if no other node has saved it.
     * Any other in[0] stays whole, such as one that tg_keep holds. With one rank in[0] stays whole too. n_in must not
     * be 0 (TG_ERR_ARGUMENT).
     *
     * All ranks, at most 1,024 (TG_ERR_UNSUPPORTED), must make the call and run its backward. in[0] must have the same
     * values on all of them; only check mode compares the values. If there are several ranks and the context has a
     * grid, `distribute` must be the communicator of one of its axes, and in[0] must be INVARIANT or REPLICATED on that
     * axis (TG_ERR_PLACEMENT). */
    tg_comm *distribute;
} tg_recompute_opts;

#define TG_RECOMPUTE_DEFAULTS .size = sizeof(tg_recompute_opts)
#define TG_RECOMPUTE(...) (&(tg_recompute_opts){TG_RECOMPUTE_DEFAULTS, __VA_ARGS__})

/* Runs fn now without keeping what its ops save for backward, and runs fn again in each backward (Chen et al., arXiv
 * 1604.06174). One node of t stands for the whole function. Each run of fn gets state, a tape on which it must record
 * its ops, tensors that share the bytes of in[n_in], and an array for its n_out results. No in[i] may be NULL. The call
 * sets out[n_out] to tensors of t that share the bytes of these results, or to inert tensors on an error. n_in is 0 to
 * 65535, and n_out is 1 to 65535. opts may be NULL. fn may call tg_recompute itself. In no-grad mode fn runs only once,
 * on t itself, and the call records no node.
 *
 * Parameters that fn uses become inputs of the node, so they get their gradients even if they are not in in[]. The node
 * needs at least one input or parameter (TG_ERR_ARGUMENT). The second run uses the random streams in their state at the
 * first run, unless keep_rng is set. The second run must produce the same shapes and dtypes (TG_ERR_SHAPE) and the same
 * placements (TG_ERR_PLACEMENT). It must also produce the same bits, which only check mode compares (TG_ERR_STATE). If
 * fn returns an error and the context has none, the call, or backward, fails with TG_ERR_CALLBACK. state must live
 * until the tape is reset, unless opts->destroy is set.
 *
 * If fn writes in place, it writes in each run; but tg_batch_norm updates its running statistics only in the first run.
 * fn must close the keys and join the forks of random streams that it opens (TG_ERR_STATE). fn may call tg_on_grad on
 * tensors that it has made and on its inputs. A hook on an input sees only the part of the gradient that comes from
 * this call. fn must not set hooks on other tensors, such as parameters (TG_ERR_STATE), and must not call
 * tg_on_accumulated (TG_ERR_STATE) or tg_jvp (TG_ERR_UNSUPPORTED).
 */
TG_API tg_status tg_recompute(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                              int n_out, const tg_recompute_opts *opts);

/* A replay: a group of recomputations that also discards the outputs of the functions, not only what their ops save.
 * The functions of a replay run again together, in the order of their first runs. The tape owns the replay, which ends
 * when the tape is reset. Calls on it then fail with TG_ERR_HANDLE, until a later tg_replay_open reuses its memory. */
typedef struct tg_replay tg_replay;
/* Starts a replay on t. Returns NULL on error; the functions below then fail with TG_ERR_ARGUMENT. */
TG_API tg_replay *tg_replay_open(tg_tape *t);
/* Adds a recomputation to the replay, with the arguments of tg_recompute, and runs fn for the first time. Fails with
 * TG_ERR_STATE if the replay is closed. */
TG_API tg_status tg_replay_run(tg_replay *r, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                               int n_out, const tg_recompute_opts *opts);
/* Closes the replay and discards the bytes of the outputs of its recomputations. Call it after the last use of these
 * outputs in forward. Outputs are not discarded if they share bytes with an input or a parameter, if they were
 * overwritten, if tg_keep holds them, or if their recomputation has recorded no node.
 *
 * All outputs are restored together, and so are all views of them. This happens when backward has completed the
 * gradient of `hook`, or earlier if one of the outputs is read. `hook` is a tensor of the tape (TG_ERR_HANDLE). If it
 * is NULL or requires no gradient, the outputs are restored when one of them is read. If backward reaches one of the
 * functions before that, only this function runs again, and only its outputs are restored. Overwriting an output that
 * was restored makes the backward of its function fail with TG_ERR_VERSION. */
TG_API tg_status tg_replay_close(tg_replay *r, tg_tensor *hook);

#ifdef __cplusplus
}
#endif

#endif
