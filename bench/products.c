/* Single matrix products, called directly as the device's slot gemm (device.h), and the rate at which memory is
 * read. */
#include "kernel.h"

/* ---- [rows, inner] x [inner, columns] ---- */

static tg_status gemm_once(kernel *k) { return k->ops->gemm(k->ctx, &k->gemm); }

/* Makes an operand [m, n], stored transposed if `transposed` is true. */
static tg_matrix operand(kernel *k, int64_t m, int64_t n, bool transposed) {
    tg_array a = normal(k, transposed ? TG_SHAPE(n, m) : TG_SHAPE(m, n));
    return (tg_matrix){.data = a.data, .rs = transposed ? 1 : n, .cs = transposed ? m : 1, .dtype = (tg_dtype)a.dtype};
}

static kernel *product_new(tg_ctx *ctx, const bench_options *o, tg_status (*once)(kernel *k)) {
    kernel *k = kernel_new(ctx, o, once);
    if (!k) return NULL;
    k->gemm = (tg_gemm){.m = o->rows, .n = o->columns, .k = o->inner, .batch = {1, 1}, .alpha = 1};
    k->gemm.a = operand(k, o->rows, o->inner, o->form == FORM_TN);
    k->gemm.b = operand(k, o->inner, o->columns, o->form == FORM_NT);
    tg_array c = zeros(k, TG_DTYPE_DEFAULT, TG_SHAPE(o->rows, o->columns));
    k->gemm.c = (tg_matrix){.data = c.data, .rs = o->columns, .cs = 1, .dtype = (tg_dtype)c.dtype};
    return k;
}

static void *gemm_open(tg_ctx *ctx, const bench_options *o) { return product_new(ctx, o, gemm_once); }

/* ---- [rows, inner] times each of `layers` weights [columns, inner], so many that no cache holds them ---- */

static tg_status linear_once(kernel *k) {
    tg_gemm g = k->gemm;
    for (int64_t i = 0; i < k->products; i++) {
        g.b.data = tg_array_of(k->made[k->n - 1 - i]).data;
        tg_status s = k->ops->gemm(k->ctx, &g);
        if (s != TG_OK) return s;
    }
    return TG_OK;
}

static void *linear_open(tg_ctx *ctx, const bench_options *o) {
    bench_options options = *o;
    options.form = FORM_NT;
    kernel *k = product_new(ctx, &options, linear_once);
    if (!k) return NULL;
    k->products = o->layers < MAX_TENSORS - 8 ? o->layers : MAX_TENSORS - 8;
    for (int64_t i = 0; i < k->products; i++) normal(k, TG_SHAPE(o->columns, o->inner));
    return k;
}

/* ---- Reading memory: [rows, columns] ---- */

/* Prefetching AHEAD lines ahead reads faster than the prefetcher of the CPU does by itself. */
enum { LINE = 64, WORDS = LINE / 8, AHEAD = 16 };

typedef struct reading {
    const uint64_t *from;
    _Atomic uint64_t seen; /* so that no read is optimized away */
} reading;

static void read_lines(void *arg, int64_t begin, int64_t end) {
    reading *r = arg;
    uint64_t seen[WORDS] = {0}, all = 0;
    for (int64_t i = begin; i < end; i++) {
        __builtin_prefetch(r->from + (i + AHEAD) * WORDS);
        for (int j = 0; j < WORDS; j++) seen[j] ^= r->from[i * WORDS + j];
    }
    for (int j = 0; j < WORDS; j++) all ^= seen[j];
    r->seen ^= all;
}

static tg_status read_once(kernel *k) {
    reading r = {.from = k->from.data};
    tg_parallel_run(k->ctx, k->from.numel * (tg_dtype_bits((tg_dtype)k->from.dtype) / 8) / LINE, read_lines, &r);
    k->bad ^= (int64_t)r.seen;
    return TG_OK;
}

static void *read_open(tg_ctx *ctx, const bench_options *o) {
    if (!tg_ctx_ops(ctx)->host) {
        tg_ctx_fail(ctx, TG_ERR_ARGUMENT, "row \"read\" needs device cpu, whose memory the host reads");
        return NULL;
    }
    kernel *k = kernel_new(ctx, o, read_once);
    if (k) k->from = normal(k, TG_SHAPE(o->rows, o->columns));
    return k;
}

KERNEL_ROW(gemm, "gemm", "a product [rows, inner] x [inner, columns]");
KERNEL_ROW(linear, "linear", "rows by `layers` weights [columns, inner], one after the other");
KERNEL_ROW(read, "read", "reading [rows, columns]");
