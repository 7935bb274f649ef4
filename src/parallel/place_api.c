/* The public functions of placements (placement.h): tg_place declares the placement of a leaf, tg_placement_of and
 * other functions return the placements of any tensor, and tg_assume_placement replaces a placement. */
#include <tapegrad/derivatives.h>

#include "ops/common/op.h"
#include "placement/rule.h"
#include "placement/shard_index.h"
#include "parallel/parallel.h"

/* Lists in out the axes for which `axis` stands, and returns their number, 1 or 2. Of two, the major one comes first:
 * it is the one that divides a dim first. An axis stands for itself, except if the dense and the expert grid have the
 * same groups: etp then stands for tp, and edp for dp and cp, or for dp alone if cp is 1. */
static int axes_of(const tg_parallel *p, tg_axis axis, tg_axis out[2]) {
    bool one = p && p->one_grid;
    out[0] = one && axis == TG_ETP ? TG_TP : one && axis == TG_EDP ? TG_DP : axis;
    if (!one || axis != TG_EDP || p->o.cp == 1) return 1;
    const char *dp = strstr(p->o.order, "dp"), *cp = strstr(p->o.order, "cp");
    bool cp_outside = dp && cp && cp > dp;
    out[0] = cp_outside ? TG_CP : TG_DP;
    out[1] = cp_outside ? TG_DP : TG_CP;
    return 2;
}

/* ---- Queries ---- */

tg_placement tg_placement_of(const tg_tensor *x, tg_axis axis) {
    tg_axis at[2];
    if (!tg_is_alive(x) || (unsigned)axis >= TG_MAX_AXES) return (tg_placement){.kind = TG_INVARIANT};
    /* Of two axes the major one answers, unless it has one rank. */
    bool second = axes_of(tg_grid_of(x->ctx)->owner, axis, at) == 2 && !(tg_grid_axes(x->ctx) >> at[0] & 1);
    return tg_place_on(x, at[second]);
}

tg_shape tg_global_shape(const tg_tensor *x) { return tg_is_alive(x) ? tg_shard_global(x) : tg_shape_of(x); }

size_t tg_placement_text(const tg_tensor *x, char *buf, size_t n) {
    if (!buf) n = 0;
    if (n) buf[0] = 0;
    return tg_is_alive(x) ? tg_place_text(x->ctx, tg_place_of(x), buf, n) : 0;
}

/* ---- Declaring a leaf ---- */

static tg_status check_grid(const tg_parallel *p, const tg_ctx *ctx, tg_axis axis, const char *who) {
    if (!p || tg_grid_of(ctx)->owner != p)
        return tg_fail((tg_ctx *)ctx, TG_ERR_ARGUMENT, "%s: the tg_parallel at %p is not that of the tensor's context",
                       who, (const void *)p);
    if ((unsigned)axis >= TG_AXIS_USER || axis == TG_PP)
        return tg_fail((tg_ctx *)ctx, TG_ERR_ARGUMENT,
                       "%s: axis is %d, which has no placements; expected TG_TP, TG_CP, TG_DP, TG_ETP, TG_EP or TG_EDP",
                       who, (int)axis);
    return TG_OK;
}

/* Checks a placement for x, and makes the dim of a shard non-negative. yet: the axes, as bits, on which x may still be
 * placed later. */
static tg_status check_placement(const tg_tensor *x, tg_placement *to, uint32_t yet, const char *who) {
    char what[160];
    tg_describe(x, what, sizeof what);
    if (to->kind > TG_PARTIAL || (to->kind == TG_VARYING && to->layout > TG_ZIGZAG))
        return tg_fail(x->ctx, TG_ERR_ARGUMENT,
                       "%s: the placement has kind %d and layout %d, expected TG_I, TG_R, TG_P, TG_V or a shard", who,
                       to->kind, to->layout);
    if (!tg_placement_shards(*to)) return TG_OK;
    int dim = to->dim < 0 ? to->dim + x->ndim : to->dim;
    if (dim < 0 || dim >= x->ndim)
        return tg_fail(x->ctx, TG_ERR_SHAPE, "%s: the placement shards dim %d, but %s has %s", who, to->dim, what,
                       tg_count(x->ndim, "dim").text);
    to->dim = (int8_t)dim;
    return tg_place_check_shard(x, NULL, *to, yet, who);
}

static bool is_placed(const tg_tensor *x, tg_axis axis) { return x->ext && x->ext->placed >> axis & 1; }

/* Returns whether tg_place has already declared this placement of x on the axis. Ignores the order of the axes that
 * shard the same dim, because the first declarations decide that order. */
