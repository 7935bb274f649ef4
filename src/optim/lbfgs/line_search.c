/* The strong Wolfe line search of Nocedal and Wright (Numerical Optimization, 2nd edition, algorithms 3.5 and 3.6),
 * with cubic interpolation. The safeguards are those of Mark Schmidt's minFunc, which PyTorch has too. */
#include "optim/lbfgs/line_search.h"

#include <math.h>

#include "base/runtime.h"

enum { MOST_TRIALS = 26 }; /* greatest number of evaluations of a search */
static const double decrease = 1e-4, curvature = 0.9; /* the constants of the two conditions */

/* A search that is under way. */
typedef struct search {
    const tg_line *line;
    tg_point start;
    int trials;
} search;

/* Returns the length at which the cubic with the values and slopes of a and b has its minimum, or the end of [lo, hi]
 * that is nearer to it; the middle of [lo, hi] if the cubic has no minimum. */
static double interpolate(tg_point a, tg_point b, double lo, double hi) {
    tg_point l = a.t <= b.t ? a : b, r = a.t <= b.t ? b : a;
    double d1 = a.slope + b.slope - 3 * (a.f - b.f) / (a.t - b.t), square = d1 * d1 - a.slope * b.slope;
    if (!(square >= 0)) return (lo + hi) / 2;
    double d2 = sqrt(square), t = r.t - (r.t - l.t) * ((r.slope + d2 - d1) / (r.slope - l.slope + 2 * d2));
    return isfinite(t) ? fmin(fmax(t, lo), hi) : (lo + hi) / 2;
}

/* Evaluates the line at length t. Writes the gradient to a vector that neither the start nor a point of keep[2] has. A
 * loss that is NaN counts as infinite. */
static tg_status evaluate(search *s, double t, const tg_point keep[2], tg_point *p) {
    int free = 0;
    while (free == s->start.gradient || free == keep[0].gradient || free == keep[1].gradient) free++;
    *p = (tg_point){.t = t, .gradient = free};
    TG_TRY(s->line->evaluate(s->line->user, p));
    if (isnan(p->f)) p->f = INFINITY;
    s->trials++;
    return TG_OK;
}

static bool is_too_high(const search *s, tg_point p) { return p.f > s->start.f + decrease * p.t * s->start.slope; }
static bool is_flat(const search *s, tg_point p) { return fabs(p.slope) <= -curvature * s->start.slope; }

/* Algorithm 3.5: lengthens the step until the point b[1] is flat, and then sets *done; or until a flat point must lie
 * between the two points of b. After MOST_TRIALS evaluations, the points are the start and the last one. */
static tg_status bracket(search *s, double t, tg_point b[2], bool *done) {
    b[0] = b[1] = s->start;
    TG_TRY(evaluate(s, t, b, &b[1]));
    for (int i = 0; s->trials < MOST_TRIALS; i++) {
        tg_point next;
        if (is_too_high(s, b[1]) || (i > 1 && b[1].f >= b[0].f)) return TG_OK;
        if ((*done = is_flat(s, b[1])) || b[1].slope >= 0) return TG_OK;
        t = interpolate(b[0], b[1], b[1].t + 0.01 * (b[1].t - b[0].t), b[1].t * 10);
        TG_TRY(evaluate(s, t, b, &next));
        b[0] = b[1], b[1] = next;
    }
    b[0] = s->start;
    return TG_OK;
}

/* Returns a length between those of the two points of b. If interpolation comes close to an end of this bracket twice,
 * or reaches it, returns a length a tenth of the bracket away from that end. *stuck tells whether interpolation came
 * close in the last trial. */
static double between(const tg_point b[2], bool *stuck) {
    double lo = fmin(b[0].t, b[1].t), hi = fmax(b[0].t, b[1].t), margin = 0.1 * (hi - lo);
    double t = interpolate(b[0], b[1], lo, hi);
    bool close = fmin(hi - t, t - lo) < margin, moves = close && (*stuck || t >= hi || t <= lo);
    *stuck = close && !moves;
    if (!moves) return t;
    return hi - t < t - lo ? hi - margin : lo + margin;
}

/* Algorithm 3.6: shortens the bracket until the point with the lower loss is flat, or until a limit of the search is
 * reached. Sets b[1] to that point. */
static tg_status zoom(search *s, tg_point b[2]) {
    bool stuck = false, done = false;
    int low = b[0].f <= b[1].f ? 0 : 1;
    while (!done && s->trials < MOST_TRIALS && fabs(b[1].t - b[0].t) * s->line->most >= s->line->tolerance) {
        tg_point p;
        TG_TRY(evaluate(s, between(b, &stuck), b, &p));
        if (is_too_high(s, p) || p.f >= b[low].f) {
            b[1 - low] = p;
            low = b[0].f <= b[1].f ? 0 : 1;
            continue;
        }
        done = is_flat(s, p);
        if (!done && p.slope * (b[1 - low].t - b[low].t) >= 0) b[1 - low] = b[low];
        b[low] = p;
    }
    b[1] = b[low];
    return TG_OK;
}

tg_status tg_line_search(const tg_line *l, tg_point start, double t, tg_point *end, int *evaluations) {
    search s = {.line = l, .start = start};
    tg_point b[2];
    bool done = false;
    TG_TRY(bracket(&s, t, b, &done));
    if (!done) TG_TRY(zoom(&s, b));
    *end = b[1];
    *evaluations += s.trials;
    return TG_OK;
}
