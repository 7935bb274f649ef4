/* Saves by every rank: which rank writes what, what is sent, ranges, saves while training goes on, and loads of a part
 * of the keys. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/stat.h>

#include <tapegrad/io.h>
#include <tapegrad/ranks.h>

#include "checkpoint/state/state_index.h"
#include "state.h"

/* ---- Who writes what ---- */

enum { TENSORS = 12 };

/* Parameters that are sharded over tp, or not; all are replicated over dp. Number k has 8 (k + 1) rows. */
static void make(const tg_parallel *p, tg_tensor *x[TENSORS], double scale) {
    for (int k = 0; k < TENSORS; k++) {
        tg_shape shape = TG_SHAPE(8 * (k + 1), 3);
        x[k] = k % 3 ? filled(p, "w", k, TG_F64, shape, TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}), scale)
                     : filled(p, "w", k, TG_F64, shape, TG_PLACES({TG_TP, TG_I}, {TG_DP, TG_R}), scale);
    }
}

static tg_status set(tg_tensor *x, double value) {
    double v[8192];
    for (int64_t i = 0; i < tg_numel(x); i++) v[i] = value;
    return tg_write_f64(x, v, tg_numel(x));
}

static tg_shards *listed(const tg_parallel *p, tg_tensor *const x[TENSORS]) {
    tg_shards *s = tg_shards_new(p);
    for (int k = 0; k < TENSORS; k++) {
        char key[16];
        snprintf(key, sizeof key, "w%d", k);
        tg_shards_add_tensor(s, key, x[k]);
    }
    return s;
}

static void drop(tg_tensor *const x[TENSORS]) {
    for (int k = 0; k < TENSORS; k++) tg_drop(x[k]);
}

typedef struct job {
    int tp;
    const char *dir;
} job;

/* Checks what was sent from `before` on. */
static tg_status check_sent(tg_ctx *ctx, const tg_comm *world, const tg_comm_info *before) {
    tg_comm_info now = TG_COMM_INFO();
    int64_t calls = 0, ranks = tg_comm_size(world);
    if (ranks == 1) return TG_OK;
    RUN(tg_comm_query(world, &now));
    for (int k = 0; k < TG_COLLECTIVES; k++) calls += now.calls[k] - before->calls[k];
    EXPECT(ctx, now.calls[TG_BARRIER] - before->calls[TG_BARRIER] == 2);
    EXPECT(ctx, now.calls[TG_ALL_GATHER] - before->calls[TG_ALL_GATHER] == 2 && calls == 4);
    EXPECT(ctx, now.bytes[TG_ALL_GATHER] - before->bytes[TG_ALL_GATHER] == 16 * ranks * (1 + TENSORS));
    return TG_OK;
}

static tg_status save(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_tensor *x[TENSORS];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp));
    tg_comm_info before = TG_COMM_INFO();
    make(p, x, 1);
    tg_shards *s = listed(p, x);
    RUN(tg_comm_query(world, &before));
    RUN(tg_shards_save(s, j->dir));
    RUN(check_sent(ctx, world, &before));
    tg_shards_free(s);
    drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Adds up the bytes of the data of each rank's file, and returns the size of the largest piece. */
static int64_t written(const char *dir, int64_t bytes[8]) {
    int64_t largest = 0;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_state d;
    ck_assert_msg(tg_state_open(&d, ctx, dir, NULL) == TG_OK, "%s", tg_ctx_message(ctx));
    for (int i = 0; i < d.n_files; i++) {
        int rank = atoi(d.file[i].name + strlen("rank-"));
        const tg_safetensors *f = tg_state_file_open(&d, i);
        for (int k = 0; k < tg_safetensors_count(f); k++) {
            int64_t n = tg_safetensors_at(f, k)->stop - tg_safetensors_at(f, k)->begin;
            bytes[rank] += n;
            largest = n > largest ? n : largest;
        }
    }
    tg_state_close(&d);
    tg_ctx_free(ctx);
    return largest;
}

