/* Ranks over a layer of messages: what its constructor refuses. Layers that carry messages have tests of their own
 * (parallel/). */
#include <tapegrad/link.h>

#include "misuse/misuse.h"

enum { BROKEN = 7 };

typedef struct silent {
    int closed;
    tg_link_phase phase;
} silent;

static int no_send(void *state, const void *data, size_t bytes, int to, int tag, void *token) {
    return (void)state, (void)data, (void)bytes, (void)to, (void)tag, (void)token, BROKEN;
}
static int no_receive(void *state, void *data, size_t room, int from, int tag, void *token) {
    return (void)state, (void)data, (void)room, (void)from, (void)tag, (void)token, BROKEN;
}
static int no_poll(void *state, tg_link_landed landed) { return (void)state, (void)landed, BROKEN; }
static void explain(void *state, int error, char *buf, size_t n) {
    (void)state;
    snprintf(buf, n, "the line is cut (%d)", error);
}
static void close_link(void *state, bool quiet, tg_link_landed landed) {
    (void)landed;
    ((silent *)state)->closed += !quiet;
}
static tg_link_phase phase(void *state) { return ((silent *)state)->phase; }

static const tg_link_ops table = {.size = sizeof(tg_link_ops),
                                  .name = "none",
                                  .send = no_send,
                                  .receive = no_receive,
                                  .poll = no_poll,
                                  .explain = explain,
                                  .close = close_link,
                                  .phase = phase};

static bool is_inert_comm(tg_comm *c) { return c && tg_comm_size(c) == 1 && tg_comm_barrier(c) != TG_OK; }

/* The state is closed once, whatever is wrong. */
static bool refused(tg_ctx *ctx, const tg_link_ops *ops, tg_link_phase p, int rank, int size, int closes) {
    silent s = {.phase = p};
    return is_inert_comm(tg_comm_link_new(ctx, ops, &s, rank, size)) && s.closed == closes;
}

static bool refused_without(tg_ctx *ctx, size_t slot, int closes) {
    tg_link_ops ops = table;
    memset((char *)&ops + slot, 0, sizeof(void *));
    return refused(ctx, &ops, TG_LINK_OPEN, 0, 2, closes);
}

void misuse_p2p(misuse_world *b) {
    const tg_link_ops later = {.size = sizeof later + 8};
    tg_ctx *hasty = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 0.01));
    QUIET(tg_comm_link_new, refused(NULL, &table, TG_LINK_OPEN, 0, 2, 1) && refused(NULL, NULL, TG_LINK_OPEN, 0, 2, 0));
    GIVES(tg_comm_link_new, ARGUMENT, "the table is NULL", refused(b->ctx, NULL, TG_LINK_OPEN, 0, 2, 0));
    GIVES(tg_comm_link_new, ARGUMENT, "later version", refused(b->ctx, &later, TG_LINK_OPEN, 0, 2, 0));
    tg_link_ops other = table;
    other.size = offsetof(tg_link_ops, phase);
    GIVES(tg_comm_link_new, ARGUMENT, "the table's size is", refused(b->ctx, &other, TG_LINK_OPEN, 0, 2, 1));
    other.size = sizeof other + 8;
    GIVES(tg_comm_link_new, ARGUMENT, "later version", refused(b->ctx, &other, TG_LINK_OPEN, 0, 2, 1));
    other.size = 0;
    GIVES(tg_comm_link_new, ARGUMENT, "the struct's size is 0", refused(b->ctx, &other, TG_LINK_OPEN, 0, 2, 0));
    GIVES(tg_comm_link_new, ARGUMENT, "state is NULL", is_inert_comm(tg_comm_link_new(b->ctx, &table, NULL, 0, 2)));
    GIVES(tg_comm_link_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_link_ops, name), 1));
    GIVES(tg_comm_link_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_link_ops, send), 1));
    GIVES(tg_comm_link_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_link_ops, receive), 1));
    GIVES(tg_comm_link_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_link_ops, poll), 1));
    GIVES(tg_comm_link_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_link_ops, explain), 1));
    GIVES(tg_comm_link_new, ARGUMENT, "required slot", refused_without(b->ctx, offsetof(tg_link_ops, close), 0));
    GIVES(tg_comm_link_new, ARGUMENT, "rank 2 of 2", refused(b->ctx, &table, TG_LINK_OPEN, 2, 2, 1));
    GIVES(tg_comm_link_new, ARGUMENT, "rank -1 of 2", refused(b->ctx, &table, TG_LINK_OPEN, -1, 2, 1));
    GIVES(tg_comm_link_new, ARGUMENT, "rank 0 of 0", refused(b->ctx, &table, TG_LINK_OPEN, 0, 0, 1));
    GIVES(tg_comm_link_new, UNSUPPORTED, "1025 ranks", refused(b->ctx, &table, TG_LINK_OPEN, 0, 1025, 1));
    GIVES(tg_comm_link_new, STATE, "none has ended", refused(b->ctx, &table, TG_LINK_ENDED, 0, 2, 1));
    GIVES(tg_comm_link_new, IO, "none: receiving failed: the line is cut (7)",
          refused(b->ctx, &table, TG_LINK_OPEN, 0, 2, 1));
    QUIET(tg_comm_link_new, refused(hasty, &table, TG_LINK_OPENING, 0, 2, 1) &&
                                tg_ctx_status(hasty) == TG_ERR_TIMEOUT &&
                                strstr(tg_ctx_message(hasty), "before all ranks of none were here"));
    tg_ctx_free(hasty);
}
