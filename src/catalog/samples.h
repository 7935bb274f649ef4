/* The sample inputs of an op, as tensors. Tests, `tapegrad gradcheck` and the benchmarks run the library's ops with
 * them. */
#ifndef TG_SAMPLES_H
#define TG_SAMPLES_H

#include <tapegrad/op.h>

typedef struct tg_case_opts {
    tg_dtype dtype; /* dtype of float inputs whose sample names no dtype */
    tg_dtype grid;  /* values are also rounded to what the dtype `grid` can represent; 0: to `dtype` only */
    uint64_t seed;
    /* Floats are changed at random by up to this relative amount. The change that this causes in the results shows how
     * ill-conditioned the sample is. */
    double jitter;
    bool rows; /* true: every input is row-major, whatever layout its sample states */
} tg_case_opts;

/* One sample, with its inputs as tensors of a context. Apart from rounding and jitter, the seed alone determines the
 * values of the inputs: device, dtype and `rows` do not matter. */
typedef struct tg_case {
    tg_ctx *ctx;
    const tg_op *op;
    const tg_sample *sample;
    int n_in, n_out; /* n_out: TG_CASE_OUTPUTS, the maximum, if only the op's infer knows the number of outputs */
    tg_tensor *input[TG_SAMPLE_INPUTS];
} tg_case;

enum { TG_CASE_OUTPUTS = 16 }; /* the greatest number of outputs of a sample */

const tg_sample *tg_sample_at(const tg_op *op, int i); /* returns sample i of op; NULL if there is none */
/* Makes the inputs as tensors of the context. Gaps between strided elements hold NaN in floats, -1 in integers and true
 * in bools. */
tg_status tg_case_open(tg_case *c, tg_ctx *ctx, const tg_op *op, int sample, const tg_case_opts *opts);
void tg_case_close(tg_case *c);
/* Records the op on in[]. This is a tg_fn; its state is the case. An in-place op gets a copy of in[0] if in[0] requires
 * a gradient, because the op would refuse such a leaf. */
tg_status tg_case_run(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);

#endif
