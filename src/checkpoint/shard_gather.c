/* Gathers a global tensor, over each axis that shards it, on the rank that writes it. */
#include "placement/placing.h"

#include <tapegrad/parallel.h>

#include "kernels/scalar.h"
#include "comm/comm.h"
#include "checkpoint/shards.h"

/* Returns whether this rank is rank 0 on each of n axes. */
static bool first_of(const tg_parallel *p, const tg_axis *axes, int n) {
    for (int i = 0; i < n; i++)
        if (tg_parallel_rank(p, axes[i])) return false;
    return true;
}

bool tg_shards_writer(const tg_shards *s) {
    static const tg_axis dense[] = {TG_TP, TG_CP, TG_DP};
    return first_of(s->p, dense, TG_LEN(dense));
}

/* Only the first replica takes part in gathers (tg_shard_whole); the other replicas do not wait for it. */
tg_status tg_shard_note_missed(const tg_parallel *p, tg_status s) {
    static const tg_axis replicas[] = {TG_CP, TG_DP};
    return first_of(p, replicas, TG_LEN(replicas)) ? tg_comm_note_missed(tg_parallel_comm(p, TG_TP), s) : s;
}

static tg_tensor *row_major_copy(const tg_tensor *x) {
    const double none[2] = {0, 0};
    tg_tensor *y = tg_temp_empty(x->ctx, x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
    tg_array from = tg_array_of(x);
    if (y && x->ctx->run.ops->apply(x->ctx, TG_FN_id, tg_array_of(y), &from, 1, none, false) == TG_OK) return y;
    if (y) tg_temp_free(y);
    return NULL;
}

/* Returns a row-major temporary tensor with x's elements: a view if x is contiguous, else a copy. */
static tg_tensor *dense_of(const tg_tensor *x) {
    if (!(x->flags & TG_F_CONTIGUOUS)) return row_major_copy(x);
    return tg_temp_new(x->ctx, x->dtype, x->ndim, x->shape, NULL, tg_storage_ref(x->storage), x->offset);
}

/* Gathers the tensors *x of all ranks of c, in rank order, on rank 0 of c. There the result replaces *x, which is
 * freed. On the other ranks *x is unchanged. */
static tg_status gather(tg_tensor **x, tg_comm *c, const void *site) {
    tg_tensor *all = NULL;
    tg_ctx *ctx = (*x)->ctx;
    if (tg_comm_rank(c) == 0 &&
        !(all = tg_temp_empty(ctx, (*x)->dtype, 1, (int64_t[]){(*x)->numel * tg_comm_size(c)}, TG_MEM_TEMPORARY)))
        return ctx->run.status;
    const tg_collective_args a = {.kind = TG_GATHER, .dst = all, .src = *x, .site = site};
    tg_work *w = tg_comm_start(c, &a);
    tg_status s = all ? tg_storage_need(all->storage, all) : w ? tg_work_wait(w) : ctx->run.status;
    if (s == TG_OK) s = ctx->run.status;
    if (all) {
        tg_temp_free(s == TG_OK ? *x : all);
        if (s == TG_OK) *x = all;
    }
    return s;
}

/* Copies each part in `parts` to its place in `whole`. `parts` contains the parts of all ranks on the n axes, one after
 * another; the rank on axes[0] varies fastest. */
static tg_status put_together(const tg_tensor *like, const tg_axis *axes, int n, tg_tensor *parts, tg_tensor *whole) {
    tg_ctx *ctx = parts->ctx;
    int at[TG_MAX_AXES] = {0};
    for (int64_t i = 0; i * like->numel < parts->numel; i++) {
        int64_t left = i;
        for (int k = 0; k < n; k++) {
            at[axes[k]] = (int)(left % tg_grid_of(ctx)->size[axes[k]]);
            left /= tg_grid_of(ctx)->size[axes[k]];
        }
        tg_tensor *one = tg_temp_new(ctx, parts->dtype, like->ndim, like->shape, NULL, tg_storage_ref(parts->storage),
                                     i * like->numel);
        if (!one) return ctx->run.status;
        tg_status s = tg_shard_copy(like, at, whole, one, true);
        tg_temp_free(one);
        TG_TRY(s);
    }
    return TG_OK;
}

tg_tensor *tg_shard_whole(const tg_shards *s, const tg_shard_item *i) {
    tg_axis axes[TG_MAX_AXES];
    int n = tg_shard_axes(i->like, axes);
    if (tg_shard_replica(s->p, i->like)) return NULL;
    if (tg_storage_need(i->x->storage, i->x) != TG_OK) return NULL;
    /* First the part of this rank; after step k of the loop the parts of all ranks on axes[0] to axes[k]. */
    tg_tensor *parts = dense_of(i->x);
    tg_status status = parts ? TG_OK : s->ctx->run.status;
    for (int k = 0; k < n && status == TG_OK; k++)
        if (first_of(s->p, axes, k)) status = gather(&parts, tg_parallel_comm(s->p, axes[k]), TG_SITE);
    if (!n || status != TG_OK || !first_of(s->p, axes, n)) { /* not sharded, failed, or this rank only sent */
        if (parts && (n || status != TG_OK)) tg_temp_free(parts);
        return n || status != TG_OK ? NULL : parts;
    }
    tg_shape g = tg_shard_global(i->like);
    tg_tensor *whole = tg_temp_empty(s->ctx, i->x->dtype, (int)g.ndim, g.dim, TG_MEM_TEMPORARY);
    if (whole && put_together(i->like, axes, n, parts, whole) != TG_OK) {
        tg_temp_free(whole);
        whole = NULL;
    }
    tg_temp_free(parts);
    return whole;
}
