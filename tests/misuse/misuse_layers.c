/* Linear layers of tensor parallelism, on one rank. */
#include <tapegrad/attention.h>
#include <tapegrad/io.h>
#include <tapegrad/lora.h>
#include <tapegrad/mappings.h>
#include <tapegrad/optim.h>
#include <tapegrad/checkpoint.h>
#include <tapegrad/megatron.h>

#include "misuse/misuse.h"
#include "placement/placing.h"

static void linear(misuse_world *b) {
    tg_comm *c = tg_comm_self_new(b->ctx), *far = tg_comm_plan_new(b->far, 0, 2);
    tg_linear_grad_opts *both = TG_LINEAR_GRAD(.sequence_parallel = true, .allreduce_dgrad = true);
    tg_linear_grad_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_tensor *w = b->x; /* [2, 3] */
#define LINEAR(symbol)                                                                                                 \
    do {                                                                                                               \
        OP(symbol, symbol(t, x, w, NULL, c, NULL));                                                                    \
        OP(symbol, symbol(t, b->x, x, NULL, c, NULL));                                                                 \
        INERT(symbol, SHAPE, "they must be equal", symbol(b->t, b->cube, w, NULL, c, NULL));                           \
        INERT(symbol, SHAPE, "b must be a vector of 2", symbol(b->t, b->x, w, b->v, c, NULL));                         \
        INERT(symbol, DTYPE, "it must be f32", symbol(b->t, b->ids, w, NULL, c, NULL));                                \
        INERT(symbol, ARGUMENT, "are both set", symbol(b->t, b->x, w, NULL, NULL, both));                              \
        INERT(symbol, ARGUMENT, "the communicator is NULL",                                                            \
              symbol(b->t, b->x, w, NULL, NULL, TG_LINEAR_GRAD(.allreduce_dgrad = true)));                             \
        INERT(symbol, ARGUMENT, "of another context",                                                                  \
              symbol(b->t, b->x, w, NULL, far, TG_LINEAR_GRAD(.sequence_parallel = true)));                            \
        INERT(symbol, ARGUMENT, "size is 0", symbol(b->t, b->x, w, NULL, c, &zero));                                   \
        INERT(symbol, ARGUMENT, "this library knows", symbol(b->t, b->x, w, NULL, c, &later));                         \
    } while (0)
    LINEAR(tg_linear_with_grad_accumulation);
    LINEAR(tg_linear_with_frozen_weight);
    INERT(tg_linear_with_grad_accumulation, STATE, "fused_wgrad is set",
          tg_linear_with_grad_accumulation(b->t, b->x, b->r, NULL, c, TG_LINEAR_GRAD(.fused_wgrad = true)));
    INERT(tg_linear_with_frozen_weight, ARGUMENT, "fused_wgrad is set, but a frozen weight has no gradient",
          tg_linear_with_frozen_weight(b->t, b->x, w, NULL, c, TG_LINEAR_GRAD(.fused_wgrad = true)));
    OP(tg_linear_reduce_scatter, tg_linear_reduce_scatter(t, x, w, c, NULL));
    OP(tg_linear_reduce_scatter, tg_linear_reduce_scatter(t, b->x, x, c, NULL));
    INERT(tg_linear_reduce_scatter, ARGUMENT, "the communicator is NULL",
          tg_linear_reduce_scatter(b->t, b->x, w, NULL, NULL));
    INERT(tg_linear_reduce_scatter, ARGUMENT, "of another context",
          tg_linear_reduce_scatter(b->t, b->x, w, far, NULL));
    INERT(tg_linear_reduce_scatter, SHAPE, "they must be equal",
          tg_linear_reduce_scatter(b->t, b->cube, w, c, NULL));
    INERT(tg_linear_reduce_scatter, ARGUMENT, "sequence_parallel is set",
          tg_linear_reduce_scatter(b->t, b->x, w, c, TG_LINEAR_GRAD(.sequence_parallel = true)));
    INERT(tg_linear_reduce_scatter, ARGUMENT, "chunks is -1, expected 1 to 16",
          tg_linear_reduce_scatter(b->t, b->x, w, c, TG_LINEAR_GRAD(.chunks = -1)));
    INERT(tg_linear_reduce_scatter, ARGUMENT, "size is 0", tg_linear_reduce_scatter(b->t, b->x, w, c, &zero));
    OP(tg_linear_all_reduce, tg_linear_all_reduce(t, x, w, c, NULL));
    OP(tg_linear_all_reduce, tg_linear_all_reduce(t, b->x, x, c, NULL));
    tg_linear_all_reduce_opts unset = {0}, next = {.size = sizeof next + 8};
    INERT(tg_linear_all_reduce, ARGUMENT, "the communicator is NULL",
          tg_linear_all_reduce(b->t, b->x, w, NULL, NULL));
    INERT(tg_linear_all_reduce, ARGUMENT, "of another context",
          tg_linear_all_reduce(b->t, b->x, w, far, NULL));
    INERT(tg_linear_all_reduce, SHAPE, "they must be equal", tg_linear_all_reduce(b->t, b->cube, w, c, NULL));
    INERT(tg_linear_all_reduce, ARGUMENT, "kind is 4, expected TG_AR_NONE to TG_AR_MULTIMEM",
          tg_linear_all_reduce(b->t, b->x, w, c, TG_LINEAR_ALL_REDUCE(.kind = (tg_symmetric_ar)4)));
    INERT(tg_linear_all_reduce, STATE, "x or w needs a gradient",
          tg_linear_all_reduce(b->t, b->x, b->r, c, NULL));
    INERT(tg_linear_all_reduce, ARGUMENT, "size is 0", tg_linear_all_reduce(b->t, b->x, w, c, &unset));
    INERT(tg_linear_all_reduce, ARGUMENT, "this library knows", tg_linear_all_reduce(b->t, b->x, w, c, &next));
#define NORM_LINEAR(x_, w_, b_, nw, nb, o_) tg_norm_linear(t, x_, w_, b_, nw, nb, c, o_)
    tg_norm_linear_opts none = {0}, newer = {.size = sizeof newer + 8};
    OP(tg_norm_linear, NORM_LINEAR(x, w, NULL, NULL, NULL, NULL));
    OP(tg_norm_linear, NORM_LINEAR(b->x, x, NULL, NULL, NULL, NULL));
    OPTIONAL(tg_norm_linear, NORM_LINEAR(b->x, w, NULL, x, NULL, NULL));
    OPTIONAL(tg_norm_linear, NORM_LINEAR(b->x, w, NULL, NULL, x, NULL));
    tg_tape *t = b->t;
    INERT(tg_norm_linear, SHAPE, "they must be equal", NORM_LINEAR(b->cube, w, NULL, NULL, NULL, NULL));
    INERT(tg_norm_linear, SHAPE, "b must be a vector of 2", NORM_LINEAR(b->x, w, b->v, NULL, NULL, NULL));
    INERT(tg_norm_linear, SHAPE, "norm_weight must be a vector of 3", NORM_LINEAR(b->x, w, NULL, w, NULL, NULL));
    INERT(tg_norm_linear, SHAPE, "norm_bias must be a vector of 3", NORM_LINEAR(b->x, w, NULL, NULL, w, NULL));
    INERT(tg_norm_linear, DTYPE, "it must be f32", NORM_LINEAR(b->ids, w, NULL, NULL, NULL, NULL));
    INERT(tg_norm_linear, ARGUMENT, "eps is nan", NORM_LINEAR(b->x, w, NULL, NULL, NULL, TG_NORM_LINEAR(.eps = NAN)));
    INERT(tg_norm_linear, ARGUMENT, "zero_centered is set, but norm_weight is NULL",
          NORM_LINEAR(b->x, w, NULL, NULL, NULL, TG_NORM_LINEAR(.zero_centered = true)));
    INERT(tg_norm_linear, ARGUMENT, "of another context",
          tg_norm_linear(t, b->x, w, NULL, NULL, NULL, far, TG_NORM_LINEAR(.allreduce_dgrad = true)));
    INERT(tg_norm_linear, ARGUMENT, "size is 0", NORM_LINEAR(b->x, w, NULL, NULL, NULL, &none));
    INERT(tg_norm_linear, ARGUMENT, "this library knows", NORM_LINEAR(b->x, w, NULL, NULL, NULL, &newer));
    tg_comm_free(c);
    tg_comm_free(far);
}

