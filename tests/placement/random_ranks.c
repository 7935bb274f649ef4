/* Building of a random program on the ranks, op by op, and its backward there. */
#include "placement/random.h"
#include "placement/placing.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/mappings.h>
#include <tapegrad/ops.h>

/* State of one rank. */
typedef struct maker {
    job *j;
    result *r;
    program *p;
    tg_ctx *ctx;
    tg_tape *t;
    tg_parallel *groups;
    uint64_t state;
    int c[AXES]; /* this rank's coordinates */
    tg_tensor *x[NODES];
} maker;

static const tg_axis axis_of[AXES] = {TG_TP, TG_DP};

static uint64_t draw(maker *m) { /* splitmix64 */
    uint64_t z = m->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static int below(maker *m, int n) { return n > 0 ? (int)(draw(m) % (uint64_t)n) : 0; }
static bool chance(maker *m, int percent) { return below(m, 100) < percent; }

/* ---- Leaves ---- */

static tg_placement some_shard(maker *m, const tg_shape *s) {
    tg_placement at = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (int8_t)below(m, (int)s->ndim)};
    int64_t size = s->dim[at.dim];
    int k = 2 + below(m, 2);
    if (chance(m, 25) && size % k == 0) at.layout = TG_STRIDED, at.chunks = k;
    if (chance(m, 15) && size % 2 == 0) at.layout = TG_ZIGZAG, at.chunks = 0;
    return at;
}

static tg_placement some_place(maker *m, const tg_shape *s, tg_dtype dtype) {
    int what = below(m, 100);
    if (what < 15) return (tg_placement){.kind = TG_INVARIANT};
    if (what < 45) return (tg_placement){.kind = TG_REPLICATED};
    if (what < 58 && dtype == TG_F64) return (tg_placement){.kind = TG_PARTIAL};
    if (what < 68 || s->ndim == 0) return (tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE};
    return some_shard(m, s);
}

/* Makes shares that differ and sum to 1. */
static double share(const maker *m, const node *nd) {
    double f = 1;
    for (int a = 0; a < m->p->n_axes; a++)
        if (nd->at[a].kind == TG_PARTIAL) f *= 2.0 * (m->c[a] + 1) / (m->p->size[a] * (m->p->size[a] + 1));
    return f;
}

static void note_places(maker *m, node *nd, const tg_tensor *x) {
    nd->local = tg_shape_of(x);
    nd->whole = tg_global_shape(x);
    nd->dtype = tg_dtype_of(x);
    for (int a = 0; a < m->p->n_axes; a++) nd->at[a] = tg_placement_of(x, axis_of[a]);
}

/* Adds a leaf of this local shape with a random placement. Returns its number, or -1 if there is no room. */
static int make_leaf(maker *m, tg_shape local, tg_dtype dtype, int64_t limit) {
    double v[LOCAL];
    if (m->p->n == NODES || random_numel(&local) > LOCAL) return -1;
    int k = m->p->n++;
    node *nd = &m->p->node[k];
    bool backwards = chance(m, 50);
    *nd = (node){.op = OP_LEAF, .dtype = dtype, .below = limit, .grad = dtype == TG_F64 && chance(m, 70)};
    tg_tensor *x = m->x[k] = tg_zeros(m->ctx, dtype, local);
    for (int i = 0; i < m->p->n_axes; i++) {
        int a = backwards ? m->p->n_axes - 1 - i : i;
        tg_place(m->groups, x, axis_of[a], some_place(m, &local, dtype));
    }
    note_places(m, nd, x);
    if (nd->grad) tg_set_requires_grad(x, true);
    int64_t n = random_numel(&local);
    for (int64_t i = 0; i < n && i < LOCAL; i++)
        v[i] = share(m, nd) * random_value(m->p, k, nd, m->c, random_index(m->p, nd, m->c, i));
    tg_write_f64(x, v, n);
    return k;
}

static tg_shape some_shape(maker *m, int ndim) {
    static const int sizes[] = {1, 2, 2, 3, 4, 4, 6};
    tg_shape s = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) s.dim[d] = sizes[below(m, TG_LEN(sizes) - (ndim > 3 ? 2 : 0))];
    return s;
}

/* ---- Inputs of the next op, chosen by what fits on one rank ---- */

static const tg_shape *shape_of(const maker *m, int k) { return &m->p->node[k].local; }

