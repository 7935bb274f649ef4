/* Captured steps as CUDA graphs. During a capture, the compute stream and the streams that wait for its events record
 * work instead of running it. The capture mode is thread-local, so that other threads with contexts of their own may
 * make calls that a capture forbids. */
#include "kernels/cuda/graphs.h"

#include "base/memory/host_memory.h"
#include "base/runtime.h"

struct tg_cuda_graph {
    cudaGraphExec_t exec;
    struct tg_cuda_graph *next;
    tg_cuda_call *calls; /* the numbered calls of the step, in the order of their numbers, which may wrap around */
    int n, capacity;     /* of calls */
};

void tg_cuda_graph_call(tg_cuda *c, const tg_cuda_call *call) {
    struct tg_cuda_graph *g = c->capturing;
    /* On failure the context has an error, and tg_cuda_capture_end drops the graph. */
    if (!tg_host_grow(c->ctx, (void **)&g->calls, g->n, &g->capacity, sizeof *g->calls)) return;
    g->calls[g->n++] = *call;
}

/* Returns how many numbers after that of the graph's first call this one comes. */
static unsigned long long after_first(const struct tg_cuda_graph *g, unsigned long long number) {
    return (number - g->calls[0].number) & TG_CUDA_NUMBERS;
}

const tg_cuda_call *tg_cuda_graph_name(const tg_cuda *c, unsigned long long call) {
    for (const struct tg_cuda_graph *g = c->graphs; g; g = g->next) {
        if (!g->n || after_first(g, call) > after_first(g, g->calls[g->n - 1].number)) continue;
        for (int i = 0; i < g->n; i++)
            if (g->calls[i].number == call) return &g->calls[i];
    }
    return NULL;
}

static void graph_free(tg_ctx *ctx, struct tg_cuda_graph *g) {
    if (g->exec) cudaGraphExecDestroy(g->exec);
    tg_host_free(ctx, g->calls, (size_t)g->capacity * sizeof *g->calls);
    tg_host_free(ctx, g, sizeof *g);
}

tg_status tg_cuda_capture_begin(tg_ctx *ctx) {
    tg_cuda *c = tg_cuda_of(ctx);
    struct tg_cuda_graph *g = tg_host_alloc(ctx, sizeof *g);
    if (!g) return tg_runtime_of(ctx)->status;
    tg_status s = tg_cuda_check(ctx, cudaStreamBeginCapture(c->compute, cudaStreamCaptureModeThreadLocal),
                                "cudaStreamBeginCapture");
    if (s == TG_OK)
        c->capturing = g;
    else
        graph_free(ctx, g);
    return s;
}

/* Makes an executable graph of what was captured, and counts its nodes. */
static tg_status instantiate(tg_ctx *ctx, struct tg_cuda_graph *g, cudaGraph_t graph, int64_t *nodes) {
    size_t n = 0;
    TG_TRY(tg_cuda_check(ctx, cudaGraphGetNodes(graph, NULL, &n), "cudaGraphGetNodes"));
    TG_TRY(tg_cuda_check(ctx, cudaGraphInstantiate(&g->exec, graph, 0), "cudaGraphInstantiate"));
    *nodes = (int64_t)n;
    return TG_OK;
}

tg_status tg_cuda_capture_end(tg_ctx *ctx, bool keep, void **recorded, int64_t *nodes) {
    tg_cuda *c = tg_cuda_of(ctx);
    struct tg_cuda_graph *g = c->capturing;
    cudaGraph_t graph = NULL;
    c->capturing = NULL;
    cudaError_t e = cudaStreamEndCapture(c->compute, &graph);
    tg_status s = keep ? tg_cuda_check(ctx, e, "cudaStreamEndCapture") : TG_OK;
    if (keep && s == TG_OK) s = instantiate(ctx, g, graph, nodes);
    e = graph ? cudaGraphDestroy(graph) : cudaSuccess;
    if (keep && s == TG_OK) s = tg_cuda_check(ctx, e, "cudaGraphDestroy");
    if (keep && s == TG_OK && tg_runtime_of(ctx)->status == TG_OK) {
        g->next = c->graphs;
        *recorded = c->graphs = g;
        return TG_OK;
    }
    cudaGetLastError(); /* clears the error of an abandoned recording */
    graph_free(ctx, g);
    return tg_runtime_of(ctx)->status;
}

tg_status tg_cuda_capture_launch(tg_ctx *ctx, void *recorded) {
    const struct tg_cuda_graph *g = recorded;
    return tg_cuda_check(ctx, cudaGraphLaunch(g->exec, tg_cuda_of(ctx)->compute), "cudaGraphLaunch");
}

void tg_cuda_capture_free(tg_ctx *ctx, void *recorded) {
    struct tg_cuda_graph **at = &tg_cuda_of(ctx)->graphs;
    while (*at != recorded) at = &(*at)->next;
    *at = (*at)->next;
    graph_free(ctx, recorded);
}
