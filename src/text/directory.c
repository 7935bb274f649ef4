/* The files next to tokenizer.json: which tokens begin and end a text, and the template of a chat. */
#define _GNU_SOURCE
#include <stdio.h>

#include "text/load/load.h"

typedef struct reading {
    tg_tokenizer *k;
    const char *directory;
} reading;

enum { TEMPLATE_LIMIT = 4 << 20 };

/* Returns the path of a file, which the caller frees with tg_host_strfree; NULL if it is not there, or after an error.
 */
static char *path_of(const reading *r, const char *name) {
    bool there = false;
    char *path = tg_format_path(r->k->ctx, "%s/%s", r->directory, name);
    if (tg_file_exists(r->k->ctx, path, &there) == TG_OK && there) return path;
    tg_host_strfree(r->k->ctx, path);
    return NULL;
}

/* Calls a function for a JSON file, if it is there. */
static tg_status read_json(const reading *r, const char *name, tg_status (*read)(tg_tokenizer *k, const tg_json *j)) {
    char *path = path_of(r, name);
    tg_json j;
    if (!path) return tg_ctx_status(r->k->ctx);
    tg_status s = tg_json_load(&j, r->k->ctx, path);
    if (s == TG_OK) {
        s = read(r->k, &j);
        tg_json_free(&j);
    }
    tg_host_strfree(r->k->ctx, path);
    return s;
}

/* ---- Tokens ---- */

/* Adds an id to those that end a text, if a token has it. Ids beyond TG_MAX_ENDS are left out. */
static void add_end(tg_tokenizer *k, int64_t id) {
    for (int i = 0; i < k->n_ends; i++)
        if (k->ends[i] == id) return;
    if (tg_tokenizer_token(k, id) && k->n_ends < TG_MAX_ENDS) k->ends[k->n_ends++] = id;
}

/* Returns the id of a token that a config names, as text or as an object with the text; -1 if there is none. */
static int64_t named_id(const tg_tokenizer *k, const tg_json *j, const char *key) {
    const json_t *value = json_object_get(j->object, key);
    const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    return text ? tg_tokenizer_id(k, text) : TG_NO_ID;
}

/* Reads the tokens that begin and end a text, unless a file before has named them. */
static tg_status read_names(tg_tokenizer *k, const tg_json *j) {
    if (k->bos < 0) k->bos = named_id(k, j, "bos_token");
    if (!k->n_ends) add_end(k, named_id(k, j, "eos_token"));
    return TG_OK;
}

/* Reads the ids of a model's config. eos_token_id is an id or a list of ids, which are added to those of the files
 * before; bos_token_id counts only if no file before has named that token. */
static tg_status read_ids(tg_tokenizer *k, const tg_json *j) {
    const json_t *bos = json_object_get(j->object, "bos_token_id"), *eos = json_object_get(j->object, "eos_token_id");
    if (k->bos < 0 && json_is_integer(bos) && tg_tokenizer_token(k, json_integer_value(bos)))
        k->bos = json_integer_value(bos);
    if (json_is_integer(eos)) add_end(k, json_integer_value(eos));
    for (size_t i = 0; i < json_array_size(eos); i++) {
        const json_t *one = json_array_get(eos, i);
        if (json_is_integer(one)) add_end(k, json_integer_value(one));
    }
    return TG_OK;
}

/* ---- The template of a chat ---- */

static tg_status keep_template(tg_tokenizer *k, const json_t *text) {
    tg_span copy = {0};
    if (!json_is_string(text) || k->chat_template) return TG_OK;
    TG_TRY(tg_load_text(k, text, &copy));
    k->chat_template = copy.at;
    return TG_OK;
}

/* Of a list of named templates, that with the name "default" is taken. */
static tg_status read_config(tg_tokenizer *k, const tg_json *j) {
    const json_t *given = json_object_get(j->object, "chat_template");
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *one = json_array_get(given, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default")) TG_TRY(keep_template(k, json_object_get(one, "template")));
    }
    TG_TRY(keep_template(k, given));
    return read_names(k, j);
}

static tg_status read_template_file(const reading *r) {
    char *path = path_of(r, "chat_template.jinja"), *text;
    size_t bytes;
    if (!path) return tg_ctx_status(r->k->ctx);
    tg_status s = tg_file_load(r->k->ctx, path, TEMPLATE_LIMIT, &text, &bytes);
    if (s == TG_OK) {
        r->k->chat_template = tg_pieces_copy(&r->k->memory, text, bytes).at;
        tg_host_free(r->k->ctx, text, bytes + 1);
    }
    tg_host_strfree(r->k->ctx, path);
    return s == TG_OK ? tg_ctx_status(r->k->ctx) : s;
}

tg_status tg_load_directory(tg_tokenizer *k, const char *directory) {
    reading r = {k, directory};
    TG_TRY(read_template_file(&r));
    TG_TRY(read_json(&r, "tokenizer_config.json", read_config));
    TG_TRY(read_json(&r, "special_tokens_map.json", read_names));
    TG_TRY(read_json(&r, "generation_config.json", read_ids));
    return k->n_ends && k->bos >= 0 ? TG_OK : read_json(&r, "config.json", read_ids);
}
