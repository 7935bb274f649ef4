/* The functions of the filters, for their table. An argument that the call does not give is of kind ABSENT. */
#ifndef TG_TEXT_TEMPLATE_FILTERS_H
#define TG_TEXT_TEMPLATE_FILTERS_H

#include "text/template/evaluate.h"

/* The parameters of a filter's function: the value that it is applied to, its arguments, and the call. */
#define TPL_FILTER(name) tpl_value tg_tpl_filter_##name(tpl_run *r, tpl_value on, const tpl_value *a, const tpl_call *c)

/* X(name in templates, function, parameters or NULL, how many are required) */
#define TPL_FILTER_LIST(X)                                                                                             \
    X("abs", abs, "", 0)                                                                                               \
    X("attr", attr, "name", 1)                                                                                         \
    X("batch", batch, "linecount fill_with", 1)                                                                        \
    X("capitalize", capitalize, "", 0)                                                                                 \
    X("count", length, "", 0)                                                                                          \
    X("d", default, "default_value boolean", 0)                                                                        \
    X("default", default, "default_value boolean", 0)                                                                  \
    X("dictsort", dictsort, "case_sensitive by reverse", 0)                                                            \
    X("e", escape, "", 0)                                                                                              \
    X("escape", escape, "", 0)                                                                                         \
    X("first", first, "", 0)                                                                                           \
    X("float", float, "default", 0)                                                                                    \
    X("format", format, NULL, 0)                                                                                       \
    X("indent", indent, "width first blank", 0)                                                                        \
    X("int", int, "default base", 0)                                                                                   \
    X("items", items, "", 0)                                                                                           \
    X("join", join, "d attribute", 0)                                                                                  \
    X("last", last, "", 0)                                                                                             \
    X("length", length, "", 0)                                                                                         \
    X("list", list, "", 0)                                                                                             \
    X("lower", lower, "", 0)                                                                                           \
    X("map", map, NULL, 0)                                                                                             \
    X("max", max, "case_sensitive attribute", 0)                                                                       \
    X("min", min, "case_sensitive attribute", 0)                                                                       \
    X("reject", reject, NULL, 0)                                                                                       \
    X("rejectattr", rejectattr, NULL, 0)                                                                               \
    X("replace", replace, "old new count", 2)                                                                          \
    X("reverse", reverse, "", 0)                                                                                       \
    X("round", round, "precision method", 0)                                                                           \
    X("safe", string, "", 0)                                                                                           \
    X("select", select, NULL, 0)                                                                                       \
    X("selectattr", selectattr, NULL, 0)                                                                               \
    X("sort", sort, "reverse case_sensitive attribute", 0)                                                             \
    X("string", string, "", 0)                                                                                         \
    X("sum", sum, "attribute start", 0)                                                                                \
    X("title", title, "", 0)                                                                                           \
    X("tojson", tojson, "ensure_ascii indent separators sort_keys", 0)                                                 \
    X("trim", trim, "chars", 0)                                                                                        \
    X("unique", unique, "case_sensitive attribute", 0)                                                                 \
    X("upper", upper, "", 0)                                                                                           \
    X("wordcount", wordcount, "", 0)

#define TPL_DECLARE(name, function, parameters, required) TPL_FILTER(function);
TPL_FILTER_LIST(TPL_DECLARE)
#undef TPL_DECLARE

static inline bool tg_tpl_given(tpl_value v) { return v.kind != TPL_ABSENT; }
/* Returns whether an argument is given and true. */
static inline bool tg_tpl_flag(tpl_run *r, tpl_value v) { return tg_tpl_given(v) && tg_tpl_truth(r, v); }

/* Sorts list by keys[list->n], and keeps the order of equal ones, also if it reverses the order of the others. */
void tg_tpl_sort(tpl_run *r, tpl_list *list, tpl_value *keys, bool reverse);
/* Returns the key by which a value is compared: a text in lower case, unless case counts; any other value itself. */
tpl_value tg_tpl_key(tpl_run *r, tpl_value v, bool case_sensitive);

#endif
