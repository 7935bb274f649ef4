/* The tg_parallel of a rank: its groups, and the objects that use them. */
#ifndef TG_PARALLEL_H
#define TG_PARALLEL_H

#include "comm/comm.h"

#include <tapegrad/parallel.h>

#include "placement/grid.h"

/* Callbacks of an object that uses the groups of a tg_parallel. */
typedef struct tg_parallel_listener {
    tg_status (*recovered)(struct tg_parallel_listener *l); /* tg_parallel_recover has rebuilt the groups */
    void (*ended)(struct tg_parallel_listener *l);          /* the groups are about to be freed */
    struct tg_parallel_listener *next;
} tg_parallel_listener;

struct tg_parallel {
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel_opts o; /* with defaults filled in */
    char order[40]; /* the text of o.order */
    bool one_grid;  /* both grids have the same groups: ep has one rank, etp is tp, and edp is dp and cp together */
    tg_comm *comm[TG_MAX_AXES];
    tg_comm *dp_cp, *model, *embedding;
    tg_buckets *buckets;             /* all tg_buckets that are alive, newest first */
    tg_parallel_listener *listeners; /* newest first */
};

#endif
