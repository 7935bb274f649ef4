/* Metrics: sums and counts of values on the device, and hits among the greatest logits. */
#include <math.h>

#include <tapegrad/comm.h>
#include <tapegrad/metrics.h>
#include <tapegrad/ops.h>

#include "base/memory/host_memory.h"
#include "comm/comm.h"
#include "core/capture/capture.h"
#include "kernels/scalar.h"
#include "placement/placing.h"
#include "tape/tape.h"

struct tg_metric {
    tg_ctx *ctx;
    tg_tensor *sum, *count; /* [1], float64 and int64 */
};

/* The object that a failed creation returns. */
static const tg_metric inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

static tg_status enter(const tg_metric *m) { return m ? m->ctx->run.status : TG_ERR_ARGUMENT; }

/* ---- Creation ---- */

tg_metric *tg_metric_new(tg_ctx *ctx) {
    tg_metric *m = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *m) : NULL;
    if (!m) return (tg_metric *)&inert;
    m->ctx = ctx;
    m->sum = tg_zeros(ctx, TG_F64, tg_shape_make(1, &(int64_t){1}));
    m->count = tg_zeros(ctx, TG_I64, tg_shape_make(1, &(int64_t){1}));
    if (tg_ok(ctx)) return m;
    tg_metric_free(m);
    return (tg_metric *)&inert;
}

void tg_metric_free(tg_metric *m) {
    if (!m || m == &inert) return;
    tg_drop(m->sum);
    tg_drop(m->count);
    tg_host_free(m->ctx, m, sizeof *m);
}

/* Waits for copies that use the numbers, before they change. */
static tg_status settle(const tg_metric *m) {
    TG_TRY(tg_storage_may_change(m->sum));
    return tg_storage_may_change(m->count);
}

static tg_status wrote(const tg_metric *m, const char *by, const void *site) {
    tg_storage_wrote(m->sum->storage, by, site);
    tg_storage_wrote(m->count->storage, by, site);
    return TG_OK;
}

tg_status tg_metric_reset(tg_metric *m) {
    TG_TRY(enter(m));
    TG_TRY(settle(m));
    TG_TRY(m->ctx->run.ops->fill(m->ctx, tg_array_of(m->sum), 0));
    TG_TRY(m->ctx->run.ops->fill(m->ctx, tg_array_of(m->count), 0));
    return wrote(m, "tg_metric_reset", TG_SITE);
}

/* ---- Adding ---- */

/* Adds the sum of x's elements, times `scale`, to `to`, a number of the dtype of x. */
static tg_status add_sum(tg_tensor *to, const tg_tensor *x, double scale) {
    int64_t one[TG_MAX_DIMS];
    tg_ctx *ctx = to->ctx;
    tg_array sum = tg_array_of(to);
    if (!x->numel) return TG_OK;
    for (int d = 0; d < TG_MAX_DIMS; d++) one[d] = 1;
    sum.shape = sum.stride = one, sum.ndim = x->ndim;
    return ctx->run.ops->reduce(ctx, TG_SUM, sum, tg_array_of(x), scale, true);
}

static tg_status add_converted(const tg_metric *m, const tg_tensor *x, double scale) {
    tg_tensor *wide = tg_temp_empty(m->ctx, TG_F64, x->ndim, x->shape, TG_MEM_TEMPORARY);
    if (!wide) return m->ctx->run.status;
    const tg_array in = tg_array_of(x);
    tg_status s = m->ctx->run.ops->apply(m->ctx, TG_FN_id, tg_array_of(wide), &in, 1, (const double[2]){0, 0}, false);
    if (s == TG_OK) s = add_sum(m->sum, wide, scale);
    tg_temp_free(wide);
    return s;
}

static tg_status check_whole(const tg_metric *m, const tg_tensor *x, const char *who) {
    const tg_placements *p = tg_place_of(x);
    if (!p || !p->partial) return TG_OK;
    return tg_fail(m->ctx, TG_ERR_PLACEMENT, "%s: x is PARTIAL over ranks, expected values; reduce it first", who);
}

tg_status tg_metric_add(tg_metric *m, tg_tensor *x, int64_t weight) {
    const char *who = "tg_metric_add";
    TG_TRY(enter(m));
    TG_TRY(tg_check(m->ctx, x, who));
    int64_t values;
    if (weight < 1 || __builtin_mul_overflow(weight, x->numel, &values))
        return tg_fail(m->ctx, TG_ERR_ARGUMENT,
                       "%s: weight is %lld for each of %s, expected 1 or more, and fewer than 2^63 values in all", who,
                       (long long)weight, tg_count(x->numel, "element").text);
    TG_TRY(check_whole(m, x, who));
    TG_TRY(tg_storage_need(x->storage, x));
    TG_TRY(settle(m));
    TG_TRY(add_converted(m, x, (double)weight));
    const tg_array count = tg_array_of(m->count);
    const double more[2] = {1, (double)values};
    TG_TRY(m->ctx->run.ops->apply(m->ctx, TG_FN_affine, count, &count, 1, more, false));
    return wrote(m, who, TG_SITE);
}

/* ---- Hits ---- */

/* Records for each target how many classes come after it, itself included: those whose logit is less, and those of an
 * equal logit whose index is not lower. The number is 0 if the target's logit is NaN. index is targets with a last dim
 * of size 1. */
