/* Finds the likely cause of a wrong gradient from its values. Each cause leaves a pattern in the gradient (got) when it
 * is compared with the differences (expected). */
#include <math.h>

#include "gradcheck/difference.h"

/* Returns whether element i was compared. Elements at a kink or in noise have no expected value: they neither
 * support nor contradict a pattern. */
static bool compared(const tg_diff *d, int64_t i) { return !isnan(d->expected[i]); }

static int64_t count_compared(const tg_diff *d, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += compared(d, i);
    return count;
}

/* Returns the largest magnitude of the compared elements. */
static double largest(const tg_diff *d, const double *v, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (compared(d, i)) most = fmax(most, fabs(v[i]));
    return most;
}

static bool near(double a, double b, double scale) { return fabs(a - b) <= 1e-4 * scale; }

/* ---- One factor ---- */

/* Returns the common factor between got and expected, or NaN. A factor must explain most of the error, so it is not
 * found if only a few of many elements are wrong. *pairs is the number of compared elements that are not zero. If it is
 * 1, there always is a factor. */
static double common_ratio(const tg_diff *d, int64_t n, double scale, int64_t *pairs) {
    const double *got = d->got, *expected = d->expected;
    double dot = 0, norm = 0;
    *pairs = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!compared(d, i)) continue;
        dot += got[i] * expected[i];
        norm += expected[i] * expected[i];
        *pairs += fabs(expected[i]) > 1e-4 * scale;
    }
    double ratio = dot / norm, error = 0, left = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!compared(d, i)) continue;
        if (!near(got[i], ratio * expected[i], fabs(ratio) * scale)) return NAN;
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        left += (got[i] - ratio * expected[i]) * (got[i] - ratio * expected[i]);
    }
    return left <= error / 16 ? ratio : NAN;
}

/* Describes the ratio got / expected in buf, and returns its class. common: the ratio is that of several elements. */
static const char *say_ratio(double ratio, bool common, char *buf, size_t size) {
    double times = round(ratio), part = round(1 / ratio);
    bool whole = near(ratio, times, fabs(ratio)), unit = near(1 / ratio, part, fabs(1 / ratio));
    if (near(ratio, -1, 1)) {
        tg_diff_say(buf, size, "the sign is wrong");
        return "sign";
    }
    if (near(ratio, 2, 2))
        tg_diff_say(buf, size, "too large by a factor 2: counted twice, or a missing 1/n where n is 2");
    else if (near(ratio, 0.5, 0.5))
        tg_diff_say(buf, size, "a factor 2 is missing (1/2 of what it should be)");
    else if (whole && times > 2)
        tg_diff_say(buf, size, "%.0f times too large everywhere: a missing 1/n where n is %.0f", times, times);
    else if (unit && part > 2)
        tg_diff_say(buf, size,
                    "%.0f times too small everywhere: divided by n = %.0f once too often, or one of %.0f equal terms "
                    "of a sum",
                    part, part, part);
    else if (common)
        tg_diff_say(buf, size, "off by the factor %.6g everywhere", ratio);
    else
        return "formula"; /* the ratio of a single pair shows no pattern */
    return "factor";
}

/* ---- Values in other places ---- */

/* Returns whether got has the last two dims exchanged. */
static bool transposed(const tg_diff *d, const tg_diff_part *p, double scale) {
    if (p->shape.ndim < 2) return false;
    int64_t rows = p->shape.dim[p->shape.ndim - 2], columns = p->shape.dim[p->shape.ndim - 1];
    if (rows < 2 || columns < 2) return false;
    for (int64_t k = 0; k < p->n; k++) {
        int64_t matrix = k - k % (rows * columns), i = k % (rows * columns) / columns, j = k % columns;
        if (compared(d, k) && !near(d->got[matrix + j * rows + i], d->expected[k], scale)) return false;
    }
    return true;
}

static bool among(const double *values, int64_t n, double v, double scale) {
    for (int64_t i = 0; i < n; i++)
        if (fabs(values[i] - v) <= 1e-6 * scale) return true;
    return false;
}

/* Returns whether got has the expected values in other places. An element that was not compared has no expected value;
 * so for each such element, one value of got need not be among the expected ones. */
