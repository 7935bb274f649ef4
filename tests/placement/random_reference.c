/* The one-rank reference of a random program: computes on whole tensors what the placements of the ranks denote. */
#include "placement/random.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/backward.h>
#include <tapegrad/megatron.h>

const char *const random_op_names[OP_COUNT] = {
#define X(name) #name,
    RANDOM_OPS(X)
#undef X
};

/* ---- One op ---- */

static tg_tensor *part_of(tg_tape *t, tg_tensor *x, int dim, int n, int which) {
    tg_tensor *out[8] = {NULL};
    int64_t size[8];
    for (int i = 0; i < n; i++) size[i] = tg_dim(x, dim) / n;
    tg_split(t, x, dim, size, n, out);
    return out[which];
}

static tg_tensor *loss_of(tg_tape *t, const node *nd, tg_tensor **x) {
    const tg_cross_entropy_opts *o = TG_CROSS_ENTROPY(.reduction = (tg_loss_reduction)nd->arg[0]);
    if (nd->op == OP_CROSS_ENTROPY) return tg_cross_entropy(t, x[0], x[1], o);
    return tg_linear_cross_entropy(t, x[0], x[1], x[2], o);
}

static tg_tensor *residual_of(tg_tape *t, const node *nd, tg_tensor **x) {
    tg_tensor *sum, *y = tg_residual_rms_norm(t, x[0], x[1], x[2], 1e-3, &sum);
    return nd->arg[0] ? sum : y;
}

static tg_tensor *pointwise(tg_tape *t, const node *nd, tg_tensor **x) {
    switch (nd->op) {
    case OP_NEG:
        return tg_neg(t, x[0]);
    case OP_SCALE:
        return tg_scale(t, x[0], -0.75);
    case OP_TANH:
        return tg_tanh(t, x[0]);
    case OP_SQUARE:
        return tg_square(t, tg_tanh(t, x[0]));
    case OP_ADD_SCALAR:
        return tg_add_scalar(t, x[0], 0.5);
    case OP_DETACH:
        return tg_detach(t, x[0]);
    case OP_CONTIGUOUS:
        return tg_contiguous(t, x[0]);
    case OP_DROPOUT:
        return tg_dropout(t, x[0], 0);
    case OP_ADD:
        return tg_add(t, x[0], x[1]);
    case OP_SUB:
        return tg_sub(t, x[0], x[1]);
    case OP_MUL:
        return tg_mul(t, x[0], x[1]);
    case OP_DIV:
        return nd->arg[0] ? tg_div(t, x[0], tg_add_scalar(t, tg_square(t, x[1]), 1)) : tg_div(t, x[0], x[1]);
    case OP_MAXIMUM:
        return tg_maximum(t, x[0], x[1]);
    case OP_WHERE:
        return tg_where(t, x[0], x[1], x[2]);
    case OP_FILL:
        return tg_masked_fill(t, x[0], x[1], nd->arg[0] ? 0.5 : 0);
    case OP_SWIGLU:
        return tg_swiglu(t, x[0], x[1]);
    case OP_ADD_:
        return tg_add_(t, tg_scale(t, x[0], 1), x[1]);
    case OP_COPY_:
        return tg_copy_(t, tg_scale(t, x[0], 1), x[1]);
    default:
        return NULL;
    }
}

static tg_tensor *numeric(tg_tape *t, const node *nd, tg_tensor **x) {
    tg_dims dim = {1, {nd->arg[0]}};
    bool keep = nd->arg[1];
    switch (nd->op) {
    case OP_MATMUL:
        return tg_matmul(t, x[0], x[1]);
    case OP_LINEAR:
        return tg_linear(t, x[0], x[1], NULL);
    case OP_LINEAR_BIAS:
        return tg_linear(t, x[0], x[1], x[2]);
    case OP_LINEAR_GELU:
        return tg_linear_gelu(t, x[0], x[1], NULL);
    case OP_SUM:
        return tg_sum(t, x[0], dim, keep);
    case OP_MEAN:
        return tg_mean(t, x[0], dim, keep);
    case OP_MAX:
        return tg_max(t, x[0], dim, keep);
    case OP_VAR:
        return tg_var(t, x[0], dim, 0, keep);
    case OP_LOGSUMEXP:
        return tg_logsumexp(t, x[0], dim, keep);
    case OP_SOFTMAX:
        return tg_softmax(t, x[0], nd->arg[0]);
    case OP_RMS_NORM:
        return tg_rms_norm(t, x[0], x[1], 1e-3);
    case OP_LAYER_NORM:
        return tg_layer_norm(t, x[0], x[1], x[2], 1e-3);
    case OP_RESIDUAL_NORM:
        return residual_of(t, nd, x);
    case OP_ROPE:
        return tg_rope(t, x[0], 100, 0);
    case OP_EMBEDDING:
        return tg_embedding(t, x[0], x[1]);
    case OP_GATHER:
        return tg_gather(t, x[0], nd->arg[0], x[1]);
    case OP_INDEX_SELECT:
        return tg_index_select(t, x[0], nd->arg[0], x[1]);
    case OP_SCATTER_ADD:
        return tg_scatter_add(t, x[0], nd->arg[0], x[1], x[2]);
    case OP_CROSS_ENTROPY:
    case OP_LINEAR_CROSS_ENTROPY:
        return loss_of(t, nd, x);
    case OP_MSE:
        return tg_mse(t, x[0], x[1]);
    case OP_ATTENTION:
        return tg_attention(t, x[0], x[1], x[2], TG_ATTENTION(.causal = nd->arg[0]));
    default:
        return NULL;
    }
}

