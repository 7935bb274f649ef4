/* Element-wise ops whose results are bits or truth values: the logical and the bitwise ones, and tests for NaN and
 * infinities. They broadcast, and have no gradient. */
#include <tapegrad/ops.h>

#include "ops/common/op.h"

/* ---- Tests and logical ops: any dtype; the result is bool ---- */

static tg_status truth_infer(tg_call *c) { return tg_infer_broadcast(c, 0, TG_BOOL); }

static const tg_sample test_samples[] = {
    {.note = "matrix", .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "transposed", .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "expanded", .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "integers, some 0", .n_in = 1, .input = {TG_S_INDEX(3, 4, 4)}},
    {.note = "bools", .n_in = 1, .input = {TG_S_BOOL(6)}},
    {.note = "scalar", .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "empty", .n_in = 1, .input = {TG_S(0, 5)}},
    {.note = "big", .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

#define TEST(name_, text)                                                                                 \
    static tg_status name_##_forward(tg_call *c) {                                                        \
        return tg_op_map(c, TG_FN_##name_, c->out[0], TG_T1(c->input[0]), 1, 0, 0, false);                \
    }                                                                                                     \
    const tg_op tg_op_##name_ = {                                                                         \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "x", .n_in = 1, .n_out = 1,     \
        .family = TG_FAMILY_POINTWISE, .infer = truth_infer, .forward = name_##_forward,                  \
        TG_SAMPLES(test_samples)};                                                                        \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *x) { return TG_RECORD(t, tg_op_##name_, NULL, x); }

/* Integers and bools are finite. */
TEST(isnan, "whether x is NaN")
TEST(isinf, "whether x is an infinity")
TEST(isfinite, "whether x is a finite number")
TEST(logical_not, "x == 0")

static const tg_sample logical_samples[] = {
    {.note = "bools", .n_in = 2, .input = {TG_S_BOOL(3, 5), TG_S_BOOL(3, 5)}},
    {.note = "row and column", .n_in = 2, .input = {TG_S_BOOL(1, 5), TG_S_BOOL(3, 1)}},
    {.note = "strided and transposed", .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5), TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "integers, some 0", .n_in = 2, .input = {TG_S_INDEX(2, 4, 4), TG_S_INDEX(2, 4)}},
    {.note = "scalars", .n_in = 2, .input = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "one with itself", .n_in = 2, .input = {TG_S_BOOL(6), TG_S_BOOL(6)}, .aliases = true},
    {.note = "empty", .n_in = 2, .input = {TG_S(0, 5), TG_S(1, 5)}},
    {.note = "other dtypes", .n_in = 2, .input = {TG_S(3), TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},
    {.note = "no broadcast", .n_in = 2, .input = {TG_S_BOOL(3, 2), TG_S_BOOL(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .n_in = 2, .input = {TG_S_BOOL(1024, 1024), TG_S_BOOL(1024, 1024)}, .bench = true},
};

#define PAIRWISE(name_, text, infer_, samples_)                                                           \
    static tg_status name_##_forward(tg_call *c) {                                                        \
        return tg_op_map(c, TG_FN_##name_, c->out[0], TG_T2(c->input[0], c->input[1]), 2, 0, 0, false);   \
    }                                                                                                     \
    const tg_op tg_op_##name_ = {                                                                         \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "a b", .n_in = 2, .n_out = 1,   \
        .family = TG_FAMILY_POINTWISE, .infer = infer_, .forward = name_##_forward, TG_SAMPLES(samples_)}; \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *a, tg_tensor *b) { return TG_RECORD(t, tg_op_##name_, NULL, a, b); }

PAIRWISE(logical_and, "a != 0 and b != 0", truth_infer, logical_samples)
PAIRWISE(logical_or, "a != 0 or b != 0", truth_infer, logical_samples)
PAIRWISE(logical_xor, "whether one of a and b is 0, but not both", truth_infer, logical_samples)

/* ---- Bitwise ops: integers and bools; the result has their dtype ---- */

static tg_status bits_infer(tg_call *c) {
    tg_dtype d = (tg_dtype)c->input[0]->dtype;
    if (tg_is_float(d)) return tg_call_fail(c, TG_ERR_DTYPE, "input 0 is %s; it must have an integer dtype or bool",
                                            tg_dtype_name(d));
    return tg_infer_broadcast(c, 0, TG_DTYPE_DEFAULT);
}

static const tg_sample bits_samples[] = {
    {.note = "integers", .n_in = 2, .input = {TG_S_INDEX(90, 3, 5), TG_S_INDEX(90, 3, 5)}},
    {.note = "row and column", .n_in = 2, .input = {TG_S_INDEX(90, 1, 5), TG_S_INDEX(90, 3, 1)}},
    {.note = "bools", .n_in = 2, .input = {TG_S_BOOL(3, 5), TG_S_BOOL(5)}},
    {.note = "one with itself", .n_in = 2, .input = {TG_S_INDEX(9, 6), TG_S_INDEX(9, 6)}, .aliases = true},
    {.note = "empty", .n_in = 2, .input = {TG_S_BOOL(0, 5), TG_S_BOOL(1, 5)}},
    {.note = "floats", .n_in = 2, .input = {TG_S(3), TG_S(3)}, .refused = TG_ERR_DTYPE},
    {.note = "other dtypes", .n_in = 2, .input = {TG_S_INDEX(9, 3), TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},
    {.note = "no broadcast", .n_in = 2, .input = {TG_S_BOOL(3, 2), TG_S_BOOL(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .n_in = 2, .input = {TG_S_INDEX(90, 1024, 1024), TG_S_INDEX(90, 1024, 1024)}, .bench = true},
};

PAIRWISE(bitwise_and, "the bits that a and b have", bits_infer, bits_samples)
PAIRWISE(bitwise_or, "the bits that a or b has", bits_infer, bits_samples)
PAIRWISE(bitwise_xor, "the bits that one of a and b has, but not both", bits_infer, bits_samples)

/* A bool has one bit. */
static tg_status bitwise_not_forward(tg_call *c) {
    tg_formula f = c->input[0]->dtype == TG_BOOL ? TG_FN_logical_not : TG_FN_bitwise_not;
    return tg_op_map(c, f, c->out[0], TG_T1(c->input[0]), 1, 0, 0, false);
}

static const tg_sample not_samples[] = {
    {.note = "integers", .n_in = 1, .input = {TG_S_INDEX(90, 3, 5)}},
    {.note = "bools", .n_in = 1, .input = {TG_S_BOOL(3, 5)}},
    {.note = "size 1", .n_in = 1, .input = {TG_S_INDEX(90, 1)}},
    {.note = "empty", .n_in = 1, .input = {TG_S_BOOL(0, 5)}},
    {.note = "floats", .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_DTYPE},
    {.note = "big", .n_in = 1, .input = {TG_S_INDEX(90, 1024, 1024)}, .bench = true},
};

const tg_op tg_op_bitwise_not = {
    .size = sizeof(tg_op), .name = "bitwise_not", .formula = "the bits that x does not have", .inputs = "x", .n_in = 1,
    .n_out = 1, .family = TG_FAMILY_POINTWISE, .infer = bits_infer, .forward = bitwise_not_forward,
    TG_SAMPLES(not_samples)};

tg_tensor *tg_bitwise_not(tg_tape *t, tg_tensor *x) { return TG_RECORD(t, tg_op_bitwise_not, NULL, x); }
