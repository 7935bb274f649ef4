/* A rank's groups, as the library's own layers see them. */
#ifndef TG_PARALLEL_H
#define TG_PARALLEL_H

#include "comm/comm.h"

#include <tapegrad/parallel.h>

struct tg_parallel {
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel_opts o; /* completed */
    char order[40];
    bool one_grid; /* the experts' grid is the dense one: etp is tp, edp is dp and cp, ep has one rank */
    tg_comm *comm[TG_MAX_AXES];
    tg_comm *dp_cp, *model, *embedding;
    tg_buckets *buckets; /* alive, the newest first */
};

#endif
