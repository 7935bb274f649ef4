/* L-BFGS (Liu and Nocedal, Mathematical Programming 45, 1989), for problems with few parameters whose loss and gradient
 * are computed from all data in each evaluation. optim.h, which this header includes, has the optimizers for training
 * on batches.
 *
 * L-BFGS evaluates the loss several times in each iteration, to choose how far to go. It therefore reads numbers from
 * the device and cannot be captured (capture.h). It has no groups, schedules, clipping, loss scaling, and state for
 * checkpoints, which the optimizers of optim.h have. Its history lives as long as the object. */
#ifndef TAPEGRAD_LBFGS_H
#define TAPEGRAD_LBFGS_H

#include <tapegrad/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_lbfgs tg_lbfgs;

/* Options of L-BFGS. */
typedef struct tg_lbfgs_opts {
    size_t size;
    double lr;       /* above 0: the multiple of the direction that each line search tries first; 1 by default */
    int iterations;  /* iterations of one call of tg_lbfgs_step, 1 or more; 20 by default */
    int evaluations; /* no iteration begins after this many evaluations in one call, 1 or more; 25 by default */
    int history;     /* pairs of vectors that are kept, 1 or more; 10 by default */
    /* 0 or more: a call ends if the absolute value of no element of the gradients is greater; 1e-7 by default */
    double gradient_tolerance;
    /* 0 or more: a call ends if an iteration changes the loss, or every element of the parameters, by less; 1e-9 by
     * default */
    double change_tolerance;
} tg_lbfgs_opts;

#define TG_LBFGS_DEFAULTS                                                                                              \
    .size = sizeof(tg_lbfgs_opts), .lr = 1, .iterations = 20, .evaluations = 25, .history = 10,                        \
    .gradient_tolerance = 1e-7, .change_tolerance = 1e-9
#define TG_LBFGS(...) (&(tg_lbfgs_opts){TG_LBFGS_DEFAULTS, __VA_ARGS__})

/* A function of the caller that computes the loss at the present values of the parameters, sets *loss, and adds the
 * gradients with tg_backward. The parameters have no gradients when it is called. It returns
 * TG_OK, or another status to end the call of tg_lbfgs_step, which fails with TG_ERR_CALLBACK if the context has no
 * error. It may be called at points where the loss is infinite or NaN, from which the search turns back. */
typedef tg_status (*tg_loss_fn)(void *user, double *loss);

/* Creates L-BFGS for n >= 1 different parameters, each a contiguous leaf of the context that requires a gradient, in
 * float32 or float64 (TG_ERR_DTYPE). They must outlive it. It allocates all its memory now: 2 * history + 10 numbers
 * for each element of the parameters, in float64 if any parameter is float64. Each rank must have whole parameters
 * (TG_ERR_PLACEMENT), and the caller's function must compute the same loss and gradients on every rank. opts may be
 * NULL. On an error returns an inert object (never NULL), whose functions do nothing. */
TG_API tg_lbfgs *tg_lbfgs_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_lbfgs_opts *opts);
TG_API void tg_lbfgs_free(tg_lbfgs *l);
/* Makes up to `iterations` iterations. Each finds a direction (Nocedal, Mathematics of Computation 35, 1980) and a
 * length that meets the strong Wolfe conditions, with constants 1e-4 and 0.9 (Nocedal and Wright, Numerical
 * Optimization, algorithms 3.5 and 3.6). Sets *loss, unless loss is NULL, to the loss at the final parameters. On an
 * error the parameters have the values of the last complete iteration. */
TG_API tg_status tg_lbfgs_step(tg_lbfgs *l, tg_loss_fn fn, void *user, double *loss);

#ifdef __cplusplus
}
#endif

#endif
