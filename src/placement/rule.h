/* The one rule of placements (docs/placements.md), applied when an op is recorded.
 *
 * Two things decide how an op takes placements: the role of every input dim, and the sets of inputs in which it is
 * jointly linear. infer may state them; the op's family fills in what it left open. Then the rule runs once an axis.
 */
#ifndef TG_PLACEMENT_H
#define TG_PLACEMENT_H

#include "placement/placing.h"
#include "tape/tape.h"

typedef struct tg_rules tg_rules;

/* How a shard of input i along a dim that this call moves comes out on one axis: *to is the input's placement and
 * becomes the output's, or the call is refused. */
typedef tg_status (*tg_shard_rule)(tg_call *c, tg_axis axis, tg_placement *to);

enum { TG_ROLE_OPEN = -3, TG_MAX_SETS = 4, TG_MAX_CONVERSIONS = 8, TG_ALL_INPUTS = -1 };

typedef struct tg_conversion {
    int in, out;
    tg_axis axis;
    tg_placement from, to;
    const char *mend;
} tg_conversion;

struct tg_rules {
    int n_sets; /* TG_ROLE_OPEN: none was stated */
    uint32_t set[TG_MAX_SETS];
    uint32_t stretch;        /* inputs that may have size 1 where others have a shard */
    uint32_t stretched_dims; /* output dims in which they may */
    uint32_t alike;          /* inputs of which all or none are sharded along a stretched dim */
    uint32_t uneven;         /* output dims in which shards may have several local sizes, in one proportion */
    uint32_t within;         /* inputs that every term of a sum over a sharded dim holds whole */
    tg_shard_rule move;      /* NULL: roles say it all */
    int move_dim;            /* of the inputs; TG_ALL_INPUTS: every dim */
    int move_to;             /* of a reshape: the output dim that the call names, or -1 */
    int n_conversions;
    tg_conversion conversion[TG_MAX_CONVERSIONS];
    bool filled;                /* the family has filled in the roles */
    bool loose;                 /* a refusal of the axis at hand is no error: the result is opaque there */
    int8_t role[][TG_MAX_DIMS]; /* of every input's dims */
};

/* Gives every output of c its placement, or refuses the call with TG_ERR_PLACEMENT: what would have gone wrong, and
 * which op mends it. After infer, before forward; only where the context's grid has an axis. */
tg_status tg_placement_derive(tg_call *c);
/* The rules of the call at work, begun where infer has stated nothing. NULL after recording the error. */
tg_rules *tg_rules_of(tg_call *c);
/* What infer left open, by the op's family: sets always, roles only where a shard asks for them. */
void tg_rules_sets(const tg_call *c, tg_rules *r);
void tg_rules_roles(const tg_call *c, tg_rules *r);

/* TG_ERR_PLACEMENT: axis, inputs with their placements, what would have gone wrong, what mends it. Where the rules are
 * loose it records nothing. */
tg_status tg_placement_refuse(const tg_call *c, tg_axis axis, const char *why, const char *mend);
/* Whether input i needs a gradient, and whether the op will give it one. In the first run of a recomputation they say
 * what the second will. */
bool tg_call_asks_gradient(const tg_call *c, int i);
bool tg_call_differentiable(const tg_call *c, int i);
bool tg_call_any_differentiable(const tg_call *c);
/* The first run of a recomputation keeps no node, but must place its results as the second will. */
void tg_call_note_differentiable(tg_call *c);
/* Checks the conversions of the call on one axis. */
tg_status tg_placement_convert(tg_call *c, const tg_rules *r, tg_axis axis);
/* p with axis converted. Where axes share a dim the one that comes is minor, and those inside the one that goes close
 * up. */
const tg_placements *tg_place_converted(tg_ctx *ctx, const tg_placements *p, tg_axis axis, tg_placement to);
/* The same with the axis in its place among them, to.order, as it had it before a conversion. */
const tg_placements *tg_place_returned(tg_ctx *ctx, const tg_placements *p, tg_axis axis, tg_placement to);

/* ---- For infer, beside tg_call_role and tg_call_linear of extend.h ---- */

/* tg_call_convert with the axis of a communicator. */
tg_status tg_call_convert_on(tg_call *c, int i, tg_placement from, int o, tg_placement to, tg_axis axis,
                             const char *mend);
/* Whether anybody hears what is stated: without a grid these functions do nothing. */
static inline bool tg_call_places(const tg_call *c) { return tg_grid_axes(c->ctx) != 0; }
/* Every dim d of input i becomes output dim d + shift. */
tg_status tg_call_free(tg_call *c, int i, int shift);
/* The call reshapes input 0; named: the output dim that its shard becomes, -1 for the first that can be. */
tg_status tg_call_reshapes(tg_call *c, int named);
/* The inputs follow each other along dim; or input 0 is cut along dim into equal parts, or into others. */
tg_status tg_call_joins(tg_call *c, int dim);
tg_status tg_call_cuts(tg_call *c, int dim);
/* Inputs of the mask may lack the summed dims: every term holds them whole. */
tg_status tg_call_within(tg_call *c, uint32_t mask);
/* Inputs of the mask may have size 1 where others have a shard. */
tg_status tg_call_stretch(tg_call *c, uint32_t mask);
/* infer itself has set the outputs' placements. */
void tg_call_placed(tg_call *c);

/* ---- Check mode (src/placement/check.c) ---- */

/* A leaf that is I or R has the same bytes on the ranks of tensor- and context-parallel axes: at its first use. */
tg_status tg_placement_compare(tg_tensor *x);
/* x must have the same bytes on every rank of c: collective. */
tg_status tg_placement_compare_over(tg_tensor *x, tg_comm *c, const char *who);
/* The axes on which x claims to have the same bytes on every rank. */
uint32_t tg_placement_claimed(const tg_tensor *x);
/* Whether x has bytes that a hash can be taken of, and that hash. */
bool tg_placement_comparable(const tg_tensor *x);
tg_status tg_placement_hash(const tg_tensor *x, int64_t *out);
/* Fails unless the hashes mine [n] of the tensors x [n] are the same on every rank of the axis. Collective. */
tg_status tg_placement_compare_hashes(tg_tensor *const *x, const int64_t *mine, int64_t n, tg_axis axis);

/* ---- Gradients ---- */

/* What x's gradient has: the dual of its placement; whole, the same on every rank where that was PARTIAL. */
const tg_placements *tg_placement_of_gradient(const tg_tensor *x, bool whole);
/* g can be a gradient of x, of which `what` says whose it is. */
tg_status tg_placement_fits(const tg_tensor *x, const tg_tensor *g, const char *what);
/* What a root is seeded with: 1, or 1/n on an axis of n ranks where it is R. */
double tg_placement_seed(const tg_tensor *root);

#endif
