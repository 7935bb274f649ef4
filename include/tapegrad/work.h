/* Works: what is in flight, and copies between the host and the device that run beside the device's own work.
 *
 * A work fills a tensor, or memory of the host. Whoever reads the tensor waits, nobody earlier, and on a GPU it is a
 * stream that waits, not the host.
 */
#ifndef TAPEGRAD_WORK_H
#define TAPEGRAD_WORK_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

TG_API bool tg_work_test(tg_work *w); /* whether it is done, or has failed; helps it along. True for NULL */
TG_API tg_status tg_work_wait(tg_work *w); /* waits now, for who wants its result here */

/* ---- Copies ---- */

/* As tg_write, but that x is in flight when it returns: src has been read and may change, x is filled behind what the
 * device was given so far and beside what it is given from now on. So a step's inputs are best sent before the step in
 * front of it is recorded, into tensors that this one does not use. On the CPU, and where x is not contiguous, it is
 * done at once. Not within a captured step. */
TG_API tg_status tg_upload(tg_tensor *x, const void *src, size_t bytes);
/* As tg_read, but that dst has its bytes once tg_work_wait has returned TG_OK, and must be there until then. The work
 * is the caller's, and ends with that wait, or with its context. NULL on an error. The bytes are x's of now: x may be
 * dropped, discarded or written to. Device memory that is given back meanwhile is used again behind the copy. Errors in
 * data are not told. Not within a captured step. */
TG_API tg_work *tg_download(tg_tensor *x, void *dst, size_t bytes);
TG_API tg_work *tg_download_f64(tg_tensor *x, double *dst, int64_t n); /* converted, as tg_read_f64 */

/* ---- Works of one's own ---- */

/* One operation in flight that fills a storage. All are called by the thread of the context. */
typedef struct tg_work_ops {
    size_t size;
    const char *name;         /* in messages; NULL: "work" */
    bool (*test)(void *self); /* NULL: done at any time */
    tg_status (*wait)(tg_ctx *ctx, void *self);
    void (*abort)(void *self); /* the result is not wanted: returns when nothing more is written. NULL: wait */
    void (*free)(void *self);  /* behind wait or abort; may be NULL */
    /* What the device is given from now on comes behind it. NULL: wait does it. */
    tg_status (*order)(tg_ctx *ctx, void *self);
} tg_work_ops;

/* Ends with tg_work_wait, with the tensor that it fills (tg_call_out_in_flight), or, where nobody has waited, with the
 * context, which aborts it. NULL on error: self stays the caller's. */
TG_API tg_work *tg_work_new(tg_ctx *ctx, const tg_work_ops *ops, void *self);

#ifdef __cplusplus
}
#endif

#endif
