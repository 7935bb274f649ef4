/* What other threads ask of a context: drops by finalizers, and pins that end elsewhere. Also pinned, touched and
 * read-only bytes. */
#include "world.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- Drops by other threads ---- */

enum { THREADS = 4, EACH = 250 };

typedef struct finalizer {
    tg_ctx *ctx;
    tg_ref ref[EACH];
    tg_storage *pin[EACH];
    _Atomic int ready; /* number of references that may be dropped */
} finalizer;

static void *finalize(void *arg) {
    finalizer *f = arg;
    for (int i = 0; i < EACH; i++) {
        while (atomic_load(&f->ready) <= i) {}
        tg_drop_later(f->ctx, f->ref[i]);
        tg_unpin(f->pin[i]);
    }
    return NULL;
}

/* Makes a tensor of the tape or of the context, and leaves it to the finalizer. */
static void hand_over(finalizer *f, int i) {
    tg_tensor *x = i % 2 ? tg_full(t, TG_F64, TG_SHAPE(8), i) : tg_zeros(ctx, TG_F64, TG_SHAPE(8));
    tg_hold(x);
    f->ref[i] = tg_ref_of(x);
    f->pin[i] = i % 5 ? NULL : tg_pin(x);
    atomic_store(&f->ready, i + 1);
    if (i % 100 == 99) tg_tape_reset(t);
}

START_TEST(finalizers_drop_while_the_owner_computes) {
    static finalizer f[THREADS];
    pthread_t thread[THREADS];
    begin();
    tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    tg_memory_query(ctx, &before);
    for (int k = 0; k < THREADS; k++) {
        f[k] = (finalizer){.ctx = ctx};
        ck_assert(!pthread_create(&thread[k], NULL, finalize, &f[k]));
    }
    for (int i = 0; i < EACH; i++)
        for (int k = 0; k < THREADS; k++) hand_over(&f[k], i);
    for (int k = 0; k < THREADS; k++) pthread_join(thread[k], NULL);
    tg_tape_reset(t); /* does what is left */
    tg_memory_query(ctx, &after);
    ck_assert_int_eq(after.live, before.live);
    end();
}
END_TEST

START_TEST(a_handle_may_be_dropped_as_often_as_it_is_held) {
    begin();
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(2), 1);
    for (int i = 0; i < 3; i++) tg_hold(x);
    tg_ref r = tg_ref_of(x);
    tg_drop_later(ctx, r);
    tg_drop_later(ctx, r);
    ck_assert(tg_is_alive(x)); /* it ends at the next call */
    tg_full(t, TG_F64, TG_SHAPE(2), 2);
    ck_assert(!tg_is_alive(x)); /* released, and still held once */
    for (int i = 0; i < 10; i++) ck_assert(tg_full(t, TG_F64, TG_SHAPE(2), 2) != x);
    tg_drop_later(ctx, r);
    tg_drop_later(ctx, (tg_ref){0});
    tg_drop_later(NULL, r);
    end();
}
END_TEST

/* ---- Pins ---- */

static void count(void *user) { ++*(int *)user; }

START_TEST(pinned_bytes_stay_after_the_handle) {
    static double data[4] = {1, 2, 3, 4};
    int released = 0;
    begin();
    tg_tensor *x = tg_wrap(ctx, TG_F64, TG_SHAPE(4), NULL, data, count, &released);
    tg_storage *first = tg_pin(x), *second = tg_pin(x);
    ck_assert(first && first == second);
    tg_drop(x);
    ck_assert_int_eq(released, 0);
    tg_unpin(first);
    tg_full(t, TG_F64, TG_SHAPE(1), 0);
    ck_assert_int_eq(released, 0);
    tg_unpin(second);
    tg_unpin(NULL);
    tg_full(t, TG_F64, TG_SHAPE(1), 0);
    ck_assert_int_eq(released, 1);
    end();
}
END_TEST

