/* Rotary position embedding. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "autograd/apply.h"

/* Rotary position embedding (Su et al., arXiv 2104.09864): in x [.., s, d] each pair (i, i + d/2) is rotated by the
 * angle of its position. */

typedef struct rope_params {
    double base;
    int64_t offset;
    bool back; /* rotate in the opposite direction */
} rope_params;

static tg_status rope_infer(tg_call *c) {
    const rope_params *p = c->params;
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_float(c, 0));
    if (x->ndim < 2 || x->shape[x->ndim - 1] % 2 != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "x must be [.., s, d] with 2 or more dims and an even d");
    if (!(p->base > 0 && isfinite(p->base)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "base is %g; it must be finite and greater than 0", p->base);
    /* Dim ndim - 2, that of the rows, must not be sharded, unless rope_at says that it may: the index of a row is its
     * position. */
    for (int d = 0; d < x->ndim - 2; d++) TG_TRY(tg_call_role(c, 0, d, d));
    TG_TRY(tg_call_linear(c, 1));
    return tg_infer_same(c);
}

/* Cosines and sines of all angles, [s, d/2] each. Angles are float64 up to the last step, so that distant positions
 * keep their digits. */
typedef struct rotation {
    tg_tensor *cos, *sin;
} rotation;

/* Fills position, float64 [s, 1]: with the positions of the op rope_at, or with offset, offset + 1 and so on. */
static tg_status fill_positions(tg_call *c, const tg_tensor *position) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const rope_params *p = c->params;
    if (c->n_in == 1) return ops->iota(c->ctx, tg_array_of(position), (double)p->offset, 1);
    const int64_t stride[] = {c->input[1]->stride[0], 0};
    return tg_op_copy(c, tg_array_of(position), tg_array_at(tg_array_of(c->input[1]), 0, 2, position->shape, stride),
                      false);
}

static tg_status make_rotation(tg_call *c, int64_t s, int64_t half, rotation *r) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const rope_params *p = c->params;
    const int64_t shape[] = {s, half}, column[] = {s, 1}, row[] = {1, half};
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)c->input[0]->dtype);
    tg_tensor *position = tg_call_temp(c, TG_F64, 2, column), *frequency = tg_call_temp(c, TG_F64, 2, row);
    tg_tensor *angle = tg_call_temp(c, TG_F64, 2, shape);
    r->cos = tg_call_temp(c, dtype, 2, shape);
    r->sin = tg_call_temp(c, dtype, 2, shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(fill_positions(c, position));
    TG_TRY(ops->iota(c->ctx, tg_array_of(frequency), 0, half ? -log(p->base) / (double)half : 0));
    TG_TRY(tg_op_map(c, TG_FN_exp, frequency, TG_T1(frequency), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_mul, angle, TG_T2(position, frequency), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_cos, r->cos, TG_T1(angle), 1, 0, 0, false));
    return tg_op_map(c, TG_FN_sin, r->sin, TG_T1(angle), 1, 0, 0, false);
}

/* y (+)= x rotated. Each pair (u, v) becomes (u cos - v sin, v cos + u sin) or, if back is true,
 * (u cos + v sin, v cos - u sin). */
static tg_status rotate(tg_call *c, const tg_tensor *y, const tg_tensor *x, bool back, bool add) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    int last = x->ndim - 1;
    int64_t half = x->shape[last] / 2, stride[2][TG_MAX_DIMS];
    rotation r;
    tg_extent e[4];
    TG_TRY(make_rotation(c, x->shape[last - 1], half, &r));
    tg_array ax = tg_array_of(x), ay = tg_array_of(y);
    tg_array u = tg_array_slice(ax, last, 0, half, 1, &e[0]), v = tg_array_slice(ax, last, half, half, 1, &e[1]);
    tg_array yu = tg_array_slice(ay, last, 0, half, 1, &e[2]), yv = tg_array_slice(ay, last, half, half, 1, &e[3]);
    tg_array cosine = tg_array_expand(tg_array_of(r.cos), x->ndim, u.shape, stride[0]);
    tg_array sine = tg_array_expand(tg_array_of(r.sin), x->ndim, u.shape, stride[1]);
    TG_TRY(ops->apply(c->ctx, back ? TG_FN_mul_mul_add : TG_FN_mul_mul_sub, yu, (tg_array[]){u, cosine, v, sine}, 4,
                    (double[2]){0}, add));
    return ops->apply(c->ctx, back ? TG_FN_mul_mul_sub : TG_FN_mul_mul_add, yv, (tg_array[]){v, cosine, u, sine}, 4,
                    (double[2]){0}, add);
}

