/* L-BFGS (Liu and Nocedal, Mathematical Programming 45, 1989), for problems with few parameters whose loss and gradient
 * are computed from all data in each evaluation. optim.h, which this header includes, has the optimizers for training
 * on batches.
 *
 * L-BFGS evaluates the loss several times in each iteration, to choose how far to go. It therefore reads numbers from
 * the device and cannot be captured (capture.h). Unlike the optimizers of optim.h it has no groups, schedules, clipping
 * or loss scaling, and no state that a checkpoint could save. Its history lives as long as the object. */
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
    /* Above 0: the multiple of the direction that each line search tries first. Only the first line search of the
     * object tries lr * min(1, 1 / s), where s is the sum of the absolute values of the gradients. 1 by default. */
    double lr;
    int iterations;  /* most iterations of one call of tg_lbfgs_step, 1 or more; 20 by default */
    int evaluations; /* no iteration begins after this many evaluations in one call, 1 or more; 25 by default */
    int history;     /* most pairs of vectors that are kept, 1 to 2^20 - 1; 10 by default */
    /* 0 or more: a call ends if no element of the gradients has a greater absolute value; 1e-7 by default. */
    double gradient_tolerance;
    /* 0 or more; 1e-9 by default. A call ends after an iteration that changes the loss by less, or that changes no
     * element of the parameters by more. It also ends if the derivative of the loss along the next direction is greater
     * than -change_tolerance. */
    double change_tolerance;
} tg_lbfgs_opts;

#define TG_LBFGS_DEFAULTS                                                                                              \
    .size = sizeof(tg_lbfgs_opts), .lr = 1, .iterations = 20, .evaluations = 25, .history = 10,                        \
    .gradient_tolerance = 1e-7, .change_tolerance = 1e-9
#define TG_LBFGS(...) (&(tg_lbfgs_opts){TG_LBFGS_DEFAULTS, __VA_ARGS__})

/* A function of the caller that computes the loss at the present values of the parameters, sets *loss, and adds the
 * gradients with tg_backward. The parameters have no gradients when it is called; a gradient that is missing when it
 * returns counts as 0. It returns TG_OK, or another status to end the call of tg_lbfgs_step. That call then fails with
 * the context's error or, if there is none, with TG_ERR_CALLBACK. The function may be called at points where the loss
 * is infinite or NaN. It should then set *loss to that value; the line search continues at another point. It must not
 * call tg_lbfgs_step or tg_lbfgs_free for the same object (TG_ERR_STATE). */
typedef tg_status (*tg_loss_fn)(void *user, double *loss);

/* Creates L-BFGS for n >= 1 different parameters (TG_ERR_ARGUMENT). Each must be a contiguous leaf of the context that
 * requires a gradient (TG_ERR_STATE), must be float32 or float64 (TG_ERR_DTYPE), and must outlive the L-BFGS object.
 * The call allocates all device memory of the object: 2 * history + 10 numbers for each element of the parameters, in
 * float64 if any parameter is float64, else in float32. Each rank must have whole parameters (TG_ERR_PLACEMENT), and
 * the caller's function must compute the same bits of loss and gradients on every rank. opts may be NULL. On an error
 * returns an inert object (tapegrad.h). */
TG_API tg_lbfgs *tg_lbfgs_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_lbfgs_opts *opts);
TG_API void tg_lbfgs_free(tg_lbfgs *l);
/* Makes up to `iterations` iterations. Each finds a direction (Nocedal, Mathematics of Computation 35, 1980), and
 * searches along it for a length that meets the strong Wolfe conditions, with constants 1e-4 and 0.9 (Nocedal and
 * Wright, Numerical Optimization, algorithms 3.5 and 3.6). The search gives up after 26 evaluations, or when the
 * interval that remains changes every element of the parameters by less than change_tolerance. The iteration then takes
 * the better end of that interval. The history is only right if nothing else changes the parameters between calls.
 *
 * Sets *loss, unless loss is NULL, to the loss at the final parameters. The gradients are those of the last evaluation,
 * which may have been at other values of the parameters. On an error the parameters have the values of the last
 * complete iteration, and *loss is unchanged. */
TG_API tg_status tg_lbfgs_step(tg_lbfgs *l, tg_loss_fn fn, void *user, double *loss);

#ifdef __cplusplus
}
#endif

#endif
