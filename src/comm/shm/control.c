/* Implements tg_control_ops for the shared-memory transport. It reads the state of the members from the rank slots and
 * the groups in the region (region.h). */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "base/text.h"
#include "comm/shm/shm.h"

static const tg_shm_request *request_of(const tg_wait *w) { return w ? w->request : NULL; }

/* ---- The end of the group ---- */

/* Claims the group. Other ranks that see the claim wait in end_of for the reason that the claiming rank publishes. */
static bool claim(tg_control *c) {
    int whole = TG_GROUP_WHOLE;
    return atomic_compare_exchange_strong_explicit(&tg_shm_of(c)->g->failed, &whole, TG_GROUP_FAILING,
                                                   memory_order_seq_cst, memory_order_seq_cst);
}

static void publish(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text) {
    tg_shm_group *s = tg_shm_of(c);
    (void)w;
    s->g->status = status;
    s->g->culprit = culprit;
    s->g->reporter = c->me;
    tg_shared_text_write(&s->g->failure, text);
    atomic_store_explicit(&s->g->failed, TG_GROUP_FAILED, memory_order_seq_cst);
    tg_shm_wake(s);
}

static bool has_ended(tg_control *c, const tg_wait *w) { return (void)w, tg_shm_has_failed(tg_shm_of(c)); }

/* Waits for the reason for a limited time, because the rank that claimed the group may have died. */
static void end_of(tg_control *c, tg_group_end *end, char *buf, size_t n) {
    tg_group *g = tg_shm_of(c)->g;
    size_t at = 0;
    for (int i = 0; i < 1000000 && atomic_load_explicit(&g->failed, memory_order_acquire) == TG_GROUP_FAILING; i++)
        sched_yield();
    if (atomic_load_explicit(&g->failed, memory_order_acquire) == TG_GROUP_FAILED)
        tg_shared_text_read(&g->failure, buf, n);
    else
        tg_text(buf, n, &at, "the rank that ended it has not published the reason; its process may have died");
    *end = (tg_group_end){g->status, g->culprit, g->reporter, buf};
}

/* ---- Disagreement ---- */

tg_call_entry tg_shm_post_entry(const tg_post *p, uint64_t sequence) {
    tg_call_entry entry = tg_signature_entry(&p->signature, p->count, -1, sequence);
    entry.site = p->site;
    return entry;
}

void tg_shm_quote(const tg_shm_group *s, int member, const tg_call_entry *entry, tg_quoted *q) {
    *q = (tg_quoted){.member = member, .rank = tg_group_member(s->g, member)->rank, .entry = *entry};
    tg_recorder_site(s->self->recorder, q->rank, entry->site, q->site, sizeof q->site);
}

void tg_shm_mismatch(tg_shm_group *s, int a, int b, const tg_call_entry *of_a, const tg_call_entry *of_b) {
    tg_quoted one, two;
    tg_shm_quote(s, a, of_a, &one);
    tg_shm_quote(s, b, of_b, &two);
    tg_control_mismatch(&s->control, NULL, &one, &two);
}

/* ---- Members ---- */

bool tg_shm_has_arrived(const tg_shm_request *r, int member) {
    if (!r) return false;
    if (tg_shm_is_message(r)) return member != r->peer || tg_shm_message_answered(r);
    return atomic_load_explicit(&r->slot->post[member].posted, memory_order_acquire) == r->sequence + 1;
}

static bool awaits(tg_control *c, const tg_wait *w, int i) {
    return (void)c, !tg_shm_has_arrived(request_of(w), i);
}

/* Returns the number of calls that the member has missed since it joined the group; 0: it has not joined yet. */
static uint64_t missed_by(const tg_shm_group *s, int member) {
    uint64_t before = atomic_load_explicit(&tg_group_member(s->g, member)->missed_calls, memory_order_acquire);
    return before
               ? atomic_load_explicit(&tg_shm_rank_slot(s, member)->missed_calls, memory_order_acquire) - (before - 1)
               : 0;
}

bool tg_shm_has_missed_more(const tg_shm_group *s, int a, int b) { return missed_by(s, a) > missed_by(s, b); }

/* Returns the seconds since this wait first saw that the member holds an error; 0 if it holds none. */
static double failed_for(const tg_shm_group *s, int member) {
    uint64_t *since = s->pairs + 3 * s->control.size + member, now = tg_recorder_now();
    bool failed = atomic_load_explicit(&tg_shm_rank_slot(s, member)->status, memory_order_acquire) != TG_OK;
    if (!failed || !*since) *since = failed ? now : 0;
    return failed ? (double)(now - *since) * 1e-9 : 0;
}

/* A process that ends its communication stores first that it has returned, and then that it has left its last group
 * (shm_close). So `left` is read first. */
