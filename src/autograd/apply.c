/* tg_apply: checks the inputs of an op, lets it infer its outputs, runs it, and records a node if a gradient is
 * needed. */
#include "autograd/apply.h"

#include <stdio.h>

#include "base/text.h"
#include "base/os.h"
#include "placement/draws.h"
#include "placement/rule.h"

enum { MAX_LIST = 65535 }; /* limit on the inputs, and on the outputs, of a node */

static tg_call_impl *impl(const tg_call *c) { return c->internal; }

/* ---- Checks before the op ---- */

/* Fails because the call has n inputs or outputs. Expected are `exact` of them or, if `exact` is negative, `least` to
 * MAX_LIST. */
static tg_status refuse_number(tg_tape *t, const tg_op *op, const char *has, int n, const char *noun, int exact,
                               int least) {
    char range[32];
    if (exact < 0)
        snprintf(range, sizeof range, "%d to %d", least, (int)MAX_LIST);
    else
        snprintf(range, sizeof range, "%d", exact);
    return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: the call %s %s, expected %s", op->name, has, tg_count(n, noun).text,
                   range);
}

/* Checks the table of the op, and the numbers of inputs and outputs of the call. */
static tg_status check_arity(tg_tape *t, const tg_op *op, int n_in, int n_out) {
    if (TG_UNLIKELY(op->size != sizeof *op)) return tg_table_check(t->ctx, op->size, sizeof *op, "tg_apply: the op");
    if (!op->name || (!op->infer && !op->compose))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_apply: the op needs a name, and infer or compose");
    if (n_in < 0 || n_in > MAX_LIST || (op->n_in >= 0 ? n_in != op->n_in : n_in < -op->n_in))
        return refuse_number(t, op, "has", n_in, "input", op->n_in, -op->n_in);
    if (n_out < 0 || n_out > MAX_LIST || (op->n_out >= 0 && n_out != op->n_out))
        return refuse_number(t, op, "has room for", n_out, "output", op->n_out, 0);
    return TG_OK;
}

static tg_status refuse_input(tg_call *c, int i) {
    const tg_tensor *x = c->input[i];
    char what[96];
    snprintf(what, sizeof what, "%s: input %d", c->op->name, i);
    TG_TRY(tg_check(c->ctx, x, what));
    return tg_fail(c->ctx, TG_ERR_HANDLE,
                   "%s is a result of another tape; enter it with tg_tape_input, or as an input of tg_recompute", what);
}

/* Checks that input i is alive and belongs to this context and to no other tape. An optional input may be NULL. */
static inline tg_status check_input(tg_call *c, int i) {
    const tg_tensor *x = c->input[i];
    if (!x && tg_bit(c->op->optional, i)) return TG_OK;
    return TG_LIKELY(tg_is_input(c->tape, x)) ? TG_OK : refuse_input(c, i);
}

/* Fails because input i has a dtype with which the op does not compute. */
static tg_status refuse_dtype(tg_call *c, int i) {
    const char *name = tg_dtype_name((tg_dtype)c->input[i]->dtype);
    return tg_call_fail(c, TG_ERR_DTYPE,
                        "input %d is %s, with which no op computes; cast it to a float first (tg_cast)", i, name);
}

/* Checks all inputs, and makes their bytes present if the op has a forward. Sets c->needs. */
static tg_status check_inputs(tg_call *c) {
    for (int i = 0; i < c->n_in; i++) {
        tg_tensor *x = c->input[i];
        TG_TRY(check_input(c, i));
        if (!x) continue;
        if (TG_UNLIKELY(x->dtype > TG_BOOL && !c->op->moves)) return refuse_dtype(c, i);
        if (c->op->forward) TG_TRY(tg_storage_need(x->storage, x)); /* views need no bytes, so they do not wait */
        if (x->flags & TG_F_REQUIRES_GRAD) c->needs |= 1u << (i < 31 ? i : 31);
    }
    return TG_OK;
}

/* ---- The node ---- */

/* Counts one more node that has saved x, and stores the version that the node has saved. */
static void save(tg_tensor *x, uint32_t *version) {
    *version = x->storage->version;
    x->storage->saves++;
    if (x->storage->temporary) tg_storage_categorize(x->storage, TG_MEM_SAVED);
}

/* Returns the size of the node of a call. The number of versions, which have four bytes each, is rounded up to an even
 * one, so that a tg_node_extra after them is aligned. */
