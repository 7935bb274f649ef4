/* Named scratch buffers: the bytes of a name are kept and grow, two holders never share them, and works that still use
 * them are waited for. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tapegrad/op.h>

#include "check_main.h"
#include "core/memory/scratch.h"
#include "core/work.h"
#include "world.h"

static int64_t buffer_bytes(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.by_category[TG_MEM_BUFFER];
}

static int64_t allocations(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.host_allocations;
}

static tg_tensor *lease_floats(tg_tape *t, int64_t n) { return tg_lease(t, "mpu", TG_F32, TG_SHAPE(n)); }

START_TEST(the_bytes_come_back_and_only_grow) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = lease_floats(t, 1000);
    void *first = bytes_of(x);
    ck_assert(tg_is_alive(x) && first && tg_dim(x, 0) == 1000 && tg_dtype_of(x) == TG_F32 && !tg_requires_grad(x));
    ck_assert_int_eq(buffer_bytes(ctx), 4032);
    tg_discard(x);
    ck_assert_int_eq(buffer_bytes(ctx), 4032);
    tg_tensor *y = lease_floats(t, 10);
    ck_assert_ptr_eq(bytes_of(y), first);
    tg_tape_reset(t);
    tg_tensor *z = tg_lease(t, "mpu", TG_F32, TG_SHAPE(3, 5));
    ck_assert(bytes_of(z) == first && tg_ndim(z) == 2);
    tg_discard(z);
    ck_assert(tg_is_alive(lease_floats(t, 5000)));
    ck_assert_int_eq(buffer_bytes(ctx), 20032);
    tg_tape_free(t);
    ck_assert_int_eq(buffer_bytes(ctx), 20032);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(names_and_dtypes_are_apart) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *a = lease_floats(t, 16), *b = tg_lease(t, "mpu_0", TG_F32, TG_SHAPE(16)),
              *c = tg_lease(t, "mpu", TG_BF16, TG_SHAPE(16)), *d = tg_lease(t, "mpu", TG_I64, TG_SHAPE(0));
    void *p[] = {bytes_of(a), bytes_of(b), bytes_of(c)};
    ck_assert(p[0] && p[1] && p[2] && p[0] != p[1] && p[0] != p[2] && p[1] != p[2]);
    ck_assert(tg_is_alive(d) && tg_numel(d) == 0);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

static tg_status doubled_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, x->shape);
}

/* An op that keeps the buffer from its forward on. */
static tg_status doubled_forward(tg_call *c) {
    tg_tensor *b = tg_lease(c->tape, "mpu", TG_F32, TG_SHAPE(8));
    return tg_is_alive(b) ? tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), 2) : tg_ctx_status(c->ctx);
}

static const tg_op doubled_op = {.size = sizeof(tg_op),
                                 .name = "doubled",
                                 .n_in = 1,
                                 .n_out = 1,
                                 .infer = doubled_infer,
                                 .forward = doubled_forward};

static tg_tensor *doubled(tg_tape *t, tg_tensor *x) {
    tg_tensor *y = NULL;
    tg_apply(t, &doubled_op, NULL, &x, 1, &y, 1, NULL, NULL, TG_SITE);
    return y;
}

START_TEST(an_open_lease_is_not_given_twice) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(2)), *held = lease_floats(t, 8);
    ck_assert(!tg_is_alive(lease_floats(t, 4)));
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_STATE);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "\"mpu\" f32, leased by "), "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_discard(held);
    tg_scope_open(t, "layer");
    ck_assert(tg_is_alive(doubled(t, x)));
    tg_scope_close(t, NULL, 0); /* a scope returns the lease like a temporary */
    tg_scope_open(t, "first");
    ck_assert(tg_is_alive(doubled(t, x)));
    tg_scope_open(t, "second");
    ck_assert(!tg_is_alive(doubled(t, x)));
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_STATE);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "leased by op doubled, called from first, ") &&
                      strstr(tg_ctx_message(ctx), "requested again by op doubled, called from first.second, "),
                  "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    ck_assert(tg_is_alive(lease_floats(t, 8)));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* A view, or tg_keep, keeps the memory like the lease itself. */
