/* The contract of attention and its gradient: groups, head sizes and dropout; masks, windows, padding, packing and
 * sinks, alone and together. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "contract/device_contract.h"
#include "kernels/philox.h"

enum { Q, K, V, OUT, GOUT, GQ, GK, GV, HEADS, MASK = HEADS, GMASK, SINK, GSINK, LENGTHS, STARTS_Q, STARTS_K, ARRAYS };

typedef struct attention_case {
    mirror m[ARRAYS], top, mass;
    bool has[ARRAYS];
    double *v[ARRAYS], *p, *keep; /* values; probabilities and dropout factors of one head, [sq, sk] */
    double *slope;                /* derivatives of its bounded scores */
    int64_t full[4], repeated[2][4]; /* shape of the mask after broadcasting; strides of the mask and its gradient */
    int64_t batch, heads, groups, sq, sk, dk, dv;
    tg_attention_args a;
    double slack;
} attention_case;

enum { EXTRAS = 96 };
/* Kinds: heads only; with masks, windows, lengths and sinks; with large scores; with a mask that all keys share,
 * over several tiles; heads only, with rows of whole chunks of 16 bytes, as kernels for tensor cores need them; with
 * the packed sequences of one rank under context parallelism. */
typedef enum kind_of_case { PLAIN, WITH_EXTRAS, FAR, ONE_COLUMN, IN_CHUNKS, PACKED } kind_of_case;

static const int64_t sizes[] = {1, 3, 8, 20, 32, 64, 65, 128, 200, 256};
static const int64_t lengths[] = {1, 2, 5, 16, 33, 64, 65, 100, 130};
static const int64_t sizes_in_chunks[] = {8, 40, 64, 128}, lengths_in_chunks[] = {60, 130, 200};

static int64_t pick(contract *c, const int64_t *from, int n) { return from[contract_roll(c, n)]; }

/* Rows grouped by heads, or heads grouped by rows as a projection writes them. */
static mirror make_heads(contract *c, tg_dtype t, int64_t b, int64_t h, int64_t s, int64_t d, bool in_chunks) {
    int64_t shape[4] = {b, h, s, d}, other[4] = {b, s, h, d}, stride;
    if (contract_roll(c, 2)) return contract_make(c, t, 4, shape, in_chunks || contract_roll(c, 2) ? ROWS : STRIDED);
    mirror m = contract_make(c, t, 4, other, in_chunks || contract_roll(c, 2) ? ROWS : SHIFTED);
    stride = m.stride[1];
    m.stride[1] = m.stride[2], m.shape[1] = h;
    m.stride[2] = stride, m.shape[2] = s;
    m.on.contiguous = false;
    return m;
}

/* Copies the mirror's values. */
static void keep_values(contract *c, attention_case *k, int i) {
    contract_push(c, &k->m[i]);
    k->has[i] = true;
    k->v[i] = malloc(sizeof(double) * (size_t)(k->m[i].on.numel + 1));
    for (int64_t j = 0; j < k->m[i].on.numel; j++) k->v[i][j] = contract_get(&k->m[i], j);
}

/* Returns a mask or its gradient in the form of the slot. */
static tg_array repeated(attention_case *k, int i) {
    tg_array a = k->m[i].on;
    a.shape = k->full;
    a.numel = k->full[0] * k->full[1] * k->full[2] * k->full[3];
    a.stride = k->repeated[i == GMASK];
    a.contiguous = false;
    for (int d = 0; d < 4; d++) k->repeated[i == GMASK][d] = k->m[i].shape[d] == 1 ? 0 : k->m[i].stride[d];
    return a;
}

