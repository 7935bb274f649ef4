/* tapegrad convert --to FILE.gguf: a model directory becomes one file that llama.cpp reads. */
#ifndef TAPEGRAD_CONVERT_GGUF_H
#define TAPEGRAD_CONVERT_GGUF_H

#include <jansson.h>

#include <tapegrad/io.h>
#include <tapegrad/lm.h>

#include "convert/gguf_file.h"

/* Returns whether the path names a GGUF file. */
bool is_gguf(const char *path);
/* Converts the model in the directory `from` to the file `to`. The caller checks the errors, which ctx has. Prints a
 * note if llama.cpp computes the model for shorter sequences only. */
void convert_gguf(tg_ctx *ctx, const char *from, const char *to, bool tokenizer);

/* ---- gguf_names.c: what llama.cpp knows of each family ---- */

/* What becomes of the values of a tensor. */
typedef enum gguf_change {
    GGUF_SAME,
    GGUF_TRANSPOSED, /* [in, out] becomes [out, in] */
    GGUF_PAIRED,     /* rows i and i + d / 2 of a head of d rows, which are rotated as a pair, become neighbors */
    GGUF_PLUS_ONE,   /* the factor of a norm is 1 + weight, and the file has the factor */
} gguf_change;

/* Linear layers that may have biases. */
enum { GGUF_QKV_BIAS = 1, GGUF_OUT_BIAS = 2, GGUF_MLP_BIAS = 4 };

typedef struct gguf_family {
    const char *type, *arch;       /* the model_type of config.json, and the architecture of llama.cpp */
    const char *const (*names)[2]; /* names of the modules of a layer in both formats; the last row has NULL */
    bool paired;                   /* rotated elements are neighbors */
    bool llama3;                   /* reads the factors of frequencies that rope of the kind llama3 has */
    bool output;                   /* a tied model has the embedding a second time, as the output matrix */
    int biases;                    /* those that it computes */
    int window_period;             /* each window_period-th layer has no window, the others have one; 0: none has */
    int plain_period;              /* each plain_period-th layer has no positions; 0: all have them */
} gguf_family;

/* Returns the family of a model; NULL after recording that llama.cpp does not know it. */
const gguf_family *gguf_family_of(tg_ctx *ctx, const tg_lm_config *c);
/* Writes the name that the parameter `path` has in the file to name[n], and sets *change. Returns false if llama.cpp
 * has no such tensor. */
bool gguf_name(const gguf_family *f, const tg_lm_config *c, const char *path, char *name, size_t n,
               gguf_change *change);

/* ---- gguf_config.c ---- */

/* Adds the keys of the architecture. Fails with TG_ERR_UNSUPPORTED if llama.cpp would compute something else. */
tg_status gguf_add_config(tg_ctx *ctx, gguf_head *h, const gguf_family *f, const tg_lm_config *c);
/* Returns the longest sequence for which llama.cpp computes what the model does: it has windows in some families only.
 */
int64_t gguf_context(const gguf_family *f, const tg_lm_config *c);
/* Returns the letter of a layer in tg_lm_config.attention_kinds. */
char gguf_kind_of_layer(const tg_lm_config *c, int64_t layer);

/* ---- gguf_tokens.c, gguf_splits.c ---- */

/* Adds the tokenizer of the directory, for a model with `vocab` ids. Fails with TG_ERR_UNSUPPORTED if llama.cpp has
 * none that is the same. */
tg_status gguf_add_tokenizer(tg_ctx *ctx, gguf_head *h, const char *dir, int64_t vocab);

/* How llama.cpp cuts and normalizes text. */
typedef struct gguf_splits {
    const char *model; /* "gpt2": BPE of bytes; "llama": BPE of characters, with spaces that are U+2581 */
    const char *pre;   /* name of the expression that cuts text into words */
    bool space_first;  /* "llama": a space goes before the text */
} gguf_splits;

/* Finds it from a tokenizer.json, named path in messages. */
tg_status gguf_find_splits(tg_ctx *ctx, const json_t *root, const char *path, gguf_splits *out);

/* ---- gguf_tensors.c ---- */

typedef struct gguf_plan gguf_plan;

/* Finds the source of each tensor of the file in the weights f, and adds the tensors to the head. NULL on an error,
 * which the context has. */
gguf_plan *gguf_plan_new(tg_ctx *ctx, gguf_head *h, tg_safetensors *f, const gguf_family *family, const tg_module *lm);
/* Returns the number that llama.cpp has for the dtype of most of the file's values (general.file_type). */
int gguf_plan_file_type(const gguf_plan *p);
/* Writes the values, one tensor at a time. */
tg_status gguf_plan_write(const gguf_plan *p, tg_writer *w);
void gguf_plan_free(gguf_plan *p);

#endif