START_TEST(bytes_that_others_hold_are_not_had_again) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = lease_floats(t, 64), *kept = tg_keep(x);
    void *first = bytes_of(x);
    tg_tape_reset(t);
    tg_tensor *y = lease_floats(t, 64);
    ck_assert(tg_is_alive(y) && bytes_of(y) != first && bytes_of(kept) == first);
    tg_drop(kept);
    tg_discard(y);
    ck_assert_ptr_eq(bytes_of(lease_floats(t, 64)), first);
    char report[4096];
    tg_memory_report(ctx, report, sizeof report);
    ck_assert_msg(strstr(report, "\"mpu\" f32\n") && strstr(report, "\"mpu\" f32, instance 2"), "%s", report);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

static tg_status inner(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    tg_tensor **seen = state, *b = lease_floats(t, 32);
    *seen = bytes_of(b);
    out[0] = tg_square(t, in[0]);
    return tg_ctx_status(tg_tape_ctx(t));
}

START_TEST(a_recomputation_has_its_own) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(), 1), *y, *outer;
    void *seen[3] = {NULL};
    for (int step = 0; step < 3; step++) {
        outer = lease_floats(t, 32);
        tg_recompute(t, inner, &seen[0], &w, 1, &y, 1, NULL);
        void *first_run = seen[0];
        ck_assert(first_run && first_run != bytes_of(outer));
        if (step == 1) tg_discard(outer);
        tg_backward(t, y);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        ck_assert((seen[0] == first_run) == (step != 1)); /* the first buffer that is free */
        tg_tape_reset(t);
    }
    ck_assert_int_eq(buffer_bytes(ctx), 256);
    int64_t before = allocations(ctx);
    for (int step = 0; step < 3; step++) {
        lease_floats(t, 32);
        tg_recompute(t, inner, &seen[0], &w, 1, &y, 1, NULL);
        tg_backward(t, y);
        tg_tape_reset(t);
    }
    ck_assert_int_eq(allocations(ctx), before);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(another_tape_has_its_own) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx), *u = tg_tape_new(ctx);
    tg_tensor *a = lease_floats(t, 8), *b = lease_floats(u, 8);
    ck_assert(tg_is_alive(a) && tg_is_alive(b) && bytes_of(a) != bytes_of(b));
    ck_assert(!tg_is_alive(lease_floats(u, 8)));
    tg_ctx_clear(ctx);
    tg_tape_free(t);
    tg_tape_free(u);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Works ---- */

static int waited, freed;

static tg_status late_wait(tg_ctx *ctx, void *self) {
    (void)ctx;
    waited++;
    return *(tg_status *)self;
}

static void late_free(void *self) {
    (void)self;
    freed++;
}

static const tg_work_ops late = {.size = sizeof(tg_work_ops), .name = "late", .wait = late_wait, .free = late_free};

/* Starts a work that reads src and fills dst. */
static void start_work(tg_ctx *ctx, tg_tensor *dst, tg_tensor *src, tg_status *result) {
    tg_work *w = tg_work_new(ctx, &late, result);
    if (src) tg_work_reads(w, src->storage);
    tg_work_fills(w, dst->storage);
}

START_TEST(works_of_the_holder_before_are_waited_for) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *dst = tg_zeros(ctx, TG_F32, TG_SHAPE(8)), *other = tg_zeros(ctx, TG_F32, TG_SHAPE(8));
    tg_status good = TG_OK, bad = TG_ERR_REMOTE;
    waited = freed = 0;
    tg_tensor *x = lease_floats(t, 8), *elsewhere = tg_lease(t, "else", TG_F32, TG_SHAPE(8));
    start_work(ctx, other, elsewhere, &good);
    start_work(ctx, dst, x, &good);
    tg_discard(x);
    ck_assert_int_eq(waited, 0); /* it still reads */
    tg_tensor *y = lease_floats(t, 8);
    ck_assert(tg_is_alive(y) && waited == 1 && freed == 1);
    ck_assert(tg_storage_state_of(dst) == TG_PRESENT && tg_storage_state_of(other) == TG_IN_FLIGHT);
    start_work(ctx, y, NULL, &good); /* fills the buffer */
    tg_discard(y);
    ck_assert(tg_is_alive(y = lease_floats(t, 8)) && waited == 2 && freed == 2);
    start_work(ctx, dst, y, &bad);
    tg_discard(y);
    ck_assert(!tg_is_alive(lease_floats(t, 8)));
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_REMOTE);
    tg_ctx_clear(ctx);
    ck_assert(tg_is_alive(lease_floats(t, 8)));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    ck_assert_int_eq(freed, 4);
}
END_TEST

