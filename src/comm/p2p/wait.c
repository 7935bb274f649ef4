/* Progress, waiting and failure in the transport between nodes. */
#include <sched.h>
#include <time.h>

#include "base/os.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/shm.h"

/* ---- Messages ---- */

void tg_link_deliver(tg_link_group *g, const tg_link_message *m) {
    switch (m->kind) {
    case TG_LINK_CALL:
    case TG_LINK_SEND: tg_link_arrival(g, m); break;
    case TG_LINK_TAKEN: tg_link_mail_taken(g, m); break;
    case TG_LINK_FAIL: tg_link_fail(g, (tg_status)m->status, m->cause, m->rank, m->body, m->sequence); break;
    case TG_LINK_LEAVE: g->member[m->member].left = true; break;
    case TG_LINK_SKIP: g->member[m->member].skips = m->sequence; break;
    case TG_LINK_COME:
    case TG_LINK_DECIDE: tg_link_came(g, m); break;
    case TG_LINK_PROBE: tg_link_probed(g, m); break;
    default: break;
    }
}

static void deliver(tg_link_rank *self, const tg_link_message *m) {
    tg_link_group *g;
    self->peer[m->rank].heard = tg_system_now();
    switch (m->kind) {
    case TG_LINK_ASK: tg_link_asked(self, m); break;
    case TG_LINK_FAILED: tg_link_peer_failed(self, m->rank, (tg_status)m->status, m->cause, m->body); break;
    case TG_LINK_CLEARED: self->peer[m->rank].status = TG_OK; break;
    case TG_LINK_BYE: self->peer[m->rank].gone = true; break;
    default:
        g = tg_link_find(self, m);
        if (g) tg_link_deliver(g, m);
    }
}

/* ---- Progress ---- */

static void request_leaves(tg_link_request *r) {
    tg_link_rank *self = r->group->self;
    *(r->prev ? &r->prev->next : &self->first) = r->next;
    *(r->next ? &r->next->prev : &self->last) = r->prev;
}

void tg_link_progress(tg_link_rank *self) {
    if (self->announce) self->listener.failed(&self->listener);
    tg_link_poll(self);
    for (const tg_link_message *m; (m = tg_link_next(self));) {
        deliver(self, m);
        tg_link_taken(self);
    }
    bool closed = false;
    for (tg_link_group *g = self->groups; g; g = g->next) {
        g->held[0] = g->held[1] = false;
        closed |= g->closed;
        tg_link_land(g);
    }
    for (tg_link_request *r = self->first, *next; r; r = next) {
        next = r->next;
        if (!tg_link_over(r->call)) tg_link_advance(r->call);
        if (r->done) request_leaves(r);
    }
    if (closed) tg_link_groups_sweep(self);
}

void tg_link_forget(tg_link_request *r) {
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
void tg_link_rest(const tg_link_rank *self, int round) {
    enum { YIELDS = 32 };
    struct timespec nap = {.tv_nsec = 20000};
    if (round < self->spins)
        pause_briefly();
    else if (round < self->spins + YIELDS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

static tg_status await(tg_link_group *g, const tg_link_request *r, tg_link_call *place) {
    tg_link_rank *self = g->self;
    double start = 0;
    for (int round = 0;; round++) {
        tg_link_call *c = r ? r->call : place;
        if (r ? r->done : !place || !place->request) return TG_OK;
        if (tg_link_over(c)) return tg_link_failed(g, r != NULL);
        if (self->broken) return tg_fail(self->ctx, TG_ERR_ABORTED, "%s has failed before", self->layer->name);
        tg_link_progress(self);
        tg_ctx_idle(self->ctx);
        if ((r ? r->done : !place->request) || tg_link_over(c) || round < self->spins) continue;
        if (start == 0) start = tg_system_now();
        tg_link_look(c, start);
        tg_link_rest(self, round);
    }
}

tg_status tg_link_await(tg_link_group *g, const tg_link_request *r, tg_link_call *place) {
    g->self->first_question = g->self->questions + 1;
    g->self->waits_for = r ? r->call : place;
    tg_status s = await(g, r, place);
    g->self->waits_for = NULL;
    return s;
}

tg_status tg_link_look_on(tg_link_group *g, tg_link_request *r, double waited) {
    tg_link_rank *self = g->self;
    if (waited < 0 || !r) self->waits_for = NULL;
    if (waited < 0) return TG_OK;
    tg_link_progress(self);
    if (self->broken) return tg_fail(self->ctx, TG_ERR_ABORTED, "%s has failed before", self->layer->name);
    if (r && !r->done) {
        if (self->waits_for != r->call) self->first_question = self->questions + 1;
        self->waits_for = r->call;
        if (!tg_link_over(r->call)) tg_link_look(r->call, tg_system_now() - waited);
    }
    bool lost = r && !r->done ? tg_link_over(r->call) : g->failed;
    if (!lost) return TG_OK;
    self->waits_for = NULL;
    return tg_link_failed(g, r != NULL);
}

bool tg_link_until(tg_link_rank *self, bool (*there)(tg_link_rank *self)) {
    double start = tg_system_now();
    for (int round = 0; !there(self); round++) {
        if (self->broken || tg_system_now() - start > self->ctx->run.deadline) return false;
        tg_link_progress(self);
        tg_link_rest(self, round);
    }
    return true;
}
