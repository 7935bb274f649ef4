/* Values of a template: those of Python that templates can make. A value does not change once it is made, except that
 * namespaces get attributes, and iterators and loops advance. */
#ifndef TG_TEXT_TEMPLATE_VALUE_H
#define TG_TEXT_TEMPLATE_VALUE_H

#include <string.h>

#include "text/template/run.h"

typedef enum tpl_kind {
    TPL_ABSENT, /* an argument that the call does not give; no value of a template has this kind */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_REAL,
    TPL_TEXT,
    TPL_LIST,
    TPL_TUPLE,
    TPL_RANGE,
    TPL_VIEW,     /* what items, keys and values of a dict return */
    TPL_ITERATOR, /* what map, select and others return: it can be passed over once, and has no length */
    TPL_DICT,
    TPL_NAMESPACE,
    TPL_LOOP,
    TPL_MACRO,
    TPL_METHOD,
    TPL_FUNCTION,
} tpl_kind;

/* UTF-8 of n bytes, which may contain zeros. */
typedef struct tpl_text {
    const char *bytes;
    size_t n;
    int64_t chars; /* number of characters; -1: not counted yet */
} tpl_text;

typedef struct tpl_list tpl_list;
typedef struct tpl_dict tpl_dict;
typedef struct tpl_loop tpl_loop;
typedef struct tpl_macro tpl_macro;
typedef struct tpl_method tpl_method;
typedef struct tpl_function tpl_function;

/* Why a value is undefined: `of` of an undefined value. Other numbers are the kind of the object that has no such
 * attribute or element. */
enum { TPL_NO_NAME = 100, TPL_NO_ARGUMENT, TPL_NO_ELSE, TPL_NO_ITEM, TPL_UNSAFE };

typedef struct tpl_value {
    uint8_t kind; /* tpl_kind */
    uint8_t of;   /* of an undefined value: why; of a view: 'i', 'k' or 'v' */
    union {
        bool truth;
        int64_t integer;
        double real;
        tpl_text *text; /* of an undefined value: what is not there; may be NULL */
        tpl_list *list; /* of lists, tuples, ranges, views and iterators */
        tpl_dict *dict; /* of dicts and namespaces */
        tpl_loop *loop;
        const tpl_macro *macro;
        const tpl_method *method;
        const tpl_function *function;
    };
} tpl_value;

struct tpl_list {
    tpl_value *items;
    int64_t n, capacity;
    int64_t at;       /* of an iterator: the number of the first item that was not taken yet */
    int64_t range[3]; /* of a range: start, stop, step */
};

typedef struct tpl_pair {
    tpl_value key, value;
} tpl_pair;

struct tpl_dict {
    tpl_pair *pairs; /* in the order in which the keys were added */
    int64_t n, capacity;
};

/* A method of a value, such as message.items. */
struct tpl_method {
    tpl_value of;
    const char *name;
};

static inline tpl_value tg_tpl_none(void) { return (tpl_value){.kind = TPL_NONE}; }
static inline tpl_value tg_tpl_bool(bool v) { return (tpl_value){.kind = TPL_BOOL, .truth = v}; }
static inline tpl_value tg_tpl_int(int64_t v) { return (tpl_value){.kind = TPL_INT, .integer = v}; }
static inline tpl_value tg_tpl_real(double v) { return (tpl_value){.kind = TPL_REAL, .real = v}; }
static inline tpl_value tg_tpl_undefined(int why, tpl_text *what) {
    return (tpl_value){.kind = TPL_UNDEFINED, .of = (uint8_t)why, .text = what};
}

/* Return texts that borrow the bytes: n of them, those before a zero, or those of a buffer. */
tpl_value tg_tpl_text(tpl_run *r, const char *bytes, size_t n);
tpl_value tg_tpl_string(tpl_run *r, const char *s);
tpl_value tg_tpl_take(tpl_run *r, const tpl_buffer *b);
static inline bool tg_tpl_is(const tpl_text *t, const char *s) {
    return t->n == strlen(s) && !memcmp(t->bytes, s, t->n);
}
bool tg_tpl_same_text(const tpl_text *a, const tpl_text *b);

