/* Keys and values as they travel between ranks: in one buffer, so that one message has both. */
#include "parallel/cp/cp.h"

int64_t tg_cp_elements(const tg_cp_pass *w, int64_t rows) {
    return w->q.shape[0] * w->p->groups * rows * (w->k.shape[3] + w->v.shape[3]);
}

static tg_array array_in(const tg_cp_pass *w, const tg_cp_buffer *b, int64_t offset, int64_t rows, int64_t size,
                         tg_extent *e) {
    const int64_t shape[] = {w->q.shape[0], w->p->groups, rows, size};
    memcpy(e->shape, shape, sizeof shape);
    tg_row_major(4, e->shape, e->stride);
    return tg_array_at(tg_array_of(b->x), b->offset + offset, 4, e->shape, e->stride);
}

tg_cp_keys tg_cp_keys_in(const tg_cp_pass *w, tg_cp_buffer *b, int64_t rows) {
    int64_t keys = w->q.shape[0] * w->p->groups * rows * w->k.shape[3], of_block = w->p->blocks.rows;
    return (tg_cp_keys){.k = array_in(w, b, 0, rows, w->k.shape[3], &b->k),
                        .v = array_in(w, b, keys, rows, w->v.shape[3], &b->v),
                        .count = of_block ? (int)(rows / of_block) : 0}; /* 0: the sequence is empty */
}

tg_cp_buffer tg_cp_buffer_new(const tg_cp_pass *w, tg_dtype dtype, int64_t rows) {
    int64_t n = tg_cp_elements(w, rows);
    return (tg_cp_buffer){.x = tg_call_temp(w->c, dtype, 1, &n)};
}

tg_cp_keys tg_cp_own_keys(const tg_cp_pass *w) {
    return (tg_cp_keys){.k = w->k, .v = w->v, .holder = w->p->holder, .count = w->p->blocks.count};
}

tg_status tg_cp_pack(tg_cp_pass *w, tg_cp_buffer *b, int64_t from, int64_t rows) {
    tg_extent k, v;
    tg_cp_keys to = tg_cp_keys_in(w, b, rows);
    TG_TRY(tg_op_copy(w->c, to.k, tg_array_slice(w->k, 2, from, rows, 1, &k), false));
    return tg_op_copy(w->c, to.v, tg_array_slice(w->v, 2, from, rows, 1, &v), false);
}

tg_status tg_cp_unpack(tg_cp_pass *w, tg_cp_buffer *b, int64_t from, int64_t rows) {
    tg_extent k, v;
    tg_cp_keys g = tg_cp_keys_in(w, b, rows);
    if (w->gk.data) TG_TRY(tg_op_copy(w->c, tg_array_slice(w->gk, 2, from, rows, 1, &k), g.k, w->add_k));
    return w->gv.data ? tg_op_copy(w->c, tg_array_slice(w->gv, 2, from, rows, 1, &v), g.v, w->add_v) : TG_OK;
}
