/* Sharded inputs of recomputations (tg_recompute with .distribute). Such an input has the same values on every rank of
 * a group. Each rank keeps only its part of the elements. Reading the input in the second run gathers the parts. */
#include <tapegrad/comm.h>

#include "base/memory/host_memory.h"
#include "placement/rule.h"
#include "recompute/recompute.h"

enum { MAX_RANKS = 1024 }; /* the most ranks over which an input can be distributed */

/* This rank's part of a discarded input. */
typedef struct kept_part {
    struct kept_part *next; /* next free one */
    tg_storage *of;         /* the storage of the input */
    tg_tensor *part;        /* 1-D, made by tg_temp_empty; it may have no elements */
    tg_comm *comm;
} kept_part;

/* The number of this layer's slot in a context (core/parts.h). The slot holds the list of free kept_parts. Their memory
 * comes from the context's list of chunks, which the context frees when it ends. */
enum { TG_PART_RECOMPUTE = 2 };
static const tg_part_ops kept_parts = {.held = NULL};

/* Takes a kept_part, which is not initialized, or returns NULL after recording the error. */
static kept_part *part_new(tg_ctx *ctx) {
    enum { COUNT = 32 };
    kept_part *first = tg_part_of(ctx, TG_PART_RECOMPUTE);
    if (!first) {
        size_t bytes = sizeof(tg_host_chunk) + COUNT * sizeof(kept_part);
        tg_host_chunk *c = tg_host_alloc(ctx, bytes);
        if (!c) return NULL;
        c->bytes = bytes;
        c->next = ctx->chunks;
        ctx->chunks = c;
        kept_part *p = (kept_part *)c->slots;
        for (int i = 0; i < COUNT; i++) {
            p[i].next = first;
            first = &p[i];
        }
    }
    tg_part_set(ctx, TG_PART_RECOMPUTE, &kept_parts, first->next);
    return first;
}

/* Frees a kept_part. It is the release function of the input's storage. */
static void part_end(void *user) {
    kept_part *p = user;
    tg_ctx *ctx = p->of->ctx;
    tg_temp_free(p->part);
    *p = (kept_part){.next = tg_part_of(ctx, TG_PART_RECOMPUTE)};
    tg_part_set(ctx, TG_PART_RECOMPUTE, &kept_parts, p);
}

/* Returns how many of the numel elements rank r of n keeps, and sets *first to the index of the first of them. */
static int64_t share_of(int64_t numel, int r, int n, int64_t *first) {
    int64_t most = (numel + n - 1) / n, left = numel - r * most;
    *first = left > 0 ? r * most : numel;
    return left < 0 ? 0 : left < most ? left : most;
}

/* Gathers the parts of all ranks into `whole`, a handle on s. */
static tg_status gather(tg_storage *s, const kept_part *p, tg_tensor *whole) {
    int64_t counts[MAX_RANKS], first;
    int n = tg_comm_size(p->comm);
    for (int r = 0; r < n; r++) counts[r] = share_of(whole->numel, r, n, &first);
    tg_work *w = whole->numel % n ? tg_comm_all_gather_v(p->comm, whole, p->part, counts)
                                  : tg_comm_all_gather(p->comm, whole, p->part);
    return w ? tg_storage_need(s, NULL) : s->ctx->run.status;
}

/* Restores the bytes of a storage by gathering the parts. It is the restore function of the input's storage. The bytes
 * equal the earlier ones, so the storage's version must not change. */
static tg_status restore(void *user, tg_storage *s) {
    kept_part *p = user;
    uint32_t version = s->version;
    int64_t numel = (int64_t)(s->bytes / tg_dtype_size((tg_dtype)p->part->dtype));
    TG_TRY(tg_storage_bytes_again(s)); /* only now: without memory, a later read can gather the parts */
    s->extra->restore = NULL;
    tg_tensor *whole = tg_temp_new(s->ctx, (tg_dtype)p->part->dtype, 1, &numel, NULL, tg_storage_ref(s), 0);
    tg_status status = whole ? gather(s, p, whole) : s->ctx->run.status;
    tg_temp_free(whole);
    s->version = version;
    if (status != TG_OK) tg_storage_discard(s, "a gather that failed", NULL);
    s->extra->release = NULL;
    part_end(p);
    return status;
}

