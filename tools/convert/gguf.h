/* tapegrad convert --to FILE.gguf: makes one file that llama.cpp reads from a model directory. */
#ifndef TAPEGRAD_CONVERT_GGUF_H
#define TAPEGRAD_CONVERT_GGUF_H

#include <jansson.h>

#include <tapegrad/io.h>
#include <tapegrad/lm.h>

#include "convert/gguf_file.h"

/* Returns whether the path names a GGUF file. */
bool is_gguf(const char *path);
/* Converts the model in the directory `from` to the file `to`. tokenizer: whether the file gets the tokenizer. Errors
 * are recorded in ctx. Warns if llama.cpp computes the model for shorter sequences only. */
void convert_gguf(tg_ctx *ctx, const char *from, const char *to, bool tokenizer);

/* ---- gguf_names.c: names of tensors, and what llama.cpp computes of each family ---- */

/* How the values of a tensor change. */
typedef enum gguf_change {
    GGUF_SAME,
    GGUF_TRANSPOSED, /* [in, out] becomes [out, in] */
    GGUF_PAIRED,     /* rows i and i + d / 2 of a head of d rows, which rope rotates as a pair, become neighbors */
    GGUF_PLUS_ONE,   /* the norm multiplies by 1 + weight, and the file has that sum */
} gguf_change;

/* Linear layers that may have biases. */
enum { GGUF_QKV_BIAS = 1, GGUF_OUT_BIAS = 2, GGUF_MLP_BIAS = 4 };

typedef struct gguf_family {
    const char *type, *arch;       /* the model_type of config.json, and the architecture of llama.cpp */
    const char *const (*names)[2]; /* names of the modules of a layer in both formats; the last row has NULL */
    bool paired;                   /* llama.cpp rotates neighboring elements as pairs */
    bool llama3;                   /* llama.cpp reads the tensor of factors for rope of the kind llama3 */
    bool output;                   /* the file of a tied model has the embedding again, as the output matrix */
    int biases;                    /* the biases that llama.cpp computes: a sum of GGUF_QKV_BIAS and others */
    int window_period;             /* every window_period-th layer has no window, others have; 0: llama.cpp has none */
    int plain_period;              /* every plain_period-th layer has no positions; 0: all have them */
} gguf_family;

/* Returns the family of a model; NULL after recording that llama.cpp does not know it. */
const gguf_family *gguf_family_of(tg_ctx *ctx, const tg_lm_config *c);
/* Writes the name that the parameter `path` has in the file to name[n], and sets *change to what becomes of its values.
 * Returns false if llama.cpp has no such tensor. */
bool gguf_name(const gguf_family *f, const tg_lm_config *c, const char *path, char *name, size_t n,
               gguf_change *change);

/* ---- gguf_config.c ---- */

/* Adds the keys of the architecture. Fails with TG_ERR_UNSUPPORTED if llama.cpp would compute another function than the
 * model. */
tg_status gguf_add_config(tg_ctx *ctx, gguf_head *h, const gguf_family *f, const tg_lm_config *c);
/* Returns the length of the longest sequence for which llama.cpp computes what the model computes: the positions of the
 * model, or its window if that is shorter and llama.cpp has no windows in the family. */
int64_t gguf_context(const gguf_family *f, const tg_lm_config *c);
/* Returns the letter of a layer in tg_lm_config.attention_kinds. */
char gguf_kind_of_layer(const tg_lm_config *c, int64_t layer);

/* ---- gguf_tokens.c, gguf_splits.c ---- */

/* Adds the tokenizer of the directory, for a model with `vocab` ids. Fails with TG_ERR_UNSUPPORTED if llama.cpp has
 * none that is the same. */
tg_status gguf_add_tokenizer(tg_ctx *ctx, gguf_head *h, const char *dir, int64_t vocab);

/* How llama.cpp cuts and normalizes text. */
typedef struct gguf_splits {
    const char *model; /* "gpt2": BPE of bytes; "llama": BPE of characters, in which U+2581 stands for a space */
    const char *pre;   /* name of the expression that cuts text into words */
    bool space_first;  /* "llama": a space is put before the text */
} gguf_splits;

/* Finds how llama.cpp cuts text as a tokenizer.json does. root: its JSON. path: its name in messages. Fails with
 * TG_ERR_UNSUPPORTED if llama.cpp has no such way. */
tg_status gguf_find_splits(tg_ctx *ctx, const json_t *root, const char *path, gguf_splits *out);

/* ---- gguf_tensors.c ---- */

typedef struct gguf_plan gguf_plan;

/* Finds the source of each tensor of the file in the weights f, and adds the tensors to the head. NULL on an error,
 * which the context has. */
gguf_plan *gguf_plan_new(tg_ctx *ctx, gguf_head *h, tg_safetensors *f, const gguf_family *family, const tg_module *lm);
/* Returns llama.cpp's number for the dtype that most values of matrices have (general.file_type). */
int gguf_plan_file_type(const gguf_plan *p);
/* Writes the values, one tensor at a time. */
tg_status gguf_plan_write(const gguf_plan *p, tg_writer *w);
void gguf_plan_free(gguf_plan *p);

#endif
