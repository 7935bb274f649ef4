/* Linear ops whose communication is divided into chunks: values and gradients of one collective within rounding, the
 * numbers of messages, and what is refused. */
#include <tapegrad/extend.h>
#include <tapegrad/derivatives.h>
#include <tapegrad/megatron.h>
#include <tapegrad/recompute.h>

#include "catalog/samples.h"
#include "on_ranks.h"
#include "parallel/tp/linear_call.h"

enum { S = 16, B = 2, IN = 8, OUT = 12, X = 1, W, BIAS, NORM_W, GY, INPUTS = 4 };

typedef enum kind { COLUMN, NORM, ROW, KINDS } kind;

typedef struct plan {
    kind kind;
    int chunks;
    bool frozen_w, frozen_x, deferred, again, meta;
    tg_dtype dtype;
} plan;

/* Returns a leaf with the values of part r of n of tensor k along dim d, or with zeros on device meta. */
static tg_tensor *leaf(tg_ctx *ctx, const plan *p, int k, tg_shape shape, int d, int r, int n, bool frozen) {
    double v[4096];
    tg_tensor *from = p->meta ? NULL : part(ctx, k, shape, d, r, n);
    shape.dim[d] /= n;
    tg_tensor *x = tg_zeros(ctx, p->dtype, shape);
    if (from && tg_read_f64(from, v, tg_numel(x)) == TG_OK) tg_write_f64(x, v, tg_numel(x));
    tg_set_requires_grad(x, !frozen);
    return x;
}

/* The inputs of a rank: x, w, b, norm_weight. A row layer has columns of x and w, the others rows. */
static void leaves(tg_ctx *ctx, const plan *p, int r, int n, tg_tensor *in[INPUTS]) {
    bool row = p->kind == ROW;
    in[0] = leaf(ctx, p, X, TG_SHAPE(S, B, IN), row ? 2 : 0, r, n, p->frozen_x);
    in[1] = leaf(ctx, p, W, TG_SHAPE(OUT, IN), row ? 1 : 0, r, n, p->frozen_w);
    in[2] = row ? NULL : leaf(ctx, p, BIAS, TG_SHAPE(OUT), 0, r, n, false);
    in[3] = p->kind == NORM ? leaf(ctx, p, NORM_W, TG_SHAPE(IN), 0, 0, 1, false) : NULL;
}

static tg_tensor *layer(tg_tape *t, tg_comm *c, const plan *p, tg_tensor *const *in, tg_tensor *x, int chunks,
                        tg_wgrads *d) {
    switch (p->kind) {
    case COLUMN:
        return tg_linear_with_grad_accumulation(
            t, x, in[1], in[2], c, TG_LINEAR_GRAD(.sequence_parallel = true, .chunks = chunks, .deferred = d));
    case NORM:
        return tg_norm_linear(t, x, in[1], in[2], in[3], NULL, c,
                              TG_NORM_LINEAR(.rms = true, .sequence_parallel = true, .chunks = chunks, .deferred = d));
    default:
        return tg_linear_reduce_scatter(t, x, in[1], c, TG_LINEAR_GRAD(.chunks = chunks, .deferred = d));
    }
}

/* Runs the layer and backward. The gradient of x is added to another if p->again. */
static tg_status run(tg_tape *t, tg_comm *c, const plan *p, tg_tensor *const *in, int chunks, tg_wgrads *d,
                     tg_tensor **y) {
    tg_tensor *x = tg_scale(t, in[0], 2);
    *y = layer(t, c, p, in, x, chunks, d);
    tg_tensor *loss = tg_sum(t, tg_mul(t, *y, tg_tanh(t, *y)), TG_ALL_DIMS, false);
    if (p->again) loss = tg_add(t, loss, tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false));
    return tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
}

/* Returns whether a is b within a few roundings. */
static bool agree(tg_tensor *a, tg_tensor *b, tg_dtype dtype) {
    double eps = dtype == TG_F64 ? 1e-14 : dtype == TG_F32 ? 1e-6 : 1e-2;
    return off(a, b, -1, 0, 1) <= eps * (1 + largest(b));
}

/* Compares one collective (0) with chunks (1), and a second run of chunks (2), which has the same bits; in it the
 * gradient of w waits in a list if p->deferred. */
