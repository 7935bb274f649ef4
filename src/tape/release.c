/* Ends results that the program has released, and the nodes that nothing uses any more.
 *
 * The outputs of a node are used by the program, until it gives them up, and by the nodes that have them as inputs. A
 * node whose outputs nothing uses ends: no backward can reach it. Its inputs then have one user less, so further nodes
 * may end. A leaf's node ends if the leaf was given up and no other node uses it. */
#include "core/tensor/handles.h"
#include "tape/tape.h"

#include <tapegrad/handles.h>

/* Returns whether the program can no longer use x. */
static bool is_given_up(const tg_tensor *x) {
    return x->flags & (TG_F_RELEASED | TG_F_SUPERSEDED | TG_F_DROPPED) || x->serial < TG_SERIAL_FIRST;
}

static bool is_unused(const tg_node *n) {
    const uint32_t own = n->flags & TG_N_LEAF ? 1 : 0; /* a leaf's node uses the leaf */
    for (int i = 0; i < n->n_out; i++)
        if (!is_given_up(tg_node_out(n)[i]) || tg_node_out(n)[i]->uses > own) return false;
    return true;
}

static void unlink_node(tg_tape *t, tg_node *n) {
    *(n->prev ? &n->prev->next : &t->first) = n->next;
    *(n->next ? &n->next->prev : &t->last) = n->prev;
    t->n_nodes--;
    t->cursor = NULL;
}

/* Returns the node that made x or, for a leaf, the node that stands for it on tape t. NULL if there is none. */
static tg_node *node_of(const tg_tape *t, const tg_tensor *x) { return x->node ? x->node : tg_tape_find_leaf(t, x); }

/* If x has a node whose outputs nothing uses, moves that node to the list *ended. If x has no node, ends x if it was
 * given up and nothing uses it. */
static void consider(tg_tape *t, tg_tensor *x, tg_node **ended) {
    tg_node *n = node_of(t, x);
    if (!n && !x->uses && is_given_up(x)) {
        if (x->tape)
            tg_tape_give_handle(x);
        else
            tg_owned_free(x);
    }
    if (!n || !is_unused(n)) return;
    unlink_node(t, n);
    n->next = *ended;
    *ended = n;
}

/* Ends what the node saved, unless a backward has done so. A storage counts the nodes that have saved it
 * (tg_storage.saves) and may outlive the tape, so its count is decremented. */
static void end_saved(tg_node *n) {
    tg_tensor **in = tg_node_in(n), **out = tg_node_out(n);
    if (n->flags & (TG_N_CONSUMED | TG_N_LEAF)) return;
    for (int i = 0; n->saves_in && i < n->n_in; i++)
        if (tg_bit(n->saves_in, i) && in[i] && in[i]->storage) in[i]->storage->saves--;
    for (int i = 0; n->saves_out && i < n->n_out; i++)
        if (tg_bit(n->saves_out, i) && out[i]->storage) out[i]->storage->saves--;
    for (int i = 0; i < n->n_saved; i++) tg_temp_free(tg_node_kept(n)[i]);
}

void tg_tape_end_state(tg_tape *t, void *state, void (*destroy)(void *state)) {
    const int busy = t && t->epoch;
    if (!state || !destroy) return;
    if (busy) t->busy++;
    destroy(state);
    if (busy) t->busy--;
}

static void end_state(tg_node *n) {
    if (!(n->flags & TG_N_STATE)) return;
    tg_node_extra *e = tg_node_extra_of(n);
    if (e->destroy) e->destroy(e->state);
}

void tg_owned_unuse(tg_tensor *x) {
    if (x && !x->tape && --x->uses == 0 && x->flags & TG_F_DROPPED) tg_owned_free(x);
}

void tg_node_end(tg_node *n) {
    end_saved(n);
    for (int i = 0; i < n->n_in; i++) tg_owned_unuse(tg_node_in(n)[i]);
    if (n->flags & TG_N_LEAF) tg_owned_unuse(tg_node_out(n)[0]);
    end_state(n);
}

