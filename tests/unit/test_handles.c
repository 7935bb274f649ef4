/* How long handles last for a program that keeps pointers: holds over many resets, releases without resets, and what
 * tg_tape_collect ends. */
#include "world.h"

#include <stdlib.h>

#include <tapegrad/explain.h>
#include <tapegrad/op.h>

#include "tape/tape.h"

static int64_t allocations(void) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.host_allocations;
}

static int64_t live(void) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.live;
}

/* Returns how many slabs of handles the tape has. */
static int slabs(void) {
    int n = 0;
    for (const tg_slab *s = t->slabs; s; s = s->next) n++;
    return n;
}

/* A call that reads x refuses it, because its tape was reset or it was released. */
static void ck_ended(tg_tensor *x) {
    ck_assert(!tg_is_alive(x) && tg_numel(x) == 0 && !tg_tape_of(x));
    ck_assert(!tg_is_alive(tg_square(t, x)));
    ck_status(TG_ERR_HANDLE);
    tg_ctx_clear(ctx);
}

/* ---- Holds ---- */

START_TEST(held_handles_are_dead_after_a_thousand_resets) {
    enum { STEPS = 1000, EACH = 3 };
    static tg_tensor *held[STEPS];
    begin();
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < EACH; i++) {
            tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(2), step);
            if (i == 1) ck_assert(tg_hold(held[step] = x));
            for (int k = 0; k < step; k += 37) ck_assert(held[k] != x);
        }
        ck_assert(tg_is_alive(held[step]));
        tg_tape_reset(t);
        for (int k = step % 7; k <= step; k += 7) ck_assert(!tg_is_alive(held[k]));
        if (step % 100 == 99)
            for (int k = 0; k <= step; k++) ck_ended(held[k]);
    }
    int before = slabs();
    for (int k = 0; k < STEPS; k++) tg_unhold(held[k]);
    for (int k = 0; k < STEPS; k++) tg_full(t, TG_F64, TG_SHAPE(2), k);
    ck_assert_int_eq(slabs(), before); /* the slots are used again */
    end();
}
END_TEST

START_TEST(holds_are_counted_and_keep_no_bytes) {
    begin();
    int64_t before = live();
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(1000), 1);
    ck_assert(tg_hold(x) && tg_hold(x));
    tg_tape_reset(t);
    ck_assert_int_eq(live(), before);
    tg_unhold(x);
    for (int i = 0; i < 200; i++) ck_assert(tg_full(t, TG_F64, TG_SHAPE(1), 1) != x);
    ck_ended(x);
    ck_assert(tg_hold(x)); /* an ended handle that is held may be held again */
    tg_unhold(x);
    tg_unhold(x);
    ck_assert(!tg_hold(NULL) && !tg_hold(tg_tape_input(t, NULL)));
    ck_status(TG_ERR_ARGUMENT);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(handles_of_the_context_are_held_too) {
    begin();
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
    tg_hold(x);
    tg_drop(x);
    for (int i = 0; i < 300; i++) {
        tg_tensor *y = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
        ck_assert(y != x);
        tg_drop(y);
    }
    ck_ended(x);
    tg_unhold(x);
    tg_tensor *w = leaf(3); /* dropped while a node uses it */
    tg_tensor *y = tg_square(t, w);
    tg_hold(w);
    tg_drop(w);
    ck_ended(w);
    tg_unhold(w);
    tg_backward(t, y);
    end();
}
END_TEST

START_TEST(holds_survive_the_tape) {
    begin();
    tg_tape *other = tg_tape_new(ctx);
    tg_tensor *x = tg_full(other, TG_F64, TG_SHAPE(2), 1);
    tg_hold(x);
    tg_tape_free(other);
    for (int i = 0; i < 4; i++) {
        other = tg_tape_new(ctx); /* reuses the memory of the freed tape */
        ck_assert(tg_full(other, TG_F64, TG_SHAPE(2), 1) != x);
        ck_ended(x);
        tg_tape_free(other);
    }
    tg_unhold(x);
    end();
}
END_TEST

/* A hold that outlives its tape may be removed while the tape's memory waits for another tape, which then has all
 * slots. */
START_TEST(holds_end_after_their_tape) {
    begin();
    tg_tape *other = tg_tape_new(ctx);
    tg_tensor *x = tg_full(other, TG_F64, TG_SHAPE(2), 1);
    tg_hold(x);
    tg_tape_free(other);
    tg_unhold(x);
    other = tg_tape_new(ctx);
    tg_tensor *y = tg_full(other, TG_F64, TG_SHAPE(2), 2);
    tg_hold(y);
    tg_tape_reset(other);
    ck_ended(y);
    tg_unhold(y);
    end();
}
END_TEST

