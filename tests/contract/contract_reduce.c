/* The contract of reduce, gemm, take and put_add. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tapegrad/context.h>
#include <tapegrad/device.h>

#include "contract/device_contract.h"
#include "kernels/index_position.h"

typedef struct reduce_shape {
    int n;
    int64_t size[4];
} reduce_shape;

static const reduce_shape shapes[] = {
    {0, {0}},        {1, {1}},         {1, {5}},       {1, {1500}},       {2, {3, 7}},      {2, {40, 1100}},
    {2, {1100, 40}}, {3, {6, 33, 21}}, {3, {0, 3, 2}}, {4, {3, 4, 5, 6}}, {2, {200000, 1}}, {2, {900, 260}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const tg_dtype types[] = {TG_F32, TG_F64, TG_BF16, TG_F16, TG_I64, TG_I32};

static double start_of(tg_reduction kind) {
    return kind == TG_PROD ? 1 : kind == TG_MAX ? -(double)INFINITY : kind == TG_MIN ? (double)INFINITY : 0;
}

static long double joined(tg_reduction kind, long double a, double x) {
    switch (kind) {
    case TG_PROD:
        return a * x;
    case TG_SUMSQ:
        return a + (long double)x * x;
    case TG_MAX:
        return a != a || a > x ? a : x;
    case TG_MIN:
        return a != a || a < x ? a : x;
    default:
        return a + x;
    }
}

/* Returns the row-major position in out of in's element i if the dims in mask are reduced. */
static int64_t kept_position(const mirror *in, unsigned mask, int64_t i) {
    int64_t at = 0, step = 1;
    for (int d = in->on.ndim - 1; d >= 0; d--) {
        int64_t x = i % in->shape[d];
        i /= in->shape[d];
        if (mask >> d & 1) continue;
        at += x * step;
        step *= in->shape[d];
    }
    return at;
}

/* Bound of the rounding error per element, relative to the sum of magnitudes. */
static double slack(tg_dtype t) {
    return t == TG_F64 ? 1e-13 : t == TG_BF16 ? 1e-2 : t == TG_F16 ? 2e-3 : 1e-6;
}

static void reduce_case(contract *c, tg_reduction kind, tg_dtype t, const reduce_shape *s, unsigned mask, layout l) {
    bool add = contract_roll(c, 2), whole = t > TG_F16;
    double scale = whole || contract_roll(c, 2) ? 1 : 0.25;
    int64_t kept[4];
    for (int d = 0; d < s->n; d++) kept[d] = mask >> d & 1 ? 1 : s->size[d];
    mirror in = contract_make(c, t, s->n, s->size, l),
           out = contract_make(c, t, s->n, kept, (layout)contract_roll(c, EXPANDED));
    contract_push(c, &in);
    contract_push(c, &out);
    size_t n = (size_t)out.on.numel + 1;
    long double *want = malloc(n * sizeof *want);
    double *size = calloc(n, sizeof *size);
    for (size_t i = 0; i < n; i++) want[i] = start_of(kind);
    for (int64_t i = 0; i < in.on.numel; i++) {
        int64_t at = kept_position(&in, mask, i);
        double x = contract_get(&in, i);
        want[at] = joined(kind, want[at], x);
        size[at] += kind == TG_SUMSQ ? x * x : fabs(x);
    }
    contract_check(c, c->ops->reduce(c->ctx, kind, out.on, in.on, scale, add) == TG_OK, "reduce: status");
    mirror before = out;
    before.host = malloc(out.bytes);
    memcpy(before.host, out.host, out.bytes);
    contract_pull(c, &out);
    for (int64_t i = 0; i < out.on.numel; i++) {
        double old = add ? contract_get(&before, i) : 0, w = contract_rounded(t, (double)(scale * want[i] + old)),
               got = contract_get(&out, i);
        bool ok = whole || isinf(w) ? got == w
                                    : fabs(got - w) <= slack(t) * (fabs(scale) * size[i] + fabs(old) + fabs(w) + 1e-3);
        contract_check(c, ok,
                       "reduce kind %d of %s %dd [%lld..], dims %x, layout %d, scale %g, add %d: %.9g, expected %.9g",
                       kind, tg_dtype_name(t), s->n, (long long)s->size[0], mask, l, scale, add, got, w);
    }
    free(before.host);
    free(want);
    free(size);
    contract_drop(c, &in);
    contract_drop(c, &out);
}

