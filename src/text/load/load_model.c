/* Reading the model of a tokenizer.json: the vocabulary and the merges of a BPE. */
#include "text/load/load.h"

/* ---- Tokens ---- */

/* Adds the tokens of "vocab", an object that maps a token to its id. */
static tg_status read_vocab(tg_tokenizer *k, const tg_json *vocab) {
    enum { MOST = 1 << 24 }; /* ids are below it */
    const char *token;
    json_t *value;
    int64_t size = 0;
    json_object_foreach(vocab->object, token, value) {
        int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= MOST)
            return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': the id of token '%s' is not an integer from 0 to %d", k->path,
                           token, MOST - 1);
        if (id >= size) size = id + 1;
    }
    TG_TRY(tg_vocab_open(&k->model.vocab, &k->memory, size));
    json_object_foreach(vocab->object, token, value) {
        int64_t id = json_integer_value(value);
        tg_span text = tg_pieces_copy(&k->memory, token, strlen(token));
        if (!text.at) return TG_ERR_MEMORY;
        if (k->model.vocab.token[id].at)
            return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': tokens '%s' and '%s' have the same id, %lld", k->path,
                           k->model.vocab.token[id].at, token, (long long)id);
        tg_vocab_add(&k->model.vocab, text, (int32_t)id);
    }
    return TG_OK;
}

/* ---- Merges ---- */

/* Sets *id to the id of a part of a merge. Fails if the vocabulary has no such token. */
static tg_status find_part(tg_tokenizer *k, tg_span part, uint32_t *id) {
    int32_t found = tg_vocab_find(&k->model.vocab, part.at, part.n);
    *id = (uint32_t)found;
    if (found != TG_NO_ID) return TG_OK;
    return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': a merge has the token '%.*s', which the vocabulary lacks", k->path,
                   part.n > 100 ? 100 : (int)part.n, part.at);
}

static tg_status add_merge(tg_tokenizer *k, tg_span left, tg_span right, uint32_t rank, tg_growing *joined) {
    tg_merge merge = {.rank = rank};
    joined->n = 0;
    if (!tg_growing_add(joined, left.at, left.n) || !tg_growing_add(joined, right.at, right.n))
        return tg_fail(k->ctx, TG_ERR_MEMORY, "'%s': no memory for the merges", k->path);
    TG_TRY(find_part(k, left, &merge.left));
    TG_TRY(find_part(k, right, &merge.right));
    TG_TRY(find_part(k, (tg_span){joined->at, (size_t)joined->n}, &merge.made));
    tg_merges_add(&k->model, merge);
    return TG_OK;
}

static tg_span span_of(const json_t *string) {
    return (tg_span){json_string_value(string), json_string_length(string)};
}

/* Sets the two parts of a merge, which is "a b" or ["a", "b"]. Returns false if it is neither. */
static bool parts_of(const json_t *merge, tg_span *left, tg_span *right) {
    tg_span whole = span_of(merge);
    const char *space = whole.at ? memchr(whole.at, ' ', whole.n) : NULL;
    *left = space ? (tg_span){whole.at, (size_t)(space - whole.at)} : span_of(json_array_get(merge, 0));
    *right = space ? (tg_span){space + 1, whole.n - left->n - 1} : span_of(json_array_get(merge, 1));
    return space ? !memchr(right->at, ' ', right->n) : json_array_size(merge) == 2 && left->at && right->at;
}

static tg_status read_merges(tg_tokenizer *k, const tg_json *model) {
    json_t *merges, *one;
    size_t i;
    uint32_t rank = 0;
    tg_growing joined = {0};
    tg_status s = TG_OK;
    TG_TRY(tg_json_array(model, "merges", &merges));
    TG_TRY(tg_merges_open(&k->model, &k->memory, (int64_t)json_array_size(merges)));
    json_array_foreach(merges, i, one) {
        tg_span left, right;
        /* the first line of a merges.txt, from which files were converted */
        if (json_is_string(one) && !strncmp(json_string_value(one), "#version", 8)) continue;
        if (!parts_of(one, &left, &right))
            s = tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': merge %zu is not a pair of tokens", k->path, i);
        if (s == TG_OK) s = add_merge(k, left, right, rank++, &joined);
        if (s != TG_OK) break;
    }
    free(joined.at);
    return s;
}

/* ---- The model ---- */

static tg_status read_unknown(tg_tokenizer *k, const tg_json *model) {
    tg_span token = {0};
    TG_TRY(tg_load_string(k, model, "unk_token", &token));
    if (!token.at) return TG_OK;
    k->model.unknown = tg_vocab_find(&k->model.vocab, token.at, token.n);
    if (k->model.unknown != TG_NO_ID || !token.n) return TG_OK;
    return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': the vocabulary lacks the unknown token '%s'", k->path, token.at);
}

/* Fails if the model has something that changes its ids and that this library does not know. */
static tg_status refuse_others(const tg_tokenizer *k, const tg_json *model) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    json_t *dropout = json_object_get(model->object, "dropout");
    if (json_number_value(dropout) != 0)
        return tg_fail(k->ctx, TG_ERR_UNSUPPORTED, "'%s': the dropout of the model is %g, expected 0", k->path,
                       json_number_value(dropout));
    for (int i = 0; i < TG_LEN(affixes); i++) {
        const char *affix = json_string_value(json_object_get(model->object, affixes[i]));
        if (affix && *affix) return tg_load_refuse(k, affixes[i], affix);
    }
    return TG_OK;
}

/* Finds the tokens <0x00> to <0xFF>. */
static void find_fallback(tg_model *m) {
    for (int i = 0; i < 256; i++) {
        static const char digits[] = "0123456789ABCDEF";
        const char token[] = {'<', '0', 'x', digits[i / 16], digits[i % 16], '>'};
        m->fallback_ids[i] = tg_vocab_find(&m->vocab, token, sizeof token);
    }
}

tg_status tg_load_model(tg_tokenizer *k, const tg_json *file) {
    tg_json model, vocab;
    TG_TRY(tg_json_object(file, "model", &model));
    const char *type = tg_load_type(&model);
    if (*type ? strcmp(type, "BPE") != 0 : !tg_json_has(&model, "merges")) return tg_load_refuse(k, "the model", type);
    TG_TRY(refuse_others(k, &model));
    TG_TRY(tg_load_bool(&model, "fuse_unk", &k->model.fuse_unknown));
    TG_TRY(tg_load_bool(&model, "byte_fallback", &k->model.byte_fallback));
    TG_TRY(tg_load_bool(&model, "ignore_merges", &k->model.ignore_merges));
    TG_TRY(tg_json_object(&model, "vocab", &vocab));
    TG_TRY(read_vocab(k, &vocab));
    TG_TRY(read_merges(k, &model));
    find_fallback(&k->model);
    return read_unknown(k, &model);
}
