/* Padding of several dims at once: with a constant, or with elements of x itself. The ops record other ops that pad one
 * dim after the other: tg_pad, or tg_slice, tg_flip, tg_expand and tg_concat. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct pad_dims_params {
    const int64_t *pad; /* two numbers for each dim, before and after, from the last dim on; read by compose only */
    int n;
    double value;
} pad_dims_params;

/* Where the elements that are added before and after x along a dim come from. */
typedef enum pad_source { CONSTANT, REFLECTED, REPEATED, WRAPPED } pad_source;

/* The padding of one dim with n elements. */
typedef struct pad_dim {
    int dim;
    int64_t n, before, after;
} pad_dim;

/* Checks the padding of one dim. Negative numbers remove elements of x. Reflection needs one element more than it adds
 * at an end, repetition needs one element, and wrapping needs as many elements as it adds at an end. */
static tg_status check_dim(tg_tape *t, pad_dim p, pad_source from) {
    static const char *const needs[] = {[REFLECTED] = "reflection needs more elements than it adds",
                                        [REPEATED] = "repetition needs 1 or more",
                                        [WRAPPED] = "wrapping needs as many elements as it adds"};
    int64_t most = p.before > p.after ? p.before : p.after, size;
    if (p.before < -p.n || p.after < -p.n ||
        __builtin_add_overflow(p.n + (p.before < 0 ? p.before : 0), p.after < 0 ? p.after : 0, &size) || size < 0)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "pad is %lld and %lld for dim %d, which has only %s to remove",
                       (long long)p.before, (long long)p.after, p.dim, tg_count(p.n, "element").text);
    if (most <= 0 || from == CONSTANT || (from == REFLECTED ? p.n > most : p.n >= (from == REPEATED ? 1 : most)))
        return TG_OK;
    return tg_fail(t->ctx, TG_ERR_SHAPE, "pad adds %s at an end of dim %d, which has %lld; %s",
                   tg_count(most, "element").text, p.dim, (long long)p.n, needs[from]);
}

/* Returns the k elements that are added along a dim before x, or after it. */
static tg_tensor *edge(tg_tape *t, tg_tensor *x, pad_dim p, int64_t k, pad_source from, bool before) {
    int64_t first = from == REFLECTED ? (before ? 1 : p.n - 1 - k)
                    : from == WRAPPED ? (before ? p.n - k : 0)
                                      : (before ? 0 : p.n - 1);
    tg_tensor *some = tg_slice(t, x, p.dim, first, first + (from == REPEATED ? 1 : k), 1);
    if (from == REFLECTED) return tg_flip(t, some, TG_DIMS(p.dim));
    if (from == WRAPPED) return some;
    tg_shape shape = {.ndim = tg_ndim(x)};
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = d == p.dim ? k : tg_dim(x, d);
    return tg_expand(t, some, shape);
}

/* Adds elements of x in front of it and at its end. */
static tg_tensor *extend(tg_tape *t, tg_tensor *x, pad_dim p, pad_source from) {
    tg_tensor *part[3];
    int n = 0;
    if (p.before > 0) part[n++] = edge(t, x, p, p.before, from, true);
    part[n++] = x;
    if (p.after > 0) part[n++] = edge(t, x, p, p.after, from, false);
    return tg_concat(t, part, n, p.dim);
}

static tg_tensor *pad_one(tg_tape *t, tg_tensor *x, pad_dim p, pad_source from, double value) {
    int64_t before = p.before > 0 ? p.before : 0, after = p.after > 0 ? p.after : 0, end = INT64_MAX;
    if (before || after) x = from == CONSTANT ? tg_pad(t, x, p.dim, before, after, value) : extend(t, x, p, from);
    if (p.before >= 0 && p.after >= 0) return x;
    if (p.after < 0) end = tg_dim(x, p.dim) + p.after;
    return tg_slice(t, x, p.dim, p.before < 0 ? -p.before : 0, end, 1);
}

