/* The rules of context parallelism: what is sent, who computes how much, in which order, derivatives made of ops, and
 * narrow dtypes. */
#include <tapegrad/derivatives.h>
#include <tapegrad/extend.h>
#include <tapegrad/op_call.h>

#include "parallel/context_cases.h"
#include "parallel/noting.h"

/* ---- One rank ---- */

/* Only a call by name records the op over a group of one rank; tg_context_attention records tg_attention. */
START_TEST(a_call_by_name_computes_on_one_rank) {
    enum { NUMBERS = 24 };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = TG_F64, .threads = 1));
    tg_comm *c = tg_comm_self_new(ctx);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *q = tg_randn(ctx, TG_F64, TG_SHAPE(1, 2, 4, 3), 1), *const in[] = {q, q, q}, *y;
    double want[2][NUMBERS], got[2][NUMBERS];
    tg_set_requires_grad(q, true);
    for (int k = -1; k < 4; k++) { /* -1: tg_attention */
        double(*out)[NUMBERS] = k < 0 ? want : got;
        const tg_value with[] = {
            {.name = "kind", .kind = TG_VALUE_INT, .integer = k < 0 ? 0 : (int64_t)context_kinds[k]},
            {.name = "c", .kind = TG_VALUE_POINTER, .pointer = c}};
        if (k < 0)
            y = tg_attention(t, q, q, q, NULL);
        else
            ck_assert(tg_op_call(t, "context_attention", in, 3, with, 2, &y, 1) == TG_OK);
        tg_read(y, out[0], sizeof out[0]);
        tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
        tg_read(tg_grad_of(q), out[1], sizeof out[1]);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        for (int i = 0; k >= 0 && i < NUMBERS; i++)
            ck_assert(fabs(got[0][i] - want[0][i]) < 1e-12 && fabs(got[1][i] - want[1][i]) < 1e-12);
        tg_zero_grad(q);
        tg_tape_reset(t);
    }
    tg_tape_free(t);
    tg_comm_free(c);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- What is sent ---- */

typedef struct sent {
    int64_t calls, bytes;
} sent;

/* Returns all calls of a rank and their bytes. */
static sent sent_by(const tg_comm *c) {
    tg_comm_info info = TG_COMM_INFO();
    sent s = {0, 0};
    tg_comm_query(c, &info);
    for (int k = 0; k < TG_COLLECTIVES; k++) s.calls += info.calls[k], s.bytes += info.bytes[k];
    return s;
}

typedef struct count_job {
    context_case c;
    sent forward, all; /* of rank 0 */
} count_job;

static tg_status count_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    count_job *j = arg;
    int64_t rows[CONTEXT_ROWS];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = tg_comm_size(world)));
    tg_comm *cp = tg_parallel_comm(p, TG_CP);
    tg_tape *t = tg_tape_new(ctx);
    context_leaves l = context_open_cut(ctx, p, &j->c, rows);
    tg_tensor *y = tg_context_attention(t, l.x[0], l.x[1], l.x[2], cp, &j->c.o);
    sent forward = sent_by(cp);
    RUN(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &l.seed)));
    if (tg_comm_rank(world) == 0) j->forward = forward, j->all = sent_by(cp);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Counts the calls of a rank without peers, on device meta. */
static void count_on_paper(count_job *j, int n) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .dtype = TG_F64, .threads = 1));
    tg_comm *world = tg_comm_plan_new(ctx, 0, n);
    tg_status s = count_rank(j, ctx, world);
    ck_assert_msg(s == TG_OK, "on paper: %s", tg_ctx_message(ctx));
    tg_comm_free(world);
    tg_ctx_free(ctx);
}

