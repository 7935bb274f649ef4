/* tapegrad convert --adapter: adds low-rank adapters to the weights of their model, and saves the sum as a model. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tapegrad/lora.h>

#include "convert/adapter.h"
#include "common/companions.h"
#include "common/model_files.h"

/* Returns the dtype of the model's first tensor, in which the sum is computed and saved; TG_DTYPE_DEFAULT after
 * printing what is wrong. */
static tg_dtype dtype_of_model(const char *dir) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    char *path =
        path_in(dir, is_there(dir, "model.safetensors") ? "model.safetensors" : "model.safetensors.index.json");
    tg_safetensors *f = path ? tg_safetensors_open(ctx, path) : NULL;
    const tg_safetensors_entry *first = f && tg_safetensors_count(f) > 0 ? tg_safetensors_at(f, 0) : NULL;
    tg_dtype dtype = first ? first->dtype : TG_DTYPE_DEFAULT;
    if (dtype != TG_F32 && dtype != TG_BF16 && dtype != TG_F16 && dtype != TG_F64) dtype = TG_DTYPE_DEFAULT;
    if (path && check(ctx) && !first) fail("'%s' has no tensors", path);
    if (first && !dtype)
        fail("'%s': tensor \"%s\" has dtype %s, expected F32, BF16, F16 or F64", path, first->name, first->dtype_name);
    tg_safetensors_close(f);
    tg_ctx_free(ctx);
    free(path);
    return dtype;
}

/* Saves the model with its adapters to the directory `to`. Returns the exit status. */
static int merge(const model_files *m, const char *to) {
    tg_dtype dtype = dtype_of_model(m->dir);
    if (!dtype) return 1;
    bool made = mkdir(to, 0777) == 0;
    if (!made && errno != EEXIST) return fail("cannot make the directory '%s': %s", to, strerror(errno));
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = dtype));
    tg_module *gpt = tg_lm_load_dir(ctx, m->dir, NULL);
    model_adapt(m, gpt);
    tg_lora_merge(gpt);
    if (tg_ctx_status(ctx) == TG_OK && copy_companions(ctx, m->dir, to)) tg_lm_save(&gpt, 1, to, NULL);
    bool good = check(ctx);
    if (!good && made) rmdir(to); /* fails if it has a file */
    tg_module_free(gpt);
    tg_ctx_free(ctx);
    if (good) printf("the model with the adapters of '%s' is in %s\n", m->adapter, to);
    return good ? 0 : 1;
}

int convert_adapter(const char *from, const char *adapter, const char *to) {
    model_files m;
    if (!model_find(&m, from ? from : adapter, true)) return 1;
    if (from && !model_find_adapter(&m, adapter)) return free_model_config(&m.config), 1;
    int status;
    if (!*m.adapter)
        status = fail("--adapter '%s' has no adapter_config.json", adapter);
    else if (same_file(m.dir, to) || same_file(m.adapter, to))
        status = fail("--to is the directory '%s' of %s; give another one", to,
                      same_file(m.dir, to) ? "the model that the adapters adapt" : "the adapters");
    else if (is_there(to, "config.json") || is_there(to, "model.safetensors"))
        status = fail("'%s' has a model already; give another directory", to);
    else
        status = merge(&m, to);
    free_model_config(&m.config);
    return status;
}
