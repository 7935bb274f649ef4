/* Ops of a user's own: typed params, and a state whose destructor runs exactly once, whatever becomes of the call. */
#include "world.h"
#include "probe.h"

#include <stdlib.h>
#include <string.h>


/* ---- Params ---- */

START_TEST(params_are_typed_and_copied) {
    begin();
    tg_tensor *a = tg_param(ctx, "a", TG_SHAPE(2, 3), 1), *b = tg_param(ctx, "b", TG_SHAPE(3), 1), *out[2];
    probe_params p = {.power = 3};
    ck_assert(tg_apply(t, &probe_op, &p, (tg_tensor *[]){a, b}, 2, out, 2, NULL, NULL, TG_SITE) == TG_OK);
    p.power = 7; /* the tape has its own copy */
    const tg_node *node = tg_node_of(out[0]);
    ck_assert(tg_node_op(node) == &probe_op && ((const probe_params *)tg_node_params(node))->power == 3);
    tg_backward(t, tg_sum(t, out[0], TG_ALL_DIMS, false));
    double v[6], g[6];
    tg_read_f64(a, v, 6);
    tg_read_f64(tg_grad_of(a), g, 6);
    for (int i = 0; i < 6; i++) ck_assert_double_eq_tol(g[i], 3 * v[i] * v[i] / 6, 1e-12);
    ck_assert(tg_apply(t, &probe_op, NULL, (tg_tensor *[]){a, b}, 2, out, 2, NULL, NULL, TG_SITE) == TG_ERR_ARGUMENT);
    ck_says("probe: params are NULL, expected 16 bytes");
    ck_assert(!tg_alive(out[0]) && !tg_alive(out[1]));
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- State ---- */

/* y = x times the number of calls so far, forward and backward, which the state counts. */
typedef struct counter {
    int calls, destroyed;
    tg_status infer, forward, backward; /* what they return */
} counter;

static tg_status counted_infer(tg_call *c) {
    counter *s = c->state;
    if (s->infer != TG_OK) return s->infer;
    tg_shape shape = tg_shape_of(c->in[0]);
    return tg_call_out(c, 0, TG_F64, (int)shape.ndim, shape.dim);
}

static tg_status counted_forward(tg_call *c) {
    counter *s = c->state;
    if (s->forward != TG_OK) return s->forward;
    s->calls++;
    reached r = {.ctx = c->ctx};
    for (int64_t i = 0; i < tg_numel(c->in[0]); i++) reach(&r, c->out[0])[i] = reach(&r, c->in[0])[i] * s->calls;
    return release(&r);
}

static tg_status counted_backward(tg_call *c) {
    counter *s = c->state;
    if (s->backward != TG_OK) return s->backward;
    s->calls++;
    return tg_call_pass(c, 0, c->gout[0]);
}

static const tg_op counted_op = {
    .size = sizeof(tg_op),
    .name = "counted",
    .n_in = 1,
    .n_out = 1,
    .passes = 1,
    .infer = counted_infer,
    .forward = counted_forward,
    .backward = counted_backward,
};

static void destroy(void *state) { ((counter *)state)->destroyed++; }

static tg_tensor *counted(tg_tape *tape, tg_tensor *x, counter *s) {
    tg_tensor *y;
    tg_apply(tape, &counted_op, NULL, &x, 1, &y, 1, s, destroy, TG_SITE);
    return y;
}

START_TEST(a_state_lives_as_long_as_its_node) {
    begin();
    tg_tensor *x = tg_param(ctx, "x", TG_SHAPE(3), 1);
    counter first = {0}, second = {0}, third = {0};
    tg_tensor *y = counted(t, x, &first);
    tg_tensor *loss = tg_sum(t, counted(t, y, &second), TG_ALL_DIMS, false);
    tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
    tg_backward(t, loss); /* consumes what ops have saved, not a state */
    ck_assert(first.calls == 3 && first.destroyed == 0 && second.calls == 3 && second.destroyed == 0);
    tg_tape_reset(t);
    ck_assert(first.destroyed == 1 && second.destroyed == 1);
    tg_tape_reset(t);
    counted(t, x, &third);
    tg_tape_free(t);
    ck_assert(first.destroyed == 1 && second.destroyed == 1 && third.destroyed == 1);
    t = tg_tape_new(ctx);
    end();
}
END_TEST

START_TEST(a_state_ends_with_the_context) {
    begin();
    counter s = {0};
    counted(t, tg_param(ctx, "x", TG_SHAPE(3), 1), &s);
    ck_assert(s.destroyed == 0);
    tg_ctx_free(ctx); /* and its tape with it */
    ck_assert(s.destroyed == 1);
}
END_TEST

START_TEST(without_a_node_a_state_ends_with_the_call) {
    begin();
    tg_tensor *x = tg_param(ctx, "x", TG_SHAPE(3), 1), *data = tg_randn(ctx, TG_SHAPE(3), 1);
    counter no_gradient = {0}, no_grad_mode = {0}, no_tape = {0}, failed_before = {0};
    counted(t, data, &no_gradient);
    ck_assert(no_gradient.calls == 1 && no_gradient.destroyed == 1);
    tg_set_grad_mode(t, false);
    counted(t, x, &no_grad_mode);
    ck_assert(no_grad_mode.calls == 1 && no_grad_mode.destroyed == 1);
    tg_set_grad_mode(t, true);
    tg_tensor *y;
    ck_assert(tg_apply(NULL, &counted_op, NULL, &x, 1, &y, 1, &no_tape, destroy, TG_SITE) == TG_ERR_ARGUMENT);
    ck_assert(no_tape.destroyed == 1);
    tg_ctx_fail(ctx, TG_ERR_DATA, "an earlier error");
    ck_assert(!tg_alive(counted(t, x, &failed_before)) && failed_before.calls == 0 && failed_before.destroyed == 1);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    ck_assert(no_gradient.destroyed == 1 && no_grad_mode.destroyed == 1 && failed_before.destroyed == 1);
    end();
}
END_TEST

START_TEST(a_failed_call_ends_its_state_once) {
    begin();
    tg_tensor *x = tg_param(ctx, "x", TG_SHAPE(3), 1);
    counter infer = {.infer = TG_ERR_SHAPE}, forward = {.forward = TG_ERR_DATA},
            backward = {.backward = TG_ERR_UNSUPPORTED};
    ck_assert(!tg_alive(counted(t, x, &infer)) && infer.destroyed == 1);
    ck_status(TG_ERR_SHAPE);
    ck_says("counted");
    tg_ctx_clear(ctx);
    ck_assert(!tg_alive(counted(t, x, &forward)) && forward.destroyed == 1);
    ck_status(TG_ERR_DATA);
    tg_ctx_clear(ctx);
    ck_assert(tg_tape_nodes(t) <= 1); /* x, as a leaf */
    tg_backward(t, tg_sum(t, counted(t, x, &backward), TG_ALL_DIMS, false));
    ck_status(TG_ERR_UNSUPPORTED);
    ck_says("counted: backward failed with TG_ERR_UNSUPPORTED");
    ck_assert(backward.destroyed == 0); /* the node is still there */
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    ck_assert(infer.destroyed == 1 && forward.destroyed == 1 && backward.destroyed == 1);
    end();
}
END_TEST

/* ---- What a table entry must have ---- */

START_TEST(ops_without_parts_are_refused) {
    begin();
    tg_tensor *x = tg_param(ctx, "x", TG_SHAPE(3), 1), *out;
    tg_op small = counted_op, nameless = counted_op, shapeless = counted_op, forward_only = counted_op;
    small.size = 8;
    nameless.name = NULL;
    shapeless.infer = NULL;
    const tg_op *ops[] = {&small, &nameless, &shapeless};
    for (int i = 0; i < 3; i++, tg_ctx_clear(ctx)) {
        counter s = {0};
        ck_assert(tg_apply(t, ops[i], NULL, &x, 1, &out, 1, &s, destroy, TG_SITE) == TG_ERR_ARGUMENT);
        ck_assert(!tg_alive(out) && s.destroyed == 1);
    }
    /* Without a backward it runs, and its result needs no gradient. */
    forward_only.backward = NULL;
    counter s = {0};
    ck_assert(tg_apply(t, &forward_only, NULL, &x, 1, &out, 1, &s, destroy, TG_SITE) == TG_OK);
    ck_assert(!tg_requires_grad(out) && s.destroyed == 1);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {params_are_typed_and_copied,       a_state_lives_as_long_as_its_node,
                            a_state_ends_with_the_context,     without_a_node_a_state_ends_with_the_call,
                            a_failed_call_ends_its_state_once, ops_without_parts_are_refused};
    return tg_check_main("extend", tests, sizeof tests / sizeof *tests);
}
