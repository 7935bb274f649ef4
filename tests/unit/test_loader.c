/* Data loaders: the order, the parts of ranks, sources, positions, and errors while a thread reads ahead. */
#define _GNU_SOURCE
#include <math.h>
#include <stdatomic.h>

#include <tapegrad/context_parallel.h>
#include <tapegrad/data.h>
#include <tapegrad/parallel.h>
#include <tapegrad/placement.h>
#include <tapegrad/tapegrad.h>

#include "data/order.h"
#include "on_device.h"
#include "on_ranks.h"
#include "unit/io_fixture.h"

/* ---- The order ---- */

START_TEST(an_order_is_a_permutation) {
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 17, 64, 1000, 4097};
    for (size_t k = 0; k < COUNT(sizes); k++)
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            char seen[5000] = {0};
            for (int64_t i = 0; i < sizes[k]; i++) {
                int64_t at = tg_order_at(9, epoch, sizes[k], i);
                ck_assert(at >= 0 && at < sizes[k] && !seen[at]);
                seen[at] = 1;
            }
        }
    ck_assert(tg_order_at(1, 0, INT64_C(1) << 61, 5) < INT64_C(1) << 61);
}
END_TEST

/* Each sample is at each position in about the same number of epochs, and so is each pair of neighbors: chi-squared
 * with 48 and 41 degrees of freedom, far out in the tail at 100. */
START_TEST(all_orders_are_about_as_frequent) {
    enum { N = 7, EPOCHS = 14000 };
    int at[N][N] = {{0}}, next[N][N] = {{0}};
    double chi[2] = {0, 0};
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        for (int i = 0; i < N; i++) {
            int64_t x = tg_order_at(4, epoch, N, i);
            at[i][x]++;
            if (i) next[tg_order_at(4, epoch, N, i - 1)][x]++;
        }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double mean = EPOCHS / (double)N;
            chi[0] += (at[i][j] - mean) * (at[i][j] - mean) / mean;
            if (i != j) chi[1] += (next[i][j] - mean) * (next[i][j] - mean) / mean;
        }
    ck_assert_msg(chi[0] < 100 && chi[1] < 100, "%g, %g", chi[0], chi[1]);
}
END_TEST

/* ---- Batches ---- */

enum { SAMPLES = 23, MOST = 64 };

static int64_t number[SAMPLES];
static float square[SAMPLES][2];

/* Sample i has the number i, and the pair (i^2, i^2 + 1). */
static const tg_data_part *parts(void) {
    static const tg_data_part p[2] = {{TG_I64, {0}, number}, {TG_F32, {1, {2}}, square}};
    for (int i = 0; i < SAMPLES; i++) number[i] = i, square[i][0] = (float)(i * i), square[i][1] = (float)(i * i + 1);
    return p;
}

static tg_ctx *open_ctx(void) { return tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1)); }

/* Reads the next batch. Checks that its parts belong to each other. Returns the number of its samples. */
static int64_t next(tg_loader *l, int64_t *out) {
    tg_tensor *x[2];
    double pair[2 * MOST], numbers[MOST];
    tg_status s = tg_loader_next(l, x);
    ck_assert_msg(s == TG_OK, "%s", tg_status_name(s));
    int64_t n = tg_dim(x[0], 0);
    tg_read_f64(x[0], numbers, n);
    tg_read_f64(x[1], pair, 2 * n);
    for (int64_t i = 0; i < n; i++) {
        out[i] = (int64_t)numbers[i];
        ck_assert(pair[2 * i] == numbers[i] * numbers[i] && pair[2 * i + 1] == pair[2 * i] + 1);
    }
    return n;
}

static tg_loader *loader_of(tg_ctx *ctx, const tg_loader_opts *o) {
    tg_loader *l = tg_loader_new_arrays(ctx, parts(), 2, SAMPLES, o);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    return l;
}

START_TEST(an_epoch_has_every_sample_once) {
    tg_ctx *ctx = open_ctx();
    for (int keep = 0; keep < 2; keep++)
        for (int ahead = 0; ahead < 4; ahead++) {
            tg_loader *l = loader_of(ctx, TG_LOADER(.batch = 5, .keep_last = keep, .prefetch = ahead));
            ck_assert(tg_loader_batches(l) == 4 + keep && tg_loader_samples(l) == SAMPLES);
            for (int epoch = 0; epoch < 3; epoch++)
                for (int i = 0, at = 0; i < 4 + keep; i++) {
                    int64_t x[MOST];
                    ck_assert(tg_loader_epoch(l) == epoch && tg_loader_step(l) == i);
                    int64_t n = next(l, x);
                    ck_assert_int_eq(n, i < 4 ? 5 : 3);
                    for (int64_t k = 0; k < n; k++) ck_assert_int_eq(x[k], at++);
                }
            tg_loader_free(l);
        }
    tg_ctx_free(ctx);
}
END_TEST

