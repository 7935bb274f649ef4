/* The training of a byte-level BPE: its interface, and the words of the texts. */
#include "text/train/train.h"

#include "base/options.h"
#include "base/text.h"
#include "text/unicode.h"

bool tg_next_special(const char **at, tg_span *token) {
    while (*at && **at == '\n') ++*at;
    if (!*at || !**at) return false;
    *token = (tg_span){*at, strcspn(*at, "\n")};
    *at += token->n;
    return true;
}

/* ---- Words ---- */

static bool grow_slots(tg_bpe *b) {
    uint64_t slots = b->mask ? 2 * (b->mask + 1) : 1 << 12;
    int64_t *made = calloc(slots, sizeof *made);
    if (!made) return false;
    for (int64_t w = 0; w < b->n_words; w++) {
        uint64_t i = tg_span_hash(b->texts.at + b->words[w].text, b->words[w].length) & (slots - 1);
        while (made[i]) i = (i + 1) & (slots - 1);
        made[i] = w + 1;
    }
    free(b->slots);
    b->slots = made;
    b->mask = slots - 1;
    return true;
}

/* Returns the slot of a word: the one that it has, or the empty one for it. */
static int64_t *slot_of(tg_bpe *b, tg_span word) {
    for (uint64_t i = tg_span_hash(word.at, word.n) & b->mask;; i = (i + 1) & b->mask) {
        const tg_counted_word *found = b->slots[i] ? b->words + b->slots[i] - 1 : NULL;
        if (!found || (found->length == word.n && !memcmp(b->texts.at + found->text, word.at, word.n)))
            return b->slots + i;
    }
}

static bool add_word(tg_bpe *b, tg_span word, int64_t *slot) {
    if (!tg_grown((void **)&b->words, &b->words_capacity, b->n_words + 1, sizeof *b->words)) return false;
    b->words[b->n_words] = (tg_counted_word){.text = b->texts.n, .count = 1, .length = (uint32_t)word.n};
    if (!tg_growing_add(&b->texts, word.at, word.n)) return false;
    *slot = ++b->n_words;
    return true;
}

static bool count_word(tg_encoder *e, tg_span word) {
    tg_bpe *b = e->user;
    if (word.n >= UINT32_MAX) return e->problem = "a word has 4 GiB or more", false;
    if ((!b->mask || 2 * (uint64_t)b->n_words >= b->mask) && !grow_slots(b)) return false;
    int64_t *slot = slot_of(b, word);
    if (!*slot) return add_word(b, word, slot);
    b->words[*slot - 1].count++;
    return true;
}

/* ---- The interface ---- */

static tg_status check_options(tg_ctx *ctx, const tg_bpe_opts *o) {
    if (o->vocab < 257 || o->vocab > INT32_MAX)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_bpe_new: vocab is %lld, expected 257 to %d", (long long)o->vocab,
                       INT32_MAX);
    if (o->min_frequency < 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_bpe_new: min_frequency is %lld, expected 0 or more",
                       (long long)o->min_frequency);
    if (o->max_length != TG_NONE && o->max_length < 2)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_bpe_new: max_length is %lld, expected 2 or more, or TG_NONE",
                       (long long)o->max_length);
    if (o->pattern && !*o->pattern) /* a tokenizer file with such an expression could not be loaded */
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_bpe_new: pattern is empty, expected a regular expression, or NULL for that of GPT-2");
    size_t n = o->special ? strlen(o->special) : 0, wrong = n ? tg_utf8_check(o->special, n) : 0;
    if (wrong < n) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_bpe_new: special is not UTF-8 at offset %zu", wrong);
    return TG_OK;
}

/* Copies a text of the options. */
static tg_status keep(tg_bpe *b, const char **text) {
    if (!*text) return TG_OK;
    *text = tg_pieces_copy(&b->splitter->memory, *text, strlen(*text)).at;
    return *text ? TG_OK : TG_ERR_MEMORY;
}

static tg_status open_training(tg_bpe *b) {
    b->splitter = tg_tokenizer_make(b->ctx, "tg_bpe_new");
    if (!b->splitter) return TG_ERR_MEMORY;
    TG_TRY(keep(b, &b->opts.pattern));
    TG_TRY(keep(b, &b->opts.special));
    TG_TRY(tg_tokenizer_split_bytes(b->splitter, b->opts.pattern));
    b->encoder = tg_encoder_new(b->splitter);
    if (!b->encoder) return tg_fail(b->ctx, TG_ERR_MEMORY, "tg_bpe_new: no memory");
    b->encoder->word = count_word;
    b->encoder->user = b;
    return TG_OK;
}

tg_bpe *tg_bpe_new(tg_ctx *ctx, const tg_bpe_opts *opts) {
    tg_bpe_opts o;
    if (tg_ctx_status(ctx) != TG_OK || tg_options(ctx, &o, &tg_bpe_opts_struct, opts, "tg_bpe_new") != TG_OK ||
        check_options(ctx, &o) != TG_OK)
        return NULL;
    tg_bpe *b = tg_host_alloc(ctx, sizeof *b);
    if (!b) return NULL;
    b->ctx = ctx;
    b->opts = o;
    if (open_training(b) == TG_OK) return b;
    tg_bpe_free(b);
    return NULL;
}

tg_status tg_bpe_add(tg_bpe *b, const char *text, size_t n) {
    if (!b) return TG_ERR_ARGUMENT;
    TG_TRY(tg_ctx_status(b->ctx));
    if (!text && n) return tg_fail(b->ctx, TG_ERR_ARGUMENT, "tg_bpe_add: text is NULL, expected it, or length 0");
    size_t wrong = n ? tg_utf8_check(text, n) : 0;
    if (wrong < n)
        return tg_fail(b->ctx, TG_ERR_DATA,
                       "tg_bpe_add: the text is not UTF-8: byte 0x%02x at offset %zu does not belong to a character",
                       (unsigned char)text[wrong], wrong);
    b->encoder->problem = NULL;
    if (!n || tg_cut_words(b->encoder, 0, (tg_span){text, n}, tg_char_length(text[0]))) return TG_OK;
    const char *problem = b->encoder->problem;
    return tg_fail(b->ctx, problem ? TG_ERR_UNSUPPORTED : TG_ERR_MEMORY,
                   "tg_bpe_add: the text cannot be cut into words: %s", problem ? problem : "there is no memory");
}

int64_t tg_bpe_words(const tg_bpe *b) { return b ? b->n_words : 0; }

tg_status tg_bpe_save(tg_bpe *b, const char *directory, tg_bpe_progress_fn progress, void *user) {
    tg_trained t = {.memory.ctx = b ? b->ctx : NULL};
    if (!b) return TG_ERR_ARGUMENT;
    TG_TRY(tg_ctx_status(b->ctx));
    if (!directory) return tg_fail(b->ctx, TG_ERR_ARGUMENT, "tg_bpe_save: directory is NULL, expected a directory");
    tg_status s = tg_bpe_merge(b, &t, progress, user);
    if (s == TG_OK) s = tg_trained_save(b, &t, directory);
    tg_trained_free(&t);
    return s;
}

void tg_bpe_free(tg_bpe *b) {
    if (!b) return;
    tg_encoder_free(b->encoder);
    tg_tokenizer_free(b->splitter);
    free(b->texts.at);
    free(b->words);
    free(b->slots);
    tg_host_free(b->ctx, b, sizeof *b);
}
