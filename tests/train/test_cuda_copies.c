/* On the emulator: copies between host and device have a stream of their own, whose order with the kernels comes from
 * events; and each of their calls fails in turn. */
#include "check_main.h"

#include <math.h>
#include <stdio.h>

#include <tapegrad/work.h>
#include <tapegrad/ops.h>

#include "cuda_emulator/control.h"
#include "train/small_run.h"

enum { ELEMENTS = 3000, EVENTS = 256, STEPS_OF_COPIES = 3 };

/* ---- Order ---- */

static struct {
    bool on;
    int n;
    char what[EVENTS][40];
    const void *stream[EVENTS];
} trace;

static void saw(int device, const void *stream, const char *what) {
    (void)device;
    if (!trace.on || trace.n == EVENTS) return;
    snprintf(trace.what[trace.n], sizeof trace.what[0], "%s", what);
    trace.stream[trace.n++] = stream;
}

/* Returns the first operation from there on that is, or is not, on the stream (NULL: on any); trace.n: there is
 * none. */
static int find(int from, const char *what, const void *stream, bool there) {
    for (int i = from; i < trace.n; i++)
        if (strstr(trace.what[i], what) && (!stream || (trace.stream[i] == stream) == there)) return i;
    return trace.n;
}

START_TEST(copies_run_in_parallel_with_kernels) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cuda", .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    static float v[ELEMENTS], got[ELEMENTS];
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(ELEMENTS)), *y = tg_zeros(ctx, TG_F32, TG_SHAPE(ELEMENTS));
    tg_upload(x, v, sizeof v);
    tg_work_wait(tg_download(y, got, sizeof got));
    emulator_watch(saw);
    trace.on = true;
    tg_upload(x, v, sizeof v);
    tg_tensor *source = tg_scale(t, y, 2), *reader = tg_scale(t, x, 2);
    tg_work *w = tg_download(source, got, sizeof got);
    tg_scale(t, reader, 3);
    trace.on = false;
    emulator_watch(NULL);
    ck_assert(tg_work_wait(w) == TG_OK);
    int up = find(0, "a copy of", NULL, true);
    ck_assert_int_lt(up, trace.n);
    const void *copies = trace.stream[up];
    int first = find(up, "kernel", copies, false), wait = find(up, "a wait for an event", copies, false);
    int second = find(first + 1, "kernel", copies, false), down = find(up + 1, "a copy of", copies, true);
    int third = find(down, "kernel", copies, false);
    ck_assert_msg(find(0, "a wait for an event", copies, true) < up, "the copy does not wait for earlier readers");
    ck_assert_msg(first < wait && wait < second && second < trace.n, "kernels %d and %d, the wait %d", first, second,
                  wait);
    ck_assert_msg(find(up, "a wait for an event", copies, true) < down && down < trace.n, "a copy back at %d", down);
    ck_assert_msg(third < trace.n && find(down, "a wait for an event", copies, false) == trace.n,
                  "the kernel after a copy back waits for it");
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Failures ---- */

static float value_of(int i, int step) { return (float)(i % 100 + 3 * step); }

/* Runs steps that upload, compute, download and free; without an error the downloaded values must be right. */
static void send_and_fetch(tg_ctx *ctx, tg_tape *t) {
    static float v[ELEMENTS], got[STEPS_OF_COPIES][ELEMENTS];
    double sum[STEPS_OF_COPIES];
    tg_work *w[2 * STEPS_OF_COPIES];
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(ELEMENTS));
    for (int step = 0; step < STEPS_OF_COPIES; step++) {
        for (int i = 0; i < ELEMENTS; i++) v[i] = value_of(i, step);
        tg_upload(x, v, sizeof v);
        tg_tensor *y = tg_scale(t, x, 2);
        w[2 * step] = tg_download(y, got[step], sizeof got[step]);
        w[2 * step + 1] = tg_download_f64(tg_sum(t, y, TG_ALL_DIMS, false), &sum[step], 1);
        tg_tape_reset(t);
    }
    for (int i = 0; i < 2 * STEPS_OF_COPIES; i++)
        if (w[i]) tg_work_wait(w[i]);
    tg_drop(x);
    if (tg_ctx_status(ctx) != TG_OK) return;
    for (int step = 0; step < STEPS_OF_COPIES; step++) {
        double expected = 0;
        for (int i = 0; i < ELEMENTS; i++) {
            ck_assert_msg(got[step][i] == 2 * value_of(i, step), "step %d, element %d is %g", step, i,
                          (double)got[step][i]);
            expected += 2 * (double)value_of(i, step);
        }
        ck_assert_msg(fabs(sum[step] - expected) <= 1e-5 * expected, "step %d: %g", step, sum[step]);
    }
}

static void check_leaks(const faulty *host, const char *failure) {
    static const char *const kinds[] = {"stream", "event", "memory", "pinned"};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        ck_assert_msg(emulator_live(kinds[k]) == 0, "%ld of kind %s leak after %s", emulator_live(kinds[k]), kinds[k],
                      failure);
    ck_assert_msg(host->blocks == 0, "%lld blocks of host memory leak after %s", (long long)host->blocks, failure);
    ck_assert_str_eq(emulator_message(), "");
}

/* The nth call, or host allocation, fails; then the steps are repeated. Returns whether there was an nth one. */
static bool fails_at(long n, bool allocation) {
    faulty host = {0};
    char failure[160] = "nothing";
    const tg_allocator allocator = {faulty_alloc, faulty_free, &host};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cuda", .threads = 1, .allocator = allocator));
    tg_tape *t = tg_tape_new(ctx);
    ck_assert(tg_ctx_status(ctx) == TG_OK);
    host.fail_at = allocation ? host.calls + n : 0;
    emulator_fail_at(allocation ? 0 : n);
    send_and_fetch(ctx, t);
    bool failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) snprintf(failure, sizeof failure, "%s", tg_ctx_message(ctx));
    ck_assert_msg(!emulator_failed() || failed, "%s fails in silence", emulator_failed());
    bool reached = allocation ? host.calls >= host.fail_at : emulator_failed() != NULL;
    emulator_fail_at(0);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    send_and_fetch(ctx, t);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "repeated after %s: %s", failure, tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    check_leaks(&host, failure);
    return reached;
}

START_TEST(every_call_of_a_copy_may_fail) {
    long n = 1;
    while (fails_at(n, false)) n++;
    ck_assert_int_gt(n, 30);
}
END_TEST

START_TEST(every_allocation_for_a_copy_may_fail) {
    long n = 1;
    while (fails_at(n, true)) n++;
    ck_assert_int_gt(n, 10);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {copies_run_in_parallel_with_kernels, every_call_of_a_copy_may_fail,
                                  every_allocation_for_a_copy_may_fail};
    return tg_check_main("cuda_copies", tests, sizeof tests / sizeof *tests);
}
