/* What the files of check mode share: how tensors and numbers differ between ranks. rule.h declares what other layers
 * call. */
#ifndef TG_PLACEMENT_CHECK_H
#define TG_PLACEMENT_CHECK_H

#include "placement/grid.h"

/* Compares n numbers of every rank with those of rank 0, in one collective. Sets *wrong to -1 if all are equal.
 * Otherwise sets it to (rank * n + i), where rank is the first rank that differs and i is its first different number.
 * If first and other are not NULL, sets them to number i of rank 0 and of that rank. If the communicator moves no data
 * (tg_comm_plan_new), *wrong is -1. */
tg_status tg_placement_find_other(tg_ctx *ctx, tg_comm *comm, const int64_t *mine, int64_t n, int64_t *wrong,
                                  int64_t *first, int64_t *other);

/* Writes how x differs, such as "element 3 is 1 on rank 0 and 2 on rank 1", and sets *rank to that other rank.
 * Collective. */
tg_status tg_placement_describe_difference(tg_tensor *x, tg_comm *comm, int *rank, char *text, size_t n);

#endif
