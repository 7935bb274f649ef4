/* A group that begins anew with the members that are still there.
 *
 * Each of them says that it has come. Whoever sees that all have, or will not any more (or that the deadline has
 * passed), writes down who is there; the first such list holds for all. */
#define _GNU_SOURCE
#include <sched.h>

#include "base/os.h"
#include "comm/shm/shm.h"

static bool is_accounted_for(tg_shm_group *s, int i) {
    const tg_member *m = tg_group_member(s->g, i);
    return atomic_load_explicit(&m->came, memory_order_acquire) ||
           atomic_load_explicit(&m->gone, memory_order_acquire) ||
           atomic_load_explicit(&tg_shm_card(s, i)->state, memory_order_acquire) == TG_RANK_RETURNED ||
           !tg_process_alive(&s->self->view, m->rank);
}

static bool all_accounted_for(tg_shm_group *s) {
    for (int i = 0; i < s->size; i++)
        if (!is_accounted_for(s, i)) return false;
    return true;
}

/* Who died before leaving the group never will. */
static int count_dead(tg_shm_group *s) {
    int n = 0;
    for (int i = 0; i < s->size; i++) {
        const tg_member *m = tg_group_member(s->g, i);
        n += !atomic_load_explicit(&m->gone, memory_order_acquire) && !tg_process_alive(&s->self->view, m->rank);
    }
    return n;
}

static void decide(tg_shm_group *s) {
    int nobody = 0;
    bool *list = tg_group_list(s->g, s->rank);
    for (int i = 0; i < s->size; i++)
        list[i] = atomic_load_explicit(&tg_group_member(s->g, i)->came, memory_order_acquire) &&
                  !atomic_load_explicit(&tg_group_member(s->g, i)->gone, memory_order_acquire);
    if (atomic_compare_exchange_strong_explicit(&s->g->decided, &nobody, s->rank + 1, memory_order_acq_rel,
                                                memory_order_acquire))
        tg_group_lost(&s->self->view, s->g, count_dead(s));
}

static const bool *agree(tg_shm_group *s) {
    double until = tg_system_now() + s->self->ctx->run.deadline;
    atomic_store_explicit(&tg_group_member(s->g, s->rank)->came, true, memory_order_release);
    for (int decided; !(decided = atomic_load_explicit(&s->g->decided, memory_order_acquire)); tg_shm_nap(s))
        if (all_accounted_for(s) || tg_system_now() > until) decide(s);
    return tg_group_list(s->g, atomic_load_explicit(&s->g->decided, memory_order_acquire) - 1);
}

/* The ranks of the list in their old order; -1 where this one is not among them. */
static int number(tg_shm_group *s, const bool *list, int *ranks, int *n) {
    int mine = -1;
    *n = 0;
    for (int i = 0; i < s->size; i++) {
        if (!list[i]) continue;
        if (i == s->rank) mine = *n;
        ranks[(*n)++] = tg_group_member(s->g, i)->rank;
    }
    return mine;
}

tg_status tg_shm_recover(tg_ctx *ctx, void *state, int *rank, int *size) {
    tg_shm_group *s = state;
    size_t bytes = (size_t)s->size * sizeof(int);
    int n = 0, *ranks = tg_host_alloc(ctx, bytes);
    if (!ranks) return ctx->run.status;
    tg_shm_abandon(s, "a rank has called tg_comm_recover");
    tg_shm_quiesce(s);
    int mine = number(s, agree(s), ranks, &n);
    tg_group *g = mine < 0 ? NULL : tg_group_join(ctx, &s->self->view, s->g, ranks, n, mine, s->g->name);
    tg_host_free(ctx, ranks, bytes);
    if (mine < 0)
        return tg_fail(ctx, TG_ERR_ABORTED,
                       "tg_comm_recover: the other ranks have begun anew without this one, which came too late");
    if (!g) return ctx->run.status;
    tg_group_leave(&s->self->view, s->g, s->rank);
    memset(s->pairs, 0, s->pairs_bytes);
    s->g = g;
    s->rank = mine;
    s->size = n;
    s->next = s->mails = 0;
    s->told = false;
    s->skips = ctx->run.missed;
    *rank = mine;
    *size = n;
    return TG_OK;
}
