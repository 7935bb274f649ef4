/* Packed documents: over tp, sp, cp, dp and stages, by every kind of recomputation and both ways to compute attention,
 * with learned, rotary and scaled positions, windows, soft caps and multi-token prediction, the losses and gradients of
 * rows of several documents are those of each document alone. With dropout any number of ranks draws what one rank
 * draws. */
#include <tapegrad/context_parallel.h>
#include <tapegrad/pipe.h>

#include "lm_cases.h"

enum { MICROS = 3, PARAMS = 256, MOST = 4 };

typedef enum family { GPT_2, LLAMA_3, GEMMA, QWEN, PHI, OLMO } family;

typedef struct composition {
    int pp, tp, cp, dp; /* 0 means 1 */
    tg_cp_kind kind;
    bool sp, composed, tied;
    family of;
    double dropout;
    int mtp;
    tg_gpt_recompute recompute;
} composition;

static tg_lm_config config_of(const composition *c) {
    tg_lm_config all[] = {
        [GPT_2] = *TG_LM(LM_GPT2),
        [LLAMA_3] = *TG_LM(LM_SMALL, .kv_heads = 2, .rope_kind = TG_ROPE_LLAMA3, .rope_factor = 4, .rope_low = 1,
                           .rope_high = 4, .rope_original = 4),
        [GEMMA] = *TG_LM(LM_SMALL, .kv_heads = 2, .family = "gemma3_text", .norm_place = TG_LM_NORM_AROUND,
                         .unit_norm = true, .qk_norm = TG_LM_QK_NORM_OF_HEADS, .activation = TG_LM_GEGLU_TANH,
                         .attention_softcap = 5, .logit_softcap = 3, .window = 3, .attention_kinds = "wf",
                         .rope_local_base = 300),
        [QWEN] = *TG_LM(LM_SMALL, .kv_heads = 1, .family = "qwen3", .qk_norm = TG_LM_QK_NORM_OF_HEADS,
                        .rope_kind = TG_ROPE_YARN, .rope_factor = 4, .rope_original = 4),
        [PHI] = *TG_LM(LM_SMALL, .norm = TG_LM_LAYER_NORM, .activation = TG_LM_GELU_TANH, .parallel_residual = true,
                       .bias = true, .rope_dims = 2),
        [OLMO] = *TG_LM(LM_SMALL, .norm = TG_LM_PLAIN_LAYER_NORM, .clip_qkv = 0.3, .attention_kinds = "fF"),
    };
    tg_lm_config out = all[c->of];
    out.tied = c->tied;
    out.dropout = c->dropout;
    out.mtp = c->mtp;
    out.recompute = c->recompute;
    out.backend = c->composed ? TG_LM_COMPOSED : TG_LM_FUSED;
    out.cp_kind = c->kind;
    return out;
}

/* ---- Documents ---- */

/* The lengths of the documents of each row. */
static const int lengths[MICROS][LM_BATCH][MOST] = {{{3, 1, 4}, {2, 6}}, {{8}, {5, 3}}, {{1, 1, 6}, {4, 4}}};

/* Sets *begin and *end to the document of a place in a row. */
static void document_of(int micro, int row, int place, int *begin, int *end) {
    const int *n = lengths[micro][row];
    for (*begin = 0; place >= *begin + *n; n++) *begin += *n;
    *end = *begin + *n;
}

static int64_t token(int micro, int row, int place) {
    return (7 * place + 31 * (row + 3 * micro) + place * place) % LM_VOCAB;
}

static tg_tensor *placed(tg_ctx *ctx, const tg_parallel *p, int64_t rows, int64_t n, const int64_t *v) {
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(rows, n), v);
    if (!p) return x;
    tg_place(p, x, TG_TP, TG_I);
    if (tg_parallel_size(p, TG_CP) > 1) tg_place(p, x, TG_CP, TG_SHARD_ZIGZAG(1));
    tg_place(p, x, TG_DP, TG_SHARD(0));
    return x;
}

/* Returns the token `ahead` of that of a place; `beyond` after the end of a document. */
static int64_t token_ahead(int micro, int row, int place, int ahead, int64_t beyond) {
    int begin, end;
    document_of(micro, row, place, &begin, &end);
    return place + ahead < end ? token(micro, row, place + ahead) : beyond;
}