static void view_member(tg_control *c, const tg_wait *w, int i, tg_member_view *view) {
    tg_shm_group *s = tg_shm_of(c);
    const tg_rank_slot *rank_slot = tg_shm_rank_slot(s, i);
    const tg_member *m = tg_group_member(s->g, i);
    bool left = atomic_load_explicit(&m->left, memory_order_acquire);
    (void)w;
    *view = (tg_member_view){
        .rank = m->rank,
        .returned = atomic_load_explicit(&rank_slot->state, memory_order_acquire) == TG_RANK_RETURNED,
        .left = left,
        .missed = tg_shm_has_missed_more(s, i, c->rank),
        .alive = atomic_load_explicit(&rank_slot->heartbeat, memory_order_relaxed) != s->pairs[2 * c->size + i],
        .failed_for = failed_for(s, i),
    };
    view->status = (tg_status)atomic_load_explicit(&rank_slot->status, memory_order_acquire);
    view->cause = atomic_load_explicit(&rank_slot->cause, memory_order_relaxed);
}

static void error_of(tg_control *c, int i, char *buf, size_t n) {
    tg_shared_text_read(&tg_shm_rank_slot(tg_shm_of(c), i)->failure, buf, n);
}

/* A slot keeps the number of the last call that the member has posted there. */
static uint64_t calls_of(tg_control *c, int i) {
    uint64_t calls = 0;
    for (uint64_t k = 0; k < TG_CALLS; k++) {
        const tg_post *p = &tg_group_slot(tg_shm_of(c)->g, k)->post[i];
        uint64_t posted = atomic_load_explicit(&p->posted, memory_order_acquire);
        if (posted > calls) calls = posted;
    }
    return calls;
}

static void last_call(tg_control *c, int i, char *buf, size_t n, size_t *at) {
    const tg_shm_group *s = tg_shm_of(c);
    tg_recorder_last_call(s->self->recorder, tg_group_member(s->g, i)->rank, buf, n, at);
}

static bool call_of(tg_control *c, const tg_wait *w, tg_call_entry *entry, char *site, size_t n) {
    const tg_shm_request *r = request_of(w);
    if (!r) return false;
    *entry = r->entry;
    tg_describe_site(c->ctx, (const void *)(uintptr_t)r->entry.site, site, n);
    return true;
}

/* Ends the group if the process of a member has died. Also checks members that have arrived, because they may have died
 * while they worked on a piece. */
static void check_processes(tg_shm_group *s) {
    const double period = 0.02;
    double now = tg_system_now();
    if (!s->self->process || now - s->self->polled < period) return;
    s->self->polled = now;
    for (int i = 0; i < s->control.size && !tg_shm_has_failed(s); i++) {
        int rank = tg_group_member(s->g, i)->rank;
        if (i != s->control.rank && !tg_process_alive(&s->self->view, rank))
            tg_control_died(&s->control, NULL, i, (long long)tg_process_pid(&s->self->view, rank), "");
    }
}

static void check(tg_control *c, const tg_wait *w) { (void)w, check_processes(tg_shm_of(c)); }

/* ---- Waiting ---- */

/* Sleeps until a peer increments rank_slot->wakeups, but for this time at most. Returns at once if that field does not
 * have the value `wakeups` any more. The time is short, because a peer that dies wakes no other rank. */
static void sleep_until_woken(tg_rank_slot *rank_slot, uint32_t wakeups, long nanoseconds) {
    struct timespec t = {.tv_nsec = nanoseconds};
    syscall(SYS_futex, &rank_slot->wakeups, FUTEX_WAIT, wakeups, &t, NULL, 0);
}

/* Reads rank_slot->wakeups and, if this rank may sleep soon, sets its sleeping flag. That happens before the rank's
 * last attempt to make progress. So a peer that publishes something after this attempt prevents or ends the sleep. */
static void prepare(tg_control *c, int round) {
    tg_shm_rank *self = tg_shm_of(c)->self;
    tg_rank_slot *rank_slot = tg_shm_own_rank_slot(self);
    self->wakeups = atomic_load_explicit(&rank_slot->wakeups, memory_order_acquire);
    if (round >= c->patience) atomic_store_explicit(&rank_slot->sleeping, 1, memory_order_seq_cst);
}

/* Notes the heartbeats of the members, and forgets when their errors were first seen. */
static void begin_views(tg_shm_group *s) {
    int n = s->control.size;
    uint64_t *beats = s->pairs + 2 * n;
    for (int i = 0; i < n; i++)
        beats[i] = atomic_load_explicit(&tg_shm_rank_slot(s, i)->heartbeat, memory_order_relaxed);
    memset(beats + n, 0, (size_t)n * sizeof *beats);
}

static void begin_checks(tg_control *c, const tg_wait *w) {
    tg_shm_group *s = tg_shm_of(c);
    begin_views(s);
    if (w->request)
        atomic_store_explicit(&tg_shm_own_rank_slot(s->self)->blocked, tg_shm_blocked_in(w->request),
                              memory_order_release);
}

/* Clears the sleeping flag even if no check has begun: prepare sets it just before the first check. */
static void end_wait(tg_control *c, const tg_wait *w) {
    tg_shm_group *s = tg_shm_of(c);
    tg_rank_slot *rank_slot = tg_shm_own_rank_slot(s->self);
    if (atomic_load_explicit(&rank_slot->sleeping, memory_order_relaxed))
        atomic_store_explicit(&rank_slot->sleeping, 0, memory_order_relaxed);
    if (w->since == 0) return;
    atomic_store_explicit(&rank_slot->blocked, 0, memory_order_release);
    if (s->watched) atomic_store_explicit(&rank_slot->waiting, 0, memory_order_relaxed);
    s->watched = NULL;
}

