/* The contract of dropout and adamw. */
#include <math.h>
#include <stdlib.h>

#include "contract/device_contract.h"
#include "kernels/philox.h"

static const tg_dtype floats[] = {TG_F32, TG_F64, TG_BF16, TG_F16};

static tg_dtype any_float(contract *c) { return floats[contract_roll(c, 4)]; }

static tg_array seen(mirror *m) {
    m->on.shape = m->shape;
    m->on.stride = m->stride;
    return m->on;
}

static tg_draws some_draws(contract *c) {
    tg_draws d = {.rng = {.seed = 0x9e3779b97f4a7c15u, .stream = 3, .counter = 0xfffffff0u}};
    d.rng.counter += (uint64_t)contract_roll(c, 20);
    if (contract_roll(c, 2)) return d;
    d.n = 3;
    for (int k = 0; k < 3; k++) {
        d.extent[k] = 1 + contract_roll(c, 40);
        d.stride[k] = k == 2 ? 1 : 1 + contract_roll(c, 5000);
    }
    return d;
}

static bool kept(const tg_draws *d, int64_t i, double p) {
    uint64_t number = tg_draw_number(d, i);
    tg_philox_block b = tg_philox(d->rng.seed, number / 4, d->rng.stream);
    return tg_uniform_of_word(b.w[number % 4]) >= (float)p;
}

/* The mask is the same on every device. */
static void dropout_case(contract *c, double p, tg_dtype t, tg_dtype other) {
    int64_t shape[2] = {1 + contract_roll(c, 60), 1 + contract_roll(c, 200)};
    mirror x = contract_make(c, t, 2, shape, (layout)contract_roll(c, LAYOUTS));
    mirror y = contract_make(c, other, 2, shape, (layout)contract_roll(c, EXPANDED));
    tg_draws d = some_draws(c);
    bool add = contract_roll(c, 2);
    contract_push(c, &x);
    contract_push(c, &y);
    double *want = malloc(sizeof *want * (size_t)y.on.numel);
    for (int64_t i = 0; i < y.on.numel; i++)
        want[i] = (kept(&d, i, p) ? contract_get(&x, i) / (1 - p) : 0) + (add ? contract_get(&y, i) : 0);
    contract_check(c, c->ops->dropout(c->ctx, seen(&y), seen(&x), p, &d, add) == TG_OK, "dropout: status");
    contract_pull(c, &y);
    for (int64_t i = 0; i < y.on.numel; i++) {
        double got = contract_get(&y, i);
        contract_check(c, contract_close(other == TG_F64 ? t : other, got, want[i]),
                       "dropout %s -> %s, p %g, add %d, element %lld: %g, expected %g", tg_dtype_name(t),
                       tg_dtype_name(other), p, add, (long long)i, got, want[i]);
    }
    free(want);
    contract_drop(c, &x);
    contract_drop(c, &y);
}

void contract_dropout(contract *c) {
    static const double p[] = {0, 0.1, 0.5, 0.9};
    for (int k = 0; c->ops->dropout && k < 80; k++) {
        tg_dtype t = any_float(c);
        dropout_case(c, p[k % 4], t, contract_roll(c, 2) ? t : any_float(c));
    }
}

/* ---- AdamW ---- */

enum { PARAM, GRAD, M, V, MASTER, ARRAYS };

static const double lr = 0.05, clip = 0.7, unbias1 = 0.19, unbias2 = 0.02;

static double array_value(contract *c, int which) {
    double v = contract_value(c, TG_F64);
    return which == V ? 0.1 + fabs(v) : v;
}

static void adamw_reference(const tg_adamw_args *a, double *p, double grad, double *m, double *v) {
    double g = grad * clip + (a->decoupled ? 0 : a->weight_decay * *p);
    *m = a->beta1 * *m + (1 - a->beta1) * g;
    *v = a->beta2 * *v + (1 - a->beta2) * g * g;
    *p = (a->decoupled ? 1 - lr * a->weight_decay : 1) * *p - lr / unbias1 * *m / (sqrt(*v / unbias2) + a->eps);
}

/* One parameter of a call: its values before, and the expected values after. */
typedef struct adamw_run {
    mirror x[ARRAYS], step, used;
    double *want[ARRAYS];
    tg_adamw_args a;
    bool skip;
} adamw_run;

