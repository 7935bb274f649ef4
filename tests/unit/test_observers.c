/* Observers of ops: the first NaN or infinity is found and named, and the arguments that an observer gets. */
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/explain.h>
#include <tapegrad/extend.h>
#include <tapegrad/gpt.h>
#include <tapegrad/mappings.h>
#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

enum { BOTH = TG_FIND_NAN | TG_FIND_INF };

static void begin_finding(int kinds) {
    begin();
    ck_assert(tg_tape_find_nan(t, kinds) == TG_OK);
}

/* Checks an error and clears it; the tape remains usable. */
static void ck_found(const char *first, const char *then) {
    ck_status(TG_ERR_DATA);
    ck_says(first);
    ck_says(then);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
}

/* ---- Forward ---- */

START_TEST(a_nan_made_in_forward_is_found) {
    begin_finding(BOTH);
    const double v[] = {2, -1, 3, 4};
    tg_tensor *x = leaf_of(TG_SHAPE(2, 2), v);
    tg_set_name(x, "weights");
    ck_assert(!tg_is_alive(tg_log(t, x)));
    ck_found("log made a NaN: result 0, f64[2, 2]: 1 NaN, 0 infinite, the numbers in [0.693147, 1.38629]",
             "; input 0, weights f64[2, 2]: 0 NaN, 0 infinite, all in [-1, 4]");
    tg_reciprocal(t, tg_sub(t, x, x));
    ck_found("reciprocal made an infinity: result 0", "0 NaN, 4 infinite; input 0, f64[2, 2]: 0 NaN");
    tg_tensor *zero = tg_sub(t, x, x), *none = tg_div(t, zero, zero);
    ck_assert(!tg_is_alive(none));
    ck_found("div made a NaN", "; input 1, f64[2, 2]: 0 NaN, 0 infinite, all in [0, 0]");
    ck_assert(tg_is_alive(tg_log(t, tg_exp(t, x))));
    end();
}
END_TEST

START_TEST(only_requested_kinds_are_found) {
    begin_finding(TG_FIND_NAN);
    tg_tensor *x = leaf(0), *y = tg_reciprocal(t, x);
    ck_status(TG_OK);
    tg_sub(t, y, y);
    ck_found("sub made a NaN", "; input 0, f64[]: 0 NaN, 1 infinite;");
    tg_tape_find_nan(t, TG_FIND_INF);
    ck_assert(tg_is_alive(tg_log(t, tg_add_scalar(t, x, -1))));
    tg_log(t, x);
    ck_found("log made an infinity", "");
    const double v[] = {0, -1}; /* a NaN next to it does not hide it */
    tg_log(t, leaf_of(TG_SHAPE(2), v));
    ck_found("log made an infinity", "1 NaN, 1 infinite;");
    tg_tape_find_nan(t, 0);
    tg_log(t, tg_add_scalar(t, tg_log(t, x), -1));
    end();
}
END_TEST

START_TEST(brought_by_a_leaf) {
    begin_finding(BOTH);
    const double v[] = {1, NAN, 2, INFINITY, 3, 4}, m[] = {1, 0, 1, 0, 1, 1};
    tg_tensor *w = leaf_of(TG_SHAPE(2, 3), v), *x = leaf_of(TG_SHAPE(2, 3), m);
    tg_set_name(w, "w");
    tg_mul(t, x, w);
    ck_found("mul: input 1 brought NaN and infinities: it is a leaf, which no op has made; result 0, ",
             "; input 1, w f64[2, 3]: 1 NaN, 1 infinite, the numbers in [1, 4]");
    tg_matmul(t, x, tg_transpose(t, w, 0, 1));
    ck_found("matmul: input 1 brought", "it is a leaf");
    tg_tape_find_nan(t, 0);
    tg_tensor *before = tg_scale(t, w, 2);
    tg_tape_find_nan(t, BOTH);
    tg_neg(t, before);
    ck_found("neg: input 0 brought", "it was made before tg_tape_find_nan was set");
    tg_tensor *mask = tg_ne(t, x, tg_full(t, TG_F64, TG_SHAPE(), 0)); /* no element is used */
    ck_assert(tg_is_alive(tg_where(t, mask, w, tg_full(t, TG_F64, TG_SHAPE(), 0))));
    end();
}
END_TEST

