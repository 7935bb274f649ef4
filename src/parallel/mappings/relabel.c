/* Mappings that move no data. They change the placement that the library assumes for a tensor, and leave each rank's
 * bytes as they are, with two exceptions: i_to_p scales the values, and the backward of r_to_i scales the gradient.
 * mapping.h explains the letters of placements, as in V -> P. */
#include "parallel/mappings/mapping_samples.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/mappings.h>

/* ---- as_partial: V -> P; and as_local, its conjugate: R -> V ---- */

static tg_status as_partial_infer(tg_call *c) {
    TG_TRY(tg_mapping_view(c));
    return tg_mapping_convert(c, tg_at_v, tg_at_p,
                              "a shard is not an addend of a sum: pass it to tg_as_opaque first, or sum over its dim");
}

static tg_status as_partial_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_as_local, NULL);
}

static const tg_sample as_partial_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.comm = NULL))};
const tg_op tg_op_as_partial = {
    TG_MAPPING("as_partial", "x, an addend of the sum over the group"), .infer = as_partial_infer,
    .backward = tg_mapping_pass, .vjp = as_partial_vjp, .jvp = tg_jvp_linear, TG_MAPPING_C,
    TG_SAMPLES(as_partial_samples)};

/* Returns a view of x, which is V: this rank's x becomes its addend of a sum over the ranks. */
tg_tensor *tg_as_partial(tg_tape *t, tg_tensor *x, tg_comm *c) { return TG_MAP(t, tg_op_as_partial, x, .comm = c); }

static tg_status as_local_infer(tg_call *c) {
    TG_TRY(tg_mapping_view(c));
    return tg_mapping_convert(c, tg_at_r, tg_at_v, "tg_copy_to_tp converts I to R");
}

static tg_status as_local_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_as_partial, NULL);
}

static const tg_sample as_local_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.comm = NULL))};
const tg_op tg_op_as_local = {
    TG_MAPPING("as_local", "x, each rank's own"), .infer = as_local_infer, .backward = tg_mapping_pass,
    .vjp = as_local_vjp, .jvp = tg_jvp_linear, TG_MAPPING_C, TG_SAMPLES(as_local_samples)};

/* ---- as_opaque: Vd -> V; and as_shard: V -> Vd ---- */

static tg_status as_opaque_infer(tg_call *c) {
    const tg_mapping_params *p = tg_mapping_of(c);
    TG_TRY(tg_mapping_view(c));
    tg_axis axis = tg_comm_axis(p->comm);
    tg_placement is = (unsigned)axis < TG_MAX_AXES ? tg_place_on(c->input[0], axis) : tg_at_v;
    return tg_mapping_convert(c, is.kind == TG_VARYING ? is : tg_at_v, tg_at_v,
                              "only a shard can become each rank's own tensor");
}

/* Passes the gradient on unchanged. The caller of vjp then gives it the placement of a gradient of x, with the order of
 * the axes if several of them shard the dim. */
static tg_status read_otherwise_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    (void)n;
    gin[0] = gout[0];
    return t->ctx->run.status;
}

static const tg_sample as_opaque_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.comm = NULL))};
const tg_op tg_op_as_opaque = {
    TG_MAPPING("as_opaque", "x, each rank's own tensor"), .infer = as_opaque_infer, .backward = tg_mapping_pass,
    .vjp = read_otherwise_vjp, .jvp = tg_jvp_linear, TG_MAPPING_C, TG_SAMPLES(as_opaque_samples)};

/* Returns a view of the shard x as V, a tensor of each rank's own, for computations on each rank alone. */
tg_tensor *tg_as_opaque(tg_tape *t, tg_tensor *x, tg_comm *c) { return TG_MAP(t, tg_op_as_opaque, x, .comm = c); }

