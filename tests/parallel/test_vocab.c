/* Losses over a sharded vocabulary, on thread ranks: values and gradients are compared with plain loops over all
 * classes, and with the op of one rank. */
#include "on_ranks.h"

#include <tapegrad/backward.h>
#include <tapegrad/handles.h>
#include <tapegrad/recompute.h>
#include <tapegrad/tensor_parallel.h>

#include "catalog/samples.h"
#include "ops/common/row_loss.h"

enum { ROWS = 9, WIDTH = 3, MOST_RANKS = 4, MOST_CLASSES = 32, IGNORED = -100 };

/* ---- Plain loops ---- */

typedef struct loss_case {
    const char *name;
    int ranks, columns; /* of each rank */
    double smoothing, scale, offset; /* of the logits; offset: where the loss is not linear */
    tg_smoothing kind;
    tg_loss_reduction reduction;
    int64_t classes; /* as in the options; 0: TG_AUTO */
    bool ignore_0;   /* class 0 is ignored, not IGNORED */
    tg_dtype dtype;          /* 0: float64 */
    bool linear;
    bool masked; /* the logits of one rank are -inf in each row, except the target's */
} loss_case;

static int64_t classes_of(const loss_case *k) { return k->classes ? k->classes : (int64_t)k->ranks * k->columns; }

static int64_t target_of(const loss_case *k, int r) {
    if (k->ignore_0 && r % 4 == 1) return 0;
    return r == 3 && !k->ignore_0 ? IGNORED : (r * 5 + 2) % classes_of(k);
}

static bool counts(const loss_case *k, int r) { return target_of(k, r) != (k->ignore_0 ? 0 : IGNORED); }

/* Returns the cotangent of row r's loss, or of the single loss. */
static double cotangent(const loss_case *k, int r) { return k->reduction == TG_LOSS_NONE ? 0.25 * (r + 1) : 1.5; }

/* Returns the weight of class j in the target distribution of a row, as seen by a rank. */
static double weight(const loss_case *k, int64_t target, int64_t j, int rank) {
    double a = k->smoothing, n = (double)classes_of(k), v = k->columns;
    switch (k->kind) {
    case TG_SMOOTHING_TORCH:
        return (j == target ? 1 - a : 0) + a / n;
    case TG_SMOOTHING_MEGATRON:
        return j == target ? 1 - a : a / (n - 1);
    default: {
        double s = v > 1 ? a * v / (v - 1) : 0;
        return (j == target ? 1 - s : 0) + (j / k->columns == rank ? s / v : 0);
    }
    }
}

typedef struct result {
    double loss[ROWS], glogits[ROWS][MOST_CLASSES]; /* a single loss is at index 0 */
} result;

static double log_sum_exp(const double *x, int64_t n) {
    double top = x[0], sum = 0;
    for (int64_t j = 1; j < n; j++) top = fmax(top, x[j]);
    for (int64_t j = 0; j < n; j++) sum += exp(x[j] - top);
    return top + log(sum);
}

static void reference(const loss_case *k, double x[ROWS][MOST_CLASSES], int rank, result *out) {
    int64_t n = classes_of(k);
    double rows = 0, total = 0;
    memset(out, 0, sizeof *out);
    for (int r = 0; r < ROWS; r++) rows += counts(k, r);
    for (int r = 0; r < ROWS; r++) {
        double z = log_sum_exp(x[r], n), loss = 0, g = cotangent(k, r) / (k->reduction == TG_LOSS_MEAN ? rows : 1);
        if (!counts(k, r)) continue;
        double all = 0;
        for (int64_t j = 0; j < n; j++) {
            double w = weight(k, target_of(k, r), j, rank);
            all += w;
            if (w != 0) loss -= w * (x[r][j] - z);
            out->glogits[r][j] = -w * g;
        }
        /* In a partition the weights need not sum to 1; Megatron-Core's gradient treats them as if they did. */
        for (int64_t j = 0; j < n; j++)
            out->glogits[r][j] += exp(x[r][j] - z) * g * (k->kind == TG_SMOOTHING_MEGATRON_PARTITION ? 1 : all);
        out->loss[r] = loss;
        total += loss;
    }
    if (k->reduction != TG_LOSS_NONE) out->loss[0] = k->reduction == TG_LOSS_MEAN ? total / rows : total;
}

