/* Where the gradients that one node's backward produces go. A contribution is written or added directly into its
 * slot or into the leaf's accumulation buffer. A separate buffer is needed in three cases only: a tensor is given
 * twice to an op, an op cannot produce the dtype of a leaf's buffer, or a node has saved the leaf's gradient. */
#include <math.h>

#include "autograd/grad_sink.h"
#include "autograd/gradients.h"
#include "autograd/hooks.h"
#include "autograd/targets.h"
#include "core/work.h"

/* ---- Choosing the destination ---- */

static tg_pass *pass_of(const tg_call *c) { return ((tg_call_impl *)c->impl)->pass; }
static tg_grad_sink *sink(const tg_call *c, int i) { return &pass_of(c)->sinks[i]; }
static tg_node *source(const tg_call *c, int i) { return tg_node_src(((tg_call_impl *)c->impl)->node)[i]; }
static tg_slot *slot_of(const tg_call *c, int i) { return &tg_node_slots(source(c, i))[c->in[i]->out]; }

/* Returns a leaf's buffer if contributions may go to it directly, and whether it already holds a value; otherwise
 * NULL. */
static tg_tensor *direct_buffer(const tg_pass *p, tg_node *n, bool *holds) {
    tg_tensor *x = tg_node_out(n)[0];
    if (!(n->flags & TG_N_LEAF) || (tg_hooks_any(x, false) && tg_pass_hooks(p, x))) return NULL;
    tg_target *target = p->o->n_targets ? tg_pass_target(p, n, 0) : NULL;
    if (target) {
        *holds = target->reached || target->mode == TG_GRAD_ADD;
        return target->g;
    }
    tg_tensor *g = tg_gradient_buffer(x);
    *holds = x->ext && x->ext->has_grad;
    return g;
}

static tg_grad_sink_kind sink_kind(tg_pass *p, tg_call *c, int i, uint8_t *mode) {
    tg_node *n = source(c, i);
    bool holds;
    *mode = TG_GRAD_WRITE;
    if (n->flags & TG_N_BUSY) return TG_SINK_SIDE;
    tg_tensor *leaf = direct_buffer(p, n, &holds);
    if (!leaf) {
        *mode = slot_of(c, i)->g ? TG_GRAD_ADD : TG_GRAD_WRITE;
        return TG_SINK_SLOT;
    }
    if (leaf->dtype != c->in[i]->dtype && !c->op->sums_f32) return TG_SINK_SIDE;
    /* this node itself may have saved it and still read it */
    if (TG_UNLIKELY(leaf->storage->saves)) return TG_SINK_SIDE;
    *mode = holds ? TG_GRAD_ADD : TG_GRAD_WRITE;
    return TG_SINK_LEAF;
}

/* In check mode a gradient that will be written is first filled with NaN. This exposes an op that reads it, or that
 * leaves a part of it unwritten. */
static tg_tensor *begun(const tg_call *c, tg_tensor *g) {
    if (g && c->ctx->check) c->ctx->run.ops->fill(c->ctx, tg_array_of(g), NAN);
    return g;
}

/* Makes a gradient buffer for input i. */
static tg_tensor *fresh(tg_call *c, int i) {
    tg_tensor *x = c->in[i];
    return begun(c, tg_temp_empty(c->ctx, x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY));
}

static tg_tensor *leaf_buffer(const tg_call *c, int i) {
    bool holds;
    tg_tensor *g = direct_buffer(pass_of(c), source(c, i), &holds);
    return holds ? g : begun(c, g);
}

/* Returns the slot's buffer, copied first if it is shared. */
static tg_tensor *slot_buffer(tg_call *c, int i) {
    tg_slot *s = slot_of(c, i);
    if (!s->g) return s->g = fresh(c, i);
    if (tg_storage_is_own(s->g->storage) && s->g->flags & TG_F_CONTIGUOUS) return s->g;
    tg_tensor *own = fresh(c, i);
    if (own && tg_gradient_put(own, s->g, false) != TG_OK) {
        tg_temp_free(own);
        return NULL;
    }
    if (!own) return NULL;
    tg_temp_free(s->g);
    return s->g = own;
}

