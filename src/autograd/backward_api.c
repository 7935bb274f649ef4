/* tg_backward and tg_backward_with: the checks of their arguments. */
#include "autograd/backward.h"
#include "base/options.h"

#include <tapegrad/backward.h>

tg_status tg_backward(tg_tape *t, tg_tensor *root) {
    tg_pass_opts o = {0};
    tg_status s = tg_tape_check_with(t, &root, 1, "tg_backward");
    return tg_backward_ended(t, s == TG_OK ? tg_backward_run(t, &root, 1, &o, "tg_backward") : s);
}

static tg_status backward_with(tg_tape *t, tg_tensor *const *roots, int n, const tg_backward_opts *given) {
    TG_TRY(tg_tape_check_with(t, roots, n, "tg_backward_with"));
    tg_ctx *ctx = t->ctx;
    tg_backward_opts opts;
    TG_TRY(tg_options(ctx, &opts, &tg_backward_opts_struct, given, "tg_backward_with: the options"));
    if (n <= 0 || !roots)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_backward_with: %s in the array at %p, expected one or more",
                       tg_count(n, "root").text, (const void *)roots);
    if (opts.n_inputs < 0 || (opts.n_inputs && !opts.inputs))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_backward_with: %s in the array at %p, expected 0 or more in an array",
                       tg_count(opts.n_inputs, "input").text, (const void *)opts.inputs);
    for (int i = 0; i < opts.n_inputs; i++) {
        TG_TRY(tg_check(ctx, opts.inputs[i], "tg_backward_with: an input"));
        if (opts.inputs[i]->tape && opts.inputs[i]->tape != t)
            return tg_fail(ctx, TG_ERR_HANDLE,
                           "tg_backward_with: input %d belongs to another tape; pass a leaf of this one or of the "
                           "context",
                           i);
        if (opts.inputs[i]->node || !(opts.inputs[i]->flags & TG_F_REQUIRES_GRAD))
            return tg_fail(ctx, TG_ERR_STATE,
                           "tg_backward_with: input %d is not a leaf that needs a gradient; tg_grad takes results", i);
    }
    tg_pass_opts o = {.seeds = opts.seeds, .only = opts.inputs, .n_only = opts.n_inputs, .retain = opts.retain};
    return tg_backward_run(t, roots, n, &o, "tg_backward_with");
}

tg_status tg_backward_with(tg_tape *t, tg_tensor *const *roots, int n, const tg_backward_opts *opts) {
    return tg_backward_ended(t, backward_with(t, roots, n, opts));
}
