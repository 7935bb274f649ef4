/* Tensors that are saved for backward are kept on the host: the gradients have the same bits, and less memory is
 * used on the device. Usage: offload [DEVICE]. On the CPU the host's memory stands for another place, such as a
 * file. */
#include <math.h>
#include <stdlib.h>

#include <tapegrad/work.h>

#include "packed_network.h"

/* ---- A packed tensor: its copy on the host, and the copy's work while it is in flight ---- */

typedef struct parcel {
    tg_work *coming;
    size_t bytes;
    char data[];
} parcel;

static tg_status to_host(void *user, tg_tape *t, tg_tensor *x, void **packed) {
    size_t bytes = (size_t)tg_numel(x) * (size_t)tg_dtype_bits(tg_dtype_of(x)) / 8;
    (void)user, (void)t;
    if (bytes < 4096) return TG_OK; /* too small to be worth a copy; it stays on the device */
    parcel *p = malloc(sizeof *p + bytes);
    if (!p) return TG_ERR_MEMORY;
    *p = (parcel){.coming = tg_download(x, p->data, bytes), .bytes = bytes}; /* in parallel with the device */
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

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cpu";
    float *a = calloc(2 * (size_t)WEIGHTS * EACH, sizeof *a), *b = a + (size_t)WEIGHTS * EACH;
    int64_t plain, packed;
    double worst = 0;
    if (!a || !packed_step(device, NULL, a, &plain) ||
        !packed_step(device, TG_PACK_OPS(.pack = to_host, .unpack = from_host, .drop = forget), b, &packed))
        return 1;
    for (size_t i = 0; i < (size_t)WEIGHTS * EACH; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    printf("kept on the device: %9lld bytes at the peak\n", (long long)plain);
    printf("kept on the host:   %9lld bytes at the peak; gradients differ by %g\n", (long long)packed, worst);
    free(a);
    return worst == 0 && packed < plain ? 0 : 1;
}
