/* Encoding: the stages of a tokenizer on one text, and the lists of ids. */
#include "base/options.h"
#include "base/text.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

void tg_ids_free(tg_ids *ids) {
    if (!ids) return;
    free(ids->ids);
    *ids = (tg_ids){0};
}

bool tg_ids_add(tg_ids *out, int64_t id) {
    if (!tg_grown((void **)&out->ids, &out->capacity, out->count + 1, sizeof *out->ids)) return false;
    out->ids[out->count++] = id;
    return true;
}

/* ---- Encoders: each belongs to one thread while it encodes ---- */

void tg_encoder_free(tg_encoder *e) {
    if (!e) return;
    if (e->matcher) e->k->functions->matcher_free(e->matcher);
    for (int i = 0; i < 2; i++) free(e->buffers[i].at);
    for (int i = 0; i < TG_MAX_STEPS; i++) free(e->texts[i].at);
    tg_word_memory_free(e->words);
    free(e);
}

tg_encoder *tg_encoder_new(const tg_tokenizer *k) {
    tg_encoder *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->k = k;
    e->word = tg_word_encode;
    e->words = tg_word_memory_new();
    if (k->functions) e->matcher = k->functions->matcher_new();
    if (e->words && (e->matcher || !k->functions)) return e;
    tg_encoder_free(e);
    return NULL;
}

/* Takes an idle encoder, or makes one. */
static tg_encoder *take_encoder(tg_tokenizer *k) {
    pthread_mutex_lock(&k->lock);
    tg_encoder *e = k->idle;
    if (e) k->idle = e->next;
    pthread_mutex_unlock(&k->lock);
    return e ? e : tg_encoder_new(k);
}

static void give_back(tg_tokenizer *k, tg_encoder *e) {
    pthread_mutex_lock(&k->lock);
    e->next = k->idle;
    k->idle = e;
    pthread_mutex_unlock(&k->lock);
}

/* ---- Stages ---- */

/* Encodes normalized text between added tokens. */
static bool encode_words(tg_encoder *e, tg_span text, size_t head) { return tg_cut_words(e, 0, text, head); }

/* Encodes text between the added tokens that are found before normalization. */
static bool encode_normalized(tg_encoder *e, tg_span text, size_t head) {
    return tg_normalize_text(e, text, &text, &head) &&
           tg_added_cut(e, &e->k->added.normalized, text, head, e->literal, encode_words);
}

static bool encode_bytes(const tg_tokenizer *k, tg_span text, tg_ids *out) {
    if (!tg_grown((void **)&out->ids, &out->capacity, out->count + (int64_t)text.n, sizeof *out->ids)) return false;
    for (size_t i = 0; i < text.n; i++) out->ids[out->count++] = k->model.byte_ids[(unsigned char)text.at[i]];
    return true;
}

static bool add_all(tg_ids *out, const int64_t *ids, int n) {
    for (int i = 0; i < n; i++)
        if (!tg_ids_add(out, ids[i])) return false;
    return true;
}

static bool encode_text(tg_encoder *e, tg_span text, const tg_encode_opts *o, tg_ids *out) {
    const tg_tokenizer *k = e->k;
    e->out = out;
    e->literal = o->literal;
    e->problem = NULL;
    if (o->special && !add_all(out, k->before, k->n_before)) return false;
    size_t head = text.n ? tg_char_length(text.at[0]) : 0;
    bool good = k->model.any_bytes ? encode_bytes(k, text, out)
                                   : tg_added_cut(e, &k->added.raw, text, head, o->literal, encode_normalized);
    return good && (!o->special || add_all(out, k->after, k->n_after));
}

static tg_status check_text(const tg_tokenizer *k, tg_ctx *errors, const char *text, size_t n) {
    if (k->model.any_bytes) return TG_OK;
    size_t wrong = tg_utf8_check(text, n);
    if (wrong == n) return TG_OK;
    return tg_fail(
        errors, TG_ERR_DATA,
        "tg_tokenizer_encode: the text is not UTF-8: byte 0x%02x at offset %zu does not belong to a character",
        (unsigned char)text[wrong], wrong);
}

static tg_status encode(const tg_tokenizer *k, tg_ctx *errors, tg_span text, const tg_encode_opts *o, tg_ids *out) {
    tg_tokenizer *shared = (tg_tokenizer *)k; /* for the list of idle encoders, which has a lock */
    int64_t count = out->count;
    tg_encoder *e = take_encoder(shared);
    bool good = e && encode_text(e, text, o, out);
    const char *problem = e ? e->problem : NULL;
    if (e) give_back(shared, e);
    if (good) return TG_OK;
    out->count = count;
    if (problem)
        return tg_fail(errors, TG_ERR_UNSUPPORTED, "tg_tokenizer_encode: '%s' cannot encode the text: %s", k->path,
                       problem);
    return tg_fail(errors, TG_ERR_MEMORY, "tg_tokenizer_encode: no memory for the ids of %s",
                   tg_count((int64_t)text.n, "byte").text);
}

tg_status tg_tokenizer_encode(const tg_tokenizer *k, const char *text, size_t n, const tg_encode_opts *opts,
                              tg_ids *out) {
    static const char who[] = "tg_tokenizer_encode";
    if (!k) return TG_ERR_ARGUMENT;
    tg_encode_opts o;
    tg_options_complete(&o, &tg_encode_opts_struct, opts);
    tg_ctx *errors = o.errors ? o.errors : k->ctx;
    TG_TRY(tg_ctx_status(errors));
    TG_TRY(tg_options(errors, &o, &tg_encode_opts_struct, opts, who));
    if (!out || (!text && n))
        return tg_fail(errors, TG_ERR_ARGUMENT, "%s: %s, expected %s", who, out ? "text is NULL" : "out is NULL",
                       out ? "the text, or length 0" : "a tg_ids to which ids are appended");
    TG_TRY(check_text(k, errors, text, n));
    return encode(k, errors, (tg_span){text ? text : "", n}, &o, out);
}
