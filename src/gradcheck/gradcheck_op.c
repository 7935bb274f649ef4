/* tg_gradcheck_op: checks one sample of an op. */
#include <stdio.h>

#include "base/options.h"
#include "gradcheck/gradcheck.h"
#include "catalog/samples.h"

/* Sets the tolerances that the caller did not choose. Samples of the op table stay in the smooth range of their op,
 * where differences are exact to ten digits. */
static void default_tolerances(tg_diff *d, const tg_sample *s, const tg_gradcheck_opts *o) {
    if (o->rtol == TG_AUTO) d->rtol = s->rtol != 0 ? s->rtol : 1e-6;
    if (o->atol == TG_AUTO) d->atol = 1e-3 * d->rtol;
}

/* Runs the sample once to count its outputs, because an op may decide their number itself. */
static int count_outputs(tg_case *c, tg_tape *t, bool *differentiable) {
    tg_tensor *out[TG_CASE_OUTPUTS];
    int n = 0;
    tg_rng rng = c->ctx->rng;
    uint64_t drawn = c->ctx->keys.counter;
    *differentiable = false;
    if (tg_case_run(c, t, c->input, c->n_in, out, c->n_out) == TG_OK)
        for (; n < c->n_out && out[n]; n++) *differentiable |= out[n]->dtype == TG_F64 && tg_requires_grad(out[n]);
    c->ctx->rng = rng;
    c->ctx->keys.counter = drawn;
    tg_tape_reset(t);
    return n;
}

/* Checks the sample if one of its inputs and one of its outputs are differentiable. */
static tg_status check(tg_check_run *r, tg_case *c) {
    bool differentiable = false;
    r->n_out = count_outputs(c, r->t, &differentiable);
    TG_TRY(r->ctx->run.status);
    for (int i = 0; i < c->n_in; i++)
        if (c->input[i] && c->input[i]->dtype == TG_F64 && tg_requires_grad(c->input[i]))
            return differentiable ? tg_check_tensors(r) : TG_OK;
    return TG_OK;
}

/* Checks a sample that the op must refuse: it passes if the call fails with the expected status. */
static tg_status check_refused(tg_check_run *r, tg_case *c) {
    tg_ctx *ctx = r->ctx;
    tg_tensor *out[TG_CASE_OUTPUTS];
    tg_case_run(c, r->t, c->input, c->n_in, out, c->n_out);
    tg_status got = tg_ctx_status(ctx), wanted = c->sample->refused;
    if (got == wanted)
        tg_ctx_clear(ctx);
    else if (got == TG_OK)
        tg_diff_fail(&r->d, "unknown", "the call was accepted; it must be refused with %s", tg_status_name(wanted));
    if (got != TG_OK || !r->d.result->failed) return tg_ctx_status(ctx);
    return tg_fail(ctx, TG_ERR_GRADIENT, "%s", r->d.result->report);
}

/* Checks one sample. Differences are taken on row-major copies of the inputs, because elements that share memory
 * cannot be moved one by one. */
static tg_status check_sample(tg_check_run *r, const tg_op *op, int sample) {
    tg_case_opts o = {.dtype = TG_F64, .seed = r->d.seed + 1};
    tg_case c, rows;
    TG_TRY(tg_case_open(&c, r->ctx, op, sample, &o));
    o.rows = true;
    tg_status s = tg_case_open(&rows, r->ctx, op, sample, &o);
    r->t = tg_tape_new(r->ctx);
    r->fn = tg_case_run;
    r->state = &c;
    r->input = c.input;
    r->at = rows.input;
    r->n_in = c.n_in;
    if (s == TG_OK) s = c.sample->refused ? check_refused(r, &c) : check(r, &c);
    tg_tape_free(r->t);
    tg_case_close(&rows);
    tg_case_close(&c);
    return s;
}

static tg_status check_op(tg_ctx *ctx, const tg_op *op, int sample, tg_gradcheck_info *found,
                          const tg_gradcheck_opts *opts) {
    if (!op) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gradcheck_op: the op is NULL");
    const tg_sample *s = tg_sample_at(op, sample);
    if (!s)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gradcheck_op: %s has no sample %d; it has %s, numbered from 0",
                       op->name, sample, tg_count(op->n_samples, "sample").text);
    if (s->ranks > 1)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED, "tg_gradcheck_op: sample %d of %s needs %s, but it would run on one",
                       sample, op->name, tg_count(s->ranks, "rank").text);
    tg_check_run r = {.d = {.result = found}, .ctx = ctx};
    tg_gradcheck_opts o;
    const char *what;
    char name[160];
    if (!tg_diff_options(&r.d, opts, &what)) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gradcheck_op: %s", what);
    tg_options_complete(&o, &tg_gradcheck_opts_struct, opts);
    default_tolerances(&r.d, s, &o);
    if (!o.name) {
        snprintf(name, sizeof name, "%s (%s)", op->name, s->note ? s->note : "");
        r.d.name = name;
    }
    return check_sample(&r, op, sample);
}

tg_status tg_gradcheck_op(tg_ctx *ctx, const tg_op *op, int sample, tg_gradcheck_info *info,
                          const tg_gradcheck_opts *opts) {
    tg_gradcheck_info found = TG_GRADCHECK_INFO();
    if (!tg_ok(ctx)) return ctx ? tg_ctx_status(ctx) : TG_ERR_ARGUMENT;
    TG_TRY(tg_gradcheck_info_check(ctx, info, "tg_gradcheck_op"));
    return tg_gradcheck_info_give(info, &found, check_op(ctx, op, sample, &found, opts));
}