/* Returns a float node of at least this many dims. */
static int pick(maker *m, int ndim) {
    for (int i = 0; i < 12 && m->p->n; i++) {
        int k = chance(m, 60) ? m->p->n - 1 - below(m, m->p->n > 5 ? 5 : m->p->n) : below(m, m->p->n);
        if (m->p->node[k].dtype == TG_F64 && shape_of(m, k)->ndim >= ndim) return k;
    }
    return make_leaf(m, some_shape(m, ndim > 1 ? ndim : 1 + below(m, 3)), TG_F64, 0);
}

static bool alike(const tg_shape *a, const tg_shape *b) {
    return a->ndim == b->ndim && !memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim);
}

/* Returns a node of this shape: an earlier one, or a new leaf. */
static int fitting(maker *m, tg_shape s) {
    for (int i = 0; i < 8 && chance(m, 60); i++) {
        int k = below(m, m->p->n);
        if (m->p->node[k].dtype == TG_F64 && alike(shape_of(m, k), &s)) return k;
    }
    return make_leaf(m, s, TG_F64, 0);
}

/* Returns a shape that broadcasts to s. */
static tg_shape stretching(maker *m, tg_shape s) {
    int drop = chance(m, 30) ? below(m, (int)s.ndim + 1) : 0;
    tg_shape t = {.ndim = s.ndim - drop};
    for (int d = 0; d < t.ndim; d++) t.dim[d] = chance(m, 20) ? 1 : s.dim[d + drop];
    return t;
}

static int any_dim(maker *m, int k) { return below(m, (int)shape_of(m, k)->ndim); }

static tg_shape without(tg_shape s, int d) {
    for (int i = d; i + 1 < s.ndim; i++) s.dim[i] = s.dim[i + 1];
    s.ndim--;
    return s;
}

/* Joins two neighboring dims or splits one, once or twice. */
static tg_shape reshaped(maker *m, tg_shape s) {
    for (int turn = 1 + below(m, 2); turn > 0; turn--) {
        int d = below(m, (int)s.ndim), f = 1 + below(m, 3);
        if (chance(m, 50) && d + 1 < s.ndim) {
            s.dim[d + 1] *= s.dim[d];
            s = without(s, d);
        } else if (s.ndim > 0 && s.ndim < 5 && s.dim[d] % f == 0) {
            for (int i = (int)s.ndim; i > d; i--) s.dim[i] = s.dim[i - 1];
            s.ndim++;
            s.dim[d] = f;
            s.dim[d + 1] /= f;
        }
    }
    return s;
}

static void plan_binary(maker *m, node *nd) {
    nd->input[0] = pick(m, 0);
    bool same = nd->op == OP_SWIGLU || nd->op == OP_MSE || nd->op == OP_WHERE || nd->op == OP_FILL;
    tg_shape s = *shape_of(m, nd->input[0]), t = same ? s : stretching(m, s);
    nd->arg[0] = below(m, 2);
    nd->n_in = 2;
    if (nd->op == OP_WHERE) {
        nd->input[1] = nd->input[0];
        nd->input[2] = fitting(m, t);
        nd->input[0] = make_leaf(m, stretching(m, s), TG_BOOL, 0);
        nd->n_in = 3;
    } else {
        nd->input[1] = nd->op == OP_FILL ? make_leaf(m, stretching(m, s), TG_BOOL, 0) : fitting(m, t);
        bool swaps = nd->op != OP_ADD_ && nd->op != OP_COPY_ && nd->op != OP_FILL;
        if (swaps && chance(m, 30)) nd->input[2] = nd->input[0], nd->input[0] = nd->input[1],
            nd->input[1] = nd->input[2];
    }
}

static void plan_product(maker *m, node *nd) {
    nd->input[0] = pick(m, nd->op == OP_MATMUL ? 2 : 1);
    tg_shape s = *shape_of(m, nd->input[0]), w = s;
    int64_t k = s.dim[s.ndim - 1], out = 1 + below(m, 4);
    if (nd->op == OP_MATMUL) {
        w.dim[w.ndim - 2] = k;
        w.dim[w.ndim - 1] = out;
        if (w.ndim > 2 && chance(m, 50)) w = without(w, 0);
    } else {
        w = (tg_shape){2, {out, k}};
    }
    nd->input[1] = fitting(m, w);
    nd->n_in = 2;
    if (nd->op == OP_LINEAR_BIAS) nd->input[nd->n_in++] = fitting(m, (tg_shape){1, {out}});
}

