/* Modules, layers and the GPT. */
#include <tapegrad/nn.h>
#include <tapegrad/gpt.h>

#include "misuse/misuse.h"

/* Checks an inert module: every call on it does nothing, and it may be freed. */
static bool no_module(tg_module *m) {
    bool good = m && tg_module_param_count(m) == 0 && tg_module_numel(m) == 0 && !tg_module_child(m, "weight") &&
                !tg_module_find(m, "weight");
    tg_module_free(m);
    return good;
}

#define NONE(symbol, code, says, call) GIVES(symbol, code, says, no_module(call))

/* ---- Modules ---- */

static int ended;
static void count_end(void *state) {
    (void)state;
    ended++;
}

static const tg_module_ops box = {.size = sizeof box, .kind = "box", .free = count_end};

static bool ends_its_state(tg_ctx *ctx, const tg_module_ops *ops, bool frees) {
    int state;
    ended = 0;
    return no_module(tg_module_new(ctx, ops, &state)) && ended == frees;
}

static void modules(misuse_world *b) {
    const tg_module_ops size = {.kind = "box", .free = count_end}, kind = {.size = sizeof kind, .free = count_end};
    const tg_module_ops later = {.size = sizeof later + 8, .kind = "box", .free = count_end};
    QUIET(tg_module_new, ends_its_state(NULL, &box, true));
    GIVES(tg_module_new, ARGUMENT, "the table is NULL", ends_its_state(b->ctx, NULL, false));
    GIVES(tg_module_new, ARGUMENT, "size is 0", ends_its_state(b->ctx, &size, false));
    GIVES(tg_module_new, ARGUMENT, "this library knows", ends_its_state(b->ctx, &later, false));
    GIVES(tg_module_new, ARGUMENT, "the table's kind is NULL, expected a name", ends_its_state(b->ctx, &kind, true));
    QUIET(tg_module_free, (tg_module_free(NULL), true));
    QUIET(tg_module_ctx, !tg_module_ctx(NULL));
    QUIET(tg_module_state, !tg_module_state(NULL));
    QUIET(tg_module_kind, !*tg_module_kind(NULL));
    QUIET(tg_module_param_count, tg_module_param_count(NULL) == 0);
    QUIET(tg_module_numel, tg_module_numel(NULL) == 0);
    QUIET(tg_module_params, tg_module_params(NULL, NULL, 5) == 0);
    QUIET(tg_module_find, !tg_module_find(NULL, "a.b"));
    QUIET(tg_module_child, !tg_module_child(NULL, "a"));
}

/* ---- Adding ---- */

static bool refuses_param(misuse_world *b, tg_tensor *p, const char *name, tg_status status, const char *says) {
    tg_module *m = tg_module_new(b->ctx, &box, NULL);
    tg_status s = tg_module_add_param(m, name, p);
    bool good = s == status && strstr(tg_ctx_message(b->ctx), says) && tg_module_param_count(m) == 0;
    tg_ctx_clear(b->ctx);
    tg_module_free(m);
    return good;
}

/* A failed call frees the child, unless the child is in a module already. */
static bool refuses_child(misuse_world *b, tg_ctx *of, const char *name, tg_status status) {
    int state;
    tg_module *m = tg_module_new(b->ctx, &box, NULL);
    ended = 0;
    tg_status s = tg_module_add_child(m, name, tg_module_new(of, &box, &state));
    bool good = s == status && ended == 1 && !tg_module_child(m, "c");
    tg_ctx_clear(b->ctx);
    tg_module_free(m);
    return good;
}

static bool one_parent(misuse_world *b) {
    int state;
    tg_module *m = tg_module_new(b->ctx, &box, NULL), *o = tg_module_new(b->ctx, &box, NULL),
              *c = tg_module_new(b->ctx, &box, &state);
    ended = 0;
    bool good = tg_module_add_child(m, "c", c) == TG_OK && tg_module_add_child(o, "c", c) == TG_ERR_STATE;
    tg_ctx_clear(b->ctx);
    good = good && tg_module_add_child(m, "again", m) == TG_ERR_STATE;
    tg_ctx_clear(b->ctx);
    good = good && tg_module_add_child(c, "up", m) == TG_ERR_STATE && ended == 0;
    tg_ctx_clear(b->ctx);
    tg_module_free(o);
    good = good && tg_module_child(m, "c") == c;
    tg_module_free(m);
    return good && ended == 1;
}

/* A child that is freed is removed from its parent. A parameter belongs to its modules, so dropping it does nothing. */
static bool owners(misuse_world *b) {
    tg_module *m = tg_module_new(b->ctx, &box, NULL), *c = tg_nn_linear(b->ctx, 2, 2, false, 0);
    tg_module_add_child(m, "c", c);
    tg_tensor *p = tg_module_param(m, 0, NULL);
    tg_drop(p);
    bool good = tg_is_alive(p) && tg_module_param_count(m) == 1;
    tg_module_free(c);
    good = good && !tg_is_alive(p) && tg_module_param_count(m) == 0 && !tg_module_child(m, "c");
    tg_module_free(m);
    return good;
}