/* The ranks' parts, put together, are the batches of one rank, for each number of ranks and each seed. */
START_TEST(ranks_share_the_batches_of_one) {
    tg_ctx *ctx = open_ctx();
    static const int sizes[] = {1, 2, 3, 6};
    int64_t one[8][MOST], sum[SAMPLES] = {0};
    for (size_t k = 0; k < COUNT(sizes); k++) {
        tg_loader *l[6];
        for (int r = 0; r < sizes[k]; r++)
            l[r] = loader_of(ctx, TG_LOADER(.batch = 6, .shuffle = true, .seed = 3, .keep_last = true, .rank = r,
                                            .ranks = sizes[k], .prefetch = r % 3));
        for (int i = 0; i < 8; i++) {
            int64_t x[MOST], n = 0;
            for (int r = 0; r < sizes[k]; r++) n += next(l[r], x + n);
            ck_assert_int_eq(n, i % 4 < 3 ? 6 : 5);
            for (int64_t j = 0; j < n; j++) {
                if (k == 0) one[i][j] = x[j], sum[x[j]]++;
                ck_assert_int_eq(x[j], one[i][j]);
            }
        }
        for (int r = 0; r < sizes[k]; r++) tg_loader_free(l[r]);
    }
    for (int i = 0; i < SAMPLES; i++) ck_assert_int_eq(sum[i], 2);
    tg_ctx_free(ctx);
}
END_TEST

/* On a grid the ranks of dp share a batch, and its tensors are placed there; ranks of tp have the same part. */
static tg_status on_a_grid(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    const tg_loader_opts *other =
        TG_LOADER(.batch = 6, .shuffle = true, .rank = tg_parallel_rank(p, TG_DP), .ranks = tg_parallel_size(p, TG_DP));
    tg_loader *l = tg_loader_new_arrays(ctx, arg, 2, SAMPLES, TG_LOADER(.batch = 6, .shuffle = true, .parallel = p));
    tg_loader *same = tg_loader_new_arrays(ctx, arg, 2, SAMPLES, other);
    for (int i = 0; i < 5; i++) {
        tg_tensor *x[2], *y[2];
        int64_t a[MOST] = {0}, b[MOST] = {0};
        RUN(tg_loader_next(l, x));
        RUN(tg_loader_next(same, y));
        RUN(tg_read(x[0], a, (size_t)tg_numel(x[0]) * sizeof *a));
        RUN(tg_read(y[0], b, (size_t)tg_numel(y[0]) * sizeof *b));
        EXPECT(ctx, tg_numel(x[0]) == 3 && memcmp(a, b, sizeof a) == 0);
        tg_placement dp = tg_placement_of(x[1], TG_DP), tp = tg_placement_of(x[1], TG_TP);
        EXPECT(ctx, dp.kind == TG_VARYING && dp.layout == TG_CONTIGUOUS && dp.dim == 0 && tp.kind == TG_INVARIANT);
    }
    tg_loader_free(l);
    tg_loader_free(same);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_grid_shares_batches_over_dp) { on_ranks(4, on_a_grid, (void *)(uintptr_t)parts()); }
END_TEST

START_TEST(a_run_is_resumed_anywhere) {
    tg_ctx *ctx = open_ctx();
    int64_t all[12][MOST], x[MOST];
    tg_loader *l = loader_of(ctx, TG_LOADER(.batch = 5, .shuffle = true, .seed = 8));
    for (int i = 0; i < 12; i++) next(l, all[i]);
    for (int i = 11; i >= 0; i--) {
        ck_assert_int_eq(tg_loader_seek(l, i / 4, i % 4), TG_OK);
        for (int k = i; k < 12 && k < i + 3; k++) {
            next(l, x);
            ck_assert_mem_eq(x, all[k], 5 * sizeof *x);
        }
    }
    ck_assert_int_eq(tg_loader_seek(l, 1, 4), TG_OK); /* the end of epoch 1 is the begin of epoch 2 */
    ck_assert(tg_loader_epoch(l) == 2 && tg_loader_step(l) == 0);
    next(l, x);
    ck_assert_mem_eq(x, all[8], 5 * sizeof *x);
    tg_loader_free(l);
    tg_ctx_free(ctx);
}
END_TEST

