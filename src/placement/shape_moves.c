/* How shards move through ops that join and cut dims: reshape, concat and split (docs/placements.md). */
#include "placement/rule.h"

static const char *const gather_first = "gather it first (tg_gather_from, tg_all_gather)";

/* ---- Statements of infer ---- */

/* States that `move` handles shards of input dim `dim`. `to` is the output dim that the call names, or -1. */
static tg_status state(tg_call *c, tg_shard_rule move, int dim, int to) {
    tg_rules *r = tg_grid_axes(c->ctx) ? tg_rules_of(c) : NULL;
    if (!r) return c->ctx->run.status;
    r->move = move;
    r->move_dim = dim;
    r->move_to = to;
    return TG_OK;
}

/* ---- A dim that several axes shard ---- */

/* Returns whether an axis other than `but` shards dim d of x. */
static bool shared(const tg_call *c, const tg_tensor *x, int d, tg_axis but) {
    const tg_placements *p = x->place;
    for (int a = 0; p && a < TG_MAX_AXES; a++)
        if (a != (int)but && tg_grid_axes(c->ctx) >> a & 1 && tg_placement_shards(p->at[a]) && p->at[a].dim == d)
            return true;
    return false;
}

/* p is the placement of x on one axis. Returns the product of the ranks of the other axes that divide the shards of
 * this axis further. Such a shard is larger than the local size by that factor. */
static int64_t minor_ranks(const tg_call *c, const tg_tensor *x, tg_placement p) {
    int64_t n = 1;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        tg_placement q = x->place->at[a];
        if (tg_grid_axes(c->ctx) >> a & 1 && tg_placement_shards(q) && q.dim == p.dim && q.order > p.order)
            n *= tg_grid_of(c->ctx)->size[a];
    }
    return n;
}

static void set_chunks(tg_placement *p, int64_t k) {
    p->layout = k == 1 ? TG_CONTIGUOUS : TG_STRIDED;
    p->chunks = k == 1 ? 0 : (int32_t)k;
}

/* ---- reshape ---- */

/* The input dims [in, in_end) around a dim, and the output dims [out, out_end) to which they correspond: the smallest
 * such ranges in which the products of the sizes are equal. */
typedef struct group {
    int in, in_end, out, out_end;
} group;

/* Finds the group of dim d. Returns false if d is a dim of size 1 that no output dim corresponds to. */
static bool group_of(const tg_tensor *x, const tg_tensor *y, int d, group *g) {
    for (int i = 0, j = 0; i < x->ndim && j < y->ndim; i = g->in_end, j = g->out_end) {
        int64_t a = x->shape[i], b = y->shape[j];
        *g = (group){i, i + 1, j, j + 1};
        while (a != b) {
            if (a < b ? g->in_end == x->ndim : g->out_end == y->ndim) return false;
            if (a < b)
                a *= x->shape[g->in_end++];
            else
                b *= y->shape[g->out_end++];
        }
        if (d < g->in_end) return true;
    }
    return false;
}

/* Returns the product of the sizes of the group's dims before dim d; 0 if one of them is itself sharded. */
static int64_t dims_before(const tg_tensor *x, const group *g, int d) {
    int64_t n = 1;
    for (int i = g->in; i < d; i++) n *= tg_place_scale(x, i) == 1 ? x->shape[i] : 0;
    return n;
}

/* Chooses the output dim that the shard becomes. The shard comes in k chunks along the group. Sets *before to the
 * product of the group's sizes before that dim. If the call names a dim, chooses it; returns -1 if it is not in the
 * group. Otherwise, if k > 1, the first choice is a dim before which this product is exactly k, so that every chunk is
 * a contiguous shard of that dim. The last choice is the first dim with more than one element. */
