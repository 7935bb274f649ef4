/* The contract of attention and its gradient: masks, groups, head sizes and dropout. */
#include <math.h>
#include <stdlib.h>

#include "contract/device_contract.h"
#include "kernels/philox.h"

enum { Q, K, V, OUT, GOUT, GQ, GK, GV, ARRAYS };

typedef struct attention_case {
    mirror m[ARRAYS], lse;
    double *v[ARRAYS], *p, *keep; /* values; probabilities and dropout's factors of one head, [sq, sk] */
    int64_t batch, heads, groups, sq, sk, dk, dv;
    tg_attention_args a;
    double slack;
} attention_case;

static const int64_t sizes[] = {1, 3, 8, 20, 32, 64, 65, 128, 200, 256};
static const int64_t lengths[] = {1, 2, 5, 16, 33, 64, 65, 100, 130};

static int64_t pick(contract *c, const int64_t *from, int n) { return from[contract_roll(c, n)]; }

/* Rows by heads, or heads by rows as one projection writes them. */
static mirror make_heads(contract *c, tg_dtype t, int64_t b, int64_t h, int64_t s, int64_t d) {
    int64_t shape[4] = {b, h, s, d}, other[4] = {b, s, h, d}, stride;
    if (contract_roll(c, 2)) return contract_make(c, t, 4, shape, contract_roll(c, 2) ? ROWS : STRIDED);
    mirror m = contract_make(c, t, 4, other, contract_roll(c, 2) ? ROWS : SHIFTED);
    stride = m.stride[1];
    m.stride[1] = m.stride[2], m.shape[1] = h;
    m.stride[2] = stride, m.shape[2] = s;
    m.on.contiguous = false;
    return m;
}

static void attention_make(contract *c, attention_case *k, tg_dtype t) {
    *k = (attention_case){.batch = 1 + contract_roll(c, 2), .groups = 1 + contract_roll(c, 2)};
    k->heads = k->groups * (1 + contract_roll(c, 3));
    k->sq = pick(c, lengths, 9), k->sk = contract_roll(c, 2) ? k->sq : pick(c, lengths, 9);
    k->dk = pick(c, sizes, 10), k->dv = contract_roll(c, 2) ? k->dk : pick(c, sizes, 10);
    k->slack = t == TG_F64 ? 1e-10 : t == TG_F32 ? 1e-4 : t == TG_F16 ? 1e-2 : 6e-2;
    for (int i = 0; i < ARRAYS; i++) {
        bool query = i == Q || i == OUT || i == GOUT || i == GQ, value = i == V || i == OUT || i == GOUT || i == GV;
        int64_t h = query ? k->heads : k->groups, s = query ? k->sq : k->sk;
        k->m[i] = make_heads(c, t, k->batch, h, s, value ? k->dv : k->dk);
        contract_push(c, &k->m[i]);
        k->v[i] = malloc(sizeof(double) * (size_t)(k->m[i].on.numel + 1));
        for (int64_t j = 0; j < k->m[i].on.numel; j++) k->v[i][j] = contract_get(&k->m[i], j);
    }
    k->lse = contract_make(c, t == TG_F64 ? TG_F64 : TG_F32, 3, (int64_t[]){k->batch, k->heads, k->sq}, ROWS);
    contract_push(c, &k->lse);
    k->p = calloc((size_t)(k->sq * k->sk), sizeof *k->p), k->keep = calloc((size_t)(k->sq * k->sk), sizeof *k->keep);
    k->a.q = k->m[Q].on, k->a.k = k->m[K].on, k->a.v = k->m[V].on, k->a.out = k->m[OUT].on, k->a.lse = k->lse.on;
    k->a.scale = 1 / sqrt((double)k->dk), k->a.causal = contract_roll(c, 2);
    k->a.dropout = contract_roll(c, 3) ? 0 : 0.3;
    k->a.draws.rng = (tg_rng){.seed = 5, .stream = 9, .counter = 0xffffffffu};
}

