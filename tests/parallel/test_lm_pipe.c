/* Language models in pipelines: over pp, vp, tp, sp, cp and dp, by every schedule, tied or not, with dropout,
 * recomputation, multi-token prediction and the blocks of several families, the losses of some steps, the gradients
 * and the parameters are one rank's. */
#include <stdlib.h>

#include <tapegrad/pipe.h>

#include "lm_cases.h"

/* Blocks that published families have. */
typedef enum blocks { LLAMA, GEMMA, QWEN, PHI, OLMO, OLMO_2 } blocks;

enum { MICROS = 5, CHUNKS = 3, PARAMS = 256, STEPS = 10 };

typedef struct composition {
    int pp, vp, tp, cp, dp; /* 0 means 1 */
    tg_cp_kind cp_kind;
    int cp_inner; /* 0 means all */
    bool sp, gpt2, tied;
    blocks of;
    tg_pipe_kind kind;
    double dropout;
    int mtp;
    tg_gpt_recompute recompute;
    tg_gpt_wgrad wgrad;
    const char *layout;
} composition;

static int steps(void) { return getenv("TG_LONG") ? STEPS : 2; }

static tg_lm_config blocks_of(const composition *c) {
    switch (c->of) {
    case GEMMA:
        return *TG_LM(LM_SMALL, .kv_heads = 2, .family = "gemma3_text", .norm_place = TG_LM_NORM_AROUND,
                      .unit_norm = true, .qk_norm = TG_LM_QK_NORM_OF_HEADS, .activation = TG_LM_GEGLU_TANH,
                      .embed_scale = 4, .attention_softcap = 5, .logit_softcap = 3, .window = 3,
                      .attention_kinds = "wf", .rope_local_base = 300);
    case QWEN:
        return *TG_LM(LM_SMALL, .kv_heads = 1, .family = "qwen3", .qk_norm = TG_LM_QK_NORM_OF_HEADS,
                      .qkv_bias = true, .rope_kind = TG_ROPE_YARN, .rope_factor = 4, .rope_original = 4);
    case PHI:
        return *TG_LM(LM_SMALL, .norm = TG_LM_LAYER_NORM, .activation = TG_LM_GELU_TANH, .parallel_residual = true,
                      .bias = true, .rope_dims = 2);
    case OLMO:
        return *TG_LM(LM_SMALL, .norm = TG_LM_PLAIN_LAYER_NORM, .clip_qkv = 0.3, .attention_kinds = "fF");
    case OLMO_2:
        return *TG_LM(LM_SMALL, .norm_place = TG_LM_NORM_AFTER, .qk_norm = TG_LM_QK_NORM_OF_PROJECTIONS);
    default: return c->gpt2 ? *TG_LM(LM_GPT2) : *TG_LM(LM_SMALL, .kv_heads = 2);
    }
}

static tg_lm_config config_of(const composition *c) {
    tg_lm_config out = blocks_of(c);
    out.tied = c->tied;
    out.dropout = c->dropout;
    out.mtp = c->mtp;
    return out;
}

/* Sets the tokens of each depth in a step, for all parts. Returns those of the loss itself. */
static int64_t set_tokens(tg_module *const *lm, int n) {
    int64_t tokens[1 + LM_DEPTHS];
    for (int d = 0; d <= LM_DEPTHS; d++) tokens[d] = MICROS * LM_BATCH * (LM_LENGTH - 1 - d);
    for (int i = 0; i < n; i++) tg_lm_set_tokens(lm[i], tokens);
    return tokens[0];
}

/* ---- One rank ---- */

typedef struct reference {
    alone a;
    tg_module *lm;
    tg_optim *o;
    tg_tensor *params[PARAMS];
    int n;
} reference;