static bool moved(const tg_diff *d, int64_t n, double scale) {
    enum { MOST = 512 }; /* every value is compared with every other */
    int64_t count = n > MOST ? 0 : count_compared(d, n), strange = 0;
    if (count < 3) return false;
    for (int64_t i = 0; i < n; i++) {
        strange += compared(d, i) && !among(d->expected, n, d->got[i], scale);
        if (compared(d, i) && !among(d->got, n, d->expected[i], scale)) return false;
    }
    return strange <= n - count;
}

/* Returns another part (input) of the same shape if got is the gradient of that part, else -1. The gradient that
 * backward gives for that part may be wrong too. So if it differs from got, differences at a few elements of that part
 * decide. */
static int belongs_to(tg_diff *d, int part, int64_t n, double scale) {
    const tg_diff_part *p = &d->parts[part];
    for (int k = 0; k < d->n_parts; k++) {
        const tg_diff_part *q = &d->parts[k];
        if (k == part || q->n != n || memcmp(&p->shape, &q->shape, sizeof p->shape)) continue;
        int64_t same = 0, measured = 0, few = n < 4 ? n : 4, i = 0;
        for (int64_t j = 0; j < n; j++) same += fabs(d->gx[q->at + j] - d->got[j]) <= 1e-6 * scale;
        for (tg_slope s; same < n && i < n && measured < few; i++) {
            if (tg_diff_slope(d, k, i, &s) != TG_OK) return -1;
            if (s.kink || !(s.error <= 1e-2 * scale)) continue;
            if (!near(s.value, d->got[i], 1e-2 * scale)) break;
            measured++;
        }
        if (same == n || (measured && (measured == few || i == n))) return k;
    }
    return -1;
}

/* ---- Errors that are constant along a dim ---- */

/* How got differs from expected: by a factor, or by an added term. */
typedef enum relation { FACTOR, TERM } relation;

/* Returns the factor or term of element k. NaN: it was not compared, or, for a factor, it is 0 as expected, so that any
 * factor fits. Infinity: no factor fits, because 0 is expected and got is not 0. */
static double relate(const tg_diff *d, relation r, int64_t k, double scale) {
    if (r == TERM || !compared(d, k)) return d->got[k] - d->expected[k];
    if (fabs(d->expected[k]) > 1e-4 * scale) return d->got[k] / d->expected[k];
    return near(d->got[k], 0, scale) ? NAN : INFINITY;
}

/* Returns whether the factor or term is constant along dim, for each index of the other dims. */
static bool constant_along(const tg_diff *d, const tg_diff_part *p, int dim, relation r, double scale) {
    int64_t inner = 1, size = p->shape.dim[dim], pairs = 0;
    for (int i = dim + 1; i < p->shape.ndim; i++) inner *= p->shape.dim[i];
    for (int64_t line = 0; line < p->n / size; line++) {
        double first = NAN;
        for (int64_t i = 0; i < size; i++) {
            double v = relate(d, r, line / inner * inner * size + line % inner + i * inner, scale);
            if (isinf(v)) return false;
            if (!isnan(v) && !isnan(first) && !near(v, first, r == TERM ? 1e-2 * scale : fabs(first))) return false;
            pairs += !isnan(v) && !isnan(first);
            if (isnan(first)) first = v;
        }
    }
    return pairs >= 2;
}

/* Returns the last dim along which the factor or term is constant, or -1. */
static int dim_along(const tg_diff *d, const tg_diff_part *p, relation r, double scale) {
    for (int dim = (int)p->shape.ndim - 1; dim >= 0; dim--)
        if (p->shape.dim[dim] > 1 && constant_along(d, p, dim, r, scale)) return dim;
    return -1;
}

/* ---- Gradients that are wrong in part ---- */

/* Returns whether element i is within the tolerance. */
static bool right(const tg_diff *d, int64_t i) {
    return fabs(d->got[i] - d->expected[i]) <= d->atol + d->rtol * fabs(d->expected[i]);
}

/* Returns how many of n elements are right and not zero. */
static int64_t count_right(const tg_diff *d, int64_t n, double scale) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += fabs(d->expected[i]) > 1e-4 * scale && right(d, i);
    return count;
}

/* Writes a text such as " (all of them at index 2 of dim 1)" if all wrong elements have the same index of a dim, else
 * "". */
