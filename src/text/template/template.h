/* A parsed template, and rendering it with a tree of jansson. */
#ifndef TG_TEXT_TEMPLATE_TEMPLATE_H
#define TG_TEXT_TEMPLATE_TEMPLATE_H

#include <jansson.h>

#include "text/template/evaluate.h"

struct tg_template {
    tg_ctx *ctx;
    tpl_run memory; /* of the tree; also the source and the name */
    const tpl_node *first;
};

/* Renders with the variables of a JSON object. now: TG_AUTO means the present. */
tg_status tg_template_render_json(const tg_template *t, const json_t *variables, int64_t now, tg_rendered *out);
/* Parses JSON: an object or an array. `what` names the text in messages. Returns NULL after recording an error. */
json_t *tg_template_json(tg_ctx *ctx, const char *text, bool object, const char *what);

#endif
