/* Ranks and communicators: wrong calls on a plan of three ranks and on a group of one. Tests in tests/comm cover
 * what ranks do to each other. */
#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>
#include <tapegrad/transport.h>

#include "misuse/misuse.h"

/* ---- Ranks ---- */

static tg_status does_nothing(void *arg, tg_ctx *ctx, tg_comm *world) {
    return (void)arg, (void)ctx, (void)world, TG_OK;
}

static bool ranks_say(int n, tg_rank_fn fn, const tg_config *config, tg_status expected, const char *says) {
    char message[256] = "before";
    tg_status s =
        tg_ranks_run(n, fn, NULL, TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    return s == expected && strstr(message, says) && strcmp(message, "before");
}

static tg_status ranks_of_size(size_t size) {
    tg_ranks_opts o = {.size = size};
    return tg_ranks_run(1, does_nothing, NULL, &o);
}

static void ranks(misuse_world *b) {
    const tg_config wrong = {.size = 1 << 20}, unknown = {TG_CONFIG_DEFAULTS, .device = "abacus"};
    char one[4];
    QUIET(tg_ranks_run, ranks_say(0, does_nothing, NULL, TG_ERR_ARGUMENT, "0 ranks: expected 1 to 1024"));
    QUIET(tg_ranks_run, ranks_say(-1, does_nothing, NULL, TG_ERR_ARGUMENT, "-1 ranks"));
    QUIET(tg_ranks_run, ranks_say(1025, does_nothing, NULL, TG_ERR_ARGUMENT, "1025 ranks"));
    QUIET(tg_ranks_run, ranks_say(2, NULL, NULL, TG_ERR_ARGUMENT, "the function is NULL"));
    QUIET(tg_ranks_run, ranks_say(2, does_nothing, &wrong, TG_ERR_ARGUMENT, "size"));
    QUIET(tg_ranks_run, ranks_say(2, does_nothing, &unknown, TG_ERR_DEVICE, "abacus"));
    QUIET(tg_ranks_run, ranks_of_size(0) == TG_ERR_ARGUMENT && ranks_of_size(1 << 20) == TG_ERR_ARGUMENT);
    QUIET(tg_ranks_run, tg_ranks_run(0, does_nothing, NULL, TG_RANKS(.message = one, .message_size = sizeof one)) &&
                            strlen(one) == 3);
    QUIET(tg_ranks_run, tg_ranks_run(2, does_nothing, NULL, TG_RANKS(.message = one)) == TG_ERR_ARGUMENT);
    QUIET(tg_ranks_run, tg_ranks_run(2, does_nothing, NULL, NULL) == TG_OK);
}

/* ---- Transports ---- */

static tg_status none_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **r) {
    return (void)ctx, (void)state, (void)t, (void)r, TG_OK;
}
static bool none_test(tg_ctx *ctx, void *state, void *r) { return (void)ctx, (void)state, (void)r, true; }
static tg_status none_wait(tg_ctx *ctx, void *state, void *r) { return (void)ctx, (void)state, (void)r, TG_OK; }
static void none_drop(tg_ctx *ctx, void *state, void *r) { (void)ctx, (void)state, (void)r; }
static tg_status none_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                            void **g) {
    return (void)ctx, (void)state, (void)ranks, (void)n, (void)rank, (void)name, (void)all, (void)g, TG_OK;
}
static void count_close(tg_ctx *ctx, void *state) { (void)ctx, ++*(int *)state; }

static tg_comm_ops table(void) {
    return (tg_comm_ops){.size = sizeof(tg_comm_ops), .name = "none", .host = true, .start = none_start,
                         .test = none_test, .wait = none_wait, .drop = none_drop, .split = none_split,
                         .close = count_close};
}

static bool is_inert_comm(tg_comm *c) {
    tg_tensor *none = NULL;
    return c && tg_comm_size(c) == 1 && tg_comm_rank(c) == 0 && !*tg_comm_transport(c) &&
           tg_comm_barrier(c) != TG_OK && !tg_comm_all_reduce(c, none, none, TG_REDUCE_SUM);
}

/* The state is closed exactly once, whatever is wrong. */
static bool refused_on(misuse_world *b, tg_comm_ops ops, int rank, int size, int closes) {
    int closed = 0;
    tg_comm *c = tg_comm_new_on(b->ctx, &ops, &closed, rank, size);
    return is_inert_comm(c) && closed == closes;
}

