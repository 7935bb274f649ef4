/* Rings of chunks; see linear_ring.h. In step k of a gather a rank has the rows of the rank k places before it, and
 * passes them on, except in the last step. In step k of a sum it computes its addend for the rank k + 1 places before
 * it, adds the sum of the ranks that come earlier, and passes that on, so that the last step gives its own rows. */
#include "parallel/tp/linear_ring.h"

/* Starts sending src to the next rank, and receiving dst from the rank before. Both have the elements of one chunk. */
static tg_status pass_on(const tg_ring_work *w, tg_tensor *dst, tg_tensor *src) {
    const tg_linear_params *p = w->p;
    tg_comm_start(p->comm, &(tg_collective_args){.kind = TG_ALL_TO_ALL,
                                                 .dst = dst,
                                                 .src = src,
                                                 .send = p->ring_send,
                                                 .recv = p->ring_recv,
                                                 .site = tg_call_site(w->c)});
    return w->c->ctx->run.status;
}

tg_tensor *tg_ring_rows(const tg_ring_work *w, tg_tensor *x, int64_t first, int64_t n) {
    int64_t shape[TG_MAX_DIMS];
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[0] = n;
    return tg_call_view_of(w->c, x, first * x->stride[0], x->ndim, shape, x->stride);
}

tg_status tg_ring_put(const tg_ring_work *w, tg_tensor *rows, int64_t first) {
    tg_tensor *to = tg_ring_rows(w, w->out, first, rows->shape[0]);
    TG_TRY(w->c->ctx->run.status);
    return tg_op_copy(w->c, tg_array_of(to), tg_array_of(rows), w->add);
}

/* Returns a temporary for one chunk of rows like those of x. */
static tg_tensor *chunk_like(const tg_ring_work *w, tg_dtype dtype, const tg_tensor *x) {
    int64_t shape[TG_MAX_DIMS];
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[0] /= w->p->chunks;
    return tg_call_temp(w->c, dtype, x->ndim, shape);
}

/* Step k for chunk j, which is, or will be, in `here`: passes it on, unless all ranks have had it, and calls fn. `next`
 * receives the chunk of the next step. */
static tg_status gather_step(tg_ring_work *w, int k, tg_tensor *here, tg_tensor *next, int j, int64_t own_rows,
                             tg_ring_chunk_fn fn) {
    int n = tg_comm_size(w->p->comm), holder = (tg_comm_rank(w->p->comm) - k + n) % n;
    TG_TRY(tg_storage_need(here->storage, here));
    if (k + 1 < n) {
        TG_TRY(tg_storage_may_change(next));
        TG_TRY(pass_on(w, next, here));
    }
    return fn(w, here, holder * own_rows + j * here->shape[0]);
}

tg_status tg_ring_gather(tg_ring_work *w, tg_tensor *own, tg_ring_chunk_fn fn) {
    tg_tensor *b[2][TG_MOST_CHUNKS];
    int n = tg_comm_size(w->p->comm), chunks = w->p->chunks;
    int64_t rows = own->shape[0];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < chunks; j++) b[i][j] = chunk_like(w, (tg_dtype)own->dtype, own);
    TG_TRY(w->c->ctx->run.status);
    for (int k = 0; k < n; k++)
        for (int j = 0; j < chunks; j++) {
            tg_tensor *here = k ? b[k % 2][j] : tg_ring_rows(w, own, j * (rows / chunks), rows / chunks);
            TG_TRY(w->c->ctx->run.status);
            TG_TRY(gather_step(w, k, here, b[(k + 1) % 2][j], j, rows, fn));
        }
    return TG_OK;
}

/* Computes this rank's addend of chunk j of the rows of rank `to`, in `part`. */
static tg_status addend(tg_ring_work *w, tg_tensor *part, int to, int j, int64_t own_rows, tg_ring_chunk_fn make) {
    TG_TRY(tg_storage_may_change(part)); /* the message with an earlier sum may not have been sent yet */
    return make(w, part, to * own_rows + j * part->shape[0]);
}

/* Adds the sum that has arrived to this rank's addend. */
static tg_status add_arrived(tg_ring_work *w, tg_tensor *part, tg_tensor *arrived) {
    TG_TRY(tg_storage_need(arrived->storage, arrived));
    return tg_op_map(w->c, TG_FN_id, part, TG_T1(arrived), 1, 0, 0, true);
}

tg_status tg_ring_scatter(tg_ring_work *w, const tg_tensor *like, tg_ring_chunk_fn make, tg_ring_chunk_fn take) {
    tg_tensor *part[2][TG_MOST_CHUNKS], *sum[TG_MOST_CHUNKS];
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)like->dtype);
    int n = tg_comm_size(w->p->comm), chunks = w->p->chunks;
    int64_t rows = like->shape[0];
    for (int j = 0; j < chunks; j++) {
        for (int i = 0; i < 2; i++) part[i][j] = chunk_like(w, wide, like);
        sum[j] = chunk_like(w, wide, like);
    }
    TG_TRY(w->c->ctx->run.status);
    for (int k = 0; k < n; k++)
        for (int j = 0; j < chunks; j++) {
            int to = (tg_comm_rank(w->p->comm) - 1 - k + 2 * n) % n;
            TG_TRY(addend(w, part[k % 2][j], to, j, rows, make));
            if (k) TG_TRY(add_arrived(w, part[k % 2][j], sum[j]));
            TG_TRY(k + 1 < n ? pass_on(w, sum[j], part[k % 2][j]) : take(w, part[k % 2][j], j * (rows / chunks)));
        }
    return TG_OK;
}
