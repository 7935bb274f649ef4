/* What the files of the safetensors format share. */
#ifndef TG_SAFETENSORS_H
#define TG_SAFETENSORS_H

#include "io/checksum.h"

#include <tapegrad/io.h>

#include "io/file.h"
#include "io/names.h"

enum { TG_SAFETENSORS_PREFIX = 8, TG_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000 };

struct tg_safetensors {
    tg_file file;
    int count, n_metadata;
    tg_safetensors_entry *entries; /* in the order of their bytes */
    tg_metadata *metadata;
    const void **by_name, **by_key; /* sorted */
    char *text;                     /* all strings */
    size_t text_bytes;
    const char *sums; /* TG_CHECKSUM_DIGITS for each entry, in their order; NULL: the file has none */
};

/* Metadata of our own: the tensors' checksums, one behind the other, and that of all bytes before the data, where its
 * own digits count as zeros. There are two, so that no damaged bit hides that a file has checksums. They are not listed
 * among the file's metadata: who copies those to another file would copy checksums that are not that file's. */
#define TG_SAFETENSORS_SUMS "tapegrad.xxh64"
#define TG_SAFETENSORS_SUM  "tapegrad.xxh64.header"

/* A dtype of the format; dtype is TG_DTYPE_DEFAULT where the library has none. */
typedef struct tg_safetensors_dtype {
    const char *name;
    int bits;
    tg_dtype dtype;
} tg_safetensors_dtype;

const tg_safetensors_dtype *tg_safetensors_dtype_named(const char *name); /* NULL: unknown */
const tg_safetensors_dtype *tg_safetensors_dtype_of(tg_dtype dtype);      /* NULL: the format has none */

/* Fills all but file from the n bytes of the header, checked against the file's size. After an error
 * tg_safetensors_close frees what there is. */
tg_status tg_safetensors_parse(tg_safetensors *f, const char *header, size_t n);

/* Whether the named tensor is there and can be read into one of that shape and dtype: what tg_safetensors_read refuses
 * for the file's sake. */
tg_status tg_safetensors_expect(tg_safetensors *f, const char *name, const tg_shape *shape, tg_dtype dtype,
                                bool convert);
/* tg_safetensors_read for the library's own state, which is the same on every rank or placed: dst keeps its placement. */
tg_status tg_safetensors_fill(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert, const void *site);
/* Reads the tensors `first`, first + stride, ... for their checksums alone, where the file has some: who does so before
 * it changes anything need not fear to stop half-way. */
tg_status tg_safetensors_verify(tg_safetensors *f, int first, int stride);

/* A file whose tensors come one at a time: of those given to begin only name, dtype and shape are read. Then each is
 * put in their order, and the writer committed: that writes the header, whose checksums are known by then. Ends by
 * commit or abandon, which may follow any failure and one another. Zeroed: ended. */
typedef struct tg_safetensors_writer {
    tg_ctx *ctx;
    tg_writer file;
    char *header;            /* all that precedes the data */
    size_t bytes, sums, sum; /* of the header, and where in it the digits go */
    int count, next;
} tg_safetensors_writer;

tg_status tg_safetensors_begin(tg_safetensors_writer *w, tg_ctx *ctx, const char *path, const tg_named_tensor *tensors,
                               int n_tensors, const tg_metadata *metadata, int n_metadata);
tg_status tg_safetensors_put(tg_safetensors_writer *w, tg_tensor *x);
/* Ends the file; on failure it is abandoned. sum (may be NULL) gets the digits of the header's checksum, which covers
 * those of all tensors. */
tg_status tg_safetensors_commit(tg_safetensors_writer *w, char sum[TG_CHECKSUM_DIGITS + 1]);
void tg_safetensors_abandon(tg_safetensors_writer *w);

/* A tensor in row-major pieces of at most TG_IO_CHUNK / 8 elements, each a view of the same bytes. */
typedef struct tg_pieces {
    tg_tensor *x;
    int ndim, split;     /* a piece has `rows` indices of dim split, and all of those after it */
    int64_t inner, rows; /* inner: elements at one index of dim split */
    int64_t next;        /* element at which the next piece begins */
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
} tg_pieces;

void tg_pieces_begin(tg_pieces *p, tg_tensor *x);
/* A context-owned handle to be dropped; NULL after the last, and on error. */
tg_tensor *tg_pieces_next(tg_pieces *p);

#endif
