/* The linear layer of tensor parallelism. Its backward overlaps the communication of the input gradient with the
 * product of the weight gradient (Megatron-Core's LinearWithGradAccumulationAndAsyncCommunication; Shoeybi et al.,
 * arXiv 1909.08053; sequence parallelism: Korthikanti et al., arXiv 2205.05198). */
#include <tapegrad/megatron.h>

#include "base/options.h"
#include "ops/common/derive.h"
#include "ops/linear.h"
#include "ops/common/nn_op.h"
#include "comm/comm.h"
#include "parallel/tp/wgrads.h"

typedef struct linear_params {
    tg_comm *comm; /* NULL: no communication */
    bool sequence_parallel, allreduce_dgrad, fused;
} linear_params;

/* The op computes y = x @ w^T + b, where x is [.., in], w [out, in], b [out] or absent, and y [.., out]. Under sequence
 * parallelism x has this rank's rows of dim 0, and y has the rows of all ranks. */

/* Returns over how many ranks the rows of x are divided. */
static int64_t ranks(const linear_params *p) { return p->sequence_parallel ? tg_comm_size(p->comm) : 1; }

static tg_status check_params(tg_call *c) {
    const linear_params *p = c->params;
    const tg_tensor *w = c->input[1];
    if (p->sequence_parallel && p->allreduce_dgrad)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "sequence_parallel and allreduce_dgrad are both set; the first reduce-scatters the "
                            "gradient of x, the second all-reduces it: set one of them");
    if (!p->comm && (p->sequence_parallel || p->allreduce_dgrad))
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "the communicator is NULL, but sequence_parallel and allreduce_dgrad need one");
    if (p->fused && w->node && tg_needs(c, 1))
        return tg_call_fail(c, TG_ERR_STATE,
                            "fused_wgrad is set, but w is the result of an op and has no main_grad; expected a leaf, "
                            "or fused_wgrad false");
    return TG_OK;
}

/* States the placements of inputs and output on the communicator's axis. They are those of two separate ops: a gather
 * of x to R (with sequence_parallel) or tg_copy_to_tp (with allreduce_dgrad), and then tg_linear. */
static tg_status convert_placements(tg_call *c) {
    const linear_params *p = c->params;
    if (!p->sequence_parallel && !p->allreduce_dgrad) return TG_OK;
    tg_axis axis = tg_comm_axis(p->comm);
    tg_placement w = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS}, y;
    if ((unsigned)axis < TG_MAX_AXES) {
        tg_placement is = tg_place_on(c->input[1], axis);
        if (is.kind == TG_VARYING && is.layout != TG_OPAQUE && is.dim == 0) w = is;
    }
    y = w;
    y.dim = (int8_t)(c->input[0]->ndim - 1);
    tg_placement x = p->sequence_parallel ? TG_SHARD(0) : TG_I;
    TG_TRY(tg_call_convert(c, 0, x, 0, y, p->comm,
                           p->sequence_parallel
                               ? "scatter the rows of x (tg_scatter_to_sp), or do not set sequence_parallel"
                               : "gather x (tg_gather_from), or do not set allreduce_dgrad"));
    TG_TRY(tg_call_convert(c, 1, w, 0, y, p->comm, "place w as a shard of its rows, dim 0 (tg_place)"));
    if (!c->input[2]) return TG_OK;
    return tg_call_convert(c, 2, w, 0, y, p->comm, "place b like the rows of w, dim 0 (tg_place)");
}

static tg_status linear_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    if (c->input[2]) TG_TRY(tg_need_same_dtype(c, 0, 2));
    TG_TRY(check_params(c));
    TG_TRY(tg_linear_shapes(c, ((const linear_params *)c->params)->sequence_parallel ? 2 : 1));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[x->ndim - 1] = c->input[1]->shape[0];
    if (ranks(c->params) > 1) shape[0] *= ranks(c->params);
    if (!tg_needs(c, 1)) c->saves_in &= ~1u;
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    TG_TRY(convert_placements(c));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

