/* What the mapping ops share: their params, and the ways in which data moves between ranks. The files of this folder
 * write conversions of placements in letters, as in V0 -> R: I, R, P and V are TG_I, TG_R, TG_P and TG_V of
 * placement.h, and Vd is a shard of dim d.
 *
 * If a tensor is cut along a dim over the n ranks of a group, `whole` is the uncut tensor and `part` is the piece of
 * one rank. The collectives need memory in which the parts lie one after the other, rank by rank. If the dim is 0 and
 * the parts are not strided or zigzag shards, the whole tensor is such memory. Otherwise a staging buffer is used,
 * which is copied to or from the whole tensor. */
#ifndef TG_MAPPING_H
#define TG_MAPPING_H

#include "ops/common/op.h"
#include "comm/comm.h"

typedef struct tg_mapping_params {
    tg_comm *comm;         /* first member, as in the params of every op that communicates */
    int dim;               /* the dim that is cut or joined; negative: from the end */
    int cut;               /* of reshard, which joins `dim`: the dim that is cut */
    int root;              /* of broadcast and on_root: the root; of shift: by how many ranks data moves */
    bool invariant;        /* of a gather: the result is I instead of R */
    const char *buffer;    /* name of the buffer for the result (tg_lease); NULL: memory of its own */
    tg_placement shard;    /* layout of the parts; if that is TG_OPAQUE (0): contiguous, or as the input of a gather */
    const int64_t *splits; /* number of rows (of dim 0) of each rank; NULL: equal. infer copies them to the tape */
    const int64_t *recv;   /* of AllToAll: number of rows from each rank; splits has the numbers to each rank */
    int n_splits, n_recv;  /* lengths of splits and recv, which must be the number of ranks; 0: not known */
    const int64_t *counts, *recv_counts; /* splits and recv in elements, set by infer; NULL: equal parts */
    int64_t rows;          /* of an embedding table: number of valid rows; later rows are padding. 0: all rows */
} tg_mapping_params;

/* ---- mapping_infer.c ---- */

static inline tg_mapping_params *tg_mapping_of(const tg_call *c) { return c->params; }
/* Fails unless params have a communicator of the call's context. */
tg_status tg_mapping_check(tg_call *c);
/* Both check the communicator, and declare output 0 with the shape of input 0: tg_mapping_like as a new tensor,
 * tg_mapping_view as a view of input 0. */
tg_status tg_mapping_like(tg_call *c);
tg_status tg_mapping_view(tg_call *c);
/* Declare output 0 as this rank's part of input 0 (cut), or as the whole tensor of which input 0 is a part (join). Both
 * check dim, shard and splits of the params, fill in their defaults, and set counts. */
tg_status tg_mapping_cut(tg_call *c);
tg_status tg_mapping_join(tg_call *c);
/* Returns the placement of input 0 on the communicator's axis, if that is V or a shard along params->dim. Otherwise
 * returns the placement that input 0 should have: the contiguous shard along params->dim. */
tg_placement tg_mapping_input_placement(const tg_call *c);
/* Returns the placement of a part: V if the params have splits, else params->shard. */
tg_placement tg_mapping_part_placement(const tg_call *c);
/* States that the op converts input 0 from one placement to the other on the communicator's axis. remedy: the advice
 * that ends the error message if input 0 has another placement. */
tg_status tg_mapping_convert(tg_call *c, tg_placement from, tg_placement to, const char *remedy);
/* (*rows)[r] is the number of rows of rank r. Sets *counts to these numbers in elements, and *rows to a copy of them;
 * the tape owns both. The caller has listed `given` numbers, one for each rank; 0: their number is not known. */
tg_status tg_mapping_row_counts(tg_call *c, const int64_t **rows, int given, int64_t row_elements,
                                const int64_t **counts);

extern const tg_placement tg_at_i, tg_at_r, tg_at_p, tg_at_v; /* TG_I, TG_R, TG_P and TG_V */

/* ---- collective_copy.c. dst is contiguous, and may be in flight at the return; src may have any strides. ---- */

/* Starts a collective at the call's site. If a.src is not contiguous, the collective gets a contiguous copy. */
tg_status tg_collective_start(tg_call *c, tg_comm *comm, tg_collective_args a);
/* .._sum sets dst to the sum of src over the ranks. .._gather sets dst to the whole tensor of which src is this rank's
 * part. .._reduce_scatter sets dst to this rank's part of the sum of src over the ranks. */
