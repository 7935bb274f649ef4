/* Modules: casts of their parameters, 16 bits, and initial values. */
#include <math.h>

#include <tapegrad/capture.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>

#include "core/context.h"
#include "kernels/scalar.h"
#include "mixer.h"

static void copy_to(tg_tensor *to, tg_tensor *from, bool add) {
    const double none[2] = {0, 0};
    tg_array out = tg_array_of(to), in = tg_array_of(from);
    tg_storage_wrote(to->storage, "copy_to", NULL);
    ctx->run.ops->apply(ctx, TG_FN_id, out, &in, 1, none, add);
}

/* ---- Casts ---- */

START_TEST(a_cast_keeps_the_handles) {
    static const double values[] = {1, 1 + 1.0 / 512, -3.5, 1e-3};
    begin();
    tg_module *m = tg_nn_linear(ctx, 4, 1, true, 0);
    tg_tensor *w = tg_module_find(m, "weight"), *b = tg_module_find(m, "bias"),
              *mean = of_host(TG_F64, TG_SHAPE(2), 0.1, 1), *table = of_host(TG_F32, TG_SHAPE(2), 1, 1),
              *steps = of_host(TG_I64, TG_SHAPE(), 3, 0), *x = of_host(TG_BF16, TG_SHAPE(1, 4), 1, 1);
    double v[4];
    tg_module_add_buffer(m, "mean", mean, TG_BUFFER(.keep_f32 = true));
    tg_module_add_buffer(m, "table", table, TG_BUFFER(.transient = true));
    tg_module_add_buffer(m, "steps", steps, NULL);
    tg_write_f64(w, values, 4);
    ck_assert(tg_module_cast(m, TG_BF16) == TG_OK);
    ck_assert(tg_module_find(m, "weight") == w && tg_dtype_of(w) == TG_BF16 && tg_dtype_of(b) == TG_BF16);
    ck_assert(tg_dtype_of(mean) == TG_F64 && tg_dtype_of(table) == TG_BF16 && tg_dtype_of(steps) == TG_I64);
    tg_read_f64(w, v, 4);
    ck_assert(v[0] == 1 && v[1] == 1 && v[2] == -3.5 && fabs(v[3] - 1e-3) < 1e-5); /* to nearest even */
    tg_backward(t, tg_sum(t, tg_module_forward(m, t, x), TG_ALL_DIMS, false));
    ck_assert(tg_item(tg_grad_of(b)) == 1 && tg_dtype_of(tg_grad_of(w)) == TG_F32);
    tg_tape_reset(t);
    tg_zero_grad(w);
    tg_zero_grad(b);
    ck_assert(tg_module_cast(m, TG_F64) == TG_OK); /* and back: the rounded values, and gradients in float64 */
    tg_read_f64(w, v, 4);
    ck_assert(v[1] == 1 && tg_dtype_of(w) == TG_F64);
    tg_backward(t, tg_sum(t, w, TG_ALL_DIMS, false));
    ck_assert(tg_dtype_of(tg_grad_of(w)) == TG_F64);
    tg_drop(x);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

static void cast_refused(tg_module *m, const char *says) {
    tg_tensor *w = tg_module_find(m, "weight"), *b = tg_module_find(m, "bias");
    ck_assert_int_eq(tg_module_cast(m, TG_BF16), TG_ERR_STATE);
    ck_says(says);
    tg_ctx_clear(ctx);
    ck_assert(tg_dtype_of(w) == TG_F64 && tg_dtype_of(b) == TG_F64); /* none is cast */
}

static tg_status use(void *state, tg_ctx *c) {
    tg_tensor *w = tg_module_find(state, "weight");
    copy_to(w, tg_scale(t, w, 1), false);
    tg_tape_reset(t);
    return tg_ctx_status(c);
}

START_TEST(what_relies_on_a_dtype_refuses_a_cast) {
    begin();
    tg_module *m = tg_nn_linear(ctx, 2, 1, true, 0.5);
    tg_tensor *w = tg_module_find(m, "weight"), *b = tg_module_find(m, "bias");
    tg_tensor *kept = tg_keep(b), *sum = of_host(TG_F64, TG_SHAPE(1), 0, 0);
    cast_refused(m, "\"bias\" cannot get another dtype: another handle");
    tg_drop(kept);
    tg_backward(t, tg_sum(t, b, TG_ALL_DIMS, false));
    cast_refused(m, "a node of a tape uses it");
    tg_tape_reset(t);
    cast_refused(m, "it has a gradient");
    tg_zero_grad(b);
    tg_set_main_grad(b, sum);
    cast_refused(m, "it has a main gradient");
    tg_set_main_grad(b, NULL);
    tg_optim *o = tg_sgd_new(ctx, &b, 1, TG_SGD(.lr = 1));
    cast_refused(m, "an optimizer holds it");
    tg_optim_free(o);
    tg_graph *g = tg_graph_new(ctx, use, m);
    if (test_device()) cast_refused(m, "\"weight\" cannot get another dtype: a captured step holds it");
    tg_graph_free(g);
    ck_assert(tg_module_keep_f32(m, "weight") == TG_OK && tg_module_cast(m, TG_BF16) == TG_OK);
    ck_assert(tg_dtype_of(w) == TG_F64 && tg_dtype_of(b) == TG_BF16);
    tg_drop(sum);
    tg_module_free(m);
    end();
}
END_TEST

/* An allocator that fails from a given call on. */
static int left;

static void *take(void *user, size_t bytes, size_t align) {
    (void)user;
    return left-- > 0 ? aligned_alloc(align, (bytes + align - 1) / align * align) : NULL;
}

static void give(void *user, void *p, size_t bytes) {
    (void)user, (void)bytes;
    free(p);
}

/* Whatever allocation fails, a cast converts all tensors or none, and nothing leaks. */
START_TEST(a_failed_cast_changes_nothing) {
    for (int fail = 0; fail < 12; fail++) {
        left = 1 << 30;
        ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {take, give, NULL}));
        tg_module *m = tg_module_new(ctx, &(tg_module_ops){.size = sizeof(tg_module_ops), .kind = "list"}, NULL);
        for (int i = 0; i < 3; i++) {
            char name[8];
            snprintf(name, sizeof name, "%d", i);
            tg_module_add_child(m, name, tg_nn_linear(ctx, 1024, 1024, false, 0));
        }
        ck_status(TG_OK);
        left = fail;
        tg_status s = tg_module_cast(m, TG_F64);
        left = 1 << 30;
        tg_ctx_clear(ctx);
        for (int i = 0; i < 3; i++)
            ck_assert(tg_dtype_of(tg_module_param(m, i, NULL)) == (s == TG_OK ? TG_F64 : TG_F32));
        tg_module_free(m);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* ---- 16 bits ---- */

START_TEST(a_float16_module_casts_at_the_ends) {
    begin();
    for (int first = 0; first < 2; first++)
        for (int last = 0; last < 2; last++) {
            tg_module *l = tg_nn_linear(ctx, 4, 2, true, 0.5), *f = tg_float16_new(l, TG_BF16, first, last);
            tg_tensor *x = of_host(first ? TG_F32 : TG_BF16, TG_SHAPE(1, 4), 1, 0.125), *y = tg_module_forward(f, t, x);
            ck_assert(tg_dtype_of(tg_module_find(f, "weight")) == TG_BF16);
            ck_assert(tg_module_find(f, "weight") == tg_module_find(l, "weight") && tg_module_child(f, "") == l);
            ck_assert_int_eq(tg_dtype_of(y), last ? TG_F32 : TG_BF16);
            tg_float16_set_output(f, false);
            ck_assert_int_eq(tg_dtype_of(tg_module_forward(f, t, x)), TG_BF16);
            tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
            ck_assert(tg_has_grad(tg_module_find(f, "weight")));
            tg_drop(x);
            tg_tape_reset(t);
            tg_module_free(f);
        }
    end();
}
END_TEST

START_TEST(integers_pass_a_float16_module) {
    const int64_t numbers[] = {1, 0, 3};
    begin();
    tg_module *f = tg_float16_new(tg_nn_embedding(ctx, 4, 2, 1), TG_F16, true, true);
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(3), numbers), *y = tg_module_forward(f, t, ids);
    ck_assert(tg_dtype_of(y) == TG_F32 && tg_dim(y, 0) == 3);
    tg_drop(ids);
    tg_tape_reset(t);
    tg_module_free(f);
    end();
}
END_TEST

