/* Check mode on ranks: what it compares (leaves, seeds, results of hooks and ops, the seeds of default streams), what
 * its messages say, and that programs whose ranks agree pass. Also placements of what a stream seeded by rank drew. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tapegrad/backward.h>
#include <tapegrad/checkpoint.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/nn.h>
#include <tapegrad/ops.h>
#include <tapegrad/ranks.h>
#include <tapegrad/gpt.h>
#include <tapegrad/lm.h>
#include <tapegrad/megatron.h>

#include "core/context.h"
#include "on_ranks.h"

static tg_status checked(int n, tg_rank_fn fn, void *arg, char *message, size_t size) {
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 30, .check = true);
    return tg_ranks_run(n, fn, arg, TG_RANKS(.config = config, .message = message, .message_size = size));
}

static void passes(int n, tg_rank_fn fn, void *arg) {
    char message[1024];
    tg_status s = checked(n, fn, arg, message, sizeof message);
    ck_assert_msg(s == TG_OK, "%d ranks: %s: %s", n, tg_status_name(s), message);
}

/* A group of tensor-parallel ranks, of which the last one may disagree with the others. */
typedef struct group {
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel *p;
    tg_tape *t;
    bool last;
} group;

static group begin(tg_ctx *ctx, tg_comm *world, tg_rng_mode mode) {
    group g = {.ctx = ctx, .world = world, .last = tg_comm_rank(world) == tg_comm_size(world) - 1};
    g.p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world), .rng = mode));
    g.t = tg_tape_new(ctx);
    return g;
}

static tg_status end(group *g) {
    tg_comm_barrier(g->world);
    tg_tape_free(g->t);
    tg_parallel_free(g->p);
    return tg_ctx_status(g->ctx);
}

/* Makes {0, 1, v}, declared I. */
static tg_tensor *declared(const group *g, double v) {
    tg_tensor *x = tg_from_host(g->ctx, TG_F64, TG_SHAPE(3), (double[]){0, 1, v});
    tg_place(g->p, x, TG_TP, TG_I);
    return x;
}

/* ---- Leaves and seeds ---- */

static tg_status leaves(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    char says[128];
    tg_tensor *x = grad_leaf(declared(&g, g.last ? 9 : 2)), *seed = declared(&g, 4);
    snprintf(says, sizeof says, "differ between ranks 0 and %d: element 2 is 2 on rank 0 and 9 on rank %d; declare",
             tg_comm_size(world) - 1, tg_comm_size(world) - 1);
    REFUSED(ctx, TG_ERR_PLACEMENT, says, tg_square(g.t, x));
    x = grad_leaf(declared(&g, g.last ? 9 : 2)); /* a root that no op has used */
    REFUSED(ctx, TG_ERR_PLACEMENT, says,
            tg_grad(g.t, &x, 1, &x, 1, (tg_tensor *[1]){NULL}, TG_GRAD(.seeds = &seed)));
    const double near = g.last ? 2.0000000000000004 : 2;
    REFUSED(ctx, TG_ERR_PLACEMENT, "element 2 is 2 on rank 0 and 2.0000000000000004 on rank",
            tg_square(g.t, grad_leaf(declared(&g, near))));
    x = grad_leaf(tg_from_host(ctx, TG_F64, TG_SHAPE(), &near)); /* not declared, so it may differ */
    RUN(tg_backward(g.t, x));
    return end(&g);
}

START_TEST(leaves_are_compared_at_their_first_use) {
    passes(2, leaves, NULL);
    passes(4, leaves, NULL);
}
END_TEST

/* Each rank reads a file of its own, after the leaf was compared. */
static tg_status files(void *arg, tg_ctx *ctx, tg_comm *world) {
    char path[256];
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    snprintf(path, sizeof path, "%s/%d", (const char *)arg, tg_comm_rank(world));
    tg_tensor *x = grad_leaf(declared(&g, 2));
    tg_named_tensor whole = {"x", declared(&g, g.last ? 9 : 2)};
    RUN(tg_safetensors_save(ctx, path, &whole, 1, NULL, 0));
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    EXPECT(ctx, tg_is_alive(tg_square(g.t, x)));
    RUN(tg_safetensors_read_part(f, "x", x, false));
    REFUSED(ctx, TG_ERR_PLACEMENT, "element 2 is 2 on rank 0 and 9 on rank", tg_square(g.t, x));
    tg_safetensors_close(f);
    return unlink(path) == 0 ? end(&g) : TG_ERR_IO;
}

