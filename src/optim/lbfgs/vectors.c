/* Vectors over a list of parameters: copies, sums and reductions. */
#include "optim/lbfgs/vectors.h"

#include "autograd/gradients.h"
#include "base/memory/host_memory.h"
#include "kernels/scalar.h"
#include "optim/optim.h"

/* ---- Memory ---- */

tg_status tg_vectors_open(tg_vectors *v, tg_ctx *ctx, tg_tensor *const *params, int n, int vectors) {
    tg_dtype dtype = TG_F32;
    *v = (tg_vectors){.ctx = ctx, .n = n, .spare = vectors};
    v->item = tg_host_alloc(ctx, (size_t)n * sizeof *v->item);
    for (int i = 0; v->item && i < n; i++) {
        v->item[i] = (tg_vectors_item){params[i], tg_ref_of(params[i]), v->length};
        tg_optim_hold(params[i]);
        v->length += params[i]->numel;
        if (params[i]->dtype == TG_F64) dtype = TG_F64;
    }
    const int64_t all = (vectors + 1) * v->length, one = 1;
    if (tg_ok(ctx)) v->vectors = tg_owned_empty(ctx, dtype, 1, &all, TG_MEM_OPTIMIZER);
    if (tg_ok(ctx)) v->number = tg_owned_empty(ctx, TG_F64, 1, &one, TG_MEM_OPTIMIZER);
    return ctx->run.status;
}

void tg_vectors_close(tg_vectors *v) {
    if (v->number) tg_drop(v->number);
    if (v->vectors) tg_drop(v->vectors);
    for (int i = 0; v->item && i < v->n; i++) tg_optim_let_go(v->ctx, v->item[i].ref);
    tg_host_free(v->ctx, v->item, (size_t)v->n * sizeof *v->item);
}

tg_status tg_vectors_check(const tg_vectors *v, const char *who) {
    for (int i = 0; i < v->n; i++) TG_TRY(tg_optim_check_alive(v->ctx, v->item[i].ref, i, "optimizer", who));
    return TG_OK;
}

/* ---- Arrays ---- */

/* Returns *n elements of a vector, from `first` on. n must live as long as the result. */
static tg_array part(const tg_vectors *v, int vector, int64_t first, const int64_t *n) {
    static const int64_t dense = 1;
    tg_array a = tg_array_of(v->vectors);
    int64_t at = (vector * v->length + first) * (int64_t)tg_dtype_size((tg_dtype)a.dtype);
    a.data = a.data ? (char *)a.data + at : NULL;
    a.shape = n, a.stride = &dense, a.ndim = 1, a.numel = *n;
    return a;
}

static tg_array whole(const tg_vectors *v, int vector) { return part(v, vector, 0, &v->length); }

/* Returns x, which is contiguous, as an array of 1 dim. */
static tg_array line_of(const tg_tensor *x) {
    static const int64_t dense = 1;
    tg_array a = tg_array_of(x);
    a.shape = &x->numel, a.stride = &dense, a.ndim = 1;
    return a;
}

static tg_status map(const tg_vectors *v, tg_formula formula, tg_array out, const tg_array *in, int n, double p,
                     double q) {
    return v->ctx->run.ops->apply(v->ctx, formula, out, in, n, (const double[2]){p, q}, false);
}

/* ---- Copies ---- */

tg_status tg_vectors_from_params(const tg_vectors *v, int to) {
    for (int i = 0; i < v->n; i++) {
        const tg_tensor *p = v->item[i].param;
        tg_array from = line_of(p);
        TG_TRY(tg_storage_need(p->storage, p));
        TG_TRY(map(v, TG_FN_id, part(v, to, v->item[i].first, &p->numel), &from, 1, 0, 0));
    }
    return TG_OK;
}

static tg_status from_gradient(const tg_vectors *v, int to, const tg_vectors_item *it, const char *who) {
    tg_array out = part(v, to, it->first, &it->param->numel);
    tg_tensor *g = tg_gradient_of(it->param);
    TG_TRY(tg_gradient_need_drained(it->param, who));
    if (!g) return v->ctx->run.ops->fill(v->ctx, out, 0);
    TG_TRY(tg_gradient_need_whole(it->param, who));
    TG_TRY(tg_storage_need(g->storage, g));
    tg_array from = tg_array_of(g), shaped = tg_array_of(it->param);
    shaped.data = out.data, shaped.dtype = out.dtype;
    return map(v, TG_FN_id, shaped, &from, 1, 0, 0);
}

tg_status tg_vectors_from_gradients(const tg_vectors *v, int to, const char *who) {
    for (int i = 0; i < v->n; i++) TG_TRY(from_gradient(v, to, &v->item[i], who));
    return TG_OK;
}

tg_status tg_vectors_to_params(const tg_vectors *v, int from, const char *who) {
    for (int i = 0; i < v->n; i++) {
        tg_tensor *p = v->item[i].param;
        if (tg_ref_get(v->ctx, v->item[i].ref) != p) continue;
        tg_array in = part(v, from, v->item[i].first, &p->numel);
        TG_TRY(tg_storage_may_change(p));
        TG_TRY(map(v, TG_FN_id, line_of(p), &in, 1, 0, 0));
        tg_storage_wrote(p->storage, who, NULL);
    }
    return TG_OK;
}

/* ---- Arithmetic ---- */

tg_status tg_vectors_sum(const tg_vectors *v, int to, double p, int a, double q, int b) {
    const tg_array in[] = {whole(v, a), whole(v, b)};
    return map(v, TG_FN_linear_sum, whole(v, to), in, 2, p, q);
}

/* Reduces the work memory to one number, and reads it. */
static tg_status reduce(const tg_vectors *v, tg_reduction kind, double *result) {
    *result = 0;
    TG_TRY(v->ctx->run.ops->reduce(v->ctx, kind, tg_array_of(v->number), whole(v, v->spare), 1, false));
    if (v->ctx->meta) return TG_OK;
    return v->ctx->run.ops->copy(v->ctx, result, tg_data(v->number), sizeof *result, TG_COPY_TO_HOST);
}

tg_status tg_vectors_dot(const tg_vectors *v, int a, int b, double *result) {
    const tg_array in[] = {whole(v, a), whole(v, b)};
    TG_TRY(map(v, TG_FN_mul, whole(v, v->spare), in, 2, 0, 0));
    return reduce(v, TG_SUM, result);
}

tg_status tg_vectors_norms(const tg_vectors *v, int a, double *sum, double *most) {
    const tg_array in = whole(v, a);
    TG_TRY(map(v, TG_FN_abs, whole(v, v->spare), &in, 1, 0, 0));
    TG_TRY(reduce(v, TG_SUM, sum));
    return reduce(v, TG_MAX, most);
}
