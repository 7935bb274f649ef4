/* Sends and receives. A send and its receive are the two halves of a message. Each rank posts its half in its own array
 * of message slots (tg_message_slot) if one is free. Once both halves are posted, the first of the two ranks that waits
 * moves the message. If one half has no slot, only its own rank can move the message. */
#include "comm/shm/shm.h"

/* Returns the key of a half: of the n-th send to `peer`, or of the n-th receive from it. Each rank computes the keys of
 * both halves of its messages. */
static uint64_t key_of(bool send, int peer, uint64_t n) {
    return 1 | (uint64_t)send << 1 | (uint64_t)peer << 2 | n << TG_MESSAGE_NUMBER;
}

static uint64_t state_of(const tg_message_slot *m) { return atomic_load_explicit(&m->state, memory_order_acquire); }
static int phase(uint64_t state) { return (int)(state & 3); }

/* Returns a free message slot of this rank; NULL: none. */
static tg_message_slot *free_slot(tg_shm_group *s) {
    tg_message_slot *slots = tg_group_message_slots(s->g, s->control.rank);
    if (s->slots_used == TG_MESSAGE_SLOTS) return NULL;
    for (int i = 0; i < TG_MESSAGE_SLOTS; i++) {
        tg_message_slot *m = &slots[(s->messages + (uint64_t)i) % TG_MESSAGE_SLOTS];
        if (phase(state_of(m)) == TG_MESSAGE_FREE) return m;
    }
    return NULL;
}

/* Counts the half as unposted if `waits` is true; otherwise removes it from the count. As long as the count is not 0,
 * peers do not report that this rank is missing. */
static void count_unposted(tg_shm_request *r, bool waits) {
    r->unposted = waits;
    tg_member *own = tg_group_member(r->s->g, r->s->control.rank);
    atomic_fetch_add_explicit(&own->unposted, waits ? 1 : -1, memory_order_acq_rel);
}

/* Posts the half in a message slot if one is free. Returns whether it is in a slot. */
static bool post_half(tg_shm_request *r) {
    tg_shm_group *s = r->s;
    if (r->message || r->moved) return r->message;
    tg_message_slot *m = free_slot(s);
    if (!m) return false;
    s->messages++;
    s->slots_used++;
    atomic_store_explicit(&m->data, r->data, memory_order_relaxed);
    atomic_store_explicit(&m->count, r->entry.count, memory_order_relaxed);
    atomic_store_explicit(&m->site, r->entry.site, memory_order_relaxed);
    atomic_store_explicit(&m->dtype, r->entry.dtype, memory_order_relaxed);
    r->message = m;
    uint64_t was = atomic_load_explicit(&m->state, memory_order_relaxed);
    atomic_store_explicit(&m->state, (was & ~(uint64_t)3) + 4 + TG_MESSAGE_POSTED, memory_order_release);
    atomic_store_explicit(&m->key, r->key, memory_order_release);
    atomic_fetch_add_explicit(&tg_group_member(s->g, s->control.rank)->posts, 1, memory_order_release);
    if (r->unposted) count_unposted(r, false);
    tg_shm_wake(s);
    return true;
}

void tg_shm_post_message(tg_shm_group *s, const tg_transfer *t, tg_shm_request *r) {
    bool send = t->kind == TG_SEND;
    uint64_t n = s->pairs[2 * t->root + send]++;
    const void *data = send ? t->src : t->dst;
    r->data = data ? (tg_shared)((uintptr_t)data - s->self->view.base) : 0;
    r->key = key_of(send, t->root, n);
    r->match = key_of(!send, s->control.rank, n);
    if (!post_half(r)) count_unposted(r, true);
}

/* Finds the peer's half of the message, and its state; NULL: it is not posted. A key is never used again. If the state
 * is unchanged after the key was read, the key belongs to that use of the slot. */
static tg_message_slot *other_half(const tg_shm_request *r, uint64_t *state) {
    tg_message_slot *slots = tg_group_message_slots(r->s->g, r->peer);
    for (int i = 0; i < TG_MESSAGE_SLOTS; i++) {
        *state = state_of(&slots[i]);
        if (phase(*state) == TG_MESSAGE_POSTED &&
            atomic_load_explicit(&slots[i].key, memory_order_acquire) == r->match && state_of(&slots[i]) == *state)
            return &slots[i];
    }
    return NULL;
}

/* Finds the peer's half as other_half does, but does not search if the peer has posted nothing since the last search. A
 * rank that waits calls this again and again, and many messages may be in flight. */
static tg_message_slot *new_half(tg_shm_request *r, uint64_t *state) {
    const tg_member *peer = tg_group_member(r->s->g, r->peer);
    uint64_t posts = atomic_load_explicit(&peer->posts, memory_order_acquire);
    if (posts == r->searched) return NULL;
    tg_message_slot *m = other_half(r, state);
    if (!m) r->searched = posts;
    return m;
}

/* What the rank that moves a message knows of one half. message is NULL if the half found no slot. */
typedef struct half {
    tg_message_slot *message;
    tg_shared data;
    int64_t count;
    uint64_t site;
    uint8_t dtype;
} half;

