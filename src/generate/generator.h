/* The state of a generator: samples, which are the texts, and rows, which are the slots of the key-value cache that
 * samples use while they grow. */
#ifndef TG_GENERATE_GENERATOR_H
#define TG_GENERATE_GENERATOR_H

#include <tapegrad/tokenizer.h>

#include "generate/sampling.h"
#include "models/lm/lm.h"

/* ---- Samples ---- */

/* Text that grows. The memory has one byte more than capacity, for a 0. */
typedef struct tg_growing_text {
    char *bytes;
    size_t n, capacity;
} tg_growing_text;

typedef struct tg_sample {
    int64_t prompt, number; /* which sample of which prompt */
    int64_t count, given;   /* number of ids; how many of them are the prompt */
    int64_t first;          /* index of the id that has position 0. Above 0 after a slide, and if the prompt is longer
                             * than the cache */
    int64_t room;           /* tokens that the arrays have room for after the prompt */
    void *block;            /* the memory of the arrays; NULL: the sample has not started, or was released */
    int64_t *ids;           /* [given + room]: the prompt and the continuation */
    double *logprob, *top_logprob; /* [room] and [room][top_logprobs]; NULL: not wanted */
    int64_t *top_id;
    tg_decoder *decoder; /* NULL: there is no text, or it is complete */
    tg_growing_text text;
    size_t shown; /* bytes of the text that on_token has had */
    tg_finish finish;
    bool released; /* tg_generator_release has freed the arrays */
    tg_generated result; /* filled in when the sample ends; of one that has not ended, at the end of the call */
} tg_sample;

/* A slot of the caches of the model and of the draft model. The first `cached` (`drafted`) positions of the slot are
 * those of ids[]. */
typedef struct tg_row {
    tg_sample *sample; /* NULL: the row is free */
    int64_t *ids;      /* [positions] */
    int64_t cached, drafted;
    /* Number of cached positions that other samples of the same call may use: those that were computed as parts of
     * prompts, whose values do not depend on how many rows were computed at the same time, and those that an earlier
     * call has left. */
    int64_t exact;
    int64_t call;   /* number of the call in which the row was last used */
    bool prompting; /* the model has not seen the whole prompt */
    int64_t guesses, proposal; /* number of proposed tokens after the sample's ids; index of their first distribution */
} tg_row;

/* ---- Forwards ---- */

/* The tokens of a forward. Each array has room for the most tokens of one. */
typedef struct tg_forward {
    int64_t tokens, runs, wanted; /* numbers of tokens, of runs, and of tokens whose logits are wanted */
    int64_t *ids, *rows;          /* the tokens; the indices of those that are wanted */
    tg_run *run;
    tg_row **row; /* the row of each run */
    tg_tensor *logits; /* [wanted, vocab] */
} tg_forward;

struct tg_generator {
    tg_ctx *ctx;
    tg_module *lm;
    tg_generator_opts o;
    int64_t vocab, draft_positions; /* draft_positions: 0 without a draft model */
    tg_tape *tape;
    tg_gpt_cache *cache, *draft_cache;
    tg_row *row;    /* [rows] */
    tg_row **continued; /* [rows]: those of one forward of tg_generate_continue */
    int64_t limit;  /* most tokens of a forward */
    int64_t group;  /* most tokens of a forward that continues samples */
    tg_forward f;
    double *logits, *raw; /* [vocab]: of one token. raw: before sampling changed them, for log-probabilities */
    tg_sampler sampler;
    tg_distribution target;
    tg_distribution *proposal; /* [group]: those from which the draft model's tokens were drawn; NULL without one */
    /* ---- The call ---- */
    tg_generate_opts call;
    tg_sampling_opts sampling;
    const tg_prompt *prompts; /* the caller's, during the call */
    int64_t calls, n_samples, waiting; /* waiting: the next sample to start */
    size_t longest_stop;               /* bytes of the longest stop string */
    tg_sample *sample;                 /* [n_samples] */
    bool running;                      /* the call has not returned */
    bool ended;                        /* on_token has ended the call */
    tg_generate_stats stats;
};

/* All products with at most this number of rows compute a row in one way, and all larger products in another way, which
 * rounds differently (kernels/cpu/gemm). What is computed for a token must not depend on the other tokens of a forward.
 * Therefore forwards that continue samples have at most this number of tokens, unless the generator has more rows, and
 * forwards of prompts have more: short ones are filled up. */
