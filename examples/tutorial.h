/* Functions that the tutorial's programs share: read a text, and fill batches with windows of it. */
#ifndef TUTORIAL_H
#define TUTORIAL_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONTEXT = 8, BATCH = 64, VOCABULARY = 256 }; /* a token is a byte */

typedef struct text {
    unsigned char *bytes;
    long size;
} text;

/* Reads a file. Ends the program if that fails. */
static inline text read_text(const char *path) {
    text s = {0};
    FILE *f = fopen(path, "rb");
    if (f && !fseek(f, 0, SEEK_END)) s.size = ftell(f);
    if (s.size > CONTEXT) s.bytes = malloc((size_t)s.size);
    if (s.bytes) rewind(f);
    if (!s.bytes || fread(s.bytes, 1, (size_t)s.size, f) != (size_t)s.size) {
        fprintf(stderr, "%s: cannot read a text of more than %d bytes\n", path, CONTEXT);
        exit(1);
    }
    fclose(f);
    return s;
}

/* Fills a batch with windows at random places of bytes [from, to): ids[b] is a window, next[b] the byte after it. */
static inline void fill_batch(const text *s, long from, long to, uint32_t *seed, int32_t ids[BATCH][CONTEXT],
                              int64_t next[BATCH]) {
    for (int b = 0; b < BATCH; b++) {
        *seed = *seed * 1664525u + 1013904223u;
        long at = from + (long)((uint64_t)*seed * (uint64_t)(to - from - CONTEXT) >> 32);
        for (int i = 0; i < CONTEXT; i++) ids[b][i] = s->bytes[at + i];
        next[b] = s->bytes[at + CONTEXT];
    }
}

#endif
