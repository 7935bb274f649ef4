/* The rule of placements on one axis: the placement of an op's output if inputs are PARTIAL, if inputs are VARYING,
 * or neither, and the cases that it refuses. The public description is docs/placements.md. */
#include "placement/rule.h"
#include "tape/call.h"

#include "base/text.h"

static tg_call_impl *impl(const tg_call *c) { return c->internal; }

/* ---- Inputs that need a gradient ---- */

/* Returns whether the op has a derivative and an output of a floating-point dtype. */
static bool gives_gradients(const tg_call *c) {
    if (!c->op->backward && !c->op->vjp) return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i] && tg_is_float((tg_dtype)c->out[i]->dtype)) return true;
    return false;
}

/* Returns the flags that say that an input needs a gradient from a call on this tape: it does if it has any of them. */
static uint32_t gradient_flags(const tg_tape *t) {
    return t->grad ? TG_F_REQUIRES_GRAD : t->collects && !t->grad_off ? TG_F_REQUIRES_GRAD | TG_F_DIFFERENTIABLE : 0;
}

bool tg_call_asks_gradient(const tg_call *c,
                           int i) { return c->input[i] && c->input[i]->flags & gradient_flags(c->tape); }

bool tg_call_differentiable(const tg_call *c, int i) {
    return (c->op->backward || c->op->vjp) && tg_call_asks_gradient(c, i);
}

bool tg_call_any_differentiable(const tg_call *c) {
    bool any = false;
    for (int i = 0; i < c->n_in; i++) any |= tg_call_differentiable(c, i);
    return any;
}

void tg_call_note_differentiable(tg_call *c) {
    bool any = tg_call_any_differentiable(c);
    for (int i = 0; any && i < c->n_out; i++)
        if (tg_is_float((tg_dtype)c->out[i]->dtype)) c->out[i]->flags |= TG_F_DIFFERENTIABLE;
}

/* ---- The inputs on one axis ---- */

typedef struct on_axis {
    tg_call *c;
    tg_rules *r;
    tg_axis axis;
    bool gradients; /* the op can give gradients (gives_gradients) */
    /* Masks of inputs, by their placement on this axis. `others` has all that are not PARTIAL. invariant and replicated
     * have only inputs that need a gradient. Bit 31 stands for all inputs from 31 on, so it may be set in both of two
     * masks that otherwise exclude each other. */
    uint32_t partial, others, varying, opaque, invariant, replicated;
} on_axis;

static const tg_placement invariant = {.kind = TG_INVARIANT};

static tg_placement at(const on_axis *o, int i) {
    const tg_placements *p = o->c->input[i]->place;
    return p ? p->at[o->axis] : invariant;
}

/* Fills in the masks. */
static void read_inputs(on_axis *o) {
    for (int i = 0; i < o->c->n_in; i++) {
        if (!o->c->input[i]) continue;
        tg_placement p = at(o, i);
        uint32_t bit = 1u << (i < 31 ? i : 31);
        bool grad = o->gradients && tg_call_differentiable(o->c, i);
        *(p.kind == TG_PARTIAL ? &o->partial : &o->others) |= bit;
        if (p.kind == TG_VARYING) o->varying |= bit;
        if (p.kind == TG_VARYING && p.layout == TG_OPAQUE) o->opaque |= bit;
        if (p.kind == TG_INVARIANT && grad) o->invariant |= bit;
        if (p.kind == TG_REPLICATED && grad) o->replicated |= bit;
    }
}

/* ---- Refusals ---- */

/* Writes how the inputs are placed, such as "I without gradient, V0". */
static void inputs_text(const on_axis *o, char *buf, size_t n) {
    size_t end = 0;
    for (int i = 0; i < o->c->n_in && i < 6; i++) {
        char one[24] = "absent";
        bool grad = o->gradients && tg_call_differentiable(o->c, i);
        if (o->c->input[i]) tg_placement_name(at(o, i), one, sizeof one);
        tg_text(buf, n, &end, "%s%s%s", i ? ", " : "", one, o->c->input[i] && !grad ? " without gradient" : "");
    }
    if (o->c->n_in > 6) tg_text(buf, n, &end, " and %d more", o->c->n_in - 6);
}

