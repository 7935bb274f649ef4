/* Linear layers over shards: their parameters and placements, and one call with overrides
 * (tg_parallel_linear_apply). */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "parallel/tp/layers.h"

#include <tapegrad/megatron.h>

#include <stdio.h>

#include "tape/tape.h"
#include "placement/placing.h"
#include "parallel/parallel.h"

/* ---- Creation ---- */

/* Creates a parameter with the values that `init` describes or, if init is NULL, random numbers of standard deviation
 * std; with the option no_init it stays 0. The experts of all ep ranks are stacked along dim 0 of one global tensor. */
static tg_tensor *param(const tg_parallel_linear *s, const char *name, tg_shape shape, double std, const tg_init *init,
                        tg_placement at, const char *who) {
    tg_tensor *x;
    if (s->o.no_init || init) std = 0;
    if (s->o.expert) {
        shape.dim[0] *= tg_parallel_size(s->p, TG_EP);
        x = tg_param_new_placed(s->p, name, s->o.dtype, shape, std,
                                TG_PLACES({TG_EP, TG_SHARD(0)}, {TG_ETP, at}, {TG_EDP, TG_R}));
    } else {
        x = tg_layer_param(s->p, name, s->o.dtype, shape, std, s->axis, at);
    }
    return tg_layer_init(x, init, who);
}

/* Fails unless w has the shape of this rank's weight. */
static tg_status check_weight(const tg_parallel_linear *s, const char *who, const tg_tensor *w) {
    char got[160], by[16];
    TG_TRY(tg_check(s->ctx, w, who));
    if (w->ndim == 2 && w->shape[0] == s->local_out && w->shape[1] == s->local_in) return TG_OK;
    tg_describe(w, got, sizeof got);
    snprintf(by, sizeof by, " / %s", tg_axis_name(s->axis));
    return tg_fail(s->ctx, TG_ERR_SHAPE,
                   "%s: the weight given is %s, expected [%lld, %lld]: [out%s, in%s] of a layer from %lld to %lld", who,
                   got, (long long)s->local_out, (long long)s->local_in, s->local_out < s->out ? by : "",
                   s->local_in < s->in ? by : "", (long long)s->in, (long long)s->out);
}

/* Each returns a placement on the layer's axis: that of a shard along `dim`, of the weight, and of the bias. */
static tg_placement place_of_shard(const tg_parallel_linear *s, int dim) {
    return s->o.strides > 1 ? TG_SHARD_STRIDED((int8_t)dim, s->o.strides) : TG_SHARD((int8_t)dim);
}
static tg_placement place_of_weight(const tg_parallel_linear *s) {
    if (s->kind->mode == TG_LINEAR_DUPLICATED) return s->sp ? TG_R : TG_I;
    return place_of_shard(s, s->kind->mode == TG_LINEAR_ROW);
}
static tg_placement place_of_bias(const tg_parallel_linear *s) {
    if (s->kind->mode == TG_LINEAR_COLUMN) return place_of_shard(s, 0);
    return s->sp ? TG_R : TG_I;
}

/* Adds the weight and the bias, if the layer has them. */
static void add_params(tg_module *m, const char *who) {
    tg_parallel_linear *s = m->state;
    const tg_init *init = s->o.init ? &s->init : NULL, *bias_init = s->o.bias_init ? &s->bias_init : NULL;
    if (s->o.weight) {
        if (check_weight(s, who, s->o.weight) == TG_OK) tg_module_add_param(m, "weight", s->o.weight);
    } else if (!s->o.no_weight) {
        const tg_shape shape = {2, {s->out, s->in}};
        tg_layer_add(m, "weight", param(s, "weight", shape, s->o.std, init, place_of_weight(s), who));
    }
    if (s->o.no_bias || !tg_ok(s->ctx)) return;
    tg_layer_add(m, "bias", param(s, "bias", (tg_shape){1, {s->out}}, 0, bias_init, place_of_bias(s), who));
}

/* Each rank norms its own rows under sequence parallelism, and gets only its share of the gradient of the norm's result
 * with no_dgrad_reduce. */
tg_placement tg_linear_norm_place(const tg_parallel_linear *s) {
    return s->sp || s->o.no_dgrad_reduce ? TG_R : TG_I;
}

