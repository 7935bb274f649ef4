/* An op of one's own in a shared object, which plugin_host.c loads. The object exports one symbol, the description of
 * the op. The op is composed of the library's, so that its gradients need no code; custom_op.c has one with its own
 * loops. */
#include <tapegrad/extend.h>

typedef struct soft_cap_params {
    double cap;
} soft_cap_params;

static tg_status soft_cap(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out, const void *site) {
    const soft_cap_params *p = params;
    (void)site;
    if (!(p->cap > 0))
        return tg_ctx_fail(tg_tape_ctx(t), TG_ERR_ARGUMENT, "soft_cap: cap is %g, expected more than 0", p->cap);
    out[0] = tg_scale(t, tg_tanh(t, tg_scale(t, in[0], 1 / p->cap)), p->cap);
    return tg_ctx_status(tg_tape_ctx(t));
}

static const tg_field fields[] = {TG_ARG(soft_cap_params, cap, DOUBLE, "bound of the result's magnitude, above 0")};

extern const tg_op plugin_op;
TG_API const tg_op plugin_op = {
    .size = sizeof(tg_op), .name = "soft_cap", .formula = "cap * tanh(x / cap)", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(soft_cap_params), .compose = soft_cap, TG_FIELDS(fields),
    .preset = &(const soft_cap_params){.cap = 30}};
