/* Attention and its gradient, compared with loops over doubles that keep every score: blocks and their edges, causal
 * or not, grouped queries, dropout, other numbers of keys than of queries, interleaved heads. Scores that only float64
 * holds. A few queries at a time, compared with many. And composed attention on devices that are not the CPU. */
#include "check_main.h"
#include "fused_run.h"
#include "kernels/cpu/cpu.h"
#include "kernels/philox.h"

typedef struct shape {
    int64_t b, h, g, sq, sk, dk, dv;
    bool causal, add;
    double dropout;
    bool placed;
    double cap; /* of the scores; 0: none */
} shape;

/* Draw positions of a shard: 2 of 4 heads, and their queries in two chunks of 8. */
static tg_draws draws_of(const shape *c) {
    tg_draws d = {.rng = {.seed = 5, .stream = 2, .counter = 9}};
    if (!c->placed) return d;
    d.n = 4;
    int64_t e[] = {c->b, c->h, 2, c->sq / 2 * c->sk},
            s[] = {2 * c->h * 4 * c->sq * c->sk, 4 * c->sq * c->sk, 7 * c->sq / 2 * c->sk, 1};
    memcpy(d.extent, e, sizeof e);
    memcpy(d.stride, s, sizeof s);
    return d;
}

/* An operand [b, heads, s, d], stored as [s, b, heads, d] unless the layout says otherwise, like most operands of
 * attention. */
static array *heads(const bench *t, tg_dtype d, int64_t b, int64_t h, int64_t s, int64_t n) {
    array *x = ARRAY(d, t->layout, b, h, s, n);
    if (t->layout == ROWS) {
        x->stride[0] = h * n;
        x->stride[1] = n;
        x->stride[2] = b * h * n;
        x->a.contiguous = false;
    }
    return x;
}

/* Returns the index of element (i, j) of head (b, h). */
static int64_t at(const array *x, int64_t b, int64_t h, int64_t i, int64_t j) {
    return ((b * x->shape[1] + h) * x->shape[2] + i) * x->shape[3] + j;
}

static double dot(const array *x, int64_t xi, const array *y, int64_t yi, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += get(x, xi + d) * get(y, yi + d);
    return sum;
}

typedef struct problem {
    const shape *c;
    double scale;
    array *q, *k, *v, *gout;
    double *out, *top, *mass, *gq, *gk, *gv; /* expected */
} problem;

/* Returns the score of the query whose elements begin at qi with the key whose elements begin at kj. *slope receives
 * the derivative of its bound. */
static double score(const problem *m, int64_t qi, int64_t kj, double *slope) {
    double s = m->scale * dot(m->q, qi, m->k, kj, m->c->dk), y = m->c->cap > 0 ? tanh(s / m->c->cap) : 0;
    *slope = 1 - y * y;
    return m->c->cap > 0 ? m->c->cap * y : s;
}

/* Computes for row (b, h, i) the probabilities p[j], the dropout factors keep[j], the maximum score and the sum of
 * exponentials. */
static void probabilities(const problem *m, int64_t b, int64_t h, int64_t i, double *p, double *keep) {
    const shape *c = m->c;
    int64_t g = h / (c->h / c->g), row = ((b * c->h + h) * c->sq + i) * c->sk;
    double max = -INFINITY, sum = 0, slope;
    tg_draws draws = draws_of(c);
    for (int64_t j = 0; j < c->sk; j++) {
        bool seen = !c->causal || j <= i + c->sk - c->sq;
        p[j] = seen ? score(m, at(m->q, b, h, i, 0), at(m->k, b, g, j, 0), &slope) : -INFINITY;
        max = fmax(max, p[j]);
        bool kept =
            tg_philox_uniform(&draws.rng, tg_draw_number(&draws, row + j) - draws.rng.counter) >= (float)c->dropout;
        keep[j] = kept ? 1 / (1 - c->dropout) : 0;
    }
    for (int64_t j = 0; j < c->sk; j++)
        sum += p[j] == -INFINITY ? 0 : exp(p[j] - max);
    for (int64_t j = 0; j < c->sk; j++)
        p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - max) / sum;
    m->top[(b * c->h + h) * c->sq + i] = max;
    m->mass[(b * c->h + h) * c->sq + i] = sum;
}

