/* Copies that run in parallel with the device's work: uploads arrive before they are read, downloads have the values
 * at the time of the call, and memory that is freed meanwhile is reused only after the copy. On the CPU, where
 * copies are immediate, and on the device that TG_TEST_DEVICE names. */
#include <stdio.h>

#include "captured.h"

enum { SMALL = 100, LARGE = 200000, MANY = 12 };

static tg_ctx *new_ctx(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = getenv("TG_TEST_DEVICE"), .seed = 3, .threads = 1));
    ck_fine(ctx);
    return ctx;
}

static float value_of(int64_t i, int step) { return (float)(i % 1000 + 7 * step); }

static void fill(float *v, int64_t n, int step) {
    for (int64_t i = 0; i < n; i++) v[i] = value_of(i, step);
}

static bool is(const float *v, int64_t n, int step, float scale) {
    for (int64_t i = 0; i < n; i++)
        if (v[i] != scale * value_of(i, step)) return false;
    return true;
}

/* Changes the source as soon as the call has returned. */
static void upload(tg_tensor *x, float *v, int step) {
    size_t bytes = (size_t)tg_numel(x) * sizeof *v;
    fill(v, tg_numel(x), step);
    ck_assert(tg_upload(x, v, bytes) == TG_OK);
    memset(v, 0x7f, bytes);
}

/* Values that are uploaded or read again, and values that are downloaded. */
static float v[LARGE], got[MANY * LARGE];

static void end(tg_ctx *ctx, tg_tape *t) {
    ck_fine(ctx);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

static void steps_of(int64_t n) {
    tg_ctx *ctx = new_ctx();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *in[2] = {tg_zeros(ctx, TG_F32, TG_SHAPE(n)), tg_zeros(ctx, TG_F32, TG_SHAPE(n))};
    upload(in[0], v, 0);
    for (int step = 0; step < MANY; step++) {
        upload(in[(step + 1) % 2], v, step + 1);
        tg_tensor *y = tg_scale(t, in[step % 2], 2);
        ck_assert(tg_read(y, v, (size_t)n * sizeof *v) == TG_OK);
        ck_assert_msg(is(v, n, step, 2), "step %d of %lld elements", step, (long long)n);
        tg_tape_reset(t);
    }
    end(ctx, t);
}

START_TEST(uploads_arrive_before_they_are_read) {
    steps_of(SMALL);
    steps_of(LARGE);
}
END_TEST

START_TEST(uploads_wait_for_earlier_readers) {
    tg_ctx *ctx = new_ctx();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE)), *y[MANY];
    for (int i = 0; i < MANY; i++) {
        upload(x, v, i);
        y[i] = tg_scale(t, x, 3);
    }
    upload(x, v, 77);
    upload(x, v, 78); /* the previous upload is never read */
    for (int i = 0; i < MANY; i++) {
        tg_read(y[i], v, LARGE * sizeof *v);
        ck_assert_msg(is(v, LARGE, i, 3), "upload %d", i);
    }
    tg_read(x, v, LARGE * sizeof *v);
    ck_assert(is(v, LARGE, 78, 1));
    tg_tensor *gone = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE));
    upload(gone, v, 1);
    tg_drop(gone); /* in flight: its memory is reused after the copy */
    tg_tensor *next = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE));
    tg_read(next, v, LARGE * sizeof *v);
    for (int i = 0; i < LARGE; i++) ck_assert(v[i] == 0);
    end(ctx, t);
}
END_TEST

