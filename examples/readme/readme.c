/* README's program in C. README has the lines from "begin" to "end". */
#include <math.h>
#include <stdio.h>

#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

int main(void) {
    /* begin */
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1));
    tg_tensor *x = tg_randn(ctx, TG_F32, TG_SHAPE(64, 8), 1), *y = tg_randn(ctx, TG_F32, TG_SHAPE(64, 1), 1);
    tg_tensor *w = tg_param_new(ctx, "w", TG_F32, TG_SHAPE(1, 8), 0.1);
    tg_optim *opt = tg_adamw_new(ctx, &w, 1, TG_ADAMW(.lr = 1e-2));
    tg_tape *t = tg_tape_new(ctx);
    for (int step = 0; step < 200; step++, tg_tape_reset(t)) { /* the reset ends loss and every other temporary */
        tg_tensor *loss = tg_mse(t, tg_linear(t, x, w, NULL), y);
        tg_backward(t, loss);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
    }
    if (tg_ctx_status(ctx)) fprintf(stderr, "%s\n", tg_ctx_message(ctx)); /* the one check */
    /* end */
    int failed = tg_ctx_status(ctx) != TG_OK || !(tg_item(tg_mse(t, tg_linear(t, x, w, NULL), y)) < 1.2);
    tg_optim_free(opt);
    tg_ctx_free(ctx);
    return failed;
}
