/* The text of tg_explain_grad, for every kind of answer. */
#include "world.h"

#include <stdlib.h>
#include <time.h>

#include <tapegrad/explain.h>
#include <tapegrad/parallel.h>
#include <tapegrad/placement.h>
#include <tapegrad/ranks.h>

static char said[2048];

static void ck_explains(tg_tensor *root, tg_tensor *x, const char *first, const char *then) {
    size_t n = tg_explain_grad(t, root, x, said, sizeof said);
    ck_status(TG_OK);
    ck_assert_msg(n == strlen(said) && strstr(said, first) && strstr(said, then), "\"%s\", then \"%s\", in: %s", first,
                  then, said);
}

START_TEST(gradients_that_are_there) {
    begin();
    tg_tensor *x = leaf(3), *y = tg_mul(t, tg_square(t, x), tg_exp(t, x));
    ck_explains(y, x, "lies in [301.28", "It comes through op ");
    ck_assert(strstr(said, "op exp") && strstr(said, "op square"));
    ck_explains(y, y, "lies in [1, 1]", "");
    tg_tensor *both = leaf_of(TG_SHAPE(2), (const double[]){1, 2}), *half[2]; /* an op is listed once */
    ck_assert_int_eq(tg_chunk(t, both, 0, 2, half), TG_OK);
    ck_explains(tg_mul(t, half[0], half[1]), both, "lies in [1, 2]", "It comes through op chunk (");
    ck_assert_msg(!strstr(said, ", op"), "%s", said);
    ck_explains(tg_mul(t, x, x), x, "lies in [6, 6]", "It comes through op mul (");
    ck_assert_msg(!strstr(said, ", op"), "%s", said);
    ck_assert(!tg_has_grad(x));
    ck_assert(tg_backward(t, y) == TG_OK); /* nothing was freed */
    end();
}
END_TEST

START_TEST(zeros_and_their_cause) {
    begin();
    const double v[] = {-1, -2, -3};
    tg_tensor *w = leaf_of(TG_SHAPE(3), v), *h = tg_relu(t, tg_scale(t, w, 2));
    tg_tensor *y = tg_sum(t, tg_add_scalar(t, h, 1), TG_ALL_DIMS, false);
    ck_explains(y, w, "is 0 in every element", "It became 0 in op relu");
    ck_assert_msg(strstr(said, "reaches 1") && strstr(said, "lies in [-6, -2]"), "%s", said);
    end();
}
END_TEST

START_TEST(numbers_that_are_none) {
    begin();
    tg_tensor *x = leaf(0), *y = tg_scale(t, tg_sqrt(t, x), 3);
    ck_explains(y, x, "1 of the 1 elements of the gradient of f64[] are infinite",
                "It became NaN or infinite in op sqrt");
    ck_assert_msg(strstr(said, "lies in [0, 0]"), "%s", said);
    tg_tensor *z = leaf(0), *product = tg_mul(t, tg_sqrt(t, z), z);
    ck_explains(tg_square(t, tg_scale(t, tg_div(t, product, z), 2)), z, "are NaN.",
                "; that input has 1 value that is NaN");
    tg_tensor *none = leaf_of(TG_SHAPE(0), NULL);
    ck_explains(tg_sum(t, none, TG_ALL_DIMS, false), none, "is 0 in every element", "f64[0], is 0.\n");
    end();
}
END_TEST

START_TEST(infinities_are_no_numbers_below_none) {
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(2), (const double[]){-1, -2});
    tg_tensor *y = tg_sum(t, tg_sqrt(t, tg_relu(t, x)), TG_ALL_DIMS, false);
    ck_explains(y, x, "is 0 in every element", "the gradient of its result reaches inf, that of its input");
    end();
}
END_TEST

START_TEST(nothing_to_reduce_is_handled) {
    begin();
    tg_tensor *x = leaf(1), *other = leaf(2), *unused = leaf(3), *y = tg_square(t, x);
    tg_tensor *data = tg_zeros(ctx, TG_F64, TG_SHAPE(2)), *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(2));
    tg_exp(t, tg_scale(t, other, 2));
    ck_explains(y, other, "does not depend on f64[]", "Results that depend on it end at op exp");
    ck_explains(y, unused, "does not depend on f64[]", "No op has used it");
    ck_explains(y, data, "needs no gradient: it is a leaf", "tg_set_requires_grad");
    ck_explains(y, ids, "only floats do", "");
    ck_explains(y, tg_detach(t, x), "needs no gradient: it was recorded", "not differentiable");
    ck_explains(tg_square(t, data), x, "the root depends on nothing", "");
    size_t n = tg_explain_grad(t, y, x, NULL, 0);
    char few[8];
    ck_assert(n > 8 && tg_explain_grad(t, y, x, few, sizeof few) == n && strlen(few) == 7);
    end();
}
END_TEST

/* ---- Ops that ran without recording ---- */

