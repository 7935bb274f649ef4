/* The contract of prepare and fault_sum, compared with the sentences of step.h. */
#include <math.h>
#include <string.h>
#include <tapegrad/step.h>

#include "contract/device_contract.h"

/* Expected results of prepare, by the rules written out, and whether they apply to this call. */
static void prepare_reference(const tg_prepare_args *a, const double *sums, double fault, double *s, double *scalars) {
    double squares = 0, limit = isnan(a->max_norm) ? s[TG_STEP_MAX_NORM] : a->max_norm;
    for (int i = 0; i < a->n_sums; i++) squares += sums[i];
    double norm = a->n_sums ? sqrt(squares) / s[TG_STEP_SCALE] : NAN;
    bool overflow = a->n_sums > 0 && !isfinite(norm), skip = overflow || fault != 0;
    double coefficient = limit > 0 && isfinite(norm) ? fmin(1, limit / (norm + 1e-6)) : 1;
    for (int g = 0; g < a->n_groups; g++) {
        double rate = a->schedule[g].size ? tg_schedule_lr(&a->schedule[g], (int64_t)s[TG_STEP_COUNT] + 1)
                                          : s[TG_STEP_LR + g];
        double t = s[TG_STEP_COUNT] + 1, scalar[TG_STEP_SCALARS] = {rate * a->lr_scale[g],
                                                                    coefficient / s[TG_STEP_SCALE],
                                                                    1 - pow(a->beta1[g], t),
                                                                    1 - pow(a->beta2[g], t),
                                                                    skip,
                                                                    t == 1};
        memcpy(scalars + g * TG_STEP_SCALARS, scalar, sizeof scalar);
    }
    s[TG_STEP_NORM] = norm;
    s[TG_STEP_SKIPPED] = skip;
    s[TG_STEP_COUNT] += !skip;
    if (!a->dynamic || !a->n_sums || fault != 0) return;
    s[TG_STEP_CLEAN] = skip ? 0 : s[TG_STEP_CLEAN] + 1;
    if (skip && --s[TG_STEP_HYSTERESIS] <= 0) s[TG_STEP_SCALE] = fmax(s[TG_STEP_SCALE] * a->backoff, a->min);
    if (s[TG_STEP_CLEAN] != a->interval) return;
    s[TG_STEP_CLEAN] = 0;
    s[TG_STEP_HYSTERESIS] = a->hysteresis;
    s[TG_STEP_SCALE] *= a->growth;
}

/* Makes an array of doubles on the device. */
typedef struct numbers {
    mirror m;
    double want[TG_STEP_GROUPS * TG_STEP_SCALARS];
} numbers;

static numbers numbers_of(contract *c, int64_t n) {
    numbers x = {.m = contract_make(c, TG_F64, 1, &n, ROWS)};
    return x;
}

static void numbers_check(contract *c, numbers *x, int n, const char *what, int step) {
    contract_pull(c, &x->m);
    for (int i = 0; i < n; i++)
        contract_check(c, contract_close(TG_F64, contract_get(&x->m, i), x->want[i]),
                       "prepare %d: %s %d: %g, expected %g", step, what, i, contract_get(&x->m, i), x->want[i]);
}