static bool placed_alike(const tg_tensor *x, tg_axis axis, tg_placement to) {
    tg_placement is = tg_place_on(x, axis);
    is.order = to.order = 0;
    return is_placed(x, axis) && tg_placement_same(is, to);
}

/* Fails because tg_place has already declared another placement of x on the axis. asked: as in check_leaf. */
static tg_status refuse_second(const tg_tensor *x, tg_axis axis, tg_axis asked, tg_placement to) {
    char what[160], is[24], wanted[24];
    tg_describe(x, what, sizeof what);
    tg_placement_name(tg_place_on(x, axis), is, sizeof is);
    tg_placement_name(to, wanted, sizeof wanted);
    return tg_fail(x->ctx, TG_ERR_STATE,
                   "tg_place: %s was placed on axis %s%s%s%s already: it is %s there, and cannot become %s", what,
                   tg_axis_name(axis), axis == asked ? "" : ", which is ", axis == asked ? "" : tg_axis_name(asked),
                   axis == asked ? "" : " here,", is, wanted);
}

/* Checks that x is a leaf that may still get this placement. asked: the axis that the caller named, which may be
 * another name of `axis`. */
static tg_status check_leaf(const tg_tensor *x, tg_axis axis, tg_axis asked, tg_placement to) {
    char what[160];
    tg_describe(x, what, sizeof what);
    if (x->node || !(x->flags & TG_F_LEAF))
        return tg_fail(x->ctx, TG_ERR_STATE, "tg_place: %s is not a leaf; the placement rule has placed it", what);
    if (is_placed(x, axis)) return refuse_second(x, axis, asked, to);
    if (x->uses || (x->ext && x->ext->leaf_tape))
        return tg_fail(x->ctx, TG_ERR_STATE, "tg_place: %s was already used by an op; place it before its first use",
                       what);
    bool opaque = to.kind == TG_VARYING && to.layout == TG_OPAQUE;
    if (x->flags & TG_F_PARAM && (to.kind == TG_PARTIAL || opaque))
        return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                       "tg_place: parameter %s would be %s; a parameter must be I, R or a shard", what,
                       opaque ? "opaque" : "P");
    return TG_OK;
}

/* Places a leaf on n axes, the major one first; after an error on none of them. yet: the other axes, as bits, on which
 * the leaf may still be placed later. */
static tg_status declare(tg_tensor *x, const tg_axis *axis, int n, tg_placement to, uint32_t yet) {
    tg_ctx *ctx = x->ctx;
    uint32_t axes = 0;
    for (int i = 0; i < n; i++) axes |= 1u << axis[i];
    axes &= tg_grid_axes(ctx);
    if (!axes) return TG_OK; /* one rank: any placement is the same */
    if (!tg_ext_of(x)) return ctx->run.status;
    const tg_placements *p = tg_place_of(x);
    for (int i = 0; i < n; i++)
        if (axes >> axis[i] & 1) p = tg_place_converted(ctx, p, axis[i], to);
    TG_TRY(ctx->run.status);
    TG_TRY(tg_place_check_shards(x, p, yet, "tg_place"));
    x->place = p;
    x->flags &= (uint16_t) ~(TG_F_GIVEN | TG_F_COMPARED); /* x->place now has the placements on all axes */
    x->ext->placed |= axes;
    return TG_OK;
}

/* Fails if the placement is a zigzag shard, and the axis stands for two axes (axes_of): a zigzag over one axis and then
 * over the other is not the zigzag over all ranks of both. */
static tg_status check_zigzag(const tg_ctx *ctx, int n_axes, tg_placement to, const char *who) {
    if (n_axes == 1 || to.kind != TG_VARYING || to.layout != TG_ZIGZAG) return TG_OK;
    return tg_fail((tg_ctx *)ctx, TG_ERR_UNSUPPORTED,
                   "%s: a zigzag shard over edp is not supported, because edp is dp and cp here; place it on those "
                   "axes",
                   who);
}

