/* What nodes save for backward, and packing it until backward reads it (tg_tape_pack). */
#ifndef TG_SAVED_TENSORS_H
#define TG_SAVED_TENSORS_H

#include "tape/tape.h"

/* Checks that everything which n saved is there, and is what it was. */
tg_status tg_node_check_saved(const tg_node *n);
/* The same, and that no backward has consumed it. */
tg_status tg_node_ready(const tg_node *n);
/* Releases what the node saved, as backward passes it. */
void tg_node_release(const tg_tape *t, tg_node *n);

/* Drops the packed form of s, if it has one: nobody will unpack these bytes any more. */
void tg_saved_drop(tg_storage *s);
/* A backward that may run again has read what n saved: what was packed goes once more. */
void tg_saved_repack(const tg_tape *t, const tg_node *n);

#endif
