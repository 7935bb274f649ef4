/* Modules: hooks and modes, of a module of the test and of the layers of a GPT. */
#include <math.h>

#include <tapegrad/gpt.h>
#include <tapegrad/layers.h>

#include "mixer.h"
#include "tape/tape.h"

/* ---- Hooks ---- */

START_TEST(hooks_replace_inputs_and_outputs) {
    begin();
    tg_module *m = mixer_new();
    tg_tensor *in[2], *out[3], *plain[3];
    double a[N * OUT], b[N * OUT];
    int before = 0, after = 0;
    inputs(in);
    tg_module_call(m, t, (tg_tensor *[]){tg_scale(t, in[0], 2), in[1]}, 2, plain, 3);
    uint64_t first = tg_module_hook(m, TG_BEFORE, double_first, &before);
    uint64_t last = tg_module_hook(m, TG_AFTER, negate_first, &after);
    ck_assert(first && last && first != last);
    ck_assert(tg_module_call(m, t, in, 2, out, 3) == TG_OK);
    tg_read_f64(plain[0], a, N * OUT);
    tg_read_f64(out[0], b, N * OUT);
    for (int i = 0; i < N * OUT; i++) ck_assert(a[i] == -b[i]);
    ck_assert(before == 1 && after == 1);
    ck_assert(tg_module_unhook(m, first) == TG_OK && tg_module_unhook(m, last) == TG_OK);
    tg_module_call(m, t, in, 2, out, 3);
    ck_assert(before == 1 && after == 1);
    ck_assert(tg_module_unhook(m, first) == TG_ERR_ARGUMENT);
    ck_says("has no hook 1");
    tg_ctx_clear(ctx);
    for (int i = 0; i < 2; i++) tg_drop(in[i]);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

/* A hook that removes itself and the one after it, and tries to free the module that runs. */
typedef struct leaving {
    uint64_t self, next;
    int runs;
} leaving;

static tg_status leave(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)tape, (void)x, (void)n;
    leaving *l = user;
    l->runs++;
    tg_module_unhook(m, l->self);
    tg_module_unhook(m, l->next);
    tg_module_free(m);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_STATE);
    ck_says("is running its forward");
    tg_ctx_clear(ctx);
    return TG_OK;
}

static tg_status count(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)m, (void)tape, (void)x, (void)n;
    ++*(int *)user;
    return TG_OK;
}

START_TEST(a_hook_may_remove_itself_but_not_the_module) {
    begin();
    tg_module *m = tg_nn_linear(ctx, 2, 2, false, 1);
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(1, 2), 1, 1);
    leaving l = {0};
    int runs = 0;
    l.self = tg_module_hook(m, TG_BEFORE, leave, &l);
    l.next = tg_module_hook(m, TG_BEFORE, count, &runs);
    tg_module_forward(m, t, x);
    tg_module_forward(m, t, x);
    ck_assert(l.runs == 1 && runs == 0);
    tg_drop(x);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

static tg_status reshape(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)user, (void)m, (void)n;
    x[0] = tg_transpose(tape, x[0], 0, 1);
    return TG_OK;
}

static tg_status drops_input(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)user, (void)m, (void)tape, (void)n;
    x[0] = NULL;
    return TG_OK;
}

static tg_status fails(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)user, (void)m, (void)tape, (void)x, (void)n;
    return TG_ERR_DATA;
}

static tg_status resets(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)user, (void)m, (void)x, (void)n;
    tg_tape_reset(tape);
    return TG_OK;
}

static tg_status frees_tape(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)user, (void)m, (void)x, (void)n;
    tg_tape_free(tape);
    return TG_OK;
}

static tg_status frees_context(void *user, tg_module *m, tg_tape *tape, tg_tensor **x, int n) {
    (void)user, (void)m, (void)tape, (void)x, (void)n;
    tg_ctx_free(ctx);
    return TG_OK;
}