/* ---- The same on ranks ---- */

typedef struct shared {
    loss_case k;
    double x[ROWS][MOST_CLASSES]; /* logits, rounded to the dtype */
    double h[ROWS][WIDTH], w[MOST_CLASSES][WIDTH];
    result got[MOST_RANKS];
    double gh[MOST_RANKS][ROWS][WIDTH], gw[MOST_CLASSES][WIDTH];
} shared;

static tg_vocab_opts options(const loss_case *k) {
    return *TG_VOCAB(.ignore_index = k->ignore_0 ? 0 : IGNORED, .label_smoothing = k->smoothing,
                     .smoothing_kind = k->kind, .reduction = k->reduction,
                     .classes = k->classes ? k->classes : TG_AUTO);
}

static tg_tensor *targets(tg_ctx *ctx, const loss_case *k) {
    int64_t v[ROWS];
    for (int r = 0; r < ROWS; r++) v[r] = target_of(k, r);
    return tg_from_host(ctx, TG_I64, TG_SHAPE(ROWS), v);
}

/* Makes a leaf of the case's dtype. */
static tg_tensor *leaf(tg_ctx *ctx, tg_dtype dtype, int64_t rows, int64_t n, const double *v) {
    tg_tensor *x = tg_zeros(ctx, dtype ? dtype : TG_F64, TG_SHAPE(rows, n));
    tg_write_f64(x, v, rows * n);
    return grad_leaf(x);
}

static tg_tensor *shard_of_logits(tg_ctx *ctx, const shared *s, int me) {
    double v[ROWS * MOST_CLASSES];
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < s->k.columns; j++) v[r * s->k.columns + j] = s->x[r][me * s->k.columns + j];
    return leaf(ctx, s->k.dtype, ROWS, s->k.columns, v);
}

static tg_status seeded(tg_tape *t, tg_tensor *loss, const loss_case *k, bool retain) {
    double v[ROWS];
    for (int r = 0; r < ROWS; r++) v[r] = cotangent(k, r);
    tg_tensor *seed = tg_zeros(tg_tape_ctx(t), tg_dtype_of(loss), tg_shape_of(loss));
    tg_write_f64(seed, v, tg_numel(loss));
    return tg_backward_with(t, &loss, 1, TG_BACKWARD(.seeds = &seed, .retain = retain));
}

static tg_status at_most_three_reductions(tg_ctx *ctx, tg_comm *c, const tg_comm_info *before, int64_t element) {
    tg_comm_info now = TG_COMM_INFO();
    tg_comm_query(c, &now);
    for (int kind = 0; kind < TG_COLLECTIVES; kind++)
        EXPECT(ctx, kind == TG_ALL_REDUCE || now.calls[kind] == before->calls[kind]);
    if (tg_comm_size(c) == 1) return TG_OK;
    EXPECT(ctx, now.calls[TG_ALL_REDUCE] - before->calls[TG_ALL_REDUCE] == 2);
    EXPECT(ctx, now.bytes[TG_ALL_REDUCE] - before->bytes[TG_ALL_REDUCE] <= 4 * ROWS * element);
    return TG_OK;
}

static tg_status loss_rank(void *arg, tg_ctx *ctx, tg_comm *c) {
    shared *s = arg;
    int me = tg_comm_rank(c);
    tg_vocab_opts o = options(&s->k);
    tg_tape *t = tape_on_nans(ctx);
    tg_comm_info before = TG_COMM_INFO();
    tg_comm_query(c, &before);
    double g[ROWS * MOST_CLASSES];
    if (s->k.linear) {
        tg_tensor *h = leaf(ctx, s->k.dtype, ROWS, WIDTH, s->h[0]);
        tg_tensor *w = leaf(ctx, s->k.dtype, s->k.columns, WIDTH, s->w[me * s->k.columns]);
        tg_tensor *loss = tg_vocab_parallel_linear_cross_entropy(t, h, w, targets(ctx, &s->k), c, &o);
        tg_read_f64(loss, s->got[me].loss, tg_numel(loss));
        RUN(seeded(t, loss, &s->k, false));
        tg_read_f64(tg_grad_of(h), s->gh[me][0], ROWS * WIDTH);
        tg_read_f64(tg_grad_of(w), s->gw[me * s->k.columns], s->k.columns * WIDTH);
    } else {
        tg_tensor *x = shard_of_logits(ctx, s, me);
        tg_tensor *loss = tg_vocab_parallel_cross_entropy(t, x, targets(ctx, &s->k), c, &o);
        tg_read_f64(loss, s->got[me].loss, tg_numel(loss));
        RUN(seeded(t, loss, &s->k, true));
        tg_read_f64(tg_grad_of(x), g, tg_numel(x));
        tg_zero_grad(x);
        RUN(seeded(t, loss, &s->k, false)); /* the same again */
        double again[ROWS * MOST_CLASSES];
        tg_read_f64(tg_grad_of(x), again, tg_numel(x));
        EXPECT(ctx, !memcmp(g, again, (size_t)tg_numel(x) * sizeof *g));
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < s->k.columns; j++)
                s->got[me].glogits[r][me * s->k.columns + j] = g[r * s->k.columns + j];
    }
    RUN(at_most_three_reductions(ctx, c, &before, s->k.dtype ? 4 : 8));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

