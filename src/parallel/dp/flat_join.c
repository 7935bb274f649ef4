/* Joins what the ranks of a group have of one parameter's ranges, such as its moments in an optimizer. */
#include "base/host_memory.h"
#include "parallel/dp/flat.h"

static const tg_flat_item *item_of(const tg_flat *f, const tg_tensor *leaf) {
    for (int i = 0; i < f->n; i++)
        if (f->item[i].leaf == leaf) return &f->item[i];
    return NULL;
}

/* Gathers x of all ranks into `whole`, in the order of the ranks, which is that of their ranges. */
static tg_status gather(const tg_flat *f, const tg_flat_item *it, tg_tensor *x, tg_tensor *whole) {
    const tg_flat_group *g = &f->group[f->bucket[it->bucket].group];
    size_t bytes = (size_t)g->ranks * sizeof(int64_t);
    int64_t *counts = tg_host_alloc(f->ctx, bytes);
    if (!counts) return f->ctx->run.status;
    for (int r = 0; r < g->ranks; r++) {
        int64_t begin, end;
        tg_flat_range(f, it, r, &begin, &end);
        counts[r] = end - begin;
    }
    bool started = tg_comm_all_gather_v(g->comm, whole, x, counts);
    tg_host_free(f->ctx, counts, bytes);
    return started ? tg_storage_need(whole->storage, whole) : f->ctx->run.status;
}

tg_tensor *tg_flat_join(tg_tensor *leaf, tg_tensor *x) {
    const tg_tensor *param = tg_range_whole(leaf);
    const tg_flat *f = param->ext->flat;
    const tg_flat_item *it = f ? item_of(f, leaf) : NULL;
    if (!it || tg_flat_check_ranks(f, "the state of an optimizer") != TG_OK) return NULL;
    tg_tensor *whole = tg_temp_empty(f->ctx, (tg_dtype)x->dtype, param->ndim, param->shape, TG_MEM_TEMPORARY);
    if (!whole || gather(f, it, x, whole) == TG_OK) return whole;
    tg_temp_free(whole);
    return NULL;
}
