/* Language models: layouts and parts, the loss of given logits, attention's backends, multi-token prediction, and
 * groups of learning rates. */
#include "models/lm/lm.h"

#include "lm_cases.h"

/* ---- Layouts ---- */

static tg_lm_config config_of(int64_t layers, int mtp, const char *layout, int chunk) {
    return (tg_lm_config){TG_LM_DEFAULTS, .layers = layers, .mtp = mtp, .layout = layout, .chunk = chunk};
}

START_TEST(layouts_say_which_layers_a_part_has) {
    static const struct {
        const char *layout;
        int mtp, chunk;
        int64_t first, layers;
        bool embedding, head;
    } rows[] = {
        {NULL, 0, 0, 0, 7, true, true},
        {"E t*7 L", 0, 0, 0, 7, true, true},
        {"Ettt t*4L", 0, 0, 0, 7, true, true},
        {"E t*3|t*4 L", 0, 0, 0, 3, true, false},
        {"E t*3|t*4 L", 0, 1, 3, 4, false, true},
        {"E|t*2 t|t*4|L", 0, 0, 0, 0, true, false},
        {"E|t*2 t|t*4|L", 0, 1, 0, 3, false, false},
        {"E|t*2 t|t*4|L", 0, 2, 3, 4, false, false},
        {"E|t*2 t|t*4|L", 0, 3, 0, 0, false, true},
        {"E t*6 | t m*2 L", 2, 1, 6, 1, false, true},
    };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tg_lm_config c = config_of(7, rows[i].mtp, rows[i].layout, rows[i].chunk);
        tg_lm_stage s;
        ck_assert_int_eq(tg_lm_stage_of(ctx, &c, "test", &s), TG_OK);
        ck_assert_int_eq(s.part, rows[i].chunk);
        ck_assert(s.layers == rows[i].layers && (!s.layers || s.first == rows[i].first));
        ck_assert(s.embedding == rows[i].embedding && s.head == rows[i].head);
    }
    tg_ctx_free(ctx);
}
END_TEST

#define TEN "|t|t|t|t|t|t|t|t|t|t" /* ten parts: a balanced layout of 72 parts is too long for a message */