/* ---- Comparison ---- */

static double tolerance(const loss_case *k) {
    switch (k->dtype) {
    case TG_F32:
        return 2e-5;
    case TG_BF16:
        return 1.0 / 128;
    case TG_F16:
        return 1.0 / 1024;
    default:
        return 1e-12;
    }
}

#define NEAR(k, got, want, what, i)                                                                                    \
    do {                                                                                                               \
        double got_ = (got), want_ = (want);                                                                           \
        bool near_ = got_ == want_ || fabs(got_ - want_) <= tolerance(k) * (k)->scale * (1 + fabs(want_));             \
        ck_assert_msg(near_, "%s: %s %d is %.17g, expected %.17g", (k)->name, what, (int)(i), got_, want_);            \
    } while (0)

/* Rounds to bfloat16, so that every dtype has the same numbers. */
static double held(double v) {
    int e;
    double m = frexp(v, &e);
    return ldexp(nearbyint(m * 256), e - 8);
}

static void fill(shared *s) {
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < WIDTH; j++) s->h[r][j] = held(at(1, r * WIDTH + j));
    for (int j = 0; j < MOST_CLASSES; j++)
        for (int i = 0; i < WIDTH; i++) s->w[j][i] = held(s->k.scale * at(2, j * WIDTH + i));
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < MOST_CLASSES; j++) {
            s->x[r][j] = (float)(s->k.offset + held(s->k.scale * at(3, r * MOST_CLASSES + j)));
            if (s->k.masked && j / s->k.columns == r % s->k.ranks && j != target_of(&s->k, r)) s->x[r][j] = -INFINITY;
            if (!s->k.linear) continue;
            s->x[r][j] = 0;
            for (int i = 0; i < WIDTH; i++) s->x[r][j] += s->h[r][i] * s->w[j][i];
        }
}

static void check_products(const shared *s, const result *want) {
    int n = (int)classes_of(&s->k), all = s->k.ranks * s->k.columns;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++) {
            double sum = 0, expected = 0;
            for (int rank = 0; rank < s->k.ranks; rank++) sum += s->gh[rank][r][i];
            for (int j = 0; j < n; j++) expected += want->glogits[r][j] * s->w[j][i];
            NEAR(&s->k, sum, expected, "the gradient of x", r);
        }
    for (int j = 0; j < all; j++)
        for (int i = 0; i < WIDTH; i++) {
            double expected = 0;
            for (int r = 0; r < ROWS; r++) expected += want->glogits[r][j] * s->h[r][i];
            NEAR(&s->k, s->gw[j][i], expected, "the gradient of w", j);
        }
}

