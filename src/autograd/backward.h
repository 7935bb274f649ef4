/* A pass backward over a tape: what it is asked for, and which nodes it needs. */
#ifndef TG_BACKWARD_H
#define TG_BACKWARD_H

#include "tape/call.h"

typedef struct tg_pass tg_pass;

/* A leaf or result whose gradient goes to the caller instead of being accumulated. */
typedef struct tg_target {
    tg_tensor *x;
    tg_tensor *g; /* given: written or added into; else made by the pass, and the caller's to free */
    uint8_t mode; /* of g, when given */
    bool reached;
    bool accumulates; /* what is put into g is accumulated in the leaf itself */
    tg_tensor *given; /* what tg_grad's caller gets */
    tg_node *node;
} tg_target;

/* A pass that records derivatives as ops of the tape (src/ops/derivatives/grad_graph.c). */
typedef struct tg_pass_ops {
    tg_status (*run)(tg_pass *p, tg_tensor *const *roots, int n, const char *who);
    /* The caller's g as a tensor of the tape that the caller does not write. */
    tg_tensor *(*own)(tg_tape *t, tg_tensor *g);
} tg_pass_ops;

typedef struct tg_pass_opts {
    tg_tensor *const *seeds;
    tg_target *targets; /* NULL: accumulate into every leaf */
    int n_targets;
    tg_tensor *const *only; /* accumulate into these leaves alone; NULL: all */
    int n_only;
    bool retain;
    bool inner; /* of a recomputation: leaves' hooks wait for the outer tape, which has the whole gradient */
    const tg_pass_ops *graph; /* records the derivatives; NULL: they are computed */
} tg_pass_opts;

struct tg_pass {
    tg_tape *t;
    const tg_pass_opts *o;
    uint32_t id;
    bool all;                   /* every node is needed */
    struct tg_grad_sink *sinks; /* of the node at work, one for each input */
    struct tg_keyed *by_x;      /* many targets by their tensors; NULL: few */
};

tg_status tg_backward_run(tg_tape *t, tg_tensor *const *roots, int n, const tg_pass_opts *opts, const char *who);
/* Returns s. A pass that ended early has left out calls that other ranks may wait in: they are notified. */
tg_status tg_backward_ended(const tg_tape *t, tg_status s);

/* The node whose slots hold x's gradient. NULL: this tape has not used x, or it needs none. */
tg_node *tg_tape_node_of(const tg_tape *t, const tg_tensor *x);
/* The node whose slot holds root's gradient. NULL after recording the error. */
tg_node *tg_root_node(tg_tape *t, tg_tensor *root, int i, const char *who);
/* Marks the nodes from which a wanted leaf or target can be reached: dead branches never run. */
void tg_pass_mark(tg_pass *p);
/* The gradient of an input of n is wanted. */
bool tg_pass_leads_on(const tg_pass *p, const tg_node *n);
/* Ranks must meet in the same nodes, so one that the roots depend on runs even where no gradient came on this rank: it
 * gets zeros. Marks what n depends on as due in turn. */
void tg_pass_note_due(const tg_pass *p, tg_node *n);
/* In a backward: it may run again, as what the nodes saved is kept. */
bool tg_call_retains(const tg_call *c);

static inline bool tg_pass_needs(const tg_pass *p, const tg_node *n) { return n && (p->all || n->pass == p->id); }

/* x's own hooks run in this pass. In a recomputation's those of the leaves that it used wait for the outer tape, which
 * has the whole gradient; its inputs there are handles of its own. */
static inline bool tg_pass_hooks(const tg_pass *p, const tg_tensor *x) { return !p->o->inner || x->tape; }

#endif