static size_t node_bytes(const tg_call *c, bool extra) {
    size_t tail = 2 * (size_t)c->n_in + 3 * (size_t)c->n_out + (c->params ? 1 : 0) + (size_t)c->n_saved;
    size_t versions = (c->saves_in ? (size_t)c->n_in : 0) + (c->saves_out ? (size_t)c->n_out : 0);
    size_t bytes = sizeof(tg_node) + tail * sizeof(void *) + ((versions + 1) & ~(size_t)1) * sizeof(uint32_t);
    return bytes + (extra ? sizeof(tg_node_extra) : 0);
}

/* A gradient that is lent to a hook ends when the hook returns, so a node cannot keep it. */
static tg_status refuse_lent(tg_call *c, int i) {
    return tg_call_fail(
        c, TG_ERR_HANDLE,
        "input %d is lent to a hook or an observer until that returns, and backward would need it later; "
        "tg_keep it, or leave grad mode off",
        i);
}

/* Stores, for each input, the node whose slot receives its gradient; NULL if it requires none. */
static tg_status link_inputs(tg_call *c, tg_node *n) {
    tg_tensor **in = tg_node_in(n);
    tg_node **src = tg_node_src(n);
    for (int i = 0; i < c->n_in; i++) {
        tg_tensor *x = c->input[i];
        in[i] = x;
        src[i] = NULL;
        if (!x) continue;
        if (TG_UNLIKELY(tg_is_lent(x))) return refuse_lent(c, i);
        if (!(x->flags & TG_F_REQUIRES_GRAD)) continue;
        src[i] = x->node ? x->node : tg_tape_leaf(c->tape, x);
        if (!src[i]) return c->ctx->run.status;
    }
    return TG_OK;
}

static void fill_node(tg_call *c, tg_node *n, const void *site) {
    n->site = site;
    n->scope = c->tape->scope;
    if (n->scope) n->scope->uses++;
    n->pass = 0;
    n->needs = c->needs;
    n->saves_in = c->saves_in;
    n->saves_out = c->saves_out;
    tg_tensor **in = tg_node_in(n), **out = tg_node_out(n), **saved = tg_node_kept(n);
    uint32_t *version = tg_node_versions(n);
    tg_slot *slot = tg_node_slots(n);
    if (c->params) n->tail[tg_node_params_at(n)] = c->params;
    for (int i = 0; i < c->n_in; i++) {
        if (!in[i]) continue;
        in[i]->uses++;
        if (tg_bit(n->saves_in, i)) save(in[i], &version[i]);
    }
    if (n->saves_in) version += c->n_in;
    for (int i = 0; i < c->n_out; i++) {
        tg_tensor *x = c->out[i];
        out[i] = x;
        slot[i] = (tg_slot){0};
        x->node = n;
        x->out = (uint16_t)i;
        if (tg_is_float(x->dtype)) x->flags |= TG_F_REQUIRES_GRAD;
        if (tg_bit(n->saves_out, i)) save(x, &version[i]);
    }
    for (int i = 0; i < c->n_saved; i++) saved[i] = c->saved[i];
}

static tg_status keep_node(tg_call *c, const void *site, void (*destroy)(void *)) {
    bool extra = c->state || c->tape->timed || c->tape->observer.ops;
    tg_node *n = tg_tape_alloc(c->tape, node_bytes(c, extra));
    if (!n) return c->ctx->run.status;
    n->n_in = (uint16_t)c->n_in;
    n->n_out = (uint16_t)c->n_out;
    n->n_saved = (uint16_t)c->n_saved;
    n->flags = 0;
    n->op = c->op;
    TG_TRY(link_inputs(c, n));
    fill_node(c, n, site);
    if (extra) {
        n->flags |= TG_N_STATE | (c->tape->timed ? TG_N_TIMED : 0) | (c->tape->observer.ops ? TG_N_OBSERVED : 0);
        *tg_node_extra_of(n) = (tg_node_extra){.state = c->state,
                                               .destroy = c->state ? destroy : NULL,
                                               .forward_s = impl(c)->ended - impl(c)->began,
                                               .number = c->tape->observer.count - 1};
    }
    tg_tape_append(c->tape, n);
    return TG_OK;
}

/* ---- tg_apply ---- */

