/* Ranks that are processes of one node. They map one file, allocate their contexts' memory in it, and detect processes
 * that die. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "comm/shm/launch.h"
#include "comm/shm/shm.h"

/* This process's mapping of the file. The communicators of the process use it, and so does its context's heap, which
 * may outlive them. */
struct tg_process {
    tg_arena arena; /* first, as the context holds a pointer to it */
    tg_ctx *ctx;
    tg_region *region;
    int fd, rank;
    bool own_fd, closed; /* fd is closed at the end; the communicators have ended */
    char *next, *end; /* the unused part of this rank's arena */
    tg_heap *heap;    /* for copies of data that lies outside the shared memory; NULL: none yet */
};

/* ---- Memory ---- */

static const size_t HUGE_PAGE = (size_t)2 << 20;

static void *arena_take(tg_arena *a, size_t bytes, size_t align) {
    tg_process *p = (tg_process *)a;
    size_t step = bytes >= HUGE_PAGE ? HUGE_PAGE : align > 4096 ? align : 4096;
    uintptr_t at = ((uintptr_t)p->next + step - 1) / step * step;
    if (p->closed || at > (uintptr_t)p->end || bytes > (uintptr_t)p->end - at) return NULL;
    p->next = (char *)at + bytes;
    return (void *)at;
}

static bool arena_owns(const tg_arena *a, const void *q) {
    const tg_process *p = (const tg_process *)a;
    return (uintptr_t)q - (uintptr_t)p->region < p->region->bytes;
}

static void arena_end(tg_arena *a) {
    tg_process *p = (tg_process *)a;
    tg_ctx *ctx = p->ctx;
    ctx->arena = NULL;
    tg_region_unmap(p->region, true);
    tg_host_free(ctx, p, sizeof *p);
}

static void *heap_segment(void *user, size_t bytes, size_t align) { return arena_take(user, bytes, align); }
static void heap_segment_free(void *user, void *p, size_t bytes) { (void)user, (void)p, (void)bytes; }
static void *heap_host(void *user, size_t bytes) { return tg_host_alloc(((tg_process *)user)->ctx, bytes); }
static void heap_host_free(void *user, void *p, size_t bytes) { tg_host_free(((tg_process *)user)->ctx, p, bytes); }

tg_block *tg_process_alloc(tg_process *p, size_t bytes) {
    tg_heap_source source = {.segment = heap_segment, .segment_free = heap_segment_free, .host = heap_host,
                             .host_free = heap_host_free, .user = p};
    if (!p->heap) p->heap = tg_heap_new(&source);
    return p->heap ? tg_heap_alloc(p->heap, bytes, TG_MEM_TEMPORARY) : NULL;
}

void tg_process_free(tg_process *p, tg_block *b) { tg_heap_release(p->heap, b); }

/* ---- Copies of data outside the shared memory ---- */

static int64_t sum(const int64_t *counts, int n) {
    int64_t all = 0;
    for (int i = 0; i < n; i++) all += counts[i];
    return all;
}

/* Return the number of elements of this rank's src or dst in a group of n ranks. */
static int64_t src_count(const tg_transfer *t, int n) {
    bool parts = t->kind == TG_REDUCE_SCATTER || t->kind == TG_SCATTER || t->kind == TG_ALL_TO_ALL;
    return t->send ? sum(t->send, n) : parts ? t->count * n : t->count;
}

static int64_t dst_count(const tg_transfer *t, int n) {
    bool parts = t->kind == TG_ALL_GATHER || t->kind == TG_GATHER || t->kind == TG_ALL_TO_ALL;
    return t->recv ? sum(t->recv, n) : parts ? t->count * n : t->count;
}

