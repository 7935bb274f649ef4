/* Generation: sampling functions, and a generator that continues prompts with a language model (lm.h). Include it to
 * write a program that generates text. docs/generation.md is the guide.
 *
 *     tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 2));
 *     tg_prompt prompts[2] = {{ids, n}, {other_ids, m}};
 *     tg_generator_run(g, prompts, 2, TG_GENERATE(.tokens = 100, .sampling = TG_SAMPLING(.top_p = 0.9, .seed = 7)));
 *     const tg_generated *first = tg_generator_result(g, 0, 0);   // first->ids[first->count]
 *     tg_generator_free(g);
 *
 * What a prompt gives depends on the model, the prompt, the options, the number of the prompt and that of the sample.
 * It does not depend on the other prompts of a call, nor on how many are computed at the same time, as long as a
 * forward has at most 12 tokens of sequences that are being continued (tg_generator_opts.rows). With more, or if the
 * key-value cache is used again, logits may differ in rounding. */
#ifndef TAPEGRAD_GENERATE_H
#define TAPEGRAD_GENERATE_H

#include <tapegrad/lm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Sampling ---- */

/* How a token is drawn. First the penalties change the logits, then the temperature divides them, and then top_k, top_p
 * and min_p, in this order, remove tokens. */
typedef struct tg_sampling_opts {
    size_t size;
    /* Divides the logits; finite and 0 or more. 1 by default. 0 means that the likeliest token is taken, and of several
     * equal ones the one with the least id. */
    double temperature;
    /* Only the top_k likeliest tokens are kept. Of equally likely tokens, those with lesser ids count as likelier. 0,
     * the default, or a number above the vocabulary's size: all. */
    int64_t top_k;
    /* Only the fewest of the likeliest tokens whose probabilities sum to top_p or more are kept (nucleus sampling,
     * Holtzman et al., arXiv 1904.09751). In (0, 1]; 1, the default: all. */
    double top_p;
    /* Only tokens with at least min_p times the probability of the likeliest one are kept (Nguyen et al., arXiv
     * 2407.01082). In [0, 1]; 0, the default: all. */
    double min_p;
    /* Logits of tokens that the prompt or the continuation has are divided by this number if they are positive, and
     * multiplied by it if not (Keskar et al., arXiv 1909.05858). Above 0; 1, the default: no change. */
    double repetition_penalty;
    /* presence_penalty is subtracted from the logit of each token that the continuation has, and frequency_penalty as
     * often as it has the token. The prompt does not count. Finite; 0, the default: no change. */
    double presence_penalty, frequency_penalty;
    uint64_t seed; /* of the draws; 0 by default */
} tg_sampling_opts;

#define TG_SAMPLING_DEFAULTS \
    .size = sizeof(tg_sampling_opts), .temperature = 1, .top_p = 1, .repetition_penalty = 1
#define TG_SAMPLING(...) (&(tg_sampling_opts){TG_SAMPLING_DEFAULTS, __VA_ARGS__})

/* Computes p[vocab], the probabilities from which the token after ids[count] is drawn, from the model's logits[vocab].
 * The first `prompt` ids are the prompt, and the others the continuation. ids may be NULL if count is 0. p may be
 * logits. opts may be NULL. The sum of p is 1 within rounding. Fails with TG_ERR_DATA if a logit is not finite or an
 * id is outside [0, vocab); then p is undefined. */
TG_API tg_status tg_sampling_probabilities(tg_ctx *ctx, const double *logits, int64_t vocab, const int64_t *ids,
                                           int64_t count, int64_t prompt, const tg_sampling_opts *opts, double *p);
/* Draws a token: returns the least id for which the sum of p[0] to p[id] exceeds u times the sum of all `vocab`
 * elements of p; u is in [0, 1). Returns an id whose p is above 0, and -1 if there is none. */
TG_API int64_t tg_sampling_pick(const double *p, int64_t vocab, double u);
/* Returns the u in [0, 1) with which token `index` of sample `sample` of prompt `prompt` is drawn. It depends on
 * nothing else. All three numbers count from 0. */
TG_API double tg_sampling_uniform(uint64_t seed, int64_t prompt, int64_t sample, int64_t index);

/* ---- The generator ---- */