static void reference_row(problem *m, int64_t b, int64_t h, int64_t i, double *p, double *keep, double *gp) {
    const shape *c = m->c;
    int64_t g = h / (c->h / c->g), gi = at(m->gout, b, h, i, 0);
    double sum = 0;
    probabilities(m, b, h, i, p, keep);
    for (int64_t j = 0; j < c->sk; j++) {
        int64_t vj = at(m->v, b, g, j, 0);
        gp[j] = keep[j] * dot(m->gout, gi, m->v, vj, c->dv);
        sum += p[j] * gp[j];
        for (int64_t d = 0; d < c->dv; d++) {
            m->out[gi + d] += p[j] * keep[j] * get(m->v, vj + d);
            m->gv[vj + d] += p[j] * keep[j] * get(m->gout, gi + d);
        }
    }
    for (int64_t j = 0; j < c->sk; j++) {
        double slope, gs = p[j] * (gp[j] - sum) * m->scale;
        score(m, at(m->q, b, h, i, 0), at(m->k, b, g, j, 0), &slope);
        gs *= slope;
        for (int64_t d = 0; d < c->dk; d++) {
            int64_t qi = at(m->q, b, h, i, d), kj = at(m->k, b, g, j, d);
            m->gq[qi] += gs * get(m->k, kj);
            m->gk[kj] += gs * get(m->q, qi);
        }
    }
}

static void reference(problem *m) {
    const shape *c = m->c;
    double *p = doubles(c->sk), *keep = doubles(c->sk), *gp = doubles(c->sk);
    for (int64_t b = 0; b < c->b; b++)
        for (int64_t h = 0; h < c->h; h++)
            for (int64_t i = 0; i < c->sq; i++)
                reference_row(m, b, h, i, p, keep, gp);
    free(p), free(keep), free(gp);
}

static array *gradient(const bench *t, const shape *c, const array *of) {
    array *g = heads(t, (tg_dtype)of->a.dtype, of->shape[0], of->shape[1], of->shape[2], of->shape[3]);
    return c->add ? fill_with(g, BEFORE) : g;
}

static double *doubles_of(const array *x, double v) {
    double *d = doubles(x->a.numel);
    for (int64_t i = 0; i < x->a.numel; i++)
        d[i] = v;
    return d;
}

