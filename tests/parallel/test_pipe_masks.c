/* The draws of a language model in pipelines: each mask of dropout, after the embedding, of the probabilities of
 * attention and after the halves of each layer, is bit for bit that of one rank, by step, micro-batch, layer and
 * place. */
#include <tapegrad/pipe.h>

#include "mask_dump.h"

enum { CHUNKS = 3, RANKS = 8 };

typedef struct composition {
    int pp, vp, tp, dp;
    bool sp;
    tg_pipe_kind kind;
    tg_gpt_recompute recompute;
    tg_lm_backend backend;
} composition;

typedef struct job {
    composition c;
    mask_dump dump;
} job;

static tg_lm_config config_of(const composition *c, const tg_parallel *p) {
    return *TG_LM(LM_SIZES(LM_VOCAB, MASK_LAYERS), .family = "gpt2", .norm = TG_LM_LAYER_NORM,
                  .activation = TG_LM_GELU_TANH, .position_kind = TG_LM_LEARNED, .bias = true, .tied = true,
                  .dropout = 0.3, .recompute = c->recompute, .backend = c->backend, .parallel = p);
}

/* Writes the layout of some parts: the layers are divided as evenly as they can be. */
static void write_layout(int parts, char *out, size_t size) {
    size_t at = (size_t)snprintf(out, size, "E");
    for (int i = 0; i < parts; i++)
        at += (size_t)snprintf(out + at, size - at, "%s t*%d", i ? "|" : "",
                               (i + 1) * MASK_LAYERS / parts - i * MASK_LAYERS / parts);
    snprintf(out + at, size - at, " L");
}

/* ---- One rank ---- */

static tg_status one_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_lm_config c = config_of(&j->c, p);
    tg_module *lm = tg_lm_new(ctx, &c);
    tg_tape *t = tg_tape_new(ctx);
    masks = (mask_rank){.p = p};
    mask_watch(lm);
    ctx->run.ops = &mask_device;
    for (int step = 0; step < MASK_STEPS; step++) {
        RUN(tg_draws_step(ctx, 1 + (uint64_t)step));
        for (int m = 0; m < MASK_MICROS; m++) {
            lm_batch b = lm_batch_new(ctx, p, m);
            tg_tensor *out = NULL;
            mask_part_begins(0, m);
            RUN(tg_lm_part(lm, &(tg_pipe_call){.size = sizeof(tg_pipe_call), .tape = t, .micro = m, .out = &out}, b.ids,
                           b.targets, NULL));
            RUN(tg_backward(t, out));
            tg_tape_reset(t);
            lm_batch_drop(&b);
        }
        RUN(mask_step_ends(ctx, &j->dump, step));
    }
    tg_tape_free(t);
    tg_module_free(lm);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* ---- A stage ---- */

typedef struct stage {
    tg_module *lm[CHUNKS];
    lm_batch batch[MASK_MICROS];
    tg_pipe_plan *plan;
    tg_pipe *pipe;
} stage;

static tg_status run_part(void *state, tg_pipe_call *c) {
    stage *s = state;
    mask_part_begins(c->part, c->micro);
    tg_status status = tg_lm_part(s->lm[c->chunk], c, s->batch[c->micro].ids, s->batch[c->micro].targets, NULL);
    masks.now.layer = -1;
    return status;
}

static void stage_open(tg_ctx *ctx, const composition *c, tg_parallel *p, stage *s) {
    char layout[128];
    write_layout(c->pp * c->vp, layout, sizeof layout);
    tg_lm_config part = config_of(c, p);
    part.layout = layout;
    for (int i = 0; i < c->vp; i++) {
        part.chunk = i;
        s->lm[i] = tg_lm_new(ctx, &part);
        mask_watch(s->lm[i]);
    }
    for (int m = 0; m < MASK_MICROS; m++) s->batch[m] = lm_batch_new(ctx, p, m);
    int64_t length = c->sp ? LM_LENGTH / c->tp : LM_LENGTH;
    const tg_place_at at[] = {{TG_TP, c->sp ? TG_SHARD(0) : TG_I}, {TG_DP, TG_SHARD(1)}};
    tg_pipe_edge edge = {TG_F64, TG_SHAPE(length, LM_BATCH / c->dp, LM_HIDDEN), at, 2};
    s->plan =
        tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = c->kind, .stages = c->pp, .chunks = c->vp, .micros = MASK_MICROS));
    s->pipe = tg_pipe_new(p, s->plan, TG_PIPE(.edge = &edge, .n_edge = 1));
}

static void stage_close(const composition *c, stage *s) {
    tg_pipe_free(s->pipe);
    tg_pipe_plan_free(s->plan);
    for (int i = 0; i < c->vp; i++) tg_module_free(s->lm[i]);
    for (int m = 0; m < MASK_MICROS; m++) lm_batch_drop(&s->batch[m]);
}

static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    const composition *c = &j->c;
    stage s = {.pipe = NULL};
    tg_parallel *p =
        tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .pp = c->pp, .vp = c->vp, .sequence_parallel = c->sp));
    masks = (mask_rank){.p = p};
    stage_open(ctx, c, p, &s);
    RUN(tg_ctx_status(ctx));
    ctx->run.ops = &mask_device;
    for (int step = 0; step < MASK_STEPS; step++) {
        RUN(tg_draws_step(ctx, 1 + (uint64_t)step));
        RUN(tg_pipe_run(s.pipe, run_part, &s));
        RUN(mask_step_ends(ctx, &j->dump, step));
    }
    stage_close(c, &s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* ---- Comparison ---- */

static void dump(job *j, tg_rank_fn fn, int ranks) {
    char message[1024];
    const composition *c = &j->c;
    memset(&j->dump, 0, sizeof j->dump);
    pthread_mutex_init(&j->dump.lock, NULL);
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60);
    tg_status s =
        tg_ranks_run(ranks, fn, j, TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "pp %d, vp %d, tp %d%s, dp %d, kind %d, recompute %d, backend %d: %s: %s", c->pp, c->vp,
                  c->tp, c->sp ? " sp" : "", c->dp, c->kind, c->recompute, c->backend, tg_status_name(s), message);
    pthread_mutex_destroy(&j->dump.lock);
}

