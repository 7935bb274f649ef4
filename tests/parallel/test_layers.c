/* Parallel layers on 1, 2 and 4 ranks compared with the same program on one rank: bits of parameters, values,
 * gradients. */
#include "one_rank.h"

static tg_status initial(void *arg, tg_ctx *ctx, tg_comm *world) {
    const layout *l = arg;
    int r = tg_comm_rank(world), n = l->tp;
    alone a = alone_open();
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n, .sequence_parallel = l->sp));
    tg_parallel_linear_opts plain = *TG_PARALLEL_LINEAR(), three = *TG_PARALLEL_LINEAR(.strides = 3),
                            zeros = *TG_PARALLEL_LINEAR(.no_init = true);
#define BOTH(call_p) {call_p(p), call_p(a.p)}
#define COLUMN(q)    tg_nn_column_linear(q, H, F, &plain)
#define QKV(q)       tg_nn_column_linear(q, H, 3 * F, &three)
#define ROW(q)       tg_nn_row_linear(q, F, H, &plain)
#define TABLE(q)     tg_nn_vocab_embedding(q, V, H, 0.5, NULL)
#define ZEROS(q)     tg_nn_row_linear(q, F, H, &zeros)
    tg_module *m[][2] = {BOTH(COLUMN), BOTH(QKV), BOTH(ROW), BOTH(TABLE), BOTH(ZEROS)};
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < tg_module_param_count(m[i][0]); k++) {
            const char *path;
            tg_tensor *mine = tg_module_param(m[i][0], k, &path), *whole = tg_module_param(m[i][1], k, NULL);
            EXPECT(ctx, is_part(mine, whole, TG_TP, r, n, 0));
            EXPECT(ctx, tg_shape_of(whole).dim[0] == tg_global_shape(mine).dim[0]);
            double v[8192], sum = 0;
            tg_read_f64(mine, v, tg_numel(mine));
            for (int64_t j = 0; j < tg_numel(mine); j++) sum += fabs(v[j]);
            EXPECT(ctx, (sum == 0) == (!strcmp(path, "bias") || i == 4));
            int dim, stride;
            bool is = tg_tp_attributes(mine, &dim, &stride);
            bool bias_of_row = !strcmp(path, "bias") && (i == 2 || i == 4);
            EXPECT(ctx, is == (n > 1 && !bias_of_row));
            EXPECT(ctx, !is || (dim == ((i == 2 || i == 4) ? 1 : 0) && stride == (i == 1 ? 3 : 1)));
            EXPECT(ctx, tg_is_tp_duplicate(p, mine) == (n > 1 && bias_of_row && r > 0));
            if (bias_of_row && n > 1)
                EXPECT(ctx, tg_placement_of(mine, TG_TP).kind == (l->sp ? TG_REPLICATED : TG_INVARIANT));
        }
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 2; k++) tg_module_free(m[i][k]);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

START_TEST(parameters_are_parts_of_one_rank_s) {
    for (int n = 1; n <= 4; n *= 2)
        for (int sp = 0; sp < 2; sp++) on_ranks(n, initial, &(layout){n, sp});
}
END_TEST

/* ---- An MLP with every option ---- */

typedef struct mlp_plan {
    layout l;    /* tp: the ranks of the axis */
    bool gather; /* the column layer gathers and the row layer scatters */
    bool skip;   /* biases are added by the caller */
    bool no_bias, fused, deferred;
    bool given;     /* weights are passed to each call */
    bool per_layer; /* the layers ask for sequence parallelism or not, and the grid for the opposite */
    tg_axis axis;
    int tp; /* ranks of tp, if the axis is another; 0: 1 */
} mlp_plan;

static tg_parallel *mlp_grid(tg_comm *world, const mlp_plan *o) {
    int n = o->l.tp, tp = o->axis == TG_TP ? n : o->tp ? o->tp : 1, cp = o->axis == TG_CP ? n : 1;
    return tg_parallel_new(world, TG_PARALLEL(.tp = tp, .cp = cp, .sequence_parallel = o->l.sp != o->per_layer));
}