/* A scope passes over the slot of a held handle that has ended. The slot has no handle of this step, even if the hold
 * is removed before the scope closes. */
START_TEST(a_scope_has_no_handle_in_a_slot_that_was_held) {
    begin();
    for (int step = 0; step < 4; step++) { /* the steps put handles at either position of a slot */
        tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(2), step);
        tg_hold(x);
        tg_release(x);
        tg_tape_reset(t);
        tg_scope_open(t, "scope");
        tg_tensor *y = tg_full(t, TG_F64, TG_SHAPE(2), step);
        tg_unhold(x);
        tg_scope_close(t, &y, 1);
        tg_tape_collect(t);
    }
    end();
}
END_TEST

START_TEST(epochs_and_tapes) {
    begin();
    uint64_t first = tg_tape_epoch(t);
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(1), 1), *c = tg_zeros(ctx, TG_F64, TG_SHAPE(1));
    ck_assert(tg_tape_of(x) == t && !tg_tape_of(c) && !tg_tape_of(NULL));
    tg_tape_reset(t);
    ck_assert(tg_tape_epoch(t) != first && tg_tape_epoch(NULL) == 0);
    end();
}
END_TEST

/* ---- Releases ---- */

/* A small program with a gradient: a product, ops that save inputs or outputs, a view and a sum. Releases what it
 * makes, in an order that depends on `order`; order 0 releases nothing. */
static double run(tg_tensor *w, tg_tensor *x, int order) {
    tg_tensor *y[] = {tg_matmul(t, x, w), NULL, NULL, NULL, NULL};
    y[1] = tg_tanh(t, y[0]);
    y[2] = tg_reshape(t, y[1], TG_SHAPE(6));
    y[3] = tg_mul(t, y[2], tg_exp(t, y[2]));
    y[4] = tg_sum(t, y[3], TG_ALL_DIMS, false);
    for (int i = 0; i < 4 && order; i++) tg_release(y[order % 2 ? i : 3 - i]);
    tg_backward(t, y[4]);
    double loss = tg_item(y[4]);
    if (order) tg_release(y[4]);
    return loss;
}

START_TEST(gradients_are_the_same_with_releases) {
    static const double wv[] = {.5, -.25, 1, 2, -1, .125}, xv[] = {1, 2, 3, -1};
    double want[6], got[6];
    begin();
    tg_tensor *w = leaf_of(TG_SHAPE(2, 3), wv), *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2, 2), xv);
    double loss = run(w, x, 0);
    tg_read(tg_grad_of(w), want, sizeof want);
    for (int order = 1; order <= 2; order++) {
        tg_zero_grad(w);
        ck_assert(run(w, x, order) == loss);
        tg_read(tg_grad_of(w), got, sizeof got);
        ck_assert(memcmp(want, got, sizeof want) == 0);
    }
    end();
}
END_TEST

START_TEST(loops_without_reset_keep_their_memory) {
    enum { WARM = 1000, LOOPS = 100000 };
    static const double wv[] = {.5, -.25, 1, 2, -1, .125}, xv[] = {1, 2, 3, -1};
    int64_t host = 0, bytes = 0, nodes = 0;
    begin();
    tg_tensor *w = leaf_of(TG_SHAPE(2, 3), wv), *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2, 2), xv);
    const char *quick = getenv("TG_TEST_QUICK");
    for (int i = 0; i < (quick ? LOOPS / 20 : LOOPS); i++) {
        tg_scope_open(t, "loop");
        tg_tensor *y = tg_matmul(t, x, w), *z = tg_tanh(t, y), *sum = tg_sum(t, z, TG_ALL_DIMS, false);
        tg_scope_close(t, &sum, 1);
        tg_release(y);
        tg_release(z);
        if (i % 3 == 0) tg_backward(t, sum);
        tg_release(sum);
        if (i == WARM) host = allocations(), bytes = live(), nodes = tg_tape_nodes(t);
    }
    ck_assert_int_eq(allocations(), host);
    ck_assert_int_eq(live(), bytes);
    ck_assert_int_eq(tg_tape_nodes(t), nodes);
    ck_assert_int_eq(nodes, 1); /* that of leaf w */
    end();
}
END_TEST

