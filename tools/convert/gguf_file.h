/* The format GGUF, version 3 (github.com/ggml-org/ggml, docs/gguf.md). A file has a header, keys with values, the names
 * and shapes of the tensors, and the bytes of the tensors, each from a multiple of 32 bytes on. The part before the
 * tensors is made in memory. */
#ifndef TAPEGRAD_GGUF_FILE_H
#define TAPEGRAD_GGUF_FILE_H

#include <tapegrad/types.h>

#include "io/file.h"

enum { GGUF_ALIGNMENT = 32 };

/* Types of values. */
typedef enum gguf_type {
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_TEXT = 8,
    GGUF_ARRAY = 9,
} gguf_type;

/* Dtypes of tensors, as the library ggml numbers them. */
typedef enum gguf_dtype { GGUF_TENSOR_F32 = 0, GGUF_TENSOR_F16 = 1, GGUF_TENSOR_BF16 = 30 } gguf_dtype;

/* Bytes that grow. The memory is malloc's; gguf_free releases it. */
typedef struct gguf_bytes {
    char *data;
    size_t n, capacity;
    bool failed; /* there was no memory, and what was appended is incomplete */
} gguf_bytes;

/* What comes before the bytes of the tensors. Begin with {0}. */
typedef struct gguf_head {
    const char *prefix; /* the architecture, which is put before keys that begin with a dot */
    gguf_bytes values, tensors;
    uint64_t n_values, n_tensors;
    uint64_t offset; /* where the next tensor begins, in bytes after the beginning of the first one */
} gguf_head;

void gguf_free(gguf_head *h);

/* Add a key with its value. */
void gguf_u32(gguf_head *h, const char *key, int64_t value);
void gguf_f32(gguf_head *h, const char *key, double value);
void gguf_bool(gguf_head *h, const char *key, bool value);
void gguf_text(gguf_head *h, const char *key, const char *value);

/* Begins an array of n values, which the caller appends to h->values by gguf_put and, for GGUF_TEXT, gguf_put_text.
 * Memory that is missing is noted in h, and makes gguf_write_head fail. */
void gguf_array(gguf_head *h, const char *key, gguf_type type, size_t n);
void gguf_put(gguf_bytes *b, const void *data, size_t n);
void gguf_put_text(gguf_bytes *b, const char *text, size_t n);

/* Adds a tensor. Its dims are in the order of the library, the outermost first; the format has them the other way. */
void gguf_tensor(gguf_head *h, const char *name, gguf_dtype dtype, tg_shape shape);

/* Writes everything before the tensors. */
tg_status gguf_write_head(const gguf_head *h, tg_writer *w);
/* Writes zeros up to the next multiple of the alignment. */
tg_status gguf_align(tg_writer *w);

#endif