typedef struct mlp {
    tg_module *up, *down;
    tg_tensor *w[2]; /* of no module, if weights are passed */
    tg_tensor *params[4];
    int n;
} mlp;

static mlp mlp_new(const tg_parallel *p, const mlp_plan *o) {
    tg_parallel_linear_opts c = {TG_PARALLEL_LINEAR_DEFAULTS,
                                 .gather_output = o->gather,
                                 .skip_bias_add = o->skip,
                                 .no_bias = o->no_bias,
                                 .fused_wgrad = o->fused,
                                 .deferred_wgrads = o->deferred ? TG_NONE : 0,
                                 .no_weight = o->given,
                                 .axis = o->axis,
                                 .sequence_parallel = o->per_layer ? o->l.sp : TG_AUTO};
    if (!o->given) c.std = 0.3;
    tg_parallel_linear_opts r = c;
    r.gather_output = false;
    r.input_is_whole = o->gather;
    mlp m = {0};
    if (o->given) {
        m.w[0] = tg_param_new_placed(p, "up", TG_F64, TG_SHAPE(F, H), 0.3, TG_PLACES({o->axis, TG_SHARD(0)}));
        m.w[1] = tg_param_new_placed(p, "down", TG_F64, TG_SHAPE(H, F), 0.3, TG_PLACES({o->axis, TG_SHARD(1)}));
    }
    m.up = tg_nn_column_linear(p, H, F, &c);
    m.down = tg_nn_row_linear(p, F, H, &r);
    for (int i = 0; i < 2; i++) {
        tg_module *layer = i ? m.down : m.up;
        m.params[m.n++] = o->given ? m.w[i] : tg_module_find(layer, "weight");
        if (!o->no_bias) m.params[m.n++] = tg_module_find(layer, "bias");
    }
    for (int i = 0; i < m.n; i++) { /* biases begin at zero, which would hide their effect */
        double v[4096];
        if (tg_ndim(m.params[i]) != 1 || tg_ctx_status(tg_ctx_of(m.params[i])) != TG_OK) continue;
        int64_t n = tg_numel(m.params[i]), of = tg_global_shape(m.params[i]).dim[0];
        int64_t first = n == of ? 0 : n * tg_parallel_rank(p, o->axis);
        for (int64_t k = 0; k < n; k++) v[k] = at(40 + i, first + k);
        tg_write_f64(m.params[i], v, n);
    }
    return m;
}

/* Runs a layer. A bias that the layer skips is added here: the pair's, or the module's if the weight is passed. */
static tg_tensor *call(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *w, const mlp_plan *o) {
    tg_tensor *bias = o->skip ? tg_module_find(m, "bias") : NULL;
    tg_tensor *y = w ? tg_parallel_linear_apply(m, t, x, w, -1) : tg_parallel_linear_pair(m, t, x, &bias);
    return bias ? tg_add(t, y, bias) : y;
}

static tg_tensor *mlp_loss(mlp *m, tg_tape *t, tg_tensor *x, const mlp_plan *o) {
    tg_tensor *h = call(m->up, t, x, m->w[0], o);
    tg_tensor *y = call(m->down, t, tg_gelu(t, h), m->w[1], o);
    return tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
}

static void mlp_free(mlp *m) {
    tg_module_free(m->up);
    tg_module_free(m->down);
}

