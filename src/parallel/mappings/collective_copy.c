/* Collectives of mappings, and copies of one rank's part. If the parts of the ranks do not lie one after the other in
 * memory, a collective copies the data to or from a staging buffer. The functions take a call only because it owns the
 * staging buffers and has the call site; they do not read its op or its params. */
#include "ops/common/nn_op.h"
#include "parallel/mappings/mapping.h"
#include "placement/placing.h"

tg_status tg_collective_start(tg_call *c, tg_comm *comm, tg_collective_args a) {
    if (a.src) TG_TRY(tg_op_dense(c, &a.src));
    a.site = tg_call_site(c);
    return tg_comm_start(comm, &a) ? TG_OK : tg_ctx_status(c->ctx);
}

tg_status tg_collective_copy_sum(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src) {
    tg_collective_args a = {.kind = TG_ALL_REDUCE, .dst = dst, .src = src, .op = TG_REDUCE_SUM};
    return tg_collective_start(c, p->comm, a);
}

/* ---- Parts and the whole ---- */

tg_piece tg_mapping_piece(const tg_mapping_params *p, int64_t size, int r, int j) {
    int64_t start = 0;
    if (p->splits) {
        for (int k = 0; k < r; k++) start += p->splits[k];
        return (tg_piece){0, start, size};
    }
    size /= tg_placement_chunks(p->shard);
    return (tg_piece){j * size, tg_placement_chunk(p->shard, j, r, tg_comm_size(p->comm)) * size, size};
}

/* Copies the chunks of rank r's part to their places along dim in the whole tensor or, if `out`, from there to the
 * part. add: adds instead of copying. */
static tg_status copy_part(tg_call *c, const tg_mapping_params *p, tg_array part, tg_array whole, int dim, int r,
                           bool out, bool add) {
    for (int j = 0; j < tg_placement_chunks(p->shard); j++) {
        tg_extent ep, ew;
        tg_piece at = tg_mapping_piece(p, part.shape[dim], r, j);
        tg_array a = tg_array_slice(part, dim, at.part, at.size, 1, &ep);
        tg_array b = tg_array_slice(whole, dim, at.whole, at.size, 1, &ew);
        TG_TRY(out ? tg_op_copy(c, a, b, add) : tg_op_copy(c, b, a, add));
    }
    return TG_OK;
}

tg_status tg_collective_copy_part(tg_call *c, const tg_mapping_params *p, tg_array part, tg_array whole) {
    return copy_part(c, p, part, whole, p->dim, tg_comm_rank(p->comm), true, false);
}

tg_status tg_collective_copy_place(tg_call *c, const tg_mapping_params *p, tg_array whole, tg_array part, bool add) {
    return copy_part(c, p, part, whole, p->dim, tg_comm_rank(p->comm), false, add);
}

/* ---- Staging buffers: the parts rank by rank ---- */

/* Returns whether the parts of x along dim lie one after the other in memory, so that x needs no staging buffer. */
static bool is_by_rank(const tg_mapping_params *p, const tg_tensor *x, int dim) {
    int64_t before = 1;
    for (int d = 0; d < dim; d++) before *= x->shape[d];
    return before <= 1 && tg_placement_chunks(p->shard) == 1;
}

static tg_tensor *staging(tg_call *c, const tg_tensor *like) {
    return tg_call_temp(c, (tg_dtype)like->dtype, 1, &like->numel);
}

/* Copies all parts from the staging buffer to the whole tensor or, if `out`, from there to the staging buffer. */
static tg_status copy_parts(tg_call *c, const tg_mapping_params *p, const tg_tensor *stage, const tg_tensor *whole,
                            int dim, bool out) {
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
        TG_TRY(copy_part(c, p, part, tg_array_of(whole), dim, r, out, false));
    }
    return TG_OK;
}

tg_status tg_collective_copy_gather(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src) {
    bool direct = is_by_rank(p, dst, p->dim);
    tg_tensor *to = direct ? dst : staging(c, dst);
    TG_TRY(tg_ctx_status(c->ctx));
    tg_collective_args a = {.kind = TG_ALL_GATHER, .dst = to, .src = src, .recv = p->counts};
    TG_TRY(tg_collective_start(c, p->comm, a));
    if (direct) return TG_OK;
    TG_TRY(tg_storage_need(to->storage, to));
    return copy_parts(c, p, to, dst, p->dim, false);
}

tg_status tg_collective_copy_reduce_scatter(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src) {
    if (!is_by_rank(p, src, p->dim)) {
        tg_tensor *stage = staging(c, src);
        TG_TRY(tg_ctx_status(c->ctx));
        TG_TRY(copy_parts(c, p, stage, src, p->dim, true));
        src = stage;
    }
    tg_collective_args a = {.kind = TG_REDUCE_SCATTER, .dst = dst, .src = src, .send = p->counts};
    return tg_collective_start(c, p->comm, a);
}

tg_status tg_collective_copy_exchange(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src, int join,
                                      int cut) {
    bool direct = is_by_rank(p, dst, join);
    if (!is_by_rank(p, src, cut)) {
        tg_tensor *stage = staging(c, src);
        TG_TRY(tg_ctx_status(c->ctx));
        TG_TRY(copy_parts(c, p, stage, src, cut, true));
        src = stage;
    }
    tg_tensor *to = direct ? dst : staging(c, dst);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_collective_start(c, p->comm, (tg_collective_args){.kind = TG_ALL_TO_ALL, .dst = to, .src = src}));
    if (direct) return TG_OK;
    TG_TRY(tg_storage_need(to->storage, to));
    return copy_parts(c, p, to, dst, join, false);
}
