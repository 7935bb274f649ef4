/* Layers: modules for the parts that most models are made of. nn.h, which says what a module is, includes this header;
 * docs/modules.md has a table of all layers.
 *
 * Every rank holds these layers as a whole. tensor_parallel.h has layers that are sharded over ranks. It also has
 * deferred weight gradients (tg_wgrads), which do not need tensor parallelism. The parameters of the layers here have
 * the placement TG_I (invariant, placement.h) until tg_place or tg_module_replicate places them. The input x of a
 * layer's forward may have any placement that the layer's op (tg_linear for tg_nn_linear, and so on) accepts with these
 * parameters.
 *
 * A size or a count (of groups, of layers) below 1 fails with TG_ERR_ARGUMENT. Where a comment names an error in
 * parentheses, the call fails with it if an argument breaks the rule before the parentheses. On error the functions
 * that create a module return an inert one (tapegrad.h).
 *
 * Names and shapes of parameters are PyTorch's. The weights of linear, embedding and convolution layers are drawn from
 * a normal distribution with mean 0 and standard deviation std, which is finite and 0 or more (TG_ERR_ARGUMENT). Their
 * biases start as 0. To set other values, pass std 0, which draws nothing, and call tg_param_init (nn.h). To give
 * parameters another dtype, call tg_module_cast. */
#ifndef TAPEGRAD_LAYERS_H
#define TAPEGRAD_LAYERS_H

#include <tapegrad/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Linear layers and embeddings ---- */

/* Creates a linear layer. It computes x @ weight^T + bias, where weight^T is the transposed weight. x [.., in] gives
 * [.., out]. weight is [out, in]. The layer has a bias [out] only if the argument bias is true. */
TG_API tg_module *tg_nn_linear(tg_ctx *ctx, int64_t in, int64_t out, bool bias, double std);
/* Creates an embedding. It looks up rows of weight [vocab, hidden]: ids [..], int64 or int32, give [.., hidden]. An id
 * outside [0, vocab) fails with TG_ERR_DATA. */
TG_API tg_module *tg_nn_embedding(tg_ctx *ctx, int64_t vocab, int64_t hidden, double std);

/* ---- Norms ---- */

/* All norms have a weight, which starts as 1. All but tg_nn_rms_norm have a bias too, which starts as 0. The result has
 * the shape of x. eps must be finite and 0 or more (TG_ERR_ARGUMENT). */

/* Create a norm over the last dim of x [.., hidden]. The weight is [hidden], and so is the bias of tg_nn_layer_norm. */
TG_API tg_module *tg_nn_layer_norm(tg_ctx *ctx, int64_t hidden, double eps);
TG_API tg_module *tg_nn_rms_norm(tg_ctx *ctx, int64_t hidden, double eps);
/* Creates a norm over each of `groups` groups of adjacent channels of x [n, channels, ..] (tg_group_norm). weight and
 * bias are [channels]. groups must divide channels (TG_ERR_ARGUMENT). */
TG_API tg_module *tg_nn_group_norm(tg_ctx *ctx, int64_t groups, int64_t channels, double eps);
/* Creates a norm over each channel of x [n, channels, ..] (tg_batch_norm). weight and bias are [channels]. The buffers
 * running_mean and running_var, both [channels], start as 0 and 1. In training mode x is normalized with the mean and
 * the biased variance of each channel, and each buffer r becomes (1 - momentum) * r + momentum * s, where s is that
 * mean or the unbiased variance. momentum must be in [0, 1] (TG_ERR_ARGUMENT); PyTorch's default is 0.1. In evaluation
 * mode x is normalized with the buffers. tg_module_cast leaves the buffers as they are. There is no
 * num_batches_tracked, PyTorch's count of batches: tg_module_load accepts a file with that name only if its option
 * partial is set. */
TG_API tg_module *tg_nn_batch_norm(tg_ctx *ctx, int64_t channels, double momentum, double eps);

/* ---- Convolutions ---- */

/* Create a convolution: tg_nn_conv1d over x [n, in, l] with windows of `size` elements, tg_nn_conv2d over x [n, in, h,
 * w] with windows of height * width elements (tg_conv1d and tg_conv2d say what is computed). weight is [out, in /
 * groups, size], or [out, in / groups, height, width]. The layer has a bias [out] only if the argument bias is true.
 * opts is copied and may be NULL. opts->groups must divide in and out (TG_ERR_ARGUMENT); the forward checks the other
 * options. */
TG_API tg_module *tg_nn_conv1d(tg_ctx *ctx, int64_t in, int64_t out, int64_t size, bool bias, double std,
                               const tg_conv_opts *opts);
TG_API tg_module *tg_nn_conv2d(tg_ctx *ctx, int64_t in, int64_t out, int64_t height, int64_t width, bool bias,
                               double std, const tg_conv_opts *opts);

