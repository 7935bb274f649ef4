/* Text as tokens: the ids of a text, and what ends a document. */
#ifndef TAPEGRAD_DATA_ENCODE_H
#define TAPEGRAD_DATA_ENCODE_H

#include <tapegrad/io.h>

/* How text becomes tokens: each byte is one. */
typedef struct encoder {
    int64_t vocab; /* ids are 0 to vocab - 1 */
    int64_t buffer[1 << 13];
} encoder;

/* Makes an encoder; NULL after printing that there is no memory. encoder_free frees it. */
encoder *encoder_new(void);
void encoder_free(encoder *e);
/* Appends the tokens of a text to the document. context: they are not predicted. Errors are recorded in the writer's
 * context. */
void encoder_put(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context);
/* Ends the document with a line break, unless its text, whose last byte is `last`, ends with one: bytes have no id that
 * ends a text. */
void encoder_end(encoder *e, tg_token_writer *to, char last);

#endif
