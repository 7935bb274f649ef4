/* Asynchronous copies between host and device, through pages: buffers in host memory that the device can access.
 *
 * The size of a page is a power of two. The first copy of a size allocates several pages of that size at once. They are
 * used in turn, so a training step that repeats its copies allocates nothing. If works that have not ended keep all of
 * them in use, more pages are allocated. */
#include "core/memory/copies.h"

#include "base/memory/host_memory.h"
#include "core/work.h"

enum {
    MIN_LOG = 12, /* log2 of the smallest page size in bytes */
    SIZES = 64 - MIN_LOG, /* number of page sizes */
    MIN_PAGES = 2, /* the fewest and the most pages of the first allocation of a size */
    MAX_PAGES = 8,
    MAX_UNORDERED = 4, /* how many downloads may hold the memory that they read (order_oldest) */
};
static const size_t piece_bytes = (size_t)32 << 20; /* size limit of an allocation of more than MIN_PAGES pages */
/* Pages above this size are added one at a time, after the first allocation of their size. */
static const size_t large_page = (size_t)64 << 10;

/* A page, and the copy that uses it. */
typedef struct copy {
    tg_ctx *ctx;
    char *page;
    int size;  /* the page has 2^(MIN_LOG + size) bytes */
    bool busy; /* the device may still use the page; `event` is recorded after that use */
    void *event;
    void *dst; /* destination of a download */
    size_t bytes;
    tg_work *work;
    struct copy *next;            /* next free page of this size */
    struct copy *older, *younger; /* neighbors in the list of downloads that have not ended */
    struct copy *sibling;         /* next in the list of all pages */
    size_t piece; /* bytes of the allocation that starts with this page; 0 for the later pages of an allocation */
} copy;

struct tg_copies {
    struct { copy *first, **end; } size[SIZES]; /* per size: a queue of free pages, which the device may still use */
    copy *all, *oldest, *youngest;
    int unordered; /* number of downloads that still hold their source */
};

/* ---- Pages ---- */

static size_t bytes_of(int size) { return (size_t)1 << (MIN_LOG + size); }

static int size_of(size_t bytes) {
    int size = 0;
    while (size < SIZES && bytes_of(size) < bytes) size++;
    return size;
}

static struct tg_copies *copies_of(tg_ctx *ctx) {
    if (ctx->copies) return ctx->copies;
    struct tg_copies *all = tg_host_alloc(ctx, sizeof *all);
    for (int i = 0; all && i < SIZES; i++) all->size[i].end = &all->size[i].first;
    return ctx->copies = all;
}

static void page_give(copy *c) {
    struct tg_copies *all = c->ctx->copies;
    c->next = NULL;
    *all->size[c->size].end = c;
    all->size[c->size].end = &c->next;
}

/* Allocates n pages of this size in one piece. */
static tg_status add_pages(tg_ctx *ctx, int size, int n) {
    struct tg_copies *all = ctx->copies;
    copy *added[MAX_PAGES];
    int made = 0;
    while (made < n && (added[made] = tg_host_alloc(ctx, sizeof(copy)))) made++;
    size_t bytes = bytes_of(size) * (size_t)n;
    char *piece = made == n ? ctx->run.ops->host_alloc(ctx, bytes) : NULL;
    if (!piece) {
        while (made) tg_host_free(ctx, added[--made], sizeof(copy));
        return tg_fail(ctx, TG_ERR_MEMORY, "out of memory: %zu bytes of host memory that device \"%s\" can access",
                       bytes, ctx->run.ops->name);
    }
    for (int i = 0; i < n; i++) {
        *added[i] = (copy){.ctx = ctx, .page = piece + bytes_of(size) * (size_t)i, .size = size, .sibling = all->all,
                           .piece = i ? 0 : bytes};
        all->all = added[i];
        page_give(added[i]);
    }
    return TG_OK;
}

/* Returns whether no page of this size exists yet. */
static bool has_no_page(const struct tg_copies *all, int size) {
    for (const copy *c = all->all; c; c = c->sibling)
        if (c->size == size) return false;
    return true;
}

