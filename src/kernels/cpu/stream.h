/* Non-temporal stores for large outputs. An ordinary store first reads the cache line that it fills; these reads are a
 * third of the traffic of a large copy, and non-temporal stores avoid them. Such stores serve kernels that are bound by
 * memory, with outputs so large that the next kernel would not find them in a cache. Where arithmetic hides the time of
 * memory accesses, as in GELU and softmax, ordinary stores are faster.
 *
 * Non-temporal stores are not ordered with ordinary ones, so code that uses them ends with tg_stream_fence. */
#ifndef TG_STREAM_H
#define TG_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* TG_STREAM_FROM, in bytes, is half of the last-level cache of common CPUs. The size that the system reports is not
 * used, because a virtual machine with a few cores may report the size of the whole machine. TG_STREAM_LINE is the
 * size of a cache line. */
enum { TG_STREAM_FROM = 16 << 20, TG_STREAM_LINE = 64 };

/* Returns whether to write an output with non-temporal stores. The output has `bytes` bytes at data, and is written in
 * pieces of `piece` bytes. */
static inline bool tg_streams(const void *data, int64_t bytes, int64_t piece) {
    return bytes >= TG_STREAM_FROM && (uintptr_t)data % TG_STREAM_LINE == 0 && piece % TG_STREAM_LINE == 0;
}

/* Copies whole cache lines, with non-temporal stores if the instruction set has AVX. dst must be aligned to a line. */
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