static tg_status rope_forward(tg_call *c) {
    return rotate(c, c->out[0], c->input[0], ((const rope_params *)c->params)->back, false);
}

/* The transpose of a rotation is the rotation in the opposite direction. */
static tg_status rope_backward(tg_call *c) {
    return rotate(c, c->gin[0], c->gout[0], !((const rope_params *)c->params)->back, tg_adds(c, 0));
}

static tg_tensor *turn_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    rope_params p = *(const rope_params *)tg_node_params(n);
    tg_tensor *in[] = {g, tg_node_input(n, 1)};
    p.back = !p.back;
    return tg_record(t, n->op, &p, in, tg_node_inputs(n), n->site);
}

TG_VJP(rope_vjp, turn_back(t, n, g))

static const rope_params plain = {.base = 10000};

static const tg_sample rope_samples[] = {
    {.note = "heads", .params = &plain, .n_in = 1, .input = {TG_S(2, 3, 4, 6)}},
    {.note = "one head", .params = &plain, .n_in = 1, .input = {TG_S(5, 4)}},
    {.note = "later positions", .params = &(const rope_params){.base = 10000, .offset = 1000}, .n_in = 1,
     .input = {TG_S(2, 3, 8)}},
    {.note = "small base", .params = &(const rope_params){.base = 2, .offset = 7}, .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "transposed", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4)}},
    {.note = "strided", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4)}},
    {.note = "equal heads", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 3, 4)}},
    {.note = "one pair", .params = &plain, .n_in = 1, .input = {TG_S(1, 2)}},
    {.note = "no positions", .params = &plain, .n_in = 1, .input = {TG_S(2, 0, 4)}},
    {.note = "no pairs", .params = &plain, .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "odd d", .params = &plain, .n_in = 1, .input = {TG_S(3, 5)}, .refused = TG_ERR_SHAPE},
    {.note = "one dim", .params = &plain, .n_in = 1, .input = {TG_S(4)}, .refused = TG_ERR_SHAPE},
    {.note = "base 0", .params = &(const rope_params){.base = 0}, .n_in = 1, .input = {TG_S(3, 4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = &plain, .n_in = 1, .input = {TG_S_INDEX(9, 3, 4)}, .refused = TG_ERR_DTYPE},
    {.note = "48 heads of 1024 x 64", .params = &plain, .n_in = 1, .input = {TG_S(4, 12, 1024, 64)}, .bench = true},
};

static const tg_field rope_fields[] = {
    TG_ARG(rope_params, base, DOUBLE, "Base of the angles."),
    TG_ARG(rope_params, offset, INT64, "Position of row 0."),
};

const tg_op tg_op_rope = {
    .size = sizeof(tg_op),
    .name = "rope",
    .formula = "(u cos - v sin, v cos + u sin)",
    .inputs = "x",
    .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(rope_params),
    .family = TG_FAMILY_CUSTOM,
    .infer = rope_infer,
    .forward = rope_forward,
    .backward = rope_backward,
    .vjp = rope_vjp,
    .jvp = tg_jvp_linear,
    TG_FIELDS(rope_fields),
    .preset = &(const rope_params){.base = 10000},
    TG_SAMPLES(rope_samples),
};

/* Rotates x [.., s, d], d even. In every head, in row r (0 to s - 1), the pair (x[i], x[i + d/2]) is rotated by the
 * angle (offset + r) base^(-2i/d). Pairs are laid out as in GPT-NeoX and Llama. offset is the position of row 0; during
 * generation it is the number of positions in the cache. Angles are computed in float64. Nothing is saved. */
tg_tensor *tg_rope(tg_tape *t, tg_tensor *x, double base, int64_t offset) {
    rope_params p = {.base = base, .offset = offset};
    return TG_RECORD(t, tg_op_rope, &p, x);
}

/* ---- rope_at: the same with given positions ---- */

/* The rows of x may be sharded, because their positions are, too. */
static tg_status rope_at_infer(tg_call *c) {
    const tg_tensor *x = c->input[0], *at = c->input[1];
    TG_TRY(rope_infer(c));
    if (at->dtype != TG_I64)
        return tg_call_fail(c, TG_ERR_DTYPE, "positions are %s; they must be i64", tg_dtype_name((tg_dtype)at->dtype));
    if (at->ndim != 1 || at->shape[0] != x->shape[x->ndim - 2])
        return tg_call_fail(c, TG_ERR_SHAPE, "positions must be a vector of %s, one for each row of x",
                            tg_count(x->shape[x->ndim - 2], "element").text);
    TG_TRY(tg_call_role(c, 0, x->ndim - 2, x->ndim - 2));
    return tg_call_role(c, 1, 0, x->ndim - 2);
}

static const tg_sample rope_at_samples[] = {
    {.note = "heads", .params = &plain, .n_in = 2, .input = {TG_S(2, 3, 4, 6), TG_S_INDEX(50, 4)}},
    {.note = "one head", .params = &plain, .n_in = 2, .input = {TG_S(5, 4), TG_S_INDEX(3, 5)}},
    {.note = "transposed", .params = &plain, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_INDEX(1000, 3)}},
    {.note = "strided positions", .params = &(const rope_params){.base = 100}, .n_in = 2,
     .input = {TG_S(3, 4),
            {.shape = TG_S_SHAPE(3), .kind = TG_SAMPLE_INDEX, .layout = TG_SAMPLE_STRIDED, .hi = 9}}},
    {.note = "no rows", .params = &plain, .n_in = 2, .input = {TG_S(2, 0, 4), TG_S_INDEX(1, 0)}},
    {.note = "too few positions", .params = &plain, .n_in = 2, .input = {TG_S(3, 4), TG_S_INDEX(5, 2)},
     .refused = TG_ERR_SHAPE},
    {.note = "positions of floats", .params = &plain, .n_in = 2, .input = {TG_S(3, 4), TG_S(3)},
     .refused = TG_ERR_DTYPE},
    {.note = "base 0", .params = &(const rope_params){.base = 0}, .n_in = 2, .input = {TG_S(3, 4), TG_S_INDEX(5, 3)},
     .refused = TG_ERR_ARGUMENT},
};

static const tg_field rope_at_fields[] = {TG_ARG(rope_params, base, DOUBLE, "Base of the angles.")};

const tg_op tg_op_rope_at = {
    .size = sizeof(tg_op),
    .name = "rope_at",
    .formula = "(u cos - v sin, v cos + u sin) at given positions",
    .inputs = "x positions",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(rope_params),
    .saves_in = 2,
    .family = TG_FAMILY_CUSTOM,
    .infer = rope_at_infer,
    .forward = rope_forward,
    .backward = rope_backward,
    .vjp = rope_vjp,
    .jvp = tg_jvp_linear,
    TG_FIELDS(rope_at_fields),
    .preset = &(const rope_params){.base = 10000},
    TG_SAMPLES(rope_at_samples),
};

/* Rotates x [.., s, d] as tg_rope does, but row r by the angles of positions[r]: int64 [s]. A shard of rows of x needs
 * the same shard of positions. */
tg_tensor *tg_rope_at(tg_tape *t, tg_tensor *x, tg_tensor *positions, double base) {
    rope_params p = {.base = base};
    return TG_RECORD(t, tg_op_rope_at, &p, x, positions);
}