enum { TG_GENERATE_FEW = 12 };

/* ---- samples.c ---- */

/* Create the samples of a call, and free those of the last one. A sample has no memory of its own before it starts. */
tg_status tg_samples_open(tg_generator *g, const tg_prompt *prompts, int64_t n);
void tg_samples_close(tg_generator *g);
/* Allocates the arrays of a sample, and copies its prompt. */
tg_status tg_sample_start(tg_generator *g, tg_sample *s);
/* Ensures that a sample has room for n more ids. */
tg_status tg_sample_reserve(tg_generator *g, tg_sample *s, int64_t n);
/* Adds a token to a sample, which must have room for it, sets the sample's finish, and calls on_token. */
void tg_sample_add(tg_generator *g, tg_sample *s, int64_t id);
/* Fills in the results of all samples. Ends those that go on if on_token has ended the call. */
tg_status tg_samples_finish(tg_generator *g);

/* ---- sample_text.c ---- */

/* Fails if the tokenizer is of a context that has an error. k may be NULL. */
tg_status tg_sample_text_check(const tg_generator *g, const tg_tokenizer *k);
tg_status tg_sample_text_open(tg_generator *g, tg_sample *s);
void tg_sample_text_close(tg_generator *g, tg_sample *s);
/* Adds the text of a token, or, with id -1, the rest that the decoder has. Sets s->finish at a stop string. */
tg_status tg_sample_text_add(tg_generator *g, tg_sample *s, int64_t id);
/* Returns the length of the text without what may be the beginning of a stop string. */
size_t tg_sample_text_certain(const tg_generator *g, const tg_sample *s);

/* ---- rows.c ---- */

/* Gives free rows to samples that wait, and copies what the caches have of their prompts. */
tg_status tg_rows_assign(tg_generator *g);
/* If the next sample is of this prompt, gives it a free row with copies of what `from` has of the prompt in its caches,
 * and returns the row. Returns NULL if it is of another prompt, if no row is free, or after recording an error. */
tg_row *tg_rows_fork(tg_generator *g, tg_row *from, int64_t prompt);
/* Makes a row free for another sample, which may use what the caches have. */
void tg_row_release(tg_generator *g, tg_row *r);
/* Starts a row again with the newest half of its tokens. */
void tg_row_slide(tg_generator *g, tg_row *r);
/* Returns the number of ids that the model has not seen, without proposed ones. */
static inline int64_t tg_row_pending(const tg_row *r) { return r->sample->count - r->sample->first - r->cached; }
/* The same for the draft model. */
static inline int64_t tg_row_undrafted(const tg_row *r) { return r->sample->count - r->sample->first - r->drafted; }

/* ---- forward.c ---- */

void tg_forward_begin(tg_generator *g); /* begins a forward without tokens */
/* Adds n ids of a row's sample from position `begin` on, and wants the logits of the last `wanted` of them. */
void tg_forward_add(tg_generator *g, tg_row *r, int64_t begin, int64_t n, int64_t wanted);
/* Computes the forward, of the draft model if `draft` is true. fill: fills it up, as forwards of prompts need
 * (TG_GENERATE_FEW). */
tg_status tg_forward_run(tg_generator *g, bool draft, bool fill);
/* Reads logits number i of those wanted, and makes the distribution of the token after the first `count` ids of s. */
tg_status tg_forward_distribution(tg_generator *g, int64_t i, const tg_sample *s, int64_t count, tg_distribution *d);
void tg_forward_end(tg_generator *g); /* frees the logits */

/* ---- prompts.c, continue.c ---- */

/* Computes one chunk, of the draft model or of the model, of the prompts of the rows that have one. */
tg_status tg_generate_prompts(tg_generator *g);
/* Continues all samples that have a row, by one token or, with a draft model, by several. */
tg_status tg_generate_continue(tg_generator *g);
/* Proposes tokens for rows[n] with the draft model. */
tg_status tg_generate_propose(tg_generator *g, tg_row *const *rows, int64_t n);
/* Draws the next token of a row from logits number i of the forward, and settles the row (tg_generate_settle). */
tg_status tg_generate_draw(tg_generator *g, tg_row *r, int64_t i);
/* Releases the row if its sample has ended, and slides it if its positions are used up. */
void tg_generate_settle(tg_generator *g, tg_row *r);

#endif
