/* Activation recomputation (Chen et al., arXiv 1604.06174): one node stands for a whole function of tensors.
 *
 * The first run of the function happens on a separate tape in no-grad mode, so its ops save nothing for backward.
 * Leaves that the function uses become inputs of the node. Backward runs the function again on a new tape, with the
 * random streams of the first run unless keep_rng is set. The backward of the new tape writes the gradients of its
 * leaves directly to the buffers for the gradients of the node's inputs, so that a weight's gradient never exists
 * twice. */
#include "base/options.h"
#include "recompute/recompute.h"

#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/comm.h>
#include <tapegrad/ops.h>

#include "base/callback.h"
#include "base/hash.h"
#include "placement/rule.h"
#include "ops/derivatives/grad_graph.h"
#include "autograd/grad_sink.h"

/* ---- Check mode ---- */

/* Returns a hash of the bytes of x, or 0 if they cannot be hashed. Copies bytes on a device to the host, piece by
 * piece: this is slow, but only check mode does it. */
static uint64_t hash_bytes(const tg_tensor *x) {
    uint64_t h = TG_HASH_START;
    unsigned char piece[8192];
    tg_ctx *ctx = x->ctx;
    if (ctx->meta || ctx->capture || !(x->flags & TG_F_CONTIGUOUS)) return 0;
    if (tg_storage_need(x->storage, x) != TG_OK) return 0;
    const unsigned char *p = tg_data(x);
    for (size_t n = (size_t)x->numel * tg_dtype_size(x->dtype), some; n > 0; n -= some, p += some) {
        const unsigned char *bytes = ctx->host ? p : piece;
        some = ctx->host || n < sizeof piece ? n : sizeof piece;
        if (!ctx->host && ctx->run.ops->copy(ctx, piece, p, some, TG_COPY_TO_HOST) != TG_OK) return 0;
        h = tg_hash_bytes(h, bytes, some);
    }
    return h;
}

/* Fails if an output of the second run has another shape, dtype or placement than in the first run, or, in check mode,
 * other bits. */
static tg_status check_same(tg_ctx *ctx, const tg_recompute_params *p, tg_tensor *const *first,
                            tg_tensor *const *again) {
    for (int i = 0; i < p->n_out; i++) {
        char want[160], got[160];
        tg_describe(first[i], want, sizeof want);
        tg_describe(again[i], got, sizeof got);
        if (again[i]->dtype != first[i]->dtype || !tg_same_shape(again[i], first[i]))
            return tg_fail(ctx, TG_ERR_SHAPE, "%s: output %d was %s in the first run and is %s in the second", p->name,
                           i, want, got);
        if (tg_place_of(again[i]) != first[i]->place)
            return tg_fail(ctx, TG_ERR_PLACEMENT,
                           "%s: output %d, %s, has another placement in the second run than in the first", p->name, i,
                           want);
        uint64_t bits = p->bits && p->bits[i] ? hash_bytes(again[i]) : 0;
        if (bits && bits != p->bits[i])
            return tg_fail(
                ctx, TG_ERR_STATE,
                "%s: output %d, %s, has other bits in the second run: the function reads something that changed",
                p->name, i, want);
    }
    return ctx->run.status;
}

/* ---- One run of the function on a separate tape ---- */

/* Joins the forks of random streams that the function has left open. Then records an error if `before`, the number of
 * open forks at its start, was another one than now at its end. The error of a function that has failed between a fork
 * and its join stays. */
static void check_forks(tg_ctx *ctx, const tg_recompute_params *p, int before) {
    int left = ctx->streams.forks - before;
    if (!left) return;
    if (left > 0) tg_rng_unwind(ctx, before);
    tg_fail(ctx, TG_ERR_STATE, "%s: the function %s random streams %s more often than it %s them", p->name,
            left > 0 ? "forks" : "joins", tg_count(abs(left), "time").text, left > 0 ? "joins" : "forks");
}

/* Does the same for open keys (core/random/keys.h). */
static void check_keys(tg_ctx *ctx, const tg_recompute_params *p, int before) {
    int left = ctx->keys.opens - before;
    if (!left) return;
    if (left > 0) tg_keys_unwind(ctx, before);
    tg_fail(ctx, TG_ERR_STATE, "%s: the function %s keys %s more often than it %s them", p->name,
            left > 0 ? "opens" : "closes", tg_count(abs(left), "time").text, left > 0 ? "closes" : "opens");
}

