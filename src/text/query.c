/* Queries about a tokenizer: its ids and tokens, the tokens that begin and end a text, and the chat template. */
#include "text/tokenizer.h"

int64_t tg_tokenizer_size(const tg_tokenizer *k) { return k ? k->size : 0; }

/* Returns the added token with this id; NULL if there is none. The last one of several counts. */
static const tg_added_token *added_by_id(const tg_tokenizer *k, int64_t id) {
    for (int32_t i = k->added.count - 1; i >= 0; i--)
        if (k->added.tokens[i].id == id) return k->added.tokens + i;
    return NULL;
}

int64_t tg_tokenizer_id(const tg_tokenizer *k, const char *token) {
    size_t n = k && token ? strlen(token) : 0;
    if (!n) return -1;
    for (int32_t i = 0; i < k->added.count; i++)
        if (k->added.tokens[i].content.n == n && !memcmp(k->added.tokens[i].content.at, token, n))
            return k->added.tokens[i].id;
    return tg_vocab_find(&k->model.vocab, token, n);
}

const char *tg_tokenizer_token(const tg_tokenizer *k, int64_t id) {
    if (!k || id < 0 || id >= k->size) return NULL;
    const tg_added_token *added = added_by_id(k, id);
    if (added) return added->content.at;
    return id < k->model.vocab.size ? k->model.vocab.token[id].at : NULL;
}

bool tg_tokenizer_is_special(const tg_tokenizer *k, int64_t id) {
    return k && id >= 0 && id < k->size && k->special[id];
}

int64_t tg_tokenizer_bos(const tg_tokenizer *k) { return k ? k->bos : TG_NO_ID; }

int tg_tokenizer_ends(const tg_tokenizer *k, int64_t *ids, int n) {
    if (!k) return 0;
    for (int i = 0; ids && i < n && i < k->n_ends; i++) ids[i] = k->ends[i];
    return k->n_ends;
}

const char *tg_tokenizer_chat_template(const tg_tokenizer *k) { return k ? k->chat_template : NULL; }
