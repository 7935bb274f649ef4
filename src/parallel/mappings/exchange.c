/* Exchanges: in AllToAll and reshard every rank sends a part of x to every rank, and in shift the whole x to the next
 * rank. mapping.h explains the letters of placements, as in Va -> Vb. */
#include "parallel/mappings/mapping_samples.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/megatron.h>

/* ---- AllToAll: V -> V, rows of dim 0; its backward is the same op with send and receive swapped ---- */

static int64_t row_numel(const tg_tensor *x) {
    int64_t n = 1;
    for (int d = 1; d < x->ndim; d++) n *= x->shape[d];
    return n;
}

/* Checks the rows that this rank sends, and sets *rows to the number of rows that it receives. */
static tg_status exchanged_rows(tg_call *c, int64_t *rows) {
    tg_mapping_params *p = tg_mapping_of(c);
    const tg_tensor *x = c->input[0];
    int n = tg_comm_size(p->comm);
    *rows = x->shape[0];
    if (!p->splits != !p->recv)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "the rows to %s are given but the rows to %s are NULL; give both or neither",
                            p->splits ? "send" : "receive", p->splits ? "receive" : "send");
    if (!p->splits && x->shape[0] % n == 0) return TG_OK;
    if (!p->splits)
        return tg_call_fail(c, TG_ERR_SHAPE, "dim 0 has %s, expected a multiple of the %d ranks",
                            tg_count(x->shape[0], "row").text, n);
    TG_TRY(tg_mapping_row_counts(c, &p->splits, p->n_splits, row_numel(x), &p->counts));
    TG_TRY(tg_mapping_row_counts(c, &p->recv, p->n_recv, row_numel(x), &p->recv_counts));
    int64_t sent = 0;
    *rows = 0;
    for (int r = 0; r < n; r++)
        if (__builtin_add_overflow(sent, p->splits[r], &sent) || __builtin_add_overflow(*rows, p->recv[r], rows))
            return tg_call_fail(c, TG_ERR_ARGUMENT, "the sum of the rows is too large for 64 bits");
    if (sent == x->shape[0]) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "dim 0 has %s, expected %lld, the sum of the rows to send",
                        tg_count(x->shape[0], "row").text, (long long)sent);
}

static tg_status all_to_all_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_mapping_check(c));
    if (x->ndim == 0) return tg_call_fail(c, TG_ERR_SHAPE, "a scalar has no rows to exchange");
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    TG_TRY(exchanged_rows(c, &shape[0]));
    c->dims = 1;
    TG_TRY(tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape));
    return tg_mapping_convert(c, tg_at_v, tg_at_v,
                              "pass a shard to tg_as_opaque first: exchanged rows are not in the order of a shard");
}

static tg_status exchange(tg_call *c, tg_tensor *dst, tg_tensor *src, const int64_t *recv, const int64_t *send) {
    tg_collective_args a = {.kind = TG_ALL_TO_ALL, .dst = dst, .src = src, .recv = recv, .send = send};
    return tg_collective_start(c, tg_mapping_of(c)->comm, a);
}

static tg_status all_to_all_forward(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    return exchange(c, c->out[0], c->input[0], p->recv_counts, p->counts);
}

static tg_status all_to_all_backward(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    tg_tensor *g = tg_mapping_gradient(c);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(exchange(c, g, c->gout[0], p->counts, p->recv_counts));
    return tg_mapping_give(c, g);
}

static tg_status all_to_all_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_mapping_params p = *(const tg_mapping_params *)tg_node_params_of(n);
    const int64_t *sent = p.splits;
    p.splits = p.recv;
    p.recv = sent;
    return tg_mapping_vjp(t, n, gout, gin, n->op, &p);
}

