/* Device "meta": a run on it makes the same calls, allocations and accounting as a real run, but has no bytes. Its
 * segments are addresses that nothing dereferences. The heap cuts blocks from them exactly as from real memory. Its
 * kernels do nothing. */
#include "core/memory/memory_report.h"

static tg_status meta_open(tg_ctx *ctx, void **dev) {
    (void)ctx;
    *dev = NULL;
    return TG_OK;
}

static void meta_close(tg_ctx *ctx, void *dev) { (void)ctx, (void)dev; }

/* Returns the first multiple of 2^42 after the previous segment, so that segments never overlap. device_state is the
 * multiple in which the previous segment ends. */
static void *meta_alloc(tg_ctx *ctx, size_t bytes, size_t align) {
    (void)align;
    uintptr_t n = (uintptr_t)ctx->run.device_state + 1;
    ctx->run.device_state = (void *)(n + (bytes >> 42));
    return (void *)(n << 42);
}

static void meta_free(tg_ctx *ctx, void *p, size_t bytes) { (void)ctx, (void)p, (void)bytes; }
static tg_status meta_copy(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind) {
    (void)ctx, (void)dst, (void)src, (void)bytes, (void)kind;
    return TG_OK;
}
static tg_status meta_sync(tg_ctx *ctx) {
    (void)ctx;
    return TG_OK;
}
static tg_status meta_event_record(tg_ctx *ctx, void **event) {
    (void)ctx, (void)event;
    return TG_OK;
}
static tg_status meta_event_wait(tg_ctx *ctx, void *event) {
    (void)ctx, (void)event;
    return TG_OK;
}
static void meta_event_free(tg_ctx *ctx, void *event) { (void)ctx, (void)event; }
static tg_status meta_map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n, const double p[2],
                          bool add) {
    (void)ctx, (void)f, (void)out, (void)in, (void)n, (void)p, (void)add;
    return TG_OK;
}
static tg_status meta_fill(tg_ctx *ctx, tg_array out, double v) {
    (void)ctx, (void)out, (void)v;
    return TG_OK;
}
static tg_status meta_iota(tg_ctx *ctx, tg_array out, double start, double step) {
    (void)ctx, (void)out, (void)start, (void)step;
    return TG_OK;
}
static tg_status meta_reduce(tg_ctx *ctx, tg_reduction k, tg_array out, tg_array in, double scale, bool add) {
    (void)ctx, (void)k, (void)out, (void)in, (void)scale, (void)add;
    return TG_OK;
}
static tg_status meta_gemm(tg_ctx *ctx, const tg_gemm *g) {
    (void)ctx, (void)g;
    return TG_OK;
}
static tg_status meta_index(tg_ctx *ctx, tg_array a, tg_array b, tg_array index, int dim, int64_t *bad) {
    (void)ctx, (void)a, (void)b, (void)index, (void)dim, (void)bad;
    return TG_OK;
}
static tg_status meta_random(tg_ctx *ctx, tg_random kind, tg_array out, double a, double b, const tg_draws *draws) {
    (void)ctx, (void)kind, (void)out, (void)a, (void)b, (void)draws;
    return TG_OK;
}
static tg_status meta_softmax(tg_ctx *ctx, tg_array y, tg_array x, bool log) {
    (void)ctx, (void)y, (void)x, (void)log;
    return TG_OK;
}
static tg_status meta_softmax_grad(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add) {
    (void)ctx, (void)gx, (void)gy, (void)y, (void)log, (void)add;
    return TG_OK;
}
static tg_status meta_norm(tg_ctx *ctx, const tg_norm_args *a) {
    (void)ctx, (void)a;
    return TG_OK;
}
static tg_status meta_cross_entropy(tg_ctx *ctx, const tg_cross_entropy_args *a) {
    (void)ctx, (void)a;
    return TG_OK;
}
static tg_status meta_attention(tg_ctx *ctx, const tg_attention_args *a) {
    (void)ctx, (void)a;
    return TG_OK;
}
static tg_status meta_dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add) {
    (void)ctx, (void)y, (void)x, (void)p, (void)draws, (void)add;
    return TG_OK;
}
static tg_status meta_scan(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add) {
    (void)ctx, (void)kind, (void)y, (void)x, (void)back, (void)add;
    return TG_OK;
}
static tg_status meta_sort(tg_ctx *ctx, tg_array y, tg_array order, tg_array x, bool falling) {
    (void)ctx, (void)y, (void)order, (void)x, (void)falling;
    return TG_OK;
}
static tg_status meta_prepare(tg_ctx *ctx, const tg_prepare_args *a) {
    (void)ctx, (void)a;
    return TG_OK;
}
static tg_status meta_adamw(tg_ctx *ctx, const tg_adamw_args *a, int n) {
    (void)ctx, (void)a, (void)n;
    return TG_OK;
}

const tg_device_ops tg_meta_device = {
    .size = sizeof(tg_device_ops),
    .name = "meta",
    .open = meta_open,
    .close = meta_close,
    .alloc = meta_alloc,
    .free = meta_free,
    .copy = meta_copy,
    .sync = meta_sync,
    .event_record = meta_event_record,
    .event_wait = meta_event_wait,
    .event_free = meta_event_free,
    .apply = meta_map,
    .fill = meta_fill,
    .iota = meta_iota,
    .reduce = meta_reduce,
    .gemm = meta_gemm,
    .take = meta_index,
    .put_add = meta_index,
    .random = meta_random,
    .softmax = meta_softmax,
    .softmax_grad = meta_softmax_grad,
    .norm = meta_norm,
    .norm_grad = meta_norm,
    .cross_entropy = meta_cross_entropy,
    .cross_entropy_grad = meta_cross_entropy,
    .attention = meta_attention,
    .attention_grad = meta_attention,
    .dropout = meta_dropout,
    .scan = meta_scan,
    .sort = meta_sort,
    .put = meta_index,
    .prepare = meta_prepare,
    .adamw = meta_adamw,
};
