/* Patterns of paths: what they match, and the groups and frozen parameters that they choose. */
#include <math.h>

#include <tapegrad/nn.h>
#include <tapegrad/optim.h>

#include "base/os.h"
#include "base/pattern.h"
#include "world.h"

START_TEST(patterns_match_consecutive_components) {
    static const struct {
        const char *pattern, *path;
        bool matches;
    } cases[] = {
        {"q_proj", "model.layers.0.self_attn.q_proj", true}, {"q_proj", "q_proj", true},
        {"proj", "model.layers.0.self_attn.q_proj", false},  {"*proj", "model.layers.0.self_attn.q_proj", true},
        {"layers.0", "model.layers.0.mlp.up.weight", true},  {"layers.0", "model.layers.01.mlp", false},
        {"layers.1", "model.layers.10.mlp", false},          {"layers.1?", "model.layers.10.mlp", true},
        {"h.[01].attn", "transformer.h.1.attn.c", true},     {"h.[01].attn", "transformer.h.2.attn.c", false},
        {"model", "model.norm.weight", true},                {"weight", "model.norm.weight", true},
        {"norm.bias", "model.norm.weight", false},           {"*", "a.b", true},
        {"a.b.c", "a.b", false},                             {"", "a.b", false},
        {"*norm*", "model.layers.0.input_layernorm.weight", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(tg_pattern_matches(cases[i].pattern, cases[i].path) == cases[i].matches, "%s, %s",
                      cases[i].pattern, cases[i].path);
    ck_assert(tg_patterns_match(",x,,b", "a.b") && !tg_patterns_match("x,y", "a.b") && !tg_patterns_match(NULL, "a"));
}
END_TEST

static tg_module *network(void) {
    tg_module *m = tg_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) tg_sequential_add(m, tg_nn_linear(ctx, 2, 2, true, 0.5));
    return m;
}

START_TEST(frozen_parameters_get_no_gradient) {
    begin();
    tg_module *m = network();
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1, 2), (double[]){1, 2});
    ck_assert_int_eq(tg_module_train(m, "0,2.bias", false), 3);
    tg_backward(t, tg_sum(t, tg_module_forward(m, t, x), TG_ALL_DIMS, false));
    ck_assert(!tg_has_grad(tg_module_find(m, "0.weight")) && !tg_has_grad(tg_module_find(m, "0.bias")));
    ck_assert(tg_has_grad(tg_module_find(m, "1.weight")) && !tg_has_grad(tg_module_find(m, "2.bias")));
    ck_assert_int_eq(tg_module_train(m, "*", true), 6);
    ck_assert(tg_requires_grad(tg_module_find(m, "0.weight")));
    tg_module_free(m);
    end();
}
END_TEST

typedef struct memory {
    tg_allocator of;
    bool refuses;
} memory;

static void *get(void *user, size_t bytes, size_t align) {
    const memory *m = user;
    return m->refuses ? NULL : m->of.alloc(m->of.user, bytes, align);
}

static void give(void *user, void *p, size_t bytes) {
    const memory *m = user;
    m->of.free(m->of.user, p, bytes);
}

/* Without memory for the path of a parameter, which may match, the number of matches is not known. */
START_TEST(a_path_without_memory_is_an_error) {
    static const char *const name = "a name of 64 characters or more, for which the memory of paths must grow";
    memory of = {tg_system_allocator(), false};
    const tg_allocator a = {get, give, &of};
    tg_ctx *own = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = a));
    tg_module *m = tg_nn_sequential(own);
    tg_sequential_add(m, tg_nn_linear(own, 2, 2, false, 0.5));
    tg_module_add_child(m, name, tg_nn_linear(own, 2, 2, false, 0.5));
    const char *path;
    tg_module_param(m, 0, &path); /* a short one has memory */
    of.refuses = true;
    ck_assert_int_lt(tg_module_train(m, "0,weight", false), 0);
    ck_assert_int_eq(tg_ctx_status(own), TG_ERR_MEMORY);
    of.refuses = false;
    tg_module_free(m);
    tg_ctx_free(own);
}
END_TEST

START_TEST(groups_are_chosen_by_name) {
    begin();
    tg_module *m = network();
    tg_tensor *params[6], *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1, 2), (double[]){1, 2});
    double was, is;
    for (int i = 0; i < 6; i++) {
        const char *path;
        params[i] = tg_module_param(m, i, &path);
        tg_set_name(params[i], path);
    }
    tg_optim *o = tg_sgd_new(ctx, params, 6, TG_SGD(.lr = 0.1));
    int group = tg_optim_add_group(o, TG_GROUP(.lr_scale = 0));
    ck_assert_int_eq(tg_optim_assign_named(o, group, "2.weight,0"), 3);
    tg_tensor *still = tg_module_find(m, "2.weight"), *moves = tg_module_find(m, "2.bias");
    double before[4], after[4];
    tg_read_f64(still, before, 4);
    was = tg_item(tg_select(t, moves, 0, 0));
    tg_backward(t, tg_sum(t, tg_module_forward(m, t, x), TG_ALL_DIMS, false));
    tg_optim_step(o);
    tg_read_f64(still, after, 4);
    is = tg_item(tg_select(t, moves, 0, 0));
    ck_assert(!memcmp(before, after, sizeof before) && fabs(was - 0.1 - is) < 1e-12);
    tg_optim_free(o);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {patterns_match_consecutive_components, frozen_parameters_get_no_gradient,
                            a_path_without_memory_is_an_error, groups_are_chosen_by_name};
    return tg_check_main("patterns", tests, sizeof tests / sizeof *tests);
}
