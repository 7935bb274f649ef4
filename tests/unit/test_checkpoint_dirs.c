/* Checkpoint directories: they exist whole or not at all, and one run has them at a time. */
#define _GNU_SOURCE
#include "io_fixture.h"

static tg_status write_checkpoint(tg_checkpoints *c, tg_ctx *ctx, int64_t step) {
    char path[512];
    const char *dir = tg_checkpoints_begin(c, step);
    if (!dir) return tg_ctx_status(ctx);
    snprintf(path, sizeof path, "%s/one", dir);
    tg_file_save(ctx, path, "1", 1);
    snprintf(path, sizeof path, "%s/two", dir);
    tg_file_save(ctx, path, "2", 1);
    return tg_checkpoints_commit(c);
}

START_TEST(checkpoints_come_and_go_by_step) {
    workplace w = workplace_new(NULL);
    tg_checkpoints *c = tg_checkpoints_open(w.ctx, in(&w, "run"));
    ck_assert_int_eq(tg_checkpoints_newest(c), -1);
    for (int64_t step = 5; step <= 20; step += 5) ck_assert_int_eq(write_checkpoint(c, w.ctx, step), TG_OK);
    ck_assert_int_eq(tg_checkpoints_newest(c), 20);
    char path[512];
    ck_assert_uint_eq(tg_checkpoints_path(c, 20, path, sizeof path), strlen(path));
    ck_assert_int_eq(entries_in(path), 2);
    ck_assert_ptr_null(tg_checkpoints_begin(c, 20));
    expect_error(w.ctx, TG_ERR_STATE, "exists already");
    ck_assert_int_eq(tg_checkpoints_keep(c, 2), TG_OK);
    ck_assert_int_eq(entries_in(in(&w, "run")), 3); /* and the lock */
    ck_assert_int_eq(tg_checkpoints_newest(c), 20);
    ck_assert_int_eq(tg_checkpoints_keep(c, 0), TG_OK);
    ck_assert_int_eq(tg_checkpoints_newest(c), -1);
    tg_checkpoints_close(c);
    workplace_free(&w);
}
END_TEST

START_TEST(one_run_at_a_time) {
    workplace w = workplace_new(NULL);
    tg_checkpoints *c = tg_checkpoints_open(w.ctx, in(&w, "run"));
    ck_assert_ptr_null(tg_checkpoints_open(w.ctx, in(&w, "run")));
    expect_error(w.ctx, TG_ERR_STATE, "in use by another run");
    ck_assert_ptr_nonnull(tg_checkpoints_begin(c, 1));
    ck_assert_ptr_null(tg_checkpoints_begin(c, 2));
    expect_error(w.ctx, TG_ERR_STATE, "another checkpoint has begun");
    tg_checkpoints_close(c); /* abandons */
    c = tg_checkpoints_open(w.ctx, in(&w, "run"));
    ck_assert_int_eq(tg_ctx_status(w.ctx), TG_OK);
    ck_assert_int_eq(entries_in(in(&w, "run")), 1);
    tg_checkpoints_commit(c);
    expect_error(w.ctx, TG_ERR_STATE, "no checkpoint has begun");
    tg_checkpoints_close(c);
    workplace_free(&w);
}
END_TEST

/* Opens a file that another run removes before it can be locked. */
static int open_removed(void *user, const char *path, int flags, int mode) {
    int fd = open(path, flags, (mode_t)mode);
    (void)user;
    if (strstr(path, ".lock")) unlink(path);
    return fd;
}

START_TEST(a_lock_that_was_removed_is_not_another_run_s) {
    const tg_file_ops ops = {.size = sizeof ops, .open = open_removed};
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    ck_assert_ptr_null(tg_checkpoints_open(w.ctx, in(&w, "run")));
    expect_error(w.ctx, TG_ERR_STATE, "run/.lock' was removed by another process while");
    workplace_free(&w);
}
END_TEST

START_TEST(the_unfinished_and_the_foreign_are_not_checkpoints) {
    static const char *const names[] = {"step-7", "step-0000000007x", "step--000000001", "steps",
                                        ".step-0000000009.tmp"};
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(names); i++) ck_assert_int_eq(mkdir(in(&w, names[i]), 0700), 0);
    put_file(&w, ".step-0000000009.tmp/part", "x", 1);
    tg_checkpoints *c = tg_checkpoints_open(w.ctx, w.dir);
    ck_assert_int_eq(tg_checkpoints_newest(c), -1);
    ck_assert_int_eq(entries_in(w.dir), (int)COUNT(names)); /* no unfinished one, but the lock */
    tg_checkpoints_close(c);
    workplace_free(&w);
}
END_TEST

START_TEST(any_failing_call_leaves_whole_checkpoints) {
    faulty f = {.error = EIO};
    tg_file_ops ops = faulty_ops(&f);
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    int files = open_files();
    bool done = false;
    for (int n = 1; !done; n++) {
        char dir[512];
        snprintf(dir, sizeof dir, "%s/%d", w.dir, n);
        f = (faulty){.fail = n, .error = EIO};
        tg_checkpoints *c = tg_checkpoints_open(w.ctx, dir);
        done = write_checkpoint(c, w.ctx, 1) == TG_OK && tg_checkpoints_keep(c, 1) == TG_OK && f.calls < n;
        tg_checkpoints_close(c);
        tg_ctx_clear(w.ctx);
        ck_assert_int_eq(open_files(), files);
        f = (faulty){0};
        c = tg_checkpoints_open(w.ctx, dir);
        int64_t newest = tg_checkpoints_newest(c);
        char path[512];
        tg_checkpoints_path(c, 1, path, sizeof path);
        ck_assert(newest == -1 || (newest == 1 && entries_in(path) == 2));
        ck_assert_int_eq(entries_in(dir), newest == 1 ? 2 : 1);
        tg_checkpoints_close(c);
        ck_assert_int_eq(tg_ctx_status(w.ctx), TG_OK);
    }
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        checkpoints_come_and_go_by_step,
        one_run_at_a_time,
        a_lock_that_was_removed_is_not_another_run_s,
        the_unfinished_and_the_foreign_are_not_checkpoints,
        any_failing_call_leaves_whole_checkpoints,
    };
    return tg_check_main("checkpoint directories", tests, COUNT(tests));
}
