/* Tensors: creation on a context, properties, and reading or writing values from the host. tapegrad.h includes this
 * header. */
#ifndef TAPEGRAD_TENSOR_H
#define TAPEGRAD_TENSOR_H

#include <tapegrad/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Creation: the context owns these tensors, which live until tg_drop or tg_ctx_free ---- */

/* The dtype stands right after the context, and after the name if there is one; TG_DTYPE_DEFAULT is the context's
 * default dtype. Functions that draw numbers need a float dtype; otherwise TG_ERR_DTYPE. A shape with a negative dim
 * fails with TG_ERR_SHAPE; 0 is allowed. On error they return an inert tensor. Over ranks, placement.h says what
 * placement each new tensor has. */

/* Creates a tensor filled with zeros. */
TG_API tg_tensor *tg_zeros(tg_ctx *ctx, tg_dtype dtype, tg_shape shape);
/* Creates a tensor and fills it with prod(shape) elements of `dtype`, read from host memory in row-major order. */
TG_API tg_tensor *tg_from_host(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const void *data);
/* Creates a tensor on the caller's memory, without a copy. strides are in elements, 0 or more; NULL: row-major. data
 * must be aligned to the size of an element, and may be NULL if there are no elements. release(user) is called once,
 * when the last reference ends or at once on an error; release NULL: nothing is called. CPU contexts only
 * (TG_ERR_DEVICE). */
TG_API tg_tensor *tg_wrap(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const int64_t *strides, void *data,
                          void (*release)(void *user), void *user);
/* Creates a tensor of normal numbers with mean 0 and standard deviation std. */
TG_API tg_tensor *tg_randn(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, double std);
/* Creates a tensor of uniform numbers in [lo, hi). Fails with TG_ERR_ARGUMENT unless lo <= hi and both are finite. */
TG_API tg_tensor *tg_uniform(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, double lo, double hi);
/* Creates a parameter: a leaf that requires a gradient. Its values are normal with standard deviation std; std 0:
 * zeros. Its gradient is accumulated in float32, or in the parameter's dtype if that is wider. name is copied; NULL:
 * "". */
TG_API tg_tensor *tg_param_new(tg_ctx *ctx, const char *name, tg_dtype dtype, tg_shape shape, double std);

/* Returns a new handle on the same bytes, owned by the context, so it outlives the tape of x. Release it with tg_drop.
 * No gradient flows through it. */
TG_API tg_tensor *tg_keep(tg_tensor *x);
/* Releases a handle that the context owns. The bytes are freed when no handle and no node needs them. Ignores NULL,
 * dead and inert handles, tensors of a tape, tensors that belong to a module or an optimizer, and the gradient of a
 * leaf. */
TG_API void tg_drop(tg_tensor *x);

/* ---- Properties ---- */

/* These functions accept NULL, inert and ended handles, and answer as for an empty tensor (0, false, "" or -1).
 *
 * A context-owned handle is recognized as ended until its memory is reused for a new handle. A handle of a tape is
 * recognized after one tg_tape_reset; after a second reset its memory may hold another tensor, and the old pointer may
 * be read as that tensor. To hold a tensor for longer, use tg_keep, or tg_ref, which always detects this.
 */
TG_API bool tg_is_alive(const tg_tensor *x); /* false if inert, dropped, reset with its tape, or overwritten in place */
/* Returns the context of x; NULL for NULL. */
TG_API tg_ctx *tg_ctx_of(const tg_tensor *x);
TG_API int tg_ndim(const tg_tensor *x);
TG_API int64_t tg_dim(const tg_tensor *x, int i);    /* negative i counts from the end; -1 if out of range */
TG_API int64_t tg_stride(const tg_tensor *x, int i); /* in elements; i as for tg_dim */
TG_API int64_t tg_numel(const tg_tensor *x);
TG_API tg_shape tg_shape_of(const tg_tensor *x);
TG_API tg_dtype tg_dtype_of(const tg_tensor *x);
TG_API bool tg_is_contiguous(const tg_tensor *x); /* whether x is row-major without gaps */
TG_API bool tg_requires_grad(const tg_tensor *x);
TG_API const char *tg_name(const tg_tensor *x); /* "" if it has none */
/* Sets the name, which is copied and must not be NULL. */
TG_API tg_status tg_set_name(tg_tensor *x, const char *name);
/* Sets whether ops recorded from now on give x a gradient. Fails with TG_ERR_STATE for the result of an op, and with
 * TG_ERR_DTYPE for a dtype that is not a float. */
