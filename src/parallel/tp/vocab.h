/* What the ops over a sharded vocabulary share. */
#ifndef TG_VOCAB_H
#define TG_VOCAB_H

#include "ops/common/row_loss.h"

#include <tapegrad/tensor_parallel.h>

#include "parallel/mappings/mapping_samples.h"

tg_loss_params tg_vocab_params(tg_comm *c, const tg_vocab_opts *opts);
/* Before tg_loss_infer: which of the classes this rank's v columns are. */
tg_status tg_vocab_shard(tg_call *c, int64_t v);
/* After it: input i is a shard of the vocabulary along dim. */
tg_status tg_vocab_convert(tg_call *c, int i, int dim, const char *mend);
/* Room for what the ranks exchange, and within it that for tg_loss_forward's parts. */
tg_status tg_vocab_rows(tg_call *c, tg_tensor **rows, tg_tensor **parts);
/* The losses of all rows and the result, from every rank's parts: at most three all-reduces. */
tg_status tg_vocab_finish(tg_call *c, tg_tensor *rows);
/* The gradient of every row's loss, as tg_loss_backward wants it. */
tg_status tg_vocab_row_grads(tg_call *c, tg_tensor **g);

/* As taped ops: the loss of this rank's logits for a node's target and params; and the position of ids among this
 * rank's rows from `first` on, 0 for those that are elsewhere. */
tg_tensor *tg_vocab_taped(tg_tape *t, const tg_node *n, tg_tensor *logits);
tg_tensor *tg_vocab_local(tg_tape *t, tg_tensor *ids, int64_t first, int64_t rows, tg_tensor **elsewhere);

/* Options of a sample. */
#define TG_V_OPTS(ignore_, smoothing_, reduction_, ...)                                            \
    &(const tg_loss_params) {                                                                      \
        .size = sizeof(size_t), .known = sizeof(size_t), .ignore_index = ignore_,                  \
        .smoothing = smoothing_, .reduction = TG_LOSS_##reduction_, __VA_ARGS__                    \
    }

#endif
