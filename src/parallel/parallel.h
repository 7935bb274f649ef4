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
    /* The groups with the stage before [0] and with the stage after [1]: of activations [0] and of gradients [1]. NULL
     * if there is one stage. */
    tg_comm *edge[2][2];
    bool buckets_held; /* backward starts no sums of buckets (tg_buckets_hold) */
    tg_buckets *buckets;             /* all tg_buckets that are alive, newest first */
    tg_parallel_listener *listeners; /* newest first */
};

/* Creates the communicator *out of these n ranks of the world, as tg_comm_split_known does. In a recovery, *out exists:
 * rebuilds it in place, because layers hold its address. */
void tg_parallel_make_comm(tg_parallel *p, const int *ranks, int n, const char *name, tg_axis axis, bool all,
                           tg_comm **out);
/* Makes, or rebuilds, the groups of two stages. stages: the ranks of the world that are the stages of this rank's
 * pipeline. */
tg_status tg_parallel_make_stage_groups(tg_parallel *p, const int *stages);
void tg_parallel_drop_stage_groups(tg_parallel *p);

#endif
