/* The column-parallel linear layer (Megatron-Core's ColumnParallelLinear): each rank holds out / tp rows of the
 * weight. */
#include "tape/tape.h"

#include <tapegrad/megatron.h>

#include "parallel/tp/layers.h"

static tg_tensor *run(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *w) {
    const tg_parallel_linear *s = tg_parallel_linear_of(m);
    tg_linear_grad_opts o = {
        .size = sizeof o,
        .sequence_parallel = s->sp,
        .allreduce_dgrad = !s->sp && !s->expert_comm && !s->o.no_dgrad_reduce,
        .fused_wgrad = s->o.fused_wgrad,
        .deferred = s->deferred,
        .chunks = s->sp ? s->o.chunks : 1,
    };
    return tg_linear_with_grad_accumulation(t, x, w, tg_parallel_linear_bias(m), s->comm, &o);
}

const tg_linear_kind tg_column_linear = {
    .ops = TG_LINEAR_OPS("column_linear"), .mode = TG_LINEAR_COLUMN, .run = run};

tg_module *tg_nn_column_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_parallel_linear_opts *opts) {
    return tg_parallel_linear_new(p, &tg_column_linear, in, out, opts, "tg_nn_column_linear");
}
