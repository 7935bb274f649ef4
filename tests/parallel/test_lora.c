/* Low-rank adapters: what they compute, on one rank and on grids of ranks, what is trained, merging, and their files.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/flat.h>
#include <tapegrad/gpt.h>
#include <tapegrad/io.h>
#include <tapegrad/layers.h>
#include <tapegrad/lora.h>
#include <tapegrad/megatron.h>
#include <tapegrad/tensor_parallel.h>

#include "on_ranks.h"

enum { BATCH = 4, LENGTH = 8, VOCAB = 50, RANK = 3 };

typedef struct composition {
    tg_gpt_arch arch;
    int tp, dp, kv_heads;
    bool sp;
    tg_gpt_recompute recompute;
    tg_gpt_wgrad wgrad;
} composition;

typedef struct job {
    composition c;
    char dir[64];
    double loss[3];   /* of each step */
    const char *load; /* directory of adapters; NULL: new ones */
} job;

static void make_directory(char dir[64]) {
    snprintf(dir, 64, "/tmp/tg-lora-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void remove_directory(const char *dir) {
    char command[96];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

static tg_module *make(tg_ctx *ctx, const composition *c, const tg_parallel *p) {
    return tg_gpt_new(ctx, TG_GPT(.arch = c->arch, .vocab = VOCAB, .layers = 2, .heads = 4,
                                  .kv_heads = c->kv_heads ? c->kv_heads : TG_AUTO, .hidden = 16, .ffn = 24,
                                  .positions = LENGTH, .recompute = c->recompute, .wgrad = c->wgrad, .init_std = 0.2,
                                  .parallel = p));
}

/* Both matrices get values: with B 0, A would have no gradient. */
static void value_of_matrix(void *user, int64_t first, int64_t n, double *out) {
    const int *k = user;
    for (int64_t i = 0; i < n; i++) out[i] = 0.3 * at(*k, first + i);
}

static void fill_matrices(tg_module *m) {
    for (int i = 0, k = 0; i < tg_module_param_count(m); i++) {
        const char *path;
        tg_tensor *x = tg_module_param(m, i, &path);
        if (!strstr(path, ".lora_")) continue;
        k++;
        tg_param_init(x, TG_INIT(.kind = TG_INIT_CALL, .fill = value_of_matrix, .user = &k));
    }
}

static int trained(tg_module *m, tg_tensor **out) {
    int n = 0;
    for (int i = 0; i < tg_module_param_count(m); i++) {
        tg_tensor *x = tg_module_param(m, i, NULL);
        if (tg_requires_grad(x)) out[n++] = x;
    }
    return n;
}

static void fill_ids(int64_t *ids, int64_t *target) {
    for (int i = 0; i < BATCH * LENGTH; i++) {
        ids[i] = (7 * i + i * i) % VOCAB;
        target[i] = (11 * i + 3) % VOCAB;
    }
}

/* ---- On ranks ---- */

/* Trains the adapters for three steps, and saves them. */
static tg_status train_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    const composition *c = &j->c;
    bool alone = tg_comm_size(world) == 1;
    tg_parallel *p = alone ? NULL : tg_parallel_new(world, TG_PARALLEL(.tp = c->tp, .sequence_parallel = c->sp));
    tg_module *gpt = make(ctx, c, p);
    if (j->load) {
        RUN(tg_lora_load(gpt, j->load));
    } else {
        RUN(tg_lora_apply(gpt, TG_LORA(.rank = RANK, .alpha = 4)));
        fill_matrices(gpt);
    }
    tg_tensor *params[128];
    int n = trained(gpt, params);
    tg_flat *flat = c->dp > 1 ? tg_flat_new(p, params, n, NULL) : NULL;
    tg_optim *o = tg_sgd_new(ctx, params, n, TG_SGD(.lr = 0.02));
    tg_tape *t = tape_on_nans(ctx);
    int64_t ids[BATCH * LENGTH], target[BATCH * LENGTH], mine = BATCH / c->dp;
    int64_t first = p ? tg_parallel_rank(p, TG_DP) * mine * LENGTH : 0;
    fill_ids(ids, target);
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(mine, LENGTH), ids + first);
    tg_tensor *y = tg_from_host(ctx, TG_I64, TG_SHAPE(mine, LENGTH), target + first);
    for (int i = 0; p && i < 2; i++) {
        tg_place(p, i ? y : x, TG_TP, TG_I);
        tg_place(p, i ? y : x, TG_DP, TG_SHARD(0));
    }
    for (int step = 0; step < 3; step++) {
        tg_tensor *loss = tg_gpt_loss(gpt, t, x, y, TG_LOSS_SUM);
        tg_backward(t, loss);
        if (c->wgrad == TG_WGRAD_DEFERRED) tg_wgrads_drain(gpt);
        if (p) tg_grads_finalize(p, params, n, NULL);
        tg_optim_step(o);
        if (c->dp > 1) tg_flat_gather(flat);
        tg_optim_zero_grad(o);
        if (tg_comm_rank(world) == 0) j->loss[step] = tg_item(loss);
        tg_tape_reset(t);
    }
    for (int i = 0; i < tg_module_param_count(gpt); i++) {
        tg_tensor *w = tg_module_param(gpt, i, NULL);
        EXPECT(ctx, tg_requires_grad(w) || !tg_has_grad(w));
    }
    RUN(tg_lora_save(gpt, j->dir, "the base"));
    tg_optim_free(o);
    tg_flat_free(flat);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Compares two files of adapters. */
static void same_adapters(const char *a, const char *b) {
    char path[2][128];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    snprintf(path[0], 128, "%s/adapter_model.safetensors", a);
    snprintf(path[1], 128, "%s/adapter_model.safetensors", b);
    tg_safetensors *f = tg_safetensors_open(ctx, path[0]), *g = tg_safetensors_open(ctx, path[1]);
    ck_assert_int_gt(tg_safetensors_count(f), 0);
    ck_assert_int_eq(tg_safetensors_count(f), tg_safetensors_count(g));
    for (int i = 0; i < tg_safetensors_count(f); i++) {
        const char *name = tg_safetensors_at(f, i)->name;
        static double v[2][4096];
        tg_tensor *x = tg_safetensors_load(f, name), *y = tg_safetensors_load(g, name);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_read_f64(x, v[0], tg_numel(x));
        tg_read_f64(y, v[1], tg_numel(y));
        for (int64_t k = 0; k < tg_numel(x); k++)
            ck_assert_msg(fabs(v[0][k] - v[1][k]) <= 1e-10, "%s[%lld]: %.17g and %.17g", name, (long long)k, v[0][k],
                          v[1][k]);
    }
    tg_safetensors_close(f);
    tg_safetensors_close(g);
    tg_ctx_free(ctx);
}

/* Runs the job on its composition of ranks, and compares it with one rank. */
static void compare_with_one_rank(composition c) {
    job one = {.c = {.arch = c.arch, .tp = 1, .dp = 1, .kv_heads = c.kv_heads}}, many = {.c = c};
    make_directory(one.dir);
    make_directory(many.dir);
    on_ranks(1, train_rank, &one);
    on_ranks(c.tp * c.dp, train_rank, &many);
    ck_assert(one.loss[2] < one.loss[0]);
    for (int i = 0; i < 3 && c.dp == 1; i++) ck_assert_double_eq_tol(one.loss[i], many.loss[i], 1e-9 * one.loss[i]);
    same_adapters(one.dir, many.dir);
    job again = {.c = c, .load = one.dir}, whole = {.c = one.c, .load = many.dir};
    make_directory(again.dir);
    make_directory(whole.dir);
    on_ranks(c.tp * c.dp, train_rank, &again);
    on_ranks(1, train_rank, &whole);
    same_adapters(again.dir, whole.dir);
    remove_directory(one.dir), remove_directory(many.dir), remove_directory(again.dir), remove_directory(whole.dir);
}

static const composition compositions[] = {
    {.arch = TG_GPT2, .tp = 1, .dp = 1, .recompute = TG_GPT_FULL},
    {.arch = TG_LLAMA, .tp = 1, .dp = 1, .recompute = TG_GPT_SELECTIVE, .wgrad = TG_WGRAD_DEFERRED},
    {.arch = TG_LLAMA, .tp = 2, .dp = 1},
    {.arch = TG_LLAMA, .tp = 2, .dp = 1, .sp = true},
    {.arch = TG_LLAMA, .tp = 4, .dp = 1, .kv_heads = 2},
    {.arch = TG_LLAMA, .tp = 4, .dp = 1, .kv_heads = 2, .sp = true},
    {.arch = TG_GPT2, .tp = 2, .dp = 2, .sp = true, .recompute = TG_GPT_FULL},
    {.arch = TG_GPT2, .tp = 2, .dp = 1, .recompute = TG_GPT_DISTRIBUTED, .wgrad = TG_WGRAD_DEFERRED},
    {.arch = TG_GPT2, .tp = 1, .dp = 2},
};

START_TEST(ranks_train_the_adapters_of_one_rank) {
    for (size_t i = 0; i < sizeof compositions / sizeof *compositions; i++) compare_with_one_rank(compositions[i]);
}
END_TEST

/* ---- Options of parallel layers ---- */

enum { IN = 4, MIDDLE = 8, ROWS = 3 };

/* What is compared: the loss, the gradient of x, and those of the whole matrices, A of the first layer, B of the
 * second. */
typedef struct pair {
    double loss, gx[ROWS * IN], ga[RANK * IN], gb[IN * RANK];
} pair;

/* A column layer that leaves the sum of the gradient of x to the caller, and a row layer that leaves the addition of
 * its bias to the caller, both with adapters. */
static tg_status pair_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    pair *out = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    const tg_init *bias = TG_INIT(.kind = TG_INIT_CALL, .fill = value_of_matrix, .user = &(int){9});
    tg_module *m = tg_nn_sequential(ctx), *layer[2];
    tg_sequential_add(m, tg_nn_column_linear(p, IN, MIDDLE, TG_PARALLEL_LINEAR(.std = 0.5, .no_dgrad_reduce = true)));
    tg_sequential_add(
        m, tg_nn_row_linear(p, MIDDLE, IN, TG_PARALLEL_LINEAR(.std = 0.5, .skip_bias_add = true, .bias_init = bias)));
    RUN(tg_lora_apply(m, TG_LORA(.rank = RANK, .alpha = 4)));
    fill_matrices(m);
    for (int i = 0; i < 2; i++) layer[i] = tg_module_child(m, i ? "1" : "0");
    tg_tape *t = tape_on_nans(ctx);
    tg_tensor *x = made(ctx, 5, TG_SHAPE(ROWS, IN)), *added;
    tg_set_requires_grad(x, true);
    tg_place(p, x, TG_TP, TG_I);
    tg_tensor *h = tg_module_forward(layer[0], t, tg_copy_to_tp(t, x, tp));
    tg_tensor *y = tg_parallel_linear_pair(layer[1], t, h, &added);
    EXPECT(ctx, added == tg_module_find(m, "1.bias"));
    tg_tensor *loss = tg_sum(t, tg_square(t, tg_add(t, y, added)), TG_ALL_DIMS, false);
    tg_backward(t, loss);
    tg_tensor *params[16], *a = tg_module_find(m, "0.lora_A.weight"), *b = tg_module_find(m, "1.lora_B.weight");
    RUN(tg_grads_finalize(p, params, trained(m, params), NULL));
    EXPECT(ctx, !tg_has_grad(added));
    if (tg_comm_rank(world) == 0) {
        out->loss = tg_item(loss);
        RUN(tg_read_f64(tg_grad_of(x), out->gx, ROWS * IN));
        RUN(tg_read_f64(tg_grad_of(a), out->ga, RANK * IN));
        RUN(tg_read_f64(tg_grad_of(b), out->gb, IN * RANK));
    }
    tg_drop(x);
    tg_tape_free(t);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(layers_that_leave_sums_and_biases_to_the_caller_are_adapted) {
    pair one = {0}, two = {0};
    on_ranks(1, pair_rank, &one);
    on_ranks(2, pair_rank, &two);
    ck_assert_double_eq_tol(one.loss, two.loss, 1e-12 * one.loss);
    for (int i = 0; i < ROWS * IN; i++) ck_assert_double_eq_tol(one.gx[i], two.gx[i], 1e-12);
    for (int i = 0; i < RANK * IN; i++) ck_assert_double_eq_tol(one.ga[i], two.ga[i], 1e-12);
    for (int i = 0; i < RANK * IN; i++) ck_assert_double_eq_tol(one.gb[i], two.gb[i], 1e-12);
}
END_TEST

/* ---- On one rank ---- */

static tg_ctx *ctx;
static tg_tape *t;
static tg_module *gpt;
static tg_tensor *x, *y;

static void begin(composition c) {
    int64_t ids[BATCH * LENGTH], target[BATCH * LENGTH];
    ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .check = true));
    t = tg_tape_new(ctx);
    gpt = make(ctx, &c, NULL);
    fill_ids(ids, target);
    x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), ids);
    y = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), target);
}

