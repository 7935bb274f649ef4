/* Implements tg_control_ops for the transport between nodes. What it reports of the members is what this rank knows
 * from their messages. */
#include "base/text.h"
#include "base/os.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/failure.h"
#include "comm/shm/shm.h"

/* Returns the call that this rank waits for: the call of w->request or, if the request is NULL, the older call
 * w->place, which must be done before this rank may start its next one. Returns NULL if w is NULL or sets neither. (In
 * the tg_wait of a report of failure, w->place is the call that fails.) */
static tg_p2p_call *call_of(const tg_wait *w) {
    return !w ? NULL : w->request ? ((tg_p2p_request *)w->request)->call : w->place;
}

/* ---- The end of the group ---- */

/* Always returns true. If the group has failed before, publish is then called once more, and tg_p2p_fail keeps the
 * first failure. */
static bool claim(tg_control *c) { return (void)c, true; }

static void publish(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text) {
    tg_p2p_group *g = tg_p2p_of(c);
    tg_p2p_call *call = call_of(w);
    if (call && status != TG_ERR_REMOTE) call->lost = true;
    tg_p2p_fail(g, status, culprit, c->me, text, call ? tg_p2p_lost_from(call) : w ? w->sequence : g->sequence);
}

static bool has_ended(tg_control *c, const tg_wait *w) {
    const tg_p2p_call *call = call_of(w);
    return call ? tg_p2p_cannot_finish(call) : tg_p2p_of(c)->failed;
}

static void end_of(tg_control *c, tg_group_end *end, char *buf, size_t n) {
    const tg_p2p_group *g = tg_p2p_of(c);
    size_t at = 0;
    tg_p2p_pass_on(g->self);
    tg_text(buf, n, &at, "%s", g->failure);
    *end = (tg_group_end){g->status, g->culprit, g->reporter, buf};
}

/* ---- Members ---- */

static bool awaits(tg_control *c, const tg_wait *w, int i) { return (void)c, tg_p2p_awaited(call_of(w), i); }

static void view_member(tg_control *c, const tg_wait *w, int i, tg_member_view *view) {
    const tg_p2p_group *g = tg_p2p_of(c);
    const tg_p2p_member *m = &g->member[i];
    const tg_p2p_peer *p = &g->self->peer[m->rank];
    *view = (tg_member_view){
        .rank = m->rank,
        .returned = p->gone || (m->left && g->world), /* it has freed its last communicator, or that of all ranks */
        .left = m->left,
        .missed = m->missed_calls > tg_control_missed(c),
        .alive = w && p->heard > w->since,
        .status = p->status,
        .cause = p->cause,
        .failed_for = p->status == TG_OK ? 0 : tg_system_now() - p->since,
    };
}

static void error_of(tg_control *c, int i, char *buf, size_t n) {
    const tg_p2p_group *g = tg_p2p_of(c);
    const char *text = g->self->peer[g->member[i].rank].failure;
    size_t at = 0;
    tg_text(buf, n, &at, "%s", text ? text : "");
}

static uint64_t calls_of(tg_control *c, int i) { return tg_p2p_of(c)->member[i].last.sequence; }

static void last_call(tg_control *c, int i, char *buf, size_t n, size_t *at) {
    const tg_p2p_member *m = &tg_p2p_of(c)->member[i];
    const char *name = *c->name ? c->name : "world";
    if (!m->last.sequence) {
        tg_text(buf, n, at, "it has made no collective call in this group yet");
        return;
    }
    tg_text(buf, n, at, "its last call was ");
    tg_call_entry_text(&m->last, buf, n, at);
    tg_text(buf, n, at, ", call %llu of %s, from %s", (unsigned long long)m->last.sequence, name, m->site);
}

static bool describe_call(tg_control *c, const tg_wait *w, tg_call_entry *entry, char *site, size_t n) {
    const tg_p2p_call *call = call_of(w);
    *entry = tg_signature_entry(&call->signature, call->t.count, call->peer, tg_p2p_number(call));
    tg_p2p_site(tg_p2p_of(c)->self, call->t.site, site, n < TG_P2P_SITE ? n : TG_P2P_SITE);
    return true;
}

/* ---- Waiting ---- */

static void begin_checks(tg_control *c, const tg_wait *w) {
    tg_p2p_rank *self = tg_p2p_of(c)->self;
    self->first_probe = self->probes + 1;
    self->waits_for = call_of(w);
}

static void end_wait(tg_control *c, const tg_wait *w) {
    (void)w;
    tg_p2p_of(c)->self->waits_for = NULL;
}

static void begin_poll(tg_control *c, const tg_wait *w) {
    tg_p2p_rank *self = tg_p2p_of(c)->self;
    if (!w)
        self->waits_for = NULL;
    else if (self->waits_for != call_of(w))
        begin_checks(c, w);
}

static void pause_wait(tg_control *c, const tg_wait *w, int round) {
    (void)w;
    tg_p2p_pause(tg_p2p_of(c)->self, round);
}

static const char *broken(tg_control *c) {
    const tg_p2p_rank *self = tg_p2p_of(c)->self;
    return self->broken ? self->layer->name : NULL;
}

