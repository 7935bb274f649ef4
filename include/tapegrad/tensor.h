/* Tensors: creation on a context, properties, and reading or writing values from the host. tapegrad.h includes this
 * header. */
#ifndef TAPEGRAD_TENSOR_H
#define TAPEGRAD_TENSOR_H

#include <tapegrad/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Creation: the context owns these tensors, which live until tg_drop or tg_ctx_free ---- */

/* TG_DTYPE_DEFAULT means the context's default dtype. Functions that draw numbers take them from the current random
 * stream (context.h), and fail with TG_ERR_DTYPE unless dtype is a float. A shape with a negative size or with more
 * than TG_MAX_DIMS dims fails with TG_ERR_SHAPE; a size of 0 is allowed. The tensors are leaves, that is, no op made
 * them. Except for parameters, a new tensor requires no gradient until tg_set_requires_grad. On error the functions
 * return an inert tensor: a handle that is not NULL, on which calls do nothing (tapegrad.h). tg_place in placement.h
 * says which placement a new tensor has on several ranks.
 *
 * A tg_tensor pointer is a handle. It ends when the tensor is dropped or released (handles.h), when its tape is reset
 * or freed, or when the module or other object that owns it is freed. If an op overwrites a tensor of a tape in place,
 * the handle ends too, and the op returns a new one. A temporary tensor that a callback is given, such as the gradient
 * in a hook, ends when the callback returns; calls that drop it do nothing, and calls that discard it or change its
 * settings fail with TG_ERR_STATE. Calls that need a tensor refuse an ended handle with TG_ERR_HANDLE. */

/* Creates a tensor filled with zeros. */
TG_API tg_tensor *tg_zeros(tg_ctx *ctx, tg_dtype dtype, tg_shape shape);
/* Creates a tensor and copies its elements from host memory at data, where they are in row-major order and of dtype
 * `dtype`. data may be NULL if there are no elements. */
TG_API tg_tensor *tg_from_host(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const void *data);
/* Creates a tensor on the caller's memory, without a copy. data is the address of the first element, whose indices are
 * all 0. It must be aligned to the size of an element (TG_ERR_ARGUMENT), and may be NULL if there are no elements.
 * strides are in elements, and may be negative or 0. strides NULL means row-major. The library calls release(user)
 * once: when no handle, node, pin or export needs the memory any more, or at once on error. release may be NULL.
 * tg_set_read_only (handles.h) forbids writes. Works only on devices whose memory is the host's, such as "cpu"
 * (TG_ERR_DEVICE). */
TG_API tg_tensor *tg_wrap(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const int64_t *strides, void *data,
                          void (*release)(void *user), void *user);
/* Creates a tensor of normal numbers with mean 0 and standard deviation std, which must be finite and 0 or more
 * (TG_ERR_ARGUMENT). */
TG_API tg_tensor *tg_randn(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, double std);
/* Creates a tensor of uniform numbers in [lo, hi), or equal to lo if lo and hi are equal. lo must be at most hi. Both,
 * and their difference, must be finite in the dtype; for dtypes of 16 bits the difference must be finite in float32. If
 * lo < hi, the dtype must have a number in [lo, hi). Otherwise fails with TG_ERR_ARGUMENT. */
TG_API tg_tensor *tg_uniform(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, double lo, double hi);
/* Creates a parameter: a leaf that requires a gradient. Its values are normal with mean 0 and standard deviation std,
 * as in tg_randn; with std 0 they are 0. Its gradient is accumulated in float32, or in the parameter's dtype if that is
 * wider. name is copied. name NULL means "". */
TG_API tg_tensor *tg_param_new(tg_ctx *ctx, const char *name, tg_dtype dtype, tg_shape shape, double std);

/* Returns a new handle on the bytes of x, or an inert tensor on error. The context owns the new handle, so it outlives
 * the tape of x. Release it with tg_drop. No gradient flows through it. Fails with TG_ERR_DISCARDED if the bytes are
 * lost, and with TG_ERR_STATE if x is a gradient that is not yet summed over the ranks (tg_grad_share in
 * backward.h). */