static void end(void) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_ctx_free(ctx);
}

static void logits(double *out) {
    tg_read_f64(tg_gpt_logits(gpt, t, x), out, BATCH * LENGTH * VOCAB);
    tg_tape_reset(t);
}

static double distance(const double *a, const double *b) {
    double worst = 0;
    for (int i = 0; i < BATCH * LENGTH * VOCAB; i++) worst = larger_or_nan(worst, fabs(a[i] - b[i]));
    return worst;
}

static double v[4][BATCH * LENGTH * VOCAB];

static void merge_and_compare(tg_gpt_arch arch) {
    begin((composition){.arch = arch});
    logits(v[0]);
    ck_assert_int_eq(tg_lora_apply(gpt, TG_LORA(.rank = RANK, .rslora = true)), TG_OK);
    ck_assert_int_eq(tg_lora_count(gpt), arch == TG_LLAMA ? 14 : 8);
    logits(v[1]);
    ck_assert(distance(v[0], v[1]) < 1e-12); /* ops that were joined run one by one, and round differently */
    fill_matrices(gpt);
    logits(v[1]);
    ck_assert(distance(v[0], v[1]) > 0.1);
    tg_lora_merge(gpt);
    logits(v[2]);
    ck_assert(distance(v[1], v[2]) < 1e-10);
    tg_lora_unmerge(gpt);
    logits(v[2]);
    ck_assert(distance(v[1], v[2]) < 1e-10);
    tg_lora_merge(gpt);
    tg_lora_merge(gpt);
    tg_lora_remove(gpt);
    logits(v[2]);
    ck_assert(tg_lora_count(gpt) == 0 && distance(v[1], v[2]) < 1e-10);
    end();
}

