/* The contract for the CPU's instruction sets, on one thread and on three, and for device cuda. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/ops.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>

#include "check_main.h"
#include "contract/device_contract.h"
#include "kernels/composed.h"
#include "kernels/cpu/cpu.h"
#include "kernels/scalar.h"

typedef void (*part_fn)(contract *c);

static void run_part(part_fn part) {
    int best = (int)tg_cpu_detect();
    for (int level = TG_CPU_PORTABLE; level <= best; level++)
        for (int threads = 1; threads <= (level == best ? 3 : 1); threads += 2) {
            tg_ctx *ctx = tg_ctx_new_on(&tg_cpu_device,
                                        TG_CONFIG(.isa = tg_cpu_level_name((tg_cpu_level_t)level), .threads = threads));
            contract c = contract_of(ctx);
            ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
            part(&c);
            ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
            ck_assert_msg(c.failures == 0, "%s: %lld of %lld checks failed, the first: %s",
                          tg_cpu_level_name((tg_cpu_level_t)level), (long long)c.failures, (long long)c.checks,
                          c.message);
            tg_ctx_free(ctx);
        }
}

#define TEST_PART(part)                                                                                                \
    START_TEST(device_##part) {                                                                                        \
        run_part(contract_##part);                                                                                     \
    }                                                                                                                  \
    END_TEST
CONTRACT_PARTS(TEST_PART)

/* Slots that are composed of required slots satisfy the same contract. */
START_TEST(composed_scan_put_and_adamw) {
    tg_device_ops ops = tg_cpu_device;
    ops.scan = tg_composed_scan;
    ops.put = tg_composed_put;
    ops.adamw = tg_composed_adamw;
    tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 2));
    contract c = contract_of(ctx);
    contract_scan(&c);
    contract_scan_long(&c);
    contract_put(&c);
    contract_take_rounds_once(&c);
    contract_adamw(&c);
    contract_adamw_list(&c);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_msg(c.failures == 0, "%lld of %lld checks failed, the first: %s", (long long)c.failures,
                  (long long)c.checks, c.message);
    tg_ctx_free(ctx);
}
END_TEST

static tg_array bytes_of(uint8_t *v, const int64_t *n, tg_dtype dtype) {
    static const int64_t stride[] = {1};
    return (tg_array){v, n, stride, *n, 1, (uint8_t)dtype, true};
}

/* Elements of float8 are moved, and taken from one format to another, although no op computes with them. */
START_TEST(float8_is_taken_and_put) {
    enum { N = 3 };
    const int64_t n[] = {N}, one[] = {1}, stride[] = {1};
    int64_t reversed[N] = {2, 1, 0}, second[] = {1};
    uint8_t x[N] = {0x3e, 0xc2, 0x48}; /* 1.5, -3 and 8 in f8e5m2 */
    const uint8_t same[N] = {0x48, 0xc2, 0x3e}, other[N] = {0x50, 0xc4, 0x3c}, written[N] = {0x3e, 0x48, 0x48};
    tg_ctx *ctx = tg_ctx_new_on(&tg_cpu_device, TG_CONFIG(.threads = 1));
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    tg_array from = bytes_of(x, n, TG_F8E5M2), index = {reversed, n, stride, N, 1, TG_I64, true};
    tg_array at = {second, one, stride, 1, 1, TG_I64, true};
    uint8_t y[N], eight[] = {0x48};
    ck_assert_int_eq(ops->take(ctx, bytes_of(y, n, TG_F8E5M2), from, index, 0, NULL), TG_OK);
    ck_assert_mem_eq(y, same, N);
    ck_assert_int_eq(ops->take(ctx, bytes_of(y, n, TG_F8E4M3), from, index, 0, NULL), TG_OK);
    ck_assert_mem_eq(y, other, N);
    for (int composed = 0; composed < 2; composed++) {
        memcpy(y, x, N);
        tg_status s = (composed ? tg_composed_put : ops->put)(ctx, bytes_of(y, n, TG_F8E5M2),
                                                              bytes_of(eight, one, TG_F8E5M2), at, 0, NULL);
        ck_assert_int_eq(s, TG_OK);
        ck_assert_mem_eq(y, written, N);
    }
    tg_ctx_free(ctx);
}
END_TEST

#ifdef TG_HAVE_CUDA
/* Returns a context on a GPU or the emulator. NULL, after printing it, if nvcc built the library and there is no
 * GPU. */
