/* Creates and frees a tg_flat, and lets it follow the groups of its tg_parallel. */
#include "parallel/dp/flat.h"

#include "autograd/gradients.h"
#include "autograd/hooks.h"
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "core/tensor/rehome.h"
#include "parallel/dp/grads.h"

/* ---- Checks ---- */

/* Fails unless x is R on the axes over which its gradient is to be summed. */
static tg_status check_placement(const tg_flat *f, const tg_tensor *x) {
    char what[160], place[96];
    int group = tg_flat_group_of(x);
    uint32_t axes = f->group[group].axes;
    if (((x->place ? x->place->replicated : 0) & axes) == axes) return TG_OK;
    tg_describe(x, what, sizeof what);
    tg_place_text(f->ctx, x->place, place, sizeof place);
    return tg_fail(f->ctx, TG_ERR_PLACEMENT,
                   "tg_flat_new: %s is placed as \"%s\"; it must be R on %s, so that its gradient is summed there: "
                   "declare that with tg_place or tg_module_replicate",
                   what, *place ? place : "I", group == TG_FLAT_EXPERTS ? "edp" : "dp (and cp)");
}

/* Fails unless x is a parameter that a tg_flat with these options can hold. */
static tg_status check_param(const tg_flat *f, tg_tensor *x) {
    char what[160];
    TG_TRY(tg_check(f->ctx, x, "tg_flat_new: a parameter"));
    tg_describe(x, what, sizeof what);
    if (x->tape || !(x->flags & TG_F_REQUIRES_GRAD))
        return tg_fail(f->ctx, TG_ERR_STATE, "tg_flat_new: %s is not a leaf of the context that needs a gradient",
                       what);
    if (!tg_ext_of(x)) return f->ctx->run.status;
    if (x->ext->flat || tg_range_whole(x) != x)
        return tg_fail(f->ctx, TG_ERR_STATE, "tg_flat_new: %s is in a tg_flat already", what);
    if (x->ext->main_grad)
        return tg_fail(f->ctx, TG_ERR_STATE,
                       "tg_flat_new: %s has a main gradient; remove it with tg_set_main_grad(x, NULL) first", what);
    TG_TRY(check_placement(f, x));
    if (!f->o.zero) return TG_OK;
    if (x->flags & TG_F_CONTIGUOUS) return TG_OK;
    return tg_fail(f->ctx, TG_ERR_STATE, "tg_flat_new: %s must be contiguous", what);
}

/* Returns whether two contiguous tensors of one storage are the same, or have no element in common. */
static bool are_apart(const tg_tensor *x, const tg_tensor *y) {
    return x == y || x->offset + x->numel <= y->offset || y->offset + y->numel <= x->offset;
}

/* Returns the number of parameters, x among them, that have parts of x's storage, as after tg_flat_free. */
static int sharers_of(const tg_flat *f, tg_tensor *const *params, const tg_tensor *x) {
    int n = 0;
    for (int i = 0; i < f->n; i++) n += params[i]->storage == x->storage && are_apart(x, params[i]);
    return n;
}

static tg_status check_params(const tg_flat *f, tg_tensor *const *params) {
    for (int i = 0; i < f->n; i++) {
        TG_TRY(check_param(f, params[i]));
        for (int j = 0; j < i; j++)
            if (params[i] == params[j])
                return tg_fail(f->ctx, TG_ERR_ARGUMENT, "tg_flat_new: parameter %d is given twice", i);
    }
    for (int i = 0; f->o.zero && i < f->n; i++)
        TG_TRY(tg_rehome_check(params[i], sharers_of(f, params, params[i]), "tg_flat_new"));
    return TG_OK;
}

static tg_status check_options(tg_ctx *ctx, const tg_flat_opts *o) {
    if (o->bucket < 1 && o->bucket != TG_AUTO)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_flat_new: bucket is %lld, expected 1 or more elements, or TG_AUTO",
                       (long long)o->bucket);
    if (o->zero < 0 || o->zero > 3)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_flat_new: zero is %d, expected 0, 1, 2 or 3", o->zero);
    if (o->wire != TG_DTYPE_DEFAULT && o->wire != TG_BF16)
        return tg_fail(ctx, TG_ERR_DTYPE, "tg_flat_new: wire is %s, expected TG_BF16 or TG_DTYPE_DEFAULT",
                       tg_dtype_name(o->wire));
    return TG_OK;
}

