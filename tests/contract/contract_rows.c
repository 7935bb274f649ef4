/* The contract of softmax, norm and cross-entropy, and of their gradients. */
#include <math.h>
#include <stdlib.h>
#include <tapegrad/device.h>

#include "contract/device_contract.h"

static const tg_dtype floats[] = {TG_F32, TG_F64, TG_BF16, TG_F16};
static const int64_t lengths[] = {1, 3, 8, 30, 64, 100, 256, 700, 1024, 1030, 4096, 9000, 12000};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static double slack_of(tg_dtype t) { return t == TG_F64 ? 1e-11 : t == TG_F32 ? 4e-5 : t == TG_F16 ? 4e-3 : 3e-2; }

static mirror random_rows(contract *c, tg_dtype t, int64_t rows, int64_t n, bool out) {
    int64_t shape[3] = {2, rows, n};
    bool plain = contract_roll(c, 2);
    mirror m = contract_make(c, t, 3, shape, plain ? ROWS : (layout)contract_roll(c, LAYOUTS));
    if (out && m.stride[0] == 0) {
        contract_drop(c, &m);
        m = contract_make(c, t, 3, shape, ROWS);
    }
    return m;
}

/* Returns the values of m as they were pushed. */
static double *values(const mirror *m) {
    double *v = malloc(sizeof *v * (size_t)(m->on.numel + 1));
    for (int64_t i = 0; i < m->on.numel; i++) v[i] = contract_get(m, i);
    return v;
}

/* Compares m with want, which is freed. If old is not NULL it has the earlier values, to which want is added. */
static void check_values(contract *c, mirror *m, double *want, const double *old, double slack, const char *what) {
    contract_pull(c, m);
    for (int64_t i = 0; i < m->on.numel; i++) {
        double w = want[i] + (old ? old[i] : 0), got = contract_get(m, i);
        bool ok = w != w ? got != got : got == w || fabs(got - w) <= slack * (1 + fabs(w));
        contract_check(c, ok, "%s, %s, rows of %lld, layout strides %lld %lld, element %lld: %.9g, expected %.9g", what,
                       tg_dtype_name((tg_dtype)m->on.dtype), (long long)m->shape[m->on.ndim - 1],
                       (long long)m->stride[0], (long long)m->stride[m->on.ndim - 1], (long long)i, got, w);
    }
    free(want);
}

/* ---- Softmax ---- */

static double log_sum_exp(const double *x, int64_t n) {
    double max = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) max = x[j] > max ? x[j] : max;
    for (int64_t j = 0; j < n; j++) sum += exp(x[j] - max);
    return max + log(sum);
}

/* Numbers from 2^17 on, which float32 represents in steps of 1/64. */
enum { FAR = 1 << 17 };

static void go_far(mirror *m) {
    for (int64_t i = 0; i < m->on.numel; i++) {
        double v = contract_get(m, i);
        if (v < FAR / 2) contract_set(m, i, FAR + floor(v * 64) / 64); /* else it is a repeated element */
    }
}

/* Replaces rows of x by their softmax or its logarithm. */
static void softmax_reference(double *x, int64_t rows, int64_t n, bool log) {
    for (int64_t r = 0; r < rows; r++, x += n) {
        double z = log_sum_exp(x, n);
        for (int64_t j = 0; j < n; j++) x[j] = log ? x[j] - z : exp(x[j] - z);
    }
}

enum { NAN_IN_ROW = 1, ALMOST_ALL_HIDDEN, ALL_HIDDEN, ALL_FAR };