START_TEST(wrong_layouts_are_refused) {
    static const struct {
        int64_t layers;
        int mtp;
        const char *layout, *says;
    } rows[] = {
        {7, 0, "E t*3|t*3 L", "has 6 layers (t), which is not `layers`; a layout that would do is \"E t*4|t*3 L\""},
        {7, 1, "E t*3|t*4 L", "has 0 depths (m), which is not `mtp`; a layout that would do is \"E t*4|t*3 m L\""},
        {7, 0, "t*7 L", "must begin with E, and have it once; a layout that would do is \"E t*7 L\""},
        {7, 0, "E t*3 E t*4 L", "must begin with E, and have it once"},
        {7, 0, "E*2 t*7 L", "has E or L more than once"},
        {7, 0, "E t*7", "must end with L"},
        {7, 0, "E t*7|", "has nothing in part 1"},
        {7, 0, "E t*3||t*4 L", "has nothing in part 1; a layout that would do is \"E t*3|t*2|t*2 L\""},
        {7, 0, "", "has nothing in part 0"},
        {7, 0, "E t*7 L t", "goes on after L, which must be the last item"},
        {7, 1, "E t*6 m t L", "has a layer (t) after m"},
        {7, 1, "E t*6 m|t L", "has m before the last part"},
        {7, 0, "E t* 7 L", "has a \"*\" without a number from 1 to 2^40 after it"},
        {7, 0, "E t*0 L", "has a \"*\" without a number from 1 to 2^40 after it"},
        {7, 0, "E t*2000000000000 L", "has a \"*\" without a number from 1 to 2^40 after it"},
        {7, 0, "E t*-7 L", "has a \"*\" without a number from 1 to 2^40 after it"},
        {7, 0, "E x*7 L", "has the character 'x' where E, t, m, L, | or a blank is expected"},
        {7, 0, "E *7 L", "has the character '*' where E, t, m, L, | or a blank is expected"},
        {1, 0, "E|t|t L", "a layout that would do is \"E|t|L\""},
        {1, 0, "E|t|t|L", "1 layer cannot fill 4 parts"},
        {700, 0, "E" TEN TEN TEN TEN TEN TEN TEN "|L", "a layout that would do begins with \"E t*10|t*10|t*10|"},
    };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tg_lm_config c = config_of(rows[i].layers, rows[i].mtp, rows[i].layout, 0);
        tg_lm_stage s;
        ck_assert_int_eq(tg_lm_stage_of(ctx, &c, "test", &s), TG_ERR_ARGUMENT);
        ck_assert_msg(strstr(tg_ctx_message(ctx), rows[i].says), "\"%s\": %s", rows[i].layout, tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    tg_ctx_free(ctx);
}
END_TEST

static bool has(tg_module *m, const char *path) { return tg_module_find(m, path) != NULL; }

static tg_status stages_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    int stage = tg_parallel_rank(p, TG_PP);
    REFUSED(ctx, TG_ERR_ARGUMENT, "layers is 5, which 2 parts do not divide; a layout that would do is \"E t*3|t*2 L\"",
            tg_lm_new(ctx, TG_LM(LM_SIZES(LM_VOCAB, 5), .parallel = p)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "has 1 part, which is not pp * vp",
            tg_lm_new(ctx, TG_LM(LM_SMALL, .layout = "E t*4 L", .parallel = p)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "chunk is 1, expected 0 to 0",
            tg_lm_new(ctx, TG_LM(LM_SMALL, .chunk = 1, .parallel = p)));
    tg_module *m = tg_lm_new(ctx, TG_LM(LM_GPT2, .tied = true, .layout = "E t|t*3 L", .parallel = p));
    EXPECT(ctx, has(m, "transformer.h.0.ln_1.weight") == !stage);
    EXPECT(ctx, has(m, "transformer.h.1.attn.c_attn.weight") == stage);
    EXPECT(ctx, has(m, "transformer.h.3.mlp.c_fc.bias") == stage);
    EXPECT(ctx, has(m, "transformer.ln_f.weight") == stage);
    EXPECT(ctx, has(m, "transformer.wpe.weight") == !stage);
    tg_tensor *words = tg_module_find(m, "transformer.wte.weight"); /* the last stage has a copy */
    EXPECT(ctx, words && tg_lm_embedding_or_output_weight(m) == words);
    EXPECT(ctx, tg_lm_config_of(m)->chunk == 0 && !strcmp(tg_lm_config_of(m)->layout, "E t|t*3 L"));
    tg_tape *t = tg_tape_new(ctx);
    lm_batch b = lm_batch_new(ctx, p, 0);
    REFUSED(ctx, TG_ERR_STATE, "of a model of 2 parts, expected a whole model", tg_module_forward(m, t, b.ids[0]));
    lm_batch_drop(&b);
    tg_tape_free(t);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_stage_has_its_layers_under_their_global_names) { on_ranks(2, stages_rank, NULL); }
END_TEST

/* ---- Parts ---- */

/* Runs the parts one after another on a tape, like the stages of a pipeline. */
static tg_tensor *run_parts(tg_module *const *part, int n, tg_tape *t, lm_batch *b, bool loss) {
    tg_tensor *x = NULL;
    for (int i = 0; i < n; i++) tg_lm_run_part(part[i], t, x, &x, b->ids, loss ? b->targets : NULL, NULL);
    return x;
}

/* Runs the parts of a layout, and compares the loss, and all parameters and gradients, with those of the whole model.
 */
static tg_status compare_parts(tg_ctx *ctx, tg_lm_config c, const char *layout, int n) {
    tg_tape *t = tg_tape_new(ctx);
    RUN(tg_draws_step(ctx, 0));
    tg_module *part[8], *whole = tg_lm_new(ctx, &c);
    lm_batch b = lm_batch_new(ctx, NULL, 0);
    RUN(tg_draws_step(ctx, 0)); /* the parts draw the same numbers */
    c.layout = layout;
    for (int i = 0; i < n; i++) {
        c.chunk = i;
        part[i] = tg_lm_new(ctx, &c);
    }
    RUN(tg_draws_step(ctx, 1));
    tg_tensor *want = run_parts(&whole, 1, t, &b, true);
    RUN(tg_draws_step(ctx, 1));
    tg_tensor *got = run_parts(part, n, t, &b, true);
    EXPECT(ctx, tg_item(want) == tg_item(got));
    tg_backward(t, want);
    tg_backward(t, got);
    int params = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < tg_module_param_count(part[i]); k++, params++) {
            const char *path;
            tg_tensor *x = tg_module_param(part[i], k, &path), *y = tg_module_find(whole, path);
            EXPECT(ctx, off(x, y, -1, 0, 1) == 0 && off(tg_grad_of(x), tg_grad_of(y), -1, 0, 1) == 0);
        }
    EXPECT(ctx, params == tg_module_param_count(whole));
    for (int i = 0; i < n; i++) tg_module_free(part[i]);
    tg_module_free(whole);
    lm_batch_drop(&b);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status parts_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg, (void)world;
    RUN(compare_parts(ctx, *TG_LM(LM_GPT2, .dropout = 0.1), "E t*2|t*2 L", 2));
    RUN(compare_parts(ctx, *TG_LM(LM_SMALL, .dropout = 0.1), "E|t|t*2|t L", 4));
    RUN(compare_parts(ctx, *TG_LM(LM_SMALL, .recompute = TG_GPT_FULL, .dropout = 0.1), "E t*3|t|L", 3));
    RUN(compare_parts(ctx, *TG_LM(LM_GPT2, .recompute = TG_GPT_SELECTIVE), "E t|t|t|t L", 4));
    REFUSED(ctx, TG_ERR_UNSUPPORTED, "two copies of the embedding",
            tg_lm_new(ctx, TG_LM(LM_SMALL, .tied = true, .layout = "E t*2|t*2 L")));
    return TG_OK;
}

START_TEST(parts_compute_what_the_whole_model_does) { on_ranks(1, parts_rank, NULL); }
END_TEST

static tg_status positions_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg, (void)world;
    int64_t rows[LM_LENGTH];
    tg_tape *t = tg_tape_new(ctx);
    tg_module *gpt2 = tg_lm_new(ctx, TG_LM(LM_GPT2)), *rotary = tg_lm_new(ctx, TG_LM(LM_SMALL, .key = 1));
    lm_batch b = lm_batch_new(ctx, NULL, 0);
    tg_tensor *x, *y;
    for (int i = 0; i < LM_LENGTH; i++) rows[i] = i;
    tg_tensor *at = tg_from_host(ctx, TG_I64, TG_SHAPE(LM_LENGTH), rows);
    RUN(tg_lm_run_part(gpt2, t, NULL, &x, b.ids, b.targets, NULL));
    RUN(tg_lm_run_part(gpt2, t, NULL, &y, b.ids, b.targets, at));
    EXPECT(ctx, tg_item(x) == tg_item(y));
    for (int i = 0; i < LM_LENGTH; i++) rows[i] = LM_LENGTH - 1 - i;
    RUN(tg_write(at, rows, sizeof rows));
    RUN(tg_lm_run_part(gpt2, t, NULL, &y, b.ids, b.targets, at));
    EXPECT(ctx, tg_item(x) != tg_item(y));
    REFUSED(ctx, TG_ERR_UNSUPPORTED, "rotary positions always count from 0",
            tg_lm_run_part(rotary, t, NULL, &y, b.ids, b.targets, at));
    REFUSED(ctx, TG_ERR_SHAPE, "expected i64[2, 8]",
            tg_lm_run_part(gpt2, t, NULL, &y, b.ids, (tg_tensor *[]){tg_zeros(ctx, TG_I64, TG_SHAPE(2, 7))}, NULL));
    REFUSED(ctx, TG_ERR_ARGUMENT, "the first part needs them", tg_lm_run_part(gpt2, t, NULL, &y, NULL, NULL, NULL));
    tg_drop(at);
    lm_batch_drop(&b);
    tg_module_free(gpt2);
    tg_module_free(rotary);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(positions_may_be_given) { on_ranks(1, positions_rank, NULL); }
END_TEST

/* ---- The loss of given logits ---- */

static tg_status loss_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const layout *how = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = how->tp, .sequence_parallel = how->sp));
    tg_module *m = tg_lm_new(ctx, TG_LM(LM_SIZES(50, LM_LAYERS), .parallel = p));
    tg_tape *t = tg_tape_new(ctx);
    lm_batch b = lm_batch_new(ctx, p, 0);
    int64_t ids[LM_BATCH * LM_LENGTH];
    RUN(tg_read(b.ids[0], ids, sizeof ids));
    for (int i = 0; i < LM_BATCH * LM_LENGTH; i++) ids[i] %= 50;
    RUN(tg_write(b.ids[0], ids, sizeof ids));
    ids[3] = -100;
    RUN(tg_write(b.targets[0], ids, sizeof ids));
    tg_tensor *logits, *want, *each;
    RUN(tg_lm_run_part(m, t, NULL, &want, b.ids, b.targets, NULL));
    RUN(tg_lm_run_part(m, t, NULL, &logits, b.ids, NULL, NULL));
    tg_tensor *sum = tg_lm_loss(m, t, logits, b.targets[0], TG_LOSS_SUM);
    tg_tensor *mean = tg_lm_loss(m, t, logits, b.targets[0], TG_LOSS_MEAN);
    each = tg_lm_loss(m, t, logits, b.targets[0], TG_LOSS_NONE);
    EXPECT(ctx, tg_ndim(each) == 2 && tg_dim(each, 0) == LM_BATCH && tg_dim(each, 1) == LM_LENGTH);
    double rows[LM_BATCH * LM_LENGTH], total = tg_item(sum), added = 0;
    RUN(tg_read_f64(tg_contiguous(t, each), rows, LM_BATCH * LM_LENGTH));
    for (int i = 0; i < LM_BATCH * LM_LENGTH; i++) added += rows[i];
    EXPECT(ctx, rows[3] == 0 && rows[2] > 0);
    EXPECT(ctx, fabs(total - tg_item(want)) < 1e-10 && fabs(added - total) < 1e-10);
    EXPECT(ctx, fabs(tg_item(mean) * (LM_BATCH * LM_LENGTH - 1) - total) < 1e-10);
    if (how->tp > 1) {
        tg_tensor *whole = tg_gather_from_tp(t, logits, tg_parallel_comm(p, TG_TP));
        REFUSED(ctx, TG_ERR_PLACEMENT, "expected a contiguous shard of dim 2 on tp (V2); pass the logits of tg_lm_part",
                tg_lm_loss(m, t, whole, b.targets[0], TG_LOSS_SUM));
    }
    REFUSED(ctx, TG_ERR_SHAPE, "expected logits [sequence, batch, vocabulary]",
            tg_lm_loss(m, t, tg_transpose(t, logits, 0, 1), b.targets[0], TG_LOSS_SUM));
    if (how->tp == 1)
        REFUSED(ctx, TG_ERR_SHAPE, "expected 50 as the last dim",
                tg_lm_loss(m, t, tg_slice(t, logits, 2, 0, 7, 1), b.targets[0], TG_LOSS_SUM));
    lm_batch_drop(&b);
    tg_tape_free(t);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(given_logits_have_the_models_loss) {
    on_ranks(1, loss_rank, &(layout){.tp = 1});
    on_ranks(2, loss_rank, &(layout){.tp = 2});
    on_ranks(2, loss_rank, &(layout){.tp = 2, .sp = true});
}
END_TEST