static void plan_norm(maker *m, node *nd) {
    nd->input[0] = pick(m, 1);
    tg_shape s = *shape_of(m, nd->input[0]), w = {1, {s.dim[s.ndim - 1]}};
    nd->arg[0] = below(m, 2);
    nd->n_in = nd->op == OP_RMS_NORM ? 2 : 3;
    nd->input[1] = nd->op == OP_RESIDUAL_NORM ? fitting(m, s) : fitting(m, w);
    if (nd->n_in > 2) nd->input[2] = fitting(m, w);
}

static void plan_shape(maker *m, node *nd) {
    int x = nd->input[0] = pick(m, nd->op == OP_EXPAND || nd->op == OP_UNSQUEEZE ? 0 : 1);
    tg_shape s = *shape_of(m, x);
    int d = nd->arg[0] = any_dim(m, x);
    int64_t size = s.ndim ? s.dim[d] : 1;
    nd->n_in = 1;
    nd->target = s;
    switch (nd->op) {
    case OP_TRANSPOSE:
        nd->arg[1] = any_dim(m, x);
        break;
    case OP_RESHAPE:
        nd->target = reshaped(m, s);
        nd->arg[0] = chance(m, 25) ? below(m, (int)nd->target.ndim) : -1;
        break;
    case OP_EXPAND:
        for (int i = 0; i < s.ndim; i++)
            if (s.dim[i] == 1 && chance(m, 70)) nd->target.dim[i] = 3;
        break;
    case OP_UNSQUEEZE:
        nd->arg[0] = below(m, (int)s.ndim + 1);
        break;
    case OP_SLICE:
        nd->arg[1] = chance(m, 30) ? 0 : below(m, (int)size);
        nd->arg[2] = chance(m, 30) ? -1 : nd->arg[1] + 1 + below(m, (int)size - nd->arg[1]);
        if (nd->arg[1] == 0 && nd->arg[2] == size) nd->arg[2] = -1; /* all of it, whatever its size */
        break;
    case OP_SELECT:
        nd->arg[1] = below(m, (int)size);
        break;
    case OP_SPLIT:
        nd->arg[1] = 1 + below(m, 3);
        if (size % nd->arg[1]) nd->arg[1] = 1;
        nd->arg[2] = below(m, nd->arg[1]);
        break;
    case OP_PAD:
        nd->arg[1] = below(m, 2);
        break;
    case OP_CONCAT:
    case OP_STACK:
        nd->n_in = 2 + below(m, 2);
        for (int i = 1; i < nd->n_in; i++) nd->input[i] = fitting(m, s);
        break;
    default:
        break;
    }
}

static void plan_index(maker *m, node *nd) {
    int x = nd->input[0] = pick(m, nd->op == OP_EMBEDDING ? 2 : 1), d = nd->arg[0] = any_dim(m, x);
    tg_shape s = *shape_of(m, x), i = s;
    if (s.dim[d] == 0) return;
    nd->n_in = 2;
    if (nd->op == OP_EMBEDDING) d = 0, i = some_shape(m, 1 + below(m, 2));
    if (nd->op == OP_INDEX_SELECT) i = some_shape(m, 1);
    if (nd->op == OP_GATHER || nd->op == OP_SCATTER_ADD) {
        for (int k = 0; k < i.ndim; k++)
            if (i.dim[k] > 1 && chance(m, 15)) i.dim[k]--;
        i.dim[d] = 1 + below(m, 4);
    }
    nd->input[1] = make_leaf(m, i, TG_I64, s.dim[d]);
    if (nd->op == OP_SCATTER_ADD) nd->input[nd->n_in++] = fitting(m, i);
}

static void plan_loss(maker *m, node *nd) {
    int x = nd->input[0] = pick(m, 1);
    tg_shape s = *shape_of(m, x), rows = without(s, (int)s.ndim - 1);
    int64_t classes = s.dim[s.ndim - 1];
    nd->arg[0] = below(m, 3);
    if (nd->op == OP_LINEAR_CROSS_ENTROPY) {
        nd->input[1] = fitting(m, (tg_shape){2, {4, classes}});
        classes = 4;
    }
    nd->n_in = nd->op == OP_LINEAR_CROSS_ENTROPY ? 3 : 2;
    nd->input[nd->n_in - 1] = make_leaf(m, rows, TG_I64, classes);
}

