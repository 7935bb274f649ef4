/* What ends a group: ranks that disagree, a peer that will not come any more, a deadline. Whoever finds it writes it
 * down once, and everybody reads the same. */
#define _GNU_SOURCE
#include <sched.h>

#include "base/os.h"
#include "comm/shm/shm.h"

enum { TEXT = TG_BOX_WORDS * 8 };

/* ---- The group's failure ---- */

/* Whether this rank is the one to write it down. Until it has, others who see the group wait. */
static bool claim(tg_shm_group *s) {
    int whole = TG_GROUP_WHOLE;
    return atomic_compare_exchange_strong_explicit(&s->g->failed, &whole, TG_GROUP_FAILING, memory_order_seq_cst,
                                                   memory_order_seq_cst);
}

static void write_down(tg_shm_group *s, tg_status status, int culprit, const char *text) {
    s->g->status = status;
    s->g->culprit = culprit;
    s->g->reporter = s->self->view.me;
    tg_box_write(&s->g->failure, text);
    atomic_store_explicit(&s->g->failed, TG_GROUP_FAILED, memory_order_seq_cst);
    tg_shm_ring(s);
}

void tg_shm_fail(tg_shm_group *s, tg_status status, int culprit, const char *text) {
    if (claim(s)) write_down(s, status, culprit, text);
}

tg_status tg_shm_failed(tg_shm_group *s, bool arrived) {
    char text[TEXT] = "";
    for (int i = 0; i < 1000000 && atomic_load_explicit(&s->g->failed, memory_order_acquire) == TG_GROUP_FAILING; i++)
        sched_yield();
    if (atomic_load_explicit(&s->g->failed, memory_order_acquire) == TG_GROUP_FAILED)
        tg_box_read(&s->g->failure, text, sizeof text);
    const tg_group_end end = {s->g->name, s->g->status, s->g->culprit, s->g->reporter, text};
    return tg_comm_tell_end(s->self->ctx, s->self->view.me, &end, arrived, &s->told, &s->self->cause);
}

void tg_shm_quiesce(tg_shm_group *s) {
    const double patience = 0.25;
    double until = tg_system_now() + (s->self->process ? patience : s->self->ctx->run.deadline);
    for (int i = 0; i < s->size; i++)
        while (i != s->rank && atomic_load_explicit(&tg_shm_card(s, i)->busy, memory_order_seq_cst) == s->g->id &&
               tg_system_now() < until && tg_process_alive(&s->self->view, tg_group_member(s->g, i)->rank))
            sched_yield();
}

/* ---- Disagreement ---- */

tg_note tg_shm_post_note(const tg_post *p, uint64_t sequence) {
    const tg_signature *g = &p->signature;
    return (tg_note){.kind = g->kind,
                     .dtype = g->dtype,
                     .op = g->op,
                     .root = g->root,
                     .count = p->count,
                     .site = p->site,
                     .sequence = sequence + 1};
}

static void quote(const tg_shm_group *s, int member, const tg_note *note, char *buf, size_t n, size_t *at) {
    int rank = tg_group_member(s->g, member)->rank;
    char site[192];
    tg_board_site(s->self->board, rank, note->site, site, sizeof site);
    tg_text(buf, n, at, "rank %d called ", rank);
    tg_note_call(note, buf, n, at);
    tg_text(buf, n, at, " from %s", site);
}

void tg_shm_mismatch(tg_shm_group *s, int a, int b, const tg_note *of_a, const tg_note *of_b) {
    char text[TEXT];
    size_t at = 0;
    if (of_a->sequence)
        tg_text(text, sizeof text, &at, "the ranks disagree about call %llu of group \"%s\": ",
                (unsigned long long)of_a->sequence, s->g->name);
    else
        tg_text(text, sizeof text, &at, "the ranks disagree about a message in group \"%s\": ", s->g->name);
    quote(s, a < b ? a : b, a < b ? of_a : of_b, text, sizeof text, &at);
    tg_text(text, sizeof text, &at, ", ");
    quote(s, a < b ? b : a, a < b ? of_b : of_a, text, sizeof text, &at);
    tg_shm_fail(s, TG_ERR_MISMATCH, -1, text);
}

