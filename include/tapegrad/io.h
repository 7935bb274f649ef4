/* Files: safetensors, token data, and checksums. Include it to read weights or token data, and to write files that are
 * either complete or absent. checkpoint.h has checkpoints.
 *
 * Errors are recorded in the context. Their messages have the path and, where a byte is at fault, its offset.
 * - TG_ERR_IO means that a system call failed, that a path is no regular file, or that a file has become shorter since
 *   it was opened.
 * - TG_ERR_FORMAT means that a file is malformed.
 * - TG_ERR_DATA means that something in a file is absent or out of range, or that a checksum does not match.
 *
 * The functions that open a file, a stream or a writer return NULL on an error. Close what they return before the
 * context is freed. The functions that take such a file, stream or writer accept NULL: those that count or find return
 * 0 or NULL, tg_safetensors_load returns an inert tensor, and those that return a status return TG_ERR_ARGUMENT.
 *
 * A file is written completely or not at all. The library writes it under a temporary name in the same directory, syncs
 * it to the disk, renames it, and syncs the directory. If a step before the sync of the directory fails, an old file of
 * that name is unchanged, and the temporary file is removed. If only that sync fails, the call reports it, but the new
 * file is there.
 *
 * Files are read with pread, so a file that another process truncates causes an error, not a signal. Only tg_lm_map
 * (lm.h) maps files. */
#ifndef TAPEGRAD_IO_H
#define TAPEGRAD_IO_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes a file of `bytes` bytes, and replaces an old file at that path. Fails with TG_ERR_IO if something other than a
 * regular file is there. data may be NULL if bytes is 0. */
TG_API tg_status tg_file_save(tg_ctx *ctx, const char *path, const void *data, size_t bytes);

/* Handles a fault in a mapped file. A program that calls tg_lm_map may call this function in its SIGBUS handler, with
 * siginfo_t.si_addr as the address. If the address lies in a file that ctx has mapped, puts a page of zeros there, so
 * that the interrupted code can go on, and returns true. The context's next read of values (tg_read, tg_item, ..),
 * forward of a language model, step of an optimizer, save to a safetensors file or of sharded state (checkpoint.h), or
 * export (dlpack.h) then fails with TG_ERR_IO and the name of the file. Returns false if the signal has another cause,
 * or if the page could not be replaced. May be called from any thread, and in a signal handler, while ctx is not being
 * freed. */
TG_API bool tg_mapping_fault(tg_ctx *ctx, const void *address);

/* ---- safetensors (github.com/huggingface/safetensors, README, "Format") ----
 *
 * A file has three parts:
 * - the length of the header, in 8 bytes, little-endian;
 * - the header, a JSON object. It maps each tensor name to the tensor's dtype, shape and data_offsets, and the key
 *   "__metadata__" to an object of strings;
 * - the bytes of the tensors, row-major and little-endian, without gaps between tensors.
 *
 * Reading is strict. Opening fails with TG_ERR_FORMAT
 * - if the header is longer than 100 MB or than the file, does not begin with '{', is not JSON or not UTF-8, repeats a
 *   key, or contains anything beyond the format;
 * - if a tensor has a dtype that the format does not define, more than TG_MAX_DIMS dims, a size that overflows, or
 *   data_offsets that do not match its size, or if it ends after the end of the file;
 * - if two tensors overlap, or if a byte after the header belongs to no tensor.
 *
 * Until data is read, the memory used is a small multiple of the header's length.
 *
 * Files that tg_safetensors_save writes have checksums in their metadata, under two keys. A checksum is XXH64 with seed
 * 0, written as 16 lower-case hexadecimal digits. "tapegrad.xxh64" has the checksums of the tensors, concatenated in
 * the order of the tensors' data. "tapegrad.xxh64.header" has the checksum of all bytes before the data, computed with
 * zeros in place of its own digits. If the header does not match its checksum, opening fails with TG_ERR_FORMAT. If a
 * tensor does not match its checksum, reading the tensor fails with TG_ERR_DATA. The functions below do not list the
 * two keys among the metadata, and tg_safetensors_save refuses them. Files without checksums, such as those of other
 * programs, are read without these checks.
 *
 * An index that tg_lm_save (lm.h) writes has in its metadata, under "tapegrad.xxh64.headers", the checksum of the
 * header of each file. If a header has another checksum, its file is of another save, and opening the index fails with
 * TG_ERR_FORMAT. */

