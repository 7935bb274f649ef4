/* What losses with one number per element, or per row, share: options, shapes, and the reduction to the result and
 * its gradient. */
#ifndef TG_ELEMENTWISE_LOSS_H
#define TG_ELEMENTWISE_LOSS_H

#include "ops/common/op.h"

#include <tapegrad/ops.h>

typedef struct tg_elementwise_loss_params {
    size_t size; /* of the caller's options, of which we know `known` bytes */
    size_t known;
    tg_loss_reduction reduction;
    bool log_target;
    int64_t ignore_index;
    double width;  /* of the curved middle of losses that are straight outside; 0: none */
    double factor; /* of every number; set by infer */
    const char *unused; /* the name of an option that is set although the loss does not use it; NULL: none */
} tg_elementwise_loss_params;

/* The options that not every loss uses. */
enum { TG_LOSS_USES_IGNORE_INDEX = 1, TG_LOSS_USES_LOG_TARGET = 2 };

/* The params of a sample. */
#define TG_LOSS_P(reduction_, ...)                                                                          \
    &(const tg_elementwise_loss_params) {                                                                   \
        .size = sizeof(size_t), .known = sizeof(size_t), .reduction = TG_LOSS_##reduction_, __VA_ARGS__     \
    }

/* Reads the caller's options. `uses` is a sum of the above. */
tg_elementwise_loss_params tg_elementwise_loss_params_of(const tg_loss_opts *opts, unsigned uses);
/* Checks the options; `last` is the last reduction that the loss supports. */
tg_status tg_elementwise_loss_check(tg_call *c, tg_loss_reduction last);
/* Checks that inputs 0 and 1 are floats of one dtype and shape and that further inputs broadcast to them. The result
 * has that shape or is a scalar. */
tg_status tg_elementwise_loss_infer(tg_call *c, tg_loss_reduction last);

/* Where the loss of every element goes: the result itself, or a temporary that tg_elementwise_loss_reduce sums. */
tg_tensor *tg_elementwise_loss_buffer(tg_call *c);
tg_tensor *tg_elementwise_loss_temp(tg_call *c); /* of input 0's shape, in the result's dtype */
tg_status tg_elementwise_loss_reduce(tg_call *c, const tg_tensor *loss);
/* The gradient of every element's loss, times sign: a scalar for all, or a tensor of input 0's shape. Inert on
 * error. */
tg_tensor *tg_elementwise_loss_gradient(tg_call *c, double sign);
/* The forward computation as recorded ops. */
tg_tensor *tg_elementwise_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *loss);

/* out = formula(in...) for one to four tensors; returns on error. */
#define TG_PUT(fn, out, ...) TG_PUT_P(fn, 0, 0, out, __VA_ARGS__)
#define TG_PUT_P(fn, p, q, out, ...)                                                  \
    TG_TRY(tg_op_map(c, TG_FN_##fn, out, (const tg_tensor *const[]){__VA_ARGS__},     \
                     (int)(sizeof((const tg_tensor *const[]){__VA_ARGS__}) / sizeof(tg_tensor *)), p, q, false))

/* ---- Samples of a pair x, y ---- */

#define TG_LOSS_IN(layout_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .layout = (layout_)}
#define TG_PAIR_SAMPLES(X, Y, ...)                                                                                     \
    {.note = "mean", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2, .in = {X(ROWS, 3, 4), Y(ROWS, 3, 4)}},         \
    {.note = "sum", .params = TG_LOSS_P(SUM, __VA_ARGS__), .n_in = 2, .in = {X(ROWS, 3, 4), Y(ROWS, 3, 4)}},           \
    {.note = "one an element", .params = TG_LOSS_P(NONE, __VA_ARGS__), .n_in = 2,                                      \
     .in = {X(ROWS, 2, 3, 2), Y(ROWS, 2, 3, 2)}},                                                                      \
    {.note = "other strides", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                                       \
     .in = {X(TRANSPOSED, 3, 4), Y(STRIDED, 3, 4)}},                                                                   \
    {.note = "other strides, one an element", .params = TG_LOSS_P(NONE, __VA_ARGS__), .n_in = 2,                       \
     .in = {X(STRIDED, 3, 4), Y(TRANSPOSED, 3, 4)}},                                                                   \
    {.note = "equal rows", .params = TG_LOSS_P(SUM, __VA_ARGS__), .n_in = 2,                                           \
     .in = {X(EXPANDED, 3, 4), Y(ROWS, 3, 4)}},                                                                        \
    {.note = "one element", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2, .in = {X(ROWS, 1, 1), Y(ROWS, 1, 1)}},  \
    {.note = "sum of none", .params = TG_LOSS_P(SUM, __VA_ARGS__), .n_in = 2, .in = {X(ROWS, 0, 3), Y(ROWS, 0, 3)}},   \
    {.note = "shapes differ", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2, .in = {X(ROWS, 3, 4), Y(ROWS, 1, 4)}, \
     .refused = TG_ERR_SHAPE},                                                                                         \
    {.note = "integers", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                                            \
     .in = {TG_S_INDEX(4, 3), TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},                                             \
    {.note = "a target of another dtype", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                           \
     .in = {X(ROWS, 3), TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},                                                   \
    {.note = "no such reduction", .n_in = 2,                                                                           \
     .params = &(const tg_elementwise_loss_params){.size = sizeof(size_t), .known = sizeof(size_t),                    \
                                         .reduction = (tg_loss_reduction)4, __VA_ARGS__},                              \
     .in = {X(ROWS, 3), Y(ROWS, 3)}, .refused = TG_ERR_ARGUMENT},                                                      \
    {.note = "4 M elements", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                                        \
     .in = {X(ROWS, 2048, 2048), Y(ROWS, 2048, 2048)}, .bench = true}

#endif
