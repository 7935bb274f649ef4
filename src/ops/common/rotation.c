/* Computes rotations (rotation.h) by the device's slots. Angles are float64 up to the last step, so that distant
 * positions keep their digits. */
#include "ops/common/rotation.h"

#include <math.h>

#include "ops/common/derive.h"

/* How rows are rotated: the params of the op, and its input 1 or NULL. */
typedef struct rotation {
    tg_rope_opts opts;
    const tg_tensor *positions;
    bool back;
} rotation;

/* ---- Frequencies ---- */

/* Returns the index of the pair, as a real number, whose plain angle makes `turns` full turns over o->original
 * positions. */
static double pair_of_turns(const tg_rope_opts *o, double turns) {
    const double pi = 3.14159265358979323846;
    return (double)o->dims * log((double)o->original / (turns * 2 * pi)) / (2 * log(o->base));
}

/* Fills keep [1, half] with the share of each plain frequency that is kept, in [0, 1]; the rest is divided by the
 * factor. For TG_ROPE_LLAMA3 the share is linear in the number of turns that the pair makes over the original
 * positions, as in Llama 3.1. Otherwise it is linear in the index of the pair, as in YaRN (Peng et al., arXiv
 * 2309.00071). */
static tg_status fill_kept(tg_call *c, const tg_rope_opts *o, const tg_tensor *frequency, const tg_tensor *keep) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const double turn = 2 * 3.14159265358979323846;
    if (o->kind == TG_ROPE_LLAMA3) {
        double span = o->high - o->low;
        TG_TRY(tg_op_map(c, TG_FN_affine, keep, TG_T1(frequency), 1, (double)o->original / (turn * span),
                         -o->low / span, false));
    } else {
        double first = fmax(floor(pair_of_turns(o, o->high)), 0);
        double last = fmin(ceil(pair_of_turns(o, o->low)), (double)(o->dims - 1));
        double span = last == first ? 0.001 : last - first; /* as in YaRN's program, to avoid dividing by 0 */
        TG_TRY(ops->iota(c->ctx, tg_array_of(keep), 1 + first / span, -1 / span));
    }
    return tg_op_map(c, TG_FN_clamp, keep, TG_T1(keep), 1, 0, 1, false);
}

/* Changes the plain frequencies [1, half] as o->kind says. */
static tg_status change(tg_call *c, const tg_rope_opts *o, const tg_tensor *frequency) {
    const double rest = 1 / o->factor;
    if (o->kind == TG_ROPE_PLAIN) return TG_OK;
    if (o->kind == TG_ROPE_LINEAR)
        return tg_op_map(c, TG_FN_affine, frequency, TG_T1(frequency), 1, rest, 0, false);
    tg_tensor *keep = tg_call_temp(c, TG_F64, 2, frequency->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(fill_kept(c, o, frequency, keep));
    TG_TRY(tg_op_map(c, TG_FN_affine, keep, TG_T1(keep), 1, 1 - rest, rest, false));
    return tg_op_map(c, TG_FN_mul, frequency, TG_T2(frequency, keep), 2, 0, 0, false);
}

/* ---- Angles ---- */

tg_status tg_rotation_positions(tg_call *c, int i) {
    const tg_tensor *x = c->input[0], *at = c->input[i];
    int rows = x->ndim - 2;
    if (at->dtype != TG_I64)
        return tg_call_fail(c, TG_ERR_DTYPE, "positions are %s; they must be i64", tg_dtype_name((tg_dtype)at->dtype));
    bool batches = at->ndim == 2 && rows > 0 && at->shape[0] == x->shape[0];
    if ((at->ndim != 1 && !batches) || at->shape[at->ndim - 1] != x->shape[rows])
        return tg_call_fail(c, TG_ERR_SHAPE, "positions must be a vector of %s, one for each row of x, or have such a "
                            "vector for each element of the first dim of x",
                            tg_count(x->shape[rows], "element").text);
    TG_TRY(tg_call_role(c, 0, rows, rows)); /* the rows may be sharded, because their positions are */
    if (batches) TG_TRY(tg_call_role(c, i, 0, 0));
    return tg_call_role(c, i, at->ndim - 1, rows);
}

/* Fills position, float64 [n, s, 1], from r->positions or r->opts.offset. */
static tg_status fill_positions(tg_call *c, const rotation *r, const tg_tensor *position) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const tg_tensor *at = r->positions;
    if (!at) return ops->iota(c->ctx, tg_array_of(position), (double)r->opts.offset, 1);
    const int64_t stride[] = {at->ndim == 2 ? at->stride[0] : 0, at->stride[at->ndim - 1], 0};
    return tg_op_copy(c, tg_array_of(position), tg_array_at(tg_array_of(at), 0, 3, position->shape, stride), false);
}

