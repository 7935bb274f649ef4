/* Works. A work is an operation in flight that fills a tensor or host memory, such as a copy between host and device
 * that runs in parallel with kernels. tapegrad.h includes this header.
 *
 * Only a call that reads or writes the tensor waits for its work. If the call runs a kernel on a GPU, the kernel's
 * stream waits, and the host does not. A work ends when it has been waited for. Its handle must not be used
 * afterward. */
#ifndef TAPEGRAD_WORK_H
#define TAPEGRAD_WORK_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the work is done or has failed; true if w is NULL. May advance the work. Does not end it. */
TG_API bool tg_work_test(tg_work *w);
/* Waits until the work is done, and ends it. Returns its error if it has failed. If the device runs the work like a
 * kernel, as a collective over NCCL, the device's later work waits for it, and the host does not. Fails with
 * TG_ERR_ARGUMENT if w is NULL. */
TG_API tg_status tg_work_wait(tg_work *w);

/* ---- Copies ---- */

/* Copies bytes to x like tg_write, but may return before x has them; x is then in flight. src may be changed as soon as
 * tg_upload has returned.
 *
 * The copy to x runs after all work that the device has so far, and in parallel with later work. (After an upload to a
 * parameter, a gradient or an optimizer's state, later work waits for the copy.) To hide the time of the copy, upload
 * the inputs of the next step before this step is recorded, into tensors that this step does not use. On the CPU, and
 * if x is not contiguous, the copy is complete when tg_upload returns. Fails with TG_ERR_UNSUPPORTED within a captured
 * step. */
TG_API tg_status tg_upload(tg_tensor *x, const void *src, size_t bytes);
/* Start a copy of the bytes of x to dst and return its work at once, or NULL on error. tg_download copies bytes as
 * tg_read does. tg_download_f64 converts n elements to double as tg_read_f64 does.
 *
 * The caller owns the work, which ends with tg_work_wait, or else with its context. dst must stay valid until the work
 * has ended. dst has the bytes only if tg_work_wait has returned TG_OK. The copied bytes are those of x at the time of
 * the call; x may then be dropped, discarded or overwritten at once. If the memory of x is released before the copy has
 * run, the device uses that memory again only after the copy. The copy does not report errors in data (TG_ERR_DATA).
 * Fails with TG_ERR_UNSUPPORTED within a captured step. */
TG_API tg_work *tg_download(tg_tensor *x, void *dst, size_t bytes);
TG_API tg_work *tg_download_f64(tg_tensor *x, double *dst, int64_t n);

/* ---- User-defined works ---- */

/* The functions of a work that fills the memory of a tensor. The library calls all of them on the thread of the
 * context. */
typedef struct tg_work_ops {
    size_t size;
    const char *name;         /* name in messages; NULL means "work" */
    bool (*test)(void *self); /* returns whether the work is done or has failed; NULL means always true */
    /* Required. Waits until the work is done, or, on a GPU, makes the device's later work run after this work. Returns
     * TG_OK or the work's error. The library may call it more than once. */
    tg_status (*wait)(tg_ctx *ctx, void *self);
    /* Cancels the work. After abort returns, the work must write nothing more. NULL means that the library calls wait
     * instead. */
    void (*abort)(void *self);
    void (*free)(void *self); /* frees self; the library calls it after wait or abort; may be NULL */
    /* Makes all work that the device gets from now on run after this work. The library calls it once at most, unless it
     * fails, for example before a captured step is replayed. NULL means that the library calls wait instead. */
    tg_status (*order)(tg_ctx *ctx, void *self);
} tg_work_ops;

/* Creates a work. ops is not copied; it must stay valid until the work has ended. The work ends when tg_work_wait
 * returns, or when the tensor that it fills (tg_call_out_in_flight) is read, written or discarded, or ends. If neither
 * has happened, it ends with the context, which aborts the work. Fails with TG_ERR_ARGUMENT if ops is NULL, of another
 * size, or without wait. On error returns NULL and calls no function of ops, so the caller still owns self. */
TG_API tg_work *tg_work_new(tg_ctx *ctx, const tg_work_ops *ops, void *self);

#ifdef __cplusplus
}
#endif

#endif