static bool same_name_twice(misuse_world *b) {
    tg_module *m = tg_nn_linear(b->ctx, 2, 2, true, 0);
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(1), 0);
    bool good = tg_module_add_param(m, "weight", p) == TG_ERR_STATE && tg_module_param_count(m) == 2;
    tg_ctx_clear(b->ctx);
    tg_drop(p);
    tg_module_free(m);
    return good;
}

static void adding(misuse_world *b) {
    int state;
    QUIET(tg_module_add_param, tg_module_add_param(NULL, "p", b->w) == TG_ERR_ARGUMENT);
    QUIET(tg_module_add_param, refuses_param(b, NULL, "p", TG_ERR_ARGUMENT, "NULL"));
    QUIET(tg_module_add_param, refuses_param(b, b->w, NULL, TG_ERR_ARGUMENT, "(NULL)"));
    QUIET(tg_module_add_param, refuses_param(b, b->w, "", TG_ERR_ARGUMENT, "without dots"));
    QUIET(tg_module_add_param, refuses_param(b, b->w, "a.b", TG_ERR_ARGUMENT, "without dots"));
    QUIET(tg_module_add_param, refuses_param(b, b->r, "p", TG_ERR_STATE, "owned by a tape"));
    QUIET(tg_module_add_param, refuses_param(b, b->foreign, "p", TG_ERR_HANDLE, "another context"));
    EACH_DEAD(x) QUIET(tg_module_add_param, refuses_param(b, x, "p", TG_ERR_HANDLE, "the tensor"));
    QUIET(tg_module_add_param, same_name_twice(b));
    ended = 0;
    QUIET(tg_module_add_child,
          tg_module_add_child(NULL, "c", tg_module_new(b->ctx, &box, &state)) == TG_ERR_ARGUMENT && ended == 1);
    QUIET(tg_module_add_child, refuses_child(b, b->ctx, NULL, TG_ERR_ARGUMENT));
    QUIET(tg_module_add_child, refuses_child(b, b->ctx, "x.y", TG_ERR_ARGUMENT));
    QUIET(tg_module_add_child, refuses_child(b, b->far, "c", TG_ERR_HANDLE));
    QUIET(tg_module_add_child, one_parent(b));
    QUIET(tg_module_free, owners(b));
}

/* ---- Queries, forward ---- */

static void forwards(misuse_world *b) {
    tg_module *m = tg_nn_linear(b->ctx, 3, 2, true, 1), *container = tg_module_new(b->ctx, &box, NULL);
    tg_tensor *two[2] = {NULL, NULL};
    QUIET(tg_module_param, misuse_inert(tg_module_param(NULL, 0, NULL)));
    INERT(tg_module_param, ARGUMENT, "index -1 is out of range", tg_module_param(m, -1, NULL));
    INERT(tg_module_param, ARGUMENT, "index 2 is out of range", tg_module_param(m, 2, NULL));
    QUIET(tg_module_params, tg_module_params(m, two, 1) == 2 && two[0] && !two[1]);
    QUIET(tg_module_params, tg_module_params(m, NULL, 9) == 2 && tg_module_params(m, two, -1) == 2);
    QUIET(tg_module_find, !tg_module_find(m, NULL) && !tg_module_find(m, "") && !tg_module_find(m, "weight.more"));
    QUIET(tg_module_child, !tg_module_child(m, NULL) && !tg_module_child(m, "weight"));
    QUIET(tg_module_forward, misuse_inert(tg_module_forward(NULL, b->t, b->x)));
    INERT(tg_module_forward, ARGUMENT, "the tape is NULL", tg_module_forward(m, NULL, b->x));
    INERT(tg_module_forward, HANDLE, "different contexts", tg_module_forward(m, b->far_t, b->foreign));
    INERT(tg_module_forward, HANDLE, "freed", tg_module_forward(m, b->freed, b->x));
    INERT(tg_module_forward, UNSUPPORTED, "\"box\" has no forward function", tg_module_forward(container, b->t, b->x));
    INERT(tg_module_forward, ARGUMENT, "the tensor is NULL", tg_module_forward(m, b->t, NULL));
    INERT(tg_module_forward, SHAPE,
          "x has 4 columns but w has 3; they must be equal", tg_module_forward(m, b->t, b->cube));
    DEAD_TENSOR(tg_module_forward, tg_module_forward(m, b->t, x));
    tg_module_free(m);
    tg_module_free(container);
}

/* ---- Layers ---- */