static tg_status mlp_on_ranks(void *arg, tg_ctx *ctx, tg_comm *world) {
    const mlp_plan *o = arg;
    int n = o->l.tp;
    bool sp = o->l.sp && n > 1;
    alone a = alone_open();
    tg_parallel *p = mlp_grid(world, o);
    int r = tg_parallel_rank(p, o->axis);
    EXPECT(ctx, n == tg_parallel_size(p, o->axis));
    mlp mine = mlp_new(p, o), one = mlp_new(a.p, o);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(sp ? part(ctx, X, TG_SHAPE(S, B, H), 0, r, n) : made(ctx, X, TG_SHAPE(S, B, H)));
    tg_tensor *x1 = grad_leaf(made(a.ctx, X, TG_SHAPE(S, B, H)));
    tg_place(p, x, o->axis, sp ? TG_SHARD(0) : TG_I);
    if (o->axis != TG_TP) tg_place(p, x, TG_TP, TG_I);
    for (int step = 0; step < 2; step++) { /* gradients accumulate, and deferred ones are kept over both */
        tg_tensor *loss = mlp_loss(&mine, t, x, o), *loss1 = mlp_loss(&one, a.t, x1, o);
        double sum = tg_item(loss), whole = tg_item(loss1);
        if (sp) {
            tg_tensor *s = tg_from_host(ctx, TG_F64, TG_SHAPE(), &sum);
            tg_comm_all_reduce(tg_parallel_comm(p, o->axis), s, s, TG_REDUCE_SUM);
            sum = tg_item(s);
            tg_drop(s);
        }
        EXPECT(ctx, fabs(sum - whole) < 1e-9 * fabs(whole));
        tg_backward(t, loss);
        tg_backward(a.t, loss1);
        tg_tape_reset(t);
        tg_tape_reset(a.t);
    }
    RUN(tg_wgrads_drain(mine.up));
    RUN(tg_wgrads_drain(mine.down));
    tg_wgrads_drain(one.up);
    tg_wgrads_drain(one.down);
    RUN(tg_grads_finalize(p, mine.params, mine.n, NULL));
    EXPECT(ctx, off(tg_grad_of(x), tg_grad_of(x1), sp ? 0 : -1, r, n) < 1e-9);
    for (int i = 0; i < mine.n; i++) {
        tg_tensor *g = tg_grad_of(mine.params[i]), *g1 = tg_grad_of(one.params[i]);
        tg_placement at = tg_placement_of(mine.params[i], o->axis);
        EXPECT(ctx, off(g, g1, at.kind == TG_VARYING ? at.dim : -1, r, n) < 1e-9);
    }
    mlp_free(&mine);
    mlp_free(&one);
    tg_tape_free(t);
    for (int i = 0; o->given && i < 2; i++) tg_drop(mine.w[i]), tg_drop(one.w[i]);
    tg_drop(x);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

START_TEST(an_mlp_with_every_option) {
    for (int n = 1; n <= 4; n *= 2)
        for (int i = 0; i < 128; i++) {
            mlp_plan o = {.l = {n, i & 1}, .gather = i & 2, .skip = i & 4, .no_bias = i & 8, .fused = i & 16,
                          .deferred = i & 32, .given = i & 64};
            if (o.gather && (o.l.sp || (o.skip && o.given))) continue;
            if (o.skip && o.no_bias) continue;
            if (n == 4 && (i * 37 + 11) % 5) continue; /* a part of the cases is enough */
            on_ranks(n, mlp_on_ranks, &o);
        }
}
END_TEST

/* A layer has sequence parallelism of its own, and other ranks than tp. */
START_TEST(an_mlp_of_another_group) {
    static const tg_axis axes[] = {TG_TP, TG_CP, TG_DP};
    for (int n = 1; n <= 4; n++)
        for (int i = 0; i < 16 * 3; i++) {
            mlp_plan o = {.l = {n, i & 1}, .skip = i & 2, .given = i & 4, .deferred = i & 8, .axis = axes[i / 16]};
            o.per_layer = o.axis == TG_TP || o.l.sp;
            if (n == 3 && o.l.sp) continue; /* 8 positions are not divisible */
            on_ranks(n, mlp_on_ranks, &o);
            if (n != 2 || o.axis == TG_TP) continue;
            o.tp = 2; /* and tp ranks that do the same */
            o.per_layer = o.l.sp;
            on_ranks(4, mlp_on_ranks, &o);
        }
}
END_TEST

/* The pair of a layer that adds its bias, of one without a bias, and of a module that is no parallel layer. */
static tg_status pairs(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = made(ctx, X, TG_SHAPE(S, H)), *bias;
    tg_place(p, x, TG_TP, TG_I);
    tg_module *m[] = {tg_nn_column_linear(p, H, F, NULL),
                      tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.no_bias = true)),
                      tg_nn_linear(ctx, H, F, true, 0.1)};
    for (int i = 0; i < 3; i++) {
        bias = x;
        tg_tensor *y = tg_parallel_linear_pair(m[i], t, x, &bias);
        EXPECT(ctx, !bias && off(y, tg_module_forward(m[i], t, x), -1, 0, 1) == 0);
        tg_module_free(m[i]);
    }
    tg_module *own = tg_nn_row_linear(p, H, F, TG_PARALLEL_LINEAR(.skip_bias_add = true, .input_is_whole = true));
    tg_parallel_linear_pair(own, t, x, &bias);
    EXPECT(ctx, bias == tg_module_find(own, "bias"));
    tg_module_free(own);
    own = tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.skip_bias_add = true, .gather_output = true));
    tg_tensor *y = tg_parallel_linear_pair(own, t, x, &bias);
    EXPECT(ctx, tg_dim(y, 1) == F && tg_dim(bias, 0) == F);
    tg_module_free(own);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_pair_of_any_layer) { on_ranks(2, pairs, NULL); }