/* Returns the XXH64 checksum (seed 0) of `bytes` bytes at data. data may be NULL if bytes is 0. */
TG_API uint64_t tg_checksum(const void *data, size_t bytes);

typedef struct tg_safetensors tg_safetensors;

typedef struct tg_safetensors_entry {
    const char *name;
    const char *dtype_name; /* name of the dtype in the format, such as "F32" */
    tg_dtype dtype;         /* TG_DTYPE_DEFAULT if the library has no tg_dtype for it; such a tensor cannot be read */
    tg_shape shape;
    int64_t begin, stop; /* offsets in the tensor's file of its first byte, and of the byte after its last */
} tg_safetensors_entry;

typedef struct tg_metadata {
    const char *key, *value;
} tg_metadata;

/* Opens a file and checks its header.
 *
 * A path that ends in ".index.json" is the path of an index: a JSON object for a large model in several files, such as
 * model.safetensors.index.json. Its member "weight_map" maps each tensor name to the name of a file in the directory of
 * the index. tg_safetensors_open opens every file of the map, at most 1,024 (TG_ERR_FORMAT). The functions below then
 * work on all tensors of the map, and list them file by file. They list no metadata for an index. Tensors that are in a
 * file but not in the map are ignored. Fails with TG_ERR_FORMAT if the index is malformed, if a file name is empty or
 * has a slash, or if a file lacks a tensor that the map assigns to it. */
TG_API tg_safetensors *tg_safetensors_open(tg_ctx *ctx, const char *path);
TG_API void tg_safetensors_close(tg_safetensors *f);

/* List the tensors. tg_safetensors_count returns their number. tg_safetensors_at returns the entry of tensor i, in the
 * order of the tensors' bytes in the file, and tg_safetensors_find that of the named tensor; both return NULL if there
 * is no such tensor. Entries belong to f and are valid until f is closed. */
TG_API int tg_safetensors_count(const tg_safetensors *f);
TG_API const tg_safetensors_entry *tg_safetensors_at(const tg_safetensors *f, int i);
TG_API const tg_safetensors_entry *tg_safetensors_find(const tg_safetensors *f, const char *name);

/* List the metadata, without the checksums. tg_safetensors_metadata_count returns the number of entries.
 * tg_safetensors_metadata_at returns entry i, in the order of the header, and tg_safetensors_metadata the value of a
 * key; both return NULL if there is no such entry. Results belong to f and are valid until f is closed. */
TG_API int tg_safetensors_metadata_count(const tg_safetensors *f);
TG_API const tg_metadata *tg_safetensors_metadata_at(const tg_safetensors *f, int i);
TG_API const char *tg_safetensors_metadata(const tg_safetensors *f, const char *key);

/* Reads the named tensor into dst.
 *
 * dst must have the shape of the tensor (TG_ERR_SHAPE). It may have any strides, unless two of its elements share
 * memory (TG_ERR_STATE), and must not be read-only (TG_ERR_STATE). The dtypes must be equal (TG_ERR_DTYPE), unless
 * convert is true and each of them is a float or a float8; values are then rounded to nearest even. A name that the
 * file lacks fails with TG_ERR_DATA, and a tensor whose entry has TG_DTYPE_DEFAULT with TG_ERR_UNSUPPORTED. On device
 * "meta" only these checks are made. A byte of a bool other than 0 and 1 fails with TG_ERR_DATA. If reading fails after
 * the first checks, dst may contain a part of the tensor, or damaged bytes.
 *
 * With several ranks, parameters, buffers of modules and leaves that were placed (tg_place) keep their placement. Any
 * other leaf becomes VARYING, because each rank may have read another file. */
TG_API tg_status tg_safetensors_read(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert);
/* Returns a new tensor with the values, dtype and shape of the named tensor. The context owns it; tg_drop releases it.
 * With several ranks it is VARYING, as a tensor from tg_from_host is. On error returns an inert tensor (tapegrad.h). */
TG_API tg_tensor *tg_safetensors_load(tg_safetensors *f, const char *name);

typedef struct tg_named_tensor {
    const char *name;
    tg_tensor *tensor;
} tg_named_tensor;

