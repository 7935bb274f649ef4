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
    bool sp, tied, recompute, two_lengths, buckets, aux, scaled;
    int ahead, zero;
} choice;

/* Each pair of two choices occurs with both values. */
static const choice choices[] = {
    {2, 1, false, true, false, false, false, true, false, 0, 3},
    {2, 1, true, false, true, true, false, false, true, 3, 0},
    {1, 2, false, true, true, false, true, true, true, 2, 3},
    {1, 2, false, false, false, true, true, false, false, 0, 0},
    {2, 2, true, true, false, true, true, true, true, 1, 2},
    {1, 1, false, true, true, true, false, false, false, 9, 2},
    {2, 2, false, false, true, false, true, true, false, 1, 0},
    {2, 1, true, true, true, false, false, false, true, 2, 0},
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
            o.aux = c->aux, o.scaled = c->scaled;
            o.micros = 3 + i % 4;
            o.layers = 7;
            compose(&o, &(compose_layout){.tp = c->tp,
                                          .dp = c->dp,
                                          .pp = 2,
                                          .vp = interleaved ? 2 : 1,
                                          .sp = c->sp,
                                          .kind = interleaved ? TG_PIPE_INTERLEAVED : kinds[k],
                                          .ahead = c->ahead,
                                          .buckets = c->buckets,
                                          .zero = c->zero});
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

/* ---- Edges of several tensors ---- */

enum { ROWS = 3, WIDTH = 4, PARTS = 4 };

typedef struct several {
    tg_dtype dtype;
    tg_tensor *w[PARTS], *x, *mark;
    bool same; /* the integers have arrived */
} several;

static several make_several(tg_ctx *ctx, tg_dtype dtype) {
    several s = {.dtype = dtype, .same = true};
    int64_t mark[2] = {5, 7};
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i <= PARTS; i++) {
        tg_tensor *v = made(ctx, i, i < PARTS ? TG_SHAPE(WIDTH, WIDTH) : TG_SHAPE(ROWS, WIDTH));
        *(i < PARTS ? &s.w[i] : &s.x) = tg_keep(tg_cast(t, v, dtype));
        if (i < PARTS) tg_set_requires_grad(s.w[i], true);
        tg_drop(v);
    }
    s.mark = tg_from_host(ctx, TG_I64, TG_SHAPE(2), mark);
    tg_tape_free(t);
    return s;
}

/* h passes through all parts; the skip connection from part 0 to the last one is used by part 2 only, and part 1 does
 * not even make it anew; the marks are integers. */
static tg_status several_part(void *state, tg_pipe_call *c) {
    several *s = state;
    tg_tape *t = c->tape;
    int64_t mark[2];
    tg_tensor *h = tg_tanh(t, tg_linear(t, c->part ? c->input[0] : s->x, s->w[c->part], NULL));
    tg_tensor *skip = c->part ? c->input[1] : tg_scale(t, h, 2);
    if (c->part == 2) h = tg_mul(t, h, skip), skip = tg_square(t, h);
    if (c->part == c->parts - 1) {
        RUN(tg_read(c->input[2], mark, sizeof mark));
        s->same = s->same && mark[0] == 5 && mark[1] == 7;
        c->out[0] = tg_sum(t, h, TG_ALL_DIMS, false); /* the skip connection is not used */
        return tg_ctx_status(tg_tape_ctx(t));
    }
    c->out[0] = h;
    c->out[1] = skip;
    c->out[2] = c->part ? c->input[2] : tg_tape_input(t, s->mark);
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_status several_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_dtype dtype = *(const tg_dtype *)arg;
    several s = make_several(ctx, dtype), one = make_several(ctx, dtype);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2, .vp = 2));
    tg_pipe_plan *plan =
        tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_INTERLEAVED, .stages = 2, .chunks = 2, .micros = 2));
    tg_pipe_edge edge[] = {{.dtype = dtype, .shape = TG_SHAPE(ROWS, WIDTH)},
                           {.dtype = dtype, .shape = TG_SHAPE(ROWS, WIDTH)},
                           {.dtype = TG_I64, .shape = TG_SHAPE(2)}};
    tg_pipe *x = tg_pipe_new(p, plan, TG_PIPE(.edge = edge, .n_edge = 3));
    RUN(tg_pipe_run(x, several_part, &s));
    for (int m = 0; m < 2; m++) { /* the same parts on one tape */
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *in[3], *out[3] = {NULL};
        for (int part = 0; part < PARTS; part++) {
            memcpy(in, out, sizeof in);
            tg_pipe_call c = {.tape = t, .part = part, .parts = PARTS, .input = in, .out = out};
            RUN(several_part(&one, &c));
        }
        RUN(tg_backward(t, out[0]));
        tg_tape_free(t);
    }
    for (int part = tg_parallel_rank(p, TG_PP); part < PARTS; part += 2)
        EXPECT(ctx, off(tg_grad_of(s.w[part]), tg_grad_of(one.w[part]), -1, 0, 1) <= (dtype == TG_F64 ? 1e-12 : 0.02));
    EXPECT(ctx, s.same);
    tg_pipe_free(x);
    tg_pipe_plan_free(plan);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(an_edge_may_have_several_tensors) {
    on_ranks(2, several_rank, &(tg_dtype){TG_F64});
    on_ranks(2, several_rank, &(tg_dtype){TG_BF16});
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
    tg_pipe *x = compose_pipe(&s, l, NULL, &plan);
    tg_tape *t = tg_tape_new(alone);
    tg_tape_set_training(t, false);
    for (int step = 0; step < 2; step++) {
        compose_load(&s, step);
        compose_load(&whole, step);
        RUN(tg_pipe_run(x, compose_fn, &s));
        RUN(compose_alone(&whole, t, NULL, want));
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
                                  an_edge_may_have_several_tensors,
                                  evaluation_gives_the_losses_and_no_gradients};
    return tg_check_main("pipe", tests, sizeof tests / sizeof *tests);
}
