/* Mappings of sequence parallelism: gather and reduce-scatter of rows, in equal or given parts. mapping.h explains the
 * letters of placements, as in V0 -> R. */
#include "base/options.h"
#include "parallel/mappings/mapping_samples.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/megatron.h>

/* Fills *p from the options. gathers: the op is tg_gather_from_sp. If the tape is NULL, leaves *p zero: recording the
 * op then fails. */
static tg_status params_of(const tg_tape *t, tg_comm *c, const tg_sp_opts *given, bool gathers, const char *who,
                           tg_mapping_params *p) {
    tg_sp_opts o;
    *p = (tg_mapping_params){0};
    if (!t) return TG_OK;
    TG_TRY(tg_comm_note_missed(c, tg_options(t->ctx, &o, &tg_sp_opts_struct, given, who)));
    *p = (tg_mapping_params){.comm = c, .invariant = o.invariant, .splits = o.splits, .buffer = o.buffer};
    if (!o.invariant || gathers) return TG_OK;
    return tg_comm_note_missed(c, tg_fail(t->ctx, TG_ERR_ARGUMENT,
                                          "%s: invariant is set, but only tg_gather_from_sp uses it; leave it false",
                                          who));
}

#define SPLITS(...) (const int64_t[]){__VA_ARGS__}
#define ROWS(...) TG_M_OPTS(.dim = 0, __VA_ARGS__)
/* Samples of ops over rows. For an op that joins rows they hold the input of rank 0; the test makes the inputs of the
 * other ranks. */
#define SAMPLES_OF_ROWS(...)                                                                                    \
    TG_M_SAMPLE(2, "two ranks", ROWS(__VA_ARGS__), TG_S(4, 3)),                                                 \
    TG_M_SAMPLE(3, "three ranks", ROWS(__VA_ARGS__), TG_S(6, 2, 3)),                                            \
    TG_M_SAMPLE(4, "transposed", ROWS(__VA_ARGS__), TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3)),                       \
    TG_M_SAMPLE(2, "strided", ROWS(__VA_ARGS__), TG_S_AS(TG_SAMPLE_STRIDED, 4)),                                \
    TG_M_SAMPLE(2, "expanded", ROWS(__VA_ARGS__), TG_S_AS(TG_SAMPLE_EXPANDED, 2, 3)),                           \
    TG_M_SAMPLE(2, "nothing", ROWS(__VA_ARGS__), TG_S(0, 4)),                                                   \
    TG_M_REFUSED("no communicator", ROWS(__VA_ARGS__), TG_ERR_ARGUMENT, TG_S(4, 3)),                            \
    {.note = "a scalar", .ranks = 2, .params = ROWS(__VA_ARGS__), .n_in = 1, .input = {TG_S_SCALAR},            \
     .refused = TG_ERR_SHAPE}

/* ---- GatherFromSequenceParallelRegion: V0 -> R, or I ---- */

static tg_status gather_from_sp_infer(tg_call *c) {
    bool invariant = tg_mapping_of(c)->invariant;
    TG_TRY(tg_mapping_join(c));
    return tg_mapping_convert(c, tg_mapping_input_placement(c), invariant ? tg_at_i : tg_at_r,
                              "if another dim is sharded, use tg_gather_from or tg_all_gather");
}

static tg_status gather_from_sp_forward(tg_call *c) {
    return tg_collective_copy_gather(c, tg_mapping_of(c), c->out[0], c->input[0]);
}

static tg_status gather_from_sp_backward(tg_call *c) {
    return tg_mapping_of(c)->invariant ? tg_mapping_keep_part(c) : tg_mapping_reduce_scatter(c);
}

static tg_status gather_from_sp_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    const tg_mapping_params *p = tg_node_params_of(n);
    return tg_mapping_vjp(t, n, gout, gin, p->invariant ? &tg_op_scatter_to : &tg_op_reduce_scatter, NULL);
}

