/* Tutorial, step 1: the gradient of a function. */
#include <stdio.h>

#include <tapegrad/tapegrad.h>

int main(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cpu"));
    tg_tape *t = tg_tape_new(ctx);

    const float values[] = {1, 2, 3};
    tg_tensor *x = tg_from_host(ctx, TG_F32, TG_SHAPE(3), values);
    tg_set_requires_grad(x, true);

    tg_tensor *y = tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false);
    double value = tg_item(y), gradient[3] = {0};
    tg_backward(t, y);
    tg_read_f64(tg_grad_of(x), gradient, 3);
    printf("y = %g, dy/dx = %g %g %g\n", value, gradient[0], gradient[1], gradient[2]);

    bool failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return failed;
}