/* The tensors of a batch keep their values while the next batch is read. */
START_TEST(two_batches_are_alive) {
    tg_ctx *ctx = open_ctx();
    tg_loader *l = loader_of(ctx, TG_LOADER(.batch = 5));
    tg_tensor *a[2], *b[2];
    double v[5];
    tg_loader_next(l, a);
    tg_loader_next(l, b);
    tg_read_f64(a[0], v, 5);
    ck_assert(v[0] == 0 && v[4] == 4);
    tg_read_f64(b[0], v, 5);
    ck_assert(v[0] == 5 && v[4] == 9);
    tg_loader_free(l);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Files ---- */

START_TEST(tokens_are_windows_and_what_follows) {
    workplace w = workplace_new(NULL);
    put_file(&w, "text", "abcdefghijk", 11);
    tg_loader *l =
        tg_loader_open_tokens(w.ctx, in(&w, "text"), TG_TOKENS_TEXT, 256, 3, TG_LOADER(.batch = 2, .keep_last = true));
    ck_assert_int_eq(tg_loader_samples(l), 3);
    for (int i = 0; i < 4; i++) {
        tg_tensor *x[2];
        int64_t ids[6], targets[6];
        ck_assert_int_eq(tg_loader_next(l, x), TG_OK);
        int n = i % 2 ? 1 : 2;
        ck_assert(tg_dim(x[0], 0) == n && tg_dim(x[1], 1) == 3);
        tg_read(x[0], ids, sizeof *ids * (size_t)(3 * n));
        tg_read(x[1], targets, sizeof *targets * (size_t)(3 * n));
        for (int j = 0; j < 3 * n; j++) ck_assert(ids[j] == 'a' + i % 2 * 6 + j && targets[j] == ids[j] + 1);
    }
    tg_loader_free(l);
    workplace_free(&w);
}
END_TEST

/* The ranks of cp divide the sequence "abcdefgh", whose targets are "bcdefghi". */
static tg_status tokens_over_cp(void *arg, tg_ctx *ctx, tg_comm *world) {
    int64_t rows[4], ids[4], targets[4];
    tg_tensor *x[2];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = 2));
    tg_context_cut((const int64_t[]){0, 8}, 1, 2, tg_parallel_rank(p, TG_CP), rows);
    REFUSED(ctx, TG_ERR_SHAPE, "seq_len is 6, expected a multiple of 4: each of 2 cp ranks has two chunks",
            tg_loader_open_tokens(ctx, arg, TG_TOKENS_TEXT, 256, 6, TG_LOADER(.batch = 1, .parallel = p)));
    tg_loader *l = tg_loader_open_tokens(ctx, arg, TG_TOKENS_TEXT, 256, 8, TG_LOADER(.batch = 1, .parallel = p));
    RUN(tg_loader_next(l, x));
    EXPECT(ctx, tg_numel(x[0]) == 4);
    RUN(tg_read(x[0], ids, sizeof ids));
    RUN(tg_read(x[1], targets, sizeof targets));
    for (int i = 0; i < 4; i++) EXPECT(ctx, ids[i] == 'a' + rows[i] && targets[i] == ids[i] + 1);
    tg_placement cp = tg_placement_of(x[1], TG_CP);
    EXPECT(ctx, cp.kind == TG_VARYING && cp.layout == TG_ZIGZAG && cp.dim == 1);
    tg_loader_free(l);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(ranks_of_cp_read_their_chunks) {
    char path[512];
    workplace w = workplace_new(NULL);
    put_file(&w, "text", "abcdefghijk", 11);
    snprintf(path, sizeof path, "%s", in(&w, "text"));
    on_ranks(2, tokens_over_cp, path);
    workplace_free(&w);
}
END_TEST

