/* Initial values of parameters (tg_param_init): random numbers, a constant, or the caller's function of the position in
 * the global tensor. */
#include <math.h>

#include "base/host_memory.h"
#include "base/options.h"
#include "base/recording.h"
#include "nn/init.h"
#include "placement/draws.h"
#include "placement/shard_index.h"

/* ---- Checks ---- */

static tg_status check_numbers(tg_ctx *ctx, tg_dtype dtype, const tg_init *o, const char *who) {
    bool spread = o->kind == TG_INIT_NORMAL || o->kind == TG_INIT_TRUNCATED;
    if ((unsigned)o->kind > TG_INIT_CALL)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the kind of the tg_init is %d, expected TG_INIT_NORMAL to _CALL", who,
                       (int)o->kind);
    if (!isfinite(o->a) || !isfinite(o->b) || (spread && o->b < 0))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: a is %g and b %g, expected finite numbers%s", who, o->a, o->b,
                       spread ? ", and a standard deviation b of 0 or more" : "");
    if ((o->kind == TG_INIT_CALL) != (o->fill != NULL))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: fill is %s, expected a function with TG_INIT_CALL and NULL otherwise",
                       who, o->fill ? "not NULL" : "NULL");
    return o->kind == TG_INIT_UNIFORM ? tg_interval_check(ctx, dtype, o->a, o->b, who) : TG_OK;
}

tg_status tg_init_read(tg_ctx *ctx, tg_dtype dtype, const tg_init *given, tg_init *o, const char *who) {
    if (!given) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: init is NULL", who);
    TG_TRY(tg_options(ctx, o, &tg_init_struct, given, who));
    return check_numbers(ctx, dtype, o, who);
}

bool tg_init_draws(const tg_init *o) { return o->kind <= TG_INIT_TRUNCATED; }

static tg_status check_leaf(const tg_tensor *x, const tg_init *o, const char *who) {
    char what[160];
    tg_describe(x, what, sizeof what);
    if (x->tape || !(x->flags & TG_F_CONTIGUOUS) || !tg_is_float((tg_dtype)x->dtype))
        return tg_fail(x->ctx, x->tape ? TG_ERR_STATE : TG_ERR_ARGUMENT,
                       "%s: %s is %s, expected a contiguous floating-point leaf of the context", who, what,
                       x->tape ? "owned by a tape" : "another tensor");
    if (o->kind != TG_INIT_CALL || tg_shard_is_located(x)) return TG_OK;
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s: the placement of %s does not say which elements of the global tensor it has; declare it with "
                   "tg_place first",
                   who, what);
}

/* ---- Pieces of x, as numbers of the host ---- */

enum { PIECE = 1024 };
static const double pi = 3.14159265358979323846, root_of_2 = 1.41421356237309504880;

/* A tensor x that is filled piece by piece, and its next piece. */
typedef struct filler {
    const tg_init *o;
    tg_tensor *x;
    int64_t step[TG_MAX_DIMS]; /* row-major strides of the dims of the global tensor */
    double v[PIECE];           /* the next n elements, the first of which is element `done` of x */
    int64_t n, done;
} filler;

/* Returns n elements of x, which is contiguous, from element `first` on, as a temporary tensor. */
static tg_tensor *slice(const tg_tensor *x, int64_t first, int64_t n) {
    return tg_temp_new(x->ctx, (tg_dtype)x->dtype, 1, &n, NULL, tg_storage_ref(x->storage), x->offset + first);
}

/* Writes the elements that f holds to x. */
static tg_status flush(filler *f) {
    tg_tensor *to = f->n ? slice(f->x, f->done, f->n) : NULL;
    if (!to) return f->x->ctx->run.status;
    tg_status s = tg_write_f64(to, f->v, f->n);
    tg_temp_free(to);
    f->done += f->n;
    f->n = 0;
    return s;
}

/* Adds n elements, which are consecutive in the global tensor from position `first` on, to the piece. */
static tg_status fill_run(filler *f, int64_t first, int64_t n) {
    while (n > 0) {
        int64_t room = PIECE - f->n, k = n < room ? n : room;
        f->o->fill(f->o->user, first, k, f->v + f->n);
        f->n += k;
        first += k;
        n -= k;
        if (f->n == PIECE) TG_TRY(flush(f));
    }
    return TG_OK;
}

/* Adds the elements of all indices of dims d, d + 1 and so on. `first` is the position in the global tensor that the
 * indices of the dims before d give. */
static tg_status fill_dim(filler *f, int d, int64_t first) {
    const tg_tensor *x = f->x;
    if (d == x->ndim) return fill_run(f, first, 1);
    for (int64_t i = 0, run; i < x->shape[d]; i += run) {
        int64_t at = first + tg_shard_index(x, d, tg_grid_of(x->ctx)->rank, i, &run) * f->step[d];
        if (d + 1 == x->ndim) {
            TG_TRY(fill_run(f, at, run));
        } else {
            run = 1;
            TG_TRY(fill_dim(f, d + 1, at));
        }
    }
    return TG_OK;
}

