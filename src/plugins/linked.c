/* In libtapegrad.a, plugins are linked in: this file takes the place of base/plugin.c, which loads them. */
#include "base/plugin.h"
#include "base/runtime.h"
#ifdef TG_HAVE_CUDA
#include "kernels/cuda/device_table.h"
#endif
#ifdef TG_HAVE_NCCL
#include "comm/nccl/world.h"
#endif

static const tg_plugin *linked(const char *name) {
#ifdef TG_HAVE_CUDA
    if (strcmp(name, "cuda") == 0) return &tg_cuda_plugin;
#endif
#ifdef TG_HAVE_NCCL
    if (strcmp(name, "nccl") == 0) return &tg_nccl_plugin;
#endif
    return (void)name, NULL;
}

const void *tg_plugin_table(tg_ctx *ctx, const char *name, tg_status missing, const char *who) {
    const tg_plugin *plugin = linked(name);
    if (plugin) return plugin->table;
    tg_fail(ctx, missing,
            "%s: this library was built without %s; build it with Meson option cuda=enabled where nvcc and NCCL are "
            "installed",
            who, strcmp(name, "cuda") == 0 ? "CUDA" : "NCCL");
    return NULL;
}
