/* L-BFGS: the history of steps and changes of the gradient, the direction that they give (Nocedal, 1980), and the
 * iteration around the line search. When a call ends, and which pairs of vectors are kept, is decided as in PyTorch. */
#include <math.h>

#include <tapegrad/lbfgs.h>

#include "autograd/gradients.h"
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "core/capture/capture.h"
#include "optim/lbfgs/vectors.h"
#include "optim/lbfgs/line_search.h"
#include "optim/optim.h"
#include "placement/placing.h"

/* The vectors: the gradients of a line search; the gradient at the last iteration's start; the direction; the
 * parameters where the search began. The pairs of the history follow: the change of the gradient, y, and the step, s,
 * of each. There is one pair more than the history keeps, for a new pair that may be dropped. */
enum { GRADIENTS, PREVIOUS = TG_POINTS, DIRECTION, START, PAIRS };

struct tg_lbfgs {
    tg_ctx *ctx;
    tg_lbfgs_opts opts;
    tg_vectors vectors;
    int64_t iterations; /* number of iterations in all calls of tg_lbfgs_step */
    int pairs, newest;  /* number of pairs in the history; place of the newest one */
    double length;      /* of the last step, in multiples of the direction */
    double scale;       /* the initial inverse Hessian, a multiple of the identity */
    double *curvature;  /* 1 / (y s) of the pair at each place */
    double *weight;     /* work memory for the direction, by place */
    bool running;       /* tg_lbfgs_step is running: its loss function must not step or free this object */
};

/* The object that a failed creation returns. */
static const tg_lbfgs inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

static int places(const tg_lbfgs *l) { return l->opts.history + 1; }
static int y_of(int place) { return PAIRS + 2 * place; }
static int s_of(int place) { return PAIRS + 2 * place + 1; }
/* Returns the place of the pair that is `age` pairs older than the newest one. */
static int place_of(const tg_lbfgs *l, int age) { return (l->newest - age + places(l)) % places(l); }

/* ---- The direction ---- */

/* Adds the last step to the history, unless the curvature along it is too small. `gradient` is the present one. */
static tg_status remember(tg_lbfgs *l, int gradient) {
    int next = (l->newest + 1) % places(l);
    double ys, yy;
    TG_TRY(tg_vectors_sum(&l->vectors, y_of(next), 1, gradient, -1, PREVIOUS));
    TG_TRY(tg_vectors_sum(&l->vectors, s_of(next), l->length, DIRECTION, 0, DIRECTION));
    TG_TRY(tg_vectors_dot(&l->vectors, y_of(next), s_of(next), &ys));
    if (!(ys > 1e-10)) return TG_OK;
    TG_TRY(tg_vectors_dot(&l->vectors, y_of(next), y_of(next), &yy));
    l->curvature[next] = 1 / ys;
    l->scale = ys / yy;
    l->newest = next;
    if (l->pairs < l->opts.history) l->pairs++;
    return TG_OK;
}

/* Computes the direction: minus the inverse Hessian of the history, times the gradient (the two-loop recursion). */
static tg_status turn(tg_lbfgs *l, int gradient) {
    const tg_vectors *v = &l->vectors;
    double dot;
    TG_TRY(tg_vectors_sum(v, DIRECTION, -1, gradient, 0, gradient));
    for (int age = 0; age < l->pairs; age++) {
        int k = place_of(l, age);
        TG_TRY(tg_vectors_dot(v, s_of(k), DIRECTION, &dot));
        l->weight[k] = dot * l->curvature[k];
        TG_TRY(tg_vectors_sum(v, DIRECTION, 1, DIRECTION, -l->weight[k], y_of(k)));
    }
    TG_TRY(tg_vectors_sum(v, DIRECTION, l->scale, DIRECTION, 0, DIRECTION));
    for (int age = l->pairs - 1; age >= 0; age--) {
        int k = place_of(l, age);
        TG_TRY(tg_vectors_dot(v, y_of(k), DIRECTION, &dot));
        TG_TRY(tg_vectors_sum(v, DIRECTION, 1, DIRECTION, l->weight[k] - dot * l->curvature[k], s_of(k)));
    }
    return TG_OK;
}

/* ---- Evaluation ---- */

/* The caller's function, and the object for which it is called. */
typedef struct problem {
    tg_lbfgs *l;
    tg_loss_fn fn;
    void *user;
} problem;