static int pages_to_add(const struct tg_copies *all, int size) {
    size_t n = piece_bytes / bytes_of(size);
    if (bytes_of(size) > large_page && !has_no_page(all, size)) return 1;
    return n > MAX_PAGES ? MAX_PAGES : n < MIN_PAGES ? MIN_PAGES : (int)n;
}

/* Takes a page that can hold `bytes`: the one that has been free for longest. Waits until the device no longer uses
 * that page. If no page of the size is free, adds some. Returns NULL after recording the error. */
static copy *page_take(tg_ctx *ctx, size_t bytes) {
    struct tg_copies *all = copies_of(ctx);
    int size = size_of(bytes);
    if (!all) return NULL;
    if (size == SIZES) {
        tg_fail(ctx, TG_ERR_MEMORY, "out of memory: %zu bytes for a copy", bytes);
        return NULL;
    }
    if (!all->size[size].first && add_pages(ctx, size, pages_to_add(all, size)) != TG_OK) return NULL;
    copy *c = all->size[size].first;
    if (c->busy && ctx->run.ops->event_await(ctx, c->event) != TG_OK) return NULL;
    c->busy = false;
    all->size[size].first = c->next;
    if (!c->next) all->size[size].end = &all->size[size].first;
    return c;
}

/* ---- Works ---- */

static bool copy_test(void *self) {
    const copy *c = self;
    if (c->ctx->capture) return false; /* the device cannot be queried during a capture */
    return !c->busy || c->ctx->run.ops->event_test(c->ctx, c->event);
}

static tg_status copy_order(tg_ctx *ctx, void *self) {
    const copy *c = self;
    return c->busy ? ctx->run.ops->event_wait(ctx, c->event) : TG_OK;
}

static void upload_free(void *self) { page_give(self); }

static const tg_work_ops upload_ops = {.size = sizeof(tg_work_ops), .name = "tg_upload", .test = copy_test,
                                       .wait = copy_order, .free = upload_free, .order = copy_order};

/* Updates the count of unordered downloads: c, a download, stops holding its source. */
static void count_released(copy *c) {
    if (c->work && c->work->reads) c->ctx->copies->unordered--;
}

static tg_status download_order(tg_ctx *ctx, void *self) {
    TG_TRY(copy_order(ctx, self));
    count_released(self); /* the caller of this function ends the hold itself */
    return TG_OK;
}

static tg_status download_wait(tg_ctx *ctx, void *self) {
    copy *c = self;
    if (c->busy) TG_TRY(ctx->run.ops->event_await(ctx, c->event));
    c->busy = false;
    memcpy(c->dst, c->page, c->bytes);
    return TG_OK;
}

static void download_free(void *self) {
    copy *c = self;
    struct tg_copies *all = c->ctx->copies;
    count_released(c);
    *(c->older ? &c->older->younger : &all->oldest) = c->younger;
    *(c->younger ? &c->younger->older : &all->youngest) = c->older;
    c->older = c->younger = NULL;
    c->work = NULL;
    page_give(c);
}

static const tg_work_ops download_ops = {.size = sizeof(tg_work_ops), .name = "tg_download", .test = copy_test,
                                         .wait = download_wait, .free = download_free, .order = download_order};

/* The wait function of a download that was complete as soon as it was started. */
static tg_status wait_done(tg_ctx *ctx, void *self) {
    (void)self;
    return ctx ? TG_OK : TG_ERR_ARGUMENT;
}

static const tg_work_ops done_ops = {.size = sizeof(tg_work_ops), .name = "tg_download", .wait = wait_done};

/* ---- Copies ---- */

static tg_status start(copy *c, void *dst, const void *src, size_t bytes, tg_copy_kind kind) {
    TG_TRY(c->ctx->run.ops->copy_async(c->ctx, dst, src, bytes, kind, &c->event));
    c->busy = true;
    return TG_OK;
}

/* Returns whether the storage lives longer than a step. Such a storage is used in every step, so an upload to it orders
 * the device's later work after the copy at once. */
static bool outlives_steps(const tg_storage *s) {
    return s->category == TG_MEM_PARAMETER || s->category == TG_MEM_GRADIENT || s->category == TG_MEM_OPTIMIZER;
}