static void reference_open(reference *r, const composition *c) {
    tg_lm_config whole = config_of(c);
    r->a = alone_open();
    whole.parallel = r->a.p;
    r->lm = tg_lm_new(r->a.ctx, &whole);
    r->n = tg_module_params(r->lm, r->params, PARAMS);
    r->o = tg_adamw_new(r->a.ctx, r->params, r->n, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_clip(r->o, 0.5);
}

/* Computes the losses and gradients of a step. */
static void reference_gradients(reference *r, int step, double loss[MICROS]) {
    int64_t tokens = set_tokens(&r->lm, 1);
    tg_draws_step(r->a.ctx, (uint64_t)step);
    for (int i = 0; i < MICROS; i++) {
        tg_tensor *out = NULL;
        lm_batch b = lm_batch_new(r->a.ctx, NULL, i);
        tg_pipe_call call = {.size = sizeof call, .tape = r->a.t, .micro = i, .out = &out};
        tg_lm_part(r->lm, &call, b.ids, b.targets, NULL);
        loss[i] = tg_item(out);
        tg_backward(r->a.t, out);
        tg_tape_reset(r->a.t);
        lm_batch_drop(&b);
    }
    tg_tensor *count = tg_from_host(r->a.ctx, TG_I64, TG_SHAPE(1), &tokens);
    tg_grads_finalize(r->a.p, r->params, r->n, TG_FINALIZE(.tokens = count));
    tg_drop(count);
}

static tg_status reference_close(tg_ctx *ctx, reference *r) {
    tg_optim_free(r->o);
    tg_module_free(r->lm);
    return alone_close(ctx, &r->a);
}

/* ---- A stage ---- */

typedef struct stage {
    const composition *c;
    tg_parallel *p;
    tg_module *lm[CHUNKS];
    lm_batch batch[MICROS];
    tg_tensor *params[PARAMS];
    int n;
    tg_optim *o;
    tg_pipe_plan *plan;
    tg_pipe *pipe;
} stage;

static tg_status run_part(void *state, tg_pipe_call *c) {
    stage *s = state;
    return tg_lm_part(s->lm[c->chunk], c, s->batch[c->micro].ids, s->batch[c->micro].targets, NULL);
}

static void make_pipe(tg_ctx *ctx, stage *s) {
    const composition *c = s->c;
    int64_t rows = LM_LENGTH / c->cp / (c->sp ? c->tp : 1);
    const tg_place_at at[] = {
        {TG_CP, TG_SHARD_ZIGZAG(0)}, {TG_TP, c->sp ? TG_SHARD(0) : TG_I}, {TG_DP, TG_SHARD(1)}};
    const tg_pipe_edge edge = {
        .dtype = TG_F64, .shape = TG_SHAPE(rows, LM_BATCH / c->dp, LM_HIDDEN), .at = at, .n_at = 3};
    s->plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = c->kind, .stages = c->pp, .chunks = c->vp, .micros = MICROS));
    s->pipe = tg_pipe_new(s->p, s->plan, TG_PIPE(.edge = &edge, .n_edge = 1));
}

static tg_status stage_open(tg_ctx *ctx, tg_comm *world, const composition *c, stage *s) {
    tg_lm_config part = config_of(c);
    *s = (stage){.c = c};
    s->p = tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .cp = c->cp, .pp = c->pp, .vp = c->vp,
                                             .sequence_parallel = c->sp));
    part.parallel = s->p;
    part.cp_kind = c->cp_kind;
    part.cp_inner = c->cp_inner ? c->cp_inner : TG_AUTO;
    part.layout = c->layout;
    part.recompute = c->recompute;
    part.wgrad = c->wgrad;
    for (int i = 0; i < c->vp; i++) {
        part.chunk = i;
        s->lm[i] = tg_lm_new(ctx, &part);
        s->n += tg_module_params(s->lm[i], s->params + s->n, PARAMS - s->n);
    }
    for (int i = 0; i < MICROS; i++) s->batch[i] = lm_batch_new(ctx, s->p, i);
    s->o = tg_adamw_new(ctx, s->params, s->n, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_clip(s->o, 0.5);
    make_pipe(ctx, s);
    return tg_ctx_status(ctx);
}

/* Computes the losses, summed over dp and cp, and the gradients of a step. */
static tg_status stage_gradients(tg_ctx *ctx, stage *s, int step, double loss[MICROS]) {
    bool last = tg_parallel_rank(s->p, TG_PP) == s->c->pp - 1;
    int64_t tokens = set_tokens(s->lm, s->c->vp);
    if (!last || tg_comm_rank(tg_parallel_dp_cp(s->p))) tokens = 0; /* one rank counts the tokens of all */
    RUN(tg_draws_step(ctx, (uint64_t)step));
    RUN(tg_pipe_run(s->pipe, run_part, s));
    for (int i = 0; i < s->c->vp && s->c->wgrad == TG_WGRAD_DEFERRED; i++) RUN(tg_wgrads_drain(s->lm[i]));
    return lm_finish_step(ctx, s->p, s->pipe, s->params, s->n, tokens, loss, MICROS);
}

static void stage_close(stage *s) {
    tg_pipe_free(s->pipe);
    tg_pipe_plan_free(s->plan);
    tg_optim_free(s->o);
    for (int i = 0; i < s->c->vp; i++) tg_module_free(s->lm[i]);
    for (int i = 0; i < MICROS; i++) lm_batch_drop(&s->batch[i]);
    tg_parallel_free(s->p);
}

/* ---- Comparisons ---- */

