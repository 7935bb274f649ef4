/* Cases of mappings that samples do not cover: groups of one rank, uneven parts, exchanges, results in flight,
 * placements. */
#include "on_ranks.h"

#include <tapegrad/extend.h>
#include <tapegrad/megatron.h>

#include <stdatomic.h>

enum { MOST = 4 };

/* ---- Groups of one ---- */

static tg_status alone(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(3, 5))), *inert = tg_copy_to_tp(NULL, x, c);
    if (tg_ctx_status(ctx) == TG_ERR_ARGUMENT) tg_ctx_clear(ctx); /* without a tape */
    else return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "no tape, and no error");
    EXPECT(ctx, !tg_is_alive(inert));
    tg_tensor *const all[] = {tg_copy_to_tp(t, x, c),
                              tg_reduce_from_tp(t, x, c),
                              tg_scatter_to_tp(t, x, c),
                              tg_gather_from_tp(t, x, c),
                              tg_scatter_to_sp(t, x, c),
                              tg_gather_from_sp(t, x, c, NULL),
                              tg_reduce_scatter_to_sp(t, x, c, TG_SP(.splits = (const int64_t[]){3})),
                              tg_all_gather_last_dim(t, x, c),
                              tg_reduce_scatter_last_dim(t, x, c),
                              tg_all_to_all(t, x, NULL, NULL, c),
                              tg_all_to_all_sp2hp(t, x, c),
                              tg_all_to_all_hp2sp(t, x, c),
                              tg_all_reduce(t, x, c),
                              tg_scatter_to(t, x, 0, c),
                              tg_shard(t, x, 0, c),
                              tg_gather_from(t, x, 0, c),
                              tg_all_gather(t, x, 0, c),
                              tg_reduce_scatter(t, x, 0, c),
                              tg_reshard(t, x, 0, 1, c),
                              tg_shift(t, x, c),
                              tg_broadcast(t, x, 0, c),
                              tg_as_partial(t, x, c),
                              tg_as_opaque(t, x, c),
                              tg_as_shard(t, x, 0, c),
                              tg_i_to_p(t, x, c),
                              tg_r_to_i(t, x, c)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) EXPECT(ctx, all[i] == x);
    EXPECT(ctx, tg_tape_nodes(t) == 0);
    REFUSED(ctx, TG_ERR_HANDLE, "the tensor is inert", tg_copy_to_tp(t, inert, c));
    tg_comm_info n = TG_COMM_INFO();
    tg_comm_query(c, &n);
    for (int k = 0; k < TG_COLLECTIVES; k++) EXPECT(ctx, n.calls[k] == 0);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(a_group_of_one_returns_the_input) { on_ranks(1, alone, NULL); }
END_TEST

/* ---- All-to-all of uneven parts ---- */

/* Number of rows that rank r sends to rank q. */
static int64_t rows_to(int r, int q) { return (r * 2 + q * 3) % 4; }
/* Element i of row j of these rows. */
static double sent(int r, int q, int64_t j, int64_t i) { return 1000 * r + 100 * q + 10 * (double)j + (double)i; }

static tg_status uneven(void *arg, tg_ctx *ctx, tg_comm *c) {
    enum { W = 3 };
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    int64_t send[MOST], recv[MOST], rows = 0, comes = 0;
    double v[MOST * 4 * W], got[MOST * 4 * W];
    for (int q = 0; q < n; q++) {
        send[q] = rows_to(me, q);
        recv[q] = rows_to(q, me);
        for (int64_t j = 0; j < send[q]; j++, rows++)
            for (int64_t i = 0; i < W; i++) v[rows * W + i] = sent(me, q, j, i);
        comes += recv[q];
    }
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(tg_from_host(ctx, TG_F64, TG_SHAPE(rows, W), v));
    tg_tensor *y = tg_all_to_all(t, x, send, recv, c);
    EXPECT(ctx, tg_dim(y, 0) == comes && tg_dim(y, 1) == W);
    tg_read_f64(y, got, comes * W);
    for (int64_t q = 0, at_row = 0; q < n; q++)
        for (int64_t j = 0; j < recv[q]; j++, at_row++)
            for (int64_t i = 0; i < W; i++) EXPECT(ctx, got[at_row * W + i] == sent((int)q, me, j, i));
    /* The gradient of sum(y^2) / 2 equals the sent values. */
    RUN(tg_backward(t, tg_scale(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false), 0.5)));
    tg_read_f64(tg_grad_of(x), got, rows * W);
    for (int64_t i = 0; i < rows * W; i++) EXPECT(ctx, got[i] == v[i]);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(rows_in_uneven_parts) {
    for (int n = 2; n <= MOST; n++) on_ranks(n, uneven, NULL);
}
END_TEST

