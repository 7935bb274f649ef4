/* The op ContextAttention: attention over a sequence that the ranks of a group divide into zigzag shards. Forward and
 * backward have three steps: heads for rows within each group of neighbors; the ring, or the gathered keys; and rows for
 * heads back. The first and the last are for groups of several ranks only. */
#include <tapegrad/ops.h>

#include "parallel/cp/cp.h"

enum { TOP, MASS, MORE };                    /* private saved buffers of all kinds */
enum { SAVED_Q = MORE, SAVED_K, SAVED_V, SAVED_OUT }; /* of this rank's heads, if groups have several ranks */
enum { EARLY = MORE, LATE };                 /* the gathered keys and values */

static int64_t size(const tg_call *c, int i, int dim) { return c->input[i]->shape[dim]; }

/* ---- infer ---- */

static tg_status kind_fits(tg_call *c) {
    tg_cp_params *p = c->params;
    tg_context_attention_opts *o = &p->opts;
    int n = tg_comm_size(p->comm);
    if ((unsigned)o->kind > TG_CP_HIERARCHY)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "kind is %d; it must be TG_CP_RING, _GATHER, _ULYSSES or _HIERARCHY",
                            (int)o->kind);
    if (o->inner != TG_AUTO && o->kind != TG_CP_HIERARCHY)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "inner is %d, but only TG_CP_HIERARCHY has groups of ranks; leave it out",
                            o->inner);
    if (o->inner != TG_AUTO && (o->inner < 1 || n % o->inner))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "inner is %d; it must divide the %d ranks of group \"%s\"", o->inner, n,
                            tg_comm_name(p->comm));
    if (o->inner == TG_AUTO) o->inner = o->kind == TG_CP_ULYSSES || o->kind == TG_CP_HIERARCHY ? n : 1;
    p->outer = n / o->inner;
    p->holder = tg_comm_rank(p->comm) / o->inner;
    p->member = tg_comm_rank(p->comm) % o->inner;
    return TG_OK;
}

static tg_status heads_fit(tg_call *c) {
    tg_cp_params *p = c->params;
    int64_t h = size(c, Q, 1), g = size(c, K, 1), inner = p->opts.inner;
    if (h % inner || (g % inner && inner % (g ? g : 1)))
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "q has %s and k has %lld, and %lld ranks exchange heads: they must divide the heads of q, "
                            "and divide those of k or be divided by them; choose TG_CP_RING, or a smaller `inner`",
                            tg_count(h, "head").text, (long long)g, (long long)inner);
    p->heads = h / inner;
    p->groups = g % inner ? 1 : g / inner;
    return TG_OK;
}

/* Checks starts and the rows of this rank, and cuts the sequence into blocks. A packed sequence has a block for each
 * chunk: the rows of a chunk are contiguous in each sequence, but those of two chunks are not. */
static tg_status rows_fit(tg_call *c) {
    tg_cp_params *p = c->params;
    int64_t rows = size(c, Q, 2), n = tg_comm_size(p->comm);
    if (size(c, K, 2) != rows || rows % 2)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "q has %s and k has %lld; both must have the same even number of rows, two chunks of the "
                            "sequence",
                            tg_count(rows, "row").text, (long long)size(c, K, 2));
    if (__builtin_mul_overflow(rows, n, &p->length) || p->length > INT32_MAX)
        return tg_call_fail(c, TG_ERR_SHAPE, "the %lld ranks have more than 2^31 - 1 rows together", (long long)n);
    p->packed = c->input[CP_STARTS] != NULL;
    int per = p->packed ? p->opts.inner : 1;
    p->blocks = (tg_cp_blocks){.rows = rows / 2 * p->opts.inner / per, .total = 2 * p->outer * per, .count = 2 * per};
    if (p->outer == 1 && !p->packed) p->blocks = (tg_cp_blocks){.rows = p->length, .total = 1, .count = 1};
    if (!p->packed) return TG_OK;
    TG_TRY(tg_attention_index_vector(c, CP_STARTS, "starts"));
    if (size(c, CP_STARTS, 0) < 2 || size(c, Q, 0) != 1)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "starts has %s and the batch size is %lld; starts must have m + 1 elements for m packed "
                            "sequences, and the batch size must be 1",
                            tg_count(size(c, CP_STARTS, 0), "element").text, (long long)size(c, Q, 0));
    return TG_OK;
}

