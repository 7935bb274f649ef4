/* Building blocks for the vjp and jvp slots of ops: tg_sum_to, which reverses broadcasting, and the jvp slots of ops
 * that are linear, multilinear or element-wise, or that have a vjp (derivatives.h). */
#include <tapegrad/backward.h>
#include <tapegrad/ops.h>

#include "placement/rule.h"
#include "ops/derivatives/grad_graph.h"

bool tg_node_needs_grad(const tg_node *n, int i) { return n && i >= 0 && i < n->n_in && tg_node_src(n)[i]; }

/* Returns whether the shape of `like` broadcasts to that of x. */
static bool broadcasts_to(const tg_tensor *like, const tg_tensor *x) {
    int front = x->ndim - like->ndim;
    bool fits = front >= 0;
    for (int d = 0; fits && d < like->ndim; d++)
        fits = like->shape[d] == 1 || like->shape[d] == x->shape[front + d];
    return fits;
}

static tg_tensor *refuse_shapes(const tg_tensor *x, const tg_tensor *like) {
    char from[160], to[160];
    tg_describe(x, from, sizeof from);
    tg_describe(like, to, sizeof to);
    tg_fail(x->ctx, TG_ERR_SHAPE, "tg_sum_to: x is %s, and the shape of %s does not broadcast to that of x", from, to);
    return tg_inert(x->ctx);
}

tg_tensor *tg_sum_to(tg_tape *t, tg_tensor *x, const tg_tensor *like) {
    if (tg_tape_check_with(t, &x, 1, "tg_sum_to") != TG_OK || tg_check(t->ctx, x, "tg_sum_to") != TG_OK)
        return tg_tape_inert(t, &x, 1);
    if (!like || like->ctx != t->ctx) {
        tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_sum_to: like is %s; expected a tensor of this context for the shape",
                like ? "a tensor of another context" : "NULL");
        return tg_inert(t->ctx);
    }
    if (!broadcasts_to(like, x)) return refuse_shapes(x, like);
    tg_dims dims = {.n = 0};
    int front = x->ndim - like->ndim;
    for (int d = 0; d < x->ndim; d++) {
        int64_t have = d < front ? 1 : like->shape[d - front];
        if (d < front || (have == 1 && x->shape[d] != 1)) dims.dim[dims.n++] = d;
    }
    tg_shape shape = {.ndim = like->ndim};
    for (int d = 0; d < like->ndim; d++) shape.dim[d] = like->shape[d];
    if (dims.n) x = tg_sum(t, x, dims, true);
    return front > 0 ? tg_reshape(t, x, shape) : x;
}

/* ---- jvp slots ---- */

/* Returns whether input i is present and a float, so that it has a tangent. */
static bool has_tangent(const tg_node *n, int i) { return tg_node_in(n)[i] && tg_is_float(tg_node_in(n)[i]->dtype); }

/* Records the node's op with other inputs. t->again keeps the op from writing anything besides its outputs. */
static tg_status record_again(tg_tape *t, const tg_node *n, tg_tensor *const *in, tg_tensor **out) {
    bool before = t->again;
    t->again = true;
    tg_status s = tg_apply(t, n->op, tg_node_params_of(n), in, n->n_in, out, n->n_out, NULL, NULL, n->site);
    t->again = before;
    return s;
}

tg_status tg_jvp_linear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    if (!t || !n || !din || !dout) return TG_ERR_ARGUMENT;
    tg_tensor **in = tg_tape_alloc(t, (size_t)n->n_in * sizeof *in + 1);
    if (!in) return t->ctx->run.status;
    for (int i = 0; i < n->n_in; i++)
        in[i] = !has_tangent(n, i) ? tg_node_in(n)[i] : din[i] ? din[i] : tg_zero_tangent(t, tg_node_in(n)[i]);
    tg_status s = record_again(t, n, in, dout);
    tg_tape_give(t, in, (size_t)n->n_in * sizeof *in + 1);
    return s;
}

