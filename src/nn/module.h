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

/* A position among a module's parameters, in the order of the state dict. It is kept between calls of tg_module_param,
 * so that a loop over all parameters visits every entry once. */
typedef struct tg_module_cursor {
    const tg_module_entry *at; /* NULL means at the beginning */
    const tg_module *of;       /* the module that has this entry */
    int i;                     /* number of parameters before it */
} tg_module_cursor;

struct tg_module {
    tg_ctx *ctx;
    const tg_module_ops *ops;
    void *state;
    tg_module_entry *first, *last;
    tg_module *parent;       /* the module that frees this one; NULL if the caller does */
    tg_module_entry *entry;  /* its entry in the parent */
    tg_module_cursor cursor; /* at the parameter that tg_module_param returned last */
    char path[256];          /* the last path that tg_module_param returned */
};

bool tg_module_ok(const tg_module *m); /* whether m is not inert and its context has no error */
/* Return whether m was made by tg_nn_linear or tg_nn_embedding. The forward of m's parent may then use m's parameters
 * in an op of its own instead of calling m. Any other module must be called. */
bool tg_is_own_linear(const tg_module *m);
bool tg_is_own_embedding(const tg_module *m);
/* Creates a module with these ops and the parameters of tg_nn_linear. ops->free releases state. On error
 * returns an inert module. */
tg_module *tg_linear_module(tg_ctx *ctx, const tg_module_ops *ops, void *state, int64_t in, int64_t out, bool bias,
                            double std);
/* Returns the module's own parameter of that name; NULL if there is none. */
tg_tensor *tg_module_own(const tg_module *m, const char *name);
/* Returns a child that m's forward needs. If it was freed, records the error and returns NULL. Returns NULL if m is
 * NULL. */
tg_module *tg_module_part(const tg_module *m, const char *name);
/* Runs the forward of m's child of that name. If the child or its forward is missing, records the error and returns an
 * inert tensor. */
tg_tensor *tg_module_run(const tg_module *m, const char *child, tg_tape *t, tg_tensor *x);

#endif
