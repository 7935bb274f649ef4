/* The tape: its creation and release, its leaves and its scopes. */
#include "tape/call.h"

#include "base/memory/host_memory.h"
#include "base/text.h"

/* ---- Creation, reset, release ---- */

static void link_tape(tg_tapes *all, tg_tape *t) {
    t->prev = NULL;
    t->next = all->alive;
    if (all->alive) all->alive->prev = t;
    all->alive = t;
}

static const tg_tape dead_tape = {.ctx = (tg_ctx *)&tg_dead_ctx};

static const char *tapes_held(const tg_ctx *ctx, const void *state) {
    (void)ctx;
    for (const tg_tape *t = ((const tg_tapes *)state)->alive; t; t = t->next)
        if (tg_tape_held(t)) return tg_tape_held(t);
    return NULL;
}

static void tapes_end(tg_ctx *ctx, void *state) {
    (void)ctx;
    for (tg_tapes *all = state; all->alive;) tg_tape_free(all->alive);
}

static void tapes_release(tg_ctx *ctx, void *state) {
    tg_tapes *all = state;
    for (tg_tape *t = all->freed, *next; t; t = next) {
        next = t->next;
        tg_tape_memory_free(t);
        for (tg_tape_listener *l = t->listeners, *after; l; l = after) {
            after = l->next;
            if (l->ops->released) l->ops->released(l);
            tg_host_free(ctx, l, l->ops->size);
        }
        tg_host_free(ctx, t->leaves, (size_t)t->leaf_capacity * sizeof *t->leaves);
        tg_host_free(ctx, t->scratch, t->scratch_bytes);
        tg_host_free(ctx, t, sizeof *t);
    }
    tg_host_free(ctx, all, sizeof *all);
}

static bool tape_maker(const tg_tensor *x, tg_maker *out) {
    if (!x->node) return false;
    out->op = x->node->op->name;
    out->site = tg_scope_site(x->node->scope, x->node->site);
    tg_scope_path(x->node->scope, out->scope, sizeof out->scope);
    return true;
}

static void tape_busy(const tg_tensor *x, int by) {
    if (x->tape) x->tape->busy += by;
}

static const tg_part_ops tape_part = {
    .held = tapes_held, .end = tapes_end, .release = tapes_release, .maker = tape_maker,
    .given_up = tg_tape_given_up, .unheld = tg_tape_unheld, .busy = tape_busy};

/* Returns the context's state for its tapes, which the first tape creates, or NULL after recording the error. */
static tg_tapes *tapes_of_new(tg_ctx *ctx) {
    tg_tapes *all = tg_tapes_of(ctx);
    if (all || ctx->run.dead) return all;
    all = tg_host_alloc(ctx, sizeof *all);
    if (!all) return NULL;
    all->inert.ctx = ctx;
    tg_part_set(ctx, TG_PART_TAPE, &tape_part, all);
    return all;
}

tg_tape *tg_tape_new(tg_ctx *ctx) {
    tg_tapes *all = ctx ? tapes_of_new(ctx) : NULL;
    if (!all) return (tg_tape *)&dead_tape;
    if (!tg_ok(ctx)) return &all->inert;
    tg_tape *t = all->freed;
    if (t)
        all->freed = t->next;
    else if (!(t = tg_host_alloc(ctx, sizeof *t)))
        return &all->inert;
    t->ctx = ctx;
    t->epoch = ++all->epochs;
    t->training = t->grad = true;
    t->timed = t->collects = t->grad_off = t->again = false;
    t->micro = 0;
    t->site = NULL;
    t->observer = (tg_observer){0};
    t->deferral = (tg_deferral){0};
    link_tape(all, t);
    return t;
}

/* Ends all nodes and handles of the tape. This may call functions of the caller, so the tape is busy meanwhile. */
static void end_all(tg_tape *t, bool freed) {
    t->busy++;
    for (tg_node *n = t->first; n; n = n->next) tg_node_end(n);
    tg_tape_end_handles(t);
    for (tg_tape_listener *l = t->listeners; l; l = l->next)
        if (l->ops->reset) l->ops->reset(l, freed);
    if (t->n_leaves) memset(t->leaves, 0, (size_t)t->leaf_capacity * sizeof *t->leaves);
    t->first = t->last = t->cursor = NULL;
    t->n_nodes = t->n_leaves = 0;
    t->scope = NULL;
    t->scopes_missed = 0;
    tg_tape_memory_reset(t);
    t->pass = 0;
    t->observer.count = 0;
    t->micro = 0;
    t->collectives = false;
    t->busy--;
}

static bool may_end(const tg_tape *t, const char *who) {
    const char *held = tg_tape_held(t);
    if (held) tg_fail(t->ctx, TG_ERR_STATE, "%s: %s", who, held);
    return !held;
}

