/* The contract of scan and sort. */
#include <math.h>
#include <stdlib.h>
#include <tapegrad/device.h>

#include "contract/device_contract.h"

static const tg_dtype types[] = {TG_F32, TG_F64, TG_BF16, TG_F16, TG_I64, TG_I32, TG_U8,
                                 TG_I8,  TG_I16, TG_U16,  TG_U32, TG_U64, TG_BOOL};
enum { TYPES = sizeof types / sizeof *types, FLOATS = 4 };

static const char *name(const mirror *m) { return tg_dtype_name((tg_dtype)m->on.dtype); }

/* An output must not be expanded. */
static layout some_layout(contract *c, bool out) { return (layout)contract_roll(c, out ? EXPANDED : LAYOUTS); }

/* ---- Scan ---- */

/* Scans one row in double, from its first or last element; x and want have a stride. */
static void scan_row(const double *x, double *want, int64_t n, bool prod, bool back) {
    double so_far = prod;
    for (int64_t k = 0; k < n; k++) {
        int64_t j = back ? n - 1 - k : k;
        want[j] = so_far = prod ? so_far * x[j] : so_far + x[j];
    }
}

/* Factors near 1, so that products neither vanish nor grow; for integers they are 1 or -1, or 0 and 1. */
static void near_one(contract *c, mirror *x) {
    tg_dtype t = (tg_dtype)x->on.dtype;
    for (int64_t i = 0; i < x->on.numel; i++) {
        double v = 1 + 0.1 * contract_value(c, TG_F32);
        if (t > TG_F16) v = t == TG_U8 || (t >= TG_U16 && t <= TG_BOOL) || contract_roll(c, 2) ? 1 : -1;
        if (contract_roll(c, 400) == 0) v = 0;
        contract_set(x, i, v);
    }
}

/* Sums of 16-bit floats may be requested in float32. */
static tg_dtype result_of(contract *c, tg_dtype t) {
    if (t > TG_F16) return TG_I64;
    return (t == TG_BF16 || t == TG_F16) && contract_roll(c, 2) ? TG_F32 : t;
}

static void scan_case(contract *c, tg_dtype t, const int64_t *shape, bool prod, bool back, bool add) {
    int64_t n = shape[2], rows = shape[0] * shape[1];
    mirror x = contract_make(c, t, 3, shape, some_layout(c, false));
    mirror y = contract_make(c, result_of(c, t), 3, shape, some_layout(c, true));
    tg_dtype sums = y.on.dtype == TG_F64 ? TG_F64 : y.on.dtype == TG_I64 ? TG_I64 : TG_F32;
    if (prod) near_one(c, &x);
    contract_push(c, &x);
    contract_push(c, &y);
    double *from = malloc(sizeof *from * (size_t)(n + 1)), *want = malloc(sizeof *want * (size_t)(rows * n + 1));
    double *size = calloc((size_t)rows + 1, sizeof *size);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < n; j++) from[j] = contract_get(&x, r * n + j);
        scan_row(from, want + r * n, n, prod, back);
        for (int64_t j = 0; j < n; j++) size[r] = fmax(size[r], fabs(want[r * n + j]));
        for (int64_t j = 0; j < n && add; j++) want[r * n + j] += contract_get(&y, r * n + j);
    }
    tg_status status = c->ops->scan(c->ctx, prod ? TG_PROD : TG_SUM, y.on, x.on, back, add);
    contract_check(c, status == TG_OK, "scan: status");
    contract_pull(c, &y);
    double many = sums == TG_I64 ? 0 : (sums == TG_F64 ? 1e-15 : 1e-7) * (double)n;
    double one = y.on.dtype == TG_BF16 ? 1e-2 : y.on.dtype == TG_F16 ? 2e-3 : 1e-6;
    for (int64_t i = 0; i < rows * n; i++) {
        double got = contract_get(&y, i), slack = many * size[i / n] + one * fabs(want[i]);
        bool ok = sums == TG_I64 ? got == want[i] : fabs(got - want[i]) <= slack + one;
        contract_check(c, ok, "%s scan of %s to %s, [%lld, %lld, %lld], %s%s, element %lld: %.9g, expected %.9g",
                       prod ? "product" : "sum", name(&x), name(&y), (long long)shape[0], (long long)shape[1],
                       (long long)n, back ? "back " : "", add ? "add" : "", (long long)i, got, want[i]);
    }
    free(from);
    free(want);
    free(size);
    contract_drop(c, &x);
    contract_drop(c, &y);
}

void contract_scan(contract *c) {
    static const int64_t lengths[] = {1, 2, 3, 7, 31, 33, 130, 600};
    for (int k = 0; c->ops->scan && k < 8 * 2 * TYPES; k++) {
        int64_t shape[] = {1 + contract_roll(c, 4), 1 + contract_roll(c, 60), lengths[k % 8]};
        scan_case(c, types[k / 8 % TYPES], shape, k / (8 * TYPES), contract_roll(c, 2), contract_roll(c, 2));
    }
}

