/* The constructor of the layer of tg_nn_self_attention: its options and its parameters. */
#include <math.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "models/layers/self_attention.h"
#include "parallel/parallel.h"
#include "parallel/tp/layers.h"

static const char who[] = "tg_nn_self_attention";

/* ---- Options ---- */

/* Fails unless the number is 1 or more. */
static tg_status check_size(const tg_self_attention *a, const char *name, int64_t n) {
    if (n >= 1) return TG_OK;
    return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: %s is %lld, expected 1 or more", who, name, (long long)n);
}

/* Fails if a weight would have more rows or columns than an int64_t holds. */
static tg_status check_products(const tg_self_attention *a) {
    const tg_self_attention_opts *o = &a->o;
    int64_t q, kv, n;
    if (!__builtin_mul_overflow(o->heads, o->head_dim, &q) && !__builtin_add_overflow(o->head_dim, o->v_dim, &kv) &&
        !__builtin_mul_overflow(o->kv_heads, kv, &kv) && !__builtin_add_overflow(q, kv, &n) &&
        !__builtin_mul_overflow(o->heads, o->v_dim, &n))
        return TG_OK;
    return tg_fail(a->ctx, TG_ERR_SHAPE, "%s: the number of rows of %s of %lld overflows", who,
                   tg_count(o->heads, "head").text, (long long)o->head_dim);
}

/* Fills in the sizes that have a default, and checks all. */
static tg_status complete_sizes(tg_self_attention *a) {
    tg_self_attention_opts *o = &a->o;
    TG_TRY(check_size(a, "hidden", a->hidden));
    TG_TRY(check_size(a, "heads", o->heads));
    if (o->kv_heads == TG_AUTO) o->kv_heads = o->heads;
    TG_TRY(check_size(a, "kv_heads", o->kv_heads));
    if (o->heads % o->kv_heads)
        return tg_fail(a->ctx, TG_ERR_SHAPE, "%s: heads is %lld and kv_heads is %lld; kv_heads must divide heads", who,
                       (long long)o->heads, (long long)o->kv_heads);
    if (o->head_dim == TG_AUTO && a->hidden % o->heads)
        return tg_fail(a->ctx, TG_ERR_SHAPE,
                       "%s: head_dim is TG_AUTO, hidden / heads, but hidden is %lld and heads is %lld; set head_dim",
                       who, (long long)a->hidden, (long long)o->heads);
    if (o->head_dim == TG_AUTO) o->head_dim = a->hidden / o->heads;
    TG_TRY(check_size(a, "head_dim", o->head_dim));
    if (o->v_dim == TG_AUTO) o->v_dim = o->head_dim;
    TG_TRY(check_size(a, "v_dim", o->v_dim));
    return check_products(a);
}

/* Fails unless the tp ranks can divide the heads. */
static tg_status check_ranks(const tg_self_attention *a) {
    const tg_self_attention_opts *o = &a->o;
    int tp = tg_parallel_size(a->p, TG_TP);
    if (o->heads % tp)
        return tg_fail(a->ctx, TG_ERR_SHAPE, "%s: heads is %lld, expected a multiple of the %d ranks of tp", who,
                       (long long)o->heads, tp);
    if (o->kv_heads % tp == 0 || tp % o->kv_heads == 0) return TG_OK;
    return tg_fail(a->ctx, TG_ERR_SHAPE,
                   "%s: kv_heads is %lld, expected a multiple or a divisor of the %d ranks of tp", who,
                   (long long)o->kv_heads, tp);
}

