/* Loading a tokenizer: tokenizer.json as a whole, and what its parts share. */
#define _GNU_SOURCE
#include <sys/stat.h>

#include "text/load/load.h"

enum { FILE_LIMIT = 256 << 20 }; /* bytes of a tokenizer.json */

/* ---- What the parts share ---- */

tg_status tg_load_refuse(const tg_tokenizer *k, const char *what, const char *name) {
    return tg_fail(k->ctx, TG_ERR_UNSUPPORTED,
                   "'%s': %s is '%s', which this library does not support (docs/tokenizers.md)", k->path, what, name);
}

tg_status tg_load_text(tg_tokenizer *k, const json_t *string, tg_span *out) {
    *out = tg_pieces_copy(&k->memory, json_string_value(string), json_string_length(string));
    return out->at ? TG_OK : TG_ERR_MEMORY;
}

tg_status tg_load_bool(const tg_json *j, const char *key, bool *out) {
    return tg_json_has(j, key) ? tg_json_bool(j, key, out) : TG_OK;
}

tg_status tg_load_string(tg_tokenizer *k, const tg_json *j, const char *key, tg_span *out) {
    const char *ignored;
    if (!tg_json_has(j, key)) return TG_OK;
    TG_TRY(tg_json_string(j, key, &ignored));
    return tg_load_text(k, json_object_get(j->object, key), out);
}

const char *tg_load_type(const tg_json *j) {
    const char *type = json_string_value(json_object_get(j->object, "type"));
    return type ? type : "";
}

tg_status tg_load_pattern(tg_tokenizer *k, const tg_json *j, const char *what, tg_span *sought, tg_pattern **pattern) {
    tg_json kinds;
    tg_span text = {0};
    TG_TRY(tg_json_object(j, "pattern", &kinds));
    TG_TRY(tg_load_string(k, &kinds, "String", &text));
    bool is_text = text.at != NULL;
    if (!is_text) TG_TRY(tg_load_string(k, &kinds, "Regex", &text));
    if (!text.n)
        return tg_fail(k->ctx, TG_ERR_UNSUPPORTED,
                       "'%s': the pattern of %s is %s, expected a \"String\" or a \"Regex\" that is not empty", k->path,
                       what, text.at ? "empty" : "neither of the known kinds");
    if (is_text) return *sought = text, TG_OK;
    return tg_tokenizer_pattern(k, text.at, text.n, false, pattern);
}

tg_status tg_load_parts(tg_tokenizer *k, const tg_json *file, const char *name, const char *list,
                        tg_read_part_fn *read) {
    tg_json part = {.ctx = file->ctx, .path = file->path};
    json_t *parts, *one;
    size_t i;
    if (!tg_json_has(file, name)) return TG_OK;
    TG_TRY(tg_json_object(file, name, &part));
    if (strcmp(tg_load_type(&part), "Sequence") != 0) return read(k, &part);
    TG_TRY(tg_json_array(&part, list, &parts));
    json_array_foreach(parts, i, one) {
        tg_json inner = {.ctx = file->ctx, .path = file->path, .object = one};
        if (!json_is_object(one) || !strcmp(tg_load_type(&inner), "Sequence"))
            return tg_fail(k->ctx, TG_ERR_UNSUPPORTED,
                           "'%s': element %zu of the sequence \"%s\" is %s, expected a part that is no sequence",
                           k->path, i, name, json_is_object(one) ? "a sequence" : "not an object");
        TG_TRY(read(k, &inner));
    }
    return TG_OK;
}

/* ---- Tokenizers ---- */

tg_tokenizer *tg_tokenizer_make(tg_ctx *ctx, const char *path) {
    tg_tokenizer *k = tg_host_alloc(ctx, sizeof *k);
    if (!k) return NULL;
    k->ctx = ctx;
    k->memory.ctx = ctx;
    k->bos = k->model.unknown = TG_NO_ID;
    pthread_mutex_init(&k->lock, NULL);
    k->path = tg_pieces_copy(&k->memory, path, strlen(path)).at;
    if (k->path) return k;
    tg_tokenizer_free(k);
    return NULL;
}

void tg_tokenizer_free(tg_tokenizer *k) {
    if (!k) return;
    while (k->idle) {
        tg_encoder *e = k->idle;
        k->idle = e->next;
        tg_encoder_free(e);
    }
    for (int i = 0; i < k->n_patterns; i++) k->functions->pattern_free(k->patterns[i]);
    pthread_mutex_destroy(&k->lock);
    tg_pieces_free(&k->memory);
    tg_host_free(k->ctx, k, sizeof *k);
}

tg_status tg_tokenizer_needs_functions(tg_tokenizer *k) {
    if (!k->functions) k->functions = tg_text_functions(k->ctx, k->path);
    return k->functions ? TG_OK : tg_ctx_status(k->ctx);
}