/* Sets out to those of n places of a row from `first` on. */
static void tokens_ahead(int micro, int row, int first, int n, int ahead, int64_t beyond, int64_t *out) {
    for (int i = 0; i < n; i++) out[i] = token_ahead(micro, row, first + i, ahead, beyond);
}

typedef struct packed {
    tg_tensor *ids[1 + LM_DEPTHS], *targets[1 + LM_DEPTHS], *positions;
} packed;

/* Makes this rank's part of a micro-batch. */
static packed packed_new(tg_ctx *ctx, const tg_parallel *p, int micro) {
    packed b;
    int64_t v[LM_BATCH * LM_LENGTH], place[LM_LENGTH];
    int rows = LM_BATCH / tg_parallel_size(p, TG_DP), first = tg_parallel_rank(p, TG_DP) * rows;
    int cp = tg_parallel_size(p, TG_CP), n = LM_LENGTH / cp;
    tg_context_cut((const int64_t[]){0, LM_LENGTH}, 1, cp, tg_parallel_rank(p, TG_CP), place);
    for (int k = 0; k < 2 * (1 + LM_DEPTHS); k++) {
        int d = k / 2, target = k % 2;
        for (int i = 0; i < rows * n; i++)
            v[i] = token_ahead(micro, first + i / n, (int)place[i % n], d + target, target ? -100 : 0);
        *(target ? &b.targets[d] : &b.ids[d]) = placed(ctx, p, rows, n, v);
    }
    for (int i = 0, begin, end; i < rows * n; i++) {
        document_of(micro, first + i / n, (int)place[i % n], &begin, &end);
        v[i] = place[i % n] - begin;
    }
    b.positions = placed(ctx, p, rows, n, v);
    return b;
}

static void packed_drop(packed *b) {
    for (int d = 0; d <= LM_DEPTHS; d++) tg_drop(b->ids[d]), tg_drop(b->targets[d]);
    tg_drop(b->positions);
}

/* ---- One rank ---- */

typedef struct reference {
    alone a;
    tg_module *lm;
    tg_tensor *params[PARAMS];
    int n;
} reference;

static void reference_open(reference *r, const composition *c) {
    tg_lm_config whole = config_of(c);
    r->a = alone_open();
    whole.parallel = r->a.p;
    whole.recompute = TG_GPT_KEEP;
    whole.backend = TG_LM_FUSED;
    r->lm = tg_lm_new(r->a.ctx, &whole);
    r->n = tg_module_params(r->lm, r->params, PARAMS);
}

/* Runs forward and backward, and returns the loss. */
static double run_whole(reference *r, int micro, tg_tensor *const *ids, tg_tensor *const *targets,
                        tg_tensor *positions) {
    tg_tensor *out = NULL;
    tg_pipe_call call = {.size = sizeof call, .tape = r->a.t, .micro = micro, .out = &out};
    tg_lm_part(r->lm, &call, ids, targets, positions);
    double loss = tg_item(out);
    tg_backward(r->a.t, out);
    tg_tape_reset(r->a.t);
    return loss;
}

/* Computes a document of a row, the one that begins at `first`, without the others. */
static double run_alone(reference *r, int micro, int row, int first, int n) {
    packed b = {.positions = NULL};
    int64_t v[LM_LENGTH];
    for (int k = 0; k < 2 * (1 + LM_DEPTHS); k++) {
        int d = k / 2, target = k % 2;
        tokens_ahead(micro, row, first, n, d + target, target ? -100 : 0, v);
        *(target ? &b.targets[d] : &b.ids[d]) = placed(r->a.ctx, NULL, 1, n, v);
    }
    double loss = run_whole(r, micro, b.ids, b.targets, NULL);
    packed_drop(&b);
    return loss;
}

/* Computes each document alone or, with dropout, whose draws belong to places of rows, the rows. */
static double run_micro(reference *r, const composition *c, int micro) {
    double loss = 0;
    for (int row = 0, begin, end; row < LM_BATCH && c->dropout == 0; row++)
        for (int at = 0; at < LM_LENGTH; at = end) {
            document_of(micro, row, at, &begin, &end);
            loss += run_alone(r, micro, row, begin, end - begin);
        }
    if (c->dropout == 0) return loss;
    packed b = packed_new(r->a.ctx, NULL, micro);
    loss = run_whole(r, micro, b.ids, b.targets, b.positions);
    packed_drop(&b);
    return loss;
}