/* Compares a stage's parameters, or their gradients, with those of the whole model. */
static tg_status compare(tg_ctx *ctx, const stage *s, tg_module *whole, bool gradients, double within) {
    for (int k = 0; k < s->c->vp; k++)
        for (int i = 0; i < tg_module_param_count(s->lm[k]); i++) {
            const char *path;
            tg_tensor *x = tg_module_param(s->lm[k], i, &path), *y = tg_module_find(whole, path);
            if (gradients) x = tg_grad_of(x), y = tg_grad_of(y);
            if (!is_part(x, y, TG_TP, tg_parallel_rank(s->p, TG_TP), s->c->tp, within))
                return tg_ctx_fail(ctx, TG_ERR_GRADIENT, "%s%s is not one rank's", gradients ? "the gradient of " : "",
                                   path);
        }
    return TG_OK;
}

static tg_status pipe_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    reference r;
    stage s;
    double want[MICROS], got[MICROS];
    reference_open(&r, arg);
    RUN(stage_open(ctx, world, arg, &s));
    bool last = tg_parallel_rank(s.p, TG_PP) == s.c->pp - 1;
    RUN(compare(ctx, &s, r.lm, false, 0)); /* drawn alike, bit for bit */
    for (int step = 1; step <= steps(); step++) {
        reference_gradients(&r, step, want);
        RUN(stage_gradients(ctx, &s, step, got));
        for (int i = 0; i < MICROS && last; i++) EXPECT(ctx, fabs(got[i] - want[i]) <= 1e-10 * fabs(want[i]));
        RUN(compare(ctx, &s, r.lm, true, 1e-10));
        tg_optim_step(r.o), tg_optim_zero_grad(r.o);
        RUN(tg_optim_step(s.o));
        EXPECT(ctx, fabs(tg_optim_norm(s.o) - tg_optim_norm(r.o)) <= 1e-10 * tg_optim_norm(r.o));
        RUN(tg_optim_zero_grad(s.o));
        RUN(compare(ctx, &s, r.lm, false, 1e-10));
    }
    stage_close(&s);
    return reference_close(ctx, &r);
}

static void run_all(const composition *given, size_t n) {
    for (size_t i = 0; i < n; i++) {
        composition c = given[i];
        if (!c.vp) c.vp = 1;
        if (!c.tp) c.tp = 1;
        if (!c.cp) c.cp = 1;
        if (!c.dp) c.dp = 1;
        on_ranks(c.pp * c.tp * c.cp * c.dp, pipe_rank, &c);
    }
}

