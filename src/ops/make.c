/* Tensors made from numbers alone: arange and full. */
#include "ops/common/op.h"
#include "autograd/apply.h"

#include <math.h>
#include <tapegrad/ops.h>

/* ---- arange ---- */

typedef struct arange_params {
    tg_dtype dtype;
    double start, stop, step;
} arange_params;

static tg_status arange_infer(tg_call *c) {
    arange_params *p = c->params;
    TG_TRY(tg_need_made(c, &p->dtype));
    if (p->dtype == TG_BOOL) return tg_call_fail(c, TG_ERR_DTYPE, "dtype is bool; it must be a float or an integer "
                                                 "dtype");
    if (!isfinite(p->start) || !isfinite(p->stop) || !isfinite(p->step) || p->step == 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "start is %g, stop is %g and step is %g; they must be finite and step "
                            "must not be 0", p->start, p->stop, p->step);
    double n = ceil((p->stop - p->start) / p->step);
    if (n > 0x1p53)
        return tg_call_fail(c, TG_ERR_SHAPE, "from %g to %g by %g there are %g elements; there must be at most 2^53",
                            p->start, p->stop, p->step, n);
    int64_t size = n > 0 ? (int64_t)n : 0;
    if (size > 0) {
        TG_TRY(tg_need_value(c, p->dtype, p->start, "start"));
        TG_TRY(tg_need_value(c, p->dtype, p->start + (double)(size - 1) * p->step, "the last element"));
    }
    if (!tg_is_float(p->dtype) && p->step != floor(p->step))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "step is %g; it must be an integer for dtype %s", p->step,
                            tg_dtype_name(p->dtype));
    return tg_call_out(c, 0, p->dtype, 1, &size);
}

static tg_status arange_forward(tg_call *c) {
    const arange_params *p = c->params;
    return tg_ctx_ops(c->ctx)->iota(c->ctx, tg_array_of(c->out[0]), p->start, p->step);
}

static const tg_sample arange_samples[] = {
    {.note = "up", .params = &(const arange_params){TG_DTYPE_DEFAULT, 0, 5, 1}},
    {.note = "down, not to the end", .params = &(const arange_params){TG_DTYPE_DEFAULT, 1, -1, -0.75}},
    {.note = "indices", .params = &(const arange_params){TG_I64, -3, 9, 4}},
    {.note = "int32", .params = &(const arange_params){TG_I32, 7, 0, -2}},
    {.note = "size 1", .params = &(const arange_params){TG_U8, 255, 256, 1}},
    {.note = "empty", .params = &(const arange_params){TG_DTYPE_DEFAULT, 5, 5, 1}},
    {.note = "step away from stop: empty", .params = &(const arange_params){TG_DTYPE_DEFAULT, 0, 5, -1}},
    {.note = "step 0", .params = &(const arange_params){TG_F32, 0, 5, 0}, .refused = TG_ERR_ARGUMENT},
    {.note = "half of an integer", .params = &(const arange_params){TG_I64, 0.5, 5, 1}, .refused = TG_ERR_ARGUMENT},
    {.note = "halves, the last one an integer", .params = &(const arange_params){TG_I64, 0, 1.5, 0.5},
     .refused = TG_ERR_ARGUMENT},
    {.note = "too many", .params = &(const arange_params){TG_F32, 0, 1e300, 1}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const arange_params){TG_I64, 0, 1048576, 1}, .bench = true},
};

static const tg_field arange_fields[] = {
    TG_ARG(arange_params, dtype, DTYPE, "Dtype of the result; \"default\" is that of the context."),
    TG_ARG(arange_params, start, DOUBLE, "The first number."),
    TG_ARG(arange_params, stop, DOUBLE, "The numbers lie before it; rounding may add one more.", .required = true),
    TG_ARG(arange_params, step, DOUBLE, "Distance between numbers."),
};