tpl_value tg_tpl_list_new(tpl_run *r, tpl_kind kind);
void tg_tpl_append(tpl_run *r, tpl_list *list, tpl_value v);
tpl_value tg_tpl_pair_new(tpl_run *r, tpl_value a, tpl_value b); /* a tuple */
/* Returns Python's range with the arguments start, stop and step, which has n numbers. */
tpl_value tg_tpl_range_new(tpl_run *r, const int64_t arguments[3], int64_t n);

tpl_value tg_tpl_dict_new(tpl_run *r, tpl_kind kind);
bool tg_tpl_is_key(tpl_run *r, tpl_value v); /* whether Python can hash v */
/* Returns the pair of a key; NULL if there is none. Fails for a key that Python cannot hash, such as a list. */
tpl_pair *tg_tpl_find(tpl_run *r, const tpl_dict *d, tpl_value key);
tpl_pair *tg_tpl_find_name(const tpl_dict *d, const char *name);
void tg_tpl_set(tpl_run *r, tpl_dict *d, tpl_value key, tpl_value v);
/* Adds a pair whose key is not in the dict. */
void tg_tpl_add_pair(tpl_run *r, tpl_dict *d, tpl_value key, tpl_value v);
tpl_value tg_tpl_view(tpl_run *r, const tpl_dict *d, char of); /* 'i', 'k' or 'v' */

bool tg_tpl_is_number(tpl_value v); /* booleans are numbers */
bool tg_tpl_has_items(tpl_value v); /* .list is set */
/* Returns the integer of an integer or boolean. Fails if it is something else, which `what` names. */
int64_t tg_tpl_to_int(tpl_run *r, tpl_value v, const char *what);
double tg_tpl_to_real(tpl_run *r, tpl_value v, const char *what); /* likewise, of any number */
bool tg_tpl_truth(tpl_run *r, tpl_value v);
bool tg_tpl_equal(tpl_run *r, tpl_value a, tpl_value b);
/* Returns -1, 0 or 1: the order of two numbers, texts, lists or tuples; 2 if a number is NaN. Fails for other values;
 * the message says that operator `op` cannot compare them. */
int tg_tpl_order(tpl_run *r, tpl_value a, tpl_value b, const char *op);
const char *tg_tpl_type_name(tpl_value v); /* Python's */
/* Fails if v is undefined, as Python's operators on such a value do. */
void tg_tpl_require(tpl_run *r, tpl_value v);

/* Passes over the items of a value, the characters of a text, or the keys of a dict. An undefined value has none. */
typedef struct tpl_iter {
    tpl_value of;
    int64_t at;
} tpl_iter;

tpl_iter tg_tpl_iterate(tpl_run *r, tpl_value of); /* fails if it cannot be iterated */
/* Sets *out to the next item. Returns false if there is none. */
bool tg_tpl_next(tpl_run *r, tpl_iter *i, tpl_value *out);
bool tg_tpl_can_iterate(tpl_value v);
/* Returns a list of what an iteration gives. */
tpl_value tg_tpl_collect(tpl_run *r, tpl_value of);
/* Returns the length of a value; -1 if it has none. */
int64_t tg_tpl_length(tpl_run *r, tpl_value v);

/* The text that Python's str() and repr() give. */
void tg_tpl_put_value(tpl_run *r, tpl_buffer *b, tpl_value v);
void tg_tpl_put_repr(tpl_run *r, tpl_buffer *b, tpl_value v);
void tg_tpl_put_real(tpl_run *r, tpl_buffer *b, double v);
/* Writes a character as an escape of Python: \n, \r, \t, or a number such as \x1b or \u2028. */
void tg_tpl_put_escape(tpl_run *r, tpl_buffer *b, uint32_t c);
tpl_value tg_tpl_to_text(tpl_run *r, tpl_value v); /* str(v) */

#endif
