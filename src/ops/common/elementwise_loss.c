/* Options, shapes and reductions of element-wise losses; see elementwise_loss.h. */
#include "ops/common/elementwise_loss.h"

#include "ops/common/derive.h"
#include "ops/common/row_loss.h"
#include "ops/common/nn_op.h"

tg_elementwise_loss_params tg_elementwise_loss_params_of(const tg_loss_opts *opts, unsigned uses) {
    tg_loss_opts o;
    tg_op_options(&o, &tg_loss_opts_struct, opts);
    const tg_loss_opts usual = {TG_LOSS_DEFAULTS};
    bool ignores = o.ignore_index != usual.ignore_index;
    const char *unused = ignores && !(uses & TG_LOSS_USES_IGNORE_INDEX)      ? "ignore_index"
                         : o.log_target && !(uses & TG_LOSS_USES_LOG_TARGET) ? "log_target"
                                                                             : NULL;
    return (tg_elementwise_loss_params){.size = o.size,
                                        .known = sizeof o,
                                        .reduction = o.reduction,
                                        .log_target = o.log_target,
                                        .ignore_index = o.ignore_index,
                                        .unused = unused};
}

tg_status tg_elementwise_loss_check(tg_call *c, tg_loss_reduction last) {
    tg_elementwise_loss_params *p = c->params;
    TG_TRY(tg_size_check(c->ctx, p->size, p->known, "the options"));
    if (p->unused)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "option %s is set, but this loss does not use it; leave it at its default", p->unused);
    if (p->reduction >= TG_LOSS_MEAN && p->reduction <= last) return TG_OK;
    return tg_call_fail(c, TG_ERR_ARGUMENT, "reduction is %d; it must be TG_LOSS_MEAN, _SUM%s", (int)p->reduction,
                        last == TG_LOSS_NONE ? " or _NONE" : ", _NONE or _BATCH_MEAN");
}

/* Returns whether input i is present and has another shape than x (input 0). It then broadcasts to the shape of x, so
 * its dims align with the last dims of x. */
static bool broadcasts(const tg_call *c, int i) { return c->input[i] && !tg_same_shape(c->input[i], c->input[0]); }

/* Returns whether input i, which holds weights, has a weight of its own for each index along this dim of x. */
static bool varies_along(const tg_call *c, int i, int dim) {
    int d = dim - (c->input[0]->ndim - c->input[i]->ndim);
    return d >= 0 && c->input[i]->shape[d] != 1;
}

/* States that all dims may be sharded, and that the inputs from 2 on, which hold weights, may have size 1 where x has a
 * shard. */
static tg_status declare_free(tg_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (c->input[i]) TG_TRY(tg_call_free(c, i, c->input[0]->ndim - c->input[i]->ndim));
    return tg_call_stretch(c, ~3u);
}

/* States that a dim over which the op sums may be sharded (TG_SUMMED of tg_call_role) if no weight that is broadcast
 * varies along it. Each rank then has all weights that its terms of the sum need. */
static tg_status declare_summed(tg_call *c) {
    uint32_t within = 0;
    for (int d = 0; d < c->input[0]->ndim; d++) {
        bool summed = true;
        for (int i = 2; i < c->n_in; i++)
            if (broadcasts(c, i)) summed &= !varies_along(c, i, d);
        for (int i = 0; summed && i < c->n_in; i++)
            if (c->input[i] && !broadcasts(c, i)) TG_TRY(tg_call_role(c, i, d, TG_SUMMED));
    }
    for (int i = 2; i < c->n_in; i++)
        if (broadcasts(c, i)) within |= 1u << i;
    return tg_call_within(c, within);
}

