/* Layers compared with plain ops on one rank, with every option: the duplicated linear layer, the column layer with a
 * norm, which can be split, and the MLP with a norm. */
#include "one_rank.h"

enum { BIAS = 30 };

/* Option k of run `run`: over runs 0 to 15, any two of 15 options have all four combinations equally often. */
static bool option(int run, int k) { return __builtin_parity((unsigned)run & (unsigned)(k + 1)); }

/* Sets a parameter to values by their places in the whole, because norms and biases begin as constants. k: the number
 * of the values. */
static void fill(const tg_parallel *p, tg_tensor *x, int k) {
    double v[4096];
    tg_placement on = tg_placement_of(x, TG_TP);
    if (!tg_is_alive(x) || tg_ndim(x) != 1) return;
    int64_t n = tg_numel(x), ranks = on.kind == TG_VARYING ? tg_parallel_size(p, TG_TP) : 1, chunks = 1;
    int64_t rank = ranks > 1 ? tg_parallel_rank(p, TG_TP) : 0;
    if (on.kind == TG_VARYING && on.layout == TG_STRIDED) chunks = on.chunks;
    for (int64_t i = 0, rows = n / chunks; i < n; i++) v[i] = at(k, (i / rows * ranks + rank) * rows + i % rows);
    tg_write_f64(x, v, n);
}

static void fill_all(const tg_parallel *p, tg_module *m) {
    for (int i = 0; i < tg_module_param_count(m); i++) fill(p, tg_module_param(m, i, NULL), 40 + i);
}

/* Returns x of this rank: its rows, if it is placed as a shard of dim 0, or the whole. */
static tg_tensor *input(tg_ctx *ctx, const tg_parallel *p, tg_placement at) {
    int n = tg_parallel_size(p, TG_TP), r = tg_parallel_rank(p, TG_TP);
    bool rows = at.kind == TG_VARYING;
    tg_tensor *x = grad_leaf(rows ? part(ctx, X, TG_SHAPE(S, B, H), 0, r, n) : made(ctx, X, TG_SHAPE(S, B, H)));
    tg_place(p, x, TG_TP, at);
    return x;
}

/* Runs backward of a loss of y, and keeps what the nodes saved. */
static tg_status backward(tg_tape *t, tg_tensor *y) {
    tg_tensor *loss = tg_sum(t, tg_mul(t, y, tg_tanh(t, y)), TG_ALL_DIMS, false);
    return tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
}

/* Finalizes the gradients of params[n_params], and checks them and that of x against those of the one rank. */
static tg_status check_gradients(tg_ctx *ctx, const tg_parallel *p, tg_tensor **params, tg_tensor **whole, int n_params,
                                 tg_tensor *x, tg_tensor *x1) {
    int n = tg_parallel_size(p, TG_TP), r = tg_parallel_rank(p, TG_TP);
    RUN(tg_grads_finalize(p, params, n_params, NULL));
    EXPECT(ctx, off(tg_grad_of(x), tg_grad_of(x1), tg_dim(x, 0) < S ? 0 : -1, r, n) < 1e-10);
    for (int i = 0; i < n_params; i++)
        EXPECT(ctx, is_part(tg_grad_of(params[i]), tg_grad_of(whole[i]), TG_TP, r, n, 1e-10));
    return TG_OK;
}

/* ---- The duplicated layer ---- */

typedef struct duplicated_plan {
    int n, run;
} duplicated_plan;

