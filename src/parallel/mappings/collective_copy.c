/* How data moves between the ranks of a group, and the backward functions that are such a move. */
#include "ops/common/nn_op.h"
#include "parallel/mappings/mapping.h"

tg_status tg_move(tg_call *c, tg_collective_args a) {
    if (a.src) TG_TRY(tg_op_dense(c, &a.src));
    a.site = tg_call_site(c);
    return tg_comm_start(tg_mapping_of(c)->comm, &a) ? TG_OK : tg_ctx_status(c->ctx);
}

tg_status tg_move_sum(tg_call *c, tg_tensor *dst, tg_tensor *src) {
    return tg_move(c, (tg_collective_args){.kind = TG_ALL_REDUCE, .dst = dst, .src = src, .op = TG_REDUCE_SUM});
}

/* ---- Parts and the whole ---- */

/* Chunk j of rank r's part: where it begins along the dim, in the part and in the whole, and how long it is. */
typedef struct piece {
    int64_t part, whole, size;
} piece;

static piece piece_of(const tg_mapping_params *p, int64_t size, int r, int j) {
    int64_t n = tg_comm_size(p->comm), at = r, start = 0;
    if (p->splits) {
        for (int k = 0; k < r; k++) start += p->splits[k];
        return (piece){0, start, size};
    }
    size /= tg_placement_chunks(p->shard);
    if (p->shard.layout == TG_STRIDED) at = j * n + r;
    if (p->shard.layout == TG_ZIGZAG && j) at = 2 * n - 1 - r;
    return (piece){j * size, at * size, size};
}

/* Copies rank r's part to its places in the whole along dim, or out of them. */
static tg_status copy_part(tg_call *c, tg_array part, tg_array whole, int dim, int r, bool out, bool add) {
    const tg_mapping_params *p = tg_mapping_of(c);
    for (int j = 0; j < tg_placement_chunks(p->shard); j++) {
        tg_extent ep, ew;
        piece at = piece_of(p, part.shape[dim], r, j);
        tg_array a = tg_array_slice(part, dim, at.part, at.size, 1, &ep);
        tg_array b = tg_array_slice(whole, dim, at.whole, at.size, 1, &ew);
        TG_TRY(out ? tg_op_copy(c, a, b, add) : tg_op_copy(c, b, a, add));
    }
    return TG_OK;
}

tg_status tg_move_part(tg_call *c, tg_array part, tg_array whole) {
    const tg_mapping_params *p = tg_mapping_of(c);
    return copy_part(c, part, whole, p->dim, tg_comm_rank(p->comm), true, false);
}

tg_status tg_move_place(tg_call *c, tg_array whole, tg_array part, bool add) {
    const tg_mapping_params *p = tg_mapping_of(c);
    return copy_part(c, part, whole, p->dim, tg_comm_rank(p->comm), false, add);
}

/* ---- Staging: parts by rank, where they do not lie so in the whole ---- */

static bool lies_by_rank(const tg_mapping_params *p, const tg_tensor *x, int dim) {
    int64_t before = 1;
    for (int d = 0; d < dim; d++) before *= x->shape[d];
    return before <= 1 && tg_placement_chunks(p->shard) == 1;
}

static tg_tensor *staging(tg_call *c, const tg_tensor *like) {
    return tg_call_temp(c, (tg_dtype)like->dtype, 1, &like->numel);
}

/* Between the parts in stage and the whole. */
static tg_status copy_parts(tg_call *c, const tg_tensor *stage, const tg_tensor *whole, int dim, bool out) {
    const tg_mapping_params *p = tg_mapping_of(c);
    int n = tg_comm_size(p->comm);
    int64_t numel = stage->numel / n;
    tg_extent e;
    memcpy(e.shape, whole->shape, whole->ndim * sizeof *e.shape);
    e.shape[dim] /= n;
    tg_row_major(whole->ndim, e.shape, e.stride);
    for (int r = 0; r < n; r++) {
        char *data = tg_data(stage);
        if (data) data += r * numel * (int64_t)tg_dtype_size((tg_dtype)stage->dtype);
        tg_array part = {data, e.shape, e.stride, numel, whole->ndim, stage->dtype, true};
        TG_TRY(copy_part(c, part, tg_array_of(whole), dim, r, out, false));
    }
    return TG_OK;
}

