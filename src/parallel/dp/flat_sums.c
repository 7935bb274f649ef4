/* The sums of the gradients of a tg_flat over ranks: when they start, in which dtype they travel, and how a step ends.
 *
 * The sums start strictly in the order of the buckets, so that all ranks start them in the same order, whatever the
 * order in which the gradients arrive. */
#include <tapegrad/backward.h>

#include "autograd/gradients.h"
#include "kernels/scalar.h"
#include "parallel/dp/flat.h"
#include "parallel/dp/grads.h"

tg_tensor *tg_gradient_or_zero(tg_tensor *x) {
    tg_tensor *g = tg_gradient_buffer(x);
    if (!g || x->ext->has_grad) return g;
    return x->ctx->run.ops->fill(x->ctx, tg_array_of(g), 0) == TG_OK ? g : NULL;
}

/* ---- The sum of one bucket ---- */

/* Returns whether the gradients of the bucket travel in another dtype than that in which they are accumulated. */
static bool is_converted(const tg_flat *f, const tg_flat_bucket *k) {
    return f->o.wire && f->o.wire != (tg_dtype)k->grads->dtype && f->group[k->group].ranks > 1;
}

/* Makes the gradients of all parameters of the bucket present: those that this rank has not computed are 0. */
static tg_status complete(const tg_flat *f, const tg_flat_bucket *k) {
    char what[160];
    for (const tg_flat_item *it = &f->item[k->first], *end = it + k->n; it < end; it++) {
        if (!tg_flat_alive(it)) continue;
        if (it->param->ext->main_grad == it->grad) {
            if (!tg_gradient_or_zero(it->param)) return f->ctx->run.status;
            continue;
        }
        tg_describe(it->param, what, sizeof what);
        return tg_fail(f->ctx, TG_ERR_STATE,
                       "tg_flat: %s has another main gradient since tg_flat_new; do not call tg_set_main_grad for it",
                       what);
    }
    return TG_OK;
}

/* Starts the exchange of a bucket whose gradients are converted. From zero 1 on each rank gets all addends of its
 * part. */
static tg_work *start_converted(const tg_flat *f, tg_flat_bucket *k, tg_comm *c) {
    k->sent = tg_temp_empty(f->ctx, f->o.wire, 1, &k->numel, TG_MEM_TEMPORARY);
    if (!k->sent || tg_gradient_put(k->sent, k->grads, false) != TG_OK) return NULL;
    if (!f->o.zero) return tg_comm_all_reduce(c, k->sent, k->sent, TG_REDUCE_SUM);
    if (!tg_flat_open_part(f, k)) return NULL;
    k->received = tg_temp_empty(f->ctx, f->o.wire, 1, &k->numel, TG_MEM_TEMPORARY);
    return k->received ? tg_comm_all_to_all(c, k->received, k->sent, NULL, NULL) : NULL;
}

static tg_work *start_scatter(const tg_flat *f, tg_flat_bucket *k, tg_comm *c) {
    tg_tensor *to = tg_flat_open_part(f, k);
    return to ? tg_comm_reduce_scatter(c, to, k->grads, TG_REDUCE_SUM) : NULL;
}

/* Adds the parts that the ranks have sent, in the order of the ranks. */
static tg_status add_received(const tg_flat *f, const tg_flat_bucket *k) {
    tg_tensor *sum = k->part ? k->part : k->own_grads;
    int64_t part = tg_flat_part(f, k);
    for (int r = 0; r < f->group[k->group].ranks; r++) {
        tg_tensor *one = tg_temp_new(f->ctx, f->o.wire, 1, &part, NULL, tg_storage_ref(k->received->storage), r * part);
        tg_status s = one ? tg_gradient_put(sum, one, r > 0) : f->ctx->run.status;
        tg_temp_free(one);
        TG_TRY(s);
    }
    return TG_OK;
}

static void drop_converted(tg_flat_bucket *k) {
    tg_temp_free(k->sent);
    tg_temp_free(k->received);
    k->sent = k->received = NULL;
}

/* Waits for the sum of a bucket. Converts it if it traveled in another dtype, and adds it to that of earlier
 * rounds. */
static tg_status finish(const tg_flat *f, tg_flat_bucket *k) {
    if (k->sent) {
        const tg_tensor *x = k->received ? k->received : k->sent;
        TG_TRY(tg_storage_need(x->storage, x));
        TG_TRY(k->received ? add_received(f, k) : tg_gradient_put(k->grads, k->sent, false));
        drop_converted(k);
    }
    const tg_tensor *sum = k->own_grads ? k->own_grads : k->grads;
    TG_TRY(tg_storage_need(sum->storage, sum));
    return tg_flat_close_part(k);
}

