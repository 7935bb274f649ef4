/* tg_memory_json: the memory of a context as JSON, with the blocks that were alive near the peak. */
#include <tapegrad/explain.h>

#include "base/text.h"
#include "core/memory/memory_report.h"

static void json_categories(const int64_t *bytes, char *buf, size_t n, size_t *at) {
    for (int i = 0; i < TG_MEM_CATEGORIES; i++)
        tg_text(buf, n, at, "%s\"%s\": %lld", i ? ", " : "{", tg_category_name(i), (long long)bytes[i]);
    tg_text(buf, n, at, "}");
}

static void json_block(tg_ctx *ctx, const tg_trace_row *r, char *buf, size_t n, size_t *at) {
    char site[1024] = ""; /* paths may be long */
    if (r->op) tg_describe_site(ctx, r->site, site, sizeof site);
    tg_text(buf, n, at, "{\"bytes\": %zu, \"category\": \"%s\", \"name\": ", r->bytes, tg_category_name(r->category));
    tg_text_json(buf, n, at, r->name);
    tg_text(buf, n, at, ", \"op\": ");
    tg_text_json(buf, n, at, r->op ? r->op : "");
    tg_text(buf, n, at, ", \"scope\": ");
    tg_text_json(buf, n, at, r->path);
    tg_text(buf, n, at, ", \"site\": ");
    tg_text_json(buf, n, at, site);
    tg_text(buf, n, at, "}");
}

size_t tg_memory_json(tg_ctx *ctx, char *buf, size_t n) {
    size_t at = 0;
    tg_memory_info m = TG_MEMORY_INFO();
    if (!buf) n = 0;
    if (n) buf[0] = 0;
    if (tg_memory_query(ctx, &m) != TG_OK) return 0;
    const struct tg_trace *trace = tg_trace_sorted(ctx);
    tg_text(buf, n, &at, "{\"device\": ");
    tg_text_json(buf, n, &at, ctx->run.ops->name);
    tg_text(buf, n, &at, ", \"live\": %lld, \"peak\": %lld, \"reserved\": %lld, \"workspace\": %lld", (long long)m.live,
            (long long)m.peak, (long long)m.reserved, (long long)m.workspace);
    tg_text(buf, n, &at, ", \"live_by\": ");
    json_categories(m.by_category, buf, n, &at);
    tg_text(buf, n, &at, ", \"peak_by\": ");
    json_categories(m.peak_by_category, buf, n, &at);
    tg_text(buf, n, &at, ", \"blocks\": [");
    for (int i = 0; trace && i < trace->n; i++) {
        tg_text(buf, n, &at, i ? ",\n  " : "\n  ");
        json_block(ctx, &trace->row[i], buf, n, &at);
    }
    tg_text(buf, n, &at, "]}\n");
    return at;
}