START_TEST(parts_and_other_layouts_are_sent_too) {
    tg_ctx *ctx = new_ctx();
    tg_tape *t = tg_tape_new(ctx);
    float w[12];
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(4, 6));
    tg_tape_set_grad_mode(t, false);
    fill(v, 24, 1);
    ck_assert(tg_upload(tg_slice(t, x, 0, 2, 4, 1), v, 12 * sizeof *v) == TG_OK); /* rows: contiguous */
    fill(w, 12, 5);
    ck_assert(tg_upload(tg_slice(t, x, 1, 0, 3, 1), w, 12 * sizeof *w) == TG_OK); /* columns */
    ck_assert(tg_upload(tg_zeros(ctx, TG_F32, TG_SHAPE(0, 3)), NULL, 0) == TG_OK);
    ck_assert(tg_read(x, got, 24 * sizeof *got) == TG_OK);
    for (int i = 0; i < 24; i++) {
        int row = i / 6, column = i % 6;
        float expected = column < 3 ? value_of(row * 3 + column, 5) : row < 2 ? 0 : value_of((row - 2) * 6 + column, 1);
        ck_assert_msg(got[i] == expected, "element %d is %g, expected %g", i, (double)got[i], (double)expected);
    }
    end(ctx, t);
}
END_TEST

/* A downloaded tensor is then overwritten, discarded or dropped, and its memory used for something else. */
START_TEST(downloads_have_the_values_of_the_call) {
    tg_ctx *ctx = new_ctx();
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE));
    tg_work *w[MANY];
    for (int i = 0; i < MANY; i++) {
        upload(x, v, i);
        tg_tensor *y = tg_scale(t, x, 2);
        w[i] = tg_download(y, got + (size_t)i * LARGE, LARGE * sizeof *v);
        ck_assert(w[i] != NULL);
        if (i % 3 == 0) tg_discard(y);
        if (i % 3 == 1) tg_tape_reset(t);
        if (i % 3 == 2) tg_mul_(t, y, x);
        tg_tensor *other = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE)); /* possibly in memory that was released */
        tg_drop(other);
    }
    for (int i = MANY - 1; i >= 0; i--) {
        ck_assert_msg(tg_work_wait(w[i]) == TG_OK, "%s", tg_ctx_message(ctx));
        ck_assert_msg(is(got + (size_t)i * LARGE, LARGE, i, 2), "download %d", i);
    }
    end(ctx, t);
}
END_TEST

START_TEST(values_are_converted_as_by_a_read) {
    tg_ctx *ctx = new_ctx();
    tg_tape *t = tg_tape_new(ctx);
    double found[12], expected[12];
    const double values[12] = {1, 2, 3.5, -4, 5, 6, 7, 8, 9, 10, 11, 12.25};
    const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_BF16, TG_F16, TG_I64, TG_U8};
    for (int i = 0; i < 6; i++) {
        tg_tensor *x = tg_zeros(ctx, dtypes[i], TG_SHAPE(3, 4));
        tg_write_f64(x, values, 12);
        tg_tensor *y = tg_transpose(t, x, 0, 1);
        tg_read_f64(y, expected, 12);
        tg_work *w = tg_download_f64(y, found, 12);
        ck_assert(tg_work_wait(w) == TG_OK);
        for (int k = 0; k < 12; k++) ck_assert(found[k] == expected[k]);
    }
    tg_tensor *one = tg_zeros(ctx, TG_F32, TG_SHAPE()), *none = tg_zeros(ctx, TG_F32, TG_SHAPE(0));
    tg_write_f64(one, &values[2], 1);
    ck_assert(tg_work_wait(tg_download_f64(one, found, 1)) == TG_OK && found[0] == 3.5);
    ck_assert(tg_work_wait(tg_download(none, NULL, 0)) == TG_OK);
    end(ctx, t);
}
END_TEST

