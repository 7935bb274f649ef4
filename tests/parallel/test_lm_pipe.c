/* Language models in pipelines: over pp, vp, tp and sp, by every schedule, tied or not, with dropout, recomputation and
 * multi-token prediction, the losses and all gradients of a step are one rank's. */
#include <tapegrad/gpt.h>
#include <tapegrad/pipe.h>

#include "lm_cases.h"

enum { MICROS = 5, CHUNKS = 3, PARAMS = 256 };

typedef struct composition {
    int pp, vp, tp;
    bool sp, gpt2, tied;
    tg_pipe_kind kind;
    double dropout;
    int mtp;
    tg_gpt_recompute recompute;
    tg_gpt_wgrad wgrad;
    const char *layout;
} composition;

static tg_lm_config config_of(const composition *c) {
    tg_lm_config out = c->gpt2 ? *TG_LM(LM_GPT2) : *TG_LM(LM_SMALL, .kv_heads = 2);
    out.tied = c->tied;
    out.dropout = c->dropout;
    out.mtp = c->mtp;
    return out;
}

/* ---- One rank ---- */

/* Accumulates the gradients of all micro-batches, and returns the losses. */
static tg_module *on_one_rank(alone *a, const composition *c, double loss[MICROS]) {
    tg_lm_config whole = config_of(c);
    whole.parallel = a->p;
    tg_module *m = tg_lm_new(a->ctx, &whole);
    tg_draws_step(a->ctx, 1);
    for (int i = 0; i < MICROS; i++) {
        lm_batch b = lm_batch_new(a->ctx, NULL, i);
        tg_pipe_call call = {.size = sizeof call, .tape = a->t, .micro = i, .out = &(tg_tensor *){NULL}};
        tg_lm_part(m, &call, b.ids, b.targets, NULL);
        loss[i] = tg_item(call.out[0]);
        tg_backward(a->t, call.out[0]);
        tg_tape_reset(a->t);
        lm_batch_drop(&b);
    }
    return m;
}

/* ---- Ranks ---- */

typedef struct stage {
    tg_module *lm[CHUNKS];
    lm_batch batch[MICROS];
} stage;

static tg_status run_part(void *state, tg_pipe_call *c) {
    stage *s = state;
    return tg_lm_part(s->lm[c->chunk], c, s->batch[c->micro].ids, s->batch[c->micro].targets, NULL);
}

static tg_pipe *pipe_of(const tg_parallel *p, const composition *c, const tg_pipe_plan *plan) {
    int64_t rows = c->sp ? LM_LENGTH / c->tp : LM_LENGTH;
    const tg_place_at at[] = {{TG_TP, c->sp ? TG_SHARD(0) : TG_I}};
    const tg_pipe_edge edge = {.dtype = TG_F64, .shape = TG_SHAPE(rows, LM_BATCH, LM_HIDDEN), .at = at, .n_at = 1};
    return tg_pipe_new(p, plan, TG_PIPE(.edge = &edge, .n_edge = 1));
}

static tg_status open_stage(tg_ctx *ctx, const tg_parallel *p, const composition *c, stage *s) {
    tg_lm_config part = config_of(c);
    part.parallel = p;
    part.layout = c->layout;
    part.recompute = c->recompute;
    part.wgrad = c->wgrad;
    for (int i = 0; i < c->vp; i++) {
        part.chunk = i;
        s->lm[i] = tg_lm_new(ctx, &part);
    }
    for (int i = 0; i < MICROS; i++) s->batch[i] = lm_batch_new(ctx, p, i);
    return tg_ctx_status(ctx);
}

/* Compares the parameters and gradients of a chunk with those of the whole model. */
static tg_status compare(tg_ctx *ctx, const tg_parallel *p, const composition *c, tg_module *lm, tg_module *whole) {
    for (int i = 0; i < tg_module_param_count(lm); i++) {
        const char *path;
        tg_tensor *x = tg_module_param(lm, i, &path), *y = tg_module_find(whole, path);
        int r = tg_parallel_rank(p, TG_TP);
        if (!is_part(x, y, TG_TP, r, c->tp, 0))
            return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s was not drawn as on one rank", path);
        if (!is_part(tg_grad_of(x), tg_grad_of(y), TG_TP, r, c->tp, 1e-10))
            return tg_ctx_fail(ctx, TG_ERR_GRADIENT, "the gradient of %s is not one rank's", path);
    }
    return TG_OK;
}