static tg_status chunks_are_one_collective(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_tensor *in[3][INPUTS], *y[3];
    tg_tape *t[3];
    tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE);
    for (int k = 0; k < 3; k++) {
        leaves(ctx, p, r, n, in[k]);
        t[k] = tg_tape_new(ctx);
        RUN(run(t[k], world, p, in[k], k ? p->chunks : 1, k == 2 && p->deferred ? d : NULL, &y[k]));
    }
    EXPECT(ctx, tg_wgrads_count(d) == (p->deferred && !p->frozen_w));
    RUN(tg_wgrads_run(d));
    EXPECT(ctx, agree(y[1], y[0], p->dtype) && off(y[2], y[1], -1, 0, 1) == 0);
    for (int i = 0; i < INPUTS; i++) {
        if (!in[0][i]) continue;
        EXPECT(ctx, tg_has_grad(in[0][i]) == tg_has_grad(in[1][i]));
        if (!tg_has_grad(in[0][i])) continue;
        tg_tensor *g = tg_grad_of(in[1][i]);
        EXPECT(ctx, agree(g, tg_grad_of(in[0][i]), p->dtype) && off(tg_grad_of(in[2][i]), g, -1, 0, 1) == 0);
    }
    for (int k = 0; k < 3; k++) tg_tape_free(t[k]);
    tg_wgrads_free(d);
    return tg_ctx_status(ctx);
}

START_TEST(chunks_agree_with_one_collective) {
    static const tg_dtype dtypes[] = {TG_F64, TG_F32, TG_BF16};
    for (int n = 1; n <= 4; n++)
        for (int i = 0; i < 2 * KINDS * 8; i++) {
            bool frozen_w = i & 1 && !(i & 2); /* with or without a frozen x, or a frozen w */
            plan p = {.kind = (kind)(i / 8 % KINDS),
                      .chunks = i / 8 / KINDS ? 4 : 2,
                      .frozen_w = frozen_w,
                      .frozen_x = i & 2,
                      .deferred = i & 4,
                      .again = i & 1,
                      .dtype = dtypes[(i + n) % 3]};
            if (n != 3) on_ranks(n, chunks_are_one_collective, &p); /* 16 rows are not divisible by 3 */
        }
}
END_TEST

/* The row layer's op with one collective has the bits of the two ops. */
static tg_status one_op(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    tg_tensor *in[2][INPUTS], *y[2];
    tg_tape *t = tg_tape_new(ctx);
    for (int k = 0; k < 2; k++) {
        leaves(ctx, p, tg_comm_rank(world), tg_comm_size(world), in[k]);
        y[k] = k ? layer(t, world, p, in[k], in[k][0], 1, NULL)
                 : tg_reduce_scatter_to_sp(t, tg_linear(t, in[k][0], in[k][1], NULL), world, NULL);
        tg_tensor *loss = tg_sum(t, tg_mul(t, y[k], tg_tanh(t, y[k])), TG_ALL_DIMS, false);
        RUN(tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true)));
    }
    EXPECT(ctx, off(y[1], y[0], -1, 0, 1) == 0);
    for (int i = 0; i < 2; i++) {
        EXPECT(ctx, tg_has_grad(in[0][i]) == tg_has_grad(in[1][i]));
        if (tg_has_grad(in[0][i])) EXPECT(ctx, off(tg_grad_of(in[1][i]), tg_grad_of(in[0][i]), -1, 0, 1) == 0);
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(one_collective_of_a_row_layer_has_the_bits_of_two_ops) {
    static const tg_dtype dtypes[] = {TG_F64, TG_F32, TG_BF16};
    for (int n = 1; n <= 4; n *= 2)
        for (int i = 0; i < 9; i++) {
            plan p = {.kind = ROW, .frozen_w = i / 3 == 1, .frozen_x = i / 3 == 2, .dtype = dtypes[i % 3]};
            on_ranks(n, one_op, &p);
        }
}
END_TEST

/* ---- Samples of the op ---- */

/* Records the op, or the two ops of which it is one, on the inputs of a sample, and runs backward. */
static tg_status run_sample(tg_tape *t, const tg_case *own, tg_comm *c, bool op, tg_tensor **y) {
    tg_linear_params params = *(const tg_linear_params *)own->sample->params;
    tg_tensor *const *in = own->input;
    params.comm = c;
    if (op)
        tg_apply(t, own->op, &params, in, 2, y, 1, NULL, NULL, TG_SITE);
    else
        *y = tg_reduce_scatter_to_sp(t, tg_linear(t, in[0], in[1], NULL), c, NULL);
    tg_tensor *loss = tg_sum(t, tg_mul(t, *y, tg_tanh(t, *y)), TG_ALL_DIMS, false);
    return tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true));
}