static tg_status copy_params(tg_call *c, const void *params) {
    if (!c->op->params_size) return TG_OK;
    if (!params)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "params are NULL, expected %s",
                            tg_count(c->op->params_size, "byte").text);
    c->params = tg_tape_alloc(c->tape, c->op->params_size);
    if (!c->params) return c->ctx->run.status;
    memcpy(c->params, params, c->op->params_size);
    return TG_OK;
}

/* Called in the first run of a recomputation. Makes nodes for the leaves of the context that the op uses and that
 * require a gradient. */
static tg_status collect_leaves(tg_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (c->input[i] && !c->input[i]->tape && c->input[i]->flags & TG_F_REQUIRES_GRAD && !tg_tape_leaf(c->tape,
                                                                                                          c->input[i]))
            return c->ctx->run.status;
    return TG_OK;
}

/* Marks the inputs that require a gradient but get none from this op, because no node is recorded. tg_explain_grad
 * reports them. */
static void note_unrecorded(tg_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (c->input[i] && c->input[i]->flags & TG_F_REQUIRES_GRAD) c->input[i]->flags |= TG_F_UNRECORDED;
}

/* Checks that the outputs are the handles that infer has made, each at its own index. `by` is "infer" or "forward". */
static tg_status check_outputs(tg_call *c, const char *by) {
    for (int i = 0; i < c->n_out; i++) {
        const tg_tensor *y = c->out[i];
        bool input = false;
        if (TG_LIKELY(y && y->serial > impl(c)->before && y->serial <= impl(c)->made && y->out == i)) continue;
        for (int k = 0; k < c->n_in && y; k++) input |= c->input[k] == y;
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "%s put %s in the place of output %d; outputs are what infer makes (tg_call_out, "
                            "tg_call_view), for forward to fill",
                            by, input ? "an input" : y ? "another tensor" : "NULL", i);
    }
    return TG_OK;
}

/* Checks the inputs, decides whether a node is needed, and calls the op's infer. */
static tg_status infer(tg_call *c, const void *params) {
    TG_TRY(check_inputs(c));
    bool some = c->needs, first = c->tape->collects && !c->tape->grad_off;
    if (!c->op->backward && !c->op->vjp) c->needs = 0;
    if (TG_UNLIKELY(some && (!c->needs || (!c->tape->grad && !first)))) note_unrecorded(c);
    if (TG_UNLIKELY(first)) TG_TRY(collect_leaves(c));
    if (!c->tape->grad) c->needs = 0;
    if (TG_UNLIKELY(c->op->inplace)) TG_TRY(tg_call_check_inplace(c));
    TG_TRY(copy_params(c, params));
    c->saves_in = c->op->saves_in;
    c->saves_out = c->op->saves_out;
    if (TG_UNLIKELY(c->op->writes)) tg_call_open_writes(c);
    impl(c)->before = c->ctx->serial;
    tg_status s = c->op->infer(c);
    if (TG_UNLIKELY(s != TG_OK))
        return tg_fail(c->ctx, s, "%s: infer refused the call with %s", c->op->name, tg_status_name(s));
    for (int i = 0; i < c->n_out; i++)
        if (TG_UNLIKELY(!c->out[i]))
            return tg_call_fail(c, TG_ERR_INTERNAL,
                                "infer made no output %d; expected tg_call_out or tg_call_view for each output", i);
    impl(c)->made = c->ctx->serial;
    return check_outputs(c, "infer");
}

/* Called after an in-place op: takes the storage away from the old handle, input 0, whose later uses are refused. The
 * exception is a tensor of the context. No gradient flows into it, so its handle stays valid and becomes the output. */
static void supersede(tg_call *c) {
    tg_tensor *a = c->input[0];
    if (!a->tape) {
        tg_tape_give_handle(c->out[0]);
        c->out[0] = a;
        return;
    }
    /* No other handle uses a's bytes. Earlier nodes that saved them refer to `a`, which loses its storage here, so they
     * will not decrement `saves`. Only the node of this op will. */
    int32_t saves = 0;
    for (int i = 0; c->needs && i < c->n_out; i++)
        saves += tg_bit(c->saves_out, i) && c->out[i]->storage == a->storage;
    a->storage->saves = saves;
    a->flags |= TG_F_SUPERSEDED;
    tg_storage_unref(a->storage);
    a->storage = NULL;
}

