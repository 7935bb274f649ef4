/* User-defined ops: typed parameters, and a state whose destructor runs exactly once, whatever happens to the call. */
#include "world.h"
#include "probe.h"

#include <stdlib.h>
#include <string.h>

#include <tapegrad/gradcheck.h>

/* ---- Params ---- */

START_TEST(params_are_typed_and_copied) {
    begin();
    tg_tensor *a = tg_param_new(ctx, "a", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1),
              *b = tg_param_new(ctx, "b", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1), *out[2];
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
    ck_assert(!tg_is_alive(out[0]) && !tg_is_alive(out[1]));
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- State ---- */

/* y = x times the number of calls so far, forward and backward, which the state counts. */
typedef struct counter {
    int calls, destroyed;
    tg_status infer, forward, backward; /* statuses that they return */
} counter;

static tg_status counted_infer(tg_call *c) {
    counter *s = c->state;
    if (s->infer != TG_OK) return s->infer;
    tg_shape shape = tg_shape_of(c->input[0]);
    return tg_call_out(c, 0, TG_F64, (int)shape.ndim, shape.dim);
}

static tg_status counted_forward(tg_call *c) {
    counter *s = c->state;
    if (s->forward != TG_OK) return s->forward;
    s->calls++;
    reached r = {.ctx = c->ctx};
    for (int64_t i = 0; i < tg_numel(c->input[0]); i++) reach(&r, c->out[0])[i] = reach(&r, c->input[0])[i] * s->calls;
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
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1);
    counter first = {0}, second = {0}, third = {0};
    tg_tensor *y = counted(t, x, &first);
    tg_tensor *loss = tg_sum(t, counted(t, y, &second), TG_ALL_DIMS, false);
    tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
    tg_backward(t, loss); /* frees what ops have saved, but not a state */
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
    counted(t, tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1), &s);
    ck_assert(s.destroyed == 0);
    tg_ctx_free(ctx); /* frees its tape too */
    ck_assert(s.destroyed == 1);
}
END_TEST

START_TEST(without_a_node_a_state_ends_with_the_call) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1),
              *data = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(3), 1);
    counter no_gradient = {0}, no_grad_mode = {0}, no_tape = {0}, failed_before = {0};
    counted(t, data, &no_gradient);
    ck_assert(no_gradient.calls == 1 && no_gradient.destroyed == 1);
    tg_tape_set_grad_mode(t, false);
    counted(t, x, &no_grad_mode);
    ck_assert(no_grad_mode.calls == 1 && no_grad_mode.destroyed == 1);
    tg_tape_set_grad_mode(t, true);
    tg_tensor *y;
    ck_assert(tg_apply(NULL, &counted_op, NULL, &x, 1, &y, 1, &no_tape, destroy, TG_SITE) == TG_ERR_ARGUMENT);
    ck_assert(no_tape.destroyed == 1);
    tg_ctx_fail(ctx, TG_ERR_DATA, "an earlier error");
    ck_assert(!tg_is_alive(counted(t, x, &failed_before)) && failed_before.calls == 0 && failed_before.destroyed == 1);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    ck_assert(no_gradient.destroyed == 1 && no_grad_mode.destroyed == 1 && failed_before.destroyed == 1);
    end();
}
END_TEST

START_TEST(a_failed_call_ends_its_state_once) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1);
    counter infer = {.infer = TG_ERR_SHAPE}, forward = {.forward = TG_ERR_DATA},
            backward = {.backward = TG_ERR_UNSUPPORTED};
    ck_assert(!tg_is_alive(counted(t, x, &infer)) && infer.destroyed == 1);
    ck_status(TG_ERR_SHAPE);
    ck_says("counted");
    tg_ctx_clear(ctx);
    ck_assert(!tg_is_alive(counted(t, x, &forward)) && forward.destroyed == 1);
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

/* ---- Required members of an op table ---- */

