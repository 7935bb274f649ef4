/* Every module of a model, replaced in turn: the model calls the new one wherever it has used the old one, in the loss,
 * the logits and generation, and the new one's parameter gets the gradient of finite differences. Also hooks where a
 * model joins several modules into one op, and depths of multi-token prediction. */
#include <tapegrad/gpt.h>

#include "lm_cases.h"
#include "models/lm/lm.h"

enum { VOCAB = 24, POSITIONS = 6, LENGTH = 5 };

/* ---- A module that runs another one and multiplies its outputs with a parameter ---- */

static int calls;

static tg_status scaled_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    calls++;
    tg_module_call(tg_module_child(m, "inner"), t, in, n_in, out, n_out);
    for (int i = 0; i < n_out; i++) out[i] = tg_mul(t, out[i], tg_module_find(m, "factor"));
    return tg_ctx_status(tg_module_ctx(m));
}

static const tg_module_ops scaled_ops = {.size = sizeof(tg_module_ops), .kind = "scaled", .call = scaled_call};

/* Replaces the module of that path by one that contains it, and returns the factor, which is 1. */
static tg_tensor *scale_at(tg_module *m, const char *path) {
    tg_ctx *ctx = tg_module_ctx(m);
    tg_module *s = tg_module_new(ctx, &scaled_ops, NULL);
    tg_tensor *one = tg_zeros(ctx, TG_F64, TG_SHAPE());
    tg_write_f64(one, (double[]){1}, 1);
    tg_module_add_param(s, "factor", grad_leaf(one));
    tg_module_add_child(s, "inner", tg_module_replace(m, path, s));
    return one;
}

static tg_module *at_path(tg_module *m, const char *path) {
    char name[64];
    for (; *path; path += strcspn(path, "."), path += *path == '.') {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(path, "."), path);
        m = tg_module_child(m, name);
    }
    return m;
}

/* ---- Every module of a GPT ---- */

static const char *const gpt2_paths[] = {"transformer.wte",
                                         "transformer.wpe",
                                         "transformer.h.0",
                                         "transformer.h.0.ln_1",
                                         "transformer.h.0.attn",
                                         "transformer.h.0.ln_2",
                                         "transformer.h.0.mlp",
                                         "transformer.h.0.attn.c_attn",
                                         "transformer.h.0.attn.c_proj",
                                         "transformer.h.0.mlp.c_fc",
                                         "transformer.h.0.mlp.c_proj",
                                         "transformer.ln_f",
                                         "lm_head"};
static const char *const llama_paths[] = {"model.embed_tokens",
                                          "model.layers.0",
                                          "model.layers.0.input_layernorm",
                                          "model.layers.0.self_attn",
                                          "model.layers.0.self_attn.q_proj",
                                          "model.layers.0.self_attn.k_proj",
                                          "model.layers.0.self_attn.v_proj",
                                          "model.layers.0.self_attn.o_proj",
                                          "model.layers.0.post_attention_layernorm",
                                          "model.layers.0.mlp",
                                          "model.layers.0.mlp.gate_proj",
                                          "model.layers.0.mlp.up_proj",
                                          "model.layers.0.mlp.down_proj",
                                          "model.norm",
                                          "lm_head"};

typedef struct job {
    tg_gpt_arch arch;
    tg_gpt_recompute recompute;
    const char *path;
} job;

static tg_module *gpt_of(tg_ctx *ctx, const job *j, const tg_parallel *p) {
    return tg_gpt_new(ctx, TG_GPT(.arch = j->arch, .vocab = VOCAB, .layers = 1, .heads = 2, .hidden = 8, .ffn = 12,
                                  .positions = POSITIONS, .untied = j->arch == TG_GPT2, .init_std = 0.2,
                                  .recompute = j->recompute, .parallel = p));
}