static tg_tensor *classes_after(tg_tape *t, tg_tensor *logits, tg_tensor *index) {
    double classes = (double)logits->shape[logits->ndim - 1];
    tg_tensor *logit = tg_gather(t, logits, -1, index), *number = tg_arange(t, TG_I64, 0, classes, 1);
    tg_tensor *less = tg_cast(t, tg_lt(t, logits, logit), TG_I64), *equal = tg_cast(t, tg_eq(t, logits, logit), TG_I64);
    tg_tensor *not_lower = tg_cast(t, tg_ge(t, number, index), TG_I64);
    tg_tensor *after = tg_add(t, less, tg_mul(t, equal, not_lower));
    return tg_sum(t, after, tg_dims_make(1, &(int64_t){-1}), false);
}

/* Records for each target whether it is a hit, and returns that as float64 0 or 1. *valid receives as int64 0 or 1
 * which targets are not ignored; those that are ignored are no hits. */
static tg_tensor *hits_of(tg_tape *t, tg_tensor *logits, tg_tensor *targets, int k, int64_t ignore, tg_tensor **valid) {
    const tg_shape scalar = {0};
    double least = (double)(logits->shape[logits->ndim - 1] - k + 1);
    tg_tensor *ignored = tg_eq(t, targets, tg_full(t, TG_I64, scalar, (double)ignore));
    tg_tensor *index = tg_unsqueeze(t, tg_masked_fill(t, targets, ignored, 0), -1);
    tg_tensor *among = tg_ge(t, classes_after(t, logits, index), tg_full(t, TG_I64, scalar, least));
    *valid = tg_add_scalar(t, tg_neg(t, tg_cast(t, ignored, TG_I64)), 1);
    return tg_cast(t, tg_mul(t, tg_cast(t, among, TG_I64), *valid), TG_F64);
}

static tg_status check_hits(const tg_metric *m, const tg_tensor *logits, const tg_tensor *targets, int k) {
    const char *who = "tg_metric_add_hits";
    tg_ctx *ctx = m->ctx;
    char a[160], b[160];
    tg_describe(logits, a, sizeof a);
    tg_describe(targets, b, sizeof b);
    if (logits->ndim < 1 || logits->ndim - 1 != targets->ndim ||
        memcmp(logits->shape, targets->shape, (size_t)targets->ndim * sizeof *targets->shape) != 0)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: logits is %s and targets %s, expected [..., classes] and [...]", who, a,
                       b);
    if (!tg_is_float((tg_dtype)logits->dtype) || targets->dtype != TG_I64)
        return tg_fail(ctx, TG_ERR_DTYPE, "%s: logits is %s and targets %s, expected floats and int64", who, a, b);
    int64_t classes = logits->shape[logits->ndim - 1];
    if (k < 1 || k > classes)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: k is %d, expected 1 to %lld, the number of classes", who, k,
                       (long long)classes);
    TG_TRY(check_whole(m, logits, who));
    return check_whole(m, targets, who);
}

tg_status tg_metric_add_hits(tg_metric *m, tg_tape *t, tg_tensor *logits, tg_tensor *targets, int k,
                             int64_t ignore_index) {
    tg_tensor *in[] = {logits, targets}, *valid;
    TG_TRY(enter(m));
    TG_TRY(tg_tape_check_with(t, in, 2, "tg_metric_add_hits"));
    if (t->ctx != m->ctx)
        return tg_fail(m->ctx, TG_ERR_HANDLE, "tg_metric_add_hits: the tape is of another context than the metric");
    for (int i = 0; i < 2; i++) TG_TRY(tg_check(m->ctx, in[i], "tg_metric_add_hits"));
    TG_TRY(check_hits(m, logits, targets, k));
    bool grad = tg_tape_set_grad_mode(t, false);
    tg_tensor *hits = hits_of(t, logits, targets, k, ignore_index, &valid);
    tg_tape_set_grad_mode(t, grad);
    TG_TRY(m->ctx->run.status);
    TG_TRY(settle(m));
    TG_TRY(add_sum(m->sum, hits, 1));
    TG_TRY(add_sum(m->count, valid, 1));
    return wrote(m, "tg_metric_add_hits", TG_SITE);
}

/* ---- Results ---- */

static tg_status reduce(tg_comm *c, tg_tensor *x) {
    tg_work *w = tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    return w ? tg_work_wait(w) : x->ctx->run.status;
}

tg_status tg_metric_reduce(tg_metric *m, tg_comm *c) {
    if (!m || !c) return enter(m);
    TG_TRY(tg_comm_note_missed(c, enter(m)));
    TG_TRY(reduce(c, m->sum));
    return reduce(c, m->count);
}

int64_t tg_metric_count(const tg_metric *m) {
    int64_t n = 0;
    if (enter(m) == TG_OK) tg_read(m->count, &n, sizeof n);
    return n;
}

double tg_metric_sum(const tg_metric *m) {
    double sum = NAN;
    if (enter(m) == TG_OK) tg_read(m->sum, &sum, sizeof sum);
    return sum;
}

double tg_metric_mean(const tg_metric *m) {
    double sum = tg_metric_sum(m);
    int64_t n = tg_metric_count(m);
    return n ? sum / (double)n : NAN;
}

double tg_metric_perplexity(const tg_metric *m) { return exp(tg_metric_mean(m)); }
