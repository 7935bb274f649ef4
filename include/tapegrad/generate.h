/* Generation: sampling functions, and a generator that continues prompts with a language model (lm.h). Include it to
 * write a program that generates text. docs/generation.md is the guide.
 *
 *     tg_generator *g = tg_generator_new(lm, TG_GENERATOR(.rows = 2));
 *     tg_prompt prompts[2] = {{ids, n}, {other_ids, m}};
 *     tg_generator_run(g, prompts, 2, TG_GENERATE(.tokens = 100, .sampling = TG_SAMPLING(.top_p = 0.9, .seed = 7)));
 *     const tg_generated *first = tg_generator_result(g, 0, 0);   // first->ids[first->count]
 *     tg_generator_free(g);
 *
 * The tokens that a prompt gives depend on the model, the prompt, the options, the number of the prompt in the call,
 * and the number of the sample. On the CPU they do not depend on the other prompts of the call, nor on how many samples
 * are computed at the same time, if tg_generator_opts.rows is at most 12. With more rows, on another device, or if a
 * call uses tokens that an earlier call has left in the key-value cache, logits may differ in rounding, and so may the
 * tokens. */
#ifndef TAPEGRAD_GENERATE_H
#define TAPEGRAD_GENERATE_H

#include <tapegrad/lm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Sampling ---- */

/* How a token is drawn. First the penalties change the logits, then the temperature divides them, and then top_k, top_p
 * and min_p, in this order, remove tokens. A value out of range fails with TG_ERR_ARGUMENT. */
typedef struct tg_sampling_opts {
    size_t size;
    /* Divides the logits; finite and 0 or more. 1 by default. 0 means that the likeliest token is taken; of several
     * equally likely ones, that with the least id. */
    double temperature;
    /* Only the top_k likeliest tokens are kept. Of equally likely tokens, those with lesser ids count as likelier. 0,
     * the default, or a number above the vocabulary's size keeps all. */
    int64_t top_k;
    /* Only the likeliest tokens are kept: as few as have probabilities that sum to top_p or more, where the
     * probabilities of the tokens that top_k keeps sum to 1 (nucleus sampling, Holtzman et al., arXiv 1904.09751). In
     * (0, 1]; 1, the default, keeps all. */
    double top_p;
    /* Only tokens with at least min_p times the probability of the likeliest one are kept (Nguyen et al., arXiv
     * 2407.01082). In [0, 1]; 0, the default, keeps all. */
    double min_p;
    /* Changes the logits of the tokens that the prompt or the continuation has: a logit above 0 is divided by this
     * number, and any other is multiplied by it (Keskar et al., arXiv 1909.05858). Finite and above 0; 1, the default,
     * changes nothing. */
    double repetition_penalty;
    /* presence_penalty is subtracted once from the logit of each token that the continuation has. frequency_penalty is
     * subtracted once for each time that the continuation has the token. The prompt does not count. Finite, and may be
     * negative; 0, the default, changes nothing. */
    double presence_penalty, frequency_penalty;
    uint64_t seed; /* of the draws; 0 by default */
} tg_sampling_opts;

#define TG_SAMPLING_DEFAULTS \
    .size = sizeof(tg_sampling_opts), .temperature = 1, .top_p = 1, .repetition_penalty = 1
#define TG_SAMPLING(...) (&(tg_sampling_opts){TG_SAMPLING_DEFAULTS, __VA_ARGS__})

/* Computes p[vocab], the probabilities from which the token after ids[count] is drawn, from the model's logits[vocab].
 * The first `prompt` ids are the prompt, and the others the continuation; prompt is 0 to count. ids may be NULL if
 * count is 0. p and logits may be the same array. opts may be NULL; its seed is not used. The sum of p is 1 within
 * rounding. Fails with TG_ERR_DATA if a logit is not finite or an id is outside [0, vocab). Errors leave p as it is. */
TG_API tg_status tg_sampling_probabilities(tg_ctx *ctx, const double *logits, int64_t vocab, const int64_t *ids,
                                           int64_t count, int64_t prompt, const tg_sampling_opts *opts, double *p);
/* Draws a token: returns the least id for which the sum of p[0] to p[id] exceeds u times the sum of all `vocab`
 * elements of p. The elements are 0 or more, and u is in [0, 1). p[id] is then above 0. Returns -1 if no element of p
 * is above 0. */
TG_API int64_t tg_sampling_pick(const double *p, int64_t vocab, double u);
/* Returns the u in [0, 1) with which tg_generator_run, without a draft model, draws token `index` of sample `sample` of
 * prompt `prompt`. All three numbers count from 0. The result depends on the arguments alone. */
TG_API double tg_sampling_uniform(uint64_t seed, int64_t prompt, int64_t sample, int64_t index);

/* ---- The generator ---- */

/* A generator has a language model and a key-value cache for each of its rows. A row computes one sample at a time. The
 * caches are kept between calls of tg_generator_run. If a prompt begins like a sequence that is still in a cache, such
 * as the next turn of a conversation, only the tokens after the common beginning are computed. */
