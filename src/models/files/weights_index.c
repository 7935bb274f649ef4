/* Which files of a directory are the model: the index of several files, and the removal of an older model. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "models/files/model_files.h"

char *tg_weights_path(tg_ctx *ctx, const char *dir, int i, int n) {
    return n == 1 ? tg_format_path(ctx, "%s/%s", dir, TG_WEIGHTS_FILE)
                  : tg_format_path(ctx, "%s/" TG_WEIGHTS_PART, dir, i, n);
}

/* ---- The index ---- */

/* What the index says. */
typedef struct contents {
    json_t *map, *sums; /* the file of each tensor, and the checksum of the header of each file */
    int64_t bytes;      /* of all tensors */
} contents;

static tg_status no_memory(tg_ctx *ctx, const char *dir) {
    return tg_fail(ctx, TG_ERR_MEMORY, "no memory for the index of the weights in '%s'", dir);
}

/* Adds the tensors of a file. Returns false if there is no memory. */
static bool add_file(contents *c, const tg_safetensors *f, const char *name) {
    if (json_object_set_new(c->sums, name, json_string(f->sum))) return false;
    for (int i = 0; i < f->count; i++) {
        c->bytes += f->entries[i].stop - f->entries[i].begin;
        if (json_object_set_new(c->map, f->entries[i].name, json_string(name))) return false;
    }
    return true;
}

/* Adds file number i of n, from its header. */
static tg_status read_file(tg_ctx *ctx, const char *dir, int i, int n, contents *c) {
    char *path = tg_weights_path(ctx, dir, i, n);
    tg_safetensors *f = path ? tg_safetensors_open(ctx, path) : NULL;
    if (f && !add_file(c, f, strrchr(path, '/') + 1)) no_memory(ctx, dir);
    tg_safetensors_close(f);
    tg_host_strfree(ctx, path);
    return ctx->run.status;
}

/* Writes as text the checksum of the whole file at path. */
static tg_status sum_file(tg_ctx *ctx, const char *path, char sum[TG_CHECKSUM_DIGITS + 1]) {
    enum { MOST = 1 << 30 };
    char *text;
    size_t bytes;
    TG_TRY(tg_file_load(ctx, path, MOST, &text, &bytes));
    tg_checksum_text(tg_checksum(text, bytes), sum);
    sum[TG_CHECKSUM_DIGITS] = 0;
    tg_host_free(ctx, text, bytes + 1);
    return TG_OK;
}

static tg_status write_contents(tg_ctx *ctx, const char *dir, const contents *c, char sum[TG_CHECKSUM_DIGITS + 1]) {
    json_t *root = json_pack("{s:{s:I, s:O}, s:O}", "metadata", "total_size", (json_int_t)c->bytes,
                             TG_SAFETENSORS_FILE_SUMS, c->sums, "weight_map", c->map);
    char *path = tg_format_path(ctx, "%s/%s", dir, TG_WEIGHTS_INDEX);
    if (!root) no_memory(ctx, dir);
    if (path && root && tg_json_save(ctx, path, root) == TG_OK) sum_file(ctx, path, sum);
    tg_host_strfree(ctx, path);
    json_decref(root);
    return ctx->run.status;
}

tg_status tg_weights_write_index(tg_ctx *ctx, const char *dir, int n, char sum[TG_CHECKSUM_DIGITS + 1]) {
    contents c = {.map = json_object(), .sums = json_object()};
    tg_status s = c.map && c.sums ? TG_OK : no_memory(ctx, dir);
    for (int i = 1; i <= n && s == TG_OK; i++) s = read_file(ctx, dir, i, n, &c);
    if (s == TG_OK) s = write_contents(ctx, dir, &c, sum);
    json_decref(c.map);
    json_decref(c.sums);
    return s;
}

/* ---- Removal ---- */

static tg_status remove_file(tg_ctx *ctx, const char *dir, const char *name) {
    tg_file_ops ops = tg_file_ops_of(ctx);
    char *path = tg_format_path(ctx, "%s/%s", dir, name);
    if (path && ops.unlink(ops.user, path) != 0 && errno != ENOENT) tg_file_fail(ctx, "remove", path, -1);
    tg_host_strfree(ctx, path);
    return ctx->run.status;
}

tg_status tg_weights_retract(tg_ctx *ctx, const char *dir, bool several) {
    TG_TRY(remove_file(ctx, dir, "config.json"));
    if (several) TG_TRY(remove_file(ctx, dir, TG_WEIGHTS_INDEX));
    return tg_sync_directory(ctx, dir);
}

/* Returns n if this is the name of one of the n files of a model (TG_WEIGHTS_PART); 0 if it is another name. */
static int files_of(const char *name) {
    char again[64];
    int i, n;
    if (sscanf(name, "model-%d-of-%d", &i, &n) != 2 || n < 1) return 0;
    snprintf(again, sizeof again, TG_WEIGHTS_PART, i, n);
    return strcmp(again, name) == 0 ? n : 0;
}

/* Returns whether the name is the temporary one of a file that a save of weights writes. */
static bool is_temporary(const char *name) {
    char whole[64];
    const char *suffix = strstr(name, ".tmp-");
    if (!suffix || suffix - name >= (ptrdiff_t)sizeof whole || !tg_is_temporary_suffix(suffix)) return false;
    snprintf(whole, sizeof whole, "%.*s", (int)(suffix - name), name);
    return files_of(whole) || strcmp(whole, TG_WEIGHTS_FILE) == 0 || strcmp(whole, TG_WEIGHTS_INDEX) == 0;
}

/* Removes the files of older models of several files, and those that an interrupted save has begun. A file whose name
 * says that it is one of n > 1 files stays, because it is the new model's. A directory that the system does not know is
 * no error: file functions of the program (tg_file_ops) may keep the files elsewhere. */
static tg_status remove_parts(tg_ctx *ctx, const char *dir, int n) {
    DIR *d = opendir(dir);
    if (!d) return errno == ENOENT ? TG_OK : tg_file_fail(ctx, "list the directory", dir, -1);
    tg_status s = TG_OK;
    for (struct dirent *e; s == TG_OK && (e = readdir(d));) {
        int of = files_of(e->d_name);
        if (is_temporary(e->d_name) || (of && (n == 1 || of != n))) s = remove_file(ctx, dir, e->d_name);
    }
    closedir(d);
    return s;
}

/* Removes the index first, because it names the files that are removed after it. */
tg_status tg_weights_remove_stale(tg_ctx *ctx, const char *dir, int n) {
    TG_TRY(remove_file(ctx, dir, n == 1 ? TG_WEIGHTS_INDEX : TG_WEIGHTS_FILE));
    TG_TRY(remove_parts(ctx, dir, n));
    return tg_sync_directory(ctx, dir);
}
