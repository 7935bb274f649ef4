/* Sharded state: state saved by any number of ranks is loaded by any other number, bit for bit. */
#define _GNU_SOURCE
#include <errno.h>

#include <tapegrad/io.h>
#include <tapegrad/ranks.h>

#include "placement/placing.h"
#include "state.h"

/* ---- A state with every kind of layout ---- */

enum { TABLE_ROWS = 16, WIDTH = 12 };

typedef struct grid {
    int ranks, tp, cp;
} grid;

typedef struct state {
    tg_tensor *x[8];
    tg_module *m;
    tg_optim *o;
    tg_average *a;
    tg_shards *s;
} state;

/* Builds the same program for every grid; `scale` changes the values, `steps` the number of steps. */
static state state_new(const tg_parallel *p, double scale, int steps) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    state s = {0};
    int k = 0;
#define PARAM(name, dtype, shape, ...) s.x[k] = filled(p, name, k, dtype, shape, TG_PLACES(__VA_ARGS__), scale), k++
    PARAM("weight", TG_F64, TG_SHAPE(TABLE_ROWS, WIDTH), {TG_TP, TG_SHARD(0)}, {TG_DP, TG_R});
    PARAM("weight", TG_BF16, TG_SHAPE(3 * WIDTH, 5), {TG_TP, TG_SHARD_STRIDED(0, 3)}, {TG_DP, TG_R});
    PARAM("weight", TG_F32, TG_SHAPE(6, WIDTH), {TG_TP, TG_SHARD(1)}, {TG_DP, TG_R});
    PARAM("bias", TG_F64, TG_SHAPE(7), {TG_TP, TG_I}, {TG_DP, TG_R});
    PARAM("weight", TG_F64, TG_SHAPE(16, 3), {TG_CP, TG_SHARD_ZIGZAG(0)}, {TG_TP, TG_SHARD(0)}, {TG_DP, TG_R});
    PARAM("scale", TG_F64, TG_SHAPE(), {TG_DP, TG_R});
    s.m = tg_module_new(ctx, &box, NULL);
    for (int i = 0; i < k; i++) {
        char name[16];
        tg_module *child = tg_module_new(ctx, &box, NULL);
        snprintf(name, sizeof name, "l%d", i);
        tg_module_add_param(child, tg_name(s.x[i]), s.x[i]);
        tg_module_add_child(s.m, name, child);
    }
    s.o = tg_adamw_new(ctx, s.x, k, TG_ADAMW(.lr = 1e-2));
    for (int i = 0; i < tg_optim_state_count(s.o); i++) {
        double v[8192];
        tg_tensor *x = tg_optim_state(s.o, i, NULL);
        tg_tensor *of = s.x[0];
        for (int j = 0, left = i; j < k; left -= tg_dtype_of(s.x[j]) == TG_BF16 ? 3 : 2, j++)
            if (left >= 0 && left < (tg_dtype_of(s.x[j]) == TG_BF16 ? 3 : 2)) of = s.x[j];
        tg_read_f64(of, v, tg_numel(of));
        for (int64_t j = 0; j < tg_numel(x); j++) v[j] *= 1 + i;
        tg_write_f64(x, v, tg_numel(x));
    }
    tg_optim_set_steps(s.o, steps);
    s.a = tg_ema_new(ctx, s.x, k, 0.5);
    tg_average_update(s.a);
    tg_write_f64(tg_average_state(s.a, k, NULL), &(double){steps}, 1);
    s.s = tg_shards_new(p);
    tg_shards_add_module(s.s, "model", s.m);
    tg_shards_add_optim(s.s, "optim", s.o);
    tg_shards_add_average(s.s, "ema", s.a);
    tg_shards_set_rows(s.s, "model.l0.weight", TABLE_ROWS - 3);
    return s;
}

static void state_free(state *s) {
    tg_shards_free(s->s);
    tg_average_free(s->a);
    tg_optim_free(s->o);
    tg_module_free(s->m);
}

typedef struct job {
    grid g;
    const char *from, *to; /* loads from `from` unless it is NULL, then saves to `to` */
} job;

