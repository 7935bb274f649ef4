/* Files: wrong calls. Damaged files have tests of their own (unit/test_safetensors.c, unit/test_io.c). */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <unistd.h>

#include <tapegrad/io.h>
#include <tapegrad/checkpoint.h>

#include "misuse/misuse.h"

typedef struct path {
    char name[512];
} path;

static path path_of(const misuse_world *b, const char *name) {
    path p;
    snprintf(p.name, sizeof p.name, "%s/%s", b->dir, name);
    return p;
}

/* Returns a path in the world's directory, valid until the end of the expression. */
#define at(b, file) (path_of(b, file).name)

static void files(misuse_world *b) {
    mkdir(at(b, "directory"), 0777);
    QUIET(tg_file_save, tg_file_save(NULL, at(b, "x"), "x", 1) == TG_ERR_ARGUMENT);
    FAILS(tg_file_save, ARGUMENT, "path is NULL", tg_file_save(b->ctx, NULL, "x", 1));
    FAILS(tg_file_save, ARGUMENT, "data is NULL", tg_file_save(b->ctx, at(b, "x"), NULL, 1));
    FAILS(tg_file_save, IO, "no/such", tg_file_save(b->ctx, at(b, "no/such"), "x", 1));
    FAILS(tg_file_save, IO, "", tg_file_save(b->ctx, "", "x", 1));
    FAILS(tg_file_save, IO, "directory", tg_file_save(b->ctx, at(b, "directory"), "x", 1));
    QUIET(tg_file_save, access(at(b, "x"), F_OK) != 0);
}

/* ---- safetensors ---- */

static void lists(misuse_world *b) {
    QUIET(tg_safetensors_close, (tg_safetensors_close(NULL), true));
    QUIET(tg_safetensors_count, tg_safetensors_count(NULL) == 0);
    QUIET(tg_safetensors_at, !tg_safetensors_at(NULL, 0));
    QUIET(tg_safetensors_find, !tg_safetensors_find(NULL, "w"));
    QUIET(tg_safetensors_metadata_count, tg_safetensors_metadata_count(NULL) == 0);
    QUIET(tg_safetensors_metadata_at, !tg_safetensors_metadata_at(NULL, 0));
    QUIET(tg_safetensors_metadata, !tg_safetensors_metadata(NULL, "k"));
    QUIET(tg_checksum, tg_checksum(NULL, 0) == 0xef46db3751d8e999 && tg_checksum(NULL, 1) == tg_checksum(NULL, 0));
    QUIET(tg_safetensors_open, !tg_safetensors_open(NULL, at(b, "x")));
    GIVES(tg_safetensors_open, ARGUMENT, "NULL", !tg_safetensors_open(b->ctx, NULL));
    GIVES(tg_safetensors_open, IO, "no/such", !tg_safetensors_open(b->ctx, at(b, "no/such")));
    GIVES(tg_safetensors_open, IO, "is a directory", !tg_safetensors_open(b->ctx, b->dir));
    tg_file_save(b->ctx, at(b, "short"), "1234567", 7);
    GIVES(tg_safetensors_open, FORMAT, "7 bytes, expected a safetensors file",
          !tg_safetensors_open(b->ctx, at(b, "short")));
    tg_file_save(b->ctx, at(b, "long"), "\377\377\377\377\377\377\377\377{}", 10);
    GIVES(tg_safetensors_open, FORMAT, "expected at most", !tg_safetensors_open(b->ctx, at(b, "long")));
    tg_file_save(b->ctx, at(b, "m.index.json"), "{}", 2);
    GIVES(tg_safetensors_open, FORMAT, "\"weight_map\"", !tg_safetensors_open(b->ctx, at(b, "m.index.json")));
}