/* used: the number of ranks that have used the parameter; -1: NULL is passed. */
static void adamw_begin(contract *c, adamw_run *r, int64_t n, tg_dtype t, bool master, bool skip, int used) {
    tg_dtype state = t == TG_F64 ? TG_F64 : TG_F32, gradient = contract_roll(c, 2) ? t : state;
    tg_dtype of[ARRAYS] = {t, gradient, state, state, state};
    const double steps[TG_STEP_SCALARS] = {lr, clip, unbias1, unbias2, skip ? 1 : 0, 1};
    layout l = contract_roll(c, 3) ? ROWS : SHIFTED;
    r->step = contract_make(c, TG_F64, 1, (int64_t[]){TG_STEP_SCALARS}, ROWS);
    for (int i = 0; i < TG_STEP_SCALARS; i++) contract_set(&r->step, i, steps[i]);
    contract_push(c, &r->step);
    r->used = contract_make(c, TG_F32, 1, (int64_t[]){1}, ROWS);
    contract_set(&r->used, 0, used);
    contract_push(c, &r->used);
    skip = r->skip = skip || used == 0;
    for (int k = 0; k < ARRAYS; k++) {
        r->x[k] = contract_make(c, of[k], 1, &n, l);
        r->want[k] = malloc(sizeof *r->want[k] * (size_t)(n + 1));
        for (int64_t i = 0; i < n; i++) contract_set(&r->x[k], i, array_value(c, k));
        for (int64_t i = 0; i < n; i++) r->want[k][i] = contract_get(&r->x[k], i);
        contract_push(c, &r->x[k]);
    }
    tg_adamw_args a = {.param = seen(&r->x[PARAM]), .grad = seen(&r->x[GRAD]), .m = seen(&r->x[M]),
                       .v = seen(&r->x[V])};
    a.beta1 = 0.9, a.beta2 = 0.99, a.eps = 1e-8, a.weight_decay = 0.1;
    a.decoupled = contract_roll(c, 2);
    a.step = r->step.on.data;
    a.used = used < 0 ? NULL : r->used.on.data;
    if (master) a.master = seen(&r->x[MASTER]);
    for (int64_t i = 0; i < n && !skip; i++) {
        double *p = &r->want[master ? MASTER : PARAM][i];
        adamw_reference(&a, p, r->want[GRAD][i], &r->want[M][i], &r->want[V][i]);
        r->want[PARAM][i] = *p;
    }
    r->a = a;
}

static void adamw_end(contract *c, adamw_run *r) {
    for (int k = 0; k < ARRAYS; k++) {
        mirror *x = &r->x[k];
        contract_pull(c, x);
        for (int64_t i = 0; i < x->on.numel; i++)
            contract_check(c, contract_close(x->on.dtype, contract_get(x, i), r->want[k][i]),
                           "adamw, array %d of %s, skipped %d, element %lld: %g, expected %g", k,
                           tg_dtype_name(x->on.dtype), r->skip, (long long)i, contract_get(x, i), r->want[k][i]);
        free(r->want[k]);
        contract_drop(c, x);
    }
    contract_drop(c, &r->step);
    contract_drop(c, &r->used);
}

void contract_adamw(contract *c) {
    static const int64_t sizes[] = {1, 3, 64, 1000, 2048, 2049, 9001};
    for (int k = 0; c->ops->adamw && k < 84; k++) {
        tg_dtype t = floats[k % 4];
        adamw_run r;
        adamw_begin(c, &r, sizes[k % 7], t, t > TG_F64 && contract_roll(c, 3), k % 11 == 10, k % 5 - 1);
        contract_check(c, c->ops->adamw(c->ctx, &r.a, 1) == TG_OK, "adamw: status");
        adamw_end(c, &r);
    }
}

/* Many parameters in one call, more than a launch can have, of any dtype, some without elements or skipped. */
void contract_adamw_list(contract *c) {
    enum { MOST = 300 };
    static const int lengths[] = {0, 2, 17, 40, MOST};
    adamw_run *r = malloc(MOST * sizeof *r);
    tg_adamw_args *a = malloc(MOST * sizeof *a);
    for (size_t k = 0; c->ops->adamw && k < sizeof lengths / sizeof *lengths; k++) {
        int n = lengths[k];
        for (int i = 0; i < n; i++) {
            tg_dtype t = n == MOST ? TG_F32 : floats[contract_roll(c, 4)];
            int64_t numel = contract_roll(c, n == MOST ? 40 : 1100);
            adamw_begin(c, &r[i], numel, t, t > TG_F64 && contract_roll(c, 3), contract_roll(c, 9) == 0,
                        contract_roll(c, 4) - 1);
            a[i] = r[i].a;
        }
        contract_check(c, c->ops->adamw(c->ctx, a, n) == TG_OK, "adamw of %d: status", n);
        for (int i = 0; i < n; i++) adamw_end(c, &r[i]);
    }
    free(r);
    free(a);
}
