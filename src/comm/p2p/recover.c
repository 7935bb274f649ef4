/* A group of the transport between nodes that begins anew with the members that are still there.
 *
 * Each says to all that it has come. The lowest of those who have, when the others will not any more (or the deadline
 * has passed), says who is there; the first such list holds. */
#include "base/os.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/shm.h"

static void say(tg_p2p_group *g, tg_p2p_kind kind, const uint8_t *list) {
    for (int i = 0; i < g->size; i++) {
        int rank = g->member[i].rank;
        tg_p2p_message *m = i == g->rank || g->self->peer[rank].gone ? NULL : tg_p2p_draft(g->self, kind, g);
        if (!m) continue;
        if (list) memcpy(m->body, list, (size_t)g->size);
        m->payload = list ? (uint32_t)g->size : 0;
        tg_p2p_post(g->self, m, rank);
    }
}

static bool will_come(const tg_p2p_group *g, int i) {
    const tg_p2p_member *m = &g->member[i];
    return !m->came && !m->left && !g->self->peer[m->rank].gone;
}

/* This rank decides when it is the first that has come, and waits for nobody else. */
static bool decides(const tg_p2p_group *g, bool late) {
    for (int i = 0; i < g->size; i++) {
        if (!late && will_come(g, i)) return false;
        if (i < g->rank && g->member[i].came && !g->member[i].left) return false;
    }
    return true;
}

static void decide(tg_p2p_group *g) {
    for (int i = 0; i < g->size; i++) g->list[i] = g->member[i].came && !g->member[i].left;
    g->decided = true;
    say(g, TG_P2P_DECIDE, g->list);
}

void tg_p2p_came(tg_p2p_group *g, const tg_p2p_message *m) {
    g->member[m->member].came = true;
    if (m->kind != TG_P2P_DECIDE || g->decided) return;
    memcpy(g->list, m->body, (size_t)g->size);
    g->decided = true;
}

/* The deadline, twice: once for those who decide, and for their word to arrive. */
static bool agree(tg_p2p_group *g) {
    double start = tg_system_now(), deadline = g->self->ctx->run.deadline;
    g->member[g->rank].came = true;
    say(g, TG_P2P_COME, NULL);
    for (int round = 0; !g->decided; round++) {
        double waited = tg_system_now() - start;
        if (decides(g, waited > deadline)) decide(g);
        if (g->self->broken || waited > 2 * deadline) return false;
        tg_p2p_progress(g->self);
        tg_p2p_rest(g->self, round);
    }
    return true;
}

/* The ranks of the list in their old order; -1 where this one is not among them. */
static int number(const tg_p2p_group *g, int *ranks, int *n) {
    int mine = -1;
    *n = 0;
    for (int i = 0; i < g->size; i++) {
        if (!g->list[i]) continue;
        if (i == g->rank) mine = *n;
        ranks[(*n)++] = g->member[i].rank;
    }
    return mine;
}

/* Those who wait for this rank learn what it has cleared. */
static void abandon(tg_p2p_group *g) {
    int me = g->self->me;
    if (g->self->ctx->run.missed != g->skips)
        tg_p2p_fail_by(g, me, " (and has cleared its error)", g->sequence);
    else
        tg_p2p_fail(g, TG_ERR_ABORTED, -1, me, "a rank has called tg_comm_recover", g->sequence);
}

tg_status tg_p2p_recover(tg_p2p_seat *seat, int *rank, int *size) {
    tg_p2p_group *old = seat->g;
    tg_ctx *ctx = old->self->ctx;
    size_t bytes = (size_t)old->size * sizeof(int);
    int n = 0, *ranks = tg_host_alloc(ctx, bytes);
    if (!ranks) return ctx->run.status;
    abandon(old);
    bool agreed = agree(old);
    int mine = agreed ? number(old, ranks, &n) : -1;
    tg_p2p_group *g = mine < 0 ? NULL : tg_p2p_group_new(old->self, &old->key, ranks, n, mine, old->name);
    tg_host_free(ctx, ranks, bytes);
    if (!agreed) return tg_fail(ctx, TG_ERR_TIMEOUT, "tg_comm_recover: the other ranks have not come");
    if (mine < 0)
        return tg_fail(ctx, TG_ERR_ABORTED, "tg_comm_recover: the other ranks have begun anew without this one, which "
                                            "came too late");
    if (!g) return ctx->run.status;
    g->world = old->world;
    tg_p2p_group_close(old);
    seat->g = g;
    *rank = mine;
    *size = n;
    return TG_OK;
}