static tg_status duplicated(void *arg, tg_ctx *ctx, tg_comm *world) {
    const duplicated_plan *d = arg;
    const bool sp = option(d->run, 0), skip = option(d->run, 1), no_bias = option(d->run, 2) && !skip,
               given = option(d->run, 3), per_layer = option(d->run, 4), fused = option(d->run, 5),
               later = option(d->run, 6);
    alone a = alone_open();
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = d->n, .sequence_parallel = sp != per_layer));
    tg_placement whole = sp && d->n > 1 ? TG_R : TG_I;
    tg_module *one = tg_nn_linear(a.ctx, H, F, !no_bias, 0.02);
    tg_parallel_linear_opts o = {TG_PARALLEL_LINEAR_DEFAULTS,
                                 .skip_bias_add = skip,
                                 .no_bias = no_bias,
                                 .no_weight = given,
                                 .fused_wgrad = fused,
                                 .sequence_parallel = per_layer ? sp : TG_AUTO,
                                 .deferred_wgrads = later ? TG_NONE : 0};
    tg_tensor *own = NULL, *bias = NULL;
    if (given) own = tg_param_new_placed(p, "w", TG_F64, TG_SHAPE(F, H), 0.02, TG_PLACES({TG_TP, whole}));
    tg_module *m = tg_nn_parallel_linear(p, TG_LINEAR_DUPLICATED, H, F, &o);
    tg_tensor *params[] = {given ? own : tg_module_find(m, "weight"), no_bias ? NULL : tg_module_find(m, "bias")},
              *ones[] = {tg_module_find(one, "weight"), no_bias ? NULL : tg_module_find(one, "bias")};
    if (!no_bias) fill(p, params[1], BIAS), fill(a.p, ones[1], BIAS);
    EXPECT(ctx, tg_placement_of(params[0], TG_TP).kind == whole.kind);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = input(ctx, p, sp ? TG_SHARD(0) : TG_I), *x1 = input(a.ctx, a.p, TG_I),
              *y1 = tg_module_forward(one, a.t, x1);
    tg_tensor *y = given ? tg_parallel_linear_apply(m, t, x, own, 0) : tg_parallel_linear_pair(m, t, x, &bias);
    EXPECT(ctx, given || bias == (skip ? params[1] : NULL));
    if (skip) y = tg_add(t, y, params[1]);
    EXPECT(ctx, off(y, y1, tg_dim(y, 0) < S ? 0 : -1, tg_comm_rank(world), d->n) < 1e-12);
    RUN(backward(t, y));
    backward(a.t, y1);
    EXPECT(ctx, tg_has_grad(params[0]) == !later);
    RUN(tg_wgrads_drain(m));
    RUN(check_gradients(ctx, p, params, ones, no_bias ? 1 : 2, x, x1));
    tg_module_free(m);
    tg_module_free(one);
    tg_tape_free(t);
    if (own) tg_drop(own);
    tg_drop(x);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

START_TEST(a_duplicated_layer_is_a_linear_layer) {
    for (int n = 1; n <= 4; n *= 2)
        for (int run = 0; run < 16; run++) on_ranks(n, duplicated, &(duplicated_plan){n, run});
}
END_TEST

/* ---- The MLP with a norm ---- */

typedef struct mlp_plan {
    int n, run;
    tg_mlp_activation activation;
} mlp_plan;

static tg_norm_mlp_opts mlp_opts(const mlp_plan *d) {
    return (tg_norm_mlp_opts){TG_NORM_MLP_DEFAULTS,
                              .activation = d->activation,
                              .no_bias = option(d->run, 1),
                              .rms_norm = option(d->run, 2),
                              .zero_centered = option(d->run, 3),
                              .norm_eps = option(d->run, 4) ? 1e-2 : 1e-5,
                              .std = 0.3,
                              .out_std = 0.2,
                              .sequence_parallel = option(d->run, 5) ? option(d->run, 0) : TG_AUTO,
                              .fused_wgrad = option(d->run, 6),
                              .deferred_wgrads = option(d->run, 7) ? TG_NONE : 0,
                              .chunks = option(d->run, 0) && option(d->run, 8) ? 2 : 1};
}

