/* Ranks that wait for each other in different calls, so that none will ever make the other's: no comparison of
 * signatures can see that. A rank that has waited for a while asks those for whom it waits whether they wait, too; who
 * does, and has not made the call, passes the question on to those for whom it waits (Chandy, Misra and Haas, 1983).
 * Where it comes home, nothing can have moved in the meantime: each waits until the next one has made the call that it
 * has not. */
#include "base/text.h"
#include "base/os.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/shm.h"

/* Asks on behalf of `of`, whose question it is. */
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

/* Seldom, as those who are late will find all the questions. */
void tg_p2p_probe(const tg_p2p_call *c, double since) {
    const double first = 0.1;
    tg_p2p_rank *self = c->g->self;
    double waited = tg_system_now() - since;
    if (waited < first || (self->probed > since && waited < 2 * (self->probed - since))) return;
    self->probed = tg_system_now();
    send_probes(c, self->me, ++self->probes);
}

/* Whether this rank has made its own part of the call in which the sender waits. */
static bool has_answered(const tg_p2p_group *g, const tg_p2p_message *m) {
    const tg_p2p_member *from = &g->member[m->member];
    if (!m->pair) return g->sequence > m->sequence;
    return (m->phase ? from->send.next : from->recv.next) > m->sequence;
}

/* The lower rank's call is quoted first. The other rank knows of both groups when its call fails. */
static void fail_both(tg_p2p_call *c, tg_p2p_group *other, const tg_p2p_message *m) {
    tg_p2p_group *g = c->g;
    bool first = g->self->me < m->rank;
    const char *const names[] = {first ? g->name : other->name, first ? other->name : g->name};
    tg_wait w = {.place = c}, w_other = {.sequence = m->pair ? other->sequence : m->sequence};
    char text[TG_P2P_FAILURE / 2];
    size_t at = 0;
    tg_quoted own;
    tg_p2p_quote(c, g->control.rank, c->peer, &own);
    tg_quote(&own, text, sizeof text, &at);
    tg_control_deadlock(&g->control, &w, &other->control, &w_other, names, first ? text : m->body,
                        first ? m->body : text);
}

/* After an error: the sender will find that out, and go on. What it has missed itself it said before it asked. */
static bool has_missed_more(const tg_p2p_group *g, int member) {
    return tg_control_missed(&g->control) > g->member[member].missed_calls;
}

void tg_p2p_probed(tg_p2p_group *g, const tg_p2p_message *m) {
    tg_p2p_rank *self = g->self;
    tg_p2p_call *c = self->waits_for;
    uint64_t probe = (uint64_t)m->count;
    if (!c || g->failed || tg_p2p_over(c) || has_answered(g, m) || has_missed_more(g, m->member)) return;
    if (m->cause != self->me) {
        if (self->peer[m->cause].probe >= probe) return; /* passed on before */
        self->peer[m->cause].probe = probe;
        send_probes(c, m->cause, probe);
    } else if (probe >= self->first_probe) {
        fail_both(c, g, m);
    }
}