START_TEST(ops_without_parts_are_refused) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1), *out;
    tg_op small = counted_op, nameless = counted_op, shapeless = counted_op, forward_only = counted_op;
    small.size = 8;
    nameless.name = NULL;
    shapeless.infer = NULL;
    const tg_op *ops[] = {&small, &nameless, &shapeless};
    for (int i = 0; i < 3; i++, tg_ctx_clear(ctx)) {
        counter s = {0};
        ck_assert(tg_apply(t, ops[i], NULL, &x, 1, &out, 1, &s, destroy, TG_SITE) == TG_ERR_ARGUMENT);
        ck_assert(!tg_is_alive(out) && s.destroyed == 1);
    }
    /* Without a backward the op runs, and its result requires no gradient. */
    forward_only.backward = NULL;
    counter s = {0};
    ck_assert(tg_apply(t, &forward_only, NULL, &x, 1, &out, 1, &s, destroy, TG_SITE) == TG_OK);
    ck_assert(!tg_requires_grad(out) && s.destroyed == 1);
    end();
}
END_TEST

/* ---- Outputs ---- */

static tg_status replaces(tg_call *c) {
    counter *s = c->state;
    c->out[0] = s->calls == 0 ? c->input[0] : s->calls == 1 ? NULL : tg_neg(c->tape, c->input[0]);
    return TG_OK;
}

static tg_status takes_input(tg_call *c) {
    c->out[0] = c->input[0];
    return TG_OK;
}

START_TEST(outputs_are_those_that_infer_makes_and_forward_fills) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1), *out;
    tg_op empty = counted_op, swaps = counted_op, hands = counted_op;
    empty.forward = NULL;
    counter s = {0};
    ck_assert(tg_apply(t, &empty, NULL, &x, 1, &out, 1, &s, destroy, TG_SITE) == TG_ERR_ARGUMENT);
    ck_says("counted: infer makes output 0, and there is no forward to fill it");
    ck_assert(!tg_is_alive(out) && s.destroyed == 1);
    tg_ctx_clear(ctx);
    swaps.forward = replaces;
    const char *const says[] = {"forward put an input in the place of output 0", "forward put NULL",
                                "forward put another tensor in the place of output 0"};
    for (int i = 0; i < 3; i++) {
        s = (counter){.calls = i};
        ck_assert(tg_apply(t, &swaps, NULL, &x, 1, &out, 1, &s, destroy, TG_SITE) == TG_ERR_ARGUMENT);
        ck_says(says[i]);
        ck_assert(!tg_is_alive(out) && tg_is_alive(x) && s.destroyed == 1);
        tg_ctx_clear(ctx);
    }
    hands.infer = takes_input;
    ck_assert(tg_apply(t, &hands, NULL, &x, 1, &out, 1, &s, NULL, TG_SITE) == TG_ERR_ARGUMENT);
    ck_says("infer put an input in the place of output 0");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

static tg_status hides_infer(tg_call *c) {
    tg_shape s = tg_shape_of(c->input[0]);
    const int64_t stride[] = {1};
    tg_call_view(c, 0, 0, (int)s.ndim, s.dim, stride);
    tg_call_fail(c, TG_ERR_DATA, "hidden");
    return TG_OK;
}

static tg_status hides_compose(tg_tape *tape, const void *params, tg_tensor *const *in, tg_tensor **out,
                               const void *site) {
    (void)params, (void)site;
    out[0] = tg_neg(tape, in[0]);
    tg_ctx_fail(tg_tape_ctx(tape), TG_ERR_DATA, "%s", "hidden");
    return TG_OK;
}

START_TEST(recorded_errors_are_returned) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1), *out;
    const tg_op ops[] = {
        {.size = sizeof(tg_op), .name = "view", .n_in = 1, .n_out = 1, .infer = hides_infer},
        {.size = sizeof(tg_op), .name = "composed", .n_in = 1, .n_out = 1, .compose = hides_compose},
    };
    for (int i = 0; i < 2; i++) {
        ck_assert(tg_apply(t, &ops[i], NULL, &x, 1, &out, 1, NULL, NULL, TG_SITE) == TG_ERR_DATA);
        ck_says("hidden");
        ck_assert(!tg_is_alive(out) && tg_tape_nodes(t) == 0);
        tg_ctx_clear(ctx);
    }
    end();
}
END_TEST

static tg_status nothing(tg_call *c) {
    (void)c;
    return TG_OK;
}

START_TEST(an_op_without_outputs_has_no_node) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1);
    const tg_op sink = {.size = sizeof sink, .name = "sink", .n_in = 1, .infer = nothing, .forward = nothing,
                        .backward = nothing};
    counter s = {0};
    ck_assert(tg_apply(t, &sink, NULL, &x, 1, NULL, 0, &s, destroy, TG_SITE) == TG_OK);
    ck_assert(tg_tape_nodes(t) == 0 && s.destroyed == 1);
    end();
}
END_TEST

