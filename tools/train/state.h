/* state.json of a checkpoint. It holds the options of the run, the size and hash of the data, and checksums of
 * config.json or adapter_config.json, of the indexes, of state.json itself and of the headers of the tensor files.
 * Those headers hold the checksums of the tensors. So damage, and a file from another checkpoint, are detected.
 * Functions that return bool print what is wrong and return false. */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include <string.h>

#include "train/train.h"

/* ---- state_file.c: the file ---- */

/* Writes state.json of a checkpoint whose other files are complete. */
bool state_save(const char *dir, int64_t step, const train_options *o, trainer *r, const train_data *d);
/* Reads state.json into *state, which the caller frees, and checks all its checksums. */
bool state_load(const char *dir, json_t **state);
/* Returns whether the option applies to one call of the program only, so that checkpoints do not keep it. */
bool state_leaves_out(const char *name);
/* Returns the option's value as text that option_set takes: the option's own text, or a number in buf. */
const char *option_value(const option *row, const train_options *o, char *buf, size_t n);
/* Returns the 64-bit word in a member of an object; 0 if it is not there. */
uint64_t state_word_of(const json_t *object, const char *key);
static inline bool is_relative(const char *path) { return path && path[0] != '/'; }
/* Returns whether one of the words, which are separated by line breaks, is a relative path. words may be NULL. */
static inline bool has_relative(const char *words) {
    for (; words; words = strchr(words, '\n') ? strchr(words, '\n') + 1 : NULL)
        if (is_relative(words)) return true;
    return false;
}

/* ---- state_sums.c: checksums, as text ---- */

enum { STATE_DIGITS = 16 };
#define STATE_NO_SUM "0000000000000000"

void state_put_sum(char out[STATE_DIGITS + 1], uint64_t sum);
/* Writes the checksum of the config. */
bool state_sum_config(const char *dir, char out[STATE_DIGITS + 1]);
/* Returns the checksums of the files with tensors and of the indexes, by name; NULL after printing what is wrong. */
json_t *state_sum_headers(const char *dir);
/* Returns the digits of the checksum in the text of state.json; NULL if it has none. */
char *state_find_sum(char *text, size_t n);
/* Verifies the checksum in the text of state.json, and overwrites its digits with zeros. */
bool state_check_sum(const char *path, char *text, size_t n);
bool state_check_config(const char *dir, const json_t *state);
bool state_check_headers(const char *dir, json_t *state);

#endif