/* Writes the tensors to a file, in the given order. Tensors may have any strides. Names must be unique and not
 * "__metadata__", metadata keys must be unique, and all strings must be UTF-8 (TG_ERR_ARGUMENT). A dtype that the
 * format lacks fails with TG_ERR_DTYPE, a gradient that is one rank's share of a sum (tg_grad_share, backward.h) with
 * TG_ERR_STATE, and a context of device "meta" with TG_ERR_DEVICE. tensors may be NULL if n_tensors is 0, and metadata
 * may be NULL if n_metadata is 0. The data begin at a multiple of 8 bytes in the file. The call allocates memory for
 * the header and buffers of 1 MiB. */
TG_API tg_status tg_safetensors_save(tg_ctx *ctx, const char *path, const tg_named_tensor *tensors, int n_tensors,
                                     const tg_metadata *metadata, int n_metadata);

/* ---- Token data ---- */

typedef enum tg_token_format {
    TG_TOKENS_TEXT, /* every byte is a token */
    TG_TOKENS_U16,  /* every token is an unsigned 16-bit number, little-endian; the file has no header */
    TG_TOKENS_U32,  /* as TG_TOKENS_U16, but with 32-bit numbers */
    /* Megatron-LM's indexed dataset: the files NAME.bin and NAME.idx. The path is either of them, or NAME. */
    TG_TOKENS_MEGATRON,
} tg_token_format;

typedef struct tg_tokens tg_tokens;

/* Opens a stream of tokens and checks every token. A token must be in [0, vocab). vocab 0 allows every number from 0 on
 * that the format can hold. Fails with TG_ERR_DATA if a token is outside this range or if the file is empty, and with
 * TG_ERR_FORMAT if the file ends within a token, or if the index of a Megatron dataset is malformed or does not match
 * the data. */
TG_API tg_tokens *tg_tokens_open(tg_ctx *ctx, const char *path, tg_token_format format, int64_t vocab);
TG_API void tg_tokens_close(tg_tokens *t);
TG_API int64_t tg_tokens_count(const tg_tokens *t);
/* Copies n tokens, from token number `first` on, to out[n]. Token numbers count from 0. A range that is not within the
 * stream fails with TG_ERR_ARGUMENT, and a token that has changed since the file was opened and is now outside [0,
 * vocab) with TG_ERR_DATA. out may be NULL if n is 0. The call allocates nothing. */
TG_API tg_status tg_tokens_read(tg_tokens *t, int64_t first, int64_t n, int64_t *out);

/* Joins n >= 1 streams of ctx into one, which has the tokens and the documents of part[0], then those of part[1], and
 * so on. The result owns the parts, but not the array: close the result alone. On an error the parts are closed and the
 * result is NULL. A part that is a joined stream, and a stream that is given twice, fail with TG_ERR_ARGUMENT. The
 * result has the default kind of windows (tg_tokens_set_windows). */
TG_API tg_tokens *tg_tokens_join(tg_ctx *ctx, tg_tokens *const *part, int n);

/* ---- Documents, and tokens that are not predicted ----
 *
 * A stream consists of documents. A file of text or of raw ids is one document. A Megatron dataset has a table of its
 * documents, each of which has any number of sequences. A dataset may also have a mode for each sequence (Megatron-LM
 * writes modes for multimodal data). This library takes a sequence of mode 1 as context: tokens that a model reads but
 * is not trained to predict, such as a question before its answer. Other modes than 0 and 1 fail with TG_ERR_FORMAT
 * when the dataset is opened. */

/* Returns the number of documents. */
TG_API int64_t tg_tokens_documents(const tg_tokens *t);

/* A run: the tokens `first` to `stop` - 1, which are one sequence of a document. A file of text or of raw ids is one
 * run. */
typedef struct tg_token_run {
    int64_t first, stop;
    int64_t document; /* number of the document in the stream, from 0 */
    bool context;     /* these tokens are not predicted */
    int64_t sequence; /* internal, for tg_tokens_next_run; do not change it */
    int part;         /* likewise */
} tg_token_run;

/* Sets *out to the run that has the token. A token outside the stream fails with TG_ERR_ARGUMENT. The index of a
 * Megatron dataset is searched in its file, so the call needs no memory for it. */
