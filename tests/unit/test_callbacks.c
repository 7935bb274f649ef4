/* What hooks, observers, refills and callers may do to tensors of a backward pass: lent gradients, seeds that are
 * written again, flags that change, leaves that are dropped. */
#include "world.h"

#include <math.h>

#include <tapegrad/capture.h>
#include <tapegrad/explain.h>
#include <tapegrad/extend.h>

static void ck_values(tg_tensor *x, double a, double b) {
    double v[2];
    ck_assert(tg_read_f64(x, v, 2) == TG_OK);
    ck_assert_double_eq_tol(v[0], a, 1e-12);
    ck_assert_double_eq_tol(v[1], b, 1e-12);
}

static tg_tensor *pair(double a, double b) { return leaf_of(TG_SHAPE(2), (double[]){a, b}); }

/* ---- Seeds and results ---- */

START_TEST(a_seed_may_be_written_again) {
    for (int graph = 0; graph < 2; graph++) {
        begin();
        tg_tensor *x = pair(1, 2), *seed = tg_zeros(ctx, TG_F64, TG_SHAPE(2)), *y = tg_add(t, x, pair(3, 4)), *row[2];
        for (int i = 0; i < 2; i++) {
            tg_write_f64(seed, (double[]){!i, i}, 2);
            tg_grad(t, &y, 1, &x, 1, &row[i], TG_GRAD(.seeds = &seed, .retain = true, .create_graph = graph));
        }
        ck_values(row[0], 1, 0);
        ck_values(row[1], 0, 1);
        end();
    }
}
END_TEST

START_TEST(a_tangent_may_be_written_again) {
    begin();
    tg_tensor *x = pair(1, 2), *v = tg_zeros(ctx, TG_F64, TG_SHAPE(2)), *y = tg_add(t, x, pair(3, 4)), *column[2];
    for (int i = 0; i < 2; i++) {
        tg_write_f64(v, (double[]){!i, i}, 2);
        tg_jvp(t, &y, 1, &x, 1, &v, &column[i]);
    }
    ck_values(column[0], 1, 0);
    ck_values(column[1], 0, 1);
    end();
}
END_TEST

START_TEST(gradients_share_no_bytes) {
    begin();
    tg_tensor *in[] = {pair(1, 2), pair(3, 4)}, *g[2];
    tg_tensor *l = tg_sum(t, tg_square(t, tg_add(t, in[0], in[1])), TG_ALL_DIMS, false);
    tg_grad(t, &l, 1, in, 2, g, NULL);
    tg_write_f64(g[0], (double[]){0, 0}, 2);
    ck_values(g[1], 8, 12);
    end();
}
END_TEST

typedef struct answer {
    tg_tensor *buffer;
    double factor;
} answer;

/* A hook that works on the host and always returns the same buffer. */
static tg_status scaled(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    const answer *a = user;
    double v[2];
    (void)tape, (void)x;
    tg_read_f64(*g, v, 2);
    tg_write_f64(a->buffer, (double[]){a->factor * v[0], a->factor * v[1]}, 2);
    *g = a->buffer;
    return TG_OK;
}

START_TEST(hooks_may_answer_with_one_buffer) {
    for (int graph = 0; graph < 2; graph++) {
        begin();
        tg_tensor *a = pair(1, 2), *b = pair(3, 4), *u = tg_square(t, a), *v = tg_square(t, b), *x = tg_add(t, u, v);
        tg_tensor *buffer = tg_zeros(ctx, TG_F64, TG_SHAPE(2)), *in[] = {a, b}, *g[2];
        tg_on_grad(x, scaled, &(answer){buffer, 0.5});
        tg_on_grad(v, scaled, &(answer){buffer, 0.25});
        tg_tensor *l = tg_sum(t, x, TG_ALL_DIMS, false);
        tg_grad(t, &l, 1, in, 2, g, TG_GRAD(.create_graph = graph));
        ck_values(g[0], 0.5 * 2 * 1, 0.5 * 2 * 2);
        ck_values(g[1], 0.125 * 2 * 3, 0.125 * 2 * 4);
        end();
    }
}
END_TEST

/* ---- Recorded constants ---- */

/* In f(x, w) = sum(layer_norm(x, w) w^2) the norm's w is a constant if it was recorded as one. */
static tg_tensor *frozen_within(tg_tensor *x, tg_tensor *w) {
    tg_tensor *q = tg_square(t, w);
    tg_set_requires_grad(w, false);
    tg_tensor *y = tg_layer_norm(t, x, w, NULL, 1e-5);
    tg_set_requires_grad(w, true);
    return tg_sum(t, tg_mul(t, y, q), TG_ALL_DIMS, false);
}