TG_API tg_tensor *tg_keep(tg_tensor *x);
/* Releases a handle that the context owns. The bytes are freed when no handle and no node needs them any more. Does
 * nothing for NULL, for ended and inert handles, for tensors of a tape, for tensors that belong to another object, such
 * as a module or an optimizer, and for the gradient of a leaf. */
TG_API void tg_drop(tg_tensor *x);

/* ---- Properties ---- */

/* The functions that return a property accept NULL, inert handles and ended handles. They then return: tg_is_alive,
 * tg_is_contiguous and tg_requires_grad false; tg_ndim and tg_numel 0; tg_dim and tg_stride -1; tg_shape_of a shape of
 * 0 dims; tg_dtype_of TG_DTYPE_DEFAULT; tg_name "".
 *
 * The library does not recognize ended handles forever. A handle that a reset of its tape has ended is recognized until
 * the next reset. A handle that was dropped or released is recognized until its memory is reused for a new handle.
 * After that, the old pointer may be read as another tensor, unless the program holds the handle (tg_hold). To keep a
 * tensor for longer, use tg_keep. tg_ref detects the end of a tensor at any time. */

/* Returns whether x is a tensor that can be used: false if x is NULL or inert, or if its handle has ended. */
TG_API bool tg_is_alive(const tg_tensor *x);
/* Returns the context of x; NULL if x is NULL. An inert tensor that was made without a context has a dead one
 * (tg_ctx_new). */
TG_API tg_ctx *tg_ctx_of(const tg_tensor *x);
TG_API int tg_ndim(const tg_tensor *x);
TG_API int64_t tg_dim(const tg_tensor *x, int i);    /* size of dim i; i < 0 counts from the end; -1 if out of range */
TG_API int64_t tg_stride(const tg_tensor *x, int i); /* stride of dim i, in elements; i is as in tg_dim */
TG_API int64_t tg_numel(const tg_tensor *x);         /* number of elements */
TG_API tg_shape tg_shape_of(const tg_tensor *x);
TG_API tg_dtype tg_dtype_of(const tg_tensor *x);
TG_API bool tg_is_contiguous(const tg_tensor *x); /* whether x is row-major without gaps */
TG_API bool tg_requires_grad(const tg_tensor *x);
TG_API const char *tg_name(const tg_tensor *x); /* "" if x has no name */
/* Sets the name of x. name is copied and must not be NULL. */
TG_API tg_status tg_set_name(tg_tensor *x, const char *name);
/* Sets whether x gets a gradient from ops that are recorded from now on. Fails with TG_ERR_STATE if x is the result of
 * an op that has recorded a node, and with TG_ERR_DTYPE if `on` is true and the dtype of x is not a float. */
TG_API tg_status tg_set_requires_grad(tg_tensor *x, bool on);
/* Writes a description such as "fc1.weight f32[32, 8]" to buf; "NULL" or "dead tensor" if x is not alive. buf, n and
 * the result are as in snprintf; see tg_memory_report. */
TG_API size_t tg_describe(const tg_tensor *x, char *buf, size_t n);

/* A reference that may be held indefinitely, for example by a language binding. It detects that its tensor has ended,
 * even when the memory of the handle has been reused. */
typedef struct tg_ref {
    tg_tensor *tensor;
    uint64_t serial;
} tg_ref;

/* Returns a reference to x. If x is NULL, inert or ended, the reference is empty. */
TG_API tg_ref tg_ref_of(const tg_tensor *x);
/* Returns the tensor of r. If r is empty, or if that tensor has ended or belongs to another context, returns an inert
 * tensor, and records no error. Neither ctx nor the context of the tensor may have been freed. */
TG_API tg_tensor *tg_ref_get(tg_ctx *ctx, tg_ref r);

