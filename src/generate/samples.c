/* The samples of a call: their tokens, log-probabilities and ends. */
#include <math.h>

#include "base/memory/host_memory.h"
#include "generate/generator.h"

/* ---- Memory ---- */

/* Returns the bytes of a sample's block, whose arrays all have elements of 8 bytes. */
static size_t block_bytes(const tg_generator *g, int64_t given, int64_t room) {
    return (size_t)(given + room * (1 + g->call.logprobs + 2 * g->call.top_logprobs)) * sizeof(int64_t);
}

/* Moves an array of `size` elements to the block at *to, and sets *to to the end of the `room` elements there. */
static void *move(char **to, const void *x, int64_t size, int64_t room) {
    char *y = *to;
    if (size) memcpy(y, x, (size_t)size * sizeof(int64_t));
    *to += (size_t)room * sizeof(int64_t);
    return y;
}

static tg_status set_room(tg_generator *g, tg_sample *s, int64_t room) {
    int64_t top = g->call.top_logprobs, old = s->room;
    char *block = tg_host_alloc(g->ctx, block_bytes(g, s->given, room)), *at = block;
    if (!block) return g->ctx->run.status;
    s->ids = move(&at, s->ids, s->block ? s->given + old : 0, s->given + room);
    if (g->call.logprobs) s->logprob = move(&at, s->logprob, old, room);
    if (top) s->top_id = move(&at, s->top_id, old * top, room * top);
    if (top) s->top_logprob = move(&at, s->top_logprob, old * top, room * top);
    if (s->block) tg_host_free(g->ctx, s->block, block_bytes(g, s->given, old));
    s->block = block;
    s->room = room;
    return TG_OK;
}

tg_status tg_sample_reserve(tg_generator *g, tg_sample *s, int64_t n) {
    int64_t needed = s->count - s->given + n;
    if (needed <= s->room) return TG_OK;
    return set_room(g, s, 2 * s->room > needed ? 2 * s->room : needed);
}

tg_status tg_sample_start(tg_generator *g, tg_sample *s) {
    enum { FIRST_ROOM = 64 };
    TG_TRY(set_room(g, s, g->call.tokens < FIRST_ROOM ? g->call.tokens : FIRST_ROOM));
    memcpy(s->ids, g->prompts[s->prompt].ids, (size_t)s->given * sizeof *s->ids);
    return g->call.tokenizer ? tg_sample_text_open(g, s) : TG_OK;
}

/* Frees the memory of a sample's arrays and of its text. */
static void close_sample(tg_generator *g, tg_sample *s) {
    tg_sample_text_close(g, s);
    if (s->block) tg_host_free(g->ctx, s->block, block_bytes(g, s->given, s->room));
    s->block = NULL;
}

void tg_generator_release(tg_generator *g, int64_t prompt, int64_t sample) {
    if (!tg_generator_result(g, prompt, sample)) return;
    tg_sample *s = &g->sample[prompt * g->call.samples + sample];
    if (s->finish == TG_FINISH_NONE) return;
    close_sample(g, s);
    s->released = true;
}

tg_status tg_samples_open(tg_generator *g, const tg_prompt *prompts, int64_t n) {
    int64_t all = n * g->call.samples;
    g->sample = tg_host_alloc(g->ctx, (size_t)all * sizeof *g->sample);
    if (!g->sample) return g->ctx->run.status;
    g->n_samples = all;
    g->prompts = prompts;
    for (int64_t i = 0; i < all; i++) {
        tg_sample *s = &g->sample[i];
        s->prompt = i / g->call.samples;
        s->number = i % g->call.samples;
        s->given = s->count = prompts[s->prompt].count;
        if (s->given > g->o.positions) s->first = s->given - g->o.positions;
    }
    return TG_OK;
}

void tg_samples_close(tg_generator *g) {
    for (int64_t i = 0; i < g->n_samples; i++) close_sample(g, &g->sample[i]);
    if (g->sample) tg_host_free(g->ctx, g->sample, (size_t)g->n_samples * sizeof *g->sample);
    g->sample = NULL;
    g->n_samples = 0;
}

/* ---- Tokens ---- */

/* Computes the log-probabilities of token `index`, whose id is the sample's last one. */
static void note(tg_generator *g, tg_sample *s, int64_t index) {
    int64_t n = g->call.top_logprobs;
    tg_candidate top[1000];
    double all = tg_log_sum_exp(g->raw, g->vocab);
    s->logprob[index] = g->raw[s->ids[s->count - 1]] - all;
    tg_select_likeliest(g->raw, g->vocab, n, top);
    for (int64_t i = 0; i < n; i++) {
        s->top_id[index * n + i] = top[i].id;
        s->top_logprob[index * n + i] = top[i].weight - all;
    }
}

