/* Tutorial, step 3: trains a network of two layers, prints its validation loss, and saves it to a file. */
#include <tapegrad/io.h>

#include "tutorial_model.h"

static void save(tg_ctx *ctx, tg_tensor *const p[PARAMS], const char *path) {
    tg_named_tensor named[PARAMS];
    for (int i = 0; i < PARAMS; i++) named[i] = (tg_named_tensor){tg_name(p[i]), p[i]};
    tg_safetensors_save(ctx, path, named, PARAMS, NULL, 0);
}

int main(int argc, char **argv) {
    text s = read_text(argc > 1 ? argv[1] : "LICENSE");
    const char *path = argc > 2 ? argv[2] : "tutorial.safetensors";
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *p[PARAMS];
    make_params(ctx, p);
    batch b = {tg_zeros(ctx, TG_I32, TG_SHAPE(BATCH, CONTEXT)), tg_zeros(ctx, TG_I64, TG_SHAPE(BATCH))};
    tg_optim *opt = tg_adamw_new(ctx, p, PARAMS, TG_ADAMW(.lr = 2e-3));

    uint32_t seed = 1;
    for (int step = 0; step <= 1000; step++) {
        load(&s, 0, s.size / 10 * 9, &seed, &b);
        tg_tensor *loss = tg_cross_entropy(t, model(t, p, b.ids), b.next, NULL);
        tg_backward(t, loss);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        double now = step % 250 == 0 ? tg_item(loss) : 0;
        tg_tape_reset(t);
        if (step % 250 == 0) printf("step %4d  loss %.2f  validation %.2f\n", step, now, validate(t, p, &s, &b));
    }
    save(ctx, p, path);

    bool failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_optim_free(opt);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    free(s.bytes);
    return failed;
}
