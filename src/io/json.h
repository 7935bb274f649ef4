/* JSON documents (a model's config.json, a run's state): jansson's tree behind typed getters whose errors name the
 * file, the key, what was expected and what was found. jansson takes its own memory from malloc. */
#ifndef TG_JSON_H
#define TG_JSON_H

#include <jansson.h>

#include "io/file.h"

/* An object of a document. The tree belongs to the document; objects inside it are looked at by the same getters. */
typedef struct tg_json {
    tg_ctx *ctx;
    const char *path; /* in errors; the caller's */
    json_t *object;
} tg_json;

/* Reads an object from a file of at most 16 MiB. Duplicate keys, bytes that are not UTF-8, NaN, integers beyond 64
 * bits, reals beyond double, and nesting beyond 2,048 are refused, with line and offset. */
tg_status tg_json_load(tg_json *j, tg_ctx *ctx, const char *path);
/* The same from memory; path names the text in errors. */
tg_status tg_json_parse(tg_json *j, tg_ctx *ctx, const char *path, const char *text, size_t bytes);
void tg_json_free(tg_json *j);
/* Writes root by tg_file_save, indented. Reals have the fewest digits, from 15 on, that read back as the same. */
tg_status tg_json_save(tg_ctx *ctx, const char *path, const json_t *root);

bool tg_json_has(const tg_json *j, const char *key); /* and it is not null */

/* Required keys: an absent one is an error. Guard by tg_json_has what may be left out. */
tg_status tg_json_int(const tg_json *j, const char *key, int64_t lo, int64_t hi, int64_t *out); /* in [lo, hi] */
tg_status tg_json_real(const tg_json *j, const char *key, double *out);                         /* or an integer */
tg_status tg_json_bool(const tg_json *j, const char *key, bool *out);
tg_status tg_json_string(const tg_json *j, const char *key, const char **out); /* lives as long as the document */
tg_status tg_json_object(const tg_json *j, const char *key, tg_json *out);     /* borrowed: not freed */
tg_status tg_json_array(const tg_json *j, const char *key, json_t **out);

#endif