static void attention_drop(contract *c, attention_case *k) {
    for (int i = 0; i < ARRAYS; i++) {
        free(k->v[i]);
        contract_drop(c, &k->m[i]);
    }
    contract_drop(c, &k->lse);
    free(k->p);
    free(k->keep);
}

static double factor(const attention_case *k, int64_t position) {
    uint64_t number = tg_draw_number(&k->a.draws, position);
    tg_philox_block b = tg_philox(k->a.draws.rng.seed, number / 4, k->a.draws.rng.stream);
    return tg_uniform_of_word(b.w[number % 4]) >= (float)k->a.dropout ? 1 / (1 - k->a.dropout) : 0;
}

static const double *row(const attention_case *k, int which, int64_t head, int64_t i, int64_t n, int64_t d) {
    return k->v[which] + (head * n + i) * d;
}

/* Of one head among batch x heads, and its group's keys: probabilities and factors; the log-sum-exps into lse. */
static void probabilities(attention_case *k, int64_t head, int64_t group, double *lse) {
    for (int64_t i = 0; i < k->sq; i++) {
        int64_t seen = k->a.causal ? i + 1 + k->sk - k->sq : k->sk;
        const double *q = row(k, Q, head, i, k->sq, k->dk);
        double *p = k->p + i * k->sk, max = -(double)INFINITY, sum = 0;
        for (int64_t j = 0; j < k->sk; j++) {
            const double *key = row(k, K, group, j, k->sk, k->dk);
            p[j] = 0;
            for (int64_t d = 0; d < k->dk; d++) p[j] += q[d] * key[d] * k->a.scale;
            if (j < seen && p[j] > max) max = p[j];
            k->keep[i * k->sk + j] = k->a.dropout > 0 ? factor(k, (head * k->sq + i) * k->sk + j) : 1;
        }
        for (int64_t j = 0; j < k->sk; j++) sum += p[j] = j < seen ? exp(p[j] - max) : 0;
        for (int64_t j = 0; j < k->sk; j++) p[j] = sum > 0 ? p[j] / sum : 0;
        lse[i] = sum > 0 ? max + log(sum) : -(double)INFINITY;
    }
}

static int64_t group_of(const attention_case *k, int64_t head) {
    return head / k->heads * k->groups + head % k->heads / (k->heads / k->groups);
}

