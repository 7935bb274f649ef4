/* The optional slots of a host device, and their compositions, compared with naive loops over doubles: every dtype and
 * layout, odd sizes, writing over NaN, adding, and equal bits for 1 and 2 threads. */
#include "check_main.h"
#include "fused_run.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/stream.h"
#include "kernels/philox.h"

/* ---- Softmax ---- */

static double row_lse(const array *x, int64_t r, int64_t n) {
    double m = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++)
        m = fmax(m, get(x, r * n + i));
    for (int64_t i = 0; i < n; i++)
        s += exp(get(x, r * n + i) - m);
    return m + log(s);
}

static void softmax_case(bench *t, int64_t rows, int64_t n, bool log, bool add) {
    array *x = fill_array(ARRAY(t->dtype, t->layout, 2, rows, n), 1);
    array *gy = fill_array(ARRAY(t->dtype, t->layout, 2, rows, n), 2);
    array *y = output(t, false, t->dtype, x), *gx = output(t, add, t->dtype, x);
    double *want = doubles(x->a.numel);
    if (rows && n > 2)
        set(x, n / 2, -INFINITY);
    for (int64_t r = 0; r < 2 * rows; r++) {
        double z = row_lse(x, r, n);
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            want[i] = log ? get(x, i) - z : exp(get(x, i) - z);
    }
    ck_assert_int_eq(t->ops->softmax(t->ctx, y->a, x->a, log), TG_OK);
    expect(t, y, want, "softmax");
    if (log && rows && n > 2)
        set(y, n / 2, -9);
    for (int64_t r = 0; r < 2 * rows; r++) {
        double sum = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            sum += log ? get(gy, i) : get(gy, i) * get(y, i);
        for (int64_t i = r * n; i < (r + 1) * n; i++)
            want[i] = (add ? BEFORE : 0) +
                      (log ? get(gy, i) - exp(get(y, i)) * sum : get(y, i) * (get(gy, i) - sum));
    }
    ck_assert_int_eq(t->ops->softmax_grad(t->ctx, gx->a, gy->a, y->a, log, add), TG_OK);
    expect(t, gx, want, "softmax_grad");
    free(want);
    array_free(x), array_free(gy), array_free(y), array_free(gx);
}

static void softmax_cases(bench *t) {
    static const int64_t sizes[][2] = {{0, 5}, {3, 0}, {1, 1}, {90, 7}, {2, 1023}, {1, 2100}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int v = 0; v < 4; v++)
            softmax_case(t, sizes[i][0], sizes[i][1], v & 1, v & 2);
}

START_TEST(softmax) {
    run(softmax_cases);
}
END_TEST

/* A row of -inf gives NaN, like 0/0. A NaN makes only its own row NaN. */
static void softmax_special(bench *t) {
    for (int64_t n = 5; n <= 1500; n += 1495) {
        array *x = fill_with(ARRAY(t->dtype, t->layout, 3, n), 1), *y = output(t, false, t->dtype, x);
        double *want = doubles(3 * n);
        for (int64_t i = 0; i < n; i++) {
            set(x, i, -INFINITY);
            want[i] = want[n + i] = NAN;
            want[2 * n + i] = 1.0 / (double)n;
        }
        set(x, n + n - 1, NAN);
        ck_assert_int_eq(t->ops->softmax(t->ctx, y->a, x->a, false), TG_OK);
        expect(t, y, want, "softmax of special values");
        free(want);
        array_free(x), array_free(y);
    }
}

START_TEST(softmax_of_special_values) {
    run(softmax_special);
}
END_TEST

/* ---- Norms ---- */

typedef struct norm_case {
    int64_t rows, n;
    bool rms, w, b, add;
} norm_case;