static void softmax_case(contract *c, int64_t n, tg_dtype t, bool log, int special) {
    int64_t rows = 1 + contract_roll(c, n > 2000 ? 2 : 9);
    mirror x = random_rows(c, t, rows, n, false), y = random_rows(c, t, rows, n, true);
    if (special == NAN_IN_ROW) contract_set(&x, contract_roll(c, n), (double)NAN);
    for (int64_t j = 0; (special == ALMOST_ALL_HIDDEN || special == ALL_HIDDEN) && j < n; j++)
        contract_set(&x, j, special == ALMOST_ALL_HIDDEN && j == n / 2 ? -500 : -(double)INFINITY);
    if (special == ALL_FAR) go_far(&x);
    contract_push(c, &x);
    contract_push(c, &y);
    double *want = values(&x);
    softmax_reference(want, 2 * rows, n, log);
    contract_check(c, c->ops->softmax(c->ctx, y.on, x.on, log) == TG_OK, "softmax: status");
    check_values(c, &y, want, NULL, slack_of(t), log ? "log-softmax" : "softmax");
    contract_drop(c, &x);
    contract_drop(c, &y);
}

void contract_softmax(contract *c) {
    for (int k = 0; c->ops->softmax && k < 8 * LENGTHS; k++)
        softmax_case(c, lengths[k / 8], floats[k % 4], k / 4 % 2, contract_roll(c, 3) ? 0 : (int)contract_roll(c, 4));
    for (int k = 0; c->ops->softmax && k < 2 * LENGTHS; k++) softmax_case(c, lengths[k / 2], TG_F32, k % 2, ALL_FAR);
}

static void softmax_grad_case(contract *c, int64_t n, tg_dtype t, bool log, bool add) {
    int64_t rows = 1 + contract_roll(c, n > 2000 ? 2 : 9);
    mirror y = random_rows(c, t, rows, n, false), gy = random_rows(c, t, rows, n, false),
           gx = random_rows(c, t, rows, n, true), *all[] = {&y, &gy, &gx};
    for (int k = 0; k < 3; k++) contract_push(c, all[k]);
    double *p = values(&y), *g = values(&gy), *want = values(&gx), *old = values(&gx);
    for (int64_t r = 0; r < 2 * rows; r++) {
        double sum = 0;
        for (int64_t j = r * n; j < r * n + n; j++) sum += log ? g[j] : g[j] * p[j];
        for (int64_t j = r * n; j < r * n + n; j++) want[j] = log ? g[j] - exp(p[j]) * sum : p[j] * (g[j] - sum);
    }
    contract_check(c, c->ops->softmax_grad(c->ctx, gx.on, gy.on, y.on, log, add) == TG_OK, "softmax_grad: status");
    check_values(c, &gx, want, add ? old : NULL, slack_of(t) * sqrt((double)n), "gradient of softmax");
    free(p);
    free(g);
    free(old);
    for (int k = 0; k < 3; k++) contract_drop(c, all[k]);
}

void contract_softmax_grad(contract *c) {
    for (int k = 0; c->ops->softmax_grad && k < 8 * LENGTHS; k++)
        softmax_grad_case(c, lengths[k / 8], floats[k % 4], k / 4 % 2, contract_roll(c, 2));
}

/* ---- Norms ---- */

enum { X, W, B, Y, MEAN, RSTD, GY, GX, GW, GB, ARRAYS };

typedef struct norm_case {
    mirror m[ARRAYS];
    double *v[ARRAYS]; /* earlier values */
    tg_norm_args a;
    int64_t rows, n;
    double slack;
} norm_case;

static norm_case norm_make(contract *c, int64_t n, tg_dtype t) {
    norm_case k = {.rows = 2 * contract_roll(c, n > 2000 ? 3 : 40), .n = n, .slack = 4 * slack_of(t)};
    tg_dtype weights = contract_roll(c, 2) ? t : t == TG_F64 ? TG_F64 : TG_F32, stats = t == TG_F64 ? TG_F64 : TG_F32;
    for (int i = 0; i < ARRAYS; i++) {
        bool row = i == MEAN || i == RSTD, column = i == W || i == B || i == GW || i == GB;
        int64_t shape[2] = {2, k.rows / 2};
        k.m[i] = row      ? contract_make(c, stats, 2, shape, ROWS)
                 : column ? contract_make(c, weights, 1, &n, contract_roll(c, 2) ? ROWS : STRIDED)
                          : random_rows(c, t, k.rows / 2, n, i == Y || i == GX);
        for (int64_t j = 0; i == RSTD && j < k.rows; j++) contract_set(&k.m[i], j, 0.2 + (double)(j % 7));
        k.v[i] = values(&k.m[i]);
    }
    k.a.eps = 1e-3, k.a.rms = contract_roll(c, 2);
    return k;
}

