/* The CUDA device as its own files see it: the state of a context on the device, and how errors are recorded.
 *
 * A slot queues its work on the context's compute stream and returns. Memory that a context has freed is used again
 * in the order of that stream; what other streams, such as that of copies, do with it is ordered by events
 * (streams.c). Nothing here waits for the device except reads by the host. */
#ifndef TG_CUDA_H
#define TG_CUDA_H

#include <cuda_runtime_api.h>

#include <tapegrad/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The device's error word for data (invariant 17): the first error since it was last read; all bits are set while
 * there is none. A slot takes the number of its call (tg_cuda_fault_for), and its kernels execute atomicMin with
 * (call << 40 | position), so the earliest call and its first position win whichever thread comes first. */
typedef struct tg_cuda_fault {
    unsigned long long *word; /* on the device */
    unsigned long long call;
} tg_cuda_fault;

typedef struct tg_cuda_host_page tg_cuda_host_page;
typedef struct tg_cuda_call tg_cuda_call;

typedef struct tg_cuda {
    tg_ctx *ctx;
    int device, processors; /* multiprocessors */
    size_t shared_most;     /* bytes of shared memory that a block may ask for */
    cudaStream_t compute, copy; /* copy: for copies between host and device in parallel with the kernels */
    cudaEvent_t reached; /* for the host's waits */
    cudaEvent_t queued;  /* what a copy on the copy stream must follow */
    struct tg_cuda_poller *pollers; /* streams.h */
    struct cublasLtContext *lt; /* cuBLASLt's handle; its header slows compilation and is in gemm_plans.h */
    void *lt_space; /* cuBLASLt's workspace */
    size_t lt_bytes;
    struct tg_cuda_plans *plans; /* products seen so far: gemm_plans.c */
    unsigned long long *fault, *seen; /* on the device; its copy in pinned memory */
    unsigned long long calls;         /* numbers given so far */
    tg_cuda_call *names;              /* what the latest of these numbers stand for */
    cudaEvent_t fetched;              /* the word has been copied to seen */
    bool unmarked;                    /* a copy may be in progress after that event */
    tg_cuda_host_page *pages;         /* pinned staging for copies that do not wait */
    int next_page;
    struct tg_cuda_graph *graphs, *capturing; /* those alive, and the one that is being recorded: graphs.c */
} tg_cuda;

static inline tg_cuda *tg_cuda_of(const tg_ctx *ctx) { return (tg_cuda *)tg_ctx_device_state(ctx); }

/* Records the error that a call of the CUDA runtime returned, if any. */
tg_status tg_cuda_check(tg_ctx *ctx, cudaError_t e, const char *call);
/* Called after a launch, whose configuration may have been refused. */
tg_status tg_cuda_launched(tg_ctx *ctx, const char *kernel);

tg_cuda_fault tg_cuda_fault_for(tg_ctx *ctx, const char *slot);

/* Device memory for the launches of one slot, freed in stream order. bytes 0 gives NULL. */
typedef struct tg_cuda_scratch {
    void *data;
    void *block;
} tg_cuda_scratch;
tg_status tg_cuda_scratch_take(tg_ctx *ctx, size_t bytes, tg_cuda_scratch *s);
void tg_cuda_scratch_give(tg_ctx *ctx, tg_cuda_scratch *s);

#ifdef __cplusplus
}
#endif

#endif