static void check_counts(tg_cp_kind kind, int inner, int n, sent forward, sent backward) {
    count_job run = {.c = {.g = 4, .h = 8, .dk = 5, .dv = 5, .o = CASE_OPTS(.causal = true)}}, paper;
    context_sizes(&run.c);
    run.c.o.kind = kind;
    run.c.o.inner = inner;
    paper = run;
    on_ranks(n, count_rank, &run);
    count_on_paper(&paper, n);
    const sent got[] = {run.forward,
                        {run.all.calls - run.forward.calls, run.all.bytes - run.forward.bytes},
                        paper.forward,
                        {paper.all.calls - paper.forward.calls, paper.all.bytes - paper.forward.bytes}};
    for (int i = 0; i < 4; i++) {
        sent want = i % 2 ? backward : forward;
        ck_assert_msg(got[i].calls == want.calls && got[i].bytes == want.bytes,
                      "kind %d, %d ranks, %s%s: %lld calls of %lld bytes, expected %lld of %lld", kind, n,
                      i % 2 ? "backward" : "forward", i / 2 ? " on paper" : "", (long long)got[i].calls,
                      (long long)got[i].bytes, (long long)want.calls, (long long)want.bytes);
    }
}

/* b 2, h 8, g 4, s 48, d 5, float64. */
START_TEST(messages_and_bytes_are_those_of_the_table) {
    for (int n = 2; n <= 4; n++) {
        int64_t rows = 48 / n, kv = 2 * (2 * 4 * rows * 5) * 8, q = 2 * 8 * rows * 5 * 8;
        check_counts(TG_CP_RING, TG_AUTO, n, (sent){n - 1, (n - 1) * kv}, (sent){2 * n - 1, (2 * n - 1) * kv});
        check_counts(TG_CP_GATHER, TG_AUTO, n, (sent){2, n * kv}, (sent){2, n * kv});
        if (n == 3) continue;
        check_counts(TG_CP_ULYSSES, TG_AUTO, n, (sent){2, q + kv + q}, (sent){2, q + kv + q});
        if (n == 4) check_counts(TG_CP_HIERARCHY, 2, n, (sent){3, q + kv + q + kv}, (sent){5, q + kv + q + 3 * kv});
    }
}
END_TEST

/* ---- Who computes how much ---- */

static tg_status work_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int64_t rows[CONTEXT_ROWS], all[CONTEXT_ROWS];
    int n = tg_comm_size(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = n));
    alone one = alone_open();
    tg_tape *t = tg_tape_new(ctx);
    context_case c = {.o = CASE_OPTS(.causal = true)};
    context_sizes(&c);
    context_leaves whole = context_open_cut(one.ctx, one.p, &c, all), l = context_open_cut(ctx, p, &c, rows);
    int64_t want = tg_node_flops(
        tg_node_of(tg_attention(one.t, whole.x[0], whole.x[1], whole.x[2], TG_ATTENTION(.causal = true))));
    for (int i = 0; i < 4; i++) {
        c.o.kind = context_kinds[i];
        if (n == 3 && i >= 2) continue;
        if (context_kinds[i] == TG_CP_HIERARCHY) c.o.inner = n / 2;
        tg_tensor *y = tg_context_attention(t, l.x[0], l.x[1], l.x[2], tg_parallel_comm(p, TG_CP), &c.o);
        EXPECT(ctx, want > 0 && tg_node_flops(tg_node_of(y)) * n == want);
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    return alone_close(ctx, &one);
}

START_TEST(every_rank_does_the_same_work) {
    for (int n = 2; n <= 4; n++) on_ranks(n, work_rank, NULL);
}
END_TEST

/* ---- The order of messages and products ---- */

/* The calls of the transport, and those of attention of a device. */
static struct {
    int n;
    const char *what[64];
} events;
static tg_device_ops device;
static tg_status (*true_attention)(tg_ctx *ctx, const tg_attention_args *a);
static tg_status (*true_grad)(tg_ctx *ctx, const tg_attention_args *a);

static void note(const char *what) { events.what[events.n++ & 63] = what; }
static tg_status noted_attention(tg_ctx *ctx, const tg_attention_args *a) {
    note("attend");
    return true_attention(ctx, a);
}
static tg_status noted_grad(tg_ctx *ctx, const tg_attention_args *a) {
    note("grad");
    return true_grad(ctx, a);
}

/* The dtype tells keys and values, which are 16-bit, from their gradients. */
static const char *const *names_of(const tg_transfer *call) {
    static const char *const names[][2] = {{"keys start", "keys end"}, {"gradients start", "gradients end"}};
    return names[call->dtype == TG_F32];
}