tg_status tg_collective_copy_sum(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src);
tg_status tg_collective_copy_gather(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src);
tg_status tg_collective_copy_reduce_scatter(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src);
/* Cuts src along dim `cut`, sends one part to each rank, and joins the received parts along dim `join` in dst. */
tg_status tg_collective_copy_exchange(tg_call *c, const tg_mapping_params *p, tg_tensor *dst, tg_tensor *src, int join,
                                      int cut);
/* One chunk of a rank's part. Along the dim that is cut: where the chunk begins in the part and in the whole tensor,
 * and its size. */
typedef struct tg_piece {
    int64_t part, whole, size;
} tg_piece;

/* Returns chunk j of rank r's part. size: of the part along the dim. */
tg_piece tg_mapping_piece(const tg_mapping_params *p, int64_t size, int r, int j);
/* tg_collective_copy_part copies this rank's part out of the whole tensor. tg_collective_copy_place copies the part to
 * its place in the whole tensor or, if `add`, adds it there. */
tg_status tg_collective_copy_part(tg_call *c, const tg_mapping_params *p, tg_array part, tg_array whole);
tg_status tg_collective_copy_place(tg_call *c, const tg_mapping_params *p, tg_array whole, tg_array part, bool add);

/* ---- mapping_backward.c ---- */

/* Returns a temporary with the shape of input 0, for its gradient. */
tg_tensor *tg_mapping_gradient(tg_call *c);
/* Makes g the gradient of input 0. g may still be in flight. */
tg_status tg_mapping_give(tg_call *c, tg_tensor *g);
/* Backward functions. Each makes the gradient of input 0 from g, which is this rank's gradient of output 0: */
tg_status tg_mapping_pass(tg_call *c);           /* g itself */
tg_status tg_mapping_sum(tg_call *c);            /* the sum of g over the ranks */
tg_status tg_mapping_gather(tg_call *c);         /* the g of all ranks, joined */
tg_status tg_mapping_reduce_scatter(tg_call *c); /* this rank's part of the sum of g over the ranks */
tg_status tg_mapping_keep_part(tg_call *c);      /* this rank's part of g */
tg_status tg_mapping_place_part(tg_call *c);     /* g in the place of this rank's part, and zeros elsewhere */

/* ---- Recording (mapping_infer.c) ---- */

/* Records a mapping of x. If the communicator has one rank, returns x itself, and checks only t, x and the
 * communicator. */
tg_tensor *tg_mapping_record(tg_tape *t, const tg_op *op, const tg_mapping_params *p, tg_tensor *x, const void *site);
#define TG_MAP(t, op, x, ...) \
    tg_mapping_record(t, &(op), &(const tg_mapping_params){__VA_ARGS__}, x, TG_SITE)
/* For vjp: records op on gout[0], with params p (NULL: those of the node), and sets gin[0] to the result. */
tg_status tg_mapping_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin, const tg_op *op,
                         const tg_mapping_params *p);

/* Ops that functions of other ops record, most of them the vjp. */
extern const tg_op tg_op_copy_to_tp, tg_op_reduce_from_tp, tg_op_scatter_to, tg_op_shard, tg_op_unshard,
    tg_op_gather_from, tg_op_all_gather, tg_op_reduce_scatter, tg_op_as_partial, tg_op_as_local, tg_op_i_to_p,
    tg_op_r_to_i, tg_op_broadcast, tg_op_on_root;

/* The arguments of mappings: TG_MAPPING_C has only c, and TG_MAPPING_D has d and c. */
extern const tg_field tg_mapping_fields[2];
#define TG_MAPPING_C .fields = tg_mapping_fields + 1, .n_fields = 1
#define TG_MAPPING_D .fields = tg_mapping_fields, .n_fields = 2

/* The fields of tg_op that all mappings have in common. Each mapping adds the others. */
#define TG_MAPPING(name_, formula_)                                                                                 \
    .size = sizeof(tg_op), .name = name_, .formula = formula_, .inputs = "x", .n_in = 1, .n_out = 1,                \
    .params_size = sizeof(tg_mapping_params), .passes = 1, .family = TG_FAMILY_CUSTOM

#endif
