/* What ends a group of the transport between nodes, and how ranks tell each other. */
#include "base/os.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/shm.h"

/* ---- The group's failure ---- */

static void refuse_all(tg_p2p_group *g, tg_p2p_call *c) {
    for (int i = 0; i < g->size && c->owed; i++) {
        tg_p2p_side *s = &c->side[c->mail ? 0 : i];
        int rank = g->member[c->mail ? c->peer : i].rank;
        for (int phase = 0; phase < TG_P2P_PHASES; phase++)
            for (; s->served[phase] < s->wanted[phase]; c->owed--)
                tg_p2p_refuse(g->self, rank, s->tag[phase][s->served[phase]++ % TG_P2P_PIECES]);
    }
}

bool tg_p2p_over(const tg_p2p_call *c) {
    if (!c->g->failed) return false;
    return c->lost || (c->mail ? !c->arrived : c->sequence >= c->g->failed_at);
}

/* What is under way lands in the transport's buffers, and nobody looks at it. */
static void give_up(tg_p2p_group *g) {
    for (tg_p2p_request *r = g->self->first; r; r = r->next)
        if (r->group == g && tg_p2p_over(r->call)) refuse_all(g, r->call);
    for (int i = 0; i < g->size; i++)
        for (int k = 0; k < TG_P2P_PHASES * TG_P2P_PIECES; k++) {
            tg_p2p_piece *p = &g->member[i].in[k / TG_P2P_PIECES][k % TG_P2P_PIECES];
            if (p->call && tg_p2p_over(p->call)) p->call = NULL;
        }
}

