/* The op linear_reduce_scatter: the product of a row layer under sequence parallelism, and the reduce-scatter of its
 * result. With several chunks the sums go around the ranks while products run; backward gathers the gradient of the
 * result in the same way. */
#include "base/options.h"
#include "ops/common/derive.h"
#include "parallel/mappings/mapping.h"
#include "parallel/tp/linear_ring.h"

#include <tapegrad/megatron.h>

/* x [s, .., in/n] and w [out, in/n] have all rows, and this rank's columns; y [s/n, .., out] has this rank's rows. */

/* ---- infer ---- */

static tg_status check_params(tg_call *c) {
    const tg_linear_params *p = c->params;
    const tg_tensor *x = c->input[TG_LINEAR_X];
    TG_TRY(tg_mapping_check(c));
    int64_t n = tg_comm_size(p->comm);
    if (x->shape[0] % n)
        return tg_call_fail(c, TG_ERR_SHAPE, "x has %s, expected a multiple of the %lld ranks of group \"%s\"",
                            tg_count(x->shape[0], "row").text, (long long)n, tg_comm_name(p->comm));
    return tg_linear_check_options(c, p);
}

/* States the placements of the product and the reduce-scatter: the communicator's axis shards what is summed. */
static tg_status state_placements(tg_call *c) {
    const tg_linear_params *p = c->params;
    const tg_tensor *x = c->input[TG_LINEAR_X];
    int last = x->ndim - 1;
    for (int d = 0; d < last; d++) TG_TRY(tg_call_role(c, TG_LINEAR_X, d, d));
    TG_TRY(tg_call_role(c, TG_LINEAR_X, last, TG_SUMMED));
    TG_TRY(tg_call_role(c, TG_LINEAR_W, 0, last));
    TG_TRY(tg_call_role(c, TG_LINEAR_W, 1, TG_SUMMED));
    TG_TRY(tg_call_linear(c, 1u << TG_LINEAR_X));
    TG_TRY(tg_call_linear(c, 1u << TG_LINEAR_W));
    c->dims = 1;
    TG_TRY(tg_call_convert(c, TG_LINEAR_X, TG_SHARD((int8_t)last), 0, TG_SHARD(0), p->comm,
                           "take x as a column layer gives it, sharded on its last dim"));
    return tg_call_convert(c, TG_LINEAR_W, TG_SHARD(1), 0, TG_SHARD(0), p->comm,
                           "place w as a shard of its columns, dim 1 (tg_place)");
}

static tg_status scatter_infer(tg_call *c) {
    const tg_tensor *x = c->input[TG_LINEAR_X], *w = c->input[TG_LINEAR_W];
    tg_linear_params *p = c->params;
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_float(c, TG_LINEAR_X));
    TG_TRY(tg_need_same_dtype(c, TG_LINEAR_X, TG_LINEAR_W));
    TG_TRY(tg_linear_shapes(c, 2));
    TG_TRY(check_params(c));
    if (!tg_needs(c, TG_LINEAR_W)) c->saves_in &= ~(1u << TG_LINEAR_X);
    if (!tg_needs(c, TG_LINEAR_X)) c->saves_in &= ~(1u << TG_LINEAR_W);
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[0] /= tg_comm_size(p->comm);
    shape[x->ndim - 1] = w->shape[0];
    TG_TRY(tg_linear_open_ring(c, p, x->ndim, shape));
    TG_TRY(state_placements(c));
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

/* ---- forward ---- */

/* Computes this rank's addend of a chunk of y. */
static tg_status addend_of_y(const tg_ring_work *w, tg_tensor *rows, int64_t first) {
    tg_tensor *x = tg_ring_rows(w, w->in, first, rows->shape[0]);
    TG_TRY(w->c->ctx->run.status);
    return tg_linear_rows(x, w->c->input[TG_LINEAR_W], NULL, TG_ACT_NONE, rows, NULL);
}

/* Computes the product of all rows, and starts the reduce-scatter. */
static tg_status scatter_whole(tg_call *c) {
    const tg_linear_params *p = c->params;
    const tg_tensor *x = c->input[TG_LINEAR_X], *y = c->out[0];
    int64_t shape[TG_MAX_DIMS];
    memcpy(shape, y->shape, y->ndim * sizeof *shape);
    shape[0] = x->shape[0];
    tg_tensor *part = tg_call_temp(c, (tg_dtype)y->dtype, y->ndim, shape);
    TG_TRY(c->ctx->run.status);
    TG_TRY(tg_linear_rows(x, c->input[TG_LINEAR_W], NULL, TG_ACT_NONE, part, NULL));
    tg_comm_start(
        p->comm,
        &(tg_collective_args){
            .kind = TG_REDUCE_SCATTER, .dst = c->out[0], .src = part, .op = TG_REDUCE_SUM, .site = tg_call_site(c)});
    return c->ctx->run.status;
}