#define ROWS(...) (const int64_t[]){__VA_ARGS__}
static const tg_sample all_to_all_samples[] = {
    TG_M_SAMPLE(2, "two ranks", TG_M_OPTS(.comm = NULL), TG_S(4, 3)),
    TG_M_SAMPLE(3, "three ranks", TG_M_OPTS(.comm = NULL), TG_S(3, 2, 3)),
    TG_M_SAMPLE(4, "transposed", TG_M_OPTS(.comm = NULL), TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3)),
    TG_M_SAMPLE(2, "strided", TG_M_OPTS(.comm = NULL), TG_S_AS(TG_SAMPLE_STRIDED, 4)),
    TG_M_SAMPLE(2, "expanded", TG_M_OPTS(.comm = NULL), TG_S_AS(TG_SAMPLE_EXPANDED, 4, 3)),
    TG_M_SAMPLE(2, "nothing", TG_M_OPTS(.comm = NULL), TG_S(0, 4)),
    TG_M_SAMPLE(2, "given rows", TG_M_OPTS(.splits = ROWS(2, 2), .recv = ROWS(2, 2)), TG_S(4, 2)),
    TG_M_REFUSED("no communicator", TG_M_OPTS(.comm = NULL), TG_ERR_ARGUMENT, TG_S(4, 3)),
    {.note = "not divisible", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 1, .input = {TG_S(3, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "rows left over", .ranks = 2, .params = TG_M_OPTS(.splits = ROWS(2, 1), .recv = ROWS(2, 1)), .n_in = 1,
     .input = {TG_S(4, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "one side is given", .ranks = 2, .params = TG_M_OPTS(.splits = ROWS(2, 2)), .n_in = 1,
     .input = {TG_S(4, 3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "a scalar", .ranks = 2, .params = TG_M_OPTS(.comm = NULL), .n_in = 1, .input = {TG_S_SCALAR},
     .refused = TG_ERR_SHAPE},
};

static const tg_field all_to_all_fields[] = {
    TG_ARG_AS(tg_mapping_params, splits, "send_counts", LIST, "Number of rows to each rank; equal if not given.",
              .length_at = offsetof(tg_mapping_params, n_splits)),
    TG_ARG_AS(tg_mapping_params, recv, "recv_counts", LIST, "Number of rows from each rank; equal if not given.",
              .length_at = offsetof(tg_mapping_params, n_recv)),
    TG_ARG_AS(tg_mapping_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
};

const tg_op tg_op_all_to_all = {
    TG_MAPPING("AllToAll", "rows to and from every rank"), .alias = "all_to_all", .collective = true,
    .infer = all_to_all_infer, .forward = all_to_all_forward, .backward = all_to_all_backward, .vjp = all_to_all_vjp,
    .jvp = tg_jvp_linear, TG_FIELDS(all_to_all_fields), TG_SAMPLES(all_to_all_samples)};

/* Exchanges rows of x [rows, ..]. send_counts[r] rows, in order, go to rank r, and recv_counts[r] rows come from it, in
 * order of r. Both NULL: equal parts. */
tg_tensor *tg_all_to_all(tg_tape *t, tg_tensor *x, const int64_t *send_counts, const int64_t *recv_counts,
                         tg_comm *c) {
    return TG_MAP(t, tg_op_all_to_all, x, .comm = c, .recv = recv_counts, .splits = send_counts);
}

/* ---- reshard: Va -> Vb; its backward is the reverse ---- */

/* A contiguous shard of dim `dim` becomes one of dim `cut`. An opaque tensor stays opaque. */
static tg_status reshard_infer(tg_call *c) {
    tg_mapping_params *p = tg_mapping_of(c);
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_mapping_check(c));
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    TG_TRY(tg_need_dim(c, 0, &p->cut));
    int64_t n = tg_comm_size(p->comm);
    if (p->dim == p->cut)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "cat and split are both dim %d, expected different dims", p->dim);
    if (x->shape[p->cut] % n)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "dim %d has size %lld, expected a multiple of the %lld ranks of group \"%s\"", p->cut,
                            (long long)x->shape[p->cut], (long long)n, tg_comm_name(p->comm));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[p->cut] /= n;
    if (__builtin_mul_overflow(shape[p->dim], n, &shape[p->dim])) shape[p->dim] = -1;
    c->dims = 1u << p->dim | 1u << p->cut;
    TG_TRY(tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape));
    tg_placement from = tg_mapping_input_placement(c), to = from;
    if (from.layout != TG_OPAQUE) from.layout = to.layout = TG_CONTIGUOUS, from.chunks = to.chunks = 0;
    to.dim = (int8_t)(to.layout == TG_OPAQUE ? 0 : p->cut);
    return tg_mapping_convert(
        c, from, to, "only contiguous shards can move to another dim; gather x first (tg_gather_from, tg_all_gather)");
}

static tg_status reshard_forward(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    return tg_collective_copy_exchange(c, p, c->out[0], c->input[0], p->dim, p->cut);
}

static tg_status reshard_backward(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    tg_tensor *g = tg_mapping_gradient(c);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_collective_copy_exchange(c, p, g, c->gout[0], p->cut, p->dim));
    return tg_mapping_give(c, g);
}

static tg_status reshard_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_mapping_params p = *(const tg_mapping_params *)tg_node_params_of(n);
    int dim = p.dim;
    p.dim = p.cut;
    p.cut = dim;
    return tg_mapping_vjp(t, n, gout, gin, n->op, &p);
}