tg_status tg_copies_upload(tg_tensor *x, const void *src, size_t bytes) {
    tg_ctx *ctx = x->ctx;
    if (!bytes) return TG_OK;
    if (!ctx->run.ops->copy_async) return ctx->run.ops->copy(ctx, tg_data(x), src, bytes, TG_COPY_FROM_HOST);
    copy *c = tg_storage_extra_of(x->storage) ? page_take(ctx, bytes) : NULL;
    tg_work *w = c ? tg_work_new(ctx, &upload_ops, c) : NULL;
    if (!w) {
        if (c) page_give(c);
        return ctx->run.status;
    }
    memcpy(c->page, src, bytes);
    if (start(c, tg_data(x), c->page, bytes, TG_COPY_FROM_HOST) != TG_OK) {
        tg_work_abandon(w);
        return ctx->run.status;
    }
    TG_TRY(tg_work_fills(w, x->storage));
    return outlives_steps(x->storage) ? tg_storage_need(x->storage, x) : TG_OK;
}

/* Orders the device's later work after the oldest downloads, until fewer than MAX_UNORDERED hold their source. Source
 * memory that has been released can then be used again. Which downloads are ordered does not depend on the speed
 * of the copies. */
static tg_status order_oldest(tg_ctx *ctx) {
    for (copy *c = ctx->copies->oldest; c && ctx->copies->unordered >= MAX_UNORDERED; c = c->younger)
        if (c->work->reads) TG_TRY(tg_work_order(c->work));
    return TG_OK;
}

/* If x belongs to the context, orders all later work of the device after the copy. Such a tensor, for example a
 * gradient, may be overwritten without a check for readers. The bytes of a tape's tensor are overwritten only when
 * nothing reads them any more. */
tg_work *tg_copies_download(tg_tensor *x, void *dst, size_t bytes, bool own) {
    tg_ctx *ctx = x->ctx;
    if (!ctx->run.ops->copy_async || !bytes) {
        if (bytes && ctx->run.ops->copy(ctx, dst, tg_data(x), bytes, TG_COPY_TO_HOST) != TG_OK) return NULL;
        return tg_work_new(ctx, &done_ops, NULL);
    }
    if (!copies_of(ctx) || order_oldest(ctx) != TG_OK) return NULL;
    copy *c = page_take(ctx, bytes);
    tg_work *w = c ? tg_work_new(ctx, &download_ops, c) : NULL;
    if (!w) {
        if (c) page_give(c);
        return NULL;
    }
    struct tg_copies *all = ctx->copies;
    c->older = all->youngest;
    *(all->youngest ? &all->youngest->younger : &all->oldest) = c;
    all->youngest = c;
    c->dst = dst;
    c->bytes = bytes;
    c->work = w;
    if (start(c, c->page, tg_data(x), bytes, TG_COPY_TO_HOST) != TG_OK) {
        tg_work_end(w);
        return NULL;
    }
    tg_work_reads(w, x->storage);
    if (w->reads) all->unordered++;
    if (own || x->storage->temporary || tg_work_order(w) == TG_OK) return w;
    tg_work_end(w);
    return NULL;
}

/* Ends all copies. Downloads that the caller has not waited for write nothing to their destination. An upload is left
 * only if its storage is pinned; its bytes are complete when this returns. */
void tg_copies_free(tg_ctx *ctx) {
    struct tg_copies *all = ctx->copies;
    for (tg_work *w = ctx->works, *next; w; w = next) {
        next = w->after;
        if (w->ops == &upload_ops) w->fills->extra->work = NULL;
        if (w->ops == &upload_ops || w->ops == &done_ops) tg_work_end(w);
    }
    if (!all) return;
    while (all->oldest) {
        copy_order(ctx, all->oldest);
        tg_work_end(all->oldest->work);
    }
    for (const copy *c = all->all; c; c = c->sibling)
        if (c->busy) ctx->run.ops->event_await(ctx, c->event);
    for (copy *c = all->all, *next; c; c = next) {
        next = c->sibling;
        if (c->event) ctx->run.ops->event_free(ctx, c->event);
        if (c->piece) ctx->run.ops->host_free(ctx, c->page, c->piece);
        tg_host_free(ctx, c, sizeof *c);
    }
    tg_host_free(ctx, all, sizeof *all);
    ctx->copies = NULL;
}
