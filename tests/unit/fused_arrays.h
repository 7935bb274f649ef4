/* Arrays of any dtype and layout in plain memory, read and written as doubles, for tests of device slots. A slot's
 * output starts as NaN; its values are compared and added to a digest of bits. */
#ifndef TG_TEST_ARRAYS_H
#define TG_TEST_ARRAYS_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"
#include "tapegrad/extend.h"

typedef enum layout { ROWS, STRIDED, TRANSPOSED, LAYOUTS } layout;

typedef struct array {
    tg_array a; /* first member, so that &x.a is what slots take */
    int64_t shape[4], stride[4];
    size_t bytes;
} array;

/* The context of a test, and the digest of every output that it has checked. */
typedef struct bench {
    tg_ctx *ctx;
    const tg_device_ops *ops;
    tg_dtype dtype;
    layout layout;
    double slack; /* factor of the tolerance */
    uint64_t digest;
} bench;

static inline tg_dtype wide(tg_dtype d) {
    return d == TG_F64 ? TG_F64 : TG_F32;
}

static inline array *array_new(tg_dtype d, layout l, int ndim, const int64_t *shape) {
    array *x = calloc(1, sizeof *x);
    int order[4] = {0, 1, 2, 3};
    if (l == TRANSPOSED && ndim >= 2) {
        order[ndim - 2] = ndim - 1;
        order[ndim - 1] = ndim - 2;
    }
    int64_t n = l == STRIDED ? 2 : 1, count = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        x->shape[i] = shape[i];
        x->stride[order[i]] = n;
        n *= shape[order[i]];
        count *= shape[i];
    }
    x->bytes = (size_t)n * (size_t)tg_dtype_bits(d) / 8;
    x->a = (tg_array){.data = malloc(x->bytes + 1), .shape = x->shape, .stride = x->stride, .numel = count,
                      .ndim = (uint8_t)ndim, .dtype = (uint8_t)d, .contiguous = l == ROWS};
    memset(x->a.data, 0xff, x->bytes);
    return x;
}

#define ARRAY(d, l, ...) \
    array_new(d, l, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

static inline void array_free(array *x) {
    if (x)
        free(x->a.data);
    free(x);
}

static inline int64_t array_at(const array *x, int64_t i) {
    int64_t at = 0;
    for (int d = x->a.ndim - 1; d >= 0; d--) {
        at += i % x->shape[d] * x->stride[d];
        i /= x->shape[d];
    }
    return at;
}

/* Returns element i in row-major order. */
static inline double get(const array *x, int64_t i) {
    int64_t at = array_at(x, i);
    switch (x->a.dtype) {
    case TG_F64: return ((const double *)x->a.data)[at];
    case TG_BF16: return tg_bf16_to_f32(((const uint16_t *)x->a.data)[at]);
    case TG_F16: return tg_f16_to_f32(((const uint16_t *)x->a.data)[at]);
    case TG_I64: return (double)((const int64_t *)x->a.data)[at];
    default: return ((const float *)x->a.data)[at];
    }
}

static inline void set(array *x, int64_t i, double v) {
    int64_t at = array_at(x, i);
    switch (x->a.dtype) {
    case TG_F64: ((double *)x->a.data)[at] = v; break;
    case TG_BF16: ((uint16_t *)x->a.data)[at] = tg_f64_to_bf16(v); break;
    case TG_F16: ((uint16_t *)x->a.data)[at] = tg_f64_to_f16(v); break;
    case TG_I64: ((int64_t *)x->a.data)[at] = (int64_t)v; break;
    default: ((float *)x->a.data)[at] = (float)v;
    }
}

/* Fills an array with values in about [-2, 2), other ones for every seed. */
static inline array *fill_array(array *x, uint32_t seed) {
    uint32_t s = seed * 2654435761u + 12345;
    for (int64_t i = 0; i < x->a.numel; i++) {
        s = s * 1664525u + 1013904223u;
        set(x, i, (double)(s >> 8) / (1 << 22) - 2);
    }
    return x;
}

static inline array *fill_with(array *x, double v) {
    for (int64_t i = 0; i < x->a.numel; i++)
        set(x, i, v);
    return x;
}

static inline double tolerance(tg_dtype d) {
    return d == TG_F64 ? 1e-12 : d == TG_BF16 ? 1.0 / 128 : d == TG_F16 ? 1.0 / 512 : 2e-5;
}

/* Checks that every element of got is near want (row-major doubles), and adds its memory to the digest. */
static inline void expect(bench *t, const array *got, const double *want, const char *what) {
    double tol = t->slack * tolerance((tg_dtype)got->a.dtype);
    for (int64_t i = 0; i < got->a.numel; i++) {
        double g = get(got, i), w = want[i];
        bool near = isnan(w) ? isnan(g) : g == w || fabs(g - w) <= tol * (1 + fabs(w));
        if (!near)
            ck_abort_msg("%s %s layout %d on %s, element %lld: %.9g, expected %.9g", what, tg_dtype_name(t->dtype),
                         (int)t->layout, tg_ctx_isa(t->ctx), (long long)i, g, w);
    }
    for (size_t i = 0; i < got->bytes; i++)
        t->digest = (t->digest ^ ((const uint8_t *)got->a.data)[i]) * 1099511628211u;
}

#endif