/* More targets than a pass looks through one by one, with and without recorded derivatives. */
START_TEST(gradients_of_many_inputs_keep_their_memory) {
    enum { INPUTS = 100, WARM = 50, LOOPS = 500 };
    begin();
    tg_tensor *w[INPUTS], *g[INPUTS];
    int64_t host = 0;
    for (int k = 0; k < INPUTS; k++) w[k] = leaf(k);
    for (int i = 0; i < LOOPS; i++) {
        tg_tensor *y = w[0];
        for (int k = 1; k < INPUTS; k++) y = tg_add(t, y, w[k]);
        tg_grad(t, &y, 1, w, INPUTS, g, TG_GRAD(.create_graph = i % 2));
        tg_tape_collect(t);
        if (i == WARM) host = allocations();
    }
    ck_assert_int_eq(allocations(), host);
    end();
}
END_TEST

/* Recorded derivatives of ops of each kind: with a vjp, composed, linear, multilinear, element-wise, with a jvp made of
 * the vjp, and with several outputs. */
START_TEST(recorded_derivatives_keep_their_memory) {
    enum { WARM = 500, LOOPS = 5000 };
    static const double values[] = {.5, -.25, 1, 2};
    int64_t host = 0;
    begin();
    tg_tensor *w = leaf_of(TG_SHAPE(2, 2), values), *v = tg_from_host(ctx, TG_F64, TG_SHAPE(2, 2), values);
    for (int i = 0; i < LOOPS; i++) {
        tg_tensor *part[2], *g, *d, *y = tg_tanh(t, tg_matmul(t, w, v));
        tg_split(t, tg_lerp(t, y, v, w), 0, (const int64_t[]){1, 1}, 2, part);
        tg_tensor *loss = tg_mse(t, part[0], tg_scale(t, part[1], 2));
        tg_grad(t, &loss, 1, &w, 1, &g, TG_GRAD(.create_graph = true));
        tg_jvp(t, &loss, 1, &w, 1, &v, &d);
        tg_hvp(t, loss, &w, 1, &v, &d);
        tg_tape_collect(t);
        if (i == WARM) host = allocations();
    }
    ck_assert_int_eq(allocations(), host);
    end();
}
END_TEST

static tg_status exp_of(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_exp(tape, in[0]);
    return TG_OK;
}

START_TEST(recomputations_keep_their_memory) {
    enum { WARM = 50, LOOPS = 2000 };
    begin();
    tg_tensor *x = leaf(1), *frozen = tg_zeros(ctx, TG_F64, TG_SHAPE()), *y;
    int64_t host = 0;
    for (int i = 0; i < LOOPS; i++) {
        ck_assert(tg_recompute(t, exp_of, NULL, i % 3 ? &x : &frozen, 1, &y, 1, TG_RECOMPUTE(.name = "loop")) == TG_OK);
        if (i % 3 == 2) tg_backward(t, y);
        tg_tape_collect(t);
        if (i == WARM) host = allocations();
    }
    ck_assert_int_eq(allocations(), host);
    end();
}
END_TEST

START_TEST(results_without_nodes_end_at_once) {
    begin();
    tg_tape_set_grad_mode(t, false);
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(1000), 2);
    int64_t before = live();
    tg_tensor *y = tg_square(t, x), *view = tg_reshape(t, y, TG_SHAPE(10, 100));
    tg_hold(y);
    tg_release(y);
    ck_ended(y);
    double v[1000];
    tg_read(view, v, sizeof v); /* has the bytes of y */
    ck_assert(v[999] == 4 && live() > before);
    tg_release(view);
    ck_assert_int_eq(live(), before);
    tg_unhold(y);
    end();
}
END_TEST

START_TEST(long_chains_end_without_recursion) {
    enum { LONG = 200000 };
    begin();
    tg_tensor *w = leaf(1), *y = tg_neg(t, w);
    int64_t before = live();
    for (int i = 0; i < LONG; i++) {
        tg_tensor *next = tg_neg(t, y);
        tg_release(y);
        y = next;
    }
    ck_assert_int_eq(tg_tape_nodes(t), LONG + 2);
    tg_release(y);
    ck_assert_int_eq(tg_tape_nodes(t), 1);
    ck_assert(live() <= before);
    end();
}
END_TEST