/* Calls the function, and checks its status, its forks, its keys and its outputs. */
static tg_status call_fn(const tg_recompute_params *p, tg_tape *t, tg_tensor *const *in, tg_tensor **out) {
    int forks = t->ctx->streams.forks, keys = t->ctx->keys.opens;
    uint64_t outer = tg_tapes_of(t->ctx)->recomputing;
    if (t->collects || t->again) tg_tapes_of(t->ctx)->recomputing = t->ctx->serial;
    t->busy++;
    tg_status s = p->fn(p->state, t, in, p->n_in, out, p->n_out);
    t->busy--;
    tg_tapes_of(t->ctx)->recomputing = outer;
    tg_callback_end(t->ctx, s, "%s: the function", p->name);
    check_forks(t->ctx, p, forks);
    check_keys(t->ctx, p, keys);
    TG_TRY(t->ctx->run.status);
    for (int i = 0; i < p->n_out; i++) {
        char what[128];
        snprintf(what, sizeof what, "%s: output %d of the function", p->name, i);
        TG_TRY(tg_check(t->ctx, out[i], what));
    }
    return TG_OK;
}

/* Makes tensors of tape t that share the storages of the inputs. */
static tg_status enter_inputs(tg_tape *t, tg_tensor *const *in, int n, tg_tensor **entered) {
    for (int i = 0; i < n; i++) entered[i] = in[i] ? tg_tape_enter(t, in[i]) : NULL;
    return t->ctx->run.status;
}

/* ---- The op ---- */

/* Makes each output of the node a tensor of c->tape that shares the storage of an output of the first run. The outputs
 * of the first run end with their tape. */
tg_status tg_recompute_infer(tg_call *c) {
    tg_recompute_params *p = c->params;
    for (int i = 0; i < p->n_out; i++) {
        const tg_tensor *x = p->outputs[i];
        tg_tensor *y = tg_tape_alias(c->tape, x);
        if (!y) return c->ctx->run.status;
        y->place = tg_place_of(x);
        y->out = (uint16_t)i;
        c->out[i] = y;
        const tg_tensor *maker = tg_storage_maker(x->storage);
        if (!x->tape || !maker || maker->tape != x->tape) continue;
        x->storage->maker = y; /* x ends with its tape, so y becomes the tensor that the storage was made for */
        x->storage->birth = y->serial;
    }
    tg_call_placed(c);
    return c->ctx->run.status;
}

/* Saves the states of all random streams in the tape's memory. Returns NULL after recording the error. */
static tg_rng_states *save_streams(tg_tape *t) {
    tg_rng_states *s = tg_tape_alloc(t, tg_rng_states_bytes(t->ctx));
    if (s) tg_rng_states_save(t->ctx, s);
    return s;
}

/* Begins or ends a second run. Sets the random streams to the states *to, unless `to` is NULL. Sets keys.repeats, which
 * says that draws repeat those of a first run, and returns its earlier value. */
static bool set_draws(tg_ctx *ctx, const tg_rng_states *to, bool repeats) {
    bool before = ctx->keys.repeats;
    if (to) tg_rng_states_load(ctx, to);
    ctx->keys.repeats = repeats;
    return before;
}

tg_status tg_recompute_again(const tg_node *n, tg_tape *inner, tg_tensor **in, tg_tensor **out) {
    const tg_recompute_params *p = tg_node_params_of(n);
    tg_ctx *ctx = inner->ctx;
    tg_rng_states *now = p->streams ? save_streams(inner) : NULL;
    bool *changed = ctx->run.status == TG_OK ? tg_needs_then(inner, n) : NULL;
    if (!changed) return ctx->run.status;
    bool repeats = set_draws(ctx, p->streams, true);
    inner->again = true;
    inner->micro = p->micro;
    memset(out, 0, (size_t)p->n_out * sizeof *out); /* the function may fail to set an output */
    tg_status s = enter_inputs(inner, tg_node_in(n), p->n_in, in);
    if (s == TG_OK) s = call_fn(p, inner, in, out);
    set_draws(ctx, now, repeats);
    tg_needs_now(n, changed);
    return s == TG_OK ? check_same(ctx, p, tg_node_out(n), out) : s;
}