static void make_mask(contract *c, attention_case *k, tg_dtype kind, const int64_t shape[4]) {
    int64_t odds = contract_roll(c, 5);
    k->m[MASK] = contract_make(c, kind, 4, shape, contract_roll(c, 2) ? ROWS : STRIDED);
    for (int64_t i = 0; i < k->m[MASK].on.numel; i++) {
        bool hides = contract_roll(c, 4) < odds;
        double v = (double)(contract_roll(c, 401) - 200) / 100;
        contract_set(&k->m[MASK], i, kind == TG_BOOL ? !hides : hides ? -(double)INFINITY : v);
    }
    keep_values(c, k, MASK);
    k->a.mask = repeated(k, MASK);
    if (kind == TG_BOOL) return;
    k->m[GMASK] = contract_make(c, kind, 4, shape, ROWS);
    keep_values(c, k, GMASK);
}

static void make_any_mask(contract *c, attention_case *k, tg_dtype t) {
    int64_t shape[4];
    tg_dtype kinds[] = {TG_BOOL, t, TG_F32}, kind = kinds[contract_roll(c, 3)];
    for (int d = 0; d < 4; d++) shape[d] = contract_roll(c, 3) ? k->full[d] : 1;
    make_mask(c, k, kind, shape);
}

static void make_sink(contract *c, attention_case *k, tg_dtype t) {
    tg_dtype kind = contract_roll(c, 2) ? t : TG_F32;
    for (int i = SINK; i <= GSINK; i++) {
        k->m[i] = contract_make(c, kind, 1, &k->heads, contract_roll(c, 2) ? ROWS : STRIDED);
        keep_values(c, k, i);
    }
    k->a.sink = k->m[SINK].on;
}

/* Makes starts: a vector for all batch entries, or a row for each of `rows` entries. */
static void make_starts(contract *c, attention_case *k, int i, int64_t total, int64_t sequences, int64_t rows) {
    const int64_t shape[2] = {rows, sequences + 1};
    k->m[i] = contract_make(c, TG_I64, rows ? 2 : 1, rows ? shape : shape + 1, ROWS);
    for (int64_t j = 0, at = 0; j < k->m[i].on.numel; j++) {
        int64_t s = j % (sequences + 1);
        at = s == 0 ? 0 : s == sequences ? total : at + contract_roll(c, total - at + 1);
        contract_set(&k->m[i], j, (double)at);
    }
    keep_values(c, k, i);
}

static void make_extents(contract *c, attention_case *k) {
    if (contract_roll(c, 2)) {
        int64_t sequences = 1 + contract_roll(c, 4), rows = contract_roll(c, 3) ? k->batch : 0;
        make_starts(c, k, STARTS_Q, k->sq, sequences, rows);
        make_starts(c, k, STARTS_K, k->sk, sequences, rows);
        k->a.starts_q = k->m[STARTS_Q].on;
        k->a.starts_k = k->m[STARTS_K].on;
        return;
    }
    k->m[LENGTHS] = contract_make(c, TG_I64, 1, &k->batch, contract_roll(c, 2) ? ROWS : STRIDED);
    for (int64_t b = 0; b < k->batch; b++) contract_set(&k->m[LENGTHS], b, (double)contract_roll(c, k->sk + 1));
    keep_values(c, k, LENGTHS);
    k->a.lengths = k->m[LENGTHS].on;
}

static void make_extras(contract *c, attention_case *k, tg_dtype t) {
    if (contract_roll(c, 2)) make_any_mask(c, k, t);
    if (contract_roll(c, 3) == 0) make_sink(c, k, t);
    if (contract_roll(c, 2)) make_extents(c, k);
    k->a.left_bound = contract_roll(c, 3) == 0, k->a.right_bound = contract_roll(c, 3) == 0;
    k->a.left = contract_roll(c, 2) ? contract_roll(c, 4) : contract_roll(c, k->sk + 1);
    k->a.right = contract_roll(c, 2) ? contract_roll(c, 4) : contract_roll(c, k->sk + 1);
    if (contract_roll(c, 3) == 0) k->a.shift = contract_roll(c, 3);
    if (contract_roll(c, 3) == 0) k->a.softcap = 0.25 * (double)(1 + contract_roll(c, 8));
}

/* Packs a long and a short sequence, whose keys are one block before the queries. The window hides all keys from the
 * last queries of the long one, but not from those of the short one, which lie in the same tile. */
