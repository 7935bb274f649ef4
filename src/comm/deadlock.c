/* Ranks that wait for each other in different calls, so that none of them will ever make the other's: no comparison of
 * signatures can see that. Each transport has a detector of its own (its deadlock.c); the error is made here. */
#include "base/text.h"
#include "comm/protocol.h"

/* Both groups are claimed before one is published: a member of that one would fail, which would be another reason to
 * end the other one. */
void tg_control_deadlock(tg_control *mine, const tg_wait *w, tg_control *other, const tg_wait *w_other,
                         const char *const names[2], const char *first, const char *second) {
    char text[TG_FAILURE_TEXT];
    size_t at = 0;
    tg_text(text, sizeof text, &at,
            "the ranks disagree about what comes next, and wait for each other: in group \"%s\" %s, in group \"%s\" %s",
            names[0], first, names[1], second);
    bool other_is_ours = other->ops->claim(other), mine_is_ours = mine->ops->claim(mine);
    if (mine_is_ours) mine->ops->publish(mine, w, TG_ERR_MISMATCH, -1, text);
    if (other_is_ours) other->ops->publish(other, w_other, TG_ERR_MISMATCH, -1, text);
}