/* ---- The model over ranks ---- */

/* Computes the loss and all gradients of a config over tp ranks, and compares them with those of one rank. */
static tg_status compare_ranks(tg_ctx *ctx, tg_comm *world, const layout *how, const tg_lm_config *given) {
    tg_lm_config c = *given;
    alone a = alone_open();
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = how->tp, .sequence_parallel = how->sp));
    RUN(tg_draws_step(ctx, 0));
    tg_module *one = tg_lm_new(a.ctx, (c.parallel = a.p, &c)), *m = tg_lm_new(ctx, (c.parallel = p, &c));
    tg_tape *t = tg_tape_new(ctx);
    lm_batch b = lm_batch_new(ctx, p, 0), ab = lm_batch_new(a.ctx, NULL, 0);
    tg_tensor *want, *got, *params[128];
    tg_lm_run_part(one, a.t, NULL, &want, ab.ids, ab.targets, NULL);
    tg_lm_run_part(m, t, NULL, &got, b.ids, b.targets, NULL);
    EXPECT(ctx, fabs(tg_item(want) - tg_item(got)) <= 1e-10 * fabs(tg_item(want)));
    tg_backward(a.t, want);
    tg_backward(t, got);
    int n = tg_module_params(m, params, 128);
    tg_grads_finalize(p, params, n, NULL);
    for (int i = 0; i < n; i++) {
        const char *path;
        tg_tensor *x = tg_module_param(m, i, &path), *y = tg_module_find(one, path);
        bool same = is_part(tg_grad_of(x), tg_grad_of(y), TG_TP, tg_parallel_rank(p, TG_TP), how->tp, 1e-9);
        if (!same) tg_ctx_fail(ctx, TG_ERR_GRADIENT, "the gradient of %s is not one rank's", path);
    }
    lm_batch_drop(&b), lm_batch_drop(&ab);
    tg_module_free(one), tg_module_free(m);
    tg_tape_free(t);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

