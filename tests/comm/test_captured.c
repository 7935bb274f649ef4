/* Captured steps with collectives, on ranks over NCCL. */
#include "comm/worlds.h"

#include <tapegrad/capture.h>
#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/optim.h>
#include <tapegrad/ops.h>

#include "core/context.h"
#include "kernels/scalar.h"

enum { N = 300 };

typedef struct step {
    tg_comm *world, *pair; /* pair: NULL in small worlds */
    tg_tape *t;
    tg_tensor *x, *sum, *both, *out; /* static */
    int calls;                       /* number of calls, which may differ between ranks if a test wants that */
    bool meets;
} step;

static tg_status put(tg_tensor *to, tg_tensor *from) {
    const double none[2] = {0, 0};
    tg_ctx *ctx = tg_ctx_of(to);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    tg_array out = tg_array_of(to), in = tg_array_of(from);
    return tg_ctx_ops(ctx)->apply(ctx, TG_FN_id, out, &in, 1, none, false);
}

/* out = the sum over all ranks of 2 x, plus that of x over the pair; a product runs in parallel with the first sum. */
static tg_status step_of(void *state, tg_ctx *ctx) {
    step *s = state;
    for (int i = 0; i < s->calls; i++) tg_comm_all_reduce(s->world, s->sum, tg_scale(s->t, s->x, 2), TG_REDUCE_SUM);
    tg_tensor *product = tg_square(s->t, s->x);
    if (s->pair) tg_comm_all_reduce(s->pair, s->both, s->x, TG_REDUCE_SUM);
    if (s->meets) tg_comm_barrier(s->world);
    tg_tensor *y = tg_add(s->t, tg_add(s->t, tg_tape_input(s->t, s->sum), tg_tape_input(s->t, s->both)), product);
    put(s->out, y);
    tg_tape_reset(s->t);
    return tg_ctx_status(ctx);
}

static tg_status open_step(step *s, tg_ctx *ctx, tg_comm *world) {
    *s = (step){.world = world, .t = tg_tape_new(ctx), .calls = 1};
    if (tg_comm_size(world) == 4) s->pair = tg_comm_split(world, tg_comm_rank(world) / 2, 0, "pair", TG_MAX_AXES);
    s->x = tg_zeros(ctx, TG_F32, TG_SHAPE(N));
    s->sum = tg_zeros(ctx, TG_F32, TG_SHAPE(N));
    s->both = tg_zeros(ctx, TG_F32, TG_SHAPE(N));
    s->out = tg_zeros(ctx, TG_F32, TG_SHAPE(N));
    return tg_ctx_status(ctx);
}

static void close_step(step *s) {
    tg_comm_free(s->pair);
    tg_tape_free(s->t);
}

static float value(int rank, int round, int i) { return (float)(rank + 1) * 0.25f + (float)(round * 3 + i % 7); }

static void feed(step *s, int round) {
    float x[N];
    for (int i = 0; i < N; i++) x[i] = value(tg_comm_rank(s->world), round, i);
    tg_write(s->x, x, sizeof x);
}

static tg_status check_out(step *s, int round) {
    tg_ctx *ctx = tg_tape_ctx(s->t);
    int me = tg_comm_rank(s->world);
    float out[N];
    tg_read(s->out, out, sizeof out);
    EXPECT(ctx, tg_ctx_status(ctx) == TG_OK);
    for (int i = 0; i < N; i++) {
        float want = value(me, round, i) * value(me, round, i);
        for (int r = 0; r < tg_comm_size(s->world); r++) {
            want += 2 * value(r, round, i);
            if (s->pair && r / 2 == me / 2) want += value(r, round, i);
        }
        EXPECT(ctx, out[i] == want);
    }
    return TG_OK;
}