static tg_tensor *activate(tg_tape *t, tg_tensor *h, tg_mlp_activation activation) {
    switch (activation) {
    case TG_MLP_GELU:
        return tg_gelu(t, h);
    case TG_MLP_GELU_TANH:
        return tg_gelu_tanh(t, h);
    case TG_MLP_RELU:
        return tg_relu(t, h);
    case TG_MLP_SILU:
        return tg_silu(t, h);
    default:
        return tg_swiglu(t, tg_slice(t, h, -1, 0, F, 1), tg_slice(t, h, -1, F, 2 * F, 1));
    }
}

/* The MLP of one rank, of plain ops. */
static tg_tensor *plain_mlp(tg_tape *t, tg_tensor *x, tg_module *m, const tg_norm_mlp_opts *o) {
#define PARAM(path) tg_module_find(m, path)
    tg_tensor *w = PARAM("linear_fc1.layer_norm_weight"), *b = NULL, *b1 = NULL, *b2 = NULL;
    if (!o->rms_norm) b = PARAM("linear_fc1.layer_norm_bias");
    if (!o->no_bias) b1 = PARAM("linear_fc1.bias"), b2 = PARAM("linear_fc2.bias");
    if (o->zero_centered) w = tg_add_scalar(t, w, 1);
    tg_tensor *n = o->rms_norm ? tg_rms_norm(t, x, w, o->norm_eps) : tg_layer_norm(t, x, w, b, o->norm_eps);
    tg_tensor *h = tg_linear(t, n, PARAM("linear_fc1.weight"), b1);
    return tg_linear(t, activate(t, h, o->activation), PARAM("linear_fc2.weight"), b2);
}

static tg_status norm_mlp(void *arg, tg_ctx *ctx, tg_comm *world) {
    const mlp_plan *d = arg;
    const bool sp = option(d->run, 0), per_layer = option(d->run, 5);
    tg_norm_mlp_opts o = mlp_opts(d), o1 = o;
    o1.chunks = 1;
    alone a = alone_open();
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = d->n, .sequence_parallel = sp != per_layer));
    tg_module *m = tg_nn_norm_mlp(p, H, F, &o), *one = tg_nn_norm_mlp(a.p, H, F, &o1);
    fill_all(p, m);
    fill_all(a.p, one);
    tg_tensor *params[8], *ones[8];
    int count = tg_module_param_count(m);
    for (int i = 0; i < count; i++) {
        params[i] = tg_module_param(m, i, NULL), ones[i] = tg_module_param(one, i, NULL);
        EXPECT(ctx, is_part(params[i], ones[i], TG_TP, tg_comm_rank(world), d->n, 0));
    }
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = input(ctx, p, sp ? TG_SHARD(0) : TG_I), *x1 = input(a.ctx, a.p, TG_I);
    tg_tensor *y = tg_module_forward(m, t, x), *y1 = plain_mlp(a.t, x1, one, &o);
    EXPECT(ctx, off(y, y1, tg_dim(y, 0) < S ? 0 : -1, tg_comm_rank(world), d->n) < 1e-11);
    RUN(backward(t, y));
    backward(a.t, y1);
    RUN(tg_wgrads_drain(m));
    RUN(check_gradients(ctx, p, params, ones, count, x, x1));
    tg_module_free(m);
    tg_module_free(one);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

START_TEST(an_mlp_with_a_norm_is_plain_ops) {
    for (int n = 1; n <= 4; n *= 2)
        for (int run = 0; run < 16; run++)
            for (int k = 0; k < 2; k++) { /* swiglu, and one of the others */
                mlp_plan d = {n, run, k ? TG_MLP_SWIGLU : (tg_mlp_activation)(run % TG_MLP_SWIGLU)};
                on_ranks(n, norm_mlp, &d);
            }
}
END_TEST

/* Returns the bytes that all nodes of the tape keep. */
static int64_t kept(tg_tape *t) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < tg_tape_nodes(t); i++) bytes += tg_node_saved_bytes(tg_tape_node(t, i));
    return bytes;
}

