#include "autograd/ops/loss.h"
#include "autograd/ops/network.h"
#include "autograd/ops/product.h"

/* cross_entropy(x w^T, target), x [.., h], w [v, h]: the logits of some rows at a time. */

/* Rows of a chunk, by shape alone: about 8 MiB of logits, but enough rows that each pass over w pays. */
static int64_t chunk_rows(int64_t rows, int64_t v, tg_dtype dtype) {
    enum { BYTES = 8 << 20, LEAST = 128 };
    int64_t fit = BYTES / (v * (int64_t)tg_dtype_size(dtype));
    if (fit < LEAST) fit = LEAST;
    int64_t chunks = (rows + fit - 1) / fit;
    return chunks ? (rows + chunks - 1) / chunks : 0;
}

/* The last chunk's logits are kept: backward begins with them, and would need their memory at once anyway. */
static tg_status linear_cross_entropy_infer(tg_call *c) {
    const tg_tensor *x = c->in[0], *w = c->in[1];
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)w->dtype);
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (x->ndim < 1 || w->ndim != 2 || x->shape[x->ndim - 1] != w->shape[1])
        return tg_call_fail(c, TG_ERR_SHAPE, "expected x [.., h] and w [v, h] of one h");
    TG_TRY(tg_loss_infer(c, w->shape[0]));
    if (!c->needs) return TG_OK;
    int64_t chunk = chunk_rows(c->in[2]->numel, w->shape[0], dtype);
    return tg_call_save(c, c->n_saved, dtype, 2, (int64_t[]){chunk, w->shape[0]});
}

/* What the logits of a chunk are made of. */
typedef struct head {
    tg_tensor *x, *target; /* contiguous */
    const tg_tensor *w;
    int64_t rows, h, v, chunk;
    tg_dtype dtype; /* of the logits: float32 even for 16-bit operands */
} head;

static tg_status open_head(tg_call *c, head *p) {
    const tg_tensor *w = c->in[1];
    *p = (head){.x = c->in[0],
                .target = c->in[2],
                .w = w,
                .rows = c->in[2]->numel,
                .h = w->shape[1],
                .v = w->shape[0],
                .dtype = tg_accumulate_dtype((tg_dtype)w->dtype)};
    p->chunk = chunk_rows(p->rows, p->v, p->dtype);
    TG_TRY(tg_op_dense(c, &p->x));
    return tg_op_dense(c, &p->target);
}

/* Room for a chunk of logits or of their gradient. */
static tg_tensor *chunk_buffer(tg_call *c, const head *p, tg_dtype dtype) {
    return tg_call_temp(c, dtype, 2, (int64_t[]){p->chunk, p->v});
}

/* The buffer that infer declared last, beside those of every loss; NULL: no gradient is needed. */
static tg_tensor *kept_logits(const tg_call *c) {
    int others = ((const tg_loss_params *)c->params)->reduction == TG_LOSS_MEAN ? TG_LOSS_COUNT : TG_LOSS_LSE;
    return c->n_saved > others + 1 ? c->saved[c->n_saved - 1] : NULL;
}

/* Rows from first on of a contiguous tensor of n columns. */
static tg_matrix rows_at(const tg_tensor *x, int64_t first, int64_t n) {
    char *data = tg_data(x);
    if (data) data += first * n * (int64_t)tg_dtype_size((tg_dtype)x->dtype);
    return (tg_matrix){.data = data, .rs = n, .cs = 1, .dtype = (tg_dtype)x->dtype};
}

/* c (+)= a b. */
static tg_status multiply(tg_call *c, int64_t m, int64_t n, int64_t k, tg_matrix out, tg_matrix a, tg_matrix b,
                          bool add) {
    tg_gemm g = {.m = m, .n = n, .k = k, .batch = {1, 1}, .a = a, .b = b, .c = out, .alpha = 1, .beta = add};
    return tg_ctx_ops(c->ctx)->gemm(c->ctx, &g);
}