static void reference_gradients(reference *r, const composition *c, double loss[MICROS]) {
    const int64_t one = 1;
    tg_draws_step(r->a.ctx, 1);
    for (int i = 0; i < MICROS; i++) loss[i] = run_micro(r, c, i);
    tg_tensor *count = tg_from_host(r->a.ctx, TG_I64, TG_SHAPE(1), &one);
    tg_grads_finalize(r->a.p, r->params, r->n, TG_FINALIZE(.tokens = count));
    tg_drop(count);
}

static tg_status reference_close(tg_ctx *ctx, reference *r) {
    tg_module_free(r->lm);
    return alone_close(ctx, &r->a);
}

/* ---- A stage ---- */

typedef struct stage {
    const composition *c;
    tg_parallel *p;
    tg_module *lm;
    packed batch[MICROS];
    tg_tensor *params[PARAMS];
    int n;
    tg_pipe_plan *plan;
    tg_pipe *pipe;
} stage;

static tg_status run_part(void *state, tg_pipe_call *c) {
    stage *s = state;
    const packed *b = &s->batch[c->micro];
    return tg_lm_part(s->lm, c, b->ids, b->targets, b->positions);
}

static tg_status stage_open(tg_ctx *ctx, tg_comm *world, const composition *c, stage *s) {
    tg_lm_config part = config_of(c);
    *s = (stage){.c = c};
    s->p = tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .pp = c->pp, .cp = c->cp, .sequence_parallel = c->sp));
    part.parallel = s->p;
    s->lm = tg_lm_new(ctx, &part);
    s->n = tg_module_params(s->lm, s->params, PARAMS);
    for (int i = 0; i < MICROS; i++) s->batch[i] = packed_new(ctx, s->p, i);
    const tg_place_at at[] = {{TG_TP, c->sp ? TG_SHARD(0) : TG_I},
                              {TG_DP, TG_SHARD(1)},
                              {TG_CP, c->cp > 1 ? TG_SHARD_ZIGZAG(0) : TG_I}};
    const tg_pipe_edge edge = {.dtype = TG_F64,
                               .shape = TG_SHAPE(LM_LENGTH / c->cp / (c->sp ? c->tp : 1), LM_BATCH / c->dp, LM_HIDDEN),
                               .at = at,
                               .n_at = 3};
    s->plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_1F1B, .stages = c->pp, .micros = MICROS));
    s->pipe = tg_pipe_new(s->p, s->plan, TG_PIPE(.edge = &edge, .n_edge = 1));
    return tg_ctx_status(ctx);
}

/* Computes the losses, summed over dp, and the gradients. */
static tg_status stage_gradients(tg_ctx *ctx, stage *s, double loss[MICROS]) {
    bool counts = tg_parallel_rank(s->p, TG_PP) == s->c->pp - 1 && tg_comm_rank(tg_parallel_dp_cp(s->p)) == 0;
    RUN(tg_draws_step(ctx, 1));
    RUN(tg_pipe_run(s->pipe, run_part, s));
    return lm_finish_step(ctx, s->p, s->pipe, s->params, s->n, counts, loss, MICROS);
}

static void stage_close(stage *s) {
    tg_pipe_free(s->pipe);
    tg_pipe_plan_free(s->plan);
    tg_module_free(s->lm);
    for (int i = 0; i < MICROS; i++) packed_drop(&s->batch[i]);
    tg_parallel_free(s->p);
}

static tg_status packed_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    reference r;
    stage s;
    double want[MICROS], got[MICROS];
    reference_open(&r, arg);
    RUN(stage_open(ctx, world, arg, &s));
    reference_gradients(&r, arg, want);
    RUN(stage_gradients(ctx, &s, got));
    bool last = tg_parallel_rank(s.p, TG_PP) == s.c->pp - 1;
    for (int i = 0; i < MICROS && last; i++) EXPECT(ctx, fabs(got[i] - want[i]) <= 1e-10 * fabs(want[i]));
    for (int i = 0; i < tg_module_param_count(s.lm); i++) {
        const char *path;
        tg_tensor *x = tg_grad_of(tg_module_param(s.lm, i, &path)), *y = tg_grad_of(tg_module_find(r.lm, path));
        if (!is_part(x, y, TG_TP, tg_parallel_rank(s.p, TG_TP), s.c->tp, 1e-10))
            return tg_ctx_fail(ctx, TG_ERR_GRADIENT, "the gradient of %s is not one rank's", path);
    }
    stage_close(&s);
    return reference_close(ctx, &r);
}

