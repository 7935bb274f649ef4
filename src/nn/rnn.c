/* Recurrent layers: GRU and LSTM over sequences, with several layers and two directions. */
#include "nn/rnn.h"

#include <math.h>
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/text.h"
#include "nn/init/init.h"
#include "nn/layer.h"
#include "tape/tape.h"

typedef struct rnn {
    tg_ctx *ctx;
    const tg_rnn_cell *cell;
    int64_t in, hidden;
    int layers, directions;
    double dropout;
} rnn;

static const rnn *rnn_of(const tg_module *m) { return m->state; }

static void rnn_free(void *state) {
    rnn *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

/* ---- Names ---- */

typedef struct param_name {
    char text[48];
} param_name;

/* Returns the name of a parameter of a layer's direction, such as "weight_ih_l0_reverse". */
static param_name name_of(const char *what, int layer, int direction) {
    param_name n;
    snprintf(n.text, sizeof n.text, "%s_l%d%s", what, layer, direction ? "_reverse" : "");
    return n;
}

static tg_tensor *param(const tg_module *m, const char *what, int layer, int direction) {
    return tg_module_own(m, name_of(what, layer, direction).text);
}

/* ---- Sequences ---- */

/* Runs one direction of a layer over x [s, b, in of the layer], and moves *state to the end. Returns the states after
 * each element, [s, b, hidden]. */
static tg_tensor *run_direction(tg_module *m, tg_tape *t, int layer, int direction, tg_tensor *x, tg_rnn_state *state) {
    int n = (int)tg_dim(x, 0);
    tg_tensor **each = tg_tape_alloc(t, (size_t)n * sizeof *each);
    tg_tensor *of_x = tg_linear(t, x, param(m, "weight_ih", layer, direction), param(m, "bias_ih", layer, direction));
    tg_tensor *w = param(m, "weight_hh", layer, direction), *b = param(m, "bias_hh", layer, direction);
    if (!each || tg_chunk(t, of_x, 0, n, each) != TG_OK) return tg_inert(m->ctx);
    for (int i = 0; i < n && tg_ok(m->ctx); i++) {
        int at = direction ? n - 1 - i : i;
        rnn_of(m)->cell->step(t, each[at], w, b, state);
        each[at] = state->h;
    }
    return tg_concat(t, each, n, 0);
}

/* Runs one layer, whose states begin at state[0]. Returns [s, b, directions * hidden]. */
static tg_tensor *run_layer(tg_module *m, tg_tape *t, int layer, tg_tensor *x, tg_rnn_state *state) {
    tg_tensor *y[2];
    int n = rnn_of(m)->directions;
    for (int d = 0; d < n; d++) y[d] = run_direction(m, t, layer, d, x, &state[d]);
    return n == 1 ? y[0] : tg_concat(t, y, n, 2);
}

static tg_tensor *run(tg_module *m, tg_tape *t, tg_tensor *x, tg_rnn_state *state) {
    const rnn *s = rnn_of(m);
    for (int l = 0; l < s->layers && tg_ok(m->ctx); l++) {
        x = run_layer(m, t, l, x, state + l * s->directions);
        if (l + 1 < s->layers && s->dropout > 0) x = tg_dropout(t, x, s->dropout);
    }
    return x;
}

/* ---- Calls ---- */

/* Fails unless x has this shape, which `text` describes; a dim that is 0 in `want` may have any size from 1 on. */
static tg_status check_input(const tg_module *m, const tg_tensor *x, int i, tg_shape want, const char *text) {
    char got[160];
    bool same = x && x->ndim == 3;
    for (int d = 0; same && d < 3; d++) same = want.dim[d] ? x->shape[d] == want.dim[d] : x->shape[d] > 0;
    if (same) return TG_OK;
    if (!x) return tg_fail(m->ctx, TG_ERR_ARGUMENT, "%s: input %d is NULL, expected %s", m->ops->kind, i, text);
    tg_describe(x, got, sizeof got);
    return tg_fail(m->ctx, TG_ERR_SHAPE, "%s: input %d is %s, expected %s", m->ops->kind, i, got, text);
}

static tg_status check_call(const tg_module *m, tg_tensor *const *in, int n_in, int n_out) {
    const rnn *s = rnn_of(m);
    int most = 1 + s->cell->states, states = s->layers * s->directions;
    char text[96];
    if (n_in < 1 || n_in > most || n_out > most)
        return tg_fail(
            m->ctx, TG_ERR_SHAPE,
            "a module of kind \"%s\" takes 1 to %d inputs and gives 1 to %d outputs, but the call has %d and "
            "%d",
            s->cell->kind, most, most, n_in, n_out);
    snprintf(text, sizeof text, "[sequence, batch, %lld], none of them 0", (long long)s->in);
    TG_TRY(check_input(m, in[0], 0, (tg_shape){3, {0, 0, s->in}}, text));
    tg_shape want = {3, {states, in[0]->shape[1], s->hidden}};
    snprintf(text, sizeof text, "[%d, %lld, %lld]: layers and directions, batch, hidden", states,
             (long long)want.dim[1], (long long)s->hidden);
    for (int i = 1; i < n_in; i++)
        if (in[i]) TG_TRY(check_input(m, in[i], i, want, text));
    return TG_OK;
}

/* Splits the inputs after the first, each [n, b, hidden], into the states of the n layers and directions. */
static tg_status split_states(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, int n, tg_rnn_state *state) {
    tg_tensor **row = tg_tape_alloc(t, (size_t)n * sizeof *row);
    if (!row) return m->ctx->run.status;
    for (int k = 1; k < n_in; k++) {
        if (!in[k]) continue;
        TG_TRY(tg_chunk(t, in[k], 0, n, row));
        for (int i = 0; i < n; i++) *(k == 1 ? &state[i].h : &state[i].c) = row[i];
    }
    return TG_OK;
}

/* Joins the states of the n layers and directions into the outputs after the first, each [n, b, hidden]. */
static tg_status join_states(tg_module *m, tg_tape *t, const tg_rnn_state *state, int n, tg_tensor **out, int n_out) {
    tg_tensor **row = tg_tape_alloc(t, (size_t)n * sizeof *row);
    for (int k = 1; row && k < n_out; k++) {
        for (int i = 0; i < n; i++) row[i] = k == 1 ? state[i].h : state[i].c;
        out[k] = tg_concat(t, row, n, 0);
    }
    return m->ctx->run.status;
}

static tg_status rnn_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    int n = rnn_of(m)->layers * rnn_of(m)->directions;
    TG_TRY(check_call(m, in, n_in, n_out));
    tg_rnn_state *state = tg_tape_alloc(t, (size_t)n * sizeof *state);
    if (!state) return m->ctx->run.status;
    memset(state, 0, (size_t)n * sizeof *state);
    TG_TRY(split_states(m, t, in, n_in, n, state));
    out[0] = run(m, t, in[0], state);
    TG_TRY(m->ctx->run.status);
    return join_states(m, t, state, n, out, n_out);
}

