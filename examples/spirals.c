/* spirals: a small classifier, trained with a data loader, the average of its weights, and metrics.
 *
 * It finds on which of three spirals a point lies. A loader shuffles the points; Muon trains the matrices and AdamW the
 * rest; an exponential moving average of the weights is evaluated in addition to the weights. The program ends with
 * status 1 unless the averages recognize 95 % of the points that were held out. */
#include <math.h>
#include <stdio.h>

#include <tapegrad/average.h>
#include <tapegrad/data.h>
#include <tapegrad/metrics.h>
#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

enum { ARMS = 3, POINTS = 1500, HELD_OUT = 300, HIDDEN = 32, BATCH = 50, EPOCHS = 20 };

static float at[POINTS][2];
static int64_t arm[POINTS];

/* Point i lies on arm i % ARMS. Angles that are multiples of the golden angle spread the points along the arms. */
static void make_points(void) {
    for (int i = 0; i < POINTS; i++) {
        double along = fmod(i * 0.6180339887, 1), turn = 2 * 3.14159265 * (i % ARMS / (double)ARMS + along);
        double noise = 0.03 * sin(12.9898 * i);
        at[i][0] = (float)((along + 0.1) * cos(turn + noise));
        at[i][1] = (float)((along + 0.1) * sin(turn + noise));
        arm[i] = i % ARMS;
    }
}

enum { W1, B1, W2, B2, W3, B3, PARAMS };

static tg_tensor *model(tg_tape *t, tg_tensor *const *p, tg_tensor *x) {
    tg_tensor *h = tg_relu(t, tg_linear(t, tg_scale(t, x, 3), p[W1], p[B1]));
    return tg_linear(t, tg_relu(t, tg_linear(t, h, p[W2], p[B2])), p[W3], p[B3]);
}

/* Returns the fraction of the held-out points that are recognized, and sets *loss to their mean loss. */
static double evaluate(tg_ctx *ctx, tg_tape *t, tg_tensor *const *p, tg_loader *held_out, double *loss) {
    tg_metric *hits = tg_metric_new(ctx), *losses = tg_metric_new(ctx);
    tg_tape_set_grad_mode(t, false);
    for (int64_t i = 0; i < tg_loader_batches(held_out); i++) {
        tg_tensor *x[2];
        tg_loader_next(held_out, x);
        tg_tensor *logits = model(t, p, x[0]);
        tg_metric_add_hits(hits, t, logits, x[1], 1, -1);
        tg_metric_add(losses, tg_cross_entropy(t, logits, x[1], NULL), tg_dim(logits, 0));
        tg_tape_reset(t);
    }
    tg_tape_set_grad_mode(t, true);
    double accuracy = tg_metric_mean(hits);
    *loss = tg_metric_mean(losses);
    tg_metric_free(hits);
    tg_metric_free(losses);
    return accuracy;
}

int main(void) {
    make_points();
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1, .threads = 1));
    const tg_data_part train[] = {{TG_F32, TG_SHAPE(2), at[HELD_OUT]}, {TG_I64, TG_SHAPE(), &arm[HELD_OUT]}};
    const tg_data_part rest[] = {{TG_F32, TG_SHAPE(2), at}, {TG_I64, TG_SHAPE(), arm}};
    tg_loader *batches =
        tg_loader_new_arrays(ctx, train, 2, POINTS - HELD_OUT, TG_LOADER(.batch = BATCH, .shuffle = true));
    tg_loader *held_out = tg_loader_new_arrays(ctx, rest, 2, HELD_OUT, TG_LOADER(.batch = 128, .keep_last = true));
    tg_tensor *p[PARAMS] = {
        [W1] = tg_param_new(ctx, "fc1.weight", TG_F32, TG_SHAPE(HIDDEN, 2), 0.5),
        [B1] = tg_param_new(ctx, "fc1.bias", TG_F32, TG_SHAPE(HIDDEN), 0.5),
        [W2] = tg_param_new(ctx, "fc2.weight", TG_F32, TG_SHAPE(HIDDEN, HIDDEN), 0.2),
        [B2] = tg_param_new(ctx, "fc2.bias", TG_F32, TG_SHAPE(HIDDEN), 0),
        [W3] = tg_param_new(ctx, "fc3.weight", TG_F32, TG_SHAPE(ARMS, HIDDEN), 0.1),
        [B3] = tg_param_new(ctx, "fc3.bias", TG_F32, TG_SHAPE(ARMS), 0),
    };
    tg_optim *opt = tg_muon_new(ctx, p, PARAMS,
                                TG_MUON(.lr = 0.02, .others = &p[W3], .n_others = 1, .adamw = TG_ADAMW(.lr = 5e-3)));
    tg_average *ema = tg_ema_new(ctx, p, PARAMS, 0.98);
    tg_tape *t = tg_tape_new(ctx);
    double loss, accuracy = 0;
    while (tg_loader_epoch(batches) < EPOCHS && tg_ctx_status(ctx) == TG_OK) {
        tg_tensor *x[2];
        tg_loader_next(batches, x);
        tg_backward(t, tg_cross_entropy(t, model(t, p, x[0]), x[1], NULL));
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        tg_average_update(ema);
        tg_tape_reset(t);
        if (tg_loader_step(batches) != 0 || tg_loader_epoch(batches) % 5 != 0) continue;
        accuracy = evaluate(ctx, t, p, held_out, &loss);
        printf("epoch %2d  weights %5.1f %%  loss %.3f", (int)tg_loader_epoch(batches), 100 * accuracy, loss);
        tg_average_apply(ema);
        accuracy = evaluate(ctx, t, p, held_out, &loss);
        tg_average_restore(ema);
        printf("   average %5.1f %%  loss %.3f\n", 100 * accuracy, loss);
    }
    bool failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_average_free(ema);
    tg_optim_free(opt);
    tg_loader_free(batches);
    tg_loader_free(held_out);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return failed || !(accuracy > 0.95);
}
