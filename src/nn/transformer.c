/* Attention, MLP and transformer layers, in the two styles: GPT-2 (LayerNorm, GELU, biases) and Llama (RMSNorm, SwiGLU,
 * RoPE, grouped-query, no biases). Activations are [s, b, h]; children have the names of the published checkpoints. */
#include <math.h>

#include "kernels/scalar.h"
#include "autograd/record.h"
#include "nn/gpt.h"

static const tg_gpt_config *config(const tg_module *m) { return &((tg_layer_state *)m->state)->c; }

static void state_free(void *state) {
    tg_layer_state *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

tg_tensor *tg_module_own_at(const tg_module *m, const char *child, const char *name) {
    const tg_module *c = tg_module_child(m, child);
    return c ? tg_module_own(c, name) : NULL;
}

static tg_tensor *apply_linear(const tg_module *m, const char *child, tg_tape *t, tg_tensor *x) {
    return tg_linear(t, x, tg_module_own_at(m, child, "weight"), tg_module_own_at(m, child, "bias"));
}

/* ---- Attention ---- */

/* [s, b, heads d] -> [b, heads, s, d], a view */
static tg_tensor *split_heads(tg_tape *t, tg_tensor *x, int64_t heads, int64_t d) {
    tg_tensor *v = tg_reshape(t, x, (tg_shape){4, {tg_dim(x, 0), tg_dim(x, 1), heads, d}});
    return tg_permute(t, v, (tg_dims){4, {1, 2, 0, 3}});
}

static void project(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *qkv[3]) {
    const tg_gpt_config *c = config(m);
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    if (c->arch == TG_GPT2) {
        tg_split(t, apply_linear(m, "c_attn", t, x), 2, (const int64_t[]){q, kv, kv}, 3, qkv);
    } else {
        qkv[0] = apply_linear(m, "q_proj", t, x);
        qkv[1] = apply_linear(m, "k_proj", t, x);
        qkv[2] = apply_linear(m, "v_proj", t, x);
    }
    for (int i = 0; i < 3; i++) qkv[i] = split_heads(t, qkv[i], i ? c->kv_heads : c->heads, c->head_dim);
}

/* Writes new keys or values [b, g, n, d] behind the past ones and returns all of them, as a tensor of the tape. */
static tg_tensor *append(tg_tape *t, tg_tensor *cache, int64_t length, tg_tensor *x) {
    tg_ctx *ctx = t->ctx;
    if (ctx->status != TG_OK) return tg_inert(ctx);
    tg_tensor *room = tg_temp_new(ctx, cache->dtype, 4, x->shape, cache->stride, tg_storage_ref(cache->storage),
                                  length * cache->stride[2]);
    if (!room) return tg_inert(ctx);
    const double none[2] = {0, 0};
    tg_array from = tg_array_of(x);
    ctx->ops->map(ctx, TG_FN_id, tg_array_of(room), &from, 1, none, false);
    tg_temp_free(room);
    return tg_slice(t, tg_tape_input(t, cache), 2, 0, length + x->shape[2], 1);
}

tg_tensor *tg_attention_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    const tg_gpt_config *c = config(m);
    tg_tensor *qkv[3];
    project(m, t, x, qkv);
    int64_t offset = past ? past->length : 0;
    if (c->arch == TG_LLAMA)
        for (int i = 0; i < 2; i++) qkv[i] = tg_rope(t, qkv[i], c->rope_base, offset);
    if (past) {
        qkv[1] = append(t, past->k, offset, qkv[1]);
        qkv[2] = append(t, past->v, offset, qkv[2]);
    }
    tg_tensor *o = tg_attention(t, qkv[0], qkv[1], qkv[2], TG_ATTENTION(.causal = true, .dropout = c->dropout));
    o = tg_permute(t, o, (tg_dims){4, {2, 0, 1, 3}});
    o = tg_reshape(t, o, (tg_shape){3, {tg_dim(x, 0), tg_dim(x, 1), c->heads * c->head_dim}});
    return apply_linear(m, c->arch == TG_GPT2 ? "c_proj" : "o_proj", t, o);
}

static tg_tensor *attention_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_attention_layer(m, t, x, NULL);
}

/* ---- MLP ---- */

static tg_tensor *mlp_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    if (config(m)->arch == TG_GPT2) {
        tg_tensor *h =
            tg_linear_gelu_tanh(t, x, tg_module_own_at(m, "c_fc", "weight"), tg_module_own_at(m, "c_fc", "bias"));
        return apply_linear(m, "c_proj", t, h);
    }
    return apply_linear(m, "down_proj", t,
                        tg_swiglu(t, apply_linear(m, "gate_proj", t, x), apply_linear(m, "up_proj", t, x)));
}

/* ---- The layer ---- */

static tg_tensor *residual(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *y) {
    const tg_gpt_config *c = config(m);
    return tg_add(t, x, c->dropout > 0 ? tg_dropout(t, y, c->dropout) : y);
}

static tg_tensor *in_scope(tg_module *m, const char *child, tg_tape *t, tg_tensor *x, const tg_past *past) {
    tg_module *c = tg_module_child(m, child);
    if (tg_scope_open(t, child) != TG_OK) return tg_inert(t->ctx);
    tg_tensor *y = past ? tg_attention_layer(c, t, x, past) : c->ops->forward(c, t, x);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(t->ctx);
}

