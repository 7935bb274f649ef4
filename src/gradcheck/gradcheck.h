/* Gradient check of a function of tensors: the state of one run, and the functions that gradcheck.c, gradcheck_op.c,
 * side_effects.c and second_order.c share. */
#ifndef TG_GRADCHECK_IMPL_H
#define TG_GRADCHECK_IMPL_H

#include "gradcheck/difference.h"
#include "core/random/rng.h"
#include "autograd/backward.h"

typedef struct tg_check_run {
    tg_diff d;
    tg_ctx *ctx;
    tg_tape *t;
    tg_fn fn;
    void *state;
    tg_tensor *const *input; /* [n_in] inputs of the function in runs with gradients */
    tg_tensor *const *at; /* [n_in] inputs in runs for differences: `input`, or copies whose elements share no memory */
    int n_in, n_out, n_roots;
    tg_tensor **out;      /* [n_out] outputs of the last run */
    int *root;            /* [n_roots] indices of the outputs whose gradient is checked */
    /* [n_roots] The checked outputs of the last run; random cotangents for them; cotangents of zeros; and cotangents
     * that only one backward uses. */
    tg_tensor **roots, **seeds, **zeros, **mixed;
    tg_target *targets;   /* [d.n_parts] checked inputs, each with a float64 buffer of the context */
    tg_tensor **moves;    /* [d.n_parts] tensors of `at` that differences write */
    tg_rng_states *streams; /* the context's random streams, restored before every run */
} tg_check_run;

/* Resets the tape and the random streams, and runs the function: with gradients on r->input if `grad` is true, else
 * without gradients on r->at. */
tg_status tg_check_record(tg_check_run *r, bool grad);
/* Copies the elements of all roots to y[d.m]. */
tg_status tg_check_read(tg_check_run *r, double *y);
/* Runs backward from n roots and copies the gradients of all parts to gx[d.n]. With TG_GRAD_WRITE the buffers hold NaN
 * before, and a part that backward does not reach gets zeros; with TG_GRAD_ADD the buffers hold gx before. */
tg_status tg_check_gradient(tg_check_run *r, tg_tensor *const *roots, tg_tensor *const *seeds, int n, tg_grad_mode mode,
                            bool retain, double *gx);

/* In side_effects.c: checks of backward other than the values of gradients. The function must have been recorded
 * before. tg_check_unchanged runs the first backward, fills d.gx, and checks that no tensor but the gradients changes.
 * tg_check_extras runs backward again in several ways, unless the gradient is not finite. */
tg_status tg_check_unchanged(tg_check_run *r);
tg_status tg_check_extras(tg_check_run *r);

/* In second_order.c: checks derivatives that are recorded as ops (tg_grad with .create_graph, tg_jvp) and second
 * derivatives. Does nothing if the check has failed already. */
tg_status tg_check_second_order(tg_check_run *r);

/* Runs the whole check. The caller sets the function, the inputs, and the options in d (tg_diff_options). Restores the
 * tape's gradient mode and the random streams, and leaves the tape reset. */
tg_status tg_check_tensors(tg_check_run *r);

/* Hashes all bytes of a tensor's storage. */
tg_status tg_check_hash(const tg_tensor *x, uint64_t *hash);

#endif