/* No byte is written twice, and ranks with the same parts write equally much, up to one part. */
START_TEST(each_rank_writes_its_share) {
    static const struct { int ranks, tp; } grids[] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 2}};
    int64_t all = 0;
    for (int k = 0; k < TENSORS; k++) all += 8 * (k + 1) * 3 * 8;
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        char dir[256];
        int64_t bytes[8] = {0}, sum = 0, n = grids[i].ranks;
        in_root(dir, "share-%zu", i);
        on_ranks((int)n, save, &(job){grids[i].tp, dir});
        int64_t largest = written(dir, bytes);
        for (int r = 0; r < n; r++) {
            sum += bytes[r];
            ck_assert_msg(bytes[r] * n <= all + n * largest && bytes[r] * n >= all - n * largest,
                          "grid %zu: rank %d writes %lld of %lld bytes", i, r, (long long)bytes[r], (long long)all);
        }
        ck_assert_int_eq(sum, all);
    }
}
END_TEST

/* ---- Ranges ---- */

enum { ROWS = 10, WIDTH = 6 };

/* Cuts of the elements of a part among n ranks, also empty ones. */
static int64_t cut(int i, int n, int64_t all, int odd) {
    if (i == 0 || i == n) return i ? all : 0;
    return odd ? all * i * i / (n * n) : all * i / n;
}

typedef struct ranges {
    int ranks, tp, odd;
    int64_t rows; /* rows that are not padding; 0: all */
} ranges;

typedef struct range_job {
    const ranges *r;
    const char *from, *to;
} range_job;

/* Each data-parallel rank has a range of its tp part of two tensors. */
static tg_status with_ranges(void *arg, tg_ctx *ctx, tg_comm *world) {
    const range_job *j = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->r->tp));
    tg_shards *s = tg_shards_new(p);
    tg_tensor *param[2], *x[2];
    int dp = tg_parallel_size(p, TG_DP), d = tg_parallel_rank(p, TG_DP);
    for (int k = 0; k < 2; k++) {
        tg_shape shape = TG_SHAPE(ROWS, WIDTH);
        char key[16];
        double v[ROWS * WIDTH];
        param[k] = filled(p, "w", k, TG_F64, shape, TG_PLACES({TG_TP, TG_SHARD(k)}, {TG_DP, TG_R}), 1);
        RUN(tg_read_f64(param[k], v, tg_numel(param[k])));
        int64_t begin = cut(d, dp, tg_numel(param[k]), j->r->odd), end = cut(d + 1, dp, tg_numel(param[k]), j->r->odd);
        x[k] = tg_from_host(ctx, TG_F64, TG_SHAPE(end - begin), v + begin);
        if (j->from) set(x[k], -1);
        snprintf(key, sizeof key, "w%d", k);
        RUN(tg_shards_add_tensor(s, key, param[k]));
        snprintf(key, sizeof key, "m%d", k);
        RUN(tg_shards_add_range(s, key, x[k], param[k], begin, end));
        if (j->r->rows) RUN(tg_shards_set_rows(s, key, j->r->rows));
        if (j->from) continue;
        tg_shard_info info = TG_SHARD_INFO();
        RUN(tg_shards_at(s, 2 * k + 1, &info));
        EXPECT(ctx, info.tensor == x[k] && info.whole.dim[0] == ROWS);
    }
    if (j->from) RUN(tg_shards_load(s, j->from));
    if (j->to) RUN(tg_shards_save(s, j->to));
    for (int k = 0; k < 2; k++) {
        double want[ROWS * WIDTH], got[ROWS * WIDTH];
        int64_t begin = cut(d, dp, tg_numel(param[k]), j->r->odd), n = tg_numel(x[k]), rows = j->r->rows;
        RUN(tg_read_f64(param[k], want, tg_numel(param[k])));
        RUN(tg_read_f64(x[k], got, n));
        int64_t inner = tg_shape_of(param[k]).dim[1], first = k ? 0 : tg_parallel_rank(p, TG_TP) * ROWS / j->r->tp;
        for (int64_t i = 0; i < n; i++) {
            bool padding = j->from && rows && first + (begin + i) / inner >= rows;
            EXPECT(ctx, got[i] == (padding ? 0 : want[begin + i]));
        }
        tg_drop(x[k]);
        tg_drop(param[k]);
    }
    tg_shards_free(s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(ranges_move_between_any_cuts) {
    static const ranges all[] = {{1, 1, 0, 0}, {2, 1, 0, 0}, {4, 1, 1, 0}, {3, 1, 1, 0},
                                 {4, 2, 0, 0}, {4, 2, 1, 0}, {2, 2, 0, 0}};
    enum { N = sizeof all / sizeof *all };
    for (int padded = 0; padded < 2; padded++)
        for (int i = 0; i < N; i++) {
            char from[256], back[256];
            ranges a = all[i];
            a.rows = padded ? ROWS - 3 : 0;
            in_root(from, "ranges-%d-%d", padded, i);
            in_root(back, "ranges-back");
            on_ranks(a.ranks, with_ranges, &(range_job){&a, NULL, from});
            for (int k = 0; k < N; k++) {
                ranges b = all[k];
                b.rows = a.rows;
                if (padded && (i + k) % 3) continue;
                on_ranks(b.ranks, with_ranges, &(range_job){&b, from, back});
                on_ranks(a.ranks, with_ranges, &(range_job){&a, back, NULL});
            }
        }
}
END_TEST

/* Ranges that overlap or leave a hole are found when they are saved. */
static tg_status wrong_ranges(void *arg, tg_ctx *ctx, tg_comm *world) {
    const int64_t *gap = arg;
    char dir[256];
    tg_parallel *p = tg_parallel_new(world, NULL);
    int r = tg_comm_rank(world);
    int64_t begin = r ? 5 + *gap : 0, end = r ? 12 : 5;
    tg_tensor *w = filled(p, "w", 0, TG_F64, TG_SHAPE(3, 4), TG_PLACES({TG_DP, TG_R}), 1);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(end - begin));
    tg_shards *s = tg_shards_new(p);
    RUN(tg_shards_add_range(s, "m", x, w, begin, end));
    tg_status got = tg_shards_save(s, in_root(dir, "wrong"));
    const char *said = *gap > 0 ? "no piece of the tensor 'm' has its elements [5, 7)" : "of the tensor 'm' overlap";
    bool right = r ? got == TG_ERR_REMOTE : got == TG_ERR_FORMAT && strstr(tg_ctx_message(ctx), said);
    char message[700];
    snprintf(message, sizeof message, "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_shards_free(s);
    tg_drop(x);
    tg_drop(w);
    tg_parallel_free(p);
    return right ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "rank %d: %s: %s", r, tg_status_name(got), message);
}