static tg_tensor *shaped(tg_tape *t, const node *nd, tg_tensor **x, const tg_shape *target) {
    const int *a = nd->arg;
    switch (nd->op) {
    case OP_TRANSPOSE:
        return tg_transpose(t, x[0], a[0], a[1]);
    case OP_RESHAPE:
        return a[0] < 0 ? tg_reshape(t, x[0], *target) : tg_reshape_shard(t, x[0], *target, a[0]);
    case OP_EXPAND:
        return tg_expand(t, x[0], *target);
    case OP_SQUEEZE:
        return tg_squeeze(t, x[0], a[0]);
    case OP_UNSQUEEZE:
        return tg_unsqueeze(t, x[0], a[0]);
    case OP_SLICE:
        return tg_slice(t, x[0], a[0], a[1], a[2] < 0 ? INT64_MAX : a[2], 1);
    case OP_SELECT:
        return tg_select(t, x[0], a[0], a[1]);
    case OP_CONCAT:
        return tg_concat(t, x, nd->n_in, a[0]);
    case OP_STACK:
        return tg_stack(t, x, nd->n_in, a[0]);
    case OP_SPLIT:
        return part_of(t, x[0], a[0], a[1], a[2]);
    case OP_PAD:
        return tg_pad(t, x[0], a[0], 1, 2, a[1]);
    default:
        return NULL;
    }
}

static tg_tensor *mapped(tg_tape *t, const node *nd, tg_tensor **x, tg_comm *c) {
    const int *a = nd->arg;
    switch (nd->op) {
    case OP_COPY_TO:
        return tg_copy_to_tp(t, x[0], c);
    case OP_REDUCE_FROM:
        return tg_reduce_from_tp(t, x[0], c);
    case OP_ALL_REDUCE:
        return tg_all_reduce(t, x[0], c);
    case OP_SCATTER_TO:
        return tg_scatter_to(t, x[0], a[0], c);
    case OP_SHARD:
        return tg_shard(t, x[0], a[0], c);
    case OP_GATHER_FROM:
        return tg_gather_from(t, x[0], a[0], c);
    case OP_ALL_GATHER:
        return tg_all_gather(t, x[0], a[0], c);
    case OP_REDUCE_SCATTER:
        return tg_reduce_scatter(t, x[0], a[0], c);
    case OP_RESHARD:
        return tg_reshard(t, x[0], a[0], a[1], c);
    case OP_AS_PARTIAL:
        return tg_as_partial(t, x[0], c);
    case OP_AS_OPAQUE:
        return tg_as_opaque(t, x[0], c);
    case OP_AS_SHARD:
        return tg_as_shard(t, x[0], a[0], c);
    case OP_I_TO_P:
        return tg_i_to_p(t, x[0], c);
    case OP_R_TO_I:
        return tg_r_to_i(t, x[0], c);
    case OP_SHIFT:
        return tg_shift(t, x[0], c);
    case OP_BROADCAST:
        return tg_broadcast(t, x[0], a[2], c);
    default:
        return NULL;
    }
}

tg_tensor *random_apply(tg_tape *t, const node *nd, tg_tensor **x, const tg_shape *target, tg_comm *comm) {
    if (nd->op >= OP_COPY_TO) return mapped(t, nd, x, comm);
    tg_tensor *y = pointwise(t, nd, x);
    if (!y) y = numeric(t, nd, x);
    return y ? y : shaped(t, nd, x, target);
}

/* ---- Places ---- */

