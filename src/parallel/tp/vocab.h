/* Helpers of the ops over a vocabulary that is sharded over ranks: cross-entropy, linear cross-entropy and
 * embedding. */
#ifndef TG_VOCAB_H
#define TG_VOCAB_H

#include "ops/common/row_loss.h"

#include <tapegrad/tensor_parallel.h>

#include "parallel/mappings/mapping_samples.h"

tg_row_loss_params tg_vocab_loss_params(tg_comm *c, const tg_vocab_opts *opts);
/* Sets which classes this rank's v columns are. Called before tg_row_loss_infer. */
tg_status tg_vocab_loss_shard(tg_call *c, int64_t v);
/* States that input i is a shard of the vocabulary along dim. Called after tg_row_loss_infer. A refusal quotes
 * `remedy`. */
tg_status tg_vocab_loss_convert(tg_call *c, int i, int dim, const char *remedy);
/* Makes a temporary [2 or 3, rows of the target] for the numbers that ranks exchange. *parts is its part from row 1
 * on, for tg_row_loss_forward. */
tg_status tg_vocab_loss_rows(tg_call *c, tg_tensor **rows, tg_tensor **parts);
/* Combines the parts of all ranks to the losses and the result, with two all-reduces. */
tg_status tg_vocab_loss_finish(tg_call *c, tg_tensor *rows);
/* Returns the gradient of every row's loss in *g, in the form that tg_row_loss_backward expects. */
tg_status tg_vocab_loss_gradients(tg_call *c, tg_tensor **g);

/* Record derivatives as ops. tg_vocab_loss_compose records the loss of this rank's logits for the target and
 * params of a node. tg_vocab_local_ids records the positions of ids among this rank's rows, which begin at global row
 * `first`; where an id is another rank's, *elsewhere is true and the position 0. */
tg_tensor *tg_vocab_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *logits);
tg_tensor *tg_vocab_local_ids(tg_tape *t, tg_tensor *ids, int64_t first, int64_t rows, tg_tensor **elsewhere);

/* The options of a sample. */
#define TG_VOCAB_P(ignore_, smoothing_, reduction_, ...)                                                               \
    &(const tg_row_loss_params) {                                                                                      \
        .size = sizeof(size_t), .known = sizeof(size_t), .ignore_index = ignore_, .smoothing = smoothing_,             \
        .reduction = TG_LOSS_##reduction_, __VA_ARGS__                                                                 \
    }

#endif
