/* A call of an op at work: what tg_call's impl points to, for functions that an op calls and functions that run it. */
#ifndef TG_CALL_H
#define TG_CALL_H

#include "tape/tape.h"

/* What impl of a tg_call points to while an op records or runs backward. */
typedef struct tg_call_impl {
    const void *site;
    tg_tensor *temps;       /* of this call, linked through their node */
    uint64_t before, made;  /* in a forward: the context's serial before and after infer */
    tg_node *node;          /* in a backward */
    struct tg_pass *pass;   /* in a backward: src/autograd/backward.h */
    struct tg_rules *rules; /* what infer has stated about placements (src/placement/rule.h); NULL: nothing */
    bool placed;            /* infer gave the outputs their placements */
} tg_call_impl;

/* Frees the temporaries of the call. */
void tg_call_temps_free(tg_call *c);
/* Adds to the error at hand which op it was, its inputs, its scope and its call site. */
tg_status tg_call_explain(tg_call *c);
/* The call site of the public function that records, or recorded, the op. */
static inline const void *tg_call_site(const tg_call *c) { return ((const tg_call_impl *)c->impl)->site; }

#endif
