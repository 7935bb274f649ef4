/* Parameters that are divided over ranks (from zero 1 on): the leaves that have a rank's ranges of them, and the
 * gathers that bring the ranges of all ranks together again (zero 1 and 2). */
#include "autograd/gradients.h"
#include "base/memory/host_memory.h"
#include "parallel/dp/flat.h"
#include "placement/placing.h"

/* ---- Leaves ---- */

/* Returns the placement of a leaf: V on the axes of its group and where its parameter is V, else as the parameter. */
static const tg_placements *leaf_place(const tg_flat *f, const tg_flat_item *it) {
    tg_placement at[TG_MAX_AXES] = {{0}};
    const tg_placements *p = it->param->place;
    uint32_t axes = f->group[f->bucket[it->bucket].group].axes;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        bool varies = axes >> a & 1 || (p && p->at[a].kind == TG_VARYING);
        at[a] = varies ? (tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE} : p ? p->at[a] : at[a];
    }
    return tg_place_intern(f->ctx, at);
}

static tg_status name_leaf(const tg_flat_item *it, int64_t begin, int64_t end) {
    tg_ctx *ctx = it->of->ctx;
    tg_host_strset(ctx, &it->leaf->ext->name, "%s[%lld:%lld]", tg_name(it->param), (long long)begin, (long long)end);
    return ctx->run.status;
}

/* Returns a view of n elements, from number `first` on, of this rank's part of a bucket's tensor. */
static tg_tensor *view(const tg_tensor *own, int64_t first, int64_t n) {
    int64_t at = own->offset + (n ? first : 0);
    return tg_owned_new(own->ctx, (tg_dtype)own->dtype, 1, &n, NULL, tg_storage_ref(own->storage), at);
}

tg_status tg_flat_make_leaf(tg_flat *f, tg_flat_item *it) {
    tg_flat_bucket *k = &f->bucket[it->bucket];
    tg_tensor *x = it->param;
    int64_t begin, end;
    int rank = f->group[k->group].rank;
    tg_flat_range(f, it, rank, &begin, &end);
    int64_t first = it->offset + begin - tg_flat_part(f, k) * rank;
    if (!(it->leaf = view(k->own_params, first, end - begin))) return f->ctx->run.status;
    if (!(it->share = view(k->own_grads, first, end - begin))) return f->ctx->run.status;
    TG_TRY(name_leaf(it, begin, end));
    tg_ext *e = it->leaf->ext;
    e->range_of = tg_ref_of(x);
    e->range_begin = begin;
    e->owners = 1;
    e->placed = tg_grid_axes(f->ctx);
    it->leaf->place = leaf_place(f, it);
    it->leaf->flags |= TG_F_REQUIRES_GRAD;
    TG_TRY(tg_set_main_grad(it->leaf, it->share));
    x->ext->range = it->leaf;
    f->leaf[it->index] = it->leaf;
    return f->ctx->run.status;
}

int tg_flat_leaves(tg_flat *f, tg_tensor *const **out) {
    if (out) *out = f ? f->leaf : NULL;
    return f ? f->n : 0;
}

bool tg_range_of(const tg_tensor *x, tg_tensor **param, int64_t *begin, int64_t *end) {
    bool alive = tg_is_alive(x);
    tg_tensor *whole = alive ? tg_range_whole(x) : (tg_tensor *)x;
    int64_t first = alive && whole != x ? x->ext->range_begin : 0;
    if (param) *param = whole;
    if (begin) *begin = first;
    if (end) *end = alive ? first + x->numel : 0;
    return alive && whole != x;
}

/* ---- Gathers ---- */

tg_status tg_flat_check_ranks(const tg_flat *f, const char *who) {
    if (!f->lost) return TG_OK;
    return tg_fail(f->ctx, TG_ERR_STATE,
                   "%s: a recovery left other ranks than those over which tg_flat_new has divided the optimizer's "
                   "state; free the optimizer and the tg_flat, create others, and load a checkpoint",
                   who);
}

/* Starts the gather of a bucket. The optimizer's step has counted as a write of all its parameters already, so that
 * nodes which saved one notice. The gather does not count as another write, because optimizers would take it for one by
 * the caller. */
static tg_status gather(tg_flat *f, tg_flat_bucket *k) {
    tg_storage *s = k->params->storage;
    uint32_t version = s->version;
    bool awaited = tg_storage_awaits(s);
    if (awaited) s->state = TG_PRESENT;
    bool started = tg_comm_all_gather(f->group[k->group].comm, k->params, k->own_params);
    s->version = version;
    if (started) return TG_OK;
    if (awaited) tg_storage_await(s);
    return f->ctx->run.status;
}

static tg_status check_gather(const tg_flat *f) {
    TG_TRY(f->ctx->run.status);
    if (!f->p)
        return tg_fail(f->ctx, TG_ERR_STATE,
                       "tg_flat_gather: the tg_parallel of the tg_flat was freed; free the tg_flat before it");
    return tg_flat_check_ranks(f, "tg_flat_gather");
}

tg_status tg_flat_gather(tg_flat *f) {
    if (!f) return TG_ERR_ARGUMENT;
    if (!f->o.zero) return f->ctx->run.status;
    tg_status s = check_gather(f);
    if (s == TG_OK && tg_flat_divides_params(f)) return tg_flat_release(f);
    f->gathering |= s == TG_OK;
    for (int k = f->n_buckets - 1; k >= 0 && s == TG_OK; k--) s = gather(f, &f->bucket[k]);
    return f->p ? tg_comm_note_missed(f->p->world, s) : s;
}

tg_status tg_flat_gathered(tg_flat *f) {
    for (int k = 0; f->gathering && k < f->n_buckets; k++) {
        tg_storage *s = f->bucket[k].params->storage; /* it awaits a gather again if the last one has failed */
        if (!tg_storage_awaits(s)) TG_TRY(tg_storage_need(s, f->bucket[k].params));
    }
    f->gathering = false;
    return TG_OK;
}

tg_status tg_flat_gather_lost(tg_flat *f) {
    tg_flat_lose_params(f);
    for (int k = 0; f->gathering && k < f->n_buckets; k++) {
        tg_storage *s = f->bucket[k].params->storage;
        if (tg_storage_awaits(s) || tg_flat_divides_params(f)) continue;
        TG_TRY(tg_storage_renew(s));
        tg_storage_await(s);
    }
    f->gathering = false;
    return TG_OK;
}
