/* Context parallelism: causal attention over a sequence that is cut over the ranks. Keys and values go round a ring
 * while the part at hand is attended to; partial results merge by their log-sum-exps. The result and all gradients are
 * those of one rank. */
#include <stdio.h>
#include <tapegrad/mappings.h>
#include <tapegrad/ranks.h>

#include "planned.h"

enum { RANKS = 4, BATCH = 2, HEADS = 4, SEQ = 256, HEAD = 32 };

/* q, k, v [b, h, s/cp, d], this rank's rows of the sequence, opaque on cp -> [b, h, s/cp, d]. */
static tg_tensor *ring_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, tg_comm *cp) {
    int n = tg_comm_size(cp), rank = tg_comm_rank(cp);
    tg_tensor *out = NULL, *lse = NULL;
    for (int i = 0; i < n; i++) {
        /* The next part travels while this one, of rank - i, is attended to: nothing waits for it before it is read. */
        bool more = i + 1 < n;
        tg_tensor *next_k = more ? tg_shift(t, k, cp) : NULL, *next_v = more ? tg_shift(t, v, cp) : NULL;
        /* Wrapped round it lies in this rank's future. Backward still runs the shifts here, with zeros where no
         * gradient came, as it runs every collective on every rank. */
        if (rank >= i) {
            tg_tensor *part_lse, *part = tg_attention_lse(t, q, k, v, TG_ATTENTION(.causal = i == 0), &part_lse);
            out = i == 0 ? part : tg_attention_merge(t, out, lse, part, part_lse, &part_lse);
            lse = part_lse;
        }
        k = next_k;
        v = next_v;
    }
    return out;
}

/* This rank's rows of a [b, h, s, d] that every rank drew alike. */
static tg_tensor *mine(tg_tape *t, tg_tensor *whole, tg_comm *cp) {
    return tg_as_opaque(t, tg_scatter_to(t, whole, 2, cp), cp);
}

static tg_status check(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *par = tg_parallel_new(world, TG_PARALLEL(.cp = RANKS));
    tg_comm *cp = tg_parallel_comm(par, TG_CP);
    tg_tensor *qkv[3];
    for (int i = 0; i < 3; i++) {
        qkv[i] = tg_randn(ctx, TG_SHAPE(BATCH, HEADS, SEQ, HEAD), 1.0);
        tg_set_requires_grad(qkv[i], true);
    }
    tg_tape *t = tg_tape_new(ctx);

    /* Each rank's sum of squares; the root is the sum over the ranks, as a varying root always is. */
    tg_tensor *out = ring_attention(t, mine(t, qkv[0], cp), mine(t, qkv[1], cp), mine(t, qkv[2], cp), cp);
    tg_backward(t, tg_sum(t, tg_square(t, out), TG_ALL_DIMS, false));

    /* The same on one rank: every rank computes the whole. */
    tg_tensor *ref = tg_attention(t, qkv[0], qkv[1], qkv[2], TG_ATTENTION(.causal = true));
    tg_tensor *root = tg_sum(t, tg_square(t, ref), TG_ALL_DIMS, false), *want[3];
    tg_grad(t, &root, 1, qkv, 3, want, NULL);
    for (int i = 0; i < 3; i++) {
        tg_tensor *error = tg_max(t, tg_abs(t, tg_sub(t, tg_grad_of(qkv[i]), want[i])), TG_ALL_DIMS, false);
        double worst = tg_item(error);
        if (!(worst < 1e-4)) tg_ctx_fail(ctx, TG_ERR_GRADIENT, "input %d: off by %g", i, worst);
    }

    tg_tape_free(t);
    tg_parallel_free(par);
    return tg_ctx_status(ctx);
}

int main(void) {
    char why[512] = "";
    tg_status s = tg_ranks_run(RANKS, check, NULL, TG_RANKS(.message = why, .message_size = sizeof why));
    puts(s == TG_OK ? "the ring agrees with one rank" : why);
    return s != TG_OK;
}