END_TEST

/* Within a recomputation ranks communicate again in backward, and deferred gradients wait. */
typedef struct again {
    mlp *m;
    const mlp_plan *o;
} again;

static tg_status mlp_again(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const again *s = state;
    (void)n_in, (void)n_out;
    out[0] = mlp_loss(s->m, t, in[0], s->o);
    return TG_OK;
}

static tg_status recomputed(void *arg, tg_ctx *ctx, tg_comm *world) {
    const mlp_plan *o = arg;
    int r = tg_comm_rank(world), n = o->l.tp;
    tg_parallel *p = mlp_grid(world, o);
    mlp m = mlp_new(p, o);
    again state = {&m, o};
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *grads[2][5] = {{NULL}};
    for (int k = 0; k < 2; k++) {
        tg_tensor *x = grad_leaf(o->l.sp ? part(ctx, X, TG_SHAPE(S, B, H), 0, r, n) : made(ctx, X, TG_SHAPE(S, B, H)));
        tg_place(p, x, TG_TP, o->l.sp ? TG_SHARD(0) : TG_I);
        tg_tensor *loss;
        if (k)
            tg_recompute(t, mlp_again, &state, &x, 1, &loss, 1, NULL);
        else
            loss = mlp_loss(&m, t, x, o);
        RUN(tg_backward(t, loss));
        RUN(tg_wgrads_drain(m.up));
        RUN(tg_wgrads_drain(m.down));
        RUN(tg_grads_finalize(p, m.params, m.n, NULL));
        grads[k][0] = tg_keep(tg_grad_of(x));
        for (int i = 0; i < m.n; i++) {
            tg_tensor *g = tg_zeros(ctx, TG_F64, tg_shape_of(m.params[i]));
            double v[4096];
            tg_read_f64(tg_grad_of(m.params[i]), v, tg_numel(g));
            tg_write_f64(g, v, tg_numel(g));
            grads[k][1 + i] = g;
            tg_zero_grad(m.params[i]);
        }
        tg_tape_reset(t);
    }
    for (int i = 0; i <= m.n; i++) EXPECT(ctx, off(grads[1][i], grads[0][i], -1, 0, 1) == 0);
    mlp_free(&m);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(layers_in_a_recomputation) {
    for (int i = 0; i < 4; i++) on_ranks(2, recomputed, &(mlp_plan){.l = {2, i & 1}, .deferred = i & 2});
}
END_TEST

/* ---- Refused calls ---- */

static tg_status wrong(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .sequence_parallel = true));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(4, H)), *w = tg_zeros(ctx, TG_F64, TG_SHAPE(3, 4));
    tg_place(p, x, TG_TP, TG_SHARD(0));
    REFUSED(ctx, TG_ERR_SHAPE, "out is 9, expected a multiple of the 2 ranks of tp",
            tg_nn_column_linear(p, H, 9, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "in is 7, expected a multiple of the 2 ranks of tp", tg_nn_row_linear(p, 7, H, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "vocab is 15, expected a multiple", tg_nn_vocab_embedding(p, 15, H, 1, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "strides is 5", tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.strides = 5)));
    REFUSED(ctx, TG_ERR_STATE, "under sequence parallelism x is not the same",
            tg_nn_row_linear(p, F, H, TG_PARALLEL_LINEAR(.input_is_whole = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "an option of the column layer",
            tg_nn_row_linear(p, F, H, TG_PARALLEL_LINEAR(.gather_output = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "an option of the row layer",
            tg_nn_column_linear(p, F, H, TG_PARALLEL_LINEAR(.input_is_whole = true)));
    REFUSED(ctx, TG_ERR_SHAPE,
            "the weight given is f64[3, 4], expected [12, 12]: [out / tp, in] of a layer from 12 to 24",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.weight = w)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "no_weight is set",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.weight = w, .no_weight = true)));
    REFUSED(ctx, TG_ERR_STATE, "set skip_bias_add or no_bias",
            tg_nn_row_linear(p, F, H, TG_PARALLEL_LINEAR(.expert = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "no_dgrad_reduce is set, but under sequence parallelism",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.no_dgrad_reduce = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "there is none to skip",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.skip_bias_add = true, .no_bias = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "the token dispatch gathers the rows of an expert",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.expert = true, .sequence_parallel = 1)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "axis is 3 (pp), expected TG_TP, TG_CP or TG_DP",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.axis = TG_PP)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "axis is 4 (etp), expected TG_TP, TG_CP or TG_DP",
            tg_nn_vocab_embedding(p, V, H, 1, TG_VOCAB_EMBEDDING(.axis = TG_ETP)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "axis is 2 (dp), but expert is set; expected TG_TP or TG_ETP",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.expert = true, .axis = TG_DP)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "deferred_wgrads is -3",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.deferred_wgrads = -3)));
    tg_module *m = tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.no_weight = true));
    REFUSED(ctx, TG_ERR_ARGUMENT, "this call gives none", tg_module_forward(m, t, x));
    REFUSED(ctx, TG_ERR_SHAPE, "the weight given is f64[3, 4], expected [12, 12]",
            tg_parallel_linear_apply(m, t, x, w, -1));
    tg_module_free(m);
    tg_tape_free(t);
    tg_drop(x);
    tg_drop(w);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_options_say_what_was_expected) { on_ranks(2, wrong, NULL); }