START_TEST(any_tensor_is_described) {
    begin_finding(BOTH);
    tg_tensor *none = tg_zeros(ctx, TG_F64, TG_SHAPE(0, 3)), *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(2));
    ck_assert(tg_is_alive(tg_exp(t, none)) && tg_is_alive(tg_add(t, ids, ids)));
    for (int d = 0; d < 3; d++) {
        const tg_dtype dtype[] = {TG_F32, TG_BF16, TG_F16};
        tg_tensor *x = tg_zeros(ctx, dtype[d], TG_SHAPE(3));
        ck_assert(tg_is_alive(tg_exp(t, x)));
        tg_log(t, x);
        ck_found("log made an infinity", "3 infinite; input 0");
    }
    const double v[] = {-1, 0, 1};
    tg_tensor *h = tg_scale(t, leaf_of(TG_SHAPE(3), v), 1e200);
    tg_mul_(t, h, tg_square(t, tg_scale(t, leaf_of(TG_SHAPE(3), v), 1e100)));
    ck_found("mul_ made an infinity", "; input 0, which it overwrote; input 1");
    end();
}
END_TEST

/* ---- Backward ---- */

START_TEST(a_nan_made_in_backward_is_found) {
    begin_finding(BOTH);
    const double v[] = {4, 0, 9};
    tg_tensor *x = leaf_of(TG_SHAPE(3), v);
    tg_set_name(x, "x");
    for (int step = 0; step < 2; step++) { /* the setting outlasts resets */
        tg_backward(t, tg_sum(t, tg_sqrt(t, x), TG_ALL_DIMS, false));
        ck_assert_msg(strstr(tg_ctx_message(ctx), "in the backward of op sqrt"), "%s", tg_ctx_message(ctx));
        ck_found("the backward of sqrt made an infinity: the gradient of input 0, f64[3]: 0 NaN, 1 infinite, the "
                 "numbers in [0.166667, 0.25]; of result 0, f64[3]: 0 NaN, 0 infinite, all in [1, 1]",
                 "; input 0, x f64[3]: 0 NaN, 0 infinite, all in [0, 9]");
        tg_zero_grad(x);
    }
    /* gradient of a result, in the slot's own buffer */
    tg_backward(t, tg_sum(t, tg_sqrt(t, tg_scale(t, x, 2)), TG_ALL_DIMS, false));
    ck_found("the backward of sqrt made an infinity", "");
    tg_tensor *y = tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false);
    ck_assert(tg_backward(t, y) == TG_OK);
    end();
}
END_TEST

static tg_status spoil(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)x;
    *g = tg_scale(tape, *g, INFINITY);
    return TG_OK;
}

static tg_status spoil_unseen(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)x;
    (void)tape;
    *g = user;
    return TG_OK;
}

START_TEST(a_nan_from_elsewhere_is_named) {
    begin_finding(BOTH);
    const double bad = NAN;
    tg_tensor *x = leaf(2), *y = tg_square(t, x), *seed = tg_from_host(ctx, TG_F64, TG_SHAPE(), &bad);
    tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &seed));
    ck_found("the gradient of result 0 of square has a NaN, from a seed, a hook", "f64[]: 1 NaN");
    y = tg_square(t, x);
    tg_on_grad(y, spoil_unseen, seed);
    tg_backward(t, tg_scale(t, y, 3));
    ck_found("the gradient of result 0 of square has a NaN", "");
    y = tg_square(t, x);
    tg_on_grad(y, spoil, NULL); /* ops that a hook records are observed like any op */
    tg_backward(t, tg_scale(t, y, 3));
    ck_assert(tg_ctx_status(ctx) == TG_ERR_CALLBACK || tg_ctx_status(ctx) == TG_ERR_DATA);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    end();
}
END_TEST

START_TEST(a_nan_accumulated_before_is_named) {
    begin_finding(BOTH);
    const double bad = INFINITY;
    tg_tensor *x = leaf(2), *g = tg_zeros(ctx, TG_F64, TG_SHAPE());
    tg_set_name(x, "x");
    tg_set_main_grad(x, g);
    ck_assert(tg_backward(t, tg_square(t, x)) == TG_OK);
    tg_tape_reset(t);
    tg_write(g, &bad, sizeof bad);
    tg_backward(t, tg_square(t, x));
    ck_found("the gradient of x f64[] had an infinity before this backward: f64[]: 0 NaN, 1 infinite", "");
    tg_zero_grad(x); /* a value that is overwritten is ignored */
    ck_assert(tg_backward(t, tg_square(t, x)) == TG_OK && grad(x) == 4);
    tg_tape_reset(t);
    const float huge = INFINITY; /* added to after the op has written */
    tg_tensor *h = tg_zeros(ctx, TG_BF16, TG_SHAPE()), *sum = tg_zeros(ctx, TG_F32, TG_SHAPE());
    tg_set_name(h, "h");
    tg_set_requires_grad(h, true);
    tg_set_main_grad(h, sum);
    ck_assert(tg_backward(t, tg_square(t, h)) == TG_OK);
    tg_tape_reset(t);
    tg_write(sum, &huge, sizeof huge);
    tg_backward(t, tg_square(t, h));
    ck_found("the gradient of h bf16[] had an infinity before this backward: ", "");
    end();
}
END_TEST

