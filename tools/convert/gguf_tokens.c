/* The tokenizer of a GGUF file: its tokens, merges and special tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/tokenizer.h>

#include "convert/gguf.h"
#include "common/program.h"

/* Kinds of tokens, as llama.cpp numbers them. */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

typedef struct token {
    const char *text; /* NULL: no token has the id */
    int32_t kind;
    float score;
} token;

typedef struct vocabulary {
    tg_ctx *ctx;
    gguf_head *h;
    const char *path; /* of tokenizer.json */
    json_t *root;
    const json_t *model;
    gguf_splits splits;
    token *token;
    int64_t n;
    int64_t beyond; /* number of added tokens whose ids the model does not have */
} vocabulary;

static bool is_llama(const vocabulary *v) { return strcmp(v->splits.model, "llama") == 0; }

/* ---- Tokens by their ids ---- */

static bool is_byte(const char *text) {
    unsigned value;
    char rest;
    return strlen(text) == 6 && sscanf(text, "<0x%2X%c", &value, &rest) == 2 && rest == '>';
}

static tg_status set_token(vocabulary *v, int64_t id, const char *text, int32_t kind) {
    if (!text || id < 0 || id >= v->n)
        return tg_ctx_fail(v->ctx, TG_ERR_DATA,
                           "'%s': the token with id %lld is not among the %lld of the model; "
                           "--no-tokenizer writes the model without a tokenizer",
                           v->path, (long long)id, (long long)v->n);
    v->token[id].text = text;
    v->token[id].kind = kind;
    return TG_OK;
}

/* Sets the added tokens. Some published tokenizers (Gemma 3) have one with an id that the model does not have; such
 * tokens are counted and left out. */
static tg_status set_added(vocabulary *v, const char *unknown) {
    tg_status s = TG_OK;
    size_t i;
    json_t *added;
    json_array_foreach(json_object_get(v->root, "added_tokens"), i, added) {
        const char *content = json_string_value(json_object_get(added, "content"));
        int64_t id = json_integer_value(json_object_get(added, "id"));
        int32_t kind = json_is_true(json_object_get(added, "special")) ? CONTROL : USER_DEFINED;
        if (unknown && content && strcmp(content, unknown) == 0) kind = UNKNOWN;
        v->beyond += id >= v->n;
        if (!s && id < v->n) s = set_token(v, id, content, kind);
    }
    return s;
}

static tg_status set_tokens(vocabulary *v) {
    const char *text, *unknown = json_string_value(json_object_get(v->model, "unk_token"));
    json_t *id;
    tg_status s = TG_OK;
    json_object_foreach(json_object_get(v->model, "vocab"), text, id) {
        int32_t kind = is_llama(v) && is_byte(text) ? BYTE : unknown && strcmp(text, unknown) == 0 ? UNKNOWN : NORMAL;
        if (!s) s = set_token(v, json_integer_value(id), text, kind);
    }
    return s ? s : set_added(v, unknown);
}

/* Appends the text of a token. With BPE of characters llama.cpp finds added tokens in a text before it replaces spaces,
 * so their U+2581 become spaces again. An id without a token gets a text that no other token has. */
static void put_token(const vocabulary *v, int64_t id) {
    const token *k = &v->token[id];
    char *text = NULL, unused[32];
    snprintf(unused, sizeof unused, "[PAD%lld]", (long long)id);
    bool spaced = k->text && k->kind == USER_DEFINED && is_llama(v);
    if (spaced && !(text = strdup(k->text))) v->h->values.failed = true;
    for (char *at = text; at && (at = strstr(at, "\xe2\x96\x81"));) {
        *at++ = ' ';
        memmove(at, at + 2, strlen(at + 2) + 1);
    }
    const char *shown = text ? text : k->text ? k->text : unused;
    gguf_put_text(&v->h->values, shown, strlen(shown));
    free(text);
}

