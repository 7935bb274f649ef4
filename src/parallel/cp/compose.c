/* ContextAttention as a composition of other ops, for derivatives that can be differentiated again: every rank gathers
 * the whole sequence, computes all of it, and keeps its own rows. */
#include <tapegrad/ops.h>

#include "ops/common/derive.h"
#include "parallel/cp/cp.h"

static tg_status context_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_cp_params *p = tg_node_params(n);
    const tg_context_attention_opts *o = &p->opts;
    const tg_placement shard = {.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = 2};
    tg_tensor *x[3];
    if (p->cut_apart || o->dropout > 0)
        return tg_fail(t->ctx, TG_ERR_UNSUPPORTED,
                       "ContextAttention: derivatives made of ops are not available for %s; call tg_backward",
                       p->cut_apart ? "packed sequences that are each cut by itself" : "dropout");
    tg_tensor *starts = p->packed ? tg_node_input(n, CP_STARTS) : NULL;
    for (int i = CP_Q; i <= CP_V; i++)
        x[i] = TG_MAP(t, tg_op_all_gather, tg_node_input(n, i), .comm = p->comm, .dim = 2, .shard = shard);
    tg_tensor *y = tg_attention(t, x[CP_Q], x[CP_K], x[CP_V],
                                TG_ATTENTION(.causal = o->causal, .scale = o->scale, .sink = tg_node_input(n, CP_SINK),
                                             .softcap = o->softcap > 0 ? o->softcap : TG_NONE,
                                             .starts_q = starts, .starts_k = starts,
                                             .left = p->left_bound ? o->left : TG_NONE));
    out[0] = tg_shard_as(t, y, shard, p->comm);
    return t->ctx->run.status;
}

TG_COMPOSED(context)

tg_status tg_cp_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return context_vjp(t, n, gout, gin);
}

tg_status tg_cp_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    return context_jvp(t, n, din, dout);
}
