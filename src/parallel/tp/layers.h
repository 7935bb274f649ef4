/* The layers of tensor parallelism: the linear layers over shards and their helpers, the padded vocabulary embedding,
 * and the linear layer with a deferred weight gradient. */
#ifndef TG_LAYERS_H
#define TG_LAYERS_H

#include <tapegrad/tensor_parallel.h>

#include "nn/layer.h"

enum { TG_MOST_CHUNKS = 16 }; /* the largest number of messages that carry a rank's rows */

/* Symmetric memory that the row layers of a module share (symmetric_layers.c). */
typedef struct tg_symmetric_pool tg_symmetric_pool;
/* Returns the memory, which has this many bytes or more, or 0 bytes if the transport has no symmetric memory. Returns
 * NULL after recording an error. Collective if the memory is not made yet, or must grow. */
tg_symmetric *tg_symmetric_of_size(tg_symmetric_pool *s, size_t bytes);
void tg_symmetric_drop(tg_symmetric_pool *s); /* called for each layer that ends its use; s may be NULL */

/* A kind of linear layer over shards. Modules have the address of `ops`. */
typedef struct tg_linear_kind {
    tg_module_ops ops;
    tg_linear_mode mode;
    bool norm; /* a norm is in front of the product */
    /* Runs one call with this weight, which is not NULL. Does not gather the output. */
    tg_tensor *(*run)(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *w);
} tg_linear_kind;
extern const tg_linear_kind tg_column_linear, tg_row_linear, tg_duplicated_linear, tg_norm_column_linear;
/* The ops of such a kind. */
#define TG_LINEAR_OPS(kind_)                                                                                        \
    {.size = sizeof(tg_module_ops), .kind = kind_, .forward = tg_parallel_linear_forward,                           \
     .free = tg_parallel_linear_free, .describe = tg_parallel_linear_describe}

/* The state of a linear layer over shards. */
typedef struct tg_parallel_linear {
    tg_ctx *ctx;
    const tg_parallel *p;
    const tg_linear_kind *kind;
    tg_parallel_linear_opts o; /* as the caller gave them; only the constructor may read *o.init and *o.bias_init */
    tg_init init, bias_init;   /* copies of *o.init and *o.bias_init */
    tg_axis axis; /* o.axis, or TG_ETP for an expert */
    tg_comm *comm;
    int64_t in, out;             /* sizes of the whole layer */
    int64_t local_in, local_out; /* sizes of this rank's weight */
    /* Sequence parallelism: x of a column layer, the output of a row layer, and both of a duplicated layer are a shard
     * of rows. */
    bool sp;
    /* The layer belongs to an expert, and etp or ep has several ranks: the token dispatch, outside of the layer,
     * gathers x and reduces y over these ranks. */
    bool expert_comm;
    tg_wgrads *deferred; /* list of the layer's deferred weight gradients; NULL: they are not deferred */
    /* How a row layer sums over ranks where no gradient is recorded, and its symmetric memory. If `symmetric` is NULL,
     * it sums there as where a gradient is recorded. */
    tg_symmetric_ar symmetric_kind;
    tg_symmetric_pool *symmetric;
} tg_parallel_linear;

/* Creates a layer of this kind, and places its parameters. Error messages begin with `who`, the public constructor.
 * Returns an inert module (tapegrad.h) on error. */
tg_module *tg_parallel_linear_new(const tg_parallel *p, const tg_linear_kind *kind, int64_t in, int64_t out,
                                  const tg_parallel_linear_opts *opts, const char *who);
tg_tensor *tg_parallel_linear_forward(tg_module *m, tg_tape *t, tg_tensor *x);
/* Reads the options, checks them, and sets what follows from them: the axis, its communicator and the sizes. */
tg_status tg_parallel_linear_read(tg_parallel_linear *s, const char *who, const tg_parallel_linear_opts *given);
void tg_parallel_linear_free(void *state);
size_t tg_parallel_linear_describe(const tg_module *m, char *buf, size_t n);
static inline const tg_parallel_linear *tg_parallel_linear_of(const tg_module *m) { return m->state; }
tg_tensor *tg_parallel_linear_bias(const tg_module *m); /* the bias that the layer itself adds; NULL: none */
/* Returns the placement of the norm's weight and bias on the layer's axis. */
tg_placement tg_linear_norm_place(const tg_parallel_linear *s);
bool tg_is_parallel_linear(const tg_module *m); /* whether m is a linear layer over shards */

/* Creates a tg_nn_vocab_embedding whose table has `rows` rows, over all ranks. Rows from `vocab` on are padding: they
 * are zero. If the axis has several ranks, an id of such a row fails like an id outside the table; with one rank it is
 * accepted. */
tg_module *tg_nn_padded_embedding(const tg_parallel *p, int64_t vocab, int64_t rows, int64_t hidden, double std,
                                  const tg_vocab_embedding_opts *opts);
/* Records tg_vocab_parallel_embedding, but accepts only ids of the first `rows` rows of the global table; 0: of all. */
tg_tensor *tg_padded_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c, int64_t rows);

/* Creates a tg_nn_linear whose weight gradients wait in a list for tg_wgrads_run. */
tg_module *tg_deferred_linear_new(tg_ctx *ctx, int64_t in, int64_t out, bool bias, double std);
/* Returns the list of such a module; NULL: m is another module. */
tg_wgrads *tg_deferred_linear_wgrads(const tg_module *m);

/* ---- layer_params.c ---- */

/* Fails with TG_ERR_SHAPE if size is not a multiple of the ranks of the axis, and with TG_ERR_ARGUMENT if it is not
 * positive. The message names `who`, `what` and the axis. */
tg_status tg_layer_divide(const tg_parallel *p, const char *who, const char *what, int64_t size, tg_axis axis);
/* Fails with TG_ERR_ARGUMENT unless the axis is tp, cp or dp, over which a layer of the dense grid can be divided. Also
 * fails if each rank draws its own part of the weight (`draws_part`) from random streams that do not differ over the
 * axis. */
tg_status tg_layer_check_axis(const tg_parallel *p, const char *who, tg_axis axis, bool draws_part);
/* Creates a parameter of the dense grid with placement `at` on the axis. shape: of the whole parameter. On other axes
 * it is the same on all ranks: R on dp and cp, whose ranks have different data; on tp R if p is sequence parallel, else
 * I. std: of the normal random numbers that fill it; 0: zeros. dtype 0: the context's default dtype. */
tg_tensor *tg_layer_param(const tg_parallel *p, const char *name, tg_dtype dtype, tg_shape shape, double std,
                          tg_axis axis, tg_placement at);
/* Copies the initial values `given` to *o, and checks them for a parameter of the dtype. Does nothing if `given` is
 * NULL. Fails if it is not NULL but `makes` is false: the layer then makes no such parameter, or leaves it 0. what: the
 * name of the option, for errors. */
tg_status tg_layer_read_init(const tg_parallel *p, const char *who, const char *what, tg_dtype dtype, bool makes,
                             const tg_init *given, tg_init *o);
/* Fills x as init says, unless init is NULL. Returns x; after an error drops it and returns an inert tensor. */
tg_tensor *tg_layer_init(tg_tensor *x, const tg_init *init, const char *who);

#endif