void contract_reduce(contract *c) {
    static const tg_reduction kinds[] = {TG_SUM, TG_PROD, TG_MAX, TG_MIN, TG_SUMSQ};
    for (int s = 0; s < SHAPES; s++)
        for (unsigned mask = 0; mask < 1u << shapes[s].n; mask++)
            for (int k = 0; k < 5; k++) {
                int64_t numel = 1;
                for (int d = 0; d < shapes[s].n; d++) numel *= shapes[s].size[d];
                bool extreme = kinds[k] == TG_MAX || kinds[k] == TG_MIN;
                if ((kinds[k] == TG_PROD && numel > 50) || (extreme && numel == 0)) continue;
                for (int times = 0; times < (numel > 10000 ? 1 : 6); times++)
                    reduce_case(c, kinds[k], types[contract_roll(c, 6)], &shapes[s], mask,
                                (layout)contract_roll(c, LAYOUTS));
            }
}

/* A NaN at any position makes the result NaN. */
void contract_reduce_nan(contract *c) {
    for (int k = 0; k < 60; k++) {
        int64_t n = 1 + contract_roll(c, 1300), one = 1, at = contract_roll(c, n);
        for (int t = 0; t < 4; t++) {
            mirror in = contract_make(c, types[t], 1, &n, ROWS), out = contract_make(c, types[t], 1, &one, ROWS);
            mirror position = contract_make(c, TG_I64, 1, &one, ROWS);
            contract_set(&in, at, (double)NAN);
            contract_push(c, &in);
            contract_push(c, &out);
            contract_push(c, &position);
            c->ops->reduce(c->ctx, k & 1 ? TG_MAX : TG_MIN, out.on, in.on, 1, false);
            c->ops->reduce(c->ctx, k & 1 ? TG_ARGMAX : TG_ARGMIN, position.on, in.on, 1, false);
            contract_pull(c, &out);
            contract_pull(c, &position);
            contract_check(c, contract_get(&out, 0) != contract_get(&out, 0), "NaN wins in MAX and MIN");
            contract_check(c, contract_get(&position, 0) == (double)at, "NaN at %lld wins in ARG*: %g", (long long)at,
                           contract_get(&position, 0));
            contract_drop(c, &in);
            contract_drop(c, &out);
            contract_drop(c, &position);
        }
    }
}

static void position_case(contract *c, bool max, tg_dtype t, layout l, const int64_t *shape, int dim) {
    int64_t kept[3] = {shape[0], shape[1], shape[2]}, step = 1;
    kept[dim] = 1;
    for (int d = 2; d > dim; d--) step *= shape[d];
    mirror in = contract_make(c, t, 3, shape, l), out = contract_make(c, TG_I64, 3, kept, ROWS);
    contract_push(c, &in);
    contract_push(c, &out);
    contract_check(c, c->ops->reduce(c->ctx, max ? TG_ARGMAX : TG_ARGMIN, out.on, in.on, 1, false) == TG_OK,
                   "ARG*: status");
    contract_pull(c, &out);
    for (int64_t i = 0; i < out.on.numel; i++) {
        int64_t first = i / step * step * shape[dim] + i % step, best = 0;
        for (int64_t j = 1; j < shape[dim]; j++) {
            double x = contract_get(&in, first + j * step), y = contract_get(&in, first + best * step);
            best = (max ? x > y : x < y) ? j : best;
        }
        contract_check(c, contract_get(&out, i) == (double)best, "position of the extreme: %g, expected %lld",
                       contract_get(&out, i), (long long)best);
    }
    contract_drop(c, &in);
    contract_drop(c, &out);
}

void contract_reduce_position(contract *c) {
    static const int64_t shape[][3] = {{1, 1, 1}, {3, 5, 7}, {2, 600, 3}, {4, 3, 1500}, {2, 30000, 1}};
    for (int s = 0; s < 5; s++)
        for (int dim = 0; dim < 3; dim++)
            for (int t = 0; t < 6; t++)
                for (int l = 0; l < LAYOUTS; l++) position_case(c, (t + l) & 1, types[t], (layout)l, shape[s], dim);
}