/* Each rank saves and loads the leaf under a key of its own. */
static tg_status states(void *arg, tg_ctx *ctx, tg_comm *world) {
    char key[16];
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    snprintf(key, sizeof key, "x%d", tg_comm_rank(world));
    tg_tensor *x = grad_leaf(declared(&g, 2));
    tg_shards *from = tg_shards_new(g.p), *to = tg_shards_new(g.p);
    RUN(tg_shards_add_tensor(from, key, declared(&g, g.last ? 9 : 2)));
    RUN(tg_shards_add_tensor(to, key, x));
    RUN(tg_shards_save(from, arg));
    EXPECT(ctx, tg_is_alive(tg_square(g.t, x)));
    RUN(tg_shards_load(to, arg));
    REFUSED(ctx, TG_ERR_PLACEMENT, "element 2 is 2 on rank 0 and 9 on rank", tg_square(g.t, x));
    tg_shards_free(from);
    tg_shards_free(to);
    return end(&g);
}

/* Each rank loads the weights of a directory of its own, after the model has run. A norm differs between them. */
static tg_status models(void *arg, tg_ctx *ctx, tg_comm *world) {
    char dir[256];
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    const tg_parallel *at[] = {NULL, g.p};
    tg_module *m[2];
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 2), (int64_t[]){1, 2});
    snprintf(dir, sizeof dir, "%s/model-%d", (const char *)arg, tg_comm_rank(world));
    tg_place(g.p, ids, TG_TP, TG_I);
    for (int i = 0; i < 2; i++) {
        tg_draws_step(ctx, i);
        m[i] = tg_gpt_new(ctx, TG_GPT(.vocab = 6, .layers = 1, .heads = 2, .hidden = 4, .positions = 4,
                                      .parallel = at[i]));
    }
    tg_write_f64(tg_module_find(m[0], "transformer.ln_f.weight"), (double[]){1, 1, g.last ? 9 : 2, 1}, 4);
    EXPECT(ctx, mkdir(dir, 0700) == 0);
    RUN(tg_gpt_save(m[0], dir));
    EXPECT(ctx, tg_is_alive(tg_gpt_logits(m[1], g.t, ids)));
    RUN(tg_lm_load(&m[1], 1, dir));
    REFUSED(ctx, TG_ERR_PLACEMENT, "element 2 is 2 on rank 0 and 9 on rank 1", tg_gpt_logits(m[1], g.t, ids));
    tg_tape_reset(g.t);
    for (int i = 0; i < 2; i++) tg_module_free(m[i]);
    return end(&g);
}

START_TEST(a_leaf_is_compared_again_after_a_file_was_read) {
    char dir[] = "/tmp/tapegrad-check-XXXXXX", remove[64];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    passes(2, files, dir);
    passes(2, states, dir);
    passes(2, models, dir);
    snprintf(remove, sizeof remove, "rm -r '%s'", dir);
    ck_assert_int_eq(system(remove), 0);
}
END_TEST

/* A buffer of a module is I, whatever is written into it, so ranks that differ are found. */
static tg_status buffers(void *arg, tg_ctx *ctx, tg_comm *world) {
    static const tg_module_ops box = {.size = sizeof box, .kind = "box"};
    (void)arg;
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    tg_module *m = tg_module_new(ctx, &box, NULL);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(3));
    RUN(tg_module_add_buffer(m, "mean", x, NULL));
    tg_write_f64(x, (double[]){0, 1, 5}, 3);
    EXPECT(ctx, tg_placement_of(tg_square(g.t, x), TG_TP).kind == TG_INVARIANT);
    tg_write_f64(x, (double[]){0, 1, g.last ? 9 : 5}, 3);
    REFUSED(ctx, TG_ERR_PLACEMENT, "element 2 is 5 on rank 0 and 9 on rank", tg_square(g.t, x));
    tg_tape_reset(g.t);
    tg_module_free(m);
    return end(&g);
}

