/* A module as the library's own layers see it. */
#ifndef TG_MODULE_H
#define TG_MODULE_H

#include <tapegrad/nn.h>

#include "core/context.h"

/* A parameter or a child, in the order of adding. */
typedef struct tg_module_entry {
    struct tg_module_entry *next;
    char *name;
    tg_tensor *param;
    tg_module *child;
} tg_module_entry;

/* Where a walk over a module's parameters is: asking for one after the other costs one walk. */
typedef struct tg_module_cursor {
    const tg_module_entry *at; /* NULL: at the beginning */
    const tg_module *of;       /* whose entry that is */
    int i;                     /* parameter number i of the walk */
} tg_module_cursor;

struct tg_module {
    tg_ctx *ctx;
    const tg_module_ops *ops;
    void *state;
    tg_module_entry *first, *last;
    tg_module *parent;      /* that frees it; NULL: the caller does */
    tg_module_entry *place; /* its entry in the parent */
    tg_module_cursor seen;  /* the parameter asked for last */
    char path[256];         /* its path */
};

bool tg_module_ok(const tg_module *m); /* and its context */
/* Whether m is what tg_nn_linear (tg_nn_embedding) makes: a forward that knows may then use its parameters in an op of
 * its own. Any other module in its place is called. */
bool tg_is_own_linear(const tg_module *m);
bool tg_is_own_embedding(const tg_module *m);
/* A module of this kind with the parameters of tg_nn_linear; state is the table's to free. Inert on error. */
tg_module *tg_linear_module(tg_ctx *ctx, const tg_module_ops *ops, void *state, int64_t in, int64_t out, bool bias,
                            double std);
/* The entries of the library's own layers by name; NULL where there is none. */
tg_tensor *tg_module_own(const tg_module *m, const char *name);
/* The child that m's forward needs; NULL after recording that it has left, or where m is NULL. */
tg_module *tg_module_part(const tg_module *m, const char *name);
/* That child's forward; inert where there is none. */
tg_tensor *tg_module_run(const tg_module *m, const char *child, tg_tape *t, tg_tensor *x);

#endif
