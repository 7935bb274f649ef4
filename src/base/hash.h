/* A hash of bytes (FNV-1a, 64 bits), for comparisons between ranks and between runs of one function. */
#ifndef TG_HASH_H
#define TG_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The hash of 0 bytes. */
#define TG_HASH_START 14695981039346656037u

/* Continues a hash: returns the hash of the bytes whose hash is h, followed by the n bytes at p. */
static inline uint64_t tg_hash_bytes(uint64_t h, const void *p, size_t n) {
    const unsigned char *byte = p;
    for (size_t i = 0; i < n; i++) h = (h ^ byte[i]) * 1099511628211u;
    return h;
}

#endif
