/* What the ops of linear layers that communicate during their products have in common; see linear_call.h. */
#include "parallel/mappings/mapping.h"
#include "parallel/tp/linear_ring.h"

#include <tapegrad/megatron.h>

static bool are_chunks(int chunks) { return chunks >= 1 && chunks <= TG_MOST_CHUNKS; }

/* Keeps a wrong number of chunks also on one rank, so that infer refuses it there too. */
tg_linear_params tg_linear_params_of(const tg_comm *comm, const tg_linear_grad_opts *o) {
    bool communicates = !comm || tg_comm_size(comm) > 1;
    return (tg_linear_params){
        .comm = (tg_comm *)comm,
        .sequence_parallel = o->sequence_parallel && communicates,
        .allreduce_dgrad = o->allreduce_dgrad && communicates,
        .fused = o->fused_wgrad,
        .chunks = communicates || !are_chunks(o->chunks) ? o->chunks : 1,
    };
}

/* ---- infer ---- */

tg_status tg_linear_check_options(tg_call *c, const tg_linear_params *p) {
    if (!are_chunks(p->chunks))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "chunks is %d, expected 1 to %d", p->chunks, TG_MOST_CHUNKS);
    if (p->fused && c->input[TG_LINEAR_W]->node && tg_needs(c, TG_LINEAR_W))
        return tg_call_fail(c, TG_ERR_STATE,
                            "fused_wgrad is set, but w is the result of an op and has no main_grad; expected a leaf, "
                            "or fused_wgrad false");
    return TG_OK;
}

static tg_status check_params(tg_call *c, const tg_linear_params *p) {
    TG_TRY(tg_linear_check_options(c, p));
    if (p->sequence_parallel && p->allreduce_dgrad)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "sequence_parallel and allreduce_dgrad are both set; the first reduce-scatters the "
                            "gradient of x, the second all-reduces it: set one of them");
    if (!p->comm && tg_linear_reduces(p))
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "the communicator is NULL, but sequence_parallel and allreduce_dgrad need one");
    if (tg_linear_reduces(p)) TG_TRY(tg_mapping_check(c));
    if (p->chunks > 1 && !p->sequence_parallel)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "chunks is %d, but without sequence_parallel no rows are gathered; set sequence_parallel, "
                            "or leave chunks at 1",
                            p->chunks);
    return TG_OK;
}

tg_status tg_linear_open_ring(tg_call *c, tg_linear_params *p, int ndim, const int64_t *shape) {
    int64_t elements = 1;
    if (p->chunks == 1) return TG_OK;
    int n = tg_comm_size(p->comm), me = tg_comm_rank(p->comm);
    if (shape[0] % p->chunks)
        return tg_call_fail(c, TG_ERR_SHAPE, "this rank has %s, expected a multiple of chunks, which is %d",
                            tg_count(shape[0], "row").text, p->chunks);
    for (int d = 0; d < ndim; d++) elements *= shape[d];
    p->ring_send = tg_tape_alloc(c->tape, 2 * (size_t)n * sizeof *p->ring_send);
    if (!p->ring_send) return c->ctx->run.status;
    p->ring_recv = p->ring_send + n;
    memset(p->ring_send, 0, 2 * (size_t)n * sizeof *p->ring_send);
    p->ring_send[(me + 1) % n] = p->ring_recv[(me - 1 + n) % n] = elements / p->chunks;
    return TG_OK;
}

/* Returns the placement of the rows of w on the communicator's axis. */
static tg_placement place_w(const tg_call *c, const tg_linear_params *p) {
    tg_placement w = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS};
    tg_axis axis = tg_comm_axis(p->comm);
    if ((unsigned)axis >= TG_MAX_AXES) return w;
    tg_placement is = tg_place_on(c->input[TG_LINEAR_W], axis);
    return tg_placement_shards(is) && is.dim == 0 ? is : w;
}

tg_placement tg_linear_place_y(const tg_call *c, const tg_linear_params *p) {
    tg_placement y = place_w(c, p);
    y.dim = (int8_t)(c->input[TG_LINEAR_X]->ndim - 1);
    return y;
}

