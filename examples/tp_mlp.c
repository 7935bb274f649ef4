/* A tensor-parallel MLP: the first weight split by rows, the second by columns, so that one sum over the ranks is all
 * that the two layers need. The same program on 1, 2 or 4 ranks prints the same losses.
 *
 *     tp_mlp 2                        two threads
 *     tapegrad run -n 2 -- tp_mlp     two processes
 *     mpirun -n 2 tp_mlp              the same, started by MPI
 *     tp_mlp 2 wrong                  the error message of a program that would train wrongly
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/megatron.h>
#include <tapegrad/ranks.h>

#ifdef TG_HAVE_MPI
#include <mpi.h>
#include <tapegrad/mpi.h>
#endif

enum { STEPS = 200, BATCH = 64, IN = 8, HIDDEN = 32 };

static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    const bool *wrong = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_tensor *x = tg_randn(ctx, TG_F32, TG_SHAPE(BATCH, IN), 1), *y = tg_randn(ctx, TG_F32, TG_SHAPE(BATCH, 1), 1);
    /* The shapes are global. Each rank gets its part, and the values do not depend on the number of ranks. */
    tg_tensor *w[] = {
        tg_param_new_placed(p, "fc1.weight", TG_F32, TG_SHAPE(HIDDEN, IN), 0.35, TG_PLACES({TG_TP, TG_SHARD(0)})),
        tg_param_new_placed(p, "fc1.bias", TG_F32, TG_SHAPE(HIDDEN), 0, TG_PLACES({TG_TP, TG_SHARD(0)})),
        tg_param_new_placed(p, "fc2.weight", TG_F32, TG_SHAPE(1, HIDDEN), 0.18, TG_PLACES({TG_TP, TG_SHARD(1)})),
        tg_param_new(ctx, "fc2.bias", TG_F32, TG_SHAPE(1), 0),
    };
    tg_optim *opt = tg_adamw_new(ctx, w, 4, TG_ADAMW(.lr = 1e-2));
    tg_tape *t = tg_tape_new(ctx);
    for (int step = 0; step < STEPS; step++) {
        tg_tensor *in = tg_copy_to_tp(t, x, tp); /* backward: sums the ranks' shares of x's gradient, if it has one */
        tg_tensor *h = tg_relu(t, tg_linear(t, in, w[0], w[1]));
        tg_tensor *o = tg_linear(t, h, w[2], NULL); /* this rank's share of the output */
        if (!*wrong) o = tg_reduce_from_tp(t, o, tp);
        tg_tensor *loss = tg_mse(t, tg_add(t, o, w[3]), y);
        tg_backward(t, loss);
        tg_grads_finalize(p, w, 4, NULL);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        if (tg_ctx_status(ctx) != TG_OK) break;
        if (step % 50 == 0 && tg_comm_rank(world) == 0) printf("%4d  %.5f\n", step, tg_item(loss));
        tg_tape_reset(t);
    }
    tg_optim_free(opt);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Runs one rank of a job of processes. */
static tg_status run_rank(tg_ctx *ctx, tg_comm *world, bool *wrong) {
    tg_status s = train(wrong, ctx, world);
    if (s != TG_OK) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_comm_free(world);
    tg_ctx_free(ctx);
    return s;
}

int main(int argc, char **argv) {
    bool wrong = argc > 1 && !strcmp(argv[argc - 1], "wrong");
    const tg_config *config = TG_CONFIG(.seed = 1, .threads = 1);
    tg_status s;
    if (tg_comm_launched_rank() >= 0) {
        tg_ctx *ctx = tg_ctx_new(config);
        s = run_rank(ctx, tg_comm_launched_new(ctx), &wrong);
#ifdef TG_HAVE_MPI
    } else if (getenv("OMPI_COMM_WORLD_SIZE")) {
        MPI_Init(&argc, &argv);
        tg_ctx *ctx = tg_ctx_new(config);
        s = run_rank(ctx, tg_comm_mpi_new(ctx, MPI_COMM_WORLD), &wrong);
        MPI_Finalize();
#endif
    } else {
        char message[2048] = "";
        int n = argc > 1 ? atoi(argv[1]) : 2;
        s = tg_ranks_run(n, train, &wrong,
                         TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
        if (s != TG_OK) fprintf(stderr, "%s\n", message);
    }
    return s == TG_OK ? 0 : 1;
}
