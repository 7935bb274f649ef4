/* What follows from a tokenizer.json as a whole: the tokens of bytes, and where text may be cut without changing its
 * ids. */
#include "text/load/load.h"
#include "text/unicode.h"

static const tg_span mark = {"\xe2\x96\x81", 3}; /* U+2581, which SentencePiece writes for a space */

/* Sets the token of each byte. A byte-level model that lacks one of them must not fall back to other tokens. */
static tg_status find_bytes(tg_tokenizer *k) {
    bool whole = true;
    for (int i = 0; i < 256; i++) {
        char c[4];
        size_t n = tg_char_write(c, tg_byte_char((unsigned char)i));
        k->model.byte_ids[i] = tg_vocab_find(&k->model.vocab, c, n);
        whole = whole && k->model.byte_ids[i] != TG_NO_ID;
    }
    if (whole || !k->model.byte_fallback) return TG_OK;
    return tg_fail(k->ctx, TG_ERR_UNSUPPORTED,
                   "'%s': the model is byte-level and has byte_fallback, but lacks the tokens of some bytes", k->path);
}

static bool begins_with_mark(tg_span t) { return t.n >= mark.n && !memcmp(t.at, mark.at, mark.n); }

static bool ends_with_mark(tg_span t) { return t.n >= mark.n && !memcmp(t.at + t.n - mark.n, mark.at, mark.n); }

/* Returns whether a token may stand for other text than its own. */
static bool is_stand_in(const tg_model *m, uint32_t id) {
    bool found = (int32_t)id == m->unknown;
    for (int b = 0; b < 256 && !found; b++) found = (int32_t)id == m->fallback_ids[b];
    return found;
}

/* Sets joins[b] if a merge joins a token that ends with byte b, not with a mark, to one that begins with a mark.
 * Returns false if the first of two such tokens may stand for other text than its own. */
static bool find_joins(const tg_model *m, bool joins[256]) {
    for (uint64_t i = 0; i <= m->merge_mask; i++) {
        const tg_merge *merge = m->merges + i;
        if (merge->left == UINT32_MAX) continue;
        tg_span left = m->vocab.token[merge->left], right = m->vocab.token[merge->right];
        if (!begins_with_mark(right) || ends_with_mark(left) || !left.n) continue;
        if (is_stand_in(m, merge->left)) return false;
        joins[(unsigned char)left.at[left.n - 1]] = true;
    }
    return true;
}

/* Returns whether characters that the vocabulary lacks may give nothing. Then those around them are neighbors. */
static bool drops_characters(const tg_model *m) {
    bool whole = m->byte_fallback;
    for (int b = 0; b < 256 && whole; b++) whole = m->fallback_ids[b] != TG_NO_ID;
    return m->unknown == TG_NO_ID && !whole;
}

/* Adds a step that cuts text before marks, unless that may change ids. Without a pre-tokenizer a text is one long word;
 * after this step its words are short, so that most of them are found in the cache. */
static tg_status cut_before_marks(tg_tokenizer *k) {
    if (k->n_split == TG_MAX_STEPS || k->model.ignore_merges || drops_characters(&k->model) ||
        tg_vocab_find(&k->model.vocab, mark.at, mark.n) == TG_NO_ID)
        return TG_OK;
    bool *joins = tg_pieces_alloc(&k->memory, 256);
    if (!joins) return TG_ERR_MEMORY;
    if (find_joins(&k->model, joins))
        k->split[k->n_split++] = (tg_split_step){.kind = TG_SPLIT_MARKS, .sought = mark, .joins = joins};
    return TG_OK;
}

/* Fails if the template has ids that no token has. */
static tg_status check_ids(const tg_tokenizer *k, const int64_t *ids, int n) {
    for (int i = 0; i < n; i++)
        if (!tg_tokenizer_token(k, ids[i]))
            return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': the template has the id %lld, which no token has", k->path,
                           (long long)ids[i]);
    return TG_OK;
}

tg_status tg_load_complete(tg_tokenizer *k, const tg_json *file) {
    if (!tg_json_has(file, "decoder")) k->decode[k->n_decode++] = (tg_decode_step){.kind = TG_DECODE_SPACES};
    TG_TRY(k->model.byte_level ? find_bytes(k) : cut_before_marks(k));
    TG_TRY(tg_tokenizer_finish(k));
    TG_TRY(check_ids(k, k->before, k->n_before));
    return check_ids(k, k->after, k->n_after);
}
