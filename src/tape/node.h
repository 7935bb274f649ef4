/* Nodes of a tape: what an op keeps for backward, and how the parts of a node are found. */
#ifndef TG_NODE_H
#define TG_NODE_H

#include "core/context.h"

#include <tapegrad/op.h>

typedef struct tg_scope tg_scope;

/* The gradient of one output of one node while a backward runs. */
typedef struct tg_slot {
    tg_tensor *g; /* a temporary; NULL before a contribution arrives */
    /* Contributions whose bytes an asynchronous operation (tg_work) is still writing: temporaries, linked through their
     * node pointers in the order of arrival. */
    tg_tensor *pending;
} tg_slot;

enum {
    TG_N_CONSUMED = 1, /* a backward has freed what the node saved */
    TG_N_LEAF = 2,
    TG_N_STATE = 4,      /* the node has a tg_node_extra */
    TG_N_TIMED = 8,      /* its times are measured */
    TG_N_BUSY = 16,      /* the op whose backward runs now sends a gradient to this node */
    /* A gradient has come that the slots do not show: it was added directly to the buffer of a leaf or a target, or it
     * is a zero that is not stored. */
    TG_N_REACHED = 32,
    /* The roots of the running backward depend on the node. Set only if tg_tape.collectives is. */
    TG_N_DUE = 64,
    TG_N_OBSERVED = 128, /* the tape's observer (tape/tape.h) has given the node a number */
};

struct tg_node {
    const tg_op *op;
    tg_node *prev, *next;
    const void *site; /* address of the call in the caller's program, for messages */
    tg_scope *scope;
    uint32_t pass;                /* number (tg_tape.pass) of the last pass in which tg_pass_mark marked the node */
    uint32_t needs;               /* bit mask of the inputs that need a gradient (tg_bit) */
    uint32_t saves_in, saves_out; /* bit masks of the inputs and outputs that are saved for backward */
    uint16_t n_in, n_out; /* n_out is at least 1 */
    uint16_t n_saved; /* number of buffers that the op has saved by tg_call_save: the kept buffers below */
    uint16_t flags;
    /* inputs, their nodes, outputs, slots, pointer to the params, kept buffers, versions, tg_node_extra */
    void *tail[];
};

static inline tg_tensor **tg_node_in(const tg_node *n) { return (tg_tensor **)n->tail; }
/* Returns the nodes whose slots receive the gradients of the inputs. An entry is NULL if the input needs none. */
static inline tg_node **tg_node_src(const tg_node *n) { return (tg_node **)n->tail + n->n_in; }
static inline tg_tensor **tg_node_out(const tg_node *n) { return (tg_tensor **)n->tail + 2 * n->n_in; }
static inline tg_slot *tg_node_slots(const tg_node *n) { return (tg_slot *)(n->tail + 2 * n->n_in + n->n_out); }
/* Returns the index in `tail` of the pointer to the params. Without params the kept buffers begin there. */
static inline int tg_node_params_at(const tg_node *n) { return 2 * n->n_in + 3 * n->n_out; }
static inline void *tg_node_params_of(const tg_node *n) {
    return n->op->params_size ? n->tail[tg_node_params_at(n)] : NULL;
}
/* Returns the buffers that the op has saved by tg_call_save. */
static inline tg_tensor **tg_node_kept(const tg_node *n) {
    return (tg_tensor **)(n->tail + tg_node_params_at(n) + (n->op->params_size != 0));
}
/* Returns the versions (tg_storage.version) that the saved inputs and outputs had when the node was recorded. There is
 * an entry for every input if the node saves any input, and then one for every output if it saves any output. The
 * entries of what is not saved are undefined. */
static inline uint32_t *tg_node_versions(const tg_node *n) { return (uint32_t *)(tg_node_kept(n) + n->n_saved); }
static inline int tg_node_n_versions(const tg_node *n) {
    return (n->saves_in ? n->n_in : 0) + (n->saves_out ? n->n_out : 0);
}
/* Fields that only few nodes need: those with TG_N_STATE. */
typedef struct tg_node_extra {
    void *state; /* of the call, freed by destroy */
    void (*destroy)(void *state);
    double forward_s, backward_s; /* seconds */
    int64_t number;               /* number given by the observer; valid if TG_N_OBSERVED is set */
} tg_node_extra;
static inline tg_node_extra *tg_node_extra_of(const tg_node *n) {
    return (tg_node_extra *)(tg_node_versions(n) + ((tg_node_n_versions(n) + 1) & ~1));
}
/* Returns the size of the node in the memory of the tape. */
static inline size_t tg_node_bytes(const tg_node *n) {
    return (size_t)((char *)(tg_node_extra_of(n) + ((n->flags & TG_N_STATE) != 0)) - (char *)n);
}
/* Returns bit i of a mask. Bit 31 stands for index 31 and all later ones. */
static inline bool tg_bit(uint32_t mask, int i) { return mask >> (i < 31 ? i : 31) & 1; }

/* ---- node.c ---- */

/* The op of a node that represents a leaf. */
extern const tg_op tg_leaf_op;

#endif
