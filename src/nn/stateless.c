/* Layers without parameters: dropout, and functions as modules. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "nn/layer.h"

typedef tg_tensor *(*unary_fn)(tg_tape *t, tg_tensor *x);

/* The state of either kind. */
typedef struct stateless {
    tg_ctx *ctx;
    double p;    /* of dropout */
    char *name;  /* of a function */
    unary_fn fn; /* of a function */
} stateless;

static void stateless_free(void *state) {
    stateless *s = state;
    tg_host_strfree(s->ctx, s->name);
    tg_host_free(s->ctx, s, sizeof *s);
}

/* Creates a module of this kind and state. Takes over with.name. */
static tg_module *stateless_new(tg_ctx *ctx, const tg_module_ops *ops, stateless with) {
    stateless *s = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (s) *s = with, s->ctx = ctx;
    if (!s && with.name) tg_host_strfree(ctx, with.name);
    return tg_module_new(s ? ctx : NULL, ops, s);
}

/* ---- Dropout ---- */

static tg_tensor *dropout(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_dropout(t, x, ((stateless *)m->state)->p);
}

static size_t describe_dropout(const tg_module *m, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "p %g", ((stateless *)m->state)->p);
    return at;
}

static const tg_module_ops dropout_ops = {.size = sizeof(tg_module_ops),
                                          .kind = "dropout",
                                          .forward = dropout,
                                          .free = stateless_free,
                                          .describe = describe_dropout};

tg_module *tg_nn_dropout(tg_ctx *ctx, double p) {
    if (tg_ok(ctx) && !(p >= 0 && p < 1))
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_nn_dropout: p is %g, expected 0 or more, and less than 1", p);
    return stateless_new(ctx, &dropout_ops, (stateless){.p = p});
}

/* ---- Functions ---- */

static tg_tensor *function(tg_module *m, tg_tape *t, tg_tensor *x) { return ((stateless *)m->state)->fn(t, x); }

static size_t describe_function(const tg_module *m, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "%s", ((stateless *)m->state)->name);
    return at;
}

static const tg_module_ops function_ops = {.size = sizeof(tg_module_ops),
                                           .kind = "function",
                                           .forward = function,
                                           .free = stateless_free,
                                           .describe = describe_function};

tg_module *tg_nn_function(tg_ctx *ctx, const char *name, unary_fn fn) {
    if (tg_ok(ctx) && (!name || !fn)) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_nn_function: %s is NULL", name ? "fn" : "name");
    char *copy = tg_ok(ctx) ? tg_host_strdup(ctx, name) : NULL;
    return stateless_new(ctx, &function_ops, (stateless){.name = copy, .fn = fn});
}
