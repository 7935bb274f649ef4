/* The loss over a sharded vocabulary. A row is the logits of one target; each rank has some of its columns. From these
 * columns a rank computes three numbers of each row, which tg_cross_entropy_args (device.h) defines: the largest logit
 * (top), the sum of exp(logit - top) (mass), and a part of the loss; with TG_SMOOTHING_MEGATRON_PARTITION also the mean
 * of its logits. This file combines the numbers of all ranks into the loss of the whole row. The last section does the
 * same with recorded ops, for derivatives of any order. */
#include "parallel/tp/vocab/vocab.h"

#include <math.h>

#include <tapegrad/megatron.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

tg_row_loss_params tg_vocab_loss_params(tg_comm *c, const tg_vocab_opts *opts) {
    tg_vocab_opts o;
    tg_op_options(&o, &tg_vocab_opts_struct, opts);
    return (tg_row_loss_params){.comm = c,
                                .size = o.size,
                                .known = sizeof o,
                                .ignore_index = o.ignore_index,
                                .smoothing = o.label_smoothing,
                                .kind = o.smoothing_kind,
                                .reduction = o.reduction,
                                .in_place = o.in_place,
                                .classes = o.classes};
}

static tg_row_loss_params *params_of(const tg_call *c) { return c->params; }

tg_status tg_vocab_loss_shard(tg_call *c, int64_t v) {
    tg_row_loss_params *p = params_of(c);
    int64_t all;
    TG_TRY(tg_mapping_check(c));
    if (__builtin_mul_overflow(v, (int64_t)tg_comm_size(p->comm), &all))
        return tg_call_fail(c, TG_ERR_SHAPE, "the size of the whole vocabulary is too large for 64 bits");
    if (p->classes == TG_AUTO) p->classes = all;
    if (all && (p->classes < 1 || p->classes > all)) /* without columns the shapes are refused later */
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "classes is %lld, expected 1 to %lld, the columns of all ranks, or TG_AUTO for all of them",
                            (long long)p->classes, (long long)all);
    p->first = tg_comm_rank(p->comm) * v;
    p->columns = p->classes - p->first;
    if (p->columns < 0) p->columns = 0;
    if (p->columns > v) p->columns = v;
    return TG_OK;
}

tg_status tg_vocab_loss_convert(tg_call *c, int i, int dim, const char *remedy) {
    const tg_row_loss_params *p = params_of(c);
    tg_placement from = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (int8_t)dim};
    return tg_call_convert(c, i, from, 0, tg_row_loss_by_partition(p) ? tg_at_v : tg_at_i, p->comm, remedy);
}

/* ---- The temporary of tg_vocab_loss_rows ---- */

/* Returns the number of targets, which is the size of each row of the temporary. Row 0 receives the masses, of
 * this rank and then of all ranks. Row 1 has the parts of the losses. If tg_row_loss_by_partition holds, row 2 has the
 * means of this rank's logits minus top. */
static int64_t rows_of(const tg_call *c) { return c->input[c->n_in - 1]->numel; }

/* Returns a view of n rows of the temporary, from row `first` on. */
static tg_tensor *rows_from(tg_call *c, tg_tensor *rows, int first, int n) {
    int64_t count = rows_of(c);
    return tg_call_view_of(c, rows, first * count, n > 1 ? 2 : 1, n > 1 ? (int64_t[]){n, count} : (int64_t[]){count},
                           n > 1 ? (int64_t[]){count, 1} : (int64_t[]){1});
}

tg_status tg_vocab_loss_rows(tg_call *c, tg_tensor **rows, tg_tensor **parts) {
    int more = tg_row_loss_by_partition(params_of(c));
    *rows = tg_call_temp(c, (tg_dtype)c->out[0]->dtype, 2, (int64_t[]){2 + more, rows_of(c)});
    *parts = rows_from(c, *rows, 1, 1 + more);
    return c->ctx->run.status;
}

/* All-reduces src to dst, and waits for it. */
static tg_status reduce_now(tg_call *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op) {
    TG_TRY(tg_collective_start(c, params_of(c)->comm,
                               (tg_collective_args){.kind = TG_ALL_REDUCE, .dst = dst, .src = src, .op = op}));
    return tg_storage_need(dst->storage, dst);
}

/* Sets *here to whether each target is among this rank's columns: bool, one for each target. On a rank without columns
 * the result is meaningless, but has no effect. */
