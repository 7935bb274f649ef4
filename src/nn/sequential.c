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

/* Writes the name of the next child: the number of children or, if a child has that name because one before it was
 * freed, the next number that is not taken. */
static void next_name(const tg_module *m, char *name, size_t size) {
    int n = 0;
    for (const tg_module_entry *e = m->first; e; e = e->next) n += e->child != NULL;
    do snprintf(name, size, "%d", n++);
    while (tg_module_entry_of(m, name, strlen(name)));
}

tg_status tg_sequential_add(tg_module *m, tg_module *child) {
    char name[16] = "";
    if (tg_module_ok(m)) {
        if (m->ops == &sequential_ops)
            next_name(m, name, sizeof name);
        else
            tg_fail(m->ctx, TG_ERR_ARGUMENT,
                    "tg_sequential_add: the module is a \"%s\", expected one that tg_nn_sequential made", m->ops->kind);
    }
    return tg_module_add_child(m, name, child);
}
