/* A user-defined op, made with the public headers alone, whose backward can be wrong in every way that gradcheck knows:
 * y = a^2 / n + b and z = sum(a), for a [r, c] with n elements and b [c]. It runs on the host, whatever the device. */
#ifndef TG_TEST_PROBE_H
#define TG_TEST_PROBE_H

#include <math.h>

#include <tapegrad/extend.h>

#include "on_device.h"

typedef enum fault {
    RIGHT,
    TWICE,         /* ga is twice the right value */
    NEGATED,       /* ga has the wrong sign */
    NO_MEAN,       /* ga without 1 / n */
    TRANSPOSED,    /* ga has its dims exchanged */
    NO_SUM,        /* gb comes only from the last row */
    CUT,           /* ga is zero */
    SCALED,        /* ga times 1.0001 */
    ONE_WRONG,     /* one element of ga is wrong */
    OVERWRITES,    /* writes if asked to add */
    ACCUMULATES,   /* adds if asked to write */
    UNFINISHED,    /* does not write one element of ga */
    CONSTANT,      /* ga is not linear in the cotangent */
    FLAT,          /* ignores the strides of a cotangent */
    UNDEFINED,     /* takes an undefined cotangent as ones */
    WRITES_INPUT,  /* always writes the same value */
    WRITES_OUTPUT,
    WRITES_SAVED,
    WRITES_COTANGENT,
    NOISY,         /* another gradient each time */
    NOISY_FORWARD, /* another result each time */
} fault;

typedef struct probe_params {
    double power; /* 0: 2 */
    fault fault;
} probe_params;

static tg_status probe_infer(tg_call *c) {
    const tg_tensor *a = c->input[0], *b = c->input[1];
    if (tg_dtype_of(a) != TG_F64 || tg_dtype_of(b) != TG_F64) return tg_call_fail(c, TG_ERR_DTYPE, "expected float64");
    if (tg_ndim(a) != 2 || tg_ndim(b) != 1 || tg_dim(a, 1) != tg_dim(b, 0) || !tg_is_contiguous(a) ||
        !tg_is_contiguous(b))
        return tg_call_fail(c, TG_ERR_SHAPE, "expected a matrix and a row of it");
    tg_shape s = tg_shape_of(a);
    tg_status status = tg_call_save(c, 0, TG_F64, 2, s.dim);
    if (status == TG_OK) status = tg_call_out(c, 0, TG_F64, 2, s.dim);
    return status == TG_OK ? tg_call_out(c, 1, TG_F64, 0, NULL) : status;
}

/* If there is a state, it counts the calls. */
static double probe_count(const tg_call *c) { return c->state ? (double)++*(int *)c->state : 0; }

static tg_status probe_forward(tg_call *c) {
    const probe_params *p = c->params;
    reached r = {.ctx = c->ctx};
    const double *a = reach(&r, c->input[0]), *b = reach(&r, c->input[1]);
    double *y = reach(&r, c->out[0]), *z = reach(&r, c->out[1]), *slope = reach(&r, c->saved[0]);
    int64_t n = tg_numel(c->input[0]), columns = tg_numel(c->input[1]);
    double power = p->power == 0 ? 2 : p->power, noise = p->fault == NOISY_FORWARD ? 1e-9 * probe_count(c) : 0;
    *z = 0;
    for (int64_t i = 0; i < n; i++) {
        y[i] = pow(a[i], power) / (double)n + b[i % columns] + noise;
        slope[i] = power * pow(a[i], power - 1) / (double)n;
        *z += a[i];
    }
    return release(&r);
}

/* Returns element i of y's cotangent, which may have any strides. */
static double probe_gy(const tg_call *c, reached *r, int64_t i) {
    if (!c->gout[0]) return 0;
    tg_array g = tg_array_of(c->gout[0]);
    const double *gy = reach(r, c->gout[0]);
    if (((const probe_params *)c->params)->fault == FLAT) return gy[i];
    return gy[i / g.shape[1] * g.stride[0] + i % g.shape[1] * g.stride[1]];
}

/* Returns the faulty value of element i of ga, whose right value is g. */
static double probe_fault(const tg_call *c, reached *r, int64_t i, double g) {
    const double *slope = reach(r, c->saved[0]);
    int64_t n = tg_numel(c->input[0]), columns = tg_dim(c->input[0], 1), across = i % columns * columns + i / columns;
    switch (((const probe_params *)c->params)->fault) {
    case TWICE: return 2 * g;
    case NEGATED: return -g;
    case NO_MEAN: return (double)n * g;
    case TRANSPOSED: return slope[across] * probe_gy(c, r, across);
    case CUT: return 0;
    case SCALED: return 1.0001 * g;
    case ONE_WRONG: return i == 1 ? 2 * g : g;
    case CONSTANT: return g + 1e-14;
    case NOISY: return g + 1e-14 * probe_count(c);
    default: return g;
    }
}

static void probe_write(tg_call *c, reached *r, fault f) {
    if (f == WRITES_INPUT) reach(r, c->input[1])[0] = 0.5;
    if (f == WRITES_OUTPUT) reach(r, c->out[1])[0] = 0.5;
    if (f == WRITES_SAVED) reach(r, c->saved[0])[0] *= 1 + 1e-15;
    if (f == WRITES_COTANGENT && c->gout[0]) reach(r, c->gout[0])[0] = 0.5;
}

static tg_status probe_backward(tg_call *c) {
    fault f = ((const probe_params *)c->params)->fault;
    reached r = {.ctx = c->ctx};
    const double *slope = reach(&r, c->saved[0]);
    double *ga = c->gin[0] ? reach(&r, c->gin[0]) : NULL, *gb = c->gin[1] ? reach(&r, c->gin[1]) : NULL;
    double gz = c->gout[1] ? *reach(&r, c->gout[1]) : f == UNDEFINED;
    int64_t n = tg_numel(c->input[0]), columns = tg_numel(c->input[1]);
    bool adds = f == ACCUMULATES || (c->gin_mode[0] == TG_GRAD_ADD && f != OVERWRITES);
    for (int64_t i = 0; ga && i < n - (f == UNFINISHED); i++)
        ga[i] = (adds ? ga[i] : 0) + (c->gout[0] ? probe_fault(c, &r, i, slope[i] * probe_gy(c, &r, i)) : 0) + gz;
    for (int64_t j = 0; gb && j < columns; j++) {
        double sum = 0;
        for (int64_t i = j + (f == NO_SUM ? n - columns : 0); i < n; i += columns) sum += probe_gy(c, &r, i);
        gb[j] = (c->gin_mode[1] == TG_GRAD_ADD ? gb[j] : 0) + sum;
    }
    probe_write(c, &r, f);
    return release(&r);
}

static const tg_sample probe_samples[] = {
    {.note = "square", .params = &(const probe_params){0}, .n_in = 2, .input = {TG_S(3, 3), TG_S(3)}},
    {.note = "cubes", .params = &(const probe_params){.power = 3}, .n_in = 2, .input = {TG_S(2, 4), TG_S(4)}},
    {.note = "rows",
     .params = &(const probe_params){0},
     .n_in = 2,
     .input = {TG_S(2, 3), TG_S(2)},
     .refused = TG_ERR_SHAPE},
};

static const tg_op probe_op = {
    .size = sizeof(tg_op),
    .name = "probe",
    .formula = "y = a^power / n + b, z = sum(a)",
    .n_in = 2,
    .n_out = 2,
    .params_size = sizeof(probe_params),
    .infer = probe_infer,
    .forward = probe_forward,
    .backward = probe_backward,
    TG_SAMPLES(probe_samples),
};

#endif
