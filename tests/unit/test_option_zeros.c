/* What a zero in a field of options means: zero, or an error that says what was expected. Every number whose default is
 * not 0 has a probe, which sets the field to 0 and uses the options. */
#include <math.h>
#include <string.h>

#include <tapegrad/context_parallel.h>
#include <tapegrad/data.h>
#include <tapegrad/flat.h>
#include <tapegrad/gpt.h>
#include <tapegrad/lbfgs.h>
#include <tapegrad/lm.h>
#include <tapegrad/megatron.h>
#include <tapegrad/optim.h>
#include <tapegrad/pipe.h>
#include <tapegrad/tensor_parallel.h>

#include "check_main.h"
#include "gradcheck/difference.h"
#include "optim/optim.h"

/* A context for the probes, and the message of its error after a probe. */
static tg_ctx *ctx;
static tg_tape *t;
static char says[2048];

/* Gets options in which one field is 0. If the call must refuse that, makes the call and returns false. Otherwise
 * returns whether the call took 0 as zero. */
typedef bool (*probe_fn)(const void *o);

/* ---- Contexts ---- */

static bool config(const void *o) {
    tg_ctx *made = tg_ctx_new(o);
    snprintf(says, sizeof says, "%s", tg_ctx_message(made));
    tg_ctx_free(made);
    return false;
}

/* ---- Ops ---- */

static bool reads(tg_tensor *x, int n, const double *want) {
    double got[8];
    if (tg_read_f64(x, got, n) != TG_OK) return false;
    for (int i = 0; i < n; i++)
        if (fabs(got[i] - want[i]) > 1e-12) return false;
    return true;
}

static tg_tensor *of(tg_shape shape, const double *v) { return tg_from_host(ctx, TG_F64, shape, v); }

/* Three queries and keys of one number; the results are the values that a query sees, weighed by softmax. */
static tg_tensor *attention(const void *o) {
    const double q[] = {1, 2, 3}, v[] = {3, 6, 9};
    tg_tensor *x = of(TG_SHAPE(1, 1, 3, 1), q);
    return tg_attention(t, x, x, of(TG_SHAPE(1, 1, 3, 1), v), o);
}
static bool scores_are_zero(const void *o) { return reads(attention(o), 3, (const double[]){6, 6, 6}); }
static bool no_keys_before(const void *o) {
    double got[3];
    return tg_read_f64(attention(o), got, 3) == TG_OK && fabs(got[2] - 9) < 1e-12;
}
static bool no_keys_after(const void *o) {
    double got[3];
    return tg_read_f64(attention(o), got, 3) == TG_OK && fabs(got[0] - 3) < 1e-12;
}

/* The same over the ranks of a group: of one rank, or of two without peers. */
static tg_tensor *context(const void *o, int ranks) {
    const double q[] = {1, 2, 3, 4}, v[] = {3, 6, 9, 12};
    tg_comm *c = ranks == 1 ? tg_comm_self_new(ctx) : tg_comm_plan_new(ctx, 0, ranks);
    tg_tensor *x = of(TG_SHAPE(1, 1, 4, 1), q);
    tg_tensor *y = tg_context_attention(t, x, x, of(TG_SHAPE(1, 1, 4, 1), v), c, o);
    tg_comm_free(c);
    return y;
}
static bool scores_of_ranks_are_zero(const void *o) {
    return reads(context(o, 1), 4, (const double[]){7.5, 7.5, 7.5, 7.5});
}
static bool no_keys_of_ranks_before(const void *o) {
    double got[4];
    return tg_read_f64(context(o, 1), got, 4) == TG_OK && fabs(got[3] - 12) < 1e-12;
}
static bool groups_of_no_ranks(const void *o) {
    tg_context_attention_opts opts = *(const tg_context_attention_opts *)o;
    opts.kind = TG_CP_HIERARCHY;
    context(&opts, 2);
    return false;
}

static bool conv(const void *o) {
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(1, 1, 3, 3));
    tg_conv2d(t, x, x, NULL, o);
    return false;
}

