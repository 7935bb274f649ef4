/* What the files of the safetensors format share. */
#ifndef TG_SAFETENSORS_H
#define TG_SAFETENSORS_H

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
};

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

/* A file whose tensors come one at a time: of those given here only name, dtype and shape are read. Then each is put
 * in their order, and the writer committed. After an error of begin w has ended. */
tg_status tg_safetensors_begin(tg_writer *w, tg_ctx *ctx, const char *path, const tg_named_tensor *tensors,
                               int n_tensors, const tg_metadata *metadata, int n_metadata);
tg_status tg_safetensors_put(tg_writer *w, tg_tensor *x);

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
