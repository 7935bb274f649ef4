/* Row layers that sum over ranks in symmetric memory: the bits of an ordinary all-reduce in every way, what is sent,
 * and where it is not used. */
#include <tapegrad/extend.h>

#include "catalog/samples.h"
#include "one_rank.h"

enum { IN = 4, LARGE = 256, OUT = 192 }; /* LARGE rows of OUT float64 are more than 256 KiB */

typedef struct plan {
    tg_symmetric_ar kind;
    int64_t rows, out;
    tg_dtype dtype;
    bool window;
    int64_t reduces, scatters, gathers; /* expected calls */
} plan;

static tg_tensor *values(tg_ctx *ctx, tg_dtype dtype, int k, tg_shape shape) {
    double *v = malloc((size_t)(shape.dim[0] * shape.dim[1]) * sizeof *v);
    tg_tensor *x = tg_zeros(ctx, dtype, shape);
    for (int64_t i = 0; i < tg_numel(x); i++) v[i] = at(k, i);
    tg_write_f64(x, v, tg_numel(x));
    free(v);
    return x;
}

/* Returns whether the tensors have the same elements. */
static bool same(tg_tensor *a, tg_tensor *b) {
    int64_t n = tg_numel(a);
    double *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
    bool equal = n == tg_numel(b) && tg_read_f64(a, x, n) == TG_OK && tg_read_f64(b, y, n) == TG_OK;
    equal = equal && !memcmp(x, y, (size_t)n * sizeof *x);
    free(x);
    free(y);
    return equal;
}

static tg_status expect_calls(tg_ctx *ctx, tg_comm *world, const tg_comm_info *before, const plan *p) {
    tg_comm_info now = TG_COMM_INFO();
    RUN(tg_comm_query(world, &now));
    EXPECT(ctx, now.calls[TG_ALL_REDUCE] - before->calls[TG_ALL_REDUCE] == p->reduces);
    EXPECT(ctx, now.calls[TG_REDUCE_SCATTER] - before->calls[TG_REDUCE_SCATTER] == p->scatters);
    EXPECT(ctx, now.calls[TG_ALL_GATHER] - before->calls[TG_ALL_GATHER] == p->gathers);
    return TG_OK;
}

