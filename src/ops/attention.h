/* What the op attention (attention.c) shares with its composition of other ops (attention_compose.c): the params, and
 * the indices of the inputs. */
#ifndef TG_ATTENTION_H
#define TG_ATTENTION_H

#include "ops/common/op.h"

typedef struct attention_params {
    /* The caller's options. infer resolves them: scale is set, dropout is 0 in evaluation mode, window bounds are 0 or
     * more. The tensors among them are inputs of the op, and NULL here. */
    tg_attention_opts opts;
    bool left_bound, right_bound; /* whether the window is bounded on this side */
    tg_draws draws;               /* of dropout */
} attention_params;

enum { Q, K, V, MASK, SINK, LENGTHS, STARTS_Q, STARTS_K, INPUTS };

/* The slots vjp and jvp of the op (attention_compose.c). */
tg_status tg_attention_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
tg_status tg_attention_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

#endif
