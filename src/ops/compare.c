/* Comparisons: they broadcast, return bool, and have no gradient. */

#include <tapegrad/ops.h>

#include "ops/common/op.h"

static const tg_sample compare_samples[] = {
    {.note = "same shape", .n_in = 2, .input = {TG_S(3, 5), TG_S(3, 5)}},
    {.note = "row and column", .n_in = 2, .input = {TG_S(1, 5), TG_S(3, 1)}},
    {.note = "strided and transposed", .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5), TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "integers, ties", .n_in = 2, .input = {TG_S_INDEX(3, 4, 4), TG_S_INDEX(3, 4)}},
    {.note = "bools", .n_in = 2, .input = {TG_S_BOOL(6), TG_S_BOOL(6)}},
    {.note = "scalars", .n_in = 2, .input = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "one with itself", .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)}, .aliases = true},
    {.note = "empty", .n_in = 2, .input = {TG_S(0, 5), TG_S(1, 5)}},
    {.note = "other dtypes", .n_in = 2, .input = {TG_S(3), TG_S_INDEX(2, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "no broadcast", .n_in = 2, .input = {TG_S(3, 2), TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .n_in = 2, .input = {TG_S(1024, 1024), TG_S(1024, 1024)}, .bench = true},
};

static tg_status compare_infer(tg_call *c) { return tg_infer_broadcast(c, 0, TG_BOOL); }

#define COMPARE(name_, text)                                                                            \
    static tg_status name_##_forward(tg_call *c) {                                                      \
        return tg_op_map(c, TG_FN_##name_, c->out[0], TG_T2(c->input[0], c->input[1]), 2, 0, 0, false); \
    }                                                                                                   \
    const tg_op tg_op_##name_ = {                                                                       \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "a b", .n_in = 2, .n_out = 1, \
        .family = TG_FAMILY_POINTWISE, .infer = compare_infer, .forward = name_##_forward,              \
        TG_SAMPLES(compare_samples)};                                                                   \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *a, tg_tensor *b) { return TG_RECORD(t, tg_op_##name_, NULL, a, b); }

COMPARE(eq, "a == b")
COMPARE(ne, "a != b")
COMPARE(lt, "a < b")
COMPARE(le, "a <= b")
COMPARE(gt, "a > b")
COMPARE(ge, "a >= b")
