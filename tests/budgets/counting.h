/* A device that counts: the CPU's slots, each of which records its calls and the bytes that it must read and write. An
 * array counts once for each call, elements that strides repeat count once, and bytes that stay in a cache between two
 * calls count again. */
#ifndef TG_TEST_COUNTING_H
#define TG_TEST_COUNTING_H

#include <tapegrad/extend.h>
#include <tapegrad/step.h>

#include "kernels/cpu/cpu.h"

typedef enum kind { PASSES, PRODUCTS, ATTENTION, OPTIMIZER, KINDS } kind;

typedef struct counted {
    int64_t calls[KINDS], bytes[KINDS];
} counted;

static counted so_far;

static inline int64_t bytes_in(tg_array a) {
    int64_t n = a.data ? tg_dtype_bits(a.dtype) / 8 : 0;
    for (int d = 0; d < a.ndim; d++)
        if (a.stride[d] || a.shape[d] == 0) n *= a.shape[d];
    return n;
}

static inline void note(kind k, int64_t bytes) {
    so_far.calls[k]++;
    so_far.bytes[k] += bytes;
}

/* An output that is added to is read too. */
static inline int64_t written(tg_array a, bool add) { return bytes_in(a) * (add ? 2 : 1); }

static inline tg_status count_copy(tg_ctx *c, void *dst, const void *src, size_t bytes, tg_copy_kind k) {
    note(PASSES, 2 * (int64_t)bytes);
    return tg_cpu_device.copy(c, dst, src, bytes, k);
}

static inline tg_status count_map(tg_ctx *c, tg_formula f, tg_array out, const tg_array *in, int n, const double p[2],
                                  bool add) {
    int64_t bytes = written(out, add);
    for (int i = 0; i < n; i++) bytes += bytes_in(in[i]);
    note(PASSES, bytes);
    return tg_cpu_device.apply(c, f, out, in, n, p, add);
}

static inline tg_status count_fill(tg_ctx *c, tg_array out, double value) {
    note(PASSES, bytes_in(out));
    return tg_cpu_device.fill(c, out, value);
}

static inline tg_status count_iota(tg_ctx *c, tg_array out, double start, double step) {
    note(PASSES, bytes_in(out));
    return tg_cpu_device.iota(c, out, start, step);
}

/* Also used for the norm of an optimizer's step. */
static inline tg_status count_reduce(tg_ctx *c, tg_reduction r, tg_array out, tg_array in, double scale, bool add) {
    note(r == TG_SUMSQ ? OPTIMIZER : PASSES, written(out, add) + bytes_in(in));
    return tg_cpu_device.reduce(c, r, out, in, scale, add);
}

static inline int64_t matrices(const tg_matrix *m, int64_t rows, int64_t columns, const int64_t *batch) {
    int64_t n = m->data ? rows * columns * tg_dtype_bits(m->dtype) / 8 : 0;
    for (int i = 0; i < 2; i++) n *= m->bs[i] ? batch[i] : 1;
    return n;
}

static inline tg_status count_gemm(tg_ctx *c, const tg_gemm *g) {
    int64_t bias = g->bias ? g->n * tg_dtype_bits(g->bias_dtype) / 8 : 0;
    note(PRODUCTS, matrices(&g->a, g->m, g->k, g->batch) + matrices(&g->b, g->k, g->n, g->batch) +
                       matrices(&g->c, g->m, g->n, g->batch) * (g->beta != 0 ? 2 : 1) +
                       matrices(&g->pre, g->m, g->n, g->batch) + bias);
    return tg_cpu_device.gemm(c, g);
}

static inline tg_status count_take(tg_ctx *c, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad) {
    note(PASSES, 2 * bytes_in(out) + bytes_in(index));
    return tg_cpu_device.take(c, out, src, index, dim, bad);
}

static inline tg_status count_put_add(tg_ctx *c, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    note(PASSES, 3 * bytes_in(src) + bytes_in(index));
    return tg_cpu_device.put_add(c, dst, src, index, dim, bad);
}

