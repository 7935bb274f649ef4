/* Checkpoints of a run: the model's directory, the optimiser's state-00000.safetensors, and state.json, which holds the
 * options, the random streams, what tells the data, and checksums of config.json, of itself, and of the headers of the
 * files of tensors: these hold those of the tensors, so that no file of another checkpoint passes for this one's. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* ---- state.json ---- */

/* What a run is told anew each time: it is not of the run. */
static bool is_of_the_call(const char *name) {
    static const char *const names[] = {"resume", "comm",        "device",       "find-nan",
                                        "record", "record-step", "record-values"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* NULL: some value is no text that JSON holds. Of --out that does no harm, for a resumed run is given it. */
static json_t *options_json(const train_options *o) {
    json_t *object = json_object();
    bool good = object != NULL;
    for (int i = 0; good && i < train_command.n_options; i++) {
        const option *row = &train_command.options[i];
        char text[4096];
        option_text(row, o, text, sizeof text);
        if (is_of_the_call(row->name) || !*text) continue;
        good = json_object_set_new(object, row->name, json_string(text)) == 0 || !strcmp(row->name, "out");
    }
    if (good) return object;
    json_decref(object);
    return NULL;
}

/* 64-bit words as text: JSON's numbers do not hold them. */
static json_t *word(uint64_t v) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, v);
    return json_string(text);
}

static uint64_t word_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? strtoull(text, NULL, 10) : 0;
}

static json_t *rng_json(const tg_rng *s) {
    return json_pack("{s:o, s:o, s:o}", "seed", word(s->seed), "stream", word(s->stream), "counter", word(s->counter));
}

static tg_rng rng_of(const json_t *object) {
    return (tg_rng){word_of(object, "seed"), word_of(object, "stream"), word_of(object, "counter")};
}

/* all: of the named streams, one rank's after the other's. */
static json_t *streams_json(const trainer *r, const tg_rng *all, int n) {
    json_t *streams = json_array();
    for (int i = 0; i < n; i++) {
        json_t *ranks = json_array();
        for (int k = 0; k < tg_comm_size(r->world); k++) json_array_append_new(ranks, rng_json(&all[k * n + i]));
        json_array_append_new(streams, json_pack("{s:s, s:o}", "name", tg_rng_name(r->ctx, i), "ranks", ranks));
    }
    return streams;
}

/* ---- Checksums ---- */

enum { DIGITS = 16 };
#define NO_SUM "0000000000000000"

static void put_sum(char out[DIGITS + 1], uint64_t sum) { snprintf(out, DIGITS + 1, "%016" PRIx64, sum); }

/* All of a file, to free; NULL after printing why. */
static char *read_whole(const char *path, size_t *n) {
    enum { MOST = 16 << 20 };
    FILE *f = open_regular(path);
    if (!f) return NULL;
    char *text = malloc(MOST);
    *n = text ? fread(text, 1, MOST, f) : 0;
    bool good = text && !ferror(f) && *n < MOST;
    if (text && ferror(f))
        fail("cannot read '%s': %s", path, strerror(errno));
    else if (!good)
        fail(text ? "'%s' is too long for what it should be" : "no memory to read '%s'", path);
    fclose(f);
    if (good) return text;
    free(text);
    return NULL;
}

/* That of config.json, as text. */
static bool sum_config(const char *dir, char out[DIGITS + 1]) {
    size_t n = 0;
    char *path = path_in(dir, "config.json"), *text = path ? read_whole(path, &n) : NULL;
    if (text) put_sum(out, tg_checksum(text, n));
    free(path);
    free(text);
    return text != NULL;
}

static const char *const tensor_files[] = {"model.safetensors", "state-00000.safetensors"};
enum { TENSOR_FILES = sizeof tensor_files / sizeof *tensor_files };

/* The sum of a safetensors file's header with the eight bytes before it that say its length. */
static bool read_header_sum(FILE *f, uint64_t *sum) {
    enum { LENGTH = 8, MOST = 100 << 20 };
    unsigned char length[LENGTH];
    uint64_t n = 0;
    if (fread(length, 1, LENGTH, f) != LENGTH) return false;
    for (int i = LENGTH; i-- > 0;) n = n << 8 | length[i];
    unsigned char *header = n <= MOST ? malloc(LENGTH + (size_t)n) : NULL;
    if (header) memcpy(header, length, LENGTH);
    bool good = header && fread(header + LENGTH, 1, (size_t)n, f) == (size_t)n;
    if (good) *sum = tg_checksum(header, LENGTH + (size_t)n);
    free(header);
    return good;
}

