/* The contract of a transport: every collective is compared with plain loops, over threads and processes, on 1 to 4
 * ranks (with TG_LONG in the environment: to 8). */
#include <math.h>
#include <stdlib.h>
#include <tapegrad/comm.h>
#include <tapegrad/ops.h>

#include "kernels/convert.h"
#include "comm/worlds.h"

static int most(void) { return getenv("TG_LONG") ? MOST : 4; }

static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_BF16, TG_F16, TG_I64, TG_I32, TG_U8,
                                  TG_I8,  TG_I16, TG_U16,  TG_U32, TG_U64, TG_BOOL};
enum { DTYPES = TG_LEN(dtypes) };

/* ---- Values: element i of rank r, and their sums by plain loops ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double value(tg_dtype d, int rank, int64_t i) {
    uint64_t x = mix((uint64_t)rank * 1000003 + (uint64_t)i + 1);
    if (d == TG_BOOL) return x % 3 == 0;
    if (!tg_is_float(d)) return (double)(x % 251);
    return (double)(int64_t)(x % 20001) / 7 - 1428;
}

static double load(tg_dtype d, const void *p, int64_t i) {
    switch (d) {
    case TG_F32: return ((const float *)p)[i];
    case TG_F64: return ((const double *)p)[i];
    case TG_BF16: return tg_bf16_to_f32(((const uint16_t *)p)[i]);
    case TG_F16: return tg_f16_to_f32(((const uint16_t *)p)[i]);
    case TG_I64: return (double)((const int64_t *)p)[i];
    case TG_I32: return ((const int32_t *)p)[i];
    case TG_I8: return ((const int8_t *)p)[i];
    case TG_I16: return ((const int16_t *)p)[i];
    case TG_U16: return ((const uint16_t *)p)[i];
    case TG_U32: return ((const uint32_t *)p)[i];
    case TG_U64: return (double)((const uint64_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
    }
}

static void store(tg_dtype d, void *p, int64_t i, double v) {
    switch (d) {
    case TG_F32: ((float *)p)[i] = (float)v; break;
    case TG_F64: ((double *)p)[i] = v; break;
    case TG_BF16: ((uint16_t *)p)[i] = tg_f32_to_bf16((float)v); break;
    case TG_F16: ((uint16_t *)p)[i] = tg_f32_to_f16((float)v); break;
    case TG_I64: ((int64_t *)p)[i] = (int64_t)v; break;
    case TG_I32: ((int32_t *)p)[i] = (int32_t)v; break;
    case TG_I8: ((int8_t *)p)[i] = (int8_t)(int64_t)v; break;
    case TG_I16: ((int16_t *)p)[i] = (int16_t)v; break;
    case TG_U16: ((uint16_t *)p)[i] = (uint16_t)v; break;
    case TG_U32: ((uint32_t *)p)[i] = (uint32_t)v; break;
    case TG_U64: ((uint64_t *)p)[i] = (uint64_t)v; break;
    default: ((uint8_t *)p)[i] = (uint8_t)(int64_t)v; break;
    }
}

/* Returns the value after rounding to the dtype. */
static double element(tg_dtype d, int rank, int64_t i) {
    uint64_t value_bytes;
    store(d, &value_bytes, 0, value(d, rank, i));
    return load(d, &value_bytes, 0);
}

static double step(tg_dtype d, tg_reduce_op op, double a, double b) {
    if (op == TG_REDUCE_MAX) return a > b ? a : b;
    if (op == TG_REDUCE_MIN) return a < b ? a : b;
    if (d == TG_BOOL) return a > b ? a : b;
    return d == TG_F64 || !tg_is_float(d) ? a + b : (double)((float)a + (float)b);
}

/* Returns the expected result after rounding to the dtype. */
static double reduced(tg_dtype d, tg_reduce_op op, int n, int64_t i) {
    double sum = element(d, 0, i);
    uint64_t value_bytes;
    for (int r = 1; r < n; r++) sum = step(d, op, sum, element(d, r, i));
    if (op == TG_REDUCE_AVG) sum = d == TG_F64 ? sum / n : (double)((float)sum / (float)n);
    store(d, &value_bytes, 0, sum);
    return load(d, &value_bytes, 0);
}

/* ---- Tensors ---- */

enum { NOTHING = 99 }; /* stands for the rank whose result is not checked */

