/* The executor of backward: accumulation, seeds, pruning, hooks, works in flight, versions and in-place ops (promises 5
 * and 10 of docs/design.md). */
#include "world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/tapegrad.h>

#define ck_near(a, b) ck_assert_double_eq_tol(a, b, 1e-12 * (1 + fabs((double)(b))))

typedef struct record {
    int calls;
    double seen, factor;
    tg_status fail;
} record;

static tg_status hook(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)x;
    record *r = user;
    r->calls++;
    r->seen = tg_item(*g);
    if (r->factor != 0) *g = tg_scale(tape, *g, r->factor);
    return r->fail;
}

/* A hook that records an op on g with a gradient. */
static tg_status grad_hook(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    tg_tensor **kept = user, *own = kept ? *kept = tg_keep(*g) : *g;
    bool before = tg_tape_set_grad_mode(tape, true);
    tg_tensor *y = tg_mul(tape, own, x);
    tg_tape_set_grad_mode(tape, before);
    return tg_is_alive(y) ? TG_OK : tg_ctx_status(ctx);
}

START_TEST(a_node_does_not_keep_a_lent_tensor) {
    begin();
    tg_tensor *x = leaf(3), *kept = NULL;
    uint64_t id = tg_on_grad(x, grad_hook, NULL);
    tg_backward(t, tg_square(t, x));
    ck_status(TG_ERR_HANDLE);
    ck_says("input 0 is lent to a hook");
    tg_ctx_clear(ctx);
    tg_remove_hook(x, id);
    tg_zero_grad(x);
    tg_on_grad(x, grad_hook, &kept);
    tg_backward(t, tg_square(t, x));
    ck_near(grad(x), 6);
    tg_drop(kept);
    tg_tape_reset(t);
    end();
}
END_TEST

START_TEST(a_tensor_used_twice_gets_both) {
    begin();
    tg_tensor *x = leaf(3);
    tg_backward(t, tg_mul(t, x, x));
    ck_near(grad(x), 6);
    tg_zero_grad(x);
    tg_tensor *y = tg_add(t, tg_mul(t, x, x), tg_add(t, x, x));
    tg_backward(t, y);
    ck_near(grad(x), 8);
    end();
}
END_TEST

/* Both are views of one gradient, in a layout that must not be added to. */
START_TEST(two_views_of_a_gradient_are_summed) {
    begin();
    const double v[6] = {1, 2, 3, 4, 5, 6}, seed[6] = {1, -2, 3, 5, 7, 11};
    tg_tensor *g = tg_from_host(ctx, TG_F64, TG_SHAPE(3, 2), seed);
    tg_tensor *x = leaf_of(TG_SHAPE(2, 3), v), *y = tg_square(t, x);
    tg_tensor *z = tg_add(t, tg_transpose(t, y, 0, 1), tg_transpose(t, y, 0, 1));
    ck_assert(tg_backward_with(t, &z, 1, TG_BACKWARD(.seeds = &g)) == TG_OK);
    double got[6];
    tg_read_f64(tg_grad_of(x), got, 6);
    for (int i = 0; i < 6; i++) ck_near(got[i], 4 * v[i] * seed[i % 3 * 2 + i / 3]);
    end();
}
END_TEST

