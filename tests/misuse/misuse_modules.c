/* Modules: calls, buffers, hooks, modes, casts, initial values, and their state dict in files. */
#include <unistd.h>

#include <tapegrad/checkpoint.h>
#include <tapegrad/nn.h>

#include "misuse/misuse.h"

static const tg_module_ops box = {.size = sizeof box, .kind = "box"};

/* Checks an inert module, and frees it. */
static bool no_module(tg_module *m) {
    bool good = m && tg_module_param_count(m) == 0 && !tg_module_find(m, "weight");
    tg_module_free(m);
    return good;
}

static tg_status same(void *user, tg_module *m, tg_tape *t, tg_tensor **x, int n) {
    (void)user, (void)m, (void)t, (void)x, (void)n;
    return TG_OK;
}

static void calls(misuse_world *b, tg_module *m) {
    tg_tensor *out[2] = {NULL, NULL}, *in[2] = {b->x, b->x};
    tg_module *container = tg_module_new(b->ctx, &box, NULL);
    QUIET(tg_module_call, tg_module_call(NULL, b->t, in, 1, out, 1) == TG_ERR_ARGUMENT && misuse_inert(out[0]));
    QUIET(tg_module_call, tg_module_call(NULL, b->t, in, 1, NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_module_call, ARGUMENT, "out is NULL", tg_module_call(m, b->t, in, 1, NULL, 1));
    FAILS(tg_module_call, ARGUMENT, "n_in is -1", tg_module_call(m, b->t, in, -1, out, 1));
    FAILS(tg_module_call, ARGUMENT, "n_in is 1 with in NULL", tg_module_call(m, b->t, NULL, 1, out, 1));
    FAILS(tg_module_call, ARGUMENT, "n_out is 0", tg_module_call(m, b->t, in, 1, out, 0));
    FAILS(tg_module_call, ARGUMENT, "the tape is NULL", tg_module_call(m, NULL, in, 1, out, 1));
    FAILS(tg_module_call, HANDLE, "different contexts", tg_module_call(m, b->far_t, in, 1, out, 1));
    FAILS(tg_module_call, HANDLE, "freed", tg_module_call(m, b->freed, in, 1, out, 1));
    FAILS(tg_module_call, UNSUPPORTED, "\"box\" has no forward", tg_module_call(container, b->t, in, 1, out, 1));
    FAILS(tg_module_call, SHAPE, "takes 1 input and gives 1 output, but the call has 2 and 2",
          tg_module_call(m, b->t, in, 2, out, 2));
    GIVES(tg_module_call, HANDLE, "another context",
          (in[0] = b->foreign, tg_module_call(m, b->t, in, 1, out, 1)) != TG_OK && misuse_inert(out[0]));
    DEAD_STATUS(tg_module_call, tg_module_call(m, b->t, &x, 1, out, 1));
    tg_module_free(container);
}

static bool refuses_buffer(misuse_world *b, tg_tensor *x, const char *name, tg_status status, const char *says) {
    tg_module *m = tg_module_new(b->ctx, &box, NULL);
    tg_status s = tg_module_add_buffer(m, name, x, NULL);
    bool good = s == status && strstr(tg_ctx_message(b->ctx), says) && tg_module_buffer_count(m) == 0;
    tg_ctx_clear(b->ctx);
    tg_module_free(m);
    return good;
}

static void buffers(misuse_world *b, tg_module *m) {
    tg_buffer_opts later = {.size = sizeof later + 8};
    QUIET(tg_module_add_buffer, tg_module_add_buffer(NULL, "b", b->x, NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_module_add_buffer, refuses_buffer(b, NULL, "b", TG_ERR_ARGUMENT, "the tensor is NULL"));
    QUIET(tg_module_add_buffer, refuses_buffer(b, b->x, NULL, TG_ERR_ARGUMENT, "(NULL)"));
    QUIET(tg_module_add_buffer, refuses_buffer(b, b->x, "a.b", TG_ERR_ARGUMENT, "without dots"));
    QUIET(tg_module_add_buffer, refuses_buffer(b, b->w, "b", TG_ERR_STATE, "requires a gradient"));
    QUIET(tg_module_add_buffer, refuses_buffer(b, b->elsewhere, "b", TG_ERR_STATE, "owned by a tape"));
    QUIET(tg_module_add_buffer, refuses_buffer(b, b->foreign, "b", TG_ERR_HANDLE, "another context"));
    EACH_DEAD(x) QUIET(tg_module_add_buffer, refuses_buffer(b, x, "b", TG_ERR_HANDLE, "the tensor"));
    FAILS(tg_module_add_buffer, STATE, "already has a \"weight\"", tg_module_add_buffer(m, "weight", b->x, NULL));
    FAILS(tg_module_add_buffer, ARGUMENT, "this library knows", tg_module_add_buffer(m, "b", b->x, &later));
    QUIET(tg_module_buffer_count, tg_module_buffer_count(NULL) == 0 && tg_module_buffer_count(m) == 0);
    QUIET(tg_module_buffer, misuse_inert(tg_module_buffer(NULL, 0, NULL)));
    INERT(tg_module_buffer, ARGUMENT, "index 0 is out of range; the module has 0 buffers",
          tg_module_buffer(m, 0, NULL));
    INERT(tg_module_buffer, ARGUMENT, "index -1 is out of range", tg_module_buffer(m, -1, NULL));
}

static void hooks(misuse_world *b, tg_module *m) {
    QUIET(tg_module_hook, tg_module_hook(NULL, TG_BEFORE, same, NULL) == 0);
    GIVES(tg_module_hook, ARGUMENT, "fn is NULL", tg_module_hook(m, TG_BEFORE, NULL, NULL) == 0);
    GIVES(tg_module_hook, ARGUMENT, "when is 2", tg_module_hook(m, (tg_module_when)2, same, NULL) == 0);
    QUIET(tg_module_unhook, tg_module_unhook(NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_module_unhook, ARGUMENT, "has no hook 7", tg_module_unhook(m, 7));
    QUIET(tg_module_set_mode, tg_module_set_mode(NULL, TG_MODE_EVAL) == TG_ERR_ARGUMENT);
    FAILS(tg_module_set_mode, ARGUMENT, "mode is 3", tg_module_set_mode(m, (tg_mode)3));
}

/* A wrong call frees the module, unless that is in another one. */
static bool frees(misuse_world *b, tg_dtype dtype, const char *says) {
    tg_module *m = tg_nn_linear(b->ctx, 2, 2, false, 0);
    tg_tensor *w = tg_module_find(m, "weight");
    bool good = no_module(tg_float16_new(m, dtype, true, true)) && strstr(tg_ctx_message(b->ctx), says);
    tg_ctx_clear(b->ctx);
    return good && !tg_is_alive(w);
}

static bool keeps(misuse_world *b) {
    tg_module *m = tg_module_new(b->ctx, &box, NULL), *c = tg_nn_linear(b->ctx, 2, 2, false, 0);
    tg_module_add_child(m, "c", c);
    bool good = no_module(tg_float16_new(c, TG_BF16, true, true)) && tg_ctx_status(b->ctx) == TG_ERR_STATE &&
                strstr(tg_ctx_message(b->ctx), "tg_float16_new: \"the module\" is already in a module");
    tg_ctx_clear(b->ctx);
    good = good && tg_module_child(m, "c") == c && tg_dtype_of(tg_module_find(m, "c.weight")) == TG_F32;
    tg_module_free(m);
    return good;
}

static tg_module *captured_with(tg_module *m, const tg_shape *in, const tg_dtype *dtypes, int n_in, int slots) {
    return tg_captured_new(m, in, dtypes, n_in, slots);
}

/* A wrong call frees the module, or leaves it in the module that it is in. */
static bool refuses_capture(misuse_world *b, const tg_shape *in, const tg_dtype *dtypes, int n_in, int slots,
                            tg_status status, const char *says) {
    tg_module *m = tg_module_new(b->ctx, &box, NULL), *c = tg_nn_linear(b->ctx, 2, 2, false, 0);
    tg_module *alone = tg_nn_linear(b->ctx, 2, 2, false, 0);
    tg_tensor *w = tg_module_find(alone, "weight");
    tg_module_add_child(m, "c", c);
    bool good = no_module(captured_with(c, in, dtypes, n_in, slots)) && tg_ctx_status(b->ctx) == status;
    good = good && strstr(tg_ctx_message(b->ctx), says);
    tg_ctx_clear(b->ctx);
    good = good && tg_module_child(m, "c") == c && tg_module_find(m, "c.weight");
    good = good && no_module(captured_with(alone, in, dtypes, n_in, slots)) && !tg_is_alive(w);
    tg_ctx_clear(b->ctx);
    tg_module_free(m);
    return good;
}

static void captures(misuse_world *b) {
    const tg_shape one = TG_SHAPE(3, 2), many[32] = {{0}}, negative = TG_SHAPE(-3, 2);
    const tg_dtype f32 = TG_F32, dtypes[32] = {TG_F32}, none = (tg_dtype)99;
    tg_tensor *out = NULL;
    QUIET(tg_captured_new, no_module(tg_captured_new(NULL, &one, &f32, 1, 1)));
    QUIET(tg_captured_new, refuses_capture(b, &one, &f32, 1, 0, TG_ERR_ARGUMENT, "slots is 0, expected 1 to 255"));
    QUIET(tg_captured_new, refuses_capture(b, &one, &f32, 1, 256, TG_ERR_ARGUMENT, "slots is 256"));
    QUIET(tg_captured_new, refuses_capture(b, &one, &f32, 0, 1, TG_ERR_ARGUMENT, "n_in is 0"));
    QUIET(tg_captured_new, refuses_capture(b, many, dtypes, 32, 1, TG_ERR_ARGUMENT, "expected 1 to 31 inputs"));
    QUIET(tg_captured_new, refuses_capture(b, NULL, &f32, 1, 1, TG_ERR_ARGUMENT, "in is NULL"));
    QUIET(tg_captured_new, refuses_capture(b, &one, NULL, 1, 1, TG_ERR_ARGUMENT, "dtypes is NULL"));
    QUIET(tg_captured_new, refuses_capture(b, &negative, &f32, 1, 1, TG_ERR_SHAPE, "tg_captured_new: input 0"));
    QUIET(tg_captured_new, refuses_capture(b, &one, &none, 1, 1, TG_ERR_DTYPE, "tg_captured_new: input 0"));
    tg_module *m = tg_captured_new(tg_nn_linear(b->ctx, 2, 2, false, 0), &one, &f32, 1, 1);
    FAILS(tg_module_call, SHAPE, "captured module: input 0 is", tg_module_call(m, b->t, &b->x, 1, &out, 1));
    tg_module_free(m);
}

static void casts(misuse_world *b, tg_module *m) {
    QUIET(tg_module_cast, tg_module_cast(NULL, TG_BF16) == TG_ERR_ARGUMENT);
    FAILS(tg_module_cast, DTYPE, "dtype is i64, expected a floating-point dtype", tg_module_cast(m, TG_I64));
    FAILS(tg_module_cast, DTYPE, "expected a floating-point dtype", tg_module_cast(m, TG_DTYPE_DEFAULT));
    QUIET(tg_module_keep_f32, tg_module_keep_f32(NULL, "weight") == TG_ERR_ARGUMENT);
    FAILS(tg_module_keep_f32, ARGUMENT, "has no parameter or buffer \"(NULL)\"", tg_module_keep_f32(m, NULL));
    FAILS(tg_module_keep_f32, ARGUMENT, "has no parameter or buffer \"bias.x\"", tg_module_keep_f32(m, "bias.x"));
    QUIET(tg_float16_new, no_module(tg_float16_new(NULL, TG_BF16, true, true)));
    QUIET(tg_float16_new, frees(b, TG_F32, "dtype is f32, expected f16 or bf16"));
    QUIET(tg_float16_new, frees(b, TG_DTYPE_DEFAULT, "expected f16 or bf16"));
    QUIET(tg_float16_new, keeps(b));
    QUIET(tg_float16_set_output, tg_float16_set_output(NULL, true) == TG_ERR_ARGUMENT);
    FAILS(tg_float16_set_output, ARGUMENT, "the module is a \"linear\"", tg_float16_set_output(m, true));
    QUIET(tg_module_print, tg_module_print(NULL, NULL, 5) == 0);
}

static void initial_values(misuse_world *b) {
    const tg_init *one = TG_INIT(.kind = TG_INIT_CONSTANT, .a = 1), zero = {0}, later = {.size = sizeof later + 8};
    QUIET(tg_param_init, tg_param_init(NULL, one) == TG_ERR_ARGUMENT);
    FAILS(tg_param_init, ARGUMENT, "init is NULL", tg_param_init(b->x, NULL));
    FAILS(tg_param_init, ARGUMENT, "size is 0", tg_param_init(b->x, &zero));
    FAILS(tg_param_init, ARGUMENT, "this library knows", tg_param_init(b->x, &later));
    FAILS(tg_param_init, ARGUMENT, "the kind of the tg_init is -1",
          tg_param_init(b->x, TG_INIT(.kind = (tg_init_kind)-1)));
    FAILS(tg_param_init, ARGUMENT, "a is nan", tg_param_init(b->x, TG_INIT(.a = NAN)));
    FAILS(tg_param_init, ARGUMENT, "fill is NULL", tg_param_init(b->x, TG_INIT(.kind = TG_INIT_CALL)));
    FAILS(tg_param_init, ARGUMENT, "the fan of the tg_init is 9", tg_param_init(b->x, TG_INIT(.fan = (tg_init_fan)9)));
    FAILS(tg_param_init, ARGUMENT, "expected a gain of 0 or more", tg_param_init(b->x, TG_KAIMING_UNIFORM(-1)));
    FAILS(tg_param_init, SHAPE, "expected a weight of 2 dims or more", tg_param_init(b->v, TG_XAVIER_NORMAL(1)));
    FAILS(tg_param_init, SHAPE, "expected 2 or more, for TG_INIT_ORTHOGONAL", tg_param_init(b->v, TG_ORTHOGONAL(1)));
    FAILS(tg_param_init, SHAPE, "expected a matrix, for TG_INIT_EYE",
          tg_param_init(b->cube, TG_INIT(.kind = TG_INIT_EYE, .a = 1)));
    FAILS(tg_param_init, STATE, "owned by a tape", tg_param_init(b->r, one));
    FAILS(tg_param_init, ARGUMENT, "expected a contiguous floating-point leaf", tg_param_init(b->ids, one));
    DEAD_STATUS(tg_param_init, tg_param_init(x, one));
}

static void files(misuse_world *b, tg_module *m) {
    tg_load_opts zero = {0}, later = {.size = sizeof later + 8};
    char path[512], damaged[512];
    snprintf(path, sizeof path, "%s/module", b->dir);
    snprintf(damaged, sizeof damaged, "%s/no-module", b->dir);
    const tg_named_tensor named[] = {{"weight", tg_module_find(m, "weight")}, {"more", b->v}};
    tg_safetensors_save(b->ctx, path, named, 2, NULL, 0);
    tg_file_save(b->ctx, damaged, "0123456789", 10);
    QUIET(tg_module_load, tg_module_load(NULL, path, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_module_load, ARGUMENT, "file is NULL", tg_module_load(m, NULL, NULL));
    FAILS(tg_module_load, ARGUMENT, "size is 0", tg_module_load(m, path, &zero));
    FAILS(tg_module_load, ARGUMENT, "this library knows", tg_module_load(m, path, &later));
    FAILS(tg_module_load, IO, "no/such", tg_module_load(m, "no/such", NULL));
    FAILS(tg_module_load, FORMAT, "no-module", tg_module_load(m, damaged, NULL));
    FAILS(tg_module_load, FORMAT, "the first: missing 'bias'; set partial", tg_module_load(m, path, NULL));
    unlink(path);
    unlink(damaged);
    QUIET(tg_module_save, tg_module_save(NULL, path) == TG_ERR_ARGUMENT);
    FAILS(tg_module_save, ARGUMENT, "file is NULL", tg_module_save(m, NULL));
    FAILS(tg_module_save, IO, "no/such", tg_module_save(m, "no/such"));
}

/* A call that fails returns an inert module and does not take the child. */
static bool replaces_nothing(tg_module *m, const char *path, tg_module *child) {
    tg_module *old = tg_module_replace(m, path, child);
    return old && !*tg_module_kind(old) && tg_module_param_count(child) == 1;
}

static void replacing(misuse_world *b) {
    tg_module *m = tg_nn_sequential(b->ctx), *child = tg_nn_linear(b->ctx, 2, 2, false, 0);
    tg_sequential_add(m, tg_nn_linear(b->ctx, 2, 2, false, 0));
    QUIET(tg_module_replace, replaces_nothing(NULL, "0", child));
    GIVES(tg_module_replace, ARGUMENT, "has no module \"1\"", replaces_nothing(m, "1", child));
    GIVES(tg_module_replace, ARGUMENT, "has no module \"(NULL)\"", replaces_nothing(m, NULL, child));
    GIVES(tg_module_replace, ARGUMENT, "\"0.weight\", which is a parameter", replaces_nothing(m, "0.weight", child));
    GIVES(tg_module_replace, HANDLE, "is not a module of this context",
          !*tg_module_kind(tg_module_replace(m, "0", NULL)));
    GIVES(tg_module_replace, STATE, "is already in a module", replaces_nothing(m, "0", tg_module_child(m, "0")));
    tg_module_free(child);
    tg_module_free(m);
}

void misuse_modules(misuse_world *b) {
    tg_module *m = tg_nn_linear(b->ctx, 3, 2, true, 1);
    calls(b, m);
    buffers(b, m);
    hooks(b, m);
    casts(b, m);
    captures(b);
    initial_values(b);
    files(b, m);
    replacing(b);
    tg_module_free(m);
}
