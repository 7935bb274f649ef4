/* Helpers of the ops over a vocabulary that is sharded over ranks: cross-entropy, linear cross-entropy and
 * embedding. */
#ifndef TG_VOCAB_H
#define TG_VOCAB_H

#include "ops/common/row_loss.h"

#include <tapegrad/tensor_parallel.h>

#include "parallel/mappings/mapping_samples.h"

/* Returns the params of an op with these options (NULL: the defaults). */
tg_row_loss_params tg_vocab_loss_params(tg_comm *c, const tg_vocab_opts *opts);
/* For infer, before tg_row_loss_infer: checks the communicator. Sets the fields first, columns and classes of the
 * params (row_loss.h) for a rank whose logits have v columns, some of which may be padding. */
tg_status tg_vocab_loss_shard(tg_call *c, int64_t v);
/* For infer, after tg_row_loss_infer: states that input i is a shard of the vocabulary along dim. remedy: the advice
 * that ends the error message if the input has another placement. */
tg_status tg_vocab_loss_convert(tg_call *c, int i, int dim, const char *remedy);
/* Makes *rows, a temporary for the numbers of this rank that tg_vocab_loss_finish combines: [2, number of targets], or
 * [3, number of targets] if tg_row_loss_by_partition holds. Sets *parts to a view of its rows from 1 on, which
 * tg_row_loss_forward fills with this rank's parts of the losses (tg_cross_entropy_args in device.h). */
tg_status tg_vocab_loss_rows(tg_call *c, tg_tensor **rows, tg_tensor **parts);
/* Computes the losses of all rows and the result from the parts of all ranks, with two all-reduces. */
tg_status tg_vocab_loss_finish(tg_call *c, tg_tensor *rows);
/* Sets *g to the gradient of every row's loss, in the form that tg_row_loss_backward expects. */
tg_status tg_vocab_loss_gradients(tg_call *c, tg_tensor **g);

/* ---- For derivatives of any order: record the same computation as separate ops ---- */

/* Records the loss of this rank's logits, with the target and the params of the node. */
tg_tensor *tg_vocab_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *logits);
/* Records the positions of ids among this rank's rows, which begin at global row `first`. If the row of an id is
 * another rank's, its position is 0 and its element of *elsewhere is true. */
tg_tensor *tg_vocab_local_ids(tg_tape *t, tg_tensor *ids, int64_t first, int64_t rows, tg_tensor **elsewhere);

/* The options of a sample. */
#define TG_VOCAB_P(ignore_, smoothing_, reduction_, ...)                                                               \
    &(const tg_row_loss_params) {                                                                                      \
        .size = sizeof(size_t), .known = sizeof(size_t), .ignore_index = ignore_, .smoothing = smoothing_,             \
        .reduction = TG_LOSS_##reduction_, .classes = TG_AUTO, __VA_ARGS__                                             \
    }

#endif
