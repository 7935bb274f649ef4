/* Vectors over a list of parameters: copies, sums and reductions. */
#include "optim/flat.h"

#include "autograd/gradients.h"
#include "base/host_memory.h"
#include "kernels/scalar.h"

/* ---- Memory ---- */

tg_status tg_flat_open(tg_flat *f, tg_ctx *ctx, tg_tensor *const *params, int n, int vectors) {
    tg_dtype dtype = TG_F32;
    *f = (tg_flat){.ctx = ctx, .n = n, .spare = vectors};
    f->item = tg_host_alloc(ctx, (size_t)n * sizeof *f->item);
    for (int i = 0; f->item && i < n; i++) {
        f->item[i] = (tg_flat_item){params[i], tg_ref_of(params[i]), f->length};
        f->length += params[i]->numel;
        if (params[i]->dtype == TG_F64) dtype = TG_F64;
    }
    const int64_t all = (vectors + 1) * f->length, one = 1;
    if (tg_ok(ctx)) f->vectors = tg_owned_empty(ctx, dtype, 1, &all, TG_MEM_OPTIMIZER);
    if (tg_ok(ctx)) f->number = tg_owned_empty(ctx, TG_F64, 1, &one, TG_MEM_OPTIMIZER);
    return ctx->run.status;
}

void tg_flat_close(tg_flat *f) {
    if (f->number) tg_drop(f->number);
    if (f->vectors) tg_drop(f->vectors);
    tg_host_free(f->ctx, f->item, (size_t)f->n * sizeof *f->item);
}

tg_status tg_flat_check(const tg_flat *f, const char *who) {
    for (int i = 0; i < f->n; i++)
        if (tg_ref_get(f->ctx, f->item[i].ref) != f->item[i].param)
            return tg_fail(f->ctx, TG_ERR_HANDLE, "%s: parameter %d was dropped; parameters must outlive the optimizer",
                           who, i);
    return TG_OK;
}

/* ---- Arrays ---- */

/* Returns *n elements of a vector, from `first` on. n must live as long as the result. */
static tg_array part(const tg_flat *f, int vector, int64_t first, const int64_t *n) {
    static const int64_t dense = 1;
    tg_array a = tg_array_of(f->vectors);
    int64_t at = (vector * f->length + first) * (int64_t)tg_dtype_size((tg_dtype)a.dtype);
    a.data = a.data ? (char *)a.data + at : NULL;
    a.shape = n, a.stride = &dense, a.ndim = 1, a.numel = *n;
    return a;
}

static tg_array whole(const tg_flat *f, int vector) { return part(f, vector, 0, &f->length); }

/* Returns x, which is contiguous, as an array of 1 dim. */
static tg_array line_of(const tg_tensor *x) {
    static const int64_t dense = 1;
    tg_array a = tg_array_of(x);
    a.shape = &x->numel, a.stride = &dense, a.ndim = 1;
    return a;
}

static tg_status map(const tg_flat *f, tg_formula formula, tg_array out, const tg_array *in, int n, double p,
                     double q) {
    return f->ctx->run.ops->apply(f->ctx, formula, out, in, n, (const double[2]){p, q}, false);
}

/* ---- Copies ---- */

tg_status tg_flat_from_params(const tg_flat *f, int to) {
    for (int i = 0; i < f->n; i++) {
        const tg_tensor *p = f->item[i].param;
        tg_array from = line_of(p);
        TG_TRY(tg_storage_need(p->storage, p));
        TG_TRY(map(f, TG_FN_id, part(f, to, f->item[i].first, &p->numel), &from, 1, 0, 0));
    }
    return TG_OK;
}

static tg_status from_gradient(const tg_flat *f, int to, const tg_flat_item *it, const char *who) {
    tg_array out = part(f, to, it->first, &it->param->numel);
    tg_tensor *g = tg_gradient_of(it->param);
    TG_TRY(tg_gradient_need_drained(it->param, who));
    if (!g) return f->ctx->run.ops->fill(f->ctx, out, 0);
    TG_TRY(tg_gradient_need_whole(it->param, who));
    TG_TRY(tg_storage_need(g->storage, g));
    tg_array from = tg_array_of(g), shaped = tg_array_of(it->param);
    shaped.data = out.data, shaped.dtype = out.dtype;
    return map(f, TG_FN_id, shaped, &from, 1, 0, 0);
}

tg_status tg_flat_from_gradients(const tg_flat *f, int to, const char *who) {
    for (int i = 0; i < f->n; i++) TG_TRY(from_gradient(f, to, &f->item[i], who));
    return TG_OK;
}

tg_status tg_flat_to_params(const tg_flat *f, int from, const char *who) {
    for (int i = 0; i < f->n; i++) {
        tg_tensor *p = f->item[i].param;
        tg_array in = part(f, from, f->item[i].first, &p->numel);
        TG_TRY(tg_storage_may_change(p));
        TG_TRY(map(f, TG_FN_id, line_of(p), &in, 1, 0, 0));
        tg_storage_wrote(p->storage, who, NULL);
    }
    return TG_OK;
}

/* ---- Arithmetic ---- */

tg_status tg_flat_sum(const tg_flat *f, int to, double p, int a, double q, int b) {
    const tg_array in[] = {whole(f, a), whole(f, b)};
    return map(f, TG_FN_linear_sum, whole(f, to), in, 2, p, q);
}

/* Reduces the work memory to one number, and reads it. */
static tg_status reduce(const tg_flat *f, tg_reduction kind, double *result) {
    *result = 0;
    TG_TRY(f->ctx->run.ops->reduce(f->ctx, kind, tg_array_of(f->number), whole(f, f->spare), 1, false));
    if (f->ctx->meta) return TG_OK;
    return f->ctx->run.ops->copy(f->ctx, result, tg_data(f->number), sizeof *result, TG_COPY_TO_HOST);
}

tg_status tg_flat_dot(const tg_flat *f, int a, int b, double *result) {
    const tg_array in[] = {whole(f, a), whole(f, b)};
    TG_TRY(map(f, TG_FN_mul, whole(f, f->spare), in, 2, 0, 0));
    return reduce(f, TG_SUM, result);
}

tg_status tg_flat_norms(const tg_flat *f, int a, double *sum, double *most) {
    const tg_array in = whole(f, a);
    TG_TRY(map(f, TG_FN_abs, whole(f, f->spare), &in, 1, 0, 0));
    TG_TRY(reduce(f, TG_SUM, sum));
    return reduce(f, TG_MAX, most);
}
