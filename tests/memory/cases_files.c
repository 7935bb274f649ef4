/* Files: models in every layout, adapters, state of all ranks, checkpoints, and safetensors. */
#include <stdio.h>

#include <tapegrad/checkpoint.h>
#include <tapegrad/gpt.h>
#include <tapegrad/lm.h>
#include <tapegrad/lora.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>

#include "memory/faults.h"

enum { MOST_PARAMS = 64, PARTS = 2 };

/* What is saved: a model, and what belongs to its training. */
typedef struct saved {
    tg_module *lm[PARTS], *loaded;
    int n_lm;
    tg_optim *o;
    tg_average *average;
    tg_shards *shards;
    tg_checkpoints *checkpoints;
    tg_tensor *param[MOST_PARAMS], *x[2];
    int n;
} saved;

static void note_module(trial *r, tg_module *m) {
    tg_tensor *param[MOST_PARAMS];
    int n = tg_module_params(m, param, MOST_PARAMS);
    for (int i = 0; i < n; i++) note(r, param[i]);
}

static void note_saved(trial *r) {
    saved *d = r->state;
    for (int k = 0; k < d->n_lm; k++) note_module(r, d->lm[k]);
    if (d->loaded) note_module(r, d->loaded);
    for (int i = 0; i < 2; i++)
        if (d->x[i]) note(r, d->x[i]);
}

static void close_saved(trial *r) {
    saved *d = r->state;
    tg_checkpoints_close(d->checkpoints);
    tg_shards_free(d->shards);
    tg_average_free(d->average);
    tg_optim_free(d->o);
    tg_tape_reset(r->t);
    tg_module_free(d->loaded);
    for (int k = 0; k < PARTS; k++) tg_module_free(d->lm[k]);
    for (int i = 0; i < 2; i++) tg_drop(d->x[i]);
}

static tg_module *model(trial *r, const char *family, const char *layout, int chunk) {
    tg_lm_config *c = TG_LM(.vocab = 16, .layers = 2, .heads = 2, .hidden = 8, .ffn = 12, .positions = 8,
                            .layout = layout, .chunk = chunk, .parallel = r->p);
    tg_lm_family_config(r->ctx, family, c);
    return tg_lm_new(r->ctx, c);
}

/* ---- Models ---- */

static const char *const layouts[] = {"one file", "several files", "parts", "GPT-2"};

static const char *layout_name(int i) { return i < 4 ? layouts[i] : NULL; }

static void open_model(trial *r) {
    saved *d = r->state;
    bool parts = !strcmp(r->name, "parts");
    d->n_lm = parts ? PARTS : 1;
    for (int k = 0; k < d->n_lm; k++)
        d->lm[k] = model(r, strcmp(r->name, "GPT-2") ? "qwen3" : "gpt2", parts ? "E t|t L" : NULL, k);
}

static void save_model(trial *r) {
    saved *d = r->state;
    bool several = !strcmp(r->name, "several files");
    tg_lm_save(d->lm, d->n_lm, r->dir, several ? TG_LM_SAVE(.file_bytes = 700) : NULL);
}

static void open_written(trial *r) {
    open_model(r);
    save_model(r);
}

static void load_model(trial *r) {
    saved *d = r->state;
    tg_lm_load(d->lm, d->n_lm, r->dir);
}

/* Loads into a new model, whose memory is then the files', or that of weights which had none. */
static void load_mapped(trial *r) {
    saved *d = r->state;
    tg_lm_map(d->lm, d->n_lm, r->dir);
    tg_module_free(d->loaded);
    d->loaded = tg_lm_load_dir(r->ctx, r->dir, TG_LM(.unfilled = true, .key = 9));
}

/* ---- Adapters ---- */

static void open_adapters(trial *r) {
    saved *d = r->state;
    d->lm[0] = model(r, "llama", NULL, 0);
    d->n_lm = 1;
}

static void step_adapters(trial *r) {
    saved *d = r->state;
    if (!tg_lora_count(d->lm[0])) tg_lora_apply(d->lm[0], TG_LORA(.rank = 2, .alpha = 2));
    tg_lora_save(d->lm[0], r->dir, "base");
    tg_lora_remove(d->lm[0]);
    tg_lora_load(d->lm[0], r->dir);
    tg_lora_merge(d->lm[0]);
    tg_lora_unmerge(d->lm[0]);
}

/* ---- State of all ranks, and checkpoints ---- */