static void layers(misuse_world *b) {
    const int64_t most = INT64_MAX;
    tg_ctx *ctx = b->ctx;
    QUIET(tg_nn_linear, no_module(tg_nn_linear(NULL, 2, 2, true, 1)));
    NONE(tg_nn_linear, ARGUMENT, "in is 0", tg_nn_linear(ctx, 0, 2, true, 1));
    NONE(tg_nn_linear, ARGUMENT, "expected 1 or more", tg_nn_linear(ctx, 2, -1, true, 1));
    NONE(tg_nn_linear, SHAPE, "overflows", tg_nn_linear(ctx, most, most, true, 1));
    NONE(tg_nn_linear, ARGUMENT, "std is nan", tg_nn_linear(ctx, 2, 2, true, NAN));
    NONE(tg_nn_linear, ARGUMENT, "std is -1", tg_nn_linear(ctx, 2, 2, false, -1));
    QUIET(tg_nn_embedding, no_module(tg_nn_embedding(NULL, 2, 2, 1)));
    NONE(tg_nn_embedding, ARGUMENT, "expected 1 or more", tg_nn_embedding(ctx, -2, 2, 1));
    NONE(tg_nn_embedding, SHAPE, "overflows", tg_nn_embedding(ctx, most, 2, 1));
    NONE(tg_nn_embedding, ARGUMENT, "std is inf", tg_nn_embedding(ctx, 2, 2, INFINITY));
    QUIET(tg_nn_layer_norm, no_module(tg_nn_layer_norm(NULL, 2, 1e-5)));
    NONE(tg_nn_layer_norm, ARGUMENT, "expected 1 or more", tg_nn_layer_norm(ctx, 0, 1e-5));
    NONE(tg_nn_layer_norm, SHAPE, "overflows", tg_nn_layer_norm(ctx, most, 1e-5));
    NONE(tg_nn_layer_norm, ARGUMENT, "eps is nan", tg_nn_layer_norm(ctx, 2, NAN));
    NONE(tg_nn_layer_norm, ARGUMENT, "eps is -1", tg_nn_layer_norm(ctx, 2, -1));
    QUIET(tg_nn_rms_norm, no_module(tg_nn_rms_norm(NULL, 2, 1e-5)));
    NONE(tg_nn_rms_norm, ARGUMENT, "expected 1 or more", tg_nn_rms_norm(ctx, -1, 1e-5));
    NONE(tg_nn_rms_norm, SHAPE, "overflows", tg_nn_rms_norm(ctx, most, 1e-5));
    NONE(tg_nn_rms_norm, ARGUMENT, "eps is inf", tg_nn_rms_norm(ctx, 2, INFINITY));
    QUIET(tg_nn_group_norm, no_module(tg_nn_group_norm(NULL, 1, 2, 1e-5)));
    NONE(tg_nn_group_norm, ARGUMENT, "groups is 0, expected 1 or more", tg_nn_group_norm(ctx, 0, 2, 1e-5));
    NONE(tg_nn_group_norm, ARGUMENT, "channels is -2", tg_nn_group_norm(ctx, 1, -2, 1e-5));
    NONE(tg_nn_group_norm, ARGUMENT, "groups is 3, expected a divisor of the 4 channels",
         tg_nn_group_norm(ctx, 3, 4, 1e-5));
    NONE(tg_nn_group_norm, ARGUMENT, "eps is nan", tg_nn_group_norm(ctx, 1, 2, NAN));
    QUIET(tg_nn_batch_norm, no_module(tg_nn_batch_norm(NULL, 2, 0.1, 1e-5)));
    NONE(tg_nn_batch_norm, ARGUMENT, "channels is 0", tg_nn_batch_norm(ctx, 0, 0.1, 1e-5));
    NONE(tg_nn_batch_norm, ARGUMENT, "momentum is 1.5, expected 0 to 1", tg_nn_batch_norm(ctx, 2, 1.5, 1e-5));
    NONE(tg_nn_batch_norm, ARGUMENT, "momentum is nan", tg_nn_batch_norm(ctx, 2, NAN, 1e-5));
    NONE(tg_nn_batch_norm, SHAPE, "overflows", tg_nn_batch_norm(ctx, most, 0.1, 1e-5));
}

static void convolutions(misuse_world *b) {
    const int64_t most = INT64_MAX;
    const tg_conv_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_ctx *ctx = b->ctx;
    QUIET(tg_nn_conv1d, no_module(tg_nn_conv1d(NULL, 2, 2, 3, true, 1, NULL)));
    NONE(tg_nn_conv1d, ARGUMENT, "size is 0, expected 1 or more", tg_nn_conv1d(ctx, 2, 2, 0, true, 1, NULL));
    NONE(tg_nn_conv1d, ARGUMENT, "in is -1", tg_nn_conv1d(ctx, -1, 2, 3, true, 1, NULL));
    NONE(tg_nn_conv1d, ARGUMENT, "out is 0", tg_nn_conv1d(ctx, 2, 0, 3, true, 1, NULL));
    NONE(tg_nn_conv1d, ARGUMENT, "std is -1", tg_nn_conv1d(ctx, 2, 2, 3, true, -1, NULL));
    NONE(tg_nn_conv1d, ARGUMENT, "size is 0", tg_nn_conv1d(ctx, 2, 2, 3, true, 1, &zero));
    NONE(tg_nn_conv1d, ARGUMENT, "this library knows", tg_nn_conv1d(ctx, 2, 2, 3, true, 1, &later));
    NONE(tg_nn_conv1d, ARGUMENT, "groups is 3, expected a divisor of in, which is 6, and of out, which is 4",
         tg_nn_conv1d(ctx, 6, 4, 3, true, 1, TG_CONV(.groups = 3)));
    NONE(tg_nn_conv1d, SHAPE, "overflows", tg_nn_conv1d(ctx, most, most, 3, true, 1, NULL));
    QUIET(tg_nn_conv2d, no_module(tg_nn_conv2d(NULL, 2, 2, 3, 3, true, 1, NULL)));
    NONE(tg_nn_conv2d, ARGUMENT, "height is 0, expected 1 or more", tg_nn_conv2d(ctx, 2, 2, 0, 3, true, 1, NULL));
    NONE(tg_nn_conv2d, ARGUMENT, "width is -3", tg_nn_conv2d(ctx, 2, 2, 3, -3, true, 1, NULL));
    NONE(tg_nn_conv2d, ARGUMENT, "groups is -1", tg_nn_conv2d(ctx, 2, 2, 3, 3, true, 1, TG_CONV(.groups = -1)));
}

