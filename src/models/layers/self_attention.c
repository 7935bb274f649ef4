/* One call of the layer of tg_nn_self_attention: from activations to the heads of queries, keys and values, attention,
 * and back. Activations are [s, b, h]. */
#include <tapegrad/mappings.h>
#include <tapegrad/ops.h>

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "models/layers/heads.h"
#include "models/layers/self_attention.h"
#include "parallel/parallel.h"

/* ---- Heads ---- */

/* Splits y, the output of a column layer, whose last dim has a block for each head of keys and values. A block consists
 * of n parts of these sizes. part[i], [s, b, blocks, size[i]], receives part i of the blocks of this rank or, if there
 * are fewer blocks than ranks, of all ranks. */
static void take_parts(const tg_self_attention *a, tg_tape *t, tg_tensor *y, const int64_t *size, int n,
                       tg_tensor **part) {
    int tp = tg_parallel_size(a->p, TG_TP);
    bool gathers = tg_self_attention_gathers(a);
    tg_shape blocks = {4, {tg_dim(y, 0), tg_dim(y, 1), gathers ? a->o.kv_heads : a->o.kv_heads / tp, 0}};
    for (int i = 0; i < n; i++) blocks.dim[3] += size[i];
    if (gathers) y = tg_reshape(t, tg_all_gather(t, y, 2, tg_parallel_comm(a->p, TG_TP)), blocks);
    else y = tg_reshape_shard(t, y, blocks, 2);
    tg_split(t, y, 3, size, n, part);
}

/* Returns the queries of this rank's heads, [b, heads, s, d], of x [s, b, blocks, r * d]. */
static tg_tensor *queries(const tg_self_attention *a, tg_tape *t, tg_tensor *x) {
    int64_t d = a->o.head_dim, heads = tg_dim(x, 2) * tg_dim(x, 3) / d;
    if (tg_self_attention_gathers(a)) {
        x = tg_reshape(t, x, (tg_shape){3, {tg_dim(x, 0), tg_dim(x, 1), heads * d}});
        return tg_heads_split(t, tg_shard(t, x, 2, tg_parallel_comm(a->p, TG_TP)), d);
    }
    x = tg_reshape_shard(t, x, (tg_shape){4, {tg_dim(x, 0), tg_dim(x, 1), heads, d}}, 2);
    return tg_permute(t, x, (tg_dims){4, {1, 2, 0, 3}});
}

/* Returns the keys or values of this rank's heads, [b, heads, s, d], of x [s, b, blocks, d]. */
static tg_tensor *keys(const tg_self_attention *a, tg_tape *t, tg_tensor *x) {
    int64_t d = tg_dim(x, 3);
    if (!tg_self_attention_gathers(a)) return tg_permute(t, x, (tg_dims){4, {1, 2, 0, 3}});
    x = tg_reshape(t, x, (tg_shape){3, {tg_dim(x, 0), tg_dim(x, 1), a->o.kv_heads * d}});
    return tg_heads_split(t, tg_heads_own(t, x, a->o.kv_heads, tg_parallel_comm(a->p, TG_TP)), d);
}

/* Computes the queries, keys and values of this rank's heads. */
static void project(const tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *memory, tg_tensor *qkv[3]) {
    const tg_self_attention *a = m->state;
    const tg_self_attention_opts *o = &a->o;
    const int64_t size[3] = {o->heads / o->kv_heads * o->head_dim, o->head_dim, o->v_dim};
    tg_tensor *part[3];
    if (o->cross) {
        qkv[0] = tg_heads_split(t, tg_module_run(m, "q", t, x), o->head_dim);
        take_parts(a, t, tg_module_run(m, "kv", t, memory), size + 1, 2, part + 1);
    } else {
        take_parts(a, t, tg_module_run(m, "qkv", t, x), size, 3, part);
        qkv[0] = queries(a, t, part[0]);
    }
    for (int i = 1; i < 3; i++) qkv[i] = keys(a, t, part[i]);
}

/* ---- Attention ---- */

