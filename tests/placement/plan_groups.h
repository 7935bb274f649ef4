/* One rank of a plan of tp 2 x dp 2 for tests of placements: nothing moves, so one rank is enough. */
#ifndef TG_PLAN_GROUPS_H
#define TG_PLAN_GROUPS_H

#include <tapegrad/parallel.h>
#include <tapegrad/tapegrad.h>

#include "on_ranks.h"

typedef struct groups {
    tg_ctx *ctx;
    tg_tape *t;
    tg_comm *world;
    tg_parallel *p;
} groups;

/* A rank of a plan of tp 2 x dp 2. Nothing moves, so one rank is enough. */
static inline groups begin(void) {
    groups g = {.ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64))};
    g.t = tg_tape_new(g.ctx);
    g.world = tg_comm_plan_new(g.ctx, 3, 4);
    g.p = tg_parallel_new(g.world, TG_PARALLEL(.tp = 2));
    ck_assert_msg(tg_ctx_status(g.ctx) == TG_OK, "%s", tg_ctx_message(g.ctx));
    return g;
}

static inline void end(groups *g) {
    ck_assert_msg(tg_ctx_status(g->ctx) == TG_OK, "%s", tg_ctx_message(g->ctx));
    tg_tape_free(g->t);
    tg_parallel_free(g->p);
    tg_comm_free(g->world);
    tg_ctx_free(g->ctx);
}

static inline const char *text(const tg_tensor *x) {
    static _Thread_local char buf[64];
    tg_placement_text(x, buf, sizeof buf);
    return buf;
}

#define ck_place(x, want) ck_assert_str_eq(text(x), want)
#define ck_refused(g, code, says)                                                                                      \
    do {                                                                                                               \
        const char *message_ = tg_ctx_message((g).ctx);                                                                \
        ck_assert_msg(tg_ctx_status((g).ctx) == (code) && strstr(message_, says), "%s", message_);                     \
        tg_ctx_clear((g).ctx);                                                                                         \
    } while (0)

#endif