const tg_op tg_op_arange = {
    .size = sizeof(tg_op), .name = "arange", .formula = "start, start + step, .. before stop", .n_in = 0, .n_out = 1,
    .params_size = sizeof(arange_params), .family = TG_FAMILY_STRICT, .infer = arange_infer, .forward = arange_forward,
    TG_FIELDS(arange_fields), .preset = &(const arange_params){.step = 1}, TG_SAMPLES(arange_samples)};

/* Returns the vector start, start + step, .. of all elements before stop: [ceil((stop - start) / step)], or empty if
 * step leads away from stop. The quotient is rounded to float64, which may add an element: from 1 to 1.3 by 0.1 there
 * are 4, and the last one is 1.3. For integer dtypes step must be an integer, and so must start unless the result is
 * empty. */
tg_tensor *tg_arange(tg_tape *t, tg_dtype dtype, double start, double stop, double step) {
    tg_tensor *const none = NULL;
    return tg_record(t, &tg_op_arange, &(arange_params){dtype, start, stop, step}, &none, 0, TG_SITE);
}

/* ---- full ---- */

typedef struct full_params {
    tg_dtype dtype;
    tg_shape shape;
    double value;
} full_params;

static tg_status full_infer(tg_call *c) {
    full_params *p = c->params;
    TG_TRY(tg_need_made(c, &p->dtype));
    TG_TRY(tg_need_value(c, p->dtype, p->value, "the value"));
    TG_TRY(tg_shape_check(c->ctx, &p->shape, p->dtype, "tg_full: shape"));
    return tg_call_out(c, 0, p->dtype, (int)p->shape.ndim, p->shape.dim);
}

static tg_status full_forward(tg_call *c) {
    return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), ((const full_params *)c->params)->value);
}

static const tg_sample full_samples[] = {
    {.note = "matrix", .params = &(const full_params){.shape = TG_S_SHAPE(2, 3), .value = -1.5}},
    {.note = "scalar", .params = &(const full_params){.value = 3}},
    {.note = "integers", .params = &(const full_params){TG_I64, TG_S_SHAPE(4), -7}},
    {.note = "bools", .params = &(const full_params){TG_BOOL, TG_S_SHAPE(2, 2), 1}},
    {.note = "size 1", .params = &(const full_params){.shape = TG_S_SHAPE(1), .value = 0}},
    {.note = "empty", .params = &(const full_params){.shape = TG_S_SHAPE(0, 3), .value = 1}},
    {.note = "negative size", .params = &(const full_params){.shape = TG_S_SHAPE(2, -3)}, .refused = TG_ERR_SHAPE},
    {.note = "half", .params = &(const full_params){TG_I32, TG_S_SHAPE(2), 0.5}, .refused = TG_ERR_ARGUMENT},
    {.note = "out of range", .params = &(const full_params){TG_U8, TG_S_SHAPE(2), 256}, .refused = TG_ERR_ARGUMENT},
    {.note = "big", .params = &(const full_params){.shape = TG_S_SHAPE(1024, 1024), .value = 1}, .bench = true},
};

static const tg_field full_fields[] = {
    TG_ARG(full_params, dtype, DTYPE, "Dtype of the result; \"default\" is that of the context."),
    TG_ARG(full_params, shape, SHAPE, "Shape of the result.", .required = true),
    TG_ARG(full_params, value, DOUBLE, "Value of every element.", .required = true),
};

const tg_op tg_op_full = {
    .size = sizeof(tg_op), .name = "full", .formula = "value everywhere", .n_in = 0, .n_out = 1,
    .params_size = sizeof(full_params), .family = TG_FAMILY_STRICT, .infer = full_infer, .forward = full_forward,
    TG_FIELDS(full_fields), TG_SAMPLES(full_samples)};

/* Returns a tensor whose elements are all `value`, which an integer dtype must be able to represent. */
tg_tensor *tg_full(tg_tape *t, tg_dtype dtype, tg_shape shape, double value) {
    tg_tensor *const none = NULL;
    return tg_record(t, &tg_op_full, &(full_params){dtype, shape, value}, &none, 0, TG_SITE);
}
