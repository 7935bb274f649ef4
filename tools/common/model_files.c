/* Finds a model's files, and checks that they belong together and fit the data. */
#define _GNU_SOURCE
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/lora.h>

#include "checkpoint/directory.h"
#include "common/model_files.h"

/* ---- Where the model is ---- */

int64_t newest_checkpoint(const char *run) { return newest_checkpoint_before(run, INT64_MAX); }

int64_t newest_checkpoint_before(const char *run, int64_t before) {
    char *checkpoints = path_in(run, "checkpoints");
    DIR *names = checkpoints ? opendir(checkpoints) : NULL;
    int64_t newest = 0;
    for (struct dirent *e; names && (e = readdir(names));) {
        int64_t step = tg_checkpoint_step(e->d_name);
        if (step > newest && step < before) newest = step;
    }
    if (names) closedir(names);
    free(checkpoints);
    return newest;
}

#define ADAPTER "adapter_config.json"

/* Writes to dir the directory that holds a model or adapters. A training run writes them to its directory when it ends;
 * if they are not there, they are those of the newest checkpoint. */
static bool find_directory(char dir[4096], const char *given) {
    bool there = is_there(given, "config.json") || is_there(given, ADAPTER);
    int64_t step = there ? 0 : newest_checkpoint(given);
    int n =
        step ? snprintf(dir, 4096, "%s/checkpoints/step-%010" PRId64, given, step) : snprintf(dir, 4096, "%s", given);
    if (n >= 4096) return fail("the path '%s' is too long", given), false;
    if (step)
        warn("the run in '%s' has not ended and has no model of its own yet; its newest checkpoint is taken, '%s'",
             given, dir);
    return true;
}

/* If m->dir has adapters, makes m->dir the directory of the model that they adapt. */
static bool find_base(model_files *m) {
    if (is_there(m->dir, "config.json") || !is_there(m->dir, ADAPTER)) return true;
    memcpy(m->adapter, m->dir, sizeof m->adapter);
    char *path = path_in(m->adapter, ADAPTER);
    json_t *root = path ? json_load_file(path, 0, NULL) : NULL;
    const char *base = json_string_value(json_object_get(root, "base_model_name_or_path"));
    bool good = base && strlen(base) < sizeof m->dir && is_there(base, "config.json");
    if (good)
        snprintf(m->dir, sizeof m->dir, "%s", base);
    else if (base)
        fail("'%s' has adapters of the model '%s', which is not a directory with a model here; give the "
             "directory of the model, and the adapters with --adapter '%s' (of eval, generate, chat and convert)",
             m->adapter, base, m->adapter);
    else if (path)
        fail("'%s' has adapters, and its " ADAPTER " does not name their model; give the directory of the model, and "
             "the adapters with --adapter '%s' (of eval, generate, chat and convert)",
             m->adapter, m->adapter);
    json_decref(root);
    free(path);
    return good;
}

bool model_find_adapter(model_files *m, const char *given) {
    if (!given) return true;
    if (*m->adapter) return fail("'%s' has adapters already; leave --adapter out", m->adapter), false;
    if (!find_directory(m->adapter, given)) return false;
    if (is_there(m->adapter, ADAPTER)) return true;
    return fail("--adapter '%s' has no " ADAPTER, m->adapter), false;
}

void model_adapt(const model_files *m, tg_module *gpt) {
    if (*m->adapter) tg_lora_load(gpt, m->adapter);
}

/* ---- The tokenizer ---- */

void model_find_tokenizer(model_files *m, const char *given, const char *named) {
    const char *own = is_there(named, "tokenizer.json") ? named : is_there(m->dir, "tokenizer.json") ? m->dir : NULL;
    m->tokenizer_given = given != NULL;
    m->tokenizer = given ? given : own;
}

bool model_has_tokenizer(const model_files *m) { return m->tokenizer || m->config.vocab == 256; }

