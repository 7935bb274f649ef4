/* The text of a sample: what the decoder makes of its tokens, up to the first stop string. */
#include "base/memory/host_memory.h"
#include "generate/generator.h"
#include "text/tokenizer.h"

/* ---- Memory ---- */

static tg_status reserve(tg_generator *g, tg_growing_text *t, size_t n) {
    size_t capacity = t->capacity ? t->capacity : 256;
    while (capacity < t->n + n) capacity *= 2;
    if (t->bytes && capacity == t->capacity) return TG_OK;
    char *bytes = tg_host_alloc(g->ctx, capacity + 1);
    if (!bytes) return g->ctx->run.status;
    if (t->bytes) memcpy(bytes, t->bytes, t->n);
    if (t->bytes) tg_host_free(g->ctx, t->bytes, t->capacity + 1);
    t->bytes = bytes;
    t->capacity = capacity;
    return TG_OK;
}

/* tg_decoder_push and tg_decoder_finish record no error. */
static tg_status no_memory(tg_generator *g) {
    return tg_fail(g->ctx, TG_ERR_MEMORY, "tg_generator_run: no memory for the text of a sample");
}

tg_status tg_sample_text_check(const tg_generator *g, const tg_tokenizer *k) {
    if (!k || tg_ok(k->ctx)) return TG_OK;
    return tg_fail(g->ctx, tg_ctx_status(k->ctx),
                   "tg_generator_run: the context of opts.tokenizer has an error; call tg_ctx_clear for it. The error "
                   "is: %s",
                   tg_ctx_message(k->ctx));
}

/* The decoder also sees the prompt, because some tokenizers write the first token of a text in another way. */
tg_status tg_sample_text_open(tg_generator *g, tg_sample *s) {
    TG_TRY(reserve(g, &s->text, 0));
    s->decoder = tg_decoder_new(g->call.tokenizer, true);
    TG_TRY(tg_sample_text_check(g, g->call.tokenizer)); /* without a decoder that context has an error */
    bool good = true;
    for (int64_t i = 0; i < s->given && good; i++) good = tg_decoder_push(s->decoder, s->ids[i], NULL);
    return good ? g->ctx->run.status : no_memory(g);
}

void tg_sample_text_close(tg_generator *g, tg_sample *s) {
    tg_decoder_free(s->decoder);
    if (s->text.bytes) tg_host_free(g->ctx, s->text.bytes, s->text.capacity + 1);
    s->decoder = NULL;
    s->text = (tg_growing_text){0};
}

/* ---- Stop strings ---- */

/* Ends the text before the first stop string that begins at `from` or later. Returns whether there is one. */
static bool cut(const tg_generator *g, tg_growing_text *t, size_t from) {
    for (size_t at = from; at < t->n; at++)
        for (int64_t i = 0; i < g->call.n_stop; i++) {
            size_t n = strlen(g->call.stop[i]);
            if (n > t->n - at || memcmp(t->bytes + at, g->call.stop[i], n)) continue;
            t->n = at;
            t->bytes[at] = 0;
            return true;
        }
    return false;
}

tg_status tg_sample_text_add(tg_generator *g, tg_sample *s, int64_t id) {
    size_t n = 0, old = s->text.n;
    const char *text = id < 0 ? tg_decoder_finish(s->decoder, &n) : tg_decoder_push(s->decoder, id, &n);
    if (!text) return no_memory(g);
    TG_TRY(reserve(g, &s->text, n));
    memcpy(s->text.bytes + old, text, n);
    s->text.n += n;
    s->text.bytes[s->text.n] = 0;
    size_t back = g->longest_stop > 0 ? g->longest_stop - 1 : 0;
    if (n && g->call.n_stop && cut(g, &s->text, old > back ? old - back : 0)) s->finish = TG_FINISH_STOP_TEXT;
    return TG_OK;
}

/* Returns whether the text from `at` on is the beginning of a stop string. */
static bool may_stop(const tg_generator *g, const tg_growing_text *t, size_t at) {
    for (int64_t i = 0; i < g->call.n_stop; i++)
        if (t->n - at < strlen(g->call.stop[i]) && !memcmp(t->bytes + at, g->call.stop[i], t->n - at)) return true;
    return false;
}

/* A stop string is whole characters, so the text is cut between characters. */
size_t tg_sample_text_certain(const tg_generator *g, const tg_sample *s) {
    size_t n = s->text.n, back = g->longest_stop > 0 ? g->longest_stop - 1 : 0;
    for (size_t at = n > back ? n - back : 0; at < n; at++)
        if (may_stop(g, &s->text, at)) return at;
    return n;
}
