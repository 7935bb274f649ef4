/* The structs and functions that the files of language models share: the config, the parts of a pipeline, layers, the
 * head, and generation. */
#ifndef TG_LM_PARTS_H
#define TG_LM_PARTS_H

#include <tapegrad/gpt.h>

#include "nn/module.h"
#include "parallel/tp/layers.h"

/* ---- lm_names.c: names of the published checkpoints ---- */

typedef struct tg_lm_name_table {
    const char *body; /* the child that has everything but the output matrix */
    const char *embedding, *positions, *layers, *last_norm;
    const char *norm[2], *attention, *mlp; /* of a layer; norm[i] is before sublayer i */
    const char *qkv, *projection[3], *out; /* of attention; qkv is NULL if q, k and v are projections of their own */
    const char *gate, *up, *down;          /* of an MLP; there is a gate with TG_LM_SWIGLU only */
} tg_lm_name_table;

const tg_lm_name_table *tg_lm_names_of(const tg_lm_config *c);

/* ---- lm_config.c ---- */

/* Checks the config and fills in its defaults. `who` is the call that messages name. */
tg_status tg_lm_complete(tg_ctx *ctx, tg_lm_config *c, const char *who);
/* Checks the options that must be given, without a default. */
tg_status tg_lm_check_sizes(tg_ctx *ctx, const tg_lm_config *c, const char *who);
/* Returns the number of tensor-parallel ranks. 1 means that plain layers are used. */
static inline int tg_lm_tp(const tg_lm_config *c) { return tg_parallel_size(c->parallel, TG_TP); }
static inline tg_comm *tg_lm_tp_comm(const tg_lm_config *c) { return tg_parallel_comm(c->parallel, TG_TP); }
/* Returns the number of rows of the embedding and of the output matrix: the vocabulary and its padding. */
int64_t tg_lm_rows(const tg_lm_config *c);

/* ---- mup.c: what depends on the width ---- */

/* Returns how many times wider the model is than the base of its maximal update parametrization; 1 without it. */
double tg_mup_width(const tg_lm_config *c);
/* Return the standard deviations of the initial weights of the layers' matrices, and of those whose output is added to
 * the residual. */
double tg_hidden_std(const tg_lm_config *c);
double tg_residual_std(const tg_lm_config *c);
double tg_attention_scale(const tg_lm_config *c); /* the factor of the scores */

/* ---- lm_layout.c ---- */

/* What one part of a model has. A whole model is part 0 of 1. */
typedef struct tg_lm_stage {
    int part, parts;
    int64_t first, layers; /* the numbers of its layers are first to first + layers - 1 */
    bool embedding, head;
} tg_lm_stage;

/* Finds the part that the config's chunk is. */
tg_status tg_lm_stage_of(tg_ctx *ctx, const tg_lm_config *c, const char *who, tg_lm_stage *out);

/* ---- Modules ---- */

/* A norm that runs again in backward. The caller may free or replace the norm before that, so it is looked up by its
 * name in the layer. */
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

/* One layer as a function of tensors, for recomputation and scopes. The layer is looked up by its name at each call,
 * because the caller may free or replace it. */
typedef struct tg_layer_fn {
    tg_module *lm;
    char name[24];
} tg_layer_fn;

/* The state of a language model, or of a part of one. */
typedef struct tg_lm {
    tg_ctx *ctx;
    tg_lm_config c;
    tg_gpt_config gpt; /* as completed by tg_gpt_new; size 0 means that the model is not a GPT */
    tg_lm_stage stage;
    const void *site;    /* call site of the function that created it */
    size_t bytes;        /* size of this struct with layer[] */
    tg_layer_fn layer[]; /* this part's layers, then the depths of multi-token prediction if it has the head */
} tg_lm;

static inline tg_lm *tg_lm_of(const tg_module *lm) { return lm->state; }

extern const tg_module_ops tg_lm_ops, tg_lm_gpt_ops, tg_lm_list_ops;
static inline bool tg_is_lm(const tg_module *m) { return m && (m->ops == &tg_lm_ops || m->ops == &tg_lm_gpt_ops); }

