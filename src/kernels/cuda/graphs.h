/* Captured steps as CUDA graphs. */
#ifndef TG_CUDA_GRAPHS_H
#define TG_CUDA_GRAPHS_H

#include "kernels/cuda/cuda.h"

/* A call that can find errors in data, as error messages name it. */
struct tg_cuda_call {
    unsigned long long number; /* from tg_cuda_fault_for; at most TG_CUDA_NUMBERS */
    const char *slot, *op; /* op: NULL if none was running */
    const void *site;      /* the call site of the op, or NULL */
    const char *composer;  /* the op that recorded op, or NULL */
    int64_t repeats;       /* how many neighboring positions share an index */
};

/* The greatest number of a call, after which numbers go on from 0. It is also the mask of numbers. */
#define TG_CUDA_NUMBERS (((unsigned long long)1 << 23) - 1)

/* The slots for captured steps (tapegrad/device.h). */
tg_status tg_cuda_capture_begin(tg_ctx *ctx);
tg_status tg_cuda_capture_end(tg_ctx *ctx, bool keep, void **graph, int64_t *nodes);
tg_status tg_cuda_capture_launch(tg_ctx *ctx, void *graph);
void tg_cuda_capture_free(tg_ctx *ctx, void *graph);

/* Adds a call to the graph that is being captured. Each replay makes this call under the same number. */
void tg_cuda_graph_call(tg_cuda *c, const tg_cuda_call *call);
/* Returns the call with this number, or NULL if no complete graph contains it. The graph that is being captured is not
 * searched. */
const tg_cuda_call *tg_cuda_graph_name(const tg_cuda *c, unsigned long long call);

#endif