static tg_status pipe_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const composition *c = arg;
    alone a = alone_open();
    stage s;
    double want[MICROS], got[MICROS];
    tg_tensor *params[PARAMS];
    tg_module *whole = on_one_rank(&a, c, want);
    tg_parallel *p =
        tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .pp = c->pp, .vp = c->vp, .sequence_parallel = c->sp));
    RUN(open_stage(ctx, p, c, &s));
    tg_pipe_plan *plan =
        tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = c->kind, .stages = c->pp, .chunks = c->vp, .micros = MICROS));
    tg_pipe *pipe = pipe_of(p, c, plan);
    RUN(tg_draws_step(ctx, 1));
    RUN(tg_pipe_run(pipe, run_part, &s));
    int n = 0;
    for (int i = 0; i < c->vp; i++) {
        if (c->wgrad == TG_WGRAD_DEFERRED) RUN(tg_wgrads_drain(s.lm[i]));
        n += tg_module_params(s.lm[i], params + n, PARAMS - n);
    }
    RUN(tg_grads_finalize(p, params, n, NULL));
    RUN(tg_read_f64(tg_pipe_losses(pipe), got, MICROS));
    for (int i = 0; i < MICROS && tg_parallel_rank(p, TG_PP) == c->pp - 1; i++)
        EXPECT(ctx, fabs(got[i] - want[i]) <= 1e-10 * fabs(want[i]));
    for (int i = 0; i < c->vp; i++) RUN(compare(ctx, p, c, s.lm[i], whole));
    tg_pipe_free(pipe);
    tg_pipe_plan_free(plan);
    for (int i = 0; i < c->vp; i++) tg_module_free(s.lm[i]);
    for (int i = 0; i < MICROS; i++) lm_batch_drop(&s.batch[i]);
    tg_module_free(whole);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

static void run_all(const composition *c, size_t n) {
    for (size_t i = 0; i < n; i++) on_ranks(c[i].pp * c[i].tp, pipe_rank, (void *)&c[i]);
}

START_TEST(a_pipeline_computes_what_one_rank_does) {
    static const composition rows[] = {
        {.pp = 2, .vp = 1, .tp = 1, .kind = TG_PIPE_1F1B},
        {.pp = 2, .vp = 1, .tp = 1, .kind = TG_PIPE_GPIPE, .gpt2 = true, .tied = true, .dropout = 0.1},
        {.pp = 4, .vp = 1, .tp = 1, .kind = TG_PIPE_ZB_H1, .gpt2 = true, .tied = true, .layout = "E|t*2|t|t L"},
        {.pp = 2, .vp = 2, .tp = 1, .kind = TG_PIPE_INTERLEAVED, .dropout = 0.1, .tied = true},
        {.pp = 2, .vp = 3, .tp = 1, .kind = TG_PIPE_INTERLEAVED, .gpt2 = true, .layout = "E|t|t|t|t|L"},
        {.pp = 2, .vp = 1, .tp = 2, .sp = true, .kind = TG_PIPE_1F1B, .gpt2 = true, .tied = true, .dropout = 0.1},
        {.pp = 2, .vp = 1, .tp = 2, .kind = TG_PIPE_ZB_H1, .dropout = 0.1, .recompute = TG_GPT_FULL},
        {.pp = 2, .vp = 2, .tp = 2, .sp = true, .kind = TG_PIPE_INTERLEAVED, .recompute = TG_GPT_SELECTIVE},
        {.pp = 2, .vp = 1, .tp = 1, .kind = TG_PIPE_1F1B, .wgrad = TG_WGRAD_DEFERRED, .layout = "E t*3|t L"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

START_TEST(the_last_stage_predicts_further_tokens) {
    static const composition rows[] = {
        {.pp = 2, .vp = 1, .tp = 1, .kind = TG_PIPE_1F1B, .mtp = 2, .dropout = 0.1},
        {.pp = 2, .vp = 1, .tp = 2, .sp = true, .kind = TG_PIPE_ZB_H1, .mtp = 1, .tied = true},
        {.pp = 2,
         .vp = 2,
         .tp = 1,
         .kind = TG_PIPE_INTERLEAVED,
         .mtp = 1,
         .layout = "E t|t|t|t m L",
         .gpt2 = true,
         .tied = true,
         .recompute = TG_GPT_FULL},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_pipeline_computes_what_one_rank_does, the_last_stage_predicts_further_tokens};
    return tg_check_main("lm_pipe", tests, sizeof tests / sizeof *tests);
}