static void pack_two(contract *c, attention_case *k) {
    const double starts[] = {0, 100, 102};
    for (int i = STARTS_Q; i <= STARTS_K; i++) {
        k->m[i] = contract_make(c, TG_I64, 1, (const int64_t[]){3}, ROWS);
        for (int j = 0; j < 3; j++) contract_set(&k->m[i], j, starts[j]);
        keep_values(c, k, i);
    }
    k->a.starts_q = k->m[STARTS_Q].on;
    k->a.starts_k = k->m[STARTS_K].on;
    k->a.left_bound = true, k->a.left = 30, k->a.shift = 1;
}

/* Makes scores of about 2^17, which float32 holds without rounding in any order of summation. */
static void go_far(contract *c, attention_case *k) {
    for (int i = Q; i <= K; i++) {
        for (int64_t j = 0; j < k->m[i].on.numel; j++) {
            k->v[i][j] = j % k->dk ? (double)(contract_roll(c, 17) - 8) / 8 : i == Q ? 256 : 512;
            contract_set(&k->m[i], j, k->v[i][j]);
        }
        contract_push(c, &k->m[i]);
    }
    k->a.scale = 1;
    k->slack *= 5;
}

/* Makes a case of dtype t, whose result has dtype `out`. Cases with more than heads are small, so that there can be
 * many. */
static void attention_make(contract *c, attention_case *k, tg_dtype t, tg_dtype out, kind_of_case kind) {
    bool small = kind == WITH_EXTRAS || kind == ONE_COLUMN || kind == PACKED;
    *k = (attention_case){.batch = 1 + contract_roll(c, 2), .groups = 1 + contract_roll(c, 2)};
    k->heads = k->groups * (1 + contract_roll(c, 3));
    k->sq = pick(c, lengths, 9), k->sk = contract_roll(c, 2) ? k->sq : pick(c, lengths, 9);
    if (kind == ONE_COLUMN) k->sq = 40, k->sk = 300;
    if (kind == PACKED) k->sq = k->sk = 102;
    if (kind == IN_CHUNKS) k->sq = pick(c, lengths_in_chunks, 3), k->sk = pick(c, lengths_in_chunks, 3);
    k->dk = pick(c, sizes, small ? 4 : 10), k->dv = contract_roll(c, 2) ? k->dk : pick(c, sizes, small ? 4 : 10);
    if (kind == IN_CHUNKS) k->dk = pick(c, sizes_in_chunks, 4), k->dv = pick(c, sizes_in_chunks, 4);
    k->slack = t == TG_F64 ? 1e-10 : t == TG_F32 ? 1e-4 : t == TG_F16 ? 1e-2 : 6e-2;
    memcpy(k->full, (int64_t[]){k->batch, k->heads, k->sq, k->sk}, sizeof k->full);
    for (int i = 0; i < HEADS; i++) {
        bool query = i == Q || i == OUT || i == GOUT || i == GQ, value = i == V || i == OUT || i == GOUT || i == GV;
        int64_t h = query ? k->heads : k->groups, s = query ? k->sq : k->sk;
        k->m[i] = make_heads(c, i == OUT ? out : t, k->batch, h, s, value ? k->dv : k->dk, kind == IN_CHUNKS);
        keep_values(c, k, i);
    }
    k->top = contract_make(c, t == TG_F64 ? TG_F64 : TG_F32, 3, (int64_t[]){k->batch, k->heads, k->sq}, ROWS);
    k->mass = contract_make(c, (tg_dtype)k->top.on.dtype, 3, k->full, ROWS);
    contract_push(c, &k->top);
    contract_push(c, &k->mass);
    k->p = calloc((size_t)(k->sq * k->sk), sizeof *k->p), k->keep = calloc((size_t)(k->sq * k->sk), sizeof *k->keep);
    k->slope = calloc((size_t)(k->sq * k->sk), sizeof *k->slope);
    k->a.q = k->m[Q].on, k->a.k = k->m[K].on, k->a.v = k->m[V].on, k->a.out = k->m[OUT].on;
    k->a.top = k->top.on, k->a.mass = k->mass.on;
    k->a.scale = 1 / sqrt((double)k->dk), k->a.causal = contract_roll(c, 2);
    k->a.dropout = contract_roll(c, 3) ? 0 : 0.3;
    k->a.draws.rng = (tg_rng){.seed = 5, .stream = 9, .counter = 0xffffffffu};
    if (kind == IN_CHUNKS) k->a.draws.rng.counter = 0xfffffffcu; /* a block of Philox has the draws of four keys */
    if (kind == WITH_EXTRAS) make_extras(c, k, t);
    if (kind == ONE_COLUMN) make_mask(c, k, t, (int64_t[]){1, 1, k->sq, 1});
    if (kind == FAR) go_far(c, k);
    if (kind == PACKED) pack_two(c, k);
}