void tg_shm_crossed(tg_shm_group *s, tg_shm_group *other, int member, const tg_note *mine, const tg_note *theirs) {
    char text[TEXT];
    size_t at = 0;
    tg_text(text, sizeof text, &at,
            "the ranks disagree about what comes next, and wait for each other: in group \"%s\" ", s->g->name);
    quote(s, s->rank, mine, text, sizeof text, &at);
    tg_text(text, sizeof text, &at, ", in group \"%s\" ", other->g->name);
    quote(s, member, theirs, text, sizeof text, &at);
    /* Both are claimed before one is told: who hears of it there fails, and would be another reason here. */
    bool first = claim(other), second = claim(s);
    if (first) write_down(other, TG_ERR_MISMATCH, -1, text);
    if (second) write_down(s, TG_ERR_MISMATCH, -1, text);
}

/* ---- Peers ---- */

bool tg_shm_has_arrived(const tg_shm_request *r, int member) {
    if (!r) return false;
    if (tg_shm_is_mail(r)) return member != r->peer || tg_shm_mail_answered(r);
    return atomic_load_explicit(&r->slot->post[member].posted, memory_order_acquire) == r->sequence + 1;
}

/* A failure that was itself another's is passed on in that one's words. */
void tg_shm_fail_by(tg_shm_group *s, int rank, const char *after) {
    tg_card *card = &s->self->view.region->card[rank];
    char message[TEXT - 64], text[TEXT];
    size_t at = 0;
    int cause = atomic_load_explicit(&card->cause, memory_order_relaxed);
    tg_box_read(&card->failure, message, sizeof message);
    if (atomic_load_explicit(&card->status, memory_order_relaxed) == TG_ERR_REMOTE && cause >= 0) {
        tg_shm_fail(s, TG_ERR_REMOTE, cause, message);
        return;
    }
    tg_text(text, sizeof text, &at, "rank %d failed%s: %s", rank, after, message);
    tg_shm_fail(s, TG_ERR_REMOTE, rank, text);
}

void tg_shm_abandon(tg_shm_group *s, const char *why) {
    if (s->self->ctx->run.missed != s->skips)
        tg_shm_fail_by(s, s->self->view.me, " (and has cleared its error)");
    else if (s->self->ctx->run.status != TG_OK)
        tg_shm_fail_by(s, s->self->view.me, "");
    else
        tg_shm_fail(s, TG_ERR_ABORTED, -1, why);
}

static void fail_by_leaving(tg_shm_group *s, int rank, bool returned) {
    char text[TEXT];
    size_t at = 0;
    tg_card *card = &s->self->view.region->card[rank];
    tg_text(text, sizeof text, &at, "rank %d has %s after %llu calls; ", rank,
            returned ? "returned" : "freed this communicator",
            (unsigned long long)atomic_load_explicit(&card->calls, memory_order_relaxed));
    tg_board_last(s->self->board, rank, text, sizeof text, &at);
    tg_shm_fail(s, TG_ERR_REMOTE, rank, text);
}

static void fail_by_death(tg_shm_group *s, int rank) {
    char text[TEXT];
    size_t at = 0;
    const tg_card *card = &s->self->view.region->card[rank];
    if (atomic_load_explicit(&card->status, memory_order_acquire) != TG_OK) {
        tg_shm_fail_by(s, rank, "");
        return;
    }
    tg_text(text, sizeof text, &at, "the process of rank %d (pid %lld) has ended without a word; ", rank,
            (long long)tg_process_pid(&s->self->view, rank));
    tg_board_last(s->self->board, rank, text, sizeof text, &at);
    tg_shm_fail(s, TG_ERR_REMOTE, rank, text);
}

/* Even one who has arrived may have died with a piece of the work. */
void tg_shm_look_at_processes(tg_shm_group *s) {
    const double period = 0.02;
    double now = tg_system_now();
    if (!s->self->process || now - s->self->polled < period) return;
    s->self->polled = now;
    for (int i = 0; i < s->size && !tg_shm_has_failed(s); i++) {
        int rank = tg_group_member(s->g, i)->rank;
        if (i != s->rank && !tg_process_alive(&s->self->view, rank)) fail_by_death(s, rank);
    }
}

/* Of the calls of the group; 0 before the member has joined. */
static uint64_t missed_by(const tg_shm_group *s, int member) {
    uint64_t before = atomic_load_explicit(&tg_group_member(s->g, member)->skips, memory_order_acquire);
    return before ? atomic_load_explicit(&tg_shm_card(s, member)->skips, memory_order_acquire) - (before - 1) : 0;
}

