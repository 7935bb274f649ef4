/* A zero in the options of ranks and of models over ranks. */
#include <math.h>
#include <string.h>

#include <tapegrad/attention.h>
#include <tapegrad/flat.h>
#include <tapegrad/gpt.h>
#include <tapegrad/lm.h>
#include <tapegrad/lora.h>
#include <tapegrad/megatron.h>
#include <tapegrad/pipe.h>
#include <tapegrad/tcp.h>
#include <tapegrad/tensor_parallel.h>

#include "optim/optim.h"
#include "option_zeros.h"

/* ---- Ranks ---- */

/* The grid of rank 0 of two, with sequence parallelism. */
static tg_parallel *two_ranks(tg_comm **world) {
    *world = tg_comm_plan_new(ctx, 0, 2);
    return tg_parallel_new(*world, TG_PARALLEL(.tp = 2, .sequence_parallel = true));
}

static bool parallel(const void *o) {
    tg_comm *world = tg_comm_plan_new(ctx, 0, 2);
    tg_parallel_free(tg_parallel_new(world, o));
    tg_comm_free(world);
    return false;
}

/* Creates a module by `make`, and returns whether `is` says that it takes 0 as zero. */
static bool on_two_ranks(const void *o, tg_module *(*make)(const tg_parallel *p, const void *o),
                         bool (*is)(tg_module *m)) {
    tg_comm *world;
    tg_parallel *p = two_ranks(&world);
    tg_module *m = make(p, o);
    bool good = tg_ctx_status(ctx) == TG_OK && is(m);
    tg_tape_reset(t);
    tg_module_free(m);
    tg_parallel_free(p);
    tg_comm_free(world);
    return good;
}
static tg_module *row(const tg_parallel *p, const void *o) { return tg_nn_row_linear(p, 2, 2, o); }
static tg_module *inference(const tg_parallel *p, const void *o) { return tg_nn_inference_column(p, 2, 2, o); }
static tg_module *embedding(const tg_parallel *p, const void *o) { return tg_nn_vocab_embedding(p, 2, 2, 1, o); }
static bool weight_is_zero(tg_module *m) { return reads(tg_module_find(m, "weight"), 2, (const double[]){0, 0}); }
static bool bias_is_invariant(tg_module *m) {
    return tg_placement_of(tg_module_find(m, "bias"), TG_TP).kind == TG_INVARIANT;
}
static bool result_is_invariant(tg_module *m) {
    tg_tensor *y = tg_module_forward(m, t, tg_zeros(ctx, TG_I64, TG_SHAPE(2, 2)));
    return tg_placement_of(y, TG_TP).kind == TG_INVARIANT;
}
/* Returns whether the layer norm in front of the layer has no eps: it then takes (-a, a) to (-1, 1) for any a. */
static bool norm_has_no_eps(tg_module *m) {
    tg_tensor *x = tg_add_scalar(t, tg_scale(t, tg_arange(t, TG_F64, 0, 2, 1), 2e-4), -1e-4);
    tg_write_f64(tg_module_find(m, "weight"), (const double[]){0, 1}, 2);
    return reads(tg_module_forward(m, t, tg_reshape(t, x, TG_SHAPE(1, 2))), 1, (const double[]){1});
}
static bool mlp_norm_has_no_eps(tg_module *m) { return norm_has_no_eps(tg_module_child(m, "linear_fc1")); }
static bool first_is_zero(tg_module *m) { return weight_is_zero(tg_module_child(m, "linear_fc1")); }
static bool second_is_zero(tg_module *m) { return weight_is_zero(tg_module_child(m, "linear_fc2")); }
static bool second_is_invariant(tg_module *m) { return bias_is_invariant(tg_module_child(m, "linear_fc2")); }
static tg_module *norm_column(const tg_parallel *p, const void *o) { return tg_nn_norm_linear(p, 2, 2, o); }
static tg_module *norm_mlp(const tg_parallel *p, const void *o) { return tg_nn_norm_mlp(p, 2, 2, o); }
static bool column_norm_is_exact(const void *o) {
    tg_parallel_linear_opts l = *(const tg_parallel_linear_opts *)o;
    l.sequence_parallel = 0;
    return on_two_ranks(&l, norm_column, norm_has_no_eps);
}
static bool mlp_norm_is_exact(const void *o) {
    tg_norm_mlp_opts l = *(const tg_norm_mlp_opts *)o;
    l.sequence_parallel = 0;
    return on_two_ranks(&l, norm_mlp, mlp_norm_has_no_eps);
}
static bool mlp_draws_zeros_first(const void *o) { return on_two_ranks(o, norm_mlp, first_is_zero); }
static bool mlp_draws_zeros_last(const void *o) { return on_two_ranks(o, norm_mlp, second_is_zero); }
static bool mlp_is_not_sequence_parallel(const void *o) { return on_two_ranks(o, norm_mlp, second_is_invariant); }
static bool norm_is_exact(const void *o) {
    tg_tensor *x = of(TG_SHAPE(1, 2), (const double[]){1e-4, -1e-4}), *w = of(TG_SHAPE(1, 2), (const double[]){1, 0});
    bool good = reads(tg_norm_linear(t, x, w, NULL, NULL, NULL, NULL, o), 1, (const double[]){1});
    tg_drop(x);
    tg_drop(w);
    return good;
}
static bool linear_of_chunks(const void *o) {
    tg_tensor *x = of(TG_SHAPE(1, 1), (const double[]){1});
    tg_linear_with_grad_accumulation(t, x, x, NULL, NULL, o);
    tg_drop(x);
    return false;
}
static bool row_draws_zeros(const void *o) { return on_two_ranks(o, row, weight_is_zero); }
static bool row_is_not_sequence_parallel(const void *o) { return on_two_ranks(o, row, bias_is_invariant); }
static bool inference_draws_zeros(const void *o) { return on_two_ranks(o, inference, weight_is_zero); }
static bool embedding_is_whole(const void *o) { return on_two_ranks(o, embedding, result_is_invariant); }