static void attention_drop(contract *c, attention_case *k) {
    for (int i = 0; i < ARRAYS; i++) {
        free(k->v[i]);
        if (k->has[i]) contract_drop(c, &k->m[i]);
    }
    contract_drop(c, &k->top);
    contract_drop(c, &k->mass);
    free(k->p);
    free(k->keep);
    free(k->slope);
}

/* Returns the position in the mask or its gradient for a score; dims that are broadcast have one position. */
static int64_t place_in_mask(const attention_case *k, int64_t head, int64_t i, int64_t j) {
    const int64_t at[4] = {head / k->heads, head % k->heads, i, j}, *shape = k->m[MASK].shape;
    int64_t place = 0;
    for (int d = 0; d < 4; d++) place = place * shape[d] + (shape[d] == 1 ? 0 : at[d]);
    return place;
}

static bool sees(const attention_case *k, int64_t b, int64_t i, int64_t j) {
    int64_t place = i + k->sk - k->sq + k->a.shift * k->sq;
    if (k->has[STARTS_Q]) {
        int64_t first = k->m[STARTS_Q].on.ndim == 2 ? b * k->m[STARTS_Q].on.shape[1] : 0;
        const double *q = k->v[STARTS_Q] + first, *keys = k->v[STARTS_K] + first;
        int64_t s = 0;
        while (i >= (int64_t)q[s + 1]) s++;
        if (j < (int64_t)keys[s] || j >= (int64_t)keys[s + 1]) return false;
        place = i - (int64_t)q[s + 1] + (int64_t)keys[s + 1] + k->a.shift * (int64_t)(q[s + 1] - q[s]);
    }
    if (k->has[LENGTHS] && j >= (int64_t)k->v[LENGTHS][b]) return false;
    if (k->a.causal && j > place) return false;
    return !(k->a.right_bound && j > place + k->a.right) && !(k->a.left_bound && j < place - k->a.left);
}

/* Returns what is added to a score: -inf if the key is hidden. */
static double bias(const attention_case *k, int64_t head, int64_t i, int64_t j) {
    if (!sees(k, head / k->heads, i, j)) return -(double)INFINITY;
    if (!k->has[MASK]) return 0;
    double v = k->v[MASK][place_in_mask(k, head, i, j)];
    return k->m[MASK].on.dtype != TG_BOOL ? v : v != 0 ? 0 : -(double)INFINITY;
}

static double factor(const attention_case *k, int64_t position) {
    uint64_t number = tg_draw_number(&k->a.draws, position);
    tg_philox_block b = tg_philox(k->a.draws.rng.seed, number / 4, k->a.draws.rng.stream);
    return tg_uniform_of_word(b.w[number % 4]) >= (float)k->a.dropout ? 1 / (1 - k->a.dropout) : 0;
}

static const double *row(const attention_case *k, int which, int64_t head, int64_t i, int64_t n, int64_t d) {
    return k->v[which] + (head * n + i) * d;
}

