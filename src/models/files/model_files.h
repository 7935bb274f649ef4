/* Reads and writes model directories: the config as JSON, and the parameters. A tensor in a file has the path of its
 * parameter as its name; published files of GPT-2 leave out the beginning "transformer.". The projections of GPT-2's
 * layers are [in, out] in files and [out, in] in this library. Files do not contain the padding rows of a
 * vocabulary. */
#ifndef TG_MODEL_FILES_H
#define TG_MODEL_FILES_H

#include "io/json.h"
#include "io/safetensors.h"
#include "models/lm/lm.h"

/* The modules that this rank has of one model: the model, or the chunks of a pipeline stage. */
typedef struct tg_lm_chunks {
    tg_ctx *ctx;
    tg_module *const *lm;
    int n;
} tg_lm_chunks;

static inline const tg_lm_config *tg_chunks_config(const tg_lm_chunks *m) { return &tg_lm_of(m->lm[0])->c; }
static inline const tg_parallel *tg_chunks_parallel(const tg_lm_chunks *m) { return tg_chunks_config(m)->parallel; }

/* Checks the arguments of a call `who` that takes the chunks of a model, and fills *m. */
tg_status tg_chunks_check(tg_module *const *lm, int n, const char *dir, const char *who, tg_lm_chunks *m);

static inline bool tg_ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* The output matrix, whose rows are those of the vocabulary like the rows of the embedding. A tied model has none. */
#define TG_WEIGHT_HEAD "lm_head.weight"

/* ---- config_file.c ---- */

#define TG_CONFIG_SUM "tapegrad_weights_xxh64" /* member with the checksum of the weights */

/* A config that was read from a file, and the texts that it refers to. */
typedef struct tg_config_file {
    tg_lm_config c;
    char *kinds, *extra;
} tg_config_file;

/* Read the config of any family from the config.json at path, or from an object. The config is not completed. The
 * caller calls tg_config_free, after an error too. */
tg_status tg_config_read(tg_ctx *ctx, const char *path, tg_config_file *out);
tg_status tg_config_parse(const tg_json *j, tg_config_file *out);
void tg_config_free(tg_ctx *ctx, tg_config_file *f);
/* Returns whether two completed configs are of models that compute the same. */
bool tg_lm_same(const tg_lm_config *a, const tg_lm_config *b);

/* Returns the content of config.json, except the checksum of the weights, which is not known yet. Returns NULL if the
 * family's config.json cannot describe the model, and after recording an error. */
json_t *tg_lm_config_json(const tg_module *lm);
/* Returns the config as one line of JSON, for the weights' metadata "tapegrad.config". Free it with tg_host_strfree. */
char *tg_config_line(tg_ctx *ctx, const json_t *root);
/* Writes config.json. weights_sum is the checksum of the weights, which is added to the config. */
tg_status tg_config_save(tg_ctx *ctx, const char *path, json_t *root, const char *weights_sum);

/* ---- gpt.c ---- */

/* Converts the config of a language model, which is not completed, to that of a GPT. Fails with TG_ERR_UNSUPPORTED if
 * it is of another family, or has options that no GPT has. path names the file in messages, and `who` is the public
 * function. */
tg_status tg_gpt_of_lm(tg_ctx *ctx, const tg_lm_config *lm, const char *path, const char *who, tg_gpt_config *out);

/* ---- weights.c ---- */

#define TG_WEIGHTS_FILE  "model.safetensors"
#define TG_WEIGHTS_INDEX "model.safetensors.index.json"
#define TG_WEIGHTS_PART  "model-%05d-of-%05d.safetensors" /* number of the file from 1, number of files */

/* p is the parameter `path` of lm, or this rank's shard of it. */

/* Returns whether the parameter is a projection of GPT-2's layers, which files store transposed. */
bool tg_weight_is_transposed(const tg_module *lm, const char *path);
/* Returns the number of rows of the whole parameter, without the padding of a vocabulary. */
int64_t tg_weight_rows(const tg_module *lm, const tg_tensor *p, const char *path);
/* Returns the shape of the whole parameter in the file. */
tg_shape tg_weight_shape(const tg_module *lm, const tg_tensor *p, const char *path);
/* Returns a view of the first `rows` rows of p, with the dims in the order of the file. p may also be another tensor
 * with the dims of the parameter. Free the view with tg_temp_free. */
tg_tensor *tg_weight_view(const tg_module *lm, const tg_tensor *p, int64_t rows, const char *path);
/* Returns whether parameter `path` of this part is the last part's copy of the embedding. The files contain the
 * embedding once, from the first part. */
bool tg_weight_is_copy(const tg_module *lm, const char *path);
/* Returns whether parameter `path` is in no file of weights, because it is a matrix of an adapter (lora.h). */
bool tg_weight_is_adapter(const char *path);

/* ---- weights_load.c, weights_save.c ---- */

/* Returns the name that parameter `path` has in the file. */
const char *tg_weight_stored_name(const tg_safetensors *f, const char *path);
/* Returns whether the file's tensor belongs to this part of the model, or may be ignored. */
bool tg_weight_is_known(const tg_module *lm, const char *name);
/* Returns the path of the weights in dir: model.safetensors, or the index if only the index is there. Free it with
 * tg_host_strfree. Returns NULL after recording an error, but not because the files are absent. */
char *tg_weights_find(tg_ctx *ctx, const char *dir);

/* Fills the parameters from the files in dir, or maps the files. Collective over pp if that has several stages. */
tg_status tg_weights_load(const tg_lm_chunks *m, const char *dir, bool map);
/* Saves the parameters into dir. The tensors of a file have at most file_bytes bytes, or are one larger tensor. config
 * (may be NULL) is added to the metadata of each file. Removes an old model; the caller writes config.json afterward.
 * On the first rank sum receives a checksum: of the header of the only file, or of the index of several. On the other
 * ranks it is "". Collective over the ranks of the model. */
tg_status tg_weights_save(const tg_lm_chunks *m, const char *dir, int64_t file_bytes, const char *config,
                          char sum[TG_CHECKSUM_DIGITS + 1]);

/* ---- weights_index.c: which files of a directory are the model ---- */

/* Returns the path of file number i, from 1, of n files of weights. Free it with tg_host_strfree. */
char *tg_weights_path(tg_ctx *ctx, const char *dir, int i, int n);
/* Removes config.json and, if the new model has several files, the index, before the new files get their names. A
 * reader then finds no model, rather than a mixture of old and new files. */
tg_status tg_weights_retract(tg_ctx *ctx, const char *dir, bool several);
/* Writes the index of n files, which are complete, and the checksum of it to sum. */
tg_status tg_weights_write_index(tg_ctx *ctx, const char *dir, int n, char sum[TG_CHECKSUM_DIGITS + 1]);
/* Removes the files of an older model that are not among the n files of the new one, and the temporary files of saves
 * that were interrupted. */
tg_status tg_weights_remove_stale(tg_ctx *ctx, const char *dir, int n);

#endif
