/* Parameters of which a rank keeps only its ranges (zero 3). A bucket is gathered when one of its parameters is read,
 * and the bucket that is probably used next is gathered at the same time. Other buckets are discarded when a module
 * that tg_flat_watch names begins, and in backward. Then the buckets in use and the next one are present; a forward
 * without watched modules keeps all that it has read.
 *
 * All ranks of a group must gather the same buckets in the same order. So buckets are discarded only at points that the
 * programs of all ranks have in common: before a watched module, in backward when a gradient of another bucket
 * arrives, in tg_grads_finalize, by a step of the optimizer (tg_range_wrote), and in tg_flat_gather and
 * tg_flat_set_whole. No op is running then that has the address of a parameter. */
#include "autograd/gradients.h"
#include "base/memory/host_memory.h"
#include "core/tensor/rehome.h"
#include "core/work.h"
#include "nn/module.h"
#include "parallel/dp/flat.h"

/* Why a step that gathers parameters cannot be captured, for the message of tg_recording_refuse: the host notes which
 * buckets are present, and a replay runs nothing on the host. */
static const char gathers[] = "gathers parameters that are divided (zero 3; with zero 2 a step can be captured)";

/* A module that is watched, and the range of buckets in which its parameters lie. */
struct tg_flat_unit {
    tg_flat_unit *next;
    tg_flat *of;
    tg_module *module;
    uint64_t hook;
    int first, last;
};

/* ---- One bucket ---- */

/* Starts to gather a bucket if it is discarded. The version stays, because nodes may have saved the parameters, and
 * these have the same values as before. */
static tg_status fetch(const tg_flat *f, tg_flat_bucket *k) {
    tg_storage *s = k->params->storage;
    uint32_t version = s->version;
    if (s->state != TG_DISCARDED) return TG_OK;
    if (!f->p)
        return tg_fail(f->ctx, TG_ERR_STATE,
                       "tg_flat: a parameter cannot be gathered, because the tg_parallel of the tg_flat was freed");
    TG_TRY(tg_recording_refuse(f->ctx, "tg_flat", gathers, NULL));
    TG_TRY(tg_flat_check_ranks(f, "the gather of a parameter"));
    TG_TRY(tg_storage_bytes_again(s));
    s->extra->read_only = false;
    tg_work *w = tg_comm_all_gather(f->group[k->group].comm, k->params, k->own_params);
    s->extra->read_only = !f->whole;
    s->version = k->version = version;
    if (w) return TG_OK;
    tg_storage_discard(s, "a gather that failed", NULL);
    return f->ctx->run.status;
}

/* The restore function of a bucket's parameters. */
static tg_status gather_again(void *user, tg_storage *s) {
    tg_flat_bucket *k = user;
    TG_TRY(fetch(k->of, k));
    return tg_storage_need(s, k->params);
}

/* Copies this rank's part of the bucket to its ranges. */
static tg_status keep_part(const tg_flat *f, const tg_flat_bucket *k) {
    int64_t n = tg_flat_part(f, k), at = n * f->group[k->group].rank;
    tg_tensor *part = tg_temp_new(f->ctx, k->dtype, 1, &n, NULL, tg_storage_ref(k->params->storage), at);
    tg_status s = part ? tg_gradient_put(k->own_params, part, false) : f->ctx->run.status;
    tg_temp_free(part);
    return s;
}

/* Discards a bucket. If the program has written parameters of it, first copies this rank's part to the ranges. */
static tg_status release(const tg_flat *f, const tg_flat_bucket *k) {
    tg_storage *s = k->params->storage;
    if (s->state == TG_DISCARDED) return TG_OK;
    tg_later_settle(f->ctx); /* pins end there */
    if (tg_storage_pins(s))
        return tg_fail(f->ctx, TG_ERR_STATE,
                       "tg_flat: a parameter is pinned or exported, so that its bucket cannot be discarded (zero 3); "
                       "call tg_unpin or the deleter first");
    TG_TRY(tg_storage_need(s, k->params));
    if (s->version != k->version) { /* the caller has written parameters */
        TG_TRY(keep_part(f, k));
        tg_storage_wrote(k->own_params->storage, "a write of its parameter", NULL);
    }
    tg_storage_discard(s, "tg_flat", NULL);
    return TG_OK;
}