static tg_status load_and_save(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->g.tp, .cp = j->g.cp));
    state s = state_new(p, j->from ? -3 : 1, j->from ? 5 : 77);
    if (j->from) {
        RUN(tg_shards_load(s.s, j->from));
        EXPECT(ctx, tg_optim_steps(s.o) == 77 && tg_average_updates(s.a) == 77);
    }
    RUN(tg_shards_save(s.s, j->to));
    state_free(&s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Saves the state of a directory again, by one rank. Its file is then the same for equal states. */
static void by_one_rank(const char *from, const char *to) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", to);
    ck_assert(system(command) == 0);
    on_ranks(1, load_and_save, &(job){{1, 1, 1}, from, to});
}

START_TEST(any_ranks_load_what_any_ranks_saved) {
    static const grid grids[] = {{1, 1, 1}, {2, 2, 1}, {4, 4, 1}, {2, 1, 1},
                                 {4, 2, 1}, {2, 1, 2}, {4, 2, 2}, {4, 1, 2}};
    enum { N = sizeof grids / sizeof *grids };
    char from[256], to[256], first[256], one[256];
    in_root(first, "saved-0");
    in_root(one, "one");
    for (int i = 0; i < N; i++) {
        in_root(from, "saved-%d", i);
        on_ranks(grids[i].ranks, load_and_save, &(job){grids[i], NULL, from});
        by_one_rank(from, one);
        ck_assert_msg(same_state(first, one), "grid %d saves another state", i);
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            in_root(from, "saved-%d", i);
            in_root(to, "again-%d", k);
            if ((i * N + k) % 3 && i) continue;
            on_ranks(grids[k].ranks, load_and_save, &(job){grids[k], from, to});
            by_one_rank(to, one);
            ck_assert_msg(same_state(first, one), "grid %d loads grid %d's state otherwise", k, i);
        }
}
END_TEST

/* ---- The contents of the file ---- */

START_TEST(the_file_of_one_rank_is_global_and_without_padding) {
    char path[300];
    tg_ctx *ctx = tg_ctx_new(NULL);
    tg_safetensors *f = tg_safetensors_open(ctx, in_root(path, "saved-0/rank-00000.safetensors"));
    ck_assert_msg(f != NULL, "%s", tg_ctx_message(ctx));
    const tg_safetensors_entry *e = tg_safetensors_find(f, "model.l0.weight");
    ck_assert(e && e->shape.dim[0] == TABLE_ROWS - 3 && e->shape.dim[1] == WIDTH);
    e = tg_safetensors_find(f, "optim.model.l0.weight.v");
    ck_assert(e && e->shape.dim[0] == TABLE_ROWS - 3);
    e = tg_safetensors_find(f, "optim.model.l1.weight.master");
    ck_assert(e && e->dtype == TG_F32 && e->shape.dim[0] == 3 * WIDTH);
    ck_assert_ptr_nonnull(strstr(tg_safetensors_metadata(f, "tapegrad.steps"), "\"optim.steps\":\"77\""));
    double v[6 * WIDTH];
    tg_tensor *x = tg_safetensors_load(f, "model.l2.weight");
    ck_assert(tg_read_f64(x, v, 6 * WIDTH) == TG_OK);
    for (int i = 0; i < 6 * WIDTH; i++) ck_assert(v[i] == (float)at(2, i));
    tg_safetensors_close(f);
    tg_ctx_free(ctx);
}
END_TEST

static tg_status padded(void *arg, tg_ctx *ctx, tg_comm *world) {
    int n = *(const int *)arg;
    char dir[256];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n));
    state s = state_new(p, -3, 0);
    RUN(tg_shards_load(s.s, in_root(dir, "saved-0")));
    double v[TABLE_ROWS * WIDTH];
    int64_t rows = TABLE_ROWS / n, first = tg_parallel_rank(p, TG_TP) * rows;
    RUN(tg_read_f64(s.x[0], v, rows * WIDTH));
    for (int64_t i = 0; i < rows * WIDTH; i++) {
        bool padding = first + i / WIDTH >= TABLE_ROWS - 3;
        EXPECT(ctx, v[i] == (padding ? 0 : at(0, first * WIDTH + i)));
    }
    state_free(&s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(rows_of_padding_are_zero) {
    for (int n = 1; n <= 4; n *= 2) on_ranks(n, padded, &n);
}
END_TEST

/* The second rank has only padding rows. The tensor has no columns, so no rank has an element of it. */
static tg_status no_columns(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char dir[256];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tensor *x = filled(p, "x", 0, TG_F32, TG_SHAPE(4, 0), TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}), 1);
    tg_shards *s = tg_shards_new(p);
    RUN(tg_shards_add_tensor(s, "x", x));
    RUN(tg_shards_set_rows(s, "x", 2));
    RUN(tg_shards_save(s, in_root(dir, "no-columns")));
    RUN(tg_shards_load(s, dir));
    tg_shards_free(s);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(rows_without_elements_may_be_padding) { on_ranks(2, no_columns, NULL); }
