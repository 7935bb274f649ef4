/* Added tokens: those that are found in text before the model sees it, such as the end of a text. Of the tokens that
 * begin first in the text, only the longest counts: if it is not cut out, the search goes on after it. */
#include "text/tokenizer.h"
#include "text/unicode.h"

/* ---- The trie ---- */

/* Returns the child of a node for this byte, which it adds if it is missing. */
static int32_t child_of(tg_trie *t, int32_t node, unsigned char byte) {
    for (int32_t c = t->nodes[node].child; c; c = t->nodes[c].sibling)
        if (t->nodes[c].byte == byte) return c;
    int32_t made = t->count++;
    t->nodes[made] = (tg_trie_node){.sibling = t->nodes[node].child, .token = -1, .byte = byte};
    t->nodes[node].child = made;
    return made;
}

/* Adds a token. Of tokens that have become one text in the normalizer the first counts; of one token that is in the
 * file several times, the last. */
static void trie_add(tg_trie *t, tg_span text, const tg_added_token *tokens, int32_t token) {
    int32_t node = 0;
    for (size_t i = 0; i < text.n; i++) node = child_of(t, node, (unsigned char)text.at[i]);
    int32_t *there = &t->nodes[node].token;
    if (*there < 0 || tokens[*there].id == tokens[token].id) *there = token;
    t->first[(unsigned char)text.at[0]] = child_of(t, 0, (unsigned char)text.at[0]);
}

/* Returns the text by which a token is found. */
static tg_span sought(const tg_added_token *token) { return token->normalized ? token->shown : token->content; }

static tg_status trie_open(tg_tokenizer *k, tg_trie *t, bool normalized) {
    size_t nodes = 1;
    for (int32_t i = 0; i < k->added.count; i++) nodes += sought(k->added.tokens + i).n;
    t->nodes = tg_pieces_alloc(&k->memory, nodes * sizeof *t->nodes);
    if (!t->nodes) return TG_ERR_MEMORY;
    t->nodes[0].token = -1;
    t->count = 1;
    for (int32_t i = 0; i < 2 * k->added.count; i++) { /* special tokens first, as in the library tokenizers */
        int32_t number = i % k->added.count;
        const tg_added_token *token = k->added.tokens + number;
        if (token->special == (i < k->added.count) && token->normalized == normalized && sought(token).n)
            trie_add(t, sought(token), k->added.tokens, number);
    }
    return TG_OK;
}

/* Finds the longest token that begins at text[at]. Returns its number, and sets *end; -1: there is none. */
static int32_t longest(const tg_trie *t, tg_span text, size_t at, size_t *end) {
    int32_t found = -1;
    for (int32_t node = t->first[(unsigned char)text.at[at]]; node;) {
        if (t->nodes[node].token >= 0) found = t->nodes[node].token, *end = at + 1;
        if (++at == text.n) break;
        node = t->nodes[node].child;
        while (node && t->nodes[node].byte != (unsigned char)text.at[at]) node = t->nodes[node].sibling;
    }
    return found;
}

/* ---- Loading ---- */

/* The characters that Unicode calls Alphabetic, marks, decimal digits, connectors and joiners. */
#define WORD                                                                                                           \
    "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{"      \
    "1f169}"                                                                                                           \
    "\\x{1f170}-\\x{1f189}]"

/* Sets the ids, as the library tokenizers does. Tokens that the model lacks are numbered in the order of the file, from
 * the number of the model's tokens on. If the ids of the model have gaps, a token of the model may have the same id. */
static void number(tg_tokenizer *k) {
    int64_t model = 0, next = 0;
    for (int64_t i = 0; i < k->model.vocab.size; i++) model += k->model.vocab.token[i].at != NULL;
    next = model;
    for (int32_t i = 0; i < k->added.count; i++) {
        tg_added_token *token = k->added.tokens + i;
        token->id = tg_vocab_find(&k->model.vocab, token->content.at, token->content.n);
        for (int32_t j = 0; j < i && token->id < 0; j++)
            if (k->added.tokens[j].content.n == token->content.n &&
                !memcmp(k->added.tokens[j].content.at, token->content.at, token->content.n))
                token->id = k->added.tokens[j].id;
        if (token->id == TG_NO_ID) token->id = (int32_t)next++;
    }
}