/* outside: in memory of the test, which the ranks do not share. */
static tg_tensor *tensor(tg_ctx *ctx, tg_dtype d, int64_t n, int rank, bool outside) {
    size_t bytes = (size_t)n * tg_dtype_size(d);
    void *p = malloc(bytes ? bytes : 1);
    for (int64_t i = 0; i < n; i++) store(d, p, i, value(d, rank, i));
    if (outside && !on_gpus) return tg_wrap(ctx, d, TG_SHAPE(n), NULL, p, free, p);
    tg_tensor *x = tg_from_host(ctx, d, TG_SHAPE(n), p);
    free(p);
    return x;
}

/* Expects elements at, at + 1, ... of x to be elements from, from + 1, ... of rank r. */
static bool holds(tg_tensor *x, int64_t at, int rank, int64_t from, int64_t n) {
    tg_dtype d = tg_dtype_of(x);
    const void *p = elements(x);
    for (int64_t i = 0; i < n; i++)
        if (!p || load(d, p, at + i) != element(d, rank, from + i)) return false;
    return true;
}

/* NCCL sums in its own order, and rounds 16-bit sums at each rank. */
static bool is_sum(tg_dtype d, double got, double expected) {
    double scale = d == TG_BF16 ? 0x1p-7 : d == TG_F16 ? 0x1p-10 : d == TG_F32 ? 0x1p-22 : d == TG_F64 ? 0x1p-51 : 0;
    return on_gpus ? fabs(got - expected) <= scale * MOST * 1428 : got == expected;
}

static bool holds_sum(tg_tensor *x, int64_t at, tg_reduce_op op, int ranks, int64_t from, int64_t n) {
    tg_dtype d = tg_dtype_of(x);
    const void *p = elements(x);
    for (int64_t i = 0; i < n; i++)
        if (!p || !is_sum(d, load(d, p, at + i), reduced(d, op, ranks, from + i))) return false;
    return true;
}

static const int64_t sizes[] = {0, 1, 5, 1025, 70001};
static int some_sizes(void) { return on_gpus ? TG_LEN(sizes) - 1 : TG_LEN(sizes); } /* no pieces there */

/* ---- Reductions ---- */

/* NCCL has no arithmetic for 16-bit integers, and refuses them. */
static bool can_be_reduced(tg_dtype d) { return !on_gpus || (d != TG_I16 && d != TG_U16); }

static tg_status all_reduces(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    for (int k = 0; k < DTYPES * 4 * some_sizes() * 3; k++) {
        tg_dtype d = dtypes[k % DTYPES];
        tg_reduce_op op = (tg_reduce_op)(k / DTYPES % 4);
        int64_t count = sizes[k / DTYPES / 4 % some_sizes()];
        int how = k / DTYPES / 4 / some_sizes(); /* out of place, in place, memory outside */
        if (!can_be_reduced(d) || (op == TG_REDUCE_AVG && !tg_is_float(d))) continue;
        tg_tensor *x = tensor(ctx, d, count, me, how == 2 && me != 1);
        tg_tensor *y = how == 1 ? x : tensor(ctx, d, count, NOTHING, how == 2 && me != 2);
        EXPECT(ctx, tg_comm_all_reduce(c, y, x, op));
        EXPECT(ctx, holds_sum(y, 0, op, n, 0, count));
        EXPECT(ctx, x == y || holds(x, 0, me, 0, count));
        tg_drop(x);
        if (y != x) tg_drop(y);
    }
    return tg_ctx_status(ctx);
}

START_TEST(all_reduce) { each_world(most(), all_reduces, NULL); }
END_TEST

/* Parts of unequal size, some of them empty. */
static int64_t part(int r) { return r == 1 ? 0 : 3001 + 1717 * r; }

static int64_t parts(int n, int64_t *counts) {
    int64_t all = 0;
    for (int r = 0; r < n; r++) all += counts[r] = part(r);
    return all;
}

static int64_t begin_of(int r) {
    int64_t at = 0;
    for (int i = 0; i < r; i++) at += part(i);
    return at;
}

