/* XXH64 with seed 0, the checksum of saved files (Collet, github.com/Cyan4973/xxHash, doc/xxhash_spec.md). It takes a
 * page of plain C, and is as fast as reading memory on every machine. CRC-32C would need tables, and instructions that
 * are chosen at run time. */
#ifndef TG_CHECKSUM_H
#define TG_CHECKSUM_H

#include "core/context.h"

enum { TG_CHECKSUM_DIGITS = 16 };

/* State of a checksum over bytes that arrive in pieces. */
typedef struct tg_summing {
    uint64_t acc[4];  /* accumulators */
    uint64_t bytes;   /* number of bytes so far */
    uint8_t rest[32]; /* the last `bytes` % 32 bytes, which do not fill a stripe of 32 bytes yet */
} tg_summing;

/* Start a checksum, add bytes to it, and return the checksum of all bytes so far. */
tg_summing tg_summing_begin(void);
void tg_summing_add(tg_summing *s, const void *data, size_t bytes);
uint64_t tg_summing_end(const tg_summing *s);

/* Writes a checksum as files contain it: lower-case hexadecimal digits, the most significant first, no terminating
 * zero. */
void tg_checksum_text(uint64_t sum, char out[TG_CHECKSUM_DIGITS]);

#endif