static bool pool(const void *o) {
    tg_max_pool2d(t, tg_zeros(ctx, TG_F64, TG_SHAPE(1, 1, 3, 3)), 2, 2, o);
    return false;
}

static bool mean(const void *o) {
    tg_avg_pool2d(t, tg_zeros(ctx, TG_F64, TG_SHAPE(1, 1, 3, 3)), 2, 2, o);
    return false;
}

/* Whether the mean of the rows 1 and 3 of the ids 0 and 1 is that of id 1 alone. */
static bool bag_ignores_0(const void *o) {
    tg_tensor *table = of(TG_SHAPE(2, 1), (const double[]){1, 3}), *ids = tg_reshape(t, tg_arange(t, TG_I64, 0, 2, 1),
                                                                                    TG_SHAPE(1, 2));
    double y = 0;
    return tg_read_f64(tg_embedding_bag(t, table, ids, NULL, NULL, o), &y, 1) == TG_OK && y == 3;
}

static bool upsample(const void *o) {
    tg_upsample_nearest(t, tg_zeros(ctx, TG_F64, TG_SHAPE(1, 1, 3, 3)), TG_SHAPE(2, 2), o);
    return false;
}

/* The loss of class 0, which is ignored. */
static tg_tensor *logits(void) { return of(TG_SHAPE(1, 2), (const double[]){-1, -2}); }
static tg_tensor *class_0(void) { return tg_zeros(ctx, TG_I64, TG_SHAPE(1)); }
static bool cross_entropy_ignores_0(const void *o) {
    tg_cross_entropy_opts sum = *(const tg_cross_entropy_opts *)o;
    sum.reduction = TG_LOSS_SUM;
    return tg_item(tg_cross_entropy(t, logits(), class_0(), &sum)) == 0;
}
static bool nll_ignores_0(const void *o) {
    tg_loss_opts sum = *(const tg_loss_opts *)o;
    sum.reduction = TG_LOSS_SUM;
    return tg_item(tg_nll(t, logits(), class_0(), NULL, &sum)) == 0;
}
static double vocab_loss(const void *o) {
    tg_vocab_opts sum = *(const tg_vocab_opts *)o;
    tg_comm *self = tg_comm_self_new(ctx);
    sum.reduction = TG_LOSS_SUM;
    double loss = tg_item(tg_vocab_parallel_cross_entropy(t, logits(), class_0(), self, &sum));
    tg_tape_reset(t);
    tg_comm_free(self);
    return loss;
}
static bool vocab_ignores_0(const void *o) { return vocab_loss(o) == 0; }
static bool vocab(const void *o) { return vocab_loss(o), false; }

/* ---- Optimizers ---- */

/* Makes one step of a method with these options for a matrix of a single 1 that has this gradient. Returns what the
 * matrix then has; NaN after an error. */
typedef tg_optim *(*new_fn)(tg_ctx *c, tg_tensor *const *params, int n, const void *o);
static double stepped(new_fn make, const void *o, double gradient) {
    double ones[1] = {1}, v = NAN;
    tg_tensor *w = of(TG_SHAPE(1, 1), ones);
    tg_set_requires_grad(w, true);
    tg_optim *optim = make(ctx, &w, 1, o);
    tg_backward(t, tg_scale(t, tg_sum(t, w, TG_ALL_DIMS, false), gradient));
    tg_optim_step(optim);
    tg_read_f64(w, &v, 1);
    tg_optim_free(optim);
    tg_drop(w);
    return v;
}
static tg_optim *rmsprop(tg_ctx *c, tg_tensor *const *p, int n, const void *o) { return tg_rmsprop_new(c, p, n, o); }
static tg_optim *adagrad(tg_ctx *c, tg_tensor *const *p, int n, const void *o) { return tg_adagrad_new(c, p, n, o); }
static tg_optim *lion(tg_ctx *c, tg_tensor *const *p, int n, const void *o) { return tg_lion_new(c, p, n, o); }
static tg_optim *muon(tg_ctx *c, tg_tensor *const *p, int n, const void *o) { return tg_muon_new(c, p, n, o); }

