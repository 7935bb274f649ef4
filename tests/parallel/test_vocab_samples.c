/* Samples of the ops over a sharded vocabulary, on as many ranks as each asks for: each is refused as expected, or
 * equals the op of one rank on the joined shards, in every dtype. */
#include "parallel/mapping_run.h"

#include <tapegrad/backward.h>
#include <tapegrad/comm.h>
#include <tapegrad/derivatives.h>

#include "on_ranks.h"

#include "ops/common/row_loss.h"

enum { INPUTS = 3 };

/* sharded: index of the input of which each rank has a part, along dim 0 or the last dim. sums_...: the sum over
 * ranks counts, of the result or of input 0's gradient. */
typedef struct pair {
    const char *name, *whole;
    int sharded;
    bool last_dim, sums_result, sums_gradient;
} pair;

static const pair pairs[] = {
    {"vocab_parallel_embedding", "embedding", 0, false, true, false},
    {"vocab_parallel_cross_entropy", "cross_entropy", 0, true, false, false},
    {"vocab_parallel_linear_cross_entropy", "linear_cross_entropy", 1, false, false, true},
};

typedef struct rank_seen {
    seen input[INPUTS], grad[INPUTS], y;
    double forth, back; /* <c, J v> and <J^T c, v>, where v is a tangent of the sharded input */
    int rank;
    tg_status status;
} rank_seen;

typedef struct sample_run {
    const pair *pair;
    const tg_op *op;
    int sample, ranks;
    tg_dtype dtype;
    rank_seen at[MOST_RANKS];
} sample_run;

static double cotangent(int64_t i) { return (double)((i * 37 + 11) % 31 - 15) / 8; }

/* In float64 create_graph gives the same gradients as backward. */
static tg_status check_recorded(tg_tape *t, tg_tensor *y, tg_tensor *seed, tg_tensor **in, int n, int sharded,
                             rank_seen *out) {
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_tensor *by[INPUTS], *plain[INPUTS], *recorded[INPUTS];
    int n_by = 0;
    seen a = {0}, b = {0};
    for (int i = 0; i < n; i++)
        if (tg_requires_grad(in[i])) by[n_by++] = in[i];
    if (!n_by || tg_dtype_of(in[0]) != TG_F64) return TG_OK;
    RUN(tg_grad(t, &y, 1, by, n_by, plain, TG_GRAD(.seeds = &seed, .retain = true)));
    tg_grad(t, &y, 1, by, n_by, recorded, TG_GRAD(.seeds = &seed, .create_graph = true));
    if (tg_ctx_status(ctx) == TG_ERR_UNSUPPORTED && strstr(tg_ctx_message(ctx), "smoothing of partitions")) {
        tg_ctx_clear(ctx);
        return TG_OK;
    }
    RUN(tg_ctx_status(ctx));
    for (int i = 0; i < n_by; i++) {
        see(&a, plain[i]);
        see(&b, recorded[i]);
        for (int64_t k = 0; k < a.n; k++)
            if (!(fabs(a.v[k] - b.v[k]) <= 1e-12 * (1 + fabs(a.v[k])))) {
                printf("gradient %d as ops differs at %lld: %.15g, expected %.15g\n", i, (long long)k, b.v[k], a.v[k]);
                return TG_ERR_GRADIENT;
            }
        if (by[i] != in[sharded]) continue;
        tg_tensor *v = make_cotangent(t, by[i], SEED_ROWS, 3 + out->rank), *d;
        RUN(tg_jvp(t, &y, 1, &by[i], 1, &v, &d));
        seen c = {0}, u = {0}, w = {0};
        see(&c, seed), see(&u, d), see(&w, v);
        for (int64_t k = 0; k < u.n; k++) out->forth += c.v[k] * u.v[k];
        for (int64_t k = 0; k < w.n; k++) out->back += a.v[k] * w.v[k];
    }
    return TG_OK;
}

/* Runs forward, and backward from the same cotangents. */
static tg_status record_one(tg_tape *t, const tg_op *op, const void *params, tg_tensor **in, int n, int sharded,
                            rank_seen *out) {
    tg_tensor *y = NULL;
    tg_ctx *ctx = tg_tape_ctx(t);
    out->status = tg_apply(t, op, params, in, n, &y, 1, NULL, NULL, TG_SITE);
    if (out->status != TG_OK) return TG_OK;
    see(&out->y, y);
    tg_tensor *seed = tg_zeros(ctx, tg_dtype_of(y), tg_shape_of(y));
    double v[MOST_NUMEL] = {0};
    for (int64_t i = 0; i < tg_numel(y); i++) v[i] = cotangent(i);
    if (tg_numel(y)) tg_write_f64(seed, v, tg_numel(y));
    RUN(check_recorded(t, y, seed, in, n, sharded, out));
    RUN(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &seed)));
    for (int i = 0; i < n; i++)
        if (tg_requires_grad(in[i])) see(&out->grad[i], tg_grad_of(in[i]));
    return tg_ctx_status(ctx);
}

