/* Directories of state of version 0.2: files of whole tensors, one for each pipeline stage, without an index. */
#define _GNU_SOURCE
#include <sys/stat.h>

#include <tapegrad/io.h>

#include "state.h"

enum { LAYERS = 4, ROWS = 6, WIDTH = 2 };

/* Writes the file of a stage: an own tensor, a copy of a shared one, and two layers of a stack. */
static void write_stage(tg_ctx *ctx, const char *dir, int stage, const char *save) {
    char path[300], own[16], list[16];
    double v[2 * ROWS * WIDTH];
    tg_tensor *x[3];
    int64_t first = 2 * stage;
    x[0] = made(ctx, stage, TG_SHAPE(ROWS, WIDTH));
    x[1] = made(ctx, 5, TG_SHAPE(ROWS, WIDTH));
    for (int64_t i = 0; i < 2 * ROWS * WIDTH; i++)
        v[i] = at(10 + (int)(first + i / (ROWS * WIDTH)), i % (ROWS * WIDTH));
    x[2] = tg_from_host(ctx, TG_F64, TG_SHAPE(2, ROWS, WIDTH), v);
    snprintf(path, sizeof path, "%s/state-%05d.safetensors", dir, stage);
    snprintf(own, sizeof own, "w%d", stage);
    snprintf(list, sizeof list, "%d %d", (int)first, (int)first + 1);
    const tg_named_tensor named[] = {{own, x[0]}, {"shared", x[1]}, {"layers", x[2]}};
    const tg_metadata m[] = {{"format", "tapegrad-state-1"}, {"files", "2"},    {"save", save},
                             {"places.layers", list},        {"rng", "9 0 77"}, {"rng.step", "12"}};
    ck_assert_msg(tg_safetensors_save(ctx, path, named, 3, m, 6) == TG_OK, "%s", tg_ctx_message(ctx));
    for (int i = 0; i < 3; i++) tg_drop(x[i]);
}

static const char *written(char dir[256], const char *name, const char *other) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    in_root(dir, "%s", name);
    ck_assert(mkdir(dir, 0777) == 0);
    write_stage(ctx, dir, 0, "1234");
    write_stage(ctx, dir, 1, other);
    tg_ctx_free(ctx);
    return dir;
}

/* Compares x, a part of tensor number k with the given placement, with its values. */
static tg_status compare(tg_tensor *x, int k, int r, int n, int dim) {
    tg_tensor *whole = made(tg_ctx_of(x), k, TG_SHAPE(ROWS, WIDTH));
    double difference = off(x, whole, n > 1 ? dim : -1, r, n);
    tg_drop(whole);
    EXPECT(tg_ctx_of(x), difference == 0);
    return TG_OK;
}

typedef struct job {
    const char *from, *to;
    int tp, pp;
} job;

/* Loads the state, and compares it. Each stage has half of the layers. */
static tg_status load(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp, .pp = j->pp));
    tg_shards *s = tg_shards_new(p);
    int stage = tg_parallel_rank(p, TG_PP), mine = LAYERS / j->pp, r = tg_parallel_rank(p, TG_TP), n = 0;
    tg_tensor *x[3 + LAYERS];
    int number[3 + LAYERS];
    for (int k = 0; k < 2; k++)
        if (j->pp == 1 || k == stage) number[n++] = k;
    number[n++] = 5;
    for (int i = 0; i < mine; i++) number[n++] = 10 + stage * mine + i;
    for (int i = 0; i < n; i++) {
        char key[16];
        int k = number[i];
        snprintf(key, sizeof key, k == 5 ? "shared" : k < 10 ? "w%d" : "layers", k);
        x[i] = filled(p, "w", k, TG_F64, TG_SHAPE(ROWS, WIDTH), TG_PLACES({TG_TP, TG_SHARD(k % 2)}), -3);
        if (k >= 10) tg_shards_push(s, NULL, LAYERS, k - 10);
        RUN(tg_shards_add_tensor(s, key, x[i]));
        if (k >= 10) tg_shards_pop(s);
    }
    RUN(tg_shards_add_rng(s));
    RUN(tg_shards_load(s, j->from));
    tg_rng all;
    RUN(tg_rng_get(ctx, NULL, &all));
    EXPECT(ctx, all.seed == 9 && all.counter == 77);
    for (int i = 0; i < n; i++) RUN(compare(x[i], number[i], r, j->tp, number[i] % 2));
    if (j->to) RUN(tg_shards_save(s, j->to));
    tg_shards_free(s);
    for (int i = 0; i < n; i++) tg_drop(x[i]);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(old_directories_are_loaded_and_replaced) {
    static const struct { int tp, pp; } grids[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};
    char dir[256], to[256], path[300];
    written(dir, "old", "1234");
    for (int i = 0; i < 4; i++) {
        in_root(to, "new-%d", i);
        int n = grids[i].tp * grids[i].pp;
        on_ranks(n, load, &(job){dir, to, grids[i].tp, grids[i].pp});
        on_ranks(1, load, &(job){to, NULL, 1, 1});
    }
    on_ranks(2, load, &(job){dir, dir, 2, 1}); /* in place */
    snprintf(path, sizeof path, "%s/state-00001.safetensors", dir);
    ck_assert(access(path, F_OK) != 0);
    on_ranks(4, load, &(job){dir, NULL, 2, 2});
}
END_TEST

