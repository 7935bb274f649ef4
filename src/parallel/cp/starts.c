/* Where packed sequences start: in the whole sequence, in each block, and on each rank. */
#include <stdio.h>

#include "parallel/cp/cp.h"

/* ---- On the device ---- */

/* Sets out, int64 or float64 [m + 1], to formula(starts, divisor) in float64, in which integers up to 2^53 are exact.
 */
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

tg_status tg_cp_starts(tg_call *c, bool check, tg_array *out) {
    int divisor = 2 * tg_comm_size(tg_cp_of(c)->comm);
    tg_tensor *starts = c->input[CP_STARTS];
    TG_TRY(tg_op_dense(c, &starts));
    if (check) TG_TRY(check_multiples(c, starts, divisor));
    tg_tensor *within = tg_call_temp(c, TG_I64, 1, &starts->numel);
    TG_TRY(tg_ctx_status(c->ctx));
    *out = tg_array_of(within);
    return divide(c, TG_FN_floor_divide, within, starts, divisor);
}

/* ---- On the host ---- */

/* Fails unless each sequence has a length of 0 or more that is a multiple of `divisor`. */
static tg_status check_starts(const int64_t *starts, int m, int64_t divisor) {
    if (starts[0] != 0) return TG_ERR_DATA;
    for (int i = 0; i < m; i++)
        if (starts[i + 1] < starts[i] || (starts[i + 1] - starts[i]) % divisor) return TG_ERR_DATA;
    return TG_OK;
}

tg_status tg_context_cut(const int64_t *starts, int m, int n, int rank, int64_t *rows) {
    if (!starts || !rows || m < 1 || n < 1 || rank < 0 || rank >= n) return TG_ERR_ARGUMENT;
    int chunks = n > 1 ? 2 * n : 1;
    TG_TRY(check_starts(starts, m, chunks));
    for (int half = 0; half < (n > 1 ? 2 : 1); half++)
        for (int i = 0; i < m; i++) {
            int64_t length = (starts[i + 1] - starts[i]) / chunks, chunk = half ? chunks - 1 - rank : rank;
            for (int64_t k = 0; k < length; k++) *rows++ = starts[i] + chunk * length + k;
        }
    return TG_OK;
}