tg_status tg_flat_release(tg_flat *f) {
    if (!tg_flat_divides_params(f) || f->whole) return TG_OK;
    f->used = f->n_buckets; /* forward begins with the last one */
    for (int k = 0; k < f->n_buckets; k++) TG_TRY(release(f, &f->bucket[k]));
    return TG_OK;
}

/* Lets the program write whole parameters or, if they are not whole, the ranges. */
static void set_writable(const tg_flat_bucket *k, bool whole) {
    k->params->storage->extra->read_only = !whole;
    k->own_params->storage->extra->read_only = whole;
}

/* First does what may fail, so that the parameters keep their values if it does. */
tg_status tg_flat_divide_params(tg_flat *f) {
    if (!tg_flat_divides_params(f)) return TG_OK;
    for (const tg_flat_bucket *k = f->bucket; k < f->bucket + f->n_buckets; k++) {
        TG_TRY(keep_part(f, k));
        if (!tg_storage_extra_of(k->own_params->storage)) return f->ctx->run.status;
    }
    for (tg_flat_bucket *k = f->bucket; k < f->bucket + f->n_buckets; k++) {
        tg_storage *s = k->params->storage;
        s->extra->restore = gather_again;
        s->extra->user = k;
        k->version = s->version;
        set_writable(k, false);
    }
    return tg_flat_release(f);
}

/* The ranks may have failed at different points of a backward. Discards all buckets and forgets which one was used
 * last, so that all ranks gather the same buckets again. */
void tg_flat_lose_params(tg_flat *f) {
    if (!tg_flat_divides_params(f)) return;
    for (tg_flat_bucket *k = f->bucket; k < f->bucket + f->n_buckets; k++) {
        tg_storage_discard(k->params->storage, "tg_flat", NULL);
        set_writable(k, false);
    }
    f->used = f->n_buckets;
    f->whole = false;
}

/* ---- The order of use ---- */

/* Called when the program begins to use the parameters in these buckets. */
static tg_status use(tg_flat *f, int first, int last) {
    if (f->whole) return TG_OK;
    if (first != f->used) f->way = first > f->used ? 1 : -1;
    f->used = first;
    int next = f->way > 0 || first == 0 ? last + 1 : first - 1;
    for (int k = 0; k < f->n_buckets; k++)
        if (k != next && (k < first || k > last)) TG_TRY(release(f, &f->bucket[k]));
    for (int k = first; k <= last; k++) TG_TRY(fetch(f, &f->bucket[k]));
    return next >= 0 && next < f->n_buckets ? fetch(f, &f->bucket[next]) : TG_OK;
}

/* Ranks may lack gradients of different parameters, so they need not agree on which gradient of a bucket is the last.
 * The bucket therefore stays until another one is used. */
tg_status tg_flat_reached(const tg_flat_item *it) {
    tg_flat *f = it->of;
    if (!tg_flat_divides_params(f) || it->bucket == f->used) return TG_OK;
    return use(f, it->bucket, it->bucket);
}

/* ---- Modules ---- */

static tg_status before_unit(void *user, tg_module *m, tg_tape *t, tg_tensor **x, int n) {
    const tg_flat_unit *u = user;
    (void)m, (void)t, (void)x, (void)n;
    return use(u->of, u->first, u->last);
}

/* Returns the bucket of x, or -1 if x is not in f. */
static int bucket_of(const tg_flat *f, const tg_tensor *x) {
    for (int i = 0; i < f->n; i++)
        if (f->item[i].param == x && tg_flat_alive(&f->item[i])) return f->item[i].bucket;
    return -1;
}

