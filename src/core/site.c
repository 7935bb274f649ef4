/* Call sites: return addresses, turned into text only when somebody prints one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "core/core.h"

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* "symbol+0x12 (program)", or "program+0x1234" where no symbol is exported. */
size_t tg_describe_site(const void *site, char *buf, size_t n) {
    Dl_info info;
    size_t at = 0;
    if (n) buf[0] = 0;
    if (!site || !dladdr(site, &info) || !info.dli_fname) {
        tg_text(buf, n, &at, "%p", site);
        return at;
    }
    const char *file = base_name(info.dli_fname);
    if (info.dli_sname)
        tg_text(buf, n, &at, "%s+0x%zx (%s)", info.dli_sname, (size_t)((const char *)site - (char *)info.dli_saddr), file);
    else
        tg_text(buf, n, &at, "%s+0x%zx", file, (size_t)((const char *)site - (char *)info.dli_fbase));
    return at;
}