/* Adds the weight and the bias of the norm. */
static void add_norm(tg_module *m) {
    tg_parallel_linear *s = m->state;
    tg_placement at = tg_linear_norm_place(s);
    for (int i = 0; i < (s->o.rms_norm ? 1 : 2) && tg_ok(s->ctx); i++) {
        const char *name = i ? "layer_norm_bias" : "layer_norm_weight";
        tg_tensor *x = tg_layer_param(s->p, name, s->o.dtype, (tg_shape){1, {s->in}}, 0, s->axis, at);
        if (i == 0 && !s->o.zero_centered && tg_ok(s->ctx)) s->ctx->run.ops->fill(s->ctx, tg_array_of(x), 1);
        tg_layer_add(m, name, x);
    }
}

void tg_parallel_linear_free(void *state) {
    tg_parallel_linear *s = state;
    tg_wgrads_free(s->deferred);
    tg_symmetric_drop(s->symmetric);
    tg_host_free(s->ctx, s, sizeof *s);
}

tg_module *tg_parallel_linear_new(const tg_parallel *p, const tg_linear_kind *kind, int64_t in, int64_t out,
                                  const tg_parallel_linear_opts *opts, const char *who) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    tg_parallel_linear *s = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (!s) return tg_layer_checked(NULL);
    *s = (tg_parallel_linear){.ctx = ctx, .p = p, .kind = kind, .in = in, .out = out};
    if (tg_parallel_linear_read(s, who, opts) != TG_OK) {
        tg_parallel_linear_free(s);
        return tg_layer_checked(NULL);
    }
    tg_module *m = tg_module_new(ctx, &kind->ops, s);
    if (tg_module_ok(m) && kind->norm) add_norm(m);
    if (tg_module_ok(m)) add_params(m, who);
    return tg_layer_checked(m);
}

tg_module *tg_nn_parallel_linear(const tg_parallel *p, tg_linear_mode mode, int64_t in, int64_t out,
                                 const tg_parallel_linear_opts *opts) {
    static const tg_linear_kind *const kinds[] = {&tg_column_linear, &tg_row_linear, &tg_duplicated_linear};
    tg_ctx *ctx = tg_parallel_ctx(p);
    if ((unsigned)mode < TG_LEN(kinds))
        return tg_parallel_linear_new(p, kinds[mode], in, out, opts, "tg_nn_parallel_linear");
    if (tg_ok(ctx))
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "tg_nn_parallel_linear: mode is %d, expected TG_LINEAR_COLUMN, _ROW or _DUPLICATED", (int)mode);
    return tg_layer_checked(NULL);
}

size_t tg_parallel_linear_describe(const tg_module *m, char *buf, size_t n) {
    const tg_parallel_linear *s = m->state;
    size_t at = 0;
    tg_text(buf, n, &at, "in %lld, out %lld%s%s%s", (long long)s->in, (long long)s->out, s->o.no_bias ? "" : ", bias",
            s->kind->mode == TG_LINEAR_DUPLICATED ? ", whole on each rank of " : ", over ", tg_axis_name(s->axis));
    return at;
}

/* ---- One call ---- */

/* Only layers of these kinds have a state that this function frees. */
bool tg_is_parallel_linear(const tg_module *m) { return m && m->ops && m->ops->free == tg_parallel_linear_free; }

/* Returns the weight of one call: `given` after a check of its shape, or the module's own if `given` is NULL.
 * Returns NULL after recording the error. */
static tg_tensor *weight_of(const tg_module *m, tg_tensor *given) {
    const tg_parallel_linear *s = m->state;
    if (given) return check_weight(s, m->ops->kind, given) == TG_OK ? given : NULL;
    tg_tensor *own = tg_module_own(m, "weight");
    if (!own)
        tg_fail(
            s->ctx, TG_ERR_ARGUMENT,
            "%s: the layer was made with no_weight and this call gives none; pass a weight to tg_parallel_linear_apply",
            m->ops->kind);
    return own;
}

/* Returns the module that m holds in wrappers, such as the layer of an adapter; m itself if it is no wrapper. */
static tg_module *innermost(tg_module *m) {
    while (tg_module_wrapped(m)) m = tg_module_wrapped(m);
    return m;
}

tg_tensor *tg_parallel_linear_bias(const tg_module *m) {
    return tg_parallel_linear_of(m)->o.skip_bias_add ? NULL : tg_module_own(m, "bias");
}

/* A wrapper is refused, because its own part, such as the product of an adapter, is not that of another weight. */
static tg_status refuse_kind(tg_module *m) {
    bool holds = tg_is_parallel_linear(innermost(m));
    return tg_fail(m->ctx, TG_ERR_ARGUMENT,
                   "tg_parallel_linear_apply: the module is a \"%s\"%s, expected a layer of tg_nn_parallel_linear or "
                   "tg_nn_norm_linear%s",
                   tg_module_kind(m), holds ? " that holds a layer" : "",
                   holds ? "; call it by tg_module_forward or tg_parallel_linear_pair, and gather its output by "
                           "tg_gather_from_tp"
                         : "");
}

