/* Tutorial, step 5: the same training on several ranks, each with its share of every batch. */
#include <tapegrad/parallel.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/ranks.h>

#include "tutorial_model.h"

static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    const text *s = arg;
    int rank = tg_comm_rank(world), ranks = tg_comm_size(world), share = BATCH / ranks;
    tg_parallel *par = tg_parallel_new(world, NULL); /* all ranks are data-parallel replicas */
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *p[PARAMS];
    make_params(ctx, p);
    for (int i = 0; i < PARAMS; i++) tg_place(par, p[i], TG_DP, TG_R); /* equal values, shares of the gradient */
    tg_tensor *ids = tg_zeros(ctx, TG_I32, TG_SHAPE(share, CONTEXT)), *next = tg_zeros(ctx, TG_I64, TG_SHAPE(share));
    tg_tensor *one = tg_from_host(ctx, TG_F32, TG_SHAPE(1), &(float){1});
    tg_optim *opt = tg_adamw_new(ctx, p, PARAMS, TG_ADAMW(.lr = 2e-3));

    uint32_t seed = 1;
    int32_t windows[BATCH][CONTEXT];
    int64_t bytes[BATCH];
    for (int step = 0; step <= 1000; step++) {
        fill_batch(s, 0, s->size / 10 * 9, &seed, windows, bytes);
        tg_write(ids, windows + rank * share, (size_t)share * sizeof *windows);
        tg_write(next, bytes + rank * share, (size_t)share * sizeof *bytes);
        tg_tensor *loss = tg_cross_entropy(t, model(t, p, ids), next, NULL);
        tg_backward(t, loss);
        tg_grads_finalize(par, p, PARAMS, TG_FINALIZE(.tokens = one)); /* the mean over the ranks */
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        tg_tape_reset(t);
    }
    batch b = {tg_zeros(ctx, TG_I32, TG_SHAPE(BATCH, CONTEXT)), tg_zeros(ctx, TG_I64, TG_SHAPE(BATCH))};
    double loss = validate(t, p, s, &b);
    if (rank == 0) printf("validation %.4f\n", loss);
    tg_optim_free(opt);
    tg_tape_free(t);
    tg_parallel_free(par);
    return tg_ctx_status(ctx);
}

int main(int argc, char **argv) {
    text s = read_text(argc > 1 ? argv[1] : "LICENSE");
    int ranks = argc > 2 ? atoi(argv[2]) : 2;
    char message[2048] = "";
    tg_status status = tg_ranks_run(ranks, train, &s,
                                    TG_RANKS(.config = TG_CONFIG(.seed = 1, .threads = 1), .message = message,
                                             .message_size = sizeof message));
    if (status != TG_OK) fprintf(stderr, "%s\n", message);
    free(s.bytes);
    return status != TG_OK;
}