static tg_status check_numbers(const tg_self_attention *a) {
    const tg_self_attention_opts *o = &a->o;
    if (o->left < TG_NONE)
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: left is %lld, expected 0 or more, or TG_NONE for no bound", who,
                       (long long)o->left);
    if (o->scale != TG_AUTO && !(o->scale >= 0 && isfinite(o->scale)))
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: scale is %g, expected a finite number, 0 or more, or TG_AUTO", who,
                       o->scale);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: dropout is %g, expected 0 or more and less than 1", who,
                       o->dropout);
    if (o->softcap != TG_NONE && !(o->softcap > 0 && isfinite(o->softcap)))
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: softcap is %g, expected a finite number above 0, or TG_NONE", who,
                       o->softcap);
    if (o->rope_base != TG_NONE && !(o->rope_base > 0 && isfinite(o->rope_base)))
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: rope_base is %g, expected a finite number above 0, or TG_NONE",
                       who, o->rope_base);
    if (!(o->norm_eps >= 0 && isfinite(o->norm_eps)))
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: norm_eps is %g, expected a finite number, 0 or more", who,
                       o->norm_eps);
    return TG_OK;
}

/* Fails for an option that the layer would not use, and if rope_base is set for heads of an odd size. */
static tg_status check_unused(const tg_self_attention *a) {
    const tg_self_attention_opts usual = {TG_SELF_ATTENTION_DEFAULTS}, *o = &a->o;
    if (!o->qk_norm && o->norm_eps != usual.norm_eps)
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: norm_eps is %g, but qk_norm is false; leave it at its default",
                       who, o->norm_eps);
    if (o->cross && o->rope_base != usual.rope_base)
        return tg_fail(a->ctx, TG_ERR_ARGUMENT,
                       "%s: rope_base is %g, but cross is set, and the memory has positions of its own; leave one of "
                       "them out",
                       who, o->rope_base);
    if (o->cross && (o->cp_kind != usual.cp_kind || o->cp_inner != usual.cp_inner))
        return tg_fail(a->ctx, TG_ERR_ARGUMENT,
                       "%s: %s is set, but with cross every rank of cp has the whole memory; leave it at its default",
                       who, o->cp_kind != usual.cp_kind ? "cp_kind" : "cp_inner");
    if (o->rope_base != TG_NONE && o->head_dim % 2)
        return tg_fail(a->ctx, TG_ERR_SHAPE, "%s: head_dim is %lld, but rope_base rotates pairs; expected an even size",
                       who, (long long)o->head_dim);
    return TG_OK;
}

static tg_status check_exchange(const tg_self_attention *a) {
    const tg_self_attention_opts *o = &a->o;
    int cp = tg_parallel_size(a->p, TG_CP);
    if ((unsigned)o->cp_kind > TG_CP_HIERARCHY)
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: cp_kind is %d, expected TG_CP_RING to TG_CP_HIERARCHY", who,
                       (int)o->cp_kind);
    if (cp > 1 && o->cross && (o->causal || o->left != TG_NONE))
        return tg_fail(a->ctx, TG_ERR_UNSUPPORTED,
                       "%s: %s is set with cross, but the %d ranks of cp divide the queries, so their places among the "
                       "rows of the memory are not known to attention; leave it out",
                       who, o->causal ? "causal" : "left", cp);
    if (o->cp_inner == TG_AUTO) return TG_OK;
    if (o->cp_kind == TG_CP_HIERARCHY && o->cp_inner > 0 && cp % o->cp_inner == 0) return TG_OK;
    return tg_fail(a->ctx, TG_ERR_ARGUMENT,
                   "%s: cp_inner is %d and cp is %d; expected a divisor of cp with TG_CP_HIERARCHY, and TG_AUTO with "
                   "another kind",
                   who, o->cp_inner, cp);
}

/* Returns the name of an option that the layer sets itself and that the caller has set; NULL if there is none. */
static const char *taken(const tg_parallel_linear_opts *o) {
    const tg_parallel_linear_opts usual = {TG_PARALLEL_LINEAR_DEFAULTS};
    return o->no_bias                                         ? "no_bias"
           : o->strides != usual.strides                      ? "strides"
           : o->gather_output                                 ? "gather_output"
           : o->input_is_whole                                ? "input_is_whole"
           : o->skip_bias_add                                 ? "skip_bias_add"
           : o->axis                                          ? "axis"
           : o->sequence_parallel != usual.sequence_parallel ? "sequence_parallel"
           : o->weight                                        ? "weight"
           : o->no_weight                                     ? "no_weight"
           : o->no_dgrad_reduce                               ? "no_dgrad_reduce"
           : o->expert                                        ? "expert"
                                                              : NULL;
}