/* A generator has a language model and the key-value caches of its rows. It keeps the caches between calls of
 * tg_generator_run: a prompt that begins like a sequence that is still in a cache, such as the next turn of a
 * conversation, is computed only from the first token on that differs. */
typedef struct tg_generator tg_generator;

typedef struct tg_generator_opts {
    size_t size;
    /* Number of samples that are computed at the same time, 1 to 2^20; 1 by default. The others wait. */
    int64_t rows;
    /* Most tokens of a sequence in the cache, 2 to the model's positions: the prompt, and all generated tokens but the
     * last. TG_AUTO, the default, means the model's positions. The caches take rows * positions times the bytes of one
     * position. */
    int64_t positions;
    /* Most tokens of prompts in one forward, 1 to 2^20; 512 by default. */
    int64_t chunk;
    /* A smaller model that proposes tokens. The large model checks several of them in one forward (Leviathan et al.,
     * arXiv 2211.17192). The probabilities of what is generated are those of the large model alone; with temperature 0
     * the tokens are the same. draft must have the vocabulary and the context of the large model, and must outlive the
     * generator. NULL, the default: none. */
    tg_module *draft;
    /* Most tokens that it proposes at a time, 1 to 11; 4 by default. Without draft it must keep the default. */
    int64_t draft_tokens;
} tg_generator_opts;

#define TG_GENERATOR_DEFAULTS \
    .size = sizeof(tg_generator_opts), .rows = 1, .positions = TG_AUTO, .chunk = 512, .draft_tokens = 4
#define TG_GENERATOR(...) (&(tg_generator_opts){TG_GENERATOR_DEFAULTS, __VA_ARGS__})

/* Creates a generator. lm is a whole language model (tg_lm_new, tg_gpt_load, ...), which must outlive it. With
 * tensor-parallel ranks every rank makes the same calls and gets the same tokens. opts may be NULL. Returns NULL on an
 * error, also if tg_gpt_cache_new (gpt.h) fails for the model. */
TG_API tg_generator *tg_generator_new(tg_module *lm, const tg_generator_opts *opts);
TG_API void tg_generator_free(tg_generator *g); /* g may be NULL */

/* ---- A call ---- */

/* A prompt: count >= 1 ids, each in [0, vocab). */
typedef struct tg_prompt {
    const int64_t *ids;
    int64_t count;
} tg_prompt;

/* Why a sample ended. */
typedef enum tg_finish {
    TG_FINISH_NONE,      /* it has not ended */
    TG_FINISH_LENGTH,    /* it has opts.tokens tokens */
    TG_FINISH_POSITIONS, /* the positions are used up */
    TG_FINISH_STOP_ID,   /* the last token is one of opts.stop_ids */
    TG_FINISH_STOP_TEXT, /* its text had one of opts.stop */
    TG_FINISH_CALLER,    /* opts.on_token ended it */
} tg_finish;

/* A token that was generated, for on_token. Valid during the callback. */
typedef struct tg_token {
    int64_t prompt, sample, index; /* number of the prompt, of its sample, and of the token in the sample, from 0 */
    int64_t id;
    /* Log-probability by the model alone, before penalties, temperature and the removal of tokens. NaN unless
     * opts.logprobs is set. */
    double logprob;
    int64_t n_top;             /* opts.top_logprobs */
    const int64_t *top_id;     /* [n_top]: the likeliest tokens by the model alone, likeliest first */
    const double *top_logprob; /* [n_top]: their log-probabilities */
    /* The text that became certain with this token: whole characters of UTF-8, without what may be the beginning of a
     * stop string. The rest comes with a later token, or with the last one. n_text is 0 without opts.tokenizer. */
    const char *text;
    size_t n_text;
    tg_finish finish; /* of the last token of a sample: why it ended; otherwise TG_FINISH_NONE */
} tg_token;

/* What on_token returns. */
typedef enum tg_generate_next {
    TG_GENERATE_CONTINUE,
    TG_GENERATE_END_SAMPLE, /* this token was the last one of the sample */
    TG_GENERATE_END,        /* ends all samples */
} tg_generate_next;

typedef struct tg_tokenizer tg_tokenizer;