tg_tensor *tg_transformer_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    bool gpt2 = config(m)->arch == TG_GPT2;
    tg_tensor *n = in_scope(m, gpt2 ? "ln_1" : "input_layernorm", t, x, NULL);
    x = residual(m, t, x, in_scope(m, gpt2 ? "attn" : "self_attn", t, n, past));
    n = in_scope(m, gpt2 ? "ln_2" : "post_attention_layernorm", t, x, NULL);
    return residual(m, t, x, in_scope(m, "mlp", t, n, NULL));
}

static tg_tensor *layer_forward(tg_module *m, tg_tape *t, tg_tensor *x) { return tg_transformer_layer(m, t, x, NULL); }

/* ---- Making ---- */

static const tg_module_ops attention_ops = {
    .size = sizeof(tg_module_ops), .kind = "attention", .forward = attention_forward, .free = state_free};
static const tg_module_ops mlp_ops = {
    .size = sizeof(tg_module_ops), .kind = "mlp", .forward = mlp_forward, .free = state_free};
static const tg_module_ops layer_ops = {
    .size = sizeof(tg_module_ops), .kind = "transformer_layer", .forward = layer_forward, .free = state_free};

/* An empty module with its completed config, which *c then is. */
static tg_module *begin(tg_ctx *ctx, const tg_module_ops *ops, const tg_gpt_config *given, const tg_gpt_config **c) {
    if (!tg_ok(ctx)) return NULL;
    tg_layer_state *s = tg_host_alloc(ctx, sizeof *s);
    if (!s) return NULL;
    s->ctx = ctx;
    tg_options(ctx, &s->c, sizeof s->c, given, ops->kind);
    if (!given) tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the config is NULL", ops->kind);
    if (ctx->status == TG_OK) tg_gpt_complete(ctx, &s->c);
    tg_module *m = ctx->status == TG_OK ? tg_module_new(ctx, ops, s) : NULL;
    if (!m) {
        state_free(s);
        return NULL;
    }
    *c = &s->c;
    return tg_module_ok(m) ? m : NULL;
}

static tg_module *finish(tg_ctx *ctx, tg_module *m) {
    if (tg_module_ok(m)) return m;
    if (m) tg_module_free(m);
    return tg_module_new(NULL, ctx ? &layer_ops : NULL, NULL);
}

/* Residual projections begin smaller by the number of residual additions (GPT-2's report). */
static double projection_std(const tg_gpt_config *c) { return c->init_std / sqrt(2.0 * (double)c->layers); }

tg_module *tg_nn_attention(tg_ctx *ctx, const tg_gpt_config *given) {
    const tg_gpt_config *c;
    tg_module *m = begin(ctx, &attention_ops, given, &c);
    if (!m) return finish(ctx, m);
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, h = c->hidden;
    if (c->arch == TG_GPT2) {
        tg_module_add_child(m, "c_attn", tg_nn_linear(ctx, h, q + 2 * kv, true, c->init_std));
        tg_module_add_child(m, "c_proj", tg_nn_linear(ctx, q, h, true, projection_std(c)));
    } else {
        tg_module_add_child(m, "q_proj", tg_nn_linear(ctx, h, q, false, c->init_std));
        tg_module_add_child(m, "k_proj", tg_nn_linear(ctx, h, kv, false, c->init_std));
        tg_module_add_child(m, "v_proj", tg_nn_linear(ctx, h, kv, false, c->init_std));
        tg_module_add_child(m, "o_proj", tg_nn_linear(ctx, q, h, false, projection_std(c)));
    }
    return finish(ctx, m);
}

tg_module *tg_nn_mlp(tg_ctx *ctx, const tg_gpt_config *given) {
    const tg_gpt_config *c;
    tg_module *m = begin(ctx, &mlp_ops, given, &c);
    if (!m) return finish(ctx, m);
    if (c->arch == TG_GPT2) {
        tg_module_add_child(m, "c_fc", tg_nn_linear(ctx, c->hidden, c->ffn, true, c->init_std));
        tg_module_add_child(m, "c_proj", tg_nn_linear(ctx, c->ffn, c->hidden, true, projection_std(c)));
    } else {
        tg_module_add_child(m, "gate_proj", tg_nn_linear(ctx, c->hidden, c->ffn, false, c->init_std));
        tg_module_add_child(m, "up_proj", tg_nn_linear(ctx, c->hidden, c->ffn, false, c->init_std));
        tg_module_add_child(m, "down_proj", tg_nn_linear(ctx, c->ffn, c->hidden, false, projection_std(c)));
    }
    return finish(ctx, m);
}

static tg_module *norm(tg_ctx *ctx, const tg_gpt_config *c) {
    return c->arch == TG_GPT2 ? tg_nn_layer_norm(ctx, c->hidden, c->norm_eps)
                              : tg_nn_rms_norm(ctx, c->hidden, c->norm_eps);
}

tg_module *tg_nn_transformer_layer(tg_ctx *ctx, const tg_gpt_config *given) {
    const tg_gpt_config *c;
    tg_module *m = begin(ctx, &layer_ops, given, &c);
    if (!m) return finish(ctx, m);
    bool gpt2 = c->arch == TG_GPT2;
    tg_module_add_child(m, gpt2 ? "ln_1" : "input_layernorm", norm(ctx, c));
    tg_module_add_child(m, gpt2 ? "attn" : "self_attn", tg_nn_attention(ctx, c));
    tg_module_add_child(m, gpt2 ? "ln_2" : "post_attention_layernorm", norm(ctx, c));
    tg_module_add_child(m, "mlp", tg_nn_mlp(ctx, c));
    return finish(ctx, m);
}