static tg_tensor *materialize(tg_call *c, int i) {
    switch (sink(c, i)->kind) {
    case TG_SINK_SLOT: return slot_buffer(c, i);
    case TG_SINK_LEAF: return leaf_buffer(c, i);
    case TG_SINK_SIDE: return sink(c, i)->side = fresh(c, i);
    default: return NULL;
    }
}

tg_status tg_sinks_open(tg_pass *p, tg_call *c) {
    uint8_t *mode = (uint8_t *)c->gin_mode;
    /* initialize all of them first: tg_sinks_close reads all, even after an error */
    for (int i = 0; i < c->n_in; i++) {
        p->sinks[i] = (tg_grad_sink){TG_SINK_NONE, NULL};
        c->gin[i] = NULL;
        mode[i] = TG_GRAD_NONE;
    }
    for (int i = 0; i < c->n_in; i++) {
        if (!tg_pass_needs(p, source(c, i))) continue;
        c->needs |= 1u << (i < 31 ? i : 31);
        p->sinks[i].kind = sink_kind(p, c, i, &mode[i]);
        source(c, i)->flags |= TG_N_BUSY;
        if (tg_bit(c->op->passes, i)) continue;
        c->gin[i] = materialize(c, i);
        if (TG_UNLIKELY(!c->gin[i])) return c->ctx->run.status;
    }
    return TG_OK;
}

static void leaf_reached(const tg_pass *p, tg_node *n) {
    tg_target *target = p->o->n_targets ? tg_pass_target(p, n, 0) : NULL;
    n->flags |= TG_N_REACHED;
    if (target)
        target->reached = true;
    else
        tg_gradient_reached(tg_node_out(n)[0]);
}

/* Adds a side buffer to its destination, and frees it. */
static tg_status settle_side(tg_pass *p, tg_call *c, int i) {
    tg_tensor *g = sink(c, i)->side;
    tg_node *n = source(c, i);
    bool holds;
    sink(c, i)->side = NULL;
    if (!g) return TG_OK;
    tg_tensor *leaf = direct_buffer(p, n, &holds);
    if (!leaf) return tg_slot_add(slot_of(c, i), g);
    tg_status s = tg_gradient_put(leaf, g, holds);
    tg_temp_free(g);
    leaf_reached(p, n);
    return s;
}

tg_status tg_sinks_close(tg_pass *p, tg_call *c) {
    tg_status status = c->ctx->run.status;
    for (int i = 0; i < c->n_in; i++) {
        if (p->sinks[i].kind == TG_SINK_NONE) continue;
        source(c, i)->flags &= ~TG_N_BUSY;
        if (status == TG_OK && p->sinks[i].kind == TG_SINK_LEAF) leaf_reached(p, source(c, i));
    }
    for (int i = 0; i < c->n_in; i++) {
        if (p->sinks[i].kind != TG_SINK_SIDE) continue;
        if (status == TG_OK)
            status = settle_side(p, c, i);
        else
            tg_temp_free(p->sinks[i].side);
    }
    return status;
}

tg_tensor *tg_sink_gradient(const tg_call *c, int i) {
    tg_grad_sink_kind kind = sink(c, i)->kind;
    bool holds = false;
    if (kind == TG_SINK_NONE) return NULL;
    bool summed = kind == TG_SINK_LEAF || kind == TG_SINK_SIDE;
    tg_tensor *leaf = summed ? direct_buffer(pass_of(c), source(c, i), &holds) : NULL;
    return !leaf ? slot_of(c, i)->g : holds ? leaf : NULL;
}

/* ---- Functions for an op's backward ---- */

static tg_status enter(tg_call *c, int i, const char *who) {
    if (!c) return TG_ERR_ARGUMENT;
    if (!pass_of(c)) return tg_call_fail(c, TG_ERR_STATE, "%s is called in a backward only", who);
    if (i < 0 || i >= c->n_in) return tg_call_fail(c, TG_ERR_ARGUMENT, "%s: input %d of %d", who, i, c->n_in);
    return TG_OK;
}

