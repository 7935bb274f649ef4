/* Files in memory for a context (TG_CONFIG(.files)), and an allocator that counts and limits memory (.allocator), to
 * find what a parser leaks and how much it asks for. */
#ifndef TG_TEST_FUZZ_FILES_H
#define TG_TEST_FUZZ_FILES_H

#ifndef _GNU_SOURCE
#error "_GNU_SOURCE, for memfd_create"
#endif
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tapegrad/io.h>

#include "fuzz.h"

enum { FILES = 8, FILE_NAME = 64 };

/* Each file keeps its memfd; one without a name is free. */
typedef struct files {
    struct {
        char name[FILE_NAME];
        int fd;
    } at[FILES];
    int open; /* open descriptors */
} files;

static inline int file_find(const files *f, const char *name) {
    for (int i = 0; i < FILES; i++)
        if (!strcmp(f->at[i].name, name)) return i;
    return -1;
}

static inline void files_clear(files *f) {
    for (int i = 0; i < FILES; i++) f->at[i].name[0] = 0;
}

static inline void files_start(files *f) {
    for (int i = 0; i < FILES; i++) {
        f->at[i].fd = memfd_create("fuzz", MFD_CLOEXEC);
        fuzz_must(f->at[i].fd >= 0, "memfd_create: %s", strerror(errno));
    }
}

static inline void files_end(files *f) {
    for (int i = 0; i < FILES; i++) close(f->at[i].fd);
}

static inline int file_make(files *f, const char *name) {
    int i = file_find(f, "");
    fuzz_must(i >= 0 && strlen(name) < FILE_NAME, "no room for '%s'", name);
    snprintf(f->at[i].name, FILE_NAME, "%s", name);
    fuzz_must(ftruncate(f->at[i].fd, 0) == 0, "ftruncate: %s", strerror(errno));
    return i;
}

static inline void file_put(files *f, const char *name, const void *data, size_t size) {
    int i = file_make(f, name);
    fuzz_must(pwrite(f->at[i].fd, data, size, 0) == (ssize_t)size, "pwrite: %s", strerror(errno));
}

static inline int file_open(void *user, const char *path, int flags, int mode) {
    files *f = user;
    (void)mode;
    int i = file_find(f, path);
    if (flags & O_DIRECTORY) i = 0; /* opened to be synced, which does nothing */
    else if (i >= 0 && flags & O_EXCL) return errno = EEXIST, -1;
    else if (i < 0 && flags & O_CREAT) i = file_make(f, path);
    if (i < 0) return errno = ENOENT, -1;
    f->open++;
    return f->at[i].fd;
}

static inline int file_close(void *user, int fd) {
    (void)fd;
    ((files *)user)->open--;
    return 0;
}

static inline int file_sync(void *user, int fd) {
    (void)user, (void)fd;
    return 0;
}

static inline int file_rename(void *user, const char *from, const char *to) {
    files *f = user;
    int i = file_find(f, from), old = file_find(f, to);
    if (i < 0) return errno = ENOENT, -1;
    if (old >= 0) f->at[old].name[0] = 0;
    snprintf(f->at[i].name, FILE_NAME, "%s", to);
    return 0;
}

static inline int file_unlink(void *user, const char *path) {
    files *f = user;
    int i = file_find(f, path);
    if (i < 0) return errno = ENOENT, -1;
    f->at[i].name[0] = 0;
    return 0;
}

static inline int file_mkdir(void *user, const char *path, int mode) {
    (void)user, (void)path, (void)mode;
    return errno = EEXIST, -1;
}

#define FILES_OPS(f)                                                                                                 \
    (&(tg_file_ops){.size = sizeof(tg_file_ops), .open = file_open, .close = file_close, .fsync = file_sync,          \
                    .rename = file_rename, .unlink = file_unlink, .mkdir = file_mkdir, .user = (f)})

/* An allocator with a limit of `limit` bytes that counts what it has given. */
typedef struct budget {
    size_t limit, held, peak;
} budget;

static inline void *budget_alloc(void *user, size_t bytes, size_t align) {
    budget *b = user;
    void *p = NULL;
    if (bytes > b->limit - b->held) return NULL;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes ? bytes : 1)) return NULL;
    b->held += bytes;
    if (b->held > b->peak) b->peak = b->held;
    return p;
}

static inline void budget_free(void *user, void *p, size_t bytes) {
    budget *b = user;
    if (p) b->held -= bytes;
    free(p);
}

#define BUDGET(b) {budget_alloc, budget_free, (b)}

#endif
