/* Plugins: the parts of the library that need CUDA, NCCL, libuv, MPI, or PCRE2 and utf8proc. Each is a shared object of
 * its own, which is loaded when it is used for the first time, so libtapegrad.so needs none of them. In libtapegrad.a
 * the same parts are linked in. */
#ifndef TG_PLUGIN_H
#define TG_PLUGIN_H

#include <string.h>

#include "base/private_api.h"

/* What the file libtapegrad-NAME.so exports under the name tg_NAME_plugin. */
typedef struct tg_plugin {
    const char *version;          /* TG_VERSION when the plugin was compiled */
    const char *(*library)(void); /* tg_version of the copy of the library that the plugin calls */
    const void *table;            /* the functions of the plugin; its type depends on the plugin */
} tg_plugin;

/* Initializes the tg_plugin of a plugin that is compiled with this library. */
#define TG_PLUGIN(functions)                                                                                           \
    { .version = TG_VERSION, .library = tg_version, .table = (functions) }

/* Returns how to get plugin `name`: "build it with ...". */
static inline const char *tg_plugin_remedy(const char *name) {
    return !strcmp(name, "tcp")   ? "build it with Meson option tcp=enabled where libuv is installed"
           : !strcmp(name, "text")
               ? "build it with Meson option text=enabled where PCRE2 and utf8proc are installed"
           : !strcmp(name, "mpi") ? "build it with Meson option mpi=enabled where MPI is installed"
                                  : "build it with Meson option cuda=enabled where nvcc and NCCL are installed";
}

/* Returns the table of plugin `name`, "cuda", "nccl", "tcp", "text" or "mpi". If the plugin is missing or cannot be
 * used, returns NULL after recording the error `missing`, whose message begins with `who`. Defined in plugin.c for
 * libtapegrad.so, and in plugins/linked.c for libtapegrad.a. */
const void *tg_plugin_table(tg_ctx *ctx, const char *name, tg_status missing, const char *who);
/* Returns whether the plugin is installed, without loading it. */
bool tg_plugin_is_here(const char *name);

#endif
