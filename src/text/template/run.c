/* Memory, limits and errors of a run. */
#define _GNU_SOURCE
#include "text/template/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory/host_memory.h"
#include "base/runtime.h"

enum { CHUNK = 64 << 10 };

bool tg_tpl_guard(tpl_run *r, void (*body)(tpl_run *r, void *arg), void *arg) {
    if (setjmp(r->end)) return false;
    body(r, arg);
    return true;
}

void tg_tpl_leave(tpl_run *r) { longjmp(r->end, 1); }

void tg_tpl_release(tpl_run *r) {
    for (tpl_chunk *c = r->chunks, *next; c; c = next) {
        next = c->next;
        tg_host_free(r->ctx, c, c->bytes);
    }
    if (r->characters) freelocale(r->characters);
    r->chunks = NULL;
    r->free = NULL;
    r->room = 0;
    r->characters = 0;
}

/* ---- Errors ---- */

static void place_of(const tpl_run *r, int *line, int *column) {
    *line = 1;
    *column = 1;
    for (size_t i = 0; i < r->at && i < r->bytes; i++) {
        if (r->source[i] == '\n') {
            ++*line;
            *column = 1;
        } else if ((r->source[i] & 0xc0) != 0x80) {
            ++*column;
        }
    }
}

void tg_tpl_fail(tpl_run *r, tg_status status, const char *format, ...) {
    char text[512];
    int line, column;
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    place_of(r, &line, &column);
    tg_fail(r->ctx, status, "%s, line %d, column %d: %s", r->name, line, column, text);
    tg_tpl_leave(r);
}

void tg_tpl_spend(tpl_run *r, int64_t n) {
    if (n > r->steps)
        tg_tpl_fail(r, TG_ERR_DATA, "the template takes more than %d steps; does it loop without end?", TPL_STEPS);
    r->steps -= n;
}

void tg_tpl_enter(tpl_run *r) {
    if (++r->depth > TPL_DEPTH)
        tg_tpl_fail(r, TG_ERR_DATA,
                    "expressions and calls are nested deeper than %d; does a macro call itself without end?",
                    TPL_DEPTH);
    tg_tpl_spend(r, 1);
}

/* ---- Memory ---- */

static void add_chunk(tpl_run *r, size_t bytes) {
    size_t all = sizeof(tpl_chunk) + (bytes > CHUNK ? bytes : CHUNK);
    if (all > r->memory) tg_tpl_fail(r, TG_ERR_DATA, "the template needs more than %d MiB of memory", TPL_MEMORY >> 20);
    tpl_chunk *c = tg_host_alloc(r->ctx, all);
    if (!c) tg_tpl_leave(r);
    *c = (tpl_chunk){.next = r->chunks, .bytes = all};
    r->chunks = c;
    r->memory -= all;
    r->free = (char *)c->slots;
    r->room = all - sizeof(tpl_chunk);
}

void *tg_tpl_alloc(tpl_run *r, size_t bytes) {
    size_t align = sizeof(max_align_t);
    if (bytes > TPL_MEMORY)
        tg_tpl_fail(r, TG_ERR_DATA, "the template needs more than %d MiB of memory", TPL_MEMORY >> 20);
    bytes = (bytes + align - 1) / align * align;
    if (bytes > r->room) add_chunk(r, bytes);
    void *p = r->free;
    r->free += bytes;
    r->room -= bytes;
    return p;
}

void *tg_tpl_grow(tpl_run *r, void *items, int64_t n, int64_t *capacity, size_t size) {
    if (n < *capacity) return items;
    int64_t now = *capacity ? *capacity * 2 : 4;
    void *p = tg_tpl_alloc(r, (size_t)now * size);
    if (n) memcpy(p, items, (size_t)n * size);
    *capacity = now;
    return p;
}

char *tg_tpl_copy(tpl_run *r, const char *bytes, size_t n) {
    char *s = tg_tpl_alloc(r, n + 1);
    if (n) memcpy(s, bytes, n);
    return s;
}

/* ---- Buffers ---- */

void tg_tpl_put(tpl_run *r, tpl_buffer *b, const char *bytes, size_t n) {
    if (n > TPL_OUTPUT || b->n + n > TPL_OUTPUT)
        tg_tpl_fail(r, TG_ERR_DATA, "the template makes a text of more than %d MiB", TPL_OUTPUT >> 20);
    tg_tpl_pass(r, n);
    if (b->n + n > b->capacity) {
        size_t now = b->capacity * 2 > b->n + n ? b->capacity * 2 : b->n + n + 64;
        char *p = tg_tpl_alloc(r, now);
        if (b->n) memcpy(p, b->bytes, b->n);
        b->bytes = p;
        b->capacity = now;
    }
    if (n) memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

void tg_tpl_put_string(tpl_run *r, tpl_buffer *b, const char *s) { tg_tpl_put(r, b, s, strlen(s)); }