static void open_state(trial *r) {
    saved *d = r->state;
    d->lm[0] = tg_nn_linear(r->ctx, 4, 3, true, 0.5);
    d->n_lm = 1;
    d->n = tg_module_params(d->lm[0], d->param, MOST_PARAMS);
    d->o = tg_adamw_new(r->ctx, d->param, d->n, NULL);
    d->average = tg_ema_new(r->ctx, d->param, d->n, 0.9);
    tg_average_update(d->average);
    d->x[0] = wave(r, TG_F32, TG_SHAPE(6), 1);
    tg_rng_add(r->ctx, "noise", 5);
    d->shards = tg_shards_new(r->p);
    tg_shards_add_module(d->shards, "model", d->lm[0]);
    tg_shards_add_optim(d->shards, "adam", d->o);
    tg_shards_add_average(d->shards, "ema", d->average);
    tg_shards_push(d->shards, "stack", 1, 0);
    tg_shards_add_tensor(d->shards, "x", d->x[0]);
    tg_shards_pop(d->shards);
    tg_shards_add_rng(d->shards);
    d->checkpoints = tg_checkpoints_open(r->ctx, in_dir(r, "runs"));
}

static void close_state(trial *r) {
    close_saved(r);
    if (tg_rng_name(r->ctx, 0)) tg_rng_remove(r->ctx, "noise");
}

static void save_state(trial *r, int64_t step, bool background) {
    saved *d = r->state;
    const char *dir = tg_checkpoints_begin(d->checkpoints, step);
    if (dir) tg_save_finish(tg_shards_save_begin(d->shards, dir, TG_SAVE(.background = background)));
    if (dir && tg_ctx_status(r->ctx) == TG_OK)
        tg_checkpoints_commit(d->checkpoints);
    else
        tg_checkpoints_abandon(d->checkpoints);
}

static void step_state(trial *r) {
    saved *d = r->state;
    char path[600], report[256];
    int damaged = 0;
    tg_checkpoints_keep(d->checkpoints, 0);
    for (int step = 0; step < 2; step++) save_state(r, step, step);
    tg_checkpoints_path(d->checkpoints, tg_checkpoints_newest(d->checkpoints), path, sizeof path);
    if (tg_ctx_status(r->ctx) != TG_OK) return;
    tg_shards_load_with(d->shards, path, TG_SHARDS_LOAD(.partial = true, .report = report, .report_size = 256));
    tg_shards_verify(r->ctx, path, report, sizeof report, &damaged);
}

/* ---- Modules and tensors in one file ---- */

static void open_tensors(trial *r) {
    saved *d = r->state;
    d->lm[0] = tg_nn_linear(r->ctx, 4, 3, true, 0.5);
    d->n_lm = 1;
    d->x[0] = wave(r, TG_F32, TG_SHAPE(6, 2), 1);
    d->x[1] = wave(r, TG_BF16, TG_SHAPE(6, 2), 2);
}

static void step_tensors(trial *r) {
    saved *d = r->state;
    const tg_named_tensor named[] = {{"a", d->x[0]}, {"b", tg_transpose(r->t, d->x[1], 0, 1)}};
    const tg_metadata metadata[] = {{"key", "value"}};
    char report[128];
    tg_module_save(d->lm[0], in_dir(r, "module.safetensors"));
    tg_module_load(d->lm[0], in_dir(r, "module.safetensors"), TG_LOAD(.partial = true, .report = report,
                                                                     .report_size = sizeof report));
    tg_safetensors_save(r->ctx, in_dir(r, "two.safetensors"), named, 2, metadata, 1);
    tg_safetensors *f = tg_safetensors_open(r->ctx, in_dir(r, "two.safetensors"));
    if (f) tg_safetensors_read(f, "a", d->x[0], false);
    if (f) tg_safetensors_read_part(f, "a", d->x[1], true);
    if (f) tg_drop(tg_safetensors_load(f, "b"));
    tg_safetensors_close(f);
    tg_file_save(r->ctx, in_dir(r, "bytes"), "bytes", 5);
}

/* ---- Models and state, one tensor at a time ---- */

static void step_converted(trial *r) {
    char config[600];
    snprintf(config, sizeof config, "%s/state/config.json", r->dir);
    tg_gpt_to_state(r->ctx, "tests/reference/llama", in_dir(r, "state"), "m");
    tg_gpt_from_state(r->ctx, in_dir(r, "state"), "m", config, in_dir(r, "model"));
}

static const memory_case rows[] = {
    {"save a model", layout_name, sizeof(saved), false, false, open_model, save_model, NULL, close_saved},
    {"load a model", layout_name, sizeof(saved), false, false, open_written, load_model, note_saved, close_saved},
    {"map a model", layout_name, sizeof(saved), false, false, open_written, load_mapped, note_saved, close_saved},
    {"save adapters", NULL, sizeof(saved), true, true, open_adapters, step_adapters, note_saved, close_saved},
    {"save state", NULL, sizeof(saved), true, true, open_state, step_state, note_saved, close_state},
    {"save tensors", NULL, sizeof(saved), true, true, open_tensors, step_tensors, note_saved, close_saved},
    {"convert a model", NULL, 0, false, true, NULL, step_converted, NULL, NULL},
};
const memory_cases file_cases = {rows, sizeof rows / sizeof *rows};