static bool is_stop(const tg_generator *g, int64_t id) {
    for (int64_t i = 0; i < g->call.n_stop_ids; i++)
        if (g->call.stop_ids[i] == id) return true;
    return false;
}

/* Returns why a sample ends with its last token, apart from its text. */
static tg_finish finish_of(const tg_generator *g, const tg_sample *s) {
    if (is_stop(g, s->ids[s->count - 1])) return TG_FINISH_STOP_ID;
    if (s->count - s->given == g->call.tokens) return TG_FINISH_LENGTH;
    if (s->count - s->first > g->o.positions && !g->call.slide) return TG_FINISH_POSITIONS;
    return TG_FINISH_NONE;
}

/* Adds the text of the newest token, unless that is a stop id, and the rest of the text if the token ends the sample. A
 * stop string ends the sample too. */
static void add_text(tg_generator *g, tg_sample *s) {
    tg_finish finish = s->finish;
    s->finish = TG_FINISH_NONE;
    if (finish != TG_FINISH_STOP_ID) tg_sample_text_add(g, s, s->ids[s->count - 1]);
    if (finish != TG_FINISH_NONE && s->finish == TG_FINISH_NONE) tg_sample_text_add(g, s, -1);
    if (s->finish == TG_FINISH_NONE) s->finish = finish;
}

/* Calls on_token for the last token of s. */
static void show(tg_generator *g, tg_sample *s) {
    int64_t index = s->count - s->given - 1, n = g->call.top_logprobs;
    size_t certain = s->finish != TG_FINISH_NONE ? s->text.n : tg_sample_text_certain(g, s);
    tg_token t = {.prompt = s->prompt, .sample = s->number, .index = index, .id = s->ids[s->count - 1],
                  .logprob = s->logprob ? s->logprob[index] : NAN, .n_top = n,
                  .top_id = n ? s->top_id + index * n : NULL, .top_logprob = n ? s->top_logprob + index * n : NULL,
                  .text = s->text.bytes ? s->text.bytes + s->shown : "", .finish = s->finish};
    t.n_text = certain > s->shown ? certain - s->shown : 0;
    s->shown += t.n_text;
    tg_generate_next next = g->call.on_token(g->call.state, &t);
    if (next != TG_GENERATE_CONTINUE && s->finish == TG_FINISH_NONE) s->finish = TG_FINISH_CALLER;
    if (next == TG_GENERATE_END) g->ended = true;
}

/* Fills in the result of a sample. A sample that has not started has no arrays. */
static void give(const tg_generator *g, tg_sample *s) {
    const char *text = s->text.bytes ? s->text.bytes : g->call.tokenizer ? "" : NULL;
    s->result = (tg_generated){.count = s->count - s->given, .ids = s->ids ? s->ids + s->given : NULL,
                               .logprob = s->logprob, .n_top = g->call.top_logprobs, .top_id = s->top_id,
                               .top_logprob = s->top_logprob, .text = text, .n_text = s->text.n,
                               .finish = s->finish};
}

static void end_sample(const tg_generator *g, tg_sample *s) {
    tg_decoder_free(s->decoder);
    s->decoder = NULL;
    give(g, s);
}

/* Ends a sample that on_token has ended after its last token. A stop string in the rest of the text changes its
 * finish, as at any other end. */
static void end_by_caller(tg_generator *g, tg_sample *s) {
    s->finish = TG_FINISH_CALLER;
    if (s->decoder) tg_sample_text_add(g, s, -1);
    end_sample(g, s);
}

void tg_sample_add(tg_generator *g, tg_sample *s, int64_t id) {
    s->ids[s->count++] = id;
    g->stats.tokens++;
    s->finish = finish_of(g, s);
    if (g->call.logprobs) note(g, s, s->count - s->given - 1);
    if (s->decoder) add_text(g, s);
    bool goes_on = s->finish == TG_FINISH_NONE;
    if (!goes_on) end_sample(g, s);
    if (g->call.on_token) show(g, s);
    if (goes_on && s->finish != TG_FINISH_NONE) end_by_caller(g, s);
}

tg_status tg_samples_finish(tg_generator *g) {
    for (int64_t i = 0; i < g->n_samples; i++) {
        tg_sample *s = &g->sample[i];
        if (s->finish == TG_FINISH_NONE && g->ended) end_by_caller(g, s);
        if (!s->released) give(g, s);
    }
    return g->ctx->run.status;
}