START_TEST(a_new_adapter_changes_nothing_and_a_merged_one_computes_the_same) {
    merge_and_compare(TG_GPT2);
    merge_and_compare(TG_LLAMA);
}
END_TEST

START_TEST(generation_uses_the_adapters) {
    begin((composition){.arch = TG_LLAMA});
    tg_lora_apply(gpt, TG_LORA(.targets = "self_attn,up_proj", .rank = 2));
    ck_assert_int_eq(tg_lora_count(gpt), 10);
    fill_matrices(gpt);
    logits(v[0]);
    tg_gpt_cache *k = tg_gpt_cache_new(gpt, BATCH, LENGTH);
    double next[BATCH * VOCAB];
    for (int i = 0; i < LENGTH; i++) {
        tg_tensor *column = tg_contiguous(t, tg_slice(t, x, 1, i, i + 1, 1));
        tg_read_f64(tg_gpt_next(gpt, t, k, column), next, BATCH * VOCAB);
        tg_tape_reset(t);
        for (int b = 0; b < BATCH; b++)
            for (int c = 0; c < VOCAB; c++)
                ck_assert_double_eq_tol(next[b * VOCAB + c], v[0][(b * LENGTH + i) * VOCAB + c], 1e-10);
    }
    tg_gpt_cache_free(k);
    end();
}
END_TEST

