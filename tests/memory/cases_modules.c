/* Modules: each is made, called and differentiated. A new layer is one more row of `makers`. */
#include <tapegrad/attention.h>
#include <tapegrad/gpt.h>
#include <tapegrad/lora.h>
#include <tapegrad/nn.h>

#include "memory/faults.h"

enum { MOST_IN = 4, MOST_PARAMS = 64 };

typedef struct called {
    tg_module *m;
    tg_tensor *in[MOST_IN], *out[3];
    int n_in, n_out;
} called;

/* ---- Plain layers ---- */

static tg_module *in_sequence(trial *r, tg_module *const *of, int n) {
    tg_module *m = tg_nn_sequential(r->ctx);
    for (int i = 0; i < n; i++) tg_sequential_add(m, of[i]);
    return m;
}

static void plain(trial *r, called *c) {
    tg_ctx *ctx = r->ctx;
    tg_module *const of[] = {tg_nn_conv1d(ctx, 4, 6, 3, true, 0.5, TG_CONV(.groups = 2)),
                             tg_nn_group_norm(ctx, 2, 6, 1e-5), tg_nn_function(ctx, "tanh", tg_tanh),
                             tg_nn_batch_norm(ctx, 6, 0.1, 1e-5), tg_nn_dropout(ctx, 0.3),
                             tg_nn_linear(ctx, 6, 5, true, 0.5), tg_nn_layer_norm(ctx, 5, 1e-5),
                             tg_nn_rms_norm(ctx, 5, 1e-5)};
    c->m = in_sequence(r, of, 8);
    c->in[0] = wave(r, TG_F32, TG_SHAPE(3, 4, 8), 0);
}

static void images(trial *r, called *c) {
    c->m = tg_nn_conv2d(r->ctx, 2, 3, 2, 2, true, 0.5, NULL);
    c->in[0] = wave(r, TG_F32, TG_SHAPE(2, 2, 4, 5), 0);
}

static void embedding(trial *r, called *c) {
    c->m = tg_nn_embedding(r->ctx, 11, 6, 0.5);
    c->in[0] = some_ids(r, 2, 5, 11, 0, 3);
}

static void recurrent(trial *r, called *c, bool lstm) {
    const tg_rnn_opts *o = TG_RNN(.bidirectional = true, .dropout = 0.2);
    c->m = lstm ? tg_nn_lstm(r->ctx, 4, 3, 2, o) : tg_nn_gru(r->ctx, 4, 3, 2, o);
    c->in[0] = wave(r, TG_F32, TG_SHAPE(3, 2, 4), 0);
    c->in[1] = wave(r, TG_F32, TG_SHAPE(4, 2, 3), 1);
    if (lstm) c->in[2] = wave(r, TG_F32, TG_SHAPE(4, 2, 3), 2);
    c->n_in = lstm ? 3 : 2;
    c->n_out = lstm ? 3 : 2;
}

static void gru(trial *r, called *c) { recurrent(r, c, false); }
static void lstm(trial *r, called *c) { recurrent(r, c, true); }

/* ---- Layers over ranks ---- */

static void attention(trial *r, called *c) {
    c->m = tg_nn_self_attention(r->p, 12, TG_SELF_ATTENTION(.heads = 4, .kv_heads = 2, .causal = true, .bias = true,
                                                            .qk_norm = true, .rope_base = 100, .sink = true,
                                                            .head_dim = 4, .softcap = 5, .dropout = 0.1));
    c->in[0] = wave(r, TG_F32, TG_SHAPE(8, 2, 12), 0);
}

static void packed_attention(trial *r, called *c) {
    static const int64_t starts[] = {0, 3, 8};
    c->m = tg_nn_self_attention(r->p, 12, TG_SELF_ATTENTION(.heads = 4, .causal = true, .head_dim = 4));
    c->in[0] = wave(r, TG_F32, TG_SHAPE(8, 1, 12), 0);
    c->in[1] = tg_from_host(r->ctx, TG_I64, TG_SHAPE(3), starts);
    c->n_in = 2;
}

