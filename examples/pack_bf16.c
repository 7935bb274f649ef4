/* What backward needs of the forward pass waits as bfloat16: half of the memory, and gradients that are off by what its
 * rounding makes of them. pack_bf16 [DEVICE]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/tapegrad.h>

enum { BLOCKS = 8, ROWS = 512, WIDTH = 64, WEIGHTS = 2 * BLOCKS, EACH = 4 * WIDTH * WIDTH };

/* ---- Packed: a bfloat16 tensor of the context ---- */

/* The element-wise formula of that name, for the device's own kernels. */
static tg_formula formula(const char *name) {
    tg_formula f = 0;
    while (f < tg_formula_count() && strcmp(tg_formula_name(f), name) != 0) f++;
    return f;
}

/* to = from, converted. */
static tg_status convert(tg_tensor *to, const tg_tensor *from) {
    const double none[2] = {0, 0};
    tg_ctx *ctx = tg_ctx_of(to);
    tg_array in = tg_array_of(from);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    return tg_ctx_ops(ctx)->map(ctx, formula("id"), tg_array_of(to), &in, 1, none, false);
}

static tg_status halve(void *user, tg_tape *t, tg_tensor *x, void **packed) {
    (void)user, (void)t;
    if (tg_dtype_of(x) != TG_F32 || tg_numel(x) < 1024) return TG_OK; /* it stays */
    tg_tensor *half = tg_zeros(tg_ctx_of(x), TG_BF16, tg_shape_of(x));
    *packed = half;
    return convert(half, x);
}

static tg_status widen(void *user, void *packed, tg_tensor *x) {
    (void)user;
    return convert(x, packed);
}

static void forget(void *user, void *packed) {
    (void)user;
    tg_drop(packed);
}

/* ---- A network whose blocks are scopes ---- */

static tg_tensor *block(tg_tape *t, tg_tensor *x, tg_tensor *const *w) {
    tg_scope_open(t, "block");
    tg_tensor *y = tg_add(t, x, tg_linear(t, tg_gelu(t, tg_linear(t, x, w[0], NULL)), w[1], NULL));
    tg_scope_close(t, &y, 1); /* what its ops saved is packed here */
    return y;
}

/* One step; the weights' gradients, and the peak of the device's memory. */
static bool step(const char *device, const tg_packer *packer, float *grads, int64_t *peak) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = device, .seed = 3));
    tg_tensor *w[WEIGHTS], *x = tg_randn(ctx, TG_SHAPE(ROWS, WIDTH), 1);
    for (int i = 0; i < WEIGHTS; i++)
        w[i] = tg_param(ctx, "w", i % 2 ? TG_SHAPE(WIDTH, 4 * WIDTH) : TG_SHAPE(4 * WIDTH, WIDTH), 0.1);
    tg_tape *t = tg_tape_new(ctx);
    tg_tape_pack(t, packer);
    tg_memory_reset_peak(ctx);
    for (int i = 0; i < BLOCKS; i++) {
        tg_tensor *y = block(t, x, w + 2 * i);
        tg_pack(x); /* the last one's output, which nothing reads any more before backward */
        x = y;
    }
    tg_backward(t, tg_mean(t, tg_square(t, x), TG_ALL_DIMS, false));
    for (int i = 0; i < WEIGHTS; i++) tg_read(tg_grad_of(w[i]), grads + (size_t)i * EACH, EACH * sizeof *grads);
    tg_memory m = TG_MEMORY();
    tg_memory_stats(ctx, &m);
    *peak = m.peak;
    bool good = tg_ctx_status(ctx) == TG_OK;
    if (!good) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return good;
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cpu";
    float *a = calloc(2 * (size_t)WEIGHTS * EACH, sizeof *a), *b = a + (size_t)WEIGHTS * EACH;
    int64_t plain, packed;
    double error = 0, norm = 0;
    if (!a || !step(device, NULL, a, &plain) ||
        !step(device, TG_PACKER(.pack = halve, .unpack = widen, .drop = forget), b, &packed))
        return 1;
    for (size_t i = 0; i < (size_t)WEIGHTS * EACH; i++) {
        error += pow(a[i] - b[i], 2);
        norm += pow(a[i], 2);
    }
    printf("kept as float32:  %9lld bytes at the peak\n", (long long)plain);
    printf("kept as bfloat16: %9lld bytes at the peak; the gradient is off by %.3g of its norm\n", (long long)packed,
           sqrt(error / norm));
    free(a);
    return error > 0 && sqrt(error / norm) < 0.01 && packed < plain ? 0 : 1;
}
