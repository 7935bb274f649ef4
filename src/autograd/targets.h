/* Targets: tensors whose gradients a backward hands to its caller, found by address. */
#ifndef TG_TARGETS_H
#define TG_TARGETS_H

#include "autograd/backward.h"

/* Numbers found by address. */
typedef struct tg_keyed {
    const void *key;
    int64_t at;
} tg_keyed;

/* Sorts by address, in place and without memory. */
void tg_keyed_sort(tg_keyed *a, int64_t n);
/* Returns the first of equals in a sorted list. NULL: there is none. */
tg_keyed *tg_keyed_find(tg_keyed *a, int64_t n, const void *key);

/* Finds the nodes of the pass's targets, and prepares tg_pass_target. */
tg_status tg_pass_find_targets(tg_pass *p);
/* The target that is the node's output. NULL: it is none. */
tg_target *tg_pass_target(const tg_pass *p, const tg_node *n, int out);

#endif
