/* The struct of options of gradient checks. */
#include <tapegrad/gradcheck.h>

#include "base/options.h"

static const tg_field gradcheck_fields[] = {
    TG_FIELD(tg_gradcheck_opts, eps, DOUBLE, "Step, in (0, 1]; TG_AUTO: chosen for each element."),
    TG_FIELD(tg_gradcheck_opts, atol, DOUBLE,
             "Absolute tolerance, 0 or more; TG_AUTO: 1e-5, or by the sample of an op."),
    TG_FIELD(tg_gradcheck_opts, rtol, DOUBLE,
             "Relative tolerance, 0 or more; TG_AUTO: 1e-3, or by the sample of an op."),
    TG_FIELD(tg_gradcheck_opts, projections, INT, "Number of random directions for each input; 0: every element."),
    TG_FIELD(tg_gradcheck_opts, seed, UINT64, "Seed of the cotangents and directions."),
    TG_FIELD(tg_gradcheck_opts, no_extras, BOOL, "Skips the additional checks."),
    TG_FIELD(tg_gradcheck_opts, name, TEXT, "Name of the function in reports; NULL: \"function\"."),
    TG_FIELD(tg_gradcheck_opts, strict, BOOL, "Fails if an element is unsure."),
    TG_FIELD(tg_gradcheck_opts, second_order, BOOL, "Also checks the derivatives that are recorded as ops."),
};
const tg_struct tg_gradcheck_opts_struct =
    TG_STRUCT(tg_gradcheck_opts, GRADCHECK, gradcheck_fields, "Options of gradient checks.");
