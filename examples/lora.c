/* Adapts a trained GPT to new data with low-rank adapters (Hu et al., LoRA, arXiv 2106.09685): the model's own weights
 * stay as they are, and next to some of its linear layers two small matrices are trained. In the end their product is
 * added to the weights, and the model has its own layers again.
 *
 * A new module takes the place of each adapted layer (tg_module_replace) and owns that layer as a child. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/gpt.h>
#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

enum { VOCAB = 16, LENGTH = 12, BATCH = 4, LAYERS = 2, HIDDEN = 32, RANK = 4, ADAPTERS = 2 * LAYERS };
static const double scale = 2; /* alpha / RANK in the paper */

/* ---- The adapter ---- */

/* y = base(x) + scale x a^T b^T, with a [RANK, in] and b [out, RANK]. */
static tg_tensor *lora_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    tg_tensor *low = tg_linear(t, x, tg_module_find(m, "a"), NULL);
    tg_tensor *change = tg_linear(t, low, tg_module_find(m, "b"), NULL);
    return tg_add(t, tg_module_forward(tg_module_child(m, "base"), t, x), tg_scale(t, change, scale));
}

static const tg_module_ops lora_ops = {.size = sizeof(tg_module_ops), .kind = "lora", .forward = lora_forward};

/* Puts an adapter in the place of the linear layer of that path, and returns it. b is 0 at first, so the model computes
 * what it did before. */
static tg_module *adapt(tg_module *gpt, const char *path) {
    tg_ctx *ctx = tg_module_ctx(gpt);
    tg_module *m = tg_module_new(ctx, &lora_ops, NULL), *base = tg_module_replace(gpt, path, m);
    tg_tensor *w = tg_module_find(base, "weight");
    tg_tensor *a = tg_param_new(ctx, "a", TG_DTYPE_DEFAULT, TG_SHAPE(RANK, tg_dim(w, 1)), 0);
    tg_param_init(a, TG_KAIMING_UNIFORM(1));
    tg_module_add_param(m, "a", a);
    tg_module_add_param(m, "b", tg_param_new(ctx, "b", TG_DTYPE_DEFAULT, TG_SHAPE(tg_dim(w, 0), RANK), 0));
    tg_module_add_child(m, "base", base);
    return m;
}

/* Adds the adapter's product to the weight of its layer, which takes the place of the adapter again. */
static void merge(tg_module *gpt, const char *path, tg_module *adapter, tg_tape *t) {
    tg_module *base = tg_module_child(adapter, "base");
    tg_tensor *product = tg_matmul(t, tg_module_find(adapter, "b"), tg_module_find(adapter, "a"));
    tg_tape_set_grad_mode(t, false);
    tg_add_(t, tg_module_find(base, "weight"), tg_scale(t, product, scale));
    tg_tape_set_grad_mode(t, true);
    tg_tape_reset(t);
    tg_module_free(tg_module_replace(gpt, path, base));
}

/* ---- Training ---- */

/* Fills ids and their targets with sequences that go up or down by one in each step. */
static void batch(int64_t *ids, int64_t *targets, int step, int by) {
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i <= LENGTH; i++) {
            int64_t token = ((step + 3 * b + by * i) % VOCAB + VOCAB) % VOCAB;
            if (i < LENGTH) ids[b * LENGTH + i] = token;
            if (i > 0) targets[b * LENGTH + i - 1] = token;
        }
}

/* Trains those parameters that require a gradient. Returns the last loss. */
static double train(tg_module *gpt, tg_tape *t, int steps, int by, double lr) {
    tg_tensor *params[128];
    int64_t ids[BATCH * LENGTH], targets[BATCH * LENGTH];
    int n = 0;
    double loss = NAN;
    tg_ctx *ctx = tg_module_ctx(gpt);
    for (int i = 0; i < tg_module_param_count(gpt) && n < 128; i++) {
        tg_tensor *p = tg_module_param(gpt, i, NULL);
        if (tg_requires_grad(p)) params[n++] = p;
    }
    tg_optim *optim = tg_adamw_new(ctx, params, n, TG_ADAMW(.lr = lr));
    for (int step = 0; step < steps; step++) {
        batch(ids, targets, step, by);
        tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), ids),
                  *y = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), targets);
        tg_tensor *l = tg_gpt_loss(gpt, t, x, y, TG_LOSS_MEAN);
        tg_backward(t, l);
        tg_optim_step(optim);
        tg_optim_zero_grad(optim);
        loss = tg_item(l);
        tg_tape_reset(t);
        tg_drop(x), tg_drop(y);
    }
    tg_optim_free(optim);
    printf("%3d steps on sequences that go %s, %2d tensors trained: loss %.3f\n", steps, by > 0 ? "up" : "down", n,
           loss);
    return loss;
}

/* Computes the logits of a sequence that goes down. */
static void logits_of(tg_module *gpt, tg_tape *t, float *out) {
    int64_t ids[BATCH * LENGTH], targets[BATCH * LENGTH];
    batch(ids, targets, 0, -1);
    tg_tensor *x = tg_from_host(tg_module_ctx(gpt), TG_I64, TG_SHAPE(BATCH, LENGTH), ids);
    tg_read(tg_gpt_logits(gpt, t, x), out, sizeof(float) * BATCH * LENGTH * VOCAB);
    tg_tape_reset(t);
    tg_drop(x);
}

/* Adapts the model in place. Returns whether the adapters learned, the weights stayed, and merging changed nothing. */
static bool run(tg_module *gpt, tg_tape *t) {
    static float before[BATCH * LENGTH * VOCAB], after[BATCH * LENGTH * VOCAB];
    float was[3 * HIDDEN * HIDDEN], is[3 * HIDDEN * HIDDEN];
    char path[ADAPTERS][64];
    tg_module *adapter[ADAPTERS];
    tg_tensor *w = tg_module_find(gpt, "transformer.h.0.attn.c_attn.weight");
    double worst = 0;
    train(gpt, t, 80, 1, 1e-2);
    for (int i = 0; i < tg_module_param_count(gpt); i++) tg_set_requires_grad(tg_module_param(gpt, i, NULL), false);
    for (int i = 0; i < ADAPTERS; i++) {
        snprintf(path[i], sizeof path[i], "transformer.h.%d.%s", i / 2, i % 2 ? "mlp.c_fc" : "attn.c_attn");
        adapter[i] = adapt(gpt, path[i]);
    }
    tg_read(w, was, sizeof was);
    double loss = train(gpt, t, 100, -1, 1e-2);
    tg_read(w, is, sizeof is);
    bool stayed = !memcmp(was, is, sizeof is);
    logits_of(gpt, t, before);
    for (int i = 0; i < ADAPTERS; i++) merge(gpt, path[i], adapter[i], t);
    logits_of(gpt, t, after);
    for (int i = 0; i < BATCH * LENGTH * VOCAB; i++) worst = fmax(worst, fabs((double)after[i] - before[i]));
    printf("the model's weights %s; merged logits differ by less than %s\n", stayed ? "stayed" : "CHANGED",
           worst < 1e-3 ? "0.001" : "INFINITY");
    return stayed && loss < 0.3 && worst < 1e-3;
}

int main(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1, .threads = 1));
    tg_module *gpt =
        tg_gpt_new(ctx, TG_GPT(.vocab = VOCAB, .layers = LAYERS, .heads = 4, .hidden = HIDDEN, .positions = LENGTH));
    tg_tape *t = tg_tape_new(ctx);
    bool good = run(gpt, t), failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_ctx_free(ctx);
    return failed || !good ? EXIT_FAILURE : EXIT_SUCCESS;
}
