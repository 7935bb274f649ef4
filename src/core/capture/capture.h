/* Captured steps (tapegrad/capture.h): what other files report to the step that is being recorded, the callbacks that
 * run at each of its replays, and graphs of several functions, which captured modules are made of. */
#ifndef TG_CAPTURE_H
#define TG_CAPTURE_H

#include "base/recording.h"
#include "core/context.h"

/* Sets out->captured for draws from this stream of the context, by key or by order, that the step being recorded makes:
 * the address on the device where each replay finds what the draws depend on. out->rng is where the draws begin.
 * `micro` is the micro-batch of the tape that records them. */
tg_status tg_capture_draws(tg_ctx *ctx, const tg_rng *stream, uint64_t micro, tg_draws *out);
/* Notes that the step being recorded is about to change whether x, a leaf with a tg_ext, has a gradient. `read` says
 * that the recording also depends on whether x has a gradient. Only the first call of a step for x counts. */
void tg_capture_gradient(const tg_tensor *x, bool read);
void tg_graphs_free(tg_ctx *ctx); /* called when the context ends */

/* Callbacks that run at each replay of a captured step; a recorded function has one object of them at most. src/comm
 * uses it to count the step's collectives and to compare them between ranks. */
typedef struct tg_replay_hooks {
    tg_status (*begin)(struct tg_replay_hooks *h, const void *site); /* before the launch */
    tg_status (*end)(struct tg_replay_hooks *h); /* after the launch; fails only if a communicator has failed */
    void (*free)(struct tg_replay_hooks *h);
    /* Returns whether the work is a call of a group in which the step makes calls too. */
    bool (*meets)(const struct tg_replay_hooks *h, const tg_work *w);
    int64_t collectives; /* number of collectives in one replay */
} tg_replay_hooks;

/* Return and set the hooks of the function that is being recorded; NULL if it has none yet. tg_graph_free calls
 * h->free. */
tg_replay_hooks *tg_capture_hooks(tg_ctx *ctx);
void tg_capture_set_hooks(tg_ctx *ctx, tg_replay_hooks *h);
/* Calls fn for the hooks of each graph that has hooks. */
void tg_graphs_each_hooks(tg_ctx *ctx, void (*fn)(tg_replay_hooks *h, const void *arg), const void *arg);
/* Frees the device's recordings of all graphs for whose hooks `ends` returns true, even if they may still be running.
 * Replays of these graphs then fail with TG_ERR_ABORTED and the reason `why`, which must be a static string. */
void tg_graphs_end(tg_ctx *ctx, bool (*ends)(tg_replay_hooks *h, const void *arg), const void *arg, const char *why);

/* ---- Graphs of several functions (nn/captured/captured.c) ---- */

enum { TG_GRAPH_PARTS = 2 };
typedef tg_status (*tg_graph_fn)(void *state, tg_ctx *ctx);

/* Returns whether the device can record steps. On device meta, and on another device in the memory of the host, a
 * replay calls the step's function; other devices have no graphs. */
bool tg_can_record(const tg_ctx *ctx);
/* Records n functions, the parts of a graph, one after the other, and runs none of them: random streams, open keys and
 * gradients are as before the call. Parts share the graph's memory, and what the first part draws. So a replay of a
 * later part belongs to the last replay of the first one, and may overwrite what that has left. Returns NULL after
 * recording the error; tensors that the functions made are then discarded. */
tg_graph *tg_graph_record(tg_ctx *ctx, const tg_graph_fn *fn, int n, void *state, uint64_t micro, const void *site);
/* Runs a part once. The first part draws in this micro-batch, and in the keys that are open now. Fails as
 * tg_graph_replay does. */
tg_status tg_graph_run(tg_graph *g, int part, uint64_t micro, const void *site);
/* Returns whether replays write memory that is not the graph's, such as a buffer of a module. */
bool tg_graph_changes_state(const tg_graph *g);
bool tg_graph_has_ended(const tg_graph *g); /* whether a communicator of the graph has ended, so that replays fail */

#endif