START_TEST(buffers_of_modules_are_compared) { passes(2, buffers, NULL); }
END_TEST

static tg_status seeds(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    tg_tensor *x = grad_leaf(declared(&g, 2)), *y = tg_square(g.t, x), *gx;
    tg_tensor *same = declared(&g, 5), *other = declared(&g, g.last ? NAN : 5);
    for (int i = 0; i < 2; i++) {
        REFUSED(ctx, TG_ERR_PLACEMENT, "a seed: the gradient of ",
                tg_grad(g.t, &y, 1, &x, 1, &gx, TG_GRAD(.seeds = &other, .create_graph = i, .retain = true)));
        RUN(tg_grad(g.t, &y, 1, &x, 1, &gx, TG_GRAD(.seeds = &same, .create_graph = i, .retain = true)));
    }
    /* each rank may give a seed of its own where the gradient varies */
    tg_tensor *v = grad_leaf(tg_from_host(ctx, TG_F64, TG_SHAPE(3), (double[]){0, 1, g.last})), *z = tg_square(g.t, v);
    tg_tensor *own = tg_from_host(ctx, TG_F64, TG_SHAPE(3), (double[]){0, 1, g.last});
    RUN(tg_grad(g.t, &z, 1, &v, 1, &gx, TG_GRAD(.seeds = &own)));
    return end(&g);
}

START_TEST(seeds_are_compared_where_the_gradient_is_equal) {
    passes(2, seeds, NULL);
    passes(4, seeds, NULL);
}
END_TEST

/* ---- Hooks ---- */

static tg_status scale_by(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)x;
    *g = tg_scale(t, *g, *(const double *)user);
    return TG_OK;
}

static tg_status give(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)t, (void)x;
    *g = user;
    return TG_OK;
}

static tg_status watch(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)t, (void)x, (void)g;
    ++*(int *)user;
    return TG_OK;
}

static tg_status hooks(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    int calls = 0;
    double half = 0.5;
    tg_tensor *x = grad_leaf(declared(&g, 2));
    if (g.last) tg_on_grad(x, watch, &calls); /* one rank may watch alone */
    tg_on_grad(x, scale_by, &half);
    RUN(tg_backward(g.t, tg_sum(g.t, tg_square(g.t, x), TG_ALL_DIMS, false)));
    EXPECT(ctx, calls == g.last);
    tg_tensor *given = declared(&g, g.last ? 3 : 2);
    tg_on_grad(x, give, given);
    REFUSED(ctx, TG_ERR_PLACEMENT, "a gradient hook's result: the gradient of f64[3]",
            tg_backward(g.t, tg_sum(g.t, tg_square(g.t, x), TG_ALL_DIMS, false)));
    /* the gradient of an R tensor is each rank's own share of it */
    tg_tensor *r = tg_from_host(ctx, TG_F64, TG_SHAPE(3), (double[]){0, 1, 2}), *share =
         tg_from_host(ctx, TG_F64, TG_SHAPE(3), (double[]){0, 1, g.last});
    tg_place(g.p, r, TG_TP, TG_R);
    tg_place(g.p, share, TG_TP, TG_P);
    tg_on_grad(grad_leaf(r), give, share);
    RUN(tg_backward(g.t, tg_sum(g.t, tg_square(g.t, r), TG_ALL_DIMS, false)));
    return end(&g);
}

START_TEST(what_hooks_return_is_compared) {
    passes(2, hooks, NULL);
    passes(4, hooks, NULL);
}
END_TEST

/* ---- Seeds of the default streams ---- */

