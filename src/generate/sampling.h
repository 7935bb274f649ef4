/* From logits to a token: penalties, the removal of tokens, draws, and log-probabilities. These functions know no
 * model. */
#ifndef TG_GENERATE_SAMPLING_H
#define TG_GENERATE_SAMPLING_H

#include <tapegrad/generate.h>

#include "base/runtime.h"

/* ---- sampling.c ---- */

/* A distribution over tokens: n ids that rise, and for each a weight above 0. A token's probability is its weight
 * divided by the sum of all. */
typedef struct tg_distribution {
    int64_t n;
    int64_t *id;
    double *weight;
    double sum;
} tg_distribution;

/* A token with its logit or weight. */
typedef struct tg_candidate {
    double weight;
    int64_t id;
} tg_candidate;

/* The memory that the functions below need, for a vocabulary of `vocab` tokens. */
typedef struct tg_sampler {
    tg_ctx *ctx;
    int64_t vocab;
    int64_t *count;          /* [vocab], zeros between calls */
    tg_candidate *candidate; /* [vocab] */
} tg_sampler;

tg_status tg_sampler_open(tg_sampler *s, tg_ctx *ctx, int64_t vocab);
void tg_sampler_close(tg_sampler *s); /* s may be all zeros */
/* Allocate and free the arrays of a distribution over vocab tokens. */
tg_status tg_distribution_open(tg_ctx *ctx, tg_distribution *d, int64_t vocab);
void tg_distribution_close(tg_ctx *ctx, tg_distribution *d, int64_t vocab);

/* Checks options; messages begin with `who`. */
tg_status tg_sampling_check(tg_ctx *ctx, const tg_sampling_opts *o, const char *who);
/* Fails unless all logits are finite. `count` is the number of tokens before. */
tg_status tg_logits_check(tg_ctx *ctx, const double *logits, int64_t vocab, int64_t count, const char *who);
/* Makes the distribution of the token after ids[count], as tg_sampling_probabilities does. Changes the logits. */
void tg_sampler_run(tg_sampler *s, double *logits, const int64_t *ids, int64_t count, int64_t prompt,
                    const tg_sampling_opts *o, tg_distribution *d);

/* ---- selection.c ---- */

/* Returns whether a comes before b: by greater weight, and of equal ones by lesser id. */
static inline bool tg_is_likelier(tg_candidate a, tg_candidate b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}
/* Selects the k likeliest of x[n] and writes them to out[k], likeliest first. k is at most n. */
void tg_select_likeliest(const double *x, int64_t n, int64_t k, tg_candidate *out);
/* Moves the likeliest tokens of c[n] to the end of c: as few as have weights that sum to at least `most`, but one or
 * more. Returns their number. The other tokens stay unsorted. */
int64_t tg_select_sum(tg_candidate *c, int64_t n, double most);

/* ---- draws.c ---- */

/* What a draw of one place in a text is for. */
typedef enum tg_draw {
    TG_DRAW_TOKEN,    /* the token */
    TG_DRAW_PROPOSAL, /* the token that the draft model proposes */
    TG_DRAW_ACCEPT,   /* whether the proposal is accepted */
    TG_DRAW_INSTEAD,  /* the token that replaces it if not */
} tg_draw;

/* Returns the number in [0, 1) of one draw. It depends on nothing but the arguments. */
double tg_draw_uniform(uint64_t seed, int64_t prompt, int64_t sample, int64_t index, tg_draw what);
/* Returns the token that u, from 0 to 1, selects: the first one at which the sum of probabilities exceeds u. */
int64_t tg_distribution_pick(const tg_distribution *d, double u);
double tg_distribution_at(const tg_distribution *d, int64_t id); /* Returns the probability of id. */
/* Replaces p by max(0, p - q), divided by its sum. If that sum is 0, as when p equals q within rounding, p stays as it
 * is. */
void tg_distribution_subtract(tg_distribution *p, const tg_distribution *q);

/* Returns log(sum(exp(x[n]))). */
double tg_log_sum_exp(const double *x, int64_t n);

#endif