static tg_status targets_here(tg_call *c, tg_tensor **here) {
    const tg_row_loss_params *p = params_of(c);
    const tg_tensor *target = c->input[c->n_in - 1];
    tg_tensor *nearest = tg_call_temp(c, TG_I64, target->ndim, target->shape);
    tg_tensor *same = tg_call_temp(c, TG_BOOL, target->ndim, target->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_op_map(c, TG_FN_clamp, nearest, TG_T1(target), 1, (double)p->first,
                     (double)(p->first + p->columns - 1), false));
    TG_TRY(tg_op_map(c, TG_FN_eq, same, TG_T2(target, nearest), 2, 0, 0, false));
    *here = rows_from(c, same, 0, 1);
    return c->ctx->run.status;
}

/* Converts this rank's parts, which were computed from logits minus the largest logit of this rank, to those that
 * result from logits minus the largest logit of all ranks (top). If all logits of a row are -inf on this rank, its part
 * is 0 or infinite, and stays as it is. by: the largest logit of all ranks minus that of this rank, or 0 in such a
 * row. */
static tg_status lower_parts(tg_call *c, const tg_tensor *top, tg_tensor *rows) {
    const tg_row_loss_params *p = params_of(c);
    const tg_tensor *own = c->saved[TG_ROW_LOSS_TOP], *mass = c->saved[TG_ROW_LOSS_MASS];
    double s = tg_row_loss_by_partition(p) ? 0 : p->smoothing, share = s * (double)p->columns / (double)p->classes;
    tg_tensor *by = tg_call_temp(c, (tg_dtype)own->dtype, 1, own->shape), *part = rows_from(c, rows, 1, 1), *here;
    tg_tensor *of_target = tg_call_temp(c, (tg_dtype)own->dtype, 1, own->shape);
    TG_TRY(targets_here(c, &here));
    TG_TRY(tg_op_map(c, TG_FN_sub, by, TG_T2(top, own), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_where_da, by, TG_T2(mass, by), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_where_da, of_target, TG_T2(here, by), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_affine, part, TG_T1(of_target), 1, 1 - s, 0, true));
    if (share != 0) TG_TRY(tg_op_map(c, TG_FN_affine, part, TG_T1(by), 1, share, 0, true));
    if (!tg_row_loss_by_partition(p)) return TG_OK;
    tg_tensor *mean = rows_from(c, rows, 2, 1);
    return tg_op_map(c, TG_FN_sub, mean, TG_T2(mean, by), 2, 0, 0, false);
}

/* Replaces the saved top and mass of each row by those over all ranks, and the part by the sum of the parts of all
 * ranks, with two all-reduces. */
static tg_status join_ranks(tg_call *c, tg_tensor *rows) {
    tg_tensor *own = c->saved[TG_ROW_LOSS_TOP], *mass = c->saved[TG_ROW_LOSS_MASS], *sum = rows_from(c, rows, 0, 1);
    tg_tensor *top = tg_call_temp(c, (tg_dtype)own->dtype, 1, own->shape);
    tg_tensor *summed = rows_from(c, rows, 0, 2);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(reduce_now(c, top, own, TG_REDUCE_MAX));
    TG_TRY(lower_parts(c, top, rows));
    TG_TRY(tg_op_map(c, TG_FN_exp_sub_mul, sum, TG_T3(own, top, mass), 3, 0, 0, false));
    TG_TRY(reduce_now(c, summed, summed, TG_REDUCE_SUM));
    TG_TRY(tg_op_map(c, TG_FN_id, own, TG_T1(top), 1, 0, 0, false));
    return tg_op_map(c, TG_FN_id, mass, TG_T1(sum), 1, 0, 0, false);
}

tg_status tg_vocab_loss_finish(tg_call *c, tg_tensor *rows) {
    const tg_row_loss_params *p = params_of(c);
    tg_tensor *target = c->input[c->n_in - 1], *part = rows_from(c, rows, 1, 1);
    tg_tensor *counts, *loss;
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(join_ranks(c, rows));
    if (tg_row_loss_by_partition(p) && p->smoothing != 0)
        TG_TRY(tg_op_map(c, TG_FN_linear_sum, part, TG_T2(part, rows_from(c, rows, 2, 1)), 2, 1 - p->smoothing,
                         -p->smoothing, false));
    TG_TRY(tg_op_map(c, TG_FN_log_add, part, TG_T2(c->saved[TG_ROW_LOSS_MASS], part), 2, 0, 0, false));
    TG_TRY(tg_row_loss_counts(c, target, &counts));
    TG_TRY(tg_row_loss_buffer(c, &loss));
    tg_extent e[2] = {{.shape = {rows_of(c)}}, {.shape = {rows_of(c)}}};
    tg_array in[] = {tg_array_of(counts), tg_array_of(part)}, out = tg_array_of(loss);
    tg_array_reshape(&in[0], 1, e[0].shape, e[0].stride);
    tg_array_reshape(&out, 1, e[1].shape, e[1].stride);
    TG_TRY(tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_where_da, out, in, 2, (const double[2]){0}, false));
    return tg_row_loss_reduce(c, target, loss);
}

