/* Writes a state of whole tensors from one process: one file, and the index. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/memory/host_memory.h"
#include "checkpoint/state/state_index.h"

#define FILE_NAME "rank-00000.safetensors"

tg_status tg_state_make_directory(tg_ctx *ctx, const char *dir) {
    tg_file_ops ops = tg_file_ops_of(ctx);
    struct stat st;
    if (ops.mkdir(ops.user, dir, 0777) == 0) return tg_sync_directory_of(ctx, dir);
    if (errno != EEXIST) return tg_file_fail(ctx, "make the directory", dir, -1);
    /* mkdir has said that dir exists. If the system does not find it, the tg_file_ops may keep it elsewhere. */
    if (stat(dir, &st) != 0 || S_ISDIR(st.st_mode)) return TG_OK;
    return tg_fail(ctx, TG_ERR_IO, "'%s' is not a directory", dir);
}

static tg_status no_memory(tg_ctx *ctx, const char *dir) {
    return tg_fail(ctx, TG_ERR_MEMORY, "no memory for a file header or the index of the state in '%s'", dir);
}

/* Describes a whole tensor, whose name in the file is its key. */
static tg_status describe(tg_ctx *ctx, json_t *pieces, const tg_named_tensor *t, const char *dir) {
    char at[TG_MAX_DIMS * 44];
    tg_block all;
    const tg_shape whole = tg_shape_make(t->tensor->ndim, t->tensor->shape);
    TG_TRY(tg_block_all(ctx, &whole, &all));
    tg_block_text(&all, at, sizeof at);
    tg_block_free(ctx, &all);
    json_t *row = json_pack("{s:s, s:o, s:s}", "key", t->name, "shape", tg_json_shape(&whole), "at", at);
    return json_object_set_new(pieces, t->name, row) == 0 ? TG_OK : no_memory(ctx, dir);
}

tg_status tg_state_require_none(tg_ctx *ctx, const char *dir) {
    static const char *const formats[] = {TG_STATE_INDEX, TG_STATE_OLD};
    for (int i = 0; i < TG_LEN(formats); i++) {
        bool there = false;
        TG_TRY(tg_state_has(ctx, dir, formats[i], &there));
        if (there) return tg_fail(ctx, TG_ERR_STATE, "'%s' has a state already; give another directory", dir);
    }
    return ctx->run.status;
}

static tg_status begin(tg_state_writer *w, const tg_named_tensor *tensors, int n, json_t *pieces) {
    for (int i = 0; i < n; i++) TG_TRY(describe(w->ctx, pieces, &tensors[i], w->dir));
    char *text = tg_json_text(pieces, JSON_COMPACT), *path = tg_format_path(w->ctx, "%s/" FILE_NAME, w->dir);
    const tg_metadata metadata[] = {{"format", TG_STATE_FORMAT}, {TG_STATE_PIECES, text}, {TG_STATE_STEPS, "{}"}};
    tg_status s = text ? w->ctx->run.status : no_memory(w->ctx, w->dir);
    if (s == TG_OK) s = tg_safetensors_begin(&w->file, w->ctx, path, tensors, n, metadata, TG_LEN(metadata));
    tg_host_strfree(w->ctx, path);
    free(text);
    return s;
}

tg_status tg_state_writer_begin(tg_state_writer *w, tg_ctx *ctx, const char *dir, const tg_named_tensor *tensors,
                                int n) {
    *w = (tg_state_writer){.ctx = ctx};
    TG_TRY(tg_state_require_none(ctx, dir));
    TG_TRY(tg_state_make_directory(ctx, dir));
    if (!(w->dir = tg_host_strdup(ctx, dir))) return ctx->run.status;
    json_t *pieces = json_object();
    tg_status s = pieces ? begin(w, tensors, n, pieces) : no_memory(ctx, dir);
    json_decref(pieces);
    return s;
}

tg_status tg_state_writer_put(tg_state_writer *w, tg_tensor *x) { return tg_safetensors_put(&w->file, x); }

tg_status tg_state_writer_commit(tg_state_writer *w) {
    static const char names[1][TG_STATE_NAME] = {FILE_NAME};
    TG_TRY(tg_safetensors_commit(&w->file, NULL));
    json_t *root = tg_state_root(1);
    return root ? tg_state_write_index(w->ctx, w->dir, root, names, 1) : no_memory(w->ctx, w->dir);
}

void tg_state_writer_abandon(tg_state_writer *w) {
    if (!w->ctx) return;
    tg_safetensors_abandon(&w->file);
    tg_host_strfree(w->ctx, w->dir);
    *w = (tg_state_writer){0};
}
