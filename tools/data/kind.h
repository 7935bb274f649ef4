/* Files of tokens: recognizes Megatron datasets, warns if a file probably does not have the given format, and computes
 * a checksum. */
#ifndef TAPEGRAD_DATA_KIND_H
#define TAPEGRAD_DATA_KIND_H

#include <tapegrad/io.h>

/* Warns if the first bytes of the file are those of another known format, such as an archive. If the given format is
 * text, also warns if they have control characters that text does not contain. This is no error, because any bytes are
 * valid tokens. option: the name of the option that gives the file. data_format: a tg_token_format. */
void warn_of_data(const char *option, const char *path, int data_format);

/* Returns whether path names a Megatron dataset: X.bin if X.idx is a file; X.idx if X.bin is a file or the first bytes
 * of X.idx are those of an index; and X without an ending if both are files and there is no file or directory X. */
bool is_megatron(const char *path);

/* Returns the FNV-1a hash of 64 parts of the tokens, evenly spread over the file, which is enough to notice other data.
 * Returns 0 after an error. */
uint64_t tokens_sum(tg_tokens *t);
/* The same of the first `count` tokens. */
uint64_t tokens_sum_of(tg_tokens *t, int64_t count);

#endif
