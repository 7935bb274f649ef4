/* Saves that are interrupted or fail: the program ends at each file call of each rank, each call fails, any bit of a
 * file is flipped. The newest complete checkpoint can be loaded, and damage is found and named. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include <tapegrad/io.h>
#include <tapegrad/ranks.h>

#include "state.h"

enum { RANKS = 4, TENSORS = 5, OLD = 10, NEW = 20 };

/* ---- File calls that fail ---- */

/* The files whose calls are counted, by a part of their paths: the files of the ranks, the index, and "" for all other
 * files and directories. The calls of one rank's file come in one order, in whatever order the ranks run. */
static const char *const files[] = {"rank-00000", "rank-00001", "rank-00002", "rank-00003", "index.json", ""};
enum { FILES = sizeof files / sizeof *files, DESCRIPTORS = 256 };

/* Call number `at` that concerns file number `of` ends the process, or fails. */
typedef struct faults {
    int of, at;
    bool kill;
    atomic_int calls;               /* that concern the file */
    atomic_int opened[DESCRIPTORS]; /* the file of each descriptor */
} faults;

static int file_of(const char *path) {
    int i = 0;
    while (!strstr(path, files[i])) i++;
    return i;
}

/* Returns whether this call, which concerns a file, fails. */
static bool fails(faults *f, int file) {
    if (file != f->of || atomic_fetch_add(&f->calls, 1) != f->at) return false;
    if (f->kill) _exit(42);
    errno = EIO;
    return true;
}

static bool fails_at(faults *f, int fd) { return fails(f, f->opened[fd]); }

static int faulty_open(void *user, const char *path, int flags, int mode) {
    faults *f = user;
    if (fails(f, file_of(path))) return -1;
    int fd = open(path, flags, (mode_t)mode);
    ck_assert_int_lt(fd, DESCRIPTORS);
    if (fd >= 0) f->opened[fd] = file_of(path);
    return fd;
}
static int faulty_close(void *user, int fd) {
    bool failed = fails_at(user, fd);
    int result = close(fd); /* a failed close has closed the file all the same */
    if (failed) errno = EIO;
    return failed ? -1 : result;
}
static int64_t faulty_pread(void *user, int fd, void *buf, size_t n, int64_t offset) {
    return fails_at(user, fd) ? -1 : pread(fd, buf, n, offset);
}
static int64_t faulty_pwrite(void *user, int fd, const void *buf, size_t n, int64_t offset) {
    return fails_at(user, fd) ? -1 : pwrite(fd, buf, n, offset);
}
/* What was written survives the end of a process without a sync, which would take most of the time. */
static int faulty_fsync(void *user, int fd) { return fails_at(user, fd) ? -1 : 0; }
static int faulty_rename(void *user, const char *from, const char *to) {
    return fails(user, file_of(to)) ? -1 : rename(from, to);
}
static int faulty_unlink(void *user, const char *path) { return fails(user, file_of(path)) ? -1 : unlink(path); }
static int faulty_mkdir(void *user, const char *path, int mode) {
    return fails(user, file_of(path)) ? -1 : mkdir(path, (mode_t)mode);
}

static tg_file_ops faulty(faults *f) {
    return *TG_FILE_OPS(.open = faulty_open, .close = faulty_close, .pread = faulty_pread, .pwrite = faulty_pwrite,
                        .fsync = faulty_fsync, .rename = faulty_rename, .unlink = faulty_unlink, .mkdir = faulty_mkdir,
                        .user = f);
}

/* ---- A run with a checkpoint of each step ---- */

typedef struct run {
    const char *dir;
    int step;
    bool async, load;
    char path[300]; /* of the checkpoint; rank 0 sets it */
} run;

static void make(const tg_parallel *p, tg_tensor *x[TENSORS], int step) {
    for (int k = 0; k < TENSORS; k++)
        x[k] = filled(p, "w", k, TG_F64, TG_SHAPE(8, 4), TG_PLACES({TG_TP, k % 2 ? TG_SHARD(0) : TG_I}, {TG_DP, TG_R}),
                      step);
}

static tg_status save(run *r, tg_shards *s, tg_comm *world) {
    tg_save *w = NULL;
    RUN(tg_comm_barrier(world)); /* rank 0 has set the path */
    if (*r->path) w = tg_shards_save_begin(s, r->path, TG_SAVE(.background = r->async));
    return w ? tg_save_finish(w) : tg_ctx_status(tg_comm_ctx(world));
}

