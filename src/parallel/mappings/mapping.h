/* What the mapping ops share: their params, and the ways in which data moves between ranks.
 *
 * Of a tensor that is cut along a dim over the n ranks of a group, `whole` is the uncut one and `part` one rank's. On
 * the wire the parts lie one after the other, rank by rank; along dim 0 that is the whole itself, else it is a staging
 * buffer that is copied to or from it.
 */
#ifndef TG_MAPPING_H
#define TG_MAPPING_H

#include "ops/common/op.h"
#include "comm/comm.h"

typedef struct tg_mapping_params {
    tg_comm *comm;         /* first, as in every op that ranks meet in */
    int dim;               /* that is cut or put together; negative from the end */
    int cut;               /* of reshard: dim is put together, this one is cut */
    int root;              /* of a broadcast; how far a shift goes */
    bool invariant;        /* a gather's result is I, else R */
    const char *buffer;    /* name of a lease for the result, or NULL */
    tg_placement shard;    /* layout and chunks of the parts; layout 0: contiguous. A gather finds them by itself */
    const int64_t *splits; /* rows of dim 0 of each rank; NULL: equal parts. infer makes these the tape's */
    const int64_t *recv;   /* of an exchange: rows that come from each rank, and splits those that go */
    const int64_t *counts, *recv_counts; /* infer's: the same in elements */
    int64_t rows;          /* of a table: ids are below; those behind are padding. 0: all of the ranks' */
} tg_mapping_params;

/* ---- mapping_infer.c ---- */

static inline tg_mapping_params *tg_mapping_of(const tg_call *c) { return c->params; }
/* The communicator is there, and of this context. */
tg_status tg_mapping_check(tg_call *c);
/* tg_mapping_check, and output 0 is like input 0: where nothing moves a view of it. */
tg_status tg_mapping_like(tg_call *c);
tg_status tg_mapping_view(tg_call *c);
/* Output 0 is this rank's part of input 0, or the whole of which that is a part. Both resolve dim, shard and counts. */
tg_status tg_mapping_cut(tg_call *c);
tg_status tg_mapping_join(tg_call *c);
/* What input 0 is on the communicator's axis if it is a shard along dim or opaque, else the contiguous shard that it
 * should be. */
tg_placement tg_mapping_from(const tg_call *c);
/* What cutting makes: opaque where the parts are uneven. */
tg_placement tg_mapping_to(const tg_call *c);
tg_status tg_mapping_convert(tg_call *c, tg_placement from, tg_placement to, const char *mend);
/* *counts = rows times elements a row, for each rank; rows become the tape's copy. */
tg_status tg_mapping_counts(tg_call *c, const int64_t **rows, int64_t each, const int64_t **counts);

extern const tg_placement tg_at_i, tg_at_r, tg_at_p, tg_at_v;

/* ---- collective_copy.c. dst is contiguous and fresh, and may be in flight afterwards; src has any strides ---- */

/* Starts a collective at the call's site, of a dense copy of a.src. */
tg_status tg_collective_start(tg_call *c, tg_collective_args a);
tg_status tg_collective_copy_sum(tg_call *c, tg_tensor *dst, tg_tensor *src);
tg_status tg_collective_copy_gather(tg_call *c, tg_tensor *dst, tg_tensor *src);
tg_status tg_collective_copy_reduce_scatter(tg_call *c, tg_tensor *dst, tg_tensor *src);
/* What is cut along `cut` becomes whole there and is cut along `dim`, or the other way round. */
tg_status tg_collective_copy_exchange(tg_call *c, tg_tensor *dst, tg_tensor *src, int join, int cut);
/* Chunk j of rank r's part: where it begins along the dim, in the part and in the whole, and how long it is. */
typedef struct tg_piece {
    int64_t part, whole, size;
} tg_piece;

/* size: of the part. */
tg_piece tg_mapping_piece(const tg_mapping_params *p, int64_t size, int r, int j);
/* Copies between this rank's part and its place in the whole. */
tg_status tg_collective_copy_part(tg_call *c, tg_array part, tg_array whole);
tg_status tg_collective_copy_place(tg_call *c, tg_array whole, tg_array part, bool add);

/* ---- mapping_backward.c ---- */

/* A temporary like input 0, for its gradient; then: it is the gradient, perhaps in flight. */
tg_tensor *tg_mapping_gradient(tg_call *c);
tg_status tg_mapping_give(tg_call *c, tg_tensor *g);
tg_status tg_mapping_pass(tg_call *c);   /* the gradient of the output is that of the input */
tg_status tg_mapping_sum(tg_call *c);    /* its sum over the ranks is */
tg_status tg_mapping_gather(tg_call *c); /* all ranks' together are */
tg_status tg_mapping_reduce_scatter(tg_call *c);
tg_status tg_mapping_own(tg_call *c);    /* this rank's part is */
tg_status tg_mapping_unown(tg_call *c);  /* it is this rank's part, the rest is 0 */

/* ---- Recording (mapping_infer.c) ---- */

/* Records a mapping of x, or returns x itself on a group of one. */
tg_tensor *tg_mapping_record(tg_tape *t, const tg_op *op, const tg_mapping_params *p, tg_tensor *x, const void *site);
#define TG_MAP(t, op, x, ...) \
    tg_mapping_record(t, &(op), &(const tg_mapping_params){__VA_ARGS__}, x, TG_SITE)
/* For vjp: gin[0] = op of gout[0], with the node's params (p NULL) or others. */
tg_status tg_mapping_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin, const tg_op *op,
                         const tg_mapping_params *p);

/* The ops that another's vjp records. */
extern const tg_op tg_op_copy_to_tp, tg_op_reduce_from_tp, tg_op_scatter_to, tg_op_shard, tg_op_unshard,
    tg_op_gather_from, tg_op_all_gather, tg_op_reduce_scatter, tg_op_as_shard, tg_op_as_opaque, tg_op_as_partial,
    tg_op_as_local, tg_op_i_to_p, tg_op_r_to_i, tg_op_broadcast, tg_op_on_root;

/* What every mapping's tg_op begins with. */
#define TG_MAPPING(name_, formula_)                                                                                 \
    .size = sizeof(tg_op), .name = name_, .formula = formula_, .n_in = 1, .n_out = 1,                               \
    .params_size = sizeof(tg_mapping_params), .passes = 1, .family = TG_FAMILY_CUSTOM

#endif