static void cross_attention(trial *r, called *c) {
    c->m = tg_nn_self_attention(r->p, 12, TG_SELF_ATTENTION(.heads = 4, .cross = true, .head_dim = 4, .v_dim = 3));
    c->in[0] = wave(r, TG_F32, TG_SHAPE(4, 2, 12), 0);
    c->in[1] = wave(r, TG_F32, TG_SHAPE(7, 2, 12), 1);
    c->n_in = 2;
}

static void norm_mlp(trial *r, called *c) {
    c->m = tg_nn_norm_mlp(r->p, 8, 12, NULL);
    c->in[0] = wave(r, TG_F32, TG_SHAPE(4, 2, 8), 0);
}

static void linears(trial *r, called *c) {
    const tg_parallel_linear_opts *plain = TG_PARALLEL_LINEAR(.std = 0.5), *norm = TG_PARALLEL_LINEAR(.rms_norm = true);
    tg_module *const of[] = {tg_nn_column_linear(r->p, 8, 12, plain), tg_nn_row_linear(r->p, 12, 8, plain),
                             tg_nn_norm_linear(r->p, 8, 6, norm)};
    c->m = in_sequence(r, of, 3);
    c->in[0] = wave(r, TG_F32, TG_SHAPE(4, 2, 8), 0);
}

static void vocabulary(trial *r, called *c) {
    c->m = tg_nn_vocab_embedding(r->p, 16, 6, 0.5, NULL);
    c->in[0] = some_ids(r, 2, 5, 16, 0, 3);
}

/* ---- Modules around modules ---- */

static void sixteen_bits(trial *r, called *c) {
    tg_module *const of[] = {tg_nn_linear(r->ctx, 4, 6, true, 0.5), tg_nn_layer_norm(r->ctx, 6, 1e-5)};
    c->m = tg_float16_new(in_sequence(r, of, 2), TG_BF16, true, true);
    c->in[0] = wave(r, TG_F32, TG_SHAPE(3, 4), 0);
}

static void captured(trial *r, called *c) {
    const tg_shape in = TG_SHAPE(3, 4);
    const tg_dtype dtype = TG_F32;
    tg_module *const of[] = {tg_nn_linear(r->ctx, 4, 6, true, 0.5), tg_nn_dropout(r->ctx, 0.3)};
    c->m = in_sequence(r, of, 2);
    tg_captured_new(tg_module_child(c->m, "0"), &in, &dtype, 1, 2);
    c->in[0] = wave(r, TG_F32, TG_SHAPE(3, 4), 0);
}

static tg_status negate(void *user, tg_module *m, tg_tape *t, tg_tensor **x, int n) {
    (void)user, (void)m, (void)n;
    x[0] = tg_neg(t, x[0]);
    return TG_OK;
}

/* A child that was replaced, a hook, a mode, frozen and changed initial values, and another dtype. */
static void changed(trial *r, called *c) {
    tg_module *const of[] = {tg_nn_linear(r->ctx, 4, 6, true, 0.5), tg_nn_dropout(r->ctx, 0.3),
                             tg_nn_linear(r->ctx, 6, 6, false, 0)};
    c->m = in_sequence(r, of, 3);
    tg_module *other = tg_nn_linear(r->ctx, 6, 6, true, 0.5);
    tg_module_free(tg_module_replace(c->m, "2", other));
    if (tg_ctx_status(r->ctx) != TG_OK) tg_module_free(other); /* else it belongs to m */
    tg_module_hook(c->m, TG_AFTER, negate, NULL);
    tg_module_set_mode(tg_module_child(c->m, "1"), TG_MODE_EVAL);
    tg_module_cast(c->m, TG_F64);
    tg_param_init(tg_module_find(c->m, "0.weight"), TG_ORTHOGONAL(1));
    tg_param_init(tg_module_find(c->m, "0.bias"), TG_INIT(.kind = TG_INIT_TRUNCATED, .b = 1));
    tg_module_train(c->m, "2.bias", false);
    c->in[0] = wave(r, TG_F64, TG_SHAPE(3, 4), 0);
}