/* Fails if sums of this step have started. The buckets of a new object come first in the order of sums, so a rank on
 * which no sum has started yet would start the sums in a different order. */
static tg_status check_time(const tg_parallel *p) {
    for (const tg_flat *f = p->flats; f; f = f->next)
        if (f->started)
            return tg_fail(p->ctx, TG_ERR_STATE,
                           "tg_flat_new: sums of this step have started in another tg_flat; create each before the "
                           "first backward of a step, or after tg_grads_finalize");
    return TG_OK;
}

static tg_status check_call(const tg_parallel *p, tg_tensor *const *params, int n, const tg_flat_opts *o) {
    TG_TRY(check_options(p->ctx, o));
    if (n <= 0 || !params)
        return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                       "tg_flat_new: n is %d and params is %p, expected an array of 1 or more parameters", n,
                       (const void *)params);
    return check_time(p);
}

/* ---- The groups ---- */

static void set_groups(tg_flat *f) {
    const uint32_t data = 1u << TG_DP | 1u << TG_CP, experts = 1u << TG_EDP, grid = tg_grid_axes(f->ctx);
    f->group[TG_FLAT_DENSE] = (tg_flat_group){.comm = f->p->dp_cp, .axes = data & grid};
    f->group[TG_FLAT_EXPERTS] = (tg_flat_group){.comm = f->p->comm[TG_EDP], .axes = experts & grid};
    for (tg_flat_group *g = f->group; g < f->group + TG_FLAT_GROUPS; g++)
        g->ranks = tg_comm_size(g->comm), g->rank = tg_comm_rank(g->comm);
}

/* Zeroes the gradients. With zero 2 and 3 discards the buckets, and zeroes this rank's parts. */
static tg_status clear_gradients(tg_flat *f) {
    for (int k = 0; k < f->n_buckets; k++) {
        bool frees = tg_flat_frees_gradients(f);
        tg_tensor *lasting = frees ? f->bucket[k].own_grads : f->bucket[k].grads;
        if (frees) tg_storage_discard(f->bucket[k].grads->storage, "tg_parallel_recover", NULL);
        TG_TRY(tg_storage_renew(lasting->storage));
        TG_TRY(f->ctx->run.ops->fill(f->ctx, tg_array_of(lasting), 0));
    }
    return TG_OK;
}

/* Discards the sums and gradients of a step that failed. If a group has other ranks now, state that was divided over
 * the earlier ones is lost too. */
static tg_status groups_recovered(tg_parallel_listener *l) {
    tg_flat *f = (tg_flat *)l;
    tg_flat_reset(f);
    TG_TRY(clear_gradients(f));
    for (tg_flat_group *g = f->group; g < f->group + TG_FLAT_GROUPS; g++) {
        bool same = tg_comm_size(g->comm) == g->ranks && tg_comm_rank(g->comm) == g->rank;
        f->lost |= f->o.zero && g->n && !same;
        if (g->users) TG_TRY(tg_storage_renew(g->users->storage));
    }
    for (int i = 0; i < f->n; i++)
        if (tg_flat_alive(&f->item[i])) tg_gradient_forget(f->item[i].param);
    return tg_flat_gather_lost(f);
}

/* Detaches a tg_flat from the tg_parallel, which is about to be freed. From now on it only holds gradients and
 * parameters, and nothing is summed or gathered. */
static void groups_ended(tg_parallel_listener *l) {
    tg_flat *f = (tg_flat *)l;
    tg_flat_gathered(f);
    f->p = NULL;
    f->reduce = false;
    tg_flat_reset(f);
}

/* Adds f to the two lists of its tg_parallel: listeners and tg_flats. */
static void listen(tg_flat *f) {
    f->listener = (tg_parallel_listener){.recovered = groups_recovered, .ended = groups_ended, .next = f->p->listeners};
    f->p->listeners = &f->listener;
    f->next = f->p->flats;
    f->p->flats = f;
}

static void unlisten(tg_flat *f) {
    tg_parallel_listener **l = &f->p->listeners;
    tg_flat **link = &f->p->flats;
    while (*l != &f->listener) l = &(*l)->next;
    *l = f->listener.next;
    while (*link != f) link = &(*link)->next;
    *link = f->next;
}

/* ---- Creation ---- */

