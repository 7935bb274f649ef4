/* A library to be preloaded: counts the calls by which a process changes files, and kills it at one of them, as kill -9
 * does. TG_KILL_AT=N: before the N-th call, from 1 on; within a write when half of it is done. TG_KILL_COUNT=FILE: a
 * line with the number of calls is added to FILE when a process ends. */
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS /* it would give two of these one name */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;
static long fatal;

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("TG_KILL_AT");
    if (at) fatal = strtol(at, NULL, 10);
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("TG_KILL_COUNT");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "%ld\n", (long)calls);
    fclose(f);
}

static _Bool is_fatal(void) { return atomic_fetch_add(&calls, 1) + 1 == fatal; }

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* The system's function, by the type that its name has here. */
#define REAL(name) (__extension__(__typeof__(&name)) dlsym(RTLD_NEXT, #name))

#define WRITING(name, offset_type)                                                                                     \
    ssize_t name(int fd, const void *buf, size_t n, offset_type offset) {                                              \
        if (is_fatal()) {                                                                                              \
            ssize_t half = REAL(name)(fd, buf, n / 2, offset);                                                         \
            (void)half;                                                                                                \
            die();                                                                                                     \
        }                                                                                                              \
        return REAL(name)(fd, buf, n, offset);                                                                         \
    }
#define CALL(name, declared, given)                                                                                    \
    int name declared {                                                                                                \
        if (is_fatal()) die();                                                                                         \
        return REAL(name) given;                                                                                       \
    }
#define OPENING(name)                                                                                                  \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list ap;                                                                                                    \
        va_start(ap, flags);                                                                                           \
        mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;                                                        \
        va_end(ap);                                                                                                    \
        if (flags & O_CREAT && is_fatal()) die();                                                                      \
        return REAL(name)(path, flags, mode);                                                                          \
    }

WRITING(pwrite, off_t)
WRITING(pwrite64, off64_t)
OPENING(open)
OPENING(open64)
CALL(fsync, (int fd), (fd))
CALL(rename, (const char *from, const char *to), (from, to))
CALL(unlink, (const char *path), (path))
CALL(remove, (const char *path), (path))
CALL(mkdir, (const char *path, mode_t mode), (path, mode))
CALL(ftruncate, (int fd, off_t n), (fd, n))
CALL(ftruncate64, (int fd, off64_t n), (fd, n))
