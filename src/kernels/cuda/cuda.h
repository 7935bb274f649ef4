/* What the files of the CUDA device share: the state of a context on the device, errors, and scratch memory.
 *
 * A slot queues its work on the context's compute stream and returns. Freed memory may be given out again at once,
 * because its old and new users run in the order of that stream. Events order other streams, such as the copy stream,
 * with the compute stream (streams.c). In the slots sync, event_await, poll and close, the host waits for the device.
 * In the other slots the host waits only in these cases:
 * - It reads from the device.
 * - It copies to the device more bytes than one pinned page holds, or while no pinned page is free (memory.c).
 * - Memory returns to the driver.
 * - An error occurs in copy_async. */
#ifndef TG_CUDA_H
#define TG_CUDA_H

#include <cuda_runtime_api.h>

#include <tapegrad/device.h>

#include "base/private_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a kernel needs to report an error in its data, such as an index that is out of range.
 *
 * The device has one error word. All its bits are set while there is no error. A slot takes a number for its call
 * (tg_cuda_fault_for), and its kernels execute atomicMin with (call << 40 | position). So the word names the call with
 * the lowest number, and the first position of its errors, in whatever order threads run. Numbers rise from call to
 * call until they wrap around (TG_CUDA_NUMBERS); calls of a captured step keep theirs in replays. */
typedef struct tg_cuda_fault {
    unsigned long long *word; /* on the device */
    unsigned long long call;
} tg_cuda_fault;

typedef struct tg_cuda_host_page tg_cuda_host_page;
typedef struct tg_cuda_call tg_cuda_call;

typedef struct tg_cuda {
    tg_ctx *ctx;
    int device; /* the number of the GPU */
    cudaStream_t compute, copy; /* copy: for copies between host and device in parallel with the kernels */
    cudaEvent_t reached; /* recorded on a stream for which the host waits (tg_cuda_await_stream) */
    cudaEvent_t queued;  /* recorded on compute before each copy on the copy stream, which waits for it */
    struct tg_cuda_poller *pollers; /* list of pollers (streams.h) */
    struct cublasLtContext *lt; /* cuBLASLt's handle; only gemm_plans.h includes its header, which slows compilation */
    void *lt_space; /* cuBLASLt's workspace */
    size_t lt_bytes;
    struct tg_cuda_plans *plans; /* a plan for each kind of product so far (gemm_plans.c) */
    unsigned long long *fault, *seen; /* the error word on the device; its last copy, in pinned memory */
    unsigned long long calls;         /* the next number for a call, before it wraps (tg_cuda_fault_for) */
    tg_cuda_call *names;              /* the latest calls that have a number */
    cudaEvent_t fetched;              /* recorded after the copy of the error word */
    bool unrecorded;                  /* a copy of the word was queued, but recording `fetched` after it failed */
    tg_cuda_host_page *pages;         /* pinned staging for copies that do not wait */
    int next_page;
    struct tg_cuda_graph *graphs, *capturing; /* all complete graphs; the one being captured, or NULL (graphs.c) */
} tg_cuda;

/* Makes the context's GPU the current one of this thread. If that fails, records the error. Does nothing while the
 * device is being opened. Calls of the CUDA runtime that allocate, make streams or events, launch kernels or run
 * products need it. Another context or library may have changed the current GPU since the last call, and a context may
 * be used in other threads than before. */
TG_PRIVATE_API void tg_cuda_enter(const tg_ctx *ctx);
/* Returns the state of the context on its GPU, and makes this GPU the current one. A slot gets its stream from here, so
 * it launches on the right GPU. */
static inline tg_cuda *tg_cuda_of(const tg_ctx *ctx) {
    tg_cuda_enter(ctx);
    return (tg_cuda *)tg_ctx_device_state(ctx);
}

/* Records the error e, which `call` of the CUDA runtime returned. Returns TG_OK if e is cudaSuccess. */
TG_PRIVATE_API tg_status tg_cuda_check(tg_ctx *ctx, cudaError_t e, const char *call);
/* Called after the launch of a kernel. If the runtime has refused the launch, for example because of its configuration,
 * records the error. */
tg_status tg_cuda_launched(tg_ctx *ctx, const char *kernel);

/* Gives a call of this slot a number, under which its kernels report errors in data. The error quotes the position that
 * a kernel has reported, divided by `repeats` (kernels/index_position.h). */
tg_cuda_fault tg_cuda_fault_for(tg_ctx *ctx, const char *slot, int64_t repeats);

/* Device memory for the kernels of one slot. The slot gives it back after its launches, even if their work is still
 * queued: the work of the next user comes later on the compute stream. With 0 bytes, data is NULL. */
typedef struct tg_cuda_scratch {
    void *data;
    void *block;
} tg_cuda_scratch;
TG_PRIVATE_API tg_status tg_cuda_scratch_take(tg_ctx *ctx, size_t bytes, tg_cuda_scratch *s);
TG_PRIVATE_API void tg_cuda_scratch_give(tg_ctx *ctx, tg_cuda_scratch *s);

#ifdef __cplusplus
}
#endif

#endif
