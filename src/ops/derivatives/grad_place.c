/* Placements of derivatives that are recorded as ops. The placement of a derivative follows from the tensor whose
 * derivative it is, whatever placement the ops that compute it have produced. */
#include <tapegrad/ops.h>

#include "placement/rule.h"
#include "ops/derivatives/grad_graph.h"
#include "autograd/apply.h"

/* ---- The op that views a tensor with another placement ---- */

typedef struct placed_params {
    const tg_placements *to;
} placed_params;

static tg_status placed_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_call_view(c, 0, 0, x->ndim, x->shape, x->stride));
    tg_call_placed(c);
    c->out[0]->place = ((const placed_params *)c->params)->to;
    return TG_OK;
}

static tg_status placed_backward(tg_call *c) { return tg_call_pass(c, 0, c->gout[0]); }

/* The vjp and jvp return what they are given, because the callers of these slots set the placements of the results
 * (tg_grad_graph_place). */
static tg_status placed_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    (void)t, (void)n;
    gin[0] = gout[0];
    return TG_OK;
}

static tg_status placed_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    (void)t, (void)n;
    dout[0] = din[0];
    return TG_OK;
}

static const tg_op derivative_placed = {
    .size = sizeof(tg_op), .name = "derivative_placed", .formula = "x with the placement of a derivative", .n_in = 1,
    .n_out = 1, .params_size = sizeof(placed_params), .passes = 1, .family = TG_FAMILY_CUSTOM, .sums_f32 = true,
    .infer = placed_infer, .backward = placed_backward, .vjp = placed_vjp, .jvp = placed_jvp};

tg_tensor *tg_grad_graph_view(tg_tape *t, tg_tensor *g) {
    if (!tg_grid_axes(t->ctx)) return tg_reshape(t, g, tg_shape_of(g));
    return tg_record(t, &derivative_placed, &(placed_params){tg_place_of(g)}, &g, 1, TG_SITE);
}

/* ---- Setting a placement ---- */

static const tg_placement invariant = {.kind = TG_INVARIANT};

/* Returns the placement on one axis. p NULL means INVARIANT on every axis. */
static tg_placement at(const tg_placements *p, int axis) { return p ? p->at[axis] : invariant; }

static tg_status refuse(const tg_tape *t, const tg_node *n, int axis, tg_placement is, tg_placement want,
                        const char *what) {
    char found[24], wanted[24];
    tg_placement_name(is, found, sizeof found);
    tg_placement_name(want, wanted, sizeof wanted);
    return tg_fail(t->ctx, TG_ERR_PLACEMENT,
                   "%s: on axis %s its %s is %s and needs a gradient, expected %s; only one of these placements has a "
                   "separate gradient on each rank, so convert the tensor first (tg_copy_to_tp, tg_r_to_i)",
                   n->op->name, tg_axis_name((tg_axis)axis), what, found, wanted);
}

tg_status tg_grad_graph_place(tg_tape *t, const tg_node *n, tg_tensor **g, const tg_placements *to, const char *what) {
    tg_placement as[TG_MAX_AXES];
    const tg_placements *from = tg_grid_axes(t->ctx) ? tg_place_of(*g) : to;
    if (from == to) return t->ctx->run.status;
    bool grad = (*g)->flags & TG_F_REQUIRES_GRAD;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        tg_placement is = at(from, a), want = at(to, a);
        as[a] = want;
        if (!grad || (is.kind == TG_INVARIANT) == (want.kind == TG_INVARIANT)) continue;
        if (is.kind > TG_REPLICATED || want.kind > TG_REPLICATED) return refuse(t, n, a, is, want, what);
        as[a] = is; /* stays INVARIANT or REPLICATED, since all ranks have the same bytes with both */
    }
    const placed_params p = {tg_place_intern(t->ctx, as)};
    TG_TRY(t->ctx->run.status);
    if (p.to != from) *g = tg_record(t, &derivative_placed, &p, g, 1, n->site);
    return t->ctx->run.status;
}