/* Returns a unit of m. Its `last` is -1 if m has no parameter of f. */
static tg_flat_unit unit_of(tg_flat *f, tg_module *m) {
    tg_flat_unit u = {.of = f, .module = m, .first = f->n_buckets, .last = -1};
    for (int i = 0, n = tg_module_param_count(m); i < n; i++) {
        int k = bucket_of(f, tg_module_param(m, i, NULL));
        if (k >= 0 && k < u.first) u.first = k;
        if (k > u.last) u.last = k;
    }
    return u;
}

/* Fails unless m, the module with this number in the call, can be watched. */
static tg_status check_unit(tg_flat *f, tg_module *m, int number) {
    if (!m || tg_module_ctx(m) != f->ctx)
        return tg_fail(f->ctx, m ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "tg_flat_watch: module %d is %s", number,
                       m ? "of another context" : "NULL");
    if (!tg_flat_divides_params(f) || unit_of(f, m).last >= 0) return TG_OK;
    return tg_fail(f->ctx, TG_ERR_ARGUMENT,
                   "tg_flat_watch: module %d, a \"%s\", has no parameter of the tg_flat; leave it out", number,
                   tg_module_kind(m));
}

static tg_status add_unit(tg_flat *f, tg_module *m) {
    tg_flat_unit u = unit_of(f, m), *unit = tg_host_alloc(f->ctx, sizeof *unit);
    if (!unit) return f->ctx->run.status;
    u.next = f->units;
    *unit = u;
    f->units = unit;
    unit->hook = tg_module_hook(m, TG_BEFORE, before_unit, unit);
    return f->ctx->run.status;
}

tg_status tg_flat_watch(tg_flat *f, tg_module *const *units, int n) {
    if (!f) return TG_ERR_ARGUMENT;
    TG_TRY(f->ctx->run.status);
    if (n < 0 || (n && !units))
        return tg_fail(f->ctx, TG_ERR_ARGUMENT,
                       "tg_flat_watch: n is %d and units is %p, expected an array of n modules, 0 or more", n,
                       (const void *)units);
    for (int i = 0; i < n; i++) TG_TRY(check_unit(f, units[i], i));
    for (int i = 0; i < n && tg_flat_divides_params(f); i++) TG_TRY(add_unit(f, units[i]));
    return TG_OK;
}

void tg_flat_close_params(tg_flat *f) {
    for (tg_flat_unit *u = f->units, *next; u; u = next) {
        next = u->next;
        if (u->hook) tg_call_hook_drop(u->module, u->hook);
        tg_host_free(f->ctx, u, sizeof *u);
    }
    for (int k = 0; k < f->n_buckets && tg_flat_divides_params(f); k++) {
        tg_storage *s = f->bucket[k].params ? f->bucket[k].params->storage : NULL;
        if (!s || !s->extra || !s->extra->restore) continue;
        if (s->state == TG_IN_FLIGHT) tg_storage_need(s, NULL);
        if (!f->whole) tg_storage_discard(s, "tg_flat_free", NULL);
        s->by = "tg_flat_free";
        s->extra->restore = NULL;
        s->extra->read_only = false;
    }
}

/* ---- Whole parameters ---- */

/* While parameters are whole the program may write them, but not their ranges. If a gather cannot start, they do not
 * become whole. */
static tg_status set_whole(tg_flat *f, bool on) {
    TG_TRY(f->ctx->run.status);
    if (!tg_flat_divides_params(f) || f->whole == on) return TG_OK;
    for (int k = 0; on && k < f->n_buckets; k++) TG_TRY(fetch(f, &f->bucket[k]));
    f->whole = f->gathering = on;
    for (int k = 0; k < f->n_buckets; k++) set_writable(&f->bucket[k], on);
    return on ? tg_flat_gathered(f) : tg_flat_release(f);
}

tg_status tg_flat_set_whole(tg_flat *f, bool on) {
    if (!f) return TG_ERR_ARGUMENT;
    tg_status s = set_whole(f, on);
    return f->p ? tg_comm_note_missed(f->p->world, s) : s;
}
