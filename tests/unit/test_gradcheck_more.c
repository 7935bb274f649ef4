/* Gradient checking beyond backward's numbers: what the tolerance hides, and derivatives as taped ops. */
#include "world.h"

#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/gradcheck.h>

#define ck_in(text, in) ck_assert_msg(strstr((in), (text)), "\"%s\" in: %s", (text), (in))
#define LEN(a) (int)(sizeof(a) / sizeof(*(a)))

/* ---- Gradients that the tolerance covers ---- */

static tg_status tiny(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = tg_scale(tape, tg_square(tape, in[0]), *(const double *)state);
    return TG_OK;
}

START_TEST(what_lies_below_atol_is_said) {
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(3), (const double[]){1, 2, 3});
    tg_gradcheck_result r;
    double by = 1e-9;
    ck_assert(tg_gradcheck(t, tiny, &by, &x, 1, 1, TG_GRADCHECK(.name = "tiny"), &r) == TG_OK);
    ck_assert_msg(r.faint && strstr(r.report, "tiny: no gradient reaches atol, 1e-05"), "%s", r.report);
    ck_assert(tg_gradcheck(t, tiny, &by, &x, 1, 1, TG_GRADCHECK(.atol = 1e-12), &r) == TG_OK);
    ck_assert_msg(!r.faint && !*r.report, "%s", r.report);
    ck_assert(tg_gradcheck(t, tiny, &by, &x, 1, 1, TG_GRADCHECK(.atol = TG_NONE), &r) == TG_OK && !r.faint);
    by = 1;
    ck_assert(tg_gradcheck(t, tiny, &by, &x, 1, 1, NULL, &r) == TG_OK && !r.faint && !*r.report);
    end();
}
END_TEST

/* ---- Derivatives as taped ops ---- */

/* x^2, by the host. */
typedef enum taped_fault { TAPED_RIGHT, VJP_FACTOR, VJP_CUT, JVP_SIGN, NO_JVP } taped_fault;

static tg_status own_infer(tg_call *c) {
    tg_shape s = tg_shape_of(c->in[0]);
    return tg_call_out(c, 0, TG_F64, (int)s.ndim, s.dim);
}

static tg_status own_forward(tg_call *c) {
    reached r = {.ctx = c->ctx};
    const double *x = reach(&r, c->in[0]);
    double *y = reach(&r, c->out[0]);
    for (int64_t i = 0; i < tg_numel(c->in[0]); i++) y[i] = x[i] * x[i];
    return release(&r);
}

static tg_status own_backward(tg_call *c) {
    reached r = {.ctx = c->ctx};
    const double *x = reach(&r, c->in[0]), *g = reach(&r, c->gout[0]);
    double *to = reach(&r, c->gin[0]);
    int64_t step = tg_ndim(c->gout[0]) ? tg_stride(c->gout[0], 0) : 0;
    for (int64_t i = 0; i < tg_numel(c->in[0]); i++)
        to[i] = 2 * x[i] * g[i * step] + (c->gin_mode[0] == TG_GRAD_ADD ? to[i] : 0);
    return release(&r);
}

static taped_fault fault_of(const tg_node *n) { return *(const taped_fault *)tg_node_params(n); }

/* Cut, the first derivative is right and the second is not. */
static tg_status own_vjp(tg_tape *tape, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *x = tg_node_input(n, 0);
    if (fault_of(n) == VJP_CUT) x = tg_detach(tape, x);
    gin[0] = tg_scale(tape, tg_mul(tape, gout[0], x), fault_of(n) == VJP_FACTOR ? 2.01 : 2);
    return TG_OK;
}

static tg_status own_jvp(tg_tape *tape, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    dout[0] = tg_scale(tape, tg_mul(tape, din[0], tg_node_input(n, 0)), fault_of(n) == JVP_SIGN ? -2 : 2);
    return TG_OK;
}

static tg_status own(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    static const tg_op op = {.size = sizeof op, .name = "own", .n_in = 1, .n_out = 1, .saves_in = 1,
                             .params_size = sizeof(taped_fault), .infer = own_infer, .forward = own_forward,
                             .backward = own_backward, .vjp = own_vjp, .jvp = own_jvp};
    static const tg_op without = {.size = sizeof op, .name = "own", .n_in = 1, .n_out = 1, .saves_in = 1,
                                  .params_size = sizeof(taped_fault), .infer = own_infer, .forward = own_forward,
                                  .backward = own_backward, .vjp = own_vjp};
    return tg_apply(tape, *(taped_fault *)state == NO_JVP ? &without : &op, state, in, n_in, out, n_out, NULL, NULL,
                    TG_SITE);
}

START_TEST(taped_derivatives_are_checked) {
    static const struct {
        taped_fault fault;
        tg_status status;
        const char *cause, *says;
    } rows[] = {
        {TAPED_RIGHT, TG_OK, "", ""},
        {VJP_FACTOR, TG_ERR_GRADIENT, "taped", "input 0, f64[3], element [0]: tg_grad with .create_graph (vjp) gives"},
        {VJP_CUT, TG_ERR_GRADIENT, "zero", "own: its gradient"},
        {JVP_SIGN, TG_ERR_GRADIENT, "taped", "tg_jvp along a random direction gives"},
        {NO_JVP, TG_ERR_UNSUPPORTED, "", "has no forward derivative"},
    };
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(3), (const double[]){1, -2, 3});
    tg_gradcheck_result r;
    for (int i = 0; i < LEN(rows); i++) {
        taped_fault fault = rows[i].fault;
        ck_assert_msg(tg_gradcheck(t, own, &fault, &x, 1, 1, TG_GRADCHECK(.name = "own"), &r) == TG_OK, "%s", r.report);
        tg_status s = tg_gradcheck(t, own, &fault, &x, 1, 1, TG_GRADCHECK(.name = "own", .taped = true), &r);
        ck_assert_msg(s == rows[i].status && r.failed == (s == TG_ERR_GRADIENT), "%d: %s, %s", i, tg_status_name(s),
                      tg_ctx_message(ctx));
        ck_in(rows[i].says, tg_ctx_message(ctx));
        ck_assert_msg(!r.failed || !strcmp(r.cause, rows[i].cause), "%d: %s, %s", i, r.cause, r.report);
        tg_ctx_clear(ctx);
    }
    for (int i = 0; i < tg_op_count(); i++) { /* of the table's own, one sample each */
        const tg_op *op = tg_op_at(i);
        if (strcmp(op->name, "matmul") && strcmp(op->name, "softmax") && strcmp(op->name, "sum") &&
            strcmp(op->name, "layer_norm") && strcmp(op->name, "dropout") && strcmp(op->name, "mul"))
            continue;
        ck_assert_msg(tg_gradcheck_op(ctx, op, 0, TG_GRADCHECK(.taped = true), &r) == TG_OK, "%s: %s", op->name,
                      tg_ctx_message(ctx));
    }
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {what_lies_below_atol_is_said, taped_derivatives_are_checked};
    return tg_check_main("gradcheck_more", tests, sizeof tests / sizeof *tests);
}
