/* Placements of leaves, gradients, roots and seeds, in hooks and recomputations, and the comparisons of check mode. */
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/explain.h>
#include <tapegrad/inputs.h>
#include <tapegrad/io.h>
#include <tapegrad/ops.h>
#include <tapegrad/print.h>
#include <tapegrad/ranks.h>
#include <tapegrad/recompute.h>

#include "core/context.h"
#include "on_ranks.h"
#include "placement/plan_groups.h"

START_TEST(leaves_have_default_or_declared_placements) {
    groups g = begin();
    double v[6] = {1, 2, 3, 4, 5, 6};
    tg_tensor *made = tg_randn(g.ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1),
              *given = tg_from_host(g.ctx, TG_F64, TG_SHAPE(2, 3), v);
    ck_place(made, "");
    ck_place(given, "tp V, dp V");
    tg_write_f64(made, v, 6); /* from now on its values are the caller's */
    ck_place(made, "tp V, dp V");
    tg_tensor *drawn = tg_tape_randn(g.t, TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1), *result = tg_tanh(g.t, drawn);
    tg_write_f64(drawn, v, 6);
    tg_write_f64(result, v, 6);
    ck_place(drawn, "tp V, dp V");
    ck_place(result, "");
    tg_tensor *declared = tg_from_host(g.ctx, TG_F64, TG_SHAPE(2, 3), v);
    tg_place(g.p, declared, TG_TP, TG_I);
    ck_place(declared, "dp V");
    tg_place(g.p, declared, TG_DP, TG_I);
    ck_place(declared, "");
    tg_write_f64(declared, v, 6); /* a declared placement remains */
    ck_place(declared, "");
    tg_tensor *w = tg_param_new(g.ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 0);
    tg_place(g.p, w, TG_TP, TG_SHARD_STRIDED(-1, 3));
    tg_place(g.p, w, TG_DP, TG_R);
    ck_place(w, "tp V1:s3, dp R");
    tg_write_f64(w, v, 6);
    ck_place(w, "tp V1:s3, dp R");
    ck_assert_int_eq(tg_global_shape(w).dim[1], 6);
    ck_assert_int_eq(tg_global_shape(w).dim[0], 2);
    tg_place(g.p, w, TG_CP, TG_P); /* allowed on an axis of one rank, but not for a parameter */
    ck_refused(g, TG_ERR_PLACEMENT, "would be P");
    tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4));
    ck_assert_int_eq(tg_place(g.p, x, TG_CP, TG_P), TG_OK);
    ck_place(x, "");
    end(&g);
}
END_TEST

/* The chunks of an axis are those of the part that it divides; axes that are placed later may divide them further. */
START_TEST(minor_axes_cut_within_chunks) {
    groups g = begin(); /* rank 1 of tp and of dp */
    tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(1, 2)), *half = tg_zeros(g.ctx, TG_F64, TG_SHAPE(1));
    tg_place(g.p, x, TG_DP, TG_SHARD_STRIDED(0, 2));
    tg_place(g.p, x, TG_TP, TG_SHARD(0));
    ck_place(x, "tp V0, dp V0:s2");
    ck_place(tg_reshape(g.t, x, TG_SHAPE(2)), "tp V0, dp V0:s2");
    tg_place(g.p, half, TG_TP, TG_SHARD_ZIGZAG(0));
    ck_assert_int_eq(tg_ctx_status(g.ctx), TG_OK);
    tg_place(g.p, half, TG_DP, TG_I); /* so that no axis divides it further */
    ck_refused(g, TG_ERR_SHAPE, "dim 0 of f64[1] is not divisible into 2 chunks");
    tg_place(g.p, half, TG_DP, TG_SHARD(0));
    ck_place(half, "tp V0:z, dp V0");
    tg_tensor *w = tg_param_new_placed(g.p, "w", TG_F64, TG_SHAPE(4), 1,
                                       TG_PLACES({TG_DP, TG_SHARD_STRIDED(0, 2)}, {TG_TP, TG_SHARD(0)}));
    ck_place(w, "tp V0, dp V0:s2");
    tg_param_new_placed(g.p, "w", TG_F64, TG_SHAPE(4), 1, TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_SHARD_ZIGZAG(0)}));
    ck_refused(g, TG_ERR_SHAPE, "dim 0 has size 1 on a rank of dp, expected a multiple of 2 chunks");
    tg_ctx *one = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    double whole[4], mine = 0;
    tg_read_f64(tg_param_new(one, "w", TG_DTYPE_DEFAULT, TG_SHAPE(4), 1), whole, 4);
    tg_read_f64(w, &mine, 1);
    ck_assert_double_eq(mine, whole[3]);
    tg_ctx_free(one);
    end(&g);
}
END_TEST