/* Rows whose parts are scanned separately, and enough rows for threads. */
void contract_scan_long(contract *c) {
    static const int64_t shapes[][3] = {{1, 1, 8191}, {1, 1, 8193}, {2, 1, 20001}, {1, 300, 400}, {0, 2, 5}, {2, 0, 9}};
    for (int k = 0; c->ops->scan && k < 6 * 6; k++)
        scan_case(c, types[k / 6], shapes[k % 6], k % 5 == 4, contract_roll(c, 2), contract_roll(c, 2));
}

/* ---- Sort ---- */

/* Values with equal elements, both zeros, infinities and NaN. */
static void with_ties(contract *c, mirror *x) {
    static const double odd[] = {0, -0.0, 1, 1, -1, INFINITY, -INFINITY, NAN};
    for (int64_t i = 0; i < x->on.numel; i++) {
        bool whole = x->on.dtype > TG_F16;
        contract_set(x, i, whole ? (double)contract_roll(c, 4) : odd[contract_roll(c, 8)]);
    }
}

static bool comes_before(double a, double b, bool falling) {
    if (a != a || b != b) return falling ? a != a && b == b : a == a && b != b;
    return falling ? a > b : a < b;
}

/* Sorts each row by insertion, which is stable. */
static void sort_reference(const mirror *x, int64_t r, int64_t n, bool falling, double *v, int64_t *at) {
    for (int64_t i = 0; i < n; i++) {
        double mine = contract_get(x, r * n + i);
        int64_t j = i;
        for (; j > 0 && comes_before(mine, v[j - 1], falling); j--) {
            v[j] = v[j - 1];
            at[j] = at[j - 1];
        }
        v[j] = mine;
        at[j] = i;
    }
}

static bool same_value(double a, double b) { return a != a ? b != b : a == b && signbit(a) == signbit(b); }

static void sort_case(contract *c, tg_dtype t, const int64_t *shape, int64_t k, bool ties) {
    int64_t n = shape[2], wanted[] = {shape[0], shape[1], k};
    bool falling = contract_roll(c, 2);
    mirror x = contract_make(c, t, 3, shape, some_layout(c, false));
    mirror y = contract_make(c, t, 3, wanted, some_layout(c, true));
    mirror order = contract_make(c, TG_I64, 3, wanted, some_layout(c, true)), *all[] = {&x, &y, &order};
    if (ties) with_ties(c, &x);
    for (int i = 0; i < 3; i++) contract_push(c, all[i]);
    contract_check(c, c->ops->sort(c->ctx, y.on, order.on, x.on, falling) == TG_OK, "sort: status");
    contract_pull(c, &y);
    contract_pull(c, &order);
    double *v = malloc(sizeof *v * (size_t)(n + 1));
    int64_t *at = malloc(sizeof *at * (size_t)(n + 1));
    for (int64_t r = 0; r < shape[0] * shape[1]; r++) {
        sort_reference(&x, r, n, falling, v, at);
        for (int64_t i = 0; i < k; i++) {
            double got = contract_get(&y, r * k + i), place = contract_get(&order, r * k + i);
            contract_check(c, same_value(v[i], got) && place == (double)at[i],
                           "the first %lld of %lld %s, %s, row %lld, place %lld: %g of %g, expected %g of %lld",
                           (long long)k, (long long)n, name(&x), falling ? "falling" : "rising", (long long)r,
                           (long long)i, got, place, v[i], (long long)at[i]);
        }
    }
    free(v);
    free(at);
    for (int i = 0; i < 3; i++) contract_drop(c, all[i]);
}

static void sort_cases(contract *c, bool ties) {
    static const int64_t lengths[] = {1, 2, 5, 32, 33, 90, 300, 1100};
    for (int k = 0; c->ops->sort && k < 8 * TYPES; k++) {
        int64_t n = lengths[k % 8], shape[] = {1 + contract_roll(c, 3), 1 + contract_roll(c, 6), n};
        int64_t wanted[] = {n, 1 + contract_roll(c, n), 1 + n / 20};
        sort_case(c, types[k / 8], shape, wanted[contract_roll(c, 3)], ties);
    }
}

void contract_sort(contract *c) {
    static const int64_t rows[] = {1, 300, 60}, none[] = {2, 0, 4};
    sort_cases(c, false);
    for (int k = 0; c->ops->sort && k < FLOATS; k++) sort_case(c, types[k], rows, 60, false);
    if (c->ops->sort) sort_case(c, TG_F32, none, 4, false);
}

void contract_sort_ties(contract *c) { sort_cases(c, true); }
