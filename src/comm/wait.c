/* Waiting for a call. A rank that waits makes progress, and after a while checks whether its peers can still arrive. */
#include "base/os.h"
#include "comm/protocol.h"

tg_status tg_control_check_layer(tg_control *c) {
    const char *broken = c->ops->broken ? c->ops->broken(c) : NULL;
    return broken ? tg_fail(c->ctx, TG_ERR_ABORTED,
                            "the message layer \"%s\" has failed before; create a new communicator", broken)
                  : TG_OK;
}

/* If the group has ended (ended) or its message layer has failed, records that error and returns its status. */
static tg_status check_group(tg_control *c, bool ended, bool arrived) {
    if (ended) {
        if (c->mover->quiesce) c->mover->quiesce(c);
        return tg_control_failed(c, arrived);
    }
    return tg_control_check_layer(c);
}

static void check_peers(tg_control *c, tg_wait *w) {
    if (w->since == 0) {
        w->since = tg_system_now();
        c->ops->begin_checks(c, w);
    }
    tg_control_check_peers(c, w);
}

/* A peer may end the group right after this rank's call is done. The call has then succeeded. So whether the group has
 * ended is read first, and only then whether the call is done. */
tg_status tg_control_wait(tg_control *c, void *request, void *place, uint64_t sequence) {
    tg_wait w = {.request = request, .place = place, .sequence = sequence};
    tg_status s = TG_OK;
    if (c->mover->done(c, &w)) return TG_OK;
    for (int round = 0;; round++) {
        if (c->ops->prepare) c->ops->prepare(c, round);
        c->mover->advance(c);
        tg_ctx_idle(c->ctx);
        bool ended = c->ops->ended(c, &w);
        if (c->mover->done(c, &w) || (s = check_group(c, ended, request != NULL)) != TG_OK) break;
        if (round >= c->patience) check_peers(c, &w);
        c->ops->pause(c, &w, round);
    }
    c->ops->end_wait(c, &w);
    return s;
}

/* Reads the two states in the same order as tg_control_wait. */
tg_status tg_control_poll(tg_control *c, void *request, double waited) {
    tg_wait w = {.request = request, .since = tg_system_now() - waited};
    bool over = waited < 0;
    if (!over) {
        c->mover->advance(c);
        tg_ctx_idle(c->ctx);
    }
    bool ended = c->ops->ended(c, request ? &w : NULL);
    if (over || (request && c->mover->done(c, &w))) w.request = NULL;
    if (request && !w.request) ended = c->ops->ended(c, NULL);
    if (!ended) {
        c->ops->begin_poll(c, w.request ? &w : NULL);
        if (w.request)
            tg_control_check_peers(c, &w);
        else if (c->ops->check)
            c->ops->check(c, NULL);
    }
    tg_status s = over ? TG_OK : check_group(c, ended, true);
    if (s != TG_OK && w.request) c->ops->end_wait(c, &w);
    return s;
}