static tg_status sample_is_two_ops(tg_ctx *ctx, tg_tape *t, const tg_case own[2], tg_comm *c) {
    tg_tensor *y[2];
    for (int k = 0; k < 2; k++) RUN(run_sample(t, &own[k], c, k, &y[k]));
    EXPECT(ctx, agree(y[1], y[0], TG_F64));
    for (int j = 0; j < 2; j++) {
        tg_tensor *a = own[0].input[j], *b = own[1].input[j];
        EXPECT(ctx, tg_has_grad(a) == tg_has_grad(b));
        if (tg_has_grad(a)) EXPECT(ctx, agree(tg_grad_of(b), tg_grad_of(a), TG_F64));
    }
    return TG_OK;
}

static tg_status sample(void *arg, tg_ctx *ctx, tg_comm *c) {
    const tg_op *op = tg_op_find("linear_reduce_scatter");
    const tg_sample *s = tg_sample_at(op, *(const int *)arg);
    tg_case own[2];
    tg_tensor *y;
    tg_tape *t = tg_tape_new(ctx);
    for (int k = 0; k < 2; k++) {
        tg_case_opts o = {.dtype = TG_F64, .seed = 3 + 50 * (uint64_t)tg_comm_rank(c)};
        RUN(tg_case_open(&own[k], ctx, op, *(const int *)arg, &o));
    }
    if (s->refused) {
        REFUSED(ctx, s->refused, "expected a multiple of", run_sample(t, &own[0], c, true, &y));
    } else {
        RUN(sample_is_two_ops(ctx, t, own, c));
    }
    for (int k = 0; k < 2; k++) tg_case_close(&own[k]);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(samples_are_two_ops) {
    const tg_op *op = tg_op_find("linear_reduce_scatter");
    for (int i = 0; i < op->n_samples; i++)
        if (op->samples[i].ranks > 1) on_ranks(op->samples[i].ranks, sample, &i);
}
END_TEST

/* ---- Messages ---- */

/* Checks how many calls of each kind there were since `before`, and sets it to now. */
static tg_status expect_calls(tg_ctx *ctx, tg_comm *world, tg_comm_info *before, int64_t messages, int64_t bytes,
                              int64_t gathers, int64_t scatters) {
    tg_comm_info now = TG_COMM_INFO();
    RUN(tg_comm_query(world, &now));
#define SINCE(what_, kind_) (now.what_[kind_] - before->what_[kind_])
    EXPECT(ctx, SINCE(calls, TG_ALL_TO_ALL) == messages);
    EXPECT(ctx, SINCE(bytes, TG_ALL_TO_ALL) == bytes);
    EXPECT(ctx, SINCE(calls, TG_ALL_GATHER) == gathers && SINCE(calls, TG_REDUCE_SCATTER) == scatters);
    *before = now;
    return TG_OK;
}

static tg_status counted(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    int64_t n = tg_comm_size(world), messages = p->chunks * (n - 1);
    int64_t rows = S / n * B, sent = p->kind == ROW ? OUT : IN, bytes = (n - 1) * rows * sent * 4;
    tg_tensor *in[INPUTS];
    tg_comm_info info = TG_COMM_INFO();
    leaves(ctx, p, tg_comm_rank(world), (int)n, in);
    tg_tape *t = tg_tape_new(ctx);
    RUN(tg_comm_query(world, &info));
    tg_tensor *y = layer(t, world, p, in, in[0], p->chunks, NULL);
    RUN(expect_calls(ctx, world, &info, messages, bytes, 0, 0));
    RUN(tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)));
    RUN(expect_calls(ctx, world, &info, messages, bytes, p->kind != ROW, 0));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(messages_are_those_of_the_rule) {
    for (int n = 2; n <= 4; n += 2)
        for (int k = 0; k < KINDS * 2; k++) {
            plan p = {.kind = (kind)(k % KINDS), .chunks = k < KINDS ? 2 : 4, .dtype = TG_F32};
            on_ranks(n, counted, &p);
        }
}
END_TEST

