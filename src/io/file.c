/* Files. Reads with pread. Writes under a temporary name, and renames the file when its bytes are on the disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <tapegrad/io.h>

#include "io/file.h"

#include "base/memory/host_memory.h"

/* ---- Default slots of tg_file_ops: the system calls ---- */

static int system_open(void *user, const char *path, int flags, int mode) {
    (void)user;
    return open(path, flags, (mode_t)mode);
}

static int system_close(void *user, int fd) {
    (void)user;
    return close(fd);
}

static int64_t system_pread(void *user, int fd, void *buf, size_t n, int64_t offset) {
    (void)user;
    return pread(fd, buf, n, offset);
}

static int64_t system_pwrite(void *user, int fd, const void *buf, size_t n, int64_t offset) {
    (void)user;
    return pwrite(fd, buf, n, offset);
}

static int system_fsync(void *user, int fd) {
    (void)user;
    return fsync(fd);
}

static int system_rename(void *user, const char *from, const char *to) {
    (void)user;
    return rename(from, to);
}

static int system_unlink(void *user, const char *path) {
    (void)user;
    return unlink(path);
}

static int system_mkdir(void *user, const char *path, int mode) {
    (void)user;
    return mkdir(path, (mode_t)mode);
}

tg_file_ops tg_file_ops_of(const tg_ctx *ctx) {
    static const tg_file_ops none = {.size = sizeof(tg_file_ops)};
    const tg_file_ops *given = ctx->files ? ctx->files : &none;
    return (tg_file_ops){
        .size = sizeof(tg_file_ops),
        .open = given->open ? given->open : system_open,
        .close = given->close ? given->close : system_close,
        .pread = given->pread ? given->pread : system_pread,
        .pwrite = given->pwrite ? given->pwrite : system_pwrite,
        .fsync = given->fsync ? given->fsync : system_fsync,
        .rename = given->rename ? given->rename : system_rename,
        .unlink = given->unlink ? given->unlink : system_unlink,
        .mkdir = given->mkdir ? given->mkdir : system_mkdir,
        .user = given->user,
    };
}

tg_status tg_file_fail(tg_ctx *ctx, const char *verb, const char *path, int64_t offset) {
    tg_status s = errno == ENOMEM ? TG_ERR_MEMORY : TG_ERR_IO;
    const char *why = strerror(errno);
    if (offset < 0) return tg_fail(ctx, s, "cannot %s '%s': %s", verb, path, why);
    return tg_fail(ctx, s, "cannot %s '%s' at offset %lld: %s", verb, path, (long long)offset, why);
}

char *tg_format_path(tg_ctx *ctx, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    char *s = n < 0 ? NULL : tg_host_alloc(ctx, (size_t)n + 1);
    if (!s) return NULL;
    va_start(ap, format);
    vsnprintf(s, (size_t)n + 1, format, ap);
    va_end(ap);
    return s;
}

