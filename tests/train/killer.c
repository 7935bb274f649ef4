/* A library for LD_PRELOAD that counts the calls by which a process changes files, and kills it at one of them like
 * kill -9. TG_KILL_AT=N: before the N-th call, counted from 1; within a write, when half of it is done.
 * TG_KILL_COUNT=FILE: appends the number of calls to FILE when a process ends. TG_KILL_TRACE=FILE: writes a line for
 * each call except writes, with the path. */
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS /* it would give two of these functions one name */
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
static FILE *trace;

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("TG_KILL_AT"), *path = getenv("TG_KILL_TRACE");
    if (at) fatal = strtol(at, NULL, 10);
    if (path) trace = fopen(path, "ae");
    if (trace) setvbuf(trace, NULL, _IOLBF, 0);
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

/* Path of the file or directory. */
static const char *path_of(int fd) {
    static _Thread_local char path[4096];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    return path;
}

/* The system's function; its type is that of the function of this name here. */
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
#define CALL(name, declared, given, at)                                                                                \
    int name declared {                                                                                                \
        if (is_fatal()) die();                                                                                         \
        if (trace) fprintf(trace, "%s %s\n", #name, at);                                                               \
        return REAL(name) given;                                                                                       \
    }
#define OPENING(name)                                                                                                  \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list ap;                                                                                                    \
        va_start(ap, flags);                                                                                           \
        mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;                                                        \
        va_end(ap);                                                                                                    \
        if (flags & O_CREAT && is_fatal()) die();                                                                      \
        if (flags & O_CREAT && trace) fprintf(trace, "open %s\n", path);                                               \
        return REAL(name)(path, flags, mode);                                                                          \
    }

WRITING(pwrite, off_t)
WRITING(pwrite64, off64_t)
OPENING(open)
OPENING(open64)
CALL(fsync, (int fd), (fd), path_of(fd))
CALL(rename, (const char *from, const char *to), (from, to), to)
CALL(unlink, (const char *path), (path), path)
CALL(remove, (const char *path), (path), path)
CALL(mkdir, (const char *path, mode_t mode), (path, mode), path)
CALL(ftruncate, (int fd, off_t n), (fd, n), path_of(fd))
CALL(ftruncate64, (int fd, off64_t n), (fd, n), path_of(fd))
