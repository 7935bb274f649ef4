/* Recording the graph of a slot: the module's forward on a tape of its own, and the backward of that tape, into static
 * tensors. Nothing runs on the device meanwhile, so no gradient, buffer or random stream changes. */
#include <tapegrad/tape.h>

#include "autograd/backward.h"
#include "base/hash.h"
#include "base/memory/host_memory.h"
#include "nn/captured/captured.h"
#include "placement/placing.h"

/* One recording. */
typedef struct recorder {
    tg_captured_slot *slot;
    tg_module *m;         /* the module that is captured */
    tg_tape *inner;       /* its tape */
    tg_tensor *const *in; /* the inputs of the call */
    tg_tensor **entered;  /* the static inputs, on the inner tape */
    tg_tensor **results;  /* the outputs, on the inner tape */
} recorder;

/* ---- Static tensors ---- */

static void free_all(tg_tensor **x, int n) {
    for (int i = 0; x && i < n; i++) tg_temp_free(x[i]);
}

static void free_array(tg_ctx *ctx, void *p, int n, size_t size) { tg_host_free(ctx, p, (size_t)n * size); }

void tg_captured_clear(tg_captured_slot *s) {
    tg_ctx *ctx = s->of->ctx;
    int n_in = s->of->n_in, n_grads = n_in + s->n_leaves;
    free_all(s->in, n_in);
    free_all(s->out, s->n_out);
    free_all(s->seed, s->n_out);
    free_all(s->grad, n_grads);
    if (!ctx->ending) tg_graph_free(s->graph); /* a context that ends has freed its graphs before its tapes */
    free_array(ctx, s->in, n_in, sizeof *s->in);
    free_array(ctx, s->out, s->n_out, sizeof *s->out);
    free_array(ctx, s->seed, s->n_out, sizeof *s->seed);
    free_array(ctx, s->leaf, s->n_leaves + 1, sizeof *s->leaf);
    free_array(ctx, s->grad, n_grads, sizeof *s->grad);
    *s = (tg_captured_slot){.of = s->of};
}

/* Returns an array of n NULL pointers, or NULL after recording the error. */
static tg_tensor **pointers(tg_ctx *ctx, int n) { return tg_host_alloc(ctx, (size_t)n * sizeof(tg_tensor *)); }

