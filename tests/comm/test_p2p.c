/* The transport between nodes over the message layer of letters.h: disagreements that ranks hear of in different
 * orders, ranks that leave early, come late or end in the middle of a message, and nodes whose ranks are threads. */
#include <time.h>

#include "base/os.h"
#include "check_main.h"
#include "comm/letters.h"
#include "comm/p2p/message.h"
#include "core/context.h"

enum { RANKS = LETTER_RANKS };

/* ---- Ranks ---- */

typedef struct rank_end {
    tg_status opened, status, after;
    char message[1024], later[1024]; /* the second is that of `after` */
    bool inert; /* the communicator is inert, and the layer is closed */
    int size;   /* of the last group */
    double seconds;
} rank_end;

typedef struct world {
    wires w;
    line lines[RANKS];
    rank_end end[RANKS];
    atomic_int started, left, failed;
    atomic_bool interrupted; /* a rank waits in is_interrupted */
    bool late; /* rank 0 leaves late */
    int told; /* rank 0 ends in a recovery, after it has sent the list of members to so many ranks */
    int asked; /* number of messages of rank 0 about the call for which it then gets no memory */
    bool refuses; /* rank 0 gets no memory for messages */
} world;

typedef struct rank_arg {
    world *all;
    int me;
} rank_arg;

/* Ranks 0 and 1 disagree about a message while the others wait at a barrier. Rank 0 finds out and notifies all. */
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
    if (a.me == all->w.waiter) atomic_store(&all->w.held, true); /* its own barrier is over */
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
    wires_free(&all->w);
}

/* Rank 3 hears of it from rank 1 or 2, which have failed for it, and not from rank 0. */
START_TEST(all_ranks_report_a_disagreement_alike_in_any_order_of_messages) {
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

/* Interrupts the first rank that finds the deadlock, between its messages about the end of the first group, and those
 * about the end of the second, until the other ranks have failed. */
static void is_interrupted(line *l, const void *data, int tag) {
    world *all = (world *)((char *)l->w - offsetof(world, w));
    const tg_p2p_message *m = data;
    if (tag != 0 || m->kind != TG_P2P_FAIL || l->n_failures++ != RANKS - 1) return;
    if (atomic_exchange(&all->interrupted, true)) return;
    while (atomic_load(&all->failed) < RANKS - 1) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Rank 1 waits in group "one" for the others, which wait for it in the world. */
static void *is_deadlocked(void *user) {
    rank_arg a = *(rank_arg *)user;
    rank_end *end = &a.all->end[a.me];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 60));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &a.all->lines[a.me], a.me, RANKS);
    tg_comm *one = tg_comm_split(c, 0, 0, "one", TG_MAX_AXES);
    end->opened = tg_ctx_status(ctx);
    tg_comm_barrier(a.me == 1 ? one : c);
    end->status = tg_ctx_status(ctx);
    snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    atomic_fetch_add(&a.all->failed, 1);
    tg_comm_free(one);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(both_groups_of_a_deadlock_end_at_once) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER, .sends = is_interrupted}};
    run_ranks(&all, is_deadlocked);
    ck_assert(all.interrupted);
    for (int r = 0; r < RANKS; r++) {
        const rank_end *e = &all.end[r];
        ck_assert_int_eq(e->opened, TG_OK);
        ck_assert_msg(e->status == TG_ERR_MISMATCH, "rank %d: %s: %s", r, tg_status_name(e->status), e->message);
        ck_assert_msg(strstr(e->message, "in group \"one\" rank 1 called barrier()"), "%s", e->message);
    }
}
END_TEST

/* Rank 0 frees its communicator after the others have stopped waiting for it. */
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