/* ---- Backends of attention ---- */

/* Both backends on the same weights: losses and all gradients. */
static tg_status compare_backends(tg_ctx *ctx, const tg_parallel *p, tg_lm_config c) {
    tg_tape *t = tg_tape_new(ctx);
    lm_batch b = lm_batch_new(ctx, p, 0);
    tg_tensor *loss[2], *params[128];
    tg_module *m[2];
    c.parallel = p;
    for (int i = 0; i < 2; i++) { /* the same weights, and the same dropout */
        c.backend = i ? TG_LM_COMPOSED : TG_LM_FUSED;
        RUN(tg_draws_step(ctx, 0));
        m[i] = tg_lm_new(ctx, &c);
        RUN(tg_draws_step(ctx, 1));
        RUN(tg_lm_run_part(m[i], t, NULL, &loss[i], b.ids, b.targets, NULL));
        tg_backward(t, loss[i]);
        RUN(tg_grads_finalize(p, params, tg_module_params(m[i], params, 128), NULL));
    }
    EXPECT(ctx, fabs(tg_item(loss[0]) - tg_item(loss[1])) <= 1e-10 * fabs(tg_item(loss[0])));
    for (int i = 0; i < tg_module_param_count(m[0]); i++)
        EXPECT(ctx, off(tg_grad_of(tg_module_param(m[0], i, NULL)), tg_grad_of(tg_module_param(m[1], i, NULL)), -1, 0,
                        1) < 1e-10);
    tg_module_free(m[0]), tg_module_free(m[1]);
    lm_batch_drop(&b);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status backends_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const layout *how = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = how->tp, .sequence_parallel = how->sp));
    RUN(compare_backends(ctx, p, *TG_LM(LM_GPT2)));
    RUN(compare_backends(ctx, p, *TG_LM(LM_SMALL)));
    RUN(compare_backends(ctx, p, *TG_LM(LM_SMALL, .kv_heads = 2)));
    RUN(compare_backends(ctx, p, *TG_LM(LM_SMALL, .kv_heads = 1)));
    RUN(compare_backends(ctx, p, *TG_LM(LM_SMALL, .kv_heads = 2, .dropout = 0.2)));
    RUN(compare_backends(ctx, p, *TG_LM(LM_SMALL, .recompute = TG_GPT_FULL, .dropout = 0.2)));
    RUN(compare_backends(ctx, p, *TG_LM(LM_SMALL, .window = 3, .attention_kinds = "wf", .attention_softcap = 2)));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(both_backends_of_attention_agree) {
    on_ranks(1, backends_rank, &(layout){.tp = 1});
    on_ranks(2, backends_rank, &(layout){.tp = 2});
    on_ranks(4, backends_rank, &(layout){.tp = 4, .sp = true});
}
END_TEST

