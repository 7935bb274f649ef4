/* Decides where the gradients go that the backward of one node computes. A contribution is written or added directly
 * into its slot or into the leaf's accumulation buffer. A separate buffer is needed in three cases only: a tensor is
 * given twice to an op, an op cannot produce the dtype of a leaf's buffer, or a node has saved the leaf's gradient. */
#include <math.h>

#include "autograd/grad_sink.h"
#include "autograd/gradients.h"
#include "autograd/hooks.h"
#include "autograd/targets.h"
#include "core/work.h"

static tg_pass *pass_of(const tg_call *c) { return ((tg_call_impl *)c->internal)->pass; }
static tg_grad_sink *sink(const tg_call *c, int i) { return &pass_of(c)->sinks[i]; }
static tg_node **sources(const tg_call *c) { return tg_node_src(((tg_call_impl *)c->internal)->node); }

/* ---- Making the buffers ---- */

/* In check mode a gradient that will be written is first filled with NaN. This exposes an op that reads it, or that
 * leaves a part of it unwritten. */
static tg_tensor *poisoned(const tg_call *c, tg_tensor *g) {
    if (g && c->ctx->check) c->ctx->run.ops->fill(c->ctx, tg_array_of(g), NAN);
    return g;
}

/* Makes a gradient buffer for input i. */
static tg_tensor *fresh(tg_call *c, int i) {
    tg_tensor *x = c->input[i];
    return poisoned(c, tg_temp_empty(c->ctx, x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY));
}

/* Returns the sink's buffer. NULL after recording an error, such as that the op has dropped or replaced the leaf's
 * buffer in its backward. */
static tg_tensor *buffer_of(const tg_grad_sink *r, tg_node *n) {
    if (r->target) return r->buffer;
    tg_tensor *x = tg_node_out(n)[0], *g = tg_gradient_buffer(x);
    if (!g || g->serial == r->serial) return g;
    char what[160];
    tg_describe(x, what, sizeof what);
    tg_fail(x->ctx, TG_ERR_HANDLE, "the main_grad of %s was replaced while an op computed a gradient for it", what);
    return NULL;
}

static tg_tensor *leaf_buffer(const tg_call *c, int i) {
    const tg_grad_sink *r = sink(c, i);
    tg_tensor *g = buffer_of(r, sources(c)[i]);
    return r->adds ? g : poisoned(c, g);
}

/* Returns the slot's gradient, which is made if there is none, for backward to write to. If the gradient shares its
 * bytes or is not contiguous, a copy replaces it first. */