bool tokenizer_fits(const char *path, int64_t ids, int64_t vocab) {
    if (ids <= vocab) return true;
    return fail("the tokenizer '%s' has %lld ids, but the model has a vocabulary of %lld: give the model's own "
                "tokenizer by --tokenizer",
                path, (long long)ids, (long long)vocab),
           false;
}

tg_tokenizer *model_open_tokenizer(const model_files *m, tg_ctx *ctx) {
    if (!model_has_tokenizer(m)) return NULL;
    tg_tokenizer *k = m->tokenizer ? tg_tokenizer_load(ctx, m->tokenizer) : tg_tokenizer_new_bytes(ctx);
    bool good = check(ctx);
    if (good && m->tokenizer_given) good = tokenizer_fits(m->tokenizer, tg_tokenizer_size(k), m->config.vocab);
    if (good) return k;
    tg_tokenizer_free(k);
    return NULL;
}

/* ---- Whether config.json and the weights belong together ---- */

char *read_tensors_header(FILE *f, size_t *n) {
    enum { LENGTH = 8, MOST = 100 << 20 };
    unsigned char length[LENGTH];
    uint64_t bytes = 0;
    if (fread(length, 1, LENGTH, f) != LENGTH) return NULL;
    for (int i = LENGTH; i-- > 0;) bytes = bytes << 8 | length[i];
    char *header = bytes <= MOST ? malloc(LENGTH + (size_t)bytes + 1) : NULL;
    if (!header) return NULL;
    memcpy(header, length, LENGTH);
    header[LENGTH + bytes] = 0;
    *n = LENGTH + (size_t)bytes;
    if (fread(header + LENGTH, 1, (size_t)bytes, f) == (size_t)bytes) return header;
    free(header);
    return NULL;
}

enum { DIGITS = 16 };

/* Reads the header's checksum of itself as text; "": it has none. It is not verified, because loading does that. */
static void read_weights_sum(const char *path, char out[DIGITS + 1]) {
    static const char key[] = "\"tapegrad.xxh64.header\":\"";
    size_t n = 0;
    FILE *f = not_regular(path) ? NULL : fopen(path, "re"); /* opening a pipe would wait for its writer */
    char *header = f ? read_tensors_header(f, &n) : NULL;
    const char *at = header ? memmem(header, n, key, sizeof key - 1) : NULL;
    out[0] = 0;
    if (at && n - (size_t)(at - header) >= sizeof key - 1 + DIGITS)
        snprintf(out, DIGITS + 1, "%.*s", DIGITS, at + sizeof key - 1);
    free(header);
    if (f) fclose(f);
}

/* Writes as text the checksum of an index; "": another program wrote it, or an earlier version, so that the index has
 * no checksums of its files. */
static void read_index_sum(const char *path, char out[DIGITS + 1]) {
    static const char key[] = "\"tapegrad.xxh64.headers\"";
    size_t n = 0;
    char *text = read_whole(path, &n);
    out[0] = 0;
    if (text && memmem(text, n, key, sizeof key - 1)) snprintf(out, DIGITS + 1, "%016" PRIx64, tg_checksum(text, n));
    free(text);
}

/* Returns the path of one of the files of an index, which the caller frees; NULL: the index names none, or an error. */
static char *file_of_index(const char *dir, const char *index) {
    json_t *root = json_load_file(index, 0, NULL), *map = json_object_get(root, "weight_map");
    const char *name = json_string_value(json_object_iter_value(json_object_iter(map)));
    char *path = name ? path_in(dir, name) : NULL;
    json_decref(root);
    return path;
}

/* Returns the config with which the weights were saved; NULL: the file does not contain it, or cannot be read. */
static json_t *config_of_weights(const char *path) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    const char *text = f ? tg_safetensors_metadata(f, "tapegrad.config") : NULL;
    json_t *config = text ? json_loads(text, 0, NULL) : NULL;
    tg_safetensors_close(f);
    tg_ctx_free(ctx);
    return config;
}

