/* The MLP of a layer: one or two projections, an activation, and a projection back. Activations are [s, b, h]. */
#include <tapegrad/recompute.h>

#include "models/lm/lm.h"
#include "tape/tape.h"

static tg_tensor *activate(tg_lm_activation kind, tg_tape *t, tg_tensor *const *h) {
    if (kind == TG_LM_GELU_TANH) return tg_gelu_tanh(t, h[0]);
    return kind == TG_LM_SWIGLU ? tg_swiglu(t, h[0], h[1]) : tg_mul(t, tg_gelu_tanh(t, h[0]), h[1]);
}

/* The kinds, whose addresses are the state of activate_again: the module may be freed before backward. */
static const tg_lm_activation kinds[] = {TG_LM_SWIGLU, TG_LM_GELU_TANH, TG_LM_GEGLU_TANH};

/* The callback that computes the activation in forward, and again in backward. */
static tg_status activate_again(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = activate(*(const tg_lm_activation *)state, t, in);
    return t->ctx->run.status;
}

/* Runs the projections before the activation: [s, b, h] -> [s, b, ffn / tp] each. Writes their outputs to h, the gate
 * first, and returns how many there are. */
static int first_projections(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *h[2]) {
    const tg_lm_config *c = tg_layer_config(m);
    const tg_lm_name_table *names = tg_lm_names_of(c);
    int n = 0;
    if (tg_lm_is_gated(c) && names->gate_up) {
        const int64_t half = c->ffn / tg_lm_tp(c);
        tg_split(t, tg_module_run(m, names->gate_up, t, x), 2, (const int64_t[]){half, half}, 2, h);
        return 2;
    }
    if (tg_lm_is_gated(c)) h[n++] = tg_module_run(m, names->gate, t, x);
    h[n++] = tg_module_run(m, names->up, t, x);
    return n;
}

static tg_tensor *mlp_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    const tg_lm_config *c = tg_layer_config(m);
    const tg_lm_name_table *names = tg_lm_names_of(c);
    bool again = c->recompute == TG_GPT_SELECTIVE && t->grad;
    const tg_module *up = tg_lm_is_gated(c) ? NULL : tg_module_part(m, names->up);
    if (tg_is_own_linear(up) && !again)
        return tg_module_run(m, names->down, t,
                             tg_linear_gelu_tanh(t, x, tg_module_own(up, "weight"), tg_module_own(up, "bias")));
    tg_tensor *h[2], *a = NULL;
    int n = first_projections(m, t, x, h);
    if (!again) return tg_module_run(m, names->down, t, activate(c->activation, t, h));
    tg_replay *r = tg_replay_open(t);
    tg_replay_run(r, activate_again, (void *)&kinds[c->activation], h, n, &a, 1, TG_RECOMPUTE(.name = "activation"));
    tg_tensor *y = tg_module_run(m, names->down, t, a);
    tg_replay_close(r, NULL);
    return y;
}

static const tg_module_ops mlp_ops = {
    .size = sizeof(tg_module_ops), .kind = "mlp", .forward = mlp_forward, .free = tg_layer_free};

tg_module *tg_lm_mlp_new(tg_ctx *ctx, const tg_lm_config *c) {
    const tg_lm_name_table *names = tg_lm_names_of(c);
    const double std = tg_hidden_std(c);
    int64_t h = c->hidden, n = c->ffn;
    bool bias = c->mlp_bias, gated = tg_lm_is_gated(c), both = gated && names->gate_up;
    tg_module *m = tg_layer_begin(ctx, &mlp_ops, c);
    if (!m) return tg_layer_finish(m);
    if (both)
        tg_module_add_child(m, names->gate_up, tg_projection(ctx, c, TG_PROJECT_COLUMN, h, 2 * n, 2, bias, std));
    else if (gated)
        tg_module_add_child(m, names->gate, tg_projection(ctx, c, TG_PROJECT_COLUMN, h, n, 1, bias, std));
    if (!both) tg_module_add_child(m, names->up, tg_projection(ctx, c, TG_PROJECT_COLUMN, h, n, 1, bias, std));
    tg_module_add_child(m, names->down, tg_projection(ctx, c, TG_PROJECT_ROW, n, h, 1, bias, tg_residual_std(c)));
    return tg_layer_finish(m);
}
