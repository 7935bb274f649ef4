/* JSON and values of templates. */
#ifndef TG_TEXT_TEMPLATE_JSON_H
#define TG_TEXT_TEMPLATE_JSON_H

#include <jansson.h>

#include "text/template/values/value.h"

/* How tojson writes: what stands between items and after keys, and the indentation of a level (NULL: one line). */
typedef struct tpl_json_style {
    const tpl_text *indent, *item, *key;
    bool ascii, sort; /* escape what is not ASCII; sort the keys */
} tpl_json_style;

/* Returns the value of a tree, whose strings it borrows. */
tpl_value tg_tpl_from_json(tpl_run *r, const json_t *j);
tpl_value tg_tpl_to_json(tpl_run *r, tpl_value v, const tpl_json_style *style);

#endif
