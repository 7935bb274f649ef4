/* What the library requests from the operating system: memory, the number of cores, time, and threads. Also a pause for
 * loops that spin. */
#ifndef TG_SYSTEM_H
#define TG_SYSTEM_H

#include <pthread.h>

#include <tapegrad/types.h>

#include "base/private_api.h"

/* Returns the allocator of a context whose config names none. */
tg_allocator tg_system_allocator(void);
/* Returns the number of cores that the calling thread may run on (its CPU affinity); at least 1. */
TG_PRIVATE_API int tg_system_cores(void);
TG_PRIVATE_API double tg_system_now(void); /* seconds on a monotonic clock */
/* Starts a thread that runs fn(arg). The thread blocks all signals, which the program's own threads handle, except
 * those for faults that the thread itself causes. Returns 0, or the error number of pthread_create. */
int tg_system_thread(pthread_t *thread, void *(*fn)(void *arg), void *arg);

/* Tells the core that this thread spins, so that the core uses less power and its other hardware thread runs
 * faster. */
static inline void tg_system_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
