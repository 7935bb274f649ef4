/* The interpreter: the state of a render, and the functions that its files share. */
#ifndef TG_TEXT_TEMPLATE_EVALUATE_H
#define TG_TEXT_TEMPLATE_EVALUATE_H

#include "text/template/parse/node.h"

/* The variables that a block has set. A name that it has not set is looked up in the scopes around it. */
typedef struct tpl_scope {
    struct tpl_scope *parent;
    tpl_dict names;
} tpl_scope;

/* The state of a render. */
typedef struct tpl_render {
    tpl_scope *scope;
    tpl_scope root;            /* what the template sets outside of blocks that have a scope of their own */
    const tpl_dict *variables; /* what the caller gives */
    tpl_buffer *out, text;     /* text: the result; out: what is written now, the result or the text of a block */
    tpl_value piped;           /* the text of a block that its filters get */
    int64_t captures;          /* number of macros made so far; each keeps its scope */
    tg_text_span *spans;       /* what generation blocks have written */
    int64_t n_spans, span_capacity;
    int64_t now; /* seconds since 1970 */
} tpl_render;

/* A call's arguments. */
typedef struct tpl_call {
    tpl_value *args;
    int64_t n, capacity;
    tpl_dict named;
} tpl_call;

struct tpl_macro {
    const tpl_text *name;
    const tpl_node *node; /* of kind MACRO or CALL_BLOCK */
    tpl_scope *scope;     /* in which it was defined */
};

struct tpl_function {
    const char *name;
    tpl_value (*call)(tpl_run *r, const tpl_call *c);
};

struct tpl_filter {
    const char *name;
    const char *parameters; /* names, separated by spaces; NULL: the filter reads the call itself */
    int required;           /* the first ones that must be given */
    /* on: the value to the left of |; a: the arguments in the order of the parameters, ABSENT where the call has none
     */
    tpl_value (*apply)(tpl_run *r, tpl_value on, const tpl_value *a, const tpl_call *c);
};

struct tpl_test {
    const char *name;
    int arguments;
    bool (*holds)(tpl_run *r, tpl_value on, tpl_value argument);
};

enum { TPL_PARAMETERS = 6 };

typedef enum tpl_signal { TPL_GO_ON, TPL_LEAVE, TPL_NEXT } tpl_signal; /* leave: break; next: continue */

tpl_value tg_tpl_eval(tpl_run *r, const tpl_node *n);
tpl_signal tg_tpl_run_body(tpl_run *r, const tpl_node *first);
/* Runs statements in a scope of their own, and returns what they write. Sets *signal to how they ended. */
tpl_value tg_tpl_capture(tpl_run *r, const tpl_node *first, tpl_signal *signal);
tpl_signal tg_tpl_run_loop(tpl_run *r, const tpl_node *n, tpl_value items, int depth);

void tg_tpl_assign(tpl_run *r, const tpl_node *target, tpl_value v);
void tg_tpl_set_name(tpl_run *r, tpl_scope *scope, tpl_text *name, tpl_value v);
tpl_value tg_tpl_name(tpl_run *r, tpl_text *name);
const tpl_function *tg_tpl_builtin(const tpl_text *name); /* NULL: there is none */

tpl_value tg_tpl_arithmetic(tpl_run *r, int op, tpl_value a, tpl_value b);
tpl_value tg_tpl_negate(tpl_run *r, tpl_value v);
bool tg_tpl_contains(tpl_run *r, tpl_value container, tpl_value item);
bool tg_tpl_compare(tpl_run *r, int op, tpl_value a, tpl_value b);
tpl_value tg_tpl_format(tpl_run *r, const tpl_text *format, tpl_value of); /* Python's operator % */

tpl_value tg_tpl_attribute(tpl_run *r, tpl_value of, tpl_text *name);
tpl_value tg_tpl_item(tpl_run *r, tpl_value of, tpl_value key);
/* Like tg_tpl_item, for a path such as "function.name" or "0.name". An undefined value at a part of the path becomes
 * `otherwise`, to which the rest of the path applies; if `otherwise` is none, it stays undefined. */
tpl_value tg_tpl_path_or(tpl_run *r, tpl_value of, tpl_value path, tpl_value otherwise);
static inline tpl_value tg_tpl_path(tpl_run *r, tpl_value of, tpl_value path) {
    return tg_tpl_path_or(r, of, path, tg_tpl_none());
}
tpl_value tg_tpl_slice(tpl_run *r, tpl_value of, tpl_value start, tpl_value stop, tpl_value step);

void tg_tpl_arguments(tpl_run *r, const tpl_node *first, tpl_call *out);
/* Puts the arguments in the order of the parameters. Fails if one is unknown, missing or given twice. */
void tg_tpl_bind(tpl_run *r, const char *who, const char *parameters, int required, const tpl_call *c, tpl_value *out);
tpl_value tg_tpl_call(tpl_run *r, tpl_value callee, const tpl_call *c);
tpl_value tg_tpl_call_macro(tpl_run *r, const tpl_macro *m, const tpl_call *c);
/* Returns the method of that name as a value, an undefined value if templates may not use it, or ABSENT. */
tpl_value tg_tpl_method(tpl_run *r, tpl_value of, const tpl_text *name);
tpl_value tg_tpl_call_method(tpl_run *r, const tpl_method *m, const tpl_call *c);
bool tg_tpl_has_text_method(const tpl_text *name, const char **found);
tpl_value tg_tpl_call_text_method(tpl_run *r, const tpl_method *m, const tpl_call *c);

int64_t tg_tpl_loop_length(tpl_run *r, tpl_loop *l);
tpl_value tg_tpl_loop_attribute(tpl_run *r, tpl_loop *l, tpl_text *name);
tpl_value tg_tpl_call_loop(tpl_run *r, tpl_loop *l, const tpl_call *c);
tpl_value tg_tpl_call_loop_method(tpl_run *r, const tpl_method *m, const tpl_call *c);

/* Fail if there is no such filter or test. */
const tpl_filter *tg_tpl_find_filter(tpl_run *r, const tpl_text *name);
const tpl_test *tg_tpl_find_test(tpl_run *r, const tpl_text *name);
bool tg_tpl_is_filter(const tpl_text *name);
tpl_value tg_tpl_apply(tpl_run *r, const tpl_filter *f, tpl_value on, const tpl_call *c);
bool tg_tpl_holds(tpl_run *r, const tpl_test *t, tpl_value on, const tpl_call *c);

#endif
