/* Recomputation (activation checkpointing): a function runs without keeping what its ops save, and runs again in
 * backward. It trades time for memory. tapegrad.h includes this header. */
#ifndef TAPEGRAD_RECOMPUTE_H
#define TAPEGRAD_RECOMPUTE_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_recompute_opts {
    size_t size;
    const char *name; /* name in errors; copied */
    bool keep_rng;    /* do not restore the random streams for the second run */
    void (*destroy)(void *state); /* frees state when the node ends, also on failure; NULL: the caller frees it */
    /* Not NULL: each rank keeps only its part of the elements of in[0], and backward gathers them again. in[0] must be
     * the same on all ranks; check mode verifies it. It is only distributed if it is a result of the tape that nothing
     * else has saved. Makes the call collective. If the context has a grid, this must be one of its axes; otherwise
     * TG_ERR_PLACEMENT. */
    tg_comm *distribute;
} tg_recompute_opts;

#define TG_RECOMPUTE(...) (&(tg_recompute_opts){.size = sizeof(tg_recompute_opts), __VA_ARGS__})

/* Runs fn now without keeping what its ops save, and runs it again in backward (Chen et al., arXiv 1604.06174). opts
 * may be NULL. Calls may nest.
 *
 * Parameters that fn uses become inputs of the node, so that frozen inputs and shared weights get the right gradients.
 * The second run uses the same random streams. It must produce the same shapes, and in check mode the same bits. state
 * must live until the tape is reset, unless opts->destroy is set. fn needs at least one input or parameter. What fn
 * writes in place is written twice, once in each run. fn may set hooks only on tensors of its own (a hook on an input
 * sees the share of this call), and must not call tg_jvp.
 */
TG_API tg_status tg_recompute(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                              int n_out, const tg_recompute_opts *opts);

/* A group of recomputations whose outputs are discarded too, and which run again together, in forward order. Borrowed:
 * it ends when its tape is reset, and is refused in the next step (TG_ERR_HANDLE). */
typedef struct tg_replay tg_replay;
/* Starts a group on t. NULL on an error; the functions below then fail with TG_ERR_ARGUMENT. */
TG_API tg_replay *tg_replay_open(tg_tape *t);
/* Adds a recomputation to the group, like tg_recompute. tg_replay_close later discards the bytes of the outputs, unless
 * an input shares them or they have changed. */
TG_API tg_status tg_replay_run(tg_replay *r, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                               int n_out, const tg_recompute_opts *opts);
/* Closes the group and discards its outputs. Call it after their last use in forward. All outputs of the group come
 * back together, under every view of them: when the gradient of `hook`, a tensor of the tape, is complete, or earlier
 * if something reads one of them. hook NULL: when one of them is read. */
TG_API tg_status tg_replay_close(tg_replay *r, tg_tensor *hook);

#ifdef __cplusplus
}
#endif

#endif