static bool sum_header(const char *dir, const char *name, char out[DIGITS + 1]) {
    char *path = path_in(dir, name);
    FILE *f = path ? open_regular(path) : NULL;
    uint64_t sum = 0;
    bool good = f && read_header_sum(f, &sum);
    if (f && !good) fail("'%s' is damaged: its header is not whole", path);
    put_sum(out, sum);
    if (f) fclose(f);
    free(path);
    return good;
}

/* NULL after printing why. */
static json_t *headers_json(const char *dir) {
    json_t *headers = json_object();
    char sum[DIGITS + 1];
    for (int i = 0; i < TENSOR_FILES; i++) {
        if (!sum_header(dir, tensor_files[i], sum)) {
            json_decref(headers);
            return NULL;
        }
        json_object_set_new(headers, tensor_files[i], json_string(sum));
    }
    return headers;
}

/* Checkpoints of earlier versions have none. */
static bool check_headers(const char *dir, const json_t *state) {
    const json_t *headers = json_object_get(state, "headers_xxh64");
    char sum[DIGITS + 1];
    for (int i = 0; headers && i < TENSOR_FILES; i++) {
        const char *expected = json_string_value(json_object_get(headers, tensor_files[i]));
        if (!sum_header(dir, tensor_files[i], sum)) return false;
        if (!expected || strcmp(sum, expected) != 0)
            return fail("'%s/%s' is damaged, or of another checkpoint: its header's checksum is %s, expected %s", dir,
                        tensor_files[i], sum, expected ? expected : "one in state.json"),
                   false;
    }
    return true;
}

/* Where the text of state.json has the digits of its own checksum, which counts them as zeros; NULL: it has none. No
 * string in it can look so, for its quotes would be escaped. */
static char *find_sum(char *text, size_t n) {
    static const char key[] = "\"xxh64\": \"";
    char *at = memmem(text, n, key, sizeof key - 1);
    if (at) at += sizeof key - 1;
    return at && text + n - at > DIGITS && at[DIGITS] == '"' ? at : NULL;
}

/* Zeroes the digits that it finds. */
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
            (fail("'%s/config.json' is damaged: its checksum is %s, expected %s", dir, sum, expected), false));
}

/* ---- The file ---- */

static json_t *state_json(const char *dir, int64_t step, const train_options *o, trainer *r, const train_data *d,
                          json_t *streams) {
    tg_rng rng = {0};
    char config[DIGITS + 1];
    tg_rng_get(r->ctx, NULL, &rng);
    json_t *headers = sum_config(dir, config) ? headers_json(dir) : NULL;
    if (!headers) {
        json_decref(streams);
        return NULL;
    }
    return json_pack("{s:i, s:s, s:I, s:I, s:o, s:o, s:i, s:{s:I, s:o}, s:o, s:o, s:s, s:s}", "format", 3, "version",
                     tg_version(), "step", (json_int_t)step, "optimiser_steps", (json_int_t)tg_optim_steps(r->optim),
                     "rng", rng_json(&rng), "streams", streams, "tp", tg_parallel_size(r->parallel, TG_TP), "data",
                     "tokens", (json_int_t)d->count, "hash", word(d->hash), "options", options_json(o), "headers_xxh64",
                     headers, "config_xxh64", config, "xxh64", NO_SUM);
}

static bool save_state(const char *dir, int64_t step, const train_options *o, trainer *r, const train_data *d,
                       json_t *streams) {
    json_t *state = state_json(dir, step, o, r, d, streams);
    char *text = state ? json_dumps(state, JSON_INDENT(2)) : NULL, *path = path_in(dir, "state.json");
    char *digits = text ? find_sum(text, strlen(text)) : NULL, sum[DIGITS + 1];
    if (digits && path) {
        put_sum(sum, tg_checksum(text, strlen(text)));
        memcpy(digits, sum, DIGITS);
        tg_file_save(r->ctx, path, text, strlen(text));
    } else
        tg_ctx_fail(r->ctx, TG_ERR_IO, "cannot put '%s/state.json' together", dir);
    json_decref(state);
    free(text);
    free(path);
    return check(r->ctx);
}