static void run_shape(bench *t, const shape *c) {
    tg_dtype d = t->dtype;
    problem m = {.c = c, .scale = 0.5};
    m.q = fill_array(heads(t, d, c->b, c->h, c->sq, c->dk), 1);
    m.k = fill_array(heads(t, d, c->b, c->g, c->sk, c->dk), 2);
    m.v = fill_array(heads(t, d, c->b, c->g, c->sk, c->dv), 3);
    m.gout = fill_array(heads(t, d, c->b, c->h, c->sq, c->dv), 4);
    array *out = heads(t, d, c->b, c->h, c->sq, c->dv);
    array *top = ARRAY(wide(d), ROWS, c->b, c->h, c->sq), *mass = ARRAY(wide(d), ROWS, c->b, c->h, c->sq);
    array *gq = gradient(t, c, m.q), *gk = gradient(t, c, m.k), *gv = gradient(t, c, m.v);
    double before = c->add ? BEFORE : 0;
    m.out = doubles(m.gout->a.numel);
    m.top = doubles(top->a.numel);
    m.mass = doubles(mass->a.numel);
    m.gq = doubles_of(m.q, before);
    m.gk = doubles_of(m.k, before);
    m.gv = doubles_of(m.v, before);
    reference(&m);
    tg_attention_args a = {.q = m.q->a,
                           .k = m.k->a,
                           .v = m.v->a,
                           .out = out->a,
                           .top = top->a,
                           .mass = mass->a,
                           .scale = m.scale,
                           .dropout = c->dropout,
                           .softcap = c->cap,
                           .causal = c->causal,
                           .draws = draws_of(c),
                           .gout = m.gout->a,
                           .gq = gq->a,
                           .gk = gk->a,
                           .gv = gv->a,
                           .add_q = c->add,
                           .add_k = c->add,
                           .add_v = c->add};
    ck_assert_int_eq(t->ops->attention(t->ctx, &a), TG_OK);
    expect(t, out, m.out, "attention");
    for (int64_t i = 0; i < top->a.numel; i++)
        if (m.mass[i] == 0) m.top[i] = get(top, i); /* without a visible key it may be anything */
    expect(t, top, m.top, "attention top");
    expect(t, mass, m.mass, "attention mass");
    ck_assert_int_eq(t->ops->attention_grad(t->ctx, &a), TG_OK);
    expect(t, gq, m.gq, "attention_grad q");
    expect(t, gk, m.gk, "attention_grad k");
    expect(t, gv, m.gv, "attention_grad v");
    free(m.out), free(m.top), free(m.mass), free(m.gq), free(m.gk), free(m.gv);
    array_free(m.q), array_free(m.k), array_free(m.v), array_free(m.gout), array_free(out);
    array_free(top), array_free(mass);
    array_free(gq), array_free(gk), array_free(gv);
}

static void run_shapes(bench *t) {
    static const shape shapes[] = {
        {.b = 2, .h = 2, .g = 2, .sq = 5, .sk = 5, .dk = 8, .dv = 8, .causal = true},
        {.b = 1, .h = 2, .g = 1, .sq = 70, .sk = 70, .dk = 16, .dv = 16, .causal = true, .add = true},
        {.b = 1, .h = 2, .g = 1, .sq = 9, .sk = 130, .dk = 16, .dv = 32, .add = true},
        {.b = 17, .h = 1, .g = 1, .sq = 3, .sk = 4, .dk = 16, .dv = 5, .causal = true},
        {.b = 1, .h = 1, .g = 1, .sq = 1, .sk = 100, .dk = 7, .dv = 3, .causal = true},
        {.b = 1, .h = 2, .g = 2, .sq = 40, .sk = 9, .dk = 4, .dv = 4, .causal = true},
        {.b = 1, .h = 1, .g = 1, .sq = 66, .sk = 66, .dk = 8, .dv = 16, .causal = true, .dropout = 0.25},
        {.b = 2, .h = 2, .g = 1, .sq = 70, .sk = 66, .dk = 8, .dv = 8, .dropout = 0.5, .placed = true},
        {.b = 1, .h = 2, .g = 1, .sq = 70, .sk = 66, .dk = 8, .dv = 16, .causal = true, .cap = 0.3},
        {.b = 2, .h = 1, .g = 1, .sq = 9, .sk = 66, .dk = 8, .dv = 8, .add = true, .dropout = 0.5, .cap = 1},
        {.b = 1, .h = 2, .g = 2, .sq = 3, .sk = 0, .dk = 4, .dv = 4},
        {.b = 1, .h = 2, .g = 2, .sq = 0, .sk = 3, .dk = 4, .dv = 4, .causal = true},
        {.b = 0, .h = 2, .g = 2, .sq = 2, .sk = 3, .dk = 4, .dv = 4},
    };
    t->slack = 4; /* a 16-bit output is used in its own gradient */
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        run_shape(t, &shapes[i]);
}

START_TEST(attention) {
    run(run_shapes);
}
END_TEST

/* ---- Great numbers ---- */

