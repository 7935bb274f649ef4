/* Index of a model in several safetensors files: a JSON object whose member "weight_map" says which file has each
 * tensor. Opening an index opens every file, and lists their tensors as if they were in one file. An index that the
 * library has written also has the checksums of the files' headers, so a file of another save is refused. */
#include "io/json.h"
#include "io/safetensors.h"

bool tg_safetensors_is_index(const char *path) {
    static const char end[] = ".index.json";
    size_t n = strlen(path);
    return n >= sizeof end - 1 && strcmp(path + n - (sizeof end - 1), end) == 0;
}

/* Returns the length of the directory in the index's path, with the slash; 0 if the path has no slash. */
static int directory_length(const tg_safetensors *f) {
    const char *slash = strrchr(f->file.path, '/');
    return slash ? (int)(slash - f->file.path) + 1 : 0;
}

static const char *name_of_file(const tg_safetensors *f, int i) { return f->files[i]->file.path + directory_length(f); }

/* Opens the file of that name, unless it is open already. */
static tg_status need_file(tg_safetensors *f, const char *name) {
    tg_ctx *ctx = f->file.ctx;
    for (int i = f->n_files - 1; i >= 0; i--) /* last first: adjacent tensors are mostly in the same file */
        if (strcmp(name_of_file(f, i), name) == 0) return TG_OK;
    if (!*name || strchr(name, '/'))
        return tg_fail(ctx, TG_ERR_FORMAT,
                       "'%s': weight_map has the file '%.128s', expected a name that is not empty and has no slash",
                       f->file.path, name);
    if (f->n_files == TG_SAFETENSORS_FILES)
        return tg_fail(ctx, TG_ERR_FORMAT, "'%s': weight_map has more than %d files", f->file.path,
                       TG_SAFETENSORS_FILES);
    char *path = tg_format_path(ctx, "%.*s%s", directory_length(f), f->file.path, name);
    if (!path) return tg_io_enter(ctx);
    tg_safetensors *file = tg_safetensors_open_file(ctx, path);
    tg_host_strfree(ctx, path);
    if (!file) return tg_io_enter(ctx);
    f->files[f->n_files++] = file;
    return TG_OK;
}

/* Fails unless the file is the one that was saved with the index. sums: the checksums of all files. */
static tg_status check_file(const tg_safetensors *f, const tg_json *sums, int i) {
    const char *expected, *got = f->files[i]->sum ? f->files[i]->sum : "missing";
    TG_TRY(tg_json_string(sums, name_of_file(f, i), &expected));
    if (strcmp(got, expected) == 0) return TG_OK;
    return tg_fail(f->file.ctx, TG_ERR_FORMAT,
                   "'%s' is not the file that '%s' was saved with: the checksum of its header is %s, expected %.16s; "
                   "take all files from one save",
                   f->files[i]->file.path, f->file.path, got, expected);
}

/* Compares the files with the checksums of the index, if it has them. */
static tg_status check_files(const tg_safetensors *f, const tg_json *document) {
    json_t *metadata = json_object_get(document->object, "metadata");
    const tg_json sums = {f->file.ctx, f->file.path, json_object_get(metadata, TG_SAFETENSORS_FILE_SUMS)};
    for (int i = 0; sums.object && i < f->n_files; i++) TG_TRY(check_file(f, &sums, i));
    return TG_OK;
}

/* Opens every file that the map names. */
static tg_status open_files(tg_safetensors *f, const tg_json *map) {
    const char *name, *file;
    json_t *value;
    f->files = tg_host_alloc(f->file.ctx, TG_SAFETENSORS_FILES * sizeof *f->files);
    if (!f->files) return tg_io_enter(f->file.ctx);
    json_object_foreach(map->object, name, value) {
        TG_TRY(tg_json_string(map, name, &file));
        TG_TRY(need_file(f, file));
    }
    return TG_OK;
}

/* Copies to f->entries, from index `at` on, those entries of file i whose file is i according to the map. Returns their
 * number. */
static int list_file(tg_safetensors *f, const tg_json *map, int i, int at) {
    const tg_safetensors *file = f->files[i];
    int n = 0;
    for (int k = 0; k < file->count; k++) {
        const char *where = json_string_value(json_object_get(map->object, file->entries[k].name));
        if (!where || strcmp(where, name_of_file(f, i)) != 0) continue;
        f->entries[at + n] = file->entries[k];
        f->file_of[at + n++] = i;
    }
    return n;
}

/* Fails for the first tensor of the map that is not in its file. */
static tg_status report_absent(const tg_safetensors *f, const tg_json *map) {
    const char *name, *file;
    json_t *value;
    json_object_foreach(map->object, name, value) {
        TG_TRY(tg_json_string(map, name, &file));
        for (int i = 0; i < f->n_files; i++)
            if (strcmp(name_of_file(f, i), file) == 0 && !tg_safetensors_find(f->files[i], name))
                return tg_fail(f->file.ctx, TG_ERR_FORMAT,
                               "'%s': weight_map says that tensor '%.128s' is in '%.128s', which has no such tensor",
                               f->file.path, name, file);
    }
    return TG_OK;
}

/* Fills the lists of all tensors of the map. Fails if a tensor is not in its file. */
static tg_status list_tensors(tg_safetensors *f, const tg_json *map) {
    tg_ctx *ctx = f->file.ctx;
    int at = 0;
    f->count = (int)json_object_size(map->object);
    f->entries = tg_host_alloc(ctx, (size_t)f->count * sizeof *f->entries + 1);
    f->file_of = tg_host_alloc(ctx, (size_t)f->count * sizeof *f->file_of + 1);
    f->by_name = tg_host_alloc(ctx, (size_t)f->count * sizeof *f->by_name + 1);
    TG_TRY(tg_io_enter(ctx));
    for (int i = 0; i < f->n_files; i++) at += list_file(f, map, i, at);
    if (at < f->count) return report_absent(f, map);
    tg_index_names(f->entries, f->count, sizeof *f->entries, f->by_name);
    return TG_OK;
}

static tg_status read_map(tg_safetensors *f, const char *path) {
    tg_json document, map;
    TG_TRY(tg_json_load(&document, f->file.ctx, path));
    tg_status s = tg_json_object(&document, "weight_map", &map);
    if (s == TG_OK) s = open_files(f, &map);
    if (s == TG_OK) s = check_files(f, &document);
    if (s == TG_OK) s = list_tensors(f, &map);
    tg_json_free(&document);
    return s;
}

tg_safetensors *tg_safetensors_open_index(tg_ctx *ctx, const char *path) {
    tg_safetensors *f = tg_host_alloc(ctx, sizeof *f);
    if (!f) return NULL;
    f->file = (tg_file){.ctx = ctx, .path = tg_host_strdup(ctx, path), .fd = -1};
    if (f->file.path && read_map(f, path) == TG_OK) return f;
    tg_safetensors_close(f);
    return NULL;
}