static void run_all(const composition *given, size_t n) {
    for (size_t i = 0; i < n; i++) {
        composition c = given[i];
        if (!c.pp) c.pp = 1;
        if (!c.tp) c.tp = 1;
        if (!c.cp) c.cp = 1;
        if (!c.dp) c.dp = 1;
        on_ranks(c.pp * c.tp * c.cp * c.dp, packed_rank, &c);
    }
}

/* ---- The tests ---- */

START_TEST(packed_documents_are_computed_as_alone) {
    static const composition rows[] = {
        {.of = GPT_2, .tied = true},
        {.of = GPT_2, .recompute = TG_GPT_FULL},
        {.of = LLAMA_3},
        {.of = LLAMA_3, .composed = true},
        {.of = LLAMA_3, .mtp = 2},
        {.of = LLAMA_3, .mtp = 1, .recompute = TG_GPT_FULL},
        {.of = GEMMA, .tied = true},
        {.of = GEMMA, .composed = true, .recompute = TG_GPT_SELECTIVE},
        {.of = QWEN},
        {.of = PHI, .recompute = TG_GPT_SELECTIVE},
        {.of = OLMO},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

START_TEST(ranks_divide_packed_documents) {
    static const composition rows[] = {
        {.tp = 2, .of = GPT_2, .tied = true},
        {.tp = 2, .of = LLAMA_3, .recompute = TG_GPT_DISTRIBUTED},
        {.tp = 2, .sp = true, .of = GPT_2},
        {.tp = 2, .sp = true, .of = LLAMA_3, .recompute = TG_GPT_FULL},
        {.tp = 2, .sp = true, .of = GEMMA, .mtp = 1},
        {.tp = 2, .of = QWEN, .composed = true},
        {.pp = 2, .of = GPT_2, .tied = true},
        {.pp = 2, .of = LLAMA_3, .mtp = 1},
        {.pp = 4, .of = GEMMA},
        {.dp = 2, .of = GPT_2},
        {.dp = 2, .of = LLAMA_3, .composed = true},
        {.pp = 2, .tp = 2, .sp = true, .of = GEMMA, .tied = true},
        {.pp = 2, .dp = 2, .of = LLAMA_3},
        {.tp = 2, .dp = 2, .of = GPT_2},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

START_TEST(context_parallel_ranks_divide_packed_documents) {
    static const composition rows[] = {
        {.cp = 2, .of = GPT_2, .tied = true},
        {.cp = 2, .of = LLAMA_3, .recompute = TG_GPT_FULL},
        {.cp = 2, .kind = TG_CP_GATHER, .of = GEMMA},
        {.cp = 2, .kind = TG_CP_ULYSSES, .of = LLAMA_3, .mtp = 1},
        {.cp = 4, .of = GEMMA},
        {.cp = 4, .kind = TG_CP_HIERARCHY, .of = GPT_2},
        {.cp = 2, .of = QWEN, .recompute = TG_GPT_SELECTIVE},
        {.cp = 2, .of = PHI},
        {.cp = 2, .tp = 2, .sp = true, .of = GEMMA},
        {.cp = 2, .pp = 2, .of = GPT_2},
        {.cp = 2, .dp = 2, .kind = TG_CP_GATHER, .of = LLAMA_3},
        {.cp = 2, .pp = 2, .tp = 2, .of = OLMO},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

START_TEST(dropout_of_packed_documents_does_not_depend_on_ranks) {
    static const composition rows[] = {
        {.cp = 2, .of = LLAMA_3, .dropout = 0.2},
        {.cp = 2, .dp = 2, .kind = TG_CP_ULYSSES, .of = GPT_2, .dropout = 0.2},
        {.tp = 2, .of = GPT_2, .dropout = 0.2},
        {.tp = 2, .sp = true, .of = LLAMA_3, .dropout = 0.2, .recompute = TG_GPT_FULL},
        {.dp = 2, .of = GPT_2, .dropout = 0.2},
        {.pp = 2, .dp = 2, .of = GEMMA, .dropout = 0.2},
    };
    run_all(rows, sizeof rows / sizeof *rows);
}
END_TEST

/* Compares the logits and the losses of each token of a whole model with those of each document alone. */
static tg_status compare_whole(tg_ctx *ctx, reference *r, int micro) {
    enum { N = LM_BATCH * LM_LENGTH };
    double logits[N * LM_VOCAB], losses[N], logit[LM_LENGTH * LM_VOCAB], loss[LM_LENGTH];
    packed b = packed_new(r->a.ctx, NULL, micro);
    tg_tape *t = r->a.t;
    tg_read_f64(tg_lm_packed_logits(r->lm, t, b.ids[0], b.positions), logits, N * LM_VOCAB);
    tg_read_f64(tg_lm_packed_loss(r->lm, t, b.ids[0], b.positions, b.targets[0], TG_LOSS_NONE), losses, N);
    for (int at = 0, begin, end; at < N; at += end - begin) {
        int row = at / LM_LENGTH;
        int64_t ids[LM_LENGTH], next[LM_LENGTH];
        document_of(micro, row, at % LM_LENGTH, &begin, &end);
        int n = end - begin;
        tokens_ahead(micro, row, begin, n, 0, 0, ids);
        tokens_ahead(micro, row, begin, n, 1, -100, next);
        tg_tensor *x = placed(r->a.ctx, NULL, 1, n, ids), *y = placed(r->a.ctx, NULL, 1, n, next);
        tg_read_f64(tg_module_forward(r->lm, t, x), logit, n * LM_VOCAB);
        tg_tensor *own = tg_lm_loss(r->lm, t, tg_transpose(t, tg_module_forward(r->lm, t, x), 0, 1), y, TG_LOSS_NONE);
        tg_read_f64(own, loss, n);
        for (int i = 0; i < n * LM_VOCAB; i++) EXPECT(ctx, fabs(logits[at * LM_VOCAB + i] - logit[i]) <= 1e-10);
        for (int i = 0; i < n; i++) EXPECT(ctx, fabs(losses[at + i] - loss[i]) <= 1e-10);
        tg_drop(x), tg_drop(y);
    }
    tg_tape_reset(t);
    packed_drop(&b);
    return TG_OK;
}

static tg_status whole_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    reference r;
    (void)world;
    reference_open(&r, arg);
    for (int m = 0; m < MICROS; m++) RUN(compare_whole(ctx, &r, m));
    return reference_close(ctx, &r);
}

START_TEST(whole_models_give_the_logits_and_losses_of_each_document) {
    const composition rows[] = {{.of = GPT_2}, {.of = LLAMA_3}, {.of = GEMMA}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) on_ranks(1, whole_rank, (void *)&rows[i]);
}
END_TEST

/* ---- What is refused ---- */

/* An attention of a caller, which gives its input back. */
static tg_tensor *same(tg_module *m, tg_tape *t, tg_tensor *x) { return (void)m, (void)t, x; }
static const tg_module_ops same_ops = {.size = sizeof(tg_module_ops), .kind = "same", .forward = same};

static tg_status refusing_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.size = sizeof(tg_parallel_opts)));
    tg_module *lm = tg_lm_new(ctx, TG_LM(LM_SMALL, .parallel = p));
    tg_tape *t = tg_tape_new(ctx);
    packed b = packed_new(ctx, NULL, 0);
    const int64_t few[LM_LENGTH] = {0};
    tg_tensor *short_ones = tg_from_host(ctx, TG_I64, TG_SHAPE(1, LM_LENGTH / 2), few);
    REFUSED(ctx, TG_ERR_SHAPE, "expected i64[2, 8]", tg_lm_packed_logits(lm, t, b.ids[0], short_ones));
    tg_module_free(tg_module_replace(lm, "model.layers.1.self_attn", tg_module_new(ctx, &same_ops, NULL)));
    REFUSED(ctx, TG_ERR_UNSUPPORTED, "a \"same\" has replaced the \"attention\"",
            tg_lm_packed_logits(lm, t, b.ids[0], b.positions));
    tg_tape_free(t);
    packed_drop(&b);
    tg_drop(short_ones);
    tg_module_free(lm);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(what_cannot_keep_documents_apart_is_refused) { on_ranks(1, refusing_rank, NULL); }
END_TEST

int main(void) {
    const TTest *tests[] = {
        packed_documents_are_computed_as_alone,
        ranks_divide_packed_documents,
        context_parallel_ranks_divide_packed_documents,
        dropout_of_packed_documents_does_not_depend_on_ranks,
        whole_models_give_the_logits_and_losses_of_each_document,
        what_cannot_keep_documents_apart_is_refused,
    };
    return tg_check_main("packed", tests, sizeof tests / sizeof *tests);
}