/* A layer of one head that passes on the values x = 1, 2, 3 of the keys that a query sees, weighed by softmax. Whether
 * the last query's result is `want`; false if the layer is refused. */
static bool last_query_gets(const void *o, double want) {
    const double ones[] = {1, 1, 1}, values[] = {1, 2, 3};
    tg_self_attention_opts opts = *(const tg_self_attention_opts *)o;
    opts.heads = 1;
    tg_comm *c = tg_comm_self_new(ctx);
    tg_parallel *p = tg_parallel_new(c, NULL);
    tg_module *m = tg_nn_self_attention(p, 1, &opts);
    double got[3] = {0};
    for (int i = 0; i < tg_module_param_count(m); i++) {
        tg_tensor *x = tg_module_param(m, i, NULL);
        tg_write_f64(x, ones, tg_numel(x));
    }
    tg_status s = tg_read_f64(tg_module_forward(m, t, of(TG_SHAPE(3, 1, 1), values)), got, 3);
    tg_module_free(m);
    tg_parallel_free(p);
    tg_comm_free(c);
    return s == TG_OK && fabs(got[2] - want) < 1e-12;
}
static bool layer_sees_all_alike(const void *o) { return last_query_gets(o, 2); }
static bool layer_sees_no_keys_before(const void *o) { return last_query_gets(o, 3); }

static bool plan(const void *o) {
    tg_pipe_plan_opts p = *(const tg_pipe_plan_opts *)o;
    p.stages = p.micros = 2;
    tg_pipe_plan_free(tg_pipe_plan_new(ctx, &p));
    return false;
}

static bool pipe(const void *o) {
    tg_comm *self = tg_comm_self_new(ctx);
    tg_parallel *p = tg_parallel_new(self, NULL);
    tg_pipe_plan *one = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.stages = 1, .micros = 1));
    tg_pipe_free(tg_pipe_new(p, one, o));
    tg_pipe_plan_free(one);
    tg_parallel_free(p);
    tg_comm_free(self);
    return false;
}