START_TEST(the_output_matrix_is_adapted_on_request) {
    begin((composition){.arch = TG_LLAMA});
    tg_lora_apply(gpt, TG_LORA(.targets = "lm_head", .dropout = 0.5));
    ck_assert_int_eq(tg_lora_count(gpt), 1);
    fill_matrices(gpt);
    tg_draws_step(ctx, 1);
    tg_tensor *loss = tg_gpt_loss(gpt, t, x, y, TG_LOSS_MEAN);
    tg_backward(t, loss);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert(tg_has_grad(tg_module_find(gpt, "lm_head.lora_A.weight")));
    ck_assert(!tg_has_grad(tg_module_find(gpt, "lm_head.weight")));
    end();
}
END_TEST

START_TEST(files_of_the_model_have_no_matrices) {
    char dir[64];
    make_directory(dir);
    begin((composition){.arch = TG_GPT2});
    int own = tg_module_param_count(gpt);
    logits(v[0]);
    tg_lora_apply(gpt, NULL);
    fill_matrices(gpt);
    logits(v[1]);
    ck_assert_int_eq(tg_gpt_save(gpt, dir), TG_OK);
    ck_assert_int_eq(tg_gpt_load_weights(gpt, dir), TG_OK);
    logits(v[2]);
    ck_assert(distance(v[1], v[2]) == 0);
    tg_module *plain = tg_gpt_load(ctx, dir);
    ck_assert_int_eq(tg_module_param_count(plain), own);
    tg_read_f64(tg_gpt_logits(plain, t, x), v[3], BATCH * LENGTH * VOCAB);
    tg_tape_reset(t);
    ck_assert(distance(v[0], v[3]) == 0);
    tg_module_free(plain);
    remove_directory(dir);
    end();
}
END_TEST