/* ---- Creation ---- */

static size_t describe(const tg_module *m, char *buf, size_t n) {
    const rnn *s = rnn_of(m);
    size_t at = 0;
    tg_text(buf, n, &at, "in %lld, hidden %lld, %s", (long long)s->in, (long long)s->hidden,
            tg_count(s->layers, "layer").text);
    if (s->directions == 2) tg_text(buf, n, &at, ", bidirectional");
    if (s->dropout > 0) tg_text(buf, n, &at, ", dropout %g", s->dropout);
    return at;
}

static const tg_module_ops gru_ops = {
    .size = sizeof(tg_module_ops), .kind = "gru", .free = rnn_free, .call = rnn_call, .describe = describe};
static const tg_module_ops lstm_ops = {
    .size = sizeof(tg_module_ops), .kind = "lstm", .free = rnn_free, .call = rnn_call, .describe = describe};

/* Adds a parameter with PyTorch's initial values. */
static void add(tg_module *m, const char *what, int layer, int direction, tg_shape shape) {
    const rnn *s = rnn_of(m);
    double bound = 1 / sqrt((double)s->hidden);
    param_name name = name_of(what, layer, direction);
    tg_tensor *p = tg_param_new(m->ctx, name.text, TG_DTYPE_DEFAULT, shape, 0);
    if (tg_ok(m->ctx))
        tg_init_fill(p, TG_INIT(.kind = TG_INIT_UNIFORM, .a = -bound, .b = bound), s->cell->maker, TG_SITE);
    tg_layer_add(m, name.text, p);
}

