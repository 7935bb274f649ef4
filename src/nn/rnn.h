/* The cells of recurrent layers, which rnn.c runs over sequences. */
#ifndef TG_RNN_H
#define TG_RNN_H

#include <tapegrad/layers.h>

/* The states of one direction of one layer, each [1, b, hidden]; NULL stands for zeros. */
typedef struct tg_rnn_state {
    tg_tensor *h, *c; /* c: the cell state of an LSTM */
} tg_rnn_state;

/* A kind of recurrent layer. */
typedef struct tg_rnn_cell {
    const char *kind, *maker; /* name of the kind, and of its public constructor */
    int gates, states;        /* number of gates, and of states */
    /* Moves *s by one element. x [1, b, gates * hidden] is the element's product with weight_ih, with its bias. w and b
     * are weight_hh and bias_hh; b may be NULL. */
    void (*step)(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_rnn_state *s);
} tg_rnn_cell;

extern const tg_rnn_cell tg_gru_cell, tg_lstm_cell;

#endif
