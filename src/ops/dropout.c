/* Dropout: y = x keep / (1 - p). keep is 1 for an element whose draw is at least p, otherwise 0. The global tensor is x
 * itself or, if x is sharded, the tensor of which x is this rank's part. In op dropout an element takes the draw of its
 * position in the global tensor. In op dropout_rows the caller says to which row of the global tensor each row of x
 * belongs. */
#include "ops/common/derive.h"
#include "ops/common/indexed.h"
#include "ops/common/nn_op.h"
#include "kernels/composed.h"
#include "placement/draws.h"

typedef struct dropout_params {
    double p;
    tg_draws draws;
    int64_t width; /* dropout_rows: number of elements in a row of the global tensor; 0 if input 1 is not used */
    bool identity; /* the result is a view of x; set by infer if p is 0 or the tape is in evaluation mode */
    bool drawn;    /* draws are given: those of an earlier call */
} dropout_params;

/* The infer function of both ops. `take` takes the draws of the call. */
static tg_status infer(tg_call *c, tg_status (*take)(tg_call *c)) {
    dropout_params *p = c->params;
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_float(c, 0));
    if (!(p->p >= 0 && p->p < 1)) return tg_call_fail(c, TG_ERR_ARGUMENT, "p is %g; it must be at least 0 and less "
                                                      "than 1", p->p);
    if (p->drawn) return tg_infer_same(c);
    p->identity = p->p == 0 || !tg_is_training(c->tape);
    if (p->identity) return tg_call_view(c, 0, 0, x->ndim, x->shape, x->stride);
    TG_TRY(take(c));
    return tg_infer_same(c);
}

static tg_status take_draws(tg_call *c) {
    ((dropout_params *)c->params)->draws = tg_call_draws(c, c->input[0]);
    return c->ctx->run.status;
}

static tg_status dropout_infer(tg_call *c) { return infer(c, take_draws); }

/* y (+)= x keep / (1 - p). */
static tg_status drop(tg_call *c, const tg_tensor *y, const tg_tensor *x, bool add) {
    const dropout_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_array ay = tg_array_of(y), ax = tg_array_of(x);
    tg_draws draws = p->draws;
    if (p->width) {
        tg_tensor *rows = c->input[1];
        TG_TRY(tg_op_dense(c, &rows));
        draws.rows = tg_array_of(rows).data;
    }
    return (ops->dropout ? ops->dropout : tg_composed_dropout)(c->ctx, ay, ax, p->p, &draws, add);
}

static tg_status dropout_forward(tg_call *c) {
    return ((const dropout_params *)c->params)->identity ? TG_OK : drop(c, c->out[0], c->input[0], false);
}

/* Backward draws the same numbers again, so nothing is saved. */
static tg_status dropout_backward(tg_call *c) {
    if (((const dropout_params *)c->params)->identity) return tg_call_pass(c, 0, c->gout[0]);
    const tg_tensor *gx = tg_call_gin(c, 0);
    return tg_ok(c->ctx) ? drop(c, gx, c->gout[0], tg_adds(c, 0)) : c->ctx->run.status;
}

/* Drops the elements of g, a gradient or a tangent, that forward has dropped in x. */
static tg_tensor *drop_again(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const dropout_params *p = tg_node_params(n);
    return p->identity ? g : tg_dropout_again(t, g, p->p, &p->draws);
}

TG_VJP(dropout_vjp, drop_again(t, n, g))

static const tg_sample dropout_samples[] = {
    {.note = "some", .params = &(const dropout_params){.p = 0.3}, .n_in = 1, .input = {TG_S(4, 5)}},
    {.note = "most", .params = &(const dropout_params){.p = 0.9}, .n_in = 1, .input = {TG_S(3, 2, 5)}},
    {.note = "none: a view", .params = &(const dropout_params){.p = 0}, .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "transposed", .params = &(const dropout_params){.p = 0.5}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4)}},
    {.note = "strided", .params = &(const dropout_params){.p = 0.5}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "equal rows, own draws", .params = &(const dropout_params){.p = 0.5}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "scalar", .params = &(const dropout_params){.p = 0.2}, .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "one element", .params = &(const dropout_params){.p = 0.2}, .n_in = 1, .input = {TG_S(1, 1)}},
    {.note = "empty", .params = &(const dropout_params){.p = 0.2}, .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "p = 1", .params = &(const dropout_params){.p = 1}, .n_in = 1,
     .input = {TG_S(2)}, .refused = TG_ERR_ARGUMENT},
    {.note = "negative p", .params = &(const dropout_params){.p = -0.1}, .n_in = 1,
     .input = {TG_S(2)}, .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = &(const dropout_params){.p = 0.1}, .n_in = 1,
     .input = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "4 M elements", .params = &(const dropout_params){.p = 0.1}, .n_in = 1,
     .input = {TG_S(2048, 2048)}, .bench = true},
};

