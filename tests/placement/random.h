/* Random programs over the op table: the representation of a program, and its one-rank reference.
 *
 * A program is a list of nodes, each a leaf or an op on earlier nodes. Ranks build it op by op: an op that the rule
 * refuses is omitted, and an accepted one is kept with the placement that it got. The reference then computes what
 * those placements denote: the op on whole tensors or, if the result is opaque, the op on the data of each rank. */
#ifndef TG_TEST_RANDOM_H
#define TG_TEST_RANDOM_H

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/mappings.h>

#include "core/context.h"

enum { AXES = 2, NODES = 48, INPUTS = 3, RANKS = 4, ELEMENTS = 1024 };

/* X(name): ops of one tensor or several of its shape, products, reductions, shapes, indices, losses, mappings. */
#define RANDOM_OPS(X)                                                                                            \
    X(LEAF) X(NEG) X(SCALE) X(TANH) X(SQUARE) X(ADD_SCALAR) X(DETACH) X(CONTIGUOUS) X(DROPOUT) X(ADD) X(SUB)     \
    X(MUL) X(DIV) X(MAXIMUM) X(WHERE) X(FILL) X(SWIGLU) X(ADD_) X(COPY_) X(MATMUL) X(LINEAR) X(LINEAR_BIAS)      \
    X(LINEAR_GELU) X(SUM) X(MEAN) X(MAX) X(VAR) X(LOGSUMEXP) X(SOFTMAX) X(RMS_NORM) X(LAYER_NORM)                \
    X(RESIDUAL_NORM) X(ROPE) X(TRANSPOSE) X(RESHAPE) X(EXPAND) X(SQUEEZE) X(UNSQUEEZE) X(SLICE) X(SELECT)        \
    X(CONCAT) X(STACK) X(SPLIT) X(PAD) X(EMBEDDING) X(GATHER) X(INDEX_SELECT) X(SCATTER_ADD) X(CROSS_ENTROPY)    \
    X(LINEAR_CROSS_ENTROPY) X(MSE) X(ATTENTION) X(COPY_TO) X(REDUCE_FROM) X(ALL_REDUCE) X(SCATTER_TO) X(SHARD)   \
    X(GATHER_FROM) X(ALL_GATHER) X(REDUCE_SCATTER) X(RESHARD) X(AS_PARTIAL) X(AS_OPAQUE) X(AS_SHARD) X(I_TO_P)   \
    X(R_TO_I) X(SHIFT) X(BROADCAST)
enum {
#define X(name) OP_##name,
    RANDOM_OPS(X)
#undef X
    OP_COUNT
};

typedef struct node {
    int op, n_in, input[INPUTS];
    int arg[4];          /* dims, counts and choices; their meaning depends on the op */
    int axis;            /* of a mapping */
    tg_shape local;      /* shape on one rank */
    tg_shape whole;      /* denoted shape, on each coordinate of the axes on which it is opaque */
    tg_shape target;     /* shape after a reshape or an expansion, on one rank */
    tg_dtype dtype;
    int64_t below;       /* bound of indices */
    tg_placement at[AXES];
    bool grad, sink;     /* grad: a leaf with gradient; sink: no node uses it */
    double coefficient;
} node;

typedef struct program {
    int n_axes, size[AXES]; /* ranks on each axis */
    int n, accepted, refused, unshaped;
    node node[NODES];
} program;

extern const char *const random_op_names[OP_COUNT];

/* Calls one op, with data of one rank or on whole tensors. target is the result's shape of a reshape. comm NULL: no
 * mapping. */
tg_tensor *random_apply(tg_tape *t, const node *nd, tg_tensor **x, const tg_shape *target, tg_comm *comm);

/* ---- Places ---- */

static inline bool is_shard(tg_placement p) { return p.kind == TG_VARYING && p.layout != TG_OPAQUE; }
static inline bool is_opaque(tg_placement p) { return p.kind == TG_VARYING && p.layout == TG_OPAQUE; }

int64_t random_numel(const tg_shape *s);
/* Returns the number in the whole tensor of element i of the part of the rank at coordinate c. */
int64_t random_index(const program *p, const node *nd, const int *c, int64_t i);
/* Returns element i of what leaf number k denotes, at the coordinates on which it is opaque. */
double random_value(const program *p, int k, const node *nd, const int *c, int64_t i);
double random_coefficient(const node *nd, const program *p, const int *c, int64_t i);

/* ---- On ranks ---- */

enum { BATCH = 8, LOCAL = 256 };

/* Results of one program on the ranks. */
typedef struct result {
    program program[RANKS];
    double root[RANKS][NODES], tangent[RANKS][NODES]; /* of every sink; the tangents are along the leaves' own values */
    double grad[RANKS][NODES][LOCAL], second[RANKS][NODES][LOCAL];
    bool overruled, done;
} result;

/* Programs that the same ranks run in sequence. */
typedef struct job {
    uint64_t seed;
    int first, n, n_axes, ranks;
    const char *overruled; /* refusals with this text are overruled; NULL: none, and second derivatives are computed */
    pthread_barrier_t barrier;
    result result[BATCH];
} job;

/* The function of a rank, for tg_ranks_run; its argument is a job. */
tg_status random_on_rank(void *arg, tg_ctx *ctx, tg_comm *world);

/* ---- The reference ---- */

typedef struct reference {
    double root[NODES];                   /* of every sink: the denoted value times coefficients, summed */
    double tangent[NODES];                /* the same along the leaves' own values */
    double *grad[NODES][RANKS];           /* of every leaf with gradient, at each coordinate, or only the first */
    double *second[NODES][RANKS];         /* gradient of the sum of squares of all these gradients */
    bool finite;
} reference;

/* Computes the reference. Returns false if the program has no meaning on one rank; says then has the error. room:
 * memory for gradients. */
bool random_reference(const program *p, reference *r, double *room, char *says, size_t n);
/* Returns the number of a coordinate among the axes on which nd is opaque. */
int random_slot(const program *p, const node *nd, const int *c);

#endif
