/* tg_jvp, tg_hvp, and the functions that the vjp and jvp slots of an op call. */
#include "misuse/misuse.h"

#include <tapegrad/explain.h>
#include <tapegrad/backward.h>
#include <tapegrad/derivatives.h>
#include <tapegrad/ops.h>

/* Calls with y = sum(w^2) on a tape of its own, and a tangent or vector for w. */
static bool push(misuse_world *b, tg_tensor *out, tg_tensor *input, int n, tg_tensor *tangent) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = tg_sum(t, tg_square(t, b->w), TG_ALL_DIMS, false), *in[] = {input, input}, *din[] = {tangent, NULL};
    tg_tensor *d = b->x;
    tg_status s = tg_jvp(t, out ? &out : &y, 1, in, n, din, &d);
    bool good = s != TG_OK && misuse_inert(d);
    tg_tape_free(t);
    return good;
}

static bool pushed_after_backward(misuse_world *b) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *z = tg_square(t, b->w), *y = tg_sum(t, tg_mul(t, z, z), TG_ALL_DIMS, false), *d = b->x, *g;
    tg_grad(t, &y, 1, &b->w, 1, &g, NULL);
    tg_status s = tg_jvp(t, &y, 1, &b->w, 1, &b->x, &d);
    bool good = s != TG_OK && misuse_inert(d);
    tg_tape_free(t);
    return good;
}

static bool product(misuse_world *b, tg_tensor *input, int n, tg_tensor *v) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = tg_sum(t, tg_square(t, b->w), TG_ALL_DIMS, false), *in[] = {input, input}, *by[] = {v, NULL};
    tg_tensor *hv[] = {b->x, b->x};
    tg_status s = tg_hvp(t, y, in, n, by, hv);
    bool good = s != TG_OK && (n < 1 || misuse_inert(hv[0]));
    tg_tape_free(t);
    return good;
}

static void forward(misuse_world *b) {
    tg_tensor *d;
    GIVES(tg_jvp, ARGUMENT, "the tape is NULL",
          tg_jvp(NULL, &b->r, 1, &b->w, 1, &b->x, &d) != TG_OK && misuse_inert(d));
    FAILS(tg_jvp, HANDLE, "freed", tg_jvp(b->freed, &b->r, 1, &b->w, 1, &b->x, &d));
    FAILS(tg_jvp, ARGUMENT, "0 outputs", tg_jvp(b->t, &b->r, 0, &b->w, 1, &b->x, &d));
    FAILS(tg_jvp, ARGUMENT, "dout must not be NULL", tg_jvp(b->t, &b->r, 1, &b->w, 1, &b->x, NULL));
    FAILS(tg_jvp, ARGUMENT, "din and dout must not be NULL", tg_jvp(b->t, &b->r, 1, &b->w, 1, NULL, &d));
    GIVES(tg_jvp, ARGUMENT, "0 inputs", push(b, NULL, b->w, 0, b->x));
    GIVES(tg_jvp, ARGUMENT, "the same tensor", push(b, NULL, b->w, 2, b->x));
    GIVES(tg_jvp, STATE, "does not need a gradient", push(b, NULL, b->x, 1, b->x));
    GIVES(tg_jvp, SHAPE, "tangent 0 is f32[3], expected the input's shape and dtype, w f32[2, 3]",
          push(b, NULL, b->w, 1, b->v));
    GIVES(tg_jvp, HANDLE, "output 0 is a result of another tape", push(b, b->r, b->w, 1, b->x));
    GIVES(tg_jvp, HANDLE, "another context", push(b, NULL, b->foreign, 1, b->x));
    GIVES(tg_jvp, STATE, "retain", pushed_after_backward(b));
    EACH_DEAD(x) GIVES(tg_jvp, HANDLE, "the tensor", push(b, NULL, x, 1, b->x));
    EACH_DEAD(x) GIVES(tg_jvp, HANDLE, "the tensor", push(b, NULL, b->w, 1, x));
    EACH_DEAD(x) GIVES(tg_jvp, HANDLE, "the tensor", push(b, x, b->w, 1, b->x));
    GIVES(tg_hvp, ARGUMENT, "the tape is NULL",
          tg_hvp(NULL, b->r, &b->w, 1, &b->x, &d) != TG_OK && misuse_inert(d));
    FAILS(tg_hvp, SHAPE, "expected one element", tg_hvp(b->t, b->r, &b->w, 1, &b->x, &d));
    FAILS(tg_hvp, ARGUMENT, "the tensor is NULL", tg_hvp(b->t, NULL, &b->w, 1, &b->x, &d));
    FAILS(tg_hvp, ARGUMENT, "v and hv must not be NULL", tg_hvp(b->t, b->r, &b->w, 1, NULL, &d));
    GIVES(tg_hvp, ARGUMENT, "0 inputs", product(b, b->w, 0, b->x));
    GIVES(tg_hvp, ARGUMENT, "the same tensor", product(b, b->w, 2, b->x));
    GIVES(tg_hvp, STATE, "does not need a gradient", product(b, b->x, 1, b->x));
    GIVES(tg_hvp, SHAPE, "tangent 0 is f32[3]", product(b, b->w, 1, b->v));
    EACH_DEAD(x) GIVES(tg_hvp, HANDLE, "the tensor", product(b, x, 1, b->x));
}

/* ---- Slots ---- */

static tg_status compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    out[0] = tg_square(t, tg_node_input(n, 0));
    return TG_OK;
}

