/* Features used together: recomputation with hooks, leaves and scopes; seeds and replaced gradients that are tensors of
 * the tape; gradients of chosen inputs before a whole backward (promises 5 and 10 of docs/design.md). */
#include <math.h>

#include <tapegrad/extend.h>
#include <tapegrad/ops.h>

#include "core/work.h"
#include "world.h"

#define ck_near(a, b) ck_assert_double_eq_tol(a, b, 1e-12 * (1 + fabs((double)(b))))

/* ---- Recomputation ---- */

typedef struct use {
    tg_tensor *w, *unused;
} use;

static tg_status power(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in;
    const use *u = state;
    out[0] = tg_mul(tape, tg_mul(tape, in[0], u->w), u->w);
    if (n_out > 1) out[1] = tg_square(tape, u->unused);
    return TG_OK;
}

static tg_status nested(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    return tg_recompute(tape, power, state, in, n_in, out, n_out, NULL);
}

typedef struct seen {
    int calls;
    double value;
} seen;

static tg_status tenfold(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)x;
    seen *s = user;
    s->calls++;
    s->value = tg_item(*g);
    *g = tg_scale(tape, *g, 10);
    return TG_OK;
}

START_TEST(a_hook_of_a_recomputed_weight_sees_the_whole_gradient_once) {
    begin();
    for (int how = 0; how < 3; how++) {
        tg_tensor *x = leaf(3), *w = leaf(2), *y;
        use u = {w, NULL};
        seen s = {0};
        tg_on_grad(w, tenfold, &s);
        if (how == 0)
            power(&u, t, &x, 1, &y, 1);
        else
            tg_recompute(t, how == 1 ? power : nested, &u, &x, 1, &y, 1, NULL);
        tg_backward(t, tg_add(t, y, tg_scale(t, w, 5))); /* 3 w^2 + 5 w */
        ck_assert_int_eq(s.calls, 1);
        ck_near(s.value, 17);
        ck_near(grad(w), 170);
        ck_near(grad(x), 4);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

/* Computes h^3 as h^2 h, with hooks on h and h^2. */
static tg_status hooked(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    tg_tensor *y = tg_square(tape, in[0]);
    if (!tg_on_grad(in[0], tenfold, state) || !tg_on_grad(y, tenfold, state)) return TG_ERR_STATE;
    out[0] = tg_mul(tape, y, in[0]);
    return TG_OK;
}

static tg_status hooked_within(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    return tg_recompute(tape, hooked, state, in, n_in, out, n_out, NULL);
}

START_TEST(hooks_that_a_recomputed_function_sets_run_in_every_backward) {
    begin();
    for (int how = 0; how < 4; how++) {
        tg_tensor *x = leaf(3), *h = tg_scale(t, x, 1), *y, *g;
        seen s = {0};
        tg_replay *r = how == 3 ? tg_replay_open(t) : NULL;
        if (how == 0) hooked(&s, t, &h, 1, &y, 1);
        if (how == 1) tg_recompute(t, hooked, &s, &h, 1, &y, 1, NULL);
        if (how == 2) tg_recompute(t, hooked_within, &s, &h, 1, &y, 1, NULL);
        if (how == 3) tg_replay_run(r, hooked, &s, &h, 1, &y, 1, NULL), tg_replay_close(r, NULL);
        for (int twice = 1; twice <= 2; twice++) {
            tg_backward_with(t, &y, 1, TG_BACKWARD(.retain = true));
            ck_near(grad(x), twice * 10 * (9 + 20 * 9));
            ck_assert_int_eq(s.calls, 2 * twice);
        }
        for (int twice = 1; twice <= 2; twice++) {
            tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
            ck_near(tg_item(g), 10 * (9 + 20 * 9));
            ck_assert_int_eq(s.calls, 4 + 2 * twice);
        }
        tg_tape_reset(t);
    }
    end();
}
END_TEST

/* Computes 10 x^2 with a tape that the function creates for itself in both runs. */
static tg_status on_own_tape(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    tg_tape *own = tg_tape_new(ctx);
    tg_tensor *x = tg_tape_input(own, in[0]), *y = tg_square(own, x), *g;
    tg_on_grad(y, tenfold, state);
    tg_grad(own, &y, 1, &x, 1, &g, NULL);
    out[0] = tg_scale(tape, in[0], tg_item(g));
    tg_tape_free(own);
    return tg_ctx_status(ctx);
}

START_TEST(a_recomputed_function_may_have_a_tape_with_hooks) {
    begin();
    tg_tensor *x = leaf(3), *y;
    seen s = {0};
    tg_recompute(t, on_own_tape, &s, &x, 1, &y, 1, NULL);
    tg_backward(t, y);
    ck_near(grad(x), 60);
    ck_assert_int_eq(s.calls, 2);
    end();
}
END_TEST

typedef struct misplaced {
    tg_tensor *on; /* NULL: the input */
    bool accumulated;
} misplaced;

static tg_status hook_elsewhere(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out,
                                int n_out) {
    (void)n_in, (void)n_out;
    const misplaced *m = state;
    tg_tensor *on = m->on ? m->on : in[0];
    uint64_t id = m->accumulated ? tg_on_accumulated(on, tenfold, NULL) : tg_on_grad(on, tenfold, NULL);
    out[0] = tg_square(tape, in[0]);
    return id ? TG_OK : tg_ctx_status(ctx);
}

START_TEST(hooks_that_a_second_run_would_set_otherwise_are_refused) {
    begin();
    tg_tensor *x = leaf(3), *h = tg_scale(t, x, 1), *frozen = tg_detach(t, h), *y;
    misplaced on_x = {.on = x}, on_h = {.on = h}, accumulated = {.accumulated = true}, on_input = {0};
    ck_assert(tg_recompute(t, hook_elsewhere, &on_x, &x, 1, &y, 1, NULL) == TG_ERR_STATE);
    ck_says("not made by the recomputed function");
    tg_ctx_clear(ctx);
    ck_assert(tg_recompute(t, hook_elsewhere, &on_h, &h, 1, &y, 1, NULL) == TG_ERR_STATE);
    ck_says("not made by the recomputed function");
    tg_ctx_clear(ctx);
    ck_assert(tg_recompute(t, hook_elsewhere, &accumulated, &x, 1, &y, 1, NULL) == TG_ERR_STATE);
    ck_says("accumulates no gradient");
    tg_ctx_clear(ctx);
    ck_assert(tg_recompute(t, hook_elsewhere, &on_input, &frozen, 1, &y, 1, NULL) == TG_ERR_STATE);
    ck_says("needs no gradient");
    tg_ctx_clear(ctx);
    ck_assert(tg_on_grad(x, tenfold, &(seen){0})); /* outside it is accepted */
    end();
}
END_TEST

static tg_status skip(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)tape, (void)n_in, (void)n_out;
    out[0] = in[0];
    out[1] = state;
    return TG_OK;
}

START_TEST(passed_through_inputs_of_a_recomputation_have_gradients) {
    begin();
    tg_tensor *x = leaf(3), *w = leaf(2), *y[2];
    tg_recompute(t, skip, w, &x, 1, y, 2, NULL);
    tg_backward(t, tg_mul(t, y[0], tg_square(t, y[1])));
    ck_near(grad(x), 4);
    ck_near(grad(w), 12);
    tg_tape_reset(t);
    tg_tensor *g;
    tg_grad(t, &x, 1, &x, 1, &g, NULL); /* a root that is its own input */
    ck_near(tg_item(g), 1);
    end();
}
END_TEST

static tg_status frozen_between(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out,
                                int n_out) {
    (void)state, (void)n_in, (void)n_out;
    bool grad = tg_is_grad_on(tape);
    tg_tape_set_grad_mode(tape, false);
    tg_tensor *factor = tg_square(tape, in[0]);
    tg_tape_set_grad_mode(tape, grad);
    out[0] = tg_mul(tape, factor, in[1]);
    return grad ? TG_OK : TG_ERR_STATE;
}

START_TEST(a_recomputed_function_may_read_the_grad_mode) {
    begin();
    tg_tensor *in[] = {leaf(3), leaf(2)}, *y;
    tg_recompute(t, frozen_between, NULL, in, 2, &y, 1, NULL);
    tg_backward(t, y);
    ck_assert(!tg_has_grad(in[0]) || grad(in[0]) == 0);
    ck_near(grad(in[1]), 9);
    end();
}
END_TEST

static tg_status add_to(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = tg_square(tape, tg_add_(tape, state, in[0]));
    return tg_ctx_status(ctx);
}

/* Refused at once, as without recomputation: nothing has been written yet. */
START_TEST(a_recomputed_function_overwrites_nothing_that_backward_would_refuse) {
    begin();
    double two = 2;
    tg_tensor *w = leaf(5), *x = leaf(3), *buffer = tg_from_host(ctx, TG_F64, TG_SHAPE(), &two), *y;
    tg_tensor *h = tg_scale(t, x, 1), *frozen = tg_detach(t, h);
    ck_assert(tg_recompute(t, add_to, w, &frozen, 1, &y, 1, NULL) == TG_ERR_STATE);
    ck_says("input 0 is a leaf that needs");
    tg_ctx_clear(ctx);
    ck_assert(tg_recompute(t, add_to, buffer, &h, 1, &y, 1, NULL) == TG_ERR_STATE);
    ck_says("with a result that needs a gradient");
    tg_ctx_clear(ctx);
    ck_assert(tg_item(w) == 5 && tg_item(buffer) == 2);
    ck_assert(tg_recompute(t, add_to, buffer, &frozen, 1, &y, 1, NULL) == TG_OK);
    ck_near(tg_item(y), 25);
    end();
}
END_TEST

static tg_status detached_beside(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out,
                                 int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_square(tape, in[0]);
    out[1] = tg_detach(tape, in[0]);
    return TG_OK;
}

static tg_status detached_within(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out,
                                 int n_out) {
    return tg_recompute(tape, detached_beside, state, in, n_in, out, n_out, NULL);
}

START_TEST(a_result_that_needs_no_gradient_is_no_root) {
    begin();
    for (int how = 0; how < 3; how++) {
        tg_tensor *x = leaf(3), *y[2], *g;
        if (how == 0) detached_beside(NULL, t, &x, 1, y, 2);
        if (how > 0) tg_recompute(t, how == 1 ? detached_beside : detached_within, NULL, &x, 1, y, 2, NULL);
        ck_assert(tg_requires_grad(y[0]) && !tg_requires_grad(y[1]));
        ck_assert(tg_backward(t, y[1]) == TG_ERR_STATE);
        ck_says("depends on nothing that needs a gradient");
        tg_ctx_clear(ctx);
        ck_assert(tg_grad(t, &y[1], 1, &x, 1, &g, TG_GRAD(.create_graph = true)) == TG_ERR_STATE);
        ck_says("depends on nothing that needs a gradient");
        tg_ctx_clear(ctx);
        tg_backward(t, y[0]);
        ck_near(grad(x), 6);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

START_TEST(tensors_that_needed_a_gradient_when_recorded_get_one) {
    begin();
    for (int how = 0; how < 4; how++) {
        tg_tensor *x = leaf(3), *w = leaf(2), *y;
        use u = {w, NULL};
        tg_replay *r = how == 3 ? tg_replay_open(t) : NULL;
        if (how == 0) power(&u, t, &x, 1, &y, 1);
        if (how == 1) tg_recompute(t, power, &u, &x, 1, &y, 1, NULL);
        if (how == 2) tg_recompute(t, nested, &u, &x, 1, &y, 1, NULL);
        if (how == 3) tg_replay_run(r, power, &u, &x, 1, &y, 1, NULL), tg_replay_close(r, NULL);
        tg_set_requires_grad(x, false), tg_set_requires_grad(w, false);
        tg_backward(t, y);
        ck_near(grad(x), 4);
        ck_near(grad(w), 12);
        ck_assert(!tg_requires_grad(x) && !tg_requires_grad(w));
        tg_tape_reset(t);
    }
    end();
}
END_TEST

START_TEST(a_weight_that_no_root_used_has_no_gradient) {
    begin();
    tg_tensor *x = leaf(3), *w = leaf(2), *v = leaf(7), *y[2];
    use u = {w, v};
    tg_recompute(t, power, &u, &x, 1, y, 2, NULL);
    tg_backward(t, y[0]);
    ck_near(grad(w), 12);
    ck_assert(!tg_has_grad(v));
    end();
}
END_TEST

static tg_status count_call(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)x, (void)g;
    ++*(int *)user;
    return TG_OK;
}

START_TEST(hooks_of_unused_weights_are_not_called) {
    begin();
    tg_tensor *x = leaf(3), *w = leaf(2), *v = leaf(7), *y[2];
    use u = {w, v};
    int calls = 0;
    tg_backward(t, v); /* an earlier micro-batch has used it */
    tg_on_accumulated(v, count_call, &calls);
    tg_recompute(t, power, &u, &x, 1, y, 2, NULL);
    tg_backward(t, y[0]);
    ck_assert_int_eq(calls, 0);
    ck_near(grad(v), 1);
    end();
}
END_TEST

START_TEST(an_input_may_be_dropped_before_the_second_run) {
    begin();
    tg_tensor *x = leaf(3), *w = leaf(2), *y;
    use u = {w, NULL};
    tg_recompute(t, power, &u, &x, 1, &y, 1, NULL);
    tg_drop(x);
    tg_backward(t, y);
    ck_near(grad(w), 12);
    end();
}
END_TEST

static tg_status as_row(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_reshape(tape, in[0], TG_SHAPE(1, -1));
    return TG_OK;
}

START_TEST(a_scope_takes_only_tensors_made_inside) {
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(2), (double[]){1, 2}), *a = tg_exp(t, x), *y;
    tg_scope_open(t, "inside");
    tg_recompute(t, as_row, NULL, &a, 1, &y, 1, NULL);
    tg_tensor *kept = tg_neg(t, y);
    tg_scope_close(t, &kept, 1);
    ck_assert_int_eq(tg_storage_state_of(a), TG_PRESENT);
    tg_backward(t, tg_sum(t, tg_mul(t, a, a), TG_ALL_DIMS, false));
    end();
}
END_TEST

START_TEST(a_tape_takes_only_its_own_bytes) {
    begin();
    tg_tape *other = tg_tape_new(ctx);
    tg_tensor *x = leaf(1), *h = tg_exp(t, x), *in = tg_tape_input(other, h);
    tg_backward(other, tg_square(other, in));
    ck_assert_int_eq(tg_storage_state_of(h), TG_PRESENT);
    tg_backward(t, tg_square(t, h));
    ck_near(grad(x), 2 * exp(2));
    tg_tape_free(other);
    end();
}
END_TEST

/* ---- Gradients that are tensors of a tape ---- */

static tg_status replace(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)x;
    *g = user;
    return TG_OK;
}