/* Options of one call. */
typedef struct tg_generate_opts {
    size_t size;
    int64_t tokens;  /* most tokens that are added to a prompt, 1 or more; 256 by default */
    /* Number of continuations of each prompt, 1 to 1000000; 1 by default. The prompt is computed once. */
    int64_t samples;
    const tg_sampling_opts *sampling; /* NULL, the default: the defaults of the struct */
    const int64_t *stop_ids;          /* ids that end a sample, such as that of the end of a text; NULL: none */
    int64_t n_stop_ids;
    /* Strings that end a sample, in UTF-8, not empty. The sample's text ends before the string. They need `tokenizer`.
     * NULL, the default: none. */
    const char *const *stop;
    int64_t n_stop;
    /* Makes the samples' text (tokenizer.h), without special tokens. NULL, the default: samples have no text. */
    const tg_tokenizer *tokenizer;
    bool logprobs;        /* compute the log-probability of each token; false by default */
    int64_t top_logprobs; /* and of the likeliest tokens, 0 to 1000 of them; 0 by default. Above 0 needs logprobs */
    /* When the positions are used up, the newest half of the tokens is computed again as a new sequence, and the sample
     * goes on. Of a prompt with more tokens than positions the model reads only the newest ones. false, the default:
     * the sample ends with TG_FINISH_POSITIONS, and a prompt with more tokens than positions fails with
     * TG_ERR_SHAPE. */
    bool slide;
    /* Called for each token, in the order of each sample; tokens of several samples alternate. NULL, the default: none.
     * Must not use the context or the generator, but may call tg_generator_result and tg_generator_release for samples
     * that have ended. */
    tg_generate_next (*on_token)(void *state, const tg_token *token);
    void *state; /* for on_token */
} tg_generate_opts;

#define TG_GENERATE_DEFAULTS .size = sizeof(tg_generate_opts), .tokens = 256, .samples = 1
#define TG_GENERATE(...) (&(tg_generate_opts){TG_GENERATE_DEFAULTS, __VA_ARGS__})

/* Continues n >= 1 prompts. opts may be NULL. Returns when all samples have ended. After an error the results have the
 * tokens that were generated before it. */
TG_API tg_status tg_generator_run(tg_generator *g, const tg_prompt *prompts, int64_t n, const tg_generate_opts *opts);

/* One continuation. The arrays belong to the generator and are valid until its next call of tg_generator_run. */
typedef struct tg_generated {
    int64_t count;         /* number of tokens, without the prompt and with the one of TG_FINISH_STOP_ID */
    const int64_t *ids;    /* [count] */
    const double *logprob; /* [count]; NULL without logprobs */
    int64_t n_top;
    const int64_t *top_id; /* [count][n_top] */
    const double *top_logprob;
    const char *text; /* n_text bytes and a 0, without the stop string; NULL without `tokenizer` */
    size_t n_text;
    tg_finish finish;
} tg_generated;

/* Returns sample `sample` of prompt `prompt` of the last call; NULL if there is none. While the call runs, a sample
 * that has not ended may be incomplete. */
TG_API const tg_generated *tg_generator_result(const tg_generator *g, int64_t prompt, int64_t sample);
/* Frees the arrays of a sample that has ended, so that a call with many samples needs memory for few of them. From then
 * on tg_generator_result returns NULL for it. In on_token the arrays of the sample's last tg_token are freed too. Does
 * nothing for a sample that has not ended, or that does not exist. g may be NULL. */
TG_API void tg_generator_release(tg_generator *g, int64_t prompt, int64_t sample);

/* What the last call of tg_generator_run did. */
typedef struct tg_generate_stats {
    size_t size;
    int64_t prompt_tokens, cached_tokens; /* of all prompts, each counted once; those of them that were in a cache */
    int64_t tokens, forwards;             /* tokens generated; forwards that computed them, without those of prompts */
    int64_t drafted, accepted;            /* tokens that the draft model proposed; those that were taken */
    double prompt_seconds, seconds;       /* of the forwards of prompts; of the whole call */
} tg_generate_stats;

/* Fills *s. Set s->size to sizeof *s first. */
TG_API tg_status tg_generator_stats(const tg_generator *g, tg_generate_stats *s);

#ifdef __cplusplus
}
#endif

#endif