END_TEST

/* ---- Options of a call: a gathered output; an expert's layers do not communicate ---- */

static tg_status on_request(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = made(ctx, X, TG_SHAPE(S, B, H));
    tg_place(p, x, TG_TP, TG_I);
    tg_module *m = tg_nn_column_linear(p, H, F, NULL),
              *g = tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.gather_output = true));
    tg_tensor *part_ = tg_parallel_linear_apply(m, t, x, NULL, -1), *all = tg_parallel_linear_apply(m, t, x, NULL, 1);
    EXPECT(ctx, tg_dim(part_, -1) == F / 2 && tg_dim(all, -1) == F);
    EXPECT(ctx, off(part_, all, 2, tg_comm_rank(world), 2) == 0);
    EXPECT(ctx, tg_dim(tg_parallel_linear_apply(g, t, x, NULL, -1), -1) == F);
    EXPECT(ctx, tg_dim(tg_parallel_linear_apply(g, t, x, NULL, 0), -1) == F / 2);
    tg_tensor *w = tg_module_find(m, "weight");
    tg_module *tied = tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.weight = w, .no_bias = true));
    EXPECT(ctx, tg_module_find(tied, "weight") == w && tg_module_param_count(tied) == 1);
    tg_module_free(m);
    EXPECT(ctx, tg_is_alive(w));
    tg_module_free(tied);
    tg_module_free(g);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(gathered_on_request_and_tied) { on_ranks(2, on_request, NULL); }