/* ---- Rows are exchanged for columns ---- */

static tg_status rows_and_columns(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *whole = made(ctx, 1, TG_SHAPE(12, 2, 12)),
              *rows = grad_leaf(part(ctx, 1, TG_SHAPE(12, 2, 12), 0, me, n));
    tg_tensor *y = tg_all_to_all_sp2hp(t, rows, c);
    EXPECT(ctx, tg_dim(y, 0) == 24 && tg_dim(y, 1) == 12 / n);
    EXPECT(ctx, off(tg_reshape(t, y, TG_SHAPE(12, 2, 12 / n)), whole, 2, me, n) == 0);
    tg_tensor *back = tg_all_to_all_hp2sp(t, y, c);
    EXPECT(ctx, off(tg_reshape(t, back, TG_SHAPE(12 / n, 2, 12)), whole, 0, me, n) == 0);
    RUN(tg_backward(t, tg_scale(t, tg_sum(t, tg_square(t, back), TG_ALL_DIMS, false), 0.5)));
    EXPECT(ctx, off(tg_grad_of(rows), whole, 0, me, n) == 0);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(rows_and_columns_change_places) {
    for (int n = 1; n <= MOST; n++) on_ranks(n, rows_and_columns, NULL);
}
END_TEST

/* ---- Utilities ---- */

static tg_status utilities(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tape *t = tg_tape_new(ctx);
    for (int64_t size = 0; size <= 14; size += 7) {
        tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(2, size))), *mine = tg_split_1d(t, tg_transpose(t, x, 0, 1), c);
        int64_t each = (2 * size + n - 1) / n, left = 2 * size - me * each;
        EXPECT(ctx, tg_ndim(mine) == 1 && tg_numel(mine) == (left < 0 ? 0 : left < each ? left : each));
        tg_tensor *all = tg_gather_1d(t, mine, 2 * size, c);
        EXPECT(ctx, tg_ndim(all) == 1 && tg_numel(all) == 2 * size);
        tg_tensor *column = tg_unsqueeze(t, mine, -1); /* an equal part may have several dims */
        if (2 * size % n == 0) EXPECT(ctx, tg_ndim(tg_gather_1d(t, column, 2 * size, c)) == 1);
        tg_tensor *again = tg_transpose(t, tg_reshape(t, all, TG_SHAPE(size, 2)), 0, 1);
        EXPECT(ctx, size == 0 || off(again, x, -1, 0, 1) == 0);
        RUN(tg_backward(t, tg_scale(t, tg_sum(t, tg_square(t, all), TG_ALL_DIMS, false), 0.5)));
        EXPECT(ctx, size == 0 || off(tg_grad_of(x), x, -1, 0, 1) == 0);
    }
    tg_tensor *x = made(ctx, 2, TG_SHAPE(2, 3, 12)), *out[3];
    for (int dense = 0; dense < 2; dense++) {
        RUN(tg_split_last_dim(t, x, 3, dense, out));
        for (int i = 0; i < 3; i++) EXPECT(ctx, off(out[i], x, 2, i, 3) == 0 && tg_is_contiguous(out[i]) == dense);
    }
    tg_tensor *no_columns = tg_all_to_all_sp2hp(t, tg_zeros(ctx, TG_F64, TG_SHAPE(2, 3, 0)), c);
    EXPECT(ctx, tg_dim(no_columns, 0) == 6 * n && tg_dim(no_columns, 1) == 0);
    int64_t first, last;
    RUN(tg_vocab_range(ctx, 24, me, n, &first, &last));
    EXPECT(ctx, first == 24 / n * me && last == first + 24 / n);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(utilities_of_megatron_core) {
    for (int n = 1; n <= MOST; n++) on_ranks(n, utilities, NULL);
}
END_TEST

