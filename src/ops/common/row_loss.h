/* What the cross-entropies share: options, targets, and the reduction of the rows' losses to the result. A row is the
 * logits of one target. */
#ifndef TG_ROW_LOSS_H
#define TG_ROW_LOSS_H

#include "ops/common/op.h"

#include <tapegrad/ops.h>

typedef struct tg_row_loss_params {
    tg_comm *comm; /* the ranks over which the classes are sharded; NULL means that this rank has all classes */
    size_t size, known; /* sizes of the caller's options struct and of the library's */
    int64_t ignore_index;
    double smoothing; /* converted by infer to PyTorch's definition: (1 - s) nll + s mean(-log p) */
    tg_smoothing kind;
    tg_loss_reduction reduction;
    bool in_place; /* of vocab_parallel_cross_entropy: backward writes the gradient over the logits */
    bool spent;    /* backward of a chunked head has overwritten the saved logits (chunked_head.h) */
    /* Input 1 has the weights of the classes; the last private saved buffer [rows] has the weight of each row's
     * target. */
    bool weighted;
    /* `classes` is the number of all classes. This rank has `columns` of them: column i of its logits is class
     * first + i, for i < columns. Further columns are padding. If comm is set, the op's own infer function sets these
     * fields; otherwise first is 0, and tg_row_loss_infer sets the other two. */
    int64_t first, columns, classes;
} tg_row_loss_params;

/* Private saved buffers: top and mass of tg_cross_entropy_args, [rows] each, and for TG_LOSS_MEAN the divisor: the
 * number of rows that are not ignored, or the sum of their targets' weights. */
enum { TG_ROW_LOSS_TOP, TG_ROW_LOSS_MASS, TG_ROW_LOSS_COUNT };

/* The options of a sample. */
#define TG_ROW_LOSS(ignore_, smoothing_, reduction_) TG_ROW_LOSS_AS(ignore_, smoothing_, reduction_, TORCH)
#define TG_ROW_LOSS_AS(ignore_, smoothing_, reduction_, kind_)                                                         \
    &(const tg_row_loss_params) {                                                                                      \
        .size = sizeof(size_t), .known = sizeof(size_t), .ignore_index = ignore_, .smoothing = smoothing_,             \
        .kind = TG_SMOOTHING_##kind_, .reduction = TG_LOSS_##reduction_                                                \
    }

/* The arguments of a cross-entropy that are no tensors. */
extern const tg_field tg_row_loss_fields[4];
#define TG_ROW_LOSS_FIELDS .fields = tg_row_loss_fields, .n_fields = 4

/* Read the caller's options; NULL means the defaults. */
tg_row_loss_params tg_row_loss_params_of(const tg_cross_entropy_opts *opts);
tg_tensor *tg_class_weights_of(const tg_cross_entropy_opts *opts); /* returns NULL if there are no weights */

/* Checks the options and the target, which is the last input, for logits [.., n] with this number of classes. If
 * params->comm is set, the params' fields `columns` and `classes` are used instead. Declares the result and the saved
 * buffers. */
tg_status tg_row_loss_infer(tg_call *c, int64_t classes);

/* Sets *loss to the tensor that forward fills with every row's loss: the result itself if it is not reduced,
 * otherwise a temporary. */
tg_status tg_row_loss_buffer(tg_call *c, tg_tensor **loss);
/* Computes loss, top and mass of the rows from `first` on, as many as `logits` has. For a shard of the classes, these
 * are the parts of the shard (tg_cross_entropy_args). If tg_row_loss_by_partition is true, loss is [2, rows]: loss[0]
 * receives the parts without smoothing, and loss[1] the mean of this rank's logits in each row, minus top. */
tg_status tg_row_loss_forward(tg_call *c, tg_array logits, const tg_tensor *target, const tg_tensor *loss,
                              int64_t first);
/* Reduces the rows' losses to the result. */
tg_status tg_row_loss_reduce(tg_call *c, const tg_tensor *target, const tg_tensor *loss);

/* Sets *counts to a temporary bool tensor of target's shape that is true where the row is not ignored. */
tg_status tg_row_loss_counts(tg_call *c, const tg_tensor *target, tg_tensor **counts);

/* Sets *g to the gradient of the rows' losses: a scalar if it is the same for all rows, otherwise of the result's
 * shape. */
tg_status tg_row_loss_gradients(tg_call *c, tg_tensor **g);
/* glogits (+)= the gradient of the rows from `first` on. glogits may be the logits' own memory. g comes from
 * tg_row_loss_gradients; if tg_row_loss_by_partition is true, g must be [rows] with 0 in ignored rows. */
tg_status tg_row_loss_backward(tg_call *c, tg_array glogits, tg_array logits, const tg_tensor *target,
                               const tg_tensor *g, int64_t first, bool add);

/* For cross_entropy, whose input 1 may be class weights (class_weights.c). All tensors are contiguous.
 * tg_class_weights_infer is called before tg_row_loss_infer. tg_class_weights_forward gets each row's loss from
 * tg_row_loss_forward, without smoothing, and replaces it by the weighted, smoothed loss. tg_class_weights_backward is
 * called instead of tg_row_loss_backward. */
tg_status tg_class_weights_infer(tg_call *c, int64_t classes);
tg_status tg_class_weights_forward(tg_call *c, tg_tensor *x, tg_tensor *target, tg_tensor *loss);
tg_status tg_class_weights_backward(tg_call *c, tg_tensor *gx, tg_tensor *x, tg_tensor *target, tg_tensor *g, bool add);

/* Computes the op's result from logits by recording ops, with the node's target (its last input) and params. */
tg_tensor *tg_row_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *logits);
/* Does the second part of tg_row_loss_compose: reduces the rows' losses to the result. A mean divides by the number of
 * rows that count. `ignored` is true in the other rows. */
tg_tensor *tg_row_loss_compose_reduce(tg_tape *t, const tg_row_loss_params *p, tg_tensor *loss, const tg_tensor *target,
                                      tg_tensor *ignored);

/* Returns whether the classes are sharded and each rank smooths over its own classes only. */
static inline bool tg_row_loss_by_partition(const tg_row_loss_params *p) {
    return p->comm && p->kind == TG_SMOOTHING_MEGATRON_PARTITION;
}

/* Returns a contiguous array [rows, n] on `data`. Its layout lies in *e. */
tg_array tg_rows_array(void *data, tg_dtype dtype, int64_t rows, int64_t n, tg_extent *e);

#endif