static tg_status replays(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    step s;
    tg_comm_info before = TG_COMM_INFO(), after = TG_COMM_INFO();
    tg_graph_info info = TG_GRAPH_INFO();
    static _Thread_local char text[1 << 16];
    (void)arg, (void)end;
    if (open_step(&s, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    feed(&s, 0);
    step_of(&s, ctx);
    if (check_out(&s, 0) != TG_OK) return tg_ctx_status(ctx);
    tg_comm_query(world, &before);
    feed(&s, 1);
    tg_graph *g = tg_graph_new(ctx, step_of, &s);
    EXPECT(ctx, check_out(&s, 1) == TG_OK);
    for (int round = 2; round < 12; round++) {
        feed(&s, round);
        if (round % 5 == 0)
            step_of(&s, ctx); /* a called step between replays */
        else
            tg_graph_replay(g);
        EXPECT(ctx, check_out(&s, round) == TG_OK);
    }
    tg_comm_query(world, &after);
    int64_t calls = s.pair ? 2 : 1, ranks = tg_comm_size(world);
    EXPECT(ctx, after.calls[TG_ALL_REDUCE] - before.calls[TG_ALL_REDUCE] == (ranks > 1 ? 11 * calls : 0));
    EXPECT(ctx, after.bytes[TG_ALL_REDUCE] - before.bytes[TG_ALL_REDUCE] == (ranks > 1 ? 11 * calls * 4 * N : 0));
    tg_graph_query(g, &info);
    EXPECT(ctx, info.collectives == (ranks > 1 ? calls : 0) && info.steps == 9);
    size_t n = tg_comm_record(world, TG_TEXT, text, sizeof text);
    const char *replay = strstr(text, " replay of 1 collective");
    EXPECT(ctx, n < sizeof text && !replay == (ranks == 1));
    EXPECT(ctx, !replay || strstr(replay, "#0 all_reduce f32[300] sum"));
    EXPECT(ctx, !s.pair || (strstr(text, "    0  world#0 all_reduce") && strstr(text, "    0  pair#0 all_reduce")));
    n = tg_comm_record(world, TG_JSON, text, sizeof text);
    EXPECT(ctx, n < sizeof text && !strstr(text, "\"kind\": \"replay\"") == (ranks == 1));
    tg_graph_free(g);
    close_step(&s);
    return tg_ctx_status(ctx);
}

START_TEST(replays_are_steps_of_all_ranks) {
    for (int kind = 0; kind < WORLD_KINDS; kind++)
        for (int n = 1; n <= 4; n *= 2) expect_world((world_kind)kind, n, replays, NULL);
}
END_TEST

/* Rank 1 replays another step. */
static tg_status other_steps(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    step s;
    float out[N];
    (void)arg, (void)end;
    if (open_step(&s, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    tg_graph *one = tg_graph_new(ctx, step_of, &s);
    s.calls = 2;
    tg_graph *two = tg_graph_new(ctx, step_of, &s);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx); /* another rank is ahead */
    for (int i = 0; i < 2; i++) { /* the data of the first may arrive before its comparison is checked */
        tg_graph_replay(tg_comm_rank(world) == 1 ? two : one);
        tg_read(s.out, out, sizeof out);
    }
    tg_status status = tg_ctx_status(ctx);
    close_step(&s);
    return status;
}

/* Rank 1 calls its step instead of replaying it. */
static tg_status one_calls(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    step s;
    float out[N];
    (void)arg, (void)end;
    if (open_step(&s, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    tg_graph *g = tg_graph_new(ctx, step_of, &s);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx); /* another rank is ahead */
    for (int i = 0; i < 2; i++) {
        if (tg_comm_rank(world) == 1)
            step_of(&s, ctx);
        else
            tg_graph_replay(g);
        tg_read(s.out, out, sizeof out);
    }
    tg_status status = tg_ctx_status(ctx);
    close_step(&s);
    return status;
}

static tg_status fails(void *state, tg_ctx *ctx) {
    step_of(state, ctx);
    return tg_ctx_fail(ctx, TG_ERR_IO, "no more of this");
}

/* Rank 1 fails while it captures; the others get an error in their first replay. */
static tg_status one_fails(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    step s;
    float out[N];
    (void)arg, (void)end;
    if (open_step(&s, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    tg_graph_new(ctx, tg_comm_rank(world) == 1 ? fails : step_of, &s);
    tg_read(s.out, out, sizeof out);
    tg_status status = tg_ctx_status(ctx);
    close_step(&s);
    return status;
}

static tg_status barrier(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    step s;
    (void)arg, (void)end;
    if (open_step(&s, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    s.meets = true;
    tg_graph_new(ctx, step_of, &s);
    tg_status status = tg_ctx_status(ctx);
    close_step(&s);
    return status;
}

static tg_status group_ends(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    step s;
    (void)arg, (void)end;
    if (open_step(&s, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    tg_comm *all = tg_comm_split(world, 0, tg_comm_rank(world), "all", TG_MAX_AXES);
    s.world = all;
    tg_graph *g = tg_graph_new(ctx, step_of, &s);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx); /* another rank is ahead */
    tg_comm_free(all);
    tg_graph_replay(g);
    tg_status status = tg_ctx_status(ctx);
    close_step(&s);
    return status;
}

static void ck_ends(int n, world_fn fn, tg_status status, const char *says, tg_status other) {
    for (int kind = 0; kind < WORLD_KINDS; kind++) {
        const world_end *end = run_world((world_kind)kind, n, fn, NULL, NULL);
        bool said = false;
        for (int r = 0; r < n; r++) {
            ck_assert_msg(end->ended[r] && (end->status[r] == status || end->status[r] == other),
                          "rank %d of %d %s: %s: %s", r, n, world_names[kind], tg_status_name(end->status[r]),
                          end->message[r]);
            said |= strstr(end->message[r], says) != NULL;
        }
        ck_assert_msg(said, "%s", end->message[0]);
    }
}

START_TEST(ranks_that_disagree_are_reported) {
    ck_ends(2, other_steps, TG_ERR_MISMATCH, "replay(2 collectives", TG_ERR_MISMATCH);
    ck_ends(4, other_steps, TG_ERR_MISMATCH, "replay(1 collective", TG_ERR_REMOTE);
    ck_ends(2, one_calls, TG_ERR_MISMATCH, "all_reduce(f32, 300 elements", TG_ERR_MISMATCH);
    ck_ends(2, one_fails, TG_ERR_IO, "no more of this", TG_ERR_REMOTE);
}
END_TEST

/* ---- Messages between two ranks ---- */

/* Rank 0 sends, and rank 1 receives. */
typedef struct messages {
    tg_comm *pair;
    tg_tensor *x[2]; /* of N and of N / 2 elements */
    int n, size;     /* how many messages, and of which x */
} messages;

static tg_status step_of_messages(void *state, tg_ctx *ctx) {
    const messages *m = state;
    for (int i = 0; i < m->n; i++)
        if (tg_comm_rank(m->pair) == 0)
            tg_comm_send(m->pair, m->x[m->size], 1);
        else
            tg_comm_recv(m->pair, m->x[m->size], 0);
    return tg_ctx_status(ctx);
}

static tg_status open_messages(messages *m, tg_ctx *ctx, tg_comm *world) {
    int me = tg_comm_rank(world);
    *m = (messages){.pair = tg_comm_split(world, me / 2, me, "edge", TG_MAX_AXES), .n = 1};
    for (int i = 0; i < 2; i++) m->x[i] = tg_uniform(ctx, TG_F32, TG_SHAPE(N >> i), me, me + 1);
    return tg_ctx_status(ctx);
}

static tg_status replays_of_messages(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    messages m;
    tg_graph_info info = TG_GRAPH_INFO();
    float x[N];
    (void)arg, (void)end;
    if (open_messages(&m, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    m.n = 3;
    tg_graph *g = tg_graph_new(ctx, step_of_messages, &m);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) x[i] = value(tg_comm_rank(world) / 2, round, i);
        if (tg_comm_rank(m.pair) == 0) tg_write(m.x[0], x, sizeof x);
        tg_graph_replay(g);
        float got[N];
        tg_read(m.x[0], got, sizeof got);
        EXPECT(ctx, !memcmp(got, x, sizeof x));
    }
    tg_graph_query(g, &info);
    EXPECT(ctx, info.collectives == 3 && info.steps == 4);
    tg_graph_free(g);
    tg_comm_free(m.pair);
    return tg_ctx_status(ctx);
}

START_TEST(messages_are_replayed) {
    for (int n = 2; n <= 4; n *= 2) expect_world(THREADS, n, replays_of_messages, NULL);
}
END_TEST

/* Each rank sends, and then receives. */
static tg_status step_of_exchange(void *state, tg_ctx *ctx) {
    const messages *m = state;
    int other = 1 - tg_comm_rank(m->pair);
    tg_comm_batch_open(m->pair);
    tg_comm_send(m->pair, m->x[0], other);
    tg_comm_recv(m->pair, m->x[1], other);
    tg_comm_batch_close(m->pair);
    return tg_ctx_status(ctx);
}

static tg_status replays_of_an_exchange(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    messages m;
    float x[N], got[N];
    (void)arg, (void)end;
    if (open_messages(&m, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    m.x[1] = tg_zeros(ctx, TG_F32, TG_SHAPE(N));
    tg_graph *g = tg_graph_new(ctx, step_of_exchange, &m);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) x[i] = value(tg_comm_rank(world), round, i);
        tg_write(m.x[0], x, sizeof x);
        tg_graph_replay(g);
        tg_read(m.x[1], got, sizeof got);
        EXPECT(ctx, tg_ctx_status(ctx) == TG_OK);
        for (int i = 0; i < N; i++) EXPECT(ctx, got[i] == value(tg_comm_rank(world) ^ 1, round, i));
    }
    tg_graph_free(g);
    tg_comm_free(m.pair);
    return tg_ctx_status(ctx);
}

START_TEST(two_ranks_that_send_to_each_other_are_replayed) {
    for (int n = 2; n <= 4; n *= 2) expect_world(THREADS, n, replays_of_an_exchange, NULL);
}
END_TEST

/* Rank 1 replays a step with more messages, or with shorter ones, than rank 0. */
static tg_status other_messages(tg_ctx *ctx, tg_comm *world, int n, int size) {
    messages m;
    float x[N];
    if (open_messages(&m, ctx, world) != TG_OK) return tg_ctx_status(ctx);
    tg_graph *one = tg_graph_new(ctx, step_of_messages, &m);
    m.n = n;
    m.size = size;
    tg_graph *two = tg_graph_new(ctx, step_of_messages, &m);
    for (int i = 0; i < 2; i++) {
        tg_graph_replay(tg_comm_rank(world) == 1 ? two : one);
        tg_read(m.x[0], x, sizeof x);
    }
    tg_status status = tg_ctx_status(ctx);
    tg_comm_free(m.pair);
    return status;
}

static tg_status more_messages(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    return (void)arg, (void)end, other_messages(ctx, world, 2, 0);
}

static tg_status shorter_messages(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    return (void)arg, (void)end, other_messages(ctx, world, 1, 1);
}

START_TEST(a_rank_with_other_messages_is_reported) {
    ck_ends(2, more_messages, TG_ERR_MISMATCH, "replay(2 collectives", TG_ERR_MISMATCH);
    ck_ends(2, shorter_messages, TG_ERR_MISMATCH, "replay(1 collective,", TG_ERR_MISMATCH);
}
END_TEST

/* ---- Data-parallel ranks ---- */

enum { WIDE = 6, HIGH = 5 };

/* How a step is made: whether w2's gradient is in a bucket or left for tg_grads_finalize to sum; whether the
 * optimizer's state is divided; how many ranks, the first ones, lack w2's gradient; and whether steps are captured. */
typedef struct variant {
    int bucketed, zero, lacking;
    bool captured;
    float result[4][2][WIDE * WIDE]; /* the parameters of each rank after the last step */
} variant;

typedef struct shares {
    tg_parallel *p;
    tg_flat *b;
    tg_tape *t;
    tg_optim *o;
    tg_tensor *w1, *w2, *x, *tokens; /* x [HIGH, WIDE] */
    bool lacks;                      /* this rank has no gradient of w2 */
} shares;

/* The ranges of the last step are gathered while this one begins. */
static tg_status step_of_shares(void *state, tg_ctx *ctx) {
    shares *s = state;
    tg_flat_gather(s->b);
    tg_tensor *y = tg_linear(s->t, s->x, s->w1, NULL);
    if (!s->lacks) y = tg_linear(s->t, tg_tanh(s->t, y), s->w2, NULL);
    tg_backward(s->t, tg_sum(s->t, tg_square(s->t, y), TG_ALL_DIMS, false));
    tg_tape_reset(s->t);
    tg_tensor *params[] = {s->w1, s->w2};
    tg_grads_finalize(s->p, params, 2, TG_FINALIZE(.tokens = s->tokens));
    tg_optim_step(s->o);
    tg_optim_zero_grad(s->o);
    return tg_ctx_status(ctx);
}

static tg_status open_shares(shares *s, tg_ctx *ctx, tg_comm *world, const variant *v) {
    double rows = HIGH;
    *s = (shares){.p = tg_parallel_new(world, NULL), .t = tg_tape_new(ctx)};
    s->w1 = tg_param_new(ctx, "w1", TG_F32, TG_SHAPE(WIDE, WIDE), 0.5);
    s->w2 = tg_param_new(ctx, "w2", TG_F32, TG_SHAPE(WIDE, WIDE), 0.5);
    s->x = tg_zeros(ctx, TG_F32, TG_SHAPE(HIGH, WIDE));
    s->tokens = tg_zeros(ctx, TG_F64, TG_SHAPE());
    s->lacks = tg_comm_rank(world) < v->lacking;
    tg_tensor *params[] = {s->w1, s->w2}, *const *leaves;
    for (int i = 0; i < 2; i++) tg_place(s->p, params[i], TG_DP, TG_R);
    tg_write_f64(s->tokens, &rows, 1);
    s->b = tg_flat_new(s->p, params, v->bucketed, TG_FLAT(.zero = v->zero));
    tg_flat_leaves(s->b, &leaves);
    for (int i = 0; i < v->bucketed; i++) params[i] = leaves[i];
    s->o = tg_adamw_new(ctx, params, 2, TG_ADAMW(.lr = 0.01, .weight_decay = 0.1));
    tg_optim_set_clip(s->o, 0.5);
    return tg_ctx_status(ctx);
}

static void close_shares(shares *s) {
    tg_optim_free(s->o);
    tg_flat_free(s->b);
    tg_tape_free(s->t);
    tg_parallel_free(s->p);
}

static void feed_shares(shares *s, int me, int round) {
    float x[HIGH * WIDE];
    for (int i = 0; i < HIGH * WIDE; i++) x[i] = value(me, round, i) / 16;
    tg_write(s->x, x, sizeof x);
}

/* Makes some steps: the first one by a call, the others by calls too or by replays. */
static tg_status steps_of_shares(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    enum { ROUNDS = 6 };
    variant *v = arg;
    shares s;
    tg_graph *g = NULL;
    (void)end;
    if (open_shares(&s, ctx, world, v) != TG_OK) return tg_ctx_status(ctx);
    int me = tg_comm_rank(world);
    for (int round = 0; round < ROUNDS; round++) {
        feed_shares(&s, me, round);
        if (!v->captured || !round)
            step_of_shares(&s, ctx);
        else if (g)
            tg_graph_replay(g);
        else
            g = tg_graph_new(ctx, step_of_shares, &s);
        EXPECT(ctx, tg_ctx_status(ctx) == TG_OK);
    }
    tg_flat_gather(s.b);
    tg_read(s.w1, v->result[me][0], sizeof v->result[me][0]);
    tg_read(s.w2, v->result[me][1], sizeof v->result[me][1]);
    tg_graph_free(g);
    close_shares(&s);
    return tg_ctx_status(ctx);
}

static void compare_replays(variant v, int n) {
    static variant replayed;
    replayed = v;
    replayed.captured = true;
    expect_world(THREADS, n, steps_of_shares, &v);
    expect_world(THREADS, n, steps_of_shares, &replayed);
    ck_assert_msg(!memcmp(v.result, replayed.result, sizeof v.result),
                  "%d ranks, %d in buckets, zero %d, %d ranks lack a gradient", n, v.bucketed, v.zero, v.lacking);
    for (int r = 1; r < n; r++) ck_assert(!memcmp(v.result[0], v.result[r], sizeof v.result[0]));
}

START_TEST(data_parallel_steps_are_replayed) {
    for (int n = 2; n <= 4; n *= 2)
        for (int bucketed = 1; bucketed <= 2; bucketed++)
            for (int zero = 0; zero < 3; zero++) compare_replays((variant){.bucketed = bucketed, .zero = zero}, n);
}
END_TEST

/* Which ranks have a gradient is found on the device, so that the host need not know. */
START_TEST(steps_of_ranks_that_lack_a_gradient_are_replayed) {
    for (int lacking = 1; lacking <= 2; lacking++)
        for (int bucketed = 1; bucketed <= 2; bucketed++)
            for (int zero = 0; zero < 3; zero++)
                compare_replays((variant){.bucketed = bucketed, .zero = zero, .lacking = lacking}, 2);
}
END_TEST

/* Check mode compares nothing within a recorded step, because the host cannot read there. */
START_TEST(steps_are_captured_in_check_mode) {
    static variant v;
    v = (variant){.bucketed = 1, .captured = true};
    const world_end *end =
        run_world(THREADS, 2, steps_of_shares, &v, TG_CONFIG(.threads = 1, .deadline = 60, .check = true));
    for (int i = 0; i < 2; i++)
        ck_assert_msg(end->status[i] == TG_OK, "rank %d: %s: %s", i, tg_status_name(end->status[i]), end->message[i]);
}
END_TEST

static tg_status divided_parameters(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    variant v = {.bucketed = 2, .zero = 3};
    shares s;
    (void)arg, (void)end;
    if (open_shares(&s, ctx, world, &v) != TG_OK) return tg_ctx_status(ctx);
    tg_graph_new(ctx, step_of_shares, &s);
    tg_status status = tg_ctx_status(ctx);
    close_shares(&s);
    return status;
}

START_TEST(calls_that_cannot_be_replayed_are_refused) {
    ck_ends(2, barrier, TG_ERR_UNSUPPORTED, "barrier: the step that tg_graph_new records waits", TG_ERR_REMOTE);
    ck_ends(2, divided_parameters, TG_ERR_UNSUPPORTED, "gathers parameters that are divided (zero 3", TG_ERR_REMOTE);
    ck_ends(2, group_ends, TG_ERR_ABORTED, "a communicator of the step has ended", TG_ERR_REMOTE);
}
END_TEST

int main(void) {
    const TTest *tests[] = {replays_are_steps_of_all_ranks, ranks_that_disagree_are_reported,
                            messages_are_replayed, two_ranks_that_send_to_each_other_are_replayed,
                            a_rank_with_other_messages_is_reported,
                            data_parallel_steps_are_replayed, steps_of_ranks_that_lack_a_gradient_are_replayed,
                            steps_are_captured_in_check_mode, calls_that_cannot_be_replayed_are_refused};
    return tg_check_main("replays", tests, sizeof tests / sizeof *tests);
}
