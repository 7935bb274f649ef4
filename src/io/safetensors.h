/* Internals of the safetensors format: the open file, its header, checksums, the writer, and pieces and parts of
 * tensors. */
#ifndef TG_SAFETENSORS_H
#define TG_SAFETENSORS_H

#include "io/checksum.h"

#include <tapegrad/io.h>

#include "io/file.h"
#include "io/names.h"

/* PREFIX is the number of bytes before the header, which hold its length. HEADER_MAX is the greatest length of a
 * header, and FILES the greatest number of files of an index. */
enum { TG_SAFETENSORS_PREFIX = 8, TG_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000, TG_SAFETENSORS_FILES = 1024 };

struct tg_safetensors {
    tg_file file;
    int count, n_metadata;
    tg_safetensors_entry *entries; /* in the order of their bytes */
    tg_metadata *metadata;
    const void **by_name, **by_key; /* sorted */
    char *text;                     /* owns all strings */
    size_t text_bytes;
    const char *sums; /* TG_CHECKSUM_DIGITS per entry, in the order of entries; NULL if the file has none */
    const char *sum;  /* the checksum of the header; NULL if the file has none */
    /* For an index of several files. In this case `file` has the index's path and is not open, and the entries are
     * copies of the files' entries. */
    tg_safetensors **files; /* [TG_SAFETENSORS_FILES]; NULL if this is a file, not an index */
    int n_files, *file_of;  /* file_of[i] is the number of the file that has entry i */
    struct tg_mapping *mapping; /* of the file; NULL until tg_safetensors_map has mapped it */
};

/* Metadata keys of the library. SUMS: the concatenated checksums of the tensors. SUM: the checksum of all bytes before
 * the data, computed with zeros in place of its own digits. A file must have both or none, so no single damaged bit can
 * hide that it has checksums. `metadata` omits these keys, because a caller that copied them to another file would give
 * that file wrong checksums. */
#define TG_SAFETENSORS_SUMS "tapegrad.xxh64"
#define TG_SAFETENSORS_SUM  "tapegrad.xxh64.header"
/* Key in the metadata of an index: an object with the SUM of each file. So a file of another save is found. */
#define TG_SAFETENSORS_FILE_SUMS "tapegrad.xxh64.headers"

/* A dtype of the format. dtype is TG_DTYPE_DEFAULT if the library maps it to no tg_dtype. */
typedef struct tg_safetensors_dtype {
    const char *name;
    int bits;
    tg_dtype dtype;
} tg_safetensors_dtype;

const tg_safetensors_dtype *tg_safetensors_dtype_named(const char *name); /* NULL if unknown */
const tg_safetensors_dtype *tg_safetensors_dtype_of(tg_dtype dtype);      /* NULL if the format has none */

/* Parses the n bytes of the header, checks them against the file's size, and fills the members of *f from `count` to
 * `sum`. After an error tg_safetensors_close frees what was allocated. */
tg_status tg_safetensors_parse(tg_safetensors *f, const char *header, size_t n);

/* Makes the checks of tg_safetensors_read for a destination of this shape and dtype, and reads nothing. */
tg_status tg_safetensors_expect(tg_safetensors *f, const char *name, const tg_shape *shape, tg_dtype dtype,
                                bool convert);
/* Does what tg_safetensors_read does, but dst keeps its placement. For the library's own state, which is equal on
 * every rank or has a placement. */
tg_status tg_safetensors_fill(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert, const void *site);
/* Reads tensors first, first + stride, ... only to compare their checksums. Leaves out tensors of files without
 * checksums, and does nothing on device "meta". Callers verify before they change anything, so that damage is not found
 * halfway. */
tg_status tg_safetensors_verify(tg_safetensors *f, int first, int stride);

/* ---- safetensors_map.c ---- */

/* Maps the file, and makes the mapped bytes of the named tensor the bytes of parameter x. Returns false, and leaves x
 * as it is, if x needs a copy, or after recording an error. */
bool tg_safetensors_map(tg_safetensors *f, const char *name, tg_tensor *x);

/* ---- safetensors_index.c ---- */

bool tg_safetensors_is_index(const char *path); /* whether path ends in ".index.json" */
tg_safetensors *tg_safetensors_open_index(tg_ctx *ctx, const char *path);

/* ---- safetensors_part.c ---- */

