/* Implements tg_mover_ops for the transport between nodes: handles messages, advances this rank's calls, and pauses
 * while nothing arrives. */
#include <time.h>

#include "base/os.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/failure.h"
#include "comm/p2p/flow.h"
#include "comm/shm/shm.h"

/* ---- Messages ---- */

void tg_p2p_deliver(tg_p2p_group *g, const tg_p2p_message *m) {
    switch (m->kind) {
    case TG_P2P_CALL:
    case TG_P2P_SEND: tg_p2p_arrival(g, m); break;
    case TG_P2P_TAKEN: tg_p2p_send_taken(g, m); break;
    case TG_P2P_FAIL: tg_p2p_failed(g, m); break;
    case TG_P2P_LEAVE: g->member[m->member].left = true; break;
    case TG_P2P_MISSED: g->member[m->member].missed_calls = m->sequence; break;
    case TG_P2P_RECOVER:
    case TG_P2P_DECIDE: tg_p2p_recovery(g, m); break;
    case TG_P2P_PROBE: tg_p2p_probed(g, m); break;
    default: break;
    }
}

static void deliver(tg_p2p_rank *self, const tg_p2p_message *m) {
    tg_p2p_group *g;
    self->peer[m->rank].heard = tg_system_now();
    switch (m->kind) {
    case TG_P2P_REQUEST: tg_p2p_requested(self, m); break;
    case TG_P2P_FAILED: tg_p2p_peer_failed(self, m->rank, (tg_status)m->status, m->cause, m->body); break;
    case TG_P2P_CLEARED: self->peer[m->rank].status = TG_OK; break;
    case TG_P2P_BYE: self->peer[m->rank].gone = true; break;
    default:
        g = tg_p2p_find(self, m);
        if (g) tg_p2p_deliver(g, m);
    }
}

/* ---- Progress ---- */

static void remove_request(tg_p2p_request *r) {
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
        tg_p2p_use_pieces(g);
    }
    for (tg_p2p_request *r = self->first, *next; r; r = next) {
        next = r->next;
        if (!tg_p2p_cannot_finish(r->call)) tg_p2p_advance(r->call);
        if (r->done) remove_request(r);
    }
    if (closed) tg_p2p_groups_sweep(self);
}

void tg_p2p_forget(tg_p2p_request *r) {
    tg_p2p_rank *self = r->group->self;
    if (self->waits_for == r->call) self->waits_for = NULL;
    tg_p2p_refuse_all(r->call);
    r->call->request = NULL;
    remove_request(r);
}

/* ---- Waiting ---- */

/* Spins, then sleeps, because another rank may need this core. It does not yield, because a program of lower priority
 * would then get a whole time slice. */
void tg_p2p_pause(const tg_p2p_rank *self, int round) {
    struct timespec interval = {.tv_nsec = 20000};
    if (round < self->spins)
        tg_system_pause();
    else
        nanosleep(&interval, NULL);
}

bool tg_p2p_until(tg_p2p_rank *self, bool (*done)(tg_p2p_rank *self)) {
    double start = tg_system_now();
    for (int round = 0; !done(self); round++) {
        if (self->broken || tg_system_now() - start > self->ctx->run.deadline) return false;
        tg_p2p_progress(self);
        tg_p2p_pause(self, round);
    }
    return true;
}

/* ---- The mover ---- */

static void advance(tg_control *c) { tg_p2p_progress(tg_p2p_of(c)->self); }

static bool is_done(tg_control *c, const tg_wait *w) {
    const tg_p2p_request *r = w->request;
    const tg_p2p_call *place = w->place;
    (void)c;
    return r ? r->done : !place || !place->request;
}

/* There is no quiesce: peers never touch this rank's tensors, because pieces arrive in buffers of the transport. */
const tg_mover_ops tg_p2p_mover = {.advance = advance, .done = is_done};