static void add_direction(tg_module *m, int layer, int direction, bool bias) {
    const rnn *s = rnn_of(m);
    int64_t rows = s->cell->gates * s->hidden, in = layer ? s->directions * s->hidden : s->in;
    add(m, "weight_ih", layer, direction, (tg_shape){2, {rows, in}});
    add(m, "weight_hh", layer, direction, (tg_shape){2, {rows, s->hidden}});
    if (!bias) return;
    add(m, "bias_ih", layer, direction, (tg_shape){1, {rows}});
    add(m, "bias_hh", layer, direction, (tg_shape){1, {rows}});
}

/* Reads and checks the options. Returns whether all arguments are good. */
static bool check_new(tg_ctx *ctx, const char *who, int64_t in, int64_t hidden, int layers, const tg_rnn_opts *given,
                      tg_rnn_opts *o) {
    if (!tg_layer_positive(ctx, who, "in", in) || !tg_layer_positive(ctx, who, "hidden", hidden) ||
        !tg_layer_positive(ctx, who, "layers", layers) || tg_options(ctx, o, &tg_rnn_opts_struct, given, who) != TG_OK)
        return false;
    if (!(o->dropout >= 0 && o->dropout < 1))
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: dropout is %g, expected 0 or more, and less than 1", who, o->dropout);
    else if (o->dropout > 0 && layers == 1)
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "%s: dropout is %g, but it comes between layers and there is one layer; leave it 0", who, o->dropout);
    else if (hidden > INT64_MAX / 8)
        tg_fail(ctx, TG_ERR_SHAPE, "%s: hidden is %lld, so the number of rows of a weight overflows", who,
                (long long)hidden);
    return tg_ok(ctx);
}

static tg_module *rnn_new(tg_ctx *ctx, const tg_module_ops *ops, const tg_rnn_cell *cell, int64_t in, int64_t hidden,
                          int layers, const tg_rnn_opts *opts) {
    tg_rnn_opts o;
    bool good = check_new(ctx, cell->maker, in, hidden, layers, opts, &o);
    rnn *s = good ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (s) *s = (rnn){ctx, cell, in, hidden, layers, o.bidirectional ? 2 : 1, o.dropout};
    tg_module *m = tg_module_new(s ? ctx : NULL, ops, s);
    for (int l = 0; l < layers && tg_module_ok(m); l++)
        for (int d = 0; d < rnn_of(m)->directions && tg_module_ok(m); d++) add_direction(m, l, d, !o.no_bias);
    return tg_layer_checked(m);
}

tg_module *tg_nn_gru(tg_ctx *ctx, int64_t in, int64_t hidden, int layers, const tg_rnn_opts *opts) {
    return rnn_new(ctx, &gru_ops, &tg_gru_cell, in, hidden, layers, opts);
}

tg_module *tg_nn_lstm(tg_ctx *ctx, int64_t in, int64_t hidden, int layers, const tg_rnn_opts *opts) {
    return rnn_new(ctx, &lstm_ops, &tg_lstm_cell, in, hidden, layers, opts);
}
