/* Files and lines of addresses, which elfutils' libdw reads from the program's debug information. libdw is loaded when
 * an address is described for the first time, as in an error message. A program that needs no description does not load
 * it, and the library works without it. */
#define _GNU_SOURCE
#include "base/sites/debug_lines.h"
#include "base/runtime.h"
#include "base/text.h"

#ifdef TG_HAVE_LIBDW
#include <dlfcn.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#define FUNCTIONS(X) X(begin) X(end) X(report_begin) X(linux_proc_report) X(report_end) X(getsrc) X(lineinfo)

/* The functions of libdw that are called here, without their prefix dwfl_. */
typedef struct libdw {
#define FIELD(name) __typeof__(dwfl_##name) *name;
    FUNCTIONS(FIELD)
} libdw;

/* Finds the functions. libdw stays loaded (RTLD_NODELETE), so there is no handle to keep. */
static bool load(libdw *dw) {
    void *library = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) return false;
#define FIND(name) &&(*(void **)&dw->name = dlsym(library, "dwfl_" #name))
    bool whole = true FUNCTIONS(FIND);
    dlclose(library);
    return whole;
}

/* Opens the file of a module, unless it is no file, such as the kernel's [vdso]. libdw frees *file. */
static int open_module(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base, char **file, Elf **elf) {
    (void)module, (void)data, (void)base, (void)elf;
    int fd = *name == '/' ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) *file = strdup(name);
    return fd;
}

/* Refuses to search for separate debug files, because such a search could access a network. Only debug information
 * inside the program's own files is used. */
static int no_search(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base, const char *file,
                     const char *link, GElf_Word crc, char **found) {
    (void)module, (void)data, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)found;
    return -1;
}

/* Sets *count to how many times libraries have been loaded into or unloaded from the process. */
static int count_changes(struct dl_phdr_info *any, size_t size, void *count) {
    (void)size;
    *(unsigned long long *)count = any->dlpi_adds + any->dlpi_subs;
    return 1;
}

/* Tells libdw which files are mapped, unless they are the same as at the last call: the list takes milliseconds to read
 * in a process of hundreds of libraries. libdw keeps what it has read of files that it knows. */
static bool update(const libdw *dw, tg_runtime *r) {
    unsigned long long changes = 0;
    dl_iterate_phdr(count_changes, &changes);
    if (changes == r->debug_changes) return true;
    dw->report_begin(r->debug_lines);
    if (dw->linux_proc_report(r->debug_lines, getpid()) != 0 || dw->report_end(r->debug_lines, NULL, NULL) != 0)
        return false;
    r->debug_changes = changes;
    return true;
}

bool tg_debug_line(tg_ctx *ctx, const void *site, char *buf, size_t n, size_t *at) {
    static const Dwfl_Callbacks callbacks = {.find_elf = open_module, .find_debuginfo = no_search};
    libdw dw;
    int number = 0;
    tg_runtime *r = tg_runtime_of(ctx);
    if (!ctx || r->dead || !load(&dw)) return false;
    if (!r->debug_lines && !(r->debug_lines = dw.begin(&callbacks))) return false;
    if (!update(&dw, r)) return false;
    /* The call instruction ends right before its return address. */
    Dwfl_Line *line = dw.getsrc(r->debug_lines, (Dwarf_Addr)(uintptr_t)site - 1);
    const char *file = line ? dw.lineinfo(line, NULL, &number, NULL, NULL, NULL) : NULL;
    if (file) tg_text(buf, n, at, "%s:%d", tg_base_name(file), number);
    return file != NULL;
}

void tg_debug_lines_close(tg_ctx *ctx) {
    libdw dw;
    if (tg_runtime_of(ctx)->debug_lines && load(&dw)) dw.end(tg_runtime_of(ctx)->debug_lines);
}
#else
bool tg_debug_line(tg_ctx *ctx, const void *site, char *buf, size_t n, size_t *at) {
    return (void)ctx, (void)site, (void)buf, (void)n, (void)at, false;
}

void tg_debug_lines_close(tg_ctx *ctx) { (void)ctx; }
#endif
