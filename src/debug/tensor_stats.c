/* Statistics of a tensor's values: their range, and how many are NaN, infinite or zero. */
#include "debug/tensor_stats.h"

#include <math.h>

#include <tapegrad/explain.h>
#include "base/memory/host_memory.h"

#include "autograd/gradients.h"

/* Reads all elements of x into v. */
static tg_status read_all(const tg_tensor *x, double *v) {
    tg_tensor *alias = tg_gradient_alias(x); /* tg_read_f64 refuses x itself if x is one rank's share of a sum */
    if (!alias) return x->ctx->run.status;
    tg_status s = tg_read_f64(alias, v, alias->numel);
    tg_temp_free(alias);
    return s;
}

tg_status tg_range_measure(const tg_tensor *x, tg_range *r) {
    tg_ctx *ctx = x->ctx;
    size_t bytes = (size_t)x->numel * sizeof(double);
    double *v = bytes ? tg_host_alloc(ctx, bytes) : NULL;
    *r = (tg_range){INFINITY, -INFINITY, 0, 0, 0};
    if (!bytes) return TG_OK;
    if (!v) return ctx->run.status;
    tg_status s = read_all(x, v);
    for (int64_t i = 0; s == TG_OK && i < x->numel; i++) {
        r->nan += isnan(v[i]) != 0;
        r->inf += isinf(v[i]) != 0;
        r->zero += v[i] == 0;
        if (isfinite(v[i])) r->lo = fmin(r->lo, v[i]), r->hi = fmax(r->hi, v[i]);
    }
    tg_host_free(ctx, v, bytes);
    return s;
}

/* Writes the largest or smallest element of x, or NaN if x has one, to element i of `out`, on the device. */
static tg_status extreme(const tg_tensor *x, tg_reduction kind, tg_array *out, int i) {
    static const int64_t one[TG_MAX_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1}, still[TG_MAX_DIMS];
    tg_array to = {.data = (double *)out->data + i,
                   .shape = one,
                   .stride = still,
                   .numel = 1,
                   .ndim = x->ndim,
                   .dtype = TG_F64,
                   .contiguous = true};
    return x->ctx->run.ops->reduce(x->ctx, kind, to, tg_array_of(x), 1, false);
}

tg_status tg_kinds_in(const tg_tensor *x, int *kinds) {
    const int64_t two = 2;
    double v[2] = {0, 0};
    tg_ctx *ctx = x->ctx;
    *kinds = 0;
    if (!x->numel) return TG_OK;
    tg_tensor *found = tg_temp_empty(ctx, TG_F64, 1, &two, TG_MEM_TEMPORARY);
    if (!found) return ctx->run.status;
    tg_array to = tg_array_of(found);
    tg_status s = extreme(x, TG_MAX, &to, 0);
    if (s == TG_OK) s = extreme(x, TG_MIN, &to, 1);
    if (s == TG_OK) s = tg_read_f64(found, v, 2);
    tg_temp_free(found);
    if (isinf(v[0]) || isinf(v[1])) *kinds = TG_FIND_INF;
    if (s != TG_OK || (!isnan(v[0]) && !isnan(v[1]))) return s;
    tg_range r; /* where there are NaNs, the reductions cannot find infinities */
    s = tg_range_measure(x, &r);
    *kinds = TG_FIND_NAN | (r.inf ? TG_FIND_INF : 0);
    return s;
}