/* Returns the score of a product, before its mask; *slope receives its derivative. */
static double bounded(const attention_case *k, double product, double *slope) {
    double cap = k->a.softcap, y = cap > 0 ? tanh(k->a.scale * product / cap) : 0;
    *slope = 1 - y * y;
    return cap > 0 ? cap * y : k->a.scale * product;
}

/* What the slots pass on for each row. */
typedef struct terms {
    double *top, *mass;
} terms;

static terms terms_new(const attention_case *k) {
    size_t n = (size_t)(k->top.on.numel + 1);
    return (terms){malloc(n * sizeof(double)), malloc(n * sizeof(double))};
}

static void terms_free(terms w) {
    free(w.top);
    free(w.mass);
}

/* Computes for one head of batch x heads, with its group's keys, the probabilities, the factors and the terms of its
 * rows. */
static void probabilities(attention_case *k, int64_t head, int64_t group, terms w) {
    double sink = k->has[SINK] ? k->v[SINK][head % k->heads] : -(double)INFINITY;
    for (int64_t i = 0; i < k->sq; i++) {
        const double *q = row(k, Q, head, i, k->sq, k->dk);
        double *p = k->p + i * k->sk, max = sink, sum = 0;
        for (int64_t j = 0; j < k->sk; j++) {
            const double *key = row(k, K, group, j, k->sk, k->dk);
            double product = 0;
            for (int64_t d = 0; d < k->dk; d++) product += q[d] * key[d];
            p[j] = bias(k, head, i, j) + bounded(k, product, &k->slope[i * k->sk + j]);
            if (p[j] > max) max = p[j];
            k->keep[i * k->sk + j] = k->a.dropout > 0 ? factor(k, (head * k->sq + i) * k->sk + j) : 1;
        }
        bool none = max == -(double)INFINITY;
        for (int64_t j = 0; j < k->sk; j++) sum += p[j] = none ? 0 : exp(p[j] - max);
        sum += none ? 0 : exp(sink - max);
        for (int64_t j = 0; j < k->sk; j++) p[j] = sum > 0 ? p[j] / sum : 0;
        w.top[head * k->sq + i] = max;
        w.mass[head * k->sq + i] = sum;
    }
}

static int64_t group_of(const attention_case *k, int64_t head) {
    return head / k->heads * k->groups + head % k->heads / (k->heads / k->groups);
}

static void forward_reference(attention_case *k, terms w) {
    for (int64_t head = 0; head < k->batch * k->heads; head++) {
        int64_t group = group_of(k, head);
        probabilities(k, head, group, w);
        for (int64_t i = 0; i < k->sq * k->dv; i++) {
            double sum = 0, *p = k->p + i / k->dv * k->sk, *keep = k->keep + i / k->dv * k->sk;
            for (int64_t j = 0; j < k->sk; j++) sum += p[j] * keep[j] * row(k, V, group, j, k->sk, k->dv)[i % k->dv];
            k->v[OUT][head * k->sq * k->dv + i] = sum;
        }
    }
}

static void check_heads(contract *c, const attention_case *k, mirror *m, const double *want, double slack,
                        const char *what) {
    contract_pull(c, m);
    if (m->on.dtype == TG_F32 && slack < 1e-6) slack = 1e-6; /* relative to float64 */
    for (int64_t i = 0; i < m->on.numel; i++) {
        double got = contract_get(m, i), w = want[i];
        contract_check(c, got == w || fabs(got - w) <= slack * (1 + fabs(w)),
                       "attention's %s, %s, batch %lld, heads %lld/%lld, %lld x %lld, sizes %lld and %lld, causal %d, "
                       "dropout %g, softcap %g, window %lld %lld, shift %lld, %s%s%s%s, element %lld: %.9g, "
                       "expected %.9g",
                       what, tg_dtype_name((tg_dtype)m->on.dtype), (long long)k->batch, (long long)k->heads,
                       (long long)k->groups, (long long)k->sq, (long long)k->sk, (long long)k->dk, (long long)k->dv,
                       k->a.causal, k->a.dropout, k->a.softcap, (long long)(k->a.left_bound ? k->a.left : -1),
                       (long long)(k->a.right_bound ? k->a.right : -1), (long long)k->a.shift,
                       k->has[MASK] ? "mask " : "",
                       k->has[SINK] ? "sink " : "", k->has[LENGTHS] ? "lengths " : "", k->has[STARTS_Q] ? "starts" : "",
                       (long long)i, got, w);
    }
}

