/* tg_module_save: one file from one rank, which tg_module_load reads again, and parts that are refused. */
#define _GNU_SOURCE
#include <tapegrad/tensor_parallel.h>

#include "state.h"

static tg_tensor *buffer_of(tg_ctx *ctx, double value) {
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
    tg_write_f64(x, (double[]){value, -value}, 2);
    return x;
}

/* A layer, a buffer that is saved, and one that is not. */
static tg_module *model_new(tg_ctx *ctx, double value) {
    tg_module *m = tg_module_new(ctx, &box, NULL);
    tg_module_add_child(m, "up", tg_nn_linear(ctx, 4, 8, true, 0.5));
    tg_module_add_buffer(m, "mean", buffer_of(ctx, value), NULL);
    tg_module_add_buffer(m, "table", buffer_of(ctx, value), TG_BUFFER(.transient = true));
    return m;
}

static double value_at(tg_module *m, const char *path, int64_t i) {
    double v[64];
    tg_tensor *x = tg_module_find(m, path);
    return tg_read_f64(x, v, tg_numel(x)) == TG_OK ? v[i] : NAN;
}

static tg_status saved_alone(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg, (void)world;
    char path[256];
    tg_module *m = model_new(ctx, 7), *other = model_new(ctx, 1);
    tg_module_add_param(m, "tied", tg_module_find(m, "up.bias")); /* saved once, as up.bias */
    RUN(tg_module_save(m, in_root(path, "alone")));
    RUN(tg_module_load(other, path, NULL)); /* strict: each key is there, and no other */
    for (int i = 0; i < 32; i++) EXPECT(ctx, value_at(m, "up.weight", i) == value_at(other, "up.weight", i));
    EXPECT(ctx, value_at(other, "mean", 1) == -7 && value_at(other, "table", 0) == 1);
    RUN(tg_module_cast(other, TG_F32));
    REFUSED(ctx, TG_ERR_FORMAT, "set convert", tg_module_load(other, path, NULL));
    RUN(tg_module_load(other, path, TG_LOAD(.convert = true)));
    EXPECT(ctx, value_at(other, "up.weight", 3) == (float)value_at(m, "up.weight", 3));
    RUN(tg_module_save(other, path)); /* in place of the first file */
    RUN(tg_module_load(m, path, TG_LOAD(.convert = true)));
    EXPECT(ctx, value_at(m, "up.weight", 3) == value_at(other, "up.weight", 3));
    tg_module_free(m);
    tg_module_free(other);
    return tg_ctx_status(ctx);
}

/* Names of any length are saved in full. */
static tg_status saves_long_names(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg, (void)world;
    enum { DEPTH = 4 };
    char path[256], name[256], want[DEPTH * 256 + 8] = "", again[sizeof want];
    const char *is;
    tg_module *m[2];
    for (int k = 0; k < 2; k++) {
        m[k] = tg_module_new(ctx, &box, NULL);
        tg_module *inner = m[k];
        *want = 0;
        for (int d = 0; d < DEPTH; d++) {
            memset(name, 'a' + d, sizeof name - 1);
            name[sizeof name - 1] = 0;
            tg_module *next = d < DEPTH - 1 ? tg_module_new(ctx, &box, NULL) : tg_nn_linear(ctx, 2, 2, true, 0.5);
            tg_module_add_child(inner, name, next);
            inner = next;
            strcat(strcat(want, name), ".");
        }
    }
    for (int i = 0; i < 2; i++) {
        EXPECT(ctx, tg_is_alive(tg_module_param(m[0], i, &is)));
        snprintf(again, sizeof again, "%s%s", want, i ? "bias" : "weight");
        EXPECT(ctx, !strcmp(is, again));
    }
    RUN(tg_module_save(m[0], in_root(path, "long")));
    RUN(tg_module_load(m[1], path, NULL));
    EXPECT(ctx, value_at(m[0], again, 1) == value_at(m[1], again, 1));
    for (int k = 0; k < 2; k++) tg_module_free(m[k]);
    return tg_ctx_status(ctx);
}

START_TEST(long_names_are_saved) { on_ranks(1, saves_long_names, NULL); }
END_TEST

START_TEST(one_rank_saves_one_file) { on_ranks(1, saved_alone, NULL); }
END_TEST

/* A rank with only a part writes nothing: the file of before is still there. */
static tg_status refuses_shards(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char path[256];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_module *m = tg_nn_column_linear(p, 4, 8, NULL);
    tg_module *whole = tg_nn_linear(ctx, 2, 2, false, 1), *again = tg_nn_linear(ctx, 2, 2, false, 1);
    in_root(path, "kept-%d", tg_comm_rank(world));
    RUN(tg_module_save(whole, path));
    REFUSED(ctx, TG_ERR_PLACEMENT, "\"weight\" is only this rank's part of a tensor; save the parts of all ranks",
            tg_module_save(m, path));
    RUN(tg_module_load(again, path, NULL));
    EXPECT(ctx, value_at(again, "weight", 3) == value_at(whole, "weight", 3));
    tg_module_free(m);
    tg_module_free(whole);
    tg_module_free(again);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_part_is_refused) { on_ranks(2, refuses_shards, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {one_rank_saves_one_file, long_names_are_saved, a_part_is_refused};
    return state_main("module save", tests, sizeof tests / sizeof *tests);
}
