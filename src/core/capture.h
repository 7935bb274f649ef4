/* Captured steps: what the rest of the library tells the one that is being recorded, and what it must not do then. */
#ifndef TG_CAPTURE_H
#define TG_CAPTURE_H

#include "base/recording.h"
#include "core/context.h"

/* Where a replay will have moved this state of one of the context's streams to: tg_draws's moved. */
const tg_rng *tg_capture_moved(tg_ctx *ctx, const tg_rng *stream);
/* Whether x has a gradient is about to be changed; read: it also decides what is recorded. */
void tg_capture_gradient(const tg_tensor *x, bool read);
void tg_graphs_free(tg_ctx *ctx); /* of a context that ends */

/* Who has more to do at each replay: the calls of communicators. */
typedef struct tg_rider {
    tg_status (*begin)(struct tg_rider *r, const void *site); /* before the launch */
    tg_status (*end)(struct tg_rider *r);                     /* behind it */
    void (*free)(struct tg_rider *r);
    int64_t collectives;
} tg_rider;

tg_rider *tg_capture_rider(tg_ctx *ctx); /* of the step that is captured; NULL: none yet */
void tg_capture_ride(tg_ctx *ctx, tg_rider *r);
/* Every graph's, in turn, that has one. */
void tg_graphs_riders(tg_ctx *ctx, void (*fn)(tg_rider *r, const void *arg), const void *arg);
/* Frees what the device recorded of those for whose riders ends is true, though it may still run, and refuses their
 * replays: TG_ERR_ABORTED, with this reason (static). */
void tg_graphs_end(tg_ctx *ctx, bool (*ends)(tg_rider *r, const void *arg), const void *arg, const char *why);

#endif
