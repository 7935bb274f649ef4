/* Conversions: a mapping op states that it changes one placement to another on one axis (tg_call_convert). This file
 * records the statement, checks it, and computes the placements that result. */
#include "placement/rule.h"

#include <stdio.h>

#include <tapegrad/comm.h>

static const tg_placement invariant = {.kind = TG_INVARIANT};

tg_status tg_call_convert(tg_call *c, int i, tg_placement from, int o, tg_placement to, const tg_comm *comm,
                          const char *remedy) {
    if (!c) return TG_ERR_ARGUMENT;
    if (!comm) return tg_call_fail(c, TG_ERR_ARGUMENT, "the communicator is NULL");
    tg_axis axis = tg_comm_axis(comm);
    if (i < 0 || i >= c->n_in || o < 0 || o >= c->n_out)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "tg_call_convert: input is %d and output %d; the call has %s and %s", i,
                            o, tg_count(c->n_in, "input").text, tg_count(c->n_out, "output").text);
    if ((unsigned)axis >= TG_MAX_AXES || !(tg_grid_axes(c->ctx) >> axis & 1)) return TG_OK;
    tg_rules *r = tg_rules_of(c);
    if (!r) return c->ctx->run.status;
    if (r->n_conversions == TG_MAX_CONVERSIONS)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "tg_call_convert: an op may state at most %d conversions",
                            TG_MAX_CONVERSIONS);
    r->conversion[r->n_conversions++] = (tg_conversion){i, o, axis, from, to, remedy};
    return TG_OK;
}

/* ---- Axes that shard the same dim: their order, major first ---- */

/* Returns how many axes other than `but` shard dim `dim`. */
static int sharers(const tg_ctx *ctx, const tg_placements *p, int dim, tg_axis but) {
    int n = 0;
    for (int a = 0; p && a < TG_MAX_AXES; a++)
        n += a != (int)but && tg_grid_axes(ctx) >> a & 1 && tg_placement_shards(p->at[a]) && p->at[a].dim == dim;
    return n;
}

const tg_placements *tg_place_returned(tg_ctx *ctx, const tg_placements *p, tg_axis axis, tg_placement to) {
    tg_placement at[TG_MAX_AXES] = {{0}};
    if (p) memcpy(at, p->at, sizeof at);
    tg_placement old = at[axis];
    int others = tg_placement_shards(to) ? sharers(ctx, p, to.dim, axis) : 0;
    if (to.order > others) to.order = (uint8_t)others;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (a == (int)axis || !tg_placement_shards(at[a])) continue;
        if (tg_placement_shards(old) && at[a].dim == old.dim && at[a].order > old.order) at[a].order--;
        if (tg_placement_shards(to) && at[a].dim == to.dim && at[a].order >= to.order) at[a].order++;
    }
    at[axis] = to;
    return tg_place_intern(ctx, at);
}

const tg_placements *tg_place_converted(tg_ctx *ctx, const tg_placements *p, tg_axis axis, tg_placement to) {
    to.order = UINT8_MAX;
    return tg_place_returned(ctx, p, axis, to);
}

/* ---- The check ---- */

static tg_placement at_of(const tg_tensor *x, tg_axis axis) { return x->place ? x->place->at[axis] : invariant; }

/* Returns whether a conversion that expects `from` accepts input i, which is placed as `is`. I and R are
 * interchangeable if the input needs no gradient, because they differ only in the gradient. */
static bool accepts(const tg_call *c, int i, tg_placement from, tg_placement is) {
    if (from.kind <= TG_REPLICATED && is.kind <= TG_REPLICATED)
        return from.kind == is.kind || !tg_call_differentiable(c, i);
    is.order = from.order = 0;
    return tg_placement_same(from, is);
}

static tg_status refuse_input(tg_call *c, const tg_conversion *v) {
    char want[24], why[96];
    tg_placement_name(v->from, want, sizeof want);
    snprintf(why, sizeof why, "input %d must be %s on this axis", v->in, want);
    return tg_placement_refuse(c, v->axis, why, v->remedy ? v->remedy : "docs/placements.md lists the mappings");
}

