/* Placements: interning, comparison, the dual placement of a gradient, the chunks of shards, and text. */
#include "placement/placing.h"

#include "base/memory/host_memory.h"
#include "base/text.h"

#include <stdio.h>

#include <tapegrad/comm.h>

static const char *const axis_names[] = {"tp", "cp", "dp", "pp", "etp", "ep", "edp", "user"};

const char *tg_axis_name(tg_axis axis) { return (unsigned)axis < TG_MAX_AXES ? axis_names[axis] : "none"; }

static const tg_placement opaque = {.kind = TG_VARYING, .layout = TG_OPAQUE};
/* The axes on which a caller's bytes that were never placed are opaque: those of the dense grid. Tensors reach the
 * expert grid only through a dispatch of tokens, and pp has no placements. */
static const uint32_t given_axes = 1u << TG_TP | 1u << TG_CP | 1u << TG_DP;

/* Returns p with the fields zeroed that its kind does not use. */
static tg_placement normal(tg_placement p) {
    if (p.kind != TG_VARYING) return (tg_placement){.kind = p.kind};
    if (p.layout == TG_OPAQUE) return opaque;
    if (p.layout == TG_STRIDED && p.chunks == 1) p.layout = TG_CONTIGUOUS;
    if (p.layout != TG_STRIDED) p.chunks = 0;
    return p;
}

bool tg_placement_same(tg_placement a, tg_placement b) {
    a = normal(a), b = normal(b);
    return !memcmp(&a, &b, sizeof a);
}

/* ---- Interning ---- */

/* Adds a tg_placements to the grid's list. Returns NULL after recording an error. */
static const tg_placements *add(tg_ctx *ctx, const tg_placement at[TG_MAX_AXES]) {
    tg_placements *p = tg_host_alloc(ctx, sizeof *p);
    if (!p) return NULL;
    memcpy(p->at, at, sizeof p->at);
    for (int a = 0; a < TG_MAX_AXES; a++) {
        p->varying |= (uint32_t)(at[a].kind == TG_VARYING) << a;
        p->partial |= (uint32_t)(at[a].kind == TG_PARTIAL) << a;
        p->replicated |= (uint32_t)(at[a].kind == TG_REPLICATED) << a;
    }
    p->next = tg_grid_own(ctx)->places; /* there is a grid, because something is placed */
    return tg_grid_own(ctx)->places = p;
}

const tg_placements *tg_place_intern(tg_ctx *ctx, const tg_placement given[TG_MAX_AXES]) {
    tg_placement at[TG_MAX_AXES] = {{0}};
    bool any = false;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!(tg_grid_axes(ctx) >> a & 1)) continue;
        at[a] = normal(given[a]);
        any |= at[a].kind != TG_INVARIANT;
    }
    if (!any) return NULL;
    for (const tg_placements *p = tg_grid_of(ctx)->places; p; p = p->next) /* a program has few of them */
        if (!memcmp(p->at, at, sizeof at)) return p;
    return add(ctx, at);
}

void tg_places_free(tg_ctx *ctx) {
    for (tg_placements *p = tg_grid_of(ctx)->places, *next; p; p = next) {
        next = p->next;
        tg_host_free(ctx, p, sizeof *p);
    }
    tg_grid_own(ctx)->places = NULL;
}

const tg_placements *tg_place_of(const tg_tensor *x) {
    if (x->place || !(x->flags & TG_F_GIVEN) || !tg_grid_axes(x->ctx)) return x->place;
    tg_placement at[TG_MAX_AXES] = {{0}};
    for (int a = 0; a < TG_MAX_AXES; a++)
        if (given_axes >> a & 1) at[a] = opaque;
    return tg_place_intern(x->ctx, at);
}

tg_placement tg_place_on(const tg_tensor *x, tg_axis axis) {
    const tg_placements *p = tg_place_of(x);
    bool placed = p && tg_grid_axes(x->ctx) >> axis & 1;
    return placed ? p->at[axis] : (tg_placement){.kind = TG_INVARIANT};
}

bool tg_is_share_copy(const tg_tensor *x) {
    const tg_ext *e = tg_range_whole(x)->ext;
    return e && e->shared && tg_comm_rank(e->shared) > 0;
}

const tg_placements *tg_place_dual(tg_ctx *ctx, const tg_placements *p) {
    tg_placement at[TG_MAX_AXES];
    if (!p || !(p->partial | p->replicated)) return p;
    memcpy(at, p->at, sizeof at);
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (at[a].kind == TG_REPLICATED)
            at[a].kind = TG_PARTIAL;
        else if (at[a].kind == TG_PARTIAL)
            at[a].kind = TG_REPLICATED;
    }
    return tg_place_intern(ctx, at);
}

int64_t tg_place_scale(const tg_tensor *x, int d) {
    const tg_placements *p = tg_place_of(x);
    int64_t n = 1;
    for (int a = 0; p && a < TG_MAX_AXES; a++)
        if (tg_placement_shards(p->at[a]) && p->at[a].dim == d) n *= tg_grid_of(x->ctx)->size[a];
    return n;
}

/* ---- Chunks ---- */

tg_status tg_place_check_shard(const tg_tensor *x, const tg_placements *p, tg_placement is, uint32_t yet,
                               const char *who) {
    const tg_grid *g = tg_grid_of(x->ctx);
    int64_t chunks = tg_placement_chunks(is), rest = chunks < 1 ? 1 : x->shape[is.dim] % chunks;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        bool within = p && g->axes >> a & 1 && tg_placement_shards(p->at[a]) && p->at[a].dim == is.dim &&
                      p->at[a].order > is.order;
        if (chunks > 0 && (within || yet >> a & 1)) rest = rest * g->size[a] % chunks;
    }
    if (!rest) return TG_OK;
    char what[160];
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_SHAPE, "%s: dim %d of %s is not divisible into %lld chunks", who, is.dim, what,
                   (long long)chunks);
}

tg_status tg_place_check_shards(const tg_tensor *x, const tg_placements *p, uint32_t yet, const char *who) {
    for (int a = 0; p && a < TG_MAX_AXES; a++)
        if (tg_grid_axes(x->ctx) >> a & 1 && tg_placement_shards(p->at[a]))
            TG_TRY(tg_place_check_shard(x, p, p->at[a], yet, who));
    return TG_OK;
}

/* ---- Text ---- */

size_t tg_placement_name(tg_placement p, char *buf, size_t n) {
    size_t at = 0;
    if (n) buf[0] = 0;
    if (p.kind != TG_VARYING) {
        tg_text(buf, n, &at, "%c", p.kind == TG_INVARIANT ? 'I' : p.kind == TG_REPLICATED ? 'R' : 'P');
        return at;
    }
    if (p.layout == TG_OPAQUE)
        tg_text(buf, n, &at, "V");
    else
        tg_text(buf, n, &at, "V%d", p.dim);
    if (p.layout == TG_STRIDED) tg_text(buf, n, &at, ":s%d", p.chunks);
    if (p.layout == TG_ZIGZAG) tg_text(buf, n, &at, ":z");
    return at;
}

size_t tg_place_text(const tg_ctx *ctx, const tg_placements *p, char *buf, size_t n) {
    size_t at = 0;
    if (n) buf[0] = 0;
    for (int a = 0; p && a < TG_MAX_AXES; a++) {
        char one[24];
        if (!(tg_grid_axes(ctx) >> a & 1) || p->at[a].kind == TG_INVARIANT) continue;
        tg_placement_name(p->at[a], one, sizeof one);
        tg_text(buf, n, &at, "%s%s %s", at ? ", " : "", axis_names[a], one);
    }
    return at;
}