static tg_tensor *slot_buffer(tg_call *c, int i) {
    tg_slot *s = sink(c, i)->slot;
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

/* ---- Opening ---- */

/* Finds the buffer in which the gradient of leaf n accumulates. Sets none if hooks of tg_on_grad must see the gradient
 * first, or if the leaf is a target without a buffer: then the slot is the destination. */
static tg_status find_buffer(const tg_pass *p, tg_node *n, tg_grad_sink *r) {
    tg_tensor *x = tg_node_out(n)[0];
    if (tg_hooks_any(x, false) && tg_pass_hooks(p, x)) return TG_OK;
    if (p->o->n_targets && (r->target = tg_pass_target(p, n, 0))) {
        r->buffer = r->target->g;
        r->adds = r->target->reached || r->target->mode == TG_GRAD_ADD;
    } else {
        r->buffer = tg_gradient_buffer(x);
        if (!r->buffer) return x->ctx->run.status;
        r->serial = r->buffer->serial;
        r->adds = x->ext->has_grad;
    }
    /* If the flag is set, it is of an earlier pass, or a hook has zeroed what this pass had added before. */
    if (!r->adds) n->flags &= ~TG_N_REACHED;
    return TG_OK;
}

/* Decides where the gradient of x, an output of n, goes. */
static tg_status choose(tg_pass *p, const tg_call *c, const tg_tensor *x, tg_node *n, tg_grad_sink *r) {
    *r = (tg_grad_sink){.kind = TG_SINK_SLOT, .slot = &tg_node_slots(n)[x->out]};
    if (n->flags & TG_N_LEAF) TG_TRY(find_buffer(p, n, r));
    if (!r->buffer) r->adds = r->slot->g;
    if (n->flags & TG_N_BUSY) {
        r->kind = TG_SINK_SIDE;
    } else if (r->buffer) {
        /* If a node has saved the leaf's gradient, it may be the node that runs now, which may still read it. */
        bool direct = (r->buffer->dtype == x->dtype || c->op->sums_f32) && !r->buffer->storage->saves;
        r->kind = direct ? TG_SINK_LEAF : TG_SINK_SIDE;
    }
    n->flags |= TG_N_BUSY;
    return TG_OK;
}

tg_status tg_sinks_open(tg_pass *p, tg_call *c) {
    tg_node **src = sources(c);
    uint8_t *mode = (uint8_t *)c->gin_mode;
    tg_status s = TG_OK;
    for (int i = 0; i < c->n_in; i++) {
        tg_grad_sink *r = &p->sinks[i];
        r->kind = TG_SINK_NONE;
        c->gin[i] = NULL;
        mode[i] = TG_GRAD_NONE;
        /* After an error the loop goes on, because tg_sinks_close reads the kind of every sink. */
        if (s != TG_OK || !tg_pass_needs(p, src[i])) continue;
        c->needs |= 1u << (i < 31 ? i : 31);
        s = choose(p, c, c->input[i], src[i], r);
        mode[i] = r->adds && r->kind != TG_SINK_SIDE ? TG_GRAD_ADD : TG_GRAD_WRITE;
        if (s != TG_OK || tg_bit(c->op->passes, i)) continue;
        c->gin[i] = materialize(c, i);
        if (TG_UNLIKELY(!c->gin[i])) s = c->ctx->run.status;
    }
    return s;
}

/* ---- Closing ---- */

static void note_delivered(const tg_grad_sink *r, tg_node *n) {
    n->flags |= TG_N_REACHED;
    if (r->target)
        r->target->reached = true;
    else
        tg_gradient_reached(tg_node_out(n)[0]);
}

/* Adds the side buffer to its destination, and frees it. The leaf's buffer holds a value if it did when the call
 * opened, or if an earlier sink of the call has delivered one. */
static tg_status settle(tg_grad_sink *r, tg_node *n) {
    tg_tensor *g = r->side;
    r->side = NULL;
    if (!g) return TG_OK;
    if (!r->buffer) return tg_slot_add(r->slot, g);
    tg_tensor *sum = buffer_of(r, n);
    tg_status s = sum ? tg_gradient_put(sum, g, r->adds || n->flags & TG_N_REACHED) : g->ctx->run.status;
    tg_temp_free(g);
    if (s == TG_OK) note_delivered(r, n);
    return s;
}

tg_status tg_sinks_close(tg_pass *p, tg_call *c) {
    tg_node **src = sources(c);
    tg_status ran = c->ctx->run.status, s = ran;
    for (int i = 0; i < c->n_in; i++) {
        tg_grad_sink *r = &p->sinks[i];
        if (r->kind == TG_SINK_NONE) continue;
        src[i]->flags &= ~TG_N_BUSY;
        if (r->kind == TG_SINK_LEAF && ran == TG_OK) note_delivered(r, src[i]);
        if (r->kind != TG_SINK_SIDE) continue;
        if (s == TG_OK)
            s = settle(r, src[i]);
        else
            tg_temp_free(r->side);
    }
    return s;
}

bool tg_sink_held(const tg_call *c, int i) {
    const tg_grad_sink *r = sink(c, i);
    if (r->kind == TG_SINK_NONE || !r->adds) return false;
    /* The side buffer of a slot belongs to a tensor that is given again. Its first sink may just have made the slot's
     * gradient, which then has no value yet. */
    return r->kind != TG_SINK_SIDE || r->buffer;
}

tg_tensor *tg_sink_gradient(const tg_call *c, int i) {
    const tg_grad_sink *r = sink(c, i);
    if (r->kind == TG_SINK_NONE) return NULL;
    if (r->kind == TG_SINK_DONE || !r->buffer) return r->slot->g;
    return r->adds || sources(c)[i]->flags & TG_N_REACHED ? r->buffer : NULL;
}

/* ---- Functions for an op's backward ---- */

static tg_status enter(tg_call *c, int i, const char *who) {
    if (!c) return TG_ERR_ARGUMENT;
    if (!pass_of(c))
        return tg_call_fail(c, TG_ERR_STATE, "%s may only be called in a backward, and none is running", who);
    if (i < 0 || i >= c->n_in)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "%s: the index of the input is %d, expected 0 to %d", who, i,
                            c->n_in - 1);
    if (sink(c, i)->kind != TG_SINK_NONE && sink(c, i)->given)
        return tg_call_fail(c, TG_ERR_STATE,
                            "%s: this backward has already given the gradient of input %d; add up its parts first, and "
                            "give their sum once", who, i);
    return TG_OK;
}

