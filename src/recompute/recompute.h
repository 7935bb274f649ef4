/* Functions that run again in backward: what tg_recompute and replays (tg_replay) share. */
#ifndef TG_RECOMPUTE_IMPL_H
#define TG_RECOMPUTE_IMPL_H

#include "autograd/apply.h"

#include <tapegrad/recompute.h>

#include "core/random/rng.h"

/* The params of a node that stands for a function call. */
typedef struct tg_recompute_params {
    tg_fn fn;
    void *state;
    const char *name;
    int n_in;      /* number of inputs of fn; the node's inputs after these are the leaves that fn used */
    int n_out;     /* number of outputs of fn and of the node */
    bool training; /* the mode of the first run, which the second one repeats */
    uint64_t micro; /* number of the micro-batch of the first run, which its draws depend on */
    tg_comm *distribute;       /* field of the call's tg_recompute_opts */
    tg_rng_states *streams;    /* random streams at the start of the first run; NULL: they are not restored */
    tg_tensor *const *outputs; /* outputs of the first run; valid only until the node has been recorded */
    uint64_t *bits;            /* a hash of each output's bytes; NULL outside of check mode */
} tg_recompute_params;

/* How to record a call. */
typedef struct tg_recompute_call {
    const char *who;    /* name of the public function */
    const tg_op *op[2]; /* op[1] is for functions that communicate with other ranks, and for distributed inputs */
    void *node_state;   /* state that the node owns */
    void (*end)(void *node_state); /* frees node_state when the node ends */
    const void *site;
    bool passed_on; /* set when end will be called, even if the call fails; if it is not, the caller frees the state */
} tg_recompute_call;

/* Checks the call, runs the function for the first time, and records the node. In no-grad mode it only runs the
 * function. */
tg_status tg_recompute_record(tg_tape *t, tg_recompute_params *p, tg_tensor *const *in, tg_tensor **out,
                              const tg_recompute_opts *opts, tg_recompute_call *call);
/* Ends a call of tg_recompute or tg_replay_run whose status is s, and returns s. After an error, notifies the other
 * ranks, which may wait for this rank in collectives of the function, or in the gather of the distributed input. */
tg_status tg_recompute_ended(tg_tape *t, const tg_recompute_opts *opts, tg_status s);
/* Returns, within a function of the node's op, the state of the call (tg_recompute_call.node_state). */
void *tg_recompute_state(const tg_call *c);
/* Runs the function of node n again on the separate tape `inner`, with the random streams of the first run unless
 * keep_rng was set. Sets in[] and out[] to the inputs and outputs on `inner`. Fails if an output differs from that of
 * the first run in its shape, dtype or placement or, in check mode, in its bits. */
tg_status tg_recompute_again(const tg_node *n, tg_tape *inner, tg_tensor **in, tg_tensor **out);
/* Runs backward through `inner`, which holds the second run, and delivers the gradients to the node's inputs. */
tg_status tg_recompute_gradient(tg_call *c, tg_tape *inner, tg_tensor **in, tg_tensor **out, bool retain);
/* The slots infer, vjp and jvp of the ops of TG_RECOMPUTE_OP. */
tg_status tg_recompute_infer(tg_call *c);
tg_status tg_recompute_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
tg_status tg_recompute_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

/* The op of a node that stands for a function call. */
#define TG_RECOMPUTE_OP(name_, collective_, backward_)                                                                 \
    {                                                                                                                  \
        .size = sizeof(tg_op), .name = name_, .formula = "fn(x...)", .n_in = -1, .n_out = -1,                          \
        .params_size = sizeof(tg_recompute_params), .saves_in = ~0u, .optional = ~0u, .family = TG_FAMILY_CUSTOM,      \
        .sums_f32 = true, .collective = collective_, .infer = tg_recompute_infer, .backward = backward_,               \
        .vjp = tg_recompute_vjp, .jvp = tg_recompute_jvp,                                                              \
    }

/* ---- sharded_inputs.c ---- */

/* Keeps only this rank's part of the elements of x, which a node of t has just saved. The next read gathers the parts
 * from the ranks of c. x stays whole if c has one rank, or if is_only_user (sharded_inputs.c) is false. */
tg_status tg_distribute(tg_tape *t, tg_tensor *x, tg_comm *c);
/* Fails if x, the first input of the call `who`, cannot be distributed over c. x is NULL if the call has no inputs. */
tg_status tg_distribute_check(tg_ctx *ctx, const tg_tensor *x, tg_comm *c, const char *who);

#endif
