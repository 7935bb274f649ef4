/* Where packed sequences start: in the whole sequence, in each block, and on each rank. */
#include <stdio.h>

#include "parallel/cp/cp.h"

/* ---- Sequences that are cut apart ---- */

/* Sets out, int64 [m + 1], to formula(starts, divisor), computed in float64, in which integers up to 2^53 are exact. */
static tg_status divide(tg_call *c, tg_formula f, const tg_tensor *out, const tg_tensor *starts, int divisor) {
    const int64_t one = 1;
    tg_tensor *x = tg_call_temp(c, TG_F64, 1, &starts->numel), *by = tg_call_temp(c, TG_F64, 1, &one);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(by), divisor));
    TG_TRY(tg_op_map(c, TG_FN_id, x, TG_T1(starts), 1, 0, 0, false));
    return tg_op_map(c, f, out, TG_T2(x, by), 2, 0, 0, false);
}

/* Fails unless all elements of starts are multiples of the divisor. The remainders are used as indices of an array of
 * one element, because the device reports an index that is not 0. */
static tg_status check_multiples(tg_call *c, const tg_tensor *starts, int divisor) {
    const int64_t one = 1;
    int64_t bad = 0;
    tg_tensor *rest = tg_call_temp(c, TG_I64, 1, &starts->numel), *read = tg_call_temp(c, TG_I64, 1, &starts->numel);
    tg_tensor *word = tg_call_temp(c, TG_I64, 1, &one);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(divide(c, TG_FN_remainder, rest, starts, divisor));
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(word), 0));
    TG_TRY(tg_ctx_ops(c->ctx)->take(c->ctx, tg_array_of(read), tg_array_of(word), tg_array_of(rest), 0, &bad));
    if (!bad) return TG_OK;
    char found[48] = "";
    if (c->ctx->host)
        snprintf(found, sizeof found, " is %lld; it", (long long)((const int64_t *)tg_data(starts))[bad - 1]);
    return tg_call_fail(c, TG_ERR_DATA, "starts[%lld]%s must be a multiple of %d, twice the number of ranks",
                        (long long)bad - 1, found, divisor);
}

/* Sets w->starts to the starts within each block, which are those in the whole sequence divided by 2n, the number of
 * chunks. */
static tg_status starts_apart(tg_cp_pass *w, tg_tensor *starts, bool check) {
    tg_call *c = w->c;
    int divisor = 2 * tg_comm_size(w->p->comm);
    if (check) TG_TRY(check_multiples(c, starts, divisor));
    w->check_starts = check;
    tg_tensor *within = tg_call_temp(c, TG_I64, 1, &starts->numel);
    TG_TRY(tg_ctx_status(c->ctx));
    w->starts = tg_array_of(within);
    return divide(c, TG_FN_floor_divide, within, starts, divisor);
}

/* ---- Sequences that are cut as one ---- */

static tg_status map(const tg_call *c, tg_formula f, tg_array out, const tg_array *in, int n, double a, double b) {
    const double params[2] = {a, b};
    return tg_ctx_ops(c->ctx)->apply(c->ctx, f, out, in, n, params, false);
}

/* Fails unless each row of starts grows from 0 to the length of the sequence. In `steps`, column 0 is the first start,
 * and the last column is that length minus the last start. The columns between them are the differences of neighboring
 * starts, with 0 in place of those above 0. All must be 0, which the device checks as in check_multiples. */
static tg_status check_growth(tg_cp_pass *w) {
    tg_call *c = w->c;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    int64_t rows = w->starts.shape[0], m = w->starts.shape[1] - 1, bad = 0;
    const int64_t shape[] = {rows, m + 2}, column[] = {rows, 1};
    tg_tensor *steps = tg_call_temp(c, TG_I64, 2, shape), *read = tg_call_temp(c, TG_I64, 2, shape);
    tg_tensor *word = tg_call_temp(c, TG_I64, 2, column);
    TG_TRY(tg_ctx_status(c->ctx));
    tg_extent e[3];
    tg_array all = tg_array_of(steps), after = tg_array_slice(all, 1, 1, m + 1, 1, &e[0]);
    tg_array between = tg_array_slice(all, 1, 1, m, 1, &e[1]);
    TG_TRY(ops->fill(c->ctx, all, (double)w->p->length));
    TG_TRY(map(c, TG_FN_id, tg_array_slice(all, 1, 0, m + 1, 1, &e[2]), &w->starts, 1, 0, 0));
    TG_TRY(map(c, TG_FN_sub, after, (const tg_array[]){after, w->starts}, 2, 0, 0));
    TG_TRY(map(c, TG_FN_clamp, between, &between, 1, -1, 0));
    TG_TRY(ops->fill(c->ctx, tg_array_of(word), 0));
    TG_TRY(ops->take(c->ctx, tg_array_of(read), tg_array_of(word), all, 1, &bad));
    if (!bad) return TG_OK;
    int64_t i = (bad - 1) % (m + 2);
    return tg_cp_bad_start(w, (bad - 1) / (m + 2), i > m ? m : i);
}