tg_status tg_placement_refuse(const tg_call *c, tg_axis axis, const char *why, const char *remedy) {
    char inputs[256] = "", advice[768] = "";
    const tg_rules *r = impl(c)->rules;
    if (r && r->loose) return TG_ERR_PLACEMENT;
    on_axis o = {.c = (tg_call *)c, .axis = axis, .gradients = gives_gradients(c)};
    inputs_text(&o, inputs, sizeof inputs);
    read_inputs(&o);
    tg_placement_remedy(c, axis, o.invariant && (o.varying | o.partial | o.replicated), remedy, advice, sizeof advice);
    return tg_call_fail((tg_call *)c, TG_ERR_PLACEMENT, "on axis %s its inputs are %s: %s; %s", tg_axis_name(axis),
                        inputs, why, advice);
}

static tg_status refuse(const on_axis *o, const char *why, const char *remedy) {
    return tg_placement_refuse(o->c, o->axis, why, remedy);
}

/* Returns the remedy for an op that needs a whole dim: what replaces it over shards, or, if nothing does, to gather. */
static const char *replacement_of(const tg_op *op) {
    static const char *const replacements[][2] = {
        {"cross_entropy", "use tg_vocab_parallel_cross_entropy"},
        {"linear_cross_entropy", "use tg_vocab_parallel_linear_cross_entropy"},
        {"embedding", "use tg_vocab_parallel_embedding"},
        {"mean", "sum, and scale by 1 over the global count"},
    };
    for (int i = 0; i < TG_LEN(replacements); i++)
        if (strcmp(op->name, replacements[i][0]) == 0) return replacements[i][1];
    return "gather it first (tg_gather_from, tg_all_gather), or move the shard to another dim (tg_reshard)";
}

/* Returns the remedy for a refused shard of input i. A cross-entropy takes the mean over the dims of its target,
 * which is the last input. Its first input has the same dims, and after them one more. */
static const char *remedy_of(const on_axis *o, int i) {
    const char *name = o->c->op->name;
    bool loss = strstr(name, "cross_entropy") != NULL;
    if (loss && (i == o->c->n_in - 1 || (i == 0 && at(o, i).dim < o->c->input[i]->ndim - 1)))
        return "a rank cannot average over the rows of all ranks: take TG_LOSS_SUM, and divide by the tokens of all "
               "ranks (tg_grads_finalize does)";
    return replacement_of(o->c->op);
}

/* ---- Case 1: some inputs are PARTIAL ---- */

/* Returns whether the PARTIAL inputs are exactly one of the sets in which the op is jointly linear. */
static bool is_linear(const on_axis *o) {
    for (int k = 0; k < o->r->n_sets; k++) {
        uint32_t set = o->r->set[k];
        if (!(o->partial & ~set) && !(o->others & set)) return true;
    }
    return false;
}

/* Makes the result PARTIAL, or refuses the call. */
static tg_status partial(const on_axis *o, tg_placement *to) {
    if (!is_linear(o))
        return refuse(o,
                      "the op is not linear in exactly the tensors that are P, so the sum of its results over ranks "
                      "would be wrong",
                      "reduce them first (tg_reduce_from_tp, tg_all_reduce, tg_reduce_scatter), or make the other "
                      "addend P (tg_i_to_p)");
    if (o->varying)
        return refuse(o, "a share of a sum would be combined with a different tensor on every rank",
                      "reduce the P tensor first (tg_reduce_from_tp, tg_all_reduce, tg_reduce_scatter)");
    if (o->invariant)
        return refuse(o, "the gradient of the I tensor would be only one rank's share of it",
                      "pass the I tensor to tg_copy_to_tp first, or declare the parameter R (tg_place)");
    *to = (tg_placement){.kind = TG_PARTIAL};
    return TG_OK;
}

/* ---- Case 2: some inputs are VARYING ---- */

/* Returns how many summed dims input i has before dim d. */
static int nth_summed(const tg_rules *r, int i, int d) {
    int n = 0;
    for (int k = 0; k < d; k++) n += r->role[i][k] == TG_SUMMED;
    return n;
}

/* Returns summed dim `nth` of input i, counted from 0, or -1. */
static int summed_dim(const tg_rules *r, int i, int ndim, int nth) {
    for (int d = 0; d < ndim; d++)
        if (r->role[i][d] == TG_SUMMED && nth-- == 0) return d;
    return -1;
}

/* Places the result of an op whose summed dim is sharded. Each rank computes its own terms of the sum, so every
 * input must be sharded along that dim in the same way. Inputs in `within` may lack the dim. */