/* The last rank has another seed, as tg_config.seed would give it. */
static tg_status streams(void *arg, tg_ctx *ctx, tg_comm *world) {
    const bool tp = *(const char *)arg == 't';
    const int n = tg_comm_size(world);
    const tg_parallel_opts *o = TG_PARALLEL(.tp = tp ? n : 1);
    const uint64_t seed = ctx->streams.seed;
    ctx->streams.seed = ctx->rng.seed = seed + (tg_comm_rank(world) == n - 1);
    char says[128];
    snprintf(says, sizeof says, "has seed 7 on rank 0 of axis %s and seed 8 on rank %d, expected one seed",
             tp ? "tp" : "dp", n - 1);
    REFUSED(ctx, TG_ERR_PLACEMENT, says, tg_parallel_new(world, o));
    ctx->streams.seed = ctx->rng.seed = seed;
    RUN(tg_rng_add(ctx, "mine", 100 + (uint64_t)tg_comm_rank(world))); /* the remedy */
    tg_parallel *p = tg_parallel_new(world, o);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* The stages of a pipeline may have seeds of their own. */
static tg_status stages(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    ctx->streams.seed = ctx->rng.seed = 7 + (uint64_t)tg_comm_rank(world);
    tg_parallel_free(tg_parallel_new(world, TG_PARALLEL(.pp = tg_comm_size(world))));
    return tg_ctx_status(ctx);
}

START_TEST(default_streams_have_one_seed) {
    for (int n = 2; n <= 4; n += 2) {
        passes(n, streams, (void *)"tp");
        passes(n, streams, (void *)"dp");
        passes(n, stages, NULL);
    }
}
END_TEST

/* ---- Numbers given to ops ---- */

static tg_status numbers(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    char says[256];
    const int n = tg_comm_size(world);
    tg_tensor *x = grad_leaf(declared(&g, 2)), *c = declared(&g, 3);
    snprintf(says, sizeof says,
             "between ranks 0 and %d: element 1 is 0.5 on rank 0 and 0.25 on rank %d. Its inputs are the same, so the "
             "ranks gave it different numbers (a is 0.5 on rank 0, 0.25 on rank %d)",
             n - 1, n - 1, n - 1);
    REFUSED(ctx, TG_ERR_PLACEMENT, says, tg_scale(g.t, x, g.last ? 0.25 : 0.5));
    REFUSED(ctx, TG_ERR_PLACEMENT, "gave it different numbers (start is 0 on rank 0, 1 on rank ",
            tg_slice(g.t, x, 0, g.last ? 1 : 0, g.last ? 3 : 2, 1));
    tg_tensor *scaled = tg_scale(g.t, c, g.last ? 0.25 : 0.5); /* no gradient: found where one is needed */
    REFUSED(ctx, TG_ERR_PLACEMENT, "mul: its input f64[3] is I on axis tp, but its bytes differ between ranks 0 and ",
            tg_mul(g.t, x, scaled));
    RUN(tg_rng_add(ctx, "mine", 100 + (uint64_t)tg_comm_rank(world)));
    RUN(tg_rng_fork(ctx, "mine"));
    tg_tensor *long_one = tg_expand(g.t, tg_reshape(g.t, x, TG_SHAPE(1, 3)), TG_SHAPE(50, 3));
    REFUSED(ctx, TG_ERR_PLACEMENT, "or drew from streams with different seeds", tg_dropout(g.t, long_one, 0.5));
    RUN(tg_rng_join(ctx));
    /* legitimate: equal numbers; numbers of this rank for what varies; numbers without a gradient on one rank only */
    tg_tensor *y = tg_dropout(g.t, tg_scale(g.t, x, 0.5), 0.5);
    tg_tensor *v = grad_leaf(tg_from_host(ctx, TG_F64, TG_SHAPE(3), (double[]){0, 1, g.last}));
    tg_scale(g.t, v, 1 + tg_comm_rank(world));
    if (g.last) {
        bool grad = tg_tape_set_grad_mode(g.t, false);
        tg_item(tg_mean(g.t, y, TG_ALL_DIMS, false));
        tg_tape_set_grad_mode(g.t, grad);
    }
    RUN(tg_backward(g.t, tg_sum(g.t, tg_square(g.t, y), TG_ALL_DIMS, false)));
    return end(&g);
}

START_TEST(numbers_given_to_ops_are_compared) {
    passes(2, numbers, NULL);
    passes(4, numbers, NULL);
}
END_TEST

/* A backward has discarded the bytes of an op's result. An op that does not read them, such as a view, may still use
 * it. */
static tg_status discarded(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    group g = begin(ctx, world, TG_RNG_GLOBAL);
    tg_tensor *x = grad_leaf(declared(&g, 2)), *y = tg_exp(g.t, x);
    RUN(tg_backward(g.t, tg_sum(g.t, y, TG_ALL_DIMS, false)));
    EXPECT(ctx, tg_storage_state_of(y) == TG_DISCARDED);
    tg_tensor *view = tg_slice(g.t, y, 0, 1, 3, 1);
    EXPECT(ctx, tg_is_alive(view) && tg_storage_state_of(view) == TG_DISCARDED);
    return end(&g);
}

START_TEST(discarded_results_are_not_compared) { passes(2, discarded, NULL); }
END_TEST

/* ---- A plan ---- */

/* On a plan the other ranks' bytes do not exist, so there is nothing to compare. */
START_TEST(a_plan_compares_nothing) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .check = true));
    tg_comm *world = tg_comm_plan_new(ctx, 1, 4);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1);
    tg_backward(t, tg_sum(t, tg_square(t, w), TG_ALL_DIMS, false));
    tg_grads_finalize(p, &w, 1, NULL);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Streams seeded by rank ---- */

