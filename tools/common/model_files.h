/* Model directories on the command line: finds the model, checks that config.json and the weights belong together, and
 * that the vocabulary fits the data. Functions that return bool return false after printing what is wrong. */
#ifndef TAPEGRAD_MODEL_FILES_H
#define TAPEGRAD_MODEL_FILES_H

#include "common/program.h"

#include <tapegrad/gpt.h>

typedef struct model_files {
    char dir[4096];      /* the directory with config.json and the weights */
    char adapter[4096];  /* the directory of the low-rank adapters that adapt the model; "": none */
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
