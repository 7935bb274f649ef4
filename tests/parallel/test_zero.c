/* Training with an optimizer's state that is divided over ranks (zero 1), also gradients (zero 2), and also parameters
 * (zero 3), against training without (zero 0): bits of parameters, memory, and unused parameters. */
#include <math.h>

#include "zero_model.h"

/* NCCL need not add the addends of a reduce-scatter in the order of an all-reduce. */
static void expect_bits(const setting *s, int ranks, const char *what) {
    for (int zero = 1; zero <= most_of(s); zero++) {
        double most = compare(s, ranks, zero);
        bool same = !memcmp(with.x[0], without.x[0], sizeof with.x[0]);
        ck_assert_msg(same || (ranks_on_gpus() && most < 1e-2), "%s, zero %d, %d ranks: bits differ, by up to %g", what,
                      zero, ranks, most);
    }
}

START_TEST(every_zero_gives_the_bits_of_zero_0) {
    static const tg_dtype dtypes[] = {TG_F32, TG_BF16, TG_F64};
    for (int n = 1; n <= RANKS; n++)
        for (int d = 0; d < 3; d++) {
            setting s = usual;
            s.dtype = dtypes[d];
            s.micros = 1 + d;
            s.bucket = d == 1 ? INT64_MAX : 1 + 99 * d;
            expect_bits(&s, n, tg_dtype_name(s.dtype));
        }
}
END_TEST

/* dp and cp are one group, over which both gradients and state are divided. */
START_TEST(context_parallel_ranks_divide_too) {
    for (int dp = 1; dp <= 2; dp++) {
        setting s = usual;
        s.cp = 2;
        s.uses = dp == 1 ? ALL_RANKS : ALTERNATING;
        expect_bits(&s, 2 * dp, "cp 2");
    }
}
END_TEST

START_TEST(every_method_gives_the_same_bits) {
    for (int k = 0; k < METHODS; k++) {
        setting s = usual;
        s.method = (method)k;
        s.dtype = k % 2 ? TG_BF16 : TG_F32;
        expect_bits(&s, 3, "method");
    }
}
END_TEST

/* The norm adds its squares in another order. */
START_TEST(clipped_steps_agree) {
    int differ = 0;
    for (int n = 2; n <= RANKS; n++)
        for (int zero = 1; zero <= MOST; zero++) {
            setting s = usual;
            s.dtype = TG_F64;
            s.clip = 0.5;
            s.uses = zero < MOST ? ALTERNATING : ALL_RANKS;
            double most = compare(&s, n, zero);
            differ += most > 0;
            ck_assert_msg(most < 1e-12, "zero %d, %d ranks differ by %g", zero, n, most);
            ck_assert(with.norm[0] > 1); /* the steps were clipped */
        }
    ck_assert_msg(differ > 0, "all norms have the same bits, so this test compares nothing");
}
END_TEST

/* Nothing changes a parameter that no rank has used: no decay, no moment of earlier steps. */
START_TEST(parameters_without_a_gradient_stay) {
    for (int k = 0; k < METHODS; k++)
        for (uses u = NO_RANK; u <= ALTERNATING; u++) {
            setting s = usual;
            s.uses = u;
            s.method = (method)k;
            expect_bits(&s, 3, "uses");
            for (int i = ALL - EXTRA; i < ALL && u == NO_RANK; i++)
                ck_assert(with.x[0][0][i] == with.x[0][STEPS - 1][i]);
            ck_assert(u == NO_RANK || with.x[0][0][ALL - 1] != with.x[0][STEPS - 1][ALL - 1]);
        }
}
END_TEST

/* The masters are written, as by a checkpoint, and no parameter has a gradient. The step that copies them to the
 * parameters leaves ranges for the other ranks to gather. */
