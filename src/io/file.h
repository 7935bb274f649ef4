/* File access. The library reads and writes the program's files with these functions, except for files that are mapped
 * (core/memory/mapping.h). Tests can make each call of a slot of tg_file_ops fail. Error messages quote paths as the
 * caller gave them. */
#ifndef TG_FILE_H
#define TG_FILE_H

#include "base/memory/host_memory.h"
#include "base/private_api.h"
#include "core/context.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file formats are little-endian, and this code does not swap bytes for a big-endian machine"
#endif

/* Size of buffers for copies, in bytes. */
enum { TG_IO_CHUNK = 1 << 20 };

/* Returns the status of the context: its error, or TG_OK if it has none; TG_ERR_ARGUMENT if ctx is NULL. Public
 * functions call it first. Functions also call it after a failed allocation, to return the error that was recorded. */
static inline tg_status tg_io_enter(const tg_ctx *ctx) {
    return ctx ? ctx->run.status : TG_ERR_ARGUMENT;
}

/* Returns the context's file functions, with system calls in the empty slots. */
tg_file_ops tg_file_ops_of(const tg_ctx *ctx);
/* Records "cannot <verb> '<path>'" with the text of errno, and with the offset unless it is negative. Returns
 * TG_ERR_MEMORY if errno is ENOMEM, else TG_ERR_IO. */
tg_status tg_file_fail(tg_ctx *ctx, const char *verb, const char *path, int64_t offset);
/* Returns a new string, formatted like sprintf. The caller frees the string with tg_host_strfree. If there is no
 * memory, records the error and returns NULL. */
char *tg_format_path(tg_ctx *ctx, const char *format, ...) TG_PRINTF(2, 3);

/* Sets *exists to whether the context's file functions open `path` for reading. No file of that name means false; any
 * other failure to open it is reported, so that a file is never taken for absent because of it. path NULL, after a
 * tg_format_path without memory, returns that error. */
tg_status tg_file_exists(tg_ctx *ctx, const char *path, bool *exists);

/* A regular file that is open for reading. path is NULL once the file is closed. */
typedef struct tg_file {
    tg_ctx *ctx;
    tg_file_ops ops;
    char *path;
    int fd;
    int64_t size; /* in bytes, when the file was opened */
} tg_file;

/* Opens a regular file. Any other kind of file fails with TG_ERR_IO. */
tg_status tg_file_open(tg_file *f, tg_ctx *ctx, const char *path);
void tg_file_close(tg_file *f);
/* Reads exactly `bytes` bytes from offset. Fails with TG_ERR_IO if the file ends before that. */
tg_status tg_file_read(tg_file *f, int64_t offset, void *dst, size_t bytes);
/* Reads a whole file into new memory at *data and appends a zero. The caller frees *data with tg_host_free(ctx, *data,
 * *bytes + 1). A file of more than `limit` bytes fails with TG_ERR_FORMAT. */
TG_PRIVATE_API tg_status tg_file_load(tg_ctx *ctx, const char *path, size_t limit, char **data, size_t *bytes);

/* A file that is being written under a temporary name. tg_writer_commit or tg_writer_abandon ends the writing.
 * tg_writer_abandon may be called after any failure, and does nothing if the writing has ended or *w is zeroed. */
typedef struct tg_writer {
    tg_ctx *ctx;
    tg_file_ops ops;
    char *path, *temporary; /* final name, and the name until commit */
    int fd;
    int64_t offset; /* where the next tg_writer_put writes */
} tg_writer;

TG_PRIVATE_API tg_status tg_writer_open(tg_writer *w, tg_ctx *ctx, const char *path);
TG_PRIVATE_API tg_status tg_writer_put(tg_writer *w, const void *data, size_t bytes);
/* Writes at another offset, without changing where the next tg_writer_put writes. */
tg_status tg_writer_put_at(tg_writer *w, int64_t offset, const void *data, size_t bytes);
/* Syncs the file to the disk, renames it to its final name, and syncs its directory. If a step before the last one
 * fails, removes the file. Ends the writing in any case. */
TG_PRIVATE_API tg_status tg_writer_commit(tg_writer *w);
TG_PRIVATE_API void tg_writer_abandon(tg_writer *w); /* removes the temporary file */

/* Returns whether the text can be what tg_writer_open appends to a path to make a temporary name. */
bool tg_is_temporary_suffix(const char *text);

/* Sync the entries of a directory to the disk: tg_sync_directory those of directory `path`, tg_sync_directory_of those
 * of the directory that contains path. */
TG_PRIVATE_API tg_status tg_sync_directory(tg_ctx *ctx, const char *path);
TG_PRIVATE_API tg_status tg_sync_directory_of(tg_ctx *ctx, const char *path);

#endif
