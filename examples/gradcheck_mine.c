/* Checks gradients that are written by hand. tg_gradcheck_fn compares the gradient of any C function of doubles with
 * finite differences, without tensors, tape or context. The function here is a softmax with a temperature. Its backward
 * is written three times: one is right, and two have typical mistakes.
 */
#include <math.h>
#include <stdio.h>

#include <tapegrad/gradcheck.h>

enum { N = 5 };

/* Computes y_i = exp(x_i / T) / sum_j exp(x_j / T). state is T. */
static void softmax(void *state, const double *x, int64_t n, double *y, int64_t m) {
    double T = *(const double *)state, sum = 0;
    for (int64_t i = 0; i < m; i++) sum += y[i] = exp(x[i] / T);
    for (int64_t i = 0; i < n; i++) y[i] /= sum;
}

/* Computes the gradient gx_i = y_i (gy_i - sum_j gy_j y_j) / T. */
static void softmax_grad(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    double T = *(const double *)state, y[N], dot = 0;
    softmax(state, x, n, y, m);
    for (int64_t j = 0; j < m; j++) dot += gy[j] * y[j];
    for (int64_t i = 0; i < n; i++) gx[i] = y[i] * (gy[i] - dot) / T;
}

/* Computes a wrong gradient: the chain rule stops too early, and 1 / T is missing. */
static void without_temperature(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    softmax_grad(state, x, n, gy, m, gx);
    for (int64_t i = 0; i < n; i++) gx[i] *= *(const double *)state;
}

/* Computes a wrong gradient, as if y_i depended on x_i alone: (1 - y_i) y_i is only the diagonal of the Jacobian. */
static void diagonal_only(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    double T = *(const double *)state, y[N];
    softmax(state, x, n, y, m);
    for (int64_t i = 0; i < n; i++) gx[i] = gy[i] * y[i] * (1 - y[i]) / T;
}

/* Checks a gradient of softmax and prints the result. Returns whether it is right. */
static bool passes(const char *name, tg_plain_grad_fn grad) {
    double T = 4, x[N] = {0.5, -1, 2, 0, 1};
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    tg_status s = tg_gradcheck_fn(softmax, grad, &T, x, N, N, &r, TG_GRADCHECK(.name = name, .rtol = 1e-6));
    if (s == TG_OK)
        printf("%s: %lld derivatives are right, within %.2g of the tolerance\n\n", name, (long long)r.checked, r.worst);
    else
        printf("%s\n\n", r.report);
    return s == TG_OK;
}

int main(void) {
    bool right = passes("softmax", softmax_grad);
    bool wrong = passes("softmax without 1/T", without_temperature);
    wrong |= passes("softmax, diagonal only", diagonal_only);
    return !right || wrong;
}