/* Makes the static input for x. It needs a gradient if x does, and has x's placement. */
static tg_tensor *static_input(const tg_tensor *x) {
    tg_tensor *y = tg_temp_empty(x->ctx, (tg_dtype)x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
    if (!y) return NULL;
    y->flags |= x->flags & (TG_F_REQUIRES_GRAD | TG_F_GIVEN);
    y->place = tg_place_of(x);
    return y;
}

/* Makes the static tensor for a gradient. */
static tg_tensor *static_gradient(const tg_tensor *x, tg_dtype dtype) {
    return tg_temp_empty(x->ctx, dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
}

/* Returns a handle on the bytes of a result, which from now on outlive the inner tape. */
static tg_tensor *static_output(const tg_tensor *x) {
    tg_tensor *y =
        tg_temp_new(x->ctx, (tg_dtype)x->dtype, x->ndim, x->shape, x->stride, tg_storage_ref(x->storage), x->offset);
    if (!y) return NULL;
    y->place = tg_place_of(x);
    x->storage->temporary = false;
    return y;
}

/* ---- The forward ---- */

static tg_status enter_inputs(recorder *r) {
    tg_captured_slot *s = r->slot;
    for (int i = 0; i < s->of->n_in; i++) {
        if (!(s->in[i] = static_input(r->in[i]))) return s->of->ctx->run.status;
        r->entered[i] = tg_tape_enter(r->inner, s->in[i]);
    }
    return s->of->ctx->run.status;
}

/* Makes the static outputs. An output may be a leaf that no op has used. */
static tg_status keep_results(recorder *r) {
    tg_captured_slot *s = r->slot;
    for (int i = 0; i < s->n_out; i++) {
        tg_tensor *y = r->results[i];
        bool needs = y->flags & TG_F_REQUIRES_GRAD;
        if (needs && !y->node && !tg_tape_leaf(r->inner, y)) return s->of->ctx->run.status;
        if (!(s->out[i] = static_output(y))) return s->of->ctx->run.status;
        s->n_roots += needs;
    }
    return TG_OK;
}

static bool is_leaf_outside(const tg_node *n) { return !tg_node_out(n)[0]->tape; }

/* Lists the tensors of the context that need a gradient: the tape has recorded them as leaf nodes. */
static tg_status list_leaves(recorder *r) {
    tg_captured_slot *s = r->slot;
    tg_ctx *ctx = s->of->ctx;
    int n = 0;
    for (const tg_node *node = r->inner->first; node; node = node->next) n += is_leaf_outside(node);
    s->grad = pointers(ctx, s->of->n_in + n);
    s->n_leaves = n;
    s->leaf = tg_host_alloc(ctx, (size_t)(n + 1) * sizeof *s->leaf); /* there may be none */
    TG_TRY(ctx->run.status);
    n = 0;
    for (const tg_node *node = r->inner->first; node; node = node->next)
        if (is_leaf_outside(node)) s->leaf[n++] = tg_ref_of(tg_node_out(node)[0]);
    return TG_OK;
}

static tg_status record_forward(void *state, tg_ctx *ctx) {
    recorder *r = state;
    tg_captured_slot *s = r->slot;
    TG_TRY(enter_inputs(r));
    TG_TRY(tg_module_call(r->m, r->inner, r->entered, s->of->n_in, r->results, s->n_out));
    TG_TRY(keep_results(r));
    TG_TRY(list_leaves(r));
    s->collective = r->inner->collectives;
    return ctx->run.status;
}

/* ---- The backward ---- */

/* Adds a target for x, whose gradient goes to a static tensor. */
static tg_status add_target(tg_target *targets, int *n, tg_tensor *x, tg_dtype dtype) {
    tg_tensor *g = static_gradient(x, dtype);
    if (!g) return x->ctx->run.status;
    targets[(*n)++] = (tg_target){.x = x, .g = g, .mode = TG_GRAD_WRITE};
    return TG_OK;
}

/* Lists what backward computes. A leaf's gradient has the dtype in which it accumulates, also if it is an input. */
static tg_status list_targets(const recorder *r, tg_target *targets, int *n) {
    const tg_captured_slot *s = r->slot;
    for (int i = 0; i < s->of->n_in; i++) {
        tg_dtype own = (tg_dtype)r->in[i]->dtype;
        if (r->entered[i]->flags & TG_F_REQUIRES_GRAD)
            TG_TRY(add_target(targets, n, r->entered[i], r->in[i]->node ? own : tg_accumulate_dtype(own)));
    }
    for (int i = 0; i < s->n_leaves; i++) {
        tg_tensor *x = s->leaf[i].tensor;
        TG_TRY(add_target(targets, n, x, tg_accumulate_dtype((tg_dtype)x->dtype)));
    }
    return TG_OK;
}

/* Gives the slot the gradients that backward has reached, and frees the others. */
static void keep_gradients(const recorder *r, const tg_target *targets, int n) {
    tg_captured_slot *s = r->slot;
    for (int i = 0, k = 0; i < s->of->n_in + s->n_leaves && k < n; i++) {
        const tg_tensor *x = i < s->of->n_in ? r->entered[i] : s->leaf[i - s->of->n_in].tensor;
        if (targets[k].x != x) continue;
        if (targets[k].reached)
            s->grad[i] = targets[k].g;
        else
            tg_temp_free(targets[k].g);
        k++;
    }
}

/* Makes the static gradients of the outputs that need one, and runs backward from them. */
static tg_status run_backward(const recorder *r, tg_target *targets, int n) {
    tg_captured_slot *s = r->slot;
    tg_tensor **roots = tg_tape_alloc(r->inner, 2 * (size_t)s->n_roots * sizeof *roots);
    tg_tensor **seeds = roots ? roots + s->n_roots : NULL;
    if (!roots) return s->of->ctx->run.status;
    for (int i = 0, k = 0; i < s->n_out; i++) {
        if (!(r->results[i]->flags & TG_F_REQUIRES_GRAD)) continue;
        if (!(s->seed[i] = static_gradient(s->out[i], (tg_dtype)s->out[i]->dtype))) return s->of->ctx->run.status;
        roots[k] = r->results[i];
        seeds[k++] = s->seed[i];
    }
    tg_pass_opts o = {.seeds = seeds, .targets = targets, .n_targets = n, .inner = true};
    return tg_backward_run(r->inner, roots, s->n_roots, &o, "captured module");
}

static tg_status record_backward(void *state, tg_ctx *ctx) {
    const recorder *r = state;
    const tg_captured_slot *s = r->slot;
    if (!s->n_roots) return TG_OK;
    int n = 0;
    tg_target *targets = tg_tape_alloc(r->inner, (size_t)(s->of->n_in + s->n_leaves) * sizeof *targets);
    if (!targets) return ctx->run.status;
    tg_status status = list_targets(r, targets, &n);
    if (status == TG_OK) status = run_backward(r, targets, n);
    keep_gradients(r, targets, n);
    return status;
}

/* ---- Settings ---- */

static uint64_t hash_number(uint64_t h, uint64_t number) { return tg_hash_bytes(h, &number, sizeof number); }

static uint64_t hash_module(uint64_t h, const tg_module *m) {
    h = hash_number(hash_number(h, (uint64_t)m->mode), m->settings);
    for (const tg_module_entry *e = m->first; e; e = e->next) {
        if (e->child) {
            h = hash_module(hash_number(h, e->child->serial), e->child);
        } else if (e->tensor) {
            h = hash_number(h, e->tensor->serial);
            h = hash_number(h, e->tensor->flags & TG_F_REQUIRES_GRAD);
        }
    }
    return h;
}

uint64_t tg_captured_settings(const tg_module *m) { return hash_module(TG_HASH_START, m); }

/* ---- Both ---- */

static tg_status record(recorder *r, uint64_t micro, const void *site) {
    static const tg_graph_fn parts[TG_GRAPH_PARTS] = {record_forward, record_backward};
    tg_captured_slot *s = r->slot;
    tg_ctx *ctx = s->of->ctx;
    s->in = pointers(ctx, s->of->n_in);
    s->out = pointers(ctx, s->n_out);
    s->seed = pointers(ctx, s->n_out);
    r->entered = tg_tape_alloc(r->inner, (size_t)s->of->n_in * sizeof *r->entered);
    r->results = tg_tape_alloc(r->inner, (size_t)s->n_out * sizeof *r->results);
    TG_TRY(ctx->run.status);
    s->graph = tg_graph_record(ctx, parts, TG_GRAPH_PARTS, r, micro, site);
    return ctx->run.status;
}

tg_status tg_captured_record(tg_captured_slot *s, tg_module *m, tg_tape *t, tg_tensor *const *in, int n_out,
                             const void *site) {
    recorder r = {.slot = s, .m = tg_module_wrapped(m), .in = in, .inner = tg_tape_new(t->ctx)};
    TG_TRY(t->ctx->run.status);
    r.inner->micro = t->micro;
    s->n_out = n_out;
    t->busy++;
    tg_status status = record(&r, t->micro, site);
    t->busy--;
    tg_tape_free(r.inner);
    s->settings = tg_captured_settings(r.m); /* now, because the first call of a module may make its buffers */
    if (status != TG_OK) tg_captured_clear(s);
    return status;
}