/* ---- Multi-token prediction ---- */

static tg_tensor *find(tg_module *m, const char *path, int d) {
    char full[96];
    snprintf(full, sizeof full, path, d);
    return tg_module_find(m, full);
}

/* Depth d by plain ops: from the hidden states of the depth before, [s, b, h]. */
static tg_tensor *plain_depth(tg_module *m, tg_tape *t, int d, tg_tensor *h, tg_tensor *ids) {
    char name[16];
    snprintf(name, sizeof name, "%d", d - 1);
    tg_module *depth = tg_module_child(tg_module_child(m, "mtp"), name);
    tg_tensor *e = tg_embedding(t, tg_module_find(m, "model.embed_tokens.weight"), tg_transpose(t, ids, 0, 1));
    tg_tensor *both[2] = {tg_rms_norm(t, e, find(m, "mtp.%d.enorm.weight", d - 1), 1e-6),
                          tg_rms_norm(t, h, find(m, "mtp.%d.hnorm.weight", d - 1), 1e-6)};
    tg_tensor *x = tg_linear(t, tg_concat(t, both, 2, 2), find(m, "mtp.%d.eh_proj.weight", d - 1), NULL);
    x = tg_module_forward(tg_module_child(depth, "transformer_layer"), t, x);
    return tg_rms_norm(t, x, find(m, "mtp.%d.final_layernorm.weight", d - 1), 1e-6);
}

