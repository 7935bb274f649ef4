/* Placements: how a tensor lies over the ranks of an axis. */
#ifndef TAPEGRAD_PLACEMENT_H
#define TAPEGRAD_PLACEMENT_H

#include <tapegrad/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Placements ---- */

/* By value; the names of docs/placements.md. */
#ifndef __cplusplus
#define TG_I ((tg_placement){.kind = TG_INVARIANT})
#define TG_R ((tg_placement){.kind = TG_REPLICATED})
#define TG_P ((tg_placement){.kind = TG_PARTIAL})
#define TG_V ((tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE})
#define TG_SHARD(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (d)})
#define TG_SHARD_STRIDED(d, k) ((tg_placement){.kind = TG_VARYING, .layout = TG_STRIDED, .dim = (d), .chunks = (k)})
#define TG_SHARD_ZIGZAG(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = (d)})
#endif

/* Declares how a leaf lies on one axis of p, before its first use: a claim that the library cannot see (check mode
 * compares I and R leaves over the axis: on tp and cp at their first use, on dp by tg_grads_finalize). Undeclared:
 * parameters and what the library made are I, the caller's bytes (tg_from_host, tg_wrap, tg_write) V on tp, cp and dp,
 * and I on the expert grid's axes; pp places nothing. Parameters are never P, nor V without a layout. Where several
 * axes shard one dim, the axis placed first is the major one, whose chunks the others may cut. An axis of one rank
 * takes any placement and keeps none. A leaf is placed once on an axis (TG_ERR_STATE), which etp and tp may share
 * (tg_parallel_opts). */
TG_API tg_status tg_place(const tg_parallel *p, tg_tensor *leaf, tg_axis axis, tg_placement placement);
/* What can be read off any tensor; an op's result has what the one rule gave. I where x was never placed. */
TG_API tg_placement tg_placement_of(const tg_tensor *x, tg_axis axis);
TG_API tg_shape tg_global_shape(const tg_tensor *x);
TG_API size_t tg_placement_text(const tg_tensor *x, char *buf, size_t n); /* "dp R, tp V0:s3"; "" when all are I */
/* The escape hatch: x with another placement on an axis, identity both ways, nothing checked. The name says it in
 * dumps and errors. */
TG_API tg_tensor *tg_assume_placement(tg_tape *t, tg_tensor *x, const tg_parallel *p, tg_axis axis, tg_placement to);

/* A parameter of this rank: of the global shape, placed; its local shape follows. Drawn by global coordinates, so
 * that shards of any tp put together are the parameter of one rank, bit for bit; with TG_RNG_MEGATRON each shard from
 * its rank's stream, an expert's one where at[] names an axis of that grid. Where several axes shard one dim the order
 * in at[] is the order of the axes, major first. */
typedef struct tg_place_at {
    tg_axis axis;
    tg_placement placement;
} tg_place_at;

/* TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}): the last two arguments in one. */
#define TG_PLACES(...)                  \
    (const tg_place_at[]){__VA_ARGS__}, \
        (int)(sizeof((const tg_place_at[]){__VA_ARGS__}) / sizeof(tg_place_at))

TG_API tg_tensor *tg_param_placed(const tg_parallel *p, const char *name, tg_dtype dtype, tg_shape global, double std,
                                  const tg_place_at *at, int n);

/* tg_reshape that says which dim of the result x's shard becomes, where the sizes leave that open: one head a rank,
 * [s, b, h/n] V2 to [s, b, 1, h/n] V2, not V3. */
TG_API tg_tensor *tg_reshape_shard(tg_tape *t, tg_tensor *x, tg_shape shape, int dim);

#ifdef __cplusplus
}
#endif

#endif
