/* Probes: what a zero means in a field of options whose default is not 0. A zero is zero, or it is refused. */
#ifndef TG_TEST_OPTION_ZEROS_H
#define TG_TEST_OPTION_ZEROS_H

#include <tapegrad/tapegrad.h>

/* A context for the probes, its tape, and the message of the context's error after a probe. */
extern tg_ctx *ctx;
extern tg_tape *t;
extern char says[2048];

typedef struct tg_zero_probe {
    const char *owner, *field; /* the struct and its field; NULL ends a table */
    /* Gets options in which the field is 0. If the call must refuse that, makes the call and returns false. Otherwise
     * returns whether the call took 0 as zero. */
    bool (*use)(const void *o);
    const char *refused; /* the error; NULL: 0 is zero */
} tg_zero_probe;

extern const tg_zero_probe tg_zeros_generate[], tg_zeros_optim[], tg_zeros_ranks[],
    tg_zeros_templates[];

/* Returns whether x has these n values, but for rounding; n is at most 8. */
bool reads(tg_tensor *x, int n, const double *want);
/* Makes a tensor of the context in float64. */
tg_tensor *of(tg_shape shape, const double *v);

#endif
