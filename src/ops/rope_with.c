/* Rotary position embedding with options: of a part of each row, at given positions, and with changed frequencies. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/common/rotation.h"
#include "autograd/apply.h"

enum { X, POSITIONS, N_IN };

/* ---- Checks ---- */

static tg_status check_base(tg_call *c, const tg_rope_opts *o) {
    if (!(o->base > 0 && isfinite(o->base)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "base is %g; it must be finite and greater than 0", o->base);
    if (!isfinite(o->gain)) return tg_call_fail(c, TG_ERR_ARGUMENT, "gain is %g; it must be finite", o->gain);
    if (c->input[POSITIONS] && o->offset)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "offset is %lld, but positions are given; it must be 0 then",
                            (long long)o->offset);
    return TG_OK;
}

static tg_status check_kind(tg_call *c, const tg_rope_opts *o) {
    static const tg_rope_opts usual = {TG_ROPE_DEFAULTS};
    bool turns = o->kind == TG_ROPE_LLAMA3 || o->kind == TG_ROPE_YARN;
    if ((unsigned)o->kind > TG_ROPE_YARN)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "kind is %d; it must be TG_ROPE_PLAIN to TG_ROPE_YARN", (int)o->kind);
    if (!(o->factor > 0 && isfinite(o->factor)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "factor is %g; it must be finite and greater than 0", o->factor);
    if (o->kind == TG_ROPE_PLAIN && o->factor != 1)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "factor is %g, but kind is TG_ROPE_PLAIN; it must be 1 then",
                            o->factor);
    if (!turns && (o->low != usual.low || o->high != usual.high || o->original != usual.original))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "low is %g, high %g and original %lld, but only TG_ROPE_LLAMA3 and "
                            "TG_ROPE_YARN use them; leave them at their defaults", o->low, o->high,
                            (long long)o->original);
    if (turns && !(o->low > 0 && o->low < o->high && isfinite(o->high)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "low is %g and high %g; both must be greater than 0, and low less than "
                            "high", o->low, o->high);
    if (turns && o->original < 1)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "original is %lld; this kind needs 1 or more", (long long)o->original);
    if (o->kind == TG_ROPE_YARN && o->base == 1)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "base is 1, with which all pairs rotate alike; TG_ROPE_YARN needs "
                            "another base");
    return TG_OK;
}

static tg_status rope_with_infer(tg_call *c) {
    tg_rope_opts *o = &((tg_rotation_params *)c->params)->opts;
    const tg_tensor *x = c->input[X];
    TG_TRY(tg_size_check(c->ctx, o->size, sizeof *o, "the options"));
    TG_TRY(tg_need_float(c, X));
    if (x->ndim < 2) return tg_call_fail(c, TG_ERR_SHAPE, "x must be [.., s, d] with 2 or more dims");
    int64_t d = x->shape[x->ndim - 1];
    if (o->dims == TG_AUTO) o->dims = d;
    if (o->dims < 0 || o->dims > d || o->dims % 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "dims is %lld; it must be an even number from 0 to %lld, the last dim of "
                            "x", (long long)o->dims, (long long)d);
    TG_TRY(check_base(c, o));
    TG_TRY(check_kind(c, o));
    for (int i = 0; i < x->ndim - 2; i++) TG_TRY(tg_call_role(c, X, i, i));
    if (c->input[POSITIONS]) TG_TRY(tg_rotation_positions(c, POSITIONS));
    TG_TRY(tg_call_linear(c, 1));
    return tg_infer_same(c);
}

/* ---- The op ---- */

#define OPTS(...) &(const tg_rotation_params){.opts = {TG_ROPE_DEFAULTS, __VA_ARGS__}}
#define LLAMA3    .base = 50, .kind = TG_ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 64
#define YARN      .base = 50, .kind = TG_ROPE_YARN, .factor = 4, .low = 1, .high = 8, .original = 64, .gain = 1.2