/* Returns whether the bytes of x belong to x as a whole, and are kept only by the tape and by the node that has just
 * saved x. Handles of the tape that share the bytes do not count: they gather them again when they are read. */
static bool is_only_user(const tg_tape *t, const tg_tensor *x) {
    const tg_storage *s = x->storage;
    return s->temporary && s->saves == 1 && s->block && tg_storage_is_of(s, t) && x->flags & TG_F_CONTIGUOUS &&
           s->bytes == (size_t)x->numel * tg_dtype_size((tg_dtype)x->dtype) &&
           !(s->extra && (s->extra->release || s->extra->refill || s->extra->restore || s->extra->buffer));
}

/* Copies this rank's part of x. Returns NULL after recording the error. */
static tg_tensor *own_part(const tg_tensor *x, const tg_comm *c) {
    tg_ctx *ctx = x->ctx;
    int64_t first, n = share_of(x->numel, tg_comm_rank(c), tg_comm_size(c), &first);
    size_t size = tg_dtype_size((tg_dtype)x->dtype);
    tg_tensor *part = tg_temp_empty(ctx, (tg_dtype)x->dtype, 1, &n, TG_MEM_SAVED);
    if (!part || !n || ctx->meta) return part;
    const char *from = (const char *)tg_data(x) + (size_t)first * size;
    if (ctx->run.ops->copy(ctx, tg_data(part), from, (size_t)n * size, TG_COPY_DEVICE) == TG_OK) return part;
    tg_temp_free(part);
    return NULL;
}

tg_status tg_distribute_check(tg_ctx *ctx, const tg_tensor *x, tg_comm *c, const char *who) {
    tg_axis axis = tg_comm_axis(c);
    if (!x)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: .distribute is set and n_in is 0, expected the tensor to distribute as input 0", who);
    if (tg_comm_ctx(c) != ctx)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: .distribute is a communicator of another context", who);
    if (tg_comm_size(c) > MAX_RANKS)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED, "%s: .distribute has %d ranks, expected at most %d", who,
                       tg_comm_size(c), MAX_RANKS);
    if (tg_comm_size(c) == 1 || !tg_grid_axes(ctx)) return TG_OK;
    char what[160];
    tg_describe(x, what, sizeof what);
    if ((unsigned)axis >= TG_MAX_AXES || !(tg_grid_axes(ctx) >> axis & 1))
        return tg_fail(ctx, TG_ERR_PLACEMENT,
                       "%s: .distribute is over \"%s\", which is no axis of the grid, so it is unknown whether input "
                       "0, %s, is the same on its ranks; pass the communicator of an axis (tg_parallel_comm)",
                       who, tg_comm_name(c), what);
    if (tg_place_on(x, axis).kind <= TG_REPLICATED) return TG_OK;
    return tg_fail(
        ctx, TG_ERR_PLACEMENT,
        "%s: .distribute is over axis %s, on which input 0, %s, differs between the ranks, so no rank could gather "
        "it from the others; unset .distribute",
        who, tg_axis_name(axis), what);
}

tg_status tg_distribute(tg_tape *t, tg_tensor *x, tg_comm *c) {
    tg_storage *s = x->storage;
    if (tg_comm_size(c) == 1 || !is_only_user(t, x)) return TG_OK;
    if (t->ctx->check) TG_TRY(tg_placement_compare_over(x, c, "tg_recompute"));
    TG_TRY(tg_storage_need(s, x));
    tg_storage_extra *e = tg_storage_extra_of(s);
    kept_part *p = e ? part_new(t->ctx) : NULL;
    if (!p) return t->ctx->run.status;
    *p = (kept_part){.of = s, .part = own_part(x, c), .comm = c};
    if (!p->part) {
        part_end(p);
        return t->ctx->run.status;
    }
    e->restore = restore;
    e->release = part_end;
    e->user = p;
    tg_storage_discard(s, "tg_recompute, which keeps this rank's part of them", NULL);
    return TG_OK;
}
