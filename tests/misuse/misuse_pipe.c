/* Plans of pipelines, and running them. test_pipe_plan has the lists of a caller that break a rule. */
#include <tapegrad/pipe.h>

#include "misuse/misuse.h"

static void plan_options(misuse_world *b) {
    static const double times[] = {1, -1, 1, 1}, one[] = {1, 1, 1, 1};
    static const tg_pipe_item list[] = {{TG_PIPE_F, 0, 0}, {TG_PIPE_B, 0, 0}};
    const tg_pipe_item *items[] = {list}, *none[] = {NULL};
    const int n_items[] = {2}, negative[] = {-1}, empty[] = {0};
    tg_pipe_plan_opts zero = {0}, later = {.size = sizeof later + 8};
#define PLAN(says, ...) GIVES(tg_pipe_plan_new, ARGUMENT, says, !tg_pipe_plan_new(b->ctx, __VA_ARGS__))
    QUIET(tg_pipe_plan_new, !tg_pipe_plan_new(NULL, NULL));
    PLAN("size is 0", &zero);
    PLAN("this library knows", &later);
    PLAN("stages is 0, expected 1 or more", NULL);
    PLAN("kind is 9", TG_PIPE_PLAN(.kind = (tg_pipe_kind)9));
    PLAN("stages is -1, expected 1 or more", TG_PIPE_PLAN(.stages = -1, .micros = 8));
    PLAN("micros is 0, expected 1 or more", TG_PIPE_PLAN(.stages = 4));
    PLAN("chunks is 0, expected 1 to 256", TG_PIPE_PLAN(.stages = 4, .micros = 8, .chunks = 0));
    PLAN("group is 0, expected 4 or more", TG_PIPE_PLAN(.stages = 4, .micros = 8, .group = 0));
    PLAN("chunks is 257, expected 1 to 256", TG_PIPE_PLAN(.stages = 4, .micros = 8, .chunks = 257));
    PLAN("chunks is 2, but schedule zb-h1 has 1 chunk per stage; use TG_PIPE_INTERLEAVED",
         TG_PIPE_PLAN(.kind = TG_PIPE_ZB_H1, .stages = 4, .micros = 8, .chunks = 2));
    PLAN("stages x chunks x micros is 65536 x 1 x 65536, expected a product of at most",
         TG_PIPE_PLAN(.stages = 65536, .micros = 65536));
    PLAN("group is 4, but schedule 1f1b has no turns; leave group TG_AUTO",
         TG_PIPE_PLAN(.kind = TG_PIPE_1F1B, .stages = 4, .micros = 8, .group = 4));
    PLAN("group is 3, expected 4 or more, the number of stages, or TG_AUTO",
         TG_PIPE_PLAN(.kind = TG_PIPE_INTERLEAVED, .stages = 4, .chunks = 2, .micros = 8, .group = 3));
    PLAN("f[1] is -1, expected a finite number >= 0", TG_PIPE_PLAN(.stages = 4, .micros = 8, .f = times));
    PLAN("b[1] is -1", TG_PIPE_PLAN(.stages = 4, .micros = 8, .f = one, .b = times));
    PLAN("w[1] is -1", TG_PIPE_PLAN(.stages = 4, .micros = 8, .f = one, .b = one, .w = times));
    PLAN("hop is nan, expected a finite number >= 0", TG_PIPE_PLAN(.stages = 4, .micros = 8, .hop = NAN));
    PLAN("the times are so large that their sum overflows", TG_PIPE_PLAN(.stages = 4, .micros = 8, .hop = 1e308));
    PLAN("the lists have 0 items, expected 1 to",
         TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = 1, .micros = 1, .items = none, .n_items = empty));
    PLAN("items and n_items must be given for TG_PIPE_CUSTOM",
         TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = 1, .micros = 1));
    PLAN("items and n_items must be given for TG_PIPE_CUSTOM",
         TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = 1, .micros = 1, .items = items));
    PLAN("items and n_items must be NULL, because only TG_PIPE_CUSTOM takes lists",
         TG_PIPE_PLAN(.kind = TG_PIPE_1F1B, .stages = 1, .micros = 1, .items = items, .n_items = n_items));
    PLAN("items[0] is NULL, and n_items[0] is 2",
         TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = 1, .micros = 1, .items = none, .n_items = n_items));
    PLAN("items[0] is a list, and n_items[0] is -1",
         TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = 1, .micros = 1, .items = items, .n_items = negative));
    PLAN("the list of stage 0 has no F1",
         TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = 1, .micros = 2, .items = items, .n_items = n_items));
}

static void plan_queries(misuse_world *b) {
    tg_pipe_plan *p = tg_pipe_plan_new(b->ctx, TG_PIPE_PLAN(.stages = 4, .micros = 8));
    tg_pipe_report r = TG_PIPE_REPORT(), zero = {0};
    char buf[64];
    QUIET(tg_pipe_plan_free, (tg_pipe_plan_free(NULL), true));
    QUIET(tg_pipe_plan_query, tg_pipe_plan_query(NULL, 0, &r) == TG_ERR_ARGUMENT);
    FAILS(tg_pipe_plan_query, ARGUMENT, "out is NULL or has no size; use TG_PIPE_REPORT()",
          tg_pipe_plan_query(p, 0, NULL));
    FAILS(tg_pipe_plan_query, ARGUMENT, "out is NULL or has no size", tg_pipe_plan_query(p, 0, &zero));
    FAILS(tg_pipe_plan_query, ARGUMENT, "stage is 4, expected 0 to 3, or TG_NONE for the whole plan",
          tg_pipe_plan_query(p, 4, &r));
    FAILS(tg_pipe_plan_query, ARGUMENT, "stage is -2", tg_pipe_plan_query(p, -2, &r));
    QUIET(tg_pipe_plan_text, tg_pipe_plan_text(NULL, TG_TEXT, buf, sizeof buf) == 0 && !buf[0]);
    QUIET(tg_pipe_plan_text, tg_pipe_plan_text(p, TG_TEXT, NULL, 100) > 100);
    QUIET(tg_pipe_plan_text, tg_pipe_plan_text(p, TG_SVG, buf, 3) > 3 && !buf[2]);
    GIVES(tg_pipe_plan_text, ARGUMENT, "format 1, expected TG_TEXT or TG_SVG",
          tg_pipe_plan_text(p, TG_JSON, buf, sizeof buf) == 0);
    tg_pipe_plan_free(p);
}

