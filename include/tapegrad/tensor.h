/* Tensors on a context: how they are made, what they are, and their values. */
#ifndef TAPEGRAD_TENSOR_H
#define TAPEGRAD_TENSOR_H

#include <tapegrad/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tensors on a context ---- */

TG_API tg_tensor *tg_zeros(tg_ctx *ctx, tg_dtype dtype, tg_shape shape);
/* Copies prod(shape) elements from host memory, row-major. */
TG_API tg_tensor *tg_from_host(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const void *data);
/* Over the caller's memory (NULL: no elements), without a copy. strides in elements, NULL: row-major. release(user) is
 * called when the last reference has gone (never, if NULL); on an error it is called at once. CPU contexts only. */
TG_API tg_tensor *tg_wrap(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const int64_t *strides, void *data,
                          void (*release)(void *user), void *user);
TG_API tg_tensor *tg_randn(tg_ctx *ctx, tg_shape shape, double std);              /* normal, mean 0, default dtype */
TG_API tg_tensor *tg_uniform(tg_ctx *ctx, tg_shape shape, double lo, double hi); /* in [lo, hi), default dtype */
/* A leaf that needs a gradient: normal with standard deviation std, 0: zeros. Its gradient is accumulated in
 * float32, or in the parameter's dtype where that is wider. name is copied. */
TG_API tg_tensor *tg_param(tg_ctx *ctx, const char *name, tg_shape shape, double std);
TG_API tg_tensor *tg_param_of(tg_ctx *ctx, const char *name, tg_dtype dtype, tg_shape shape, double std);

/* A context-owned handle on the same bytes, that outlives its tape; no gradient flows through it. */
TG_API tg_tensor *tg_keep(tg_tensor *x);
/* Ends a context-owned handle. Ignored: NULL, dead, inert and tape-owned ones, what belongs to a module or an
 * optimiser, and a leaf's gradient. */
TG_API void tg_drop(tg_tensor *x);

/* ---- What a tensor is (safe on any handle that came from this library: dead ones answer as empty) ---- */

TG_API bool tg_is_alive(const tg_tensor *x); /* false: inert, dropped, of an ended tape, superseded in place */
TG_API tg_ctx *tg_ctx_of(const tg_tensor *x);
TG_API int tg_ndim(const tg_tensor *x);
TG_API int64_t tg_dim(const tg_tensor *x, int i);    /* negative i from the end; -1 when out of range */
TG_API int64_t tg_stride(const tg_tensor *x, int i); /* in elements */
TG_API int64_t tg_numel(const tg_tensor *x);
TG_API tg_shape tg_shape_of(const tg_tensor *x);
TG_API tg_dtype tg_dtype_of(const tg_tensor *x);
TG_API bool tg_is_contiguous(const tg_tensor *x);
TG_API bool tg_requires_grad(const tg_tensor *x);
TG_API const char *tg_name(const tg_tensor *x); /* "" when it has none */
TG_API tg_status tg_set_name(tg_tensor *x, const char *name);
/* Leaves only: whether what is recorded from now on gives x a gradient. */
TG_API tg_status tg_set_requires_grad(tg_tensor *x, bool on);
TG_API size_t tg_describe(const tg_tensor *x, char *buf, size_t n); /* "fc1.weight f32[32, 8]" */

/* A reference that a binding may hold for ever: it knows when its tensor has gone. */
typedef struct tg_ref {
    tg_tensor *tensor;
    uint64_t serial;
} tg_ref;

TG_API tg_ref tg_ref_of(const tg_tensor *x);
/* The tensor; or an inert one, without an error, when it has gone or is of another context (which must be alive). */
TG_API tg_tensor *tg_ref_get(tg_ctx *ctx, tg_ref r);

/* ---- Values: explicit reads and writes of the host ---- */

TG_API double tg_item(tg_tensor *x); /* of a tensor with one element; NaN on error */
/* Row-major copies of all elements in x's dtype; bytes must be exactly numel * size. */
TG_API tg_status tg_read(tg_tensor *x, void *dst, size_t bytes);
TG_API tg_status tg_write(tg_tensor *x, const void *src, size_t bytes);
TG_API tg_status tg_read_f64(tg_tensor *x, double *dst, int64_t n); /* converted */
TG_API tg_status tg_write_f64(tg_tensor *x, const double *src, int64_t n);
/* The bytes themselves, CPU only, NULL on error. Valid until the next call that takes x's tape or context. */
TG_API void *tg_host_data(tg_tensor *x);

/* Gives x's bytes back now; who reads them later gets an error that says so. The handle and its shape stay. */
TG_API tg_status tg_discard(tg_tensor *x);

typedef enum tg_storage_state { TG_PRESENT, TG_IN_FLIGHT, TG_DISCARDED } tg_storage_state;
TG_API tg_storage_state tg_storage_state_of(const tg_tensor *x); /* TG_DISCARDED for NULL and dead handles */
/* Gives x's bytes back now; whoever reads them next calls refill, which writes dst. It serves again where a scope or
 * backward takes them, until something else is written to them. free ends user, on an error at once. */
TG_API tg_status tg_discard_with(tg_tensor *x, tg_status (*refill)(void *user, tg_ctx *ctx, void *dst, size_t bytes),
                                 void (*free)(void *user), void *user);

#ifdef __cplusplus
}
#endif

#endif