static tg_status save_step(run *r, tg_shards *s, tg_comm *world) {
    tg_ctx *ctx = tg_comm_ctx(world);
    if (tg_comm_rank(world)) return save(r, s, world);
    tg_checkpoints *c = tg_checkpoints_open(ctx, r->dir);
    const char *path = tg_checkpoints_begin(c, r->step);
    snprintf(r->path, sizeof r->path, "%s", path ? path : "");
    tg_status status = path ? save(r, s, world) : tg_ctx_status(ctx);
    if (status == TG_OK) status = tg_checkpoints_commit(c);
    tg_checkpoints_close(c);
    return status;
}

/* Compares what was loaded from the checkpoint of a step. */
static tg_status compare(const tg_parallel *p, tg_tensor *const x[TENSORS], int step) {
    tg_tensor *want[TENSORS];
    make(p, want, step);
    for (int k = 0; k < TENSORS; k++) {
        double a[32], b[32];
        RUN(tg_read_f64(x[k], a, tg_numel(x[k])));
        RUN(tg_read_f64(want[k], b, tg_numel(x[k])));
        EXPECT(tg_parallel_ctx(p), !memcmp(a, b, (size_t)tg_numel(x[k]) * sizeof *a));
        tg_drop(want[k]);
    }
    return TG_OK;
}

static tg_status step(void *arg, tg_ctx *ctx, tg_comm *world) {
    run *r = arg;
    tg_tensor *x[TENSORS];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world) > 1 ? 2 : 1));
    make(p, x, r->load ? -1 : r->step);
    tg_shards *s = tg_shards_new(p);
    for (int k = 0; k < TENSORS; k++) tg_shards_add_tensor(s, (char[]){(char)('a' + k), 0}, x[k]);
    tg_status status = r->load ? tg_shards_load(s, r->path) : save_step(r, s, world);
    if (r->load && status == TG_OK) status = compare(p, x, r->step);
    tg_shards_free(s);
    for (int k = 0; k < TENSORS; k++) tg_drop(x[k]);
    tg_parallel_free(p);
    return status == TG_OK ? tg_ctx_status(ctx) : status;
}

static tg_status on_faulty(run *r, faults *f, int ranks) {
    const tg_file_ops ops = faulty(f);
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .deadline = 60, .files = &ops);
    return tg_ranks_run(ranks, step, r, TG_RANKS(.config = config));
}

/* Loads the newest checkpoint, on 1 and on 4 ranks, and returns its step. */
static int newest(const char *dir) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_checkpoints *c = tg_checkpoints_open(ctx, dir);
    run r = {.dir = dir, .load = true, .step = (int)tg_checkpoints_newest(c)};
    tg_checkpoints_path(c, r.step, r.path, sizeof r.path);
    tg_checkpoints_close(c);
    tg_ctx_free(ctx);
    on_ranks(1, step, &r);
    on_ranks(RANKS, step, &r);
    return r.step;
}

static void remove_directory(const char *dir) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert(system(command) == 0);
}

/* Begins a directory with the checkpoint of step OLD. */
static const char *begun(char dir[256], const char *name) {
    char old[256], command[600];
    if (access(in_root(old, "old"), F_OK) != 0) {
        run r = {.dir = old, .step = OLD};
        on_ranks(RANKS, step, &r);
    }
    remove_directory(in_root(dir, "%s", name));
    snprintf(command, sizeof command, "cp -r %s %s", old, dir);
    ck_assert(system(command) == 0);
    return dir;
}

/* Saves step NEW in a child process, which ends at call number `at` that concerns a file. Returns whether it has ended
 * there. */
static bool killed(const char *dir, int file, int at, bool async) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        faults f = {.of = file, .at = at, .kill = true};
        run r = {.dir = dir, .step = NEW, .async = async};
        _exit(on_faulty(&r, &f, RANKS) == TG_OK ? 0 : 1);
    }
    int status;
    ck_assert(waitpid(child, &status, 0) == child && WIFEXITED(status));
    ck_assert(WEXITSTATUS(status) == 42 || WEXITSTATUS(status) == 0);
    return WEXITSTATUS(status) == 42;
}