static tg_status load_masters(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { NUMEL = 300 };
    const int zero = *(int *)arg;
    double sevens[NUMEL], v[NUMEL];
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *x[] = {tg_param_new(ctx, "x", TG_BF16, TG_SHAPE(NUMEL), 1),
                      tg_param_new(ctx, "y", TG_BF16, TG_SHAPE(5), 1)};
    tg_tensor *const *leaf;
    for (int i = 0; i < 2; i++) tg_place(p, x[i], TG_DP, TG_R);
    tg_flat *f = tg_flat_new(p, x, 2, TG_FLAT(.zero = zero));
    tg_flat_leaves(f, &leaf);
    tg_optim *o = tg_adamw_new(ctx, leaf, 2, NULL);
    for (int i = 0; i < NUMEL; i++) sevens[i] = 7;
    for (int i = 0; i < tg_optim_state_count(o); i++) {
        const char *name;
        tg_tensor *state = tg_optim_state(o, i, &name);
        if (strstr(name, ".master")) RUN(tg_write_f64(state, sevens, tg_numel(state)));
    }
    RUN(tg_optim_step(o));
    if (zero == 1 || zero == 2)
        REFUSED(ctx, TG_ERR_STATE, "has values of different steps", tg_read_f64(x[0], v, NUMEL));
    RUN(tg_flat_gather(f));
    RUN(tg_read_f64(x[0], v, NUMEL));
    EXPECT(ctx, !memcmp(v, sevens, sizeof v));
    tg_optim_free(o);
    tg_flat_free(f);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(masters_are_copied_without_a_gradient) {
    for (int zero = 0; zero <= MOST; zero++) on_ranks(2, load_masters, &zero);
}
END_TEST

START_TEST(averages_of_whole_parameters_change_nothing) {
    setting s = usual;
    s.dtype = TG_BF16;
    s.average = true;
    expect_bits(&s, 2, "average");
    setting plain = s;
    plain.average = false;
    run(&without, &plain, 2, 0);
    ck_assert(!memcmp(with.x[0], without.x[0], sizeof with.x[0]));
}
END_TEST

/* ---- Experts ---- */

enum { EXPERTS = 200, DENSE = 300 };

typedef struct expert_outcome {
    int zero;
    float dense[RANKS][DENSE], expert[RANKS][EXPERTS / 2];
    double norm[RANKS];
} expert_outcome;

/* Steps a dense parameter, whose state is divided over 4 ranks, and one of experts, over 2: ep has the other 2. */
static tg_status train_experts(void *arg, tg_ctx *ctx, tg_comm *world) {
    expert_outcome *o = arg;
    int r = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.ep = 2));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x[] = {tg_param_new(ctx, "dense", TG_F32, TG_SHAPE(DENSE), 1),
                      tg_param_new_placed(p, "expert", TG_F32, TG_SHAPE(EXPERTS), 1,
                                          TG_PLACES({TG_EP, TG_SHARD(0)}, {TG_EDP, TG_R}))};
    tg_tensor *const *leaf;
    tg_place(p, x[0], TG_DP, TG_R);
    tg_flat *f = tg_flat_new(p, x, 2, TG_FLAT(.zero = o->zero));
    tg_flat_leaves(f, &leaf);
    tg_optim *optim = tg_adamw_new(ctx, leaf, 2, NULL);
    tg_optim_set_clip(optim, INFINITY);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2; i++) RUN(tg_backward(t, tg_sum(t, tg_square(t, x[i]), TG_ALL_DIMS, false)));
        tg_tape_reset(t);
        RUN(tg_grads_finalize(p, x, 2, NULL));
        RUN(tg_optim_step(optim));
        RUN(tg_flat_gather(f));
        RUN(tg_optim_zero_grad(optim));
    }
    o->norm[r] = tg_optim_norm(optim);
    RUN(tg_read(x[0], o->dense[r], sizeof o->dense[r]));
    RUN(tg_read(x[1], o->expert[r], sizeof o->expert[r]));
    tg_optim_free(optim);
    tg_flat_free(f);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(experts_are_divided_over_their_own_group) {
    static expert_outcome o[MOST + 1];
    for (int zero = 0; zero <= MOST; zero++) {
        o[zero].zero = zero;
        on_ranks(4, train_experts, &o[zero]);
        ck_assert(!memcmp(o[0].dense, o[zero].dense, sizeof o[0].dense));
        ck_assert(!memcmp(o[0].expert, o[zero].expert, sizeof o[0].expert));
        for (int r = 0; r < 4; r++)
            ck_assert(o[zero].norm[r] == o[zero].norm[0] && fabs(o[zero].norm[r] - o[0].norm[r]) < 1e-12);
    }
    ck_assert(memcmp(o[1].expert[0], o[1].expert[1], sizeof o[1].expert[0])); /* ranks of ep have other experts */
}
END_TEST