/* Copies starts to w->starts, as one row or a row for each batch entry, and allocates w->starts_q and w->starts_k. */
static tg_status starts_of_whole(tg_cp_pass *w, tg_tensor *starts, bool check) {
    tg_call *c = w->c;
    int64_t n = starts->shape[starts->ndim - 1], shape[] = {starts->numel / n, n}, stride[] = {n, 1};
    tg_tensor *x[3];
    for (int i = 0; i < 3; i++) x[i] = tg_call_temp(c, TG_I64, 2, shape);
    TG_TRY(tg_ctx_status(c->ctx));
    w->starts = tg_array_of(x[0]), w->starts_q = tg_array_of(x[1]), w->starts_k = tg_array_of(x[2]);
    tg_array from = tg_array_at(tg_array_of(starts), 0, 2, shape, stride);
    TG_TRY(map(c, TG_FN_id, w->starts, &from, 1, 0, 0));
    return check ? check_growth(w) : TG_OK;
}

/* Sets out to where the sequences start in a block. */
static tg_status starts_in(const tg_cp_pass *w, int block, tg_array out) {
    int64_t rows = w->p->blocks.rows;
    TG_TRY(map(w->c, TG_FN_affine, out, &w->starts, 1, 1, -(double)(block * rows)));
    return map(w->c, TG_FN_clamp, out, &out, 1, 0, (double)rows);
}

tg_status tg_cp_pair_starts(tg_cp_pass *w, int query, int key) {
    TG_TRY(starts_in(w, query, w->starts_q));
    return starts_in(w, key, w->starts_k);
}

/* ---- Both ---- */

tg_status tg_cp_starts(tg_cp_pass *w, bool check) {
    tg_tensor *starts = w->c->input[CP_STARTS];
    TG_TRY(tg_op_dense(w->c, &starts));
    return w->p->cut_apart ? starts_apart(w, starts, check) : starts_of_whole(w, starts, check);
}

tg_status tg_cp_bad_start(const tg_cp_pass *w, int64_t row, int64_t i) {
    bool rows = w->c->input[CP_STARTS]->ndim == 2;
    char place[48];
    if (rows) snprintf(place, sizeof place, "%lld, %lld", (long long)row, (long long)i);
    else snprintf(place, sizeof place, "%lld", (long long)i);
    return tg_call_fail(w->c, TG_ERR_DATA,
                        "starts[%s] is invalid; the first element%s must be 0, the last %lld, and none may be less "
                        "than the one before it",
                        place, rows ? " of a row" : "", (long long)w->p->length);
}

/* ---- On the host ---- */

/* Fails unless starts[0] is 0, and each sequence has a length of 0 or more that is a multiple of `divisor`. */
static tg_status check_starts(const int64_t *starts, int m, int64_t divisor) {
    if (starts[0] != 0) return TG_ERR_DATA;
    for (int i = 0; i < m; i++)
        if (starts[i + 1] < starts[i] || (starts[i + 1] - starts[i]) % divisor) return TG_ERR_DATA;
    return TG_OK;
}

tg_status tg_context_cut(const int64_t *starts, int m, int n, int rank, int64_t *rows) {
    if (!starts || !rows || m < 1 || n < 1 || rank < 0 || rank >= n) return TG_ERR_ARGUMENT;
    int64_t chunks = n > 1 ? 2 * (int64_t)n : 1;
    TG_TRY(check_starts(starts, m, chunks));
    for (int half = 0; half < (n > 1 ? 2 : 1); half++)
        for (int i = 0; i < m; i++) {
            int64_t length = (starts[i + 1] - starts[i]) / chunks, chunk = half ? chunks - 1 - rank : rank;
            for (int64_t k = 0; k < length; k++) *rows++ = starts[i] + chunk * length + k;
        }
    return TG_OK;
}