/* Memory that waits on the host for backward: it is sent away, and returned when it is needed. */
START_TEST(bytes_go_to_the_host_and_come_back) {
    tg_ctx *ctx = new_ctx();
    float *kept[MANY];
    tg_work *w[MANY];
    tg_tensor *x[MANY];
    tg_memory_info m = TG_MEMORY_INFO();
    int64_t reserved = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++) {
            x[i] = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE));
            kept[i] = malloc(LARGE * sizeof *v);
            upload(x[i], v, i + round);
            w[i] = tg_download(x[i], kept[i], LARGE * sizeof *v);
            tg_drop(x[i]);
        }
        for (int i = MANY - 1; i >= 0; i--) {
            ck_assert(tg_work_wait(w[i]) == TG_OK);
            x[i] = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE));
            tg_upload(x[i], kept[i], LARGE * sizeof *v);
            free(kept[i]);
            tg_read(x[i], v, LARGE * sizeof *v);
            ck_assert(is(v, LARGE, i + round, 1));
            tg_drop(x[i]);
        }
        tg_memory_query(ctx, &m);
        if (round) ck_assert_int_eq(m.reserved, reserved);
        reserved = m.reserved;
    }
    ck_assert_int_eq(m.live, 0);
    ck_assert_int_lt(m.peak, (int64_t)8 * LARGE * 4); /* a few copies are under way, and the rest was released */
    end(ctx, NULL);
}
END_TEST

START_TEST(a_steady_step_allocates_nothing) {
    tg_ctx *ctx = new_ctx();
    tg_tape *t = tg_tape_new(ctx);
    double sum[3];
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE)), *small = tg_zeros(ctx, TG_F32, TG_SHAPE(SMALL));
    int64_t allocations = 0;
    for (int step = 0; step < 10; step++) {
        tg_work *w[5];
        for (int i = 0; i < 3; i++) {
            upload(small, v, step);
            w[i] = tg_download_f64(tg_sum(t, small, TG_ALL_DIMS, false), &sum[i], 1);
        }
        for (int i = 0; i < 2; i++) {
            upload(x, v, step + i);
            w[3 + i] = tg_download(tg_scale(t, x, 2), got + (size_t)i * LARGE, LARGE * sizeof *v);
        }
        tg_tape_reset(t);
        for (int i = 0; i < 5; i++) ck_assert(tg_work_wait(w[i]) == TG_OK);
        ck_assert(sum[0] == sum[2] && is(got, LARGE, step, 2) && is(got + LARGE, LARGE, step + 1, 2));
        tg_memory_info m = TG_MEMORY_INFO();
        tg_memory_query(ctx, &m);
        if (step > 2) ck_assert_int_eq(m.host_allocations, allocations);
        allocations = m.host_allocations;
    }
    end(ctx, t);
}
END_TEST

START_TEST(copies_that_are_not_waited_for_are_safe) {
    tg_ctx *ctx = new_ctx();
    float *own = malloc(LARGE * sizeof *own);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(LARGE)), *y = tg_zeros(ctx, TG_F32, TG_SHAPE(SMALL));
    upload(x, own, 4);
    tg_work *w = tg_download(x, own, LARGE * sizeof *own);
    ck_assert(tg_download(y, own, SMALL * sizeof *own) != NULL);
    while (!tg_work_test(w)) {}
    upload(x, own, 5);
    memset(own, 1, LARGE * sizeof *own);
    free(own); /* a copy that is not waited for writes nothing on such a device */
    tg_ctx_free(ctx);
}
END_TEST

static void *host_alloc(tg_ctx *ctx, size_t bytes) { return ctx ? malloc(bytes) : NULL; }
static void host_free(tg_ctx *ctx, void *p, size_t bytes) {
    (void)ctx;
    memset(p, 0x5a, bytes);
    free(p);
}
static tg_status copy_at_once(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind, void **event) {
    (void)kind, (void)event;
    memcpy(dst, src, bytes);
    return tg_ctx_status(ctx);
}
static bool event_test(tg_ctx *ctx, void *event) { return ctx && !event; }
static tg_status event_await(tg_ctx *ctx, void *event) {
    (void)event;
    return tg_ctx_status(ctx);
}