static void sequences(misuse_world *b) {
    int state;
    tg_module *s = tg_nn_sequential(b->ctx), *linear = tg_nn_linear(b->ctx, 2, 2, false, 0);
    QUIET(tg_nn_dropout, no_module(tg_nn_dropout(NULL, 0.1)));
    NONE(tg_nn_dropout, ARGUMENT, "p is 1, expected 0 or more, and less than 1", tg_nn_dropout(b->ctx, 1));
    NONE(tg_nn_dropout, ARGUMENT, "p is nan", tg_nn_dropout(b->ctx, NAN));
    QUIET(tg_nn_function, no_module(tg_nn_function(NULL, "relu", tg_relu)));
    NONE(tg_nn_function, ARGUMENT, "name is NULL", tg_nn_function(b->ctx, NULL, tg_relu));
    NONE(tg_nn_function, ARGUMENT, "fn is NULL", tg_nn_function(b->ctx, "relu", NULL));
    QUIET(tg_nn_sequential, no_module(tg_nn_sequential(NULL)));
    ended = 0;
    QUIET(tg_sequential_add,
          tg_sequential_add(NULL, tg_module_new(b->ctx, &box, &state)) == TG_ERR_ARGUMENT && ended == 1);
    FAILS(tg_sequential_add, ARGUMENT, "the module is a \"linear\", expected one that tg_nn_sequential made",
          tg_sequential_add(linear, tg_nn_dropout(b->ctx, 0)));
    FAILS(tg_sequential_add, HANDLE, "is not a module of this context", tg_sequential_add(s, NULL));
    FAILS(tg_sequential_add, STATE, "is already in a module, or contains this one", tg_sequential_add(s, s));
    tg_module_free(linear);
    tg_module_free(s);
}

/* ---- Recurrent layers ---- */

static void recurrent(misuse_world *b, tg_module *(*make)(tg_ctx *, int64_t, int64_t, int, const tg_rnn_opts *)) {
    const tg_rnn_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_ctx *ctx = b->ctx;
    QUIET(tg_nn_gru, no_module(make(NULL, 2, 2, 1, NULL)));
    NONE(tg_nn_gru, ARGUMENT, "in is 0, expected 1 or more", make(ctx, 0, 2, 1, NULL));
    NONE(tg_nn_gru, ARGUMENT, "hidden is -1", make(ctx, 2, -1, 1, NULL));
    NONE(tg_nn_gru, ARGUMENT, "layers is 0", make(ctx, 2, 2, 0, NULL));
    NONE(tg_nn_gru, ARGUMENT, "size is 0", make(ctx, 2, 2, 1, &zero));
    NONE(tg_nn_gru, ARGUMENT, "this library knows", make(ctx, 2, 2, 1, &later));
    NONE(tg_nn_gru, ARGUMENT, "dropout is 1, expected 0 or more, and less than 1",
         make(ctx, 2, 2, 2, TG_RNN(.dropout = 1)));
    NONE(tg_nn_gru, ARGUMENT, "it comes between layers and there is one layer; leave it 0",
         make(ctx, 2, 2, 1, TG_RNN(.dropout = 0.5)));
    NONE(tg_nn_gru, SHAPE, "overflows", make(ctx, 2, INT64_MAX, 1, NULL));
    NONE(tg_nn_gru, SHAPE, "overflows", make(ctx, INT64_MAX, 2, 1, NULL));
}

static void recurrent_layers(misuse_world *b) {
    recurrent(b, tg_nn_gru);
    recurrent(b, tg_nn_lstm);
    QUIET(tg_nn_lstm, no_module(tg_nn_lstm(NULL, 2, 2, 1, NULL)));
    NONE(tg_nn_lstm, ARGUMENT, "tg_nn_lstm: in is 0", tg_nn_lstm(b->ctx, 0, 2, 1, NULL));
}

/* ---- Configs: all functions that take one refuse the same ---- */

#define SMALL .vocab = 5, .layers = 1, .heads = 2, .hidden = 4, .positions = 8