static void check_events(const char *const *expected, int n) {
    for (int i = 0; i < n || i < events.n; i++)
        ck_assert_msg(i < n && i < events.n && !strcmp(events.what[i], expected[i]),
                      "event %d of %d is \"%s\", expected \"%s\"", i, events.n, i < events.n ? events.what[i] : "none",
                      i < n ? expected[i] : "none");
    events.n = 0;
}

/* Records forward and backward of rank 0 of 3. */
static void record_events(tg_ctx *ctx, tg_cp_kind kind, const char *const *forward, int n_forward,
                          const char *const *backward, int n_backward) {
    tg_comm *c = tg_comm_new_on(ctx, &noting, NULL, 0, 3);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x[3];
    for (int i = 0; i < 3; i++) x[i] = grad_leaf(tg_zeros(ctx, TG_BF16, TG_SHAPE(1, 2, 4, 4)));
    tg_tensor *y = tg_context_attention(t, x[0], x[1], x[2], c, TG_CONTEXT_ATTENTION(.kind = kind, .causal = true));
    check_events(forward, n_forward);
    tg_tensor *seed = tg_zeros(ctx, TG_BF16, TG_SHAPE(1, 2, 4, 4));
    tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &seed));
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    check_events(backward, n_backward);
    tg_tape_free(t);
    tg_comm_free(c);
}
#define LIST(...) (const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

START_TEST(messages_travel_while_parts_are_computed) {
    tg_ctx *plain = tg_ctx_new(NULL);
    device = *tg_ctx_ops(plain);
    true_attention = device.attention, true_grad = device.attention_grad;
    device.attention = noted_attention, device.attention_grad = noted_grad;
    tg_ctx_free(plain);
    tg_ctx *ctx = tg_ctx_new_on(&device, TG_CONFIG(.threads = 1, .dtype = TG_BF16));
    record_events(ctx, TG_CP_RING,
                  LIST("keys start", "attend", "attend", "attend", "keys end", "keys start", "attend", "attend",
                       "keys end", "attend", "attend"),
                  LIST("keys start", "grad", "grad", "grad", "gradients start", "keys end", "keys start", "grad",
                       "grad", "gradients end", "gradients start", "keys end", "grad", "grad", "gradients end",
                       "gradients start", "gradients end"));
    record_events(ctx, TG_CP_GATHER,
                  LIST("keys start", "keys start", "keys end", "attend", "attend", "attend", "attend", "keys end",
                       "attend", "attend", "attend"),
                  LIST("grad", "grad", "grad", "grad", "gradients start", "grad", "grad", "grad", "gradients start",
                       "gradients end", "gradients end"));
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Equal bits ---- */

static tg_status bits_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int64_t rows[CONTEXT_ROWS];
    double first[1024], again[1024];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = tg_comm_size(world)));
    context_case c = {.g = 2, .o = CASE_OPTS(.causal = true)};
    context_sizes(&c);
    context_leaves l = context_open_cut(ctx, p, &c, rows);
    for (int i = 0; i < 4; i++)
        for (int run = 0; run < 2; run++) {
            tg_tape *t = tape_on_nans(ctx);
            int64_t n = 0;
            c.o.kind = context_kinds[i];
            tg_tensor *y = context_run(t, &l, &c, tg_parallel_comm(p, TG_CP));
            RUN(tg_read_f64(y, run ? again : first, tg_numel(y)));
            n = tg_numel(y);
            RUN(tg_read_f64(tg_grad_of(l.x[1]), (run ? again : first) + n, tg_numel(l.x[1])));
            n += tg_numel(l.x[1]);
            EXPECT(ctx, !run || !memcmp(first, again, (size_t)n * sizeof *first));
            for (int k = 0; k < 3; k++) tg_zero_grad(l.x[k]);
            tg_tape_free(t);
        }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(two_runs_agree_in_all_bits) { on_ranks(2, bits_rank, NULL); }
END_TEST

/* ---- Narrow dtypes ---- */

/* Compares 16-bit results on two ranks with float64 results on one rank. All parts are merged in float32, so the error
 * is that of the last rounding. */