void tg_scope_unref(tg_tape *t, tg_scope *s) {
    while (s && --s->uses == 0) {
        tg_scope *parent = s->parent;
        if (s->name) tg_tape_give(t, (char *)s->name, strlen(s->name) + 1);
        tg_tape_give(t, s, sizeof *s);
        s = parent;
    }
}

/* Ends a node that is in no list any more, and the handles of its outputs. */
static void end_node(tg_tape *t, tg_node *n, tg_node **ended) {
    end_saved(n);
    end_state(n);
    for (int i = 0; i < n->n_in; i++) {
        tg_tensor *x = tg_node_in(n)[i];
        if (!x) continue;
        x->uses--;
        consider(t, x, ended);
    }
    if (n->flags & TG_N_LEAF) tg_tape_forget_leaf(t, n);
    for (int i = 0; i < n->n_out; i++) {
        tg_tensor *x = tg_node_out(n)[i];
        if (!x->tape)
            tg_owned_unuse(x);
        else
            tg_tape_give_handle(x);
    }
    if (n->op->params_size) tg_tape_give(t, tg_node_params_of(n), n->op->params_size);
    tg_scope_unref(t, n->scope);
    tg_tape_give(t, n, tg_node_bytes(n));
}

/* Ends x and its node if nothing uses them, and then what nothing but they used. */
static void end_unused(tg_tape *t, tg_tensor *x) {
    tg_node *ended = NULL;
    t->busy++; /* the functions that free the states of nodes, and refills of tensors, must not end the tape */
    consider(t, x, &ended);
    for (tg_node *n; (n = ended);) {
        ended = n->next;
        end_node(t, n, &ended);
    }
    t->busy--;
}

/* Returns the tape on which x may have nodes to end: its own, or, for a leaf of the context, the one that used it last.
 * NULL if there is none. */
static tg_tape *tape_of(const tg_tensor *x) {
    const tg_ext *e = x->ext;
    if (x->tape) return x->tape;
    return e && e->leaf_tape && e->leaf_epoch == e->leaf_tape->epoch ? e->leaf_tape : NULL;
}

void tg_tape_given_up(tg_tensor *x) {
    tg_tape *t = tape_of(x);
    if (!t) return;
    if (tg_tape_held(t)) { /* what the running function uses must stay until it returns */
        tg_handle_drop_later(x);
        return;
    }
    if (x->tape) x->flags |= TG_F_RELEASED;
    end_unused(t, x);
}

/* Ends the node of a leaf of the context, which other nodes do not use, so that the leaf has none. */
static void end_leaf_node(tg_tape *t, tg_node *n) {
    tg_node *ended = NULL;
    tg_node_out(n)[0]->ext->leaf_tape = NULL;
    unlink_node(t, n);
    end_node(t, n, &ended);
}

void tg_tape_undo(tg_tape *t, uint64_t serial, const tg_node *last) {
    tg_handle_walk w = tg_walk_from(t, (tg_cursor){0});
    for (tg_tensor *x; (x = tg_walk_next(&w));)
        if (x->serial > serial) x->flags |= TG_F_RELEASED;
    w = tg_walk_from(t, (tg_cursor){0});
    for (tg_tensor *x; (x = tg_walk_next(&w));)
        if (x->serial > serial) end_unused(t, x);
    for (tg_node *n = t->last, *before; n && n != last; n = before) {
        before = n->prev;
        const tg_tensor *x = tg_node_out(n)[0];
        if (n->flags & TG_N_LEAF && !x->tape && x->uses == 1) end_leaf_node(t, n);
    }
}

void tg_tape_collect(tg_tape *t) {
    if (!t || !t->epoch || tg_tape_held(t)) return;
    tg_later_settle(t->ctx);
    tg_handle_walk w = tg_walk_from(t, (tg_cursor){0});
    for (tg_tensor *x; (x = tg_walk_next(&w));)
        if (!x->holds) x->flags |= TG_F_RELEASED;
    w = tg_walk_from(t, (tg_cursor){0});
    for (tg_tensor *x; (x = tg_walk_next(&w));) end_unused(t, x);
}
