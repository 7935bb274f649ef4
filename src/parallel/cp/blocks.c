/* Attention of blocks of queries with blocks of keys. The device's slots compute one pair of blocks at a time, a block
 * of queries and a block of keys, as if these two were whole sequences.
 *
 * Forward merges the results of all pairs that have the same block of queries. For each row, which is a query, a pair
 * gives `top`, the greatest score; `mass`, the sum of exp(score - top); and `out`, which is divided by mass. When rows
 * are merged, the weight of a pair's out is its mass times exp(its top - the greatest top of all) (Milakov and
 * Gimelshein, arXiv 1805.02867; Liu et al., arXiv 2310.01889).
 *
 * Backward merges nothing. Each pair gets the merged top, mass and out of its rows, so what it computes are its addends
 * of the gradients. */
#include <math.h>

#include "kernels/composed.h"
#include "parallel/cp/cp.h"

/* ---- Pairs of blocks ---- */

/* Memory for the shapes and strides of the arrays of a pair. */
typedef struct pair_layouts {
    tg_extent q, k, v, out, top, mass, gout, gq, gk, gv;
} pair_layouts;

/* Returns the rows of block i of x, whose shape and strides are put in *e. Returns x if it is absent. */
static tg_array block_of(const tg_cp_pass *w, tg_array x, int i, tg_extent *e) {
    return x.data ? tg_array_slice(x, 2, i * w->p->blocks.rows, w->p->blocks.rows, 1, e) : x;
}

/* Returns whether queries of block `query` of the sequence may see keys of block `key`; if not, the pair is left out.
 * If each packed sequence is cut by itself, the lengths of the sequences decide whether a window hides all keys. These
 * are on the device, so the pair is not left out, and the slot finds that its queries see no key. */
static bool sees(const tg_cp_params *p, int query, int key) {
    int64_t ahead = query - key;
    if (ahead < 0) return !p->opts.causal;
    if (!p->left_bound || p->cut_apart || ahead == 0) return true;
    return (ahead - 1) * p->blocks.rows + 1 <= p->opts.left;
}

/* Sets the rules that hide some keys of block `key` from queries of block `query`. A causal mask is needed only if both
 * are the same block: it hides no key of an earlier block, and pairs with a later one have been left out. */
static void set_rules(const tg_cp_pass *w, int query, int key, tg_attention_args *a) {
    const tg_cp_params *p = w->p;
    int64_t ahead = query - key, farthest = (ahead + 1) * p->blocks.rows - 1;
    a->causal = p->opts.causal && ahead == 0;
    a->left_bound = p->left_bound && ahead >= 0 && (p->packed || farthest > p->opts.left);
    a->left = p->opts.left;
    a->shift = a->left_bound ? ahead : 0;
    a->starts_q = a->starts_k = w->starts;
}

/* For packed sequences that are cut as if they were one: sets where they start in the two blocks, and adapts the
 * window. A sequence that has queries in one block and keys in an earlier block fills all rows from these keys to these
 * queries. So the slot may compute the pair as if the blocks were neighbors (shift 1), with a window that is shorter by
 * the rows of the blocks between them. */
static tg_status set_starts(tg_cp_pass *w, int query, int key, tg_attention_args *a) {
    if (!w->p->packed || w->p->cut_apart) return TG_OK;
    TG_TRY(tg_cp_pair_starts(w, query, key));
    a->starts_q = w->starts_q, a->starts_k = w->starts_k;
    if (a->shift <= 1) return TG_OK;
    a->left -= (a->shift - 1) * w->p->blocks.rows;
    a->shift = 1;
    return TG_OK;
}

/* Sets *a to the arguments for block i of this rank's queries and block j of the given keys, except out, top, mass and
 * the gradients. The sink belongs to no key, and must count once for each query: it counts in the pair in which the
 * keys are of the same block as the queries. */
static tg_status pair_args(tg_cp_pass *w, const tg_cp_keys *keys, int i, int j, pair_layouts *m,
                           tg_attention_args *a) {
    const tg_cp_params *p = w->p;
    int query = tg_cp_block(&p->blocks, p->holder, i), key = tg_cp_block(&p->blocks, keys->holder, keys->first + j);
    *a = (tg_attention_args){
        .q = block_of(w, w->q, i, &m->q),
        .k = block_of(w, keys->k, j, &m->k),
        .v = block_of(w, keys->v, j, &m->v),
        .scale = p->opts.scale,
        .dropout = p->opts.dropout,
        .softcap = p->opts.softcap,
    };
    set_rules(w, query, key, a);
    if (query == key) a->sink = w->sink;
    if (a->dropout > 0) a->draws = tg_cp_draws_of(p, w, query, key);
    return set_starts(w, query, key, a);
}

