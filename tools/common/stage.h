/* The part of a model that a rank holds. Without a pipeline that is the whole model, or its shard of it; a stage of a
 * pipeline holds one or more chunks of layers, each of which is a module. */
#ifndef TAPEGRAD_TOOLS_STAGE_H
#define TAPEGRAD_TOOLS_STAGE_H

#include <tapegrad/lm.h>
#include <tapegrad/pipe.h>

#include "common/ranks.h"

typedef struct stage {
    const tg_parallel *parallel;
    tg_module **chunk; /* the chunks in their order; one without a pipeline */
    int n;
    const char *from;      /* the model directory that the weights came from; NULL: none */
    const char *tokenizer; /* the tokenizer that is saved with the model, in place of that of `from`; NULL: none */
} stage;

/* Creates the chunks of this rank, with the layout of the options. weights: the model directory to load weights from,
 * which must outlive the stage; NULL: random weights. map: maps its files (tg_lm_map). Collective over the pipeline.
 * Returns false after printing what is wrong; stage_close may be called in any case. */
bool stage_open(stage *s, tg_ctx *ctx, const tg_parallel *p, const rank_options *o, const tg_lm_config *config,
                const char *weights, bool map);
void stage_close(stage *s);

/* Return whether the model is divided over a pipeline, and whether this stage holds its first or its last part. */
bool stage_of_pipeline(const stage *s);
bool stage_is_first(const stage *s);
bool stage_is_last(const stage *s);
/* Returns the number of this rank's parameters. */
int64_t stage_numel(const stage *s);
/* Returns how many of the parameters are a copy of those of the first stage: word embeddings that are also the output
 * matrix, or that multi-token prediction looks up. */
int64_t stage_copies(const stage *s);
/* Returns whether the path, or the key of saved state that begins with it, is that of the embedding of token ids. */
bool is_embedding(const char *path);
/* Returns the number of transformer layers of this stage. */
int64_t stage_layers(const stage *s);
/* Sets out[] to the transformer layers of this stage, unless it is NULL. Returns their number, at most that of the
 * parameters. */
int stage_list_layers(const stage *s, tg_module **out);
/* Saves the whole model to dir, with the files that belong to it (companions.h) if it came from a directory, and with
 * s->tokenizer. Collective. Errors are recorded in the context. */
void stage_save(const stage *s, const char *dir);

/* The edge of a pipe (pipe.h), which describes the tensor that goes from part to part: the hidden states of this rank's
 * sequences [n, seq_len]. The struct must live as long as its edge is used. shard: as in place_batch. */
typedef struct stage_edge {
    tg_place_at at[3];
    tg_pipe_edge edge;
} stage_edge;
void stage_edge_open(stage_edge *e, const stage *s, int64_t n, int64_t seq_len, bool shard);

/* Does what sum_of_losses does, for a model in a pipeline. Returns the sum of the losses of n sequences on the last
 * stage, and 0 on the other stages. Collective over the pipeline. */
double stage_sum_of_losses(const stage *s, tg_tokens *tokens, const int64_t *offsets, int64_t n, int64_t seq_len,
                           int64_t batch);

#endif
