/* Failures over the transport between nodes: how a group ends on this rank, how the members are notified, and what
 * this rank announces to all ranks about its own context. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "base/os.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/failure.h"
#include "comm/shm/shm.h"

/* ---- The group's failure ---- */

void tg_p2p_refuse_all(tg_p2p_call *c) {
    const tg_p2p_group *g = c->g;
    for (int i = 0; i < g->control.size && c->owed; i++) {
        tg_p2p_side *s = &c->side[c->pair ? 0 : i];
        int rank = g->member[c->pair ? c->peer : i].rank;
        for (int phase = 0; phase < TG_P2P_PHASES; phase++)
            for (; s->served[phase] < s->wanted[phase]; c->owed--)
                tg_p2p_refuse(g->self, rank, s->tag[phase][s->served[phase]++ % TG_P2P_PIECES]);
    }
}

bool tg_p2p_cannot_finish(const tg_p2p_call *c) {
    if (!c->g->failed) return false;
    return c->lost || (c->pair ? !c->arrived : c->sequence >= c->g->failed_at);
}

/* Gives up the calls that can no longer be finished. Pieces that still arrive for them go into the transport's
 * buffers and are ignored. */
static void give_up(tg_p2p_group *g) {
    for (tg_p2p_request *r = g->self->first; r; r = r->next)
        if (r->group == g && tg_p2p_cannot_finish(r->call)) tg_p2p_refuse_all(r->call);
    for (int i = 0; i < g->control.size; i++)
        for (int k = 0; k < TG_P2P_PHASES * TG_P2P_PIECES; k++) {
            tg_p2p_piece *p = &g->member[i].in[k / TG_P2P_PIECES][k % TG_P2P_PIECES];
            if (p->call && tg_p2p_cannot_finish(p->call)) p->call = NULL;
        }
}

/* Sends the reason for the group's failure to the members. */
static void notify_members(tg_p2p_group *g) {
    for (int i = 0; i < g->control.size; i++) {
        int rank = g->member[i].rank;
        bool silent = i == g->control.rank || g->self->peer[rank].gone;
        tg_p2p_message *m = silent ? NULL : tg_p2p_draft(g->self, TG_P2P_FAIL, g);
        if (!m) continue;
        m->status = (int32_t)g->status;
        m->cause = g->culprit;
        m->sequence = g->failed_at;
        tg_p2p_write(m, g->failure);
        if (g->deadlocked) {
            m->payload = sizeof g->other_end;
            memcpy(m->body + m->text, &g->other_end, sizeof g->other_end);
        }
        tg_p2p_post(g->self, m, rank);
    }
}

void tg_p2p_fail(tg_p2p_group *g, tg_status status, int culprit, int reporter, const char *text, uint64_t from) {
    size_t at = 0;
    if (g->failed && from >= g->failed_at) return;
    if (!g->failed) {
        g->status = status;
        g->culprit = culprit;
        g->reporter = reporter;
        tg_text(g->failure, sizeof g->failure, &at, "%s", text);
    }
    g->failed = true;
    g->failed_at = from;
    give_up(g);
    if (reporter == g->self->me) notify_members(g);
}

void tg_p2p_end_with(tg_p2p_group *g, tg_p2p_end other) {
    if (g->failed) return;
    g->deadlocked = true;
    g->other_end = other;
}

static void fail_by_message(tg_p2p_group *g, const tg_p2p_message *m, uint64_t from) {
    tg_p2p_fail(g, (tg_status)m->status, m->cause, m->rank, m->body, from);
}

void tg_p2p_failed(tg_p2p_group *g, const tg_p2p_message *m) {
    tg_p2p_end other;
    tg_p2p_group *second = NULL;
    if (m->payload == sizeof other) {
        memcpy(&other, m->body + m->text, sizeof other);
        tg_p2p_end_with(g, other);
        second = tg_p2p_with_key(g->self, &other.group);
    }
    if (second && !second->closed) {
        tg_p2p_end_with(second, (tg_p2p_end){g->key, m->sequence});
        fail_by_message(second, m, other.from);
    }
    fail_by_message(g, m, m->sequence);
}

void tg_p2p_pass_on(tg_p2p_rank *self) {
    for (tg_p2p_group *g = self->groups; g; g = g->next) {
        if (!g->failed || g->closed || g->passed_on || g->status != TG_ERR_MISMATCH) continue;
        g->passed_on = true;
        if (g->reporter != self->me) notify_members(g);
    }
}

/* ---- Disagreement ---- */

void tg_p2p_quote(const tg_p2p_call *c, int member, int peer, tg_quoted *q) {
    const tg_p2p_group *g = c->g;
    const tg_p2p_side *side = c->pair && member == g->control.rank ? NULL : tg_p2p_side_of(c, member);
    size_t at = 0;
    *q = (tg_quoted){.member = member, .rank = g->member[member].rank};
    q->entry = side ? tg_signature_entry(&side->signature, side->count, peer, c->sequence)
                    : tg_signature_entry(&c->signature, c->t.count, peer, c->sequence);
    if (c->pair) q->entry.sequence = 0;
    if (side)
        tg_text(q->site, sizeof q->site, &at, "%s", side->site);
    else
        tg_p2p_site(g->self, c->t.site, q->site, TG_P2P_SITE);
}

