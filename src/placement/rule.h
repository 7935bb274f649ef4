/* The rule of placements (docs/placements.md), which is applied when an op is recorded. The letters I, R, P and V are
 * explained in placement/placing.h.
 *
 * Two properties of an op decide how it treats placements: the role of every input dim, and the sets of inputs in
 * which it is jointly linear. infer may state them; the op's family fills in the rest. The rule then runs once for
 * each axis. */
#ifndef TG_PLACEMENT_H
#define TG_PLACEMENT_H

#include "placement/placing.h"
#include "tape/tape.h"

typedef struct tg_rules tg_rules;

/* Moves a shard of a dim that this call joins, cuts or reshapes. On entry *to is the input's placement on the axis,
 * on return the output's. May refuse the call. */
typedef tg_status (*tg_shard_rule)(tg_call *c, tg_axis axis, tg_placement *to);

/* TG_ROLE_OPEN: nothing has been stated yet. */
enum { TG_ROLE_OPEN = -3, TG_MAX_SETS = 4, TG_MAX_CONVERSIONS = 8, TG_ALL_INPUTS = -1 };

/* A statement of tg_call_convert: on the axis, input `in` must be placed as `from`, and output `out` is then `to`. */
typedef struct tg_conversion {
    int in, out;
    tg_axis axis;
    tg_placement from, to;
    const char *remedy; /* how to avoid a refusal; may be NULL */
} tg_conversion;

/* What is known of one call: statements of infer, and what the op's family fills in. Bit masks are of inputs, of dims
 * of the output, or of axes. In a mask of inputs, bit 31 stands for all inputs from 31 on. */
struct tg_rules {
    int n_sets;                /* number of entries of set[]; TG_ROLE_OPEN if infer has stated none */
    uint32_t set[TG_MAX_SETS]; /* each is a mask of inputs in which the op is jointly linear */
    uint32_t stretch;        /* inputs that may have size 1 where others have a shard */
    uint32_t stretched_dims; /* output dims in which the inputs of `stretch` may have size 1 */
    uint32_t alike;          /* inputs of which, along a stretched dim, either all or none are sharded */
    uint32_t uneven;         /* output dims whose shards may differ in local size between inputs */
    uint32_t within;         /* inputs that may lack a summed dim: every term of the sum uses the whole input */
    tg_shard_rule move;      /* NULL if the roles say everything */
    int move_dim;            /* the input dim that `move` handles; TG_ALL_INPUTS means every dim */
    int move_to;             /* of a reshape: the output dim that the call names, or -1 */
    int n_conversions;
    tg_conversion conversion[TG_MAX_CONVERSIONS];
    uint32_t drawn;             /* axes on which each rank combines the inputs with random numbers of its own */
    bool filled;                /* the family has filled in the roles */
    bool loose;                 /* a refusal on the current axis is no error: the result is opaque there */
    int8_t role[][TG_MAX_DIMS]; /* for each dim of each input: an output dim, TG_WHOLE, TG_SUMMED or TG_ROLE_OPEN */
};

/* Gives every output of c its placement, or refuses the call with TG_ERR_PLACEMENT. The message says what would go
 * wrong and which op to use. Called after infer and before forward, and only if some axis of the context's grid has
 * several ranks. */
tg_status tg_placement_derive(tg_call *c);
/* Returns the rules of the current call, empty ones if infer has stated nothing. NULL after recording the error. */
tg_rules *tg_rules_of(tg_call *c);
/* Fill in what infer has left open, by the op's family. The sets are needed for every call; the roles only if an
 * input is a shard. */
void tg_rules_sets(const tg_call *c, tg_rules *r);
void tg_rules_roles(const tg_call *c, tg_rules *r);

/* Refuses the call with TG_ERR_PLACEMENT. The message has the axis, the inputs' placements, what would go wrong
 * (`why`) and how to avoid it (`remedy`). If the rules are loose, records nothing and returns TG_ERR_PLACEMENT. */
tg_status tg_placement_refuse(const tg_call *c, tg_axis axis, const char *why, const char *remedy);
/* Writes the advice of a refusal to buf. It ends with `remedy`. If the cause can be a leaf that tg_place did not
 * declare, or that it declared I on a data axis, the advice begins with that leaf and the call of tg_place to add.
 * `meets` says that one input is I and needs a gradient, and that another is V or P, or is R and needs a gradient. */
void tg_placement_remedy(const tg_call *c, tg_axis axis, bool meets, const char *remedy, char *buf, size_t n);
/* tg_call_asks_gradient returns whether input i needs a gradient, tg_call_differentiable whether the op will also give
 * it one, and tg_call_any_differentiable whether the op will give one to any input. In the first run of a recomputation
 * they return what they will return in the second run. */
bool tg_call_asks_gradient(const tg_call *c, int i);
bool tg_call_differentiable(const tg_call *c, int i);
bool tg_call_any_differentiable(const tg_call *c);
/* Marks the outputs that will need a gradient. The first run of a recomputation keeps no node, but must place its
 * results as the second run will. */
void tg_call_note_differentiable(tg_call *c);
/* Checks the conversions of the call on one axis. */
tg_status tg_placement_convert(tg_call *c, const tg_rules *r, tg_axis axis);
/* Returns p with the placement `to` on `axis`. If several axes shard the new dim, this axis becomes the minor one.
 * Among the axes that shard the old dim, those that were minor to this axis move up by one position. */