/* ---- Freeing from a callback ---- */

typedef enum deed { RESET, FREE, FREE_CTX } deed;

static void end_it(tg_tape *tape, deed d) {
    if (d == RESET) tg_tape_reset(tape);
    if (d == FREE) tg_tape_free(tape);
    if (d == FREE_CTX) tg_ctx_free(ctx);
}

static const char *const end_says[] = {"tg_tape_reset: ", "tg_tape_free: ", "tg_ctx_free: "};

static tg_status tiny_infer(tg_call *c) {
    tg_shape s = tg_shape_of(c->input[0]);
    return tg_call_out(c, 0, tg_dtype_of(c->input[0]), (int)s.ndim, s.dim);
}

static tg_status ends_infer(tg_call *c) {
    end_it(c->tape, *(deed *)c->state);
    return tiny_infer(c);
}

static tg_status ends_forward(tg_call *c) {
    end_it(c->tape, *(deed *)c->state);
    return TG_OK;
}

static tg_status ends_jvp(tg_tape *tape, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    end_it(tape, *(const deed *)tg_node_params(n));
    dout[0] = din[0];
    return TG_OK;
}

/* On the tape that it gets, or on the outer one. */
static tg_status ends_inner(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    end_it(tape, *(deed *)state);
    out[0] = tg_square(tape, in[0]);
    return TG_OK;
}

static tg_status ends_outer(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    end_it(t, *(deed *)state);
    out[0] = tg_square(tape, in[0]);
    return TG_OK;
}

static void ends_state(void *state) { end_it(t, *(deed *)state); }

static tg_status ends_refill(void *user, tg_ctx *c, void *dst, size_t bytes) {
    static const double zero[3];
    end_it(t, *(deed *)user);
    return bytes == sizeof zero ? poke(c, dst, zero, bytes) : TG_ERR_SHAPE;
}

static tg_status filled(void *user, tg_ctx *c, void *dst, size_t bytes) {
    static const double zero[3];
    (void)user;
    return bytes == sizeof zero ? poke(c, dst, zero, bytes) : TG_ERR_SHAPE;
}

static void ck_held(deed d) {
    ck_status(TG_ERR_STATE);
    ck_says(end_says[d]);
    ck_says("has not returned");
    tg_ctx_clear(ctx);
}

static tg_status fails_on_purpose(tg_call *c) { return tg_call_fail(c, TG_ERR_DATA, "on purpose"); }

static tg_status only_square(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_square(tape, in[0]);
    return TG_OK;
}

static tg_status fails_in_recompute(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out,
                                    int n_out) {
    (void)state, (void)in, (void)n_in, (void)out, (void)n_out;
    return tg_ctx_fail(tg_tape_ctx(tape), TG_ERR_DATA, "on purpose"), TG_ERR_DATA;
}

/* The destructor of a state has ended nothing. The error of the call stays if it has failed. */
static void ck_ends_nothing(deed d, bool failed, uint64_t epoch) {
    ck_assert(tg_tape_epoch(t) == epoch);
    if (!failed) {
        ck_held(d);
        return;
    }
    ck_says("on purpose");
    tg_ctx_clear(ctx);
}

