/* The rotation of pairs of elements by angles that depend on the row's position. The ops of rotary position embedding
 * (Su et al., arXiv 2104.09864) share it. */
#ifndef TG_ROTATION_H
#define TG_ROTATION_H

#include "ops/common/op.h"

/* The params of the ops. In a row at position p, pair i is rotated by the angle p f(i), where f(i) is its frequency.
 * The plain frequency of pair i of `half` pairs is base^(-i / half); opts.kind says how it is changed. The positions
 * are input 1: int64 [s], or [n, s] for x [n, .., s, d]. If there is no input 1, they are offset, offset + 1 and so
 * on. */
typedef struct tg_rotation_params {
    tg_rope_opts opts; /* infer sets dims to the number of rotated elements, 2 half; positions is NULL here */
    bool back;         /* rotate in the opposite direction */
} tg_rotation_params;

/* Checks that the positions, input i of the call, fit x, which is input 0, and states how both may be sharded. */
tg_status tg_rotation_positions(tg_call *c, int i);
/* The slots of the ops. y is x [.., s, d] with its rows rotated. In each row, elements i and i + dims / 2 form a pair,
 * for i < dims / 2. A pair (u, v) becomes (u cos - v sin, v cos + u sin) or, if back is true, (u cos + v sin,
 * v cos - u sin). The elements from dims on are copied. */
tg_status tg_rotation_forward(tg_call *c);
tg_status tg_rotation_backward(tg_call *c);
tg_status tg_rotation_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);

#endif