static void plan_attention(maker *m, node *nd) {
    tg_shape q = {4, {1 + below(m, 2), 2 << below(m, 2), 2, 2}}, k = q;
    if (chance(m, 30)) k.dim[1] = 1 + below(m, 2);
    nd->arg[0] = below(m, 2);
    nd->input[0] = fitting(m, q);
    nd->input[1] = fitting(m, k);
    nd->input[2] = fitting(m, k);
    nd->n_in = 3;
}

static void plan(maker *m, node *nd) {
    int op = nd->op;
    if (op >= OP_ADD && op <= OP_COPY_)
        plan_binary(m, nd);
    else if (op >= OP_MATMUL && op <= OP_LINEAR_GELU)
        plan_product(m, nd);
    else if (op >= OP_RMS_NORM && op <= OP_RESIDUAL_NORM)
        plan_norm(m, nd);
    else if (op >= OP_TRANSPOSE && op <= OP_PAD)
        plan_shape(m, nd);
    else if (op >= OP_EMBEDDING && op <= OP_SCATTER_ADD)
        plan_index(m, nd);
    else if (op == OP_CROSS_ENTROPY || op == OP_LINEAR_CROSS_ENTROPY)
        plan_loss(m, nd);
    else if (op == OP_MSE)
        plan_binary(m, nd);
    else if (op == OP_ATTENTION)
        plan_attention(m, nd);
    else {
        nd->input[0] = pick(m, op == OP_ROPE ? 2 : op >= OP_SUM && op <= OP_SOFTMAX ? 1 : 0);
        nd->n_in = 1;
        nd->arg[0] = any_dim(m, nd->input[0]);
        nd->arg[1] = op >= OP_COPY_TO ? any_dim(m, nd->input[0]) : below(m, 2);
        nd->axis = below(m, m->p->n_axes);
        nd->arg[2] = below(m, m->p->size[nd->axis]);
    }
}

/* ---- One op ---- */

/* The placement that a rule without the refusal might give: the first one that is not equal on every rank, dims from
 * the right. */
static void overrule(maker *m, const node *nd, tg_tensor *y) {
    tg_placement at[TG_MAX_AXES] = {{0}};
    for (int a = 0; a < m->p->n_axes; a++) {
        tg_placement *to = &at[axis_of[a]];
        for (int i = nd->n_in - 1; i >= 0; i--) {
            const node *in = &m->p->node[nd->input[i]];
            tg_placement p = in->at[a];
            if (p.kind < TG_VARYING && (to->kind >= p.kind)) continue;
            if (is_shard(p)) p.dim = (int8_t)(p.dim + tg_ndim(y) - in->local.ndim);
            if (is_shard(p) && (p.dim < 0 || p.dim >= tg_ndim(y))) p = (tg_placement){.kind = TG_PARTIAL};
            *to = p;
        }
    }
    y->place = tg_place_intern(m->ctx, at);
}

static tg_tensor *attempt(maker *m, const node *nd) {
    tg_tensor *x[INPUTS] = {NULL};
    for (int i = 0; i < nd->n_in; i++) x[i] = m->x[nd->input[i]];
    return random_apply(m->t, nd, x, &nd->target, tg_parallel_comm(m->groups, axis_of[nd->axis]));
}

static bool is_overruled(maker *m, const node *nd) {
    const char *text = m->j->overruled;
    return text && nd->op < OP_COPY_TO && tg_ctx_status(m->ctx) == TG_ERR_PLACEMENT &&
           strstr(tg_ctx_message(m->ctx), text);
}