static tg_tensor *zeros(tg_ctx *ctx, tg_dtype dtype, int64_t n, tg_category category) {
    tg_tensor *x = tg_owned_empty(ctx, dtype, 1, &n, category);
    if (x && ctx->run.ops->fill(ctx, tg_array_of(x), 0) == TG_OK) return x;
    tg_drop(x);
    return NULL;
}

/* Returns a view of this rank's part of a bucket's tensor. */
static tg_tensor *part_of(const tg_flat *f, const tg_flat_bucket *k, const tg_tensor *x) {
    int64_t n = tg_flat_part(f, k);
    if (!x) return NULL;
    return tg_owned_new(f->ctx, (tg_dtype)x->dtype, 1, &n, NULL, tg_storage_ref(x->storage),
                        n * f->group[k->group].rank);
}

/* Creates a buffer of gradients with n elements, which tg_discard refuses. */
static tg_tensor *gradients(tg_ctx *ctx, tg_dtype dtype, int64_t n) {
    tg_tensor *x = zeros(ctx, dtype, n, TG_MEM_GRADIENT);
    tg_storage_extra *e = x ? tg_storage_extra_of(x->storage) : NULL;
    if (e) e->in_flat = true;
    if (e) return x;
    tg_drop(x);
    return NULL;
}

/* Makes the bucket's gradients and, from zero 1 on, this rank's part of them. */
static tg_status make_gradients(const tg_flat *f, tg_flat_bucket *k) {
    tg_dtype dtype = tg_accumulate_dtype(k->dtype);
    bool frees = tg_flat_frees_gradients(f);
    k->grads = gradients(f->ctx, dtype, k->numel);
    if (!f->o.zero || !k->grads) return f->ctx->run.status;
    k->own_grads = frees ? gradients(f->ctx, dtype, tg_flat_part(f, k)) : part_of(f, k, k->grads);
    TG_TRY(f->ctx->run.status);
    return frees ? tg_flat_free_gradients(k) : TG_OK;
}

/* Makes the tensors of a bucket. */
static tg_status make_bucket(const tg_flat *f, tg_flat_bucket *k) {
    TG_TRY(make_gradients(f, k));
    if (!f->o.zero) return TG_OK;
    bool divides = tg_flat_divides_params(f);
    k->params = zeros(f->ctx, k->dtype, k->numel, TG_MEM_PARAMETER);
    if (!k->params) return f->ctx->run.status;
    k->own_params = divides ? zeros(f->ctx, k->dtype, tg_flat_part(f, k), TG_MEM_PARAMETER) : part_of(f, k, k->params);
    tg_storage_extra *e = k->own_params ? tg_storage_extra_of(k->params->storage) : NULL;
    if (e) e->lasting = !divides;
    return f->ctx->run.status;
}

/* Moves a parameter into its bucket. */
static tg_status rehome(const tg_flat *f, const tg_flat_item *it) {
    const tg_tensor *x = it->param, *into = f->bucket[it->bucket].params;
    tg_tensor *view =
        tg_owned_new(f->ctx, (tg_dtype)x->dtype, x->ndim, x->shape, NULL, tg_storage_ref(into->storage), it->offset);
    tg_status s = view ? tg_rehome_move(it->param, view) : f->ctx->run.status;
    tg_drop(view);
    return s;
}

/* Makes a part of the bucket the main gradient of the item's parameter. From zero 1 on also moves the parameter into
 * the bucket, and makes its leaf. */
static tg_status attach(tg_flat *f, tg_flat_item *it) {
    tg_tensor *x = it->param, *grads = f->bucket[it->bucket].grads;
    it->grad = tg_owned_new(f->ctx, (tg_dtype)grads->dtype, x->ndim, x->shape, NULL, tg_storage_ref(grads->storage),
                            it->offset);
    if (!it->grad) return f->ctx->run.status;
    TG_TRY(tg_set_main_grad(x, it->grad));
    x->ext->flat = f;
    it->hook = tg_on_accumulated(x, tg_flat_arrived, it);
    f->leaf[it->index] = x;
    if (!it->hook || !f->o.zero) return f->ctx->run.status;
    TG_TRY(rehome(f, it));
    return tg_flat_make_leaf(f, it);
}

static tg_status make_users(tg_flat *f) {
    for (tg_flat_group *g = f->group; g < f->group + TG_FLAT_GROUPS; g++)
        if (g->n && !(g->users = zeros(f->ctx, TG_F32, g->n, TG_MEM_GRADIENT))) return f->ctx->run.status;
    return TG_OK;
}

