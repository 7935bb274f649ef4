/* Parts of attention layers between their projections (heads.h). */
#include "models/heads.h"

#include <tapegrad/ops.h>
#include <tapegrad/parallel.h>

tg_tensor *tg_heads_split(tg_tape *t, tg_tensor *x, int64_t d) {
    tg_shape s = {4, {tg_dim(x, 0), tg_dim(x, 1), tg_dim(x, 2) / d, d}};
    tg_tensor *v = tg_reshape_shard(t, x, s, 2);
    return tg_permute(t, v, (tg_dims){4, {1, 2, 0, 3}});
}

tg_tensor *tg_heads_join(tg_tape *t, tg_tensor *x) {
    x = tg_permute(t, x, (tg_dims){4, {2, 0, 1, 3}});
    return tg_reshape(t, x, (tg_shape){3, {tg_dim(x, 0), tg_dim(x, 1), tg_dim(x, 2) * tg_dim(x, 3)}});
}

tg_tensor *tg_heads_own(tg_tape *t, tg_tensor *x, int64_t heads, tg_comm *c) {
    int64_t s = tg_dim(x, 0), b = tg_dim(x, 1), d = tg_dim(x, 2) / heads, times = tg_comm_size(c) / heads;
    x = tg_reshape(t, x, (tg_shape){5, {s, b, heads, 1, d}});
    x = tg_expand(t, x, (tg_shape){5, {s, b, heads, times, d}});
    x = tg_reshape(t, x, (tg_shape){3, {s, b, heads * times * d}});
    return tg_shard(t, x, 2, c);
}

void tg_heads_rotate(tg_tape *t, tg_tensor *qk[2], double base, int64_t offset, const tg_parallel *p) {
    const tg_placement chunks = {.kind = TG_VARYING, .layout = TG_ZIGZAG};
    int cp = tg_parallel_size(p, TG_CP);
    tg_tensor *at = NULL;
    if (cp > 1) {
        at = tg_arange(t, TG_I64, 0, (double)(tg_dim(qk[0], 2) * cp), 1);
        at = tg_shard_as(t, at, chunks, tg_parallel_comm(p, TG_CP));
    }
    for (int i = 0; i < 2; i++) qk[i] = at ? tg_rope_at(t, qk[i], at, base) : tg_rope(t, qk[i], base, offset);
}

tg_tensor *tg_heads_attend(tg_tape *t, tg_tensor *const qkv[3], const tg_parallel *p,
                           const tg_context_attention_opts *o) {
    if (tg_parallel_size(p, TG_CP) > 1)
        return tg_context_attention(t, qkv[0], qkv[1], qkv[2], tg_parallel_comm(p, TG_CP), o);
    return tg_attention(t, qkv[0], qkv[1], qkv[2],
                        TG_ATTENTION(.causal = o->causal, .scale = o->scale, .dropout = o->dropout,
                                     .softcap = o->softcap, .left = o->left, .sink = o->sink, .starts_q = o->starts,
                                     .starts_k = o->starts));
}
