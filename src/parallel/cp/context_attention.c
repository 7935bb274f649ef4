/* The op ContextAttention: attention over a sequence that the ranks of a group divide into zigzag shards. Forward and
 * backward have three steps: heads for rows within each group of neighbors; the ring, or the gathered keys; and rows
 * for heads back. The first and the last are for groups of several ranks only. */
#include <tapegrad/ops.h>

#include "parallel/cp/cp.h"

/* ---- forward ---- */

/* Returns the elements of the vector x, or of its gradient, for the heads that this rank works on. */
static tg_array own_heads(const tg_cp_params *p, tg_array x, tg_extent *e) {
    return x.data ? tg_array_slice(x, 0, p->member * p->heads, p->heads, 1, e) : x;
}

/* Sets q, k and v of the pass: the inputs, or the rows of the group for this rank's heads, which it receives now. */
static tg_status take_inputs(tg_cp_pass *w) {
    tg_call *c = w->c;
    tg_cp_heads x[3];
    bool exchanges = w->p->opts.inner > 1;
    for (int i = 0; i < 3; i++)
        x[i] = (tg_cp_heads){.rows = tg_array_of(c->input[i]),
                             .heads = exchanges ? tg_array_of(c->saved[CP_SAVED_Q + i]) : tg_array_of(c->input[i])};
    w->q = x[0].heads, w->k = x[1].heads, w->v = x[2].heads;
    return exchanges ? tg_cp_exchange(c, x, 3, w->p->exchange_qkv, false) : TG_OK;
}

/* Computes what the queries see, in w->out. */
static tg_status attend(tg_cp_pass *w) {
    TG_TRY(tg_cp_open(w, false));
    if (w->p->opts.kind != TG_CP_GATHER) return tg_cp_ring(w);
    return tg_cp_gather(w, (tg_tensor *const[]){w->c->saved[CP_EARLY], w->c->saved[CP_LATE]});
}