static bool pair_is_seen(const tg_cp_pass *w, const tg_cp_keys *keys, int i, int j) {
    const tg_cp_blocks *b = &w->p->blocks;
    return sees(w->p, tg_cp_block(b, w->p->holder, i), tg_cp_block(b, keys->holder, keys->first + j));
}

/* ---- Forward ---- */

/* Returns a temporary [b, heads, block rows, size], or [b, heads, block rows] if size is 0. */
static tg_array pair_temp(const tg_cp_pass *w, int64_t size) {
    int64_t shape[] = {w->q.shape[0], w->p->heads, w->p->blocks.rows, size};
    return tg_array_of(tg_call_temp(w->c, tg_accumulate_dtype((tg_dtype)w->q.dtype), size ? 4 : 3, shape));
}

tg_status tg_cp_open(tg_cp_pass *w, bool backward) {
    const tg_cp_blocks *b = &w->p->blocks;
    /* If the flag of a block of queries is set, forward merges the next pair with its result, and backward adds the
     * next pair to its gradient. Backward may do so from the beginning (add_q, which forward leaves false). */
    memset(w->p->begun, w->add_q, (size_t)b->count);
    if (w->p->packed) TG_TRY(tg_cp_starts(w, !backward));
    if (backward || b->total == 1) return w->c->ctx->run.status;
    w->part_out = pair_temp(w, w->v.shape[3]);
    w->part_top = pair_temp(w, 0);
    w->part_mass = pair_temp(w, 0);
    for (int i = 0; i < TG_LEN(w->row); i++) w->row[i] = pair_temp(w, 0);
    return w->c->ctx->run.status;
}

/* Returns x, [b, heads, rows], as [b, heads, rows, 1], which broadcasts over the elements of each row. The shape and
 * strides are put in *e. */
static tg_array column(tg_array x, tg_extent *e) {
    for (int d = 0; d < 3; d++) e->shape[d] = x.shape[d], e->stride[d] = x.stride[d];
    e->shape[3] = 1, e->stride[3] = 0;
    return tg_array_at(x, 0, 4, e->shape, e->stride);
}