static bool same_value(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

typedef struct changes {
    char text[1024];
    int count;
} changes;

/* Counts a change, and appends '"key" is NOW, was BEFORE' to the text if it is one of the first three. */
static void add_change(changes *c, const char *key, const json_t *now, const json_t *before) {
    enum { SHOWN = 3 };
    const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15);
    char *is = json_text(now, flags), *was = json_text(before, flags);
    size_t at = strlen(c->text);
    if (c->count++ < SHOWN)
        snprintf(c->text + at, sizeof c->text - at, "%s\"%.60s\" is %.100s, was %.100s", at ? "; " : "", key,
                 is ? is : "missing", was ? was : "not there");
    free(is);
    free(was);
}

static const char sum_key[] = "tapegrad_weights_xxh64";

/* Returns the number of keys whose values differ, and a text with the first of them. */
static changes compare_configs(json_t *now, json_t *before) {
    changes c = {.count = 0};
    const char *key;
    json_t *value;
    json_object_foreach(before, key, value) {
        const json_t *is = json_object_get(now, key);
        if (!is || !same_value(is, value)) add_change(&c, key, is, value);
    }
    json_object_foreach(now, key, value)
        if (strcmp(key, sum_key) != 0 && !json_object_get(before, key)) add_change(&c, key, value, NULL);
    return c;
}

static void warn_of_changes(const char *config, const char *weights, const changes *c) {
    char others[40] = "";
    if (c->count > 3) snprintf(others, sizeof others, "; and %d more", c->count - 3);
    warn("'%s' is not the config that '%s' was saved with: %s%s; restore it, unless you changed it on purpose", config,
         weights, c->text, others);
}

/* Warns if config.json and the weights do not belong together: the weights contain the config with which they were
 * saved, and config.json has a checksum of the weights. weights: the path of the weights, or of their index if they are
 * several files; file: that of one of the files. */
static void compare_files(const char *config, const char *weights, const char *file) {
    char sum[DIGITS + 1];
    json_t *now = json_load_file(config, 0, NULL), *before = now ? config_of_weights(file) : NULL;
    const char *expected = json_string_value(json_object_get(now, sum_key));
    (weights != file ? read_index_sum : read_weights_sum)(weights, sum);
    changes c = before ? compare_configs(now, before) : (changes){.count = 0};
    if (c.count) warn_of_changes(config, weights, &c);
    if (before && expected && *sum && strcmp(expected, sum) != 0)
        warn("'%s' does not hold the weights that '%s' was saved with (the checksum of %s is %s, expected %s): they "
             "may be another run's",
             weights, config, weights != file ? "the index" : "its header", sum, expected);
    json_decref(now);
    json_decref(before);
}

/* Compares the config with the weights in the directory, in one file or several. */
static void compare_weights(const char *dir, const char *config) {
    static const char index[] = "model.safetensors.index.json";
    bool several = !is_there(dir, "model.safetensors") && is_there(dir, index);
    char *weights = path_in(dir, several ? index : "model.safetensors");
    char *file = several && weights ? file_of_index(dir, weights) : weights;
    if (file) compare_files(config, weights, file);
    if (file != weights) free(file);
    free(weights);
}

bool model_find(model_files *m, const char *given, bool weights) {
    m->adapter[0] = 0;
    m->tokenizer = NULL;
    m->tokenizer_given = false;
    if (!find_directory(m->dir, given) || !find_base(m)) return false;
    char *config = path_in(m->dir, "config.json");
    bool good = config && read_model_config(config, &m->config);
    if (good && weights) compare_weights(m->dir, config);
    free(config);
    return good;
}

bool model_takes_data(const model_files *m, int data_format) {
    const long long vocab = (long long)m->config.vocab;
    if (data_format != TG_TOKENS_TEXT || vocab == 256) return true;
    return fail("the model in '%s' has a vocabulary of %lld token ids, but text without a tokenizer gives the 256 "
                "values of bytes; give the model's tokenizer by --tokenizer, or the ids with --data-format %s",
                m->dir, vocab, vocab <= 65536 ? "u16" : "u32"),
           false;
}