/* want: expected y, gx, gw, gb. */
static void norm_reference(const norm_case *c, const tg_norm_args *a, const array *x, const array *gy, const array *w,
                           const array *b, double *want[4]) {
    int64_t n = c->n;
    for (int64_t r = 0; r < c->rows; r++) {
        double mean = 0, var = 0, g_sum = 0, gh_sum = 0;
        for (int64_t i = 0; i < n; i++)
            mean += c->rms ? 0 : get(x, r * n + i) / (double)n;
        for (int64_t i = 0; i < n; i++)
            var += pow(get(x, r * n + i) - mean, 2) / (double)n;
        double rstd = 1 / sqrt(var + a->eps);
        for (int64_t i = 0; i < n; i++) {
            double h = (get(x, r * n + i) - mean) * rstd, g = get(gy, r * n + i) * (w ? get(w, i) : 1);
            want[0][r * n + i] = h * (w ? get(w, i) : 1) + (b ? get(b, i) : 0);
            want[2][i] += get(gy, r * n + i) * h;
            want[3][i] += get(gy, r * n + i);
            g_sum += c->rms ? 0 : g / (double)n;
            gh_sum += g * h / (double)n;
        }
        for (int64_t i = 0; i < n; i++) {
            double h = (get(x, r * n + i) - mean) * rstd, g = get(gy, r * n + i) * (w ? get(w, i) : 1);
            want[1][r * n + i] += rstd * (g - g_sum - h * gh_sum);
        }
    }
}

static void run_norm(bench *t, const norm_case *c) {
    tg_dtype d = t->dtype, acc = wide(d);
    array *x = fill_array(ARRAY(d, t->layout, c->rows, c->n), 1);
    array *gy = fill_array(ARRAY(d, t->layout, c->rows, c->n), 2);
    array *w = c->w ? fill_array(ARRAY(d, t->layout == STRIDED ? STRIDED : ROWS, c->n), 3) : NULL;
    array *b = c->b ? fill_array(ARRAY(d, ROWS, c->n), 4) : NULL, *y = output(t, false, d, x);
    array *gx = output(t, c->add, d, x), *mean = ARRAY(acc, ROWS, c->rows), *rstd = ARRAY(acc, ROWS, c->rows);
    array *gw = w ? output(t, c->add, acc, w) : NULL, *gb = b ? output(t, c->add, acc, b) : NULL;
    tg_norm_args a = {.x = x->a, .y = y->a, .mean = mean->a, .rstd = rstd->a, .gy = gy->a, .gx = gx->a, .eps = 1e-5,
                      .rms = c->rms, .add_x = c->add, .add_w = c->add, .add_b = c->add};
    double *want[4] = {doubles(x->a.numel), doubles(x->a.numel), doubles(c->n), doubles(c->n)};
    for (int k = 1; c->add && k < 4; k++)
        for (int64_t i = 0; i < (k == 1 ? x->a.numel : c->n); i++)
            want[k][i] = BEFORE;
    if (w) {
        a.w = w->a;
        a.gw = gw->a;
    }
    if (b) {
        a.b = b->a;
        a.gb = gb->a;
    }
    norm_reference(c, &a, x, gy, w, b, want);
    ck_assert_int_eq(t->ops->norm(t->ctx, &a), TG_OK);
    expect(t, y, want[0], "norm");
    ck_assert_int_eq(t->ops->norm_grad(t->ctx, &a), TG_OK);
    expect(t, gx, want[1], "norm_grad x");
    if (w)
        expect(t, gw, want[2], "norm_grad w");
    if (b)
        expect(t, gb, want[3], "norm_grad b");
    for (int k = 0; k < 4; k++)
        free(want[k]);
    array_free(x), array_free(gy), array_free(w), array_free(b), array_free(y), array_free(gx);
    array_free(mean), array_free(rstd), array_free(gw), array_free(gb);
}

