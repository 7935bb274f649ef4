/* Waits for a call, over a transport that stands for a peer of any timing. */
#include <tapegrad/context.h>

#include "check_main.h"
#include "comm/protocol.h"

/* The peer completes this rank's call and ends the group at once, just when this rank asks whether the group has
 * ended. */
typedef struct hasty_peer {
    tg_control control;
    bool done, ended;
} hasty_peer;

static hasty_peer *peer_of(tg_control *c) { return (hasty_peer *)c; }

static bool ended(tg_control *c, const tg_wait *w) {
    (void)w;
    peer_of(c)->done = true;
    return peer_of(c)->ended = true;
}

static bool done(tg_control *c, const tg_wait *w) { return (void)w, peer_of(c)->done; }
static void nothing(tg_control *c) { (void)c; }
static void nothing_for(tg_control *c, const tg_wait *w) { (void)c, (void)w; }

static void end_of(tg_control *c, tg_group_end *end, char *buf, size_t n) {
    (void)c;
    snprintf(buf, n, "the peer has gone");
    *end = (tg_group_end){TG_ERR_REMOTE, 1, 1, buf};
}

static const tg_control_ops ops = {.ended = ended, .end = end_of, .end_wait = nothing_for, .begin_poll = nothing_for};
static const tg_mover_ops mover = {.advance = nothing, .done = done};

static hasty_peer peer_new(tg_ctx *ctx, int *cause) {
    return (hasty_peer){.control = {.ops = &ops, .mover = &mover, .ctx = ctx, .name = "pair", .size = 2,
                                    .cause = cause, .patience = 1000}};
}

START_TEST(a_call_that_is_done_succeeds_though_the_group_has_ended_since) {
    int call, cause = -1;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    hasty_peer p = peer_new(ctx, &cause);
    ck_assert_msg(tg_control_wait(&p.control, &call, NULL, 0) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert(p.ended);
    tg_ctx_free(ctx);
}
END_TEST

/* A wait for a device asks about the group, not about the call. So it reports the end, but not as that of the call. */
START_TEST(a_poll_reports_the_end_of_the_group) {
    int call, cause = -1;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    hasty_peer p = peer_new(ctx, &cause);
    ck_assert_int_eq(tg_control_poll(&p.control, &call, 0), TG_ERR_REMOTE);
    ck_assert_str_eq(tg_ctx_message(ctx), "the peer has gone");
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_call_that_is_done_succeeds_though_the_group_has_ended_since,
        a_poll_reports_the_end_of_the_group,
    };
    return tg_check_main("waits", tests, TG_LEN(tests));
}