START_TEST(placements_go_with_the_bytes) {
    groups g = begin();
    tg_tensor *w = tg_param_new(g.ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1),
              *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4, 3));
    tg_place(g.p, w, TG_DP, TG_R);
    tg_place(g.p, x, TG_DP, TG_SHARD(0));
    tg_tensor *y = tg_linear(g.t, x, w, NULL), *kept = tg_keep(y);
    ck_place(kept, "dp V0");
    tg_tape *other = tg_tape_new(g.ctx);
    tg_tensor *in = tg_tape_input(other, y), *z = tg_tanh(other, in);
    ck_place(in, "dp V0");
    ck_place(z, "dp V0");
    ck_place(tg_sum(other, z, TG_ALL_DIMS, false), "dp P");
    ck_place(tg_detach(g.t, w), "");
    ck_place(tg_transpose(g.t, y, 0, 1), "dp V1");
    tg_tape_free(other);
    end(&g);
}
END_TEST

START_TEST(gradients_have_the_dual_placement) {
    groups g = begin();
    tg_tensor *w = tg_param_new(g.ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1),
              *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4, 3)), *grad;
    tg_place(g.p, w, TG_DP, TG_R);
    tg_place(g.p, x, TG_DP, TG_SHARD(0));
    tg_set_requires_grad(x, true);
    double v[12], norm;
    tg_tensor *loss = tg_sum(g.t, tg_linear(g.t, x, w, NULL), TG_ALL_DIMS, false);
    tg_backward_with(g.t, &loss, 1, TG_BACKWARD(.retain = true));
    ck_place(tg_grad_of(w), "dp P");
    ck_place(tg_grad_of(x), "dp V0");
    ck_assert_int_eq(tg_read_f64(tg_grad_of(x), v, 12), TG_OK);
    tg_read_f64(tg_grad_of(w), v, 6);
    ck_refused(g, TG_ERR_STATE, "call tg_grads_finalize first, or read the share (tg_grad_share)");
    char printed[256];
    ck_assert(tg_print(tg_grad_of(w), printed, sizeof printed, NULL) == 0 && !*printed);
    ck_refused(g, TG_ERR_STATE, "tg_print: this gradient is one rank's share of a sum");
    ck_assert(!tg_is_alive(tg_keep(tg_grad_of(w))));
    ck_refused(g, TG_ERR_STATE, "tg_keep: this gradient is one rank's share of a sum");
    tg_tensor *share = tg_grad_share(w);
    ck_place(share, "dp P");
    ck_assert_int_eq(tg_read_f64(share, v, 6), TG_OK);
    ck_assert(tg_print(share, printed, sizeof printed, NULL) > 0);
    ck_assert_int_eq(tg_read_f64(tg_grad_share(x), v, 12), TG_OK); /* no share: the gradient */
    tg_optim *o = tg_adamw_new(g.ctx, &w, 1, NULL);
    tg_optim_step(o);
    ck_refused(g, TG_ERR_STATE, "call tg_grads_finalize after the last backward");
    norm = tg_optim_clip(o, 1);
    ck_assert(isnan(norm));
    ck_refused(g, TG_ERR_STATE, "call tg_grads_finalize");
    tg_grad(g.t, &loss, 1, &w, 1, &grad, TG_GRAD(.retain = true));
    ck_place(grad, "dp P");
    ck_assert_int_eq(tg_grads_finalize(g.p, &w, 1, NULL), TG_OK);
    ck_place(tg_grad_of(w), "");
    ck_assert_int_eq(tg_read_f64(tg_grad_of(w), v, 6), TG_OK);
    tg_tensor *kept = tg_keep(tg_grad_of(w));
    ck_place(kept, "");
    ck_assert_int_eq(tg_read_f64(kept, v, 6), TG_OK);
    tg_drop(kept);
    tg_grad_share(w);
    ck_refused(g, TG_ERR_STATE, "has summed the gradient of w f64[2, 3], and the share is gone");
    ck_place(share, "dp P"); /* a copy, which has not been summed */
    tg_backward_with(g.t, &loss, 1, TG_BACKWARD(.retain = true)); /* a share cannot be added to a sum */
    ck_refused(g, TG_ERR_STATE, "zero it before the next backward");
    ck_assert_int_eq(tg_optim_step(o), TG_OK);
    tg_optim_zero_grad(o);
    tg_zero_grad(x);
    loss = tg_sum(g.t, tg_linear(g.t, x, w, NULL), TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_backward(g.t, loss), TG_OK);
    ck_place(tg_grad_of(w), "dp P");
    ck_assert(!tg_host_data(tg_grad_of(w)));
    ck_refused(g, TG_ERR_STATE, "tg_host_data: this gradient is one rank's share of a sum");
    tg_safetensors_save(g.ctx, "/tmp/tg-share.safetensors", &(tg_named_tensor){"g", tg_grad_of(w)}, 1, NULL, 0);
    ck_refused(g, TG_ERR_STATE, "tg_safetensors_save: this gradient is one rank's share of a sum");
    tg_optim_free(o);
    end(&g);
}
END_TEST