static bool is(double x, double want) { return fabs(x - want) < 1e-12; }
static bool rmsprop_stands_still(const void *o) { return is(stepped(rmsprop, o, 2), 1); }
static bool rmsprop_keeps_nothing(const void *o) { return is(stepped(rmsprop, o, 2), 1 - 0.01 * 2 / (2 + 1e-8)); }
static bool rmsprop_has_no_eps(const void *o) { return is(stepped(rmsprop, o, 1e-9), 1 - 0.01 * 10); }
static bool adagrad_stands_still(const void *o) { return is(stepped(adagrad, o, 2), 1); }
static bool adagrad_has_no_eps(const void *o) { return is(stepped(adagrad, o, 1e-11), 1 - 0.01); }
static bool lion_stands_still(const void *o) { return is(stepped(lion, o, 2), 1); }
static bool lion_has_no_mean(const void *o) { return is(stepped(lion, o, -2), 1 + 1e-4); }
static bool muon_refuses(const void *o) { return stepped(muon, o, 2), false; }

/* Returns what the first element of Lion's mean is after a gradient of 2. */
static bool lion_forgets(const void *o) {
    double v = NAN;
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(), 1);
    tg_optim *optim = tg_lion_new(ctx, &w, 1, o);
    tg_backward(t, tg_scale(t, w, 2));
    tg_optim_step(optim);
    tg_read_f64(tg_optim_state(optim, 0, NULL), &v, 1);
    tg_optim_free(optim);
    tg_drop(w);
    return v == 2;
}

/* Muon without momentum forgets the first gradient. */
static bool muon_has_no_momentum(const void *o) {
    double v = NAN;
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(1, 1), 1);
    tg_optim *optim = tg_muon_new(ctx, &w, 1, o);
    for (int i = 1; i < 3; i++) {
        tg_backward(t, tg_scale(t, tg_sum(t, w, TG_ALL_DIMS, false), i));
        tg_optim_step(optim);
        tg_optim_zero_grad(optim);
    }
    tg_read_f64(tg_optim_state(optim, 0, NULL), &v, 1);
    tg_optim_free(optim);
    tg_drop(w);
    return v == 2;
}

static bool lbfgs(const void *o) {
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(2), 1);
    tg_lbfgs *l = tg_lbfgs_new(ctx, &w, 1, o);
    tg_lbfgs_free(l);
    tg_drop(w);
    return tg_ctx_status(ctx) == TG_OK;
}

static bool loader(const void *o) {
    static const float values[4];
    const tg_data_part part = {TG_F32, {0}, values};
    tg_loader_opts opts = *(const tg_loader_opts *)o;
    tg_tensor *x;
    opts.batch = 2;
    tg_loader *l = tg_loader_new_arrays(ctx, &part, 1, 4, &opts);
    bool good = tg_loader_next(l, &x) == TG_OK;
    tg_loader_free(l);
    return good;
}

/* Copies a group of an AdamW with the options `adam`, after another group was added with the options `group`. */
static tg_optim_group_t group_of(const tg_adamw_opts *adam, const tg_group_opts *group) {
    tg_optim_group_t g = {.lr = -1};
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(2), 1);
    tg_optim *o = tg_adamw_new(ctx, &w, 1, adam);
    int i = group ? tg_optim_add_group(o, group) : 0;
    if (tg_ctx_status(ctx) == TG_OK) g = o->group[i];
    if (tg_ctx_status(ctx) == TG_OK) g.lr = tg_optim_lr(o);
    tg_optim_free(o);
    tg_drop(w);
    return g;
}
#define ADAM_HAS_NO(field)                                                                                             \
    static bool adam_has_no_##field(const void *o) { return group_of(o, NULL).field == 0; }