START_TEST(wrong_hooks_are_refused) {
    static const struct {
        tg_module_fn fn;
        tg_status status;
        const char *says;
    } rows[] = {{reshape, TG_ERR_SHAPE, "has replaced input 0 of shape [2, 3] by one of shape [3, 2]"},
                {drops_input, TG_ERR_ARGUMENT, "a module hook's tensor"},
                {resets, TG_ERR_STATE, "tg_tape_reset: a function that a call of this tape runs has not returned"},
                {frees_tape, TG_ERR_STATE, "tg_tape_free: a function that a call of this tape runs has not returned"},
                {frees_context, TG_ERR_STATE, "tg_ctx_free: a function that a call of this tape runs has not returned"},
                {fails, TG_ERR_CALLBACK, "a hook of a \"linear\" failed with TG_ERR_DATA"}};
    begin();
    tg_module *m = tg_nn_linear(ctx, 3, 4, false, 1);
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(2, 3), 1, 1);
    tg_module_set_mode(m, TG_MODE_EVAL);
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        uint64_t id = tg_module_hook(m, TG_BEFORE, rows[i].fn, NULL);
        refused(m, x, rows[i].status, rows[i].says);
        tg_module_unhook(m, id);
    }
    tg_module_hook(m, TG_AFTER, reshape, NULL);
    refused(m, x, TG_ERR_SHAPE, "has replaced output 0 of shape [2, 4] by one of shape [4, 2]");
    tg_drop(x);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

/* ---- Modes ---- */

/* Records the mode in which it runs. */
static tg_tensor *probe_forward(tg_module *m, tg_tape *tape, tg_tensor *x) {
    *(int *)tg_module_state(m) = tg_is_training(tape);
    return x;
}

static tg_tensor *pass(tg_module *m, tg_tape *tape, tg_tensor *x) {
    return tg_module_forward(tg_module_child(m, "inner"), tape, x);
}

START_TEST(the_nearest_mode_counts) {
    static const tg_module_ops probe = {.size = sizeof probe, .kind = "probe", .forward = probe_forward},
                               outer = {.size = sizeof outer, .kind = "outer", .forward = pass};
    static const struct {
        tg_mode a, b, c;
        bool tape, want;
    } rows[] = {{TG_MODE_TAPE, TG_MODE_TAPE, TG_MODE_TAPE, true, true},
                {TG_MODE_TAPE, TG_MODE_TAPE, TG_MODE_TAPE, false, false},
                {TG_MODE_EVAL, TG_MODE_TAPE, TG_MODE_TAPE, true, false},
                {TG_MODE_TRAIN, TG_MODE_TAPE, TG_MODE_TAPE, false, true},
                {TG_MODE_EVAL, TG_MODE_TRAIN, TG_MODE_TAPE, false, true},
                {TG_MODE_TRAIN, TG_MODE_TRAIN, TG_MODE_EVAL, true, false}};
    begin();
    int seen = 0;
    tg_module *a = tg_module_new(ctx, &outer, NULL), *b = tg_module_new(ctx, &outer, NULL),
              *c = tg_module_new(ctx, &probe, &seen);
    tg_tensor *x = of_host(TG_F64, TG_SHAPE(2), 1, 1);
    tg_module_add_child(b, "inner", c);
    tg_module_add_child(a, "inner", b);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tg_module_set_mode(a, rows[i].a);
        tg_module_set_mode(b, rows[i].b);
        tg_module_set_mode(c, rows[i].c);
        tg_tape_set_training(t, rows[i].tape);
        for (int inner = 0; inner < 2; inner++) { /* also where c is called without a */
            seen = -1;
            tg_module_forward(inner ? c : a, t, x);
            ck_assert_int_eq(seen, rows[i].want);
            ck_assert(tg_is_training(t) == rows[i].tape);
        }
    }
    tg_tape_set_training(t, true);
    tg_drop(x);
    tg_tape_reset(t);
    tg_module_free(a);
    end();
}
END_TEST

/* Returns the loss of a step of its own. */
static double loss_of(tg_module *m, tg_tensor *ids, uint64_t step) {
    tg_draws_step(ctx, step);
    double loss = tg_item(tg_gpt_loss(m, t, ids, ids, TG_LOSS_MEAN));
    ck_status(TG_OK);
    return loss;
}

