/* Files of adapters, as PEFT writes them: adapter_config.json and adapter_model.safetensors. */
#ifndef TG_LORA_FILES_H
#define TG_LORA_FILES_H

#include "io/json.h"
#include "io/safetensors.h"
#include "models/lora/lora.h"

#define TG_LORA_CONFIG  "adapter_config.json"
#define TG_LORA_WEIGHTS "adapter_model.safetensors"
#define TG_LORA_PREFIX  "base_model.model." /* of the names of tensors; then follow the layer's path and the matrix */

enum { TG_LORA_PATH = 1024, TG_LORA_NAME = TG_LORA_PATH + 64 }; /* bytes of paths and of names, with the zero */

/* What adapter_config.json says about every layer, and about some. */
typedef struct tg_lora_config {
    tg_json json; /* the document; tg_json_free frees it */
    tg_lora_numbers n;
} tg_lora_config;

/* ---- lora_config.c ---- */

/* Writes adapter_config.json for the adapters in the list. base may be NULL. */
tg_status tg_lora_config_save(tg_module *m, const tg_lora_list *l, const char *path, const char *base);
/* Reads it. path must stay valid as long as the config. On an error nothing has to be freed. */
tg_status tg_lora_config_load(tg_ctx *ctx, const char *path, tg_lora_config *c);
/* Returns the alpha of the layer of that path. */
double tg_lora_config_alpha(const tg_lora_config *c, const char *path);

#endif
