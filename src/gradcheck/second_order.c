/* Checks of derivatives that are recorded as ops. The vjp and jvp of each op are compared with its backward, which
 * differences have confirmed, and second derivatives with differences of the first ones. */
#include <math.h>
#include <stdio.h>

#include <tapegrad/backward.h>
#include <tapegrad/derivatives.h>
#include <tapegrad/ops.h>

#include "catalog/sample_values.h"
#include "gradcheck/gradcheck.h"

/* ---- vjp ---- */

/* Computes the gradients g[n_parts] of the roots with respect to every part, as ops. in[] are the inputs of this
 * run. */
static tg_status gradients(tg_check_run *r, tg_tensor *const *in, tg_tensor **g) {
    int n = r->d.n_parts;
    tg_tensor **x = tg_tape_alloc(r->t, (size_t)n * sizeof *x);
    if (!x) return r->ctx->run.status;
    for (int k = 0; k < n; k++) {
        int i = 0;
        while (r->input[i] != r->targets[k].x) i++;
        x[k] = in[i];
    }
    return tg_grad(r->t, r->roots, r->n_roots, x, n, g,
                   TG_GRAD(.seeds = r->seeds, .create_graph = true, .allow_unused = true));
}

/* Compares the gradient of a part with that of backward, and records the first element that differs. */
static void compare(tg_diff *d, int part, const double *got) {
    const tg_diff_part *p = &d->parts[part];
    for (int64_t i = 0; i < p->n; i++) {
        double want = d->gx[p->at + i];
        char place[320];
        if (fabs(got[i] - want) <= d->atol + d->rtol * fabs(want) || (isnan(got[i]) && isnan(want))) continue;
        if (got[i] == want) continue; /* equal infinities */
        tg_diff_place(d, part, i, place, sizeof place);
        tg_diff_fail(d, "recorded", "%s: tg_grad with .create_graph (vjp) gives %.12g, backward %.12g", place, got[i],
                     want);
        return;
    }
}

static tg_status check_vjp(tg_check_run *r) {
    tg_diff *d = &r->d;
    TG_TRY(tg_check_record(r, true));
    tg_tensor **g = tg_tape_alloc(r->t, (size_t)d->n_parts * sizeof *g);
    if (!g) return r->ctx->run.status;
    TG_TRY(gradients(r, r->input, g));
    for (int k = 0; k < d->n_parts; k++) {
        TG_TRY(tg_read_f64(g[k], d->direction, d->parts[k].n));
        compare(d, k, d->direction);
    }
    return TG_OK;
}

/* ---- jvp: with J the derivative, gy (J v) = (gy J) v for every tangent v; gy J is the gradient ---- */

/* Computes the tangents of the roots, and copies them to d.moved. */
static tg_status read_jvp(tg_check_run *r, int part, tg_tensor *tangent) {
    tg_diff *d = &r->d;
    tg_tensor **dout = tg_tape_alloc(r->t, (size_t)r->n_roots * sizeof *dout);
    if (!dout) return r->ctx->run.status;
    TG_TRY(tg_jvp(r->t, r->roots, r->n_roots, &r->targets[part].x, 1, &tangent, dout));
    double *to = d->moved;
    for (int i = 0; i < r->n_roots; i++) {
        TG_TRY(tg_read_f64(dout[i], to, dout[i]->numel));
        to += dout[i]->numel;
    }
    return TG_OK;
}

static tg_status check_jvp(tg_check_run *r, int part, uint64_t *state) {
    tg_diff *d = &r->d;
    const tg_diff_part *p = &d->parts[part];
    double forward = 0, reverse = 0, size = 0;
    for (int64_t i = 0; i < p->n; i++) {
        d->direction[i] = tg_sample_normal(state);
        reverse += d->direction[i] * d->gx[p->at + i];
        size += fabs(d->direction[i] * d->gx[p->at + i]);
    }
    TG_TRY(tg_check_record(r, true));
    tg_tensor *tangent = tg_from_host(r->ctx, TG_F64, p->shape, d->direction);
    tg_status s = read_jvp(r, part, tangent);
    tg_tape_reset(r->t);
    tg_drop(tangent);
    TG_TRY(s);
    for (int64_t j = 0; j < d->m; j++) {
        forward += d->gy[j] * d->moved[j];
        size += 0x1p-40 * fabs(d->gy[j] * d->moved[j]); /* allows for rounding of terms that cancel */
    }
    if (isfinite(reverse) && (!isfinite(forward) || fabs(forward - reverse) > d->atol + d->rtol * size))
        tg_diff_fail(d, "recorded", "%s: tg_jvp along a random direction gives %.12g, backward %.12g", p->name, forward,
                     reverse);
    return TG_OK;
}

/* ---- Second derivatives: a gradient check of the function that computes the gradients ---- */

/* Computes the gradients of the roots. This is the function whose gradients are checked. Adds 0 * x to each result, so
 * that the result depends on an input even if the gradient is a constant, like that of a linear function. */
static tg_status gradient_fn(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    tg_check_run *r = state;
    tg_tape_set_grad_mode(t, true);
    for (int i = 0; i < r->n_out; i++) r->out[i] = NULL;
    tg_status s = r->fn(r->state, t, in, n_in, r->out, r->n_out);
    if (s == TG_OK) s = r->ctx->run.status;
    if (s != TG_OK) return s;
    for (int i = 0; i < r->n_roots; i++) r->roots[i] = r->out[r->root[i]];
    TG_TRY(gradients(r, in, out));
    for (int k = 0; k < n_out; k++) {
        int i = 0;
        while (r->input[i] != r->targets[k].x) i++;
        out[k] = tg_add(t, out[k], tg_scale(t, in[i], 0));
    }
    return r->ctx->run.status;
}

static tg_status check_second(tg_check_run *r) {
    tg_diff *d = &r->d;
    tg_gradcheck_info result = {.size = sizeof result};
    char name[192];
    snprintf(name, sizeof name, "%s: its gradient", d->name);
    tg_check_run second = {.d = {.result = &result, .name = name, .eps = d->eps, .atol = d->atol, .rtol = d->rtol,
                                 .tries = d->tries, .projections = d->projections, .strict = d->strict,
                                 .seed = d->seed + 1},
                           .ctx = r->ctx, .t = r->t, .fn = gradient_fn, .state = r, .input = r->input, .at = r->at,
                           .n_in = r->n_in, .n_out = d->n_parts};
    tg_rng_states_load(r->ctx, r->streams);
    tg_status s = tg_check_tensors(&second);
    if (result.failed) *d->result = result;
    return s;
}

tg_status tg_check_second_order(tg_check_run *r) {
    tg_diff *d = &r->d;
    uint64_t state = d->seed ^ 0xA0761D6478BD642Fu;
    if (d->result->failed) return TG_OK;
    TG_TRY(check_vjp(r));
    for (int k = 0; k < d->n_parts && !d->result->failed; k++) TG_TRY(check_jvp(r, k, &state));
    return d->result->failed ? TG_OK : check_second(r);
}
