/* Model directories on the command line: finds the model, checks that config.json and the weights belong together, and
 * that the vocabulary fits the data. Functions that return bool return false after printing what is wrong. */
#ifndef TAPEGRAD_MODEL_FILES_H
#define TAPEGRAD_MODEL_FILES_H

#include "common/program.h"

#include <tapegrad/gpt.h>
#include <tapegrad/tokenizer.h>

typedef struct model_files {
    char dir[4096];      /* the directory with config.json and the weights */
    char adapter[4096];  /* the directory of the low-rank adapters that adapt the model; "": none */
    const char *tokenizer; /* set by model_find_tokenizer: a tokenizer.json, or a directory that has one; NULL: none */
    bool tokenizer_given;  /* by --tokenizer */
    tg_lm_config config; /* free_model_config frees its texts */
} model_files;

/* Finds the model in the directory `given` and reads its config. A directory may have low-rank adapters instead, which
 * say where the model is that they adapt. In the directory of a training run that has not ended, and so has no model
 * yet, takes the run's newest checkpoint, and warns. weights: whether the weights are needed too; then also warns if
 * config.json was changed since the weights were saved, or belongs to another model. */
bool model_find(model_files *m, const char *given, bool weights);
/* Takes the adapters in the directory `given`, or in that of a training run, for the model (--adapter). given NULL:
 * does nothing. */
bool model_find_adapter(model_files *m, const char *given);
/* Adds the adapters to the model, if there are any. Errors are recorded in the context of gpt. */
void model_adapt(const model_files *m, tg_module *gpt);

/* Finds the tokenizer of the model: `given`, the value of --tokenizer, which may be NULL; else that in the directory
 * `named`, the value of --model; else that next to the weights, which are elsewhere if `named` has adapters or
 * checkpoints. Sets m->tokenizer, which points to `given`, to `named` or into *m; these must stay where they are. */
void model_find_tokenizer(model_files *m, const char *given, const char *named);
/* Returns whether there is a tokenizer, or the vocabulary is the 256 bytes. */
bool model_has_tokenizer(const model_files *m);
/* Loads the tokenizer, or makes that of the 256 bytes. A tokenizer that was given must fit the vocabulary
 * (tokenizer_fits). Returns NULL if the model has none, and after printing what is wrong. The caller frees it. */
tg_tokenizer *model_open_tokenizer(const model_files *m, tg_ctx *ctx);
/* Returns whether a tokenizer of so many ids fits a vocabulary; prints an error if it does not. */
bool tokenizer_fits(const char *path, int64_t ids, int64_t vocab);

#define TOKENIZER_HELP                                                                                                 \
    "a tokenizer.json, or a directory that has one, for text; without it that of --model, else each byte is a token"
#define ADAPTER_HELP "low-rank adapters of the model, as train --lora and PEFT save them"

/* Checks that data of a format (a tg_token_format) can be tokens of the model. For text, whose tokens are the 256 byte
 * values, the vocabulary must be 256. */
bool model_takes_data(const model_files *m, int data_format);

/* newest_checkpoint returns the step of the newest checkpoint in the run's directory, newest_checkpoint_before that of
 * the newest one of an earlier step than `before`. 0: there is none. */
int64_t newest_checkpoint(const char *run);
int64_t newest_checkpoint_before(const char *run, int64_t before);

/* Reads the header of a safetensors file, together with the eight bytes of its length before it; *n is the sum. The
 * caller frees it. NULL if the file is too short, the header is longer than 100 MiB, or there is no memory. */
char *read_tensors_header(FILE *f, size_t *n);

#endif