/* Compares with plain loops and, if the meaning is the same, with tg_cross_entropy. */
static void check_one_rank(const shared *s) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_tape *t = tg_tape_new(ctx);
    int64_t n = classes_of(&s->k);
    double v[ROWS * MOST_CLASSES], loss[ROWS], g[ROWS * MOST_CLASSES];
    for (int r = 0; r < ROWS; r++) memcpy(v + r * n, s->x[r], (size_t)n * sizeof *v);
    tg_tensor *x = leaf(ctx, 0, ROWS, n, v);
    tg_tensor *y = tg_cross_entropy(t, x, targets(ctx, &s->k),
                                    TG_CROSS_ENTROPY(.ignore_index = s->k.ignore_0 ? 0 : IGNORED,
                                                     .label_smoothing = s->k.smoothing,
                                                     .reduction = s->k.reduction, .smoothing_kind = s->k.kind));
    tg_read_f64(y, loss, tg_numel(y));
    ck_assert_msg(seeded(t, y, &s->k, false) == TG_OK, "%s: %s", s->k.name, tg_ctx_message(ctx));
    tg_read_f64(tg_grad_of(x), g, ROWS * n);
    for (int64_t r = 0; r < tg_numel(y); r++)
        NEAR(&s->k, s->got[0].loss[r], loss[r], "compared with one rank, loss", r);
    for (int64_t i = 0; i < ROWS * n && !s->k.linear; i++) {
        int rank = (int)(i % n / s->k.columns);
        NEAR(&s->k, s->got[rank].glogits[i / n][i % n], g[i], "compared with one rank, gradient", i);
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

static void run_case(const loss_case *k) {
    static shared s;
    result want;
    memset(&s, 0, sizeof s);
    s.k = *k;
    fill(&s);
    on_ranks(k->ranks, loss_rank, &s);
    int losses = k->reduction == TG_LOSS_NONE ? ROWS : 1;
    for (int rank = 0; rank < k->ranks; rank++) {
        reference(k, s.x, rank, &want);
        for (int r = 0; r < losses; r++) NEAR(k, s.got[rank].loss[r], want.loss[r], "loss", r);
        if (k->kind != TG_SMOOTHING_MEGATRON_PARTITION)
            ck_assert_msg(!memcmp(s.got[rank].loss, s.got[0].loss, sizeof s.got[0].loss), "%s: the ranks differ",
                          k->name);
        for (int r = 0; r < ROWS && !k->linear; r++)
            for (int j = rank * k->columns; j < (rank + 1) * k->columns; j++)
                NEAR(k, s.got[rank].glogits[r][j], want.glogits[r][j], "gradient", r * MOST_CLASSES + j);
    }
    if (k->linear && k->kind != TG_SMOOTHING_MEGATRON_PARTITION) check_products(&s, &want);
    if (k->kind != TG_SMOOTHING_MEGATRON_PARTITION || k->ranks == 1) check_one_rank(&s);
}

static const loss_case cases[] = {
    {"two ranks", 2, 5, .scale = 1},
    {"one rank", 1, 7, .scale = 1, .smoothing = 0.1},
    {"three ranks, sum", 3, 4, .reduction = TG_LOSS_SUM, .scale = 1},
    {"four ranks, each row", 4, 3, .reduction = TG_LOSS_NONE, .scale = 1},
    {"a class a rank", 4, 1, .scale = 1},
    {"smoothing", 2, 6, .smoothing = 0.1, .scale = 1},
    {"smoothing, each row, class 0 ignored", 3, 3, .smoothing = 0.3, .reduction = TG_LOSS_NONE,
     .ignore_0 = true, .scale = 1},
    {"smoothing of the wrong classes", 2, 6, .smoothing = 0.1, .kind = TG_SMOOTHING_MEGATRON, .scale = 1},
    {"smoothing of the wrong classes, all of it", 4, 3, .smoothing = 1, .kind = TG_SMOOTHING_MEGATRON,
     .reduction = TG_LOSS_SUM, .scale = 1},
    {"smoothing of partitions", 2, 6, .smoothing = 0.1, .kind = TG_SMOOTHING_MEGATRON_PARTITION, .scale = 1},
    {"smoothing of partitions, each row", 3, 4, .smoothing = 0.2, .kind = TG_SMOOTHING_MEGATRON_PARTITION,
     .reduction = TG_LOSS_NONE, .scale = 1},
    {"smoothing of one partition", 1, 6, .smoothing = 0.1, .kind = TG_SMOOTHING_MEGATRON_PARTITION, .scale = 1},
    {"padding", 2, 6, .classes = 9, .scale = 1},
    {"padding of whole ranks, smoothing", 4, 3, .classes = 5, .smoothing = 0.1, .reduction = TG_LOSS_NONE, .scale = 1},
    {"padding, wrong classes", 3, 4, .classes = 6, .smoothing = 0.2, .kind = TG_SMOOTHING_MEGATRON, .scale = 1},
    {"large logits", 2, 8, .smoothing = 0.1, .scale = 3000},
    {"float32", 2, 6, .smoothing = 0.1, .scale = 1, .dtype = TG_F32},
    {"float32, far from 0", 3, 5, .reduction = TG_LOSS_NONE, .scale = 1, .dtype = TG_F32, .offset = 1 << 17},
    {"float32, far from 0, smoothing", 3, 5, .smoothing = 0.1, .reduction = TG_LOSS_NONE, .scale = 1, .dtype = TG_F32,
     .offset = 1 << 17},
    {"float32, far from 0, smoothing of the wrong classes, padding", 4, 3, .classes = 5, .smoothing = 0.2,
     .kind = TG_SMOOTHING_MEGATRON, .scale = 1, .dtype = TG_F32, .offset = -(1 << 17)},
    {"float32, far from 0, smoothing of partitions", 3, 5, .smoothing = 0.1, .reduction = TG_LOSS_NONE, .scale = 1,
     .kind = TG_SMOOTHING_MEGATRON_PARTITION, .dtype = TG_F32, .offset = 1 << 17},
    {"masked", 3, 5, .reduction = TG_LOSS_NONE, .scale = 1, .masked = true},
    {"masked, smoothing", 3, 5, .smoothing = 0.1, .reduction = TG_LOSS_NONE, .scale = 1, .masked = true},
    {"masked, smoothing of partitions", 3, 5, .smoothing = 0.1, .reduction = TG_LOSS_NONE, .scale = 1, .masked = true,
     .kind = TG_SMOOTHING_MEGATRON_PARTITION},
    {"bfloat16", 2, 6, .scale = 1, .dtype = TG_BF16},
    {"float16, padding", 4, 2, .classes = 7, .reduction = TG_LOSS_SUM, .scale = 1, .dtype = TG_F16},
};

START_TEST(losses) {
    for (int i = 0; i < TG_LEN(cases); i++) run_case(&cases[i]);
}
END_TEST

START_TEST(losses_of_products_equal_plain_loops) {
    for (int i = 0; i < TG_LEN(cases); i++) {
        loss_case k = cases[i];
        k.linear = true;
        if (k.scale == 1 && !k.masked) run_case(&k);
    }
}
END_TEST

/* ---- In place ---- */

static tg_status in_place_rank(void *arg, tg_ctx *ctx, tg_comm *c) {
    enum { N = 1 << 15 };
    double *g = arg;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(4, N), 1));
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(4), (const int64_t[]){0, N + 1, N - 1, 7});
    const tg_vocab_opts *o = TG_VOCAB(.label_smoothing = 0.1);
    tg_memory_info m = TG_MEMORY_INFO();
    int64_t peak[2];
    for (int way = 0; way < 2; way++) {
        tg_tensor *logits = tg_scale(t, x, 2);
        const tg_vocab_opts *in_place = TG_VOCAB(.label_smoothing = 0.1, .in_place = true);
        tg_tensor *loss = tg_vocab_parallel_cross_entropy(t, logits, target, c, way ? in_place : o);
        tg_memory_reset_peak(ctx);
        RUN(tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true)));
        tg_memory_query(ctx, &m);
        peak[way] = m.peak;
        double v = 0;
        tg_tensor *sum = tg_sum(t, tg_square(t, tg_grad_of(x)), TG_ALL_DIMS, false);
        tg_read_f64(sum, &v, 1);
        g[2 * tg_comm_rank(c) + way] = v;
        tg_zero_grad(x);
        if (way) {
            REFUSED(ctx, TG_ERR_DISCARDED, "vocab_parallel_cross_entropy, in place", tg_neg(t, logits));
            REFUSED(ctx, TG_ERR_DISCARDED, "vocab_parallel_cross_entropy, in place",
                    tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = true)));
        }
        tg_tape_reset(t);
    }
    EXPECT(ctx, peak[1] + 4 * N * 7 <= peak[0]);
    tg_tensor *logits = tg_scale(t, x, 2), *view = tg_reshape(t, logits, TG_SHAPE(2, 2, N));
    REFUSED(ctx, TG_ERR_STATE, "a leaf", tg_vocab_parallel_cross_entropy(t, x, target, c, TG_VOCAB(.in_place = true)));
    REFUSED(ctx, TG_ERR_STATE, "share their bytes",
            tg_vocab_parallel_cross_entropy(t, logits, target, c, TG_VOCAB(.in_place = true)));
    EXPECT(ctx, tg_is_alive(view));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status exponentials(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in;
    for (int i = 0; i < n_out; i++) out[i] = tg_exp(t, in[i]); /* exp saves its result */
    return TG_OK;
}

