/* Data-parallel gradient buckets (Li et al., PyTorch Distributed, VLDB 2020). A bucket is one buffer with the main
 * gradients (tg_set_main_grad) of many parameters. One collective sums it over the data-parallel ranks while backward
 * still runs.
 *
 * The parameters are laid out in reverse order, because backward produces their gradients in about that order. The sums
 * start strictly in the order of the buckets, so that all ranks start them in the same order, whatever the order in
 * which the gradients arrive. All tg_buckets objects of a tg_parallel share one communicator, so their buckets have one
 * common order: those of the newest object come first.
 *
 * After the gradients a bucket has one flag for each of its parameters. The flag is 1 if this rank has a gradient of
 * the parameter, else 0. The sum of a flag over the ranks tells whether any rank has a gradient. */
#include <math.h>
#include <stdio.h>
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>

#include "base/host_memory.h"
#include "parallel/dp/grads.h"
#include "autograd/gradients.h"
#include "autograd/hooks.h"

typedef struct bucket_item {
    tg_buckets *of; /* the object that has this item */
    tg_tensor *param, *view; /* view: the part of the bucket that is the main gradient of param */
    tg_ref ref;     /* detects that param was dropped */
    uint64_t hook;  /* the hook of param that calls gradient_arrived */
    int bucket;     /* index of its bucket */
    int64_t offset; /* in elements of the bucket */
    bool ready;     /* its last gradient of this step has arrived */
} bucket_item;

typedef struct bucket {
    tg_tensor *flat;
    int first, n;    /* index of its first item, and number of its items */
    int64_t payload; /* number of elements before the flags */
    int ready;       /* number of items that are ready */
} bucket;

struct tg_buckets {
    tg_parallel_listener listener; /* first member: callbacks convert its address */
    tg_ctx *ctx;
    tg_parallel *p; /* NULL: the tg_parallel was freed */
    tg_buckets *next; /* in the list of p, newest first */
    tg_comm *comm;    /* dp and cp together */
    uint32_t axes;    /* as bits, those of dp and cp that have several ranks */
    int n, n_buckets, started; /* numbers of items, of buckets, and of buckets whose sum has started in this step */
    bool reduce;               /* the sums are switched on (tg_buckets_set_reduce) */
    size_t bytes;              /* size of this allocation, with items and buckets */
    bucket *bucket;
    bucket_item item[];
};

enum { ALIGN = 64 }; /* in elements; every parameter begins at a multiple of this */