/* Checks that input i broadcasts to input 0. */
static tg_status need_weight(tg_call *c, int i) {
    const tg_tensor *x = c->input[0], *w = c->input[i];
    if (!w) return TG_OK;
    TG_TRY(tg_need_same_dtype(c, 0, i));
    int front = x->ndim - w->ndim;
    bool fits = front >= 0;
    for (int d = 0; fits && d < w->ndim; d++) fits = w->shape[d] == 1 || w->shape[d] == x->shape[front + d];
    return fits ? TG_OK : tg_call_fail(c, TG_ERR_SHAPE, "input %d does not broadcast to the shape of input 0", i);
}

tg_status tg_elementwise_loss_infer(tg_call *c, tg_loss_reduction last) {
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_elementwise_loss_check(c, last));
    const tg_elementwise_loss_params *p = c->params;
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (!tg_same_shape(x, c->input[1])) return tg_call_fail(c, TG_ERR_SHAPE, "x and y have different shapes; they must "
                                                         "be equal");
    for (int i = 2; i < c->n_in; i++) TG_TRY(need_weight(c, i));
    if (p->reduction == TG_LOSS_BATCH_MEAN && x->ndim == 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "x is a scalar; TG_LOSS_BATCH_MEAN needs 1 or more dims, of which the "
                            "first is the batch");
    if (tg_call_places(c) && p->reduction == TG_LOSS_NONE) TG_TRY(declare_free(c));
    if (tg_call_places(c) && p->reduction == TG_LOSS_SUM) TG_TRY(declare_summed(c));
    return tg_call_out(c, 0, tg_accumulate_dtype((tg_dtype)x->dtype), p->reduction == TG_LOSS_NONE ? x->ndim : 0,
                       x->shape);
}

tg_tensor *tg_elementwise_loss_temp(tg_call *c) {
    return tg_call_temp(c, tg_accumulate_dtype((tg_dtype)c->input[0]->dtype), c->input[0]->ndim, c->input[0]->shape);
}

tg_tensor *tg_elementwise_loss_buffer(tg_call *c) {
    const tg_elementwise_loss_params *p = c->params;
    return p->reduction == TG_LOSS_NONE ? c->out[0] : tg_elementwise_loss_temp(c);
}

/* Returns the factor that turns the sum of the elements' losses into the result. */
static double scale_of(const tg_elementwise_loss_params *p, const tg_tensor *x) {
    if (p->reduction == TG_LOSS_MEAN) return 1 / (double)x->numel;
    return p->reduction == TG_LOSS_BATCH_MEAN ? 1 / (double)x->shape[0] : 1;
}

tg_status tg_elementwise_loss_reduce(tg_call *c, const tg_tensor *loss) {
    const tg_elementwise_loss_params *p = c->params;
    tg_extent e;
    double scale = scale_of(p, c->input[0]);
    if (p->reduction != TG_LOSS_NONE) {
        tg_array sum = tg_array_keep(tg_array_of(c->out[0]), loss->ndim, (1u << loss->ndim) - 1, &e);
        return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, sum, tg_array_of(loss), scale, false);
    }
    return scale == 1 ? TG_OK : tg_op_map(c, TG_FN_affine, loss, TG_T1(loss), 1, scale, 0, false);
}

tg_tensor *tg_elementwise_loss_gradient(tg_call *c, double factor) {
    tg_tensor *g = c->gout[0];
    double scale = factor * scale_of(c->params, c->input[0]);
    if (scale == 1) return g;
    tg_tensor *scaled = tg_call_temp(c, (tg_dtype)g->dtype, g->ndim, g->shape);
    if (tg_ok(c->ctx)) tg_op_map(c, TG_FN_affine, scaled, TG_T1(g), 1, scale, 0, false);
    return scaled;
}

tg_tensor *tg_elementwise_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *loss) {
    const tg_elementwise_loss_params *p = tg_node_params(n);
    double scale = scale_of(p, tg_node_in(n)[0]);
    if (p->reduction != TG_LOSS_NONE) loss = tg_sum(t, loss, TG_ALL_DIMS, false);
    return scale == 1 ? loss : tg_scale(t, loss, scale);
}
