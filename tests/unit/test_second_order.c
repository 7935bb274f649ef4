/* Derivatives of derivatives of whole programs: any order, hooks, recomputation, in-place ops, refused cases. */
#include "second_order.h"

#include <stdlib.h>

#include <tapegrad/extend.h>
#include <tapegrad/nn.h>
#include <tapegrad/gpt.h>

START_TEST(derivatives_of_any_order_are_right) {
    begin();
    tg_tensor *x = leaf(0.7), *y = tg_sin(t, x);
    const double expected[] = {cos(0.7), -sin(0.7), -cos(0.7), sin(0.7), cos(0.7)};
    for (int i = 0; i < 5; i++) {
        y = derivative(y, x);
        ck_near(tg_item(y), expected[i]);
    }
    tg_backward(t, y);
    ck_near(grad(x), -sin(0.7));
    end();
}
END_TEST

/* For e^(x z) z at (x, z): the tangent of the output in one pass, and its own derivative. */
START_TEST(tangents_go_forward_and_can_be_differentiated) {
    begin();
    tg_tensor *x = leaf(0.5), *z = leaf(-1.25), *y = tg_mul(t, tg_exp(t, tg_mul(t, x, z)), z);
    tg_tensor *in[] = {x, z}, *din[] = {tg_full(t, TG_F64, TG_SHAPE(), 2), NULL}, *dy;
    ck_assert(tg_jvp(t, &y, 1, in, 2, din, &dy) == TG_OK);
    double e = exp(0.5 * -1.25), zz = 1.25 * 1.25;
    ck_near(tg_item(dy), 2 * zz * e);
    ck_near(tg_item(derivative(dy, x)), 2 * zz * -1.25 * e);
    ck_assert(tg_jvp(t, &y, 1, &z, 1, (tg_tensor *[]){NULL}, &dy) == TG_OK);
    ck_assert(tg_item(dy) == 0);
    end();
}
END_TEST

START_TEST(a_result_may_be_the_input) {
    begin();
    tg_tensor *x = leaf(3), *y = tg_square(t, x), *z = tg_mul(t, y, x), *in[] = {x, y}, *g[2], *dz;
    ck_assert(tg_grad(t, &z, 1, in, 2, g, TG_GRAD(.create_graph = true)) == TG_OK);
    ck_near(tg_item(g[0]), 27);
    ck_near(tg_item(g[1]), 3);
    ck_near(tg_item(derivative(g[1], x)), 1);
    tg_tensor *one = tg_full(t, TG_F64, TG_SHAPE(), 1);
    ck_assert(tg_jvp(t, &z, 1, in, 2, (tg_tensor *[]){one, one}, &dz) == TG_OK);
    ck_near(tg_item(dz), 30);
    end();
}
END_TEST

static tg_status doubles(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)x;
    ++*(int *)user;
    *g = tg_scale(tape, *g, 2);
    return TG_OK;
}

START_TEST(hooks_are_part_of_the_graph) {
    begin();
    int calls = 0;
    tg_tensor *x = leaf(2), *y = tg_mul(t, tg_square(t, x), x);
    tg_on_grad(x, doubles, &calls);
    tg_tensor *g = derivative(y, x);
    ck_assert(calls == 1);
    ck_near(tg_item(g), 24);
    ck_near(tg_item(derivative(g, x)), 48);
    end();
}
END_TEST

static tg_status cube_times(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = tg_mul(tape, tg_dropout(tape, tg_pow_scalar(tape, in[0], 3), 0.5), state);
    return tg_ctx_status(tg_tape_ctx(tape));
}