/* ---- Initial values ---- */

static void squares(void *user, int64_t first, int64_t n, double *out) {
    (void)user;
    for (int64_t i = 0; i < n; i++) out[i] = (double)((first + i) * (first + i));
}

START_TEST(initial_values_have_their_distribution) {
    enum { SIZE = 20000 };
    static double v[SIZE];
    begin();
    for (int kind = TG_INIT_NORMAL; kind <= TG_INIT_CALL; kind++) {
        bool call = kind == TG_INIT_CALL;
        tg_tensor *x = tg_param_new(ctx, "x", kind % 2 ? TG_F32 : TG_F64, TG_SHAPE(SIZE / 100, 100), 0);
        tg_rng before, after;
        tg_rng_get(ctx, NULL, &before);
        ck_assert(tg_param_init(x, TG_INIT(.kind = (tg_init_kind)kind, .a = 1, .b = call ? 0 : 3,
                                           .fill = call ? squares : NULL)) == TG_OK);
        tg_rng_get(ctx, NULL, &after);
        ck_assert_uint_eq(after.counter - before.counter, kind <= TG_INIT_TRUNCATED ? SIZE : 0);
        double mean = 0, var = 0, least = INFINITY, most = -INFINITY;
        tg_read_f64(x, v, SIZE);
        for (int i = 0; i < SIZE; i++) mean += v[i] / SIZE, least = fmin(least, v[i]), most = fmax(most, v[i]);
        for (int i = 0; i < SIZE; i++) var += (v[i] - mean) * (v[i] - mean) / SIZE;
        switch (kind) {
        case TG_INIT_NORMAL:
            ck_assert(fabs(mean - 1) < 0.1 && fabs(var - 9) < 0.4 && most > 9);
            break;
        case TG_INIT_UNIFORM:
            ck_assert(fabs(mean - 2) < 0.02 && least >= 1 && most < 3 && most > 2.99);
            break;
        /* The variance of a normal distribution between -2 and 2 is 0.7737. */
        case TG_INIT_TRUNCATED:
            ck_assert(fabs(mean - 1) < 0.1 && fabs(var - 9 * 0.7737) < 0.3 && least >= -5 && most <= 7 && most > 6.9);
            break;
        case TG_INIT_CONSTANT:
            ck_assert(least == 1 && most == 1);
            break;
        case TG_INIT_CALL:
            ck_assert(v[0] == 0 && v[1] == 1 && v[19999] == 19999.0 * 19999.0);
            break;
        }
        tg_drop(x);
    }
    end();
}
END_TEST

