/* The structs and functions that the sources of language models share: the config, the parts of a pipeline, layers, the
 * head, and generation. Letters in shapes are those of tapegrad/lm.h; n is a number of positions. */
#ifndef TG_LM_PARTS_H
#define TG_LM_PARTS_H

#include <tapegrad/gpt.h>

#include "nn/module.h"
#include "parallel/tp/layers.h"

/* ---- families.c: what published checkpoints have in common ---- */

/* The names of a model's children. */
typedef struct tg_lm_name_table {
    const char *body; /* the child that has the embedding, the layers and the last norm */
    const char *embedding, *positions, *layers, *last_norm;
    /* The norms of a layer; element 0 is attention's, element 1 the MLP's. The norm before it is before[] or, if there
     * is also a norm after it, around[]. The norm after it is after[]. */
    const char *before[2], *around[2], *after[2];
    const char *attention, *mlp;
    const char *qkv, *projection[3], *out; /* of attention; qkv is NULL if q, k and v are projections of their own */
    const char *qk_norm[2];
    /* Of an MLP. gate_up is NULL if both are projections of their own; only a gated activation has a gate. */
    const char *gate_up, *gate, *up, *down;
} tg_lm_name_table;

typedef struct tg_lm_family_row tg_lm_family_row; /* families.h */
/* Returns the family of this name (model_type); NULL if there is none. */
const tg_lm_family_row *tg_lm_family_find(const char *type);

const tg_lm_name_table *tg_lm_names_of(const tg_lm_config *c);
/* Return the name of the norm before or after attention (i = 0) or the MLP (i = 1); NULL if there is none. */
const char *tg_lm_norm_before(const tg_lm_config *c, int i);
const char *tg_lm_norm_after(const tg_lm_config *c, int i);
/* Returns whether the family's files store the projections of layers as [in, out]. In such a family q, k and v are one
 * projection of three equal parts. */
bool tg_lm_is_transposed(const tg_lm_config *c);
static inline bool tg_lm_is_gated(const tg_lm_config *c) { return c->activation != TG_LM_GELU_TANH; }

/* ---- lm_config.c ---- */

/* Checks the config and fills in its defaults. Error messages begin with `who`, the name of the public function. */
tg_status tg_lm_complete(tg_ctx *ctx, tg_lm_config *c, const char *who);
/* Replaces TG_AUTO in head_dim, kv_heads, ffn, norm_eps, the dropouts and rope_dims, and sets the biases for which
 * `bias` stands. Other fields keep TG_AUTO. */
void tg_lm_choose(tg_lm_config *c);
/* Checks the five sizes that have no default: vocab, layers, heads, hidden and positions. */
tg_status tg_lm_check_sizes(tg_ctx *ctx, const tg_lm_config *c, const char *who);
/* Returns the number of tensor-parallel ranks. 1 means that plain layers are used. */
static inline int tg_lm_tp(const tg_lm_config *c) { return tg_parallel_size(c->parallel, TG_TP); }
static inline tg_comm *tg_lm_tp_comm(const tg_lm_config *c) { return tg_parallel_comm(c->parallel, TG_TP); }
/* The same for context parallelism. 1 means that a rank has whole sequences. */
static inline int tg_lm_cp(const tg_lm_config *c) { return tg_parallel_size(c->parallel, TG_CP); }
static inline tg_comm *tg_lm_cp_comm(const tg_lm_config *c) { return tg_parallel_comm(c->parallel, TG_CP); }
/* Returns the number of rows of the embedding, and of the output matrix: the vocabulary with its padding. */
int64_t tg_lm_rows(const tg_lm_config *c);

/* ---- lm_layers.c: what layers do not share ---- */

/* Return whether attention of a layer has a window, and whether it has positions. Layers are counted from 0 over the
 * whole model. */
bool tg_lm_layer_has_window(const tg_lm_config *c, int64_t layer);
bool tg_lm_layer_has_positions(const tg_lm_config *c, int64_t layer);
/* Returns the config of one layer: window, position_kind and the options of rope are those of this layer. */
tg_lm_config tg_lm_config_of_layer(const tg_lm_config *c, int64_t layer);
/* Sets the kind of rope to plain, and the options of other kinds to their defaults. */
void tg_lm_set_plain_rope(tg_lm_config *c);
/* Returns the rotation of queries and keys. */
tg_rope_opts tg_lm_rope_of(const tg_lm_config *c);
tg_status tg_lm_check_layers(tg_ctx *ctx, const tg_lm_config *c, const char *who);
tg_status tg_lm_check_rope(tg_ctx *ctx, const tg_lm_config *c, const char *who);