/* ---- broadcast_data ---- */

static tg_status data(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    enum { N = 4 };
    static const tg_shape shapes[N] = {{2, {3, 4}}, {3, {2, 0, 5}}, {0, {0}}, {5, {1, 2, 1, 3, 2}}};
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x[N] = {NULL};
    bool first = tg_comm_rank(c) == 0;
    for (int i = 0; first && i < N; i++) x[i] = made(ctx, i, shapes[i]);
    if (first) x[0] = tg_transpose(t, made(ctx, 0, TG_SHAPE(4, 3)), 0, 1);
    RUN(tg_broadcast_data(t, x, N, TG_F64, c));
    for (int i = 0; i < N; i++) {
        tg_shape s = tg_shape_of(x[i]);
        EXPECT(ctx, s.ndim == shapes[i].ndim && !memcmp(s.dim, shapes[i].dim, (size_t)s.ndim * sizeof *s.dim));
        tg_tensor *want = i ? made(ctx, i, shapes[i]) : tg_transpose(t, made(ctx, 0, TG_SHAPE(4, 3)), 0, 1);
        EXPECT(ctx, !tg_numel(want) || off(x[i], want, -1, 0, 1) == 0);
    }
    tg_tensor *ids[2] = {NULL}; /* the second has another dtype: every rank reports it */
    if (first)
        ids[0] = tg_from_host(ctx, TG_I64, TG_SHAPE(2), (const int64_t[]){4, 5}), ids[1] = made(ctx, 1, TG_SHAPE(2));
    REFUSED(ctx, TG_ERR_DTYPE, "tensor 1 of rank 0 is f64, expected i64", tg_broadcast_data(t, ids, 2, TG_I64, c));
    EXPECT(ctx, first || (!tg_is_alive(ids[0]) && !tg_is_alive(ids[1])));
    tg_tensor *kept = made(ctx, 1, TG_SHAPE(2)), *other = kept;
    REFUSED(ctx, TG_ERR_ARGUMENT, "the tape is NULL", tg_broadcast_data(NULL, &other, 1, TG_F64, c));
    EXPECT(ctx, first ? other == kept : !tg_is_alive(other));
    RUN(tg_broadcast_data(t, ids, 1, TG_I64, c));
    int64_t v[2];
    tg_read(ids[0], v, sizeof v);
    EXPECT(ctx, v[0] == 4 && v[1] == 5);
    RUN(tg_broadcast_data(t, NULL, 0, TG_I64, c));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

/* All ranks of a group get the same; each group has its own. */
static tg_status sent_over_one_axis(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_comm *over[] = {tg_parallel_comm(p, TG_TP), tg_parallel_comm(p, TG_DP), tg_parallel_dp_cp(p),
                       tg_parallel_model(p), world};
    const struct {
        tg_placement_kind tp, dp;
    } want[] = {{TG_INVARIANT, TG_VARYING}, {TG_VARYING, TG_INVARIANT}, {TG_VARYING, TG_INVARIANT},
                {TG_INVARIANT, TG_VARYING}, {TG_INVARIANT, TG_INVARIANT}};
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < 5; i++) {
        tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2), (const double[]){1, 2});
        RUN(tg_broadcast_data(t, &x, 1, TG_F64, over[i]));
        EXPECT(ctx, tg_placement_of(x, TG_TP).kind == want[i].tp && tg_placement_of(x, TG_DP).kind == want[i].dp);
    }
    tg_tensor *rows = tg_from_host(ctx, TG_F64, TG_SHAPE(2), (const double[]){1, 2});
    tg_place(p, rows, TG_DP, TG_SHARD(0));
    RUN(tg_broadcast_data(t, &rows, 1, TG_F64, over[0]));
    tg_placement dp = tg_placement_of(rows, TG_DP);
    EXPECT(ctx, dp.kind == TG_VARYING && dp.layout == TG_CONTIGUOUS && dp.dim == 0);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(broadcast_data_lie_on_other_axes_as_before) { on_ranks(4, sent_over_one_axis, NULL); }
