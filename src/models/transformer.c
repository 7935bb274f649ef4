/* Attention, MLP and transformer layers in two styles: GPT-2 (LayerNorm, GELU, biases) and Llama (RMSNorm, SwiGLU,
 * rotary positions, grouped-query attention, no biases). Activations are [s, b, h]. Children have the names of the
 * published checkpoints. */
#include <math.h>
#include <tapegrad/megatron.h>
#include <tapegrad/recompute.h>

#include "base/host_memory.h"
#include "kernels/scalar.h"
#include "tape/tape.h"
#include "models/gpt.h"

static const tg_gpt_config *config(const tg_module *m) { return &((tg_layer_state *)m->state)->c; }

static void state_free(void *state) {
    tg_layer_state *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

tg_tensor *tg_module_own_at(const tg_module *m, const char *child, const char *name) {
    const tg_module *c = tg_module_part(m, child);
    return c ? tg_module_own(c, name) : NULL;
}

static const tg_module_ops attention_ops, layer_ops;

/* Returns whether m is the library's own module with these ops. If another module has replaced it, records an error,
 * because such a module cannot use a cache. */
static bool is_own(const tg_module *m, const tg_module_ops *ops) {
    if (!m || m->ops == ops) return m;
    tg_fail(m->ctx, TG_ERR_UNSUPPORTED,
            "tg_gpt_next: a \"%s\" has replaced the \"%s\" of a layer, and only the library's own can use a cache; use "
            "tg_gpt_logits",
            tg_module_kind(m), ops->kind);
    return false;
}

/* ---- Attention ---- */

/* Returns a view [b, heads, s, d] of x [s, b, heads * d]. A shard of the last dim becomes a shard of heads. */
static tg_tensor *split_heads(tg_tape *t, tg_tensor *x, int64_t d) {
    tg_shape s = {4, {tg_dim(x, 0), tg_dim(x, 1), tg_dim(x, 2) / d, d}};
    tg_tensor *v = tg_reshape_shard(t, x, s, 2);
    return tg_permute(t, v, (tg_dims){4, {1, 2, 0, 3}});
}

/* Returns this rank's key-value head if there are fewer heads than ranks: [s, b, heads * d] -> [s, b, d]. x has all
 * heads and is the same on every rank. The heads are repeated until there is one for each rank; then each rank takes
 * its own. */
static tg_tensor *own_head(const tg_gpt_config *c, tg_tape *t, tg_tensor *x) {
    int64_t s = tg_dim(x, 0), b = tg_dim(x, 1), d = c->head_dim, times = tg_gpt_tp(c) / c->kv_heads;
    x = tg_reshape(t, x, (tg_shape){5, {s, b, c->kv_heads, 1, d}});
    x = tg_expand(t, x, (tg_shape){5, {s, b, c->kv_heads, times, d}});
    x = tg_reshape(t, x, (tg_shape){3, {s, b, c->kv_heads * times * d}});
    return tg_shard(t, x, 2, tg_gpt_tp_comm(c));
}

/* Computes keys and values if there are fewer key-value heads than ranks: every rank computes all heads and keeps
 * one. */
static void project_replicated(const tg_module *m, const tg_gpt_config *c, tg_tape *t, tg_tensor *x, tg_tensor *kv[2]) {
    tg_comm *tp = tg_gpt_tp_comm(c);
    x = tg_is_sequence_parallel(c->parallel) ? tg_gather_from_sp(t, x, tp, NULL) : tg_copy_to_tp(t, x, tp);
    kv[0] = own_head(c, t, tg_module_run(m, "k_proj", t, x));
    kv[1] = own_head(c, t, tg_module_run(m, "v_proj", t, x));
}

/* Computes queries, keys and values, each [b, heads, s, d], with the heads of this rank. */
static void project(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *qkv[3]) {
    const tg_gpt_config *c = config(m);
    int64_t d = c->head_dim, tp = tg_gpt_tp(c), q = c->heads / tp * d, kv = c->kv_heads / tp * d;
    if (c->arch == TG_GPT2) {
        tg_split(t, tg_module_run(m, "c_attn", t, x), 2, (const int64_t[]){q, kv, kv}, 3, qkv);
    } else {
        qkv[0] = tg_module_run(m, "q_proj", t, x);
        if (c->kv_heads < tp) {
            project_replicated(m, c, t, x, qkv + 1);
        } else {
            qkv[1] = tg_module_run(m, "k_proj", t, x);
            qkv[2] = tg_module_run(m, "v_proj", t, x);
        }
    }
    for (int i = 0; i < 3; i++) qkv[i] = split_heads(t, qkv[i], d);
}

/* Writes the new keys or values [b, g, n, d] after the cached ones, and returns all of them as a tensor of the tape. */
static tg_tensor *append(tg_tape *t, tg_tensor *cache, int64_t length, tg_tensor *x) {
    tg_ctx *ctx = t->ctx;
    if (ctx->run.status != TG_OK) return tg_inert(ctx);
    tg_tensor *slot = tg_temp_new(ctx, cache->dtype, 4, x->shape, cache->stride, tg_storage_ref(cache->storage),
                                  length * cache->stride[2]);
    if (!slot) return tg_inert(ctx);
    const double none[2] = {0, 0};
    tg_array from = tg_array_of(x);
    ctx->run.ops->map(ctx, TG_FN_id, tg_array_of(slot), &from, 1, none, false);
    tg_temp_free(slot);
    return tg_slice(t, tg_tape_input(t, cache), 2, 0, length + x->shape[2], 1);
}

/* Runs attention, with the cached keys and values if `past` is not NULL: x [s, b, h] -> [s, b, h]. */
static tg_tensor *attend(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    if (!is_own(m, &attention_ops)) return tg_inert(t->ctx);
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
    o = tg_reshape(t, o, (tg_shape){3, {tg_dim(o, 0), tg_dim(o, 1), tg_dim(o, 2) * c->head_dim}});
    return tg_module_run(m, c->arch == TG_GPT2 ? "c_proj" : "o_proj", t, o);
}

static tg_tensor *attention_forward(tg_module *m, tg_tape *t, tg_tensor *x) { return attend(m, t, x, NULL); }

/* ---- MLP ---- */

/* Applies the activation to the outputs of the first projections (one for GPT-2, two for Llama): [s, b, ffn / tp]. */
static tg_tensor *activate(tg_tape *t, tg_tensor *const *h, int n) {
    return n == 1 ? tg_gelu_tanh(t, h[0]) : tg_swiglu(t, h[0], h[1]);
}

static tg_status activate_again(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_out;
    out[0] = activate(t, in, n_in);
    return t->ctx->run.status;
}

static tg_tensor *mlp_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    const tg_gpt_config *c = config(m);
    bool gpt2 = c->arch == TG_GPT2, again = c->recompute == TG_GPT_SELECTIVE && t->grad;
    const char *down = gpt2 ? "c_proj" : "down_proj";
    const tg_module *up = gpt2 ? tg_module_part(m, "c_fc") : NULL;
    if (tg_is_own_linear(up) && !again)
        return tg_module_run(m, down, t,
                             tg_linear_gelu_tanh(t, x, tg_module_own(up, "weight"), tg_module_own(up, "bias")));
    tg_tensor *h[2] = {NULL}, *a = NULL;
    h[0] = tg_module_run(m, gpt2 ? "c_fc" : "gate_proj", t, x);
    if (!gpt2) h[1] = tg_module_run(m, "up_proj", t, x);
    if (!again) return tg_module_run(m, down, t, activate(t, h, gpt2 ? 1 : 2));
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, activate_again, NULL, h, gpt2 ? 1 : 2, &a, 1, TG_RECOMPUTE(.name = "activation"));
    tg_tensor *y = tg_module_run(m, down, t, a);
    tg_replay_close(r, NULL);
    return y;
}