#define GROUP_HAS_NO(field)                                                                                            \
    static bool group_has_no_##field(const void *o) { return group_of(TG_ADAMW(.weight_decay = 0.5), o).field == 0; }
ADAM_HAS_NO(lr)
ADAM_HAS_NO(beta1)
ADAM_HAS_NO(beta2)
ADAM_HAS_NO(eps)
ADAM_HAS_NO(weight_decay)
GROUP_HAS_NO(lr_scale)
GROUP_HAS_NO(beta1)
GROUP_HAS_NO(beta2)
GROUP_HAS_NO(eps)
GROUP_HAS_NO(weight_decay)

static bool loss_scale(const void *o) {
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(2), 1);
    tg_optim *adam = tg_adamw_new(ctx, &w, 1, NULL);
    tg_optim_set_scale(adam, o);
    tg_optim_free(adam);
    tg_drop(w);
    return false;
}

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
static bool row_draws_zeros(const void *o) { return on_two_ranks(o, row, weight_is_zero); }
static bool row_is_not_sequence_parallel(const void *o) { return on_two_ranks(o, row, bias_is_invariant); }
static bool inference_draws_zeros(const void *o) { return on_two_ranks(o, inference, weight_is_zero); }
static bool embedding_is_whole(const void *o) { return on_two_ranks(o, embedding, result_is_invariant); }

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

/* ---- Gradient checks ---- */

static tg_diff difference(const void *o) {
    const char *what;
    tg_diff d = {.atol = -1, .rtol = -1};
    if (!tg_diff_options(&d, o, &what)) snprintf(says, sizeof says, "%s", what);
    return d;
}
static bool gradcheck(const void *o) { return difference(o), false; }
static bool no_atol(const void *o) { return difference(o).atol == 0; }
static bool no_rtol(const void *o) { return difference(o).rtol == 0; }

/* ---- The probes ---- */

/* ---- Printing ---- */

/* Prints seven numbers into `says`. */
static bool prints(const void *o, const char *want) {
    const double v[] = {1.25, 2, 3, 4, 5, 6, 7};
    tg_print(of(TG_SHAPE(7), v), says, sizeof says, o);
    return strstr(says, want) != NULL;
}
static bool print_has_no_decimals(const void *o) { return prints(o, "[1. 2. 3. 4. 5. 6. 7.]"); }
static bool print_summarizes(const void *o) { return prints(o, "[1.25 2.   3.   ... "); }
static bool print(const void *o) { return prints(o, "") && (says[0] = 0); }


