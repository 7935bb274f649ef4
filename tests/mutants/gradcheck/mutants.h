/* The table of mutants that grow.py writes. */
#ifndef TG_TEST_GRADCHECK_MUTANTS_H
#define TG_TEST_GRADCHECK_MUTANTS_H

#include <tapegrad/extend.h>

typedef struct mutant {
    const char *op;
    int input;          /* number of the input whose gradient is wrong */
    const char *cause;  /* cause that the report must have: tg_gradcheck_info.cause */
    const char *what, *where;
    const tg_op *mutated; /* the op itself; NULL: one of the following replaces that of the device */
    tg_formula formula;
    double (*value)(double a, double b, double c, double d, double p, double q); /* of the formula */
    tg_status (*softmax_grad)(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add);
    tg_status (*norm_grad)(tg_ctx *ctx, const tg_norm_args *a);
    tg_status (*cross_entropy_grad)(tg_ctx *ctx, const tg_cross_entropy_args *a);
    tg_status (*attention_grad)(tg_ctx *ctx, const tg_attention_args *a);
} mutant;

extern const mutant mutants[];
extern const int n_mutants;

#endif
