/* A rank's groups, as the library's own layers see them. */
#ifndef TG_PARALLEL_H
#define TG_PARALLEL_H

#include "comm/comm.h"

#include <tapegrad/parallel.h>

#include "placement/grid.h"

/* Callbacks of an object that works over the groups of a tg_parallel. */
typedef struct tg_parallel_listener {
    tg_status (*recovered)(struct tg_parallel_listener *l); /* tg_parallel_recover has made the groups anew */
    void (*ended)(struct tg_parallel_listener *l);          /* the groups are about to be freed */
    struct tg_parallel_listener *next;
} tg_parallel_listener;

struct tg_parallel {
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel_opts o; /* completed */
    char order[40];
    bool one_grid; /* the experts' grid is the dense one: etp is tp, edp is dp and cp, ep has one rank */
    tg_comm *comm[TG_MAX_AXES];
    tg_comm *dp_cp, *model, *embedding;
    tg_buckets *buckets;             /* of parallel/dp: those that are alive, the newest first */
    tg_parallel_listener *listeners; /* the newest first */
};

#endif