START_TEST(a_rank_that_leaves_early_says_so_to_the_layer) {
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

/* Rank 0 comes late, so that the others check whether it is alive. */
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

/* The layer of every rank fails after the first barrier. */
static void *loses_the_layer(void *user) {
    rank_arg a = *(rank_arg *)user;
    rank_end *end = &a.all->end[a.me];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 60));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &a.all->lines[a.me], a.me, RANKS);
    end->opened = tg_comm_barrier(c);
    a.all->lines[a.me].cut = true;
    end->status = tg_comm_barrier(c);
    snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    end->after = begins_anew(ctx, c);
    snprintf(end->later, sizeof end->later, "%s", tg_ctx_message(ctx));
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(recovery_reports_a_layer_that_has_failed) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    run_ranks(&all, loses_the_layer);
    for (int r = 0; r < RANKS; r++) {
        const rank_end *end = &all.end[r];
        ck_assert_int_eq(end->opened, TG_OK);
        ck_assert_int_eq(end->status, TG_ERR_IO);
        ck_assert_msg(strstr(end->message, "letters: polling failed: the line is cut"), "rank %d: %s", r, end->message);
        ck_assert_int_eq(end->after, TG_ERR_ABORTED);
        ck_assert_msg(strstr(end->later, "the message layer \"letters\" has failed before"), "rank %d: %s", r,
                      end->later);
    }
}
END_TEST

/* The layer of every rank ends after the first barrier, as MPI does if the program finalizes it too early. */
static void *outlives_the_layer(void *user) {
    rank_arg a = *(rank_arg *)user;
    rank_end *end = &a.all->end[a.me];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 60));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &a.all->lines[a.me], a.me, RANKS);
    end->opened = tg_comm_barrier(c);
    a.all->lines[a.me].over = true;
    tg_comm_free(c);
    end->after = tg_ctx_status(ctx);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(a_layer_that_has_ended_is_only_closed) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    run_ranks(&all, outlives_the_layer);
    for (int r = 0; r < RANKS; r++) {
        ck_assert_int_eq(all.end[r].opened, TG_OK);
        ck_assert_int_eq(all.end[r].after, TG_OK);
        ck_assert_int_eq(all.lines[r].closed, 1);
        ck_assert_int_eq(all.lines[r].n_late, 0);
    }
}
END_TEST

/* Cuts the line of rank 1 when that rank arrives at its first collective, which is a part of tg_comm_p2p_new. */
static void cuts_one(line *l, const void *data, int tag) {
    const tg_p2p_message *m = data;
    if (l->me == 1 && tag == 0 && m->kind == TG_P2P_CALL) l->cut = true;
}

static void *opens(void *user) {
    rank_arg a = *(rank_arg *)user;
    rank_end *end = &a.all->end[a.me];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 0.5));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &a.all->lines[a.me], a.me, RANKS);
    end->opened = tg_ctx_status(ctx);
    snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    end->inert = tg_comm_size(c) == 1 && !*tg_comm_transport(c) && a.all->lines[a.me].closed == 1;
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(a_rank_that_fails_while_ranks_meet_leaves_no_communicator) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER, .sends = cuts_one}};
    run_ranks(&all, opens);
    for (int r = 0; r < RANKS; r++) {
        const rank_end *e = &all.end[r];
        ck_assert_msg(r == 1 ? e->opened == TG_ERR_IO : e->opened == TG_ERR_TIMEOUT || e->opened == TG_ERR_REMOTE,
                      "rank %d: %s: %s", r, tg_status_name(e->opened), e->message);
        ck_assert_msg(e->inert, "rank %d", r);
        ck_assert(all.lines[r].closed == 1 && !all.lines[r].quiet);
    }
}
END_TEST

/* Ends rank 0 in the recovery. */
static void is_ended(line *l, const void *data, int tag) {
    const world *all = (world *)((char *)l->w - offsetof(world, w));
    const tg_p2p_message *m = data;
    if (tag == 0 && m->kind == TG_P2P_DECIDE && l->n_failures++ == all->told) atomic_store(&l->w->ended[l->me], true);
}

static void *recovers_twice(void *user) {
    rank_arg a = *(rank_arg *)user;
    rank_end *end = &a.all->end[a.me];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 60));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &a.all->lines[a.me], a.me, RANKS);
    end->opened = tg_comm_barrier(c);
    end->status = tg_comm_recover(c);
    if (a.me && end->status == TG_OK) end->status = tg_comm_barrier(c);
    snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    if (a.me && tg_comm_size(c) == RANKS) end->after = begins_anew(ctx, c);
    snprintf(end->later, sizeof end->later, "%s", tg_ctx_message(ctx));
    end->size = tg_comm_size(c);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