/* Runs several steps, each from the state that the previous one has left on the device. */
static void prepare_run(contract *c, tg_prepare_args a, double lr, double max_norm, double scale, bool overflows) {
    numbers sums = numbers_of(c, TG_STEP_SUMS), state = numbers_of(c, TG_STEP_STATE);
    numbers scalars = numbers_of(c, TG_STEP_GROUPS * TG_STEP_SCALARS), fault = numbers_of(c, 1);
    double begin[TG_STEP_STATE] = {[TG_STEP_MAX_NORM] = max_norm, [TG_STEP_NORM] = NAN, [TG_STEP_SCALE] = scale,
                                   [TG_STEP_HYSTERESIS] = a.hysteresis};
    for (int g = 0; g < TG_STEP_GROUPS; g++) begin[TG_STEP_LR + g] = lr * (1 + g);
    for (int i = 0; i < TG_STEP_STATE; i++) contract_set(&state.m, i, state.want[i] = begin[i]);
    contract_push(c, &state.m);
    contract_push(c, &scalars.m);
    a.sums = sums.m.on.data, a.state = state.m.on.data, a.scalars = scalars.m.on.data;
    for (int step = 1; step <= 40; step++) {
        for (int i = 0; i < TG_STEP_SUMS; i++) sums.want[i] = (double)(contract_roll(c, 9) * 7);
        for (int i = 0; i < TG_STEP_SUMS; i++) contract_set(&sums.m, i, sums.want[i]);
        if (overflows && contract_roll(c, 4) == 0)
            contract_set(&sums.m, 0, sums.want[0] = contract_roll(c, 2) ? INFINITY : NAN);
        contract_push(c, &sums.m);
        bool found = contract_roll(c, 6) == 0;
        contract_set(&fault.m, 0, fault.want[0] = found ? NAN : 0);
        contract_push(c, &fault.m);
        a.fault = found || contract_roll(c, 2) ? fault.m.on.data : NULL;
        a.max_norm = contract_roll(c, 5) ? NAN : (double)contract_roll(c, 3);
        contract_check(c, c->ops->prepare(c->ctx, &a) == TG_OK, "prepare: status");
        prepare_reference(&a, sums.want, fault.want[0], state.want, scalars.want);
        numbers_check(c, &state, TG_STEP_STATE, "state", step);
        numbers_check(c, &scalars, a.n_groups * TG_STEP_SCALARS, "scalar", step);
    }
    contract_drop(c, &sums.m);
    contract_drop(c, &state.m);
    contract_drop(c, &scalars.m);
    contract_drop(c, &fault.m);
}

/* Without an error in data the sum is unchanged. Tests of ranks show that it becomes NaN otherwise. */
void contract_fault_sum(contract *c) {
    if (!c->ops->fault_sum) return;
    numbers sum = numbers_of(c, 2);
    for (int i = 0; i < 2; i++) contract_set(&sum.m, i, sum.want[i] = 3 + i);
    contract_push(c, &sum.m);
    contract_check(c, c->ops->fault_sum(c->ctx, sum.m.on.data) == TG_OK, "fault_sum: status");
    numbers_check(c, &sum, 2, "sum", 0);
    contract_drop(c, &sum.m);
}

void contract_prepare(contract *c) {
    if (!c->ops->prepare) return;
    tg_prepare_args a = {.n_groups = 1, .lr_scale = {1, 0.5, 0, 2, 3, 4, 5, 6}};
    for (int g = 0; g < TG_STEP_GROUPS; g++) a.beta1[g] = 0.9 - 0.02 * g, a.beta2[g] = 0.95 - 0.01 * g;
    for (int g = 8; g < TG_STEP_GROUPS; g++) a.lr_scale[g] = 1.0 / g;
    for (int g = 0; g < 15; g++) {
        bool wsd = g % 5 == TG_DECAY_WSD;
        a.schedule[3 + g] = *TG_SCHEDULE(.lr = 1 + g, .min_lr = 0.25, .start_lr = 0.5, .warmup = 2 * (g % 3),
                                         .steps = 30, .decay = (tg_decay)(g % 5), .wsd = (tg_wsd)(wsd ? g % 4 : 0),
                                         .wsd_steps = wsd ? 12 : 0);
    }
    prepare_run(c, a, 0.1, 0, 1, false);
    a.n_sums = 1, a.n_groups = TG_STEP_GROUPS;
    prepare_run(c, a, 0.1, 2, 1, true);
    prepare_run(c, a, 0.1, INFINITY, 1, true);
    a.n_sums = TG_STEP_SUMS, a.beta1[0] = 0;
    prepare_run(c, a, 1e-3, 3, 64, true);
    a.dynamic = true, a.growth = 2, a.backoff = 0.5, a.min = 4, a.interval = 3, a.hysteresis = 2;
    prepare_run(c, a, 1e-3, 3, 4096, true);
    a.growth = 1.5, a.backoff = 0.25, a.interval = 1, a.hysteresis = 1;
    prepare_run(c, a, 1e-3, 0, 8, true);
    a.n_sums = 0;
    prepare_run(c, a, 1e-3, 1, 8, false);
}
