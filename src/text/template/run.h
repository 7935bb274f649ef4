/* What parsing and rendering a template share: memory that is freed as a whole, limits, and the end after an error.
 *
 * A template comes from a file that somebody else wrote, so it is bounded in every way: memory, steps, depth, output.
 * All memory of a run is cut from its chunks, and an error leaves with longjmp, as in other interpreters (Lua). So no
 * function of the interpreter has a failure to check or memory to free. */
#ifndef TG_TEXT_TEMPLATE_RUN_H
#define TG_TEXT_TEMPLATE_RUN_H

#include <locale.h>
#include <setjmp.h>

#include <tapegrad/template.h>

/* Limits of one run. */
enum {
    TPL_SOURCE = 1 << 20,   /* bytes of a template */
    TPL_MEMORY = 256 << 20, /* bytes of all values together; none is freed before the run ends */
    TPL_OUTPUT = 64 << 20,  /* bytes of a text */
    TPL_STEPS = 50000000,   /* nodes visited, and elements or groups of 16 bytes that filters and operators pass over */
    TPL_DEPTH = 1000,       /* nodes within nodes, through calls of macros too, and values within values */
    TPL_NESTING = 200,      /* open brackets in a tag; rules of the parser within rules, of which a bracket takes 2 */
};

typedef struct tpl_chunk {
    struct tpl_chunk *next;
    size_t bytes;
    max_align_t slots[];
} tpl_chunk;

/* Text that grows. Its memory is the run's. */
typedef struct tpl_buffer {
    char *bytes;
    size_t n, capacity;
} tpl_buffer;

typedef struct tpl_run {
    tg_ctx *ctx;
    const char *name;   /* names the template in messages */
    const char *source; /* its line ends are \n */
    size_t bytes, at;   /* at: the place in the source that an error is about */
    tpl_chunk *chunks;
    char *free;
    size_t room, memory; /* what is left of the first chunk, and of TPL_MEMORY */
    int64_t steps;       /* left */
    int depth;
    struct tpl_render *render; /* NULL while parsing */
    locale_t characters;       /* classes and cases of characters; 0 until they are needed */
    jmp_buf end;
} tpl_run;

/* Calls body(r, arg). Returns false if it failed; then the error is in the context. */
bool tg_tpl_guard(tpl_run *r, void (*body)(tpl_run *r, void *arg), void *arg);
void tg_tpl_release(tpl_run *r); /* frees all memory of the run */

/* Records an error at r->at, with line and column, and leaves. */
_Noreturn void tg_tpl_fail(tpl_run *r, tg_status status, const char *format, ...) TG_PRINTF(3, 4);
_Noreturn void tg_tpl_leave(tpl_run *r); /* after an error that was recorded already */

/* Returns zeroed memory. */
void *tg_tpl_alloc(tpl_run *r, size_t bytes);
/* Returns an array of at least n + 1 elements that begins with the n elements of items. If *capacity is too
 * small, doubles it. */
void *tg_tpl_grow(tpl_run *r, void *items, int64_t n, int64_t *capacity, size_t size);
char *tg_tpl_copy(tpl_run *r, const char *bytes, size_t n); /* a zero follows it */

/* Counts n steps, and fails if there are too many. */
void tg_tpl_spend(tpl_run *r, int64_t n);
/* Counts the steps of a pass over n bytes. */
static inline void tg_tpl_pass(tpl_run *r, size_t n) { tg_tpl_spend(r, 1 + (int64_t)(n >> 4)); }
void tg_tpl_enter(tpl_run *r); /* one level down; fails if there are too many */
static inline void tg_tpl_return(tpl_run *r) { r->depth--; }

void tg_tpl_put(tpl_run *r, tpl_buffer *b, const char *bytes, size_t n);
void tg_tpl_put_string(tpl_run *r, tpl_buffer *b, const char *s);

#endif
