/* Reductions over ranks for one dtype. Up to four ranks are reduced in one pass over memory. */
#include "kernels/cpu/rank_sums.h"

enum { BLOCK = 1024 };

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define ALWAYS_INLINE static inline __attribute__((always_inline, unused)) /* functions of other dtypes are unused */

#define TG_X(name, S, A) typedef S stored_##name; typedef A summed_##name;
TG_RANKS_LIST(TG_X)
#undef TG_X
typedef JOIN(stored_, TG_T) stored;
typedef JOIN(summed_, TG_T) summed;

ALWAYS_INLINE float load_f32(float x) { return x; }
ALWAYS_INLINE double load_f64(double x) { return x; }
ALWAYS_INLINE float load_bf16(uint16_t x) { return tg_bf16_to_f32(x); }
ALWAYS_INLINE float load_f16(uint16_t x) { return tg_f16_to_f32(x); }
ALWAYS_INLINE int64_t load_i64(int64_t x) { return x; }
ALWAYS_INLINE int32_t load_i32(int32_t x) { return x; }
ALWAYS_INLINE uint8_t load_u8(uint8_t x) { return x; }
ALWAYS_INLINE int8_t load_i8(int8_t x) { return x; }
ALWAYS_INLINE int16_t load_i16(int16_t x) { return x; }
ALWAYS_INLINE uint16_t load_u16(uint16_t x) { return x; }
ALWAYS_INLINE uint32_t load_u32(uint32_t x) { return x; }
ALWAYS_INLINE uint64_t load_u64(uint64_t x) { return x; }
ALWAYS_INLINE uint8_t load_b8(uint8_t x) { return x; }
ALWAYS_INLINE float store_f32(float x) { return x; }
ALWAYS_INLINE double store_f64(double x) { return x; }
ALWAYS_INLINE uint16_t store_bf16(float x) { return tg_f32_to_bf16(x); }
ALWAYS_INLINE uint16_t store_f16(float x) { return tg_f32_to_f16(x); }
ALWAYS_INLINE int64_t store_i64(int64_t x) { return x; }
ALWAYS_INLINE int32_t store_i32(int32_t x) { return x; }
ALWAYS_INLINE uint8_t store_u8(uint8_t x) { return x; }
ALWAYS_INLINE int8_t store_i8(int8_t x) { return x; }
ALWAYS_INLINE int16_t store_i16(int16_t x) { return x; }
ALWAYS_INLINE uint16_t store_u16(uint16_t x) { return x; }
ALWAYS_INLINE uint32_t store_u32(uint32_t x) { return x; }
ALWAYS_INLINE uint64_t store_u64(uint64_t x) { return x; }
ALWAYS_INLINE uint8_t store_b8(uint8_t x) { return x; }
ALWAYS_INLINE bool nan_f32(float x) { return x != x; }
ALWAYS_INLINE bool nan_f64(double x) { return x != x; }
ALWAYS_INLINE bool nan_bf16(float x) { return x != x; }
ALWAYS_INLINE bool nan_f16(float x) { return x != x; }
ALWAYS_INLINE bool nan_i64(int64_t x) { return (void)x, false; }
ALWAYS_INLINE bool nan_i32(int32_t x) { return (void)x, false; }
ALWAYS_INLINE bool nan_u8(uint8_t x) { return (void)x, false; }
ALWAYS_INLINE bool nan_i8(int8_t x) { return (void)x, false; }
ALWAYS_INLINE bool nan_i16(int16_t x) { return (void)x, false; }
ALWAYS_INLINE bool nan_u16(uint16_t x) { return (void)x, false; }
ALWAYS_INLINE bool nan_u32(uint32_t x) { return (void)x, false; }
ALWAYS_INLINE bool nan_u64(uint64_t x) { return (void)x, false; }
ALWAYS_INLINE bool nan_b8(uint8_t x) { return (void)x, false; }
#define LOAD JOIN(load_, TG_T)
#define STORE JOIN(store_, TG_T)
#define IS_NAN JOIN(nan_, TG_T)

enum { is_f32, is_f64, is_bf16, is_f16, is_i64, is_i32, is_u8, is_i8, is_i16, is_u16, is_u32, is_u64, is_b8 };

