/* The reasons why a group ends: members that disagree, a member that failed, left, died or missed a call, and the
 * deadline. The text of these errors is made here for all transports. */
#include "base/text.h"
#include "base/os.h"
#include "comm/protocol.h"

/* ---- The end of a group ---- */

void tg_control_fail(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text) {
    if (c->ops->claim(c)) c->ops->publish(c, w, status, culprit, text);
}

/* Returns the status with which this rank reports the end of its group. That is the status of the end, except that
 * - a rank that has reported the end before (notified) reports TG_ERR_ABORTED;
 * - every rank reports TG_ERR_ABORTED if the rank that ended the group died before it stored the status;
 * - after a deadline, the culprit and the ranks that have not arrived at their call report TG_ERR_REMOTE (the culprit
 *   may have arrived after the other ranks had stopped waiting for it);
 * - after any other end, the culprit reports TG_ERR_ABORTED. */
static tg_status end_seen_by(int me, const tg_group_end *end, bool arrived, bool notified) {
    bool mine = end->culprit == me;
    if (notified || end->status == TG_OK) return TG_ERR_ABORTED;
    if (end->status == TG_ERR_TIMEOUT) return arrived && !mine ? TG_ERR_TIMEOUT : TG_ERR_REMOTE;
    return mine ? TG_ERR_ABORTED : end->status;
}

tg_status tg_control_failed(tg_control *c, bool arrived) {
    char text[TG_FAILURE_TEXT] = "";
    tg_group_end end = {.text = text};
    c->ops->end(c, &end, text, sizeof text);
    tg_status status = end_seen_by(c->me, &end, arrived, c->notified);
    c->notified = true;
    *c->cause = end.culprit == c->me ? -1 : end.culprit;
    if (status == TG_ERR_ABORTED)
        tg_fail(c->ctx, status, "group \"%s\" was aborted (%s); call tg_comm_recover to go on", c->name, end.text);
    else if (status == TG_ERR_REMOTE && end.status == TG_ERR_TIMEOUT)
        tg_fail(c->ctx, status, "rank %d has stopped waiting for this rank: %s", end.reporter, end.text);
    else
        tg_fail(c->ctx, status, "%s", end.text);
    *c->cause = -1;
    return status;
}

/* ---- Disagreement ---- */

void tg_quote(const tg_quoted *q, char *buf, size_t n, size_t *at) {
    tg_text(buf, n, at, "rank %d called ", q->rank);
    tg_call_entry_text(&q->entry, buf, n, at);
    tg_text(buf, n, at, " from %s", q->site);
}

void tg_control_mismatch(tg_control *c, const tg_wait *w, const tg_quoted *a, const tg_quoted *b) {
    char text[TG_FAILURE_TEXT];
    size_t at = 0;
    if (a->entry.sequence)
        tg_text(text, sizeof text, &at,
                "the ranks disagree about call %llu of group \"%s\": ", (unsigned long long)a->entry.sequence, c->name);
    else
        tg_text(text, sizeof text, &at, "the ranks disagree about a message in group \"%s\": ", c->name);
    tg_quote(a->member < b->member ? a : b, text, sizeof text, &at);
    tg_text(text, sizeof text, &at, ", ");
    tg_quote(a->member < b->member ? b : a, text, sizeof text, &at);
    tg_control_fail(c, w, TG_ERR_MISMATCH, -1, text);
}

/* ---- Members ---- */

/* If another rank caused member i's failure, member i's message already names that rank, and is used as it is. */
void tg_control_fail_by(tg_control *c, const tg_wait *w, int i, const char *after) {
    char message[TG_FAILURE_TEXT - 64] = "", text[TG_FAILURE_TEXT];
    tg_member_view view = {.cause = -1};
    size_t at = 0;
    c->ops->error_of(c, i, message, sizeof message);
    c->ops->member(c, w, i, &view);
    if (view.cause >= 0) {
        tg_control_fail(c, w, TG_ERR_REMOTE, view.cause, message);
        return;
    }
    tg_text(text, sizeof text, &at, "rank %d failed%s: %s", view.rank, after, message);
    tg_control_fail(c, w, TG_ERR_REMOTE, view.rank, text);
}

static void fail_by_leaving(tg_control *c, const tg_wait *w, int i, const tg_member_view *view) {
    char text[TG_FAILURE_TEXT];
    size_t at = 0;
    tg_text(text, sizeof text, &at, "rank %d has %s after %s in group \"%s\"; ", view->rank,
            view->returned ? "returned" : "freed this communicator",
            tg_count((int64_t)c->ops->calls(c, i), "collective call").text, c->name);
    c->ops->last_call(c, i, text, sizeof text, &at);
    tg_control_fail(c, w, TG_ERR_REMOTE, view->rank, text);
}

