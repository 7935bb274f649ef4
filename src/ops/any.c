/* Boolean reductions: whether any or all elements of a mask are true over a set of dims. */

#include <tapegrad/ops.h>

#include "ops/common/reduce.h"

static tg_status bool_infer(tg_call *c) {
    TG_TRY(tg_need_bool(c, 0));
    return tg_reduce_infer(c, TG_BOOL);
}

/* Reduces by TG_MAX for any, by TG_MIN for all. Fills the result if no elements are reduced, because the extremum of no
 * elements is not a bool. */
static tg_status reduce_bools(tg_call *c, tg_reduction kind) {
    if (tg_reduce_group(c, c->input[0]) > 0) return tg_reduce_run(c, kind, c->out[0], c->input[0], 1);
    return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), kind == TG_MIN);
}

#define BOOLS(layout_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_BOOL, .layout = (layout_)}

static const tg_sample bool_samples[] = {
    {.note = "all", .params = TG_ALL, .n_in = 1, .input = {TG_S_BOOL(3, 5)}},
    {.note = "last", .params = TG_OVER(-1), .n_in = 1, .input = {TG_S_BOOL(6, 2)}},
    {.note = "first, kept", .params = TG_KEEP(0), .n_in = 1, .input = {TG_S_BOOL(2, 6)}},
    {.note = "outer two", .params = TG_OVER(0, 2), .n_in = 1, .input = {TG_S_BOOL(2, 5, 2)}},
    {.note = "transposed", .params = TG_OVER(1), .n_in = 1, .input = {BOOLS(TG_SAMPLE_TRANSPOSED, 6, 2)}},
    {.note = "strided", .params = TG_OVER(1), .n_in = 1, .input = {BOOLS(TG_SAMPLE_STRIDED, 6, 2)}},
    {.note = "expanded", .params = TG_OVER(0), .n_in = 1, .input = {BOOLS(TG_SAMPLE_EXPANDED, 3, 6)}},
    {.note = "size 1", .params = TG_OVER(0), .n_in = 1, .input = {TG_S_BOOL(1)}},
    {.note = "scalar", .params = TG_ALL, .n_in = 1, .input = {{.kind = TG_SAMPLE_BOOL}}},
    {.note = "of nothing", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_BOOL(3, 0)}},
    {.note = "no result", .params = TG_OVER(1), .n_in = 1, .input = {TG_S_BOOL(0, 3)}},
    {.note = "floats", .params = TG_ALL, .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_DTYPE},
    {.note = "no such dim", .params = TG_OVER(2), .n_in = 1, .input = {TG_S_BOOL(3, 5)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = TG_OVER(-1), .n_in = 1, .input = {TG_S_BOOL(1024, 1024)}, .bench = true},
};

static tg_status any_forward(tg_call *c) { return reduce_bools(c, TG_MAX); }

const tg_op tg_op_any = {
    .size = sizeof(tg_op), .name = "any", .formula = "whether any element of x is true, over dims", .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(tg_reduce_params), .family = TG_FAMILY_REDUCE, .infer = bool_infer, .forward = any_forward,
    .flops = tg_reduce_flops, TG_REDUCE_ARGS, TG_SAMPLES(bool_samples)};

/* Returns a bool tensor that is true where any element over dims is true; false where there are no elements. x is
 * bool. */
TG_REDUCTION(any)

static tg_status all_forward(tg_call *c) { return reduce_bools(c, TG_MIN); }

const tg_op tg_op_all = {
    .size = sizeof(tg_op), .name = "all", .formula = "whether all elements of x are true, over dims", .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(tg_reduce_params), .family = TG_FAMILY_REDUCE, .infer = bool_infer, .forward = all_forward,
    .flops = tg_reduce_flops, TG_REDUCE_ARGS, TG_SAMPLES(bool_samples)};

/* Returns a bool tensor that is true where all elements over dims are true; true where there are no elements. x is
 * bool. */
TG_REDUCTION(all)
