/* Encodes text as bytes. */
#include <stdlib.h>

#include "data_encode.h"
#include "program.h"

encoder *encoder_new(void) {
    encoder *e = calloc(1, sizeof *e);
    if (!e) return fail("no memory to encode text"), NULL;
    e->vocab = 256;
    return e;
}

void encoder_free(encoder *e) { free(e); }

void encoder_put(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context) {
    const size_t most = sizeof e->buffer / sizeof *e->buffer;
    while (n > 0) {
        size_t here = n < most ? n : most;
        for (size_t i = 0; i < here; i++) e->buffer[i] = (unsigned char)text[i];
        tg_token_writer_add(to, e->buffer, (int64_t)here, context);
        text += here;
        n -= here;
    }
}

void encoder_end(encoder *e, tg_token_writer *to, char last) {
    if (last != '\n') encoder_put(e, to, "\n", 1, false);
    tg_token_writer_end_document(to);
}