void tg_tape_reset(tg_tape *t) {
    if (!t || !t->epoch || !may_end(t, "tg_tape_reset")) return;
    tg_later_settle(t->ctx);
    end_all(t, false);
    if (t->ctx->run.ops->poll && tg_ok(t->ctx)) t->ctx->run.ops->poll(t->ctx);
    t->epoch = ++tg_tapes_of(t->ctx)->epochs;
    t->generation = !t->generation;
}

void tg_tape_free(tg_tape *t) {
    if (!t || !t->epoch || !may_end(t, "tg_tape_free")) return;
    end_all(t, true);
    t->epoch = 0;
    t->generation = !t->generation;
    tg_tapes *all = tg_tapes_of(t->ctx);
    if (t->prev)
        t->prev->next = t->next;
    else
        all->alive = t->next;
    if (t->next) t->next->prev = t->prev;
    t->prev = NULL;
    t->next = all->freed;
    all->freed = t;
}

tg_tape_listener *tg_tape_listener_of(const tg_tape *t, const tg_tape_listener_ops *ops) {
    tg_tape_listener *l = t->listeners;
    while (l && l->ops != ops) l = l->next;
    return l;
}

tg_tape_listener *tg_tape_listen(tg_tape *t, const tg_tape_listener_ops *ops) {
    tg_tape_listener *l = tg_tape_listener_of(t, ops);
    if (l || !(l = tg_host_alloc(t->ctx, ops->size))) return l;
    *l = (tg_tape_listener){ops, t->listeners, t};
    return t->listeners = l;
}

tg_status tg_tape_check(tg_tape *t, const char *who) {
    if (!t) return TG_ERR_ARGUMENT;
    if (t->ctx->run.status != TG_OK) return t->ctx->run.status;
    if (!t->epoch) return tg_fail(t->ctx, TG_ERR_HANDLE, "%s: the tape was freed, or could not be made", who);
    return TG_OK;
}

/* Returns the context of the first tensor that has one, or NULL. A tensor that was made without a valid context has
 * only tg_dead_ctx, which cannot record an error. */
static tg_ctx *ctx_of(tg_tensor *const *in, int n) {
    for (int i = 0; in && i < n; i++)
        if (in[i] && !in[i]->ctx->run.dead) return in[i]->ctx;
    return NULL;
}

tg_status tg_tape_check_with(tg_tape *t, tg_tensor *const *in, int n, const char *who) {
    if (TG_LIKELY(t != NULL)) return tg_tape_check(t, who);
    tg_ctx *ctx = ctx_of(in, n);
    return ctx ? tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the tape is NULL", who) : TG_ERR_ARGUMENT;
}

tg_tensor *tg_tape_inert(const tg_tape *t, tg_tensor *const *in, int n) {
    const tg_ctx *ctx = t ? t->ctx : ctx_of(in, n);
    return tg_inert(ctx ? ctx : &tg_dead_ctx);
}

tg_ctx *tg_tape_ctx(tg_tape *t) { return t ? t->ctx : NULL; }
uint64_t tg_tape_epoch(const tg_tape *t) { return t ? t->epoch : 0; }

tg_status tg_tape_key(tg_tape *t, uint64_t micro) {
    TG_TRY(tg_tape_check(t, "tg_tape_key"));
    t->micro = micro;
    return TG_OK;
}

static bool set(tg_tape *t, bool *mode, bool on) {
    bool before = *mode;
    if (t->epoch) *mode = on;
    return before;
}

bool tg_tape_set_training(tg_tape *t, bool on) { return t && set(t, &t->training, on); }
/* Sets whether ops are recorded, and returns the previous mode. The forward of an op runs in no-grad mode. Neither it
 * nor infer can change the mode: there the function only returns false. The first run of a recomputation is in no-grad
 * mode too; within it, this function sets and returns the mode that the second run will have. */
bool tg_tape_set_grad_mode(tg_tape *t, bool on) {
    if (t && t->at_work && !((const tg_call_impl *)t->at_work->internal)->pass) return false;
    if (t && t->collects) return !set(t, &t->grad_off, !on);
    return t && set(t, &t->grad, on);
}

bool tg_is_training(const tg_tape *t) { return t && t->training; }
/* In the first run of a recomputation, returns whether the second run will record ops. */
bool tg_is_grad_on(const tg_tape *t) { return t && (t->collects ? !t->grad_off : t->grad); }

void tg_tape_set_timing(tg_tape *t, bool on) {
    if (t && t->epoch) t->timed = on;
}

