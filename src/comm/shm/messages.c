/* Sends and receives. Each half of a message is posted in its rank's own array of message slots (tg_mail) if one is
 * free. Once both halves are posted, the first rank that waits moves the message. A half that found no free slot can
 * only be moved by its own rank. */
#include "comm/shm/shm.h"

/* Returns the key of the n-th message between two members. Sender and receiver each compute their own and the
 * other's key. */
static uint64_t key_of(bool send, int peer, uint64_t n) {
    return 1 | (uint64_t)send << 1 | (uint64_t)peer << 2 | n << TG_MAIL_NUMBER;
}

static uint64_t state_of(const tg_mail *m) { return atomic_load_explicit(&m->state, memory_order_acquire); }
static int phase(uint64_t state) { return (int)(state & 3); }

static tg_mail *free_mail(tg_shm_group *s) {
    tg_mail *box = tg_group_mails(s->g, s->control.rank);
    if (s->boxed == TG_MAILS) return NULL;
    for (int i = 0; i < TG_MAILS; i++) {
        tg_mail *m = &box[(s->mails + (uint64_t)i) % TG_MAILS];
        if (phase(state_of(m)) == TG_MAIL_FREE) return m;
    }
    return NULL;
}

/* Counts messages that found no slot. Peers see the count and keep waiting for this rank to move them. */
static void count_unposted(tg_shm_request *r, bool waits) {
    r->unposted = waits;
    tg_member *own = tg_group_member(r->s->g, r->s->control.rank);
    atomic_fetch_add_explicit(&own->unposted, waits ? 1 : -1, memory_order_acq_rel);
}

/* Posts the half in a message slot if one is free. */
static bool put(tg_shm_request *r) {
    tg_shm_group *s = r->s;
    if (r->mail || r->moved) return r->mail;
    tg_mail *m = free_mail(s);
    if (!m) return false;
    s->mails++;
    s->boxed++;
    atomic_store_explicit(&m->data, r->data, memory_order_relaxed);
    atomic_store_explicit(&m->count, r->note.count, memory_order_relaxed);
    atomic_store_explicit(&m->site, r->note.site, memory_order_relaxed);
    atomic_store_explicit(&m->dtype, r->note.dtype, memory_order_relaxed);
    r->mail = m;
    uint64_t was = atomic_load_explicit(&m->state, memory_order_relaxed);
    atomic_store_explicit(&m->state, (was & ~(uint64_t)3) + 4 + TG_MAIL_POSTED, memory_order_release);
    atomic_store_explicit(&m->key, r->key, memory_order_release);
    atomic_fetch_add_explicit(&tg_group_member(s->g, s->control.rank)->posts, 1, memory_order_release);
    if (r->unposted) count_unposted(r, false);
    tg_shm_ring(s);
    return true;
}

void tg_shm_post_mail(tg_shm_group *s, const tg_transfer *t, tg_shm_request *r) {
    bool send = t->kind == TG_SEND;
    uint64_t n = s->pairs[2 * t->root + send]++;
    const void *data = send ? t->src : t->dst;
    r->data = data ? (tg_shared)((uintptr_t)data - s->self->view.base) : 0;
    r->key = key_of(send, t->root, n);
    r->match = key_of(!send, s->control.rank, n);
    if (!put(r)) count_unposted(r, true);
}

/* Finds the other half of the message. Its key identifies the message and is never used again. If the state is
 * unchanged after the key is read, the key belongs to that use of the slot. */
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

/* The same for repeated calls, as many messages may wait at a time: skips the search unless the peer has posted
 * since. */
static tg_mail *new_half(tg_shm_request *r, uint64_t *state) {
    const tg_member *peer = tg_group_member(r->s->g, r->peer);
    uint64_t posts = atomic_load_explicit(&peer->posts, memory_order_acquire);
    if (posts == r->missed) return NULL;
    tg_mail *m = other_half(r, state);
    if (!m) r->missed = posts;
    return m;
}

/* What the rank that moves a message knows of one half. mail is NULL if the half found no slot. */
typedef struct half {
    tg_mail *mail;
    tg_shared data;
    int64_t count;
    uint64_t site;
    uint8_t dtype;
} half;

