/* tg_module_replace: the new child's place and name, who owns what, wrappers on the way, and what is refused. */
#include <tapegrad/nn.h>

#include "world.h"

static tg_tensor *scale_forward(tg_module *m, tg_tape *tape, tg_tensor *x) {
    tg_module *inner = tg_module_child(m, "inner");
    return tg_scale(tape, inner ? tg_module_forward(inner, tape, x) : x, 2);
}

static const tg_module_ops scale_ops = {.size = sizeof(tg_module_ops), .kind = "scale", .forward = scale_forward};

static tg_module *scale(void) { return tg_module_new(ctx, &scale_ops, NULL); }
static tg_module *linear(void) { return tg_nn_linear(ctx, 2, 2, true, 0.5); }

/* A sequence with a sequence of three linear layers in it, and a further layer. */
static tg_module *nested(void) {
    tg_module *m = tg_nn_sequential(ctx), *inner = tg_nn_sequential(ctx);
    for (int i = 0; i < 3; i++) tg_sequential_add(inner, linear());
    tg_module_add_child(m, "body", inner);
    tg_module_add_child(m, "head", linear());
    return m;
}

static void paths_are(tg_module *m, const char *const *want, int n) {
    const char *path;
    ck_assert_int_eq(tg_module_param_count(m), n);
    for (int i = 0; i < n; i++) {
        tg_module_param(m, i, &path);
        ck_assert_str_eq(path, want[i]);
    }
}

START_TEST(a_new_child_has_the_place_of_the_old_one) {
    static const char *const same[] = {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias",
                                       "body.2.weight", "body.2.bias", "head.weight",   "head.bias"};
    begin();
    tg_module *m = nested(), *new = linear();
    tg_tensor *was = tg_module_find(m, "body.1.weight"), *is = tg_module_find(new, "weight");
    tg_module_param(m, 2, NULL); /* leaves a position in the list */
    tg_module *old = tg_module_replace(m, "body.1", new);
    paths_are(m, same, 8);
    ck_assert(tg_module_param(m, 2, NULL) == is && tg_module_find(old, "weight") == was);
    ck_assert(tg_module_child(tg_module_child(m, "body"), "1") == new);
    ck_assert(tg_module_replace(m, "body.1", old) == new); /* and back */
    ck_assert(tg_module_find(m, "body.1.weight") == was);
    tg_module_free(new);
    tg_module *body = tg_module_replace(m, "body", scale());
    paths_are(body, (const char *[]){"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}, 6);
    paths_are(m, same + 6, 2);
    tg_module_free(body);
    tg_module_free(m);
    ck_assert(!tg_is_alive(was));
    end();
}
END_TEST

START_TEST(the_old_child_can_go_into_the_new_one) {
    static const char *const want[] = {"body.0.weight", "body.0.bias", "body.1.inner.weight", "body.1.inner.bias",
                                       "body.2.weight", "body.2.bias", "head.weight",         "head.bias"};
    begin();
    tg_module *m = nested(), *new = scale();
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1, 2), (double[]){1, 2}), *y;
    y = tg_module_forward(tg_module_child(tg_module_child(m, "body"), "1"), t, x);
    tg_module_add_child(new, "inner", tg_module_replace(m, "body.1", new));
    paths_are(m, want, 8);
    tg_tensor *z = tg_module_forward(tg_module_child(tg_module_child(m, "body"), "1"), t, x);
    ck_assert(tg_item(tg_sum(t, z, TG_ALL_DIMS, false)) == 2 * tg_item(tg_sum(t, y, TG_ALL_DIMS, false)));
    tg_tape_reset(t);
    tg_module *old = tg_module_child(new, "inner"); /* takes the wrapper away again */
    ck_assert(tg_module_replace(m, "body.1", old) == new && !tg_module_child(new, "inner"));
    tg_module_free(new);
    ck_assert(tg_is_alive(tg_module_find(m, "body.1.weight")) && tg_module_param_count(m) == 8);
    tg_module_free(m);
    end();
}
END_TEST

