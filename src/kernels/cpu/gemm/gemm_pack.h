/* Packing for the GEMM's templates: one panel at a time, from any strides and dtype. */
#ifndef TG_GEMM_PACK_H
#define TG_GEMM_PACK_H

#include "kernels/cpu/gemm/gemm_vec.h"

/* In this file a unit fills a lane: one element of the compute type, or, with TG_PAIRS, two bf16 numbers that are
 * adjacent along k. The units of AMX (gemm_amx.h) are larger. PAIR is the number of elements of a unit along k. */
#ifdef TG_PAIRS
enum { PAIR = 2 };
#else
enum { PAIR = 1 };
#endif

/* Loads LANES units along k from n contiguous elements. */
TG_INLINE vec units_along(const void *p, int64_t n, tg_dtype d) {
#ifdef TG_PAIRS
    vec v = {0};
    if (n == LANES * PAIR) memcpy(&v, p, sizeof v);
    else memcpy(&v, p, (size_t)n * 2);
    (void)d;
    return v;
#else
    return load_n(p, 1, n, d);
#endif
}

/* Loads one unit along k for each of LANES rows of A, or columns of B, which are `ps` elements apart. n of them exist,
 * and nk elements along k remain. */
TG_INLINE vec units_across(const void *p, int64_t ps, int64_t ks, int64_t n, int64_t nk, tg_dtype d) {
#ifdef TG_PAIRS
    vec_bits even = (vec_bits)load_n(p, ps, n, d), odd = {0};
    if (nk > 1) odd = (vec_bits)load_n(at(p, ks, d), ps, n, d);
    return (vec)(odd | even >> 16);
#else
    (void)ks, (void)nk;
    return load_n(p, ps, n, d);
#endif
}

/* Packing mostly waits for memory, so lines are prefetched this number of bytes, or of steps along k, ahead. */
enum { AHEAD_BYTES = 1024, AHEAD_STEPS = 32 };

/* Packs one square of LANES x LANES units by transposing it in registers. Only the first `needed` rows of src are used.
 * `ahead` is the square to prefetch. */
TG_INLINE void pack_square(real *dst, int width, const void *src, const void *ahead, int64_t ps, int needed,
                           tg_dtype d) {
    vec r[LANES];
    for (int i = 0; i < LANES; i++) {
        r[i] = i < needed ? units_along(at(src, i * ps, d), LANES * PAIR, d) : (vec){0};
        if (i < needed) __builtin_prefetch(at(ahead, i * ps, d));
    }
    transpose(r);
    for (int i = 0; i < LANES; i++) memcpy(dst + i * width, &r[i], (size_t)needed * sizeof(real));
}

/* Packs a square at an edge, where only np rows and n elements along k exist. */
TG_INLINE void pack_corner(real *dst, int width, const void *src, int64_t ps, int needed, int64_t np, int64_t n,
                           tg_dtype d) {
    vec r[LANES];
    for (int i = 0; i < LANES; i++) r[i] = i < needed && i < np ? units_along(at(src, i * ps, d), n, d) : (vec){0};
    transpose(r);
    for (int i = 0; i < (n + PAIR - 1) / PAIR; i++) memcpy(dst + i * width, &r[i], (size_t)needed * sizeof(real));
}

/* Packs a panel whose elements are contiguous along k. */
TG_INLINE void pack_transposed(real *dst, int width, const void *src, int64_t ps, int64_t np, int64_t nk, tg_dtype d) {
    const int64_t step = LANES * PAIR, ahead = AHEAD_BYTES / dtype_bytes(d);
    for (int c = 0; c < width; c += LANES) {
        int needed = width - c < LANES ? width - c : LANES;
        const void *row = at(src, c * ps, d);
        int64_t q = 0;
        if (c + needed <= np)
            for (; q + step <= nk; q += step) {
                /* Beyond the end of these rows, prefetches the beginning of the next ones. */
                int64_t next = q + ahead < nk ? q + ahead : q + ahead - nk + needed * ps;
                pack_square(dst + q / PAIR * width + c, width, at(row, q, d), at(row, next, d), ps, needed, d);
            }
        for (; q < nk; q += step)
            pack_corner(dst + q / PAIR * width + c, width, at(row, q, d), ps, needed, np - c, min_of(step, nk - q), d);
    }
}

/* Packs a panel of any strides, one step of k at a time. */
TG_INLINE void pack_across(real *dst, int width, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk,
                           tg_dtype d) {
    for (int64_t q = 0; q < nk; q += PAIR, dst += width) {
        for (int c = 0; c < width; c += LANES) {
            int needed = width - c < LANES ? width - c : LANES;
            const void *p = at(src, c * ps + q * ks, d);
            vec v = {0};
            for (int i = 0; i < PAIR; i++) __builtin_prefetch(at(p, (AHEAD_STEPS * PAIR + i) * ks, d));
            if (c < np) v = units_across(p, ps, ks, min_of(LANES, np - c), nk - q, d);
            memcpy(dst + c, &v, (size_t)needed * sizeof(real));
        }
    }
}

TG_INLINE void pack(real *dst, int width, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk, tg_dtype d) {
    if (ps == 1) pack_across(dst, width, src, 1, ks, np, nk, d);
    else if (ks == 1) pack_transposed(dst, width, src, ps, np, nk, d);
    else pack_across(dst, width, src, ps, ks, np, nk, d);
}

TG_INLINE void pack_any(void *dst, int width, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk,
                        tg_dtype d) {
#if TG_F64_HERE
    (void)d;
    pack(dst, width, src, ps, ks, np, nk, TG_F64);
#elif defined(TG_PAIRS)
    (void)d;
    pack(dst, width, src, ps, ks, np, nk, TG_BF16);
#else
    if (d == TG_F32) pack(dst, width, src, ps, ks, np, nk, TG_F32);
    else if (d == TG_BF16) pack(dst, width, src, ps, ks, np, nk, TG_BF16);
    else pack(dst, width, src, ps, ks, np, nk, TG_F16);
#endif
}

#ifndef TG_TILES
static void pack_a(void *dst, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk, tg_dtype d) {
    pack_any(dst, MR, src, ps, ks, np, nk, d);
}

static void pack_b(void *dst, const void *src, int64_t ps, int64_t ks, int64_t np, int64_t nk, tg_dtype d) {
    pack_any(dst, NR, src, ps, ks, np, nk, d);
}
#endif

#endif
