/* pack_bf16 [DEVICE]: keeps the tensors that are saved for backward as bfloat16, so that they take half of the memory.
 * The gradients change by the rounding to bfloat16. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "packed_network.h"

/* ---- A packed tensor: a bfloat16 tensor of the context ---- */

/* Returns the number of an element-wise formula. The device's function `map` takes this number. */
static tg_formula formula(const char *name) {
    tg_formula f = 0;
    while (f < tg_formula_count() && strcmp(tg_formula_name(f), name) != 0) f++;
    return f;
}

/* Copies `from` to `to`, and converts the elements to the dtype of `to`. */
static tg_status convert(tg_tensor *to, const tg_tensor *from) {
    const double none[2] = {0, 0};
    tg_ctx *ctx = tg_ctx_of(to);
    tg_array in = tg_array_of(from);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    return tg_ctx_ops(ctx)->apply(ctx, formula("id"), tg_array_of(to), &in, 1, none, false);
}

static tg_status halve(void *user, tg_tape *t, tg_tensor *x, void **packed) {
    (void)user, (void)t;
    if (tg_dtype_of(x) != TG_F32 || tg_numel(x) < 1024) return TG_OK; /* x is kept as it is */
    tg_tensor *half = tg_zeros(tg_ctx_of(x), TG_BF16, tg_shape_of(x));
    *packed = half;
    return convert(half, x);
}

static tg_status widen(void *user, void *packed, tg_tensor *x) {
    (void)user;
    return convert(x, packed);
}

static void drop_packed(void *user, void *packed) {
    (void)user;
    tg_drop(packed);
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cpu";
    float *a = calloc(2 * (size_t)WEIGHTS * EACH, sizeof *a), *b = a + (size_t)WEIGHTS * EACH;
    int64_t plain, packed;
    double error = 0, norm = 0;
    if (!a || !packed_step(device, NULL, a, &plain) ||
        !packed_step(device, TG_PACK_OPS(.pack = halve, .unpack = widen, .drop = drop_packed), b, &packed))
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