static tg_module *captured(tg_module *m) {
    return tg_captured_new(m, (tg_shape[]){TG_SHAPE(1, 2)}, (tg_dtype[]){TG_F64}, 1, 1);
}

START_TEST(wrappers_add_nothing_to_the_path) {
    begin();
    tg_module *m = tg_float16_new(nested(), TG_BF16, true, true), *new = linear();
    tg_module *old = tg_module_replace(m, "body.2", new);
    ck_assert(tg_module_find(m, "body.2.bias") == tg_module_find(new, "bias"));
    tg_module_free(old);
    captured(tg_module_child(m, "head"));
    old = tg_module_replace(m, "head", linear()); /* the captured module as a whole */
    ck_assert_str_eq(tg_module_kind(old), "captured");
    ck_assert_str_eq(tg_module_kind(tg_module_child(m, "head")), "linear");
    tg_module_free(old);
    tg_module_free(m);
    end();
}
END_TEST

/* ---- Refused ---- */

/* Checks a call that fails: nothing has changed, and the child is still the caller's. */
static void refused(tg_module *m, const char *path, tg_module *child, tg_status status, const char *says) {
    char before[1024], after[1024];
    tg_module_print(m, before, sizeof before);
    tg_module *old = tg_module_replace(m, path, child);
    ck_status(status);
    ck_says(says);
    ck_assert(old && tg_module_param_count(old) == 0 && !*tg_module_kind(old));
    tg_ctx_clear(ctx);
    tg_module_print(m, after, sizeof after);
    ck_assert_str_eq(before, after);
}

static tg_status replaces_itself(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)tape, (void)x, (void)n;
    tg_module_free(tg_module_replace(user, "body", tg_module_child(m, "none")));
    return tg_ctx_status(tg_module_ctx(m));
}

START_TEST(what_cannot_be_replaced_is_refused) {
    begin();
    tg_ctx *far = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_module *m = nested(), *new = linear(), *other = tg_nn_linear(far, 1, 1, false, 0);
    refused(m, "body.3", new, TG_ERR_ARGUMENT, "tg_module_replace: the \"sequential\" has no module \"body.3\"");
    refused(m, "body.1.", new, TG_ERR_ARGUMENT, "has no module \"body.1.\"");
    refused(m, "", new, TG_ERR_ARGUMENT, "has no module \"\"");
    refused(m, NULL, new, TG_ERR_ARGUMENT, "has no module \"(NULL)\"");
    refused(m, "head.bias", new, TG_ERR_ARGUMENT, "\"head.bias\", which is a parameter or buffer");
    refused(m, "head", NULL, TG_ERR_HANDLE, "the child for \"head\" is not a module of this context");
    refused(m, "head", other, TG_ERR_HANDLE, "is not a module of this context");
    refused(m, "head", tg_module_child(m, "body"), TG_ERR_STATE, "is already in a module");
    refused(m, "body.0", m, TG_ERR_STATE, "or contains this one");
    refused(m, "head", tg_module_child(m, "head"), TG_ERR_STATE, "is already in a module"); /* itself */
    captured(tg_module_child(m, "body"));
    refused(m, "body.0", new, TG_ERR_STATE, "\"body.0\" is in a captured module, whose graphs would go on running it");
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1, 2), (double[]){1, 2});
    tg_module_hook(tg_module_child(m, "body"), TG_BEFORE, replaces_itself, m);
    tg_module_forward(m, t, x);
    ck_status(TG_ERR_STATE);
    ck_says("\"body\", or a module in it, is running its forward");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_module_free(new);
    tg_module_free(m);
    tg_module_free(other);
    tg_ctx_free(far);
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_new_child_has_the_place_of_the_old_one, the_old_child_can_go_into_the_new_one,
                                  wrappers_add_nothing_to_the_path, what_cannot_be_replaced_is_refused};
    return tg_check_main("module_replace", tests, sizeof tests / sizeof *tests);
}
