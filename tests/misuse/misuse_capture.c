/* Captured steps. */
#include <tapegrad/average.h>
#include <tapegrad/capture.h>
#include <tapegrad/device.h>
#include <tapegrad/optim.h>
#include <tapegrad/tensor.h>

#include "misuse/misuse.h"

static tg_status nothing(void *state, tg_ctx *ctx) { return (void)state, (void)ctx, TG_OK; }
static tg_status fails(void *state, tg_ctx *ctx) { return (void)state, (void)ctx, TG_ERR_IO; }
static tg_status shape(void *state, tg_ctx *ctx) { return (void)state, tg_zeros(ctx, TG_F32, TG_SHAPE(-1)), TG_OK; }

static tg_status later(void *state, tg_ctx *ctx) {
    int *calls = state;
    (void)ctx;
    return ++*calls > 1 ? TG_ERR_IO : TG_OK;
}

static tg_status refuse(tg_ctx *ctx) { return (void)ctx, TG_OK; }

/* A device that can begin a recording but not end it, and one that cannot begin it. */
static bool captures_on(misuse_world *b, bool begins, tg_status status, const char *says) {
    tg_device_ops other = *tg_ctx_ops(b->ctx);
    other.name = "other";
    other.host = false;
    other.capture_begin = begins ? refuse : NULL;
    tg_ctx *ctx = tg_ctx_new_on(&other, TG_CONFIG(.threads = 1));
    tg_graph *g = tg_graph_new(ctx, nothing, NULL);
    bool good = g && tg_ctx_status(ctx) == status && strstr(tg_ctx_message(ctx), says);
    tg_graph_free(g);
    tg_ctx_free(ctx);
    return good;
}

static tg_status end_recording(tg_ctx *ctx, bool keep, void **graph, int64_t *nodes) {
    (void)ctx, (void)keep;
    *graph = NULL, *nodes = 0;
    return TG_OK;
}

static tg_status launch(tg_ctx *ctx, void *graph) { return (void)ctx, (void)graph, TG_OK; }
static void forget(tg_ctx *ctx, void *graph) { (void)ctx, (void)graph; }

typedef enum reading { NORM, SCALE, STEPS, UPDATES } reading;

typedef struct reader {
    tg_optim *optim;
    tg_average *average;
    reading what;
} reader;

static tg_status reads(void *state, tg_ctx *ctx) {
    const reader *r = state;
    switch (r->what) {
    case NORM: tg_optim_norm(r->optim); break;
    case SCALE: tg_optim_scale(r->optim); break;
    case STEPS: tg_optim_steps(r->optim); break;
    case UPDATES: tg_average_updates(r->average); break;
    }
    return tg_ctx_status(ctx);
}

/* A step reads a number on a device that records, and whose slots refuse nothing. Returns whether the call is
 * refused. */
static bool cannot_read(misuse_world *b, reading what, const char *who) {
    tg_device_ops other = *tg_ctx_ops(b->ctx);
    other.name = "other";
    other.capture_begin = refuse, other.capture_end = end_recording;
    other.capture_launch = launch, other.capture_free = forget;
    tg_ctx *ctx = tg_ctx_new_on(&other, TG_CONFIG(.threads = 1));
    tg_tensor *x = tg_param_new(ctx, "x", TG_F32, TG_SHAPE(2), 1);
    reader r = {tg_sgd_new(ctx, &x, 1, TG_SGD(.lr = 1)), tg_ema_new(ctx, &x, 1, 0.5), what};
    tg_graph *g = tg_graph_new(ctx, reads, &r);
    bool good = tg_ctx_status(ctx) == TG_ERR_UNSUPPORTED && strstr(tg_ctx_message(ctx), who) &&
                strstr(tg_ctx_message(ctx), "reads a value of the device, which has not computed it");
    tg_graph_free(g);
    tg_average_free(r.average);
    tg_optim_free(r.optim);
    tg_ctx_free(ctx);
    return good;
}

static tg_graph *inert(misuse_world *b) {
    tg_graph *g = tg_graph_new(b->ctx, NULL, NULL);
    tg_ctx_clear(b->ctx);
    return g;
}

static bool replays_later(misuse_world *b) {
    int calls = 0;
    tg_graph *g = tg_graph_new(b->ctx, later, &calls);
    bool good = tg_graph_replay(g) != TG_OK;
    tg_graph_free(g);
    return good;
}

static bool queries(misuse_world *b, tg_graph_info *out) {
    tg_graph *g = tg_graph_new(b->ctx, nothing, NULL);
    bool good = tg_graph_query(g, out) != TG_OK;
    tg_graph_free(g);
    return good;
}

void misuse_capture(misuse_world *b) {
    tg_graph_info unset = {0}, info = TG_GRAPH_INFO();
    QUIET(tg_graph_new, tg_graph_replay(tg_graph_new(NULL, nothing, NULL)) == TG_ERR_MEMORY);
    GIVES(tg_graph_new, ARGUMENT, "tg_graph_new: the function is NULL", tg_graph_new(b->ctx, NULL, NULL) != NULL);
    GIVES(tg_graph_new, CALLBACK, "tg_graph_new: the step failed with TG_ERR_IO",
          tg_graph_new(b->ctx, fails, NULL) != NULL);
    GIVES(tg_graph_new, SHAPE, "tg_zeros", tg_graph_new(b->ctx, shape, NULL) != NULL);
    QUIET(tg_graph_new, captures_on(b, false, TG_ERR_UNSUPPORTED, "device \"other\" cannot record a step"));
    QUIET(tg_graph_new, captures_on(b, true, TG_ERR_UNSUPPORTED, "device \"other\" cannot record a step"));
    QUIET(tg_optim_norm, cannot_read(b, NORM, "tg_optim_norm: "));
    QUIET(tg_optim_scale, cannot_read(b, SCALE, "tg_optim_scale: "));
    QUIET(tg_optim_steps, cannot_read(b, STEPS, "tg_optim_steps: "));
    QUIET(tg_average_updates, cannot_read(b, UPDATES, "tg_average_updates: "));
    QUIET(tg_graph_replay, tg_graph_replay(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_graph_replay, tg_graph_replay(inert(b)) == TG_ERR_MEMORY);
    GIVES(tg_graph_replay, CALLBACK, "tg_graph_replay: the step failed with TG_ERR_IO", replays_later(b));
    QUIET(tg_graph_query, tg_graph_query(NULL, &info) == TG_ERR_ARGUMENT);
    QUIET(tg_graph_query, tg_graph_query(inert(b), &info) == TG_ERR_MEMORY);
    GIVES(tg_graph_query, ARGUMENT, "out is NULL", queries(b, NULL));
    GIVES(tg_graph_query, ARGUMENT, "has no size", queries(b, &unset));
    QUIET(tg_graph_free, (tg_graph_free(NULL), tg_graph_free(inert(b)), true));
}
