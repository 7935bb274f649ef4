/* Modules whose children were freed or replaced: a forward, a backward or a call of an adapter says what is missing,
 * and a cache or a wrapper notices that its module is gone. */
#include "world.h"

#include <math.h>
#include <string.h>

#include <tapegrad/gpt.h>
#include <tapegrad/lora.h>
#include <tapegrad/nn.h>

/* Returns the module with that path. */
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

static void expect_missing(const char *says) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_ERR_STATE && strstr(tg_ctx_message(ctx), says), "\"%s\", expected %s",
                  tg_ctx_message(ctx), says);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
}

/* A model without the child of that path: the module that needs it reports that. */
static void without(tg_gpt_arch arch, tg_gpt_recompute recompute, const char *path, const char *says) {
    const int64_t numbers[] = {1, 2, 3};
    tg_draws_step(ctx, 0); /* the same weights for every model */
    tg_module *m = tg_gpt_new(ctx, TG_GPT(.arch = arch, .vocab = 5, .layers = 2, .heads = 2, .hidden = 8,
                                          .positions = 8, .ffn = 8, .recompute = recompute));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 3), numbers);
    tg_gpt_cache *cache = tg_gpt_cache_new(m, 1, 4);
    tg_module_free(at_path(m, path));
    tg_gpt_loss(m, t, ids, ids, TG_LOSS_MEAN);
    expect_missing(says);
    tg_gpt_logits(m, t, ids);
    expect_missing(says);
    tg_gpt_next(m, t, cache, ids);
    expect_missing(says);
    tg_gpt_cache_free(cache);
    tg_module_free(m);
    tg_drop(ids);
}

START_TEST(a_forward_without_a_child_says_which) {
    static const struct {
        tg_gpt_arch arch;
        const char *path, *says;
    } rows[] = {
        {TG_GPT2, "transformer", "the gpt has no child \"transformer\""},
        {TG_GPT2, "transformer.wte", "the list \"transformer\" has no child \"wte\""},
        {TG_GPT2, "transformer.wpe", "no child \"wpe\""},
        {TG_GPT2, "transformer.h", "no child \"h\""},
        {TG_GPT2, "transformer.ln_f", "no child \"ln_f\""},
        {TG_GPT2, "transformer.h.1", "the list \"transformer.h\" has no child \"1\""},
        {TG_GPT2, "transformer.h.0.ln_1", "the transformer_layer \"transformer.h.0\" has no child \"ln_1\""},
        {TG_GPT2, "transformer.h.0.attn", "no child \"attn\""},
        {TG_GPT2, "transformer.h.1.mlp", "no child \"mlp\""},
        {TG_GPT2, "transformer.h.0.attn.c_attn", "no child \"c_attn\""},
        {TG_GPT2, "transformer.h.1.attn.c_proj", "the attention \"transformer.h.1.attn\" has no child \"c_proj\""},
        {TG_GPT2, "transformer.h.0.mlp.c_fc", "no child \"c_fc\""},
        {TG_GPT2, "transformer.h.0.mlp.c_proj", "the mlp \"transformer.h.0.mlp\" has no child \"c_proj\""},
        {TG_LLAMA, "lm_head", "the gpt has no child \"lm_head\""},
        {TG_LLAMA, "model.embed_tokens", "no child \"embed_tokens\""},
        {TG_LLAMA, "model.norm", "no child \"norm\""},
        {TG_LLAMA, "model.layers.1.post_attention_layernorm", "no child \"post_attention_layernorm\""},
        {TG_LLAMA, "model.layers.0.self_attn.k_proj", "no child \"k_proj\""},
        {TG_LLAMA, "model.layers.0.mlp.up_proj", "no child \"up_proj\""},
    };
    begin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int r = TG_GPT_KEEP; r <= TG_GPT_SELECTIVE; r++)
            without(rows[i].arch, (tg_gpt_recompute)r, rows[i].path, rows[i].says);
    end();
}
END_TEST

/* Models are made and freed until one is at the address of the first, which takes a few. */
START_TEST(a_cache_is_of_one_model_even_when_another_has_its_address) {
    const int64_t numbers[] = {1, 2};
    begin();
    const tg_gpt_config *o = TG_GPT(.vocab = 5, .layers = 1, .heads = 2, .hidden = 8, .positions = 8);
    tg_module *m = tg_gpt_new(ctx, o);
    tg_gpt_cache *cache = tg_gpt_cache_new(m, 1, 4);
    const uintptr_t first = (uintptr_t)m;
    for (int step = 1; step == 1 || ((uintptr_t)m != first && step < 100); step++) {
        tg_module_free(m);
        tg_draws_step(ctx, step);
        m = tg_gpt_new(ctx, o);
    }
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 2), numbers);
    tg_gpt_next(m, t, cache, ids);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(ctx), "the cache was made for another model"));
    ck_assert_int_eq(tg_gpt_cache_length(cache), 0);
    tg_ctx_clear(ctx);
    tg_gpt_cache_free(cache);
    tg_module_free(m);
    tg_drop(ids);
    end();
}
END_TEST

static tg_tensor *twice(tg_module *m, tg_tape *tape, tg_tensor *x) {
    (void)m;
    return tg_add(tape, x, x);
}

