/* Leaves that tg_place did not declare: which of them may differ between ranks, and what a refusal says of them. */
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/io.h>
#include <tapegrad/megatron.h>
#include <tapegrad/tensor_parallel.h>

#include "placement/plan_groups.h"

/* A file may be another one on each rank. */
static void bytes_of_a_file(groups *g, const char *path) {
    double v[2] = {1, 2};
    tg_tensor *x = tg_from_host(g->ctx, TG_F64, TG_SHAPE(2), v), *w = tg_param_new(g->ctx, "w", TG_F64, TG_SHAPE(2), 0);
    tg_tensor *fresh = tg_zeros(g->ctx, TG_F64, TG_SHAPE(2)), *placed = tg_zeros(g->ctx, TG_F64, TG_SHAPE(2));
    tg_safetensors_save(g->ctx, path, &(tg_named_tensor){"x", x}, 1, NULL, 0);
    tg_safetensors *f = tg_safetensors_open(g->ctx, path);
    ck_place(tg_safetensors_load(f, "x"), "tp V, dp V");
    tg_safetensors_read(f, "x", fresh, false);
    ck_place(fresh, "tp V, dp V");
    tg_place(g->p, placed, TG_TP, TG_R);
    tg_safetensors_read(f, "x", placed, false);
    ck_place(placed, "tp R"); /* what was declared stays */
    tg_safetensors_read(f, "x", w, false);
    ck_place(w, ""); /* a parameter that every rank loads is the same one */
    tg_safetensors_close(f);
}

START_TEST(files_are_each_ranks_own) {
    groups g = begin();
    char dir[] = "/tmp/tg_leaves_XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/x.safetensors", dir);
    bytes_of_a_file(&g, path);
    unlink(path);
    rmdir(dir);
    end(&g);
}
END_TEST

START_TEST(deliveries_are_each_ranks_own) {
    groups g = begin();
    tg_comm *c = tg_parallel_comm(g.p, TG_TP);
    tg_tensor *all = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4)), *to[7];
    for (int i = 0; i < 7; i++) to[i] = tg_zeros(g.ctx, TG_F64, TG_SHAPE(i < 5 ? 2 : 4));
    tg_comm_scatter(c, to[0], NULL, 0); /* a plan moves nothing, and places alike */
    tg_comm_reduce_scatter(c, to[1], all, TG_REDUCE_SUM);
    tg_comm_reduce_scatter_v(c, to[2], all, (const int64_t[]){2, 2}, TG_REDUCE_SUM);
    tg_comm_recv(c, to[3], 0);
    tg_place(g.p, to[4], TG_TP, TG_SHARD(0));
    tg_comm_recv(c, to[4], 0);
    tg_comm_all_to_all(c, to[5], all, NULL, NULL);
    tg_comm_all_reduce(c, to[6], all, TG_REDUCE_SUM);
    static const char *const is[] = {"tp V, dp V", "tp V, dp V", "tp V, dp V", "tp V, dp V", "tp V0", "tp V, dp V", ""};
    for (int i = 0; i < 7; i++) ck_place(to[i], is[i]);
    end(&g);
}
END_TEST

