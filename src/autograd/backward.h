/* A backward pass over a tape: its options, and the nodes that it needs. */
#ifndef TG_BACKWARD_H
#define TG_BACKWARD_H

#include "tape/call.h"

typedef struct tg_pass tg_pass;

/* A leaf or result whose gradient goes to the caller instead of being accumulated. */
typedef struct tg_target {
    tg_tensor *x;
    /* The caller's buffer, which the pass writes or adds to; only a leaf may have one. If it is NULL, the pass sets it
     * to a tensor that the caller must free, or leaves it NULL if no gradient arrives. */
    tg_tensor *g;
    uint8_t mode; /* the tg_grad_mode of the caller's buffer */
    bool reached; /* a gradient has arrived in g */
    bool accumulates; /* the caller's buffer is the one in which the leaf accumulates its gradient */
    tg_tensor *given; /* the tensor that tg_grad returns to its caller */
    tg_node *node;
} tg_target;

/* The functions of a pass that records derivatives as ops of the tape (src/ops/derivatives/grad_graph.c). */
typedef struct tg_pass_ops {
    tg_status (*run)(tg_pass *p, tg_tensor *const *roots, int n, const char *who); /* runs the pass from n roots */
    /* Returns g if it belongs to a tape. Otherwise returns a copy on the tape, because the caller may write g later. */
    tg_tensor *(*own)(tg_tape *t, tg_tensor *g);
} tg_pass_ops;

typedef struct tg_pass_opts {
    tg_tensor *const *seeds; /* one per root; if seeds or an entry of it is NULL, the seed is tg_placement_seed */
    tg_target *targets; /* different tensors; NULL means that the pass accumulates into leaves */
    int n_targets;
    tg_tensor *const *only; /* accumulate only into these leaves; NULL means into all */
    int n_only;
    bool retain; /* keep what the nodes saved, so that backward can run again */
    bool inner; /* the pass runs on the tape of a recomputation, within a backward of an outer tape (tg_pass_hooks) */
    const tg_pass_ops *graph; /* records the derivatives; NULL if they are only computed */
} tg_pass_opts;

struct tg_pass {
    tg_tape *t;
    const tg_pass_opts *o;
    uint32_t id;
    bool all;                   /* there are neither targets nor chosen leaves, so every node is needed */
    struct tg_grad_sink *sinks; /* one sink per input of the running node */
    struct tg_keyed *by_x;      /* the targets by tensor; NULL if they are few or tg_pass_find_targets has not run */
};

/* Runs one pass of backward from n roots. Fails with TG_ERR_STATE if a backward of this tape is running already. `who`
 * begins the error messages. */
tg_status tg_backward_run(tg_tape *t, tg_tensor *const *roots, int n, const tg_pass_opts *opts, const char *who);
/* Returns s. If s is an error and a collective op has run on the tape, notifies the other ranks (tg_ctx_skip), because
 * they may wait in calls that the pass has left out. */
tg_status tg_backward_ended(const tg_tape *t, tg_status s);

/* Returns the node whose slots hold x's gradient: the node that made x or, for a leaf, the node that stands for it on
 * this tape. Returns NULL if there is none. */
tg_node *tg_tape_node_of(const tg_tape *t, const tg_tensor *x);
/* Returns the node whose slot holds root's gradient, and makes the node of a leaf that no op has used. `i` is the index
 * of the root, for messages. NULL after recording the error. */
tg_node *tg_root_node(tg_tape *t, tg_tensor *root, int i, const char *who);
/* Checks that the seed that the caller gives for root is alive, and has root's shape and dtype. */
tg_status tg_seed_check(const tg_tensor *root, const tg_tensor *given, const char *who);
/* Marks the nodes that lead to a wanted leaf or target, so that other branches never run. */
void tg_pass_mark(tg_pass *p);
/* Returns whether the gradient of an input of n is wanted. */
bool tg_pass_leads_on(const tg_pass *p, const tg_node *n);
/* Sets TG_N_DUE in the needed nodes that made the inputs of n. All ranks must run the same collective nodes. So a
 * collective node with this flag runs even if no gradient has arrived on this rank, with gradients of zeros. */
void tg_pass_note_due(const tg_pass *p, tg_node *n);
/* Returns, within a backward, whether that backward keeps what the nodes saved, so that another one may follow. */
bool tg_call_retains(const tg_call *c);

static inline bool tg_pass_needs(const tg_pass *p, const tg_node *n) { return n && (p->all || n->pass == p->id); }

/* Returns whether the hooks of x run in this pass. In an inner pass only those of the inner tape's handles run. The
 * hooks of a leaf of the context run in the backward of the outer tape, which has the whole gradient of the leaf. */
static inline bool tg_pass_hooks(const tg_pass *p, const tg_tensor *x) { return !p->o->inner || x->tape; }

#endif