/* ---- The layer ---- */

/* Returns x + y, with dropout on y. */
static tg_tensor *residual(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *y) {
    const tg_gpt_config *c = config(m);
    return tg_add(t, x, c->dropout > 0 ? tg_dropout(t, y, c->dropout) : y);
}

/* Runs a child in a scope of the child's name. If past is not NULL, the child must be attention, and gets past. */
static tg_tensor *in_scope(tg_module *m, const char *child, tg_tape *t, tg_tensor *x, const tg_past *past) {
    if (tg_scope_open(t, child) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(t->ctx);
    tg_tensor *y = past ? attend(tg_module_part(m, child), t, x, past) : tg_module_run(m, child, t, x);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(t->ctx);
}

static tg_status norm_again(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const tg_norm_ref *norm = state;
    (void)n_in, (void)n_out;
    out[0] = tg_module_run(norm->layer, norm->name, t, in[0]);
    return t->ctx->run.status;
}

/* Computes x + body(norm(x)), one of the two sublayers. With selective recomputation the norm's result is discarded
 * after the body's forward, and computed again when the body's backward reads it. */
static tg_tensor *sublayer(tg_module *m, int i, tg_tape *t, tg_tensor *x, const char *norm, const char *body,
                           const tg_past *past) {
    tg_norm_ref *again = &((tg_layer_state *)m->state)->norm[i];
    tg_tensor *n = NULL;
    tg_replay *r = NULL;
    if (config(m)->recompute == TG_GPT_SELECTIVE && t->grad) {
        r = tg_replay_open(t);
        *again = (tg_norm_ref){m, norm};
        tg_replay_run(r, norm_again, again, &x, 1, &n, 1, TG_RECOMPUTE(.name = norm));
    } else {
        n = in_scope(m, norm, t, x, NULL);
    }
    tg_tensor *y = in_scope(m, body, t, n, past);
    if (r) tg_replay_close(r, NULL);
    return residual(m, t, x, y);
}

tg_tensor *tg_transformer_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past) {
    if (!is_own(m, &layer_ops)) return tg_inert(t->ctx);
    bool gpt2 = config(m)->arch == TG_GPT2;
    x = sublayer(m, 0, t, x, gpt2 ? "ln_1" : "input_layernorm", gpt2 ? "attn" : "self_attn", past);
    return sublayer(m, 1, t, x, gpt2 ? "ln_2" : "post_attention_layernorm", "mlp", NULL);
}

