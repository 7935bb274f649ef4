/* The row-parallel linear layer (Megatron-Core's RowParallelLinear): each rank holds in / tp columns of the weight
 * and computes an addend of the output, which is a sum over ranks. */
#include "tape/tape.h"

#include <tapegrad/megatron.h>

#include "parallel/tp/layers.h"

/* Returns whether the sum over ranks uses symmetric memory: the layer has such memory, and no gradient is recorded. */
static bool sums_in_symmetric(const tg_parallel_linear *s, const tg_tape *t, const tg_tensor *x, const tg_tensor *w) {
    return s->symmetric && !(t->grad && (tg_requires_grad(x) || tg_requires_grad(w)));
}

static tg_tensor *symmetric_product(const tg_parallel_linear *s, tg_tape *t, tg_tensor *x, tg_tensor *w) {
    size_t rows = (size_t)(tg_numel(x) / s->local_in); /* of x, whose shape the op checks */
    size_t bytes = rows * (size_t)s->out * tg_dtype_size(tg_dtype_of(x));
    tg_symmetric *buffer = tg_symmetric_of_size(s->symmetric, bytes);
    if (!buffer) return tg_inert(t->ctx);
    return tg_linear_all_reduce(t, x, w, s->comm, TG_LINEAR_ALL_REDUCE(.kind = s->symmetric_kind, .buffer = buffer));
}

/* Computes the output without a bias: the sum over the ranks (this rank's rows of it under sequence parallelism), or
 * this rank's addend of it in an expert. */
static tg_tensor *product(const tg_parallel_linear *s, tg_tape *t, tg_tensor *x, tg_tensor *w, tg_linear_grad_opts *o) {
    if (s->sp && s->o.chunks > 1) {
        o->chunks = s->o.chunks;
        return tg_linear_reduce_scatter(t, x, w, s->comm, o);
    }
    if (sums_in_symmetric(s, t, x, w)) return symmetric_product(s, t, x, w);
    tg_tensor *y = tg_linear_with_grad_accumulation(t, x, w, NULL, s->comm, o);
    if (s->expert_comm) return y;
    return s->sp ? tg_reduce_scatter_to_sp(t, y, s->comm, NULL) : tg_reduce_from_tp(t, y, s->comm);
}

/* Adds the bias after the reduction, so that the sum over ranks contains it once. */
static tg_tensor *run(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *w) {
    const tg_parallel_linear *s = tg_parallel_linear_of(m);
    tg_tensor *b = tg_parallel_linear_bias(m);
    bool alone = tg_comm_size(s->comm) == 1;
    if (s->o.input_is_whole) x = tg_scatter_to_tp(t, x, s->comm);
    tg_linear_grad_opts o = {TG_LINEAR_GRAD_DEFAULTS, .fused_wgrad = s->o.fused_wgrad, .deferred = s->deferred};
    if (alone) return tg_linear_with_grad_accumulation(t, x, w, b, s->comm, &o);
    tg_tensor *y = product(s, t, x, w, &o);
    return b && !s->expert_comm ? tg_add(t, y, b) : y;
}

const tg_linear_kind tg_row_linear = {.ops = TG_LINEAR_OPS("row_linear"), .mode = TG_LINEAR_ROW, .run = run};

tg_module *tg_nn_row_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_parallel_linear_opts *opts) {
    return tg_parallel_linear_new(p, &tg_row_linear, in, out, opts, "tg_nn_row_linear");
}
