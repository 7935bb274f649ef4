/* The region: memory that ranks share, and the groups in it. Threads use their allocator; processes map an unnamed
 * file. */
#define _GNU_SOURCE
#include "comm/shm/shm.h"

#include "base/text.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t MAGIC = 0x6e67657267706174;

/* Returns a digest of the struct sizes: programs of different versions must not share a region. */
static uint64_t layout(void) {
    const size_t sizes[] = {sizeof(tg_region), sizeof(tg_rank_slot), sizeof(tg_group),       sizeof(tg_member),
                            sizeof(tg_slot),   sizeof(tg_post),      sizeof(tg_message_slot)};
    uint64_t digest = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) digest = digest * 65599 + sizes[i];
    return digest;
}

static size_t rank_slots_bytes(int n) { return sizeof(tg_region) + (size_t)n * sizeof(tg_rank_slot); }

static void begin_rank_slots(tg_region *r, int n) {
    r->size = n;
    for (int i = 0; i < n; i++) atomic_store_explicit(&r->rank_slot[i].cause, -1, memory_order_relaxed);
}

/* ---- Regions of threads ---- */

tg_region *tg_region_new(int n, const tg_allocator *allocator) {
    size_t bytes = rank_slots_bytes(n);
    tg_region *r = allocator->alloc(allocator->user, bytes, TG_LINE);
    if (!r) return NULL;
    memset(r, 0, bytes);
    r->magic = MAGIC;
    r->bytes = bytes;
    r->allocator = *allocator;
    begin_rank_slots(r, n);
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void tg_region_free(tg_region *r) {
    if (!r) return;
    tg_allocator a = r->allocator;
    for (tg_group *g = (tg_group *)(uintptr_t)r->groups, *next; g; g = next) { /* those that some member never joined */
        next = (tg_group *)(uintptr_t)g->next;
        a.free(a.user, g, g->bytes);
    }
    pthread_mutex_destroy(&r->lock);
    a.free(a.user, r, r->bytes);
}

/* ---- Regions of processes ---- */

static const size_t PAGE = (size_t)2 << 20; /* a huge page, where the kernel provides them */

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* Returns the size of each rank's arena: 64 GiB, halved until this machine can map all n arenas, but at least 64 MiB.
 * Pages that are never touched cost nothing. */
static size_t arena_bytes(int n) {
    const size_t most = (size_t)64 << 30, least = (size_t)64 << 20;
    for (size_t bytes = most; bytes > least; bytes /= 2) {
        size_t all = bytes * (size_t)n;
        void *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        munmap(p, all);
        return bytes;
    }
    return least;
}

/* Fills in the region of n processes, in which the rank slots, the heap and the arenas follow each other. */
static void lay_out(tg_region *r, int n) {
    const size_t heap_bytes = (size_t)n * ((size_t)16 << 20) + ((size_t)64 << 20);
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&r->lock, &shared);
    pthread_mutexattr_destroy(&shared);
    begin_rank_slots(r, n);
    r->heap_next = whole_pages(rank_slots_bytes(n));
    r->heap_end = r->arenas = r->heap_next + whole_pages(heap_bytes);
    r->arena_bytes = arena_bytes(n);
    r->bytes = r->arenas + (size_t)n * r->arena_bytes;
    r->layout = layout();
    r->magic = MAGIC;
}

static bool write_file(int fd, int n) {
    size_t bytes = whole_pages(rank_slots_bytes(n));
    if (ftruncate(fd, (off_t)bytes) != 0) return false;
    tg_region *r = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (r == MAP_FAILED) return false;
    lay_out(r, n);
    bool done = ftruncate(fd, (off_t)r->bytes) == 0;
    munmap(r, bytes);
    return done;
}