static tg_comm_ops without(size_t slot) {
    tg_comm_ops ops = table();
    memset((char *)&ops + slot, 0, sizeof(void *));
    return ops;
}

static void transports(misuse_world *b) {
    tg_comm_ops later = table();
    later.size = sizeof later + 8;
    QUIET(tg_comm_new_on, is_inert_comm(tg_comm_new_on(NULL, NULL, NULL, 0, 1)));
    GIVES(tg_comm_new_on, ARGUMENT, "ops is NULL", is_inert_comm(tg_comm_new_on(b->ctx, NULL, NULL, 0, 1)));
    GIVES(tg_comm_new_on, ARGUMENT, "later version", refused_on(b, later, 0, 1, 1));
    GIVES(tg_comm_new_on, ARGUMENT, "required slot", refused_on(b, without(offsetof(tg_comm_ops, name)), 0, 1, 1));
    GIVES(tg_comm_new_on, ARGUMENT, "required slot", refused_on(b, without(offsetof(tg_comm_ops, start)), 0, 1, 1));
    GIVES(tg_comm_new_on, ARGUMENT, "required slot", refused_on(b, without(offsetof(tg_comm_ops, drop)), 0, 1, 1));
    GIVES(tg_comm_new_on, ARGUMENT, "required slot", refused_on(b, without(offsetof(tg_comm_ops, close)), 0, 1, 0));
    GIVES(tg_comm_new_on, ARGUMENT, "rank 2 of 2", refused_on(b, table(), 2, 2, 1));
    GIVES(tg_comm_new_on, ARGUMENT, "rank -1 of 2", refused_on(b, table(), -1, 2, 1));
    GIVES(tg_comm_new_on, ARGUMENT, "rank 0 of 0", refused_on(b, table(), 0, 0, 1));
    int closed = 0;
    tg_comm_ops plain = table(), queued = table();
    queued.queued = true;
    tg_comm *c = tg_comm_new_on(b->ctx, &plain, &closed, 0, 2), *q = tg_comm_new_on(b->ctx, &queued, &closed, 0, 2);
    QUIET(tg_comm_record_end, tg_comm_record_end(NULL, 1, TG_OK) == TG_ERR_ARGUMENT);
    FAILS(tg_comm_record_end, ARGUMENT, "c is of transport \"none\", which is not queued",
          tg_comm_record_end(c, 0, TG_OK));
    FAILS(tg_comm_record_end, ARGUMENT, "record is 1, expected the number of a call", tg_comm_record_end(q, 1, TG_OK));
    tg_comm_free(c);
    tg_comm_free(q);
    QUIET(tg_comm_self_new, is_inert_comm(tg_comm_self_new(NULL)));
    QUIET(tg_comm_plan_new, is_inert_comm(tg_comm_plan_new(NULL, 0, 1)));
    GIVES(tg_comm_plan_new, ARGUMENT, "rank 3 of 3", is_inert_comm(tg_comm_plan_new(b->ctx, 3, 3)));
    GIVES(tg_comm_plan_new, ARGUMENT, "rank 0 of -1", is_inert_comm(tg_comm_plan_new(b->ctx, 0, -1)));
    QUIET(tg_comm_launched_rank, tg_comm_launched_rank() == -1);
    QUIET(tg_comm_launched_new, is_inert_comm(tg_comm_launched_new(NULL)));
    GIVES(tg_comm_launched_new, STATE, "tapegrad run", is_inert_comm(tg_comm_launched_new(b->ctx)));
}

/* ---- Queries ---- */

