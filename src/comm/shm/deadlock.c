/* Deadlock detection: two ranks wait for each other in different calls, and neither will ever make the call that the
 * other waits for. A comparison of call signatures (signature.h) cannot detect this, because it compares only ranks
 * that have arrived at the same call.
 *
 * While a rank waits, the word `blocked` of its rank slot (flight_recorder.h) describes the call that it waits for.
 * The description is a single word, so that peers read it as a whole. Its upper 32 bits are the id of the group. For a
 * collective, the lower 32 bits are 1 + its number, modulo 2^31. For a send or receive, they are the flag MESSAGE, the
 * flag RECEIVES if it is a receive, the peer (PEER_BITS bits), and the number of the message (the lowest NUMBER_BITS
 * bits). */
#include "comm/shm/shm.h"

enum { RECEIVES = 1 << 30, PEER_BITS = 10, NUMBER_BITS = 20 };
static const uint32_t MESSAGE = 1u << 31;

static uint32_t number_bits(uint64_t n) { return (uint32_t)n & ((1u << NUMBER_BITS) - 1); }
static uint32_t call_bits(uint64_t n) { return (uint32_t)n & (MESSAGE - 1); }

uint64_t tg_shm_blocked_in(const tg_shm_request *r) {
    uint64_t call = call_bits(r->sequence + 1);
    if (tg_shm_is_message(r))
        call = MESSAGE | (r->kind == TG_RECV ? RECEIVES : 0) | (uint32_t)r->peer << NUMBER_BITS |
               number_bits(r->match >> TG_MESSAGE_NUMBER);
    return r->s->g->id << 32 | call;
}

/* Returns this rank's state of the group with this id; NULL: this rank is not a member. */
static tg_shm_group *group_of(const tg_shm_rank *self, uint64_t id) {
    tg_shm_group *s = self->group;
    while (s && (uint32_t)s->g->id != (uint32_t)id) s = s->sibling;
    return s;
}

/* Returns the number in the group of the rank with number `rank` in the world; -1: that rank is not a member. */
static int member_of(const tg_shm_group *s, int rank) {
    for (int i = 0; i < s->control.size; i++)
        if (tg_group_member(s->g, i)->rank == rank) return i;
    return -1;
}

/* Returns whether this rank has made its own part of the call that `rank` waits for, so that `rank` does not wait for
 * this rank. Numbers of calls are compared modulo 2^31, and numbers of messages modulo 2^NUMBER_BITS. */
static bool has_answered(const tg_shm_group *s, uint32_t call, int rank) {
    if (!(call & MESSAGE)) return call_bits(s->next - call) < 1u << 30; /* call - 1 is the number of the call */
    int peer = (int)(call >> NUMBER_BITS & ((1u << PEER_BITS) - 1)), from = member_of(s, rank);
    if (peer != s->control.rank || from < 0) return true;
    uint32_t mine = number_bits(s->pairs[2 * from + !!(call & RECEIVES)]);
    return number_bits(mine - number_bits(call)) - 1 < 1u << (NUMBER_BITS - 1);
}

/* Returns whether one of the two ranks waits for a call that the other has missed after an error. Then no deadlock is
 * reported, because the rank that waits will report the missed call. A rank that has read `blocked` also sees the
 * missed calls that were counted before `blocked` was written. */
static bool one_will_find_out(const tg_shm_group *s, int member, const tg_shm_group *other, int rank) {
    int there = member_of(other, rank);
    return tg_shm_has_missed_more(s, member, s->control.rank) ||
           (there >= 0 && tg_shm_has_missed_more(other, other->control.rank, there));
}

static void fail_both(tg_shm_group *s, tg_shm_group *other, int member, const tg_call_entry *mine,
                      const tg_call_entry *theirs) {
    char ours[TG_FAILURE_TEXT / 2], others[TG_FAILURE_TEXT / 2];
    size_t at = 0, to = 0;
    tg_quoted one, two;
    tg_shm_quote(s, s->control.rank, mine, &one);
    tg_shm_quote(s, member, theirs, &two);
    tg_quote(&one, ours, sizeof ours, &at);
    tg_quote(&two, others, sizeof others, &to);
    tg_blocked own = {one.rank, s->g->name, ours}, peer = {two.rank, other->g->name, others};
    tg_control_deadlock(&s->control, NULL, &own, &other->control, NULL, &peer);
}

/* Reads `blocked` in the member's rank slot twice: the other fields of the slot belong to the same call only if the
 * word has not changed. */
void tg_shm_check_deadlock(tg_control *c, const tg_wait *w, int member) {
    tg_shm_group *s = tg_shm_of(c);
    const tg_shm_request *r = w->request;
    const tg_rank_slot *rank_slot = tg_shm_rank_slot(s, member);
    int rank = tg_group_member(s->g, member)->rank;
    uint64_t blocked = atomic_load_explicit(&rank_slot->blocked, memory_order_acquire);
    tg_shm_group *other = blocked ? group_of(s->self, blocked >> 32) : NULL;
    tg_call_entry theirs;
    if (!other || !r || tg_shm_has_failed(other) || has_answered(other, (uint32_t)blocked, rank)) return;
    if (one_will_find_out(s, member, other, rank)) return;
    if (!tg_rank_slot_entry(rank_slot, atomic_load_explicit(&rank_slot->waiting, memory_order_acquire), &theirs))
        return;
    if (tg_shm_has_arrived(r, member)) return;
    if (atomic_load_explicit(&rank_slot->blocked, memory_order_acquire) != blocked) return;
    fail_both(s, other, member, &r->entry, &theirs);
}