START_TEST(dropped_leaves_end_with_their_last_node) {
    begin();
    int64_t before = live();
    for (int i = 0; i < 10; i++) {
        static const double v[1000];
        tg_tensor *x = leaf_of(TG_SHAPE(1000), v), *y = tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false);
        (void)y;
        tg_tape_collect(t); /* nothing is held: all nodes but that of the leaf end */
        ck_assert_int_eq(tg_tape_nodes(t), 1);
        tg_release(x);
        ck_assert_int_eq(tg_tape_nodes(t), 0);
    }
    ck_assert_int_eq(live(), before);
    tg_tensor *in = tg_tape_input(t, tg_zeros(ctx, TG_F64, TG_SHAPE(4)));
    tg_set_requires_grad(in, true);
    tg_tensor *y = tg_sum(t, tg_square(t, in), TG_ALL_DIMS, false);
    tg_release(in);
    tg_backward(t, y);
    ck_assert(tg_is_alive(in)); /* nodes use it */
    tg_hold(y);
    tg_tape_collect(t);
    ck_assert(tg_is_alive(y) && tg_tape_nodes(t) == 3);
    tg_unhold(y);
    tg_tape_collect(t);
    ck_assert_int_eq(tg_tape_nodes(t), 0);
    end();
}
END_TEST

/* Derivatives that are recorded later may use a constant that was released, but not one that was dropped. */
START_TEST(derivatives_use_released_constants) {
    begin();
    static const double v[] = {3, 4}, of[] = {5, 6};
    int64_t before = live();
    for (int dropped = 0; dropped < 2; dropped++) {
        tg_tensor *w = leaf_of(TG_SHAPE(2), v), *c = tg_from_host(ctx, TG_F64, TG_SHAPE(2), of), *g;
        tg_tensor *y = tg_sum(t, tg_mul(t, tg_square(t, w), c), TG_ALL_DIMS, false);
        (dropped ? tg_drop : tg_release)(c);
        tg_status s = tg_grad(t, &y, 1, &w, 1, &g, TG_GRAD(.create_graph = true));
        double got[2] = {0};
        if (s == TG_OK) tg_read_f64(g, got, 2);
        ck_assert(dropped ? s == TG_ERR_HANDLE : got[0] == 30 && got[1] == 48);
        tg_ctx_clear(ctx);
        tg_release(c); /* again: does nothing */
        tg_release(w);
        tg_tape_reset(t);
        ck_assert_int_eq(live(), before);
    }
    end();
}
END_TEST

/* ---- Releases within calls of the library ---- */

typedef struct ends {
    tg_tensor *x;
    int destroyed;
} ends;

static tg_status release_in_hook(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)x, (void)g;
    tg_release(((ends *)user)->x);
    ck_assert(tg_is_alive(((ends *)user)->x)); /* backward is running */
    return TG_OK;
}

START_TEST(releases_in_callbacks_are_done_after_them) {
    begin();
    tg_tensor *w = leaf(3), *y = tg_square(t, w);
    ends e = {.x = tg_exp(t, y)};
    tg_on_grad(y, release_in_hook, &e);
    tg_hold(e.x);
    tg_backward(t, e.x);
    ck_assert(tg_is_alive(e.x));
    tg_full(t, TG_F64, TG_SHAPE(), 0); /* the next op does it */
    ck_ended(e.x);
    tg_unhold(e.x);
    end();
}
END_TEST

static tg_status release_leaf_in_hook(void *user, tg_tape *tape, tg_tensor *x, tg_tensor **g) {
    (void)tape, (void)x, (void)g;
    tg_release(((ends *)user)->x);
    return TG_OK;
}

