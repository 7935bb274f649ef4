/* Attention as a layer over ranks: the projections of queries, keys and values, attention itself, and the projection
 * back. Tensor-parallel ranks (axis tp) divide the heads, and context-parallel ranks (axis cp) divide the sequence.
 * Include this header to build transformer layers from parts; gpt.h has the complete layers of GPT models. I, R, V0 and
 * so on are placements (placement.h). docs/parallel.md has the tables of what is sent. */
#ifndef TAPEGRAD_ATTENTION_H
#define TAPEGRAD_ATTENTION_H

#include <tapegrad/context_parallel.h>
#include <tapegrad/tensor_parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_self_attention_opts {
    size_t size;
    /* Number of heads of queries, 1 or more. It has no default (TG_ERR_ARGUMENT). It is a multiple of the number of tp
     * ranks (TG_ERR_SHAPE). */
    int64_t heads;
    /* Number of heads of keys and values, 1 or more. It divides heads, and it is a multiple or a divisor of the number
     * of tp ranks (TG_ERR_SHAPE). TG_AUTO, the default: heads. */
    int64_t kv_heads;
    /* Size of a head of queries and keys, 1 or more. TG_AUTO, the default: hidden / heads, which must be an integer
     * (TG_ERR_SHAPE). */
    int64_t head_dim;
    int64_t v_dim;    /* size of a head of values, 1 or more; TG_AUTO, the default: head_dim */
    /* If true, queries come from x, and keys and values from a second input, the memory. rope_base must then be TG_NONE
     * (TG_ERR_ARGUMENT), because the memory has positions of its own. */
    bool cross;
    /* causal to softcap have the same meanings, ranges and defaults as in tg_attention_opts (ops.h). With cross, causal
     * and left fail with TG_ERR_UNSUPPORTED if cp has several ranks, because they need whole sequences. */
    bool causal;
    int64_t left;
    double scale, dropout, softcap;
    /* Queries and keys are rotated by their positions, with this base (tg_rope), which is finite and above 0. With a
     * base, head_dim must be even (TG_ERR_SHAPE). TG_NONE, the default: they are not rotated. */
    double rope_base;
    /* Each head of queries and of keys goes through an RMS norm before it is rotated (Qwen3, arXiv 2505.09388). There
     * is one weight [head_dim] for all heads of queries, and one for all heads of keys. */
    bool qk_norm;
    double norm_eps; /* of these norms, finite and 0 or more; 1e-6 by default. Only with qk_norm (TG_ERR_ARGUMENT) */
    bool bias;       /* the projections of queries, keys and values have a bias */
    bool out_bias;   /* the projection back has a bias */
    /* Each head has a trained logit, the sink of tg_attention, which is 0 at first. */
    bool sink;
    /* kind and inner of tg_context_attention_opts (context_parallel.h): how the ranks of cp exchange keys and values.
     * With cross both must keep their defaults (TG_ERR_ARGUMENT), because every rank of cp then has the whole
     * memory. */
    tg_cp_kind cp_kind;
    int cp_inner;
    /* Options of the projections of queries, keys and values (linear), and of the projection back (out_linear). NULL:
     * the defaults. The layer itself sets no_bias, strides, gather_output, input_is_whole, skip_bias_add, axis,
     * sequence_parallel, weight, no_weight, no_dgrad_reduce and expert, so these must keep their defaults
     * (TG_ERR_ARGUMENT). The structs are read during the call only. */
    const tg_parallel_linear_opts *linear, *out_linear;
} tg_self_attention_opts;

#define TG_SELF_ATTENTION_DEFAULTS                                                                             \
    .size = sizeof(tg_self_attention_opts), .kv_heads = TG_AUTO, .head_dim = TG_AUTO, .v_dim = TG_AUTO,        \
    .left = TG_NONE, .scale = TG_AUTO, .softcap = TG_NONE, .rope_base = TG_NONE, .norm_eps = 1e-6,             \
    .cp_inner = TG_AUTO
#define TG_SELF_ATTENTION(...) (&(tg_self_attention_opts){TG_SELF_ATTENTION_DEFAULTS, __VA_ARGS__})

/* Creates the layer, for activations of `hidden` elements, 1 or more. p must outlive the layer. opts must not be NULL,
 * because heads has no default. On an error returns an inert module. The inputs of a call of the layer are
 * - x [s, b, hidden]: I on tp, or V0 under sequence parallelism; V0:z on cp if cp has several ranks;
 * - memory [m, b, hidden], with cross only: placed like x on tp, and R on cp;
 * - starts [n + 1], int64, optional, without cross only: n sequences are packed into one, and sequence i begins at row
 *   starts[i] (starts_q and starts_k of tg_attention, or starts of tg_context_attention); b is then 1. NULL is the same
 *   as leaving it out.
 *
 * The output is y [s, b, hidden], placed like x. tg_module_forward passes x alone, so it packs nothing, and fails with
 * cross. Every rank of tp and cp must make the call, and run its backward. Other numbers of inputs, and x or memory of
 * other shapes, fail with TG_ERR_SHAPE.
 *
 * Parameters, with g = kv_heads, r = heads / g, dk = head_dim and dv = v_dim. With TG_RNG_GLOBAL (parallel.h) their
 * initial values do not depend on the number of ranks. On dp and cp all are R.
 * - qkv.weight [g * (r * dk + dk + dv), hidden] V0, with one block of rows for each head of keys and values. A block
 *   has the rows of the r heads of queries that use this head, then those of its key, then those of its value
 *   (Megatron-Core's linear_qkv);
 * - with cross, instead of qkv.weight: q.weight [heads * dk, hidden] V0, and kv.weight [g * (dk + dv), hidden] V0, in
 *   which a block has the rows of a key and then those of a value;
 * - with bias: qkv.bias V0, or with cross q.bias V0 and kv.bias V0;
 * - with qk_norm: q_norm.weight and k_norm.weight [dk]: R on tp, because every rank norms its own heads;
 * - with sink: sink [heads] V0;
 * - out.weight [hidden, heads * dv] V1, and with out_bias: out.bias, placed as in tg_nn_row_linear.
 *
 * If there are fewer kv_heads than tp ranks, the number of rows of qkv.weight (with cross, of kv.weight) must be a
 * multiple of the number of tp ranks (TG_ERR_SHAPE). The ranks then gather keys and values, and without cross queries
 * too, before each rank takes its heads. Backward reduce-scatters the gradients. */
TG_API tg_module *tg_nn_self_attention(const tg_parallel *p, int64_t hidden, const tg_self_attention_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