static const char *text(const tg_tensor *x) {
    static _Thread_local char buf[64];
    tg_placement_text(x, buf, sizeof buf);
    return buf;
}

static tg_status drawn(void *arg, tg_ctx *ctx, tg_comm *world) {
    group g = begin(ctx, world, TG_RNG_MEGATRON);
    (void)arg;
    RUN(tg_rng_seed_parallel(g.p, 7));
    tg_tensor *x = grad_leaf(declared(&g, 2)), *c = declared(&g, 2), *r = grad_leaf(declared(&g, 2));
    tg_tensor *v = grad_leaf(tg_from_host(ctx, TG_F64, TG_SHAPE(2), (double[]){1, 2}));
    tg_place(g.p, v, TG_TP, TG_SHARD(0));
    tg_comm *tp = tg_parallel_comm(g.p, TG_TP);
    tg_tensor *copied = tg_copy_to_tp(g.t, r, tp);
    EXPECT(ctx, !*text(tg_dropout(g.t, x, 0.5))); /* one mask for all ranks */
    tg_rng_fork(ctx, "model-parallel-rng");
    tg_tensor *kept = tg_dropout(g.t, v, 0.5), *mixed = tg_dropout(g.t, copied, 0.5);
    EXPECT(ctx, !strcmp(text(kept), "tp V0") && !strcmp(text(mixed), "tp V"));
    EXPECT(ctx, !strcmp(text(tg_dropout(g.t, c, 0.5)), "tp V"));
    REFUSED(ctx, TG_ERR_PLACEMENT, "dropout: on axis tp its inputs are I: the random stream has another seed",
            tg_dropout(g.t, x, 0.5));
    EXPECT(ctx, !*text(tg_dropout(g.t, x, 0))); /* draws nothing */
    tg_tensor *p = tg_sum(g.t, v, TG_ALL_DIMS, false);
    REFUSED(ctx, TG_ERR_PLACEMENT, "dropout: on axis tp its inputs are P", tg_dropout(g.t, p, 0.5));
    tg_rng_join(ctx);
    RUN(tg_backward(g.t, tg_reduce_from_tp(g.t, tg_sum(g.t, kept, TG_ALL_DIMS, false), tp)));
    tg_tensor *gr, *zeros = tg_zeros(ctx, TG_F64, TG_SHAPE(3)); /* the gradients of r are summed by copy_to_tp */
    RUN(tg_grad(g.t, &mixed, 1, &r, 1, &gr, TG_GRAD(.seeds = &zeros)));
    EXPECT(ctx, !*text(gr));
    return end(&g);
}

START_TEST(a_mask_of_each_rank_makes_the_result_vary) {
    passes(2, drawn, NULL);
    passes(4, drawn, NULL);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {leaves_are_compared_at_their_first_use,
                                  a_leaf_is_compared_again_after_a_file_was_read,
                                  buffers_of_modules_are_compared,
                                  seeds_are_compared_where_the_gradient_is_equal,
                                  what_hooks_return_is_compared,
                                  default_streams_have_one_seed,
                                  numbers_given_to_ops_are_compared,
                                  discarded_results_are_not_compared,
                                  a_plan_compares_nothing,
                                  a_mask_of_each_rank_makes_the_result_vary};
    return tg_check_main("check_mode", tests, TG_LEN(tests));
}
