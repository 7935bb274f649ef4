/* Captured modules as parts of other modules: how they are printed and found, and what tells their children apart. */
#include "captured_mixer.h"
#include "nn/captured/captured.h"

START_TEST(a_default_dtype_is_the_contexts) {
    begin();
    const tg_shape shape = {2, {3, 2}};
    tg_module *c = tg_captured_new(tg_nn_linear(ctx, 2, 2, true, 0.1), &shape, &(tg_dtype){TG_DTYPE_DEFAULT}, 1, 1);
    tg_tensor *x = tg_zeros(ctx, TG_DTYPE_DEFAULT, shape);
    tg_module_forward(c, t, x);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    char text[200];
    tg_module_print(c, text, sizeof text);
    ck_assert_msg(strstr(text, "captured (1 slot)\n"), "%s", text);
    tg_tape_reset(t);
    tg_drop(x);
    tg_module_free(c);
    end();
}
END_TEST

/* A module that is made at the address of one that was freed is another module. */
START_TEST(settings_show_a_child_in_the_place_of_another_one) {
    begin();
    tg_module *m = tg_nn_sequential(ctx);
    uint64_t before = tg_captured_settings(m);
    tg_module_add_child(m, "drop", tg_nn_dropout(ctx, 0.1));
    for (int i = 0; i < 4; i++) {
        uint64_t now = tg_captured_settings(m);
        ck_assert(now != before && now == tg_captured_settings(m));
        before = now;
        tg_module_free(tg_module_child(m, "drop"));
        tg_module_add_child(m, "drop", tg_nn_dropout(ctx, 0.2 + 0.1 * i));
    }
    tg_module_free(m);
    end();
}
END_TEST

START_TEST(a_captured_child_takes_its_place) {
    begin();
    static const tg_module_ops box = {.size = sizeof box, .kind = "box"};
    tg_module *parent = tg_module_new(ctx, &box, NULL);
    char text[600];
    tg_module_add_child(parent, "a", mixer_new());
    tg_module_add_child(parent, "b", tg_nn_linear(ctx, 2, 2, true, 0.1));
    tg_tensor *w = tg_module_find(parent, "a.body.weight");
    const char *path = NULL;
    tg_module_param(parent, 0, &path);
    tg_module *c = captured_of(tg_module_child(parent, "a"));
    ck_assert(tg_module_child(parent, "a") == c && tg_module_find(parent, "a.body.weight") == w);
    ck_assert(tg_module_param(parent, 0, &path) == w);
    ck_assert_str_eq(path, "a.body.weight");
    ck_assert_int_eq(tg_module_param_count(parent), 4);
    tg_module_print(parent, text, sizeof text);
    ck_assert_msg(strstr(text, "  a: captured (2 slots)\n    mixer (momentum 0.5)\n"), "%s", text);
    tg_module_free(c); /* leaves its parent */
    ck_assert(!tg_module_child(parent, "a"));
    ck_assert_int_eq(tg_module_param_count(parent), 2);
    tg_module_free(parent);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_default_dtype_is_the_contexts,
                            settings_show_a_child_in_the_place_of_another_one,
                            a_captured_child_takes_its_place};
    return tg_check_main("captured_children", tests, sizeof tests / sizeof *tests);
}
