/* A perceptron of two layers, trained for 200 steps: the smallest whole program. */
#include <stdio.h>

#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

int main(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cpu", .seed = 1));
    tg_tensor *x = tg_randn(ctx, TG_F32, TG_SHAPE(64, 8), 1.0), *y = tg_randn(ctx, TG_F32, TG_SHAPE(64, 1), 1.0);
    tg_tensor *p[] = {tg_param_new(ctx, "fc1.weight", TG_F32, TG_SHAPE(32, 8), 0.35),
                      tg_param_new(ctx, "fc1.bias", TG_F32, TG_SHAPE(32), 0),
                      tg_param_new(ctx, "fc2.weight", TG_F32, TG_SHAPE(1, 32), 0.18),
                      tg_param_new(ctx, "fc2.bias", TG_F32, TG_SHAPE(1), 0)};
    tg_optim *opt = tg_adamw_new(ctx, p, 4, TG_ADAMW(.lr = 1e-2));
    tg_tape *t = tg_tape_new(ctx);

    for (int step = 0; step < 200; step++) {
        tg_tensor *h = tg_relu(t, tg_linear(t, x, p[0], p[1]));
        tg_tensor *loss = tg_mse(t, tg_linear(t, h, p[2], p[3]), y);
        tg_backward(t, loss);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        if (step % 50 == 0) printf("%4d  %.5f\n", step, tg_item(loss));
        tg_tape_reset(t); /* h, loss and every other temporary are gone */
    }
    int failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx)); /* the one check */
    tg_optim_free(opt);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return failed;
}
