/* Weight gradients of whole tapes in a list (tg_tape_defer), which the caller runs part by part (tg_wgrads_run_to). */
#include <tapegrad/backward.h>
#include <tapegrad/recompute.h>
#include <tapegrad/tensor_parallel.h>

#include "on_ranks.h"

enum { S = 8, B = 2, IN = 6, OUT = 10, LAYERS = 7, X = 1, W = 2 };

/* One linear layer of each kind. */
static tg_tensor *layer(tg_tape *t, int kind, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_wgrads *own) {
    switch (kind) {
    case 0:
        return tg_linear(t, x, w, b);
    case 1:
        return tg_linear_relu(t, x, w, b);
    case 2:
        return tg_linear_gelu(t, x, w, b);
    case 3:
        return tg_linear_gelu_tanh(t, x, w, b);
    case 4:
        return tg_linear_silu(t, x, w, NULL);
    case 5:
        return tg_linear_with_grad_accumulation(t, x, w, b, NULL, NULL);
    default:
        return tg_linear_with_grad_accumulation(t, x, w, b, NULL, TG_LINEAR_GRAD(.deferred = own));
    }
}

typedef struct layers {
    tg_tensor *w[LAYERS], *b[LAYERS];
    tg_wgrads *own; /* of the last layer */
} layers;

static layers make(tg_ctx *ctx) {
    layers m = {.own = tg_wgrads_new(ctx, TG_NONE)};
    for (int i = 0; i < LAYERS; i++) {
        m.w[i] = grad_leaf(made(ctx, W + i, TG_SHAPE(OUT, IN)));
        m.b[i] = grad_leaf(made(ctx, W + LAYERS + i, TG_SHAPE(OUT)));
    }
    return m;
}

static tg_status all_layers(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    layers *m = state;
    (void)n_in, (void)n_out;
    out[0] = NULL;
    for (int i = 0; i < LAYERS; i++) {
        tg_tensor *y = tg_tanh(t, layer(t, i, tg_scale(t, in[0], 1 + i), m->w[i], m->b[i], m->own));
        out[0] = out[0] ? tg_add(t, out[0], y) : y;
    }
    return TG_OK;
}

/* Runs forward and backward of micro-batch k on t. */
static void backward(tg_ctx *ctx, tg_tape *t, layers *m, int k, bool recompute) {
    tg_tensor *x = grad_leaf(made(ctx, X + k, TG_SHAPE(S, B, IN))), *y;
    if (recompute)
        tg_recompute(t, all_layers, m, &x, 1, &y, 1, NULL);
    else
        all_layers(m, t, &x, 1, &y, 1);
    tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
    tg_tape_reset(t);
    tg_drop(x);
}

static void check_equal(layers *a, layers *b) {
    for (int i = 0; i < LAYERS; i++) {
        ck_assert_double_eq(off(tg_grad_of(a->w[i]), tg_grad_of(b->w[i]), -1, 0, 1), 0);
        if (i != 4) ck_assert_double_eq(off(tg_grad_of(a->b[i]), tg_grad_of(b->b[i]), -1, 0, 1), 0);
    }
}

static void close(tg_ctx *ctx) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}

/* Every kind of layer defers its weight, also when it is recomputed, and also if it has a list of its own. The mode
 * outlasts a reset, and ends with NULL. */
START_TEST(every_linear_of_the_tape_defers) {
    for (int recompute = 0; recompute < 2; recompute++) {
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .check = true));
        layers now = make(ctx), later = make(ctx);
        tg_tape *t = tg_tape_new(ctx), *deferring = tg_tape_new(ctx);
        tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE);
        ck_assert(tg_tape_defer(deferring, d) == TG_OK);
        for (int k = 0; k < 2; k++) {
            backward(ctx, t, &now, k, recompute);
            tg_wgrads_run(now.own);
            backward(ctx, deferring, &later, k, recompute);
            ck_assert_int_eq(tg_wgrads_count(d), LAYERS * (k + 1));
            ck_assert(!tg_has_grad(later.w[0]) && tg_has_grad(later.b[0]));
        }
        ck_assert_int_eq(tg_wgrads_count(later.own), 0);
        ck_assert(tg_wgrads_run(d) == TG_OK);
        check_equal(&now, &later);
        ck_assert(tg_tape_defer(deferring, NULL) == TG_OK);
        backward(ctx, t, &now, 2, recompute);
        backward(ctx, deferring, &later, 2, recompute);
        ck_assert_int_eq(tg_wgrads_count(d), 0);
        ck_assert_int_eq(tg_wgrads_count(later.own), 1);
        tg_wgrads_run(now.own);
        tg_wgrads_run(later.own);
        check_equal(&now, &later);
        tg_wgrads_free(d);
        tg_wgrads_free(now.own);
        tg_wgrads_free(later.own);
        close(ctx);
    }
}
END_TEST

