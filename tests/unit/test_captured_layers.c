/* The layers of a GPT as captured modules: training computes the same bits as without graphs, with dropout, whatever is
 * recomputed within the layers or around them. */
#include <tapegrad/lora.h>

#include "unit/captured.h"

enum { LAYERS = 2, HIDDEN = 16, IN_FLIGHT = 3, BATCHES = 5, STEPS = 3 };

typedef struct run {
    double losses[STEPS][BATCHES];
    uint64_t bits; /* of the parameters after the steps */
    tg_rng rng;
} run;

static tg_module *layers_of(tg_module *gpt) { return tg_module_child(tg_module_child(gpt, "transformer"), "h"); }

/* Puts each layer into a captured module. */
static void capture_layers(tg_module *gpt, tg_dtype dtype, int slots) {
    for (int i = 0; i < LAYERS; i++) {
        char name[4];
        snprintf(name, sizeof name, "%d", i);
        tg_captured_new(tg_module_child(layers_of(gpt), name), (tg_shape[]){TG_SHAPE(SEQ, BATCH, HIDDEN)}, &dtype, 1,
                        slots);
    }
}

static world *world_with(tg_gpt_recompute recompute, double dropout, tg_dtype dtype) {
    world *w = calloc(1, sizeof *w);
    w->ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 11, .threads = 1, .dtype = dtype));
    w->gpt = tg_gpt_new(w->ctx, TG_GPT(.arch = TG_GPT2, .vocab = VOCAB, .layers = LAYERS, .heads = 2, .hidden = HIDDEN,
                                       .positions = SEQ, .dropout = dropout, .recompute = recompute));
    w->n = tg_module_params(w->gpt, w->p, PARAMS);
    w->t = tg_tape_new(w->ctx);
    ck_fine(w->ctx);
    return w;
}

static tg_tensor *ids_of(world *w, int step, int micro, int shift) {
    int64_t ids[BATCH * SEQ];
    for (int i = 0; i < BATCH * SEQ; i++) ids[i] = (i * 5 + 3 * step + micro + shift) % VOCAB;
    return tg_from_host(w->ctx, TG_I64, TG_SHAPE(BATCH, SEQ), ids);
}

/* A step that has `in_flight` micro-batches between their forward and their backward. */
static void train(world *w, int in_flight, int step, double *losses) {
    tg_tape *t[IN_FLIGHT];
    tg_tensor *loss[IN_FLIGHT], *ids[BATCHES][2];
    for (int i = 0; i < in_flight; i++) t[i] = tg_tape_new(w->ctx);
    tg_draws_step(w->ctx, (uint64_t)step + 1);
    for (int i = 0; i < BATCHES + in_flight - 1; i++) {
        int f = i, b = i - in_flight + 1;
        if (f < BATCHES) {
            for (int k = 0; k < 2; k++) ids[f][k] = ids_of(w, step, f, 5 * k);
            tg_tape_key(t[f % in_flight], (uint64_t)f);
            loss[f % in_flight] = tg_gpt_loss(w->gpt, t[f % in_flight], ids[f][0], ids[f][1], TG_LOSS_MEAN);
        }
        if (b < 0) continue;
        tg_backward(t[b % in_flight], loss[b % in_flight]);
        losses[b] = tg_item(loss[b % in_flight]);
        tg_tape_reset(t[b % in_flight]);
        for (int k = 0; k < 2; k++) tg_drop(ids[b][k]);
    }
    for (int i = 0; i < in_flight; i++) tg_tape_free(t[i]);
    descend(w, 0.1);
    tg_tape_reset(w->t);
    ck_fine(w->ctx);
}

static void run_in(tg_dtype dtype, tg_gpt_recompute recompute, int slots, int in_flight, run *r) {
    world *w = world_with(recompute, 0.1, dtype);
    if (slots) capture_layers(w->gpt, dtype, slots);
    for (int i = 0; i < STEPS; i++) train(w, in_flight, i, r->losses[i]);
    r->bits = bits_of(w);
    tg_rng_get(w->ctx, NULL, &r->rng);
    world_free(w);
}

static void run_of(tg_gpt_recompute recompute, int slots, int in_flight, run *r) {
    run_in(TG_F32, recompute, slots, in_flight, r);
}

static void ck_same(const run *a, const run *b, const char *what) {
    for (int i = 0; i < STEPS; i++)
        for (int k = 0; k < BATCHES; k++)
            ck_assert_msg(a->losses[i][k] == b->losses[i][k], "%s, step %d, micro-batch %d: %.17g and %.17g", what, i,
                          k, a->losses[i][k], b->losses[i][k]);
    ck_assert_msg(a->bits == b->bits, "%s: the parameters differ", what);
    ck_assert_mem_eq(&a->rng, &b->rng, sizeof a->rng);
}

