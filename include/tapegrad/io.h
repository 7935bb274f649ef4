/* Files: safetensors, token data, and checksums. Include it to read weights or data and to write files that are
 * complete or absent. checkpoint.h has checkpoints.
 *
 * Errors are recorded in the context, with the path and the byte offset. TG_ERR_IO: a system call failed.
 * TG_ERR_FORMAT: a file is malformed. TG_ERR_DATA: a value in it is out of range. An object from *_open must be
 * closed by *_close before its context is freed. *_open returns NULL on error; every function accepts NULL as the
 * object, and returns what it would for an empty one, or TG_ERR_ARGUMENT.
 *
 * A file is written completely or not at all: under a temporary name in the same directory, which is synced to the
 * disk and renamed; then the directory is synced. After a failure the old file is unchanged and the temporary one
 * removed.
 *
 * Files are read with pread and never mapped, so a file that another process truncates causes an error, not a
 * signal. */
#ifndef TAPEGRAD_IO_H
#define TAPEGRAD_IO_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes a whole file. data may be NULL if bytes is 0. */
TG_API tg_status tg_file_save(tg_ctx *ctx, const char *path, const void *data, size_t bytes);

/* ---- safetensors (github.com/huggingface/safetensors, README, "Format") ----
 *
 * The format: the length of the header in 8 bytes, little-endian; the header, a JSON object that maps each tensor name
 * to dtype, shape and data_offsets, and "__metadata__" to an object of strings; then the tensors' bytes, row-major,
 * little-endian, without holes.
 *
 * Reading is strict. TG_ERR_FORMAT: the header is longer than 100 MB or than the file, does not begin with '{', is not
 * JSON or not UTF-8, repeats a key, or contains anything else; a tensor has an unknown dtype, a size that overflows,
 * offsets that do not match its size, leaves a hole, overlaps another, or ends after the file; or bytes follow the last
 * tensor. Until data is read, the memory used is a small multiple of the header's length.
 *
 * Saved files have checksums: XXH64 with seed 0, as 16 lower-case hexadecimal digits. The metadata "tapegrad.xxh64" are
 * the checksums of the tensors, concatenated in the order of their data. "tapegrad.xxh64.header" is the checksum of all
 * bytes before the data, computed with zeros in place of its own digits. A header that does not match fails with
 * TG_ERR_FORMAT when the file is opened; a tensor that does not match fails with TG_ERR_DATA when it is read. The two
 * keys are not listed among the metadata and must not be given to tg_safetensors_save. Files without checksums, such as
 * those of other programs, are read without them. */

/* Returns the XXH64 checksum (seed 0) of bytes in memory. data may be NULL if bytes is 0. */
TG_API uint64_t tg_checksum(const void *data, size_t bytes);

typedef struct tg_safetensors tg_safetensors;

typedef struct tg_safetensors_entry {
    const char *name;
    const char *dtype_name; /* name of the dtype in the format, such as "F32" */
    tg_dtype dtype;         /* TG_DTYPE_DEFAULT: the library has no such type, and the tensor cannot be read */
    tg_shape shape;
    int64_t begin, end; /* byte offsets in the file that has the tensor; end is the byte after the last */
} tg_safetensors_entry;

typedef struct tg_metadata {
    const char *key, *value;
} tg_metadata;

/* Opens a file and checks its header.
 *
 * A path that ends in ".index.json" is that of an index of several files, such as model.safetensors.index.json of a
 * large model: a JSON object whose member "weight_map" maps each tensor name to the name of a file in the directory of
 * the index. Then every file is opened, at most 1,024, and the functions below work on all tensors of the map. The
 * tensors are listed file by file, and an index has no metadata. TG_ERR_FORMAT: the index is malformed, names a file
 * with a slash, or a tensor that the file does not have. Tensors that are not in the map are ignored. */
TG_API tg_safetensors *tg_safetensors_open(tg_ctx *ctx, const char *path);
TG_API void tg_safetensors_close(tg_safetensors *f);

/* List the tensors in the order of their bytes. The entries belong to f and are valid until it is closed; NULL:
 * there is no tensor i or of that name. */
TG_API int tg_safetensors_count(const tg_safetensors *f);
TG_API const tg_safetensors_entry *tg_safetensors_at(const tg_safetensors *f, int i);
TG_API const tg_safetensors_entry *tg_safetensors_find(const tg_safetensors *f, const char *name);

/* List the metadata in the order of the header, without the checksums. NULL: there is no such entry. Results belong
 * to f. */
TG_API int tg_safetensors_metadata_count(const tg_safetensors *f);
TG_API const tg_metadata *tg_safetensors_metadata_at(const tg_safetensors *f, int i);
TG_API const char *tg_safetensors_metadata(const tg_safetensors *f, const char *key);

/* Reads the named tensor into dst, which must have its shape (TG_ERR_SHAPE) and may have any strides that do not make
 * elements share memory (TG_ERR_STATE). The dtypes must be equal (TG_ERR_DTYPE), unless convert is true and both are
 * floats: then values are rounded to nearest even. A missing name fails with TG_ERR_DATA. On device "meta" only these
 * checks are made. After a read error dst may contain a part of the tensor, or damaged bytes. Over ranks a parameter,
 * and a leaf that was placed, keep their placement; another leaf becomes VARYING, as with tg_write, because each rank
 * may have a file of its own (tg_place). */
TG_API tg_status tg_safetensors_read(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert);
/* Returns a new tensor of the context with the file's dtype and shape; inert on error. Over ranks it is VARYING, as
 * with tg_from_host. */
TG_API tg_tensor *tg_safetensors_load(tg_safetensors *f, const char *name);

typedef struct tg_named_tensor {
    const char *name;
    tg_tensor *tensor;
} tg_named_tensor;

/* Writes the tensors, which may have any strides, in the given order. Names and metadata keys must be unique, and
 * all strings UTF-8 (TG_ERR_ARGUMENT). tensors may be NULL if n_tensors is 0, and metadata if n_metadata is 0. The
 * data begin at a multiple of 8 bytes. The call needs memory for the header and buffers of 1 MiB. */
TG_API tg_status tg_safetensors_save(tg_ctx *ctx, const char *path, const tg_named_tensor *tensors, int n_tensors,
                                     const tg_metadata *metadata, int n_metadata);

/* ---- Token data ---- */

typedef enum tg_token_format {
    TG_TOKENS_TEXT, /* every byte is a token */
    TG_TOKENS_U16,  /* unsigned, little-endian, without a header; so is TG_TOKENS_U32 */
    TG_TOKENS_U32,
    TG_TOKENS_MEGATRON, /* Megatron-LM's indexed dataset, both NAME.bin and NAME.idx; path is either, or NAME */
} tg_token_format;

typedef struct tg_tokens tg_tokens;

/* Opens a stream of tokens and checks all of it: an empty file or an id outside [0, vocab) fails with TG_ERR_DATA, a
 * file that ends within a token with TG_ERR_FORMAT; the message has the offset. vocab 0: every id of the format. */
TG_API tg_tokens *tg_tokens_open(tg_ctx *ctx, const char *path, tg_token_format format, int64_t vocab);
TG_API void tg_tokens_close(tg_tokens *t);
TG_API int64_t tg_tokens_count(const tg_tokens *t);
/* Copies the tokens first to first + n - 1 to out[n]. A range beyond the stream fails with TG_ERR_ARGUMENT. The call
 * allocates nothing. */
TG_API tg_status tg_tokens_read(tg_tokens *t, int64_t first, int64_t n, int64_t *out);

#ifdef __cplusplus
}
#endif

#endif
