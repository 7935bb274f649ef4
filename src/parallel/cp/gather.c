/* Gathered keys and values: each rank gets the early blocks of all ranks, and then the late blocks. Queries see the
 * early ones while the late ones arrive. In backward the gradients of the early ones are summed over the ranks while
 * those of the late ones are computed. */
#include "parallel/cp/cp.h"

/* Returns the keys of one block of a rank in a buffer that has those of all ranks. half: 0 early, 1 late. */
static tg_cp_keys keys_of(const tg_cp_pass *w, tg_cp_buffer *all, int rank, int half) {
    all->offset = rank * tg_cp_elements(w, w->p->blocks.rows);
    tg_cp_keys keys = tg_cp_keys_in(w, all, w->p->blocks.rows);
    keys.holder = rank;
    keys.first = half;
    return keys;
}

tg_status tg_cp_gather(tg_cp_pass *w, tg_tensor *const half[2]) {
    int64_t rows = w->p->blocks.rows;
    for (int h = 0; h < 2; h++) {
        tg_cp_buffer own = tg_cp_buffer_new(w, (tg_dtype)w->k.dtype, rows);
        TG_TRY(tg_ctx_status(w->c->ctx));
        TG_TRY(tg_cp_pack(w, &own, h * rows, rows));
        TG_TRY(tg_collective_start(w->c, w->p->comm,
                                   (tg_collective_args){.kind = TG_ALL_GATHER, .dst = half[h], .src = own.x}));
    }
    for (int h = 0; h < 2; h++) {
        tg_cp_buffer all = {.x = half[h]};
        TG_TRY(tg_storage_need(half[h]->storage, half[h]));
        for (int rank = 0; rank < w->p->outer; rank++) {
            tg_cp_keys keys = keys_of(w, &all, rank, h);
            TG_TRY(tg_cp_attend(w, &keys));
        }
    }
    return TG_OK;
}

/* Computes this rank's addends of the gradients of one half of all keys, and starts their sum in *own. */
static tg_status half_grad(tg_cp_pass *w, tg_tensor *half, int h, tg_cp_buffer *own) {
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)w->k.dtype);
    tg_cp_buffer all = {.x = half}, g = tg_cp_buffer_new(w, wide, w->p->outer * w->p->blocks.rows);
    *own = tg_cp_buffer_new(w, wide, w->p->blocks.rows);
    TG_TRY(tg_ctx_status(w->c->ctx));
    for (int rank = 0; rank < w->p->outer; rank++) {
        tg_cp_keys keys = keys_of(w, &all, rank, h), grads = keys_of(w, &g, rank, h);
        TG_TRY(tg_cp_attend_grad(w, &keys, grads.k, grads.v));
    }
    tg_collective_args a = {.kind = TG_REDUCE_SCATTER, .dst = own->x, .src = g.x, .op = TG_REDUCE_SUM};
    return tg_collective_start(w->c, w->p->comm, a);
}

tg_status tg_cp_gather_grad(tg_cp_pass *w, tg_tensor *const half[2]) {
    int64_t rows = w->p->blocks.rows;
    tg_cp_buffer own[2];
    for (int h = 0; h < 2; h++) TG_TRY(half_grad(w, half[h], h, &own[h]));
    for (int h = 0; h < 2; h++) {
        TG_TRY(tg_storage_need(own[h].x->storage, own[h].x));
        TG_TRY(tg_cp_unpack(w, &own[h], h * rows, rows));
    }
    return TG_OK;
}
