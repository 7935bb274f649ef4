/* Recomputation without output: the results of norm and activation are given back as soon as the next linear has read
 * them, and come back when its backward needs them. A whole layer would cost a second forward; this costs two
 * element-wise passes and keeps the matrix products. */
#include <stdio.h>

#include <tapegrad/tapegrad.h>

enum { LAYERS = 8, ROWS = 256, WIDTH = 128 };

typedef struct layer {
    tg_tensor *norm, *up, *down;
} layer;

/* [rows, width] -> the same */
static tg_status norm(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    layer *l = state;
    out[0] = tg_rms_norm(t, in[0], l->norm, 1e-6);
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_status gelu(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_gelu_tanh(t, in[0]);
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_tensor *mlp(tg_tape *t, layer *l, tg_tensor *x, bool discard) {
    tg_tensor *n, *h, *a;
    if (!discard) {
        norm(l, t, &x, 1, &n, 1);
        h = tg_linear(t, n, l->up, NULL);
        gelu(NULL, t, &h, 1, &a, 1);
        return tg_add(t, x, tg_linear(t, a, l->down, NULL));
    }
    tg_replay *first = tg_replay_open(t), *second = tg_replay_open(t);
    tg_replay_run(first, norm, l, &x, 1, &n, 1, TG_RECOMPUTE(.name = "norm"));
    h = tg_linear(t, n, l->up, NULL);
    tg_replay_close(first, h);
    tg_replay_run(second, gelu, NULL, &h, 1, &a, 1, TG_RECOMPUTE(.name = "gelu"));
    tg_tensor *y = tg_linear(t, a, l->down, NULL);
    tg_replay_close(second, y);
    return tg_add(t, x, y);
}

/* One forward and backward; the bytes at the peak, and the gradient of the first norm's weight. */
static int64_t run(tg_ctx *ctx, layer *l, tg_tensor *x, bool discard, double *grad) {
    tg_tape *t = tg_tape_new(ctx);
    tg_memory_reset_peak(ctx);
    tg_tensor *h = x;
    for (int i = 0; i < LAYERS; i++) h = mlp(t, &l[i], h, discard);
    tg_backward(t, tg_mean(t, tg_square(t, h), TG_ALL_DIMS, false));
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    tg_read_f64(tg_grad_of(l[0].norm), grad, WIDTH);
    for (int i = 0; i < LAYERS; i++) tg_zero_grad(l[i].norm), tg_zero_grad(l[i].up), tg_zero_grad(l[i].down);
    tg_tape_free(t);
    return m.peak;
}

int main(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1, .check = true));
    layer layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[i].norm = tg_param(ctx, "norm", TG_SHAPE(WIDTH), 1.0);
        layers[i].up = tg_param(ctx, "up", TG_SHAPE(4 * WIDTH, WIDTH), 0.05);
        layers[i].down = tg_param(ctx, "down", TG_SHAPE(WIDTH, 4 * WIDTH), 0.05);
    }
    tg_tensor *x = tg_randn(ctx, TG_SHAPE(ROWS, WIDTH), 1.0);
    double plain[WIDTH] = {0}, discarded[WIDTH] = {0};
    run(ctx, layers, x, false, plain); /* the gradients' own memory is there in what is compared */
    int64_t before = run(ctx, layers, x, false, plain), after = run(ctx, layers, x, true, discarded);
    for (int i = 0; i < WIDTH; i++)
        if (plain[i] != discarded[i]) tg_ctx_fail(ctx, TG_ERR_GRADIENT, "not the same bits at %d", i);
    printf("peak %lld bytes, without the outputs %lld\n", (long long)before, (long long)after);

    tg_status status = tg_ctx_status(ctx);
    if (status != TG_OK) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return status != TG_OK || after >= before;
}
