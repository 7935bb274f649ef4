/* Shared by the tests of the io layer: a directory for each test, files in it, and file functions that fail on
 * request. */
#ifndef TG_IO_FIXTURE_H
#define TG_IO_FIXTURE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tapegrad/io.h>

#include <tapegrad/checkpoint.h>

#include "check_main.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* System calls of which the fail-th fails with `error`, and which transfer at most `most` bytes at a time. */
typedef struct faulty {
    int calls, fail, error;
    size_t most;
    bool interrupts; /* every second transfer is interrupted */
    int transfers;
} faulty;

static inline bool fails(faulty *f) {
    if (++f->calls != f->fail) return false;
    errno = f->error;
    return true;
}

static inline bool interrupted(faulty *f) {
    if (!f->interrupts || ++f->transfers % 2 == 0) return false;
    errno = EINTR;
    return true;
}

static inline size_t at_most(const faulty *f, size_t n) {
    return f->most && n > f->most ? f->most : n;
}

static inline int faulty_open(void *user, const char *path, int flags, int mode) {
    return fails(user) ? -1 : open(path, flags, (mode_t)mode);
}

static inline int faulty_close(void *user, int fd) {
    int closed = close(fd); /* a close that reports an error has closed the file nevertheless */
    return fails(user) ? -1 : closed;
}

static inline int64_t faulty_pread(void *user, int fd, void *buf, size_t n, int64_t offset) {
    return fails(user) || interrupted(user) ? -1 : pread(fd, buf, at_most(user, n), offset);
}

static inline int64_t faulty_pwrite(void *user, int fd, const void *buf, size_t n, int64_t offset) {
    return fails(user) || interrupted(user) ? -1 : pwrite(fd, buf, at_most(user, n), offset);
}

static inline int faulty_fsync(void *user, int fd) {
    return fails(user) ? -1 : fsync(fd);
}

static inline int faulty_rename(void *user, const char *from, const char *to) {
    return fails(user) ? -1 : rename(from, to);
}

static inline int faulty_unlink(void *user, const char *path) {
    return fails(user) ? -1 : unlink(path);
}

static inline int faulty_mkdir(void *user, const char *path, int mode) {
    return fails(user) ? -1 : mkdir(path, (mode_t)mode);
}

static inline tg_file_ops faulty_ops(faulty *f) {
    return (tg_file_ops){.size = sizeof(tg_file_ops),
                         .open = faulty_open,
                         .close = faulty_close,
                         .pread = faulty_pread,
                         .pwrite = faulty_pwrite,
                         .fsync = faulty_fsync,
                         .rename = faulty_rename,
                         .unlink = faulty_unlink,
                         .mkdir = faulty_mkdir,
                         .user = f};
}

/* File functions of a program that keeps files elsewhere: the system knows no directory ELSEWHERE, and these functions
 * keep its files in the directory `user`. */
#define ELSEWHERE "/tapegrad-elsewhere"

static inline const char *kept_at(void *user, const char *path, char at[512]) {
    bool here = strncmp(path, ELSEWHERE, sizeof ELSEWHERE - 1) != 0;
    snprintf(at, 512, "%s%s", here ? "" : (char *)user, path + (here ? 0 : sizeof ELSEWHERE - 1));
    return at;
}

static inline int elsewhere_open(void *user, const char *path, int flags, int mode) {
    return open(kept_at(user, path, (char[512]){0}), flags, (mode_t)mode);
}

static inline int elsewhere_rename(void *user, const char *from, const char *to) {
    return rename(kept_at(user, from, (char[512]){0}), kept_at(user, to, (char[512]){0}));
}

static inline int elsewhere_unlink(void *user, const char *path) {
    return unlink(kept_at(user, path, (char[512]){0}));
}

static inline int elsewhere_mkdir(void *user, const char *path, int mode) {
    return mkdir(kept_at(user, path, (char[512]){0}), (mode_t)mode);
}

static inline tg_file_ops elsewhere_ops(char *dir) {
    return (tg_file_ops){.size = sizeof(tg_file_ops),
                         .open = elsewhere_open,
                         .rename = elsewhere_rename,
                         .unlink = elsewhere_unlink,
                         .mkdir = elsewhere_mkdir,
                         .user = dir};
}

/* An allocator whose fail-th call fails, and which counts the allocated bytes. */
typedef struct counted {
    int calls, fail, held;
    size_t bytes, peak;
} counted;

static inline void *counted_alloc(void *user, size_t bytes, size_t align) {
    counted *c = user;
    void *p = NULL;
    if (++c->calls == c->fail || posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes ? bytes : 1))
        return NULL;
    c->held++;
    c->bytes += bytes;
    if (c->bytes > c->peak) c->peak = c->bytes;
    return p;
}

static inline void counted_free(void *user, void *p, size_t bytes) {
    counted *c = user;
    c->held--;
    c->bytes -= bytes;
    free(p);
}

/* ---- A directory for one test ---- */

typedef struct workplace {
    char dir[256], path[512];
    tg_ctx *ctx;
} workplace;

static inline workplace workplace_new(const tg_config *config) {
    workplace w = {.ctx = tg_ctx_new(config)};
    const char *base = getenv("TMPDIR");
    snprintf(w.dir, sizeof w.dir, "%s/tapegrad-io-XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(w.dir));
    ck_assert_int_eq(tg_ctx_status(w.ctx), TG_OK);
    return w;
}

static inline int workplace_remove(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static inline void workplace_free(workplace *w) {
    tg_ctx_free(w->ctx);
    nftw(w->dir, workplace_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* Valid until the next call. */
static inline const char *in(workplace *w, const char *name) {
    snprintf(w->path, sizeof w->path, "%s/%s", w->dir, name);
    return w->path;
}

static inline const char *put_file(workplace *w, const char *name, const void *bytes, size_t n) {
    FILE *f = fopen(in(w, name), "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
    return w->path;
}

static inline size_t get_file(workplace *w, const char *name, char *buf, size_t n) {
    FILE *f = fopen(in(w, name), "rb");
    ck_assert_ptr_nonnull(f);
    size_t got = fread(buf, 1, n, f);
    fclose(f);
    return got;
}

/* Counts the names in a directory, without the two dots. */
static inline int entries_in(const char *path) {
    int n = -2;
    DIR *d = opendir(path);
    ck_assert_ptr_nonnull(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static inline int open_files(void) {
    return entries_in("/proc/self/fd");
}

/* Checks that the context has this error and its message contains these words, and clears it. */
static inline void expect_error(tg_ctx *ctx, tg_status s, const char *words) {
    ck_assert_msg(tg_ctx_status(ctx) == s, "%s (%s), expected %s", tg_status_name(tg_ctx_status(ctx)),
                  tg_ctx_message(ctx), tg_status_name(s));
    ck_assert_msg(strstr(tg_ctx_message(ctx), words) != NULL, "\"%s\" does not hold \"%s\"", tg_ctx_message(ctx),
                  words);
    tg_ctx_clear(ctx);
}

#endif
