/* Captured steps (tapegrad/capture.h): what other files report to the step that is being recorded, and the callbacks
 * that run at each of its replays. */
#ifndef TG_CAPTURE_H
#define TG_CAPTURE_H

#include "base/recording.h"
#include "core/context.h"

/* Returns the `captured` field of tg_draws for draws from this stream of the context: the address on the device where
 * each replay finds the stream's state. NULL if no step is being recorded. */
const tg_rng *tg_capture_rng(tg_ctx *ctx, const tg_rng *stream);
/* Notes that the step being recorded is about to change whether x, a leaf with a tg_ext, has a gradient. `read` says
 * that the recording also depends on whether x has one. */
void tg_capture_gradient(const tg_tensor *x, bool read);
void tg_graphs_free(tg_ctx *ctx); /* called when the context ends */

/* Callbacks that run at each replay of a captured step, which has at most one rider. src/comm uses it to count the
 * step's collectives and to compare them between ranks. */
typedef struct tg_rider {
    tg_status (*begin)(struct tg_rider *r, const void *site); /* before the launch */
    tg_status (*end)(struct tg_rider *r);                     /* after the launch */
    void (*free)(struct tg_rider *r);
    int64_t collectives; /* number of collectives in one replay */
} tg_rider;

tg_rider *tg_capture_rider(tg_ctx *ctx); /* the rider of the step that is being captured; NULL if it has none */
void tg_capture_ride(tg_ctx *ctx, tg_rider *r); /* sets that rider; the graph calls r->free when it ends */
/* Calls the function for each rider, graph by graph. */
void tg_graphs_riders(tg_ctx *ctx, void (*fn)(tg_rider *r, const void *arg), const void *arg);
/* Frees the device's recordings of all graphs for whose rider `ends` returns true, even if they may still be running.
 * Replays of these graphs then fail with TG_ERR_ABORTED and the reason `why`, which must be a static string. */
void tg_graphs_end(tg_ctx *ctx, bool (*ends)(tg_rider *r, const void *arg), const void *arg, const char *why);

#endif