static tg_status leave_as_it_is(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)tape, (void)x, (void)g;
    return TG_OK;
}

/* Check mode fills a new gradient with NaN. It is no value that a backward has accumulated. */
START_TEST(gradients_without_a_value_are_not_searched) {
    begin_finding(BOTH);
    tg_tensor *x = leaf(3), *y = tg_square(t, x), *g;
    ck_assert(tg_grad(t, &y, 1, &x, 1, &g, NULL) == TG_OK && tg_item(g) == 6);
    tg_on_grad(x, leave_as_it_is, NULL);
    ck_assert(tg_backward(t, tg_square(t, x)) == TG_OK && grad(x) == 6);
    ck_assert(tg_backward(t, tg_mul(t, x, x)) == TG_OK && grad(x) == 12); /* x is given twice */
    end();
}
END_TEST

/* ---- Nested in other features ---- */

static tg_status root_of_log(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_sqrt(tape, tg_log(tape, in[0]));
    return TG_OK;
}

START_TEST(recomputed) {
    begin_finding(BOTH);
    tg_tensor *x = leaf(-1), *one = leaf(1), *y;
    tg_recompute(t, root_of_log, NULL, &x, 1, &y, 1, NULL);
    ck_found("log made a NaN", "called from");
    ck_assert(tg_recompute(t, root_of_log, NULL, &one, 1, &y, 1, NULL) == TG_OK);
    tg_backward(t, y);
    ck_found("the backward of sqrt made an infinity", "in the backward of op recompute");
    end();
}
END_TEST

START_TEST(recorded_derivatives_are_searched) {
    begin_finding(BOTH);
    tg_tensor *x = leaf(0), *y = tg_sqrt(t, x), *g;
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
    ck_found("made an infinity", "in the derivative of op sqrt");
    end();
}
END_TEST

static tg_status on_rank(void *arg, tg_ctx *mine, tg_comm *world) {
    bool *named = arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *tape = tg_tape_new(mine);
    tg_tape_find_nan(tape, BOTH);
    tg_all_reduce(tape, tg_zeros(mine, TG_F32, TG_SHAPE(2)), world);
    if (tg_comm_rank(world) == 1) {
        tg_log(tape, tg_zeros(mine, TG_F64, TG_SHAPE(2)));
        *named =
            strstr(tg_ctx_message(mine), "log made an infinity") && strstr(tg_ctx_message(mine), ", on rank 1 (op");
    } else {
        tg_all_reduce(tape, tg_zeros(mine, TG_F32, TG_SHAPE(2)), world);
    }
    tg_status s = tg_ctx_status(mine);
    tg_tape_free(tape);
    tg_parallel_free(p);
    return s;
}

START_TEST(on_ranks) {
    bool named = false;
    ck_assert(tg_ranks_run(2, on_rank, &named, NULL) == TG_ERR_DATA && named);
}
END_TEST

/* ---- An observer ---- */

typedef struct diary {
    char text[1024];
    int n;
    const char *fail_at;
    bool records;
} diary;

static tg_status note(void *user, tg_tape *tape, const tg_op_event *s) {
    diary *d = user;
    size_t n = strlen(d->text);
    ck_assert(s->size == sizeof *s);
    snprintf(d->text + n, sizeof d->text - n, "%s%s#%d", s->backward ? "-" : "+", s->op, (int)s->number);
    for (int i = 0; s->backward && i < s->n_in; i++) {
        n = strlen(d->text);
        if (s->gin[i]) snprintf(d->text + n, sizeof d->text - n, "(%g)", tg_item(s->gin[i]));
    }
    if (d->records) tg_exp(tape, s->backward ? s->gout[0] : s->out[0]);
    strcat(d->text, " ");
    return d->fail_at && !strcmp(d->fail_at, s->op) ? TG_ERR_DATA : TG_OK;
}

