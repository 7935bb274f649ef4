/* Progress and waiting: whoever waits works; whoever cannot looks whether its peers still can. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "comm/shm/shm.h"

/* ---- Bells ---- */

/* The fence: what was published before is seen by who goes to sleep now, or he is seen to sleep. */
void tg_shm_ring(tg_shm_group *s) {
    atomic_thread_fence(memory_order_seq_cst);
    for (int i = 0; i < s->size; i++) {
        tg_card *card = tg_shm_card(s, i);
        if (i == s->rank || !atomic_load_explicit(&card->sleeping, memory_order_seq_cst)) continue;
        atomic_fetch_add_explicit(&card->bell, 1, memory_order_seq_cst);
        syscall(SYS_futex, &card->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

/* For a short while: a peer that dies does not ring. */
static void sleep_until_rung(tg_card *card, uint32_t bell, long nanoseconds) {
    struct timespec t = {.tv_nsec = nanoseconds};
    syscall(SYS_futex, &card->bell, FUTEX_WAIT, bell, &t, NULL, 0);
}

void tg_shm_nap(tg_shm_group *s) {
    tg_card *card = &s->self->view.region->card[s->self->view.me];
    uint32_t bell = atomic_load_explicit(&card->bell, memory_order_acquire);
    sleep_until_rung(card, bell, 1000000);
}

/* ---- Progress ---- */

static void leave(tg_shm_group *s, tg_slot *slot) {
    if (atomic_fetch_add_explicit(&slot->left, 1, memory_order_acq_rel) + 1 < s->size) return;
    atomic_store_explicit(&slot->first, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->left, 0, memory_order_relaxed);
    for (int i = 0; i < s->size; i++) atomic_store_explicit(&slot->post[i].next, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->done, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->turn, 1, memory_order_release);
    tg_shm_ring(s);
}

static bool is_ready(const tg_shm_request *r) {
    return atomic_load_explicit(&r->slot->ready, memory_order_acquire) == r->sequence + 1;
}

static void settled(tg_shm_request *r) {
    tg_shm_rank *self = r->s->self;
    tg_shm_unstage(r, true);
    if (tg_shm_is_mail(r))
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
    bool done = tg_shm_is_mail(r) ? tg_shm_mail_done(r)
                                  : is_ready(r) && atomic_load_explicit(&slot->done, memory_order_acquire) ==
                                                       slot->parts * slot->pieces;
    if (done) settled(r);
    return done;
}

void tg_shm_progress(tg_shm_rank *self) {
    for (tg_shm_request *r = self->first, *next; r; r = next) {
        next = r->next;
        if (tg_shm_is_mail(r))
            tg_shm_try_mail(r);
        else if (is_ready(r))
            tg_shm_run(r->s, r->slot);
        tg_shm_check(r);
    }
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
    enum { YIELDS = 32, NAP = 2000000 };
    tg_shm_rank *self = s->self;
    tg_card *card = &self->view.region->card[self->view.me];
    double since = 0, failed_since = 0;
    for (int round = 0;; round++) {
        uint32_t bell = atomic_load_explicit(&card->bell, memory_order_acquire);
        bool sleeps = round > self->spins + YIELDS;
        if (sleeps) atomic_store_explicit(&card->sleeping, 1, memory_order_seq_cst);
        tg_shm_progress(self);
        tg_ctx_idle(self->ctx);
        bool there = arrived_at(r, slot, sequence);
        if (there || tg_shm_has_failed(s)) {
            if (sleeps) atomic_store_explicit(&card->sleeping, 0, memory_order_relaxed);
            if (since > 0) atomic_store_explicit(&card->blocked, 0, memory_order_release);
            if (there) return TG_OK;
            tg_shm_quiesce(s);
            return tg_shm_failed(s, r != NULL);
        }
        if (round < self->spins) {
            pause_briefly();
        } else if (!sleeps) {
            sched_yield();
        } else {
            if (since == 0) {
                since = tg_system_now();
                tg_shm_begin_look(s);
                if (r) atomic_store_explicit(&card->blocked, tg_shm_blocked_in(r), memory_order_release);
            }
            tg_shm_look(s, r, since, &failed_since);
            if (!tg_shm_has_failed(s)) sleep_until_rung(card, bell, tg_system_now() - since < 0.1 ? NAP : 4 * NAP);
            atomic_store_explicit(&card->sleeping, 0, memory_order_relaxed);
        }
    }
}

/* Another wait than tg_shm_await's: what that one keeps on the stack stays with the group. */
static void look_again(tg_shm_group *s, tg_shm_request *r, double waited) {
    tg_card *card = &s->self->view.region->card[s->self->view.me];
    bool other = s->looked_for != r;
    if (other) {
        s->looked_for = r;
        s->failed_since = 0;
        if (r) tg_shm_begin_look(s);
    }
    uint64_t blocked = atomic_load_explicit(&card->blocked, memory_order_relaxed);
    if (other && (r || (uint32_t)(blocked >> 32) == (uint32_t)s->g->id)) { /* else it is another group's */
        atomic_store_explicit(&card->waiting, r ? r->record : 0, memory_order_relaxed);
        atomic_store_explicit(&card->blocked, r ? tg_shm_blocked_in(r) : 0, memory_order_release);
    }
    if (r)
        tg_shm_look(s, r, tg_system_now() - waited, &s->failed_since);
    else
        tg_shm_look_at_processes(s);
}

tg_status tg_shm_look_on(tg_ctx *ctx, void *state, void *request, double waited) {
    tg_shm_group *s = state;
    tg_shm_request *r = request;
    if (waited >= 0) tg_shm_progress(s->self);
    if (waited >= 0) tg_ctx_idle(ctx);
    if (r && (r->done || waited < 0)) r = NULL;
    if (!tg_shm_has_failed(s)) look_again(s, r, waited);
    if (waited < 0 || !tg_shm_has_failed(s)) return TG_OK;
    tg_shm_quiesce(s);
    return tg_shm_failed(s, true);
}
