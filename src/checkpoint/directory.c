/* Checkpoint directories. A checkpoint is written under a hidden name and gets its final name when it is complete.
 * Before a checkpoint is removed, it is renamed to a hidden name again. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <tapegrad/checkpoint.h>

#include "base/memory/host_memory.h"
#include "checkpoint/directory.h"
#include "io/file.h"

struct tg_checkpoints {
    tg_ctx *ctx;
    tg_file_ops ops;
    char *dir;
    int lock; /* file descriptor of the locked file ".lock" */
    int64_t step;    /* step of the checkpoint that has begun */
    char *temporary; /* hidden directory of that checkpoint; NULL if none has begun */
};

/* ---- Names ---- */

static char *final_path(const tg_checkpoints *c, int64_t step) {
    return tg_format_path(c->ctx, "%s/step-%010" PRId64, c->dir, step);
}

static char *hidden_path(const tg_checkpoints *c, int64_t step, const char *suffix) {
    return tg_format_path(c->ctx, "%s/.step-%010" PRId64 ".%s", c->dir, step, suffix);
}

int64_t tg_checkpoint_step(const char *name) {
    char again[32];
    if (strncmp(name, "step-", 5) != 0) return -1;
    long long step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%010lld", step);
    return step >= 0 && strcmp(again, name) == 0 ? step : -1;
}

/* ---- Directories ---- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static tg_status remove_tree(tg_ctx *ctx, const char *path) {
    enum { OPEN_DIRECTORIES = 8 };
    if (nftw(path, remove_one, OPEN_DIRECTORIES, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return TG_OK;
    return tg_file_fail(ctx, "remove", path, -1);
}

/* Calls fn with every name in the directory, and stops at the first failure. */
static tg_status each_name(tg_checkpoints *c, tg_status (*fn)(tg_checkpoints *c, const char *name, void *arg),
                           void *arg) {
    DIR *d = opendir(c->dir);
    if (!d) return tg_file_fail(c->ctx, "list the directory", c->dir, -1);
    tg_status s = TG_OK;
    struct dirent *e;
    while (s == TG_OK && (errno = 0, e = readdir(d))) s = fn(c, e->d_name, arg);
    if (s == TG_OK && errno != 0) s = tg_file_fail(c->ctx, "list the directory", c->dir, -1);
    closedir(d);
    return s;
}

/* Result of count_step: the number of complete checkpoints, and the steps of the oldest and the newest. */
typedef struct steps {
    int count;
    int64_t oldest, newest;
} steps;

static tg_status count_step(tg_checkpoints *c, const char *name, void *arg) {
    (void)c;
    steps *s = arg;
    int64_t step = tg_checkpoint_step(name);
    if (step < 0) return TG_OK;
    if (s->count == 0 || step < s->oldest) s->oldest = step;
    if (s->count == 0 || step > s->newest) s->newest = step;
    s->count++;
    return TG_OK;
}

static tg_status remove_unfinished(tg_checkpoints *c, const char *name, void *arg) {
    (void)arg;
    if (strncmp(name, ".step-", 6) != 0) return TG_OK;
    char *path = tg_format_path(c->ctx, "%s/%s", c->dir, name);
    if (!path) return tg_io_enter(c->ctx);
    tg_status s = remove_tree(c->ctx, path);
    tg_host_strfree(c->ctx, path);
    return s;
}

/* ---- Open ---- */

static tg_status make_directory(tg_checkpoints *c) {
    if (c->ops.mkdir(c->ops.user, c->dir, 0777) == 0) return tg_sync_directory_of(c->ctx, c->dir);
    return errno == EEXIST ? TG_OK : tg_file_fail(c->ctx, "make the directory", c->dir, -1);
}

/* Returns whether the locked file is no longer at path. The previous owner of the lock may have removed the file, or
 * the whole directory, before it released the lock. */
static bool is_gone(int fd, const char *path) {
    struct stat of, at;
    return fstat(fd, &of) != 0 || stat(path, &at) != 0 || of.st_dev != at.st_dev || of.st_ino != at.st_ino;
}

static tg_status take_lock(tg_checkpoints *c, const char *path) {
    c->lock = c->ops.open(c->ops.user, path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (c->lock < 0) return tg_file_fail(c->ctx, "open", path, -1);
    bool taken = flock(c->lock, LOCK_EX | LOCK_NB) == 0;
    if (taken && !is_gone(c->lock, path)) return TG_OK;
    if (taken)
        return tg_fail(c->ctx, TG_ERR_STATE,
                       "'%s' was removed by another process while this one locked it; open the directory again", path);
    if (errno != EWOULDBLOCK) return tg_file_fail(c->ctx, "lock", path, -1);
    return tg_fail(c->ctx, TG_ERR_STATE, "'%s' is in use by another run, or open already in this one: '%s' is locked",
                   c->dir, path);
}

static tg_status open_directory(tg_checkpoints *c) {
    TG_TRY(make_directory(c));
    char *path = tg_format_path(c->ctx, "%s/.lock", c->dir);
    if (!path) return tg_io_enter(c->ctx);
    tg_status s = take_lock(c, path);
    tg_host_strfree(c->ctx, path);
    return s == TG_OK ? each_name(c, remove_unfinished, NULL) : s;
}

tg_checkpoints *tg_checkpoints_open(tg_ctx *ctx, const char *dir) {
    if (tg_io_enter(ctx) != TG_OK) return NULL;
    if (!dir || !*dir) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_checkpoints_open: dir is %s", dir ? "empty" : "NULL");
        return NULL;
    }
    tg_checkpoints *c = tg_host_alloc(ctx, sizeof *c);
    if (!c) return NULL;
    *c = (tg_checkpoints){.ctx = ctx, .ops = tg_file_ops_of(ctx), .dir = tg_host_strdup(ctx, dir), .lock = -1};
    if (c->dir && open_directory(c) == TG_OK) return c;
    tg_checkpoints_close(c);
    return NULL;
}

