/* What the library requests from the operating system: memory, the number of cores, time, and threads. Large blocks are
 * mapped, so that they can use huge pages. */
#define _GNU_SOURCE /* sched_getaffinity, MAP_ANONYMOUS, MADV_HUGEPAGE */
#include "base/os.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const size_t HUGE_PAGE = (size_t)2 << 20;

static size_t whole_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Returns a mapping that begins at a multiple of HUGE_PAGE, so that huge pages can back it from its first byte on.
 * To get one, maps more bytes than requested and unmaps what lies before and after the block. */
static void *map(size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = whole_pages(bytes);
    size_t mapped = bytes + HUGE_PAGE;
    char *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE, after = mapped - before - bytes;
    if (before) munmap(p, before);
    if (after) munmap(p + before + bytes, after);
    madvise(p + before, bytes, MADV_HUGEPAGE); /* only a hint: if it fails, the memory works just as well */
    return p + before;
}

static void *system_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    if (bytes >= HUGE_PAGE) return map(bytes);
    void *p;
    return posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes) ? NULL : p;
}

static void system_free(void *user, void *p, size_t bytes) {
    (void)user;
    if (!p) return;
    if (bytes >= HUGE_PAGE)
        munmap(p, whole_pages(bytes));
    else
        free(p);
}

tg_allocator tg_system_allocator(void) {
    return (tg_allocator){.alloc = system_alloc, .free = system_free};
}

int tg_system_cores(void) {
    enum { MAX_CORES = 1 << 16 };
    size_t set[MAX_CORES / 8 / sizeof(size_t)];
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int allowed =
        sched_getaffinity(0, sizeof set, (cpu_set_t *)set) == 0 ? CPU_COUNT_S(sizeof set, (cpu_set_t *)set) : 0;
    if (allowed > 0) return allowed;
    return online > 0 ? (int)online : 1;
}

double tg_system_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int tg_system_thread(pthread_t *thread, void *(*fn)(void *arg), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