START_TEST(ranges_must_be_the_whole_tensor) {
    on_ranks(2, wrong_ranges, &(int64_t){2});
    on_ranks(2, wrong_ranges, &(int64_t){-1});
}
END_TEST

/* ---- While training goes on ---- */

/* Every byte is changed right behind the call; the state of before is saved. */
static tg_status save_and_change(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_tensor *x[TENSORS];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp));
    make(p, x, 1);
    tg_shards *s = listed(p, x);
    tg_save *w = tg_shards_save_begin(s, j->dir, TG_SAVE(.background = true));
    for (int k = 0; k < TENSORS; k++) RUN(set(x[k], 77));
    REFUSED(ctx, TG_ERR_STATE, "a save of this list has begun; call tg_save_finish first",
            tg_shards_save_begin(s, j->dir, NULL));
    RUN(tg_parallel_recover(p));
    while (!tg_save_test(w)) usleep(1000);
    tg_shards_free(s); /* the save goes on without the list */
    drop(x);
    RUN(tg_save_finish(w));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static tg_status load_and_compare(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_tensor *x[TENSORS], *want[TENSORS];
    double a[8192], b[8192];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp));
    make(p, x, -3);
    make(p, want, 1);
    tg_shards *s = listed(p, x);
    RUN(tg_shards_load(s, j->dir));
    for (int k = 0; k < TENSORS; k++) {
        RUN(tg_read_f64(x[k], a, tg_numel(x[k])));
        RUN(tg_read_f64(want[k], b, tg_numel(x[k])));
        EXPECT(ctx, !memcmp(a, b, (size_t)tg_numel(x[k]) * sizeof *a));
    }
    tg_shards_free(s);
    drop(x);
    drop(want);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(the_bytes_of_the_call_are_saved) {
    char dir[256];
    in_root(dir, "async");
    on_ranks(4, save_and_change, &(job){2, dir});
    on_ranks(4, load_and_compare, &(job){2, dir});
    on_ranks(1, load_and_compare, &(job){1, dir});
    on_ranks(2, save_and_change, &(job){1, dir}); /* in place of the other, whose files go */
    on_ranks(4, load_and_compare, &(job){4, dir});
    int64_t bytes[8] = {0};
    written(dir, bytes);
    ck_assert(bytes[0] && bytes[1] && !bytes[2]);
    char command[400];
    snprintf(command, sizeof command, "test $(ls %s | wc -l) = 3", dir);
    ck_assert(system(command) == 0);
}
END_TEST