/* Logits that a replay has restored and whose function has saved them, logits that are pinned after the forward, and
 * logits in a named buffer. */
static tg_status in_place_elsewhere(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    double g[2][8];
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *y, *x = grad_leaf(made(ctx, 1, TG_SHAPE(2, 4)));
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(2), (const int64_t[]){3, 4});
    for (int way = 0; way < 2; way++) {
        tg_replay *r = tg_replay_open(t);
        RUN(tg_replay_run(r, exponentials, NULL, &x, 1, &y, 1, NULL));
        tg_tensor *loss = tg_vocab_parallel_cross_entropy(t, y, target, c, TG_VOCAB(.in_place = way));
        RUN(tg_replay_close(r, NULL));
        RUN(tg_backward_with(t, &loss, 1, TG_BACKWARD(.retain = way)));
        if (way) REFUSED(ctx, TG_ERR_DISCARDED, "vocab_parallel_cross_entropy, in place", tg_backward(t, loss));
        RUN(tg_read_f64(tg_grad_of(x), g[way], 8));
        tg_zero_grad(x), tg_tape_reset(t);
    }
    for (int i = 0; i < 8; i++) EXPECT(ctx, g[1][i] == g[0][i]);
    y = tg_exp(t, x);
    RUN(tg_read_f64(y, g[0], 8));
    tg_tensor *loss = tg_vocab_parallel_cross_entropy(t, y, target, c, TG_VOCAB(.in_place = true));
    tg_storage *pinned = tg_pin(y);
    RUN(tg_backward(t, loss));
    RUN(tg_read_f64(y, g[1], 8));
    for (int i = 0; i < 8; i++) EXPECT(ctx, g[1][i] == g[0][i]);
    tg_unpin(pinned);
    y = tg_copy_(t, tg_lease(t, "logits", tg_dtype_of(x), TG_SHAPE(2, 4)), tg_exp(t, x));
    REFUSED(ctx, TG_ERR_STATE, "buffer", tg_vocab_parallel_cross_entropy(t, y, target, c, TG_VOCAB(.in_place = true)));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(in_place_of_bytes_that_others_have_too) { on_ranks(2, in_place_elsewhere, NULL); }