START_TEST(captured_layers_train_as_plain_ones) {
    run plain, slots;
    run_of(TG_GPT_KEEP, 0, 1, &plain);
    run_of(TG_GPT_KEEP, 1, 1, &slots);
    ck_same(&plain, &slots, "one slot");
    run_of(TG_GPT_KEEP, 0, 2, &plain);
    run_of(TG_GPT_KEEP, 2, 2, &slots);
    ck_same(&plain, &slots, "two slots");
    run_of(TG_GPT_KEEP, 0, 3, &plain);
    run_of(TG_GPT_KEEP, 4, 3, &slots);
    ck_same(&plain, &slots, "four slots");
}
END_TEST

/* 16-bit parameters have gradients in float32, which the graphs must not round. */
START_TEST(layers_in_16_bits_train_as_plain_ones) {
    run plain, slots;
    run_in(TG_BF16, TG_GPT_KEEP, 0, 2, &plain);
    run_in(TG_BF16, TG_GPT_KEEP, 2, 2, &slots);
    ck_same(&plain, &slots, "bf16");
}
END_TEST

START_TEST(recomputation_goes_within_and_around) {
    run plain, slots;
    static const struct {
        tg_gpt_recompute kind;
        const char *name;
    } kinds[] = {{TG_GPT_SELECTIVE, "selective"}, {TG_GPT_FULL, "full"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        run_of(kinds[i].kind, 0, 2, &plain);
        run_of(kinds[i].kind, 2, 2, &slots);
        ck_same(&plain, &slots, kinds[i].name);
    }
}
END_TEST

/* Generation calls the layers themselves, which have a cache. */
START_TEST(a_captured_gpt_generates) {
    float logits[2][VOCAB];
    for (int captured = 0; captured < 2; captured++) {
        world *w = world_with(TG_GPT_KEEP, 0, TG_F32);
        const int64_t id = 3;
        if (captured) capture_layers(w->gpt, TG_F32, 1);
        tg_tape_set_training(w->t, false);
        tg_tape_set_grad_mode(w->t, false);
        tg_gpt_cache *cache = tg_gpt_cache_new(w->gpt, 1, SEQ);
        tg_tensor *ids = tg_from_host(w->ctx, TG_I64, TG_SHAPE(1, 1), &id);
        for (int i = 0; i < 2; i++) tg_read(tg_gpt_next(w->gpt, w->t, cache, ids), logits[captured], sizeof *logits);
        ck_fine(w->ctx);
        tg_gpt_cache_free(cache);
        world_free(w);
    }
    ck_assert_mem_eq(logits[0], logits[1], sizeof *logits);
}
END_TEST

enum { ROUNDS = 3, NUMBERS = HIDDEN * HIDDEN };

/* A linear layer with an adapter: as it is, after a merge, and after the merge was undone. */
static void merge_between(bool captured, double y[ROUNDS][NUMBERS]) {
    double v[NUMBERS];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .seed = 3, .threads = 1, .dtype = TG_F64));
    tg_tape *t = tg_tape_new(ctx);
    tg_module *m = tg_nn_sequential(ctx);
    for (int i = 0; i < NUMBERS; i++) v[i] = (i * 5 % 7 - 3) / 8.0;
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(HIDDEN, HIDDEN), v);
    tg_sequential_add(m, tg_nn_linear(ctx, HIDDEN, HIDDEN, true, 0.1));
    tg_lora_apply(m, TG_LORA(.rank = 2));
    tg_write_f64(tg_module_find(m, "0.lora_B.weight"), v, 2 * HIDDEN); /* 0 at first */
    if (captured) m = tg_captured_new(m, (tg_shape[]){TG_SHAPE(HIDDEN, HIDDEN)}, (tg_dtype[]){TG_F64}, 1, 1);
    for (int i = 0; i < ROUNDS; i++) {
        if (i == 1) tg_lora_merge(m);
        if (i == 2) tg_lora_unmerge(m);
        tg_read_f64(tg_module_forward(m, t, x), y[i], NUMBERS);
        tg_tape_reset(t);
    }
    ck_fine(ctx);
    tg_module_free(m);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

START_TEST(merged_adapters_count_once) {
    static double y[2][ROUNDS][NUMBERS];
    for (int captured = 0; captured < 2; captured++) merge_between(captured, y[captured]);
    ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    for (int i = 0; i < NUMBERS; i++) ck_assert_double_eq_tol(y[1][1][i], y[1][0][i], 1e-12);
}
END_TEST

int main(void) {
    const TTest *tests[] = {captured_layers_train_as_plain_ones, layers_in_16_bits_train_as_plain_ones,
                            recomputation_goes_within_and_around, a_captured_gpt_generates,
                            merged_adapters_count_once};
    return tg_check_main("captured_layers", tests, sizeof tests / sizeof *tests);
}
