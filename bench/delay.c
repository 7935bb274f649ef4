/* A transport whose messages arrive late (delay.h). */
#include "delay.h"

#include <stdlib.h>

#include "bench.h"
#include "comm/comm.h"
#include "comm/shm/shm.h"

/* A call that was started. */
typedef struct call {
    tg_transfer transfer; /* of a receive that has not been started in the wrapped transport */
    void *request;        /* of the wrapped transport; NULL: not started yet */
    delay_wire *wire;     /* NULL: the call is no message, and is not delayed */
    uint64_t number;      /* of the message on its wire */
    bool receives;
    struct call *next; /* among the free ones */
} call;

typedef struct delay {
    const tg_comm_ops *wrapped;
    tg_comm_ops ops;
    delay_wire *wire;
    double hop, waited;
    bool at_need;
    call *free;
} delay;

static _Thread_local delay mine; /* of this rank */

/* ---- Wires ---- */

/* Returns the wire of a group, which both of its ranks know by one address. */
static delay_wire *wire_of(const tg_shm_group *s) {
    for (int i = 0; i < DELAY_WIRES; i++) {
        const void *group = NULL;
        if (atomic_compare_exchange_strong(&mine.wire[i].group, &group, s->g) || group == s->g) return &mine.wire[i];
    }
    abort(); /* the bench has more groups of two ranks than wires */
}

static _Atomic double *start_of(const call *x, bool send) {
    return &x->wire->started[send][x->number % DELAY_MESSAGES];
}

/* Returns when the message arrives. Both of its ranks have started it. */
static double arrival(const call *x) {
    double sent = atomic_load(start_of(x, true)), posted = atomic_load(start_of(x, false));
    return (sent > posted ? sent : posted) + mine.hop;
}

static void wait_until(double when) {
    const double least = 2e-4; /* shorter times pass in the loop: a sleep takes longer than it is asked to */
    for (double left = when - seconds_now(); left > 0; left = when - seconds_now())
        if (left > least) nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * (left - least) / 2)}, NULL);
}

/* ---- Slots ---- */

static call *call_new(void) {
    call *x = mine.free;
    if (x)
        mine.free = x->next;
    else if (!(x = malloc(sizeof *x)))
        abort();
    *x = (call){.request = NULL};
    return x;
}

static void call_free(call *x) {
    x->next = mine.free;
    mine.free = x;
}

/* Starts the call in the wrapped transport. */
static tg_status begin(tg_ctx *ctx, void *state, call *x, const tg_transfer *t) {
    if (x->wire) atomic_store(start_of(x, !x->receives), seconds_now());
    return mine.wrapped->start(ctx, state, t, &x->request);
}

static tg_status start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    call *x = call_new();
    bool send = t->kind == TG_SEND, late = t->kind == TG_RECV && mine.at_need;
    x->receives = t->kind == TG_RECV;
    if (send || x->receives) {
        x->wire = wire_of(state);
        x->number = x->wire->count[send]++;
    }
    if (late) x->transfer = *t;
    tg_status s = late ? TG_OK : begin(ctx, state, x, t);
    *request = x->request || late ? x : NULL;
    if (!*request) call_free(x);
    return s;
}

static bool test(tg_ctx *ctx, void *state, void *request) {
    const call *x = request;
    return x->request && mine.wrapped->test(ctx, state, x->request) && (!x->wire || arrival(x) <= seconds_now());
}

static tg_status wait_for(tg_ctx *ctx, void *state, void *request) {
    call *x = request;
    double begun = seconds_now();
    tg_status s = x->request ? TG_OK : begin(ctx, state, x, &x->transfer);
    if (s == TG_OK) s = mine.wrapped->wait(ctx, state, x->request);
    if (s == TG_OK && x->wire) wait_until(arrival(x));
    if (x->receives) mine.waited += seconds_now() - begun;
    return s;
}

static void drop(tg_ctx *ctx, void *state, void *request) {
    call *x = request;
    if (x->request) mine.wrapped->drop(ctx, state, x->request);
    call_free(x);
}

static tg_status poll_for(tg_ctx *ctx, void *state, void *request, double waited) {
    const call *x = request;
    return mine.wrapped->poll(ctx, state, x ? x->request : NULL, waited);
}

/* ---- Use ---- */

void delay_open(tg_comm *world, delay_wire *wire) {
    mine = (delay){.wrapped = world->ops, .ops = *world->ops, .wire = wire};
    mine.ops.start = start;
    mine.ops.test = test;
    mine.ops.wait = wait_for;
    mine.ops.drop = drop;
    mine.ops.poll = poll_for;
    world->ops = &mine.ops;
}

void delay_close(tg_comm *world) {
    world->ops = mine.wrapped;
    for (call *x = mine.free, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    mine.free = NULL;
}

void delay_set(double hop, bool at_need) {
    mine.hop = hop;
    mine.at_need = at_need;
}

double delay_waited(void) {
    double waited = mine.waited;
    mine.waited = 0;
    return waited;
}