TG_API tg_status tg_set_requires_grad(tg_tensor *x, bool on);
TG_API size_t tg_describe(const tg_tensor *x, char *buf, size_t n); /* writes, for example, "fc1.weight f32[32, 8]" */

/* A reference that may be held indefinitely, for example by a language binding. It detects that its tensor has ended,
 * even when the memory of the handle has been reused. */
typedef struct tg_ref {
    tg_tensor *tensor;
    uint64_t serial;
} tg_ref;

/* Returns a reference to x; an empty one for NULL or a dead handle. */
TG_API tg_ref tg_ref_of(const tg_tensor *x);
/* Returns the tensor; or, without an error, an inert one if the tensor has ended or belongs to another context. The
 * context must be alive. */
TG_API tg_tensor *tg_ref_get(tg_ctx *ctx, tg_ref r);

/* ---- Values: reads and writes by the host, which wait until the bytes are present ---- */

/* Returns the only element of x; NaN on an error, such as TG_ERR_SHAPE if x has not one element. */
TG_API double tg_item(tg_tensor *x);
/* Copy all elements to dst or from src, in row-major order and in x's dtype. bytes must be exactly the number of
 * elements times their size; otherwise TG_ERR_ARGUMENT. Reading a gradient that is a share of a sum, and writing to a
 * tensor whose elements share memory (tg_expand), fails with TG_ERR_STATE. */
TG_API tg_status tg_read(tg_tensor *x, void *dst, size_t bytes);
TG_API tg_status tg_write(tg_tensor *x, const void *src, size_t bytes);
/* Copy all elements, converted to or from double, otherwise like tg_read and tg_write. n must be their number. */
TG_API tg_status tg_read_f64(tg_tensor *x, double *dst, int64_t n);
TG_API tg_status tg_write_f64(tg_tensor *x, const double *src, int64_t n);
/* Returns a pointer to the bytes of x. CPU only; NULL on an error. Valid until the next call that takes the tape or the
 * context of x. The library does not notice writes through the pointer: if the bytes may then differ between ranks,
 * declare the leaf's placement (tg_place). */
TG_API void *tg_host_data(tg_tensor *x);

/* Releases the bytes of x now. The handle and its shape stay valid; a later read of its values fails with
 * TG_ERR_DISCARDED. Fails with TG_ERR_STATE if a node has saved the bytes, if they belong to the caller (tg_wrap), to a
 * parameter or to an optimizer, or if they are gone already. */
TG_API tg_status tg_discard(tg_tensor *x);

/* The state of a tensor's bytes: present, being filled by a work (work.h), or released. */
typedef enum tg_storage_state { TG_PRESENT, TG_IN_FLIGHT, TG_DISCARDED } tg_storage_state;
TG_API tg_storage_state tg_storage_state_of(const tg_tensor *x); /* TG_DISCARDED for NULL and dead handles */
/* Releases the bytes of x now, as tg_discard does; the next read calls refill, which writes them to dst. refill stays
 * in force: if a scope or a backward discards the bytes again, refill is called again. It ends when something else
 * writes to x. free releases user when refill is no longer needed, and at once on an error; free may be NULL. */
TG_API tg_status tg_discard_with(tg_tensor *x, tg_status (*refill)(void *user, tg_ctx *ctx, void *dst, size_t bytes),
                                 void (*free)(void *user), void *user);

#ifdef __cplusplus
}
#endif

#endif
