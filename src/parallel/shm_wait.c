/* Progress and waiting: whoever waits works; whoever cannot looks whether its peers still can. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/system.h"
#include "parallel/shm.h"

double tg_shm_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Bells ---- */

static tg_place_card *card_of(const tg_shm_group *s, int member) {
    return &s->self->view.region->card[tg_group_member(s->g, member)->rank];
}

void tg_shm_ring(tg_shm_group *s) {
    for (int i = 0; i < s->size; i++) {
        tg_place_card *card = card_of(s, i);
        if (i == s->rank || !atomic_load_explicit(&card->sleeping, memory_order_seq_cst)) continue;
        atomic_fetch_add_explicit(&card->bell, 1, memory_order_seq_cst);
        syscall(SYS_futex, &card->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

/* For a short while: a peer that dies does not ring. */
static void sleep_until_rung(tg_place_card *card, uint32_t bell, long nanoseconds) {
    struct timespec t = {.tv_nsec = nanoseconds};
    syscall(SYS_futex, &card->bell, FUTEX_WAIT, bell, &t, NULL, 0);
}

/* ---- Progress ---- */

static void leave(tg_shm_group *s, tg_slot *slot) {
    if (atomic_fetch_add_explicit(&slot->left, 1, memory_order_acq_rel) + 1 < s->size) return;
    atomic_store_explicit(&slot->first, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->left, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->next, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->done, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->turn, 1, memory_order_release);
    tg_shm_ring(s);
}

static bool is_ready(const tg_shm_request *r) {
    return atomic_load_explicit(&r->slot->ready, memory_order_acquire) == r->sequence + 1;
}

static void settled(tg_shm_request *r) {
    tg_shm_rank *self = r->s->self;
    if (r->mail)
        tg_shm_end_mail(r);
    else
        leave(r->s, r->slot);
    *(r->prev ? &r->prev->next : &self->first) = r->next;
    *(r->next ? &r->next->prev : &self->last) = r->prev;
    r->done = true;
}

bool tg_shm_check(tg_shm_request *r) {
    const tg_slot *slot = r->slot;
    if (r->done) return true;
    bool done = slot ? is_ready(r) && atomic_load_explicit(&slot->done, memory_order_acquire) ==
                                          slot->parts * slot->pieces
                     : (atomic_load_explicit(&r->mail->state, memory_order_acquire) & 3) == TG_MAIL_DONE;
    if (done) settled(r);
    return done;
}

void tg_shm_progress(tg_shm_rank *self) {
    for (tg_shm_request *r = self->first, *next; r; r = next) {
        next = r->next;
        if (r->mail)
            tg_shm_try_mail(r);
        else if (is_ready(r))
            tg_shm_run(r->s, r->slot);
        tg_shm_check(r);
    }
}

/* ---- Failure ---- */

static bool failed(const tg_shm_group *s) {
    return atomic_load_explicit(&s->g->failed, memory_order_acquire) != TG_GROUP_WHOLE;
}

void tg_shm_fail(tg_shm_group *s, tg_status status, int culprit, const char *text) {
    int whole = TG_GROUP_WHOLE;
    if (!atomic_compare_exchange_strong_explicit(&s->g->failed, &whole, TG_GROUP_FAILING, memory_order_seq_cst,
                                                 memory_order_seq_cst))
        return;
    s->g->status = status;
    s->g->culprit = culprit;
    tg_box_write(&s->g->failure, text);
    atomic_store_explicit(&s->g->failed, TG_GROUP_FAILED, memory_order_seq_cst);
    tg_shm_ring(s);
}

tg_status tg_shm_failed(tg_shm_group *s) {
    char text[1536] = "";
    for (int i = 0; i < 1000000 && atomic_load_explicit(&s->g->failed, memory_order_acquire) == TG_GROUP_FAILING; i++)
        sched_yield();
    tg_box_read(&s->g->failure, text, sizeof text);
    tg_status status = s->g->status;
    if (s->told || status == TG_OK || s->g->culprit == s->self->view.me) status = TG_ERR_ABORTED;
    if (tg_ok(s->self->ctx)) s->told = true;
    return status == TG_ERR_ABORTED
               ? tg_fail(s->self->ctx, status, "this group was aborted (%s); tg_comm_recover begins anew", text)
               : tg_fail(s->self->ctx, status, "%s", text);
}

void tg_shm_quiesce(tg_shm_group *s) {
    double until = tg_shm_now() + s->self->ctx->deadline;
    for (int i = 0; i < s->size; i++)
        while (i != s->rank && atomic_load_explicit(&card_of(s, i)->busy, memory_order_acquire) == s->g->id &&
               tg_shm_now() < until)
            sched_yield();
}

static bool has_arrived(const tg_shm_request *r, int member) {
    if (r->mail) return member != r->peer;
    return atomic_load_explicit(&r->slot->post[member].posted, memory_order_acquire) == r->sequence + 1;
}

/* A member that will not come any more ends the group. */
static void look_at_peers(tg_shm_group *s, const tg_shm_request *r) {
    char text[1536], message[1200];
    size_t at = 0;
    for (int i = 0; i < s->size; i++) {
        tg_place_card *card = card_of(s, i);
        int rank = tg_group_member(s->g, i)->rank, state = atomic_load_explicit(&card->state, memory_order_acquire);
        bool gone = atomic_load_explicit(&tg_group_member(s->g, i)->gone, memory_order_acquire);
        if (i == s->rank || (r && has_arrived(r, i)) || (state <= TG_RANK_RUNNING && !gone)) continue;
        tg_box_read(&card->failure, message, sizeof message);
        if (r && has_arrived(r, i)) continue; /* meanwhile */
        if (atomic_load_explicit(&card->status, memory_order_relaxed) != TG_OK)
            tg_text(text, sizeof text, &at, "rank %d failed: %s", rank, message);
        else
            tg_text(text, sizeof text, &at, "rank %d has %s after %llu collectives", rank,
                    state == TG_RANK_RETURNED ? "returned" : "freed this communicator",
                    (unsigned long long)atomic_load_explicit(&card->calls, memory_order_relaxed));
        tg_shm_fail(s, TG_ERR_REMOTE, rank, text);
        return;
    }
}

static void pass_deadline(tg_shm_group *s, const tg_shm_request *r) {
    char text[1536];
    size_t at = 0;
    tg_text(text, sizeof text, &at, "%s: deadline of %g s passed; not arrived:",
            r ? tg_collective_name(r->kind) : "a free place for a call", s->self->ctx->deadline);
    for (int i = 0; i < s->size; i++)
        if (i != s->rank && !(r && has_arrived(r, i)))
            tg_text(text, sizeof text, &at, " rank %d", tg_group_member(s->g, i)->rank);
    tg_shm_fail(s, TG_ERR_TIMEOUT, -1, text);
}

/* ---- Waiting ---- */

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool arrived_at(tg_shm_request *r, const tg_slot *slot, uint64_t sequence) {
    if (r) return tg_shm_check(r);
    return atomic_load_explicit(&slot->turn, memory_order_acquire) == sequence / TG_CALLS;
}

tg_status tg_shm_await(tg_shm_group *s, tg_shm_request *r, tg_slot *slot, uint64_t sequence) {
    enum { YIELDS = 32 };
    tg_shm_rank *self = s->self;
    tg_place_card *card = &self->view.region->card[self->view.me];
    double start = 0;
    for (int round = 0;; round++) {
        uint32_t bell = atomic_load_explicit(&card->bell, memory_order_acquire);
        bool sleeps = round > self->spins + YIELDS;
        if (sleeps) atomic_store_explicit(&card->sleeping, 1, memory_order_seq_cst);
        tg_shm_progress(self);
        bool there = arrived_at(r, slot, sequence);
        if (there || failed(s)) {
            if (sleeps) atomic_store_explicit(&card->sleeping, 0, memory_order_relaxed);
            if (there) return TG_OK;
            tg_shm_quiesce(s);
            return tg_shm_failed(s);
        }
        if (round < self->spins) {
            pause_briefly();
        } else if (!sleeps) {
            sched_yield();
        } else {
            if (start == 0) start = tg_shm_now();
            look_at_peers(s, r);
            if (tg_shm_now() - start > self->ctx->deadline) pass_deadline(s, r);
            if (!failed(s)) sleep_until_rung(card, bell, 2000000);
            atomic_store_explicit(&card->sleeping, 0, memory_order_relaxed);
        }
    }
}
