/* Saves sharded state: tg_shards_save_begin, and what completes a save. Each rank writes a file of the pieces that were
 * dealt to it; no bytes of tensors move between ranks. Rank 0 writes the index when the files of all ranks are there.
 * Until then the directory has the old state, if it had one. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <tapegrad/parallel.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/os.h"
#include "checkpoint/save/save.h"
#include "comm/comm.h"
#include "optim/optim.h"

static const char *const call = "tg_shards_save";

tg_status tg_save_no_memory(const tg_save *w) {
    return tg_fail(w->ctx, TG_ERR_MEMORY, "%s: no memory for the header of '%s'", call, w->dir);
}

/* ---- What is not in tensors ---- */

/* Returns the numbers of steps of the optimizers; NULL: no memory. */
static json_t *steps_of(const tg_shards *s) {
    json_t *all = json_object();
    for (int i = 0; i < s->n_steps; i++) {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)tg_optim_steps(s->steps[i].optim));
        if (json_object_set_new(all, s->steps[i].key, json_string(text)) != 0) return json_decref(all), NULL;
    }
    return all;
}

/* Adds the random streams, if the list has them, to the index's metadata. Collective over the world. */
static tg_status add_streams(tg_save *w, json_t *metadata) {
    int n = tg_shards_streams(w->s);
    size_t bytes = (size_t)n * sizeof(tg_shards_metadata);
    if (!n) return TG_OK;
    tg_shards_metadata *all = tg_host_alloc(w->ctx, bytes);
    if (!all) return w->ctx->run.status;
    tg_status s = tg_shards_describe_streams(w->s, all);
    for (int i = 0; i < n; i++) {
        if (s == TG_OK && json_object_set_new(metadata, all[i].key, json_string(all[i].text)) != 0)
            s = tg_save_no_memory(w);
        tg_host_free(w->ctx, all[i].text, all[i].bytes);
    }
    tg_host_free(w->ctx, all, bytes);
    return s;
}

/* Returns the sizes of the axes; NULL: no memory. */
static json_t *composition_of(const tg_parallel *p) {
    static const struct {
        const char *name;
        tg_axis axis;
    } axes[] = {{"tp", TG_TP},   {"cp", TG_CP}, {"dp", TG_DP},  {"pp", TG_PP},
                {"etp", TG_ETP}, {"ep", TG_EP}, {"edp", TG_EDP}};
    json_t *all = json_object();
    for (int i = 0; i < TG_LEN(axes); i++)
        if (json_object_set_new(all, axes[i].name, json_integer(tg_parallel_size(p, axes[i].axis))) != 0)
            return json_decref(all), NULL;
    return all;
}

/* Makes the part of the index that does not come from the files, on every rank, because the streams are gathered. */
static tg_status make_root(tg_save *w) {
    json_t *steps = steps_of(w->s);
    w->root = tg_state_root(tg_comm_size(w->world));
    w->steps = steps ? tg_json_text(steps, JSON_COMPACT) : NULL;
    json_t *metadata = json_object_get(w->root, "metadata");
    bool good = w->steps && json_object_update(metadata, steps) == 0 &&
                json_object_set_new(w->root, "composition", composition_of(w->s->p)) == 0;
    json_decref(steps);
    return good ? add_streams(w, metadata) : tg_save_no_memory(w);
}

/* ---- Files ---- */

static void name_of(const tg_save *w, int rank, char name[TG_STATE_NAME]) {
    snprintf(name, TG_STATE_NAME, "rank-%05d%s.safetensors", rank, w->suffix);
}

/* The main function of the thread. Its low priority leaves the cores to the program's threads. */
static void *write_held(void *user) {
    tg_save *w = user;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
    tg_save_write(w, w->errors);
    atomic_store_explicit(&w->written, true, memory_order_release);
    return NULL;
}

static tg_status start(tg_save *w) {
    w->errors = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = w->ctx->run.allocator, .files = w->ctx->files));
    if (!tg_ok(w->errors)) return tg_fail(w->ctx, tg_ctx_status(w->errors), "%s", tg_ctx_message(w->errors));
    int error = tg_system_thread(&w->thread, write_held, w);
    if (error)
        return tg_fail(w->ctx, TG_ERR_MEMORY, "%s: cannot start the thread that writes: %s; use .background = false",
                       call, strerror(error));
    w->running = true;
    return TG_OK;
}

static tg_status write_pieces(tg_save *w, bool background) {
    char name[TG_STATE_NAME];
    TG_TRY(tg_save_describe(w));
    if (!w->mine.n) return TG_OK;
    name_of(w, tg_comm_rank(w->world), name);
    if (!(w->path = tg_format_path(w->ctx, "%s/%s", w->dir, name))) return w->ctx->run.status;
    if (!background) return tg_save_write(w, w->ctx);
    TG_TRY(tg_save_hold(w));
    return start(w);
}