/* Checks that g can be the gradient of input i. */
static tg_status check_gradient(tg_call *c, int i, const tg_tensor *g, const char *who) {
    TG_TRY(enter(c, i, who));
    TG_TRY(tg_check(c->ctx, g, who));
    const tg_tensor *x = c->in[i];
    if (!x || (g->ndim == x->ndim && !memcmp(g->shape, x->shape, g->ndim * sizeof *g->shape))) return TG_OK;
    char want[160], got[160];
    tg_describe(x, want, sizeof want);
    tg_describe(g, got, sizeof got);
    return tg_call_fail(c, TG_ERR_SHAPE, "%s: the gradient of input %d is %s, expected %s", who, i, got, want);
}

tg_tensor *tg_call_gin(tg_call *c, int i) {
    if (enter(c, i, "tg_call_gin") != TG_OK) return tg_inert(c ? c->ctx : &tg_dead_ctx);
    if (!c->gin[i] && c->gin_mode[i] != TG_GRAD_NONE) c->gin[i] = materialize(c, i);
    return c->gin[i] ? c->gin[i] : tg_inert(c->ctx);
}

tg_status tg_call_pass(tg_call *c, int i, tg_tensor *g) {
    TG_TRY(check_gradient(c, i, g, "tg_call_pass"));
    tg_grad_sink *r = sink(c, i);
    if (r->kind == TG_SINK_NONE) return TG_OK;
    if (r->kind != TG_SINK_SLOT || c->gin_mode[i] == TG_GRAD_ADD) {
        tg_tensor *gin = tg_call_gin(c, i);
        if (c->ctx->run.status != TG_OK) return c->ctx->run.status;
        return tg_gradient_put(gin, g, c->gin_mode[i] == TG_GRAD_ADD);
    }
    tg_slot *s = slot_of(c, i);
    tg_tensor *share =
        tg_gradient_alias(g);
    if (!share) return c->ctx->run.status;
    if (s->g) tg_temp_free(s->g);
    s->g = share;
    c->gin[i] = NULL;
    r->kind = TG_SINK_DONE;
    return TG_OK;
}

bool tg_call_accumulates(const tg_call *c, int i) {
    const tg_pass *p = pass_of(c);
    if (sink(c, i)->kind != TG_SINK_LEAF) return false;
    const tg_target *target = p->o->n_targets ? tg_pass_target(p, source(c, i), 0) : NULL;
    return target ? target->accumulates : !p->o->targets;
}

void tg_call_decline(tg_call *c, int i) {
    tg_grad_sink *r = sink(c, i);
    if (r->kind == TG_SINK_SLOT && c->gin_mode[i] != TG_GRAD_ADD) { /* otherwise the slot keeps its value */
        tg_temp_free(slot_of(c, i)->g);
        slot_of(c, i)->g = NULL;
    }
    if (r->side) tg_temp_free(r->side);
    c->gin[i] = NULL;
    *r = (tg_grad_sink){TG_SINK_DONE, NULL};
}

tg_status tg_call_in_flight(tg_call *c, int i, tg_tensor *g, tg_work *w) {
    tg_status status = check_gradient(c, i, g, "tg_call_in_flight");
    if (status == TG_OK && !w && g->storage->state != TG_IN_FLIGHT)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "tg_call_in_flight: the work is NULL, and no other fills the gradient");
    if (status != TG_OK) {
        if (w) tg_work_abandon(w);
        return status;
    }
    tg_grad_sink *r = sink(c, i);
    if (w) TG_TRY(tg_work_fills(w, g->storage));
    if (r->kind == TG_SINK_NONE) return TG_OK;
    tg_pending *p = tg_tape_alloc(c->tape, sizeof *p);
    tg_tensor *share =
        p ? tg_gradient_alias(g) : NULL;
    if (!share) return c->ctx->run.status;
    *p = (tg_pending){NULL, share};
    tg_slot *s = slot_of(c, i);
    if (r->kind == TG_SINK_SLOT && c->gin_mode[i] == TG_GRAD_WRITE && s->g) {
        tg_temp_free(s->g);
        s->g = NULL;
    }
    if (r->side) tg_temp_free(r->side);
    tg_pending **end = &s->pending;
    while (*end) end = &(*end)->next;
    *end = p;
    c->gin[i] = NULL;
    *r = (tg_grad_sink){TG_SINK_DONE, NULL};
    return TG_OK;
}