START_TEST(a_gradient_may_be_a_saved_tensor) {
    begin();
    tg_tensor *w = leaf(1), *x = leaf(2), *s = tg_exp(t, w), *y = tg_square(t, x), *z = tg_neg(t, y);
    tg_tensor *roots[] = {z, tg_add(t, s, s)}, *seeds[] = {s, NULL};
    tg_backward_with(t, roots, 2, TG_BACKWARD(.seeds = seeds));
    ck_near(grad(x), -4 * exp(1));
    tg_tape_reset(t);
    tg_zero_grad(x);
    s = tg_exp(t, w), y = tg_square(t, x);
    tg_on_grad(y, replace, s);
    tg_tensor *both[] = {tg_neg(t, y), tg_add(t, s, s)};
    tg_backward_with(t, both, 2, NULL);
    ck_near(grad(x), 4 * exp(1));
    end();
}
END_TEST

static tg_status name_it(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)tape, (void)x;
    tg_status s = tg_set_name(*g, "the gradient");
    tg_drop(*g); /* which the hook must not drop */
    return s;
}

START_TEST(a_hook_may_name_its_gradient) {
    begin();
    tg_tensor *x = leaf(3);
    tg_on_grad(x, name_it, NULL);
    tg_backward(t, tg_square(t, x));
    ck_near(grad(x), 6);
    end();
}
END_TEST