/* Refuses a conversion that moves data along a dim which another axis shards too. Of the axes that shard one dim, only
 * the minor (innermost) one may be converted. */
static tg_status check_sharers(tg_call *c, const tg_rules *r, const tg_conversion *v) {
    const tg_tensor *x = c->input[v->in], *y = c->out[v->out];
    tg_placement is = at_of(x, v->axis);
    if (tg_placement_shards(is) && is.order != sharers(c->ctx, x->place, is.dim, v->axis))
        return tg_placement_refuse(c, v->axis, "another axis shards the same dim within the shards of this one",
                                   "convert the minor axis first");
    /* claims: an opaque tensor becomes a shard of dim d. adds: a tensor that is not VARYING becomes a shard of dim d;
     * this axis is then the minor one, so other axes may shard the dim too. */
    for (int d = 0; !tg_placement_shards(is) && d < x->ndim; d++) {
        int j = r->role[v->in][d] >= 0 ? r->role[v->in][d] : d; /* the output dim that d becomes */
        bool claims = is.kind == TG_VARYING && tg_placement_shards(v->to) && v->to.dim == d;
        bool moves = claims || c->dims >> d & 1 || (j < y->ndim && x->shape[d] != y->shape[j]);
        bool adds = is.kind != TG_VARYING && tg_placement_shards(v->to) && v->to.dim == d;
        if (moves && !adds && sharers(c->ctx, x->place, d, v->axis))
            return tg_placement_refuse(c, v->axis, "another axis shards a dim along which rows move between ranks",
                                       "gather that axis first");
    }
    return TG_OK;
}

/* Fails if the output cannot be sharded as the conversion states. */
static tg_status check_result(tg_call *c, const tg_conversion *v) {
    const tg_tensor *y = c->out[v->out];
    int64_t chunks = tg_placement_chunks(v->to);
    if (!tg_placement_shards(v->to)) return TG_OK;
    if (v->to.dim < 0 || v->to.dim >= y->ndim || chunks < 1 || y->shape[v->to.dim] % chunks)
        return tg_call_fail(
            c, TG_ERR_PLACEMENT,
            "on axis %s output %d would be sharded along dim %d in %lld chunks, which its shape does not allow",
            tg_axis_name(v->axis), v->out, v->to.dim, (long long)chunks);
    return TG_OK;
}

static tg_status refuse_varying(tg_call *c, tg_axis axis, int i) {
    char remedy[64];
    snprintf(remedy, sizeof remedy, "gather input %d (tg_gather_from)", i);
    return tg_placement_refuse(
        c, axis, "an input that is not converted must be the same on every rank, and is not known to be", remedy);
}

/* Checks the inputs that no conversion names: each must be the same on every rank of the axis, and need no gradient. */
static tg_status check_others(tg_call *c, tg_axis axis, uint32_t named) {
    for (int i = 0; i < c->n_in; i++) {
        if (!c->input[i] || tg_bit(named, i)) continue;
        if (at_of(c->input[i], axis).kind > TG_REPLICATED) return refuse_varying(c, axis, i);
        if (tg_call_differentiable(c, i))
            return tg_placement_refuse(c, axis, "an input that is not converted must not need a gradient",
                                       "tg_detach it");
    }
    return TG_OK;
}

tg_status tg_placement_convert(tg_call *c, const tg_rules *r, tg_axis axis) {
    uint32_t named = 0;
    for (int k = 0; k < r->n_conversions; k++) {
        const tg_conversion *v = &r->conversion[k];
        if (v->axis != axis || !c->input[v->in]) continue;
        named |= 1u << (v->in < 31 ? v->in : 31);
        if (!accepts(c, v->in, v->from, at_of(c->input[v->in], axis))) return refuse_input(c, v);
        TG_TRY(check_sharers(c, r, v));
        TG_TRY(check_result(c, v));
    }
    return check_others(c, axis, named);
}
