/* Initial values of parameters (tg_param_init): random numbers, a constant, or a function of the position in the global
 * tensor, which may be the caller's. */
#include "nn/init/init.h"

#include <math.h>

#include "base/memory/host_memory.h"
#include "base/recording.h"
#include "placement/draws.h"
#include "placement/shard_index.h"

/* ---- Pieces of x, as numbers of the host ---- */

enum { PIECE = 1024 };
static const double pi = 3.14159265358979323846, root_of_2 = 1.41421356237309504880, root_of_3 = 1.73205080756887729353;

/* A tensor x that is filled piece by piece, and its next piece. */
typedef struct filler {
    const char *who; /* the public function, for errors */
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

/* Fills x with what o's function gives. */
static tg_status call(filler *f) {
    tg_shape whole = tg_shard_global(f->x);
    tg_row_major((int)whole.ndim, whole.dim, f->step);
    TG_TRY(fill_dim(f, 0, 0));
    return flush(f);
}

/* ---- Functions of the position ---- */

/* Gives f another init, and fills x with its values. */
static tg_status call_of(filler *f, const tg_init *o) {
    f->o = o;
    return call(f);
}

typedef struct eye_matrix {
    int64_t columns;
    double value;
} eye_matrix;

static void fill_eye(void *user, int64_t first, int64_t n, double *out) {
    const eye_matrix *s = user;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (first + i) / s->columns, column = (first + i) % s->columns;
        out[i] = row == column ? s->value : 0;
    }
}

static tg_status eye(filler *f) {
    eye_matrix s = {tg_shard_global(f->x).dim[1], f->o->a};
    return call_of(f, TG_INIT(.kind = TG_INIT_CALL, .fill = fill_eye, .user = &s));
}

static tg_status orthogonal(filler *f) {
    tg_tensor *x = f->x;
    tg_orthogonal_matrix m;
    tg_shape whole = tg_shard_global(x);
    tg_axis sharded[TG_MAX_AXES];
    uint32_t differ = tg_draws_axes(x->ctx);
    for (int i = 0, n = tg_shard_axes(x, sharded); i < n; i++)
        if (differ >> sharded[i] & 1)
            return tg_fail(x->ctx, TG_ERR_UNSUPPORTED,
                           "%s: the current random stream has another seed on each rank of %s, so the ranks' shards "
                           "would be of different orthogonal matrices; use the default stream",
                           f->who, tg_axis_name(sharded[i]));
    tg_status s = tg_orthogonal_draw(&m, x->ctx, &whole, f->o->b);
    if (s == TG_OK && !x->ctx->meta)
        s = call_of(f, TG_INIT(.kind = TG_INIT_CALL, .fill = tg_orthogonal_fill, .user = &m));
    tg_orthogonal_free(&m);
    return s;
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

static tg_status truncated(filler *f) {
    tg_tensor *x = f->x, *u = tg_temp_empty(x->ctx, TG_F64, x->ndim, x->shape, TG_MEM_TEMPORARY);
    double below = 0.5 * erfc(root_of_2); /* Phi(-2) */
    if (!u) return x->ctx->run.status;
    u->place = tg_place_of(x);
    tg_status s = tg_fill_random_placed(u, TG_RANDOM_UNIFORM, below, 1 - below, tg_place_is_expert(tg_place_of(x)));
    if (s == TG_OK && !x->ctx->meta) s = to_normal(f, u);
    tg_temp_free(u);
    return s;
}

static tg_status fill(filler *f) {
    const tg_init *o = f->o;
    tg_tensor *x = f->x;
    switch (o->kind) {
    case TG_INIT_NORMAL:
        return tg_fill_random_placed(x, TG_RANDOM_NORMAL, o->a, o->b, tg_place_is_expert(tg_place_of(x)));
    case TG_INIT_UNIFORM:
        return tg_fill_random_placed(x, TG_RANDOM_UNIFORM, o->a, o->b, tg_place_is_expert(tg_place_of(x)));
    case TG_INIT_TRUNCATED:
        return truncated(f);
    case TG_INIT_CONSTANT:
        return x->ctx->run.ops->fill(x->ctx, tg_array_of(x), o->a);
    case TG_INIT_ORTHOGONAL:
        return orthogonal(f);
    case TG_INIT_EYE:
        return x->ctx->meta ? TG_OK : eye(f);
    case TG_INIT_CALL:
        break;
    }
    return x->ctx->meta ? TG_OK : call(f);
}

/* Returns an init without fan that gives x the same distribution: its standard deviation or bounds follow from o's gain
 * and from the fan of x. */
static tg_init without_fan(const tg_init *o, const tg_tensor *x) {
    tg_init out = *o;
    tg_shape whole = tg_shard_global(x);
    double window = 1;
    if (!o->fan) return out;
    for (int d = 2; d < whole.ndim; d++) window *= (double)whole.dim[d];
    double in = (double)whole.dim[1] * window, output = (double)whole.dim[0] * window;
    double fan = o->fan == TG_FAN_IN ? in : o->fan == TG_FAN_OUT ? output : (in + output) / 2;
    double std = o->b / sqrt(fmax(fan, 1));
    out.fan = TG_FAN_NONE;
    out.b = std;
    if (o->kind == TG_INIT_UNIFORM) {
        out.a = o->a - root_of_3 * std;
        out.b = o->a + root_of_3 * std;
    }
    return out;
}

tg_status tg_init_fill(tg_tensor *x, const tg_init *o, const char *who, const void *site) {
    TG_TRY(tg_recording_refuse(x->ctx, who, TG_RECORDING_WRITE, site));
    TG_TRY(tg_storage_may_change(x));
    TG_TRY(tg_init_check_dims(x, o, who));
    tg_init numbers = without_fan(o, x);
    if (o->fan) TG_TRY(tg_init_check_numbers(x->ctx, (tg_dtype)x->dtype, &numbers, who));
    filler *f = tg_host_alloc(x->ctx, sizeof *f);
    if (!f) return x->ctx->run.status;
    f->who = who;
    f->o = &numbers;
    f->x = x;
    tg_tensor_wrote(x, who, site);
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
    TG_TRY(tg_init_check_leaf(x, &o, "tg_param_init"));
    return tg_init_fill(x, &o, "tg_param_init", TG_SITE);
}