typedef struct tg_generator tg_generator;

typedef struct tg_generator_opts {
    size_t size;
    /* Most samples that are computed at the same time, 1 to 2^20; 1 by default. The others wait. */
    int64_t rows;
    /* Most tokens of a sequence in the cache, from 2 to the model's positions. All tokens of the prompt and of the
     * continuation count, except the last one. TG_AUTO, the default, means the model's positions. The caches take rows
     * times positions times the bytes of one position. */
    int64_t positions;
    /* Most tokens of prompts in one forward, 1 to 2^20; 512 by default. */
    int64_t chunk;
    /* A smaller model that proposes tokens. The large model checks several of them in one forward (Leviathan et al.,
     * arXiv 2211.17192). The probabilities of what is generated are those of the large model alone; with temperature 0
     * the tokens are the same as without draft, apart from rounding (see above). draft must have as many ids as the
     * large model, and the same tg_ctx (TG_ERR_ARGUMENT). The ids must have the same meaning in both. draft may have
     * fewer positions; after them no tokens are proposed. It must outlive the generator. NULL, the default, means no
     * draft model. */
    tg_module *draft;
    /* Most tokens that the draft model proposes at a time, 1 to 11; 4 by default. Without a draft model draft_tokens
     * must keep its default (TG_ERR_ARGUMENT). */
    int64_t draft_tokens;
} tg_generator_opts;

#define TG_GENERATOR_DEFAULTS \
    .size = sizeof(tg_generator_opts), .rows = 1, .positions = TG_AUTO, .chunk = 512, .draft_tokens = 4
#define TG_GENERATOR(...) (&(tg_generator_opts){TG_GENERATOR_DEFAULTS, __VA_ARGS__})

/* Creates a generator. lm is a whole language model (tg_lm_new, tg_gpt_load, ...), which must outlive the generator.
 * With tensor-parallel ranks, every rank makes the same calls and gets the same tokens. opts may be NULL. Returns NULL
 * on an error, for example if tg_gpt_cache_new (gpt.h) refuses the model, or if lm is NULL. */
TG_API tg_generator *tg_generator_new(tg_module *lm, const tg_generator_opts *opts);
/* Frees the generator. Call it before the context is freed. While a call of tg_generator_run is running, for example in
 * on_token, it fails with TG_ERR_STATE and frees nothing. g may be NULL. */
TG_API void tg_generator_free(tg_generator *g);

/* ---- A call ---- */

/* A prompt: count >= 1 ids (TG_ERR_ARGUMENT), each in [0, vocab) (TG_ERR_DATA). The ids must stay valid until
 * tg_generator_run returns. */
typedef struct tg_prompt {
    const int64_t *ids;
    int64_t count;
} tg_prompt;

/* Why a sample ended. */
typedef enum tg_finish {
    TG_FINISH_NONE,      /* the sample has not ended */
    TG_FINISH_LENGTH,    /* it has opts.tokens tokens */
    TG_FINISH_POSITIONS, /* the generator's positions are used up */
    TG_FINISH_STOP_ID,   /* the last token is one of opts.stop_ids */
    TG_FINISH_STOP_TEXT, /* one of opts.stop was in its text */
    TG_FINISH_CALLER,    /* opts.on_token ended it, or all samples */
} tg_finish;

/* A token that was generated, for on_token. The struct and its arrays are valid during the callback. */
typedef struct tg_token {
    int64_t prompt, sample, index; /* number of the prompt, of the sample, and of the token in the sample, from 0 */
    int64_t id;
    /* Log-probability by the model alone, before penalties, temperature and the removal of tokens. NaN unless
     * opts.logprobs is set. */
    double logprob;
    int64_t n_top;             /* opts.top_logprobs; if it is 0, the next two are NULL */
    const int64_t *top_id;     /* [n_top]: the likeliest tokens by the model alone, likeliest first */
    const double *top_logprob; /* [n_top]: their log-probabilities */
    /* n_text bytes, without a terminating 0: the text that became certain with this token. These are whole characters
     * of UTF-8, without what may be the beginning of a stop string; that comes with a later token. n_text is 0 without
     * opts.tokenizer. */
    const char *text;
    size_t n_text;
    tg_finish finish; /* why the sample ended with this token; TG_FINISH_NONE if it goes on */
} tg_token;

/* What on_token returns. */
typedef enum tg_generate_next {
    TG_GENERATE_CONTINUE,
    TG_GENERATE_END_SAMPLE, /* end this sample with this token */
    TG_GENERATE_END,        /* end all samples; those that wait get no token */
} tg_generate_next;

typedef struct tg_tokenizer tg_tokenizer;

