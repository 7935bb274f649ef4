/* The maximal update parametrization: the coordinate check of Yang et al. (arXiv 2203.03466, appendix D). After some
 * steps of Adam at one learning rate, the activations of models of all widths have the same size. */
#include <math.h>
#include <stdlib.h>

#include <tapegrad/backward.h>
#include <tapegrad/lm.h>
#include <tapegrad/tensor_parallel.h>

#include "check_main.h"
#include "models/lm/lm.h"

enum {
    LAYERS = 2,
    BATCH = 8,
    LENGTH = 16,
    VOCAB = 64,
    BASE = 64,
    HEAD = 16,
    STEPS = 8,
    SEEDS = 4,
    PLACES = LAYERS + 2
};

/* The mean size of the activations after the embedding and each layer, and the loss. The output matrix starts as 0
 * (appendix D.2), because logits of random weights shrink with the width by design. */
typedef struct sizes {
    double at[PLACES];
} sizes;

static double mean_size(tg_tape *t, tg_tensor *x) { return tg_item(tg_mean(t, tg_abs(t, x), TG_ALL_DIMS, false)); }

static sizes measure(tg_module *lm, tg_tape *t, tg_tensor *ids) {
    sizes s;
    char name[16];
    tg_tensor *x = tg_lm_embed(lm, t, ids, NULL, 0);
    s.at[0] = mean_size(t, x);
    tg_module *layers = tg_module_child(tg_module_child(lm, "model"), "layers");
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "%d", i);
        x = tg_module_forward(tg_module_child(layers, name), t, x);
        s.at[1 + i] = mean_size(t, x);
    }
    tg_tape_reset(t);
    return s;
}

/* Trains a model of a width on one batch, and adds the sizes of its activations to *sum. */
static void train(int64_t width, bool mup, uint64_t seed, sizes *sum) {
    int64_t ids[BATCH * LENGTH], next[BATCH * LENGTH];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F32, .seed = seed));
    tg_module *lm =
        tg_lm_new(ctx, TG_LM(.vocab = VOCAB, .layers = LAYERS, .heads = width / HEAD, .hidden = width, .ffn = 2 * width,
                             .positions = LENGTH, .init_std = 0.1, .mup_base = mup ? BASE : TG_NONE));
    tg_tensor *params[64], *head = tg_module_find(lm, "lm_head.weight"), *loss;
    int n = tg_module_params(lm, params, 64);
    double last = 0;
    tg_optim *o = tg_adamw_new(ctx, params, n, TG_ADAMW(.weight_decay = 0));
    tg_lm_groups(&lm, 1, o, TG_LM_RATES(.lr = 0.004));
    for (int i = 0; i < BATCH * LENGTH; i++) {
        ids[i] = (7 * i + i * i) % VOCAB;
        next[i] = (11 * i + 3) % VOCAB;
    }
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), ids);
    tg_tensor *y = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), next);
    tg_tape *t = tg_tape_new(ctx);
    tg_tape_set_grad_mode(t, false);
    tg_copy_(t, head, tg_full(t, TG_F32, tg_shape_of(head), 0));
    tg_tape_set_grad_mode(t, true);
    for (int i = 0; i < STEPS; i++) {
        tg_lm_run_part(lm, t, NULL, &loss, &x, &y, NULL);
        last = tg_item(loss) / (BATCH * LENGTH);
        tg_backward(t, tg_scale(t, loss, 1.0 / (BATCH * LENGTH)));
        tg_optim_step(o);
        tg_optim_zero_grad(o);
        tg_tape_reset(t);
    }
    sizes s = measure(lm, t, x);
    s.at[1 + LAYERS] = last;
    for (int i = 0; i < PLACES; i++) sum->at[i] += s.at[i] / SEEDS;
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_optim_free(o);
    tg_module_free(lm);
    tg_drop(x), tg_drop(y);
    tg_ctx_free(ctx);
}

/* Returns the largest part by which an activation of a model of this width differs from that of the base. */
static double spread(int64_t width, bool mup, const sizes *base) {
    sizes s = {{0}};
    double most = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) train(width, mup, seed, &s);
    for (int i = 0; i < PLACES; i++) most = larger_or_nan(most, fabs(s.at[i] / base->at[i] - 1));
    return most;
}

START_TEST(activations_do_not_depend_on_the_width) {
    int64_t most = getenv("TG_LONG") ? 512 : getenv("TG_TEST_QUICK") ? 128 : 256;
    sizes base = {{0}};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) train(BASE, true, seed, &base);
    for (int64_t width = 2 * BASE; width <= most; width *= 2) {
        double with = spread(width, true, &base), without = spread(width, false, &base);
        ck_assert_msg(with < 0.1, "width %lld: activations differ by %g", (long long)width, with);
        ck_assert_msg(without > 0.1, "width %lld: without it they differ by only %g", (long long)width, without);
    }
}
END_TEST

int main(void) {
    const TTest *tests[] = {activations_do_not_depend_on_the_width};
    return tg_check_main("mup", tests, sizeof tests / sizeof *tests);
}