ALWAYS_INLINE summed combine(tg_reduce_op op, summed a, summed b) {
    if (op == TG_REDUCE_MAX) return ((b > a) | IS_NAN(b)) ? b : a;
    if (op == TG_REDUCE_MIN) return ((b < a) | IS_NAN(b)) ? b : a;
    return JOIN(is_, TG_T) == is_b8 ? (a > b ? a : b) : (summed)(a + b);
}

ALWAYS_INLINE stored finish(tg_reduce_op op, summed x, int n) {
    return STORE(op == TG_REDUCE_AVG ? (summed)(x / (summed)n) : x);
}

/* Reduces the elements of k ranks, 2 to 4, in one pass and writes them to m ranks, 1 to 4. Each output is one of the
 * sources, or shares no memory with any source. */
ALWAYS_INLINE void reduce_pass(tg_reduce_op op, const stored *const *s, int k, stored *const *out, int m, int64_t n) {
    const stored *a = s[0], *b = s[1], *c = k > 2 ? s[2] : a, *d = k > 3 ? s[3] : a;
    stored *p = out[0], *q = m > 1 ? out[1] : p, *r = m > 2 ? out[2] : p, *t = m > 3 ? out[3] : p;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        summed x = combine(op, LOAD(a[i]), LOAD(b[i]));
        if (k > 2) x = combine(op, x, LOAD(c[i]));
        if (k > 3) x = combine(op, x, LOAD(d[i]));
        stored y = finish(op, x, k);
        p[i] = y;
        if (m > 1) q[i] = y;
        if (m > 2) r[i] = y;
        if (m > 3) t[i] = y;
    }
}

/* Reduces any number of ranks block by block: combines a block in a buffer that stays in the cache, and then copies the
 * result to the outputs. */
ALWAYS_INLINE void reduce_blocks(tg_reduce_op op, const stored *const *s, int k, stored *const *out, int m, int64_t n) {
    summed acc[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t len = n - at < BLOCK ? n - at : BLOCK;
        for (int64_t i = 0; i < len; i++) acc[i] = LOAD(s[0][at + i]);
        for (int r = 1; r < k; r++) {
            const stored *x = s[r] + at;
            for (int64_t i = 0; i < len; i++) acc[i] = combine(op, acc[i], LOAD(x[i]));
        }
        for (int64_t i = 0; i < len; i++) out[0][at + i] = finish(op, acc[i], k);
        for (int d = 1; d < m; d++) memcpy(out[d] + at, out[0] + at, (size_t)len * sizeof(stored));
    }
}

/* Calls reduce_pass with constant k and m in the common cases: 2 to 4 ranks, and one output or one for each rank. The
 * number of a case is 2 k, plus 1 if there are several outputs. */
ALWAYS_INLINE void reduce_of(tg_reduce_op op, const stored *const *s, int k, stored *const *out, int m, int64_t n) {
    switch (m == 1 || m == k ? k * 2 + (m > 1) : 0) {
    case 4: reduce_pass(op, s, 2, out, 1, n); break;
    case 5: reduce_pass(op, s, 2, out, 2, n); break;
    case 6: reduce_pass(op, s, 3, out, 1, n); break;
    case 7: reduce_pass(op, s, 3, out, 3, n); break;
    case 8: reduce_pass(op, s, 4, out, 1, n); break;
    case 9: reduce_pass(op, s, 4, out, 4, n); break;
    default: reduce_blocks(op, s, k, out, m, n); break;
    }
}

void TG_K(ranks)(tg_reduce_op op, const void *const *src, int n_src, void *const *dst, int n_dst, int64_t n) {
    const stored *const *s = (const stored *const *)src;
    stored *const *out = (stored *const *)dst;
    switch (op) {
    case TG_REDUCE_MAX: reduce_of(TG_REDUCE_MAX, s, n_src, out, n_dst, n); break;
    case TG_REDUCE_MIN: reduce_of(TG_REDUCE_MIN, s, n_src, out, n_dst, n); break;
    case TG_REDUCE_AVG: reduce_of(TG_REDUCE_AVG, s, n_src, out, n_dst, n); break;
    default: reduce_of(TG_REDUCE_SUM, s, n_src, out, n_dst, n); break;
    }
}
