/* JSON values as text. jansson's functions that add a member to a value leave it out if there is no memory, and report
 * that by a result which code that builds a value would have to check at each member. Instead the program notes each
 * allocation of jansson that fails, and no text is made of a value that may lack a member. */
#include <stdio.h>
#include <stdlib.h>

#include "common/program.h"

static _Thread_local bool lacks; /* an allocation of this thread has failed since its last text */

static void *allocate(size_t n) {
    void *p = malloc(n);
    if (!p) lacks = true;
    return p;
}

void json_text_begin(void) { json_set_alloc_funcs(allocate, free); }

char *json_text(const json_t *json, size_t flags) {
    char *text = json && !lacks ? json_dumps(json, flags) : NULL;
    if (lacks) {
        free(text);
        text = NULL;
    }
    lacks = false;
    return text;
}

int print_json(json_t *json) {
    char *text = json_text(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(json);
    if (!text) return fail("no memory for the result as JSON");
    puts(text);
    free(text);
    return 0;
}