START_TEST(draws_of_own_seeds_vary) {
    groups g = begin();
    const tg_rng other = {.seed = 9};
    tg_rng before;
    tg_rng_get(g.ctx, NULL, &before);
    ck_place(tg_uniform(g.ctx, TG_F64, TG_SHAPE(2), 0, 1), "");
    tg_rng_set(g.ctx, NULL, &other);
    ck_place(tg_uniform(g.ctx, TG_F64, TG_SHAPE(2), 0, 1), "tp V, dp V");
    ck_place(tg_param_new(g.ctx, "w", TG_F64, TG_SHAPE(2), 1), ""); /* what a parameter is, is declared */
    tg_rng_set(g.ctx, NULL, &before);
    ck_place(tg_randn(g.ctx, TG_F64, TG_SHAPE(2), 1), "");
    tg_rng_add(g.ctx, "noise", 5);
    tg_rng_fork(g.ctx, "noise");
    ck_place(tg_randn(g.ctx, TG_F64, TG_SHAPE(2), 1), "tp V, dp V");
    tg_rng_join(g.ctx);
    ck_place(tg_randn(g.ctx, TG_F64, TG_SHAPE(2), 1), "");
    tg_rng_seed_parallel(g.p, 3); /* TG_RNG_GLOBAL: no stream is one rank's */
    ck_place(tg_randn(g.ctx, TG_F64, TG_SHAPE(2), 1), "");
    tg_rng_fork(g.ctx, "model-parallel-rng");
    ck_place(tg_randn(g.ctx, TG_F64, TG_SHAPE(2), 1), "");
    tg_rng_join(g.ctx);
    tg_parallel_free(g.p);
    g.p = tg_parallel_new(g.world, TG_PARALLEL(.tp = 2, .rng = TG_RNG_MEGATRON));
    tg_rng_seed_parallel(g.p, 3);
    tg_rng_fork(g.ctx, "data-parallel-rng");
    ck_place(tg_randn(g.ctx, TG_F64, TG_SHAPE(2), 1), "");
    tg_rng_join(g.ctx);
    tg_rng_fork(g.ctx, "model-parallel-rng");
    ck_place(tg_randn(g.ctx, TG_F64, TG_SHAPE(2), 1), "tp V, dp V");
    tg_rng_join(g.ctx);
    end(&g);
}
END_TEST

START_TEST(a_leaf_may_be_placed_alike_again) {
    groups g = begin();
    tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(4, 3));
    tg_place(g.p, x, TG_DP, TG_SHARD(0));
    tg_place(g.p, x, TG_TP, TG_SHARD(-2));
    tg_neg(g.t, x);
    ck_assert_int_eq(tg_place(g.p, x, TG_TP, TG_SHARD(0)), TG_OK); /* by another name of the dim, and after a use */
    ck_assert_int_eq(tg_place(g.p, x, TG_DP, TG_SHARD(0)), TG_OK);
    ck_place(x, "tp V0, dp V0");
    ck_assert_int_eq(tg_placement_of(x, TG_TP).order, 1);
    tg_place(g.p, x, TG_TP, TG_SHARD(1));
    ck_refused(g, TG_ERR_STATE, "was placed on axis tp already: it is V0 there, and cannot become V1");
    end(&g);
}
END_TEST

/* ---- What a refusal advises ---- */

#define DECLARE(i, leaf, axis)                                                                          \
    "declare the leaf that input " #i " comes from, " leaf ", before its first use: tg_place(p, leaf, " \
    axis ", TG_I) if every rank has the same"

START_TEST(a_refusal_names_the_leaf_that_was_not_declared) {
    groups g = begin();
    double v[12] = {0};
    int64_t ids[2] = {0, 1};
    tg_comm *c = tg_parallel_comm(g.p, TG_TP);
    tg_tensor *x = tg_from_host(g.ctx, TG_F64, TG_SHAPE(2, 2, 3), v);
    tg_tensor *w = tg_param_new(g.ctx, "w", TG_F64, TG_SHAPE(4, 3), 1);
    tg_tensor *id = tg_from_host(g.ctx, TG_I64, TG_SHAPE(1, 2), ids);
    tg_tensor *norm = tg_param_new(g.ctx, "norm", TG_F64, TG_SHAPE(3), 1);
    tg_module *column = tg_nn_column_linear(g.p, 3, 4, NULL), *row = tg_nn_row_linear(g.p, 6, 4, NULL);
    tg_module *table = tg_nn_vocab_embedding(g.p, 4, 3, 1, NULL);
    tg_set_name(x, "x");
    tg_place(g.p, w, TG_TP, TG_SHARD(1));
    tg_place(g.p, w, TG_DP, TG_R);
    tg_copy_to_tp(g.t, tg_transpose(g.t, x, 0, 1), c);
    ck_refused(g, TG_ERR_PLACEMENT, DECLARE(0, "x f64[2, 2, 3]", "TG_TP"));
    tg_copy_to_tp(g.t, tg_neg(g.t, x), c); /* without a gradient nothing leads back to x */
    ck_refused(g, TG_ERR_PLACEMENT,
               "declare the leaf that input 0 comes from, before its first use: tg_place(p, leaf, TG_TP, TG_I)");
    tg_reduce_from_tp(g.t, tg_linear(g.t, x, w, NULL), c);
    ck_refused(g, TG_ERR_PLACEMENT, DECLARE(0, "x f64[2, 2, 3]", "TG_TP"));
    tg_module_forward(column, g.t, x);
    ck_refused(g, TG_ERR_PLACEMENT, DECLARE(0, "x f64[2, 2, 3]", "TG_TP"));
    tg_module_forward(row, g.t, x);
    ck_refused(g, TG_ERR_PLACEMENT, DECLARE(0, "x f64[2, 2, 3]", "TG_TP"));
    tg_module_forward(table, g.t, id);
    ck_refused(g, TG_ERR_PLACEMENT, DECLARE(1, "i64[1, 2]", "TG_TP"));
    tg_mul(g.t, x, norm);
    ck_refused(g, TG_ERR_PLACEMENT, DECLARE(0, "x f64[2, 2, 3]", "TG_TP"));
    tg_module_free(column);
    tg_module_free(row);
    tg_module_free(table);
    end(&g);
}
END_TEST