/* The weight is found within the function, and the random numbers are those of the first run. */
START_TEST(forward_through_a_recomputation) {
    begin();
    double v[] = {1, 2, 3, 4, 5, 6, 7, 8}, tangent[2][8];
    tg_tensor *x = leaf_of(TG_SHAPE(8), v), *w = leaf(1.5);
    for (int again = 0; again < 2; again++) {
        tg_rng rng = {.seed = 11};
        tg_rng_set(ctx, NULL, &rng);
        tg_tensor *y, *dy, *in[] = {x, w};
        tg_tensor *din[] = {tg_full(t, TG_F64, TG_SHAPE(8), 2), tg_full(t, TG_F64, TG_SHAPE(), -1)};
        if (again)
            tg_recompute(t, cube_times, w, &x, 1, &y, 1, NULL);
        else
            cube_times(w, t, &x, 1, &y, 1);
        ck_assert_msg(tg_jvp(t, &y, 1, in, 2, din, &dy) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_read_f64(dy, tangent[again], 8);
        tg_tape_reset(t);
    }
    int kept = 0;
    for (int i = 0; i < 8; i++) {
        ck_near(tangent[1][i], tangent[0][i]);
        kept += tangent[0][i] != 0;
        if (tangent[0][i] != 0) ck_near(tangent[0][i], 2 * (3 * v[i] * v[i] * 2 * 1.5 - v[i] * v[i] * v[i]));
    }
    ck_assert(kept > 0 && kept < 8);
    end();
}
END_TEST

START_TEST(through_a_recomputation) {
    begin();
    double v[] = {1, 2, 3, 4, 5, 6, 7, 8}, second[8], expected[8];
    tg_tensor *x = leaf_of(TG_SHAPE(8), v), *w = leaf(1.5);
    for (int again = 0; again < 2; again++) {
        tg_rng rng = {.seed = 11};
        tg_rng_set(ctx, NULL, &rng);
        tg_tensor *y, *in[] = {x, w}, *g[2];
        if (again)
            tg_recompute(t, cube_times, w, &x, 1, &y, 1, NULL);
        else
            cube_times(w, t, &x, 1, &y, 1);
        tg_tensor *sum = tg_sum(t, y, TG_ALL_DIMS, false);
        ck_assert_msg(tg_grad(t, &sum, 1, in, 2, g, TG_GRAD(.create_graph = true)) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_tensor *both = tg_add(t, tg_sum(t, tg_square(t, g[0]), TG_ALL_DIMS, false), tg_square(t, g[1]));
        tg_tensor *gg = derivative(both, x);
        ck_status(TG_OK);
        tg_read_f64(gg, again ? second : expected, 8);
        tg_tape_reset(t);
    }
    for (int i = 0; i < 8; i++) ck_near(second[i], expected[i]);
    ck_assert(expected[0] != 0 || expected[1] != 0);
    end();
}
END_TEST

static tg_status hand_through(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = tg_square(tape, in[0]);
    out[1] = in[0];
    out[2] = state;
    return tg_ctx_status(tg_tape_ctx(tape));
}

/* x^2 + 10 x + w x, for an input and a parameter that the function returns unchanged. */
START_TEST(a_recomputation_hands_leaves_through) {
    begin();
    for (int again = 0; again < 2; again++) {
        tg_tensor *x = leaf(3), *w = leaf(5), *in[] = {x, w}, *o[3], *g[2], *d;
        tg_tensor *din[] = {tg_full(t, TG_F64, TG_SHAPE(), 1), tg_full(t, TG_F64, TG_SHAPE(), 2)};
        if (again)
            tg_recompute(t, hand_through, w, &x, 1, o, 3, NULL);
        else
            hand_through(w, t, &x, 1, o, 3);
        tg_tensor *y = tg_add(t, tg_add(t, o[0], tg_scale(t, o[1], 10)), tg_mul(t, o[2], o[1]));
        tg_grad(t, &y, 1, in, 2, g, TG_GRAD(.create_graph = true));
        ck_near(tg_item(g[0]), 21);
        ck_near(tg_item(g[1]), 3);
        ck_near(tg_item(derivative(g[0], x)), 2);
        tg_jvp(t, &y, 1, in, 2, din, &d);
        ck_near(tg_item(d), 27);
        tg_jvp(t, &o[1], 1, in, 2, din, &d);
        ck_near(tg_item(d), 1);
        tg_jvp(t, &o[2], 1, in, 2, din, &d);
        ck_near(tg_item(d), 2);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

static tg_status tangent_of(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    tg_tensor *y = tg_pow_scalar(tape, in[0], 3), *v = state;
    return tg_jvp(tape, &y, 1, in, 1, &v, out);
}

START_TEST(tangents_within_a_recomputation_are_refused) {
    begin();
    double one = 1;
    tg_tensor *x = leaf(3), *v = tg_from_host(ctx, TG_F64, TG_SHAPE(), &one), *y;
    tangent_of(v, t, &x, 1, &y, 1);
    ck_near(tg_item(y), 27);
    ck_assert(tg_recompute(t, tangent_of, v, &x, 1, &y, 1, NULL) == TG_ERR_UNSUPPORTED);
    ck_says("call it outside of tg_recompute");
    tg_ctx_clear(ctx);
    tg_tape_set_grad_mode(t, false); /* here the function is only run */
    ck_assert(tg_recompute(t, tangent_of, v, &x, 1, &y, 1, NULL) == TG_OK);
    end();
}
END_TEST

typedef tg_tensor *(*linear_fn)(tg_tape *, tg_tensor *x, tg_tensor *w, tg_tensor *b);

/* Gradients of two of x, w and b, their tangent, and a second derivative, for a node that has saved one of x and w.
 * The other one may have been overwritten. */
static void linear_derivatives(linear_fn f, bool frozen_x, bool overwrite, double got[4][4]) {
    const double other[] = {-5, 7, -9, 11};
    tg_tensor *x = leaf_of(TG_SHAPE(2, 2), (double[]){1, 2, 3, 4}), *b = leaf_of(TG_SHAPE(2), (double[]){0.3, -0.2});
    tg_tensor *w = leaf_of(TG_SHAPE(2, 2), (double[]){0.1, 0.2, -0.3, 0.4});
    tg_set_requires_grad(frozen_x ? x : w, false);
    tg_tensor *in[] = {frozen_x ? w : x, b}, *g[2], *d;
    tg_tensor *y = tg_sum(t, tg_square(t, f(t, x, w, b)), TG_ALL_DIMS, false);
    tg_tensor *din[] = {tg_full(t, TG_F64, TG_SHAPE(2, 2), 0.5), tg_full(t, TG_F64, TG_SHAPE(2), -1)};
    if (overwrite) tg_write_f64(in[0], other, 4), tg_write_f64(b, other, 2);
    tg_grad(t, &y, 1, in, 2, g, TG_GRAD(.create_graph = true));
    tg_jvp(t, &y, 1, in, 2, din, &d);
    tg_read_f64(g[0], got[0], 4);
    tg_read_f64(g[1], got[1], 2);
    tg_read_f64(d, got[2], 1);
    tg_read_f64(derivative(tg_sum(t, tg_square(t, g[0]), TG_ALL_DIMS, false), b), got[3], 2);
    ck_status(TG_OK);
    tg_grad(t, &y, 1, in, 2, g, NULL);
    double plain[4];
    tg_read_f64(g[0], plain, 4);
    for (int i = 0; i < 4; i++) ck_near(got[0][i], plain[i]);
    tg_tape_reset(t);
}

START_TEST(linears_with_activations_read_only_saved_tensors) {
    const linear_fn linears[] = {tg_linear_relu, tg_linear_gelu, tg_linear_gelu_tanh, tg_linear_silu};
    begin();
    for (int k = 0; k < 8; k++) {
        double want[4][4] = {{0}}, got[4][4] = {{0}};
        linear_derivatives(linears[k / 2], k % 2, false, want);
        linear_derivatives(linears[k / 2], k % 2, true, got);
        for (int i = 0; i < 16; i++) ck_near(got[i / 4][i % 4], want[i / 4][i % 4]);
        ck_assert(want[0][0] != 0 && want[1][0] != 0 && want[2][0] != 0 && want[3][0] != 0);
    }
    end();
}
END_TEST

START_TEST(in_place_ops_keep_what_their_backward_needs) {
    begin();
    tg_tensor *x = leaf(2), *z = leaf(3);
    tg_tensor *a = tg_square(t, x);
    tg_tensor *y = tg_mul_(t, a, z); /* x^2 z */
    tg_tensor *g = derivative(y, z);
    ck_near(tg_item(g), 4);
    ck_near(tg_item(derivative(g, x)), 4);
    end();
}
END_TEST

/* Inputs and results of nodes that a later op overwrites; derivatives need only their shapes. */
START_TEST(overwritten_tensors_keep_their_shape) {
    begin();
    const double v[] = {1, 2, 3, 4, 5, 6};
    for (int which = 0; which < 3; which++) {
        tg_tensor *x = leaf_of(TG_SHAPE(2, 3), v), *h = tg_scale(t, x, 2), *sum, *y;
        if (which == 0) y = tg_add_(t, tg_prod(t, h, TG_DIMS(0), true), tg_select(t, x, 0, 0));
        if (which == 1) sum = tg_sum(t, h, TG_DIMS(1), false), y = tg_add(t, sum, tg_select(t, tg_add_(t, h, x), 1, 0));
        if (which == 2) y = tg_add_(t, tg_scale(t, x, 4), tg_copy_(t, h, x));
        tg_tensor *g = derivative(tg_sum(t, y, TG_ALL_DIMS, false), x);
        static const double expected[3][6] = {{17, 21, 25, 4, 8, 12}, {5, 2, 2, 5, 2, 2}, {5, 5, 5, 5, 5, 5}};
        double got[6] = {0};
        tg_read_f64(g, got, 6);
        for (int i = 0; i < 6; i++) ck_near(got[i], expected[which][i]);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

/* Results of tg_grad and tg_jvp belong to the tape, as without create_graph. */
START_TEST(results_belong_to_the_tape) {
    begin();
    tg_tensor *x = leaf(2), *z = leaf(5), *y = tg_add(t, x, z), *seed = leaf(7), *in[] = {x, z}, *g[2], *d;
    tg_grad(t, &y, 1, in, 2, g, TG_GRAD(.seeds = &seed, .create_graph = true));
    ck_assert(g[0] != g[1] && g[0] != seed && g[1] != seed);
    tg_jvp(t, &x, 1, &x, 1, &seed, &d);
    ck_assert(d != seed);
    bool grads = tg_tape_set_grad_mode(t, false);
    ck_assert(!tg_is_alive(tg_add_(t, g[0], z)));
    ck_says("input 0 is a view");
    tg_ctx_clear(ctx);
    tg_tape_set_grad_mode(t, grads);
    tg_drop(seed);
    ck_near(tg_item(g[0]), 7);
    ck_near(tg_item(d), 7);
    end();
}
END_TEST

START_TEST(products_are_there_without_grad) {
    begin();
    tg_tensor *x = leaf(0.7), *y = tg_sin(t, x), *v = tg_full(t, TG_F64, TG_SHAPE(), 2), *hv, *g;
    tg_tape_set_grad_mode(t, false);
    ck_assert(tg_hvp(t, y, &x, 1, &v, &hv) == TG_OK);
    ck_near(tg_item(hv), -2 * sin(0.7));
    ck_assert(!tg_requires_grad(hv));
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
    ck_assert(tg_requires_grad(g));
    end();
}
END_TEST

enum { VOCAB = 11, ROWS = 6 };

static tg_tensor *model_loss(tg_module *gpt, tg_tensor *ids, tg_tensor *target) {
    return tg_gpt_loss(gpt, t, ids, target, TG_LOSS_MEAN);
}

/* H v of a small model, compared with differences of its gradient. */
static void check_hessian(tg_gpt_arch arch) {
    begin();
    tg_module *m =
        tg_gpt_new(ctx, TG_GPT(.arch = arch, .vocab = VOCAB, .positions = ROWS, .layers = 1, .heads = 2, .hidden = 8));
    ck_status(TG_OK);
    int64_t id[2 * ROWS], next[2 * ROWS];
    for (int i = 0; i < 2 * ROWS; i++) id[i] = (i * 7 + 3) % VOCAB, next[i] = (i * 5 + 1) % VOCAB;
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(2, ROWS), id);
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(2, ROWS), next);
    int n = tg_module_param_count(m);
    tg_tensor **p = malloc((size_t)n * sizeof *p), **v = malloc((size_t)n * sizeof *v);
    tg_tensor **hv = malloc((size_t)n * sizeof *hv);
    tg_module_params(m, p, n);
    for (int i = 0; i < n; i++) v[i] = tg_randn(ctx, TG_DTYPE_DEFAULT, tg_shape_of(p[i]), 1);
    ck_assert_msg(tg_hvp(t, model_loss(m, ids, target), p, n, v, hv) == TG_OK, "%s", tg_ctx_message(ctx));
    double **product = malloc((size_t)n * sizeof *product);
    for (int i = 0; i < n; i++) {
        int64_t k = tg_numel(p[i]);
        product[i] = malloc((size_t)k * sizeof(double));
        tg_read_f64(hv[i], product[i], k);
    }
    double worst = 0, most = 0;
    const double eps = 2e-7;
    for (int side = -1; side <= 1; side += 2) {
        for (int i = 0; i < n; i++) {
            int64_t k = tg_numel(p[i]);
            double *w = malloc((size_t)k * sizeof *w), *d = malloc((size_t)k * sizeof *d);
            tg_read_f64(p[i], w, k);
            tg_read_f64(v[i], d, k);
            for (int64_t j = 0; j < k; j++) w[j] += (side < 0 ? -1 : 2) * eps * d[j];
            tg_write_f64(p[i], w, k);
            tg_zero_grad(p[i]);
            free(w);
            free(d);
        }
        tg_tape_reset(t);
        tg_backward(t, model_loss(m, ids, target));
        for (int i = 0; i < n; i++) {
            int64_t k = tg_numel(p[i]);
            double *g = malloc((size_t)k * sizeof *g);
            tg_read_f64(tg_grad_of(p[i]), g, k);
            for (int64_t j = 0; j < k; j++) {
                product[i][j] -= side * g[j] / (2 * eps);
                if (side > 0) worst = larger_or_nan(worst, fabs(product[i][j])), most = larger_or_nan(most, fabs(g[j]));
            }
            free(g);
            if (side > 0) free(product[i]);
        }
    }
    ck_assert_msg(worst < 1e-6 && most > 1e-3, "H v is off by %g, gradients reach %g", worst, most);
    for (int i = 0; i < n; i++) tg_drop(v[i]);
    free(p), free(v), free(hv), free(product);
    tg_module_free(m);
    end();
}

START_TEST(hessian_of_a_transformer) {
    check_hessian(TG_GPT2);
    check_hessian(TG_LLAMA);
}
END_TEST

static tg_status first_of(tg_call *c) { return tg_call_out(c, 0, TG_F64, 0, NULL); }
static tg_status nothing(tg_call *c) { return c->ctx ? TG_OK : TG_ERR_ARGUMENT; }

static tg_status wrong_vjp(tg_tape *tape, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    (void)n, (void)gout;
    gin[0] = tg_full(tape, TG_F64, TG_SHAPE(3), 0);
    return TG_OK;
}

START_TEST(missing_slots_are_refused) {
    begin();
    tg_tensor *x = leaf(1), *y, *g, *one = tg_full(t, TG_F64, TG_SHAPE(), 1);
    tg_op bare = {.size = sizeof bare,
                  .name = "bare",
                  .n_in = 1,
                  .n_out = 1,
                  .infer = first_of,
                  .forward = nothing,
                  .backward = nothing};
    tg_apply(t, &bare, NULL, &x, 1, &y, 1, NULL, NULL, TG_SITE);
    ck_assert(tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true)) == TG_ERR_UNSUPPORTED);
    ck_says("op bare");
    tg_ctx_clear(ctx);
    ck_assert(tg_jvp(t, &y, 1, &x, 1, &one, &g) == TG_ERR_UNSUPPORTED);
    ck_says("op bare");
    tg_ctx_clear(ctx);
    bare.vjp = wrong_vjp;
    ck_assert(tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true)) == TG_ERR_SHAPE);
    ck_says("tensor 0 of its vjp is f64[3]");
    tg_ctx_clear(ctx);
    /* the tape remains usable */
    y = tg_square(t, x);
    ck_near(tg_item(derivative(y, x)), 2);
    tg_backward(t, y);
    ck_assert(tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true)) == TG_ERR_STATE);
    ck_says("retain");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    end();
}
END_TEST