/* Marks divide the list; entries before a mark run, those after it wait. */
START_TEST(marks_divide_the_list) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    layers now = make(ctx), later = make(ctx);
    tg_tape *t = tg_tape_new(ctx), *deferring = tg_tape_new(ctx);
    tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE);
    int64_t mark[3];
    tg_tape_defer(deferring, d);
    for (int k = 0; k < 3; k++) {
        backward(ctx, deferring, &later, k, false);
        mark[k] = tg_wgrads_mark(d);
        ck_assert_int_eq(mark[k], LAYERS * (k + 1));
    }
    backward(ctx, t, &now, 0, false);
    tg_wgrads_run(now.own);
    ck_assert(tg_wgrads_run_to(d, mark[0]) == TG_OK);
    ck_assert_int_eq(tg_wgrads_count(d), 2 * LAYERS);
    for (int i = 0; i < LAYERS; i++)
        ck_assert_double_eq(off(tg_grad_of(now.w[i]), tg_grad_of(later.w[i]), -1, 0, 1), 0);
    ck_assert(tg_wgrads_run_to(d, mark[0]) == TG_OK); /* they have run already */
    ck_assert_int_eq(tg_wgrads_count(d), 2 * LAYERS);
    ck_assert(tg_wgrads_run_to(d, mark[2] + 1) == TG_ERR_ARGUMENT);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "mark is 22, expected a result of tg_wgrads_mark on this list, 0 to 21"),
                  "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    ck_assert(tg_wgrads_run_to(d, mark[2]) == TG_OK);
    for (int k = 1; k < 3; k++) {
        backward(ctx, t, &now, k, false);
        tg_wgrads_run(now.own);
    }
    check_equal(&now, &later);
    ck_assert_int_eq(tg_wgrads_mark(d), mark[2]);
    tg_wgrads_free(d);
    tg_wgrads_free(now.own);
    tg_wgrads_free(later.own);
    close(ctx);
}
END_TEST

/* A list may end before the tape, and a tape before the list. A list of another context is refused. */
START_TEST(tape_and_list_end_in_any_order) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64)),
           *far = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    layers m = make(ctx);
    tg_tape *t = tg_tape_new(ctx);
    tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE), *other = tg_wgrads_new(far, TG_NONE);
    ck_assert(tg_tape_defer(t, other) == TG_ERR_ARGUMENT);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "tg_tape_defer: d is a list of another context"), "%s",
                  tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_tape_defer(t, d);
    tg_wgrads_free(d);
    backward(ctx, t, &m, 0, false);
    ck_assert(tg_has_grad(m.w[0]));
    d = tg_wgrads_new(ctx, TG_NONE);
    tg_tape_defer(t, d);
    for (int i = 0; i < LAYERS; i++) tg_zero_grad(m.w[i]);
    backward(ctx, t, &m, 0, false);
    tg_tape_free(t);
    ck_assert_int_eq(tg_wgrads_count(d), LAYERS);
    ck_assert(tg_wgrads_run(d) == TG_OK && tg_has_grad(m.w[0]));
    t = tg_tape_new(ctx); /* in the memory of the freed one, without its mode */
    backward(ctx, t, &m, 0, false);
    ck_assert_int_eq(tg_wgrads_count(d), 0);
    tg_wgrads_free(d);
    tg_wgrads_free(m.own);
    tg_wgrads_free(other);
    tg_tape_free(t);
    close(far);
    close(ctx);
}
END_TEST

/* Under sequence parallelism an entry gathers its rows when it runs. */
static tg_status sequence(void *arg, tg_ctx *ctx, tg_comm *world) {
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_tensor *w[2], *x = part(ctx, X, TG_SHAPE(S, B, IN), 0, r, n);
    tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE);
    (void)arg;
    for (int i = 0; i < 2; i++) {
        w[i] = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
        tg_tape *t = tg_tape_new(ctx);
        if (i) RUN(tg_tape_defer(t, d));
        tg_tensor *y = tg_linear_with_grad_accumulation(t, tg_square(t, x), w[i], NULL, world,
                                                        TG_LINEAR_GRAD(.sequence_parallel = true));
        tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
        tg_tape_free(t);
    }
    EXPECT(ctx, tg_wgrads_count(d) == 1 && !tg_has_grad(w[1]));
    RUN(tg_wgrads_run_to(d, tg_wgrads_mark(d)));
    EXPECT(ctx, off(tg_grad_of(w[1]), tg_grad_of(w[0]), -1, 0, 1) == 0);
    tg_wgrads_free(d);
    return tg_ctx_status(ctx);
}

