/* Which operands of an element-wise formula of int64 are numbers of uint64 that the formula puts in order
 * (elements.h). */
#ifndef TG_ORDER_H
#define TG_ORDER_H

#include "kernels/elements.h"
#include "kernels/scalar.h"

/* Returns a mask: bit 0 is the output, and bit i + 1 input i. All inputs of such a formula are uint64. Its output is
 * one of them, or says how they compare. */
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

#endif