START_TEST(watchers) {
    begin();
    diary d = {.n = 0};
    tg_tensor *x = leaf(3), *h = tg_scale(t, x, 2);
    ck_assert(tg_tape_observe(t, note, &d) == TG_OK);
    for (int records = 0; records < 2; records++) {
        d.records = records;
        d.text[0] = 0;
        tg_tensor *y = tg_mul(t, tg_square(t, h), x);
        tg_tensor *z = tg_reshape(t, y, TG_SHAPE());
        tg_backward(t, z);
        ck_status(TG_OK);
        ck_assert_str_eq(d.text, "+square#0 +mul#1 +reshape#2 -reshape#2(1) -mul#1(3)(36) -square#0(36) "
                                 "-scale#-1(108) ");
        tg_zero_grad(x);
        tg_tape_reset(t);
        tg_tape_observe(t, NULL, NULL);
        h = tg_scale(t, x, 2);
        tg_tape_observe(t, note, &d);
    }
    d.fail_at = "square";
    ck_assert(!tg_is_alive(tg_square(t, x)));
    ck_status(TG_ERR_CALLBACK);
    ck_says("the observer at op square failed with TG_ERR_DATA");
    tg_ctx_clear(ctx);
    tg_tape_observe(t, NULL, NULL);
    d.text[0] = 0;
    tg_square(t, x);
    ck_assert_str_eq(d.text, "");
    end();
}
END_TEST

static tg_status fail_once(void *user, tg_tape *tape, const tg_op_event *s) {
    int *failures = user;
    (void)tape;
    return s->backward && (*failures)++ == 0 ? TG_ERR_DATA : TG_OK;
}

/* The head's backward computes the gradient of its logits in the memory of its saved logits, and fails afterwards
 * here. In two chunks of rows. */
START_TEST(a_backward_after_one_that_failed) {
    enum { ROWS = 515, CLASSES = 2049 };
    double v[CLASSES], gx[2][ROWS], gw[2][CLASSES];
    int64_t classes[ROWS];
    for (int i = 0; i < CLASSES; i++) v[i] = (i * 37 % 101) / 50.0 - 1;
    for (int i = 0; i < ROWS; i++) classes[i] = i * 3;
    for (int failing = 0; failing < 2; failing++) {
        int failures = 1 - failing;
        begin();
        tg_tensor *x = leaf_of(TG_SHAPE(ROWS, 1), v), *w = leaf_of(TG_SHAPE(CLASSES, 1), v);
        tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(ROWS), classes);
        tg_tensor *loss = tg_linear_cross_entropy(t, x, w, target, NULL);
        tg_tape_observe(t, fail_once, &failures);
        tg_backward(t, loss);
        ck_status(failing ? TG_ERR_CALLBACK : TG_OK);
        if (failing) {
            tg_ctx_clear(ctx);
            tg_zero_grad(x);
            tg_zero_grad(w);
            tg_backward(t, loss);
            ck_status(TG_OK);
        }
        tg_read(tg_grad_of(x), gx[failing], sizeof gx[failing]);
        tg_read(tg_grad_of(w), gw[failing], sizeof gw[failing]);
        tg_drop(target);
        end();
    }
    ck_assert_mem_eq(gx[0], gx[1], sizeof gx[0]);
    ck_assert_mem_eq(gw[0], gw[1], sizeof gw[0]);
}
END_TEST

static tg_status take_site(void *user, tg_tape *tape, const tg_op_event *s) {
    (void)tape;
    tg_op_event_site(s, user, 200);
    return TG_OK;
}

static tg_status take_long_site(void *user, tg_tape *tape, const tg_op_event *s) {
    (void)tape;
    size_t length = tg_op_event_site(s, NULL, 0);
    ck_assert(tg_op_event_site(s, user, 600) == length && strlen(user) == length);
    return TG_OK;
}

