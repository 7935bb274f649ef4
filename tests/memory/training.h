/* What cases of training share: two linear layers, and all that may train them. */
#ifndef TG_TEST_MEMORY_TRAINING_H
#define TG_TEST_MEMORY_TRAINING_H

#include <tapegrad/average.h>
#include <tapegrad/capture.h>
#include <tapegrad/flat.h>
#include <tapegrad/lbfgs.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/pipe.h>
#include <tapegrad/tensor_parallel.h>

#include "memory/faults.h"

enum { PARAMS = 4, BATCH = 3 };

/* Two linear layers, the second of which may have 16 bits, and what trains them. */
typedef struct work {
    tg_module *m[2];
    tg_tensor *param[PARAMS], *x, *out[3];
    tg_optim *o;
    tg_average *average[2];
    tg_lbfgs *lbfgs;
    tg_graph *graph;
    tg_flat *flat;
    tg_pipe_plan *plan;
    tg_pipe *pipe;
    tg_wgrads *deferred;
    double loss;
} work;

static inline void open_layers(trial *r) {
    work *w = r->state;
    for (int i = 0; i < 2; i++) {
        w->m[i] = tg_nn_linear(r->ctx, 4, 4, true, 0.5);
        tg_module_params(w->m[i], w->param + 2 * i, 2);
    }
    w->x = wave(r, TG_F32, TG_SHAPE(BATCH, 4), 0);
}

static inline void close_layers(trial *r) {
    work *w = r->state;
    tg_tape_reset(r->t);
    tg_pipe_free(w->pipe);
    tg_pipe_plan_free(w->plan);
    tg_graph_free(w->graph);
    tg_lbfgs_free(w->lbfgs);
    for (int i = 0; i < 2; i++) tg_average_free(w->average[i]);
    tg_optim_free(w->o);
    if (w->flat) tg_flat_gather(w->flat); /* a step may have failed before it */
    tg_flat_free(w->flat);
    tg_tape_defer(r->t, NULL);
    tg_wgrads_free(w->deferred);
    for (int i = 0; i < 2; i++) tg_module_free(w->m[i]);
    tg_drop(w->x);
}

static inline void note_params(trial *r) {
    work *w = r->state;
    for (int i = 0; i < PARAMS; i++) note(r, w->param[i]);
    note_bytes(r, &w->loss, sizeof w->loss);
}

/* Returns the mean square of what the layers compute. */
static inline tg_tensor *loss_of(trial *r, tg_tensor *x) {
    work *w = r->state;
    tg_tensor *y = tg_tanh(r->t, tg_module_forward(w->m[0], r->t, x));
    y = tg_module_forward(w->m[1], r->t, tg_cast(r->t, y, tg_dtype_of(w->param[2])));
    return tg_mean(r->t, tg_square(r->t, tg_cast(r->t, y, TG_F32)), TG_ALL_DIMS, false);
}

#endif