int tg_region_file(int n) {
    int fd = memfd_create("tapegrad", 0);
    if (fd < 0 || write_file(fd, n)) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

tg_region *tg_region_map(int fd, bool whole, const char **why) {
    struct stat file;
    tg_region *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *why = "the file cannot be mapped";
    if (r == MAP_FAILED) return NULL;
    bool fits = fstat(fd, &file) == 0 && (size_t)file.st_size >= sizeof *r && r->magic == MAGIC &&
                r->layout == layout() && (size_t)file.st_size >= r->bytes;
    size_t bytes = fits ? whole ? r->bytes : r->heap_end : 0;
    munmap(r, sizeof *r);
    *why = "the file was not made by a launcher of this version of the library";
    if (!fits) return NULL;
    *why = "the memory of all ranks cannot be mapped; raise the limit on address space (ulimit -v)";
    r = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (r == MAP_FAILED) return NULL;
    madvise(r, bytes, MADV_HUGEPAGE); /* a hint; may fail */
    return r;
}

void tg_region_unmap(tg_region *r, bool whole) { munmap(r, whole ? r->bytes : r->heap_end); }

/* ---- Shared memory for groups ---- */

/* A free block of the heap that processes share. */
typedef struct free_block {
    tg_shared next;
    size_t bytes;
} free_block;

/* Allocates memory of a group: a free block of exactly this size, or else the unused end of the heap. */
static void *allocate(const tg_region_view *v, size_t bytes) {
    tg_region *r = v->region;
    if (!tg_of_processes(v)) return r->allocator.alloc(r->allocator.user, bytes, TG_LINE);
    for (tg_shared *at = &r->heap_free; *at; at = &((free_block *)tg_at(v, *at))->next) {
        free_block *b = tg_at(v, *at);
        if (b->bytes != bytes) continue;
        *at = b->next;
        return b;
    }
    if (bytes > r->heap_end - r->heap_next) return NULL;
    r->heap_next += bytes;
    return tg_at(v, r->heap_next - bytes);
}

static void release(const tg_region_view *v, void *p, size_t bytes) {
    tg_region *r = v->region;
    if (!tg_of_processes(v)) {
        r->allocator.free(r->allocator.user, p, bytes);
        return;
    }
    *(free_block *)p = (free_block){.next = r->heap_free, .bytes = bytes};
    r->heap_free = (uintptr_t)p - v->base;
}

/* Takes the region's lock. If a rank died while it held the lock, the lists of groups and of free blocks are still
 * consistent, because each change of a list is a single store. */
static void lock(tg_region *r) {
    if (pthread_mutex_lock(&r->lock) == EOWNERDEAD) pthread_mutex_consistent(&r->lock);
}

/* ---- Groups ---- */

static size_t whole_lines(size_t bytes) { return (bytes + TG_LINE - 1) / TG_LINE * TG_LINE; }

/* Makes a group and adds it to the region's list, whose lock this rank holds. Returns NULL if memory is short. */
static tg_group *group_new(const tg_region_view *v, uint64_t origin, const int *ranks, int n, const char *name) {
    tg_region *r = v->region;
    size_t slot = whole_lines(sizeof(tg_slot) + (size_t)n * sizeof(tg_post));
    size_t slots = whole_lines(sizeof(tg_group)), messages = slots + TG_CALLS * slot;
    size_t members = messages + (size_t)n * TG_MESSAGE_SLOTS * sizeof(tg_message_slot);
    size_t lists = members + (size_t)n * sizeof(tg_member);
    size_t bytes = whole_lines(lists + (size_t)n * (size_t)n * sizeof(bool));
    tg_group *g = allocate(v, bytes);
    if (!g) return NULL;
    memset(g, 0, bytes);
    g->id = ++r->group_ids;
    g->origin = origin;
    g->bytes = bytes;
    g->slot_bytes = slot;
    g->size = n;
    g->culprit = g->reporter = -1;
    g->at_slots = slots;
    g->at_message_slots = messages;
    g->at_members = members;
    g->at_lists = lists;
    size_t at = 0;
    tg_text(g->name, sizeof g->name, &at, "%s", name ? name : "");
    for (int i = 0; i < n; i++) tg_group_member(g, i)->rank = ranks[i];
    g->next = r->groups;
    r->groups = (uintptr_t)g - v->base;
    return g;
}

static bool is_group(tg_group *g, uint64_t origin, const int *ranks, int n, int mine) {
    if (g->origin != origin || g->size != n || tg_group_member(g, mine)->joined) return false;
    for (int i = 0; i < n; i++)
        if (tg_group_member(g, i)->rank != ranks[i]) return false;
    return true;
}

/* Finds the oldest matching group that this rank has not joined, because members form groups of the same ranks in the
 * same order. The newest group is first in the region's list. */
static tg_group *find(const tg_region_view *v, uint64_t origin, const int *ranks, int n, int mine) {
    tg_group *found = NULL;
    for (tg_group *g = tg_at(v, v->region->groups); g; g = tg_at(v, g->next))
        if (is_group(g, origin, ranks, n, mine)) found = g;
    return found;
}

tg_group *tg_group_join(tg_ctx *ctx, const tg_region_view *v, uint64_t origin, const int *ranks, int n, int mine,
                        const char *name) {
    tg_region *r = v->region;
    lock(r);
    tg_group *g = find(v, origin, ranks, n, mine);
    if (!g) g = group_new(v, origin, ranks, n, name);
    if (g) {
        tg_group_member(g, mine)->joined = true;
        atomic_store_explicit(&tg_group_member(g, mine)->missed_calls, 1 + ctx->run.missed, memory_order_release);
    }
    pthread_mutex_unlock(&r->lock);
    if (!g)
        tg_fail(ctx, TG_ERR_MEMORY, "out of memory: group \"%s\" of %s", name ? name : "", tg_count(n, "rank").text);
    return g;
}

static void unlink_group(const tg_region_view *v, const tg_group *g) {
    for (tg_shared *at = &v->region->groups; *at; at = &((tg_group *)tg_at(v, *at))->next)
        if (tg_at(v, *at) == g) {
            *at = g->next;
            return;
        }
}

/* Returns whether every member has left the group or died. The caller holds the region's lock. */
static bool is_deserted(const tg_region_view *v, tg_group *g) {
    for (int i = 0; i < g->size; i++) {
        const tg_member *m = tg_group_member(g, i);
        if (!atomic_load_explicit(&m->left, memory_order_acquire) && tg_process_alive(v, m->rank)) return false;
    }
    return true;
}

/* A group stays until the region is freed if a member that lives never joins it, or if its last member dies. */
void tg_group_leave(const tg_region_view *v, tg_group *g, int mine) {
    tg_region *r = v->region;
    lock(r);
    atomic_store_explicit(&tg_group_member(g, mine)->left, true, memory_order_release);
    if (is_deserted(v, g)) {
        unlink_group(v, g);
        release(v, g, g->bytes);
    }
    pthread_mutex_unlock(&r->lock);
}
