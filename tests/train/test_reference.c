/* Model directories compared with PyTorch: those of tests/reference load in every precision and give the logits of
 * transformers; saving writes the same again; models that the library does not compute are refused. */
#define _GNU_SOURCE
#include <math.h>

#include <tapegrad/nn.h>
#include <tapegrad/gpt.h>
#include <tapegrad/io.h>

#include "unit/io_fixture.h"

#define REFERENCE "tests/reference/"

/* ---- Logits ---- */

static tg_tensor *expected(tg_ctx *ctx, const char *model, const char *name) {
    char path[512];
    snprintf(path, sizeof path, REFERENCE "%s/expected.safetensors", model);
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    tg_tensor *x = tg_safetensors_load(f, name);
    tg_safetensors_close(f);
    return x;
}

static double *values(tg_tensor *x) {
    double *v = malloc((size_t)tg_numel(x) * sizeof *v);
    ck_assert_int_eq(tg_read_f64(x, v, tg_numel(x)), TG_OK);
    return v;
}

/* Returns the largest difference relative to PyTorch's largest logit. */
static double error_of(tg_module *gpt, const char *model) {
    tg_ctx *ctx = tg_module_ctx(gpt);
    tg_tape *t = tg_tape_new(ctx);
    tg_tape_set_grad_mode(t, false);
    tg_tensor *want = expected(ctx, model, "logits"), *got = tg_gpt_logits(gpt, t, expected(ctx, model, "ids"));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_int_eq(tg_numel(got), tg_numel(want));
    double *a = values(got), *b = values(want), error = 0, largest = 0;
    for (int64_t i = 0; i < tg_numel(want); i++) {
        error = fmax(error, isnan(a[i]) ? INFINITY : fabs(a[i] - b[i]));
        largest = fmax(largest, fabs(b[i]));
    }
    free(a);
    free(b);
    tg_tape_free(t);
    return error / largest;
}

static void gives_the_logits_of(const char *model, tg_dtype dtype, double bar) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = dtype, .threads = 1));
    char dir[256];
    snprintf(dir, sizeof dir, REFERENCE "%s", model);
    tg_module *gpt = tg_gpt_load(ctx, dir);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    double error = error_of(gpt, model);
    ck_assert_msg(error <= bar, "%s in %s: %.3g, the bar is %.3g", model, tg_dtype_name(dtype), error, bar);
    tg_module_free(gpt);
    tg_ctx_free(ctx);
}

/* The 16-bit rows: transformers' own bfloat16 is off by 2.4e-2 on llama-bf16. */
START_TEST(a_directory_of_transformers_gives_its_logits) {
    static const struct { const char *model; tg_dtype dtype; double bar; } rows[] = {
        {"gpt2", TG_F32, 1e-5},       {"gpt2", TG_F64, 1e-12},       {"gpt2", TG_BF16, 4e-2},
        {"llama", TG_F32, 1e-5},      {"llama", TG_F64, 1e-12},      {"llama", TG_F16, 8e-3},
        {"llama-bf16", TG_F32, 1e-5}, {"llama-bf16", TG_F64, 1e-12}, {"llama-bf16", TG_BF16, 4e-2},
    };
    for (size_t i = 0; i < COUNT(rows); i++) gives_the_logits_of(rows[i].model, rows[i].dtype, rows[i].bar);
}
END_TEST

/* ---- Saving ---- */

static void same_bits(tg_module *a, tg_module *b) {
    ck_assert_int_eq(tg_module_param_count(a), tg_module_param_count(b));
    for (int i = 0; i < tg_module_param_count(a); i++) {
        const char *name, *other;
        tg_tensor *x = tg_module_param(a, i, &name), *y = tg_module_param(b, i, &other);
        size_t bytes = (size_t)tg_numel(x) * (size_t)tg_dtype_bits(tg_dtype_of(x)) / 8;
        ck_assert_str_eq(name, other);
        ck_assert_int_eq(tg_numel(x), tg_numel(y));
        ck_assert_mem_eq(tg_host_data(x), tg_host_data(y), bytes);
    }
}

