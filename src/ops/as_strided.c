/* as_strided reads the elements of a tensor at distances that the caller chooses. The op is composed of a selection by
 * positions, whose gradient adds up for elements that are read several times. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct strided_params {
    tg_shape shape, stride;
    int64_t offset;
} strided_params;

/* Computes the first and the last position that is read. Returns false if one of them overflows 64 bits. */
static bool bounds(const strided_params *p, int64_t *first, int64_t *last) {
    *first = *last = p->offset;
    for (int d = 0; d < p->shape.ndim; d++) {
        int64_t span;
        if (__builtin_mul_overflow(p->shape.dim[d] - 1, p->stride.dim[d], &span)) return false;
        int64_t *end = span < 0 ? first : last;
        if (__builtin_add_overflow(*end, span, end)) return false;
    }
    return true;
}

/* Returns the number of elements of the result. The shape has been checked. */
static int64_t count_of(const strided_params *p) {
    int64_t count = 1;
    for (int d = 0; d < p->shape.ndim; d++) count *= p->shape.dim[d];
    return count;
}

static tg_status check(tg_tape *t, const strided_params *p, const tg_tensor *x) {
    int64_t first, last;
    if (p->shape.ndim != p->stride.ndim)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "shape has %s and stride %s; both must have one for each dim",
                       tg_count(p->shape.ndim, "number").text, tg_count(p->stride.ndim, "number").text);
    TG_TRY(tg_shape_check(t->ctx, &p->shape, (tg_dtype)x->dtype, "as_strided"));
    if (count_of(p) == 0) return TG_OK;
    if (!bounds(p, &first, &last))
        return tg_fail(t->ctx, TG_ERR_SHAPE, "the positions that shape and stride give overflow 64 bits");
    if (first < 0 || last >= x->numel)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "positions %lld to %lld are read, but x has only %s, from 0 on",
                       (long long)first, (long long)last, tg_count(x->numel, "element").text);
    return TG_OK;
}

/* Returns the positions in x of the elements of the result, as one dim of int64. */
static tg_tensor *positions(tg_tape *t, const strided_params *p) {
    tg_tensor *at = tg_full(t, TG_I64, TG_SHAPE(), (double)p->offset);
    for (int d = 0; d < p->shape.ndim; d++) {
        /* The stride of a dim of size 1 is not used, and may be one that a double cannot hold. */
        int64_t distance = p->shape.dim[d] > 1 ? p->stride.dim[d] : 0;
        tg_tensor *stride = tg_full(t, TG_I64, TG_SHAPE(), (double)distance);
        tg_tensor *steps = tg_mul(t, tg_arange(t, TG_I64, 0, (double)p->shape.dim[d], 1), stride);
        at = tg_add(t, tg_unsqueeze(t, at, d), steps);
    }
    return tg_reshape(t, at, TG_SHAPE(count_of(p)));
}

static tg_status as_strided_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                    const void *site) {
    const strided_params *p = params;
    (void)site;
    TG_TRY(check(t, p, in[0]));
    if (count_of(p) == 0) { /* strides may then be out of range, and x be empty */
        tg_tensor *none = tg_slice(t, tg_reshape(t, in[0], TG_SHAPE(in[0]->numel)), 0, 0, 0, 1);
        out[0] = tg_reshape(t, none, p->shape);
        return t->ctx->run.status;
    }
    tg_tensor *row = tg_reshape(t, in[0], TG_SHAPE(in[0]->numel));
    out[0] = tg_reshape(t, tg_index_select(t, row, 0, positions(t, p)), p->shape);
    return t->ctx->run.status;
}

#define SIZES(...) TG_S_SHAPE(__VA_ARGS__)
#define READ(shape_, stride_, offset_) \
    &(const strided_params) { .shape = shape_, .stride = stride_, .offset = offset_ }
static const tg_sample strided_samples[] = {
    {.note = "overlapping", .params = READ(SIZES(4, 3), SIZES(2, 1), 1), .n_in = 1, .input = {TG_S(10)}},
    {.note = "each diagonal twice", .params = READ(SIZES(2, 3), SIZES(0, 5), 0), .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "transposed x", .params = READ(SIZES(2, 2, 2), SIZES(1, 4, 1), 2), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4)}},
    {.note = "strided x", .params = READ(SIZES(5), SIZES(2), 3), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "expanded x", .params = READ(SIZES(4), SIZES(3), 1), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "backwards", .params = READ(SIZES(5), SIZES(-1), 4), .n_in = 1, .input = {TG_S(5)}},
    {.note = "to a scalar", .params = READ({0}, {0}, 3), .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "of a scalar", .params = READ(SIZES(2, 2), SIZES(0, 0), 0), .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "integers", .params = READ(SIZES(2, 2), SIZES(1, 1), 0), .n_in = 1, .input = {TG_S_INDEX(9, 4)}},
    {.note = "nothing", .params = READ(SIZES(2, 0), SIZES(1, 99), 7), .n_in = 1, .input = {TG_S(3)}},
    {.note = "a stride that is not used", .params = READ(SIZES(1, 3), SIZES(INT64_MAX, 1), 1), .n_in = 1,
     .input = {TG_S(4)}},
    {.note = "nothing of nothing", .params = READ(SIZES(0), SIZES(1), 0), .n_in = 1, .input = {TG_S(0)}},
    {.note = "past the end", .params = READ(SIZES(3), SIZES(2), 0), .n_in = 1, .input = {TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "before the beginning", .params = READ(SIZES(3), SIZES(-1), 1), .n_in = 1, .input = {TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "a stride missing", .params = READ(SIZES(3, 1), SIZES(1), 0), .n_in = 1, .input = {TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "overflow", .params = READ(SIZES(3), SIZES(INT64_MAX), 0), .n_in = 1, .input = {TG_S(4)},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = READ(SIZES(1024, 2048), SIZES(1024, 1), 0), .n_in = 1, .input = {TG_S(1025, 1024)},
     .bench = true},
};

static const tg_field strided_fields[] = {
    TG_ARG(strided_params, shape, SHAPE, "Shape of the result.", .required = true),
    TG_ARG(strided_params, stride, SHAPE, "For each dim of the result, the distance in x of neighbors along it.",
           .required = true),
    TG_ARG(strided_params, offset, INT64, "Position in x of the first element of the result."),
};

const tg_op tg_op_as_strided = {
    .size = sizeof(tg_op), .name = "as_strided",
    .formula = "y[i, j, ..] = row[offset + i stride[0] + j stride[1] + ..]", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(strided_params), .compose = as_strided_compose, TG_FIELDS(strided_fields),
    TG_SAMPLES(strided_samples)};

/* Returns a copy of the elements of x, numbered in row-major order, at the positions offset + i stride[0] + j stride[1]
 * + .., for i, j, .. in shape. */
tg_tensor *tg_as_strided(tg_tape *t, tg_tensor *x, tg_shape shape, tg_shape stride, int64_t offset) {
    return TG_RECORD(t, tg_op_as_strided, (&(strided_params){shape, stride, offset}), x);
}
