/* The op norm_linear: equal to the norm and the linear layer as two ops in all bits; what it keeps and sends; deferred
 * weight gradients; refused calls. */
#include <tapegrad/extend.h>
#include <tapegrad/megatron.h>

#include "on_ranks.h"

enum { S = 8, B = 2, IN = 6, OUT = 12, X = 1, W, BIAS, NORM_W, NORM_B, GY, INPUTS = 5 };

/* Option k of run `run`: over runs 0 to 15, any two of 15 options have all four combinations equally often. */
static bool option(int run, int k) { return __builtin_parity((unsigned)run & (unsigned)(k + 1)); }

typedef struct plan {
    bool sp, reduce, rms, centered, bias, norm_bias, no_norm, frozen_w, frozen_x, strided, again, fused;
    tg_dtype dtype;
} plan;

static plan plan_of(int run, tg_dtype dtype) {
    plan p = {.sp = option(run, 0),
              .reduce = !option(run, 0) && option(run, 1),
              .rms = option(run, 2),
              .centered = option(run, 3),
              .bias = option(run, 4),
              .norm_bias = option(run, 5) && !option(run, 2),
              .no_norm = option(run, 6) && !option(run, 3),
              .frozen_w = option(run, 7),
              .frozen_x = option(run, 8),
              .strided = option(run, 9),
              .again = option(run, 10),
              .fused = option(run, 11),
              .dtype = dtype};
    if (p.frozen_w && !p.bias && p.no_norm && !p.norm_bias) p.frozen_x = false; /* something must need a gradient */
    return p;
}

/* Returns a leaf with the values of part r of n of tensor k along dim 0, or of the whole tensor if n is 1. */
static tg_tensor *leaf(tg_ctx *ctx, tg_dtype dtype, int k, tg_shape shape, int r, int n, bool frozen) {
    double v[4096];
    shape.dim[0] /= n;
    tg_tensor *x = tg_zeros(ctx, dtype, shape);
    for (int64_t i = 0; i < tg_numel(x); i++) v[i] = at(k, r * tg_numel(x) + i);
    tg_write_f64(x, v, tg_numel(x));
    tg_set_requires_grad(x, !frozen);
    return x;
}

/* The inputs of one rank: x, w, b, norm_weight, norm_bias. */
static void leaves(tg_ctx *ctx, const plan *p, int r, int n, tg_tensor *in[INPUTS]) {
    in[0] = leaf(ctx, p->dtype, X, p->strided ? TG_SHAPE(S, IN, B) : TG_SHAPE(S, B, IN), p->sp ? r : 0, p->sp ? n : 1,
                 p->frozen_x);
    in[1] = leaf(ctx, p->dtype, W, TG_SHAPE(OUT, IN), r, n, p->frozen_w);
    in[2] = p->bias ? leaf(ctx, p->dtype, BIAS, TG_SHAPE(OUT), r, n, false) : NULL;
    in[3] = p->no_norm ? NULL : leaf(ctx, p->dtype, NORM_W, TG_SHAPE(IN), 0, 1, false);
    in[4] = p->norm_bias ? leaf(ctx, p->dtype, NORM_B, TG_SHAPE(IN), 0, 1, false) : NULL;
}

static tg_tensor *fused_op(tg_tape *t, tg_tensor *x, tg_tensor *const *in, tg_comm *c, const plan *p, tg_wgrads *d) {
    return tg_norm_linear(t, x, in[1], in[2], in[3], in[4], c,
                          TG_NORM_LINEAR(.rms = p->rms, .eps = 1e-3, .zero_centered = p->centered,
                                         .sequence_parallel = p->sp, .allreduce_dgrad = p->reduce,
                                         .fused_wgrad = p->fused && !p->frozen_w, .deferred = d));
}

static tg_tensor *two_ops(tg_tape *t, tg_tensor *x, tg_tensor *const *in, tg_comm *c, const plan *p) {
    tg_tensor *factor = p->centered ? tg_add_scalar(t, in[3], 1) : in[3];
    tg_tensor *normed = p->rms ? tg_rms_norm(t, x, factor, 1e-3) : tg_layer_norm(t, x, factor, in[4], 1e-3);
    return tg_linear_with_grad_accumulation(t, normed, in[1], in[2], c,
                                            TG_LINEAR_GRAD(.sequence_parallel = p->sp, .allreduce_dgrad = p->reduce));
}

