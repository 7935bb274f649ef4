/* Mappings that cut a tensor into the ranks' parts, or join the parts. The backward of each is another mapping of this
 * file. mapping.h explains the letters of placements, as in I -> V0. */
#include "parallel/mappings/mapping_samples.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/megatron.h>

/* Functions that several ops with different names share. */

static tg_status part_forward(tg_call *c) {
    return tg_collective_copy_part(c, tg_mapping_of(c), tg_array_of(c->out[0]), tg_array_of(c->input[0]));
}
static tg_status gather_forward(tg_call *c) {
    return tg_collective_copy_gather(c, tg_mapping_of(c), c->out[0], c->input[0]);
}
static tg_status reduce_scatter_forward(tg_call *c) {
    return tg_collective_copy_reduce_scatter(c, tg_mapping_of(c), c->out[0], c->input[0]);
}

static tg_status scatter_infer(tg_call *c) {
    TG_TRY(tg_mapping_cut(c));
    return tg_mapping_convert(c, tg_at_i, tg_mapping_part_placement(c), "cut an R tensor with tg_shard");
}

static tg_status gather_infer(tg_call *c) {
    TG_TRY(tg_mapping_join(c));
    return tg_mapping_convert(c, tg_mapping_input_placement(c), tg_at_i, "pass the dim that is sharded");
}

static tg_status all_gather_infer(tg_call *c) {
    TG_TRY(tg_mapping_join(c));
    return tg_mapping_convert(c, tg_mapping_input_placement(c), tg_at_r, "pass the dim that is sharded");
}

static tg_status reduce_scatter_infer(tg_call *c) {
    TG_TRY(tg_mapping_cut(c));
    return tg_mapping_convert(c, tg_at_p, tg_mapping_part_placement(c),
                              "to cut a tensor that all ranks hold, use tg_scatter_to (I) or tg_shard (R)");
}

static tg_status scatter_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_gather_from, NULL);
}
static tg_status gather_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_scatter_to, NULL);
}
static tg_status all_gather_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_reduce_scatter, NULL);
}
static tg_status reduce_scatter_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_all_gather, NULL);
}

#define SCATTER .collective = true, .infer = scatter_infer, .forward = part_forward, .backward = tg_mapping_gather, \
                .vjp = scatter_vjp, .jvp = tg_jvp_linear
#define GATHER .collective = true, .infer = gather_infer, .forward = gather_forward, .backward = tg_mapping_keep_part, \
               .vjp = gather_vjp, .jvp = tg_jvp_linear
#define ALL_GATHER .collective = true, .infer = all_gather_infer, .forward = gather_forward, \
                   .backward = tg_mapping_reduce_scatter, .vjp = all_gather_vjp, .jvp = tg_jvp_linear
#define REDUCE_SCATTER .collective = true, .infer = reduce_scatter_infer, .forward = reduce_scatter_forward, \
                       .backward = tg_mapping_gather, .vjp = reduce_scatter_vjp, .jvp = tg_jvp_linear

#define UNEVEN(ranks_, ...)                                                                                       \
    {.note = "not divisible", .ranks = ranks_, .params = TG_M_OPTS(.dim = -1), .n_in = 1, .input = {__VA_ARGS__}, \
     .refused = TG_ERR_SHAPE}
#define NO_DIMS(dim_)                                                                                     \
    {.note = "a scalar", .ranks = 2, .params = TG_M_OPTS(.dim = dim_), .n_in = 1, .input = {TG_S_SCALAR}, \
     .refused = TG_ERR_SHAPE}
