/* Recovery: a group starts again with the members that still take part. Each member announces that it has joined the
 * recovery. When all members have joined, or the others can no longer join, or the deadline has passed, one member
 * proposes the list of members that have joined. The first such list is valid for all. */
#include "base/os.h"
#include "comm/protocol.h"

/* Returns the member whose list this rank waits for, because only the lowest member that has joined may propose one;
 * -1: this rank may propose one itself. */
static int awaited_proposer(tg_control *c) {
    for (int i = 0; c->ops->first_decides && i < c->rank; i++)
        if (c->ops->has_joined(c, i)) return i;
    return -1;
}

/* Returns whether this rank may propose the list now. late: the deadline has passed. */
static bool may_decide(tg_control *c, bool late) {
    for (int i = 0; !late && i < c->size; i++)
        if (c->ops->is_expected(c, i)) return false;
    return awaited_proposer(c) < 0;
}

/* Returns why member i is lost; NULL if it is not, or if it is this rank. */
static const char *lost(tg_control *c, int i) {
    return i != c->rank && c->ops->lost ? c->ops->lost(c, i) : NULL;
}

/* Proposes the members that have joined, without those that have been lost since. */
static void decide(tg_control *c) {
    bool *list = c->ops->own_list(c);
    for (int i = 0; i < c->size; i++) list[i] = c->ops->has_joined(c, i) && !lost(c, i);
    c->ops->propose(c);
}

/* Returns why the member that is to propose the list is lost; NULL if it is not, or if this rank may propose one. No
 * other member may take its place: some may have its list already, and there would be two groups. */
static const char *lost_proposer(tg_control *c) {
    int i = awaited_proposer(c);
    return i >= 0 ? lost(c, i) : NULL;
}

/* Joins the recovery and returns the valid list. Waits up to two deadlines: one until a member may propose a list, and
 * one until the list arrives. Returns NULL after that, or if that member is lost, or if the message layer has failed.
 */
static const bool *agree(tg_control *c) {
    double start = tg_system_now(), deadline = c->ctx->run.deadline;
    const bool *list;
    c->ops->join_recovery(c);
    for (int round = 0; !(list = c->ops->decided_list(c)); round++) {
        double waited = tg_system_now() - start;
        if (may_decide(c, waited > deadline)) {
            decide(c);
            continue;
        }
        if (waited > 2 * deadline || (c->ops->broken && c->ops->broken(c))) return NULL;
        bool without = lost_proposer(c);
        c->mover->advance(c); /* receives what a lost member has sent before */
        if (without && lost_proposer(c)) return c->ops->decided_list(c);
        c->ops->pause(c, NULL, round);
    }
    return list;
}

/* Reports that no list has come. Only another member's list can be missing (may_decide). */
static tg_status without_list(tg_control *c) {
    int proposer = awaited_proposer(c);
    const char *why = lost_proposer(c);
    tg_member_view view = {0};
    TG_TRY(tg_control_check_layer(c));
    if (proposer >= 0) c->ops->member(c, NULL, proposer, &view);
    if (why)
        return tg_fail(c->ctx, TG_ERR_REMOTE,
                       "tg_comm_recover: rank %d, which was to choose the members of the new group, has called it too, "
                       "but then %s%s; create a new communicator",
                       view.rank, *why ? "could not be reached any more: " : "its process has ended", why);
    return tg_fail(c->ctx, TG_ERR_TIMEOUT,
                   "tg_comm_recover: rank %d, which was to choose the members of the new group, has called it too, but "
                   "has not sent them within two deadlines of %g s; create a new communicator",
                   view.rank, c->ctx->run.deadline);
}

/* Lists the ranks of the world that form the next group. *mine: this rank's index; -1: it is not in the list. */
static void number(tg_control *c, const bool *list, int *ranks, int *n, int *mine) {
    *mine = -1;
    *n = 0;
    for (int i = 0; i < c->size; i++) {
        tg_member_view view = {0};
        if (!list[i]) continue;
        if (i == c->rank) *mine = *n;
        c->ops->member(c, NULL, i, &view);
        ranks[(*n)++] = view.rank;
    }
}

tg_status tg_control_regroup(tg_control *c, int *ranks, int *n, int *mine) {
    tg_control_abandon(c, "a rank has called tg_comm_recover");
    if (c->mover->quiesce) c->mover->quiesce(c);
    const bool *list = agree(c);
    if (!list) return without_list(c);
    number(c, list, ranks, n, mine);
    if (*mine >= 0) return TG_OK;
    return tg_fail(
        c->ctx, TG_ERR_ABORTED,
        "tg_comm_recover: the other ranks have recovered without this rank, which called it too late; create a new "
        "communicator");
}