START_TEST(a_slice_with_steps_needs_no_more_dims) {
    begin();
    double g[25] = {0};
    tg_tensor *x = leaf_of(TG_SHAPE(5, 1, 1, 1, 1, 1, 1, 5), g);
    tg_tensor *part = tg_slice(t, tg_slice(t, x, 7, 1, 5, 2), 0, 0, 5, 3);
    tg_read_f64(derivative(tg_sum(t, part, TG_ALL_DIMS, false), x), g, 25);
    for (int i = 0; i < 25; i++) ck_assert(g[i] == (i / 5 % 3 == 0 && i % 5 % 2 == 1));
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {derivatives_of_any_order_are_right,
                            tangents_go_forward_and_can_be_differentiated,
                            a_result_may_be_the_input,
                            hooks_are_part_of_the_graph,
                            forward_through_a_recomputation,
                            through_a_recomputation,
                            a_recomputation_hands_leaves_through,
                            tangents_within_a_recomputation_are_refused,
                            linears_with_activations_read_only_saved_tensors,
                            in_place_ops_keep_what_their_backward_needs,
                            overwritten_tensors_keep_their_shape,
                            results_belong_to_the_tape,
                            products_are_there_without_grad,
                            a_slice_with_steps_needs_no_more_dims,
                            hessian_of_a_transformer,
                            missing_slots_are_refused};
    return tg_check_main("second order", tests, sizeof tests / sizeof *tests);
}
