/* Recomputation (activation checkpointing): a function runs in forward without keeping what its ops save for backward,
 * and runs again in backward. This saves memory and costs time. tapegrad.h includes this header. */
#ifndef TAPEGRAD_RECOMPUTE_H
#define TAPEGRAD_RECOMPUTE_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_recompute_opts {
    size_t size;
    const char *name; /* name in error messages; copied */
    bool keep_rng;    /* the second run continues the random streams instead of restoring them */
    void (*destroy)(void *state); /* frees state with the node, or on error; NULL: the caller frees it */
    /* NULL means that in[0] is kept whole. Otherwise each rank of `distribute` keeps only its part of the elements of
     * in[0], and backward gathers the parts again. in[0] must be the same on all ranks; only check mode compares its
     * values. Only an in[0] that an op on the tape has computed, and that no other node has saved, is split; any other
     * stays whole. All ranks of `distribute` must make the call and run its backward. If the context has a grid,
     * `distribute` must be the group of one of its axes, and in[0] must be invariant or replicated on that axis
     * (TG_ERR_PLACEMENT). */
    tg_comm *distribute;
} tg_recompute_opts;

#define TG_RECOMPUTE_DEFAULTS .size = sizeof(tg_recompute_opts)
#define TG_RECOMPUTE(...) (&(tg_recompute_opts){TG_RECOMPUTE_DEFAULTS, __VA_ARGS__})

/* Runs fn now without keeping what its ops save for backward, and runs fn again in backward (Chen et al., arXiv
 * 1604.06174). One node stands for the whole function. fn gets state, in, n_in, out and n_out. opts may be NULL. Calls
 * may nest.
 *
 * Parameters that fn uses become inputs of the node, so they get their gradients even if they are not in in[]. fn needs
 * at least one input or parameter. The second run uses the random streams in their state at the first run, unless
 * keep_rng is set. The second run must produce the same shapes (TG_ERR_SHAPE), and in check mode the same bits
 * (TG_ERR_STATE). state must live until the tape is reset, unless opts->destroy is set.
 *
 * If fn writes in place, it writes twice, once in each run. fn may set gradient hooks only on tensors that it has made:
 * a hook on an input would see only the part of the gradient that comes from this call. fn must not call tg_jvp.
 */
TG_API tg_status tg_recompute(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                              int n_out, const tg_recompute_opts *opts);

/* A replay: a group of recomputations that also discards the outputs of the functions, not only what their ops save.
 * The recomputations of a replay run again together, in the order of forward. The tape owns the replay: it ends when
 * the tape is reset, and calls on it then fail with TG_ERR_HANDLE. */
typedef struct tg_replay tg_replay;
/* Starts a replay on t. Returns NULL on error; the functions below then fail with TG_ERR_ARGUMENT. */
TG_API tg_replay *tg_replay_open(tg_tape *t);
/* Adds a recomputation to the replay, with the arguments of tg_recompute, and runs fn for the first time.
 * tg_replay_close later discards the bytes of the outputs. It keeps outputs that share bytes with an input, and outputs
 * that were overwritten. */
TG_API tg_status tg_replay_run(tg_replay *r, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                               int n_out, const tg_recompute_opts *opts);
/* Closes the replay and discards the outputs of its recomputations. Call it after the last use of these outputs in
 * forward. All outputs are restored together, and so are all views of them. This happens when the gradient of `hook`, a
 * tensor of the tape, is complete, or earlier if one of the outputs is read. hook NULL means that it happens when one
 * of the outputs is read. */
TG_API tg_status tg_replay_close(tg_replay *r, tg_tensor *hook);

#ifdef __cplusplus
}
#endif

#endif