static void norm_push(contract *c, norm_case *k) {
    tg_array *to[ARRAYS] = {&k->a.x,    &k->a.w,  &k->a.b,  &k->a.y,  &k->a.mean,
                            &k->a.rstd, &k->a.gy, &k->a.gx, &k->a.gw, &k->a.gb};
    const bool may_lack[ARRAYS] = {[W] = true, [B] = true, [GX] = true, [GW] = true, [GB] = true};
    for (int i = 0; i < ARRAYS; i++) {
        contract_push(c, &k->m[i]);
        if (!may_lack[i] || contract_roll(c, 4)) *to[i] = k->m[i].on;
    }
}

static void norm_drop(contract *c, norm_case *k) {
    for (int i = 0; i < ARRAYS; i++) {
        free(k->v[i]);
        contract_drop(c, &k->m[i]);
    }
}

static void norm_forward_case(contract *c, int64_t n, tg_dtype t) {
    norm_case k = norm_make(c, n, t);
    norm_push(c, &k);
    double *y = values(&k.m[Y]), *mean = values(&k.m[MEAN]), *rstd = values(&k.m[RSTD]);
    for (int64_t r = 0; r < k.rows; r++) {
        double m = 0, s = 0, *x = k.v[X] + r * n;
        for (int64_t j = 0; !k.a.rms && j < n; j++) m += x[j] / (double)n;
        for (int64_t j = 0; j < n; j++) s += (x[j] - m) * (x[j] - m) / (double)n;
        rstd[r] = 1 / sqrt(s + k.a.eps);
        if (!k.a.rms) mean[r] = m;
        for (int64_t j = 0; j < n; j++)
            y[r * n + j] =
                (x[j] - m) * rstd[r] * (k.a.w.data ? k.v[W][j] : 1) + (k.a.b.data ? k.v[B][j] : 0);
    }
    contract_check(c, c->ops->norm(c->ctx, &k.a) == TG_OK, "norm: status");
    check_values(c, &k.m[Y], y, NULL, k.slack, "norm");
    check_values(c, &k.m[MEAN], mean, NULL, slack_of((tg_dtype)k.m[MEAN].on.dtype), "norm's mean");
    check_values(c, &k.m[RSTD], rstd, NULL, slack_of((tg_dtype)k.m[RSTD].on.dtype), "norm's rstd");
    norm_drop(c, &k);
}

void contract_norm(contract *c) {
    for (int k = 0; c->ops->norm && k < 8 * LENGTHS; k++) norm_forward_case(c, lengths[k / 8], floats[k % 4]);
}