/* Computes loss and gradient at the present parameters. */
static tg_status measure(const problem *p, double *loss, int gradient) {
    tg_ctx *ctx = p->l->ctx;
    const tg_vectors *v = &p->l->vectors;
    for (int i = 0; i < v->n; i++) tg_gradient_forget(v->item[i].param);
    *loss = NAN;
    ctx->busy++;
    tg_status s = p->fn(p->user, loss);
    ctx->busy--;
    TG_TRY(ctx->run.status);
    if (s != TG_OK)
        return tg_fail(ctx, TG_ERR_CALLBACK, "tg_lbfgs_step: the loss function failed with %s", tg_status_name(s));
    TG_TRY(tg_vectors_check(v, "tg_lbfgs_step"));
    return tg_vectors_from_gradients(v, gradient, "tg_lbfgs_step");
}

/* Evaluates a point of the line (tg_line). */
static tg_status evaluate(void *user, tg_point *point) {
    const problem *p = user;
    const tg_vectors *v = &p->l->vectors;
    TG_TRY(tg_vectors_sum(v, v->spare, 1, START, point->t, DIRECTION));
    TG_TRY(tg_vectors_to_params(v, v->spare, "tg_lbfgs_step"));
    TG_TRY(measure(p, &point->f, point->gradient));
    return tg_vectors_dot(v, point->gradient, DIRECTION, &point->slope);
}

/* ---- The step ---- */

/* Makes one iteration from the point *now, at which the parameters are. Sets *more to whether another one is useful. */
static tg_status iterate(const problem *p, tg_point *now, int *evaluations, bool *more) {
    tg_lbfgs *l = p->l;
    const tg_vectors *v = &l->vectors;
    const double tolerance = l->opts.change_tolerance;
    double sum, most, loss = now->f;
    if (l->iterations++) TG_TRY(remember(l, now->gradient));
    TG_TRY(turn(l, now->gradient));
    TG_TRY(tg_vectors_sum(v, PREVIOUS, 1, now->gradient, 0, now->gradient));
    TG_TRY(tg_vectors_norms(v, now->gradient, &sum, &most));
    l->length = l->iterations == 1 ? fmin(1, 1 / sum) * l->opts.lr : l->opts.lr;
    TG_TRY(tg_vectors_dot(v, now->gradient, DIRECTION, &now->slope));
    *more = now->slope <= -tolerance;
    if (!*more) return TG_OK;
    TG_TRY(tg_vectors_norms(v, DIRECTION, &sum, &most));
    const tg_line line = {evaluate, (void *)(uintptr_t)p, most, tolerance};
    now->t = 0;
    TG_TRY(tg_line_search(&line, *now, l->length, now, evaluations));
    l->length = now->t;
    TG_TRY(tg_vectors_sum(v, START, 1, START, now->t, DIRECTION));
    TG_TRY(tg_vectors_to_params(v, START, "tg_lbfgs_step"));
    double changed = fabs(now->t) * most;
    TG_TRY(tg_vectors_norms(v, now->gradient, &sum, &most));
    *more = most > l->opts.gradient_tolerance && changed > tolerance && fabs(now->f - loss) >= tolerance;
    return TG_OK;
}

static tg_status run(const problem *p, double *loss) {
    tg_lbfgs *l = p->l;
    tg_point now = {.gradient = GRADIENTS};
    int evaluations = 1;
    double sum, most;
    TG_TRY(measure(p, &now.f, now.gradient));
    TG_TRY(tg_vectors_norms(&l->vectors, now.gradient, &sum, &most));
    bool more = most > l->opts.gradient_tolerance;
    for (int i = 0; more && i < l->opts.iterations && evaluations < l->opts.evaluations; i++)
        TG_TRY(iterate(p, &now, &evaluations, &more));
    *loss = now.f;
    return TG_OK;
}

