/* Reading tokenizer.json: what its parts share. */
#ifndef TG_TEXT_LOAD_H
#define TG_TEXT_LOAD_H

#include "io/json.h"
#include "text/tokenizer.h"

/* Fails because this library does not know something in the file: `what` is the part, such as "the decoder", and `name`
 * the type that it has. */
tg_status tg_load_refuse(const tg_tokenizer *k, const char *what, const char *name);
/* Copies a JSON string into the tokenizer's memory. */
tg_status tg_load_text(tg_tokenizer *k, const json_t *string, tg_span *out);
/* Read an optional key. They leave *out as it is if the key is absent or null. */
tg_status tg_load_bool(const tg_json *j, const char *key, bool *out);
tg_status tg_load_string(tg_tokenizer *k, const tg_json *j, const char *key, tg_span *out);
/* Returns the type of a part, "" if it has none. */
const char *tg_load_type(const tg_json *j);
/* Reads {"String": "..."} or {"Regex": "..."} under the key "pattern". Sets *sought, or *pattern for an expression. */
tg_status tg_load_pattern(tg_tokenizer *k, const tg_json *j, const char *what, tg_span *sought, tg_pattern **pattern);

/* Calls `read` for the part of the file that has this name; if its type is "Sequence", for each part of the list under
 * the key `list` instead. Does nothing if the file has no such part, or null. */
typedef tg_status tg_read_part_fn(tg_tokenizer *k, const tg_json *j);
tg_status tg_load_parts(tg_tokenizer *k, const tg_json *file, const char *name, const char *list,
                        tg_read_part_fn *read);

tg_status tg_load_model(tg_tokenizer *k, const tg_json *file);
tg_status tg_load_added(tg_tokenizer *k, const tg_json *file);
tg_read_part_fn tg_load_normal_step, tg_load_split_step, tg_load_decode_step, tg_load_post_step;
/* Completes a tokenizer whose parts have been read, and checks the whole. */
tg_status tg_load_complete(tg_tokenizer *k, const tg_json *file);
/* Reads the other files of a directory. */
tg_status tg_load_directory(tg_tokenizer *k, const char *directory);

#endif