static tg_status sum_over_shards(const on_axis *o, int first, tg_placement *to) {
    tg_placement p = at(o, first);
    int nth = nth_summed(o->r, first, p.dim);
    for (int i = 0; i < o->c->n_in; i++) {
        if (!o->c->input[i]) continue;
        tg_placement q = at(o, i);
        bool varies = q.kind == TG_VARYING;
        int d = summed_dim(o->r, i, o->c->input[i]->ndim, nth);
        if (!varies && d < 0 && tg_bit(o->r->within, i)) continue;
        if (d < 0)
            return refuse(o, "an input without the summed dim would be added once on every rank",
                          "add it after tg_reduce_from_tp");
        tg_placement want = p;
        want.dim = (int8_t)d;
        if (!varies || !tg_placement_same(q, want))
            return refuse(o, "the operands are not sharded alike along the dim that is summed",
                          "give them one layout there: split the whole one (tg_shard), or gather the shard "
                          "(tg_gather_from, tg_all_gather)");
    }
    *to = (tg_placement){.kind = TG_PARTIAL};
    return TG_OK;
}

/* Returns the dim of input i that becomes output dim j, or -1. */
static int dim_to(const on_axis *o, int i, int j) {
    for (int d = 0; d < o->c->input[i]->ndim; d++)
        if (o->r->role[i][d] == j) return d;
    return -1;
}

/* Checks dim d of input i, which is whole, while another input has a shard of the same output dim j. Only a dim of
 * size 1 that broadcasts is accepted. */
static tg_status meet_whole(const on_axis *o, int i, int d, int j) {
    const tg_tensor *x = o->c->input[i];
    bool one = x->shape[d] == 1 && tg_place_scale(x, d) == 1;
    bool stretches = tg_bit(o->r->stretch, i) && o->r->stretched_dims >> j & 1;
    if (one && stretches && !(o->r->alike & o->varying && tg_bit(o->r->alike, i))) return TG_OK;
    return refuse(o,
                  one && !stretches ? "the op does not broadcast a dim of size 1 over a shard"
                                    : "one input has the whole of a dim that is sharded in another",
                  "split the whole operand (tg_shard), gather the shard (tg_gather_from, tg_all_gather), or use "
                  "tg_as_opaque if the op is meant rank by rank");
}

/* Places the result of an op whose sharded dim becomes an output dim. All inputs that have this dim must be sharded in
 * the same way, except where it has size 1 and is broadcast. */
static tg_status pass_shards(const on_axis *o, int first, tg_placement *to) {
    tg_placement p = at(o, first);
    int j = o->r->role[first][p.dim];
    int64_t size = o->c->input[first]->shape[p.dim];
    for (int i = 0; i < o->c->n_in; i++) {
        int d = o->c->input[i] ? dim_to(o, i, j) : -1;
        if (d < 0) continue;
        tg_placement q = at(o, i);
        if (q.kind != TG_VARYING) {
            TG_TRY(meet_whole(o, i, d, j));
            continue;
        }
        tg_placement want = p;
        want.dim = (int8_t)d;
        bool even = o->c->input[i]->shape[d] == size || o->r->uneven >> j & 1;
        if (!even || !tg_placement_same(q, want))
            return refuse(o, even ? "the shards differ in dim, layout or order of axes" : "the shards differ in size",
                          "give them one layout, or gather them (tg_gather_from, tg_all_gather)");
    }
    *to = p;
    to->dim = (int8_t)j;
    return TG_OK;
}

/* Checks that the sharded dims of all inputs have the same role, and that the op does not need one of them whole. */
static tg_status check_roles(const on_axis *o, int first) {
    int role = o->r->role[first][at(o, first).dim];
    for (int i = 0; i < o->c->n_in; i++) {
        if (!o->c->input[i] || at(o, i).kind != TG_VARYING) continue;
        int mine = o->r->role[i][at(o, i).dim];
        if (mine == TG_WHOLE) return refuse(o, "the op needs the whole of the dim that is sharded", remedy_of(o, i));
        if (mine != role)
            return refuse(o, "the sharded dims have different roles in the op",
                          "gather one of them, or shard both along the same dim");
        if (role >= 0 && role >= o->c->out[0]->ndim)
            return tg_call_fail(o->c, TG_ERR_INTERNAL, "dim %d of input %d becomes dim %d of %d", at(o, i).dim, i, role,
                                o->c->out[0]->ndim);
    }
    return TG_OK;
}

/* Returns the first input that is VARYING. */
static int first_of(const on_axis *o) {
    for (int i = 0; i < o->c->n_in; i++)
        if (o->c->input[i] && at(o, i).kind == TG_VARYING) return i;
    return 0;
}