static double activated(tg_activation act, double x) {
    switch (act) {
    case TG_ACT_RELU:
        return x > 0 ? x : 0;
    case TG_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case TG_ACT_GELU:
        return 0.5 * x * (1 + erf(x * 0.7071067811865476));
    case TG_ACT_SILU:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

static tg_matrix matrix_of(const mirror *m) {
    return (tg_matrix){m->on.data, m->stride[1], m->stride[2], {m->stride[0], 0}, m->on.dtype};
}

static void gemm_case(contract *c, int64_t m, int64_t n, int64_t k, tg_dtype t, tg_dtype ct) {
    int64_t batch = 1 + contract_roll(c, 3);
    mirror a = contract_make(c, t, 3, (int64_t[]){batch, m, k}, (layout)contract_roll(c, LAYOUTS));
    mirror b = contract_make(c, t, 3, (int64_t[]){batch, k, n}, (layout)contract_roll(c, LAYOUTS));
    mirror out = contract_make(c, ct, 3, (int64_t[]){batch, m, n}, (layout)contract_roll(c, STRIDED));
    mirror pre = contract_make(c, ct, 3, (int64_t[]){batch, m, n}, ROWS), bias = contract_make(c, t, 1, &n, ROWS);
    mirror *all[] = {&a, &b, &out, &pre, &bias};
    bool biased = contract_roll(c, 2), kept = contract_roll(c, 2);
    tg_gemm g = {.m = m,
                 .n = n,
                 .k = k,
                 .batch = {batch, 1},
                 .alpha = contract_roll(c, 2) ? 1 : 0.5,
                 .beta = (double)contract_roll(c, 3) / 2,
                 .act = (tg_activation)contract_roll(c, 5),
                 .bias_dtype = t};
    for (int i = 0; i < 5; i++) contract_push(c, all[i]);
    g.a = matrix_of(&a), g.b = matrix_of(&b), g.c = matrix_of(&out);
    g.bias = biased ? bias.on.data : NULL;
    if (kept) g.pre = matrix_of(&pre);
    double *want = malloc(sizeof *want * (size_t)(out.on.numel + 1));
    for (int64_t i = 0; i < out.on.numel; i++) {
        int64_t u = i / (m * n), row = i / n % m, col = i % n;
        double sum = 0;
        for (int64_t j = 0; j < k; j++)
            sum += contract_get(&a, (u * m + row) * k + j) * contract_get(&b, (u * k + j) * n + col);
        want[i] = g.alpha * sum + (g.beta != 0 ? g.beta * contract_get(&out, i) : 0) +
                  (biased ? contract_get(&bias, col) : 0);
    }
    contract_check(c, c->ops->gemm(c->ctx, &g) == TG_OK, "gemm: status");
    contract_pull(c, &out);
    contract_pull(c, &pre);
    double tolerance = (ct == TG_F64 ? 1e-12 : ct == TG_F32 ? 1e-5 : 2e-2) * (1 + sqrt((double)k));
    for (int64_t i = 0; i < out.on.numel; i++) {
        double w = activated(g.act, want[i]), got = contract_get(&out, i);
        contract_check(c, fabs(got - w) <= tolerance * (1 + fabs(w)),
                       "gemm %s -> %s %lldx%lldx%lld act %d: %g, expected %g", tg_dtype_name(t), tg_dtype_name(ct),
                       (long long)m, (long long)n, (long long)k, g.act, got, w);
        contract_check(c, !kept || fabs(contract_get(&pre, i) - want[i]) <= tolerance * (1 + fabs(want[i])),
                       "gemm: value before the activation");
    }
    free(want);
    for (int i = 0; i < 5; i++) contract_drop(c, all[i]);
}

void contract_gemm(contract *c) {
    static const int64_t size[][3] = {{1, 1, 1},    {3, 5, 7},     {1, 70, 33}, {17, 1, 40}, {33, 50, 20},
                                      {4, 130, 65}, {65, 35, 300}, {2, 3, 0},   {0, 3, 2}};
    for (int s = 0; s < 9; s++)
        for (int t = 0; t < 4; t++)
            for (int times = 0; times < 4; times++)
                gemm_case(c, size[s][0], size[s][1], size[s][2], types[t],
                          types[t] != TG_F64 && times & 1 ? TG_F32 : types[t]);
}

/* Makes an index array that broadcasts along some dims, with values in [lo, hi). */
static mirror index_of(contract *c, const int64_t *shape, int dim, bool rows, int64_t lo, int64_t hi) {
    mirror m = contract_make(c, contract_roll(c, 2) ? TG_I64 : TG_I32, 3, shape, ROWS);
    for (int d = 0; rows && d < 3; d++) m.stride[d] = d == dim ? 1 : 0;
    for (int64_t i = 0; i < m.on.numel; i++) contract_set(&m, i, (double)(lo + contract_roll(c, hi - lo)));
    m.on.contiguous = m.on.contiguous && !rows;
    return m;
}

/* Returns the element of the indexed array that belongs to element i of an array of index's shape; -1: out of range. */
static int64_t partner(const mirror *index, const mirror *big, int dim, int64_t i) {
    int64_t at[3], rest = i, chosen = (int64_t)contract_get(index, i);
    for (int d = 2; d >= 0; d--) {
        at[d] = rest % index->shape[d];
        rest /= index->shape[d];
    }
    if (chosen < 0 || chosen >= big->shape[dim]) return -1;
    at[dim] = chosen;
    return (at[0] * big->shape[1] + at[1]) * big->shape[2] + at[2];
}

/* Exact sums of an array and what is added to its elements. */
typedef struct sums {
    double *sum, *size, *terms; /* size: sum of magnitudes */
} sums;

static sums sums_of(const mirror *m) {
    size_t n = (size_t)m->on.numel + 1;
    sums s = {malloc(n * sizeof *s.sum), malloc(n * sizeof *s.size), calloc(n, sizeof *s.terms)};
    for (int64_t i = 0; i < m->on.numel; i++) {
        s.sum[i] = contract_get(m, i);
        s.size[i] = fabs(s.sum[i]);
    }
    return s;
}

/* Bound of the error of element i: its sum is rounded once to its dtype, and its terms to the type of the sum. */
static double sum_slack(const sums *s, int64_t i, tg_dtype t) {
    double terms = slack(t == TG_F64 ? TG_F64 : TG_F32) * (1 + s->terms[i] / 8);
    return terms * (s->size[i] + 1e-3) + slack(t) * (fabs(s->sum[i]) + 1e-3);
}

/* Checks what was said of the first bad index: at once by *bad, or, by a device that has poll, at the next wait. The
 * error of the latter names the position among the indices in memory. */
static void check_first_bad(contract *c, int64_t bad, int64_t first_bad, const tg_array *index) {
    if (!c->ops->poll) {
        contract_check(c, bad == first_bad, "the first bad index: %lld, expected %lld", (long long)bad,
                       (long long)first_bad);
        return;
    }
    char says[64];
    snprintf(says, sizeof says, "position %lld ", (long long)((first_bad - 1) / tg_index_repeats(index)));
    tg_status status = c->ops->sync(c->ctx);
    contract_check(c,
                   status == (first_bad ? TG_ERR_DATA : TG_OK) && (!first_bad || strstr(tg_ctx_message(c->ctx), says)),
                   "the first bad index: \"%s\", expected \"%s\"", tg_ctx_message(c->ctx), says);
    tg_ctx_clear(c->ctx);
}

enum { TAKE, PUT_ADD, PUT };

static void take_case(contract *c, int slot, int dim, bool rows, bool stray) {
    static const tg_dtype value_types[] = {TG_F32, TG_F64, TG_BF16, TG_F16, TG_I64, TG_I32,
                                          TG_U8,  TG_I8,  TG_I16,  TG_U16, TG_U32, TG_U64};
    /* An embedding with many rows. */
    int64_t most = rows && dim == 0 ? 120 : 20;
    bool put = slot != TAKE;
    int64_t shape[3] = {1 + contract_roll(c, most), 1 + contract_roll(c, 20), 1 + contract_roll(c, 300)};
    int64_t big[3] = {shape[0], shape[1], shape[2]}, bad = 0, first_bad = 0;
    big[dim] = 1 + contract_roll(c, 30);
    tg_dtype t = value_types[contract_roll(c, 12)], other = t > TG_F16 ? t : value_types[contract_roll(c, 4)];
    mirror a = contract_make(c, put ? other : t, 3, shape, (layout)contract_roll(c, EXPANDED));
    mirror b = contract_make(c, put ? t : other, 3, big, (layout)contract_roll(c, EXPANDED));
    mirror index = index_of(c, shape, dim, rows, stray ? -1 : 0, big[dim] + stray);
    contract_push(c, &a);
    contract_push(c, &b);
    contract_push(c, &index);
    sums s = sums_of(&b);
    for (int64_t i = 0; i < a.on.numel; i++) {
        int64_t j = partner(&index, &b, dim, i);
        if (j < 0 && !first_bad) first_bad = i + 1;
        if (j >= 0 && slot == PUT) {
            s.sum[j] = contract_rounded(t, contract_get(&a, i));
        } else if (j >= 0 && put) {
            s.sum[j] += contract_get(&a, i);
            s.size[j] += fabs(contract_get(&a, i));
            s.terms[j]++;
        } else if (j >= 0) {
            contract_set(&a, i, contract_rounded(t, contract_get(&b, j)));
        }
    }
    tg_status status = slot == TAKE      ? c->ops->take(c->ctx, a.on, b.on, index.on, dim, &bad)
                       : slot == PUT_ADD ? c->ops->put_add(c->ctx, b.on, a.on, index.on, dim, &bad)
                                         : c->ops->put(c->ctx, b.on, a.on, index.on, dim, &bad);
    contract_check(c, status == TG_OK, "take or put: status");
    check_first_bad(c, bad, first_bad, &index.on);
    mirror *result = put ? &b : &a, got = *result;
    got.host = calloc(1, got.bytes);
    contract_pull(c, &got);
    for (int64_t i = 0; i < got.on.numel; i++) {
        double have = contract_get(&got, i), want = put ? s.sum[i] : contract_get(result, i);
        bool ok = slot != PUT_ADD ? have == want
                  : t == TG_U8    ? have == (uint8_t)(int64_t)want
                  : t > TG_F16    ? have == want
                                  : fabs(have - want) <= sum_slack(&s, i, t);
        contract_check(c, ok, "%s of %s and %s, dim %d, element %lld: %g, expected %g",
                       slot == TAKE ? "take" : slot == PUT_ADD ? "put_add" : "put", tg_dtype_name(t),
                       tg_dtype_name(other), dim, (long long)i, have, want);
    }
    free(s.sum);
    free(s.size);
    free(s.terms);
    free(got.host);
    contract_drop(c, &a);
    contract_drop(c, &b);
    contract_drop(c, &index);
}

void contract_take(contract *c) {
    for (int k = 0; k < 120; k++) take_case(c, TAKE, k % 3, k % 2, k % 5 == 0);
}

/* A case of integers of 64 bits that are taken or put as floats, from `begin` on every second element of them. */
static void rounds_once_case(contract *c, tg_dtype from, const uint64_t *bits, tg_dtype to, const double *want,
                             int64_t begin, bool put) {
    const int64_t shape[] = {2}, whole[] = {4};
    mirror x = contract_make(c, from, 1, put ? shape : whole, ROWS), y = contract_make(c, to, 1, shape, ROWS);
    mirror index = contract_make(c, TG_I64, 1, shape, ROWS);
    int64_t bad = 0;
    for (int64_t i = 0; i < 2; i++) contract_set(&index, i, put ? i : begin + 2 * i);
    for (int64_t i = 0; i < x.on.numel; i++) memcpy(x.host + 8 * i, &bits[put ? begin + 2 * i : i], 8);
    contract_push(c, &x);
    contract_push(c, &y);
    contract_push(c, &index);
    tg_status status = (put ? c->ops->put : c->ops->take)(c->ctx, y.on, x.on, index.on, 0, &bad);
    contract_pull(c, &y);
    for (int64_t i = 0; i < 2; i++)
        contract_check(c, status == TG_OK && contract_get(&y, i) == want[begin + 2 * i],
                       "%s of %s as %s: %a, expected %a", put ? "put" : "take", tg_dtype_name(from), tg_dtype_name(to),
                       contract_get(&y, i), want[begin + 2 * i]);
    contract_drop(c, &x);
    contract_drop(c, &y);
    contract_drop(c, &index);
}

/* An integer just above the middle of two floats is rounded up, although a wider float would be that middle. */
void contract_take_rounds_once(contract *c) {
    const uint64_t one = 1;
    const uint64_t i64[] = {(one << 60) + (one << 52) + 1, (one << 60) + (one << 36) + 1, 65535, 2049};
    const uint64_t u64[] = {(one << 63) + (one << 55) + 1, (one << 63) + (one << 39) + 1, 65535, 2049};
    static const struct {
        tg_dtype to;
        double want[2][4]; /* of i64 and u64 */
    } rows[] = {
        {TG_BF16, {{0x1.02p60, 0x1p60, 65536, 2048}, {0x1.02p63, 0x1p63, 65536, 2048}}},
        {TG_F32, {{0x1.01p60, 0x1.000002p60, 65535, 2049}, {0x1.01p63, 0x1.000002p63, 65535, 2049}}},
        {TG_F16, {{INFINITY, INFINITY, INFINITY, 2048}, {INFINITY, INFINITY, INFINITY, 2048}}},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        for (int n = 0; n < 8; n++) {
            bool put = n & 4, wide = n & 2;
            if (put && !c->ops->put) continue;
            rounds_once_case(c, wide ? TG_U64 : TG_I64, wide ? u64 : i64, rows[k].to, rows[k].want[wide], n & 1, put);
        }
}

void contract_put_add(contract *c) {
    for (int k = 0; k < 120; k++) take_case(c, PUT_ADD, k % 3, k % 2, k % 5 == 0);
}

/* Of several values for one element the last remains. */
void contract_put(contract *c) {
    for (int k = 0; c->ops->put && k < 120; k++) take_case(c, PUT, k % 3, k % 2, k % 5 == 0);
}