/* Loads the tensors under keys with a prefix that the directory's keys do not have. */
static tg_status load_renamed(void *arg, tg_ctx *ctx, tg_comm *world) {
    static const char *const keys[] = {"m.w0", "m.w1", "m.shared", "m.layers"};
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_shards *s = tg_shards_new(p);
    tg_tensor *x[3 + LAYERS];
    for (int i = 0; i < 3 + LAYERS; i++) {
        x[i] = made(ctx, 99, TG_SHAPE(ROWS, WIDTH));
        if (i >= 3) tg_shards_push(s, NULL, LAYERS, i - 3);
        RUN(tg_shards_add_tensor(s, keys[i < 3 ? i : 3], x[i]));
        if (i >= 3) tg_shards_pop(s);
    }
    RUN(tg_shards_load_with(s, arg, TG_SHARDS_LOAD(.to_prefix = "m")));
    for (int i = 0; i < 3 + LAYERS; i++) {
        RUN(compare(x[i], i < 2 ? i : i == 2 ? 5 : 10 + i - 3, 0, 1, -1));
        tg_drop(x[i]);
    }
    tg_shards_free(s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(old_directories_are_loaded_under_other_keys) {
    char dir[256];
    written(dir, "renamed", "1234");
    on_ranks(1, load_renamed, dir);
}
END_TEST

static tg_status refused(void *arg, tg_ctx *ctx, tg_comm *world) {
    const char *const *row = arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_shards *s = tg_shards_new(p);
    REFUSED(ctx, TG_ERR_FORMAT, row[1], tg_shards_load(s, row[0]));
    tg_shards_free(s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(files_of_two_saves_are_refused) {
    char dir[256];
    const char *row[] = {written(dir, "two-saves", "1235"), "its metadata 'save' is 1235, expected the same value"};
    on_ranks(1, refused, row);
}
END_TEST

START_TEST(old_damage_is_found) {
    char dir[256], report[1024];
    int n = -1;
    long size = 0;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    written(dir, "damaged", "1234");
    ck_assert(tg_shards_verify(ctx, dir, report, sizeof report, &n) == TG_OK && n == 0);
    free(slurp(dir, "state-00001.safetensors", &size));
    flip(dir, "state-00001.safetensors", size - 1);
    ck_assert(tg_shards_verify(ctx, dir, report, sizeof report, &n) == TG_OK && n == 1);
    ck_assert_ptr_nonnull(strstr(report, "state-00001.safetensors': tensor 'layers'"));
    tg_ctx_free(ctx);
}
END_TEST

/* Writes two files that have the key "k", the first one a whole tensor of this shape and the second one a slice. */
static void write_mixed(const char *dir, tg_shape whole, tg_shape slices) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    ck_assert(mkdir(dir, 0777) == 0);
    for (int i = 0; i < 2; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/state-%05d.safetensors", dir, i);
        const tg_named_tensor named = {"k", tg_zeros(ctx, TG_F64, i ? slices : whole)};
        const tg_metadata m[] = {{"format", "tapegrad-state-1"}, {"files", "2"}, {"save", "1"}, {"places.k", "0"}};
        ck_assert(tg_safetensors_save(ctx, path, &named, 1, m, i ? 4 : 3) == TG_OK);
    }
    tg_ctx_free(ctx);
}

static tg_status load_slice(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, NULL);
    for (int scalar = 0; scalar < 2; scalar++) {
        tg_shards *s = tg_shards_new(p);
        tg_tensor *x = tg_zeros(ctx, TG_F64, scalar ? TG_SHAPE() : TG_SHAPE(4));
        RUN(tg_shards_push(s, NULL, 2, 1));
        RUN(tg_shards_add_tensor(s, "k", x));
        RUN(tg_shards_pop(s));
        REFUSED(ctx, TG_ERR_FORMAT, scalar ? "'k' is f64[], expected f64[2]" : "is f64[0, 4], expected f64[2, 4]",
                tg_shards_load(s, ((const char(*)[256])arg)[scalar]));
        tg_shards_free(s);
        tg_drop(x);
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* The key's shape, that of the first file, has no place for a slice of the list's shape. */
START_TEST(a_whole_tensor_and_slices_of_one_key_are_refused) {
    char dir[2][256];
    write_mixed(in_root(dir[0], "mixed"), TG_SHAPE(0, 4), TG_SHAPE(1, 4));
    write_mixed(in_root(dir[1], "mixed-scalars"), TG_SHAPE(), TG_SHAPE());
    on_ranks(1, load_slice, dir);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {old_directories_are_loaded_and_replaced, old_directories_are_loaded_under_other_keys,
                                  files_of_two_saves_are_refused, old_damage_is_found,
                                  a_whole_tensor_and_slices_of_one_key_are_refused};
    return state_main("old state", tests, sizeof tests / sizeof *tests);
}
