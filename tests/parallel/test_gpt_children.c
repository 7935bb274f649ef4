/* Children of a GPT that replace the library's own: each is called, learns, and changes what the model computes, on
 * one rank and on tensor-parallel ranks. Also options that a GPT refuses or accepts without tensor parallelism:
 * pipeline stages, and deferred weight gradients. */
#include <tapegrad/gpt.h>
#include <tapegrad/ops.h>
#include <tapegrad/optim.h>
#include <tapegrad/tensor_parallel.h>

#include "on_ranks.h"

enum { VOCAB = 256, POSITIONS = 8, HIDDEN = 8, FFN = 32, RANK = 2, BATCH = 2, LENGTH = 6 };

/* ---- A low-rank adapter ---- */

/* y = base(x) + x a^T b^T; for an embedding (rows x of a) b^T. a is [RANK, in], or [in, RANK] for an embedding; b
 * [out, RANK]. */
static tg_tensor *lora_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    tg_tensor *a = tg_module_find(m, "a"), *b = tg_module_find(m, "b"), *y;
    bool rows = tg_dtype_of(x) == TG_I64;
    y = rows ? tg_embedding(t, a, x) : tg_linear(t, x, a, NULL);
    return tg_add(t, tg_module_forward(tg_module_child(m, "base"), t, x), tg_linear(t, y, b, NULL));
}

static const tg_module_ops lora_ops = {.size = sizeof lora_ops, .kind = "lora", .forward = lora_forward};

static tg_tensor *param(tg_module *m, const char *name, int k, tg_shape shape) {
    tg_tensor *p = grad_leaf(made(tg_module_ctx(m), k, shape));
    tg_module_add_param(m, name, p);
    return p;
}

/* Wraps base, and owns it; b is 0 at first, so that nothing changes yet. */
static tg_module *lora(tg_ctx *ctx, tg_module *base, int64_t in, int64_t out, bool rows) {
    tg_module *m = tg_module_new(ctx, &lora_ops, NULL);
    param(m, "a", 3, rows ? TG_SHAPE(in, RANK) : TG_SHAPE(RANK, in));
    tg_tensor *b = tg_zeros(ctx, TG_F64, TG_SHAPE(out, RANK));
    tg_module_add_param(m, "b", grad_leaf(b));
    tg_module_add_child(m, "base", base);
    return m;
}

/* ---- The replaced children ---- */

typedef struct place {
    tg_gpt_arch arch;
    const char *parent, *name;
    int64_t input, out;
    bool rows, bias;
} place;

static const place places[] = {
    {TG_GPT2, "transformer.h.0.mlp", "c_fc", HIDDEN, FFN, false, true},
    {TG_GPT2, "transformer", "wpe", POSITIONS, HIDDEN, true, false},
    {TG_GPT2, "", "lm_head", HIDDEN, VOCAB, false, false},
    {TG_LLAMA, "", "lm_head", HIDDEN, VOCAB, false, false},
};

static tg_module *at_path(tg_module *m, const char *path) {
    char name[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        m = tg_module_child(m, name);
        path += n + (path[n] == '.');
    }
    return m;
}

typedef struct job {
    const place *at;
    tg_gpt_recompute recompute;
    /* Results of one rank: the child's weight, the loss without and with the adapter, and b's gradient. */
    double weight[VOCAB * HIDDEN], loss[2], grad;
} job;

static tg_module *gpt_of(tg_ctx *ctx, const job *j, const tg_parallel *p) {
    return tg_gpt_new(ctx, TG_GPT(.arch = j->at->arch, .vocab = VOCAB, .layers = 1, .heads = 2, .hidden = HIDDEN,
                                  .ffn = FFN, .positions = POSITIONS, .untied = j->at->arch == TG_GPT2, .init_std = 0.2,
                                  .recompute = j->recompute, .parallel = p));
}

/* A layer with the same weights as the child, which is removed and freed. All of it on every rank. */
static tg_status replace(tg_module *gpt, const place *at, const double *weight, const double *bias) {
    tg_ctx *ctx = tg_module_ctx(gpt);
    tg_module *parent = at_path(gpt, at->parent);
    tg_module *base =
        at->rows ? tg_nn_embedding(ctx, at->input, at->out, 1) : tg_nn_linear(ctx, at->input, at->out, at->bias, 1);
    RUN(tg_write_f64(tg_module_find(base, "weight"), weight, at->input * at->out));
    if (at->bias) RUN(tg_write_f64(tg_module_find(base, "bias"), bias, at->out));
    tg_module_free(tg_module_child(parent, at->name));
    return tg_module_add_child(parent, at->name, lora(ctx, base, at->input, at->out, at->rows));
}

