/* Call sites: return addresses, which are converted to text only when they are printed, and the places of programs in
 * other languages that stand for them (named_site.h). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "base/sites/debug_lines.h"
#include "base/sites/named_site.h"
#include "base/runtime.h"
#include "base/text.h"

/* The linker defines these symbols. They lie before and after the code of the program or shared library that this
 * object is linked into. */
extern const char __ehdr_start[] __attribute__((visibility("hidden"), weak));
extern const char etext[] __attribute__((visibility("hidden"), weak));

bool tg_site_is_own(const void *site) {
    uintptr_t at = (uintptr_t)site, first = (uintptr_t)__ehdr_start, end = (uintptr_t)etext;
    return first && at >= first && at < end;
}

/* Writes "model.py:12", or returns false if the site is not a named one. */
static bool describe_named(const void *site, char *buf, size_t n, size_t *at) {
    const tg_named_site *s = tg_named_site_of(site);
    if (s) tg_text(buf, n, at, "%s:%d", tg_base_name(s->file), s->line);
    return s != NULL;
}

/* Writes "model.py:12" for a named site, otherwise "symbol+0x12 (program)". Writes "program+0x1234" if no symbol is
 * exported, and the address alone if it lies in no loaded file. */
size_t tg_describe_symbol(const void *site, char *buf, size_t n) {
    Dl_info info;
    size_t at = 0;
    if (n) buf[0] = 0;
    if (describe_named(site, buf, n, &at)) return at;
    if (!dladdr(site, &info) || !info.dli_fname) {
        tg_text(buf, n, &at, "%p", site);
        return at;
    }
    const char *file = tg_base_name(info.dli_fname), *address = site;
    if (info.dli_sname)
        tg_text(buf, n, &at, "%s+0x%zx (%s)", info.dli_sname, (size_t)(address - (char *)info.dli_saddr), file);
    else
        tg_text(buf, n, &at, "%s+0x%zx", file, (size_t)(address - (char *)info.dli_fbase));
    return at;
}

size_t tg_describe_site(tg_ctx *ctx, const void *site, char *buf, size_t n) {
    size_t at = 0;
    if (n) buf[0] = 0;
    if (!describe_named(site, buf, n, &at) && !(site && tg_debug_line(ctx, site, buf, n, &at)))
        at = tg_describe_symbol(site, buf, n);
    if (n && at >= n) tg_utf8_cut(buf);
    return at;
}
