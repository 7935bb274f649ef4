/* tg_module_load: reads this rank's parts of a module's state dict from a safetensors file, and reports keys that are
 * missing or unknown. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/text.h"
#include "checkpoint/shards.h"
#include "core/work.h"
#include "io/safetensors.h"
#include "nn/module.h"

static const char *const call = "tg_module_load";

typedef struct loader {
    tg_module *m;
    tg_safetensors *f;
    const char *path;
    tg_load_opts o;
    int params, all;                /* number of parameters, and of parameters and saved buffers together */
    uint8_t *known;                 /* [tensors of the file] 1 if the module has a tensor of that key */
    size_t at;                      /* length of the report so far */
    char *key;                      /* the key that tensor_at has returned last */
    char first[160];                /* the first line of the report; a long key is cut */
} loader;

/* Returns tensor i of the state dict, and sets *key to its key in the file, which is valid until the next call. Returns
 * NULL after recording an error. */
static tg_tensor *tensor_at(loader *l, int i, const char **key) {
    const char *path = "", *prefix = l->o.prefix ? l->o.prefix : "";
    bool param = i < l->params;
    tg_state_list list = param ? TG_STATE_PARAMS : TG_STATE_SAVED_BUFFERS;
    tg_tensor *x = tg_state_at(l->m, list, param ? i : i - l->params, &path, call);
    *key = tg_ok(l->m->ctx) ? tg_host_strset(l->m->ctx, &l->key, "%s%s%s", prefix, *prefix ? "." : "", path) : NULL;
    return *key ? x : NULL;
}

/* ---- The checks ---- */

static void report(loader *l, const char *what, const char *key) {
    if (!*l->first) snprintf(l->first, sizeof l->first, "%s '%.128s'", what, key);
    tg_text(l->o.report, l->o.report ? l->o.report_size : 0, &l->at, "%s %s\n", what, key);
}

/* Fails if the tensor of the file does not fit x, or if x is read-only. Verifies the checksum if x is read as a
 * whole. */
static tg_status check_tensor(loader *l, const tg_safetensors_entry *e, const tg_tensor *x) {
    char has[160], wants[160];
    tg_axis axes[TG_MAX_AXES];
    tg_ctx *ctx = l->m->ctx;
    tg_shape g = tg_shard_global(x);
    bool shape = e->shape.ndim == g.ndim && memcmp(e->shape.dim, g.dim, (size_t)g.ndim * sizeof *g.dim) == 0;
    bool converts = l->o.convert && tg_is_float(e->dtype) && tg_is_float((tg_dtype)x->dtype);
    if (shape && (e->dtype == (tg_dtype)x->dtype || converts)) {
        int i = (int)(e - tg_safetensors_at(l->f, 0));
        TG_TRY(tg_storage_check_write(x->storage, call));
        return tg_shard_axes(x, axes) ? TG_OK : tg_safetensors_verify(l->f, i, tg_safetensors_count(l->f));
    }
    tg_shape_text((int)e->shape.ndim, e->shape.dim, has, sizeof has);
    tg_shape_text((int)g.ndim, g.dim, wants, sizeof wants);
    return tg_fail(ctx, TG_ERR_FORMAT, "'%s': tensor '%.128s' is %s%s, expected %s%s%s", l->path, e->name,
                   e->dtype_name, has, tg_dtype_name((tg_dtype)x->dtype), wants,
                   shape ? "; set convert if only the float dtypes differ" : "");
}

/* Checks the tensors of the module, and counts those that the file lacks. */
static tg_status check_module(loader *l) {
    const char *key;
    for (int i = 0; i < l->all; i++) {
        const tg_tensor *x = tensor_at(l, i, &key);
        if (!x) return l->m->ctx->run.status;
        if (!tg_shard_is_located(x))
            return tg_fail(
                l->m->ctx, TG_ERR_PLACEMENT,
                "%s: the placement of '%.128s' does not say which part of the whole tensor it is; declare it "
                "with tg_place first",
                call, key);
        const tg_safetensors_entry *e = tg_safetensors_find(l->f, key);
        if (e) {
            l->known[e - tg_safetensors_at(l->f, 0)] = 1;
            TG_TRY(check_tensor(l, e, x));
        } else {
            l->o.missing++;
            report(l, "missing", key);
        }
    }
    return TG_OK;
}

/* Counts the keys of the file that begin with the prefix and that the module lacks. */
static void check_file(loader *l) {
    for (int i = 0; i < tg_safetensors_count(l->f); i++) {
        const char *name = tg_safetensors_at(l->f, i)->name;
        if (l->known[i] || !tg_key_after(name, l->o.prefix)) continue;
        l->o.unknown++;
        report(l, "unknown", name);
    }
}

static tg_status check(loader *l) {
    TG_TRY(check_module(l));
    check_file(l);
    if (l->o.partial || !*l->first) return TG_OK;
    return tg_fail(
        l->m->ctx, TG_ERR_FORMAT,
        "'%s': %s of the module missing and %s of the file unknown, the first: %s; set partial to load the others",
        l->path, tg_count(l->o.missing, "tensor").text, tg_count(l->o.unknown, "key").text, l->first);
}

/* ---- The data ---- */

static tg_status read_all(loader *l) {
    const char *key;
    for (int i = 0; i < l->all; i++) {
        tg_tensor *x = tensor_at(l, i, &key);
        if (!x) return l->m->ctx->run.status;
        if (!tg_safetensors_find(l->f, key)) continue;
        TG_TRY(tg_safetensors_read_part(l->f, key, x, l->o.convert));
    }
    return TG_OK;
}

static tg_status load(loader *l) {
    size_t bytes = (size_t)tg_safetensors_count(l->f) + 1;
    if (!(l->known = tg_host_alloc(l->m->ctx, bytes))) return l->m->ctx->run.status;
    tg_status s = check(l);
    if (s == TG_OK) s = read_all(l);
    tg_host_strfree(l->m->ctx, l->key);
    tg_host_free(l->m->ctx, l->known, bytes);
    return s;
}

tg_status tg_module_load(tg_module *m, const char *file, tg_load_opts *opts) {
    loader l = {.m = m, .path = file};
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    TG_TRY(tg_options(m->ctx, &l.o, &tg_load_opts_struct, opts, "tg_module_load: the options"));
    l.o.missing = l.o.unknown = 0;
    if (l.o.report && l.o.report_size) *l.o.report = 0;
    if (opts) tg_options_give(opts, &l.o); /* in case the file cannot be opened */
    if (!file) return tg_fail(m->ctx, TG_ERR_ARGUMENT, "%s: file is NULL", call);
    if (!(l.f = tg_safetensors_open(m->ctx, file))) return m->ctx->run.status;
    l.params = tg_state_count(m, TG_STATE_PARAMS);
    l.all = l.params + tg_state_count(m, TG_STATE_SAVED_BUFFERS);
    tg_status s = load(&l);
    tg_safetensors_close(l.f);
    if (opts) tg_options_give(opts, &l.o);
    return s;
}
