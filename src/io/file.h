/* The one file layer: every byte that the library reads or writes passes here, and every call of the system can be
 * made to fail (tg_file_ops). Paths in errors are quoted as they were given. */
#ifndef TG_FILE_H
#define TG_FILE_H

#include "base/host_memory.h"
#include "core/context.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the file formats are little-endian, and so must the machine be"
#endif

/* Bytes moved at a time where a copy is needed. */
enum { TG_IO_CHUNK = 1 << 20 };

/* The entry of public functions: the sticky error, or TG_OK. */
static inline tg_status tg_io_enter(const tg_ctx *ctx) {
    return ctx ? ctx->run.status : TG_ERR_ARGUMENT;
}

/* The context's table with the system's calls in the empty slots. */
tg_file_ops tg_file_ops_of(const tg_ctx *ctx);
/* Records "cannot <verb> '<path>'" with the offset (where not negative) and what errno says. */
tg_status tg_file_fail(tg_ctx *ctx, const char *verb, const char *path, int64_t offset);
/* A new string of the context, as sprintf; NULL after recording the error. Ended by tg_host_strfree. */
char *tg_format_path(tg_ctx *ctx, const char *format, ...) TG_PRINTF(2, 3);

/* A regular file open for reading. path NULL: closed. */
typedef struct tg_file {
    tg_ctx *ctx;
    tg_file_ops ops;
    char *path;
    int fd;
    int64_t size; /* when it was opened */
} tg_file;

tg_status tg_file_open(tg_file *f, tg_ctx *ctx, const char *path);
void tg_file_close(tg_file *f);
/* Exactly bytes from offset; a file that ends before is an error. */
tg_status tg_file_read(tg_file *f, int64_t offset, void *dst, size_t bytes);
/* All of a file of at most limit bytes; ended by tg_host_free(ctx, *data, *bytes + 1), for a zero follows it. */
tg_status tg_file_load(tg_ctx *ctx, const char *path, size_t limit, char **data, size_t *bytes);

/* A file in the making. Ends by commit or abandon, which may follow any failure and one another. Zeroed: ended. */
typedef struct tg_writer {
    tg_ctx *ctx;
    tg_file_ops ops;
    char *path, *temporary;
    int fd;
    int64_t offset;
} tg_writer;

tg_status tg_writer_open(tg_writer *w, tg_ctx *ctx, const char *path);
tg_status tg_writer_put(tg_writer *w, const void *data, size_t bytes);
/* At a place of its own, where the next put does not go on. */
tg_status tg_writer_put_at(tg_writer *w, int64_t offset, const void *data, size_t bytes);
tg_status tg_writer_commit(tg_writer *w); /* on failure it is abandoned */
void tg_writer_abandon(tg_writer *w);

/* Puts a directory's entries on the disk; of: the directory that path lies in. */
tg_status tg_sync_directory(tg_ctx *ctx, const char *path);
tg_status tg_sync_directory_of(tg_ctx *ctx, const char *path);

/* The step that a directory's name says; -1: it is not a checkpoint's. */
int64_t tg_checkpoint_step(const char *name);

#endif
