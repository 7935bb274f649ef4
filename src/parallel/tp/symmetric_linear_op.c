/* The op linear_all_reduce: the product of a row layer in a model that only runs forward, and the sum over the ranks.
 * The addends lie in symmetric memory (tg_symmetric), and are summed in one step, in two, or by the transport, as
 * NVIDIA's TensorRT-LLM and PyTorch's symmetric memory do. Without such memory the sum is one all-reduce. On transports
 * that sum in the order of ranks, all ways give the same bits. */
#include "base/options.h"
#include "ops/common/nn_op.h"
#include "parallel/mappings/mapping.h"
#include "parallel/tp/linear_call.h"

typedef struct symmetric_params {
    tg_comm *comm; /* first member, as in the params of every op that communicates */
    tg_symmetric_ar kind;
    tg_symmetric *buffer; /* NULL: none */
} symmetric_params;

/* The largest addend, in bytes, that is summed in one step: each rank then reads (n - 1) times as much. */
enum { ONE_SHOT_BYTES = 256 * 1024 };

/* ---- infer ---- */

static tg_status symmetric_infer(tg_call *c) {
    const symmetric_params *p = c->params;
    const tg_tensor *x = c->input[TG_LINEAR_X], *w = c->input[TG_LINEAR_W];
    int64_t shape[TG_MAX_DIMS];
    int last = x->ndim - 1;
    TG_TRY(tg_need_float(c, TG_LINEAR_X));
    TG_TRY(tg_need_same_dtype(c, TG_LINEAR_X, TG_LINEAR_W));
    TG_TRY(tg_linear_shapes(c, 1));
    TG_TRY(tg_mapping_check(c));
    if ((unsigned)p->kind > TG_AR_MULTIMEM)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "kind is %d, expected TG_AR_NONE to TG_AR_MULTIMEM", (int)p->kind);
    if (tg_call_asks_gradient(c, TG_LINEAR_X) || tg_call_asks_gradient(c, TG_LINEAR_W))
        return tg_call_fail(c, TG_ERR_STATE,
                            "x or w needs a gradient, but the op only runs forward; use tg_linear and "
                            "tg_reduce_from_tp, or switch gradients off (tg_tape_set_grad_mode)");
    for (int d = 0; d < last; d++) TG_TRY(tg_call_role(c, TG_LINEAR_X, d, d));
    TG_TRY(tg_call_role(c, TG_LINEAR_W, 0, last));
    TG_TRY(tg_call_convert(c, TG_LINEAR_X, TG_SHARD((int8_t)last), 0, TG_I, p->comm,
                           "take x as a column layer gives it, sharded on its last dim"));
    TG_TRY(tg_call_convert(c, TG_LINEAR_W, TG_SHARD(1), 0, TG_I, p->comm,
                           "place w as a shard of its columns, dim 1 (tg_place)"));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[last] = w->shape[0];
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

/* ---- forward ---- */

/* Returns memory for the addend in the symmetric buffer. Returns NULL if the sum is an ordinary all-reduce: TG_AR_NONE
 * or one rank, no buffer, or one that is too small or in use. */
static tg_tensor *take(tg_call *c) {
    const symmetric_params *p = c->params;
    tg_tensor *y = c->out[0], *part;
    const tg_dtype dtype = (tg_dtype)y->dtype;
    const tg_shape shape = tg_shape_of(y);
    if (p->kind == TG_AR_NONE || !p->buffer || tg_comm_size(p->comm) == 1) return NULL;
    return tg_symmetric_take(p->buffer, c->tape, &dtype, &shape, 1, &part) ? part : NULL;
}

static tg_status start(tg_call *c, tg_collective kind, tg_tensor *dst, tg_tensor *src) {
    const symmetric_params *p = c->params;
    tg_comm_start(p->comm, &(tg_collective_args){
                               .kind = kind, .dst = dst, .src = src, .op = TG_REDUCE_SUM, .site = tg_call_site(c)});
    return c->ctx->run.status;
}

/* Each rank reads the addends of all ranks, and sums them in the order of ranks, 16-bit ones in float32. */
static tg_status one_shot(tg_call *c, tg_tensor *part) {
    tg_tensor *y = c->out[0];
    int n = tg_comm_size(((const symmetric_params *)c->params)->comm);
    tg_dtype dtype = (tg_dtype)y->dtype, wide = tg_accumulate_dtype(dtype);
    const int64_t elements = n * y->numel;
    tg_tensor *all = tg_call_temp(c, dtype, 1, &elements);
    tg_tensor *sum = wide == dtype ? y : tg_call_temp(c, wide, y->ndim, y->shape);
    TG_TRY(c->ctx->run.status);
    TG_TRY(start(c, TG_ALL_GATHER, all, part));
    TG_TRY(tg_storage_need(all->storage, all));
    for (int r = 0; r < n; r++) {
        const tg_tensor *addend = tg_call_view_of(c, all, r * y->numel, y->ndim, y->shape, y->stride);
        TG_TRY(c->ctx->run.status);
        TG_TRY(tg_op_map(c, TG_FN_id, sum, TG_T1(addend), 1, 0, 0, r > 0));
    }
    return sum == y ? TG_OK : tg_op_copy(c, tg_array_of(y), tg_array_of(sum), false);
}

