/* What losses that are computed element by element share: options, shapes, and the reduction of the elements' losses to
 * the result. nll uses the options and the reduction for its losses of rows. */
#ifndef TG_ELEMENTWISE_LOSS_H
#define TG_ELEMENTWISE_LOSS_H

#include "ops/common/op.h"

#include <tapegrad/ops.h>

typedef struct tg_elementwise_loss_params {
    size_t size, known; /* sizes of the caller's options struct and of the library's */
    tg_loss_reduction reduction;
    bool log_target;
    int64_t ignore_index;
    /* of huber and smooth_l1: the loss is a parabola where |x - y| <= width, and a straight line elsewhere; 0 means no
     * parabola */
    double width;
    double scale; /* of l1, huber and smooth_l1: multiplies x - y (distance_losses.c); set by infer */
    const char *unused; /* the name of an option that is set although the loss does not use it, or NULL */
} tg_elementwise_loss_params;

/* The options that not every loss uses. */
enum { TG_LOSS_USES_IGNORE_INDEX = 1, TG_LOSS_USES_LOG_TARGET = 2 };

/* The params of a sample (tg_sample), which is a call of the op for tests and benches. */
#define TG_LOSS_P(reduction_, ...)                                                                          \
    &(const tg_elementwise_loss_params) {                                                                   \
        .size = sizeof(size_t), .known = sizeof(size_t), .reduction = TG_LOSS_##reduction_, __VA_ARGS__     \
    }

/* Reads the caller's options; NULL means the defaults. `uses` is a sum of TG_LOSS_USES_*: the options that this loss
 * uses. */
tg_elementwise_loss_params tg_elementwise_loss_params_of(const tg_loss_opts *opts, unsigned uses);
/* Checks the options. `last` is the last value of tg_loss_reduction that the loss supports. */
tg_status tg_elementwise_loss_check(tg_call *c, tg_loss_reduction last);
/* Checks the options, that inputs 0 and 1 are floats of one dtype and shape, and that further inputs broadcast to that
 * shape. Declares the result, which has that shape or is a scalar. */
tg_status tg_elementwise_loss_infer(tg_call *c, tg_loss_reduction last);

/* Returns the tensor that forward fills with every element's loss: the result itself if it is not reduced, otherwise a
 * temporary. */
tg_tensor *tg_elementwise_loss_buffer(tg_call *c);
/* Returns a temporary of input 0's shape, in the result's dtype. */
tg_tensor *tg_elementwise_loss_temp(tg_call *c);
/* Reduces the elements' losses to the result. */
tg_status tg_elementwise_loss_reduce(tg_call *c, const tg_tensor *loss);
/* Returns the gradient of every element's loss, times factor: a scalar if it is the same for all elements, otherwise a
 * tensor of input 0's shape. Callers check tg_ok before they use it. */
tg_tensor *tg_elementwise_loss_gradient(tg_call *c, double factor);
/* Does what tg_elementwise_loss_reduce does, by recording ops. */
tg_tensor *tg_elementwise_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *loss);

/* out = formula(in...) for one to four tensors, where p and q are the formula's parameters (0 in TG_PUT). The macros
 * need a variable `c`, the tg_call. If the operation fails, they return its status from the calling function. */
#define TG_PUT(fn, out, ...) TG_PUT_P(fn, 0, 0, out, __VA_ARGS__)
#define TG_PUT_P(fn, p, q, out, ...)                                                  \
    TG_TRY(tg_op_map(c, TG_FN_##fn, out, (const tg_tensor *const[]){__VA_ARGS__},     \
                     (int)(sizeof((const tg_tensor *const[]){__VA_ARGS__}) / sizeof(tg_tensor *)), p, q, false))

/* ---- Samples of a loss of x and y ----
 *
 * X and Y are macros that make a tg_sample_input from dims and from a layout without its prefix: ROWS stands for
 * TG_SAMPLE_ROWS. They may call TG_LOSS_IN with the whole name. Further arguments initialize fields of the params. */

#define TG_LOSS_IN(layout_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .layout = (layout_)}
#define TG_PAIR_SAMPLES(X, Y, ...)                                                                                     \
    {.note = "mean", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2, .input = {X(ROWS, 3, 4), Y(ROWS, 3, 4)}},      \
    {.note = "sum", .params = TG_LOSS_P(SUM, __VA_ARGS__), .n_in = 2, .input = {X(ROWS, 3, 4), Y(ROWS, 3, 4)}},        \
    {.note = "one loss per element", .params = TG_LOSS_P(NONE, __VA_ARGS__), .n_in = 2,                                \
     .input = {X(ROWS, 2, 3, 2), Y(ROWS, 2, 3, 2)}},                                                                   \
    {.note = "other strides", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                                       \
     .input = {X(TRANSPOSED, 3, 4), Y(STRIDED, 3, 4)}},                                                                \
    {.note = "other strides, one loss per element", .params = TG_LOSS_P(NONE, __VA_ARGS__), .n_in = 2,                 \
     .input = {X(STRIDED, 3, 4), Y(TRANSPOSED, 3, 4)}},                                                                \
    {.note = "equal rows", .params = TG_LOSS_P(SUM, __VA_ARGS__), .n_in = 2,                                           \
     .input = {X(EXPANDED, 3, 4), Y(ROWS, 3, 4)}},                                                                     \
    {.note = "one element", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2, .input = {X(ROWS, 1, 1), Y(ROWS, 1,     \
                                                                                                          1)}},        \
    {.note = "no elements", .params = TG_LOSS_P(SUM, __VA_ARGS__), .n_in = 2, .input = {X(ROWS, 0, 3), Y(ROWS, 0,      \
                                                                                                         3)}},         \
    {.note = "shapes differ", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2, .input = {X(ROWS, 3, 4), Y(ROWS, 1,   \
                                                                                                            4)},       \
     .refused = TG_ERR_SHAPE},                                                                                         \
    {.note = "integers", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                                            \
     .input = {TG_S_INDEX(4, 3), TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},                                          \
    {.note = "a target of another dtype", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                           \
     .input = {X(ROWS, 3), TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},                                                \
    {.note = "no such reduction", .n_in = 2,                                                                           \
     .params = &(const tg_elementwise_loss_params){.size = sizeof(size_t), .known = sizeof(size_t),                    \
                                         .reduction = (tg_loss_reduction)4, __VA_ARGS__},                              \
     .input = {X(ROWS, 3), Y(ROWS, 3)}, .refused = TG_ERR_ARGUMENT},                                                   \
    {.note = "4 M elements", .params = TG_LOSS_P(MEAN, __VA_ARGS__), .n_in = 2,                                        \
     .input = {X(ROWS, 2048, 2048), Y(ROWS, 2048, 2048)}, .bench = true}

#endif