/* A save removes what earlier saves have left, also interrupted ones and those of old versions, and nothing else. */
START_TEST(files_of_other_names_are_kept) {
    static const struct { const char *name; bool goes; } files[] = {
        {"rank-00007.safetensors", true},
        {"rank-100000-1700000000000000000.safetensors", true},
        {"rank-00000.safetensors.tmp-17-0", true},
        {"state-00001.safetensors", true},
        {"index.json.tmp-4194304-12", true},
        {"state-dict.safetensors", false},
        {"rank-table.safetensors", false},
        {"rank-0000.safetensors", false},
        {"rank-00000-best.safetensors", false},
        {"rank-00000-.safetensors", false},
        {"rank-00001.safetensors.bak", false},
        {"rank-00001.safetensors.tmp-17", false},
        {"rank-00001.safetensors.tmp-17-0.bak", false},
        {"state-00001-1.safetensors", false},
        {"index.json.bak", false},
        {"index.json.tmp--0", false},
    };
    char dir[256], path[320];
    in_root(dir, "kept");
    on_ranks(1, save, &(job){1, dir});
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i].name);
        FILE *f = fopen(path, "w");
        ck_assert(f && fclose(f) == 0);
    }
    on_ranks(1, save, &(job){1, dir});
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i].name);
        bool kept = access(path, F_OK) == 0;
        ck_assert_msg(kept != files[i].goes, "%s was %s", path, kept ? "kept" : "removed");
    }
    on_ranks(1, load_and_compare, &(job){1, dir});
}
END_TEST

