/* Files of tokens: recognizes Megatron datasets, warns if a file probably does not have the given format, and computes
 * a checksum. */
#ifndef TAPEGRAD_DATA_KIND_H
#define TAPEGRAD_DATA_KIND_H

#include <tapegrad/io.h>

/* Warns if the first bytes of the file show that it is compressed or, if its format is text, that it is binary. This is
 * no error, because any bytes are valid tokens. data_format: a tg_token_format. */
void warn_of_data(const char *path, int data_format);

/* Returns whether path names a Megatron dataset: X.bin or X.idx if both exist, and X if both exist and there is
 * no file or directory X. X.idx is also one without X.bin if its first bytes are those of an index. */
bool is_megatron(const char *path);

/* Returns the FNV-1a hash of 64 parts of the tokens, evenly spread over the file, which is enough to notice other data.
 * Returns 0 after an error. */
uint64_t tokens_sum(tg_tokens *t);
/* The same of the first `count` tokens. */
uint64_t tokens_sum_of(tg_tokens *t, int64_t count);

#endif