/* Each rank sums a part of the elements, and then gets the others. */
static tg_status two_shot(tg_call *c, tg_tensor *part) {
    tg_tensor *y = c->out[0];
    const int64_t own = y->numel / tg_comm_size(((const symmetric_params *)c->params)->comm);
    tg_tensor *mine = tg_call_temp(c, (tg_dtype)y->dtype, 1, &own);
    TG_TRY(c->ctx->run.status);
    TG_TRY(start(c, TG_REDUCE_SCATTER, mine, part));
    TG_TRY(tg_storage_need(mine->storage, mine));
    return start(c, TG_ALL_GATHER, y, mine);
}

/* The transport sums in the symmetric memory of all ranks, with NCCL by the switch if that can. */
static tg_status in_place(tg_call *c, tg_tensor *part) {
    TG_TRY(start(c, TG_ALL_REDUCE, part, part));
    TG_TRY(tg_storage_need(part->storage, part));
    return tg_op_copy(c, tg_array_of(c->out[0]), tg_array_of(part), false);
}

static tg_status sum_in_window(tg_call *c, tg_tensor *part) {
    const symmetric_params *p = c->params;
    size_t bytes = (size_t)part->numel * tg_dtype_size((tg_dtype)part->dtype);
    if (p->kind == TG_AR_MULTIMEM) return in_place(c, part);
    if (p->kind == TG_AR_ONE_SHOT && bytes <= ONE_SHOT_BYTES) return one_shot(c, part);
    return part->numel % tg_comm_size(p->comm) ? in_place(c, part) : two_shot(c, part);
}

/* Computes the addend in symmetric memory, or in the result if there is none, and sums it over the ranks. */
static tg_status symmetric_forward(tg_call *c) {
    tg_tensor *window = take(c), *part = window ? window : c->out[0];
    TG_TRY(c->ctx->run.status);
    TG_TRY(tg_linear_rows(c->input[TG_LINEAR_X], c->input[TG_LINEAR_W], NULL, TG_ACT_NONE, part, NULL));
    if (!window) return start(c, TG_ALL_REDUCE, part, part);
    TG_TRY(sum_in_window(c, window));
    tg_storage_discard(window->storage, c->op->name, tg_call_site(c));
    return TG_OK;
}

static int64_t symmetric_flops(const tg_node *n) {
    return tg_flops(2 * tg_numel(tg_node_output(n, 0)), tg_dim(tg_node_input(n, TG_LINEAR_X), -1));
}

/* ---- The op ---- */

static const symmetric_params plain = {.kind = TG_AR_NONE}, one = {.kind = TG_AR_ONE_SHOT}, wrong = {.kind = 4};

#define FROZEN(...)                                                                                                    \
    { .shape = TG_S_SHAPE(__VA_ARGS__), .frozen = true }
/* A sample on that many ranks; the inputs are those of a rank. */
#define SAMPLE(ranks_, p_, note_, ...)                                                                                 \
    { .note = note_, .ranks = ranks_, .params = &(p_), .n_in = 2, __VA_ARGS__ }
static const tg_sample samples[] = {
    SAMPLE(2, plain, "rows", .input = {FROZEN(4, 3), FROZEN(5, 3)}),
    SAMPLE(3, one, "no memory for one shot", .input = {FROZEN(3, 2, 4), FROZEN(5, 4)}),
    SAMPLE(2, plain, "one vector", .input = {FROZEN(4), FROZEN(3, 4)}),
    SAMPLE(2, plain, "a gradient", .input = {TG_S(4, 3), FROZEN(5, 3)}, .refused = TG_ERR_STATE),
    SAMPLE(2, wrong, "an unknown kind", .input = {FROZEN(4, 3), FROZEN(5, 3)}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(1, plain, "columns differ", .input = {FROZEN(4, 3), FROZEN(3, 4)}, .refused = TG_ERR_SHAPE),
    SAMPLE(1, plain, "no communicator", .input = {FROZEN(4, 3), FROZEN(5, 3)}, .refused = TG_ERR_ARGUMENT),
};

static const tg_field symmetric_fields[] = {
    TG_ARG_AS(symmetric_params, comm, "c", POINTER, "The ranks that call the op together.", .of = "tg_comm",
              .required = true),
    TG_ARG(symmetric_params, kind, INT,
           "How the addends are summed: 0 one all-reduce, 1 two-shot, 2 one-shot, "
           "3 multimem."),
    TG_ARG_AS(symmetric_params, buffer, "buffer", POINTER, "Symmetric memory for the addends.", .of = "tg_symmetric"),
};

const tg_op tg_op_linear_all_reduce = {
    .size = sizeof(tg_op),
    .name = "linear_all_reduce",
    .formula = "x w^T, summed over the group; no gradients",
    .inputs = "x w",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(symmetric_params),
    .family = TG_FAMILY_CUSTOM,
    .collective = true,
    .infer = symmetric_infer,
    .forward = symmetric_forward,
    .flops = symmetric_flops,
    TG_FIELDS(symmetric_fields),
    .preset = &plain,
    TG_SAMPLES(samples),
};

tg_tensor *tg_linear_all_reduce(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_comm *c,
                                const tg_linear_all_reduce_opts *opts) {
    tg_linear_all_reduce_opts o;
    tg_tensor *const xw[] = {x, w};
    tg_status s = tg_tape_check_with(t, xw, 2, "tg_linear_all_reduce");
    if (s == TG_OK) s = tg_options(t->ctx, &o, &tg_linear_all_reduce_opts_struct, opts, "tg_linear_all_reduce");
    if (tg_comm_note_missed(c, s) != TG_OK) return tg_tape_inert(t, xw, 2);
    return tg_record(t, &tg_op_linear_all_reduce, &(symmetric_params){c, o.kind, o.buffer}, xw, 2, TG_SITE);
}