static inline tg_status count_norm(tg_ctx *c, const tg_norm_args *a) {
    note(PASSES, bytes_in(a->x) + bytes_in(a->w) + bytes_in(a->b) + bytes_in(a->y) + bytes_in(a->mean) +
                     bytes_in(a->rstd));
    return tg_cpu_device.norm(c, a);
}

static inline tg_status count_norm_grad(tg_ctx *c, const tg_norm_args *a) {
    note(PASSES, bytes_in(a->x) + bytes_in(a->w) + bytes_in(a->mean) + bytes_in(a->rstd) + bytes_in(a->gy) +
                     written(a->gx, a->add_x) + written(a->gw, a->add_w) + written(a->gb, a->add_b));
    return tg_cpu_device.norm_grad(c, a);
}

static inline tg_status count_cross_entropy(tg_ctx *c, const tg_cross_entropy_args *a) {
    note(PASSES, bytes_in(a->logits) + bytes_in(a->target) + bytes_in(a->loss) + bytes_in(a->top) + bytes_in(a->mass));
    return tg_cpu_device.cross_entropy(c, a);
}

static inline tg_status count_cross_entropy_grad(tg_ctx *c, const tg_cross_entropy_args *a) {
    note(PASSES, bytes_in(a->logits) + bytes_in(a->target) + bytes_in(a->top) + bytes_in(a->mass) + bytes_in(a->gloss) +
                     written(a->glogits, a->add));
    return tg_cpu_device.cross_entropy_grad(c, a);
}

static inline tg_status count_attention(tg_ctx *c, const tg_attention_args *a) {
    note(ATTENTION, bytes_in(a->q) + bytes_in(a->k) + bytes_in(a->v) + bytes_in(a->out) + bytes_in(a->top) +
                        bytes_in(a->mass));
    return tg_cpu_device.attention(c, a);
}

static inline tg_status count_attention_grad(tg_ctx *c, const tg_attention_args *a) {
    note(ATTENTION, bytes_in(a->q) + bytes_in(a->k) + bytes_in(a->v) + bytes_in(a->out) + bytes_in(a->top) +
                        bytes_in(a->mass) + bytes_in(a->gout) + written(a->gq, a->add_q) + written(a->gk, a->add_k) +
                        written(a->gv, a->add_v));
    return tg_cpu_device.attention_grad(c, a);
}

static inline tg_status count_prepare(tg_ctx *c, const tg_prepare_args *a) {
    note(OPTIMIZER, (int64_t)sizeof(double) * (a->n_sums + TG_STEP_STATE * 2 + a->n_groups * TG_STEP_SCALARS));
    return tg_cpu_device.prepare(c, a);
}

static inline tg_status count_adamw(tg_ctx *c, const tg_adamw_args *a, int n) {
    int64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += bytes_in(a[i].grad) + 2 * (bytes_in(a[i].m) + bytes_in(a[i].v)) + bytes_in(a[i].param) +
                 (a[i].master.data ? 2 * bytes_in(a[i].master) : bytes_in(a[i].param));
    note(OPTIMIZER, bytes);
    return tg_cpu_device.adamw(c, a, n);
}

/* Slots that are not counted are NULL, so that they are composed of counted ones; random makes parameters before a
 * step. */
static inline tg_device_ops counting_device(void) {
    tg_device_ops d = tg_cpu_device;
    d.name = "counting";
    d.copy = count_copy;
    d.apply = count_map;
    d.fill = count_fill;
    d.iota = count_iota;
    d.reduce = count_reduce;
    d.gemm = count_gemm;
    d.take = count_take;
    d.put_add = count_put_add;
    d.softmax = NULL;
    d.softmax_grad = NULL;
    d.norm = count_norm;
    d.norm_grad = count_norm_grad;
    d.cross_entropy = count_cross_entropy;
    d.cross_entropy_grad = count_cross_entropy_grad;
    d.attention = count_attention;
    d.attention_grad = count_attention_grad;
    d.dropout = NULL;
    d.scan = NULL;
    d.sort = NULL;
    d.put = NULL;
    d.prepare = count_prepare;
    d.adamw = count_adamw;
    return d;
}

#endif
