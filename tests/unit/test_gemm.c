/* The CPU's gemm slot compared with naive loops in double: shapes, layouts, dtypes and epilogues in rotation, every
 * available instruction set, and equal bits for one thread and two. */
#include "check_main.h"
#include <math.h>
#include <string.h>
#include <tapegrad/extend.h>

static uint64_t next_random(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

static size_t size_of(tg_dtype d) { return (size_t)tg_dtype_bits(d) / 8; }

static double read_f16(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static double read_number(const void *p, int64_t i, tg_dtype d) {
    uint32_t b;
    float f;
    switch (d) {
    case TG_F64: return ((const double *)p)[i];
    case TG_F32: return ((const float *)p)[i];
    case TG_F16: return read_f16(((const uint16_t *)p)[i]);
    default:
        b = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &b, sizeof f);
        return f;
    }
}

/* Makes v exact in d: a few bits around the point, or NaN. */
static void write_number(void *p, int64_t i, tg_dtype d, double v) {
    float f = (float)v;
    uint32_t b;
    int e;
    memcpy(&b, &f, sizeof b);
    switch (d) {
    case TG_F64: ((double *)p)[i] = v; break;
    case TG_F32: ((float *)p)[i] = f; break;
    case TG_BF16: ((uint16_t *)p)[i] = (uint16_t)(b >> 16); break;
    default:
        if (isnan(v)) b = 0x7e00;
        else if (v == 0) b = 0;
        else b = (uint32_t)(1024 * (2 * frexp(fabs(v), &e) - 1)) | (uint32_t)(e + 14) << 10 | (v < 0 ? 0x8000u : 0);
        ((uint16_t *)p)[i] = (uint16_t)b;
    }
}

/* A matrix with its own memory. Layouts: rows, columns, rows with gaps, both strides above one. */
enum { LAYOUTS = 4 };
typedef struct matrix {
    tg_matrix v;
    size_t numel;
} matrix;

static matrix new_matrix(int64_t rows, int64_t cols, const int64_t batch[2], int layout, tg_dtype d, uint64_t *seed) {
    matrix x = {.v = {.dtype = d}};
    int64_t wide = layout == 2 ? cols + 3 : cols;
    x.v.cs = layout == 1 ? rows : layout == 3 ? 2 : 1;
    x.v.rs = layout == 1 ? 1 : layout == 3 ? 2 * cols + 1 : wide;
    int64_t one = (rows + 1) * (cols + 3) * (layout == 3 ? 2 : 1) + 5;
    x.v.bs[1] = one;
    x.v.bs[0] = one * batch[1];
    x.numel = (size_t)(one * batch[0] * batch[1]);
    x.v.data = malloc(x.numel * size_of(d));
    for (size_t i = 0; i < x.numel; i++)
        write_number(x.v.data, (int64_t)i, d, seed ? ((double)(next_random(seed) % 33) - 16) / 16 : NAN);
    return x;
}

static void *copy_of(const matrix *x) {
    void *p = malloc(x->numel * size_of(x->v.dtype));
    memcpy(p, x->v.data, x->numel * size_of(x->v.dtype));
    return p;
}

static int64_t place(const tg_matrix *x, int64_t u, int64_t v, int64_t i, int64_t j) {
    return u * x->bs[0] + v * x->bs[1] + i * x->rs + j * x->cs;
}

static double activate(double x, tg_activation act) {
    switch (act) {
    case TG_ACT_RELU: return x > 0 ? x : 0;
    case TG_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case TG_ACT_GELU: return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case TG_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

static double epsilon(tg_dtype d) {
    return d == TG_F64 ? 0x1p-52 : d == TG_F32 ? 0x1p-23 : d == TG_F16 ? 0x1p-10 : 0x1p-7;
}

/* Compares one element; c_before is C before the call. */
static void check_element(const tg_gemm *g, const void *c_before, int64_t u, int64_t v, int64_t i, int64_t j) {
    double sum = 0, size = 0;
    for (int64_t q = 0; q < g->k; q++) {
        double p = read_number(g->a.data, place(&g->a, u, v, i, q), g->a.dtype) *
                   read_number(g->b.data, place(&g->b, u, v, q, j), g->b.dtype);
        sum += p;
        size += fabs(p);
    }
    int64_t at = place(&g->c, u, v, i, j);
    double want = g->alpha * sum;
    size *= fabs(g->alpha);
    if (g->beta != 0) want += g->beta * read_number(c_before, at, g->c.dtype), size += fabs(g->beta);
    if (g->bias) want += read_number(g->bias, j, g->bias_dtype), size += 1;
    double sums = 4 * size * epsilon(g->a.dtype == TG_F64 ? TG_F64 : TG_F32);
    if (g->pre.data) {
        double pre = read_number(g->pre.data, place(&g->pre, u, v, i, j), g->pre.dtype);
        ck_assert_double_le(fabs(pre - want), sums + epsilon(g->pre.dtype) * fabs(want));
    }
    want = activate(want, g->act);
    double got = read_number(g->c.data, at, g->c.dtype), bound = 1.2 * sums + epsilon(g->c.dtype) * fabs(want);
    if (!(fabs(got - want) <= bound + 1e-7 * (g->c.dtype == TG_F16)))
        ck_abort_msg("m %d n %d k %d at %d %d (%d): got %.9g, want %.9g, act %d, dtype %s", (int)g->m, (int)g->n,
                     (int)g->k, (int)i, (int)j, (int)v, got, want, g->act, tg_dtype_name(g->a.dtype));
}

/* Compares all elements, or a fixed sample of them if naive loops would take too long. */
static void check_product(const tg_gemm *g, const void *c_before, uint64_t *seed) {
    int64_t all = g->m * g->n * g->batch[0] * g->batch[1];
    bool draw = (double)all * (double)g->k > 1e5;
    for (int64_t e = 0; e < (draw ? 200 : all); e++) {
        int64_t x = draw ? (int64_t)(next_random(seed) % (uint64_t)all) : e;
        int64_t j = x % g->n, i = x / g->n % g->m, v = x / g->n / g->m % g->batch[1], u = x / g->n / g->m / g->batch[1];
        check_element(g, c_before, u, v, i, j);
    }
}

/* Checks that the bytes between the elements of C are unchanged. */
static void check_gaps(const tg_gemm *g, const matrix *c, const void *before) {
    char *touched = calloc(c->numel, 1);
    for (int64_t u = 0; u < g->batch[0]; u++)
        for (int64_t v = 0; v < g->batch[1]; v++)
            for (int64_t i = 0; i < g->m; i++)
                for (int64_t j = 0; j < g->n; j++) touched[place(&g->c, u, v, i, j)] = 1;
    size_t size = size_of(c->v.dtype);
    for (size_t i = 0; i < c->numel; i++)
        if (!touched[i]) ck_assert(!memcmp((char *)c->v.data + i * size, (const char *)before + i * size, size));
    free(touched);
}

/* Runs one product in the variant of this number; every choice has its own period. */
static void try_product(tg_ctx *one, tg_ctx *two, tg_dtype d, int64_t m, int64_t n, int64_t k, uint64_t number) {
    static const struct { double alpha, beta; } scales[] = {{1, 0}, {1, 1}, {0.5, 0}, {-0.5, 2}, {1, 0.25}};
    uint64_t seed = number;
    bool half = d == TG_BF16 || d == TG_F16;
    tg_dtype out = half && number % 3 == 0 ? TG_F32 : d;
    tg_gemm g = {.m = m, .n = n, .k = k, .batch = {1 + (number % 7 == 2), 1 + number % 11 % 3}};
    g.alpha = scales[number % 5].alpha;
    g.beta = scales[number % 5].beta;
    g.act = (tg_activation)(number / 5 % 5);
    matrix a = new_matrix(m, k, g.batch, (int)(number % 4), d, &seed);
    matrix b = new_matrix(k, n, g.batch, (int)(number / 4 % 4), d, &seed);
    matrix c = new_matrix(m, n, g.batch, (int)(number / 16 % 4), out, g.beta != 0 ? &seed : NULL);
    matrix pre = new_matrix(m, n, g.batch, (int)(number / 3 % 4), number % 13 < 6 ? d : out, NULL);
    matrix bias = new_matrix(1, n, (int64_t[]){1, 1}, 0, number % 2 ? d : out, &seed);
    g.a = a.v, g.b = b.v, g.c = c.v;
    if (number % 9 == 4) g.b.bs[0] = g.b.bs[1] = 0;
    if (number % 3 == 1) g.pre = pre.v;
    if (number % 4 < 2) g.bias = bias.v.data, g.bias_dtype = bias.v.dtype;
    void *c_before = copy_of(&c), *pre_before = copy_of(&pre), *c_two = copy_of(&c), *pre_two = copy_of(&pre);
    ck_assert_int_eq(tg_ctx_ops(one)->gemm(one, &g), TG_OK);
    check_product(&g, c_before, &seed);
    check_gaps(&g, &c, c_before);
    tg_gemm h = g;
    h.c.data = c_two;
    if (g.pre.data) h.pre.data = pre_two;
    ck_assert_int_eq(tg_ctx_ops(two)->gemm(two, &h), TG_OK);
    ck_assert(!memcmp(c.v.data, c_two, c.numel * size_of(out)));
    if (g.pre.data) ck_assert(!memcmp(pre.v.data, pre_two, pre.numel * size_of(pre.v.dtype)));
    void *all[] = {a.v.data, b.v.data, c.v.data, pre.v.data, bias.v.data, c_before, pre_before, c_two, pre_two};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static const char *const isas[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_BF16, TG_F16};

/* Makes two contexts of one instruction set, with one thread and two; false if this machine lacks it. */
static bool open_pair(const char *isa, tg_ctx *pair[2]) {
    for (int i = 0; i < 2; i++) pair[i] = tg_ctx_new(TG_CONFIG(.isa = isa, .threads = i + 1));
    if (tg_ctx_status(pair[0]) == TG_OK && tg_ctx_status(pair[1]) == TG_OK) return true;
    for (int i = 0; i < 2; i++) tg_ctx_free(pair[i]);
    return false;
}

/* Runs body with every instruction set of this machine and every dtype. */
static void for_each_kind(void (*body)(tg_ctx *one, tg_ctx *two, tg_dtype d, uint64_t kind)) {
    for (uint64_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        tg_ctx *pair[2];
        if (!open_pair(isas[i], pair)) continue;
        for (uint64_t d = 0; d < 4; d++) body(pair[0], pair[1], dtypes[d], i * 4 + d);
        tg_ctx_free(pair[0]);
        tg_ctx_free(pair[1]);
    }
}

/* Sanitizers run one product in nine. */
static uint64_t stride(void) { return getenv("TG_TEST_QUICK") ? 9 : 1; }

/* Runs a seventh of all triples of these sizes, another one for each dtype and instruction set. */
static void try_small_shapes(tg_ctx *one, tg_ctx *two, tg_dtype d, uint64_t kind) {
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 16, 31, 64, 97, 130};
    const uint64_t n = sizeof sizes / sizeof *sizes;
    for (uint64_t i = kind % 7; i < n * n * n; i += 7 * stride())
        try_product(one, two, d, sizes[i / n / n], sizes[i / n % n], sizes[i % n], i * 7919 + kind);
}

START_TEST(small_products_are_right) { for_each_kind(try_small_shapes); }
END_TEST

/* Several blocks of K, several chunks of rows and of columns, long strips. */
static void try_large_shapes(tg_ctx *one, tg_ctx *two, tg_dtype d, uint64_t kind) {
    static const int64_t shapes[][3] = {{40, 70, 1701}, {1100, 50, 800}, {1030, 2100, 801}, {33, 130, 5000},
                                        {3, 3001, 77},  {12, 513, 300},  {700, 1, 1000},    {20, 1000, 40},
                                        {2000, 300, 3}, {9, 9, 20000}};
    for (uint64_t i = kind % stride(); i < sizeof shapes / sizeof *shapes; i += stride())
        try_product(one, two, d, shapes[i][0], shapes[i][1], shapes[i][2], i * 231 + kind * 17);
}

START_TEST(large_products_are_right) { for_each_kind(try_large_shapes); }
END_TEST

/* Whole tiles whose sums are written to the output directly, with one and several blocks of K: each scale, with and
 * without a bias. */
static void try_plain(tg_ctx *one, tg_ctx *two, tg_dtype d, uint64_t kind) {
    bool seen[5][2] = {0};
    for (uint64_t number = kind % 3, found = 0; found < 10; number++) {
        bool plain = number / 5 % 5 == 0 && number / 16 % 4 == 0 && number % 3 == 0, bias = number % 4 < 2;
        if (!plain || seen[number % 5][bias]) continue;
        seen[number % 5][bias] = true;
        found++;
        try_product(one, two, d, 24, 96, found % 2 ? 50 : 1701, number);
    }
}

START_TEST(whole_tiles_are_written_directly) { for_each_kind(try_plain); }
END_TEST

/* The batch at once on two threads, and then each of its products by itself on one. */
static void try_batch(tg_ctx *one, tg_ctx *two, tg_dtype d, int64_t m, int64_t n, int64_t k) {
    const int64_t batch[2] = {3, 7};
    uint64_t seed = 5;
    tg_gemm g = {.m = m, .n = n, .k = k, .batch = {3, 7}, .alpha = 0.125};
    matrix a = new_matrix(m, k, batch, 0, d, &seed), b = new_matrix(k, n, batch, 1, d, &seed);
    matrix c = new_matrix(m, n, batch, 0, d, NULL);
    size_t size = size_of(d);
    char *apart = copy_of(&c);
    g.a = a.v, g.b = b.v, g.c = c.v;
    ck_assert_int_eq(tg_ctx_ops(two)->gemm(two, &g), TG_OK);
    for (int64_t i = 0; i < 21; i++) {
        tg_gemm h = g;
        h.batch[0] = h.batch[1] = 1;
        h.a.data = (char *)a.v.data + (size_t)(i * a.v.bs[1]) * size;
        h.b.data = (char *)b.v.data + (size_t)(i * b.v.bs[1]) * size;
        h.c.data = apart + (size_t)(i * c.v.bs[1]) * size;
        ck_assert_int_eq(tg_ctx_ops(one)->gemm(one, &h), TG_OK);
    }
    ck_assert(!memcmp(apart, c.v.data, c.numel * size));
    free(a.v.data), free(b.v.data), free(c.v.data), free(apart);
}

static void try_batches(tg_ctx *one, tg_ctx *two, tg_dtype d, uint64_t kind) {
    static const int64_t shapes[][3] = {{64, 64, 64}, {130, 40, 70}, {1, 64, 50}, {5, 5, 5}};
    (void)kind;
    for (int i = 0; i < 4; i++) try_batch(one, two, d, shapes[i][0], shapes[i][1], shapes[i][2]);
}

START_TEST(batch_is_its_products) { for_each_kind(try_batches); }
END_TEST

/* m rows at once, and then each by itself. */
static void try_rows(tg_ctx *ctx, tg_dtype d, int64_t m, int64_t k, int layout) {
    const int64_t batch[2] = {1, 1}, n = 101;
    uint64_t seed = 7;
    size_t size = size_of(d);
    matrix a = new_matrix(m, k, batch, 0, d, &seed), b = new_matrix(k, n, batch, layout, d, &seed);
    matrix c = new_matrix(m, n, batch, 0, d, NULL);
    char *apart = copy_of(&c);
    tg_gemm g = {.m = m, .n = n, .k = k, .batch = {1, 1}, .alpha = 1.0 / 3, .a = a.v, .b = b.v, .c = c.v};
    for (size_t i = 0; i < a.numel; i++)
        write_number(a.v.data, (int64_t)i, d, ((double)(next_random(&seed) % 255) - 127) / 64);
    ck_assert_int_eq(tg_ctx_ops(ctx)->gemm(ctx, &g), TG_OK);
    g.m = 1;
    for (int64_t i = 0; i < m; i++) {
        g.a.data = (char *)a.v.data + (size_t)(i * a.v.rs) * size;
        g.c.data = apart + (size_t)(i * c.v.rs) * size;
        ck_assert_int_eq(tg_ctx_ops(ctx)->gemm(ctx, &g), TG_OK);
    }
    ck_assert(!memcmp(apart, c.v.data, c.numel * size));
    free(a.v.data), free(b.v.data), free(c.v.data), free(apart);
}

/* Generation relies on this for up to 12 rows. */
static void try_few_rows(tg_ctx *one, tg_ctx *two, tg_dtype d, uint64_t kind) {
    static const int64_t rows[] = {2, 3, 4, 7, 8, 12}, inner[] = {45, 96, 770};
    (void)kind;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t q = 0; q < sizeof inner / sizeof *inner; q++)
            for (int layout = 0; layout < 2; layout++) try_rows(q % 2 ? two : one, d, rows[i], inner[q], layout);
}

START_TEST(few_rows_have_the_bits_of_single_ones) { for_each_kind(try_few_rows); }
END_TEST

int main(void) {
    const TTest *const tests[] = {small_products_are_right, large_products_are_right, whole_tiles_are_written_directly,
                                  batch_is_its_products, few_rows_have_the_bits_of_single_ones};
    return tg_check_main("gemm", tests, sizeof tests / sizeof tests[0]);
}