tg_tensor *tg_tape_enter(tg_tape *t, const tg_tensor *x) {
    tg_ctx *ctx = t->ctx;
    tg_tensor *y = tg_tape_alias(t, x);
    if (!y) return tg_inert(ctx);
    y->flags |= TG_F_LEAF | (x->flags & (TG_F_REQUIRES_GRAD | TG_F_DIFFERENTIABLE | TG_F_GIVEN));
    y->place = x->place;
    return y->flags & TG_F_REQUIRES_GRAD && !tg_ext_of(y) ? tg_inert(ctx) : y;
}

tg_tensor *tg_tape_input(tg_tape *t, tg_tensor *x) {
    if (tg_tape_check_with(t, &x, 1, "tg_tape_input") != TG_OK || tg_check(t->ctx, x, "tg_tape_input") != TG_OK)
        return tg_tape_inert(t, &x, 1);
    return tg_tape_enter(t, x);
}

/* ---- Leaves: a hash table finds the node of a leaf by its address ---- */

/* Returns the index of x in the hash table, or of the free entry where it belongs. */
static size_t leaf_index(const tg_tape *t, const tg_tensor *x) {
    size_t mask = (size_t)t->leaf_capacity - 1, i = ((uintptr_t)x >> 4) * 0x9E3779B97F4A7C15u >> 20;
    for (i &= mask; t->leaves[i].leaf && t->leaves[i].leaf != x;) i = (i + 1) & mask;
    return i;
}

static tg_status grow_leaves(tg_tape *t) {
    int64_t capacity = t->leaf_capacity ? t->leaf_capacity * 2 : 64;
    tg_leaf_entry *old = t->leaves, *fresh = tg_host_alloc(t->ctx, (size_t)capacity * sizeof *fresh);
    if (!fresh) return t->ctx->run.status;
    int64_t n = t->leaf_capacity;
    t->leaves = fresh;
    t->leaf_capacity = capacity;
    for (int64_t i = 0; i < n; i++)
        if (old[i].leaf) t->leaves[leaf_index(t, old[i].leaf)] = old[i];
    tg_host_free(t->ctx, old, (size_t)n * sizeof *old);
    return TG_OK;
}

static tg_node *new_leaf_node(tg_tape *t, tg_tensor *x) {
    size_t bytes = sizeof(tg_node) + sizeof(void *) + sizeof(tg_slot);
    tg_node *n = tg_tape_alloc(t, bytes);
    if (!n) return NULL;
    memset(n, 0, bytes);
    n->op = &tg_leaf_op;
    n->n_out = 1;
    n->flags = TG_N_LEAF;
    n->scope = t->scope;
    if (n->scope) n->scope->uses++;
    tg_node_out(n)[0] = x;
    x->uses++;
    x->out = 0; /* the only output of its leaf node, even if x is a later output of an op that recorded no node */
    tg_tape_append(t, n);
    return n;
}

void tg_tape_append(tg_tape *t, tg_node *n) {
    n->prev = t->last;
    n->next = NULL;
    if (t->last)
        t->last->next = n;
    else
        t->first = n;
    t->last = n;
    t->n_nodes++;
    t->collectives |= n->op->collective;
}

/* Later entries of the same run of the table move into the gap, so that a search, which ends at a gap, finds them. */
void tg_tape_forget_leaf(tg_tape *t, const tg_node *n) {
    size_t mask = (size_t)t->leaf_capacity - 1, gap = leaf_index(t, tg_node_out(n)[0]);
    t->leaves[gap] = (tg_leaf_entry){0};
    t->n_leaves--;
    for (size_t i = (gap + 1) & mask; t->leaves[i].leaf; i = (i + 1) & mask) {
        tg_leaf_entry e = t->leaves[i];
        t->leaves[i] = (tg_leaf_entry){0};
        t->leaves[leaf_index(t, e.leaf)] = e;
    }
}

tg_node *tg_tape_find_leaf(const tg_tape *t, const tg_tensor *x) {
    return t->n_leaves ? t->leaves[leaf_index(t, x)].node : NULL;
}

tg_node *tg_tape_leaf(tg_tape *t, tg_tensor *x) {
    tg_ext *e = tg_ext_of(x);
    if (!e) return NULL;
    if (e->leaf_tape == t && e->leaf_epoch == t->epoch) return e->leaf_node;
    if (2 * t->n_leaves >= t->leaf_capacity && grow_leaves(t) != TG_OK) return NULL;
    tg_leaf_entry *slot = &t->leaves[leaf_index(t, x)];
    if (!slot->leaf) {
        tg_node *n = new_leaf_node(t, x);
        if (!n) return NULL;
        *slot = (tg_leaf_entry){x, n};
        t->n_leaves++;
    }
    e->leaf_tape = t;
    e->leaf_epoch = t->epoch;
    return e->leaf_node = slot->node;
}

/* ---- Scopes ---- */

