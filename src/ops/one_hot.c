/* Class ids as vectors with a single 1. */
#include "ops/common/indexed.h"
#include "ops/common/op.h"

#include <tapegrad/ops.h>

typedef struct one_hot_params {
    int64_t classes;
    tg_dtype dtype;
} one_hot_params;

static tg_status one_hot_infer(tg_call *c) {
    one_hot_params *p = c->params;
    const tg_tensor *ids = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_index(c, 0));
    TG_TRY(tg_need_made(c, &p->dtype));
    if (ids->ndim == TG_MAX_DIMS) return tg_call_fail(c, TG_ERR_SHAPE, "ids already have %d dims, the most that are "
                                                      "allowed; the result has one more", TG_MAX_DIMS);
    if (p->classes < 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "classes is %lld; it must be 0 or more", (long long)p->classes);
    if (ids->ndim) memcpy(shape, ids->shape, ids->ndim * sizeof *shape);
    shape[ids->ndim] = p->classes;
    TG_TRY(tg_call_free(c, 0, 0));
    TG_TRY(tg_call_linear(c, 0)); /* linear in no input */
    return tg_call_out(c, 0, p->dtype, ids->ndim + 1, shape);
}

/* Adds a 1 at each id. put_add also finds ids that are out of range. */
static tg_status one_hot_forward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_array y = tg_array_of(c->out[0]);
    int last = y.ndim - 1;
    tg_extent e, one;
    int64_t bad = 0, stride[TG_MAX_DIMS];
    const tg_tensor *unit = tg_call_temp(c, (tg_dtype)y.dtype, 0, NULL);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->fill(c->ctx, tg_array_of(unit), 1));
    TG_TRY(ops->fill(c->ctx, y, 0));
    tg_array index = tg_array_keep(tg_array_of(c->input[0]), y.ndim, 1u << last, &e);
    tg_array ones = tg_array_keep(tg_array_of(unit), y.ndim, (1u << y.ndim) - 1, &one);
    ones = tg_array_expand(ones, y.ndim, index.shape, stride);
    TG_TRY(ops->put_add(c->ctx, y, ones, index, last, &bad));
    return tg_op_bad_index(c, bad, index, y.shape[last]);
}

static const tg_sample one_hot_samples[] = {
    {.note = "a row", .params = &(const one_hot_params){5, TG_DTYPE_DEFAULT}, .n_in = 1, .input = {TG_S_INDEX(5, 7)}},
    {.note = "two dims", .params = &(const one_hot_params){3, TG_DTYPE_DEFAULT}, .n_in = 1,
     .input = {TG_S_INDEX(3, 2, 4)}},
    {.note = "transposed", .params = &(const one_hot_params){4, TG_DTYPE_DEFAULT}, .n_in = 1,
     .input = {TG_S_INDEX_AS(TG_SAMPLE_TRANSPOSED, 4, 3, 5)}},
    {.note = "strided int32", .params = &(const one_hot_params){4, TG_DTYPE_DEFAULT}, .n_in = 1,
     .input = {{.shape = TG_S_SHAPE(6), .kind = TG_SAMPLE_INDEX, .hi = 4, .layout = TG_SAMPLE_STRIDED,
                .dtype = TG_I32}}},
    {.note = "bools", .params = &(const one_hot_params){4, TG_BOOL}, .n_in = 1, .input = {TG_S_INDEX(4, 3)}},
    {.note = "integers", .params = &(const one_hot_params){4, TG_I64}, .n_in = 1, .input = {TG_S_INDEX(4, 3)}},
    {.note = "one id", .params = &(const one_hot_params){4, TG_U8}, .n_in = 1,
     .input = {{.kind = TG_SAMPLE_INDEX, .hi = 4}}},
    {.note = "size 1", .params = &(const one_hot_params){1, TG_DTYPE_DEFAULT}, .n_in = 1, .input = {TG_S_INDEX(1, 1)}},
    {.note = "no ids", .params = &(const one_hot_params){3, TG_DTYPE_DEFAULT}, .n_in = 1, .input = {TG_S_INDEX(3, 0)}},
    {.note = "out of range", .params = &(const one_hot_params){3, TG_DTYPE_DEFAULT}, .n_in = 1,
     .input = {TG_S_INDEX_IN(3, 9, 2)}, .refused = TG_ERR_DATA},
    {.note = "negative", .params = &(const one_hot_params){3, TG_DTYPE_DEFAULT}, .n_in = 1,
     .input = {TG_S_INDEX_IN(-3, 0, 2)}, .refused = TG_ERR_DATA},
    {.note = "no classes", .params = &(const one_hot_params){0, TG_DTYPE_DEFAULT}, .n_in = 1,
     .input = {TG_S_INDEX(3, 2)}, .refused = TG_ERR_DATA},
    {.note = "negative classes", .params = &(const one_hot_params){-1, TG_F32}, .n_in = 1, .input = {TG_S_INDEX(3, 2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "ids not whole", .params = &(const one_hot_params){3, TG_F32}, .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_DTYPE},
    {.note = "too many dims", .params = &(const one_hot_params){3, TG_F32}, .n_in = 1,
     .input = {TG_S_INDEX(3, 1, 1, 1, 1, 1, 1, 1, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const one_hot_params){1024, TG_DTYPE_DEFAULT}, .n_in = 1,
     .input = {TG_S_INDEX(1024, 1024)}, .bench = true},
};

static const tg_field one_hot_fields[] = {
    TG_ARG(one_hot_params, dtype, DTYPE, "Dtype of the result; \"default\" is that of the context."),
    TG_ARG(one_hot_params, classes, INT64, "Number of classes.", .required = true),
};

const tg_op tg_op_one_hot = {
    .size = sizeof(tg_op), .name = "one_hot", .formula = "y[.., j] = 1 where ids[..] is j, else 0", .inputs = "ids",
    .n_in = 1, .n_out = 1, .params_size = sizeof(one_hot_params), .family = TG_FAMILY_CUSTOM, .infer = one_hot_infer,
    .forward = one_hot_forward, TG_FIELDS(one_hot_fields), TG_SAMPLES(one_hot_samples)};

/* Returns a vector for each of the ids [..]: [.., classes], 1 at the id and 0 elsewhere, in the given dtype. An id
 * outside [0, classes) is a data error. */
tg_tensor *tg_one_hot(tg_tape *t, tg_dtype dtype, tg_tensor *ids, int64_t classes) {
    return TG_RECORD(t, tg_op_one_hot, (&(one_hot_params){classes, dtype}), ids);
}
