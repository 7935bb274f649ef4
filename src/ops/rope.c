/* Rotary position embedding (Su et al., arXiv 2104.09864): in x [.., s, d] each pair (i, i + d/2) is rotated by the
 * angle of its position. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/common/rotation.h"
#include "autograd/apply.h"

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

/* y (+)= x rotated. The positions are input 1 of rope_at; rope has no such input, and counts them from the offset. */
static tg_status rotate(tg_call *c, const tg_tensor *y, const tg_tensor *x, bool back, bool add) {
    const rope_params *p = c->params;
    tg_rotation r = {.opts = *TG_ROPE(.base = p->base, .offset = p->offset, .dims = x->shape[x->ndim - 1]),
                     .positions = c->n_in > 1 ? c->input[1] : NULL,
                     .back = back};
    return tg_rotate(c, &r, y, x, add);
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
    TG_TRY(rope_infer(c));
    return tg_rotation_positions(c, 1);
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
    {.note = "positions of each batch element", .params = &plain, .n_in = 2,
     .input = {TG_S(2, 3, 4, 6), TG_S_INDEX(50, 2, 4)}},
    {.note = "strided positions of each head", .params = &plain, .n_in = 2,
     .input = {TG_S(3, 4, 2),
            {.shape = TG_S_SHAPE(3, 4), .kind = TG_SAMPLE_INDEX, .layout = TG_SAMPLE_TRANSPOSED, .hi = 50}}},
    {.note = "one row of positions", .params = &plain, .n_in = 2, .input = {TG_S(1, 4, 2), TG_S_INDEX(50, 1, 4)}},
    {.note = "positions of another batch", .params = &plain, .n_in = 2,
     .input = {TG_S(2, 3, 4), TG_S_INDEX(5, 3, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "rows of positions without a batch", .params = &plain, .n_in = 2,
     .input = {TG_S(3, 4), TG_S_INDEX(5, 3, 3)}, .refused = TG_ERR_SHAPE},
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

/* Rotates x [.., s, d] as tg_rope does, but row r by the angles of positions[r]: int64 [s]. Positions [n, s] are those
 * of each element of the first dim of x [n, .., s, d]. A shard of rows of x needs the same shard of positions. */
tg_tensor *tg_rope_at(tg_tape *t, tg_tensor *x, tg_tensor *positions, double base) {
    rope_params p = {.base = base};
    return TG_RECORD(t, tg_op_rope_at, &p, x, positions);
}