static void configs(misuse_world *b, tg_module *(*make)(tg_ctx *ctx, const tg_gpt_config *c)) {
    tg_ctx *ctx = b->ctx;
    tg_gpt_config zero = {0}, later = {.size = sizeof later + 8, SMALL};
    const int64_t big = (int64_t)1 << 39;
    QUIET(tg_gpt_new, no_module(make(NULL, TG_GPT(SMALL))));
#define CONFIG(code, says, ...) NONE(tg_gpt_new, code, says, make(ctx, TG_GPT(__VA_ARGS__)))
    NONE(tg_gpt_new, ARGUMENT, "the config is NULL", make(ctx, NULL));
    NONE(tg_gpt_new, ARGUMENT, "size is 0", make(ctx, &zero));
    NONE(tg_gpt_new, ARGUMENT, "this library knows", make(ctx, &later));
    CONFIG(ARGUMENT, "head_dim is 1099511627776, expected 1 to 1099511627775", SMALL, .head_dim = (int64_t)1 << 40);
    CONFIG(ARGUMENT, "vocab is 0, expected 1 to 1099511627775", .layers = 1, .heads = 2, .hidden = 4, .positions = 8);
    CONFIG(ARGUMENT, "vocab is -5", .vocab = -5, .layers = 1, .heads = 2, .hidden = 4, .positions = 8);
    CONFIG(ARGUMENT, "layers is 0", .vocab = 5, .heads = 2, .hidden = 4, .positions = 8);
    CONFIG(ARGUMENT, "layers is 9223372036854775807", .vocab = 5, .layers = INT64_MAX, .heads = 2, .hidden = 4,
           .positions = 8);
    CONFIG(ARGUMENT, "heads is 0", .vocab = 5, .layers = 1, .hidden = 4, .positions = 8);
    CONFIG(ARGUMENT, "hidden is 0", .vocab = 5, .layers = 1, .heads = 2, .positions = 8);
    CONFIG(ARGUMENT, "positions is 0", .vocab = 5, .layers = 1, .heads = 2, .hidden = 4);
    CONFIG(ARGUMENT, "not a multiple of heads = 3", .vocab = 5, .layers = 1, .heads = 3, .hidden = 4, .positions = 8);
    CONFIG(ARGUMENT, "a product below 2^40", .vocab = 5, .layers = 1, .heads = big, .hidden = 4, .head_dim = big,
           .positions = 8);
    CONFIG(ARGUMENT, "kv_heads is 3, expected a divisor of heads = 2", SMALL, .kv_heads = 3);
    CONFIG(ARGUMENT, "kv_heads is 0, expected a divisor of heads = 2", SMALL, .kv_heads = 0);
    CONFIG(ARGUMENT, "arch is 7, expected TG_GPT2 or TG_LLAMA", SMALL, .arch = (tg_gpt_arch)7);
    CONFIG(ARGUMENT, "ffn is -4", SMALL, .ffn = -4);
    CONFIG(ARGUMENT, "head_dim is -2", SMALL, .head_dim = -2);
    CONFIG(ARGUMENT, "head_dim is 3", SMALL, .arch = TG_LLAMA, .head_dim = 3);
    CONFIG(ARGUMENT, "ffn is 0", SMALL, .ffn = 0);
    CONFIG(ARGUMENT, "head_dim is 0", SMALL, .head_dim = 0);
    CONFIG(ARGUMENT, "norm_eps 0", SMALL, .norm_eps = 0);
    CONFIG(ARGUMENT, "init_std 0", SMALL, .init_std = 0);
    CONFIG(ARGUMENT, "rope_base 0", SMALL, .arch = TG_LLAMA, .rope_base = 0);
    CONFIG(ARGUMENT, "dropout 1", SMALL, .dropout = 1);
    CONFIG(ARGUMENT, "dropout nan", SMALL, .dropout = NAN);
    CONFIG(ARGUMENT, "norm_eps nan", SMALL, .norm_eps = NAN);
    CONFIG(ARGUMENT, "norm_eps inf", SMALL, .norm_eps = INFINITY);
    CONFIG(ARGUMENT, "init_std -1", SMALL, .init_std = -1);
    CONFIG(ARGUMENT, "init_std inf", SMALL, .init_std = INFINITY);
    CONFIG(ARGUMENT, "rope_base -1", SMALL, .arch = TG_LLAMA, .rope_base = -1);
    CONFIG(ARGUMENT, "rope_base inf", SMALL, .arch = TG_LLAMA, .rope_base = INFINITY);
    CONFIG(ARGUMENT, "GPT-2 learns its positions", SMALL, .rope_base = 500000);
    CONFIG(ARGUMENT, "tied is set", SMALL, .tied = true);
    CONFIG(ARGUMENT, "untied is set", SMALL, .arch = TG_LLAMA, .untied = true);
    CONFIG(ARGUMENT, "a Llama model has none", SMALL, .arch = TG_LLAMA, .dropout = 0.1);
#undef CONFIG
}