static tg_status convert_placements(tg_call *c, const tg_linear_params *p) {
    if (!tg_linear_reduces(p)) return TG_OK;
    tg_placement w = place_w(c, p), y = tg_linear_place_y(c, p), x = p->sequence_parallel ? TG_SHARD(0) : TG_I;
    TG_TRY(tg_call_convert(c, TG_LINEAR_X, x, 0, y, p->comm,
                           p->sequence_parallel
                               ? "scatter the rows of x (tg_scatter_to_sp), or do not set sequence_parallel"
                               : "gather x (tg_gather_from), or do not set allreduce_dgrad"));
    TG_TRY(tg_call_convert(c, TG_LINEAR_W, w, 0, y, p->comm, "place w as a shard of its rows, dim 0 (tg_place)"));
    if (!c->input[TG_LINEAR_B]) return TG_OK;
    return tg_call_convert(c, TG_LINEAR_B, w, 0, y, p->comm, "place b like the rows of w, dim 0 (tg_place)");
}

tg_status tg_linear_call_infer(tg_call *c, tg_linear_params *p) {
    const tg_tensor *x = c->input[TG_LINEAR_X];
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_float(c, TG_LINEAR_X));
    TG_TRY(tg_need_same_dtype(c, TG_LINEAR_X, TG_LINEAR_W));
    if (c->input[TG_LINEAR_B]) TG_TRY(tg_need_same_dtype(c, TG_LINEAR_X, TG_LINEAR_B));
    TG_TRY(check_params(c, p));
    TG_TRY(tg_linear_shapes(c, p->sequence_parallel ? 2 : 1));
    TG_TRY(tg_linear_open_ring(c, p, x->ndim, x->shape));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[x->ndim - 1] = c->input[TG_LINEAR_W]->shape[0];
    if (tg_linear_ranks(p) > 1 && __builtin_mul_overflow(shape[0], tg_linear_ranks(p), &shape[0]))
        return tg_call_fail(c, TG_ERR_SHAPE, "the number of rows of all ranks is too large for 64 bits");
    TG_TRY(convert_placements(c, p));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

/* ---- Rows of all ranks ---- */

tg_tensor *tg_gather_rows(tg_tape *t, const char *buffer, tg_tensor *x, tg_comm *comm, const void *site) {
    tg_shape shape = {.ndim = x->ndim};
    memcpy(shape.dim, x->shape, x->ndim * sizeof *shape.dim);
    shape.dim[0] *= tg_comm_size(comm);
    tg_tensor *all = tg_lease(t, buffer, (tg_dtype)x->dtype, shape);
    if (!tg_ok(t->ctx)) return all;
    tg_comm_start(comm, &(tg_collective_args){.kind = TG_ALL_GATHER, .dst = all, .src = x, .site = site});
    return tg_ok(t->ctx) ? all : tg_inert(t->ctx);
}

tg_status tg_linear_all_rows(tg_call *c, const tg_linear_params *p, tg_tensor **x) {
    if (tg_linear_ranks(p) == 1) return TG_OK;
    TG_TRY(tg_op_dense(c, x));
    *x = tg_gather_rows(c->tape, "mpu", *x, p->comm, tg_call_site(c));
    return c->ctx->run.status;
}

void tg_linear_drop_rows(const tg_call *c, const tg_linear_params *p, const tg_tensor *x) {
    if (tg_linear_ranks(p) > 1) tg_storage_discard(x->storage, c->op->name, tg_call_site(c));
}

/* ---- The product ---- */

static tg_status product_of_chunk(const tg_ring_work *w, tg_tensor *rows, int64_t first) {
    tg_tensor *y = tg_ring_rows(w, w->out, first, rows->shape[0]);
    TG_TRY(w->c->ctx->run.status);
    return tg_linear_rows(rows, w->c->input[TG_LINEAR_W], w->bias, TG_ACT_NONE, y, NULL);
}