static tg_status mlp_keeps(void *arg, tg_ctx *ctx, tg_comm *world) {
    const int64_t n = tg_comm_size(world), rows = S * B / n, x = 8 * rows * H, inner = 8 * S * B * F / n;
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = (int)n, .sequence_parallel = true));
    tg_module *m = tg_nn_norm_mlp(p, H, F, TG_NORM_MLP(.activation = TG_MLP_GELU_TANH)),
              *gated = tg_nn_norm_mlp(p, H, F, TG_NORM_MLP(.activation = TG_MLP_SWIGLU, .rms_norm = true));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *in = tg_scale(t, input(ctx, p, TG_SHARD(0)), 2);
    tg_module_forward(m, t, in);
    EXPECT(ctx, kept(t) == x + 2 * 8 * rows + 2 * inner);
    tg_tape_reset(t);
    in = tg_scale(t, input(ctx, p, TG_SHARD(0)), 2);
    tg_module_forward(gated, t, in);
    EXPECT(ctx, kept(t) == x + 8 * rows + 3 * inner);
    tg_module_free(m);
    tg_module_free(gated);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(an_mlp_with_a_norm_keeps_what_the_table_says) {
    for (int n = 1; n <= 4; n *= 2) on_ranks(n, mlp_keeps, NULL);
}
END_TEST

/* ---- The column layer with a norm, and its split ---- */

typedef struct split_plan {
    int n, run;
} split_plan;

static tg_parallel_linear_opts split_opts(int run) {
    return (tg_parallel_linear_opts){TG_PARALLEL_LINEAR_DEFAULTS,
                                     .rms_norm = option(run, 1),
                                     .zero_centered = option(run, 2),
                                     .gather_output = option(run, 3),
                                     .no_bias = option(run, 4),
                                     .strides = option(run, 5) ? 2 : 1,
                                     .norm_eps = option(run, 6) ? 1e-2 : 1e-5,
                                     .no_dgrad_reduce = !option(run, 0) && option(run, 7)};
}

/* Returns whether the gradients of two leaves, or this rank's shares of them, have the same bits. */
static bool same_shares(tg_tensor *a, tg_tensor *b) {
    tg_tensor *x = tg_grad_share(a), *y = tg_grad_share(b);
    bool same = off(x, y, -1, 0, 1) == 0;
    tg_drop(x);
    tg_drop(y);
    return same;
}

/* Compares the gradient of a parameter of the whole layer with that of its copy. */
static tg_status same_gradient(tg_ctx *ctx, tg_module *fused, const char *name, tg_module *copy, const char *as) {
    tg_tensor *a = tg_module_find(fused, name), *b = tg_module_find(copy, as);
    EXPECT(ctx, tg_placement_of(a, TG_TP).kind == tg_placement_of(b, TG_TP).kind);
    EXPECT(ctx, tg_requires_grad(a) == tg_requires_grad(b));
    if (tg_requires_grad(a)) EXPECT(ctx, same_shares(a, b));
    return TG_OK;
}