static void slots(misuse_world *b) {
    const tg_node *n = tg_node_of(b->r);
    tg_tensor *d = b->x;
    QUIET(tg_node_needs_grad, !tg_node_needs_grad(NULL, 0) && !tg_node_needs_grad(n, -1) && !tg_node_needs_grad(n, 9));
    INERT(tg_sum_to, ARGUMENT, "the tape is NULL", tg_sum_to(NULL, b->x, b->v));
    INERT(tg_sum_to, ARGUMENT, "for the shape", tg_sum_to(b->t, b->x, NULL));
    INERT(tg_sum_to, ARGUMENT, "for the shape", tg_sum_to(b->t, b->x, b->foreign));
    INERT(tg_sum_to, SHAPE, "does not broadcast to that of x", tg_sum_to(b->t, b->v, b->x));
    INERT(tg_sum_to, SHAPE, "does not broadcast to that of x", tg_sum_to(b->t, b->x, b->ids));
    DEAD_TENSOR(tg_sum_to, tg_sum_to(b->t, x, b->v));
    QUIET(tg_vjp_composed, tg_vjp_composed(NULL, n, &b->x, compose) == TG_ERR_ARGUMENT);
    QUIET(tg_vjp_composed, tg_vjp_composed(b->t, n, &b->x, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_vjp_composed, STATE, "outside of a vjp", tg_vjp_composed(b->t, n, &b->x, compose));
    QUIET(tg_jvp_composed, tg_jvp_composed(b->t, NULL, &d, compose) == TG_ERR_ARGUMENT);
    FAILS(tg_jvp_composed, STATE, "outside of a jvp", tg_jvp_composed(b->t, n, &d, compose));
    QUIET(tg_jvp_linear, tg_jvp_linear(b->t, NULL, &b->x, &d) == TG_ERR_ARGUMENT);
    QUIET(tg_jvp_multilinear, tg_jvp_multilinear(b->t, n, NULL, &d) == TG_ERR_ARGUMENT);
    QUIET(tg_jvp_pointwise, tg_jvp_pointwise(b->t, n, &b->x, NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_jvp_by_vjp, tg_jvp_by_vjp(NULL, n, &b->x, &d) == TG_ERR_ARGUMENT);
}

static void explanations(misuse_world *b) {
    char buf[256] = "left";
    GIVES(tg_explain_grad, ARGUMENT, "the tape is NULL", tg_explain_grad(NULL, b->r, b->w, buf, sizeof buf) == 0);
    GIVES(tg_explain_grad, HANDLE, "freed", tg_explain_grad(b->freed, b->r, b->w, buf, sizeof buf) == 0);
    GIVES(tg_explain_grad, ARGUMENT, "the root: the tensor is NULL",
          tg_explain_grad(b->t, NULL, b->w, buf, sizeof buf) == 0);
    GIVES(tg_explain_grad, ARGUMENT, "the tensor is NULL", tg_explain_grad(b->t, b->r, NULL, buf, sizeof buf) == 0);
    GIVES(tg_explain_grad, HANDLE, "another tape", tg_explain_grad(b->other, b->r, b->w, buf, sizeof buf) == 0);
    GIVES(tg_explain_grad, HANDLE, "another context",
          tg_explain_grad(b->t, b->r, b->foreign, buf, sizeof buf) == 0);
    EACH_DEAD(x) GIVES(tg_explain_grad, HANDLE, "the tensor", tg_explain_grad(b->t, b->r, x, buf, sizeof buf) == 0);
    EACH_DEAD(x) GIVES(tg_explain_grad, HANDLE, "the tensor", tg_explain_grad(b->t, x, b->w, buf, sizeof buf) == 0);
}

static tg_status seen(void *user, tg_tape *t, const tg_op_event *s) {
    (void)user, (void)t, (void)s;
    return TG_OK;
}

static void watchers(misuse_world *b) {
    char buf[8] = "left";
    QUIET(tg_tape_find_nan, tg_tape_find_nan(NULL, TG_FIND_NAN) == TG_ERR_ARGUMENT);
    FAILS(tg_tape_find_nan, HANDLE, "freed", tg_tape_find_nan(b->freed, TG_FIND_NAN));
    FAILS(tg_tape_find_nan, ARGUMENT, "kinds 8, expected a sum of", tg_tape_find_nan(b->t, 8));
    FAILS(tg_tape_find_nan, ARGUMENT, "kinds -1", tg_tape_find_nan(b->t, -1));
    QUIET(tg_tape_observe, tg_tape_observe(NULL, seen, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_tape_observe, HANDLE, "freed", tg_tape_observe(b->freed, seen, NULL));
    QUIET(tg_op_event_site, tg_op_event_site(NULL, buf, sizeof buf) == 0 && !*buf);
    QUIET(tg_op_event_site, tg_op_event_site(&(tg_op_event){0}, NULL, 8) == 0);
    QUIET(tg_op_event_node, !tg_op_event_node(NULL) && !tg_op_event_node(&(tg_op_event){0}));
    QUIET(tg_memory_json, tg_memory_json(NULL, buf, sizeof buf) == 0 && !*buf);
    QUIET(tg_memory_json, tg_memory_json(b->ctx, buf, 2) > 2 && !buf[1]);
}

void misuse_derivatives(misuse_world *b) {
    forward(b);
    slots(b);
    explanations(b);
    watchers(b);
}
