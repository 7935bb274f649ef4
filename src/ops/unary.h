/* The samples of element-wise ops of one tensor. */
#ifndef TG_UNARY_H
#define TG_UNARY_H

#include "ops/common/op.h"

/* Samples with values in [a0, a1) and, on the other side of a kink if the op has one, in [b0, b1). par points to their
 * params. */
#define IN(lo_, hi_, layout_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .lo = (lo_), .hi = (hi_), .layout = (layout_)}
#define RANGES(par, a0, a1, b0, b1)                                                                      \
    {.note = "matrix", .params = par, .n_in = 1, .input = {IN(a0, a1, TG_SAMPLE_ROWS, 3, 5)}},           \
    {.note = "elsewhere", .params = par, .n_in = 1, .input = {IN(b0, b1, TG_SAMPLE_ROWS, 2, 3, 4)}},     \
    {.note = "transposed", .params = par, .n_in = 1, .input = {IN(a0, a1, TG_SAMPLE_TRANSPOSED, 3, 5)}}, \
    {.note = "strided", .params = par, .n_in = 1, .input = {IN(b0, b1, TG_SAMPLE_STRIDED, 3, 5)}},       \
    {.note = "expanded", .params = par, .n_in = 1, .input = {IN(a0, a1, TG_SAMPLE_EXPANDED, 3, 5)}},     \
    {.note = "size 1", .params = par, .n_in = 1, .input = {IN(a0, a1, TG_SAMPLE_ROWS, 1, 1)}},           \
    {.note = "scalar", .params = par, .n_in = 1, .input = {{.lo = (b0), .hi = (b1)}}},                   \
    {.note = "empty", .params = par, .n_in = 1, .input = {IN(a0, a1, TG_SAMPLE_ROWS, 0, 3)}},            \
    {.note = "bool", .params = par, .n_in = 1, .input = {TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},        \
    {.note = "big", .params = par, .n_in = 1, .input = {IN(a0, a1, TG_SAMPLE_ROWS, 1024, 1024)}, .bench = true}

#endif