/* The next call of the ranks that have the list of members reports the end of rank 0, or the failure of a rank that
 * lacks the list. They recover again. The others are told to create a new communicator, as often as they try to
 * recover. */
START_TEST(ranks_that_have_the_list_recover_without_its_sender) {
    for (int told = 0; told < RANKS; told++) {
        world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER, .sends = is_ended}, .told = told};
        run_ranks(&all, recovers_twice);
        for (int r = 0; r < RANKS; r++) {
            const rank_end *e = &all.end[r];
            ck_assert_int_eq(e->opened, TG_OK);
            if (r == 0) continue;
            ck_assert_msg(e->status == TG_ERR_REMOTE &&
                              strstr(e->message, r <= told ? "rank 0" : "rank 0, which was to choose the members"),
                          "%d told, rank %d: %s: %s", told, r, tg_status_name(e->status), e->message);
            ck_assert_msg(e->after == (r <= told ? TG_OK : TG_ERR_REMOTE) && (r > told || e->size == told),
                          "%d told, rank %d in a group of %d: %s: %s", told, r, e->size, tg_status_name(e->after),
                          e->later);
        }
    }
}
END_TEST

static bool has_piece(wires *w, int rank) {
    pthread_mutex_lock(&w->lock);
    const letter *m = w->inbox[rank];
    while (m && m->tag == 0) m = m->next;
    pthread_mutex_unlock(&w->lock);
    return m;
}

/* Rank 1 ends while it receives a long message from rank 0, after rank 0 has sent it the first pieces. */
static void *ends_while_it_receives(void *user) {
    rank_arg a = *(rank_arg *)user;
    world *all = a.all;
    rank_end *end = &all->end[a.me];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 10));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &all->lines[a.me], a.me, RANKS);
    tg_tensor *x = tg_zeros(ctx, TG_U8, TG_SHAPE(1 << 20));
    end->opened = tg_comm_barrier(c);
    if (a.me == 0) {
        tg_work *w = tg_comm_send(c, x, 1);
        atomic_store(&all->started, 1);
        double since = tg_system_now();
        end->status = tg_work_wait(w);
        end->seconds = tg_system_now() - since;
        snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    } else if (a.me == 1) {
        while (!atomic_load(&all->started)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        tg_comm_recv(c, x, 0);
        while (!has_piece(&all->w, 1)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        atomic_store(&all->w.ended[1], true);
    }
    tg_drop(x);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(a_sender_does_not_wait_for_a_receiver_that_has_ended) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    run_ranks(&all, ends_while_it_receives);
    const rank_end *end = &all.end[0];
    ck_assert_int_eq(end->opened, TG_OK);
    ck_assert_msg(end->status == TG_ERR_REMOTE && strstr(end->message, "has ended unexpectedly"), "%s", end->message);
    ck_assert_msg(end->seconds < 5, "%g seconds", end->seconds);
}
END_TEST

static void *scarce_alloc(void *user, size_t bytes, size_t align) {
    const world *all = user;
    void *p;
    if (all->refuses && bytes >= TG_P2P_MESSAGE && bytes < TG_P2P_MESSAGE + 256) return NULL;
    return posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes) ? NULL : p;
}

static void scarce_free(void *user, void *p, size_t bytes) {
    volatile unsigned char *at = p;
    (void)user;
    for (size_t i = 0; p && i < bytes; i++) at[i] = 0xA5; /* a use of freed memory is noticed */
    free(p);
}

/* From now on rank 0 gets no memory, if this is the last message with which it arrives at its call. */
static void asks(line *l, const void *data, int tag) {
    world *all = (world *)((char *)l->w - offsetof(world, w));
    const tg_p2p_message *m = data;
    if (l->slow && tag == 0 && m->kind == TG_P2P_CALL && m->signature.kind == TG_ALL_GATHER)
        all->refuses = ++all->asked == RANKS - 1;
}

