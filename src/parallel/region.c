#include "parallel/region.h"

#include "core/system.h"

static const uint64_t MAGIC = 0x6e67657267706174;

/* ---- The region ---- */

tg_region *tg_region_new(int n, const tg_allocator *allocator) {
    size_t bytes = sizeof(tg_region) + (size_t)n * sizeof(tg_card);
    tg_region *r = allocator->alloc(allocator->user, bytes, TG_LINE);
    if (!r) return NULL;
    memset(r, 0, bytes);
    r->magic = MAGIC;
    r->bytes = bytes;
    r->size = n;
    r->allocator = *allocator;
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void tg_region_free(tg_region *r) {
    if (!r) return;
    tg_allocator a = r->allocator;
    for (tg_group *g = (tg_group *)(uintptr_t)r->groups, *next; g; g = next) { /* that some never joined */
        next = (tg_group *)(uintptr_t)g->next;
        a.free(a.user, g, g->bytes);
    }
    pthread_mutex_destroy(&r->lock);
    a.free(a.user, r, r->bytes);
}

/* ---- Groups ---- */

static size_t whole_lines(size_t bytes) { return (bytes + TG_LINE - 1) / TG_LINE * TG_LINE; }

static tg_group *group_new(tg_region *r, const tg_group *parent, const int *ranks, int n, const char *name) {
    size_t slot = whole_lines(sizeof(tg_slot) + (size_t)n * sizeof(tg_post));
    size_t slots = whole_lines(sizeof(tg_group)), mails = slots + TG_CALLS * slot;
    size_t members = mails + (size_t)n * TG_MAILS * sizeof(tg_mail);
    size_t lists = members + (size_t)n * sizeof(tg_member), bytes = lists + (size_t)n * (size_t)n * sizeof(bool);
    tg_group *g = r->allocator.alloc(r->allocator.user, bytes, TG_LINE);
    if (!g) return NULL;
    memset(g, 0, bytes);
    g->id = ++r->group_ids;
    g->parent = parent ? parent->id : 0;
    g->bytes = bytes;
    g->slot_bytes = slot;
    g->size = n;
    g->culprit = g->reporter = -1;
    g->at_slots = slots;
    g->at_mails = mails;
    g->at_members = members;
    g->at_lists = lists;
    size_t at = 0;
    tg_text(g->name, sizeof g->name, &at, "%s", name ? name : "");
    for (int i = 0; i < n; i++) tg_group_member(g, i)->rank = ranks[i];
    g->next = r->groups;
    r->groups = (tg_shared)(uintptr_t)g;
    return g;
}

static bool is_group(tg_group *g, uint64_t parent, const int *ranks, int n, int mine) {
    if (g->parent != parent || g->size != n || tg_group_member(g, mine)->joined) return false;
    for (int i = 0; i < n; i++)
        if (tg_group_member(g, i)->rank != ranks[i]) return false;
    return true;
}

/* The oldest that this rank has not joined: members form groups of one list in one order. */
static tg_group *find(const tg_vantage *v, uint64_t parent, const int *ranks, int n, int mine) {
    tg_group *found = NULL;
    for (tg_group *g = tg_at(v, v->region->groups); g; g = tg_at(v, g->next))
        if (is_group(g, parent, ranks, n, mine)) found = g;
    return found;
}

tg_group *tg_group_join(tg_ctx *ctx, const tg_vantage *v, const tg_group *parent, const int *ranks, int n, int mine,
                        const char *name) {
    tg_region *r = v->region;
    pthread_mutex_lock(&r->lock);
    tg_group *g = find(v, parent ? parent->id : 0, ranks, n, mine);
    if (!g) g = group_new(r, parent, ranks, n, name);
    if (g) {
        tg_group_member(g, mine)->joined = true;
        tg_group_member(g, mine)->skips = ctx->skips;
        g->joined++;
    }
    pthread_mutex_unlock(&r->lock);
    if (!g) tg_fail(ctx, TG_ERR_MEMORY, "out of memory: a group of %d ranks", n);
    return g;
}

static void unlink_group(const tg_vantage *v, const tg_group *g) {
    for (tg_shared *at = &v->region->groups; *at; at = &((tg_group *)tg_at(v, *at))->next)
        if (tg_at(v, *at) == g) {
            *at = g->next;
            return;
        }
}

/* The memory goes with the last of those who will ever have it: of a group that failed before all had joined, too, as
 * nobody joins it any more. */
void tg_group_leave(const tg_vantage *v, tg_group *g, int mine) {
    tg_region *r = v->region;
    atomic_store_explicit(&tg_group_member(g, mine)->gone, true, memory_order_release);
    pthread_mutex_lock(&r->lock);
    bool last = ++g->left == g->size;
    if (last) unlink_group(v, g);
    pthread_mutex_unlock(&r->lock);
    if (last) r->allocator.free(r->allocator.user, g, g->bytes);
}