END_TEST

START_TEST(data_of_rank_0_on_every_rank) {
    for (int n = 1; n <= MOST; n++) on_ranks(n, data, NULL);
}
END_TEST

/* ---- Other dtypes ---- */

static tg_status integers(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    static const tg_dtype dtypes[] = {TG_I64, TG_I32, TG_U8, TG_I8, TG_I16, TG_U16, TG_U32, TG_U64};
    bool nccl = !strcmp(tg_comm_transport(c), "nccl");
    tg_tape *t = tg_tape_new(ctx);
    double v[12];
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        tg_tensor *x = tg_zeros(ctx, dtypes[k], TG_SHAPE(2, 3));
        double mine[6];
        for (int i = 0; i < 6; i++) mine[i] = 10 * tg_comm_rank(c) + i;
        tg_write_f64(x, mine, 6);
        tg_read_f64(tg_gather_from(t, x, 1, c), v, 12);
        for (int i = 0; i < 12; i++) EXPECT(ctx, v[i] == 10 * (i % 6 / 3) + i / 6 * 3 + i % 3);
        if (nccl && tg_dtype_bits(dtypes[k]) == 16) continue; /* NCCL moves them, but does not reduce them */
        tg_read_f64(tg_reduce_from_tp(t, x, c), v, 6);
        for (int i = 0; i < 6; i++) EXPECT(ctx, v[i] == 10 + 2 * i);
        tg_read_f64(tg_all_reduce_max(t, x, c), v, 6);
        for (int i = 0; i < 6; i++) EXPECT(ctx, v[i] == 10 + i);
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(mappings_move_integers_too) { on_ranks(2, integers, NULL); }
END_TEST

/* ---- In flight: rank 1 calls only after rank 0 has seen that its own call did not wait ---- */

typedef tg_tensor *(*mapping_fn)(tg_tape *t, tg_tensor *x, tg_comm *c);
static tg_tensor *gather_rows(tg_tape *t, tg_tensor *x, tg_comm *c) { return tg_gather_from_sp(t, x, c, NULL); }
static tg_tensor *scatter_rows(tg_tape *t, tg_tensor *x, tg_comm *c) { return tg_reduce_scatter_to_sp(t, x, c, NULL); }
static tg_tensor *exchange(tg_tape *t, tg_tensor *x, tg_comm *c) { return tg_all_to_all(t, x, NULL, NULL, c); }
static const mapping_fn in_flight_fns[] = {tg_reduce_from_tp, tg_all_reduce, gather_rows,
                                           scatter_rows,      exchange,      tg_reduce_scatter_last_dim};

static tg_status in_flight(void *arg, tg_ctx *ctx, tg_comm *c) {
    atomic_int *seen = arg;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = made(ctx, 1, TG_SHAPE(4, 6)), *view = tg_transpose(t, made(ctx, 1, TG_SHAPE(6, 4)), 0, 1);
    for (size_t i = 0; i < sizeof in_flight_fns / sizeof *in_flight_fns; i++)
        for (int strided = 0; strided < 2; strided++) {
            int round = (int)(2 * i) + strided + 1;
            while (tg_comm_rank(c) == 1 && atomic_load(seen) < round) {}
            tg_tensor *y = in_flight_fns[i](t, strided ? view : x, c);
            bool waits = tg_storage_state_of(y) == TG_IN_FLIGHT;
            if (tg_comm_rank(c) == 0) atomic_store(seen, waits ? round : 1000);
            EXPECT(ctx, atomic_load(seen) < 1000);
            tg_tensor *once = tg_scale(t, y, 1); /* reads */
            EXPECT(ctx, tg_storage_state_of(y) == TG_PRESENT && tg_is_alive(once));
        }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(communication_does_not_wait) {
    atomic_int seen = 0;
    on_ranks(2, in_flight, &seen);
}
END_TEST

/* ---- In a recomputation ---- */

static tg_status column_row(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    tg_comm *c = state;
    (void)n_in, (void)n_out;
    tg_tensor *h = tg_tanh(t, tg_linear(t, tg_copy_to_tp(t, in[0], c), in[1], NULL));
    out[0] = tg_reduce_from_tp(t, tg_linear(t, h, in[2], NULL), c);
    return TG_OK;
}

static tg_status recomputed(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *in[] = {grad_leaf(made(ctx, 1, TG_SHAPE(4, 6))), grad_leaf(part(ctx, 2, TG_SHAPE(12, 6), 0, me, n)),
                       grad_leaf(part(ctx, 3, TG_SHAPE(6, 12), 1, me, n))};
    double g[2][3][72];
    for (int again = 0; again < 2; again++) {
        tg_tensor *y;
        if (again)
            RUN(tg_recompute(t, column_row, c, in, 3, &y, 1, NULL));
        else
            RUN(column_row(c, t, in, 3, &y, 1));
        RUN(tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false)));
        for (int i = 0; i < 3; i++) {
            tg_read_f64(tg_grad_of(in[i]), g[again][i], tg_numel(in[i]));
            tg_zero_grad(in[i]);
        }
        tg_tape_reset(t);
    }
    for (int i = 0; i < 3; i++) EXPECT(ctx, !memcmp(g[0][i], g[1][i], (size_t)tg_numel(in[i]) * sizeof(double)));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(mappings_work_in_recomputations) {
    on_ranks(2, recomputed, NULL);
    on_ranks(3, recomputed, NULL);
}
END_TEST

/* ---- Results in named buffers ---- */

static int64_t in_buffers(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.by_category[TG_MEM_BUFFER];
}

static tg_status buffered(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    const tg_sp_opts *in_mpu = TG_SP(.buffer = "mpu");
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *whole = made(ctx, 1, TG_SHAPE(12, 5)), *x = grad_leaf(part(ctx, 1, TG_SHAPE(12, 5), 0, me, n));
    int64_t bytes = 0;
    for (int step = 0; step < 3; step++) {
        tg_tensor *y = tg_gather_from_sp(t, x, c, in_mpu);
        EXPECT(ctx, off(y, whole, -1, 0, 1) == 0 && in_buffers(ctx) > 0);
        EXPECT(ctx, step == 0 || in_buffers(ctx) == bytes);
        bytes = in_buffers(ctx);
        /* Another result in the same memory would change this one. */
        REFUSED(ctx, TG_ERR_STATE, "op GatherFromSequenceParallelRegion", tg_gather_from_sp(t, x, c, in_mpu));
        tg_tensor *z = tg_scale(t, y, 2);
        RUN(tg_discard(y));
        tg_tensor *w = tg_reduce_scatter_to_sp(t, tg_scale(t, z, 1.0 / (2 * n)), c, in_mpu);
        EXPECT(ctx, off(w, whole, 0, me, n) < 1e-14);
        RUN(tg_backward(t, tg_scale(t, tg_sum(t, tg_square(t, w), TG_ALL_DIMS, false), 0.5)));
        EXPECT(ctx, off(tg_grad_of(x), whole, 0, me, n) < 1e-14);
        tg_zero_grad(x);
        tg_tape_reset(t);
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(results_in_named_buffers) {
    on_ranks(2, buffered, NULL);
    on_ranks(3, buffered, NULL);
}
END_TEST

/* ---- A step of mappings: memory, and a plan's counts ---- */

enum { S = 12, H = 6, F = 12, VOCAB = 24 };

typedef struct block {
    tg_tensor *ids, *target, *table, *up, *down, *head;
} block;

static block make_block(tg_ctx *ctx, int n) {
    tg_tensor *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(S)), *target = tg_zeros(ctx, TG_I64, TG_SHAPE(S));
    return (block){ids,
                   target,
                   grad_leaf(tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(VOCAB / n, H), 1)),
                   grad_leaf(tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(F / n, H), 1)),
                   grad_leaf(tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(H, F / n), 1)),
                   grad_leaf(tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(VOCAB / n, H), 1))};
}