tg_status tg_tokenizer_pattern(tg_tokenizer *k, const char *text, size_t n, bool is_ours, tg_pattern **out) {
    char why[256];
    size_t offset;
    tg_growing translated = {0};
    TG_TRY(tg_tokenizer_needs_functions(k));
    tg_status s = is_ours ? TG_OK : tg_pattern_translate(k->ctx, k->path, text, n, &translated);
    if (s == TG_OK) {
        *out = is_ours ? k->functions->pattern_new(text, n, why, &offset)
                       : k->functions->pattern_new(translated.at, (size_t)translated.n, why, &offset);
        if (!*out && !*why) s = tg_fail(k->ctx, TG_ERR_MEMORY, "'%s': no memory for a regular expression", k->path);
        if (!*out && *why)
            s = tg_fail(k->ctx, TG_ERR_FORMAT, "'%s': the regular expression '%.*s' is wrong: %s", k->path,
                        n > 400 ? 400 : (int)n, text, why);
    }
    free(translated.at);
    if (s == TG_OK) k->patterns[k->n_patterns++] = *out;
    return s;
}

/* Makes the tables by id: what is decoded, and which tokens are special. */
tg_status tg_tokenizer_finish(tg_tokenizer *k) {
    k->size = k->model.vocab.size;
    for (int32_t i = 0; i < k->added.count; i++)
        if (k->added.tokens[i].id >= k->size) k->size = (int64_t)k->added.tokens[i].id + 1;
    k->shown = tg_pieces_alloc(&k->memory, (size_t)k->size * sizeof *k->shown);
    k->special = tg_pieces_alloc(&k->memory, (size_t)k->size);
    if (!k->shown || !k->special) return TG_ERR_MEMORY;
    if (k->model.vocab.size) memcpy(k->shown, k->model.vocab.token, (size_t)k->model.vocab.size * sizeof *k->shown);
    for (int32_t i = 0; i < k->added.count; i++) {
        const tg_added_token *token = k->added.tokens + i;
        k->shown[token->id] = token->shown;
        k->special[token->id] = token->special;
    }
    return TG_OK;
}

/* ---- The file ---- */

static tg_status read_parts(tg_tokenizer *k, const tg_json *file) {
    TG_TRY(tg_load_model(k, file));
    TG_TRY(tg_load_parts(k, file, "normalizer", "normalizers", tg_load_normal_step));
    TG_TRY(tg_load_parts(k, file, "pre_tokenizer", "pretokenizers", tg_load_split_step));
    TG_TRY(tg_load_parts(k, file, "decoder", "decoders", tg_load_decode_step));
    TG_TRY(tg_load_added(k, file));
    TG_TRY(tg_load_parts(k, file, "post_processor", "processors", tg_load_post_step));
    return tg_load_complete(k, file);
}

static tg_status read_file(tg_tokenizer *k) {
    char *text;
    size_t bytes;
    tg_json file;
    TG_TRY(tg_file_load(k->ctx, k->path, FILE_LIMIT, &text, &bytes));
    tg_status s = tg_json_parse(&file, k->ctx, k->path, text, bytes);
    tg_host_free(k->ctx, text, bytes + 1);
    if (s != TG_OK) return s;
    s = read_parts(k, &file);
    tg_json_free(&file);
    return s == TG_OK ? tg_ctx_status(k->ctx) : s;
}

/* Sets *directory to whether path is a directory. For the context's file functions it is one if they have the file
 * path/tokenizer.json. The system is asked too: then the error for a directory without that file names the file. */
static tg_status is_directory(tg_ctx *ctx, const char *path, bool *directory) {
    struct stat st;
    char *file = tg_format_path(ctx, "%s/tokenizer.json", path);
    tg_status s = tg_file_exists(ctx, file, directory);
    tg_host_strfree(ctx, file);
    *directory |= stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return s;
}

tg_tokenizer *tg_tokenizer_load(tg_ctx *ctx, const char *path) {
    if (tg_io_enter(ctx) != TG_OK) return NULL;
    if (!path) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_tokenizer_load: path is NULL, expected a tokenizer.json or its directory");
        return NULL;
    }
    bool directory = false;
    if (is_directory(ctx, path, &directory) != TG_OK) return NULL;
    char *file = tg_format_path(ctx, directory ? "%s/tokenizer.json" : "%s", path);
    tg_tokenizer *k = file ? tg_tokenizer_make(ctx, file) : NULL;
    tg_host_strfree(ctx, file);
    if (k && read_file(k) == TG_OK && (!directory || tg_load_directory(k, path) == TG_OK)) return k;
    tg_tokenizer_free(k);
    return NULL;
}