#define STRIDED(k) {.layout = TG_STRIDED, .chunks = (k)}
#define ZIGZAG {.layout = TG_ZIGZAG}
/* Samples of ops for any dim and layout. */
#define ANY_DIM                                                                                                   \
    TG_M_SAMPLES_CUT(TG_M_OPTS(.dim = 1)), TG_M_SAMPLE(3, "dim 0", TG_M_OPTS(.dim = 0), TG_S(12, 5)),             \
    TG_M_SAMPLE(2, "a middle dim", TG_M_OPTS(.dim = -2), TG_S(3, 12, 2)),                                         \
    TG_M_SAMPLE(2, "strided shards", TG_M_OPTS(.dim = 1, .shard = STRIDED(3)), TG_S(2, 12)),                      \
    TG_M_SAMPLE(3, "zigzag shards", TG_M_OPTS(.dim = 0, .shard = ZIGZAG), TG_S(12, 2)),                           \
    TG_M_SAMPLE(2, "zigzag in the middle", TG_M_OPTS(.dim = 1, .shard = ZIGZAG), TG_S(2, 12, 3)),                 \
    NO_DIMS(0),                                                                                                   \
    {.note = "chunks do not fit", .ranks = 4, .params = TG_M_OPTS(.dim = 0, .shard = STRIDED(5)), .n_in = 1,      \
     .input = {TG_S(12, 2)}, .refused = TG_ERR_SHAPE}

/* ---- ScatterToModelParallelRegion: I -> V, this rank's part of the last dim ---- */

static const tg_sample scatter_to_tp_samples[] = {TG_M_SAMPLES_CUT(TG_M_OPTS(.dim = -1)), UNEVEN(2, TG_S(2, 5)),
                                                  NO_DIMS(-1)};
const tg_op tg_op_scatter_to_tp = {
    TG_MAPPING("ScatterToModelParallelRegion", "this rank's part of the last dim"), .alias = "scatter_to_tp", SCATTER,
    TG_MAPPING_C, .preset = TG_M_OPTS(.dim = -1), TG_SAMPLES(scatter_to_tp_samples)};

/* x [.., h], the same on every rank -> [.., h/n], this rank's part. Backward gathers. */
tg_tensor *tg_scatter_to_tp(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return TG_MAP(t, tg_op_scatter_to_tp, x, .comm = c, .dim = -1);
}

/* ---- GatherFromModelParallelRegion: V -> I along the last dim ---- */

static const tg_sample gather_from_tp_samples[] = {TG_M_SAMPLES_CUT(TG_M_OPTS(.dim = -1)), NO_DIMS(-1)};
const tg_op tg_op_gather_from_tp = {
    TG_MAPPING("GatherFromModelParallelRegion", "all ranks' parts along the last dim"), .alias = "gather_from_tp",
    GATHER, TG_MAPPING_C, .preset = TG_M_OPTS(.dim = -1), TG_SAMPLES(gather_from_tp_samples)};

/* x [.., h/n], a part of the last dim -> [.., h], the same on every rank. Backward keeps this rank's part. */
tg_tensor *tg_gather_from_tp(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return TG_MAP(t, tg_op_gather_from_tp, x, .comm = c, .dim = -1);
}

/* ---- ScatterToSequenceParallelRegion: I -> V0, this rank's rows ---- */

static const tg_sample scatter_to_sp_samples[] = {
    TG_M_SAMPLE(2, "two ranks", TG_M_OPTS(.dim = 0), TG_S(12, 3)),
    TG_M_SAMPLE(3, "three ranks", TG_M_OPTS(.dim = 0), TG_S(6, 2, 3)),
    TG_M_SAMPLE(4, "transposed", TG_M_OPTS(.dim = 0), TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3)),
    TG_M_SAMPLE(2, "strided", TG_M_OPTS(.dim = 0), TG_S_AS(TG_SAMPLE_STRIDED, 4)),
    TG_M_SAMPLE(2, "nothing", TG_M_OPTS(.dim = 0), TG_S(0, 4)),
    TG_M_REFUSED("no communicator", TG_M_OPTS(.dim = 0), TG_ERR_ARGUMENT, TG_S(4, 3)),
    {.note = "not divisible", .ranks = 3, .params = TG_M_OPTS(.dim = 0), .n_in = 1, .input = {TG_S(4, 3)},
     .refused = TG_ERR_SHAPE},
    NO_DIMS(0),
};
const tg_op tg_op_scatter_to_sp = {
    TG_MAPPING("ScatterToSequenceParallelRegion", "this rank's rows"), .alias = "scatter_to_sp", SCATTER, TG_MAPPING_C,
    TG_SAMPLES(scatter_to_sp_samples)};

