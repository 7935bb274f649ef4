/* Conversions between model directories and saved state, without a model in memory: the model is made on device meta,
 * for the names and shapes of its parameters, and one tensor at a time is read and written. */
#ifndef TG_CONVERT_H
#define TG_CONVERT_H

#include "checkpoint/state/state_index.h"
#include "io/outlines.h"
#include "models/files/model_files.h"

typedef struct tg_conversion {
    tg_ctx *ctx;
    const char *prefix; /* of the keys in the state; "": none */
    json_t *config;     /* what config.json of the source says */
    tg_ctx *plan;       /* on device meta */
    tg_module *lm;
    int n;                   /* number of parameters */
    tg_outlines state, file; /* the parameters as the state has them, and as the files of a model do */
} tg_conversion;

/* Checks the context and the directories of call `who`. */
tg_status tg_conversion_check(tg_ctx *ctx, const char *who, const char *from, const char *to);
/* Begins a conversion: reads the config at that path. The caller calls tg_conversion_close, after an error too. */
tg_status tg_conversion_open(tg_conversion *c, tg_ctx *ctx, const char *prefix, const char *config);
/* Makes the model of the same config, with parameters of that dtype. */
tg_status tg_conversion_plan(tg_conversion *c, const char *config, tg_dtype dtype);
void tg_conversion_close(tg_conversion *c);

/* Sets the dtype of parameter i, which is that of the source. */
void tg_conversion_set_dtype(tg_conversion *c, int i, tg_dtype dtype);
/* Returns memory for parameter i, row-major in the library's order of dims. Sets *view to a view of it whose dims are
 * in the order of the files. Free both with tg_temp_free. NULL after recording an error. */
tg_tensor *tg_conversion_tensor(const tg_conversion *c, int i, tg_tensor **view);
/* Returns what config.json of the result says: the keys of the model, and those of the source that the library does not
 * know, such as "eos_token_id". The caller frees it. NULL after recording an error. */
json_t *tg_conversion_config(const tg_conversion *c);

#endif