/* Reports a disagreement once this rank has waited for 0.1 s. If all members arrive earlier, pieces.c reports it, and
 * then all ranks report the same two calls. */
static void report_disagreement(tg_control *c, const tg_wait *w) {
    const double patience = 0.1;
    tg_p2p_call *call = call_of(w);
    (void)c;
    if (call->disputed && tg_system_now() - w->since > patience) tg_p2p_report_dispute(call);
}

/* Returns whether the call needs member i, which is lost. If the member has arrived, and others have not, the call may
 * still need nothing of it. When all have arrived and the call is not done, data is missing, and this function takes it
 * to be that member's. */
static bool needs(const tg_p2p_call *call, int i) {
    if (call->pair && i != call->peer) return false;
    return tg_p2p_awaited(call, i) || call->ready || call->lost;
}

/* Ends the group, from the call of w on, if the call needs a member that is lost; if w is NULL, if any member is lost.
 * Marks the call as lost, because a send or a receive whose peer has arrived would otherwise go on after the end of the
 * group (tg_p2p_cannot_finish). */
static void check_lost(tg_control *c, const tg_wait *w) {
    const tg_p2p_group *g = tg_p2p_of(c);
    tg_p2p_call *call = call_of(w);
    for (int i = 0; i < c->size && !has_ended(c, w); i++) {
        const tg_p2p_member *m = &g->member[i];
        const char *why = i == c->rank || m->left ? NULL : tg_p2p_lost(g->self, m->rank);
        if (!why || (call && !needs(call, i))) continue;
        if (call) call->lost = true;
        tg_control_died(c, w, i, (long long)g->self->peer[m->rank].pid, why);
    }
}

static void check(tg_control *c, const tg_wait *w) {
    check_lost(c, w);
    if (w && !has_ended(c, w)) tg_p2p_probe(call_of(w), w->since);
}

/* ---- Recovery ---- */

/* Sends a message to all other members. list: one flag for each member, which the message carries as payload; NULL: the
 * message has no payload. */
static void send_to_members(tg_p2p_group *g, tg_p2p_kind kind, const bool *list) {
    for (int i = 0; i < g->control.size; i++) {
        int rank = g->member[i].rank;
        bool silent = i == g->control.rank || g->self->peer[rank].gone;
        tg_p2p_message *m = silent ? NULL : tg_p2p_draft(g->self, kind, g);
        if (!m) continue;
        if (list) memcpy(m->body, list, (size_t)g->control.size);
        m->payload = list ? (uint32_t)g->control.size : 0;
        tg_p2p_post(g->self, m, rank);
    }
}

static void join_recovery(tg_control *c) {
    tg_p2p_group *g = tg_p2p_of(c);
    g->member[c->rank].recovering = true;
    send_to_members(g, TG_P2P_RECOVER, NULL);
}

static bool is_expected(tg_control *c, int i) {
    const tg_p2p_group *g = tg_p2p_of(c);
    const tg_p2p_member *m = &g->member[i];
    return !m->recovering && !m->left && !tg_p2p_is_gone(g->self, m->rank);
}

static bool has_joined(tg_control *c, int i) {
    const tg_p2p_member *m = &tg_p2p_of(c)->member[i];
    return m->recovering && !m->left;
}

static const char *lost(tg_control *c, int i) {
    const tg_p2p_group *g = tg_p2p_of(c);
    return tg_p2p_lost(g->self, g->member[i].rank);
}

static bool *own_list(tg_control *c) { return tg_p2p_of(c)->list; }

static void propose(tg_control *c) {
    tg_p2p_group *g = tg_p2p_of(c);
    g->decided = true;
    send_to_members(g, TG_P2P_DECIDE, g->list);
}

static const bool *decided_list(tg_control *c) { return tg_p2p_of(c)->decided ? tg_p2p_of(c)->list : NULL; }

void tg_p2p_recovery(tg_p2p_group *g, const tg_p2p_message *m) {
    g->member[m->member].recovering = true;
    if (m->kind != TG_P2P_DECIDE || g->decided) return;
    memcpy(g->list, m->body, (size_t)g->control.size);
    g->decided = true;
}

const tg_control_ops tg_p2p_control = {
    .busy = "busy (with other groups)",
    .missing = "missing (nothing has come from it)",
    .unfinished = "; all ranks have arrived, but have not sent all of their data",
    .first_decides = true, /* in recovery, only the lowest member that has joined proposes a list */
    .awaits = awaits,
    .member = view_member,
    .error_of = error_of,
    .calls = calls_of,
    .last_call = last_call,
    .call = describe_call,
    .ended = has_ended,
    .claim = claim,
    .publish = publish,
    .end = end_of,
    .begin_checks = begin_checks,
    .end_wait = end_wait,
    .pause = pause_wait,
    .begin_poll = begin_poll,
    .broken = broken,
    .report_disagreement = report_disagreement,
    .check = check,
    .join_recovery = join_recovery,
    .is_expected = is_expected,
    .has_joined = has_joined,
    .lost = lost,
    .own_list = own_list,
    .propose = propose,
    .decided_list = decided_list,
};