/* Replaces each input that needs a gradient by a view with a node of its own: a permutation that changes nothing. */
static tg_status alias_inputs(tg_tape *t, tg_tensor *const *in, int n, tg_tensor **own) {
    for (int i = 0; i < n; i++) {
        tg_dims order = {.n = in[i]->ndim};
        for (int d = 0; d < order.n; d++) order.dim[d] = d;
        own[i] = in[i]->flags & TG_F_REQUIRES_GRAD ? tg_permute(t, in[i], order) : in[i];
    }
    return t->ctx->run.status;
}

/* Runs the function again and records its ops on the node's own tape, for derivatives of derivatives. Gives the
 * function views of its inputs, so that hooks which it sets on the views do not stay on the inputs themselves. */
static tg_status recompute_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_recompute_params *p = tg_node_params_of(n);
    tg_rng_states *now = p->streams ? save_streams(t) : NULL;
    tg_tensor **in = tg_tape_alloc(t, (size_t)p->n_in * sizeof *in + 1);
    TG_TRY(t->ctx->run.status);
    bool training = tg_tape_set_training(t, p->training), again = t->again;
    uint64_t micro = t->micro;
    t->again = true;
    t->micro = p->micro;
    bool repeats = set_draws(t->ctx, p->streams, true);
    tg_status s = alias_inputs(t, tg_node_in(n), p->n_in, in);
    if (s == TG_OK) s = call_fn(p, t, in, out);
    set_draws(t->ctx, now, repeats);
    tg_tape_set_training(t, training);
    t->again = again;
    t->micro = micro;
    return s == TG_OK ? check_same(t->ctx, p, tg_node_out(n), out) : s;
}

tg_status tg_recompute_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    (void)gin;
    return tg_vjp_composed(t, n, gout, recompute_compose);
}

tg_status tg_recompute_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    (void)din;
    return tg_jvp_composed(t, n, dout, recompute_compose);
}

/* Lists the roots of the inner backward: outputs that have received a gradient and that depend on something which needs
 * one. Returns their number. seeds[] receives the gradients. */
static int choose_roots(tg_call *c, tg_tensor **out, tg_tensor **roots, tg_tensor **seeds) {
    int n = 0;
    for (int i = 0; i < c->n_out; i++) {
        if (!c->gout[i] || !(out[i]->flags & TG_F_REQUIRES_GRAD)) continue;
        roots[n] = out[i];
        seeds[n++] = c->gout[i];
    }
    return n;
}

tg_status tg_recompute_gradient(tg_call *c, tg_tape *inner, tg_tensor **in, tg_tensor **out, bool retain) {
    const tg_recompute_params *p = c->params;
    tg_tensor **roots = tg_tape_alloc(inner, 2 * (size_t)c->n_out * sizeof *roots),
              **seeds = roots ? roots + c->n_out : NULL;
    tg_target *targets = tg_tape_alloc(inner, ((size_t)c->n_in + 1) * sizeof *targets);
    if (!roots || !targets) return c->ctx->run.status;
    int n_targets = 0, n_roots = choose_roots(c, out, roots, seeds);
    for (int i = 0; i < c->n_in; i++)
        if (c->gin_mode[i] != TG_GRAD_NONE)
            targets[n_targets++] =
                (tg_target){.x = i < p->n_in ? in[i] : c->input[i],
                            .g = c->gin[i],
                            .mode = c->gin_mode[i],
                            .accumulates = i >= p->n_in && tg_call_accumulates(c, i)};
    tg_pass_opts o = {.seeds = seeds, .targets = targets, .n_targets = n_targets, .retain = retain, .inner = true};
    if (n_roots) TG_TRY(tg_backward_run(inner, roots, n_roots, &o, p->name));
    for (int i = 0, k = 0; i < c->n_in; i++)
        if (c->gin_mode[i] != TG_GRAD_NONE && !targets[k++].reached) tg_call_decline(c, i);
    return TG_OK;
}

static tg_status recompute_backward(tg_call *c) {
    const tg_recompute_params *p = c->params;
    tg_tape *inner = tg_tape_new(c->ctx);
    TG_TRY(c->ctx->run.status);
    tg_tape_act_for(inner, c->tape);
    tg_tape_set_training(inner, p->training);
    tg_tensor **in = tg_tape_alloc(inner, ((size_t)p->n_in + (size_t)p->n_out) * sizeof *in + 1),
              **out = in ? in + p->n_in : NULL;
    tg_status s = in ? tg_recompute_again(((const tg_call_impl *)c->internal)->node, inner, in, out) :
        c->ctx->run.status;
    if (s == TG_OK) s = tg_recompute_gradient(c, inner, in, out, false);
    tg_tape_free(inner);
    return s;
}