/* Rank 0 has no buffer left for a message when it has to request the first piece. Later it has. */
static void *requests_late(void *user) {
    enum { LONG = 1 << 18, BARRIERS = 20 };
    rank_arg a = *(rank_arg *)user;
    world *all = a.all;
    rank_end *end = &all->end[a.me];
    tg_allocator scarce = {scarce_alloc, scarce_free, all};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 10, .allocator = a.me ? (tg_allocator){0} : scarce));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &all->lines[a.me], a.me, RANKS);
    tg_tensor *x = tg_zeros(ctx, TG_U8, TG_SHAPE(LONG)), *y = tg_zeros(ctx, TG_U8, TG_SHAPE(RANKS * LONG));
    tg_work_wait(tg_comm_all_gather(c, y, x));
    all->lines[a.me].slow = a.me == 0;
    for (int i = 0; i < BARRIERS; i++) tg_comm_barrier(c);
    end->opened = tg_ctx_status(ctx);
    tg_work *w = tg_comm_all_gather(c, y, x);
    while (tg_ctx_status(ctx) == TG_OK && !tg_work_test(w)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    end->status = tg_ctx_status(ctx);
    snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    all->lines[a.me].slow = false;
    if (a.me == 0) all->refuses = false;
    double since = tg_system_now();
    tg_drop(y); /* waits for the call */
    end->seconds = tg_system_now() - since;
    tg_drop(x);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(a_request_that_lacked_memory_is_sent_later) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER, .sends = asks}};
    run_ranks(&all, requests_late);
    for (int r = 0; r < RANKS; r++) {
        const rank_end *e = &all.end[r];
        ck_assert_int_eq(e->opened, TG_OK);
        ck_assert_msg(e->status == (r ? TG_OK : TG_ERR_MEMORY), "rank %d: %s: %s", r, tg_status_name(e->status),
                      e->message);
        ck_assert_msg(e->seconds < 5, "rank %d: %g seconds", r, e->seconds);
    }
}
END_TEST

static void wait_for(atomic_int *n, int wanted) {
    while (atomic_load(n) < wanted) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Ranks 0 and 1 disagree about the sizes of an all-to-all, and then about the kind of the next call. Rank 0 reports the
 * second, and then rank 2, which has not heard of that yet, starts the all-to-all. */
static void *disagrees_twice(void *user) {
    rank_arg a = *(rank_arg *)user;
    world *all = a.all;
    rank_end *end = &all->end[a.me];
    int64_t send[RANKS] = {1, 1, 1, 1}, recv[RANKS] = {a.me == 1 ? 2 : 1, 1, 1, 1};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 10));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &all->lines[a.me], a.me, RANKS);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(RANKS)), *y = tg_zeros(ctx, TG_F64, TG_SHAPE(recv[0] + RANKS - 1));
    tg_tensor *z = tg_zeros(ctx, TG_F64, TG_SHAPE(1));
    end->opened = tg_comm_barrier(c);
    if (a.me == 2) atomic_store(&all->w.held, true);
    atomic_fetch_add(&all->started, 1);
    wait_for(&all->started, RANKS);
    if (a.me == 2) wait_for(&all->failed, 2);
    tg_work *w = tg_comm_all_to_all(c, y, x, send, recv);
    atomic_fetch_add(&all->left, 1);
    if (a.me == 0) {
        wait_for(&all->left, RANKS - 1);
        end->after = tg_comm_barrier(c);
        tg_ctx_clear(ctx);
        atomic_fetch_add(&all->failed, 1);
    } else if (a.me == 1) {
        tg_comm_all_reduce(c, z, z, TG_REDUCE_SUM);
        while (!atomic_load(&all->failed)) tg_work_test(w);
        for (int i = 0; i < 100; i++) tg_work_test(w); /* receives the failure */
        atomic_fetch_add(&all->failed, 1);
    } else if (a.me == 2) {
        atomic_store(&all->w.held, false);
    }
    wait_for(&all->left, RANKS); /* rank 2 has started it */
    double since = tg_system_now();
    end->status = tg_work_wait(w);
    end->seconds = tg_system_now() - since;
    snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    tg_drop(x);
    tg_drop(y);
    tg_drop(z);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(a_disagreement_about_an_earlier_call_is_reported_after_a_failure_too) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER, .holder = 0, .waiter = 2}};
    run_ranks(&all, disagrees_twice);
    ck_assert_int_eq(all.end[0].after, TG_ERR_MISMATCH);
    for (int r = 0; r < RANKS; r++) {
        const rank_end *e = &all.end[r];
        ck_assert_int_eq(e->opened, TG_OK);
        ck_assert_msg(e->status == (r ? TG_ERR_MISMATCH : TG_ERR_ABORTED), "rank %d: %s: %s", r,
                      tg_status_name(e->status), e->message);
        ck_assert_msg(e->seconds < 5, "rank %d: %g seconds", r, e->seconds);
    }
}
END_TEST

