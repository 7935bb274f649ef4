/* What backward needs of the forward pass waits on the host: the same gradients to the bit, with less memory on the
 * device. offload [DEVICE]; on the CPU the host's memory stands for another place, such as a file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/extend.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/work.h>

enum { BLOCKS = 8, ROWS = 512, WIDTH = 64, WEIGHTS = 2 * BLOCKS, EACH = 4 * WIDTH * WIDTH };

/* ---- Packed: a copy on the host, and what is still on its way there ---- */

typedef struct parcel {
    tg_work *coming;
    size_t bytes;
    char data[];
} parcel;

static tg_status to_host(void *user, tg_tape *t, tg_tensor *x, void **packed) {
    size_t bytes = (size_t)tg_numel(x) * (size_t)tg_dtype_bits(tg_dtype_of(x)) / 8;
    (void)user, (void)t;
    if (bytes < 4096) return TG_OK; /* not worth the way */
    parcel *p = malloc(sizeof *p + bytes);
    if (!p) return TG_ERR_MEMORY;
    *p = (parcel){.coming = tg_download(x, p->data, bytes), .bytes = bytes}; /* beside the device's own work */
    *packed = p;
    return TG_OK;
}

static tg_status arrived(parcel *p) {
    tg_status s = p->coming ? tg_work_wait(p->coming) : TG_OK;
    p->coming = NULL;
    return s;
}

static tg_status from_host(void *user, void *packed, tg_tensor *x) {
    parcel *p = packed;
    (void)user;
    tg_status s = arrived(p);
    return s == TG_OK ? tg_upload(x, p->data, p->bytes) : s;
}

static void forget(void *user, void *packed) {
    (void)user;
    arrived(packed);
    free(packed);
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
    double worst = 0;
    if (!a || !step(device, NULL, a, &plain) ||
        !step(device, TG_PACKER(.pack = to_host, .unpack = from_host, .drop = forget), b, &packed))
        return 1;
    for (size_t i = 0; i < (size_t)WEIGHTS * EACH; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    printf("kept on the device: %9lld bytes at the peak\n", (long long)plain);
    printf("kept on the host:   %9lld bytes at the peak; gradients differ by %g\n", (long long)packed, worst);
    free(a);
    return worst == 0 && packed < plain ? 0 : 1;
}
