/* The contract of memory, map, casts, fill, iota and random. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "contract/device_contract.h"
#include "kernels/philox.h"
#include "kernels/scalar.h"

typedef struct dims {
    int n;
    int64_t size[TG_MAX_DIMS];
} dims;

static const dims shapes[] = {
    {0, {0}},
    {1, {1}},
    {1, {7}},
    {1, {1000}},
    {2, {3, 5}},
    {2, {1, 600}},
    {2, {67, 45}},
    {2, {40, 530}},
    {3, {4, 1, 9}},
    {3, {2, 33, 17}},
    {3, {5, 0, 3}},
    {4, {2, 3, 4, 20}},
    {8, {2, 1, 2, 3, 1, 2, 2, 3}},
    {2, {700, 2}},
    {2, {260, 260}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const tg_dtype floats[] = {TG_F32, TG_F64, TG_BF16, TG_F16};
static const tg_dtype whole[] = {TG_I64, TG_I32, TG_U8, TG_I8, TG_I16, TG_U16, TG_U32, TG_U64, TG_BOOL};
enum { WHOLE = sizeof whole / sizeof *whole };
/* Integers take integer parameters. */
static const double real_p[2] = {0.5, 1.25}, whole_p[2] = {1, 2};

static tg_array seen(mirror *m) {
    m->on.shape = m->shape;
    m->on.stride = m->stride;
    return m->on;
}

void contract_memory(contract *c) {
    char out[3] = "", *a = c->ops->alloc(c->ctx, 100, 64), *b = c->ops->alloc(c->ctx, 100, 64);
    void *event = NULL;
    contract_check(c, a && b && (uintptr_t)a % 64 == 0, "alloc: no memory or not aligned");
    c->ops->copy(c->ctx, a, "ab", 3, TG_COPY_FROM_HOST);
    c->ops->copy(c->ctx, b, a, 3, TG_COPY_DEVICE);
    contract_check(c, c->ops->event_record(c->ctx, &event) == TG_OK && event, "event_record makes an event");
    contract_check(c, c->ops->event_wait(c->ctx, event) == TG_OK, "event_wait");
    c->ops->copy(c->ctx, out, b, 3, TG_COPY_TO_HOST);
    contract_check(c, c->ops->sync(c->ctx) == TG_OK && !strcmp(out, "ab"), "copy there, across and back");
    c->ops->event_free(c->ctx, event);
    c->ops->free(c->ctx, a, 100);
    c->ops->free(c->ctx, b, 100);
}

/* The narrowest dtype that takes part decides how close the result must be. */
static tg_dtype coarsest(tg_dtype a, tg_dtype b) {
    static const int rank[TG_DTYPE_COUNT] = {[TG_F64] = 0, [TG_F32] = 1, [TG_F16] = 2, [TG_BF16] = 3};
    return rank[a] > rank[b] ? a : b;
}

/* Returns what an integer, whose value is x or the greatest of its dtype, becomes in a dtype to which it wraps. */
static double wrapped(tg_dtype to, double x) {
    bool most = x == 0x1p63 || x == 0x1p64; /* the greatest integers are rounded up to these as doubles */
    int64_t bits = most ? -1 : x < 0x1p63 ? (int64_t)x : (int64_t)(uint64_t)x;
    switch (to) {
    case TG_I64: return (double)bits;
    case TG_I32: return (double)(int32_t)(uint32_t)bits;
    case TG_I16: return (double)(int16_t)(uint16_t)bits;
    case TG_I8: return (double)(int8_t)(uint8_t)bits;
    case TG_U64: return x == 0x1p63 ? x : (double)(uint64_t)bits; /* that integer is of int64 */
    case TG_U32: return (double)(uint32_t)bits;
    case TG_U16: return (double)(uint16_t)bits;
    default: return (double)(uint8_t)bits;
    }
}