/* Starts the sum of the next bucket. If this frees the bucket's gradients (zero 2 and 3), first waits for the sum
 * before, so that only one bucket is being summed while backward fills others. */
static tg_status start_next(tg_flat *f) {
    tg_flat_bucket *k = &f->bucket[f->started++];
    tg_comm *c = f->group[k->group].comm;
    TG_TRY(tg_flat_check_ranks(f, "the sum of a tg_flat's gradients"));
    if (tg_flat_frees_gradients(f) && f->started > 1) TG_TRY(finish(f, k - 1));
    TG_TRY(complete(f, k));
    tg_work *w = is_converted(f, k) ? start_converted(f, k, c)
                 : f->o.zero        ? start_scatter(f, k, c)
                                    : tg_comm_all_reduce(c, k->grads, k->grads, TG_REDUCE_SUM);
    if (!w) return f->ctx->run.status;
    if (!tg_flat_frees_gradients(f)) return TG_OK;
    tg_storage_discard(k->grads->storage, "the sum of a tg_flat's gradients", NULL);
    k->summed = true;
    return TG_OK;
}

/* ---- Backward ---- */

/* Starts the sums of buckets in order, up to the first bucket that lacks gradients. Also stops at a bucket of an object
 * whose sums are switched off (tg_flat_set_reduce). Ranks with fewer micro-batches may have switched these sums on
 * already and start that bucket next, so this rank must not start a later bucket before it. */
static tg_status start_ready(tg_parallel *p) {
    for (tg_flat *f = p->flats; f; f = f->next)
        while (f->started < f->n_buckets) {
            tg_flat_bucket *k = &f->bucket[f->started];
            if (!tg_flat_reduces(f) || k->ready < k->n) return TG_OK;
            TG_TRY(start_next(f));
        }
    return TG_OK;
}

/* Fails if the sum of the parameter's bucket has started. With zero 2 and 3 that has failed already where backward took
 * the memory of the gradient (flat_rounds.c). */
tg_status tg_flat_arrived(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    tg_flat_item *it = user;
    tg_flat *f = it->of;
    (void)t, (void)grad;
    if (it->bucket < f->started) {
        char what[160];
        tg_describe(x, what, sizeof what);
        return tg_fail(x->ctx, TG_ERR_STATE,
                       "a gradient of %s came after the sum of its bucket had started; call tg_flat_set_reduce(f, "
                       "false) for all micro-batches but the last, and tg_grads_finalize after the last",
                       what);
    }
    TG_TRY(tg_flat_reached(it));
    if (!tg_flat_reduces(f) || it->ready) return TG_OK;
    it->ready = true;
    f->bucket[it->bucket].ready++;
    return start_ready(f->p);
}

/* ---- Which gradients some rank has ---- */

/* Returns the element of a group's `users` that belongs to the item. */
static tg_array user_of(const tg_flat *f, const tg_flat_item *it) {
    static const int64_t one[1] = {1};
    tg_array a = tg_array_of(f->group[f->bucket[it->bucket].group].users);
    if (a.data) a.data = (float *)a.data + it->user;
    a.shape = a.stride = one;
    a.numel = 1;
    return a;
}

/* Returns whether this rank lacks the item's gradient, and another rank may have it. */
static bool lacks(const tg_flat *f, const tg_flat_item *it) {
    if (!tg_flat_alive(it) || it->param->ext->has_grad) return false;
    return it->param->flags & TG_F_REQUIRES_GRAD && f->group[f->bucket[it->bucket].group].axes;
}

/* Starts to count the ranks that have each gradient. Most ranks have most gradients, so each rank fills `users` with 1,
 * and then writes 0 for the gradients that it lacks. */
static tg_status count_users(tg_flat *f) {
    const tg_device_ops *ops = f->ctx->run.ops;
    tg_flat_join_rounds(f);
    for (tg_flat_group *g = f->group; g < f->group + TG_FLAT_GROUPS; g++)
        if (g->users) TG_TRY(ops->fill(f->ctx, tg_array_of(g->users), 1));
    for (int i = 0; i < f->n; i++)
        if (lacks(f, &f->item[i])) TG_TRY(ops->fill(f->ctx, user_of(f, &f->item[i]), 0));
    for (tg_flat_group *g = f->group; g < f->group + TG_FLAT_GROUPS; g++)
        if (g->users && !tg_comm_all_reduce(g->comm, g->users, g->users, TG_REDUCE_SUM)) return f->ctx->run.status;
    return TG_OK;
}