static tg_status narrow_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_dtype dtype = *(const tg_dtype *)arg;
    double ulp = dtype == TG_BF16 ? 1.0 / 256 : 1.0 / 2048;
    int64_t rows[CONTEXT_ROWS], all[CONTEXT_ROWS];
    int n = tg_comm_size(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = n));
    alone one = alone_open();
    context_case c = {.g = 2, .dk = 16, .s = 48, .o = CASE_OPTS(.causal = true)};
    context_sizes(&c);
    context_leaves l = context_open_cut(ctx, p, &c, rows), whole = context_open_cut(one.ctx, one.p, &c, all);
    tg_tensor *want = context_run(one.t, &whole, &c, tg_parallel_comm(one.p, TG_CP));
    for (int i = 0; i < 4; i++) {
        tg_tape *t = tape_on_nans(ctx);
        tg_tensor *x[3], *seed = tg_cast(t, l.seed, dtype);
        for (int k = 0; k < 3; k++) x[k] = tg_cast(t, l.x[k], dtype);
        c.o.kind = context_kinds[i];
        tg_tensor *y = tg_context_attention(t, x[0], x[1], x[2], tg_parallel_comm(p, TG_CP), &c.o);
        RUN(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &seed, .retain = true)));
        EXPECT(ctx, tg_dtype_of(y) == dtype && context_off(y, want, rows, c.s / n, 0, c.h) < 4 * ulp);
        for (int k = 0; k < 3; k++)
            EXPECT(ctx,
                   context_off(tg_grad_of(l.x[k]), tg_grad_of(whole.x[k]), rows, c.s / n, 0, k ? c.g : c.h) < 32 * ulp);
        for (int k = 0; k < 3; k++) tg_zero_grad(l.x[k]);
        tg_tape_free(t);
    }
    tg_parallel_free(p);
    return alone_close(ctx, &one);
}

START_TEST(narrow_results_are_merged_in_float32) {
    tg_dtype dtypes[] = {TG_BF16, TG_F16};
    for (int i = 0; i < 2; i++) on_ranks(2, narrow_rank, &dtypes[i]);
}
END_TEST

/* ---- An empty sequence ---- */

/* Attention of no rows runs, and the sink gets gradients of 0. */
static tg_status empty_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int n = tg_comm_size(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = n));
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(1, 4, 0, 3)), *sink = tg_zeros(ctx, TG_F64, TG_SHAPE(4));
    tg_tensor *starts = tg_zeros(ctx, TG_I64, TG_SHAPE(3));
    tg_place(p, x, TG_CP, TG_SHARD_ZIGZAG(2));
    tg_place(p, starts, TG_CP, TG_I);
    tg_place(p, sink, TG_CP, TG_R);
    tg_set_requires_grad(x, true);
    tg_set_requires_grad(sink, true);
    for (int i = 0; i < 12; i++) { /* one sequence; two that are packed, cut apart and cut as one */
        double g[4] = {1, 1, 1, 1};
        tg_tape *t = tape_on_nans(ctx);
        tg_tensor *y =
            tg_context_attention(t, x, x, x, tg_parallel_comm(p, TG_CP),
                                 TG_CONTEXT_ATTENTION(.kind = context_kinds[i % 4], .causal = true, .sink = sink,
                                                      .starts = i < 4 ? NULL : starts, .cut_as_one = i >= 8));
        RUN(tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)));
        RUN(tg_read(tg_grad_share(sink), g, sizeof g));
        EXPECT(ctx, tg_numel(y) == 0 && g[0] == 0 && g[1] == 0 && g[2] == 0 && g[3] == 0);
        tg_zero_grad(sink);
        tg_zero_grad(x);
        tg_tape_free(t);
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_sequence_may_be_empty) {
    for (int n = 2; n <= 4; n += 2) on_ranks(n, empty_rank, NULL);
}
END_TEST

/* ---- Derivatives made of ops ---- */

/* Computes the gradient g of <y, seed> for q as ops, and the gradient of <g, g> for v. */
static tg_tensor *second(tg_tape *t, tg_tensor *y, context_leaves *l, tg_tensor **g) {
    tg_tensor *gg = NULL;
    tg_grad(t, &y, 1, &l->x[0], 1, g, TG_GRAD(.seeds = &l->seed, .create_graph = true));
    tg_tensor *sum = tg_sum(t, tg_square(t, *g), TG_DIMS(0, 1, 2, 3), false);
    tg_grad(t, &sum, 1, &l->x[2], 1, &gg, TG_GRAD(.retain = true));
    return gg;
}

