/* The message transport over a message layer in this file, which can delay messages of one rank to another. So
 * messages of different ranks arrive in orders that are rare elsewhere. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tapegrad/p2p.h>

#include "check_main.h"
#include "core/context.h"

enum { RANKS = 4, ROOM = 64 };

/* ---- The message layer ---- */

typedef struct letter {
    struct letter *next;
    int from, tag;
    size_t bytes;
    char data[];
} letter;

typedef struct wish {
    void *data, *token;
    size_t room;
    int from, tag;
} wish;

typedef struct wires {
    pthread_mutex_t lock;
    letter *box[RANKS];
    atomic_bool held; /* messages from holder to waiter are delayed */
    int holder, waiter;
} wires;

typedef struct line {
    wires *w;
    int me, n_wishes, n_sent;
    bool quiet; /* at the end */
    wish wishes[ROOM];
    void *sent[ROOM];
} line;

static int line_send(void *state, const void *data, size_t bytes, int to, int tag, void *token) {
    line *l = state;
    letter *m = malloc(sizeof *m + bytes);
    if (!m || l->n_sent == ROOM) return free(m), 1;
    *m = (letter){.from = l->me, .tag = tag, .bytes = bytes};
    memcpy(m->data, data, bytes);
    l->sent[l->n_sent++] = token;
    pthread_mutex_lock(&l->w->lock);
    letter **end = &l->w->box[to];
    while (*end) end = &(*end)->next;
    *end = m;
    pthread_mutex_unlock(&l->w->lock);
    return 0;
}

static int line_receive(void *state, void *data, size_t room, int from, int tag, void *token) {
    line *l = state;
    if (l->n_wishes == ROOM) return 1;
    l->wishes[l->n_wishes++] = (wish){data, token, room, from, tag};
    return 0;
}

/* Finds the first message for a receive; later ones of its sender stay queued after it. */
static letter *take(line *l, const wish *r, bool held) {
    wires *w = l->w;
    letter **at = &w->box[l->me], *m;
    while ((m = *at) && (m->tag != r->tag || (r->from >= 0 && m->from != r->from) || (held && m->from == w->holder)))
        at = &m->next;
    if (m) *at = m->next;
    return m;
}

static int deliver(line *l, tg_p2p_landed_fn landed) {
    bool held = l->me == l->w->waiter && atomic_load(&l->w->held);
    for (int i = 0; i < l->n_wishes; i++) {
        wish r = l->wishes[i];
        letter *m = take(l, &r, held);
        if (!m) continue;
        size_t n = m->bytes;
        if (n <= r.room) memcpy(r.data, m->data, n);
        free(m);
        if (n > r.room) return 2;
        memmove(&l->wishes[i], &l->wishes[i + 1], (size_t)(--l->n_wishes - i) * sizeof r);
        i--;
        landed(r.token, n);
    }
    return 0;
}

/* No message arrives meanwhile: it would match a later receive than the next one. */
static int line_poll(void *state, tg_p2p_landed_fn landed) {
    line *l = state;
    while (l->n_sent) landed(l->sent[--l->n_sent], 0);
    pthread_mutex_lock(&l->w->lock);
    int error = deliver(l, landed);
    pthread_mutex_unlock(&l->w->lock);
    return error;
}

static void line_explain(void *state, int error, char *buf, size_t n) {
    (void)state;
    snprintf(buf, n, error == 1 ? "no room" : "a letter is too long");
}

static void line_close(void *state, bool quiet, tg_p2p_landed_fn landed) {
    line *l = state;
    l->quiet = quiet;
    while (l->n_sent) landed(l->sent[--l->n_sent], 0);
    while (l->n_wishes) landed(l->wishes[--l->n_wishes].token, 0);
}

static const tg_p2p_ops line_ops = {.size = sizeof(tg_p2p_ops), .name = "letters", .send = line_send,
                                     .receive = line_receive, .poll = line_poll, .explain = line_explain,
                                     .close = line_close};

/* ---- Ranks ---- */

typedef struct rank_end {
    tg_status opened, status, after;
    char message[1024], later[1024]; /* after the first error, and at the end */
} rank_end;

typedef struct world {
    wires w;
    line lines[RANKS];
    rank_end end[RANKS];
    atomic_int started, left;
    bool late; /* rank 0 */
} world;

typedef struct rank_arg {
    world *all;
    int me;
} rank_arg;

/* Ranks 0 and 1 disagree about a message while the others wait at a barrier: rank 0 finds out and reports it to all. */
static void disagree(tg_ctx *ctx, tg_comm *c, int me) {
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(me ? 6 : 5));
    if (me > 1)
        tg_comm_barrier(c);
    else
        tg_work_wait(me ? tg_comm_send(c, x, 0) : tg_comm_recv(c, x, 1));
    tg_drop(x);
}

static tg_status begins_anew(tg_ctx *ctx, tg_comm *c) {
    tg_ctx_clear(ctx);
    if (tg_comm_recover(c) == TG_OK) tg_comm_barrier(c);
    return tg_ctx_status(ctx);
}