/* ---- mup.c: what depends on the width ---- */

/* Returns how many times wider the model is than the base of its maximal update parametrization; 1 without it. */
double tg_mup_width(const tg_lm_config *c);
/* Return standard deviations of initial weights. tg_residual_std is for the matrices whose output is added to the
 * residual, and tg_hidden_std for the other matrices of layers. */
double tg_hidden_std(const tg_lm_config *c);
double tg_residual_std(const tg_lm_config *c);
double tg_attention_scale(const tg_lm_config *c); /* Returns the factor of attention's scores q k^T. */

/* ---- lm_layout.c ---- */

/* What one part of a model has. A whole model is one part, number 0. */
typedef struct tg_lm_stage {
    int part, parts;
    int64_t first, layers; /* the numbers of its layers are first to first + layers - 1 */
    bool embedding, head;  /* the head is the last norm, the output matrix and the loss */
} tg_lm_stage;

/* Fills *out with the part of the model that chunk c->chunk of this rank's pipeline stage is. */
tg_status tg_lm_stage_of(tg_ctx *ctx, const tg_lm_config *c, const char *who, tg_lm_stage *out);

/* ---- Modules ---- */

/* Refers to a norm that runs again in backward. The caller may free or replace the norm before backward, so it is
 * looked up by its name in the layer. */
typedef struct tg_norm_ref {
    tg_module *layer;
    const char *name;
} tg_norm_ref;

/* The state of an attention, MLP or transformer layer. */
typedef struct tg_layer_state {
    tg_ctx *ctx;
    tg_lm_config c;
    tg_norm_ref norm[2]; /* used by transformer layers only */
} tg_layer_state;

/* Refers to a layer of a model, or to a depth of multi-token prediction. Recomputation passes this struct to its
 * callback. The layer is looked up by its name at each call, because the caller may free or replace it. */
typedef struct tg_layer_fn {
    tg_module *lm;
    char name[24];
    tg_tensor *weight; /* of a depth: a scalar, the factor of the sum of its losses; NULL for a layer */
} tg_layer_fn;

/* The state of a language model, or of a part of one. */
typedef struct tg_lm {
    tg_ctx *ctx;
    tg_lm_config c;
    tg_gpt_config gpt; /* as completed by tg_gpt_new; size 0 means that the model is not a GPT */
    tg_lm_stage stage;
    const void *site;    /* call site (TG_SITE) of tg_lm_new or tg_gpt_new */
    size_t bytes;        /* size of this struct with layer[] */
    int64_t n_layers;    /* number of elements of layer[] */
    tg_layer_fn layer[]; /* this part's layers; then, on the part with the head, the depths of multi-token prediction */
} tg_lm;

static inline tg_lm *tg_lm_of(const tg_module *lm) { return lm->state; }

extern const tg_module_ops tg_lm_ops, tg_lm_gpt_ops, tg_lm_list_ops, tg_lm_output_ops;
static inline bool tg_is_lm(const tg_module *m) { return m && (m->ops == &tg_lm_ops || m->ops == &tg_lm_gpt_ops); }

/* Creates a language model, or the part that the config's chunk is. tg_lm_complete has completed c. gpt is the config
 * of a GPT, or NULL. Returns an inert module (tapegrad.h) on an error. */
tg_module *tg_lm_make(tg_ctx *ctx, const tg_lm_config *c, const tg_gpt_config *gpt, const char *who, const void *site);
/* The keys (tg_key_open) under which a model draws initial weights and dropout. Layer l opens key l. Depth d of
 * multi-token prediction, counted from 1, opens key TG_LM_KEY_DEPTH + d. */
#define TG_LM_KEY_EMBEDDING ((uint64_t)1 << 32)
#define TG_LM_KEY_HEAD      (((uint64_t)1 << 32) + 1)
#define TG_LM_KEY_DEPTH     ((uint64_t)1 << 33)
/* Open and close one of these keys and, unless the config's key is TG_NONE, that key around it. `site` is the call site
 * that error messages show. */