static void norm_grad_case(contract *c, int64_t n, tg_dtype t) {
    norm_case k = norm_make(c, n, t);
    norm_push(c, &k);
    k.a.add_x = contract_roll(c, 2), k.a.add_w = contract_roll(c, 2), k.a.add_b = contract_roll(c, 2);
    double *gx = values(&k.m[GX]), *gw = calloc((size_t)n, sizeof *gw), *gb = calloc((size_t)n, sizeof *gb);
    for (int64_t r = 0; r < k.rows; r++) {
        double sum = 0, dot = 0, m = k.a.rms ? 0 : k.v[MEAN][r], s = k.v[RSTD][r], *x = k.v[X] + r * n;
        const double *gy = k.v[GY] + r * n;
        for (int64_t j = 0; j < n; j++) {
            double g = gy[j] * (k.a.w.data ? k.v[W][j] : 1), h = (x[j] - m) * s;
            sum += k.a.rms ? 0 : g / (double)n;
            dot += g * h / (double)n;
            gw[j] += gy[j] * h;
            gb[j] += gy[j];
        }
        for (int64_t j = 0; j < n; j++)
            gx[r * n + j] = s * (gy[j] * (k.a.w.data ? k.v[W][j] : 1) - sum - (x[j] - m) * s * dot);
    }
    contract_check(c, c->ops->norm_grad(c->ctx, &k.a) == TG_OK, "norm_grad: status");
    for (int64_t j = 0; j < n; j++) {
        gw[j] = k.a.gw.data ? gw[j] + (k.a.add_w ? k.v[GW][j] : 0) : k.v[GW][j];
        gb[j] = k.a.gb.data ? gb[j] + (k.a.add_b ? k.v[GB][j] : 0) : k.v[GB][j];
    }
    for (int64_t i = 0; i < k.m[GX].on.numel; i++)
        gx[i] = k.a.gx.data ? gx[i] + (k.a.add_x ? k.v[GX][i] : 0) : k.v[GX][i];
    check_values(c, &k.m[GX], gx, NULL, 4 * k.slack, "norm's gradient");
    check_values(c, &k.m[GW], gw, NULL, 4 * k.slack, "norm's gradient by the weight");
    check_values(c, &k.m[GB], gb, NULL, 4 * k.slack, "norm's gradient by the bias");
    norm_drop(c, &k);
}

void contract_norm_grad(contract *c) {
    for (int k = 0; c->ops->norm_grad && k < 8 * LENGTHS; k++) norm_grad_case(c, lengths[k / 8], floats[k % 4]);
}

/* ---- Cross-entropy ---- */

typedef struct entropy_case {
    mirror logits, target, loss, top, mass, gloss, glogits;
    tg_cross_entropy_args a;
    int64_t rows, n, classes;
    int64_t bad;
} entropy_case;

static mirror class_rows(contract *c, tg_dtype t, int64_t rows, int64_t n) {
    static const layout some[] = {ROWS, ROWS, SHIFTED};
    return contract_make(c, t, 2, (int64_t[]){rows, n}, some[contract_roll(c, 3)]);
}

static void entropy_make(contract *c, entropy_case *k, int64_t n, tg_dtype t, bool shard, bool far) {
    tg_dtype stats = t == TG_F64 ? TG_F64 : TG_F32;
    *k = (entropy_case){.rows = 1 + contract_roll(c, n > 2000 ? 3 : 30), .n = n};
    k->classes = shard ? n + 1 + contract_roll(c, 20) : n;
    k->a.first = shard ? contract_roll(c, k->classes - n + 1) : 0;
    k->a.classes = shard ? k->classes : 0;
    k->a.ignore_index = -100, k->a.smoothing = contract_roll(c, 2) ? 0.1 : 0, k->a.bad = &k->bad;
    k->a.add = contract_roll(c, 2);
    k->logits = class_rows(c, t, k->rows, n), k->glogits = class_rows(c, contract_roll(c, 2) ? t : stats, k->rows, n);
    k->target = contract_make(c, TG_I64, 1, &k->rows, ROWS), k->loss = contract_make(c, stats, 1, &k->rows, ROWS);
    k->top = contract_make(c, stats, 1, &k->rows, ROWS), k->mass = contract_make(c, stats, 1, &k->rows, ROWS);
    if (far) go_far(&k->logits);
    k->gloss = contract_make(c, stats, 1, &k->rows, STRIDED);
    for (int64_t r = 0; r < k->rows; r++)
        contract_set(&k->target, r, contract_roll(c, 5) ? (double)contract_roll(c, k->classes) : -100);
    tg_array *to[] = {&k->a.logits, &k->a.target, &k->a.loss, &k->a.top, &k->a.mass, &k->a.gloss, &k->a.glogits};
    mirror *from[] = {&k->logits, &k->target, &k->loss, &k->top, &k->mass, &k->gloss, &k->glogits};
    for (int i = 0; i < 7; i++) {
        contract_push(c, from[i]);
        *to[i] = from[i]->on;
    }
}

static void entropy_drop(contract *c, entropy_case *k) {
    mirror *all[] = {&k->logits, &k->target, &k->loss, &k->top, &k->mass, &k->gloss, &k->glogits};
    for (int i = 0; i < 7; i++) contract_drop(c, all[i]);
}