/* logits = x w^T of n rows. */
static tg_status make_logits(tg_call *c, const head *p, int64_t first, int64_t n, const tg_tensor *logits) {
    return multiply(c, n, p->v, p->h, rows_at(logits, 0, p->v), rows_at(p->x, first, p->h),
                    tg_matrix_transposed(tg_matrix_of(p->w)), false);
}

static int64_t rows_left(const head *p, int64_t first) {
    return p->rows - first < p->chunk ? p->rows - first : p->chunk;
}

static tg_status linear_cross_entropy_forward(tg_call *c) {
    head p;
    tg_tensor *loss, *logits = kept_logits(c);
    tg_extent e;
    TG_TRY(open_head(c, &p));
    TG_TRY(tg_loss_buffer(c, &loss));
    if (!logits) logits = chunk_buffer(c, &p, p.dtype);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    for (int64_t first = 0; first < p.rows; first += p.chunk) {
        int64_t n = rows_left(&p, first);
        TG_TRY(make_logits(c, &p, first, n, logits));
        TG_TRY(tg_loss_forward(c, tg_rows_array(tg_data(logits), p.dtype, n, p.v, &e), p.target, loss, first));
    }
    return tg_loss_reduce(c, p.target, loss);
}

/* The gradients that n rows give: gx = glogits w, gw += glogits^T x. */
static tg_status chunk_grads(tg_call *c, const head *p, int64_t first, int64_t n, const tg_tensor *glogits) {
    tg_matrix g = rows_at(glogits, 0, p->v);
    bool begins = first + n == p->rows;
    if (c->gin_mode[0])
        TG_TRY(multiply(c, n, p->h, p->v, rows_at(c->gin[0], first, p->h), g, tg_matrix_of(p->w), tg_adds(c, 0)));
    if (!c->gin_mode[1]) return TG_OK;
    return multiply(c, p->v, p->h, n, tg_matrix_of(c->gin[1]), tg_matrix_transposed(g), rows_at(p->x, first, p->h),
                    tg_adds(c, 1) || !begins);
}

/* From the last chunk, whose logits were kept, to the first: those of the others are made again. Products want the
 * gradient of the logits in the operands' dtype. */
static tg_status linear_cross_entropy_backward(tg_call *c) {
    head p;
    tg_extent e, eg;
    tg_tensor *row_grads, *again, *glogits, *logits = kept_logits(c);
    TG_TRY(open_head(c, &p));
    TG_TRY(tg_loss_row_grads(c, &row_grads));
    again = glogits = chunk_buffer(c, &p, (tg_dtype)p.w->dtype);
    if (p.dtype != p.w->dtype && p.chunk < p.rows) again = chunk_buffer(c, &p, p.dtype);
    if (!tg_ok(c->ctx)) return c->ctx->status;
    if (p.rows == 0) return c->gin_mode[1] ? tg_op_zero(c, 1) : TG_OK;
    for (int64_t first = (p.rows - 1) / p.chunk * p.chunk; first >= 0; first -= p.chunk) {
        int64_t n = rows_left(&p, first);
        if (first + n < p.rows) TG_TRY(make_logits(c, &p, first, n, logits = again));
        tg_array l = tg_rows_array(tg_data(logits), p.dtype, n, p.v, &e);
        tg_array g = tg_rows_array(tg_data(glogits), (tg_dtype)glogits->dtype, n, p.v, &eg);
        TG_TRY(tg_loss_backward(c, g, l, p.target, row_grads, first, false));
        TG_TRY(chunk_grads(c, &p, first, n, glogits));
    }
    return TG_OK;
}

static int64_t linear_cross_entropy_flops(const tg_node *n) {
    return 2 * tg_numel(tg_node_input(n, 0)) * tg_dim(tg_node_input(n, 1), 0);
}