static const tg_op recompute_op = TG_RECOMPUTE_OP("recompute", false, recompute_backward);
/* The op for functions that communicate with other ranks: its backward runs on all ranks or on none. */
static const tg_op recompute_of_ranks_op = TG_RECOMPUTE_OP("recompute", true, recompute_backward);

/* ---- What a node keeps ---- */

/* The state of a node, at the start of a piece of the tape's memory. After it in the piece are the streams, the hashes
 * and the name to which the params point. The piece is freed when the node ends. */
typedef struct kept {
    tg_tape *t;
    size_t bytes; /* size of the piece */
    void *state;  /* node_state and end of the tg_recompute_call */
    void (*end)(void *state);
} kept;

/* Makes the state of the node of a call, and copies to it what the node needs: the name, and the random streams unless
 * the second run continues them. Reserves space for the hashes in check mode. Returns NULL after recording an error. */
static kept *keep(tg_tape *t, tg_recompute_params *p, const tg_recompute_opts *opts, const tg_recompute_call *call) {
    size_t streams = opts->keep_rng ? 0 : tg_rng_states_bytes(t->ctx);
    size_t bits = t->ctx->check ? (size_t)p->n_out * sizeof *p->bits : 0, name = strlen(p->name) + 1;
    size_t bytes = sizeof(kept) + streams + bits + name;
    kept *k = tg_tape_alloc(t, bytes);
    if (!k) return NULL;
    *k = (kept){t, bytes, call->node_state, call->end};
    char *at = (char *)(k + 1);
    if (streams) tg_rng_states_save(t->ctx, p->streams = (tg_rng_states *)(void *)at);
    if (bits) p->bits = (uint64_t *)(void *)(at + streams);
    p->name = memcpy(at + streams + bits, p->name, name);
    return k;
}

static void end_kept(void *state) {
    kept *k = state;
    if (k->state && k->end) k->end(k->state);
    tg_tape_give(k->t, k, k->bytes);
}

void *tg_recompute_state(const tg_call *c) { return ((const kept *)c->state)->state; }

/* ---- tg_recompute ---- */

/* Lists in all[] the inputs, and then the leaves that the first run used without getting them as inputs. `inner`, the
 * tape of that run, has recorded these as leaf nodes. Returns the number of tensors in all[]. */
static int leaves_used(const tg_tape *inner, tg_tensor *const *in, int n_in, tg_tensor **all) {
    int n = n_in;
    for (int i = 0; i < n_in; i++) all[i] = in[i];
    for (tg_node *node = inner->first; node; node = node->next)
        if (!tg_node_out(node)[0]->tape) all[n++] = tg_node_out(node)[0];
    return n;
}

/* Runs the function for the first time, on `inner`, and records the node on t. The node's state is k. */
static tg_status first_run(tg_tape *t, tg_tape *inner, tg_recompute_params *p, tg_tensor *const *in, tg_tensor **out,
                           kept *k, tg_recompute_call *call) {
    tg_ctx *ctx = t->ctx;
    size_t count = (size_t)p->n_in + (size_t)p->n_out + 1;
    tg_tensor **entered = tg_tape_alloc(inner, count * sizeof *entered), **results = entered ? entered + p->n_in : NULL;
    if (!entered) return ctx->run.status;
    memset(results, 0, (size_t)p->n_out * sizeof *results); /* the function may fail to set an output */
    TG_TRY(enter_inputs(inner, in, p->n_in, entered));
    TG_TRY(call_fn(p, inner, entered, results));
    p->outputs = results;
    for (int i = 0; i < p->n_out; i++) /* a leaf may be a result without being an input of any op */
        if (!results[i]->tape && results[i]->flags & TG_F_REQUIRES_GRAD && !tg_tape_leaf(inner, results[i]))
            return ctx->run.status;
    for (int i = 0; p->bits && i < p->n_out; i++) p->bits[i] = hash_bytes(results[i]);
    TG_TRY(ctx->run.status);
    tg_tensor **all = tg_tape_alloc(inner, ((size_t)p->n_in + (size_t)inner->n_nodes + 1) * sizeof *all);
    if (!all) return ctx->run.status;
    int n = leaves_used(inner, in, p->n_in, all);
    const tg_op *op = call->op[inner->collectives || (p->distribute && tg_comm_size(p->distribute) > 1)];
    call->passed_on = true;
    TG_TRY(tg_apply(t, op, p, all, n, out, p->n_out, k, end_kept, call->site));
    for (int i = 0; i < p->n_out; i++) /* an output that depends on nothing that needs a gradient needs none either */
        if (!(results[i]->flags & (TG_F_REQUIRES_GRAD | TG_F_DIFFERENTIABLE))) out[i]->flags &= ~TG_F_REQUIRES_GRAD;
    return TG_OK;
}

