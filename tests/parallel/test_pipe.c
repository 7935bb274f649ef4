/* Pipelines against one rank: every schedule, over tensor, sequence and data parallelism (compose.h). */
#include <stdlib.h>

#include "parallel/compose.h"

static const compose_program plain = {.layers = 5, .micros = 4, .steps = 2, .rows = 4, .length = 4};

static bool is_long(void) { return getenv("TG_LONG"); }

/* ---- Schedules ---- */

static const tg_pipe_kind kinds[] = {TG_PIPE_GPIPE, TG_PIPE_1F1B, TG_PIPE_ZB_H1};

/* Layers do not divide over the parts: 5 over 2 and 4 stages, 7 over interleaved ones. */
START_TEST(every_schedule_gives_one_ranks_result) {
    for (int pp = 2; pp <= 4; pp *= 2)
        for (int k = 0; k < 3; k++)
            for (int m = 1; m <= 9; m += is_long() ? 1 : 4) {
                compose_program o = plain;
                o.micros = m;
                compose(&o, &(compose_layout){.tp = 1, .dp = 1, .pp = pp, .vp = 1, .kind = kinds[k]});
            }
}
END_TEST

START_TEST(interleaved_schedules_give_one_ranks_result) {
    for (int pp = 2; pp <= 4; pp *= 2)
        for (int vp = 2; vp <= 3; vp++)
            for (int m = 1; m <= 9; m += is_long() ? 1 : 4) {
                compose_program o = plain;
                o.micros = m;
                o.layers = 13;
                compose(&o, &(compose_layout){.tp = 1, .dp = 1, .pp = pp, .vp = vp, .kind = TG_PIPE_INTERLEAVED});
                compose(&o, &(compose_layout){.tp = 1, .dp = 1, .pp = pp, .vp = vp, .kind = TG_PIPE_GPIPE});
            }
}
END_TEST

/* One stage runs without messages. */
START_TEST(one_stage_needs_no_messages) {
    for (int k = 0; k < 3; k++)
        compose(&plain, &(compose_layout){.tp = 1, .dp = 1, .pp = 1, .vp = 1, .kind = kinds[k]});
}
END_TEST

/* ---- Other axes and programs ---- */

typedef struct choice {
    int tp, dp;
    bool sp, tied, recompute, two_lengths, buckets;
    int ahead;
} choice;

/* Each pair of two choices occurs with both values. */
static const choice choices[] = {
    {2, 1, false, true, false, false, false, 0}, {2, 1, true, false, true, true, false, 3},
    {1, 2, false, true, true, false, true, 2},   {1, 2, false, false, false, true, true, 0},
    {2, 2, true, true, false, true, true, 1},    {1, 1, false, true, true, true, false, 9},
    {2, 2, false, false, true, false, true, 1},  {2, 1, true, true, true, false, false, 2},
};

START_TEST(all_axes_together_give_one_ranks_result) {
    int n = sizeof choices / sizeof *choices;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 4; k++) {
            const choice *c = &choices[i];
            bool interleaved = k == 3;
            if (!is_long() && k != i % 4) continue;
            compose_program o = plain;
            o.tied = c->tied, o.recompute = c->recompute, o.two_lengths = c->two_lengths;
            o.micros = 3 + i % 4;
            o.layers = 7;
            compose(&o, &(compose_layout){.tp = c->tp,
                                          .dp = c->dp,
                                          .pp = 2,
                                          .vp = interleaved ? 2 : 1,
                                          .sp = c->sp,
                                          .kind = interleaved ? TG_PIPE_INTERLEAVED : kinds[k],
                                          .ahead = c->ahead,
                                          .buckets = c->buckets});
        }
}
END_TEST

/* A caller's own list: forwards of all micro-batches but the last, and weights at the very end. */
START_TEST(a_list_of_the_callers_own_gives_one_ranks_result) {
    tg_pipe_item item[9];
    for (int m = 0; m < 3; m++) {
        item[m] = (tg_pipe_item){TG_PIPE_F, 0, m};
        item[3 + m] = (tg_pipe_item){TG_PIPE_B, 0, 2 - m};
        item[6 + m] = (tg_pipe_item){TG_PIPE_W, 0, 2 - m};
    }
    const tg_pipe_item *items[] = {item, item};
    const int n_items[] = {9, 9};
    compose_program o = plain;
    o.micros = 3;
    compose(&o, &(compose_layout){
                    .tp = 1, .dp = 1, .pp = 2, .vp = 1, .kind = TG_PIPE_CUSTOM, .items = items, .n_items = n_items});
}
END_TEST

/* ---- Evaluation ---- */

static tg_status evaluate(void *arg, tg_ctx *ctx, tg_comm *world) {
    const compose_layout *l = arg;
    compose_stack s, whole;
    tg_pipe_plan *plan;
    double got[COMPOSE_MICROS], want[COMPOSE_MICROS];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = l->pp, .vp = l->vp));
    tg_ctx *alone = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7));
    tg_comm *self = tg_comm_self_new(alone);
    tg_parallel *one = tg_parallel_new(self, NULL);
    RUN(compose_open(&s, p, &plain, tg_parallel_rank(p, TG_PP), l->pp, l->vp));
    RUN(compose_open(&whole, one, &plain, 0, 1, s.parts));
    tg_pipe *x = compose_pipe(&s, l, &plan);
    tg_tape *t = tg_tape_new(alone);
    tg_tape_set_training(t, false);
    for (int step = 0; step < 2; step++) {
        compose_load(&s, step);
        compose_load(&whole, step);
        RUN(tg_pipe_run(x, compose_fn, &s));
        RUN(compose_alone(&whole, t, want));
        RUN(tg_read_f64(tg_pipe_losses(x), got, plain.micros));
        compose_sum(world, 1, got, plain.micros);
        for (int m = 0; m < plain.micros; m++) EXPECT(ctx, fabs(got[m] - want[m]) < 1e-12);
    }
    for (int i = 0; i < tg_module_param_count(s.all); i++) EXPECT(ctx, !tg_has_grad(tg_module_param(s.all, i, NULL)));
    tg_pipe_free(x);
    tg_pipe_plan_free(plan);
    compose_close(&s);
    compose_close(&whole);
    tg_tape_free(t);
    tg_parallel_free(one);
    tg_comm_free(self);
    tg_ctx_free(alone);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(evaluation_gives_the_losses_and_no_gradients) {
    on_ranks(2, evaluate, &(compose_layout){.pp = 2, .vp = 1, .kind = TG_PIPE_FORWARD});
    on_ranks(4, evaluate, &(compose_layout){.pp = 4, .vp = 1, .kind = TG_PIPE_FORWARD});
    on_ranks(2, evaluate, &(compose_layout){.pp = 2, .vp = 2, .kind = TG_PIPE_FORWARD});
}
END_TEST

int main(void) {
    const TTest *const tests[] = {every_schedule_gives_one_ranks_result,
                                  interleaved_schedules_give_one_ranks_result,
                                  one_stage_needs_no_messages,
                                  all_axes_together_give_one_ranks_result,
                                  a_list_of_the_callers_own_gives_one_ranks_result,
                                  evaluation_gives_the_losses_and_no_gradients};
    return tg_check_main("pipe", tests, sizeof tests / sizeof *tests);
}
