/* Recomputation: a function runs without keeping what its ops save, and again in backward. */
#ifndef TAPEGRAD_RECOMPUTE_H
#define TAPEGRAD_RECOMPUTE_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_recompute_opts {
    size_t size;
    const char *name; /* in errors; copied */
    bool keep_rng;    /* do not restore the random streams in the second run */
    void (*destroy)(void *state); /* ends state when the node ends, also on failure; NULL: the caller keeps it */
    /* in[0], which is the same on all ranks (check mode looks), is kept as this rank's part of its elements and
     * gathered again in backward, where it is a result of the tape that nobody else has saved. Collective. Where there
     * is a grid, one of its axes: else TG_ERR_PLACEMENT. */
    tg_comm *distribute;
} tg_recompute_opts;

#define TG_RECOMPUTE(...) (&(tg_recompute_opts){.size = sizeof(tg_recompute_opts), __VA_ARGS__})

/* Runs fn now without keeping what its ops save, and again in backward (Chen et al., arXiv 1604.06174). Parameters that
 * it uses become inputs of the node, so frozen inputs and shared weights get the right gradients. The second run sees
 * the same random streams; its shapes, in check mode its bits, are held to the first's. state must live until the
 * reset, unless destroy is given. Nests; opts may be NULL. fn needs an input or a parameter; what it writes in place it
 * writes twice. It may hook its own tensors alone (an input's sees this call's share), and not call tg_jvp. */
TG_API tg_status tg_recompute(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                              int n_out, const tg_recompute_opts *opts);

/* Recomputations without output, that replay together, in forward order. Borrowed: it ends with its tape's step, and
 * is refused in the next (TG_ERR_HANDLE). NULL on an error, which the other two take. */
typedef struct tg_replay tg_replay;
TG_API tg_replay *tg_replay_open(tg_tape *t);
/* As tg_recompute; tg_replay_close discards the outputs' bytes, unless an input shares them or they have changed. */
TG_API tg_status tg_replay_run(tg_replay *r, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                               int n_out, const tg_recompute_opts *opts);
/* To be called after the last forward use of the outputs. They come back, under every view of them, when the gradient
 * of hook, a tensor of the tape, is complete, or earlier when somebody reads them; hook NULL: when read. All that r ran
 * come back at once. */
TG_API tg_status tg_replay_close(tg_replay *r, tg_tensor *hook);

#ifdef __cplusplus
}
#endif

#endif