/* A child of another kind: it runs if it has a forward, and takes no cache. */
START_TEST(another_module_in_a_childs_place) {
    static const tg_module_ops ops = {.size = sizeof ops, .kind = "twice", .forward = twice};
    static const char *const paths[] = {"transformer.h", "transformer.h.0"}, *const names[] = {"0", "attn"};
    const int64_t numbers[] = {1, 2, 3};
    begin();
    for (int i = 0; i < 2; i++) {
        tg_draws_step(ctx, 0);
        tg_module *m = tg_gpt_new(ctx, TG_GPT(.vocab = 5, .layers = 1, .heads = 2, .hidden = 8, .positions = 8));
        tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 3), numbers);
        tg_gpt_cache *cache = tg_gpt_cache_new(m, 1, 4);
        tg_module *parent = at_path(m, paths[i]);
        tg_module_free(tg_module_child(parent, names[i]));
        tg_module_add_child(parent, names[i], tg_module_new(ctx, &ops, NULL));
        tg_gpt_logits(m, t, ids);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_gpt_next(m, t, cache, ids);
        ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(tg_ctx_message(ctx), "a \"twice\" has replaced the"));
        tg_ctx_clear(ctx);
        tg_tape_reset(t);
        tg_module_free(at_path(m, "transformer.wte"));
        ck_assert_ptr_null(tg_gpt_cache_new(m, 1, 4));
        expect_missing("no child \"wte\"");
        tg_gpt_save(m, "/nowhere");
        expect_missing("no child \"wte\"");
        tg_gpt_cache_free(cache);
        tg_module_free(m);
        tg_drop(ids);
    }
    end();
}
END_TEST

/* A norm that would run again in backward, but has been freed. */
START_TEST(a_norm_that_is_gone_in_backward) {
    const int64_t numbers[] = {1, 2, 3};
    begin();
    tg_module *m = tg_gpt_new(ctx, TG_GPT(.vocab = 5, .layers = 1, .heads = 2, .hidden = 8, .positions = 8,
                                          .recompute = TG_GPT_SELECTIVE));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 3), numbers);
    tg_tensor *loss = tg_gpt_loss(m, t, ids, ids, TG_LOSS_MEAN);
    tg_module_free(at_path(m, "transformer.h.0.ln_1"));
    tg_backward(t, loss);
    ck_assert_int_ne(tg_ctx_status(ctx), TG_OK);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_module_free(m);
    tg_drop(ids);
    end();
}
END_TEST

/* A module that a wrapper of the library holds is freed. */
START_TEST(a_wrapper_without_its_module_says_so) {
    const tg_shape shape = {2, {2, 4}};
    begin();
    for (int kind = 0; kind < 3; kind++) {
        tg_module *layer = tg_nn_linear(ctx, 4, 4, false, 0.1), *m = tg_nn_sequential(ctx);
        tg_tensor *x = tg_zeros(ctx, TG_DTYPE_DEFAULT, shape);
        tg_sequential_add(m, kind == 1 ? tg_float16_new(layer, TG_BF16, true, true) : layer);
        if (kind == 0) tg_lora_apply(m, NULL);
        if (kind == 2) tg_captured_new(layer, &shape, &(tg_dtype){TG_DTYPE_DEFAULT}, 1, 1);
        tg_module_free(layer);
        tg_module_forward(m, t, x);
        expect_missing("\"0\" has no child \"\"");
        if (kind == 0) {
            ck_assert_int_eq(tg_lora_merge(m), TG_ERR_STATE);
            expect_missing("tg_lora_merge: the layer of adapter \"0\" was freed");
            ck_assert_int_eq(tg_lora_remove(m), TG_ERR_STATE);
            expect_missing("tg_lora_remove: the layer of adapter \"0\" was freed");
        }
        tg_module_free(m);
        tg_drop(x);
    }
    end();
}
END_TEST

START_TEST(an_adapter_without_a_matrix_says_so) {
    begin();
    tg_module *m = tg_nn_sequential(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2, 4));
    tg_sequential_add(m, tg_nn_linear(ctx, 4, 4, false, 0.1));
    tg_lora_apply(m, NULL);
    tg_module_free(at_path(m, "0.lora_B"));
    tg_module_forward(m, t, x);
    expect_missing("no child \"lora_B\"");
    ck_assert_int_eq(tg_lora_merge(m), TG_ERR_STATE);
    expect_missing("no child \"lora_B\"");
    ck_assert_int_eq(tg_lora_save(m, "/nowhere", NULL), TG_ERR_STATE);
    expect_missing("no child \"lora_B\"");
    ck_assert_int_eq(tg_lora_remove(m), TG_OK);
    tg_module_forward(m, t, x);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_module_free(m);
    tg_drop(x);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_forward_without_a_child_says_which,
                            a_cache_is_of_one_model_even_when_another_has_its_address,
                            another_module_in_a_childs_place,
                            a_norm_that_is_gone_in_backward,
                            a_wrapper_without_its_module_says_so,
                            an_adapter_without_a_matrix_says_so};
    return tg_check_main("missing_modules", tests, sizeof tests / sizeof *tests);
}