static void add_tokens(vocabulary *v) {
    gguf_bytes *values = &v->h->values;
    gguf_array(v->h, "tokenizer.ggml.tokens", GGUF_TEXT, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) put_token(v, i);
    gguf_array(v->h, "tokenizer.ggml.token_type", GGUF_I32, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) gguf_put(values, &v->token[i].kind, sizeof v->token[i].kind);
    if (!is_llama(v)) return;
    gguf_array(v->h, "tokenizer.ggml.scores", GGUF_F32, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) gguf_put(values, &v->token[i].score, sizeof v->token[i].score);
    gguf_bool(v->h, "tokenizer.ggml.add_space_prefix", v->splits.space_first);
}

/* ---- Merges ---- */

/* Writes both parts of merge i, with a space between, to text[n]. A merge is "a b" or ["a", "b"]. */
static tg_status read_merge(const vocabulary *v, size_t i, char *text, size_t n) {
    const json_t *merge = json_array_get(json_object_get(v->model, "merges"), i);
    const char *a = json_string_value(json_array_get(merge, 0)), *b = json_string_value(json_array_get(merge, 1));
    const char *both = json_string_value(merge);
    int wrote = both ? snprintf(text, n, "%s", both) : a && b ? snprintf(text, n, "%s %s", a, b) : -1;
    const char *space = wrote > 0 ? strchr(text, ' ') : NULL;
    if (space && !strchr(space + 1, ' ') && (size_t)wrote < n) return TG_OK;
    return tg_ctx_fail(
        v->ctx, TG_ERR_UNSUPPORTED,
        "'%s': merge %zu has a part with a space, or is too long; --no-tokenizer writes the model without "
        "a tokenizer",
        v->path, i);
}

/* Gives the result of a merge its score. With BPE of characters llama.cpp has scores instead of merges: it first merges
 * the pair whose result has the highest score. */
static void score_merge(vocabulary *v, const char *text, size_t rank) {
    char joined[4096];
    const char *space = strchr(text, ' ');
    snprintf(joined, sizeof joined, "%.*s%s", (int)(space - text), text, space + 1);
    const json_t *id = json_object_get(json_object_get(v->model, "vocab"), joined);
    int64_t i = id ? json_integer_value(id) : -1;
    if (i >= 0 && i < v->n && -(float)rank > v->token[i].score) v->token[i].score = -(float)rank;
}

static tg_status add_merges(vocabulary *v) {
    size_t n = json_array_size(json_object_get(v->model, "merges"));
    tg_status s = TG_OK;
    for (int64_t i = 0; i < v->n; i++) v->token[i].score = -(float)n;
    if (!is_llama(v)) gguf_array(v->h, "tokenizer.ggml.merges", GGUF_TEXT, n);
    for (size_t i = 0; i < n && !s; i++) {
        char text[4096];
        s = read_merge(v, i, text, sizeof text);
        if (!s && is_llama(v)) score_merge(v, text, i);
        if (!s && !is_llama(v)) gguf_put_text(&v->h->values, text, strlen(text));
    }
    return s;
}

/* ---- Special tokens ---- */

static void add_id(vocabulary *v, const char *key, int64_t id) {
    if (id >= 0 && id < v->n) gguf_u32(v->h, key, id);
}

/* Adds the keys that say whether llama.cpp puts bos before a text and eos after it. Fails if the tokenizer adds other
 * tokens. */
static tg_status add_ends(vocabulary *v, const tg_tokenizer *k, int64_t bos, int64_t eos) {
    tg_ids plain = {0}, with = {0};
    tg_status s = tg_tokenizer_encode(k, "a", 1, NULL, &plain);
    if (!s) s = tg_tokenizer_encode(k, "a", 1, TG_ENCODE(.special = true), &with);
    bool begins = bos >= 0 && with.count > plain.count && with.ids[0] == bos;
    bool ends = eos >= 0 && with.count > plain.count + begins && with.ids[with.count - 1] == eos;
    if (!s && with.count != plain.count + begins + ends)
        s = tg_ctx_fail(v->ctx, TG_ERR_UNSUPPORTED,
                        "'%s': the tokenizer adds other tokens to a text than the one that begins it and the one that "
                        "ends it, which llama.cpp cannot do; --no-tokenizer writes the model without a tokenizer",
                        v->path);
    gguf_bool(v->h, "tokenizer.ggml.add_bos_token", begins);
    gguf_bool(v->h, "tokenizer.ggml.add_eos_token", ends);
    tg_ids_free(&plain);
    tg_ids_free(&with);
    return s;
}

