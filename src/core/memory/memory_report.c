/* Memory statistics, and the report that explains the memory peak. */
#include <stdlib.h>

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/memory/scratch.h"
#include "core/memory/memory_report.h"

tg_status tg_memory_query(tg_ctx *ctx, tg_memory_info *out) {
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    if (!out || out->size < sizeof(size_t))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_memory_query: out is NULL or has no size; use TG_MEMORY_INFO()");
    tg_memory_info m = TG_MEMORY_INFO();
    tg_heap_stats(ctx->run.heap, &m);
    m.workspace = tg_workspace_bytes(ctx);
    m.host_allocations = ctx->run.host_allocations;
    size_t size = out->size < sizeof m ? out->size : sizeof m;
    memcpy((char *)out + sizeof(size_t), (char *)&m + sizeof(size_t), size - sizeof(size_t));
    return TG_OK;
}

void tg_memory_reset_peak(tg_ctx *ctx) {
    if (tg_ok(ctx)) tg_heap_reset_peak(ctx->run.heap);
}

/* ---- The trace: one row per block that is alive near the peak ---- */

static void copy_text(char *dst, size_t n, const char *src) {
    size_t k = strlen(src);
    if (k >= n) k = n - 1;
    memcpy(dst, src, k);
    dst[k] = 0;
}

/* Leaves out blocks without an owner: segments of arenas and buffers without a lease. */
static void trace_block(void *user, const tg_block *b) {
    struct tg_trace *trace = user;
    const tg_storage *s = tg_block_owner(b);
    if (!s) return;
    if (trace->n == TG_TRACE_ROWS) {
        trace->others += (int64_t)tg_block_bytes(b);
        return;
    }
    tg_trace_row *r = &trace->row[trace->n++];
    *r = (tg_trace_row){.bytes = tg_block_bytes(b), .category = tg_block_category(b)};
    const tg_tensor *x = tg_storage_maker(s);
    if (!x) return;
    copy_text(r->name, TG_TRACE_NAME, x->ext && x->ext->name ? x->ext->name : "");
    const tg_ctx *ctx = s->ctx;
    tg_maker maker;
    for (int i = 0; i < TG_PARTS; i++) {
        if (!ctx->part[i].ops || !ctx->part[i].ops->maker || !ctx->part[i].ops->maker(x, &maker)) continue;
        r->op = maker.op;
        r->site = maker.site;
        copy_text(r->path, TG_TRACE_PATH, maker.scope);
        return;
    }
}

/* Begins with the block that has caused the peak, because it has no owner yet. */
static void trace_peak(void *user, const tg_block *b) {
    tg_ctx *ctx = user;
    ctx->trace->n = 1;
    ctx->trace->others = 0;
    ctx->trace->row[0] = (tg_trace_row){.bytes = tg_block_bytes(b), .category = tg_block_category(b),
                                        .name = "(the allocation that reached the peak)"};
    tg_heap_each(ctx->run.heap, trace_block, ctx->trace);
}

void tg_memory_set_trace(tg_ctx *ctx, bool on) {
    if (!tg_ok(ctx)) return;
    if (on && !ctx->trace) ctx->trace = tg_host_alloc(ctx, sizeof *ctx->trace);
    tg_heap_on_peak(ctx->run.heap, on && ctx->trace ? trace_peak : NULL, ctx);
}

/* Works that end after this may still allocate, and so reach a new peak. */
void tg_trace_free(tg_ctx *ctx) {
    if (ctx->trace) tg_heap_on_peak(ctx->run.heap, NULL, NULL);
    tg_host_free(ctx, ctx->trace, sizeof *ctx->trace);
    ctx->trace = NULL;
}

/* ---- The report ---- */

static const char *const category_names[TG_MEM_CATEGORIES] = {"parameters",        "gradients",   "optimizer state",
                                                              "saved activations", "temporaries", "named buffers",
                                                              "captured steps",    "kernels"};

static int by_bytes(const void *a, const void *b) {
    size_t x = ((const tg_trace_row *)a)->bytes, y = ((const tg_trace_row *)b)->bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

const struct tg_trace *tg_trace_sorted(tg_ctx *ctx) {
    struct tg_trace *trace = ctx->trace;
    if (trace) qsort(trace->row, (size_t)trace->n, sizeof *trace->row, by_bytes);
    return trace;
}

const char *tg_category_name(int category) { return category_names[category]; }

enum { MOST_ROWS = 40 }; /* rows of the report; the other blocks are counted together */

static void report_rows(tg_ctx *ctx, char *buf, size_t n, size_t *at) {
    const struct tg_trace *trace = tg_trace_sorted(ctx);
    tg_text(buf, n, at, "alive near the peak, largest first:\n");
    int64_t rest = trace->others;
    for (int i = 0; i < trace->n; i++) {
        const tg_trace_row *r = &trace->row[i];
        char site[160];
        if (i >= MOST_ROWS) {
            rest += (int64_t)r->bytes;
            continue;
        }
        tg_text(buf, n, at, "%14zu  %-17s  %s%s%s%s%s\n", r->bytes, category_names[r->category], r->name,
                *r->name ? "  " : "",
                r->op      ? r->op
                : *r->name ? ""
                           : "(unnamed)",
                *r->path ? "  " : "", r->path);
        if (!r->op) continue;
        tg_describe_site(ctx, r->site, site, sizeof site);
        tg_text(buf, n, at, "%35scalled from %s\n", "", site);
    }
    if (rest) tg_text(buf, n, at, "%14lld  in other blocks\n", (long long)rest);
}

size_t tg_memory_report(tg_ctx *ctx, char *buf, size_t n) {
    size_t at = 0;
    tg_memory_info m = TG_MEMORY_INFO();
    if (!buf) n = 0;
    if (n) buf[0] = 0;
    if (tg_memory_query(ctx, &m) != TG_OK) return 0;
    tg_text(buf, n, &at, "device %s: %lld bytes live, %lld at the peak, %lld reserved, %lld of workspace\n",
            ctx->run.ops->name, (long long)m.live, (long long)m.peak, (long long)m.reserved, (long long)m.workspace);
    for (int i = 0; i < TG_MEM_CATEGORIES; i++)
        tg_text(buf, n, &at, "%20s %14lld live %14lld at the peak\n", category_names[i], (long long)m.by_category[i],
                (long long)m.peak_by_category[i]);
    tg_buffers_text(ctx, buf, n, &at);
    if (ctx->trace)
        report_rows(ctx, buf, n, &at);
    else
        tg_text(buf, n, &at, "call tg_memory_set_trace(ctx, true) before a step to list what is alive at its peak\n");
    return at;
}