/* x [s, ..], the same on every rank -> [s/n, ..], this rank's rows. Backward gathers. */
tg_tensor *tg_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return TG_MAP(t, tg_op_scatter_to_sp, x, .comm = c, .dim = 0);
}

/* ---- AllGatherFromTensorParallelRegion: V -> R along the last dim ---- */

static const tg_sample all_gather_last_dim_samples[] = {TG_M_SAMPLES_CUT(TG_M_OPTS(.dim = -1)), NO_DIMS(-1)};
const tg_op tg_op_all_gather_last_dim = {
    TG_MAPPING("AllGatherFromTensorParallelRegion", "all ranks' parts along the last dim; backward reduce-scatters"),
    .alias = "all_gather_last_dim", ALL_GATHER, TG_MAPPING_C, .preset = TG_M_OPTS(.dim = -1),
    TG_SAMPLES(all_gather_last_dim_samples)};

/* x [.., h/n], a part of the last dim -> [.., h], for a computation that is sharded over c's ranks. Backward sums
 * the ranks' gradients and keeps this rank's part. */
tg_tensor *tg_all_gather_last_dim(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return TG_MAP(t, tg_op_all_gather_last_dim, x, .comm = c, .dim = -1);
}

/* ---- ReduceScatterToTensorParallelRegion: P -> V along the last dim ---- */

static const tg_sample reduce_scatter_last_dim_samples[] = {TG_M_SAMPLES_CUT(TG_M_OPTS(.dim = -1)),
                                                            UNEVEN(3, TG_S(2, 5)), NO_DIMS(-1)};
const tg_op tg_op_reduce_scatter_last_dim = {
    TG_MAPPING("ReduceScatterToTensorParallelRegion", "this rank's part of the sum, along the last dim"),
    .alias = "reduce_scatter_last_dim", REDUCE_SCATTER, TG_MAPPING_C, .preset = TG_M_OPTS(.dim = -1),
    TG_SAMPLES(reduce_scatter_last_dim_samples)};

/* x [.., h], this rank's addend of a sum -> [.., h/n], this rank's part of the sum. Backward gathers. */
tg_tensor *tg_reduce_scatter_last_dim(tg_tape *t, tg_tensor *x, tg_comm *c) {
    return TG_MAP(t, tg_op_reduce_scatter_last_dim, x, .comm = c, .dim = -1);
}

/* ---- scatter_to, gather_from, all_gather, reduce_scatter: the same along any dim ---- */

static const tg_sample scatter_to_samples[] = {ANY_DIM, UNEVEN(2, TG_S(2, 5))};
const tg_op tg_op_scatter_to = {
    TG_MAPPING("scatter_to", "this rank's part; backward gathers"), SCATTER, TG_MAPPING_D,
    TG_SAMPLES(scatter_to_samples)};

/* Returns this rank's part of x along dim d. x is the same on every rank. Backward gathers. */
tg_tensor *tg_scatter_to(tg_tape *t, tg_tensor *x, int d, tg_comm *c) {
    return TG_MAP(t, tg_op_scatter_to, x, .comm = c, .dim = d);
}

static const tg_sample gather_from_samples[] = {ANY_DIM};
const tg_op tg_op_gather_from = {
    TG_MAPPING("gather_from", "all ranks' parts; backward keeps this rank's"), GATHER, TG_MAPPING_D,
    TG_SAMPLES(gather_from_samples)};

/* Joins the ranks' parts along dim d; the result is the same on every rank. If the shards of x are strided or
 * zigzag, their chunks go to their places in the whole. Backward keeps this rank's part. */
tg_tensor *tg_gather_from(tg_tape *t, tg_tensor *x, int d, tg_comm *c) {
    return TG_MAP(t, tg_op_gather_from, x, .comm = c, .dim = d);
}