/* If take() then finds that the slot is in another use, the copy is discarded. */
static half half_of(tg_mail *m) {
    return (half){.mail = m,
                  .data = atomic_load_explicit(&m->data, memory_order_relaxed),
                  .count = atomic_load_explicit(&m->count, memory_order_relaxed),
                  .site = atomic_load_explicit(&m->site, memory_order_relaxed),
                  .dtype = atomic_load_explicit(&m->dtype, memory_order_relaxed)};
}

static half own_half(const tg_shm_request *r) {
    return (half){r->mail, r->data, r->note.count, r->note.site, r->note.dtype};
}

static tg_note half_note(const tg_shm_group *s, const half *h, bool send, int peer) {
    return (tg_note){.kind = send ? TG_SEND : TG_RECV,
                     .dtype = h->dtype,
                     .root = peer,
                     .size = s->control.size,
                     .count = h->count,
                     .site = h->site};
}

static void mail_mismatch(const tg_shm_request *r, const half *own, const half *other) {
    tg_shm_group *s = r->s;
    bool sends = r->kind == TG_SEND;
    tg_note mine = half_note(s, own, sends, r->peer), theirs = half_note(s, other, !sends, s->control.rank);
    tg_shm_mismatch(s, s->control.rank, r->peer, &mine, &theirs);
}

/* The state of the receiver's half decides which rank moves the message. No other rank can see a half that is in no
 * slot. */
static bool take(tg_mail *recv, uint64_t state) {
    return !recv || (phase(state) == TG_MAIL_POSTED && atomic_compare_exchange_strong_explicit(
                                                           &recv->state, &state, state - TG_MAIL_POSTED + TG_MAIL_TAKEN,
                                                           memory_order_acq_rel, memory_order_relaxed));
}

static void delivered(tg_mail *m) {
    if (!m) return;
    uint64_t was = atomic_load_explicit(&m->state, memory_order_relaxed);
    atomic_store_explicit(&m->state, (was & ~(uint64_t)3) + TG_MAIL_DONE, memory_order_release);
}

static bool move(tg_shm_request *r, tg_mail *found, uint64_t mine, uint64_t theirs) {
    const tg_vantage *v = &r->s->self->view;
    bool sends = r->kind == TG_SEND;
    half own = own_half(r), other = half_of(found), *send = sends ? &own : &other, *recv = sends ? &other : &own;
    if (!take(recv->mail, sends ? theirs : mine)) return false;
    if (send->count != recv->count || send->dtype != recv->dtype) {
        mail_mismatch(r, &own, &other);
        return false;
    }
    size_t bytes = (size_t)send->count * tg_dtype_size(send->dtype);
    if (bytes && recv->data && send->data) memcpy(tg_at(v, recv->data), tg_at(v, send->data), bytes);
    r->moved = true;
    if (r->unposted) count_unposted(r, false);
    delivered(send->mail);
    delivered(recv->mail);
    return true;
}

bool tg_shm_try_mail(tg_shm_request *r) {
    tg_shm_group *s = r->s;
    uint64_t mine = put(r) ? state_of(r->mail) : TG_MAIL_POSTED, theirs;
    if (tg_shm_mail_done(r)) return true;
    if (phase(mine) != TG_MAIL_POSTED) return false;
    tg_mail *other = new_half(r, &theirs);
    if (!other || !tg_shm_enter(s)) return false;
    bool moved = move(r, other, mine, theirs);
    tg_shm_exit(s);
    if (moved) tg_shm_ring(s);
    return moved;
}

bool tg_shm_mail_done(const tg_shm_request *r) {
    return r->mail ? phase(state_of(r->mail)) == TG_MAIL_DONE : r->moved;
}

/* Returns true if our half is no longer waiting, if the peer's half is posted, or if it may be among those that the
 * peer has not posted. */
bool tg_shm_mail_answered(const tg_shm_request *r) {
    uint64_t state;
    const tg_member *peer = tg_group_member(r->s->g, r->peer);
    if (atomic_load_explicit(&peer->unposted, memory_order_acquire)) return true;
    return r->moved || (r->mail && phase(state_of(r->mail)) != TG_MAIL_POSTED) || other_half(r, &state);
}

void tg_shm_end_mail(tg_shm_request *r) {
    if (!r->mail) return;
    r->s->boxed--;
    uint64_t was = atomic_load_explicit(&r->mail->state, memory_order_relaxed);
    atomic_store_explicit(&r->mail->key, 0, memory_order_relaxed);
    atomic_store_explicit(&r->mail->state, was & ~(uint64_t)3, memory_order_release);
}