/* Runs forward in no-grad mode. The ops that forward calls record no nodes, because c->op has a backward of its own. */
static inline __attribute__((always_inline)) tg_status forward(tg_call *c) {
    if (!c->op->forward) return c->ctx->run.status;
    if (TG_UNLIKELY(tg_tape_is_timed(c->tape))) impl(c)->began = tg_system_now();
    bool grad = c->tape->grad, grad_off = c->tape->grad_off;
    c->tape->grad = false;
    c->tape->grad_off = true;
    const char *outer = c->ctx->run.running;
    const void *outer_site = c->ctx->run.running_site;
    c->ctx->run.running = c->op->name;
    c->ctx->run.running_site = impl(c)->site;
    tg_status s = c->op->forward(c);
    c->tape->grad = grad;
    c->tape->grad_off = grad_off;
    c->ctx->run.running = outer;
    c->ctx->run.running_site = outer_site;
    if (TG_UNLIKELY(tg_tape_is_timed(c->tape))) impl(c)->ended = tg_system_now();
    if (TG_LIKELY(s == TG_OK)) return c->ctx->run.status;
    return tg_fail(c->ctx, s, "%s: forward failed with %s", c->op->name, tg_status_name(s));
}

/* Runs forward and records the node. `compares` says that check mode compares the results between ranks. Each of the
 * two callers passes a constant, so that a call without a grid does not test it. Sets *kept if a node was recorded. */
static inline __attribute__((always_inline)) tg_status complete(tg_call *c, void (*destroy)(void *), bool *kept,
                                                                bool compares) {
    const void *site = impl(c)->site;
    if (TG_UNLIKELY(c->writes)) TG_TRY(tg_call_begin_writes(c));
    /* Like tg_call_begin_writes, this comes before forward, which may fail halfway, and before the node notes the
     * versions of what it saves. */
    if (TG_UNLIKELY(c->op->inplace)) tg_storage_wrote(c->input[0]->storage, c->op->name, site);
    TG_TRY(forward(c));
    TG_TRY(check_outputs(c, "forward"));
    if (compares) TG_TRY(tg_placement_compare_results(c));
    if (TG_UNLIKELY(c->tape->observer.ops)) TG_TRY(c->tape->observer.ops->forward(c));
    c->tape->collectives |= c->op->collective;
    if (c->needs && TG_LIKELY(c->n_out)) { /* no backward reaches a node without outputs */
        TG_TRY(keep_node(c, site, destroy));
        *kept = true;
    }
    if (TG_UNLIKELY(c->op->inplace)) supersede(c);
    return TG_OK;
}

static __attribute__((noinline)) tg_status complete_compared(tg_call *c, void (*destroy)(void *), bool *kept) {
    return complete(c, destroy, kept, true);
}

static tg_status run(tg_call *c, const void *params, void (*destroy)(void *), bool *kept) {
    TG_TRY(infer(c, params));
    if (TG_UNLIKELY(c->tape->collects)) tg_call_note_differentiable(c);
    if (TG_UNLIKELY(tg_grid_axes(c->ctx))) {
        TG_TRY(tg_placement_derive(c));
        if (tg_placement_compares_results(c)) return complete_compared(c, destroy, kept);
    }
    return complete(c, destroy, kept, false);
}

static tg_status check_apply(tg_tape *t, const tg_op *op, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    if (TG_UNLIKELY(!op)) {
        TG_TRY(tg_tape_check_with(t, in, n_in, "tg_apply"));
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_apply: the op is NULL");
    }
    TG_TRY(tg_tape_check_with(t, in, n_in, op->name ? op->name : "tg_apply"));
    TG_TRY(check_arity(t, op, n_in, n_out));
    if (TG_UNLIKELY((n_in && !in) || (n_out && !out)))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: the array of %s is NULL", op->name,
                       n_in && !in ? "inputs" : "outputs");
    return TG_OK;
}

/* Checks the inputs of an op that only records others, and makes their bytes present. compose reads the shapes of the
 * inputs before another op checks them. */
static tg_status check_composed(tg_call *c) {
    for (int i = 0; i < c->n_in; i++) {
        TG_TRY(check_input(c, i));
        if (c->input[i]) TG_TRY(tg_storage_need(c->input[i]->storage, c->input[i]));
    }
    return TG_OK;
}