static int open_retrying(const tg_file_ops *ops, const char *path, int flags) {
    int fd;
    do fd = ops->open(ops->user, path, flags | O_CLOEXEC | O_NOCTTY, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Opens for reading. Without O_NONBLOCK, opening a pipe would wait for its writer. */
static int open_to_read(const tg_file_ops *ops, const char *path) {
    return open_retrying(ops, path, O_RDONLY | O_NONBLOCK);
}

tg_status tg_file_exists(tg_ctx *ctx, const char *path, bool *exists) {
    tg_file_ops ops = tg_file_ops_of(ctx);
    if (!path) return tg_io_enter(ctx);
    int fd = open_to_read(&ops, path);
    *exists = fd >= 0;
    if (fd < 0 && errno != ENOENT && errno != ENOTDIR) return tg_file_fail(ctx, "open", path, -1);
    if (fd >= 0) ops.close(ops.user, fd);
    return TG_OK;
}

/* ---- Reading ---- */

/* Fails unless the path is a regular file. */
static tg_status refuse_other(tg_ctx *ctx, const char *path, const struct stat *st, const char *expected) {
    if (S_ISREG(st->st_mode)) return TG_OK;
    return tg_fail(ctx, TG_ERR_IO, "'%s' is %s, expected %s", path,
                   S_ISDIR(st->st_mode) ? "a directory" : "a device, pipe or socket", expected);
}

/* Fails unless the open file is a regular one, and sets its size. */
static tg_status require_regular(tg_file *f) {
    struct stat st;
    if (fstat(f->fd, &st) != 0) return tg_file_fail(f->ctx, "get the status of", f->path, -1);
    TG_TRY(refuse_other(f->ctx, f->path, &st, "a regular file"));
    f->size = st.st_size;
    return TG_OK;
}

tg_status tg_file_open(tg_file *f, tg_ctx *ctx, const char *path) {
    *f = (tg_file){.ctx = ctx, .ops = tg_file_ops_of(ctx), .path = tg_host_strdup(ctx, path), .fd = -1};
    if (!f->path) return tg_io_enter(ctx);
    f->fd = open_to_read(&f->ops, path);
    tg_status s = f->fd < 0 ? tg_file_fail(ctx, "open", path, -1) : require_regular(f);
    if (s != TG_OK) tg_file_close(f);
    return s;
}

void tg_file_close(tg_file *f) {
    if (!f->path) return;
    if (f->fd >= 0) f->ops.close(f->ops.user, f->fd);
    tg_host_strfree(f->ctx, f->path);
    f->path = NULL;
}

tg_status tg_file_read(tg_file *f, int64_t offset, void *dst, size_t bytes) {
    char *at = dst;
    while (bytes > 0) {
        int64_t n = f->ops.pread(f->ops.user, f->fd, at, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return tg_file_fail(f->ctx, "read", f->path, offset);
        if (n == 0)
            return tg_fail(f->ctx, TG_ERR_IO,
                           "'%s' ends at offset %lld, expected %zu more bytes (it had %lld when opened)", f->path,
                           (long long)offset, bytes, (long long)f->size);
        at += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return TG_OK;
}

/* Reads the whole open file, and appends a zero. */
static tg_status load_open(tg_file *f, size_t limit, char **data, size_t *bytes) {
    if ((uint64_t)f->size > limit)
        return tg_fail(f->ctx, TG_ERR_FORMAT, "'%s' has %s, expected at most %zu", f->path,
                       tg_count(f->size, "byte").text, limit);
    size_t n = (size_t)f->size;
    char *text = tg_host_alloc(f->ctx, n + 1);
    if (!text) return tg_io_enter(f->ctx);
    tg_status s = tg_file_read(f, 0, text, n);
    if (s != TG_OK) {
        tg_host_free(f->ctx, text, n + 1);
        return s;
    }
    *data = text;
    *bytes = n;
    return TG_OK;
}

tg_status tg_file_load(tg_ctx *ctx, const char *path, size_t limit, char **data, size_t *bytes) {
    tg_file f;
    TG_TRY(tg_file_open(&f, ctx, path));
    tg_status s = load_open(&f, limit, data, bytes);
    tg_file_close(&f);
    return s;
}

/* ---- Writing ---- */

/* Creates a file with an unused name in the same directory. O_EXCL skips names of other threads of this process, and
 * names that a killed process with the same id has left. */
static tg_status open_temporary(tg_writer *w) {
    for (int i = 0; i < 1000; i++) {
        tg_host_strfree(w->ctx, w->temporary);
        w->temporary = tg_format_path(w->ctx, "%s.tmp-%ld-%d", w->path, (long)getpid(), i);
        if (!w->temporary) return tg_io_enter(w->ctx);
        w->fd = open_retrying(&w->ops, w->temporary, O_WRONLY | O_CREAT | O_EXCL);
        if (w->fd >= 0) return TG_OK;
        if (errno != EEXIST) break;
    }
    tg_status s = tg_file_fail(w->ctx, "create", w->path, -1); /* the name that the caller knows */
    tg_host_strfree(w->ctx, w->temporary); /* not created here, so it must not be unlinked */
    w->temporary = NULL;
    return s;
}

bool tg_is_temporary_suffix(const char *text) {
    static const char begin[] = ".tmp-", digits[] = "0123456789";
    if (strncmp(text, begin, sizeof begin - 1) != 0) return false;
    const char *number = text + sizeof begin - 1, *end = number + strspn(number, digits);
    size_t n = *end == '-' ? strspn(end + 1, digits) : 0;
    return end > number && n > 0 && end[1 + n] == 0;
}

/* Fails if path exists and is not a regular file. Renaming the new file to it would replace a device, or a link to
 * one. */
static tg_status require_replaceable(tg_ctx *ctx, const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? refuse_other(ctx, path, &st, "a regular file or a new one") : TG_OK;
}

tg_status tg_writer_open(tg_writer *w, tg_ctx *ctx, const char *path) {
    *w = (tg_writer){.fd = -1};
    TG_TRY(require_replaceable(ctx, path));
    *w = (tg_writer){.ctx = ctx, .ops = tg_file_ops_of(ctx), .path = tg_host_strdup(ctx, path), .fd = -1};
    tg_status s = w->path ? open_temporary(w) : tg_io_enter(ctx);
    if (s != TG_OK) tg_writer_abandon(w);
    return s;
}

tg_status tg_writer_put_at(tg_writer *w, int64_t offset, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        int64_t n = w->ops.pwrite(w->ops.user, w->fd, at, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) return tg_file_fail(w->ctx, "write", w->path, offset);
        at += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return TG_OK;
}

tg_status tg_writer_put(tg_writer *w, const void *data, size_t bytes) {
    TG_TRY(tg_writer_put_at(w, w->offset, data, bytes));
    w->offset += (int64_t)bytes;
    return TG_OK;
}

/* Syncs the file to the disk and closes it. Some file systems report a full disk only at close. */
static tg_status seal(tg_writer *w) {
    if (w->ops.fsync(w->ops.user, w->fd) != 0) return tg_file_fail(w->ctx, "sync", w->path, w->offset);
    int fd = w->fd;
    w->fd = -1;
    if (w->ops.close(w->ops.user, fd) != 0 && errno != EINTR) return tg_file_fail(w->ctx, "close", w->path, w->offset);
    return TG_OK;
}

/* Syncs and closes the file, gives it its final name, and syncs its directory. */
static tg_status publish(tg_writer *w) {
    TG_TRY(seal(w));
    if (w->ops.rename(w->ops.user, w->temporary, w->path) != 0)
        return tg_file_fail(w->ctx, "rename the new file to", w->path, -1);
    tg_host_strfree(w->ctx, w->temporary);
    w->temporary = NULL;
    return tg_sync_directory_of(w->ctx, w->path);
}

tg_status tg_writer_commit(tg_writer *w) {
    tg_status s = publish(w);
    tg_writer_abandon(w);
    return s;
}

void tg_writer_abandon(tg_writer *w) {
    if (!w->ctx) return;
    if (w->fd >= 0) w->ops.close(w->ops.user, w->fd);
    if (w->temporary) w->ops.unlink(w->ops.user, w->temporary);
    tg_host_strfree(w->ctx, w->temporary);
    tg_host_strfree(w->ctx, w->path);
    *w = (tg_writer){.fd = -1};
}

tg_status tg_file_save(tg_ctx *ctx, const char *path, const void *data, size_t bytes) {
    TG_TRY(tg_io_enter(ctx));
    if (!path || (!data && bytes > 0))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_file_save: %s is NULL", path ? "data" : "path");
    tg_writer w;
    TG_TRY(tg_writer_open(&w, ctx, path));
    tg_status s = tg_writer_put(&w, data, bytes);
    if (s == TG_OK) return tg_writer_commit(&w);
    tg_writer_abandon(&w);
    return s;
}

/* ---- Directories ---- */

tg_status tg_sync_directory(tg_ctx *ctx, const char *path) {
    tg_file_ops ops = tg_file_ops_of(ctx);
    int fd = open_retrying(&ops, path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return tg_file_fail(ctx, "open the directory", path, -1);
    /* EINVAL: this file system does not sync directories. */
    tg_status s =
        ops.fsync(ops.user, fd) == 0 || errno == EINVAL ? TG_OK : tg_file_fail(ctx, "sync the directory", path, -1);
    ops.close(ops.user, fd);
    return s;
}

/* Returns the length of the first n bytes of path without trailing slashes. A path that has only slashes keeps one of
 * them, the root directory. */
static size_t without_slashes(const char *path, size_t n) {
    while (n > 1 && path[n - 1] == '/') n--;
    return n;
}

tg_status tg_sync_directory_of(tg_ctx *ctx, const char *path) {
    size_t n = without_slashes(path, strlen(path));
    while (n > 0 && path[n - 1] != '/') n--;
    if (n == 0) return tg_sync_directory(ctx, ".");
    char *parent = tg_format_path(ctx, "%.*s", (int)without_slashes(path, n), path);
    if (!parent) return tg_io_enter(ctx);
    tg_status s = tg_sync_directory(ctx, parent);
    tg_host_strfree(ctx, parent);
    return s;
}
