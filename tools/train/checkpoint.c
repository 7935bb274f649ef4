/* Checkpoints of a run. A checkpoint is the model's directory, the optimizer's state (index.json, and a file of each
 * rank), and state.json. A pipeline writes files of weights for each stage. state.json holds the options, the size and
 * hash of the data, and checksums of config.json, of both indexes, of state.json itself and of the headers of the
 * tensor files. Those headers hold the checksums of the tensors. So damage, and a file from another checkpoint, are
 * detected. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model_files.h"
#include "data/data_kind.h"
#include "train/train.h"

/* ---- state.json ---- */

enum { FORMAT = 5 }; /* in files of formats up to 4, "schedule" was the schedule of the learning rate */

/* Returns whether the option applies to one call of the program only, so that checkpoints do not keep it. */
static bool is_per_call(const char *name) {
    static const char *const names[] = {"time",        "resume",        "resume-step", "comm",  "device",      "record",
                                        "record-step", "record-values", "find-nan",    "trace", "tensorboard", "live"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* Returns the option's value as text that option_set takes: the option's own text, or a number in buf. */
static const char *value_text(const option *row, const train_options *o, char *buf, size_t n) {
    const char *text = row->kind == OPTION_LIST ? *(const char *const *)((const char *)o + row->at) : NULL;
    option_text(row, o, buf, n);
    return text ? text : buf;
}

/* Returns the options as JSON; NULL if a value is not UTF-8. A value of --out that is not UTF-8 is left out, because
 * --resume is given --out. */
static json_t *options_json(const train_options *o) {
    json_t *object = json_object();
    bool good = object != NULL;
    for (int i = 0; good && i < train_command.n_options; i++) {
        const option *row = &train_command.options[i];
        char number[4096];
        const char *text = value_text(row, o, number, sizeof number);
        if (is_per_call(row->name) || !*text) continue;
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

static uint64_t word_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? strtoull(text, NULL, 10) : 0;
}

/* ---- Checksums ---- */

enum { DIGITS = 16 };
#define NO_SUM "0000000000000000"

static void put_sum(char out[DIGITS + 1], uint64_t sum) { snprintf(out, DIGITS + 1, "%016" PRIx64, sum); }

/* Returns the name of the checkpoint's config: that of the model, or with --lora that of the adapters. */
static const char *config_name(const char *dir) {
    return is_there(dir, "adapter_config.json") ? "adapter_config.json" : "config.json";
}

/* Writes the checksum of the config as text. */
static bool sum_config(const char *dir, char out[DIGITS + 1]) {
    size_t n = 0;
    char *path = path_in(dir, config_name(dir)), *text = path ? read_whole(path, &n) : NULL;
    if (text) put_sum(out, tg_checksum(text, n));
    free(path);
    free(text);
    return text != NULL;
}

/* Writes as text the checksum of a tensor file's header, or of the whole file if it is JSON. */
static bool sum_header(const char *dir, const char *name, char out[DIGITS + 1]) {
    char *path = path_in(dir, name);
    bool json = strlen(name) > 5 && !strcmp(name + strlen(name) - 5, ".json");
    FILE *f = path && !json ? open_regular(path) : NULL;
    size_t n = 0;
    char *header = json && path ? read_whole(path, &n) : f ? read_tensors_header(f, &n) : NULL;
    bool good = header != NULL;
    if (f && !good) fail("'%s' is damaged: its header is not whole", path);
    put_sum(out, header ? tg_checksum(header, n) : 0);
    free(header);
    if (f) fclose(f);
    free(path);
    return good;
}

/* Returns whether a checkpoint keeps a checksum (sum_header) of the file. It does for all files with tensors, and for
 * the indexes of the weights and of the state. */
static int has_sum(const struct dirent *e) {
    return !fnmatch("model*.safetensors", e->d_name, 0) || !fnmatch("rank-*.safetensors", e->d_name, 0) ||
           !strcmp(e->d_name, "adapter_model.safetensors") || !strcmp(e->d_name, "model.safetensors.index.json") ||
           !strcmp(e->d_name, "index.json");
}

/* Returns the checksums of the files for which has_sum is true, by name; NULL after printing what is wrong. */
static json_t *headers_json(const char *dir) {
    struct dirent **found = NULL;
    char sum[DIGITS + 1];
    int n = scandir(dir, &found, has_sum, alphasort);
    bool good = n >= 0 || (fail("cannot read the directory '%s': %s", dir, strerror(errno)), false);
    json_t *headers = json_object();
    for (int i = 0; i < n; i++) {
        good = good && sum_header(dir, found[i]->d_name, sum);
        if (good) json_object_set_new(headers, found[i]->d_name, json_string(sum));
        free(found[i]);
    }
    free(found);
    if (good) return headers;
    json_decref(headers);
    return NULL;
}

static bool check_headers(const char *dir, json_t *state) {
    char sum[DIGITS + 1];
    const char *name;
    json_t *expected;
    json_object_foreach(json_object_get(state, "headers_xxh64"), name, expected) {
        const char *text = json_string_value(expected);
        if (strchr(name, '/') || !text)
            return fail("'%s/state.json' is not the state of a run: '%.64s' is not a file with a checksum", dir, name),
                   false;
        if (!sum_header(dir, name, sum)) return false;
        if (strcmp(sum, text) != 0)
            return fail("'%s/%s' is damaged, or of another checkpoint: its header's checksum is %s, expected %s", dir,
                        name, sum, text),
                   false;
    }
    return true;
}

/* Returns the digits of the checksum in the text of state.json; NULL if it has none. The checksum is computed with
 * zeros in place of these digits. No string in the file can look like the key, because its quotes would be escaped. */
static char *find_sum(char *text, size_t n) {
    static const char key[] = "\"xxh64\": \"";
    char *at = memmem(text, n, key, sizeof key - 1);
    if (at) at += sizeof key - 1;
    return at && text + n - at > DIGITS && at[DIGITS] == '"' ? at : NULL;
}

/* Verifies the checksum in the text of state.json, and overwrites its digits with zeros. */
static bool check_sum(const char *path, char *text, size_t n) {
    char *digits = find_sum(text, n), expected[DIGITS + 1], sum[DIGITS + 1];
    if (!digits) return fail("'%s' has no checksum", path), false;
    snprintf(expected, sizeof expected, "%.*s", DIGITS, digits);
    memcpy(digits, NO_SUM, DIGITS);
    put_sum(sum, tg_checksum(text, n));
    return strcmp(sum, expected) == 0 ||
           (fail("'%s' is damaged: its checksum is %s, expected %s", path, sum, expected), false);
}

static bool check_config(const char *dir, const json_t *state) {
    char sum[DIGITS + 1];
    const char *expected = json_string_value(json_object_get(state, "config_xxh64"));
    return sum_config(dir, sum) &&
           (!strcmp(sum, expected ? expected : "") ||
            (fail("'%s/%s' is damaged: its checksum is %s, expected %s", dir, config_name(dir), sum, expected), false));
}

/* ---- The file ---- */

/* Returns what identifies the data. Of --order only the offsets of the steps done count, because the file is longer if
 * the run is continued to more steps. */
static json_t *data_json(const train_data *d, int64_t step) {
    json_t *data = json_pack("{s:I, s:o}", "tokens", (json_int_t)d->count, "hash", word(d->hash));
    if (data && d->order) json_object_set_new(data, "order", word(data_order_sum(d, step)));
    return data;
}

static bool is_relative(const char *path) { return path && path[0] != '/'; }

/* Returns the current directory if a path among the options is relative. Otherwise, and if the directory's name is not
 * UTF-8, returns NULL. */
static json_t *origin_json(const train_options *o) {
    bool relative = is_relative(o->data) || is_relative(o->val_data) || is_relative(o->init) || is_relative(o->order);
    char *here = relative ? getcwd(NULL, 0) : NULL;
    json_t *origin = here ? json_string(here) : NULL;
    free(here);
    return origin;
}

static json_t *state_json(const char *dir, int64_t step, const train_options *o, const train_data *d) {
    char config[DIGITS + 1];
    json_t *headers = sum_config(dir, config) ? headers_json(dir) : NULL;
    if (!headers) return NULL;
    json_t *state = json_pack("{s:i, s:s, s:I, s:o, s:o, s:o, s:s, s:s}", "format", FORMAT, "version", tg_version(),
                              "step", (json_int_t)step, "data", data_json(d, step), "options", options_json(o),
                              "headers_xxh64", headers, "config_xxh64", config, "xxh64", NO_SUM);
    json_t *origin = state ? origin_json(o) : NULL;
    if (origin) json_object_set_new(state, "directory", origin);
    return state;
}

static bool save_state(const char *dir, int64_t step, const train_options *o, trainer *r, const train_data *d) {
    json_t *state = state_json(dir, step, o, d);
    char *text = state ? json_dumps(state, JSON_INDENT(2)) : NULL, *path = path_in(dir, "state.json");
    char *digits = text ? find_sum(text, strlen(text)) : NULL, sum[DIGITS + 1];
    if (digits && path) {
        put_sum(sum, tg_checksum(text, strlen(text)));
        memcpy(digits, sum, DIGITS);
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
    return check_format(path, state) && check_sum(path, text, n) && check_config(dir, state) &&
           check_headers(dir, state);
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

static bool load_state(const char *dir, json_t **state) {
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

/* ---- Options ---- */

/* If an option was not given, sets it to the saved value. If it was given and is fixed, it must equal the saved value.
 * If it was given and is not fixed, it may differ, and a difference is printed. */
static bool merge_option(const option *row, bool given, const char *saved, train_options *o) {
    char number[4096];
    const char *now = value_text(row, o, number, sizeof number);
    if (!given) {
        const char *expected = *saved ? option_set(row, o, saved) : NULL;
        return !expected || (fail("the checkpoint's --%s is '%s', expected %s%s%s", row->name, saved, expected,
                                  row->kind == OPTION_CHOICE ? " " : "", row->kind == OPTION_CHOICE ? row->values : ""),
                             false);
    }
    if (strcmp(now, saved) == 0) return true;
    if (row->fixed)
        return fail("--%s is %s, but the run in --out was begun with %s; leave --%s out, or begin another run",
                    row->name, now, *saved ? saved : "none", row->name),
               false;
    if (row->kind != OPTION_LIST) say("--%s is %s from now on; it was %s\n", row->name, now, saved);
    return true;
}

/* Returns whether the file can be read. With --data-format megatron the path FILE stands for FILE.bin and FILE.idx. */
static bool is_readable(const char *path) {
    char index[4096];
    snprintf(index, sizeof index, "%s.idx", path);
    return access(path, R_OK) == 0 || access(index, R_OK) == 0;
}

static bool refuse_path(const char *name, const char *path, const char *origin) {
    if (!is_relative(path))
        fail("the checkpoint's --%s is '%s', which cannot be opened (%s); give --%s FILE", name, path, strerror(ENOENT),
             name);
    else if (origin)
        fail("the checkpoint's --%s is '%s', given in the directory '%s'; there is no such file there, nor in the "
             "current directory: give --%s FILE",
             name, path, origin, name);
    else
        fail("the checkpoint's --%s is '%s', given in a directory that the checkpoint does not name; there is no such "
             "file in the current directory: give --%s FILE",
             name, path, name);
    return false;
}

static bool is_current(const char *directory) {
    char *here = getcwd(NULL, 0);
    bool same = here && !strcmp(here, directory);
    free(here);
    return same;
}

/* Replaces a relative path of the checkpoint's options by a path that is valid now. The old path was relative to the
 * directory in which the run was started. If the file is no longer there, tries the same path in the current directory,
 * because a directory tree may have been moved as a whole. The new path belongs to `state`. */
static bool resolve_path(const char *name, json_t *state, const char **path) {
    const char *origin = json_string_value(json_object_get(state, "directory"));
    if (!*path || (!is_relative(*path) && is_readable(*path))) return true;
    bool moved = origin && is_relative(*path) && !is_current(origin);
    char *there = moved ? path_in(origin, *path) : NULL;
    bool found = there && is_readable(there);
    if (found) {
        char key[32];
        snprintf(key, sizeof key, "path of --%s", name);
        json_object_set_new(state, key, json_string(there));
        *path = json_string_value(json_object_get(state, key));
    }
    free(there);
    return found || is_readable(*path) || refuse_path(name, *path, origin);
}

/* Resolves the path of --data or --val-data, if it is the checkpoint's. Several words, standard input, and what has
 * become a token file of the run, are left as they are. */
static bool resolve_data(const char *name, const parsed *p, json_t *state, const train_options *o, const char **path) {
    char plan[4096];
    snprintf(plan, sizeof plan, "%s/data/data.json", o->out);
    bool input = *path && !strcmp(*path, "-");
    if (option_given(&train_command, p, name) || !*path || input || strchr(*path, '\n') || access(plan, F_OK) == 0)
        return true;
    return resolve_path(name, state, path);
}

/* Returns the text of a saved option; "" if it is not there. Runs of earlier versions, which had no --pad-documents,
 * padded all documents that they kept apart, and go on with that. */
static const char *saved_text(const json_t *options, const char *name) {
    const char *text = json_string_value(json_object_get(options, name));
    const char *across = json_string_value(json_object_get(options, "attend-across"));
    if (text || strcmp(name, "pad-documents") != 0) return text ? text : "";
    return across && !strcmp(across, "false") ? "true" : "false";
}

bool checkpoint_read_options(const char *dir, train_options *o, const parsed *p, json_t **state) {
    if (!load_state(dir, state)) return false;
    const json_t *options = json_object_get(*state, "options");
    for (int i = 0; i < train_command.n_options; i++) {
        const option *row = &train_command.options[i];
        if (is_per_call(row->name) || strcmp(row->name, "out") == 0) continue;
        bool given = option_given(&train_command, p, row->name);
        if (given && !p->given[i]) continue; /* given by its other name */
        if (!merge_option(row, given, saved_text(options, row->name), o)) return false;
    }
    bool order = option_given(&train_command, p, "order");
    return resolve_data("data", p, *state, o, &o->data) && resolve_data("val-data", p, *state, o, &o->val_data) &&
           (!o->lora || resolve_path("init", *state, &o->init)) &&
           (order || resolve_path("order", *state, &o->order));
}

/* ---- Whether a checkpoint is whole ---- */

static bool tensors_are_whole(const char *dir, const char *name) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    char *path = path_in(dir, name);
    tg_safetensors *f = path ? tg_safetensors_open(ctx, path) : NULL;
    for (int i = 0; i < tg_safetensors_count(f) && tg_ctx_status(ctx) == TG_OK; i++)
        tg_drop(tg_safetensors_load(f, tg_safetensors_at(f, i)->name));
    bool whole = f && tg_ctx_status(ctx) == TG_OK;
    tg_safetensors_close(f);
    free(path);
    tg_ctx_free(ctx);
    return whole;
}

bool checkpoint_headers_are_whole(const char *dir) {
    json_t *state = NULL;
    bool whole = load_state(dir, &state);
    json_decref(state);
    return whole;
}

bool checkpoint_is_whole(const char *dir) {
    char why[512];
    json_t *state = NULL;
    hold_errors(why, sizeof why);
    bool whole = load_state(dir, &state);
    hold_errors(NULL, 0);
    const char *name;
    json_t *sum;
    json_object_foreach(json_object_get(state, "headers_xxh64"), name, sum)
        if (whole && strstr(name, ".json") == NULL) whole = tensors_are_whole(dir, name);
    json_decref(state);
    return whole;
}

int64_t checkpoint_newest_whole(const char *run, int64_t before) {
    char dir[4096];
    for (int64_t step; (step = newest_checkpoint_before(run, before)) > 0; before = step) {
        snprintf(dir, sizeof dir, "%s/checkpoints/step-%010" PRId64, run, step);
        if (checkpoint_is_whole(dir)) return step;
    }
    return 0;
}

/* ---- The optimizer's state, of which each rank has shards, and the random streams ---- */

/* Excludes the rows that pad the vocabulary, so that any number of ranks can load the file. */
static void exclude_padding(tg_shards *s, const trainer *r) {
    const tg_lm_config *c = tg_lm_config_of(r->stage.chunk[0]);
    for (int i = 0; i < tg_shards_count(s); i++) {
        tg_shard_info info = TG_SHARD_INFO();
        tg_shards_at(s, i, &info);
        bool table = info.key && (strstr(info.key, "wte.weight.") || strstr(info.key, "embed_tokens.weight.") ||
                                  !strncmp(info.key, "lm_head.weight.", 15));
        if (table && info.whole.dim[0] > c->vocab) tg_shards_set_rows(s, info.key, c->vocab);
    }
}

/* Lists the optimizer's state and the random streams. */
static tg_shards *list_state(const trainer *r) {
    tg_shards *s = tg_shards_new(r->parallel);
    tg_shards_add_optim(s, NULL, r->optim);
    tg_shards_add_rng(s);
    exclude_padding(s, r);
    return s;
}

static bool load_state_of_ranks(const char *dir, trainer *r) {
    tg_shards *s = list_state(r);
    tg_shards_load(s, dir);
    tg_shards_free(s);
    return check(r->ctx);
}

/* ---- Save and restore ---- */

/* Checks that the file of --order has the same offsets, for the steps done, as the one that the run began with. A
 * checkpoint of an earlier version has no checksum of --order, and passes. */
static bool check_order(const json_t *state, const json_t *data, const train_data *d, const char *path) {
    int64_t step = json_integer_value(json_object_get(state, "step"));
    if (!d->order || !json_object_get(data, "order") || word_of(data, "order") == data_order_sum(d, step)) return true;
    return fail("--order '%s' is not the one that the run began with: the offsets of steps 1 to %" PRId64
                " differ", path,
                step),
           false;
}

/* Returns whether the data are one source whose first n tokens have this hash. That of several covers their sizes. */
static bool begins_with(const train_data *d, int64_t n, uint64_t hash) {
    return d->corpus.n == 1 && tokens_sum_of(d->tokens, n) == hash;
}

bool checkpoint_restore(const char *dir, const json_t *state, const train_options *o, trainer *r, const train_data *d) {
    const json_t *data = json_object_get(state, "data");
    int64_t tokens = json_integer_value(json_object_get(data, "tokens"));
    if (d->count > tokens && begins_with(d, tokens, word_of(data, "hash")))
        say("--data has %" PRId64 " tokens from now on: the %" PRId64 " that the run began with, and more after them\n",
            d->count, tokens);
    else if (tokens != d->count || word_of(data, "hash") != d->hash)
        return fail("--data is not what the run began with: it has %" PRId64 " tokens%s, expected %" PRId64, d->count,
                    tokens == d->count ? " with other contents" : "", tokens),
               false;
    return check_order(state, data, d, o->order) && load_state_of_ranks(dir, r);
}

bool checkpoint_prune(const run_directory *directory, const train_options *o) {
    tg_checkpoints_keep(directory->checkpoints, (int)o->keep);
    return check(directory->files);
}

/* Sends the path of the checkpoint's directory to the other ranks, which write files too. path: rank 0's. */
static bool send_path(trainer *r, char path[4096]) {
    int64_t words[4096 / sizeof(int64_t)];
    if (tg_comm_size(r->world) == 1) return true;
    memcpy(words, path, sizeof words);
    if (!broadcast_from_rank_0(r->ctx, r->world, words, (int)(sizeof words / sizeof *words))) return false;
    memcpy(path, words, sizeof words);
    return true;
}

/* Saves the model, whose parts the first rank of each stage gathers and writes, and begins to save the state. */
static bool begin_files(const train_options *o, trainer *r) {
    tg_shards *s = list_state(r);
    trainer_save(r, r->saving.dir);
    r->saving.save = tg_shards_save_begin(s, r->saving.dir, TG_SAVE(.background = o->async_save));
    tg_shards_free(s);
    return check(r->ctx);
}

/* Gives up the checkpoint that has begun. Returns false. */
static bool abandon(const run_directory *directory, trainer *r) {
    if (r->saving.save) tg_save_finish(r->saving.save);
    r->saving.save = NULL;
    if (directory) tg_checkpoints_abandon(directory->checkpoints);
    return false;
}

bool checkpoint_save(const run_directory *directory, int64_t step, const train_options *o, trainer *r,
                     const train_data *d) {
    if (!checkpoint_finish(directory, o, r, d)) return false;
    r->saving.step = step;
    if (directory) {
        const char *dir = tg_checkpoints_begin(directory->checkpoints, step);
        if (!dir) return check(directory->files);
        snprintf(r->saving.dir, sizeof r->saving.dir, "%s", dir);
    }
    if (!send_path(r, r->saving.dir) || !begin_files(o, r)) return abandon(directory, r);
    return o->async_save || checkpoint_finish(directory, o, r, d);
}

bool checkpoint_finish(const run_directory *directory, const train_options *o, trainer *r, const train_data *d) {
    if (!r->saving.save) return true;
    tg_save_finish(r->saving.save);
    r->saving.save = NULL;
    if (!check(r->ctx)) return abandon(directory, r);
    if (!directory) return true;
    if (!save_state(r->saving.dir, r->saving.step, o, r, d)) return abandon(directory, r);
    tg_checkpoints_commit(directory->checkpoints);
    return check(directory->files) && checkpoint_prune(directory, o);
}
