/* The dtypes that ops only store, or compute with as integers: each is written, read, copied, cast and printed, and
 * float8 is compared with the definitions of its formats. TG_TEST_DEVICE names another device. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tapegrad/ops.h>
#include <tapegrad/print.h>

#include "check_main.h"
#include "on_device.h"

static tg_ctx *ctx;
static tg_tape *t;

static void begin(void) {
    ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    t = tg_tape_new(ctx);
}

static void end(void) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

static bool is_unsigned(tg_dtype d) { return d == TG_U8 || (d >= TG_U16 && d <= TG_U64); }

static size_t size_of(tg_dtype d) { return (size_t)tg_dtype_bits(d) / 8; }

/* Fails unless the elements of x, row by row, have these bytes. */
static void ck_bytes(tg_tensor *x, const void *want) {
    uint8_t got[4096];
    size_t bytes = (size_t)tg_numel(x) * size_of(tg_dtype_of(x));
    ck_assert(bytes <= sizeof got);
    ck_assert_msg(tg_read(x, got, bytes) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_msg(!memcmp(got, want, bytes), "%s", tg_dtype_name(tg_dtype_of(x)));
}

static tg_tensor *line(tg_dtype d, int64_t n, const void *v) { return tg_from_host(ctx, d, TG_SHAPE(n), v); }

/* ---- Every dtype ---- */

/* Bytes that are a valid element of every dtype: a bool is 0 or 1, and a float is no NaN, except that float8 has all
 * its forms of NaN. */
static void fill_bytes(tg_dtype d, uint8_t *v, size_t n) {
    for (size_t i = 0; i < n; i++) v[i] = d == TG_BOOL ? i % 2 : (uint8_t)((i * 37 + 101) % (d <= TG_F16 ? 64 : 256));
}

START_TEST(bytes_stay_through_copies_views_and_indices) {
    enum { N = 48 };
    begin();
    for (tg_dtype d = TG_F32; d <= TG_F8E8M0; d++) {
        size_t size = size_of(d);
        uint8_t v[8 * N], back[8 * N], want[8 * N];
        fill_bytes(d, v, size * N);
        tg_tensor *x = tg_from_host(ctx, d, TG_SHAPE(6, 8), v), *y = tg_zeros(ctx, d, TG_SHAPE(6, 8));
        ck_bytes(x, v);
        ck_assert(tg_write(y, v, size * N) == TG_OK);
        ck_bytes(y, v);
        for (int i = 0; i < N; i++) memcpy(want + (size_t)i * size, v + (size_t)(i % 6 * 8 + i / 6) * size, size);
        tg_tensor *turned = tg_contiguous(t, tg_transpose(t, x, 0, 1));
        ck_bytes(turned, want);
        ck_bytes(tg_contiguous(t, tg_transpose(t, turned, 0, 1)), v);
        int64_t rows[6] = {0, 1, 2, 3, 4, 5};
        ck_bytes(tg_index_select(t, x, 0, line(TG_I64, 6, rows)), v);
        ck_bytes(tg_index_select(t, turned, 1, line(TG_I64, 6, rows)), want);
        tg_tensor *halves[2];
        tg_chunk(t, x, 0, 2, halves);
        ck_bytes(tg_concat(t, halves, 2, 0), v);
        ck_assert(tg_read(tg_cast(t, x, d), back, size * N) == TG_OK && !memcmp(back, v, size * N));
    }
    end();
}
END_TEST

START_TEST(four_bits_are_no_dtype_of_a_tensor) {
    begin();
    tg_zeros(ctx, TG_F4E2M1, TG_SHAPE(2));
    ck_assert_msg(strstr(tg_ctx_message(ctx), "dtype f4e2m1 (17), expected one of f32"), "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- Integers ---- */

/* Returns v as an integer of dtype d that has wrapped around. */
static int64_t wrapped(tg_dtype d, int64_t v) {
    switch (d) {
    case TG_I8: return (int8_t)v;
    case TG_I16: return (int16_t)v;
    case TG_I32: return (int32_t)v;
    case TG_U8: return (uint8_t)v;
    case TG_U16: return (uint16_t)v;
    case TG_U32: return (uint32_t)v;
    default: return v;
    }
}

/* Fails unless the elements of x, cast to int64 without a change of their bits, are these. */
static void ck_whole(tg_tensor *x, const int64_t *want) {
    int64_t got[64], n = tg_numel(x);
    ck_assert_msg(tg_read(tg_cast(t, x, TG_I64), got, (size_t)n * sizeof *got) == TG_OK, "%s", tg_ctx_message(ctx));
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i], "%s, element %d: %lld, expected %lld", tg_dtype_name(tg_dtype_of(x)), (int)i,
                      (long long)got[i], (long long)want[i]);
}

START_TEST(integers_wrap_around) {
    enum { N = 8 };
    const int64_t a[N] = {0, 1, 5, 127, -128, 32767, 65535, 4000000000}, b[N] = {3, 255, 7, 1, 1, 2, 70000, 3};
    begin();
    for (tg_dtype d = TG_I64; d <= TG_U64; d++) {
        int64_t sum[N], product[N], minus[N], first[N];
        for (int i = 0; i < N; i++) {
            int64_t x = wrapped(d, a[i]), y = wrapped(d, b[i]);
            first[i] = x;
            sum[i] = wrapped(d, x + y);
            product[i] = wrapped(d, x * y);
            minus[i] = wrapped(d, -x);
        }
        tg_tensor *x = tg_cast(t, line(TG_I64, N, a), d), *y = tg_cast(t, line(TG_I64, N, b), d);
        ck_assert(tg_dtype_of(x) == d && !tg_requires_grad(x));
        ck_whole(x, first);
        ck_whole(tg_add(t, x, y), sum);
        ck_whole(tg_mul(t, x, y), product);
        ck_whole(tg_neg(t, x), minus);
    }
    const int64_t far = INT64_C(1) << 61; /* 4 steps of it are not an int64, but the last element is */
    ck_whole(tg_arange(t, TG_I64, (double)-far, 4 * (double)far, (double)far),
             ((const int64_t[]){-far, 0, far, 2 * far, 3 * far}));
    /* Numbers near the ends of the 64-bit integers, which float64 does not have. */
    ck_whole(tg_arange(t, TG_I64, -0x1p63, -0x1p63 + 2048, 512),
             ((const int64_t[]){INT64_MIN, INT64_MIN + 512, INT64_MIN + 1024, INT64_MIN + 1536}));
    ck_whole(tg_arange(t, TG_U64, 0x1p63, 0x1p63 + 4096, 1024),
             ((const int64_t[]){INT64_MIN, INT64_MIN + 1024, INT64_MIN + 2048, INT64_MIN + 3072}));
    end();
}
END_TEST

START_TEST(floats_saturate_in_integers) {
    const double v[] = {-1e300, -2.75, -0.5, 0.5, 2.75, 1e300, NAN};
    begin();
    for (int k = 0; k < 2; k++)
        for (tg_dtype d = TG_I64; d <= TG_U64; d++) {
            int bits = tg_dtype_bits(d) - !is_unsigned(d);
            double got[7], most = ldexp(1, bits) - (bits < 54), least = is_unsigned(d) ? 0 : -ldexp(1, bits);
            const double want[7] = {least, is_unsigned(d) ? 0 : -2, 0, 0, 2, most, 0};
            tg_tensor *x = tg_cast(t, line(TG_F64, 7, v), k ? TG_F64 : TG_F32);
            tg_read_f64(tg_cast(t, x, d), got, 7);
            for (int i = 0; i < 7; i++)
                ck_assert_msg(got[i] == want[i], "%g in %s: %.17g, expected %.17g", v[i], tg_dtype_name(d), got[i],
                              want[i]);
        }
    end();
}
END_TEST

#define TOP (UINT64_C(1) << 63)

/* Numbers from 2^63 on are negative as int64. */
START_TEST(large_uint64_are_exact) {
    enum { N = 5 };
    const uint64_t a[N] = {UINT64_MAX, TOP, 1, TOP + 1, 0}, b[N] = {TOP - 1, TOP, UINT64_MAX, 3, 0};
    const int64_t rising[N] = {4, 2, 1, 3, 0}, picks[2] = {3, 0};
    uint64_t got[N], sum = 1;
    uint8_t less[N], equal[N];
    double real[N];
    int64_t at;
    begin();
    tg_tensor *x = line(TG_U64, N, a), *y = line(TG_U64, N, b), *order;
    ck_bytes(x, a);
    tg_read(tg_lt(t, x, y), less, N);
    tg_read(tg_eq(t, x, y), equal, N);
    for (int i = 0; i < N; i++) ck_assert(less[i] == (a[i] < b[i]) && equal[i] == (a[i] == b[i]));
    tg_read(tg_maximum(t, x, y), got, sizeof got);
    for (int i = 0; i < N; i++) ck_assert(got[i] == (a[i] > b[i] ? a[i] : b[i]));
    tg_read(tg_minimum(t, x, y), got, sizeof got);
    for (int i = 0; i < N; i++) ck_assert(got[i] == (a[i] < b[i] ? a[i] : b[i]));
    ck_bytes(tg_max(t, x, TG_ALL_DIMS, false), &a[0]);
    ck_bytes(tg_min(t, x, TG_ALL_DIMS, false), &a[4]);
    tg_read(tg_argmax(t, y, 0, false), &at, sizeof at);
    ck_assert_int_eq(at, 2);
    tg_tensor *sorted = tg_sort(t, x, 0, false, &order);
    ck_bytes(order, rising);
    ck_bytes(sorted, ((const uint64_t[]){0, 1, TOP, TOP + 1, UINT64_MAX}));
    for (int i = 0; i < N; i++) sum += a[i];
    sum -= 1;
    tg_tensor *total = tg_sum(t, x, TG_ALL_DIMS, false);
    ck_assert(tg_dtype_of(total) == TG_U64);
    ck_bytes(total, &sum);
    ck_bytes(tg_index_select(t, x, 0, line(TG_I64, 2, picks)), ((const uint64_t[]){TOP + 1, UINT64_MAX}));
    ck_bytes(tg_abs(t, x), a);
    ck_bytes(tg_relu(t, x), a);
    ck_bytes(tg_sign(t, x), ((const uint64_t[]){1, 1, 1, 1, 0}));
    ck_bytes(tg_clamp(t, x, 1, 0x1p63), ((const uint64_t[]){TOP, TOP, 1, TOP, 1}));
    ck_bytes(tg_clamp(t, x, -INFINITY, INFINITY), a);
    ck_bytes(tg_full(t, TG_U64, TG_SHAPE(1), 0x1p63 + 4096), ((const uint64_t[]){TOP + 4096}));
    ck_bytes(tg_masked_fill(t, x, tg_lt(t, x, y), 0x1p63 + 2048),
             ((const uint64_t[]){UINT64_MAX, TOP, TOP + 2048, TOP + 1, 0}));
    tg_read_f64(x, real, N);
    for (int i = 0; i < N; i++) ck_assert(real[i] == (double)a[i]);
    tg_read_f64(tg_cast(t, x, TG_F32), real, N);
    for (int i = 0; i < N; i++) ck_assert(real[i] == (double)(float)a[i]);
    ck_bytes(tg_cast(t, tg_cast(t, x, TG_F64), TG_U64), ((const uint64_t[]){UINT64_MAX, TOP, 1, TOP, 0}));
    end();
}
END_TEST

/* Returns u, rounded to bfloat16 by integer arithmetic. */
static uint16_t bf16_of(uint64_t u) {
    int cut = 0;
    while (u >> cut >= 256) cut++;
    uint64_t kept = u >> cut, rest = u - (kept << cut), half = cut ? UINT64_C(1) << (cut - 1) : 1;
    if (cut && (rest > half || (rest == half && kept & 1))) kept++;
    float f = ldexpf((float)kept, cut);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Numbers of more than 53 bits next to the middle of two numbers of bfloat16: float64 cannot tell them from the middle,
 * so rounding to float64 first would round twice. */
START_TEST(wide_integers_are_rounded_once) {
    enum { N = 4 * 56 * 3 };
    static uint64_t u[N];
    static int64_t i[N];
    uint16_t want[2][N];
    int n = 0;
    for (uint64_t top = 128; top < 132; top++)
        for (int cut = 1; cut <= 56; cut++)
            for (int off = -1; off <= 1; off++, n++) {
                u[n] = (top << cut) + (UINT64_C(1) << (cut - 1)) + (uint64_t)off;
                i[n] = (int64_t)(cut < 56 ? u[n] : u[n] >> 1);
                if (n % 2) i[n] = -i[n];
                want[0][n] = bf16_of(u[n]);
                want[1][n] = bf16_of(i[n] < 0 ? 0 - (uint64_t)i[n] : (uint64_t)i[n]) | (i[n] < 0 ? 0x8000 : 0);
            }
    begin();
    ck_assert_int_eq(bf16_of((UINT64_C(1) << 60) + (UINT64_C(1) << 52) + 1), 0x5d81);
    ck_bytes(tg_cast(t, line(TG_U64, N, u), TG_BF16), want[0]);
    ck_bytes(tg_cast(t, line(TG_I64, N, i), TG_BF16), want[1]);
    const uint64_t middle = UINT64_C(3) << 61, high[] = {middle - 1, middle, 2 * middle - 1, 2 * middle};
    ck_bytes(tg_cast(t, line(TG_I64, 2, high), TG_F8E8M0), ((const uint8_t[]){127 + 62, 127 + 63}));
    ck_bytes(tg_cast(t, line(TG_U64, 4, high), TG_F8E8M0), ((const uint8_t[]){127 + 62, 127 + 63, 127 + 63, 127 + 64}));
    end();
}
END_TEST

START_TEST(nothing_is_scattered_into_integers_and_bools) {
    const int64_t v[] = {3, -1, 4};
    const uint8_t none[3] = {0};
    begin();
    tg_tensor *x = line(TG_I64, 3, v), *mask = line(TG_BOOL, 3, none);
    tg_tensor *no_numbers = line(TG_I64, 0, v), *no_bools = line(TG_BOOL, 0, none);
    ck_bytes(tg_masked_scatter(t, x, mask, no_numbers), v);
    ck_bytes(tg_masked_scatter(t, mask, mask, no_bools), none);
    ck_assert_int_eq(tg_numel(tg_masked_scatter(t, no_numbers, no_bools, x)), 0);
    end();
}
END_TEST

START_TEST(integers_are_printed) {
    char text[256];
    begin();
    tg_print(line(TG_U64, 3, (const uint64_t[]){UINT64_MAX, TOP, 7}), text, sizeof text, NULL);
    ck_assert_str_eq(text, "[18446744073709551615  9223372036854775808                    7]\nu64[3]");
    tg_print(line(TG_I8, 3, (const int8_t[]){-128, 127, 0}), text, sizeof text, NULL);
    ck_assert_str_eq(text, "[-128  127    0]\ni8[3]");
    tg_print(line(TG_U16, 2, (const uint16_t[]){65535, 1}), text, sizeof text, NULL);
    ck_assert_str_eq(text, "[65535     1]\nu16[2]");
    end();
}
END_TEST

/* ---- float8 ---- */

static const struct format {
    tg_dtype dtype;
    int mantissa, bias, greatest; /* greatest: the code of the greatest number */
    bool infinite, sign;
} formats[] = {
    {TG_F8E4M3, 3, 7, 0x7e, false, true},
    {TG_F8E5M2, 2, 15, 0x7b, true, true},
    {TG_F8E8M0, 0, 127, 0xfe, false, false},
};
enum { FORMATS = sizeof formats / sizeof *formats };

/* Returns the number with these bits, by the definition of the format. */
static double number_of(const struct format *f, int code) {
    int magnitude = f->sign ? code & 0x7f : code, exponent = magnitude >> f->mantissa;
    double fraction = ldexp(magnitude & ((1 << f->mantissa) - 1), -f->mantissa), v;
    if (magnitude > f->greatest) v = f->infinite && magnitude == f->greatest + 1 ? INFINITY : NAN;
    else if (!f->sign || exponent) v = ldexp(1 + fraction, exponent - f->bias);
    else v = ldexp(fraction, 1 - f->bias);
    return f->sign && code & 0x80 ? -v : v;
}

START_TEST(float8_are_the_numbers_of_their_formats) {
    uint8_t code[256], back[256];
    double v[256];
    for (int i = 0; i < 256; i++) code[i] = (uint8_t)i;
    begin();
    for (int k = 0; k < FORMATS; k++) {
        const struct format *f = &formats[k];
        tg_tensor *x = line(f->dtype, 256, code);
        for (int wide = 0; wide < 2; wide++) {
            tg_read_f64(tg_cast(t, x, wide ? TG_F64 : TG_F32), v, 256);
            for (int i = 0; i < 256; i++) {
                double want = number_of(f, i);
                ck_assert_msg((v[i] == want && signbit(v[i]) == signbit(want)) || (v[i] != v[i] && want != want),
                              "%s, code %d: %g, expected %g", tg_dtype_name(f->dtype), i, v[i], want);
            }
            tg_read(tg_cast(t, tg_cast(t, x, wide ? TG_F64 : TG_F32), f->dtype), back, 256);
            for (int i = 0; i < 256; i++) ck_assert(number_of(f, back[i]) == v[i] || v[i] != v[i]);
        }
    }
    end();
}
END_TEST

/* Returns the code to which v >= 0 is rounded: the nearest number, and of two the one with an even code. What is above
 * the greatest number is rounded as if the format went on. Of two powers of two the greater one is taken from the
 * middle on, and above the least power at once. */
static int code_of(const struct format *f, double v) {
    for (int i = 0;; i++) {
        double low = number_of(f, i), high = i < f->greatest ? number_of(f, i + 1) : low + low - number_of(f, i - 1);
        if (!f->sign && i == f->greatest) high = 2 * low;
        double middle = (low + high) / 2;
        if (!f->sign && i == 0 && v > low && v < high) return 1;
        if (v < middle || (v == middle && f->sign && i % 2 == 0)) return i;
        if (i == f->greatest) return f->sign && !f->infinite ? i : i + 1; /* the greatest number, infinity or NaN */
    }
}

START_TEST(floats_are_rounded_to_the_nearest_float8) {
    enum { N = 4096 };
    static double v[N];
    static float single[N];
    static uint8_t got[N];
    uint64_t dice = 1;
    begin();
    for (int k = 0; k < FORMATS; k++) {
        const struct format *f = &formats[k];
        for (int i = 0; i < N; i++) {
            dice = dice * 6364136223846793005u + 1442695040888963407u;
            double middle = (number_of(f, i / 16 % f->greatest + 1) + number_of(f, i / 16 % f->greatest)) / 2;
            double anywhere = ldexp(1 + (double)(dice >> 40) * 0x1p-24, (int)(dice >> 33 & 63) - 31);
            v[i] = i % 16 == 0   ? middle
                   : i % 16 == 1 ? nextafter(middle, 0)
                   : i % 16 == 2 ? nextafter(middle, 1e9)
                                 : anywhere;
            single[i] = (float)v[i];
        }
        for (int wide = 0; wide < 2; wide++) {
            tg_tensor *x = wide ? line(TG_F64, N, v) : line(TG_F32, N, single);
            tg_read(tg_cast(t, x, f->dtype), got, N);
            for (int i = 0; i < N; i++) {
                double x_i = wide ? v[i] : (double)single[i];
                ck_assert_msg(got[i] == code_of(f, x_i), "%.17g in %s: code %d, expected %d", x_i,
                              tg_dtype_name(f->dtype), got[i], code_of(f, x_i));
            }
        }
    }
    end();
}
END_TEST

START_TEST(special_floats_in_float8) {
    const float v[] = {INFINITY, -INFINITY, NAN, -0.0f, 0, -2, 464, 1e9f};
    const uint8_t want[FORMATS][8] = {{0x7e, 0xfe, 0x7f, 0x80, 0, 0xc0, 0x7e, 0x7e},
                                      {0x7c, 0xfc, 0x7f, 0x80, 0, 0xc0, 0x5f, 0x7c},
                                      {0xff, 0xff, 0xff, 0, 0, 0xff, 0x88, 0x9d}};
    begin();
    for (int k = 0; k < FORMATS; k++) {
        uint8_t got[8];
        tg_read(tg_cast(t, line(TG_F32, 8, v), formats[k].dtype), got, 8);
        for (int i = 0; i < 8; i++)
            ck_assert_msg((i == 2 && number_of(&formats[k], got[i]) != number_of(&formats[k], got[i])) ||
                              got[i] == want[k][i],
                          "%g in %s: %#x, expected %#x", v[i], tg_dtype_name(formats[k].dtype), got[i], want[k][i]);
    }
    end();
}
END_TEST

START_TEST(no_op_computes_with_float8) {
    const uint8_t v[2] = {0x38, 0x40};
    char text[64];
    begin();
    tg_tensor *x = line(TG_F8E4M3, 2, v), *real = tg_cast(t, line(TG_F64, 2, (const double[]){1, 2}), TG_F64);
    tg_print(x, text, sizeof text, NULL);
    ck_assert_str_eq(text, "[1. 2.]\nf8e4m3[2]");
    tg_add(t, x, x);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "add: input 0 is f8e4m3, with which no op computes; cast it to a float "
                                              "first (tg_cast)"), "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_sum(t, x, TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_DTYPE);
    tg_ctx_clear(ctx);
    tg_set_requires_grad(real, true);
    ck_assert(!tg_requires_grad(tg_cast(t, real, TG_F8E5M2)));
    tg_ctx_clear(ctx);
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {bytes_stay_through_copies_views_and_indices,
                                  four_bits_are_no_dtype_of_a_tensor,
                                  integers_wrap_around,
                                  floats_saturate_in_integers,
                                  large_uint64_are_exact,
                                  wide_integers_are_rounded_once,
                                  nothing_is_scattered_into_integers_and_bools,
                                  integers_are_printed,
                                  float8_are_the_numbers_of_their_formats,
                                  floats_are_rounded_to_the_nearest_float8,
                                  special_floats_in_float8,
                                  no_op_computes_with_float8};
    return tg_check_main("dtypes", tests, sizeof tests / sizeof *tests);
}
