/* The structs of captured modules (tg_captured_new). */
#ifndef TG_CAPTURED_H
#define TG_CAPTURED_H

#include "core/capture/capture.h"
#include "nn/module.h"

struct tg_captured;

/* The graph of one slot, and the tensors through which it takes and gives values. Those of in, out, seed and grad are
 * temporary tensors in the graph's memory; they stay where they are. */
typedef struct tg_captured_slot {
    struct tg_captured *of;
    tg_graph *graph; /* forward, and backward unless n_roots is 0; NULL before the first use */
    bool collective; /* the module communicates with other ranks */
    uint64_t settings; /* tg_captured_settings of the recording */
    int n_out, n_roots, n_leaves;
    tg_tensor **in, **out;
    tg_tensor **seed; /* the gradients of the outputs; NULL for an output that needs none */
    tg_ref *leaf;     /* the tensors of the context that the module uses and that need a gradient */
    tg_tensor **grad; /* the gradients of the inputs, then of the leaves; NULL where there is none */
    uint64_t use;     /* number of the use whose backward has not run yet; 0 if the slot is free */
    uint64_t micro;   /* the micro-batch of that use */
} tg_captured_slot;

/* The state of the module. Uses of slots outlive the module, so each holds a reference. */
typedef struct tg_captured {
    tg_ctx *ctx;
    int refs;
    int n_in, n_slots;
    tg_shape *shape; /* of the inputs */
    tg_dtype *dtype;
    tg_captured_slot *slot;
    uint64_t uses; /* number of uses so far */
} tg_captured;

/* One use of a slot: the state of its node, in the memory of the node's tape. */
typedef struct tg_captured_use {
    tg_captured_slot *slot;
    uint64_t number;
} tg_captured_use;

/* ---- captured_record.c ---- */

/* Records the module that m holds, for the inputs and the tape of this call, into an empty slot. On an error the slot
 * stays empty. */
tg_status tg_captured_record(tg_captured_slot *s, tg_module *m, tg_tape *t, tg_tensor *const *in, int n_out,
                             const void *site);
/* Returns a hash of the settings of m on which its recording depends: the modules in it with their modes and settings,
 * the parameters and buffers, and which of them need a gradient. */
uint64_t tg_captured_settings(const tg_module *m);
/* Empties a slot that is not in use. */
void tg_captured_clear(tg_captured_slot *s);

/* ---- captured_run.c ---- */

/* Replays the forward of a free slot that is recorded, and records a node on t whose backward replays the backward. */
tg_status tg_captured_run(tg_captured_slot *s, tg_tape *t, tg_tensor *const *in, tg_tensor **out, const void *site);
void tg_captured_unref(tg_captured *c);

#endif