int64_t random_numel(const tg_shape *s) {
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++) n *= s->dim[d];
    return n;
}

/* Returns the index in the whole dim of element i of a part of dim d, of size local; axis `without` does not divide
 * it. */
static int64_t place(const program *p, const node *nd, const int *c, int d, int64_t local, int64_t i, int without) {
    for (int order = AXES - 1; order >= 0; order--)
        for (int a = 0; a < p->n_axes; a++) {
            tg_placement at = nd->at[a];
            if (a == without || !is_shard(at) || at.dim != d || at.order != order) continue;
            int64_t chunks = at.layout == TG_STRIDED ? at.chunks : at.layout == TG_ZIGZAG ? 2 : 1;
            int64_t size = local / chunks, chunk = i / size, to = chunk * p->size[a] + c[a];
            if (at.layout == TG_ZIGZAG) to = chunk ? 2 * p->size[a] - 1 - c[a] : c[a];
            i = to * size + i % size;
            local *= p->size[a];
        }
    return i;
}

int64_t random_index(const program *p, const node *nd, const int *c, int64_t i) {
    int64_t at = 0, step = 1;
    for (int d = (int)nd->local.ndim - 1; d >= 0; d--) {
        int64_t n = nd->local.dim[d];
        at += step * place(p, nd, c, d, n, i % n, -1);
        step *= nd->whole.dim[d];
        i /= n;
    }
    return at;
}

int random_slot(const program *p, const node *nd, const int *c) {
    int slot = 0;
    for (int a = 0; a < p->n_axes; a++) slot = slot * p->size[a] + (is_opaque(nd->at[a]) ? c[a] : 0);
    return slot;
}

double random_value(const program *p, int k, const node *nd, const int *c, int64_t i) {
    int slot = random_slot(p, nd, c);
    if (nd->dtype == TG_I64) return (double)((i * 7 + k * 3 + slot * 5 + i / 3) % nd->below);
    if (nd->dtype == TG_BOOL) return (i * 5 + k + slot) % 3 == 0;
    return sin((double)(i + 1) * (0.7 + 0.13 * k) + k + 2.1 * slot);
}

double random_coefficient(const node *nd, const program *p, const int *c, int64_t i) {
    return cos((double)i * nd->coefficient + 1.3 * random_slot(p, nd, c)) + 0.2;
}

/* ---- The denotation of a program ---- */

typedef struct meaning {
    const program *p;
    tg_ctx *ctx;
    tg_tape *t;
    tg_tensor *value[NODES][RANKS]; /* by slot */
    bool no_grad[RANKS];
} meaning;

/* Returns the part that coordinate r of axis a has of x, which nd describes. */
static tg_tensor *restrict_to(meaning *m, tg_tensor *x, node *nd, int a, int r) {
    tg_placement at = nd->at[a];
    int d = at.dim, b = 1 - a;
    bool shares = m->p->n_axes > 1 && is_shard(nd->at[b]) && nd->at[b].dim == d;
    int64_t index[ELEMENTS], whole = tg_dim(x, d) / m->p->size[a], local = whole / (shares ? m->p->size[b] : 1);
    for (int k = 0; k < (shares ? m->p->size[b] : 1); k++)
        for (int64_t i = 0; i < local && i < ELEMENTS; i++) {
            int c[AXES];
            c[a] = r, c[b] = k;
            index[place(m->p, nd, c, d, local, i, a)] = place(m->p, nd, c, d, local, i, -1);
        }
    tg_tensor *where = tg_from_host(m->ctx, TG_I64, TG_SHAPE(whole), index);
    nd->at[a] = (tg_placement){.kind = TG_INVARIANT};
    if (shares) nd->at[b].order = 0;
    return tg_index_select(m->t, x, d, where);
}

/* Returns input i of a result that is opaque as `out` says, at coordinate c. */
static tg_tensor *input(meaning *m, int i, const node *out, const int *c) {
    node nd = m->p->node[i];
    tg_tensor *x = m->value[i][random_slot(m->p, &nd, c)];
    for (int a = 0; a < m->p->n_axes; a++)
        if (is_opaque(out->at[a]) && is_shard(nd.at[a])) x = restrict_to(m, x, &nd, a, c[a]);
    return x;
}

/* Returns the data of each rank of the mapping's axis. */
static void all_of(meaning *m, const node *nd, const int *c, tg_tensor **x) {
    for (int r = 0; r < m->p->size[nd->axis]; r++) {
        int at[AXES] = {c[0], c[1]};
        at[nd->axis] = r;
        x[r] = m->value[nd->input[0]][random_slot(m->p, &m->p->node[nd->input[0]], at)];
    }
}