/* ---- Begin ---- */

static tg_status check(tg_shards *s, const char *dir, const tg_save_opts *given, tg_save_opts *o) {
    TG_TRY(s->ctx->run.status);
    TG_TRY(tg_options(s->ctx, o, &tg_save_opts_struct, given, "tg_shards_save_begin"));
    TG_TRY(tg_shards_check_dir(s, dir, call));
    if (!s->saving) return tg_shards_check(s, call);
    return tg_fail(s->ctx, TG_ERR_STATE, "%s: a save of this list has begun; call tg_save_finish first", call);
}

static tg_status begin(tg_save *w, const char *dir, bool background) {
    if (!(w->dir = tg_host_strdup(w->ctx, dir))) return w->ctx->run.status;
    TG_TRY(tg_shards_find_owners(w->s, call));
    TG_TRY(tg_state_make_directory(w->ctx, dir));
    TG_TRY(make_root(w));
    TG_TRY(tg_save_list(w));
    TG_TRY(tg_save_deal(w));
    return write_pieces(w, background);
}

/* Joins the thread, and takes over its error unless the context has one already. */
static tg_status join(tg_save *w) {
    if (w->running) pthread_join(w->thread, NULL);
    w->running = false;
    tg_status s = w->errors ? tg_ctx_status(w->errors) : TG_OK;
    if (s != TG_OK && tg_ok(w->ctx)) tg_fail(w->ctx, s, "%s", tg_ctx_message(w->errors));
    return w->ctx->run.status;
}

static void end(tg_save *w) {
    join(w);
    if (w->s) w->s->saving = NULL;
    tg_ctx_free(w->errors);
    tg_save_release(w);
    tg_save_undescribe(w);
    tg_save_unlist(w);
    tg_host_free(w->ctx, w->has_file, (size_t)tg_comm_size(w->world) * sizeof *w->has_file);
    json_decref(w->root);
    free(w->steps);
    tg_host_strfree(w->ctx, w->path);
    tg_host_strfree(w->ctx, w->dir);
    tg_host_free(w->ctx, w, sizeof *w);
}

tg_save *tg_shards_save_begin(tg_shards *s, const char *dir, const tg_save_opts *opts) {
    if (!s) return NULL;
    tg_save_opts o;
    tg_comm *world = tg_parallel_world(s->p);
    tg_save *w = check(s, dir, opts, &o) == TG_OK ? tg_host_alloc(s->ctx, sizeof *w) : NULL;
    if (w) {
        *w = (tg_save){.ctx = s->ctx, .world = world, .s = s};
        s->saving = w;
        if (begin(w, dir, o.background) == TG_OK) return w;
        end(w);
    }
    tg_comm_note_missed(world, s->ctx->run.status);
    return NULL;
}

/* ---- Finish ---- */

bool tg_save_test(tg_save *w) { return !w || !w->running || atomic_load_explicit(&w->written, memory_order_acquire); }

/* Writes the index of the files of all ranks. */
static tg_status write_index(tg_save *w) {
    int n = 0, ranks = tg_comm_size(w->world);
    size_t bytes = (size_t)ranks * sizeof(char[TG_STATE_NAME]);
    char(*name)[TG_STATE_NAME] = tg_host_alloc(w->ctx, bytes);
    if (!name) return w->ctx->run.status;
    for (int r = 0; r < ranks; r++)
        if (w->has_file[r]) name_of(w, r, name[n++]);
    tg_status s = tg_state_write_index(w->ctx, w->dir, json_incref(w->root), (const char(*)[TG_STATE_NAME])name, n);
    tg_host_free(w->ctx, name, bytes);
    return s;
}

static tg_status finish(tg_save *w) {
    TG_TRY(join(w));
    TG_TRY(tg_comm_barrier(w->world)); /* the files of all ranks are there */
    if (tg_comm_rank(w->world) == 0) TG_TRY(write_index(w));
    return tg_comm_barrier(w->world);
}

tg_status tg_save_finish(tg_save *w) {
    if (!w) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = w->ctx;
    const tg_comm *world = w->world;
    tg_status s = finish(w);
    end(w);
    tg_comm_note_missed(world, s);
    return ctx->run.status;
}

tg_status tg_shards_save(tg_shards *s, const char *dir) {
    if (!s) return TG_ERR_ARGUMENT;
    tg_save *w = tg_shards_save_begin(s, dir, NULL);
    return w ? tg_save_finish(w) : s->ctx->run.status;
}
