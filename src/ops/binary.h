/* The parts that element-wise ops of two tensors a and b share: samples, what they save, and macros for their
 * functions. */
#ifndef TG_BINARY_H
#define TG_BINARY_H

#include "ops/common/derive.h"
#include "ops/common/op.h"

/* Samples with a in [a0, a1) and b in [b0, b1). */
#define AT(lo_, hi_, layout_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .lo = (lo_), .hi = (hi_), .layout = (layout_)}
#define ROWS(a0, a1, ...) AT(a0, a1, TG_SAMPLE_ROWS, __VA_ARGS__)
#define PAIRS(a0, a1, b0, b1)                                                                                     \
    {.note = "same shape", .n_in = 2, .input = {ROWS(a0, a1, 3, 5), ROWS(b0, b1, 3, 5)}},                         \
    {.note = "row and column", .n_in = 2, .input = {ROWS(a0, a1, 1, 5), ROWS(b0, b1, 3, 1)}},                     \
    {.note = "b stretched", .n_in = 2, .input = {ROWS(a0, a1, 2, 3, 4), ROWS(b0, b1, 4)}},                        \
    {.note = "a stretched", .n_in = 2, .input = {ROWS(a0, a1, 3, 1), ROWS(b0, b1, 2, 3, 4)}},                     \
    {.note = "transposed and strided", .n_in = 2,                                                                 \
     .input = {AT(a0, a1, TG_SAMPLE_TRANSPOSED, 3, 5), AT(b0, b1, TG_SAMPLE_STRIDED, 3, 5)}},                     \
    {.note = "expanded", .n_in = 2, .input = {AT(a0, a1, TG_SAMPLE_EXPANDED, 3, 5), ROWS(b0, b1, 3, 5)}},         \
    {.note = "size 1", .n_in = 2, .input = {ROWS(a0, a1, 1), ROWS(b0, b1, 1)}},                                   \
    {.note = "scalar and a matrix", .n_in = 2, .input = {ROWS(a0, a1, 2, 3), {.lo = (b0), .hi = (b1)}}},          \
    {.note = "scalars", .n_in = 2, .input = {{.lo = (a0), .hi = (a1)}, {.lo = (b0), .hi = (b1)}}},                \
    {.note = "empty", .n_in = 2, .input = {ROWS(a0, a1, 0, 4), ROWS(b0, b1, 1, 4)}},                              \
    {.note = "other dtypes", .n_in = 2, .input = {ROWS(a0, a1, 3), TG_S_INDEX(2, 3)}, .refused = TG_ERR_DTYPE},   \
    {.note = "bools", .n_in = 2, .input = {TG_S_BOOL(3), TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},                 \
    {.note = "no broadcast", .n_in = 2, .input = {ROWS(a0, a1, 3, 2), ROWS(b0, b1, 3)}, .refused = TG_ERR_SHAPE}, \
    {.note = "big", .n_in = 2, .input = {ROWS(a0, a1, 1024, 1024), ROWS(b0, b1, 1024, 1024)}, .bench = true}
#define ALIASED(a0, a1) \
    {.note = "one with itself", .n_in = 2, .input = {ROWS(a0, a1, 2, 3), ROWS(a0, a1, 2, 3)}, .aliases = true}

/* Saves only the inputs that backward will read: those in a_reads (a bit mask) if a needs a gradient, those in
 * b_reads if b needs one. */
static inline void save_what_is_read(tg_call *c, uint32_t a_reads, uint32_t b_reads) {
    c->saves_in = (tg_needs(c, 0) ? a_reads : 0) | (tg_needs(c, 1) ? b_reads : 0);
}

/* Defines the forward function, which runs the formula `name`. */
#define FORWARD(name)                                                                                  \
    static tg_status name##_forward(tg_call *c) {                                                      \
        return tg_op_map(c, TG_FN_##name, c->out[0], TG_T2(c->input[0], c->input[1]), 2, 0, 0, false); \
    }
/* Defines the vjp. by_a and by_b are expressions for the gradients of a and b in the shape of the result; the vjp sums
 * them to the shapes of a and b. They may use t, g, a and b. */
#define VJP(name, by_a, by_b)                                                                                          \
    static tg_status name##_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {               \
        tg_tensor *g = gout[0], *a = tg_node_in(n)[0], *b = tg_node_in(n)[1];                                          \
        if (tg_node_needs_grad(n, 0)) gin[0] = tg_sum_to(t, by_a, a);                                                  \
        if (tg_node_needs_grad(n, 1)) gin[1] = tg_sum_to(t, by_b, b);                                                  \
        return TG_OK;                                                                                                  \
    }
/* Defines the public function. */
#define PUBLIC(name) \
    tg_tensor *tg_##name(tg_tape *t, tg_tensor *a, tg_tensor *b) { return TG_RECORD(t, tg_op_##name, NULL, a, b); }

#endif