START_TEST(a_saved_model_loads_unchanged) {
    static const struct { const char *dir; tg_dtype dtype;
    } rows[] = {
        {REFERENCE "gpt2", TG_F32},
        {REFERENCE "llama", TG_F32},
        {REFERENCE "llama-bf16", TG_BF16},
        {REFERENCE "gpt2", TG_F64},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        workplace w = workplace_new(TG_CONFIG(.dtype = rows[i].dtype, .threads = 1));
        tg_module *a = tg_gpt_load(w.ctx, rows[i].dir);
        ck_assert_int_eq(tg_gpt_save(a, w.dir), TG_OK);
        tg_module *b = tg_gpt_load(w.ctx, w.dir);
        ck_assert_msg(tg_ctx_status(w.ctx) == TG_OK, "%s", tg_ctx_message(w.ctx));
        same_bits(a, b);
        const tg_gpt_config *c = tg_gpt_config_of(a), *d = tg_gpt_config_of(b);
        ck_assert_mem_eq(c, d, sizeof *c);
        tg_module_free(a);
        tg_module_free(b);
        workplace_free(&w);
    }
}
END_TEST

/* The files of transformers and those that this library writes of them contain the same tensors, bit for bit. */
START_TEST(the_file_has_the_tensors_of_the_original) {
    static const char *const dirs[] = {REFERENCE "gpt2", REFERENCE "llama"};
    for (size_t i = 0; i < COUNT(dirs); i++) {
        workplace w = workplace_new(TG_CONFIG(.threads = 1));
        tg_module *gpt = tg_gpt_load(w.ctx, dirs[i]);
        tg_gpt_save(gpt, w.dir);
        char path[512];
        snprintf(path, sizeof path, "%s/model.safetensors", dirs[i]);
        tg_safetensors *theirs = tg_safetensors_open(w.ctx, path),
                       *ours = tg_safetensors_open(w.ctx, in(&w, "model.safetensors"));
        ck_assert_int_eq(tg_safetensors_count(theirs), tg_safetensors_count(ours));
        for (int k = 0; k < tg_safetensors_count(theirs); k++) {
            const char *name = tg_safetensors_at(theirs, k)->name;
            tg_tensor *x = tg_safetensors_load(theirs, name), *y = tg_safetensors_load(ours, name);
            ck_assert_msg(tg_ctx_status(w.ctx) == TG_OK, "%s", tg_ctx_message(w.ctx));
            ck_assert_int_eq(tg_dim(x, 0), tg_dim(y, 0));
            ck_assert_mem_eq(tg_host_data(x), tg_host_data(y), (size_t)tg_numel(x) * sizeof(float));
        }
        tg_safetensors_close(theirs);
        tg_safetensors_close(ours);
        tg_module_free(gpt);
        workplace_free(&w);
    }
}
END_TEST

/* ---- Refused models ---- */

/* The directory cannot be loaded, for this reason, and nothing remains of the attempt. */
static void refused(workplace *w, tg_status s, const char *words) {
    int files = open_files();
    tg_module *gpt = tg_gpt_load(w->ctx, w->dir);
    ck_assert_ptr_nonnull(gpt);
    ck_assert_int_eq(tg_module_param_count(gpt), 0);
    tg_module_free(gpt);
    ck_assert_int_eq(open_files(), files);
    expect_error(w->ctx, s, words);
}