START_TEST(a_gradient_of_one_input_leaves_the_rest_to_a_backward) {
    begin();
    tg_tensor *x = leaf(1), *h = tg_exp(t, x), *l = tg_square(t, h), *g;
    tg_grad(t, &l, 1, &h, 1, &g, NULL);
    ck_near(tg_item(g), 2 * exp(1));
    tg_backward(t, tg_scale(t, h, 3));
    ck_near(grad(x), 3 * exp(1));
    end();
}
END_TEST

/* ---- After errors ---- */

START_TEST(scopes_stay_in_pairs_under_an_error) {
    begin();
    tg_scope_open(t, "outer");
    tg_matmul(t, leaf(1), leaf(1));
    tg_scope_open(t, "inner");
    tg_scope_close(t, NULL, 0);
    tg_ctx_clear(ctx);
    ck_assert_int_eq(tg_scope_close(t, NULL, 0), TG_OK);
    end();
}
END_TEST

static void *take(void *full, size_t bytes, size_t align) {
    return *(bool *)full ? NULL : aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void give(void *full, void *p, size_t bytes) {
    (void)full, (void)bytes;
    free(p);
}

START_TEST(scopes_stay_in_pairs_where_an_open_or_a_close_fails) {
    bool full = false;
    static char name[1 << 17]; /* larger than the tape has memory for */
    memset(name, 'n', sizeof name - 1);
    ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .allocator = {take, give, &full}));
    t = tg_tape_new(ctx);
    tg_tensor *dropped = tg_zeros(ctx, TG_F32, TG_SHAPE(1));
    tg_drop(dropped);
    tg_scope_open(t, "outer");
    tg_scope_open(t, "inner");
    ck_assert_int_eq(tg_scope_close(t, &dropped, 1), TG_ERR_HANDLE);
    tg_ctx_clear(ctx);
    full = true;
    ck_assert_int_eq(tg_scope_open(t, name), TG_ERR_MEMORY);
    full = false;
    tg_ctx_clear(ctx);
    tg_scope_close(t, NULL, 0);
    ck_assert_int_eq(tg_scope_close(t, NULL, 0), TG_OK);
    ck_assert_int_eq(tg_scope_close(t, NULL, 0), TG_ERR_STATE); /* the last one was the outer scope */
    tg_ctx_clear(ctx);
    end();
}
END_TEST