static void adapted(trial *r, called *c) {
    tg_module *const of[] = {tg_nn_linear(r->ctx, 4, 6, true, 0.5), tg_nn_column_linear(r->p, 6, 8, NULL),
                             tg_nn_row_linear(r->p, 8, 4, NULL)};
    c->m = in_sequence(r, of, 3);
    tg_lora_apply(c->m, TG_LORA(.rank = 2, .dropout = 0.2));
    c->in[0] = wave(r, TG_F32, TG_SHAPE(3, 2, 4), 0);
}

static void transformer_layer(trial *r, called *c) {
    c->m = tg_nn_transformer_layer(r->ctx, TG_GPT(.arch = TG_GPT2, .vocab = 16, .layers = 2, .heads = 2, .hidden = 8,
                                                  .positions = 8, .dropout = 0.1, .recompute = TG_GPT_SELECTIVE,
                                                  .parallel = r->p));
    c->in[0] = wave(r, TG_F32, TG_SHAPE(8, 2, 8), 0);
}

/* ---- The case ---- */

static const struct {
    const char *name;
    void (*make)(trial *r, called *c);
} makers[] = {
    {"plain", plain},
    {"images", images},
    {"embedding", embedding},
    {"gru", gru},
    {"lstm", lstm},
    {"attention", attention},
    {"packed attention", packed_attention},
    {"cross attention", cross_attention},
    {"norm and mlp", norm_mlp},
    {"column, row and norm linear", linears},
    {"vocabulary", vocabulary},
    {"16 bits", sixteen_bits},
    {"captured", captured},
    {"changed", changed},
    {"adapted", adapted},
    {"transformer layer", transformer_layer},
};
enum { MAKERS = sizeof makers / sizeof *makers };

static const char *maker_name(int i) { return i < MAKERS ? makers[i].name : NULL; }

static void open_module(trial *r) {
    called *c = r->state;
    c->n_in = c->n_out = 1;
    for (int i = 0; i < MAKERS; i++)
        if (!strcmp(makers[i].name, r->name)) makers[i].make(r, c);
}

static void step_module(trial *r) {
    called *c = r->state;
    tg_tensor *params[MOST_PARAMS], *sum = NULL;
    int n = tg_module_params(c->m, params, MOST_PARAMS);
    for (int i = 0; i < n; i++) tg_zero_grad(params[i]);
    tg_module_call(c->m, r->t, c->in, c->n_in, c->out, c->n_out);
    for (int i = 0; i < c->n_out; i++) {
        tg_tensor *y = tg_sum(r->t, tg_square(r->t, tg_cast(r->t, c->out[i], TG_F32)), TG_ALL_DIMS, false);
        sum = sum ? tg_add(r->t, sum, y) : y;
    }
    tg_backward_with(r->t, &sum, 1, TG_BACKWARD(.retain = true));
}

static void note_module(trial *r) {
    called *c = r->state;
    tg_tensor *params[MOST_PARAMS];
    int n = tg_module_params(c->m, params, MOST_PARAMS);
    for (int i = 0; i < c->n_out; i++) note(r, c->out[i]);
    for (int i = 0; i < n; i++)
        if (tg_has_grad(params[i])) note(r, tg_grad_of(params[i]));
}

static void close_module(trial *r) {
    called *c = r->state;
    tg_tape_reset(r->t);
    tg_module_free(c->m);
    for (int i = 0; i < c->n_in; i++) tg_drop(c->in[i]);
}

static const memory_case rows[] = {
    {"module", maker_name, sizeof(called), true, false, open_module, step_module, note_module, close_module},
};
const memory_cases module_cases = {rows, sizeof rows / sizeof *rows};
