/* Checkpoints of a run: the model's directory, optimiser.safetensors, and state.json, which holds the options, the
 * random stream, and what tells the data. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* ---- state.json ---- */

static json_t *options_json(const train_options *o) {
    json_t *object = json_object();
    for (int i = 0; i < train_command.n_options; i++) {
        const option *row = &train_command.options[i];
        char text[4096];
        option_text(row, o, text, sizeof text);
        if (strcmp(row->name, "resume") != 0 && *text) json_object_set_new(object, row->name, json_string(text));
    }
    return object;
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

static json_t *state_json(int64_t step, const train_options *o, trainer *r, const train_data *d) {
    tg_rng rng = {0};
    tg_rng_get(r->ctx, NULL, &rng);
    return json_pack("{s:i, s:s, s:I, s:I, s:{s:o, s:o, s:o}, s:{s:I, s:o}, s:o}", "format", 1, "version", tg_version(),
                     "step", (json_int_t)step, "optimiser_steps", (json_int_t)tg_optim_steps(r->optim), "rng", "seed",
                     word(rng.seed), "stream", word(rng.stream), "counter", word(rng.counter), "data", "tokens",
                     (json_int_t)d->count, "hash", word(d->hash), "options", options_json(o));
}

static bool save_state(const char *dir, int64_t step, const train_options *o, trainer *r, const train_data *d) {
    json_t *state = state_json(step, o, r, d);
    char *text = state ? json_dumps(state, JSON_INDENT(2)) : NULL, *path = path_in(dir, "state.json");
    if (text && path)
        tg_file_save(r->ctx, path, text, strlen(text));
    else
        tg_ctx_fail(r->ctx, TG_ERR_MEMORY, "no memory for the state of the run");
    json_decref(state);
    free(text);
    free(path);
    return check(r->ctx);
}

static bool load_state(const char *dir, json_t **state) {
    char *path = path_in(dir, "state.json");
    json_error_t error;
    if (!path) return false;
    *state = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!*state)
        fail("'%s' is not the state of a run: line %d: %s", path, error.line, error.text);
    else if (!json_is_object(json_object_get(*state, "options")) ||
             json_integer_value(json_object_get(*state, "format")) != 1)
        fail("'%s' is not the state of a run that this version can resume", path);
    bool good = *state && json_is_object(json_object_get(*state, "options")) &&
                json_integer_value(json_object_get(*state, "format")) == 1;
    free(path);
    return good;
}

/* ---- Options ---- */

/* Takes over a saved value, or tells apart what was given from it. */
static bool merge_option(const option *row, bool given, const char *saved, train_options *o) {
    char now[4096];
    option_text(row, o, now, sizeof now);
    if (!given) {
        const char *expected = *saved ? option_set(row, o, saved) : NULL;
        return !expected || (fail("the checkpoint's --%s is '%s', expected %s", row->name, saved, expected), false);
    }
    if (strcmp(now, saved) == 0) return true;
    if (row->fixed)
        return fail("--%s is %s, but the run in --out was made with %s; leave it out, or begin another run", row->name,
                    now, *saved ? saved : "none"),
               false;
    if (strcmp(row->name, "data") != 0) printf("--%s is %s from here on; it was %s\n", row->name, now, saved);
    return true;
}

bool checkpoint_read_options(const char *dir, train_options *o, const parsed *p, json_t **state) {
    if (!load_state(dir, state)) return false;
    const json_t *options = json_object_get(*state, "options");
    for (int i = 0; i < train_command.n_options; i++) {
        const option *row = &train_command.options[i];
        const char *saved = json_string_value(json_object_get(options, row->name));
        if (strcmp(row->name, "resume") == 0 || strcmp(row->name, "out") == 0) continue;
        if (!merge_option(row, p->given[i], saved ? saved : "", o)) return false;
    }
    return true;
}

/* ---- The optimiser's tensors: those of each parameter in turn, all of the same kinds ---- */

/* "<path of the parameter>.<kind>" */
static tg_tensor *optimiser_tensor(trainer *r, int i, char *name, size_t n) {
    const char *path, *kind;
    tg_tensor *x = tg_optim_state(r->optim, i, &kind);
    int each = tg_optim_state_count(r->optim) / r->n_params;
    tg_module_param(r->gpt, i / each, &path);
    snprintf(name, n, "%s%s", path, strrchr(kind, '.'));
    return x;
}

enum { NAME = 256 };

static void save_optimiser(const char *path, trainer *r) {
    int n = tg_optim_state_count(r->optim);
    char *names = malloc((size_t)n * NAME);
    tg_named_tensor *all = malloc((size_t)n * sizeof *all);
    for (int i = 0; names && all && i < n; i++) {
        all[i].name = names + (size_t)i * NAME;
        all[i].tensor = optimiser_tensor(r, i, names + (size_t)i * NAME, NAME);
    }
    if (names && all)
        tg_safetensors_save(r->ctx, path, all, n, NULL, 0);
    else
        tg_ctx_fail(r->ctx, TG_ERR_MEMORY, "no memory to save %d tensors", n);
    free(names);
    free(all);
}

static bool load_optimiser(const char *dir, trainer *r) {
    char *path = path_in(dir, "optimiser.safetensors"), name[NAME];
    if (!path) return false;
    tg_safetensors *f = tg_safetensors_open(r->ctx, path);
    int n = tg_optim_state_count(r->optim);
    for (int i = 0; f && i < n; i++) {
        tg_tensor *x = optimiser_tensor(r, i, name, sizeof name);
        tg_safetensors_read(f, name, x, false);
    }
    tg_safetensors_close(f);
    free(path);
    return check(r->ctx);
}

/* ---- Save and restore ---- */

bool checkpoint_restore(const char *dir, const json_t *state, trainer *r, const train_data *d) {
    const json_t *rng = json_object_get(state, "rng"), *data = json_object_get(state, "data");
    int64_t tokens = json_integer_value(json_object_get(data, "tokens"));
    if (tokens != d->count || word_of(data, "hash") != d->hash)
        return fail("the data are not those that the run began with: %" PRId64 " tokens%s, expected %" PRId64, d->count,
                    tokens == d->count ? " of other content" : "", tokens),
               false;
    if (!load_optimiser(dir, r)) return false;
    tg_optim_set_steps(r->optim, json_integer_value(json_object_get(state, "optimiser_steps")));
    tg_rng saved = {word_of(rng, "seed"), word_of(rng, "stream"), word_of(rng, "counter")};
    tg_rng_set(r->ctx, NULL, &saved);
    return check(r->ctx);
}

/* Fills the directory of one that has begun. */
static bool fill_checkpoint(const char *dir, int64_t step, const train_options *o, trainer *r, const train_data *d) {
    char *path = path_in(dir, "optimiser.safetensors");
    if (!path) return false;
    tg_gpt_save(r->gpt, dir);
    save_optimiser(path, r);
    free(path);
    return save_state(dir, step, o, r, d);
}

bool checkpoint_save(const run_directory *directory, int64_t step, const train_options *o, trainer *r,
                     const train_data *d) {
    tg_ctx *files = directory->files;
    tg_checkpoints *c = directory->checkpoints;
    if (tg_checkpoints_newest(c) == step) return check(files);
    const char *dir = tg_checkpoints_begin(c, step);
    if (!dir) return check(files);
    if (!fill_checkpoint(dir, step, o, r, d)) {
        tg_checkpoints_abandon(c);
        return false;
    }
    tg_checkpoints_commit(c);
    tg_checkpoints_keep(c, (int)o->keep);
    return check(files);
}