static const tg_sample gather_from_sp_samples[] = {
    SAMPLES_OF_ROWS(.invariant = false),
    TG_M_SAMPLE(2, "invariant", ROWS(.invariant = true), TG_S(2, 3)),
    TG_M_SAMPLE(3, "given parts", ROWS(.splits = SPLITS(2, 0, 3)), TG_S(2, 3)),
    TG_M_SAMPLE(2, "given parts, invariant", ROWS(.splits = SPLITS(1, 4), .invariant = true), TG_S(1, 3)),
    {.note = "fewer than stated", .ranks = 2, .params = ROWS(.splits = SPLITS(3, 3)), .n_in = 1, .input = {TG_S(2, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "a negative part", .ranks = 2, .params = ROWS(.splits = SPLITS(2, -1)), .n_in = 1, .input = {TG_S(2, 3)},
     .refused = TG_ERR_ARGUMENT},
};

static const tg_field gather_from_sp_fields[] = {
    TG_ARG_AS(tg_mapping_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
    TG_ARG(tg_mapping_params, invariant, BOOL, "The result is I instead of R."),
    TG_ARG(tg_mapping_params, splits, LIST, "Number of rows of each rank; equal if not given.",
           .length_at = offsetof(tg_mapping_params, n_splits)),
    TG_ARG(tg_mapping_params, buffer, TEXT, "Name of the scratch buffer for the result."),
};

const tg_op tg_op_gather_from_sp = {
    TG_MAPPING("GatherFromSequenceParallelRegion", "all ranks' rows"), .alias = "gather_from_sp", .collective = true,
    .infer = gather_from_sp_infer, .forward = gather_from_sp_forward, .backward = gather_from_sp_backward,
    .vjp = gather_from_sp_vjp, .jvp = tg_jvp_linear, TG_FIELDS(gather_from_sp_fields),
    TG_SAMPLES(gather_from_sp_samples)};

/* x [s/n, ..], this rank's rows -> [s, ..]. If opts.splits is given, rank r has splits[r] rows. The result is R, and
 * backward reduce-scatters. With opts.invariant the result is I, and backward keeps this rank's rows. opts may be
 * NULL. */
tg_tensor *tg_gather_from_sp(tg_tape *t, tg_tensor *x, tg_comm *c, const tg_sp_opts *opts) {
    tg_mapping_params p;
    if (params_of(t, c, opts, true, "tg_gather_from_sp: the options", &p) != TG_OK) return tg_inert(t->ctx);
    return tg_mapping_record(t, &tg_op_gather_from_sp, &p, x, TG_SITE);
}

/* ---- ReduceScatterToSequenceParallelRegion: P -> V0 ---- */

static tg_status reduce_scatter_to_sp_infer(tg_call *c) {
    TG_TRY(tg_mapping_cut(c));
    return tg_mapping_convert(c, tg_at_p, tg_mapping_part_placement(c),
                              "to cut a tensor that all ranks hold, use tg_scatter_to_sp (I) or tg_shard (R)");
}

static tg_status reduce_scatter_to_sp_forward(tg_call *c) {
    return tg_collective_copy_reduce_scatter(c, tg_mapping_of(c), c->out[0], c->input[0]);
}

static tg_status reduce_scatter_to_sp_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_all_gather, NULL);
}

static const tg_sample reduce_scatter_to_sp_samples[] = {
    SAMPLES_OF_ROWS(.invariant = false),
    TG_M_SAMPLE(3, "given parts", ROWS(.splits = SPLITS(1, 4, 0)), TG_S(5, 3)),
    {.note = "not divisible", .ranks = 3, .params = ROWS(.splits = NULL), .n_in = 1, .input = {TG_S(4, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "more than stated", .ranks = 2, .params = ROWS(.splits = SPLITS(2, 2)), .n_in = 1, .input = {TG_S(5, 3)},
     .refused = TG_ERR_SHAPE},
};

static const tg_field reduce_scatter_to_sp_fields[] = {
    TG_ARG_AS(tg_mapping_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
    TG_ARG(tg_mapping_params, splits, LIST, "Number of rows of each rank; equal if not given.",
           .length_at = offsetof(tg_mapping_params, n_splits)),
    TG_ARG(tg_mapping_params, buffer, TEXT, "Name of the scratch buffer for the result."),
};

const tg_op tg_op_reduce_scatter_to_sp = {
    TG_MAPPING("ReduceScatterToSequenceParallelRegion", "this rank's rows of the sum over the group"),
    .alias = "reduce_scatter_to_sp", .collective = true, .infer = reduce_scatter_to_sp_infer,
    .forward = reduce_scatter_to_sp_forward, .backward = tg_mapping_gather, .vjp = reduce_scatter_to_sp_vjp,
    .jvp = tg_jvp_linear, TG_FIELDS(reduce_scatter_to_sp_fields), TG_SAMPLES(reduce_scatter_to_sp_samples)};

/* x [s, ..], this rank's addend of a sum -> this rank's rows of the sum: [s/n, ..], or splits[r] rows on rank r if
 * opts.splits is given. Backward gathers. opts may be NULL. */
tg_tensor *tg_reduce_scatter_to_sp(tg_tape *t, tg_tensor *x, tg_comm *c, const tg_sp_opts *opts) {
    tg_mapping_params p;
    if (params_of(t, c, opts, false, "tg_reduce_scatter_to_sp: the options", &p) != TG_OK) return tg_inert(t->ctx);
    return tg_mapping_record(t, &tg_op_reduce_scatter_to_sp, &p, x, TG_SITE);
}
