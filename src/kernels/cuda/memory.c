/* Device memory and copies. The heap (base/memory/heap.c) cuts blocks from the segments that are allocated here. It
 * gives out a freed block again at once. That is safe, because the users of the block are queued on one stream. A work
 * on another stream is ordered with that stream by events, or holds the block that it reads (tg_block_hold). */
#include "kernels/cuda/memory.h"
#include "kernels/cuda/streams.h"

#include "base/memory/device_memory.h"
#include "base/memory/host_memory.h"
#include "base/recording.h"
#include "base/runtime.h"

enum { PAGES = 8, PAGE_BYTES = 256 << 10 };

/* A piece of pinned memory. The host's bytes are copied there, and from there to the device while the host goes on. */
struct tg_cuda_host_page {
    char *data;
    cudaEvent_t used; /* recorded after the copy from the page to the device */
    bool busy;        /* that copy may not have run yet */
};

/* ---- Segments ---- */

void *tg_cuda_alloc(tg_ctx *ctx, size_t bytes, size_t align) {
    void *p = NULL;
    (void)align; /* cudaMalloc aligns to 256 */
    tg_cuda_enter(ctx);
    /* Relaxed mode allows cudaMalloc while this thread captures. Outside of a capture it has no effect. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (e == cudaSuccess) return p;
    cudaGetLastError(); /* clears the error: the heap reports it, together with what uses the memory */
    if (e != cudaErrorMemoryAllocation) tg_cuda_check(ctx, e, "cudaMalloc");
    return NULL;
}

void tg_cuda_free(tg_ctx *ctx, void *p, size_t bytes) {
    (void)bytes;
    const tg_cuda *c = tg_cuda_of(ctx);
    cudaStreamSynchronize(c->compute); /* queued work, such as a replay, may still use the segment */
    cudaStreamSynchronize(c->copy);
    cudaFree(p);
}