/* Returns false for an error that is neither the rule's nor one of shapes. */
static bool add_op(maker *m) {
    node nd = {.op = 1 + below(m, OP_COUNT - 1), .coefficient = 0.3 + 0.01 * below(m, 100)};
    plan(m, &nd);
    for (int i = 0; i < nd.n_in; i++)
        if (nd.input[i] < 0) return true;
    if (m->p->n == NODES || nd.n_in == 0) return true;
    tg_tensor *y = attempt(m, &nd);
    bool wrong = is_overruled(m, &nd);
    if (wrong) {
        uint32_t axes = tg_grid_axes(m->ctx);
        tg_ctx_clear(m->ctx);
        tg_grid_own(m->ctx)->axes = 0;
        y = attempt(m, &nd);
        tg_grid_own(m->ctx)->axes = axes;
        if (tg_ok(m->ctx)) {
            overrule(m, &nd, y);
            if (m->p == m->r->program) m->r->overruled = true; /* rank 0 reports it for all */
        }
    }
    tg_status s = tg_ctx_status(m->ctx);
    bool small = s == TG_OK && tg_numel(y) <= LOCAL && tg_ndim(y) <= 5;
    if (small) {
        m->x[m->p->n] = y;
        note_places(m, &nd, y);
        m->p->node[m->p->n++] = nd;
        m->p->accepted++;
    }
    m->p->refused += s == TG_ERR_PLACEMENT;
    m->p->unshaped += s == TG_ERR_SHAPE;
    if (s == TG_ERR_PLACEMENT || s == TG_ERR_SHAPE || s == TG_ERR_DTYPE || s == TG_ERR_ARGUMENT) tg_ctx_clear(m->ctx);
    pthread_barrier_wait(&m->j->barrier); /* so that no rank communicates with one that has not cleared its error yet */
    return tg_ok(m->ctx);
}

/* ---- Roots and gradients ---- */

static void find_sinks(program *p) {
    bool used[NODES] = {false};
    for (int k = 0; k < p->n; k++)
        for (int i = 0; i < p->node[k].n_in; i++) used[p->node[k].input[i]] = true;
    for (int k = 0; k < p->n; k++) p->node[k].sink = !used[k] && p->node[k].op != OP_LEAF && p->node[k].dtype == TG_F64;
}

/* Returns the sum of y times coefficients with y's placement: shares and replicas have the same coefficients on
 * every rank. */
static tg_tensor *weighted(maker *m, int k) {
    const node *nd = &m->p->node[k];
    double v[ELEMENTS];
    tg_placement at[TG_MAX_AXES] = {{0}};
    tg_tensor *w = tg_zeros(m->ctx, TG_F64, nd->local);
    int64_t n = random_numel(&nd->local);
    for (int64_t i = 0; i < n; i++) v[i] = random_coefficient(nd, m->p, m->c, random_index(m->p, nd, m->c, i));
    tg_write_f64(w, v, n);
    for (int a = 0; a < m->p->n_axes; a++)
        if (nd->at[a].kind == TG_VARYING) at[axis_of[a]] = nd->at[a];
    w->place = tg_place_intern(m->ctx, at);
    w->flags &= (uint16_t)~TG_F_GIVEN;
    return tg_sum(m->t, tg_mul(m->t, m->x[k], w), TG_ALL_DIMS, false);
}

/* Returns whether a gradient is no share. */
static tg_tensor *whole(maker *m, tg_tensor *g) {
    for (int a = 0; a < m->p->n_axes; a++)
        if (tg_placement_of(g, axis_of[a]).kind == TG_PARTIAL)
            g = tg_all_reduce(m->t, g, tg_parallel_comm(m->groups, axis_of[a]));
    return g;
}

/* Roots along the leaves; a tangent has the placement of its leaf. */
static tg_status push(maker *m, tg_tensor **roots, const int *root_of, int n, tg_tensor **leaves, int n_leaves) {
    tg_tensor *d[NODES];
    int rank = (int)(m->p - m->r->program);
    tg_jvp(m->t, roots, n, leaves, n_leaves, leaves, d);
    for (int i = 0; i < n && tg_ok(m->ctx); i++) m->r->tangent[rank][root_of[i]] = tg_item(d[i]);
    return m->ctx->run.status;
}

/* Recorded gradients, each with the dual placement, and the gradients of the sum of their squares. */
static tg_status differentiate_twice(maker *m, tg_tensor **roots, int n, tg_tensor **leaves, const int *node_of,
                                     int n_leaves) {
    tg_tensor *g[NODES], *squares[NODES], *h[NODES];
    int n_squares = 0, rank = (int)(m->p - m->r->program);
    tg_grad(m->t, roots, n, leaves, n_leaves, g, TG_GRAD(.create_graph = true, .allow_unused = true));
    for (int i = 0; i < n_leaves && tg_ok(m->ctx); i++) {
        if (tg_place_of(g[i]) != tg_place_dual(m->ctx, tg_place_of(leaves[i])))
            return tg_ctx_fail(m->ctx, TG_ERR_INTERNAL, "leaf %d has not the dual placement", node_of[i]),
                   TG_ERR_INTERNAL;
        tg_tensor *s = tg_sum(m->t, tg_square(m->t, whole(m, g[i])), TG_ALL_DIMS, false);
        if (tg_requires_grad(s)) squares[n_squares++] = s;
    }
    if (!n_squares || !tg_ok(m->ctx)) return m->ctx->run.status;
    tg_grad(m->t, squares, n_squares, leaves, n_leaves, h, TG_GRAD(.retain = true, .allow_unused = true));
    for (int i = 0; i < n_leaves && tg_ok(m->ctx); i++)
        tg_read_f64(whole(m, h[i]), m->r->second[rank][node_of[i]], tg_numel(h[i]));
    return m->ctx->run.status;
}