tg_tensor *tg_gather_rows(tg_tape *t, const char *buffer, tg_tensor *x, tg_comm *comm, const void *site) {
    tg_shape shape = {.ndim = x->ndim};
    memcpy(shape.dim, x->shape, x->ndim * sizeof *shape.dim);
    shape.dim[0] *= tg_comm_size(comm);
    tg_tensor *all = tg_lease(t, buffer, (tg_dtype)x->dtype, shape);
    if (!tg_ok(t->ctx)) return all;
    tg_comm_start(comm, &(tg_collective_args){.kind = TG_ALL_GATHER, .dst = all, .src = x, .site = site});
    return tg_ok(t->ctx) ? all : tg_inert(t->ctx);
}

/* Under sequence parallelism, starts a gather of the rows of all ranks, and sets *x to the result, which is in flight.
 * It lies in a buffer that drop_rows releases. Otherwise leaves *x as it is. */
static tg_status all_rows(tg_call *c, tg_tensor **x) {
    const linear_params *p = c->params;
    if (ranks(p) == 1) return TG_OK;
    TG_TRY(tg_op_dense(c, x));
    *x = tg_gather_rows(c->tape, "mpu", *x, p->comm, tg_call_site(c));
    return c->ctx->run.status;
}

static void drop_rows(tg_call *c, const tg_tensor *x) {
    if (ranks(c->params) > 1) tg_storage_discard(x->storage, c->op->name, tg_call_site(c));
}

static tg_status linear_forward(tg_call *c) {
    tg_tensor *x = c->input[0], *b = c->input[2];
    if (b) TG_TRY(tg_op_dense(c, &b));
    TG_TRY(all_rows(c, &x));
    TG_TRY(tg_storage_need(x->storage, x));
    TG_TRY(tg_linear_rows(x, c->input[1], b, TG_ACT_NONE, c->out[0], NULL));
    drop_rows(c, x);
    return TG_OK;
}

/* Starts the reduction over ranks of the input gradient, to which this rank contributes `part`, and makes its result
 * the gradient of input 0 without waiting for it. */
static tg_status reduce_dgrad(tg_call *c, tg_tensor *part) {
    const linear_params *p = c->params;
    const tg_tensor *x = c->input[0];
    tg_tensor *g = part;
    if (p->sequence_parallel) g = tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_comm_start(p->comm, &(tg_collective_args){.kind = p->sequence_parallel ? TG_REDUCE_SCATTER : TG_ALL_REDUCE,
                                                 .dst = g,
                                                 .src = part,
                                                 .op = TG_REDUCE_SUM,
                                                 .site = tg_call_site(c)});
    TG_TRY(c->ctx->run.status);
    return tg_call_in_flight(c, 0, g, NULL);
}

/* Computes gx = gy @ w. If a reduction over ranks must follow, sets *part to gx, this rank's contribution. Otherwise
 * writes or adds gx straight to the gradient of x, and sets *part to NULL. */
static tg_status dgrad(tg_call *c, tg_tensor **part) {
    const linear_params *p = c->params;
    const tg_tensor *gy = c->gout[0], *w = c->input[1];
    int64_t shape[TG_MAX_DIMS];
    *part = NULL;
    if (!p->sequence_parallel && !p->allreduce_dgrad) {
        const tg_tensor *gx = tg_call_gin(c, 0);
        return tg_ok(c->ctx) ? tg_linear_dgrad(gy, w, gx, tg_adds(c, 0)) : c->ctx->run.status;
    }
    memcpy(shape, gy->shape, gy->ndim * sizeof *shape);
    shape[gy->ndim - 1] = w->shape[1];
    *part = tg_call_temp(c, (tg_dtype)c->input[0]->dtype, gy->ndim, shape);
    return tg_ok(c->ctx) ? tg_linear_dgrad(gy, w, *part, false) : c->ctx->run.status;
}

/* Overlaps communication with products: the gather of x runs during the product of the input gradient, and the
 * reduction of the input gradient during the product of the weight gradient. The product of the weight gradient adds
 * straight into the accumulated gradient if the weight is a leaf. now: this call computes that product, because w needs
 * a gradient and no list takes the product. */