tg_status tg_lbfgs_step(tg_lbfgs *l, tg_loss_fn fn, void *user, double *loss) {
    double unused;
    if (!l) return TG_ERR_ARGUMENT;
    TG_TRY(l->ctx->run.status);
    if (!fn) return tg_fail(l->ctx, TG_ERR_ARGUMENT, "tg_lbfgs_step: fn is NULL, expected a function of the loss");
    if (l->running)
        return tg_fail(l->ctx, TG_ERR_STATE,
                       "tg_lbfgs_step: called by the loss function of a step of the same object; call it after that "
                       "step");
    TG_TRY(tg_recording_refuse(l->ctx, "tg_lbfgs_step", TG_RECORDING_READ, TG_SITE));
    TG_TRY(tg_vectors_check(&l->vectors, "tg_lbfgs_step"));
    TG_TRY(tg_vectors_from_params(&l->vectors, START));
    const problem p = {l, fn, user};
    l->running = true;
    tg_status s = run(&p, loss ? loss : &unused);
    l->running = false;
    if (s != TG_OK) tg_vectors_to_params(&l->vectors, START, "tg_lbfgs_step");
    return s;
}

/* ---- Creation ---- */

static tg_status check(tg_ctx *ctx, const tg_lbfgs_opts *o) {
    if (o->lr > 0 && isfinite(o->lr) && o->iterations > 0 && o->evaluations > 0 && o->history > 0 &&
        o->history < 1 << 20 && o->gradient_tolerance >= 0 && o->change_tolerance >= 0)
        return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "tg_lbfgs_new: lr is %g, iterations %d, evaluations %d, history %d, gradient_tolerance %g and "
                   "change_tolerance %g; expected a finite lr above 0, counts of 1 or more, history below 2^20, and "
                   "tolerances of 0 or more",
                   o->lr, o->iterations, o->evaluations, o->history, o->gradient_tolerance, o->change_tolerance);
}

static tg_status check_params(tg_ctx *ctx, tg_tensor *const *params, int n) {
    TG_TRY(tg_optim_check_params(ctx, params, n, "tg_lbfgs_new"));
    TG_TRY(tg_optim_check_undivided(ctx, params, n, "tg_lbfgs_new"));
    for (int i = 0; i < n; i++) {
        char what[160], place[128];
        const tg_placements *at = tg_place_of(params[i]);
        tg_describe(params[i], what, sizeof what);
        if (params[i]->dtype != TG_F32 && params[i]->dtype != TG_F64)
            return tg_fail(ctx, TG_ERR_DTYPE, "tg_lbfgs_new: parameter %d is %s, expected float32 or float64", i, what);
        tg_place_text(ctx, at, place, sizeof place);
        if (at && at->varying)
            return tg_fail(ctx, TG_ERR_PLACEMENT,
                           "tg_lbfgs_new: parameter %d, %s, is a shard (%s), expected whole parameters on every rank",
                           i, what, place);
    }
    return TG_OK;
}

static tg_status open(tg_lbfgs *l, tg_tensor *const *params, int n) {
    l->scale = 1;
    l->curvature = tg_host_alloc(l->ctx, (size_t)places(l) * sizeof *l->curvature);
    l->weight = tg_host_alloc(l->ctx, (size_t)places(l) * sizeof *l->weight);
    TG_TRY(l->ctx->run.status);
    return tg_vectors_open(&l->vectors, l->ctx, params, n, PAIRS + 2 * places(l));
}

tg_lbfgs *tg_lbfgs_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_lbfgs_opts *given) {
    tg_lbfgs_opts opts;
    if (!tg_ok(ctx) || tg_options(ctx, &opts, &tg_lbfgs_opts_struct, given, "tg_lbfgs_new: the options") ||
        check(ctx, &opts) || check_params(ctx, params, n))
        return (tg_lbfgs *)&inert;
    tg_lbfgs *l = tg_host_alloc(ctx, sizeof *l);
    if (!l) return (tg_lbfgs *)&inert;
    *l = (tg_lbfgs){.ctx = ctx, .opts = opts};
    l->vectors.ctx = ctx;
    if (open(l, params, n) == TG_OK) return l;
    tg_lbfgs_free(l);
    return (tg_lbfgs *)&inert;
}

void tg_lbfgs_free(tg_lbfgs *l) {
    if (!l || l == &inert) return;
    if (l->running) {
        tg_fail(l->ctx, TG_ERR_STATE,
                "tg_lbfgs_free: called by the loss function of tg_lbfgs_step; free the object after the step");
        return;
    }
    tg_vectors_close(&l->vectors);
    tg_host_free(l->ctx, l->curvature, (size_t)places(l) * sizeof *l->curvature);
    tg_host_free(l->ctx, l->weight, (size_t)places(l) * sizeof *l->weight);
    tg_host_free(l->ctx, l, sizeof *l);
}