/* Exchanges opaque data: part r along `cut` of every rank's, joined along the other dim. */
static tg_tensor *exchanged(meaning *m, const node *nd, tg_tensor **x, int n, int r) {
    tg_tensor *got[RANKS];
    for (int k = 0; k < n; k++) got[k] = part_of(m->t, x[k], nd->arg[1], n, r);
    return tg_concat(m->t, got, n, nd->arg[0]);
}

static tg_tensor *convert(meaning *m, const node *nd, const int *c) {
    const node *in = &m->p->node[nd->input[0]];
    tg_tensor *x[RANKS] = {NULL}, *sum;
    int n = m->p->size[nd->axis], r = c[nd->axis];
    if (!is_opaque(in->at[nd->axis])) return input(m, nd->input[0], nd, c); /* the same data with another meaning */
    all_of(m, nd, c, x);
    switch (nd->op) {
    case OP_GATHER_FROM:
    case OP_ALL_GATHER:
    case OP_AS_SHARD:
        return tg_concat(m->t, x, n, nd->arg[0]);
    case OP_RESHARD:
        return exchanged(m, nd, x, n, r);
    case OP_SHIFT:
        return x[(r + n - 1) % n];
    case OP_BROADCAST:
        return x[nd->arg[2]];
    case OP_AS_PARTIAL:
        sum = x[0];
        for (int k = 1; k < n; k++) sum = tg_add(m->t, sum, x[k]);
        return sum;
    default:
        return x[r];
    }
}

static tg_tensor *leaf_of(meaning *m, int k, const int *c) {
    const node *nd = &m->p->node[k];
    double v[ELEMENTS];
    int64_t n = random_numel(&nd->whole);
    for (int64_t i = 0; i < n && i < ELEMENTS; i++) v[i] = random_value(m->p, k, nd, c, i);
    tg_tensor *x = tg_zeros(m->ctx, nd->dtype, nd->whole);
    tg_write_f64(x, v, n);
    if (nd->grad) tg_set_requires_grad(x, true);
    return x;
}

static bool same_shape(const tg_tensor *x, const tg_shape *s) {
    tg_shape got = tg_shape_of(x);
    return got.ndim == s->ndim && !memcmp(got.dim, s->dim, (size_t)s->ndim * sizeof *s->dim);
}

static tg_tensor *node_at(meaning *m, int k, const int *c) {
    const node *nd = &m->p->node[k];
    tg_tensor *x[INPUTS] = {NULL};
    if (nd->op == OP_LEAF) return leaf_of(m, k, c);
    if (nd->op >= OP_COPY_TO) return convert(m, nd, c);
    for (int i = 0; i < nd->n_in; i++) x[i] = input(m, nd->input[i], nd, c);
    return random_apply(m->t, nd, x, &nd->whole, NULL);
}

/* Calls fn at every coordinate of the axes on which nd is opaque. */
#define EACH_COORDINATE(p, nd, c)                                                                                      \
    for (int c[AXES] = {0, 0}; c[0] < (is_opaque((nd)->at[0]) ? (p)->size[0] : 1); c[0]++)                             \
        for (c[1] = 0; c[1] < ((p)->n_axes > 1 && is_opaque((nd)->at[1]) ? (p)->size[1] : 1); c[1]++)

static bool build(meaning *m, char *says, size_t n) {
    for (int k = 0; k < m->p->n; k++) {
        const node *nd = &m->p->node[k];
        EACH_COORDINATE(m->p, nd, c) {
            tg_tensor *y = node_at(m, k, c);
            m->value[k][random_slot(m->p, nd, c)] = y;
            if (tg_ok(m->ctx) && same_shape(y, &nd->whole)) continue;
            snprintf(says, n, "node %d, %s, on one rank: %s", k, random_op_names[nd->op],
                     tg_ok(m->ctx) ? "another shape" : tg_ctx_message(m->ctx));
            return false;
        }
    }
    return true;
}

static tg_tensor *weighted(meaning *m, int k, const int *c) {
    const node *nd = &m->p->node[k];
    double v[ELEMENTS];
    for (int64_t i = 0; i < random_numel(&nd->whole); i++) v[i] = random_coefficient(nd, m->p, c, i);
    tg_tensor *w = tg_from_host(m->ctx, TG_F64, nd->whole, v);
    return tg_sum(m->t, tg_mul(m->t, m->value[k][random_slot(m->p, nd, c)], w), TG_ALL_DIMS, false);
}

