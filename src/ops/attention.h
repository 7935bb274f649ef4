/* What the op attention (attention.c) shares with its composition of other ops (attention_compose.c) and with attention
 * over several ranks (src/parallel/cp): the params, the indices of the inputs, and checks of them. */
#ifndef TG_ATTENTION_H
#define TG_ATTENTION_H

#include "ops/common/op.h"

typedef struct attention_params {
    /* The caller's options. infer resolves them: scale is set, dropout is 0 in evaluation mode, softcap is 0 if there
     * is none, window bounds are 0 or more. The tensors among them are inputs of the op, and NULL here. */
    tg_attention_opts opts;
    bool left_bound, right_bound; /* whether the window is bounded on this side */
    tg_draws draws;               /* of dropout */
} attention_params;

enum { Q, K, V, MASK, SINK, LENGTHS, STARTS_Q, STARTS_K, INPUTS };

/* Check inputs of a call. tg_attention_shapes checks the shapes of q, k and v, which are inputs 0 to 2;
 * tg_attention_sink_fits, that input i is absent or a sink for q; tg_attention_index_vector, that input i, which
 * messages call `what`, is an int64 vector. */
tg_status tg_attention_shapes(tg_call *c);
tg_status tg_attention_sink_fits(tg_call *c, int i);
tg_status tg_attention_index_vector(tg_call *c, int i, const char *what);
/* Checks the factor of the scores, which it sets if it is TG_AUTO; the probability of dropout; and the bound of the
 * scores, which it sets to 0 if it is TG_NONE. */
tg_status tg_attention_numbers(tg_call *c, double *scale, double dropout, double *softcap);

/* The slots vjp and jvp of the op (attention_compose.c). */
tg_status tg_attention_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
tg_status tg_attention_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

#endif