static void questions(misuse_world *b, tg_comm *c) {
    tg_comm_info no_size = {.size = 0};
    QUIET(tg_comm_ctx, !tg_comm_ctx(NULL));
    QUIET(tg_comm_rank, tg_comm_rank(NULL) == 0);
    QUIET(tg_comm_size, tg_comm_size(NULL) == 1);
    QUIET(tg_comm_name, !*tg_comm_name(NULL));
    QUIET(tg_comm_transport, !*tg_comm_transport(NULL));
    QUIET(tg_comm_axis, tg_comm_axis(NULL) == TG_MAX_AXES);
    QUIET(tg_comm_free, (tg_comm_free(NULL), true));
    QUIET(tg_collective_name, !strcmp(tg_collective_name((tg_collective)99), "?") &&
                                  !strcmp(tg_collective_name((tg_collective)-1), "?"));
    QUIET(tg_comm_record, tg_comm_record(NULL, TG_TEXT, NULL, 0) == 0);
    GIVES(tg_comm_record, ARGUMENT, "format 7", tg_comm_record(c, (tg_format)7, NULL, 0) == 0);
    QUIET(tg_comm_record_dump, (tg_comm_record_dump(NULL, 1), tg_comm_record_dump(c, -1), true));
    QUIET(tg_comm_query, tg_comm_query(NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_comm_query, ARGUMENT, "TG_COMM_INFO", tg_comm_query(c, NULL));
    FAILS(tg_comm_query, ARGUMENT, "TG_COMM_INFO", tg_comm_query(c, &no_size));
    QUIET(tg_comm_recover, tg_comm_recover(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_comm_split, is_inert_comm(tg_comm_split(NULL, 0, 0, "x", TG_TP)));
    GIVES(tg_comm_split, ARGUMENT, "axis 9", is_inert_comm(tg_comm_split(c, 0, 0, "x", (tg_axis)9)));
    GIVES(tg_comm_split, ARGUMENT, "axis -1", is_inert_comm(tg_comm_split(c, 0, 0, "x", (tg_axis)-1)));
    GIVES(tg_comm_split, UNSUPPORTED, "tg_parallel_new", is_inert_comm(tg_comm_split(c, 0, 0, "x", TG_TP)));
}

/* ---- Collectives ---- */

/* Rows for a collective with x as one of its arguments: no communicator, no tensor, handles that are no longer
 * tensors. */
#define COLLECTIVE(symbol, with_x, with_null)                                                     \
    do {                                                                                          \
        tg_comm *c = NULL;                                                                        \
        tg_tensor *x = b->x;                                                                      \
        GIVES(symbol, ARGUMENT, "the communicator is NULL", !(with_x));                           \
        c = plan;                                                                                 \
        GIVES(symbol, ARGUMENT, "is NULL on rank 1 of 3", !(with_null));                          \
        for (tg_tensor **at_ = (tg_tensor *[]){b->inert, b->reset, b->reset_next, b->dropped, NULL}; *at_; at_++) { \
            x = *at_;                                                                             \
            GIVES(symbol, HANDLE, "the tensor", !(with_x));                                       \
        }                                                                                         \
        x = b->foreign;                                                                           \
        GIVES(symbol, HANDLE, "another context", !(with_x));                                      \
    } while (0)

static void every_collective(misuse_world *b, tg_comm *plan) {
    const int64_t n[] = {2, 2, 2};
    COLLECTIVE(tg_comm_all_reduce, tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM),
               tg_comm_all_reduce(c, NULL, x, TG_REDUCE_SUM));
    COLLECTIVE(tg_comm_all_gather, tg_comm_all_gather(c, x, x), tg_comm_all_gather(c, x, NULL));
    COLLECTIVE(tg_comm_reduce_scatter, tg_comm_reduce_scatter(c, x, x, TG_REDUCE_SUM),
               tg_comm_reduce_scatter(c, NULL, x, TG_REDUCE_SUM));
    COLLECTIVE(tg_comm_broadcast, tg_comm_broadcast(c, x, 0), tg_comm_broadcast(c, NULL, 0));
    COLLECTIVE(tg_comm_all_to_all, tg_comm_all_to_all(c, x, x, NULL, NULL),
               tg_comm_all_to_all(c, x, NULL, NULL, NULL));
    COLLECTIVE(tg_comm_all_gather_v, tg_comm_all_gather_v(c, x, x, n), tg_comm_all_gather_v(c, x, NULL, n));
    COLLECTIVE(tg_comm_reduce_scatter_v, tg_comm_reduce_scatter_v(c, x, x, n, TG_REDUCE_SUM),
               tg_comm_reduce_scatter_v(c, NULL, x, n, TG_REDUCE_SUM));
    COLLECTIVE(tg_comm_gather, tg_comm_gather(c, x, x, 1), tg_comm_gather(c, NULL, x, 1));
    COLLECTIVE(tg_comm_scatter, tg_comm_scatter(c, x, x, 1), tg_comm_scatter(c, x, NULL, 1));
    COLLECTIVE(tg_comm_send, tg_comm_send(c, x, 0), tg_comm_send(c, NULL, 0));
    COLLECTIVE(tg_comm_recv, tg_comm_recv(c, x, 0), tg_comm_recv(c, NULL, 0));
}

static bool average_of_integers(misuse_world *b, tg_comm *c) {
    return !tg_comm_all_reduce(c, b->ids, b->ids, TG_REDUCE_AVG);
}

static bool of_a_transpose(misuse_world *b, tg_comm *c) {
    tg_tensor *x = tg_wrap(b->ctx, TG_F32, TG_SHAPE(2, 3), (const int64_t[]){1, 2}, tg_host_data(b->x), NULL, NULL);
    bool refused = !tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    tg_drop(x);
    return refused;
}

/* dst and src that overlap other than as one's part in the other. */
static bool overlaps(misuse_world *b, tg_comm *c) {
    float *p = tg_host_data(b->x);
    tg_tensor *x = tg_wrap(b->ctx, TG_F32, TG_SHAPE(3), NULL, p, NULL, NULL);
    tg_tensor *y = tg_wrap(b->ctx, TG_F32, TG_SHAPE(3), NULL, p + 1, NULL, NULL);
    bool refused = !tg_comm_all_reduce(c, x, y, TG_REDUCE_SUM);
    tg_drop(x), tg_drop(y);
    return refused;
}

static void arguments(misuse_world *b, tg_comm *c) {
    const int64_t less[] = {2, 2, 1}, negative[] = {4, 4, -2}, right[] = {2, 2, 2}, others[] = {3, 2, 1};
    GIVES(tg_comm_all_reduce, SHAPE, "dst has 3 elements, expected 6 (as many as src)",
          !tg_comm_all_reduce(c, b->v, b->x, TG_REDUCE_SUM));
    GIVES(tg_comm_all_reduce, DTYPE, "expected one dtype", !tg_comm_all_reduce(c, b->ids, b->x, TG_REDUCE_SUM));
    GIVES(tg_comm_all_reduce, ARGUMENT, "op is 9", !tg_comm_all_reduce(c, b->x, b->x, (tg_reduce_op)9));
    GIVES(tg_comm_all_reduce, DTYPE, "TG_REDUCE_AVG and src has dtype i64", average_of_integers(b, c));
    GIVES(tg_comm_all_reduce, SHAPE, "not contiguous", of_a_transpose(b, c));
    GIVES(tg_comm_all_reduce, ARGUMENT, "overlap", overlaps(b, c));
    GIVES(tg_comm_all_gather, SHAPE, "expected 9", !tg_comm_all_gather(c, b->x, b->v));
    GIVES(tg_comm_reduce_scatter, SHAPE, "expected 18", !tg_comm_reduce_scatter(c, b->x, b->x, TG_REDUCE_SUM));
    GIVES(tg_comm_reduce_scatter, ARGUMENT, "op is -1",
          !tg_comm_reduce_scatter(c, b->v, b->x, (tg_reduce_op)-1));
    GIVES(tg_comm_broadcast, ARGUMENT, "root is 3, expected 0 to 2", !tg_comm_broadcast(c, b->x, 3));
    GIVES(tg_comm_broadcast, ARGUMENT, "root is -1", !tg_comm_broadcast(c, b->x, -1));
    GIVES(tg_comm_gather, ARGUMENT, "root is 3", !tg_comm_gather(c, NULL, b->x, 3));
    GIVES(tg_comm_gather, ARGUMENT, "dst is given, expected NULL on rank 1", !tg_comm_gather(c, b->x, b->x, 0));
    GIVES(tg_comm_scatter, ARGUMENT, "root is -1", !tg_comm_scatter(c, b->x, NULL, -1));
    GIVES(tg_comm_scatter, ARGUMENT, "src is given, expected NULL on rank 1", !tg_comm_scatter(c, b->x, b->x, 0));
    GIVES(tg_comm_send, ARGUMENT, "which is this rank", !tg_comm_send(c, b->x, 1));
    GIVES(tg_comm_send, ARGUMENT, "to is 3", !tg_comm_send(c, b->x, 3));
    GIVES(tg_comm_recv, ARGUMENT, "which is this rank", !tg_comm_recv(c, b->x, 1));
    GIVES(tg_comm_recv, ARGUMENT, "from is -1", !tg_comm_recv(c, b->x, -1));
    GIVES(tg_comm_all_to_all, SHAPE, "a multiple of the 3 ranks", !tg_comm_all_to_all(c, b->ids, b->ids, NULL, NULL));
    GIVES(tg_comm_all_to_all, SHAPE, "dst has 3 elements", !tg_comm_all_to_all(c, b->v, b->x, NULL, NULL));
    GIVES(tg_comm_all_to_all, ARGUMENT, "send_counts is NULL", !tg_comm_all_to_all(c, b->x, b->x, NULL, right));
    GIVES(tg_comm_all_to_all, ARGUMENT, "recv_counts is NULL", !tg_comm_all_to_all(c, b->x, b->x, right, NULL));
    GIVES(tg_comm_all_to_all, SHAPE, "add up to 5", !tg_comm_all_to_all(c, b->x, b->x, less, right));
    GIVES(tg_comm_all_to_all, SHAPE, "add up to 5", !tg_comm_all_to_all(c, b->x, b->x, right, less));
    GIVES(tg_comm_all_to_all, ARGUMENT, "-2", !tg_comm_all_to_all(c, b->x, b->x, negative, right));
    GIVES(tg_comm_all_to_all, ARGUMENT, "are the same memory", !tg_comm_all_to_all(c, b->x, b->x, others, right));
}

static void uneven(misuse_world *b, tg_comm *c) {
    const int64_t less[] = {2, 2, 1}, negative[] = {4, 4, -2}, large[] = {INT64_MAX, INT64_MAX, 2}, other[] = {2, 1, 3};
    GIVES(tg_comm_all_gather_v, SHAPE, "add up to 5", !tg_comm_all_gather_v(c, b->x, b->v, less));
    GIVES(tg_comm_all_gather_v, ARGUMENT, "rank 2 is -2", !tg_comm_all_gather_v(c, b->x, b->v, negative));
    GIVES(tg_comm_all_gather_v, SHAPE, "add up to", !tg_comm_all_gather_v(c, b->x, b->v, large));
    GIVES(tg_comm_all_gather_v, SHAPE, "this rank's count", !tg_comm_all_gather_v(c, b->x, b->v, other));
    GIVES(tg_comm_reduce_scatter_v, SHAPE, "add up to 5",
          !tg_comm_reduce_scatter_v(c, b->v, b->x, less, TG_REDUCE_SUM));
    GIVES(tg_comm_reduce_scatter_v, SHAPE, "this rank's count",
          !tg_comm_reduce_scatter_v(c, b->v, b->x, other, TG_REDUCE_SUM));
}

/* Calls a function within a batch, and reports its error after the batch is closed. */
static tg_status in_a_batch(tg_comm *c, tg_status (*call)(tg_comm *c)) {
    tg_comm_batch_open(c);
    tg_status s = call(c);
    tg_ctx *ctx = tg_comm_ctx(c);
    char message[256];
    snprintf(message, sizeof message, "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_comm_batch_close(c);
    return s == TG_OK ? s : tg_ctx_fail(ctx, s, "%s", message);
}

static void batches(misuse_world *b, tg_comm *c) {
    QUIET(tg_comm_barrier, tg_comm_barrier(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_comm_batch_open, tg_comm_batch_open(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_comm_batch_close, tg_comm_batch_close(NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_comm_batch_close, STATE, "no batch is open", tg_comm_batch_close(c));
    MISUSE_ONCE(tg_comm_batch_open, in_a_batch(c, tg_comm_batch_open) == TG_ERR_STATE, b->ctx, TG_ERR_STATE,
                "a batch is open already");
    MISUSE_ONCE(tg_comm_barrier, in_a_batch(c, tg_comm_barrier) == TG_ERR_STATE, b->ctx, TG_ERR_STATE, "a batch");
}

void misuse_comm(misuse_world *b) {
    tg_comm *c = tg_comm_plan_new(b->ctx, 1, 3);
    ranks(b);
    transports(b);
    questions(b, c);
    every_collective(b, c);
    arguments(b, c);
    uneven(b, c);
    batches(b, c);
    tg_comm_free(c);
}