static bool flat(const void *o) {
    tg_comm *self = tg_comm_self_new(ctx);
    tg_parallel *p = tg_parallel_new(self, NULL);
    tg_tensor *w = tg_param_new(ctx, "w", TG_F32, TG_SHAPE(2), 1);
    tg_flat_free(tg_flat_new(p, &w, 1, o));
    tg_drop(w);
    tg_parallel_free(p);
    tg_comm_free(self);
    return false;
}

static bool tcp(const void *o) {
    tg_tcp_opts opts = *(const tg_tcp_opts *)o;
    opts.host = "localhost";
    opts.ranks = 1;
    opts.port = 1;
    tg_comm_free(tg_comm_tcp_new(ctx, &opts));
    return false;
}

/* ---- Models ---- */

#define SIZES(c) c.vocab = 4, c.layers = 1, c.heads = 2, c.hidden = 4, c.positions = 4

static bool gpt(const void *o) {
    tg_gpt_config c = *(const tg_gpt_config *)o;
    SIZES(c);
    c.arch = TG_LLAMA;
    tg_module_free(tg_gpt_new(ctx, &c));
    return false;
}

static tg_module *lm_of(tg_ctx *in, const void *o) {
    tg_lm_config c = *(const tg_lm_config *)o;
    SIZES(c);
    return tg_lm_new(in, &c);
}
static bool lm(const void *o) { return tg_module_free(lm_of(ctx, o)), false; }

/* A model under key 0 draws other weights than one without a key. */
static bool draws_otherwise(tg_module *with, tg_module *without) {
    double a[16], b[16];
    tg_read_f64(tg_module_param(with, 0, NULL), a, 16);
    tg_read_f64(tg_module_param(without, 0, NULL), b, 16);
    bool differ = tg_ctx_status(ctx) == TG_OK && memcmp(a, b, sizeof a);
    tg_module_free(with);
    tg_module_free(without);
    return differ;
}
/* A model whose frequencies change by the numbers of turns. */
static bool lm_of_turns(const void *o) {
    tg_lm_config c = *(const tg_lm_config *)o;
    SIZES(c);
    c.rope_kind = TG_ROPE_LLAMA3;
    c.rope_original = 4;
    tg_module_free(tg_lm_new(ctx, &c));
    return false;
}

/* A model with dropout of the residual alone. */
static bool lm_drops_less(const void *o) {
    tg_lm_config c = *(const tg_lm_config *)o;
    SIZES(c);
    c.dropout = 0.5;
    tg_module *lm = tg_lm_new(ctx, &c);
    const tg_lm_config *is = tg_lm_config_of(lm);
    bool good = is && is->embed_dropout + is->attention_dropout == 0.5;
    tg_module_free(lm);
    return good;
}
static bool lm_opens_key_0(const void *o) { return draws_otherwise(lm_of(ctx, o), lm_of(ctx, TG_LM())); }
static bool gpt_opens_key_0(const void *o) {
    tg_gpt_config with = *(const tg_gpt_config *)o, without = *TG_GPT();
    SIZES(with);
    SIZES(without);
    return draws_otherwise(tg_gpt_new(ctx, &with), tg_gpt_new(ctx, &without));
}

/* Returns the group of the parameter at `path` of a model with these rates and a linear schedule. */
static tg_optim_group_t rates(const void *o, const char *path) {
    tg_lm_rates r = *(const tg_lm_rates *)o;
    tg_optim_group_t g = {.weight_decay = -1};
    tg_tensor *params[16];
    tg_module *m = lm_of(ctx, TG_LM());
    int n = tg_module_params(m, params, 16);
    tg_optim *adam = tg_adamw_new(ctx, params, n, NULL);
    r.lr = 0.5, r.min_lr = 0.25;
    if (r.embed_lr == 0) r.embed_min_lr = 0;
    r.schedule = TG_SCHEDULE(.lr = 1, .steps = 10, .decay = TG_DECAY_LINEAR);
    for (int i = 0; tg_lm_groups(&m, 1, adam, &r) == TG_OK && i < n; i++)
        if (params[i] == tg_module_find(m, path)) g = adam->group[adam->item[i].group];
    tg_optim_free(adam);
    tg_module_free(m);
    return g;
}
static const char table[] = "model.embed_tokens.weight", matrix[] = "model.layers.0.mlp.up_proj.weight";
static bool embeddings_stand_still(const void *o) { return rates(o, table).schedule.lr == 0; }
static bool embeddings_fall_to_0(const void *o) {
    tg_schedule s = rates(o, table).schedule;
    return s.lr == 0.5 && s.min_lr == 0;
}
static bool matrices_do_not_decay(const void *o) { return rates(o, matrix).weight_decay == 0; }