/* ---- Values ----
 *
 * The functions from tg_item to tg_host_data wait until the bytes are present. They fail with TG_ERR_DISCARDED if the
 * bytes are lost, with TG_ERR_DEVICE on device "meta", and with TG_ERR_UNSUPPORTED in a captured step (capture.h).
 * Those that read, and tg_host_data, fail with TG_ERR_STATE if x is a gradient that is not yet summed over the ranks;
 * call tg_grads_finalize first. */

/* Returns the only element of x, converted to double. If x does not have exactly one element, fails with TG_ERR_SHAPE.
 * Returns NaN on error. */
TG_API double tg_item(tg_tensor *x);
/* Copy all elements to dst or from src, in row-major order and in the dtype of x. bytes must be exactly the number of
 * elements times the size of an element (TG_ERR_ARGUMENT). tg_write fails with TG_ERR_STATE if elements of x share
 * memory, as after tg_expand, or if x is read-only (tg_set_read_only). After a write, the backward of a node that had
 * saved x fails with TG_ERR_VERSION. */
TG_API tg_status tg_read(tg_tensor *x, void *dst, size_t bytes);
TG_API tg_status tg_write(tg_tensor *x, const void *src, size_t bytes);
/* Do the same, but convert the elements to or from double, as tg_cast does. n must be the number of elements
 * (TG_ERR_ARGUMENT). */
TG_API tg_status tg_read_f64(tg_tensor *x, double *dst, int64_t n);
TG_API tg_status tg_write_f64(tg_tensor *x, const double *src, int64_t n);
/* Returns the address of the first element of x; NULL on error. tg_stride says where the others are. Works only if the
 * device's memory is host memory, as that of "cpu" is (TG_ERR_DEVICE). The pointer is valid until the next call that
 * has x, a view of x, its tape or its context as an argument; the functions of properties above do not count. If x is
 * pinned (tg_pin), the pointer is valid until tg_unpin. After a write through the pointer, call tg_touch (handles.h),
 * which also notes that the bytes may differ between ranks (placement.h). */
TG_API void *tg_host_data(tg_tensor *x);

/* Releases the bytes of x now, which are those of its views and of handles of tg_keep too. The handles and their shapes
 * stay valid. A later read or write of the values fails with TG_ERR_DISCARDED. Fails with TG_ERR_STATE if a node has
 * saved the bytes, if they are pinned (tg_pin) or exported (dlpack.h), if they belong to the caller (tg_wrap), to a
 * parameter, to an optimizer, to averages (average.h) or to the gradients of a tg_flat (flat.h), or if they were
 * already released. */
TG_API tg_status tg_discard(tg_tensor *x);

/* The state of a tensor's bytes: present; in flight, that is, being filled by a work (work.h) or due to be filled by
 * tg_flat_gather (flat.h); or released. */
typedef enum tg_storage_state { TG_PRESENT, TG_IN_FLIGHT, TG_DISCARDED } tg_storage_state;
TG_API tg_storage_state tg_storage_state_of(const tg_tensor *x); /* TG_DISCARDED for NULL, inert and ended handles */
/* Releases the bytes of x now, as tg_discard does, with the same errors. The next call that needs the bytes calls
 * refill, which must write the memory that x shares with its views: `bytes` bytes at dst, an address on the device
 * (NULL on device "meta"). If refill returns an error and the context has none, the call fails with TG_ERR_CALLBACK. If
 * a scope or a backward discards the bytes again, the next call that needs them calls refill again. Once an op or the
 * program has written to x, the library no longer calls refill. refill must not be NULL (TG_ERR_ARGUMENT).
 *
 * The library calls free(user) once: when the memory of x is freed; when tg_keep, tg_discard or another tg_discard_with
 * for x succeeds; or at once on error. free may be NULL. */
TG_API tg_status tg_discard_with(tg_tensor *x, tg_status (*refill)(void *user, tg_ctx *ctx, void *dst, size_t bytes),
                                 void (*free)(void *user), void *user);

#ifdef __cplusplus
}
#endif

#endif