/* Tests one case of map with random shape, layouts and dtypes. */
static void map_case(contract *c, tg_formula f, const tg_dtype *in_types, int types, tg_dtype out_type, bool aliased) {
    int n = tg_formula_inputs(f);
    const dims *s = &shapes[contract_roll(c, SHAPES)];
    bool chooses = f == TG_FN_maximum || f == TG_FN_minimum; /* these add to no uint64 */
    bool add = contract_roll(c, 2) && out_type != TG_BOOL && !(out_type == TG_U64 && chooses);
    mirror in[4], out = contract_make(c, out_type, s->n, s->size, (layout)contract_roll(c, EXPANDED));
    tg_array a[4];
    const double *p = in_types >= whole && in_types < whole + WHOLE ? whole_p : real_p;
    tg_dtype tight = out_type == TG_F64 ? TG_F32 : out_type;
    bool all_f64 = true;
    for (int k = 0; k < n; k++) {
        tg_dtype type = aliased ? out_type : in_types[contract_roll(c, types)];
        all_f64 &= type == TG_F64;
        in[k] = contract_make(c, type, s->n, s->size, (layout)contract_roll(c, LAYOUTS));
        contract_push(c, &in[k]);
        a[k] = in[k].on;
    }
    contract_push(c, &out);
    double *want = malloc(sizeof *want * (size_t)(out.on.numel + 1));
    for (int64_t i = 0; i < out.on.numel; i++) {
        double x[4] = {0};
        for (int k = 0; k < n; k++) x[k] = contract_get(aliased && k == 0 ? &out : &in[k], i);
        want[i] = tg_formula_eval(f, x, p) + (add ? contract_get(&out, i) : 0);
    }
    for (int k = 0; k < n; k++) a[k] = seen(&in[k]);
    if (aliased) a[0] = seen(&out);
    tg_status status = c->ops->apply(c->ctx, f, seen(&out), a, n, p, add);
    contract_check(c, status == TG_OK, "map %s: status", tg_formula_name(f));
    contract_pull(c, &out);
    tg_dtype tolerance = all_f64 && out_type == TG_F64 ? TG_F64 : coarsest(tight, TG_F32);
    for (int64_t i = 0; i < out.on.numel; i++) {
        double got = contract_get(&out, i);
        bool ok = out_type > TG_F16 ? got == (out_type == TG_BOOL ? want[i] != 0 : wrapped(out_type, want[i]))
                                    : contract_close(tolerance, got, contract_rounded(out_type, want[i]));
        contract_check(c, ok, "map %s -> %s, %dd, add %d, element %lld: %g, expected %g", tg_formula_name(f),
                       tg_dtype_name(out_type), s->n, add, (long long)i, got, want[i]);
    }
    free(want);
    contract_drop(c, &out);
    for (int k = 0; k < n; k++) contract_drop(c, &in[k]);
}

void contract_map(contract *c) {
    for (tg_formula f = 0; f < tg_formula_count(); f++) {
        for (int k = 0; k < 4; k++) /* one dtype */
            for (int times = 0; times < 2; times++) map_case(c, f, &floats[k], 1, floats[k], false);
        for (int times = 0; times < 3; times++) /* any mixture of float dtypes */
            map_case(c, f, floats, 4, floats[contract_roll(c, 4)], false);
        map_case(c, f, whole, WHOLE, TG_F64, false);
    }
}

void contract_map_integer(contract *c) {
    for (tg_formula f = 0; f < TG_FN_abs_d; f++)
        for (int k = 0; k < WHOLE; k++) {
            map_case(c, f, whole, WHOLE, whole[k], false);
            map_case(c, f, &whole[k], 1, whole[k], false);
        }
}

void contract_map_aliased(contract *c) {
    for (tg_formula f = 0; f < tg_formula_count(); f++)
        for (int k = 0; k < 4; k++) map_case(c, f, NULL, 0, floats[k], true);
}