START_TEST(derivatives_are_those_of_recorded_ops) {
    begin();
    tg_tensor *x = pair(0.3, -1.2), *w = pair(0.7, 1.9), *v = tg_from_host(ctx, TG_F64, TG_SHAPE(2), (double[]){1, 1});
    tg_tensor *l = frozen_within(x, w), *g, *tangent;
    double plain[2], graph[2];
    tg_grad(t, &l, 1, &w, 1, &g, TG_GRAD(.retain = true));
    tg_read_f64(g, plain, 2);
    tg_grad(t, &l, 1, &w, 1, &g, TG_GRAD(.create_graph = true));
    tg_read_f64(g, graph, 2);
    ck_assert_double_eq_tol(plain[0], graph[0], 1e-12);
    ck_assert_double_eq_tol(plain[1], graph[1], 1e-12);
    tg_jvp(t, &l, 1, &w, 1, &v, &tangent);
    ck_assert_double_eq_tol(tg_item(tangent), plain[0] + plain[1], 1e-12);
    tg_backward(t, l);
    ck_values(tg_grad_of(w), plain[0], plain[1]);
    end();
}
END_TEST

/* ---- Lent tensors ---- */

static tg_status lent_status;

static tg_status discards(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)tape, (void)x;
    lent_status = tg_discard(*g);
    return TG_OK;
}

static tg_status claims(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)tape, (void)x;
    lent_status = tg_set_requires_grad(*g, true);
    tg_drop(*g);
    return TG_OK;
}

START_TEST(a_lent_gradient_is_neither_discarded_nor_made_a_leaf) {
    const tg_hook_fn hooks[] = {discards, claims};
    for (int i = 0; i < 2; i++) {
        begin();
        tg_tensor *x = pair(1, 2), *y = tg_square(t, x);
        tg_on_grad(y, hooks[i], NULL);
        ck_assert(tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false)) != TG_OK);
        ck_assert(lent_status == TG_ERR_STATE);
        ck_says("is lent to a hook, observer or op");
        tg_ctx_clear(ctx);
        end();
    }
}
END_TEST

static tg_status watch_discards(void *user, tg_tape *tape, const tg_op_event *seen) {
    (void)user, (void)tape;
    for (int i = 0; seen->backward && i < seen->n_in; i++)
        if (seen->gin[i]) lent_status = tg_discard(seen->gin[i]);
    return TG_OK;
}

START_TEST(nor_is_one_that_a_watch_sees) {
    begin();
    tg_tensor *x = pair(1, 2);
    tg_tape_observe(t, watch_discards, NULL);
    ck_assert(tg_backward(t, tg_sum(t, tg_square(t, tg_square(t, x)), TG_ALL_DIMS, false)) != TG_OK);
    ck_assert(lent_status == TG_ERR_STATE);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

static tg_status discards_seed(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)x, (void)g;
    return tg_discard(user);
}

START_TEST(a_seed_that_is_discarded_meanwhile_is_missed) {
    begin();
    tg_tensor *x = pair(1, 2), *seed = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2), 1),
              *y = tg_square(t, tg_square(t, x));
    tg_tensor *z = tg_square(t, x), *roots[] = {y, z}, *seeds[] = {seed, seed};
    tg_on_grad(z, discards_seed, seed);
    ck_assert(tg_backward_with(t, roots, 2, TG_BACKWARD(.seeds = seeds)) == TG_ERR_DISCARDED);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(a_borrower_cannot_drop_a_gradient) {
    begin();
    tg_tensor *x = pair(1, 2);
    tg_backward(t, tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false));
    tg_drop(tg_grad_of(x));
    ck_assert(tg_has_grad(x));
    ck_values(tg_grad_of(x), 2, 4);
    end();
}
END_TEST

/* ---- Leaves ---- */

static tg_status drops(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)tape, (void)g;
    tg_drop(x);
    return TG_OK;
}

START_TEST(a_root_that_is_a_leaf_may_be_dropped_in_its_hook) {
    begin();
    tg_tensor *x = leaf(1.5);
    tg_on_grad(x, drops, NULL);
    tg_backward(t, x);
    end();
}
END_TEST

START_TEST(no_tensor_takes_a_dropped_leafs_place_on_its_tape) {
    begin();
    tg_tensor *x = leaf(1.5), *other = NULL;
    tg_backward(t, x);
    tg_drop(x);
    for (int i = 0; i < 1000 && other != x; i++) other = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(), 1);
    ck_assert_ptr_ne(other, x);
    ck_assert(tg_backward(t, other) == TG_ERR_STATE);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- Refills ---- */