void tg_lm_key_open(const tg_lm *s, uint64_t key, const void *site);
void tg_lm_key_close(const tg_lm *s);
/* Returns the child with the embedding, the layers and the last norm. If it is missing, records an error and returns
 * NULL. */
tg_module *tg_lm_body(const tg_module *lm);
/* Returns the parameter `name` of the child `child` of m; NULL if the child has none. If the child was freed, records
 * an error and returns NULL. */
tg_tensor *tg_module_own_at(const tg_module *m, const char *child, const char *name);

/* ---- layer_parts.c ---- */

static inline const tg_lm_config *tg_layer_config(const tg_module *m) { return &((tg_layer_state *)m->state)->c; }
void tg_layer_free(void *state);
/* Creates an empty module whose state holds the completed config. Returns NULL on an error. */
tg_module *tg_layer_begin(tg_ctx *ctx, const tg_module_ops *ops, const tg_lm_config *c);
/* Returns m if creating it succeeded. Otherwise frees m, which may be NULL, and returns an inert module. */
tg_module *tg_layer_finish(tg_module *m);

/* How tensor parallelism divides a projection: by output rows, by input columns, or not at all. */
typedef enum tg_projection_kind { TG_PROJECT_COLUMN, TG_PROJECT_ROW, TG_PROJECT_WHOLE } tg_projection_kind;
/* Creates a linear layer. If tp is above 1, TG_PROJECT_COLUMN divides the output rows into `parts` blocks of equal
 * size, such as q, k and v, and shards each block over the tp ranks. */
tg_module *tg_projection(tg_ctx *ctx, const tg_lm_config *c, tg_projection_kind kind, int64_t in, int64_t out,
                         int parts, bool bias, double std);
/* Creates a norm of the config's kind, over rows of `size` elements. */
tg_module *tg_lm_norm_new(tg_ctx *ctx, const tg_lm_config *c, int64_t size);
/* Creates an RMS norm of `size` elements, whose factor is 1 + weight if the config says so. */
tg_module *tg_lm_rms_norm_new(tg_ctx *ctx, const tg_lm_config *c, int64_t size);

/* ---- attention.c, mlp.c, layer.c. All take a completed config. ---- */

tg_module *tg_lm_attention_new(tg_ctx *ctx, const tg_lm_config *c);
tg_module *tg_lm_mlp_new(tg_ctx *ctx, const tg_lm_config *c);
tg_module *tg_lm_layer_new(tg_ctx *ctx, const tg_lm_config *c); /* c: of one layer (tg_lm_config_of_layer) */

/* Documents that are packed into sequences (packing.c). */
typedef struct tg_packing {
    tg_tensor *positions; /* int64 [b, s / cp]: position in its document of each token of this rank of cp */
    tg_tensor *starts;    /* int64 [b, s + 1], whole on every rank of cp: starts_q and starts_k of tg_attention, with an
                           * empty sequence for each token that does not end a document */
} tg_packing;

/* What attention needs in addition to its input: the cache of one attention layer, or the documents that are packed. If
 * it needs neither, functions get NULL in place of a tg_past. */
typedef struct tg_past {
    tg_tensor *k, *v; /* keys and values */
    int64_t length;   /* number of positions that are filled; new keys and values go after them */
    const struct tg_runs *runs; /* runs.c; NULL: every sequence of the batch has `length` positions */
    const tg_packing *packing;  /* NULL: no documents are packed. Otherwise there is no cache */
} tg_past;

typedef tg_tensor *(*tg_cached_fn)(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past);
/* Runs m, which must be the library's own module with these ops, by `forward` with a tg_past, with m's mode and hooks.
 * If m is captured, the module that it holds runs. If m is another module, which the caller has put in place of the
 * library's, records an error, because such a module cannot use a tg_past. Returns an inert tensor (tapegrad.h) on an
 * error, and if m is NULL. */
tg_tensor *tg_run_cached(tg_module *m, const tg_module_ops *ops, tg_cached_fn forward, tg_tape *t, tg_tensor *x,
                         const tg_past *past);
