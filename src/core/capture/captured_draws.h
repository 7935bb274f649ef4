/* The random draws of a captured step: what the host keeps of them, and what it sends to the device before each
 * replay. core/capture/capture.c and core/capture/replay.c call these functions. */
#ifndef TG_CAPTURED_DRAWS_H
#define TG_CAPTURED_DRAWS_H

#include "core/random/rng.h"

struct tg_captured_stream;
struct tg_captured_row;

typedef struct tg_captured_draws {
    tg_ctx *ctx;
    const tg_recording_words *words;
    struct tg_captured_stream *streams; /* the random streams that existed before the step */
    int n_streams;
    int forks;          /* number of open forks before the step */
    uint64_t current;   /* id of the current stream before and after the step */
    /* What the recorded kernels add to their draws (tg_draws.captured): on the device, and the host's copy. */
    tg_rng *device_rows, *host_rows;
    struct tg_captured_row *rows; /* what is known of each row */
    int n_rows, rows_capacity, most_rows;
    bool keyed; /* draws before the step were by key (tg_is_keyed) */
    /* A replay draws in the keys that are open when it begins, and in its micro-batch. Each key in which the step draws
     * then has a row of its own. If false, the step opens all its keys itself, and they are the same in each replay. */
    bool relative;
    uint64_t micro;   /* the micro-batch of the recording, if relative */
    int open_keys;    /* number of open keys before the step */
    int opens;        /* number of tg_key_open calls without a close before the step (tg_keys) */
    uint64_t opening; /* number of the opening of the innermost open key (tg_key_level); 0 if none was open */
    uint64_t counter; /* how many numbers of that key were taken before the step */
    uint64_t taken;   /* how many of them one step takes */
    bool ended;       /* tg_captured_draws_end has noted what the step draws */
    int old_notes;    /* number of keys that had drawn before the step */
    uint64_t *keys;   /* stream numbers of the keys in which the step draws, unless relative */
    int n_keys;
} tg_captured_draws;

/* Notes the states of the random streams, the forks and the keys before the recording. The draws are relative if a key
 * is open now, or if `relative` is true. */
tg_status tg_captured_draws_open(tg_captured_draws *d, tg_ctx *ctx, const tg_recording_words *words, bool relative,
                                 uint64_t micro);
/* Returns the bytes of device memory that device_rows must point to. */
size_t tg_captured_draws_bytes(const tg_captured_draws *d);
/* Sets out->captured for draws that the step makes, as tg_capture_draws does. */
tg_status tg_captured_draws_row(tg_captured_draws *d, const tg_rng *stream, uint64_t micro, tg_draws *out);
/* At the end of a recorded function, fails if a fork was not joined or a key not closed. Notes what the first function
 * draws. Fails if a later function takes further numbers by order, or further numbers of the key that was open before
 * the step. It may repeat draws of the first function, and draw in keys that it opens itself. */
tg_status tg_captured_draws_end(tg_captured_draws *d);
/* Restores the states before the recording, which has failed, or whose step is not run now. Keys and forks that were
 * open before it and that the step has closed or joined stay so. */
void tg_captured_draws_undo(tg_captured_draws *d);
/* Fails if a replay in this micro-batch would draw other numbers than the step would, or would draw in keys that have
 * drawn already. In these functions, `micro` is used only if the draws are relative. */
tg_status tg_captured_draws_check(const tg_captured_draws *d, uint64_t micro);
/* Sends the rows of a replay to the device, and notes the keys in which it draws. `first` is set for the replay that
 * tg_graph_new runs: it continues from the states before the recording, whose keys have been noted already. `site` is
 * the call site of the replay. */
tg_status tg_captured_draws_send(tg_captured_draws *d, uint64_t micro, bool first, const void *site);
/* Advances the streams, and the key that was open, by the draws of a replay. */
void tg_captured_draws_advance(const tg_captured_draws *d);
void tg_captured_draws_free(tg_captured_draws *d);

#endif