static void reads(misuse_world *b) {
    static float one[1];
    const tg_named_tensor named = {"x", b->x};
    const tg_metadata metadata = {"key", "value"};
    const int64_t expanded[] = {0, 0};
    tg_safetensors_save(b->ctx, at(b, "file"), &named, 1, &metadata, 1);
    tg_safetensors *f = tg_safetensors_open(b->ctx, at(b, "file"));
    tg_tensor *dst = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3)), *f64 = tg_zeros(b->ctx, TG_F64, TG_SHAPE(2, 3));
    tg_tensor *shared = tg_wrap(b->ctx, TG_F32, TG_SHAPE(2, 3), expanded, one, NULL, NULL);
    QUIET(tg_safetensors_at, !tg_safetensors_at(f, -1) && !tg_safetensors_at(f, 1));
    QUIET(tg_safetensors_find, !tg_safetensors_find(f, NULL) && !tg_safetensors_find(f, ""));
    QUIET(tg_safetensors_metadata_at, !tg_safetensors_metadata_at(f, -1) && !tg_safetensors_metadata_at(f, 1));
    QUIET(tg_safetensors_metadata, !tg_safetensors_metadata(f, NULL) && !tg_safetensors_metadata(f, "other"));
    QUIET(tg_safetensors_read, tg_safetensors_read(NULL, "x", dst, false) == TG_ERR_ARGUMENT);
    FAILS(tg_safetensors_read, ARGUMENT, "name is NULL", tg_safetensors_read(f, NULL, dst, false));
    FAILS(tg_safetensors_read, DATA, "has no tensor 'other'", tg_safetensors_read(f, "other", dst, false));
    FAILS(tg_safetensors_read, ARGUMENT, "the tensor is NULL", tg_safetensors_read(f, "x", NULL, false));
    FAILS(tg_safetensors_read, SHAPE, "is [2, 3], expected [3]", tg_safetensors_read(f, "x", b->v, false));
    FAILS(tg_safetensors_read, DTYPE, "is F32, expected f64", tg_safetensors_read(f, "x", f64, false));
    FAILS(tg_safetensors_read, DTYPE, "only floats and float8 are", tg_safetensors_read(f, "x", b->mask, true));
    FAILS(tg_safetensors_read, STATE, "share memory", tg_safetensors_read(f, "x", shared, false));
    FAILS(tg_safetensors_read, HANDLE, "another context", tg_safetensors_read(f, "x", b->foreign, false));
    FAILS(tg_safetensors_read, DISCARDED, "tg_discard", tg_safetensors_read(f, "x", b->gone, false));
    EACH_DEAD(x) FAILS(tg_safetensors_read, HANDLE, "the tensor", tg_safetensors_read(f, "x", x, false));
    QUIET(tg_safetensors_read_part, tg_safetensors_read_part(NULL, "x", dst, false) == TG_ERR_ARGUMENT);
    FAILS(tg_safetensors_read_part, ARGUMENT, "name is NULL", tg_safetensors_read_part(f, NULL, dst, false));
    FAILS(tg_safetensors_read_part, DATA, "no tensor 'other'", tg_safetensors_read_part(f, "other", dst, false));
    FAILS(tg_safetensors_read_part, ARGUMENT, "is NULL", tg_safetensors_read_part(f, "x", NULL, false));
    FAILS(tg_safetensors_read_part, SHAPE, "expected [3]", tg_safetensors_read_part(f, "x", b->v, false));
    FAILS(tg_safetensors_read_part, DTYPE, "expected f64", tg_safetensors_read_part(f, "x", f64, false));
    FAILS(tg_safetensors_read_part, DTYPE, "only floats", tg_safetensors_read_part(f, "x", b->mask, true));
    FAILS(tg_safetensors_read_part, STATE, "share memory", tg_safetensors_read_part(f, "x", shared, false));
    FAILS(tg_safetensors_read_part, HANDLE, "another context", tg_safetensors_read_part(f, "x", b->foreign, false));
    FAILS(tg_safetensors_read_part, DISCARDED, "tg_discard", tg_safetensors_read_part(f, "x", b->gone, false));
    EACH_DEAD(x) FAILS(tg_safetensors_read_part, HANDLE, "the tensor", tg_safetensors_read_part(f, "x", x, false));
    QUIET(tg_safetensors_load, misuse_inert(tg_safetensors_load(NULL, "x")));
    INERT(tg_safetensors_load, ARGUMENT, "name is NULL", tg_safetensors_load(f, NULL));
    INERT(tg_safetensors_load, DATA, "has no tensor", tg_safetensors_load(f, "X"));
    tg_safetensors_close(f);
    tg_drop(dst);
    tg_drop(f64);
    tg_drop(shared);
}

static bool saves(misuse_world *b, tg_tensor *x, const char *name, tg_status status, const char *says) {
    const tg_named_tensor named = {name, x};
    tg_status s = tg_safetensors_save(b->ctx, at(b, "saved"), &named, 1, NULL, 0);
    bool good = s == status && strstr(tg_ctx_message(b->ctx), says) && access(at(b, "saved"), F_OK) != 0;
    tg_ctx_clear(b->ctx);
    return good;
}

