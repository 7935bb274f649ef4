/* layers LAYERS TIMES: runs TIMES training steps of a small GPT with LAYERS layers, for layers.sh, which counts the
 * instructions. Uses the portable kernels, which are the same on every CPU. */
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>

enum { ROWS = 2, LENGTH = 8, VOCAB = 64, MOST_PARAMS = 1024 };

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "layers LAYERS TIMES\n"), EXIT_FAILURE;
    int layers = atoi(argv[1]), times = atoi(argv[2]);
    int64_t ids[ROWS * LENGTH];
    for (int i = 0; i < ROWS * LENGTH; i++) ids[i] = i * 7 % VOCAB;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .isa = "portable"));
    tg_tape *t = tg_tape_new(ctx);
    tg_module *gpt = tg_gpt_new(
        ctx, TG_GPT(.vocab = VOCAB, .layers = layers, .heads = 2, .hidden = 16, .positions = LENGTH));
    tg_tensor *params[MOST_PARAMS], *x = tg_from_host(ctx, TG_I64, TG_SHAPE(ROWS, LENGTH), ids);
    int n = tg_module_params(gpt, params, MOST_PARAMS);
    tg_optim *optim = tg_adamw_new(ctx, params, n, TG_ADAMW(.lr = 1e-4));
    for (int i = 0; i < times; i++) {
        tg_backward(t, tg_gpt_loss(gpt, t, x, x, TG_LOSS_MEAN));
        tg_optim_step(optim);
        tg_optim_zero_grad(optim);
        tg_tape_reset(t);
    }
    bool good = tg_ctx_status(ctx) == TG_OK;
    if (!good) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_optim_free(optim);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_drop(x);
    tg_ctx_free(ctx);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
