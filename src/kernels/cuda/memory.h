/* The CUDA device's memory: segments for the heap (base/memory/heap.h), copies, pinned memory, and the error word
 * (cuda.h). */
#ifndef TG_CUDA_MEMORY_H
#define TG_CUDA_MEMORY_H

#include "kernels/cuda/cuda.h"

tg_status tg_cuda_memory_open(tg_cuda *c);
void tg_cuda_memory_close(tg_cuda *c); /* also after an open that failed */

void *tg_cuda_alloc(tg_ctx *ctx, size_t bytes, size_t align);
void tg_cuda_free(tg_ctx *ctx, void *p, size_t bytes);
int64_t tg_cuda_memory_left(tg_ctx *ctx);
tg_status tg_cuda_copy(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind);
void *tg_cuda_host_alloc(tg_ctx *ctx, size_t bytes);
void tg_cuda_host_free(tg_ctx *ctx, void *p, size_t bytes);
tg_status tg_cuda_copy_async(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind, void **event);

/* ---- The error word: data_errors.c ---- */

tg_status tg_cuda_fault_open(tg_cuda *c);
void tg_cuda_fault_close(tg_cuda *c);
/* Queues a copy of the word to the host, and records event `fetched` after it. */
tg_status tg_cuda_fault_fetch(tg_cuda *c);
/* Records the error that the last copy of the word holds, if any. That copy must have arrived. */
tg_status tg_cuda_fault_report(tg_cuda *c);
/* Slot poll: waits for the copy of the word that the last call has queued, reports the error in it, and queues the next
 * copy. So an error is reported at the latest by the second call after the work in which it occurs was queued. Does
 * nothing while a step is captured. */
tg_status tg_cuda_poll(tg_ctx *ctx);

#endif