/* Computes the roots' tangents along the leaves, and the gradient of the squares of all leaves' gradients, into
 * room. */
static double *differentiate_recorded(meaning *m, tg_tensor **roots, const int *root_of, int n, reference *r,
                                   double *room) {
    tg_tensor *leaf[NODES * RANKS], *g[NODES * RANKS], *squares[NODES * RANKS], *h[NODES * RANKS], *d[NODES * RANKS];
    double *at[NODES * RANKS];
    int n_leaves = 0, n_squares = 0;
    for (int k = 0; k < m->p->n; k++) {
        const node *nd = &m->p->node[k];
        if (nd->op != OP_LEAF || !nd->grad) continue;
        EACH_COORDINATE(m->p, nd, c) {
            at[n_leaves] = r->second[k][random_slot(m->p, nd, c)] = room;
            leaf[n_leaves++] = m->value[k][random_slot(m->p, nd, c)];
            memset(room, 0, (size_t)random_numel(&nd->whole) * sizeof *room);
            room += random_numel(&nd->whole);
        }
    }
    if (!n || !n_leaves) return room;
    tg_jvp(m->t, roots, n, leaf, n_leaves, leaf, d);
    for (int i = 0; i < n && tg_ok(m->ctx); i++) r->tangent[root_of[i]] += tg_item(d[i]);
    for (int i = 0; i < n; i++) r->finite &= (bool)isfinite(r->tangent[root_of[i]]);
    tg_grad(m->t, roots, n, leaf, n_leaves, g, TG_GRAD(.create_graph = true, .allow_unused = true));
    for (int i = 0; i < n_leaves && tg_ok(m->ctx); i++) {
        tg_tensor *s = tg_sum(m->t, tg_square(m->t, g[i]), TG_ALL_DIMS, false);
        if (tg_requires_grad(s)) squares[n_squares++] = s;
    }
    if (!n_squares) return room;
    tg_grad(m->t, squares, n_squares, leaf, n_leaves, h, TG_GRAD(.retain = true, .allow_unused = true));
    for (int i = 0; i < n_leaves && tg_ok(m->ctx); i++) {
        tg_read_f64(h[i], at[i], tg_numel(h[i]));
        for (int64_t e = 0; e < tg_numel(h[i]); e++) r->finite &= (bool)isfinite(at[i][e]);
    }
    return room;
}

/* Computes values and gradients of the sum of all sinks. Returns where the rest of the room begins. */
static double *differentiate(meaning *m, reference *r, double *room) {
    tg_tensor *roots[NODES * RANKS];
    int n = 0, root_of[NODES * RANKS];
    for (int k = 0; k < m->p->n; k++) {
        const node *nd = &m->p->node[k];
        if (!nd->sink) continue;
        EACH_COORDINATE(m->p, nd, c) {
            tg_tensor *root = weighted(m, k, c);
            r->root[k] += tg_item(root);
            r->finite &= (bool)isfinite(r->root[k]);
            if (!tg_requires_grad(root)) continue;
            root_of[n] = k;
            roots[n++] = root;
        }
    }
    room = differentiate_recorded(m, roots, root_of, n, r, room);
    if (n) tg_backward_with(m->t, roots, n, NULL);
    return room;
}

bool random_reference(const program *p, reference *r, double *room, char *says, size_t n) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    meaning m = {.p = p, .ctx = ctx, .t = tg_tape_new(ctx)};
    *r = (reference){.finite = true};
    bool good = build(&m, says, n);
    if (good) room = differentiate(&m, r, room);
    for (int k = 0; k < p->n && good; k++) {
        const node *nd = &p->node[k];
        if (nd->op != OP_LEAF || !nd->grad) continue;
        EACH_COORDINATE(p, nd, c) {
            tg_tensor *x = m.value[k][random_slot(p, nd, c)];
            double *g = r->grad[k][random_slot(p, nd, c)] = room;
            int64_t numel = random_numel(&nd->whole);
            room += numel;
            memset(g, 0, (size_t)numel * sizeof *g);
            if (tg_has_grad(x)) tg_read_f64(tg_grad_of(x), g, numel);
            for (int64_t i = 0; i < numel; i++) r->finite &= (bool)isfinite(g[i]);
        }
    }
    if (good && tg_ctx_status(ctx) != TG_OK) {
        snprintf(says, n, "on one rank: %s", tg_ctx_message(ctx));
        good = false;
    }
    tg_tape_free(m.t);
    tg_ctx_free(ctx);
    return good;
}
