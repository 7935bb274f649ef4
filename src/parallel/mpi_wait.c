/* Progress, waiting and failure in the MPI transport. */
#include <sched.h>
#include <time.h>

#include "parallel/mpi_transport.h"
#include "parallel/shm.h"

/* ---- Messages ---- */

static void peer_failed(tg_mpi_rank *self, const tg_mpi_message *m) {
    tg_mpi_peer *p = &self->peer[m->rank];
    if (!p->failure) p->failure = tg_host_alloc(self->ctx, TG_MPI_FAILURE);
    if (p->failure) memcpy(p->failure, m->body, m->text < TG_MPI_FAILURE ? m->text : TG_MPI_FAILURE);
    p->status = (tg_status)m->status;
    p->cause = m->cause;
}

void tg_mpi_deliver(tg_mpi_group *g, const tg_mpi_message *m) {
    switch (m->kind) {
    case TG_MPI_CALL:
    case TG_MPI_SEND: tg_mpi_arrival(g, m); break;
    case TG_MPI_TAKEN: tg_mpi_mail_taken(g, m); break;
    case TG_MPI_FAIL: tg_mpi_fail(g, (tg_status)m->status, m->cause, m->body, false); break;
    case TG_MPI_LEAVE: g->member[m->member].left = true; break;
    default: break;
    }
}

static void deliver(tg_mpi_rank *self, const tg_mpi_message *m) {
    tg_mpi_group *g;
    switch (m->kind) {
    case TG_MPI_ASK: tg_mpi_asked(self, m); break;
    case TG_MPI_FAILED: peer_failed(self, m); break;
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

/* Once more where something has happened: it may be what another call has waited for. */
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
        if (!r->group->failed) tg_mpi_advance(r->call);
        if (r->done) request_leaves(r);
    }
    if (closed) tg_mpi_groups_sweep(self);
}

void tg_mpi_forget(tg_mpi_request *r) {
    r->call->request = NULL;
    request_leaves(r);
}

/* ---- Failure ---- */

static void refuse_all(tg_mpi_group *g, tg_mpi_call *c) {
    for (int i = 0; i < g->size && c->owed; i++) {
        tg_mpi_side *s = &c->side[c->mail ? 0 : i];
        int rank = g->member[c->mail ? c->peer : i].rank;
        for (int phase = 0; phase < TG_MPI_PHASES; phase++)
            for (; s->served[phase] < s->wanted[phase]; c->owed--)
                tg_mpi_refuse(g->self, rank, s->tag[phase][s->served[phase]++ % TG_MPI_PIECES]);
    }
}

/* What is under way lands in the transport's buffers, and nobody looks at it. */
static void give_up(tg_mpi_group *g) {
    for (tg_mpi_request *r = g->self->first; r; r = r->next)
        if (r->group == g) refuse_all(g, r->call);
    for (int i = 0; i < g->size; i++)
        for (int k = 0; k < TG_MPI_PHASES * TG_MPI_PIECES; k++)
            g->member[i].in[k / TG_MPI_PIECES][k % TG_MPI_PIECES].call = NULL;
}

void tg_mpi_fail(tg_mpi_group *g, tg_status status, int culprit, const char *text, bool tell) {
    size_t at = 0;
    if (g->failed) return;
    g->failed = true;
    g->status = status;
    g->culprit = culprit;
    tg_text(g->failure, sizeof g->failure, &at, "%s", text);
    give_up(g);
    for (int i = 0; tell && i < g->size; i++) {
        tg_mpi_message *m = i == g->rank ? NULL : tg_mpi_draft(g->self, TG_MPI_FAIL, g);
        if (!m) continue;
        m->status = (int32_t)status;
        m->cause = culprit;
        tg_mpi_write(m, g->failure);
        tg_mpi_post(g->self, m, g->member[i].rank);
    }
}

tg_status tg_mpi_failed(tg_mpi_group *g) {
    tg_ctx *ctx = g->self->ctx;
    tg_status status = g->told || g->culprit == g->self->me ? TG_ERR_ABORTED : g->status;
    if (tg_ok(ctx)) g->told = true;
    g->self->cause = g->culprit;
    return status == TG_ERR_ABORTED
               ? tg_fail(ctx, status, "this group was aborted (%s); tg_comm_recover begins anew", g->failure)
               : tg_fail(ctx, status, "%s", g->failure);
}