static tg_status check_apply(tg_module *m, const tg_tape *t, int gather) {
    if (!tg_is_parallel_linear(m)) return refuse_kind(m);
    if (!t || t->ctx != m->ctx)
        return tg_fail(m->ctx, t ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "tg_parallel_linear_apply: %s",
                       t ? "tape and module are of different contexts" : "the tape is NULL");
    if (gather > 0 && tg_parallel_linear_of(m)->kind->mode != TG_LINEAR_COLUMN)
        return tg_fail(
            m->ctx, TG_ERR_ARGUMENT,
            "tg_parallel_linear_apply: gather_output is above 0, but only a column layer can gather its output");
    return TG_OK;
}

/* Runs the layer without its hooks. `given` replaces the layer's own weight, unless it is NULL. gather_output > 0
 * gathers the output of a column layer, 0 does not, and < 0 does what the layer's options say. */
static tg_tensor *run(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *given, int gather_output) {
    const tg_parallel_linear *s = tg_parallel_linear_of(m);
    tg_tensor *w = weight_of(m, given);
    if (!w) return tg_inert(m->ctx);
    tg_tensor *y = s->kind->run(m, t, x, w);
    bool gathers = gather_output < 0 ? s->o.gather_output : gather_output > 0;
    return gathers ? tg_gather_from_tp(t, y, s->comm) : y; /* only a column layer's options and calls can say so */
}

/* Runs the layer, with its hooks, in the scope that is open. */
static tg_tensor *run_with_hooks(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *weight, int gather_output) {
    bool training;
    tg_tensor *y = NULL;
    if (tg_module_enter(m, t, &x, 1, &training) == TG_OK) y = run(m, t, x, weight, gather_output);
    return tg_module_leave(m, t, &y, 1, training) == TG_OK ? y : tg_inert(m->ctx);
}

tg_tensor *tg_parallel_linear_forward(tg_module *m, tg_tape *t, tg_tensor *x) { return run(m, t, x, NULL, -1); }

static tg_tensor *apply(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *weight, int gather_output,
                        const void *site) {
    if (!tg_module_ok(m)) return tg_inert(m ? m->ctx : &tg_dead_ctx);
    if (check_apply(m, t, gather_output) != TG_OK) return tg_inert(m->ctx);
    if (tg_scope_open_at(t, m->ops->kind, site) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(m->ctx);
    tg_tensor *y = run_with_hooks(m, t, x, weight, gather_output);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(m->ctx);
}

tg_tensor *tg_parallel_linear_apply(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *weight, int gather_output) {
    tg_tensor *y = apply(m, t, x, weight, gather_output, TG_SITE);
    if (tg_is_parallel_linear(m)) tg_comm_note_missed(tg_parallel_linear_of(m)->comm, m->ctx->run.status);
    return y;
}

tg_tensor *tg_parallel_linear_pair(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor **bias) {
    if (bias) *bias = NULL;
    if (!tg_module_ok(m)) return tg_inert(m ? m->ctx : &tg_dead_ctx);
    if (!bias) {
        tg_fail(m->ctx, TG_ERR_ARGUMENT,
                "tg_parallel_linear_pair: bias is NULL, expected the address at which the bias is returned");
        return tg_inert(m->ctx);
    }
    tg_tensor *y = tg_module_forward(m, t, x);
    m = innermost(m);
    if (!tg_is_parallel_linear(m) || !tg_ok(m->ctx)) return y;
    const tg_parallel_linear *s = tg_parallel_linear_of(m);
    tg_tensor *own = s->o.skip_bias_add ? tg_module_own(m, "bias") : NULL;
    *bias = own && s->o.gather_output ? tg_gather_from_tp(t, own, s->comm) : own;
    return y;
}

/* Runs every list even after an error: a list that cannot run reports this to the ranks that wait for its
 * communication. */
tg_status tg_wgrads_drain(tg_module *m) {
    if (!m) return TG_ERR_ARGUMENT;
    tg_wgrads *waiting = tg_is_parallel_linear(m) ? tg_parallel_linear_of(m)->deferred : tg_deferred_linear_wgrads(m);
    if (waiting) tg_wgrads_run(waiting);
    for (const tg_module_entry *e = m->first; e; e = e->next)
        if (e->child) tg_wgrads_drain(e->child);
    return tg_ctx_status(m->ctx);
}
