/* offload [DEVICE]: keeps the tensors that are saved for backward on the host, so that a step uses less memory of the
 * device. The gradients have the same bits. On device cpu the host's memory stands for another place, such as a
 * file. */
#include <math.h>
#include <stdlib.h>

#include <tapegrad/work.h>

#include "packed_network.h"

/* ---- A packed tensor: its copy on the host ---- */

typedef struct parcel {
    tg_work *download; /* the work that fills data; NULL: it has ended */
    size_t bytes;
    char data[];
} parcel;

static tg_status to_host(void *user, tg_tape *t, tg_tensor *x, void **packed) {
    size_t bytes = (size_t)tg_numel(x) * (size_t)tg_dtype_bits(tg_dtype_of(x)) / 8;
    (void)user, (void)t;
    if (bytes < 4096) return TG_OK; /* too small to be worth a copy; it stays on the device */
    parcel *p = malloc(sizeof *p + bytes);
    if (!p) return TG_ERR_MEMORY;
    *p = (parcel){.download = tg_download(x, p->data, bytes), .bytes = bytes}; /* the device computes meanwhile */
    *packed = p;
    return TG_OK;
}

static tg_status wait_for_download(parcel *p) {
    tg_status s = p->download ? tg_work_wait(p->download) : TG_OK;
    p->download = NULL;
    return s;
}

static tg_status from_host(void *user, void *packed, tg_tensor *x) {
    parcel *p = packed;
    (void)user;
    tg_status s = wait_for_download(p);
    return s == TG_OK ? tg_upload(x, p->data, p->bytes) : s;
}

static void free_parcel(void *user, void *packed) {
    (void)user;
    wait_for_download(packed);
    free(packed);
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cpu";
    float *a = calloc(2 * (size_t)WEIGHTS * EACH, sizeof *a), *b = a + (size_t)WEIGHTS * EACH;
    int64_t plain, packed;
    double worst = 0;
    if (!a || !packed_step(device, NULL, a, &plain) ||
        !packed_step(device, TG_PACK_OPS(.pack = to_host, .unpack = from_host, .drop = free_parcel), b, &packed))
        return 1;
    for (size_t i = 0; i < (size_t)WEIGHTS * EACH; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    printf("kept on the device: %9lld bytes at the peak\n", (long long)plain);
    printf("kept on the host:   %9lld bytes at the peak; gradients differ by %g\n", (long long)packed, worst);
    free(a);
    return worst == 0 && packed < plain ? 0 : 1;
}