START_TEST(an_entry_gathers_its_rows) { on_ranks(2, sequence, NULL); }
END_TEST

/* ---- Heads with their loss ---- */

typedef struct head {
    int64_t rows, classes, width;
    int waits; /* entries of a backward: 0 if the logits are several chunks */
} head;

/* Runs forward and backward of a head on t. Divided over c unless that is NULL; the last rank then has a row of
 * w that stands for no class. */
static void head_backward(tg_tape *t, const head *h, tg_tensor *x, tg_tensor *w, tg_comm *c) {
    int64_t ids[1030] = {0}, all = c ? h->classes * tg_comm_size(c) - 1 : h->classes;
    for (int64_t i = 0; i < h->rows; i++) ids[i] = 7 * i % all;
    tg_tensor *target = tg_from_host(tg_tape_ctx(t), TG_I64, TG_SHAPE(2, h->rows / 2), ids), *loss;
    if (c)
        loss = tg_vocab_parallel_linear_cross_entropy(t, x, w, target, c,
                                                      TG_VOCAB(.classes = all, .reduction = TG_LOSS_SUM));
    else
        loss = tg_linear_cross_entropy(t, x, w, target, TG_CROSS_ENTROPY(.reduction = TG_LOSS_SUM));
    tg_backward(t, loss);
    tg_tape_reset(t);
    tg_drop(target);
}

/* Compares a head whose weight gradient waits with one whose gradient does not, over two backwards. */
static tg_status heads(void *arg, tg_ctx *ctx, tg_comm *world) {
    const head *h = arg;
    tg_comm *c = tg_comm_size(world) > 1 ? world : NULL;
    tg_tensor *w[2], *x[2];
    tg_tape *t[2] = {tg_tape_new(ctx), tg_tape_new(ctx)};
    tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE);
    RUN(tg_tape_defer(t[1], d));
    for (int i = 0; i < 2; i++) {
        x[i] = grad_leaf(made(ctx, X, TG_SHAPE(2, h->rows / 2, h->width)));
        w[i] = grad_leaf(made(ctx, W, TG_SHAPE(h->classes, h->width)));
        for (int k = 0; k < 2; k++) head_backward(t[i], h, x[i], w[i], c);
    }
    EXPECT(ctx, tg_wgrads_count(d) == 2 * h->waits);
    EXPECT(ctx, tg_has_grad(w[1]) == !h->waits);
    RUN(tg_wgrads_run(d));
    EXPECT(ctx, off(tg_grad_of(w[1]), tg_grad_of(w[0]), -1, 0, 1) == 0);
    EXPECT(ctx, off(tg_grad_of(x[1]), tg_grad_of(x[0]), -1, 0, 1) == 0);
    tg_wgrads_free(d);
    for (int i = 0; i < 2; i++) tg_tape_free(t[i]), tg_drop(w[i]), tg_drop(x[i]);
    return tg_ctx_status(ctx);
}

/* The gradient of the logits takes the memory of their last chunk. If that is the only one, the weight gradient waits;
 * if there are several, backward adds up their products. */
START_TEST(a_head_with_its_loss_defers_if_its_logits_are_one_chunk) {
    on_ranks(1, heads, &(head){.rows = S * B, .classes = OUT, .width = IN, .waits = 1});
    on_ranks(2, heads, &(head){.rows = S * B, .classes = OUT, .width = IN, .waits = 1});
    on_ranks(1, heads, &(head){.rows = 1030, .classes = 2049, .width = 2, .waits = 0});
    on_ranks(2, heads, &(head){.rows = 1030, .classes = 2049, .width = 2, .waits = 0});
}
END_TEST

int main(void) {
    const TTest *const tests[] = {every_linear_of_the_tape_defers, marks_divide_the_list,
                                  tape_and_list_end_in_any_order, an_entry_gathers_its_rows,
                                  a_head_with_its_loss_defers_if_its_logits_are_one_chunk};
    return tg_check_main("defer", tests, sizeof tests / sizeof *tests);
}
