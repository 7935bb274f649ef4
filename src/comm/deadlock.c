/* Deadlocks: ranks that wait for each other in different calls, so that none will ever make the other's call.
 * Comparing signatures cannot detect this. Each transport has its own detector (its deadlock.c); the error is made
 * here. */
#include "base/text.h"
#include "comm/protocol.h"

/* Claims both groups before publishing either: otherwise a member of the published group would fail and end the
 * other group for a different reason. */
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
