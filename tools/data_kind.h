/* Files of tokens: warnings about those that are probably not what their format says, and a checksum. */
#ifndef TAPEGRAD_DATA_KIND_H
#define TAPEGRAD_DATA_KIND_H

#include <tapegrad/io.h>

/* Looks at the first bytes of the file of tokens, and warns if they are compressed or, of format text, binary: every
 * file is a valid file of tokens. data_format is a tg_token_format. */
void warn_of_data(const char *path, int data_format);

/* Returns FNV-1a over up to 64 evenly spread parts of the tokens, enough to notice other data; 0 after an error. */
uint64_t tokens_sum(tg_tokens *t);

#endif