START_TEST(sites) {
    begin();
    char site[200] = "";
    tg_tape_observe(t, take_site, site);
    tg_scope_open(t, "outer");
    tg_tensor *y = tg_square(t, leaf(1));
    tg_scope_close(t, &y, 1);
    ck_assert_msg(!strncmp(site, "outer, called from ", 19), "%s", site);
    site[0] = 0;
    tg_backward(t, y);
    ck_assert_msg(!strncmp(site, "outer, called from ", 19), "%s", site);
    ck_assert(tg_op_event_site(NULL, NULL, 0) == 0);
    char name[301] = "", all[600];
    memset(name, 'n', sizeof name - 1);
    tg_tape_observe(t, take_long_site, all);
    tg_scope_open(t, name);
    y = tg_square(t, y);
    tg_scope_close(t, &y, 1);
    ck_assert_msg(!strncmp(all, name, 300) && !strncmp(all + 300, ", called from test_observers.c:", 31), "%s", all);
    end();
}
END_TEST

static tg_status close_scope(void *user, tg_tape *tape, const tg_op_event *s) {
    if (s->number == 0) *(tg_status *)user = tg_scope_close(tape, NULL, 0);
    tg_ctx_clear(tg_tape_ctx(tape));
    return TG_OK;
}

START_TEST(the_scope_of_a_layer_is_not_closed) {
    begin();
    tg_status closed = TG_OK;
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.vocab = 16, .positions = 4, .hidden = 8, .heads = 2, .layers = 1));
    tg_tensor *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(1, 4));
    tg_tape_observe(t, close_scope, &closed);
    ck_assert(tg_is_alive(tg_gpt_loss(gpt, t, ids, ids, TG_LOSS_MEAN)));
    ck_assert(closed == TG_ERR_STATE);
    tg_tape_reset(t);
    tg_module_free(gpt);
    end();
}
END_TEST

/* What an observer has seen of the times and the nodes of ops. */
typedef struct timeline {
    double end, busy; /* when the last op ended; seconds within ops */
    int forward, backward, views;
    int64_t flops, saved;
} timeline;

static tg_status take_times(void *user, tg_tape *tape, const tg_op_event *s) {
    timeline *w = user;
    const tg_node *node = tg_op_event_node(s);
    (void)tape;
    ck_assert(!node == !s->backward);
    ck_assert(!node || !strcmp(tg_node_op(node)->name, s->op));
    ck_assert(s->ended >= s->began);
    w->views += s->began == 0;
    if (s->began == 0) return TG_OK;
    ck_assert_msg(s->began >= w->end, "%s began at %.9f, before %.9f", s->op, s->began, w->end);
    w->end = s->ended;
    w->busy += s->ended - s->began;
    *(s->backward ? &w->backward : &w->forward) += 1;
    if (node) w->flops += tg_node_flops(node), w->saved += tg_node_saved_bytes(node);
    return TG_OK;
}

START_TEST(times_and_nodes_of_ops) {
    begin();
    timeline w = {0};
    tg_tape_observe(t, take_times, &w);
    tg_tensor *x = tg_param_new(ctx, "x", TG_F64, TG_SHAPE(64, 64), 1);
    tg_tensor *y = tg_matmul(t, tg_transpose(t, x, 0, 1), x);
    tg_backward(t, tg_sum(t, tg_exp(t, y), TG_ALL_DIMS, false));
    ck_assert_int_eq(w.forward, 3);
    ck_assert_int_eq(w.views, 1);
    ck_assert_int_eq(w.backward, 4);
    ck_assert_msg(w.flops >= 2 * 64 * 64 * 64, "%lld", (long long)w.flops);
    ck_assert_msg(w.saved > 0 && w.busy > 0, "%lld, %g s", (long long)w.saved, w.busy);
    end();
}
END_TEST

static void never(void *state) { ck_assert_msg(state != NULL, "a node without state has none to end"); }

START_TEST(nodes_without_state) {
    begin_finding(BOTH);
    tg_tensor *x = leaf(1), *y;
    tg_tape_set_timing(t, true);
    ck_assert(tg_apply(t, tg_op_find("exp"), NULL, &x, 1, &y, 1, NULL, never, TG_SITE) == TG_OK);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_nan_made_in_forward_is_found,
                            only_requested_kinds_are_found,
                            brought_by_a_leaf,
                            any_tensor_is_described,
                            a_nan_made_in_backward_is_found,
                            a_nan_from_elsewhere_is_named,
                            a_nan_accumulated_before_is_named,
                            gradients_without_a_value_are_not_searched,
                            recomputed,
                            recorded_derivatives_are_searched,
                            on_ranks,
                            watchers,
                            a_backward_after_one_that_failed,
                            nodes_without_state,
                            sites,
                            the_scope_of_a_layer_is_not_closed,
                            times_and_nodes_of_ops};
    return tg_check_main("watch", tests, sizeof tests / sizeof *tests);
}
