/* For templates only: the vectors of an instruction set, and the transposition of a square of vectors in registers.
 *
 * The code uses vector extensions that both gcc and clang have, so one source serves every instruction set. TG_T (f32
 * or f64) must be defined. */
#ifndef TG_CPU_LANES_H
#define TG_CPU_LANES_H

#define TG_GLUE_(a, b) a##b
#define TG_GLUE(a, b) TG_GLUE_(a, b)
#define TG_IS_F64_f32 0
#define TG_IS_F64_f64 1
#define TG_F64_HERE TG_GLUE(TG_IS_F64_, TG_T)

#if defined(__AVX512F__)
#define TG_VEC_BYTES 64
#elif defined(__AVX2__)
#define TG_VEC_BYTES 32
#else
#define TG_VEC_BYTES 16
#endif

#if TG_F64_HERE
#define TG_VEC_LANES (TG_VEC_BYTES / 8)
#else
#define TG_VEC_LANES (TG_VEC_BYTES / 4)
#endif

/* TG_LIST(F, s) is F(s, 0), F(s, 1) and so on, one for each lane. */
#define TG_LIST_2(F, s) F(s, 0), F(s, 1)
#define TG_LIST_4(F, s) TG_LIST_2(F, s), F(s, 2), F(s, 3)
#define TG_LIST_8(F, s) TG_LIST_4(F, s), F(s, 4), F(s, 5), F(s, 6), F(s, 7)
#define TG_LIST_16(F, s) TG_LIST_8(F, s), F(s, 8), F(s, 9), F(s, 10), F(s, 11), F(s, 12), F(s, 13), F(s, 14), F(s, 15)
#define TG_LIST(F, s) TG_GLUE(TG_LIST_, TG_LANES_TOKEN)(F, s)

#if TG_VEC_LANES == 16
#define TG_LANES_TOKEN 16
#elif TG_VEC_LANES == 8
#define TG_LANES_TOKEN 8
#elif TG_VEC_LANES == 4
#define TG_LANES_TOKEN 4
#else
#define TG_LANES_TOKEN 2
#endif

/* One step of a transposition: exchanges the bit of value s (1, 2, 4, ...) in the row number with the same bit in the
 * lane number. TG_LOW(s, j) is where lane j of the new row i comes from, and TG_HIGH(s, j) where lane j of the new row
 * i + s comes from. Both count lanes in the old row i followed by the old row i + s. */
#define TG_LOW(s, j) ((j) & (s) ? TG_VEC_LANES + (j) - (s) : (j))
#define TG_HIGH(s, j) ((j) & (s) ? TG_VEC_LANES + (j) : (j) + (s))
#define TG_SWAP_BIT(r, s)                                                           \
    for (int i = 0; i < TG_VEC_LANES; i++)                                          \
        if (!(i & (s))) {                                                           \
            __typeof__((r)[0]) low = (r)[i], high = (r)[i + (s)];                   \
            (r)[i] = __builtin_shufflevector(low, high, TG_LIST(TG_LOW, s));        \
            (r)[i + (s)] = __builtin_shufflevector(low, high, TG_LIST(TG_HIGH, s)); \
        }

/* TG_TRANSPOSE(r) transposes the square of TG_VEC_LANES vectors r. */
#if TG_VEC_LANES == 16
#define TG_TRANSPOSE(r) TG_SWAP_BIT(r, 1) TG_SWAP_BIT(r, 2) TG_SWAP_BIT(r, 4) TG_SWAP_BIT(r, 8)
#elif TG_VEC_LANES == 8
#define TG_TRANSPOSE(r) TG_SWAP_BIT(r, 1) TG_SWAP_BIT(r, 2) TG_SWAP_BIT(r, 4)
#elif TG_VEC_LANES == 4
#define TG_TRANSPOSE(r) TG_SWAP_BIT(r, 1) TG_SWAP_BIT(r, 2)
#else
#define TG_TRANSPOSE(r) TG_SWAP_BIT(r, 1)
#endif

#endif