/* ---- Layers without parameters ---- */

/* Creates a dropout (tg_dropout) with probability p, 0 <= p < 1 (TG_ERR_ARGUMENT). */
TG_API tg_module *tg_nn_dropout(tg_ctx *ctx, double p);
/* Creates a module that computes fn(t, x). fn is an op with one input, such as tg_relu, or a function of the caller.
 * `name`, which is copied, is what tg_module_print shows. Neither name nor fn may be NULL (TG_ERR_ARGUMENT). */
TG_API tg_module *tg_nn_function(tg_ctx *ctx, const char *name, tg_tensor *(*fn)(tg_tape *t, tg_tensor *x));

/* ---- Sequences of modules ---- */

/* Creates a module that passes its input through its children, in the order in which they were added; without children
 * it returns its input. tg_module_add_child adds a child of any name; tg_sequential_add names it by its number, "0",
 * "1" and so on, as PyTorch's Sequential does. */
TG_API tg_module *tg_nn_sequential(tg_ctx *ctx);
/* Adds a child, which m then owns. The child's name is the number of children that m had before or, if a child has that
 * name already, the next number that is free. Fails with TG_ERR_ARGUMENT if m was not made by tg_nn_sequential. The
 * other errors, and who owns child after an error, are as for tg_module_add_child. */
TG_API tg_status tg_sequential_add(tg_module *m, tg_module *child);

/* ---- Recurrent layers ---- */

typedef struct tg_rnn_opts {
    size_t size;
    bool bidirectional; /* a second set of parameters reads the sequence from its end */
    bool no_bias;       /* the layers have no bias_ih and bias_hh */
    double dropout;     /* of the outputs of every layer but the last one: a probability in [0, 1); 0 by default */
} tg_rnn_opts;

#define TG_RNN_DEFAULTS .size = sizeof(tg_rnn_opts)
#define TG_RNN(...) (&(tg_rnn_opts){TG_RNN_DEFAULTS, __VA_ARGS__})

/* Create a GRU (Cho et al., arXiv 1406.1078) or LSTM (Hochreiter and Schmidhuber, Neural Computation 9(8), 1997) with
 * the equations, parameter names and initial values of PyTorch's GRU and LSTM. It has `layers` layers. Layer 0
 * reads x, and layer l > 0 the outputs of layer l - 1. d below is 1, or 2 if opts->bidirectional is set. opts may be
 * NULL.
 *
 * A call (tg_module_call) takes
 * - x [s, b, in], a batch of b >= 1 sequences of s >= 1 elements each;
 * - h [layers * d, b, hidden], the state before the first element;
 * - c, of the same shape, the cell state of an LSTM;
 * and gives
 * - y [s, b, d * hidden], the states of the last layer after each element, both directions joined;
 * - h, and for an LSTM c, in the shapes of the inputs h and c: the states after the last element, and for the second
 *   direction after the first element. The input states h and c may be NULL or, with a smaller n_in, left out; they
 *   are then 0. A call may ask for y alone, or for y and h. tg_module_forward maps x to y. Index l * d of the first
 *   dim of h and c is layer l, and the next index is its second direction if d is 2. Other shapes, and too many inputs
 *   or outputs, fail with TG_ERR_SHAPE.
 *
 * In these equations sig is tg_sigmoid; x_k is the block of W_ih x + b_ih for gate k, and h_k that of W_hh h + b_hh.
 * The blocks are in the order r, z, n of a GRU, and i, f, g, o of an LSTM.
 *   GRU:  r = sig(x_r + h_r), z = sig(x_z + h_z), n = tanh(x_n + r * h_n), h = (1 - z) * n + z * h
 *   LSTM: i = sig(x_i + h_i), f = sig(x_f + h_f), o = sig(x_o + h_o), g = tanh(x_g + h_g), c = f * c + i * g,
 *         h = o * tanh(c)
 *
 * Layer N has these parameters, such as weight_ih_l0 of layer 0. gates is 3 for a GRU and 4 for an LSTM.
 * - weight_ih_lN [gates * hidden, in], or [gates * hidden, d * hidden] if N > 0;
 * - weight_hh_lN [gates * hidden, hidden];
 * - bias_ih_lN and bias_hh_lN [gates * hidden], unless opts->no_bias is set.
 *
 * Names of the second direction end in "_reverse". All parameters are drawn from the uniform distribution between -r
 * and r, where r is 1 / sqrt(hidden). Dropout with one layer fails with TG_ERR_ARGUMENT, because it would do
 * nothing. */
TG_API tg_module *tg_nn_gru(tg_ctx *ctx, int64_t in, int64_t hidden, int layers, const tg_rnn_opts *opts);
TG_API tg_module *tg_nn_lstm(tg_ctx *ctx, int64_t in, int64_t hidden, int layers, const tg_rnn_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
