/* Memory that is missing on request. The functions of the C library are replaced in this program, so that those of
 * jansson, PCRE2 and the C library itself are counted too. */
#define _GNU_SOURCE
#include "memory/allocations.h"

#include <dlfcn.h>
#include <errno.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/runtime.h"
#include "unit/counted_allocator.h"

static counted memory;
static fault now;
static tg_ctx *limited;  /* the context of fault_begin */
static tg_ctx *_Atomic starving; /* the same if its tensors get no memory after call number now.at; otherwise NULL */
static int64_t c_calls;
static _Thread_local bool armed; /* whether the calls of this thread count */

/* ---- The C library's functions ---- */

/* They run before a sanitizer is ready. */
#define EARLY __attribute__((no_sanitize("address", "undefined", "thread")))

EARLY static bool c_refuses(void) {
    if (!armed) return false;
    int64_t call = ++c_calls;
    bool fails = (now.kind == FAULT_C && call == now.at) || (now.kind == FAULT_C_ALL && call >= now.at);
    if (fails) errno = ENOMEM;
    return fails;
}

EARLY static void *next_function(const char *name) { return dlsym(RTLD_NEXT, name); }

EARLY void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (!next) *(void **)&next = next_function("malloc");
    return c_refuses() ? NULL : next(bytes);
}

EARLY void *calloc(size_t n, size_t size) {
    static void *(*next)(size_t, size_t);
    if (!next) *(void **)&next = next_function("calloc");
    return c_refuses() ? NULL : next(n, size);
}

EARLY void *realloc(void *p, size_t bytes) {
    static void *(*next)(void *, size_t);
    if (!next) *(void **)&next = next_function("realloc");
    return c_refuses() ? NULL : next(p, bytes);
}

/* ---- libdw ----
 *
 * It finds lines of source for messages, and ends the program if it has no memory. So it is not loaded. */

void *dlopen(const char *name, int mode) {
    static void *(*next)(const char *, int);
    if (!next) *(void **)&next = next_function("dlopen");
    return name && strstr(name, "libdw") ? NULL : next(name, mode);
}

/* ---- jansson's parser ----
 *
 * It checks few of its allocations: a number may lose digits and a string its end. So a parse counts as one allocation,
 * without which it fails as the parser does if it has no memory for the first value. */

static json_t *parse(const char *text, size_t n, size_t flags, json_error_t *e) {
    static json_t *(*next)(const char *, size_t, size_t, json_error_t *);
    if (!next) *(void **)&next = next_function("json_loadb");
    bool was = armed;
    if (e) *e = (json_error_t){.line = -1, .column = -1};
    if (c_refuses()) return NULL;
    armed = false;
    json_t *j = next(text, n, flags, e);
    armed = was;
    return j;
}

json_t *json_loadb(const char *text, size_t n, size_t flags, json_error_t *e) { return parse(text, n, flags, e); }
json_t *json_loads(const char *text, size_t flags, json_error_t *e) { return parse(text, strlen(text), flags, e); }

/* ---- The allocator ---- */

static void *fault_alloc(void *user, size_t bytes, size_t align) {
    if (starving && memory.calls + 1 >= now.at) tg_runtime_of(starving)->memory_limit = 1;
    return counted_alloc(user, bytes, align);
}

tg_allocator fault_allocator(void) {
    memory = (counted){0};
    return (tg_allocator){fault_alloc, counted_free, &memory};
}

void fault_begin(tg_ctx *ctx, fault f) {
    now = f;
    memory.calls = c_calls = 0;
    memory.fail_at = f.kind == FAULT_HOST || f.kind == FAULT_HOST_ALL ? f.at : 0;
    memory.lasting = f.kind == FAULT_HOST_ALL;
    starving = f.kind == FAULT_TENSORS ? ctx : NULL;
    if (f.kind == FAULT_LIMIT) tg_runtime_of(ctx)->memory_limit = f.at;
    limited = ctx;
    armed = true;
}

bool fault_end(void) {
    armed = false;
    memory.fail_at = 0;
    starving = NULL;
    tg_runtime_of(limited)->memory_limit = 0;
    return now.kind == FAULT_LIMIT || (now.kind != FAULT_NONE && fault_calls(now.kind) >= now.at);
}

int64_t fault_calls(fault_kind k) { return k == FAULT_C || k == FAULT_C_ALL ? c_calls : memory.calls; }
int64_t fault_held(void) { return memory.held; }