/* On the CPU with slots for such copies, which are immediate. The upload is still a work, and nothing waits for it. */
START_TEST(an_upload_into_pinned_memory_ends_with_the_context) {
    tg_ctx *cpu = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_device_ops ops = *tg_ctx_ops(cpu);
    ops.host_alloc = host_alloc, ops.host_free = host_free;
    ops.copy_async = copy_at_once, ops.event_test = event_test, ops.event_await = event_await;
    tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(SMALL));
    ck_assert(tg_pin(x) != NULL);
    upload(x, v, 1);
    ck_assert(tg_storage_state_of(x) == TG_IN_FLIGHT);
    ck_fine(ctx);
    tg_ctx_free(ctx);
    tg_ctx_free(cpu);
}
END_TEST

/* The next step's inputs are uploaded, and the last one's losses downloaded, while replays run. */
static void run_fetching(world *w, int steps) {
    tg_graph *g = NULL;
    tg_work *work[LOSSES];
    for (int i = 0; i < steps; i++) {
        int64_t ids[BATCH * SEQ], target[BATCH * SEQ];
        for (int m = 0; m < MICRO; m++) {
            for (int k = 0; k < BATCH * SEQ; k++) {
                ids[k] = (k * 5 + 3 * w->steps + m) % VOCAB;
                target[k] = (ids[k] + 5) % VOCAB;
            }
            tg_upload(w->ids[m], ids, sizeof ids);
            tg_upload(w->target[m], target, sizeof target);
        }
        tg_draws_step(w->ctx, 1 + (uint64_t)w->steps);
        if (g)
            tg_graph_replay(g);
        else if (i)
            g = tg_graph_new(w->ctx, step_of, w);
        else
            step_of(w, w->ctx);
        for (int m = 0; m < MICRO; m++) work[i * MICRO + m] = tg_download_f64(w->loss[m], &w->losses[i * MICRO + m], 1);
        w->steps++;
        ck_fine(w->ctx);
    }
    for (int i = 0; i < steps * MICRO; i++) ck_assert(tg_work_wait(work[i]) == TG_OK);
    tg_graph_free(g);
}

START_TEST(captured_steps_read_uploaded_inputs) {
    enum { STEPS = 8 };
    world *called = world_new(), *captured = world_new();
    eager(called, STEPS);
    run_fetching(captured, STEPS);
    for (int i = 0; i < STEPS * MICRO; i++)
        ck_assert_msg(called->losses[i] == captured->losses[i], "loss %d: %.17g, expected %.17g", i,
                      captured->losses[i], called->losses[i]);
    world_free(called);
    world_free(captured);
}
END_TEST

static tg_status sends(void *state, tg_ctx *ctx) {
    const float one = 1;
    tg_upload(state, &one, sizeof one);
    return tg_ctx_status(ctx);
}

static tg_status fetches(void *state, tg_ctx *ctx) {
    float v;
    tg_download(state, &v, sizeof v);
    return tg_ctx_status(ctx);
}

START_TEST(a_captured_step_copies_nothing) {
    if (!on_device()) return;
    tg_ctx *ctx = new_ctx();
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(1));
    tg_status (*const step[])(void *, tg_ctx *) = {sends, fetches};
    const char *const says[] = {"tg_upload: the step that tg_graph_new records writes",
                                "tg_download: the step that tg_graph_new records reads"};
    for (int i = 0; i < 2; i++) {
        tg_graph_new(ctx, step[i], x);
        ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_UNSUPPORTED);
        ck_assert_msg(strstr(tg_ctx_message(ctx), says[i]), "%s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {uploads_arrive_before_they_are_read,  uploads_wait_for_earlier_readers,
                                  parts_and_other_layouts_are_sent_too, downloads_have_the_values_of_the_call,
                                  values_are_converted_as_by_a_read,    bytes_go_to_the_host_and_come_back,
                                  a_steady_step_allocates_nothing,      copies_that_are_not_waited_for_are_safe,
                                  captured_steps_read_uploaded_inputs,  a_captured_step_copies_nothing,
                                  an_upload_into_pinned_memory_ends_with_the_context};
    return tg_check_main("copies", tests, sizeof tests / sizeof *tests);
}