static tg_tensor *b_of(tg_module *gpt, const place *at) {
    return tg_module_find(tg_module_child(at_path(gpt, at->parent), at->name), "b");
}

typedef struct data {
    tg_tensor *ids, *next;
} data;

static data data_of(tg_ctx *ctx, const tg_parallel *p) {
    int64_t ids[BATCH * LENGTH], next[BATCH * LENGTH];
    for (int i = 0; i < BATCH * LENGTH; i++) ids[i] = 5 * i % VOCAB, next[i] = 11 * i % VOCAB;
    data d = {tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), ids),
              tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), next)};
    if (p) tg_place(p, d.ids, TG_TP, TG_I);
    if (p) tg_place(p, d.next, TG_TP, TG_I);
    return d;
}

/* Computes the loss in two ways, fused and from the logits, which must agree. */
static double loss_now(tg_module *gpt, tg_tape *t, data d) {
    double loss = tg_item(tg_gpt_loss(gpt, t, d.ids, d.next, TG_LOSS_MEAN));
    tg_tensor *y = tg_gpt_logits(gpt, t, d.ids);
    double by_logits = tg_item(tg_cross_entropy(t, y, d.next, NULL));
    tg_tape_reset(t);
    return fabs(loss - by_logits) < 1e-10 ? loss : NAN;
}

static bool close_to(double a, double b) { return fabs(a - b) <= 1e-9 * (1e-3 + fabs(b)); }

/* Computes the last token's logits with the cache. */
static bool generates(tg_module *gpt, tg_tape *t, data d) {
    tg_gpt_cache *c = tg_gpt_cache_new(gpt, BATCH, POSITIONS);
    double whole[BATCH * LENGTH * VOCAB], last[BATCH * VOCAB], off = 0;
    tg_read_f64(tg_gpt_logits(gpt, t, d.ids), whole, BATCH * LENGTH * VOCAB);
    tg_read_f64(tg_gpt_next(gpt, t, c, d.ids), last, BATCH * VOCAB);
    for (int b = 0; b < BATCH; b++)
        for (int v = 0; v < VOCAB; v++)
            off = larger_or_nan(off, fabs(last[b * VOCAB + v] - whole[(b * LENGTH + LENGTH - 1) * VOCAB + v]));
    tg_tape_reset(t);
    tg_gpt_cache_free(c);
    return off < 1e-10;
}

static tg_status child_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    const place *at = j->at;
    const double h = 1e-5;
    bool one = tg_comm_size(world) == 1;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    tg_module *gpt = gpt_of(ctx, j, p);
    tg_tape *t = tg_tape_new(ctx);
    data d = data_of(ctx, p);
    /* The library's own child as on one rank, with an adapter that does nothing yet. */
    double bias[FFN] = {0}, b[VOCAB * RANK] = {0}, start = loss_now(gpt, t, d);
    const tg_module *own = tg_module_child(at_path(gpt, at->parent), at->name);
    if (one) RUN(tg_read_f64(tg_module_find(own, "weight"), j->weight, at->input * at->out));
    RUN(replace(gpt, at, j->weight, bias));
    tg_place(p, tg_module_find(tg_module_child(at_path(gpt, at->parent), at->name), "a"), TG_TP, TG_I);
    tg_place(p, b_of(gpt, at), TG_TP, TG_I);
    EXPECT(ctx, close_to(loss_now(gpt, t, d), start));
    /* b gets the gradient that finite differences give, and changes the output. */
    tg_backward(t, tg_gpt_loss(gpt, t, d.ids, d.next, TG_LOSS_MEAN));
    double g[VOCAB * RANK], up, down;
    RUN(tg_read_f64(tg_grad_of(b_of(gpt, at)), g, at->out * RANK));
    tg_tape_reset(t);
    b[1] = h, tg_write_f64(b_of(gpt, at), b, at->out * RANK), up = loss_now(gpt, t, d);
    b[1] = -h, tg_write_f64(b_of(gpt, at), b, at->out * RANK), down = loss_now(gpt, t, d);
    EXPECT(ctx, g[1] != 0 && fabs(g[1] - (up - down) / (2 * h)) < 1e-6 * (1e-3 + fabs(g[1])));
    for (int i = 0; i < at->out * RANK; i++) b[i] = sin(i);
    tg_write_f64(b_of(gpt, at), b, at->out * RANK);
    double moved = loss_now(gpt, t, d);
    EXPECT(ctx, fabs(moved - start) > 1e-4);
    EXPECT(ctx, generates(gpt, t, d));
    if (one) j->loss[0] = start, j->loss[1] = moved, j->grad = g[1];
    EXPECT(ctx, close_to(start, j->loss[0]) && close_to(moved, j->loss[1]) && close_to(g[1], j->grad));
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_drop(d.ids), tg_drop(d.next);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_child_in_place_of_the_librarys_own_is_called) {
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (int r = TG_GPT_KEEP; r <= TG_GPT_SELECTIVE; r++) {
            job j = {.at = &places[i], .recompute = (tg_gpt_recompute)r};
            on_ranks(1, child_rank, &j);
            /* Between column and row layers c_fc gives a shard, so a layer that is whole does not fit there. */
            if (strcmp(places[i].name, "c_fc")) on_ranks(2, child_rank, &j);
        }
}
END_TEST

