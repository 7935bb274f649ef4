/* Recorded sequences of the Python package (python/sequence.h) when memory is missing: every allocation of bridge.c and
 * sequence.c fails in turn, and then every one of the context. A failure is reported, leaves nothing behind, and the
 * same calls succeed afterwards. Calls that another thread puts off (tgpy_later) are made once. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <tapegrad/op_call.h>

#include "../../python/sequence.h"
#include "check_main.h"
#include "unit/counted_allocator.h"

/* ---- Allocations of the C library, by --wrap ---- */

static int64_t left = -1; /* how many succeed before one fails; -1: none fails */

static bool fails(void) { return left >= 0 && left-- == 0; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t bytes);

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t bytes) { return fails() ? NULL : __real_realloc(p, bytes); }

/* ---- A function to record: permute(x * w, [1, 0]), and its cast to float64 ---- */

enum { IN = 2, OUT = 2 };

static const int64_t swapped[] = {1, 0};
static const double expected[2][4] = {{2, 12, 6, 20}, {4, 24, 12, 40}};

static tgpy_box *boxed(tgpy_world *w, double first, double step) {
    double v[4];
    for (int i = 0; i < 4; i++) v[i] = first + step * i;
    tg_tensor *x = tg_zeros(tgpy_ctx(w), TG_F32, TG_SHAPE(2, 2));
    tg_write_f64(x, v, 4);
    return tgpy_box_new(w, NULL, x, false);
}

/* Calls an op with at most one value. Returns its result, or NULL. */
static tgpy_box *call(tgpy_world *w, const char *name, tgpy_box *const *in, int n, tg_value *value) {
    for (int i = 0; i < n; i++)
        if (!in[i]) return NULL;
    tg_op_binding b = TG_OP_BINDING();
    tgpy_box *y = NULL;
    if (tg_op_bind(tgpy_ctx(w), tg_op_find(name), &value->name, value->name != NULL, &b) != TG_OK) return NULL;
    return tgpy_call(w, &b, in, n, value, &y, 1) == TG_OK ? y : NULL;
}

static void drop(tgpy_box **boxes, int n) {
    for (int i = 0; i < n; i++) {
        if (boxes[i]) tgpy_box_drop(boxes[i]);
        boxes[i] = NULL;
    }
}

/* Runs the function op by op, and records it. Returns NULL if anything has failed. */
static tgpy_sequence *recorded(tgpy_world *w, tgpy_box *const *in) {
    tgpy_sequence *s = tgpy_sequence_begin(w, in, IN);
    tg_value dims = {.name = "order", .kind = TG_VALUE_LIST, .n = 2, .list = swapped};
    tg_value dtype = {.name = "dtype", .kind = TG_VALUE_TEXT, .text = "f64"};
    tgpy_box *made[3] = {call(w, "mul", in, IN, &(tg_value){0})};
    made[1] = call(w, "permute", made, 1, &dims);
    made[2] = call(w, "cast", made + 1, 1, &dtype);
    bool complete = made[2] && s && tgpy_sequence_end(s, made + 1, OUT);
    if (s && !made[2]) tgpy_sequence_end(s, NULL, 0);
    drop(made, 3);
    if (complete) return s;
    tgpy_sequence_free(s);
    return NULL;
}

/* Runs a sequence. Returns whether it has; if not, it must have set no result. */
static bool ran(tgpy_sequence *s, tgpy_box *const *in, const double *values) {
    tgpy_box *out[OUT] = {NULL};
    tg_status status = tgpy_sequence_run(s, in, out);
    left = -1; /* Check allocates too */
    if (status != TG_OK) {
        ck_assert(!out[0] && !out[1]);
        return false;
    }
    for (int i = 0; i < OUT; i++) {
        double v[4];
        ck_assert_int_eq(tg_dtype_of(tgpy_tensor(out[i])), i ? TG_F64 : TG_F32);
        tg_read_f64(tgpy_tensor(out[i]), v, 4);
        for (int k = 0; k < 4; k++) ck_assert_double_eq(v[k], values[k]);
    }
    drop(out, OUT);
    return true;
}

