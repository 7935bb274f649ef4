/* Ranks over a message layer: calls that its constructor refuses. Message layers that work have tests of their own
 * (comm/). */
#include <tapegrad/p2p.h>

#include "misuse/misuse.h"

enum { BROKEN = 7 };

typedef struct silent {
    int closed;
    tg_p2p_phase phase;
} silent;

static int no_send(void *state, const void *data, size_t bytes, int to, int tag, void *token) {
    return (void)state, (void)data, (void)bytes, (void)to, (void)tag, (void)token, BROKEN;
}
static int no_receive(void *state, void *data, size_t room, int from, int tag, void *token) {
    return (void)state, (void)data, (void)room, (void)from, (void)tag, (void)token, BROKEN;
}
static int no_poll(void *state, tg_p2p_completed_fn completed) { return (void)state, (void)completed, BROKEN; }
static void explain(void *state, int error, char *buf, size_t n) {
    (void)state;
    snprintf(buf, n, "the line is cut (%d)", error);
}
static void close_link(void *state, bool quiet, tg_p2p_completed_fn completed) {
    (void)completed;
    ((silent *)state)->closed += !quiet;
}
static tg_p2p_phase phase(void *state) { return ((silent *)state)->phase; }

static const tg_p2p_ops table = {.size = sizeof(tg_p2p_ops),
                                  .name = "none",
                                  .send = no_send,
                                  .receive = no_receive,
                                  .poll = no_poll,
                                  .explain = explain,
                                  .close = close_link,
                                  .phase = phase};

static bool is_inert_comm(tg_comm *c) { return c && tg_comm_size(c) == 1 && tg_comm_barrier(c) != TG_OK; }

/* The state is closed exactly once, whatever is wrong. */
static bool refused(tg_ctx *ctx, const tg_p2p_ops *ops, tg_p2p_phase p, int rank, int size, int closes) {
    silent s = {.phase = p};
    return is_inert_comm(tg_comm_p2p_new(ctx, ops, &s, rank, size)) && s.closed == closes;
}

static bool refused_without(tg_ctx *ctx, size_t slot, int closes) {
    tg_p2p_ops ops = table;
    memset((char *)&ops + slot, 0, sizeof(void *));
    return refused(ctx, &ops, TG_P2P_OPEN, 0, 2, closes);
}

void misuse_p2p(misuse_world *b) {
    const tg_p2p_ops later = {.size = sizeof later + 8};
    tg_ctx *hasty = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 0.01));
    QUIET(tg_comm_p2p_new, refused(NULL, &table, TG_P2P_OPEN, 0, 2, 1) && refused(NULL, NULL, TG_P2P_OPEN, 0, 2, 0));
    GIVES(tg_comm_p2p_new, ARGUMENT, "ops is NULL", refused(b->ctx, NULL, TG_P2P_OPEN, 0, 2, 0));
    GIVES(tg_comm_p2p_new, ARGUMENT, "later version", refused(b->ctx, &later, TG_P2P_OPEN, 0, 2, 0));
    tg_p2p_ops other = table;
    other.size = offsetof(tg_p2p_ops, phase);
    GIVES(tg_comm_p2p_new, ARGUMENT, "the table's size is", refused(b->ctx, &other, TG_P2P_OPEN, 0, 2, 1));
    other.size = sizeof other + 8;
    GIVES(tg_comm_p2p_new, ARGUMENT, "later version", refused(b->ctx, &other, TG_P2P_OPEN, 0, 2, 1));
    other.size = 0;
    GIVES(tg_comm_p2p_new, ARGUMENT, "the struct's size is 0", refused(b->ctx, &other, TG_P2P_OPEN, 0, 2, 0));
    GIVES(tg_comm_p2p_new, ARGUMENT, "state is NULL", is_inert_comm(tg_comm_p2p_new(b->ctx, &table, NULL, 0, 2)));
    GIVES(tg_comm_p2p_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_p2p_ops, name), 1));
    GIVES(tg_comm_p2p_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_p2p_ops, send), 1));
    GIVES(tg_comm_p2p_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_p2p_ops, receive), 1));
    GIVES(tg_comm_p2p_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_p2p_ops, poll), 1));
    GIVES(tg_comm_p2p_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_p2p_ops, explain), 1));
    GIVES(tg_comm_p2p_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_p2p_ops, close), 0));
    GIVES(tg_comm_p2p_new, ARGUMENT, "rank 2 of 2", refused(b->ctx, &table, TG_P2P_OPEN, 2, 2, 1));
    GIVES(tg_comm_p2p_new, ARGUMENT, "rank -1 of 2", refused(b->ctx, &table, TG_P2P_OPEN, -1, 2, 1));
    GIVES(tg_comm_p2p_new, ARGUMENT, "rank 0 of 0", refused(b->ctx, &table, TG_P2P_OPEN, 0, 0, 1));
    GIVES(tg_comm_p2p_new, UNSUPPORTED, "size is 1025", refused(b->ctx, &table, TG_P2P_OPEN, 0, 1025, 1));
    GIVES(tg_comm_p2p_new, STATE, "\"none\" has ended", refused(b->ctx, &table, TG_P2P_ENDED, 0, 2, 1));
    GIVES(tg_comm_p2p_new, IO, "none: receiving failed: the line is cut (7)",
          refused(b->ctx, &table, TG_P2P_OPEN, 0, 2, 1));
    QUIET(tg_comm_p2p_new, refused(hasty, &table, TG_P2P_OPENING, 0, 2, 1) &&
                                tg_ctx_status(hasty) == TG_ERR_TIMEOUT &&
                                strstr(tg_ctx_message(hasty), "before all ranks of none have connected"));
    tg_ctx_free(hasty);
}
