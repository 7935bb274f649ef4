/* Groups, gradients over ranks. */
#include <tapegrad/nn.h>
#include <tapegrad/parallel.h>
#include <tapegrad/flat.h>

#include "misuse/misuse.h"

/* On one rank of a plan of two. */
static void groups(misuse_world *b) {
    tg_comm *world = tg_comm_plan_new(b->ctx, 0, 2);
    tg_parallel_opts zero = {0}, later = {.size = sizeof later + 8};
    const int sizes[] = {2, 2};
    QUIET(tg_parallel_new, (tg_parallel_free(tg_parallel_new(NULL, NULL)), true));
#define NEW(code, says, ...)                                                                                           \
    GIVES(tg_parallel_new, code, says, (tg_parallel_free(tg_parallel_new(world, __VA_ARGS__)), true))
    NEW(ARGUMENT, "size is 0", &zero);
    NEW(ARGUMENT, "this library knows", &later);
    NEW(ARGUMENT, "tp is 3", TG_PARALLEL(.tp = 3));
    NEW(ARGUMENT, "tp is 0, expected 1 to 2, the ranks of the world", TG_PARALLEL(.tp = 0));
    NEW(ARGUMENT, "etp is 0", TG_PARALLEL(.etp = 0));
    NEW(ARGUMENT, "vp is 0, expected 1 or more", TG_PARALLEL(.vp = 0));
    NEW(ARGUMENT, "cp is -2", TG_PARALLEL(.cp = -2));
    NEW(ARGUMENT, "pp is 5", TG_PARALLEL(.pp = 5));
    NEW(ARGUMENT, "is not divisible by tp x cp x pp = 2 x 2 x 1", TG_PARALLEL(.tp = 2, .cp = 2));
    NEW(ARGUMENT, "is not divisible by etp x ep x pp = 2 x 2 x 1", TG_PARALLEL(.tp = 2, .ep = 2));
    NEW(ARGUMENT, "order is \"tp,dp\"", TG_PARALLEL(.order = "tp,dp"));
    NEW(ARGUMENT, "does not name tp", TG_PARALLEL(.tp = 2, .order = "dp-pp"));
    NEW(ARGUMENT, "rng is 9", TG_PARALLEL(.rng = (tg_rng_mode)9));
    NEW(ARGUMENT, "vp is 2 and pp is 1", TG_PARALLEL(.vp = 2));
    NEW(ARGUMENT, "vp is -1", TG_PARALLEL(.vp = -1));
    GIVES(tg_parallel_vp, ARGUMENT, "tp is 3", tg_parallel_vp(tg_parallel_new(world, TG_PARALLEL(.tp = 3))) == 1);
    tg_comm *large = tg_comm_plan_new(b->ctx, 0, 1 << 22);
    tg_parallel_opts *product = TG_PARALLEL(.tp = 1 << 22, .cp = 1 << 22, .pp = 1 << 22); /* 2^66 ranks */
    GIVES(tg_parallel_new, ARGUMENT, "is not divisible by tp x cp x pp = 4194304 x 4194304 x 4194304",
          (tg_parallel_free(tg_parallel_new(large, product)), true));
    tg_comm_free(large);
    tg_comm *alone = tg_comm_self_new(b->ctx);
    tg_parallel *p = tg_parallel_new(alone, NULL);
    NEW(STATE, "the context already has a tg_parallel; call tg_parallel_free on it first", NULL);
    QUIET(tg_parallel_free, (tg_parallel_free(NULL), true));
    QUIET(tg_parallel_ctx, tg_ctx_status(tg_parallel_ctx(NULL)) != TG_OK && tg_parallel_ctx(p) == b->ctx);
    QUIET(tg_parallel_world, !tg_parallel_world(NULL));
    QUIET(tg_parallel_comm, !tg_parallel_comm(NULL, TG_TP) && !tg_parallel_comm(p, (tg_axis)99));
    QUIET(tg_parallel_rank, tg_parallel_rank(NULL, TG_TP) == 0 && tg_parallel_rank(p, (tg_axis)-1) == 0);
    QUIET(tg_parallel_size, tg_parallel_size(NULL, TG_TP) == 1 && tg_parallel_size(p, (tg_axis)99) == 1);
    QUIET(tg_is_sequence_parallel, !tg_is_sequence_parallel(NULL));
    QUIET(tg_parallel_rng, tg_parallel_rng(NULL) == TG_RNG_GLOBAL);
    QUIET(tg_parallel_vp, tg_parallel_vp(NULL) == 1 && tg_parallel_vp(p) == 1);
    QUIET(tg_parallel_dp_cp, !tg_parallel_dp_cp(NULL));
    QUIET(tg_parallel_model, !tg_parallel_model(NULL));
    QUIET(tg_parallel_embedding, !tg_parallel_embedding(NULL));
    QUIET(tg_parallel_edge, !tg_parallel_edge(NULL, true, true) && !tg_parallel_edge(p, true, true));
    QUIET(tg_parallel_recover, tg_parallel_recover(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_rank_groups, tg_rank_groups(NULL, sizes, "tp", NULL, NULL) == -1);
    QUIET(tg_rank_groups, tg_rank_groups("tp-dp", NULL, "tp", NULL, NULL) == -1);
    QUIET(tg_rank_groups, tg_rank_groups("tp-dp", sizes, NULL, NULL, NULL) == -1);
    QUIET(tg_rank_groups, tg_rank_groups("tp-dp", sizes, "cp", NULL, NULL) == -1);
    QUIET(tg_rank_groups, tg_rank_groups("tp-dp", (const int[]){65536, 65536}, "tp-dp", NULL, NULL) == -1);
    tg_parallel_free(p);
    tg_comm_free(alone);
    tg_comm_free(world);
}

static void gradients(misuse_world *b) {
    tg_comm *world = tg_comm_self_new(b->ctx);
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *w = tg_param_new(b->ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    tg_tensor *none = NULL, *twice[] = {w, w};
    tg_finalize_opts zero = {0};
    QUIET(tg_grads_finalize, tg_grads_finalize(NULL, &w, 1, NULL) == TG_ERR_ARGUMENT);
#define FINALIZE(code, says, ...) GIVES(tg_grads_finalize, code, says, tg_grads_finalize(p, __VA_ARGS__) != TG_OK)
    FINALIZE(ARGUMENT, "n is -1", &w, -1, NULL);
    FINALIZE(ARGUMENT, "n is 1", NULL, 1, NULL);
    FINALIZE(ARGUMENT, "a parameter", &none, 1, NULL);
    FINALIZE(STATE, "not a leaf", &b->x, 1, NULL);
    FINALIZE(ARGUMENT, "size is 0", &w, 1, &zero);
    FINALIZE(SHAPE, "expected one", &w, 1, TG_FINALIZE(.tokens = b->x));
    QUIET(tg_share, tg_share(NULL, w, world) == TG_ERR_ARGUMENT);
    FAILS(tg_share, ARGUMENT, "tg_share: param", tg_share(p, none, world));
    FAILS(tg_share, ARGUMENT, "c is NULL", tg_share(p, w, NULL));
    FAILS(tg_share, STATE, "is not a leaf of the context that needs a gradient", tg_share(p, b->x, world));
    QUIET(tg_share, tg_share(p, w, world) == TG_OK);
    FAILS(tg_share, STATE, "is shared over \"\" already; share a parameter once", tg_share(p, w, world));
    QUIET(tg_flat_new, !tg_flat_new(NULL, &w, 1, NULL));
#define FLAT(code, says, ...) GIVES(tg_flat_new, code, says, !tg_flat_new(p, __VA_ARGS__))
    FLAT(ARGUMENT, "n is 0", &w, 0, NULL);
    FLAT(ARGUMENT, "n is 1", NULL, 1, NULL);
    FLAT(ARGUMENT, "bucket is 0, expected 1 or more elements, or TG_AUTO", &w, 1, TG_FLAT(.bucket = 0));
    FLAT(ARGUMENT, "zero is 4, expected 0, 1, 2 or 3", &w, 1, TG_FLAT(.zero = 4));
    FLAT(DTYPE, "wire is f16, expected TG_BF16 or TG_DTYPE_DEFAULT", &w, 1, TG_FLAT(.wire = TG_F16));
    FLAT(ARGUMENT, "a parameter", &none, 1, NULL);
    FLAT(ARGUMENT, "given twice", twice, 2, NULL);
    QUIET(tg_flat_free, (tg_flat_free(NULL), true));
    QUIET(tg_flat_set_reduce, !tg_flat_set_reduce(NULL, true));
    tg_module *no_module = NULL;
    QUIET(tg_flat_watch, tg_flat_watch(NULL, NULL, 0) == TG_ERR_ARGUMENT);
    QUIET(tg_flat_set_whole, tg_flat_set_whole(NULL, true) == TG_ERR_ARGUMENT);
    tg_tensor *v = tg_param_new(b->ctx, "v", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    tg_flat *f = tg_flat_new(p, &v, 1, NULL);
    FAILS(tg_flat_watch, ARGUMENT, "n is 1 and units is", tg_flat_watch(f, NULL, 1));
    FAILS(tg_flat_watch, ARGUMENT, "module 0 is NULL", tg_flat_watch(f, &no_module, 1));
    QUIET(tg_flat_set_whole, tg_flat_set_whole(f, true) == TG_OK);
    tg_flat_set_reduce(f, false);
    tg_backward(b->fresh, tg_sum(b->fresh, v, TG_ALL_DIMS, false));
    FAILS(tg_discard, STATE, "part of a buffer of a tg_flat", tg_discard(tg_grad_of(v)));
    tg_tape_reset(b->fresh);
    tg_flat_free(f);
    tg_drop(v);
    QUIET(tg_grads_reduce, tg_grads_reduce(NULL) == TG_ERR_ARGUMENT && tg_grads_reduce(p) == TG_OK);
    QUIET(tg_flat_leaves, tg_flat_leaves(NULL, NULL) == 0);
    QUIET(tg_flat_gather, tg_flat_gather(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_flat_text, tg_flat_text(NULL, TG_TEXT, NULL, 0) == 0);
    QUIET(tg_range_of, !tg_range_of(NULL, NULL, NULL, NULL) && !tg_range_of(w, NULL, NULL, NULL));
    QUIET(tg_module_replicate, tg_module_replicate(NULL, p) == TG_ERR_ARGUMENT);
    tg_module *m = tg_nn_linear(b->ctx, 2, 2, true, 0.1);
    QUIET(tg_module_replicate, tg_module_replicate(m, NULL) == TG_ERR_ARGUMENT);
    tg_module_free(m);
    tg_drop(w);
    tg_parallel_free(p);
    tg_comm_free(world);
}

void misuse_parallel(misuse_world *b) {
    groups(b);
    gradients(b);
}