static void writes(misuse_world *b) {
    const tg_named_tensor named[] = {{"x", b->x}, {"x", b->v}};
    const tg_metadata no_key = {NULL, "v"}, no_value = {"k", NULL}, twice[] = {{"k", "1"}, {"k", "2"}};
    const tg_metadata sums = {"tapegrad.xxh64", ""};
    const path saved = path_of(b, "saved");
    const char *path = saved.name;
    QUIET(tg_safetensors_save, tg_safetensors_save(NULL, path, named, 1, NULL, 0) == TG_ERR_ARGUMENT);
    FAILS(tg_safetensors_save, ARGUMENT, "path NULL", tg_safetensors_save(b->ctx, NULL, named, 1, NULL, 0));
    FAILS(tg_safetensors_save, ARGUMENT, "1 tensor at NULL", tg_safetensors_save(b->ctx, path, NULL, 1, NULL, 0));
    FAILS(tg_safetensors_save, ARGUMENT, "-1 tensors", tg_safetensors_save(b->ctx, path, named, -1, NULL, 0));
    FAILS(tg_safetensors_save, ARGUMENT, "1 metadata at NULL", tg_safetensors_save(b->ctx, path, named, 1, NULL, 1));
    FAILS(tg_safetensors_save, ARGUMENT, "-2 metadata", tg_safetensors_save(b->ctx, path, named, 1, twice, -2));
    FAILS(tg_safetensors_save, ARGUMENT, "name 'x' is given twice",
          tg_safetensors_save(b->ctx, path, named, 2, NULL, 0));
    FAILS(tg_safetensors_save, ARGUMENT, "key of metadata 0 is NULL",
          tg_safetensors_save(b->ctx, path, named, 1, &no_key, 1));
    FAILS(tg_safetensors_save, ARGUMENT, "value of metadata 0 is NULL",
          tg_safetensors_save(b->ctx, path, named, 1, &no_value, 1));
    FAILS(tg_safetensors_save, ARGUMENT, "'k' is given twice", tg_safetensors_save(b->ctx, path, named, 1, twice, 2));
    FAILS(tg_safetensors_save, ARGUMENT, "the metadata key 'tapegrad.xxh64' is reserved",
          tg_safetensors_save(b->ctx, path, named, 1, &sums, 1));
    FAILS(tg_safetensors_save, IO, "no/such", tg_safetensors_save(b->ctx, at(b, "no/such"), named, 1, NULL, 0));
    QUIET(tg_safetensors_save, saves(b, b->x, NULL, TG_ERR_ARGUMENT, "name of tensor 0 is NULL"));
    QUIET(tg_safetensors_save, saves(b, b->x, "\xff", TG_ERR_ARGUMENT, "not UTF-8"));
    QUIET(tg_safetensors_save, saves(b, b->x, "__metadata__", TG_ERR_ARGUMENT, "__metadata__"));
    QUIET(tg_safetensors_save, saves(b, NULL, "n", TG_ERR_ARGUMENT, "NULL"));
    QUIET(tg_safetensors_save, saves(b, b->foreign, "n", TG_ERR_HANDLE, "another context"));
    QUIET(tg_safetensors_save, saves(b, b->gone, "n", TG_ERR_DISCARDED, "tg_discard"));
    EACH_DEAD(x) QUIET(tg_safetensors_save, saves(b, x, "n", TG_ERR_HANDLE, "the tensor"));
    tg_ctx *meta = tg_ctx_new(TG_CONFIG(.device = "meta"));
    const tg_named_tensor nowhere = {"n", tg_zeros(meta, TG_F32, TG_SHAPE(1))};
    QUIET(tg_safetensors_save,
          tg_safetensors_save(meta, path, &nowhere, 1, NULL, 0) == TG_ERR_DEVICE && access(path, F_OK) != 0);
    tg_ctx_free(meta);
}

/* ---- Tokens ---- */

#define OPENS(code, says, path, format, vocab)                                                                         \
    GIVES(tg_tokens_open, code, says, !tg_tokens_open(b->ctx, path, format, vocab))

