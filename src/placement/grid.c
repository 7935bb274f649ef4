/* The grid of a context: creation, clearing and freeing. src/parallel/groups.c fills it in. */
#include "placement/grid.h"

#include "base/memory/host_memory.h"
#include "placement/placing.h"

const tg_grid tg_no_grid = {.size = {1, 1, 1, 1, 1, 1, 1, 1}};
_Static_assert(TG_MAX_AXES == 8, "tg_no_grid has a size for every axis");

/* Frees the grid, its placements and rules. Called when the context ends. */
static void release(tg_ctx *ctx, void *state) {
    tg_grid *g = state;
    tg_places_free(ctx);
    tg_host_free(ctx, g->rules, g->rules_bytes);
    tg_host_free(ctx, g, sizeof *g);
}

static const tg_part_ops part_ops = {.release = release};

tg_grid *tg_grid_open(tg_ctx *ctx) {
    tg_grid *g = tg_grid_own(ctx);
    if (g || !(g = tg_host_alloc(ctx, sizeof *g))) return g;
    *g = tg_no_grid;
    tg_part_set(ctx, TG_PART_PLACEMENT, &part_ops, g);
    return g;
}

void tg_grid_clear(tg_ctx *ctx) {
    tg_grid *g = tg_grid_own(ctx);
    if (!g) return;
    *g = (tg_grid){.places = g->places, .rules = g->rules, .rules_bytes = g->rules_bytes};
    memcpy(g->size, tg_no_grid.size, sizeof g->size);
    ctx->run.has_peers = false;
    ctx->streams.by_order = false;
}

void tg_ctx_may_skip(tg_ctx *ctx) {
    if (ctx->run.status != TG_OK && tg_grid_axes(ctx) & ~TG_DATA_PARALLEL_AXES) tg_ctx_skip(ctx);
}