/* The mask gives both scores the value -1e300, which only float64 holds, so each key has the probability 1/2. */
static void run_far(bench *t) {
    if (t->dtype != TG_F64) return;
    array *q = fill_with(ARRAY(TG_F64, t->layout, 1, 1, 1, 2), 1), *mask = ARRAY(TG_F64, t->layout, 1, 1, 1, 2);
    array *k = fill_array(ARRAY(TG_F64, t->layout, 1, 1, 2, 2), 1), *v = ARRAY(TG_F64, t->layout, 1, 1, 2, 2);
    array *out = ARRAY(TG_F64, t->layout, 1, 1, 1, 2), *gv = ARRAY(TG_F64, t->layout, 1, 1, 2, 2);
    array *top = ARRAY(TG_F64, ROWS, 1, 1, 1), *mass = ARRAY(TG_F64, ROWS, 1, 1, 1);
    fill_with(mask, -1e300);
    for (int i = 0; i < 4; i++) set(v, i, i + 1);
    tg_attention_args a = {.q = q->a, .k = k->a, .v = v->a, .out = out->a, .top = top->a, .mass = mass->a, .scale = 1,
                           .mask = mask->a, .gout = q->a, .gv = gv->a};
    ck_assert_int_eq(t->ops->attention(t->ctx, &a), TG_OK);
    expect(t, out, (const double[]){2, 3}, "attention");
    expect(t, top, (const double[]){-1e300}, "attention top");
    expect(t, mass, (const double[]){2}, "attention mass");
    ck_assert_int_eq(t->ops->attention_grad(t->ctx, &a), TG_OK);
    expect(t, gv, (const double[]){0.5, 0.5, 0.5, 0.5}, "attention_grad v");
    array_free(q), array_free(mask), array_free(k), array_free(v);
    array_free(out), array_free(gv), array_free(top), array_free(mass);
}

START_TEST(scores_may_be_beyond_float32) {
    run(run_far);
}
END_TEST

/* ---- Few queries ---- */

enum { QUERIES = 9, KEYS = 150 }; /* so many queries at once are not few */

/* Returns n queries of x [b, heads, QUERIES, ..], from `first` on. `shape` is memory for its shape. */
static tg_array part_of(const array *x, int64_t first, int64_t n, int64_t shape[4]) {
    tg_array a = x->a;
    memcpy(shape, x->shape, 4 * sizeof *shape);
    shape[2] = n;
    a.shape = shape;
    a.numel = a.numel / QUERIES * n;
    a.data = (char *)a.data + first * x->stride[2] * (tg_dtype_bits((tg_dtype)a.dtype) / 8);
    a.contiguous = false;
    return a;
}

/* Computes the output of QUERIES queries at once, in `all`, and of n at a time, in `parts`. */
static void attend_both(bench *t, const array *q, const array *k, const array *v, bool causal, int64_t n, array *all,
                        array *parts) {
    array *top = ARRAY(wide(t->dtype), ROWS, 2, 4, QUERIES), *mass = ARRAY(wide(t->dtype), ROWS, 2, 4, QUERIES);
    tg_attention_args a = {.q = q->a, .k = k->a, .v = v->a, .out = all->a, .top = top->a, .mass = mass->a,
                           .scale = 0.5, .softcap = 3, .causal = causal};
    ck_assert_int_eq(t->ops->attention(t->ctx, &a), TG_OK);
    for (int64_t i = 0; i < QUERIES; i += n) {
        int64_t shape[4][4];
        memcpy(shape[0], k->shape, sizeof shape[0]);
        memcpy(shape[1], v->shape, sizeof shape[1]);
        if (causal) shape[0][2] = shape[1][2] = KEYS - (QUERIES - n - i); /* the last query sees the last key */
        a.q = part_of(q, i, n, shape[2]), a.out = part_of(parts, i, n, shape[3]);
        a.k.shape = shape[0], a.v.shape = shape[1];
        a.k.contiguous = a.v.contiguous = false;
        a.top.shape = a.mass.shape = (const int64_t[]){2, 4, n};
        ck_assert_int_eq(t->ops->attention(t->ctx, &a), TG_OK);
    }
    array_free(top), array_free(mass);
}