static tg_status finish(maker *m, int rank) {
    tg_tensor *roots[NODES], *leaves[NODES];
    int n = 0, n_leaves = 0, root_of[NODES], node_of[NODES];
    find_sinks(m->p);
    memset(m->r->tangent[rank], 0, sizeof m->r->tangent[rank]);
    memset(m->r->second[rank], 0, sizeof m->r->second[rank]);
    for (int k = 0; k < m->p->n && tg_ok(m->ctx); k++) {
        if (!m->p->node[k].sink) continue;
        tg_tensor *root = weighted(m, k);
        m->r->root[rank][k] = tg_item(root);
        if (!tg_requires_grad(root)) continue;
        root_of[n] = k;
        roots[n++] = root;
    }
    for (int k = 0; k < m->p->n; k++) {
        if (m->p->node[k].op != OP_LEAF || !m->p->node[k].grad) continue;
        node_of[n_leaves] = k;
        leaves[n_leaves++] = m->x[k];
    }
    bool recorded = n && n_leaves && !m->j->overruled;
    if (recorded && (push(m, roots, root_of, n, leaves, n_leaves) != TG_OK ||
                  differentiate_twice(m, roots, n, leaves, node_of, n_leaves) != TG_OK))
        return m->ctx->run.status;
    if (n) tg_backward_with(m->t, roots, n, NULL);
    if (n) tg_grads_finalize(m->groups, leaves, n_leaves, NULL);
    for (int k = 0; k < m->p->n && tg_ok(m->ctx); k++) {
        const node *nd = &m->p->node[k];
        memset(m->r->grad[rank][k], 0, sizeof m->r->grad[rank][k]);
        if (nd->op == OP_LEAF && nd->grad && tg_has_grad(m->x[k]))
            tg_read_f64(tg_grad_of(m->x[k]), m->r->grad[rank][k], random_numel(&nd->local));
    }
    return m->ctx->run.status;
}

static tg_status run_one(maker *m, int rank, uint64_t seed) {
    m->state = seed;
    m->t = tg_tape_new(m->ctx);
    *m->p = (program){.n_axes = m->j->n_axes};
    for (int a = 0; a < m->p->n_axes; a++) m->p->size[a] = tg_parallel_size(m->groups, axis_of[a]);
    for (int i = 0; i < 2; i++) make_leaf(m, some_shape(m, 1 + below(m, 3)), TG_F64, 0);
    for (int ops = 0; ops < 40 && m->p->accepted < 10 && add_op(m);) ops++;
    tg_status s = tg_ok(m->ctx) ? finish(m, rank) : m->ctx->run.status;
    tg_tape_free(m->t);
    for (int k = 0; k < m->p->n; k++)
        if (m->p->node[k].op == OP_LEAF) tg_drop(m->x[k]);
    return s;
}

tg_status random_on_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    int rank = tg_comm_rank(world);
    tg_status s = TG_OK;
    maker *m = calloc(1, sizeof *m);
    *m = (maker){.j = j, .ctx = ctx};
    m->groups = tg_parallel_new(world, TG_PARALLEL(.tp = j->n_axes == 1 ? j->ranks : 2));
    for (int a = 0; a < j->n_axes; a++) m->c[a] = tg_parallel_rank(m->groups, axis_of[a]);
    for (int i = 0; i < j->n && s == TG_OK; i++) {
        m->r = &j->result[i];
        m->p = &m->r->program[rank];
        s = run_one(m, rank, j->seed + 1000003u * (uint64_t)(j->first + i));
        if (rank == 0) m->r->done = s == TG_OK;
    }
    tg_parallel_free(m->groups);
    free(m);
    return s;
}
