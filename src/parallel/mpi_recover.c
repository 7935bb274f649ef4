/* A group of the MPI transport that begins anew with the members that are still there.
 *
 * Each says to all that it has come. The lowest of those who have, when the others will not any more (or the deadline
 * has passed), says who is there; the first such list holds. */
#include "parallel/mpi_transport.h"
#include "parallel/shm.h"

static void say(tg_mpi_group *g, tg_mpi_kind kind, const uint8_t *list) {
    for (int i = 0; i < g->size; i++) {
        int rank = g->member[i].rank;
        tg_mpi_message *m = i == g->rank || g->self->peer[rank].gone ? NULL : tg_mpi_draft(g->self, kind, g);
        if (!m) continue;
        if (list) memcpy(m->body, list, (size_t)g->size);
        m->payload = list ? (uint32_t)g->size : 0;
        tg_mpi_post(g->self, m, rank);
    }
}

static bool will_come(const tg_mpi_group *g, int i) {
    const tg_mpi_member *m = &g->member[i];
    return !m->came && !m->left && !g->self->peer[m->rank].gone;
}

/* This rank decides when it is the first that has come, and waits for nobody else. */
static bool decides(const tg_mpi_group *g, bool late) {
    for (int i = 0; i < g->size; i++) {
        if (!late && will_come(g, i)) return false;
        if (i < g->rank && g->member[i].came && !g->member[i].left) return false;
    }
    return true;
}

static void decide(tg_mpi_group *g) {
    for (int i = 0; i < g->size; i++) g->list[i] = g->member[i].came && !g->member[i].left;
    g->decided = true;
    say(g, TG_MPI_DECIDE, g->list);
}

void tg_mpi_came(tg_mpi_group *g, const tg_mpi_message *m) {
    g->member[m->member].came = true;
    if (m->kind != TG_MPI_DECIDE || g->decided) return;
    memcpy(g->list, m->body, (size_t)g->size);
    g->decided = true;
}

/* The deadline, twice: once for those who decide, and for their word to arrive. */
static bool agree(tg_mpi_group *g) {
    double start = tg_shm_now(), deadline = g->self->ctx->deadline;
    g->member[g->rank].came = true;
    say(g, TG_MPI_COME, NULL);
    for (int round = 0; !g->decided; round++) {
        double waited = tg_shm_now() - start;
        if (decides(g, waited > deadline)) decide(g);
        if (g->self->broken || waited > 2 * deadline) return false;
        tg_mpi_progress(g->self);
        tg_mpi_rest(g->self, round);
    }
    return true;
}

/* The ranks of the list in their old order; -1 where this one is not among them. */
static int number(const tg_mpi_group *g, int *ranks, int *n) {
    int mine = -1;
    *n = 0;
    for (int i = 0; i < g->size; i++) {
        if (!g->list[i]) continue;
        if (i == g->rank) mine = *n;
        ranks[(*n)++] = g->member[i].rank;
    }
    return mine;
}

tg_status tg_mpi_recover(tg_mpi_seat *seat, int *rank, int *size) {
    tg_mpi_group *old = seat->g;
    tg_ctx *ctx = old->self->ctx;
    size_t bytes = (size_t)old->size * sizeof(int);
    int n = 0, *ranks = tg_host_alloc(ctx, bytes);
    if (!ranks) return ctx->status;
    tg_mpi_fail(old, TG_ERR_ABORTED, -1, old->self->me, "a rank has called tg_comm_recover", old->sequence);
    bool agreed = agree(old);
    int mine = agreed ? number(old, ranks, &n) : -1;
    tg_mpi_group *g = mine < 0 ? NULL : tg_mpi_group_new(old->self, &old->key, ranks, n, mine, old->name);
    tg_host_free(ctx, ranks, bytes);
    if (!agreed) return tg_fail(ctx, TG_ERR_TIMEOUT, "tg_comm_recover: the other ranks have not come");
    if (mine < 0)
        return tg_fail(ctx, TG_ERR_ABORTED,
                       "tg_comm_recover: the other ranks have begun anew without this one, which came too late");
    if (!g) return ctx->status;
    g->world = old->world;
    tg_mpi_group_close(old);
    seat->g = g;
    *rank = mine;
    *size = n;
    return TG_OK;
}