static const tg_field dropout_fields[] = {
    TG_ARG(dropout_params, p, DOUBLE, "Probability that an element becomes 0, 0 <= p < 1.", .required = true),
};

const tg_op tg_op_dropout = {
    .size = sizeof(tg_op),
    .name = "dropout",
    .formula = "x keep / (1 - p), keep 0 with probability p, else 1",
    .inputs = "x",
    .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(dropout_params),
    .passes = 1,
    .family = TG_FAMILY_SCALE,
    .infer = dropout_infer,
    .forward = dropout_forward,
    .backward = dropout_backward,
    .vjp = dropout_vjp,
    .jvp = tg_jvp_pointwise,
    TG_FIELDS(dropout_fields),
    TG_SAMPLES(dropout_samples),
};

/* Sets each element to 0 with probability p, 0 <= p < 1, and divides the others by 1 - p. Takes one draw per element
 * of the global tensor from the current random stream (tg_call_draws). No mask is saved, because backward draws the
 * same numbers again. If p is 0, or the tape is in evaluation mode, the result is a view of x and nothing is drawn. */
tg_tensor *tg_dropout(tg_tape *t, tg_tensor *x, double p) {
    return TG_RECORD(t, tg_op_dropout, &(dropout_params){.p = p}, x);
}

/* Runs dropout with the draws of an earlier call. */
tg_tensor *tg_dropout_again(tg_tape *t, tg_tensor *x, double p, const tg_draws *draws) {
    return TG_RECORD(t, tg_op_dropout, (&(dropout_params){.p = p, .draws = *draws, .drawn = true}), x);
}

/* ---- Rows of a global tensor ---- */

/* Takes the draws of dropout_rows by rows of the global tensor, and sets p->width to the length of these rows. With
 * TG_RNG_MEGATRON draws depend on no key; they are then taken as dropout does, but a key must be open all the same. */
static tg_status take_rows(tg_call *c) {
    dropout_params *p = c->params;
    if (!c->ctx->keys.depth)
        return tg_call_fail(c, TG_ERR_STATE, "no key is open; call tg_key_open first, or use tg_dropout");
    return tg_is_keyed(c->ctx) ? tg_draws_take_rows(c, c->input[0], &p->draws, &p->width) : take_draws(c);
}

static tg_status dropout_rows_infer(tg_call *c) {
    const tg_tensor *x = c->input[0], *rows = c->input[1];
    if (rows->dtype != TG_I64)
        return tg_call_fail(c, TG_ERR_DTYPE, "rows is %s; it must be i64", tg_dtype_name((tg_dtype)rows->dtype));
    if (x->ndim == 0 || rows->ndim != 1 || rows->shape[0] != x->shape[0])
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "rows has %s and %s; it must have 1 dim, and an element for each row of input 0",
                            tg_count(rows->ndim, "dim").text, tg_count(rows->numel, "element").text);
    TG_TRY(tg_call_role(c, 1, 0, 0));
    return infer(c, take_rows);
}

/* Fails if rows[i] is negative, or the draws of that row lie beyond those that the call has taken. Slot take makes the
 * check on every device: it reads element rows[i] of an array whose `most` elements share one address, and reports an
 * index that is out of range. */
static tg_status check_rows(tg_call *c, int64_t width) {
    const int64_t most = TG_DRAW_ROWS / width, none = 0;
    const tg_tensor *rows = c->input[1];
    int64_t bad = 0;
    const tg_tensor *read = tg_call_temp(c, TG_I64, 1, rows->shape);
    if (!tg_ok(c->ctx) || rows->numel == 0) return c->ctx->run.status;
    tg_array one = tg_array_of(rows);
    one.shape = &most;
    one.stride = &none;
    one.numel = most;
    one.contiguous = false;
    TG_TRY(tg_ctx_ops(c->ctx)->take(c->ctx, tg_array_of(read), one, tg_array_of(rows), 0, &bad));
    return tg_op_bad_index(c, bad, tg_array_of(rows), most);
}

