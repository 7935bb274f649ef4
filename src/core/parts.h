/* Parts: the state that the layers above core keep in a context.
 *
 * Core does not know these layers. It has a fixed number of slots. A layer sets its own slot when it first needs it.
 * Core calls the layer's functions when a context ends, when tg_release or the last tg_unhold gives up a handle, when
 * the memory report looks for the op that made a tensor, and around functions of the program that refill one. Each
 * layer defines the number of its slot itself (TG_PART_*): tape 0, placement 1, recompute 2. */
#ifndef TG_PARTS_H
#define TG_PARTS_H

#include <tapegrad/types.h>

enum { TG_PARTS = 8 };

/* The op that made a tensor, for the memory report. */
typedef struct tg_maker {
    const char *op;
    const void *site; /* call site that recorded the op */
    char scope[96];   /* path of the enclosing scopes; "" if there are none */
} tg_maker;

/* Each function may be NULL. held, end and release are called in order of descending slot number. */
typedef struct tg_part_ops {
    /* Returns why the context cannot end now, or NULL if it can. */
    const char *(*held)(const tg_ctx *ctx, const void *state);
    /* Called when the context ends, while tensors are still alive. */
    void (*end)(tg_ctx *ctx, void *state);
    /* Called when the context's memory is freed, after the last export; frees the state. */
    void (*release)(tg_ctx *ctx, void *state);
    /* Fills out and returns true if an op of this layer made x. */
    bool (*maker)(const tg_tensor *x, tg_maker *out);
    /* Called when tg_release has given up x: a handle of a tape, or one of the context that nodes still use. Ends x, or
     * what this layer keeps for it, if nothing needs it. */
    void (*given_up)(tg_tensor *x);
    /* Called when x, which a tape of this layer owned, has ended and its last hold was removed. */
    void (*unheld)(tg_tensor *x);
    /* Called with 1 before, and with -1 after, a function of the program that refills x or frees its refill. In
     * between, what owns x must not end. */
    void (*busy)(const tg_tensor *x, int by);
} tg_part_ops;

typedef struct tg_part {
    const tg_part_ops *ops; /* NULL if the layer has not needed its slot yet */
    void *state;
} tg_part;

#endif