END_TEST

START_TEST(in_place_gives_the_logits_bytes_away) {
    double g[4];
    on_ranks(2, in_place_rank, g);
    ck_assert_double_eq(g[0], g[1]);
    ck_assert_double_eq(g[2], g[3]);
    ck_assert_double_gt(g[0], 0);
}
END_TEST

/* ---- Ignored rows ---- */

static tg_status ignored_rank(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    const double v[] = {1, 2, NAN, INFINITY};
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(tg_from_host(ctx, TG_F64, TG_SHAPE(2, 2), v)), *g;
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(2), (const int64_t[]){1, IGNORED});
    tg_tensor *y = tg_vocab_parallel_cross_entropy(t, x, target, c, TG_VOCAB(.reduction = TG_LOSS_SUM));
    double backward[4], recorded[4];
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.retain = true));
    tg_read_f64(g, backward, 4);
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
    tg_read_f64(g, recorded, 4);
    for (int i = 0; i < 4; i++) ck_assert_double_eq_tol(recorded[i], backward[i], 1e-15);
    ck_assert(recorded[2] == 0 && recorded[3] == 0);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(ignored_rows_may_hold_anything) { on_ranks(2, ignored_rank, NULL); }
END_TEST

/* ---- A class out of range ---- */

static tg_status out_of_range_rank(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(3, 2))), *w = grad_leaf(made(ctx, 2, TG_SHAPE(2, 2)));
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(3), (const int64_t[]){0, 8, 1});
    tg_tensor *padding = tg_from_host(ctx, TG_I64, TG_SHAPE(3), (const int64_t[]){0, 1, 3});
    REFUSED(ctx, TG_ERR_DATA, "target of row 1 is 8; it must be from 0 to 7",
            tg_vocab_parallel_cross_entropy(t, x, target, c, NULL));
    REFUSED(ctx, TG_ERR_DATA, "target of row 2 is 3; it must be from 0 to 2",
            tg_vocab_parallel_cross_entropy(t, x, padding, c, TG_VOCAB(.classes = 3)));
    REFUSED(ctx, TG_ERR_DATA, "target of row 1 is 8", tg_vocab_parallel_linear_cross_entropy(t, x, w, target, c, NULL));
    REFUSED(ctx, TG_ERR_DATA, "target of row 2 is 3",
            tg_vocab_parallel_linear_cross_entropy(t, x, w, padding, c, TG_VOCAB(.classes = 3)));
    REFUSED(ctx, TG_ERR_DATA, "index 8 is out of range", tg_vocab_parallel_embedding(t, w, target, c));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