/* ---- Waiting ---- */

/* Whether the call still waits for that member to arrive. */
static bool awaited(const tg_mpi_call *c, int member) {
    if (member == c->g->rank) return false;
    return c->mail ? member == c->peer && !c->arrived : !c->side[member].arrived;
}

static void describe_member(const tg_mpi_group *g, int i, char *buf, size_t n, size_t *at) {
    const tg_mpi_member *m = &g->member[i];
    tg_text(buf, n, at, "rank %d (", m->rank);
    if (m->calls) {
        tg_text(buf, n, at, "its last call in this group was number %llu, ", (unsigned long long)m->calls);
        tg_mpi_describe(&m->last, m->last_count, m->site, buf, n, at);
    } else {
        tg_text(buf, n, at, "it has made no call in this group");
    }
    tg_text(buf, n, at, ")");
}

/* A member that will not come any more ends the group. */
static void look_at_peers(tg_mpi_group *g, const tg_mpi_call *c) {
    char text[TG_MPI_FAILURE];
    size_t at = 0;
    for (int i = 0; i < g->size && !g->failed; i++) {
        const tg_mpi_peer *p = &g->self->peer[g->member[i].rank];
        int rank = g->member[i].rank;
        if (!awaited(c, i)) continue;
        if (p->status == TG_ERR_REMOTE && p->failure) { /* it names the one whose failure it is */
            tg_mpi_fail(g, TG_ERR_REMOTE, p->cause, p->failure, true);
        } else if (p->status != TG_OK) {
            tg_text(text, sizeof text, &at, "rank %d failed: %s", rank, p->failure ? p->failure : "");
            tg_mpi_fail(g, TG_ERR_REMOTE, rank, text, true);
        } else if (p->gone || g->member[i].left) {
            describe_member(g, i, text, sizeof text, &at);
            tg_text(text, sizeof text, &at, " has freed this communicator");
            tg_mpi_fail(g, TG_ERR_REMOTE, rank, text, true);
        }
    }
}

static void pass_deadline(tg_mpi_group *g, const tg_mpi_call *c) {
    char text[TG_MPI_FAILURE];
    size_t at = 0;
    int missing = 0;
    tg_text(text, sizeof text, &at, "deadline of %g s passed in ", g->self->ctx->deadline);
    tg_mpi_describe(&c->signature, c->t.count, tg_mpi_site(g->self, c->t.site), text, sizeof text, &at);
    for (int i = 0; i < g->size; i++) {
        if (!awaited(c, i)) continue;
        tg_text(text, sizeof text, &at, missing++ ? ", " : "; not arrived: ");
        describe_member(g, i, text, sizeof text, &at);
    }
    if (!missing) tg_text(text, sizeof text, &at, "; all have arrived, but not all of their data");
    tg_mpi_fail(g, TG_ERR_TIMEOUT, -1, text, true);
}

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Longer and longer: another rank may need this core. */
static void rest(const tg_mpi_rank *self, int round) {
    enum { YIELDS = 1000 };
    struct timespec t = {.tv_nsec = 50000};
    if (round < self->spins)
        pause_briefly();
    else if (round < self->spins + YIELDS)
        sched_yield();
    else
        nanosleep(&t, NULL);
}

tg_status tg_mpi_await(tg_mpi_group *g, const tg_mpi_request *r, const tg_mpi_call *place) {
    tg_mpi_rank *self = g->self;
    double start = 0;
    for (int round = 0;; round++) {
        if (r ? r->done : !place || !place->request) return TG_OK;
        if (g->failed) return tg_mpi_failed(g);
        if (self->broken) return self->ctx->status;
        tg_mpi_progress(self);
        const tg_mpi_call *c = r ? r->call : place;
        bool there = r ? r->done : !place->request;
        if (there || g->failed || round < self->spins) continue;
        look_at_peers(g, c);
        if (start == 0) start = tg_shm_now();
        if (tg_shm_now() - start > self->ctx->deadline) pass_deadline(g, c);
        rest(self, round);
    }
}

bool tg_mpi_until(tg_mpi_rank *self, bool (*there)(tg_mpi_rank *self)) {
    double start = tg_shm_now();
    for (int round = 0; !there(self); round++) {
        if (self->broken || tg_shm_now() - start > self->ctx->deadline) return false;
        tg_mpi_progress(self);
        rest(self, round);
    }
    return true;
}
