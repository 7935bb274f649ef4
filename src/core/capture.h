/* Captured steps (tapegrad/capture.h): what other files report to the step that is being recorded, and the callbacks
 * that run at each of its replays. */
#ifndef TG_CAPTURE_H
#define TG_CAPTURE_H

#include "base/recording.h"
#include "core/context.h"

/* Called when the step that is being recorded draws from this stream of the context, by key if `keyed`, else by order
 * (keys.h). Sets *captured, the field of tg_draws, to the address on the device from which the draws of each replay
 * take their seed, stream number and counter. Fails if the draws are from a key that was opened before the step. */
tg_status tg_capture_draws(tg_ctx *ctx, const tg_rng *stream, bool keyed, const tg_rng **captured);
/* Notes that the step being recorded is about to change whether x, a leaf with a tg_ext, has a gradient. `read` says
 * that the recording also depends on whether x has a gradient. */
void tg_capture_gradient(const tg_tensor *x, bool read);
void tg_graphs_free(tg_ctx *ctx); /* called when the context ends */

/* Callbacks that run at each replay of a captured step. A step has at most one such struct. src/comm uses it to count
 * the step's collectives and to compare them between ranks. */
typedef struct tg_replay_hooks {
    tg_status (*begin)(struct tg_replay_hooks *h, const void *site); /* before the launch */
    tg_status (*end)(struct tg_replay_hooks *h);                     /* after the launch */
    void (*free)(struct tg_replay_hooks *h);
    int64_t collectives; /* number of collectives in one replay */
} tg_replay_hooks;

/* Return and set the hooks of the step that is being captured; NULL if it has none yet. tg_graph_free calls h->free. */
tg_replay_hooks *tg_capture_hooks(tg_ctx *ctx);
void tg_capture_set_hooks(tg_ctx *ctx, tg_replay_hooks *h);
/* Calls fn for the hooks of each graph that has hooks. */
void tg_graphs_each_hooks(tg_ctx *ctx, void (*fn)(tg_replay_hooks *h, const void *arg), const void *arg);
/* Frees the device's recordings of all graphs for whose hooks `ends` returns true, even if they may still be running.
 * Replays of these graphs then fail with TG_ERR_ABORTED and the reason `why`, which must be a static string. */
void tg_graphs_end(tg_ctx *ctx, bool (*ends)(tg_replay_hooks *h, const void *arg), const void *arg, const char *why);

#endif