/* Numbers of uint64 that are equal as floats are compared exactly, whatever the output is. */
void contract_map_ranks(contract *c) {
    enum { N = 8 };
    static const uint64_t a[N] = {1, UINT64_MAX, UINT64_C(1) << 63, (UINT64_C(1) << 53) + 1, 16777217, 5, 0, 7};
    static const uint64_t b[N] = {2, UINT64_MAX - 1, (UINT64_C(1) << 63) - 1, UINT64_C(1) << 53, 16777216, 5, 1, 7};
    static const tg_dtype outs[] = {TG_F32, TG_F64, TG_BF16, TG_F16, TG_I64, TG_U64, TG_BOOL};
    const int64_t shape[] = {N};
    for (tg_formula f = TG_FN_eq; f <= TG_FN_ge; f++)
        for (size_t k = 0; k < sizeof outs / sizeof *outs; k++) {
            mirror x = contract_make(c, TG_U64, 1, shape, ROWS), y = contract_make(c, TG_U64, 1, shape, ROWS);
            mirror out = contract_make(c, outs[k], 1, shape, ROWS);
            memcpy(x.host, a, sizeof a);
            memcpy(y.host, b, sizeof b);
            contract_push(c, &x);
            contract_push(c, &y);
            contract_push(c, &out);
            const tg_array in[] = {seen(&x), seen(&y)};
            c->ops->apply(c->ctx, f, seen(&out), in, 2, real_p, false);
            contract_pull(c, &out);
            for (int i = 0; i < N; i++) {
                bool less = a[i] < b[i], same = a[i] == b[i];
                bool want = f == TG_FN_eq   ? same
                            : f == TG_FN_ne ? !same
                            : f == TG_FN_lt ? less
                            : f == TG_FN_le ? less || same
                            : f == TG_FN_gt ? !less && !same
                                            : !less;
                contract_check(c, contract_get(&out, i) == want, "map %s of u64 -> %s, element %d: expected %d",
                               tg_formula_name(f), tg_dtype_name(outs[k]), i, want);
            }
            contract_drop(c, &x);
            contract_drop(c, &y);
            contract_drop(c, &out);
        }
}

static const double cast_values[] = {
    0,
    -0.0,
    1,
    -1,
    0.5,
    1.5,
    2.5,
    -2.5,
    254.5,
    255,
    256,
    300,
    -300,
    65503,
    65504,
    65519,
    65520,
    65536,
    1e5,
    -1e5,
    6e-8,
    2.98e-8,
    3e-8,
    5.9604645e-8,
    6.1e-5,
    6.09e-5,
    1e-40,
    1e-45,
    7e-46,
    1.00390625,
    1.01171875,
    1.0009765625,
    1.0004882812,
    1.00048828125,
    1.00146484375,
    2147483647,
    2147483648.0,
    -2147483648.0,
    -3e9,
    1e18,
    9.3e18,
    -9.3e18,
    3.4028235e38,
    3.4028236e38,
    3.39e38,
    1e39,
    -1e300,
    INFINITY,
    -INFINITY,
    NAN,
    1.00390625000001,
    1.00048828125001,
    3.39615136e38,
    16777217,
    4097.5,
};
enum { CAST_VALUES = sizeof cast_values / sizeof *cast_values };

static void cast_case(contract *c, tg_dtype from, tg_dtype to) {
    mirror in = contract_make(c, from, 1, (int64_t[]){CAST_VALUES}, ROWS),
           out = contract_make(c, to, 1, in.shape, STRIDED);
    for (int i = 0; i < CAST_VALUES; i++) contract_set(&in, i, cast_values[i]);
    contract_push(c, &in);
    contract_push(c, &out);
    tg_array a = seen(&in);
    contract_check(c, c->ops->apply(c->ctx, TG_FN_id, seen(&out), &a, 1, real_p, false) == TG_OK, "cast: status");
    contract_pull(c, &out);
    bool wraps = from > TG_F16 && to > TG_F16 && to != TG_BOOL && to != from;
    for (int i = 0; i < CAST_VALUES; i++) {
        double x = contract_get(&in, i), got = contract_get(&out, i), want = contract_rounded(to, x);
        if (wraps) want = wrapped(to, x);
        contract_check(c, (got == want && signbit(got) == signbit(want)) || (got != got && want != want),
                       "cast %s -> %s of %.17g: %.17g, expected %.17g", tg_dtype_name(from), tg_dtype_name(to), x, got,
                       want);
    }
    contract_drop(c, &in);
    contract_drop(c, &out);
}