static void tokens(misuse_world *b) {
    int64_t out[4] = {7, 7, 7, 7};
    tg_file_save(b->ctx, at(b, "text"), "abc", 3);
    tg_file_save(b->ctx, at(b, "empty"), NULL, 0);
    const path text_path = path_of(b, "text");
    const char *text = text_path.name;
    QUIET(tg_tokens_open, !tg_tokens_open(NULL, text, TG_TOKENS_TEXT, 0));
    OPENS(ARGUMENT, "path NULL", NULL, TG_TOKENS_TEXT, 0);
    OPENS(ARGUMENT, "format 9", text, (tg_token_format)9, 0);
    OPENS(ARGUMENT, "format -1", text, (tg_token_format)-1, 0);
    OPENS(ARGUMENT, "vocab -1", text, TG_TOKENS_TEXT, -1);
    OPENS(IO, "no/such", at(b, "no/such"), TG_TOKENS_TEXT, 0);
    OPENS(IO, "is a directory", b->dir, TG_TOKENS_TEXT, 0);
    OPENS(DATA, "is empty", at(b, "empty"), TG_TOKENS_TEXT, 0);
    OPENS(FORMAT, "3 bytes, expected a multiple of 2", text, TG_TOKENS_U16, 0);
    OPENS(DATA, "token 2 at offset 2 is 99, expected less than 99", text, TG_TOKENS_TEXT, 99);
    tg_tokens *t = tg_tokens_open(b->ctx, text, TG_TOKENS_TEXT, 0);
    QUIET(tg_tokens_close, (tg_tokens_close(NULL), true));
    QUIET(tg_tokens_count, tg_tokens_count(NULL) == 0 && tg_tokens_count(t) == 3);
    QUIET(tg_tokens_read, tg_tokens_read(NULL, 0, 1, out) == TG_ERR_ARGUMENT);
    FAILS(tg_tokens_read, ARGUMENT, "asked for 1 token from token -1", tg_tokens_read(t, -1, 1, out));
    FAILS(tg_tokens_read, ARGUMENT, "-1 tokens from token 0", tg_tokens_read(t, 0, -1, out));
    FAILS(tg_tokens_read, ARGUMENT, "4 tokens from token 0", tg_tokens_read(t, 0, 4, out));
    FAILS(tg_tokens_read, ARGUMENT, "has 3", tg_tokens_read(t, 2, INT64_MAX, out));
    FAILS(tg_tokens_read, ARGUMENT, "has 3", tg_tokens_read(t, INT64_MAX, 1, out));
    FAILS(tg_tokens_read, ARGUMENT, "out is NULL", tg_tokens_read(t, 0, 1, NULL));
    QUIET(tg_tokens_read, out[0] == 7 && out[3] == 7);
    tg_tokens_close(t);
}

/* Joins the text with itself, which is joined first if `twice` is true. */
static tg_tokens *join_text(misuse_world *b, bool twice) {
    tg_tokens *t = tg_tokens_open(b->ctx, at(b, "text"), TG_TOKENS_TEXT, 0);
    if (twice) t = tg_tokens_join(b->ctx, &t, 1);
    tg_tokens *part[] = {t, NULL};
    return tg_tokens_join(b->ctx, part, 2);
}

static tg_tokens *join_one_stream_twice(misuse_world *b) {
    tg_tokens *t = tg_tokens_open(b->ctx, at(b, "text"), TG_TOKENS_TEXT, 0), *part[] = {t, t};
    return tg_tokens_join(b->ctx, part, 2);
}

