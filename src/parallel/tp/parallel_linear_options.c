/* The options of linear layers over shards: what a layer may be asked for, and the sizes that follow. */
#include "base/options.h"
#include "parallel/tp/layers.h"

#include <math.h>
#include <stdio.h>

#include "nn/init/init.h"
#include "placement/placing.h"
#include "parallel/parallel.h"

/* Returns whether the layer or the whole model asks for sequence parallelism, even if the axis has one rank. Checks use
 * it, so that options which exclude each other fail at any number of ranks. */
static bool asks_for_sp(const tg_parallel_linear *s) {
    if (s->o.expert) return false;
    if (s->o.sequence_parallel != TG_AUTO) return s->o.sequence_parallel;
    return s->axis == TG_TP && s->p->o.sequence_parallel;
}

/* Returns whether the layer makes its weight and gives it initial values. */
static bool draws(const tg_parallel_linear *s) { return !s->o.weight && !s->o.no_weight && !s->o.no_init; }

/* Returns whether each rank draws the random numbers of its own part of the weight. */
static bool draws_part(const tg_parallel_linear *s) {
    return draws(s) && (s->o.init ? tg_init_draws_part(s->o.init) : s->o.std != 0);
}

/* Checks the options that say where the weight comes from, and copies the initial values. */
static tg_status check_weight_options(tg_parallel_linear *s, const char *who) {
    const tg_parallel_linear_opts usual = {TG_PARALLEL_LINEAR_DEFAULTS}, *o = &s->o;
    if (o->weight && o->no_weight)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: weight is given and no_weight is set; expected one of them", who);
    if (o->dtype && !tg_is_float(o->dtype))
        return tg_fail(s->ctx, TG_ERR_DTYPE, "%s: dtype is %s, expected a floating-point dtype", who,
                       tg_dtype_name(o->dtype));
    if ((o->weight || o->no_weight) && o->no_init)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: no_init is set, but %s; leave it false", who,
                       o->weight ? "the weight is given, and keeps its values" : "no_weight leaves nothing to draw");
    if ((!draws(s) || o->init) && o->std != usual.std)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: std is %g, but %s; leave std at its default", who, o->std,
                       draws(s) ? "init is given" : "the layer draws no weight");
    TG_TRY(tg_layer_read_init(s->p, who, "init", o->dtype, draws(s), o->init, &s->init));
    return tg_layer_read_init(s->p, who, "bias_init", o->dtype, !o->no_bias && !o->no_init, o->bias_init,
                              &s->bias_init);
}

/* Fails if an option is set that only another kind of layer has, which the message names. */
static tg_status check_kind(const tg_parallel_linear *s, const char *who) {
    const tg_parallel_linear_opts usual = {TG_PARALLEL_LINEAR_DEFAULTS}, *o = &s->o;
    const tg_linear_mode mode = s->kind->mode;
    const bool whole = mode == TG_LINEAR_DUPLICATED, norm = s->kind->norm;
    const struct {
        const char *name, *kind;
        bool set;
    } foreign[] = {
        {"gather_output", "column layer", o->gather_output && mode != TG_LINEAR_COLUMN},
        {"no_dgrad_reduce", "column layer", o->no_dgrad_reduce && mode != TG_LINEAR_COLUMN},
        {"input_is_whole", "row layer", o->input_is_whole && mode != TG_LINEAR_ROW},
        {"strides", "column and the row layer", o->strides != usual.strides && whole},
        {"chunks", "column and the row layer", o->chunks != usual.chunks && whole},
        {"axis", "column and the row layer", o->axis != usual.axis && whole},
        {"expert", "column and the row layer", o->expert && (whole || norm)},
        {"rms_norm", "layer with a norm", o->rms_norm && !norm},
        {"zero_centered", "layer with a norm", o->zero_centered && !norm},
        {"norm_eps", "layer with a norm", o->norm_eps != usual.norm_eps && !norm},
    };
    for (int i = 0; i < TG_LEN(foreign); i++)
        if (foreign[i].set)
            return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: %s is set, but it is an option of the %s only", who,
                           foreign[i].name, foreign[i].kind);
    return TG_OK;
}

/* Fails for options that exclude each other or sequence parallelism. */
static tg_status check_conflicts(const tg_parallel_linear *s, const char *who) {
    const tg_parallel_linear_opts *o = &s->o;
    if (o->no_dgrad_reduce && asks_for_sp(s))
        return tg_fail(s->ctx, TG_ERR_ARGUMENT,
                       "%s: no_dgrad_reduce is set, but under sequence parallelism the gradient of x is always reduced "
                       "and scattered; leave it false, or set sequence_parallel to 0",
                       who);
    if (o->chunks > 1 && !asks_for_sp(s))
        return tg_fail(s->ctx, TG_ERR_ARGUMENT,
                       "%s: chunks is %d, but without sequence parallelism no rows are gathered or scattered; set "
                       "sequence_parallel, or leave chunks at 1",
                       who, o->chunks);
    if (o->skip_bias_add && o->no_bias)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT,
                       "%s: skip_bias_add and no_bias are set, but without a bias there is none to skip; set one of "
                       "them",
                       who);
    if (o->sequence_parallel == 1 && o->expert)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT,
                       "%s: sequence_parallel is 1, but the token dispatch gathers the rows of an expert; leave it "
                       "TG_AUTO",
                       who);
    if (o->input_is_whole && s->sp)
        return tg_fail(s->ctx, TG_ERR_STATE,
                       "%s: input_is_whole is set, but under sequence parallelism x is not the same on every rank; "
                       "expected x sharded on its last dim, and input_is_whole false",
                       who);
    if (s->kind->mode == TG_LINEAR_ROW && s->expert_comm && !o->skip_bias_add && !o->no_bias)
        return tg_fail(s->ctx, TG_ERR_STATE,
                       "%s: the output of an expert is reduced outside of the layer, so the layer cannot add a bias; "
                       "set skip_bias_add or no_bias",
                       who);
    return TG_OK;
}