/* A plan counts the same without other ranks, also on device meta. */
START_TEST(a_plan_counts_the_same) {
    for (int k = 0; k < KINDS * 2; k++) {
        plan p = {.kind = (kind)(k % KINDS), .chunks = 2, .dtype = TG_F32, .meta = k >= KINDS};
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .device = p.meta ? "meta" : "cpu"));
        tg_comm *c = tg_comm_plan_new(ctx, 1, 4);
        ck_assert_msg(counted(&p, ctx, c) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_comm_free(c);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* From the third step on no memory of the host is taken. */
static tg_status steady(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    tg_tensor *in[INPUTS], *y;
    leaves(ctx, p, tg_comm_rank(world), tg_comm_size(world), in);
    tg_tape *t = tg_tape_new(ctx);
    int64_t allocations = 0;
    for (int step = 0; step < 5; step++) {
        RUN(run(t, world, p, in, p->chunks, NULL, &y));
        RUN(end_steady_step(t, step, &allocations));
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(a_steady_step_allocates_nothing) {
    for (int k = 0; k < KINDS; k++) on_ranks(2, steady, &(plan){.kind = (kind)k, .chunks = 4, .dtype = TG_F64});
}
END_TEST

/* ---- Recomputed and recorded gradients ---- */

typedef struct again {
    const plan *p;
    tg_comm *c;
    tg_tensor *const *in;
} again;

static tg_status layer_again(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const again *s = state;
    (void)n_in, (void)n_out;
    out[0] = layer(t, s->c, s->p, s->in, in[0], s->p->chunks, NULL);
    return tg_ctx_status(tg_tape_ctx(t));
}

/* Gradients of a recomputation have the bits of backward; those that are recorded are other ops. */
static tg_status other_gradients(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    tg_tensor *in[INPUTS], *x, *y, *by[INPUTS], *plain[INPUTS], *other[INPUTS];
    tg_tape *t = tg_tape_new(ctx);
    int n = 0;
    leaves(ctx, p, tg_comm_rank(world), tg_comm_size(world), in);
    for (int i = 0; i < INPUTS; i++)
        if (in[i]) by[n++] = in[i];
    for (int again_ = 0; again_ < 2; again_++) {
        again s = {p, world, in};
        x = tg_scale(t, in[0], 2);
        if (again_)
            RUN(tg_recompute(t, layer_again, &s, &x, 1, &y, 1, NULL));
        else
            y = layer(t, world, p, in, x, p->chunks, NULL);
        tg_tensor *loss = tg_sum(t, tg_mul(t, y, tg_tanh(t, y)), TG_ALL_DIMS, false);
        RUN(tg_grad(t, &loss, 1, by, n, again_ ? other : plain, TG_GRAD(.retain = true)));
        if (again_) break;
        RUN(tg_grad(t, &loss, 1, by, n, other, TG_GRAD(.create_graph = true)));
        for (int i = 0; i < n; i++) EXPECT(ctx, agree(other[i], plain[i], TG_F64));
    }
    for (int i = 0; i < n; i++) EXPECT(ctx, off(other[i], plain[i], -1, 0, 1) == 0);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(recomputed_and_recorded_gradients_agree) {
    for (int k = 0; k < KINDS * 2; k++) {
        plan p = {.kind = (kind)(k % KINDS), .chunks = k < KINDS ? 1 : 2, .dtype = TG_F64};
        on_ranks(2, other_gradients, &p);
    }
}
END_TEST

/* ---- Refused calls ---- */

/* A rank that fails tells the others why, wherever in the ring they are. */
static tg_status one_fails(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    tg_tensor *in[INPUTS];
    tg_tape *t = tg_tape_new(ctx);
    leaves(ctx, p, tg_comm_rank(world), tg_comm_size(world), in);
    bool guilty = tg_comm_rank(world) == 1;
    if (guilty) in[1] = tg_zeros(ctx, TG_F64, TG_SHAPE(OUT, 3));
    tg_tensor *y = layer(t, world, p, in, in[0], p->chunks, NULL);
    tg_item(tg_sum(t, y, TG_ALL_DIMS, false)); /* over NCCL the host waits here */
    bool reported = tg_ctx_status(ctx) == (guilty ? TG_ERR_SHAPE : TG_ERR_REMOTE) &&
                    strstr(tg_ctx_message(ctx), "they must be equal");
    char message[512];
    snprintf(message, sizeof message, "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_tape_free(t);
    return reported ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "unexpected: %s", message);
}

START_TEST(a_rank_that_fails_is_reported) {
    for (int k = ranks_on_gpus() ? ROW : COLUMN; k < KINDS; k++) /* over NCCL it takes 10 s each */
        on_ranks(4, one_fails, &(plan){.kind = (kind)k, .chunks = 2, .dtype = TG_F64});
}
END_TEST

/* On one rank 3 chunks, which do not divide the 16 rows, are one. */
static tg_status alone(void *arg, tg_ctx *ctx, tg_comm *world) {
    for (kind k = COLUMN; k < KINDS; k++) {
        const plan p = {.kind = k, .dtype = TG_F32};
        tg_tensor *in[2][INPUTS], *y[2];
        tg_tape *t = tg_tape_new(ctx);
        for (int i = 0; i < 2; i++) {
            leaves(ctx, &p, 0, 1, in[i]);
            RUN(run(t, world, &p, in[i], i ? 3 : 1, NULL, &y[i]));
        }
        EXPECT(ctx, off(y[1], y[0], -1, 0, 1) == 0);
        for (int i = 0; i < 2; i++) EXPECT(ctx, off(tg_grad_of(in[1][i]), tg_grad_of(in[0][i]), -1, 0, 1) == 0);
        REFUSED(ctx, TG_ERR_ARGUMENT, "chunks is 17, expected 1 to 16", layer(t, world, &p, in[0], in[0][0], 17, arg));
        tg_tape_free(t);
    }
    return tg_ctx_status(ctx);
}

START_TEST(one_rank_has_one_chunk) { on_ranks(1, alone, NULL); }
END_TEST

static tg_status wrong(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    plan column = {.kind = COLUMN, .dtype = TG_F64}, row = {.kind = ROW, .dtype = TG_F64};
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tensor *in[2][INPUTS];
    tg_tape *t = tg_tape_new(ctx);
    leaves(ctx, &column, tg_comm_rank(world), 2, in[0]);
    leaves(ctx, &row, tg_comm_rank(world), 2, in[1]);
    tg_comm *c = tg_parallel_comm(p, TG_TP);
#define CHUNKS(p_, i_, n_) layer(t, world, p_, in[i_], in[i_][0], n_, NULL)
    REFUSED(ctx, TG_ERR_ARGUMENT, "chunks is 0, expected 1 to 16", CHUNKS(&column, 0, 0));
    REFUSED(ctx, TG_ERR_ARGUMENT, "chunks is 17, expected 1 to 16", CHUNKS(&row, 1, 17));
    REFUSED(ctx, TG_ERR_SHAPE, "this rank has 8 rows, expected a multiple of chunks, which is 3",
            CHUNKS(&column, 0, 3));
    REFUSED(ctx, TG_ERR_SHAPE, "this rank has 8 rows, expected a multiple of chunks, which is 5", CHUNKS(&row, 1, 5));
    REFUSED(ctx, TG_ERR_ARGUMENT, "chunks is 2, but without sequence_parallel no rows are gathered",
            tg_linear_with_grad_accumulation(t, in[0][0], in[0][1], NULL, world, TG_LINEAR_GRAD(.chunks = 2)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "tg_linear_reduce_scatter: allreduce_dgrad is set",
            tg_linear_reduce_scatter(t, in[1][0], in[1][1], world, TG_LINEAR_GRAD(.allreduce_dgrad = true)));
    REFUSED(ctx, TG_ERR_SHAPE, "x has 15 rows, expected a multiple of the 2 ranks",
            tg_linear_reduce_scatter(t, tg_zeros(ctx, TG_F64, TG_SHAPE(15, 4)), in[1][1], world, NULL));
    REFUSED(ctx, TG_ERR_PLACEMENT, "take x as a column layer gives it, sharded on its last dim",
            tg_linear_reduce_scatter(t, tg_zeros(ctx, TG_F64, TG_SHAPE(4, 4)), in[1][1], c, NULL));
    REFUSED(ctx, TG_ERR_ARGUMENT, "chunks is 2, but without sequence parallelism no rows are gathered or scattered",
            tg_nn_row_linear(p, IN, OUT, TG_PARALLEL_LINEAR(.chunks = 2)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "chunks is set, but it is an option of the column and the row layer only",
            tg_nn_parallel_linear(p, TG_LINEAR_DUPLICATED, IN, OUT, TG_PARALLEL_LINEAR(.chunks = 2)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "tg_nn_column_linear: chunks is 17, expected 1 to 16",
            tg_nn_column_linear(p, IN, OUT, TG_PARALLEL_LINEAR(.chunks = 17, .sequence_parallel = 1)));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_chunks_say_what_was_expected) { on_ranks(2, wrong, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {chunks_agree_with_one_collective,
                                  one_collective_of_a_row_layer_has_the_bits_of_two_ops,
                                  samples_are_two_ops,
                                  messages_are_those_of_the_rule,
                                  a_plan_counts_the_same,
                                  a_steady_step_allocates_nothing,
                                  recomputed_and_recorded_gradients_agree,
                                  a_rank_that_fails_is_reported,
                                  one_rank_has_one_chunk,
                                  wrong_chunks_say_what_was_expected};
    return tg_check_main("chunks", tests, sizeof tests / sizeof *tests);
}