START_TEST(pinned_bytes_are_not_discarded) {
    begin();
    tg_scope_open(t, NULL);
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(3), 7);
    tg_storage *pin = tg_pin(x);
    tg_scope_close(t, NULL, 0);
    ck_assert(tg_storage_state_of(x) == TG_PRESENT);
    ck_assert(tg_discard(x) == TG_ERR_STATE);
    ck_says("pinned");
    tg_ctx_clear(ctx);
    double v[3], *at = ctx ? tg_host_data(x) : NULL;
    bool host = at;
    tg_ctx_clear(ctx);
    tg_tensor *y = tg_add_(t, x, tg_full(t, TG_F64, TG_SHAPE(3), 7)); /* in place: the same bytes */
    tg_read(y, v, sizeof v);
    ck_assert(v[2] == 14 && (!host || at[2] == 14));
    tg_tape_reset(t);
    tg_full(t, TG_F64, TG_SHAPE(3), 1);
    ck_assert(!host || at[2] == 14);
    tg_unpin(pin);
    ck_assert(!tg_pin(x));
    ck_status(TG_ERR_HANDLE);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(writes_from_outside_are_noticed_in_backward) {
    begin();
    tg_tensor *x = leaf(3), *y = tg_square(t, x);
    ck_assert(tg_touch(x) == TG_OK);
    ck_assert(tg_backward(t, y) == TG_ERR_VERSION);
    ck_says("was overwritten by the program, which called tg_touch");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- Read-only bytes ---- */

START_TEST(read_only_bytes_are_not_written) {
    begin();
    double v[2] = {1, 2};
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2), v);
    ck_assert(tg_set_read_only(x, true) == TG_OK);
    ck_assert(tg_write(x, v, sizeof v) == TG_ERR_STATE);
    ck_says("tg_write: the tensor's memory is read-only");
    tg_ctx_clear(ctx);
    ck_assert(!tg_is_alive(tg_add_(t, x, tg_full(t, TG_F64, TG_SHAPE(2), 1))));
    ck_says("read-only");
    tg_ctx_clear(ctx);
    tg_tensor *sum = tg_add(t, x, x); /* reading is allowed */
    tg_read(sum, v, sizeof v);
    ck_assert(v[0] == 2 && v[1] == 4);
    tg_set_read_only(x, false);
    ck_assert(tg_write(x, v, sizeof v) == TG_OK);
    end();
}
END_TEST

/* ---- Negative strides ---- */

START_TEST(memory_is_wrapped_backward) {
    static double data[6] = {1, 2, 3, 4, 5, 6};
    static const double turned[6] = {6, 5, 4, 3, 2, 1};
    double v[6];
    begin();
    tg_tensor *x = tg_wrap(ctx, TG_F64, TG_SHAPE(2, 3), (int64_t[]){-3, -1}, &data[5], NULL, NULL);
    tg_read(x, v, sizeof v);
    ck_assert(memcmp(v, turned, sizeof v) == 0 && tg_stride(x, 1) == -1 && !tg_is_contiguous(x));
    ck_assert(!tg_ctx_message(ctx)[0] && tg_host_data(x) == &data[5]);
    tg_read(tg_matmul(t, x, tg_full(t, TG_F64, TG_SHAPE(3, 1), 1)), v, 2 * sizeof *v);
    ck_assert(v[0] == 15 && v[1] == 6);
    ck_assert(tg_write(x, (double[]){1, 2, 3, 4, 5, 6}, sizeof v) == TG_OK);
    ck_assert(memcmp(data, turned, sizeof data) == 0);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {finalizers_drop_while_the_owner_computes,
                            a_handle_may_be_dropped_as_often_as_it_is_held,
                            pinned_bytes_stay_after_the_handle,
                            pinned_bytes_are_not_discarded,
                            writes_from_outside_are_noticed_in_backward,
                            read_only_bytes_are_not_written,
                            memory_is_wrapped_backward};
    return tg_check_main("drops", tests, sizeof tests / sizeof *tests);
}
