/* Random streams in sharded state: which rank resumes with which state, and which mismatches are refused. */
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/io.h>
#include <tapegrad/checkpoint.h>
#include <tapegrad/parallel.h>

#include "core/context.h"
#include "on_ranks.h"

static void remove_state(const char *dir) {
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert(system(command) == 0);
}

enum { DRAWN = 77, STEP = 12 };

/* Sets the streams as rank r of tp leaves them, or as a new run with another seed has them. */
static void seed_streams(tg_ctx *ctx, int tp_rank, int rank, bool used) {
    tg_rng own = {.seed = 100 + (uint64_t)tp_rank, .stream = used, .counter = used ? 10 * (uint64_t)rank + 5 : 1};
    tg_rng_set(ctx, NULL, &(tg_rng){.seed = used ? 9 : 8, .counter = used ? DRAWN : 0});
    tg_rng_add(ctx, "own", own.seed);
    tg_rng_set(ctx, "own", &own);
}

typedef struct draws {
    int tp;
    const char *from, *to;
    uint64_t seed[8], counter[8]; /* state of "own" by rank, after loading */
} draws;

static tg_status streams(void *arg, tg_ctx *ctx, tg_comm *world) {
    const draws *j = arg;
    int rank = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp));
    tg_shards *s = tg_shards_new(p);
    tg_rng all, own;
    tg_shards_add_rng(s);
    seed_streams(ctx, tg_parallel_rank(p, TG_TP), rank, j->to);
    tg_draws_step(ctx, j->to ? STEP : 1);
    if (j->to) tg_shards_save(s, j->to);
    tg_rng_fork(ctx, "own"); /* loading must work whichever stream is current */
    if (j->from) tg_shards_load(s, j->from);
    tg_rng_join(ctx);
    tg_rng_get(ctx, NULL, &all);
    tg_rng_get(ctx, "own", &own);
    if (j->from) {
        EXPECT(ctx, all.seed == 9 && all.counter == DRAWN && ctx->keys.step == STEP);
        EXPECT(ctx, own.seed == j->seed[rank] && own.counter == j->counter[rank]);
    }
    tg_rng_remove(ctx, "own");
    tg_shards_free(s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Each position continues with its own state; with another number of tp ranks, after all of them. */
START_TEST(streams_go_on_where_they_were) {
    char dir[] = "/tmp/tapegrad-streams-XXXXXX";
    ck_assert(mkdtemp(dir) != NULL);
    on_ranks(4, streams, &(draws){.tp = 2, .to = dir});
    on_ranks(4, streams, &(draws){2, dir, NULL, {100, 101, 100, 101}, {5, 15, 25, 35}});
    on_ranks(2, streams, &(draws){2, dir, NULL, {100, 101}, {5, 15}});
    on_ranks(8, streams,
             &(draws){2, dir, NULL, {100, 101, 100, 101, 100, 101, 100, 101}, {5, 15, 25, 35, 5, 15, 5, 15}});
    on_ranks(1, streams, &(draws){1, dir, NULL, {100}, {35}});
    on_ranks(4, streams, &(draws){4, dir, NULL, {100, 101, 102, 103}, {35, 35, 35, 35}});
    remove_state(dir);
}
END_TEST

/* The default stream of each stage of Megatron's, whose seed is that of the stage. */
static tg_status stages(void *arg, tg_ctx *ctx, tg_comm *world) {
    const draws *j = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = j->tp, .rng = TG_RNG_MEGATRON));
    uint64_t stage = (uint64_t)tg_parallel_rank(p, TG_PP);
    tg_shards *s = tg_shards_new(p);
    tg_rng all;
    tg_shards_add_rng(s);
    RUN(tg_rng_seed_parallel(p, 50 + 100 * stage));
    RUN(tg_rng_set(ctx, NULL, &(tg_rng){.seed = 50 + 100 * stage, .counter = j->to ? 7 + stage : 0}));
    if (j->to) tg_shards_save(s, j->to);
    if (j->from) {
        RUN(tg_shards_load(s, j->from));
        RUN(tg_rng_get(ctx, NULL, &all));
        EXPECT(ctx, all.seed == 50 + 100 * stage && all.counter == j->counter[stage]);
    }
    tg_shards_free(s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(stages_go_on_with_their_seeds) {
    char dir[] = "/tmp/tapegrad-streams-XXXXXX";
    ck_assert(mkdtemp(dir) != NULL);
    on_ranks(4, stages, &(draws){.tp = 2, .to = dir});
    on_ranks(4, stages, &(draws){2, dir, NULL, {0}, {7, 8}});
    on_ranks(2, stages, &(draws){2, dir, NULL, {0}, {7, 8}});
    on_ranks(4, stages, &(draws){4, dir, NULL, {0}, {8, 8, 8, 8}}); /* other stages: after all that was drawn */
    on_ranks(1, stages, &(draws){1, dir, NULL, {0}, {8}});
    remove_state(dir);
    char one[] = "/tmp/tapegrad-streams-XXXXXX", two[] = "/tmp/tapegrad-streams-XXXXXX";
    ck_assert(mkdtemp(one) != NULL && mkdtemp(two) != NULL);
    on_ranks(1, stages, &(draws){.tp = 1, .to = one});
    on_ranks(2, stages, &(draws){2, one, NULL, {0}, {7, 7}});
    on_ranks(2, stages, &(draws){2, one, two, {0}, {7, 8}}); /* stage 1 has drawn more than was saved */
    remove_state(one);
    remove_state(two);
}
END_TEST

/* Streams in a file of an earlier version, and the message, for a context of one rank with the stream "own". */
START_TEST(streams_must_fit) {
    static const char fine[] = "9 0 77", own[] = "1 1 1 1 0 0 0 0 100 1 5";
    static const struct { const char *all, *key, *text, *said; } rows[] = {
        {fine, "rng/own", own, NULL},
        {NULL, "rng/own", own, "stream '(default)' is missing"},
        {"9 0", "rng/own", own, "stream '(default)' is malformed"},
        {"9 0 77 1", "rng/own", own, "stream '(default)' is malformed"},
        {"9 0 -77", "rng/own", own, "stream '(default)' is malformed"},
        {fine, "rng/other", own, "stream 'own' is missing"},
        {fine, "rng/own", "1 1 1", "stream 'own' is malformed"},
        {fine, "rng/own", "1 1 1 1", "stream 'own' is malformed"},
        {fine, "rng/own", "1 1 1 1 0 0 0 0 100 1", "stream 'own' is malformed"},
        {fine, "rng/own", "1 1 1 1 0 0 0 0 100 1 5x", "stream 'own' is malformed"},
    };
    char dir[] = "/tmp/tapegrad-streams-XXXXXX", path[300];
    ck_assert(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/state-00000.safetensors", dir);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *self = tg_comm_self_new(ctx);
    tg_parallel *p = tg_parallel_new(self, NULL);
    tg_shards *s = tg_shards_new(p);
    seed_streams(ctx, 0, 0, false);
    ck_assert(tg_shards_add_rng(s) == TG_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tg_rng got;
        tg_metadata m[5] = {{"format", "tapegrad-state-1"}, {"files", "1"}, {"save", "0"}, {rows[i].key, rows[i].text}};
        if (rows[i].all) m[4] = (tg_metadata){"rng", rows[i].all};
        ck_assert(tg_safetensors_save(ctx, path, NULL, 0, m, rows[i].all ? 5 : 4) == TG_OK);
        tg_rng_set(ctx, "own", &(tg_rng){.seed = 100, .counter = 1});
        tg_status status = tg_shards_load(s, dir);
        ck_assert_msg(status == (rows[i].said ? TG_ERR_FORMAT : TG_OK), "row %zu: %s", i, tg_ctx_message(ctx));
        if (rows[i].said) ck_assert_msg(strstr(tg_ctx_message(ctx), rows[i].said), "%s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        tg_rng_get(ctx, "own", &got);
        ck_assert_uint_eq(got.counter, rows[i].said ? 1 : 5);
    }
    for (int i = 0; i < 2; i++) { /* the step, well-formed and not */
        const tg_metadata m[] = {{"format", "tapegrad-state-1"}, {"files", "1"}, {"save", "0"}, {"rng", fine},
                                 {"rng/own", own}, {"rng.step", i ? "4294967296x" : "4294967296"}};
        ck_assert(tg_safetensors_save(ctx, path, NULL, 0, m, 6) == TG_OK);
        ck_assert_int_eq(tg_shards_load(s, dir), i ? TG_ERR_FORMAT : TG_OK);
        ck_assert(!i || strstr(tg_ctx_message(ctx), "the step of the random draws is malformed"));
        tg_ctx_clear(ctx);
        ck_assert_uint_eq(ctx->keys.step, UINT64_C(1) << 32);
    }
    tg_rng_remove(ctx, "own");
    const tg_metadata good[] = {
        {"format", "tapegrad-state-1"}, {"files", "1"}, {"save", "0"}, {"rng", fine}, {"rng/own", own}};
    ck_assert(tg_safetensors_save(ctx, path, NULL, 0, good, 5) == TG_OK);
    ck_assert(tg_shards_load(s, dir) == TG_ERR_FORMAT &&
              strstr(tg_ctx_message(ctx), "that this context does not have"));
    tg_ctx_clear(ctx);
    tg_shards_free(s);
    tg_parallel_free(p);
    tg_comm_free(self);
    tg_ctx_free(ctx);
    remove_state(dir);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {streams_go_on_where_they_were, stages_go_on_with_their_seeds, streams_must_fit};
    return tg_check_main("shards_rng", tests, sizeof tests / sizeof *tests);
}