/* Run a transformer layer, or an attention, with a tg_past: x [s, b, h] -> [s, b, h]. */
tg_tensor *tg_transformer_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past);
tg_tensor *tg_attend(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past);

/* ---- lm_forward.c ---- */

struct tg_gpt_cache {
    tg_ctx *ctx;
    uint64_t gpt; /* serial of the model, which may have been freed */
    int64_t batch, positions, length, layers; /* length: number of positions that are filled */
    const struct tg_runs *runs;               /* during tg_lm_runs; otherwise NULL */
    int64_t *numbers; /* [capacity]: host memory for the positions and starts of the tokens of a forward */
    int capacity;
    size_t bytes;                             /* size of this struct with kv[] */
    tg_tensor *kv[]; /* kv[2 * l] is the keys of layer l, kv[2 * l + 1] its values: [b, heads, positions, head_dim] */
};

/* Makes the checks with which each public function of a model begins. */
tg_status tg_lm_enter(const tg_module *lm, const tg_tape *t, const char *who);
/* Does what tg_lm_enter does, and fails if lm is only a part of a model. */
tg_status tg_lm_enter_whole(const tg_module *lm, const tg_tape *t, const char *who);
/* Returns y, which is not checked. Records an error if a mapped file of weights has become shorter. If there is an
 * error, reports to the other tp and cp ranks that this rank misses a collective (tg_comm_note_missed). */
tg_tensor *tg_lm_leave(const tg_module *lm, tg_tensor *y);
/* Checks the dtype and the shape of ids whose positions begin at `offset`. With context parallelism ids are this rank's
 * rows of sequences. */
tg_status tg_lm_check_ids(const tg_module *lm, tg_tensor *ids, int64_t offset);
/* Returns the rows of the word embedding for ids [b, n]: [n, b, h]. */
tg_tensor *tg_lm_word_rows(tg_module *lm, tg_tape *t, tg_tensor *ids);
/* Returns the embeddings of ids [b, n]: [n, b, h]. `positions` is int64 [n], or [b, n]; NULL means offset, offset + 1
 * and so on. */
tg_tensor *tg_lm_embed(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions, int64_t offset);
/* Runs the layers of this part and, on the last part, the last norm: [n, b, h] -> [n, b, h]. At least one of cache and
 * packing must be NULL. */
tg_tensor *tg_lm_layers(tg_module *lm, tg_tape *t, tg_tensor *x, tg_gpt_cache *cache, const tg_packing *packing);
/* Runs the trunk, which is everything before the output matrix: ids [b, n] -> the output of the last norm, [n, b, h].
 * The positions begin at the cache's length, or at 0 if cache is NULL. */
tg_tensor *tg_lm_trunk(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_gpt_cache *cache);
/* Runs the trunk over packed documents, whose positions [b, n] are those of tg_lm_packed_logits. */
tg_tensor *tg_lm_packed_trunk(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions);

/* ---- packing.c ---- */

/* Checks positions for b sequences, of each of which this rank has s tokens, and fills *out. Error messages begin with
 * `what`, which names the positions. */
tg_status tg_lm_pack(const tg_module *lm, tg_tape *t, tg_tensor *positions, int64_t b, int64_t s, const char *what,
                     tg_packing *out);

/* ---- runs.c: sequences of different lengths in one forward ---- */

/* Successive tokens of one sequence. Runs are adjacent in the tokens of a forward, in their order. */
typedef struct tg_run {
    int64_t slot;  /* which sequence of the cache; -1: keys and values are not kept, and begin is 0 */
    int64_t begin; /* position of the first token; the slot has the keys and values of those before it */
    int64_t count; /* number of tokens, 1 or more */
} tg_run;

typedef struct tg_runs {
    const tg_run *run;
    int64_t n;
    bool apart;           /* attention computes each run by itself */
    tg_tensor *positions; /* of all tokens, int64 [tokens] */
    tg_tensor *starts[2]; /* starts_q and starts_k (tg_attention) [n, 3]; NULL if every run is computed by itself */
} tg_runs;

/* Computes the tokens ids [tokens] of n runs, and keeps their keys and values in the cache. Each run has another slot
 * of it, unless it has none. Returns the logits [n_rows, vocab] of the tokens with these indices. Both arrays are of
 * the host. The caller has checked slots, positions and ids. Runs without gradients, and in evaluation mode unless a
 * module has TG_MODE_TRAIN. */
