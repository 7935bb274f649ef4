/* Keyed random draws (tapegrad/context.h): the open keys, the step, and the one function that takes draws.
 *
 * With an open key, a draw is a pure function of the seed of the random stream, the step, the micro-batch, the open
 * keys and the place in the innermost key. It does not depend on what was drawn before in other keys. */
#ifndef TG_KEYS_H
#define TG_KEYS_H

#include <tapegrad/device.h>

enum { TG_KEY_LEVELS = 16 }; /* number of keys that can be open at a time */

typedef struct tg_key_level {
    uint64_t key;
    uint64_t opening; /* number of the call that opened it; unique in the context */
    uint64_t outer;   /* the counter of the key around it */
    const void *site; /* call site that opened it */
} tg_key_level;

/* The open keys. A second run draws as the first one did if it starts from a copy of this struct. */
typedef struct tg_keys {
    uint64_t step;    /* set by tg_draws_step */
    uint64_t counter; /* how many numbers of the innermost open key are taken */
    int depth;        /* number of open keys */
    int missed;       /* number of further ones that failed to open and have not been closed */
    bool repeats;     /* a second run: it makes draws again, so they are not noted */
    tg_key_level level[TG_KEY_LEVELS];
} tg_keys;

/* A key that has drawn in the current step. */
typedef struct tg_key_note {
    uint64_t stream;  /* the stream number of its draws, which depends on the micro-batch and on the keys around it */
    uint64_t opening; /* see tg_key_level */
    const void *site;
} tg_key_note;

/* The keys that have drawn in the current step, in order, with a hash table of their positions. */
typedef struct tg_key_notes {
    tg_key_note *note;
    int n, capacity;
    int *slot;  /* 1 + the position in note[]; 0 if the slot is free */
    int slots;  /* a power of two, more than n; or 0 */
    uint64_t openings; /* number of openings so far */
} tg_key_notes;

/* ---- keys.c ---- */

/* Takes the next n numbers of the innermost open key, or, if no key is open, of `stream`, a random stream of the
 * context. Sets out->rng to the first of them, and out->captured. `micro` is the micro-batch of the tape that records
 * the draw; 0 without a tape. Fails with TG_ERR_STATE if the key was closed after it had drawn, and opened again in the
 * same step. */
tg_status tg_rng_take(tg_ctx *ctx, tg_rng *stream, uint64_t micro, int64_t n, tg_draws *out);
/* Gives back the last n numbers that were taken in this way. */
void tg_rng_give_back(tg_ctx *ctx, tg_rng *stream, int64_t n);
/* Returns the stream number of draws in the keys that are open in k and, inside of them, in the n keys of `inner`. root
 * is the stream number of the random stream. */
uint64_t tg_key_stream(const tg_keys *k, uint64_t root, uint64_t micro, const uint64_t *inner, int n);
/* Returns whether draws depend on keys now. */
bool tg_is_keyed(const tg_ctx *ctx);
/* Returns the seed of keyed draws from a stream with this seed, in the current step. */
uint64_t tg_key_seed(const tg_ctx *ctx, uint64_t seed);
/* Opens a key, as tg_key_open does, for the caller of a public function at `site`. */
tg_status tg_key_open_at(tg_ctx *ctx, uint64_t key, const void *site);
/* Closes the innermost keys until only `depth` are open, after a function has failed between an open and its close. */
void tg_keys_unwind(tg_ctx *ctx, int depth);
/* Begins a step, as tg_draws_step does, without its checks. */
void tg_keys_begin_step(tg_ctx *ctx, uint64_t step);

/* ---- key_notes.c ---- */

/* Notes that the key with this stream number draws. If another opening of it has drawn in this step, records nothing
 * and sets *before to the note of that opening, else to NULL. */
tg_status tg_key_note_add(tg_ctx *ctx, const tg_key_note *note, const tg_key_note **before);
const tg_key_note *tg_key_note_find(const tg_ctx *ctx, uint64_t stream); /* NULL if there is none */
void tg_key_notes_keep(tg_ctx *ctx, int n); /* forgets all but the first n notes */
void tg_key_notes_free(tg_ctx *ctx);

#endif