static void documents(misuse_world *b) {
    int64_t out[4] = {7, 7, 7, 7};
    tg_token_run run = {0};
    tg_file_save(b->ctx, at(b, "text"), "abc", 3);
    tg_tokens *text = tg_tokens_open(b->ctx, at(b, "text"), TG_TOKENS_TEXT, 0), *none = NULL;
    QUIET(tg_tokens_join, !tg_tokens_join(NULL, &none, 1));
    GIVES(tg_tokens_join, ARGUMENT, "part is", !tg_tokens_join(b->ctx, NULL, 1));
    GIVES(tg_tokens_join, ARGUMENT, "n 0", !tg_tokens_join(b->ctx, &text, 0));
    GIVES(tg_tokens_join, ARGUMENT, "part 1 is NULL", !join_text(b, false));
    GIVES(tg_tokens_join, ARGUMENT, "part 0 is joined itself", !join_text(b, true));
    GIVES(tg_tokens_join, ARGUMENT, "parts 0 and 1 are one stream", !join_one_stream_twice(b));
    tg_tokens *t = text;
    QUIET(tg_tokens_documents, tg_tokens_documents(NULL) == 0 && tg_tokens_documents(t) == 1);
    QUIET(tg_tokens_find_run, tg_tokens_find_run(NULL, 0, &run) == TG_ERR_ARGUMENT);
    FAILS(tg_tokens_find_run, ARGUMENT, "token is 3", tg_tokens_find_run(t, 3, &run));
    FAILS(tg_tokens_find_run, ARGUMENT, "token is -1", tg_tokens_find_run(t, -1, &run));
    FAILS(tg_tokens_find_run, ARGUMENT, "out", tg_tokens_find_run(t, 0, NULL));
    QUIET(tg_tokens_next_run, tg_tokens_next_run(NULL, &run) == TG_ERR_ARGUMENT);
    FAILS(tg_tokens_next_run, ARGUMENT, "expected a run", tg_tokens_next_run(t, NULL));
    FAILS(tg_tokens_next_run, ARGUMENT, "expected a run", tg_tokens_next_run(t, &run));
    run.stop = 3;
    FAILS(tg_tokens_next_run, ARGUMENT, "ends with token 2", tg_tokens_next_run(t, &run));
    QUIET(tg_tokens_has_context, !tg_tokens_has_context(NULL) && !tg_tokens_has_context(t));
    QUIET(tg_tokens_set_windows, tg_tokens_set_windows(NULL, TG_WINDOWS_PACKED) == TG_ERR_ARGUMENT);
    FAILS(tg_tokens_set_windows, ARGUMENT, "windows is 3", tg_tokens_set_windows(t, (tg_token_windows)3));
    QUIET(tg_tokens_windows, tg_tokens_windows(NULL) == TG_WINDOWS_ACROSS && tg_tokens_windows(t) == TG_WINDOWS_ACROSS);
    QUIET(tg_tokens_read_positions, tg_tokens_read_positions(NULL, 0, 1, out) == TG_ERR_ARGUMENT);
    FAILS(tg_tokens_read_positions, ARGUMENT, "", tg_tokens_read_positions(t, 2, 2, out));
    FAILS(tg_tokens_read_positions, ARGUMENT, "", tg_tokens_read_positions(t, 0, 1, NULL));
    FAILS(tg_tokens_read_positions, ARGUMENT, "n is 0", tg_tokens_read_positions(t, 0, 0, out));
    QUIET(tg_tokens_read_window, tg_tokens_read_window(NULL, 0, 1, out, out) == TG_ERR_ARGUMENT);
    FAILS(tg_tokens_read_window, ARGUMENT, "a window of 3 from token 0 on", tg_tokens_read_window(t, 0, 3, out, out));
    FAILS(tg_tokens_read_window, ARGUMENT, "a window of 0", tg_tokens_read_window(t, 0, 0, out, out));
    FAILS(tg_tokens_read_window, ARGUMENT, "from token -1 on", tg_tokens_read_window(t, -1, 1, out, out));
    FAILS(tg_tokens_read_window, ARGUMENT, "from token -9223372036854775808 on",
          tg_tokens_read_window(t, INT64_MIN, 1, out, out));
    QUIET(tg_tokens_count_targets, tg_tokens_count_targets(NULL, 0, 1) == 0);
    GIVES(tg_tokens_count_targets, ARGUMENT, "from token 2 on", tg_tokens_count_targets(t, 2, 2) == 0);
    QUIET(tg_tokens_read_window, out[0] == 7 && out[3] == 7);
    tg_tokens_close(t);
}

static tg_status write_nothing(misuse_world *b) {
    return tg_token_writer_commit(tg_token_writer_open(b->ctx, at(b, "w"), 9));
}