/* Makes the result opaque if an input is; otherwise moves the shards to the result, or refuses the call. */
static tg_status varying(const on_axis *o, tg_placement *to) {
    int first = first_of(o);
    if (o->invariant)
        return refuse(o, "the gradient of the I tensor would differ between ranks",
                      "pass the I tensor to tg_copy_to_tp first, or declare the parameter R (tg_place)");
    if (o->opaque) {
        *to = (tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE};
        return TG_OK;
    }
    tg_rules_roles(o->c, o->r);
    *to = at(o, first);
    if (o->r->move && (o->r->move_dim == TG_ALL_INPUTS || o->r->move_dim == to->dim))
        return o->r->move(o->c, o->axis, to);
    TG_TRY(check_roles(o, first));
    bool summed = o->r->role[first][to->dim] == TG_SUMMED;
    return summed ? sum_over_shards(o, first, to) : pass_shards(o, first, to);
}

/* ---- Case 3: no input is VARYING, but each rank draws random numbers of its own ---- */

/* Makes the result opaque, or refuses the call. */
static tg_status drawn(const on_axis *o, tg_placement *to) {
    const char *remedy = "draw from a stream that has one seed on all ranks (tg_rng_join this rank's stream first)";
    if (o->partial) return refuse(o, "every rank would draw other random numbers for its share of a sum", remedy);
    if (o->invariant)
        return refuse(o,
                      "the random stream has another seed on every rank, so the gradient of the I tensor would "
                      "differ between ranks",
                      "draw from a stream that has one seed on all ranks (tg_rng_join this rank's stream first), "
                      "or pass the I tensor to tg_copy_to_tp first");
    *to = (tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE};
    return TG_OK;
}

/* ---- The rule on one axis ---- */

/* Applies the case of the rule that fits the inputs. */
static tg_status strict(const on_axis *o, tg_placement *to) {
    if (o->r->drawn >> o->axis & 1 && !o->varying) return drawn(o, to);
    if (o->partial) return partial(o, to);
    if (o->varying) return varying(o, to);
    if (o->invariant && o->replicated)
        return refuse(
            o, "the gradient of the I tensor would be whole on every rank, but that of the R tensor a share of it",
            "pass the I tensor to tg_copy_to_tp first");
    *to = (tg_placement){.kind = o->replicated ? TG_REPLICATED : TG_INVARIANT};
    return TG_OK;
}

/* Derives the placement of the outputs on one axis.
 *
 * While a derivative is being recorded a refusal is no error, and the result is opaque. An intermediate value of a
 * derivative need not have a meaning as one global tensor; only the final value has. As a computation of each rank
 * by itself it is correct, and so are the gradients of inputs that are V, R or P, because those are each rank's own.
 * This does not hold if an input that needs a gradient is I; then a refusal stays an error. */
static tg_status derive(on_axis *o, tg_placement *to) {
    read_inputs(o);
    o->r->loose = o->c->tape->derives && !o->invariant;
    tg_status s = strict(o, to);
    bool opaque = o->r->loose && s == TG_ERR_PLACEMENT && tg_ok(o->c->ctx);
    o->r->loose = false;
    if (opaque) *to = (tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE};
    return opaque ? TG_OK : s;
}

/* Returns a conversion that the call states on the axis, or NULL. */
static const tg_conversion *conversion_on(const tg_rules *r, tg_axis axis) {
    for (int k = 0; k < r->n_conversions; k++)
        if (r->conversion[k].axis == axis) return &r->conversion[k];
    return NULL;
}

/* Returns the interned form of the placements `to`. Most often an input has the same placements. So the inputs are
 * compared first, which saves the search in the list. */
static const tg_placements *place_like_input(const tg_call *c, const tg_placement to[TG_MAX_AXES]) {
    for (int i = 0; i < c->n_in && i < 3; i++)
        if (c->input[i] && c->input[i]->place && !memcmp(c->input[i]->place->at, to, sizeof c->input[i]->place->at))
            return c->input[i]->place;
    return tg_place_intern(c->ctx, to);
}

/* Closes gaps in the order of the axes that shard one dim, after one of them has stopped sharding it. */
static void close_up(tg_placement to[TG_MAX_AXES]) {
    tg_placement was[TG_MAX_AXES];
    bool any = false;
    for (int a = 0; a < TG_MAX_AXES; a++) any |= tg_placement_shards(to[a]) && to[a].order > 0;
    if (TG_LIKELY(!any)) return;
    memcpy(was, to, sizeof was);
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!tg_placement_shards(was[a])) continue;
        to[a].order = 0;
        for (int b = 0; b < TG_MAX_AXES; b++)
            to[a].order += tg_placement_shards(was[b]) && was[b].dim == was[a].dim && was[b].order < was[a].order;
    }
}

