/* Places in a program's source (tg_tape_set_site), leaves that a tape owns, and the texts of callbacks that fail. */
#include "world.h"

#include <stdlib.h>

#include <tapegrad/backward.h>
#include <tapegrad/explain.h>
#include <tapegrad/nn.h>
#include <tapegrad/op.h>

#include "tape/tape.h"

/* ---- The program's source ---- */

static void ck_refused_from(const char *place) {
    tg_add(t, leaf_of(TG_SHAPE(2), (double[]){1, 2}), leaf_of(TG_SHAPE(3), (double[]){1, 2, 3}));
    ck_status(TG_ERR_SHAPE);
    ck_says(place);
    tg_ctx_clear(ctx);
}

START_TEST(errors_name_the_line_of_the_program) {
    char site[64];
    begin();
    tg_tensor *w = leaf(2);
    ck_assert(tg_tape_set_site(t, "lib/model.py", 12) == TG_OK);
    ck_refused_from("called from model.py:12");
    tg_tensor *y = tg_square(t, w);
    tg_tape_set_site(t, "train.lua", 7);
    ck_refused_from("called from train.lua:7");
    tg_tape_reset(t);
    ck_refused_from("called from train.lua:7"); /* a reset keeps it */
    tg_tape_set_site(t, NULL, 0);
    ck_refused_from("called from test_source.c");
    tg_tape_set_site(t, "model.py", 30);
    y = tg_square(t, w);
    tg_tape_set_site(t, "model.py", 31);
    tg_node_site(tg_node_of(y), site, sizeof site);
    ck_assert_str_eq(site, "model.py:30");
    tg_touch(w);
    ck_assert(tg_backward(t, y) == TG_ERR_VERSION);
    ck_says("called from model.py:30"); /* in backward, that of the forward */
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(layers_name_the_line_of_the_program) {
    begin();
    tg_module *fc = tg_nn_linear(ctx, 3, 4, true, 1);
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(2, 5), 1), *y = NULL;
    tg_tape_set_site(t, "net.py", 5);
    tg_module_call(fc, t, &x, 1, &y, 1);
    ck_says("net.py:5");
    tg_ctx_clear(ctx);
    tg_module_free(fc);
    end();
}
END_TEST

START_TEST(a_known_place_allocates_nothing) {
    tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    begin();
    for (int round = 0; round < 3; round++) {
        if (round == 1) tg_memory_query(ctx, &before);
        for (int line = 0; line < 300; line++) {
            char file[] = "model_x.py";
            file[6] = (char)('a' + line % 5);
            ck_assert(tg_tape_set_site(t, file, line) == TG_OK);
            ck_assert(tg_is_alive(tg_full(t, TG_F64, TG_SHAPE(1), 1)));
        }
        tg_tape_reset(t);
    }
    tg_memory_query(ctx, &after);
    ck_assert_int_eq(after.host_allocations, before.host_allocations);
    end();
}
END_TEST

/* ---- Leaves that a tape owns ---- */

static void ck_same(tg_tensor *a, tg_tensor *b) {
    double x[64], y[64];
    int64_t n = tg_numel(a);
    ck_assert(n == tg_numel(b) && tg_dtype_of(a) == tg_dtype_of(b));
    tg_read_f64(a, x, n);
    tg_read_f64(b, y, n);
    ck_assert(memcmp(x, y, (size_t)n * sizeof *x) == 0);
}

START_TEST(leaves_of_a_tape_are_those_of_the_context) {
    static const double v[] = {1, -2, 3};
    tg_rng before;
    begin();
    ck_same(tg_input(t, TG_F64, TG_SHAPE(3), v), tg_from_host(ctx, TG_F64, TG_SHAPE(3), v));
    tg_rng_get(ctx, NULL, &before);
    tg_tensor *n = tg_tape_randn(t, TG_F32, TG_SHAPE(5, 7), 2);
    tg_tensor *u = tg_tape_uniform(t, TG_DTYPE_DEFAULT, TG_SHAPE(9), 1, 3);
    tg_rng_set(ctx, NULL, &before);
    ck_same(n, tg_randn(ctx, TG_F32, TG_SHAPE(5, 7), 2));
    ck_same(u, tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(9), 1, 3));
    tg_tensor *x = tg_input(t, TG_F64, TG_SHAPE(), &(double){3});
    ck_assert(!tg_requires_grad(x) && tg_tape_of(x) == t);
    tg_set_requires_grad(x, true);
    tg_backward(t, tg_square(t, x));
    ck_assert(grad(x) == 6);
    tg_tape_reset(t);
    ck_assert(!tg_is_alive(x) && !tg_is_alive(n));
    end();
}
END_TEST

START_TEST(steps_of_inputs_leave_nothing_on_the_context) {
    tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    begin();
    for (int step = 0; step < 20; step++) {
        if (step == 2) tg_memory_query(ctx, &before);
        tg_tensor *x = tg_tape_randn(t, TG_F64, TG_SHAPE(4, 4), 1), *y = tg_input(t, TG_F64, TG_SHAPE(), &(double){2});
        tg_mul(t, x, y);
        tg_tape_reset(t);
    }
    tg_memory_query(ctx, &after);
    ck_assert(after.live == before.live && after.host_allocations == before.host_allocations);
    end();
}
END_TEST

/* ---- Callbacks that fail ---- */

typedef struct failing {
    bool records; /* calls tg_ctx_fail */
} failing;

static tg_status give_up(const failing *f) {
    return f->records ? tg_ctx_fail(ctx, TG_ERR_DATA, "the sensor is off") : TG_ERR_IO;
}

static tg_status hook_fails(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)x, (void)g;
    return give_up(user);
}

