/* Deadlocks: ranks that wait for each other in different calls, so that none of them ever makes the call that another
 * waits for. A comparison of signatures (signature.h) cannot detect this, because it compares only ranks that have
 * arrived at the same call. The transports over shared memory and over messages each have a detector (deadlock.c in
 * their folders); the error is made here. */
#include "base/text.h"
#include "comm/protocol.h"

/* Quotes the lower rank first, so that every rank that finds the deadlock writes the same text. Claims both groups
 * before it publishes the reason in either: otherwise a member of the group that ends first could fail, and end the
 * other group for a different reason. */
void tg_control_deadlock(tg_control *mine, const tg_wait *w, const tg_blocked *own, tg_control *other,
                         const tg_wait *w_other, const tg_blocked *peer) {
    const tg_blocked *first = own->rank < peer->rank ? own : peer, *second = first == own ? peer : own;
    char text[TG_FAILURE_TEXT];
    size_t at = 0;
    tg_text(text, sizeof text, &at,
            "the ranks disagree about what comes next, and wait for each other: in group \"%s\" %s, in group \"%s\" %s",
            first->group, first->call, second->group, second->call);
    bool other_is_ours = other->ops->claim(other), mine_is_ours = mine->ops->claim(mine);
    if (mine_is_ours) mine->ops->publish(mine, w, TG_ERR_MISMATCH, -1, text);
    if (other_is_ours) other->ops->publish(other, w_other, TG_ERR_MISMATCH, -1, text);
}