/* Places every output as `to` says, and then by the conversions that name it. */
static tg_status place_outputs(tg_call *c, const tg_rules *r, tg_placement to[TG_MAX_AXES]) {
    const tg_placements *p = place_like_input(c, to);
    for (int i = 0; i < c->n_out; i++) {
        c->out[i]->place = p;
        for (int k = 0; k < r->n_conversions; k++)
            if (r->conversion[k].out == i)
                c->out[i]->place =
                    tg_place_converted(c->ctx, c->out[i]->place, r->conversion[k].axis, r->conversion[k].to);
    }
    return c->ctx->run.status;
}

/* Derives the placement of the outputs on every axis, and sets it. */
static tg_status derive_all(tg_call *c, tg_rules *r, bool gradients) {
    tg_placement to[TG_MAX_AXES] = {{0}};
    tg_rules_sets(c, r);
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!(tg_grid_axes(c->ctx) >> a & 1)) continue;
        const tg_conversion *v = conversion_on(r, (tg_axis)a);
        on_axis o = {.c = c, .r = r, .axis = (tg_axis)a, .gradients = gradients};
        if (v) {
            TG_TRY(tg_placement_convert(c, r, (tg_axis)a));
            if (c->input[v->in]) to[a] = at(&o, v->in); /* place_outputs replaces it by that of the conversion */
        } else {
            TG_TRY(derive(&o, &to[a]));
        }
    }
    close_up(to);
    return place_outputs(c, r, to);
}

/* Returns whether p and q are the same on every axis, where I and R count as the same. */
static bool same_placements(const tg_ctx *ctx, const tg_placements *p, const tg_placements *q) {
    for (int a = 0; a < TG_MAX_AXES; a++) {
        tg_placement x = p ? p->at[a] : invariant, y = q ? q->at[a] : invariant;
        bool same_valued = x.kind <= TG_REPLICATED && y.kind <= TG_REPLICATED;
        if (tg_grid_axes(ctx) >> a & 1 && !same_valued && !tg_placement_same(x, y)) return false;
    }
    return true;
}

/* Fails if an in-place op would change the placement of a tensor of the context. The caller keeps using that
 * tensor's handle, which would still have the old placement. */
static tg_status check_inplace(tg_call *c) {
    char is[128], becomes[128];
    const tg_tensor *a = c->input[0];
    if (!c->op->inplace || a->tape || same_placements(c->ctx, a->place, c->out[0]->place)) return TG_OK;
    tg_place_text(c->ctx, a->place, is, sizeof is);
    tg_place_text(c->ctx, c->out[0]->place, becomes, sizeof becomes);
    return tg_call_fail(c, TG_ERR_PLACEMENT,
                        "the in-place op would change the placement of a tensor of the context from %s to %s; declare "
                        "that placement (tg_place) before the first use of the tensor",
                        *is ? is : "I", *becomes ? becomes : "I");
}

/* Gives inputs that hold a caller's bytes and were never placed their default placement, which they keep. Then returns
 * whether any input is placed. */
static bool any_placed(tg_call *c) {
    bool any = false;
    for (int i = 0; i < c->n_in; i++) {
        if (!c->input[i]) continue;
        if (!c->input[i]->place && c->input[i]->flags & TG_F_GIVEN) c->input[i]->place = tg_place_of(c->input[i]);
        any |= c->input[i]->place != NULL;
    }
    return any;
}

static tg_status compare_leaves(tg_call *c) {
    for (int i = 0; i < c->n_in; i++) {
        tg_tensor *x = c->input[i];
        if (x && !x->tape && !(x->flags & TG_F_COMPARED)) TG_TRY(tg_placement_compare(x));
    }
    return TG_OK;
}

tg_status tg_placement_derive(tg_call *c) {
    bool any = any_placed(c);
    TG_TRY(c->ctx->run.status);
    if (TG_UNLIKELY(c->ctx->check && tg_grid_of(c->ctx)->owner)) TG_TRY(compare_leaves(c));
    if (impl(c)->placed) return TG_OK;
    const tg_rules *stated = impl(c)->rules;
    if (!any && !(stated && (stated->n_conversions || stated->drawn))) return TG_OK;
    tg_rules *r = tg_rules_of(c);
    if (!r) return c->ctx->run.status;
    TG_TRY(derive_all(c, r, gives_gradients(c)));
    return check_inplace(c);
}
