/* Call sites: return addresses, which are converted to text only when they are printed, and the places of programs in
 * other languages that stand for them (named_site.h). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "base/named_site.h"
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

/* Returns the part of a path after its last slash. */
static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

#ifdef TG_HAVE_LIBDW
#include <elfutils/libdwfl.h>
#include <unistd.h>

/* Refuses to search for separate debug files, because such a search could access a network. Only debug information
 * inside the program's own files is used. */
static int no_search(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base, const char *file,
                     const char *link, GElf_Word crc, char **found) {
    (void)module, (void)data, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)found;
    return -1;
}

/* Writes "file.c:12", or returns false if there is no debug information. Opens the debug information anew in every
 * call, which takes half a millisecond, so that no file descriptor stays open. */
static bool describe_line(const void *site, char *buf, size_t n, size_t *at) {
    static const Dwfl_Callbacks callbacks = {.find_elf = dwfl_linux_proc_find_elf, .find_debuginfo = no_search};
    Dwfl *process = dwfl_begin(&callbacks);
    int number = 0;
    const char *file = NULL;
    if (process && dwfl_linux_proc_report(process, getpid()) == 0 && dwfl_report_end(process, NULL, NULL) == 0) {
        /* The call instruction ends right before its return address. */
        Dwfl_Line *line = dwfl_getsrc(process, (Dwarf_Addr)(uintptr_t)site - 1);
        file = line ? dwfl_lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
        if (file) tg_text(buf, n, at, "%s:%d", base_name(file), number);
    }
    dwfl_end(process);
    return file != NULL;
}
#else
static bool describe_line(const void *site, char *buf, size_t n, size_t *at) {
    (void)site, (void)buf, (void)n, (void)at;
    return false;
}
#endif

/* Writes "model.py:12", or returns false if the site is not a named one. */
static bool describe_named(const void *site, char *buf, size_t n, size_t *at) {
    const tg_named_site *s = tg_named_site_of(site);
    if (s) tg_text(buf, n, at, "%s:%d", base_name(s->file), s->line);
    return s != NULL;
}

/* Writes "symbol+0x12 (program)", or "program+0x1234" if no symbol is exported. */
size_t tg_describe_symbol(const void *site, char *buf, size_t n) {
    Dl_info info;
    size_t at = 0;
    if (n) buf[0] = 0;
    if (describe_named(site, buf, n, &at)) return at;
    if (!dladdr(site, &info) || !info.dli_fname) {
        tg_text(buf, n, &at, "%p", site);
        return at;
    }
    const char *file = base_name(info.dli_fname), *address = site;
    if (info.dli_sname)
        tg_text(buf, n, &at, "%s+0x%zx (%s)", info.dli_sname, (size_t)(address - (char *)info.dli_saddr), file);
    else
        tg_text(buf, n, &at, "%s+0x%zx", file, (size_t)(address - (char *)info.dli_fbase));
    return at;
}

size_t tg_describe_site(const void *site, char *buf, size_t n) {
    size_t at = 0;
    if (n) buf[0] = 0;
    if (describe_named(site, buf, n, &at)) return at;
    return site && describe_line(site, buf, n, &at) ? at : tg_describe_symbol(site, buf, n);
}
