/* The public functions for element-wise formulas (device.h): their names, numbers of inputs, and values on doubles. */
#include <stddef.h>

#include <tapegrad/device.h>

#include "kernels/vmath.h"

typedef double T;
#define TG_M(f) tg_##f##_f64
#include "kernels/scalar.h"

int tg_formula_count(void) {
    return TG_FN_COUNT;
}

const char *tg_formula_name(tg_formula f) {
    static const char *const name[] = {
#define TG_X(name, n, value) #name,
        TG_FORMULAS(TG_X)
#undef TG_X
    };
    return f >= 0 && f < TG_FN_COUNT ? name[f] : "?";
}

int tg_formula_inputs(tg_formula f) {
    static const uint8_t inputs[] = {
#define TG_X(name, n, value) n,
        TG_FORMULAS(TG_X)
#undef TG_X
    };
    return f >= 0 && f < TG_FN_COUNT ? inputs[f] : 0;
}

#define TG_X(name, n, value)                                                                                           \
    static double eval_##name(double a, double b, double c, double d, double p, double q) {                            \
        (void)a, (void)b, (void)c, (void)d, (void)p, (void)q;                                                          \
        return value;                                                                                                  \
    }
TG_FORMULAS(TG_X)
#undef TG_X

double tg_formula_eval(tg_formula f, const double *in, const double *p) {
    static double (*const eval[])(double, double, double, double, double, double) = {
#define TG_X(name, n, value) eval_##name,
        TG_FORMULAS(TG_X)
#undef TG_X
    };
    double x[TG_FN_INPUTS] = {0};
    int n = in ? tg_formula_inputs(f) : 0;
    for (int i = 0; i < n; i++) x[i] = in[i];
    return n ? eval[f](x[0], x[1], x[2], x[3], p ? p[0] : 0, p ? p[1] : 0) : (double)NAN;
}
