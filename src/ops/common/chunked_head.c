/* A linear layer with a loss, computed in chunks of rows; see chunked_head.h. */
#include "ops/common/chunked_head.h"
#include "ops/common/nn_op.h"
#include "ops/common/product.h"
#include "autograd/backward.h"
#include "tape/call.h"

/* Returns the number of rows of a chunk, which depends on shapes and dtypes alone. A chunk has at most about 8 MiB of
 * logits, or 512 rows if that is more. Smaller chunks would be slow, because each chunk reads all of w and its
 * gradient: with 128 rows, the product for the gradient of w runs at half the speed that it has with 512. Products of
 * 16-bit operands take half the time, so for them the limit is at least 1024 rows. The rows are divided evenly among as
 * few chunks as the limit allows. */
static int64_t chunk_rows(const tg_call *c, int64_t v) {
    enum { BYTES = 8 << 20, LEAST = 512 };
    tg_dtype of_operands = (tg_dtype)c->input[1]->dtype, of_logits = tg_accumulate_dtype(of_operands);
    int64_t rows = c->input[2]->numel, fit = BYTES / ((v ? v : 1) * (int64_t)tg_dtype_size(of_logits));
    int64_t least = of_operands == of_logits ? LEAST : 2 * LEAST;
    if (fit < least) fit = least;
    int64_t chunks = (rows + fit - 1) / fit;
    return chunks ? (rows + chunks - 1) / chunks : 0;
}

static int64_t columns_of(const tg_call *c) { return ((const tg_row_loss_params *)c->params)->columns; }

tg_status tg_chunked_head_infer(tg_call *c) {
    const tg_tensor *x = c->input[0], *w = c->input[1];
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)w->dtype);
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (x->ndim < 1 || w->ndim != 2 || x->shape[x->ndim - 1] != w->shape[1])
        return tg_call_fail(c, TG_ERR_SHAPE, "x must be [.., h] and w [v, h] with the same h");
    TG_TRY(tg_row_loss_infer(c, w->shape[0]));
    if (!c->needs) return TG_OK;
    int64_t v = columns_of(c);
    return tg_call_save(c, c->n_saved, dtype, 2, (int64_t[]){chunk_rows(c, v), v});
}

/* The operands and sizes of the op. */
typedef struct head {
    tg_tensor *x, *target; /* contiguous */
    const tg_tensor *w;
    int64_t rows, h, v, chunk; /* v: columns of the logits, which use the first rows of w */
    tg_dtype dtype;            /* of the logits: float32 even for 16-bit operands */
} head;

/* Fills *p. Copies x and the target if they are not contiguous. */
static tg_status open_head(tg_call *c, head *p) {
    const tg_tensor *w = c->input[1];
    *p = (head){.x = c->input[0],
                .target = c->input[2],
                .w = w,
                .rows = c->input[2]->numel,
                .h = w->shape[1],
                .v = columns_of(c),
                .dtype = tg_accumulate_dtype((tg_dtype)w->dtype)};
    p->chunk = chunk_rows(c, p->v);
    TG_TRY(tg_op_dense(c, &p->x));
    return tg_op_dense(c, &p->target);
}

/* Returns a temporary for a chunk of logits or of their gradient. */
static tg_tensor *chunk_buffer(tg_call *c, const head *p, tg_dtype dtype) {
    return tg_call_temp(c, dtype, 2, (int64_t[]){p->chunk, p->v});
}

/* Returns the private buffer of the saved logits, which infer declares after the buffers of tg_row_loss_infer. Returns
 * NULL if no gradient is needed, because then no logits are saved. */
static tg_tensor *kept_logits(const tg_call *c) {
    int last_of_loss =
        ((const tg_row_loss_params *)c->params)->reduction == TG_LOSS_MEAN ? TG_ROW_LOSS_COUNT : TG_ROW_LOSS_MASS;
    return c->n_saved > last_of_loss + 1 ? c->saved[c->n_saved - 1] : NULL;
}

/* Returns the rows from `first` on of a contiguous tensor with n columns, as a matrix. */
static tg_matrix rows_at(const tg_tensor *x, int64_t first, int64_t n) {
    char *data = tg_data(x);
    if (data) data += first * n * (int64_t)tg_dtype_size((tg_dtype)x->dtype);
    return (tg_matrix){.data = data, .rs = n, .cs = 1, .dtype = (tg_dtype)x->dtype};
}

/* out (+)= a b. */
static tg_status multiply(tg_call *c, int64_t m, int64_t n, int64_t k, tg_matrix out, tg_matrix a, tg_matrix b,
                          bool add) {
    tg_gemm g = {.m = m, .n = n, .k = k, .batch = {1, 1}, .a = a, .b = b, .c = out, .alpha = 1, .beta = add};
    return tg_ctx_ops(c->ctx)->gemm(c->ctx, &g);
}

/* logits = x w^T for the n rows of x from `first` on. */
static tg_status make_logits(tg_call *c, const head *p, int64_t first, int64_t n, const tg_tensor *logits) {
    return multiply(c, n, p->v, p->h, rows_at(logits, 0, p->v), rows_at(p->x, first, p->h),
                    tg_matrix_transposed(tg_matrix_of(p->w)), false);
}

/* Returns the number of rows of the chunk that starts at row `first`. */
static int64_t rows_of_chunk(const head *p, int64_t first) {
    return p->rows - first < p->chunk ? p->rows - first : p->chunk;
}