END_TEST

/* With the streams of TG_RNG_MEGATRON a layer over dp must not draw its part. A weight of standard deviation 0 draws
 * nothing, and of an orthogonal one every rank draws the whole. */
static tg_status drawn_over_dp(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.rng = TG_RNG_MEGATRON));
    REFUSED(ctx, TG_ERR_ARGUMENT, "every rank would draw the same part",
            tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.axis = TG_DP)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "every rank would draw the same part",
            tg_nn_vocab_embedding(p, F, H, 1, TG_VOCAB_EMBEDDING(.axis = TG_DP)));
    tg_module *m = tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.axis = TG_DP, .std = 0));
    EXPECT(ctx, tg_dim(tg_module_find(m, "weight"), 0) == F / 2);
    tg_module_free(m);
    tg_tensor *whole = tg_zeros(ctx, TG_F64, TG_SHAPE(F, H));
    tg_rng start;
    RUN(tg_rng_get(ctx, NULL, &start));
    RUN(tg_param_init(whole, TG_ORTHOGONAL(1)));
    for (int table = 0; table < 2; table++) {
        tg_rng_set(ctx, NULL, &start);
        m = table ? tg_nn_vocab_embedding(p, F, H, 0, TG_VOCAB_EMBEDDING(.axis = TG_DP, .init = TG_ORTHOGONAL(1)))
                  : tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.axis = TG_DP, .init = TG_ORTHOGONAL(1)));
        EXPECT(ctx, off(tg_module_find(m, "weight"), whole, 0, tg_comm_rank(world), 2) == 0);
        tg_module_free(m);
    }
    tg_drop(whole);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_weight_of_zeros_draws_nothing) { on_ranks(2, drawn_over_dp, NULL); }
END_TEST

static tg_status experts(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .etp = 2, .ep = 2));
    const int64_t huge = (int64_t)1 << 62;
    REFUSED(ctx, TG_ERR_SHAPE, "out is 4611686018427387904, so that of the 2 ranks of ep overflows",
            tg_nn_column_linear(p, 1, huge, TG_PARALLEL_LINEAR(.expert = true)));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(made(ctx, X, TG_SHAPE(S, H)));
    tg_place(p, x, TG_ETP, TG_R);
    tg_place(p, x, TG_EP, TG_V);
    tg_place(p, x, TG_TP, TG_I); /* an axis of the dense grid */
    tg_place(p, x, TG_DP, TG_I);
    tg_module *up = tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.expert = true)),
              *down = tg_nn_row_linear(p, F, H, TG_PARALLEL_LINEAR(.expert = true, .skip_bias_add = true));
    tg_tensor *w = tg_module_find(up, "weight");
    tg_comm_info before = TG_COMM_INFO(), after = TG_COMM_INFO();
    EXPECT(ctx, tg_dim(w, 0) == F / 2 && tg_global_shape(w).dim[0] == 2 * F);
    tg_comm_query(world, &before);
    tg_tensor *y = tg_module_forward(down, t, tg_gelu(t, tg_module_forward(up, t, x)));
    EXPECT(ctx, tg_placement_of(y, TG_ETP).kind == TG_PARTIAL && tg_placement_of(y, TG_EP).kind == TG_VARYING);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    tg_comm_query(world, &after);
    EXPECT(ctx, !memcmp(&before, &after, sizeof before) && tg_has_grad(w) && tg_has_grad(x));
    tg_module_free(up);
    tg_module_free(down);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(an_experts_layers_do_not_communicate) { on_ranks(4, experts, NULL); }
END_TEST

/* ---- Forward only ---- */