/* On GPUs errors in data are reported later; the tests of the registry check them. */
START_TEST(every_rank_sees_a_class_out_of_range) {
    if (!ranks_on_gpus()) on_ranks(4, out_of_range_rank, NULL);
}
END_TEST

/* ---- Several chunks; memory ---- */

static tg_status chunks_rank(void *arg, tg_ctx *ctx, tg_comm *c) {
    enum { N = 1100, V = 4500, H = 2 };
    double *off_by = arg, g[2][N * H], loss[2];
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(N, H))), *w = tg_zeros(ctx, TG_F64, TG_SHAPE(V, H));
    double *v = malloc(V * H * sizeof *v);
    for (int64_t i = 0; i < V * H; i++) v[i] = at(2, me * V * H + i);
    tg_write_f64(w, v, V * H);
    free(v);
    int64_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = i * 61 % (n * V);
    grad_leaf(w);
    tg_tensor *target = tg_from_host(ctx, TG_I64, TG_SHAPE(N), ids);
    double gw[2] = {0};
    for (int way = 0; way < 2; way++) {
        tg_tensor *y = way ? tg_vocab_parallel_cross_entropy(t, tg_linear(t, x, w, NULL), target, c, NULL)
                           : tg_vocab_parallel_linear_cross_entropy(t, x, w, target, c, NULL);
        tg_read_f64(y, &loss[way], 1);
        RUN(tg_backward(t, y));
        tg_read_f64(tg_grad_of(x), g[way], N * H);
        tg_read_f64(tg_sum(t, tg_square(t, tg_grad_of(w)), TG_ALL_DIMS, false), &gw[way], 1);
        tg_zero_grad(x);
        tg_zero_grad(w);
        tg_tape_reset(t);
    }
    double most = larger_or_nan(fabs(loss[0] - loss[1]), fabs(gw[0] - gw[1]));
    for (int i = 0; i < N * H; i++) most = larger_or_nan(most, fabs(g[0][i] - g[1][i]));
    off_by[me] = most;
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(chunks_agree_with_whole_logits) {
    double off_by[2] = {1, 1};
    on_ranks(2, chunks_rank, off_by);
    ck_assert_double_lt(off_by[0], 1e-13);
    ck_assert_double_lt(off_by[1], 1e-13);
}
END_TEST

/* On device meta with a communicator that only counts. */
START_TEST(no_rank_holds_its_whole_logits) {
    enum { N = 16384, V = 16384, H = 64 };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_comm *c = tg_comm_plan_new(ctx, 1, 2);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(tg_zeros(ctx, TG_F32, TG_SHAPE(N, H))),
              *w = grad_leaf(tg_zeros(ctx, TG_F32, TG_SHAPE(V, H)));
    tg_tensor *y = tg_vocab_parallel_linear_cross_entropy(t, x, w, tg_zeros(ctx, TG_I64, TG_SHAPE(N)), c, NULL);
    tg_backward(t, y);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    ck_assert_int_lt(m.peak, (int64_t)N * V * 4 / 5);
    tg_tape_free(t);
    tg_comm_free(c);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {losses,
                                  losses_of_products_equal_plain_loops,
                                  in_place_gives_the_logits_bytes_away,
                                  in_place_of_bytes_that_others_have_too,
                                  ignored_rows_may_hold_anything,
                                  every_rank_sees_a_class_out_of_range,
                                  chunks_agree_with_whole_logits,
                                  no_rank_holds_its_whole_logits};
    return tg_check_main("vocab", tests, sizeof tests / sizeof tests[0]);
}
