/* ZeRO-1: gradients are reduce-scattered from flat buffers while backward runs, each rank steps its shard, and the
 * parameters are gathered under the next forward. The model code does not know. */
#include <stdio.h>
#include <tapegrad/checkpoint.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/gpt.h>
#include <tapegrad/ranks.h>

#include "planned.h"

enum { RANKS = 2, BATCH = 4, SEQ = 64, MICRO = 2, STEPS = 20 };

static tg_tensor *tokens(tg_ctx *ctx, const tg_parallel *par, uint64_t at) {
    int64_t ids[BATCH * SEQ];
    for (int i = 0; i < BATCH * SEQ; i++) ids[i] = (int64_t)((at + (uint64_t)i) * 2654435761u % 256);
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, SEQ), ids);
    tg_place(par, x, TG_DP, TG_V); /* every rank its own batch */
    return x;
}

static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *par = tg_parallel_new(world, NULL); /* all ranks data parallel */
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.arch = TG_LLAMA, .vocab = 256, .layers = 2, .heads = 4, .hidden = 64,
                                            .positions = SEQ));
    tg_tensor *params[64];
    int n = tg_module_params(gpt, params, 64);
    for (int i = 0; i < n; i++) tg_place(par, params[i], TG_DP, TG_R);

    tg_flat *flat = tg_flat_new(par, params, n, TG_FLAT(.shard = true, .bucket = 32768));
    tg_optim *opt = tg_adamw_new(ctx, tg_flat_leaves(flat), tg_flat_leaf_count(flat), TG_ADAMW(.lr = 1e-3));
    tg_optim_set_clip(opt, 1.0);
    tg_tensor *count = tg_from_host(ctx, TG_F32, TG_SHAPE(), &(float){BATCH * SEQ * MICRO});
    tg_place(par, count, TG_DP, TG_V);
    tg_tape *t = tg_tape_new(ctx);

    for (uint64_t step = 0; step < STEPS; step++) {
        double loss = 0;
        for (int m = 0; m < MICRO; m++) {
            uint64_t at = ((step * MICRO + (uint64_t)m) * RANKS + (uint64_t)tg_comm_rank(world)) * BATCH * SEQ;
            tg_tensor *ids = tokens(ctx, par, at), *target = tokens(ctx, par, at + 1);
            tg_flat_set_reduce(flat, m == MICRO - 1); /* before: only accumulate */
            tg_tensor *sum = tg_gpt_loss(gpt, t, ids, target, TG_LOSS_SUM);
            tg_backward(t, sum);
            loss += tg_item(sum);
            tg_tape_reset(t);
            tg_drop(ids);
            tg_drop(target);
        }
        tg_grads_finalize(par, params, n, TG_FINALIZE(.tokens = count));
        tg_optim_step(opt); /* this rank's half of the moments */
        tg_flat_gather(flat); /* the next forward waits bucket by bucket */
        tg_optim_zero_grad(opt);
        if (tg_comm_rank(world) == 0) printf("%3d  %.4f\n", (int)step, loss / (BATCH * SEQ * MICRO));
    }

    tg_shards *state = tg_shards_new(par); /* loads under any other number of ranks */
    tg_shards_add_module(state, "model", gpt);
    tg_shards_add_optim(state, "optim", opt);
    tg_shards_save(state, "zero1.out");
    tg_shards_free(state);

    tg_optim_free(opt);
    tg_flat_free(flat);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(par);
    return tg_ctx_status(ctx);
}

int main(void) {
    char why[512] = "";
    tg_status s = tg_ranks_run(RANKS, train, NULL, TG_RANKS(.message = why, .message_size = sizeof why));
    if (s != TG_OK) fprintf(stderr, "%s\n", why);
    return s != TG_OK;
}
