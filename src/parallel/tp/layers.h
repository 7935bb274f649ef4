/* What the linear layers of tensor parallelism share. */
#ifndef TG_LAYERS_H
#define TG_LAYERS_H

#include <tapegrad/tensor_parallel.h>

#include "nn/module.h"

typedef struct tg_plinear {
    tg_ctx *ctx;
    const tg_parallel *p;
    tg_plinear_opts o; /* completed; o.weight: as given */
    tg_axis axis;      /* tp, or etp for an expert */
    tg_comm *comm;
    int64_t in, out;             /* of the whole layer */
    int64_t local_in, local_out; /* of this rank's weight */
    bool sp;
    bool expert_comm; /* ranks meet outside: token dispatch gathers x and reduces y */
    tg_wgrads *deferred;
} tg_plinear;

/* A module of this kind with weight and bias, placed: shard is the weight's dim that the axis shards. Inert on error.
 */
tg_module *tg_plinear_new(const tg_parallel *p, const tg_module_ops *ops, int64_t in, int64_t out, int shard,
                          const tg_plinear_opts *opts);
void tg_plinear_free(void *state);
static inline const tg_plinear *tg_plinear_of(const tg_module *m) { return m->state; }
/* The weight of one call: the one given, checked, or the module's. NULL after recording the error. */
tg_tensor *tg_plinear_weight(const tg_module *m, tg_tensor *given);
tg_tensor *tg_plinear_bias(const tg_module *m); /* that the layer adds itself; NULL: none */
bool tg_plinear_p(const tg_module *m);          /* whether m is one */

/* gather < 0: as made. */
tg_tensor *tg_column_run(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *weight, int gather);
tg_tensor *tg_row_run(tg_module *m, tg_tape *t, tg_tensor *x, tg_tensor *weight);
extern const tg_module_ops tg_column_linear_ops, tg_row_linear_ops;

/* tg_nn_vocab_embedding of a table with `rows` rows, of which those from vocab on are padding: zero, and ids of them
 * are refused as those behind the table are. */
tg_module *tg_nn_padded_embedding(const tg_parallel *p, int64_t vocab, int64_t rows, int64_t hidden, double std,
                                  const tg_vocab_embedding_opts *opts);
bool tg_is_vocab_embedding(const tg_module *m); /* whether m is what either of them makes */
/* tg_vocab_parallel_embedding of the first rows of all ranks' table. */
tg_tensor *tg_padded_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c, int64_t rows);

/* tg_nn_linear whose weight gradient waits for tg_wgrads_drain. Its list; NULL where m is no such module. */
tg_module *tg_deferred_linear_new(tg_ctx *ctx, int64_t in, int64_t out, bool bias, double std);
tg_wgrads *tg_deferred_linear_wgrads(const tg_module *m);

/* Hands a parameter to its module, or drops it. */
void tg_layer_add(tg_module *m, const char *name, tg_tensor *param);
/* m; after an error it is freed, if there is one, and an inert module stands in its place. */
tg_module *tg_layer_checked(tg_module *m);
/* TG_ERR_SHAPE unless n ranks divide size; the axis is named. */
tg_status tg_layer_divide(const tg_parallel *p, const char *who, const char *what, int64_t size, tg_axis axis);

#endif