/* Says which part of a tensor of the file a rank has. `whole` is the tensor's shape in the file.
 * index(x, d, at, i, &run) maps index i of dim d of the part x to an index of dim d of the whole tensor. It sets run to
 * the number of indices of the part, from i on, that are consecutive in the whole tensor. `at`, which is passed to
 * index, has this rank's positions on the axes. */
typedef struct tg_safetensors_part {
    tg_shape whole;
    int64_t (*index)(const tg_tensor *x, int d, const int *at, int64_t local, int64_t *run);
    const int *at;
} tg_safetensors_part;

/* Reads a part of the named tensor into dst, as tg_safetensors_read_part does; `who` names the function in errors. dst
 * keeps its placement. If reading fails, dst keeps its bytes too. */
tg_status tg_safetensors_fill_part(tg_safetensors *f, const char *name, tg_tensor *dst, const tg_safetensors_part *part,
                                   bool convert, const char *who, const void *site);

/* ---- Parts of safetensors.c that other files use ---- */

tg_safetensors *tg_safetensors_open_file(tg_ctx *ctx, const char *path); /* does not open an index */
/* Returns the entry of that name. If there is none, or its dtype cannot be read, records an error and returns NULL. If
 * *f is an index, replaces it by the file that has the tensor. */
const tg_safetensors_entry *tg_safetensors_require(tg_safetensors **f, const char *name, const char *who);
/* Checks that the tensor of the file has shape `whole`, that its dtype and dst's strides allow reading into dst, and
 * that dst is not read-only. */
tg_status tg_safetensors_check_destination(tg_safetensors *f, const tg_safetensors_entry *e, const tg_tensor *dst,
                                           const tg_shape *whole, bool convert, const char *who);
/* Reads bytes of tensor e from an offset of the file into host memory, and adds them to the checksum. A bool that is
 * neither 0 nor 1 fails with TG_ERR_DATA. */
tg_status tg_safetensors_read_bytes(tg_safetensors *f, const tg_safetensors_entry *e, int64_t offset, void *to,
                                    size_t bytes, tg_summing *sum);
/* Compares the checksum of all bytes of tensor e with the file's, if the file has checksums. */
tg_status tg_safetensors_check_sum(const tg_safetensors *f, const tg_safetensors_entry *e, const tg_summing *sum);

/* Writer of a file whose tensors arrive one at a time. tg_safetensors_begin needs only their names, dtypes and
 * shapes. tg_safetensors_put then writes one tensor per call, in this order, and tg_safetensors_commit writes the
 * header with the checksums. tg_safetensors_commit or tg_safetensors_abandon ends the writing. tg_safetensors_abandon
 * may be called after any failure, and does nothing if the writing has ended or *w is zeroed. */
typedef struct tg_safetensors_writer {
    tg_ctx *ctx;
    tg_writer file;
    char *header;            /* everything before the data */
    size_t bytes, sums, sum; /* length of the header, and offsets in it of the digits of both checksum keys */
    int count, next;         /* number of tensors, and number of tensors that were written */
} tg_safetensors_writer;

tg_status tg_safetensors_begin(tg_safetensors_writer *w, tg_ctx *ctx, const char *path, const tg_named_tensor *tensors,
                               int n_tensors, const tg_metadata *metadata, int n_metadata);
tg_status tg_safetensors_put(tg_safetensors_writer *w, tg_tensor *x);
/* Completes the file. On failure abandons it. sum (may be NULL) receives the digits of the header's checksum,
 * which covers the checksums of all tensors, and a zero. */
tg_status tg_safetensors_commit(tg_safetensors_writer *w, char sum[TG_CHECKSUM_DIGITS + 1]);
void tg_safetensors_abandon(tg_safetensors_writer *w);

/* Iterates over a tensor in row-major pieces of at most TG_IO_CHUNK / 8 elements. Each piece is a view of the same
 * bytes. */
typedef struct tg_pieces {
    tg_tensor *x;
    int ndim, split;     /* a piece has `rows` indices of dim `split`, or those left, and all of the later dims */
    int64_t inner, rows; /* inner: elements per index of dim split */
    int64_t next;        /* index of the first element of the next piece */
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
} tg_pieces;

void tg_pieces_begin(tg_pieces *p, tg_tensor *x);
/* Returns the next piece, which the caller frees with tg_temp_free; NULL after the last one and on errors. */
tg_tensor *tg_pieces_next(tg_pieces *p);

#endif
