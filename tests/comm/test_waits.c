/* Waits for a call, over a transport that stands for a peer of any timing; the reason that a rank gives when it leaves;
 * and how long a rank that waits puts up with an error of a peer. */
#include <tapegrad/context.h>

#include "comm/protocol.h"
#include "comm/worlds.h"

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

/* ---- The reason when this rank leaves ---- */

static char reason[2048];

static bool claim(tg_control *c) { return (void)c, true; }
static void no_cause(tg_control *c, const tg_wait *w, int i, tg_member_view *view) {
    (void)c, (void)w;
    *view = (tg_member_view){.rank = i, .cause = -1};
}
static void own_error(tg_control *c, int i, char *buf, size_t n) {
    (void)i;
    snprintf(buf, n, "%s", tg_ctx_message(c->ctx));
}
static void publish(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text) {
    (void)c, (void)w, (void)status, (void)culprit;
    snprintf(reason, sizeof reason, "%s", text);
}

static const tg_control_ops leaving = {.claim = claim, .member = no_cause, .error_of = own_error, .publish = publish};

/* Only an error that is gone is called a cleared one. */
START_TEST(a_rank_that_missed_a_call_gives_its_error) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_control c = {.ops = &leaving, .ctx = ctx, .name = "pair", .rank = 1, .size = 2};
    tg_control_abandon(&c, "it goes");
    ck_assert_str_eq(reason, "it goes");
    tg_ctx_fail(ctx, TG_ERR_IO, "no more of this");
    tg_ctx_skip(ctx);
    tg_control_abandon(&c, "it goes");
    ck_assert_str_eq(reason, "rank 1 failed: no more of this");
    tg_ctx_clear(ctx);
    tg_control_abandon(&c, "it goes");
    ck_assert_str_eq(reason, "rank 1 failed (and has cleared its error): ");
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Patience ---- */

/* Holds an error for so many seconds. Returns how many milliseconds it took. */
static uint64_t hold_error(tg_ctx *ctx, double seconds) {
    double since = seconds_now();
    tg_ctx_fail(ctx, TG_ERR_DATA, "an error that is no call of the group");
    sleep_for(seconds);
    tg_ctx_clear(ctx);
    return (uint64_t)((seconds_now() - since) * 1000);
}

/* Rank 1 makes the call, and then holds an error for a long time. Meanwhile rank 2, for which rank 0 waits, has two
 * errors, and clears each at once. word: milliseconds that this took. */
static tg_status errors_overlap(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int me = tg_comm_rank(c);
    tg_tensor *x = filled(ctx, 4, 1);
    if (me == 1) tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    if (me == 1) hold_error(ctx, 0.7);
    for (int i = 0; me == 2 && i < 2; i++) {
        sleep_for(0.2);
        uint64_t took = hold_error(ctx, 0.03);
        if (took > end->word[me]) end->word[me] = took;
    }
    if (me != 1) tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    const double *v = elements(x);
    EXPECT(ctx, v && v[3] == 3);
    return TG_OK;
}

START_TEST(errors_that_are_cleared_at_once_end_nothing) {
    for (int kind = 0; kind < WORLD_KINDS; kind++) {
        const world_end *end = run_world((world_kind)kind, 3, errors_overlap, NULL, NULL);
        for (int r = 0; r < 3 && end->word[2] < 90; r++)
            ck_assert_msg(end->status[r] == TG_OK, "%s: rank %d: %s", world_names[kind], r, end->message[r]);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_call_that_is_done_succeeds_though_the_group_has_ended_since,
        a_poll_reports_the_end_of_the_group,
        a_rank_that_missed_a_call_gives_its_error,
        errors_that_are_cleared_at_once_end_nothing,
    };
    return tg_check_main("waits", tests, TG_LEN(tests));
}
