/* tapegrad convert --to FILE.gguf: collects the keys and the tensors of the file, and writes it whole or not at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program.h"
#include "common/text.h"
#include "convert/gguf.h"

bool is_gguf(const char *path) { return text_ends_with(path, ".gguf"); }

static tg_status add_tokenizer(tg_ctx *ctx, gguf_head *h, const char *from, bool tokenizer, int64_t vocab) {
    if (!tokenizer) {
        gguf_text(h, "tokenizer.ggml.model", "no_vocab");
        return TG_OK;
    }
    if (is_there(from, "tokenizer.json")) return gguf_add_tokenizer(ctx, h, from, vocab);
    return tg_ctx_fail(ctx, TG_ERR_DATA,
                       "'%s' has no tokenizer.json; --no-tokenizer writes the model without a tokenizer", from);
}

/* Adds all keys except general.file_type, which depends on the tensors. */
static tg_status add_keys(tg_ctx *ctx, gguf_head *h, const char *from, bool tokenizer, const gguf_family *f,
                          const tg_lm_config *c) {
    char name[256];
    size_t n;
    const char *last = text_last_part(from, &n);
    snprintf(name, sizeof name, "%.*s", (int)n, last);
    h->prefix = f->arch;
    gguf_text(h, "general.architecture", f->arch);
    gguf_text(h, "general.type", "model");
    if (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) gguf_text(h, "general.name", name);
    tg_status s = gguf_add_config(ctx, h, f, c);
    return s ? s : add_tokenizer(ctx, h, from, tokenizer, c->vocab);
}

static void write_file(tg_ctx *ctx, const char *to, const gguf_head *h, const gguf_plan *p) {
    tg_writer w = {0};
    tg_status s = tg_writer_open(&w, ctx, to);
    if (!s) s = gguf_write_head(h, &w);
    if (!s) s = gguf_plan_write(p, &w);
    if (!s) s = tg_writer_commit(&w);
    if (s) tg_writer_abandon(&w);
}

/* Writes the file from the weights in the directory. lm: the model of its config.json, on device meta. */
static void convert_model(tg_ctx *ctx, const char *from, const char *to, bool tokenizer, const tg_module *lm) {
    const tg_lm_config *c = tg_lm_config_of(lm);
    const gguf_family *f = gguf_family_of(ctx, c);
    gguf_head h = {0};
    char *weights =
        path_in(from, is_there(from, "model.safetensors") ? "model.safetensors" : "model.safetensors.index.json");
    tg_safetensors *file = NULL;
    gguf_plan *p = NULL;
    if (!weights) tg_ctx_fail(ctx, TG_ERR_MEMORY, "no memory for the path of the weights");
    if (f && weights && add_keys(ctx, &h, from, tokenizer, f, c) == TG_OK) file = tg_safetensors_open(ctx, weights);
    if (file) p = gguf_plan_new(ctx, &h, file, f, lm);
    if (p) gguf_u32(&h, "general.file_type", gguf_plan_file_type(p));
    if (p) write_file(ctx, to, &h, p);
    if (tg_ctx_status(ctx) == TG_OK && gguf_context(f, c) < c->positions)
        warn("llama.cpp does not compute the attention windows of models of this type, so the file limits sequences to "
             "%lld tokens, up to which the results are the same; the model takes %lld",
             (long long)gguf_context(f, c), (long long)c->positions);
    gguf_plan_free(p);
    tg_safetensors_close(file);
    gguf_free(&h);
    free(weights);
}

void convert_gguf(tg_ctx *ctx, const char *from, const char *to, bool tokenizer) {
    tg_ctx *plan = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    char *config = path_in(from, "config.json");
    tg_module *lm = config ? tg_lm_from_config(plan, config, NULL) : NULL;
    if (tg_ctx_status(plan) == TG_OK && lm)
        convert_model(ctx, from, to, tokenizer, lm);
    else
        tg_ctx_fail(ctx, tg_ctx_status(plan) ? tg_ctx_status(plan) : TG_ERR_MEMORY, "%s", tg_ctx_message(plan));
    tg_module_free(lm);
    tg_ctx_free(plan);
    free(config);
}
