/* Linear layers of tensor parallelism, on one rank. */
#include <tapegrad/mappings.h>

#include "bad/bad.h"

static void linear(bad_world *b) {
    tg_comm *c = tg_comm_self_new(b->ctx);
    tg_linear_grad_opts *both = TG_LINEAR_GRAD(.sequence_parallel = true, .allreduce_dgrad = true);
    tg_linear_grad_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_tensor *w = b->x; /* [2, 3] */
#define LINEAR(symbol)                                                                                            \
    do {                                                                                                          \
        OP(symbol, symbol(t, x, w, NULL, c, NULL));                                                               \
        OP(symbol, symbol(t, b->x, x, NULL, c, NULL));                                                            \
        INERT(symbol, SHAPE, "expected as many", symbol(b->t, b->cube, w, NULL, c, NULL));                        \
        INERT(symbol, SHAPE, "expected b of [2]", symbol(b->t, b->x, w, b->v, c, NULL));                          \
        INERT(symbol, DTYPE, "expected", symbol(b->t, b->ids, w, NULL, c, NULL));                                 \
        INERT(symbol, ARGUMENT, "choose one", symbol(b->t, b->x, w, NULL, NULL, both));                           \
        INERT(symbol, ARGUMENT, "the communicator is NULL",                                                       \
              symbol(b->t, b->x, w, NULL, NULL, TG_LINEAR_GRAD(.allreduce_dgrad = true)));                        \
        INERT(symbol, ARGUMENT, "size is 0", symbol(b->t, b->x, w, NULL, c, &zero));                              \
        INERT(symbol, ARGUMENT, "this library knows", symbol(b->t, b->x, w, NULL, c, &later));                    \
    } while (0)
    LINEAR(tg_linear_with_grad_accumulation);
    LINEAR(tg_linear_with_frozen_weight);
    INERT(tg_linear_with_grad_accumulation, STATE, "expected a leaf, or no fusion",
          tg_linear_with_grad_accumulation(b->t, b->x, b->r, NULL, c, TG_LINEAR_GRAD(.fused_wgrad = true)));
    INERT(tg_linear_with_frozen_weight, ARGUMENT, "no gradient to fuse",
          tg_linear_with_frozen_weight(b->t, b->x, w, NULL, c, TG_LINEAR_GRAD(.fused_wgrad = true)));
    tg_comm_free(c);
}

static void waiting(bad_world *b) {
    QUIET(tg_wgrads_new, !tg_wgrads_new(NULL, 1));
    GIVES(tg_wgrads_new, ARGUMENT, "limit -2", !tg_wgrads_new(b->ctx, -2));
    QUIET(tg_wgrads_free, (tg_wgrads_free(NULL), true));
    QUIET(tg_wgrads_count, tg_wgrads_count(NULL) == 0);
    QUIET(tg_wgrads_run, tg_wgrads_run(NULL) == TG_ERR_ARGUMENT);
}

void bad_layers(bad_world *b) {
    linear(b);
    waiting(b);
}
