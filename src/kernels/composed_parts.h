/* Helpers for the composed slots: short names for a device's required slots, and memory for temporaries. */
#ifndef TG_COMPOSED_PARTS_H
#define TG_COMPOSED_PARTS_H

#include "base/memory/device_memory.h"
#include "base/dtype.h"
#include "base/runtime.h"
#include "kernels/composed.h"
#include "kernels/scalar.h"

/* An array with its layout. The array points to shape and stride of the same struct, so the struct is set up in place
 * and never copied. */
typedef struct view {
    tg_array a;
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
} view;

/* Memory for the temporaries of one call, handed out in order. It begins as {0}, and ends with arena_close. */
typedef struct arena {
    char *at;        /* the next free byte */
    tg_block *block; /* on a device whose memory the host cannot access; NULL elsewhere */
} arena;

/* Returns the dtype in which kernels compute on x. */
static inline tg_dtype compute_of(const tg_array *x) {
    return x->dtype == TG_F64 ? TG_F64 : TG_F32;
}

/* Makes v the array of this shape at data, row-major and without gaps. */
static inline void view_dense(view *v, void *data, tg_dtype d, int ndim, const int64_t *shape) {
    int64_t n = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        v->shape[i] = shape[i];
        v->stride[i] = n;
        n *= shape[i];
    }
    v->a = (tg_array){.data = data, .shape = v->shape, .stride = v->stride, .numel = n, .ndim = (uint8_t)ndim,
                      .dtype = (uint8_t)d, .contiguous = true};
}

/* Makes v the array at data that holds one value for each row of x, without gaps. Its shape is that of x with 1 for the
 * last dim: what a reduction of the rows writes. */
static inline void view_rows(view *v, void *data, tg_dtype d, const tg_array *x) {
    int64_t shape[TG_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++)
        shape[i] = i + 1 < x->ndim ? x->shape[i] : 1;
    view_dense(v, data, d, x->ndim, shape);
}

/* Makes v the array x broadcast to this shape: dims of size 1 and missing leading dims are repeated. */
static inline void view_expand(view *v, const tg_array *x, int ndim, const int64_t *shape) {
    v->a = *x;
    v->a.numel = 1;
    for (int i = ndim - 1, j = x->ndim - 1; i >= 0; i--, j--) {
        bool repeated = j < 0 || x->shape[j] == 1;
        v->shape[i] = shape[i];
        v->stride[i] = repeated ? 0 : x->stride[j];
        v->a.contiguous &= !repeated || shape[i] == 1;
        v->a.numel *= shape[i];
    }
    v->a.shape = v->shape;
    v->a.stride = v->stride;
    v->a.ndim = (uint8_t)ndim;
}

/* Returns the bytes that arena_take uses for n elements: their size rounded up to whole cache lines. */
static inline size_t arena_bytes(int64_t n, tg_dtype d) {
    return ((size_t)n * (size_t)tg_dtype_bits(d) / 8 + 63) / 64 * 64;
}

/* Returns memory for n elements. The caller has counted it in the bytes that it passed to arena_open. */
static inline void *arena_take(arena *m, int64_t n, tg_dtype d) {
    void *p = m->at;
    m->at += arena_bytes(n, d);
    return p;
}

/* Computes out (+)= f(in...), with each input broadcast to out's shape. p and q are the formula's parameters. (+)= adds
 * if `add` is true, and overwrites otherwise. */
static inline tg_status map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n, double p, double q,
                            bool add) {
    view v[TG_FN_INPUTS];
    tg_array x[TG_FN_INPUTS];
    for (int i = 0; i < n; i++) {
        view_expand(&v[i], &in[i], out.ndim, out.shape);
        x[i] = v[i].a;
    }
    return tg_ctx_ops(ctx)->apply(ctx, f, out, x, n, (const double[2]){p, q}, add);
}

/* These macros call the slots apply and reduce. On an error they return the status from the function that uses them.
 * They use the variable `ctx` of that function. */
#define MAP_P(f, out, p, q, add, ...)                                    \
    TG_TRY(map(ctx, TG_FN_##f, out, (const tg_array[]){__VA_ARGS__},     \
               (int)(sizeof((tg_array[]){__VA_ARGS__}) / sizeof(tg_array)), p, q, add))
#define MAP(f, out, ...) MAP_P(f, out, 0, 0, false, __VA_ARGS__)
#define REDUCE(kind, out, in, scale, add) TG_TRY(tg_ctx_ops(ctx)->reduce(ctx, kind, out, in, scale, add))

/* Blocks of work memory (tg_workspace): attention uses block COMPOSED_HEADS, and all other composed slots use block
 * COMPOSED_ROWS. The required slots of the CPU use other blocks, so composed slots can call them. (The fused kernels of
 * the CPU use these two blocks, but composed slots do not call them.) */
enum { COMPOSED_ROWS = 5, COMPOSED_HEADS = 6 };

/* Reserves `bytes` bytes for the calls of arena_take. They are in this block of work memory. Work memory is on the
 * host, so if the host cannot access the device's memory, they are in a block of the device's memory instead. */
static inline tg_status arena_open(tg_ctx *ctx, arena *m, int block, size_t bytes) {
    if (tg_ctx_ops(ctx)->host) {
        m->at = tg_workspace(ctx, block, bytes ? bytes : 1);
        return m->at ? TG_OK : TG_ERR_MEMORY;
    }
    m->block = tg_take_block(ctx, bytes, TG_MEM_WORKSPACE);
    if (!m->block) return tg_memory_fail(ctx, bytes, " of workspace");
    m->at = tg_block_data(m->block);
    return TG_OK;
}

/* Releases the memory. Later work of the device may use it again, because that work runs after what is queued now.
 * Returns s, the status of the calls that have used the memory. */
static inline tg_status arena_close(tg_ctx *ctx, arena *m, tg_status s) {
    if (m->block) tg_heap_release(tg_runtime_of(ctx)->heap, m->block);
    m->block = NULL;
    return s;
}

#endif