/* ---- Gradients in 16 bits on the wire ---- */

/* A parameter whose gradient on rank r is the number of element i times r + 1: exact in bfloat16 for small numbers. */
static tg_status sum_on_the_wire(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { N = 200 };
    const bool exact = *(const bool *)arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_comm_info before = TG_COMM_INFO(), after = TG_COMM_INFO();
    tg_tape *t = tg_tape_new(ctx);
    for (int zero = 0; zero <= MOST; zero++) {
        float g[N], slope[N];
        int64_t begin, end;
        tg_tensor *x = tg_param_new(ctx, "x", TG_F32, TG_SHAPE(N), 1), *const * leaf;
        tg_place(p, x, TG_DP, TG_R);
        tg_flat *f = tg_flat_new(p, &x, 1, TG_FLAT(.zero = zero, .wire = TG_BF16));
        tg_flat_leaves(f, &leaf);
        for (int i = 0; i < N; i++) slope[i] = exact ? (float)(i % 16 * (r + 1)) : 1 + (float)(i + r) / 999;
        tg_tensor *s = tg_from_host(ctx, TG_F32, TG_SHAPE(N), slope);
        tg_place(p, s, TG_DP, TG_V);
        tg_comm_query(world, &before);
        RUN(tg_backward(t, tg_sum(t, tg_mul(t, x, s), TG_ALL_DIMS, false)));
        RUN(tg_grads_finalize(p, &x, 1, NULL));
        tg_comm_query(world, &after);
        int64_t bucket = n == 3 ? 384 : 256;
        tg_collective kind = zero ? TG_ALL_TO_ALL : TG_ALL_REDUCE;
        EXPECT(ctx, after.bytes[kind] - before.bytes[kind] == 2 * bucket + (zero ? 0 : 4));
        tg_range_of(leaf[0], NULL, &begin, &end);
        if (end > begin) RUN(tg_read(tg_grad_of(leaf[0]), g, (size_t)(end - begin) * sizeof *g));
        for (int64_t i = begin; i < end; i++) {
            double want = 0, slack = 0;
            for (int k = 0; k < n; k++) {
                double addend = exact ? (double)(i % 16 * (k + 1)) : 1 + (double)(i + k) / 999;
                want += addend;
                slack += addend / 256; /* half a unit in the last place of 8 bits */
            }
            if (!zero) slack += want / 256;
            EXPECT(ctx, exact ? g[i - begin] == (float)want : fabs(g[i - begin] - want) <= slack);
        }
        tg_flat_free(f);
        tg_tape_reset(t);
        tg_drop(x);
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(gradients_may_travel_in_16_bits) {
    for (int n = 2; n <= RANKS; n++)
        for (int exact = 0; exact < 2; exact++) on_ranks(n, sum_on_the_wire, &(bool){exact});
}
END_TEST

START_TEST(training_on_a_16_bit_wire_stays_close) {
    setting s = usual;
    s.wire = TG_BF16;
    for (int zero = 1; zero <= MOST; zero++) {
        double most = compare(&s, 3, zero);
        ck_assert_msg(most < 0.01, "zero %d differs by %g", zero, most);
    }
    s.wire = TG_DTYPE_DEFAULT;
    run(&without, &s, 3, 0);
    for (int i = 0; i < ALL; i++) ck_assert(fabs(with.x[0][0][i] - without.x[0][0][i]) < 0.03);
}
END_TEST

/* ---- Memory ---- */

typedef struct bytes {
    int zero;
    bool rounds; /* there are two micro-batches, which are summed one after the other */
    tg_dtype dtype;
    int64_t parameter[RANKS], gradient[RANKS], optimizer[RANKS], own[RANKS];
    int64_t most[RANKS]; /* of gradients, while backward runs */
} bytes;

enum { LARGE = 3, LARGE_NUMEL = 64 * 100 };

/* A hook that notes the most bytes that gradients take. */
static tg_status watch(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    int64_t *most = user;
    tg_memory_info m = TG_MEMORY_INFO();
    (void)t, (void)grad;
    tg_memory_query(tg_ctx_of(x), &m);
    if (m.by_category[TG_MEM_GRADIENT] > *most) *most = m.by_category[TG_MEM_GRADIENT];
    return TG_OK;
}

/* Adds the gradients of the sum of squares. */
static tg_status add_squares(tg_tape *t, tg_tensor *const *x) {
    tg_tensor *loss = NULL;
    for (int i = 0; i < LARGE; i++) {
        tg_tensor *s = tg_sum(t, tg_square(t, x[i]), TG_ALL_DIMS, false);
        loss = loss ? tg_add(t, loss, s) : s;
    }
    RUN(tg_backward(t, loss));
    return tg_tape_reset(t), TG_OK;
}

/* Takes a step with three parameters, so that everything has been allocated. */
static tg_status use_memory(void *arg, tg_ctx *ctx, tg_comm *world) {
    bytes *b = arg;
    int r = tg_comm_rank(world);
    tg_memory_info m = TG_MEMORY_INFO();
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x[LARGE], *const *leaf;
    for (int i = 0; i < LARGE; i++) {
        x[i] = tg_param_new(ctx, "x", b->dtype, TG_SHAPE(LARGE_NUMEL), 1);
        tg_place(p, x[i], TG_DP, TG_R);
        tg_on_accumulated(x[i], watch, &b->most[r]);
    }
    tg_flat *f = tg_flat_new(p, x, LARGE, TG_FLAT(.bucket = 1, .zero = b->zero));
    tg_flat_leaves(f, &leaf);
    tg_optim *o = tg_adamw_new(ctx, leaf, LARGE, NULL);
    for (int i = 0; i < LARGE; i++) b->own[r] += tg_numel(leaf[i]);
    RUN(add_squares(t, x));
    if (b->rounds) RUN(tg_grads_reduce(p));
    if (b->rounds) RUN(add_squares(t, x));
    RUN(tg_grads_finalize(p, x, LARGE, NULL));
    RUN(tg_optim_step(o));
    RUN(tg_flat_gather(f));
    tg_memory_query(ctx, &m);
    b->parameter[r] = m.by_category[TG_MEM_PARAMETER];
    b->gradient[r] = m.by_category[TG_MEM_GRADIENT];
    b->optimizer[r] = m.by_category[TG_MEM_OPTIMIZER];
    tg_optim_free(o);
    tg_flat_free(f);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Elements of the buckets: those of each parameter, rounded up to a multiple of 128 and of the ranks. */
static int64_t padded(int n) {
    int64_t unit = n == 3 ? 384 : 128;
    return (LARGE_NUMEL + unit - 1) / unit * unit * LARGE;
}

/* While backward runs, two buckets of gradients have memory: one is being summed, and one is being filled. From the
 * second round on, the sum is received in memory of its own. */
START_TEST(backward_takes_two_buckets) {
    for (int zero = 2; zero <= MOST; zero++)
        for (int n = 1; n <= RANKS; n++)
            for (int rounds = 0; rounds < 2; rounds++) {
                bytes b = {.zero = zero, .rounds = rounds, .dtype = TG_BF16};
                int64_t bucket = 4 * padded(n) / LARGE;
                on_ranks(n, use_memory, &b);
                for (int r = 0; r < n; r++)
                    ck_assert_int_eq(b.most[r] - b.gradient[r], 2 * bucket + (rounds ? bucket / n : 0));
            }
}
END_TEST

/* Returns the bytes that a rank takes on average for an element, without those that do not depend on their number. */
static double bytes_of(const bytes *b, int n, int64_t fixed) {
    double sum = 0;
    for (int r = 0; r < n; r++) sum += (double)(b->parameter[r] + b->gradient[r] + b->optimizer[r] - fixed);
    return sum / n / (LARGE * LARGE_NUMEL);
}

/* A parameter takes so many bytes an element, with 16 bits and with 32: zero 0, 18 and 16; 1, 6 + 12/n and 8 + 8/n; 2,
 * 2 + 16/n and 4 + 12/n; 3, 18/n and 16/n. What an optimizer takes for all of its parameters is the same, and so are
 * the flags of gradients. */
START_TEST(memory_is_divided_exactly) {
    for (int d = 0; d < 2; d++)
        for (int n = 1; n <= RANKS; n++) {
            bytes b[MOST + 1] = {{0}};
            int64_t size = d ? 4 : 2, state = d ? 8 : 12, flags = 64, own = 0;
            for (int zero = 0; zero <= MOST; zero++) {
                b[zero].zero = zero;
                b[zero].dtype = d ? TG_F32 : TG_BF16;
                on_ranks(n, use_memory, &b[zero]);
            }
            int64_t common = b[0].optimizer[0] - state * LARGE * LARGE_NUMEL;
            printf(
                "%s, %d ranks, padding %lld of %lld elements, bytes an element on average:", tg_dtype_name(b[0].dtype),
                n, (long long)(padded(n) - LARGE * LARGE_NUMEL), (long long)LARGE * LARGE_NUMEL);
            for (int zero = 0; zero <= MOST; zero++)
                printf(" %.3f%s", bytes_of(&b[zero], n, flags + common), zero < MOST ? "," : "\n");
            for (int r = 0; r < n; r++) {
                own += b[1].own[r];
                ck_assert_int_eq(b[0].parameter[r], size * LARGE * LARGE_NUMEL);
                for (int zero = 1; zero <= MOST; zero++) {
                    ck_assert_int_eq(b[zero].parameter[r], size * padded(n) / (zero < 3 ? 1 : n));
                    ck_assert_int_eq(b[zero].optimizer[r] - common, state * b[1].own[r]);
                }
                ck_assert_int_eq(b[0].gradient[r], 4 * padded(n) + flags);
                ck_assert_int_eq(b[1].gradient[r], 4 * padded(n) + flags);
                for (int zero = 2; zero <= MOST; zero++)
                    ck_assert_int_eq(b[zero].gradient[r], 4 * padded(n) / n + flags);
                ck_assert_int_le(b[1].own[r], padded(n) / n);
            }
            ck_assert_int_eq(own, LARGE * LARGE_NUMEL);
        }
}
END_TEST

/* ---- Ranks of tensor parallelism ---- */

/* Only rank 0 uses a parameter whose gradients are added over tp. With one data-parallel rank no other sum tells rank 1
 * that there is a gradient. The loss is R on tp, so backward begins with 1/2. */
static tg_status use_on_one_rank_of_tp(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_param_new(ctx, "x", TG_F32, TG_SHAPE(EXTRA), 0.5), *const *leaf;
    double before[EXTRA], after[EXTRA];
    tg_place(p, x, TG_TP, TG_R);
    tg_flat *f = tg_flat_new(p, &x, 1, TG_FLAT(.zero = *(const int *)arg));
    tg_flat_leaves(f, &leaf);
    tg_optim *o = tg_sgd_new(ctx, leaf, 1, TG_SGD(.lr = 0.01));
    RUN(tg_read_f64(x, before, EXTRA));
    if (tg_comm_rank(world) == 0) RUN(tg_backward(t, tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false)));
    RUN(tg_grads_finalize(p, &x, 1, NULL));
    RUN(tg_optim_step(o));
    RUN(tg_flat_gather(f));
    RUN(tg_read_f64(x, after, EXTRA));
    for (int i = 0; i < EXTRA; i++) EXPECT(ctx, fabs(after[i] - 0.99 * before[i]) < 1e-6);
    tg_optim_free(o);
    tg_flat_free(f);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_gradient_of_another_rank_of_tp_is_applied) {
    for (int zero = 0; zero <= MOST; zero++) on_ranks(2, use_on_one_rank_of_tp, &zero);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        every_zero_gives_the_bits_of_zero_0,      context_parallel_ranks_divide_too,
        every_method_gives_the_same_bits,         clipped_steps_agree,
        parameters_without_a_gradient_stay,       averages_of_whole_parameters_change_nothing,
        experts_are_divided_over_their_own_group, gradients_may_travel_in_16_bits,
        training_on_a_16_bit_wire_stays_close,    memory_is_divided_exactly,
        backward_takes_two_buckets,               masters_are_copied_without_a_gradient,
        a_gradient_of_another_rank_of_tp_is_applied,
    };
    return tg_check_main("zero", tests, sizeof tests / sizeof *tests);
}