/* The masks of one rank. */
static const mask_dump *one(void) {
    static job whole;
    if (!whole.c.pp) {
        whole.c = (composition){.pp = 1, .vp = 1, .tp = 1, .dp = 1};
        dump(&whole, one_rank, 1);
    }
    return &whole.dump;
}

static void compare(composition c) {
    static job j;
    const mask_dump *want = one();
    j.c = c;
    dump(&j, run_rank, c.pp * c.tp * c.dp);
    for (int step = 0; step < MASK_STEPS; step++)
        for (int m = 0; m < MASK_MICROS; m++)
            for (int l = 0; l <= MASK_LAYERS; l++)
                for (int place = 0; place < MASK_PLACES; place++)
                    ck_assert_msg(!memcmp(j.dump.at[step][m][l][place], want->at[step][m][l][place], MASK_SCORES),
                                  "pp %d, vp %d, tp %d%s, dp %d, kind %d, recompute %d, backend %d: the mask of step "
                                  "%d, micro-batch %d, layer %d, place %d is not one rank's",
                                  c.pp, c.vp, c.tp, c.sp ? " sp" : "", c.dp, c.kind, c.recompute, c.backend, step, m,
                                  l - 1, place);
}

/* Every mask is there, as a whole, and no two of them are equal: a key that lacks the step, the micro-batch or the
 * layer would make some equal, on one rank too. */
START_TEST(one_rank_draws_other_masks_everywhere) {
    enum { ALL = MASK_STEPS * MASK_MICROS * (1 + MASK_LAYERS) * MASK_PLACES };
    const char(*mask)[MASK_SCORES] = (const char(*)[MASK_SCORES])one()->at;
    for (int i = 0; i < ALL; i++) {
        int layer = i / MASK_PLACES % (1 + MASK_LAYERS), place = i % MASK_PLACES, drawn = 0;
        int size = layer && place == MASK_ATTENTION ? MASK_SCORES : MASK_ROWS;
        for (int k = 0; k < MASK_SCORES; k++) drawn += mask[i][k] != 0;
        ck_assert_int_eq(drawn, layer || !place ? size : 0);
        for (int k = 0; k < i && drawn; k++) ck_assert(memcmp(mask[i], mask[k], MASK_ROWS) != 0);
    }
}
END_TEST

START_TEST(pipelines_draw_the_masks_of_one_rank) {
    static const composition rows[] = {
        {2, 1, 1, 1, false, TG_PIPE_1F1B, TG_GPT_KEEP, TG_LM_FUSED},
        {2, 3, 1, 1, false, TG_PIPE_INTERLEAVED, TG_GPT_FULL, TG_LM_FUSED},
        {4, 1, 1, 1, false, TG_PIPE_ZB_H1, TG_GPT_SELECTIVE, TG_LM_COMPOSED},
        {2, 2, 2, 1, true, TG_PIPE_INTERLEAVED, TG_GPT_SELECTIVE, TG_LM_FUSED},
        {2, 1, 2, 1, false, TG_PIPE_GPIPE, TG_GPT_DISTRIBUTED, TG_LM_COMPOSED},
        {2, 1, 1, 2, false, TG_PIPE_ZB_H1, TG_GPT_FULL, TG_LM_FUSED},
        {4, 3, 1, 1, false, TG_PIPE_INTERLEAVED, TG_GPT_KEEP, TG_LM_COMPOSED},
        {2, 1, 2, 2, true, TG_PIPE_1F1B, TG_GPT_FULL, TG_LM_FUSED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) compare(rows[i]);
}
END_TEST

/* Every composition of up to 8 ranks. */
START_TEST(every_composition_draws_the_masks_of_one_rank) {
    static const tg_pipe_kind kinds[] = {TG_PIPE_GPIPE, TG_PIPE_1F1B, TG_PIPE_ZB_H1};
    for (int pp = 2; pp <= 4; pp += 2)
        for (int vp = 1; vp <= 3; vp++)
            for (int k = 0; k < (vp > 1 ? 2 : 3); k++)
                for (int axes = 0; axes < 3 * 2; axes++)
                    for (int how = 0; how < 4 * 2; how++) {
                        composition c = {.pp = pp, .vp = vp, .tp = axes % 3 ? 2 : 1, .dp = 1 + axes / 3};
                        c.sp = axes % 3 == 2;
                        c.kind = vp > 1 && k ? TG_PIPE_INTERLEAVED : kinds[k];
                        c.recompute = (tg_gpt_recompute)(how % 4);
                        c.backend = (tg_lm_backend)(how / 4);
                        if (c.pp * c.tp * c.dp <= RANKS) compare(c);
                    }
}
END_TEST

int main(void) {
    mask_device_open();
    const TTest *tests[] = {one_rank_draws_other_masks_everywhere, pipelines_draw_the_masks_of_one_rank,
                            every_composition_draws_the_masks_of_one_rank};
    return tg_check_main("pipe_masks", tests, getenv("TG_LONG") ? 3 : 2);
}
