/* A backward pass over a tape: its options, and the nodes that it needs. */
#ifndef TG_BACKWARD_H
#define TG_BACKWARD_H

#include "tape/call.h"

typedef struct tg_pass tg_pass;

/* A leaf or result whose gradient goes to the caller instead of being accumulated. */
typedef struct tg_target {
    tg_tensor *x;
    tg_tensor *g; /* if the caller gives it: written or added to. If not: made by the pass, and freed by the caller */
    uint8_t mode; /* how a given g is updated */
    bool reached;
    bool accumulates; /* what is written to g accumulates in the leaf itself */
    tg_tensor *given; /* the tensor that tg_grad returns to its caller */
    tg_node *node;
} tg_target;

/* The functions of a pass that records derivatives as ops of the tape (src/ops/derivatives/grad_graph.c). */
typedef struct tg_pass_ops {
    tg_status (*run)(tg_pass *p, tg_tensor *const *roots, int n, const char *who);
    /* Returns the caller's g as a tensor of the tape that the caller will not write. */
    tg_tensor *(*own)(tg_tape *t, tg_tensor *g);
} tg_pass_ops;

typedef struct tg_pass_opts {
    tg_tensor *const *seeds; /* one per root; NULL, also as an entry: tg_placement_seed */
    tg_target *targets; /* NULL: accumulate into every leaf */
    int n_targets;
    tg_tensor *const *only; /* accumulate only into these leaves; NULL: into all */
    int n_only;
    bool retain; /* keep what the nodes saved, so that backward can run again */
    bool inner; /* backward of a recomputation: hooks of leaves wait for the outer tape, which has the whole gradient */
    const tg_pass_ops *graph; /* records the derivatives; NULL: they are only computed */
} tg_pass_opts;

struct tg_pass {
    tg_tape *t;
    const tg_pass_opts *o;
    uint32_t id;
    bool all;                   /* every node is needed */
    struct tg_grad_sink *sinks; /* one sink per input of the running node */
    struct tg_keyed *by_x;      /* targets sorted by tensor if there are many; NULL: few */
};

tg_status tg_backward_run(tg_tape *t, tg_tensor *const *roots, int n, const tg_pass_opts *opts, const char *who);
/* Returns s. If it is an error, the pass may have skipped calls in which other ranks wait; those ranks are notified. */
tg_status tg_backward_ended(const tg_tape *t, tg_status s);

/* Returns the node whose slots hold x's gradient, or NULL if this tape has not used x or x needs no gradient. */
tg_node *tg_tape_node_of(const tg_tape *t, const tg_tensor *x);
/* Returns the node whose slot holds root's gradient. NULL after recording the error. */
tg_node *tg_root_node(tg_tape *t, tg_tensor *root, int i, const char *who);
/* Marks the nodes that lead to a wanted leaf or target, so that other branches never run. */
void tg_pass_mark(tg_pass *p);
/* Returns whether the gradient of an input of n is wanted. */
bool tg_pass_leads_on(const tg_pass *p, const tg_node *n);
/* All ranks must meet in the same nodes. So a node that the roots depend on runs, with zeros, even if no gradient
 * arrived on this rank. Marks the nodes that n depends on as due in turn. */
void tg_pass_note_due(const tg_pass *p, tg_node *n);
/* Returns, within a backward, whether it keeps what the nodes saved, so that it may run again. */
bool tg_call_retains(const tg_call *c);

static inline bool tg_pass_needs(const tg_pass *p, const tg_node *n) { return n && (p->all || n->pass == p->id); }

/* Returns whether x's own hooks run in this pass. In the backward of a recomputation, hooks of the leaves that it
 * used wait for the outer tape, which has the whole gradient. Its inputs are separate handles there. */
static inline bool tg_pass_hooks(const tg_pass *p, const tg_tensor *x) { return !p->o->inner || x->tape; }

#endif
