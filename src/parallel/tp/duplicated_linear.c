/* The duplicated linear layer (Transformer Engine's Linear with parallel_mode "duplicated"): each rank holds the whole
 * weight and communicates nothing. */
#include "tape/tape.h"

#include "parallel/tp/layers.h"

static tg_tensor *run(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *w) {
    const tg_parallel_linear *s = tg_parallel_linear_of(m);
    tg_linear_grad_opts o = {.size = sizeof o, .fused_wgrad = s->o.fused_wgrad, .deferred = s->deferred, .chunks = 1};
    return tg_linear_with_grad_accumulation(t, x, w, tg_parallel_linear_bias(m), NULL, &o);
}

const tg_linear_kind tg_duplicated_linear = {
    .ops = TG_LINEAR_OPS("duplicated_linear"), .mode = TG_LINEAR_DUPLICATED, .run = run};
