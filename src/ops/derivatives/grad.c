/* tg_grad: returns gradients of leaves and of results as tensors of the tape. */
#include <stdio.h>
#include <tapegrad/backward.h>

#include "autograd/gradients.h"
#include "autograd/targets.h"
#include "base/options.h"
#include "ops/derivatives/grad_graph.h"
#include "placement/rule.h"

/* Used if create_graph is set: returns a new handle on g or, if g is NULL, zeros with the shape of x. Records this op
 * with grad mode on, whatever the tape's mode is. */
static tg_tensor *graph_result(tg_tape *t, const tg_tensor *x, tg_tensor *g) {
    bool grad = tg_tape_set_grad_mode(t, true);
    tg_tensor *y = g ? tg_grad_graph_view(t, g) : tg_full_like(t, x, 0);
    tg_tape_set_grad_mode(t, grad);
    return y;
}

/* Returns the target's gradient as a tensor of the tape. If no root depends on the target, returns zeros if
 * allow_unused is set, and fails otherwise. */
static tg_tensor *target_result(tg_tape *t, tg_target *target, const tg_grad_opts *opts, tg_tensor *const *inputs) {
    tg_ctx *ctx = t->ctx;
    tg_tensor *x = target->x, *g = target->g;
    if (!target->reached) {
        char what[160];
        int i = 0;
        tg_describe(x, what, sizeof what);
        while (inputs[i] != x) i++;
        if (!opts->allow_unused) {
            tg_fail(ctx, TG_ERR_STATE, "tg_grad: no root depends on input %d, %s; .allow_unused gives zeros", i, what);
            return tg_inert(ctx);
        }
        if (opts->create_graph) return graph_result(t, x, NULL);
        g = target->g = tg_temp_empty(ctx, x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
        if (!g || ctx->run.ops->fill(ctx, tg_array_of(g), 0) != TG_OK) return tg_inert(ctx);
    }
    if (opts->create_graph) return graph_result(t, x, g);
    if (tg_gradient_own(&target->g) != TG_OK) return tg_inert(ctx);
    g = target->g;
    tg_tensor *y = tg_tape_alias(t, g);
    if (y) y->place = tg_placement_of_gradient(x, false);
    return y ? y : tg_inert(ctx);
}

tg_status tg_check_inputs(tg_tape *t, tg_tensor *const *inputs, int n, const char *who) {
    tg_ctx *ctx = t->ctx;
    char what[64];
    snprintf(what, sizeof what, "%s: an input", who);
    for (int i = 0; i < n; i++) {
        TG_TRY(tg_check(ctx, inputs[i], what));
        if (inputs[i]->tape && inputs[i]->tape != t)
            return tg_fail(ctx, TG_ERR_HANDLE,
                           "%s: input %d belongs to another tape; pass a tensor of this one or of the context", who, i);
        if (!(inputs[i]->flags & TG_F_REQUIRES_GRAD))
            return tg_fail(ctx, TG_ERR_STATE, "%s: input %d does not need a gradient; call tg_set_requires_grad before "
                           "the ops that use it", who, i);
    }
    return TG_OK;
}

static tg_status check_grad_call(tg_tape *t, tg_tensor *const *roots, int n_roots, tg_tensor *const *inputs, int n,
                                 tg_tensor **grads) {
    tg_ctx *ctx = t->ctx;
    if (n_roots <= 0 || n <= 0 || !roots || !inputs || !grads)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_grad: %s, %s, expected one or more of each; roots, inputs and grads must not be NULL",
                       tg_count(n_roots, "root").text, tg_count(n, "input").text);
    return tg_check_inputs(t, inputs, n, "tg_grad");
}

/* Makes one target for each different input, and returns the number of targets. `target_of` receives the index of each
 * input's target, sorted by input. */
static int number_inputs(tg_tensor *const *inputs, int n_inputs, tg_target *targets, tg_keyed *target_of) {
    int n = 0;
    for (int i = 0; i < n_inputs; i++) target_of[i] = (tg_keyed){inputs[i], -1};
    tg_keyed_sort(target_of, n_inputs);
    for (int i = 0; i < n_inputs; i++) {
        tg_keyed *k = tg_keyed_find(target_of, n_inputs, inputs[i]);
        if (k->at >= 0) continue;
        k->at = n;
        targets[n++] = (tg_target){.x = inputs[i]};
    }
    return n;
}

static tg_status grad(tg_tape *t, tg_tensor *const *roots, int n_roots, tg_tensor *const *inputs, int n_inputs,
                      tg_tensor **grads, const tg_grad_opts *given) {
    TG_TRY(tg_tape_check_with(t, roots, n_roots, "tg_grad"));
    tg_ctx *ctx = t->ctx;
    tg_grad_opts opts;
    TG_TRY(tg_options(ctx, &opts, &tg_grad_opts_struct, given, "tg_grad: the options"));
    TG_TRY(check_grad_call(t, roots, n_roots, inputs, n_inputs, grads));
    tg_target *targets = tg_tape_alloc(t, (size_t)n_inputs * sizeof *targets);
    tg_keyed *target_of = tg_tape_alloc(t, (size_t)n_inputs * sizeof *target_of);
    if (!targets || !target_of) return ctx->run.status;
    int n = number_inputs(inputs, n_inputs, targets, target_of);
    tg_pass_opts o = {.seeds = opts.seeds,
                      .targets = targets,
                      .n_targets = n,
                      .retain = opts.retain,
                      .graph = opts.create_graph ? &tg_grad_graph : NULL};
    tg_backward_run(t, roots, n_roots, &o, "tg_grad");
    for (int k = 0; k < n; k++) {
        targets[k].given = ctx->run.status == TG_OK ? target_result(t, &targets[k], &opts, inputs) : tg_inert(ctx);
        if (!opts.create_graph) tg_temp_free(targets[k].g);
    }
    for (int i = 0; i < n_inputs; i++) grads[i] = targets[tg_keyed_find(target_of, n_inputs, inputs[i])->at].given;
    tg_tape_give(t, targets, (size_t)n_inputs * sizeof *targets);
    tg_tape_give(t, target_of, (size_t)n_inputs * sizeof *target_of);
    return ctx->run.status;
}

tg_status tg_grad(tg_tape *t, tg_tensor *const *roots, int n_roots, tg_tensor *const *inputs, int n_inputs,
                  tg_tensor **grads, const tg_grad_opts *opts) {
    tg_status s = tg_backward_ended(t, grad(t, roots, n_roots, inputs, n_inputs, grads, opts));
    if (s != TG_OK)
        for (int i = 0; grads && i < n_inputs; i++) grads[i] = tg_tape_inert(t, roots, n_roots);
    return s;
}
