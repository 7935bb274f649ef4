/* tg_tape_set_site: places in the source of a program in another language. A tape stores each place once and keeps it
 * until the context ends, because nodes and storages of any step may refer to it. */
#include <tapegrad/source.h>

#include "base/hash.h"
#include "base/memory/host_memory.h"
#include "base/sites/named_site.h"
#include "tape/tape.h"

/* The places that a tape has been given: a hash table with open addressing. Its capacity is 0 or a power of two. */
typedef struct places {
    tg_tape_listener listener;
    tg_named_site **site;
    size_t count, capacity;
} places;

/* A place and, after it, the name of its file. */
static size_t site_bytes(const char *file) { return sizeof(tg_named_site) + strlen(file) + 1; }

static void released(tg_tape_listener *l) {
    const places *p = (const places *)l;
    tg_ctx *ctx = l->tape->ctx;
    for (size_t i = 0; i < p->capacity; i++)
        if (p->site[i]) tg_host_free(ctx, p->site[i], site_bytes(p->site[i]->file));
    tg_host_free(ctx, p->site, p->capacity * sizeof *p->site);
}

static const tg_tape_listener_ops places_ops = {.size = sizeof(places), .released = released};

static bool is_same(const tg_named_site *s, const char *file, int line) {
    return s->line == line && strcmp(s->file, file) == 0;
}

/* Returns the entry of a place, or the free one where it belongs. The table must have a free entry. */
static tg_named_site **entry_of(const places *p, const char *file, int line) {
    uint64_t hash = tg_hash_bytes((uint64_t)(unsigned)line * 0x9E3779B97F4A7C15u, file, strlen(file));
    size_t mask = p->capacity - 1, i = (size_t)(hash ^ hash >> 32) & mask;
    while (p->site[i] && !is_same(p->site[i], file, line)) i = (i + 1) & mask;
    return &p->site[i];
}

static tg_status grow(places *p) {
    tg_ctx *ctx = p->listener.tape->ctx;
    places more = {.capacity = p->capacity ? 2 * p->capacity : 64};
    more.site = tg_host_alloc(ctx, more.capacity * sizeof *more.site);
    if (!more.site) return ctx->run.status;
    for (size_t i = 0; i < p->capacity; i++)
        if (p->site[i]) *entry_of(&more, p->site[i]->file, p->site[i]->line) = p->site[i];
    tg_host_free(ctx, p->site, p->capacity * sizeof *p->site);
    p->site = more.site;
    p->capacity = more.capacity;
    return TG_OK;
}

/* Returns the stored place, which the first call for it makes, or NULL after recording the error. */
static const tg_named_site *place_of(places *p, const char *file, int line) {
    if (2 * p->count >= p->capacity && grow(p) != TG_OK) return NULL;
    tg_named_site **at = entry_of(p, file, line);
    if (*at) return *at;
    tg_named_site *s = tg_host_alloc(p->listener.tape->ctx, site_bytes(file));
    if (!s) return NULL;
    s->line = line;
    s->file = strcpy((char *)(s + 1), file);
    p->count++;
    return *at = s;
}

tg_status tg_tape_set_site(tg_tape *t, const char *file, int line) {
    TG_TRY(tg_tape_check(t, "tg_tape_set_site"));
    const tg_named_site *now = t->site ? tg_named_site_of(t->site) : NULL;
    if (file && now && is_same(now, file, line)) return TG_OK;
    places *p = file ? (places *)tg_tape_listen(t, &places_ops) : NULL;
    const tg_named_site *s = p ? place_of(p, file, line) : NULL;
    t->site = s ? tg_named_site_address(s) : NULL;
    return t->ctx->run.status;
}