/* A mode reaches the dropout inside a GPT, through its functions too. */
START_TEST(a_mode_reaches_the_dropout_inside) {
    const int64_t numbers[] = {1, 2, 3};
    begin();
    tg_module *m =
        tg_gpt_new(ctx, TG_GPT(.vocab = 5, .layers = 2, .heads = 2, .hidden = 8, .positions = 8, .dropout = 0.5));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 3), numbers);
    tg_tape_set_training(t, false);
    double eval = loss_of(m, ids, 1);
    tg_tape_set_training(t, true);
    ck_assert(loss_of(m, ids, 2) != eval);
    tg_module_set_mode(m, TG_MODE_EVAL);
    ck_assert(loss_of(m, ids, 3) == eval);
    tg_module_set_mode(tg_module_child(tg_module_child(tg_module_child(m, "transformer"), "h"), "1"), TG_MODE_TRAIN);
    ck_assert(loss_of(m, ids, 4) != eval);
    tg_drop(ids);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

static tg_tensor *resets_first(tg_tape *tape, tg_tensor *x) {
    tg_tensor *y = NULL;
    (void)x;
    tg_tape_reset(tape);
    for (int i = 0; i < 3000; i++) y = tg_full(tape, TG_F64, TG_SHAPE(1, 3, 8), 1); /* uses the tape's memory again */
    return y;
}

/* A reset within a model's functions ends the scopes that these have opened. */
START_TEST(a_function_inside_may_reset_the_tape) {
    const int64_t numbers[] = {1, 2, 3};
    begin();
    tg_module *m = tg_gpt_new(ctx, TG_GPT(.vocab = 5, .layers = 1, .heads = 2, .hidden = 8, .positions = 8));
    tg_module_free(tg_module_replace(m, "transformer.ln_f", tg_nn_function(ctx, "resets", resets_first)));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 3), numbers);
    tg_gpt_loss(m, t, ids, ids, TG_LOSS_MEAN);
    tg_ctx_clear(ctx);
    ck_assert(!t->scope && tg_is_alive(tg_full(t, TG_F64, TG_SHAPE(1), 1)));
    tg_drop(ids);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

/* Hooks reach the layers of a GPT, whose parameters its own ops would use otherwise. */
START_TEST(hooks_reach_the_layers_inside) {
    const int64_t numbers[] = {1, 2, 3};
    static const char *const paths[] = {"wte", "wpe", "ln_f"}, *const inner[] = {"attn", "mlp", "ln_1"};
    begin();
    tg_module *m = tg_gpt_new(ctx, TG_GPT(.vocab = 5, .layers = 1, .heads = 2, .hidden = 8, .positions = 8)),
              *body = tg_module_child(m, "transformer"), *layer = tg_module_child(tg_module_child(body, "h"), "0");
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 3), numbers);
    int runs = 0;
    double plain = loss_of(m, ids, 1);
    for (int i = 0; i < 3; i++) tg_module_hook(tg_module_child(body, paths[i]), TG_AFTER, count, &runs);
    for (int i = 0; i < 3; i++) tg_module_hook(tg_module_child(layer, inner[i]), TG_AFTER, count, &runs);
    tg_module_hook(tg_module_child(tg_module_child(layer, "mlp"), "c_fc"), TG_BEFORE, count, &runs);
    ck_assert(fabs(loss_of(m, ids, 2) - plain) < 1e-12);
    ck_assert_int_eq(runs, 7);
    tg_drop(ids);
    tg_tape_reset(t);
    tg_module_free(m);
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {hooks_replace_inputs_and_outputs,  a_hook_may_remove_itself_but_not_the_module,
                                  wrong_hooks_are_refused,           the_nearest_mode_counts,
                                  a_mode_reaches_the_dropout_inside, a_function_inside_may_reset_the_tape,
                                  hooks_reach_the_layers_inside};
    return tg_check_main("module hooks", tests, sizeof tests / sizeof *tests);
}