static const tg_sample all_gather_samples[] = {ANY_DIM};
const tg_op tg_op_all_gather = {
    TG_MAPPING("all_gather", "all ranks' parts; backward reduce-scatters"), ALL_GATHER, TG_MAPPING_D,
    TG_SAMPLES(all_gather_samples)};

/* Like tg_gather_from, but the result is R, for a computation that is sharded over c's ranks. Backward
 * reduce-scatters. */
tg_tensor *tg_all_gather(tg_tape *t, tg_tensor *x, int d, tg_comm *c) {
    return TG_MAP(t, tg_op_all_gather, x, .comm = c, .dim = d);
}

static const tg_sample reduce_scatter_samples[] = {ANY_DIM, UNEVEN(2, TG_S(2, 5))};
const tg_op tg_op_reduce_scatter = {
    TG_MAPPING("reduce_scatter", "this rank's part of the sum over the group"), REDUCE_SCATTER, TG_MAPPING_D,
    TG_SAMPLES(reduce_scatter_samples)};

/* Returns this rank's part, along dim d, of the sum of the ranks' x. Backward gathers. */
tg_tensor *tg_reduce_scatter(tg_tape *t, tg_tensor *x, int d, tg_comm *c) {
    return TG_MAP(t, tg_op_reduce_scatter, x, .comm = c, .dim = d);
}

/* ---- shard: R -> V; and unshard, the op of its gradient: V -> P, this rank's part with zeros elsewhere ---- */

static tg_status shard_infer(tg_call *c) {
    TG_TRY(tg_mapping_cut(c));
    return tg_mapping_convert(c, tg_at_r, tg_mapping_part_placement(c), "cut an I tensor with tg_scatter_to");
}

static tg_status shard_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_unshard, NULL);
}

static const tg_sample shard_samples[] = {ANY_DIM, UNEVEN(2, TG_S(2, 5))};
const tg_op tg_op_shard = {
    TG_MAPPING("shard", "this rank's part; backward surrounds its gradient with zeros"), .infer = shard_infer,
    .forward = part_forward, .backward = tg_mapping_place_part, .vjp = shard_vjp, .jvp = tg_jvp_linear, TG_MAPPING_D,
    TG_SAMPLES(shard_samples)};

/* Returns this rank's part of x along dim d. x is R. Backward puts the gradient in the place of this part, with zeros
 * elsewhere, without communication. */
tg_tensor *tg_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c) {
    return TG_MAP(t, tg_op_shard, x, .comm = c, .dim = d);
}

/* Does the same along dim to.dim, for a shard with the layout of `to`. */
tg_tensor *tg_shard_as(tg_tape *t, tg_tensor *x, tg_placement to, tg_comm *c) {
    char is[24];
    if (tg_placement_shards(to))
        return TG_MAP(t, tg_op_shard, x, .comm = c, .dim = to.dim, .shard = to);
    tg_placement_name(to, is, sizeof is);
    if (tg_tape_check_with(t, &x, 1, "tg_shard_as") == TG_OK)
        tg_fail(t->ctx, TG_ERR_PLACEMENT, "tg_shard_as: `to` is %s, expected a shard such as TG_SHARD_ZIGZAG(0)", is);
    return tg_tape_inert(t, &x, 1);
}

static tg_status unshard_infer(tg_call *c) {
    TG_TRY(tg_mapping_join(c));
    return tg_mapping_convert(c, tg_mapping_input_placement(c), tg_at_p, "use the dim that is sharded");
}

static tg_status unshard_forward(tg_call *c) {
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), 0));
    return tg_collective_copy_place(c, tg_mapping_of(c), tg_array_of(c->out[0]), tg_array_of(c->input[0]), false);
}

static tg_status unshard_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_shard, NULL);
}

static const tg_sample unshard_samples[] = {ANY_DIM};
const tg_op tg_op_unshard = {
    TG_MAPPING("unshard", "this rank's part, with zeros elsewhere"), .infer = unshard_infer,
    .forward = unshard_forward, .backward = tg_mapping_keep_part, .vjp = unshard_vjp, .jvp = tg_jvp_linear,
    TG_MAPPING_D, TG_SAMPLES(unshard_samples)};