START_TEST(backward_twice_doubles) {
    begin();
    tg_tensor *x = leaf(2), *y = tg_exp(t, tg_mul(t, x, x));
    ck_assert(tg_backward_with(t, &y, 1, TG_BACKWARD(.retain = true)) == TG_OK);
    double once = grad(x);
    ck_near(once, 4 * exp(4));
    tg_backward(t, y);
    ck_assert(grad(x) == 2 * once);
    ck_assert(tg_backward(t, y) == TG_ERR_STATE);
    ck_says("retain");
    tg_ctx_clear(ctx);
    tg_tensor *sum = tg_add(t, x, x); /* saves nothing itself */
    ck_assert(tg_backward(t, sum) == TG_OK && tg_backward(t, sum) == TG_ERR_STATE);
    ck_says("op add (called from ");
    ck_says("has run in an earlier backward, which released what the nodes had saved; run that one with .retain");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(roots_seeds_and_chosen_inputs) {
    begin();
    tg_tensor *x = leaf(2), *z = leaf(5);
    tg_tensor *roots[] = {tg_mul(t, x, z), tg_square(t, x)};
    tg_tensor *seed = tg_full(t, TG_F64, TG_SHAPE(), 10), *seeds[] = {NULL, seed};
    tg_backward_with(t, roots, 2, TG_BACKWARD(.seeds = seeds, .retain = true));
    ck_near(grad(x), 5 + 40);
    ck_near(grad(z), 2);
    tg_zero_grad(x);
    tg_zero_grad(z);
    tg_backward_with(t, roots, 2, TG_BACKWARD(.inputs = &z, .n_inputs = 1, .retain = true));
    ck_near(grad(z), 2);
    ck_assert(!tg_has_grad(x));
    tg_tensor *g[2], *in[] = {roots[0], x};
    tg_tensor *sum = tg_add(t, roots[0], roots[1]);
    ck_assert(tg_grad(t, &sum, 1, in, 2, g, NULL) == TG_OK);
    ck_near(tg_item(g[0]), 1);
    ck_near(tg_item(g[1]), 9);
    ck_assert(!tg_has_grad(x)); /* tg_grad accumulates no gradient */
    end();
}
END_TEST

START_TEST(unused_and_unneeded_inputs) {
    begin();
    tg_tensor *x = leaf(2), *u = leaf(1), *y = tg_square(t, x), *g;
    ck_assert(tg_grad(t, &y, 1, &u, 1, &g, TG_GRAD(.retain = true)) == TG_ERR_STATE);
    tg_ctx_clear(ctx);
    tg_grad(t, &y, 1, &u, 1, &g, TG_GRAD(.allow_unused = true, .retain = true));
    ck_assert(tg_item(g) == 0);
    ck_assert(tg_backward(t, tg_detach(t, y)) == TG_ERR_STATE);
    tg_ctx_clear(ctx);
    tg_tape_set_grad_mode(t, false);
    tg_tensor *n = tg_square(t, x);
    tg_tape_set_grad_mode(t, true);
    ck_assert(!tg_requires_grad(n) && !tg_node_of(n));
    end();
}
END_TEST

START_TEST(an_input_given_twice_has_one_gradient) {
    begin();
    enum { MANY = 40 };
    tg_tensor *x = leaf(3), *h = tg_square(t, x), *y = tg_mul(t, h, x), *in[MANY], *g[MANY];
    tg_tensor *const three[] = {x, h, x};
    ck_assert(tg_grad(t, &y, 1, three, 3, g, TG_GRAD(.retain = true)) == TG_OK);
    ck_assert(tg_item(g[0]) == 27 && tg_item(g[1]) == 3 && g[2] == g[0]);
    ck_assert(tg_grad(t, &y, 1, three, 3, g, TG_GRAD(.create_graph = true)) == TG_OK);
    ck_assert(tg_item(g[0]) == 27 && tg_item(g[1]) == 3 && tg_item(g[2]) == 27);
    for (int i = 0; i < MANY; i++) in[i] = i % 3 ? leaf(i) : i ? in[0] : leaf(0); /* more inputs than are searched */
    tg_tensor *sum = in[0];
    for (int i = 0; i < MANY; i++) sum = tg_add(t, sum, tg_scale(t, in[i], i));
    ck_assert(tg_grad(t, &sum, 1, in, MANY, g, TG_GRAD(.retain = true)) == TG_OK);
    for (int i = 0; i < MANY; i++) ck_assert_double_eq(tg_item(g[i]), i % 3 ? i : 1 + 3 * (13 * 14 / 2));
    tg_tensor *unused = leaf(1), *pair[] = {in[1], unused, unused};
    ck_assert(tg_grad(t, &sum, 1, pair, 3, g, TG_GRAD(.retain = true)) == TG_ERR_STATE);
    ck_says("no root depends on input 1");
    tg_ctx_clear(ctx);
    ck_assert(tg_grad(t, &sum, 1, pair, 3, g, TG_GRAD(.allow_unused = true)) == TG_OK);
    ck_assert(tg_item(g[0]) == 1 && tg_item(g[1]) == 0 && tg_item(g[2]) == 0);
    end();
}
END_TEST

START_TEST(dead_branches_do_not_run) {
    begin();
    tg_tensor *x = leaf(2), *w = leaf(3), *dead = tg_exp(t, tg_exp(t, w)), *live = tg_mul(t, x, w);
    record on_dead = {0}, on_live = {0};
    tg_on_grad(tg_node_input(tg_node_of(dead), 0), hook, &on_dead);
    tg_on_grad(live, hook, &on_live);
    tg_tensor *z = tg_add(t, live, dead), *g;
    tg_grad(t, &z, 1, &x, 1, &g, NULL);
    ck_near(tg_item(g), 3);
    ck_assert_int_eq(on_dead.calls, 0);
    ck_assert_int_eq(on_live.calls, 1);
    end();
}
END_TEST

START_TEST(hooks_see_and_replace_complete_gradients) {
    begin();
    tg_tensor *x = leaf(3), *y = tg_square(t, x), *z = tg_add(t, tg_mul(t, y, y), y);
    record on_y = {.factor = 2}, on_x = {0}, after = {0};
    uint64_t hy = tg_on_grad(y, hook, &on_y);
    tg_on_grad(x, hook, &on_x);
    uint64_t ha = tg_on_accumulated(x, hook, &after);
    ck_assert(hy && ha);
    tg_backward_with(t, &z, 1, TG_BACKWARD(.retain = true));
    ck_near(on_y.seen, 2 * 9 + 1);
    ck_near(on_x.seen, 2 * 19 * 6);
    ck_near(grad(x), 228);
    ck_near(after.seen, 228);
    ck_assert_int_eq(after.calls, 1);
    tg_remove_hook(y, hy);
    tg_backward_with(t, &z, 1, TG_BACKWARD(.retain = true));
    ck_near(on_x.seen, 19 * 6);
    ck_near(after.seen, 228 + 114);
    ck_assert_int_eq(on_y.calls, 1);
    after.fail = TG_ERR_DATA;
    ck_assert(tg_backward_with(t, &z, 1, TG_BACKWARD(.retain = true)) == TG_ERR_CALLBACK);
    tg_ctx_clear(ctx);
    ck_assert(tg_remove_hook(x, 12345) == TG_ERR_ARGUMENT);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(accumulated_hook_fires_once_after_the_last_use) {
    begin();
    tg_tensor *w = leaf(2), *x = leaf(3);
    record r = {0};
    tg_on_accumulated(w, hook, &r);
    tg_tensor *y = tg_mul(t, tg_mul(t, tg_mul(t, x, w), w), w);
    tg_backward(t, y);
    ck_assert_int_eq(r.calls, 1);
    ck_near(r.seen, 3 * 3 * 4);
    tg_tape_reset(t);
    tg_backward(t, tg_square(t, x)); /* does not depend on w */
    ck_assert_int_eq(r.calls, 1);
    end();
}
END_TEST

START_TEST(main_grad_takes_the_sum) {
    begin();
    tg_tensor *w = tg_param_new(ctx, "w", TG_BF16, TG_SHAPE(4), 1), *flat = tg_zeros(ctx, TG_F32, TG_SHAPE(4));
    tg_set_main_grad(w, flat);
    for (int i = 0; i < 3; i++) tg_backward(t, tg_sum(t, tg_mul(t, w, w), TG_ALL_DIMS, false));
    double g[4], v[4];
    ck_assert(tg_grad_of(w) == flat);
    tg_read_f64(flat, g, 4);
    tg_read_f64(w, v, 4);
    for (int i = 0; i < 4; i++) ck_near(g[i], 6 * v[i]);
    tg_drop(flat);
    ck_assert(!tg_has_grad(w) && !tg_is_alive(tg_grad_of(w)));
    ck_says("w bf16[4] has no gradient: its main gradient (tg_set_main_grad) was dropped");
    tg_ctx_clear(ctx);
    tg_tensor *wrong = tg_zeros(ctx, TG_BF16, TG_SHAPE(4));
    ck_assert(tg_set_main_grad(w, wrong) == TG_ERR_DTYPE);
    tg_ctx_clear(ctx);
    tg_tensor *m = tg_param_new(ctx, "m", TG_F32, TG_SHAPE(2, 3), 1);
    tg_tensor *turned = tg_keep(tg_transpose(t, tg_zeros(ctx, TG_F32, TG_SHAPE(3, 2)), 0, 1));
    ck_assert(tg_set_main_grad(m, turned) == TG_ERR_STATE && strstr(tg_ctx_message(ctx), "must be contiguous"));
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(writes_to_saved_tensors_are_found) {
    begin();
    tg_tensor *x = leaf(2), *y = tg_scale(t, x, 3), *z = tg_square(t, y);
    tg_tensor *y2 = tg_add_(t, y, tg_full(t, TG_F64, TG_SHAPE(), 1));
    ck_status(TG_OK);
    ck_assert(!tg_is_alive(y) && tg_is_alive(y2));
    tg_neg(t, y);
    ck_status(TG_ERR_HANDLE);
    ck_says("in place");
    tg_ctx_clear(ctx);
    ck_assert(tg_backward(t, z) == TG_ERR_VERSION);
    ck_says("square");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(), 1), *l = tg_square(t, w);
    double v = 4;
    tg_write(w, &v, sizeof v);
    ck_assert(tg_backward(t, l) == TG_ERR_VERSION);
    ck_says("tg_write");
    ck_says("w ");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_tensor *e = tg_exp(t, x), *twice = tg_scale(t, e, 2); /* exp saves its result */
    tg_write(e, &v, sizeof v);
    ck_assert(tg_backward(t, twice) == TG_ERR_VERSION);
    ck_says("exp");
    ck_says("output");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(in_place_ops_follow_their_rules) {
    begin();
    tg_tensor *x = leaf(2), *one = tg_full(t, TG_F64, TG_SHAPE(), 1);
    tg_add_(t, x, one);
    ck_status(TG_ERR_STATE);
    ck_says("leaf");
    tg_ctx_clear(ctx);
    tg_tensor *m = tg_full(t, TG_F64, TG_SHAPE(2, 3), 1), *v = tg_transpose(t, m, 0, 1);
    tg_add_(t, v, one);
    ck_status(TG_ERR_STATE);
    ck_says("view");
    tg_ctx_clear(ctx);
    tg_add_(t, m, one);
    ck_status(TG_ERR_STATE);
    tg_ctx_clear(ctx);
    tg_tensor *y = tg_relu_(t, tg_mul_(t, tg_scale(t, x, 1), x)); /* x * x */
    tg_backward(t, y);
    ck_near(grad(x), 4);
    tg_tensor *buf = tg_zeros(ctx, TG_F64, TG_SHAPE());
    ck_assert(tg_add_(t, buf, one) == buf);
    tg_add_(t, buf, one);
    ck_near(tg_item(buf), 2);
    end();
}
END_TEST

/* ---- A user-defined op whose gradient a delayed work fills ---- */

typedef struct delayed {
    tg_tensor *g;
    double value;
    int polls, waits;
} delayed;

static bool delayed_test(void *self) { return --((delayed *)self)->polls <= 0; }

static tg_status delayed_wait(tg_ctx *c, void *self) {
    delayed *d = self;
    d->waits++;
    return poke(c, d->g, &d->value, sizeof d->value);
}

static const tg_work_ops delayed_ops = {
    .size = sizeof(tg_work_ops), .name = "delayed", .test = delayed_test, .wait = delayed_wait};

static tg_status remote_infer(tg_call *c) { return tg_call_out(c, 0, tg_dtype_of(c->input[0]), 0, NULL); }

static tg_status remote_forward(tg_call *c) {
    reached r = {.ctx = c->ctx};
    *reach(&r, c->out[0]) = *reach(&r, c->input[0]);
    return release(&r);
}

/* The work writes 10 g, which must not be read before it is waited for. */
static tg_status remote_backward(tg_call *c) {
    delayed *d = c->state;
    tg_tensor *g = tg_call_temp(c, TG_F64, 0, NULL);
    const double nothing = NAN;
    peek(c->ctx, &d->value, bytes_of(c->gout[0]), sizeof d->value);
    d->value *= 10;
    d->g = bytes_of(g);
    poke(c->ctx, d->g, &nothing, sizeof nothing);
    return tg_call_in_flight(c, 0, g, tg_work_new(c->ctx, &delayed_ops, d));
}

static const tg_op remote = {.size = sizeof(tg_op),
                             .name = "remote",
                             .n_in = 1,
                             .n_out = 1,
                             .passes = 1,
                             .infer = remote_infer,
                             .forward = remote_forward,
                             .backward = remote_backward};

static tg_tensor *delayed_op(const tg_op *op, tg_tensor *x, delayed *d) {
    tg_tensor *y;
    tg_apply(t, op, NULL, &x, 1, &y, 1, d, NULL, TG_SITE);
    return y;
}

START_TEST(contributions_in_flight_are_waited_for_by_readers) {
    begin();
    tg_tensor *x = leaf(3), *y = tg_square(t, x);
    delayed a = {0}, b = {0};
    tg_tensor *z = tg_add(t, tg_add(t, delayed_op(&remote, y, &a), delayed_op(&remote, y, &b)), tg_exp(t, y));
    tg_backward(t, z);
    ck_near(grad(x), (10 + 10 + exp(9)) * 6);
    ck_assert_int_eq(a.waits, 1);
    ck_assert_int_eq(b.waits, 1);
    tg_tape_reset(t);
    tg_zero_grad(x);
    delayed on_leaf = {0};
    tg_tensor *l = tg_mul(t, delayed_op(&remote, x, &on_leaf), x);
    tg_backward(t, l);
    ck_near(grad(x), 10 * 3 + 3);
    end();
}
END_TEST

/* Its output is ten times the input after it has been waited for. */
static tg_status late_forward(tg_call *c) {
    delayed *d = c->state;
    const double nothing = NAN;
    peek(c->ctx, &d->value, bytes_of(c->input[0]), sizeof d->value);
    d->value *= 10;
    d->g = bytes_of(c->out[0]);
    poke(c->ctx, d->g, &nothing, sizeof nothing);
    return tg_call_out_in_flight(c, d->polls < 0, tg_work_new(c->ctx, &delayed_ops, d));
}

static const tg_op late = {.size = sizeof(tg_op),
                           .name = "late",
                           .n_in = 1,
                           .n_out = 1,
                           .infer = remote_infer,
                           .forward = late_forward,
                           .backward = remote_backward};

START_TEST(outputs_in_flight_are_waited_for_by_readers) {
    begin();
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(), 3);
    delayed a = {0}, b = {0}, refused = {.polls = -1};
    tg_tensor *y = delayed_op(&late, x, &a), *view = tg_view(t, y, TG_SHAPE(1));
    ck_assert_int_eq(a.waits, 0);
    ck_near(tg_item(tg_square(t, view)), 900);
    ck_near(tg_item(y), 30);
    ck_assert_int_eq(a.waits, 1);
    delayed_op(&late, x, &b);
    tg_tape_reset(t); /* nothing has read it */
    ck_assert(b.waits <= 1);
    x = tg_full(t, TG_F64, TG_SHAPE(), 3);
    delayed_op(&late, x, &refused);
    ck_status(TG_ERR_ARGUMENT);
    ck_says("output 1 of 1");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(a_failed_backward_leaves_a_usable_tape) {
    begin();
    tg_tensor *x = leaf(2), *y = tg_square(t, tg_square(t, x));
    record r = {.fail = TG_ERR_DATA};
    uint64_t h = tg_on_grad(x, hook, &r);
    ck_assert(tg_backward(t, y) == TG_ERR_CALLBACK);
    tg_ctx_clear(ctx);
    tg_remove_hook(x, h);
    tg_tape_reset(t);
    tg_zero_grad(x);
    tg_backward(t, tg_square(t, tg_square(t, x)));
    ck_near(grad(x), 32);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_node_does_not_keep_a_lent_tensor,
                            a_tensor_used_twice_gets_both,
                            two_views_of_a_gradient_are_summed,
                            backward_twice_doubles,
                            roots_seeds_and_chosen_inputs,
                            unused_and_unneeded_inputs,
                            an_input_given_twice_has_one_gradient,
                            dead_branches_do_not_run,
                            hooks_see_and_replace_complete_gradients,
                            accumulated_hook_fires_once_after_the_last_use,
                            main_grad_takes_the_sum,
                            writes_to_saved_tensors_are_found,
                            in_place_ops_follow_their_rules,
                            contributions_in_flight_are_waited_for_by_readers,
                            outputs_in_flight_are_waited_for_by_readers,
                            a_failed_backward_leaves_a_usable_tape};
    return tg_check_main("backward", tests, sizeof tests / sizeof *tests);
}
