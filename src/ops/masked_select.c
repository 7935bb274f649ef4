/* The elements that a mask selects, as a vector. No shape may depend on data, so the caller states how many elements
 * there are, and the device checks this number. */
#include "ops/common/derive.h"
#include "ops/common/indexed.h"

typedef struct masked_select_params {
    int64_t count;
} masked_select_params;

static int64_t count_of(const tg_call *c) { return ((const masked_select_params *)c->params)->count; }

static tg_status masked_select_infer(tg_call *c) {
    const tg_tensor *x = c->input[0], *mask = c->input[1];
    int64_t count = count_of(c);
    TG_TRY(tg_need_bool(c, 1));
    for (int d = 0, front = x->ndim - mask->ndim; d < mask->ndim; d++)
        if (front < 0 || (mask->shape[d] != 1 && mask->shape[d] != x->shape[d + front]))
            return tg_call_fail(c, TG_ERR_SHAPE, "mask does not broadcast to the shape of input 0");
    if (count < 0) return tg_call_fail(c, TG_ERR_ARGUMENT, "count is %lld; it must be 0 or more", (long long)count);
    if (count > x->numel)
        return tg_call_fail(c, TG_ERR_SHAPE, "count is %lld; it must be at most %lld, the number of elements of input "
                            "0", (long long)count, (long long)x->numel);
    TG_TRY(tg_call_save(c, 0, TG_I64, 1, &count));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, 1, &count);
}

/* Sets *flat to the elements of x in row-major order, as one dim: a view of x, or of a temporary copy if the strides of
 * x do not allow a view. */
static tg_status flatten(tg_call *c, const tg_tensor *x, tg_extent *e, tg_array *flat) {
    e->shape[0] = x->numel;
    *flat = tg_array_of(x);
    if (tg_array_reshape(flat, 1, e->shape, e->stride)) return TG_OK;
    const tg_tensor *copy = tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_copy(c, tg_array_of(copy), *flat, false));
    *flat = tg_array_of(copy);
    tg_array_reshape(flat, 1, e->shape, e->stride);
    return TG_OK;
}

/* Checks that the number of selected elements is count. `last` has that number: the last of the cumulative sums of the
 * mask. */
static tg_status check_count(tg_call *c, tg_array last, int64_t count) {
    int64_t held;
    TG_TRY(tg_op_compare_count(c, last, TG_FN_ne, count, &held));
    if (TG_LIKELY(held < 0)) return TG_OK;
    return tg_call_fail(c, TG_ERR_DATA, "the mask selects %s but count is %lld; they must be equal",
                        tg_count(held, "element").text, (long long)count);
}

/* Sets positions[k] to the position in x of selected element k. The cumulative sum of the mask, times the mask, minus 1
 * is k for selected element k. It is -1 for all other elements, which put_add skips because -1 is out of range. */
static tg_status find_positions(tg_call *c, const tg_tensor *positions) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const tg_tensor *x = c->input[0], *mask = c->input[1];
    tg_tensor *sums = tg_call_temp(c, TG_I64, x->ndim, x->shape), *all = tg_call_temp(c, TG_I64, 1, &x->numel);
    tg_tensor *held = tg_call_temp(c, TG_BOOL, x->ndim, x->shape);
    tg_extent e, ones, last;
    tg_array flat, flat_held;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_id, held, TG_T1(mask), 1, 0, 0, false));
    TG_TRY(flatten(c, sums, &e, &flat));
    TG_TRY(flatten(c, held, &ones, &flat_held));
    TG_TRY(tg_op_scan(c, TG_SUM, flat, flat_held, false, false));
    TG_TRY(check_count(c, tg_array_slice(flat, 0, x->numel - 1, 1, 1, &last), count_of(c)));
    TG_TRY(tg_op_map(c, TG_FN_mul, sums, TG_T2(sums, held), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_affine, sums, TG_T1(sums), 1, 1, -1, false));
    TG_TRY(ops->iota(c->ctx, tg_array_of(all), 0, 1));
    TG_TRY(ops->fill(c->ctx, tg_array_of(positions), 0));
    return ops->put_add(c->ctx, tg_array_of(positions), tg_array_of(all), flat, 0, NULL);
}

static tg_status masked_select_forward(tg_call *c) {
    tg_extent e;
    tg_array x;
    if (c->input[0]->numel == 0) return TG_OK;
    TG_TRY(find_positions(c, c->saved[0]));
    TG_TRY(flatten(c, c->input[0], &e, &x));
    return tg_ctx_ops(c->ctx)->take(c->ctx, tg_array_of(c->out[0]), x, tg_array_of(c->saved[0]), 0, NULL);
}

static tg_status masked_select_backward(tg_call *c) {
    tg_extent e;
    tg_array to;
    TG_TRY(tg_op_zero(c, 0));
    TG_TRY(flatten(c, c->gin[0], &e, &to));
    return tg_ctx_ops(c->ctx)->put_add(c->ctx, to, tg_array_of(c->gout[0]), tg_array_of(c->saved[0]), 0, NULL);
}