/* The result is never x itself, so that it can be dropped like any result. */
static tg_status compose(tg_tape *t, const pad_dims_params *p, pad_source from, tg_tensor *x, tg_tensor **out) {
    int ndim = tg_ndim(x);
    if (!p->pad || p->n < 2 || p->n % 2 || p->n / 2 > ndim)
        return tg_fail(t->ctx, TG_ERR_SHAPE, "pad has %s; it must have two for each padded dim, and x has %s",
                       tg_count(p->pad ? p->n : 0, "number").text, tg_count(ndim, "dim").text);
    tg_tensor *y = x;
    for (int k = 0; k < p->n / 2; k++) {
        pad_dim by = {ndim - 1 - k, tg_dim(x, ndim - 1 - k), p->pad[2 * k], p->pad[2 * k + 1]};
        TG_TRY(check_dim(t, by, from));
        y = pad_one(t, y, by, from, p->value);
    }
    out[0] = y == x ? tg_slice(t, x, 0, 0, INT64_MAX, 1) : y;
    return t->ctx->run.status;
}

#define PAD_(value_, ...)                                                                                              \
    &(const pad_dims_params) {                                                                                         \
        .pad = (const int64_t[]){__VA_ARGS__}, .n = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),                \
        .value = (value_)                                                                                              \
    }
#define PAD(...) PAD_(0, __VA_ARGS__)
#define REFUSED_SAMPLES                                                                                                \
    {.note = "one number", .params = PAD(1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},                  \
        {.note = "more dims than x has",                                                                               \
         .params = PAD(1, 1, 1, 1),                                                                                    \
         .n_in = 1,                                                                                                    \
         .input = {TG_S(3)},                                                                                           \
         .refused = TG_ERR_SHAPE},                                                                                     \
        {.note = "no pad",                                                                                             \
         .params = &(const pad_dims_params){.n = 2},                                                                   \
         .n_in = 1,                                                                                                    \
         .input = {TG_S(3)},                                                                                           \
         .refused = TG_ERR_SHAPE},                                                                                     \
        {.note = "removes too much", .params = PAD(-2, -2), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE}, { \
        .note = "removes more than there is", .params = PAD(INT64_MIN, 9), .n_in = 1, .input = {TG_S(3)},              \
        .refused = TG_ERR_SHAPE                                                                                        \
    }

static const tg_sample constant_samples[] = {
    {.note = "two dims", .params = PAD_(0.5, 1, 2, 3, 0), .n_in = 1, .input = {TG_S(2, 3, 4)}},
    {.note = "rows removed, columns added", .params = PAD_(-1, 1, 1, -1, -2), .n_in = 1, .input = {TG_S(5, 3)}},
    {.note = "removed and added", .params = PAD(-2, 3), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 4)}},
    {.note = "all removed", .params = PAD(-1, -2), .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "by nothing", .params = PAD(0, 0), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3)}},
    {.note = "integers", .params = PAD_(7, 1, 0, 0, 1), .n_in = 1, .input = {TG_S_INDEX(9, 2, 2)}},
    {.note = "empty", .params = PAD(1, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 0)}},
    REFUSED_SAMPLES,
    {.note = "overflow", .params = PAD(INT64_MAX, 1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "images", .params = PAD(1, 1, 1, 1), .n_in = 1, .input = {TG_S(32, 64, 56, 56)}, .bench = true},
};