void contract_cast(contract *c) {
    for (tg_dtype from = TG_F32; from <= TG_BOOL; from++)
        for (tg_dtype to = TG_F32; to <= TG_BOOL; to++) cast_case(c, from, to);
}

void contract_fill(contract *c) {
    static const double fills[] = {0, 1, -0.75, 3, 1e10};
    for (tg_dtype t = TG_F32; t <= TG_BOOL; t++)
        for (int s = 0; s < SHAPES; s++)
            for (int f = 0; f < 6; f++) {
                mirror m = contract_make(c, t, shapes[s].n, shapes[s].size, (layout)contract_roll(c, EXPANDED));
                double start = t == TG_U8 || (t >= TG_U16 && t <= TG_U64) ? 1 : -3, step = t > TG_F16 ? 2 : 0.25;
                contract_push(c, &m);
                tg_status status =
                    f < 5 ? c->ops->fill(c->ctx, seen(&m), fills[f]) : c->ops->iota(c->ctx, seen(&m), start, step);
                contract_check(c, status == TG_OK, "fill or iota: status");
                contract_pull(c, &m);
                for (int64_t i = 0; i < m.on.numel; i++) {
                    double v = f < 5 ? fills[f] : start + (double)i * step, want = contract_rounded(t, v);
                    if (f == 5 && t > TG_F16 && t != TG_BOOL) want = wrapped(t, v);
                    contract_check(c, contract_get(&m, i) == want, "%s %s: %g, expected %g", f < 5 ? "fill" : "iota",
                                   tg_dtype_name(t), contract_get(&m, i), want);
                }
                contract_drop(c, &m);
            }
}

static double normal_of(const tg_rng *rng, uint64_t i) {
    double first = tg_philox_word(rng, i, 0), second = tg_philox_word(rng, i, 1);
    return sqrt(-2 * log((first + 0.5) * 0x1p-32)) * cos(2 * 3.14159265358979323846 * second * 0x1p-32);
}

/* Draw positions of any extents and strides: a plain stream, runs of consecutive draws, draws far apart. */
static tg_draws some_draws(contract *c) {
    static const int64_t extents[] = {1, 2, 3, 5, 16, 45, 700}, strides[] = {0, 1, 2, 64, 1000, (int64_t)1 << 33};
    tg_draws d = {.rng = {.seed = 0x123456789abcdef0u, .stream = 5}, .n = (int)contract_roll(c, TG_DRAW_DIGITS + 1)};
    d.rng.counter = 0xfffffff0u + (uint64_t)contract_roll(c, 7);
    if (contract_roll(c, 3) == 0) d.n = 0;
    for (int k = 0; k < d.n; k++) {
        d.extent[k] = extents[contract_roll(c, 7)];
        d.stride[k] = strides[contract_roll(c, 6)];
    }
    if (d.n && contract_roll(c, 3)) d.stride[d.n - 1] = 1;
    return d;
}

/* Gives the outermost digit of some draws of n elements a list of rows. */
static mirror some_rows(contract *c, tg_draws *d, int64_t n) {
    for (int k = 1; k < d->n; k++) n = (n + d->extent[k] - 1) / d->extent[k];
    mirror rows = contract_make(c, TG_I64, 1, &n, ROWS);
    for (int64_t i = 0; i < n; i++) contract_set(&rows, i, (double)contract_roll(c, 1000));
    contract_push(c, &rows);
    if (d->n && contract_roll(c, 2)) d->rows = rows.on.data;
    return rows;
}

