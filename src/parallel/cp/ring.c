/* The ring: in step i a holder computes with the keys and values of the holder i places before it. Meanwhile it sends
 * them to the next holder, and receives those for its next step. Two buffers of keys and values are enough. In backward
 * the gradients of these keys and values follow one step later: a holder computes its addend while the sum of the
 * earlier holders arrives, adds both, and sends the sum on. After one more message the sum has reached the holder of
 * the keys. */
#include "parallel/cp/cp.h"

/* Starts sending src to the next holder, and receiving dst from the holder before. */
static tg_status pass_on(const tg_cp_pass *w, const tg_cp_buffer *dst, const tg_cp_buffer *src) {
    tg_collective_args a = {
        .kind = TG_ALL_TO_ALL, .dst = dst->x, .src = src->x, .send = w->p->ring_send, .recv = w->p->ring_recv};
    return tg_collective_start(w->c, w->p->comm, a);
}

/* Returns the number of rows of this holder. */
static int64_t own_rows(const tg_cp_pass *w) { return w->p->blocks.count * w->p->blocks.rows; }

/* Returns the keys of step i in b, or this rank's own in step 0. */
static tg_cp_keys keys_of_step(const tg_cp_pass *w, tg_cp_buffer *b, int i) {
    if (i == 0) return tg_cp_own_keys(w);
    tg_cp_keys keys = tg_cp_keys_in(w, b, own_rows(w));
    keys.holder = (w->p->holder - i + w->p->outer) % w->p->outer;
    return keys;
}

/* Makes the two buffers of keys and values, and packs this rank's own into the first. Does nothing if the ring has one
 * holder. */
static tg_status open_buffers(tg_cp_pass *w, tg_cp_buffer b[2]) {
    if (w->p->outer == 1) return TG_OK;
    for (int i = 0; i < 2; i++) b[i] = tg_cp_buffer_new(w, (tg_dtype)w->k.dtype, own_rows(w));
    TG_TRY(tg_ctx_status(w->c->ctx));
    return tg_cp_pack(w, &b[0], 0, own_rows(w));
}

tg_status tg_cp_ring(tg_cp_pass *w) {
    int steps = w->p->outer;
    tg_cp_buffer b[2] = {{0}};
    TG_TRY(open_buffers(w, b));
    for (int i = 0; i < steps; i++) {
        tg_cp_buffer *here = &b[i % 2], *next = &b[(i + 1) % 2];
        tg_cp_keys keys = keys_of_step(w, here, i);
        if (i + 1 < steps) TG_TRY(pass_on(w, next, here));
        TG_TRY(tg_cp_attend(w, &keys));
        if (i + 1 < steps) TG_TRY(tg_storage_need(next->x->storage, next->x));
    }
    return TG_OK;
}

/* Computes this rank's addend of the gradients of the keys of step i, in g. */
static tg_status step_grad(tg_cp_pass *w, tg_cp_buffer *here, tg_cp_buffer *g, int i) {
    tg_cp_keys keys = keys_of_step(w, here, i), grads = tg_cp_keys_in(w, g, own_rows(w));
    TG_TRY(tg_storage_may_change(g->x)); /* the message with an earlier addend may not have been sent yet */
    return tg_cp_attend_grad(w, &keys, grads.k, grads.v);
}

/* Adds the sum that has arrived to this rank's addend. */
static tg_status add_arrived(const tg_cp_pass *w, const tg_cp_buffer *own, const tg_cp_buffer *arrived) {
    TG_TRY(tg_storage_need(arrived->x->storage, arrived->x));
    return tg_op_map(w->c, TG_FN_id, own->x, TG_T1(arrived->x), 1, 0, 0, true);
}

tg_status tg_cp_ring_grad(tg_cp_pass *w) {
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)w->k.dtype);
    int steps = w->p->outer;
    tg_cp_buffer b[2] = {{0}}, g[2], sum = {0};
    for (int i = 0; i < 2 && i < steps; i++) g[i] = tg_cp_buffer_new(w, wide, own_rows(w));
    if (steps > 1) sum = tg_cp_buffer_new(w, wide, own_rows(w));
    TG_TRY(tg_ctx_status(w->c->ctx));
    TG_TRY(open_buffers(w, b));
    for (int i = 0; i < steps; i++) {
        tg_cp_buffer *here = &b[i % 2], *next = &b[(i + 1) % 2];
        if (i + 1 < steps) TG_TRY(pass_on(w, next, here));
        TG_TRY(step_grad(w, here, &g[i % 2], i));
        if (i > 0) TG_TRY(add_arrived(w, &g[i % 2], &sum));
        if (steps > 1) TG_TRY(pass_on(w, &sum, &g[i % 2]));
        if (i + 1 < steps) TG_TRY(tg_storage_need(next->x->storage, next->x));
    }
    if (steps == 1) return tg_cp_unpack(w, &g[0], 0, own_rows(w));
    TG_TRY(tg_storage_need(sum.x->storage, sum.x));
    return tg_cp_unpack(w, &sum, 0, own_rows(w));
}
