/* tapegrad-bench-exposed [GBIT [ROUNDS]]: measures the exposed communication of data parallelism, the share of a step
 * that a rank spends waiting for others. Two ranks run steps of GPT-2 124M, with an optimizer whose state is whole
 * (zero 0) or divided (zero 1), over a link of GBIT gigabits a second, 10 by default. Each collective is waited for as
 * soon as it is started, or when its result is read, as in the library.
 *
 * The link is simulated: the transport between threads moves the bytes, and a call is not done before the time that a
 * ring takes to send them. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tapegrad/extend.h>

#include "bench.h"
#include "comm/comm.h"
#include "teams.h"

typedef enum way { AT_ONCE, WHEN_READ, WAYS } way;
static const char *const way_names[WAYS] = {"without overlap", "with overlap"};

/* A call of the wrapped transport, and when its bytes have crossed the link. */
typedef struct late_call {
    void *request; /* of the wrapped transport; NULL: it was done at once */
    double due;
    struct late_call *next; /* among the free ones */
} late_call;

/* The link of a rank: calls cross it one after the other. */
typedef struct slow_link {
    const tg_comm_ops *wrapped;
    tg_comm_ops ops;
    late_call *free;
    way way;
    double until, waited; /* until: when the calls that were started so far have crossed it */
} slow_link;

static _Thread_local slow_link mine;
static double bytes_per_second;
/* Of each round: seconds that rank 0 has waited. */
static double waits[TEAM_ROUNDS];

/* Returns the bytes that a ring of two ranks sends from each for a call. */
static double sent_bytes(const tg_transfer *t) {
    double part = (double)t->count * (double)tg_dtype_bits(t->dtype) / 8;
    switch (t->kind) {
    case TG_ALL_REDUCE:
        return part; /* half of it twice; count is the whole */
    case TG_ALL_GATHER:
    case TG_REDUCE_SCATTER:
        return part; /* the part of one rank */
    default:
        return 0;
    }
}

static late_call *call_new(void) {
    late_call *x = mine.free;
    if (x)
        mine.free = x->next;
    else if (!(x = malloc(sizeof *x)))
        abort();
    *x = (late_call){.request = NULL};
    return x;
}

static void wait_until(double when) {
    for (double left = when - seconds_now(); left > 0; left = when - seconds_now())
        nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * (left < 0.5 ? left : 0.5))}, NULL);
}

static tg_status wait_for(tg_ctx *ctx, void *state, void *request) {
    late_call *x = request;
    double begun = seconds_now();
    tg_status s = x->request ? mine.wrapped->wait(ctx, state, x->request) : TG_OK;
    if (s == TG_OK) wait_until(x->due);
    mine.waited += seconds_now() - begun;
    return s;
}

static tg_status start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    double now = seconds_now();
    late_call *x = call_new();
    mine.until = (mine.until > now ? mine.until : now) + sent_bytes(t) / bytes_per_second;
    x->due = mine.until;
    *request = x;
    tg_status s = mine.wrapped->start(ctx, state, t, &x->request);
    return s == TG_OK && mine.way == AT_ONCE ? wait_for(ctx, state, x) : s;
}

static bool test(tg_ctx *ctx, void *state, void *request) {
    const late_call *x = request;
    return (!x->request || mine.wrapped->test(ctx, state, x->request)) && x->due <= seconds_now();
}

static void drop(tg_ctx *ctx, void *state, void *request) {
    late_call *x = request;
    if (x->request) mine.wrapped->drop(ctx, state, x->request);
    x->next = mine.free;
    mine.free = x;
}

static tg_status poll_for(tg_ctx *ctx, void *state, void *request, double waited) {
    const late_call *x = request;
    return mine.wrapped->poll(ctx, state, x ? x->request : NULL, waited);
}

static void open(tg_comm *world) {
    mine = (slow_link){.wrapped = world->ops, .ops = *world->ops};
    mine.ops.start = start;
    mine.ops.test = test;
    mine.ops.wait = wait_for;
    mine.ops.drop = drop;
    mine.ops.poll = poll_for;
    world->ops = &mine.ops;
}

static void before(tg_comm *world, int round) {
    (void)world;
    mine.way = (way)(round % WAYS);
    mine.waited = 0;
}

static void after(tg_comm *world, int round) {
    if (tg_comm_rank(world) == 0) waits[round] = mine.waited;
}

static void close_(tg_comm *world) {
    world->ops = mine.wrapped;
    for (late_call *x = mine.free, *next; x; x = next) {
        next = x->next;
        free(x);
    }
}

static void report(const team *t, int rounds, int warm) {
    for (int w = 0; w < WAYS; w++) {
        double ms[TEAM_ROUNDS], share[TEAM_ROUNDS];
        for (int i = 0; i < rounds; i++) {
            int round = warm + i * WAYS + w;
            ms[i] = t->ms[round];
            share[i] = 1e3 * waits[round] / ms[i];
        }
        printf("  %-8s %-18s %8.1f ms   %5.1f %% of it waiting\n", t->name, way_names[w], median(ms, rounds),
               100 * median(share, rounds));
    }
}

int main(int argc, char **argv) {
    static team teams[] = {{.name = "zero 0",
                            .ranks = 2,
                            .threads = 1,
                            .tp = 1,
                            .open = open,
                            .before = before,
                            .after = after,
                            .close = close_},
                           {.name = "zero 1",
                            .ranks = 2,
                            .threads = 1,
                            .tp = 1,
                            .zero = 1,
                            .open = open,
                            .before = before,
                            .after = after,
                            .close = close_}};
    enum { TEAMS = sizeof teams / sizeof *teams, WARM = WAYS };
    double gbit = argc > 1 ? atof(argv[1]) : 10;
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    if (!(gbit > 0)) gbit = 10;
    if (rounds < 1 || rounds > (TEAM_ROUNDS - 2) / WAYS - 1) rounds = 7;
    bytes_per_second = gbit / 8 * 1e9;
    printf("GPT-2 124M step, float32, AdamW, %d sequences of %d tokens a rank, 2 ranks that are threads, a link of %g "
           "Gbit/s, medians of %d rounds in alternation:\n",
           TEAM_BATCH, TEAM_LENGTH, gbit, rounds);
    for (int i = 0; i < TEAMS; i++) {
        bool good = team_start(&teams[i]);
        for (int r = 0; r < WARM + WAYS * rounds && good; r++) good = team_play(&teams[i], r);
        team_end(&teams[i]);
        if (!good) return 1;
        report(&teams[i], rounds, WARM);
    }
    return 0;
}