static tg_tensor *plain_loss(tg_module *m, tg_tape *t, tg_tensor *h, tg_tensor *targets) {
    return tg_linear_cross_entropy(t, h, tg_lm_output_weight(m), tg_transpose(t, targets, 0, 1),
                                   TG_CROSS_ENTROPY(.reduction = TG_LOSS_SUM));
}

static tg_status depths_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg, (void)world;
    tg_tape *t = tg_tape_new(ctx);
    lm_batch b = lm_batch_new(ctx, NULL, 0);
    tg_module *m = tg_lm_new(ctx, TG_LM(LM_SMALL, .tied = true, .mtp = LM_DEPTHS, .mtp_weight = 0.3));
    const int64_t tokens[1 + LM_DEPTHS] = {14, 12, 10}; /* as lm_batch has them */
    tg_tensor *h = tg_lm_trunk(m, t, b.ids[0], NULL), *want = plain_loss(m, t, h, b.targets[0]), *got;
    for (int d = 1; d <= LM_DEPTHS; d++) {
        h = plain_depth(m, t, d, h, b.ids[d]);
        want = tg_add(t, want, tg_scale(t, plain_loss(m, t, h, b.targets[d]), 0.3 / 2 * 14 / (double)tokens[d]));
    }
    RUN(tg_lm_set_tokens(m, tokens));
    RUN(tg_lm_run_part(m, t, NULL, &got, b.ids, b.targets, NULL));
    EXPECT(ctx, fabs(tg_item(got) - tg_item(want)) < 1e-10);
    /* A depth without tokens weighs 0. */
    tg_tensor *first, *none;
    RUN(tg_lm_set_tokens(m, (int64_t[]){14, 12, 0}));
    RUN(tg_lm_run_part(m, t, NULL, &first, b.ids, b.targets, NULL));
    double before = tg_item(first);
    RUN(tg_lm_set_tokens(m, (int64_t[]){14, 0, 0}));
    RUN(tg_lm_run_part(m, t, NULL, &none, b.ids, b.targets, NULL));
    EXPECT(ctx, before > tg_item(none) && before < tg_item(got));
    EXPECT(ctx,
           fabs(tg_item(none) - tg_item(plain_loss(m, t, tg_lm_trunk(m, t, b.ids[0], NULL), b.targets[0]))) < 1e-10);
    REFUSED(ctx, TG_ERR_ARGUMENT, "tokens[1] is -1", tg_lm_set_tokens(m, (int64_t[]){14, -1, 0}));
    tg_module_free(m);
    lm_batch_drop(&b);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status depths_on_ranks(void *arg, tg_ctx *ctx, tg_comm *world) {
    RUN(compare_ranks(ctx, world, arg, TG_LM(LM_SMALL, .mtp = LM_DEPTHS)));
    RUN(compare_ranks(ctx, world, arg, TG_LM(LM_GPT2, .tied = true, .mtp = 1, .recompute = TG_GPT_FULL)));
    return compare_ranks(ctx, world, arg,
                         TG_LM(LM_SMALL, .mtp = 1, .tied = true, .kv_heads = 2, .recompute = TG_GPT_SELECTIVE));
}