static tg_status scattered(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    int64_t counts[MOST], all = parts(n, counts);
    tg_tape *t = tg_tape_new(ctx);
    for (int k = 0; k < DTYPES * 2; k++, tg_tape_reset(t)) {
        tg_dtype d = dtypes[k % DTYPES];
        bool outside = k / DTYPES && me % 2;
        if (!can_be_reduced(d)) continue;
        tg_tensor *x = tensor(ctx, d, all, me, outside), *y = tensor(ctx, d, part(me), NOTHING, outside);
        tg_comm_reduce_scatter_v(c, y, x, counts, TG_REDUCE_SUM);
        EXPECT(ctx, holds_sum(y, 0, TG_REDUCE_SUM, n, begin_of(me), part(me)) && holds(x, 0, me, 0, all));
        tg_tensor *e = tensor(ctx, d, 777 * n, me, outside), *f = tensor(ctx, d, 777, NOTHING, outside);
        tg_comm_reduce_scatter(c, f, e, TG_REDUCE_MAX);
        EXPECT(ctx, holds_sum(f, 0, TG_REDUCE_MAX, n, 777 * me, 777));
        tg_tensor *own = tg_slice(t, x, 0, begin_of(me), begin_of(me) + part(me), 1); /* in place */
        tg_comm_reduce_scatter_v(c, own, x, counts, TG_REDUCE_SUM);
        EXPECT(ctx, holds_sum(own, 0, TG_REDUCE_SUM, n, begin_of(me), part(me)));
        tg_drop(x), tg_drop(y), tg_drop(e), tg_drop(f);
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(reduce_scatter) { each_world(most(), scattered, NULL); }
END_TEST

/* Every rank sums in the same order, so all get the same bits over either transport. */
static tg_status same_bits(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int me = tg_comm_rank(c);
    uint64_t h = 0;
    for (int k = 0; k < 4; k++) {
        tg_tensor *x = tensor(ctx, dtypes[k], 100003, me, false);
        tg_comm_all_reduce(c, x, x, TG_REDUCE_AVG);
        const unsigned char *p = elements(x);
        for (size_t i = 0; p && i < 100003 * tg_dtype_size(dtypes[k]); i++) h = mix(h ^ p[i]);
    }
    end->word[me] = h;
    return tg_ctx_status(ctx);
}

START_TEST(the_same_bits_on_every_rank_and_transport) {
    for (int n = 2; n <= most(); n++) {
        uint64_t first = expect_world(THREADS, n, same_bits, NULL)->word[0];
        for (int kind = 0; kind < WORLD_KINDS; kind++) {
            const world_end *end = expect_world((world_kind)kind, n, same_bits, NULL);
            for (int r = 0; r < n; r++) ck_assert_uint_eq(end->word[r], first);
        }
    }
}
END_TEST

static tg_status nans(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    for (int k = 0; k < 4; k++)
        for (int op = 0; op < (on_gpus ? 1 : 3); op++) {
            uint64_t values[MOST + 1];
            for (int i = 0; i <= n; i++) store(dtypes[k], values, i, i == me ? (double)NAN : 1); /* none in the last */
            tg_tensor *x = tg_from_host(ctx, dtypes[k], TG_SHAPE(n + 1), values);
            tg_comm_all_reduce(c, x, x, (tg_reduce_op)op);
            const void *p = elements(x);
            for (int i = 0; i <= n; i++) EXPECT(ctx, p && isnan(load(dtypes[k], p, i)) == (i < n));
            tg_drop(x);
        }
    return tg_ctx_status(ctx);
}

/* On GPUs only sums are tested, because NCCL's comparisons ignore NaN. */
START_TEST(nan_wins_over_numbers) { each_world(most(), nans, NULL); }
END_TEST

/* ---- Moves ---- */

static tg_status gathered(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    int64_t counts[MOST], all = parts(n, counts);
    tg_tape *t = tg_tape_new(ctx);
    for (int k = 0; k < DTYPES * 2; k++, tg_tape_reset(t)) {
        tg_dtype d = dtypes[k % DTYPES];
        bool outside = k / DTYPES && me % 2;
        tg_tensor *x = tensor(ctx, d, part(me), me, outside), *y = tensor(ctx, d, all, NOTHING, outside);
        tg_comm_all_gather_v(c, y, x, counts);
        for (int r = 0; r < n; r++) EXPECT(ctx, holds(y, begin_of(r), r, 0, part(r)));
        tg_tensor *e = tensor(ctx, d, 20011, me, outside), *f = tensor(ctx, d, 20011 * n, NOTHING, outside);
        tg_comm_all_gather(c, f, e);
        for (int r = 0; r < n; r++) EXPECT(ctx, holds(f, 20011 * r, r, 0, 20011));
        tg_tensor *g = tensor(ctx, d, 20011 * n, me, outside);
        tg_tensor *own = tg_slice(t, g, 0, 20011 * me, 20011 * (me + 1), 1); /* in place */
        tg_comm_all_gather(c, g, own);
        for (int r = 0; r < n; r++) EXPECT(ctx, holds(g, 20011 * r, r, 20011 * r, 20011));
        tg_drop(x), tg_drop(y), tg_drop(e), tg_drop(f), tg_drop(g);
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(all_gather) { each_world(most(), gathered, NULL); }
END_TEST

static tg_status rooted(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    enum { N = 30013 };
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    for (int k = 0; k < n * 2; k++) {
        int root = k % n;
        bool outside = k / n && me % 2;
        tg_tensor *x = tensor(ctx, TG_BF16, N, me, outside);
        tg_comm_broadcast(c, x, root);
        EXPECT(ctx, holds(x, 0, root, 0, N));
        tg_tensor *one = tensor(ctx, TG_F64, N, me, outside);
        tg_tensor *all = me == root ? tensor(ctx, TG_F64, (int64_t)N * n, NOTHING, outside) : NULL;
        EXPECT(ctx, tg_work_wait(tg_comm_gather(c, all, one, root)) == TG_OK);
        for (int r = 0; all && r < n; r++) EXPECT(ctx, holds(all, (int64_t)N * r, r, 0, N));
        tg_tensor *back = tensor(ctx, TG_F64, N, NOTHING, outside);
        tg_comm_scatter(c, back, all, root);
        EXPECT(ctx, holds(back, 0, me, 0, N));
        tg_drop(x), tg_drop(one), tg_drop(all), tg_drop(back);
    }
    return tg_ctx_status(ctx);
}

START_TEST(broadcast_gather_and_scatter) { each_world(most(), rooted, NULL); }
END_TEST

/* Parts of unequal size, in place: the parts that two ranks exchange are equally long. */
static tg_status swapped(tg_ctx *ctx, tg_comm *c, tg_dtype d, bool outside) {
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    int64_t counts[MOST], all = 0, at = 0;
    for (int r = 0; r < n; r++) all += counts[r] = (me + r) % 3 ? 3000 + 211 * (me + r) : 0;
    tg_tensor *x = tensor(ctx, d, all, me, outside);
    tg_comm_all_to_all(c, x, x, counts, counts);
    for (int r = 0; r < n; at += counts[r], r++) {
        int64_t from = 0;
        for (int b = 0; b < me; b++) from += (r + b) % 3 ? 3000 + 211 * (r + b) : 0;
        EXPECT(ctx, holds(x, at, r, from, counts[r]));
    }
    tg_drop(x);
    return tg_ctx_status(ctx);
}

/* Returns the number of elements that rank a sends to rank b. */
static int64_t lane(int a, int b) { return (a + 2 * b) % 3 ? 5000 + 311 * a + 17 * b : 0; }

static tg_status exchanged(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    int64_t send[MOST], recv[MOST], out = 0, in = 0, at = 0;
    for (int r = 0; r < n; r++) out += send[r] = lane(me, r), in += recv[r] = lane(r, me);
    for (int k = 0; k < DTYPES * 2; k++) {
        tg_dtype d = dtypes[k % DTYPES];
        bool outside = k / DTYPES && me % 2;
        tg_tensor *x = tensor(ctx, d, out, me, outside), *y = tensor(ctx, d, in, NOTHING, outside);
        tg_comm_all_to_all(c, y, x, send, recv);
        at = 0;
        for (int r = 0; r < n; at += lane(r, me), r++) {
            int64_t from = 0;
            for (int b = 0; b < me; b++) from += lane(r, b);
            EXPECT(ctx, holds(y, at, r, from, lane(r, me)));
        }
        /* Parts of equal size, in place only on ranks of even number. */
        tg_tensor *e = tensor(ctx, d, 9001 * n, me, outside);
        tg_tensor *f = me % 2 ? tensor(ctx, d, 9001 * n, NOTHING, outside) : e;
        tg_comm_all_to_all(c, f, e, NULL, NULL);
        for (int r = 0; r < n; r++) EXPECT(ctx, holds(f, 9001 * r, r, 9001 * me, 9001));
        EXPECT(ctx, swapped(ctx, c, d, outside) == TG_OK);
        tg_drop(x), tg_drop(y), tg_drop(e);
        if (f != e) tg_drop(f);
    }
    return tg_ctx_status(ctx);
}

START_TEST(all_to_all) { each_world(most(), exchanged, NULL); }
END_TEST

/* ---- Messages ---- */

static tg_status rings(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    if (n == 1) return TG_OK;
    for (int k = 0; k < 6; k++) {
        int64_t count = sizes[k % TG_LEN(sizes)] * (k == 4 ? 20 : 1);
        bool outside = k % 2 && me;
        tg_tensor *x = tensor(ctx, TG_F32, count, me, outside), *y = tensor(ctx, TG_F32, count, NOTHING, outside);
        tg_tensor *z = tensor(ctx, TG_F32, count, NOTHING, outside);
        tg_comm_batch_open(c);
        if (me % 2) tg_comm_recv(c, y, (me + n - 1) % n);
        tg_comm_send(c, x, (me + 1) % n);
        tg_comm_send(c, x, (me + n - 1) % n);
        tg_comm_recv(c, z, (me + 1) % n);
        if (me % 2 == 0) tg_comm_recv(c, y, (me + n - 1) % n);
        EXPECT(ctx, tg_comm_batch_close(c) == TG_OK);
        EXPECT(ctx, holds(z, 0, (me + 1) % n, 0, count));
        EXPECT(ctx, holds(y, 0, (me + n - 1) % n, 0, count));
        tg_drop(x), tg_drop(y), tg_drop(z);
    }
    return tg_ctx_status(ctx);
}

START_TEST(rings_of_messages) { each_world(most(), rings, NULL); }
END_TEST

/* More messages than fit at once arrive in the order in which they were sent. */
static tg_status floods(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    enum { MESSAGES = 500 };
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tensor *one = tg_zeros(ctx, TG_F64, TG_SHAPE(1));
    for (int i = 0; n > 1 && me < 2 && i < MESSAGES; i++) {
        if (me) {
            tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &(double){i});
            EXPECT(ctx, tg_comm_send(c, x, 0));
            tg_drop(x); /* the send keeps its memory */
        } else {
            tg_comm_recv(c, one, 1);
            EXPECT(ctx, tg_item(one) == i);
        }
    }
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    return tg_ctx_status(ctx);
}

START_TEST(many_messages) { each_world(most(), floods, NULL); }
END_TEST

/* Two ranks start more messages than fit, and all sends before the first receive: neither deadlocks. */
static tg_status crossing(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    enum { MESSAGES = 150 };
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tensor *in[MESSAGES];
    if (n > 1 && me < 2) {
        tg_comm_batch_open(c);
        for (int i = 0; i < MESSAGES; i++) {
            tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &(double){i + me});
            EXPECT(ctx, tg_comm_send(c, x, 1 - me));
            tg_drop(x);
        }
        for (int i = 0; i < MESSAGES; i++) {
            in[i] = tg_zeros(ctx, TG_F64, TG_SHAPE(1));
            EXPECT(ctx, tg_comm_recv(c, in[i], 1 - me));
        }
        EXPECT(ctx, tg_comm_batch_close(c) == TG_OK);
        for (int i = MESSAGES - 1; i >= 0; i--) EXPECT(ctx, tg_item(in[i]) == i + 1 - me);
    }
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    return tg_ctx_status(ctx);
}

START_TEST(a_batch_of_any_size) { each_world(most(), crossing, NULL); }
END_TEST

/* The sender may end; its message remains. */
static tg_status last_words(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &(double){me});
    if (n > 1 && me == 1) tg_comm_send(c, x, 0);
    if (n > 1 && me == 0) tg_comm_recv(c, x, 1);
    if (n > 1 && me == 0) EXPECT(ctx, tg_item(x) == 1);
    return tg_ctx_status(ctx);
}

START_TEST(a_message_outlasts_its_sender_s_function) {
    for (int i = 0; i < 20; i++) each_world(2, last_words, NULL);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {all_reduce,
                                  reduce_scatter,
                                  the_same_bits_on_every_rank_and_transport,
                                  nan_wins_over_numbers,
                                  all_gather,
                                  broadcast_gather_and_scatter,
                                  all_to_all,
                                  rings_of_messages,
                                  many_messages, a_batch_of_any_size, a_message_outlasts_its_sender_s_function};
    return tg_check_main("comm", tests, sizeof tests / sizeof *tests);
}