/* Creates a language model, or the part that the config's chunk is. c is complete. gpt is the config of a GPT, or NULL.
 * Returns an inert module on an error. */
tg_module *tg_lm_make(tg_ctx *ctx, const tg_lm_config *c, const tg_gpt_config *gpt, const char *who, const void *site);
/* The keys in which a model draws weights and dropout. Layer l opens key l, and depth d of multi-token prediction, from
 * 1, key TG_LM_KEY_DEPTH + d. */
#define TG_LM_KEY_EMBEDDING ((uint64_t)1 << 32)
#define TG_LM_KEY_HEAD      (((uint64_t)1 << 32) + 1)
#define TG_LM_KEY_DEPTH     ((uint64_t)1 << 33)
/* Open and close one of these keys, inside of the config's. `site` is the call outside of the library that led here. */
void tg_lm_key_open(const tg_lm *s, uint64_t key, const void *site);
void tg_lm_key_close(const tg_lm *s);
/* Returns the child that has everything but the output matrix. If it is missing, records the error and returns NULL. */
tg_module *tg_lm_body(const tg_module *lm);
/* Returns the parameter of that name of a child of m; NULL if there is none. */
tg_tensor *tg_module_own_at(const tg_module *m, const char *child, const char *name);

/* ---- layer_parts.c ---- */

static inline const tg_lm_config *tg_layer_config(const tg_module *m) { return &((tg_layer_state *)m->state)->c; }
void tg_layer_free(void *state);
/* Creates an empty module whose state holds the completed config. Returns NULL on an error. */
tg_module *tg_layer_begin(tg_ctx *ctx, const tg_module_ops *ops, const tg_lm_config *c);
/* Returns m. After an error frees m and returns an inert module instead. */
tg_module *tg_layer_finish(tg_module *m);

/* How tensor parallelism divides a projection: by output rows, by input columns, or not at all. */
typedef enum tg_projection_kind { TG_PROJECT_COLUMN, TG_PROJECT_ROW, TG_PROJECT_WHOLE } tg_projection_kind;
/* Creates a linear layer, with a bias if the config says so. The output rows are `parts` blocks, such as q, k and v,
 * each of which is sharded over the ranks. */
tg_module *tg_projection(tg_ctx *ctx, const tg_lm_config *c, tg_projection_kind kind, int64_t in, int64_t out,
                         int parts, double std);
tg_module *tg_lm_norm_new(tg_ctx *ctx, const tg_lm_config *c);

/* ---- attention.c, mlp.c, layer.c. All take a completed config. ---- */

tg_module *tg_lm_attention_new(tg_ctx *ctx, const tg_lm_config *c);
tg_module *tg_lm_mlp_new(tg_ctx *ctx, const tg_lm_config *c);
tg_module *tg_lm_layer_new(tg_ctx *ctx, const tg_lm_config *c);

/* The cached keys and values of one attention layer, and the position at which it appends the new ones. In training
 * there is no cache, and functions get NULL. */
typedef struct tg_past {
    tg_tensor *k, *v;
    int64_t length;
} tg_past;

/* Returns whether m is the library's own module with these ops. If another module has replaced it, records an error,
 * because such a module cannot use a cache. */
bool tg_is_own_layer(const tg_module *m, const tg_module_ops *ops);
/* Run a transformer layer, or an attention: x [s, b, h] -> [s, b, h]. Return an inert tensor if m is NULL or not a
 * module of the library. */
tg_tensor *tg_transformer_layer(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past);
tg_tensor *tg_attend(tg_module *m, tg_tape *t, tg_tensor *x, const tg_past *past);

/* ---- lm_forward.c ---- */

struct tg_gpt_cache {
    tg_ctx *ctx;
    tg_module *gpt;
    int64_t batch, positions, length, layers; /* length: number of positions that are filled */
    size_t bytes;                             /* size of this struct with kv[] */
    tg_tensor *kv[]; /* the keys of each layer, then its values: [b, kv_heads, positions, head_dim] */
};