/* A case whose sharded input has values of this rank. */
static tg_status sample_rank(void *arg, tg_ctx *ctx, tg_comm *c) {
    sample_run *m = arg;
    int me = tg_comm_rank(c);
    union {
        tg_row_loss_params loss;
        tg_mapping_params mapping;
    } params;
    tg_case same, own;
    const tg_sample *s = tg_sample_at(m->op, m->sample);
    memcpy(&params, s->params, m->op->params_size);
    *(tg_comm **)&params = c;
    tg_case_opts o = {.dtype = m->dtype, .grid = TG_BF16, .seed = 3};
    RUN(tg_case_open(&same, ctx, m->op, m->sample, &o));
    o.seed += 50 * (uint64_t)me;
    RUN(tg_case_open(&own, ctx, m->op, m->sample, &o));
    tg_tensor *in[INPUTS];
    for (int i = 0; i < s->n_in; i++) {
        in[i] = i == m->pair->sharded ? own.input[i] : same.input[i];
        see(&m->at[me].input[i], in[i]);
    }
    m->at[me].rank = me;
    tg_tape *t = tg_tape_new(ctx);
    tg_status status = record_one(t, m->op, &params, in, s->n_in, m->pair->sharded, &m->at[me]);
    if (m->at[me].status != TG_OK) tg_ctx_clear(ctx);
    tg_tape_free(t);
    tg_case_close(&own);
    tg_case_close(&same);
    return status;
}

/* ---- The same on one rank ---- */

/* Joins the shards; only `places` indices along the dim count. */
static void join_shards(const sample_run *m, const seen *x, int64_t places, tg_shape *shape, double *v) {
    int d = m->pair->last_dim ? x->ndim - 1 : 0;
    int64_t outer = 1, n = 0, rows = x->shape[d], inner = 1;
    for (int k = 0; k < d; k++) outer *= x->shape[k];
    for (int k = d + 1; k < x->ndim; k++) inner *= x->shape[k];
    shape->dim[d] = places;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t j = 0; j < places; j++)
            for (int64_t k = 0; k < inner; k++)
                v[n++] = m->at[j / rows].input[m->pair->sharded].v[(o * rows + j % rows) * inner + k];
}

static tg_tensor *put_together(tg_ctx *ctx, const sample_run *m, int i, int64_t places) {
    const seen *x = &m->at[0].input[i];
    tg_dtype dtype = tg_sample_at(m->op, m->sample)->input[i].kind == TG_SAMPLE_INDEX ? TG_I64 : TG_F64;
    tg_shape shape = {.ndim = x->ndim};
    double v[MOST_RANKS * MOST_NUMEL];
    memcpy(shape.dim, x->shape, sizeof x->shape);
    if (i == m->pair->sharded) join_shards(m, x, places, &shape, v);
    tg_tensor *y = tg_zeros(ctx, dtype, shape);
    if (tg_numel(y)) tg_write_f64(y, i == m->pair->sharded ? v : x->v, tg_numel(y));
    return dtype == TG_F64 ? grad_leaf(y) : y;
}

static double close_to(tg_dtype d) { return d == TG_F64 ? 1e-12 : d == TG_F32 ? 1e-4 : d == TG_BF16 ? 0.03 : 0.004; }

#define SAME(m, what, at_, got, want)                                                                                  \
    do {                                                                                                               \
        double got_ = (got), want_ = (want);                                                                           \
        ck_assert_msg(fabs(got_ - want_) <= close_to((m)->dtype) * (1 + fabs(want_)),                                  \
                      "%s (%s), %s: %s %lld is %.12g, on one rank %.12g", (m)->op->name,                               \
                      tg_sample_at((m)->op, (m)->sample)->note, tg_dtype_name((m)->dtype), what, (long long)(at_),     \
                      got_, want_);                                                                                    \
    } while (0)

/* Element i of the gradient of the sharded input equals one rank's; in padding it is 0. */
static void check_shards(const sample_run *m, const seen *whole, int64_t places) {
    const seen *x = &m->at[0].input[m->pair->sharded];
    int d = m->pair->last_dim ? x->ndim - 1 : 0;
    int64_t inner = 1, rows = x->shape[d];
    for (int k = d + 1; k < x->ndim; k++) inner *= x->shape[k];
    for (int r = 0; r < m->ranks; r++)
        for (int64_t i = 0; i < x->n; i++) {
            int64_t o = i / inner / rows, j = r * rows + i / inner % rows,
                    at_whole = (o * places + j) * inner + i % inner;
            SAME(m, "gradient", i, m->at[r].grad[m->pair->sharded].v[i], j < places ? whole->v[at_whole] : 0);
        }
}