static void run_few(bench *t) {
    if (t->ops == &composed) return;
    for (int c = 0; c < 5; c++) {
        /* The last one needs much memory for keys, and little for values. */
        int64_t keys = c < 4 ? KEYS : 8, dk = c < 4 ? 24 : 4096, dv = c < 4 ? 40 : 1;
        array *q = heads(t, t->dtype, 2, 4, QUERIES, dk), *k = heads(t, t->dtype, 2, 2, keys, dk);
        array *v = heads(t, t->dtype, 2, 2, keys, dv);
        array *all = heads(t, t->dtype, 2, 4, QUERIES, dv), *parts = heads(t, t->dtype, 2, 4, QUERIES, dv);
        fill_array(q, 1), fill_array(k, 2), fill_array(v, 3);
        attend_both(t, q, k, v, c % 2, c < 2 || c == 4 ? 1 : 3, all, parts);
        for (int64_t i = 0; i < all->a.numel; i++)
            ck_assert_msg(get(all, i) == get(parts, i), "output %lld is %.17g, expected %.17g as of many", (long long)i,
                          get(parts, i), get(all, i));
        array_free(q), array_free(k), array_free(v), array_free(all), array_free(parts);
    }
}

START_TEST(few_queries_have_the_bits_of_many) {
    run(run_few);
}
END_TEST

/* ---- Composed attention on other devices ---- */

static int64_t queued_length;

/* Completes the queued work: the one length becomes valid. */
static tg_status finish_length(tg_ctx *ctx) {
    queued_length = 1;
    return tg_cpu_device.sync(ctx);
}

/* Query and output are [1, 1, sq, dk] and [1, 1, sq, dv], and both keys and values are [1, 1, sk, ..]. All elements of
 * an array are the one at `data`. */
static tg_status attend_to_one(tg_ctx *ctx, float *data, int64_t sq, int64_t sk, int64_t dv, int64_t *bad) {
    static const int64_t none[4] = {0}, one[] = {1};
    const int64_t q[] = {1, 1, sq, 1}, k[] = {1, 1, sk, 1}, v[] = {1, 1, sk, dv}, out[] = {1, 1, sq, dv};
    tg_attention_args a = {.q = {data, q, none, sq, 4, TG_F32, false}, .k = {data, k, none, sk, 4, TG_F32, false},
                           .v = {data, v, none, sk * dv, 4, TG_F32, false}, .scale = 1, .bad = bad,
                           .out = {data + 1, out, none, sq * dv, 4, TG_F32, false},
                           .lengths = {&queued_length, one, one, 1, 1, TG_I64, true}};
    return tg_composed_attention(ctx, &a);
}

START_TEST(lengths_are_read_after_queued_work) {
    tg_device_ops ops = tg_cpu_device;
    float data[] = {3, 0};
    int64_t bad = 0;
    ops.sync = finish_length;
    queued_length = 7;
    tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
    ck_assert_int_eq(attend_to_one(ctx, data, 1, 1, 1, &bad), TG_OK);
    ck_assert_int_eq(bad, 0);
    ck_assert(data[1] == 3);
    tg_ctx_free(ctx);
}
END_TEST

/* The number of bytes of 2^64 scores does not fit into 64 bits. */
START_TEST(too_many_scores_are_refused) {
    float data[] = {3, 0};
    int64_t bad = 0, n = INT64_C(1) << 32;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cpu", .threads = 1));
    ck_assert_int_eq(attend_to_one(ctx, data, n, n, 0, &bad), TG_ERR_MEMORY);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "4294967296 queries and 4294967296 keys"), "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {attention, scores_may_be_beyond_float32, few_queries_have_the_bits_of_many,
                                  lengths_are_read_after_queued_work, too_many_scores_are_refused};
    return tg_check_main("attention", tests, sizeof tests / sizeof *tests);
}
