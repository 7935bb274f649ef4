/* Tensors shared with other libraries, without a copy, by the C structs of DLPack. NumPy, PyTorch, JAX, CuPy and others
 * exchange arrays in this way. tapegrad.h does not include this header. docs/embedding.md has an example.
 *
 * DLPack has two structs: DLManagedTensorVersioned, of its version 1, and DLManagedTensor, of the versions before. This
 * header declares them without their members. A program that needs the members includes DLPack's own dlpack.h too. In
 * Python these structs are passed in capsules named "dltensor_versioned" and "dltensor". */
#ifndef TAPEGRAD_DLPACK_H
#define TAPEGRAD_DLPACK_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* Export a tensor: return a struct on the bytes of x, or NULL after recording the error. The receiver owns the struct.
 * The receiver reads and writes the same bytes as x. After the receiver has written bytes, call tg_touch (handles.h).
 *
 * The receiver calls the deleter of the struct once, on any thread. Until then the bytes stay at their address and are
 * not used for another tensor, whatever happens to x and its tape; a deleter may also be called after tg_ctx_free. The
 * bytes are released at the next call on the context, as by tg_unpin. If the context has been freed, its memory is
 * freed by the last deleter, on that thread: tg_config.allocator, and release functions of tg_wrap for exported
 * memory, must then work there.
 *
 * The context must be on "cuda" or on a device whose memory is host memory, such as "cpu" (TG_ERR_DEVICE). The bytes
 * are complete when the function returns: on "cuda" it waits for the work that is queued. So the bytes may be read on
 * any stream. Before the receiver calls the deleter, its own work on the bytes must be done.
 *
 * The struct has the shape and the strides of x, and its byte_offset is 0. Strides may be negative. Its data is NULL if
 * x has no elements; otherwise it is aligned to 64 bytes if x is a tensor of its own, and to an element if x is a view
 * or was wrapped. (DLPack asks for 256, which few libraries keep.) The dtypes are float32, float64, bfloat16, float16,
 * integers of 8 to 64 bits, signed or unsigned, bool, and as in DLPack 1.1 float8_e4m3fn, float8_e5m2 and
 * float8_e8m0fnu.
 *
 * Fail with TG_ERR_STATE if x requires a gradient (export the result of tg_detach or tg_keep), and if x is one rank's
 * share of a gradient (call tg_grads_finalize first); with TG_ERR_DISCARDED if its bytes are lost; and with
 * TG_ERR_UNSUPPORTED in a captured step. Memory that is read-only (tg_set_read_only) is marked so in
 * DLManagedTensorVersioned. tg_dlpack_export_unversioned refuses it with TG_ERR_STATE, because DLManagedTensor cannot
 * say so. If x is NULL they return NULL. */
TG_API struct DLManagedTensorVersioned *tg_dlpack_export(tg_tensor *x);
TG_API struct DLManagedTensor *tg_dlpack_export_unversioned(tg_tensor *x);

/* Import a tensor: create a tensor of the context on the memory of m, as tg_wrap does for memory of the program. m now
 * belongs to the library, which calls its deleter once: when no handle and no node needs the memory any more, or at
 * once on error. A deleter that is NULL is not called. On error the functions return an inert tensor.
 *
 * The memory must be on the context's device: host memory, pinned by CUDA or not, if that is the CPU, or memory of the
 * same GPU (TG_ERR_DEVICE). Its bytes must be complete at the call; on "cuda", wait for the stream that writes them,
 * because the context has a stream of its own. Before the deleter is called, the library waits for its own work on the
 * memory.
 *
 * Strides may be negative, 0 or NULL. data + byte_offset must be aligned to the size of an element. Dtypes other than
 * those of an export, and vectors (lanes), fail with TG_ERR_DTYPE; more than 8 dims with TG_ERR_SHAPE; and a major
 * version other than 1 with TG_ERR_UNSUPPORTED. Memory that is marked read-only is read-only here (tg_set_read_only). A
 * captured step on "cuda" refuses imported tensors (TG_ERR_UNSUPPORTED), because their memory may be freed before a
 * replay. */
TG_API tg_tensor *tg_dlpack_import(tg_ctx *ctx, struct DLManagedTensorVersioned *m);
TG_API tg_tensor *tg_dlpack_import_unversioned(tg_ctx *ctx, struct DLManagedTensor *m);

#ifdef __cplusplus
}
#endif

#endif