/* Options of one call. What their pointers point to must stay valid during the call. */
typedef struct tg_generate_opts {
    size_t size;
    int64_t tokens; /* most tokens that are added to a prompt, 1 or more; 256 by default */
    /* Number of continuations of each prompt, 1 to 1000000; 1 by default. The prompt is computed once. */
    int64_t samples;
    const tg_sampling_opts *sampling; /* NULL, the default, means the defaults of that struct */
    const int64_t *stop_ids; /* [n_stop_ids]: ids that end a sample, such as that of the end of text; none by default */
    int64_t n_stop_ids;
    /* [n_stop]: strings that end a sample, in UTF-8 and not empty (TG_ERR_ARGUMENT). They are sought in the text of the
     * sample, which then ends before the string. They need `tokenizer` (TG_ERR_ARGUMENT). None by default. */
    const char *const *stop;
    int64_t n_stop;
    /* Makes the samples' text (tokenizer.h), without special tokens. NULL, the default, means that samples have no
     * text. It may be of another context than the generator. If that context has an error, the call fails with it. */
    const tg_tokenizer *tokenizer;
    bool logprobs; /* compute the log-probability of each token; false by default */
    /* For each token, also compute the log-probabilities of this number of likeliest tokens, 0 to 1000 and at most the
     * vocabulary's size; 0 by default. A number above 0 needs `logprobs` (TG_ERR_ARGUMENT). */
    int64_t top_logprobs;
    /* true: when the positions are used up, the newest tokens, half as many as there are positions (rounded up), are
     * computed again as a new sequence, and the sample goes on. Of a prompt with more tokens than positions, the model
     * reads only as many of the newest tokens as there are positions. false, the default: the sample ends with
     * TG_FINISH_POSITIONS, and a prompt with more tokens than positions fails with TG_ERR_SHAPE. */
    bool slide;
    /* Called for each token, on the thread that called tg_generator_run. The tokens of a sample come in order; those of
     * several samples alternate. Must not use the context or the generator, but may call tg_generator_result and
     * tg_generator_release for samples that have ended. tg_generator_run for this generator fails with TG_ERR_STATE.
     * NULL, the default, means no callback. */
    tg_generate_next (*on_token)(void *state, const tg_token *token);
    void *state; /* first argument of on_token */
} tg_generate_opts;

#define TG_GENERATE_DEFAULTS .size = sizeof(tg_generate_opts), .tokens = 256, .samples = 1
#define TG_GENERATE(...) (&(tg_generate_opts){TG_GENERATE_DEFAULTS, __VA_ARGS__})

/* Continues n >= 1 prompts. opts may be NULL. Returns when all samples have ended. If an argument is refused, the
 * results of the last call stay. After any other error the results have the tokens that were generated before it. */
TG_API tg_status tg_generator_run(tg_generator *g, const tg_prompt *prompts, int64_t n, const tg_generate_opts *opts);

/* One continuation. It belongs to the generator, and is valid until the next call of tg_generator_run, or until
 * tg_generator_release or tg_generator_free frees it. */
typedef struct tg_generated {
    int64_t count;         /* number of tokens, without the prompt; the token of TG_FINISH_STOP_ID is counted */
    const int64_t *ids;    /* [count]; may be NULL if count is 0 */
    const double *logprob; /* [count], as in tg_token; NULL without `logprobs` */
    int64_t n_top;         /* as in tg_token */
    const int64_t *top_id; /* [count][n_top], as in tg_token; NULL if n_top is 0 */
    const double *top_logprob;
    /* n_text bytes and a 0, without a stop string or a stop id; NULL without `tokenizer`. Bytes at the end that form no
     * character are U+FFFD. If on_token has ended the sample, it has not been given this U+FFFD, nor text at the end
     * that may be the beginning of a stop string. */
    const char *text;
    size_t n_text;
    tg_finish finish; /* TG_FINISH_NONE if an error ended the call first */
} tg_generated;

/* Returns sample `sample` of prompt `prompt` of the last call of tg_generator_run, both counted from 0; NULL if there
 * is none. While that call runs, the result of a sample that has not ended is empty. */
TG_API const tg_generated *tg_generator_result(const tg_generator *g, int64_t prompt, int64_t sample);
/* Frees the arrays of a sample that has ended, so that a call with many samples needs memory for few of them. From then
 * on tg_generator_result returns NULL for it. If on_token releases the sample whose token it has got, the arrays of
 * that tg_token are freed too. Does nothing for a sample that has not ended, or that does not exist. g may be NULL. */
TG_API void tg_generator_release(tg_generator *g, int64_t prompt, int64_t sample);

/* What the last call of tg_generator_run did; all 0 before the first call. */
typedef struct tg_generate_stats {
    size_t size;
    /* Tokens of all prompts, each prompt counted once; and how many of them were in a cache already. */
    int64_t prompt_tokens, cached_tokens;
    /* Tokens generated, of all samples; and forwards of the model that continued samples, without those of prompts. */
    int64_t tokens, forwards;
    int64_t drafted, accepted; /* tokens that the draft model proposed; and how many of them samples have got */
    double prompt_seconds, seconds; /* time of the forwards of prompts; and of the whole call */
} tg_generate_stats;

/* Fills *s. Set s->size to sizeof *s before the call. */
TG_API tg_status tg_generator_stats(const tg_generator *g, tg_generate_stats *s);

#ifdef __cplusplus
}
#endif

#endif