static tg_status scatter_forward(tg_call *c) {
    const tg_linear_params *p = c->params;
    tg_ring_work w = {.c = c, .p = p, .in = c->input[TG_LINEAR_X], .out = c->out[0]};
    return p->chunks > 1 ? tg_ring_scatter(&w, c->out[0], addend_of_y, tg_ring_put) : scatter_whole(c);
}

/* ---- backward ---- */

/* Gets a chunk of the rows of gy. Copies them to w->all, for the gradient of w, and computes the gradient of these rows
 * of x in w->out. Each of the two tensors may be NULL; its step is then left out. */
static tg_status use_gy(const tg_ring_work *w, tg_tensor *rows, int64_t first) {
    if (w->all) {
        tg_tensor *to = tg_ring_rows(w, w->all, first, rows->shape[0]);
        TG_TRY(w->c->ctx->run.status);
        TG_TRY(tg_op_copy(w->c, tg_array_of(to), tg_array_of(rows), false));
    }
    if (!w->out) return TG_OK;
    tg_tensor *gx = tg_ring_rows(w, w->out, first, rows->shape[0]);
    TG_TRY(w->c->ctx->run.status);
    return tg_linear_dgrad(rows, w->c->input[TG_LINEAR_W], gx, w->add);
}

/* Gathers the rows of gy of all ranks in w->all, and computes the gradient of x if w->out is not NULL. */
static tg_status gather_whole(const tg_ring_work *w, tg_tensor *gy) {
    tg_comm_start(w->p->comm,
                  &(tg_collective_args){.kind = TG_ALL_GATHER, .dst = w->all, .src = gy, .site = tg_call_site(w->c)});
    TG_TRY(w->c->ctx->run.status);
    TG_TRY(tg_storage_need(w->all->storage, w->all));
    return w->out ? tg_linear_dgrad(w->all, w->c->input[TG_LINEAR_W], w->out, w->add) : TG_OK;
}

/* Gathers gy, and computes the gradient of x, with several chunks while they arrive. Then computes or defers that of
 * w. */
static tg_status scatter_backward(tg_call *c) {
    const tg_linear_params *p = c->params;
    tg_tensor *gy = c->gout[0];
    bool front = c->gin_mode[TG_LINEAR_X], wants = c->gin_mode[TG_LINEAR_W];
    tg_ring_work w = {.c = c, .p = p, .add = front && tg_adds(c, TG_LINEAR_X)};
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_op_dense(c, &gy));
    memcpy(shape, gy->shape, gy->ndim * sizeof *shape);
    shape[0] *= tg_comm_size(p->comm);
    if (wants || p->chunks == 1) w.all = tg_call_temp(c, (tg_dtype)gy->dtype, gy->ndim, shape);
    if (front) w.out = tg_call_gin(c, TG_LINEAR_X);
    TG_TRY(c->ctx->run.status);
    TG_TRY(p->chunks > 1 ? tg_ring_gather(&w, gy, use_gy) : gather_whole(&w, gy));
    bool now = wants && tg_linear_wgrad_is_due(c, c->input[TG_LINEAR_X], w.all, NULL);
    TG_TRY(c->ctx->run.status);
    return now ? tg_linear_add_wgrad(c, c->input[TG_LINEAR_X], w.all) : TG_OK;
}

/* Records the product and the reduce-scatter as separate ops. */
static tg_status scatter_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_linear_params *p = tg_node_params(n);
    tg_tensor *const *in = tg_node_in(n);
    out[0] = tg_reduce_scatter_to_sp(t, tg_linear(t, in[TG_LINEAR_X], in[TG_LINEAR_W], NULL), p->comm, NULL);
    return TG_OK;
}

TG_COMPOSED(scatter)

static int64_t scatter_flops(const tg_node *n) {
    const tg_tensor *x = tg_node_input(n, TG_LINEAR_X), *w = tg_node_input(n, TG_LINEAR_W);
    return tg_flops(2 * tg_numel(x), tg_dim(w, 0));
}

/* ---- The op ---- */

static const tg_linear_params plain = {.chunks = 1}, two = {.chunks = 2}, four = {.chunks = 4};

#define FROZEN(...)                                                                                                    \
    { .shape = TG_S_SHAPE(__VA_ARGS__), .frozen = true }
