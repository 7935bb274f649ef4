/* A library for LD_PRELOAD: of the program's allocations for JSON, number JSON_FAILS fails, counted from 1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static json_malloc_t given;
static long fails;
static atomic_long calls;

/* The program's function sees malloc fail. */
static void *allocate(size_t n) { return given(atomic_fetch_add(&calls, 1) + 1 == fails ? PTRDIFF_MAX : n); }

void json_set_alloc_funcs(json_malloc_t malloc_fn, json_free_t free_fn) {
    void (*next)(json_malloc_t, json_free_t);
    void *symbol = dlsym(RTLD_NEXT, "json_set_alloc_funcs");
    const char *number = getenv("JSON_FAILS");
    memcpy(&next, &symbol, sizeof next);
    given = malloc_fn;
    fails = number ? atol(number) : 0;
    next(allocate, free_fn);
}
