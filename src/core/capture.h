/* Captured steps: what other files report to the step that is being recorded, and what runs at each of its replays. */
#ifndef TG_CAPTURE_H
#define TG_CAPTURE_H

#include "base/recording.h"
#include "core/context.h"

/* Returns the address of the state to which a replay will have moved this stream of the context: the `captured` field
 * of tg_draws. */
const tg_rng *tg_capture_rng(tg_ctx *ctx, const tg_rng *stream);
/* Notes that the step is about to change whether x has a gradient. read: the recording also depends on whether it
 * has one. */
void tg_capture_gradient(const tg_tensor *x, bool read);
void tg_graphs_free(tg_ctx *ctx); /* called when the context ends */

/* Callbacks that run at each replay. The calls of communicators use them. */
typedef struct tg_rider {
    tg_status (*begin)(struct tg_rider *r, const void *site); /* before the launch */
    tg_status (*end)(struct tg_rider *r);                     /* after the launch */
    void (*free)(struct tg_rider *r);
    int64_t collectives;
} tg_rider;

tg_rider *tg_capture_rider(tg_ctx *ctx); /* the rider of the step that is being captured; NULL: it has none yet */
void tg_capture_ride(tg_ctx *ctx, tg_rider *r);
/* Calls the function for each rider, graph by graph. */
void tg_graphs_riders(tg_ctx *ctx, void (*fn)(tg_rider *r, const void *arg), const void *arg);
/* Frees the device's recordings of the graphs for whose riders `ends` returns true, even if they may still be
 * running. Their replays then fail with TG_ERR_ABORTED and this reason, which must be a static string. */
void tg_graphs_end(tg_ctx *ctx, bool (*ends)(tg_rider *r, const void *arg), const void *arg, const char *why);

#endif