/* Allocates shared memory for a copy of src or dst of t. Returns NULL after recording the error. */
static tg_block *stage(tg_shm_group *s, const tg_transfer *t, size_t bytes) {
    tg_block *b = tg_process_alloc(s->self->process, bytes);
    if (!b)
        tg_fail(s->self->ctx, TG_ERR_MEMORY, "%s: out of shared memory: no %zu bytes for a copy of the data",
                tg_collective_name(t->kind), bytes);
    return b;
}

tg_status tg_shm_stage(tg_shm_group *s, tg_transfer *t, tg_shm_request *r) {
    const tg_arena *arena = &s->self->process->arena;
    size_t size = tg_dtype_size(t->dtype), src_bytes = (size_t)src_count(t, s->control.size) * size;
    if (t->src && !arena_owns(arena, t->src)) {
        if (!(r->staged_src = stage(s, t, src_bytes))) return s->self->ctx->run.status;
        t->src = memcpy(tg_block_data(r->staged_src), t->src, src_bytes);
    }
    if (t->dst && !arena_owns(arena, t->dst)) {
        r->dst = t->dst;
        r->dst_bytes = (size_t)dst_count(t, s->control.size) * size;
        if (!(r->staged_dst = stage(s, t, r->dst_bytes))) return s->self->ctx->run.status;
        t->dst = tg_block_data(r->staged_dst);
        if (t->kind == TG_BROADCAST && t->root == s->control.rank) memcpy(t->dst, r->dst, r->dst_bytes);
    }
    return TG_OK;
}

void tg_shm_unstage(tg_shm_request *r, bool done) {
    tg_process *p = r->s->self->process;
    if (r->staged_dst && done) memcpy(r->dst, tg_block_data(r->staged_dst), r->dst_bytes);
    if (r->staged_src) tg_process_free(p, r->staged_src);
    if (r->staged_dst) tg_process_free(p, r->staged_dst);
    r->staged_src = r->staged_dst = NULL;
}

/* ---- Whether a process lives ---- */

/* Returns the description of a lock on the rank's byte of the file. A rank holds this lock until it frees its last
 * communicator, and the kernel releases it if the process ends before. A process id would not do, because it may be
 * reused. */
static struct flock byte_of(int rank, short type) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

/* Returns whether the rank needs no live process: it has not attached yet, or it has returned. */
static bool needs_no_process(const tg_region_view *v, int rank) {
    int state = atomic_load_explicit(&v->region->rank_slot[rank].state, memory_order_acquire);
    return state == TG_RANK_AWAITED || state == TG_RANK_RETURNED;
}

bool tg_process_alive(const tg_region_view *v, int rank) {
    struct flock f = byte_of(rank, F_WRLCK);
    if (!tg_of_processes(v) || rank == v->me || needs_no_process(v, rank)) return true;
    if (fcntl(v->fd, F_GETLK, &f) != 0 || f.l_type != F_UNLCK) return true;
    return needs_no_process(v, rank); /* a rank that returned meanwhile set its state before it released its lock */
}

int64_t tg_process_pid(const tg_region_view *v, int rank) {
    return atomic_load_explicit(&v->region->rank_slot[rank].pid, memory_order_relaxed);
}

void tg_process_close(tg_process *p) {
    struct flock f = byte_of(p->rank, F_UNLCK);
    fcntl(p->fd, F_SETLK, &f);
    if (p->own_fd) close(p->fd);
    if (p->heap) tg_heap_free(p->heap);
    p->heap = NULL;
    p->closed = true;
}

/* ---- Attaching ---- */

/* Makes this process rank `rank` of the region. Fails if another process is this rank, or if the rank already has or
 * had a communicator. who: the public function, for errors. */