static tg_status as_shard_infer(tg_call *c) {
    tg_mapping_params *p = tg_mapping_of(c);
    TG_TRY(tg_mapping_view(c));
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    if (p->shard.layout == TG_OPAQUE) p->shard.layout = TG_CONTIGUOUS;
    p->shard.kind = TG_VARYING;
    p->shard.dim = (int8_t)p->dim;
    return tg_mapping_convert(c, tg_at_v, p->shard, "only a tensor that is each rank's own can become a shard");
}

static const tg_sample as_shard_samples[] = {
    TG_M_SAMPLES_CUT(TG_M_OPTS(.dim = 1)),
    {.note = "a scalar", .ranks = 2, .params = TG_M_OPTS(.dim = 0), .n_in = 1, .input = {TG_S_SCALAR},
     .refused = TG_ERR_SHAPE}};
const tg_op tg_op_as_shard = {
    TG_MAPPING("as_shard", "x, a shard"), .infer = as_shard_infer, .backward = tg_mapping_pass,
    .vjp = read_otherwise_vjp, .jvp = tg_jvp_linear, TG_MAPPING_D, TG_SAMPLES(as_shard_samples)};

/* Returns a view of x, which is V and has the same shape on all ranks, as a contiguous shard along dim d. */
tg_tensor *tg_as_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c) {
    return TG_MAP(t, tg_op_as_shard, x, .comm = c, .dim = d);
}

/* ---- i_to_p: I -> P; and r_to_i: R -> I, its conjugate ---- */

static double share(const tg_call *c) { return 1.0 / tg_comm_size(tg_mapping_of(c)->comm); }

static tg_status i_to_p_infer(tg_call *c) {
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_mapping_like(c));
    return tg_mapping_convert(c, tg_at_i, tg_at_p, "only a tensor that is I can be split into equal addends");
}

static tg_status i_to_p_forward(tg_call *c) {
    return tg_op_map(c, TG_FN_affine, c->out[0], TG_T1(c->input[0]), 1, share(c), 0, false);
}

static tg_status i_to_p_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_r_to_i, NULL);
}

static const tg_sample i_to_p_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.comm = NULL))};
const tg_op tg_op_i_to_p = {
    TG_MAPPING("i_to_p", "x / n"), .infer = i_to_p_infer, .forward = i_to_p_forward, .backward = tg_mapping_pass,
    .vjp = i_to_p_vjp, .jvp = tg_jvp_linear, TG_MAPPING_C, TG_SAMPLES(i_to_p_samples)};

/* Returns x / n on each of the n ranks. The sum of these addends over the ranks is x. */
tg_tensor *tg_i_to_p(tg_tape *t, tg_tensor *x, tg_comm *c) { return TG_MAP(t, tg_op_i_to_p, x, .comm = c); }

static tg_status r_to_i_infer(tg_call *c) {
    TG_TRY(tg_mapping_view(c));
    return tg_mapping_convert(c, tg_at_r, tg_at_i, "an I tensor can be used as it is, without tg_r_to_i");
}

static tg_status r_to_i_backward(tg_call *c) { return tg_op_sum_to(c, 0, c->gout[0], share(c)); }

static tg_status r_to_i_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    return tg_mapping_vjp(t, n, gout, gin, &tg_op_i_to_p, NULL);
}

static const tg_sample r_to_i_samples[] = {TG_M_SAMPLES_LIKE(TG_M_OPTS(.comm = NULL))};
const tg_op tg_op_r_to_i = {
    TG_MAPPING("r_to_i", "x; its gradient / n"), .infer = r_to_i_infer, .backward = r_to_i_backward, .vjp = r_to_i_vjp,
    .jvp = tg_jvp_linear, TG_MAPPING_C, TG_SAMPLES(r_to_i_samples)};

/* Returns a view of x for a computation that is the same on all ranks. Backward gives each of the n ranks the gradient
 * divided by n. */
tg_tensor *tg_r_to_i(tg_tape *t, tg_tensor *x, tg_comm *c) { return TG_MAP(t, tg_op_r_to_i, x, .comm = c); }