/* Sets out to the formula of the n arrays in[], each of which broadcasts to the shape of out. */
static tg_status map(const tg_cp_pass *w, tg_formula f, tg_array out, const tg_array *in, int n) {
    /* These are the bounds of clamp. The other formulas that are used here have no parameters. */
    const double finite[2] = {-tg_greatest((tg_dtype)out.dtype), INFINITY};
    int64_t stride[4][TG_MAX_DIMS];
    tg_array x[4];
    for (int i = 0; i < n; i++) x[i] = tg_array_expand(in[i], out.ndim, out.shape, stride[i]);
    return tg_ctx_ops(w->c->ctx)->apply(w->c->ctx, f, out, x, n, finite, false);
}
#define MAP(name, out, ...)                                                                                            \
    TG_TRY(map(w, TG_FN_##name, out, (const tg_array[]){__VA_ARGS__}, TG_LEN(((const tg_array[]){__VA_ARGS__}))))

/* Merges the result of a pair, in w->part_out, w->part_top and w->part_mass, into out, top and mass of the queries. In
 * a row that has seen no key, mass is 0, and top may be -inf. The common top is clamped to a finite number, so that the
 * weights are 0 and not NaN. So such a row may keep a finite top; mass says that it has no score, here and in
 * backward. */
static tg_status merge(const tg_cp_pass *w, tg_array out, tg_array top, tg_array mass) {
    tg_array old = w->row[0], added = w->row[1], common = w->row[2];
    tg_extent e[2];
    MAP(maximum, common, top, w->part_top);
    MAP(clamp, common, common);
    MAP(exp_sub_mul, old, top, common, mass);
    MAP(exp_sub_mul, added, w->part_top, common, w->part_mass);
    MAP(id, top, common);
    MAP(add, mass, old, added);
    MAP(reciprocal, common, mass);
    MAP(where_da, common, mass, common);
    MAP(mul, old, old, common);
    MAP(mul, added, added, common);
    MAP(mul_mul_add, out, out, column(old, &e[0]), w->part_out, column(added, &e[1]));
    return TG_OK;
}

/* Computes a pair. The result of the first pair of a block of queries is written to its place; later ones are merged
 * with it. */
static tg_status attend_pair(tg_cp_pass *w, const tg_cp_keys *keys, int i, int j) {
    const tg_device_ops *ops = tg_ctx_ops(w->c->ctx);
    pair_layouts m;
    int64_t bad = 0;
    tg_attention_args a;
    TG_TRY(pair_args(w, keys, i, j, &m, &a));
    tg_array out = block_of(w, w->out, i, &m.out), top = block_of(w, w->top, i, &m.top);
    tg_array mass = block_of(w, w->mass, i, &m.mass);
    bool merges = w->p->begun[i];
    a.out = merges ? w->part_out : out;
    a.top = merges ? w->part_top : top;
    a.mass = merges ? w->part_mass : mass;
    if (w->check_starts) a.bad = &bad;
    w->check_starts = false;
    TG_TRY((ops->attention ? ops->attention : tg_composed_attention)(w->c->ctx, &a));
    /* Positions in starts_k are numbered after those in starts_q, and here both are the same array. */
    if (bad) return tg_cp_bad_start(w, 0, (bad - 1) % w->starts.shape[0]);
    w->p->begun[i] = true;
    return merges ? merge(w, out, top, mass) : TG_OK;
}

tg_status tg_cp_attend(tg_cp_pass *w, const tg_cp_keys *keys) {
    for (int i = 0; i < w->p->blocks.count; i++)
        for (int j = 0; j < keys->count; j++)
            if (pair_is_seen(w, keys, i, j)) TG_TRY(attend_pair(w, keys, i, j));
    return TG_OK;
}

/* ---- Backward ---- */

/* Adds what a pair contributes to the gradients: to w->gq, to w->gsink, which was set to 0 or is the caller's sum, and
 * to gk and gv, the gradients of the given keys and values. seen[j] is whether block j of gk and gv has a value yet; if
 * not, the pair writes it. */
static tg_status pair_grad(tg_cp_pass *w, const tg_cp_keys *keys, int i, int j, tg_array gk, tg_array gv, bool *seen) {
    const tg_device_ops *ops = tg_ctx_ops(w->c->ctx);
    pair_layouts m;
    tg_attention_args a;
    TG_TRY(pair_args(w, keys, i, j, &m, &a));
    a.out = block_of(w, w->out, i, &m.out);
    a.top = block_of(w, w->top, i, &m.top);
    a.mass = block_of(w, w->mass, i, &m.mass);
    a.gout = block_of(w, w->gout, i, &m.gout);
    a.gq = block_of(w, w->gq, i, &m.gq);
    a.gk = block_of(w, gk, j, &m.gk);
    a.gv = block_of(w, gv, j, &m.gv);
    a.add_q = w->p->begun[i];
    a.add_k = a.add_v = seen[j];
    if (a.sink.data) a.gsink = w->gsink;
    a.add_sink = true;
    w->p->begun[i] = seen[j] = true;
    return (ops->attention_grad ? ops->attention_grad : tg_composed_attention_grad)(w->c->ctx, &a);
}

/* Sets the gradients of block j of the given keys and values to 0, because no query of this rank sees them. */
static tg_status no_grad(const tg_cp_pass *w, int j, tg_array gk, tg_array gv) {
    const tg_device_ops *ops = tg_ctx_ops(w->c->ctx);
    tg_extent ek, ev;
    TG_TRY(ops->fill(w->c->ctx, block_of(w, gk, j, &ek), 0));
    return ops->fill(w->c->ctx, block_of(w, gv, j, &ev), 0);
}

tg_status tg_cp_attend_grad(tg_cp_pass *w, const tg_cp_keys *keys, tg_array gk, tg_array gv) {
    bool *seen = w->p->begun + w->p->blocks.count;
    memset(seen, 0, (size_t)keys->count);
    for (int i = 0; i < w->p->blocks.count; i++)
        for (int j = 0; j < keys->count; j++)
            if (pair_is_seen(w, keys, i, j)) TG_TRY(pair_grad(w, keys, i, j, gk, gv, seen));
    for (int j = 0; j < keys->count; j++)
        if (!seen[j]) TG_TRY(no_grad(w, j, gk, gv));
    return TG_OK;
}

/* ---- Counting ---- */

/* Counts the two products of each pair, q k^T and that of the weights with v, and half of them if the causal mask hides
 * half of the pair. A pair that a window hides in part counts as if it did not. */
int64_t tg_cp_flops(const tg_cp_params *p, int64_t batch, int64_t sizes) {
    const tg_cp_blocks *b = &p->blocks;
    int64_t halves = 0; /* of pairs: an unhidden pair counts 2 */
    for (int i = 0; i < b->count; i++)
        for (int holder = 0; holder < p->outer; holder++)
            for (int j = 0; j < b->count; j++) {
                int query = tg_cp_block(b, p->holder, i), key = tg_cp_block(b, holder, j);
                if (sees(p, query, key)) halves += p->opts.causal && query == key ? 1 : 2;
            }
    return tg_flops(tg_flops(batch * p->heads * b->rows, b->rows * sizes), halves);
}