static tg_tensor *masked_select_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const tg_tensor *x = tg_node_in(n)[0];
    tg_tensor *positions = tg_node_kept_tensor(t, n, 0, NULL);
    tg_tensor *flat = tg_scatter_add(t, tg_full(t, (tg_dtype)x->dtype, TG_SHAPE(x->numel), 0), 0, positions, g);
    return tg_reshape(t, flat, tg_shape_kept(x));
}

TG_VJP(masked_select_vjp, masked_select_back(t, n, g))

static const tg_sample masked_select_samples[] = {
    {.note = "every second", .params = &(const masked_select_params){7}, .n_in = 2,
     .input = {TG_S(3, 5), TG_S_HOLDS(1, 2, 3, 5)}},
    {.note = "two of three", .params = &(const masked_select_params){16}, .n_in = 2,
     .input = {TG_S(2, 3, 4), TG_S_HOLDS(1, 3, 2, 3, 4)}},
    {.note = "columns", .params = &(const masked_select_params){6}, .n_in = 2,
     .input = {TG_S(3, 5), TG_S_HOLDS(3, 5, 5)}},
    {.note = "rows", .params = &(const masked_select_params){5}, .n_in = 2,
     .input = {TG_S(3, 5), TG_S_HOLDS(2, 3, 3, 1)}},
    {.note = "transposed", .params = &(const masked_select_params){5}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5), TG_S_HOLDS(2, 3, 3, 5)}},
    {.note = "strided", .params = &(const masked_select_params){9}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 6), TG_S_HOLDS(1, 2, 3, 6)}},
    {.note = "expanded", .params = &(const masked_select_params){6}, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S_HOLDS(1, 2, 3, 4)}},
    {.note = "all but one, of many", .params = &(const masked_select_params){999}, .n_in = 2,
     .input = {TG_S(1000), TG_S_HOLDS(1, 1000, 1000)}},
    {.note = "integers", .params = &(const masked_select_params){2}, .n_in = 2,
     .input = {TG_S_INDEX(9, 5), TG_S_HOLDS(1, 2, 5)}},
    {.note = "none", .params = &(const masked_select_params){0}, .n_in = 2, .input = {TG_S(3), TG_S_HOLDS(1, 1, 3)}},
    {.note = "size 1", .params = &(const masked_select_params){0}, .n_in = 2, .input = {TG_S(1), TG_S_HOLDS(1, 1, 1)}},
    {.note = "scalar", .params = &(const masked_select_params){0}, .n_in = 2,
     .input = {TG_S_SCALAR, {.kind = TG_SAMPLE_BOOL, .lo = 1, .hi = 1}}},
    {.note = "empty", .params = &(const masked_select_params){0}, .n_in = 2, .input = {TG_S(0, 3), TG_S_BOOL(3)}},
    {.note = "count too small", .params = &(const masked_select_params){1}, .n_in = 2,
     .input = {TG_S(4), TG_S_HOLDS(1, 2, 4)}, .refused = TG_ERR_DATA},
    {.note = "count too large", .params = &(const masked_select_params){3}, .n_in = 2,
     .input = {TG_S(4), TG_S_HOLDS(1, 2, 4)}, .refused = TG_ERR_DATA},
    {.note = "count above the number of elements", .params = &(const masked_select_params){5}, .n_in = 2,
     .input = {TG_S(4), TG_S_HOLDS(0, 1, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "negative count", .params = &(const masked_select_params){-1}, .n_in = 2, .input = {TG_S(4), TG_S_BOOL(4)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "mask larger", .params = &(const masked_select_params){2}, .n_in = 2, .input = {TG_S(4), TG_S_BOOL(2, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "mask not bool", .params = &(const masked_select_params){2}, .n_in = 2, .input = {TG_S(4), TG_S(4)},
     .refused = TG_ERR_DTYPE},
    {.note = "big", .params = &(const masked_select_params){524288}, .n_in = 2,
     .input = {TG_S(1024, 1024), TG_S_HOLDS(1, 2, 1024, 1024)}, .bench = true},
};

static const tg_field masked_select_fields[] = {
    TG_ARG(masked_select_params, count, INT64, "Number of elements of x where mask is true.", .required = true),
};

const tg_op tg_op_masked_select = {
    .size = sizeof(tg_op), .name = "masked_select", .formula = "the x where mask holds, count of them",
    .inputs = "x mask", .n_in = 2, .n_out = 1, .params_size = sizeof(masked_select_params), .family = TG_FAMILY_TAKE,
    .sums_f32 = true, .infer = masked_select_infer, .forward = masked_select_forward,
    .backward = masked_select_backward, .vjp = masked_select_vjp, .jvp = tg_jvp_linear, TG_FIELDS(masked_select_fields),
    TG_SAMPLES(masked_select_samples)};

/* Returns the elements of x where mask is true, in row-major order: [count]. mask is bool and broadcasts to x. The
 * caller states their number, because no shape may depend on data; a mask that selects another number of elements is
 * a data error. */
tg_tensor *tg_masked_select(tg_tape *t, tg_tensor *x, tg_tensor *mask, int64_t count) {
    return TG_RECORD(t, tg_op_masked_select, &(masked_select_params){count}, x, mask);
}
