/* A backward pass over a tape: its options, and the nodes that it needs. */
#ifndef TG_BACKWARD_H
#define TG_BACKWARD_H

#include "tape/call.h"

typedef struct tg_pass tg_pass;

/* A leaf or result whose gradient goes to the caller instead of being accumulated. */
typedef struct tg_target {
    tg_tensor *x;
    /* the caller's buffer, which the pass writes or adds to; or NULL, and the pass makes a tensor for the caller to
     * free */
    tg_tensor *g;
    uint8_t mode; /* how a given g is updated */
    bool reached;
    bool accumulates; /* what is written to g adds to the gradient that the leaf accumulates */
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
    tg_tensor *const *seeds; /* one per root; tg_placement_seed where seeds or its entry is NULL */
    tg_target *targets; /* NULL means that the pass accumulates into leaves */
    int n_targets;
    tg_tensor *const *only; /* accumulate only into these leaves; NULL means into all */
    int n_only;
    bool retain; /* keep what the nodes saved, so that backward can run again */
    bool inner; /* backward of a recomputation: hooks of leaves wait for the outer tape, which has the whole gradient */
    const tg_pass_ops *graph; /* records the derivatives; NULL if they are only computed */
} tg_pass_opts;

struct tg_pass {
    tg_tape *t;
    const tg_pass_opts *o;
    uint32_t id;
    bool all;                   /* every node is needed */
    struct tg_grad_sink *sinks; /* one sink per input of the running node */
    struct tg_keyed *by_x;      /* targets sorted by tensor; NULL if there are few */
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
/* Marks the nodes whose outputs n uses as due. All ranks must run the same collective nodes. So a collective node that
 * is due runs even if no gradient has arrived on this rank, with zeros in its place. */
void tg_pass_note_due(const tg_pass *p, tg_node *n);
/* Returns, within a backward, whether that backward keeps what the nodes saved, so that another one may follow. */
bool tg_call_retains(const tg_call *c);

static inline bool tg_pass_needs(const tg_pass *p, const tg_node *n) { return n && (p->all || n->pass == p->id); }

/* Returns whether x's own hooks run in this pass. In the backward of a recomputation, hooks of the leaves that the
 * function used wait for the outer tape, which has the whole gradient. The function's inputs are separate handles
 * there. */
static inline bool tg_pass_hooks(const tg_pass *p, const tg_tensor *x) { return !p->o->inner || x->tape; }

#endif
