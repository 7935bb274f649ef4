/* Tensors that nodes save for backward, and packing them until backward reads them (tg_tape_pack). */
#ifndef TG_SAVED_TENSORS_H
#define TG_SAVED_TENSORS_H

#include "tape/tape.h"

/* Checks that everything which n saved is present and unchanged. */
tg_status tg_node_check_saved(const tg_node *n);
/* Makes the same checks, and checks that no backward has released what n saved. */
tg_status tg_node_ready(const tg_node *n);
/* Releases what the node saved. Called after the node's backward. */
void tg_node_release(const tg_tape *t, tg_node *n);

/* Called when a backward that may run again (.retain) has read what n saved. Discards again those of these bytes that
 * are packed; their packed form is still there. */
void tg_saved_repack(const tg_tape *t, const tg_node *n);

#endif
