/* Which operands of an element-wise formula are loaded and stored as TG_U64_RANK (elements.h), because the formula
 * compares them as numbers of uint64. */
#ifndef TG_ORDER_H
#define TG_ORDER_H

#include "kernels/elements.h"
#include "kernels/scalar.h"

/* Returns the mask of these operands: bit 0 is the output, and bit i + 1 is input i. The mask is 0 unless all inputs
 * are uint64. The output is in the mask if it is uint64 and the formula chooses one of the inputs. */
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
