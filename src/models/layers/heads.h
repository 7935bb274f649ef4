/* What attention layers share: heads as a dim of their own, fewer heads of keys than ranks, rotary positions, and
 * attention of sequences that are whole or divided over ranks. Activations are [s, b, h]. */
#ifndef TG_HEADS_H
#define TG_HEADS_H

#include <tapegrad/context_parallel.h>
#include <tapegrad/ops.h>

/* Returns a view [b, heads, s, d] of x [s, b, heads * d]. If x is sharded along its last dim, the view is sharded along
 * heads. */
tg_tensor *tg_heads_split(tg_tape *t, tg_tensor *x, int64_t d);
/* Returns x [b, heads, s, d] as [s, b, heads * d]. */
tg_tensor *tg_heads_join(tg_tape *t, tg_tensor *x);
/* Returns this rank's head if there are fewer heads than ranks of c: x [s, b, heads * d] -> [s, b, d]. x has all heads
 * and is the same on every rank. Repeats each head so that there are as many as ranks; rank r takes number r. */
tg_tensor *tg_heads_own(tg_tape *t, tg_tensor *x, int64_t heads, tg_comm *c);
/* Rotates queries and keys [b, heads, n, d] by their positions (tg_rope_with). o->positions are those of this rank's
 * rows. If they are NULL and cp has one rank, positions count from o->offset, and `starts` is not used. If they are
 * NULL and cp has several ranks, positions count from 0, and a rank rotates by those of its chunks. `starts` are then
 * the beginnings of packed sequences, each of which is cut into chunks by itself (tg_context_attention_opts), and
 * positions count from 0 in each of them; NULL: there is one sequence. p may be NULL. */
void tg_heads_rotate(tg_tape *t, tg_tensor *qk[2], const tg_rope_opts *o, tg_tensor *starts, const tg_parallel *p);
/* Returns softcap * tanh(x / softcap), and x if softcap is TG_NONE. */
tg_tensor *tg_softcap(tg_tape *t, tg_tensor *x, double softcap);
/* Returns the attention of queries, keys and values, each [b, heads, n, d]: tg_context_attention if cp has several
 * ranks; otherwise tg_attention, without what only concerns ranks. p may be NULL. */
tg_tensor *tg_heads_attend(tg_tape *t, tg_tensor *const qkv[3], const tg_parallel *p,
                           const tg_context_attention_opts *o);

#endif
