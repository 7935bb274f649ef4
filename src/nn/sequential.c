/* Modules that are run one after another. */
#include <stdio.h>

#include "nn/layer.h"

static tg_tensor *sequential(tg_module *m, tg_tape *t, tg_tensor *x) {
    for (const tg_module_entry *e = m->first; e; e = e->next)
        if (e->child) x = tg_module_forward(e->child, t, x);
    return x;
}

static const tg_module_ops sequential_ops = {
    .size = sizeof(tg_module_ops), .kind = "sequential", .forward = sequential};

tg_module *tg_nn_sequential(tg_ctx *ctx) { return tg_module_new(ctx, &sequential_ops, NULL); }

static int children(const tg_module *m) {
    int n = 0;
    for (const tg_module_entry *e = m->first; e; e = e->next) n += e->child != NULL;
    return n;
}

tg_status tg_sequential_add(tg_module *m, tg_module *child) {
    char name[16] = "";
    if (tg_module_ok(m)) {
        if (m->ops == &sequential_ops)
            snprintf(name, sizeof name, "%d", children(m));
        else
            tg_fail(m->ctx, TG_ERR_ARGUMENT,
                    "tg_sequential_add: the module is a \"%s\", expected one that tg_nn_sequential made", m->ops->kind);
    }
    return tg_module_add_child(m, name, child);
}