/* Checks the arguments of a call. */
static tg_status check_call(tg_tape *t, const tg_recompute_params *p, tg_tensor *const *in, tg_tensor *const *out,
                            const char *who) {
    tg_ctx *ctx = t->ctx;
    if (!p->fn || p->n_in < 0 || p->n_out <= 0 || (p->n_in && !in) || !out || p->n_in > 65535 || p->n_out > 65535)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: fn is %s, n_in is %d and n_out is %d; expected a function, 0 to 65535 inputs and 1 to "
                       "65535 outputs with their arrays",
                       who, p->fn ? "not NULL" : "NULL", p->n_in, p->n_out);
    for (int i = 0; i < p->n_in; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s: input %d", who, i);
        TG_TRY(tg_check(ctx, in[i], what));
        if (in[i]->tape && in[i]->tape != t)
            return tg_fail(ctx, TG_ERR_HANDLE, "%s: input %d is a result of another tape; enter it with tg_tape_input",
                           who, i);
    }
    return p->distribute ? tg_distribute_check(ctx, p->n_in ? in[0] : NULL, p->distribute, who) : TG_OK;
}

tg_status tg_recompute_record(tg_tape *t, tg_recompute_params *p, tg_tensor *const *in, tg_tensor **out,
                              const tg_recompute_opts *opts, tg_recompute_call *call) {
    tg_ctx *ctx = t->ctx;
    p->name = opts->name ? opts->name : call->op[0]->name;
    p->training = t->training;
    p->micro = t->micro;
    p->distribute = opts->distribute;
    TG_TRY(check_call(t, p, in, out, call->who));
    if (!t->grad) return call_fn(p, t, in, out); /* nothing would be kept anyway */
    tg_tape *inner = tg_tape_new(ctx);
    TG_TRY(ctx->run.status);
    kept *k = keep(t, p, opts, call);
    inner->training = t->training;
    inner->micro = t->micro;
    inner->again = t->again;
    inner->grad = false;
    inner->collects = true;
    tg_tape_act_for(inner, t);
    t->busy++;
    tg_status s = k ? first_run(t, inner, p, in, out, k, call) : ctx->run.status;
    t->busy--;
    if (k && !call->passed_on) tg_tape_give(t, k, k->bytes);
    /* The inner tape ends before tg_distribute, which allocates memory for this rank's part. */
    tg_tape_free(inner);
    if (s == TG_OK && p->distribute && out[0]->node) s = tg_distribute(t, in[0], p->distribute);
    return s;
}

tg_status tg_recompute_ended(tg_tape *t, const tg_recompute_opts *opts, tg_status s) {
    if (s == TG_OK || !t) return s;
    if (tg_comm_size(opts->distribute) > 1) tg_ctx_skip(t->ctx);
    tg_ctx_may_skip(t->ctx);
    return s;
}

tg_status tg_recompute(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out,
                       const tg_recompute_opts *given) {
    tg_recompute_opts opts;
    tg_status sized =
        tg_options(t ? t->ctx : NULL, &opts, &tg_recompute_opts_struct, given, "tg_recompute: the options");
    tg_status s = tg_tape_check_with(t, in, n_in, "tg_recompute");
    tg_recompute_params p = {.fn = fn, .state = state, .n_in = n_in, .n_out = n_out};
    tg_recompute_call call = {.who = "tg_recompute",
                              .op = {&recompute_op, &recompute_of_ranks_op},
                              .node_state = opts.destroy ? state : NULL,
                              .end = opts.destroy,
                              .site = TG_SITE};
    if (s == TG_OK) s = sized;
    if (s == TG_OK) s = tg_recompute_record(t, &p, in, out, &opts, &call);
    if (!call.passed_on) tg_tape_end_state(t, state, opts.destroy);
    if (s != TG_OK)
        for (int i = 0; out && n_out <= 65535 && i < n_out; i++) out[i] = tg_tape_inert(t, in, n_in);
    return tg_recompute_ended(t, &opts, s);
}
