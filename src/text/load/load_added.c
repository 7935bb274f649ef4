/* Reading the added tokens of a tokenizer.json, and what its post-processor adds to a text. */
#include "text/load/load.h"

static tg_status read_token(tg_tokenizer *k, const tg_json *j, tg_added_token *token) {
    token->normalized = true;
    TG_TRY(tg_load_string(k, j, "content", &token->content));
    if (!token->content.n) return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': an added token has no content", k->path);
    TG_TRY(tg_load_bool(j, "special", &token->special));
    TG_TRY(tg_load_bool(j, "normalized", &token->normalized));
    TG_TRY(tg_load_bool(j, "single_word", &token->single_word));
    TG_TRY(tg_load_bool(j, "lstrip", &token->lstrip));
    return tg_load_bool(j, "rstrip", &token->rstrip);
}

tg_status tg_load_added(tg_tokenizer *k, const tg_json *file) {
    json_t *list = NULL, *one;
    size_t i;
    if (tg_json_has(file, "added_tokens")) TG_TRY(tg_json_array(file, "added_tokens", &list));
    size_t n = json_array_size(list);
    tg_added_token *tokens = tg_pieces_alloc(&k->memory, (n + 1) * sizeof *tokens);
    if (!tokens) return TG_ERR_MEMORY;
    json_array_foreach(list, i, one) {
        tg_json j = {.ctx = file->ctx, .path = file->path, .object = one};
        if (!json_is_object(one))
            return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': added token %zu is not an object", k->path, i);
        TG_TRY(read_token(k, &j, tokens + i));
    }
    return tg_added_open(k, tokens, (int32_t)n);
}

/* ---- The post-processor ---- */

/* Ids that a template, or several in a row, put before or after a text. */
typedef struct frame {
    int64_t *ids;
    int n;
} frame;

/* Appends the ids of a special token to the frame. */
static tg_status add_ids(tg_tokenizer *k, frame *f, const json_t *ids) {
    int more = (int)json_array_size(ids);
    int64_t *all = tg_pieces_alloc(&k->memory, (size_t)(f->n + more) * sizeof *all);
    if (!all) return TG_ERR_MEMORY;
    if (f->n) memcpy(all, f->ids, (size_t)f->n * sizeof *all);
    for (int i = 0; i < more; i++) {
        const json_t *id = json_array_get(ids, (size_t)i);
        if (!json_is_integer(id))
            return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': id %d of a special token of the template is not an integer",
                           k->path, i);
        all[f->n + i] = json_integer_value(id);
    }
    *f = (frame){all, f->n + more};
    return TG_OK;
}

/* Returns the ids of a special token of a template; NULL if the template does not define it. */
static const json_t *ids_of(const tg_json *j, const json_t *special) {
    const char *name = json_string_value(json_object_get(special, "id"));
    return name ? json_object_get(json_object_get(json_object_get(j->object, "special_tokens"), name), "ids") : NULL;
}

/* Reads the template of one text: special tokens before and after the sequence. */
static tg_status read_frames(tg_tokenizer *k, const tg_json *j, frame *before, frame *after) {
    json_t *pieces, *piece;
    size_t i;
    int sequences = 0;
    TG_TRY(tg_json_array(j, "single", &pieces));
    json_array_foreach(pieces, i, piece) {
        const json_t *special = json_object_get(piece, "SpecialToken"), *ids = ids_of(j, special);
        if (special && !json_is_array(ids))
            return tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': the template has a special token without ids", k->path);
        if (special) TG_TRY(add_ids(k, sequences ? after : before, ids));
        sequences += !special;
    }
    if (sequences == 1) return TG_OK;
    return tg_fail(k->ctx, TG_ERR_UNSUPPORTED, "'%s': the template has %s, expected 1", k->path,
                   tg_count(sequences, "sequence").text);
}

/* Joins two lists of ids. */
static tg_status join(tg_tokenizer *k, frame first, frame second, int64_t **ids, int *n) {
    *n = first.n + second.n;
    *ids = tg_pieces_alloc(&k->memory, (size_t)*n * sizeof **ids);
    if (!*ids) return TG_ERR_MEMORY;
    if (first.n) memcpy(*ids, first.ids, (size_t)first.n * sizeof **ids);
    if (second.n) memcpy(*ids + first.n, second.ids, (size_t)second.n * sizeof **ids);
    return TG_OK;
}

/* Reads a template. Its ids go around those of the templates before it. */
static tg_status read_template(tg_tokenizer *k, const tg_json *j) {
    frame before = {0}, after = {0};
    TG_TRY(read_frames(k, j, &before, &after));
    TG_TRY(join(k, before, (frame){k->before, k->n_before}, &k->before, &k->n_before));
    return join(k, (frame){k->after, k->n_after}, after, &k->after, &k->n_after);
}

tg_status tg_load_post_step(tg_tokenizer *k, const tg_json *j) {
    const char *type = tg_load_type(j);
    if (!strcmp(type, "ByteLevel")) return TG_OK; /* it moves offsets, which this library does not have */
    return strcmp(type, "TemplateProcessing") ? tg_load_refuse(k, "the post-processor", type) : read_template(k, j);
}