/* Runs the layer in one op or in two, and backward. x is a result, whose gradient other ops add to. */
static tg_status run(tg_tape *t, tg_comm *c, const plan *p, tg_tensor *const *in, bool fused, tg_wgrads *d,
                     tg_tensor **y) {
    tg_tensor *x = p->strided ? tg_transpose(t, in[0], 1, 2) : tg_scale(t, in[0], 2);
    *y = fused ? fused_op(t, x, in, c, p, d) : two_ops(t, x, in, c, p);
    tg_tensor *loss = tg_sum(t, tg_mul(t, *y, tg_tanh(t, *y)), TG_ALL_DIMS, false);
    if (p->again) loss = tg_add(t, loss, tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false));
    return tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
}

/* As two ops, 1 + norm_weight is a tensor of its own, whose gradient is rounded to its dtype. */
static tg_status fused_is_two_ops(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_tensor *in[2][INPUTS], *y[2];
    tg_tape *t[2];
    for (int k = 0; k < 2; k++) {
        leaves(ctx, p, r, n, in[k]);
        t[k] = tg_tape_new(ctx);
        RUN(run(t[k], world, p, in[k], k, NULL, &y[k]));
    }
    EXPECT(ctx, off(y[1], y[0], -1, 0, 1) == 0);
    for (int i = 0; i < INPUTS; i++) {
        if (!in[0][i]) continue;
        EXPECT(ctx, tg_has_grad(in[0][i]) == tg_has_grad(in[1][i]));
        if (!tg_has_grad(in[0][i])) continue;
        tg_tensor *two = tg_grad_of(in[0][i]);
        double rounding = i == 3 && p->centered && p->dtype == TG_BF16 ? ldexp(largest(two), -8) : 0;
        EXPECT(ctx, off(tg_grad_of(in[1][i]), two, -1, 0, 1) <= rounding);
    }
    for (int k = 0; k < 2; k++) tg_tape_free(t[k]);
    return tg_ctx_status(ctx);
}

START_TEST(one_op_has_the_bits_of_two) {
    static const tg_dtype dtypes[] = {TG_F64, TG_F32, TG_BF16};
    for (int n = 1; n <= 4; n *= 2)
        for (int run_ = 0; run_ < 16 * 3; run_++) {
            plan p = plan_of(run_ % 16, dtypes[run_ / 16]);
            on_ranks(n, fused_is_two_ops, &p);
        }
}
END_TEST

/* ---- One rank ---- */