/* A larger lease moves the buffer. A work that still reads the smaller one keeps that until it ends. */
START_TEST(growing_waits_too) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *dst = tg_zeros(ctx, TG_F32, TG_SHAPE(8)), *x = lease_floats(t, 8);
    tg_status good = TG_OK;
    waited = freed = 0;
    start_work(ctx, dst, x, &good);
    tg_discard(x);
    ck_assert(tg_is_alive(lease_floats(t, 80000)) && waited == 1);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Check mode, failures ---- */

/* For memory that may have no owner any more. */
static float at(tg_ctx *ctx, const float *p) {
    float v = 0;
    ck_assert_int_eq(peek(ctx, &v, p, sizeof v), TG_OK);
    return v;
}

START_TEST(check_mode_poisons_returned_buffers) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .check = true));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = lease_floats(t, 8), *dst = tg_zeros(ctx, TG_F32, TG_SHAPE(8));
    const float *p = bytes_of(x);
    ck_assert(isnan(at(ctx, p)));
    tg_ctx_ops(ctx)->fill(ctx, tg_array_of(x), 0);
    tg_discard(x);
    ck_assert(isnan(at(ctx, p)) && isnan(at(ctx, p + 7)));
    x = lease_floats(t, 8);
    tg_ctx_ops(ctx)->fill(ctx, tg_array_of(x), 0);
    tg_status good = TG_OK;
    start_work(ctx, dst, x, &good);
    tg_discard(x);
    ck_assert(at(ctx, p) == 0); /* it is still read */
    x = lease_floats(t, 8);
    ck_assert(bytes_of(x) == p && isnan(at(ctx, p)));
    int64_t ids[2];
    tg_read(tg_lease(t, "ids", TG_I64, TG_SHAPE(2)), ids, sizeof ids);
    ck_assert(ids[0] == -1 && ids[1] == -1);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* A tensor of the buffer that a node has saved stays until its backward has run; a discard with a refill returns the
 * buffer. */
START_TEST(leases_are_ordinary_tensors) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(4), 1), *x = lease_floats(t, 4);
    ctx->run.ops->fill(ctx, tg_array_of(x), 3);
    tg_tensor *loss = tg_sum(t, tg_mul(t, w, x), TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_discard(x), TG_ERR_STATE);
    tg_ctx_clear(ctx);
    tg_backward(t, loss);
    ck_assert_int_eq(tg_storage_state_of(x), TG_DISCARDED);
    double g[4];
    tg_read_f64(tg_grad_of(w), g, 4);
    ck_assert(g[0] == 3 && g[3] == 3);
    ck_assert(tg_is_alive(lease_floats(t, 4)));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(meta_leases_count) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta"));
    tg_tape *t = tg_tape_new(ctx);
    ck_assert(tg_is_alive(lease_floats(t, 1 << 20)));
    ck_assert_int_eq(buffer_bytes(ctx), 4 << 20);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(leases_in_scopes_keep_the_tapes_memory) {
    enum { WARM = 100, LOOPS = 3000 };
    int64_t host = 0;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < LOOPS; i++) {
        tg_scope_open(t, "loop");
        tg_tensor *x = lease_floats(t, 4);
        tg_discard(x);
        tg_release(x);
        tg_scope_close(t, NULL, 0);
        if (i == WARM) host = allocations(ctx);
    }
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    ck_assert_int_eq(allocations(ctx), host);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {the_bytes_come_back_and_only_grow,
                                  names_and_dtypes_are_apart,
                                  an_open_lease_is_not_given_twice,
                                  bytes_that_others_hold_are_not_had_again,
                                  a_recomputation_has_its_own,
                                  another_tape_has_its_own,
                                  works_of_the_holder_before_are_waited_for,
                                  growing_waits_too,
                                  check_mode_poisons_returned_buffers,
                                  leases_are_ordinary_tensors,
                                  meta_leases_count,
                                  leases_in_scopes_keep_the_tapes_memory};
    return tg_check_main("leases", tests, sizeof tests / sizeof *tests);
}