static const struct {
    const char *owner, *field;
    probe_fn use;
    const char *refused; /* the error; NULL: 0 is zero */
} probes[] = {
    {"tg_config", "threads", config, "threads is 0, expected 1 to 1024"},
    {"tg_config", "deadline", config, "deadline is 0"},
    {"tg_config", "memory", config, "memory is 0 bytes, expected 1 or more"},
    {"tg_print_opts", "precision", print_has_no_decimals, NULL},
    {"tg_print_opts", "threshold", print_summarizes, NULL},
    {"tg_print_opts", "edge", print, "edge 0"},
    {"tg_print_opts", "width", print, "width 0"},
    {"tg_attention_opts", "scale", scores_are_zero, NULL},
    {"tg_attention_opts", "left", no_keys_before, NULL},
    {"tg_attention_opts", "right", no_keys_after, NULL},
    {"tg_context_attention_opts", "inner", groups_of_no_ranks, "inner is 0; it must divide the 2 ranks"},
    {"tg_context_attention_opts", "scale", scores_of_ranks_are_zero, NULL},
    {"tg_context_attention_opts", "left", no_keys_of_ranks_before, NULL},
    {"tg_conv_opts", "stride", conv, "stride 0"},
    {"tg_conv_opts", "dilation", conv, "dilation 0"},
    {"tg_conv_opts", "groups", conv, "groups is 0; it must be 1 or more"},
    {"tg_pool_opts", "stride", pool, "stride 0"},
    {"tg_pool_opts", "dilation", pool, "dilation 0"},
    {"tg_pool_opts", "divisor", mean, "divisor is 0"},
    {"tg_upsample_opts", "scale0", upsample, "scale0 is 0"},
    {"tg_upsample_opts", "scale1", upsample, "scale1 is 0"},
    {"tg_upsample_opts", "scale2", upsample, "scale2 is 0"},
    {"tg_bag_opts", "ignore_index", bag_ignores_0, NULL},
    {"tg_cross_entropy_opts", "ignore_index", cross_entropy_ignores_0, NULL},
    {"tg_loss_opts", "ignore_index", nll_ignores_0, NULL},
    {"tg_vocab_opts", "ignore_index", vocab_ignores_0, NULL},
    {"tg_vocab_opts", "classes", vocab, "classes is 0, expected 1 to 2"},
    {"tg_adamw_opts", "lr", adam_has_no_lr, NULL},
    {"tg_adamw_opts", "beta1", adam_has_no_beta1, NULL},
    {"tg_adamw_opts", "beta2", adam_has_no_beta2, NULL},
    {"tg_adamw_opts", "eps", adam_has_no_eps, NULL},
    {"tg_adamw_opts", "weight_decay", adam_has_no_weight_decay, NULL},
    {"tg_rmsprop_opts", "lr", rmsprop_stands_still, NULL},
    {"tg_rmsprop_opts", "alpha", rmsprop_keeps_nothing, NULL},
    {"tg_rmsprop_opts", "eps", rmsprop_has_no_eps, NULL},
    {"tg_adagrad_opts", "lr", adagrad_stands_still, NULL},
    {"tg_adagrad_opts", "eps", adagrad_has_no_eps, NULL},
    {"tg_lion_opts", "lr", lion_stands_still, NULL},
    {"tg_lion_opts", "beta1", lion_has_no_mean, NULL},
    {"tg_lion_opts", "beta2", lion_forgets, NULL},
    {"tg_muon_opts", "lr", muon_refuses, "lr is 0, expected a finite number above 0"},
    {"tg_muon_opts", "momentum", muon_has_no_momentum, NULL},
    {"tg_muon_opts", "iterations", muon_refuses, "iterations 0"},
    {"tg_muon_opts", "eps", muon_refuses, "eps 0"},
    {"tg_lbfgs_opts", "lr", lbfgs, "lr is 0"},
    {"tg_lbfgs_opts", "iterations", lbfgs, "iterations 0"},
    {"tg_lbfgs_opts", "evaluations", lbfgs, "evaluations 0"},
    {"tg_lbfgs_opts", "history", lbfgs, "history 0"},
    {"tg_lbfgs_opts", "gradient_tolerance", lbfgs, NULL},
    {"tg_lbfgs_opts", "change_tolerance", lbfgs, NULL},
    {"tg_loader_opts", "prefetch", loader, NULL},
    {"tg_loader_opts", "ranks", loader, "ranks 0"},
    {"tg_group_opts", "lr_scale", group_has_no_lr_scale, NULL},
    {"tg_group_opts", "weight_decay", group_has_no_weight_decay, NULL},
    {"tg_group_opts", "beta1", group_has_no_beta1, NULL},
    {"tg_group_opts", "beta2", group_has_no_beta2, NULL},
    {"tg_group_opts", "eps", group_has_no_eps, NULL},
    {"tg_loss_scale", "initial", loss_scale, "initial 0"},
    {"tg_loss_scale", "growth", loss_scale, "growth 0"},
    {"tg_loss_scale", "backoff", loss_scale, "backoff 0"},
    {"tg_loss_scale", "min", loss_scale, "min 0"},
    {"tg_loss_scale", "interval", loss_scale, "interval 0"},
    {"tg_loss_scale", "hysteresis", loss_scale, "hysteresis 0"},
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
    {"tg_vocab_embedding_opts", "reduce_scatter", embedding_is_whole, NULL},
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
    {"tg_lm_config", "rope_base", lm, "rope_base 0"},
    {"tg_lm_config", "init_std", lm, "init_std 0"},
    {"tg_lm_config", "mtp_weight", lm, "mtp_weight is 0"},
    {"tg_lm_config", "mup_base", lm, "mup_base is 0"},
    {"tg_lm_config", "cp_inner", lm, "cp_inner is 0 and cp is 1"},
    {"tg_lm_config", "key", lm_opens_key_0, NULL},
    {"tg_lm_rates", "embed_lr", embeddings_stand_still, NULL},
    {"tg_lm_rates", "embed_min_lr", embeddings_fall_to_0, NULL},
    {"tg_lm_rates", "weight_decay", matrices_do_not_decay, NULL},
    {"tg_lm_save_opts", "file_bytes", save, "file_bytes is 0, expected 1 or more"},
    {"tg_gradcheck_opts", "eps", gradcheck, "expected a step in (0, 1]"},
    {"tg_gradcheck_opts", "atol", no_atol, NULL},
    {"tg_gradcheck_opts", "rtol", no_rtol, NULL},
};
enum { PROBES = sizeof probes / sizeof *probes };

