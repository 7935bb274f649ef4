/* One rank of a training run in which nothing is computed: the device is meta, and the communicator only counts calls
 * and bytes. `tapegrad inspect` uses it to measure the steps of `tapegrad train`. */
#ifndef TAPEGRAD_META_RANK_H
#define TAPEGRAD_META_RANK_H

#include "train/train.h"

typedef struct meta_rank {
    tg_ctx *ctx;
    tg_comm *world;
    trainer r;
} meta_rank;

/* Makes the trainer of a rank. Returns false after printing what is wrong; meta_rank_close may be called in any case.
 */
bool meta_rank_open(meta_rank *w, const train_options *o, const tg_lm_config *config, int rank);
void meta_rank_close(meta_rank *w);
/* Runs a step. Sets *memory to the memory that it takes, and *sent to the calls and bytes of its collectives. memory
 * and sent may be NULL. */
bool meta_rank_step(meta_rank *w, tg_memory_info *memory, tg_comm_info *sent);
/* Records the forward of one micro-batch on the trainer's tape, through all layers of this rank. */
bool meta_rank_forward(meta_rank *w);

#endif
