/* Tutorial, step 2: a table that predicts the next character from the last one. */
#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

#include "tutorial.h"

int main(int argc, char **argv) {
    text s = read_text(argc > 1 ? argv[1] : "LICENSE");
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *table = tg_param_new(ctx, "table", TG_F32, TG_SHAPE(VOCABULARY, VOCABULARY), 0.01);
    tg_tensor *last = tg_zeros(ctx, TG_I32, TG_SHAPE(BATCH)), *next = tg_zeros(ctx, TG_I64, TG_SHAPE(BATCH));
    tg_optim *opt = tg_sgd_new(ctx, &table, 1, TG_SGD(.lr = 20));

    uint32_t seed = 1;
    int32_t window[BATCH][CONTEXT], last_bytes[BATCH];
    int64_t next_bytes[BATCH];
    for (int step = 0; step <= 1000; step++) {
        fill_batch(&s, 0, s.size, &seed, window, next_bytes);
        for (int b = 0; b < BATCH; b++) last_bytes[b] = window[b][CONTEXT - 1];
        tg_write(last, last_bytes, sizeof last_bytes);
        tg_write(next, next_bytes, sizeof next_bytes);

        tg_tensor *logits = tg_embedding(t, table, last); /* [BATCH, VOCABULARY] */
        tg_tensor *loss = tg_cross_entropy(t, logits, next, NULL);
        tg_backward(t, loss);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        if (step % 250 == 0) printf("step %4d  loss %.2f\n", step, tg_item(loss));
        tg_tape_reset(t);
    }

    bool failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_optim_free(opt);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    free(s.bytes);
    return failed;
}