static tg_tensor *tokens(tg_ctx *ctx, const tg_parallel *p, int step) {
    int64_t v[2 * LENGTH];
    for (int i = 0; i < 2 * LENGTH; i++) v[i] = step * (i + 3) % VOCAB;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(2, LENGTH), v);
    if (p) tg_place(p, x, TG_TP, TG_I);
    return x;
}

/* Computes the loss by itself and from the logits, which must agree. */
static double loss_now(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *next) {
    double loss = tg_item(tg_gpt_loss(gpt, t, ids, next, TG_LOSS_MEAN));
    double by_logits = tg_item(tg_cross_entropy(t, tg_gpt_logits(gpt, t, ids), next, NULL));
    tg_tape_reset(t);
    return fabs(loss - by_logits) < 1e-12 ? loss : NAN;
}

static double loss_with(tg_module *gpt, tg_tape *t, tg_tensor *ids, tg_tensor *next, tg_tensor *factor, double value) {
    tg_write_f64(factor, &value, 1);
    return loss_now(gpt, t, ids, next);
}

/* Returns the difference of the last token's logits, computed with a cache, from the logits of all; NaN on error. */
static double generation_off(tg_module *gpt, tg_tape *t, tg_tensor *ids) {
    double all[2 * LENGTH * VOCAB], last[2 * VOCAB], most = 0;
    tg_gpt_cache *c = tg_gpt_cache_new(gpt, 2, POSITIONS);
    tg_read_f64(tg_gpt_logits(gpt, t, ids), all, 2 * LENGTH * VOCAB);
    bool good = tg_read_f64(tg_gpt_next(gpt, t, c, ids), last, 2 * VOCAB) == TG_OK;
    for (int b = 0; good && b < 2; b++)
        for (int v = 0; v < VOCAB; v++)
            most = larger_or_nan(most, fabs(last[b * VOCAB + v] - all[(b * LENGTH + LENGTH - 1) * VOCAB + v]));
    tg_tape_reset(t);
    tg_gpt_cache_free(c);
    return good ? most : NAN;
}

/* Returns whether the model has used the module's parameters in an op of its own, so that another op rounds otherwise.
 */
static bool was_joined(const char *path) { return !strcmp(path, "lm_head") || strstr(path, "c_fc"); }
/* Returns whether generation needs the library's own module there. */
static bool has_cache(const char *path) {
    const char *last = strrchr(path, '.');
    return last && (!strcmp(last, ".0") || !strcmp(last, ".attn") || !strcmp(last, ".self_attn"));
}

static tg_status replaced(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    (void)world;
    const double h = 1e-5;
    double g;
    tg_tape *t = tg_tape_new(ctx);
    tg_module *gpt = gpt_of(ctx, j, NULL);
    tg_tensor *ids = tokens(ctx, NULL, 5), *next = tokens(ctx, NULL, 11);
    double start = loss_now(gpt, t, ids, next);
    tg_tensor *factor = scale_at(gpt, j->path);
    calls = 0;
    double same = loss_now(gpt, t, ids, next);
    EXPECT(ctx, was_joined(j->path) ? fabs(same - start) < 1e-13 : same == start);
    EXPECT(ctx, calls == 2); /* for the loss, and for the logits */
    tg_backward(t, tg_gpt_loss(gpt, t, ids, next, TG_LOSS_MEAN));
    RUN(tg_read_f64(tg_grad_of(factor), &g, 1));
    tg_tape_reset(t);
    double up = loss_with(gpt, t, ids, next, factor, 1 + h), down = loss_with(gpt, t, ids, next, factor, 1 - h);
    EXPECT(ctx, g != 0 && fabs(g - (up - down) / (2 * h)) < 1e-9);
    EXPECT(ctx, fabs(loss_with(gpt, t, ids, next, factor, 2) - start) > 1e-6);
    if (has_cache(j->path))
        REFUSED(ctx, TG_ERR_UNSUPPORTED, "only the library's own can use a cache", generation_off(gpt, t, ids));
    else
        EXPECT(ctx, generation_off(gpt, t, ids) < 1e-12);
    tg_tape_free(t);
    tg_module_free(gpt);
    return tg_ctx_status(ctx);
}