/* Reads one half. The slot may be reused meanwhile; claim_message() then finds another state, and the copy is
 * discarded. */
static half half_of(tg_message_slot *m) {
    return (half){.message = m,
                  .data = atomic_load_explicit(&m->data, memory_order_relaxed),
                  .count = atomic_load_explicit(&m->count, memory_order_relaxed),
                  .site = atomic_load_explicit(&m->site, memory_order_relaxed),
                  .dtype = atomic_load_explicit(&m->dtype, memory_order_relaxed)};
}

static half own_half(const tg_shm_request *r) {
    return (half){r->message, r->data, r->entry.count, r->entry.site, r->entry.dtype};
}

static tg_call_entry half_entry(const tg_shm_group *s, const half *h, bool send, int peer) {
    return (tg_call_entry){.kind = send ? TG_SEND : TG_RECV,
                           .dtype = h->dtype,
                           .root = peer,
                           .size = s->control.size,
                           .count = h->count,
                           .site = h->site};
}

static void message_mismatch(const tg_shm_request *r, const half *own, const half *other) {
    tg_shm_group *s = r->s;
    bool sends = r->kind == TG_SEND;
    tg_call_entry mine = half_entry(s, own, sends, r->peer), theirs = half_entry(s, other, !sends, s->control.rank);
    tg_shm_mismatch(s, s->control.rank, r->peer, &mine, &theirs);
}

/* Claims the message for this rank. The rank that changes the state of the receiver's half moves the message. If that
 * half is in no slot, only its own rank can see it, so no claim is needed. */
static bool claim_message(tg_message_slot *recv, uint64_t state) {
    return !recv ||
           (phase(state) == TG_MESSAGE_POSTED &&
            atomic_compare_exchange_strong_explicit(&recv->state, &state, state - TG_MESSAGE_POSTED + TG_MESSAGE_TAKEN,
                                                    memory_order_acq_rel, memory_order_relaxed));
}

/* Marks a half as done. m: its slot; NULL: it has none. */
static void set_done(tg_message_slot *m) {
    if (!m) return;
    uint64_t was = atomic_load_explicit(&m->state, memory_order_relaxed);
    atomic_store_explicit(&m->state, (was & ~(uint64_t)3) + TG_MESSAGE_DONE, memory_order_release);
}

/* Copies the message from the sender's memory to the receiver's. mine, theirs: the states of the two halves as they
 * were found. Returns false if the other rank moves the message, or if the halves disagree. */
static bool move_message(tg_shm_request *r, tg_message_slot *found, uint64_t mine, uint64_t theirs) {
    const tg_region_view *v = &r->s->self->view;
    bool sends = r->kind == TG_SEND;
    half own = own_half(r), other = half_of(found), *send = sends ? &own : &other, *recv = sends ? &other : &own;
    if (!claim_message(recv->message, sends ? theirs : mine)) return false;
    if (send->count != recv->count || send->dtype != recv->dtype) {
        message_mismatch(r, &own, &other);
        return false;
    }
    size_t bytes = (size_t)send->count * tg_dtype_size(send->dtype);
    if (bytes && recv->data && send->data) memcpy(tg_at(v, recv->data), tg_at(v, send->data), bytes);
    r->moved = true;
    if (r->unposted) count_unposted(r, false);
    set_done(send->message);
    set_done(recv->message);
    return true;
}

bool tg_shm_try_message(tg_shm_request *r) {
    tg_shm_group *s = r->s;
    uint64_t mine = post_half(r) ? state_of(r->message) : TG_MESSAGE_POSTED, theirs;
    if (tg_shm_message_done(r)) return true;
    if (phase(mine) != TG_MESSAGE_POSTED) return false;
    tg_message_slot *other = new_half(r, &theirs);
    if (!other || !tg_shm_enter(s)) return false;
    bool moved = move_message(r, other, mine, theirs);
    tg_shm_exit(s);
    if (moved) tg_shm_wake(s);
    return moved;
}

bool tg_shm_message_done(const tg_shm_request *r) {
    return r->message ? phase(state_of(r->message)) == TG_MESSAGE_DONE : r->moved;
}

/* Returns true if this rank's half has been claimed, if the peer's half is posted, or if it may be among the halves for
 * which the peer had no slot. */
bool tg_shm_message_answered(const tg_shm_request *r) {
    uint64_t state;
    const tg_member *peer = tg_group_member(r->s->g, r->peer);
    if (atomic_load_explicit(&peer->unposted, memory_order_acquire)) return true;
    return r->moved || (r->message && phase(state_of(r->message)) != TG_MESSAGE_POSTED) || other_half(r, &state);
}

void tg_shm_end_message(tg_shm_request *r) {
    if (!r->message) return;
    r->s->slots_used--;
    uint64_t was = atomic_load_explicit(&r->message->state, memory_order_relaxed);
    atomic_store_explicit(&r->message->key, 0, memory_order_relaxed);
    atomic_store_explicit(&r->message->state, was & ~(uint64_t)3, memory_order_release);
}
