/* XXH64 (Collet, github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seed 0: the checksum of what is saved. Plain C of a
 * page that keeps up with memory on any machine, where CRC-32C would need tables, and instructions chosen at run time.
 */
#ifndef TG_CHECKSUM_H
#define TG_CHECKSUM_H

#include "core/context.h"

enum { TG_CHECKSUM_DIGITS = 16 };

/* The sum of bytes that come in pieces. */
typedef struct tg_summing {
    uint64_t lane[4], bytes;
    uint8_t rest[32]; /* the last bytes % 32 */
} tg_summing;

tg_summing tg_summing_begin(void);
void tg_summing_add(tg_summing *s, const void *data, size_t bytes);
uint64_t tg_summing_end(const tg_summing *s);

/* As it stands in files: lower-case digits, the highest first; no zero behind them. */
void tg_checksum_text(uint64_t sum, char out[TG_CHECKSUM_DIGITS]);

#endif