static tg_tensor *attend(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], tg_tensor *starts) {
    const tg_self_attention *a = m->state;
    const tg_self_attention_opts *o = &a->o;
    tg_tensor *sink = o->sink ? tg_module_own(m, "sink") : NULL;
    if (o->cross)
        return tg_attention(t, qkv[0], qkv[1], qkv[2],
                            TG_ATTENTION(.causal = o->causal, .scale = o->scale, .dropout = o->dropout,
                                         .softcap = o->softcap, .left = o->left, .sink = sink));
    return tg_heads_attend(t, qkv, a->p,
                           TG_CONTEXT_ATTENTION(.kind = o->cp_kind, .inner = o->cp_inner, .causal = o->causal,
                                                .scale = o->scale, .dropout = o->dropout, .softcap = o->softcap,
                                                .left = o->left, .sink = sink, .starts = starts));
}

/* Fails unless x, which messages call `what`, is [.., .., hidden]. */
static tg_status check_input(const tg_self_attention *a, const tg_tensor *x, const char *what) {
    char text[160];
    if (x) TG_TRY(tg_check(a->ctx, x, "self_attention"));
    if (x && x->ndim == 3 && x->shape[2] == a->hidden) return TG_OK;
    if (x) tg_describe(x, text, sizeof text);
    return tg_fail(a->ctx, TG_ERR_SHAPE, "self_attention: %s is %s, expected [sequence, batch, %lld]", what,
                   x ? text : "NULL", (long long)a->hidden);
}

static tg_status check_call(const tg_self_attention *a, tg_tensor *const *in, int n_in, int n_out) {
    if (n_out != 1 || n_in < 1 + a->o.cross || n_in > 2)
        return tg_fail(a->ctx, TG_ERR_SHAPE, "self_attention: called with %d inputs and %d outputs, expected %s", n_in,
                       n_out, a->o.cross ? "x and memory, and 1 output" : "x or x and starts, and 1 output");
    TG_TRY(check_input(a, in[0], "x"));
    return a->o.cross ? check_input(a, in[1], "memory") : TG_OK;
}

static tg_tensor *run(const tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in) {
    const tg_self_attention *a = m->state;
    tg_tensor *qkv[3], *second = n_in > 1 ? in[1] : NULL;
    project(m, t, in[0], second, qkv);
    for (int i = 0; a->o.qk_norm && i < 2; i++) qkv[i] = tg_module_run(m, i ? "k_norm" : "q_norm", t, qkv[i]);
    if (a->o.rope_base != TG_NONE) tg_heads_rotate(t, qkv, TG_ROPE(.base = a->o.rope_base), second, a->p);
    return tg_module_run(m, "out", t, tg_heads_join(t, attend(m, t, qkv, a->o.cross ? NULL : second)));
}

static tg_status call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const tg_self_attention *a = m->state;
    if (check_call(a, in, n_in, n_out) == TG_OK) out[0] = run(m, t, in, n_in);
    tg_comm_note_missed(tg_parallel_comm(a->p, TG_TP), a->ctx->run.status);
    return tg_comm_note_missed(tg_parallel_comm(a->p, TG_CP), a->ctx->run.status);
}

static void free_state(void *state) {
    tg_self_attention *a = state;
    tg_host_free(a->ctx, a, sizeof *a);
}

static size_t describe(const tg_module *m, char *buf, size_t n) {
    const tg_self_attention_opts *o = &((const tg_self_attention *)m->state)->o;
    size_t at = 0;
    tg_text(buf, n, &at, "%s of %lld", tg_count(o->heads, "head").text, (long long)o->head_dim);
    if (o->kv_heads != o->heads) tg_text(buf, n, &at, ", %lld of keys", (long long)o->kv_heads);
    if (o->v_dim != o->head_dim) tg_text(buf, n, &at, ", values of %lld", (long long)o->v_dim);
    tg_text(buf, n, &at, "%s%s", o->cross ? ", cross" : "", o->causal ? ", causal" : "");
    return at;
}

const tg_module_ops tg_self_attention_ops = {
    .size = sizeof(tg_module_ops), .kind = "self_attention", .free = free_state, .call = call, .describe = describe};