tg_status tg_vocab_loss_gradients(tg_call *c, tg_tensor **g) {
    TG_TRY(tg_row_loss_gradients(c, g));
    if (!tg_row_loss_by_partition(params_of(c))) return TG_OK;
    const tg_tensor *target = c->input[c->n_in - 1], *from = *g;
    tg_tensor *counts;
    TG_TRY(tg_row_loss_counts(c, target, &counts));
    *g = tg_call_temp(c, (tg_dtype)from->dtype, target->ndim, target->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_op_map(c, TG_FN_where_da, *g, TG_T2(counts, from), 2, 0, 0, false));
    if (target->ndim == 0) *g = tg_call_view_of(c, *g, 0, 1, (int64_t[]){1}, (int64_t[]){1});
    return c->ctx->run.status;
}

/* ---- The same as recorded ops: ops on each rank's own columns, and mappings ---- */

tg_tensor *tg_vocab_local_ids(tg_tape *t, tg_tensor *ids, int64_t first, int64_t rows, tg_tensor **elsewhere) {
    tg_tensor *at = tg_sub(t, tg_cast(t, ids, TG_I64), tg_full(t, TG_I64, TG_SHAPE(), (double)first));
    tg_tensor *below = tg_below(t, at, 0), *above = tg_above(t, at, (double)rows - 1);
    *elsewhere = tg_where(t, below, below, above);
    return tg_masked_fill(t, at, *elsewhere, 0);
}

static tg_tensor *sum_over_ranks(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return tg_reduce_from_tp(t, tg_as_partial(t, x, c), c);
}

/* Records lse - (1 - s) x[target] - s mean(x) for every row, where lse is the log-sum-exp over all ranks. The value
 * does not change if the same number is subtracted from all x of the row; here that is the greatest logit. An ignored
 * row may hold anything, even NaN, so it is replaced by zeros. */
static tg_tensor *row_losses(tg_tape *t, const tg_row_loss_params *p, tg_tensor *x, tg_tensor *target,
                             tg_tensor *ignored) {
    int last = x->ndim - 1;
    x = tg_wide(t, tg_as_opaque(t, x, p->comm));
    tg_tensor *elsewhere, *at = tg_vocab_local_ids(t, target, p->first, p->columns, &elsewhere);
    tg_tensor *rows = tg_unsqueeze(t, at, -1), *picked, *total, *mass, *top;
    x = tg_slice(t, x, last, 0, p->columns, 1); /* padding is left out */
    x = tg_masked_fill(t, x, tg_unsqueeze(t, ignored, -1), 0);
    if (p->columns) {
        top = tg_all_reduce_max(t, tg_detach(t, tg_max(t, x, TG_DIMS(-1), false)), p->comm);
        x = tg_sub(t, x, tg_unsqueeze(t, top, -1));
        picked = tg_masked_fill(t, tg_squeeze(t, tg_gather(t, x, -1, rows), -1), elsewhere, 0);
        total = tg_sum(t, x, TG_DIMS(-1), false);
        mass = tg_sum(t, tg_exp(t, x), TG_DIMS(-1), false);
    } else {
        mass = picked = total = tg_sum(t, x, TG_DIMS(-1), false);
        tg_all_reduce_max(t, tg_add_scalar(t, tg_detach(t, mass), -INFINITY), p->comm);
    }
    tg_tensor *lse = tg_log(t, sum_over_ranks(t, mass, p->comm));
    tg_tensor *share = tg_add(t, tg_scale(t, picked, p->smoothing - 1),
                              tg_scale(t, total, -p->smoothing / (double)p->classes));
    return tg_add(t, lse, sum_over_ranks(t, share, p->comm));
}

tg_tensor *tg_vocab_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *logits) {
    const tg_row_loss_params *p = tg_node_params(n);
    tg_tensor *target = tg_node_input(n, tg_node_inputs(n) - 1);
    if (tg_row_loss_by_partition(p)) {
        tg_fail(t->ctx, TG_ERR_UNSUPPORTED,
                "%s: TG_SMOOTHING_MEGATRON_PARTITION has no second derivative, because its loss is not a sum over the "
                "ranks; use another smoothing",
                n->op->name);
        return tg_inert(t->ctx);
    }
    tg_tensor *ignored = tg_equals(t, target, (double)p->ignore_index);
    tg_tensor *safe = tg_masked_fill(t, target, ignored, 0);
    return tg_row_loss_compose_reduce(t, p, row_losses(t, p, logits, safe, ignored), target, ignored);
}
