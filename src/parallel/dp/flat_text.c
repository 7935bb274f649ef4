/* tg_flat_text: a table of the buckets of a tg_flat, and of the ranges that each rank has of its parameters. */
#include "base/text.h"
#include "parallel/dp/flat.h"

typedef struct page {
    const tg_flat *f;
    bool json;
    char *buf;
    size_t n, at; /* size of buf, and length of the text so far */
} page;

static const char *name_of(const tg_flat_item *it) { return tg_flat_alive(it) ? tg_name(it->param) : "(dropped)"; }

static void put_range(page *p, const tg_flat_item *it, int rank) {
    int64_t begin, end;
    tg_flat_range(p->f, it, rank, &begin, &end);
    if (p->json)
        tg_text(p->buf, p->n, &p->at, "%s[%lld, %lld]", rank ? ", " : "", (long long)begin, (long long)end);
    else if (end > begin)
        tg_text(p->buf, p->n, &p->at, ", rank %d [%lld:%lld]", rank, (long long)begin, (long long)end);
}

static void put_item(page *p, const tg_flat_item *it, bool first) {
    int ranks = p->f->group[p->f->bucket[it->bucket].group].ranks;
    if (p->json) {
        tg_text(p->buf, p->n, &p->at, "%s{\"name\": ", first ? "" : ", ");
        tg_text_json(p->buf, p->n, &p->at, name_of(it));
        tg_text(p->buf, p->n, &p->at, ", \"offset\": %lld, \"numel\": %lld", (long long)it->offset,
                (long long)it->numel);
        if (p->f->o.zero) tg_text(p->buf, p->n, &p->at, ", \"ranges\": [");
    } else {
        tg_text(p->buf, p->n, &p->at, "  %lld: %s, %s", (long long)it->offset, name_of(it),
                tg_count(it->numel, "element").text);
    }
    for (int r = 0; p->f->o.zero && r < ranks; r++) put_range(p, it, r);
    tg_text(p->buf, p->n, &p->at, p->json ? p->f->o.zero ? "]}" : "}" : "\n");
}

/* Returns the number of elements of the bucket that belong to no parameter. */
static int64_t padding_of(const tg_flat *f, const tg_flat_bucket *k) {
    int64_t padding = k->numel;
    for (int i = k->first; i < k->first + k->n; i++) padding -= f->item[i].numel;
    return padding;
}

static void put_bucket(page *p, int b) {
    const tg_flat_bucket *k = &p->f->bucket[b];
    const tg_flat_group *g = &p->f->group[k->group];
    const char *group = k->group == TG_FLAT_EXPERTS ? "edp" : "dp_cp", *dtype = tg_dtype_name(k->dtype);
    const char *grads = tg_dtype_name((tg_dtype)k->grads->dtype);
    long long numel = k->numel, padding = padding_of(p->f, k), part = p->f->o.zero ? tg_flat_part(p->f, k) : numel;
    if (p->json)
        tg_text(p->buf, p->n, &p->at,
                "%s{\"dtype\": \"%s\", \"gradients\": \"%s\", \"group\": \"%s\", \"ranks\": %d, \"numel\": %lld, "
                "\"padding\": %lld, \"part\": %lld, \"parameters\": [",
                b ? ", " : "", dtype, grads, group, g->ranks, numel, padding, part);
    else
        tg_text(p->buf, p->n, &p->at,
                "bucket %d: %s, gradients %s, over %s of %s, %s, %lld of them padding; a rank steps %lld\n", b, dtype,
                grads, group, tg_count(g->ranks, "rank").text, tg_count(numel, "element").text, padding, part);
    for (int i = k->first; i < k->first + k->n; i++) put_item(p, &p->f->item[i], i == k->first);
    if (p->json) tg_text(p->buf, p->n, &p->at, "]}");
}

size_t tg_flat_text(const tg_flat *f, tg_format format, char *buf, size_t n) {
    page p = {.f = f, .json = format == TG_JSON, .buf = buf, .n = buf ? n : 0};
    if (p.n) buf[0] = 0;
    if (!f) return 0;
    if (p.json)
        tg_text(p.buf, p.n, &p.at, "{\"zero\": %d, \"buckets\": [", f->o.zero);
    else
        tg_text(p.buf, p.n, &p.at, "zero %d, %s\n", f->o.zero, tg_count(f->n_buckets, "bucket").text);
    for (int b = 0; b < f->n_buckets; b++) put_bucket(&p, b);
    if (p.json) tg_text(p.buf, p.n, &p.at, "]}");
    return p.at;
}