static tg_status split(void *arg, tg_ctx *ctx, tg_comm *world) {
    const split_plan *d = arg;
    const bool sp = option(d->run, 0), frozen = option(d->run, 8);
    tg_parallel_linear_opts o = split_opts(d->run);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = d->n, .sequence_parallel = sp));
    tg_module *fused = tg_nn_norm_linear(p, H, F, &o), *norm, *linear;
    fill_all(p, fused);
    if (frozen) tg_set_requires_grad(tg_module_find(fused, "weight"), false);
    RUN(tg_norm_linear_split(fused, &norm, &linear));
    EXPECT(ctx, !strcmp(tg_module_kind(linear), "column_linear"));
    EXPECT(ctx, tg_module_param_count(norm) == (o.rms_norm ? 1 : 2));
    EXPECT(ctx, tg_module_param_count(fused) == tg_module_param_count(norm) + tg_module_param_count(linear));
    tg_tensor *x[2], *y[2];
    tg_tape *t[2];
    for (int k = 0; k < 2; k++) {
        t[k] = tg_tape_new(ctx);
        x[k] = input(ctx, p, sp ? TG_SHARD(0) : o.no_dgrad_reduce ? TG_R : TG_I);
        y[k] = k ? tg_module_forward(linear, t[k], tg_module_forward(norm, t[k], x[k]))
                 : tg_module_forward(fused, t[k], x[k]);
        RUN(backward(t[k], y[k]));
    }
    EXPECT(ctx, off(y[1], y[0], -1, 0, 1) == 0 && same_shares(x[0], x[1]));
    RUN(same_gradient(ctx, fused, "layer_norm_weight", norm, "weight"));
    if (!o.rms_norm) RUN(same_gradient(ctx, fused, "layer_norm_bias", norm, "bias"));
    RUN(same_gradient(ctx, fused, "weight", linear, "weight"));
    if (!o.no_bias) RUN(same_gradient(ctx, fused, "bias", linear, "bias"));
    tg_tensor *w = tg_module_find(linear, "weight");
    tg_module_free(fused);
    EXPECT(ctx, tg_is_alive(w));
    tg_module_free(norm);
    tg_module_free(linear);
    for (int k = 0; k < 2; k++) tg_tape_free(t[k]), tg_drop(x[k]);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_layer_with_a_norm_equals_its_parts) {
    for (int n = 1; n <= 4; n *= 2)
        for (int run = 0; run < 16; run++) on_ranks(n, split, &(split_plan){n, run});
}
END_TEST

/* Parameters have Megatron-Core's names, the norm begins as the identity, and a call may pass the weight. */
static tg_status whole_layer(void *arg, tg_ctx *ctx, tg_comm *world) {
    static const char *const names[] = {"layer_norm_weight", "layer_norm_bias", "weight", "bias"};
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_module *m = tg_nn_norm_linear(p, H, F, TG_PARALLEL_LINEAR(.deferred_wgrads = TG_NONE)), *norm, *linear,
              *none = tg_nn_norm_linear(p, H, F, TG_PARALLEL_LINEAR(.no_weight = true, .zero_centered = true));
    tg_tensor *x = input(ctx, p, TG_I), *w = tg_module_find(m, "weight");
    double v[H];
    for (int i = 0; i < 4; i++) {
        const char *path;
        EXPECT(ctx, tg_module_param(m, i, &path) && !strcmp(path, names[i]));
    }
    for (int i = 0; i < 2; i++) {
        RUN(tg_read_f64(tg_module_find(i ? none : m, "layer_norm_weight"), v, H));
        for (int k = 0; k < H; k++) EXPECT(ctx, v[k] == !i);
    }
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *y = tg_module_forward(m, t, x);
    EXPECT(ctx, off(tg_parallel_linear_apply(none, t, x, w, -1), y, -1, 0, 1) == 0);
    EXPECT(ctx, tg_dim(tg_parallel_linear_apply(none, t, x, w, 1), -1) == F);
    RUN(backward(t, y));
    EXPECT(ctx, !tg_has_grad(w));
    RUN(tg_wgrads_drain(m));
    EXPECT(ctx, tg_has_grad(w));
    RUN(tg_norm_linear_split(none, &norm, &linear));
    EXPECT(ctx, off(tg_parallel_linear_apply(linear, t, tg_module_forward(norm, t, x), w, -1), y, -1, 0, 1) == 0);
    tg_module *all[] = {m, none, norm, linear};
    for (int i = 0; i < 4; i++) tg_module_free(all[i]);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_layer_with_a_norm_has_names_and_options_of_a_column_layer) { on_ranks(2, whole_layer, NULL); }
END_TEST

/* ---- Refused calls ---- */

