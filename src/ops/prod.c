/* The product over a set of dims. */
#include "ops/common/derive.h"
#include "ops/common/reduce.h"

static tg_status prod_infer(tg_call *c) {
    tg_dtype d = (tg_dtype)c->input[0]->dtype;
    return tg_reduce_infer(c, tg_total_dtype(d));
}

static tg_status prod_forward(tg_call *c) { return tg_reduce_run(c, TG_PROD, c->out[0], c->input[0], 1); }

/* Elements that are reduced to one element of the result form a group. The slope of an element is the product of the
 * other elements of its group. Zeros are first replaced by 1. If no other element of the group was 0, the slope is the
 * product of the group, divided by the element. If another element was 0, the slope is 0, or NaN if any other element
 * is infinite or NaN. The division gives NaN if the element itself is infinite or NaN. */
static tg_status prod_backward(tg_call *c) {
    const tg_tensor *x = c->input[0];
    tg_tensor *g = tg_reduce_kept(c, c->gout[0], x->ndim), *some = tg_reduce_whole(c, x);
    tg_tensor *zero = tg_call_temp(c, TG_BOOL, x->ndim, x->shape), *all = tg_reduce_small(c, x);
    tg_tensor *zeros = tg_reduce_small(c, x), *odds = tg_reduce_small(c, x), *none = tg_reduce_whole(c, x);
    tg_tensor *odd = tg_call_temp(c, TG_BOOL, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_logical_not, zero, TG_T1(x), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_masked_fill, some, TG_T2(x, zero), 2, 1, 0, false));
    TG_TRY(tg_reduce_run(c, TG_SUM, zeros, zero, 1));
    TG_TRY(tg_reduce_run(c, TG_PROD, all, some, 1));
    TG_TRY(tg_op_map(c, TG_FN_mul, all, TG_T2(g, all), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_div, some, TG_T2(all, some), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_eq, zero, TG_T2(zeros, zero), 2, 0, 0, false)); /* zero: no other element is 0 */
    TG_TRY(tg_op_map(c, TG_FN_sub, none, TG_T2(x, x), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_ne, odd, TG_T2(none, none), 2, 0, 0, false)); /* odd: infinite or NaN */
    TG_TRY(tg_reduce_run(c, TG_SUM, odds, odd, 1));
    TG_TRY(tg_op_map(c, TG_FN_ne, odd, TG_T2(odds, odd), 2, 0, 0, false)); /* odd: another element is that */
    TG_TRY(tg_op_map(c, TG_FN_neg, none, TG_T1(odd), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_sqrt, none, TG_T1(none), 1, 0, 0, false)); /* NaN where odd is true, else 0 */
    return tg_op_map(c, TG_FN_where, c->gin[0], TG_T3(zero, some, none), 3, 0, 0, tg_adds(c, 0));
}

/* Returns the products over the last dim of x [.., n], as [.., 1]: a tree of pairwise products. Its derivatives of any
 * order are right also where elements are 0. */
static tg_tensor *halves(tg_tape *t, tg_tensor *x) {
    int64_t n;
    while ((n = tg_dim(x, -1)) > 1) {
        tg_tensor *low = tg_slice(t, x, -1, 0, n / 2, 1), *high = tg_slice(t, x, -1, n / 2, n / 2 * 2, 1);
        tg_tensor *odd = n % 2 ? tg_slice(t, x, -1, n - 1, n, 1) : NULL;
        x = tg_mul(t, low, high);
        if (odd) x = tg_concat(t, (tg_tensor *[]){x, odd}, 2, -1);
        if (!tg_is_alive(x)) return x;
    }
    return x;
}

/* Moves the reduced dims to the end, merges them, and multiplies along the merged dim. Without reduced dims the result
 * is x. There is then nothing to merge, and x may have as many dims as a shape can hold. */
static tg_status prod_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_reduce_params *p = tg_node_params(n);
    tg_tensor *x = tg_node_in(n)[0], *y = tg_node_out(n)[0];
    tg_dims order = {.n = 0};
    tg_shape flat = {.ndim = 0};
    if (x->numel == 0) return TG_OK; /* the result is all ones or empty, on every rank, and has no derivative */
    if (!p->mask) {
        out[0] = tg_cast(t, x, (tg_dtype)y->dtype);
        return TG_OK;
    }
    for (int gone = 0; gone < 2; gone++)
        for (int d = 0; d < x->ndim; d++)
            if ((p->mask >> d & 1) == (uint32_t)gone) order.dim[order.n++] = d;
    for (int d = 0; d < x->ndim; d++)
        if (!(p->mask >> d & 1)) flat.dim[flat.ndim++] = x->shape[d];
    flat.dim[flat.ndim++] = tg_reduce_node_group(n);
    x = tg_permute(t, tg_wide(t, x), order);
    out[0] = tg_cast(t, tg_reshape(t, halves(t, tg_reshape(t, x, flat)), tg_shape_kept(y)), (tg_dtype)y->dtype);
    return TG_OK;
}

TG_COMPOSED(prod)

static const tg_sample prod_samples[] = {
    TG_REDUCE_SAMPLES, TG_SMALL_SAMPLES,
    {.note = "an odd number", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_IN(0.5, 2, 2, 7)}},
    {.note = "one zero and two in a row", .params = TG_OVER(1), .n_in = 1,
     .input = {{.shape = TG_S_SHAPE(5, 4), .zeros = 3}}},
    {.note = "no elements", .params = TG_OVER(1), .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "integers", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_INDEX(7, 3, 4)}},
    {.note = "bools", .params = TG_ALL, .n_in = 1, .input = {TG_S_BOOL(3)}},
};

const tg_op tg_op_prod = {
    .size = sizeof(tg_op), .name = "prod", .formula = "product of x over dims", .n_in = 1, .n_out = 1,
    .params_size = sizeof(tg_reduce_params), .saves_in = 1, .family = TG_FAMILY_REDUCE, .sums_f32 = true,
    .infer = prod_infer, .forward = prod_forward, .backward = prod_backward, .vjp = prod_vjp, .jvp = prod_jvp,
    .flops = tg_reduce_flops, TG_REDUCE_ARGS, TG_SAMPLES(prod_samples)};

/* Returns the product over dims, 1 for no elements: uint64 for uint64, int64 for other integers and bools. The gradient
 * is right also if elements are 0: a single zero among the elements of a product has the product of the others as its
 * slope, and with two or more zeros, all slopes are 0 if all elements are finite. */
TG_REDUCTION(prod)