static void tell_members(tg_p2p_group *g) {
    for (int i = 0; i < g->size; i++) {
        int rank = g->member[i].rank;
        tg_p2p_message *m = i == g->rank || g->self->peer[rank].gone ? NULL : tg_p2p_draft(g->self, TG_P2P_FAIL, g);
        if (!m) continue;
        m->status = (int32_t)g->status;
        m->cause = g->culprit;
        m->sequence = g->failed_at;
        tg_p2p_write(m, g->failure);
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
    if (reporter == g->self->me) tell_members(g);
}

/* A disagreement is one for all members, so that each passes it on before the others can hear that it has failed for
 * it: from the one who found it they may hear later. It may be one of two groups. */
static void pass_on(tg_p2p_rank *self) {
    for (tg_p2p_group *g = self->groups; g; g = g->next) {
        if (!g->failed || g->closed || g->passed_on || g->status != TG_ERR_MISMATCH) continue;
        g->passed_on = true;
        if (g->reporter != self->me) tell_members(g);
    }
}

tg_status tg_p2p_failed(tg_p2p_group *g, bool arrived) {
    const tg_group_end end = {g->name, g->status, g->culprit, g->reporter, g->failure};
    pass_on(g->self);
    return tg_comm_tell_end(g->self->ctx, g->self->me, &end, arrived, &g->told, &g->self->cause);
}

/* A failure that was itself another's is passed on in that one's words. */
void tg_p2p_fail_by(tg_p2p_group *g, int rank, const char *after, uint64_t from) {
    const tg_p2p_peer *p = &g->self->peer[rank];
    const char *words = p->failure ? p->failure : "";
    char text[TG_P2P_FAILURE];
    size_t at = 0;
    if (p->status == TG_ERR_REMOTE && p->cause >= 0) {
        tg_p2p_fail(g, TG_ERR_REMOTE, p->cause, g->self->me, words, from);
        return;
    }
    tg_text(text, sizeof text, &at, "rank %d failed%s: %s", rank, after, words);
    tg_p2p_fail(g, TG_ERR_REMOTE, rank, g->self->me, text, from);
}

/* ---- Disagreement ---- */

void tg_p2p_quote(const tg_p2p_call *c, int member, int peer, char *buf, size_t n, size_t *at) {
    const tg_p2p_group *g = c->g;
    const tg_p2p_side *side = c->mail && member == g->rank ? NULL : tg_p2p_side_of(c, member);
    tg_note note = side ? tg_p2p_note(&side->signature, side->count, peer, c->sequence)
                        : tg_p2p_note(&c->signature, c->t.count, peer, c->sequence);
    char site[TG_P2P_SITE];
    if (!side) tg_p2p_site(g->self, c->t.site, site, sizeof site);
    tg_text(buf, n, at, "rank %d called ", g->member[member].rank);
    tg_note_call(&note, buf, n, at);
    tg_text(buf, n, at, " from %s", side ? side->site : site);
}

static void mismatch(tg_p2p_call *c, int a, int b) {
    tg_p2p_group *g = c->g;
    char text[TG_P2P_FAILURE];
    size_t at = 0;
    if (c->mail)
        tg_text(text, sizeof text, &at, "the ranks disagree about a message in group \"%s\": ", g->name);
    else
        tg_text(text, sizeof text, &at, "the ranks disagree about call %llu of group \"%s\": ",
                (unsigned long long)c->sequence + 1, g->name);
    tg_p2p_quote(c, a < b ? a : b, a < b ? b : a, text, sizeof text, &at);
    tg_text(text, sizeof text, &at, ", ");
    tg_p2p_quote(c, a < b ? b : a, a < b ? a : b, text, sizeof text, &at);
    c->lost = true;
    tg_p2p_fail(g, TG_ERR_MISMATCH, -1, g->self->me, text, tg_p2p_lost_from(c));
}

/* The first who has arrived, and the first who differs from it; pairs that differ only in what they exchange know that
 * alone. */
void tg_p2p_settle_dispute(tg_p2p_call *c) {
    int first = 0;
    while (!c->mail && !c->side[first].arrived) first++;
    for (int i = first + 1; !c->mail && i < c->g->size; i++)
        if (c->side[i].arrived && !tg_p2p_same(&c->side[first].signature, &c->side[i].signature)) {
            mismatch(c, first, i);
            return;
        }
    for (int i = 0; i < c->g->size && !c->g->failed; i++)
        if (c->mail ? i == c->peer : i != c->g->rank && c->side[i].arrived && !tg_p2p_agree(c, i))
            mismatch(c, c->g->rank, i);
}

/* ---- Peers ---- */

bool tg_p2p_awaited(const tg_p2p_call *c, int member) {
    if (member == c->g->rank) return false;
    return c->mail ? member == c->peer && !c->arrived : !c->side[member].arrived;
}

static void describe_last(const tg_p2p_member *m, char *buf, size_t n, size_t *at) {
    if (!m->last.sequence) {
        tg_text(buf, n, at, "it has made no call in it yet");
        return;
    }
    tg_text(buf, n, at, "its last call was ");
    tg_note_call(&m->last, buf, n, at);
    tg_text(buf, n, at, ", call %llu of the group, from %s", (unsigned long long)m->last.sequence, m->site);
}

/* That an error is there counts only after a while: the peer may be about to clear it. But who has missed a call that
 * we have not, is out of step for good. */
static void look_at(const tg_p2p_call *c, int member) {
    const double patience = 0.1;
    tg_p2p_group *g = c->g;
    const tg_p2p_member *m = &g->member[member];
    const tg_p2p_peer *p = &g->self->peer[m->rank];
    char text[TG_P2P_FAILURE];
    size_t at = 0;
    bool gone = p->gone || m->left, failed = p->status != TG_OK;
    if (m->skips > g->self->ctx->run.missed - g->skips) {
        tg_p2p_fail_by(g, m->rank, failed ? "" : " (and has cleared its error)", tg_p2p_lost_from(c));
    } else if (failed && (gone || tg_system_now() - p->since > patience)) {
        tg_p2p_fail_by(g, m->rank, "", tg_p2p_lost_from(c));
    } else if (gone) {
        tg_text(text, sizeof text, &at, "rank %d has %s after %llu calls; ", m->rank,
                p->gone || g->world ? "returned" : "freed this communicator",
                (unsigned long long)m->last.sequence);
        describe_last(m, text, sizeof text, &at);
        tg_p2p_fail(g, TG_ERR_REMOTE, m->rank, g->self->me, text, tg_p2p_lost_from(c));
    }
}

static void pass_deadline(tg_p2p_call *c, double since) {
    tg_p2p_group *g = c->g;
    tg_note note = tg_p2p_note(&c->signature, c->t.count, c->peer, c->sequence);
    char text[TG_P2P_FAILURE], site[TG_P2P_SITE];
    size_t at = 0;
    int culprit = -1;
    tg_p2p_site(g->self, c->t.site, site, sizeof site);
    tg_text(text, sizeof text, &at, "the deadline of %g s has passed in ", g->self->ctx->run.deadline);
    tg_note_call(&note, text, sizeof text, &at);
    tg_text(text, sizeof text, &at, ", call %llu of group \"%s\", from %s", (unsigned long long)note.sequence, g->name,
            site);
    for (int i = 0; i < g->size; i++) {
        if (!tg_p2p_awaited(c, i)) continue;
        if (culprit < 0) culprit = g->member[i].rank;
        bool busy = g->self->peer[g->member[i].rank].heard > since;
        tg_text(text, sizeof text, &at, "; rank %d has not arrived: it is %s, ", g->member[i].rank,
                busy ? "busy (with other groups)" : "missing (nothing has come from it)");
        describe_last(&g->member[i], text, sizeof text, &at);
    }
    c->lost = true;
    if (culprit < 0) tg_text(text, sizeof text, &at, "; all have arrived, but not all that they owe");
    tg_p2p_fail(g, TG_ERR_TIMEOUT, culprit, g->self->me, text, tg_p2p_lost_from(c));
}

void tg_p2p_look(tg_p2p_call *c, double since) {
    const double patience = 0.1;
    const tg_p2p_group *g = c->g;
    if (c->disputed && tg_system_now() - since > patience) tg_p2p_settle_dispute(c);
    for (int i = 0; i < g->size && !tg_p2p_over(c); i++)
        if (tg_p2p_awaited(c, i)) look_at(c, i);
    if (!tg_p2p_over(c)) tg_p2p_probe(c, since);
    if (tg_system_now() - since > g->self->ctx->run.deadline) pass_deadline(c, since);
}

/* ---- This rank's context ---- */

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

static void announce_skips(tg_p2p_rank *self) {
    for (tg_p2p_group *g = self->groups; g; g = g->next)
        for (int i = 0; !g->closed && i < g->size; i++) {
            tg_p2p_message *m = i == g->rank ? NULL : tg_p2p_draft(self, TG_P2P_SKIP, g);
            if (!m) continue;
            m->sequence = self->ctx->run.missed - g->skips;
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
    p->cause = cause;
}

static bool may_speak(tg_p2p_rank *self) {
    self->announce = !pthread_equal(pthread_self(), self->thread);
    return !self->announce;
}

/* Peers that wait for this rank learn of its failure at once; or, if another thread found it, when this one is here
 * again. */
static void post_failure(tg_listener *l) {
    tg_p2p_rank *self = (tg_p2p_rank *)l;
    if (!may_speak(self)) return;
    tg_p2p_peer_failed(self, self->me, self->ctx->run.status, self->cause, self->ctx->run.message);
    announce(self, TG_P2P_FAILED);
}

/* Of calls missed the first counts, while the error is there; afterwards how many there were. */
static void post_recovery(tg_listener *l) {
    tg_p2p_rank *self = (tg_p2p_rank *)l;
    if (self->skipped) announce_skips(self);
    self->skipped = self->announce = false;
    self->peer[self->me].status = TG_OK;
    announce(self, TG_P2P_CLEARED);
}

static void post_skip(tg_listener *l) {
    tg_p2p_rank *self = (tg_p2p_rank *)l;
    if (self->skipped || !may_speak(self)) return;
    self->skipped = true;
    announce_skips(self);
}

/* A wait for ranks of the node: those of others may need this one meanwhile. */
static void while_idle(tg_listener *l) {
    tg_p2p_rank *self = (tg_p2p_rank *)l;
    if (pthread_equal(pthread_self(), self->thread)) tg_p2p_progress(self);
}

tg_listener tg_p2p_listener(void) {
    return (tg_listener){.failed = post_failure, .cleared = post_recovery, .skipped = post_skip, .idle = while_idle};
}