/* Rank 0 polls a call of group "one", as the transport over NCCL does, and frees the group after the call. Then it gets
 * probes of the others, which wait for it in the world. */
static void *polls_a_call(void *user) {
    rank_arg a = *(rank_arg *)user;
    world *all = a.all;
    rank_end *end = &all->end[a.me];
    tg_allocator poisoning = {scarce_alloc, scarce_free, all};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 10, .allocator = poisoning));
    tg_comm *c = tg_comm_p2p_new(ctx, &line_ops, &all->lines[a.me], a.me, RANKS);
    tg_comm *one = tg_comm_split(c, 0, 0, "one", TG_MAX_AXES);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(1));
    end->opened = tg_ctx_status(ctx);
    if (a.me == 0) {
        tg_transfer barrier = {.size = sizeof barrier, .kind = TG_BARRIER};
        void *request = NULL;
        end->after = one->ops->start(ctx, one->state, &barrier, &request);
        one->ops->poll(ctx, one->state, request, 0.01);
        atomic_store(&all->started, 1);
        while (!one->ops->test(ctx, one->state, request)) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        one->ops->wait(ctx, one->state, request);
        one->ops->drop(ctx, one->state, request);
    } else {
        wait_for(&all->started, 1);
        tg_comm_barrier(one);
    }
    tg_comm_free(one);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM); /* frees the memory of the group */
    if (a.me == 0) nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    end->status = tg_comm_barrier(c);
    snprintf(end->message, sizeof end->message, "%s", tg_ctx_message(ctx));
    tg_drop(x);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(a_call_that_is_done_is_waited_for_no_longer) {
    world all = {.w = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    run_ranks(&all, polls_a_call);
    for (int r = 0; r < RANKS; r++) {
        const rank_end *e = &all.end[r];
        ck_assert_int_eq(e->opened, TG_OK);
        ck_assert_msg(e->status == TG_OK, "rank %d: %s: %s", r, tg_status_name(e->status), e->message);
    }
}
END_TEST

int main(void) {
    setenv("TG_MPI_NODES", "4", 1); /* a node for each rank */
    const TTest *tests[] = {all_ranks_report_a_disagreement_alike_in_any_order_of_messages,
                            both_groups_of_a_deadlock_end_at_once,
                            a_rank_that_leaves_early_says_so_to_the_layer, threads_of_one_node_meet_through_the_layer,
                            recovery_reports_a_layer_that_has_failed, a_layer_that_has_ended_is_only_closed,
                            a_rank_that_fails_while_ranks_meet_leaves_no_communicator,
                            ranks_that_have_the_list_recover_without_its_sender,
                            a_sender_does_not_wait_for_a_receiver_that_has_ended,
                            a_request_that_lacked_memory_is_sent_later,
                            a_disagreement_about_an_earlier_call_is_reported_after_a_failure_too,
                            a_call_that_is_done_is_waited_for_no_longer};
    return tg_check_main("p2p", tests, sizeof tests / sizeof *tests);
}
