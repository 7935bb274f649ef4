/* The rotation of pairs of elements by angles that depend on the row's position. The ops of rotary position embedding
 * (Su et al., arXiv 2104.09864) share it. */
#ifndef TG_ROTATION_H
#define TG_ROTATION_H

#include "ops/common/op.h"

/* The angles of a rotation. In a row at position p, pair i is rotated by the angle p f(i), where f(i) is its frequency.
 * The plain frequency of pair i of `half` pairs is base^(-i / half); opts.kind says how it is changed. opts.dims is
 * 2 half, and not TG_AUTO. */
typedef struct tg_rotation {
    tg_rope_opts opts;
    const tg_tensor *positions; /* int64 [s], or [n, s] for x [n, .., s, d]; NULL: offset, offset + 1 and so on */
    bool back;                  /* rotate in the opposite direction */
} tg_rotation;

/* Checks that the positions, input i of the call, fit x, which is input 0, and states how both may be sharded. */
tg_status tg_rotation_positions(tg_call *c, int i);
/* y (+)= x with its rows rotated, x [.., s, d]. In each row, elements i and i + dims / 2 form a pair, for i < dims / 2.
 * A pair (u, v) becomes (u cos - v sin, v cos + u sin) or, if back is true, (u cos + v sin, v cos - u sin). The
 * elements from dims on are copied. */
tg_status tg_rotate(tg_call *c, const tg_rotation *r, const tg_tensor *y, const tg_tensor *x, bool add);

#endif