/* Fills *to with the options of a projection. */
static tg_status read_linear(const tg_self_attention *a, tg_parallel_linear_opts *to, const char *name,
                             const tg_parallel_linear_opts *given, bool bias) {
    TG_TRY(tg_options(a->ctx, to, &tg_parallel_linear_opts_struct, given, who));
    if (taken(to))
        return tg_fail(a->ctx, TG_ERR_ARGUMENT, "%s: %s sets %s, which the layer sets itself; leave it at its default",
                       who, name, taken(to));
    to->no_bias = !bias;
    return TG_OK;
}

static tg_status complete(tg_self_attention *a, const tg_self_attention_opts *given,
                          tg_parallel_linear_opts linear[2]) {
    tg_self_attention_opts *o = &a->o;
    TG_TRY(tg_options(a->ctx, o, &tg_self_attention_opts_struct, given, who));
    TG_TRY(complete_sizes(a));
    TG_TRY(check_ranks(a));
    TG_TRY(check_numbers(a));
    TG_TRY(check_unused(a));
    TG_TRY(check_exchange(a));
    TG_TRY(read_linear(a, &linear[0], "linear", o->linear, o->bias));
    TG_TRY(read_linear(a, &linear[1], "out_linear", o->out_linear, o->out_bias));
    o->linear = o->out_linear = NULL;
    return TG_OK;
}

/* ---- Parameters ---- */

/* Returns the norm of heads of queries or keys. Every rank norms heads of its own, so its weight is R. */
static tg_module *head_norm(const tg_self_attention *a) {
    const tg_axis axes[] = {TG_TP, TG_CP, TG_DP};
    tg_module *m = tg_nn_rms_norm(a->ctx, a->o.head_dim, a->o.norm_eps);
    for (int i = 0; tg_module_ok(m) && i < TG_LEN(axes); i++)
        tg_place(a->p, tg_module_own(m, "weight"), axes[i], TG_R);
    return m;
}

/* Adds the projections, the norms and the sink. */
static void add_parts(tg_module *m, const tg_parallel_linear_opts linear[2]) {
    const tg_self_attention *a = m->state;
    const tg_self_attention_opts *o = &a->o;
    int64_t q = o->heads * o->head_dim, kv = o->kv_heads * (o->head_dim + o->v_dim), h = a->hidden;
    if (o->cross) {
        tg_module_add_child(m, "q", tg_nn_column_linear(a->p, h, q, &linear[0]));
        tg_module_add_child(m, "kv", tg_nn_column_linear(a->p, h, kv, &linear[0]));
    } else {
        tg_module_add_child(m, "qkv", tg_nn_column_linear(a->p, h, q + kv, &linear[0]));
    }
    if (o->qk_norm) tg_module_add_child(m, "q_norm", head_norm(a));
    if (o->qk_norm) tg_module_add_child(m, "k_norm", head_norm(a));
    if (o->sink)
        tg_layer_add(m, "sink", tg_layer_param(a->p, "sink", TG_DTYPE_DEFAULT, (tg_shape){1, {o->heads}}, 0, TG_TP,
                                               TG_SHARD(0)));
    tg_module_add_child(m, "out", tg_nn_row_linear(a->p, o->heads * o->v_dim, h, &linear[1]));
}

tg_module *tg_nn_self_attention(const tg_parallel *p, int64_t hidden, const tg_self_attention_opts *opts) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    tg_parallel_linear_opts linear[2];
    tg_self_attention *a = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *a) : NULL;
    if (!a) return tg_layer_checked(NULL);
    *a = (tg_self_attention){.ctx = ctx, .p = p, .hidden = hidden};
    if (complete(a, opts, linear) != TG_OK) {
        tg_self_attention_ops.free(a);
        return tg_layer_checked(NULL);
    }
    tg_module *m = tg_module_new(ctx, &tg_self_attention_ops, a);
    if (tg_module_ok(m)) add_parts(m, linear);
    return tg_layer_checked(m);
}
