/* The random streams of a context: the default stream, the named ones, and the current one, which ops draw from. */
#ifndef TG_RNG_H
#define TG_RNG_H

#include "core/context.h"

typedef struct tg_named_rng {
    struct tg_named_rng *next;
    char *name;
    uint64_t id;   /* unique; never used again for another stream */
    uint64_t seed; /* the seed from tg_rng_add or tg_rng_seed_parallel; tg_rng_set does not change it */
    bool common;   /* tg_rng_seed_parallel gave it one seed on all ranks */
    bool by_rank;  /* tg_rng_seed_parallel gave it a seed that depends on the rank */
    tg_rng rng;    /* its state while another stream is current */
} tg_named_rng;

/* A fork that is open. */
typedef struct tg_open_fork {
    tg_named_rng *outer; /* the stream that was current before it; NULL for the default stream */
    int before;          /* number of forks that were open before it */
} tg_open_fork;

/* Copies of the states of all streams, and of the open keys. */
typedef struct tg_rng_states {
    tg_keys keys;
    tg_rng now, base; /* ctx->rng and ctx->streams.base */
    uint64_t current; /* id of the current stream; 0 for the default one */
    int n;
    struct {
        uint64_t id;
        tg_rng rng;
    } stream[];
} tg_rng_states;

/* Returns the state of a named stream, or NULL if there is no such stream. The address is valid until the next fork or
 * join. */
tg_rng *tg_rng_named(tg_ctx *ctx, const char *name);
/* Returns the state of the stream with this id, or NULL if it has been removed. 0 is the id of the default stream. */
tg_rng *tg_rng_by_id(tg_ctx *ctx, uint64_t id);
uint64_t tg_rng_id(const tg_ctx *ctx, const tg_rng *state); /* id of the stream whose state is at this address */
size_t tg_rng_states_bytes(const tg_ctx *ctx); /* size of a tg_rng_states for the streams that exist now */
void tg_rng_states_save(const tg_ctx *ctx, tg_rng_states *to);
/* Restores the states and the open keys. Streams that have been removed since are skipped, and those added since keep
 * their state. Open forks stay open. */
void tg_rng_states_load(tg_ctx *ctx, const tg_rng_states *from);
/* Closes the newest forks until at most n are open, after a function has failed between a fork and its join. */
void tg_rng_unwind(tg_ctx *ctx, int n);
/* Creates and seeds the streams of tg_rng_seed_parallel, and seeds the default stream. tp, ep and etp are the
 * tensor-parallel, expert-parallel and expert-tensor-parallel ranks, from which two of the seeds are computed. `own`
 * says that these are the true ranks, so that the two seeds may differ between ranks; otherwise the caller passes 0 for
 * all of them. */
tg_status tg_rng_seed_ranks(tg_ctx *ctx, uint64_t seed, bool own, int tp, int ep, int etp);
/* Returns whether the current stream has the same seed on every rank, as far as this rank can know: the library has
 * seeded it with a seed that all ranks share, and the caller has not set another one. */
bool tg_rng_is_common(const tg_ctx *ctx);
/* Checks the dtype and the standard deviation of a tensor of normal numbers. dtype 0 is the context's default. */
tg_status tg_normal_check(tg_ctx *ctx, tg_dtype dtype, double std, const char *who);
void tg_rngs_free(tg_ctx *ctx);

#endif
