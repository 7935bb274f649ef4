/* A tensor-parallel MLP on thread ranks: the same numbers for 1, 2 and 4 of them. */
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/ranks.h>
#include <tapegrad/tensor_parallel.h>

#include "planned.h"

enum { ROWS = 32, WIDTH = 64, HIDDEN = 256, STEPS = 100 };

static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    const int *ranks = arg;
    tg_parallel *par = tg_parallel_new(world, TG_PARALLEL(.tp = *ranks));
    tg_module *up = tg_nn_column_linear(par, WIDTH, HIDDEN, TG_PLINEAR(.std = 0.1)); /* weight [HIDDEN/tp, WIDTH] */
    tg_module *down = tg_nn_row_linear(par, HIDDEN, WIDTH, TG_PLINEAR(.std = 0.05)); /* weight [WIDTH, HIDDEN/tp] */
    tg_tensor *params[] = {tg_module_find(up, "weight"), tg_module_find(up, "bias"), tg_module_find(down, "weight"),
                           tg_module_find(down, "bias")};
    tg_optim *opt = tg_adamw_new(ctx, params, 4, TG_ADAMW(.lr = 1e-3));
    tg_optim_set_clip(opt, 1.0);
    tg_tensor *x = tg_randn(ctx, TG_SHAPE(ROWS, WIDTH), 1.0);
    tg_tensor *y = tg_randn(ctx, TG_SHAPE(ROWS, WIDTH), 1.0);
    tg_tape *t = tg_tape_new(ctx);

    for (int step = 0; step < STEPS; step++) {
        tg_tensor *h = tg_module_forward(up, t, x);                 /* [ROWS, HIDDEN/tp], tp V1 */
        tg_tensor *o = tg_module_forward(down, t, tg_gelu(t, h));   /* [ROWS, WIDTH], I again */
        tg_tensor *loss = tg_mse(t, o, y);
        tg_backward(t, loss);
        tg_grads_finalize(par, params, 4, NULL);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        if (step % 20 == 0 && tg_comm_rank(world) == 0) printf("%4d  %.6f\n", step, tg_item(loss));
        tg_tape_reset(t);
    }

    /* A bare linear lacks the copy_to of the column layer: x's gradient would be this rank's share, taken for the
     * whole. The recorder refuses it and names the mend. */
    tg_tensor *wrong = tg_linear(t, tg_tape_input(t, x), params[0], NULL);
    bool refused = !tg_is_alive(wrong) && tg_ctx_status(ctx) == TG_ERR_PLACEMENT;
    if (refused) tg_ctx_clear(ctx);

    tg_optim_free(opt);
    tg_tape_free(t);
    tg_module_free(up);
    tg_module_free(down);
    tg_parallel_free(par);
    if (!refused) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "a wrong program was recorded");
    return tg_ctx_status(ctx);
}

int main(int argc, char **argv) {
    int ranks = argc > 1 ? atoi(argv[1]) : 2;
    char why[512] = "";
    tg_status s = tg_ranks_run(ranks, train, &ranks, TG_RANKS(.config = TG_CONFIG(.seed = 1), .message = why,
                                                              .message_size = sizeof why));
    if (s != TG_OK) fprintf(stderr, "%s\n", why);
    return s != TG_OK;
}