static const tg_sample reshard_samples[] = {
    TG_M_SAMPLE(2, "rows to columns", TG_M_OPTS(.dim = 0, .cut = 1), TG_S(3, 4)),
    TG_M_SAMPLE(3, "columns to rows", TG_M_OPTS(.dim = -1, .cut = 0), TG_S(3, 4)),
    TG_M_SAMPLE(2, "in the middle", TG_M_OPTS(.dim = 2, .cut = 1), TG_S(2, 4, 3, 2)),
    TG_M_SAMPLE(4, "transposed", TG_M_OPTS(.dim = 0, .cut = 1), TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4)),
    TG_M_SAMPLE(2, "strided", TG_M_OPTS(.dim = 1, .cut = 0), TG_S_AS(TG_SAMPLE_STRIDED, 2, 3)),
    TG_M_SAMPLE(2, "expanded", TG_M_OPTS(.dim = 1, .cut = 0), TG_S_AS(TG_SAMPLE_EXPANDED, 2, 3)),
    TG_M_SAMPLE(2, "nothing", TG_M_OPTS(.dim = 0, .cut = 1), TG_S(0, 4)),
    TG_M_REFUSED("no communicator", TG_M_OPTS(.dim = 0, .cut = 1), TG_ERR_ARGUMENT, TG_S(3, 4)),
    {.note = "not divisible", .ranks = 2, .params = TG_M_OPTS(.dim = 0, .cut = 1), .n_in = 1, .input = {TG_S(2, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "one dim", .ranks = 2, .params = TG_M_OPTS(.dim = 1, .cut = -1), .n_in = 1, .input = {TG_S(2, 2)},
     .refused = TG_ERR_ARGUMENT},
};

static const tg_field reshard_fields[] = {
    TG_ARG_AS(tg_mapping_params, dim, "cat", INT, "The dim along which the shards are joined.", .required = true),
    TG_ARG_AS(tg_mapping_params, cut, "split", INT, "The dim along which the whole is sharded.", .required = true),
    TG_ARG_AS(tg_mapping_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
};

const tg_op tg_op_reshard = {
    TG_MAPPING("reshard", "x sharded along another dim"), .collective = true, .infer = reshard_infer,
    .forward = reshard_forward, .backward = reshard_backward, .vjp = reshard_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(reshard_fields), TG_SAMPLES(reshard_samples)};

/* Joins the ranks' x along dim `cat`, and keeps this rank's part of dim `split`. The size of dim `split` must be a
 * multiple of the number of ranks. */
tg_tensor *tg_reshard(tg_tape *t, tg_tensor *x, int cat, int split, tg_comm *c) {
    return TG_MAP(t, tg_op_reshard, x, .comm = c, .dim = cat, .cut = split);
}

/* ---- all_to_all_sp2hp and hp2sp: from rows to columns and back ---- */

/* Returns x as [rows, H]: joins all dims but the last. A scalar becomes [1, 1]. */
static tg_tensor *as_rows(tg_tape *t, tg_tensor *x) {
    if (!tg_is_alive(x) || x->ndim == 2) return x;
    int64_t rows = 1;
    for (int d = 0; d < x->ndim - 1; d++) rows *= x->shape[d];
    return tg_reshape(t, x, TG_SHAPE(rows, x->ndim ? x->shape[x->ndim - 1] : 1));
}

/* x [rows, H], this rank's rows -> [n * rows, H/n], this rank's columns. */
tg_tensor *tg_all_to_all_sp2hp(tg_tape *t, tg_tensor *x, tg_comm *c) { return tg_reshard(t, as_rows(t, x), 0, 1, c); }

/* x [rows, H/n], this rank's columns -> [rows/n, H], this rank's rows. The inverse of tg_all_to_all_sp2hp. */
tg_tensor *tg_all_to_all_hp2sp(tg_tape *t, tg_tensor *x, tg_comm *c) { return tg_reshard(t, as_rows(t, x), 1, 0, c); }

/* ---- shift: V -> V, the x of the previous rank; backward takes the gradient of the next rank ---- */

/* Sets the counts of an all-to-all in which this rank sends x to one rank and receives from one rank. */
static tg_status shift_infer(tg_call *c) {
    tg_mapping_params *p = tg_mapping_of(c);
    TG_TRY(tg_mapping_like(c));
    int n = tg_comm_size(p->comm);
    int64_t *counts = tg_tape_alloc(c->tape, 2 * (size_t)n * sizeof *counts);
    if (!counts) return c->ctx->run.status;
    memset(counts, 0, 2 * (size_t)n * sizeof *counts);
    counts[((tg_comm_rank(p->comm) + p->root) % n + n) % n] = c->input[0]->numel;
    counts[n + ((tg_comm_rank(p->comm) - p->root) % n + n) % n] = c->input[0]->numel;
    p->counts = counts;
    p->recv_counts = counts + n;
    return tg_mapping_convert(c, tg_at_v, tg_at_v,
                              "pass a shard to tg_as_opaque first: the shard of another rank is not this rank's shard");
}

static tg_status shift_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_mapping_params p = *(const tg_mapping_params *)tg_node_params_of(n);
    p.root = -p.root;
    return tg_mapping_vjp(t, n, gout, gin, n->op, &p);
}

static const tg_sample shift_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.root = 1)),
                                          TG_M_SAMPLE(3, "the other way", TG_M_OPTS(.root = -1), TG_S(2, 3))};

const tg_op tg_op_shift = {
    TG_MAPPING("shift", "x of the rank before"), .collective = true, .infer = shift_infer,
    .forward = all_to_all_forward, .backward = all_to_all_backward, .vjp = shift_vjp, .jvp = tg_jvp_linear,
    TG_MAPPING_C, .preset = TG_M_OPTS(.root = 1), TG_SAMPLES(shift_samples)};

/* Returns the x of rank r - 1 on rank r, and the x of the last rank on rank 0. Backward shifts in the other
 * direction. */
tg_tensor *tg_shift(tg_tape *t, tg_tensor *x, tg_comm *c) { return TG_MAP(t, tg_op_shift, x, .comm = c, .root = 1); }
