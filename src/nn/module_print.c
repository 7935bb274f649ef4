/* A module as text: a tree with a line for each module, parameter and buffer. */
#include "base/text.h"
#include "nn/module.h"
#include "placement/placing.h"

/* A buffer of n bytes, and the length of the text so far, which may be larger. */
typedef struct printer {
    char *buf;
    size_t n, at;
} printer;

#define PRINT(p, ...) tg_text((p)->buf, (p)->n, &(p)->at, __VA_ARGS__)

static void print_description(printer *p, const tg_module *m) {
    PRINT(p, " (");
    bool room = p->at < p->n;
    p->at += m->ops->describe(m, room ? p->buf + p->at : NULL, room ? p->n - p->at : 0);
    PRINT(p, ")");
}

/* Prints the kind of m, the text of its `describe`, and its mode. */
static void print_kind(printer *p, const tg_module *m) {
    PRINT(p, "%s", m->ops->kind);
    if (TG_MODULE_OP(m, describe)) print_description(p, m);
    PRINT(p, "%s\n", m->mode == TG_MODE_TRAIN ? ", train" : m->mode ? ", eval" : "");
}

static void print_tensor(printer *p, const tg_module_entry *e) {
    const tg_tensor *x = e->tensor;
    char shape[160], place[160];
    tg_shape_text(x->ndim, x->shape, shape, sizeof shape);
    tg_place_text(x->ctx, tg_place_of(x), place, sizeof place);
    PRINT(p, "%s%s%s%s%s%s%s\n", e->buffer ? "buffer " : "", tg_dtype_name((tg_dtype)x->dtype), shape,
          *place ? ", " : "", place, e->transient ? ", transient" : "", x->ext->keeps_dtype ? ", keeps its dtype" : "");
}

/* Prints m at the end of the current line, and the entries of m on the lines below. */
static void print_module(printer *p, const tg_module *m, int depth) {
    print_kind(p, m);
    for (const tg_module_entry *e = m->first; e; e = e->next) {
        PRINT(p, "%*s%s%s", 2 * (depth + 1), "", e->name, *e->name ? ": " : "");
        if (e->child)
            print_module(p, e->child, depth + 1);
        else
            print_tensor(p, e);
    }
}

size_t tg_module_print(const tg_module *m, char *buf, size_t n) {
    printer p = {.buf = buf, .n = buf ? n : 0};
    if (p.n) buf[0] = 0;
    if (m && m->ops) print_module(&p, m, 0);
    return p.at;
}