static const tg_sample linear_cross_entropy_samples[] = {
    {.note = "mean", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(5, 4)}},
    {.note = "sum", .params = TG_LOSS_OPTS(-100, 0, SUM), .n_in = 3,
     .in = {TG_S(2, 2, 3), TG_S(5, 3), TG_S_INDEX(5, 2, 2)}},
    {.note = "one loss a row", .params = TG_LOSS_OPTS(-100, 0, NONE), .n_in = 3,
     .in = {TG_S(2, 3, 4), TG_S(3, 4), TG_S_INDEX(3, 2, 3)}},
    {.note = "smoothing, class 0 ignored", .params = TG_LOSS_OPTS(0, 0.1, MEAN), .n_in = 3,
     .in = {TG_S(12, 2), TG_S(3, 2), TG_S_INDEX(3, 12)}},
    {.note = "smoothing of the wrong classes", .params = TG_LOSS_OPTS_AS(-100, 0.1, MEAN, MEGATRON), .n_in = 3,
     .in = {TG_S(4, 2), TG_S(5, 2), TG_S_INDEX(5, 4)}},
    {.note = "several chunks", .params = TG_LOSS_OPTS(1, 0.1, MEAN), .n_in = 3,
     .in = {TG_S(131, 1), TG_S(8195, 1), TG_S_INDEX(8195, 131)}, .slow = true},
    {.note = "other strides", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3), TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 3), TG_S_INDEX(5, 4)}},
    {.note = "strided", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 2, 3), TG_S_AS(TG_SAMPLE_STRIDED, 4, 3), TG_S_INDEX(4, 2, 2)}},
    {.note = "equal rows", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(2, 4), TG_S_INDEX(2, 3)}},
    {.note = "one row, one class", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S(1, 3), TG_S(1, 3), TG_S_INDEX(1, 1)}},
    {.note = "h = 0", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S(2, 0), TG_S(3, 0), TG_S_INDEX(3, 2)}},
    {.note = "sum of no rows", .params = TG_LOSS_OPTS(-100, 0, SUM), .n_in = 3,
     .in = {TG_S(0, 4), TG_S(3, 4), TG_S_INDEX(3, 0)}},
    {.note = "h differs", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S(4, 3), TG_S(5, 4), TG_S_INDEX(5, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "target of another shape", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(5, 4, 1)},
     .refused = TG_ERR_SHAPE},
    {.note = "class out of range", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S(4, 3), TG_S(5, 3), {.shape = TG_S_SHAPE(4), .kind = TG_SAMPLE_INDEX, .lo = -1, .hi = 0}},
     .refused = TG_ERR_DATA},
    {.note = "no such reduction", .n_in = 3,
     .params = &(const tg_loss_params){.size = sizeof(size_t), .known = sizeof(size_t), .reduction = (tg_loss_reduction)7},
     .in = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "256 x 768 over 50257", .params = TG_LOSS_OPTS(-100, 0, MEAN), .n_in = 3,
     .in = {TG_S(256, 768), TG_S(50257, 768), TG_S_INDEX(50257, 256)}, .bench = true},
};

const tg_op tg_op_linear_cross_entropy = {
    .size = sizeof(tg_op),
    .name = "linear_cross_entropy",
    .formula = "cross_entropy(x w^T, target)",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(tg_loss_params),
    .saves_in = 7,
    .family = TG_FAMILY_LOSS,
    .sums_f32 = true,
    .infer = linear_cross_entropy_infer,
    .forward = linear_cross_entropy_forward,
    .backward = linear_cross_entropy_backward,
    .flops = linear_cross_entropy_flops,
    TG_SAMPLES(linear_cross_entropy_samples),
};

/* cross_entropy(x w^T, target) of x [.., h], w [v, h] and target [..]: a language model's head and loss. The logits
 * exist for a chunk of rows only, and no buffer of the weight's size is taken: it saves x, w, one number a row and the
 * last chunk's logits, and backward computes those of the other chunks again. They are float32 even for 16-bit
 * operands. Options and results as in tg_cross_entropy. */
tg_tensor *tg_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                   const tg_cross_entropy_opts *opts) {
    tg_loss_params p = tg_loss_params_of(opts);
    return TG_RECORD(t, tg_op_linear_cross_entropy, &p, x, w, target);
}
