/* Finds and loads the plugins of libtapegrad.so.
 *
 * A plugin stays loaded until the process ends (RTLD_NODELETE), because CUDA's runtime and NCCL start threads and
 * register exit handlers, which must not be unmapped. So no handle is kept: each call finds the loaded plugin again. */
#define _GNU_SOURCE
#include "base/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/runtime.h"
#include "base/text.h"

/* The arguments of tg_plugin_table. */
typedef struct request {
    tg_ctx *ctx;
    const char *name;
    tg_status missing;
    const char *who;
} request;

/* Where a plugin is searched for: if the environment names a folder, there alone; otherwise in subfolder "tapegrad" of
 * the folder of libtapegrad.so, and then in that folder itself. */
typedef struct search {
    char folder[PATH_MAX];
    char path[PATH_MAX + 64]; /* the plugin's file */
    bool by_environment;      /* the environment variable TAPEGRAD_PLUGINS names the folder */
} search;

/* ---- Finding ---- */

/* Writes the folder of libtapegrad.so, with links resolved and without the last slash. */
static void library_folder(char folder[PATH_MAX]) {
    static const char here = 0;
    Dl_info info;
    if (!dladdr(&here, &info) || !info.dli_fname || !realpath(info.dli_fname, folder))
        strcpy(folder, "./"); /* the file was renamed or removed since it was loaded */
    *strrchr(folder, '/') = 0;
}

/* Sets the path to the plugin in this subfolder. Returns whether there is such a file. */
static bool is_in(search *s, const char *subfolder, const char *name) {
    size_t at = 0;
    tg_text(s->path, sizeof s->path, &at, "%s/%slibtapegrad-%s.so", s->folder, subfolder, name);
    return at < sizeof s->path && access(s->path, F_OK) == 0;
}

/* Searches for the plugin. Returns whether it was found; s->path is then its file. */
static bool find(search *s, const char *name) {
    const char *given = secure_getenv("TAPEGRAD_PLUGINS");
    s->by_environment = given && *given;
    if (!s->by_environment) {
        library_folder(s->folder);
        return is_in(s, "tapegrad/", name) || is_in(s, "", name);
    }
    snprintf(s->folder, sizeof s->folder, "%s", given);
    return is_in(s, "", name);
}

static const tg_plugin *fail_absent(const request *r, const search *s) {
    const char *remedy = tg_plugin_remedy(r->name);
    if (s->by_environment)
        tg_fail(r->ctx, r->missing,
                "%s: plugin libtapegrad-%s.so is not in %s, which TAPEGRAD_PLUGINS names; correct or unset it", r->who,
                r->name, s->folder);
    else
        tg_fail(r->ctx, r->missing,
                "%s: plugin libtapegrad-%s.so is neither in %s/tapegrad nor in %s; %s, or set TAPEGRAD_PLUGINS to its "
                "folder",
                r->who, r->name, s->folder, s->folder, remedy);
    return NULL;
}

/* ---- Loading ---- */

/* Loads the file. Returns what it exports as tg_NAME_plugin; NULL, after recording the error, if it cannot be loaded
 * or exports nothing of this name. */
static const tg_plugin *load(const request *r, const char *path) {
    char symbol[64];
    const tg_plugin *plugin = NULL;
    snprintf(symbol, sizeof symbol, "tg_%s_plugin", r->name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle) plugin = dlsym(handle, symbol);
    if (!plugin) {
        const char *why = dlerror();
        tg_fail(r->ctx, r->missing,
                "%s: plugin %s cannot be loaded: %s; install the libraries that it needs, and the plugin of this "
                "version, %s",
                r->who, path, why ? why : "unknown reason", TG_VERSION);
    }
    if (handle) dlclose(handle);
    return plugin;
}

/* Checks that the plugin was compiled for this version, and calls this copy of the library. */
static bool fits(const request *r, const tg_plugin *plugin, const char *path) {
    bool same = strcmp(plugin->version, TG_VERSION) == 0;
    if (!same)
        tg_fail(r->ctx, r->missing,
                "%s: plugin %s is of version %s, expected %s, the version of this library; install the plugin of this "
                "version",
                r->who, path, plugin->version, TG_VERSION);
    else if (plugin->library != tg_version)
        tg_fail(r->ctx, r->missing,
                "%s: plugin %s uses another copy of libtapegrad.so, which this process loaded before; let all parts of "
                "the program use one copy",
                r->who, path);
    return same && plugin->library == tg_version;
}

const void *tg_plugin_table(tg_ctx *ctx, const char *name, tg_status missing, const char *who) {
    request r = {ctx, name, missing, who};
    search s;
    const tg_plugin *plugin = find(&s, name) ? load(&r, s.path) : fail_absent(&r, &s);
    return plugin && fits(&r, plugin, s.path) ? plugin->table : NULL;
}

bool tg_plugin_is_here(const char *name) {
    search s;
    return find(&s, name);
}
