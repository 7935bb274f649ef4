/* chain TIMES: builds 1,000 adds and muls of one element, and runs them forward and backward TIMES times, for chain.sh,
 * which counts the instructions. Uses the portable kernels, which are the same on every CPU. */
#include <stdlib.h>

#include <tapegrad/tapegrad.h>

int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 1;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .isa = "portable"));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(1), 1), *a = tg_zeros(ctx, TG_F32, TG_SHAPE(1)),
              *b = tg_zeros(ctx, TG_F32, TG_SHAPE(1));
    tg_write_f64(a, &(double){0.999}, 1);
    tg_write_f64(b, &(double){0.001}, 1);
    for (int i = 0; i < times; i++) {
        tg_tensor *y = x;
        for (int k = 0; k < 500; k++) y = tg_add(t, tg_mul(t, y, a), b);
        tg_backward(t, y);
        tg_zero_grad(x);
        tg_tape_reset(t);
    }
    bool good = tg_ctx_status(ctx) == TG_OK;
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