tg_status tg_chunked_head_forward(tg_call *c, const tg_tensor *loss) {
    head p;
    tg_tensor *logits = kept_logits(c);
    tg_extent e;
    TG_TRY(open_head(c, &p));
    if (!logits) logits = chunk_buffer(c, &p, p.dtype);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    for (int64_t first = 0; first < p.rows; first += p.chunk) {
        int64_t n = rows_of_chunk(&p, first);
        TG_TRY(make_logits(c, &p, first, n, logits));
        TG_TRY(tg_row_loss_forward(c, tg_rows_array(tg_data(logits), p.dtype, n, p.v, &e), p.target, loss, first));
    }
    return TG_OK;
}

/* ---- backward ---- */

/* Computes what the n rows from `first` on give to the gradients: gx (+)= glogits w in these rows and, unless gw is
 * deferred, gw += glogits^T x. Backward begins with the last chunk; that chunk overwrites gw if gin_mode says so. */
static tg_status chunk_grads(tg_call *c, const head *p, int64_t first, int64_t n, const tg_tensor *glogits,
                             bool deferred) {
    tg_matrix g = rows_at(glogits, 0, p->v);
    bool begins = first + n == p->rows;
    if (c->gin_mode[0])
        TG_TRY(multiply(c, n, p->h, p->v, rows_at(c->gin[0], first, p->h), g, tg_matrix_of(p->w), tg_adds(c, 0)));
    if (!c->gin_mode[1] || deferred) return TG_OK;
    return multiply(c, p->v, p->h, n, tg_matrix_of(c->gin[1]), tg_matrix_transposed(g), rows_at(p->x, first, p->h),
                    tg_adds(c, 1) || !begins);
}

/* If gin_mode says that the gradient of w is overwritten, zeroes its rows that no product writes: those that belong to
 * no column of the logits, or all of them if x has no rows. */
static tg_status zero_rest(tg_call *c, const head *p) {
    tg_extent e;
    if (c->gin_mode[1] != TG_GRAD_WRITE) return TG_OK;
    int64_t first = p->rows ? p->v : 0, all = p->w->shape[0];
    if (first == all) return TG_OK;
    return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_slice(tg_array_of(c->gin[1]), 0, first, all - first, 1, &e), 0);
}

/* Hands the gradient of w over to the list that defers such products for the tape (tg_tape_defer). Returns whether the
 * list took it. Only a single chunk can be deferred: the gradient of the logits then needs no more memory than their
 * chunk, which the op keeps anyway. */
static bool defers(tg_call *c, const head *p, tg_tensor *glogits) {
    tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
    if (!c->gin_mode[1] || p->chunk < p->rows || !c->tape->deferral.take) return false;
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[x->ndim - 1] = p->v;
    for (int64_t d = x->ndim - 1, n = 1; d >= 0; n *= shape[d--]) stride[d] = n;
    tg_tensor *gy = tg_call_view_of(c, glogits, 0, x->ndim, shape, stride);
    return tg_ok(c->ctx) && tg_call_defers(c, 1, x, gy);
}

/* Returns the memory in which backward computes logits again. `kept` is the buffer of the saved chunk, and `spent` says
 * that an earlier backward has overwritten it. If no other backward may follow, returns kept. Otherwise returns a
 * temporary, or NULL if nothing must be computed again: there is one chunk, and kept still holds its logits. */
static tg_tensor *work_buffer(tg_call *c, const head *p, tg_tensor *kept, bool spent) {
    if (!tg_call_retains(c)) return kept;
    return p->chunk < p->rows || spent ? chunk_buffer(c, p, p->dtype) : NULL;
}

/* Runs from the last chunk, whose logits were saved, to the first. The logits of all other chunks are computed
 * again; so are those of the last chunk if an earlier backward, which failed, has overwritten them. The products
 * need the gradient of the logits in the dtype of x and w. If that is also the logits' dtype, the gradient is
 * written to the work buffer, over the logits that were computed there. */
tg_status tg_chunked_head_backward(tg_call *c, const tg_tensor *row_grads) {
    head p;
    tg_extent e, eg;
    tg_row_loss_params *params = c->params;
    bool spent = params->spent;
    TG_TRY(open_head(c, &p));
    tg_tensor *kept = kept_logits(c), *work = work_buffer(c, &p, kept, spent), *glogits = work;
    if (!work || p.dtype != p.w->dtype) glogits = chunk_buffer(c, &p, (tg_dtype)p.w->dtype);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (p.rows == 0) return zero_rest(c, &p);
    bool deferred = false;
    params->spent |= work == kept;
    for (int64_t first = (p.rows - 1) / p.chunk * p.chunk; first >= 0; first -= p.chunk) {
        int64_t n = rows_of_chunk(&p, first);
        bool is_kept = first + n == p.rows && !spent;
        const tg_tensor *logits = is_kept ? kept : work;
        if (!is_kept) TG_TRY(make_logits(c, &p, first, n, logits));
        tg_array l = tg_rows_array(tg_data(logits), p.dtype, n, p.v, &e);
        tg_array g = tg_rows_array(tg_data(glogits), (tg_dtype)glogits->dtype, n, p.v, &eg);
        TG_TRY(tg_row_loss_backward(c, g, l, p.target, row_grads, first, false));
        deferred = defers(c, &p, glogits);
        TG_TRY(c->ctx->run.status);
        TG_TRY(chunk_grads(c, &p, first, n, glogits, deferred));
    }
    return deferred ? TG_OK : zero_rest(c, &p);
}

int64_t tg_chunked_head_flops(const tg_node *n) {
    return tg_flops(2 * tg_numel(tg_node_input(n, 0)), tg_dim(tg_node_input(n, 1), 0));
}
