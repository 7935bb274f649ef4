/* Rotation of pairs of elements by angles of their positions: what the ops of rotary position embedding share. */
#ifndef TG_ROTATION_H
#define TG_ROTATION_H

#include "ops/common/op.h"

/* Which angles. Pair i of `half` pairs, in a row at position p, is rotated by p f(i). The plain f(i) is
 * base^(-i / half); the options say how it is changed. opts.dims is set. */
typedef struct tg_rotation {
    tg_rope_opts opts;
    const tg_tensor *positions; /* int64 [s], or [n, s] for x [n, .., s, d]; NULL: offset, offset + 1 and so on */
    bool back;                  /* rotate in the opposite direction */
} tg_rotation;

/* Checks positions, input `i` of the call, for x, which is input 0, and says how both may be sharded. */
tg_status tg_rotation_positions(tg_call *c, int i);
/* y (+)= x rotated, x [.., s, d]. Of each row the pairs (i, i + dims / 2) are rotated, i < dims / 2: (u, v) becomes
 * (u cos - v sin, v cos + u sin) or, if back is true, (u cos + v sin, v cos - u sin). The others are copied. */
tg_status tg_rotate(tg_call *c, const tg_rotation *r, const tg_tensor *y, const tg_tensor *x, bool add);

#endif
