/* Transports without peers. `self` is a group of one rank. `plan` stands for one rank of a group of any size: if there
 * are several ranks, its calls are counted, but move no data. Neither needs a control (protocol.h), because none of
 * their calls waits. */
#include "comm/comm.h"

/* Starts nothing and makes no request. In a group of one rank dispatch.c copies src to dst, and does not call it. */
static tg_status start_nothing(tg_ctx *ctx, void *state, const tg_transfer *call, void **request) {
    (void)ctx, (void)state, (void)call;
    *request = NULL;
    return TG_OK;
}

static bool is_done(tg_ctx *ctx, void *state, void *request) { return (void)ctx, (void)state, (void)request, true; }
static tg_status wait_nothing(tg_ctx *ctx, void *state, void *request) {
    return (void)state, (void)request, tg_ctx_status(ctx);
}
static void drop_nothing(tg_ctx *ctx, void *state, void *request) { (void)ctx, (void)state, (void)request; }

static tg_status split_nothing(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                               void **group) {
    (void)ctx, (void)state, (void)ranks, (void)n, (void)rank, (void)name, (void)all;
    *group = NULL;
    return TG_OK;
}

static void close_nothing(tg_ctx *ctx, void *state) { (void)ctx, (void)state; }

const tg_comm_ops tg_self_transport = {
    .size = sizeof(tg_comm_ops),
    .name = "self",
    .start = start_nothing,
    .test = is_done,
    .wait = wait_nothing,
    .drop = drop_nothing,
    .split = split_nothing,
    .close = close_nothing,
};

const tg_comm_ops tg_plan_transport = {
    .size = sizeof(tg_comm_ops),
    .name = "plan",
    .silent = true,
    .start = start_nothing,
    .test = is_done,
    .wait = wait_nothing,
    .drop = drop_nothing,
    .split = split_nothing,
    .close = close_nothing,
};