static tg_tensor *layer_forward(tg_module *m, tg_tape *t, tg_tensor *x) { return tg_transformer_layer(m, t, x, NULL); }

/* ---- Creation ---- */

static const tg_module_ops attention_ops = {
    .size = sizeof(tg_module_ops), .kind = "attention", .forward = attention_forward, .free = state_free};
static const tg_module_ops mlp_ops = {
    .size = sizeof(tg_module_ops), .kind = "mlp", .forward = mlp_forward, .free = state_free};
static const tg_module_ops layer_ops = {
    .size = sizeof(tg_module_ops), .kind = "transformer_layer", .forward = layer_forward, .free = state_free};

/* Creates an empty module whose state holds the completed config, and points *c to that config. NULL on error. */
static tg_module *begin(tg_ctx *ctx, const tg_module_ops *ops, const char *who, const tg_gpt_config *given,
                        const tg_gpt_config **c) {
    if (!tg_ok(ctx)) return NULL;
    tg_layer_state *s = tg_host_alloc(ctx, sizeof *s);
    if (!s) return NULL;
    s->ctx = ctx;
    tg_options(ctx, &s->c, sizeof s->c, given, who);
    if (!given) tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the config is NULL", who);
    if (ctx->run.status == TG_OK) tg_gpt_complete(ctx, &s->c, who);
    tg_module *m = ctx->run.status == TG_OK ? tg_module_new(ctx, ops, s) : NULL;
    if (!m) {
        state_free(s);
        return NULL;
    }
    *c = &s->c;
    return tg_module_ok(m) ? m : NULL;
}

/* Returns m. After an error frees m and returns an inert module instead. */
static tg_module *finish(tg_ctx *ctx, tg_module *m) {
    if (tg_module_ok(m)) return m;
    if (m) tg_module_free(m);
    return tg_module_new(NULL, ctx ? &layer_ops : NULL, NULL);
}

/* Returns the standard deviation of the weights of projections whose output is added to the residual: init_std divided
 * by the square root of the number of such additions (Radford et al., 2019). */
static double projection_std(const tg_gpt_config *c) { return c->init_std / sqrt(2.0 * (double)c->layers); }

/* How tensor parallelism divides a projection: by output rows, by input columns, or not at all. */
typedef enum projection_kind { COLUMN, ROW, WHOLE } projection_kind;

/* Creates a linear layer, with a bias in GPT-2's style. The output rows are `parts` blocks, such as q, k and v, each of
 * which is sharded over the ranks. */