tg_tensor *tg_lm_runs(tg_module *lm, tg_tape *t, tg_gpt_cache *cache, const int64_t *ids, const tg_run *run, int64_t n,
                      const int64_t *rows, int64_t n_rows);
/* Copies the keys and values of positions 0 to count - 1 from one slot of the cache to another one. */
tg_status tg_lm_copy_slot(tg_gpt_cache *cache, int64_t from, int64_t to, int64_t count);

typedef tg_tensor *(*tg_weigh_fn)(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], tg_tensor *const starts[2]);
/* Keeps the keys and values of the runs, and computes the attention of each: qkv [1, heads, tokens, d]. `weigh`
 * computes the attention of queries [b, heads, n, d] to keys and values [b, kv heads, k, d]. If its `starts` are NULL,
 * b is 1, and the last query is at the last key. Otherwise each entry of the batch is a run, and starts are those of
 * tg_runs. */
tg_tensor *tg_attend_runs(const tg_module *m, tg_tape *t, tg_tensor *const qkv[3], const tg_past *past,
                          tg_weigh_fn weigh);

/* ---- lm_head.c ---- */

/* Returns the output matrix. If it is missing, records an error and returns NULL. */
tg_tensor *tg_lm_output_weight(const tg_module *lm);
/* Returns whether the model must call its child lm_head instead of using the child's parameter: the caller has set
 * hooks on that module, or has replaced it by another one than a plain linear layer (tg_nn_linear). The module returns
 * logits [.., vocab], which are whole or, if tp is above 1, may be sharded over tp along the last dim. */
bool tg_lm_head_is_called(const tg_module *lm);
/* Computes the logits of the trunk's output x [.., h], with the padding of the vocabulary: [.., v]. If tp is above 1,
 * they are sharded over tp along the last dim, unless the caller has replaced lm_head by a module that gives whole
 * logits. */
tg_tensor *tg_lm_shard_logits(tg_module *lm, tg_tape *t, tg_tensor *x);
/* Computes the logits [.., vocab], whole on every rank, of the trunk's output x [.., h]. */
tg_tensor *tg_lm_logits(tg_module *lm, tg_tape *t, tg_tensor *x);
/* Check the arguments, and compute the logits [b, s, vocab] of ids [b, s], or the cross-entropy of these logits for
 * target [b, s]. positions are those of packed documents; NULL: none are packed. Error messages begin with `who`. */
tg_tensor *tg_lm_logits_of_ids(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *const *positions, const char *who,
                               const void *site);
tg_tensor *tg_lm_loss_of_ids(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *const *positions, tg_tensor *target,
                             tg_loss_reduction reduction, const char *who, const void *site);
/* Computes the cross-entropy of the trunk's output x [s, b, h] for target [b, s]: a scalar, or [b, s] with
 * TG_LOSS_NONE. Only the logits of a few tokens are in memory at a time, unless lm_head is called
 * (tg_lm_head_is_called) or the config has head_bias or logit_softcap. */
tg_tensor *tg_lm_loss_of_trunk(tg_module *lm, tg_tape *t, tg_tensor *x, tg_tensor *target, tg_loss_reduction reduction);

/* ---- lm_part.c ---- */

/* Runs this part for one micro-batch; tg_lm_part calls it after its own checks. `in` is the output of the part before,
 * and NULL on the first part. Sets *out. */
tg_status tg_lm_run_part(tg_module *lm, tg_tape *t, tg_tensor *in, tg_tensor **out, tg_tensor *const *ids,
                         tg_tensor *const *targets, tg_tensor *positions);

/* ---- mtp.c ---- */

/* Creates the list of the depths of multi-token prediction. */
tg_module *tg_mtp_new(tg_module *lm);
/* Returns the sum of `loss` and the weighted losses of all depths. h is the trunk's output. ids[d] and targets[d]
 * belong to depth d, counted from 1. packing may be NULL. */
tg_tensor *tg_mtp_losses(tg_module *lm, tg_tape *t, tg_tensor *h, tg_tensor *const *ids, tg_tensor *const *targets,
                         const tg_packing *packing, tg_tensor *loss);

#endif
