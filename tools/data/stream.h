/* Bytes of a file or of standard input, decompressed if they are compressed by gzip or zstd. */
#ifndef TAPEGRAD_DATA_STREAM_H
#define TAPEGRAD_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct data_stream data_stream;

/* Opens a regular file, or standard input if path is "-". NULL after printing what is wrong. path must live until
 * stream_close. */
data_stream *stream_open(const char *path);
void stream_close(data_stream *s);
/* Reads up to n bytes. Returns how many: fewer than n only at the end; -1 after printing what is wrong. */
int64_t stream_read(data_stream *s, char *out, size_t n);
/* Returns whether the stream is compressed. */
bool stream_is_compressed(const data_stream *s);
/* Returns the number of bytes read from the file so far, before decompression. */
int64_t stream_bytes(const data_stream *s);
/* Returns whether the file at path begins as one that stream_open decompresses. */
bool is_compressed(const char *path);

#endif
