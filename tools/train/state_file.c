/* state.json of a checkpoint: what it holds, and how it is written, read and checked (state.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model_files.h"
#include "train/state.h"

/* In formats up to 4 the option "schedule" was what "lr-schedule" is now; since 5 it is the pipeline's schedule. */
enum { FORMAT = 5 };

bool state_leaves_out(const char *name) {
    static const char *const names[] = {"time",        "resume",        "resume-step", "comm",  "device",      "record",
                                        "record-step", "record-values", "find-nan",    "trace", "tensorboard", "live"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

const char *option_value(const option *row, const train_options *o, char *buf, size_t n) {
    bool is_text = row->kind == OPTION_TEXT || row->kind == OPTION_LIST; /* may be longer than buf */
    const char *text = is_text ? *(const char *const *)((const char *)o + row->at) : NULL;
    option_text(row, o, buf, n);
    return text ? text : buf;
}

/* Returns the options as JSON; NULL if a value is not UTF-8. A value of --out that is not UTF-8 is left out: a resumed
 * run does not read the saved --out, but takes that of its command line. */
static json_t *options_json(const train_options *o) {
    json_t *object = json_object();
    bool good = object != NULL;
    for (int i = 0; good && i < train_command.n_options; i++) {
        const option *row = &train_command.options[i];
        char number[4096];
        const char *text = option_value(row, o, number, sizeof number);
        if (state_leaves_out(row->name) || !*text) continue;
        good = json_object_set_new(object, row->name, json_string(text)) == 0 || !strcmp(row->name, "out");
    }
    if (good) return object;
    json_decref(object);
    return NULL;
}

/* Returns a 64-bit word as JSON text, because integers of jansson are signed. */
static json_t *word(uint64_t v) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, v);
    return json_string(text);
}

uint64_t state_word_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? strtoull(text, NULL, 10) : 0;
}

/* Returns what identifies the data. Of the file of --order it includes only the offsets of the steps that are done,
 * because a run that is continued to more steps is given a longer file. */
static json_t *data_json(const train_data *d, int64_t step) {
    json_t *data = json_pack("{s:I, s:o}", "tokens", (json_int_t)d->count, "hash", word(d->hash));
    if (data && d->order) json_object_set_new(data, "order", word(data_order_sum(d, step)));
    return data;
}

/* Returns the current directory if a path of --data, --val-data, --init or --order is relative. Otherwise, and if the
 * directory's name is not UTF-8, returns NULL. */
static json_t *origin_json(const train_options *o) {
    bool relative = has_relative(o->data) || has_relative(o->val_data) || is_relative(o->init) || is_relative(o->order);
    char *here = relative ? getcwd(NULL, 0) : NULL;
    json_t *origin = here ? json_string(here) : NULL;
    free(here);
    return origin;
}

static json_t *state_json(const char *dir, int64_t step, const train_options *o, const train_data *d) {
    char config[STATE_DIGITS + 1];
    json_t *headers = state_sum_config(dir, config) ? state_sum_headers(dir) : NULL;
    if (!headers) return NULL;
    json_t *state = json_pack("{s:i, s:s, s:I, s:o, s:o, s:o, s:s, s:s}", "format", FORMAT, "version", tg_version(),
                              "step", (json_int_t)step, "data", data_json(d, step), "options", options_json(o),
                              "headers_xxh64", headers, "config_xxh64", config, "xxh64", STATE_NO_SUM);
    json_t *origin = state ? origin_json(o) : NULL;
    if (origin) json_object_set_new(state, "directory", origin);
    if (state && o->origin) json_object_set_new(state, "directory of --data", json_string(o->origin));
    return state;
}

bool state_save(const char *dir, int64_t step, const train_options *o, trainer *r, const train_data *d) {
    json_t *state = state_json(dir, step, o, d);
    char *text = json_text(state, JSON_INDENT(2)), *path = path_in(dir, "state.json");
    char *digits = text ? state_find_sum(text, strlen(text)) : NULL, sum[STATE_DIGITS + 1];
    if (digits && path) {
        state_put_sum(sum, tg_checksum(text, strlen(text)));
        memcpy(digits, sum, STATE_DIGITS);
        tg_file_save(r->ctx, path, text, strlen(text));
    } else
        tg_ctx_fail(r->ctx, TG_ERR_IO, "cannot make '%s/state.json': no memory, or an option is not UTF-8", dir);
    json_decref(state);
    free(text);
    free(path);
    return check(r->ctx);
}

static bool check_format(const char *path, const json_t *state) {
    const json_t *format = json_object_get(state, "format");
    if (!json_is_integer(format) || !json_is_object(json_object_get(state, "options")))
        return fail("'%s' is not the state of a run: it has no format, or no options", path), false;
    if (json_integer_value(format) == FORMAT) return true;
    return fail("'%s' has format %lld, expected %d, which this version reads", path,
                (long long)json_integer_value(format), FORMAT),
           false;
}

static bool check_state(const char *dir, const char *path, char *text, size_t n, json_t *state) {
    return check_format(path, state) && state_check_sum(path, text, n) && state_check_config(dir, state) &&
           state_check_headers(dir, state);
}

/* Checks that the step in the directory's name is the one in the state. */
static bool check_step(const char *dir, const json_t *state) {
    const char *dash = strrchr(dir, '-');
    const json_t *step = json_object_get(state, "step");
    if (!dash || !json_is_integer(step) || strtoll(dash + 1, NULL, 10) == json_integer_value(step)) return true;
    return fail("'%s' holds the checkpoint of step %lld: the directory was renamed, or its files were replaced", dir,
                (long long)json_integer_value(step)),
           false;
}

bool state_load(const char *dir, json_t **state) {
    size_t n = 0;
    char *path = path_in(dir, "state.json"), *text = path ? read_whole(path, &n) : NULL;
    json_error_t error;
    *state = text ? json_loadb(text, n, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (text && !*state) fail("'%s' is not the state of a run: line %d: %s", path, error.line, error.text);
    bool good = *state && check_state(dir, path, text, n, *state) && check_step(dir, *state);
    free(text);
    free(path);
    return good;
}
