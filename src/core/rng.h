/* The random streams of a context: the default stream, the named ones, and which of them draws now. */
#ifndef TG_RNG_H
#define TG_RNG_H

#include "core/context.h"

typedef struct tg_named_rng {
    struct tg_named_rng *next;
    char *name;
    uint64_t id;   /* unique; never used again for another stream */
    uint64_t seed; /* the seed that it was added with */
    bool common;   /* tg_rng_seed_parallel gave it one seed on all ranks */
    bool by_rank;  /* tg_rng_seed_parallel gave it the seed of this rank */
    tg_rng rng;    /* its state while another stream draws */
} tg_named_rng;

/* Copies of all states, and which stream draws. */
typedef struct tg_rng_states {
    tg_rng now, base;
    uint64_t current; /* id; 0: the default stream */
    int n;
    struct {
        uint64_t id;
        tg_rng rng;
    } stream[];
} tg_rng_states;

/* its state, wherever that is stored now; NULL: there is no such stream */
tg_rng *tg_rng_named(tg_ctx *ctx, const char *name);
/* Finds a stream by its id, which is never used again; 0 is the default stream. NULL: it has been removed. */
tg_rng *tg_rng_by_id(tg_ctx *ctx, uint64_t id);
uint64_t tg_rng_id(const tg_ctx *ctx, const tg_rng *state); /* id of the stream whose state is at this address */
size_t tg_rng_states_bytes(const tg_ctx *ctx);       /* size for the streams that exist now */
void tg_rng_states_save(const tg_ctx *ctx, tg_rng_states *to);
/* Restores the states. Streams that have been removed since are skipped, and those added since keep their state.
 * Open forks stay open. */
void tg_rng_states_load(tg_ctx *ctx, const tg_rng_states *from);
/* Closes the forks above this number, after a function failed between a fork and its join. */
void tg_rng_unwind(tg_ctx *ctx, int forks);
/* Creates the streams of tg_rng_seed_parallel for explicit ranks, the first of which is the tensor-parallel rank. own:
 * ranks have seeds of their own. */
tg_status tg_rng_seed_ranks(tg_ctx *ctx, uint64_t seed, bool own, int tp, int ep, int etp);
/* Returns whether the stream that draws now has the same seed on every rank, as far as this rank can know: the
 * library seeded it, and the caller has not set another one. */
bool tg_rng_is_common(const tg_ctx *ctx);
void tg_rngs_free(tg_ctx *ctx);

#endif