/* A sample on that many ranks; the inputs are those of a rank. */
#define SAMPLE(ranks_, p_, note_, ...)                                                                                 \
    { .note = note_, .ranks = ranks_, .params = &(p_), .n_in = 2, __VA_ARGS__ }
static const tg_sample samples[] = {
    SAMPLE(2, plain, "rows", .input = {TG_S(4, 3), TG_S(5, 3)}),
    SAMPLE(3, plain, "leading dims", .input = {TG_S(3, 2, 4), TG_S(5, 4)}),
    SAMPLE(2, plain, "transposed", .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 2, 3), TG_S(5, 3)}),
    SAMPLE(2, two, "two chunks", .input = {TG_S(8, 3), TG_S(5, 3)}),
    SAMPLE(4, two, "two chunks on four ranks", .input = {TG_S(8, 2, 3), TG_S(2, 3)}),
    SAMPLE(2, four, "transposed chunks", .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 8, 2, 3), TG_S(5, 3)}),
    SAMPLE(2, two, "frozen weight", .input = {TG_S(4, 3), FROZEN(5, 3)}),
    SAMPLE(2, two, "frozen input", .input = {FROZEN(4, 3), TG_S(5, 3)}),
    SAMPLE(2, plain, "rows that ranks do not divide", .input = {TG_S(5, 3), TG_S(5, 3)}, .refused = TG_ERR_SHAPE),
    SAMPLE(2, four, "rows that chunks do not divide", .input = {TG_S(4, 3), TG_S(5, 3)}, .refused = TG_ERR_SHAPE),
    SAMPLE(1, plain, "columns differ", .input = {TG_S(4, 3), TG_S(3, 4)}, .refused = TG_ERR_SHAPE),
    SAMPLE(1, plain, "no communicator", .input = {TG_S(4, 3), TG_S(5, 3)}, .refused = TG_ERR_ARGUMENT),
};

static const tg_field scatter_fields[] = {
    TG_ARG_AS(tg_linear_params, comm, "c", POINTER, "The ranks that call the op together.", .of = "tg_comm",
              .required = true),
    TG_ARG_AS(tg_linear_params, fused, "fused_wgrad", BOOL, "w must be a leaf if it needs a gradient."),
    TG_ARG(tg_linear_params, chunks, INT, "Number of messages that carry a rank's rows; 1: one collective."),
};

const tg_op tg_op_linear_reduce_scatter = {
    .size = sizeof(tg_op),
    .name = "linear_reduce_scatter",
    .formula = "this rank's rows of x w^T, summed over the group",
    .inputs = "x w",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(tg_linear_params),
    .saves_in = 1u << TG_LINEAR_X | 1u << TG_LINEAR_W,
    .passes = 1u << TG_LINEAR_X | 1u << TG_LINEAR_W,
    .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true,
    .collective = true,
    .infer = scatter_infer,
    .forward = scatter_forward,
    .backward = scatter_backward,
    .vjp = scatter_vjp,
    .jvp = scatter_jvp,
    .flops = scatter_flops,
    TG_FIELDS(scatter_fields),
    .preset = &plain,
    TG_SAMPLES(samples),
};

/* ---- The public function ---- */

static tg_status read_options(tg_tape *t, tg_tensor *const xw[2], tg_comm *c, const tg_linear_grad_opts *given,
                              tg_linear_grad_opts *o) {
    static const char *const who = "tg_linear_reduce_scatter";
    TG_TRY(tg_tape_check_with(t, xw, 2, who));
    TG_TRY(tg_options(t->ctx, o, &tg_linear_grad_opts_struct, given, who));
    if (o->sequence_parallel || o->allreduce_dgrad)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "%s: %s is set, but the op always reduce-scatters its result; leave it false", who,
                       o->sequence_parallel ? "sequence_parallel" : "allreduce_dgrad");
    if (!c) return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: the communicator is NULL", who);
    return tg_wgrads_check(o->deferred, t, "tg_linear_reduce_scatter: opts.deferred");
}

tg_tensor *tg_linear_reduce_scatter(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_comm *c,
                                    const tg_linear_grad_opts *opts) {
    tg_linear_grad_opts o;
    tg_tensor *const xw[] = {x, w};
    if (tg_comm_note_missed(c, read_options(t, xw, c, opts, &o)) != TG_OK) return tg_tape_inert(t, xw, 2);
    const tg_linear_params p = tg_linear_params_of(c, &o);
    tg_tensor *y = tg_inert(t->ctx);
    tg_apply(t, &tg_op_linear_reduce_scatter, &p, xw, 2, &y, 1, o.deferred ? tg_wgrads_keep(o.deferred) : NULL,
             tg_wgrads_drop, TG_SITE);
    return y;
}