const tg_placements *tg_place_converted(tg_ctx *ctx, const tg_placements *p, tg_axis axis, tg_placement to);
/* Does the same, but gives `axis` the position to.order among the axes that shard the dim: the position that it had
 * before a conversion. */
const tg_placements *tg_place_returned(tg_ctx *ctx, const tg_placements *p, tg_axis axis, tg_placement to);

/* ---- For infer, in addition to tg_call_role and tg_call_linear of op.h ---- */

/* Returns whether statements have an effect. Without a grid the functions below do nothing. */
static inline bool tg_call_places(const tg_call *c) { return tg_grid_axes(c->ctx) != 0; }
/* States that every dim d of input i is free (it may be sharded), and becomes output dim d + shift. */
tg_status tg_call_free(tg_call *c, int i, int shift);
/* States that the call reshapes input 0. `named` is the output dim that the shard becomes, or -1 for the
 * first possible one. */
tg_status tg_call_reshapes(tg_call *c, int named);
/* tg_call_joins states that the call concatenates its inputs along dim. tg_call_cuts states that it splits input 0
 * along dim into its outputs, of equal or different sizes. */
tg_status tg_call_joins(tg_call *c, int dim);
tg_status tg_call_cuts(tg_call *c, int dim);
/* States that the inputs of the mask may lack the summed dims, because every term of the sum uses these inputs
 * whole. */
tg_status tg_call_within(tg_call *c, uint32_t mask);
/* States that the inputs of the mask may have size 1 where others have a shard. */
tg_status tg_call_stretch(tg_call *c, uint32_t mask);
/* States that the call draws from the current stream. On the axes over which tg_rng_seed_parallel seeded that stream by
 * rank, the result varies. */
tg_status tg_call_draws_now(tg_call *c);
/* States that infer itself has set the outputs' placements. */
void tg_call_placed(tg_call *c);

/* ---- Check mode (placement/check.c, check_results.c, differences.c) ---- */

/* Fails unless a leaf has the same bytes on all ranks of each axis on which it is I or R, except for the data-parallel
 * axes. Called at the first use of the leaf. */
tg_status tg_placement_compare(tg_tensor *x);
/* Compares a root of a backward if it is a leaf that has not been compared. Compares the seed that the caller gave for
 * the root, unless it is NULL, on the axes where the gradient of the root is the same on every rank, except for the
 * data-parallel axes. Does nothing outside check mode. */
tg_status tg_placement_compare_root(tg_tensor *root, tg_tensor *seed, const char *who);
/* Compares what a gradient hook of x returned, on the axes where the gradient of x is the same on every rank, except
 * for the data-parallel axes. The hook must return another tensor on all ranks of these axes or on none. Does nothing
 * outside check mode. */
tg_status tg_placement_compare_hooked(const tg_tensor *x, tg_tensor *g);
/* Returns, after the rule and before forward, whether the results of the call will be compared. */
bool tg_placement_compares_results(const tg_call *c);
/* Called when forward has filled the results of an op. Compares inputs and results on the axes where their placements
 * say that they are equal, except for the data-parallel axes. If inputs agree and results do not, the ranks gave the op
 * different numbers, or drew from streams with different seeds. */
tg_status tg_placement_compare_results(tg_call *c);
/* Compares one number with that of rank 0. *rank is -1 if all are equal, and also if comm moves no data. Otherwise it
 * is the first rank that differs; *first and *other are the numbers of rank 0 and of that rank. Collective. */
tg_status tg_placement_compare_number(tg_ctx *ctx, tg_comm *comm, int64_t mine, int *rank, int64_t *first,
                                      int64_t *other);
/* Fails unless x has the same bytes on every rank of c. Does nothing unless tg_placement_comparable(x). Collective. */
tg_status tg_placement_compare_over(tg_tensor *x, tg_comm *c, const char *who);
/* Returns the axes on which the placement of x says that x has the same bytes on every rank. */
uint32_t tg_placement_claimed(const tg_tensor *x);
/* Return whether x has bytes that can be hashed now (it is contiguous and not of device meta, and no step is being
 * recorded), and compute that hash. */
bool tg_placement_comparable(const tg_tensor *x);
tg_status tg_placement_hash(const tg_tensor *x, int64_t *out);
/* Fails unless the hashes mine [n] of the tensors x [n] are the same on every rank of the axis. Collective. */
tg_status tg_placement_compare_hashes(tg_tensor *const *x, const int64_t *mine, int64_t n, tg_axis axis);

/* ---- Gradients ---- */

/* Returns the placement of x's gradient: the dual of x's placement. `whole`: the gradient has been summed over
 * ranks, so an axis on which it would be PARTIAL is I. */
const tg_placements *tg_placement_of_gradient(const tg_tensor *x, bool whole);
/* Fails unless g is placed like a gradient of x. The error message begins with `what`. */
tg_status tg_placement_fits(const tg_tensor *x, const tg_tensor *g, const char *what);
/* Returns the seed of a root: 1, divided by n for every axis of n ranks on which the root is R. */
double tg_placement_seed(const tg_tensor *root);

#endif