static tg_ctx *cuda_ctx(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cuda", .threads = 1));
    if (tg_ctx_status(ctx) == TG_OK) return ctx;
    ck_assert_msg(!getenv("TG_TEST_CUDA"), "%s", tg_ctx_message(ctx));
    printf("skipped: %s\n", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return NULL;
}

static void run_on_cuda(part_fn part) {
    tg_ctx *ctx = cuda_ctx();
    if (!ctx) return;
    contract c = contract_of(ctx);
    part(&c);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_msg(c.failures == 0, "%lld of %lld checks failed, the first: %s", (long long)c.failures,
                  (long long)c.checks, c.message);
    tg_ctx_free(ctx);
}

#define TEST_ON_CUDA(part)           \
    START_TEST(cuda_##part) {        \
        run_on_cuda(contract_##part); \
    }                                \
    END_TEST
CONTRACT_PARTS(TEST_ON_CUDA)

/* A program that never waits gets an error in data two resets later. */
START_TEST(cuda_tells_of_bad_data) {
    tg_ctx *ctx = cuda_ctx();
    if (!ctx) return;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *table = tg_zeros(ctx, TG_F32, TG_SHAPE(5, 4));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(3), (const int64_t[]){1, 5, 7});
    tg_embedding(t, table, ids);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_tape_reset(t);
    tg_tape_reset(t);
    ck_assert_msg(tg_ctx_status(ctx) == TG_ERR_DATA &&
                      strstr(tg_ctx_message(ctx), "embedding: an index is out of range, at position 1 "),
                  "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_tape_reset(t);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* The host does not read offsets of bags on a GPU; a kernel finds those that decrease, or do not begin with 0. */
START_TEST(cuda_tells_of_bad_offsets) {
    tg_ctx *ctx = cuda_ctx();
    if (!ctx) return;
    static const int64_t starts[][3] = {{0, 2, 1}, {1, 2, 2}, {0, 1, 5}};
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *table = tg_zeros(ctx, TG_F32, TG_SHAPE(5, 4));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(4), (const int64_t[]){1, 0, 3, 4});
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        tg_tensor *offsets = tg_from_host(ctx, TG_I64, TG_SHAPE(3), starts[i]);
        tg_embedding_bag(t, table, ids, offsets, NULL, NULL);
        tg_tape_reset(t);
        tg_tape_reset(t);
        ck_assert_msg(tg_ctx_status(ctx) == TG_ERR_DATA &&
                          strstr(tg_ctx_message(ctx), "recorded by embedding_bag from its offsets"),
                      "%zu: %s", i, tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        tg_drop(offsets);
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* Attention names its lengths and starts, which are no indices. Positions of starts_k follow those of starts_q. */
START_TEST(cuda_tells_of_bad_lengths) {
    tg_ctx *ctx = cuda_ctx();
    if (!ctx) return;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *q = tg_zeros(ctx, TG_F32, TG_SHAPE(1, 1, 4, 8));
    tg_tensor *length = tg_from_host(ctx, TG_I64, TG_SHAPE(1), (const int64_t[]){5});
    tg_tensor *good = tg_from_host(ctx, TG_I64, TG_SHAPE(3), (const int64_t[]){0, 1, 4});
    tg_tensor *bad = tg_from_host(ctx, TG_I64, TG_SHAPE(3), (const int64_t[]){0, 3, 2});
    for (int packed = 0; packed < 2; packed++) {
        if (packed)
            tg_attention(t, q, q, q, TG_ATTENTION(.starts_q = good, .starts_k = bad));
        else
            tg_attention(t, q, q, q, TG_ATTENTION(.lengths = length));
        tg_tape_reset(t);
        tg_tape_reset(t);
        const char *says = packed ? "attention: lengths or starts have an invalid value, at position 5 "
                                  : "attention: lengths or starts have an invalid value, at position 0 ";
        ck_assert_msg(tg_ctx_status(ctx) == TG_ERR_DATA && strstr(tg_ctx_message(ctx), says), "%s",
                      tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* More blocks than a launch can have are refused, also if their number needs more than 32 bits. */
START_TEST(cuda_refuses_endless_attention) {
    tg_ctx *ctx = cuda_ctx();
    if (!ctx) return;
    static const int64_t stride[4] = {0};
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(8));
    for (int bits = 31; bits <= 33; bits++) {
        const int64_t shape[] = {(int64_t)1 << (bits - 16), 1 << 16, 1, 8}, n = shape[0] * shape[1];
        const tg_array rows = {tg_array_of(x).data, shape, stride, 8 * n, 4, TG_F32, false};
        const tg_array row = {tg_array_of(x).data, shape, stride, n, 3, TG_F32, false};
        const tg_attention_args a = {.q = rows, .k = rows, .v = rows, .out = rows, .top = row, .mass = row, .scale = 1};
        ck_assert_int_eq(tg_ctx_ops(ctx)->attention(ctx, &a), TG_ERR_SHAPE);
        ck_assert_msg(strstr(tg_ctx_message(ctx), "device \"cuda\" supports up to 2147483647"), "%s",
                      tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    tg_ctx_free(ctx);
}
END_TEST

/* Gradients of invalid data do not change parameters. */
START_TEST(cuda_steps_nothing_after_bad_data) {
    tg_ctx *ctx = cuda_ctx();
    if (!ctx) return;
    double before[20], after[20];
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *table = tg_param_new(ctx, "table", TG_DTYPE_DEFAULT, TG_SHAPE(5, 4), 1);
    tg_optim *o = tg_adamw_new(ctx, &table, 1, TG_ADAMW(.lr = 0.1));
    for (int64_t bad = 1; bad >= 0; bad--) {
        tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(3), (const int64_t[]){1, bad ? 5 : 2, 4});
        tg_read_f64(table, before, 20);
        tg_backward(t, tg_sum(t, tg_embedding(t, table, ids), TG_ALL_DIMS, false));
        tg_optim_step(o);
        tg_optim_zero_grad(o);
        ck_assert_int_eq(tg_read_f64(table, after, 20), bad ? TG_ERR_DATA : TG_OK);
        tg_ctx_clear(ctx);
        ck_assert_int_eq(tg_read_f64(table, after, 20), TG_OK);
        ck_assert_int_eq(!memcmp(before, after, sizeof before), bad);
        tg_tape_reset(t);
    }
    tg_optim_free(o);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

#define CUDA_TEST_OF(part) cuda_##part,
#define CUDA_TESTS                 \
    CONTRACT_PARTS(CUDA_TEST_OF)   \
    cuda_tells_of_bad_data, cuda_tells_of_bad_offsets, cuda_tells_of_bad_lengths, \
    cuda_steps_nothing_after_bad_data, cuda_refuses_endless_attention,
#else
#define CUDA_TESTS
#endif

/* Adds src [rows, cols] to 7 columns of bfloat16, and to 7 rows of float16. */
static void put_big(tg_ctx *ctx, tg_array src, void *columns, void *rows) {
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    const int64_t r = src.shape[0], c = src.shape[1], tall[] = {r, 7}, wide[] = {7, c}, step[] = {7, 1};
    const int64_t by_row[] = {1, 0};
    int32_t *index = malloc((size_t)src.numel * sizeof *index);
    for (int64_t i = 0; i < src.numel; i++) index[i] = (int32_t)(i % 7);
    tg_array to_columns = {columns, tall, step, 7 * r, 2, TG_BF16, true},
             to_rows = {rows, wide, src.stride, 7 * c, 2, TG_F16, true};
    tg_array at = {index, src.shape, src.stride, src.numel, 2, TG_I32, true};
    ops->fill(ctx, to_columns, 0);
    ops->put_add(ctx, to_columns, src, at, 1, NULL);
    at.stride = by_row;
    at.contiguous = false;
    ops->fill(ctx, to_rows, 0);
    ops->put_add(ctx, to_rows, src, at, 0, NULL);
    free(index);
}

/* Returns the resulting bytes of a large map, reduction, random fill and put_add. */
static void big_results(int threads, float *y, int64_t n) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = threads));
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    int64_t rows = 1000, cols = n / rows, shape[] = {rows, cols}, stride[] = {cols, 1}, kept[] = {1, cols},
            one[] = {1, 1};
    tg_array x = {y, shape, stride, n, 2, TG_F32, true}, z = {y + n, shape, stride, n, 2, TG_F32, true};
    tg_array sums = {y + 2 * n, kept, stride, cols, 2, TG_F32, true},
             sum = {y + 3 * n, one, stride, 1, 2, TG_F32, true};
    const double p[2] = {0};
    ops->random(ctx, TG_RANDOM_NORMAL, x, 0, 1, &(tg_draws){.rng = {1, 2, 3}});
    ops->apply(ctx, TG_FN_gelu, z, &x, 1, p, false);
    ops->reduce(ctx, TG_SUM, sums, z, 1, false);
    ops->reduce(ctx, TG_SUMSQ, sum, z, 1, false);
    put_big(ctx, z, y + 3 * n + 1, y + 3 * n + n / 2);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_ctx_free(ctx);
}

START_TEST(same_bits_for_any_threads) {
    int64_t n = 770000;
    float *a = calloc((size_t)(4 * n), sizeof *a), *b = calloc((size_t)(4 * n), sizeof *b);
    big_results(1, a, n);
    for (int threads = 2; threads <= 5; threads += 3) {
        big_results(threads, b, n);
        ck_assert_mem_eq(a, b, (size_t)(4 * n) * sizeof *a);
    }
    free(a);
    free(b);
}
END_TEST

#define TEST_OF(part)  device_##part,
#define COUNT_OF(part) +1
enum { CPU_TESTS = 3 CONTRACT_PARTS(COUNT_OF) };

int main(void) {
    const TTest *const tests[] = {same_bits_for_any_threads, composed_scan_put_and_adamw, float8_is_taken_and_put,
                                  CONTRACT_PARTS(TEST_OF) CUDA_TESTS};
    const char *device = getenv("TG_TEST_DEVICE"); /* cpu, cuda; NULL: both */
    size_t n = sizeof tests / sizeof *tests, first = device && !strcmp(device, "cuda") ? CPU_TESTS : 0;
    if (device && !strcmp(device, "cpu")) n = CPU_TESTS;
    return tg_check_main("device", tests + first, n - first);
}
