/* Linear layers of tensor parallelism, on one rank. */
#include <tapegrad/io.h>
#include <tapegrad/mappings.h>
#include <tapegrad/optim.h>

#include "bad/bad.h"

static void linear(bad_world *b) {
    tg_comm *c = tg_comm_self_new(b->ctx);
    tg_linear_grad_opts *both = TG_LINEAR_GRAD(.sequence_parallel = true, .allreduce_dgrad = true);
    tg_linear_grad_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_tensor *w = b->x; /* [2, 3] */
#define LINEAR(symbol)                                                                                                 \
    do {                                                                                                               \
        OP(symbol, symbol(t, x, w, NULL, c, NULL));                                                                    \
        OP(symbol, symbol(t, b->x, x, NULL, c, NULL));                                                                 \
        INERT(symbol, SHAPE, "expected as many", symbol(b->t, b->cube, w, NULL, c, NULL));                             \
        INERT(symbol, SHAPE, "expected b of [2]", symbol(b->t, b->x, w, b->v, c, NULL));                               \
        INERT(symbol, DTYPE, "expected", symbol(b->t, b->ids, w, NULL, c, NULL));                                      \
        INERT(symbol, ARGUMENT, "choose one", symbol(b->t, b->x, w, NULL, NULL, both));                                \
        INERT(symbol, ARGUMENT, "the communicator is NULL",                                                            \
              symbol(b->t, b->x, w, NULL, NULL, TG_LINEAR_GRAD(.allreduce_dgrad = true)));                             \
        INERT(symbol, ARGUMENT, "size is 0", symbol(b->t, b->x, w, NULL, c, &zero));                                   \
        INERT(symbol, ARGUMENT, "this library knows", symbol(b->t, b->x, w, NULL, c, &later));                         \
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

/* ---- Attributes ---- */

static void attributes(bad_world *b, const tg_parallel *p) {
    int dim = 7, stride = 7;
    QUIET(tg_tp_attributes, !tg_tp_attributes(NULL, &dim, &stride) && dim == -1 && stride == 1);
    QUIET(tg_tp_attributes, !tg_tp_attributes(b->w, NULL, NULL));
    DEAD_QUIET(tg_tp_attributes, !tg_tp_attributes(x, &dim, NULL));
    QUIET(tg_tp_duplicate_p, !tg_tp_duplicate_p(NULL, b->w) && !tg_tp_duplicate_p(p, NULL));
    DEAD_QUIET(tg_tp_duplicate_p, !tg_tp_duplicate_p(p, x));
}

/* ---- Sharded state ---- */

static void adding_shards(bad_world *b, const tg_parallel *p) {
    tg_shards *s = tg_shards_new(p);
    tg_module *m = tg_nn_linear(b->ctx, 2, 2, true, 1), *far = tg_nn_linear(b->far, 2, 2, true, 1);
    tg_tensor *params[2] = {tg_module_param(m, 0, NULL), tg_module_param(m, 1, NULL)};
    tg_optim *o = tg_sgd_new(b->ctx, params, 2, TG_SGD(.lr = 1, .momentum = 0.5));
    char longest[600];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    tg_shards_add_tensor(s, "w", b->w);
    QUIET(tg_shards_add_tensor, tg_shards_add_tensor(NULL, "k", b->w) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_add_tensor, ARGUMENT, "the key is NULL", tg_shards_add_tensor(s, NULL, b->w));
    FAILS(tg_shards_add_tensor, ARGUMENT, "the key is empty", tg_shards_add_tensor(s, "", b->w));
    FAILS(tg_shards_add_tensor, ARGUMENT, "too long", tg_shards_add_tensor(s, longest, b->w));
    FAILS(tg_shards_add_tensor, STATE, "'w' is there already", tg_shards_add_tensor(s, "w", b->x));
    FAILS(tg_shards_add_tensor, STATE, "owned by a tape", tg_shards_add_tensor(s, "r", b->r));
    FAILS(tg_shards_add_tensor, ARGUMENT, "the tensor is NULL", tg_shards_add_tensor(s, "n", NULL));
    FAILS(tg_shards_add_tensor, HANDLE, "another context", tg_shards_add_tensor(s, "f", b->foreign));
    DEAD_STATUS(tg_shards_add_tensor, tg_shards_add_tensor(s, "d", x));
    QUIET(tg_shards_add_module, tg_shards_add_module(NULL, "m", m) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_add_module, ARGUMENT, "the module is NULL", tg_shards_add_module(s, "m", NULL));
    FAILS(tg_shards_add_module, HANDLE, "another context", tg_shards_add_module(s, "m", far));
    FAILS(tg_shards_add_module, ARGUMENT, "expected at most", tg_shards_add_module(s, longest, m));
    QUIET(tg_shards_add_optim, tg_shards_add_optim(NULL, "o", o) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_add_optim, ARGUMENT, "the optimiser is NULL", tg_shards_add_optim(s, "o", NULL));
    FAILS(tg_shards_add_optim, ARGUMENT, "expected at most", tg_shards_add_optim(s, longest, o));
    tg_shards_add_optim(s, "o", o);
    FAILS(tg_shards_add_optim, STATE, "'o.steps' is there already", tg_shards_add_optim(s, "o", o));
    QUIET(tg_shards_set_rows, tg_shards_set_rows(NULL, "w", 1) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_set_rows, ARGUMENT, "there is no key '(NULL)'", tg_shards_set_rows(s, NULL, 1));
    FAILS(tg_shards_set_rows, ARGUMENT, "there is no key 'v'", tg_shards_set_rows(s, "v", 1));
    FAILS(tg_shards_set_rows, ARGUMENT, "3 rows of 'w', expected 1 to 2", tg_shards_set_rows(s, "w", 3));
    FAILS(tg_shards_set_rows, ARGUMENT, "0 rows of 'w'", tg_shards_set_rows(s, "w", 0));
    tg_shards_free(s);
    tg_optim_free(o);
    tg_module_free(m);
    tg_module_free(far);
}

static void shards(bad_world *b, const tg_parallel *p) {
    tg_shards *s = tg_shards_new(p), *gone = tg_shards_new(p);
    tg_shard_info info = TG_SHARD_INFO(), zero = {0}, later = {.size = sizeof later + 8};
    tg_tensor *x = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2));
    tg_shards_add_tensor(s, "w", b->w);
    tg_shards_add_tensor(gone, "x", x);
    tg_drop(x);
    QUIET(tg_shards_new, !tg_shards_new(NULL));
    QUIET(tg_shards_free, (tg_shards_free(NULL), true));
    QUIET(tg_shards_count, tg_shards_count(NULL) == 0 && tg_shards_count(s) == 1);
    QUIET(tg_shards_at, tg_shards_at(NULL, 0, &info) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_at, ARGUMENT, "out is NULL", tg_shards_at(s, 0, NULL));
    FAILS(tg_shards_at, ARGUMENT, "size is 0", tg_shards_at(s, 0, &zero));
    FAILS(tg_shards_at, ARGUMENT, "this library knows", tg_shards_at(s, 0, &later));
    FAILS(tg_shards_at, ARGUMENT, "tensor -1 of 1", tg_shards_at(s, -1, &info));
    FAILS(tg_shards_at, ARGUMENT, "tensor 1 of 1", tg_shards_at(s, 1, &info));
    FAILS(tg_shards_at, HANDLE, "'x' was dropped", tg_shards_at(gone, 0, &info));
    QUIET(tg_shards_save, tg_shards_save(NULL, b->dir) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_save, ARGUMENT, "dir is NULL", tg_shards_save(s, NULL));
    FAILS(tg_shards_save, ARGUMENT, "dir is empty", tg_shards_save(s, ""));
    FAILS(tg_shards_save, HANDLE, "'x' was dropped", tg_shards_save(gone, b->dir));
    FAILS(tg_shards_save, IO, "/nonexistent", tg_shards_save(s, "/nonexistent/dir"));
    QUIET(tg_shards_load, tg_shards_load(NULL, b->dir) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_load, ARGUMENT, "dir is NULL", tg_shards_load(s, NULL));
    FAILS(tg_shards_load, ARGUMENT, "dir is empty", tg_shards_load(s, ""));
    FAILS(tg_shards_load, HANDLE, "'x' was dropped", tg_shards_load(gone, b->dir));
    FAILS(tg_shards_load, IO, "state-00000.safetensors", tg_shards_load(s, b->dir));
    tg_shards_free(s);
    tg_shards_free(gone);
}

void bad_layers(bad_world *b) {
    tg_comm *self = tg_comm_self_new(b->ctx);
    tg_parallel *p = tg_parallel_new(self, NULL);
    linear(b);
    waiting(b);
    attributes(b, p);
    adding_shards(b, p);
    shards(b, p);
    tg_parallel_free(p);
    tg_comm_free(self);
}