/* ---- Deferred weight gradients without tensor parallelism ---- */

static tg_status deferred_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    static const tg_gpt_wgrad kinds[] = {TG_WGRAD_PLAIN, TG_WGRAD_FUSED, TG_WGRAD_DEFERRED};
    tg_gpt_arch arch = *(const tg_gpt_arch *)arg;
    double loss[3], g[3][FFN * HIDDEN];
    (void)world;
    for (int k = 0; k < 3; k++) {
        RUN(tg_draws_step(ctx, 0)); /* the same weights again */
        tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.arch = arch, .vocab = VOCAB, .layers = 2, .heads = 2, .hidden = HIDDEN,
                                                .ffn = FFN, .positions = POSITIONS, .wgrad = kinds[k]));
        tg_tape *t = tg_tape_new(ctx);
        data d = data_of(ctx, NULL);
        tg_tensor *w = tg_module_find(gpt, arch == TG_GPT2 ? "transformer.h.1.mlp.c_fc.weight"
                                                           : "model.layers.1.mlp.up_proj.weight");
        tg_optim *o = tg_adamw_new(ctx, &w, 1, NULL);
        tg_tensor *l = tg_gpt_loss(gpt, t, d.ids, d.next, TG_LOSS_MEAN);
        tg_backward(t, l);
        loss[k] = tg_item(l);
        if (kinds[k] == TG_WGRAD_DEFERRED) {
            REFUSED(ctx, TG_ERR_STATE, "tg_wgrads_drain", tg_optim_step(o));
            RUN(tg_wgrads_drain(gpt));
        }
        RUN(tg_read_f64(tg_grad_of(w), g[k], FFN * HIDDEN));
        RUN(tg_optim_step(o));
        EXPECT(ctx, close_to(loss[k], loss[0]));
        for (int i = 0; i < FFN * HIDDEN; i++) EXPECT(ctx, fabs(g[k][i] - g[0][i]) < 1e-12);
        tg_optim_free(o);
        tg_tape_free(t);
        tg_module_free(gpt);
        tg_drop(d.ids), tg_drop(d.next);
    }
    return tg_ctx_status(ctx);
}

START_TEST(weight_gradients_wait_without_tensor_parallelism) {
    on_ranks(1, deferred_rank, &(tg_gpt_arch){TG_GPT2});
    on_ranks(1, deferred_rank, &(tg_gpt_arch){TG_LLAMA});
}
END_TEST

/* ---- Pipeline stages ---- */

static tg_status stages_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    const tg_gpt_config *c = TG_GPT(.vocab = VOCAB, .layers = 2, .heads = 2, .hidden = HIDDEN, .positions = POSITIONS,
                                    .parallel = p);
    tg_module *gpt = tg_gpt_new(ctx, c), *layer = tg_nn_transformer_layer(ctx, c);
    tg_tape *t = tg_tape_new(ctx);
    data d = data_of(ctx, p);
    EXPECT(ctx, (tg_module_find(gpt, "transformer.h.0.ln_1.bias") == NULL) == tg_parallel_rank(p, TG_PP));
    EXPECT(ctx, tg_module_param_count(layer) > 0);
    REFUSED(ctx, TG_ERR_STATE, "tg_gpt_logits: the module is part", tg_gpt_logits(gpt, t, d.ids));
    REFUSED(ctx, TG_ERR_STATE, "of a model of 2 parts", tg_gpt_loss(gpt, t, d.ids, d.next, TG_LOSS_MEAN));
    REFUSED(ctx, TG_ERR_STATE, "expected a whole model", tg_gpt_cache_new(gpt, 1, 1));
    tg_drop(d.ids), tg_drop(d.next);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_module_free(layer);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_stage_of_a_gpt_is_no_whole_model) { on_ranks(2, stages_rank, NULL); }
END_TEST

int main(void) {
    const TTest *tests[] = {a_child_in_place_of_the_librarys_own_is_called,
                            weight_gradients_wait_without_tensor_parallelism, a_stage_of_a_gpt_is_no_whole_model};
    return tg_check_main("gpt_children", tests, sizeof tests / sizeof *tests);
}