static const tg_sample rope_with_samples[] = {
    {.note = "all of a row", .params = OPTS(.base = 100), .n_in = N_IN, .input = {TG_S(2, 3, 4, 6), TG_S_ABSENT}},
    {.note = "a part of a row", .params = OPTS(.dims = 4, .offset = 3), .n_in = N_IN,
     .input = {TG_S(2, 3, 7), TG_S_ABSENT}},
    {.note = "no part of a row", .params = OPTS(.dims = 0), .n_in = N_IN, .input = {TG_S(3, 5), TG_S_ABSENT}},
    {.note = "linear", .params = OPTS(.kind = TG_ROPE_LINEAR, .factor = 3, .offset = 5), .n_in = N_IN,
     .input = {TG_S(3, 4), TG_S_ABSENT}},
    {.note = "Llama 3", .params = OPTS(LLAMA3), .n_in = N_IN, .input = {TG_S(2, 3, 16), TG_S_ABSENT}},
    {.note = "YaRN", .params = OPTS(YARN), .n_in = N_IN, .input = {TG_S(2, 3, 16), TG_S_ABSENT}},
    {.note = "given positions", .params = OPTS(LLAMA3, .dims = 8), .n_in = N_IN,
     .input = {TG_S(2, 3, 4, 10), TG_S_INDEX(90, 4)}},
    {.note = "transposed", .params = OPTS(YARN, .dims = 2), .n_in = N_IN,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_INDEX(9, 3)}},
    {.note = "strided", .params = OPTS(.dims = 2), .n_in = N_IN,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S_ABSENT}},
    {.note = "positions of each batch element", .params = OPTS(LLAMA3, .dims = 8), .n_in = N_IN,
     .input = {TG_S(2, 3, 4, 10), TG_S_INDEX(90, 2, 4)}},
    {.note = "no rows", .params = OPTS(LLAMA3), .n_in = N_IN, .input = {TG_S(2, 0, 4), TG_S_ABSENT}},
    {.note = "odd dims", .params = OPTS(.dims = 3), .n_in = N_IN, .input = {TG_S(3, 4), TG_S_ABSENT},
     .refused = TG_ERR_SHAPE},
    {.note = "an odd row", .params = OPTS(.offset = 0), .n_in = N_IN, .input = {TG_S(3, 5), TG_S_ABSENT},
     .refused = TG_ERR_SHAPE},
    {.note = "more dims than there are", .params = OPTS(.dims = 6), .n_in = N_IN, .input = {TG_S(3, 4), TG_S_ABSENT},
     .refused = TG_ERR_SHAPE},
    {.note = "one dim", .params = OPTS(.dims = 2), .n_in = N_IN, .input = {TG_S(4), TG_S_ABSENT},
     .refused = TG_ERR_SHAPE},
    {.note = "a factor without a kind", .params = OPTS(.factor = 2), .n_in = N_IN, .input = {TG_S(3, 4), TG_S_ABSENT},
     .refused = TG_ERR_ARGUMENT},
    {.note = "original positions that the kind does not use",
     .params = OPTS(.kind = TG_ROPE_LINEAR, .original = 64), .n_in = N_IN, .input = {TG_S(3, 4), TG_S_ABSENT},
     .refused = TG_ERR_ARGUMENT},
    {.note = "no original positions", .params = OPTS(.kind = TG_ROPE_YARN), .n_in = N_IN,
     .input = {TG_S(3, 4), TG_S_ABSENT}, .refused = TG_ERR_ARGUMENT},
    {.note = "offset and positions", .params = OPTS(.offset = 1), .n_in = N_IN,
     .input = {TG_S(3, 4), TG_S_INDEX(5, 3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "too few positions", .params = OPTS(.dims = 2), .n_in = N_IN, .input = {TG_S(3, 4), TG_S_INDEX(5, 2)},
     .refused = TG_ERR_SHAPE},
    {.note = "48 heads of 1024 x 64, Llama 3", .params = OPTS(LLAMA3), .n_in = N_IN,
     .input = {TG_S(4, 12, 1024, 64), TG_S_ABSENT}, .bench = true},
};

static const tg_field rope_with_fields[] = {
    TG_ARG_AS(tg_rotation_params, opts.base, "base", DOUBLE, "Base of the angles."),
    TG_ARG_AS(tg_rotation_params, opts.offset, "offset", INT64, "Position of row 0."),
    TG_ARG_AS(tg_rotation_params, opts.dims, "dims", INT64, "Number of rotated elements of a row; -1: all."),
    TG_ARG_AS(tg_rotation_params, opts.kind, "kind", ENUM, "How the frequencies are changed.", .of = "tg_rope_kind"),
    TG_ARG_AS(tg_rotation_params, opts.factor, "factor", DOUBLE, "Divisor of the changed frequencies."),
    TG_ARG_AS(tg_rotation_params, opts.low, "low", DOUBLE,
              "Turns over the original positions below which frequencies are divided."),
    TG_ARG_AS(tg_rotation_params, opts.high, "high", DOUBLE,
              "Turns over the original positions above which frequencies are kept."),
    TG_ARG_AS(tg_rotation_params, opts.original, "original", INT64,
              "Number of positions with which the model was trained first."),
    TG_ARG_AS(tg_rotation_params, opts.gain, "gain", DOUBLE, "Factor of the rotated elements."),
};

const tg_op tg_op_rope_with = {
    .size = sizeof(tg_op),
    .name = "rope_with",
    .formula = "gain (u cos - v sin, v cos + u sin) of a part of each row",
    .inputs = "x positions",
    .n_in = N_IN,
    .n_out = 1,
    .params_size = sizeof(tg_rotation_params),
    .saves_in = 1u << POSITIONS,
    .optional = 1u << POSITIONS,
    .family = TG_FAMILY_CUSTOM,
    .infer = rope_with_infer,
    .forward = tg_rotation_forward,
    .backward = tg_rotation_backward,
    .vjp = tg_rotation_vjp,
    .jvp = tg_jvp_linear,
    TG_FIELDS(rope_with_fields),
    .preset = OPTS(.offset = 0),
    TG_SAMPLES(rope_with_samples),
};

/* Rotates a part of each row of x [.., s, d] (rotation.h), by angles that are computed in float64. */
tg_tensor *tg_rope_with(tg_tape *t, tg_tensor *x, const tg_rope_opts *opts) {
    tg_rotation_params p = {.back = false};
    tg_op_options(&p.opts, &tg_rope_opts_struct, opts);
    tg_tensor *in[N_IN] = {x, p.opts.positions};
    p.opts.positions = NULL;
    return tg_record(t, &tg_op_rope_with, &p, in, N_IN, TG_SITE);
}