void tg_control_died(tg_control *c, const tg_wait *w, int i, long long pid, const char *unreachable) {
    char text[TG_FAILURE_TEXT];
    tg_member_view view = {.cause = -1};
    size_t at = 0;
    c->ops->member(c, w, i, &view);
    if (view.status != TG_OK) {
        tg_control_fail_by(c, w, i, "");
        return;
    }
    tg_text(text, sizeof text, &at, "the process of rank %d (pid %lld) ", view.rank, pid);
    if (*unreachable)
        tg_text(text, sizeof text, &at, "cannot be reached any more (%s); ", unreachable);
    else
        tg_text(text, sizeof text, &at, "has ended unexpectedly; ");
    c->ops->last_call(c, i, text, sizeof text, &at);
    tg_control_fail(c, w, TG_ERR_REMOTE, view.rank, text);
}

void tg_control_abandon(tg_control *c, const char *why) {
    if (c->ctx->run.status != TG_OK)
        tg_control_fail_by(c, NULL, c->rank, "");
    else if (tg_control_missed(c))
        tg_control_fail_by(c, NULL, c->rank, " (and has cleared its error)");
    else
        tg_control_fail(c, NULL, TG_ERR_ABORTED, -1, why);
}

/* Ends the group if member i can no longer arrive. A member that has missed a call which this rank has not missed can
 * never catch up. This is checked first: if the member has also left, the missed call is the reason. An error of a
 * member that has not left counts only after 0.1 s, because the member may be about to clear it.
 *
 * The member may arrive, and then leave, while it is being checked. So its state is read first, and only then
 * whether it is still absent. */
static void check_member(tg_control *c, const tg_wait *w, int i) {
    const double patience = 0.1;
    tg_member_view view = {.cause = -1};
    c->ops->member(c, w, i, &view);
    if (!c->ops->awaits(c, w, i)) return;
    bool gone = view.returned || view.left, failed = view.status != TG_OK;
    if (view.missed)
        tg_control_fail_by(c, w, i, failed ? "" : " (and has cleared its error)");
    else if (failed && (gone || view.failed_for > patience))
        tg_control_fail_by(c, w, i, "");
    else if (gone)
        fail_by_leaving(c, w, i, &view);
    else if (c->ops->deadlock)
        c->ops->deadlock(c, w, i);
}

/* ---- The deadline ---- */

/* Writes that the deadline has passed, and in which call of this rank. */
static void describe_awaited(tg_control *c, const tg_wait *w, char *buf, size_t n, size_t *at) {
    tg_call_entry entry = {0};
    char site[TG_SITE_BYTES] = "";
    tg_text(buf, n, at, "the deadline of %g s has passed in ", c->ctx->run.deadline);
    if (!c->ops->call(c, w, &entry, site, sizeof site)) {
        tg_text(buf, n, at, "a call that waits until one of the %d calls before it in group \"%s\" is done",
                c->ops->max_calls, c->name);
        return;
    }
    tg_call_entry_text(&entry, buf, n, at);
    tg_text(buf, n, at, ", call %llu of group \"%s\", from %s", (unsigned long long)entry.sequence, c->name, site);
}

/* Ends the group because of the deadline. Names all members that have not arrived; the first of them is the culprit. */
static void pass_deadline(tg_control *c, const tg_wait *w) {
    char text[TG_FAILURE_TEXT];
    size_t at = 0;
    int culprit = -1;
    describe_awaited(c, w, text, sizeof text, &at);
    for (int i = 0; i < c->size; i++) {
        tg_member_view view = {.cause = -1};
        if (i == c->rank || !c->ops->awaits(c, w, i)) continue;
        c->ops->member(c, w, i, &view);
        if (culprit < 0) culprit = view.rank;
        tg_text(text, sizeof text, &at, "; rank %d has not arrived: it is %s, ", view.rank,
                view.alive ? c->ops->busy : c->ops->missing);
        c->ops->last_call(c, i, text, sizeof text, &at);
    }
    if (culprit < 0 && c->ops->unfinished) tg_text(text, sizeof text, &at, "%s", c->ops->unfinished);
    tg_control_fail(c, w, TG_ERR_TIMEOUT, culprit, text);
}

void tg_control_check_peers(tg_control *c, const tg_wait *w) {
    if (c->ops->report_disagreement) c->ops->report_disagreement(c, w);
    for (int i = 0; i < c->size && !c->ops->ended(c, w); i++)
        if (i != c->rank && c->ops->awaits(c, w, i)) check_member(c, w, i);
    if (c->ops->check && !c->ops->ended(c, w)) c->ops->check(c, w);
    if (tg_system_now() - w->since > c->ctx->run.deadline) pass_deadline(c, w);
}
