/* Works: operations in flight, such as copies between the host and the device that run in parallel with the device's
 * own work. tapegrad.h includes this header.
 *
 * A work fills a tensor, or memory of the host. Only a reader of that tensor waits for it. On a GPU the reader's stream
 * waits, not the host.
 */
#ifndef TAPEGRAD_WORK_H
#define TAPEGRAD_WORK_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the work is done or has failed, and may advance it. True for NULL. */
TG_API bool tg_work_test(tg_work *w);
/* Waits on the host until the work is done. Fails with TG_ERR_ARGUMENT for NULL. */
TG_API tg_status tg_work_wait(tg_work *w);

/* ---- Copies ---- */

/* Copies bytes to x like tg_write, but returns at once, with x in flight. src has been read by then and may change.
 *
 * The copy to x runs after all work that the device has so far, and in parallel with later work. To hide it, upload the
 * inputs of the next step before this step is recorded, into tensors that this step does not use. On the CPU, and if x
 * is not contiguous, the copy is complete at return. Fails with TG_ERR_STATE within a captured step.
 */
TG_API tg_status tg_upload(tg_tensor *x, const void *src, size_t bytes);
/* Copies bytes from x like tg_read, but returns a work at once. NULL on an error.
 *
 * dst holds the bytes only after tg_work_wait has returned TG_OK, and must stay valid until then. The caller owns the
 * work; it ends with that wait, or with its context. The bytes are those of x at the time of the call: afterwards x may
 * be dropped, discarded or overwritten. If device memory is released in the meantime, its next use comes after the
 * copy. Errors in data (TG_ERR_DATA) are not reported here. Fails with TG_ERR_STATE within a captured step.
 * tg_download_f64 converts n elements to double, like tg_read_f64.
 */
TG_API tg_work *tg_download(tg_tensor *x, void *dst, size_t bytes);
TG_API tg_work *tg_download_f64(tg_tensor *x, double *dst, int64_t n);

/* ---- User-defined works ---- */

/* The functions of an operation in flight that fills a storage. All of them are called on the thread of the context. */
typedef struct tg_work_ops {
    size_t size;
    const char *name;         /* name in messages; NULL: "work" */
    bool (*test)(void *self); /* whether it is done; NULL: always true */
    tg_status (*wait)(tg_ctx *ctx, void *self); /* waits until it is done */
    /* Cancels the work. When it returns, nothing more is written. NULL: wait is called instead. */
    void (*abort)(void *self);
    void (*free)(void *self);  /* called after wait or abort; may be NULL */
    /* Makes work that the device gets from now on run after this work. NULL: wait is called instead. */
    tg_status (*order)(tg_ctx *ctx, void *self);
} tg_work_ops;

/* Creates a work. It ends with tg_work_wait, with the tensor that it fills (tg_call_out_in_flight), or, if nothing has
 * waited for it, with the context, which aborts it. wait is required. NULL on an error: self then stays the
 * caller's. */
TG_API tg_work *tg_work_new(tg_ctx *ctx, const tg_work_ops *ops, void *self);

#ifdef __cplusplus
}
#endif

#endif