START_TEST(safetensors_are_tables) {
    workplace w = workplace_new(NULL);
    tg_tensor *x = tg_from_host(w.ctx, TG_I64, TG_SHAPE(SAMPLES), number);
    parts();
    tg_write(x, number, sizeof number);
    tg_tensor *y = tg_from_host(w.ctx, TG_F32, TG_SHAPE(SAMPLES, 2), square);
    tg_safetensors_save(w.ctx, in(&w, "t.safetensors"), (tg_named_tensor[]){{"pairs", y}, {"numbers", x}}, 2, NULL, 0);
    tg_loader *l = tg_loader_open_safetensors(w.ctx, in(&w, "t.safetensors"), (const char *[]){"numbers", "pairs"}, 2,
                                              TG_LOADER(.batch = 4, .shuffle = true, .seed = 2));
    ck_assert_msg(tg_ctx_status(w.ctx) == TG_OK, "%s", tg_ctx_message(w.ctx));
    tg_loader *same = loader_of(w.ctx, TG_LOADER(.batch = 4, .shuffle = true, .seed = 2));
    for (int i = 0; i < 10; i++) {
        int64_t a[MOST], b[MOST];
        next(l, a);
        next(same, b);
        ck_assert_mem_eq(a, b, 4 * sizeof *a);
    }
    tg_loader_free(l);
    tg_loader_free(same);
    tg_loader_open_safetensors(w.ctx, in(&w, "t.safetensors"), (const char *[]){"numbers", "other"}, 2,
                               TG_LOADER(.batch = 4));
    expect_error(w.ctx, TG_ERR_DATA, "has no tensor 'other'");
    tg_loader_open_safetensors(w.ctx, in(&w, "none"), (const char *[]){"numbers"}, 1, TG_LOADER(.batch = 4));
    expect_error(w.ctx, TG_ERR_IO, "cannot open");
    workplace_free(&w);
}
END_TEST

/* ---- Errors ---- */

/* A source whose sample `bad` cannot be read while `broken` is set. If `fast` is not 0, each read after the first
 * `fast` ones takes 50 ms. */
typedef struct source {
    int64_t bad;
    int fast;
    atomic_bool broken;
    atomic_int freed, reads;
} source;

static tg_status read_source(void *state, tg_ctx *errors, int64_t sample, void *const *out) {
    source *s = state;
    if (atomic_fetch_add(&s->reads, 1) >= s->fast && s->fast) usleep(50000);
    if (sample == s->bad && atomic_load(&s->broken))
        return tg_ctx_fail(errors, TG_ERR_IO, "sample %d is lost", (int)sample);
    *(int64_t *)out[0] = sample;
    ((float *)out[1])[0] = (float)(sample * sample), ((float *)out[1])[1] = (float)(sample * sample + 1);
    return TG_OK;
}

static void free_source(void *state) { atomic_fetch_add(&((source *)state)->freed, 1); }

static const tg_data_ops source_ops = {.size = sizeof source_ops, .read = read_source, .free = free_source};

/* The batches before the error arrive; the call that would return the failed batch has the error; later it is read. */
START_TEST(an_error_comes_in_its_turn) {
    tg_ctx *ctx = open_ctx();
    for (int ahead = 0; ahead < 5; ahead++) {
        source s = {.bad = 12, .broken = true};
        int64_t x[MOST];
        tg_tensor *out[2];
        tg_loader *l =
            tg_loader_new(ctx, &source_ops, &s, parts(), 2, SAMPLES, TG_LOADER(.batch = 5, .prefetch = ahead));
        for (int i = 0; i < 2; i++) next(l, x);
        for (int tries = 0; tries < 2; tries++) {
            ck_assert_int_eq(tg_loader_next(l, out), TG_ERR_IO);
            ck_assert(!tg_is_alive(out[0]) && !tg_is_alive(out[1]));
            expect_error(ctx, TG_ERR_IO, "sample 12 is lost");
            ck_assert(tg_loader_epoch(l) == 0 && tg_loader_step(l) == 2);
        }
        atomic_store(&s.broken, false);
        next(l, x);
        ck_assert_int_eq(x[0], 10);
        tg_loader_free(l);
        ck_assert_int_eq(s.freed, 1);
    }
    tg_ctx_free(ctx);
}
END_TEST

/* The thread reads only as far ahead as it may. */
START_TEST(reading_ahead_is_bounded) {
    tg_ctx *ctx = open_ctx();
    source s = {.bad = -1};
    int64_t x[MOST];
    tg_loader *l = tg_loader_new(ctx, &source_ops, &s, parts(), 2, SAMPLES, TG_LOADER(.batch = 2, .prefetch = 3));
    ck_assert_int_eq(s.reads, 0); /* nothing is read before the first batch is wanted */
    next(l, x);
    usleep(50000);
    ck_assert_int_le(s.reads, 2 * (1 + 3));
    ck_assert_int_ge(s.reads, 2);
    tg_loader_free(l);
    tg_ctx_free(ctx);
}
END_TEST