/* A leaf that the program has declared TG_V gets no such advice, nor does what is computed from it. */
START_TEST(a_refusal_names_no_leaf_that_was_declared) {
    groups g = begin();
    double v[6] = {0};
    tg_comm *c = tg_parallel_comm(g.p, TG_TP);
    tg_tensor *x = tg_from_host(g.ctx, TG_F64, TG_SHAPE(2, 3), v);
    tg_place(g.p, x, TG_TP, TG_V);
    tg_set_requires_grad(x, true);
    for (int computed = 0; computed < 2; computed++) {
        tg_copy_to_tp(g.t, computed ? tg_neg(g.t, x) : x, c);
        ck_assert_msg(!strstr(tg_ctx_message(g.ctx), "declare the leaf"), "%s", tg_ctx_message(g.ctx));
        ck_refused(g, TG_ERR_PLACEMENT, "tg_copy_to_tp");
    }
    end(&g);
}
END_TEST

/* What every rank of dp has the same of, and needs a gradient, next to a layer that the ranks share. */
START_TEST(a_refusal_names_the_leaf_that_is_I_on_dp) {
    groups g = begin();
    tg_tensor *x = tg_zeros(g.ctx, TG_F64, TG_SHAPE(2, 2, 3)), *w = tg_param_new(g.ctx, "w", TG_F64, TG_SHAPE(3, 3), 1);
    tg_module *column = tg_nn_column_linear(g.p, 3, 4, NULL);
    tg_set_name(x, "x");
    tg_place(g.p, x, TG_DP, TG_I);
    tg_set_requires_grad(x, true);
    tg_module_forward(column, g.t, x);
    ck_refused(g, TG_ERR_PLACEMENT,
               "declare the leaf that input 0 comes from, x f64[2, 2, 3], as R before its first use, tg_place(p, leaf, "
               "TG_DP, TG_R), or all parameters of a module by tg_module_replicate");
    tg_module_forward(column, g.t, tg_linear(g.t, tg_detach(g.t, x), w, NULL));
    ck_refused(g, TG_ERR_PLACEMENT,
               "declare the leaf that input 0 comes from, w f64[3, 3], as R before its first use, ");
    tg_module_free(column);
    end(&g);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {files_are_each_ranks_own,
                                  deliveries_are_each_ranks_own,
                                  draws_of_own_seeds_vary,
                                  a_leaf_may_be_placed_alike_again,
                                  a_refusal_names_the_leaf_that_was_not_declared,
                                  a_refusal_names_no_leaf_that_was_declared,
                                  a_refusal_names_the_leaf_that_is_I_on_dp};
    return tg_check_main("undeclared", tests, sizeof tests / sizeof *tests);
}