static tg_status wrong(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_module *column = tg_nn_column_linear(p, H, F, NULL), *norm, *linear;
#define DUPLICATED(...) tg_nn_parallel_linear(p, TG_LINEAR_DUPLICATED, H, F, TG_PARALLEL_LINEAR(__VA_ARGS__))
    REFUSED(ctx, TG_ERR_ARGUMENT, "mode is 3, expected TG_LINEAR_COLUMN, _ROW or _DUPLICATED",
            tg_nn_parallel_linear(p, (tg_linear_mode)3, H, F, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "tg_nn_parallel_linear: in is 7, expected a multiple of the 2 ranks of tp",
            tg_nn_parallel_linear(p, TG_LINEAR_ROW, 7, H, NULL));
    REFUSED(ctx, TG_ERR_ARGUMENT, "gather_output is set, but it is an option of the column layer only",
            DUPLICATED(.gather_output = true));
    REFUSED(ctx, TG_ERR_ARGUMENT, "no_dgrad_reduce is set, but it is an option of the column layer only",
            DUPLICATED(.no_dgrad_reduce = true));
    REFUSED(ctx, TG_ERR_ARGUMENT, "input_is_whole is set, but it is an option of the row layer only",
            DUPLICATED(.input_is_whole = true));
    REFUSED(ctx, TG_ERR_ARGUMENT, "strides is set, but it is an option of the column and the row layer only",
            DUPLICATED(.strides = 2));
    REFUSED(ctx, TG_ERR_ARGUMENT, "axis is set, but it is an option of the column and the row layer only",
            DUPLICATED(.axis = TG_DP));
    REFUSED(ctx, TG_ERR_ARGUMENT, "expert is set, but it is an option of the column and the row layer only",
            DUPLICATED(.expert = true));
    REFUSED(ctx, TG_ERR_ARGUMENT, "zero_centered is set, but it is an option of the layer with a norm only",
            tg_nn_row_linear(p, F, H, TG_PARALLEL_LINEAR(.zero_centered = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "rms_norm is set, but it is an option of the layer with a norm only",
            tg_nn_column_linear(p, F, H, TG_PARALLEL_LINEAR(.rms_norm = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "norm_eps is set, but it is an option of the layer with a norm only",
            DUPLICATED(.norm_eps = 0));
    REFUSED(ctx, TG_ERR_ARGUMENT, "tg_nn_norm_linear: expert is set",
            tg_nn_norm_linear(p, H, F, TG_PARALLEL_LINEAR(.expert = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "norm_eps is -1, expected a finite number, 0 or more",
            tg_nn_norm_linear(p, H, F, TG_PARALLEL_LINEAR(.norm_eps = -1)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "the module is a \"column_linear\", expected one made by tg_nn_norm_linear",
            tg_norm_linear_split(column, &norm, &linear));
    REFUSED(ctx, TG_ERR_SHAPE, "tg_nn_norm_mlp: ffn is 9, expected a multiple of the 2 ranks of tp",
            tg_nn_norm_mlp(p, H, 9, NULL));
    REFUSED(ctx, TG_ERR_ARGUMENT, "activation is 5, expected TG_MLP_GELU to TG_MLP_SWIGLU",
            tg_nn_norm_mlp(p, H, F, TG_NORM_MLP(.activation = (tg_mlp_activation)5)));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = input(ctx, p, TG_I);
    tg_module *m = DUPLICATED(.no_bias = true);
    REFUSED(ctx, TG_ERR_ARGUMENT, "only a column layer can gather its output",
            tg_parallel_linear_apply(m, t, x, NULL, 1));
    tg_module_free(m);
    tg_module_free(column);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_options_say_what_was_expected) { on_ranks(2, wrong, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {a_duplicated_layer_is_a_linear_layer,
                                  an_mlp_with_a_norm_is_plain_ops,
                                  an_mlp_with_a_norm_keeps_what_the_table_says,
                                  a_layer_with_a_norm_equals_its_parts,
                                  a_layer_with_a_norm_has_names_and_options_of_a_column_layer,
                                  wrong_options_say_what_was_expected};
    return tg_check_main("norm_layers", tests, sizeof tests / sizeof *tests);
}
