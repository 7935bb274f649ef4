/* Rotary position embedding (Su et al., arXiv 2104.09864): in x [.., s, d] each pair (i, i + d/2) is rotated by the
 * angle of its position. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/common/rotation.h"
#include "autograd/apply.h"

static tg_status rope_infer(tg_call *c) {
    tg_rope_opts *o = &((tg_rotation_params *)c->params)->opts;
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_float(c, 0));
    if (x->ndim < 2 || x->shape[x->ndim - 1] % 2 != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "x must be [.., s, d] with 2 or more dims and an even d");
    if (!(o->base > 0 && isfinite(o->base)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "base is %g; it must be finite and greater than 0", o->base);
    o->dims = x->shape[x->ndim - 1];
    /* Dim ndim - 2, that of the rows, must not be sharded, unless rope_at says that it may: the index of a row is its
     * position. */
    for (int d = 0; d < x->ndim - 2; d++) TG_TRY(tg_call_role(c, 0, d, d));
    TG_TRY(tg_call_linear(c, 1));
    return tg_infer_same(c);
}

#define OPTS(...) &(const tg_rotation_params){.opts = {TG_ROPE_DEFAULTS, __VA_ARGS__}}
static const tg_rotation_params plain = {.opts = {TG_ROPE_DEFAULTS}};

static const tg_sample rope_samples[] = {
    {.note = "heads", .params = &plain, .n_in = 1, .input = {TG_S(2, 3, 4, 6)}},
    {.note = "one head", .params = &plain, .n_in = 1, .input = {TG_S(5, 4)}},
    {.note = "later positions", .params = OPTS(.offset = 1000), .n_in = 1, .input = {TG_S(2, 3, 8)}},
    {.note = "small base", .params = OPTS(.base = 2, .offset = 7), .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "transposed", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4)}},
    {.note = "strided", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4)}},
    {.note = "equal heads", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 3, 4)}},
    {.note = "one pair", .params = &plain, .n_in = 1, .input = {TG_S(1, 2)}},
    {.note = "no positions", .params = &plain, .n_in = 1, .input = {TG_S(2, 0, 4)}},
    {.note = "no pairs", .params = &plain, .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "odd d", .params = &plain, .n_in = 1, .input = {TG_S(3, 5)}, .refused = TG_ERR_SHAPE},
    {.note = "one dim", .params = &plain, .n_in = 1, .input = {TG_S(4)}, .refused = TG_ERR_SHAPE},
    {.note = "base 0", .params = OPTS(.base = 0), .n_in = 1, .input = {TG_S(3, 4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = &plain, .n_in = 1, .input = {TG_S_INDEX(9, 3, 4)}, .refused = TG_ERR_DTYPE},
    {.note = "48 heads of 1024 x 64", .params = &plain, .n_in = 1, .input = {TG_S(4, 12, 1024, 64)}, .bench = true},
};

static const tg_field rope_fields[] = {
    TG_ARG_AS(tg_rotation_params, opts.base, "base", DOUBLE, "Base of the angles."),
    TG_ARG_AS(tg_rotation_params, opts.offset, "offset", INT64, "Position of row 0."),
};

const tg_op tg_op_rope = {
    .size = sizeof(tg_op),
    .name = "rope",
    .formula = "(u cos - v sin, v cos + u sin)",
    .inputs = "x",
    .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(tg_rotation_params),
    .family = TG_FAMILY_CUSTOM,
    .infer = rope_infer,
    .forward = tg_rotation_forward,
    .backward = tg_rotation_backward,
    .vjp = tg_rotation_vjp,
    .jvp = tg_jvp_linear,
    TG_FIELDS(rope_fields),
    .preset = &plain,
    TG_SAMPLES(rope_samples),
};

/* Rotates x [.., s, d], d even. In every head, in row r (0 to s - 1), the pair (x[i], x[i + d/2]) is rotated by the
 * angle (offset + r) base^(-2i/d). Pairs are laid out as in GPT-NeoX and Llama. offset is the position of row 0; during
 * generation it is the number of positions in the cache. Angles are computed in float64. Nothing is saved. */
tg_tensor *tg_rope(tg_tape *t, tg_tensor *x, double base, int64_t offset) {
    const tg_rotation_params p = {.opts = {TG_ROPE_DEFAULTS, .base = base, .offset = offset}};
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
    {.note = "strided positions", .params = OPTS(.base = 100), .n_in = 2,
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
    {.note = "base 0", .params = OPTS(.base = 0), .n_in = 2, .input = {TG_S(3, 4), TG_S_INDEX(5, 3)},
     .refused = TG_ERR_ARGUMENT},
};

static const tg_field rope_at_fields[] = {
    TG_ARG_AS(tg_rotation_params, opts.base, "base", DOUBLE, "Base of the angles."),
};

const tg_op tg_op_rope_at = {
    .size = sizeof(tg_op),
    .name = "rope_at",
    .formula = "(u cos - v sin, v cos + u sin) at given positions",
    .inputs = "x positions",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(tg_rotation_params),
    .saves_in = 2,
    .family = TG_FAMILY_CUSTOM,
    .infer = rope_at_infer,
    .forward = tg_rotation_forward,
    .backward = tg_rotation_backward,
    .vjp = tg_rotation_vjp,
    .jvp = tg_jvp_linear,
    TG_FIELDS(rope_at_fields),
    .preset = &plain,
    TG_SAMPLES(rope_at_samples),
};

/* Rotates x [.., s, d] as tg_rope does, but row r by the angles of positions[r]: int64 [s]. Positions [n, s] are those
 * of each element of the first dim of x [n, .., s, d]. A shard of rows of x needs the same shard of positions. */
tg_tensor *tg_rope_at(tg_tape *t, tg_tensor *x, tg_tensor *positions, double base) {
    const tg_rotation_params p = {.opts = {TG_ROPE_DEFAULTS, .base = base}};
    return TG_RECORD(t, tg_op_rope_at, &p, x, positions);
}