START_TEST(a_pipeline_computes_what_one_rank_does) {
    static const composition rows[] = {
        {.pp = 2, .kind = TG_PIPE_1F1B},
        {.pp = 2, .kind = TG_PIPE_GPIPE, .gpt2 = true, .tied = true, .dropout = 0.1},
        {.pp = 4, .kind = TG_PIPE_ZB_H1, .gpt2 = true, .tied = true, .layout = "E|t*2|t|t L"},
        {.pp = 2, .vp = 2, .kind = TG_PIPE_INTERLEAVED, .dropout = 0.1, .tied = true},
        {.pp = 2, .vp = 3, .kind = TG_PIPE_INTERLEAVED, .gpt2 = true, .layout = "E|t|t|t|t|L"},
        {.pp = 2, .tp = 2, .sp = true, .kind = TG_PIPE_1F1B, .gpt2 = true, .tied = true, .dropout = 0.1},
        {.pp = 2, .tp = 2, .kind = TG_PIPE_ZB_H1, .dropout = 0.1, .recompute = TG_GPT_FULL},
        {.pp = 2, .vp = 2, .tp = 2, .sp = true, .kind = TG_PIPE_INTERLEAVED, .recompute = TG_GPT_SELECTIVE},
        {.pp = 2, .dp = 2, .kind = TG_PIPE_1F1B, .gpt2 = true, .tied = true, .dropout = 0.1},
        {.pp = 2, .kind = TG_PIPE_1F1B, .wgrad = TG_WGRAD_DEFERRED, .layout = "E t*3|t L"},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

START_TEST(blocks_of_other_families_are_divided_alike) {
    static const composition rows[] = {
        {.pp = 2, .tp = 2, .of = GEMMA, .tied = true, .dropout = 0.1},
        {.pp = 1, .tp = 2, .sp = true, .cp = 2, .of = GEMMA, .recompute = TG_GPT_SELECTIVE},
        {.pp = 1, .tp = 2, .of = QWEN, .recompute = TG_GPT_FULL},
        {.pp = 2, .tp = 2, .sp = true, .of = QWEN, .kind = TG_PIPE_1F1B, .tied = true},
        {.pp = 1, .tp = 2, .sp = true, .of = PHI, .dropout = 0.1, .recompute = TG_GPT_SELECTIVE},
        {.pp = 1, .tp = 2, .cp = 2, .of = PHI},
        {.pp = 2, .tp = 2, .sp = true, .of = OLMO, .kind = TG_PIPE_1F1B},
        {.pp = 2, .dp = 2, .of = OLMO_2, .kind = TG_PIPE_1F1B, .mtp = 1},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

START_TEST(the_last_stage_predicts_further_tokens) {
    static const composition rows[] = {
        {.pp = 2, .kind = TG_PIPE_1F1B, .mtp = 2, .dropout = 0.1},
        {.pp = 2, .tp = 2, .sp = true, .kind = TG_PIPE_ZB_H1, .mtp = 1, .tied = true},
        {.pp = 2, .dp = 2, .kind = TG_PIPE_GPIPE, .mtp = 2},
        {.pp = 2,
         .vp = 2,
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

START_TEST(ranks_divide_sequences_too) {
    static const composition rows[] = {
        {.pp = 1, .cp = 2},
        {.pp = 1, .cp = 4, .gpt2 = true, .tied = true, .dropout = 0.1},
        {.pp = 1, .cp = 2, .cp_kind = TG_CP_GATHER, .gpt2 = true, .dropout = 0.1, .mtp = 2},
        {.pp = 1, .cp = 4, .cp_kind = TG_CP_ULYSSES, .dropout = 0.1, .recompute = TG_GPT_FULL},
        {.pp = 1, .cp = 4, .cp_kind = TG_CP_HIERARCHY, .cp_inner = 2, .dropout = 0.1, .wgrad = TG_WGRAD_DEFERRED},
        {.pp = 1, .tp = 2, .sp = true, .cp = 2, .gpt2 = true, .tied = true, .dropout = 0.1},
        {.pp = 1, .tp = 2, .cp = 2, .cp_kind = TG_CP_ULYSSES, .recompute = TG_GPT_SELECTIVE},
        {.pp = 1, .tp = 2, .sp = true, .cp = 2, .cp_kind = TG_CP_GATHER, .recompute = TG_GPT_FULL, .mtp = 1},
        {.pp = 1, .cp = 2, .dp = 2, .dropout = 0.1, .tied = true},
        {.pp = 2, .cp = 2, .kind = TG_PIPE_ZB_H1, .dropout = 0.1, .tied = true},
        {.pp = 2, .vp = 2, .cp = 2, .cp_kind = TG_CP_ULYSSES, .kind = TG_PIPE_INTERLEAVED, .gpt2 = true},
        {.pp = 2, .tp = 2, .sp = true, .cp = 2, .kind = TG_PIPE_1F1B, .dropout = 0.1, .mtp = 1},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

/* ---- Allocations ---- */

/* Counts the host allocations of equal runs, in which the head of the last stage leaves its weight gradient to W. Takes
 * the fewest of a run: pools grow a little more if a stage is slow once. */
static tg_status steady_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { RUNS = 5 };
    stage s;
    int64_t fewest = INT64_MAX;
    RUN(stage_open(ctx, world, arg, &s));
    set_tokens(s.lm, s.c->vp);
    for (int i = 0; i < RUNS; i++) {
        tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
        RUN(tg_draws_step(ctx, 1 + (uint64_t)i));
        tg_memory_query(ctx, &before);
        RUN(tg_pipe_run(s.pipe, run_part, &s));
        tg_memory_query(ctx, &after);
        if (after.host_allocations - before.host_allocations < fewest)
            fewest = after.host_allocations - before.host_allocations;
        RUN(tg_optim_zero_grad(s.o));
    }
    EXPECT(ctx, fewest == 0);
    stage_close(&s);
    return tg_ctx_status(ctx);
}

START_TEST(a_steady_run_allocates_nothing) {
    static const composition rows[] = {
        {.pp = 2, .cp = 1, .kind = TG_PIPE_1F1B, .gpt2 = true, .dropout = 0.1},
        {.pp = 2, .cp = 1, .kind = TG_PIPE_ZB_H1, .gpt2 = true, .dropout = 0.1},
        {.pp = 1, .cp = 2, .dropout = 0.1},
        {.pp = 1, .cp = 2, .cp_kind = TG_CP_GATHER, .dropout = 0.1},
        {.pp = 1, .cp = 2, .cp_kind = TG_CP_ULYSSES, .dropout = 0.1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        composition c = rows[i];
        c.vp = c.tp = c.dp = 1;
        on_ranks(2, steady_rank, &c);
    }
}
END_TEST

int main(void) {
    const TTest *tests[] = {
        a_pipeline_computes_what_one_rank_does, blocks_of_other_families_are_divided_alike,
        the_last_stage_predicts_further_tokens, ranks_divide_sequences_too, a_steady_run_allocates_nothing,
    };
    return tg_check_main("lm_pipe", tests, sizeof tests / sizeof *tests);
}
