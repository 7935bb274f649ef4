/* Sends and receives: each is posted in its rank's own box; whichever end waits first, once both are there, moves the
 * message. */
#include "parallel/shm.h"

/* Of the n-th message from one member to another: as its receiver, or as its sender, posts it. */
static uint64_t key_of(bool send, int peer, uint64_t n) { return 1 | (uint64_t)send << 1 | (uint64_t)peer << 2 | n << TG_MAIL_NUMBER; }

static uint64_t state_of(const tg_mail *m) { return atomic_load_explicit(&m->state, memory_order_acquire); }
static int phase(uint64_t state) { return (int)(state & 3); }

static tg_mail *free_mail(tg_shm_group *s) {
    tg_mail *box = tg_group_mails(s->g, s->rank);
    for (int i = 0; i < TG_MAILS; i++) {
        tg_mail *m = &box[(s->mails + (uint64_t)i) % TG_MAILS];
        if (phase(state_of(m)) == TG_MAIL_FREE) return m;
    }
    return NULL;
}

tg_status tg_shm_post_mail(tg_shm_group *s, const tg_transfer *t, tg_shm_request *r) {
    bool send = t->kind == TG_SEND;
    tg_mail *m = free_mail(s);
    if (!m) /* all are in flight: waits for one of them */
        for (tg_shm_request *q = s->self->first; q && !m; q = q->next)
            if (q->s == s && q->mail) {
                TG_TRY(tg_shm_await(s, q, NULL, 0));
                m = free_mail(s);
                q = s->self->first;
                if (!q) break;
            }
    if (!m) return tg_fail(s->self->ctx, TG_ERR_INTERNAL, "no room for a message");
    uint64_t n = s->pairs[2 * t->root + send]++;
    const void *data = send ? t->src : t->dst;
    s->mails++;
    m->data = data ? (tg_shared)((uintptr_t)data - s->self->view.base) : 0;
    m->count = t->count;
    m->site = (uint64_t)(uintptr_t)t->site;
    m->dtype = (uint8_t)t->dtype;
    r->mail = m;
    r->match = key_of(!send, s->rank, n);
    uint64_t was = atomic_load_explicit(&m->state, memory_order_relaxed);
    atomic_store_explicit(&m->state, (was & ~(uint64_t)3) + 4 + TG_MAIL_POSTED, memory_order_release);
    atomic_store_explicit(&m->key, key_of(send, t->root, n), memory_order_release);
    tg_shm_ring(s);
    return TG_OK;
}

/* The key tells which message it is, and there is never another of that key; that the state is the same before and after
 * tells that it is this message's. */
static tg_mail *other_half(const tg_shm_request *r, uint64_t *state) {
    tg_mail *box = tg_group_mails(r->s->g, r->peer);
    for (int i = 0; i < TG_MAILS; i++) {
        *state = state_of(&box[i]);
        if (phase(*state) == TG_MAIL_POSTED && atomic_load_explicit(&box[i].key, memory_order_acquire) == r->match &&
            state_of(&box[i]) == *state)
            return &box[i];
    }
    return NULL;
}

static tg_note mail_note(const tg_shm_group *s, const tg_mail *m, bool send, int peer) {
    return (tg_note){.kind = send ? TG_SEND : TG_RECV,
                     .dtype = m->dtype,
                     .root = peer,
                     .size = s->size,
                     .count = m->count,
                     .site = m->site};
}

static void mail_mismatch(const tg_shm_request *r, const tg_mail *other) {
    tg_shm_group *s = r->s;
    bool sends = r->kind == TG_SEND;
    tg_note mine = mail_note(s, r->mail, sends, r->peer), theirs = mail_note(s, other, !sends, s->rank);
    tg_shm_mismatch(s, s->rank, r->peer, &mine, &theirs);
}

/* The receiver's half decides who moves it. */
static bool take(tg_mail *recv, uint64_t state) {
    return phase(state) == TG_MAIL_POSTED &&
           atomic_compare_exchange_strong_explicit(&recv->state, &state, state - TG_MAIL_POSTED + TG_MAIL_TAKEN,
                                                   memory_order_acq_rel, memory_order_relaxed);
}

static void delivered(tg_mail *m) {
    uint64_t was = atomic_load_explicit(&m->state, memory_order_relaxed);
    atomic_store_explicit(&m->state, (was & ~(uint64_t)3) + TG_MAIL_DONE, memory_order_release);
}

bool tg_shm_try_mail(tg_shm_request *r) {
    tg_shm_group *s = r->s;
    uint64_t mine = state_of(r->mail), theirs;
    if (phase(mine) == TG_MAIL_DONE) return true;
    if (phase(mine) != TG_MAIL_POSTED) return false;
    tg_mail *other = other_half(r, &theirs);
    if (!other || !tg_shm_enter(s)) return false;
    tg_mail *send = r->kind == TG_SEND ? r->mail : other, *recv = r->kind == TG_SEND ? other : r->mail;
    bool moved = false;
    if (take(recv, r->kind == TG_SEND ? theirs : mine)) {
        if (send->count == recv->count && send->dtype == recv->dtype) {
            size_t bytes = (size_t)send->count * tg_dtype_size(send->dtype);
            if (bytes) memcpy(tg_at(&s->self->view, recv->data), tg_at(&s->self->view, send->data), bytes);
            delivered(send);
            delivered(recv);
            moved = true;
        } else {
            mail_mismatch(r, other);
        }
    }
    tg_shm_exit(s);
    if (moved) tg_shm_ring(s);
    return moved;
}

void tg_shm_end_mail(tg_shm_request *r) {
    uint64_t was = atomic_load_explicit(&r->mail->state, memory_order_relaxed);
    atomic_store_explicit(&r->mail->key, 0, memory_order_relaxed);
    atomic_store_explicit(&r->mail->state, was & ~(uint64_t)3, memory_order_release);
}