static void waiting(misuse_world *b) {
    QUIET(tg_wgrads_new, !tg_wgrads_new(NULL, 1));
    GIVES(tg_wgrads_new, ARGUMENT, "limit is -2", !tg_wgrads_new(b->ctx, -2));
    QUIET(tg_wgrads_free, (tg_wgrads_free(NULL), true));
    QUIET(tg_wgrads_count, tg_wgrads_count(NULL) == 0);
    QUIET(tg_wgrads_run, tg_wgrads_run(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_wgrads_mark, tg_wgrads_mark(NULL) == 0);
    QUIET(tg_wgrads_run_to, tg_wgrads_run_to(NULL, 0) == TG_ERR_ARGUMENT);
    FAILS(tg_tape_defer, HANDLE, "the tape was freed", tg_tape_defer(b->freed, NULL)); /* a list takes its memory */
    tg_wgrads *d = tg_wgrads_new(b->ctx, TG_NONE), *far = tg_wgrads_new(b->far, TG_NONE);
    FAILS(tg_wgrads_run_to, ARGUMENT, "mark is 1, expected a result of tg_wgrads_mark", tg_wgrads_run_to(d, 1));
    FAILS(tg_wgrads_run_to, ARGUMENT, "mark is -1", tg_wgrads_run_to(d, -1));
    QUIET(tg_tape_defer, tg_tape_defer(NULL, d) == TG_ERR_ARGUMENT);
    FAILS(tg_tape_defer, ARGUMENT, "d is a list of another context than the tape", tg_tape_defer(b->t, far));
    tg_comm *c = tg_comm_self_new(b->ctx);
#define FAR(symbol, ...) INERT(symbol, ARGUMENT, #symbol ": opts.deferred is a list of another context", __VA_ARGS__)
    FAR(tg_linear_with_grad_accumulation,
        tg_linear_with_grad_accumulation(b->t, b->x, b->w, NULL, NULL, TG_LINEAR_GRAD(.deferred = far)));
    FAR(tg_linear_reduce_scatter, tg_linear_reduce_scatter(b->t, b->x, b->w, c, TG_LINEAR_GRAD(.deferred = far)));
    FAR(tg_norm_linear,
        tg_norm_linear(b->t, b->x, b->w, NULL, NULL, NULL, NULL, TG_NORM_LINEAR(.deferred = far)));
    tg_comm_free(c);
    tg_wgrads_free(d);
    tg_wgrads_free(far);
}

/* ---- Placed parameters, layers ---- */

static void placed(misuse_world *b, const tg_parallel *p) {
    const tg_shape shape = TG_SHAPE(4, 3), wide = {.ndim = 9};
    const tg_place_at rows = {TG_TP, TG_SHARD(0)}, twice[2] = {{TG_TP, TG_I}, {TG_TP, TG_R}},
                      far = {TG_TP, TG_SHARD(2)}, none = {TG_PP, TG_I}, partial = {TG_TP, TG_P};
#define PLACED(code, says, ...) INERT(tg_param_new_placed, code, says, tg_param_new_placed(p, "w", __VA_ARGS__))
    QUIET(tg_param_new_placed, misuse_inert(tg_param_new_placed(NULL, "w", TG_F32, shape, 1, &rows, 1)));
    PLACED(ARGUMENT, "std is nan", TG_F32, shape, NAN, &rows, 1);
    PLACED(ARGUMENT, "std is -1", TG_F32, shape, -1, &rows, 1);
    PLACED(ARGUMENT, "n is -1", TG_F32, shape, 1, &rows, -1);
    PLACED(ARGUMENT, "n is 1", TG_F32, shape, 1, NULL, 1);
    PLACED(ARGUMENT, "axis tp is given twice", TG_F32, shape, 1, twice, 2);
    PLACED(ARGUMENT, "axis is 3, which has no placements", TG_F32, shape, 1, &none, 1);
    PLACED(SHAPE, "shards dim 2, but", TG_F32, shape, 1, &far, 1);
    PLACED(SHAPE, "dims", TG_F32, wide, 1, &rows, 1);
    PLACED(DTYPE, "expected a float", TG_I64, shape, 1, &rows, 1);
    PLACED(PLACEMENT, "parameter w f32[4, 3] would be P", TG_F32, shape, 1, &partial, 1);
}

static bool no_module(tg_module *m) {
    bool good = m && tg_module_param_count(m) == 0;
    tg_module_free(m);
    return good;
}

#define NONE(symbol, code, says, call) GIVES(symbol, code, says, no_module(call))

/* A layer of each mode, and those with a norm. */
static void norm_layers(misuse_world *b, const tg_parallel *p) {
    tg_norm_mlp_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_module *box = tg_nn_linear(b->ctx, 2, 2, true, 1), *m = tg_nn_norm_linear(p, 2, 2, NULL), *n, *l;
    QUIET(tg_nn_parallel_linear, no_module(tg_nn_parallel_linear(NULL, TG_LINEAR_DUPLICATED, 2, 2, NULL)));
    NONE(tg_nn_parallel_linear, ARGUMENT, "mode is -1", tg_nn_parallel_linear(p, (tg_linear_mode)-1, 2, 2, NULL));
    NONE(tg_nn_parallel_linear, ARGUMENT, "out is 0, expected a positive number",
         tg_nn_parallel_linear(p, TG_LINEAR_DUPLICATED, 2, 0, NULL));
    QUIET(tg_nn_norm_mlp, no_module(tg_nn_norm_mlp(NULL, 2, 2, NULL)));
    NONE(tg_nn_norm_mlp, ARGUMENT, "hidden is 0", tg_nn_norm_mlp(p, 0, 2, NULL));
    NONE(tg_nn_norm_mlp, ARGUMENT, "ffn is -1", tg_nn_norm_mlp(p, 2, -1, NULL));
    NONE(tg_nn_norm_mlp, SHAPE, "2 ffn overflows", tg_nn_norm_mlp(p, 2, INT64_MAX, NULL));
    NONE(tg_nn_norm_mlp, ARGUMENT, "activation is -1",
         tg_nn_norm_mlp(p, 2, 2, TG_NORM_MLP(.activation = (tg_mlp_activation)-1)));
    NONE(tg_nn_norm_mlp, ARGUMENT, "tg_nn_norm_mlp: out_std is -1",
         tg_nn_norm_mlp(p, 2, 2, TG_NORM_MLP(.out_std = -1)));
    NONE(tg_nn_norm_mlp, ARGUMENT, "norm_eps is nan", tg_nn_norm_mlp(p, 2, 2, TG_NORM_MLP(.norm_eps = NAN)));
    NONE(tg_nn_norm_mlp, ARGUMENT, "size is 0", tg_nn_norm_mlp(p, 2, 2, &zero));
    NONE(tg_nn_norm_mlp, ARGUMENT, "this library knows", tg_nn_norm_mlp(p, 2, 2, &later));
    QUIET(tg_norm_linear_split, tg_norm_linear_split(NULL, &n, &l) == TG_ERR_ARGUMENT && no_module(n) && no_module(l));
    FAILS(tg_norm_linear_split, ARGUMENT, "linear is NULL", tg_norm_linear_split(m, &n, NULL));
    FAILS(tg_norm_linear_split, ARGUMENT, "norm is NULL", tg_norm_linear_split(m, NULL, &l));
    FAILS(tg_norm_linear_split, ARGUMENT, "the module is a \"linear\"", tg_norm_linear_split(box, &n, &l));
    QUIET(tg_module_set_symmetric, tg_module_set_symmetric(NULL, TG_AR_NONE) == TG_ERR_ARGUMENT);
    FAILS(tg_module_set_symmetric, ARGUMENT, "kind is 4, expected TG_AR_NONE",
          tg_module_set_symmetric(m, (tg_symmetric_ar)4));
    tg_module_free(box);
    tg_module_free(m);
}

static void layers(misuse_world *b, const tg_parallel *p) {
    tg_parallel_linear_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_module *box = tg_nn_linear(b->ctx, 2, 2, true, 1);
#define EITHER(symbol)                                                                                                 \
    do {                                                                                                               \
        QUIET(symbol, no_module(symbol(NULL, 2, 2, NULL)));                                                            \
        NONE(symbol, ARGUMENT, "expected a positive number", symbol(p, 0, 2, NULL));                                   \
        NONE(symbol, ARGUMENT, "expected a positive number", symbol(p, 2, -1, NULL));                                  \
        NONE(symbol, SHAPE, "overflows", symbol(p, INT64_MAX, INT64_MAX, NULL));                                       \
        NONE(symbol, ARGUMENT, "size is 0", symbol(p, 2, 2, &zero));                                                   \
        NONE(symbol, ARGUMENT, "this library knows", symbol(p, 2, 2, &later));                                         \
        NONE(symbol, ARGUMENT, "std is nan", symbol(p, 2, 2, TG_PARALLEL_LINEAR(.std = NAN)));                         \
        NONE(symbol, ARGUMENT, "deferred_wgrads is -2", symbol(p, 2, 2, TG_PARALLEL_LINEAR(.deferred_wgrads = -2)));   \
        NONE(symbol, SHAPE, "strides is -1", symbol(p, 2, 2, TG_PARALLEL_LINEAR(.strides = -1)));                      \
        NONE(symbol, SHAPE, "strides is 0", symbol(p, 2, 2, TG_PARALLEL_LINEAR(.strides = 0)));                        \
        NONE(symbol, ARGUMENT, "sequence_parallel is 2, expected 0, 1 or TG_AUTO",                                     \
             symbol(p, 2, 2, TG_PARALLEL_LINEAR(.sequence_parallel = 2)));                                             \
        NONE(symbol, SHAPE, "strides is 3", symbol(p, 2, 2, TG_PARALLEL_LINEAR(.strides = 3)));                        \
        NONE(symbol, SHAPE, "expected [2, 2]", symbol(p, 2, 2, TG_PARALLEL_LINEAR(.weight = b->x)));                   \
        NONE(symbol, HANDLE, "another context", symbol(p, 2, 2, TG_PARALLEL_LINEAR(.weight = b->foreign)));            \
        NONE(symbol, ARGUMENT, "no_weight is set",                                                                     \
             symbol(p, 3, 2, TG_PARALLEL_LINEAR(.weight = b->x, .no_weight = true)));                                  \
        NONE(symbol, ARGUMENT, "std is 1, but", symbol(p, 3, 2, TG_PARALLEL_LINEAR(.weight = b->x, .std = 1))); \
        NONE(symbol, ARGUMENT, "std is 1, but",                                                                 \
             symbol(p, 3, 2, TG_PARALLEL_LINEAR(.no_weight = true, .std = 1)));                                        \
        NONE(symbol, ARGUMENT, "std is 1, but",                                                                 \
             symbol(p, 3, 2, TG_PARALLEL_LINEAR(.no_init = true, .std = 1)));                                          \
        NONE(symbol, ARGUMENT, "the weight is given",                                                                  \
             symbol(p, 3, 2, TG_PARALLEL_LINEAR(.weight = b->x, .no_init = true)));                                    \
        NONE(symbol, ARGUMENT, "nothing to draw",                                                                      \
             symbol(p, 3, 2, TG_PARALLEL_LINEAR(.no_weight = true, .no_init = true)));                                 \
        EACH_DEAD(x) NONE(symbol, HANDLE, "the tensor", symbol(p, 3, 2, TG_PARALLEL_LINEAR(.weight = x)));             \
    } while (0)
    EITHER(tg_nn_column_linear);
    EITHER(tg_nn_row_linear);
    EITHER(tg_nn_norm_linear);
    norm_layers(b, p);
    NONE(tg_nn_column_linear, ARGUMENT, "input_is_whole is",
         tg_nn_column_linear(p, 2, 2, TG_PARALLEL_LINEAR(.input_is_whole = true)));
    NONE(tg_nn_row_linear, ARGUMENT, "gather_output is",
         tg_nn_row_linear(p, 2, 2, TG_PARALLEL_LINEAR(.gather_output = true)));
    NONE(tg_nn_row_linear, ARGUMENT, "no_dgrad_reduce is set, but it is an option of the column layer",
         tg_nn_row_linear(p, 2, 2, TG_PARALLEL_LINEAR(.no_dgrad_reduce = true)));
    QUIET(tg_nn_vocab_embedding, no_module(tg_nn_vocab_embedding(NULL, 2, 2, 1, NULL)));
    NONE(tg_nn_vocab_embedding, ARGUMENT, "vocab is 0", tg_nn_vocab_embedding(p, 0, 2, 1, NULL));
    NONE(tg_nn_vocab_embedding, ARGUMENT, "hidden is -2", tg_nn_vocab_embedding(p, 2, -2, 1, NULL));
    NONE(tg_nn_vocab_embedding, ARGUMENT, "tg_nn_vocab_embedding: std is inf",
         tg_nn_vocab_embedding(p, 2, 2, INFINITY, NULL));
    NONE(tg_nn_vocab_embedding, ARGUMENT, "reduce_scatter is 2, expected 0, 1 or TG_AUTO",
         tg_nn_vocab_embedding(p, 2, 2, 1, TG_VOCAB_EMBEDDING(.reduce_scatter = 2)));
    NONE(tg_nn_vocab_embedding, ARGUMENT, "size is 0",
         tg_nn_vocab_embedding(p, 2, 2, 1, &(tg_vocab_embedding_opts){0}));
    QUIET(tg_nn_self_attention, no_module(tg_nn_self_attention(NULL, 2, NULL)));
    NONE(tg_nn_self_attention, ARGUMENT, "heads is 0, expected 1 or more", tg_nn_self_attention(p, 2, NULL));
    NONE(tg_nn_self_attention, ARGUMENT, "hidden is -1", tg_nn_self_attention(p, -1, TG_SELF_ATTENTION(.heads = 1)));
    NONE(tg_nn_self_attention, SHAPE, "overflows", tg_nn_self_attention(p, INT64_MAX, TG_SELF_ATTENTION(.heads = 1)));
    NONE(tg_nn_self_attention, ARGUMENT, "size is 0", tg_nn_self_attention(p, 2, &(tg_self_attention_opts){0}));
    NONE(tg_nn_self_attention, ARGUMENT, "size is 0",
         tg_nn_self_attention(p, 2, TG_SELF_ATTENTION(.heads = 1, .linear = &zero)));
    NONE(tg_nn_self_attention, ARGUMENT, "this library knows",
         tg_nn_self_attention(p, 2, TG_SELF_ATTENTION(.heads = 1, .out_linear = &later)));
    QUIET(tg_wgrads_drain, tg_wgrads_drain(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_wgrads_drain, tg_wgrads_drain(box) == TG_OK);
    QUIET(tg_parallel_linear_apply, misuse_inert(tg_parallel_linear_apply(NULL, b->t, b->x, NULL, -1)));
    INERT(tg_parallel_linear_apply, ARGUMENT, "the module is a \"linear\", expected a layer of tg_nn_parallel_linear",
          tg_parallel_linear_apply(box, b->t, b->x, NULL, -1));
    tg_module_free(box);
}

static void calls(misuse_world *b, const tg_parallel *p) {
    tg_module *m = tg_nn_column_linear(p, 3, 2, NULL), *r = tg_nn_row_linear(p, 3, 2, NULL),
              *bare = tg_nn_row_linear(p, 3, 2, TG_PARALLEL_LINEAR(.no_weight = true)),
              *e = tg_nn_vocab_embedding(p, 4, 2, 1, NULL),
              *a = tg_nn_self_attention(p, 4, TG_SELF_ATTENTION(.heads = 2)),
              *cross = tg_nn_self_attention(p, 4, TG_SELF_ATTENTION(.heads = 2, .cross = true));
    tg_module *adapted = tg_nn_sequential(b->ctx);
    tg_sequential_add(adapted, tg_nn_column_linear(p, 3, 2, NULL));
    tg_lora_apply(adapted, NULL);
    INERT(tg_parallel_linear_apply, ARGUMENT,
          "the module is a \"lora\" that holds a layer, expected a layer of tg_nn_parallel_linear or "
          "tg_nn_norm_linear; call it by tg_module_forward",
          tg_parallel_linear_apply(tg_module_child(adapted, "0"), b->t, b->x, NULL, -1));
    tg_module_free(adapted);
    INERT(tg_parallel_linear_apply, ARGUMENT, "the tape is NULL", tg_parallel_linear_apply(m, NULL, b->x, NULL, -1));
    INERT(tg_parallel_linear_apply, HANDLE, "different contexts",
          tg_parallel_linear_apply(m, b->far_t, b->foreign, NULL, -1));
    INERT(tg_parallel_linear_apply, HANDLE, "freed", tg_parallel_linear_apply(m, b->freed, b->x, NULL, -1));
    INERT(tg_parallel_linear_apply, ARGUMENT, "gather_output is above 0",
          tg_parallel_linear_apply(r, b->t, b->x, NULL, 1));
    INERT(tg_parallel_linear_apply, ARGUMENT, "this call gives none",
          tg_parallel_linear_apply(bare, b->t, b->x, NULL, -1));
    INERT(tg_parallel_linear_apply, SHAPE, "expected [2, 3]", tg_parallel_linear_apply(m, b->t, b->x, b->cube, -1));
    INERT(tg_parallel_linear_apply, ARGUMENT, "the tensor is NULL", tg_parallel_linear_apply(m, b->t, NULL, NULL, -1));
    INERT(tg_parallel_linear_apply, SHAPE, "x has 4 columns but w has 3; they must be equal",
          tg_parallel_linear_apply(m, b->t, b->cube, NULL, -1));
    DEAD_TENSOR(tg_parallel_linear_apply, tg_parallel_linear_apply(m, b->t, x, NULL, -1));
    DEAD_TENSOR(tg_parallel_linear_apply, tg_parallel_linear_apply(r, b->t, b->x, x, -1));
    tg_tensor *bias;
    INERT(tg_parallel_linear_pair, ARGUMENT, "bias is NULL, expected the address",
          tg_parallel_linear_pair(m, b->t, b->x, NULL));
    INERT(tg_parallel_linear_pair, SHAPE, "x has 4 columns but w has 3; they must be equal",
          tg_parallel_linear_pair(m, b->t, b->cube, &bias));
    QUIET(tg_parallel_linear_pair, !tg_is_alive(tg_parallel_linear_pair(NULL, b->t, b->x, &bias)) && !bias);
    DEAD_TENSOR(tg_parallel_linear_pair, tg_parallel_linear_pair(m, b->t, x, &bias));
    tg_tensor *scalar = tg_zeros(b->ctx, TG_I64, TG_SHAPE());
    INERT(tg_nn_vocab_embedding, SHAPE, "ids is i64[], expected 1 or 2 dims, [n] or [b, s]",
          tg_module_forward(e, b->t, scalar));
    tg_drop(scalar);
    DEAD_TENSOR(tg_nn_vocab_embedding, tg_module_forward(e, b->t, x));
    INERT(tg_nn_vocab_embedding, ARGUMENT, "the tensor is NULL", tg_module_forward(e, b->t, NULL));
    INERT(tg_nn_self_attention, SHAPE, "called with 1 inputs and 1 outputs", tg_module_forward(cross, b->t, b->cube));
    DEAD_TENSOR(tg_nn_self_attention, tg_module_forward(a, b->t, x));
    tg_module_free(m);
    tg_module_free(r);
    tg_module_free(bare);
    tg_module_free(e);
    tg_module_free(a);
    tg_module_free(cross);
}

static void forward_only(misuse_world *b, const tg_parallel *p) {
    tg_inference_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_module *c = tg_nn_inference_column(p, 3, 2, NULL), *r = tg_nn_inference_row(p, 2, 3, NULL);
    tg_tensor *res = b->x, *none = NULL, *two = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 2));
#define FORWARD_ONLY(symbol)                                                                                           \
    do {                                                                                                               \
        QUIET(symbol, no_module(symbol(NULL, 2, 2, NULL)));                                                            \
        NONE(symbol, ARGUMENT, "expected", symbol(p, 0, 2, NULL));                                                     \
        NONE(symbol, ARGUMENT, "expected", symbol(p, 2, -1, NULL));                                                    \
        NONE(symbol, ARGUMENT, "size is 0", symbol(p, 2, 2, &zero));                                                   \
        NONE(symbol, ARGUMENT, "this library knows", symbol(p, 2, 2, &later));                                         \
        NONE(symbol, ARGUMENT, #symbol ": std is -1", symbol(p, 2, 2, TG_INFERENCE(.std = -1)));                       \
        NONE(symbol, SHAPE, "expected [2, 2]", symbol(p, 2, 2, TG_INFERENCE(.weight = b->x)));                         \
        NONE(symbol, ARGUMENT, "std is 1, but", symbol(p, 3, 2, TG_INFERENCE(.weight = b->x, .std = 1)));       \
    } while (0)
    FORWARD_ONLY(tg_nn_inference_column);
    FORWARD_ONLY(tg_nn_inference_row);
    NONE(tg_nn_inference_column, ARGUMENT, "norm_eps is nan",
         tg_nn_inference_column(p, 2, 2, TG_INFERENCE(.norm_eps = NAN)));
    NONE(tg_nn_inference_row, ARGUMENT, "norm_eps is set, but it is an option of the column layer",
         tg_nn_inference_row(p, 2, 2, TG_INFERENCE(.norm_eps = 1e-5)));
    NONE(tg_nn_inference_row, ARGUMENT, "norm is set, but it is an option of the column layer",
         tg_nn_inference_row(p, 3, 3, TG_INFERENCE(.norm = b->v)));
    NONE(tg_nn_inference_column, SHAPE, "the norm given is",
         tg_nn_inference_column(p, 2, 2, TG_INFERENCE(.norm = b->v)));
    QUIET(tg_inference_next, misuse_inert(tg_inference_next(NULL, c, b->t, two, &res)));
    INERT(tg_inference_next, ARGUMENT, "expected an inference_row", tg_inference_next(c, r, b->t, two, &res));
    INERT(tg_inference_next, ARGUMENT, "expected an inference_row", tg_inference_next(r, NULL, b->t, two, &res));
    INERT(tg_inference_next, ARGUMENT, "the tape is NULL", tg_inference_next(r, c, NULL, two, &res));
    INERT(tg_inference_next, HANDLE, "different contexts", tg_inference_next(r, c, b->far_t, two, &res));
    INERT(tg_inference_next, ARGUMENT, "residual or *residual is NULL", tg_inference_next(r, c, b->t, two, &none));
    INERT(tg_inference_next, ARGUMENT, "residual or *residual is NULL", tg_inference_next(r, c, b->t, two, NULL));
    DEAD_TENSOR(tg_inference_next, tg_inference_next(r, c, b->t, x, &res));
    tg_drop(two);
    tg_module_free(c);
    tg_module_free(r);
}

/* ---- Attributes ---- */

static void attributes(misuse_world *b, const tg_parallel *p) {
    int dim = 7, stride = 7;
    QUIET(tg_tp_attributes, !tg_tp_attributes(NULL, &dim, &stride) && dim == -1 && stride == 1);
    QUIET(tg_tp_attributes, !tg_tp_attributes(b->w, NULL, NULL));
    DEAD_QUIET(tg_tp_attributes, !tg_tp_attributes(x, &dim, NULL));
    QUIET(tg_is_tp_duplicate, !tg_is_tp_duplicate(NULL, b->w) && !tg_is_tp_duplicate(p, NULL));
    DEAD_QUIET(tg_is_tp_duplicate, !tg_is_tp_duplicate(p, x));
}

/* ---- Sharded state ---- */

static void adding_shards(misuse_world *b, const tg_parallel *p) {
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
    FAILS(tg_shards_add_tensor, ARGUMENT, "the key is not UTF-8 from its byte 1",
          tg_shards_add_tensor(s, "a\xff", b->w));
    FAILS(tg_shards_add_tensor, ARGUMENT, "too long", tg_shards_add_tensor(s, longest, b->w));
    FAILS(tg_shards_add_tensor, STATE, "'w' exists already", tg_shards_add_tensor(s, "w", b->x));
    FAILS(tg_shards_add_tensor, STATE, "owned by a tape", tg_shards_add_tensor(s, "r", b->r));
    FAILS(tg_shards_add_tensor, ARGUMENT, "the tensor is NULL", tg_shards_add_tensor(s, "n", NULL));
    FAILS(tg_shards_add_tensor, HANDLE, "another context", tg_shards_add_tensor(s, "f", b->foreign));
    DEAD_STATUS(tg_shards_add_tensor, tg_shards_add_tensor(s, "d", x));
    QUIET(tg_shards_add_range, tg_shards_add_range(NULL, "k", b->w, b->w, 0, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_add_range, ARGUMENT, "the key is NULL", tg_shards_add_range(s, NULL, b->w, b->w, 0, 1));
    FAILS(tg_shards_add_range, ARGUMENT, "the tensor is NULL", tg_shards_add_range(s, "n", NULL, b->w, 0, 1));
    FAILS(tg_shards_add_range, ARGUMENT, "the tensor is NULL", tg_shards_add_range(s, "n", b->w, NULL, 0, 1));
    FAILS(tg_shards_add_range, HANDLE, "another context", tg_shards_add_range(s, "f", b->foreign, b->w, 0, 1));
    FAILS(tg_shards_add_range, ARGUMENT, "elements [-1, 1) of 'g'", tg_shards_add_range(s, "g", b->w, b->w, -1, 1));
    FAILS(tg_shards_add_range, ARGUMENT, "elements [1, 0) of 'g'", tg_shards_add_range(s, "g", b->w, b->w, 1, 0));
    FAILS(tg_shards_add_range, ARGUMENT, "expected a range of [0, ", tg_shards_add_range(s, "g", b->w, b->w, 0, 999));
    FAILS(tg_shards_add_range, SHAPE, "expected 1 dim and 1 element", tg_shards_add_range(s, "g", b->w, b->w, 0, 1));
    QUIET(tg_shards_add_module, tg_shards_add_module(NULL, "m", m) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_add_module, ARGUMENT, "the module is NULL", tg_shards_add_module(s, "m", NULL));
    FAILS(tg_shards_add_module, HANDLE, "another context", tg_shards_add_module(s, "m", far));
    FAILS(tg_shards_add_module, HANDLE, "the module is inert",
          tg_shards_add_module(s, "m", tg_module_new(NULL, NULL, NULL)));
    FAILS(tg_shards_add_module, ARGUMENT, "expected at most", tg_shards_add_module(s, longest, m));
    QUIET(tg_shards_push, tg_shards_push(NULL, "l", 2, 0) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_push, ARGUMENT, "n is 0 and i 0", tg_shards_push(s, "l", 0, 0));
    FAILS(tg_shards_push, ARGUMENT, "n is 2 and i 2", tg_shards_push(s, "l", 2, 2));
    FAILS(tg_shards_push, ARGUMENT, "n is 2 and i -1", tg_shards_push(s, "l", 2, -1));
    FAILS(tg_shards_push, ARGUMENT, "expected at most", tg_shards_push(s, longest, 2, 0));
    for (int i = 0; i < 4; i++) tg_shards_push(s, NULL, 2, 0);
    FAILS(tg_shards_push, STATE, "4 dims are in front already", tg_shards_push(s, "l", 2, 0));
    for (int i = 0; i < 4; i++) tg_shards_pop(s);
    QUIET(tg_shards_pop, tg_shards_pop(NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_pop, STATE, "call tg_shards_push first", tg_shards_pop(s));
    QUIET(tg_shards_add_rng, tg_shards_add_rng(NULL) == TG_ERR_ARGUMENT);
    tg_shards_add_rng(s);
    FAILS(tg_shards_add_rng, STATE, "were added already", tg_shards_add_rng(s));
    QUIET(tg_shards_add_average, tg_shards_add_average(NULL, "a", NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_add_average, ARGUMENT, "the averages are NULL", tg_shards_add_average(s, "a", NULL));
    QUIET(tg_shards_add_optim, tg_shards_add_optim(NULL, "o", o) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_add_optim, ARGUMENT, "the optimizer is NULL", tg_shards_add_optim(s, "o", NULL));
    FAILS(tg_shards_add_optim, ARGUMENT, "expected at most", tg_shards_add_optim(s, longest, o));
    tg_shards_add_optim(s, "o", o);
    FAILS(tg_shards_add_optim, STATE, "'o.steps' exists already", tg_shards_add_optim(s, "o", o));
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

static void shards(misuse_world *b, const tg_parallel *p) {
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
    FAILS(tg_shards_at, ARGUMENT, "index -1 is out of range", tg_shards_at(s, -1, &info));
    FAILS(tg_shards_at, ARGUMENT, "index 1 is out of range", tg_shards_at(s, 1, &info));
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
    FAILS(tg_shards_load, IO, "index.json", tg_shards_load(s, b->dir));
    tg_shards_load_opts zero_load = {0};
    QUIET(tg_shards_load_with, tg_shards_load_with(NULL, b->dir, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_load_with, ARGUMENT, "dir is NULL", tg_shards_load_with(s, NULL, NULL));
    FAILS(tg_shards_load_with, ARGUMENT, "size is 0", tg_shards_load_with(s, b->dir, &zero_load));
    FAILS(tg_shards_load_with, HANDLE, "'x' was dropped", tg_shards_load_with(gone, b->dir, NULL));
    tg_save_opts zero_save = {0};
    int damaged;
    QUIET(tg_shards_save_begin, !tg_shards_save_begin(NULL, b->dir, NULL));
    GIVES(tg_shards_save_begin, ARGUMENT, "dir is NULL", !tg_shards_save_begin(s, NULL, NULL));
    GIVES(tg_shards_save_begin, ARGUMENT, "size is 0", !tg_shards_save_begin(s, b->dir, &zero_save));
    GIVES(tg_shards_save_begin, HANDLE, "'x' was dropped", !tg_shards_save_begin(gone, b->dir, NULL));
    GIVES(tg_shards_save_begin, IO, "/nonexistent", !tg_shards_save_begin(s, "/nonexistent/dir", NULL));
    QUIET(tg_save_test, tg_save_test(NULL));
    QUIET(tg_save_finish, tg_save_finish(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_shards_verify, tg_shards_verify(NULL, b->dir, NULL, 0, &damaged) == TG_ERR_ARGUMENT);
    FAILS(tg_shards_verify, ARGUMENT, "dir is NULL", tg_shards_verify(b->ctx, NULL, NULL, 0, &damaged));
    FAILS(tg_shards_verify, ARGUMENT, "damaged is NULL", tg_shards_verify(b->ctx, b->dir, NULL, 0, NULL));
    QUIET(tg_shards_verify, tg_shards_verify(b->ctx, "/nonexistent", NULL, 0, &damaged) == TG_OK && damaged == 1);
    tg_shards_free(s);
    tg_shards_free(gone);
}

void misuse_layers(misuse_world *b) {
    tg_comm *self = tg_comm_self_new(b->ctx);
    tg_parallel *p = tg_parallel_new(self, NULL);
    linear(b);
    waiting(b);
    placed(b, p);
    layers(b, p);
    calls(b, p);
    forward_only(b, p);
    attributes(b, p);
    adding_shards(b, p);
    shards(b, p);
    tg_parallel_free(p);
    tg_comm_free(self);
}