void tg_checkpoints_close(tg_checkpoints *c) {
    if (!c) return;
    tg_checkpoints_abandon(c);
    if (c->lock >= 0) c->ops.close(c->ops.user, c->lock);
    tg_host_strfree(c->ctx, c->dir);
    tg_host_free(c->ctx, c, sizeof *c);
}

/* ---- Existing checkpoints ---- */

int64_t tg_checkpoints_newest(tg_checkpoints *c) {
    steps found = {0};
    if (!c || tg_io_enter(c->ctx) != TG_OK || each_name(c, count_step, &found) != TG_OK || found.count == 0) return -1;
    return found.newest;
}

size_t tg_checkpoints_path(const tg_checkpoints *c, int64_t step, char *buf, size_t n) {
    int length = c && step >= 0 ? snprintf(buf, buf ? n : 0, "%s/step-%010" PRId64, c->dir, step) : 0;
    return length > 0 ? (size_t)length : 0;
}

static tg_status remove_step(tg_checkpoints *c, int64_t step) {
    char *from = final_path(c, step), *to = hidden_path(c, step, "old");
    tg_status s = from && to ? remove_tree(c->ctx, to) : tg_io_enter(c->ctx);
    if (s == TG_OK && c->ops.rename(c->ops.user, from, to) != 0) s = tg_file_fail(c->ctx, "rename away", from, -1);
    if (s == TG_OK) s = tg_sync_directory(c->ctx, c->dir); /* so that the name disappears before the files do */
    if (s == TG_OK) s = remove_tree(c->ctx, to);
    tg_host_strfree(c->ctx, from);
    tg_host_strfree(c->ctx, to);
    return s;
}

tg_status tg_checkpoints_keep(tg_checkpoints *c, int n) {
    if (!c) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(c->ctx));
    if (n < 0) return tg_fail(c->ctx, TG_ERR_ARGUMENT, "tg_checkpoints_keep: n is %d, expected 0 or more", n);
    for (;;) {
        steps found = {0};
        TG_TRY(each_name(c, count_step, &found));
        if (found.count <= n) return TG_OK;
        TG_TRY(remove_step(c, found.oldest));
    }
}

/* ---- A new checkpoint ---- */

static tg_status require_absent(tg_checkpoints *c, int64_t step) {
    struct stat st;
    char *path = final_path(c, step);
    if (!path) return tg_io_enter(c->ctx);
    tg_status s = TG_OK;
    if (lstat(path, &st) == 0)
        s = tg_fail(c->ctx, TG_ERR_STATE, "tg_checkpoints_begin: '%s' exists already", path);
    else if (errno != ENOENT)
        s = tg_file_fail(c->ctx, "get the status of", path, -1);
    tg_host_strfree(c->ctx, path);
    return s;
}

static tg_status make_temporary(tg_checkpoints *c, const char *path) {
    TG_TRY(remove_tree(c->ctx, path));
    return c->ops.mkdir(c->ops.user, path, 0777) == 0 ? TG_OK : tg_file_fail(c->ctx, "make the directory", path, -1);
}

const char *tg_checkpoints_begin(tg_checkpoints *c, int64_t step) {
    if (!c || tg_io_enter(c->ctx) != TG_OK) return NULL;
    if (step < 0 || c->temporary) {
        tg_fail(c->ctx, step < 0 ? TG_ERR_ARGUMENT : TG_ERR_STATE, "tg_checkpoints_begin: step %lld%s", (long long)step,
                step < 0 ? ", expected 0 or more" : ", but another checkpoint has begun and is not committed");
        return NULL;
    }
    if (require_absent(c, step) != TG_OK) return NULL;
    c->step = step;
    c->temporary = hidden_path(c, step, "tmp");
    if (c->temporary && make_temporary(c, c->temporary) == TG_OK) return c->temporary;
    tg_host_strfree(c->ctx, c->temporary);
    c->temporary = NULL;
    return NULL;
}

static tg_status publish(tg_checkpoints *c) {
    TG_TRY(tg_sync_directory(c->ctx, c->temporary));
    char *path = final_path(c, c->step);
    if (!path) return tg_io_enter(c->ctx);
    tg_status s = TG_OK;
    if (c->ops.rename(c->ops.user, c->temporary, path) != 0)
        s = tg_file_fail(c->ctx, "rename the new checkpoint to", path, -1);
    tg_host_strfree(c->ctx, path);
    return s == TG_OK ? tg_sync_directory(c->ctx, c->dir) : s;
}

tg_status tg_checkpoints_commit(tg_checkpoints *c) {
    if (!c) return TG_ERR_ARGUMENT;
    tg_status s = tg_io_enter(c->ctx);
    if (s == TG_OK && !c->temporary)
        return tg_fail(c->ctx, TG_ERR_STATE, "tg_checkpoints_commit: no checkpoint has begun");
    if (s == TG_OK) s = publish(c);
    tg_checkpoints_abandon(c); /* has no effect on a directory that has been renamed */
    return s;
}

void tg_checkpoints_abandon(tg_checkpoints *c) {
    if (!c || !c->temporary) return;
    remove_tree(c->ctx, c->temporary);
    tg_host_strfree(c->ctx, c->temporary);
    c->temporary = NULL;
}
