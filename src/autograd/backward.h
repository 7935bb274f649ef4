/* The executor's parts: gradients (how contributions are summed and kept) and the pass (which node runs when). */
#ifndef TG_BACKWARD_H
#define TG_BACKWARD_H

#include "tape/tape.h"

/* How the gradient of one input of the node at work is received. */
typedef enum tg_receipt_kind {
    TG_TO_NOBODY,
    TG_TO_SLOT,  /* the slot's own buffer */
    TG_TO_LEAF,  /* the leaf's accumulation buffer, or a target's: no temporary */
    TG_TO_EXTRA, /* a buffer that is added afterwards: a tensor given twice, of another dtype than its leaf's, or a leaf
                  * whose gradient nodes have saved */
    TG_TO_DONE,  /* passed on, or in flight */
} tg_receipt_kind;

typedef struct tg_receipt {
    tg_receipt_kind kind;
    tg_tensor *extra;
} tg_receipt;

/* Numbers found by address. */
typedef struct tg_keyed {
    const void *key;
    int64_t at;
} tg_keyed;

typedef struct tg_pass {
    tg_tape *t;
    const tg_pass_opts *o;
    uint32_t id;
    bool all; /* every node is needed */
    tg_receipt *receipts;
    tg_keyed *by_x; /* many targets by their tensors; NULL: few */
} tg_pass;

/* ---- gradients.c ---- */

/* Sums g, which it takes over, into a slot. */
tg_status tg_slot_add(tg_slot *s, tg_tensor *g);
/* Waits for what is in flight and sums it, in the order of arrival. */
tg_status tg_slot_finish(tg_slot *s);
void tg_slot_drop(tg_slot *s);
/* The caller's g as a gradient: its bytes, or a copy where a tape may take those away, or a backward add to them; and
 * always a copy. NULL after an error. */
tg_tensor *tg_gradient_share(const tg_tensor *g);
tg_tensor *tg_gradient_copy(const tg_tensor *g);
/* Bytes of its own in place of those that a seed or another gradient has as well. */
tg_status tg_gradient_own(tg_tensor **g);
/* dst (+)= src, converting. */
tg_status tg_gradient_put(tg_tensor *dst, const tg_tensor *src, bool add);
/* The buffer in which x's gradient is accumulated. NULL after recording the error. */
tg_tensor *tg_gradient_buffer(tg_tensor *x);
tg_tensor *tg_gradient_of(const tg_tensor *x); /* NULL: it has none */
/* A backward has contributed to the gradient of leaf x, which is partial where x is R. */
void tg_gradient_reached(tg_tensor *x);
/* The gradient of leaf x has been summed over the axes where x is R. */
void tg_gradient_summed(tg_tensor *x);
/* Nothing is there: the next contribution overwrites. */
void tg_gradient_forget(tg_tensor *x);
/* TG_ERR_STATE where a product that belongs to x's gradient waits (tg_wgrads). */
tg_status tg_gradient_need_drained(const tg_tensor *x, const char *who);
/* TG_ERR_STATE where x's gradient is partial: for whoever would take it as a number. */
tg_status tg_gradient_need_whole(const tg_tensor *x, const char *who);
/* Runs x's hooks of one kind on *g, a temp that may be replaced. */
tg_status tg_hooks_run(tg_tape *t, tg_tensor *x, tg_tensor **g, bool accumulated);
bool tg_hooks_any(const tg_tensor *x, bool accumulated);
/* An on_grad hook before x's others, of which it has some. 0 after recording the error. */
uint64_t tg_hook_first(tg_tensor *x, tg_hook_fn fn, void *user);
/* tg_remove_hook under an error too. */
bool tg_hook_drop(tg_tensor *x, uint64_t id);

/* ---- receipts.c ---- */

/* Decides where each input's gradient goes; makes the buffers, but for the inputs that the op passes. */
tg_status tg_receipts_open(tg_pass *p, tg_call *c);
/* Adds what was received apart, and notes which leaves now have a gradient. */
tg_status tg_receipts_close(tg_pass *p, tg_call *c);
/* Everything that the op saved is there, and is what it was. */
tg_status tg_node_check_saved(const tg_node *n);
/* backward.c: that, and no backward has consumed it. */
tg_status tg_node_ready(const tg_node *n);
/* The node whose slots hold x's gradient; NULL: this tape has not used x, or it needs none. */
tg_node *tg_tape_node_of(const tg_tape *t, const tg_tensor *x);
/* Of this tape or none, in need of a gradient. */
tg_status tg_check_inputs(tg_tape *t, tg_tensor *const *inputs, int n, const char *who);
/* An input's gradient is wanted. */
bool tg_pass_leads_on(const tg_pass *p, const tg_node *n);
/* Ranks must meet in what the node depends on: it is due. */
void tg_pass_note_due(const tg_pass *p, tg_node *n);
/* The target that is the node's output; NULL: it is none. Once they have been found, with their nodes. */
tg_target *tg_pass_target(const tg_pass *p, const tg_node *n, int out);
tg_status tg_pass_find_targets(tg_pass *p);
void tg_keyed_sort(tg_keyed *a, int64_t n); /* by address */
tg_keyed *tg_keyed_find(tg_keyed *a, int64_t n, const void *key); /* the first of equals in a sorted list; NULL: none */
/* receipts.c: where the gradient of input i has gone, or goes; NULL: nowhere, or there is none yet. */
tg_tensor *tg_receipt_gradient(const tg_call *c, int i);

/* ---- look.c ---- */

typedef struct tg_range {
    double lo, hi;          /* of the numbers; lo > hi: there are none */
    int64_t nan, inf, zero; /* how many */
} tg_range;

/* What x holds; its bytes must be there. */
tg_status tg_range_of(const tg_tensor *x, tg_range *r);
/* Which of the kinds of tg_tape_find_nan x has, by two reductions on the device. */
tg_status tg_kinds_in(const tg_tensor *x, int *kinds);
/* A gradient as a tensor of its own, on the same bytes: a temp. */
tg_tensor *tg_gradient_look(const tg_tensor *g);

/* ---- watch.c ---- */

/* Before the op's backward runs, and when it has. */
tg_status tg_observe_before(tg_call *c);
tg_status tg_observe_backward(tg_call *c);

/* x's own hooks run in this pass. In a recomputation's those of the leaves that it used wait for the outer tape, which
 * has the whole gradient; its inputs there are handles of its own. */
static inline bool tg_pass_hooks(const tg_pass *p, const tg_tensor *x) { return !p->o->inner || x->tape; }

static inline bool tg_pass_needs(const tg_pass *p, const tg_node *n) { return n && (p->all || n->pass == p->id); }

#endif