/* A rank writes its file also if nothing in it has bytes, and needs neither the list nor the tensor for that. */
static tg_status save_empty(void *arg, tg_ctx *ctx, tg_comm *world) {
    char dir[256];
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    for (int load = 0; load < 2; load++) {
        tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(0, 3));
        tg_shards *s = tg_shards_new(p);
        RUN(tg_shards_add_tensor(s, "nothing", x));
        if (load) RUN(tg_shards_load(s, in_root(dir, "empty")));
        tg_save *w = load ? NULL : tg_shards_save_begin(s, in_root(dir, "empty"), TG_SAVE(.background = true));
        tg_shards_free(s);
        tg_drop(x);
        if (!load) RUN(tg_save_finish(w));
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(tensors_without_elements_are_saved) { on_ranks(1, save_empty, NULL); }
END_TEST

/* ---- A part of the keys ---- */

static tg_status some_keys(void *arg, tg_ctx *ctx, tg_comm *world) {
    char dir[256], report[256];
    double v[24];
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *x[3];
    tg_shards *s = tg_shards_new(p), *t = tg_shards_new(p);
    for (int k = 0; k < 3; k++) x[k] = filled(p, "w", k, TG_F64, TG_SHAPE(4, 3), NULL, 0, 1);
    tg_shards_add_tensor(s, "model.a", x[0]);
    tg_shards_add_tensor(s, "model.b", x[1]);
    tg_shards_add_tensor(s, "other.a", x[2]);
    in_root(dir, "some-%d", tg_comm_size(world));
    RUN(tg_shards_save(s, dir));
    for (int k = 0; k < 3; k++) RUN(set(x[k], -1));
    tg_shards_add_tensor(t, "net.body.a", x[0]);
    tg_shards_add_tensor(t, "net.body.c", x[1]);
    tg_shards_add_tensor(t, "rest", x[2]);
    tg_shards_load_opts *o = TG_SHARDS_LOAD(.partial = true, .from_prefix = "model", .to_prefix = "net.body",
                                            .report = report, .report_size = sizeof report);
    RUN(tg_shards_load_with(t, dir, o));
    EXPECT(ctx, o->missing == 1 && o->unknown == 1 && !strcmp(report, "missing net.body.c\nunknown model.b\n"));
    for (int k = 0; k < 3; k++) {
        RUN(tg_read_f64(x[k], v, 12));
        for (int i = 0; i < 12; i++) EXPECT(ctx, v[i] == (k ? -1 : at(0, i)));
    }
    REFUSED(ctx, TG_ERR_FORMAT, "has no tensor 'net.body.c' (1 tensor missing in all)",
            tg_shards_load_with(t, dir, TG_SHARDS_LOAD(.from_prefix = "model", .to_prefix = "net.body")));
    REFUSED(ctx, TG_ERR_IO, "cannot open", tg_shards_load_with(t, in_root(dir, "no-state"), o));
    EXPECT(ctx, !*report && !o->missing && !o->unknown); /* nothing is left of the call before */
    tg_shards_free(s);
    tg_shards_free(t);
    for (int k = 0; k < 3; k++) tg_drop(x[k]);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(some_keys_are_loaded_under_other_names) { on_ranks(1, some_keys, NULL); }
END_TEST

/* ---- Ranks that disagree ---- */

static tg_status other_shapes(void *arg, tg_ctx *ctx, tg_comm *world) {
    char dir[256];
    (void)arg;
    int r = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *x = filled(p, "w", 0, TG_F64, TG_SHAPE(4, 3 + r), TG_PLACES({TG_DP, TG_R}), 1);
    tg_shards *s = tg_shards_new(p);
    tg_shards_add_tensor(s, "w", x);
    tg_status got = tg_shards_save(s, in_root(dir, "disagree"));
    bool right =
        r ? got == TG_ERR_REMOTE
          : got == TG_ERR_SHAPE && strstr(tg_ctx_message(ctx), "the key 'w' has another dtype or global shape");
    tg_ctx_clear(ctx);
    tg_shards_free(s);
    tg_drop(x);
    tg_parallel_free(p);
    return right ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "rank %d got %s", r, tg_status_name(got));
}

START_TEST(ranks_must_agree_on_shapes) { on_ranks(2, other_shapes, NULL); }
END_TEST

/* Rank 1 has made a step with its optimizer, and rank 0 none. */
static tg_status other_steps(void *arg, tg_ctx *ctx, tg_comm *world) {
    char dir[256];
    (void)arg;
    int r = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tensor *x = filled(p, "w", 0, TG_F64, TG_SHAPE(4, 2), TG_PLACES({TG_TP, TG_SHARD(0)}), 1);
    tg_optim *o = tg_adamw_new(ctx, &x, 1, NULL);
    RUN(tg_optim_set_steps(o, r));
    tg_shards *s = tg_shards_new(p);
    tg_shards_add_tensor(s, "w", x);
    tg_shards_add_optim(s, "optim", o);
    tg_status got = tg_shards_save(s, in_root(dir, "steps"));
    bool right = r ? got == TG_ERR_REMOTE
                   : got == TG_ERR_STATE && strstr(tg_ctx_message(ctx), "'optim.steps' is 1, but 0 on an earlier rank");
    tg_ctx_clear(ctx);
    tg_shards_free(s);
    tg_optim_free(o);
    tg_drop(x);
    tg_parallel_free(p);
    return right ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "rank %d got %s", r, tg_status_name(got));
}

START_TEST(ranks_must_agree_on_steps) { on_ranks(2, other_steps, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {
        each_rank_writes_its_share,      ranges_move_between_any_cuts,       ranges_must_be_the_whole_tensor,
        the_bytes_of_the_call_are_saved, tensors_without_elements_are_saved, some_keys_are_loaded_under_other_names,
        ranks_must_agree_on_shapes,      ranks_must_agree_on_steps,          files_of_other_names_are_kept,
    };
    return state_main("save", tests, sizeof tests / sizeof *tests);
}