/* Ends the program at every call that concerns a file. Returns their number. */
static int kill_at_each_call(int file, bool async) {
    char dir[256];
    int at = 0, last = OLD;
    for (bool more = true; more; at += more) {
        begun(dir, "killed");
        more = killed(dir, file, at, async);
        int step = newest(dir);
        ck_assert_msg(step == NEW || (step == OLD && last == OLD), "file %s, call %d: step %d", files[file], at, step);
        last = step;
    }
    ck_assert_msg(last == NEW, "file %s", files[file]);
    return at;
}

START_TEST(a_killed_save_leaves_the_newest_whole) {
    for (int async = 0; async < 2; async++)
        for (int file = 0; file < FILES; file++) ck_assert_int_ge(kill_at_each_call(file, async), 5);
}
END_TEST

/* Lets every call fail that concerns a file. A failure is reported by a rank, and does no more harm. One after the last
 * rename is reported too, although the new checkpoint is there. */
static void fail_each_call(int file, bool async) {
    char dir[256];
    int failures = 0;
    for (int at = 0;; at++) {
        faults f = {.of = file, .at = at};
        run r = {.dir = begun(dir, "failed"), .step = NEW, .async = async};
        tg_status s = on_faulty(&r, &f, RANKS);
        int step = newest(dir);
        ck_assert_msg(step == NEW || (step == OLD && s != TG_OK), "file %s, call %d: %s", files[file], at,
                      tg_status_name(s));
        failures += step == OLD;
        if (f.calls <= at) break;
    }
    ck_assert_int_ge(failures, 4);
}

START_TEST(a_failed_call_leaves_the_newest_whole) {
    for (int async = 0; async < 2; async++)
        for (int file = 0; file < FILES; file++) fail_each_call(file, async);
}
END_TEST

/* ---- Damage ---- */

static const char *path_of(const char *dir, char path[300]) {
    snprintf(path, 300, "%s/step-%010d", dir, OLD);
    return path;
}

/* Returns the number of findings, and checks that the report names `file`. */
static int findings(const char *dir, const char *file) {
    char report[4096];
    int n = -1;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    ck_assert_msg(tg_shards_verify(ctx, dir, report, sizeof report, &n) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    ck_assert_msg(!n || strstr(report, file), "'%s' is not named: %s", file, report);
    return n;
}

static tg_status refuse(void *arg, tg_ctx *ctx, tg_comm *world) {
    run *r = arg;
    tg_status s = step(r, ctx, world);
    tg_ctx_clear(ctx);
    bool refused = s == TG_ERR_FORMAT || s == TG_ERR_DATA || s == TG_ERR_REMOTE;
    return refused ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s", tg_status_name(s));
}

START_TEST(a_flipped_bit_of_any_file_is_found) {
    char dir[256], path[300];
    run r = {.dir = begun(dir, "flipped"), .load = true, .step = OLD};
    path_of(dir, path);
    snprintf(r.path, sizeof r.path, "%s", path);
    ck_assert_int_eq(findings(path, ""), 0);
    for (int i = 0; i <= RANKS; i++) {
        char name[40];
        long n = 0;
        snprintf(name, sizeof name, i < RANKS ? "rank-%05d.safetensors" : "index.json", i);
        free(slurp(path, name, &n));
        ck_assert_int_gt(n, 300);
        for (long k = 0; k < 10; k++) {
            long at = k == 9 ? n - 1 : n * k / 9;
            flip(path, name, at);
            ck_assert_msg(findings(path, name) > 0, "%s, byte %ld", name, at);
            on_ranks(2, refuse, &r);
            flip(path, name, at);
        }
    }
    ck_assert_int_eq(findings(path, ""), 0);
    ck_assert_int_eq(newest(dir), OLD);
}
END_TEST

START_TEST(a_missing_file_is_found) {
    char dir[256], path[300], name[400];
    path_of(begun(dir, "missing"), path);
    snprintf(name, sizeof name, "%s/rank-00002.safetensors", path);
    ck_assert(remove(name) == 0);
    ck_assert_int_eq(findings(path, "rank-00002.safetensors"), 1);
    snprintf(name, sizeof name, "%s/index.json", path);
    ck_assert(remove(name) == 0);
    ck_assert_int_eq(findings(path, "index.json"), 1);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_killed_save_leaves_the_newest_whole, a_failed_call_leaves_the_newest_whole,
                                  a_flipped_bit_of_any_file_is_found, a_missing_file_is_found};
    return state_main("save faults", tests, sizeof tests / sizeof *tests);
}
