/* The way from each rank's part of a loss to the loss: the log-sum-exp over all ranks, and a sum. */
#include "parallel/vocab.h"

#include "autograd/ops/network.h"

tg_loss_params tg_vocab_params(tg_comm *c, const tg_vocab_opts *opts) {
    tg_vocab_opts o;
    tg_op_options(&o, sizeof o, opts);
    return (tg_loss_params){.comm = c,
                            .size = o.size,
                            .known = sizeof o,
                            .ignore_index = tg_loss_ignore_index(o.ignore_index),
                            .smoothing = o.label_smoothing,
                            .kind = o.smoothing,
                            .reduction = o.reduction,
                            .in_place = o.in_place,
                            .classes = o.classes};
}

static tg_loss_params *params_of(const tg_call *c) { return c->params; }

tg_status tg_vocab_shard(tg_call *c, int64_t v) {
    tg_loss_params *p = params_of(c);
    int64_t all;
    TG_TRY(tg_mapping_check(c));
    if (__builtin_mul_overflow(v, (int64_t)tg_comm_size(p->comm), &all))
        return tg_call_fail(c, TG_ERR_SHAPE, "the vocabulary overflows");
    if (p->classes < 0 || p->classes > all)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "%lld classes: expected 1 to the %lld columns of all ranks, or 0 for all",
                            (long long)p->classes, (long long)all);
    if (p->classes == 0) p->classes = all;
    p->first = tg_comm_rank(p->comm) * v;
    p->columns = p->classes - p->first;
    if (p->columns < 0) p->columns = 0;
    if (p->columns > v) p->columns = v;
    return TG_OK;
}

tg_status tg_vocab_convert(tg_call *c, int i, int dim, const char *mend) {
    const tg_loss_params *p = params_of(c);
    tg_placement from = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (int8_t)dim};
    return tg_call_convert(c, i, from, 0, tg_loss_by_partition(p) ? tg_at_v : tg_at_i, p->comm, mend);
}

/* ---- Rows: the sum of exp, the parts, and the means of partitions, [rows] each ---- */

static int64_t rows_of(const tg_call *c) { return c->in[c->n_in - 1]->numel; }

static tg_tensor *rows_from(tg_call *c, tg_tensor *rows, int first, int n) {
    int64_t count = rows_of(c);
    return tg_call_view_of(c, rows, first * count, n > 1 ? 2 : 1, n > 1 ? (int64_t[]){n, count} : (int64_t[]){count},
                           n > 1 ? (int64_t[]){count, 1} : (int64_t[]){1});
}

tg_status tg_vocab_rows(tg_call *c, tg_tensor **rows, tg_tensor **parts) {
    int more = tg_loss_by_partition(params_of(c));
    *rows = tg_call_temp(c, (tg_dtype)c->out[0]->dtype, 2, (int64_t[]){2 + more, rows_of(c)});
    *parts = rows_from(c, *rows, 1, 1 + more);
    return c->ctx->status;
}

static tg_status reduce_now(tg_call *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op) {
    TG_TRY(tg_move(c, (tg_collective_args){.kind = TG_ALL_REDUCE, .dst = dst, .src = src, .op = op}));
    return tg_storage_need(dst->storage, dst);
}

/* Two all-reduces: lse becomes that over all ranks, and the parts their sum. */
static tg_status join_ranks(tg_call *c, tg_tensor *rows, tg_tensor *lse) {
    tg_tensor *top = tg_call_temp(c, (tg_dtype)lse->dtype, 1, lse->shape), *sum = rows_from(c, rows, 0, 1);
    tg_tensor *summed = rows_from(c, rows, 0, 2);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(reduce_now(c, top, lse, TG_REDUCE_MAX));
    TG_TRY(tg_op_map(c, TG_FN_exp_sub, sum, TG_T2(lse, top), 2, 0, 0, false));
    TG_TRY(reduce_now(c, summed, summed, TG_REDUCE_SUM));
    return tg_op_map(c, TG_FN_log_add, lse, TG_T2(sum, top), 2, 0, 0, false);
}

tg_status tg_vocab_finish(tg_call *c, tg_tensor *rows) {
    const tg_loss_params *p = params_of(c);
    tg_tensor *target = c->in[c->n_in - 1], *lse = c->saved[TG_LOSS_LSE], *part = rows_from(c, rows, 1, 1);
    tg_tensor *counts, *loss;
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(join_ranks(c, rows, lse));
    if (tg_loss_by_partition(p))
        TG_TRY(tg_op_map(c, TG_FN_linear_sum, part, TG_T2(part, rows_from(c, rows, 2, 1)), 2, 1 - p->smoothing,
                         -p->smoothing, false));
    TG_TRY(tg_op_map(c, TG_FN_add, part, TG_T2(lse, part), 2, 0, 0, false));
    TG_TRY(tg_loss_counts(c, target, &counts));
    TG_TRY(tg_loss_buffer(c, &loss));
    tg_extent e[2] = {{.shape = {rows_of(c)}}, {.shape = {rows_of(c)}}};
    tg_array in[] = {tg_array_of(counts), tg_array_of(part)}, out = tg_array_of(loss);
    tg_array_reshape(&in[0], 1, e[0].shape, e[0].stride);
    tg_array_reshape(&out, 1, e[1].shape, e[1].stride);
    TG_TRY(tg_ctx_ops(c->ctx)->map(c->ctx, TG_FN_where_da, out, in, 2, (const double[2]){0}, false));
    return tg_loss_reduce(c, target, loss);
}

tg_status tg_vocab_row_grads(tg_call *c, tg_tensor **g) {
    TG_TRY(tg_loss_row_grads(c, g));
    if (!tg_loss_by_partition(params_of(c))) return TG_OK;
    const tg_tensor *target = c->in[c->n_in - 1], *from = *g;
    tg_tensor *counts;
    TG_TRY(tg_loss_counts(c, target, &counts));
    *g = tg_call_temp(c, (tg_dtype)from->dtype, target->ndim, target->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_op_map(c, TG_FN_where_da, *g, TG_T2(counts, from), 2, 0, 0, false));
    if (target->ndim == 0) *g = tg_call_view_of(c, *g, 0, 1, (int64_t[]){1}, (int64_t[]){1});
    return c->ctx->status;
}
