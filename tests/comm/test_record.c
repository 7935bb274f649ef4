/* The flight record: its names as JSON, the number of a split, and what a rank is said to wait for. test_works.c has
 * the lists of calls. */
#include <jansson.h>
#include <tapegrad/transport.h>

#include "comm/worlds.h"
#include "core/work.h"

/* A group's name is cut to 15 bytes, here within a character. JSON must be valid UTF-8 all the same. */
static tg_status named(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    static _Thread_local char text[1 << 14];
    static const char eight[] = "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9";
    (void)arg, (void)end;
    tg_comm *g = tg_comm_split(c, 0, 0, eight, TG_MAX_AXES);
    tg_comm_barrier(g);
    size_t length = tg_comm_record(c, TG_JSON, text, sizeof text);
    json_t *j = json_loads(text, 0, NULL);
    EXPECT(ctx, length < sizeof text && j && strstr(text, "\xC3\xA9\\ufffd\""));
    json_decref(j);
    tg_comm_free(g);
    return tg_ctx_status(ctx);
}

START_TEST(a_name_that_is_cut_leaves_valid_json) {
    for (int kind = 0; kind < WORLD_KINDS; kind++) expect_world((world_kind)kind, 2, named, NULL);
}
END_TEST

/* Rank 0 polls, as while it waits for a device that depends on a call, until rank 1 has failed. From then on it waits
 * for no call. */
static tg_status polls(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    if (tg_comm_rank(c) == 1) return TG_ERR_IO;
    const _Atomic uint64_t *waiting = &c->recorder->rank_slot[c->recorder->me].waiting;
    tg_tensor *x = filled(ctx, 3, 1);
    tg_work *w = tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    EXPECT(ctx, w);
    const tg_comm_request *r = w->self;
    double began = seconds_now();
    bool waited = false;
    while (c->ops->poll(ctx, c->state, r->request, seconds_now() - began) == TG_OK) waited |= atomic_load(waiting) == 1;
    EXPECT(ctx, tg_ctx_status(ctx) == TG_ERR_REMOTE);
    tg_ctx_clear(ctx);
    EXPECT(ctx, waited && atomic_load(waiting) == 0);
    return TG_OK;
}

START_TEST(a_poll_that_fails_waits_no_longer) {
    const world_end *end = run_world(THREADS, 2, polls, NULL, NULL);
    ck_assert_msg(end->status[0] == TG_OK, "%s", end->message[0]);
}
END_TEST

/* A split is a collective over the communicator, too, and has a number, which errors and the record count alike. Rank 1
 * misses the barrier after the split. */
static tg_status numbered(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    static _Thread_local char text[1 << 14];
    (void)arg;
    int me = tg_comm_rank(c);
    tg_comm_barrier(c);
    tg_comm_free(tg_comm_split(c, me, 0, "own", TG_MAX_AXES));
    tg_comm_barrier(c);
    tg_comm_record(c, TG_TEXT, text, sizeof text);
    EXPECT(ctx, tg_ctx_status(ctx) == TG_OK && strstr(text, "world#1 barrier") && strstr(text, "world#3 barrier"));
    if (me == 1) sleep_past_others(end, me, 2);
    if (me == 1) return TG_OK;
    tg_comm_barrier(c);
    const char *message = tg_ctx_message(ctx);
    bool reported = strstr(message, "call 4 of group \"world\"") && strstr(message, "barrier(), call 3 of world");
    tg_ctx_clear(ctx);
    EXPECT(ctx, reported);
    return TG_OK;
}

START_TEST(a_split_has_a_number) {
    for (int kind = 0; kind < WORLD_KINDS; kind++) {
        const world_end *end = run_world((world_kind)kind, 2, numbered, NULL, TG_CONFIG(.threads = 1, .deadline = 1));
        for (int r = 0; r < 2; r++)
            ck_assert_msg(end->status[r] == TG_OK, "%s: rank %d: %s", world_names[kind], r, end->message[r]);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_name_that_is_cut_leaves_valid_json, a_poll_that_fails_waits_no_longer,
                                  a_split_has_a_number};
    return tg_check_main("record", tests, sizeof tests / sizeof *tests);
}