static void mismatch(tg_p2p_call *c, int a, int b) {
    tg_wait w = {.place = c}; /* names the call that fails (publish in control.c) */
    tg_quoted one, two;
    tg_p2p_quote(c, a, b, &one);
    tg_p2p_quote(c, b, a, &two);
    tg_control_mismatch(&c->g->control, &w, &one, &two);
}

/* Reports the calls of two members: of the first that has arrived, and of the first whose signature differs from that
 * member's. If no signature differs, reports this rank and the first member with which it disagrees about what the two
 * send to each other; no other rank knows about that. */
void tg_p2p_report_dispute(tg_p2p_call *c) {
    int first = 0;
    while (!c->pair && !c->side[first].arrived) first++;
    for (int i = first + 1; !c->pair && i < c->g->control.size; i++)
        if (c->side[i].arrived && !tg_signature_equal(&c->side[first].signature, &c->side[i].signature)) {
            mismatch(c, first, i);
            return;
        }
    for (int i = 0; i < c->g->control.size && !tg_p2p_cannot_finish(c); i++)
        if (c->pair ? i == c->peer : i != c->g->control.rank && c->side[i].arrived && !tg_p2p_agree(c, i))
            mismatch(c, c->g->control.rank, i);
}

/* ---- Peers ---- */

const char *tg_p2p_lost(const tg_p2p_rank *self, int rank) {
    return self->layer->lost && !self->peer[rank].gone ? self->layer->lost(self->state, rank) : NULL;
}

bool tg_p2p_is_gone(const tg_p2p_rank *self, int rank) {
    return self->peer[rank].gone || tg_p2p_lost(self, rank);
}

bool tg_p2p_awaited(const tg_p2p_call *c, int member) {
    if (member == c->g->control.rank) return false;
    return c->pair ? member == c->peer && !c->arrived : !c->side[member].arrived;
}

/* ---- This rank's context ---- */

/* Notifies all ranks of the context's error (TG_P2P_FAILED), or that the error was cleared (TG_P2P_CLEARED). */
static void announce(tg_p2p_rank *self, tg_p2p_kind kind) {
    const tg_ctx *ctx = self->ctx;
    for (int i = 0; i < self->size; i++) {
        tg_p2p_message *m = i == self->me || self->peer[i].gone ? NULL : tg_p2p_draft(self, kind, NULL);
        if (!m) continue;
        m->status = (int32_t)ctx->run.status;
        m->cause = self->cause;
        tg_p2p_write(m, ctx->run.message);
        tg_p2p_post(self, m, i);
    }
}

/* Sends to the members of each open group how many calls this rank has missed since the group was formed. */
static void announce_missed(tg_p2p_rank *self) {
    for (tg_p2p_group *g = self->groups; g; g = g->next)
        for (int i = 0; !g->closed && i < g->control.size; i++) {
            tg_p2p_message *m = i == g->control.rank ? NULL : tg_p2p_draft(self, TG_P2P_MISSED, g);
            if (!m) continue;
            m->sequence = tg_control_missed(&g->control);
            tg_p2p_post(self, m, g->member[i].rank);
        }
}

void tg_p2p_peer_failed(tg_p2p_rank *self, int rank, tg_status status, int cause, const char *text) {
    tg_p2p_peer *p = &self->peer[rank];
    size_t at = 0;
    if (!p->failure) p->failure = tg_host_alloc(self->ctx, TG_P2P_FAILURE);
    if (p->failure) tg_text(p->failure, TG_P2P_FAILURE, &at, "%s", text);
    p->since = tg_system_now();
    p->status = status;
    p->cause = status == TG_ERR_REMOTE ? cause : -1;
}

/* Returns whether this thread may call the layer. If not, notes that the next poll must announce the error. */
static bool may_send(tg_p2p_rank *self) {
    if (pthread_equal(pthread_self(), self->thread)) return true;
    self->announce = true;
    return false;
}

/* Announces the error at once, so that peers that wait for this rank fail. If another thread has recorded it, the
 * next poll announces it. */
static void post_failure(tg_listener *l) {
    tg_p2p_rank *self = (tg_p2p_rank *)l;
    if (!may_send(self)) return;
    self->announce = false;
    tg_p2p_peer_failed(self, self->me, self->ctx->run.status, self->cause, self->ctx->run.message);
    announce(self, TG_P2P_FAILED);
}

/* Announces how many calls this rank has missed, and then that the error was cleared. While the context held the error,
 * only the first missed call was announced. */
static void post_recovery(tg_listener *l) {
    tg_p2p_rank *self = (tg_p2p_rank *)l;
    if (self->missed) announce_missed(self);
    self->missed = self->announce = false;
    self->peer[self->me].status = TG_OK;
    announce(self, TG_P2P_CLEARED);
}

static void post_missed(tg_listener *l) {
    tg_p2p_rank *self = (tg_p2p_rank *)l;
    if (self->missed || !may_send(self)) return;
    self->missed = true;
    announce_missed(self);
}

/* Makes progress while this rank waits in a call of any communicator, such as one of its node, because ranks of other
 * nodes may need its data. */
static void while_idle(tg_listener *l) {
    tg_p2p_rank *self = (tg_p2p_rank *)l;
    if (pthread_equal(pthread_self(), self->thread)) tg_p2p_progress(self);
}

tg_listener tg_p2p_listener(void) {
    return (tg_listener){.failed = post_failure, .cleared = post_recovery, .skipped = post_missed, .idle = while_idle};
}
