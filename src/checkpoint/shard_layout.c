/* Where a rank's part lies in the global tensor: the ranks that have the same part, the block that it is, and copies
 * between a part and the global tensor. */
#include <tapegrad/parallel.h>

#include "kernels/scalar.h"
#include "checkpoint/shards.h"

/* A tensor that has a placement on an axis of the expert grid belongs to an expert layer. Its replicas are counted on
 * that grid. */
int tg_shard_replica(const tg_parallel *p, const tg_tensor *x) {
    static const tg_axis dense[] = {TG_TP, TG_CP, TG_DP}, experts[] = {TG_ETP, TG_EP, TG_EDP};
    const tg_placements *q = tg_place_of(x);
    bool expert = tg_place_is_expert(q);
    int replica = x->ext && x->ext->shared ? tg_comm_rank(x->ext->shared) : 0;
    for (int i = 0; i < 3; i++) {
        tg_axis a = expert ? experts[i] : dense[i];
        if (q && tg_placement_shards(q->at[a])) continue;
        replica = replica * tg_parallel_size(p, a) + tg_parallel_rank(p, a);
    }
    return replica;
}

/* ---- Blocks ---- */

tg_shape tg_shard_whole_shape(const tg_shard_item *i) {
    tg_shape g = tg_shard_global(i->like), s = {.ndim = i->front.n + g.ndim};
    if (i->rows != TG_NONE) g.dim[0] = i->rows;
    memcpy(s.dim, i->front.size, (size_t)i->front.n * sizeof *s.dim);
    memcpy(s.dim + i->front.n, g.dim, (size_t)g.ndim * sizeof *s.dim);
    return s;
}

/* Adds dim d of this rank's part of x to b, as dim `to`, up to index `limit` of the global tensor. b NULL: adds
 * nothing. Returns the number of spans. */
static int add_dim(const tg_tensor *x, int d, int64_t limit, tg_block *b, int to) {
    int n = 0;
    for (int64_t i = 0, run; i < x->shape[d]; i += run, n++) {
        int64_t first = tg_shard_index(x, d, tg_grid_of(x->ctx)->rank, i, &run);
        int64_t left = limit - first;
        if (b && left > 0) tg_block_add(b, to, first, run < left ? run : left);
    }
    return n;
}

tg_status tg_shard_block(const tg_shard_item *i, tg_block *out) {
    const tg_tensor *x = i->like;
    tg_shape whole = tg_shard_whole_shape(i);
    int f = i->front.n, spans = (int)whole.ndim;
    for (int d = 0; d < x->ndim; d++) spans += add_dim(x, d, 0, NULL, 0);
    TG_TRY(tg_block_open(x->ctx, out, (int)whole.ndim, spans));
    for (int d = 0; d < f; d++) tg_block_add(out, d, i->front.at[d], 1);
    for (int d = 0; d < x->ndim; d++) {
        tg_block_add(out, f + d, 0, 0);
        add_dim(x, d, whole.dim[f + d], out, f + d);
    }
    tg_block_close(out);
    if (!i->range) return TG_OK;
    if (i->end < out->end) out->end = i->end;
    out->begin = i->begin < out->end ? i->begin : out->end;
    return TG_OK;
}

/* ---- Copies ---- */

/* State of tg_shard_copy: its arguments, and the shape of the current copy. */
typedef struct mover {
    const tg_tensor *x;
    const int *at;
    tg_tensor *whole, *part;
    bool to_whole;
    int64_t shape[TG_MAX_DIMS]; /* shape of the piece that one copy moves */
} mover;

/* Returns the piece of shape m->shape at an element offset of t. */
static tg_array piece(const mover *m, const tg_tensor *t, int64_t offset) {
    tg_array a = tg_array_of(t);
    a.data = (char *)a.data + (size_t)offset * tg_dtype_size(t->dtype);
    a.shape = m->shape;
    a.numel = 1;
    for (int d = 0; d < t->ndim; d++) a.numel *= m->shape[d];
    a.contiguous = false;
    return a;
}

/* Copies the elements of all indices of dims d, d + 1, ... `whole` and `part` are the element offsets in the two
 * tensors that the current indices of the dims before d give. */
static tg_status move_from(mover *m, int d, int64_t whole, int64_t part) {
    const double none[2] = {0, 0};
    if (d == m->x->ndim) {
        tg_array w = piece(m, m->whole, whole), p = piece(m, m->part, part);
        const tg_device_ops *ops = m->x->ctx->run.ops;
        return ops->apply(m->x->ctx, TG_FN_id, m->to_whole ? w : p, m->to_whole ? &p : &w, 1, none, false);
    }
    for (int64_t i = 0, run; i < m->x->shape[d]; i += run) {
        int64_t j = tg_shard_index(m->x, d, m->at, i, &run);
        m->shape[d] = run;
        TG_TRY(move_from(m, d + 1, whole + j * m->whole->stride[d], part + i * m->part->stride[d]));
    }
    return TG_OK;
}

tg_status tg_shard_copy(const tg_tensor *x, const int at[TG_MAX_AXES], tg_tensor *whole, tg_tensor *part,
                        bool to_whole) {
    mover m = {.x = x, .at = at, .whole = whole, .part = part, .to_whole = to_whole};
    if (!part->numel) return TG_OK;
    return move_from(&m, 0, 0, 0);
}