/* d (c sum x) / dx on one rank, for a leaf with this placement on both axes. */
static double seeded(groups *g, tg_placement tp, tg_placement dp) {
    tg_tensor *x = tg_zeros(g->ctx, TG_F64, TG_SHAPE(2)), *grad;
    double v[2] = {0};
    tg_place(g->p, x, TG_TP, tp);
    tg_place(g->p, x, TG_DP, dp);
    tg_set_requires_grad(x, true);
    tg_tensor *root = tg_sum(g->t, x, TG_ALL_DIMS, false);
    tg_grad(g->t, &root, 1, &x, 1, &grad, NULL);
    tg_read_f64(grad, v, 2);
    return v[0];
}

START_TEST(roots_are_seeded_by_placement) {
    groups g = begin();
    ck_assert(seeded(&g, TG_I, TG_I) == 1);
    ck_assert(seeded(&g, TG_P, TG_I) == 1);
    ck_assert(seeded(&g, TG_V, TG_I) == 1);
    ck_assert(seeded(&g, TG_SHARD(0), TG_P) == 1);
    ck_assert(seeded(&g, TG_R, TG_I) == 0.5);
    ck_assert(seeded(&g, TG_R, TG_R) == 0.25);
    ck_assert(seeded(&g, TG_R, TG_SHARD(0)) == 0.5);
    end(&g);
}
END_TEST

static tg_status seed_with(groups *g, tg_placement root, tg_placement seed) {
    tg_tensor *x = tg_zeros(g->ctx, TG_F64, TG_SHAPE(4)), *s = tg_zeros(g->ctx, TG_F64, TG_SHAPE(4));
    tg_place(g->p, x, TG_TP, root);
    tg_place(g->p, s, TG_TP, seed);
    tg_set_requires_grad(x, true);
    tg_tensor *y = tg_neg(g->t, x);
    tg_status status = tg_backward_with(g->t, &y, 1, TG_BACKWARD(.seeds = &s));
    tg_tape_reset(g->t);
    return status;
}

