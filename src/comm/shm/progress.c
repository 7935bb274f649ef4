/* Implements tg_mover_ops for the shared-memory transport: advances the calls of this rank, and wakes peers that
 * sleep. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/os.h"
#include "comm/shm/shm.h"

/* ---- Waking ---- */

/* The fence ensures that a peer about to sleep sees what this rank published before, or that this rank sees the peer's
 * sleeping flag. */
void tg_shm_wake(tg_shm_group *s) {
    atomic_thread_fence(memory_order_seq_cst);
    for (int i = 0; i < s->control.size; i++) {
        tg_rank_slot *rank_slot = tg_shm_rank_slot(s, i);
        if (i == s->control.rank || !atomic_load_explicit(&rank_slot->sleeping, memory_order_seq_cst)) continue;
        atomic_fetch_add_explicit(&rank_slot->wakeups, 1, memory_order_seq_cst);
        syscall(SYS_futex, &rank_slot->wakeups, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

/* ---- Progress ---- */

/* Leaves the slot of a call that is done. The last member to leave prepares the slot for its next call. */
static void leave_slot(tg_shm_group *s, tg_slot *slot) {
    if (atomic_fetch_add_explicit(&slot->left, 1, memory_order_acq_rel) + 1 < s->control.size) return;
    atomic_store_explicit(&slot->first, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->left, 0, memory_order_relaxed);
    for (int i = 0; i < s->control.size; i++) atomic_store_explicit(&slot->post[i].next, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->done, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->generation, 1, memory_order_release);
    tg_shm_wake(s);
}

static bool is_ready(const tg_shm_request *r) {
    return atomic_load_explicit(&r->slot->ready, memory_order_acquire) == r->sequence + 1;
}

/* Ends a call that is done, and removes it from those in flight. */
static void end_request(tg_shm_request *r) {
    tg_shm_rank *self = r->s->self;
    tg_shm_unstage(r, true);
    if (tg_shm_is_message(r))
        tg_shm_end_message(r);
    else
        leave_slot(r->s, r->slot);
    *(r->prev ? &r->prev->next : &self->first) = r->next;
    *(r->next ? &r->next->prev : &self->last) = r->prev;
    r->done = true;
}

bool tg_shm_check(tg_shm_request *r) {
    const tg_slot *slot = r->slot;
    if (r->done) return true;
    bool done = tg_shm_is_message(r) ? tg_shm_message_done(r)
                                     : is_ready(r) && atomic_load_explicit(&slot->done, memory_order_acquire) ==
                                                          slot->parts * slot->pieces;
    if (done) end_request(r);
    return done;
}

void tg_shm_progress(tg_shm_rank *self) {
    for (tg_shm_request *r = self->first, *next; r; r = next) {
        next = r->next;
        if (tg_shm_is_message(r))
            tg_shm_try_message(r);
        else if (is_ready(r))
            tg_shm_run(r->s, r->slot);
        tg_shm_check(r);
    }
}

/* ---- The mover ---- */

static void advance(tg_control *c) { tg_shm_progress(tg_shm_of(c)->self); }

static bool is_done(tg_control *c, const tg_wait *w) {
    const tg_slot *slot = w->place;
    (void)c;
    if (w->request) return tg_shm_check(w->request);
    return atomic_load_explicit(&slot->generation, memory_order_acquire) == w->sequence / TG_CALLS;
}

/* Returns whether member i works in the memory of the group's members. Returns false if its process has died. */
static bool works_here(tg_shm_group *s, int i) {
    return atomic_load_explicit(&tg_shm_rank_slot(s, i)->busy, memory_order_seq_cst) == s->g->id &&
           tg_process_alive(&s->self->view, tg_group_member(s->g, i)->rank);
}

/* Waits until no peer works in the memory of the members of this failed group, but at most a quarter of a second among
 * processes, and at most the deadline among threads. */
static void quiesce(tg_control *c) {
    const double patience = 0.25;
    tg_shm_group *s = tg_shm_of(c);
    double until = tg_system_now() + (s->self->process ? patience : c->ctx->run.deadline);
    for (int i = 0; i < c->size; i++)
        while (i != c->rank && tg_system_now() < until && works_here(s, i)) sched_yield();
}

const tg_mover_ops tg_shm_mover = {.advance = advance, .done = is_done, .quiesce = quiesce};
