/* The order of ends: deleters of exported tensors run on any thread, and before or after the end of the tensor, of its
 * tape and of the context. */
#include <pthread.h>

#include "dlpack_structs.h"

START_TEST(exported_bytes_stay_where_they_are) {
    begin();
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(4), 7);
    exported e = export_as(1, x);
    void *at = tensor_of(e)->data;
    ck_assert(tg_discard(x) == TG_ERR_STATE);
    ck_says("tg_discard: the tensor is pinned or exported; call tg_unpin or the deleter first");
    tg_ctx_clear(ctx);
    for (int i = 0; i < 3; i++) {
        tg_tape_reset(t);
        ck_assert(bytes_of(tg_full(t, TG_F64, TG_SHAPE(4), i)) != at);
    }
    double v[4];
    peek(ctx, v, at, sizeof v);
    ck_assert(v[0] == 7 && v[3] == 7);
    give_back(e);
    tg_tape_reset(t);
    end();
}
END_TEST

static void count(void *user) { ++*(int *)user; }

static void *give_both_back(void *arg) {
    give_back(((exported *)arg)[0]);
    give_back(((exported *)arg)[1]);
    return NULL;
}

START_TEST(exports_outlive_the_context) {
    static double data[4] = {1, 2, 3, 4};
    counted memory = {0};
    pthread_t thread;
    int released = 0;
    begin_counted(&memory);
    tg_tensor *wrapped = test_on_host() ? tg_wrap(ctx, TG_F64, TG_SHAPE(4), NULL, data, count, &released) : NULL;
    exported e[2] = {export_as(0, tg_full(t, TG_F64, TG_SHAPE(4), 7)), export_as(1, wrapped)};
    const double *seven = tensor_of(e[0])->data;
    end();
    ck_assert_int_gt(memory.held, 0);
    ck_assert_int_eq(released, 0);
    ck_assert(!test_on_host() || (seven[0] == 7 && seven[3] == 7));
    ck_assert(!pthread_create(&thread, NULL, give_both_back, e));
    pthread_join(thread, NULL);
    ck_assert_int_eq(released, test_on_host());
    ck_assert_int_eq(memory.held, 0);
}
END_TEST

START_TEST(pins_end_with_the_context) {
    static double data[4] = {1, 2, 3, 4};
    int released = 0;
    if (!test_on_host()) return; /* tg_wrap needs a context on the CPU */
    begin();
    tg_tensor *x = tg_wrap(ctx, TG_F64, TG_SHAPE(4), NULL, data, count, &released);
    ck_assert(tg_pin(x) && tg_pin(x) && tg_pin(tg_full(t, TG_F64, TG_SHAPE(2), 1)));
    exported e = export_as(1, x);
    end();
    ck_assert_int_eq(released, 0);
    give_back(e);
    ck_assert_int_eq(released, 1);
}
END_TEST

/* The context imports what it has itself exported, so its own memory is a user of the context. That must not keep it
 * alive when the import ends: with tg_ctx_free, although it is pinned, or later, because it is exported in turn. */
START_TEST(an_import_of_its_own_export_ends) {
    for (int i = 0; i < 4; i++) {
        counted memory = {0};
        exported e = {0};
        begin_counted(&memory);
        tg_tensor *x = import(export_as(i % 2, tg_zeros(ctx, TG_F64, TG_SHAPE(4))));
        if (i < 2)
            ck_assert_ptr_nonnull(tg_pin(x));
        else
            e = export_as(i % 2, x);
        end();
        give_back(e);
        ck_assert_int_eq(memory.held, 0);
    }
}
END_TEST

enum { THREADS = 4, EACH = 200 };

typedef struct receiver {
    exported of[EACH];
    _Atomic int ready; /* number of exports that may be deleted */
} receiver;

static void *receive(void *arg) {
    receiver *r = arg;
    for (int i = 0; i < EACH; i++) {
        while (atomic_load(&r->ready) <= i) {}
        give_back(r->of[i]);
    }
    return NULL;
}

/* Exports while other threads delete; some deleters run after the context was freed. */
START_TEST(deleters_run_on_any_thread) {
    static receiver r[THREADS];
    counted memory = {0};
    pthread_t thread[THREADS];
    begin_counted(&memory);
    for (int k = 0; k < THREADS; k++) {
        atomic_store(&r[k].ready, 0);
        ck_assert(!pthread_create(&thread[k], NULL, receive, &r[k]));
    }
    for (int i = 0; i < EACH; i++)
        for (int k = 0; k < THREADS; k++) {
            tg_tensor *x = i % 2 ? tg_full(t, TG_F64, TG_SHAPE(8), i) : tg_zeros(ctx, TG_F32, TG_SHAPE(8));
            r[k].of[i] = export_as((i + k) % 2, x);
            tg_drop(x);
            if (i < EACH - 20) atomic_store(&r[k].ready, i + 1);
            if (i % 50 == 49) tg_tape_reset(t);
        }
    end();
    for (int k = 0; k < THREADS; k++) atomic_store(&r[k].ready, EACH);
    for (int k = 0; k < THREADS; k++) pthread_join(thread[k], NULL);
    ck_assert_int_eq(memory.held, 0);
}
END_TEST

START_TEST(a_loop_of_exports_keeps_its_memory) {
    counted memory = {0};
    begin_counted(&memory);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(8));
    for (int i = 0; i < 3; i++) give_back(export_as(i % 2, x));
    int64_t held = memory.held;
    for (int i = 0; i < 100; i++) give_back(export_as(i % 2, x));
    ck_assert_int_eq(memory.held, held);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {exported_bytes_stay_where_they_are, exports_outlive_the_context, pins_end_with_the_context,
                            an_import_of_its_own_export_ends,
                            deleters_run_on_any_thread, a_loop_of_exports_keeps_its_memory};
    return tg_check_main("dlpack_ends", tests, sizeof tests / sizeof *tests);
}
