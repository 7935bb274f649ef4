/* Tensors shared with other libraries, without a copy, by the C structs of DLPack. NumPy, PyTorch, JAX, CuPy and others
 * exchange arrays in this way. tapegrad.h does not include this header. docs/embedding.md has an example.
 *
 * DLPack has two structs: DLManagedTensorVersioned, of its version 1, and DLManagedTensor, of the versions before. This
 * header declares them without their members. A program that needs the members also includes DLPack's own dlpack.h. In
 * Python these structs are passed in capsules named "dltensor_versioned" and "dltensor". */
#ifndef TAPEGRAD_DLPACK_H
#define TAPEGRAD_DLPACK_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* Export a tensor: return a struct that describes x and points to its bytes, without a copy. Return NULL after
 * recording the error; if x is NULL, return NULL and record nothing. The receiver owns the struct, and reads and writes
 * the same bytes as x. After the receiver has written bytes, call tg_touch (handles.h).
 *
 * The receiver calls the deleter of the struct once, on any thread. Until then the bytes stay at their address and are
 * not used for another tensor, whatever happens to x and its tape. The bytes are released at a later call on the
 * context, as for tg_unpin. A deleter may also be called after tg_ctx_free. It then releases the bytes itself, and the
 * last one frees the memory of the context. tg_config.allocator, and the release functions of tg_wrap for exported
 * memory, must then work on the threads that call deleters.
 *
 * The context must be on "cuda" or on a device whose memory is host memory, such as "cpu" (TG_ERR_DEVICE). The bytes
 * are complete when the function returns: on "cuda" it waits for the work that is queued. So the bytes may be read on
 * any stream. Before the receiver calls the deleter, the receiver's work on the bytes must be done.
 *
 * The struct has the shape and the strides of x; strides may be negative. byte_offset is 0. data is NULL if x has no
 * elements. Otherwise data is aligned to the size of an element, and to 64 bytes unless x is a view or is on memory
 * that was given to it (tg_wrap, tg_rehome, an import, a mapped file). (DLPack asks for 256, which few libraries keep.)
 * The dtypes are float32, float64, bfloat16, float16, bool, signed and unsigned integers of 8 to 64 bits, and those of
 * DLPack 1.1: float8_e4m3fn, float8_e5m2 and float8_e8m0fnu.
 *
 * Fail with
 * - TG_ERR_STATE if x requires a gradient (export the result of tg_detach or tg_keep);
 * - TG_ERR_STATE if x is one rank's share of a gradient (call tg_grads_finalize first);
 * - TG_ERR_DISCARDED if the bytes of x are lost;
 * - TG_ERR_UNSUPPORTED in a captured step.
 *
 * Read-only memory (tg_set_read_only) is marked as read-only in DLManagedTensorVersioned. DLManagedTensor has no such
 * mark, so tg_dlpack_export_unversioned refuses read-only memory with TG_ERR_STATE. */
TG_API struct DLManagedTensorVersioned *tg_dlpack_export(tg_tensor *x);
TG_API struct DLManagedTensor *tg_dlpack_export_unversioned(tg_tensor *x);

/* Import a tensor: create a tensor of the context on the memory of m, as tg_wrap does for memory of the program. From
 * the call on, m belongs to the library. The library calls the deleter of m once: when no handle and no node needs the
 * memory any more, or at once on error. A deleter that is NULL is not called. On error the functions return an inert
 * tensor.
 *
 * The memory must be on the context's device (TG_ERR_DEVICE): for "cuda", memory of the same GPU, managed or not; for a
 * device whose memory is host memory, host memory, pinned by CUDA or not. The bytes must be complete at the call. On
 * "cuda", first wait for the stream that writes them, because the context has a stream of its own. Before the deleter
 * is called, the library waits for its own work on the memory.
 *
 * Strides are in elements and may be negative or 0. strides NULL means row-major. Memory that is marked read-only is
 * read-only here (tg_set_read_only). Fail with
 * - TG_ERR_ARGUMENT if m is NULL, if data is NULL although there are elements, if shape is NULL although there are
 *   dims, or if data + byte_offset is not aligned to the size of an element;
 * - TG_ERR_DTYPE if the dtype is none of those of an export, or a vector (lanes above 1);
 * - TG_ERR_SHAPE if there are more than TG_MAX_DIMS dims, or if a size is negative;
 * - TG_ERR_UNSUPPORTED if the major version of DLManagedTensorVersioned is not 1.
 *
 * A captured step on "cuda" refuses imported tensors (TG_ERR_UNSUPPORTED), because their memory may be freed before a
 * replay. */
TG_API tg_tensor *tg_dlpack_import(tg_ctx *ctx, struct DLManagedTensorVersioned *m);
TG_API tg_tensor *tg_dlpack_import_unversioned(tg_ctx *ctx, struct DLManagedTensor *m);

#ifdef __cplusplus
}
#endif

#endif