static void forward_reference(attention_case *k, double *lse) {
    for (int64_t head = 0; head < k->batch * k->heads; head++) {
        int64_t group = group_of(k, head);
        probabilities(k, head, group, lse + head * k->sq);
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
    for (int64_t i = 0; i < m->on.numel; i++) {
        double got = contract_get(m, i), w = want[i];
        contract_check(c, got == w || fabs(got - w) <= slack * (1 + fabs(w)),
                       "attention's %s, %s, heads %lld/%lld, %lld x %lld, sizes %lld and %lld, causal %d, dropout %g, "
                       "element %lld: %.9g, expected %.9g",
                       what, tg_dtype_name((tg_dtype)m->on.dtype), (long long)k->heads, (long long)k->groups,
                       (long long)k->sq, (long long)k->sk, (long long)k->dk, (long long)k->dv, k->a.causal,
                       k->a.dropout, (long long)i, got, w);
    }
}

static void attention_forward_case(contract *c, tg_dtype t) {
    attention_case k;
    attention_make(c, &k, t);
    double *lse = malloc(sizeof *lse * (size_t)(k.lse.on.numel + 1));
    forward_reference(&k, lse);
    contract_check(c, c->ops->attention(c->ctx, &k.a) == TG_OK, "attention: status");
    check_heads(c, &k, &k.m[OUT], k.v[OUT], k.slack, "output");
    check_heads(c, &k, &k.lse, lse, t == TG_F64 ? k.slack : 1e-4, "log-sum-exp");
    free(lse);
    attention_drop(c, &k);
}

void contract_attention(contract *c) {
    static const tg_dtype floats[] = {TG_F32, TG_F64, TG_BF16, TG_F16};
    for (int k = 0; c->ops->attention && k < 48; k++) attention_forward_case(c, floats[k % 4]);
}

/* Adds a head's shares to gq, gk and gv, which p and keep are made for. */
static void backward_reference(attention_case *k, int64_t head, int64_t group) {
    for (int64_t i = 0; i < k->sq; i++) {
        const double *gout = row(k, GOUT, head, i, k->sq, k->dv), *out = row(k, OUT, head, i, k->sq, k->dv);
        double delta = 0;
        for (int64_t d = 0; d < k->dv; d++) delta += gout[d] * out[d];
        for (int64_t j = 0; j < k->sk; j++) {
            double p = k->p[i * k->sk + j], keep = k->keep[i * k->sk + j], gp = 0;
            for (int64_t d = 0; d < k->dv; d++) {
                gp += gout[d] * row(k, V, group, j, k->sk, k->dv)[d];
                k->v[GV][(group * k->sk + j) * k->dv + d] += p * keep * gout[d];
            }
            double gs = p * (gp * keep - delta) * k->a.scale;
            for (int64_t d = 0; d < k->dk; d++) {
                k->v[GQ][(head * k->sq + i) * k->dk + d] += gs * row(k, K, group, j, k->sk, k->dk)[d];
                k->v[GK][(group * k->sk + j) * k->dk + d] += gs * row(k, Q, head, i, k->sq, k->dk)[d];
            }
        }
    }
}

static void attention_grad_case(contract *c, tg_dtype t) {
    attention_case k;
    attention_make(c, &k, t);
    double *lse = malloc(sizeof *lse * (size_t)(k.lse.on.numel + 1));
    forward_reference(&k, lse);
    for (int64_t i = 0; i < k.lse.on.numel; i++) contract_set(&k.lse, i, lse[i]);
    for (int64_t i = 0; i < k.m[OUT].on.numel; i++) contract_set(&k.m[OUT], i, k.v[OUT][i]);
    contract_push(c, &k.lse);
    contract_push(c, &k.m[OUT]);
    tg_array *to[] = {&k.a.gout, &k.a.gq, &k.a.gk, &k.a.gv};
    bool *add[] = {NULL, &k.a.add_q, &k.a.add_k, &k.a.add_v};
    for (int i = 0; i < 4; i++) {
        bool wanted = i == 0 || contract_roll(c, 5);
        if (wanted) *to[i] = k.m[GOUT + i].on;
        if (add[i]) *add[i] = contract_roll(c, 2);
        for (int64_t j = 0; add[i] && !*add[i] && j < k.m[GOUT + i].on.numel; j++) k.v[GOUT + i][j] = 0;
    }
    for (int64_t head = 0; head < k.batch * k.heads; head++) {
        probabilities(&k, head, group_of(&k, head), lse + head * k.sq);
        backward_reference(&k, head, group_of(&k, head));
    }
    contract_check(c, c->ops->attention_grad(c->ctx, &k.a) == TG_OK, "attention_grad: status");
    if (k.a.gq.data) check_heads(c, &k, &k.m[GQ], k.v[GQ], 2 * k.slack, "gradient of queries");
    if (k.a.gk.data) check_heads(c, &k, &k.m[GK], k.v[GK], 2 * k.slack, "gradient of keys");
    if (k.a.gv.data) check_heads(c, &k, &k.m[GV], k.v[GV], 2 * k.slack, "gradient of values");
    free(lse);
    attention_drop(c, &k);
}

void contract_attention_grad(contract *c) {
    static const tg_dtype floats[] = {TG_F32, TG_F64, TG_BF16, TG_F16};
    for (int k = 0; c->ops->attention_grad && k < 48; k++) attention_grad_case(c, floats[k % 4]);
}