/* Two blocks of a column and a row layer, each with a residual connection. */
static tg_tensor *two_blocks(tg_module *const m[4], tg_tape *t, tg_tensor *x, bool fused) {
    tg_tensor *r = x, *h = tg_module_forward(m[0], t, x);
    if (fused) {
        h = tg_inference_next(m[1], m[2], t, tg_gelu(t, h), &r);
    } else {
        r = tg_add(t, r, tg_module_forward(m[1], t, tg_gelu(t, h)));
        h = tg_module_forward(m[2], t, r);
    }
    return tg_add(t, r, tg_module_forward(m[3], t, tg_gelu(t, h)));
}

static void blocks_new(const tg_parallel *p, tg_module *m[4]) {
    for (int i = 0; i < 4; i++)
        m[i] = i & 1 ? tg_nn_inference_row(p, F, H, TG_INFERENCE(.std = 0.3))
                     : tg_nn_inference_column(p, H, F, TG_INFERENCE(.std = 0.3));
}

static tg_status forward_only(void *arg, tg_ctx *ctx, tg_comm *world) {
    int n = *(const int *)arg, r = tg_comm_rank(world);
    alone a = alone_open();
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n, .sequence_parallel = true));
    tg_module *m[4], *one[4];
    blocks_new(p, m);
    blocks_new(a.p, one);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = part(ctx, X, TG_SHAPE(S, B, H), 0, r, n), *x1 = made(a.ctx, X, TG_SHAPE(S, B, H));
    tg_place(p, x, TG_TP, TG_SHARD(0));
    tg_tensor *y1 = two_blocks(one, a.t, x1, false);
    for (int fused = 0; fused < 2; fused++) {
        tg_tensor *y = two_blocks(m, t, x, fused);
        EXPECT(ctx, off(y, y1, 0, r, n) < 1e-11 && !tg_requires_grad(y));
    }
    EXPECT(ctx, tg_tape_nodes(t) == 0);
    for (int i = 0; i < 4; i++) tg_module_free(m[i]), tg_module_free(one[i]);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

START_TEST(layers_that_only_run_forward) {
    for (int n = 1; n <= 4; n *= 2) on_ranks(n, forward_only, &n);
}
END_TEST

static tg_status forward_without_sp(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    REFUSED(ctx, TG_ERR_STATE, "no sequence parallelism", tg_nn_inference_column(p, H, F, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "out is 9, expected a multiple of the 2", tg_nn_inference_column(p, H, 9, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "in is 9, expected a multiple of the 2", tg_nn_inference_row(p, 9, H, NULL));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(forward_only_needs_sequence_parallelism) { on_ranks(2, forward_without_sp, NULL); }
END_TEST

static void keep_log(void *user, tg_log_level level, const char *message) {
    if (level == TG_LOG_WARNING) snprintf(user, 200, "%s", message);
}

START_TEST(no_sequence_parallelism_on_one_rank) {
    char said[200] = "";
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .log = keep_log, .log_user = said));
    tg_comm *self = tg_comm_self_new(ctx);
    tg_parallel *p = tg_parallel_new(self, TG_PARALLEL(.sequence_parallel = true));
    tg_module *m = tg_nn_column_linear(p, H, F, NULL);
    ck_assert_msg(strstr(said, "has no effect"), "\"%s\"", said);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *y = tg_module_forward(m, t, tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(S, H), 1));
    ck_assert(tg_dim(y, 0) == S && tg_dim(y, 1) == F && tg_ctx_status(ctx) == TG_OK);
    tg_tape_free(t);
    tg_module_free(m);
    tg_parallel_free(p);
    tg_comm_free(self);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        parameters_are_parts_of_one_rank_s,
        an_mlp_with_every_option,
        an_mlp_of_another_group,
        a_pair_of_any_layer,
        layers_in_a_recomputation,
        wrong_options_say_what_was_expected,
        gathered_on_request_and_tied,
        a_weight_of_zeros_draws_nothing,
        an_experts_layers_do_not_communicate,
        no_sequence_parallelism_on_one_rank,
        layers_that_only_run_forward,
        forward_only_needs_sequence_parallelism,
    };
    return tg_check_main("layers", tests, sizeof tests / sizeof *tests);
}