static tg_status context_forward(tg_call *c) {
    const tg_cp_params *p = c->params;
    tg_extent e;
    tg_tensor *result = p->opts.inner > 1 ? c->saved[CP_SAVED_OUT] : c->out[0], *sums = result;
    tg_dtype dtype = (tg_dtype)result->dtype, wide = tg_accumulate_dtype(dtype);
    if (wide != dtype && p->blocks.total > 1) sums = tg_call_temp(c, wide, 4, result->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    tg_cp_pass w = {.c = c,
                    .p = p,
                    .out = tg_array_of(sums),
                    .top = tg_array_of(c->saved[CP_TOP]),
                    .mass = tg_array_of(c->saved[CP_MASS]),
                    .sink = own_heads(p, tg_op_absent_or(c->input[CP_SINK]), &e)};
    TG_TRY(take_inputs(&w));
    TG_TRY(attend(&w));
    if (sums != result) TG_TRY(tg_op_copy(c, tg_array_of(result), w.out, false));
    if (p->opts.inner == 1) return TG_OK;
    const tg_cp_heads back = {.rows = tg_array_of(c->out[0]), .heads = tg_array_of(result)};
    return tg_cp_exchange(c, &back, 1, p->exchange_out, true);
}

/* ---- backward ---- */

/* Sets what forward has left: q, k, v, the result, and the top and mass of its rows. With TG_CP_GATHER the bytes of k
 * and v may be gone, because backward reads the gathered ones; only the shapes and the dtype are used. */
static void take_saved(tg_cp_pass *w) {
    tg_call *c = w->c;
    bool exchanges = w->p->opts.inner > 1;
    w->q = tg_array_of(exchanges ? c->saved[CP_SAVED_Q] : c->input[CP_Q]);
    w->k = tg_array_of(exchanges ? c->saved[CP_SAVED_K] : c->input[CP_K]);
    w->v = tg_array_of(exchanges ? c->saved[CP_SAVED_V] : c->input[CP_V]);
    w->out = tg_array_of(exchanges ? c->saved[CP_SAVED_OUT] : c->out[0]);
    w->top = tg_array_of(c->saved[CP_TOP]);
    w->mass = tg_array_of(c->saved[CP_MASS]);
}

/* Sets w->gout: the gradient of the result or, if heads are exchanged, of the result for this rank's heads and the rows
 * of its group. Receives the latter now. */
static tg_status take_gout(tg_cp_pass *w) {
    tg_call *c = w->c;
    w->gout = tg_array_of(c->gout[0]);
    if (w->p->opts.inner == 1) return TG_OK;
    tg_tensor *heads = tg_call_temp(c, (tg_dtype)c->gout[0]->dtype, 4, c->saved[CP_SAVED_OUT]->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    const tg_cp_heads x = {.rows = w->gout, .heads = tg_array_of(heads)};
    w->gout = x.heads;
    return tg_cp_exchange(c, &x, 1, w->p->exchange_out, false);
}

/* Prepares the gradient of the sink: 0 if it is to be written, because each pair of blocks adds to it. */
static tg_status open_sink(tg_cp_pass *w, tg_extent *e) {
    tg_call *c = w->c;
    if (!tg_needs(c, CP_SINK)) return TG_OK;
    TG_TRY(tg_op_zero(c, CP_SINK));
    w->gsink = own_heads(w->p, tg_op_gin(c, CP_SINK), e);
    return TG_OK;
}

static tg_status attend_grad(tg_cp_pass *w) {
    TG_TRY(tg_cp_open(w, true));
    if (w->p->opts.kind != TG_CP_GATHER) return tg_cp_ring_grad(w);
    return tg_cp_gather_grad(w, (tg_tensor *const[]){w->c->saved[CP_EARLY], w->c->saved[CP_LATE]});
}

/* Computes the gradients where no heads are exchanged. That of q is summed over pairs of blocks in the accumulate
 * dtype. */
static tg_status grads_of_rows(tg_cp_pass *w) {
    tg_call *c = w->c;
    tg_dtype dtype = (tg_dtype)c->input[CP_Q]->dtype, wide = tg_accumulate_dtype(dtype);
    tg_tensor *gq = NULL;
    if (tg_needs(c, CP_Q) && wide != dtype) gq = tg_call_temp(c, wide, 4, c->input[CP_Q]->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    w->gq = gq ? tg_array_of(gq) : tg_op_gin(c, CP_Q);
    w->gk = tg_op_gin(c, CP_K), w->add_k = tg_adds(c, CP_K);
    w->gv = tg_op_gin(c, CP_V), w->add_v = tg_adds(c, CP_V);
    w->add_q = !gq && tg_adds(c, CP_Q);
    TG_TRY(attend_grad(w));
    return gq ? tg_op_copy(c, tg_op_gin(c, CP_Q), w->gq, tg_adds(c, CP_Q)) : TG_OK;
}

/* Computes the gradients of this rank's heads, and exchanges them for those of this rank's rows. */
static tg_status grads_of_heads(tg_cp_pass *w) {
    tg_call *c = w->c;
    tg_dtype dtype = (tg_dtype)c->input[CP_Q]->dtype, wide = tg_accumulate_dtype(dtype);
    tg_cp_heads x[3];
    for (int i = 0; i < 3; i++) {
        tg_tensor *heads = tg_call_temp(c, wide, 4, c->saved[CP_SAVED_Q + i]->shape);
        tg_tensor *rows = tg_needs(c, i) ? c->gin[i] : tg_call_temp(c, dtype, 4, c->input[i]->shape);
        TG_TRY(tg_ctx_status(c->ctx));
        x[i] =
            (tg_cp_heads){.rows = tg_array_of(rows), .heads = tg_array_of(heads), .add = c->gin_mode[i] == TG_GRAD_ADD};
    }
    w->gq = x[0].heads, w->gk = x[1].heads, w->gv = x[2].heads;
    TG_TRY(attend_grad(w));
    return tg_cp_exchange(c, x, 3, w->p->exchange_qkv, true);
}

static tg_status context_backward(tg_call *c) {
    const tg_cp_params *p = c->params;
    tg_extent sink, gsink;
    tg_cp_pass w = {.c = c, .p = p, .sink = own_heads(p, tg_op_absent_or(c->input[CP_SINK]), &sink)};
    take_saved(&w);
    TG_TRY(take_gout(&w));
    TG_TRY(open_sink(&w, &gsink));
    return p->opts.inner > 1 ? grads_of_heads(&w) : grads_of_rows(&w);
}

static int64_t context_flops(const tg_node *n) {
    const tg_tensor *q = tg_node_input(n, CP_Q), *v = tg_node_input(n, CP_V);
    return tg_cp_flops(tg_node_params(n), tg_dim(q, 0), tg_dim(q, 3) + tg_dim(v, 3));
}

/* ---- The op ---- */

static const tg_field context_fields[] = {
    TG_ARG_AS(tg_cp_params, opts.kind, "kind", INT, "How ranks exchange: 0 ring, 1 gather, 2 Ulysses, 3 hierarchy."),
    TG_ARG_AS(tg_cp_params, opts.inner, "inner", INT, "Hierarchy: number of ranks that exchange heads; -1: all."),
    TG_ARG_AS(tg_cp_params, opts.causal, "causal", BOOL, "Query i attends only to keys j <= i."),
    TG_ARG_AS(tg_cp_params, opts.scale, "scale", DOUBLE, "Factor of the scores, 0 or more; -1: 1 / sqrt(dk)."),
    TG_ARG_AS(tg_cp_params, opts.dropout, "dropout", DOUBLE, "Probability of dropout of the attention weights."),
    TG_ARG_AS(tg_cp_params, opts.softcap, "softcap", DOUBLE, "Smooth bound of the scores, more than 0; -1: none."),
    TG_ARG_AS(tg_cp_params, opts.left, "left", INT64, "Number of earlier keys that a query sees; -1: all."),
    TG_ARG_AS(tg_cp_params, opts.cut_as_one, "cut_as_one", BOOL, "Packed sequences are cut as if they were one."),
    TG_ARG_AS(tg_cp_params, comm, "c", POINTER, "The ranks that call the op together.", .of = "tg_comm",
              .required = true),
};

#define OPTS(...) &(const tg_cp_params){.opts = {TG_CONTEXT_ATTENTION_DEFAULTS, __VA_ARGS__}}

#define NO TG_S_ABSENT
/* A sample on that many ranks: q with h heads, k and v with g, of sizes dk and dv; `rows` of each rank. */
#define SAMPLE(ranks_, note_, params_, b, h, g, rows, dk, dv, ...)                        \
    {.note = note_, .ranks = ranks_, .params = params_, .n_in = CP_INPUTS,                \
     .input = {TG_S(b, h, rows, dk), TG_S(b, g, rows, dk), TG_S(b, g, rows, dv), __VA_ARGS__}}

static const tg_sample context_samples[] = {
    SAMPLE(2, "ring", OPTS(.causal = true), 2, 2, 2, 4, 3, 3, NO, NO),
    SAMPLE(3, "ring, all keys, dv is not dk", OPTS(.causal = false), 1, 2, 1, 4, 3, 5, NO, NO),
    SAMPLE(4, "ring, a window, a sink", OPTS(.causal = true, .left = 5), 1, 4, 2, 4, 2, 3, TG_S(4), NO),
    SAMPLE(2, "gather", OPTS(.kind = TG_CP_GATHER, .causal = true), 2, 2, 1, 4, 3, 2, TG_S(2), NO),
    SAMPLE(2, "Ulysses", OPTS(.kind = TG_CP_ULYSSES, .causal = true, .scale = 0.3), 1, 4, 2, 4, 3, 2, TG_S(4), NO),
    SAMPLE(4, "Ulysses, a head on several ranks", OPTS(.kind = TG_CP_ULYSSES, .causal = true), 1, 4, 2, 2, 3, 2, NO,
           NO),
    SAMPLE(4, "hierarchy", OPTS(.kind = TG_CP_HIERARCHY, .inner = 2, .causal = true, .left = 6), 1, 2, 2, 4, 3, 2, NO,
           NO),
    SAMPLE(3, "ring, a soft cap, a sink", OPTS(.causal = true, .softcap = 0.7), 1, 2, 1, 4, 3, 2, TG_S(2), NO),
    SAMPLE(2, "Ulysses, a soft cap", OPTS(.kind = TG_CP_ULYSSES, .softcap = 0.9), 1, 2, 2, 4, 3, 2, NO, NO),
    SAMPLE(2, "packed", OPTS(.causal = true), 1, 2, 1, 4, 3, 2, NO,
           {.shape = TG_S_SHAPE(2), .kind = TG_SAMPLE_STARTS, .hi = 8}),
    SAMPLE(2, "packed, cut as one", OPTS(.causal = true, .cut_as_one = true), 1, 2, 1, 4, 3, 2, NO, TG_S_STARTS(8, 4)),
    SAMPLE(2, "packed, cut as one, rows", OPTS(.kind = TG_CP_GATHER, .cut_as_one = true, .left = 3), 2, 2, 2, 4, 3, 2,
           NO, {.shape = TG_S_SHAPE(2, 3), .kind = TG_SAMPLE_STARTS, .hi = 8}),
    {.note = "no communicator",
     .params = OPTS(.causal = true),
     .n_in = CP_INPUTS,
     .input = {TG_S(1, 2, 4, 3), TG_S(1, 2, 4, 3), TG_S(1, 2, 4, 3), NO, NO},
     .refused = TG_ERR_ARGUMENT},
};

const tg_op tg_op_context_attention = {
    .size = sizeof(tg_op),
    .name = "ContextAttention",
    .alias = "context_attention",
    .formula = "attention over the sequence of all ranks",
    .inputs = "q k v sink starts",
    .n_in = CP_INPUTS,
    .n_out = 1,
    .params_size = sizeof(tg_cp_params),
    .saves_in = 1u << CP_Q | 1u << CP_K | 1u << CP_V | 1u << CP_SINK | 1u << CP_STARTS,
    .saves_out = 1,
    .optional = 1u << CP_SINK | 1u << CP_STARTS,
    .family = TG_FAMILY_ATTENTION,
    .collective = true,
    .infer = tg_cp_infer,
    .forward = context_forward,
    .backward = context_backward,
    .vjp = tg_cp_vjp,
    .jvp = tg_cp_jvp,
    .flops = context_flops,
    TG_FIELDS(context_fields),
    .preset = OPTS(.causal = false),
    TG_SAMPLES(context_samples),
};

/* The op on one rank. */
static tg_tensor *attention_alone(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v,
                                  const tg_context_attention_opts *o, const void *site) {
    tg_tensor *const in[] = {q, k, v};
    if (tg_tape_check_with(t, in, 3, "tg_context_attention") != TG_OK ||
        tg_size_check(t->ctx, o->size, sizeof *o, "tg_context_attention: the options") != TG_OK)
        return tg_tape_inert(t, in, 3);
    tg_scope *s = tg_site_open(t, site);
    tg_tensor *y = tg_attention(t, q, k, v,
                                TG_ATTENTION(.causal = o->causal, .scale = o->scale, .dropout = o->dropout,
                                             .softcap = o->softcap, .left = o->left, .sink = o->sink,
                                             .starts_q = o->starts, .starts_k = o->starts));
    tg_site_close(t, s);
    return y;
}

/* Attention over a sequence of which each rank has two chunks: q [b, h, s/n, dk], k [b, g, s/n, dk] and v [b, g, s/n,
 * dv] give [b, h, s/n, dv], all zigzag shards of dim 2. Options are those of tg_attention that make sense for a divided
 * sequence. With one rank it records tg_attention. */
tg_tensor *tg_context_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, tg_comm *c,
                                const tg_context_attention_opts *opts) {
    tg_cp_params p = {.comm = c};
    tg_op_options(&p.opts, &tg_context_attention_opts_struct, opts);
    if (c && tg_comm_size(c) == 1) return attention_alone(t, q, k, v, &p.opts, TG_SITE);
    tg_tensor *in[CP_INPUTS] = {q, k, v, p.opts.sink, p.opts.starts};
    p.opts.sink = p.opts.starts = NULL;
    return tg_record(t, &tg_op_context_attention, &p, in, CP_INPUTS, TG_SITE);
}