static void say_region(const tg_diff *d, const tg_diff_part *p, char *buf, size_t size) {
    *buf = 0;
    for (int64_t dim = p->shape.ndim - 1, inner = 1; dim >= 0; inner *= p->shape.dim[dim--]) {
        int64_t at = -1;
        bool one = p->shape.dim[dim] > 1;
        for (int64_t i = 0; i < p->n && one; i++) {
            int64_t index = i / inner % p->shape.dim[dim];
            if (!compared(d, i) || right(d, i)) continue;
            one = at < 0 || at == index;
            at = index;
        }
        if (one) tg_diff_say(buf, size, " (all of them at index %lld of dim %lld)", (long long)at, (long long)dim);
    }
}

/* Returns whether got is the contribution of a single output to the derivative of coordinate i, while other outputs
 * contribute too. */
static bool one_term(tg_diff *d, int part, int64_t i, double scale) {
    double *x = &d->x[d->parts[part].at + i], at = *x;
    double h = exp2(round(log2(1e-6 * (fabs(at) > 1 ? fabs(at) : 1))));
    *x = at + h;
    tg_status status = d->value(d, part, d->moved);
    *x = at;
    if (status != TG_OK) return false;
    int64_t matches = 0, terms = 0;
    for (int64_t j = 0; j < d->m; j++) {
        double term = d->gy[j] * (d->moved[j] - d->y[j]) / h;
        terms += fabs(term) > 1e-3 * scale;
        /* the wide margin allows for a one-sided difference */
        matches += fabs(term - d->got[i]) <= 0.01 * fabs(term) && fabs(term) > 1e-3 * scale;
    }
    return matches > 0 && terms > 1;
}

/* ---- The patterns, in the order in which they are tried ---- */

/* Tries the patterns that need the values of all elements. Returns NULL if none fits. */
static const char *of_elements(tg_diff *d, int part, int64_t worst, double scale, char *buf, size_t size) {
    const tg_diff_part *p = &d->parts[part];
    char region[80];
    int dim, other;
    if (transposed(d, p, scale)) {
        tg_diff_say(buf, size, "the gradient is transposed in the last two dims");
        return "transpose";
    }
    if (moved(d, p->n, scale)) {
        tg_diff_say(buf, size, "the right values in wrong places: a wrong index, offset or order of dims");
        return "places";
    }
    if ((other = belongs_to(d, part, p->n, scale)) >= 0) {
        tg_diff_say(buf, size, "it is the gradient of %.60s", d->parts[other].name);
        return "input";
    }
    if (one_term(d, part, worst, scale)) {
        tg_diff_say(buf, size, "a missing broadcast sum: one term of the sum over the outputs that this element feeds");
        return "sum";
    }
    if (3 * count_right(d, p->n, scale) >= count_compared(d, p->n)) {
        say_region(d, p, region, sizeof region);
        tg_diff_say(buf, size, "only some elements are wrong%s: a branch, a bound, an overlap, an edge", region);
        return "part";
    }
    if ((dim = dim_along(d, p, FACTOR, scale)) >= 0) {
        tg_diff_say(buf, size, "a missing or extra factor that is constant along dim %d: a weight, a scale of rows",
                    dim);
        return "scale";
    }
    if ((dim = dim_along(d, p, TERM, scale)) >= 0) {
        tg_diff_say(buf, size, "a missing or extra term that is constant along dim %d: a mean, a sum over it", dim);
        return "term";
    }
    return NULL;
}

const char *tg_diff_cause(tg_diff *d, int part, int64_t n, int64_t worst, char *buf, size_t size) {
    int64_t pairs;
    double scale = largest(d, d->expected, n), ratio = common_ratio(d, n, scale, &pairs);
    tg_diff_say(buf, size, "no simple pattern: a wrong formula or constant, or it reads another saved tensor");
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(d->got[i])) continue;
        if (d->computes_nan) {
            tg_diff_say(buf, size, "backward computes it: 0 / 0, or a root, power or logarithm outside of its domain");
            return "nan";
        }
        tg_diff_say(buf, size, "elements were never written, or memory was read that should be overwritten (%g)",
                    d->got[i]);
        return "unwritten";
    }
    if (largest(d, d->got, n) == 0) {
        tg_diff_say(buf, size,
                    "the gradient is zero: it was never written, or the graph is cut (by a detach or a constant)");
        return "zero";
    }
    if (scale == 0) {
        tg_diff_say(buf, size, "the function does not depend on this input");
        return "independent";
    }
    if (isfinite(ratio) && ratio != 0) return say_ratio(ratio, pairs > 1, buf, size);
    const char *found = d->projections ? NULL : of_elements(d, part, worst, scale, buf, size);
    return found ? found : "formula";
}
