/* The CPU as a device: its memory is the host's, and every slot has finished when it returns. */
#include "base/runtime.h"
#include "kernels/cpu/fused.h"
#include "kernels/cpu/required.h"

static tg_status tg_cpu_open(tg_ctx *ctx, void **dev) {
    (void)ctx;
    *dev = NULL;
    return TG_OK;
}

static void tg_cpu_close(tg_ctx *ctx, void *dev) {
    (void)ctx, (void)dev;
}

static void *tg_cpu_alloc(tg_ctx *ctx, size_t bytes, size_t align) {
    return tg_runtime_of(ctx)->allocator.alloc(tg_runtime_of(ctx)->allocator.user, bytes, align);
}

static void tg_cpu_free(tg_ctx *ctx, void *p, size_t bytes) {
    tg_runtime_of(ctx)->allocator.free(tg_runtime_of(ctx)->allocator.user, p, bytes);
}

static tg_status tg_cpu_copy(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind) {
    (void)ctx, (void)kind;
    if (bytes) memmove(dst, src, bytes);
    return TG_OK;
}

static tg_status tg_cpu_sync(tg_ctx *ctx) {
    (void)ctx;
    return TG_OK;
}

/* Everything before an event is already done, so any address can serve as its handle. */
static tg_status tg_cpu_event_record(tg_ctx *ctx, void **event) {
    if (!*event) *event = ctx;
    return TG_OK;
}

static tg_status tg_cpu_event_wait(tg_ctx *ctx, void *event) {
    (void)ctx, (void)event;
    return TG_OK;
}

static void tg_cpu_event_free(tg_ctx *ctx, void *event) {
    (void)ctx, (void)event;
}

const tg_device_ops tg_cpu_device = {
    .size = sizeof(tg_device_ops),
    .name = "cpu",
    .host = true,
    .open = tg_cpu_open,
    .close = tg_cpu_close,
    .alloc = tg_cpu_alloc,
    .free = tg_cpu_free,
    .copy = tg_cpu_copy,
    .sync = tg_cpu_sync,
    .event_record = tg_cpu_event_record,
    .event_wait = tg_cpu_event_wait,
    .event_free = tg_cpu_event_free,
    .apply = tg_cpu_map,
    .fill = tg_cpu_fill,
    .iota = tg_cpu_iota,
    .reduce = tg_cpu_reduce,
    .gemm = tg_cpu_gemm,
    .take = tg_cpu_take,
    .put_add = tg_cpu_put_add,
    .random = tg_cpu_random,
    .softmax = tg_cpu_softmax,
    .softmax_grad = tg_cpu_softmax_grad,
    .norm = tg_cpu_norm,
    .norm_grad = tg_cpu_norm_grad,
    .cross_entropy = tg_cpu_cross_entropy,
    .cross_entropy_grad = tg_cpu_cross_entropy_grad,
    .attention = tg_cpu_attention,
    .attention_grad = tg_cpu_attention_grad,
    .dropout = tg_cpu_dropout,
    .scan = tg_cpu_scan,
    .sort = tg_cpu_sort,
    .put = tg_cpu_put,
    .prepare = tg_cpu_prepare,
    .adamw = tg_cpu_adamw,
};