static tg_status claim_rank(tg_ctx *ctx, tg_region *r, int fd, int rank, const char *who) {
    struct flock f = byte_of(rank, F_WRLCK);
    if (rank < 0 || rank >= r->size)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: this process is rank %d of a launch of %d ranks, expected 0 to %d",
                       who, rank, r->size, r->size - 1);
    if (atomic_load_explicit(&r->rank_slot[rank].state, memory_order_acquire) != TG_RANK_AWAITED)
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: rank %d already has or had a communicator of this launch; a process can create only one",
                       who, rank);
    if (fcntl(fd, F_SETLK, &f) != 0)
        return tg_fail(ctx, TG_ERR_STATE, "%s: another process is rank %d of this launch already", who, rank);
    atomic_store_explicit(&r->rank_slot[rank].pid, (int64_t)getpid(), memory_order_relaxed);
    return TG_OK;
}

static tg_process *process_new(tg_ctx *ctx, tg_region *r, int fd, int rank, const char *who) {
    tg_process *p = claim_rank(ctx, r, fd, rank, who) == TG_OK ? tg_host_alloc(ctx, sizeof *p) : NULL;
    if (!p) return NULL;
    char *first = (char *)r + r->arenas + (size_t)rank * r->arena_bytes;
    *p = (tg_process){.arena = {arena_take, arena_owns, arena_end},
                      .ctx = ctx,
                      .region = r,
                      .fd = fd,
                      .rank = rank,
                      .next = first,
                      .end = first + r->arena_bytes};
    ctx->arena = &p->arena;
    return p;
}

/* Maps the file, and makes this process rank `rank`. Returns NULL after recording the error. */
static tg_process *map_process(tg_ctx *ctx, int fd, int rank, const char *who) {
    const char *why;
    if (ctx->meta)
        return tg_fail(ctx, TG_ERR_DEVICE,
                       "%s: ranks of one node share host memory, which device \"%s\" lacks; expected device \"cpu\" or "
                       "\"cuda\"",
                       who, ctx->run.ops->name),
               NULL;
    if (ctx->arena)
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: this context already uses the shared memory of an earlier communicator; create this "
                       "communicator before others, and only once in a process",
                       who),
               NULL;
    tg_region *r = tg_region_map(fd, true, &why);
    if (!r)
        return tg_fail(ctx, TG_ERR_STATE, "%s: this process cannot become a rank of its launch: %s", who, why), NULL;
    tg_process *p = process_new(ctx, r, fd, rank, who);
    if (!p) tg_region_unmap(r, true);
    return p;
}

tg_comm *tg_comm_attach(tg_ctx *ctx, int fd, int rank, bool own_fd) {
    const char *who = own_fd ? "tg_comm_p2p_new" : "tg_comm_launched_new";
    tg_process *p = tg_ok(ctx) ? map_process(ctx, fd, rank, who) : NULL;
    if (!p) {
        if (own_fd) close(fd);
        return tg_comm_or_inert(NULL);
    }
    p->own_fd = own_fd;
    tg_region_view view = {.region = p->region, .base = (uintptr_t)p->region, .me = rank, .fd = fd};
    return tg_comm_or_inert(tg_shm_world(ctx, &view, p));
}

/* ---- The launcher's environment variables ---- */

/* Reads a number of 0 or more from an environment variable. Returns false if there is none. */
static bool number_in(const char *variable, int *value) {
    const char *text = getenv(variable);
    return text && tg_text_int(text, 0, value);
}

int tg_comm_launched_rank(void) {
    int fd, rank;
    bool launched = number_in(TG_LAUNCH_FD, &fd) && number_in(TG_LAUNCH_RANK, &rank) && fcntl(fd, F_GETFD) >= 0;
    return launched ? rank : -1;
}

tg_comm *tg_comm_launched_new(tg_ctx *ctx) {
    int fd, rank;
    if (tg_ok(ctx) && tg_comm_launched_rank() < 0)
        tg_fail(ctx, TG_ERR_STATE, "tg_comm_launched_new: this process was not started by `tapegrad run`");
    return tg_ok(ctx) && number_in(TG_LAUNCH_FD, &fd) && number_in(TG_LAUNCH_RANK, &rank)
               ? tg_comm_attach(ctx, fd, rank, false)
               : tg_comm_or_inert(NULL);
}
