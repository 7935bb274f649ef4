/* Counts a training step of GPT-2: nodes, calls of kernels, bytes that they read and write, allocations. A figure of a
 * layer is half of what two more layers add. docs/design.md has the table. */
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>
#include <tapegrad/op.h>

#include "budgets/counting.h"

enum { BATCH = 2, LENGTH = 32, HIDDEN = 64, HEADS = 4, VOCAB = 256, ACTIVATION = BATCH * LENGTH * HIDDEN,
       PER_LAYER = 12 * HIDDEN * HIDDEN + 13 * HIDDEN };

typedef struct step {
    int64_t nodes, allocations;
    counted at; /* forward, backward and the optimizer's step */
} step;

/* ---- An allocator that counts ---- */

static void *counted_alloc(void *user, size_t bytes, size_t align) {
    void *p = NULL;
    ++*(int64_t *)user;
    return posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes ? bytes : 1) ? NULL : p;
}

static void counted_free(void *user, void *p, size_t bytes) {
    (void)user, (void)bytes;
    free(p);
}

/* ---- A step ---- */

static tg_tensor *some_ids(tg_ctx *ctx, int k) {
    int64_t ids[BATCH * LENGTH];
    for (int i = 0; i < BATCH * LENGTH; i++) ids[i] = i * 7 % VOCAB + k;
    return tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), ids);
}

/* Counts the third step: by then everything that lives longer than a step exists. */
static bool count_step(int layers, tg_dtype dtype, step *s) {
    const tg_device_ops device = counting_device();
    int64_t allocations = 0, before = 0;
    tg_config config = *TG_CONFIG(.threads = 1, .dtype = dtype, .seed = 1);
    config.allocator = (tg_allocator){counted_alloc, counted_free, &allocations};
    tg_ctx *ctx = tg_ctx_new_on(&device, &config);
    tg_module *gpt = tg_gpt_new(
        ctx, TG_GPT(.vocab = VOCAB, .layers = layers, .heads = HEADS, .hidden = HIDDEN, .positions = LENGTH));
    tg_tensor *p[256], *ids = some_ids(ctx, 0), *target = some_ids(ctx, 1);
    tg_optim *optim = tg_adamw_new(ctx, p, tg_module_params(gpt, p, 256), TG_ADAMW(.lr = 1e-3));
    tg_optim_set_clip(optim, 1);
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < 3; i++) {
        before = allocations;
        so_far = (counted){0};
        tg_tensor *loss = tg_gpt_loss(gpt, t, ids, target, TG_LOSS_MEAN);
        s->nodes = tg_tape_nodes(t);
        tg_backward(t, loss);
        tg_optim_step(optim);
        tg_optim_zero_grad(optim);
        tg_tape_reset(t);
    }
    s->allocations = allocations - before;
    s->at = so_far;
    bool good = tg_ctx_status(ctx) == TG_OK;
    if (!good) printf("FAIL %d layers: %s\n", layers, tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_optim_free(optim);
    tg_module_free(gpt);
    tg_ctx_free(ctx);
    return good;
}

/* ---- The committed figures ---- */

typedef struct figure {
    const char *what;
    double layer, rest;
} figure;

typedef struct table {
    tg_dtype dtype;
    figure row[9];
} table;

static const table tables[] = {
    {TG_F32,
     {{"nodes", 30, 10},
      {"products", 12, 3},
      {"passes", 18, 23},
      {"activations moved by passes", 53.434, 28.157},
      {"activations moved by products", 88.141, 27},
      {"activations moved by attention", 12.25, 0},
      {"calls of the optimizer's step", 12, 6},
      {"its bytes a parameter of a layer", 32.002, 11.887},
      {"allocations", 0, 0}}},
    {TG_BF16,
     {{"nodes", 30, 10},
      {"products", 12, 3},
      {"passes", 18, 23},
      {"activations moved by passes", 53.774, 37.767},
      {"activations moved by products", 100.141, 35},
      {"activations moved by attention", 12.5, 0},
      {"calls of the optimizer's step", 12, 6},
      {"its bytes a parameter of a layer", 34.002, 12.63},
      {"allocations", 0, 0}}},
};

static double value_of(const step *s, int row, tg_dtype dtype) {
    double activation = (double)ACTIVATION * tg_dtype_bits(dtype) / 8;
    switch (row) {
    case 0: return (double)s->nodes;
    case 1: return (double)s->at.calls[PRODUCTS];
    case 2: return (double)s->at.calls[PASSES];
    case 3: return (double)s->at.bytes[PASSES] / activation;
    case 4: return (double)s->at.bytes[PRODUCTS] / activation;
    case 5: return (double)s->at.bytes[ATTENTION] / activation;
    case 6:
        return (double)s->at.calls[OPTIMIZER];
    case 7:
        return (double)s->at.bytes[OPTIMIZER] / PER_LAYER;
    default: return (double)s->allocations;
    }
}

static int passed, failed;

/* A figure that falls must be committed, or a later rise would pass. */
static void verdict(const char *dtype, const char *what, const char *of, double is, double committed) {
    bool more = is > committed * 1.001 + 1e-9, old = is < committed * 0.95 - 1e-9;
    if (more || old)
        printf("FAIL %s, %s %s: %.6g, committed are %.6g%s\n", dtype, what, of, is, committed,
               more ? "" : ": the new figure is to be committed");
    *(more || old ? &failed : &passed) += 1;
}

static void check_table(const table *t) {
    enum { FEW = 2, MORE = 4 };
    const char *dtype = tg_dtype_name(t->dtype);
    step few, more;
    if (!count_step(FEW, t->dtype, &few) || !count_step(MORE, t->dtype, &more)) {
        failed++;
        return;
    }
    printf("%-32s %12s %12s\n", dtype, "a layer", "the rest");
    for (int i = 0; i < (int)(sizeof t->row / sizeof *t->row); i++) {
        const figure *f = &t->row[i];
        double a = value_of(&few, i, t->dtype), b = value_of(&more, i, t->dtype), layer = (b - a) / (MORE - FEW);
        double rest = a - FEW * layer;
        printf("%-32s %12.6g %12.6g\n", f->what, layer, rest);
        verdict(dtype, f->what, "a layer", layer, f->layer);
        verdict(dtype, f->what, "in the rest", rest, f->rest);
    }
}

int main(void) {
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) check_table(&tables[i]);
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