START_TEST(uses_without_recording_are_reported) {
    begin();
    tg_tensor *x = leaf(1), *w = leaf(2), *unused = leaf(3), *y = tg_square(t, x);
    tg_tensor *h = tg_exp(t, leaf(2)), *mask = tg_gt(t, w, x);
    ck_explains(y, w, "On this tape, the root does not depend on", "An op that ran without recording");
    ck_explains(y, unused, "No op has used it on this tape.", "");
    ck_assert_msg(!strstr(said, "without recording"), "%s", said);
    tg_tensor *cut = tg_detach(t, h);
    ck_explains(y, h, "No op with a gradient has used it", "An op that ran without recording");
    ck_explains(tg_square(t, cut), h, "the root depends on nothing", "or was recorded in no-grad mode");
    tg_tape_set_grad_mode(t, false);
    tg_tensor *z = tg_square(t, tg_exp(t, unused));
    tg_tape_set_grad_mode(t, true);
    ck_explains(y, unused, "does not depend on", "An op that ran without recording (no-grad mode");
    ck_explains(z, unused, "the root depends on nothing", "recorded in no-grad mode");
    ck_assert(tg_is_alive(mask));
    end();
}
END_TEST

/* ---- Hooks ---- */

static tg_status zeros(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)x;
    *g = tg_scale(tape, *g, 0);
    return TG_OK;
}

START_TEST(zeros_of_a_hook_are_the_hook_s) {
    begin();
    tg_tensor *x = leaf(3), *h = tg_square(t, x), *y = tg_exp(t, h);
    ck_assert(tg_on_grad(h, zeros, NULL));
    ck_explains(y, x, "is 0 in every element", "It became 0 in a hook (tg_on_grad) of f64[]: before its hooks");
    ck_assert_msg(!strstr(said, "op exp"), "%s", said);
    tg_tensor *v = leaf(2), *u = tg_square(t, v);
    ck_assert(tg_on_grad(v, zeros, NULL));
    ck_explains(u, v, "is 0 in every element", "before its hooks the gradient reaches 4");
    ck_explains(u, v, "is 0 in every element", "before its hooks the gradient reaches 4"); /* no hook remains */
    tg_tensor *a = leaf_of(TG_SHAPE(2), (const double[]){-1, -2}), *r = tg_relu(t, a);
    ck_assert(tg_on_grad(a, zeros, NULL)); /* of zeros that existed before */
    ck_explains(r, a, "is 0 in every element", "It became 0 in op relu");
    end();
}
END_TEST

/* ---- Time ---- */

static double seconds_of(int nodes) {
    tg_tape_reset(t);
    tg_tensor *x = leaf(1), *y = x;
    for (int i = 0; i < nodes; i++) y = tg_add_scalar(t, y, 1);
    clock_t start = clock();
    ck_explains(y, x, "lies in [1, 1]", "");
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

START_TEST(time_grows_with_the_nodes) {
    begin();
    double few = seconds_of(4000), many = seconds_of(64000);
    ck_assert_msg(many < 64 * few, "16 times the nodes take %g times as long", many / few); /* quadratic: 256 */
    end();
}
END_TEST

/* ---- Ranks ---- */

/* Explains the gradient 2 x of a square, where x is 3 and placed in three ways. On an axis where x is REPLICATED, the
 * gradient of a rank is its share. */
static tg_status on_rank(void *arg, tg_ctx *mine, tg_comm *world) {
    const tg_placement placed[] = {TG_I, TG_R, TG_SHARD(0)};
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tape *tape = tg_tape_new(mine);
    char text[512];
    int *right = arg;
    for (int i = 0; i < 3; i++) {
        tg_tensor *x = tg_from_host(mine, TG_F64, TG_SHAPE(2), (double[]){3, 3});
        tg_set_requires_grad(x, true);
        tg_place(p, x, TG_TP, placed[i]);
        tg_explain_grad(tape, tg_square(tape, x), x, text, sizeof text);
        right[tg_comm_rank(world)] += strstr(text, i == 1 ? "lies in [3, 3]" : "lies in [6, 6]") != NULL;
    }
    tg_tape_free(tape);
    tg_parallel_free(p);
    return tg_ctx_status(mine);
}

START_TEST(roots_are_seeded_by_placement) {
    int right[2] = {0};
    ck_assert(tg_ranks_run(2, on_rank, right, NULL) == TG_OK);
    ck_assert(right[0] == 3 && right[1] == 3);
}
END_TEST

int main(void) {
    const TTest *tests[] = {gradients_that_are_there,       zeros_and_their_cause,
                            numbers_that_are_none,          infinities_are_no_numbers_below_none,
                            nothing_to_reduce_is_handled,   uses_without_recording_are_reported,
                            zeros_of_a_hook_are_the_hook_s, roots_are_seeded_by_placement,
                            time_grows_with_the_nodes};
    return tg_check_main("explain", tests, sizeof tests / sizeof *tests);
}