/* The maximum score of a row that sees no key may be anything. */
static void check_terms(contract *c, attention_case *k, terms w) {
    double slack = k->top.on.dtype == TG_F64 ? k->slack : 2e-4;
    contract_pull(c, &k->top);
    for (int64_t i = 0; i < k->top.on.numel; i++)
        if (w.mass[i] == 0) w.top[i] = contract_get(&k->top, i);
    check_heads(c, k, &k->top, w.top, slack, "greatest score");
    check_heads(c, k, &k->mass, w.mass, slack, "sum of exponentials");
}

static void attention_forward_case(contract *c, tg_dtype t, kind_of_case kind) {
    attention_case k;
    int64_t bad = 0;
    tg_dtype wide = t == TG_F64 ? TG_F64 : TG_F32;
    attention_make(c, &k, t, contract_roll(c, 3) ? t : wide, kind);
    k.a.bad = &bad;
    terms w = terms_new(&k);
    forward_reference(&k, w);
    contract_check(c, c->ops->attention(c->ctx, &k.a) == TG_OK && bad == 0, "attention: status");
    check_heads(c, &k, &k.m[OUT], k.v[OUT], k.slack, "output");
    check_terms(c, &k, w);
    terms_free(w);
    attention_drop(c, &k);
}

void contract_attention(contract *c) {
    static const tg_dtype floats[] = {TG_F32, TG_F64, TG_BF16, TG_F16};
    for (int k = 0; c->ops->attention && k < 48; k++) attention_forward_case(c, floats[k % 4], PLAIN);
    for (int k = 0; c->ops->attention && k < EXTRAS; k++) attention_forward_case(c, floats[k % 4], WITH_EXTRAS);
    for (int k = 0; c->ops->attention && k < 8; k++) attention_forward_case(c, floats[k % 2], FAR);
    for (int k = 0; c->ops->attention && k < 12; k++) attention_forward_case(c, floats[2 + k % 2], IN_CHUNKS);
    for (int k = 0; c->ops->attention && k < 4; k++) attention_forward_case(c, floats[k], PACKED);
}

/* Adds the shares of one head to the gradients; p, keep and terms are those of this head. */
static void backward_reference(attention_case *k, int64_t head, int64_t group, terms w) {
    for (int64_t i = 0; i < k->sq; i++) {
        const double *gout = row(k, GOUT, head, i, k->sq, k->dv), *out = row(k, OUT, head, i, k->sq, k->dv);
        double delta = 0;
        for (int64_t d = 0; d < k->dv; d++) delta += gout[d] * out[d];
        double top = w.top[head * k->sq + i], mass = w.mass[head * k->sq + i];
        if (k->has[SINK]) k->v[GSINK][head % k->heads] -= exp(k->v[SINK][head % k->heads] - top) / mass * delta;
        for (int64_t j = 0; j < k->sk; j++) {
            double p = k->p[i * k->sk + j], keep = k->keep[i * k->sk + j], gp = 0;
            for (int64_t d = 0; d < k->dv; d++) {
                gp += gout[d] * row(k, V, group, j, k->sk, k->dv)[d];
                k->v[GV][(group * k->sk + j) * k->dv + d] += p * keep * gout[d];
            }
            double gs = p * (gp * keep - delta) * k->a.scale * k->slope[i * k->sk + j];
            if (k->has[GMASK]) k->v[GMASK][place_in_mask(k, head, i, j)] += p * (gp * keep - delta);
            for (int64_t d = 0; d < k->dk; d++) {
                k->v[GQ][(head * k->sq + i) * k->dk + d] += gs * row(k, K, group, j, k->sk, k->dk)[d];
                k->v[GK][(group * k->sk + j) * k->dk + d] += gs * row(k, Q, head, i, k->sq, k->dk)[d];
            }
        }
    }
}