/* Options of whole GPTs, which modules of one do not use. */
#define ONE_MODULE(symbol)                                                                                   \
    do {                                                                                                     \
        NONE(symbol, ARGUMENT, #symbol ": layout is set, but only a whole GPT uses it; leave it at its default", \
             symbol(b->ctx, TG_GPT(SMALL, .layout = "E t L")));                                              \
        NONE(symbol, ARGUMENT, "chunk is set", symbol(b->ctx, TG_GPT(SMALL, .chunk = 1)));                   \
        NONE(symbol, ARGUMENT, "key is set", symbol(b->ctx, TG_GPT(SMALL, .key = 0)));                       \
        NONE(symbol, ARGUMENT, "unfilled is set", symbol(b->ctx, TG_GPT(SMALL, .unfilled = true)));          \
        NONE(symbol, ARGUMENT, "recompute is TG_GPT_FULL, expected TG_GPT_KEEP",                             \
             symbol(b->ctx, TG_GPT(SMALL, .recompute = TG_GPT_FULL)));                                       \
        NONE(symbol, ARGUMENT, "recompute is TG_GPT_DISTRIBUTED, expected TG_GPT_KEEP",                      \
             symbol(b->ctx, TG_GPT(SMALL, .recompute = TG_GPT_DISTRIBUTED)));                                \
    } while (0)

/* Names each of the functions that `configs` tests. */
static void parts(misuse_world *b) {
    configs(b, tg_gpt_new);
    configs(b, tg_nn_attention);
    configs(b, tg_nn_mlp);
    configs(b, tg_nn_transformer_layer);
    NONE(tg_nn_attention, ARGUMENT, "the config is NULL", tg_nn_attention(b->ctx, NULL));
    NONE(tg_nn_mlp, ARGUMENT, "the config is NULL", tg_nn_mlp(b->ctx, NULL));
    NONE(tg_nn_transformer_layer, ARGUMENT, "the config is NULL", tg_nn_transformer_layer(b->ctx, NULL));
    ONE_MODULE(tg_nn_attention);
    ONE_MODULE(tg_nn_mlp);
    ONE_MODULE(tg_nn_transformer_layer);
    NONE(tg_nn_attention, ARGUMENT, "recompute is TG_GPT_SELECTIVE, expected TG_GPT_KEEP; to recompute all",
         tg_nn_attention(b->ctx, TG_GPT(SMALL, .recompute = TG_GPT_SELECTIVE)));
}

/* ---- The model ---- */

#define IDS(symbol, call)                                                                         \
    do {                                                                                          \
        tg_tensor *x = NULL;                                                                      \
        INERT(symbol, ARGUMENT, "the tensor is NULL", call);                                      \
        x = b->foreign;                                                                           \
        INERT(symbol, HANDLE, "another context", call);                                           \
        x = b->ids;                                                                               \
        INERT(symbol, SHAPE, "ids are i64[2], expected i64[", call);                              \
        x = b->x;                                                                                 \
        INERT(symbol, SHAPE, "ids are f32[2, 3], expected i64[", call);                           \
        x = long_ids;                                                                             \
        INERT(symbol, SHAPE, "positions", call);                                                  \
        x = no_ids;                                                                               \
        INERT(symbol, DATA, "index 77 is out of range; it must be from 0 to 4", call);                                 \
    } while (0);                                                                                  \
    DEAD_TENSOR(symbol, call)

/* Only the last op finds what is wrong with the classes; the nodes before it stay on the tape. */
static bool no_loss(misuse_world *b, tg_module *m, tg_tensor *ids, tg_tensor *target) {
    tg_tape *t = tg_tape_new(b->ctx);
    bool inert = misuse_inert(tg_gpt_loss(m, t, ids, target, TG_LOSS_MEAN));
    tg_tape_free(t);
    return inert;
}