START_TEST(a_callers_seed_has_the_dual_placement) {
    groups g = begin();
    const struct {
        tg_placement root, seed;
        bool fits;
    } rows[] = {
        {TG_I, TG_I, true},  {TG_I, TG_R, true},         {TG_I, TG_P, false},         {TG_I, TG_V, false},
        {TG_R, TG_P, true},  {TG_R, TG_I, false},        {TG_P, TG_R, true},          {TG_P, TG_I, true},
        {TG_P, TG_P, false}, {TG_V, TG_V, true},         {TG_V, TG_I, true},          {TG_V, TG_P, false},
        {TG_SHARD(0), TG_SHARD(0), true}, {TG_SHARD(0), TG_V, false}, {TG_SHARD(0), TG_SHARD_ZIGZAG(0), false},
        {TG_SHARD(0), TG_I, false},
    };
    for (size_t i = 0; i < TG_LEN(rows); i++) {
        tg_status s = seed_with(&g, rows[i].root, rows[i].seed);
        ck_assert_msg(s == (rows[i].fits ? TG_OK : TG_ERR_PLACEMENT), "row %zu: %s", i, tg_ctx_message(g.ctx));
        if (!rows[i].fits) ck_refused(g, TG_ERR_PLACEMENT, "on axis tp the gradient of");
    }
    end(&g);
}
END_TEST

static tg_status look(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    (void)t, (void)x;
    tg_placement_text(*grad, user, 32);
    return TG_OK;
}

static tg_status replace(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    (void)x;
    *grad = user ? tg_scale(t, *grad, 2) : tg_full(t, TG_F64, tg_shape_of(*grad), 1);
    return TG_OK;
}

START_TEST(hooks_see_the_dual_placement) {
    groups g = begin();
    char at[2][32];
    double v = 3;
    tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE());
    tg_write_f64(x, &v, 1);
    tg_place(g.p, x, TG_TP, TG_R);
    tg_place(g.p, x, TG_DP, TG_SHARD(0));
    ck_refused(g, TG_ERR_SHAPE, "the placement shards dim 0, but f64[] has 0 dims");
    tg_place(g.p, x, TG_DP, TG_V);
    tg_set_requires_grad(x, true);
    tg_on_grad(x, look, at[0]);
    tg_on_accumulated(x, look, at[1]);
    uint64_t twice = tg_on_grad(x, replace, x);
    ck_assert_int_eq(tg_backward(g.t, tg_square(g.t, x)), TG_OK);
    ck_assert_str_eq(at[0], "tp P, dp V");
    ck_assert_str_eq(at[1], "tp P, dp V");
    tg_remove_hook(x, twice);
    tg_on_grad(x, replace, NULL); /* ones are a share of nothing */
    tg_backward(g.t, tg_square(g.t, x));
    ck_refused(g, TG_ERR_PLACEMENT, "a gradient hook's result: on axis tp");
    end(&g);
}
END_TEST

/* ---- Recomputation, no-grad, in place ---- */

typedef struct run {
    int calls;
    char at[2][3][32];
    bool off;
} run;

static tg_status layer(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    run *r = state;
    (void)n_in, (void)n_out;
    bool before = r->off ? tg_tape_set_grad_mode(t, false) : false;
    tg_tensor *h = tg_linear(t, in[0], in[1], NULL);
    if (r->off) tg_tape_set_grad_mode(t, before);
    out[0] = tg_tanh(t, h);
    out[1] = tg_detach(t, in[1]);
    int call = r->calls++ > 0;
    tg_placement_text(h, r->at[call][0], 32);
    tg_placement_text(out[0], r->at[call][1], 32);
    tg_placement_text(out[1], r->at[call][2], 32);
    return tg_ctx_status(tg_tape_ctx(t));
}