static const tg_field *field_of(const tg_struct *s, const char *name) {
    const tg_field *f = s->fields;
    while (f < s->fields + s->n_fields && strcmp(f->name, name)) f++;
    return f < s->fields + s->n_fields ? f : NULL;
}

START_TEST(a_zero_is_zero_or_refused) {
    for (int i = 0; i < PROBES; i++) {
        _Alignas(max_align_t) char o[512];
        const tg_struct *s = tg_struct_find(probes[i].owner);
        const tg_field *f = s ? field_of(s, probes[i].field) : NULL;
        ck_assert_msg(f && tg_struct_fill(s->name, o, s->size) == TG_OK, "no %s.%s", probes[i].owner, probes[i].field);
        memset(o + f->offset, 0, f->bytes);
        says[0] = 0;
        bool zero = probes[i].use(o);
        if (!says[0]) snprintf(says, sizeof says, "%s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        tg_tape_reset(t);
        tg_draws_step(ctx, i + 1); /* models of one key may draw again */
        if (probes[i].refused)
            ck_assert_msg(strstr(says, probes[i].refused), "%s.%s: %s", s->name, f->name, says);
        else
            ck_assert_msg(zero, "%s.%s: 0 is another number; %s", s->name, f->name, says);
    }
}
END_TEST

static bool is_number(const tg_field *f) {
    return f->kind == TG_FIELD_INT || f->kind == TG_FIELD_INT64 || f->kind == TG_FIELD_UINT64 ||
           f->kind == TG_FIELD_SIZE || f->kind == TG_FIELD_DOUBLE;
}

static bool is_zero(const char *p, size_t n) {
    while (n && !*p) p++, n--;
    return n == 0;
}

static int probes_of(const tg_struct *s, const tg_field *f) {
    int n = 0;
    for (int i = 0; i < PROBES; i++) n += !strcmp(probes[i].owner, s->name) && !strcmp(probes[i].field, f->name);
    return n;
}

START_TEST(every_number_with_another_default_has_a_probe) {
    int n = 0;
    for (int i = 0; i < tg_struct_count(); i++) {
        const tg_struct *s = tg_struct_at(i);
        for (const tg_field *f = s->fields; f < s->fields + s->n_fields; f++) {
            bool probed = is_number(f) && !is_zero((const char *)s->defaults + f->offset, f->bytes);
            ck_assert_msg(probes_of(s, f) == probed, "%s.%s", s->name, f->name);
            n += probed;
        }
    }
    ck_assert_int_eq(n, PROBES);
}
END_TEST

int main(void) {
    ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .seed = 3, .dtype = TG_F64));
    t = tg_tape_new(ctx);
    const TTest *tests[] = {a_zero_is_zero_or_refused, every_number_with_another_default_has_a_probe};
    int failed = tg_check_main("option zeros", tests, sizeof tests / sizeof *tests);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return failed;
}
