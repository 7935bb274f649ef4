/* One step of a GRU and of an LSTM, with PyTorch's equations and order of gates. */
#include "nn/rnn.h"

/* Returns h @ w^T + b. If h is NULL, which stands for zeros, that is b. The result is NULL if b is NULL too; the caller
 * then leaves the term out. */
static tg_tensor *of_state(tg_tape *t, tg_tensor *h, tg_tensor *w, tg_tensor *b) {
    return h ? tg_linear(t, h, w, b) : b;
}

/* Returns sigmoid(x + y), or sigmoid(x) if y is NULL. */
static tg_tensor *gate(tg_tape *t, tg_tensor *x, tg_tensor *y) { return tg_sigmoid(t, y ? tg_add(t, x, y) : x); }

/* Cho et al., arXiv 1406.1078. The reset gate r multiplies the product with weight_hh instead of the state, as in cuDNN
 * and PyTorch. */
static void gru_step(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_rnn_state *s) {
    tg_tensor *of_x[3], *of_h[3] = {NULL, NULL, NULL}, *hh = of_state(t, s->h, w, b);
    tg_chunk(t, x, -1, 3, of_x);
    if (hh) tg_chunk(t, hh, -1, 3, of_h);
    tg_tensor *n = of_x[2];
    if (hh) n = tg_add(t, n, tg_mul(t, gate(t, of_x[0], of_h[0]), of_h[2]));
    n = tg_tanh(t, n);
    tg_tensor *z = gate(t, of_x[1], of_h[1]);
    s->h = s->h ? tg_lerp(t, n, s->h, z) : tg_sub(t, n, tg_mul(t, z, n));
}

/* Hochreiter and Schmidhuber, Neural Computation 9(8), 1997, with the forget gate of Gers et al., 2000. */
static void lstm_step(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_rnn_state *s) {
    tg_tensor *hh = of_state(t, s->h, w, b), *g[4];
    tg_chunk(t, hh ? tg_add(t, x, hh) : x, -1, 4, g);
    tg_tensor *new = tg_mul(t, tg_sigmoid(t, g[0]), tg_tanh(t, g[2]));
    s->c = s->c ? tg_add(t, tg_mul(t, tg_sigmoid(t, g[1]), s->c), new) : new;
    s->h = tg_mul(t, tg_sigmoid(t, g[3]), tg_tanh(t, s->c));
}

const tg_rnn_cell tg_gru_cell = {.kind = "gru", .maker = "tg_nn_gru", .gates = 3, .states = 1, .step = gru_step};
const tg_rnn_cell tg_lstm_cell = {.kind = "lstm", .maker = "tg_nn_lstm", .gates = 4, .states = 2, .step = lstm_step};