/* Makes the cosines and sines of all angles, [n, s, half] each. n is 1, or the number of rows of positions. */
static tg_status make_angles(tg_call *c, const rotation *r, int64_t s, int64_t half, tg_tensor *of[2]) {
    static const int functions[2] = {TG_FN_cos, TG_FN_sin};
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const tg_rope_opts *o = &r->opts;
    const int64_t n = r->positions && r->positions->ndim == 2 ? r->positions->shape[0] : 1;
    const int64_t shape[] = {n, s, half}, column[] = {n, s, 1}, row[] = {1, half};
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)c->input[0]->dtype);
    tg_tensor *position = tg_call_temp(c, TG_F64, 3, column), *frequency = tg_call_temp(c, TG_F64, 2, row);
    tg_tensor *angle = tg_call_temp(c, TG_F64, 3, shape);
    for (int i = 0; i < 2; i++) of[i] = tg_call_temp(c, dtype, 3, shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(fill_positions(c, r, position));
    TG_TRY(ops->iota(c->ctx, tg_array_of(frequency), 0, half ? -log(o->base) / (double)half : 0));
    TG_TRY(tg_op_map(c, TG_FN_exp, frequency, TG_T1(frequency), 1, 0, 0, false));
    TG_TRY(change(c, o, frequency));
    TG_TRY(tg_op_map(c, TG_FN_mul, angle, TG_T2(position, frequency), 2, 0, 0, false));
    for (int i = 0; i < 2; i++) {
        TG_TRY(tg_op_map(c, functions[i], of[i], TG_T1(angle), 1, 0, 0, false));
        if (o->gain != 1) TG_TRY(tg_op_map(c, TG_FN_affine, of[i], TG_T1(of[i]), 1, o->gain, 0, false));
    }
    return TG_OK;
}

/* ---- Rotation ---- */

/* Returns the cosines or sines [n, s, half] in the shape of u, one half of x. Their dim n is the first one of u. */
static tg_array along(const tg_tensor *of, const tg_array *u, int64_t stride[TG_MAX_DIMS]) {
    tg_array a = tg_array_of(of);
    for (int d = 0; d < u->ndim; d++) stride[d] = 0;
    if (of->shape[0] > 1) stride[0] = of->stride[0];
    for (int d = 1; d <= 2; d++) stride[u->ndim - d] = of->stride[3 - d];
    return tg_array_at(a, 0, u->ndim, u->shape, stride);
}

/* y (+)= x for the n elements of each row from `first` on. `last` is the last dim. */
static tg_status copy_rest(tg_call *c, tg_array y, tg_array x, int last, int64_t first, int64_t n, bool add) {
    tg_extent e[2];
    if (!n) return TG_OK;
    tg_array from = tg_array_slice(x, last, first, n, 1, &e[0]), to = tg_array_slice(y, last, first, n, 1, &e[1]);
    return tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_id, to, &from, 1, (double[2]){0}, add);
}

/* y (+)= x rotated. */
static tg_status rotate(tg_call *c, const rotation *r, const tg_tensor *y, const tg_tensor *x, bool add) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    int last = x->ndim - 1;
    int64_t half = r->opts.dims / 2, stride[2][TG_MAX_DIMS];
    tg_tensor *of[2];
    tg_extent e[4];
    TG_TRY(make_angles(c, r, x->shape[last - 1], half, of));
    tg_array ax = tg_array_of(x), ay = tg_array_of(y);
    tg_array u = tg_array_slice(ax, last, 0, half, 1, &e[0]), v = tg_array_slice(ax, last, half, half, 1, &e[1]);
    tg_array yu = tg_array_slice(ay, last, 0, half, 1, &e[2]), yv = tg_array_slice(ay, last, half, half, 1, &e[3]);
    tg_array cosine = along(of[0], &u, stride[0]), sine = along(of[1], &u, stride[1]);
    TG_TRY(ops->apply(c->ctx, r->back ? TG_FN_mul_mul_add : TG_FN_mul_mul_sub, yu, (tg_array[]){u, cosine, v, sine}, 4,
                      (double[2]){0}, add));
    TG_TRY(ops->apply(c->ctx, r->back ? TG_FN_mul_mul_sub : TG_FN_mul_mul_add, yv, (tg_array[]){v, cosine, u, sine}, 4,
                      (double[2]){0}, add));
    return copy_rest(c, ay, ax, last, 2 * half, x->shape[last] - 2 * half, add);
}

/* ---- The slots of the ops ---- */

static rotation rotation_of(const tg_call *c, bool turned) {
    const tg_rotation_params *p = c->params;
    return (rotation){.opts = p->opts, .positions = c->n_in > 1 ? c->input[1] : NULL, .back = p->back != turned};
}

tg_status tg_rotation_forward(tg_call *c) {
    const rotation r = rotation_of(c, false);
    return rotate(c, &r, c->out[0], c->input[0], false);
}

/* The transpose of a rotation is the rotation in the opposite direction. */
tg_status tg_rotation_backward(tg_call *c) {
    const rotation r = rotation_of(c, true);
    return rotate(c, &r, c->gin[0], c->gout[0], tg_adds(c, 0));
}

tg_status tg_rotation_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_rotation_params p = *(const tg_rotation_params *)tg_node_params(n);
    tg_tensor *in[] = {gout[0], tg_node_input(n, 1)};
    p.back = !p.back;
    gin[0] = tg_record(t, n->op, &p, in, tg_node_inputs(n), n->site);
    return TG_OK;
}
