/* A communicator as the library's own ops see it. */
#ifndef TG_COMM_H
#define TG_COMM_H

#include <tapegrad/parallel.h>

#include "core/core.h"

/* One collective. What a kind does not use is zero. */
typedef struct tg_collective_args {
    tg_collective kind;
    tg_tensor *dst, *src;
    tg_reduce_op op;
    int root;                   /* or the peer of a send or receive */
    const int64_t *send, *recv; /* elements for, and from, each rank; NULL: equal parts. All-gather reads recv,
                                   reduce-scatter send */
    const void *site;           /* of the public function's caller */
} tg_collective_args;

/* The one door: checks, signs, posts and starts. dst's storage owns the work, as parallel.h says of the public
 * functions, which are one line over this; NULL after recording the error. */
tg_work *tg_comm_start(tg_comm *c, const tg_collective_args *a);

#endif
