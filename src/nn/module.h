/* The structs of modules and the functions that the library's own layers use on them. */
#ifndef TG_MODULE_H
#define TG_MODULE_H

#include <tapegrad/nn.h>

#include "core/context.h"

/* A parameter or a child of a module. Entries are linked in the order of adding. */
typedef struct tg_module_entry {
    struct tg_module_entry *next;
    char *name;
    tg_tensor *param;
    tg_module *child;
} tg_module_entry;

/* The position of a walk over a module's parameters, so that asking for them one by one costs one walk. */
typedef struct tg_module_cursor {
    const tg_module_entry *at; /* NULL: at the beginning */
    const tg_module *of;       /* the module that has this entry */
    int i;                     /* number of the parameter in the walk */
} tg_module_cursor;

struct tg_module {
    tg_ctx *ctx;
    const tg_module_ops *ops;
    void *state;
    tg_module_entry *first, *last;
    tg_module *parent;      /* the module that frees it; NULL: the caller does */
    tg_module_entry *place; /* its entry in the parent */
    tg_module_cursor seen;  /* the last parameter that was asked for */
    char path[256];         /* and its path */
};

bool tg_module_ok(const tg_module *m); /* whether m is not inert and its context has no error */
/* Whether m was made by tg_nn_linear (tg_nn_embedding). A forward may then use its parameters in an op of its own.
 * Any other module in its place is called. */
bool tg_is_own_linear(const tg_module *m);
bool tg_is_own_embedding(const tg_module *m);
/* Creates a module with these ops and the parameters of tg_nn_linear. ops->free releases state. Inert on error. */
tg_module *tg_linear_module(tg_ctx *ctx, const tg_module_ops *ops, void *state, int64_t in, int64_t out, bool bias,
                            double std);
/* Returns the module's own parameter of that name; NULL if there is none. */
tg_tensor *tg_module_own(const tg_module *m, const char *name);
/* Returns the child that m's forward needs. If it was freed, records that and returns NULL. m NULL: NULL. */
tg_module *tg_module_part(const tg_module *m, const char *name);
/* Runs the forward of that child; returns an inert tensor if there is none. */
tg_tensor *tg_module_run(const tg_module *m, const char *child, tg_tape *t, tg_tensor *x);

#endif