/* Makes some draws those of a captured step, if the device records steps. *rng is the state from which they are now. */
static mirror some_row(contract *c, tg_draws *d, tg_rng *rng) {
    const int64_t three = 3, row[] = {77, 4, 1000};
    mirror m = contract_make(c, TG_I64, 1, &three, ROWS);
    for (int i = 0; i < 3; i++) contract_set(&m, i, (double)row[i]);
    contract_push(c, &m);
    *rng = d->rng;
    if (!c->ops->capture_begin || contract_roll(c, 2)) return m;
    d->captured = m.on.data;
    *rng = (tg_rng){77, d->rng.stream + 4, d->rng.counter + 1000};
    return m;
}

/* Returns the draw of position i, without rng.counter. */
static uint64_t draw_of(const tg_draws *d, const mirror *rows, int64_t i) {
    uint64_t at = 0;
    for (int k = d->n - 1; k >= 0; k--) {
        int64_t digit = k ? i % d->extent[k] : d->rows ? (int64_t)contract_get(rows, i) : i;
        at += (uint64_t)(digit * d->stride[k]);
        i /= d->extent[k];
    }
    return d->n ? at : (uint64_t)i;
}

static void random_case(contract *c, tg_random kind, tg_dtype t, const dims *s) {
    tg_draws draws = some_draws(c);
    tg_rng rng;
    int64_t n = 1;
    for (int k = 0; k < s->n; k++) n *= s->size[k];
    mirror rows = some_rows(c, &draws, n), row = some_row(c, &draws, &rng);
    mirror m = contract_make(c, t, s->n, s->size, (layout)contract_roll(c, EXPANDED));
    double a = t == TG_I64 ? 0 : -1, b = t == TG_I64 ? 10 : 2;
    contract_push(c, &m);
    contract_check(c, c->ops->random(c->ctx, kind, seen(&m), a, b, &draws) == TG_OK, "random: status");
    contract_pull(c, &m);
    for (int64_t i = 0; i < m.on.numel; i++) {
        uint64_t at = draw_of(&draws, &rows, i);
        double u = tg_uniform_of_words(tg_philox_word(&rng, at, 0), tg_philox_word(&rng, at, 1));
        double want = kind == TG_RANDOM_NORMAL ? a + b * normal_of(&rng, at) : a + (b - a) * u;
        double got = contract_get(&m, i);
        bool ok = t == TG_I64 ? got == trunc(want) : contract_close(t, got, want);
        contract_check(c, ok && (kind == TG_RANDOM_NORMAL || (got >= a && (t > TG_F64 || got < b))),
                       "random %s, draw %lld: %.9g, expected %.9g", tg_dtype_name(t), (long long)i, got, want);
    }
    contract_drop(c, &m);
    contract_drop(c, &rows);
    contract_drop(c, &row);
}

void contract_random(contract *c) {
    static const tg_rng zero = {0, 0, 0};
    contract_check(c,
                   tg_philox_word(&zero, 0, 0) == 0x6627e8d5u && tg_philox_word(&zero, 1, 0) == 0xe169c58du &&
                       tg_philox_word(&zero, 2, 0) == 0xbc57ac4cu && tg_philox_word(&zero, 3, 0) == 0x9b00dbd8u,
                   "Philox4x32-10's known answer for counter 0 and key 0");
    tg_philox_block b = tg_philox(~(uint64_t)0, ~(uint64_t)0, ~(uint64_t)0);
    contract_check(c, b.w[0] == 0x408f276du && b.w[1] == 0x41c83b0eu && b.w[2] == 0xa20bc7c6u && b.w[3] == 0x6d5451fdu,
                   "Philox4x32-10's known answer for all ones");
    b = tg_philox(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu);
    contract_check(c, b.w[0] == 0xd16cfe09u && b.w[1] == 0x94fdccebu && b.w[2] == 0x5001e420u && b.w[3] == 0x24126ea1u,
                   "Philox4x32-10's known answer for the digits of pi");
    for (int s = 0; s < SHAPES; s++)
        for (int k = 0; k < 4; k++) {
            random_case(c, TG_RANDOM_UNIFORM, floats[k], &shapes[s]);
            random_case(c, TG_RANDOM_NORMAL, floats[k], &shapes[s]);
        }
    random_case(c, TG_RANDOM_UNIFORM, TG_I64, &shapes[7]);
}
