/* What Megatron-Core keeps as attributes of a parameter, read off its placements. */
#include <tapegrad/megatron.h>

#include "core/core.h"

/* The axis of tensor parallelism on which x is a shard: tp, or etp of an expert. */
static const tg_placement *shard_of(const tg_tensor *x, tg_axis *axis) {
    const tg_placing *p = tg_is_alive(x) ? tg_place_of(x) : NULL;
    for (int i = 0; p && i < 2; i++) {
        *axis = i ? TG_ETP : TG_TP;
        if (p->at[*axis].kind == TG_VARYING && p->at[*axis].layout != TG_OPAQUE) return &p->at[*axis];
    }
    return NULL;
}

bool tg_tp_attributes(const tg_tensor *x, int *dim, int *stride) {
    tg_axis axis;
    const tg_placement *at = shard_of(x, &axis);
    if (dim) *dim = at ? at->dim : -1;
    if (stride) *stride = at && at->layout == TG_STRIDED ? at->chunks : 1;
    return at != NULL;
}

/* A parameter that is placed on an axis of the expert grid is an expert's. */
static bool expert(const tg_tensor *x) {
    const uint32_t grid = 1u << TG_ETP | 1u << TG_EP | 1u << TG_EDP;
    const tg_placing *p = tg_place_of(x);
    return p && (p->varying | p->replicated) & grid;
}

bool tg_is_tp_duplicate(const tg_parallel *p, const tg_tensor *x) {
    if (!p || !tg_is_alive(x) || tg_tp_attributes(x, NULL, NULL)) return false;
    return tg_parallel_rank(p, expert(x) ? TG_ETP : TG_TP) > 0;
}