tg_status tg_jvp_multilinear(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    if (!t || !n || !din || !dout) return TG_ERR_ARGUMENT;
    size_t bytes = ((size_t)n->n_in + n->n_out) * sizeof(tg_tensor *);
    tg_tensor **in = tg_tape_alloc(t, bytes);
    if (!in) return t->ctx->run.status;
    tg_tensor **part = in + n->n_in;
    tg_status s = TG_OK;
    for (int i = 0; i < n->n_in && s == TG_OK; i++) {
        if (!din[i]) continue;
        memcpy(in, tg_node_in(n), n->n_in * sizeof *in);
        in[i] = din[i];
        s = record_again(t, n, in, part);
        for (int k = 0; k < n->n_out && s == TG_OK; k++) dout[k] = dout[k] ? tg_add(t, dout[k], part[k]) : part[k];
    }
    tg_tape_give(t, in, bytes);
    return s == TG_OK ? t->ctx->run.status : s;
}

tg_status tg_jvp_pointwise(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    if (!t || !n || !din || !dout) return TG_ERR_ARGUMENT;
    return din[0] ? n->op->vjp(t, n, din, dout) : TG_OK;
}

/* Makes a cotangent (a gradient of an output, for the vjp) for each float output: zeros that require a gradient, so
 * that the vjp can be differentiated with respect to the cotangents. Their values do not matter, because the vjp is
 * linear in them. */
static tg_status free_cotangents(tg_tape *t, const tg_node *n, tg_tensor **g) {
    for (int i = 0; i < n->n_out; i++) {
        g[i] = NULL;
        if (!tg_is_float(tg_node_out(n)[i]->dtype)) continue;
        tg_tensor *zero = tg_full_like(t, tg_node_out(n)[i], 0);
        g[i] = tg_is_alive(zero) ? tg_tape_enter(t, zero) : NULL;
        if (!g[i]) return t->ctx->run.status;
        g[i]->place = zero->place;
        tg_set_requires_grad(g[i], true);
    }
    return TG_OK;
}

/* Computes the jvp as the transpose of the vjp: the vjp maps cotangents g to J^T g, and its derivative with respect
 * to g, with din as the seed, is J din. gin is memory for three pointers for each input and output of n. */
static tg_status transpose_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout,
                               tg_tensor **gin) {
    tg_tensor **g = gin + n->n_in, **roots = g + n->n_out, **seeds = roots + n->n_in, **by = seeds + n->n_in,
              **result = by + n->n_out;
    int n_roots = 0, n_by = 0;
    for (int i = 0; i < n->n_in; i++) gin[i] = NULL;
    TG_TRY(free_cotangents(t, n, g));
    tg_status s = n->op->vjp(t, n, g, gin);
    TG_TRY(s == TG_OK ? t->ctx->run.status : s);
    for (int i = 0; i < n->n_in; i++) {
        if (!din[i] || !gin[i] || !tg_requires_grad(gin[i])) continue;
        TG_TRY(tg_grad_graph_place(t, n, &gin[i], tg_placement_of_gradient(tg_node_in(n)[i], false), "gradient"));
        roots[n_roots] = gin[i];
        seeds[n_roots++] = din[i];
    }
    for (int i = 0; i < n->n_out; i++)
        if (g[i]) by[n_by++] = g[i];
    if (!n_roots || !n_by) return TG_OK;
    /* Only nodes that the vjp has recorded lead to the cotangents, so the slots of the running tg_jvp are not used. */
    uint32_t tangents = t->tangents;
    t->tangents = 0;
    s = tg_grad(t, roots, n_roots, by, n_by, result,
                TG_GRAD(.seeds = seeds, .create_graph = true, .allow_unused = true));
    t->tangents = tangents;
    TG_TRY(s);
    for (int i = 0, k = 0; i < n->n_out; i++)
        if (g[i]) dout[i] = result[k++];
    return TG_OK;
}

tg_status tg_jvp_by_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    if (!t || !n || !din || !dout) return TG_ERR_ARGUMENT;
    size_t bytes = 3 * ((size_t)n->n_in + n->n_out) * sizeof(tg_tensor *);
    tg_tensor **memory = tg_tape_alloc(t, bytes);
    if (!memory) return t->ctx->run.status;
    bool grad = tg_tape_set_grad_mode(t, true);
    tg_status s = transpose_vjp(t, n, din, dout, memory);
    tg_tape_set_grad_mode(t, grad);
    tg_tape_give(t, memory, bytes);
    return s;
}
