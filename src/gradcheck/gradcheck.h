/* The check of a function of tensors, as its files share it. */
#ifndef TG_GRADCHECK_IMPL_H
#define TG_GRADCHECK_IMPL_H

#include "gradcheck/difference.h"
#include "core/rng.h"
#include "autograd/backward.h"

typedef struct tg_check_run {
    tg_diff d;
    tg_ctx *ctx;
    tg_tape *t;
    tg_fn fn;
    void *state;
    tg_tensor *const *in; /* of the runs that backward follows */
    tg_tensor *const *at; /* of the runs for differences: in itself, or the same values where they can be written */
    int n_in, n_out, n_roots;
    tg_tensor **out;      /* [n_out], of the last run */
    int *root;            /* [n_roots]: which outputs have a gradient to check */
    tg_tensor **roots, **seeds, **zeros, **mixed; /* [n_roots] */
    tg_target *targets;   /* [d.n_parts], each with a buffer of the context */
    tg_tensor **moves;    /* [d.n_parts]: of at */
    tg_rng_states *streams; /* the random streams at the start of every run */
} tg_check_run;

/* Runs the function on a fresh tape, for backward or for a difference. */
tg_status tg_check_record(tg_check_run *r, bool grad);
tg_status tg_check_read(tg_check_run *r, double *y);
/* Backward from the roots into gx: written over NaN, or added to what gx holds. */
tg_status tg_check_gradient(tg_check_run *r, tg_tensor *const *roots, tg_tensor *const *seeds, int n, tg_grad_mode mode,
                            bool retain, double *gx);

/* gradcheck_extras.c: what must hold beside the numbers. The function has been recorded. The first fills d.gx, and sees
 * that nothing else changes; the others run the backward again. */
tg_status tg_check_unchanged(tg_check_run *r);
tg_status tg_check_extras(tg_check_run *r);

/* gradcheck_taped.c: derivatives as taped ops, once backward has been found right. */
tg_status tg_check_taped(tg_check_run *r);

/* tg_gradcheck with what the op table adds. d.eps, tries and tolerances are set; `at` may be in. */
tg_status tg_check_tensors(tg_check_run *r);

/* Checks the size of the caller's info, which may be NULL. */
tg_status tg_gradcheck_info_check(tg_ctx *ctx, const tg_gradcheck_info *info, const char *who);
/* Copies what was found to the caller's info, as far as its size goes, and returns s. */
tg_status tg_gradcheck_info_give(tg_gradcheck_info *info, const tg_gradcheck_info *found, tg_status s);

/* A hash of a tensor's whole storage. */
tg_status tg_check_hash(const tg_tensor *x, uint64_t *hash);

#endif