/* Waits for the counts, and gives them to the gradients that this rank lacks. */
static tg_status note_users(tg_flat *f) {
    for (tg_flat_group *g = f->group; g < f->group + TG_FLAT_GROUPS; g++)
        if (g->users) TG_TRY(tg_storage_need(g->users->storage, g->users));
    for (int i = 0; i < f->n; i++)
        if (lacks(f, &f->item[i])) TG_TRY(tg_gradient_unsure(f->item[i].param, user_of(f, &f->item[i])));
    return TG_OK;
}

/* ---- The end of a round, and of a step ---- */

void tg_flat_reset(tg_flat *f) {
    for (int i = 0; i < f->n; i++) f->item[i].ready = false;
    for (int k = 0; k < f->n_buckets; k++) {
        f->bucket[k].ready = 0;
        f->bucket[k].summed = false;
        drop_converted(&f->bucket[k]);
        tg_temp_free(f->bucket[k].part);
        f->bucket[k].part = NULL;
    }
    f->started = 0;
}

tg_status tg_flat_sum_round(tg_flat *f) {
    tg_status s = TG_OK;
    while (f->started < f->n_buckets && s == TG_OK) s = start_next(f);
    if (s == TG_OK) s = finish(f, &f->bucket[f->n_buckets - 1]);
    tg_flat_reset(f);
    return s;
}

/* Waits for the sums, and gives them to the leaves. */
static tg_status finish_all(tg_flat *f) {
    TG_TRY(tg_flat_gathered(f));
    for (int k = 0; k < f->n_buckets; k++) TG_TRY(finish(f, &f->bucket[k]));
    TG_TRY(note_users(f));
    for (int i = 0; i < f->n; i++)
        if (f->item[i].leaf && tg_flat_alive(&f->item[i])) tg_gradient_divide(f->item[i].param);
    return tg_flat_release(f);
}

tg_status tg_flats_finish(const tg_parallel *p) {
    tg_status s = TG_OK;
    for (tg_flat *f = p->flats; f; f = f->next)
        while (f->started < f->n_buckets && s == TG_OK) s = start_next(f);
    for (tg_flat *f = p->flats; f && s == TG_OK; f = f->next) s = count_users(f);
    for (tg_flat *f = p->flats; f && s == TG_OK; f = f->next) s = finish_all(f);
    for (tg_flat *f = p->flats; f; f = f->next) tg_flat_reset(f);
    return s;
}

static bool listed(const tg_tensor *x, tg_tensor *const *params, int n) {
    for (int i = 0; i < n; i++)
        if (params[i] == x) return true;
    return false;
}

/* Ignores frozen parameters without a gradient: they cannot be in params, and only zeros are summed for them. */
tg_status tg_flats_check_all(const tg_parallel *p, tg_tensor *const *params, int n) {
    char what[160];
    for (const tg_flat *f = p->flats; f; f = f->next)
        for (int i = 0; i < f->n; i++) {
            const tg_tensor *x = f->item[i].param;
            if (!tg_flat_alive(&f->item[i]) || listed(x, params, n)) continue;
            bool frozen = !(x->flags & TG_F_REQUIRES_GRAD);
            if (frozen && !x->ext->has_grad) continue;
            tg_describe(x, what, sizeof what);
            if (frozen)
                return tg_fail(p->ctx, TG_ERR_STATE,
                               "tg_grads_finalize: %s is in a tg_flat, and was frozen after a backward had given it a "
                               "gradient; clear that with tg_zero_grad",
                               what);
            return tg_fail(
                p->ctx, TG_ERR_STATE,
                "tg_grads_finalize: %s is in a tg_flat but not in params; the call ends the sums of all buckets, "
                "because other ranks may have started them: give every parameter that is in a tg_flat",
                what);
        }
    return TG_OK;
}

uint32_t tg_flat_axes(const tg_tensor *x) {
    return x->ext && x->ext->flat ? x->ext->flat->group[tg_flat_group_of(x)].axes : 0;
}

void tg_flats_hold(const tg_parallel *given, bool held) {
    tg_parallel *p = (tg_parallel *)given; /* not const, because p holds the state of its tg_flat */
    p->flats_held = held;
}

bool tg_flat_set_reduce(tg_flat *f, bool on) {
    bool before = f && f->reduce;
    if (f) f->reduce = on && f->p;
    return before;
}
