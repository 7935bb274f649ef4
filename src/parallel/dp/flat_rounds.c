/* Gradients that have memory only until they are summed (zero 2 and 3). A step has one or more rounds of sums, which
 * tg_grads_reduce and tg_grads_finalize end. A rank keeps its part of the sums of all rounds. */
#include "autograd/gradients.h"
#include "core/work.h"
#include "parallel/dp/flat.h"
#include "parallel/dp/grads.h"

/* ---- Memory ---- */

/* Fails because the gradients of a bucket are read or added to after they were discarded. */
static tg_status refuse_summed(const tg_flat_bucket *k) {
    char what[160];
    const tg_flat_item *it = &k->of->item[k->first], *last = it + k->n - 1;
    while (it < last && !tg_flat_alive(it)) it++;
    tg_describe(it->param, what, sizeof what);
    return tg_fail(k->of->ctx, TG_ERR_STATE,
                   "tg_flat: the gradient of %s or of another parameter in its bucket (%s) is needed after the sum of "
                   "the bucket had started, which has discarded the gradients (zero 2 and 3); read the sums of the "
                   "leaves (tg_flat_leaves) after tg_grads_finalize; for several micro-batches, call "
                   "tg_flat_set_reduce(f, false) for all but the last, or tg_grads_reduce after each of them, and "
                   "tg_grads_finalize after the last",
                   what, tg_count(k->n, "parameter").text);
}

/* The restore function of a bucket's gradients. Padding is sent too, so all elements get a value. */
static tg_status zeros_again(void *user, tg_storage *s) {
    const tg_flat_bucket *k = user;
    if (k->summed) return refuse_summed(k);
    TG_TRY(tg_storage_bytes_again(s));
    return s->ctx->run.ops->fill(s->ctx, tg_array_of(k->grads), 0);
}

tg_status tg_flat_free_gradients(tg_flat_bucket *k) {
    tg_storage *s = k->grads->storage;
    tg_storage_extra *e = tg_storage_extra_of(s);
    if (!e) return s->ctx->run.status;
    e->restore = zeros_again;
    e->user = k;
    tg_storage_discard(s, "tg_flat_new", NULL);
    return TG_OK;
}

/* ---- Sums of several rounds ---- */

/* Returns whether the item's leaf has the sum of earlier rounds. */
static bool has_sum(const tg_flat_item *it) { return tg_flat_alive(it) && it->leaf->ext->has_grad; }

/* Zeroes what own_grads has of leaves without a sum, because a round will be added to it. */
static tg_status fill_gaps(const tg_flat *f, const tg_flat_bucket *k) {
    TG_TRY(tg_storage_may_change(k->own_grads));
    for (int i = k->first; i < k->first + k->n; i++)
        if (!has_sum(&f->item[i])) TG_TRY(f->ctx->run.ops->fill(f->ctx, tg_array_of(f->item[i].share), 0));
    return TG_OK;
}

tg_tensor *tg_flat_open_part(const tg_flat *f, tg_flat_bucket *k) {
    int64_t n = tg_flat_part(f, k);
    bool adds = false;
    if (!tg_flat_frees_gradients(f)) return k->own_grads;
    for (int i = k->first; i < k->first + k->n; i++) adds |= has_sum(&f->item[i]);
    if (!adds) return k->own_grads;
    if (fill_gaps(f, k) != TG_OK) return NULL;
    return k->part = tg_temp_empty(f->ctx, (tg_dtype)k->own_grads->dtype, 1, &n, TG_MEM_GRADIENT);
}

tg_status tg_flat_close_part(tg_flat_bucket *k) {
    if (!k->part) return TG_OK;
    tg_status s = tg_storage_need(k->part->storage, k->part);
    if (s == TG_OK) s = tg_gradient_put(k->own_grads, k->part, true);
    tg_temp_free(k->part);
    k->part = NULL;
    return s;
}

/* ---- The end of a round ---- */

/* Notes whether this rank has contributed to the item's gradient so far. Zeroing the gradient forgets that. */
static void note_contribution(tg_flat_item *it) {
    it->contributed = it->param->ext->has_grad || (it->contributed && has_sum(it));
}

void tg_flat_join_rounds(tg_flat *f) {
    for (tg_flat_item *it = f->item; it < f->item + f->n; it++) {
        if (!tg_flat_frees_gradients(f) || !tg_flat_alive(it)) continue;
        note_contribution(it);
        it->param->ext->has_grad = it->contributed;
        it->contributed = false;
    }
}

static tg_status check_drained(const tg_parallel *p) {
    TG_TRY(p->ctx->run.status);
    for (const tg_flat *f = p->flats; f; f = f->next)
        for (const tg_flat_item *it = f->item; it < f->item + f->n; it++)
            if (tg_flat_alive(it)) TG_TRY(tg_gradient_need_drained(it->param, "tg_grads_reduce"));
    return TG_OK;
}

/* Adds the sums of a round to the gradients of the leaves. */
static tg_status end_round(tg_flat *f) {
    TG_TRY(tg_flat_sum_round(f));
    for (tg_flat_item *it = f->item; it < f->item + f->n; it++) {
        if (!tg_flat_alive(it)) continue;
        note_contribution(it);
        tg_gradient_move(it->param);
    }
    return TG_OK;
}

tg_status tg_grads_reduce(const tg_parallel *p) {
    if (!p) return TG_ERR_ARGUMENT;
    tg_status s = check_drained(p);
    for (tg_flat *f = p->flats; f && s == TG_OK; f = f->next)
        if (tg_flat_frees_gradients(f) && tg_flat_reduces(f)) s = end_round(f);
    return tg_comm_note_missed(p->world, s);
}