int64_t tg_cuda_memory_left(tg_ctx *ctx) {
    size_t left = 0, total = 0;
    tg_cuda_enter(ctx);
    tg_status s = tg_cuda_check(ctx, cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    return s == TG_OK ? (int64_t)left : TG_NONE;
}

tg_status tg_cuda_scratch_take(tg_ctx *ctx, size_t bytes, tg_cuda_scratch *s) {
    *s = (tg_cuda_scratch){NULL, NULL};
    if (!bytes) return TG_OK;
    s->block = tg_take_block(ctx, bytes, TG_MEM_WORKSPACE);
    if (!s->block) return tg_memory_fail(ctx, bytes, " of workspace");
    s->data = tg_block_data(s->block);
    return TG_OK;
}

void tg_cuda_scratch_give(tg_ctx *ctx, tg_cuda_scratch *s) {
    if (s->block) tg_heap_release(tg_runtime_of(ctx)->heap, s->block);
    *s = (tg_cuda_scratch){NULL, NULL};
}

/* ---- Copies ---- */

static tg_status copy_async(tg_cuda *c, void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind) {
    return tg_cuda_check(c->ctx, cudaMemcpyAsync(dst, src, bytes, kind, c->compute), "cudaMemcpyAsync");
}

/* Sets *page to the page that was used longest ago. Waits until the last copy from that page has run. */
static tg_status page_of(tg_cuda *c, tg_cuda_host_page **page) {
    tg_cuda_host_page *p = &c->pages[c->next_page];
    c->next_page = (c->next_page + 1) % PAGES;
    if (p->busy) TG_TRY(tg_cuda_await(c, p->used));
    p->busy = false;
    *page = p;
    return TG_OK;
}

/* Copies from the host. The caller may change src as soon as this function returns. Large copies are left to the
 * driver, which stages them page by page as well. The driver would wait for the stream without polling, and forever if
 * the stream hangs. So this function waits for the stream first. */
static tg_status from_host(tg_cuda *c, char *dst, const char *src, size_t bytes) {
    tg_cuda_host_page *page;
    if (bytes > PAGE_BYTES) {
        TG_TRY(tg_cuda_await_stream(c, c->compute));
        TG_TRY(copy_async(c, dst, src, bytes, cudaMemcpyHostToDevice));
        return tg_cuda_await_stream(c, c->compute);
    }
    TG_TRY(page_of(c, &page));
    memcpy(page->data, src, bytes);
    TG_TRY(copy_async(c, dst, page->data, bytes, cudaMemcpyHostToDevice));
    TG_TRY(tg_cuda_check(c->ctx, cudaEventRecord(page->used, c->compute), "cudaEventRecord"));
    page->busy = true;
    return TG_OK;
}

/* Copies to the host and waits. First reports an error in data that kernels have found so far. */
static tg_status to_host(tg_cuda *c, void *dst, const void *src, size_t bytes) {
    TG_TRY(tg_cuda_sync(c->ctx));
    TG_TRY(copy_async(c, dst, src, bytes, cudaMemcpyDeviceToHost));
    return tg_cuda_await_stream(c, c->compute);
}

tg_status tg_cuda_copy(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind) {
    tg_cuda *c = tg_cuda_of(ctx);
    if (!bytes) return TG_OK;
    if (kind != TG_COPY_DEVICE)
        TG_TRY(tg_recording_refuse(ctx, NULL, kind == TG_COPY_TO_HOST ? TG_RECORDING_READ : TG_RECORDING_WRITE, NULL));
    if (kind == TG_COPY_FROM_HOST) return from_host(c, dst, src, bytes);
    if (kind == TG_COPY_TO_HOST) return to_host(c, dst, src, bytes);
    return copy_async(c, dst, src, bytes, cudaMemcpyDeviceToDevice);
}

/* ---- Copies in parallel with kernels ---- */

void *tg_cuda_host_alloc(tg_ctx *ctx, size_t bytes) {
    void *p = NULL;
    tg_cuda_enter(ctx);
    cudaError_t e = cudaMallocHost(&p, bytes);
    if (e == cudaSuccess) return p;
    cudaGetLastError();
    if (e != cudaErrorMemoryAllocation) tg_cuda_check(ctx, e, "cudaMallocHost");
    return NULL;
}

void tg_cuda_host_free(tg_ctx *ctx, void *p, size_t bytes) {
    (void)ctx, (void)bytes;
    cudaFreeHost(p);
}

tg_status tg_cuda_copy_async(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind, void **event) {
    tg_cuda *c = tg_cuda_of(ctx);
    bool up = kind == TG_COPY_FROM_HOST;
    TG_TRY(tg_recording_refuse(ctx, NULL, up ? TG_RECORDING_WRITE : TG_RECORDING_READ, NULL));
    if (!*event) TG_TRY(tg_cuda_event_new(ctx, (cudaEvent_t *)event));
    TG_TRY(tg_cuda_follow(ctx, c->compute, c->queued, c->copy));
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, c->copy);
    TG_TRY(tg_cuda_check(ctx, e, "cudaMemcpyAsync"));
    tg_status s = tg_cuda_check(ctx, cudaEventRecord(*event, c->copy), "cudaEventRecord");
    if (s != TG_OK) cudaStreamSynchronize(c->copy); /* without an event the caller cannot wait for the copy */
    return s;
}

/* ---- Open and close ---- */

tg_status tg_cuda_memory_open(tg_cuda *c) {
    enum { LT_BYTES = 32 << 20 }; /* what cuBLAS uses on Hopper by default */
    char *data = NULL;
    c->pages = tg_host_alloc(c->ctx, PAGES * sizeof *c->pages);
    if (!c->pages) return tg_runtime_of(c->ctx)->status;
    TG_TRY(tg_cuda_check(c->ctx, cudaMallocHost((void **)&data, (size_t)PAGES * PAGE_BYTES), "cudaMallocHost"));
    for (int i = 0; i < PAGES; i++) c->pages[i].data = data + (size_t)i * PAGE_BYTES;
    for (int i = 0; i < PAGES; i++)
        TG_TRY(tg_cuda_event_new(c->ctx, &c->pages[i].used));
    TG_TRY(tg_cuda_check(c->ctx, cudaMalloc(&c->lt_space, LT_BYTES), "cudaMalloc"));
    c->lt_bytes = LT_BYTES;
    return tg_cuda_fault_open(c);
}

void tg_cuda_memory_close(tg_cuda *c) {
    tg_cuda_fault_close(c);
    if (c->lt_space) cudaFree(c->lt_space);
    for (int i = 0; c->pages && i < PAGES; i++)
        if (c->pages[i].used) cudaEventDestroy(c->pages[i].used);
    if (c->pages && c->pages[0].data) cudaFreeHost(c->pages[0].data);
    tg_host_free(c->ctx, c->pages, PAGES * sizeof *c->pages);
}