/* The thread ends between two samples of a batch. */
START_TEST(a_batch_is_not_read_to_its_end_in_vain) {
    enum { BATCH = 10 };
    tg_ctx *ctx = open_ctx();
    for (int seeks = 0; seeks < 2; seeks++) {
        source s = {.bad = -1, .fast = BATCH};
        int64_t x[MOST];
        tg_loader *l =
            tg_loader_new(ctx, &source_ops, &s, parts(), 2, SAMPLES, TG_LOADER(.batch = BATCH, .prefetch = 1));
        next(l, x);
        while (atomic_load(&s.reads) <= BATCH) usleep(1000); /* the thread reads the second batch */
        if (seeks) {
            ck_assert_int_eq(tg_loader_seek(l, 0, 1), TG_OK);
            ck_assert_int_lt(s.reads, 2 * BATCH);
            next(l, x);
            for (int i = 0; i < BATCH; i++) ck_assert_int_eq(x[i], BATCH + i);
            s.reads = 0;
        }
        tg_loader_free(l);
        ck_assert_int_lt(s.reads, 2 * BATCH);
    }
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_file_that_fails_is_reported) {
    faulty f = {.error = EIO};
    tg_file_ops ops = faulty_ops(&f);
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    put_file(&w, "text", "abcdefghijk", 11);
    tg_loader *l = tg_loader_open_tokens(w.ctx, in(&w, "text"), TG_TOKENS_TEXT, 0, 5, TG_LOADER(.batch = 1));
    tg_tensor *x[2];
    f.fail = f.calls + 1;
    ck_assert_int_eq(tg_loader_next(l, x), TG_ERR_IO);
    expect_error(w.ctx, TG_ERR_IO, "text");
    ck_assert_int_eq(tg_loader_next(l, x), TG_OK);
    tg_loader_free(l);
    workplace_free(&w);
}
END_TEST

/* Any one allocation may fail: nothing leaks, and the error is memory's. */
START_TEST(every_allocation_may_fail) {
    int failures = 0;
    for (int n = 1;; n++) {
        counted c = {.fail = n};
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &c}));
        tg_loader *l = tg_loader_new_arrays(ctx, parts(), 2, SAMPLES, TG_LOADER(.batch = 5, .keep_last = true));
        tg_tensor *x[2];
        for (int i = 0; i < 6; i++) tg_loader_next(l, x);
        bool failed = c.calls >= n;
        ck_assert_int_eq(tg_ctx_status(ctx), failed ? TG_ERR_MEMORY : TG_OK);
        tg_loader_free(l);
        tg_ctx_free(ctx);
        ck_assert_int_eq(c.held, 0);
        failures += failed;
        if (!failed) break;
    }
    ck_assert_int_gt(failures, 5);
}
END_TEST

/* As malloc may do: no memory for 0 bytes. */
static void *alloc_some(void *user, size_t bytes, size_t align) {
    return bytes ? counted_alloc(user, bytes, align) : NULL;
}

START_TEST(samples_may_have_no_elements) {
    counted c = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {alloc_some, counted_free, &c}));
    const tg_data_part none = {TG_F32, {2, {3, 0}}, square};
    tg_loader *l = tg_loader_new_arrays(ctx, &none, 1, SAMPLES, TG_LOADER(.batch = 5));
    tg_tensor *x;
    for (int i = 0; i < 6; i++) ck_assert_int_eq(tg_loader_next(l, &x), TG_OK);
    ck_assert(tg_ndim(x) == 3 && tg_dim(x, 0) == 5 && !tg_numel(x));
    tg_loader_free(l);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_ctx_free(ctx);
    ck_assert_int_eq(c.held, 0);
}
END_TEST

int main(void) {
    const TTest *tests[] = {an_order_is_a_permutation,      all_orders_are_about_as_frequent,
                            an_epoch_has_every_sample_once, ranks_share_the_batches_of_one,
                            a_grid_shares_batches_over_dp,  a_run_is_resumed_anywhere,
                            two_batches_are_alive,          tokens_are_windows_and_what_follows,
                            ranks_of_cp_read_their_chunks,
                            safetensors_are_tables,         an_error_comes_in_its_turn,
                            reading_ahead_is_bounded,       a_batch_is_not_read_to_its_end_in_vain,
                            a_file_that_fails_is_reported,  every_allocation_may_fail,
                            samples_may_have_no_elements};
    return tg_check_main("loader", tests, sizeof tests / sizeof *tests);
}