static tg_status call(filler *f) {
    tg_shape whole = tg_shard_global(f->x);
    tg_row_major((int)whole.ndim, whole.dim, f->step);
    TG_TRY(fill_dim(f, 0, 0));
    return flush(f);
}

/* ---- Truncated normal numbers ---- */

/* Returns the z with Phi(z) = p, where Phi is the normal distribution function and p is in [Phi(-2), Phi(2)]: five
 * steps of Halley's method from the tangent at p = 1/2, which leave an error of Phi below 3e-16. */
static double normal_quantile(double p) {
    double scale = sqrt(2 * pi), z = (p - 0.5) * scale;
    for (int i = 0; i < 5; i++) {
        double step = (0.5 * erfc(-z / root_of_2) - p) * scale * exp(0.5 * z * z);
        z -= step / (1 + 0.5 * z * step);
    }
    return z;
}

/* Fills x from u, which has x's shape and uniform numbers between Phi(-2) and Phi(2). */
static tg_status to_normal(filler *f, const tg_tensor *u) {
    while (f->done < u->numel) {
        int64_t left = u->numel - f->done;
        f->n = left < PIECE ? left : PIECE;
        tg_tensor *from = slice(u, f->done, f->n);
        tg_status s = from ? tg_read_f64(from, f->v, f->n) : f->x->ctx->run.status;
        tg_temp_free(from);
        TG_TRY(s);
        for (int64_t i = 0; i < f->n; i++) f->v[i] = f->o->a + f->o->b * normal_quantile(f->v[i]);
        TG_TRY(flush(f));
    }
    return TG_OK;
}

/* ---- The kinds ---- */

/* Returns whether x is placed on an axis of the expert grid. */
static bool is_of_expert(const tg_tensor *x) {
    const tg_placements *p = tg_place_of(x);
    return p && (p->varying | p->replicated) & (1u << TG_ETP | 1u << TG_EP | 1u << TG_EDP);
}

static tg_status truncated(filler *f) {
    tg_tensor *x = f->x, *u = tg_temp_empty(x->ctx, TG_F64, x->ndim, x->shape, TG_MEM_TEMPORARY);
    double below = 0.5 * erfc(root_of_2); /* Phi(-2) */
    if (!u) return x->ctx->run.status;
    u->place = tg_place_of(x);
    tg_status s = tg_fill_random_placed(u, TG_RANDOM_UNIFORM, below, 1 - below, is_of_expert(x));
    if (s == TG_OK && !x->ctx->meta) s = to_normal(f, u);
    tg_temp_free(u);
    return s;
}

static tg_status fill(filler *f) {
    const tg_init *o = f->o;
    tg_tensor *x = f->x;
    switch (o->kind) {
    case TG_INIT_NORMAL:
        return tg_fill_random_placed(x, TG_RANDOM_NORMAL, o->a, o->b, is_of_expert(x));
    case TG_INIT_UNIFORM:
        return tg_fill_random_placed(x, TG_RANDOM_UNIFORM, o->a, o->b, is_of_expert(x));
    case TG_INIT_TRUNCATED:
        return truncated(f);
    case TG_INIT_CONSTANT:
        return x->ctx->run.ops->fill(x->ctx, tg_array_of(x), o->a);
    case TG_INIT_CALL:
        break;
    }
    return x->ctx->meta ? TG_OK : call(f);
}

tg_status tg_init_fill(tg_tensor *x, const tg_init *o, const char *who, const void *site) {
    TG_TRY(tg_recording_refuse(x->ctx, who, TG_RECORDING_WRITE, site));
    TG_TRY(tg_storage_may_change(x));
    filler *f = tg_host_alloc(x->ctx, sizeof *f);
    if (!f) return x->ctx->run.status;
    f->o = o;
    f->x = x;
    tg_storage_wrote(x->storage, who, site);
    x->flags &= (uint16_t)~TG_F_COMPARED;
    tg_status s = fill(f);
    tg_host_free(x->ctx, f, sizeof *f);
    return s;
}

tg_status tg_param_init(tg_tensor *x, const tg_init *init) {
    tg_init o;
    if (!x) return TG_ERR_ARGUMENT;
    TG_TRY(x->ctx->run.status);
    TG_TRY(tg_check(x->ctx, x, "tg_param_init"));
    TG_TRY(tg_init_read(x->ctx, (tg_dtype)x->dtype, init, &o, "tg_param_init"));
    TG_TRY(check_leaf(x, &o, "tg_param_init"));
    return tg_init_fill(x, &o, "tg_param_init", TG_SITE);
}
