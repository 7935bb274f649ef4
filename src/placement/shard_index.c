/* Computes where a rank's part lies in the global tensor, from the layouts of the axes that shard each dim. */
#include "placement/shard_index.h"

int tg_shard_axes(const tg_tensor *x, tg_axis out[TG_MAX_AXES]) {
    const tg_placements *p = tg_place_of(x);
    int n = 0;
    for (int a = 0; p && a < TG_MAX_AXES; a++)
        if (tg_grid_axes(x->ctx) >> a & 1 && tg_placement_shards(p->at[a])) out[n++] = (tg_axis)a;
    return n;
}

bool tg_shard_is_located(const tg_tensor *x) {
    const tg_placements *p = tg_place_of(x);
    for (int a = 0; p && a < TG_MAX_AXES; a++)
        if (tg_grid_axes(x->ctx) >> a & 1 &&
            (p->at[a].kind == TG_PARTIAL || (p->at[a].kind == TG_VARYING && !tg_placement_shards(p->at[a]))))
            return false;
    return true;
}

tg_shape tg_shard_global(const tg_tensor *x) {
    tg_shape s = {.ndim = x->ndim};
    for (int d = 0; d < x->ndim; d++) s.dim[d] = x->shape[d] * tg_place_scale(x, d);
    return s;
}

/* Returns the axis that divides dim d after `order` other axes have divided it, or TG_MAX_AXES if there is none. */
static int axis_at(const tg_tensor *x, int d, int order) {
    const tg_placements *p = tg_place_of(x);
    for (int a = 0; p && a < TG_MAX_AXES; a++) {
        bool divides = tg_grid_axes(x->ctx) >> a & 1 && tg_placement_shards(p->at[a]) && p->at[a].dim == d;
        if (divides && p->at[a].order == order) return a;
    }
    return TG_MAX_AXES;
}

int64_t tg_shard_index(const tg_tensor *x, int d, const int at[TG_MAX_AXES], int64_t local, int64_t *run) {
    int64_t size = x->shape[d], index = local;
    int inner = 0;
    *run = size - local;
    while (axis_at(x, d, inner) < TG_MAX_AXES) inner++;
    for (int order = inner - 1; order >= 0; order--) { /* the innermost axis has divided the dim last */
        int a = axis_at(x, d, order);
        tg_placement p = tg_place_of(x)->at[a];
        int64_t n = tg_grid_of(x->ctx)->size[a], chunk = size / tg_placement_chunks(p), within = index % chunk;
        if (chunk - within < *run) *run = chunk - within;
        index = tg_placement_chunk(p, index / chunk, at[a], n) * chunk + within;
        size *= n;
    }
    return index;
}