bool tg_shm_has_missed_more(const tg_shm_group *s, int a, int b) { return missed_by(s, a) > missed_by(s, b); }

/* That an error is there counts only after a while: the peer may be about to clear it, as we have cleared our own. But
 * who has missed a call that we have not, is out of step for good. */
static void look_at(tg_shm_group *s, const tg_shm_request *r, int member, double *failed_since) {
    const double patience = 0.1;
    const tg_card *card = tg_shm_card(s, member);
    int rank = tg_group_member(s->g, member)->rank;
    int state = atomic_load_explicit(&card->state, memory_order_acquire);
    bool gone = atomic_load_explicit(&tg_group_member(s->g, member)->gone, memory_order_acquire);
    bool failed = state == TG_RANK_FAILED, missed = tg_shm_has_missed_more(s, member, s->rank);
    if (failed && *failed_since == 0) *failed_since = tg_system_now();
    if (tg_shm_has_arrived(r, member)) return; /* before what was seen above */
    if (atomic_load_explicit(&card->status, memory_order_acquire) != TG_OK && state == TG_RANK_RETURNED)
        tg_shm_fail_by(s, rank, "");
    else if (state == TG_RANK_RETURNED || gone)
        fail_by_leaving(s, rank, state == TG_RANK_RETURNED);
    else if (missed)
        tg_shm_fail_by(s, rank, failed ? "" : " (and has cleared its error)");
    else if (failed && tg_system_now() - *failed_since > patience)
        tg_shm_fail_by(s, rank, "");
    else
        tg_shm_look_crossed(s, r, member);
}

/* ---- The deadline ---- */

void tg_shm_begin_look(tg_shm_group *s) {
    uint64_t *beats = s->pairs + 2 * s->size;
    for (int i = 0; i < s->size; i++)
        beats[i] = atomic_load_explicit(&tg_shm_card(s, i)->heartbeat, memory_order_relaxed);
}

static void describe_missing(const tg_shm_group *s, int member, char *buf, size_t n, size_t *at) {
    int rank = tg_group_member(s->g, member)->rank;
    uint64_t before = s->pairs[2 * s->size + member];
    bool busy = atomic_load_explicit(&tg_shm_card(s, member)->heartbeat, memory_order_relaxed) != before;
    tg_text(buf, n, at, "; rank %d has not arrived: it is %s, ", rank,
            busy ? "busy (its heartbeat moves)" : "missing (its heartbeat stands still)");
    tg_board_last(s->self->board, rank, buf, n, at);
}

static void pass_deadline(tg_shm_group *s, const tg_shm_request *r) {
    char text[TEXT], site[192];
    size_t at = 0;
    int culprit = -1;
    tg_text(text, sizeof text, &at, "the deadline of %g s has passed in ", s->self->ctx->run.deadline);
    if (r) {
        tg_describe_site((const void *)(uintptr_t)r->note.site, site, sizeof site);
        tg_note_call(&r->note, text, sizeof text, &at);
        tg_text(text, sizeof text, &at, ", call %llu of group \"%s\", from %s", (unsigned long long)r->note.sequence,
                s->g->name, site);
    } else {
        tg_text(text, sizeof text, &at, "a call that waits for one of the %d before it in group \"%s\"", TG_CALLS,
                s->g->name);
    }
    for (int i = 0; i < s->size; i++) {
        if (i == s->rank || tg_shm_has_arrived(r, i)) continue;
        if (culprit < 0) culprit = tg_group_member(s->g, i)->rank;
        describe_missing(s, i, text, sizeof text, &at);
    }
    tg_shm_fail(s, TG_ERR_TIMEOUT, culprit, text);
}

static bool any_failed(const tg_shm_group *s) {
    for (int i = 0; i < s->size; i++)
        if (atomic_load_explicit(&tg_shm_card(s, i)->state, memory_order_relaxed) == TG_RANK_FAILED) return true;
    return false;
}

void tg_shm_look(tg_shm_group *s, const tg_shm_request *r, double since, double *failed_since) {
    if (!any_failed(s)) *failed_since = 0;
    for (int i = 0; i < s->size && !tg_shm_has_failed(s); i++)
        if (i != s->rank && !tg_shm_has_arrived(r, i)) look_at(s, r, i, failed_since);
    if (!tg_shm_has_failed(s)) tg_shm_look_at_processes(s);
    if (tg_system_now() - since > s->self->ctx->run.deadline) pass_deadline(s, r);
}