/* ---- The tests ---- */

/* Records with one failure, if any, and runs with another. Returns whether neither has met it. */
static bool survives(tgpy_world *w, int64_t at, bool in_run) {
    tgpy_box *in[IN] = {boxed(w, 1, 1), boxed(w, 2, 1)}, *other[IN] = {boxed(w, 2, 2), boxed(w, 2, 1)};
    left = in_run ? -1 : at;
    tgpy_sequence *s = recorded(w, in);
    left = in_run ? at : -1;
    bool good = s && ran(s, other, expected[1]);
    left = -1;
    tg_ctx_clear(tgpy_ctx(w));
    if (s) ck_assert(ran(s, in, expected[0]));
    if (s) tgpy_sequence_free(s);
    drop(in, IN);
    drop(other, IN);
    return good;
}

static void any_may_fail(bool in_run) {
    tgpy_world *w = tgpy_world_new(tg_ctx_new(TG_CONFIG(.threads = 1)));
    ck_assert(survives(w, -1, in_run));
    tg_tape *t = tgpy_tape_of(tgpy_current(w));
    int64_t at = 0, nodes = tg_tape_nodes(t);
    while (!survives(w, at, in_run)) {
        ck_assert_int_lt(at++, 200);
        tgpy_catch_up(w);
        ck_assert_int_eq(tg_tape_nodes(t), nodes);
    }
    ck_assert_int_gt(at, in_run ? 1 : 10);
    tgpy_world_drop(w);
}

START_TEST(any_allocation_of_a_recording_may_fail) { any_may_fail(false); }
END_TEST

START_TEST(any_allocation_of_a_run_may_fail) { any_may_fail(true); }
END_TEST

/* The memory of the context fails, for the handles and values of tensors. */
START_TEST(any_allocation_of_the_context_may_fail) {
    for (int64_t at = 0, calls = 1; at <= calls; at++) {
        counted memory = {0};
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &memory}));
        tgpy_world *w = tgpy_world_new(ctx);
        tgpy_box *in[IN] = {boxed(w, 1, 1), boxed(w, 2, 1)};
        int64_t before = memory.calls;
        memory.fail_at = at ? before + at : 0;
        tgpy_sequence *s = recorded(w, in);
        bool good = s && ran(s, in, expected[0]);
        if (at == 0) calls = memory.calls - before;
        ck_assert(good || memory.calls >= memory.fail_at);
        memory.fail_at = 0;
        tg_ctx_clear(ctx);
        tgpy_sequence *again = recorded(w, in);
        ck_assert(again && ran(again, in, expected[0]));
        tgpy_sequence_free(again);
        tgpy_sequence_free(s);
        drop(in, IN);
        tgpy_world_drop(w);
        ck_assert_int_eq(memory.held, 0);
    }
}
END_TEST

enum { PUT_OFF = 20000 };
static atomic_int ended;
static atomic_bool all_put_off;

static void end(void *object) {
    (void)object;
    atomic_fetch_add(&ended, 1);
}

static void *put_off(void *world) {
    for (int i = 0; i < PUT_OFF; i++) tgpy_later(world, end, NULL);
    atomic_store(&all_put_off, true);
    return NULL;
}

/* Like finalizers that the garbage collector runs on another thread while this one calls ops. */
START_TEST(calls_that_another_thread_puts_off_are_made_once) {
    tgpy_world *w = tgpy_world_new(tg_ctx_new(TG_CONFIG(.threads = 1)));
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, put_off, w), 0);
    while (!atomic_load(&all_put_off)) tgpy_catch_up(w);
    pthread_join(thread, NULL);
    tgpy_world_drop(w);
    ck_assert_int_eq(atomic_load(&ended), PUT_OFF);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {any_allocation_of_a_recording_may_fail, any_allocation_of_a_run_may_fail,
                                  any_allocation_of_the_context_may_fail,
                                  calls_that_another_thread_puts_off_are_made_once};
    return tg_check_main("sequence", tests, sizeof tests / sizeof *tests);
}