/* The node of a leaf that no other node uses ends too. */
START_TEST(leaves_released_in_callbacks_have_no_nodes_after_them) {
    begin();
    for (int held = 0; held < 2; held++) {
        tg_tensor *w = leaf(3), *y = tg_square(t, w);
        ends e = {.x = leaf(2)};
        tg_release(tg_exp(t, e.x)); /* the node of e.x stays */
        ck_assert_int_eq(tg_tape_nodes(t), 3);
        tg_on_grad(y, release_leaf_in_hook, &e);
        if (held) tg_hold(e.x);
        tg_backward(t, y);
        tg_release(tg_full(t, TG_F64, TG_SHAPE(), 0)); /* the next op does it */
        ck_assert_int_eq(tg_tape_nodes(t), 2);
        if (held) ck_ended(e.x);
        if (held) tg_unhold(e.x);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

START_TEST(overwritten_results_end_with_their_successor) {
    begin();
    tg_tensor *w = leaf(2), *y = tg_square(t, w), *z = tg_add_(t, y, w);
    tg_backward(t, z);
    ck_assert(grad(w) == 5);
    tg_release(z);
    ck_assert_int_eq(tg_tape_nodes(t), 1);
    int64_t host = 0;
    tg_tensor *c = tg_zeros(ctx, TG_F64, TG_SHAPE(2)), *d = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
    for (int i = 0; i < 2000; i++) {
        tg_add_(t, c, d); /* of the context: its handle stays */
        if (i == 500) host = allocations();
    }
    ck_assert_int_eq(allocations(), host);
    end();
}
END_TEST

/* ---- Random programs ---- */

static uint32_t state = 1;
static int draw(int n) {
    state = state * 1664525 + 1013904223;
    return (int)((state >> 8) % (uint32_t)n);
}

typedef struct kept {
    tg_tensor *x;
    double value;
    bool held;
} kept;

static tg_tensor *some_op(tg_tensor *a, tg_tensor *b) {
    switch (draw(6)) {
    case 0: return tg_add(t, a, b);
    case 1: return tg_mul(t, a, b);
    case 2: return tg_tanh(t, a);
    case 3: return tg_reshape(t, a, TG_SHAPE(1));
    case 4: return tg_detach(t, a);
    default: return tg_sum(t, a, TG_ALL_DIMS, true);
    }
}

/* Results that were not released keep their values. */
static void check_all(const kept *k, int n) {
    for (int i = 0; i < n; i++)
        if (k[i].x) {
            double now = tg_item(k[i].x);
            ck_assert(tg_is_alive(k[i].x) && memcmp(&now, &k[i].value, sizeof now) == 0);
        }
}

START_TEST(random_programs_hold_release_and_reset) {
    enum { N = 24 };
    begin();
    static const double one[] = {.5};
    tg_tensor *w = leaf_of(TG_SHAPE(1), one);
    int programs = getenv("TG_TEST_QUICK") ? 100 : 1000;
    tg_tensor *ghosts[64] = {0}; /* ended and held */
    for (int p = 0, n_ghosts = 0; p < programs; p++) {
        kept k[N] = {{0}};
        for (int op = 0; op < 60; op++) {
            kept *a = &k[draw(N)], *b = &k[draw(N)], *to = &k[draw(N)];
            tg_tape_set_grad_mode(t, draw(4) != 0);
            tg_tensor *y = some_op(a->x ? a->x : w, b->x ? b->x : w);
            tg_release(to->x);
            if (to->held) tg_unhold(to->x);
            *to = (kept){y, tg_item(y), draw(2)};
            if (to->held) tg_hold(y);
            tg_tape_set_grad_mode(t, true);
            if (draw(10) == 0) tg_backward(t, tg_square(t, w));
            if (draw(15) == 0) check_all(k, N);
        }
        for (int i = 0; i < N; i++) {
            if (!k[i].held) continue;
            tg_tensor **g = &ghosts[n_ghosts++ % 64];
            if (*g) tg_unhold(*g);
            *g = k[i].x;
        }
        if (draw(3)) tg_tape_reset(t);
        else tg_tape_collect(t);
        if (draw(3) == 0) tg_tape_reset(t);
        for (int i = 0; i < 64; i++) ck_assert(!ghosts[i] || tg_tape_of(ghosts[i]) == t || !tg_is_alive(ghosts[i]));
    }
    ck_status(TG_OK);
    tg_tape_reset(t);
    for (int i = 0; i < 64; i++)
        if (ghosts[i]) ck_ended(ghosts[i]);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {held_handles_are_dead_after_a_thousand_resets,
                            holds_are_counted_and_keep_no_bytes,
                            handles_of_the_context_are_held_too,
                            holds_survive_the_tape,
                            holds_end_after_their_tape,
                            a_scope_has_no_handle_in_a_slot_that_was_held,
                            epochs_and_tapes,
                            gradients_are_the_same_with_releases,
                            loops_without_reset_keep_their_memory,
                            gradients_of_many_inputs_keep_their_memory,
                            recorded_derivatives_keep_their_memory,
                            recomputations_keep_their_memory,
                            results_without_nodes_end_at_once,
                            long_chains_end_without_recursion,
                            dropped_leaves_end_with_their_last_node,
                            derivatives_use_released_constants,
                            releases_in_callbacks_are_done_after_them,
                            leaves_released_in_callbacks_have_no_nodes_after_them,
                            overwritten_results_end_with_their_successor,
                            random_programs_hold_release_and_reset};
    return tg_check_main("handles", tests, sizeof tests / sizeof *tests);
}
