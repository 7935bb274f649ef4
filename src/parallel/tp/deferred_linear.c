/* A linear layer without tensor parallelism whose weight gradients wait in a list for tg_wgrads_run. A GPT made with
 * TG_GPT(.wgrad = TG_WGRAD_DEFERRED) uses it for weights that no axis shards. */
#include "base/memory/host_memory.h"
#include "parallel/tp/layers.h"

typedef struct deferred_linear {
    tg_ctx *ctx;
    tg_wgrads *wgrads;
} deferred_linear;

static void linear_free(void *state) {
    deferred_linear *s = state;
    tg_wgrads_free(s->wgrads);
    tg_host_free(s->ctx, s, sizeof *s);
}

static tg_tensor *forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    const deferred_linear *s = m->state;
    return tg_linear_with_grad_accumulation(t, x, tg_module_own(m, "weight"), tg_module_own(m, "bias"), NULL,
                                            TG_LINEAR_GRAD(.deferred = s->wgrads));
}

static const tg_module_ops deferred_linear_ops = {
    .size = sizeof(tg_module_ops), .kind = "linear", .forward = forward, .free = linear_free,
    .describe = tg_linear_describe};

tg_module *tg_deferred_linear_new(tg_ctx *ctx, int64_t in, int64_t out, bool bias, double std) {
    deferred_linear *s = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (s) *s = (deferred_linear){.ctx = ctx, .wgrads = tg_wgrads_new(ctx, TG_NONE)};
    return tg_linear_module(s ? ctx : NULL, &deferred_linear_ops, s, in, out, bias, std);
}

tg_wgrads *tg_deferred_linear_wgrads(const tg_module *m) {
    return m && m->ops == &deferred_linear_ops ? ((const deferred_linear *)m->state)->wgrads : NULL;
}