static void norm_cases(bench *t) {
    static const norm_case cases[] = {
        {3, 8, false, true, true, false}, {70, 33, false, true, true, true},   {2, 1500, false, true, true, false},
        {5, 40, true, true, false, false}, {90, 17, true, true, false, true}, {4, 9, false, false, false, false},
        {0, 6, false, true, true, false}, {3, 1, false, true, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        run_norm(t, &cases[i]);
}

START_TEST(norm) {
    run(norm_cases);
}
END_TEST

/* Rows that begin at cache lines. */
static array *rows_on_lines(tg_dtype d, int64_t rows, int64_t n) {
    array *x = ARRAY(d, ROWS, rows, n);
    free(x->a.data);
    ck_assert_int_eq(posix_memalign(&x->a.data, TG_STREAM_LINE, x->bytes), 0);
    memset(x->a.data, 0xff, x->bytes);
    return x;
}

/* An output that is written past the caches has the same bits in its rows as one that is not, including the rest of
 * a tile. */
static void large_norm(bench *t) {
    enum { N = 1024 + TG_STREAM_LINE, FEW = 3 }; /* a tile and a rest */
    int64_t rows = TG_STREAM_FROM / (N * tg_dtype_bits(t->dtype) / 8) + 1;
    if (t->layout != ROWS || (t->dtype != TG_F32 && t->dtype != TG_F64) || t->ops == &composed)
        return;
    array *x = rows_on_lines(t->dtype, rows, N), *y = rows_on_lines(t->dtype, rows, N);
    array *w = fill_array(ARRAY(t->dtype, ROWS, N), 2), *few = rows_on_lines(t->dtype, FEW, N);
    tg_norm_args a = {.x = fill_array(x, 1)->a, .w = w->a, .b = w->a, .y = y->a, .eps = 1e-5};
    ck_assert(tg_streams(y->a.data, (int64_t)y->bytes, (int64_t)few->bytes / FEW));
    ck_assert_int_eq(t->ops->norm(t->ctx, &a), TG_OK);
    for (int64_t from = 0; from <= rows - FEW; from += (rows - FEW) / 2) {
        size_t at = (size_t)from * few->bytes / FEW;
        tg_norm_args part = a;
        part.x = part.y = few->a;
        part.x.data = (char *)x->a.data + at;
        ck_assert_int_eq(t->ops->norm(t->ctx, &part), TG_OK);
        ck_assert(!memcmp((char *)y->a.data + at, few->a.data, few->bytes));
    }
    array_free(x), array_free(w), array_free(y), array_free(few);
}

START_TEST(norm_past_the_caches) {
    run(large_norm);
}
END_TEST

/* ---- Cross-entropy ---- */

typedef struct entropy_case {
    int64_t rows, n;
    double smoothing;
    bool add, in_place, masked;
} entropy_case;

enum { IGNORED = -100 };

/* Returns the loss of row r, or element i of its gradient. */
static double entropy_loss(const array *x, int64_t r, int64_t n, int64_t target, double s) {
    double z = row_lse(x, r, n), mean = 0;
    for (int64_t i = 0; i < n; i++)
        mean += (z - get(x, r * n + i)) / (double)n;
    return (1 - s) * (z - get(x, r * n + target)) + (s != 0 ? s * mean : 0);
}

static void entropy_reference(const entropy_case *c, const array *x, const array *target, double g, double *loss,
                              double *gx) {
    int64_t n = c->n;
    for (int64_t r = 0; r < c->rows; r++) {
        int64_t k = (int64_t)get(target, r);
        bool counts = k >= 0 && k < n;
        double z = row_lse(x, r, n);
        loss[r] = counts ? entropy_loss(x, r, n, k, c->smoothing) : 0;
        for (int64_t i = 0; i < n; i++) {
            double p = exp(get(x, r * n + i) - z) - c->smoothing / (double)n - (i == k ? 1 - c->smoothing : 0);
            gx[r * n + i] = (c->add ? BEFORE : 0) + (counts ? p * g : 0);
        }
    }
}

static void run_entropy(bench *t, const entropy_case *c) {
    tg_dtype acc = wide(t->dtype);
    array *x = fill_array(ARRAY(t->dtype, ROWS, c->rows, c->n), 1), *target = ARRAY(TG_I64, ROWS, c->rows);
    array *loss = ARRAY(acc, ROWS, c->rows), *gloss = ARRAY(acc, ROWS, c->rows);
    array *top = ARRAY(acc, ROWS, c->rows), *mass = ARRAY(acc, ROWS, c->rows);
    array *gx = array_new(t->dtype, ROWS, 2, x->shape);
    double *want_loss = doubles(c->rows), *want_gx = doubles(x->a.numel);
    int64_t bad = 0;
    for (int64_t r = 0; r < c->rows; r++)
        set(target, r, r % 5 == 2 ? IGNORED : (double)(r * 7 % c->n));
    if (c->rows > 4) {
        set(target, 3, (double)c->n);
        set(target, 4, -1);
    }
    for (int64_t i = 0; c->masked && i < x->a.numel; i++) /* a class, the target, and two rows, one ignored */
        if (i == 1 || i == c->n + 7 % c->n || i >= 2 * c->n) set(x, i, -INFINITY);
    gloss->stride[0] = 0; /* one value for all rows, like the gradient of a mean */
    gloss->a.contiguous = false;
    if (c->rows)
        set(gloss, 0, 0.25);
    if (c->add)
        fill_with(gx, BEFORE);
    tg_cross_entropy_args a = {.logits = x->a, .target = target->a, .loss = loss->a, .top = top->a, .mass = mass->a,
                               .bad = &bad, .ignore_index = IGNORED, .smoothing = c->smoothing, .gloss = gloss->a,
                               .glogits = c->in_place ? x->a : gx->a, .add = c->add};
    entropy_reference(c, x, target, 0.25, want_loss, want_gx);
    ck_assert_int_eq(t->ops->cross_entropy(t->ctx, &a), TG_OK);
    ck_assert_int_eq(bad, c->rows > 4 ? 4 : 0);
    expect(t, loss, want_loss, "cross_entropy");
    ck_assert_int_eq(t->ops->cross_entropy_grad(t->ctx, &a), TG_OK);
    expect(t, c->in_place ? x : gx, want_gx, "cross_entropy_grad");
    free(want_loss), free(want_gx);
    array_free(x), array_free(target), array_free(loss), array_free(gloss), array_free(gx);
    array_free(top), array_free(mass);
}

/* Returns how much the part of a row's loss from columns [first, last) changes if its maximum is `by` above theirs. */
static double lowered(const array *target, int64_t r, int64_t first, int64_t last, int64_t n, double s, double by) {
    double k = get(target, r), weight = s * (double)(last - first) / (double)n;
    if (k >= (double)first && k < (double)last) weight += 1 - s;
    return weight != 0 ? weight * by : 0;
}

/* The columns of a vocabulary in two shards, the second of which may be empty. The parts of the loss and of the
 * log-sum-exp combine to what the slot computes on the whole, and so do the gradients. */
static void run_shards(bench *t, int64_t rows, int64_t n, int64_t cut, double s) {
    tg_dtype acc = wide(t->dtype);
    array *x = fill_array(ARRAY(t->dtype, ROWS, rows, n), 1), *target = ARRAY(TG_I64, ROWS, rows);
    array *gx = ARRAY(t->dtype, ROWS, rows, n), *gloss = ARRAY(acc, ROWS, rows), *of_all = ARRAY(acc, ROWS, rows);
    array *one = ARRAY(acc, ROWS, rows);
    array *loss[2] = {ARRAY(acc, ROWS, rows), ARRAY(acc, ROWS, rows)};
    array *top[2] = {ARRAY(acc, ROWS, rows), ARRAY(acc, ROWS, rows)};
    array *mass[2] = {ARRAY(acc, ROWS, rows), ARRAY(acc, ROWS, rows)};
    double *want_loss = doubles(rows), *want_gx = doubles(rows * n), bad_target = s > 0 ? (double)INT64_MIN : (double)n;
    for (int64_t r = 0; r < rows; r++) set(target, r, r == 2 ? IGNORED : r == 3 ? bad_target : (double)(r * 7 % n));
    fill_with(gloss, 0.25);
    fill_with(one, 1);
    entropy_reference(&(entropy_case){.rows = rows, .n = n, .smoothing = s}, x, target, 0.25, want_loss, want_gx);
    for (int k = 0; k < 2; k++) {
        int64_t bad = 0, shape[2] = {rows, k ? n - cut : cut}, numel = rows * shape[1];
        size_t skip = (size_t)(k ? cut : 0) * (size_t)tg_dtype_bits(t->dtype) / 8;
        tg_array part = {(char *)x->a.data + skip, shape, x->stride, numel, 2, (uint8_t)t->dtype, false};
        tg_cross_entropy_args a = {.logits = part,
                                   .target = target->a,
                                   .loss = loss[k]->a,
                                   .top = top[k]->a,
                                   .mass = mass[k]->a,
                                   .bad = &bad,
                                   .ignore_index = IGNORED,
                                   .smoothing = s,
                                   .first = k ? cut : 0,
                                   .classes = n};
        ck_assert_int_eq(t->ops->cross_entropy(t->ctx, &a), TG_OK);
        ck_assert_int_eq(bad, rows > 3 ? 4 : 0);
        a.top = of_all->a, a.mass = one->a;
        a.gloss = gloss->a, a.glogits = part, a.glogits.data = (char *)gx->a.data + skip;
        for (int64_t r = 0; r < rows; r++) set(of_all, r, row_lse(x, r, n));
        ck_assert_int_eq(t->ops->cross_entropy_grad(t->ctx, &a), TG_OK);
    }
    for (int64_t r = 0; r < rows; r++) {
        double most = fmax(get(top[0], r), get(top[1], r)), sum = 0, all = 0;
        for (int k = 0; k < 2; k++) {
            sum += get(mass[k], r) * exp(get(top[k], r) - most);
            all += get(loss[k], r);
            if (r != 2 && r != 3) all += lowered(target, r, k ? cut : 0, k ? n : cut, n, s, most - get(top[k], r));
        }
        set(loss[0], r, r == 2 || r == 3 ? all : log(sum) + all);
    }
    expect(t, loss[0], want_loss, "cross_entropy of shards");
    expect(t, gx, want_gx, "cross_entropy_grad of shards");
    free(want_loss), free(want_gx);
    array_free(x), array_free(target), array_free(gx), array_free(gloss), array_free(of_all), array_free(one);
    for (int k = 0; k < 2; k++) array_free(loss[k]), array_free(top[k]), array_free(mass[k]);
}

/* A shard whose logits are all -inf only makes the loss of its targets infinite. */
static void run_masked_shard(bench *t, double s) {
    enum { N = 6 };
    tg_dtype acc = wide(t->dtype);
    array *x = fill_with(ARRAY(t->dtype, ROWS, 2, N), -INFINITY), *target = ARRAY(TG_I64, ROWS, 2);
    array *loss = ARRAY(acc, ROWS, 2), *top = ARRAY(acc, ROWS, 2), *mass = ARRAY(acc, ROWS, 2);
    int64_t bad = 0;
    set(target, 0, N + 1), set(target, 1, 2 * N);
    tg_cross_entropy_args a = {.logits = x->a, .target = target->a, .loss = loss->a, .top = top->a, .mass = mass->a,
                               .bad = &bad, .ignore_index = IGNORED, .smoothing = s, .first = N, .classes = 3 * N};
    ck_assert_int_eq(t->ops->cross_entropy(t->ctx, &a), TG_OK);
    expect(t, loss, (const double[]){INFINITY, s != 0 ? INFINITY : 0}, "cross_entropy of a masked shard");
    expect(t, top, (const double[]){-INFINITY, -INFINITY}, "the top of a masked shard");
    expect(t, mass, (const double[]){0, 0}, "the mass of a masked shard");
    array_free(x), array_free(target), array_free(loss), array_free(top), array_free(mass);
}

static void entropy_cases(bench *t) {
    for (double s = 0; s < 0.25; s += 0.2) {
        run_shards(t, 7, 12, 5, s);
        run_shards(t, 2, 1100, 1, s);
        run_shards(t, 5, 4, 4, s);
        run_masked_shard(t, s);
    }
    static const entropy_case cases[] = {
        {.rows = 3, .n = 7},
        {.rows = 90, .n = 65, .in_place = true},
        {.rows = 5, .n = 1100, .smoothing = 0.1},
        {.rows = 6, .n = 1025, .smoothing = 0.2, .add = true},
        {.rows = 2, .n = 1, .smoothing = 0.1, .in_place = true},
        {.rows = 0, .n = 4},
        {.rows = 4, .n = 5, .masked = true},
        {.rows = 4, .n = 1100, .smoothing = 0.1, .add = true, .masked = true},
        {.rows = 4, .n = 5, .in_place = true, .masked = true},
    };
    for (size_t i = 0; t->layout == ROWS && i < sizeof cases / sizeof cases[0]; i++)
        run_entropy(t, &cases[i]);
}

START_TEST(cross_entropy) {
    run(entropy_cases);
}
END_TEST

/* ---- Dropout, AdamW ---- */

static void dropout_case(bench *t, int64_t rows, int64_t n, bool add, bool in_place, tg_draws draws) {
    array *x = fill_array(ARRAY(t->dtype, t->layout, rows, n), 1);
    array *y = output(t, add, t->dtype, x);
    double *want = doubles(x->a.numel);
    for (int64_t i = 0; i < x->a.numel; i++) {
        bool keep = tg_philox_uniform(&draws.rng, tg_draw_number(&draws, i) - draws.rng.counter) >= 0.25f;
        want[i] = (add ? BEFORE : 0) + (keep ? get(x, i) / 0.75 : 0);
    }
    ck_assert_int_eq(t->ops->dropout(t->ctx, in_place ? x->a : y->a, x->a, 0.25, &draws, add), TG_OK);
    expect(t, in_place ? x : y, want, "dropout");
    free(want);
    array_free(x), array_free(y);
}

static void dropout_cases(bench *t) {
    const tg_rng rng = {.seed = 7, .stream = 1, .counter = 13};
    const tg_draws plain = {.rng = rng}, columns = {.rng = rng, .n = 2, .extent = {3, 1111}, .stride = {4444, 1}},
                   chunks = {.rng = rng, .n = 3, .extent = {2, 30, 50}, .stride = {6000, 100, 1}},
                   apart = {.rng = rng, .n = 2, .extent = {5, 7}, .stride = {70, 5}};
    dropout_case(t, 5, 7, false, false, plain);
    dropout_case(t, 3, 1111, true, false, plain);
    dropout_case(t, 2, 1500, false, true, plain);
    dropout_case(t, 0, 3, false, false, plain);
    dropout_case(t, 3, 1111, false, false, columns);
    dropout_case(t, 2, 1500, true, false, chunks);
    dropout_case(t, 5, 7, false, true, apart);
}

START_TEST(dropout) {
    run(dropout_cases);
}
END_TEST

static void adamw_case(bench *t, int64_t n, bool decoupled, bool master, tg_dtype grad_dtype) {
    tg_dtype acc = wide(t->dtype);
    array *p = fill_array(ARRAY(t->dtype, ROWS, n), 1), *g = fill_array(ARRAY(grad_dtype, ROWS, n), 2);
    array *m = fill_array(ARRAY(acc, ROWS, n), 3), *v = fill_array(ARRAY(acc, ROWS, n), 4);
    array *w = master ? fill_array(ARRAY(acc, ROWS, n), 5) : NULL;
    double *want[4] = {doubles(n), doubles(n), doubles(n), doubles(n)};
    double step[5] = {1e-2, 0.5, 0.19, 0.002, 1};
    tg_adamw_args a = {.param = p->a, .grad = g->a, .m = m->a, .v = v->a, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                       .weight_decay = 0.1, .decoupled = decoupled, .step = step};
    if (master)
        a.master = w->a;
    for (int64_t i = 0; i < n; i++) {
        set(v, i, fabs(get(v, i)) + 0.1);
        want[0][i] = get(p, i);
    }
    ck_assert_int_eq(t->ops->adamw(t->ctx, &a, 1), TG_OK);
    expect(t, p, want[0], "adamw that skips");
    step[4] = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = get(master ? w : p, i), grad = get(g, i) * step[1] + (decoupled ? 0 : 0.1 * x);
        want[1][i] = 0.9 * get(m, i) + 0.1 * grad;
        want[2][i] = 0.999 * get(v, i) + 0.001 * grad * grad;
        double x1 = decoupled ? x * (1 - step[0] * 0.1) : x;
        want[0][i] = x1 - step[0] * (want[1][i] / step[2]) / (sqrt(want[2][i] / step[3]) + 1e-8);
    }
    ck_assert_int_eq(t->ops->adamw(t->ctx, &a, 1), TG_OK);
    expect(t, p, want[0], "adamw parameter");
    expect(t, m, want[1], "adamw m");
    expect(t, v, want[2], "adamw v");
    if (master)
        expect(t, w, want[0], "adamw master");
    for (int k = 0; k < 4; k++)
        free(want[k]);
    array_free(p), array_free(g), array_free(m), array_free(v), array_free(w);
}

static void adamw_cases(bench *t) {
    if (t->layout != ROWS)
        return;
    adamw_case(t, 1, true, false, t->dtype);
    adamw_case(t, 2500, false, false, wide(t->dtype));
    adamw_case(t, 1030, true, t->dtype != TG_F64, wide(t->dtype));
}

START_TEST(adamw) {
    run(adamw_cases);
}
END_TEST

/* ---- A device that knows of errors in data ---- */

static tg_status poll_nothing(tg_ctx *ctx) { return (void)ctx, TG_OK; }
static tg_status add_fault(tg_ctx *ctx, double *sum) { return (void)ctx, *sum += NAN, TG_OK; }
static tg_status add_nothing(tg_ctx *ctx, double *sum) { return (void)ctx, (void)sum, TG_OK; }

START_TEST(composed_prepare_skips_steps_of_bad_data) {
    for (int bad = 0; bad < 2; bad++) {
        tg_device_ops ops = tg_cpu_device;
        double state[TG_STEP_STATE] = {[TG_STEP_SCALE] = 1}, scalars[TG_STEP_SCALARS] = {5};
        tg_prepare_args a = {.n_groups = 1, .state = state, .scalars = scalars, .max_norm = NAN, .lr_scale = {1}};
        ops.poll = poll_nothing;
        ops.fault_sum = bad ? add_fault : add_nothing;
        tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
        ck_assert_int_eq(tg_composed_prepare(ctx, &a), TG_OK);
        ck_assert_msg(scalars[TG_SCALAR_SKIP] == bad && state[TG_STEP_SKIPPED] == bad && state[TG_STEP_COUNT] == !bad,
                      "%d: %g, %g, %g", bad, scalars[TG_SCALAR_SKIP], state[TG_STEP_SKIPPED], state[TG_STEP_COUNT]);
        tg_ctx_free(ctx);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {softmax, softmax_of_special_values, norm, norm_past_the_caches,
                                  cross_entropy, dropout, adamw, composed_prepare_skips_steps_of_bad_data};
    return tg_check_main("fused", tests, sizeof tests / sizeof tests[0]);
}