START_TEST(depths_predict_further_tokens) {
    on_ranks(1, depths_rank, NULL);
    on_ranks(1, depths_on_ranks, &(layout){.tp = 1});
    on_ranks(2, depths_on_ranks, &(layout){.tp = 2});
    on_ranks(2, depths_on_ranks, &(layout){.tp = 2, .sp = true});
}
END_TEST

/* ---- Learning rates ---- */

/* Returns by how much Adam's first step, whose gradient is 1 everywhere, changes element 0: the learning rate, but for
 * eps. */
static double change_of(tg_tensor *x, double before) {
    double v[8192];
    return tg_read_f64(x, v, tg_numel(x)) == TG_OK ? before - v[0] : NAN;
}

static tg_status rates_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    static const struct {
        const char *path;
        double rate;
    } rows[] = {
        {"model.embed_tokens.weight", 0.5},
        {"lm_head.weight", 0.5},
        {"model.layers.2.mlp.up_proj.weight", 0.01 / 2},
        {"model.layers.2.input_layernorm.weight", 0.01},
        {"model.norm.weight", 0.01},
        {"mtp.0.eh_proj.weight", 0.01 / 2},
    };
    (void)arg, (void)world;
    tg_tensor *params[128];
    double before[8][8192];
    tg_module *m = tg_lm_new(ctx, TG_LM(LM_SMALL, .mtp = 1, .mup_base = LM_HIDDEN / 2));
    int n = tg_module_params(m, params, 128);
    tg_optim *o = tg_adamw_new(ctx, params, n, TG_ADAMW(.weight_decay = 0)), *sgd;
    RUN(tg_lm_groups(&m, 1, o, TG_LM_RATES(.lr = 0.01, .embed_lr = 0.5)));
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < n; i++) tg_backward(t, tg_sum(t, params[i], TG_ALL_DIMS, false));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tg_tensor *x = tg_module_find(m, rows[i].path);
        RUN(tg_read_f64(x, before[i], tg_numel(x)));
    }
    RUN(tg_optim_step(o));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double moved = change_of(tg_module_find(m, rows[i].path), before[i][0]);
        if (!(fabs(moved / rows[i].rate - 1) < 1e-6))
            tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s moved by %g, expected %g", rows[i].path, moved, rows[i].rate);
    }
    sgd = tg_sgd_new(ctx, params, n, TG_SGD(.lr = 1));
    REFUSED(ctx, TG_ERR_ARGUMENT, "the rates of mup_base are those of Adam",
            tg_lm_groups(&m, 1, sgd, TG_LM_RATES(.lr = 0.01)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "both minimums 0 unless a schedule is given",
            tg_lm_groups(&m, 1, o, TG_LM_RATES(.lr = 0.01, .min_lr = 0.001)));
    tg_optim_free(sgd);
    tg_optim_free(o);
    tg_tape_free(t);
    tg_module_free(m);
    return tg_ctx_status(ctx);
}

START_TEST(groups_have_rates_of_their_own) { on_ranks(1, rates_rank, NULL); }
END_TEST

int main(void) {
    const TTest *tests[] = {layouts_say_which_layers_a_part_has,
                            wrong_layouts_are_refused,
                            a_stage_has_its_layers_under_their_global_names,
                            parts_compute_what_the_whole_model_does,
                            positions_may_be_given,
                            given_logits_have_the_models_loss,
                            both_backends_of_attention_agree,
                            depths_predict_further_tokens,
                            groups_have_rates_of_their_own};
    return tg_check_main("lm", tests, sizeof tests / sizeof *tests);
}