/* Does the work of begin_checks and end_wait while the host waits for something else, such as a device. w has the call
 * on which this wait depends; NULL: none. Repeated calls for the same call change nothing. */
static void begin_poll(tg_control *c, const tg_wait *w) {
    tg_shm_group *s = tg_shm_of(c);
    const tg_shm_request *r = request_of(w);
    tg_rank_slot *rank_slot = tg_shm_own_rank_slot(s->self);
    if (s->watched == r) return;
    s->watched = r;
    if (r) begin_views(s);
    uint64_t blocked = atomic_load_explicit(&rank_slot->blocked, memory_order_relaxed);
    if (!r && (uint32_t)(blocked >> 32) != (uint32_t)s->g->id) return; /* the rank waits in another group */
    atomic_store_explicit(&rank_slot->waiting, r ? r->record : 0, memory_order_relaxed);
    atomic_store_explicit(&rank_slot->blocked, r ? tg_shm_blocked_in(r) : 0, memory_order_release);
}

/* Spins, then sleeps. It does not yield, because a program of lower priority would then get a whole time slice of this
 * rank's core. */
static void pause_wait(tg_control *c, const tg_wait *w, int round) {
    enum { SLEEP_NS = 2000000 }; /* nanoseconds */
    tg_shm_group *s = tg_shm_of(c);
    tg_rank_slot *rank_slot = tg_shm_own_rank_slot(s->self);
    if (!w) {
        sleep_until_woken(rank_slot, atomic_load_explicit(&rank_slot->wakeups, memory_order_acquire), SLEEP_NS / 2);
    } else if (round < s->self->spins) {
        tg_system_pause();
    } else {
        bool soon = tg_system_now() - w->since < 0.1;
        if (!tg_shm_has_failed(s)) sleep_until_woken(rank_slot, s->self->wakeups, soon ? SLEEP_NS : 4 * SLEEP_NS);
        atomic_store_explicit(&rank_slot->sleeping, 0, memory_order_relaxed);
    }
}

int tg_shm_patience(const tg_shm_rank *self) { return self->spins; }

/* ---- Recovery ---- */

static void join_recovery(tg_control *c) {
    atomic_store_explicit(&tg_group_member(tg_shm_of(c)->g, c->rank)->recovering, true, memory_order_release);
}

static bool is_recovering(const tg_member *m) { return atomic_load_explicit(&m->recovering, memory_order_acquire); }
static bool has_left(const tg_member *m) { return atomic_load_explicit(&m->left, memory_order_acquire); }

static bool is_expected(tg_control *c, int i) {
    tg_shm_group *s = tg_shm_of(c);
    const tg_member *m = tg_group_member(s->g, i);
    return !is_recovering(m) && !has_left(m) &&
           atomic_load_explicit(&tg_shm_rank_slot(s, i)->state, memory_order_acquire) != TG_RANK_RETURNED &&
           tg_process_alive(&s->self->view, m->rank);
}

static bool has_joined(tg_control *c, int i) {
    const tg_member *m = tg_group_member(tg_shm_of(c)->g, i);
    return is_recovering(m) && !has_left(m);
}

static const char *lost(tg_control *c, int i) {
    tg_shm_group *s = tg_shm_of(c);
    return tg_process_alive(&s->self->view, tg_group_member(s->g, i)->rank) ? NULL : "";
}

static bool *own_list(tg_control *c) { return tg_group_list(tg_shm_of(c)->g, c->rank); }

static void propose(tg_control *c) {
    tg_shm_group *s = tg_shm_of(c);
    int none = 0;
    atomic_compare_exchange_strong_explicit(&s->g->decided, &none, c->rank + 1, memory_order_acq_rel,
                                            memory_order_acquire);
}

static const bool *decided_list(tg_control *c) {
    tg_group *g = tg_shm_of(c)->g;
    int by = atomic_load_explicit(&g->decided, memory_order_acquire);
    return by ? tg_group_list(g, by - 1) : NULL;
}

const tg_control_ops tg_shm_control = {
    .busy = "busy (its heartbeat moves)",
    .missing = "missing (its heartbeat stands still)",
    .max_calls = TG_CALLS,
    .awaits = awaits,
    .member = view_member,
    .error_of = error_of,
    .calls = calls_of,
    .last_call = last_call,
    .call = call_of,
    .ended = has_ended,
    .claim = claim,
    .publish = publish,
    .end = end_of,
    .prepare = prepare,
    .begin_checks = begin_checks,
    .end_wait = end_wait,
    .pause = pause_wait,
    .begin_poll = begin_poll,
    .check = check,
    .deadlock = tg_shm_check_deadlock,
    .join_recovery = join_recovery,
    .is_expected = is_expected,
    .has_joined = has_joined,
    .lost = lost,
    .own_list = own_list,
    .propose = propose,
    .decided_list = decided_list,
};