START_TEST(no_function_frees_its_own_tape_or_context) {
    begin();
    for (deed d = RESET; d <= FREE_CTX; d++) {
        double v[3];
        tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1), *out,
                  *one = tg_zeros(ctx, TG_F64, TG_SHAPE(3));
        tg_op op = counted_op, pushes = {.size = sizeof pushes, .name = "pushes", .n_in = 1, .n_out = 1,
                                         .params_size = sizeof d, .infer = tiny_infer, .forward = nothing,
                                         .backward = nothing, .jvp = ends_jvp};
        op.infer = ends_infer;
        op.forward = nothing; /* the state is no counter */
        tg_apply(t, &op, NULL, &x, 1, &out, 1, &d, NULL, TG_SITE);
        ck_held(d);
        op.infer = tiny_infer;
        op.forward = ends_forward;
        tg_apply(t, &op, NULL, &x, 1, &out, 1, &d, NULL, TG_SITE);
        ck_held(d);
        tg_recompute(t, ends_inner, &d, &x, 1, &out, 1, NULL);
        ck_held(d);
        tg_recompute(t, ends_outer, &d, &x, 1, &out, 1, NULL);
        ck_held(d);
        tg_tape_set_grad_mode(t, false);
        tg_recompute(t, ends_inner, &d, &x, 1, &out, 1, NULL);
        tg_tape_set_grad_mode(t, true);
        ck_held(d);
        tg_gradcheck(t, ends_inner, &d, &x, 1, 1, NULL, NULL);
        ck_held(d);
        ck_assert(tg_apply(t, &pushes, &d, &x, 1, &out, 1, NULL, NULL, TG_SITE) == TG_OK);
        tg_tensor *y = out;
        tg_jvp(t, &y, 1, &x, 1, &one, &out);
        ck_held(d);
        if (d == FREE_CTX) {
            tg_tensor *kept = tg_keep(tg_neg(t, one));
            ck_assert(tg_discard_with(kept, ends_refill, NULL, &d) == TG_OK);
            tg_read_f64(kept, v, 3);
            ck_held(d);
            if (test_on_host()) { /* tg_wrap needs a context on the CPU */
                tg_drop(tg_wrap(ctx, TG_F64, TG_SHAPE(3), NULL, v, ends_state, &d));
                ck_held(d);
            }
        }
        out = tg_neg(t, one); /* no node */
        ck_assert(tg_discard_with(out, ends_refill, ends_state, &d) == TG_OK);
        tg_read_f64(out, v, 3); /* refills it */
        ck_held(d);
        tg_release(out); /* ends the state of the refill */
        ck_held(d);
        out = tg_neg(t, one);
        ck_assert(tg_discard_with(out, filled, ends_state, &d) == TG_OK && tg_read_f64(out, v, 3) == TG_OK);
        ck_assert(tg_discard_with(out, filled, ends_state, &d) == TG_OK);
        ck_held(d);
        ck_assert(tg_read_f64(out, v, 3) == TG_OK && tg_discard(out) == TG_OK);
        ck_held(d);
        counter s = {0};
        op = counted_op;
        ck_assert(tg_apply(t, &op, NULL, &x, 1, &out, 1, &s, NULL, TG_SITE) == TG_OK);
        op.infer = tiny_infer;
        op.forward = nothing;
        ck_assert(tg_apply(t, &op, NULL, &x, 1, &out, 1, &d, ends_state, TG_SITE) == TG_OK);
        tg_tape_reset(t); /* ends the state, whose destructor would free the tape */
        ck_held(d);
        tg_tape_reset(t);
        for (int grad = 0; grad < 2; grad++) { /* no node is kept: without a gradient, and because of an error */
            op.forward = grad ? fails_on_purpose : nothing;
            tg_tape_set_grad_mode(t, grad);
            uint64_t epoch = tg_tape_epoch(t);
            tg_apply(t, &op, NULL, &x, 1, &out, 1, &d, ends_state, TG_SITE);
            ck_ends_nothing(d, grad, epoch);
            tg_recompute(t, grad ? fails_in_recompute : only_square, &d, &x, 1, &out, 1,
                         TG_RECOMPUTE(.destroy = ends_state));
            ck_ends_nothing(d, grad, epoch);
            tg_replay *r = tg_replay_open(t);
            tg_replay_run(r, grad ? fails_in_recompute : only_square, &d, &x, 1, &out, 1,
                          TG_RECOMPUTE(.destroy = ends_state));
            ck_ends_nothing(d, grad, epoch);
        }
        tg_tape_reset(t);
    }
    end();
}
END_TEST

/* Its forward consists of other ops, and fails where the state says so. */
static tg_status composed_forward(tg_call *c) {
    ck_assert(!tg_is_grad_on(c->tape) && !tg_tape_set_grad_mode(c->tape, true) && !tg_is_grad_on(c->tape));
    tg_tensor *y = tg_square(c->tape, c->input[0]);
    ck_assert(!tg_node_of(y) && !tg_requires_grad(y));
    double v[4];
    ck_assert(tg_read_f64(y, v, 4) == TG_OK && tg_write_f64(c->out[0], v, 4) == TG_OK);
    return *(const tg_status *)c->state;
}

static tg_status composed_backward(tg_call *c) { return tg_call_pass(c, 0, c->gout[0]); }

