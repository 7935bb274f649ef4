/* Files: safetensors, token data, checkpoints that exist whole or not at all.
 *
 * Every function reports through its context, with the path and the byte offset: TG_ERR_IO where the system refused,
 * TG_ERR_FORMAT where a file is malformed, TG_ERR_DATA where a value in it is out of range. What *_open returns is
 * ended by *_close, before its context is freed; it is NULL after an error, and every function here takes NULL and
 * answers as for an empty object, or with TG_ERR_ARGUMENT.
 *
 * What is written appears under its name complete, or not at all: it is written under a temporary name in the same
 * directory, synced to the disk, and renamed; then the directory is synced. After a failure the old file is
 * untouched and the temporary one gone.
 *
 * Files are read by pread, never mapped: one that is cut short under us is an error, not a signal.
 */
#ifndef TAPEGRAD_IO_H
#define TAPEGRAD_IO_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes a whole file, as said above. data may be NULL when bytes is 0. */
TG_API tg_status tg_file_save(tg_ctx *ctx, const char *path, const void *data, size_t bytes);

/* ---- safetensors (github.com/huggingface/safetensors, README, "Format") ----
 *
 * Eight bytes little-endian length of the header, the header (a JSON object from tensor name to dtype, shape and
 * data_offsets, and "__metadata__" from string to string), then the tensors' bytes, row-major, little-endian, without
 * holes. Read strictly: a header that is longer than 100 MB or the file, does not begin with '{', is not JSON or not
 * UTF-8, repeats a key, or holds anything but what is named here is refused, and so is a tensor of unknown dtype,
 * of overflowing size, whose offsets do not fit its size, that leaves a hole, overlaps, or passes the end, and
 * bytes after the last one. Before data is read the memory used is a small multiple of the header's length.
 *
 * What is saved has checksums: XXH64 with seed 0, as 16 lower-case hexadecimal digits. The metadata "tapegrad.xxh64" is
 * those of the tensors' bytes, one behind the other in the order of their data, and "tapegrad.xxh64.header" that of all
 * bytes before the data, its own digits taken as zeros. A header that does not fit its checksum is TG_ERR_FORMAT; a
 * tensor whose bytes do not fit theirs TG_ERR_DATA, when it is read. Neither is listed with the metadata, nor may be
 * given. Files without them, other programs', are read as they are. */

/* The checksum of bytes in memory. data may be NULL when bytes is 0. */
TG_API uint64_t tg_checksum(const void *data, size_t bytes);

typedef struct tg_safetensors tg_safetensors;

typedef struct tg_safetensors_entry {
    const char *name;
    const char *dtype_name; /* the format's: "F32" */
    tg_dtype dtype;         /* TG_DTYPE_DEFAULT: one that this library has no type for; it cannot be read */
    tg_shape shape;
    int64_t begin, end; /* of the tensor's bytes, counted from the start of the file */
} tg_safetensors_entry;

typedef struct tg_metadata {
    const char *key, *value;
} tg_metadata;

/* Reads and checks the header. */
TG_API tg_safetensors *tg_safetensors_open(tg_ctx *ctx, const char *path);
TG_API void tg_safetensors_close(tg_safetensors *f);

/* The tensors in the order of their bytes. What these return is the file's, until its close; NULL: none such. */
TG_API int tg_safetensors_count(const tg_safetensors *f);
TG_API const tg_safetensors_entry *tg_safetensors_at(const tg_safetensors *f, int i);
TG_API const tg_safetensors_entry *tg_safetensors_find(const tg_safetensors *f, const char *name);

/* The metadata in the order of the header, without checksums. */
TG_API int tg_safetensors_metadata_count(const tg_safetensors *f);
TG_API const tg_metadata *tg_safetensors_metadata_at(const tg_safetensors *f, int i);
TG_API const char *tg_safetensors_metadata(const tg_safetensors *f, const char *key);

/* Fills dst, of the same shape, with any strides, from the tensor of that name. The dtypes must agree, unless convert
 * is set and both are floats: then values are rounded to nearest even. On device meta it only checks the header. After
 * an error dst may hold a part, or damaged bytes. Over ranks a parameter, and a leaf that was placed, keep their
 * placement; another leaf becomes VARYING, as with tg_write, since each rank may have a file of its own (tg_place). */
TG_API tg_status tg_safetensors_read(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert);
/* Creates a tensor of the context, in the file's dtype. Over ranks it is VARYING, as with tg_from_host. */
TG_API tg_tensor *tg_safetensors_load(tg_safetensors *f, const char *name);

typedef struct tg_named_tensor {
    const char *name;
    tg_tensor *tensor;
} tg_named_tensor;

/* Writes the tensors in the given order, whatever their strides; names are unique and UTF-8. metadata may be NULL
 * when n_metadata is 0. The data begin at a multiple of 8. Needs memory for the header and one small buffer. */
TG_API tg_status tg_safetensors_save(tg_ctx *ctx, const char *path, const tg_named_tensor *tensors, int n_tensors,
                                     const tg_metadata *metadata, int n_metadata);

/* ---- Token data ---- */

typedef enum tg_token_format {
    TG_TOKENS_TEXT, /* a token is a byte */
    TG_TOKENS_U16,  /* little-endian, without a header */
    TG_TOKENS_U32,
    TG_TOKENS_MEGATRON, /* Megatron-LM's indexed dataset: path is NAME.bin, NAME.idx or NAME; both files are there */
} tg_token_format;

typedef struct tg_tokens tg_tokens;

/* Opens a stream of tokens and reads it through once: an empty file, one that ends inside a token, and an id that is
 * not below vocab are refused, with the offset. vocab 0: all that the format can hold. */
TG_API tg_tokens *tg_tokens_open(tg_ctx *ctx, const char *path, tg_token_format format, int64_t vocab);
TG_API void tg_tokens_close(tg_tokens *t);
TG_API int64_t tg_tokens_count(const tg_tokens *t);
/* out[i] = token first + i, for i in [0, n). Allocates nothing. */
TG_API tg_status tg_tokens_read(tg_tokens *t, int64_t first, int64_t n, int64_t *out);

#ifdef __cplusplus
}
#endif

#endif