/* Runs an op that only records others. Their call site is that of this op. If it fails, nothing that it has recorded is
 * left, and no draws are taken. */
static __attribute__((noinline)) tg_status compose(tg_tape *t, const tg_op *op, const void *params,
                                                   tg_tensor *const *in, int n_in, tg_tensor **out, const void *site) {
    tg_call c = {.ctx = t->ctx, .tape = t, .op = op, .n_in = n_in, .input = in};
    TG_TRY(check_composed(&c));
    if (op->params_size && !params)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: params are NULL, expected %s", op->name,
                       tg_count((int64_t)op->params_size, "byte").text);
    const uint64_t serial = t->ctx->serial, drawn = t->ctx->keys.counter;
    const tg_rng rng = t->ctx->rng;
    const tg_rank_streams streams = tg_rank_streams_note(t->ctx);
    const tg_node *last = t->last;
    const char *outer = t->ctx->run.composer;
    const void *named = t->site;
    if (!outer) t->ctx->run.composer = op->name;
    if (!named) t->site = site;
    tg_status s = op->compose(t, params, in, out, site);
    if (!named && t->site == site) t->site = NULL;
    t->ctx->run.composer = outer;
    if (s == TG_OK) s = t->ctx->run.status;
    if (s == TG_OK) return s;
    tg_rank_streams_restore(&streams);
    t->ctx->rng = rng;
    t->ctx->keys.counter = drawn;
    tg_tape_undo(t, serial, last);
    tg_fail(t->ctx, s, "compose failed with %s", tg_status_name(s)); /* if none of its ops has failed */
    return tg_fail_note(t->ctx, ", recorded by %s", op->name);
}

/* Shows other ranks that this rank is alive. Only this rank writes its counter, so no atomic addition is needed. */
static inline void beat(const tg_ctx *ctx) {
    uint64_t n = atomic_load_explicit(ctx->run.heartbeat, memory_order_relaxed);
    atomic_store_explicit(ctx->run.heartbeat, n + 1, memory_order_relaxed);
}

tg_status tg_apply(tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in, tg_tensor **out,
                   int n_out, void *state, void (*destroy)(void *), const void *site) {
    tg_status s = check_apply(t, op, in, n_in, out, n_out);
    bool kept = false;
    if (TG_UNLIKELY(s == TG_OK && !op->infer)) {
        s = compose(t, op, params, in, n_in, out, site);
    } else if (TG_LIKELY(s == TG_OK)) {
        beat(t->ctx);
        tg_tape_settle(t);
        for (int i = 0; i < n_out; i++) out[i] = NULL;
        tg_tensor *saved[8];
        tg_call_impl im = {.site = t->site ? t->site : site};
        tg_call c = {.ctx = t->ctx,
                     .tape = t,
                     .op = op,
                     .state = state,
                     .n_in = n_in,
                     .n_out = n_out,
                     .input = in,
                     .out = out,
                     .saved = saved,
                     .internal = &im};
        uint64_t serial = t->ctx->serial;
        tg_rng rng = t->ctx->rng;
        uint64_t drawn = t->ctx->keys.counter;
        const tg_call *outer = t->at_work;
        t->at_work = &c;
        s = run(&c, params, destroy, &kept);
        t->at_work = outer;
        if (im.temps) tg_call_temps_free(&c);
        if (!kept)
            for (int i = 0; i < c.n_saved; i++) tg_temp_free(saved[i]);
        if (TG_UNLIKELY(s != TG_OK)) {
            tg_call_explain(&c);
            t->ctx->rng = rng;
            t->ctx->keys.counter = drawn;
            if (im.drawn) im.drawn->counter = im.counter;
            tg_tape_rollback(t, serial);
        }
        if (!kept && c.params) tg_tape_give(t, c.params, op->params_size);
    }
    if (state && !kept) tg_tape_end_state(t, state, destroy);
    if (TG_LIKELY(s == TG_OK)) return s;
    if (op && op->collective) tg_ctx_skip(tg_tape_inert(t, in, n_in)->ctx);
    for (int i = 0; out && n_out <= MAX_LIST && i < n_out; i++) out[i] = tg_tape_inert(t, in, n_in);
    return s;
}

tg_tensor *tg_record(tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in,
                     const void *site) {
    tg_tensor *out = NULL;
    tg_apply(t, op, params, in, n_in, &out, 1, NULL, NULL, site);
    return out;
}