static tg_status options_fit(tg_call *c) {
    tg_cp_params *p = c->params;
    tg_context_attention_opts *o = &p->opts;
    TG_TRY(tg_attention_numbers(c, &o->scale, o->dropout));
    if (o->left < TG_NONE)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "left is %lld; it must be the extent of a window, 0 or more, or TG_NONE for no bound",
                            (long long)o->left);
    p->left_bound = o->left != TG_NONE;
    if (!p->left_bound) o->left = 0;
    if (o->left > p->length) o->left = p->length;
    if (!tg_is_training(c->tape)) o->dropout = 0;
    if (o->dropout == 0) return TG_OK;
    if (p->packed)
        return tg_call_fail(c, TG_ERR_UNSUPPORTED,
                            "dropout of packed sequences: the place of a weight in the matrix of one rank depends on "
                            "starts; leave dropout or starts out");
    return tg_cp_take_draws(c);
}

/* Allocates the counts of exchanges, and the flags of blocks. */
static tg_status allocate(tg_call *c) {
    tg_cp_params *p = c->params;
    const tg_tensor *q = c->input[Q];
    int n = tg_comm_size(p->comm), me = tg_comm_rank(p->comm), inner = p->opts.inner;
    int64_t rows = q->shape[0] * q->shape[2], dk = q->shape[3], dv = size(c, V, 3);
    int64_t *counts = tg_tape_alloc(c->tape, 4 * (size_t)n * sizeof *counts);
    p->begun = tg_tape_alloc(c->tape, 2 * (size_t)p->blocks.count);
    if (!counts || !p->begun) return c->ctx->run.status;
    memset(counts, 0, 4 * (size_t)n * sizeof *counts);
    p->ring_send = counts, p->ring_recv = counts + n, p->exchange_qkv = counts + 2 * n, p->exchange_out = counts + 3 * n;
    counts[(me + inner) % n] = counts[n + (me - inner + n) % n] = inner * rows * p->groups * (dk + dv);
    for (int r = p->holder * inner; r < (p->holder + 1) * inner; r++) {
        counts[2 * n + r] = rows * (p->heads * dk + p->groups * (dk + dv));
        counts[3 * n + r] = rows * p->heads * dv;
    }
    return TG_OK;
}

/* Declares what backward reads, in addition to top and mass. */
static tg_status save_more(tg_call *c) {
    const tg_cp_params *p = c->params;
    tg_dtype dtype = (tg_dtype)c->input[Q]->dtype;
    int64_t b = size(c, Q, 0), rows = p->blocks.count * p->blocks.rows, dk = size(c, Q, 3), dv = size(c, V, 3);
    if (p->opts.kind == TG_CP_GATHER) {
        int64_t half = p->outer * b * p->groups * p->blocks.rows * (dk + dv);
        c->saves_in &= ~(1u << K | 1u << V);
        TG_TRY(tg_call_save(c, EARLY, dtype, 1, &half));
        return tg_call_save(c, LATE, dtype, 1, &half);
    }
    if (p->opts.inner == 1) return TG_OK;
    c->saves_in &= ~(1u << Q | 1u << K | 1u << V);
    c->saves_out = 0;
    TG_TRY(tg_call_save(c, SAVED_Q, dtype, 4, (int64_t[]){b, p->heads, rows, dk}));
    TG_TRY(tg_call_save(c, SAVED_K, dtype, 4, (int64_t[]){b, p->groups, rows, dk}));
    TG_TRY(tg_call_save(c, SAVED_V, dtype, 4, (int64_t[]){b, p->groups, rows, dv}));
    return tg_call_save(c, SAVED_OUT, dtype, 4, (int64_t[]){b, p->heads, rows, dv});
}