static int64_t aligned(int64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Returns false if the parameter was dropped; another tensor may then have its handle. */
static bool alive(const bucket_item *it) { return it->param->serial == it->ref.serial; }

/* Returns whether backward may start sums now. */
static bool reduces(const tg_buckets *b) { return b->reduce && !b->p->buckets_held; }

/* ---- One bucket ---- */

/* Returns element `at` of a bucket as an array. */
static tg_array element(tg_tensor *flat, int64_t at) {
    static const int64_t one[1] = {1};
    tg_array a = tg_array_of(flat);
    if (a.data) a.data = (char *)a.data + (size_t)at * tg_dtype_size(flat->dtype);
    a.shape = a.stride = one;
    a.numel = 1;
    return a;
}

tg_tensor *tg_gradient_or_zero(tg_tensor *x) {
    tg_tensor *g = tg_gradient_buffer(x);
    if (!g || x->ext->has_grad) return g;
    return x->ctx->run.ops->fill(x->ctx, tg_array_of(g), 0) == TG_OK ? g : NULL;
}

/* Starts the sum of a bucket. */
static tg_status start(tg_buckets *b, bucket *k) {
    tg_ctx *ctx = b->ctx;
    for (int i = k->first; i < k->first + k->n; i++) {
        const bucket_item *it = &b->item[i];
        if (alive(it) && !tg_gradient_or_zero(it->param)) return ctx->run.status;
        bool has = alive(it) && it->param->ext->has_grad;
        TG_TRY(ctx->run.ops->fill(ctx, element(k->flat, k->payload + i - k->first), has));
    }
    return tg_comm_all_reduce(b->comm, k->flat, k->flat, TG_REDUCE_SUM) ? TG_OK : ctx->run.status;
}

/* Starts the sums of buckets in order, up to the first bucket that lacks gradients. Also stops at a bucket of an object
 * whose sums are switched off (tg_buckets_set_reduce). Ranks with fewer micro-batches may have switched these sums on
 * already and start that bucket next, so this rank must not start a later bucket before it. */
static tg_status start_ready(tg_parallel *p) {
    for (tg_buckets *b = p->buckets; b; b = b->next)
        while (b->started < b->n_buckets) {
            bucket *k = &b->bucket[b->started];
            if (!reduces(b) || k->ready < k->n) return TG_OK;
            b->started++;
            TG_TRY(start(b, k));
        }
    return TG_OK;
}

/* The hook that runs when backward has accumulated a gradient of a parameter. Fails if the sum of the parameter's
 * bucket has started. */
static tg_status gradient_arrived(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    bucket_item *it = user;
    tg_buckets *b = it->of;
    (void)t, (void)grad;
    if (it->bucket < b->started) {
        char what[160];
        tg_describe(x, what, sizeof what);
        return tg_fail(x->ctx, TG_ERR_STATE,
                       "a gradient of %s came after the sum of its bucket had started; call tg_buckets_set_reduce(b, "
                       "false) for all micro-batches but the last, and tg_grads_finalize after the last",
                       what);
    }
    if (!reduces(b) || it->ready) return TG_OK;
    it->ready = true;
    b->bucket[it->bucket].ready++;
    return start_ready(b->p);
}

/* ---- The end of a step ---- */

/* Sets has_grad of the parameters that have a gradient on some rank. Reads from the device only the flags of parameters
 * without a gradient on this rank; most steps have no such parameter. */
static tg_status read_flags(tg_buckets *b, bucket *k) {
    tg_ctx *ctx = b->ctx;
    TG_TRY(tg_storage_need(k->flat->storage, k->flat));
    for (int i = 0; i < k->n && !ctx->meta; i++) {
        union {
            float f;
            double d;
        } word;
        const bucket_item *it = &b->item[k->first + i];
        if (!alive(it) || it->param->ext->has_grad) continue;
        TG_TRY(tg_grads_may_read(ctx));
        tg_array from = element(k->flat, k->payload + i);
        TG_TRY(ctx->run.ops->copy(ctx, &word, from.data, tg_dtype_size(k->flat->dtype), TG_COPY_TO_HOST));
        double ranks = k->flat->dtype == TG_F64 ? word.d : (double)word.f;
        it->param->ext->has_grad = ranks > 0;
    }
    return TG_OK;
}

static void reset(tg_buckets *b) {
    for (int i = 0; i < b->n; i++) b->item[i].ready = false;
    for (int k = 0; k < b->n_buckets; k++) b->bucket[k].ready = 0;
    b->started = 0;
}

tg_status tg_buckets_finish(const tg_parallel *p) {
    tg_status s = TG_OK;
    for (tg_buckets *b = p->buckets; b; b = b->next)
        while (b->started < b->n_buckets && s == TG_OK) s = start(b, &b->bucket[b->started++]);
    for (tg_buckets *b = p->buckets; b; b = b->next)
        for (int k = 0; k < b->n_buckets && s == TG_OK; k++) s = read_flags(b, &b->bucket[k]);
    for (tg_buckets *b = p->buckets; b; b = b->next) reset(b);
    return s;
}

static bool listed(const tg_tensor *x, tg_tensor *const *params, int n) {
    for (int i = 0; i < n; i++)
        if (params[i] == x) return true;
    return false;
}

/* Ignores frozen parameters without a gradient: they cannot be in params, and only zeros are summed for them. */
tg_status tg_buckets_check_all(const tg_parallel *p, tg_tensor *const *params, int n) {
    char what[160];
    for (const tg_buckets *b = p->buckets; b; b = b->next)
        for (int i = 0; i < b->n; i++) {
            const tg_tensor *x = b->item[i].param;
            if (!alive(&b->item[i]) || listed(x, params, n)) continue;
            if (!(x->flags & TG_F_REQUIRES_GRAD) && !x->ext->has_grad) continue;
            tg_describe(x, what, sizeof what);
            return tg_fail(
                p->ctx, TG_ERR_STATE,
                "tg_grads_finalize: %s is in buckets but not in params; the call ends the sums of all buckets, because "
                "other ranks may have started them: give every parameter that is in a bucket",
                what);
        }
    return TG_OK;
}

/* Discards the sums and gradients of a step that failed: all buckets become 0. */
static tg_status groups_recovered(tg_parallel_listener *l) {
    tg_buckets *b = (tg_buckets *)l;
    reset(b);
    for (int k = 0; k < b->n_buckets; k++) {
        tg_tensor *flat = b->bucket[k].flat;
        TG_TRY(tg_storage_renew(flat->storage));
        TG_TRY(b->ctx->run.ops->fill(b->ctx, tg_array_of(flat), 0));
    }
    for (int i = 0; i < b->n; i++)
        if (alive(&b->item[i])) b->item[i].param->ext->has_grad = false;
    return TG_OK;
}

/* Detaches the buckets from the tg_parallel, which is about to be freed. From now on the buckets only hold gradients,
 * and nothing is summed. */
static void groups_ended(tg_parallel_listener *l) {
    tg_buckets *b = (tg_buckets *)l;
    b->p = NULL;
    b->reduce = false;
    reset(b);
}

/* Adds b to the two lists of its tg_parallel: listeners and buckets. */
static void listen(tg_buckets *b) {
    b->listener = (tg_parallel_listener){.recovered = groups_recovered, .ended = groups_ended, .next = b->p->listeners};
    b->p->listeners = &b->listener;
    b->next = b->p->buckets;
    b->p->buckets = b;
}

static void unlisten(tg_buckets *b) {
    tg_parallel_listener **l = &b->p->listeners;
    tg_buckets **link = &b->p->buckets;
    while (*l != &b->listener) l = &(*l)->next;
    *l = b->listener.next;
    while (*link != b) link = &(*link)->next;
    *link = b->next;
}

/* ---- Creation ---- */

uint32_t tg_buckets_axes(const tg_parallel *p, const tg_tensor *x) {
    for (const tg_buckets *b = p->buckets; b; b = b->next)
        for (int i = 0; i < b->n; i++)
            if (b->item[i].param == x && alive(&b->item[i])) return b->axes;
    return 0;
}

static tg_status check_param(const tg_parallel *p, tg_tensor *x, uint32_t axes) {
    char what[160], place[96];
    TG_TRY(tg_check(p->ctx, x, "tg_buckets_new: a parameter"));
    tg_describe(x, what, sizeof what);
    if (x->tape || !(x->flags & TG_F_REQUIRES_GRAD))
        return tg_fail(p->ctx, TG_ERR_STATE, "tg_buckets_new: %s is not a leaf of the context that needs a gradient",
                       what);
    if (tg_buckets_axes(p, x)) return tg_fail(p->ctx, TG_ERR_STATE, "tg_buckets_new: %s is in buckets already", what);
    if (((x->place ? x->place->replicated : 0) & axes) == axes) return TG_OK;
    tg_place_text(p->ctx, x->place, place, sizeof place);
    return tg_fail(p->ctx, TG_ERR_PLACEMENT,
                   "tg_buckets_new: %s is placed as \"%s\"; it must be R on dp (and cp), so that its gradient is "
                   "summed over data-parallel ranks: declare that with tg_place or tg_module_replicate",
                   what, place);
}

/* Makes an item of each parameter, in reverse order, divides the items among buckets, and returns the number of
 * buckets. */
static int lay_out(tg_buckets *b, tg_tensor *const *params, int64_t elements) {
    int k = -1;
    for (int i = 0; i < b->n; i++) {
        tg_tensor *x = params[b->n - 1 - i];
        bool same = i && tg_accumulate_dtype(x->dtype) == tg_accumulate_dtype(b->item[i - 1].param->dtype);
        if (!same || b->bucket[k].payload >= elements) b->bucket[++k] = (bucket){.first = i};
        b->item[i] =
            (bucket_item){.of = b, .param = x, .ref = tg_ref_of(x), .bucket = k, .offset = b->bucket[k].payload};
        b->bucket[k].payload += aligned(x->numel);
        b->bucket[k].n++;
    }
    return k + 1;
}

/* Allocates a bucket, and makes its parts the main gradients of its parameters. */
static tg_status make_bucket(tg_buckets *b, bucket *k) {
    tg_ctx *ctx = b->ctx;
    tg_dtype dtype = tg_accumulate_dtype(b->item[k->first].param->dtype);
    k->flat = tg_owned_empty(ctx, dtype, 1, (const int64_t[]){k->payload + k->n}, TG_MEM_GRADIENT);
    if (!k->flat) return ctx->run.status;
    TG_TRY(ctx->run.ops->fill(ctx, tg_array_of(k->flat), 0)); /* the gaps between parameters stay 0 */
    for (int i = k->first; i < k->first + k->n; i++) {
        bucket_item *it = &b->item[i];
        it->view = tg_owned_new(ctx, dtype, it->param->ndim, it->param->shape, NULL, tg_storage_ref(k->flat->storage),
                                it->offset);
        if (!it->view) return ctx->run.status;
        TG_TRY(tg_set_main_grad(it->param, it->view));
        it->hook = tg_on_accumulated(it->param, gradient_arrived, it);
        if (!it->hook) return ctx->run.status;
    }
    return TG_OK;
}

/* Fails if sums of this step have started. The buckets of a new object come first in the order of sums, so a rank on
 * which no sum has started yet would start the sums in a different order. */
static tg_status check_time(const tg_parallel *p) {
    for (const tg_buckets *b = p->buckets; b; b = b->next)
        if (b->started)
            return tg_fail(p->ctx, TG_ERR_STATE,
                           "tg_buckets_new: sums of this step have started in other buckets; create all buckets before "
                           "the first backward of a step, or after tg_grads_finalize");
    return TG_OK;
}

static tg_status check_call(tg_parallel *p, tg_tensor *const *params, int n, int64_t elements, uint32_t axes) {
    if (n <= 0 || !params)
        return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                       "tg_buckets_new: n is %d and params is %p, expected an array of 1 or more parameters", n,
                       (const void *)params);
    if (elements < TG_NONE)
        return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                       "tg_buckets_new: elements is %lld, expected 0 (default) or more, or TG_NONE (one bucket)",
                       (long long)elements);
    TG_TRY(check_time(p));
    for (int i = 0; i < n; i++) {
        TG_TRY(check_param(p, params[i], axes));
        for (int j = 0; j < i; j++)
            if (params[i] == params[j])
                return tg_fail(p->ctx, TG_ERR_ARGUMENT, "tg_buckets_new: parameter %d is given twice", i);
    }
    return TG_OK;
}