/* Fails the first time, and reports it only through the context. */
static tg_status refill(void *user, tg_ctx *of, void *dst, size_t bytes) {
    int *tries = user;
    if (!(*tries)++) {
        tg_ctx_fail(of, TG_ERR_IO, "the disk is away");
        return TG_OK;
    }
    memcpy(dst, (double[]){3, 4}, bytes);
    return TG_OK;
}

START_TEST(a_refill_that_failed_is_tried_again) {
    begin();
    int tries = 0;
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2), (double[]){3, 4});
    double v[2];
    tg_discard_with(x, refill, NULL, &tries);
    ck_assert(tg_read_f64(x, v, 2) == TG_ERR_IO);
    tg_ctx_clear(ctx);
    ck_values(x, 3, 4);
    ck_assert_int_eq(tries, 2);
    end();
}
END_TEST

/* ---- Others ---- */

static tg_status square_and_constant(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out,
                                     int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_square(tape, in[0]);
    out[1] = tg_detach(tape, tg_exp(tape, in[0]));
    return TG_OK;
}

START_TEST(a_recomputation_with_a_constant_result_is_explained) {
    begin();
    tg_tensor *x = pair(1, 2), *out[2];
    tg_recompute(t, square_and_constant, NULL, &x, 1, out, 2, NULL);
    char text[2000];
    ck_assert_uint_gt(tg_explain_grad(t, tg_sum(t, out[0], TG_ALL_DIMS, false), x, text, sizeof text), 0);
    end();
}
END_TEST

static tg_status fails(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    int *calls = state;
    (void)n_in, (void)n_out;
    out[0] = tg_square(tape, in[0]);
    return (*calls)++ ? TG_ERR_CALLBACK : TG_OK;
}

START_TEST(the_name_of_a_recomputation_is_copied) {
    begin();
    char name[] = "block 7";
    int calls = 0;
    tg_tensor *x = pair(1, 2), *y;
    tg_recompute(t, fails, &calls, &x, 1, &y, 1, TG_RECOMPUTE(.name = name));
    strcpy(name, "gone");
    ck_assert(tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)) == TG_ERR_CALLBACK);
    ck_says("block 7");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

static tg_graph *graph;

static tg_status frees_its_graph(void *state, tg_ctx *of) {
    (void)state, (void)of;
    tg_graph_free(graph);
    return TG_OK;
}

START_TEST(a_step_does_not_free_its_graph) {
    begin();
    graph = NULL;
    graph = tg_graph_new(ctx, frees_its_graph, NULL);
    ck_assert(tg_graph_replay(graph) == TG_ERR_STATE);
    ck_says("tg_graph_free");
    tg_ctx_clear(ctx);
    tg_graph_free(graph);
    end();
}
END_TEST

/* In check mode an element that an op's backward does not write is NaN, also in a leaf's gradient. */
static tg_status same_infer(tg_call *c) {
    tg_shape s = tg_shape_of(c->input[0]);
    return tg_call_out(c, 0, tg_dtype_of(c->input[0]), s.ndim, s.dim);
}
static tg_status fill_nothing(tg_call *c) { return (void)c, TG_OK; }

static const tg_op forgetful = {.size = sizeof forgetful, .name = "forgetful", .formula = "x", .n_in = 1, .n_out = 1,
                                .infer = same_infer, .forward = fill_nothing, .backward = fill_nothing};

START_TEST(unwritten_gradients_are_nan) {
    begin();
    tg_tensor *x = pair(1, 2), *y;
    for (int i = 0; i < 2; i++) { /* also if the memory of an earlier gradient exists */
        tg_apply(t, &forgetful, NULL, &x, 1, &y, 1, NULL, NULL, TG_SITE);
        tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &x));
        double v[2];
        tg_read_f64(tg_grad_of(x), v, 2);
        ck_assert(isnan(v[0]) && isnan(v[1]));
        tg_zero_grad(x);
    }
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_seed_may_be_written_again,
                            a_tangent_may_be_written_again,
                            gradients_share_no_bytes,
                            hooks_may_answer_with_one_buffer,
                            derivatives_are_those_of_recorded_ops,
                            a_lent_gradient_is_neither_discarded_nor_made_a_leaf,
                            nor_is_one_that_a_watch_sees,
                            a_seed_that_is_discarded_meanwhile_is_missed,
                            a_borrower_cannot_drop_a_gradient,
                            a_root_that_is_a_leaf_may_be_dropped_in_its_hook,
                            no_tensor_takes_a_dropped_leafs_place_on_its_tape,
                            a_refill_that_failed_is_tried_again,
                            a_recomputation_with_a_constant_result_is_explained,
                            the_name_of_a_recomputation_is_copied,
                            a_step_does_not_free_its_graph,
                            unwritten_gradients_are_nan};
    return tg_check_main("callbacks", tests, sizeof tests / sizeof *tests);
}