static void *one_rank(void *user) {
    rank_arg a = *(rank_arg *)user;
    world *all = a.all;
    rank_end *end = &all->end[a.me];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 60));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &all->lines[a.me], a.me, RANKS);
    end->opened = tg_comm_barrier(c);
    if (a.me == all->w.waiter) atomic_store(&all->w.held, true); /* its barrier is over */
    atomic_fetch_add(&all->started, 1);
    while (atomic_load(&all->started) < RANKS) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    disagree(ctx, c, a.me);
    end->status = tg_ctx_status(ctx);
    snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    if (a.me == all->w.waiter) atomic_store(&all->w.held, false);
    end->after = begins_anew(ctx, c);
    snprintf(end->later, sizeof end->later, "%s", tg_ctx_message(ctx));
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

static void run_ranks(world *all, void *(*rank)(void *)) {
    pthread_t thread[RANKS];
    rank_arg arg[RANKS];
    for (int r = 0; r < RANKS; r++) {
        all->lines[r] = (line){.w = &all->w, .me = r};
        arg[r] = (rank_arg){all, r};
        ck_assert_int_eq(pthread_create(&thread[r], NULL, rank, &arg[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < RANKS; r++)
        for (letter *m = all->w.box[r], *next; m; m = next) next = m->next, free(m);
}

/* Rank 3 is informed by rank 1 or 2, which have failed because of it, and never by rank 0. */
START_TEST(a_disagreement_is_one_for_all_in_whatever_order_they_hear) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER, .holder = 0, .waiter = 3}};
    run_ranks(&all, one_rank);
    for (int r = 0; r < RANKS; r++) {
        const rank_end *e = &all.end[r];
        ck_assert_int_eq(e->opened, TG_OK);
        ck_assert_msg(e->status == TG_ERR_MISMATCH, "rank %d: %s: %s", r, tg_status_name(e->status), e->message);
        ck_assert_str_eq(e->message, all.end[0].message);
        ck_assert_msg(strstr(e->message, "recv(f64, 5 elements, from 1)") &&
                          strstr(e->message, "send(f64, 6 elements, to 0)"),
                      "%s", e->message);
        ck_assert_msg(e->after == TG_OK, "rank %d: %s: %s", r, tg_status_name(e->after), e->later);
        ck_assert(all.lines[r].quiet);
    }
}
END_TEST

/* Rank 0 frees its communicator when the others have given it up. */
static void *leaves(void *user) {
    rank_arg a = *(rank_arg *)user;
    world *all = a.all;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 60));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &all->lines[a.me], a.me, RANKS);
    all->end[a.me].opened = tg_comm_barrier(c);
    if (all->late && a.me) ctx->run.deadline = 0.05;
    while (all->late && a.me == 0 && atomic_load(&all->left) < RANKS - 1)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    tg_comm_free(c);
    atomic_fetch_add(&all->left, 1);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(who_leaves_while_messages_may_still_come_says_so_to_the_layer) {
    for (int late = 0; late < 2; late++) {
        world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER}, .late = late};
        run_ranks(&all, leaves);
        for (int r = 0; r < RANKS; r++) {
            ck_assert_int_eq(all.end[r].opened, TG_OK);
            ck_assert_msg(all.lines[r].quiet == (!late || r == 0), "late %d: rank %d", late, r);
        }
    }
}
END_TEST

/* Rank 0 comes late; a rank that waits for it checks that it is alive. */
static void *comes_late(void *user) {
    rank_arg a = *(rank_arg *)user;
    rank_end *end = &a.all->end[a.me];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 60));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &a.all->lines[a.me], a.me, RANKS);
    tg_comm *pair = tg_comm_split(c, a.me / 2, 0, "pair", TG_MAX_AXES);
    if (a.me == 0) nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    end->opened = tg_comm_barrier(pair);
    end->after = tg_comm_barrier(c);
    snprintf(end->later, sizeof end->later, "%s", tg_ctx_message(ctx));
    tg_comm_free(pair);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(threads_of_one_node_meet_through_the_layer) {
    static const char *const nodes[] = {"1", "2"};
    for (int i = 0; i < 2; i++) {
        setenv("TG_MPI_NODES", nodes[i], 1);
        world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER}};
        run_ranks(&all, comes_late);
        for (int r = 0; r < RANKS; r++)
            ck_assert_msg(all.end[r].opened == TG_OK && all.end[r].after == TG_OK, "%s nodes: rank %d: %s", nodes[i], r,
                          all.end[r].later);
    }
    setenv("TG_MPI_NODES", "4", 1);
}
END_TEST

int main(void) {
    setenv("TG_MPI_NODES", "4", 1); /* a node for each rank */
    const TTest *tests[] = {a_disagreement_is_one_for_all_in_whatever_order_they_hear,
                            who_leaves_while_messages_may_still_come_says_so_to_the_layer,
                            threads_of_one_node_meet_through_the_layer};
    return tg_check_main("link", tests, sizeof tests / sizeof *tests);
}
