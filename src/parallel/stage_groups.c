/* The groups that consist of two pipeline stages. The first and the last stage, which may share the word embeddings,
 * form one group. Each pair of neighbors forms two more: one for activations and one for gradients. So all messages of
 * such a group go one way, and none of them waits for a message that goes the other way. */
#include <stdio.h>

#include "parallel/parallel.h"

/* Makes or rebuilds the two groups of edge e, which joins stage e and the stage after it. This rank is one of these two
 * stages. In both groups stage e is rank 0. */
static void make_edge(tg_parallel *p, const int *stages, int e) {
    static const char *const what[2] = {"activations", "gradients"};
    int n = tg_comm_size(p->comm[TG_PP]), after = (e + 1) % n, pair[2] = {stages[e], stages[after]};
    bool to_next = e == tg_comm_rank(p->comm[TG_PP]);
    for (int i = 0; i < 2; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s %d-%d", what[i], e, after);
        tg_parallel_make_comm(p, pair, 2, name, TG_MAX_AXES, n == 2, &p->edge[to_next][i]);
    }
}

/* All ranks form the groups in the same order: first that of the first and the last stage, then those of the edges. The
 * edges form a ring: the stage after the last one is the first. */
tg_status tg_parallel_make_stage_groups(tg_parallel *p, const int *stages) {
    tg_comm *pp = p->comm[TG_PP];
    int n = tg_comm_size(pp), me = tg_comm_rank(pp), ends[2] = {stages[0], stages[n - 1]};
    if (n == 1) {
        p->embedding = pp;
        return TG_OK;
    }
    if (me == 0 || me == n - 1) tg_parallel_make_comm(p, ends, 2, "embedding", TG_MAX_AXES, n == 2, &p->embedding);
    for (int e = 0; e < n; e++)
        if (me == e || me == (e + 1) % n) make_edge(p, stages, e);
    return p->ctx->run.status;
}

void tg_parallel_drop_stage_groups(tg_parallel *p) {
    if (p->embedding != p->comm[TG_PP]) tg_comm_free(p->embedding);
    p->embedding = NULL;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 2; i++) {
            tg_comm_free(p->edge[side][i]);
            p->edge[side][i] = NULL;
        }
}

/* A recovery may have moved this rank to a stage between the first and the last one. Its old group has then ended, but
 * still exists, because a shared parameter may have its address. */
tg_comm *tg_parallel_embedding(const tg_parallel *p) {
    int n = tg_parallel_size(p, TG_PP), stage = tg_parallel_rank(p, TG_PP);
    return p && (stage == 0 || stage == n - 1) ? p->embedding : NULL;
}

/* Activations that this stage sends and gradients that it receives belong to the edge to the stage after it; the others
 * belong to the edge to the stage before it. */
tg_comm *tg_parallel_edge(const tg_parallel *p, bool down, bool sending) {
    return p ? p->edge[down == sending][!down] : NULL;
}