/* Returns the id of the token that tokenizer_config.json names for a role, such as "pad_token"; -1 if there is none. */
static int64_t role(const tg_tokenizer *k, const char *dir, const char *name) {
    char *path = path_in(dir, "tokenizer_config.json");
    json_t *config = path ? json_load_file(path, 0, NULL) : NULL;
    const json_t *value = json_object_get(config, name);
    const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    int64_t id = text ? tg_tokenizer_id(k, text) : -1;
    json_decref(config);
    free(path);
    return id;
}

static tg_status add_special(vocabulary *v, const tg_tokenizer *k, const char *dir) {
    const char *unknown = json_string_value(json_object_get(v->model, "unk_token"));
    int64_t end[2] = {-1, -1}, bos = tg_tokenizer_bos(k);
    tg_tokenizer_ends(k, end, 2);
    add_id(v, "tokenizer.ggml.bos_token_id", bos);
    add_id(v, "tokenizer.ggml.eos_token_id", end[0]);
    add_id(v, "tokenizer.ggml.eot_token_id", end[1]);
    add_id(v, "tokenizer.ggml.unknown_token_id", unknown ? tg_tokenizer_id(k, unknown) : -1);
    add_id(v, "tokenizer.ggml.padding_token_id", role(k, dir, "pad_token"));
    if (tg_tokenizer_chat_template(k)) gguf_text(v->h, "tokenizer.chat_template", tg_tokenizer_chat_template(k));
    return add_ends(v, k, bos, end[0]);
}

/* ---- All ---- */

static tg_status add_all(vocabulary *v, const tg_tokenizer *k, const char *dir) {
    json_error_t e;
    v->root = json_load_file(v->path, 0, &e);
    if (!v->root) return tg_ctx_fail(v->ctx, TG_ERR_FORMAT, "'%s' line %d: %s", v->path, e.line, e.text);
    v->model = json_object_get(v->root, "model");
    v->token = calloc((size_t)v->n, sizeof *v->token);
    if (!v->token) return tg_ctx_fail(v->ctx, TG_ERR_MEMORY, "no memory for %lld tokens", (long long)v->n);
    for (int64_t i = 0; i < v->n; i++) v->token[i].kind = UNUSED;
    tg_status s = gguf_find_splits(v->ctx, v->root, v->path, &v->splits);
    if (s) return s;
    gguf_text(v->h, "tokenizer.ggml.model", v->splits.model);
    gguf_text(v->h, "tokenizer.ggml.pre", v->splits.pre);
    s = set_tokens(v);
    if (!s) s = add_merges(v);
    if (s) return s;
    add_tokens(v);
    return add_special(v, k, dir);
}

tg_status gguf_add_tokenizer(tg_ctx *ctx, gguf_head *h, const char *dir, int64_t vocab) {
    char *path = path_in(dir, "tokenizer.json");
    tg_tokenizer *k = path ? tg_tokenizer_load(ctx, dir) : NULL;
    vocabulary v = {.ctx = ctx, .h = h, .path = path, .n = vocab};
    if (!path) tg_ctx_fail(ctx, TG_ERR_MEMORY, "no memory for a path");
    if (k && add_all(&v, k, dir) == TG_OK && v.beyond)
        warn("'%s' has %lld added tokens with ids that the model does not have; they are left out", path,
             (long long)v.beyond);
    tg_tokenizer_free(k);
    json_decref(v.root);
    free(v.token);
    free(path);
    return tg_ctx_status(ctx);
}