/* Format 2 had no checksums. */
static bool check_state(const char *dir, const char *path, char *text, size_t n, const json_t *state) {
    json_int_t format = json_integer_value(json_object_get(state, "format"));
    if (!json_is_object(json_object_get(state, "options")) || format < 2 || format > 3)
        return fail("'%s' is not the state of a run that this version can resume", path), false;
    if (format == 2 && !json_object_get(state, "xxh64")) return true;
    return check_sum(path, text, n) && check_config(dir, state) && check_headers(dir, state);
}

/* A checkpoint's directory says its step, and so does its state. */
static bool check_step(const char *dir, const json_t *state) {
    const char *dash = strrchr(dir, '-');
    const json_t *step = json_object_get(state, "step");
    if (!dash || !json_is_integer(step) || strtoll(dash + 1, NULL, 10) == json_integer_value(step)) return true;
    return fail("'%s' holds the checkpoint of step %lld: its name was changed, or its files are another one's", dir,
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

/* ---- Random streams: the default one is the same on every rank, those with names need not be ---- */

static int count_streams(const tg_ctx *ctx) {
    int n = 0;
    while (tg_rng_name(ctx, n)) n++;
    return n;
}

/* The n named streams of every rank, one rank's after the other's, to free. NULL after an error of the context. */
static tg_rng *gather_streams(const trainer *r, int n) {
    enum { WORDS = sizeof(tg_rng) / sizeof(int64_t) };
    int world = tg_comm_size(r->world);
    tg_rng *all = calloc((size_t)(world * n) + 1, sizeof *all);
    if (!all) tg_ctx_fail(r->ctx, TG_ERR_MEMORY, "no memory for %d random streams", world * n);
    for (int i = 0; all && i < n; i++) tg_rng_get(r->ctx, tg_rng_name(r->ctx, i), &all[i]);
    if (!all || world == 1 || !n) return all;
    tg_tensor *mine = tg_from_host(r->ctx, TG_I64, TG_SHAPE(n * WORDS), all),
              *whole = tg_zeros(r->ctx, TG_I64, TG_SHAPE(world * n * WORDS));
    tg_comm_all_gather(r->world, whole, mine);
    tg_read(whole, all, (size_t)(world * n) * sizeof *all);
    tg_drop(mine);
    tg_drop(whole);
    return all;
}

/* Whose state a rank goes on from: its own, or among another number of ranks, its place's in tp; SIZE_MAX: nobody's. */
static size_t source_of(const trainer *r, size_t saved, int saved_tp) {
    int tp = tg_parallel_size(r->parallel, TG_TP);
    if (tp != saved_tp) return SIZE_MAX;
    if ((size_t)tg_comm_size(r->world) == saved) return (size_t)tg_comm_rank(r->world);
    return (size_t)tg_parallel_rank(r->parallel, TG_TP);
}

/* Other tp ranks have other seeds; they draw behind everything that was drawn, as nothing may be drawn twice. */
static void go_on_behind(const json_t *ranks, tg_rng *s) {
    size_t k;
    json_t *rank;
    json_array_foreach(ranks, k, rank) {
        uint64_t counter = rng_of(rank).counter;
        if (counter > s->counter) s->counter = counter;
    }
}

static bool restore_streams(const json_t *state, trainer *r) {
    size_t i;
    json_t *stream;
    int tp = (int)json_integer_value(json_object_get(state, "tp"));
    json_array_foreach(json_object_get(state, "streams"), i, stream) {
        const char *name = json_string_value(json_object_get(stream, "name"));
        const json_t *ranks = json_object_get(stream, "ranks");
        size_t n = json_array_size(ranks), from = source_of(r, n, tp);
        if (!name || !n || (from != SIZE_MAX && from >= n))
            return fail("the checkpoint's state.json has a random stream without name or ranks"), false;
        tg_rng s = {0};
        tg_rng_get(r->ctx, name, &s);
        if (from == SIZE_MAX)
            go_on_behind(ranks, &s);
        else
            s = rng_of(json_array_get(ranks, from));
        tg_rng_set(r->ctx, name, &s);
    }
    return check(r->ctx);
}

/* ---- Options ---- */

/* Takes over a saved value, or tells apart what was given from it. */
static bool merge_option(const option *row, bool given, const char *saved, train_options *o) {
    char now[4096];
    option_text(row, o, now, sizeof now);
    if (!given) {
        const char *expected = *saved ? option_set(row, o, saved) : NULL;
        return !expected || (fail("the checkpoint's --%s is '%s', expected %s%s%s", row->name, saved, expected,
                                  row->kind == OPTION_CHOICE ? " " : "", row->kind == OPTION_CHOICE ? row->values : ""),
                             false);
    }
    if (strcmp(now, saved) == 0) return true;
    if (row->fixed)
        return fail("--%s is %s, but the run in --out was made with %s; leave it out, or begin another run", row->name,
                    now, *saved ? saved : "none"),
               false;
    if (strcmp(row->name, "data") != 0) say("--%s is %s from here on; it was %s\n", row->name, now, saved);
    return true;
}

bool checkpoint_read_options(const char *dir, train_options *o, const parsed *p, json_t **state) {
    if (!load_state(dir, state)) return false;
    const json_t *options = json_object_get(*state, "options");
    for (int i = 0; i < train_command.n_options; i++) {
        const option *row = &train_command.options[i];
        const char *saved = json_string_value(json_object_get(options, row->name));
        if (is_of_the_call(row->name) || strcmp(row->name, "out") == 0) continue;
        if (!merge_option(row, p->given[i], saved ? saved : "", o)) return false;
    }
    return true;
}

/* ---- The optimiser's state, in the shards that ranks have of it ---- */

/* A padded vocabulary's rows are not written, so that any composition of ranks can load the file. */
static void cut_padding(tg_shards *s, const trainer *r) {
    const tg_gpt_config *c = tg_gpt_config_of(r->gpt);
    for (int i = 0; i < tg_shards_count(s); i++) {
        tg_shard_info info = TG_SHARD_INFO();
        tg_shards_at(s, i, &info);
        bool table = info.key && (strstr(info.key, "wte.weight.") || strstr(info.key, "embed_tokens.weight.") ||
                                  !strncmp(info.key, "lm_head.weight.", 15));
        if (table && info.global.dim[0] > c->vocab) tg_shards_set_rows(s, info.key, c->vocab);
    }
}

static bool optimiser_state(const char *dir, trainer *r, bool save) {
    tg_shards *s = tg_shards_new(r->parallel);
    tg_shards_add_optim(s, NULL, r->optim);
    cut_padding(s, r);
    if (save)
        tg_shards_save(s, dir);
    else
        tg_shards_load(s, dir);
    tg_shards_free(s);
    return check(r->ctx);
}

/* ---- Save and restore ---- */

bool checkpoint_restore(const char *dir, const json_t *state, trainer *r, const train_data *d) {
    const json_t *data = json_object_get(state, "data");
    int64_t tokens = json_integer_value(json_object_get(data, "tokens"));
    if (tokens != d->count || word_of(data, "hash") != d->hash)
        return fail("the data are not those that the run began with: %" PRId64 " tokens%s, expected %" PRId64, d->count,
                    tokens == d->count ? " of other content" : "", tokens),
               false;
    if (!optimiser_state(dir, r, false)) return false;
    tg_optim_set_steps(r->optim, json_integer_value(json_object_get(state, "optimiser_steps")));
    tg_rng saved = rng_of(json_object_get(state, "rng"));
    tg_rng_set(r->ctx, NULL, &saved);
    return restore_streams(state, r);
}

/* Fills the directory of one that has begun. The chief writes; the others give it their parts. */
static bool fill_checkpoint(const char *dir, bool chief, int64_t step, const train_options *o, trainer *r,
                            const train_data *d) {
    tg_gpt_save(r->gpt, dir);
    if (!optimiser_state(dir, r, true)) return false;
    int n = count_streams(r->ctx);
    tg_rng *all = gather_streams(r, n);
    bool good = check(r->ctx) && (!chief || save_state(dir, step, o, r, d, streams_json(r, all, n)));
    free(all);
    return good;
}

bool checkpoint_prune(const run_directory *directory, const train_options *o) {
    tg_checkpoints_keep(directory->checkpoints, (int)o->keep);
    return check(directory->files);
}

bool checkpoint_save(const run_directory *directory, int64_t step, const train_options *o, trainer *r,
                     const train_data *d) {
    if (!directory) return fill_checkpoint(".", false, step, o, r, d);
    tg_ctx *files = directory->files;
    tg_checkpoints *c = directory->checkpoints;
    const char *dir = tg_checkpoints_begin(c, step);
    if (!dir) return check(files);
    if (!fill_checkpoint(dir, true, step, o, r, d)) {
        tg_checkpoints_abandon(c);
        return false;
    }
    tg_checkpoints_commit(c);
    return check(files) && checkpoint_prune(directory, o);
}