static tg_status refuse(tg_ctx *c, void *self) {
    (void)c, (void)self;
    return TG_ERR_TIMEOUT;
}
static void count_end(void *self) { ++*(int *)self; }

START_TEST(bytes_of_a_failed_work_cannot_be_read) {
    begin();
    static const tg_work_ops ops = {.size = sizeof ops, .name = "slow", .wait = refuse, .free = count_end};
    int ended = 0;
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(3));
    double v[3];
    tg_work_fills(tg_work_new(ctx, &ops, &ended), x->storage);
    ck_assert_int_eq(tg_read_f64(x, v, 3), TG_ERR_TIMEOUT);
    tg_ctx_clear(ctx);
    ck_assert_int_eq(tg_read_f64(x, v, 3), TG_ERR_DISCARDED);
    tg_ctx_clear(ctx);
    ck_assert_int_eq(ended, 1);
    end();
}
END_TEST

static tg_status ones(void *user, tg_ctx *c, void *dst, size_t bytes) {
    const double one[] = {1, 1, 1};
    (void)user;
    return bytes == sizeof one ? poke(c, dst, one, bytes) : TG_ERR_INTERNAL;
}

START_TEST(a_refill_ends_with_a_plain_discard) {
    begin();
    int ended = 0;
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(3));
    double v[3];
    tg_discard_with(x, ones, count_end, &ended);
    ck_assert(tg_read_f64(x, v, 3) == TG_OK && v[2] == 1);
    tg_discard(x);
    ck_assert_int_eq(ended, 1);
    ck_assert_int_eq(tg_read_f64(x, v, 3), TG_ERR_DISCARDED);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(a_refill_ends_when_its_bytes_are_overwritten) {
    begin();
    int ended = 0;
    double v[3];
    tg_tensor *hundred = tg_full(t, TG_F64, TG_SHAPE(3), 100), *kept[2];
    tg_scope_open(t, NULL);
    for (int i = 0; i < 2; i++) {
        kept[i] = tg_full(t, TG_F64, TG_SHAPE(3), 0);
        tg_discard_with(kept[i], ones, count_end, &ended);
        if (i) kept[i] = tg_add_(t, kept[i], hundred);
        ck_assert(tg_read_f64(kept[i], v, 3) == TG_OK && v[2] == (i ? 101 : 1));
    }
    tg_scope_close(t, NULL, 0);
    ck_assert(tg_read_f64(kept[0], v, 3) == TG_OK && v[2] == 1);
    ck_assert_int_eq(tg_read_f64(kept[1], v, 3), TG_ERR_DISCARDED);
    ck_says("tg_scope_close");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    ck_assert_int_eq(ended, 2);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_hook_of_a_recomputed_weight_sees_the_whole_gradient_once,
                            hooks_that_a_recomputed_function_sets_run_in_every_backward,
                            a_recomputed_function_may_have_a_tape_with_hooks,
                            hooks_that_a_second_run_would_set_otherwise_are_refused,
                            passed_through_inputs_of_a_recomputation_have_gradients,
                            a_recomputed_function_may_read_the_grad_mode,
                            a_recomputed_function_overwrites_nothing_that_backward_would_refuse,
                            a_result_that_needs_no_gradient_is_no_root,
                            tensors_that_needed_a_gradient_when_recorded_get_one,
                            a_weight_that_no_root_used_has_no_gradient,
                            hooks_of_unused_weights_are_not_called,
                            an_input_may_be_dropped_before_the_second_run,
                            a_scope_takes_only_tensors_made_inside,
                            a_tape_takes_only_its_own_bytes,
                            a_gradient_may_be_a_saved_tensor,
                            a_hook_may_name_its_gradient,
                            a_gradient_of_one_input_leaves_the_rest_to_a_backward,
                            scopes_stay_in_pairs_under_an_error,
                            scopes_stay_in_pairs_where_an_open_or_a_close_fails,
                            bytes_of_a_failed_work_cannot_be_read,
                            a_refill_ends_with_a_plain_discard,
                            a_refill_ends_when_its_bytes_are_overwritten};
    return tg_check_main("compositions", tests, sizeof tests / sizeof *tests);
}
