/* JSON documents, such as a model's config.json or a run's state: jansson's tree and typed getters. Errors name the
 * file, the key, what was expected and what was found. jansson allocates with malloc. */
#ifndef TG_JSON_H
#define TG_JSON_H

#include <jansson.h>

#include "io/file.h"

/* A JSON object: a whole document, or an object in it. tg_json_free of the document frees both. */
typedef struct tg_json {
    tg_ctx *ctx;
    const char *path; /* names the document in errors; belongs to the caller */
    json_t *object;
} tg_json;

/* Reads an object from a file of at most 16 MiB. Refuses duplicate keys, bytes that are not UTF-8, NaN, integers
 * beyond 64 bits, reals beyond double, and nesting deeper than 2,048; the error has line and offset. */
tg_status tg_json_load(tg_json *j, tg_ctx *ctx, const char *path);
/* Adds the members of `from` that `to` lacks. Returns 0 unless there is no memory, which jansson's function of this
 * kind does not report. */
int tg_json_add_missing(json_t *to, json_t *from);
/* Reads an object from memory. path names the text in errors. */
tg_status tg_json_parse(tg_json *j, tg_ctx *ctx, const char *path, const char *text, size_t bytes);
/* Returns whether jansson could not parse a text because there was no memory, which it reports in several ways. */
bool tg_json_lacks_memory(const json_error_t *e);
void tg_json_free(tg_json *j);
/* Writes root with tg_file_save, indented. All reals are written with the same number of digits: the least from 15 to
 * 17 with which every one reads back as the same number. */
tg_status tg_json_save(tg_ctx *ctx, const char *path, const json_t *root);

/* Returns the text of root, which the caller frees with free; NULL: no memory. It takes the place of jansson's
 * json_dumps, which leaves out keys for which it has no memory. */
char *tg_json_text(const json_t *root, size_t flags);

bool tg_json_has(const tg_json *j, const char *key); /* true if the key exists and is not null */

/* Get the value of a required key. They fail with TG_ERR_FORMAT if the key is absent, or if its value has another type
 * or is out of range. For an optional key call tg_json_has first. */
tg_status tg_json_int(const tg_json *j, const char *key, int64_t lo, int64_t hi, int64_t *out); /* in [lo, hi] */
tg_status tg_json_real(const tg_json *j, const char *key, double *out);                         /* accepts an integer */
tg_status tg_json_bool(const tg_json *j, const char *key, bool *out);
tg_status tg_json_string(const tg_json *j, const char *key, const char **out); /* lives as long as the document */
tg_status tg_json_object(const tg_json *j, const char *key, tg_json *out);     /* borrowed: do not free it */
tg_status tg_json_array(const tg_json *j, const char *key, json_t **out);

#endif