/* Sequence parallelism: shards of rows between the parallel regions, all rows within them. */
static tg_status step_of(const block *b, tg_tape *t, tg_comm *c) {
    tg_tensor *x = tg_reduce_scatter_to_sp(t, tg_vocab_parallel_embedding(t, b->table, b->ids, c), c, NULL);
    tg_tensor *h = tg_tanh(t, tg_linear(t, tg_gather_from_sp(t, x, c, NULL), b->up, NULL));
    x = tg_add(t, x, tg_reduce_scatter_to_sp(t, tg_linear(t, h, b->down, NULL), c, NULL));
    tg_tensor *whole = tg_gather_from_sp(t, x, c, NULL), *logits = tg_linear(t, whole, b->head, NULL);
    tg_tensor *wide = tg_all_gather_last_dim(t, tg_scatter_to_tp(t, tg_reduce_from_tp(t, whole, c), c), c);
    tg_tensor *loss = tg_vocab_parallel_cross_entropy(t, logits, b->target, c, NULL);
    tg_tensor *other = tg_vocab_parallel_linear_cross_entropy(t, wide, b->head, b->target, c, NULL);
    RUN(tg_backward(t, tg_add(t, loss, other)));
    tg_tape_reset(t);
    return TG_OK;
}

static tg_status steps(void *arg, tg_ctx *ctx, tg_comm *c) {
    tg_comm_info *counts = arg, before = TG_COMM_INFO();
    block b = make_block(ctx, tg_comm_size(c));
    tg_tape *t = tg_tape_new(ctx);
    tg_memory_info m = TG_MEMORY_INFO(), settled = TG_MEMORY_INFO();
    for (int step = 0; step < 6; step++) {
        tg_comm_query(c, &before);
        RUN(step_of(&b, t, c));
        if (step == 2) tg_memory_query(ctx, &settled);
    }
    tg_memory_query(ctx, &m);
    EXPECT(ctx, m.host_allocations == settled.host_allocations && m.reserved == settled.reserved);
    tg_comm_info after = TG_COMM_INFO();
    tg_comm_query(c, &after);
    for (int k = 0; tg_comm_rank(c) == 1 && k < TG_COLLECTIVES; k++) {
        counts->calls[k] = after.calls[k] - before.calls[k];
        counts->bytes[k] = after.bytes[k] - before.bytes[k];
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(a_steady_step_allocates_nothing) {
    for (int n = 2; n <= 3; n++) {
        tg_comm_info counts = TG_COMM_INFO(), plan = TG_COMM_INFO();
        on_ranks(n, steps, &counts);
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .dtype = TG_F64));
        tg_comm *c = tg_comm_plan_new(ctx, 1, n);
        tg_tape *t = tg_tape_new(ctx);
        block b = make_block(ctx, n);
        ck_assert_msg(step_of(&b, t, c) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_comm_query(c, &plan);
        for (int k = 0; k < TG_COLLECTIVES; k++) {
            ck_assert_int_eq(plan.calls[k], counts.calls[k]);
            ck_assert_int_eq(plan.bytes[k], counts.bytes[k]);
        }
        ck_assert_int_gt(counts.calls[TG_REDUCE_SCATTER], 0);
        tg_tape_free(t);
        tg_comm_free(c);
        tg_ctx_free(ctx);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_group_of_one_returns_the_input, rows_in_uneven_parts,           rows_and_columns_change_places,
        utilities_of_megatron_core,       data_of_rank_0_on_every_rank,   broadcast_data_lie_on_other_axes_as_before,
        mappings_move_integers_too,       communication_does_not_wait,    mappings_work_in_recomputations,
        results_in_named_buffers,         a_steady_step_allocates_nothing};
    return tg_check_main("exchange", tests, sizeof tests / sizeof tests[0]);
}
