/* Progress, waiting and failure in the transport between nodes. */
#include <sched.h>
#include <time.h>

#include "base/os.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/shm.h"

/* ---- Messages ---- */

void tg_p2p_deliver(tg_p2p_group *g, const tg_p2p_message *m) {
    switch (m->kind) {
    case TG_P2P_CALL:
    case TG_P2P_SEND: tg_p2p_arrival(g, m); break;
    case TG_P2P_TAKEN: tg_p2p_mail_taken(g, m); break;
    case TG_P2P_FAIL: tg_p2p_fail(g, (tg_status)m->status, m->cause, m->rank, m->body, m->sequence); break;
    case TG_P2P_LEAVE: g->member[m->member].left = true; break;
    case TG_P2P_SKIP: g->member[m->member].skips = m->sequence; break;
    case TG_P2P_COME:
    case TG_P2P_DECIDE: tg_p2p_came(g, m); break;
    case TG_P2P_PROBE: tg_p2p_probed(g, m); break;
    default: break;
    }
}

static void deliver(tg_p2p_rank *self, const tg_p2p_message *m) {
    tg_p2p_group *g;
    self->peer[m->rank].heard = tg_system_now();
    switch (m->kind) {
    case TG_P2P_ASK: tg_p2p_asked(self, m); break;
    case TG_P2P_FAILED: tg_p2p_peer_failed(self, m->rank, (tg_status)m->status, m->cause, m->body); break;
    case TG_P2P_CLEARED: self->peer[m->rank].status = TG_OK; break;
    case TG_P2P_BYE: self->peer[m->rank].gone = true; break;
    default:
        g = tg_p2p_find(self, m);
        if (g) tg_p2p_deliver(g, m);
    }
}

/* ---- Progress ---- */

static void request_leaves(tg_p2p_request *r) {
    tg_p2p_rank *self = r->group->self;
    *(r->prev ? &r->prev->next : &self->first) = r->next;
    *(r->next ? &r->next->prev : &self->last) = r->prev;
}

void tg_p2p_progress(tg_p2p_rank *self) {
    if (self->announce) self->listener.failed(&self->listener);
    tg_p2p_poll(self);
    for (const tg_p2p_message *m; (m = tg_p2p_next(self));) {
        deliver(self, m);
        tg_p2p_taken(self);
    }
    bool closed = false;
    for (tg_p2p_group *g = self->groups; g; g = g->next) {
        g->held[0] = g->held[1] = false;
        closed |= g->closed;
        tg_p2p_land(g);
    }
    for (tg_p2p_request *r = self->first, *next; r; r = next) {
        next = r->next;
        if (!tg_p2p_over(r->call)) tg_p2p_advance(r->call);
        if (r->done) request_leaves(r);
    }
    if (closed) tg_p2p_groups_sweep(self);
}

void tg_p2p_forget(tg_p2p_request *r) {
    r->call->request = NULL;
    request_leaves(r);
}

/* ---- Waiting ---- */

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Another rank may need this core. */
void tg_p2p_rest(const tg_p2p_rank *self, int round) {
    enum { YIELDS = 32 };
    struct timespec nap = {.tv_nsec = 20000};
    if (round < self->spins)
        pause_briefly();
    else if (round < self->spins + YIELDS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

static tg_status await(tg_p2p_group *g, const tg_p2p_request *r, tg_p2p_call *place) {
    tg_p2p_rank *self = g->self;
    double start = 0;
    for (int round = 0;; round++) {
        tg_p2p_call *c = r ? r->call : place;
        if (r ? r->done : !place || !place->request) return TG_OK;
        if (tg_p2p_over(c)) return tg_p2p_failed(g, r != NULL);
        if (self->broken) return tg_fail(self->ctx, TG_ERR_ABORTED, "%s has failed before", self->layer->name);
        tg_p2p_progress(self);
        tg_ctx_idle(self->ctx);
        if ((r ? r->done : !place->request) || tg_p2p_over(c) || round < self->spins) continue;
        if (start == 0) start = tg_system_now();
        tg_p2p_look(c, start);
        tg_p2p_rest(self, round);
    }
}

tg_status tg_p2p_await(tg_p2p_group *g, const tg_p2p_request *r, tg_p2p_call *place) {
    g->self->first_question = g->self->questions + 1;
    g->self->waits_for = r ? r->call : place;
    tg_status s = await(g, r, place);
    g->self->waits_for = NULL;
    return s;
}

tg_status tg_p2p_look_on(tg_p2p_group *g, tg_p2p_request *r, double waited) {
    tg_p2p_rank *self = g->self;
    if (waited < 0 || !r) self->waits_for = NULL;
    if (waited < 0) return TG_OK;
    tg_p2p_progress(self);
    if (self->broken) return tg_fail(self->ctx, TG_ERR_ABORTED, "%s has failed before", self->layer->name);
    if (r && !r->done) {
        if (self->waits_for != r->call) self->first_question = self->questions + 1;
        self->waits_for = r->call;
        if (!tg_p2p_over(r->call)) tg_p2p_look(r->call, tg_system_now() - waited);
    }
    bool lost = r && !r->done ? tg_p2p_over(r->call) : g->failed;
    if (!lost) return TG_OK;
    self->waits_for = NULL;
    return tg_p2p_failed(g, r != NULL);
}

bool tg_p2p_until(tg_p2p_rank *self, bool (*there)(tg_p2p_rank *self)) {
    double start = tg_system_now();
    for (int round = 0; !there(self); round++) {
        if (self->broken || tg_system_now() - start > self->ctx->run.deadline) return false;
        tg_p2p_progress(self);
        tg_p2p_rest(self, round);
    }
    return true;
}