static tg_status sums(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    int r = tg_comm_rank(world);
    tg_tape *t = tg_tape_new(ctx);
    tg_symmetric *buffer = p->window ? tg_symmetric_new(world, LARGE * OUT * sizeof(double)) : NULL;
    tg_tensor *x = values(ctx, p->dtype, X + r, TG_SHAPE(p->rows, IN)),
              *w = values(ctx, p->dtype, X + 10 + r, TG_SHAPE(p->out, IN));
    tg_tensor *plain = tg_reduce_from_tp(t, tg_linear(t, x, w, NULL), world);
    for (int k = 0; k < 3; k++) { /* the memory is free again after each call */
        tg_comm_info before = TG_COMM_INFO();
        RUN(tg_comm_query(world, &before));
        tg_tensor *y = tg_linear_all_reduce(t, x, w, world, TG_LINEAR_ALL_REDUCE(.kind = p->kind, .buffer = buffer));
        EXPECT(ctx, same(y, plain));
        RUN(expect_calls(ctx, world, &before, p));
    }
    tg_symmetric_free(buffer);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

/* Each way has the bits of an all-reduce. Without symmetric memory every kind is one. */
START_TEST(every_way_has_the_bits_of_an_all_reduce) {
    static const plan plans[] = {
        {.kind = TG_AR_ONE_SHOT, .rows = 8, .out = 12, .window = true, .gathers = 1},
        {.kind = TG_AR_ONE_SHOT, .rows = LARGE, .out = OUT, .window = true, .scatters = 1, .gathers = 1},
        {.kind = TG_AR_TWO_SHOT, .rows = 8, .out = 12, .window = true, .scatters = 1, .gathers = 1},
        {.kind = TG_AR_TWO_SHOT, .rows = 1, .out = 7, .window = true, .reduces = 1},
        {.kind = TG_AR_MULTIMEM, .rows = 8, .out = 12, .window = true, .reduces = 1},
        {.kind = TG_AR_NONE, .rows = 8, .out = 12, .window = true, .reduces = 1},
        {.kind = TG_AR_ONE_SHOT, .rows = 8, .out = 12, .reduces = 1},
        {.kind = TG_AR_TWO_SHOT, .rows = 2 * LARGE, .out = OUT, .window = true, .reduces = 1},
    };
    static const tg_dtype dtypes[] = {TG_F64, TG_F32, TG_BF16};
    for (int i = 0; i < 8 * 3; i++)
        for (int n = 2; n <= 4; n++) {
            plan p = plans[i / 3];
            p.dtype = dtypes[i % 3];
            if (p.dtype != TG_F64 && p.rows > 8) continue; /* the sizes in bytes are those of float64 */
            if (n == 3 && p.rows > 8) continue;
            on_ranks(n, sums, &p);
        }
}
END_TEST

/* A transport without symmetric memory, and one rank. */
static tg_status alone_or_planned(tg_comm *c, tg_ctx *ctx, int64_t reduces) {
    tg_tape *t = tg_tape_new(ctx);
    tg_comm_info before = TG_COMM_INFO();
    tg_symmetric *buffer = tg_symmetric_new(c, 4096);
    tg_tensor *x = values(ctx, TG_F64, X, TG_SHAPE(8, IN)), *w = values(ctx, TG_F64, 2, TG_SHAPE(12, IN));
    RUN(tg_comm_query(c, &before));
    tg_linear_all_reduce(t, x, w, c, TG_LINEAR_ALL_REDUCE(.kind = TG_AR_ONE_SHOT, .buffer = buffer));
    RUN(expect_calls(ctx, c, &before, &(plan){.reduces = reduces}));
    tg_symmetric_free(buffer);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(without_symmetric_memory_it_is_an_all_reduce) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_comm *c[] = {tg_comm_plan_new(ctx, 1, 4), tg_comm_self_new(ctx)};
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(alone_or_planned(c[i], ctx, !i) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_comm_free(c[i]);
    }
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Layers ---- */

typedef struct layers {
    int n;
    bool sp;
} layers;

static int64_t buffers(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.by_category[TG_MEM_BUFFER];
}

/* Runs the module m without gradients, and compares it with the result `plain` of ordinary sums. */
static tg_status run_symmetric(tg_ctx *ctx, tg_comm *tp, tg_module *m, tg_tensor *x, tg_tensor *plain, plan calls) {
    tg_tape *t = tg_tape_new(ctx);
    tg_comm_info before = TG_COMM_INFO();
    tg_tape_set_grad_mode(t, false);
    RUN(tg_comm_query(tp, &before));
    EXPECT(ctx, same(tg_module_forward(m, t, x), plain));
    RUN(expect_calls(ctx, tp, &before, &calls));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status in_layers(void *arg, tg_ctx *ctx, tg_comm *world) {
    const layers *l = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = l->n, .sequence_parallel = l->sp));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_module *m[] = {tg_nn_norm_mlp(p, H, F, NULL), tg_nn_norm_mlp(p, H, F, NULL)}, *both = tg_nn_sequential(ctx);
    for (int i = 0; i < 2; i++) RUN(tg_sequential_add(both, m[i]));
    const int64_t bytes = 8 * S * B * H;
    tg_tensor *x =
        l->sp ? part(ctx, X, TG_SHAPE(S, B, H), 0, tg_comm_rank(world), l->n) : made(ctx, X, TG_SHAPE(S, B, H));
    tg_place(p, x, TG_TP, l->sp ? TG_SHARD(0) : TG_I);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *plain = tg_module_forward(both, t, x), *half = part(ctx, X, TG_SHAPE(S, B, H), 0, 0, 2);
    tg_place(p, half, TG_TP, TG_I);
    int64_t before = buffers(ctx);
    RUN(tg_module_set_symmetric(both, TG_AR_ONE_SHOT));
    if (l->sp) { /* the reduce-scatters stay */
        RUN(run_symmetric(ctx, tp, both, x, plain, (plan){.scatters = 2, .gathers = 2}));
    } else {
        tg_tensor *less = tg_module_forward(both, t, half); /* gradients are recorded: ordinary sums */
        EXPECT(ctx, buffers(ctx) == before);
        RUN(run_symmetric(ctx, tp, both, half, less, (plan){.gathers = 2, .reduces = 1})); /* one agrees on a size */
        EXPECT(ctx, buffers(ctx) == before + bytes / 2);                                 /* two layers have one block */
        RUN(run_symmetric(ctx, tp, both, x, plain, (plan){.gathers = 2, .reduces = 1})); /* a larger one */
        RUN(run_symmetric(ctx, tp, both, half, less, (plan){.gathers = 2}));
        RUN(tg_module_set_symmetric(both, TG_AR_TWO_SHOT));
        RUN(run_symmetric(ctx, tp, both, x, plain, (plan){.gathers = 2, .scatters = 2, .reduces = 1}));
        tg_tensor *loss = tg_sum(t, tg_module_forward(both, t, x), TG_ALL_DIMS, false);
        RUN(tg_backward(t, loss));
        EXPECT(ctx, tg_has_grad(tg_module_find(m[1], "linear_fc2.weight")));
    }
    RUN(tg_module_set_symmetric(both, TG_AR_NONE));
    RUN(run_symmetric(ctx, tp, both, x, plain, l->sp ? (plan){.scatters = 2, .gathers = 2} : (plan){.reduces = 2}));
    RUN(tg_module_set_symmetric(both, TG_AR_MULTIMEM)); /* which the module's end releases */
    tg_module_free(both);
    tg_tape_free(t);
    tg_drop(x);
    tg_drop(half);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(row_layers_sum_in_one_block) {
    for (int n = 2; n <= 4; n *= 2)
        for (int sp = 0; sp < 2; sp++) on_ranks(n, in_layers, &(layers){n, sp});
}
END_TEST

/* ---- Samples of the op ---- */

static tg_status sample(void *arg, tg_ctx *ctx, tg_comm *c) {
    const tg_op *op = tg_op_find("linear_all_reduce");
    const tg_sample *s = tg_sample_at(op, *(const int *)arg);
    union {
        tg_comm *comm; /* the first field of the params */
        char bytes[64];
    } params;
    tg_case own;
    tg_tensor *y;
    tg_tape *t = tg_tape_new(ctx);
    EXPECT(ctx, op->params_size <= sizeof params);
    memcpy(&params, s->params, op->params_size);
    params.comm = c;
    RUN(tg_case_open(&own, ctx, op, *(const int *)arg, &(tg_case_opts){.dtype = TG_F64, .seed = 3}));
    bool expected = tg_apply(t, op, &params, own.input, 2, &y, 1, NULL, NULL, TG_SITE) == s->refused;
    if (s->refused) tg_ctx_clear(ctx);
    EXPECT(ctx, expected);
    if (!s->refused)
        EXPECT(ctx, same(y, tg_reduce_from_tp(t, tg_linear(t, own.input[0], own.input[1], NULL), c)));
    tg_case_close(&own);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(samples_are_two_ops) {
    const tg_op *op = tg_op_find("linear_all_reduce");
    for (int i = 0; i < op->n_samples; i++)
        if (op->samples[i].ranks > 1) on_ranks(op->samples[i].ranks, sample, &i);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {every_way_has_the_bits_of_an_all_reduce, without_symmetric_memory_it_is_an_all_reduce,
                                  row_layers_sum_in_one_block, samples_are_two_ops};
    return tg_check_main("symmetric_layers", tests, sizeof tests / sizeof *tests);
}
