/* What the cross-entropies share: options, targets, and the reduction from a loss per row to the result. */
#ifndef TG_ROW_LOSS_H
#define TG_ROW_LOSS_H

#include "ops/common/op.h"

#include <tapegrad/ops.h>

typedef struct tg_row_loss_params {
    tg_comm *comm; /* the ranks over which the classes are sharded; NULL: they are all here */
    size_t size;   /* of the caller's options, of which we know `known` bytes */
    size_t known;
    int64_t ignore_index;
    double smoothing; /* converted by infer to PyTorch's definition: (1 - s) nll + s mean(-log p) */
    tg_smoothing kind;
    tg_loss_reduction reduction;
    bool in_place;
    bool spent;    /* a head's backward has overwritten the saved logits */
    bool weighted; /* input 1 has weights of the classes; the last private saved buffer [rows] those of the targets */
    /* Column 0 is class `first` of `classes`; this rank has `columns` of them, further columns are padding. The
     * infer of an op over shards sets them. */
    int64_t first, columns, classes;
} tg_row_loss_params;

/* Private saved buffers: those of tg_cross_entropy_args, [rows] each, and the number of rows not ignored. */
enum { TG_ROW_LOSS_TOP, TG_ROW_LOSS_MASS, TG_ROW_LOSS_COUNT };

/* The options of a sample. */
#define TG_ROW_LOSS(ignore_, smoothing_, reduction_) TG_ROW_LOSS_AS(ignore_, smoothing_, reduction_, TORCH)
#define TG_ROW_LOSS_AS(ignore_, smoothing_, reduction_, kind_)                                                         \
    &(const tg_row_loss_params) {                                                                                      \
        .size = sizeof(size_t), .known = sizeof(size_t), .ignore_index = ignore_, .smoothing = smoothing_,             \
        .kind = TG_SMOOTHING_##kind_, .reduction = TG_LOSS_##reduction_                                                \
    }

/* The caller's options. */
tg_row_loss_params tg_row_loss_params_of(const tg_cross_entropy_opts *opts);
tg_tensor *tg_class_weights_of(const tg_cross_entropy_opts *opts); /* NULL: none */
int64_t tg_row_loss_ignore_index(int64_t given); /* of an option, whose 0 stands for the default */

/* Checks the options and the target (the last input) of x [.., n] for this number of classes, unless params say how
 * they are sharded; declares result and buffers. */
tg_status tg_row_loss_infer(tg_call *c, int64_t classes);

/* Where the loss of every row goes: the result itself, or a temporary that tg_row_loss_reduce sums. */
tg_status tg_row_loss_buffer(tg_call *c, tg_tensor **loss);
/* Computes loss, top and mass of rows [first, first + logits.shape[0]) of the call; for a shard its parts of them,
 * as tg_cross_entropy_args says. With TG_SMOOTHING_MEGATRON_PARTITION loss is [2, rows]: those parts without
 * smoothing, and the mean of this rank's logits less their top. */
tg_status tg_row_loss_forward(tg_call *c, tg_array logits, const tg_tensor *target, const tg_tensor *loss,
                              int64_t first);
tg_status tg_row_loss_reduce(tg_call *c, const tg_tensor *target, const tg_tensor *loss);

/* *counts: bool, of target's shape, true where the row is not ignored. */
tg_status tg_row_loss_counts(tg_call *c, const tg_tensor *target, tg_tensor **counts);

/* The gradient of every row's loss: one number (a scalar) for all, or [rows]. */
tg_status tg_row_loss_gradients(tg_call *c, tg_tensor **g);
/* glogits (+)= the gradient of the rows from `first` on. glogits may be the logits' own memory. With
 * TG_SMOOTHING_MEGATRON_PARTITION g is [rows], 0 in ignored rows. */
tg_status tg_row_loss_backward(tg_call *c, tg_array glogits, tg_array logits, const tg_tensor *target,
                               const tg_tensor *g, int64_t first, bool add);

/* For cross_entropy, whose input 1 may be class weights (class_weights.c). The infer function runs before
 * tg_row_loss_infer. The forward function turns each row's loss, which tg_row_loss_forward computed without smoothing,
 * into the weighted loss; the backward function replaces tg_row_loss_backward. All tensors are contiguous. */
tg_status tg_class_weights_infer(tg_call *c, int64_t classes);
tg_status tg_class_weights_forward(tg_call *c, tg_tensor *x, tg_tensor *target, tg_tensor *loss);
tg_status tg_class_weights_backward(tg_call *c, tg_tensor *gx, tg_tensor *x, tg_tensor *target, tg_tensor *g, bool add);

/* Records the loss of logits for the target (last input) and params of a node, as ops. */
tg_tensor *tg_row_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *logits);
/* Records its second part: from each row's loss to the result. */
tg_tensor *tg_row_loss_compose_reduce(tg_tape *t, const tg_row_loss_params *p, tg_tensor *loss, const tg_tensor *target,
                                      tg_tensor *ignored);

/* Returns whether the classes are sharded and each rank smooths over its own. */
static inline bool tg_row_loss_by_partition(const tg_row_loss_params *p) {
    return p->comm && p->kind == TG_SMOOTHING_MEGATRON_PARTITION;
}

/* An array on a contiguous block of memory; e holds its layout. */
tg_array tg_rows_array(void *data, tg_dtype dtype, int64_t rows, int64_t n, tg_extent *e);

#endif