static int choose_dim(const tg_tensor *y, const group *g, int64_t k, int named, int64_t *before) {
    int64_t n = 1;
    int first = -1;
    for (int j = g->out; j < g->out_end; n *= y->shape[j++]) {
        if (named >= 0 ? j == named : k > 1 && n == k && y->shape[j] > 1) {
            *before = n;
            return j;
        }
        if (first < 0 && y->shape[j] > 1) first = j;
    }
    *before = 1;
    return named >= 0 ? -1 : first < 0 ? g->out : first;
}

/* Moves a shard of input 0 through a reshape (tg_shard_rule). Finds the output dim that the shard becomes, and the
 * number of its chunks there. */
static tg_status move_reshaped(tg_call *c, tg_axis axis, tg_placement *to) {
    const tg_tensor *x = c->input[0], *y = c->out[0];
    const tg_rules *r = tg_rules_of(c);
    group g;
    int64_t before, chunks = tg_placement_chunks(*to), minor = minor_ranks(c, x, *to);
    if (x->numel == 0 || !group_of(x, y, to->dim, &g))
        return tg_placement_refuse(c, axis, "the sharded dim has no counterpart in the new shape", gather_first);
    int64_t p = dims_before(x, &g, to->dim);
    bool first = p == 1, movable = to->layout != TG_ZIGZAG && !shared(c, x, to->dim, axis);
    if (p == 0 || (!first && !movable))
        return tg_placement_refuse(
            c, axis, "a sharded dim would be joined after another dim, and no placement describes the result",
            gather_first);
    chunks *= p;
    int named = r->move_to >= g.out && r->move_to < g.out_end ? r->move_to : -1;
    int j = choose_dim(y, &g, movable ? chunks : 1, named, &before);
    bool cut = j < 0 || chunks % before || (before > 1 && !movable) || y->shape[j] * minor % (chunks / before);
    if (cut)
        return tg_placement_refuse(c, axis, "the new sizes cut the chunks of the shard",
                                   "gather it first, or name the dim that the shard becomes (tg_reshape_shard)");
    if (movable) set_chunks(to, chunks / before);
    to->dim = (int8_t)j;
    return TG_OK;
}

tg_status tg_call_reshapes(tg_call *c, int named) { return state(c, move_reshaped, TG_ALL_INPUTS, named); }

/* ---- concat: k equal contiguous shards along the dim become k chunks ---- */

static tg_status move_joined(tg_call *c, tg_axis axis, tg_placement *to) {
    const tg_tensor *x = c->input[0];
    if (c->n_in == 1) return TG_OK;
    bool alike = to->layout == TG_CONTIGUOUS && !shared(c, x, to->dim, axis);
    for (int i = 0; i < c->n_in && alike; i++) {
        const tg_tensor *z = c->input[i];
        alike = z->place && tg_placement_same(z->place->at[axis], *to) && z->shape[to->dim] == x->shape[to->dim];
    }
    if (!alike)
        return tg_placement_refuse(c, axis, "parts joined along a sharded dim must be equal contiguous shards of it",
                                   gather_first);
    set_chunks(to, c->n_in);
    return TG_OK;
}

tg_status tg_call_joins(tg_call *c, int dim) { return state(c, move_joined, dim, -1); }

/* ---- split: k chunks along the dim become k outputs ---- */

static tg_status move_cut(tg_call *c, tg_axis axis, tg_placement *to) {
    const tg_tensor *x = c->input[0];
    if (c->n_out == 1) return TG_OK;
    bool apart = to->layout == TG_STRIDED && to->chunks == c->n_out && !shared(c, x, to->dim, axis);
    for (int i = 1; i < c->n_out && apart; i++) apart = c->out[i]->shape[to->dim] == c->out[0]->shape[to->dim];
    if (!apart)
        return tg_placement_refuse(
            c, axis, "the parts would be pieces of every rank's shard, not of the whole",
            "shard the dim in as many chunks as there are parts (TG_SHARD_STRIDED), or gather it "
            "first");
    set_chunks(to, 1);
    return TG_OK;
}

tg_status tg_call_cuts(tg_call *c, int dim) { return state(c, move_cut, dim, -1); }