START_TEST(forwards_record_no_nodes) {
    begin();
    const tg_op op = {.size = sizeof op, .name = "composed", .n_in = 1, .n_out = 1, .passes = 1, .infer = tiny_infer,
                      .forward = composed_forward, .backward = composed_backward};
    tg_tensor *a = leaf_of(TG_SHAPE(4), (double[]){1, 2, 3, 4}), *out;
    tg_apply(t, &op, NULL, &a, 1, &out, 1, &(tg_status){TG_ERR_DATA}, NULL, TG_SITE);
    ck_status(TG_ERR_DATA);
    tg_ctx_clear(ctx);
    ck_assert_int_eq(tg_tape_nodes(t), 0);
    ck_assert(tg_is_grad_on(t));
    ck_assert(tg_apply(t, &op, NULL, &a, 1, &out, 1, &(tg_status){TG_OK}, NULL, TG_SITE) == TG_OK);
    ck_assert(tg_node_op(tg_node_of(out)) == &op);
    tg_backward(t, tg_sum(t, tg_square(t, out), TG_ALL_DIMS, false));
    double g[4];
    tg_read_f64(tg_grad_of(a), g, 4);
    for (int i = 0; i < 4; i++) ck_assert_double_eq(g[i], 2 * (i + 1) * (i + 1));
    end();
}
END_TEST

/* ---- Derivatives ---- */

/* A jvp slot that starts another derivative of the tape, with which its params say, and ignores the error. */
typedef enum start { TG_JVP, TG_HVP, TG_GRAD_GRAPH, TG_GRAD_PLAIN, TG_BACKWARD, STARTS } start;

static tg_status starts_jvp(tg_tape *tape, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    tg_tensor *x = tg_node_input(n, 0), *y = tg_square(tape, x), *d;
    switch (*(const start *)tg_node_params(n)) {
    case TG_JVP: tg_jvp(tape, &y, 1, &x, 1, din, &d); break;
    case TG_HVP: tg_hvp(tape, y, &x, 1, din, &d); break;
    case TG_GRAD_GRAPH: tg_grad(tape, &y, 1, &x, 1, &d, TG_GRAD(.create_graph = true)); break;
    case TG_GRAD_PLAIN: tg_grad(tape, &y, 1, &x, 1, &d, NULL); break;
    default: tg_backward(tape, y);
    }
    ck_assert(strstr(tg_ctx_message(ctx), "a tg_jvp of this tape is running"));
    ck_status(TG_ERR_STATE);
    tg_ctx_clear(ctx);
    dout[0] = din[0];
    return TG_OK;
}

START_TEST(no_other_derivative_starts_within_a_jvp) {
    const tg_op op = {.size = sizeof op, .name = "starts", .n_in = 1, .n_out = 1, .params_size = sizeof(start),
                      .infer = tiny_infer, .forward = nothing, .backward = nothing, .jvp = starts_jvp};
    begin();
    for (start s = TG_JVP; s < STARTS; s++) {
        double v = 2;
        tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &v), *one = tg_full(t, TG_F64, TG_SHAPE(1), 1), *y, *d;
        tg_set_requires_grad(x, true);
        tg_tensor *square = tg_square(t, x);
        tg_apply(t, &op, &s, &x, 1, &y, 1, NULL, NULL, TG_SITE);
        y = tg_add(t, y, square);
        ck_assert(tg_jvp(t, &y, 1, &x, 1, &one, &d) == TG_OK);
        tg_read_f64(d, &v, 1);
        ck_assert(v == 5); /* the tangents of the nodes that ran before are still there */
        tg_tape_reset(t);
        tg_drop(x);
    }
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {params_are_typed_and_copied,
                            a_state_lives_as_long_as_its_node,
                            a_state_ends_with_the_context,
                            without_a_node_a_state_ends_with_the_call,
                            a_failed_call_ends_its_state_once,
                            ops_without_parts_are_refused,
                            outputs_are_those_that_infer_makes_and_forward_fills,
                            recorded_errors_are_returned,
                            an_op_without_outputs_has_no_node,
                            no_function_frees_its_own_tape_or_context,
                            no_other_derivative_starts_within_a_jvp,
                            forwards_record_no_nodes};
    return tg_check_main("extend", tests, sizeof tests / sizeof *tests);
}