static tg_status linear_backward(tg_call *c) {
    const linear_params *p = c->params;
    tg_tensor *x = c->input[0], *gy = c->gout[0], *part = NULL;
    tg_wgrads *list = c->tape->deferral.list ? c->tape->deferral.list : c->state;
    bool now = c->gin_mode[1] && !(list && tg_wgrads_take(list, c, 1, x, gy, p->sequence_parallel ? p->comm : NULL));
    TG_TRY(c->ctx->run.status);
    if (now) TG_TRY(all_rows(c, &x));
    if (c->gin_mode[0]) TG_TRY(dgrad(c, &part));
    if (now) TG_TRY(tg_storage_need(x->storage, x));
    if (part) TG_TRY(reduce_dgrad(c, part));
    if (now) {
        const tg_tensor *gw = tg_call_gin(c, 1);
        TG_TRY(c->ctx->run.status);
        TG_TRY(tg_linear_wgrad(gy, x, gw, tg_adds(c, 1)));
        drop_rows(c, x);
    }
    return c->input[2] ? tg_op_sum_to(c, 2, gy, 1) : TG_OK;
}

/* Records the layer as separate ops: the gather or tg_copy_to_tp, if set, and then tg_linear. */
static tg_status linear_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const linear_params *p = tg_node_params(n);
    tg_tensor *x = tg_node_input(n, 0);
    if (p->sequence_parallel) x = tg_gather_from_sp(t, x, p->comm, NULL);
    if (p->allreduce_dgrad) x = tg_copy_to_tp(t, x, p->comm);
    out[0] = tg_linear(t, x, tg_node_input(n, 1), tg_node_input(n, 2));
    return TG_OK;
}

TG_COMPOSED(linear)

static int64_t linear_flops(const tg_node *n) {
    return tg_flops(2 * tg_numel(tg_node_output(n, 0)), tg_dim(tg_node_input(n, 1), 1));
}

static const linear_params plain = {0}, fused = {.fused = true},
                           both = {.sequence_parallel = true, .allreduce_dgrad = true},
                           alone = {.allreduce_dgrad = true};

#define SAMPLE(p_, note_, ...)                                                                                         \
    { .note = note_, .params = &(p_), .n_in = 3, __VA_ARGS__ }