/* Fails for numbers that are out of range. */
static tg_status check_numbers(const tg_parallel_linear *s, const char *who) {
    const tg_parallel_linear_opts *o = &s->o;
    /* This rank's size of the sharded dim. */
    int64_t local = s->kind->mode == TG_LINEAR_ROW ? s->local_in : s->local_out;
    if (o->deferred_wgrads < TG_NONE)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT,
                       "%s: deferred_wgrads is %d, expected 0 or more, or TG_NONE for no limit", who,
                       o->deferred_wgrads);
    if (o->strides < 1 || local % o->strides)
        return tg_fail(s->ctx, TG_ERR_SHAPE,
                       "%s: strides is %d, expected 1 or more, and a divisor of %lld, this rank's size of the sharded "
                       "dim",
                       who, o->strides, (long long)local);
    if (!(o->std >= 0 && isfinite(o->std)))
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: std is %g, expected a finite number, 0 or more", who, o->std);
    if (o->sequence_parallel < TG_AUTO || o->sequence_parallel > 1)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: sequence_parallel is %d, expected 0, 1 or TG_AUTO", who,
                       o->sequence_parallel);
    if (o->chunks < 1 || o->chunks > TG_MOST_CHUNKS)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: chunks is %d, expected 1 to %d", who, o->chunks, TG_MOST_CHUNKS);
    if (!(o->norm_eps >= 0 && isfinite(o->norm_eps)))
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: norm_eps is %g, expected a finite number, 0 or more", who,
                       o->norm_eps);
    return TG_OK;
}

static tg_status check_options(tg_parallel_linear *s, const char *who) {
    TG_TRY(check_weight_options(s, who));
    TG_TRY(check_conflicts(s, who));
    return check_numbers(s, who);
}

/* Logs a warning if sequence parallelism is asked for but has no effect. */
static void note_no_sp(const tg_parallel_linear *s, const char *who) {
    char text[160];
    if (!s->ctx->log || !asks_for_sp(s) || tg_parallel_size(s->p, s->axis) > 1) return;
    snprintf(text, sizeof text, "%s: sequence_parallel has no effect, because %s has one rank", who,
             tg_axis_name(s->axis));
    s->ctx->log(s->ctx->log_user, TG_LOG_WARNING, text);
}

/* Sets the sizes of this rank's weight. */
static tg_status divide(tg_parallel_linear *s, const char *who) {
    int n = tg_parallel_size(s->p, s->axis);
    bool out = s->kind->mode == TG_LINEAR_COLUMN, in = s->kind->mode == TG_LINEAR_ROW;
    if (out) TG_TRY(tg_layer_divide(s->p, who, "out", s->out, s->axis));
    if (in) TG_TRY(tg_layer_divide(s->p, who, "in", s->in, s->axis));
    if (s->in <= 0 || s->out <= 0)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: %s is %lld, expected a positive number", who,
                       s->in <= 0 ? "in" : "out", (long long)(s->in <= 0 ? s->in : s->out));
    int experts = s->o.expert ? tg_parallel_size(s->p, TG_EP) : 1; /* their parameters are stacked along out */
    if (s->out > INT64_MAX / experts)
        return tg_fail(s->ctx, TG_ERR_SHAPE, "%s: out is %lld, so that of the %d ranks of ep overflows", who,
                       (long long)s->out, experts);
    s->local_in = in ? s->in / n : s->in;
    s->local_out = out ? s->out / n : s->out;
    return TG_OK;
}

tg_status tg_parallel_linear_read(tg_parallel_linear *s, const char *who, const tg_parallel_linear_opts *given) {
    TG_TRY(tg_options(s->ctx, &s->o, &tg_parallel_linear_opts_struct, given, who));
    TG_TRY(check_kind(s, who));
    s->axis = s->o.expert && s->o.axis == TG_TP ? TG_ETP : s->o.axis;
    if (!s->o.expert) TG_TRY(tg_layer_check_axis(s->p, who, s->axis, draws_part(s)));
    if (s->o.expert && s->axis != TG_ETP)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: axis is %d (%s), but expert is set; expected TG_TP or TG_ETP", who,
                       (int)s->axis, tg_axis_name(s->axis));
    s->comm = tg_parallel_comm(s->p, s->axis);
    int n = tg_parallel_size(s->p, s->axis);
    TG_TRY(divide(s, who));
    s->expert_comm = s->o.expert && (n > 1 || tg_parallel_size(s->p, TG_EP) > 1);
    s->sp = asks_for_sp(s) && n > 1;
    TG_TRY(check_options(s, who));
    note_no_sp(s, who);
    if (s->o.deferred_wgrads) s->deferred = tg_wgrads_new(s->ctx, s->o.deferred_wgrads);
    return s->ctx->run.status;
}