/* Makes the checks with which every public function of a model begins. */
tg_status tg_lm_enter(const tg_module *lm, const tg_tape *t, const char *who);
/* Does what tg_lm_enter does, and fails if lm is only a part of a model. */
tg_status tg_lm_enter_whole(const tg_module *lm, const tg_tape *t, const char *who);
/* Returns y. After an error, notifies the peers that this rank has missed their collectives. */
tg_tensor *tg_lm_leave(const tg_module *lm, tg_tensor *y);
/* Checks the dtype and the shape of ids whose positions begin at `offset`. */
tg_status tg_lm_check_ids(const tg_module *lm, tg_tensor *ids, int64_t offset);
/* Returns the rows of the word embedding for ids [b, n]: [n, b, h]. */
tg_tensor *tg_lm_word_rows(tg_module *lm, tg_tape *t, tg_tensor *ids);
/* Returns the embeddings of ids [b, n], [n, b, h]. The positions are `positions` [n], int64, or if that is NULL, those
 * from offset on. */
tg_tensor *tg_lm_embed(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_tensor *positions, int64_t offset);
/* Runs the layers of this part, and the last norm on the last part: [n, b, h] -> [n, b, h]. cache may be NULL. */
tg_tensor *tg_lm_layers(tg_module *lm, tg_tape *t, tg_tensor *x, tg_gpt_cache *cache);
/* Runs everything before the output matrix: ids [b, n] -> the output of the last norm, [n, b, h]. The positions begin
 * at the cache's length, or at 0 if cache is NULL. */
tg_tensor *tg_lm_trunk(tg_module *lm, tg_tape *t, tg_tensor *ids, tg_gpt_cache *cache);

/* ---- lm_head.c ---- */

/* Returns the output matrix. If it is missing, records the error and returns NULL. */
tg_tensor *tg_lm_output_weight(const tg_module *lm);
/* Returns whether the caller has replaced lm_head by a module of another kind. That module is then called. It returns
 * logits [.., vocab], whole or, over tp ranks, as shards of the last dim. */
bool tg_lm_head_is_given(const tg_module *lm);
/* Computes the logits of the trunk's output x [.., h] as the output matrix gives them: [.., v], over tp ranks sharded
 * on the last dim. */
tg_tensor *tg_lm_shard_logits(tg_module *lm, tg_tape *t, tg_tensor *x);
/* Computes the logits [.., vocab], whole on every rank, of the trunk's output x [.., h]. */
tg_tensor *tg_lm_logits(tg_module *lm, tg_tape *t, tg_tensor *x);
/* Checks everything, and computes the logits [b, s, vocab] of ids [b, s]. `who` is the call that messages name. */
tg_tensor *tg_lm_logits_of_ids(tg_module *lm, tg_tape *t, tg_tensor *ids, const char *who, const void *site);
/* Computes the cross-entropy of the trunk's output x [s, b, h] for target [b, s]: a scalar, or [b, s] with
 * TG_LOSS_NONE. Only the logits of a few tokens are in memory at a time. */
tg_tensor *tg_lm_loss_of_trunk(tg_module *lm, tg_tape *t, tg_tensor *x, tg_tensor *target, tg_loss_reduction reduction);

/* ---- lm_part.c ---- */

/* Runs this part for one micro-batch, as tg_lm_part does. in is NULL on the first part. */
tg_status tg_lm_run_part(tg_module *lm, tg_tape *t, tg_tensor *in, tg_tensor **out, tg_tensor *const *ids,
                         tg_tensor *const *targets, tg_tensor *positions);

/* ---- mtp.c ---- */

/* Creates the depths of multi-token prediction. */
tg_module *tg_mtp_new(tg_module *lm);
/* Returns loss + the weighted losses of all depths. h is the trunk's output; ids[d] and targets[d] are those of depth
 * d, from 1. */
tg_tensor *tg_mtp_losses(tg_module *lm, tg_tape *t, tg_tensor *h, tg_tensor *const *ids, tg_tensor *const *targets,
                         tg_tensor *loss);

#endif