START_TEST(every_module_of_a_gpt_can_be_replaced) {
    enum {
        GPT2_PATHS = sizeof gpt2_paths / sizeof *gpt2_paths,
        LLAMA_PATHS = sizeof llama_paths / sizeof *llama_paths
    };
    for (int r = TG_GPT_KEEP; r <= TG_GPT_SELECTIVE; r++)
        for (int i = 0; i < GPT2_PATHS + LLAMA_PATHS; i++) {
            bool gpt2 = i < GPT2_PATHS;
            job j = {gpt2 ? TG_GPT2 : TG_LLAMA, (tg_gpt_recompute)r,
                     gpt2 ? gpt2_paths[i] : llama_paths[i - GPT2_PATHS]};
            on_ranks(1, replaced, &j);
        }
}
END_TEST

/* The output matrix of a tied model is the parameter "weight" of the embedding, whatever module that is. */
static tg_status tied(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg, (void)world;
    tg_tape *t = tg_tape_new(ctx);
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.vocab = VOCAB, .layers = 1, .heads = 2, .hidden = 8, .ffn = 12,
                                            .positions = POSITIONS, .init_std = 0.2));
    tg_tensor *ids = tokens(ctx, NULL, 5), *next = tokens(ctx, NULL, 11);
    tg_tensor *weight = tg_module_find(gpt, "transformer.wte.weight");
    double start = loss_now(gpt, t, ids, next);
    tg_tensor *factor = scale_at(gpt, "transformer.wte");
    REFUSED(ctx, TG_ERR_STATE, "the output matrix is missing", tg_gpt_loss(gpt, t, ids, next, TG_LOSS_MEAN));
    tg_tape_reset(t);
    tg_module_add_param(at_path(gpt, "transformer.wte"), "weight", weight);
    EXPECT(ctx, loss_now(gpt, t, ids, next) == start);
    tg_backward(t, tg_gpt_loss(gpt, t, ids, next, TG_LOSS_MEAN));
    EXPECT(ctx, tg_item(tg_grad_of(factor)) != 0 && tg_has_grad(weight));
    tg_tape_free(t);
    tg_module_free(gpt);
    return tg_ctx_status(ctx);
}

START_TEST(a_tied_embedding_keeps_its_weight) { on_ranks(1, tied, NULL); }
END_TEST

/* ---- Hooks ---- */

static tg_status doubles(void *user, tg_module *m, tg_tape *t, tg_tensor **x, int n) {
    (void)m, (void)n;
    ++*(int *)user;
    x[0] = tg_scale(t, x[0], 2);
    return TG_OK;
}