START_TEST(wrong_initial_values_are_refused) {
    static const struct {
        tg_init init;
        const char *says;
    } rows[] = {{{.size = sizeof(tg_init), .kind = 7}, "the kind of the tg_init is 7"},
                {{.size = sizeof(tg_init), .kind = TG_INIT_NORMAL, .b = -1}, "a standard deviation b of 0 or more"},
                {{.size = sizeof(tg_init), .kind = TG_INIT_UNIFORM, .a = 2, .b = 1}, "expected finite lo <= hi"},
                {{.size = sizeof(tg_init), .kind = TG_INIT_CONSTANT, .a = INFINITY}, "expected finite numbers"},
                {{.size = sizeof(tg_init), .kind = TG_INIT_CALL}, "fill is NULL"},
                {{.size = sizeof(tg_init), .kind = TG_INIT_CONSTANT, .fill = squares}, "fill is not NULL"}};
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_F32, TG_SHAPE(2), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_int_eq(tg_param_init(x, &rows[i].init), TG_ERR_ARGUMENT);
        ck_says(rows[i].says);
        tg_ctx_clear(ctx);
    }
    tg_drop(x);
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_cast_keeps_the_handles,        what_relies_on_a_dtype_refuses_a_cast,
                                  a_failed_cast_changes_nothing,   a_float16_module_casts_at_the_ends,
                                  integers_pass_a_float16_module,  initial_values_have_their_distribution,
                                  wrong_initial_values_are_refused};
    return tg_check_main("module dtypes", tests, sizeof tests / sizeof *tests);
}
