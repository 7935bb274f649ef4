/* A running call of an op: the internal data behind the public tg_call. It is used by the functions that an op calls,
 * and by those that run the op. */
#ifndef TG_CALL_H
#define TG_CALL_H

#include "tape/tape.h"

/* What `impl` of a tg_call points to while the op is recorded, or while its backward runs. */
typedef struct tg_call_impl {
    const void *site;       /* call site of the public function */
    tg_tensor *temps;       /* temporaries of this call, linked by their field `node` */
    uint64_t before, made;  /* in a forward: the serial of the context's last handle before and after infer */
    tg_node *node;          /* in a backward: the node whose op runs */
    struct tg_pass *pass;   /* in a backward: the pass (src/autograd/backward.h); NULL in a forward */
    struct tg_rules *rules; /* what infer stated about placements (src/placement/rule.h); NULL if nothing */
    double began, ended;    /* when forward or backward ran, on tg_system_now; 0 if not measured, as for views */
    bool placed;            /* infer has set the placements of the outputs */
    tg_rng *drawn;          /* a named stream from which infer has drawn, although it is not selected; NULL if none */
    uint64_t counter;       /* of that stream before the first draw; a call that fails restores it */
} tg_call_impl;

/* Returns whether the times of forwards are measured, for the tape's dump or for its observer. */
static inline bool tg_tape_is_timed(const tg_tape *t) { return t->timed || t->observer.ops; }
/* Frees the temporaries of the call. */
void tg_call_temps_free(tg_call *c);
/* Appends the name of the op, its inputs, its scope and its call site to the context's error. */
tg_status tg_call_explain(tg_call *c);
/* Called in the backward of a linear layer. Offers the gradient of its weight, which is input w of the call, to the
 * deferral of the tape (tg_deferral). The gradient is the product gy^T x. Returns false if backward must compute the
 * product now. */
static inline bool tg_call_defers(tg_call *c, int w, tg_tensor *x, tg_tensor *gy) {
    const tg_deferral *d = &c->tape->deferral;
    return d->take && d->take(d->list, c, w, x, gy);
}
/* Returns the call site outside of this library from which the op is, or was, recorded (tg_scope_site). */
const void *tg_call_site(const tg_call *c);

#endif
