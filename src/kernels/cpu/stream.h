/* Outputs that go past the caches: a store otherwise first reads the line that it fills, a third of a large copy's
 * traffic. For kernels that memory bounds, and outputs so large that who reads them next would not find them in a
 * cache; where arithmetic hides memory's time, as in GELU and softmax, plain stores are faster.
 *
 * Such stores are seen in no order with others: a body that has made them ends with tg_stream_fence. */
#ifndef TG_STREAM_H
#define TG_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* Half of the last cache of common CPUs. (What the system says of it counts all caches of a machine of which a guest
 * has a few cores.) Lines: of every cache that is known here. */
enum { TG_STREAM_FROM = 16 << 20, TG_STREAM_LINE = 64 };

/* Whether an output of so many bytes at data goes past the caches, in pieces that are multiples of `piece` bytes. */
static inline bool tg_streams(const void *data, int64_t bytes, int64_t piece) {
    return bytes >= TG_STREAM_FROM && (uintptr_t)data % TG_STREAM_LINE == 0 && piece % TG_STREAM_LINE == 0;
}

/* Whole lines. */
static inline void tg_stream(void *restrict dst, const void *restrict src, int64_t bytes) {
#if defined(__AVX512F__)
    for (int64_t i = 0; i < bytes; i += 64)
        _mm512_stream_si512((void *)((char *)dst + i), _mm512_loadu_si512((const char *)src + i));
#elif defined(__AVX__)
    for (int64_t i = 0; i < bytes; i += 32)
        _mm256_stream_si256((__m256i *)((char *)dst + i), _mm256_loadu_si256((const __m256i *)((const char *)src + i)));
#else
    memcpy(dst, src, (size_t)bytes);
#endif
}

static inline void tg_stream_fence(void) {
#ifdef __x86_64__
    _mm_sfence();
#endif
}

#endif
