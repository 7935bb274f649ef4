/* Derivatives of derivatives: trains with a gradient penalty, and takes a Newton step that conjugate gradients compute
 * with Hessian-vector products. */
#include <math.h>
#include <stdio.h>

#include <tapegrad/derivatives.h>
#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

enum { ROWS = 64, WIDTH = 8, STEPS = 100 };

/* Computes the output [rows, 1] of the network for x [rows, 8]. */
static tg_tensor *net(tg_tape *t, tg_tensor *x, tg_tensor *const *p) {
    return tg_linear(t, tg_tanh(t, tg_linear(t, x, p[0], p[1])), p[2], p[3]);
}

/* Computes the mean over rows of (|d net / d x| - 1)^2, which backward can differentiate again. */
static tg_tensor *penalty(tg_tape *t, tg_tensor *x, tg_tensor *const *p) {
    tg_tensor *in = tg_tape_input(t, x);
    tg_set_requires_grad(in, true);
    tg_tensor *total = tg_sum(t, net(t, in, p), TG_ALL_DIMS, false), *g;
    tg_grad(t, &total, 1, &in, 1, &g, TG_GRAD(.create_graph = true));
    tg_tensor *norm = tg_sqrt(t, tg_add_scalar(t, tg_sum(t, tg_square(t, g), TG_DIMS(1), false), 1e-12));
    return tg_mean(t, tg_square(t, tg_add_scalar(t, norm, -1)), TG_ALL_DIMS, false);
}

static double dot(tg_tape *t, tg_tensor *a, tg_tensor *b) {
    return tg_item(tg_sum(t, tg_mul(t, a, b), TG_ALL_DIMS, false));
}

/* Returns the solution d of H d = -g, where g is the gradient and H the Hessian of loss at w. Takes conjugate-gradient
 * steps. */
static tg_tensor *newton(tg_tape *t, tg_tensor *loss, tg_tensor *w) {
    tg_tensor *g;
    tg_grad(t, &loss, 1, &w, 1, &g, TG_GRAD(.retain = true));
    bool grad = tg_tape_set_grad_mode(t, false);
    tg_tensor *d = tg_scale(t, g, 0), *r = tg_neg(t, g), *p = r;
    double rr = dot(t, r, r);
    for (int i = 0; i < 64 && rr > 1e-20; i++) {
        tg_tensor *hp;
        tg_hvp(t, loss, &w, 1, &p, &hp);
        double a = rr / dot(t, p, hp);
        d = tg_add(t, d, tg_scale(t, p, a));
        r = tg_sub(t, r, tg_scale(t, hp, a));
        double next = dot(t, r, r);
        p = tg_add(t, r, tg_scale(t, p, next / rr));
        rr = next;
    }
    tg_tape_set_grad_mode(t, grad);
    return d;
}

int main(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1, .dtype = TG_F64));
    tg_tensor *x = tg_randn(ctx, TG_F64, TG_SHAPE(ROWS, WIDTH), 1.0),
              *y = tg_randn(ctx, TG_F64, TG_SHAPE(ROWS, 1), 1.0);
    tg_tensor *p[] = {tg_param_new(ctx, "fc1.weight", TG_F64, TG_SHAPE(16, 8), 0.35),
                      tg_param_new(ctx, "fc1.bias", TG_F64, TG_SHAPE(16), 0),
                      tg_param_new(ctx, "fc2.weight", TG_F64, TG_SHAPE(1, 16), 0.25),
                      tg_param_new(ctx, "fc2.bias", TG_F64, TG_SHAPE(1), 0)};
    tg_optim *opt = tg_adamw_new(ctx, p, 4, TG_ADAMW(.lr = 1e-2));
    tg_tape *t = tg_tape_new(ctx);
    for (int step = 0; step < STEPS; step++) {
        tg_tensor *loss = tg_add(t, tg_mse(t, net(t, x, p), y), tg_scale(t, penalty(t, x, p), 0.1));
        tg_backward(t, loss);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        if (step % 20 == 0) printf("%4d  %.6f\n", step, tg_item(loss));
        tg_tape_reset(t);
    }

    /* As a function of the last weight the loss is quadratic, so its gradient is zero after one Newton step. */
    tg_tensor *d = newton(t, tg_mse(t, net(t, x, p), y), p[2]), *moved = tg_keep(tg_add(t, p[2], d)), *g;
    tg_tape_reset(t);
    tg_set_requires_grad(moved, true);
    tg_tensor *q[] = {p[0], p[1], moved, p[3]};
    tg_tensor *loss = tg_mse(t, net(t, x, q), y);
    tg_grad(t, &loss, 1, &moved, 1, &g, NULL);
    double rest = sqrt(dot(t, g, g));
    printf("gradient after the Newton step: %.2g\n", rest);

    tg_status status = tg_ctx_status(ctx);
    if (status != TG_OK) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_optim_free(opt);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return status != TG_OK || !(rest < 1e-6);
}
