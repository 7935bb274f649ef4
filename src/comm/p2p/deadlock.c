/* Deadlock detection: ranks wait for each other in different calls, so that none will ever make the call that another
 * waits for. A comparison of call signatures (signature.h) cannot detect this, because it compares only ranks that have
 * arrived at the same call.
 *
 * The method is that of Chandy, Misra and Haas (1983). A rank that has waited for 0.1 s sends a probe to the ranks that
 * it waits for. Suppose that rank A sends a probe to rank B. If B waits too, and has not made the call in which A
 * waits, B passes the probe on to the ranks that B waits for. If the probe returns to the rank that sent it first,
 * there is a cycle. No rank of the cycle can have gone on in the meantime, because each waits for a call that the next
 * one has not made. */
#include "base/text.h"
#include "base/os.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/failure.h"
#include "comm/shm/shm.h"

/* Sends a probe to the members that have not arrived at the call. of: the rank that sent the probe first. probe: the
 * number of the probe among those of that rank. */
static void send_probes(const tg_p2p_call *c, int of, uint64_t probe) {
    tg_p2p_group *g = c->g;
    char text[512];
    size_t at = 0;
    tg_quoted own;
    tg_p2p_quote(c, g->control.rank, c->peer, &own);
    tg_quote(&own, text, sizeof text, &at);
    for (int i = 0; i < g->control.size; i++) {
        tg_p2p_message *m = tg_p2p_awaited(c, i) ? tg_p2p_draft(g->self, TG_P2P_PROBE, g) : NULL;
        if (!m) continue;
        m->pair = c->pair;
        m->phase = c->t.kind == TG_RECV;
        m->sequence = c->sequence;
        m->cause = of;
        m->count = (int64_t)probe;
        tg_p2p_write(m, text);
        tg_p2p_post(g->self, m, g->member[i].rank);
    }
}

/* Sends probes seldom, at doubling intervals, because a rank that comes late receives all of them at once. */
void tg_p2p_probe(const tg_p2p_call *c, double since) {
    const double first = 0.1;
    tg_p2p_rank *self = c->g->self;
    double waited = tg_system_now() - since;
    if (waited < first || (self->probed > since && waited < 2 * (self->probed - since))) return;
    self->probed = tg_system_now();
    send_probes(c, self->me, ++self->probes);
}

/* Returns whether this rank has made its own part of the call in which the sender of the probe waits. For a receive of
 * the sender (m->phase is 1), this rank's part is a send; for a send it is a receive. */
static bool has_answered(const tg_p2p_group *g, const tg_p2p_message *m) {
    const tg_p2p_member *from = &g->member[m->member];
    if (!m->pair) return g->sequence > m->sequence;
    return (m->phase ? from->send.next : from->recv.next) > m->sequence;
}

/* Ends the group of this rank's call, and the group in which the sender of the probe waits. The other ranks of the
 * cycle learn of it when their calls fail. */
static void fail_both(tg_p2p_call *c, tg_p2p_group *other, const tg_p2p_message *m) {
    tg_p2p_group *g = c->g;
    /* .place names the failed call of g, .sequence the first collective that is lost in the other group (publish). */
    tg_wait w = {.place = c}, w_other = {.sequence = m->pair ? other->sequence : m->sequence};
    char text[TG_P2P_FAILURE / 2];
    size_t at = 0;
    tg_quoted quoted;
    tg_p2p_quote(c, g->control.rank, c->peer, &quoted);
    tg_quote(&quoted, text, sizeof text, &at);
    if (other != g) {
        tg_p2p_end_with(g, (tg_p2p_end){other->key, w_other.sequence});
        tg_p2p_end_with(other, (tg_p2p_end){g->key, tg_p2p_lost_from(c)});
    }
    tg_blocked own = {g->self->me, g->name, text}, peer = {m->rank, other->name, m->body};
    tg_control_deadlock(&g->control, &w, &own, &other->control, &w_other, &peer);
}

/* Returns whether this rank has missed more calls after errors than the sender of the probe. Then no deadlock is
 * reported, because the sender will report that this rank has missed a call. (This rank knows how many calls the sender
 * has missed, because the sender announced the number before it sent the probe.) */
static bool has_missed_more(const tg_p2p_group *g, int member) {
    return tg_control_missed(&g->control) > g->member[member].missed_calls;
}

void tg_p2p_probed(tg_p2p_group *g, const tg_p2p_message *m) {
    tg_p2p_rank *self = g->self;
    tg_p2p_call *c = self->waits_for;
    uint64_t probe = (uint64_t)m->count;
    if (!c || g->failed || tg_p2p_cannot_finish(c) || has_answered(g, m) || has_missed_more(g, m->member)) return;
    if (m->cause != self->me) {
        if (self->peer[m->cause].probe >= probe) return; /* this probe was passed on before */
        self->peer[m->cause].probe = probe;
        send_probes(c, m->cause, probe);
    } else if (probe >= self->first_probe) {
        fail_both(c, g, m);
    }
}
