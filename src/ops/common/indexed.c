/* Reading and adding at positions given by a tensor of indices: the calls of the device, and the checks (indexed.h). */
#include "ops/common/indexed.h"

#include "kernels/index_position.h"
#include "ops/common/derive.h"

const tg_field tg_index_fields[1] = {
    TG_ARG(tg_index_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
};

int64_t tg_index_at(tg_array index, int64_t position) {
    int64_t at = 0;
    for (int d = index.ndim - 1; d >= 0; d--) {
        at += position % index.shape[d] * index.stride[d];
        position /= index.shape[d];
    }
    return index.dtype == TG_I64 ? ((const int64_t *)index.data)[at] : ((const int32_t *)index.data)[at];
}

tg_status tg_op_bad_index(tg_call *c, int64_t bad, tg_array index, int64_t size) {
    if (TG_LIKELY(!bad)) return TG_OK;
    if (!c->ctx->host) return tg_op_bad(c, (bad - 1) / tg_index_repeats(&index) + 1, "the indices");
    int64_t found = tg_index_at(index, bad - 1);
    if (size == 0)
        return tg_call_fail(c, TG_ERR_DATA, "index %lld is out of range; no index is valid, because the dim that it is "
                            "for has size 0", (long long)found);
    return tg_call_fail(c, TG_ERR_DATA, "index %lld is out of range; it must be from 0 to %lld", (long long)found,
                        (long long)size - 1);
}

tg_status tg_op_take(tg_call *c, tg_array out, tg_array src, tg_array index, int dim) {
    int64_t bad = 0;
    TG_TRY(tg_ctx_ops(c->ctx)->take(c->ctx, out, src, index, dim, &bad));
    return tg_op_bad_index(c, bad, index, src.shape[dim]);
}

tg_status tg_op_put_add(tg_call *c, tg_array dst, tg_array src, tg_array index, int dim) {
    int64_t bad = 0;
    TG_TRY(tg_ctx_ops(c->ctx)->put_add(c->ctx, dst, src, index, dim, &bad));
    return tg_op_bad_index(c, bad, index, dst.shape[dim]);
}

tg_status tg_op_find_last(tg_call *c, tg_array stays, tg_array last, tg_array numbers, tg_array index, int dim) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    TG_TRY(tg_op_put(c, last, numbers, index, dim, NULL));
    TG_TRY(ops->take(c->ctx, stays, last, index, dim, NULL));
    return ops->apply(c->ctx, TG_FN_eq, stays, (const tg_array[]){stays, numbers}, 2, (const double[2]){0}, false);
}

tg_status tg_op_compare_count(tg_call *c, tg_array counted, tg_formula differ, int64_t limit, int64_t *held) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const int64_t one = 1;
    int64_t bad = 0;
    *held = -1;
    const tg_tensor *expected = tg_call_temp(c, TG_I64, 1, &one), *differs = tg_call_temp(c, TG_I64, 1, &one),
                    *unused = tg_call_temp(c, TG_I64, 1, &one);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->fill(c->ctx, tg_array_of(expected), (double)limit));
    const tg_array in[] = {counted, tg_array_of(expected)};
    TG_TRY(ops->apply(c->ctx, differ, tg_array_of(differs), in, 2, (const double[2]){0}, false));
    TG_TRY(ops->take(c->ctx, tg_array_of(unused), tg_array_of(expected), tg_array_of(differs), 0, &bad));
    if (TG_LIKELY(!bad) || !c->ctx->host) return tg_op_bad(c, bad, "the mask's count");
    memcpy(held, counted.data, sizeof *held);
    return TG_OK;
}

tg_status tg_index_inside(tg_call *c, const tg_tensor *index, int dim) {
    const tg_tensor *x = c->input[0];
    if (index->ndim != x->ndim)
        return tg_call_fail(c, TG_ERR_SHAPE, "index has %s; it must have %d, as input 0 does",
                            tg_count(index->ndim, "dim").text, x->ndim);
    for (int d = 0; d < x->ndim; d++)
        if (d != dim && index->shape[d] > x->shape[d])
            return tg_call_fail(c, TG_ERR_SHAPE, "index has size %lld in dim %d; it must be at most %lld, the size of "
                                "input 0", (long long)index->shape[d], d, (long long)x->shape[d]);
    return TG_OK;
}

tg_status tg_index_free(tg_call *c, int dim) {
    const tg_tensor *x = c->input[0], *index = c->input[1];
    for (int d = 0; tg_call_places(c) && d < x->ndim; d++)
        if (d != dim && index->shape[d] == x->shape[d])
            for (int i = 0; i < c->n_in; i++) TG_TRY(tg_call_role(c, i, d, d));
    return TG_OK;
}

tg_tensor *tg_index_put_gradient(tg_tape *t, const tg_node *n, tg_tensor *g, tg_tensor *index) {
    tg_tensor *x = tg_node_in(n)[0];
    return tg_scatter_add(t, tg_zeros_like(t, x), ((const tg_index_params *)tg_node_params(n))->dim, index, g);
}