END_TEST

static tg_status information(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    state s = state_new(p, 1, 0);
    tg_shard_info i = TG_SHARD_INFO();
    int r = tg_parallel_rank(p, TG_TP), d = tg_parallel_rank(p, TG_DP);
    RUN(tg_shards_at(s.s, 1, &i));
    EXPECT(ctx, !strcmp(i.key, "model.l1.weight") && i.tensor == s.x[1] && i.replica == d);
    EXPECT(ctx, i.whole.dim[0] == 3 * WIDTH && i.offset.dim[0] == r * WIDTH / 2 && i.offset.dim[1] == 0);
    EXPECT(ctx, i.placement[TG_TP].chunks == 3 && i.placement[TG_DP].kind == TG_REPLICATED);
    RUN(tg_shards_at(s.s, 3, &i));
    EXPECT(ctx, i.replica == (r * 2 + d) && i.offset.dim[0] == 0);
    EXPECT(ctx, tg_shards_count(s.s) == 6 + tg_optim_state_count(s.o) + tg_average_state_count(s.a));
    state_free(&s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(each_tensor_says_where_it_lies) { on_ranks(4, information, NULL); }
END_TEST

/* ---- Refused files, which change nothing ---- */

static tg_status refuse(tg_ctx *ctx, tg_comm *world, tg_shards *s, tg_tensor *x, const char *dir, tg_status code,
                        const char *says) {
    double before[8192], after[8192];
    tg_read_f64(x, before, tg_numel(x));
    REFUSED(ctx, code, says, tg_shards_load(s, dir));
    tg_read_f64(x, after, tg_numel(x));
    EXPECT(ctx, !memcmp(before, after, (size_t)tg_numel(x) * sizeof *before));
    (void)world;
    return TG_OK;
}

/* One rank only: after an error several ranks would have to recover. */
static tg_status other_keys(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char dir[256];
    in_root(dir, "saved-2");
    tg_parallel *p = tg_parallel_new(world, NULL);
    state s = state_new(p, -3, 0);
    tg_tensor *more = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
    tg_shards *missing = tg_shards_new(p), *unknown = tg_shards_new(p);
    tg_shards_add_module(missing, "model", s.m);
    tg_shards_add_optim(missing, "optim", s.o);
    tg_shards_set_rows(missing, "model.l0.weight", TABLE_ROWS - 3);
    tg_shards_add_tensor(missing, "more", more);
    RUN(refuse(ctx, world, missing, s.x[0], dir, TG_ERR_FORMAT, "has no tensor 'more'"));
    tg_shards_add_module(unknown, "model", s.m);
    tg_shards_set_rows(unknown, "model.l0.weight", TABLE_ROWS - 3);
    RUN(refuse(ctx, world, unknown, s.x[0], dir, TG_ERR_FORMAT, "that is in no rank's list"));
    tg_shards_set_rows(s.s, "model.l0.weight", TABLE_ROWS);
    RUN(refuse(ctx, world, s.s, s.x[1], dir, TG_ERR_FORMAT, "is f64[13, 12], expected f64[16, 12]"));
    tg_shards_set_rows(s.s, "model.l0.weight", TABLE_ROWS - 3);
    tg_set_read_only(s.x[4], true);
    RUN(refuse(ctx, world, s.s, s.x[0], dir, TG_ERR_STATE, "tg_shards_load: the tensor's memory is read-only"));
    tg_set_read_only(s.x[4], false);
    RUN(tg_shards_load(s.s, dir));
    REFUSED(ctx, TG_ERR_IO, "index.json", tg_shards_load(s.s, "/nonexistent"));
    REFUSED(ctx, TG_ERR_IO, "/nonexistent", tg_shards_save(s.s, "/nonexistent/here"));
    tg_shards_free(missing);
    tg_shards_free(unknown);
    tg_drop(more);
    state_free(&s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(keys_of_files_and_list_must_agree) { on_ranks(1, other_keys, NULL); }
END_TEST

/* A rank whose list has another shape stops all ranks before any value changes. */
static tg_status one_differs(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char dir[256];
    double before[8192], after[8192];
    in_root(dir, "saved-2");
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    state s = state_new(p, -3, 0);
    tg_read_f64(s.x[4], before, tg_numel(s.x[4]));
    if (tg_comm_rank(world) == 1) tg_shards_set_rows(s.s, "model.l0.weight", TABLE_ROWS);
    tg_status got = tg_shards_load(s.s, dir);
    bool right = got == (tg_comm_rank(world) == 1 ? TG_ERR_FORMAT : TG_ERR_REMOTE);
    tg_ctx_clear(ctx);
    tg_read_f64(s.x[4], after, tg_numel(s.x[4]));
    right = right && !memcmp(before, after, (size_t)tg_numel(s.x[4]) * sizeof *before);
    state_free(&s);
    tg_parallel_free(p);
    return right ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "a rank got %s", tg_status_name(got));
}

START_TEST(no_rank_changes_if_one_refuses) { on_ranks(2, one_differs, NULL); }
END_TEST

/* A damaged byte is found by the rank that verifies its file, before any value changes. */
static tg_status one_is_damaged(void *arg, tg_ctx *ctx, tg_comm *world) {
    const char *dir = arg;
    double before[8192], after[8192];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    state s = state_new(p, -3, 0);
    tg_read_f64(s.x[4], before, tg_numel(s.x[4]));
    tg_status got = tg_shards_load(s.s, dir);
    bool looks = tg_comm_rank(world) == 1; /* verifies the files 1 and 3 */
    bool right = looks ? got == TG_ERR_DATA && strstr(tg_ctx_message(ctx), "the file is damaged")
                       : got == TG_ERR_REMOTE;
    char says[700];
    snprintf(says, sizeof says, "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_read_f64(s.x[4], after, tg_numel(s.x[4]));
    right = right && !memcmp(before, after, (size_t)tg_numel(s.x[4]) * sizeof *before);
    state_free(&s);
    tg_parallel_free(p);
    return right ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "a rank got %s: %s", tg_status_name(got), says);
}

START_TEST(no_rank_changes_if_bytes_are_damaged) {
    char dir[256], damaged[256], command[600];
    in_root(dir, "saved-2");
    in_root(damaged, "damaged");
    snprintf(command, sizeof command, "cp -r %s %s", dir, damaged);
    ck_assert(system(command) == 0);
    long n = 0;
    free(slurp(damaged, "rank-00003.safetensors", &n));
    flip(damaged, "rank-00003.safetensors", n - 1);
    on_ranks(2, one_is_damaged, damaged);
}
END_TEST

/* ---- Files that fail ---- */

static int64_t no_room(void *user, int fd, const void *buf, size_t n, int64_t offset) {
    int *left = user;
    if ((*left)-- > 0) return pwrite(fd, buf, n, offset);
    errno = ENOSPC;
    return -1;
}

START_TEST(a_failed_save_leaves_the_old_state) {
    char dir[256], first[256], one[256];
    in_root(dir, "saved-0");
    in_root(first, "saved-1");
    in_root(one, "one");
    by_one_rank(first, one);
    for (int writes = 0; writes < 8; writes += 3) {
        int left = writes;
        tg_ctx *ctx = tg_ctx_new(
            TG_CONFIG(.threads = 1, .dtype = TG_F64, .files = TG_FILE_OPS(.pwrite = no_room, .user = &left)));
        tg_comm *self = tg_comm_self_new(ctx);
        tg_parallel *p = tg_parallel_new(self, NULL);
        state s = state_new(p, 9, 3);
        ck_assert(tg_shards_save(s.s, dir) == TG_ERR_IO);
        ck_assert_msg(strstr(tg_ctx_message(ctx), "No space"), "%s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        state_free(&s);
        tg_parallel_free(p);
        tg_comm_free(self);
        tg_ctx_free(ctx);
        ck_assert(same_state(dir, one));
        by_one_rank(dir, first);
        ck_assert(same_state(first, one));
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        any_ranks_load_what_any_ranks_saved,
        the_file_of_one_rank_is_global_and_without_padding,
        rows_of_padding_are_zero,
        rows_without_elements_may_be_padding,
        each_tensor_says_where_it_lies,
        keys_of_files_and_list_must_agree,
        no_rank_changes_if_one_refuses,
        no_rank_changes_if_bytes_are_damaged,
        a_failed_save_leaves_the_old_state,
    };
    return state_main("shards", tests, sizeof tests / sizeof *tests);
}