/* Checks that g can be the gradient of input i. */
static tg_status check_gradient(tg_call *c, int i, const tg_tensor *g, const char *who) {
    TG_TRY(enter(c, i, who));
    TG_TRY(tg_check(c->ctx, g, who));
    const tg_tensor *x = c->input[i];
    if (!x || (tg_same_shape(g, x) && g->dtype == x->dtype)) return TG_OK;
    char want[160], got[160];
    tg_describe(x, want, sizeof want);
    tg_describe(g, got, sizeof got);
    return tg_call_fail(c, tg_same_shape(g, x) ? TG_ERR_DTYPE : TG_ERR_SHAPE,
                        "%s: the gradient of input %d is %s, expected %s", who, i, got, want);
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
        r->given = true;
        return tg_gradient_put(gin, g, c->gin_mode[i] == TG_GRAD_ADD);
    }
    tg_tensor *share = tg_gradient_alias(g);
    if (!share) return c->ctx->run.status;
    r->given = true;
    tg_temp_free(r->slot->g);
    r->slot->g = share;
    c->gin[i] = NULL;
    r->kind = TG_SINK_DONE;
    return TG_OK;
}

bool tg_call_accumulates(const tg_call *c, int i) {
    const tg_grad_sink *r = sink(c, i);
    return r->kind == TG_SINK_LEAF && (!r->target || r->target->accumulates);
}

void tg_call_decline(tg_call *c, int i) {
    tg_grad_sink *r = sink(c, i);
    if (r->kind == TG_SINK_SLOT && !r->adds) { /* otherwise the slot keeps its value */
        tg_temp_free(r->slot->g);
        r->slot->g = NULL;
    }
    tg_temp_free(r->side);
    r->side = NULL;
    c->gin[i] = NULL;
    r->given = true;
    r->kind = TG_SINK_DONE;
}

tg_status tg_call_in_flight(tg_call *c, int i, tg_tensor *g, tg_work *w) {
    tg_status status = check_gradient(c, i, g, "tg_call_in_flight");
    if (status == TG_OK && !w && g->storage->state != TG_IN_FLIGHT)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "tg_call_in_flight: the work is NULL and no other work fills the gradient; expected a "
                            "work");
    if (status != TG_OK) {
        if (w) tg_work_abandon(w);
        return status;
    }
    tg_grad_sink *r = sink(c, i);
    if (w) TG_TRY(tg_work_fills(w, g->storage));
    if (r->kind == TG_SINK_NONE) return TG_OK;
    tg_tensor *share = tg_gradient_alias(g), *last = r->slot->pending;
    if (!share) return c->ctx->run.status;
    tg_call_decline(c, i);
    while (last && last->node) last = (tg_tensor *)last->node;
    if (last)
        last->node = (tg_node *)share;
    else
        r->slot->pending = share;
    return TG_OK;
}