static tg_status place(tg_call *c) {
    const tg_cp_params *p = c->params;
    const tg_placement shard = {.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = 2};
    c->dims = 1u << 2;
    for (int i = Q; i <= V; i++)
        TG_TRY(tg_call_convert(c, i, shard, 0, shard, p->comm,
                               "cut the sequence with tg_shard_as and TG_SHARD_ZIGZAG, or place the tokens so"));
    if (!c->input[CP_SINK]) return TG_OK;
    TG_TRY(tg_call_role(c, CP_SINK, 0, 1));
    return tg_call_convert(c, CP_SINK, tg_at_r, 0, shard, p->comm, "declare the sink R (tg_place)");
}

static tg_status context_infer(tg_call *c) {
    tg_cp_params *p = c->params;
    const tg_tensor *q = c->input[Q];
    tg_dtype dtype = (tg_dtype)q->dtype;
    TG_TRY(tg_mapping_check(c));
    TG_TRY(tg_size_check(c->ctx, p->opts.size, sizeof p->opts, "the options"));
    TG_TRY(tg_need_float(c, Q));
    TG_TRY(tg_need_same_dtype(c, Q, K));
    TG_TRY(tg_need_same_dtype(c, Q, V));
    TG_TRY(tg_attention_shapes(c));
    TG_TRY(tg_attention_sink_fits(c, CP_SINK));
    TG_TRY(kind_fits(c));
    TG_TRY(heads_fit(c));
    TG_TRY(rows_fit(c));
    TG_TRY(options_fit(c));
    TG_TRY(allocate(c));
    const int64_t rows[] = {q->shape[0], p->heads, p->blocks.count * p->blocks.rows};
    TG_TRY(tg_call_save(c, TOP, tg_accumulate_dtype(dtype), 3, rows));
    TG_TRY(tg_call_save(c, MASS, tg_accumulate_dtype(dtype), 3, rows));
    TG_TRY(save_more(c));
    TG_TRY(tg_call_out(c, 0, dtype, 4, (int64_t[]){q->shape[0], q->shape[1], q->shape[2], size(c, V, 3)}));
    return place(c);
}

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
                             .heads = exchanges ? tg_array_of(c->saved[SAVED_Q + i]) : tg_array_of(c->input[i])};
    w->q = x[0].heads, w->k = x[1].heads, w->v = x[2].heads;
    return exchanges ? tg_cp_exchange(c, x, 3, w->p->exchange_qkv, false) : TG_OK;
}

/* Computes what the queries see, in w->out. */
static tg_status attend(tg_cp_pass *w) {
    TG_TRY(tg_cp_open(w, false));
    if (w->p->opts.kind != TG_CP_GATHER) return tg_cp_ring(w);
    return tg_cp_gather(w, (tg_tensor *const[]){w->c->saved[EARLY], w->c->saved[LATE]});
}

