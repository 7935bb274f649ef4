/* Keyed random draws (tapegrad/context.h): the open keys, the step, and the one function that takes draws.
 *
 * A draw "by key", which is made while a key is open (except with TG_RNG_MEGATRON), is a pure function of the seed of
 * the random stream, the step, the micro-batch, the open keys, and its number within the innermost key. It does not
 * depend on what was drawn before in other keys. A draw "by order" takes the next number of a random stream. */
#ifndef TG_KEYS_H
#define TG_KEYS_H

#include <tapegrad/device.h>

enum { TG_KEY_LEVELS = 16 }; /* the largest number of keys that can be open at a time */

typedef struct tg_key_level {
    uint64_t key;
    uint64_t opening; /* number of the call that opened it; unique in the context */
    uint64_t outer;   /* tg_keys.counter of the key around it, which continues from there after the close */
    const void *site; /* call site that opened it */
} tg_key_level;

/* The open keys. A recomputation draws the same numbers as the first run if it starts from a copy of this struct. */
typedef struct tg_keys {
    uint64_t step;    /* set by tg_draws_step */
    uint64_t counter; /* how many numbers of the innermost open key are taken */
    int depth;        /* number of open keys, at most TG_KEY_LEVELS */
    int opens;        /* number of tg_key_open calls without a close yet; those beyond TG_KEY_LEVELS opened no key */
    bool repeats;     /* a second run, such as a recomputation, is repeating earlier draws, which are noted already */
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
    uint64_t openings; /* the number of the latest opening (tg_key_level); a replay of a captured step counts as one */
} tg_key_notes;

/* ---- keys.c ---- */

/* Takes the next n numbers: by key if tg_is_keyed, else by order from `stream`, a random stream of the context. Draws
 * by key depend on the seed and the stream number of `stream` too, but do not advance it. Sets out->rng to the state at
 * the first of the numbers, and out->captured. `micro` is the micro-batch of the tape that records the draw; 0 without
 * a tape. Fails with TG_ERR_STATE if the key was closed after it had drawn, and opened again in the same step. */
tg_status tg_rng_take(tg_ctx *ctx, tg_rng *stream, uint64_t micro, int64_t n, tg_draws *out);
/* Gives back the last n numbers that tg_rng_take has taken, with the same `stream`. */
void tg_rng_give_back(tg_ctx *ctx, tg_rng *stream, int64_t n);
/* Returns the stream number of draws in the keys that are open in k and, inside of them, in the n keys of `inner`. root
 * is the stream number of the random stream. */
uint64_t tg_key_stream(const tg_keys *k, uint64_t root, uint64_t micro, const uint64_t *inner, int n);
/* Returns whether draws are by key now. */
bool tg_is_keyed(const tg_ctx *ctx);
/* Returns the seed of keyed draws from a stream with this seed, in the current step. */
uint64_t tg_key_seed(const tg_ctx *ctx, uint64_t seed);
/* Opens a key, as tg_key_open does. `site` is the call site of the public function that opens it, for messages. */
tg_status tg_key_open_at(tg_ctx *ctx, uint64_t key, const void *site);
/* Closes the innermost keys until only n opens (tg_keys) have no close, after a function has failed between an open and
 * its close. Opens that failed count. */
void tg_keys_unwind(tg_ctx *ctx, int n);
/* Begins a step, as tg_draws_step does, without its checks. */
void tg_keys_begin_step(tg_ctx *ctx, uint64_t step);

/* ---- key_notes.c ---- */

/* Notes that the key with this stream number draws, and sets *before to NULL. If another opening of the key has drawn
 * in this step, notes nothing, and sets *before to the note of that opening. */
tg_status tg_key_note_add(tg_ctx *ctx, const tg_key_note *note, const tg_key_note **before);
const tg_key_note *tg_key_note_find(const tg_ctx *ctx, uint64_t stream); /* NULL if there is none */
void tg_key_notes_keep(tg_ctx *ctx, int n); /* forgets all but the first n notes */
void tg_key_notes_free(tg_ctx *ctx);

#endif