static void copy_file(workplace *w, const char *from, const char *name) {
    static char buf[1 << 17];
    FILE *f = fopen(from, "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(buf, 1, sizeof buf, f);
    ck_assert_uint_lt(n, sizeof buf);
    fclose(f);
    put_file(w, name, buf, n);
}

static void copy_model(workplace *w, const char *model) {
    char from[256];
    snprintf(from, sizeof from, REFERENCE "%s/config.json", model);
    copy_file(w, from, "config.json");
    snprintf(from, sizeof from, REFERENCE "%s/model.safetensors", model);
    copy_file(w, from, "model.safetensors");
}

/* Writes the model's weights with `name` omitted (shape.ndim < 0), of the given shape, or added. */
static void with_tensor(workplace *w, const char *model, const char *name, tg_shape shape) {
    tg_named_tensor all[64];
    char path[256];
    snprintf(path, sizeof path, REFERENCE "%s/model.safetensors", model);
    tg_safetensors *f = tg_safetensors_open(w->ctx, path);
    int n = 0;
    for (int i = 0; i < tg_safetensors_count(f); i++) {
        const char *each = tg_safetensors_at(f, i)->name;
        if (strcmp(each, name) != 0) all[n++] = (tg_named_tensor){each, tg_safetensors_load(f, each)};
    }
    if (shape.ndim >= 0) all[n++] = (tg_named_tensor){name, tg_zeros(w->ctx, TG_F32, shape)};
    ck_assert_int_eq(tg_safetensors_save(w->ctx, in(w, "model.safetensors"), all, n, NULL, 0), TG_OK);
    tg_safetensors_close(f);
}

START_TEST(other_tensors_than_the_model_has_are_refused) {
    const tg_shape none = {.ndim = -1};
    const struct { const char *model, *name; tg_shape shape; tg_status status; const char *words; } rows[] = {
        {"gpt2", "transformer.h.1.mlp.c_fc.bias", none, TG_ERR_FORMAT, "\"transformer.h.1.mlp.c_fc.bias\""},
        {"llama", "lm_head.weight", none, TG_ERR_FORMAT, "\"lm_head.weight\""},
        {"gpt2", "transformer.h.2.ln_1.weight", TG_SHAPE(32), TG_ERR_FORMAT, "\"transformer.h.2.ln_1.weight\""},
        {"llama", "model.layers.0.self_attn.q_proj.bias", TG_SHAPE(32), TG_ERR_FORMAT, "q_proj.bias"},
        {"gpt2", "transformer.h.0.mlp.c_fc.weight", TG_SHAPE(72, 32), TG_ERR_SHAPE, "transformer.h.0.mlp.c_fc.weight"},
        {"gpt2", "transformer.wte.weight", TG_SHAPE(60, 32), TG_ERR_SHAPE, "transformer.wte.weight"},
        {"llama", "model.norm.weight", TG_SHAPE(32, 1), TG_ERR_SHAPE, "model.norm.weight"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        workplace w = workplace_new(TG_CONFIG(.threads = 1));
        copy_model(&w, rows[i].model);
        with_tensor(&w, rows[i].model, rows[i].name, rows[i].shape);
        refused(&w, rows[i].status, rows[i].words);
        workplace_free(&w);
    }
}
END_TEST

/* Replaces `was` with `now` in config.json. */
static void edit_config(workplace *w, const char *was, const char *now) {
    char text[4096], edited[4096];
    size_t n = get_file(w, "config.json", text, sizeof text - 1);
    text[n] = 0;
    char *at = strstr(text, was);
    ck_assert_msg(at != NULL, "config.json does not hold %s", was);
    int length = snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, now, at + strlen(was));
    put_file(w, "config.json", edited, (size_t)length);
}

START_TEST(a_config_that_means_another_model_is_refused) {
    static const struct { const char *model, *was, *now; tg_status status; const char *words;
    } rows[] = {
        {"gpt2", "\"gpt2\"", "\"opt\"", TG_ERR_UNSUPPORTED, "\"opt\""},
        {"gpt2", "\"gelu_new\"", "\"relu\"", TG_ERR_UNSUPPORTED, "\"relu\""},
        {"gpt2", "\"attn_pdrop\": 0.0", "\"attn_pdrop\": 0.5", TG_ERR_UNSUPPORTED, "several dropouts"},
        {"gpt2", "\"scale_attn_by_inverse_layer_idx\": false", "\"scale_attn_by_inverse_layer_idx\": true",
         TG_ERR_UNSUPPORTED, "scale_attn_by_inverse_layer_idx"},
        {"gpt2", "\"scale_attn_weights\": true", "\"scale_attn_weights\": false", TG_ERR_UNSUPPORTED,
         "scale_attn_weights"},
        {"gpt2", "\"n_head\": 4", "\"n_head\": 5", TG_ERR_ARGUMENT, "heads = 5"},
        {"gpt2", "\"n_layer\": 2", "\"n_layer\": 3", TG_ERR_FORMAT, "transformer.h.2."},
        {"gpt2", "\"n_layer\": 2", "\"n_layer\": 2.5", TG_ERR_FORMAT, "n_layer"},
        {"gpt2", "\"n_layer\": 2,", "", TG_ERR_FORMAT, "n_layer"},
        {"gpt2", "\"n_embd\": 32", "\"n_embd\": 0", TG_ERR_FORMAT, "n_embd"},
        {"llama", "\"silu\"", "\"gelu\"", TG_ERR_UNSUPPORTED, "\"gelu\""},
        {"llama", "\"attention_bias\": false", "\"attention_bias\": true", TG_ERR_UNSUPPORTED, "biases"},
        {"llama", "\"mlp_bias\": false", "\"mlp_bias\": true", TG_ERR_UNSUPPORTED, "biases"},
        {"llama", "\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"", TG_ERR_UNSUPPORTED, "\"longrope\""},
        {"llama", "\"rope_type\": \"default\"", "\"type\": \"linear\", \"factor\": 2", TG_ERR_UNSUPPORTED,
         "scaled rotary"},
        {"llama", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", TG_ERR_ARGUMENT, "kv_heads is 3"},
        {"llama", "\"vocab_size\": 61", "\"vocab_size\": \"61\"", TG_ERR_FORMAT, "vocab_size"},
        {"llama", "}", "", TG_ERR_FORMAT, "not JSON"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        workplace w = workplace_new(TG_CONFIG(.threads = 1));
        copy_model(&w, rows[i].model);
        edit_config(&w, rows[i].was, rows[i].now);
        refused(&w, rows[i].status, rows[i].words);
        workplace_free(&w);
    }
}
END_TEST

START_TEST(missing_files_are_refused) {
    workplace w = workplace_new(TG_CONFIG(.threads = 1));
    refused(&w, TG_ERR_IO, "config.json");
    copy_file(&w, REFERENCE "gpt2/config.json", "config.json");
    refused(&w, TG_ERR_IO, "model.safetensors");
    put_file(&w, "model.safetensors", "", 0);
    refused(&w, TG_ERR_FORMAT, "model.safetensors");
    workplace_free(&w);
}
END_TEST

/* Published GPT-2 files omit the prefix and contain causal masks; some contain the tied matrix twice. */
START_TEST(the_names_of_older_files_are_read) {
    workplace w = workplace_new(TG_CONFIG(.threads = 1));
    copy_model(&w, "gpt2");
    tg_named_tensor all[64];
    tg_safetensors *f = tg_safetensors_open(w.ctx, REFERENCE "gpt2/model.safetensors");
    int n = 0;
    for (; n < tg_safetensors_count(f); n++) {
        const char *name = tg_safetensors_at(f, n)->name;
        all[n] = (tg_named_tensor){name + strlen("transformer."), tg_safetensors_load(f, name)};
    }
    all[n++] = (tg_named_tensor){"h.0.attn.bias", tg_zeros(w.ctx, TG_F32, TG_SHAPE(1, 1, 24, 24))};
    all[n++] = (tg_named_tensor){"lm_head.weight", tg_safetensors_load(f, "transformer.wte.weight")};
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "model.safetensors"), all, n, NULL, 0), TG_OK);
    tg_safetensors_close(f);
    tg_module *gpt = tg_gpt_load(w.ctx, w.dir);
    ck_assert_msg(tg_ctx_status(w.ctx) == TG_OK, "%s", tg_ctx_message(w.ctx));
    ck_assert(error_of(gpt, "gpt2") <= 1e-5);
    tg_module_free(gpt);
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_directory_of_transformers_gives_its_logits,
        a_saved_model_loads_unchanged,
        the_file_has_the_tensors_of_the_original,
        other_tensors_than_the_model_has_are_refused,
        a_config_that_means_another_model_is_refused,
        missing_files_are_refused,
        the_names_of_older_files_are_read,
    };
    return tg_check_main("reference", tests, COUNT(tests));
}