TG_API tg_status tg_tokens_find_run(tg_tokens *t, int64_t token, tg_token_run *out);
/* Replaces *run, which tg_tokens_find_run or this function has set, by the next run that has a token. This is faster
 * than tg_tokens_find_run. If *run is the last run, fails with TG_ERR_ARGUMENT. On an error *run is unchanged. */
TG_API tg_status tg_tokens_next_run(tg_tokens *t, tg_token_run *run);
/* Returns whether the stream has a mode for each sequence, and so may have context; false if t is NULL. */
TG_API bool tg_tokens_has_context(const tg_tokens *t);

/* What follows the end of a document in a window of tokens (tg_tokens_read_window). */
typedef enum tg_token_windows {
    TG_WINDOWS_ACROSS, /* the next document, whose first token is the target of this one's last token */
    TG_WINDOWS_PACKED, /* the next document; the last token of a document has target -100 */
    TG_WINDOWS_PADDED, /* ids 0 with target -100; the last token of the document has target -100 too */
} tg_token_windows;

/* Sets the kind of the windows that the functions below read; TG_WINDOWS_ACROSS by default. Another number fails with
 * TG_ERR_ARGUMENT. */
TG_API tg_status tg_tokens_set_windows(tg_tokens *t, tg_token_windows windows);
/* Returns the kind of the windows; TG_WINDOWS_ACROSS if t is NULL. */
TG_API tg_token_windows tg_tokens_windows(const tg_tokens *t);
/* Reads a window for training: n >= 1 tokens from `first` on to ids[n], and the token after each of them to targets[n].
 * Targets that are context are replaced by -100, which losses ignore. ids and targets may each be NULL, which leaves
 * them out. The stream must have n + 1 tokens from `first` on or, with TG_WINDOWS_PADDED, only the token `first`
 * (TG_ERR_ARGUMENT). */
TG_API tg_status tg_tokens_read_window(tg_tokens *t, int64_t first, int64_t n, int64_t *ids, int64_t *targets);
/* Returns how many targets of the same window are not -100; 0 on an error. */
TG_API int64_t tg_tokens_count_targets(tg_tokens *t, int64_t first, int64_t n);
/* Sets positions[i], for i in [0, n), to the position of token first + i in its document, counted from 0 or, in the
 * document of token `first`, from that token. The kind of windows has no influence. tg_lm_packed_logits (lm.h) takes
 * such positions. The stream must have n >= 1 tokens from `first` on (TG_ERR_ARGUMENT). */
TG_API tg_status tg_tokens_read_positions(tg_tokens *t, int64_t first, int64_t n, int64_t *positions);

/* ---- Writing a Megatron dataset ---- */

typedef struct tg_token_writer tg_token_writer;

/* Begins to write the files PATH.bin and PATH.idx of a Megatron dataset; path may end with ".bin" or ".idx". vocab is
 * the number of ids, 1 to 2^31. A token takes one byte if vocab is at most 256, two bytes if it is at most 65,536, and
 * otherwise four. The files get their names in tg_token_writer_commit. The writer takes 8 to 16 bytes of memory for
 * each sequence. */
TG_API tg_token_writer *tg_token_writer_open(tg_ctx *ctx, const char *path, int64_t vocab);
/* Appends n tokens to the current document. They extend its last sequence if that has the same `context`; otherwise
 * they begin a new one. An id outside [0, vocab) fails with TG_ERR_DATA, and then no token is added. ids may be NULL if
 * n is 0. */
TG_API tg_status tg_token_writer_add(tg_token_writer *w, const int64_t *ids, int64_t n, bool context);
/* Ends the current document, and begins the next. A document without tokens is left out. */
TG_API tg_status tg_token_writer_end_document(tg_token_writer *w);
/* Returns the number of tokens that were added. */
TG_API int64_t tg_token_writer_count(const tg_token_writer *w);
/* Ends the last document, writes the index, and gives both files their names, PATH.idx last. If only that last step
 * fails, PATH.bin is new and PATH.idx is old or missing. Frees the writer, after an error too. The index has modes if
 * some tokens are context. Fails with TG_ERR_DATA if no token was added. */
TG_API tg_status tg_token_writer_commit(tg_token_writer *w);
/* Frees the writer, and removes what it has written. */
TG_API void tg_token_writer_abandon(tg_token_writer *w);

#ifdef __cplusplus
}
#endif

#endif
