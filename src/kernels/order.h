/* In which type an element-wise formula is computed, and how its operands are loaded and stored, on every device. */
#ifndef TG_ORDER_H
#define TG_ORDER_H

#include "base/dtype.h"
#include "kernels/elements.h"
#include "kernels/scalar.h"

/* Returns the compute type: float32, float64 or int64, as the widest input requires. If the map adds to the output, the
 * output counts as an input. Integers are computed in float64 if the formula has no integer form. If it has one, but
 * one of the integers is uint64 and the output is a float, the type is float32 for a float32 output, and float64 for
 * the others: int64 would take numbers from 2^63 on for negative ones. Comparisons of uint64 are made in int64
 * (tg_ranked_operands), because different numbers may be equal as floats. */
static inline tg_dtype tg_map_type(tg_formula f, const tg_array *out, const tg_array *in, int n_in, bool add) {
    const tg_dtype to = (tg_dtype)out->dtype;
    bool real = add && tg_is_real(to), f64 = add && to == TG_F64, u64 = false, all_u64 = true;
    for (int i = 0; i < n_in; i++) {
        real = real || tg_is_real((tg_dtype)in[i].dtype);
        f64 = f64 || in[i].dtype == TG_F64;
        u64 = u64 || in[i].dtype == TG_U64;
        all_u64 = all_u64 && in[i].dtype == TG_U64;
    }
    if (f64 || (!real && f >= TG_FN_abs_d)) return TG_F64; /* abs_d is the first formula without an integer form */
    bool compares = all_u64 && f >= TG_FN_eq && f <= TG_FN_ge;
    if (u64 && !real && tg_is_real(to) && !compares) return to == TG_F32 ? TG_F32 : TG_F64;
    return real ? TG_F32 : TG_I64;
}

/* Returns the mask of the operands that the formula compares as numbers of uint64: bit 0 is the output, and bit i + 1
 * is input i. The mask is 0 unless all inputs are uint64. The output is in the mask if it is uint64 and the formula
 * chooses one of the inputs. */
static inline uint32_t tg_ranked_operands(tg_formula f, const tg_array *out, const tg_array *in, int n_in) {
    bool chooses = f == TG_FN_maximum || f == TG_FN_minimum, compares = f >= TG_FN_lt && f <= TG_FN_ge;
    uint32_t ranked = 0;
    if (!chooses && !compares) return 0;
    for (int i = 0; i < n_in; i++) {
        if (in[i].dtype != TG_U64) return 0;
        ranked |= 2u << i;
    }
    return chooses && out->dtype == TG_U64 ? ranked | 1 : ranked;
}

/* Sets dtype[0] to the kernels' dtype of the output, and dtype[i + 1] to that of input i (elements.h). */
static inline void tg_operand_dtypes(tg_formula f, tg_dtype compute, const tg_array *out, const tg_array *in, int n_in,
                                     int *dtype) {
    uint32_t ranked = compute == TG_I64 ? tg_ranked_operands(f, out, in, n_in) : 0;
    bool narrows = f == TG_FN_id && compute == TG_F64 && out->dtype != TG_F64 && tg_is_real((tg_dtype)out->dtype);
    for (int i = 0; i <= n_in; i++) {
        int is = i ? in[i - 1].dtype : out->dtype;
        dtype[i] = ranked >> i & 1 ? (int)TG_U64_RANK : narrows && is == TG_U64 ? (int)TG_U64_ODD : is;
    }
}

#endif
