/* Progress, waiting and failure in the MPI transport. */
#include <sched.h>
#include <time.h>

#include "parallel/mpi_transport.h"
#include "parallel/shm.h"

/* ---- Messages ---- */

void tg_mpi_deliver(tg_mpi_group *g, const tg_mpi_message *m) {
    switch (m->kind) {
    case TG_MPI_CALL:
    case TG_MPI_SEND: tg_mpi_arrival(g, m); break;
    case TG_MPI_TAKEN: tg_mpi_mail_taken(g, m); break;
    case TG_MPI_FAIL: tg_mpi_fail(g, (tg_status)m->status, m->cause, m->rank, m->body, m->sequence); break;
    case TG_MPI_LEAVE: g->member[m->member].left = true; break;
    case TG_MPI_SKIP: g->member[m->member].skips = m->sequence; break;
    case TG_MPI_COME:
    case TG_MPI_DECIDE: tg_mpi_came(g, m); break;
    default: break;
    }
}

static void deliver(tg_mpi_rank *self, const tg_mpi_message *m) {
    tg_mpi_group *g;
    self->peer[m->rank].heard = tg_shm_now();
    switch (m->kind) {
    case TG_MPI_ASK: tg_mpi_asked(self, m); break;
    case TG_MPI_FAILED: tg_mpi_peer_failed(self, m->rank, (tg_status)m->status, m->cause, m->body); break;
    case TG_MPI_CLEARED: self->peer[m->rank].status = TG_OK; break;
    case TG_MPI_BYE: self->peer[m->rank].gone = true; break;
    default:
        g = tg_mpi_find(self, m);
        if (g) tg_mpi_deliver(g, m);
    }
}

/* ---- Progress ---- */

static void request_leaves(tg_mpi_request *r) {
    tg_mpi_rank *self = r->group->self;
    *(r->prev ? &r->prev->next : &self->first) = r->next;
    *(r->next ? &r->next->prev : &self->last) = r->prev;
}

void tg_mpi_progress(tg_mpi_rank *self) {
    if (self->announce) self->listener.failed(&self->listener);
    tg_mpi_poll(self);
    for (const tg_mpi_message *m; (m = tg_mpi_next(self));) {
        deliver(self, m);
        tg_mpi_taken(self);
    }
    bool closed = false;
    for (tg_mpi_group *g = self->groups; g; g = g->next) {
        g->held[0] = g->held[1] = false;
        closed |= g->closed;
        tg_mpi_land(g);
    }
    for (tg_mpi_request *r = self->first, *next; r; r = next) {
        next = r->next;
        if (!tg_mpi_over(r->call)) tg_mpi_advance(r->call);
        if (r->done) request_leaves(r);
    }
    if (closed) tg_mpi_groups_sweep(self);
}

void tg_mpi_forget(tg_mpi_request *r) {
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
void tg_mpi_rest(const tg_mpi_rank *self, int round) {
    enum { YIELDS = 32 };
    struct timespec nap = {.tv_nsec = 20000};
    if (round < self->spins)
        pause_briefly();
    else if (round < self->spins + YIELDS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

tg_status tg_mpi_await(tg_mpi_group *g, const tg_mpi_request *r, tg_mpi_call *place) {
    tg_mpi_rank *self = g->self;
    double start = 0;
    for (int round = 0;; round++) {
        tg_mpi_call *c = r ? r->call : place;
        if (r ? r->done : !place || !place->request) return TG_OK;
        if (tg_mpi_over(c)) return tg_mpi_failed(g, r != NULL);
        if (self->broken) return tg_fail(self->ctx, TG_ERR_ABORTED, "MPI has failed before");
        tg_mpi_progress(self);
        if ((r ? r->done : !place->request) || tg_mpi_over(c) || round < self->spins) continue;
        if (start == 0) start = tg_shm_now();
        tg_mpi_look(c, start);
        tg_mpi_rest(self, round);
    }
}

bool tg_mpi_until(tg_mpi_rank *self, bool (*there)(tg_mpi_rank *self)) {
    double start = tg_shm_now();
    for (int round = 0; !there(self); round++) {
        if (self->broken || tg_shm_now() - start > self->ctx->deadline) return false;
        tg_mpi_progress(self);
        tg_mpi_rest(self, round);
    }
    return true;
}