static tg_status dropout_rows_forward(tg_call *c) {
    const dropout_params *p = c->params;
    if (p->width && !p->drawn) TG_TRY(check_rows(c, p->width));
    return dropout_forward(c);
}

static tg_tensor *drop_rows_again(tg_tape *t, const tg_node *n, tg_tensor *g);

TG_VJP(dropout_rows_vjp, drop_rows_again(t, n, g))

/* Samples run without an open key, so those that draw have the draws of an earlier call. */
#define ROWS_OF(columns) \
    &(const dropout_params){.p = 0.4, .width = (columns), .drawn = true, \
                            .draws = {.n = 2, .extent = {1, (columns)}, .stride = {(columns), 1}}}
static const tg_sample dropout_rows_samples[] = {
    {.note = "matrix", .params = ROWS_OF(5), .n_in = 2, .input = {TG_S(6, 5), TG_S_INDEX(9, 6)}},
    {.note = "transposed", .params = ROWS_OF(4), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S_INDEX(99, 3)}},
    {.note = "cube", .params = ROWS_OF(6), .n_in = 2, .input = {TG_S(4, 2, 3), TG_S_INDEX(9, 4)}},
    {.note = "column", .params = ROWS_OF(1), .n_in = 2, .input = {TG_S(7), TG_S_INDEX(40, 7)}},
    {.note = "empty", .params = ROWS_OF(3), .n_in = 2, .input = {TG_S(0, 3), TG_S_INDEX(9, 0)}},
    {.note = "strided rows", .params = ROWS_OF(5), .n_in = 2,
     .input = {TG_S(6, 5), TG_S_INDEX_AS(TG_SAMPLE_STRIDED, 9, 6)}},
    {.note = "none: a view", .params = &(const dropout_params){.p = 0}, .n_in = 2,
     .input = {TG_S(3, 4), TG_S_INDEX(9, 3)}},
    {.note = "no key", .params = &(const dropout_params){.p = 0.3}, .n_in = 2, .input = {TG_S(3, 4), TG_S_INDEX(9, 3)},
     .refused = TG_ERR_STATE},
    {.note = "fewer rows", .params = &(const dropout_params){.p = 0.3}, .n_in = 2,
     .input = {TG_S(3, 4), TG_S_INDEX(9, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "p = 1", .params = &(const dropout_params){.p = 1}, .n_in = 2,
     .input = {TG_S(2), TG_S_INDEX(9, 2)}, .refused = TG_ERR_ARGUMENT},
    {.note = "rows of another dtype", .params = &(const dropout_params){.p = 0.3}, .n_in = 2, .input = {TG_S(2),
                                                                                                        TG_S(2)},
     .refused = TG_ERR_DTYPE},
    {.note = "4 M elements", .params = ROWS_OF(2048), .n_in = 2, .input = {TG_S(2048, 2048), TG_S_INDEX(4096, 2048)},
     .bench = true},
};

const tg_op tg_op_dropout_rows = {
    .size = sizeof(tg_op),
    .name = "dropout_rows",
    .formula = "dropout of x, as rows[i] of a whole tensor draws it",
    .inputs = "x rows",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(dropout_params),
    .saves_in = 2,
    .family = TG_FAMILY_SCALE,
    .infer = dropout_rows_infer,
    .forward = dropout_rows_forward,
    .backward = dropout_backward,
    .vjp = dropout_rows_vjp,
    .jvp = tg_jvp_pointwise,
    TG_FIELDS(dropout_fields),
    TG_SAMPLES(dropout_rows_samples),
};

/* Drops the elements of g, a gradient or a tangent, that forward has dropped in x. */
static tg_tensor *drop_rows_again(tg_tape *t, const tg_node *n, tg_tensor *g) {
    dropout_params p = *(const dropout_params *)tg_node_params(n);
    p.drawn = true;
    return p.identity ? g : TG_RECORD(t, tg_op_dropout_rows, &p, g, tg_node_in(n)[1]);
}

/* Does what tg_dropout does, but row i of x takes the draws of row rows[i] of a global tensor. Copies rows with gaps
 * once, because forward and backward would each copy them. */
tg_tensor *tg_dropout_rows(tg_tape *t, tg_tensor *x, double p, tg_tensor *rows) {
    if (tg_is_alive(rows) && !tg_is_contiguous(rows)) rows = tg_contiguous(t, rows);
    return TG_RECORD(t, tg_op_dropout_rows, &(dropout_params){.p = p}, x, rows);
}