/* Opens a scope. Copies its name, because nodes report their scope even after it has closed. */
static tg_status open_scope(tg_tape *t, const char *name, const void *site) {
    TG_TRY(tg_tape_check(t, "tg_scope_open"));
    tg_scope *s = tg_tape_alloc(t, sizeof *s);
    if (!s) return t->ctx->run.status;
    *s = (tg_scope){.parent = t->scope, .uses = 1, .site = site, .from = t->at, .serial = t->ctx->serial};
    if (name && !(s->name = tg_tape_text(t, name))) return t->ctx->run.status;
    if (s->parent) s->parent->uses++;
    t->scope = s;
    return TG_OK;
}

/* The caller closes a scope even if opening it has failed, and may clear the context's error in between. So failed
 * opens are counted, and as many closes do nothing. */
tg_status tg_scope_open_at(tg_tape *t, const char *name, const void *site) {
    tg_status status = open_scope(t, name, site);
    if (status != TG_OK && t && t->epoch) t->scopes_missed++;
    return status;
}

tg_status tg_scope_open(tg_tape *t, const char *name) { return tg_scope_open_at(t, name, TG_SITE); }

tg_scope *tg_site_open(tg_tape *t, const void *site) {
    if (open_scope(t, NULL, site) != TG_OK) return NULL;
    t->scope->locked = true;
    return t->scope;
}

void tg_site_close(tg_tape *t, tg_scope *s) {
    tg_scope *open = s ? t->scope : NULL;
    while (open && open != s) open = open->parent;
    if (!open) return; /* s is NULL, or a module of the program has reset the tape */
    t->scope = s->parent;
    tg_scope_unref(t, s);
}

const void *tg_scope_site(const tg_scope *s, const void *site) {
    const void *outside = site;
    while (s && tg_site_is_own(outside)) {
        outside = s->site;
        s = s->parent;
    }
    return tg_site_is_own(outside) ? site : outside;
}

static void mark_outputs(tg_tensor *const *outputs, int n, bool on) {
    for (int i = 0; i < n; i++)
        if (tg_is_alive(outputs[i])) outputs[i]->storage->marked = on;
}

/* Discards the bytes of the tensors that the tape made in the scope, except the outputs of the scope and the tensors
 * that a node has saved. */
static void discard_since(tg_tape *t, const tg_scope *scope, const void *site) {
    /* handles that took the slots of ended ones may lie anywhere */
    tg_handle_walk w = tg_walk_from(t, t->reused > scope->serial ? (tg_cursor){0} : scope->from);
    for (tg_tensor *x; (x = tg_walk_next(&w));) {
        tg_storage *b = x->storage;
        if (b && b->temporary && !b->saves && !b->marked && b->birth > scope->serial && tg_storage_is_of(b, t))
            tg_storage_discard(b, "tg_scope_close", site);
    }
}

/* s is the scope to close, or NULL if there is none. */
static tg_status end_scope(tg_tape *t, tg_scope *s, tg_tensor *const *outputs, int n, const void *site) {
    TG_TRY(tg_tape_check(t, "tg_scope_close"));
    if (!s)
        return tg_fail(t->ctx, TG_ERR_STATE, "tg_scope_close: no scope is open%s; call tg_scope_open first",
                       t->scope ? " that this function has opened" : "");
    if (n < 0 || (n && !outputs))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_scope_close: n is %d and outputs is %s, expected an array of n tensors, 0 or more", n,
                       outputs ? "not NULL" : "NULL");
    for (int i = 0; i < n; i++) TG_TRY(tg_check(t->ctx, outputs[i], "tg_scope_close"));
    mark_outputs(outputs, n, true);
    s->locked = true; /* a packer must not close it too */
    for (tg_tape_listener *l = t->listeners; l; l = l->next)
        if (l->ops->scope_closed) l->ops->scope_closed(l, s->serial, site);
    discard_since(t, s, site);
    mark_outputs(outputs, n, false);
    return t->ctx->run.status;
}

tg_status tg_scope_close(tg_tape *t, tg_tensor *const *outputs, int n) {
    if (t && t->epoch && t->scopes_missed) {
        t->scopes_missed--;
        return t->ctx->run.status;
    }
    tg_scope *s = t && t->epoch && t->scope && !t->scope->locked ? t->scope : NULL;
    tg_status status = end_scope(t, s, outputs, n, TG_SITE);
    if (s) tg_site_close(t, s); /* the scope closes even after an error */
    return status;
}

size_t tg_scope_path(const tg_scope *s, char *buf, size_t n) {
    size_t at = s && s->parent ? tg_scope_path(s->parent, buf, n) : 0;
    if (n && !at) buf[0] = 0;
    if (s && s->name) tg_text(buf, n, &at, "%s%s", at ? "." : "", s->name);
    return at;
}