static bool save(const void *o) {
    tg_module *m = lm_of(ctx, TG_LM());
    tg_lm_save(&m, 1, "/nowhere", o);
    tg_module_free(m);
    return false;
}

static bool adapt(const void *o) {
    tg_module *m = lm_of(ctx, TG_LM());
    tg_lora_apply(m, o);
    tg_module_free(m);
    return false;
}

const tg_zero_probe tg_zeros_ranks[] = {
    {"tg_tcp_opts", "ports", tcp, "ports is 0, expected at least one port"},
    {"tg_parallel_opts", "tp", parallel, "tp is 0, expected 1 to 2"},
    {"tg_parallel_opts", "cp", parallel, "cp is 0, expected 1 to 2"},
    {"tg_parallel_opts", "pp", parallel, "pp is 0, expected 1 to 2"},
    {"tg_parallel_opts", "etp", parallel, "etp is 0, expected 1 to 2"},
    {"tg_parallel_opts", "ep", parallel, "ep is 0, expected 1 to 2"},
    {"tg_parallel_opts", "vp", parallel, "vp is 0, expected 1 or more"},
    {"tg_inference_opts", "std", inference_draws_zeros, NULL},
    {"tg_inference_opts", "norm_eps", inference_draws_zeros, "norm_eps is 0, expected a positive number"},
    {"tg_parallel_linear_opts", "std", row_draws_zeros, NULL},
    {"tg_parallel_linear_opts", "strides", row_draws_zeros, "strides is 0, expected 1 or more"},
    {"tg_parallel_linear_opts", "sequence_parallel", row_is_not_sequence_parallel, NULL},
    {"tg_parallel_linear_opts", "norm_eps", column_norm_is_exact, NULL},
    {"tg_parallel_linear_opts", "chunks", row_draws_zeros, "chunks is 0, expected 1 to 16"},
    {"tg_linear_grad_opts", "chunks", linear_of_chunks, "chunks is 0, expected 1 to 16"},
    {"tg_norm_linear_opts", "chunks", norm_is_exact, "chunks is 0, expected 1 to 16"},
    {"tg_norm_mlp_opts", "chunks", mlp_draws_zeros_last, "chunks is 0, expected 1 to 16"},
    {"tg_norm_linear_opts", "eps", norm_is_exact, NULL},
    {"tg_norm_mlp_opts", "norm_eps", mlp_norm_is_exact, NULL},
    {"tg_norm_mlp_opts", "std", mlp_draws_zeros_first, NULL},
    {"tg_norm_mlp_opts", "out_std", mlp_draws_zeros_last, NULL},
    {"tg_norm_mlp_opts", "sequence_parallel", mlp_is_not_sequence_parallel, NULL},
    {"tg_vocab_embedding_opts", "reduce_scatter", embedding_is_whole, NULL},
    {"tg_self_attention_opts", "kv_heads", layer_sees_all_alike, "kv_heads is 0, expected 1 or more"},
    {"tg_self_attention_opts", "head_dim", layer_sees_all_alike, "head_dim is 0, expected 1 or more"},
    {"tg_self_attention_opts", "v_dim", layer_sees_all_alike, "v_dim is 0, expected 1 or more"},
    {"tg_self_attention_opts", "left", layer_sees_no_keys_before, NULL},
    {"tg_self_attention_opts", "scale", layer_sees_all_alike, NULL},
    {"tg_self_attention_opts", "softcap", layer_sees_all_alike, "softcap is 0, expected a finite number above 0"},
    {"tg_self_attention_opts", "rope_base", layer_sees_all_alike, "rope_base is 0, expected a finite number above 0"},
    {"tg_self_attention_opts", "norm_eps", layer_sees_all_alike, "norm_eps is 0, but qk_norm is false"},
    {"tg_self_attention_opts", "cp_inner", layer_sees_all_alike, "cp_inner is 0 and cp is 1"},
    {"tg_pipe_plan_opts", "chunks", plan, "chunks is 0, expected 1 to 256"},
    {"tg_pipe_plan_opts", "group", plan, "group is 0, expected 2 or more"},
    {"tg_flat_opts", "bucket", flat, "bucket is 0, expected 1 or more elements"},
    {"tg_pipe_opts", "ahead", pipe, "ahead is 0, expected 1 or more"},
    {"tg_gpt_config", "kv_heads", gpt, "kv_heads is 0, expected a divisor"},
    {"tg_gpt_config", "ffn", gpt, "ffn is 0, expected 1 to"},
    {"tg_gpt_config", "head_dim", gpt, "head_dim is 0, expected 1 to"},
    {"tg_gpt_config", "norm_eps", gpt, "norm_eps 0"},
    {"tg_gpt_config", "rope_base", gpt, "rope_base 0"},
    {"tg_gpt_config", "init_std", gpt, "init_std 0"},
    {"tg_gpt_config", "cp_inner", gpt, "cp_inner is 0 and cp is 1"},
    {"tg_gpt_config", "key", gpt_opens_key_0, NULL},
    {"tg_lm_config", "kv_heads", lm, "kv_heads is 0, expected a divisor"},
    {"tg_lm_config", "head_dim", lm, "head_dim is 0, expected 1 to"},
    {"tg_lm_config", "ffn", lm, "ffn is 0, expected 1 to"},
    {"tg_lm_config", "norm_eps", lm, "norm_eps 0"},
    {"tg_lm_config", "embed_dropout", lm_drops_less, NULL},
    {"tg_lm_config", "attention_dropout", lm_drops_less, NULL},
    {"tg_lm_config", "embed_scale", lm, "embed_scale 0"},
    {"tg_lm_config", "attention_scale", lm, "attention_scale 0"},
    {"tg_lm_config", "attention_softcap", lm, "attention_softcap 0"},
    {"tg_lm_config", "logit_softcap", lm, "logit_softcap 0"},
    {"tg_lm_config", "clip_qkv", lm, "clip_qkv 0"},
    {"tg_lm_config", "window", lm, "window is 0, expected 1 or more"},
    {"tg_lm_config", "rope_base", lm, "rope_base 0"},
    {"tg_lm_config", "rope_dims", lm, "rope_dims is 0, expected an even number from 2"},
    {"tg_lm_config", "rope_factor", lm, "rope_factor is 0"},
    {"tg_lm_config", "rope_low", lm_of_turns, "rope_low 0"},
    {"tg_lm_config", "rope_high", lm_of_turns, "rope_high 0"},
    {"tg_lm_config", "rope_gain", lm, "rope_gain is 0"},
    {"tg_lm_config", "rope_local_base", lm, "rope_local_base 0"},
    {"tg_lm_config", "init_std", lm, "init_std 0"},
    {"tg_lm_config", "mtp_weight", lm, "mtp_weight is 0"},
    {"tg_lm_config", "mup_base", lm, "mup_base is 0"},
    {"tg_lm_config", "cp_inner", lm, "cp_inner is 0 and cp is 1"},
    {"tg_lm_config", "key", lm_opens_key_0, NULL},
    {"tg_lm_rates", "embed_lr", embeddings_stand_still, NULL},
    {"tg_lm_rates", "embed_min_lr", embeddings_fall_to_0, NULL},
    {"tg_lm_rates", "weight_decay", matrices_do_not_decay, NULL},
    {"tg_lm_save_opts", "file_bytes", save, "file_bytes is 0, expected 1 or more"},
    {"tg_lora_opts", "rank", adapt, "rank is 0, expected 1 or more"},
    {"tg_lora_opts", "alpha", adapt, "alpha is 0, expected a number above 0"},
    {NULL},
};