static tg_status context_forward(tg_call *c) {
    const tg_cp_params *p = c->params;
    tg_extent e;
    tg_tensor *result = p->opts.inner > 1 ? c->saved[SAVED_OUT] : c->out[0], *sums = result;
    tg_dtype dtype = (tg_dtype)result->dtype, wide = tg_accumulate_dtype(dtype);
    if (wide != dtype && p->blocks.total > 1) sums = tg_call_temp(c, wide, 4, result->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    tg_cp_pass w = {.c = c, .p = p, .out = tg_array_of(sums), .top = tg_array_of(c->saved[TOP]),
                    .mass = tg_array_of(c->saved[MASS]), .sink = own_heads(p, tg_op_absent_or(c->input[CP_SINK]), &e)};
    TG_TRY(take_inputs(&w));
    TG_TRY(attend(&w));
    if (sums != result) TG_TRY(tg_op_copy(c, tg_array_of(result), w.out, false));
    if (p->opts.inner == 1) return TG_OK;
    const tg_cp_heads back = {.rows = tg_array_of(c->out[0]), .heads = tg_array_of(result)};
    return tg_cp_exchange(c, &back, 1, p->exchange_out, true);
}

/* ---- backward ---- */

/* Sets what forward has left: q, k, v, the result, and the top and mass of its rows. */
static void take_saved(tg_cp_pass *w) {
    tg_call *c = w->c;
    bool exchanges = w->p->opts.inner > 1;
    w->q = tg_array_of(exchanges ? c->saved[SAVED_Q] : c->input[Q]);
    w->k = tg_array_of(exchanges ? c->saved[SAVED_K] : c->input[K]);
    w->v = tg_array_of(exchanges ? c->saved[SAVED_V] : c->input[V]);
    w->out = tg_array_of(exchanges ? c->saved[SAVED_OUT] : c->out[0]);
    w->top = tg_array_of(c->saved[TOP]);
    w->mass = tg_array_of(c->saved[MASS]);
}

/* Sets the gradient of the result, which the group exchanges for rows of this rank's heads. */
static tg_status take_gout(tg_cp_pass *w) {
    tg_call *c = w->c;
    w->gout = tg_array_of(c->gout[0]);
    if (w->p->opts.inner == 1) return TG_OK;
    tg_tensor *heads = tg_call_temp(c, (tg_dtype)c->gout[0]->dtype, 4, c->saved[SAVED_OUT]->shape);
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
    return tg_cp_gather_grad(w, (tg_tensor *const[]){w->c->saved[EARLY], w->c->saved[LATE]});
}

/* Computes the gradients where no heads are exchanged. That of q is summed over pairs of blocks in the accumulate
 * dtype. */
static tg_status grads_of_rows(tg_cp_pass *w) {
    tg_call *c = w->c;
    bool sums = tg_needs(c, Q) && tg_accumulate_dtype((tg_dtype)c->input[Q]->dtype) != (tg_dtype)c->input[Q]->dtype;
    tg_tensor *gq = NULL;
    if (sums) gq = tg_call_temp(c, tg_accumulate_dtype((tg_dtype)c->input[Q]->dtype), 4, c->input[Q]->shape);
    TG_TRY(tg_ctx_status(c->ctx));
    w->gq = gq ? tg_array_of(gq) : tg_op_gin(c, Q);
    w->gk = tg_op_gin(c, K), w->add_k = tg_adds(c, K);
    w->gv = tg_op_gin(c, V), w->add_v = tg_adds(c, V);
    w->add_q = !gq && tg_adds(c, Q);
    TG_TRY(attend_grad(w));
    return gq ? tg_op_copy(c, tg_op_gin(c, Q), w->gq, tg_adds(c, Q)) : TG_OK;
}

/* Computes the gradients of this rank's heads, and exchanges them for those of this rank's rows. */
static tg_status grads_of_heads(tg_cp_pass *w) {
    tg_call *c = w->c;
    tg_dtype dtype = (tg_dtype)c->input[Q]->dtype, wide = tg_accumulate_dtype(dtype);
    tg_cp_heads x[3];
    for (int i = 0; i < 3; i++) {
        tg_tensor *heads = tg_call_temp(c, wide, 4, c->saved[SAVED_Q + i]->shape);
        tg_tensor *rows = tg_needs(c, i) ? c->gin[i] : tg_call_temp(c, dtype, 4, c->input[i]->shape);
        TG_TRY(tg_ctx_status(c->ctx));
        x[i] = (tg_cp_heads){.rows = tg_array_of(rows), .heads = tg_array_of(heads),
                             .add = c->gin_mode[i] == TG_GRAD_ADD};
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
    const tg_tensor *q = tg_node_input(n, Q), *v = tg_node_input(n, V);
    return tg_cp_flops(tg_node_params(n), tg_dim(q, 0), tg_dim(q, 3) + tg_dim(v, 3));
}

/* ---- The op ---- */

static const tg_field context_fields[] = {
    TG_ARG_AS(tg_cp_params, opts.kind, "kind", INT, "How ranks exchange: 0 ring, 1 gather, 2 Ulysses, 3 hierarchy."),
    TG_ARG_AS(tg_cp_params, opts.inner, "inner", INT, "Hierarchy: number of ranks that exchange heads; -1: all."),
    TG_ARG_AS(tg_cp_params, opts.causal, "causal", BOOL, "Query i attends only to keys j <= i."),
    TG_ARG_AS(tg_cp_params, opts.scale, "scale", DOUBLE, "Factor of the scores, 0 or more; -1: 1 / sqrt(dk)."),
    TG_ARG_AS(tg_cp_params, opts.dropout, "dropout", DOUBLE, "Probability of dropout of the attention weights."),
    TG_ARG_AS(tg_cp_params, opts.left, "left", INT64, "Number of earlier keys that a query sees; -1: all."),
    TG_ARG_AS(tg_cp_params, comm, "c", POINTER, "The ranks that call the op together.", .of = "tg_comm",
              .required = true),
};

#define OPTS(...) &(const tg_cp_params){.opts = {TG_CONTEXT_ATTENTION_DEFAULTS, __VA_ARGS__}}

#define NO TG_S_ABSENT
/* A sample on that many ranks: q with h heads, k and v with g, of sizes dk and dv; `rows` of each rank. */
#define SAMPLE(ranks_, note_, params_, b, h, g, rows, dk, dv, ...)                                       \
    {.note = note_, .ranks = ranks_, .params = params_, .n_in = CP_INPUTS,                               \
     .input = {TG_S(b, h, rows, dk), TG_S(b, g, rows, dk), TG_S(b, g, rows, dv), __VA_ARGS__}}

static const tg_sample context_samples[] = {
    SAMPLE(2, "ring", OPTS(.causal = true), 2, 2, 2, 4, 3, 3, NO, NO),
    SAMPLE(3, "ring, all keys, dv is not dk", OPTS(.causal = false), 1, 2, 1, 4, 3, 5, NO, NO),
    SAMPLE(4, "ring, a window, a sink", OPTS(.causal = true, .left = 5), 1, 4, 2, 4, 2, 3, TG_S(4), NO),
    SAMPLE(2, "gather", OPTS(.kind = TG_CP_GATHER, .causal = true), 2, 2, 1, 4, 3, 2, TG_S(2), NO),
    SAMPLE(2, "Ulysses", OPTS(.kind = TG_CP_ULYSSES, .causal = true, .scale = 0.3), 1, 4, 2, 4, 3, 2, TG_S(4), NO),
    SAMPLE(4, "Ulysses, a head on several ranks", OPTS(.kind = TG_CP_ULYSSES, .causal = true), 1, 4, 2, 2, 3, 2, NO, NO),
    SAMPLE(4, "hierarchy", OPTS(.kind = TG_CP_HIERARCHY, .inner = 2, .causal = true, .left = 6), 1, 2, 2, 4, 3, 2, NO,
           NO),
    SAMPLE(2, "packed", OPTS(.causal = true), 1, 2, 1, 4, 3, 2, NO, {.shape = TG_S_SHAPE(2), .kind = TG_SAMPLE_STARTS,
                                                                     .hi = 8}),
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
    .saves_in = 1u << Q | 1u << K | 1u << V | 1u << CP_SINK | 1u << CP_STARTS,
    .saves_out = 1,
    .optional = 1u << CP_SINK | 1u << CP_STARTS,
    .family = TG_FAMILY_ATTENTION,
    .collective = true,
    .infer = context_infer,
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
    tg_scope *s = t ? tg_site_open(t, site) : NULL;
    tg_tensor *y = tg_attention(t, q, k, v,
                                TG_ATTENTION(.causal = o->causal, .scale = o->scale, .dropout = o->dropout,
                                             .left = o->left, .sink = o->sink, .starts_q = o->starts,
                                             .starts_k = o->starts));
    if (t) tg_site_close(t, s);
    return y;
}

/* Attention over a sequence of which each rank has two chunks: q [b, h, s/n, dk], k [b, g, s/n, dk] and v [b, g, s/n, dv]
 * give [b, h, s/n, dv], all zigzag shards of dim 2. Options are those of tg_attention that make sense for a divided
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