static tg_status open(tg_flat *f) {
    TG_TRY(make_users(f));
    for (int k = 0; k < f->n_buckets; k++) TG_TRY(make_bucket(f, &f->bucket[k]));
    for (int i = 0; i < f->n; i++) TG_TRY(attach(f, &f->item[i]));
    return tg_flat_divide_params(f);
}

tg_flat *tg_flat_new(const tg_parallel *given, tg_tensor *const *params, int n, const tg_flat_opts *opts) {
    tg_parallel *p = (tg_parallel *)given; /* not const, because p holds the list of its tg_flat */
    tg_flat_opts o;
    if (!p || p->ctx->run.status != TG_OK) return NULL;
    tg_ctx *ctx = p->ctx;
    if (tg_options(ctx, &o, &tg_flat_opts_struct, opts, "tg_flat_new: the options") != TG_OK) return NULL;
    if (check_call(p, params, n, &o) != TG_OK) return NULL;
    size_t each = sizeof(tg_flat_item) + sizeof(tg_flat_bucket) + sizeof(tg_tensor *);
    size_t bytes = sizeof(tg_flat) + (size_t)n * each;
    tg_flat *f = tg_host_alloc(ctx, bytes);
    if (!f) return NULL;
    *f = (tg_flat){.ctx = ctx, .p = p, .o = o, .n = n, .reduce = true, .bytes = bytes};
    f->bucket = (tg_flat_bucket *)(f->item + n);
    f->leaf = (tg_tensor **)(f->bucket + n);
    set_groups(f);
    listen(f);
    if (check_params(f, params) == TG_OK) {
        tg_flat_lay_out(f, params);
        if (open(f) == TG_OK) return f;
    }
    tg_flat_free(f);
    return NULL;
}

/* ---- The end ---- */

/* Records an error if sums have started that other ranks wait for, or if parameters await tg_flat_gather. */
static void check_end(const tg_flat *f) {
    bool awaits = false;
    for (int k = 0; k < f->n_buckets; k++)
        awaits |= f->bucket[k].params && tg_storage_awaits(f->bucket[k].params->storage);
    if (!tg_ok(f->ctx) || !f->p || f->lost) return;
    if (f->started)
        tg_fail(f->ctx, TG_ERR_STATE,
                "tg_flat_free: sums of this step have started, and other ranks wait for them; call tg_grads_finalize "
                "first");
    else if (awaits)
        tg_fail(f->ctx, TG_ERR_STATE,
                "tg_flat_free: each rank has stepped only its ranges of the parameters; call tg_flat_gather first");
}

/* Detaches the parameter from the tg_flat, and drops the handles of the item. The parameter keeps its bytes. */
static void free_item(tg_flat_item *it) {
    tg_tensor *x = it->param;
    if (x && tg_flat_alive(it) && x->ext->flat == it->of) {
        if (x->ext->main_grad == it->grad) x->ext->main_grad = NULL;
        tg_gradient_forget(x);
        if (it->hook) tg_hook_drop(x, it->hook);
        x->ext->flat = NULL;
        x->ext->range = NULL;
    }
    if (it->leaf) {
        it->leaf->ext->owners = 0;
        tg_drop(it->leaf);
    }
    tg_drop(it->share);
    tg_drop(it->grad);
}

/* Waits for a gather of the bucket, because its parameters outlive it, and drops its tensors. */
static void free_bucket(tg_flat_bucket *k) {
    if (k->params) {
        tg_storage *s = k->params->storage;
        if (tg_storage_awaits(s)) s->state = TG_PRESENT;
        if (s->state == TG_IN_FLIGHT) tg_storage_need(s, k->params);
    }
    tg_tensor *const all[] = {k->own_params, k->params, k->own_grads, k->grads};
    for (int i = 0; i < TG_LEN(all); i++) tg_drop(all[i]);
}

void tg_flat_free(tg_flat *f) {
    if (!f) return;
    check_end(f);
    if (f->p) unlisten(f);
    tg_flat_reset(f);
    tg_flat_close_params(f);
    for (int i = 0; i < f->n; i++) free_item(&f->item[i]);
    for (int k = 0; k < f->n_buckets; k++) free_bucket(&f->bucket[k]);
    for (tg_flat_group *g = f->group; g < f->group + TG_FLAT_GROUPS; g++) tg_drop(g->users);
    tg_host_free(f->ctx, f, f->bytes);
}
