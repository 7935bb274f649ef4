/* Checkpoints of a run. A checkpoint is a directory with the files of the model or, with --lora, of the adapters, the
 * state of the optimizer and the random streams (index.json, and a file of each rank), and state.json (state.h). A
 * pipeline writes files of weights for each stage. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model_files.h"
#include "data/kind.h"
#include "train/state.h"

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
    bool whole = state_load(dir, &state);
    json_decref(state);
    return whole;
}

bool checkpoint_is_whole(const char *dir) {
    char why[512];
    json_t *state = NULL;
    hold_errors(why, sizeof why);
    bool whole = state_load(dir, &state);
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
        bool table = info.key && (is_embedding(info.key) || !strncmp(info.key, "lm_head.weight.", 15));
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
    if (!d->order || !json_object_get(data, "order")) return true;
    if (state_word_of(data, "order") == data_order_sum(d, step)) return true;
    return fail("--order '%s' is not the one that the run began with: the offsets of steps 1 to %" PRId64 " differ",
                path, step),
           false;
}

/* Returns whether the data are one source whose first n tokens have this hash. The hash of several sources also covers
 * their sizes, so it tells nothing about the first tokens. */
static bool begins_with(const train_data *d, int64_t n, uint64_t hash) {
    return d->corpus.n == 1 && tokens_sum_of(d->tokens, n) == hash;
}

bool checkpoint_restore(const char *dir, const json_t *state, const train_options *o, trainer *r, const train_data *d) {
    const json_t *data = json_object_get(state, "data");
    int64_t tokens = json_integer_value(json_object_get(data, "tokens"));
    if (d->count > tokens && begins_with(d, tokens, state_word_of(data, "hash")))
        say("--data has %" PRId64 " tokens from now on: the %" PRId64 " that the run began with, and more after them\n",
            d->count, tokens);
    else if (tokens != d->count || state_word_of(data, "hash") != d->hash)
        return fail("--data%s is not what the run began with: it has %" PRId64 " tokens%s, expected %" PRId64,
                    o->val_data ? " with --val-data" : "", d->count,
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
    if (!state_save(r->saving.dir, r->saving.step, o, r, d)) return abandon(directory, r);
    tg_checkpoints_commit(directory->checkpoints);
    return check(directory->files) && checkpoint_prune(directory, o);
}
