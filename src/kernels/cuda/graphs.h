/* Captured steps as CUDA graphs. */
#ifndef TG_CUDA_GRAPHS_H
#define TG_CUDA_GRAPHS_H

#include "kernels/cuda/cuda.h"

/* What the number of a call that can find errors in data stands for. */
struct tg_cuda_call {
    const char *slot, *op;
    const void *site;
};

/* The slots: device.h. */
tg_status tg_cuda_capture_begin(tg_ctx *ctx);
tg_status tg_cuda_capture_end(tg_ctx *ctx, bool keep, void **graph, int64_t *nodes);
tg_status tg_cuda_capture_launch(tg_ctx *ctx, void *graph);
void tg_cuda_capture_free(tg_ctx *ctx, void *graph);

/* Notes a call of the step that is being captured: each replay makes it under this number. */
void tg_cuda_graph_call(tg_cuda *c, unsigned long long call, const tg_cuda_call *name);
const tg_cuda_call *tg_cuda_graph_name(const tg_cuda *c, unsigned long long call); /* NULL: not in any graph */

#endif
