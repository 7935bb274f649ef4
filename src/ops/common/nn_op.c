/* Helpers for the ops of layers and losses; see nn_op.h. */
#include "ops/common/nn_op.h"

tg_array tg_op_absent_or(const tg_tensor *x) {
    return x ? tg_array_of(x) : (tg_array){0};
}

tg_array tg_op_gin(const tg_call *c, int i) {
    return tg_op_absent_or(c->gin_mode[i] ? c->gin[i] : NULL);
}

tg_status tg_op_dense(tg_call *c, tg_tensor **x) {
    const tg_tensor *from = *x;
    if (from->flags & TG_F_CONTIGUOUS) return TG_OK;
    *x = tg_call_temp(c, (tg_dtype)from->dtype, from->ndim, from->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    return tg_op_map(c, TG_FN_id, *x, TG_T1(from), 1, 0, 0, false);
}

void tg_op_options(void *to, const tg_struct *s, const void *from) {
    tg_options_complete(to, s, from);
    if (from) memcpy(to, from, sizeof s->size);
}
