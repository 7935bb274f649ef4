/* The random streams of a context: the default one, those with a name, and which of them draws now. */
#ifndef TG_RNG_H
#define TG_RNG_H

#include "core/context.h"

typedef struct tg_named_rng {
    struct tg_named_rng *next;
    char *name;
    uint64_t id;   /* never another's */
    uint64_t seed; /* as it was added */
    tg_rng rng;    /* while it is not the one that draws */
} tg_named_rng;

/* All states by value, and which stream draws. */
typedef struct tg_rng_states {
    tg_rng now, base;
    uint64_t current; /* id; 0: the default stream */
    int n;
    struct {
        uint64_t id;
        tg_rng rng;
    } stream[];
} tg_rng_states;

tg_rng *tg_rng_named(tg_ctx *ctx, const char *name); /* its state, wherever that is now; NULL: there is none */
/* By number, which is never another's; the default stream's is 0. NULL: it has been removed. */
tg_rng *tg_rng_by_id(tg_ctx *ctx, uint64_t id);
uint64_t tg_rng_id(const tg_ctx *ctx, const tg_rng *state); /* of the stream whose state is there */
size_t tg_rng_states_bytes(const tg_ctx *ctx);       /* of the streams that are there now */
void tg_rng_states_save(const tg_ctx *ctx, tg_rng_states *to);
/* Streams that were removed since are left out, those added since stay as they are. The forks that are open stay. */
void tg_rng_states_load(tg_ctx *ctx, const tg_rng_states *from);
/* Closes the forks above so many: of a function that failed between fork and join. */
void tg_rng_unwind(tg_ctx *ctx, int forks);
/* tg_rng_seed_parallel's streams for explicit ranks, the first of which is tp's. */
tg_status tg_rng_seed_ranks(tg_ctx *ctx, uint64_t seed, int tp, int ep, int etp);
void tg_rngs_free(tg_ctx *ctx);

#endif
