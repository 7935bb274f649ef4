/* The public collectives, each of which calls tg_comm_start (dispatch.c), and batches of sends and receives. */
#include "core/work.h"
#include "comm/comm.h"

#define START(c, ...) tg_comm_start(c, &(tg_collective_args){__VA_ARGS__, .site = TG_SITE})

/* Marks dst as given (tg_tensor_given), because the call fills it with bytes that may differ between ranks. Marks it on
 * every transport, even on one that moves no data (plan). Returns w. */
static tg_work *given(const tg_comm *c, tg_tensor *dst, tg_work *w) {
    if (c && tg_ok(c->ctx)) tg_tensor_given(dst);
    return w;
}

tg_work *tg_comm_all_reduce(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op) {
    return START(c, .kind = TG_ALL_REDUCE, .dst = dst, .src = src, .op = op);
}

tg_work *tg_comm_all_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src) {
    return START(c, .kind = TG_ALL_GATHER, .dst = dst, .src = src);
}

tg_work *tg_comm_reduce_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op) {
    return given(c, dst, START(c, .kind = TG_REDUCE_SCATTER, .dst = dst, .src = src, .op = op));
}

tg_work *tg_comm_broadcast(tg_comm *c, tg_tensor *x, int root) {
    return START(c, .kind = TG_BROADCAST, .dst = x, .root = root);
}

tg_work *tg_comm_all_to_all(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *send_counts,
                            const int64_t *recv_counts) {
    return given(c, dst,
                 START(c, .kind = TG_ALL_TO_ALL, .dst = dst, .src = src, .send = send_counts, .recv = recv_counts));
}

tg_work *tg_comm_all_gather_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts) {
    return START(c, .kind = TG_ALL_GATHER, .dst = dst, .src = src, .recv = counts);
}

tg_work *tg_comm_reduce_scatter_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts, tg_reduce_op op) {
    return given(c, dst, START(c, .kind = TG_REDUCE_SCATTER, .dst = dst, .src = src, .send = counts, .op = op));
}

tg_work *tg_comm_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root) {
    return START(c, .kind = TG_GATHER, .dst = dst, .src = src, .root = root);
}

tg_work *tg_comm_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root) {
    return given(c, dst, START(c, .kind = TG_SCATTER, .dst = dst, .src = src, .root = root));
}

tg_work *tg_comm_send(tg_comm *c, tg_tensor *src, int to) { return START(c, .kind = TG_SEND, .src = src, .root = to); }

tg_work *tg_comm_recv(tg_comm *c, tg_tensor *dst, int from) {
    return given(c, dst, START(c, .kind = TG_RECV, .dst = dst, .root = from));
}

/* Opens or closes a batch of sends and receives. who: the public function, for errors. */
static tg_status set_batch(tg_comm *c, bool open, const char *who) {
    if (!tg_comm_ok(c)) return c ? tg_ctx_status(c->ctx) : TG_ERR_ARGUMENT;
    TG_TRY(tg_comm_check_ended(c, who));
    if (c->batch == open)
        return tg_fail(c->ctx, TG_ERR_STATE, "%s: %s", who,
                       open ? "a batch is open already; call tg_comm_batch_close first"
                            : "no batch is open; call tg_comm_batch_open first");
    c->batch = open;
    return c->ops->batch ? c->ops->batch(c->ctx, c->state, open) : TG_OK;
}

tg_status tg_comm_batch_open(tg_comm *c) { return set_batch(c, true, "tg_comm_batch_open"); }
tg_status tg_comm_batch_close(tg_comm *c) { return set_batch(c, false, "tg_comm_batch_close"); }

tg_status tg_comm_barrier(tg_comm *c) {
    tg_work *w = START(c, .kind = TG_BARRIER);
    return w ? tg_work_wait(w) : c ? tg_ctx_status(c->ctx) : TG_ERR_ARGUMENT;
}