static tg_status compute_nothing(void *state, tg_pipe_call *c) {
    (void)state, (void)c;
    return TG_OK;
}

/* On the first stage of a plan of two ranks. */
static void running(misuse_world *b) {
    tg_comm *world = tg_comm_plan_new(b->ctx, 0, 2);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    tg_pipe_plan *plan = tg_pipe_plan_new(b->ctx, TG_PIPE_PLAN(.stages = 2, .micros = 2)),
                 *long_plan = tg_pipe_plan_new(b->ctx, TG_PIPE_PLAN(.stages = 4, .micros = 2)),
                 *far = tg_pipe_plan_new(b->far, TG_PIPE_PLAN(.stages = 2, .micros = 2));
    const tg_place_at axis = {TG_PP, TG_I};
    tg_pipe_edge edge = {.dtype = TG_F32, .shape = TG_SHAPE(2, 3)}, small = {.dtype = TG_F8E4M3, .shape = TG_SHAPE(2)},
                 wide = {.shape = {.ndim = 9}}, placed = {TG_F32, TG_SHAPE(2), &axis, 1},
                 none = {TG_F32, TG_SHAPE(2), NULL, 1};
    tg_pipe_opts zero = {0}, later = {.size = sizeof later + 8};
#define PIPE(code, says, plan_, ...) GIVES(tg_pipe_new, code, says, !tg_pipe_new(p, plan_, __VA_ARGS__))
    QUIET(tg_pipe_new, !tg_pipe_new(NULL, plan, NULL));
    PIPE(ARGUMENT, "size is 0", plan, &zero);
    PIPE(ARGUMENT, "this library knows", plan, &later);
    PIPE(ARGUMENT, "the plan is NULL", NULL, TG_PIPE(.edge = &edge, .n_edge = 1));
    PIPE(ARGUMENT, "the plan is of another context", far, TG_PIPE(.edge = &edge, .n_edge = 1));
    PIPE(ARGUMENT, "the plan has 4 stages of 1 chunk, but", long_plan, TG_PIPE(.edge = &edge, .n_edge = 1));
    PIPE(ARGUMENT, "n_edge is 0 and edge is", plan, NULL);
    PIPE(ARGUMENT, "n_edge is -1", plan, TG_PIPE(.edge = &edge, .n_edge = -1));
    PIPE(ARGUMENT, "n_edge is 1 and edge is (nil)", plan, TG_PIPE(.n_edge = 1));
    PIPE(ARGUMENT, "ahead is 0, expected 1 or more", plan, TG_PIPE(.edge = &edge, .n_edge = 1, .ahead = 0));
    PIPE(ARGUMENT, "ahead is -1, expected 1 or more", plan, TG_PIPE(.edge = &edge, .n_edge = 1, .ahead = -1));
    PIPE(SHAPE, "tensor 0 of the edges", plan, TG_PIPE(.edge = &wide, .n_edge = 1));
    PIPE(DTYPE, "tensor 0 of the edges: dtype is f8e4m3, which collectives do not move; declare another", plan,
         TG_PIPE(.edge = &small, .n_edge = 1));
    PIPE(ARGUMENT, "n_at is 1 and at is", plan, TG_PIPE(.edge = &none, .n_edge = 1));
    PIPE(ARGUMENT, "(tensor 0 of the edges of tg_pipe_new)", plan, TG_PIPE(.edge = &placed, .n_edge = 1));
    tg_pipe *x = tg_pipe_new(p, plan, TG_PIPE(.edge = &edge, .n_edge = 1));
    QUIET(tg_pipe_run, tg_pipe_run(NULL, compute_nothing, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_pipe_run, ARGUMENT, "fn is NULL", tg_pipe_run(x, NULL, NULL));
    FAILS(tg_pipe_run, ARGUMENT, "fn has not set out[0] (in F0 of part 0 of 2 of tg_pipe_run)",
          tg_pipe_run(x, compute_nothing, NULL));
    QUIET(tg_pipe_losses, misuse_inert(tg_pipe_losses(NULL)));
    QUIET(tg_pipe_free, (tg_pipe_free(NULL), true));
    tg_parallel_free(p);
    FAILS(tg_pipe_run, STATE, "the tg_parallel of the pipe was freed", tg_pipe_run(x, compute_nothing, NULL));
    tg_pipe_free(x);
    tg_pipe_plan_free(plan);
    tg_pipe_plan_free(long_plan);
    tg_pipe_plan_free(far);
    tg_comm_free(world);
}

void misuse_pipe(misuse_world *b) {
    plan_options(b);
    plan_queries(b);
    running(b);
}