/* arg: whether sequences are packed, and cut as one. */
static tg_status second_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    int64_t rows[CONTEXT_ROWS], all[CONTEXT_ROWS];
    int n = tg_comm_size(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = n));
    alone one = alone_open();
    context_case c = {.b = 1, .h = 2, .s = 16, .starts = {0, 5, 16}, .o = CASE_OPTS(.causal = true, .left = 6)};
    c.sequences = *(const bool *)arg ? 2 : 0;
    c.o.cut_as_one = true;
    context_sizes(&c);
    context_leaves whole = context_open_cut(one.ctx, one.p, &c, all);
    c.o.starts = whole.starts;
    tg_tensor *y =
        tg_context_attention(one.t, whole.x[0], whole.x[1], whole.x[2], tg_parallel_comm(one.p, TG_CP), &c.o);
    tg_tensor *g, *want_g, *want = second(one.t, y, &whole, &want_g);
    for (int i = 0; i < 4; i++) {
        tg_tape *t = tape_on_nans(ctx);
        context_leaves l = context_open_cut(ctx, p, &c, rows);
        c.o.kind = context_kinds[i];
        c.o.starts = l.starts;
        y = tg_context_attention(t, l.x[0], l.x[1], l.x[2], tg_parallel_comm(p, TG_CP), &c.o);
        tg_tensor *gg = second(t, y, &l, &g);
        EXPECT(ctx, context_off(g, want_g, rows, c.s / n, 0, c.h) <= 1e-12);
        EXPECT(ctx, context_off(gg, want, rows, c.s / n, 0, c.h) <= 1e-12);
        tg_tape_free(t);
    }
    tg_parallel_free(p);
    return alone_close(ctx, &one);
}

START_TEST(derivatives_of_derivatives_are_those_of_one_rank) {
    for (int packed = 0; packed < 2; packed++) on_ranks(2, second_rank, &(bool){packed});
}
END_TEST

/* ---- Rows of a rank ---- */

static void check_cut(const int64_t *starts, int m, int n, int rank, const int64_t *want, int count) {
    int64_t rows[64];
    ck_assert_int_eq(tg_context_cut(starts, m, n, rank, rows), TG_OK);
    for (int i = 0; i < count; i++) ck_assert_int_eq(rows[i], want[i]);
}

START_TEST(rows_are_cut_sequence_by_sequence) {
    int64_t rows[64];
    const int64_t one[] = {0, 8}, two[] = {0, 4, 12}, odd[] = {0, 7}, back[] = {0, 8, 4}, late[] = {4, 8};
    check_cut(one, 1, 2, 0, (const int64_t[]){0, 1, 6, 7}, 4);
    check_cut(one, 1, 2, 1, (const int64_t[]){2, 3, 4, 5}, 4);
    check_cut(one, 1, 1, 0, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    check_cut(odd, 1, 1, 0, (const int64_t[]){0, 1, 2, 3, 4, 5, 6}, 7);
    check_cut(two, 2, 2, 0, (const int64_t[]){0, 4, 5, 3, 10, 11}, 6);
    check_cut(two, 2, 2, 1, (const int64_t[]){1, 6, 7, 2, 8, 9}, 6);
    ck_assert_int_eq(tg_context_cut(odd, 1, 2, 0, rows), TG_ERR_DATA);
    ck_assert_int_eq(tg_context_cut(back, 2, 2, 0, rows), TG_ERR_DATA);
    ck_assert_int_eq(tg_context_cut(late, 1, 2, 0, rows), TG_ERR_DATA);
    ck_assert_int_eq(tg_context_cut(one, 1, 2, 2, rows), TG_ERR_ARGUMENT);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_call_by_name_computes_on_one_rank,
                                  messages_and_bytes_are_those_of_the_table,
                                  every_rank_does_the_same_work,
                                  messages_travel_while_parts_are_computed,
                                  two_runs_agree_in_all_bits,
                                  narrow_results_are_merged_in_float32,
                                  a_sequence_may_be_empty,
                                  derivatives_of_derivatives_are_those_of_one_rank,
                                  rows_are_cut_sequence_by_sequence};
    return tg_check_main("context_rules", tests, sizeof tests / sizeof tests[0]);
}