tg_buckets *tg_buckets_new(const tg_parallel *given, tg_tensor *const *params, int n, int64_t elements) {
    tg_parallel *p = (tg_parallel *)given; /* not const, because p holds the list of its buckets */
    if (!p || p->ctx->run.status != TG_OK) return NULL;
    tg_ctx *ctx = p->ctx;
    uint32_t axes = TG_DATA_AXES & tg_grid_axes(ctx);
    if (check_call(p, params, n, elements, axes) != TG_OK) return NULL;
    size_t bytes = sizeof(tg_buckets) + (size_t)n * (sizeof(bucket_item) + sizeof(bucket));
    tg_buckets *b = tg_host_alloc(ctx, bytes);
    if (!b) return NULL;
    *b = (tg_buckets){.ctx = ctx, .p = p, .comm = p->dp_cp, .axes = axes, .n = n, .reduce = true, .bytes = bytes};
    b->bucket = (bucket *)(b->item + n);
    int64_t standard = (int64_t)fmax(40e6, 1e6 * tg_comm_size(p->dp_cp));
    b->n_buckets = lay_out(b, params, elements == TG_NONE ? INT64_MAX : elements ? elements : standard);
    listen(b);
    for (int k = 0; k < b->n_buckets; k++)
        if (make_bucket(b, &b->bucket[k]) != TG_OK) {
            tg_buckets_free(b);
            return NULL;
        }
    return b;
}

static void free_item(bucket_item *it) {
    tg_tensor *x = it->param;
    if (alive(it) && x->ext) {
        if (x->ext->main_grad == it->view) x->ext->main_grad = NULL, x->ext->has_grad = false;
        if (it->hook) tg_hook_drop(x, it->hook);
    }
    tg_drop(it->view);
}

void tg_buckets_free(tg_buckets *b) {
    if (!b) return;
    tg_ctx *ctx = b->ctx;
    if (b->p) unlisten(b);
    for (int i = 0; i < b->n; i++) free_item(&b->item[i]);
    for (int k = 0; k < b->n_buckets; k++) tg_drop(b->bucket[k].flat);
    tg_host_free(ctx, b, b->bytes);
}

void tg_buckets_hold(const tg_parallel *given, bool held) {
    tg_parallel *p = (tg_parallel *)given; /* not const, because p holds the state of its buckets */
    p->buckets_held = held;
}

bool tg_buckets_set_reduce(tg_buckets *b, bool on) {
    bool before = b && b->reduce;
    if (b) b->reduce = on && b->p;
    return before;
}