static void model(misuse_world *b) {
    tg_module *m = tg_gpt_new(b->ctx, TG_GPT(SMALL)), *linear = tg_nn_linear(b->ctx, 3, 2, true, 1);
    tg_module *other = tg_gpt_new(b->ctx, TG_GPT(SMALL, .key = 1));
    tg_gpt_cache *c = tg_gpt_cache_new(m, 1, 8);
    tg_tape *t = b->t;
    const int64_t far[2] = {0, 77};
    tg_tensor *ids = tg_zeros(b->ctx, TG_I64, TG_SHAPE(1, 2)), *long_ids = tg_zeros(b->ctx, TG_I64, TG_SHAPE(1, 9));
    tg_tensor *no_ids = tg_from_host(b->ctx, TG_I64, TG_SHAPE(1, 2), far);
    NONE(tg_gpt_new, STATE, "has drawn in step 0 already", tg_gpt_new(b->ctx, TG_GPT(SMALL)));
    QUIET(tg_gpt_config_of, !tg_gpt_config_of(NULL) && !tg_gpt_config_of(linear));
    QUIET(tg_gpt_logits, misuse_inert(tg_gpt_logits(NULL, t, ids)));
    INERT(tg_gpt_logits, ARGUMENT, "the module is a \"linear\"", tg_gpt_logits(linear, t, ids));
    INERT(tg_gpt_logits, ARGUMENT, "the tape is NULL", tg_gpt_logits(m, NULL, ids));
    INERT(tg_gpt_logits, HANDLE, "different contexts", tg_gpt_logits(m, b->far_t, ids));
    INERT(tg_gpt_logits, HANDLE, "freed", tg_gpt_logits(m, b->freed, ids));
    IDS(tg_gpt_logits, tg_gpt_logits(m, t, x));
    QUIET(tg_gpt_loss, misuse_inert(tg_gpt_loss(NULL, t, ids, ids, TG_LOSS_MEAN)));
    INERT(tg_gpt_loss, ARGUMENT, "the module is a \"linear\"", tg_gpt_loss(linear, t, ids, ids, TG_LOSS_SUM));
    INERT(tg_gpt_loss, ARGUMENT, "the tape is NULL", tg_gpt_loss(m, NULL, ids, ids, TG_LOSS_MEAN));
    INERT(tg_gpt_loss, ARGUMENT, "reduction is 5", tg_gpt_loss(m, t, ids, ids, (tg_loss_reduction)5));
    INERT(tg_gpt_loss, ARGUMENT, "the tensor is NULL", tg_gpt_loss(m, t, ids, NULL, TG_LOSS_MEAN));
    GIVES(tg_gpt_loss, DATA,
          "target of row 1 is 77; it must be from 0 to 4, or ignore_index", no_loss(b, m, ids, no_ids));
    INERT(tg_gpt_loss, SHAPE, "target is i64[1, 9], expected i64[1, 2]",
          tg_gpt_loss(m, t, ids, long_ids, TG_LOSS_MEAN));
    INERT(tg_gpt_loss, SHAPE, "target is f32[2, 3], expected i64[1, 2]", tg_gpt_loss(m, t, ids, b->x, TG_LOSS_MEAN));
    DEAD_TENSOR(tg_gpt_loss, tg_gpt_loss(m, t, ids, x, TG_LOSS_MEAN));
    IDS(tg_gpt_loss, tg_gpt_loss(m, t, x, x, TG_LOSS_MEAN));
    QUIET(tg_gpt_cache_new, !tg_gpt_cache_new(NULL, 1, 1));
    GIVES(tg_gpt_cache_new, ARGUMENT, "expected a language model", !tg_gpt_cache_new(linear, 1, 1));
    GIVES(tg_gpt_cache_new, ARGUMENT, "batch is 0 and positions 1", !tg_gpt_cache_new(m, 0, 1));
    GIVES(tg_gpt_cache_new, ARGUMENT, "batch is -1 and positions 1", !tg_gpt_cache_new(m, -1, 1));
    GIVES(tg_gpt_cache_new, ARGUMENT, "batch is 1 and positions 0", !tg_gpt_cache_new(m, 1, 0));
    GIVES(tg_gpt_cache_new, ARGUMENT, "batch is 1 and positions 9", !tg_gpt_cache_new(m, 1, 9));
    GIVES(tg_gpt_cache_new, SHAPE, "overflows", !tg_gpt_cache_new(m, INT64_MAX, 8));
    QUIET(tg_gpt_cache_free, (tg_gpt_cache_free(NULL), true));
    QUIET(tg_gpt_cache_length, tg_gpt_cache_length(NULL) == 0);
    QUIET(tg_gpt_next, misuse_inert(tg_gpt_next(NULL, t, c, ids)));
    INERT(tg_gpt_next, ARGUMENT, "the cache is NULL", tg_gpt_next(m, t, NULL, ids));
    INERT(tg_gpt_next, ARGUMENT, "the cache was made for another model", tg_gpt_next(other, t, c, ids));
    INERT(tg_gpt_next, ARGUMENT, "the tape is NULL", tg_gpt_next(m, NULL, c, ids));
    IDS(tg_gpt_next, tg_gpt_next(m, t, c, x));
    QUIET(tg_gpt_cache_length, tg_gpt_cache_length(c) == 0);
    for (int i = 0; i < 4; i++) tg_gpt_next(m, t, c, ids);
    INERT(tg_gpt_next, SHAPE, "the cache is full: it holds 8 of 8 positions", tg_gpt_next(m, t, c, ids));
    tg_gpt_cache_free(c);
    tg_module_free(m);
    tg_module_free(other);
    tg_module_free(linear);
    tg_drop(ids);
    tg_drop(long_ids);
    tg_drop(no_ids);
}

/* ---- Model directories ---- */

static void write_file(const misuse_world *b, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", b->dir, name);
    FILE *f = fopen(path, "w");
    if (f && fputs(text, f) >= 0) fclose(f);
}

/* 0 in a tg_gpt_config means a default, but in a file it does not. Scaled rotary positions, which no GPT has, are
 * refused under either key. */
