/* Targets: tensors whose gradients a backward hands to its caller, found by address. */
#ifndef TG_TARGETS_H
#define TG_TARGETS_H

#include "autograd/backward.h"

/* An entry of a list that is searched by address: the index of something in an array. */
typedef struct tg_keyed {
    const void *key;
    int64_t at;
} tg_keyed;

/* Sorts n entries by their keys, which are compared as addresses, in place and without allocating. Entries with the
 * same key end up in any order. */
void tg_keyed_sort(tg_keyed *a, int64_t n);
/* Returns the first entry with this key in a sorted list, or NULL if there is none. */
tg_keyed *tg_keyed_find(tg_keyed *a, int64_t n, const void *key);

/* Finds the nodes of the pass's targets, and prepares tg_pass_target. tg_backward_run calls tg_pass_free_targets when
 * the pass ends, after an error too. */
tg_status tg_pass_find_targets(tg_pass *p);
void tg_pass_free_targets(tg_pass *p);
/* Returns the target that is this output of the node, or NULL if it is not a target. */
tg_target *tg_pass_target(const tg_pass *p, const tg_node *n, int out);

#endif