static const tg_sample samples[] = {
    SAMPLE(plain, "rows", .input = {TG_S(4, 3), TG_S(5, 3), TG_S(5)}),
    SAMPLE(plain, "no bias", .input = {TG_S(4, 3), TG_S(2, 3), TG_S_ABSENT}),
    SAMPLE(plain, "leading dims", .input = {TG_S(2, 3, 4), TG_S(5, 4), TG_S(5)}),
    SAMPLE(plain, "one vector", .input = {TG_S(4), TG_S(3, 4), TG_S(3)}),
    SAMPLE(
        plain, "no unit strides",
        .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 5, 4), TG_S_AS(TG_SAMPLE_STRIDED,
                                                                                                 5)}),
    SAMPLE(plain, "transposed",
           .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 4), TG_S(5)}),
    SAMPLE(plain, "frozen weight", .input = {TG_S(4, 3), {.shape = TG_S_SHAPE(5, 3), .frozen = true}, TG_S(5)}),
    SAMPLE(plain, "frozen input", .input = {{.shape = TG_S_SHAPE(4, 3), .frozen = true}, TG_S(5, 3), TG_S(5)}),
    SAMPLE(plain, "in = out = 1", .input = {TG_S(1, 1), TG_S(1, 1), TG_S(1)}),
    SAMPLE(plain, "in = 0 leaves the bias", .input = {TG_S(2, 0), TG_S(3, 0), TG_S(3)}),
    SAMPLE(plain, "no rows", .input = {TG_S(0, 3), TG_S(2, 3), TG_S(2)}),
    SAMPLE(plain, "rows differ", .input = {TG_S(4, 3), TG_S(3, 4), TG_S_ABSENT}, .refused = TG_ERR_SHAPE),
    SAMPLE(plain, "bias of in", .input = {TG_S(4, 3), TG_S(5, 3), TG_S(3)}, .refused = TG_ERR_SHAPE),
    SAMPLE(plain, "scalar x", .input = {TG_S_SCALAR, TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_SHAPE),
    SAMPLE(plain, "integer w", .input = {TG_S(2, 3), TG_S_INDEX(3, 2, 3), TG_S_ABSENT}, .refused = TG_ERR_DTYPE),
    SAMPLE(both, "reduced in two ways", .input = {TG_S(4, 3), TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(alone, "reduced over no ranks", .input = {TG_S(4, 3), TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(fused, "512 x 768 to 3072", .input = {TG_S(512, 768), TG_S(3072, 768), TG_S(3072)}, .bench = true),
};

static const tg_field linear_fields[] = {
    TG_ARG_AS(linear_params, comm, "c", POINTER, "The ranks that call the op together.", .of = "tg_comm"),
    TG_ARG(linear_params, sequence_parallel, BOOL, "x has only this rank's rows of dim 0."),
    TG_ARG(linear_params, allreduce_dgrad, BOOL, "Backward sums the gradient of x over the ranks."),
    TG_ARG_AS(linear_params, fused, "fused_wgrad", BOOL, "w must be a leaf if it needs a gradient."),
};

const tg_op tg_op_LinearWithGradAccumulationAndAsyncCommunication = {
    .size = sizeof(tg_op),
    .name = "LinearWithGradAccumulationAndAsyncCommunication",
    .alias = "linear_with_grad_accumulation",
    .formula = "x w^T + b; backward overlaps communication and products",
    .inputs = "x w b",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(linear_params),
    .saves_in = 3,
    .optional = 4,
    .passes = 7,
    .family = TG_FAMILY_LINEAR,
    .sums_f32 = true,
    .collective = true,
    .infer = linear_infer,
    .forward = linear_forward,
    .backward = linear_backward,
    .vjp = linear_vjp,
    .jvp = linear_jvp,
    .flops = linear_flops,
    TG_FIELDS(linear_fields),
    TG_SAMPLES(samples),
};

/* Returns the params of a call. On a group of one rank there is no communication. */
static linear_params params_of(const tg_comm *comm, const tg_linear_grad_opts *o) {
    bool communicates = !comm || tg_comm_size(comm) > 1;
    return (linear_params){
        .comm = (tg_comm *)comm,
        .sequence_parallel = o->sequence_parallel && communicates,
        .allreduce_dgrad = o->allreduce_dgrad && communicates,
        .fused = o->fused_wgrad,
    };
}

/* Reads and checks the options. who: the public function. frozen: that is tg_linear_with_frozen_weight. */
static tg_status options(tg_tape *t, tg_tensor *const xw[2], const tg_linear_grad_opts *given, bool frozen,
                         const char *who, tg_linear_grad_opts *o) {
    TG_TRY(tg_tape_check_with(t, xw, 2, who));
    TG_TRY(tg_options(t->ctx, o, &tg_linear_grad_opts_struct, given, who));
    if (frozen && (o->deferred || o->fused_wgrad))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: %s is set, but a frozen weight has no gradient", who,
                       o->deferred ? "deferred" : "fused_wgrad");
    return TG_OK;
}

static tg_tensor *record(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *comm,
                         const tg_linear_grad_opts *given, bool frozen, const char *who, const void *site) {
    tg_linear_grad_opts o;
    tg_tensor *const xw[] = {x, w};
    if (tg_comm_note_missed(comm, options(t, xw, given, frozen, who, &o)) != TG_OK) return tg_tape_inert(t, xw, 2);
    if (frozen && tg_requires_grad(w)) w = tg_detach(t, w);
    linear_params p = params_of(comm, &o);
    tg_tensor *y = tg_inert(t->ctx);
    tg_apply(t, &tg_op_LinearWithGradAccumulationAndAsyncCommunication, &p, (tg_tensor *const[]){x, w, b}, 3, &y, 1,
             o.deferred ? tg_wgrads_keep(o.deferred) : NULL, tg_wgrads_drop, site);
    return y;
}

/* Records the linear layer x @ w^T + b, whose input gradient is reduced over ranks during the product of the weight
 * gradient (tensor_parallel.h). The node saves x only if w needs a gradient, and w only if x needs one. Of x it saves
 * only this rank's rows. */
tg_tensor *tg_linear_with_grad_accumulation(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *comm,
                                            const tg_linear_grad_opts *opts) {
    return record(t, x, w, b, comm, opts, false, "tg_linear_with_grad_accumulation", TG_SITE);
}

tg_tensor *tg_linear_with_frozen_weight(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *comm,
                                        const tg_linear_grad_opts *opts) {
    return record(t, x, w, b, comm, opts, true, "tg_linear_with_frozen_weight", TG_SITE);
}