/* The loss with hooks that double the logits is the loss of doubled logits. */
static tg_status hooked_head(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    tg_tape *t = tg_tape_new(ctx);
    tg_module *gpt = gpt_of(ctx, arg, p), *head = tg_module_child(gpt, "lm_head");
    tg_tensor *ids = tokens(ctx, p, 5), *next = tokens(ctx, p, 11);
    int runs = 0;
    tg_tensor *y = tg_scale(t, tg_gpt_logits(gpt, t, ids), 2);
    double want = tg_item(tg_cross_entropy(t, y, next, NULL));
    tg_tape_reset(t);
    uint64_t hook = tg_module_hook(head, TG_AFTER, doubles, &runs);
    EXPECT(ctx, fabs(loss_now(gpt, t, ids, next) - want) < 1e-12 && runs == 2);
    EXPECT(ctx, generation_off(gpt, t, ids) < 1e-12 && runs == 4);
    RUN(tg_module_unhook(head, hook));
    EXPECT(ctx, fabs(loss_now(gpt, t, ids, next) - want) > 1e-6 && runs == 4);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(hooks_on_the_output_matrix_run) {
    for (int n = 1; n <= 2; n++) on_ranks(n, hooked_head, &(job){.arch = TG_LLAMA});
}
END_TEST

/* Hooks on layers and attention run in generation too, also those on a captured layer. */
static tg_status hooked_layers(void *arg, tg_ctx *ctx, tg_comm *world) {
    static const char *const paths[] = {"transformer.h.0", "transformer.h.0.attn", "transformer.h.0.attn.c_attn"};
    (void)world;
    tg_tape *t = tg_tape_new(ctx);
    tg_module *gpt = gpt_of(ctx, arg, NULL);
    tg_tensor *ids = tokens(ctx, NULL, 5);
    int runs = 0;
    for (int i = 0; i < 3; i++) tg_module_hook(at_path(gpt, paths[i]), TG_AFTER, doubles, &runs);
    EXPECT(ctx, generation_off(gpt, t, ids) < 1e-12 && runs == 6);
    tg_module *layer =
        tg_captured_new(at_path(gpt, paths[0]), (tg_shape[]){TG_SHAPE(LENGTH, 2, 8)}, (tg_dtype[]){TG_F64}, 1, 1);
    tg_module_hook(layer, TG_AFTER, doubles, &runs);
    EXPECT(ctx, generation_off(gpt, t, ids) < 1e-12 && runs == 14);
    tg_tape_free(t);
    tg_module_free(gpt);
    return tg_ctx_status(ctx);
}

START_TEST(hooks_run_with_a_cache) { on_ranks(1, hooked_layers, &(job){.arch = TG_GPT2}); }
END_TEST

/* ---- Multi-token prediction ---- */

static double depths_loss(tg_module *m, tg_tape *t, lm_batch *b) {
    tg_tensor *y;
    double loss = tg_lm_run_part(m, t, NULL, &y, b->ids, b->targets, NULL) == TG_OK ? tg_item(y) : NAN;
    tg_tape_reset(t);
    return loss;
}

static tg_status replaced_depth(void *arg, tg_ctx *ctx, tg_comm *world) {
    const tg_gpt_recompute *recompute = arg;
    (void)world;
    tg_tape *t = tg_tape_new(ctx);
    tg_module *m = tg_lm_new(ctx, TG_LM(LM_SMALL, .mtp = 1, .recompute = *recompute));
    lm_batch b = lm_batch_new(ctx, NULL, 0);
    tg_tensor *loss;
    double start = depths_loss(m, t, &b);
    tg_tensor *factor = scale_at(m, "mtp.0");
    EXPECT(ctx, depths_loss(m, t, &b) == start);
    RUN(tg_lm_run_part(m, t, NULL, &loss, b.ids, b.targets, NULL));
    tg_backward(t, loss);
    EXPECT(ctx, tg_item(tg_grad_of(factor)) != 0);
    tg_tape_reset(t);
    tg_write_f64(factor, (double[]){0}, 1);
    EXPECT(ctx, fabs(depths_loss(m, t, &b) - start) > 1e-6);
    RUN(tg_lm_set_tokens(m, (int64_t[]){14, 0})); /* the depth weighs nothing, whoever computes it */
    double without = depths_loss(m, t, &b);
    tg_write_f64(factor, (double[]){3}, 1);
    EXPECT(ctx, depths_loss(m, t, &b) == without);
    lm_batch_drop(&b);
    tg_tape_free(t);
    tg_module_free(m);
    return tg_ctx_status(ctx);
}

START_TEST(a_depth_can_be_replaced) {
    for (int r = TG_GPT_KEEP; r <= TG_GPT_FULL; r++)
        on_ranks(1, replaced_depth, &(tg_gpt_recompute){(tg_gpt_recompute)r});
}
END_TEST

int main(void) {
    const TTest *const tests[] = {every_module_of_a_gpt_can_be_replaced, a_tied_embedding_keeps_its_weight,
                                  hooks_on_the_output_matrix_run, hooks_run_with_a_cache, a_depth_can_be_replaced};
    return tg_check_main("gpt_replaced", tests, sizeof tests / sizeof *tests);
}