tg_status tg_move_gather(tg_call *c, tg_tensor *dst, tg_tensor *src) {
    const tg_mapping_params *p = tg_mapping_of(c);
    bool direct = lies_by_rank(p, dst, p->dim);
    tg_tensor *to = direct ? dst : staging(c, dst);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_move(c, (tg_collective_args){.kind = TG_ALL_GATHER, .dst = to, .src = src, .recv = p->counts}));
    if (direct) return TG_OK;
    TG_TRY(tg_storage_need(to->storage, to));
    return copy_parts(c, to, dst, p->dim, false);
}

tg_status tg_move_reduce_scatter(tg_call *c, tg_tensor *dst, tg_tensor *src) {
    const tg_mapping_params *p = tg_mapping_of(c);
    if (!lies_by_rank(p, src, p->dim)) {
        tg_tensor *stage = staging(c, src);
        TG_TRY(tg_ctx_status(c->ctx));
        TG_TRY(copy_parts(c, stage, src, p->dim, true));
        src = stage;
    }
    return tg_move(c, (tg_collective_args){.kind = TG_REDUCE_SCATTER, .dst = dst, .src = src, .send = p->counts});
}

tg_status tg_move_exchange(tg_call *c, tg_tensor *dst, tg_tensor *src, int join, int cut) {
    const tg_mapping_params *p = tg_mapping_of(c);
    bool direct = lies_by_rank(p, dst, join);
    if (!lies_by_rank(p, src, cut)) {
        tg_tensor *stage = staging(c, src);
        TG_TRY(tg_ctx_status(c->ctx));
        TG_TRY(copy_parts(c, stage, src, cut, true));
        src = stage;
    }
    tg_tensor *to = direct ? dst : staging(c, dst);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_move(c, (tg_collective_args){.kind = TG_ALL_TO_ALL, .dst = to, .src = src}));
    if (direct) return TG_OK;
    TG_TRY(tg_storage_need(to->storage, to));
    return copy_parts(c, to, dst, join, false);
}

/* ---- backward ---- */

tg_tensor *tg_mapping_gradient(tg_call *c) {
    const tg_tensor *x = c->in[0];
    return tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, x->shape);
}

tg_status tg_mapping_give(tg_call *c, tg_tensor *g) {
    TG_TRY(tg_ctx_status(c->ctx));
    return g->storage->state == TG_IN_FLIGHT ? tg_call_in_flight(c, 0, g, NULL) : tg_call_pass(c, 0, g);
}

tg_status tg_mapping_pass(tg_call *c) { return tg_call_pass(c, 0, c->gout[0]); }

typedef tg_status (*move_fn)(tg_call *c, tg_tensor *dst, tg_tensor *src);

static tg_status give_moved(tg_call *c, move_fn move) {
    tg_tensor *g = tg_mapping_gradient(c);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(move(c, g, c->gout[0]));
    return tg_mapping_give(c, g);
}

tg_status tg_mapping_sum(tg_call *c) { return give_moved(c, tg_move_sum); }
tg_status tg_mapping_gather(tg_call *c) { return give_moved(c, tg_move_gather); }
tg_status tg_mapping_reduce_scatter(tg_call *c) { return give_moved(c, tg_move_reduce_scatter); }

tg_status tg_mapping_own(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    tg_tensor *g = c->gout[0], *x = c->in[0];
    piece at = piece_of(p, x->shape[p->dim], tg_comm_rank(p->comm), 0);
    if (tg_placement_chunks(p->shard) == 1)
        return tg_op_pass_view(c, 0, g, at.whole * g->stride[p->dim], x->ndim, x->shape, g->stride);
    tg_tensor *own = tg_mapping_gradient(c);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_move_part(c, tg_array_of(own), tg_array_of(g)));
    return tg_mapping_give(c, own);
}

tg_status tg_mapping_unown(tg_call *c) {
    if (c->gin_mode[0] == TG_GRAD_NONE) return TG_OK;
    TG_TRY(tg_op_zero(c, 0));
    tg_tensor *g = tg_call_gin(c, 0);
    TG_TRY(tg_ctx_status(c->ctx));
    return tg_move_place(c, tg_array_of(g), tg_array_of(c->gout[0]), c->gin_mode[0] == TG_GRAD_ADD);
}
