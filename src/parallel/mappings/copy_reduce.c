/* Mappings that keep the shape: sums, the maximum, broadcasts, and their conjugates (the ops of their gradients).
 * mapping.h explains the letters of placements, as in P -> I. */
#include "parallel/mappings/mapping_samples.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/megatron.h>

/* ---- CopyToModelParallelRegion: I -> R, before a computation of which each rank does a share ---- */

static tg_status copy_to_tp_infer(tg_call *c) {
    TG_TRY(tg_mapping_view(c));
    return tg_mapping_convert(c, tg_at_i, tg_at_r, "an R tensor can be used as it is, without tg_copy_to_tp");
}

static tg_status copy_to_tp_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_reduce_from_tp, NULL);
}

static const tg_sample copy_to_tp_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.comm = NULL))};

const tg_op tg_op_copy_to_tp = {
    TG_MAPPING("CopyToModelParallelRegion", "x; backward sums over the group"), .alias = "copy_to_tp",
    .collective = true, .infer = copy_to_tp_infer, .backward = tg_mapping_sum, .vjp = copy_to_tp_vjp,
    .jvp = tg_jvp_linear, TG_MAPPING_C, TG_SAMPLES(copy_to_tp_samples)};

/* Returns a view of x, which is the same on every rank, for a computation that is sharded over c's ranks. Backward sums
 * the ranks' gradients. */
tg_tensor *tg_copy_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return TG_MAP(t, tg_op_copy_to_tp, x, .comm = c);
}

/* ---- ReduceFromModelParallelRegion: P -> I, the sum over the ranks ---- */

static tg_status reduce_from_tp_infer(tg_call *c) {
    TG_TRY(tg_mapping_like(c));
    return tg_mapping_convert(c, tg_at_p, tg_at_i,
                              "join a shard with tg_gather_from; a tensor that is I or R is not an addend of a sum");
}

static tg_status sum_forward(tg_call *c) { return tg_collective_copy_sum(c, tg_mapping_of(c), c->out[0], c->input[0]); }

static tg_status reduce_from_tp_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_copy_to_tp, NULL);
}

static const tg_sample reduce_from_tp_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.comm = NULL))};

const tg_op tg_op_reduce_from_tp = {
    TG_MAPPING("ReduceFromModelParallelRegion", "sum over the group"), .alias = "reduce_from_tp", .collective = true,
    .infer = reduce_from_tp_infer, .forward = sum_forward, .backward = tg_mapping_pass, .vjp = reduce_from_tp_vjp,
    .jvp = tg_jvp_linear, TG_MAPPING_C, TG_SAMPLES(reduce_from_tp_samples)};

/* Returns the sum of the ranks' x, the same on every rank. Backward passes the gradient on unchanged. */
tg_tensor *tg_reduce_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return TG_MAP(t, tg_op_reduce_from_tp, x, .comm = c);
}

/* ---- all_reduce: P -> R; it is its own conjugate ---- */

static tg_status all_reduce_infer(tg_call *c) {
    TG_TRY(tg_mapping_like(c));
    return tg_mapping_convert(c, tg_at_p, tg_at_r,
                              "join a shard with tg_all_gather; a tensor that is I or R is not an addend of a sum");
}

static tg_status all_reduce_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, n->op, NULL);
}

static const tg_sample all_reduce_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.comm = NULL))};

const tg_op tg_op_all_reduce = {
    TG_MAPPING("all_reduce", "sum over the group; so is its gradient"), .collective = true, .infer = all_reduce_infer,
    .forward = sum_forward, .backward = tg_mapping_sum, .vjp = all_reduce_vjp, .jvp = tg_jvp_linear, TG_MAPPING_C,
    TG_SAMPLES(all_reduce_samples)};

/* Returns the sum of the ranks' x, for a computation that is sharded over c's ranks. Backward sums the ranks'
 * gradients. */
tg_tensor *tg_all_reduce(tg_tape *t, tg_tensor *x, tg_comm *c) { return TG_MAP(t, tg_op_all_reduce, x, .comm = c); }

/* ---- all_reduce_max: V -> I, the maximum over the ranks, without derivative ---- */

static tg_status all_reduce_max_infer(tg_call *c) {
    TG_TRY(tg_need_number(c, 0));
    if (tg_call_asks_gradient(c, 0))
        return tg_call_fail(c, TG_ERR_PLACEMENT,
                            "the input needs a gradient, and the maximum over ranks has none; tg_detach it first");
    TG_TRY(tg_mapping_like(c));
    TG_TRY(tg_call_linear(c, 0)); /* x must not be P on another axis */
    return tg_mapping_convert(c, tg_at_v, tg_at_i, "pass a shard to tg_as_opaque first");
}

static tg_status all_reduce_max_forward(tg_call *c) {
    return tg_collective_start(
        c, tg_mapping_of(c)->comm,
        (tg_collective_args){.kind = TG_ALL_REDUCE, .dst = c->out[0], .src = c->input[0], .op = TG_REDUCE_MAX});
}