tg_status tg_linear_product(tg_call *c, const tg_linear_params *p, tg_tensor *x) {
    tg_ring_work w = {.c = c, .p = p, .out = c->out[0], .bias = c->input[TG_LINEAR_B]};
    if (w.bias) TG_TRY(tg_op_dense(c, &w.bias));
    if (tg_linear_rings(p)) {
        TG_TRY(tg_op_dense(c, &x));
        return tg_ring_gather(&w, x, product_of_chunk);
    }
    TG_TRY(tg_linear_all_rows(c, p, &x));
    TG_TRY(tg_storage_need(x->storage, x));
    TG_TRY(tg_linear_rows(x, c->input[TG_LINEAR_W], w.bias, TG_ACT_NONE, c->out[0], NULL));
    tg_linear_drop_rows(c, p, x);
    return TG_OK;
}

/* ---- Gradients ---- */

/* Computes this rank's addend of a chunk of the gradient of x. */
static tg_status addend_of_gx(const tg_ring_work *w, tg_tensor *rows, int64_t first) {
    tg_tensor *gy = tg_ring_rows(w, w->in, first, rows->shape[0]);
    TG_TRY(w->c->ctx->run.status);
    return tg_linear_dgrad(gy, w->c->input[TG_LINEAR_W], rows, false);
}

tg_status tg_linear_ring_dgrad(tg_call *c, const tg_linear_params *p, tg_tensor *gx, bool add) {
    tg_ring_work w = {.c = c, .p = p, .in = c->gout[0], .out = gx, .add = add};
    TG_TRY(c->ctx->run.status);
    return tg_ring_scatter(&w, c->input[TG_LINEAR_X], addend_of_gx, tg_ring_put);
}

tg_tensor *tg_linear_part(tg_call *c) {
    const tg_tensor *gy = c->gout[0], *w = c->input[TG_LINEAR_W];
    int64_t shape[TG_MAX_DIMS];
    memcpy(shape, gy->shape, gy->ndim * sizeof *shape);
    shape[gy->ndim - 1] = w->shape[1];
    tg_tensor *part = tg_call_temp(c, (tg_dtype)c->input[TG_LINEAR_X]->dtype, gy->ndim, shape);
    return tg_ok(c->ctx) && tg_linear_dgrad(gy, w, part, false) == TG_OK ? part : tg_inert(c->ctx);
}

tg_status tg_linear_reduce(tg_call *c, const tg_linear_params *p, tg_tensor *part, tg_tensor **sum) {
    const tg_tensor *x = c->input[TG_LINEAR_X];
    *sum = part;
    if (p->sequence_parallel) *sum = tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_comm_start(p->comm, &(tg_collective_args){.kind = p->sequence_parallel ? TG_REDUCE_SCATTER : TG_ALL_REDUCE,
                                                 .dst = *sum,
                                                 .src = part,
                                                 .op = TG_REDUCE_SUM,
                                                 .site = tg_call_site(c)});
    return c->ctx->run.status;
}

bool tg_linear_wgrad_is_due(tg_call *c, tg_tensor *x, tg_tensor *gy, tg_comm *comm) {
    tg_wgrads *list = c->tape->deferral.list ? c->tape->deferral.list : c->state;
    if (!c->gin_mode[TG_LINEAR_W]) return false;
    return !(list && tg_wgrads_take(list, c, TG_LINEAR_W, x, gy, comm));
}

tg_status tg_linear_add_wgrad(tg_call *c, const tg_tensor *x, const tg_tensor *gy) {
    const tg_tensor *gw = tg_call_gin(c, TG_LINEAR_W);
    TG_TRY(c->ctx->run.status);
    return tg_linear_wgrad(gy, x, gw, tg_adds(c, TG_LINEAR_W));
}

/* ---- Derived from other ops ---- */

tg_tensor *tg_linear_compose(tg_tape *t, const tg_linear_params *p, tg_tensor *x, tg_tensor *w, tg_tensor *b) {
    if (p->sequence_parallel) x = tg_gather_from_sp(t, x, p->comm, NULL);
    if (p->allreduce_dgrad) x = tg_copy_to_tp(t, x, p->comm);
    return tg_linear(t, x, w, b);
}

int64_t tg_linear_call_flops(const tg_node *n) {
    return tg_flops(2 * tg_numel(tg_node_output(n, 0)), tg_dim(tg_node_input(n, TG_LINEAR_X), -1));
}