/* Fails unless the call failed with the code and a message that has the text; clears the error. */
static void refused(tg_status s, tg_status code, const char *text) {
    ck_assert_msg(s == code && strstr(tg_ctx_message(ctx), text), "%s: %s", tg_status_name(s), tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
}

/* Makes a linear layer whose path has two components of n bytes. */
static tg_module *linear_far_away(int n) {
    static const tg_module_ops holder = {.size = sizeof holder, .kind = "holder"};
    char name[1001];
    tg_module *m[3];
    snprintf(name, sizeof name, "%0*d", n, 0);
    for (int i = 0; i < 2; i++) m[i] = tg_module_new(ctx, &holder, NULL);
    m[2] = tg_nn_linear(ctx, 4, 4, false, 0.1);
    tg_module_add_child(m[1], name, m[2]);
    tg_module_add_child(m[0], name, m[1]);
    return m[0];
}

START_TEST(long_paths_are_written_whole_or_refused) {
    char dir[64];
    make_directory(dir);
    begin((composition){.arch = TG_LLAMA});
    tg_module *m = linear_far_away(400);
    tg_lora_apply(m, NULL);
    ck_assert_int_eq(tg_lora_save(m, dir, NULL), TG_OK);
    tg_lora_remove(m);
    ck_assert_int_eq(tg_lora_load(m, dir), TG_OK);
    ck_assert_int_eq(tg_lora_count(m), 1);
    tg_module_free(m);
    m = linear_far_away(600);
    tg_lora_apply(m, TG_LORA(.targets = "*"));
    tg_status s = tg_lora_save(m, dir, NULL);
    refused(s, TG_ERR_UNSUPPORTED, "1201 bytes, expected at most 1023");
    tg_module_free(m);
    remove_directory(dir);
    end();
}
END_TEST

START_TEST(wrong_calls_are_refused) {
    begin((composition){.arch = TG_LLAMA});
    refused(tg_lora_apply(gpt, TG_LORA(.targets = "q_proj,q_prj")), TG_ERR_ARGUMENT,
            "the target \"q_prj\" matches no linear layer of the \"gpt\"; its first linear layer is "
            "\"model.layers.0.self_attn.q_proj\"");
    refused(tg_lora_apply(gpt, TG_LORA(.rank = 0)), TG_ERR_ARGUMENT, "rank is 0");
    refused(tg_lora_merge(gpt), TG_ERR_STATE, "has no adapters");
    ck_assert(tg_requires_grad(tg_module_find(gpt, "model.norm.weight")));
    tg_lora_apply(gpt, NULL);
    refused(tg_lora_apply(gpt, NULL), TG_ERR_STATE, "has 14 adapters already");
    ck_assert_int_eq(tg_module_train(gpt, "*norm*", true), 5);
    ck_assert(tg_requires_grad(tg_module_find(gpt, "model.norm.weight")));
    end();
}
END_TEST

START_TEST(layers_in_a_captured_module_are_not_adapted) {
    char dir[64];
    make_directory(dir);
    begin((composition){.arch = TG_LLAMA});
    tg_module *m = tg_nn_sequential(ctx), *inner = tg_nn_sequential(ctx);
    tg_sequential_add(inner, tg_nn_linear(ctx, 4, 4, false, 0.1));
    tg_sequential_add(m, inner);
    tg_lora_apply(m, NULL);
    ck_assert_int_eq(tg_lora_save(m, dir, NULL), TG_OK);
    tg_lora_remove(m);
    tg_captured_new(inner, &(tg_shape){2, {2, 4}}, &(tg_dtype){TG_F64}, 1, 1);
    refused(tg_lora_apply(m, NULL), TG_ERR_STATE, "tg_lora_apply: a layer is in a captured module, whose graphs");
    refused(tg_lora_load(m, dir), TG_ERR_STATE, "tg_lora_load: a layer is in a captured module, whose graphs");
    tg_module_free(m);
    remove_directory(dir);
    end();
}
END_TEST

/* Changes the last byte of the matrices in dir, which their checksum then shows. */
static void damage_matrices(const char *dir) {
    char path[128];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    ck_assert(f && fseek(f, -1, SEEK_END) == 0);
    int last = fgetc(f);
    ck_assert(fseek(f, -1, SEEK_END) == 0 && fputc(last ^ 1, f) != EOF);
    ck_assert_int_eq(fclose(f), 0);
}

static void write_config(const char *dir, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    tg_file_save(ctx, path, text, strlen(text));
}

START_TEST(files_that_cannot_be_used_change_nothing) {
    static const char variant[] = "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16,\"use_dora\":true}",
                      start[] = "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16,\"init_lora_weights\":\"pissa\"}",
                      other[] = "{\"peft_type\":\"IA3\",\"r\":8,\"lora_alpha\":16}",
                      plain[] = "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16}";
    char dir[64];
    make_directory(dir);
    begin((composition){.arch = TG_LLAMA});
    refused(tg_lora_load(gpt, dir), TG_ERR_IO, "adapter_config.json");
    tg_lora_apply(gpt, TG_LORA(.targets = "up_proj"));
    ck_assert_int_eq(tg_lora_save(gpt, dir, NULL), TG_OK);
    tg_lora_remove(gpt);
    write_config(dir, variant);
    refused(tg_lora_load(gpt, dir), TG_ERR_UNSUPPORTED, "\"use_dora\" is true");
    write_config(dir, start);
    refused(tg_lora_load(gpt, dir), TG_ERR_UNSUPPORTED, "\"init_lora_weights\" is \"pissa\", which changes");
    write_config(dir, other);
    refused(tg_lora_load(gpt, dir), TG_ERR_UNSUPPORTED, "\"peft_type\" is \"IA3\", expected \"LORA\"");
    write_config(dir, plain);
    tg_module *whole = gpt;
    tg_draws_step(ctx, 1);
    gpt = make(ctx, &(composition){.arch = TG_GPT2}, NULL);
    refused(tg_lora_load(gpt, dir), TG_ERR_FORMAT, "has no linear layer \"model.layers.0.mlp.up_proj\"");
    tg_module_free(gpt);
    gpt = whole;
    ck_assert_int_eq(tg_lora_count(gpt), 0);
    ck_assert_int_eq(tg_lora_load(gpt, dir), TG_OK);
    ck_assert_int_eq(tg_lora_count(gpt), 2);
    tg_lora_remove(gpt);
    tg_module_train(gpt, "*", true);
    damage_matrices(dir);
    refused(tg_lora_load(gpt, dir), TG_ERR_DATA, "the file is damaged");
    ck_assert_int_eq(tg_lora_count(gpt), 0);
    ck_assert(tg_requires_grad(tg_module_find(gpt, "model.norm.weight")));
    remove_directory(dir);
    end();
}
END_TEST

/* Rank 0, which writes, cannot create the file, and clears its error. Rank 1 then gathers without it. */
static tg_status cannot_write(void *arg, tg_ctx *ctx, tg_comm *world) {
    bool lora = *(const bool *)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_module *m = tg_gpt_new(ctx, TG_GPT(.arch = TG_LLAMA, .vocab = 8, .layers = 1, .heads = 2, .hidden = 4,
                                          .positions = 8, .parallel = p));
    if (lora) tg_lora_apply(m, NULL);
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    bool other = tg_comm_rank(world) == 1;
    tg_status s = lora ? tg_lora_save(m, "/no/such", NULL) : tg_lm_save(&m, 1, "/no/such", NULL);
    if (other && s == TG_OK) s = tg_comm_barrier(world); /* the parts were sent before rank 0 had failed */
    bool named = strstr(tg_ctx_message(ctx), "rank 0 failed") && strstr(tg_ctx_message(ctx), "cannot create");
    tg_ctx_clear(ctx);
    tg_module_free(m);
    tg_parallel_free(p);
    tg_ctx_clear(ctx); /* over NCCL a transfer that was queued before fails here, when it is waited for */
    EXPECT(ctx, s == (other ? TG_ERR_REMOTE : TG_ERR_IO) && named == other);
    return tg_ctx_status(ctx);
}

START_TEST(a_rank_that_cannot_write_is_named) {
    on_ranks(2, cannot_write, &(bool){false});
    on_ranks(2, cannot_write, &(bool){true});
}
END_TEST

int main(void) {
    const TTest *tests[] = {ranks_train_the_adapters_of_one_rank,
                            layers_that_leave_sums_and_biases_to_the_caller_are_adapted,
                            a_new_adapter_changes_nothing_and_a_merged_one_computes_the_same,
                            generation_uses_the_adapters,
                            the_output_matrix_is_adapted_on_request,
                            files_of_the_model_have_no_matrices,
                            long_paths_are_written_whole_or_refused,
                            wrong_calls_are_refused,
                            layers_in_a_captured_module_are_not_adapted,
                            files_that_cannot_be_used_change_nothing,
                            a_rank_that_cannot_write_is_named};
    return tg_check_main("lora", tests, sizeof tests / sizeof *tests);
}