/* The layer over ranks is that of one rank: y and all gradients, to rounding. */
static tg_status ranks_are_one(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_tensor *mine[INPUTS], *whole[INPUTS];
    plan one = *p;
    one.sp = one.reduce = false;
    leaves(ctx, p, r, n, mine);
    leaves(ctx, &one, 0, 1, whole);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *gy = part(ctx, GY, TG_SHAPE(S, B, OUT), 2, r, n), *gy1 = made(ctx, GY, TG_SHAPE(S, B, OUT));
    tg_tensor *y = fused_op(t, mine[0], mine, world, p, NULL), *y1 = fused_op(t, whole[0], whole, NULL, &one, NULL);
    EXPECT(ctx, off(y, y1, 2, r, n) < 1e-12);
    RUN(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &gy)));
    RUN(tg_backward_with(t, &y1, 1, TG_BACKWARD(.seeds = &gy1)));
    for (int i = 0; i < INPUTS; i++) {
        if (!mine[i] || !tg_has_grad(whole[i])) continue;
        tg_tensor *g = tg_grad_of(mine[i]);
        bool shares = i >= 3 && p->sp; /* of the norm's weight and bias, as their placement R says */
        if (shares) tg_comm_all_reduce(world, g, g, TG_REDUCE_SUM);
        EXPECT(ctx, off(g, tg_grad_of(whole[i]), i == 0 ? (p->sp ? 0 : -1) : i < 3 ? 0 : -1, r, n) < 1e-10);
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(over_ranks_as_on_one) {
    for (int n = 1; n <= 4; n *= 2)
        for (int i = 0; i < 16; i++) {
            plan p = plan_of(i, TG_F64);
            p.strided = false;
            p.reduce = !p.sp;
            on_ranks(n, ranks_are_one, &p);
        }
}
END_TEST

/* ---- What is kept and sent ---- */

static int64_t saved(const tg_tensor *y) { return tg_node_saved_bytes(tg_node_of(y)); }

static tg_status keeping(void *arg, tg_ctx *ctx, tg_comm *world) {
    const int64_t n = tg_comm_size(world), x_bytes = 8 * S * B * IN / n, row_bytes = 8 * S * B / n;
    (void)arg;
    for (int rms = 0; rms < 2; rms++) {
        plan p = {.sp = true, .rms = rms, .bias = true, .norm_bias = !rms, .dtype = TG_F64};
        tg_tensor *in[INPUTS];
        leaves(ctx, &p, tg_comm_rank(world), (int)n, in);
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *x = tg_scale(t, in[0], 2), *y = fused_op(t, x, in, world, &p, NULL);
        EXPECT(ctx, saved(y) == x_bytes + (rms ? 1 : 2) * row_bytes);
        tg_tensor *y2 = two_ops(t, x, in, world, &p), *normed = tg_node_input(tg_node_of(y2), 0);
        EXPECT(ctx, saved(y2) + saved(normed) == saved(y) + x_bytes);
        tg_set_requires_grad(in[1], false);
        EXPECT(ctx, saved(fused_op(t, x, in, world, &p, NULL)) == saved(y));
        EXPECT(ctx, saved(fused_op(t, tg_detach(t, x), in, world, &p, NULL)) == saved(y)); /* for the norm's weight */
        tg_tape_free(t);
    }
    return tg_ctx_status(ctx);
}

static tg_status sending(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    for (int i = 0; i < 16; i++) {
        plan p = plan_of(i, TG_F64);
        tg_comm_info at_[3];
        for (int k = 0; k < 3; k++) at_[k] = TG_COMM_INFO();
        for (int k = 0; k < 2; k++) {
            tg_tensor *in[INPUTS], *y;
            leaves(ctx, &p, tg_comm_rank(world), tg_comm_size(world), in);
            tg_tape *t = tg_tape_new(ctx);
            RUN(tg_comm_query(world, &at_[k]));
            RUN(run(t, world, &p, in, k, NULL, &y));
            tg_tape_free(t);
        }
        RUN(tg_comm_query(world, &at_[2]));
        for (int c = 0; c < 16; c++) {
            EXPECT(ctx, at_[2].calls[c] - at_[1].calls[c] == at_[1].calls[c] - at_[0].calls[c]);
            EXPECT(ctx, at_[2].bytes[c] - at_[1].bytes[c] == at_[1].bytes[c] - at_[0].bytes[c]);
        }
    }
    return tg_ctx_status(ctx);
}

START_TEST(it_keeps_less_by_the_bytes_of_x_and_sends_the_same) {
    on_ranks(1, keeping, NULL);
    on_ranks(2, keeping, NULL);
    on_ranks(2, sending, NULL);
}
END_TEST

/* From the third step on no memory of the host is taken. */
static tg_status steady(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    plan p = {.sp = true, .bias = true, .norm_bias = true, .centered = true, .dtype = TG_F64};
    tg_tensor *in[INPUTS], *y;
    leaves(ctx, &p, tg_comm_rank(world), tg_comm_size(world), in);
    tg_tape *t = tg_tape_new(ctx);
    int64_t allocations = 0;
    for (int step = 0; step < 5; step++) {
        RUN(run(t, world, &p, in, true, NULL, &y));
        RUN(end_steady_step(t, step, &allocations));
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(a_steady_step_allocates_nothing) { on_ranks(2, steady, NULL); }
END_TEST

/* ---- Deferred weight gradients ---- */

/* Compares gradients with those of backward, where the layer's own list, or the tape's, takes two products. */
static tg_status deferred(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_tensor *in[2][INPUTS], *y;
    tg_wgrads *own = tg_wgrads_new(ctx, TG_NONE), *tape = tg_wgrads_new(ctx, TG_NONE);
    for (int k = 0; k < 2; k++) {
        leaves(ctx, p, r, n, in[k]);
        for (int step = 0; step < 2; step++) {
            tg_tape *t = tg_tape_new(ctx);
            if (k && p->again) RUN(tg_tape_defer(t, tape));
            RUN(run(t, world, p, in[k], true, k ? own : NULL, &y));
            tg_tape_free(t);
        }
    }
    EXPECT(ctx, tg_wgrads_count(own) == (p->again ? 0 : 2) && tg_wgrads_count(tape) == (p->again ? 2 : 0));
    EXPECT(ctx, !tg_has_grad(in[1][1]));
    RUN(tg_wgrads_run(own));
    RUN(tg_wgrads_run(tape));
    for (int i = 0; i < INPUTS; i++)
        if (in[0][i]) EXPECT(ctx, off(tg_grad_of(in[1][i]), tg_grad_of(in[0][i]), -1, 0, 1) == 0);
    tg_wgrads_free(own);
    tg_wgrads_free(tape);
    return tg_ctx_status(ctx);
}

START_TEST(products_wait_in_a_list) {
    for (int i = 0; i < 8; i++) {
        plan p = {.sp = i & 1,
                  .reduce = !(i & 1),
                  .again = i & 2,
                  .rms = i & 4,
                  .bias = true,
                  .norm_bias = !(i & 4),
                  .dtype = TG_F64};
        for (int n = 1; n <= 2; n++) on_ranks(n, deferred, &p);
    }
}
END_TEST

/* ---- Refused calls ---- */

static tg_status wrong(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .sequence_parallel = true));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(4, IN)), *w = grad_leaf(tg_zeros(ctx, TG_F64, TG_SHAPE(OUT, IN))),
              *g = grad_leaf(tg_zeros(ctx, TG_F64, TG_SHAPE(IN))), *odd = tg_zeros(ctx, TG_F64, TG_SHAPE(OUT)),
              *single = tg_zeros(ctx, TG_F32, TG_SHAPE(IN));
    tg_place(p, x, TG_TP, TG_SHARD(0));
    tg_place(p, w, TG_TP, TG_SHARD(0));
    tg_place(p, g, TG_TP, TG_I);
#define NORM(norm_w_, norm_b_, ...)                                                                                    \
    tg_norm_linear(t, x, w, NULL, norm_w_, norm_b_, tp, TG_NORM_LINEAR(.sequence_parallel = true, __VA_ARGS__))
    REFUSED(ctx, TG_ERR_PLACEMENT, "input 3 must be R on this axis; place the norm's weight and bias R", NORM(g, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "norm_weight must be a vector of 6 elements", NORM(odd, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "norm_bias must be a vector of 6 elements", NORM(NULL, odd));
    REFUSED(ctx, TG_ERR_DTYPE, "f64", NORM(single, NULL));
    REFUSED(ctx, TG_ERR_ARGUMENT, "norm_bias is given, but an RMS norm has none", NORM(NULL, g, .rms = true));
    REFUSED(ctx, TG_ERR_ARGUMENT, "zero_centered is set, but norm_weight is NULL",
            NORM(NULL, NULL, .zero_centered = true));
    REFUSED(ctx, TG_ERR_ARGUMENT, "eps is -1; it must be finite and 0 or more", NORM(NULL, NULL, .eps = -1));
    REFUSED(ctx, TG_ERR_ARGUMENT, "are both set", NORM(NULL, NULL, .allreduce_dgrad = true));
    x = tg_zeros(ctx, TG_F64, TG_SHAPE(4, IN));
    tg_place(p, x, TG_TP, TG_SHARD(1));
    REFUSED(ctx, TG_ERR_PLACEMENT, "input 0 must be V0", NORM(NULL, NULL));
    REFUSED(ctx, TG_ERR_PLACEMENT, "dim", tg_norm_linear(t, x, w, NULL, NULL, NULL, tp, NULL));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_inputs_say_what_was_expected) { on_ranks(2, wrong, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {
        one_op_has_the_bits_of_two,      over_ranks_as_on_one,    it_keeps_less_by_the_bytes_of_x_and_sends_the_same,
        a_steady_step_allocates_nothing, products_wait_in_a_list, wrong_inputs_say_what_was_expected};
    return tg_check_main("norm_linear", tests, sizeof tests / sizeof *tests);
}
