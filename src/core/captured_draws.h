/* The random draws of a captured step (tapegrad/capture.h): what the host notes about them while the step is recorded,
 * and what it sends to the device before each replay. core/capture.c calls these functions. */
#ifndef TG_CAPTURED_DRAWS_H
#define TG_CAPTURED_DRAWS_H

#include "core/context.h"

struct tg_captured_stream;

typedef struct tg_captured_draws {
    tg_ctx *ctx;
    struct tg_captured_stream *streams; /* the random streams that existed before the step */
    int n_streams;
    int forks;        /* number of open forks before the step */
    uint64_t current; /* id of the current stream before and after the step */
    /* The rows to which tg_draws.captured of the recorded kernels points. There is space for two rows per stream.
     * device_rows is memory of the device; host_rows is the host's copy, which each replay sends to the device. */
    tg_rng *device_rows, *host_rows;
    int n_rows;
    int open_keys, old_notes; /* number of open keys, and of keys that had drawn, before the step */
    uint64_t *keys;           /* stream numbers of the keys in which the step draws */
    int n_keys;
} tg_captured_draws;

/* Notes the states of the random streams, the forks and the keys before the recording. */
tg_status tg_captured_draws_open(tg_captured_draws *d, tg_ctx *ctx);
/* Returns the bytes of device memory that device_rows must point to. */
size_t tg_captured_draws_bytes(const tg_captured_draws *d);
/* Does the work of tg_capture_draws (core/capture.h): sets *captured for draws that the step makes. */
tg_status tg_captured_draws_row(tg_captured_draws *d, const tg_rng *stream, bool keyed, const tg_rng **captured);
/* At the end of the recording, fails if a fork was not joined or a key not closed, and notes what the step draws. */
tg_status tg_captured_draws_end(tg_captured_draws *d);
/* Called when the recording has failed: restores what tg_captured_draws_open has noted. */
void tg_captured_draws_undo(tg_captured_draws *d);
/* Fails if a replay would draw from another stream than the recording, or in keys that have drawn in this step. */
tg_status tg_captured_draws_check(const tg_captured_draws *d);
/* Sends the rows of a replay to the device. `first` is set for the replay that tg_graph_new runs: it continues from the
 * states before the recording. `site` is the call site of the replay. */
tg_status tg_captured_draws_send(tg_captured_draws *d, bool first, const void *site);
/* Advances the streams by the draws of a replay. */
void tg_captured_draws_advance(const tg_captured_draws *d);
void tg_captured_draws_free(tg_captured_draws *d);

#endif