tg_status tg_place(const tg_parallel *p, tg_tensor *leaf, tg_axis axis, tg_placement placement) {
    if (!leaf) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = leaf->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, leaf, "tg_place"));
    TG_TRY(check_grid(p, ctx, axis, "tg_place"));
    tg_axis at[2];
    int n = axes_of(p, axis, at), left = 0;
    uint32_t yet = tg_grid_axes(ctx) & ~((leaf->ext ? leaf->ext->placed : 0) | 1u << at[0] | 1u << at[n - 1]);
    TG_TRY(check_placement(leaf, &placement, yet, "tg_place"));
    TG_TRY(check_zigzag(ctx, n, placement, "tg_place"));
    for (int i = 0; i < n; i++) {
        bool alone = n == 2 && !(tg_grid_axes(ctx) >> at[i] & 1); /* the other axis has several ranks */
        if (!alone && !placed_alike(leaf, at[i], placement)) at[left++] = at[i];
    }
    for (int i = 0; i < left; i++) TG_TRY(check_leaf(leaf, at[i], axis, placement));
    return left ? declare(leaf, at, left, placement, yet) : TG_OK;
}

/* ---- assume_placement ---- */

typedef struct assume_params {
    tg_axis axis;
    tg_placement to;
    bool back; /* of a gradient: among the axes that shard the same dim, `axis` gets the position to.order */
} assume_params;

static tg_status assume_infer(tg_call *c) {
    const assume_params *p = c->params;
    tg_tensor *x = c->input[0];
    TG_TRY(tg_call_view(c, 0, 0, x->ndim, x->shape, x->stride));
    tg_call_placed(c);
    c->out[0]->place = tg_place_of(x);
    if (tg_grid_axes(c->ctx) >> p->axis & 1)
        c->out[0]->place =
            (p->back ? tg_place_returned : tg_place_converted)(c->ctx, tg_place_of(x), p->axis, p->to);
    return c->ctx->run.status;
}

static tg_status assume_backward(tg_call *c) { return tg_call_pass(c, 0, c->gout[0]); }

/* Gives the gradient the placement that a gradient of x has on the axis: that of x, but with R instead of P, and P
 * instead of R. */
static tg_status assume_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    const assume_params *p = tg_node_params(n);
    assume_params back = *p;
    tg_tensor *x = tg_node_input(n, 0), *g = gout[0];
    back.back = true;
    back.to = tg_place_on(x, p->axis);
    if (back.to.kind == TG_REPLICATED || back.to.kind == TG_PARTIAL)
        back.to.kind = back.to.kind == TG_PARTIAL ? TG_REPLICATED : TG_PARTIAL;
    gin[0] = tg_record(t, n->op, &back, &g, 1, n->site);
    return TG_OK;
}

static const tg_sample assume_samples[] = {
    {.note = "matrix", .params = &(const assume_params){0}, .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "transposed", .params = &(const assume_params){0}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3,
                                                                                             5)}},
    {.note = "strided", .params = &(const assume_params){0}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 5)}},
    {.note = "expanded", .params = &(const assume_params){0}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "size 1", .params = &(const assume_params){0}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "scalar", .params = &(const assume_params){0}, .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "empty", .params = &(const assume_params){0}, .n_in = 1, .input = {TG_S(0, 4)}},
};

static const tg_field assume_placement_fields[] = {
    TG_ARG(assume_params, axis, ENUM, "The axis of the grid.", .of = "tg_axis", .required = true),
    TG_ARG(assume_params, to, STRUCT, "The placement of the result.", .of = "tg_placement", .required = true),
};

const tg_op tg_op_assume_placement = {
    .size = sizeof(tg_op),
    .name = "assume_placement",
    .formula = "x with another placement",
    .inputs = "x",
    .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(assume_params),
    .passes = 1,
    .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true,
    .infer = assume_infer,
    .backward = assume_backward,
    .vjp = assume_vjp,
    .jvp = tg_jvp_linear,
    TG_FIELDS(assume_placement_fields),
    TG_SAMPLES(assume_samples),
};

/* Returns a view of x with the placement `to` on the axis. Forward and backward are the identity, and convert no data.
 * Of x only the local sizes are checked, which must allow the placement; its values are not. */
tg_tensor *tg_assume_placement(tg_tape *t, tg_tensor *x, const tg_parallel *p, tg_axis axis, tg_placement to) {
    const char *who = "tg_assume_placement";
    if (tg_tape_check_with(t, &x, 1, who) != TG_OK || tg_check(t->ctx, x, who) != TG_OK ||
        check_grid(p, t->ctx, axis, who) != TG_OK || check_placement(x, &to, 0, who) != TG_OK)
        return tg_tape_inert(t, &x, 1);
    tg_axis at[2];
    int n = axes_of(p, axis, at);
    if (check_zigzag(t->ctx, n, to, who) != TG_OK) return tg_tape_inert(t, &x, 1);
    for (int i = 0; i < n; i++)
        x = TG_RECORD(t, tg_op_assume_placement, (&(assume_params){.axis = at[i], .to = to}), x);
    return x;
}
