/* The struct tg_parallel (tapegrad/parallel.h): the groups of a rank, and the list of the objects that use them. */
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
    char order[40]; /* a copy of the caller's text or of the default; o.order points to it */
    bool one_grid;  /* the dense and the expert grid have the same groups: ep is 1, etp is tp, and edp is dp and cp */
    tg_comm *comm[TG_MAX_AXES];
    tg_comm *dp_cp, *model, *embedding;
    /* edge[0] are the groups with the pipeline stage before this one, edge[1] those with the stage after it. Of either
     * pair, group [0] carries activations and group [1] gradients. All are NULL if there is one stage. */
    tg_comm *edge[2][2];
    bool flats_held; /* backward starts no sums of buckets (tg_flats_hold) */
    tg_flat *flats;  /* all tg_flat that are alive, newest first */
    tg_parallel_listener *listeners; /* newest first */
};

/* If *out is NULL, sets it to a new communicator of these n ranks of the world (tg_comm_split_known in comm/comm.h,
 * which explains the arguments). If *out is a communicator, as in a recovery, rebuilds it in place with these ranks,
 * because layers hold its address. */
void tg_parallel_make_comm(tg_parallel *p, const int *ranks, int n, const char *name, tg_axis axis, bool all,
                           tg_comm **out);
/* Makes or rebuilds p->embedding and p->edge. stages[i] is the rank of the world that runs stage i of this rank's
 * pipeline. */
tg_status tg_parallel_make_stage_groups(tg_parallel *p, const int *stages);
void tg_parallel_drop_stage_groups(tg_parallel *p);

#endif
