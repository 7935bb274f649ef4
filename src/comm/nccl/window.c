/* Windows: memory that is registered with NCCL on all ranks of a communicator, so that collectives in this memory need
 * no copies. */
#include "base/memory/host_memory.h"
#include "comm/nccl/nccl.h"

struct tg_nccl_window {
    tg_ctx *ctx;
    tg_nccl_group *group; /* NULL: the communicator has ended */
    void *data;
    size_t bytes;
    ncclWindow_t window; /* NULL: not registered (any more), or NCCL cannot register memory here; data moves as usual */
    tg_nccl_window *next;
};

void *tg_nccl_window_alloc(tg_ctx *ctx, void *state, size_t bytes, void **window) {
    tg_nccl_group *g = state;
    tg_nccl_window *w = tg_host_alloc(ctx, sizeof *w);
    if (!w) return NULL;
    *w = (tg_nccl_window){.ctx = ctx, .group = g, .bytes = bytes, .next = g->windows};
    tg_cuda_enter(ctx);
    if (ncclMemAlloc(&w->data, bytes) != ncclSuccess || !w->data) {
        cudaGetLastError(); /* clears the error: the caller works without a window */
        tg_host_free(ctx, w, sizeof *w);
        return NULL;
    }
    *window = g->windows = w;
    return w->data;
}

tg_status tg_nccl_window_join(tg_ctx *ctx, void *state, void *window) {
    tg_nccl_group *g = state;
    tg_nccl_window *w = window;
    (void)ctx;
    if (g->self->aborted) return tg_control_failed(&g->control, false);
    ncclResult_t r = ncclCommWindowRegister(g->comm, w->data, w->bytes, &w->window, NCCL_WIN_COLL_SYMMETRIC);
    tg_status s = tg_nccl_await(g, r, "ncclCommWindowRegister");
    if (s != TG_OK) tg_nccl_abort_all(g->self, NULL); /* the other ranks wait for this one */
    return s;
}

/* Deregisters the window if it is registered and its communicator has not ended. */
static void unregister(tg_nccl_window *w) {
    if (w->window && w->group->comm) ncclCommWindowDeregister(w->group->comm, w->window);
    w->window = NULL;
}

void tg_nccl_windows_end(tg_nccl_group *g) {
    for (tg_nccl_window *w = g->windows, *next; w; w = next) {
        next = w->next;
        unregister(w);
        w->group = NULL;
    }
    g->windows = NULL;
}

/* Waits for the compute stream first, because work that uses the memory may still be queued there. */
void tg_nccl_window_free(tg_ctx *ctx, void *window) {
    tg_nccl_window *w = window;
    tg_cuda *c = tg_cuda_of(ctx);
    tg_cuda_await_stream(c, c->compute);
    if (w->group) {
        tg_nccl_window **at = &w->group->windows;
        while (*at != w) at = &(*at)->next;
        *at = w->next;
        unregister(w);
    }
    ncclMemFree(w->data);
    tg_host_free(ctx, w, sizeof *w);
}