static tg_module *projection(tg_ctx *ctx, const tg_gpt_config *c, projection_kind kind, int64_t in, int64_t out,
                             int parts, double std) {
    bool bias = c->arch == TG_GPT2;
    if (tg_gpt_tp(c) == 1 || kind == WHOLE)
        return c->wgrad == TG_WGRAD_DEFERRED ? tg_deferred_linear_new(ctx, in, out, bias, std)
                                             : tg_nn_linear(ctx, in, out, bias, std);
    const tg_parallel_linear_opts *o =
        TG_PARALLEL_LINEAR(.no_bias = !bias, .std = std, .strides = parts, .fused_wgrad = c->wgrad != TG_WGRAD_PLAIN,
                           .deferred_wgrads = c->wgrad == TG_WGRAD_DEFERRED ? TG_NONE : 0);
    return kind == COLUMN ? tg_nn_column_linear(c->parallel, in, out, o) : tg_nn_row_linear(c->parallel, in, out, o);
}

tg_module *tg_nn_attention(tg_ctx *ctx, const tg_gpt_config *given) {
    const tg_gpt_config *c;
    tg_module *m = begin(ctx, &attention_ops, "tg_nn_attention", given, &c);
    if (!m) return finish(ctx, m);
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, h = c->hidden;
    if (c->arch == TG_GPT2) {
        tg_module_add_child(m, "c_attn", projection(ctx, c, COLUMN, h, q + 2 * kv, 3, c->init_std));
        tg_module_add_child(m, "c_proj", projection(ctx, c, ROW, q, h, 1, projection_std(c)));
    } else {
        projection_kind of_kv = c->kv_heads < tg_gpt_tp(c) ? WHOLE : COLUMN;
        tg_module_add_child(m, "q_proj", projection(ctx, c, COLUMN, h, q, 1, c->init_std));
        tg_module_add_child(m, "k_proj", projection(ctx, c, of_kv, h, kv, 1, c->init_std));
        tg_module_add_child(m, "v_proj", projection(ctx, c, of_kv, h, kv, 1, c->init_std));
        tg_module_add_child(m, "o_proj", projection(ctx, c, ROW, q, h, 1, projection_std(c)));
        if (of_kv == WHOLE) { /* each rank uses only its own head, so the gradients must be summed over the ranks: R */
            tg_place(c->parallel, tg_module_own_at(m, "k_proj", "weight"), TG_TP, TG_R);
            tg_place(c->parallel, tg_module_own_at(m, "v_proj", "weight"), TG_TP, TG_R);
        }
    }
    return finish(ctx, m);
}

tg_module *tg_nn_mlp(tg_ctx *ctx, const tg_gpt_config *given) {
    const tg_gpt_config *c;
    tg_module *m = begin(ctx, &mlp_ops, "tg_nn_mlp", given, &c);
    if (!m) return finish(ctx, m);
    if (c->arch == TG_GPT2) {
        tg_module_add_child(m, "c_fc", projection(ctx, c, COLUMN, c->hidden, c->ffn, 1, c->init_std));
        tg_module_add_child(m, "c_proj", projection(ctx, c, ROW, c->ffn, c->hidden, 1, projection_std(c)));
    } else {
        tg_module_add_child(m, "gate_proj", projection(ctx, c, COLUMN, c->hidden, c->ffn, 1, c->init_std));
        tg_module_add_child(m, "up_proj", projection(ctx, c, COLUMN, c->hidden, c->ffn, 1, c->init_std));
        tg_module_add_child(m, "down_proj", projection(ctx, c, ROW, c->ffn, c->hidden, 1, projection_std(c)));
    }
    return finish(ctx, m);
}

static tg_module *norm(tg_ctx *ctx, const tg_gpt_config *c) {
    return c->arch == TG_GPT2 ? tg_nn_layer_norm(ctx, c->hidden, c->norm_eps)
                              : tg_nn_rms_norm(ctx, c->hidden, c->norm_eps);
}

tg_module *tg_nn_transformer_layer(tg_ctx *ctx, const tg_gpt_config *given) {
    const tg_gpt_config *c;
    tg_module *m = begin(ctx, &layer_ops, "tg_nn_transformer_layer", given, &c);
    if (!m) return finish(ctx, m);
    bool gpt2 = c->arch == TG_GPT2;
    tg_module_add_child(m, gpt2 ? "ln_1" : "input_layernorm", norm(ctx, c));
    tg_module_add_child(m, gpt2 ? "attn" : "self_attn", tg_nn_attention(ctx, c));
    tg_module_add_child(m, gpt2 ? "ln_2" : "post_attention_layernorm", norm(ctx, c));
    tg_module_add_child(m, "mlp", tg_nn_mlp(ctx, c));
    return finish(ctx, m);
}
