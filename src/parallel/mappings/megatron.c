/* Functions of Megatron-Core's tensor_parallel that are not ops of their own: splits of the last dim and of flattened
 * tensors, ranges of a vocabulary (utils.py), and the attributes that Megatron-Core stores in a parameter
 * (layers.py). */
#include "parallel/mappings/mapping.h"

#include <tapegrad/megatron.h>

/* ---- The last dim in equal parts ---- */

static tg_status split_last_dim(tg_tape *t, tg_tensor *x, int n, bool contiguous, tg_tensor **out) {
    char what[160];
    TG_TRY(tg_tape_check_with(t, &x, 1, "tg_split_last_dim"));
    TG_TRY(tg_check(t->ctx, x, "tg_split_last_dim"));
    int64_t size = x->ndim ? x->shape[x->ndim - 1] : 0;
    tg_describe(x, what, sizeof what);
    if (n < 1 || !out)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_split_last_dim: n is %d for %s and out is %p, expected 1 or more parts and an array of n", n,
                       what, (void *)out);
    if (!x->ndim || size % n)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "tg_split_last_dim: the last dim of %s must be a multiple of n = %d", what,
                       n);
    int64_t *sizes = tg_tape_alloc(t, (size_t)n * sizeof *sizes);
    if (!sizes) return t->ctx->run.status;
    for (int i = 0; i < n; i++) sizes[i] = size / n;
    TG_TRY(tg_split(t, x, -1, sizes, n, out));
    for (int i = 0; contiguous && i < n; i++) out[i] = tg_contiguous(t, out[i]);
    return t->ctx->run.status;
}

tg_status tg_split_last_dim(tg_tape *t, tg_tensor *x, int n, bool contiguous, tg_tensor **out) {
    tg_status s = split_last_dim(t, x, n, contiguous, out);
    for (int i = 0; s != TG_OK && out && i < n; i++) out[i] = tg_tape_inert(t, &x, 1);
    return s;
}

/* ---- Parts of a flattened tensor ---- */

/* Returns the sizes of the n parts of a tensor of numel elements. Returns NULL if they are equal, or after recording an
 * error. */
static const int64_t *flat_parts(tg_tape *t, int64_t numel, int n) {
    int64_t each = numel / n + 1;
    if (numel % n == 0) return NULL;
    int64_t *parts = tg_tape_alloc(t, (size_t)n * sizeof *parts);
    for (int r = 0; parts && r < n; r++) {
        int64_t left = numel - r * each;
        parts[r] = left < 0 ? 0 : left < each ? left : each;
    }
    return parts;
}

/* Returns this rank's part of the elements of x, in row-major order. x is the same on every rank. The parts have
 * numel / n elements, rounded up; the last ones may be shorter. Backward gathers. */
tg_tensor *tg_split_1d(tg_tape *t, tg_tensor *x, tg_comm *c) {
    tg_tensor *flat = tg_reshape(t, x, TG_SHAPE(-1));
    tg_mapping_params p = {.comm = c};
    if (tg_is_alive(flat)) p.splits = flat_parts(t, flat->numel, tg_comm_size(c));
    return tg_mapping_record(t, &tg_op_scatter_to, &p, flat, TG_SITE);
}

/* Fails if numel is negative, or if x, a tensor that the op will accept, cannot be an equal part of numel elements. The
 * op itself checks parts that are not equal. */
static tg_status check_part(const tg_tape *t, const tg_tensor *x, int64_t numel, const tg_comm *c) {
    int n = tg_comm_size(c);
    if (numel < 0)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_gather_1d: numel is %lld, expected 0 or more", (long long)numel);
    bool accepted = tg_comm_ctx(c) == t->ctx && tg_may_return(t, x);
    if (!accepted || numel % n || x->numel == numel / n) return TG_OK;
    return tg_fail(t->ctx, TG_ERR_SHAPE, "tg_gather_1d: x has %s, expected %lld, a part of numel = %lld for %d ranks",
                   tg_count(x->numel, "element").text, (long long)(numel / n), (long long)numel, n);
}

/* Joins the parts into which tg_split_1d cut numel elements. The result is a vector, the same on every rank. An equal
 * part may have any shape; its elements count in row-major order. */
tg_tensor *tg_gather_1d(tg_tape *t, tg_tensor *x, int64_t numel, tg_comm *c) {
    tg_mapping_params p = {.comm = c};
    if (t && tg_ok(t->ctx) && tg_comm_note_missed(c, check_part(t, x, numel, c)) != TG_OK) return tg_inert(t->ctx);
    if (t && tg_is_alive(x)) p.splits = flat_parts(t, numel, tg_comm_size(c));
    if (!p.splits && tg_may_return(t, x) && x->ndim != 1) x = tg_reshape(t, x, TG_SHAPE(x->numel));
    return tg_mapping_record(t, &tg_op_gather_from, &p, x, TG_SITE);
}

/* ---- Vocabulary ---- */

tg_status tg_vocab_range(tg_ctx *ctx, int64_t vocab, int rank, int n, int64_t *first, int64_t *last) {
    if (!tg_ok(ctx)) return ctx ? tg_ctx_status(ctx) : TG_ERR_ARGUMENT;
    if (n < 1 || rank < 0 || rank >= n || vocab < 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_vocab_range: rank is %d, n %d and vocab %lld, expected 0 <= rank < n and vocab 0 or more",
                       rank, n, (long long)vocab);
    if (vocab % n)
        return tg_fail(ctx, TG_ERR_SHAPE, "tg_vocab_range: vocab is %lld, expected a multiple of the %d ranks; pad it",
                       (long long)vocab, n);
    if (first) *first = vocab / n * rank;
    if (last) *last = vocab / n * (rank + 1);
    return TG_OK;
}

/* ---- Attributes of a parameter, derived from its placements ---- */

/* Returns the placement of x on the axis of tensor parallelism that shards it, and sets *axis: tp, or etp for an
 * expert. Returns NULL if neither axis shards x, or x is not alive. */
static const tg_placement *shard_of(const tg_tensor *x, tg_axis *axis) {
    const tg_placements *p = tg_is_alive(x) ? tg_place_of(x) : NULL;
    for (int i = 0; p && i < 2; i++) {
        *axis = i ? TG_ETP : TG_TP;
        if (tg_placement_shards(p->at[*axis])) return &p->at[*axis];
    }
    return NULL;
}

bool tg_tp_attributes(const tg_tensor *x, int *dim, int *stride) {
    tg_axis axis;
    const tg_placement *at = shard_of(x, &axis);
    if (dim) *dim = at ? at->dim : -1;
    if (stride) *stride = at && at->layout == TG_STRIDED ? at->chunks : 1;
    return at != NULL;
}

bool tg_is_tp_duplicate(const tg_parallel *p, const tg_tensor *x) {
    if (!p || !tg_is_alive(x) || tg_tp_attributes(x, NULL, NULL)) return false;
    return tg_parallel_rank(p, tg_place_is_expert(tg_place_of(x)) ? TG_ETP : TG_TP) > 0;
}