START_TEST(a_recomputation_places_alike_in_both_runs) {
    groups g = begin();
    tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4, 3)),
              *w = tg_param_new(g.ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1), *out[2];
    tg_place(g.p, w, TG_TP, TG_R);
    tg_place(g.p, x, TG_TP, TG_R);
    tg_place(g.p, x, TG_DP, TG_SHARD(0));
    tg_place(g.p, w, TG_DP, TG_R);
    tg_set_requires_grad(x, true);
    tg_tensor *in[] = {x, w};
    run r = {0};
    ck_assert_int_eq(tg_recompute(g.t, layer, &r, in, 2, out, 2, NULL), TG_OK);
    ck_place(out[0], "tp R, dp V0");
    ck_place(out[1], "");
    ck_assert(!tg_requires_grad(out[1]));
    tg_backward(g.t, tg_sum(g.t, out[0], TG_ALL_DIMS, false));
    ck_assert_int_eq(r.calls, 2);
    for (int i = 0; i < 3; i++) ck_assert_str_eq(r.at[0][i], r.at[1][i]);
    ck_assert_str_eq(r.at[0][0], "tp R, dp V0");
    tg_tape_reset(g.t);
    tg_tensor *v = tg_param_new(g.ctx, "v", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1); /* I is used with V0 */
    in[1] = v;
    tg_place(g.p, v, TG_TP, TG_R);
    tg_recompute(g.t, layer, &(run){0}, in, 2, out, 2, NULL);
    ck_refused(g, TG_ERR_PLACEMENT, "linear: on axis dp");
    run off = {.off = true}; /* but not without grad */
    ck_assert_int_eq(tg_recompute(g.t, layer, &off, in, 2, out, 2, NULL), TG_OK);
    ck_place(out[0], "dp V0"); /* without a gradient nothing becomes R on tp */
    end(&g);
}
END_TEST

START_TEST(without_grad_equal_is_equal) {
    groups g = begin();
    tg_tensor *w = tg_param_new(g.ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1),
              *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4, 3));
    tg_tensor *p = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4, 3));
    tg_place(g.p, x, TG_DP, TG_SHARD(0));
    tg_place(g.p, p, TG_DP, TG_P);
    tg_linear(g.t, x, w, NULL);
    ck_refused(g, TG_ERR_PLACEMENT, "linear: on axis dp its inputs are V0 without gradient, I");
    tg_tape_set_grad_mode(g.t, false);
    ck_place(tg_linear(g.t, x, w, NULL), "dp V0");
    tg_tanh(g.t, p); /* values are wrong nevertheless */
    ck_refused(g, TG_ERR_PLACEMENT, "reduce");
    tg_tape_set_grad_mode(g.t, true);
    end(&g);
}
END_TEST

START_TEST(a_claim_says_its_name) {
    groups g = begin();
    char dump[2048];
    tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4, 3));
    tg_place(g.p, x, TG_DP, TG_SHARD(0));
    tg_place(g.p, x, TG_TP, TG_SHARD(0));
    tg_set_requires_grad(x, true);
    tg_tensor *y = tg_assume_placement(g.t, x, g.p, TG_DP, TG_I);
    ck_place(y, "tp V0");
    ck_assert_int_eq(tg_placement_of(y, TG_TP).order, 0); /* the orders are renumbered */
    ck_assert_int_eq(tg_placement_of(x, TG_TP).order, 1);
    ck_place(tg_assume_placement(g.t, y, g.p, TG_DP, TG_SHARD(-2)), "tp V0, dp V0");
    tg_tape_dump(g.t, TG_TEXT, dump, sizeof dump);
    ck_assert(strstr(dump, "assume_placement"));
    tg_tensor *root = tg_sum(g.t, y, TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_backward(g.t, root), TG_OK);
    end(&g);
}
END_TEST

static void step(groups *g, tg_tensor *x, tg_tensor *w) {
    tg_tensor *h = tg_linear_gelu(g->t, x, w, NULL), *part[4];
    tg_split(g->t, tg_transpose(g->t, h, 0, 1), 0, (const int64_t[]){1, 1}, 2, part);
    for (int i = 2; i < 4; i++) part[i] = tg_mul(g->t, part[0], part[1]);
    tg_tensor *y = tg_reshape(g->t, tg_concat(g->t, part, 4, 0), TG_SHAPE(2, 2, 4));
    tg_backward(g->t, tg_sum(g->t, y, TG_ALL_DIMS, false));
    tg_zero_grad(w);
    tg_tape_reset(g->t);
}