static tg_status fn_fails(void *user, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)tape, (void)in, (void)n_in, (void)out, (void)n_out;
    return give_up(user);
}

static tg_status refill_fails(void *user, tg_ctx *c, void *dst, size_t bytes) {
    (void)c, (void)dst, (void)bytes;
    return give_up(user);
}

static tg_status observer_fails(void *user, tg_tape *tape, const tg_op_event *event) {
    (void)tape, (void)event;
    return give_up(user);
}

static tg_status pack_fails(void *user, tg_tape *tape, tg_tensor *x, void **packed) {
    (void)tape, (void)x, (void)packed;
    return give_up(user);
}

static tg_status unpack_fails(void *user, void *packed, tg_tensor *x) {
    (void)packed, (void)x;
    return give_up(user);
}

static tg_status infer_fails(tg_call *c) { return give_up(&(failing){*(const bool *)c->params}); }

/* The message has what the callback recorded, with its status, or says that it failed; and it says which one it was. */
static void ck_failed(const failing *f, const char *which) {
    ck_status(f->records ? TG_ERR_DATA : TG_ERR_CALLBACK);
    ck_says(f->records ? "the sensor is off" : "failed with TG_ERR_IO");
    ck_says(which);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
}

START_TEST(messages_of_failed_callbacks_say_what_and_where) {
    begin();
    tg_tensor *w = leaf(2), *out = NULL;
    for (int records = 0; records < 2; records++) {
        failing f = {records};
        uint64_t id = tg_on_grad(w, hook_fails, &f);
        tg_backward(t, tg_square(t, w));
        ck_failed(&f, "a gradient hook of f64[]");
        tg_remove_hook(w, id);
        tg_recompute(t, fn_fails, &f, &w, 1, &out, 1, NULL);
        ck_failed(&f, "recompute: the function");
        tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
        tg_discard_with(x, refill_fails, NULL, &f);
        tg_square(t, x);
        ck_failed(&f, "the refill of a discarded tensor");
        tg_tape_observe(t, observer_fails, &f);
        tg_square(t, w);
        ck_failed(&f, "the observer at op square");
        tg_tape_observe(t, NULL, NULL);
        tg_tape_pack(t, TG_PACK_OPS(.pack = pack_fails, .unpack = unpack_fails, .user = &f));
        tg_tensor *y = tg_tanh(t, tg_exp(t, w));
        tg_pack(y);
        ck_failed(&f, "the packer of saved tensors");
        tg_tape_pack(t, NULL);
    }
    end();
}
END_TEST

START_TEST(an_op_that_fails_keeps_its_own_text) {
    begin();
    tg_op op = {.size = sizeof op, .name = "sensor", .n_in = 1, .n_out = 1, .params_size = sizeof(bool),
                .infer = infer_fails};
    tg_tensor *w = leaf(2), *out = NULL;
    tg_apply(t, &op, &(bool){true}, &w, 1, &out, 1, NULL, NULL, TG_SITE);
    ck_status(TG_ERR_DATA);
    ck_says("the sensor is off (op sensor of f64[]");
    tg_ctx_clear(ctx);
    tg_apply(t, &op, &(bool){false}, &w, 1, &out, 1, NULL, NULL, TG_SITE);
    ck_status(TG_ERR_IO);
    ck_says("sensor: infer refused the call with TG_ERR_IO");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- No memory ---- */

/* An allocator that refuses one allocation, and counts the bytes that are in use. */
typedef struct refusing {
    int64_t left, bytes; /* allocations until the refused one */
} refusing;

static void *refuse(void *user, size_t bytes, size_t align) {
    refusing *r = user;
    if (r->left-- == 0) return NULL;
    size_t rounded = (bytes + align - 1) / align * align;
    r->bytes += (int64_t)bytes;
    return aligned_alloc(align, rounded ? rounded : align);
}

static void give_back(void *user, void *p, size_t bytes) {
    ((refusing *)user)->bytes -= (int64_t)bytes;
    free(p);
}

/* Calls everything that may allocate. Returns whether all of it succeeded. */
static bool run_all(refusing *r) {
    static const double v[4] = {1, 2, 3, 4};
    char text[200];
    ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .allocator = {refuse, give_back, r}));
    t = tg_tape_new(ctx);
    tg_tape_set_site(t, "model.py", 1);
    tg_tensor *x = tg_input(t, TG_F64, TG_SHAPE(4), v), *y = tg_mul(t, x, tg_tape_randn(t, TG_F64, TG_SHAPE(4), 1));
    tg_hold(y);
    tg_unpin(tg_pin(y));
    tg_set_read_only(x, true);
    tg_print(y, text, sizeof text, NULL);
    tg_drop_later(ctx, tg_ref_of(y));
    tg_release(x);
    bool good = tg_ctx_status(ctx) == TG_OK;
    ck_assert(good || tg_ctx_status(ctx) == TG_ERR_MEMORY);
    tg_ctx_free(ctx);
    return good;
}

START_TEST(any_allocation_may_fail) {
    bool good = false;
    for (int64_t k = 0; !good; k++) {
        refusing r = {.left = k};
        good = run_all(&r);
        ck_assert_int_eq(r.bytes, 0);
        ck_assert(k < 1000);
    }
}
END_TEST

int main(void) {
    const TTest *tests[] = {errors_name_the_line_of_the_program,
                            layers_name_the_line_of_the_program,
                            a_known_place_allocates_nothing,
                            leaves_of_a_tape_are_those_of_the_context,
                            steps_of_inputs_leave_nothing_on_the_context,
                            messages_of_failed_callbacks_say_what_and_where,
                            an_op_that_fails_keeps_its_own_text,
                            any_allocation_may_fail};
    return tg_check_main("source", tests, sizeof tests / sizeof *tests);
}
