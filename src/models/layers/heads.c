/* Parts of attention layers between their projections (heads.h). */
#include "models/layers/heads.h"

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

/* Returns the positions within their sequences of all rows of a packed sequence that is cut into chunks of n rows,
 * chunk by chunk: int64 [chunks * n]. A chunk has the same part of every sequence. */
static tg_tensor *packed_positions(tg_tape *t, tg_tensor *starts, int64_t chunks, int64_t n) {
    int64_t m = tg_dim(starts, 0) - 1;
    tg_tensor *in_chunk = tg_div(t, tg_cast(t, starts, TG_F64), tg_full(t, TG_F64, TG_SHAPE(), (double)chunks));
    tg_tensor *first = tg_slice(t, in_chunk, 0, 0, m, 1);
    tg_tensor *length = tg_sub(t, tg_slice(t, in_chunk, 0, 1, m + 1, 1), first);
    tg_tensor *row = tg_arange(t, TG_F64, 0, (double)n, 1);
    tg_tensor *begun = tg_cast(t, tg_ge(t, tg_unsqueeze(t, row, 1), first), TG_F64);
    tg_tensor *sequence = tg_cast(t, tg_add_scalar(t, tg_sum(t, begun, TG_DIMS(1), false), -1), TG_I64);
    tg_tensor *chunk = tg_unsqueeze(t, tg_arange(t, TG_F64, 0, (double)chunks, 1), 1);
    tg_tensor *before = tg_mul(t, chunk, tg_index_select(t, length, 0, sequence));
    tg_tensor *at = tg_add(t, before, tg_sub(t, row, tg_index_select(t, first, 0, sequence)));
    return tg_cast(t, tg_reshape(t, at, TG_SHAPE(chunks * n)), TG_I64);
}

/* Rotates x by the positions `at`, or those from the offset of o on if `at` is NULL. */
static tg_tensor *rotate(tg_tape *t, tg_tensor *x, const tg_rope_opts *o, tg_tensor *at) {
    tg_rope_opts own = *o;
    own.positions = at;
    if (o->kind != TG_ROPE_PLAIN || o->dims != TG_AUTO) return tg_rope_with(t, x, &own);
    return at ? tg_rope_at(t, x, at, o->base) : tg_rope(t, x, o->base, o->offset);
}

void tg_heads_rotate(tg_tape *t, tg_tensor *qk[2], const tg_rope_opts *o, tg_tensor *starts, const tg_parallel *p) {
    const tg_placement chunks = {.kind = TG_VARYING, .layout = TG_ZIGZAG};
    int cp = tg_parallel_size(p, TG_CP);
    int64_t rows = tg_dim(qk[0], 2);
    tg_tensor *at = o->positions;
    if (cp > 1 && !at) {
        at = starts ? packed_positions(t, starts, 2 * cp, rows / 2) : tg_arange(t, TG_I64, 0, (double)(rows * cp), 1);
        at = tg_shard_as(t, at, chunks, tg_parallel_comm(p, TG_CP));
    }
    for (int i = 0; i < 2; i++) qk[i] = rotate(t, qk[i], o, at);
}

tg_tensor *tg_softcap(tg_tape *t, tg_tensor *x, double softcap) {
    return softcap == TG_NONE ? x : tg_scale(t, tg_tanh(t, tg_scale(t, x, 1 / softcap)), softcap);
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
