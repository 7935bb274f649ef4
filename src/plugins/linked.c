/* In libtapegrad.a, plugins are linked in: this file takes the place of base/plugin.c, which loads them. */
#include "base/plugin.h"
#include "base/runtime.h"
#include "comm/world/world.h"
#ifdef TG_HAVE_CUDA
#include "kernels/cuda/device_table.h"
#endif
#ifdef TG_HAVE_NCCL
#include "comm/nccl/world.h"
#endif
#ifdef TG_HAVE_TCP
#include "comm/tcp/world.h"
#endif
#ifdef TG_HAVE_TEXT
#include "text/patterns.h"
#endif

#pragma weak tg_mpi_plugin /* it is in libtapegrad-mpi.a, which a program may link or not */

/* Returns the plugin, or NULL if it is not linked into this program. */
static const tg_plugin *linked(const char *name) {
    if (strcmp(name, "mpi") == 0) return &tg_mpi_plugin;
#ifdef TG_HAVE_CUDA
    if (strcmp(name, "cuda") == 0) return &tg_cuda_plugin;
#endif
#ifdef TG_HAVE_NCCL
    if (strcmp(name, "nccl") == 0) return &tg_nccl_plugin;
#endif
#ifdef TG_HAVE_TCP
    if (strcmp(name, "tcp") == 0) return &tg_tcp_plugin;
#endif
#ifdef TG_HAVE_TEXT
    if (strcmp(name, "text") == 0) return &tg_text_plugin;
#endif
    return NULL;
}

bool tg_plugin_is_here(const char *name) { return linked(name) != NULL; }

const void *tg_plugin_table(tg_ctx *ctx, const char *name, tg_status missing, const char *who) {
    const tg_plugin *plugin = linked(name);
    if (plugin) return plugin->table;
    tg_fail(ctx, missing, "%s: plugin \"%s\" is not linked into this program; %s", who, name, tg_plugin_remedy(name));
    return NULL;
}