/* Samples of the ops that take the elements from x. */
#define EDGE_SAMPLES                                                                                                   \
    {.note = "two dims", .params = PAD(1, 2, 2, 0), .n_in = 1, .input = {TG_S(2, 3, 4)}},                              \
        {.note = "as much as there is", .params = PAD(2, 2), .n_in = 1, .input = {TG_S(2, 3)}},                        \
        {.note = "three dims", .params = PAD(1, 0, 0, 1, 1, 1), .n_in = 1, .input = {TG_S(2, 2, 3, 2)}},               \
        {.note = "rows removed, columns added",                                                                        \
         .params = PAD(1, 1, -1, -2),                                                                                  \
         .n_in = 1,                                                                                                    \
         .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 3)}},                                                              \
        {.note = "removed and added", .params = PAD(-2, 3), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 4)}},   \
        {.note = "equal rows", .params = PAD(1, 1, 1, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},    \
        {.note = "by nothing", .params = PAD(0, 0), .n_in = 1, .input = {TG_S(2, 3)}},                                 \
        {.note = "integers", .params = PAD(1, 0, 0, 1), .n_in = 1, .input = {TG_S_INDEX(9, 2, 2)}},                    \
        {.note = "empty batch", .params = PAD(1, 1), .n_in = 1, .input = {TG_S(0, 3)}}, REFUSED_SAMPLES,               \
        {.note = "of nothing", .params = PAD(1, 0), .n_in = 1, .input = {TG_S(2, 0)}, .refused = TG_ERR_SHAPE}, {      \
        .note = "images", .params = PAD(3, 3, 3, 3), .n_in = 1, .input = {TG_S(32, 64, 56, 56)}, .bench = true         \
    }

static const tg_sample reflection_samples[] = {
    EDGE_SAMPLES,
    {.note = "as many as the dim has", .params = PAD(3, 0), .n_in = 1, .input = {TG_S(2, 3)}, .refused = TG_ERR_SHAPE},
};
static const tg_sample replication_samples[] = {
    EDGE_SAMPLES, {.note = "more than the dim has", .params = PAD(4, 5), .n_in = 1, .input = {TG_S(2, 3)}}};
static const tg_sample circular_samples[] = {
    EDGE_SAMPLES,
    {.note = "a whole turn", .params = PAD(3, 3), .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "more than a turn", .params = PAD(0, 4), .n_in = 1, .input = {TG_S(2, 3)}, .refused = TG_ERR_SHAPE},
};

#define PAD_FIELD                                                                                                      \
    TG_ARG(pad_dims_params, pad, LIST, "Numbers of elements before and after, for each dim from the last on.",         \
           .length_at = offsetof(pad_dims_params, n), .required = true)
static const tg_field constant_fields[] = {PAD_FIELD,
                                           TG_ARG(pad_dims_params, value, DOUBLE, "Value of the new elements.")};
static const tg_field edge_fields[] = {PAD_FIELD};

#define PAD_OP(name_, from_, formula_, fields_, samples_)                                                              \
    static tg_status name_##_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,            \
                                     const void *site) {                                                               \
        (void)site;                                                                                                    \
        return compose(t, params, from_, in[0], out);                                                                  \
    }                                                                                                                  \
    const tg_op tg_op_##name_ = {.size = sizeof(tg_op),                                                                \
                                 .name = #name_,                                                                       \
                                 .formula = formula_,                                                                  \
                                 .inputs = "x",                                                                        \
                                 .n_in = 1,                                                                            \
                                 .n_out = 1,                                                                           \
                                 .params_size = sizeof(pad_dims_params),                                               \
                                 .compose = name_##_compose,                                                           \
                                 TG_FIELDS(fields_),                                                                   \
                                 TG_SAMPLES(samples_)}

PAD_OP(constant_pad, CONSTANT, "x with a constant around it along several dims", constant_fields, constant_samples);
PAD_OP(reflection_pad, REFLECTED, "x, mirrored at its ends along several dims", edge_fields, reflection_samples);
PAD_OP(replication_pad, REPEATED, "x, its first and last elements repeated along several dims", edge_fields,
       replication_samples);
PAD_OP(circular_pad, WRAPPED, "x, continued as if it were repeated along several dims", edge_fields, circular_samples);

/* Pads the last n / 2 dims: pad[0] and pad[1] elements before and after the last dim, pad[2] and pad[3] before and
 * after the one before it, and so on. A negative number removes elements. The new elements are `value`. */
tg_tensor *tg_constant_pad(tg_tape *t, tg_tensor *x, const int64_t *pad, int n, double value) {
    return TG_RECORD(t, tg_op_constant_pad, (&(pad_dims_params){pad, n, value}), x);
}

/* The same with elements of x: mirrored at its first and its last element, which are not repeated. */
tg_tensor *tg_reflection_pad(tg_tape *t, tg_tensor *x, const int64_t *pad, int n) {
    return TG_RECORD(t, tg_op_reflection_pad, (&(pad_dims_params){.pad = pad, .n = n}), x);
}

/* The same with copies of the first and of the last element. */
tg_tensor *tg_replication_pad(tg_tape *t, tg_tensor *x, const int64_t *pad, int n) {
    return TG_RECORD(t, tg_op_replication_pad, (&(pad_dims_params){.pad = pad, .n = n}), x);
}

/* The same with elements from the other end of x. */
tg_tensor *tg_circular_pad(tg_tape *t, tg_tensor *x, const int64_t *pad, int n) {
    return TG_RECORD(t, tg_op_circular_pad, (&(pad_dims_params){.pad = pad, .n = n}), x);
}