/* Sets what the normalizer makes of each token. */
static tg_status normalize_tokens(tg_tokenizer *k) {
    tg_encoder e = {.k = k};
    bool good = true;
    size_t head = 0;
    if (k->functions) good = (e.matcher = k->functions->matcher_new()) != NULL;
    for (int32_t i = 0; i < k->added.count && good; i++) {
        tg_added_token *token = k->added.tokens + i;
        token->shown = token->content;
        if (!token->normalized || !k->n_normal) continue;
        good = tg_normalize_text(&e, token->content, &token->shown, &head);
        if (good) token->shown = tg_pieces_copy(&k->memory, token->shown.at, token->shown.n);
        if (good && !token->shown.at) break;
    }
    for (int i = 0; i < 2; i++) free(e.buffers[i].at);
    if (e.matcher) k->functions->matcher_free(e.matcher);
    if (!good && e.problem)
        return tg_fail(k->ctx, TG_ERR_UNSUPPORTED, "'%s': an added token cannot be normalized: %s", k->path, e.problem);
    if (!good) return tg_fail(k->ctx, TG_ERR_MEMORY, "'%s': no memory to normalize the added tokens", k->path);
    return tg_ctx_status(k->ctx);
}

tg_status tg_added_open(tg_tokenizer *k, tg_added_token *tokens, int32_t count) {
    k->added.tokens = tokens;
    k->added.count = count;
    number(k);
    TG_TRY(normalize_tokens(k));
    TG_TRY(trie_open(k, &k->added.raw, false));
    TG_TRY(trie_open(k, &k->added.normalized, true));
    for (int32_t i = 0; i < count && !k->added.word; i++)
        if (tokens[i].single_word) TG_TRY(tg_tokenizer_pattern(k, WORD, sizeof WORD - 1, true, &k->added.word));
    return TG_OK;
}

/* ---- Encoding ---- */

static bool is_word(tg_encoder *e, tg_span text, size_t at) {
    size_t n = tg_char_length(text.at[at]), begin, end;
    return e->k->functions->find(e->k->added.word, e->matcher, text.at + at, n, 0, &begin, &end) > 0;
}

/* Returns whether no character of a word is next to the token. */
static bool stands_alone(tg_encoder *e, tg_span text, size_t begin, size_t end) {
    return !(begin > 0 && is_word(e, text, tg_char_before(text.at, begin))) && !(end < text.n && is_word(e, text, end));
}

static size_t skip_left(tg_span text, size_t at, size_t limit) {
    size_t n;
    for (size_t before; at > 0; at = before) {
        before = tg_char_before(text.at, at);
        if (!tg_char_is_space(tg_char_at(text.at + before, &n))) break;
    }
    return at > limit ? at : limit;
}

static size_t skip_right(tg_span text, size_t at) {
    for (size_t n; at < text.n && tg_char_is_space(tg_char_at(text.at + at, &n));) at += n;
    return at;
}

/* Returns whether the token that was found at text[at, end) is cut out. */
static bool counts(tg_encoder *e, const tg_added_token *token, tg_span text, size_t at, size_t end, bool literal) {
    return !(literal && token->special) && (!token->single_word || stands_alone(e, text, at, end));
}

bool tg_added_cut(tg_encoder *e, const tg_trie *trie, tg_span text, size_t head, bool literal, tg_rest_fn *rest) {
    size_t done = 0, at = 0, end = 0;
    while (at < text.n) {
        int32_t found = trie->first[(unsigned char)text.at[at]] ? longest(trie, text, at, &end) : -1;
        if (found < 0) {
            at++;
            continue;
        }
        const tg_added_token *token = e->k->added.tokens + found;
        if (counts(e, token, text, at, end, literal)) {
            size_t begin = token->lstrip ? skip_left(text, at, done) : at;
            size_t stop = token->rstrip ? skip_right(text, end) : end;
            if (done < begin && !rest(e, (tg_span){text.at + done, begin - done}, tg_head_after(head, done)))
                return false;
            /* If the token before has taken this one as white space, nothing is left of this one if it is lstrip.
             * Otherwise it counts all the same, and `done` goes back to its end, as in the library tokenizers. */
            if (begin < stop && !tg_ids_add(e->out, token->id)) return false;
            if (begin < stop) done = stop;
        }
        at = end;
    }
    return done >= text.n || rest(e, (tg_span){text.at + done, text.n - done}, tg_head_after(head, done));
}