static void entropy_forward_case(contract *c, int64_t n, tg_dtype t, bool shard, bool far) {
    entropy_case k;
    entropy_make(c, &k, n, t, shard, far);
    double *x = values(&k.logits), *target = values(&k.target), *loss = values(&k.loss);
    double *top = values(&k.top), *mass = values(&k.mass);
    for (int64_t r = 0; r < k.rows; r++) {
        int64_t at = (int64_t)target[r] - k.a.first;
        double sum = 0, s = k.a.smoothing, lse = log_sum_exp(x + r * n, n);
        top[r] = x[r * n];
        for (int64_t j = 0; j < n; j++) top[r] = fmax(top[r], x[r * n + j]);
        mass[r] = exp(lse - top[r]);
        double from = shard ? top[r] : lse;
        for (int64_t j = 0; j < n; j++) sum += from - x[r * n + j];
        loss[r] = s * sum / (double)k.classes;
        if (at >= 0 && at < n) loss[r] += (1 - s) * (from - x[r * n + at]);
        if (target[r] == -100) loss[r] = 0;
    }
    contract_check(c, c->ops->cross_entropy(c->ctx, &k.a) == TG_OK, "cross_entropy: status");
    check_values(c, &k.top, top, NULL, 0, "cross-entropy's greatest logit");
    check_values(c, &k.mass, mass, NULL, slack_of((tg_dtype)k.mass.on.dtype), "cross-entropy's sum of exponentials");
    check_values(c, &k.loss, loss, NULL, slack_of((tg_dtype)k.loss.on.dtype), "cross-entropy");
    free(x);
    free(target);
    entropy_drop(c, &k);
}

void contract_cross_entropy(contract *c) {
    for (int k = 0; c->ops->cross_entropy && k < 8 * LENGTHS; k++)
        entropy_forward_case(c, lengths[k / 8], floats[k % 4], k / 4 % 2, false);
    for (int k = 0; c->ops->cross_entropy && k < 2 * LENGTHS; k++)
        entropy_forward_case(c, lengths[k / 2], TG_F32, k % 2, true);
}

static void entropy_grad_case(contract *c, int64_t n, tg_dtype t, bool shard, bool in_place, bool far) {
    entropy_case k;
    entropy_make(c, &k, n, t, shard, far);
    mirror *out = in_place ? &k.logits : &k.glogits;
    if (in_place) k.a.glogits = k.logits.on, k.a.add = false;
    double *x = values(&k.logits), *target = values(&k.target), *g = values(&k.gloss);
    double *top = values(&k.top), *mass = values(&k.mass);
    double *want = values(out), *old = values(out), s = k.a.smoothing;
    for (int64_t i = 0; i < k.rows * n; i++) {
        int64_t r = i / n;
        double hit = (double)(i % n + k.a.first) == target[r] ? 1 - s : 0;
        want[i] = target[r] == -100 ? 0 : (exp(x[i] - top[r]) / mass[r] - hit - s / (double)k.classes) * g[r];
    }
    contract_check(c, c->ops->cross_entropy_grad(c->ctx, &k.a) == TG_OK, "cross_entropy_grad: status");
    check_values(c, out, want, k.a.add ? old : NULL, 2 * slack_of(t), "cross-entropy's gradient");
    free(x);
    free(target);
    free(top);
    free(mass);
    free(g);
    free(old);
    entropy_drop(c, &k);
}

void contract_cross_entropy_grad(contract *c) {
    for (int k = 0; c->ops->cross_entropy_grad && k < 8 * LENGTHS; k++)
        entropy_grad_case(c, lengths[k / 8], floats[k % 4], k / 4 % 2, contract_roll(c, 3) == 0, false);
    for (int k = 0; c->ops->cross_entropy_grad && k < 2 * LENGTHS; k++)
        entropy_grad_case(c, lengths[k / 2], TG_F32, k % 2, false, true);
}
