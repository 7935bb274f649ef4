/* The device's error word: kernels report errors in data there, such as an index out of range, and the host reads it
 * later. */
#include <string.h>

#include "base/memory/host_memory.h"
#include "base/runtime.h"
#include "kernels/cuda/graphs.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/streams.h"

enum { CALLS = 1024, POSITION_BITS = 40 }; /* CALLS: how many of the latest calls an error can name */
static const unsigned long long none = ~0ull, positions = (1ull << POSITION_BITS) - 1;

/* A word has the number of a call and, in its last bits, a position. The word with all bits set means that there is no
 * error. So the highest bit of a word with an error is always 0, and numbers have 23 bits. */
_Static_assert(TG_CUDA_NUMBERS == ~0ull >> POSITION_BITS >> 1, "the numbers of calls fill the word");

tg_status tg_cuda_fault_open(tg_cuda *c) {
    tg_ctx *ctx = c->ctx;
    c->names = tg_host_alloc(ctx, CALLS * sizeof *c->names);
    if (!c->names) return tg_runtime_of(ctx)->status;
    TG_TRY(tg_cuda_check(ctx, cudaMalloc((void **)&c->fault, sizeof *c->fault), "cudaMalloc"));
    TG_TRY(tg_cuda_check(ctx, cudaMallocHost((void **)&c->seen, sizeof *c->seen), "cudaMallocHost"));
    TG_TRY(tg_cuda_event_new(ctx, &c->fetched));
    *c->seen = none;
    return tg_cuda_check(ctx, cudaMemsetAsync(c->fault, 0xff, sizeof *c->fault, c->compute), "cudaMemsetAsync");
}

void tg_cuda_fault_close(tg_cuda *c) {
    if (c->fetched) cudaEventDestroy(c->fetched);
    if (c->seen) cudaFreeHost(c->seen);
    if (c->fault) cudaFree(c->fault);
    tg_host_free(c->ctx, c->names, CALLS * sizeof *c->names);
}

/* Returns the next number that no call of a graph has. */
static unsigned long long next_number(tg_cuda *c) {
    unsigned long long number;
    do number = c->calls++ & TG_CUDA_NUMBERS;
    while (TG_UNLIKELY(tg_cuda_graph_name(c, number) != NULL));
    return number;
}

tg_cuda_fault tg_cuda_fault_for(tg_ctx *ctx, const char *slot, int64_t repeats) {
    tg_cuda *c = tg_cuda_of(ctx);
    const tg_runtime *r = tg_runtime_of(ctx);
    tg_cuda_call call = {next_number(c), slot, r->running, r->running_site, r->composer, repeats};
    c->names[call.number % CALLS] = call;
    if (c->capturing) tg_cuda_graph_call(c, &call);
    return (tg_cuda_fault){c->fault, call.number};
}

/* Returns the call with this number, or NULL if it is neither the call of a graph nor among the latest CALLS calls. The
 * calls of a graph keep the numbers that they got in the capture. */
static const tg_cuda_call *name_of(const tg_cuda *c, unsigned long long call) {
    const tg_cuda_call *of = tg_cuda_graph_name(c, call);
    if (of) return of;
    of = &c->names[call % CALLS];
    return of->number == call ? of : NULL;
}

tg_status tg_cuda_fault_fetch(tg_cuda *c) {
    TG_TRY(tg_cuda_check(c->ctx,
                         cudaMemcpyAsync(c->seen, c->fault, sizeof *c->seen, cudaMemcpyDeviceToHost, c->compute),
                         "cudaMemcpyAsync"));
    c->unrecorded = true;
    TG_TRY(tg_cuda_check(c->ctx, cudaEventRecord(c->fetched, c->compute), "cudaEventRecord"));
    c->unrecorded = false;
    return TG_OK;
}

/* Says what is wrong in the data of a call. */
static const char *fault_text(const tg_cuda_call *of) {
    if (!of) return "a value is out of range";
    return strcmp(of->slot, "attention") ? "an index is out of range" : "lengths or starts have an invalid value";
}

/* If `seen` holds an error, clears it and the word on the device, so that the word can take the next error, and fails
 * with TG_ERR_DATA. */
tg_status tg_cuda_fault_report(tg_cuda *c) {
    unsigned long long word = *c->seen, call = word >> POSITION_BITS;
    if (TG_LIKELY(word == none)) return TG_OK;
    *c->seen = none;
    const tg_cuda_call *of = name_of(c, call);
    char where[256] = "";
    if (of && of->site) tg_describe_site(c->ctx, of->site, where, sizeof where);
    TG_TRY(tg_cuda_check(c->ctx, cudaMemsetAsync(c->fault, 0xff, sizeof *c->fault, c->compute), "cudaMemsetAsync"));
    return tg_fail(c->ctx, TG_ERR_DATA, "%s: %s, at position %llu (found on the device by %s%s%s%s%s)",
                   of && of->op ? of->op : "an op", fault_text(of),
                   (word & positions) / (unsigned long long)(of ? of->repeats : 1), of ? of->slot : "an earlier call",
                   of && of->composer ? "; recorded by " : "", of && of->composer ? of->composer : "",
                   *where ? "; called from " : "", where);
}

tg_status tg_cuda_poll(tg_ctx *ctx) {
    tg_cuda *c = tg_cuda_of(ctx);
    if (c->capturing) return TG_OK; /* poll runs before each replay instead */
    TG_TRY(c->unrecorded ? tg_cuda_await_stream(c, c->compute) : tg_cuda_await(c, c->fetched));
    TG_TRY(tg_cuda_fault_report(c));
    return tg_cuda_fault_fetch(c);
}