/* dp divides dim 0 first, and tp the rest. The gradient has the same placement, whichever axis the claim removed. */
START_TEST(the_gradient_of_a_claim_has_its_axes_in_their_order) {
    static const tg_axis taken[] = {TG_DP, TG_TP};
    for (int i = 0; i < 2; i++) {
        groups g = begin();
        tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4)), *seed = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4)), *grad;
        tg_place(g.p, x, TG_DP, TG_SHARD_STRIDED(0, 2));
        tg_place(g.p, x, TG_TP, TG_SHARD(0));
        tg_place(g.p, seed, taken[!i], i ? TG_SHARD_STRIDED(0, 2) : TG_SHARD(0));
        tg_set_requires_grad(x, true);
        tg_tensor *y = tg_assume_placement(g.t, x, g.p, taken[i], TG_I);
        tg_grad(g.t, &y, 1, &x, 1, &grad, TG_GRAD(.create_graph = true, .seeds = &seed));
        ck_assert_msg(tg_ctx_status(g.ctx) == TG_OK, "%s", tg_ctx_message(g.ctx));
        ck_place(grad, "tp V0, dp V0:s2");
        ck_assert_int_eq(tg_placement_of(grad, TG_DP).order, 0);
        ck_assert_int_eq(tg_placement_of(grad, TG_TP).order, 1);
        end(&g);
    }
}
END_TEST

START_TEST(a_steady_step_allocates_nothing_for_placements) {
    groups g = begin();
    tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4, 3)),
              *w = tg_param_new(g.ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1);
    tg_place(g.p, x, TG_DP, TG_SHARD(0));
    tg_place(g.p, w, TG_DP, TG_R);
    tg_memory_info m = TG_MEMORY_INFO();
    int64_t before = 0;
    for (int i = 0; i < 6; i++) {
        step(&g, x, w);
        tg_memory_query(g.ctx, &m);
        if (i == 2) before = m.host_allocations;
    }
    ck_assert_int_eq(m.host_allocations, before);
    end(&g);
}
END_TEST

/* ---- Check mode, on ranks ---- */

static tg_status claims(void *arg, tg_ctx *ctx, tg_comm *world) {
    const char *what = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = *what == 't' ? 2 : 1));
    tg_tape *t = tg_tape_new(ctx);
    double v[2] = {1, tg_comm_rank(world)};
    tg_axis axis = *what == 't' ? TG_TP : TG_DP;
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2), 0);
    tg_place(p, w, axis, TG_R);
    tg_write_f64(w, v, 2);
    if (axis == TG_DP) { /* ranks may use other parameters, so they are not compared before */
        tg_backward(t, tg_sum(t, tg_square(t, w), TG_ALL_DIMS, false));
        REFUSED(ctx, TG_ERR_PLACEMENT, "w f64[2] is R on axis dp, but its bytes differ between ranks 0 and 1",
                tg_grads_finalize(p, &w, 1, NULL));
    } else {
        REFUSED(ctx, TG_ERR_PLACEMENT, "w f64[2] is R on axis tp, but its bytes differ between ranks 0 and 1",
                tg_square(t, w));
    }
    tg_comm_barrier(world);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(check_mode_compares_claims) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .deadline = 30, .check = true);
    for (int i = 0; i < 2; i++) {
        tg_status s = tg_ranks_run(2, claims, (void *)(i ? "tp" : "dp"),
                                   TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
        ck_assert_msg(s == TG_OK, "%s", message);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {leaves_have_default_or_declared_placements,
                                  minor_axes_cut_within_chunks,
                                  placements_go_with_the_bytes,
                                  gradients_have_the_dual_placement,
                                  roots_are_seeded_by_placement,
                                  a_callers_seed_has_the_dual_placement,
                                  hooks_see_the_dual_placement,
                                  a_recomputation_places_alike_in_both_runs,
                                  without_grad_equal_is_equal,
                                  a_claim_says_its_name,
                                  the_gradient_of_a_claim_has_its_axes_in_their_order,
                                  a_steady_step_allocates_nothing_for_placements,
                                  check_mode_compares_claims};
    return tg_check_main("leaves", tests, TG_LEN(tests));
}