static void numbers_of_files(misuse_world *b, const char *config) {
    static const char gpt2[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 5, \"n_embd\": 4, \"n_layer\": 1, "
                               "\"n_head\": 1, \"n_positions\": 3";
    static const char llama[] = "{\"model_type\": \"llama\", \"vocab_size\": 5, \"hidden_size\": 4, "
                                "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"intermediate_size\": 8, "
                                "\"max_position_embeddings\": 3";
    static const struct {
        const char *model, *rest, *message;
    } rows[] = {
        {gpt2, "\"layer_norm_epsilon\": 0.0}", "\"layer_norm_epsilon\" is 0, expected a number above 0"},
        {gpt2, "\"initializer_range\": 0}", "\"initializer_range\" is 0, expected"},
        {llama, "\"rms_norm_eps\": 0}", "\"rms_norm_eps\" is 0, expected"},
        {llama, "\"rope_theta\": 0}", "\"rope_theta\" is 0, expected"},
        {llama, "\"rope_parameters\": {\"rope_theta\": 0}}", "\"rope_theta\" is 0, expected"},
        {llama, "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}}", "has options that a GPT does not"},
        {llama, "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}}", "has options that a GPT does not"},
        {llama, "\"rope_parameters\": {\"rope_type\": \"dynamic\"}, \"rope_scaling\": {\"type\": \"default\"}}",
         "\"rope_type\" is \"dynamic\", but only \"default\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s, %s", rows[i].model, rows[i].rest);
        write_file(b, "config.json", text);
        NONE(tg_gpt_from_config, UNSUPPORTED, rows[i].message, tg_gpt_from_config(b->ctx, config));
    }
}

static void directories(misuse_world *b) {
    tg_module *m = tg_gpt_new(b->ctx, TG_GPT(SMALL, .key = 2)), *linear = tg_nn_linear(b->ctx, 3, 2, true, 1);
    char config[512], nowhere[512];
    snprintf(config, sizeof config, "%s/config.json", b->dir);
    snprintf(nowhere, sizeof nowhere, "%s/no/such", b->dir);
    QUIET(tg_gpt_load, no_module(tg_gpt_load(NULL, b->dir)));
    NONE(tg_gpt_load, ARGUMENT, "the directory is NULL", tg_gpt_load(b->ctx, NULL));
    NONE(tg_gpt_load, IO, "no/such/config.json", tg_gpt_load(b->ctx, nowhere));
    QUIET(tg_gpt_from_config, no_module(tg_gpt_from_config(NULL, config)));
    NONE(tg_gpt_from_config, ARGUMENT, "the path is NULL", tg_gpt_from_config(b->ctx, NULL));
    NONE(tg_gpt_from_config, IO, "config.json", tg_gpt_from_config(b->ctx, config));
    write_file(b, "config.json", "{\"model_type\": \"bert\", \"vocab_size\": 5}");
    NONE(tg_gpt_from_config, UNSUPPORTED, "model_type is \"bert\"", tg_gpt_from_config(b->ctx, config));
    write_file(b, "config.json", "{\"model_type\": \"gpt2\", \"vocab_size\": -5}");
    NONE(tg_gpt_from_config, FORMAT, "vocab_size", tg_gpt_from_config(b->ctx, config));
    numbers_of_files(b, config);
    write_file(b, "config.json", "{");
    NONE(tg_gpt_load, FORMAT, "config.json", tg_gpt_load(b->ctx, b->dir));
    QUIET(tg_gpt_load_weights, tg_gpt_load_weights(NULL, b->dir) == TG_ERR_ARGUMENT);
    FAILS(tg_gpt_load_weights, ARGUMENT, "the module is not a gpt", tg_gpt_load_weights(linear, b->dir));
    FAILS(tg_gpt_load_weights, ARGUMENT, "dir is NULL", tg_gpt_load_weights(m, NULL));
    FAILS(tg_gpt_load_weights, IO, "model.safetensors", tg_gpt_load_weights(m, b->dir));
    QUIET(tg_gpt_to_state, tg_gpt_to_state(NULL, b->dir, b->dir, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_gpt_to_state, ARGUMENT, "a directory is NULL", tg_gpt_to_state(b->ctx, NULL, b->dir, NULL));
    FAILS(tg_gpt_to_state, ARGUMENT, "a directory is NULL", tg_gpt_to_state(b->ctx, b->dir, NULL, NULL));
    FAILS(tg_gpt_to_state, IO, "config.json", tg_gpt_to_state(b->ctx, "/nonexistent", b->dir, NULL));
    QUIET(tg_gpt_from_state, tg_gpt_from_state(NULL, b->dir, NULL, b->dir, b->dir) == TG_ERR_ARGUMENT);
    FAILS(tg_gpt_from_state, ARGUMENT, "a directory is NULL",
          tg_gpt_from_state(b->ctx, NULL, NULL, "c", b->dir));
    FAILS(tg_gpt_from_state, ARGUMENT, "config is NULL", tg_gpt_from_state(b->ctx, b->dir, NULL, NULL, b->dir));
    FAILS(tg_gpt_from_state, IO, "index.json", tg_gpt_from_state(b->ctx, "/nonexistent", NULL, "c", b->dir));
    QUIET(tg_gpt_save, tg_gpt_save(NULL, b->dir) == TG_ERR_ARGUMENT);
    FAILS(tg_gpt_save, ARGUMENT, "the module is not a gpt", tg_gpt_save(linear, b->dir));
    FAILS(tg_gpt_save, ARGUMENT, "dir is NULL", tg_gpt_save(m, NULL));
    FAILS(tg_gpt_save, IO, "no/such/model.safetensors", tg_gpt_save(m, nowhere));
    tg_module_free(m);
    tg_module_free(linear);
}

void misuse_nn(misuse_world *b) {
    modules(b);
    adding(b);
    forwards(b);
    layers(b);
    convolutions(b);
    sequences(b);
    recurrent_layers(b);
    parts(b);
    model(b);
    directories(b);
}