#define FROZEN(...) {.shape = TG_S_SHAPE(__VA_ARGS__), .frozen = true}
static const tg_sample all_reduce_max_samples[] = {
    TG_M_SAMPLE(2, "two ranks", TG_M_OPTS(.comm = NULL), FROZEN(3, 5)),
    TG_M_SAMPLE(3, "three ranks", TG_M_OPTS(.comm = NULL), FROZEN(2, 3, 4)),
    TG_M_SAMPLE(4, "one element", TG_M_OPTS(.comm = NULL), FROZEN(1, 1)),
    TG_M_SAMPLE(2, "nothing", TG_M_OPTS(.comm = NULL), FROZEN(0, 4)),
    TG_M_REFUSED("with gradient", TG_M_OPTS(.comm = NULL), TG_ERR_PLACEMENT, TG_S(2, 3)),
    TG_M_REFUSED("no communicator", TG_M_OPTS(.comm = NULL), TG_ERR_ARGUMENT, FROZEN(2, 3)),
};

const tg_op tg_op_all_reduce_max = {
    TG_MAPPING("all_reduce_max", "largest over the group"), .collective = true, .infer = all_reduce_max_infer,
    .forward = all_reduce_max_forward, TG_MAPPING_C, TG_SAMPLES(all_reduce_max_samples)};

/* Returns the maximum of the ranks' x, element by element, the same on every rank. It has no derivative: if gradients
 * are recorded, x must not need one. */
tg_tensor *tg_all_reduce_max(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return TG_MAP(t, tg_op_all_reduce_max, x, .comm = c);
}

/* ---- broadcast: V -> I, the root's x ---- */

static bool is_root(const tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    return tg_comm_rank(p->comm) == p->root;
}

static tg_status check_root(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    TG_TRY(tg_mapping_check(c));
    int n = tg_comm_size(p->comm);
    if (p->root >= 0 && p->root < n) return TG_OK;
    return tg_call_fail(c, TG_ERR_ARGUMENT, "root is %d, expected a rank from 0 to %d", p->root, n - 1);
}

static tg_status broadcast_infer(tg_call *c) {
    TG_TRY(check_root(c));
    TG_TRY(tg_infer_same(c));
    return tg_mapping_convert(c, tg_at_v, tg_at_i, "a tensor that is I or R is already the same on every rank");
}

/* Copies the root's x to dst on every rank. */
static tg_status broadcast_into(tg_call *c, tg_tensor *dst, const tg_tensor *x) {
    if (is_root(c)) TG_TRY(tg_op_copy(c, tg_array_of(dst), tg_array_of(x), false));
    tg_collective_args a = {.kind = TG_BROADCAST, .dst = dst, .root = tg_mapping_of(c)->root};
    return tg_collective_start(c, tg_mapping_of(c)->comm, a);
}

static tg_status broadcast_forward(tg_call *c) { return broadcast_into(c, c->out[0], c->input[0]); }

static tg_status broadcast_backward(tg_call *c) {
    return is_root(c) ? tg_mapping_pass(c) : c->gin_mode[0] ? tg_op_zero(c, 0) : TG_OK;
}

static tg_status broadcast_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_on_root, NULL);
}

static const tg_sample broadcast_samples[] = {
    TG_M_SAMPLES_LIKE(TG_M_OPTS(.root = 1)),
    TG_M_SAMPLE(3, "the last rank's", TG_M_OPTS(.root = 2), TG_S(2, 3)),
    {.note = "no such root", .ranks = 2, .params = TG_M_OPTS(.root = 2), .n_in = 1, .input = {TG_S(2, 3)},
     .refused = TG_ERR_ARGUMENT},
};

static const tg_field broadcast_fields[] = {
    TG_ARG(tg_mapping_params, root, INT, "The rank whose x is taken.", .required = true),
    TG_ARG_AS(tg_mapping_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
};

const tg_op tg_op_broadcast = {
    TG_MAPPING("broadcast", "x of the root"), .collective = true, .infer = broadcast_infer,
    .forward = broadcast_forward, .backward = broadcast_backward, .vjp = broadcast_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(broadcast_fields), TG_SAMPLES(broadcast_samples)};

/* Returns the root's x on every rank; on other ranks x only gives shape and dtype. On the root the gradient of x is the
 * gradient of the result; on other ranks it is 0. */
tg_tensor *tg_broadcast(tg_tape *t, tg_tensor *x, int root, tg_comm *c) {
    return TG_MAP(t, tg_op_broadcast, x, .comm = c, .root = root);
}

/* ---- on_root: I -> V, x on the root and 0 elsewhere; the conjugate of broadcast ---- */

static tg_status on_root_infer(tg_call *c) {
    TG_TRY(check_root(c));
    TG_TRY(tg_infer_same(c));
    return tg_mapping_convert(c, tg_at_i, tg_at_v, "tg_r_to_i converts R to I");
}

static tg_status on_root_forward(tg_call *c) {
    if (!is_root(c)) return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), 0);
    return tg_op_copy(c, tg_array_of(c->out[0]), tg_array_of(c->input[0]), false);
}

static tg_status on_root_backward(tg_call *c) {
    tg_tensor *g = tg_mapping_gradient(c);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(broadcast_into(c, g, c->gout[0]));
    return tg_mapping_give(c, g);
}

static tg_status on_root_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_broadcast, NULL);
}

static const tg_sample on_root_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.root = 0))};

static const tg_field on_root_fields[] = {
    TG_ARG(tg_mapping_params, root, INT, "The rank whose x is taken.", .required = true),
    TG_ARG_AS(tg_mapping_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
};

const tg_op tg_op_on_root = {
    TG_MAPPING("on_root", "x on the root, 0 elsewhere"), .collective = true, .infer = on_root_infer,
    .forward = on_root_forward, .backward = on_root_backward, .vjp = on_root_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(on_root_fields), TG_SAMPLES(on_root_samples)};