static void compare(const sample_run *m, const rank_seen *one, int64_t places) {
    for (int64_t i = 0; i < one->y.n; i++)
        for (int r = 0; r < m->ranks; r++) {
            double sum = 0;
            for (int q = 0; q < m->ranks; q++) sum += m->at[q].y.v[i];
            SAME(m, "result", i, m->pair->sums_result ? sum : m->at[r].y.v[i], one->y.v[i]);
        }
    for (int64_t i = 0; m->pair->sums_gradient && i < one->grad[0].n; i++) {
        double sum = 0;
        for (int q = 0; q < m->ranks; q++) sum += m->at[q].grad[0].v[i];
        SAME(m, "gradient of input 0,", i, sum, one->grad[0].v[i]);
    }
    check_shards(m, &one->grad[m->pair->sharded], places);
    double forth = 0, back = 0;
    for (int r = 0; r < m->ranks; r++) {
        forth += m->pair->sums_result || r == 0 ? m->at[r].forth : 0;
        back += m->at[r].back;
    }
    SAME(m, "<c, J v>, not <J^T c, v>,", 0, forth, back);
}

static void check_one_rank(const sample_run *m) {
    static rank_seen one;
    const tg_sample *s = tg_sample_at(m->op, m->sample);
    const seen *x = &m->at[0].input[m->pair->sharded];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_row_loss_params params = {.size = 0};
    int64_t places = m->ranks * x->shape[m->pair->last_dim ? x->ndim - 1 : 0];
    tg_tensor *in[INPUTS];
    if (m->op->params_size == sizeof params) {
        params = *(const tg_row_loss_params *)s->params;
        if (params.classes != TG_AUTO) places = params.classes;
        params.in_place = false;
    }
    const tg_op *whole = tg_op_find(m->pair->whole);
    int n = 0;
    for (int i = 0; i < s->n_in; i++) {
        if (whole->optional >> n & 1) in[n++] = NULL;
        in[n++] = put_together(ctx, m, i, places);
    }
    tg_tape *t = tg_tape_new(ctx);
    memset(&one, 0, sizeof one);
    tg_status status = record_one(t, whole, &params, in, n, m->pair->sharded, &one);
    ck_assert_msg(status == TG_OK && one.status == TG_OK, "%s: %s", m->op->name, tg_ctx_message(ctx));
    compare(m, &one, places);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

static void check_sample(const pair *w, int sample, tg_dtype dtype) {
    static sample_run m;
    memset(&m, 0, sizeof m);
    m.pair = w;
    m.op = tg_op_find(w->name);
    m.sample = sample;
    m.dtype = dtype;
    const tg_sample *s = tg_sample_at(m.op, sample);
    m.ranks = s->ranks;
    on_ranks(m.ranks, sample_rank, &m);
    for (int r = 0; r < m.ranks; r++)
        ck_assert_msg(m.at[r].status == s->refused, "%s (%s): %s on rank %d, expected %s", w->name, s->note,
                      tg_status_name(m.at[r].status), r, tg_status_name(s->refused));
    if (!s->refused) check_one_rank(&m);
}

START_TEST(samples) {
    int ran = 0;
    for (int k = 0; k < TG_LEN(pairs); k++) {
        const tg_op *op = tg_op_find(pairs[k].name);
        for (int i = 0; i < op->n_samples; i++) {
            const tg_sample *s = tg_sample_at(op, i);
            if (s->ranks <= 1 || s->slow || s->bench) continue;
            if (s->refused == TG_ERR_DATA && ranks_on_gpus()) continue; /* reported later there */
            for (tg_dtype d = TG_F32; d <= TG_F16; d++) check_sample(&pairs[k], i, d);
            ran++;
        }
    }
    ck_assert_int_gt(ran, 30);
}
END_TEST

/* Ops whose samples another program of this directory runs. */
static const struct {
    const char *name, *program;
} elsewhere[] = {
    {"ContextAttention", "test_context"},
    {"linear_reduce_scatter", "test_chunks"},
    {"linear_all_reduce", "test_symmetric_layers"},
};

/* A program of this directory runs every op of the table that has samples for several ranks. */
START_TEST(every_op_of_several_ranks_is_run) {
    for (int i = 0; i < tg_op_count(); i++) {
        const tg_op *op = tg_op_at(i);
        bool here = op->family == TG_FAMILY_CUSTOM && op->params_size == sizeof(tg_mapping_params) && op->n_in == 1;
        for (int k = 0; k < TG_LEN(pairs); k++) here |= !strcmp(op->name, pairs[k].name);
        for (int k = 0; k < TG_LEN(elsewhere); k++) here |= !strcmp(op->name, elsewhere[k].name);
        for (int s = 0; s < op->n_samples && !here; s++)
            ck_assert_msg(tg_sample_at(op, s)->ranks <= 1, "no test runs %s on ranks", op->name);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {samples, every_op_of_several_ranks_is_run};
    return tg_check_main("vocab samples", tests, sizeof tests / sizeof tests[0]);
}
