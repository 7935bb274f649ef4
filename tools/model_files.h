/* Model directories as the program is given them: where the model is, whether its two files belong together, and
 * whether its vocabulary is that of the data. Functions that return bool return false after printing what is wrong. */
#ifndef TAPEGRAD_MODEL_FILES_H
#define TAPEGRAD_MODEL_FILES_H

#include "program.h"

#include <tapegrad/gpt.h>

typedef struct model_files {
    char dir[4096]; /* the directory with config.json and model.safetensors */
    tg_gpt_config config;
} model_files;

/* Finds the model in the directory `given`. If that is the directory of a training run that has not ended, and so has
 * no model yet, it takes the run's newest checkpoint, with a warning. Warns if config.json was changed, or
 * is another model's, since the weights were saved. weights: they are needed, too. */
bool model_find(model_files *m, const char *given, bool weights);

/* Checks that data of a format (tg_token_format) can be tokens of the model: text gives the 256 byte values. */
bool model_takes_data(const model_files *m, int data_format);

/* Returns the step of the newest checkpoint in the run's directory, or of the newest one of an earlier step than
 * `before`; 0: there is none. */
int64_t newest_checkpoint(const char *run);
int64_t newest_checkpoint_before(const char *run, int64_t before);

/* Reads a safetensors file's header with the eight bytes before it, to be freed; NULL: it is not whole. */
char *read_tensors_header(FILE *f, size_t *n);

#endif
