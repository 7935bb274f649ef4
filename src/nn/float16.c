/* Runs a module in 16 bits (Megatron-Core's Float16Module). The module's parameters and buffers are cast once, at
 * creation. Each call on the first stage of a pipeline casts the inputs, and each call on the last stage casts the
 * outputs. */
#include <tapegrad/ops.h>

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "nn/module.h"
#include "tape/tape.h"

typedef struct float16 {
    tg_ctx *ctx;
    tg_dtype dtype;
    bool first, last, f32; /* f32: outputs of the last stage are cast to float32 */
} float16;

static void float16_free(void *state) {
    float16 *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

/* Returns x cast to dtype if x has floats of another dtype, else x itself. x may be NULL. */
static tg_tensor *cast_float(tg_tape *t, tg_tensor *x, tg_dtype dtype) {
    bool casts = tg_is_alive(x) && tg_is_float((tg_dtype)x->dtype) && x->dtype != dtype;
    return casts ? tg_cast(t, x, dtype) : x;
}

static tg_status float16_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const float16 *s = m->state;
    tg_module *inner = tg_module_part(m, "");
    tg_tensor **x = inner ? tg_tape_alloc(t, (size_t)n_in * sizeof *x + 1) : NULL;
    if (!x) return m->ctx->run.status;
    for (int i = 0; i < n_in; i++) x[i] = s->first ? cast_float(t, in[i], s->dtype) : in[i];
    TG_TRY(tg_module_call(inner, t, x, n_in, out, n_out));
    for (int i = 0; s->last && s->f32 && i < n_out; i++) out[i] = cast_float(t, out[i], TG_F32);
    return m->ctx->run.status;
}

static size_t float16_describe(const tg_module *m, char *buf, size_t n) {
    const float16 *s = m->state;
    size_t at = 0;
    tg_text(buf, n, &at, "%s%s%s", tg_dtype_name(s->dtype), s->first ? ", first" : "",
            s->last ? s->f32 ? ", last, gives f32" : ", last" : "");
    return at;
}

static const tg_module_ops float16_ops = {.size = sizeof(tg_module_ops),
                                          .kind = "float16",
                                          .free = float16_free,
                                          .call = float16_call,
                                          .describe = float16_describe};

/* Returns a wrapper that holds no module yet; an inert module on an error. */
static tg_module *wrapper(tg_ctx *ctx, tg_dtype dtype, bool first, bool last) {
    if (dtype != TG_F16 && dtype != TG_BF16)
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_float16_new: dtype is %s, expected f16 or bf16", tg_dtype_name(dtype));
    float16 *s = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (s) *s = (float16){ctx, dtype, first, last, true};
    return tg_module_new(s ? ctx : NULL, &float16_ops, s);
}

/* Frees m, unless it belongs to another module. */
static void give_up(tg_module *m) {
    if (m && !m->parent) tg_module_free(m);
}

tg_module *tg_float16_new(tg_module *m, tg_dtype dtype, bool first, bool last) {
    tg_module *f = wrapper(tg_module_ok(m) ? m->ctx : NULL, dtype, first, last);
    if (!tg_module_ok(f)) {
        give_up(m);
        return f;
    }
    if (tg_module_wrap(f, m, "tg_float16_new") == TG_OK && tg_module_cast(m, dtype) == TG_OK) return f;
    tg_module_free(f);
    return tg_module_new(NULL, &float16_ops, NULL);
}

tg_status tg_float16_set_output(tg_module *f, bool f32) {
    if (!tg_module_ok(f)) return f ? f->ctx->run.status : TG_ERR_ARGUMENT;
    if (f->ops != &float16_ops)
        return tg_fail(f->ctx, TG_ERR_ARGUMENT,
                       "tg_float16_set_output: the module is a \"%s\", expected one that tg_float16_new made",
                       f->ops->kind);
    ((float16 *)f->state)->f32 = f32;
    f->settings++;
    return TG_OK;
}