static void written_tokens(misuse_world *b) {
    const int64_t ids[] = {1, 9, -1};
    QUIET(tg_token_writer_open, !tg_token_writer_open(NULL, "x", 9));
    GIVES(tg_token_writer_open, ARGUMENT, "path NULL", !tg_token_writer_open(b->ctx, NULL, 9));
    GIVES(tg_token_writer_open, ARGUMENT, "vocab 0", !tg_token_writer_open(b->ctx, at(b, "w"), 0));
    GIVES(tg_token_writer_open, ARGUMENT, "vocab 2147483649",
          !tg_token_writer_open(b->ctx, at(b, "w"), (INT64_C(1) << 31) + 1));
    GIVES(tg_token_writer_open, IO, "no/such", !tg_token_writer_open(b->ctx, at(b, "no/such"), 9));
    tg_token_writer *w = tg_token_writer_open(b->ctx, at(b, "w"), 9);
    QUIET(tg_token_writer_add, tg_token_writer_add(NULL, ids, 1, false) == TG_ERR_ARGUMENT);
    FAILS(tg_token_writer_add, ARGUMENT, "n -1", tg_token_writer_add(w, ids, -1, false));
    FAILS(tg_token_writer_add, ARGUMENT, "n 1", tg_token_writer_add(w, NULL, 1, false));
    FAILS(tg_token_writer_add, DATA, "id 9, expected 0 to 8", tg_token_writer_add(w, ids, 2, false));
    FAILS(tg_token_writer_add, DATA, "id -1, expected 0 to 8", tg_token_writer_add(w, ids + 2, 1, false));
    QUIET(tg_token_writer_count, tg_token_writer_count(NULL) == 0);
    QUIET(tg_token_writer_end_document, tg_token_writer_end_document(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_token_writer_commit, tg_token_writer_commit(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_token_writer_abandon, (tg_token_writer_abandon(w), tg_token_writer_abandon(NULL), true));
    GIVES(tg_token_writer_commit, DATA, "would have no tokens", write_nothing(b) != TG_OK);
}

/* ---- Checkpoints ---- */

static void checkpoints(misuse_world *b) {
    char buf[16] = "kept";
    const path dir_path = path_of(b, "checkpoints");
    const char *dir = dir_path.name;
    QUIET(tg_checkpoints_open, !tg_checkpoints_open(NULL, dir));
    GIVES(tg_checkpoints_open, ARGUMENT, "dir is NULL", !tg_checkpoints_open(b->ctx, NULL));
    GIVES(tg_checkpoints_open, ARGUMENT, "dir is empty", !tg_checkpoints_open(b->ctx, ""));
    GIVES(tg_checkpoints_open, IO, "no/such", !tg_checkpoints_open(b->ctx, at(b, "no/such")));
    GIVES(tg_checkpoints_open, IO, "text", !tg_checkpoints_open(b->ctx, at(b, "text")));
    tg_checkpoints *c = tg_checkpoints_open(b->ctx, dir);
    GIVES(tg_checkpoints_open, STATE, "in use by another run, or open already in this one",
          !tg_checkpoints_open(b->ctx, dir));
    QUIET(tg_checkpoints_close, (tg_checkpoints_close(NULL), true));
    QUIET(tg_checkpoints_newest, tg_checkpoints_newest(NULL) == -1 && tg_checkpoints_newest(c) == -1);
    QUIET(tg_checkpoints_path, tg_checkpoints_path(NULL, 1, buf, sizeof buf) == 0);
    QUIET(tg_checkpoints_path, tg_checkpoints_path(c, -1, buf, sizeof buf) == 0);
    QUIET(tg_checkpoints_path, tg_checkpoints_path(c, 1, NULL, 0) > 16 && tg_checkpoints_path(c, 1, NULL, 9) > 16);
    QUIET(tg_checkpoints_begin, !tg_checkpoints_begin(NULL, 1));
    GIVES(tg_checkpoints_begin, ARGUMENT, "step -1, expected 0 or more", !tg_checkpoints_begin(c, -1));
    QUIET(tg_checkpoints_commit, tg_checkpoints_commit(NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_checkpoints_commit, STATE, "no checkpoint has begun", tg_checkpoints_commit(c));
    QUIET(tg_checkpoints_abandon, (tg_checkpoints_abandon(NULL), tg_checkpoints_abandon(c), true));
    tg_checkpoints_begin(c, 3);
    GIVES(tg_checkpoints_begin, STATE, "another checkpoint has begun", !tg_checkpoints_begin(c, 4));
    tg_checkpoints_commit(c);
    GIVES(tg_checkpoints_begin, STATE, "exists already", !tg_checkpoints_begin(c, 3));
    QUIET(tg_checkpoints_keep, tg_checkpoints_keep(NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_checkpoints_keep, ARGUMENT, "n is -1, expected 0 or more", tg_checkpoints_keep(c, -1));
    QUIET(tg_checkpoints_newest, tg_checkpoints_newest(c) == 3);
    tg_checkpoints_close(c);
}

void misuse_io(misuse_world *b) {
    files(b);
    lists(b);
    reads(b);
    writes(b);
    tokens(b);
    documents(b);
    written_tokens(b);
    checkpoints(b);
}