/* Requests some of the gradients, written or added. */
static void want_gradients(contract *c, attention_case *k) {
    const int which[] = {GQ, GK, GV, GMASK, GSINK};
    tg_array *to[] = {&k->a.gq, &k->a.gk, &k->a.gv, &k->a.gmask, &k->a.gsink};
    bool *add[] = {&k->a.add_q, &k->a.add_k, &k->a.add_v, &k->a.add_mask, &k->a.add_sink};
    for (int i = 0; i < 5; i++) {
        mirror *m = &k->m[which[i]];
        if (!k->has[which[i]]) continue;
        if (contract_roll(c, 5)) *to[i] = which[i] == GMASK ? repeated(k, GMASK) : m->on;
        *add[i] = contract_roll(c, 2);
        for (int64_t j = 0; !*add[i] && j < m->on.numel; j++) k->v[which[i]][j] = 0;
    }
}

static void attention_grad_case(contract *c, tg_dtype t, kind_of_case kind) {
    attention_case k;
    attention_make(c, &k, t, t, kind);
    terms w = terms_new(&k);
    forward_reference(&k, w);
    for (int64_t i = 0; i < k.top.on.numel; i++) {
        contract_set(&k.top, i, w.top[i]);
        contract_set(&k.mass, i, w.mass[i]);
    }
    for (int64_t i = 0; i < k.m[OUT].on.numel; i++) contract_set(&k.m[OUT], i, k.v[OUT][i]);
    contract_push(c, &k.top);
    contract_push(c, &k.mass);
    contract_push(c, &k.m[OUT]);
    k.a.gout = k.m[GOUT].on;
    want_gradients(c, &k);
    for (int64_t head = 0; head < k.batch * k.heads; head++) {
        probabilities(&k, head, group_of(&k, head), w);
        backward_reference(&k, head, group_of(&k, head), w);
    }
    contract_check(c, c->ops->attention_grad(c->ctx, &k.a) == TG_OK, "attention_grad: status");
    double sums = kind == FAR ? 64 * k.slack : 2 * k.slack; /* terms that cancel, times 512 and 256 */
    if (k.a.gq.data) check_heads(c, &k, &k.m[GQ], k.v[GQ], sums, "gradient of queries");
    if (k.a.gk.data) check_heads(c, &k, &k.m[GK], k.v[GK], sums, "gradient of keys");
    if (k.a.gv.data) check_heads(c, &k, &k.m[GV], k.v[GV], 2 * k.slack, "gradient of values");
    if (k.a.gmask.data) check_heads(c, &k, &k.m[GMASK], k.v[GMASK], 4 * k.slack, "gradient of the mask");
    if (k.a.gsink.data) check_heads(c, &k, &k.m[GSINK], k.v[GSINK], 4 * k.slack, "gradient of the sink");
    terms_free(w);
    attention_drop(c, &k);
}

void contract_attention_grad(contract *c) {
    static const tg_dtype floats[] = {TG_F32, TG_F64, TG_BF16, TG_F16};
    for (int k = 0; c->ops->attention_grad && k < 48; k++) attention_grad_case(c, floats[k % 4], PLAIN);
    for (int k = 0; c->ops->attention_grad && k < EXTRAS; k++) attention_grad_case(c, floats[k % 4], WITH_EXTRAS);
    for (int k = 0; c->ops->attention_grad && k < 8; k++) attention_grad_case(c, floats[k % 2], FAR);
    for (int k = 0; c->ops->attention_grad && k < 4; k++) attention_grad_case(c, floats[k % 4], ONE_COLUMN);
    for (int k = 0; c->ops->attention_grad && k < 12; k++) attention_grad_case(c, floats[2 + k % 2], IN_CHUNKS);
    for (int k = 0; c->ops->attention_grad && k < 4; k++) attention_grad_case(c, floats[k], PACKED);
}
